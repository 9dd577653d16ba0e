/* engine/line/layer_parts.c - decoder layers of layer.h in two parts, with attention on the CPU
 * between them. */
#include "engine/line/layer_impl.h"

/* The tile's next run of consecutive cuts of a kind: first token, count (0 after the last). */
struct run {
    int cut, at, first, n;
};

static int run_next(const struct tile *t, const struct cut *cuts, int kind, struct run *r)
{
    r->n = 0;
    for (; r->cut < t->n_cuts && (r->n == 0 || cuts[r->cut].span->kind == kind); r->cut++) {
        if (cuts[r->cut].span->kind == kind) {
            r->first = r->n == 0 ? r->at : r->first;
            r->n += cuts[r->cut].n;
        }
        r->at += cuts[r->cut].n;
    }
    return r->n > 0;
}

/* Tokens of a kind in the tile. */
static int64_t run_tokens(const struct tile *t, const struct cut *cuts, int kind)
{
    int64_t n = 0;
    for (int i = 0; i < t->n_cuts; i++)
        n += cuts[i].span->kind == kind ? cuts[i].n : 0;
    return n;
}

/* Appends `each` values of x per token of a kind. */
static void add_runs(struct layer_work *w, struct cross *cross, const struct tile *t, int kind,
                     int bytes, const float *x, int64_t each)
{
    struct run r = {0};
    while (run_next(t, w->cuts, kind, &r))
        cross_out_add(cross, &w->ops, bytes, x + r.first * each, r.n * each);
}

/* Sends q, k and v of the tile's forced spans to the CPU. The prompts' attention, computed here,
 * goes to x->out after the forced spans' share, where part 1 reads it. */
static void send_tile(struct layer_work *w, struct cross *cross, const struct exchange *x,
                      const struct tile *t)
{
    const int64_t heads = layer_q_numbers(w), kv = layer_kv_numbers(w);
    const int64_t all = heads + shape_kv_numbers(w->shape, w->layer); // values may be the keys
    const int64_t forced = run_tokens(t, w->cuts, SPAN_FORCED), prompts = t->n - forced;
    const struct cross_bytes bytes = x->bytes;
    if (forced > 0) {
        cross_out_begin(cross);
        add_runs(w, cross, t, SPAN_FORCED, bytes.in, w->q, heads);
        add_runs(w, cross, t, SPAN_FORCED, bytes.in, w->k, kv);
        if (all > heads + kv)
            add_runs(w, cross, t, SPAN_FORCED, bytes.in, w->v, kv);
        cross_out_end(cross, x->in + t->first * all * bytes.in, forced * all * bytes.in);
    }
    if (prompts > 0) {
        layer_rotate(w, w->attn, w->shape->n_heads, t->n);
        cross_out_begin(cross);
        add_runs(w, cross, t, SPAN_PROMPT, bytes.out, w->attn, heads);
        cross_out_end(cross, x->out + (t->first + forced) * heads * bytes.out,
                      prompts * heads * bytes.out);
    }
}

/* Points w->rows at one row: buffer `turn` of the kept pages, with home's strides. */
static void place_kept(struct layer_work *w, const struct kv_rows *home, const struct cross *cross,
                       int turn)
{
    const struct slab *slots = &cross->kept_slots;
    struct kv_rows *rows = &w->rows;
    rows->slots_cap = home->slots_cap;
    rows->pages = slab_at(&cross->kept.buffers, turn);
    rows->slot_pos = home->slot_pos ? slab_at(slots, 4 * turn) : NULL;
    rows->slot_score = home->slot_score ? slab_at(slots, 4 * turn + 1) : NULL;
    rows->slot_rank = home->slot_rank ? slab_at(slots, 4 * turn + 2) : NULL;
    rows->slot_trait = home->slot_trait ? slab_at(slots, 4 * turn + 3) : NULL;
    rows->rings = slab_at(&cross->kept_rings, turn);
}

/* Copies the kept slots of the prompt of row r (w->rows: one row) to row r of `home`. */
static void send_kept(const struct layer_work *w, const struct ops *copies, const struct batch *b,
                      const struct kv_rows *home, int r, int n_prompt)
{
    const struct kv_rows *rows = &w->rows;
    const struct row *row = &b->rows[r];
    const int tail = layer_tail_page(w, home, row);
    const int64_t pages = ceil_div(layer_slots(w, row, n_prompt), PAGE_SLOTS);
    const int64_t at = r * home->slot_stride;
    const int64_t n_bytes = (int64_t)rows->layout.n_kv_heads * home->slots_cap * 4;
    for (int i = 0; i < pages; i++)
        ops_copy(copies, kv_page_of(home, layer_page_id(w, b, r, i, tail)), kv_page_of(rows, i),
                 rows->layout.page_bytes);
    if (home->slot_pos) {
        ops_copy(copies, home->slot_pos + at, rows->slot_pos, n_bytes);
        ops_copy(copies, home->slot_score + at, rows->slot_score, n_bytes);
    }
    if (home->slot_rank)
        ops_copy(copies, home->slot_rank + at, rows->slot_rank, n_bytes);
    if (home->slot_trait)
        ops_copy(copies, home->slot_trait + at, rows->slot_trait, n_bytes);
    if (home->rings)
        ops_copy(copies, home->rings + r * home->ring_stride, rows->rings, w->ring_bytes);
}

/* Evicts from prompts that end in the tile and copies their kept slots to their rows. */
static void send_prompts(struct layer_work *w, struct cross *cross, const struct kv_rows *home,
                         const struct tile *t, const struct batch *b)
{
    for (int i = 0; i < t->n_cuts; i++) {
        const struct cut *c = &w->cuts[i];
        if (!cut_ends_prompt(c))
            continue;
        place_kept(w, home, cross, cross_kept_begin(cross));
        tile_keep(w, c, b, w->layer, 0);
        const struct ops copies = cross_kept_filled(cross);
        send_kept(w, &copies, b, home, c->span->row, c->span->pos + c->span->n);
        cross_kept_end(cross);
    }
}

void layer_before(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden, struct cross *cross, const struct exchange *x)
{
    struct tile t = {0};
    layer_begin(w, layer - 1, batch, hidden);
    struct kv_rows home = w->rows;
    layer_set_kv(w, batch, kv, &home);
    int32_t *ids = layer_take_ids(w, 1);
    for (int i = 0; i < w->rows.page_ids_stride; i++)
        ids[i] = i;
    layer_tell_rope(w, batch, layer - 1);
    layer_tell_spans(w, batch, tile_next);
    tables_send(w->tables, &w->ops);
    w->sinks = w->shape->sinks ? model_vector(l, ROLE_SINKS, weights) : NULL;
    if (w->sinks)
        ops_copy(&w->ops, x->sinks, w->sinks, w->shape->n_heads * 4);
    while (tile_next(w, batch, &t, w->cuts)) {
        tile_before(w, l, weights, &t, w->cuts, layer - 1,
                    hidden + (int64_t)t.first * w->shape->dim);
        tile_prompts(w, &t, w->cuts, batch, shape_attn_scale(w->shape));
        send_prompts(w, cross, &home, &t, batch);
        send_tile(w, cross, x, &t);
    }
}

/* q, k and v of n tokens, as received from a device; f32 is used in place. */
static struct heads take_crossed(struct layer_work *w, uint8_t *in, int bytes, int64_t n)
{
    const int64_t heads = n * layer_q_numbers(w), kv = n * layer_kv_numbers(w);
    const int apart = w->shape->latent_key == 0;
    uint8_t *k = in + heads * bytes, *v = apart ? k + kv * bytes : k;
    if (bytes == 4)
        return (struct heads){(float *)(void *)in, (float *)(void *)k, (float *)(void *)v, w->attn};
    cross_widen(&w->ops, bytes, w->q, in, heads);
    cross_widen(&w->ops, bytes, w->k, k, kv);
    if (apart)
        cross_widen(&w->ops, bytes, w->v, v, kv);
    return (struct heads){w->q, w->k, layer_values(w), w->attn};
}

/* Marks the pages of prompts, which were copied with the tiles, as written. */
static void mark_prompts(struct layer_work *w, const struct batch *b)
{
    for (int i = 0; i < b->n_spans; i++) {
        const struct span *s = &b->spans[i];
        if (s->kind != SPAN_PROMPT)
            continue;
        uint64_t *dirty = w->rows.dirty + (int64_t)s->row * w->rows.dirty_stride;
        const int slots = layer_slots(w, &b->rows[s->row], s->pos + s->n);
        for (int page = 0; page * PAGE_SLOTS < slots; page++)
            dirty[page >> 6] |= 1ull << (page & 63);
    }
}

void layer_attend(struct layer_work *w, int layer, const struct batch *batch,
                  const struct layer_kv *kv, const struct exchange *x)
{
    struct tile t = {0};
    layer_begin(w, layer - 1, batch, NULL);
    const int64_t heads = layer_q_numbers(w), all = heads + shape_kv_numbers(w->shape, w->layer);
    layer_set_rows(w, batch, kv);
    mark_prompts(w, batch);
    layer_tell_spans(w, batch, tile_next_forced);
    tables_send(w->tables, &w->ops);
    w->sinks = w->shape->sinks ? x->sinks : NULL;
    while (tile_next_forced(w, batch, &t, w->cuts)) {
        const int64_t n = run_tokens(&t, w->cuts, SPAN_FORCED);
        uint8_t *out = x->out + t.first * heads * x->bytes.out;
        if (n == 0)
            continue;
        struct heads at = take_crossed(w, x->in + t.first * all * x->bytes.in, x->bytes.in, n);
        if (x->bytes.out == 4)
            at.out = (float *)(void *)out;
        tile_forced(w, &t, w->cuts, batch, &at);
        layer_rotate(w, at.out, w->shape->n_heads, (int)n);
        if (x->bytes.out != 4)
            cross_narrow(&w->ops, x->bytes.out, out, at.out, n * heads);
    }
}

void layer_after(struct layer_work *w, const struct model_layer *l, int layer,
                 const struct batch *batch, const uint8_t *weights, struct cross *cross,
                 const struct exchange *x, float *hidden)
{
    static const int kinds[] = {SPAN_FORCED, SPAN_PROMPT}; // the order in x->out
    struct tile t = {0};
    layer_begin(w, layer - 1, batch, hidden);
    const int64_t heads = layer_q_numbers(w), bytes = heads * x->bytes.out;
    while (tile_next(w, batch, &t, w->cuts)) {
        cross_in_begin(cross, x->out + t.first * bytes, t.n * bytes);
        for (int i = 0; i < 2; i++) {
            struct run r = {0};
            while (run_next(&t, w->cuts, kinds[i], &r))
                cross_in_take(cross, &w->ops, w->attn + r.first * heads, r.n * heads);
        }
        cross_in_end(cross);
        tile_after(w, l, weights, &t, hidden + (int64_t)t.first * w->shape->dim);
    }
}
