/* policy/plan.c - see plan.h: the derived numbers of a plan and the check that it fits.
 *
 * The engine measures the memory of a plan with the functions by which it carves that memory
 * (engine/line/carve.h). */
#include "policy/plan.h"

#include "kernels/base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EXPERTS_FEW 0.5 // share of a layer's experts
#define TILE_SHARE  32  // a tile takes at most 1/32 of a device's memory, which is a layer or two

struct plan_wish plan_wish_any(void)
{
    return (struct plan_wish){.resident = -1,
                              .weights_ram = -1,
                              .decoded = -1,
                              .kv_near = -1,
                              .kv_ram = -1,
                              .hidden_near = -1,
                              .hidden_ram = -1,
                              .ahead_weights = -1,
                              .ahead_state = -1,
                              .codec = -1,
                              .no_sharing = -1,
                              .percent = {-1, -1, -1, -1, -1, -1}};
}

enum tier_kind plan_near(const struct plan *plan)
{
    return plan->device ? TIER_DEVICE : TIER_RAM;
}

enum tier_kind plan_kv_near(const struct plan *plan)
{
    return plan->attn_cpu ? TIER_RAM : plan_near(plan);
}

/* i * part / n. The search calls this millions of times, mostly with small numbers and for all or
 * none; a 64-bit division would dominate. */
static int64_t share_of(int64_t i, int64_t part, int64_t n)
{
    if (part == n || part == 0)
        return part == 0 ? 0 : i;
    if (n < 1 << 15)
        return (int64_t)((uint32_t)i * (uint32_t)part / (uint32_t)n);
    return i * part / n;
}

/* The home of thing i of n, of which `near` have home `tier` (near the ops) and `ram` have home
 * RAM. Things that move are spread evenly over all, and those on NVMe evenly over these. */
static struct plan_home home_of(enum tier_kind tier, int64_t i, int64_t n, int64_t near,
                                int64_t ram)
{
    int64_t moving = n - near;
    if (moving == 0)
        return (struct plan_home){tier, i};
    int64_t before = share_of(i, moving, n); // moving things before i
    if (share_of(i + 1, moving, n) == before)
        return (struct plan_home){tier, i - before};
    int64_t nvme = moving - ram, on_nvme = share_of(before, nvme, moving);
    if (share_of(before + 1, nvme, moving) == on_nvme)
        return (struct plan_home){TIER_RAM, before - on_nvme};
    return (struct plan_home){TIER_NVME, on_nvme};
}

/* The number of things with home RAM among the first i of n. */
static int64_t ram_before(int64_t i, int64_t n, int64_t near, int64_t ram)
{
    const int64_t moving = n - near, before = moving > 0 ? share_of(i, moving, n) : 0;
    return before > 0 ? before - share_of(before, moving - ram, moving) : 0;
}

static int64_t shared_before(const struct plan *plan, int layer)
{
    const struct plan_shared *s = plan->shared;
    return ram_before(layer - 1, plan->layers - 1, s->resident, s->weights_ram);
}

static int is_decided(const struct plan *plan)
{
    return plan->shared && plan->shared->resident >= 0;
}

int plan_layer_shared(const struct plan *plan, int layer)
{
    if (layer < 1 || !plan->shared)
        return 0;
    return !is_decided(plan) || shared_before(plan, layer + 1) > shared_before(plan, layer);
}

/* The home of a layer from 1 on. Shared layers, which cost no more RAM, come near the ops last, and
 * are never on NVMe. */
static struct plan_home layer_home(const struct plan *plan, int layer)
{
    const enum tier_kind near = plan_near(plan);
    const int64_t n = plan->layers - 1;
    if (!is_decided(plan))
        return home_of(near, layer - 1, n, plan->resident, plan->weights_ram);
    const int64_t shared = plan->shared->weights_ram, own = n - shared;
    const int64_t shared_near = max_i64(plan->resident - own, 0),
                  before = shared_before(plan, layer);
    if (!plan_layer_shared(plan, layer))
        return home_of(near, layer - 1 - before, own, plan->resident - shared_near,
                       plan->weights_ram - (shared - shared_near));
    struct plan_home home = home_of(near, before, shared, shared_near, shared - shared_near);
    home.rank += home.tier == near ? own : 0;
    return home;
}

static int64_t count_of(enum tier_kind near_tier, enum tier_kind tier, int64_t n, int64_t near,
                        int64_t ram)
{
    int64_t on[N_TIERS] = {[TIER_RAM] = ram, [TIER_NVME] = n - near - ram};
    on[near_tier] += near;
    return on[tier];
}

enum tier_kind plan_layer_home(const struct plan *plan, int layer)
{
    if (layer < 1)
        return plan->embed_resident ? plan_near(plan) : TIER_NVME;
    return layer_home(plan, layer).tier;
}

int plan_layer_resident(const struct plan *plan, int layer)
{
    return plan_layer_home(plan, layer) == plan_near(plan);
}

int plan_layer_decoded(const struct plan *plan, int layer)
{
    if (layer < 1 || plan->decoded == 0)
        return 0;
    struct plan_home home = layer_home(plan, layer);
    return home.tier == plan_near(plan) && home.rank < plan->decoded;
}

int plan_layer_made(const struct plan *plan, int layer)
{
    return plan_layer_home(plan, layer) == TIER_RAM && !plan_layer_decoded(plan, layer);
}

static int64_t kv_extents(const struct plan *plan)
{
    return (int64_t)plan->decoder * plan->batches;
}

struct plan_home plan_kv_home(const struct plan *plan, int layer, int batch)
{
    int64_t i = (int64_t)layer * plan->batches + batch;
    return home_of(plan_kv_near(plan), i, kv_extents(plan), plan->kv_near, plan->kv_ram);
}

struct plan_home plan_hidden_home(const struct plan *plan, int batch)
{
    return home_of(plan_near(plan), batch, plan->batches, plan->hidden_near, plan->hidden_ram);
}

int64_t plan_kv_count(const struct plan *plan, enum tier_kind tier)
{
    return count_of(plan_kv_near(plan), tier, kv_extents(plan), plan->kv_near, plan->kv_ram);
}

/* Extents differ in size where a kind of layer has its own pools. */
void plan_kv_bytes_on(const struct plan *plan, const struct plan_costs *costs,
                      int64_t bytes[N_TIERS])
{
    const int64_t most = plan->pages_batch * costs->kv_page_bytes;
    for (enum tier_kind tier = TIER_DEVICE; tier < N_TIERS; tier++)
        bytes[tier] = plan_kv_count(plan, tier) * most;
    for (int layer = 0; layer < plan->decoder && plan_kinds(plan) > 1; layer++) {
        const int64_t page = plan_page_bytes(costs, plan_kind(plan, layer));
        const int64_t less = most - plan_kv_pages(plan, layer) * page;
        for (int batch = 0; batch < plan->batches && less != 0; batch++)
            bytes[plan_kv_home(plan, layer, batch).tier] -= less;
    }
}

int64_t plan_page_most(const struct plan *plan, const struct plan_costs *costs)
{
    int64_t most = costs->kv_page_bytes;
    for (int kind = 0; kind < plan_kinds(plan); kind++)
        most = max_i64(most, plan_page_bytes(costs, kind));
    return most;
}

int64_t plan_pool_bytes(const struct plan *plan, const struct plan_costs *costs)
{
    int64_t most = 0;
    for (int kind = 0; kind < plan_kinds(plan); kind++) {
        const int64_t own = (int64_t)plan->batch * plan->kind_pages[kind];
        most = max_i64(most, (own > 0 ? own : plan->pages_batch) * plan_page_bytes(costs, kind));
    }
    return most;
}

int64_t plan_pool_pages(const struct plan *plan)
{
    int64_t most = plan->pages_batch;
    for (int kind = 0; kind < plan_kinds(plan); kind++)
        most = max_i64(most, (int64_t)plan->batch * plan->kind_pages[kind]);
    return most;
}

int plan_row_pages(const struct plan *plan)
{
    int most = plan->slots_cap / PAGE_SLOTS;
    for (int kind = 0; kind < plan_kinds(plan); kind++)
        most = (int)max_i64(most, plan->kind_pages[kind]);
    return most;
}

int64_t plan_hidden_count(const struct plan *plan, enum tier_kind tier)
{
    return count_of(plan_near(plan), tier, plan->batches, plan->hidden_near, plan->hidden_ram);
}

double plan_experts_share(const struct weights_info *w, double tokens)
{
    if (w->n_experts == 0)
        return 1;
    double missed = 1 - (double)w->n_experts_used / w->n_experts; // one token misses one expert
    return 1 - pow(missed, tokens * w->expert_overlap);
}

/* Experts are read on demand while fewer than half are needed: nothing else runs meanwhile. */
static int experts_few(const struct plan *plan, const struct weights_info *w)
{
    int tokens = 0, streamed = 0;
    for (int layer = 1; layer <= plan->decoder && w->n_experts > 0; layer++)
        streamed |= w->expert_bytes[layer] > 0 && !plan_layer_resident(plan, layer);
    if (!streamed || plan->device || plan->codec != PLAN_CODEC_NONE)
        return 0;
    while (plan_experts_share(w, tokens + 1) < EXPERTS_FEW)
        tokens++;
    return tokens;
}

struct order plan_order(const struct plan *plan)
{
    return (struct order){.layers = plan->layers,
                          .decoder = plan->decoder,
                          .parts = 1 + plan->attn_cpu,
                          .batches = plan_pass_batches(plan),
                          .groups = plan->groups};
}

static int64_t frame_bytes(const struct plan *plan, const struct weights_info *w)
{
    int64_t most = 0;
    for (int layer = 1; layer < plan->layers; layer++)
        if (!plan_layer_resident(plan, layer) || plan_layer_decoded(plan, layer))
            most = max_i64(most, round_up(w->layer_bytes[layer], BLOCK_BYTES));
    return most;
}

int plan_layer_framed(const struct plan *plan, int layer)
{
    return layer >= 1 && (!plan_layer_resident(plan, layer) || plan_layer_decoded(plan, layer));
}

/* More frames could not be filled. */
static int framed_layers(const struct plan *plan)
{
    return plan->layers - 1 - plan->resident + plan->decoded;
}

/* As far ahead as the line of a plan without resident layers goes: a frame is freed when the step
 * of its layer's last batch is known to be done. */
static int64_t ahead_weights_max(const struct plan *plan, const struct order *order)
{
    int64_t own = (int64_t)order->batches * order->parts;
    return max_i64(0, order_pass_steps(order) - own - plan->window + 1);
}

/* From the step that writes to the step that runs when the write is queued, plus one: the previous
 * step's write is queued behind this step's reads. */
static int64_t ahead_kv_max(const struct plan *plan, const struct order *order)
{
    int apart = order->parts == 2 ? ORDER_PARTS_APART : 0; // one part writes, the other reads
    return max_i64(0, order_pass_steps(order) - 1 - plan->window - apart);
}

static int64_t ahead_hidden_max(const struct plan *plan, const struct order *order)
{
    return order_hidden_distance(order) - 1 - plan->window;
}

static void derive_ahead(struct plan *plan)
{
    struct order order = plan_order(plan);
    int64_t hidden_max = ahead_hidden_max(plan, &order);
    if (hidden_max < 0) { // no room for look-ahead: hidden states stay in their frame
        plan->hidden_near = plan->batches;
        plan->hidden_ram = 0;
    }
    plan->ahead_weights = (int)min_i64(plan->ahead_weights, ahead_weights_max(plan, &order));
    plan->ahead_state = (int)min_i64(plan->ahead_state, ahead_kv_max(plan, &order));
    plan->ahead_hidden = (int)min_i64(plan->ahead_state, max_i64(hidden_max, 0));
}

static int clamp(int value, int64_t most)
{
    return (int)max_i64(min_i64(value, most), 0);
}

/* Lowers counts to what the model and the plan have; without a device, RAM is near the ops. */
static void clamp_homes(struct plan *plan)
{
    plan->resident = clamp(plan->resident, plan->layers - 1);
    plan->kv_near = clamp(plan->kv_near, kv_extents(plan));
    plan->hidden_near = clamp(plan->hidden_near, plan->batches);
    plan->weights_ram =
        plan->device ? clamp(plan->weights_ram, plan->layers - 1 - plan->resident) : 0;
    if (is_decided(plan)) // those that are not near are in RAM
        plan->weights_ram =
            (int)max_i64(plan->weights_ram,
                         min_i64(plan->shared->weights_ram, plan->layers - 1 - plan->resident));
    plan->attn_cpu &= plan->device;
    plan->kv_ram = plan_kv_near(plan) == TIER_DEVICE
                       ? clamp(plan->kv_ram, kv_extents(plan) - plan->kv_near)
                       : 0;
    plan->hidden_ram =
        plan->device ? clamp(plan->hidden_ram, plan->batches - plan->hidden_near) : 0;
}

/* Tile sizes change no byte of the output. */
static void derive_tiles(struct plan *plan)
{
    if (plan->tile_tokens == 0)
        plan->tile_tokens = PLAN_TILE_TOKENS;
    while (plan->tile_tokens > PLAN_TILE_TOKENS && plan->tile_tokens / 2 >= plan->step_tokens)
        plan->tile_tokens /= 2;
    plan->tile_positions = plan->device ? (int)min_i64(plan->head_positions, PLAN_DEVICE_POSITIONS)
                                        : PLAN_TILE_POSITIONS;
}

void plan_derive(struct plan *plan, const struct weights_info *w, const struct work *work)
{
    plan->layers = w->n_layers;
    plan->decoder = w->n_decoder;
    plan->shared = plan->device && w->shared.workers > 0 ? &w->shared : NULL;
    plan->embed_resident = plan->resident >= plan->layers - 1;
    clamp_homes(plan);
    plan->window = plan->device ? (int)min_i64(max_i64(plan->window, 1), PLAN_WINDOW_MAX) : 1;
    if (plan->groups > 1) { // a group leaves this rank before the others' results are waited for
        struct order order = plan_order(plan);
        plan->window = (int)min_i64(plan->window, (plan->groups - 1) * order_pass_steps(&order));
    }
    if (plan->embed_resident)
        plan->codec = PLAN_CODEC_NONE; // nothing streams
    if (plan->decoded > plan->resident)
        plan->decoded = plan->resident;
    for (int layer = 1; layer < plan->layers && plan->decoded > 0; layer++)
        if (w->tile_bytes[layer] == 0)
            plan->decoded = 0; // stored as tiles
    derive_ahead(plan);
    plan->weight_frame_bytes = frame_bytes(plan, w);
    plan->experts_few = experts_few(plan, w);
    int held = plan->window - 1; // earlier steps that still hold their frames
    plan->weight_frames = (int)min_i64(
        1 + ceil_div(plan->ahead_weights + held, plan_pass_batches(plan)), framed_layers(plan));
    int kv_moves = plan->kv_near < kv_extents(plan),
        hidden_moves = plan->hidden_near < plan->batches;
    int apart = plan->attn_cpu ? ORDER_PARTS_APART : 0;
    plan->kv_frames = kv_moves ? plan->ahead_state + held + apart + 3 : 0;
    plan->hidden_frames = hidden_moves ? plan->ahead_hidden + held + 3 : 0;

    int64_t row_pages = ceil_div(max_i64(work->slots_max, 1), PAGE_SLOTS);
    int64_t mean_pages = ceil_div(max_i64(work->slots_mean, 1), PAGE_SLOTS) + 1;
    if (mean_pages > row_pages)
        mean_pages = row_pages;
    if (plan->pages_batch == 0)
        plan->pages_batch = max_i64(row_pages, mean_pages * plan->batch);
    plan->slots_cap = (int)(row_pages * PAGE_SLOTS);
    plan->kinds = work->kinds;
    for (int kind = KV_MOST + 1; kind < plan_kinds(plan);
         kind++) { // own pages: states, or if fewer
        const int state = plan->kinds->of[kind].state;
        int64_t own = state > 0 ? state / PAGE_SLOTS : ceil_div(work->slots_kind[kind], PAGE_SLOTS);
        const int fewer = state > 0 || own * plan->batch < plan->pages_batch;
        plan->kind_pages[kind] = fewer ? (int)own : 0;
    }

    plan->prompt_max = work->prompt_max;
    int64_t admitted = max_i64(plan->prefill_tokens, work->prompt_max);
    plan->step_tokens = plan->batch + admitted;
    plan->pass_tokens = (int64_t)plan->batch * plan_pass_batches(plan) + admitted;
    /* One position per row; plus, of the admitted tokens, those that want a score: at most as many
     * as all rows have, and as many as enter (a prompt longer than the gate enters alone). */
    int64_t scored = max_i64(plan->prefill_tokens, work->scored_prompt_max);
    plan->head_positions = plan->batch + min_i64(scored, work->scored_positions);
    derive_tiles(plan);
    /* In RAM one set is decoded while the next is read. A device decodes later: a step reads one
     * set, and each queued step needs its own. */
    plan->gather_sets = plan->device ? plan->window : 2;
    if (plan->device)
        plan->gather_windows = (int)plan->step_tokens;
    if (plan->gather_windows == 0)
        plan->gather_windows = 32;
    plan->shared_tokens =
        (int)(work->prompt_max < PLAN_SHARED_TOKENS ? work->prompt_max : PLAN_SHARED_TOKENS);
    if (plan->no_sharing)
        plan->shared_tokens = 0;
}

int64_t plan_token_bytes(const struct shape *shape)
{
    return 4 * max_i64(shape_before_part(shape, N_PARTS), shape->embed_dim);
}

/* ---- the count ---- */

int plan_has_slots(const struct setting *set)
{
    return set->evict->policy != EVICT_FULL || shape_window(set->shape) > 0;
}

int64_t plan_resident_bytes(const struct plan *plan, const struct weights_info *w, int layer)
{
    int decoded = plan_layer_decoded(plan, layer);
    return round_up(decoded ? w->tile_bytes[layer] : w->layer_bytes[layer], BLOCK_BYTES);
}

int64_t plan_shared_bytes(const struct plan *plan, const struct weights_info *w)
{
    int64_t n_bytes = PLAN_SHARED_HEAD;
    if (!plan->shared || is_decided(plan))
        return w->shared.n_bytes;
    for (int layer = 1; layer < plan->layers; layer++)
        if (plan_layer_home(plan, layer) == TIER_RAM)
            n_bytes += plan_resident_bytes(plan, w, layer);
    return n_bytes;
}

int plan_tile_tokens(const struct setting *set, int64_t device_bytes)
{
    int tile = PLAN_TILE_TOKENS << (PLAN_TILES - 1);
    while (tile > PLAN_TILE_TOKENS && device_bytes >= 0 &&
           set->costs->tile_bytes(set, tile) > device_bytes / TILE_SHARE)
        tile /= 2;
    return tile;
}

static void count_bytes(const struct setting *set, const struct plan *plan, struct plan_bytes *b)
{
    const struct work *work = set->work;
    const struct plan_costs *costs = set->costs;
    memset(b, 0, sizeof *b);
    costs->measure(set, plan, b);
    for (int i = 0; i < N_PLAN_ACCOUNTS; i++)
        b->arena += b->by[i][TIER_RAM];
    if (plan->shared)
        b->by[PLAN_BYTES_weights_resident][TIER_RAM] +=
            ceil_div(plan_shared_bytes(plan, set->weights), plan->shared->workers);
    int64_t rows = (int64_t)plan->batch * plan->batches;
    b->by[PLAN_BYTES_text][TIER_RAM] = costs->text_bytes + 2 * work->line_bytes_max +
                                       rows * (work->tokens_max * costs->row_token_bytes + 4096);
    b->by[PLAN_BYTES_io][TIER_RAM] +=
        costs->io_bytes + (plan->codec != PLAN_CODEC_NONE ? costs->codec_bytes : 0);
    for (int i = 0; i < N_PLAN_ACCOUNTS; i++) {
        b->device += b->by[i][TIER_DEVICE];
        b->ram += b->by[i][TIER_RAM];
        b->disk += b->by[i][TIER_NVME];
    }
}

/* budget < 0: no limit. */
static int is_over(int64_t n_bytes, int64_t budget, const char *what, const char *flag, char *why,
                   int why_cap)
{
    if (budget < 0 || n_bytes <= budget)
        return 0;
    snprintf(why, (size_t)why_cap, "needs %.1f MiB of %s, the budget is %.1f (--mem-%s %lldM)",
             (double)n_bytes / 1048576.0, what, (double)budget / 1048576.0, flag,
             (long long)ceil_div(n_bytes, 1048576));
    return 1;
}

int plan_check(const struct setting *set, const struct plan *plan, const struct budget *budget,
               struct plan_bytes *bytes, char *why, int why_cap)
{
    count_bytes(set, plan, bytes);
    struct order order = plan_order(plan);
    const char *broken = NULL;
    if (plan->batch < 1 || plan->batches < 1)
        broken = "batch and batches must be at least 1";
    else if (plan->batches % plan_groups(plan) != 0)
        broken = "batches must be a multiple of the groups";
    else if (plan->ahead_weights > ahead_weights_max(plan, &order))
        broken = "--ahead-weights is too large for one pass";
    else if (plan->ahead_state > ahead_kv_max(plan, &order))
        broken = "--ahead-state is too large for one pass";
    else if (plan->hidden_near < plan->batches &&
             plan->ahead_hidden > ahead_hidden_max(plan, &order))
        broken = "hidden states would be read before they are written (more --batches)";
    else if (plan->pages_batch * PAGE_SLOTS < set->work->slots_max)
        broken = "one row's KV does not fit its batch's pages";
    if (broken) {
        snprintf(why, (size_t)why_cap, "%s", broken);
        return -1;
    }
    if (is_over(bytes->device, budget->device, "device memory", "device", why, why_cap) ||
        is_over(bytes->ram, budget->ram, "RAM", "ram", why, why_cap) ||
        is_over(bytes->disk, budget->disk, "disk", "disk", why, why_cap))
        return -1;
    return 0;
}
