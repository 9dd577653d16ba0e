/* policy/moves.c - see moves.h. The order of fetches, computing and retiring is policy/walk.h's. */
#include "policy/moves.h"

#include "kernels/base/num.h"
#include "policy/walk.h"

#include <string.h>

int64_t moves_hidden(const struct shape *shape, int64_t tokens)
{
    return round_up(tokens * shape_before_part(shape, N_PARTS) * 4, BLOCK_BYTES);
}

int64_t moves_positions(const struct shape *shape, int64_t positions)
{
    return round_up(positions * shape->dim * 4, BLOCK_BYTES);
}

/* ---- weights ---- */

/* Bytes of a layer as the pack stores it. */
static int64_t stored_bytes(const struct moves *m, int layer)
{
    int64_t n_bytes = m->weights->layer_bytes[layer];
    if (m->plan->codec == PLAN_CODEC_NONE || m->costs->codec_share <= 0)
        return n_bytes;
    return (int64_t)((double)n_bytes * m->costs->codec_share);
}

static void count_weights(struct moves *m)
{
    const struct plan *p = m->plan;
    for (int layer = 0; layer < p->layers; layer++) {
        enum tier_kind home = plan_layer_home(p, layer);
        int64_t n_bytes = m->weights->layer_bytes[layer];
        int near = home == plan_near(p);
        if (layer == 0 && !near) { // only rows are gathered
            m->once[LANE_NVME_READ] += m->weights->embed_rest_bytes;
            m->once[LANE_H2D] += p->device ? m->weights->embed_rest_bytes : 0;
            continue;
        }
        int64_t *lanes = near ? m->once : m->every;
        if (home == TIER_NVME) {
            m->every[LANE_NVME_READ] += stored_bytes(m, layer);
            m->experts += m->weights->expert_bytes[layer];
        } else if (!m->weights->made_here || !plan_layer_made(p, layer)) {
            m->once[LANE_NVME_READ] += n_bytes;
        }
        if (p->device)
            lanes[LANE_H2D] += n_bytes;
    }
}

double moves_experts_share(const struct moves *m, const struct load *loads)
{
    int64_t tokens = 0;
    for (int b = 0; b < m->plan->batches; b++)
        tokens += loads[b].prompt_tokens + loads[b].forced_tokens;
    int few = tokens > 0 && tokens <= m->plan->experts_few;
    return few ? plan_experts_share(m->weights, (double)tokens) : 1;
}

/* A row may start anywhere in a block, so it touches more blocks than its size needs. */
static double gathered_bytes(const struct moves *m)
{
    int64_t n = m->weights->embed_row_bytes, step = n & -n; // offsets are multiples of step
    step = step > 0 && step < BLOCK_BYTES ? step : BLOCK_BYTES;
    if (m->plan->embed_resident || n == 0)
        return 0;
    return (double)(n + BLOCK_BYTES - step);
}

/* ---- KV ---- */

/* Starts a walk at the slices that sample in pass 0, to see the fetches of pass 1. */
static void follow(const struct moves *m, struct walk *walk)
{
    const struct order order = plan_order(m->plan);
    walk_begin(walk, m->plan, order_pass_steps(&order) - order.batches);
}

/* Which rows of a batch a fetch sees at this point of the walk. */
static enum fetch_sees sees(const struct walk *walk, int batch)
{
    int64_t embeds = order_pass_steps(&walk->order) + batch; // here the batch is refilled
    if (walk->compute.n > embeds)
        return SEES_OWN;
    return walk->retire.n > embeds - walk->order.batches ? SEES_KEPT : SEES_BEFORE;
}

static void count_fetch(struct moves *m, const struct walk *walk, struct step s)
{
    const struct plan *p = m->plan;
    enum tier_kind home = plan_kv_home(p, s.layer - 1, s.batch).tier;
    if (home != plan_kv_near(p))
        m->batches[s.batch].kv[home][plan_kind(p, s.layer - 1)][sees(walk, s.batch)]++;
}

static void count_fetches(struct moves *m)
{
    const struct plan *p = m->plan;
    struct walk walk;
    struct step s;
    if (p->kv_near == p->decoder * p->batches)
        return;
    for (follow(m, &walk); sees(&walk, p->batches - 1) != SEES_OWN;)
        if (walk_next(&walk, &s) == WALK_FETCH_KV)
            count_fetch(m, &walk, s);
    for (s = walk.kv; s.pass == 1; step_next(&walk.order, &s)) // all batches are refilled
        if (s.kind == STEP_DECODE && s.part == 0)
            count_fetch(m, &walk, s);
}

/* Adds bytes between a home and where ops or attention run. */
static void move(enum tier_kind home, int to_device, double n_bytes, int write,
                 double bytes[N_WORK_LANES])
{
    if (home == TIER_NVME)
        bytes[write ? LANE_NVME_WRITE : LANE_NVME_READ] += n_bytes;
    if (to_device)
        bytes[write ? LANE_D2H : LANE_H2D] += n_bytes;
}

static void move_kv(const struct moves *m, const struct moves_batch *b, const struct load *l,
                    double bytes[N_WORK_LANES])
{
    int to_device = plan_kv_near(m->plan) == TIER_DEVICE;
    for (int kind = KV_MOST; kind < plan_kinds(m->plan); kind++) {
        const struct kv_load *kv = &l->kv[kind];
        const double page = (double)plan_page_bytes(m->costs, kind);
        const int64_t seen[N_FETCH_SEES] = {b->seen_pages[kind], kv->pages_kept, kv->pages_read};
        double written = (double)(kv->pages_filled + kv->pages_over) +
                         kv->evicting * m->costs->kv_pages_written[kind];
        for (enum tier_kind home = TIER_RAM; home <= TIER_NVME; home++) {
            int64_t layers = 0, pages = 0;
            for (int k = 0; k < N_FETCH_SEES; k++) {
                layers += b->kv[home][kind][k];
                pages += b->kv[home][kind][k] * seen[k];
            }
            move(home, to_device, (double)pages * page, 0, bytes);
            move(home, to_device, (double)layers * written * page, 1, bytes);
        }
    }
}

/* ---- hidden states ---- */

static void move_hidden(const struct moves *m, int batch, const struct load *l,
                        double bytes[N_WORK_LANES])
{
    const struct plan *p = m->plan;
    enum tier_kind home = plan_hidden_home(p, batch).tier;
    int64_t tokens = moves_hidden(m->shape, l->prompt_tokens + l->forced_tokens);
    int64_t positions = moves_positions(m->shape, l->positions);
    int64_t slices = p->layers - 1 - p->decoder;
    if (home == plan_near(p))
        return;
    int64_t read = p->decoder * (1 + p->attn_cpu) * tokens + slices * positions;
    int64_t written = p->decoder * tokens + positions;
    move(home, p->device, (double)read, 0, bytes);
    move(home, p->device, (double)written, 1, bytes);
}

/* ---- the pass ---- */

int64_t moves_bytes(const struct plan *plan)
{
    return round_up(plan->batches * (int64_t)sizeof(struct moves_batch), 8);
}

void moves_make(struct moves *m, const struct plan *plan, int sweeps,
                const struct weights_info *weights, const struct plan_costs *costs,
                const struct shape *shape, void *memory)
{
    *m = (struct moves){
        .plan = plan, .weights = weights, .costs = costs, .shape = shape, .batches = memory};
    memset(memory, 0, (size_t)moves_bytes(plan));
    count_weights(m);
    for (int i = 0; i < N_WORK_LANES; i++)
        m->every[i] *= sweeps;
    m->experts *= sweeps;
    count_fetches(m);
    m->row_bytes = gathered_bytes(m);
}

void moves_pass(struct moves *m, int64_t pass, const struct load *loads, double bytes[N_WORK_LANES])
{
    for (int i = 0; i < N_WORK_LANES; i++)
        bytes[i] += (double)(m->every[i] + (pass == 0 ? m->once[i] : 0));
    bytes[LANE_NVME_READ] -= (1 - moves_experts_share(m, loads)) * (double)m->experts;
    for (int b = 0; b < m->plan->batches; b++) {
        const struct load *l = &loads[b];
        bytes[LANE_NVME_READ] += m->row_bytes * (double)(l->prompt_tokens + l->forced_tokens);
        move_kv(m, &m->batches[b], l, bytes);
        move_hidden(m, b, l, bytes);
        for (int kind = KV_MOST; kind < plan_kinds(m->plan); kind++)
            m->batches[b].seen_pages[kind] = l->kv[kind].pages_read + l->kv[kind].pages_filled;
    }
}

/* Adds a fetch for a pass that never starts. */
static void end_weights(const struct moves *m, int layer, int few, double bytes[N_WORK_LANES])
{
    const struct plan *p = m->plan;
    enum tier_kind home = plan_layer_home(p, layer);
    if (layer == 0 || home == plan_near(p))
        return;
    int64_t left = few ? m->weights->expert_bytes[layer] : 0;
    move(home, p->device, (double)(m->weights->layer_bytes[layer] - left), 0, bytes);
    if (home == TIER_NVME && p->codec != PLAN_CODEC_NONE)
        bytes[LANE_NVME_READ] += (double)(stored_bytes(m, layer) - m->weights->layer_bytes[layer]);
}

static void end_kv(const struct moves *m, struct step s, double bytes[N_WORK_LANES])
{
    const struct plan *p = m->plan;
    enum tier_kind home = plan_kv_home(p, s.layer - 1, s.batch).tier;
    const int kind = plan_kind(p, s.layer - 1);
    int64_t n_bytes = m->batches[s.batch].seen_pages[kind] * plan_page_bytes(m->costs, kind);
    if (home != plan_kv_near(p))
        move(home, plan_kv_near(p) == TIER_DEVICE, (double)n_bytes, 0, bytes);
}

void moves_end(struct moves *m, const struct load *loads, double bytes[N_WORK_LANES])
{
    const struct plan *p = m->plan;
    const int few = moves_experts_share(m, loads) < 1;
    int last = p->batches - 1;
    while (last > 0 && loads[last].rows == 0)
        last--;
    struct walk walk;
    struct step s;
    for (follow(m, &walk);;) {
        enum walk_event event = walk_next(&walk, &s);
        if (event == WALK_RETIRE && s.layer == p->layers - 1 && s.batch == last)
            return; // the last row was sampled
        if (event == WALK_FETCH_WEIGHTS && s.pass == 1)
            end_weights(m, s.layer, few, bytes);
        else if (event == WALK_FETCH_KV && sees(&walk, s.batch) == SEES_BEFORE)
            end_kv(m, s, bytes);
    }
}
