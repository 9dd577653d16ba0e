/* policy/search.c - plan_search: the fastest plan that fits.
 *
 * Simple rules for now, over whole layers, batches and pages: candidates are powers of two of rows
 * and the most rows that fit, a few batch counts, both KV homes, both homes of hidden states; for
 * each the most resident layers that fit. plan_check has the last word on every candidate. */
#include "policy/int64.h"
#include "policy/layout.h"
#include "policy/rates.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define CODEC_GAIN     0.97  // of a job's time: what an encoded file must bring it down to
#define CODEC_MARGIN   2     // decoding keeps up with a disk this much faster than probed
#define PREFILL_MAX    2048  // tokens that a pass admits: more only lengthens it
#define PREFILL_DEVICE 16384 // on a device: what keeps the rows full is many
#define PREFILL_LEAST  32    // fewer starve the rows
#define DEVICE_WINDOW  3     // steps queued: one runs, one is next, one is being queued

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
    int64_t least_over; // bytes of memory that the candidate lacks which is nearest to fit
    int least_on_disk;  // 1: it keeps to the disk's budget
    char why[256];      // of that candidate
};

/* budget < 0: there is none. */
static int64_t over(int64_t n_bytes, int64_t budget)
{
    return budget < 0 ? 0 : max64(n_bytes - budget, 0);
}

static int fits(struct search *s, struct plan *p)
{
    struct plan_bytes bytes;
    struct layout layout;
    char why[256];
    plan_derive(p, s->w, s->work);
    int rc = plan_check(p, s->w, s->work, s->shape, s->evict, s->costs, s->budget, &layout, &bytes,
                        why, sizeof why);
    int64_t lacks = over(bytes.ram, s->budget->ram) + over(bytes.device, s->budget->device);
    int disk_fits = over(bytes.disk, s->budget->disk) == 0;
    int nearer = disk_fits && (!s->least_on_disk || lacks < s->least_over);
    if (rc != 0 && (s->least_over < 0 || nearer)) {
        s->least_over = lacks;
        s->least_on_disk = disk_fits;
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

/* Seconds of a pass in which bytes move that computing hides behind; in RAM those of weights. */
static double seconds_of_moves(const struct search *s, const struct plan *p)
{
    double streamed = 0;
    if (p->device) {
        struct plan q = *p;
        struct plan_time t;
        q.prefill_tokens = PREFILL_LEAST;
        plan_cost(&q, s->w, s->work, s->shape, s->costs, s->machine, &t);
        return max_d(t.read_s + t.write_s, max_d(t.h2d_s, t.d2h_s));
    }
    for (int layer = 1; layer < s->w->n_layers; layer++)
        if (!plan_layer_resident(p, layer))
            streamed += (double)s->w->layer_bytes[layer];
    return rate(streamed, s->machine->nvme_read.value);
}

/* Prompt tokens that a pass admits, the fastest by plan_cost of: as many as keep the rows full
 * evenly, as hide behind the streamed bytes, few, and as many as are worth it when nothing streams.
 * Bytes never depend on it. */
static int choose_prefill(const struct search *s, const struct plan *p)
{
    const struct work *work = s->work;
    if (s->wish->prefill_tokens > 0)
        return s->wish->prefill_tokens;
    double rows = (double)p->batch * p->batches;
    int most = p->device ? PREFILL_DEVICE : PREFILL_MAX;
    double all = max_d((double)(work->prompt_tokens + work->forced_max), 1);
    double moves_s = seconds_of_moves(s, p);
    if (moves_s == 0 || work->scores) // nothing to hide behind, or nothing else to do
        return (int)(all < most ? all : most);
    double flops = p->device ? s->machine->device_flops.value : s->machine->matmul_flops.value;
    double hidden = moves_s * flops / max_d((double)s->w->flops_per_token, 1);
    double even = rows * (double)work->prompt_tokens / max_d((double)work->output_tokens, 1);
    const double tries[] = {PREFILL_LEAST, even * 1.05 + 1, hidden - rows, PREFILL_LEAST * 4.0};
    int best = 0;
    double best_s = 0;
    for (int i = 0; i < (int)(sizeof tries / sizeof tries[0]); i++) {
        struct plan q = *p;
        double tokens = max_d(tries[i], PREFILL_LEAST);
        tokens = tokens < most ? tokens : most;
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
    return percent >= 0 ? (int)((double)n * percent / 100 + 0.49) : -1; // half of one is none
}

static int wished_resident(const struct search *s)
{
    return wished(s, s->wish->resident, WEIGHTS_NEAR, s->w->n_layers - 1);
}

/* Room that is left takes in what else would come from farther away, layers before KV: every pass
 * moves all of a layer, of KV only what stands in it. */
static void grow_homes(struct search *s, struct plan *p)
{
    const struct plan_wish *wish = s->wish;
    int layers = s->w->n_layers - 1, extents = s->w->n_decoder * p->batches;
    int kv_ram = wished(s, wish->kv_ram, KV_RAM, extents);
    if (!wish->device)
        return;
    grow(s, p, offsetof(struct plan, kv_near), wished(s, wish->kv_near, KV_NEAR, extents),
         extents - (kv_ram < 0 ? 0 : kv_ram));
    grow(s, p, offsetof(struct plan, weights_ram),
         wished(s, wish->weights_ram, WEIGHTS_RAM, layers), layers - p->resident);
    grow(s, p, offsetof(struct plan, kv_ram), kv_ram, extents - p->kv_near);
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
    if (p.resident == (wish < 0 ? n : wish) || s->w->must_decode) // tiles, if there is room
        grow(s, &p, offsetof(struct plan, decoded), -1,
             s->wish->decoded >= 0 ? min64(s->wish->decoded, p.resident) : p.resident);
    grow_homes(s, &p);
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

/* Where a candidate's bytes live before what is left is given away. */
struct homes {
    enum tier_kind kv, hidden;
    int layers_ram; // 1: no layer on NVMe
};

static struct plan candidate(const struct search *s, int batch, int batches, struct homes homes)
{
    const struct plan_wish *wish = s->wish;
    struct plan p = {
        .batch = batch, .batches = batches, .device = wish->device, .attn_cpu = wish->attn_cpu};
    int64_t extents = (int64_t)s->w->n_decoder * batches;
    spread(plan_kv_near(&p), homes.kv, wished(s, wish->kv_near, KV_NEAR, extents),
           wished(s, wish->kv_ram, KV_RAM, extents), &p.kv_near, &p.kv_ram);
    spread(plan_near(&p), homes.hidden, wished(s, wish->hidden_near, HIDDEN_NEAR, batches),
           wished(s, wish->hidden_ram, HIDDEN_RAM, batches), &p.hidden_near, &p.hidden_ram);
    int layers_ram = wished(s, wish->weights_ram, WEIGHTS_RAM, s->w->n_layers - 1);
    p.weights_ram = layers_ram >= 0 ? layers_ram : homes.layers_ram ? PLAN_ALL : 0;
    p.window = DEVICE_WINDOW;
    p.layers = s->w->n_layers;
    p.codec = s->codec;
    p.no_sharing = s->wish->no_sharing > 0;
    p.decoder = s->w->n_decoder;
    p.tile_tokens = PLAN_TILE_TOKENS;
    p.resident = wished_resident(s) < 0 ? 0 : wished_resident(s);
    int held = p.device ? p.window - 1 : 0; // steps that are queued have their layer already
    p.ahead_weights = wish->ahead_weights >= 0 ? wish->ahead_weights
                                               : (int)max64(batches * (1 + p.attn_cpu) - held, 1);
    int moves = p.kv_near < extents || p.hidden_near < batches;
    p.ahead_state = wish->ahead_state >= 0 ? wish->ahead_state : moves;
    return p;
}

/* The most rows of a batch for which the leanest plan of this kind fits; 0: not even one. */
static int most_rows(struct search *s, int most, int batches, struct homes homes)
{
    int least = 0;
    while (least < most) {
        int mid = (least + most + 1) / 2;
        struct plan p = candidate(s, mid, batches, homes);
        p.prefill_tokens = choose_prefill(s, &p);
        if (fits(s, &p))
            least = mid;
        else
            most = mid - 1;
    }
    return least;
}

static void consider_rows(struct search *s, int batches, int64_t each, struct homes homes)
{
    const struct plan_wish *wish = s->wish;
    if (wish->batch > 0)
        each = wish->batch;
    each = min64(min64(each, PLAN_BATCH_MAX), PLAN_ROWS_MAX / batches);
    int64_t most = wish->batch > 0 ? each : most_rows(s, (int)each, batches, homes);
    for (int64_t batch = wish->batch > 0 ? each : 1;; batch *= 2) {
        struct plan p = candidate(s, (int)min64(batch, most), batches, homes);
        if (p.batch < 1)
            p.batch = 1; // fails, and says by how much
        consider(s, p);
        if (wish->ahead_weights < 0 && !s->found) {
            p.ahead_weights = 0; // one frame less, no overlap: the last resort of small RAM
            consider(s, p);
        }
        if (batch >= most)
            break;
    }
    if (!wish->device || wish->batch > 0)
        return;
    homes.layers_ram = 1; // rows that send layers to NVMe cost more than they bring
    most = most_rows(s, (int)most, batches, homes);
    if (most > 0)
        consider(s, candidate(s, (int)most, batches, homes));
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
                consider_rows(s, batches, each, (struct homes){.kv = kv, .hidden = hidden});
}

/* Every candidate of one codec. */
static void search_codec(struct search *s, int codec)
{
    const struct plan_wish *wish = s->wish;
    int64_t rows_max = s->work->n_rows < 1 ? 1 : s->work->n_rows;
    s->codec = codec;
    s->least_over = -1;
    /* On a device frames of KV are large and many: more and smaller batches leave more of it. */
    static const int in_ram[] = {1, 2, 3, 4, 8, 0}, on_device[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 0};
    for (const int *count = wish->device ? on_device : in_ram; *count > 0; count++) {
        int batches = wish->batches > 0 ? wish->batches : *count;
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
    struct search s = {wish, w, work, shape, evict, costs, machine, budget, .least_over = -1};
    search_codec(&s, wish->codec == PLAN_CODEC_ZSTD ? PLAN_CODEC_ZSTD : PLAN_CODEC_NONE);
    /* A shared disk may turn out faster than its probe: decoding has to keep ahead of it. */
    if (s.found && wish->codec < 0 && costs->codec_share > 0 &&
        machine->nvme_read.value * CODEC_MARGIN < costs->codec_rate) {
        struct search with = {wish,  w,       work,   shape,           evict,
                              costs, machine, budget, .least_over = -1};
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
