/* engine/line/layer_spans.c - see layer_impl.h: the tiles of a batch, and the KV of its rows in a
 * layer. Tells ops of both through the step's tables.
 *
 * Note: a prompt that does not fit into the rest of a tile opens a new tile. So a prompt that
 * continues over several tiles is always the first of each tile, and its K and V always start at
 * the beginning of the workspace. */
#include "engine/line/layer_impl.h"

#include <string.h>

/* Cuts of the next tile; 0 when the batch is done. */
int tile_next(struct layer_work *w, const struct batch *b, struct tile *t, struct cut *cuts)
{
    int room = w->plan->tile_tokens, pages = t->continued_page_end;
    t->first += t->n;
    t->n = t->n_cuts = 0;
    t->continued_page_end = 0;
    while (t->span < b->n_spans && t->n < room) {
        const struct span *s = &b->spans[t->span];
        struct cut c = {.span = s, .offset = t->offset};
        c.n = (int)min_i64(s->n - t->offset, room - t->n);
        if (s->kind == SPAN_PROMPT) {
            int need = (int)ceil_div(s->pos + s->n, PAGE_SLOTS);
            if (t->offset == 0) {
                if (t->n > 0 && (s->n > room - t->n || pages + need > w->prompt_page_cap))
                    break;
                c.page = pages;
                pages += need;
            }
            if (c.n < s->n - t->offset)
                t->continued_page_end = need;
        }
        cuts[t->n_cuts++] = c;
        t->n += c.n;
        t->offset += c.n;
        if (t->offset == s->n) {
            t->span++;
            t->offset = 0;
        }
    }
    return t->n > 0;
}

/* The same without prompts, for rows that attend on the CPU: forced cuts are contiguous. */
int tile_next_forced(struct layer_work *w, const struct batch *b, struct tile *t, struct cut *cuts)
{
    const int more = tile_next(w, b, t, cuts), n = t->n_cuts;
    t->n_cuts = 0;
    for (int i = 0; i < n; i++)
        if (cuts[i].span->kind == SPAN_FORCED)
            cuts[t->n_cuts++] = cuts[i];
    return more;
}

/* Writes the row of each token of the batch, counted from the layer's table of angles. */
void layer_tell_rope(struct layer_work *w, const struct batch *b, int layer)
{
    const struct shape *s = w->shape;
    w->told.pos = NULL;
    if (s->position != POSITION_ROPE || s->layer_rope[layer] == SHAPE_NO_ROPE)
        return;
    struct tile t = {0};
    int32_t *pos = w->told.pos = tables_take(w->tables, b->n_tokens * (int64_t)sizeof *pos);
    while (tile_next(w, b, &t, w->cuts))
        for (int i = 0; i < t.n_cuts; i++) {
            const struct cut *c = &w->cuts[i];
            const int other = !s->layer_rope[layer] && batch_turns_long(s, &b->rows[c->span->row]);
            for (int j = 0; j < c->n; j++)
                *pos++ = (int32_t)(other * w->rope_rows) + c->span->pos + c->offset + j;
        }
}

/* For the current layer: the row's slot limits, and its page slots after n more tokens. */
struct evict_row layer_limits(const struct layer_work *w, const struct row *row)
{
    struct evict rule;
    struct evict_row limits;
    evict_in_kind(w->evict, &row->evict, plan_kind(w->plan, w->layer), &rule, &limits);
    return limits;
}

int layer_slots(const struct layer_work *w, const struct row *row, int n)
{
    return batch_kind_slots(w->evict, row, plan_kind(w->plan, w->layer), n);
}

static struct prompt_span prompt_span(const struct cut *c, int token)
{
    return (struct prompt_span){.n_prompt = c->span->pos + c->span->n,
                                .first = c->span->pos + c->offset,
                                .n = c->n,
                                .token = token,
                                .page = c->page};
}

static struct forced_span forced_span(const struct layer_work *w, const struct batch *b,
                                      const struct cut *c, int token)
{
    const struct row *row = &b->rows[c->span->row];
    const int pos = c->span->pos + c->offset;
    return (struct forced_span){.row = c->span->row,
                                .n_slots = layer_slots(w, row, pos - row->n_done),
                                .n = c->n,
                                .pos = pos,
                                .token = token,
                                .limits = layer_limits(w, row)};
}

/* Writes the spans of all tiles of the batch, tile by tile. */
void layer_tell_spans(struct layer_work *w, const struct batch *b, tiles_fn next)
{
    struct tile t = {0};
    int64_t n_prompts = 0, n_forced = 0;
    while (next(w, b, &t, w->cuts))
        for (int i = 0; i < t.n_cuts; i++)
            *(w->cuts[i].span->kind == SPAN_PROMPT ? &n_prompts : &n_forced) += 1;
    struct prompt_span *p = tables_take(w->tables, n_prompts * (int64_t)sizeof *p);
    struct forced_span *f = tables_take(w->tables, n_forced * (int64_t)sizeof *f);
    w->told.prompts = p;
    w->told.forced = f;
    t = (struct tile){0};
    while (next(w, b, &t, w->cuts))
        for (int i = 0, at = 0; i < t.n_cuts; at += w->cuts[i].n, i++)
            if (w->cuts[i].span->kind == SPAN_PROMPT)
                *p++ = prompt_span(&w->cuts[i], at);
            else
                *f++ = forced_span(w, b, &w->cuts[i], at);
}

/* If KV moves, full pages are in the frame and the page being filled is the row's tail. Returns the
 * index of the page that is a tail after this step; -1: none. */
int layer_tail_page(const struct layer_work *w, const struct kv_rows *rows, const struct row *row)
{
    const int n_after = layer_slots(w, row, row->n_take);
    return rows->tails && n_after % PAGE_SLOTS ? n_after / PAGE_SLOTS : -1;
}

/* Id of page i of row r in this step; ~r: its tail. */
int32_t layer_page_id(const struct layer_work *w, const struct batch *b, int r, int i, int tail)
{
    return i == tail ? ~r : batch_page_id(w->plan, b, w->layer, r, i);
}

/* Ids of all pages of row r; a tail that becomes full in this step is copied to the frame first. */
static void place_pages(struct layer_work *w, const struct batch *b, int r, int32_t *ids)
{
    const struct row *row = &b->rows[r];
    const int n_slots = layer_slots(w, row, 0), before = n_slots / PAGE_SLOTS;
    const int tail = layer_tail_page(w, &w->rows, row), own = plan_own_pages(w->plan, w->layer);
    for (int i = 0; i < (own > 0 ? own : row->n_pages); i++)
        ids[i] = layer_page_id(w, b, r, i, tail);
    if (w->rows.tails && n_slots % PAGE_SLOTS && before != tail)
        ops_copy(&w->ops, kv_page_of(&w->rows, ids[before]), kv_page_of(&w->rows, ~r),
                 w->rows.layout.page_bytes);
}

/* Sets the current decoder layer, and the hidden states of its batch. */
void layer_begin(struct layer_work *w, int layer, const struct batch *b, float *hidden)
{
    struct evict_row limits = {0};
    const struct layer_layouts *of = &w->layouts[w->shape->layer_wide[layer]];
    w->layer = layer;
    w->hidden = hidden;
    w->tokens = b->n_tokens;
    w->rows.layout = of->pages;
    w->rows.ring = of->ring;
    w->prompt = of->prompt;
    evict_in_kind(w->evict, &limits, plan_kind(w->plan, layer), &w->rule, &limits);
}

/* The batch's KV in the current layer, without page ids. */
void layer_set_kv(const struct layer_work *w, const struct batch *b, const struct layer_kv *kv,
                  struct kv_rows *rows)
{
    int64_t first = (int64_t)b->index * w->plan->batch; // the batch's first row in the run
    const int ring = w->ring_bytes > 0 ? EVICT_RING_MAX : 0, layer = w->layer;
    const int64_t slots = plan_kv_slots_before(w->plan, w->shape, layer, ring);
    rows->slots_cap = plan_kv_slots(w->plan, layer) + ring;
    rows->pages = kv->pages;
    rows->tails = kv->tails;
    rows->tail_stride = kv->tail_stride;
    rows->slot_pos = NULL;
    rows->slot_score = NULL;
    rows->slot_rank = NULL;
    rows->slot_trait = NULL;
    rows->rings = slab_at(&w->rings, first);
    if (w->rule.policy != EVICT_FULL) {
        rows->slot_pos = (int32_t *)slab_at(&w->slot_pos, first) + slots;
        rows->slot_score = (float *)slab_at(&w->slot_score, first) + slots;
    }
    if (layer_by_rank(w, layer))
        rows->slot_rank = (int32_t *)slab_at(&w->slot_rank, first) + slots;
    if (evict_policy_trait(w->rule.policy))
        rows->slot_trait = (float *)slab_at(&w->slot_trait, first) + slots;
    if (rows->rings)
        rows->rings += layer * w->ring_bytes;
}

/* Page ids, and a zeroed bitmap of written pages, for n rows. */
int32_t *layer_take_ids(struct layer_work *w, int n)
{
    struct kv_rows *rows = &w->rows;
    const int64_t dirty_bytes = (int64_t)n * rows->dirty_stride * 8;
    void *dirty = tables_take(w->tables, dirty_bytes);
    memset(dirty, 0, (size_t)dirty_bytes);
    rows->dirty = tables_seen(w->tables, dirty);
    int32_t *ids = tables_take(w->tables, n * (int64_t)sizeof *ids * rows->page_ids_stride);
    rows->page_ids = tables_seen(w->tables, ids);
    return ids;
}

/* The batch's KV in the current layer, with page ids. */
void layer_set_rows(struct layer_work *w, const struct batch *b, const struct layer_kv *kv)
{
    struct kv_rows *rows = &w->rows;
    layer_set_kv(w, b, kv, rows);
    int32_t *ids = layer_take_ids(w, b->n_rows);
    for (int r = 0; r < b->n_rows; r++)
        if (b->rows[r].request)
            place_pages(w, b, r, ids + (int64_t)r * rows->page_ids_stride);
}
