/* policy/search.c - plan_cost and plan_search: the fastest plan that fits.
 *
 * Simple rules for now, over whole layers, batches and pages: candidates are powers of two of rows
 * and the most rows that fit, a few batch counts, both KV homes, both homes of hidden states; for
 * each the most resident layers that fit. plan_check has the last word on every candidate. */
#include "policy/int64.h"
#include "policy/layout.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define CODEC_GAIN    0.97 // of a job's time: what an encoded file must bring it down to
#define CODEC_MARGIN  2    // decoding keeps up with a disk this much faster than probed
#define PREFILL_MAX   2048 // tokens that a pass admits: more only lengthens it
#define PREFILL_LEAST 32   // fewer starve the rows
#define DEVICE_WINDOW 3    // steps queued: one runs, one is next, one is being queued

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static double max_d(double a, double b)
{
    return a > b ? a : b;
}

static double rate(double bytes, double per_s)
{
    return per_s > 0 ? bytes / per_s : 0;
}

/* Seconds of a pass to decode what streams, on the one thread that does; beside the reads. */
static double codec_seconds(const struct plan *plan, const struct plan_costs *costs,
                            double streamed)
{
    return plan->codec == PLAN_CODEC_NONE ? 0 : rate(streamed, costs->codec_rate);
}

/* Prompt tokens that enter in a pass which admits some, and how many such passes there are. */
static double admitted(const struct plan *plan, const struct work *work, double *passes)
{
    double all = (double)work->prompt_tokens;
    if (work->scores) // known tokens come in at the same gate as prompts
        all += (double)work->output_tokens;
    double each = max_d(plan->prefill_tokens, (double)work->prompt_max);
    *passes = max_d(all / max_d(each, 1), all > 0 ? 1 : 0);
    return *passes > 0 ? all / *passes : 0;
}

static double count_passes(const struct plan *plan, const struct work *work, double prompt_passes)
{
    double rows = (double)plan->batch * plan->batches;
    if (rows > (double)work->n_rows)
        rows = (double)work->n_rows;
    if (work->scores)
        return max_d(max_d((double)work->n_rows / max_d(rows, 1), prompt_passes), 1);
    /* A row is live for about `outputs` passes; the last to enter leave that much later. */
    double outputs = work->n_rows ? (double)work->output_tokens / (double)work->n_rows : 0;
    double by_rows = (double)work->output_tokens / max_d(rows, 1) + 1;
    return max_d(max_d(by_rows, prompt_passes + outputs), 1);
}

/* What a pass costs whatever its tokens are: bytes that it moves and decodes. */
static void cost_of_sweep(const struct plan *plan, const struct weights_info *w,
                          const struct work *work, const struct shape *shape,
                          const struct plan_costs *costs, const struct machine *machine,
                          double tokens, struct plan_time *t)
{
    double streamed = 0, stored = 0, all = 0;
    for (int layer = 1; layer < plan->layers; layer++) {
        double n_bytes = (double)w->layer_bytes[layer];
        all += n_bytes;
        streamed += plan_layer_resident(plan, layer) ? 0 : n_bytes;
        stored += plan_layer_decoded(plan, layer) ? 0 : n_bytes;
    }
    double rows = (double)plan->batch * plan->batches;
    double live = (double)work->output_tokens / t->passes; // a token each
    double slots = work->scores ? 0 : live * (double)work->slots_mean * 0.75;
    double slot_bytes = (double)costs->kv_page_bytes / 32;
    double kv_read = slots * slot_bytes * plan->decoder;
    double nvme_kv =
        kv_read * (double)plan_kv_count(plan, TIER_NVME) / ((double)plan->decoder * plan->batches);
    double hidden = rows * shape->dim * 4.0 * plan->layers *
                    (double)plan_hidden_count(plan, TIER_NVME) / plan->batches;
    double codec_s = codec_seconds(plan, costs, streamed);
    double share =
        plan->codec != PLAN_CODEC_NONE && costs->codec_share > 0 ? costs->codec_share : 1;
    t->read_s = max_d(rate(streamed * share + nvme_kv + hidden, machine->nvme_read), codec_s);
    t->write_s =
        rate(hidden + (nvme_kv > 0 ? tokens * slot_bytes * plan->decoder : 0), machine->nvme_write);
    /* Every tile of every batch goes over all weights once, decoding them beside the cache: few
     * rows pay as much. */
    double tiles = max_d(plan->batches, tokens / plan->tile_tokens);
    struct order order = plan_order(plan);
    t->compute_s =
        tiles *
            (rate((double)w->n_params * 2, machine->ram_read) + costs->decode_s * stored / all) +
        rate(kv_read, machine->ram_read) + (double)order_pass_steps(&order) * machine->step_s +
        codec_s / max_d(machine->threads, 1); // it takes a core's time
}

/* Two kinds of passes: those that admit prompts, until all are in, and those that only decode. */
void plan_cost(const struct plan *plan, const struct weights_info *w, const struct work *work,
               const struct shape *shape, const struct plan_costs *costs,
               const struct machine *machine, struct plan_time *t)
{
    memset(t, 0, sizeof *t);
    double prompt_passes, prompts = admitted(plan, work, &prompt_passes);
    t->passes = count_passes(plan, work, prompt_passes);
    double share = prompt_passes / t->passes; // of passes that admit prompts
    share = share < 1 ? share : 1;
    double live = work->scores ? 0 : (double)work->output_tokens / t->passes;
    cost_of_sweep(plan, w, work, shape, costs, machine, live + prompts * share, t);
    double token_s = rate((double)w->flops_per_token, machine->matmul_flops);
    double decode_s = t->compute_s + live * token_s;
    double prompt_s = decode_s + prompts * token_s, io_s = t->read_s + t->write_s;
    t->compute_s = decode_s + share * (prompt_s - decode_s);
    if (plan->ahead_weights > 0)
        t->pass_s = share * max_d(prompt_s, io_s) + (1 - share) * max_d(decode_s, io_s);
    else
        t->pass_s = t->compute_s + io_s;
    t->bound =
        t->compute_s >= io_s ? "cpu" : (t->read_s >= t->write_s ? "nvme-read" : "nvme-write");
    t->job_s = t->passes * t->pass_s;
}

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

struct search {
    const struct plan_wish *wish;
    const struct weights_info *w;
    const struct work *work;
    const struct shape *shape;
    const struct evict *evict;
    const struct plan_costs *costs;
    const struct machine *machine;
    const struct budget *budget;
    int codec; // of every candidate
    struct plan best;
    double best_s;
    int found;
    int64_t least_ram; // of the candidates that fail only by RAM
    char why[256];     // of the smallest candidate
};

static int fits(struct search *s, struct plan *p)
{
    struct plan_bytes bytes;
    struct layout layout;
    char why[256];
    plan_derive(p, s->w, s->work);
    int rc = plan_check(p, s->w, s->work, s->shape, s->evict, s->costs, s->budget, &layout, &bytes,
                        why, sizeof why);
    int disk_fits = s->budget->disk < 0 || bytes.disk <= s->budget->disk;
    if (rc != 0 && (s->least_ram < 0 || (disk_fits && bytes.ram < s->least_ram))) {
        s->least_ram = bytes.ram;
        memcpy(s->why, why, sizeof why);
    }
    return rc == 0;
}

/* A field of the plan, as far up to `most` as fits; what the user fixed stays. */
static void grow(struct search *s, struct plan *p, size_t field, int wish, int64_t most)
{
    int least = *(int *)(void *)((char *)p + field);
    if (wish >= 0)
        return;
    while (least < most) {
        int mid = (int)(least + (most - least + 1) / 2);
        struct plan q = *p;
        int *value = (int *)(void *)((char *)&q + field);
        q.pages_batch = 0;
        *value = mid;
        if (!fits(s, &q)) {
            most = mid - 1;
            continue;
        }
        *p = q;
        if (*value < mid)
            return; // there is no more of it
        least = mid;
    }
}

/* Prompt tokens that a pass admits, the fastest by plan_cost of: as many as keep the rows full
 * evenly, as hide behind the streamed bytes, few, and as many as are worth it when nothing streams.
 * Bytes never depend on it. */
static int choose_prefill(const struct search *s, const struct plan *p)
{
    const struct work *work = s->work;
    if (s->wish->prefill_tokens > 0)
        return s->wish->prefill_tokens;
    double streamed = 0, rows = (double)p->batch * p->batches;
    for (int layer = 1; layer < s->w->n_layers; layer++)
        if (!plan_layer_resident(p, layer))
            streamed += (double)s->w->layer_bytes[layer];
    double all = max_d((double)(work->prompt_tokens + work->forced_max), 1);
    if (streamed == 0 || work->scores) // nothing to hide behind, or nothing else to do
        return (int)(all < PREFILL_MAX ? all : PREFILL_MAX);
    double read_s = rate(streamed, s->machine->nvme_read);
    double hidden = read_s * s->machine->matmul_flops / max_d((double)s->w->flops_per_token, 1);
    double even = rows * (double)work->prompt_tokens / max_d((double)work->output_tokens, 1);
    const double tries[] = {PREFILL_LEAST, even * 1.05 + 1, hidden - rows, PREFILL_LEAST * 4.0};
    int best = 0;
    double best_s = 0;
    for (int i = 0; i < (int)(sizeof tries / sizeof tries[0]); i++) {
        struct plan q = *p;
        double tokens = max_d(tries[i], PREFILL_LEAST);
        tokens = tokens < PREFILL_MAX ? tokens : PREFILL_MAX;
        q.prefill_tokens = (int)(tokens < all ? tokens : all);
        struct plan_time t;
        plan_cost(&q, s->w, work, s->shape, s->costs, s->machine, &t);
        if (i == 0 || t.job_s < best_s * 0.99) {
            best = q.prefill_tokens;
            best_s = t.job_s;
        }
    }
    return best;
}

/* As the user fixed it, by count or share of n; -1: free. */
static int wished(const struct search *s, int count, enum plan_percent kind, int64_t n)
{
    double percent = s->wish->percent[kind];
    if (count >= 0)
        return (int)min64(count, n);
    return percent >= 0 ? (int)((double)n * percent / 100 + 0.5) : -1;
}

static int wished_resident(const struct search *s)
{
    return wished(s, s->wish->resident, WEIGHTS_NEAR, s->w->n_layers - 1);
}

/* Room that is left takes in what else would come from farther away: layers, then KV. */
static void grow_homes(struct search *s, struct plan *p)
{
    int64_t extents = (int64_t)s->w->n_decoder * p->batches;
    if (!s->wish->device)
        return;
    grow(s, p, offsetof(struct plan, weights_ram),
         wished(s, s->wish->weights_ram, WEIGHTS_RAM, s->w->n_layers - 1),
         s->w->n_layers - 1 - p->resident);
    if (p->resident == s->w->n_layers - 1)
        grow(s, p, offsetof(struct plan, kv_near), wished(s, s->wish->kv_near, KV_NEAR, extents),
             extents - p->kv_ram);
}

static void consider(struct search *s, struct plan p)
{
    int n = s->w->n_layers - 1;
    int wish = wished_resident(s), most = wish < 0 ? n : wish, least = p.resident;
    p.prefill_tokens = choose_prefill(s, &p);
    int fit = fits(s, &p);
    while (!fit && s->wish->prefill_tokens <= 0 && p.prefill_tokens > 32) {
        p.prefill_tokens /= 2; // a pass may admit less: slower, smaller
        p.pages_batch = 0;
        fit = fits(s, &p);
    }
    if (!fit)
        return;
    while (least < most) { // bytes grow with resident layers, but for frames: search from both ends
        int mid = (least + most + 1) / 2;
        struct plan q = p;
        q.pages_batch = 0;
        q.resident = mid;
        int prefill = choose_prefill(s, &q); // less is streamed, fewer tokens hide behind it
        if (prefill < q.prefill_tokens || mid == n)
            q.prefill_tokens = prefill;
        if (fits(s, &q)) {
            least = mid;
            p = q;
        } else {
            most = mid - 1;
        }
    }
    grow_homes(s, &p);
    if (p.resident == (wish < 0 ? n : wish)) // tiles of those that there is room for
        grow(s, &p, offsetof(struct plan, decoded), -1,
             s->wish->decoded >= 0 ? min64(s->wish->decoded, p.resident) : p.resident);
    struct plan_time t;
    plan_cost(&p, s->w, s->work, s->shape, s->costs, s->machine, &t);
    if (!s->found || t.job_s < s->best_s * 0.999) {
        s->best = p;
        s->best_s = t.job_s;
        s->found = 1;
    }
}

/* Counts of what lives near and in RAM: as wished, else all on one tier. */
static void spread(enum tier_kind beside, enum tier_kind tier, int near_wish, int ram_wish,
                   int *near, int *ram)
{
    *near = near_wish >= 0 ? near_wish : tier == beside ? PLAN_ALL : 0;
    *ram = ram_wish >= 0 ? ram_wish : tier == TIER_RAM ? PLAN_ALL : 0;
}

static struct plan candidate(const struct search *s, int batch, int batches, enum tier_kind kv,
                             enum tier_kind hidden)
{
    const struct plan_wish *wish = s->wish;
    struct plan p = {
        .batch = batch, .batches = batches, .device = wish->device, .attn_cpu = wish->attn_cpu};
    int64_t extents = (int64_t)s->w->n_decoder * batches;
    spread(plan_kv_near(&p), kv, wished(s, wish->kv_near, KV_NEAR, extents),
           wished(s, wish->kv_ram, KV_RAM, extents), &p.kv_near, &p.kv_ram);
    spread(plan_near(&p), hidden, wished(s, wish->hidden_near, HIDDEN_NEAR, batches),
           wished(s, wish->hidden_ram, HIDDEN_RAM, batches), &p.hidden_near, &p.hidden_ram);
    int layers_ram = wished(s, wish->weights_ram, WEIGHTS_RAM, s->w->n_layers - 1);
    p.weights_ram = layers_ram < 0 ? 0 : layers_ram;
    p.window = DEVICE_WINDOW;
    p.layers = s->w->n_layers;
    p.codec = s->codec;
    p.no_sharing = s->wish->no_sharing > 0;
    p.decoder = s->w->n_decoder;
    p.tile_tokens = PLAN_TILE_TOKENS;
    p.resident = wished_resident(s) < 0 ? 0 : wished_resident(s);
    int held = p.device ? p.window - 1 : 0; // steps that are queued have their layer already
    p.ahead_weights = wish->ahead_weights >= 0 ? wish->ahead_weights
                                               : max_int(batches * (1 + p.attn_cpu) - held, 1);
    int moves = p.kv_near < extents || p.hidden_near < batches;
    p.ahead_state = wish->ahead_state >= 0 ? wish->ahead_state : moves;
    return p;
}

/* The most rows of a batch for which the leanest plan of this kind fits; 0: not even one. */
static int most_rows(struct search *s, int most, int batches, enum tier_kind kv,
                     enum tier_kind hidden)
{
    int least = 0;
    while (least < most) {
        int mid = (least + most + 1) / 2;
        struct plan p = candidate(s, mid, batches, kv, hidden);
        p.prefill_tokens = choose_prefill(s, &p);
        if (fits(s, &p))
            least = mid;
        else
            most = mid - 1;
    }
    return least;
}

static void consider_rows(struct search *s, int batches, int64_t each, enum tier_kind kv,
                          enum tier_kind hidden)
{
    if (s->wish->batch > 0)
        each = s->wish->batch;
    if (each > PLAN_BATCH_MAX)
        each = PLAN_BATCH_MAX;
    if (each * batches > PLAN_ROWS_MAX)
        each = PLAN_ROWS_MAX / batches;
    int64_t most = s->wish->batch > 0 ? each : most_rows(s, (int)each, batches, kv, hidden);
    for (int64_t batch = s->wish->batch > 0 ? each : 1;; batch *= 2) {
        struct plan p = candidate(s, (int)(batch < most ? batch : most), batches, kv, hidden);
        if (p.batch < 1)
            p.batch = 1; // fails, and says by how much
        consider(s, p);
        if (s->wish->ahead_weights < 0 && !s->found) {
            p.ahead_weights = 0; // one frame less, no overlap: the last resort of small RAM
            consider(s, p);
        }
        if (batch >= most)
            break;
    }
}

static void consider_homes(struct search *s, int batches, int64_t each)
{
    const struct plan_wish *wish = s->wish;
    enum tier_kind first = wish->device ? TIER_DEVICE : TIER_RAM;
    enum tier_kind first_kv = wish->attn_cpu ? TIER_RAM : first;
    int kv_wished = wish->kv_near >= 0 || wish->percent[KV_NEAR] >= 0;
    int hidden_wished = wish->hidden_near >= 0 || wish->percent[HIDDEN_NEAR] >= 0;
    for (enum tier_kind hidden = first; hidden <= TIER_NVME; hidden++)
        for (enum tier_kind kv = first_kv; kv <= TIER_NVME; kv++)
            if ((!kv_wished || kv == first_kv) && (!hidden_wished || hidden == first))
                consider_rows(s, batches, each, kv, hidden);
}

/* Every candidate of one codec. */
static void search_codec(struct search *s, int codec)
{
    const struct plan_wish *wish = s->wish;
    int64_t rows_max = s->work->n_rows < 1 ? 1 : s->work->n_rows;
    s->codec = codec;
    s->least_ram = -1;
    static const int batch_counts[] = {1, 2, 3, 4, 8};
    for (int k = 0; k < (int)(sizeof batch_counts / sizeof batch_counts[0]); k++) {
        int batches = wish->batches > 0 ? wish->batches : batch_counts[k];
        if (wish->batches <= 0 && batches > 1 && batches > rows_max)
            break;
        consider_homes(s, batches, (rows_max + batches - 1) / batches);
        if (wish->batches > 0)
            break;
    }
}

int plan_search(const struct plan_wish *wish, const struct weights_info *w, const struct work *work,
                const struct shape *shape, const struct evict *evict,
                const struct plan_costs *costs, const struct machine *machine,
                const struct budget *budget, struct plan *plan, char *why, int why_cap)
{
    struct search s = {wish, w, work, shape, evict, costs, machine, budget, .least_ram = -1};
    search_codec(&s, wish->codec == PLAN_CODEC_ZSTD ? PLAN_CODEC_ZSTD : PLAN_CODEC_NONE);
    /* A shared disk may turn out faster than its probe: decoding has to keep ahead of it. */
    if (s.found && wish->codec < 0 && costs->codec_share > 0 &&
        machine->nvme_read * CODEC_MARGIN < costs->codec_rate) {
        struct search with = {wish, w, work, shape, evict, costs, machine, budget, .least_ram = -1};
        search_codec(&with, PLAN_CODEC_ZSTD);
        if (with.found && with.best.codec != PLAN_CODEC_NONE &&
            with.best_s + costs->codec_make_s < s.best_s * CODEC_GAIN)
            s.best = with.best;
    }
    if (!s.found) {
        snprintf(why, (size_t)why_cap, "the smallest plan %s", s.why[0] ? s.why : "does not exist");
        return -1;
    }
    *plan = s.best;
    return 0;
}
