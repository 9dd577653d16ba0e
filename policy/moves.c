/* policy/moves.c - see moves.h. The walk that it follows is engine/line/engine.c's: at iteration m
 * steps up to m less the window are retired, then what step m + ahead needs is fetched, then step m
 * is computed. */
#include "policy/moves.h"

#include "kernels/base/num.h"

#include <string.h>

/* The place in its pass of a step of part 0 (of an embedding or a slice, of its only part). */
static int64_t place_in_pass(const struct plan *plan, int layer, int batch)
{
    int64_t batches = plan->batches, parts = 1 + plan->attn_cpu;
    if (layer == 0)
        return batch;
    if (layer <= plan->decoder)
        return batches + (layer - 1) * batches * parts +
               (parts == 1 || batch == 0 ? batch : 2 * batch - 1);
    return batches + plan->decoder * batches * parts + (layer - 1 - plan->decoder) * batches +
           batch;
}

/* Steps that iteration m leaves unretired; places count from its pass's first step. */
static int64_t unretired(const struct plan *plan, int64_t m)
{
    int embeds = m >= 0 && m < plan->batches;
    return embeds ? min_i64(plan->window, plan->batches) : plan->window;
}

/* Which rows the fetch sees that iteration m issues for this pass. */
static enum fetch_sees sees(const struct plan *plan, int batch, int64_t m)
{
    if (m > batch)
        return SEES_OWN;                     // the batch was refilled
    int64_t sampled = batch - plan->batches; // the last slice of the pass before
    return sampled <= m - unretired(plan, m) ? SEES_KEPT : SEES_BEFORE;
}

int64_t moves_hidden(int64_t dim, int64_t tokens)
{
    return round_up(tokens * dim * 4, BLOCK_BYTES);
}

/* ---- weights ---- */

/* Of a layer that comes from the pack. */
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
        if (layer == 0 && !near) { // its rows are gathered
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

/* A row lies anywhere in its blocks: as many more are touched as its bytes but one reach over. */
static double gathered_bytes(const struct moves *m)
{
    int64_t n = m->weights->embed_row_bytes, step = n & -n; // offsets are multiples of it
    step = step > 0 && step < BLOCK_BYTES ? step : BLOCK_BYTES;
    if (m->plan->embed_resident || n == 0)
        return 0;
    return (double)(n + BLOCK_BYTES - step);
}

/* ---- KV ---- */

static void count_fetches(struct moves *m)
{
    const struct plan *p = m->plan;
    for (int batch = 0; batch < p->batches; batch++)
        for (int layer = 1; layer <= p->decoder; layer++) {
            enum tier_kind home = plan_kv_home(p, layer - 1, batch).tier;
            int64_t issued = place_in_pass(p, layer, batch) - p->ahead_state;
            if (home != plan_kv_near(p))
                m->batches[batch].kv[home][plan_kind(p, layer - 1)][sees(p, batch, issued)]++;
        }
}

/* Bytes that come or go between a tier and where ops or attention are. */
static void move(const struct moves *m, enum tier_kind home, int to_device, double n_bytes,
                 int write, double bytes[N_WORK_LANES])
{
    (void)m;
    if (home == TIER_NVME)
        bytes[write ? LANE_NVME_WRITE : LANE_NVME_READ] += n_bytes;
    if (to_device)
        bytes[write ? LANE_D2H : LANE_H2D] += n_bytes;
}

static void move_kv(const struct moves *m, const struct moves_batch *b, const struct load *l,
                    double bytes[N_WORK_LANES])
{
    double page = (double)m->costs->kv_page_bytes;
    int to_device = plan_kv_near(m->plan) == TIER_DEVICE;
    for (int kind = KV_MOST; kind < plan_kinds(m->plan); kind++) {
        const struct kv_load *kv = &l->kv[kind];
        const int64_t seen[N_FETCH_SEES] = {b->seen_pages[kind], kv->pages_kept, kv->pages_read};
        double written = (double)(kv->pages_filled + kv->pages_over) +
                         kv->evicting * m->costs->kv_pages_written[kind];
        for (enum tier_kind home = TIER_RAM; home <= TIER_NVME; home++) {
            int64_t layers = 0, pages = 0;
            for (int k = 0; k < N_FETCH_SEES; k++) {
                layers += b->kv[home][kind][k];
                pages += b->kv[home][kind][k] * seen[k];
            }
            move(m, home, to_device, (double)pages * page, 0, bytes);
            move(m, home, to_device, (double)layers * written * page, 1, bytes);
        }
    }
}

/* ---- hidden states ---- */

static void move_hidden(const struct moves *m, int batch, const struct load *l,
                        double bytes[N_WORK_LANES])
{
    const struct plan *p = m->plan;
    enum tier_kind home = plan_hidden_home(p, batch).tier;
    int64_t tokens = moves_hidden(m->dim, l->prompt_tokens + l->forced_tokens);
    int64_t positions = moves_hidden(m->dim, l->positions), slices = p->layers - 1 - p->decoder;
    if (home == plan_near(p))
        return;
    int64_t read = p->decoder * (1 + p->attn_cpu) * tokens + slices * positions;
    int64_t written = p->decoder * tokens + positions;
    move(m, home, p->device, (double)read, 0, bytes);
    move(m, home, p->device, (double)written, 1, bytes);
}

/* ---- the pass ---- */

int64_t moves_bytes(const struct plan *plan)
{
    return round_up(plan->batches * (int64_t)sizeof(struct moves_batch), 8);
}

void moves_make(struct moves *m, const struct plan *plan, const struct weights_info *weights,
                const struct plan_costs *costs, const struct shape *shape, void *memory)
{
    *m = (struct moves){
        .plan = plan, .weights = weights, .costs = costs, .dim = shape->dim, .batches = memory};
    memset(memory, 0, (size_t)moves_bytes(plan));
    count_weights(m);
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

void moves_end(struct moves *m, const struct load *loads, double bytes[N_WORK_LANES])
{
    const struct plan *p = m->plan;
    int last = p->batches - 1;
    while (last > 0 && loads[last].rows == 0)
        last--;
    /* The walk ends at the iteration that retires the step in which the last row is sampled;
     * counted from the first step of the pass that does not come. */
    const int few = moves_experts_share(m, loads) < 1;
    int64_t sampled = last - p->batches, end = sampled + p->window;
    if (end >= 0)
        end = max_i64(0, sampled + min_i64(p->window, p->batches));
    for (int layer = 1; layer < p->layers; layer++) {
        enum tier_kind home = plan_layer_home(p, layer);
        if (home == plan_near(p) || place_in_pass(p, layer, 0) >= end + p->ahead_weights)
            continue;
        int64_t left = few ? m->weights->expert_bytes[layer] : 0;
        move(m, home, p->device, (double)(m->weights->layer_bytes[layer] - left), 0, bytes);
        if (home == TIER_NVME && p->codec != PLAN_CODEC_NONE)
            bytes[LANE_NVME_READ] +=
                (double)(stored_bytes(m, layer) - m->weights->layer_bytes[layer]);
    }
    int to_device = plan_kv_near(p) == TIER_DEVICE;
    for (int batch = 0; batch < p->batches; batch++)
        for (int layer = 1; layer <= p->decoder; layer++) {
            enum tier_kind home = plan_kv_home(p, layer - 1, batch).tier;
            int64_t issued = place_in_pass(p, layer, batch) - p->ahead_state;
            if (home == plan_kv_near(p) || issued >= end || sees(p, batch, issued) != SEES_BEFORE)
                continue;
            int64_t pages = m->batches[batch].seen_pages[plan_kind(p, layer - 1)];
            move(m, home, to_device, (double)(pages * m->costs->kv_page_bytes), 0, bytes);
        }
}
