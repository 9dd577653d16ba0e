/* policy/plan.c - see plan.h: the derived numbers of a plan and the count of its bytes.
 *
 * The fact a newcomer would miss: nothing here asks the engine. engine/home.c lays memory out from
 * the same fields, and a test compares the two, so the proof and the layout cannot drift apart. */
#include "policy/plan.h"

#include <stdio.h>
#include <string.h>

#define PAGE_SLOTS    32
#define DISK_BLOCK    4096
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

static void derive_ahead(struct plan *plan, int *lowered)
{
    struct order order = plan_order(plan);
    int64_t kv_max = max64(0, order_pass_steps(&order) - 2);
    int64_t hidden_max = order_hidden_distance(&order) - 2;
    if (hidden_max < 0)
        plan->hidden_home = TIER_RAM; // too near: they stay in their frame
    if (lowered)
        *lowered = plan->ahead_state > kv_max;
    if (plan->ahead_state > kv_max)
        plan->ahead_state = (int)kv_max;
    plan->ahead_hidden = plan->ahead_state;
    if (plan->ahead_hidden > max64(hidden_max, 0))
        plan->ahead_hidden = (int)max64(hidden_max, 0);
}

void plan_derive(struct plan *plan, const struct weights_info *w, const struct work *work,
                 const struct shape *shape, int *lowered)
{
    (void)shape;
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
    derive_ahead(plan, lowered);
    plan->weight_frame_bytes = frame_bytes(plan, w);
    plan->weight_frames = 0;
    if (plan->weight_frame_bytes > 0)
        plan->weight_frames = 1 + (int)ceil_div64(plan->ahead_weights, plan->batches);
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
    plan->head_positions = plan->batch + (work->scores_forced ? admitted : 0);
    if (plan->tile_tokens == 0)
        plan->tile_tokens = PLAN_TILE_TOKENS;
    if (plan->gather_windows == 0)
        plan->gather_windows = 64;
    plan->shared_tokens =
        (int)(work->prompt_max < PLAN_SHARED_TOKENS ? work->prompt_max : PLAN_SHARED_TOKENS);
    if (plan->no_sharing)
        plan->shared_tokens = 0;
}

static void count_kv(const struct plan *plan, const struct shape *shape, const struct evict *evict,
                     const struct plan_costs *costs, struct plan_bytes *b)
{
    int64_t rows = (int64_t)plan->batch * plan->batches;
    int64_t pool = (int64_t)plan->decoder * plan->batches * plan->pages_batch;
    int64_t kv_bytes = pool * costs->kv_page_bytes;
    if (plan->kv_home == TIER_NVME) {
        b->kv_frames = plan->kv_frames * plan->pages_batch * costs->kv_page_bytes;
        b->kv_tails = rows * plan->decoder * costs->kv_page_bytes;
        b->kv_meta = pool * (int64_t)sizeof(uint32_t); // page CRCs
        b->disk += kv_bytes;
    } else {
        b->kv = kv_bytes;
    }
    b->kv_rings = rows * plan->decoder * costs->kv_ring_bytes;
    int64_t meta_cap = plan->slots_cap + (costs->kv_ring_bytes > 0 ? EVICT_RING_MAX : 0);
    if (evict->policy != EVICT_FULL)
        b->kv_meta += rows * plan->decoder * shape->n_kv_heads * meta_cap * 8;
    b->kv_meta +=
        rows * (plan->slots_cap / PAGE_SLOTS) * 16 + plan->batches * plan->pages_batch * 4;
}

static void count_workspace(const struct plan *plan, const struct weights_info *w,
                            const struct work *work, const struct shape *shape,
                            const struct plan_costs *costs, struct plan_bytes *b)
{
    int64_t tile = plan->tile_tokens;
    int64_t heads = (int64_t)shape->n_heads * shape->head_dim;
    int64_t kv_heads = (int64_t)shape->n_kv_heads * shape->head_dim;
    int64_t wide = shape->embed_dim > shape->dim ? shape->embed_dim : shape->dim;
    int64_t numbers = tile * (2 * wide + 2 * heads + 2 * kv_heads + 2 * (int64_t)shape->ffn_dim +
                              shape->rope_dim);
    int64_t prompt_pages = ceil_div64(plan->prompt_max, PAGE_SLOTS) + tile / PAGE_SLOTS + 16;
    b->workspace = numbers * 4 + prompt_pages * costs->prompt_page_bytes;
    b->workspace += prompt_pages * PAGE_SLOTS * shape->n_kv_heads * 4; // scores of prompts
    b->workspace += ceil_div64(plan->shared_tokens, PAGE_SLOTS) * costs->prompt_page_bytes;
    b->workspace += work->tokens_max * shape->rope_dim * 4; // table of cosines and sines
    b->workspace += costs->scratch_bytes + 64 * 1024;
    b->workspace += plan->step_tokens * 64; // spans and positions of one step
    int64_t window = align(w->embed_row_bytes, DISK_BLOCK) + DISK_BLOCK;
    if (!plan->embed_resident)
        b->workspace +=
            (plan->gather_windows + (int64_t)plan->batch * plan->batches) * (window + 128) +
            w->embed_rest_bytes + DISK_BLOCK;
    int64_t positions = (int64_t)plan->batch * plan->batches + plan->head_positions - plan->batch;
    b->head = positions * (costs->head_state_bytes + 64);
    b->head += POSITION_TILE * (HEAD_TILE + wide) * 4;
    if (work->filters)
        b->head += (int64_t)plan->batch * plan->batches * costs->filter_bytes;
    b->head += (int64_t)plan->batch * plan->batches * work->edits_max * costs->edit_bytes;
}

static void count_bytes(const struct plan *plan, const struct weights_info *w,
                        const struct work *work, const struct shape *shape,
                        const struct evict *evict, const struct plan_costs *costs,
                        struct plan_bytes *b)
{
    memset(b, 0, sizeof *b);
    for (int layer = 0; layer < plan->layers; layer++)
        if (plan_layer_resident(plan, layer))
            b->weights_resident += align(plan_layer_decoded(plan, layer) ? w->tile_bytes[layer]
                                                                         : w->layer_bytes[layer],
                                         DISK_BLOCK);
    b->weight_frames = plan->weight_frames * plan->weight_frame_bytes;
    count_kv(plan, shape, evict, costs, b);
    int64_t token_bytes = (int64_t)shape->dim * 4;
    if (plan->hidden_home == TIER_NVME) {
        int64_t frame = align(plan->step_tokens * token_bytes, DISK_BLOCK);
        b->hidden_frames = plan->hidden_frames * frame;
        b->disk += plan->batches * frame;
    } else {
        b->hidden = plan->pass_tokens * token_bytes + (int64_t)plan->batches * DISK_BLOCK;
    }
    count_workspace(plan, w, work, shape, costs, b);
    int64_t rows = (int64_t)plan->batch * plan->batches;
    b->text = costs->text_bytes + 2 * work->line_bytes_max;
    b->text += rows * (work->tokens_max * costs->row_token_bytes + 4096);
    b->io = costs->io_bytes + (plan->codec != PLAN_CODEC_NONE ? costs->codec_bytes : 0);
    b->ram = b->weights_resident + b->weight_frames + b->kv + b->kv_frames + b->kv_tails +
             b->kv_rings + b->kv_meta + b->hidden + b->hidden_frames + b->workspace + b->head +
             b->text + b->io;
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
    else if (plan->ahead_state > max64(0, order_pass_steps(&order) - 2))
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
