/* policy/layout.c - see layout.h: how large each part is. */
#include "policy/layout.h"

#include "kernels/base/num.h"

#include <string.h>

#define ARRAY_ALIGN 64
#define TILE_SHARE  32 // of a device's memory one part: a layer or two stream that would stay

#define LAYOUT_ACCOUNT(id, account, arena) PLAN_BYTES_##account,
static const enum plan_account accounts[N_LAYOUT_IDS] = {LAYOUT_PARTS(LAYOUT_ACCOUNT)};
#define LAYOUT_ARENA(id, account, arena) ARENA_##arena,
static const enum layout_arena arenas[N_LAYOUT_IDS] = {LAYOUT_PARTS(LAYOUT_ARENA)};

struct build {
    struct layout *l;
    const struct plan *plan;
    const struct weights_info *w;
    const struct work *work;
    const struct shape *shape;
    const struct evict *evict;
    const struct plan_costs *costs;
    struct plan_bytes *bytes;
};

static enum layout_arena arena_of(const struct build *b, enum layout_id id)
{
    if (!b->plan->device)
        return ARENA_HOST;
    if (arenas[id] == ARENA_ATTEND)
        return b->plan->attn_cpu ? ARENA_PINNED : ARENA_DEVICE;
    return arenas[id];
}

/* A range of its arena, and what it adds to its account: gaps before it included. */
static int64_t range(struct build *b, enum layout_id id, int64_t n_bytes, int64_t to)
{
    enum layout_arena arena = arena_of(b, id);
    int64_t *end = &b->l->n_bytes[arena];
    int64_t before = *end, at = round_up(before, to);
    *end = at + round_up(n_bytes, ARRAY_ALIGN) + LAYOUT_GAP;
    b->bytes->by[accounts[id]][arena == ARENA_DEVICE ? TIER_DEVICE : TIER_RAM] += *end - before;
    return at;
}

/* n pieces of n_bytes each. A part without bytes has no pieces: nobody may ask for it. */
static void part(struct build *b, enum layout_id id, int64_t n, int64_t n_bytes, int64_t to)
{
    if (n <= 0 || n_bytes <= 0)
        return;
    struct layout_part *p = &b->l->parts[id];
    p->arena = arena_of(b, id);
    p->n = n;
    p->n_bytes = n_bytes;
    p->stride = round_up(n_bytes + LAYOUT_GAP, to);
    p->offset = range(b, id, (n - 1) * p->stride + n_bytes, to);
}

static void array(struct build *b, enum layout_id id, int64_t n, int64_t size)
{
    part(b, id, 1, n * size, ARRAY_ALIGN);
}

/* n arrays of `each` elements. */
static void arrays(struct build *b, enum layout_id id, int64_t n, int64_t each, int64_t size)
{
    part(b, id, n, each * size, ARRAY_ALIGN);
}

static void blocks(struct build *b, enum layout_id id, int64_t n, int64_t n_bytes)
{
    part(b, id, n, n_bytes, BLOCK_BYTES);
}

/* Room for the tiles of the largest layer that is not held as such. One is enough: ops of a layer
 * end before those of the next begin. */
static void lay_tiles(struct build *b)
{
    int64_t most = 0;
    for (int layer = 0; layer < b->plan->layers && b->w->must_decode; layer++)
        if (!plan_layer_decoded(b->plan, layer))
            most = max_i64(most, b->w->tile_bytes[layer]);
    blocks(b, LAYOUT_TILES, 1, most);
}

static void lay_weight_frames(struct build *b)
{
    const struct plan *p = b->plan;
    array(b, LAYOUT_WEIGHT_HOMES, p->layers, b->costs->sizes.weight_home);
    array(b, LAYOUT_FREE_FRAMES, p->weight_frames, (int64_t)sizeof(void *));
    blocks(b, LAYOUT_WEIGHT_FRAMES, p->weight_frames, p->weight_frame_bytes);
    if (p->experts_few > 0) {
        int64_t pieces = ceil_div(p->weight_frame_bytes, PIECE_BYTES);
        arrays(b, LAYOUT_WEIGHT_PIECES, p->weight_frames, ceil_div(pieces, 64), 8);
        arrays(b, LAYOUT_WEIGHT_SEGMENTS, p->weight_frames, pieces, b->costs->sizes.segment);
    }
    lay_tiles(b);
    if (p->codec != PLAN_CODEC_NONE)
        blocks(b, LAYOUT_STAGING, 1, b->costs->staging_bytes);
    if (p->device)
        blocks(b, LAYOUT_BOUNCE, 1, b->costs->bounce_bytes);
}

static void lay_kv_frames(struct build *b)
{
    const struct plan *p = b->plan;
    const struct plan_sizes *s = &b->costs->sizes;
    int64_t extents = (int64_t)p->decoder * p->batches, pages = p->pages_batch;
    int64_t page = b->costs->kv_page_bytes;
    int64_t moving = extents - p->kv_near;
    array(b, LAYOUT_KV_PLACES, extents, 8);
    if (moving == 0)
        return;
    array(b, LAYOUT_KV_FRAMES, p->kv_frames, s->frame);
    array(b, LAYOUT_KV_LAST, extents, s->last_write);
    if (plan_kv_count(p, TIER_NVME) > 0) // RAM is believed
        array(b, LAYOUT_KV_CRCS, extents * pages * ceil_div(page, PIECE_BYTES), 4);
    array(b, LAYOUT_KV_GENERATIONS, extents * pages, 4);
    blocks(b, LAYOUT_KV_TAILS, 1, p->batch * moving * page);
    blocks(b, LAYOUT_KV_FRAME_PAGES, p->kv_frames, pages * page);
    arrays(b, LAYOUT_KV_SEGMENTS, p->kv_frames, pages, s->segment);
    arrays(b, LAYOUT_KV_FETCHED, p->kv_frames, pages, 4);
}

int64_t layout_hidden_frame_bytes(const struct plan *plan, const struct shape *shape)
{
    return round_up(plan->step_tokens * plan_token_bytes(shape), BLOCK_BYTES);
}

static void lay_hidden(struct build *b)
{
    const struct plan *p = b->plan;
    const struct plan_sizes *s = &b->costs->sizes;
    int64_t frame = layout_hidden_frame_bytes(p, b->shape), units = ceil_div(frame, PIECE_BYTES);
    blocks(b, LAYOUT_HIDDEN, p->hidden_near > 0, p->pass_tokens * plan_token_bytes(b->shape));
    if (p->hidden_near == p->batches)
        return;
    array(b, LAYOUT_HIDDEN_FRAMES, p->hidden_frames, s->frame);
    array(b, LAYOUT_HIDDEN_LAST, p->batches, s->last_write);
    if (plan_hidden_count(p, TIER_NVME) > 0)
        array(b, LAYOUT_HIDDEN_CRCS, p->batches * units, 4);
    array(b, LAYOUT_HIDDEN_GENERATIONS, p->batches, 4);
    blocks(b, LAYOUT_HIDDEN_FRAME_TOKENS, p->hidden_frames, frame);
    arrays(b, LAYOUT_HIDDEN_SEGMENTS, p->hidden_frames, units, s->segment);
}

/* 1: rows know the position of each slot in some layer. */
static int has_slots(const struct build *b)
{
    return b->evict->policy != EVICT_FULL || shape_window(b->shape) > 0;
}

static void lay_batches(struct build *b)
{
    const struct plan *p = b->plan;
    const struct plan_costs *c = b->costs;
    int64_t rows = (int64_t)p->batch * p->batches;
    array(b, LAYOUT_BATCHES, p->batches, c->sizes.batch);
    arrays(b, LAYOUT_ROWS, p->batches, p->batch, c->sizes.row);
    arrays(b, LAYOUT_SPANS, p->batches, 2 * p->batch, c->sizes.span);
    arrays(b, LAYOUT_POSITIONS, p->batches, p->head_positions, c->sizes.position);
    arrays(b, LAYOUT_FREE_PAGES, p->batches, p->pages_batch, 4);
    int64_t positions = rows + p->head_positions - p->batch;
    int64_t edits = rows * b->work->edits_max, filters = b->work->filters ? rows : 0;
    /* On a device the next pass begins before all of this one's results are read. */
    arrays(b, LAYOUT_HEAD_REQUESTS, 1 + p->device, positions, c->sizes.head_request);
    arrays(b, LAYOUT_HEAD_RESULTS, 1 + p->device, positions, c->sizes.head_result);
    array(b, LAYOUT_EDITS, edits, c->edit_bytes);
    array(b, LAYOUT_CANDIDATES, filters, c->filter_bytes);
    if (p->device) {
        array(b, LAYOUT_SEEN_REQUESTS, positions, c->sizes.head_request);
        array(b, LAYOUT_SEEN_RESULTS, positions, c->sizes.head_result);
        array(b, LAYOUT_SEEN_EDITS, edits, c->edit_bytes);
        array(b, LAYOUT_SEEN_CANDIDATES, filters, c->filter_bytes);
    }
    arrays(b, LAYOUT_ROW_PAGES, rows, p->slots_cap / PAGE_SLOTS, 4);
    if (has_slots(b)) {
        int ring = c->kv_ring_bytes > 0 ? EVICT_RING_MAX : 0;
        int64_t slots = b->shape->n_kv_heads * plan_kv_slots_before(p, p->decoder, ring);
        arrays(b, LAYOUT_SLOT_POS, rows, slots, 4);
        arrays(b, LAYOUT_SLOT_SCORES, rows, slots, 4);
        if (b->evict->positions == EVICT_POSITIONS_SLOT)
            arrays(b, LAYOUT_SLOT_RANKS, rows, slots, 4);
        if (evict_policy_trait(b->evict->policy))
            arrays(b, LAYOUT_SLOT_TRAITS, rows, slots, 4);
    }
    arrays(b, LAYOUT_RINGS, rows, p->decoder, c->kv_ring_bytes);
}

static void lay_gather(struct build *b)
{
    const struct plan *p = b->plan;
    int64_t window = round_up(b->w->embed_row_bytes, BLOCK_BYTES) + BLOCK_BYTES;
    int64_t chunk = p->gather_windows, segment = b->costs->sizes.segment;
    if (p->embed_resident)
        return;
    array(b, LAYOUT_GATHER_SETS, p->batches + p->gather_sets, b->costs->sizes.gather_set);
    blocks(b, LAYOUT_AHEAD_WINDOWS, p->batches, p->batch * window);
    arrays(b, LAYOUT_AHEAD_SEGMENTS, p->batches, p->batch, segment);
    blocks(b, LAYOUT_CHUNK_WINDOWS, p->gather_sets, chunk * window);
    arrays(b, LAYOUT_CHUNK_SEGMENTS, p->gather_sets, chunk, segment);
    blocks(b, LAYOUT_EMBED_REST, 1, b->w->embed_rest_bytes);
}

int64_t layout_prompt_pages(const struct plan *plan)
{
    /* A prompt that goes over the end of a tile is whole; what follows opens a page each. */
    return ceil_div(plan->prompt_max, PAGE_SLOTS) + plan->tile_tokens / PAGE_SLOTS + 16;
}

int64_t layout_rope_rows(const struct work *work, const struct evict *evict)
{
    if (evict->positions != EVICT_POSITIONS_SLOT)
        return work->tokens_max;
    return min_i64(work->tokens_max, max_i64(work->prompt_max, work->slots_max + 1));
}

/* Scratch and routes were counted for some sizes of a tile: of these the first that is enough. */
static int tile_size(int tile_tokens)
{
    int i = 0;
    while (i < PLAN_TILES - 1 && PLAN_TILE_TOKENS << i < tile_tokens)
        i++;
    return i;
}

/* What a tile of tokens passes through in a layer. */
static void lay_tile(struct build *b)
{
    const struct shape *s = b->shape;
    int64_t tile = b->plan->tile_tokens;
    int64_t heads = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    array(b, LAYOUT_NORMED, tile, plan_token_bytes(s));
    array(b, LAYOUT_Q, tile * heads, 4);
    array(b, LAYOUT_ATTN, tile * heads, 4);
    array(b, LAYOUT_K, tile * kv, 4);
    array(b, LAYOUT_V, tile * kv, 4);
    array(b, LAYOUT_GATE, tile * shape_mlp_numbers(s), 4);
    if (s->gated)
        array(b, LAYOUT_UP, tile * shape_mlp_numbers(s), 4);
    if (s->n_experts > 0) {
        array(b, LAYOUT_ROUTER, tile * s->n_experts, 4);
        array(b, LAYOUT_ROUTE, b->costs->route_bytes[tile_size((int)tile)], 1);
        array(b, LAYOUT_EXPERT_OUT, tile * s->n_experts_used * s->dim, 4);
        array(b, LAYOUT_SHARED_OUT, s->shared_dim > 0 ? tile * s->dim : 0, 4);
        array(b, LAYOUT_SHARES, tile * s->shared_gate, 4);
    }
}

/* Rows of a batch attend side by side, as many as the device's kernels take at once. */
static void lay_scratch(struct build *b)
{
    const struct plan *p = b->plan;
    const struct plan_costs *c = b->costs;
    const int64_t rows = min_i64(p->batch * c->attend_row_bytes, c->attend_rows_bytes);
    const int64_t tile = c->scratch_bytes[tile_size(p->tile_tokens)];
    blocks(b, LAYOUT_SCRATCH, 1, max_i64(tile, p->attn_cpu ? 0 : rows));
}

int64_t layout_tile_bytes(const struct shape *shape, const struct plan_costs *costs,
                          int tile_tokens)
{
    const struct plan plan = {.device = 1, .tile_tokens = tile_tokens};
    struct layout layout = {0};
    struct plan_bytes bytes = {0};
    struct build b = {.l = &layout, .plan = &plan, .shape = shape, .costs = costs, .bytes = &bytes};
    lay_tile(&b);
    lay_scratch(&b);
    return layout.n_bytes[ARENA_DEVICE];
}

int layout_tile_tokens(const struct shape *shape, const struct plan_costs *costs,
                       int64_t device_bytes)
{
    int i = PLAN_TILES - 1;
    while (i > 0 && device_bytes >= 0 &&
           layout_tile_bytes(shape, costs, PLAN_TILE_TOKENS << i) > device_bytes / TILE_SHARE)
        i--;
    return PLAN_TILE_TOKENS << i;
}

static void lay_ropes(struct build *b)
{
    const struct plan *p = b->plan;
    const struct shape *s = b->shape;
    int64_t angles = shape_ropes(s) * layout_rope_rows(b->work, b->evict) * (s->rope_dim / 2);
    array(b, LAYOUT_ROPE_COS, angles, 4);
    array(b, LAYOUT_ROPE_SIN, angles, 4);
    if (p->attn_cpu && b->evict->positions == EVICT_POSITIONS_SLOT) {
        array(b, LAYOUT_SLOT_COS, angles, 4);
        array(b, LAYOUT_SLOT_SIN, angles, 4);
    }
}

/* Of a row: a bit for each page. */
static int64_t layout_dirty_bytes(const struct plan *p)
{
    return ceil_div(p->slots_cap / PAGE_SLOTS, 64) * 8;
}

/* Bytes of one step's tables (engine/line/tables.h). A tile ends where it is full, where a span
 * begins that does not fit, or with the batch. */
static int64_t table_bytes(const struct plan *p, const struct plan_sizes *s)
{
    int64_t spans = 2 * (int64_t)p->batch, tiles = spans + p->step_tokens / p->tile_tokens + 1;
    int64_t span = max_i64(s->prompt_span, s->forced_span), pages = p->slots_cap / PAGE_SLOTS;
    int64_t decode = p->batch * (pages * 4 + layout_dirty_bytes(p)) + p->step_tokens * 4 +
                     (spans + tiles) * span;
    int64_t compact = p->head_positions * 4;
    int64_t embed = 2 * p->step_tokens * 8; // rows, and learned positions
    return max_i64(decode + compact, embed) + (3 * tiles + 5) * ARRAY_ALIGN;
}

/* What a prompt leaves in a layer, on its way from the device: as rows have it, where they have
 * the most slots. Two prompts: one is cut while the other is on the link. */
static void lay_kept(struct build *b)
{
    const struct plan *p = b->plan;
    const struct shape *s = b->shape;
    const int64_t pages = ceil_div(min_i64(p->slots_cap, p->prompt_max), PAGE_SLOTS);
    const int64_t ring = b->costs->kv_ring_bytes > 0 ? EVICT_RING_MAX : 0;
    blocks(b, LAYOUT_KEPT_PAGES, 2, pages * b->costs->kv_page_bytes);
    if (has_slots(b))
        arrays(b, LAYOUT_KEPT_SLOTS, 2 * 4, s->n_kv_heads * (p->slots_cap + ring), 4);
    blocks(b, LAYOUT_KEPT_RING, 2, b->costs->kv_ring_bytes);
}

/* Two batches: one attends while the other's numbers come or go. */
static void lay_attend(struct build *b, int64_t tables)
{
    const struct plan *p = b->plan;
    const struct shape *s = b->shape;
    int64_t heads = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    if (!p->attn_cpu)
        return;
    const struct cross_bytes cross = b->costs->cross;
    int narrow = cross.in < 4 || cross.out < 4;
    arrays(b, LAYOUT_ATTEND_IN, 2, p->step_tokens * (heads + 2 * kv), cross.in);
    arrays(b, LAYOUT_ATTEND_OUT, 2, p->step_tokens * heads, cross.out);
    arrays(b, LAYOUT_ATTEND_SINKS, 2, s->sinks * s->n_heads, 4);
    arrays(b, LAYOUT_ATTEND_TILE, narrow ? 4 : 0, p->tile_tokens * heads, 4);
    arrays(b, LAYOUT_CROSS_OUT, 2,
           p->tile_tokens * max_i64((heads + 2 * kv) * cross.in, heads * cross.out), 1);
    arrays(b, LAYOUT_CROSS_IN, 2, p->tile_tokens * heads, cross.out);
    arrays(b, LAYOUT_ATTEND_TABLES, 2, tables, 1);
    array(b, LAYOUT_ATTEND_CUTS, 2 * p->batch, b->costs->sizes.cut);
    blocks(b, LAYOUT_ATTEND_SCRATCH, 1, b->costs->attend_bytes);
    lay_kept(b);
}

static void lay_layer(struct build *b)
{
    const struct plan *p = b->plan;
    const struct shape *s = b->shape;
    const struct plan_sizes *sizes = &b->costs->sizes;
    int64_t page = b->costs->prompt_page_bytes;
    int64_t prompt_pages = layout_prompt_pages(p);
    lay_tile(b);
    lay_ropes(b);
    blocks(b, LAYOUT_PROMPT_PAGES, 1, prompt_pages * page);
    blocks(b, LAYOUT_SHARED_PAGES, 1, ceil_div(p->shared_tokens, PAGE_SLOTS) * page);
    array(b, LAYOUT_PROMPT_SCORES, prompt_pages * PAGE_SLOTS * s->n_kv_heads, 4);
    array(b, LAYOUT_CUTS, 2 * p->batch, sizes->cut);
    int64_t tables = table_bytes(p, sizes);
    int in_flight = p->device ? p->window + 1 : 1;
    arrays(b, LAYOUT_TABLES, in_flight, tables, 1);
    array(b, LAYOUT_EVENTS, (int64_t)p->tile_tokens * s->n_kv_heads, sizes->evict_event);
    lay_attend(b, tables);
    if (p->device) {
        arrays(b, LAYOUT_SEEN_TABLES, in_flight, tables, 1);
        arrays(b, LAYOUT_DIRTY_BACK, in_flight, p->batch, layout_dirty_bytes(p));
    }
    array(b, LAYOUT_LOGITS, (int64_t)p->tile_positions * HEAD_TILE, 4);
    array(b, LAYOUT_HEAD_IN, (int64_t)p->tile_positions * s->dim, 4);
    if (s->embed_dim != s->dim)
        array(b, LAYOUT_HEAD_NARROW, (int64_t)p->tile_positions * s->embed_dim, 4);
    lay_scratch(b);
}

/* Of a layer that is not homed on NVMe. */
static int64_t resident_bytes(const struct plan *p, const struct weights_info *w, int layer)
{
    int64_t n_bytes = plan_layer_decoded(p, layer) ? w->tile_bytes[layer] : w->layer_bytes[layer];
    return round_up(n_bytes, BLOCK_BYTES);
}

struct layout_stays layout_stays(const struct plan *p, const struct weights_info *w,
                                 const struct plan_costs *costs)
{
    int64_t pages[N_TIERS];
    plan_kv_pages_on(p, pages);
    struct layout_stays stays = {.written = pages[plan_kv_near(p)] * costs->kv_page_bytes};
    for (int layer = 0; layer < p->layers; layer++)
        if (plan_layer_home(p, layer) != TIER_NVME) {
            int made = w->made_here || plan_layer_decoded(p, layer);
            *(made ? &stays.written : &stays.read) += resident_bytes(p, w, layer);
        }
    return p->device ? (struct layout_stays){0} : stays; // pinned, and brought in for that
}

static void lay_residents(struct build *b)
{
    const struct plan *p = b->plan;
    for (int layer = 0; layer < p->layers; layer++) {
        enum tier_kind home = plan_layer_home(p, layer);
        enum layout_id id = home == plan_near(p) ? LAYOUT_WEIGHTS : LAYOUT_WEIGHTS_HOME;
        if (home == TIER_NVME)
            continue;
        int64_t n_bytes = resident_bytes(p, b->w, layer);
        b->l->weight_bytes[layer] = n_bytes;
        b->l->weights[layer] = range(b, id, n_bytes, BLOCK_BYTES);
        b->l->weight_arena[layer] = arena_of(b, id);
    }
    int64_t pages[N_TIERS], page = b->costs->kv_page_bytes;
    plan_kv_pages_on(p, pages);
    blocks(b, LAYOUT_KV, 1, pages[plan_kv_near(p)] * page);
    if (plan_kv_near(p) != TIER_RAM)
        blocks(b, LAYOUT_KV_HOME, 1, pages[TIER_RAM] * page);
    blocks(b, LAYOUT_HIDDEN_HOME, 1, p->hidden_ram * layout_hidden_frame_bytes(p, b->shape));
}

void layout_make(struct layout *l, const struct plan *plan, const struct weights_info *w,
                 const struct work *work, const struct shape *shape, const struct evict *evict,
                 const struct plan_costs *costs, struct plan_bytes *bytes)
{
    struct build b = {l, plan, w, work, shape, evict, costs, bytes};
    memset(l, 0, sizeof *l);
    lay_weight_frames(&b);
    lay_kv_frames(&b);
    lay_hidden(&b);
    lay_batches(&b);
    lay_gather(&b);
    lay_layer(&b);
    memcpy(l->busy_bytes, l->n_bytes, sizeof l->busy_bytes);
    lay_residents(&b);
}
