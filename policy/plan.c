/* policy/plan.c - see plan.h: the derived numbers of a plan and the count of its bytes.
 *
 * The fact a newcomer would miss: nothing here asks the engine. engine/home.c lays memory out from
 * the same fields, and a test compares the two, so the proof and the layout cannot drift apart. */
#include "policy/plan.h"

#include <stdio.h>
#include <string.h>

#define PIECE         1048576 // has a checksum of its own (MOVER_PIECE)
#define PAGE_SLOTS    32
#define DISK_BLOCK    4096
#define ARRAY_ALIGN   64 // of ARENA_ARRAY
#define POSITION_TILE 64 // positions of the head worked on at once (engine/layer.c uses the same)

static int64_t ceil_div64(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t align(int64_t n, int64_t to)
{
    return ceil_div64(n, to) * to;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int plan_layer_resident(const struct plan *plan, int layer)
{
    int n = plan->layers - 1; // the embedding is decided apart: its rows are gathered, not streamed
    int i = layer - 1;
    if (i < 0)
        return plan->embed_resident;
    /* Layer i streams when the running count of streamed layers steps up at i: evenly spread. */
    int64_t streamed = n - plan->resident;
    return (i + 1) * streamed / n == i * streamed / n;
}

int plan_layer_decoded(const struct plan *plan, int layer)
{
    if (layer < 1 || !plan_layer_resident(plan, layer))
        return 0;
    int64_t n = plan->layers - 1, before = layer - 1;
    int64_t rank = before - before * (n - plan->resident) / n; // resident ones before it
    return rank < plan->decoded;
}

struct order plan_order(const struct plan *plan)
{
    return (struct order){
        .layers = plan->layers, .decoder = plan->decoder, .parts = 1, .batches = plan->batches};
}

static int64_t frame_bytes(const struct plan *plan, const struct weights_info *w)
{
    int64_t most = 0;
    for (int layer = 1; layer < plan->layers; layer++)
        if (!plan_layer_resident(plan, layer) || plan_layer_decoded(plan, layer))
            most = max64(most, align(w->layer_bytes[layer], DISK_BLOCK));
    return most;
}

/* Layers that come through a frame in some pass: no more can be held at once. */
static int framed_layers(const struct plan *plan)
{
    int n = 0;
    for (int layer = 1; layer < plan->layers; layer++)
        n += !plan_layer_resident(plan, layer) || plan_layer_decoded(plan, layer);
    return n;
}

/* The order of bytes: a layer's frame is given back after its last batch, and the fetch of its next
 * pass must not come sooner: it would find the layer still there, and nothing behind it. */
static int64_t ahead_weights_max(const struct order *order)
{
    return order_pass_steps(order) - (int64_t)order->batches * order->parts;
}

static int64_t ahead_kv_max(const struct order *order)
{
    return max64(0, order_pass_steps(order) - 2);
}

static void derive_ahead(struct plan *plan)
{
    struct order order = plan_order(plan);
    int64_t hidden_max = order_hidden_distance(&order) - 2;
    if (hidden_max < 0)
        plan->hidden_home = TIER_RAM; // too near: they stay in their frame
    plan->ahead_weights = (int)min64(plan->ahead_weights, ahead_weights_max(&order));
    plan->ahead_state = (int)min64(plan->ahead_state, ahead_kv_max(&order));
    plan->ahead_hidden = (int)min64(plan->ahead_state, max64(hidden_max, 0));
}

void plan_derive(struct plan *plan, const struct weights_info *w, const struct work *work)
{
    plan->layers = w->n_layers;
    plan->decoder = w->n_decoder;
    plan->embed_resident = plan->resident >= plan->layers - 1;
    if (plan->embed_resident)
        plan->codec = PLAN_CODEC_NONE; // nothing streams
    if (plan->decoded > plan->resident)
        plan->decoded = plan->resident;
    for (int layer = 1; layer < plan->layers && plan->decoded > 0; layer++)
        if (w->tile_bytes[layer] == 0)
            plan->decoded = 0; // stored as tiles
    derive_ahead(plan);
    plan->weight_frame_bytes = frame_bytes(plan, w);
    plan->weight_frames =
        (int)min64(1 + ceil_div64(plan->ahead_weights, plan->batches), framed_layers(plan));
    int on_nvme = plan->kv_home == TIER_NVME;
    plan->kv_frames = on_nvme ? plan->ahead_state + 3 : 0;
    plan->hidden_frames = plan->hidden_home == TIER_NVME ? plan->ahead_hidden + 3 : 0;

    int64_t row_pages = ceil_div64(max64(work->slots_max, 1), PAGE_SLOTS);
    int64_t mean_pages = ceil_div64(max64(work->slots_mean, 1), PAGE_SLOTS) + 1;
    if (mean_pages > row_pages)
        mean_pages = row_pages;
    if (plan->pages_batch == 0)
        plan->pages_batch = max64(row_pages, mean_pages * plan->batch);
    plan->slots_cap = (int)(row_pages * PAGE_SLOTS);

    plan->prompt_max = work->prompt_max;
    int64_t admitted = max64(plan->prefill_tokens, work->prompt_max);
    plan->step_tokens = plan->batch + admitted;
    plan->pass_tokens = (int64_t)plan->batch * plan->batches + admitted;
    /* A position a row; of the tokens admitted besides, those that want a score: no more than all
     * rows have, and no more than enter (a prompt longer than the gate enters alone). */
    int64_t scored = max64(plan->prefill_tokens, work->scored_prompt_max);
    plan->head_positions = plan->batch + min64(scored, work->scored_positions);
    if (plan->tile_tokens == 0)
        plan->tile_tokens = PLAN_TILE_TOKENS;
    if (plan->gather_windows == 0)
        plan->gather_windows = 64;
    plan->shared_tokens =
        (int)(work->prompt_max < PLAN_SHARED_TOKENS ? work->prompt_max : PLAN_SHARED_TOKENS);
    if (plan->no_sharing)
        plan->shared_tokens = 0;
}

int64_t plan_token_bytes(const struct shape *shape)
{
    return 4 * max64(shape->dim, shape->embed_dim);
}

/* ---- the count ---- */

/* The arena as it is carved (kernels/arena.h): every function below goes through the arrays of one
 * layout function of the engine, in its order, so that the sum is the arena to the byte. */
struct count {
    const struct plan *plan;
    const struct weights_info *w;
    const struct work *work;
    const struct shape *shape;
    const struct evict *evict;
    const struct plan_costs *costs;
    struct plan_bytes *b;
    int64_t used;
};

/* n arrays of n_bytes each, aligned: what they add to the arena, gaps before them included. The
 * last is rounded to what every next one is aligned to at least. */
static int64_t take(struct count *c, int64_t n, int64_t n_bytes, int64_t to)
{
    if (n == 0)
        return 0;
    int64_t before = c->used;
    c->used = align(before, to) + (n - 1) * align(n_bytes, to) + align(n_bytes, ARRAY_ALIGN);
    return c->used - before;
}

/* ARENA_ARRAY(type, n), and an array of whole disk blocks. */
static int64_t take_array(struct count *c, int64_t n, int64_t size)
{
    return take(c, 1, n * size, ARRAY_ALIGN);
}

static int64_t take_blocks(struct count *c, int64_t n_bytes)
{
    return take(c, 1, n_bytes, DISK_BLOCK);
}

/* engine/home.c, what stands before the engine's own part. */
static void count_frames(struct count *c)
{
    const struct plan *p = c->plan;
    const struct plan_sizes *s = &c->costs->sizes;
    int64_t pages = p->pages_batch, page = c->costs->kv_page_bytes;
    struct plan_bytes *b = c->b;
    b->weight_frames += take_array(c, p->layers, s->weight_home);
    b->weight_frames += take_array(c, p->weight_frames, (int64_t)sizeof(void *));
    b->weight_frames += take(c, p->weight_frames, p->weight_frame_bytes, DISK_BLOCK);
    if (p->codec != PLAN_CODEC_NONE)
        b->io += take_blocks(c, c->costs->staging_bytes);
    if (p->kv_home == TIER_NVME) {
        int64_t extents = (int64_t)p->decoder * p->batches;
        b->kv_meta += take_array(c, p->kv_frames, s->kv_frame);
        b->kv_meta += take_array(c, extents, s->last_write);
        b->kv_meta += take_array(c, extents * pages * ceil_div64(page, PIECE), 4); // checksums
        b->kv_meta += take_array(c, extents * pages, 4);                           // generations
        b->kv_meta += take_array(c, pages, 4);                                     // seeds
        b->kv_tails += take_blocks(c, (int64_t)p->batch * extents * page);
        for (int i = 0; i < p->kv_frames; i++) {
            b->kv_frames += take_blocks(c, pages * page);
            b->kv_meta += take_array(c, pages, s->segment);
            b->kv_meta += take_array(c, ceil_div64(pages, 64), (int64_t)sizeof(uint64_t));
        }
    }
    int64_t token = plan_token_bytes(c->shape);
    if (p->hidden_home != TIER_NVME) {
        b->hidden += take_blocks(c, p->pass_tokens * token);
        return;
    }
    b->hidden_frames += take_array(c, p->hidden_frames, s->hidden_frame);
    b->hidden_frames += take_array(c, p->batches, s->last_write);
    int64_t frame = align(p->step_tokens * token, DISK_BLOCK), units = ceil_div64(frame, PIECE);
    b->hidden_frames += take_array(c, p->batches * units, 4); // checksums
    b->hidden_frames += take_array(c, p->batches, 4);         // generations
    for (int i = 0; i < p->hidden_frames; i++) {
        b->hidden_frames += take_blocks(c, frame);
        b->hidden_frames += take_array(c, units, s->segment);
    }
}

/* engine/batch.c: everything aligned alike, so that the order does not matter. */
static void count_batches(struct count *c)
{
    const struct plan *p = c->plan;
    const struct plan_costs *costs = c->costs;
    struct plan_bytes *b = c->b;
    int64_t rows = (int64_t)p->batch * p->batches;
    b->workspace += take_array(c, p->batches, costs->sizes.batch);
    b->workspace += take(c, p->batches, p->batch * costs->sizes.row, ARRAY_ALIGN);
    b->workspace += take(c, p->batches, 2 * p->batch * costs->sizes.span, ARRAY_ALIGN);
    b->head += take_array(c, rows + p->head_positions - p->batch, costs->head_state_bytes);
    b->head += take(c, p->batches, p->head_positions * costs->sizes.position, ARRAY_ALIGN);
    b->head += take_array(c, rows * c->work->edits_max, costs->edit_bytes);
    if (c->work->filters)
        b->head += take_array(c, rows, costs->filter_bytes);
    b->kv_meta += take(c, p->batches, p->pages_batch * 4, ARRAY_ALIGN);      // free pages
    b->kv_meta += take(c, rows, p->slots_cap / PAGE_SLOTS * 4, ARRAY_ALIGN); // page lists
    int64_t cap = p->slots_cap + (costs->kv_ring_bytes > 0 ? EVICT_RING_MAX : 0);
    if (c->evict->policy != EVICT_FULL) // positions and scores of slots
        b->kv_meta += take(c, 2 * rows, p->decoder * c->shape->n_kv_heads * cap * 4, ARRAY_ALIGN);
    if (costs->kv_ring_bytes > 0)
        b->kv_rings += take(c, rows, p->decoder * costs->kv_ring_bytes, ARRAY_ALIGN);
}

/* engine/gather.c */
static void count_gather(struct count *c)
{
    const struct plan *p = c->plan;
    int64_t window = align(c->w->embed_row_bytes, DISK_BLOCK) + DISK_BLOCK;
    if (p->embed_resident)
        return;
    c->b->workspace += take_array(c, p->batches, c->costs->sizes.gather_set);
    for (int i = 0; i < p->batches + 2; i++) {
        int64_t n = i < p->batches ? p->batch : p->gather_windows / 2;
        c->b->workspace += take_blocks(c, n * window);
        c->b->workspace += take_array(c, n, c->costs->sizes.segment);
    }
    c->b->workspace += take_blocks(c, c->w->embed_rest_bytes);
}

/* engine/layer.c */
static void count_layer(struct count *c)
{
    const struct plan *p = c->plan;
    const struct shape *s = c->shape;
    const struct plan_sizes *sizes = &c->costs->sizes;
    int64_t tile = p->tile_tokens, rope = s->rope_dim / 2, row_pages = p->slots_cap / PAGE_SLOTS;
    int64_t prompt_pages = ceil_div64(p->prompt_max, PAGE_SLOTS) + tile / PAGE_SLOTS + 16;
    struct plan_bytes *b = c->b;
    b->workspace += take_array(c, tile, plan_token_bytes(s));
    b->workspace += take(c, 2, tile * s->n_heads * s->head_dim * 4, ARRAY_ALIGN);
    b->workspace += take(c, 2, tile * s->n_kv_heads * s->head_dim * 4, ARRAY_ALIGN);
    b->workspace += take(c, s->act == ACT_SILU_GATED ? 2 : 1, tile * s->ffn_dim * 4, ARRAY_ALIGN);
    b->workspace += take(c, 2, c->work->tokens_max * rope * 4, ARRAY_ALIGN); // cosines, sines
    b->workspace += take(c, 2, tile * rope * 4, ARRAY_ALIGN);
    b->workspace += take_blocks(c, prompt_pages * c->costs->prompt_page_bytes);
    b->workspace +=
        take_blocks(c, ceil_div64(p->shared_tokens, PAGE_SLOTS) * c->costs->prompt_page_bytes);
    b->workspace += take_array(c, prompt_pages * PAGE_SLOTS * s->n_kv_heads, 4); // scores
    b->workspace += take_array(c, p->batch, sizes->prompt_span);
    b->workspace += take_array(c, p->batch, sizes->forced_span);
    b->workspace += take_array(c, 2 * p->batch, sizes->cut);
    b->workspace += take_array(c, tile * s->n_kv_heads, sizes->evict_event);
    b->workspace += take_array(c, p->batch, sizes->kv_row);
    b->workspace += take_array(c, p->batch * row_pages, (int64_t)sizeof(void *));
    b->workspace += take_array(c, p->batch * ceil_div64(row_pages, 64), (int64_t)sizeof(uint64_t));
    b->head += take_array(c, POSITION_TILE * HEAD_TILE, 4);
    b->head += take_array(c, (int64_t)POSITION_TILE * s->dim, 4);
    if (s->embed_dim != s->dim)
        b->head += take_array(c, (int64_t)POSITION_TILE * s->embed_dim, 4);
    b->head += take_array(c, POSITION_TILE, (int64_t)sizeof(void *));
    b->workspace += take_blocks(c, c->costs->scratch_bytes);
    b->kv_meta += take_array(c, p->pages_batch, 4); // the list of a step's pages
    b->kv_meta += take_array(c, p->pages_batch, 8); // whose they are
}

/* engine/home.c, what stays, behind the rest. */
static void count_residents(struct count *c)
{
    const struct plan *p = c->plan;
    for (int layer = 0; layer < p->layers; layer++)
        if (plan_layer_resident(p, layer))
            c->b->weights_resident +=
                take_blocks(c, align(plan_layer_decoded(p, layer) ? c->w->tile_bytes[layer]
                                                                  : c->w->layer_bytes[layer],
                                     DISK_BLOCK));
    if (p->kv_home != TIER_NVME)
        c->b->kv += take_blocks(c, (int64_t)p->decoder * p->batches * p->pages_batch *
                                       c->costs->kv_page_bytes);
}

static void count_bytes(const struct plan *plan, const struct weights_info *w,
                        const struct work *work, const struct shape *shape,
                        const struct evict *evict, const struct plan_costs *costs,
                        struct plan_bytes *b)
{
    struct count c = {plan, w, work, shape, evict, costs, b, .used = 0};
    memset(b, 0, sizeof *b);
    count_frames(&c);
    count_batches(&c);
    count_gather(&c);
    count_layer(&c);
    count_residents(&c);
    b->arena = c.used;
    if (plan->kv_home == TIER_NVME)
        b->disk +=
            (int64_t)plan->decoder * plan->batches * plan->pages_batch * costs->kv_page_bytes;
    if (plan->hidden_home == TIER_NVME)
        b->disk_hidden =
            plan->batches * align(plan->step_tokens * plan_token_bytes(shape), DISK_BLOCK);
    b->disk += b->disk_hidden;
    int64_t rows = (int64_t)plan->batch * plan->batches;
    b->text = costs->text_bytes + 2 * work->line_bytes_max;
    b->text += rows * (work->tokens_max * costs->row_token_bytes + 4096);
    int64_t reserve = costs->io_bytes + (plan->codec != PLAN_CODEC_NONE ? costs->codec_bytes : 0);
    b->io += reserve;
    b->ram = b->arena + b->text + reserve;
}

int plan_check(const struct plan *plan, const struct weights_info *w, const struct work *work,
               const struct shape *shape, const struct evict *evict, const struct plan_costs *costs,
               const struct budget *budget, struct plan_bytes *bytes, char *why, int why_cap)
{
    count_bytes(plan, w, work, shape, evict, costs, bytes);
    struct order order = plan_order(plan);
    const char *broken = NULL;
    if (plan->batch < 1 || plan->batches < 1)
        broken = "batch and batches must be at least 1";
    else if (plan->ahead_weights > ahead_weights_max(&order))
        broken = "--ahead-weights reaches beyond the pass";
    else if (plan->ahead_state > ahead_kv_max(&order))
        broken = "--ahead-state reaches beyond the pass";
    else if (plan->hidden_home == TIER_NVME &&
             plan->ahead_hidden > order_hidden_distance(&order) - 2)
        broken = "hidden states would be read before they are written";
    else if (plan->pages_batch * PAGE_SLOTS < work->slots_max)
        broken = "one row's KV does not fit its batch's pages";
    if (broken) {
        snprintf(why, (size_t)why_cap, "%s", broken);
        return -1;
    }
    if (budget->ram >= 0 && bytes->ram > budget->ram) {
        snprintf(why, (size_t)why_cap,
                 "needs %.1f MiB of RAM, the budget is %.1f (--mem-ram %lldM)",
                 (double)bytes->ram / 1048576.0, (double)budget->ram / 1048576.0,
                 (long long)ceil_div64(bytes->ram, 1048576));
        return -1;
    }
    if (budget->disk >= 0 && bytes->disk > budget->disk) {
        snprintf(why, (size_t)why_cap,
                 "needs %.1f MiB of disk, the budget is %.1f (--mem-disk %lldM)",
                 (double)bytes->disk / 1048576.0, (double)budget->disk / 1048576.0,
                 (long long)ceil_div64(bytes->disk, 1048576));
        return -1;
    }
    return 0;
}
