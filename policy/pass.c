/* policy/pass.c - see pass.h: the cost of a step, and the play of a pass's steps. */
#include "policy/pass.h"

#include "policy/attention.h"
#include "policy/device_layer.h"
#include "kernels/base/num.h"
#include "policy/rates.h"
#include "policy/servers.h"

#include <math.h>
#include <string.h>

#define STEPS_MAX 16384 // limit for playing a pass; longer ones compare lanes
#define NEAR      0.05  // share of a pass: passes whose lanes differ by less wait alike
#define LIKE      1.25  // greatest ratio of the lengths of two passes that wait alike
#define SHORT     256   // first passes of a job, which are all priced
#define REPEATED  6     // passes that reuse a price; then one is priced. 7 does not divide a page
#define TURNS     2     // passes played in a row; the last one counts

/* Seconds of a batch's steps, and the bytes that they move. */
struct step_cost {
    double embed, slice[2];                // weights as stored, as tiles
    double before, after;                  // a layer in two parts
    double to_cpu, to_device, last, first; // the link between the parts; for one tile
    double hidden, positions;
    struct kv_cost {
        double layer[2], attend;            // the whole layer; its attention
        double prompts;                     // a layer in two parts: prompts' attention in part 0
        double read, written;               // bytes
        double pieces_read, pieces_written; // contiguous pages move together
    } kv[KV_KINDS_MAX];
};

/* A step of a pass, and the homes of its data. */
struct place {
    int layer, part, batch;
    int decoded; // 1: the layer is held as tiles
    int kind;
    enum tier_kind weights, kv, hidden;
};

struct replay {
    double *end;             // [TURNS * S] end of each step
    double *ready[3];        // [TURNS * S] when weights, KV, hidden states of a step are there
    double *attended;        // [batches] end of attention on the CPU
    struct step_cost *batch; // [batches]
    struct place *places;    // [S], valid once `placed`
    int placed;
    struct servers servers;
};

enum { NEEDS_WEIGHTS, NEEDS_KV, NEEDS_HIDDEN };

/* ---- what steps compute ---- */

/* Bytes that norms, rope and activations read per token and layer (rates.rows_read). */
static double row_bytes(const struct shape *s)
{
    const double head = shape_head_dim(s, 0), heads = s->n_heads * head;
    const double kv = shape_kv_heads(s, 0) * head;
    return 4 * (2.0 * s->dim + heads + kv + 2.0 * shape_mlps_used(s) * s->ffn_dim);
}

static double tokens_of(const struct load *l)
{
    return (double)(l->prompt_tokens + l->forced_tokens);
}

static int n_slices(const struct plan *plan)
{
    return plan->layers - 1 - plan->decoder;
}

static double head_tiles(const struct setting *set, const struct plan *plan)
{
    double slices = n_slices(plan) > 0 ? n_slices(plan) : 1;
    return ceil((double)set->shape->vocab / HEAD_TILE) / slices;
}

/* Prompts' embedding rows are read when their batch is embedded. Those of sampled tokens are read
 * after their batch has sampled, hidden behind the slices of the other batches, `slice_s` each. */
static double gather_s(const struct pricing *p, const struct load *l, double slice_s)
{
    const struct machine *m = p->set->machine;
    double row_s = machine_gather_s(m), ticket_s = machine_ticket_s(m), s = 0;
    if (p->plan->embed_resident || p->set->weights->embed_row_bytes == 0)
        return 0;
    if (l->prompt_tokens > 0)
        s += ticket_s + row_s * (double)l->prompt_tokens;
    if (l->forced_tokens > 0)
        s += max_d(ticket_s + row_s * (double)min_i64(l->rows, l->forced_tokens) -
                       (p->plan->batches - 1) * slice_s,
                   0);
    return s;
}

/* Costs in RAM, on all threads. */
static void cost_on_cpu(const struct pricing *p, const struct load *l, struct step_cost *c)
{
    const struct setting *set = p->set;
    const struct machine *m = set->machine;
    double tokens = tokens_of(l), step_s = m->step_s.value;
    double rows_s = model_rows_s(&set->costs->rates, tokens), reduce_s = 0;
    if (set->costs->rates.rows_s[0] <= 0) { // this model was not measured
        double logits = (double)l->positions * HEAD_TILE * head_tiles(set, p->plan);
        rows_s = rate(tokens * row_bytes(set->shape), m->rows_read.value);
        reduce_s = rate(logits * 8, m->rows_read.value); // written and reduced, tile by tile
    }
    for (int kind = KV_MOST; kind < p->kinds; kind++)
        c->kv[kind].attend = attention_cpu_s(set, l, kind);
    for (int state = 0; state < 2; state++) {
        double layer_s = model_layer_s(&set->costs->rates, (enum weight_state)state, tokens);
        for (int kind = KV_MOST; kind < p->kinds; kind++)
            c->kv[kind].layer[state] = layer_s + rows_s + c->kv[kind].attend + step_s;
        c->slice[state] =
            head_tiles(set, p->plan) *
                model_head_s(&set->costs->rates, (enum weight_state)state, (double)l->positions) +
            reduce_s + step_s;
    }
    c->embed = step_s + gather_s(p, l, c->slice[0]);
}

/* Rows attend on the CPU, prompts on the device. Inputs and results of attention, and prompts' new
 * pages, cross the link while the ops of the next tile run. */
static void cost_apart(const struct pricing *p, const struct load *l, struct step_cost *c)
{
    const struct setting *set = p->set;
    const struct plan *plan = p->plan;
    const struct cross_bytes cross = set->costs->cross;
    const double heads = (double)set->shape->n_heads * shape_head_most(set->shape),
                 kv = (double)shape_kv_numbers_most(set->shape);
    const double tiles = ceil(tokens_of(l) / plan->tile_tokens);
    struct load forced = *l;
    double kept = 0;
    forced.prompts = 0;
    forced.prompt_tokens = 0;
    for (int kind = KV_MOST; kind < p->kinds; kind++) {
        struct load prompts = {0};
        prompts.kv[kind].prompt_pairs = l->kv[kind].prompt_pairs;
        const double pages = l->prompts > 0 ? (double)l->kv[kind].pages_filled : 0;
        forced.kv[kind].prompt_pairs = 0;
        c->kv[kind].attend = attention_cpu_s(set, &forced, kind);
        c->kv[kind].prompts = attention_device_s(set, &prompts, kind);
        kept += (p->decoded[kind][0] + p->decoded[kind][1]) * pages / plan->decoder *
                (double)plan_page_bytes(set->costs, kind);
    }
    c->to_cpu = rate((double)l->forced_tokens * (heads + kv) * cross.in +
                         (double)l->prompt_tokens * heads * cross.out + kept,
                     set->machine->d2h.value);
    c->to_device = rate(tokens_of(l) * heads * cross.out, set->machine->h2d.value);
    c->last = c->to_cpu / tiles;
    c->first = c->to_device / tiles;
    c->after = max_d(c->after, c->to_device - c->first);
}

/* Seconds of part 0 of a layer of a kind. */
static double before_s(const struct step_cost *c, int kind)
{
    return max_d(c->before + c->kv[kind].prompts, c->to_cpu - c->last);
}

/* Costs on a device. */
static void cost_on_device(const struct pricing *p, const struct load *l, struct step_cost *c)
{
    const struct setting *set = p->set;
    const int head = p->plan->decoder + 1;
    const struct device_layer layer = device_layer_s(set, tokens_of(l), p->plan->tile_tokens);
    double slice = p->plan->layers > head ? (double)set->weights->layer_bytes[head] : 0;
    double slice_flops = 2.0 * HEAD_TILE * set->shape->dim * head_tiles(set, p->plan);
    c->before = layer.before;
    c->after = layer.after;
    c->embed = device_launches_s(set);
    c->slice[0] = c->slice[1] =
        c->embed + device_matmul_s(set->machine, slice, slice_flops, (double)l->positions,
                                   p->plan->tile_positions);
    if (p->plan->attn_cpu)
        cost_apart(p, l, c);
    for (int kind = KV_MOST; kind < p->kinds; kind++)
        c->kv[kind].layer[0] = c->kv[kind].layer[1] =
            c->before + attention_device_s(set, l, kind) + c->after;
}

/* Transfers of a row's pages: its first pages, allocated when it enters, are contiguous; later ones
 * are not. */
static double kv_pieces(const struct pricing *p, const struct load *l, double pages)
{
    const struct work *work = p->set->work;
    double first = floor((double)work->prompt_tokens / max_d((double)work->n_rows, 1)) / PAGE_SLOTS;
    double rows = min_d(l->rows, pages);
    return rows + max_d(pages - rows * max_d(first, 1), 0);
}

static void cost_of(const struct pricing *p, const struct load *l, struct step_cost *c)
{
    const struct plan_costs *costs = p->set->costs;
    const struct shape *shape = p->set->shape;
    *c = (struct step_cost){.hidden =
                                (double)moves_hidden(shape, l->prompt_tokens + l->forced_tokens),
                            .positions = (double)moves_positions(shape, l->positions)};
    for (int kind = KV_MOST; kind < p->kinds; kind++) {
        const struct kv_load *kv = &l->kv[kind];
        double page = (double)plan_page_bytes(costs, kind), read = (double)kv->pages_read;
        double filled = (double)kv->pages_filled;
        double written = (double)kv->pages_over + kv->evicting * costs->kv_pages_written[kind];
        c->kv[kind] = (struct kv_cost){
            .read = read * page,
            .written = (filled + written) * page,
            .pieces_read = kv->evicting > 0 ? min_d(l->rows, read) : kv_pieces(p, l, read),
            .pieces_written = min_d(filled, l->rows) + min_d(written, kv->evicting)};
    }
    if (tokens_of(l) == 0)
        return;
    (p->plan->device ? cost_on_device : cost_on_cpu)(p, l, c);
}

/* Seconds to decode a layer, after its copy, to the form that matmuls read. */
static double decoding_s(const struct pricing *p, int layer)
{
    const struct weights_info *w = p->set->weights;
    double tiles = (double)w->tile_bytes[layer];
    if (!p->plan->device || tiles == 0 || plan_layer_decoded(p->plan, layer))
        return 0;
    return rate((double)w->layer_bytes[layer] + tiles, p->set->machine->device_read.value);
}

/* ---- the lanes that move ---- */

static double disk_s(const struct pricing *p, double n_bytes, int write)
{
    const struct machine *m = p->set->machine;
    double burst = m->nvme_read_burst.value, most = m->nvme_read_burst_bytes.value;
    if (!write && burst > 0 && p->sum.bytes[LANE_NVME_READ] < most)
        return n_bytes / burst;
    return rate(n_bytes, write ? m->nvme_write.value : m->nvme_read.value);
}

/* Seconds to wait for the experts that a pass needs, which are known after the router ran. */
static double experts_s(const struct pricing *p, const struct place *s)
{
    double n_bytes = p->sweeps * p->experts_share * (double)p->set->weights->expert_bytes[s->layer];
    if (p->experts_share >= 1 || s->weights != TIER_NVME || n_bytes == 0)
        return 0;
    return disk_s(p, n_bytes, 0) + p->plan->batches * machine_ticket_s(p->set->machine);
}

/* Seconds that step s computes, on the lane that limits it. */
static double compute_s(const struct pricing *p, const struct place *s)
{
    const struct step_cost *c = &p->replay->batch[s->batch];
    if (s->layer == 0)
        return c->embed * p->slowed;
    int first = s->batch == 0 && s->part == 0; // decoding is paid once per layer
    double decode = first ? p->sweeps * decoding_s(p, s->layer) + experts_s(p, s) : 0;
    if (s->layer > p->plan->decoder)
        return c->slice[s->decoded] * p->slowed + decode;
    if (p->plan->attn_cpu)
        return (s->part == 0 ? before_s(c, s->kind) : c->after) + decode;
    return c->kv[s->kind].layer[s->decoded] * p->slowed + decode;
}

/* Extra seconds of `pieces` transfers shorter than PIECE_BYTES: each has its own start. */
static double short_s(const struct pricing *p, double n_bytes, double pieces)
{
    const struct machine *m = p->set->machine;
    double start_s = machine_gather_s(m) - rate(BLOCK_BYTES, m->nvme_read.value);
    return max_d(pieces - ceil(n_bytes / PIECE_BYTES), 0) * max_d(start_s, 0);
}

static double link_s(const struct pricing *p, double n_bytes, int write)
{
    return rate(n_bytes, write ? p->set->machine->d2h.value : p->set->machine->h2d.value);
}

/* ---- the walk ---- */

/* Plays passes: the engine's walk, with seconds instead of bytes. */
struct player {
    const struct pricing *p;
    struct replay *r;
    int64_t steps; // steps of a pass
    int first;     // 1: the pass that fetches resident data
    double now;    // time of the walk
};

/* Data that moves between its home and where ops run. */
struct cargo {
    enum tier_kind home;
    double n_bytes, stored; // size where ops run, and on disk
    double pieces;          // least number of transfers; 0: contiguous
    int device;             // 1: also crosses the link
};

static struct item item_of(const struct player *w, int64_t due, const struct cargo *c, int write)
{
    struct item item = {.due = due, .from = w->now, .write = write};
    double pieces = max_d(ceil(c->stored / PIECE_BYTES), c->pieces);
    item.pieces = (int)min_d(pieces, IO_DEPTH);
    if (c->home == TIER_NVME && c->stored > 0) {
        item.disk_s = disk_s(w->p, c->stored, write) + short_s(w->p, c->stored, c->pieces);
        item.piece_s = item.disk_s / pieces;
    }
    if (c->device)
        item.link_s = link_s(w->p, c->n_bytes, write);
    return item;
}

static void fetch(const struct player *w, int64_t due, const struct cargo *c, double *ready)
{
    struct item item = item_of(w, due, c, 0);
    if (item.disk_s + item.link_s == 0)
        return;
    item.ready = ready;
    *ready = INFINITY;
    servers_take(&w->r->servers, &item);
}

static void store(const struct player *w, int64_t due, const struct cargo *c)
{
    struct item item = item_of(w, due, c, 1);
    if (item.disk_s + item.link_s > 0)
        servers_take(&w->r->servers, &item);
}

static const struct place *place_of(const struct player *w, struct step s)
{
    return &w->r->places[s.n - s.pass * w->steps];
}

static void place_steps(const struct pricing *p, const struct order *order, int64_t steps)
{
    const struct plan *plan = p->plan;
    struct step s = step_at(order, 0);
    for (; s.n < steps && !p->replay->placed; step_next(order, &s)) {
        struct place *at = &p->replay->places[s.n];
        int decodes = s.kind == STEP_DECODE;
        *at = (struct place){.layer = s.layer,
                             .part = s.part,
                             .batch = s.batch,
                             .decoded = plan_layer_decoded(plan, s.layer),
                             .weights = plan_layer_home(plan, s.layer),
                             .hidden = plan_hidden_home(plan, s.batch).tier};
        at->kv = decodes ? plan_kv_home(plan, s.layer - 1, s.batch).tier : plan_kv_near(plan);
        at->kind = decodes ? plan_kind(plan, s.layer - 1) : KV_MOST;
    }
    p->replay->placed = 1;
}

static void fetch_weights(const struct player *w, struct step s)
{
    const struct plan *plan = w->p->plan;
    enum tier_kind home = place_of(w, s)->weights, near = plan_near(plan);
    double n_bytes = (double)w->p->set->weights->layer_bytes[s.layer], stored = n_bytes;
    if (s.kind == STEP_EMBED && home != near)
        return;
    if (w->first && s.pass == 0 &&
        !(w->p->set->weights->made_here && plan_layer_made(plan, s.layer)))
        home = TIER_NVME;
    else if (home == near)
        return;
    if (w->p->experts_share < 1 && !w->first)
        stored = n_bytes -= (double)w->p->set->weights->expert_bytes[s.layer];
    if (place_of(w, s)->weights != near)
        stored = n_bytes *= w->p->sweeps;
    if (plan->codec != PLAN_CODEC_NONE && w->p->set->costs->codec_share > 0)
        stored *= w->p->set->costs->codec_share;
    const struct cargo c = {
        .home = home, .n_bytes = n_bytes, .stored = stored, .device = plan->device};
    fetch(w, s.n, &c, &w->r->ready[NEEDS_WEIGHTS][s.n]);
}

static void fetch_kv(const struct player *w, struct step s)
{
    const struct plan *plan = w->p->plan;
    const struct place *at = place_of(w, s);
    if (at->kv == plan_kv_near(plan))
        return;
    const struct kv_cost *kv = &w->r->batch[s.batch].kv[at->kind];
    const struct cargo c = {.home = at->kv,
                            .n_bytes = kv->read,
                            .stored = kv->read,
                            .pieces = kv->pieces_read,
                            .device = plan_kv_near(plan) == TIER_DEVICE};
    fetch(w, s.n, &c, &w->r->ready[NEEDS_KV][s.n]);
}

static void fetch_hidden(const struct player *w, struct step s)
{
    const struct plan *plan = w->p->plan;
    const struct step_cost *c = &w->r->batch[s.batch];
    double n_bytes = s.kind == STEP_SLICE ? c->positions : c->hidden;
    const struct cargo cargo = {.home = place_of(w, s)->hidden,
                                .n_bytes = n_bytes,
                                .stored = n_bytes,
                                .device = plan->device};
    if (cargo.home != plan_near(plan))
        fetch(w, s.n, &cargo, &w->r->ready[NEEDS_HIDDEN][s.n]);
}

/* The walker waits for the step; what the step wrote moves home. */
static void retire(struct player *w, struct step s)
{
    const struct plan *plan = w->p->plan;
    const struct place *at = place_of(w, s);
    const struct step_cost *c = &w->r->batch[s.batch];
    w->now = max_d(w->now, w->r->end[s.n]);
    servers_go(&w->r->servers, w->now);
    if (s.kind == STEP_SLICE || !s.whole)
        return;
    double n_bytes = s.layer == plan->decoder ? c->positions : c->hidden;
    const struct cargo hidden = {
        .home = at->hidden, .n_bytes = n_bytes, .stored = n_bytes, .device = plan->device};
    const struct cargo kv = {.home = at->kv,
                             .n_bytes = c->kv[at->kind].written,
                             .stored = c->kv[at->kind].written,
                             .pieces = c->kv[at->kind].pieces_written,
                             .device = plan_kv_near(plan) == TIER_DEVICE};
    if (at->hidden != plan_near(plan))
        store(w, s.n, &hidden);
    if (at->kv != plan_kv_near(plan))
        store(w, s.n, &kv);
}

/* Sets the end of a step from when the step can start. */
static void compute(const struct player *w, struct step s)
{
    struct replay *r = w->r;
    const struct place *at = place_of(w, s);
    double start = max_d(w->now, s.n > 0 ? r->end[s.n - 1] : 0);
    for (int i = 0; i < 3; i++)
        if (r->ready[i][s.n] != 0)
            start = max_d(start, servers_wait(&r->servers, &r->ready[i][s.n]));
    if (s.part == 1)
        start = max_d(start, r->attended[s.batch] + r->batch[s.batch].first);
    r->end[s.n] = start + compute_s(w->p, at);
    if (s.whole)
        return;
    /* Rows attend on the CPU, one batch after another. */
    double busy = r->end[s.n] + r->batch[s.batch].last;
    for (int b = 0; b < w->p->plan->batches; b++)
        busy = max_d(busy, r->attended[b]);
    r->attended[s.batch] = busy + r->batch[s.batch].kv[at->kind].attend;
}

/* Returns the seconds of the last of `passes` passes. */
static double play_passes(struct player *w, int passes)
{
    struct replay *r = w->r;
    const int64_t n = passes * w->steps;
    struct walk walk;
    walk_begin(&walk, w->p->plan, 0);
    for (;;) {
        struct step s;
        enum walk_event event = walk_next(&walk, &s);
        if (s.n >= TURNS * w->steps) // fetched for a pass that is not played
            continue;
        if (event == WALK_RETIRE)
            retire(w, s);
        else if (event == WALK_FETCH_WEIGHTS)
            fetch_weights(w, s);
        else if (event == WALK_FETCH_KV)
            fetch_kv(w, s);
        else if (event == WALK_FETCH_HIDDEN)
            fetch_hidden(w, s);
        if (event != WALK_COMPUTE)
            continue;
        compute(w, s);
        if (s.n == n - 1)
            return r->end[s.n] - (passes == 1 ? 0 : r->end[w->steps - 1]);
        if (s.n == w->steps - 1) // the pass that counts begins
            r->servers.busy_s[0] = r->servers.busy_s[1] = 0;
    }
}

static double play(const struct pricing *p, int first)
{
    const struct order order = plan_order(p->plan);
    struct replay *r = p->replay;
    struct player w = {.p = p, .r = r, .first = first, .steps = order_pass_steps(&order)};
    place_steps(p, &order, w.steps);
    for (int i = 0; i < 3; i++)
        memset(r->ready[i], 0, (size_t)(TURNS * w.steps) * sizeof(double));
    memset(r->attended, 0, (size_t)p->plan->batches * sizeof(double));
    servers_start(&r->servers);
    return play_passes(&w, first ? 1 : TURNS);
}

/* ---- the price ---- */

/* Steps of a played pass, of all groups; 0 if quick. */
static int64_t steps_of(const struct plan *plan, int quick)
{
    struct order order = plan_order(plan);
    return quick ? 0 : min_i64(plan_groups(plan) * order_pass_steps(&order), STEPS_MAX);
}

int64_t pricing_bytes(const struct plan *plan, int quick)
{
    int64_t steps = steps_of(plan, quick), cap = 3 * steps + 64;
    return moves_bytes(plan) + round_up((int64_t)sizeof(struct replay), 8) +
           plan->batches *
               (int64_t)(2 * sizeof(struct load) + sizeof(struct step_cost) + sizeof(double)) +
           4 * TURNS * steps * (int64_t)sizeof(double) + 2 * cap * (int64_t)sizeof(struct item) +
           round_up(steps * (int64_t)sizeof(struct place), 8);
}

/* The first pass is charged for first touching all memory that stays in RAM (including KV pages
 * that later rows reach): by reads as they land, and by ops. */
static void price_fresh(struct pricing *p)
{
    const struct plan *plan = p->plan;
    const struct weights_info *w = p->set->weights;
    const double fresh = p->set->machine->ram_fresh.value;
    int64_t kv[N_TIERS], read = 0;
    if (plan->device || fresh <= 0) // pinned RAM is brought in for that
        return;
    plan_kv_bytes_on(plan, p->set->costs, kv);
    int64_t written = kv[TIER_RAM];
    for (int layer = 0; layer < plan->layers; layer++)
        if (plan_layer_home(plan, layer) != TIER_NVME) {
            int made = w->made_here || plan_layer_decoded(plan, layer);
            *(made ? &written : &read) += plan_resident_bytes(plan, w, layer);
        }
    if (read + written <= PLAN_BROUGHT_IN)
        return;
    p->fresh_read_s = (double)read / fresh;
    p->fresh_ops_s = (double)written / fresh;
}

/* Adds that to the first pass: reads wait for memory and the disk at once; ops do nothing else
 * meanwhile. */
static void add_fresh(const struct pricing *p, struct lanes *l)
{
    double more = max_d(p->fresh_read_s - l->s[LANE_NVME_READ], 0);
    l->s[LANE_NVME_READ] += more;
    l->s[LANE_CPU] += p->fresh_ops_s;
    l->wall_s += more + p->fresh_ops_s;
}

static void count_kinds(struct pricing *p)
{
    const struct plan *plan = p->plan;
    for (int layer = 0; layer < plan->decoder; layer++)
        p->decoded[plan_kind(plan, layer)][plan_layer_decoded(plan, layer + 1)]++;
    for (int batch = 0; batch < plan->batches; batch++)
        for (int kind = KV_MOST; kind < p->kinds; kind++)
            for (int k = 0; k < N_FETCH_SEES; k++)
                p->kv_on_disk[kind] += p->moves.batches[batch].kv[TIER_NVME][kind][k];
}

void pricing_make(struct pricing *p, const struct setting *set, const struct plan *plan, int quick,
                  void *memory)
{
    int64_t steps = steps_of(plan, quick);
    uint8_t *at = memory;
    *p = (struct pricing){.set = set, .plan = plan, .quick = quick, .kinds = plan_kinds(plan)};
    p->sweeps = plan_groups(plan);
    if (plan->groups > 1) { // as many steps, in another order
        p->whole = *plan;
        p->whole.groups = 0;
        p->plan = plan = &p->whole;
    }
#define TAKE(to, n)                                                                                \
    (to) = (void *)at;                                                                             \
    at += round_up((int64_t)(n) * (int64_t)sizeof *(to), 8)
    TAKE(p->replay, 1);
    memset(p->replay, 0, sizeof *p->replay);
    TAKE(p->last, plan->batches);
    TAKE(p->typical, plan->batches);
    TAKE(p->replay->batch, plan->batches);
    TAKE(p->replay->attended, plan->batches);
    TAKE(p->replay->places, steps);
    TAKE(p->replay->end, TURNS * steps);
    for (int i = 0; i < 3; i++) {
        TAKE(p->replay->ready[i], TURNS * steps);
    }
    struct servers *servers = &p->replay->servers;
    servers_make(servers, set->machine, plan->device);
    servers->cap = (int)(3 * steps + 64);
    TAKE(servers->disk.items, servers->cap);
    TAKE(servers->link.items, servers->cap);
#undef TAKE
    moves_make(&p->moves, plan, p->sweeps, set->weights, set->costs, set->shape, at);
    price_fresh(p);
    count_kinds(p);
    for (int layer = 1; layer < plan->layers; layer++) {
        p->decoding_s += p->sweeps * decoding_s(p, layer);
        if (layer > plan->decoder)
            p->decoded_slices += plan_layer_decoded(plan, layer);
    }
}

/* 1 when each lane is about as busy as in a played pass, scaled by the ratio of their lengths. The
 * ratio is bounded by LIKE: twice the work waits twice as long, but the overhead of transfers
 * stays. */
static int as_played(const struct lanes *l, double quick_s, const struct played_pass *played)
{
    double times = quick_s / played->quick_s;
    if (times > LIKE || times * LIKE < 1)
        return 0;
    for (int i = 0; i < N_WORK_LANES; i++)
        if (fabs(l->s[i] - times * played->s[i]) > NEAR * times * played->wall_s)
            return 0;
    return 1;
}

/* A played pass that is like this one, or NULL. The search starts at the last match: waves of rows
 * repeat, and so do their passes. */
static const struct played_pass *find_played(struct pricing *p, const struct lanes *l,
                                             double quick_s)
{
    int n = (int)min_i64(p->plays, PRICING_KEPT);
    for (int i = 0; i < n; i++) {
        int k = (p->matched + i) % n;
        if (as_played(l, quick_s, &p->kept[k])) {
            p->matched = k;
            return &p->kept[k];
        }
    }
    return NULL;
}

/* Busy seconds of a pass that moves `bytes`. */
static void lanes_of(const struct pricing *p, const double bytes[N_WORK_LANES], struct lanes *l)
{
    const struct plan *plan = p->plan;
    struct order order = plan_order(plan);
    int64_t n = order_pass_steps(&order);
    double ops = p->decoding_s, attended = 0;
    memcpy(l->bytes, bytes, sizeof l->bytes);
    l->s[LANE_NVME_READ] = disk_s(p, bytes[LANE_NVME_READ], 0);
    l->s[LANE_NVME_WRITE] = disk_s(p, bytes[LANE_NVME_WRITE], 1);
    for (int b = 0; b < plan->batches; b++) { // each batch has as many layers on NVMe
        const struct step_cost *c = &p->replay->batch[b];
        for (int kind = KV_MOST; kind < p->kinds; kind++) {
            const struct kv_cost *kv = &c->kv[kind];
            double layers = (double)p->kv_on_disk[kind] / plan->batches;
            l->s[LANE_NVME_READ] += layers * short_s(p, kv->read, kv->pieces_read);
            l->s[LANE_NVME_WRITE] += layers * short_s(p, kv->written, kv->pieces_written);
        }
    }
    l->s[LANE_H2D] = link_s(p, bytes[LANE_H2D], 0);
    l->s[LANE_D2H] = link_s(p, bytes[LANE_D2H], 1);
    for (int b = 0; b < plan->batches; b++) {
        const struct step_cost *c = &p->replay->batch[b];
        ops += c->embed + (n_slices(plan) - p->decoded_slices) * c->slice[0] +
               p->decoded_slices * c->slice[1];
        l->to_cpu_s += plan->decoder * c->to_cpu;
        l->to_device_s += plan->decoder * c->to_device;
        for (int kind = KV_MOST; kind < p->kinds; kind++) {
            const int *layers = p->decoded[kind];
            const struct kv_cost *kv = &c->kv[kind];
            if (plan->attn_cpu) {
                attended += (layers[0] + layers[1]) * kv->attend;
                ops += (layers[0] + layers[1]) * (before_s(c, kind) + c->after);
            } else {
                ops += layers[0] * kv->layer[0] + layers[1] * kv->layer[1];
            }
        }
    }
    l->s[LANE_GPU] = plan->device ? ops : 0;
    l->s[LANE_CPU] = plan->device ? (double)n * p->set->machine->step_s.value + attended : ops;
}

/* CPU seconds per thread that reads and writes take from ops: as measured beside matmuls, or else
 * the checksums alone; plus decompression. */
static double beside_s(const struct pricing *p, const double bytes[N_WORK_LANES])
{
    const struct machine *m = p->set->machine;
    double left = min_d(m->matmul_beside.value, 1),
           read_s = p->replay->servers.beside * m->nvme_read.value;
    double s = rate(bytes[LANE_NVME_WRITE], m->crc.value);
    if (left > 0)
        s += m->threads * (1 / left - 1) * rate(bytes[LANE_NVME_READ], read_s);
    else
        s += rate(bytes[LANE_NVME_READ], m->crc.value);
    if (p->plan->codec != PLAN_CODEC_NONE)
        s += rate((double)p->moves.every[LANE_NVME_READ], p->set->costs->codec_rate);
    return s / max_d(m->threads, 1);
}

/* Wall time from lanes that overlap. Without look-ahead only ops queued on a device overlap: in
 * RAM, weights are read first and then used. */
static double quick_s(const struct pricing *p, const struct lanes *l)
{
    const struct plan *plan = p->plan;
    double disk = l->s[LANE_NVME_READ] + l->s[LANE_NVME_WRITE];
    double link = max_d(l->s[LANE_H2D] + l->to_device_s, l->s[LANE_D2H] + l->to_cpu_s);
    double ops = max_d(l->s[LANE_GPU], l->s[LANE_CPU]);
    if (plan->ahead_weights == 0 && !plan->device)
        ops += disk_s(p, (double)p->moves.every[LANE_NVME_READ], 0);
    if (p->experts_share < 1) { // read while nothing else runs
        double few_s = disk_s(p, p->experts_share * (double)p->moves.experts, 0);
        ops += few_s;
        disk -= few_s;
    }
    if (plan->attn_cpu && plan->batches == 1) // CPU and device wait for each other
        ops = l->s[LANE_GPU] + l->s[LANE_CPU] +
              plan->decoder * (p->replay->batch[0].last + p->replay->batch[0].first);
    return max_d(disk, max_d(link, ops));
}

/* Seconds that the disk's reads and writes were in flight beyond what their bytes take at full
 * queue depth, in the pass just played. */
static void disk_more(const struct pricing *p, const struct lanes *l, double more_s[2])
{
    for (int write = 0; write < 2; write++)
        more_s[write] =
            p->replay->servers.busy_s[write] - l->s[write ? LANE_NVME_WRITE : LANE_NVME_READ];
}

static const struct played_pass *play_and_keep(struct pricing *p, const struct lanes *l,
                                               double quick)
{
    p->matched = (int)(p->plays++ % PRICING_KEPT);
    struct played_pass *kept = &p->kept[p->matched];
    *kept = (struct played_pass){.quick_s = quick, .wall_s = play(p, 0)};
    memcpy(kept->s, l->s, sizeof kept->s);
    disk_more(p, l, kept->disk_more_s);
    return kept;
}

/* Wall time of a pass: played, or that of a similar played pass, which waits as long, plus the
 * difference of their lanes. */
static double wall_s(struct pricing *p, int64_t pass, const struct lanes *l)
{
    struct order order = plan_order(p->plan);
    double moved = l->s[LANE_NVME_READ] + l->s[LANE_NVME_WRITE] + l->s[LANE_H2D] + l->s[LANE_D2H];
    double quick = quick_s(p, l);
    if (p->quick || (moved == 0 && !p->plan->attn_cpu) || order_pass_steps(&order) > STEPS_MAX)
        return quick;
    if (pass == 0) {
        double first_s = play(p, 1);
        disk_more(p, l, p->disk_more_s);
        return first_s;
    }
    const struct played_pass *kept = find_played(p, l, quick);
    if (!kept)
        kept = play_and_keep(p, l, quick);
    memcpy(p->disk_more_s, kept->disk_more_s, sizeof p->disk_more_s);
    return max_d(quick, kept->wall_s + quick - kept->quick_s);
}

/* 1 when rows only decode, and as many as in the last priced pass. */
static int goes_on(const struct pricing *p, const struct load *loads)
{
    for (int b = 0; b < p->plan->batches; b++)
        if (loads[b].rows != p->last[b].rows || loads[b].prompt_tokens + p->last[b].prompt_tokens ||
            loads[b].forced_tokens != p->last[b].forced_tokens)
            return 0;
    return 1;
}

static void add_lanes(struct pricing *p, const struct lanes *l)
{
    for (int i = 0; i < N_WORK_LANES; i++) {
        p->sum.s[i] += l->s[i];
        p->sum.bytes[i] += l->bytes[i];
    }
    p->sum.wall_s += l->wall_s;
}

double pricing_pass(void *ctx, int64_t pass, const struct load *loads)
{
    struct pricing *p = ctx;
    struct lanes l = {0};
    double bytes[N_WORK_LANES] = {0};
    if (p->quick && pass > SHORT && p->repeated < REPEATED && goes_on(p, loads)) {
        p->repeated++;
        add_lanes(p, &p->priced);
        return p->priced.wall_s;
    }
    p->repeated = 0;
    p->experts_share = moves_experts_share(&p->moves, loads);
    moves_pass(&p->moves, pass, loads, bytes);
    for (int b = 0; b < p->plan->batches; b++)
        cost_of(p, &loads[b], &p->replay->batch[b]);
    lanes_of(p, bytes, &l);
    p->slowed = 1;
    if (!p->plan->device && l.s[LANE_CPU] > 0) {
        p->slowed += beside_s(p, bytes) / l.s[LANE_CPU];
        l.s[LANE_CPU] *= p->slowed;
    }
    l.wall_s = wall_s(p, pass, &l);
    for (int write = 0; write < 2; write++) {
        double *s = &l.s[write ? LANE_NVME_WRITE : LANE_NVME_READ];
        *s += *s > 0 ? max_d(p->disk_more_s[write], 0) : 0;
    }
    memcpy(p->last, loads, (size_t)p->plan->batches * sizeof *loads);
    if (pass == 0)
        add_fresh(p, &l);
    if (p->sum.wall_s == 0)
        p->first_s = l.wall_s;
    p->priced = l;
    add_lanes(p, &l);
    return l.wall_s;
}
