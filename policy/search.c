/* policy/search.c - see search.h: candidates, and how they are grown.
 *
 * Candidates are rows x batches x homes of KV and of hidden states. Each is grown into the
 * remaining room (layers, tiles, KV nearer to the ops) and estimated; search_climb.c continues from
 * the best. plan_check decides on every plan. */
#include "policy/search_impl.h"

#include "policy/rates.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define CODEC_MARGIN  2 // decoding must keep up with a disk this much faster than probed
#define DEVICE_WINDOW 3 // steps queued: one runs, one is next, one is being queued
#define FRAMES_MOST   4 // this many more layers may fit although one more does not

const int search_batches[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, SEARCH_BATCHES_MOST, 0};

/* budget < 0: no limit. */
static int64_t over(int64_t n_bytes, int64_t budget)
{
    return budget < 0 ? 0 : max_i64(n_bytes - budget, 0);
}

static int fits(struct search *s, struct plan *p)
{
    struct plan_bytes bytes;
    char why[256];
    plan_derive(p, s->set->weights, s->set->work);
    int rc = plan_check(s->set, p, s->budget, &bytes, why, sizeof why);
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

/* Raises a field of the plan as far towards `most` as fits, unless the user fixed it. */
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
            return; // plan_derive lowered it: no more exist
        least = mid;
    }
}

static double estimate(struct search *s, const struct plan *p, struct plan_time *t)
{
    plan_estimate(s->set, p, s->memory, t);
    return t->job_s;
}

/* Tokens to try: few, one prompt, two prompts, as many as keep the rows evenly full, and all that
 * enter at once. The output never depends on them. */
int search_prefill(struct search *s, const struct plan *p)
{
    const struct work *work = s->set->work;
    double n = max_d((double)work->n_rows, 1), prompt = (double)work->prompt_tokens / n;
    double rows = min_d((double)p->batch * p->batches, n);
    double most = p->device ? PREFILL_DEVICE : PREFILL_MAX;
    double all = max_d((double)(work->prompt_tokens + work->forced_max), 1);
    double even = rows * (double)work->prompt_tokens / max_d((double)work->output_tokens, 1);
    const double tries[] = {PREFILL_LEAST,        prompt * 1.01 + 1,   2 * prompt + 1,
                            even * 1.05 + prompt, PREFILL_LEAST * 4.0, rows * prompt};
    int best = 0;
    double best_s = 0;
    if (s->wish->prefill_tokens > 0)
        return s->wish->prefill_tokens;
    if (work->scores) // scoring does nothing else
        return (int)min_d(all, most);
    for (int i = 0; i < (int)(sizeof tries / sizeof tries[0]); i++) {
        struct plan q = *p;
        struct plan_time t;
        q.prefill_tokens = (int)min_d(min_d(max_d(tries[i], PREFILL_LEAST), most), all);
        plan_derive(&q, s->set->weights, work);
        if (estimate(s, &q, &t) < best_s * 0.99 || i == 0) {
            best = q.prefill_tokens;
            best_s = t.job_s;
        }
    }
    return best;
}

int search_wished(const struct search *s, int count, enum plan_percent kind, int64_t n)
{
    double percent = s->wish->percent[kind];
    if (count >= 0)
        return (int)min_i64(count, n);
    return percent >= 0 ? (int)((double)n * percent / 100 + 0.49) : -1; // rounds down half of one
}

static int wished_resident(const struct search *s)
{
    return search_wished(s, s->wish->resident, WEIGHTS_NEAR, s->set->weights->n_layers - 1);
}

/* Fills the remaining room with data that would come from farther away, layers before KV: every
 * pass moves all of a layer, but of KV only the used part. */
static void grow_homes(struct search *s, struct plan *p)
{
    const struct plan_wish *wish = s->wish;
    int layers = s->set->weights->n_layers - 1, extents = s->set->weights->n_decoder * p->batches;
    int kv_ram = search_wished(s, wish->kv_ram, KV_RAM, extents);
    if (!wish->device)
        return;
    grow(s, p, offsetof(struct plan, kv_near), search_wished(s, wish->kv_near, KV_NEAR, extents),
         extents - (kv_ram < 0 ? 0 : kv_ram));
    grow(s, p, offsetof(struct plan, weights_ram),
         search_wished(s, wish->weights_ram, WEIGHTS_RAM, layers), layers - p->resident);
    grow(s, p, offsetof(struct plan, kv_ram), kv_ram, extents - p->kv_near);
}

int search_with_resident(struct search *s, struct plan *p, int resident, enum tiles tiles)
{
    struct plan q = *p;
    q.pages_batch = 0;
    q.resident = resident;
    if (tiles == TILES_ALL)
        q.decoded = s->wish->decoded >= 0 ? s->wish->decoded : resident;
    if (!fits(s, &q))
        return 0;
    *p = q;
    return 1;
}

/* The smallest plan: usually without resident layers, but a model of few layers may need less room
 * for all layers than for their frames. */
static int build_least(struct search *s, struct plan *p, int most, enum tiles tiles)
{
    if (search_with_resident(s, p, p->resident, tiles))
        return 1;
    for (int less = 0; less < 3 && wished_resident(s) < 0 && most - less > p->resident; less++)
        if (search_with_resident(s, p, most - less, tiles))
            return 1;
    return 0;
}

/* Fills the remaining room with layers, then tiles, then KV. 0: the smallest plan does not fit. */
static int build(struct search *s, const struct seed *seed, struct plan *p)
{
    int n = s->set->weights->n_layers - 1, wish = wished_resident(s);
    int most = wish < 0 ? (int)min_i64(seed->resident_most, n) : wish;
    *p = seed->plan;
    if (!build_least(s, p, most, seed->tiles))
        return 0;
    int least = p->resident, all = most;
    while (least < most) {
        int mid = (least + most + 1) / 2;
        if (search_with_resident(s, p, mid, seed->tiles))
            least = mid;
        else
            most = mid - 1;
    }
    for (int i = 2; i <= FRAMES_MOST && least + i <= all; i++) // may need a frame less
        search_with_resident(s, p, least + i, seed->tiles);
    if (seed->tiles != TILES_NONE || s->set->weights->must_decode || s->wish->decoded >= 0)
        grow(s, p, offsetof(struct plan, decoded), -1,
             s->wish->decoded >= 0 ? min_i64(s->wish->decoded, p->resident) : p->resident);
    grow_homes(s, p);
    int extents = s->set->weights->n_decoder * p->batches;
    if (s->wish->ahead_state < 0 && p->kv_near == extents && p->hidden_near == p->batches) {
        p->ahead_state = 0; // nothing to look ahead for
        plan_derive(p, s->set->weights, s->set->work);
    }
    return 1;
}

/* Inserts r among the best by estimate. */
static void rank(struct search *s, const struct ranked *r)
{
    int i = s->n_estimated;
    if (i == ESTIMATED && s->estimated[i - 1].s <= r->s)
        return;
    i = i < ESTIMATED ? s->n_estimated++ : ESTIMATED - 1;
    for (; i > 0 && s->estimated[i - 1].s > r->s; i--)
        s->estimated[i] = s->estimated[i - 1];
    s->estimated[i] = *r;
}

/* With fewer prompt tokens per pass a plan is smaller and slower. */
int search_build(struct search *s, struct seed *seed, struct plan *p)
{
    int fits = 0, too_many = seed->plan.prefill_tokens;
    if (build(s, seed, p))
        return 1;
    while (s->wish->prefill_tokens <= 0 && too_many > PREFILL_LEAST && too_many - fits > fits / 8) {
        int mid = fits > 0 ? (fits + too_many) / 2 : (int)max_i64(too_many / 2, PREFILL_LEAST);
        *p = seed->plan;
        p->prefill_tokens = mid;
        *(build_least(s, p, s->set->weights->n_layers - 1, TILES_NONE) ? &fits : &too_many) = mid;
    }
    seed->plan.prefill_tokens = fits;
    return fits > 0 && build(s, seed, p);
}

static void consider(struct search *s, struct plan p)
{
    struct ranked r = {.seed = {.plan = p, .resident_most = PLAN_ALL, .tiles = TILES_AFTER}};
    struct plan_time t;
    r.seed.plan.prefill_tokens = search_prefill(s, &p);
    if (!search_build(s, &r.seed, &r.plan))
        return;
    r.s = estimate(s, &r.plan, &t);
    rank(s, &r);
}

/* ---- candidates ---- */

/* Counts near the ops and in RAM: as wished, else all on one tier. */
static void spread(enum tier_kind beside, enum tier_kind tier, int near_wish, int ram_wish,
                   int *near, int *ram)
{
    *near = near_wish >= 0 ? near_wish : tier == beside ? PLAN_ALL : 0;
    *ram = ram_wish >= 0 ? ram_wish : tier == TIER_RAM ? PLAN_ALL : 0;
}

struct plan search_candidate(const struct search *s, int batch, int batches, struct homes homes)
{
    const struct plan_wish *wish = s->wish;
    struct plan p = {.batch = batch,
                     .batches = batches,
                     .groups = wish->groups,
                     .device = wish->device,
                     .attn_cpu = wish->attn_cpu};
    int64_t extents = (int64_t)s->set->weights->n_decoder * batches;
    spread(plan_kv_near(&p), homes.kv, search_wished(s, wish->kv_near, KV_NEAR, extents),
           search_wished(s, wish->kv_ram, KV_RAM, extents), &p.kv_near, &p.kv_ram);
    spread(plan_near(&p), homes.hidden, search_wished(s, wish->hidden_near, HIDDEN_NEAR, batches),
           search_wished(s, wish->hidden_ram, HIDDEN_RAM, batches), &p.hidden_near, &p.hidden_ram);
    int layers_ram =
        search_wished(s, wish->weights_ram, WEIGHTS_RAM, s->set->weights->n_layers - 1);
    p.weights_ram = layers_ram >= 0 ? layers_ram : homes.layers_ram ? PLAN_ALL : 0;
    p.window = DEVICE_WINDOW;
    p.layers = s->set->weights->n_layers;
    p.codec = s->codec;
    p.no_sharing = s->wish->no_sharing > 0;
    p.decoder = s->set->weights->n_decoder;
    p.tile_tokens = s->tile_tokens;
    p.resident = wished_resident(s) < 0 ? 0 : wished_resident(s);
    p.ahead_weights = wish->ahead_weights >= 0 ? wish->ahead_weights : search_ahead(&p);
    int moves = p.kv_near < extents || p.hidden_near < batches;
    p.ahead_state = wish->ahead_state >= 0 ? wish->ahead_state : moves;
    return p;
}

/* The most rows per batch for which the smallest such plan fits; 0: not even one. */
static int most_rows(struct search *s, int most, int batches, struct homes homes)
{
    int least = 0;
    while (least < most) {
        int mid = (least + most + 1) / 2;
        struct plan p = search_candidate(s, mid, batches, homes);
        p.prefill_tokens = search_prefill(s, &p);
        if (build_least(s, &p, s->set->weights->n_layers - 1, TILES_NONE))
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
    each = min_i64(min_i64(each, PLAN_BATCH_MAX), PLAN_ROWS_MAX / batches);
    int64_t most = wish->batch > 0 ? each : most_rows(s, (int)each, batches, homes);
    for (int64_t batch = wish->batch > 0 ? each : 1;; batch *= 2) {
        struct plan p = search_candidate(s, (int)min_i64(batch, most), batches, homes);
        if (p.batch < 1)
            p.batch = 1; // fails, and the message says by how much
        consider(s, p);
        if (wish->ahead_weights < 0 && (most < each || wish->batch > 0)) {
            p.ahead_weights = 0; // one frame less and no overlap: the last resort of small memory
            consider(s, p);
        }
        if (batch >= most)
            break;
    }
    if (!wish->device || wish->batch > 0)
        return;
    homes.layers_ram = 1; // more rows that push layers to NVMe cost more than they gain
    most = most_rows(s, (int)most, batches, homes);
    if (most > 0)
        consider(s, search_candidate(s, (int)most, batches, homes));
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

static void consider_all(struct search *s)
{
    const struct plan_wish *wish = s->wish;
    int64_t rows_max = s->set->work->n_rows < 1 ? 1 : s->set->work->n_rows;
    s->least_over = -1;
    for (const int *count = search_batches; *count > 0; count++) {
        int batches = wish->batches > 0 ? wish->batches : *count;
        if (wish->batches <= 0 && batches > 1 && batches > rows_max)
            break;
        consider_homes(s, batches, (rows_max + batches - 1) / batches);
        if (wish->batches > 0)
            break;
    }
}

int64_t plan_search_bytes(const struct plan_wish *wish, const struct work *work, int layers)
{
    int64_t batches = wish->batches > 0 ? wish->batches : SEARCH_BATCHES_MOST;
    int64_t batch = wish->batch > 0 ? wish->batch : ceil_div(max_i64(work->n_rows, 1), batches);
    int64_t rows =
        min_i64(max_i64(batch * batches, max_i64(work->n_rows, 1)), PLAN_ROWS_MAX) + batches;
    if (wish->batch > 0)
        rows = min_i64(batch * batches, PLAN_ROWS_MAX);
    /* An upper bound: the plan with all rows in many batches, and the most steps. */
    struct plan most = {.batch = (int)min_i64(ceil_div(rows, batches), PLAN_ROWS_MAX),
                        .batches = (int)min_i64(batches, PLAN_ROWS_MAX),
                        .layers = layers,
                        .decoder = layers,
                        .kinds = work->kinds,
                        .attn_cpu = 1};
    return plan_cost_bytes(&most) + TRIED_MOST * (int64_t)sizeof(struct ranked);
}

/* The best plan found from `from`, or from all candidates if NULL; NULL: none, see s->why. */
static const struct ranked *search_from(struct search *s, const struct ranked *from)
{
    s->n_estimated = s->n_tried = s->n_played = 0;
    s->work = 0;
    s->best = NULL;
    if (from)
        s->estimated[s->n_estimated++] = *from;
    else
        consider_all(s);
    return search_climb(s);
}

/* Searches with the tile size that suits the device's memory; if no plan fits, with the
 * smallest. */
static const struct ranked *search_tiles(struct search *s)
{
    s->tile_tokens =
        s->wish->device ? plan_tile_tokens(s->set, s->budget->device) : PLAN_TILE_TOKENS;
    const struct ranked *best = search_from(s, NULL);
    if (best || s->tile_tokens == PLAN_TILE_TOKENS)
        return best;
    s->tile_tokens = PLAN_TILE_TOKENS;
    return search_from(s, NULL);
}

/* The last resort for the rows that were asked for: KV and hidden states move only when their batch
 * is computed, so that they need one frame instead of two. */
static const struct ranked *search_all(struct search *s)
{
    const struct ranked *best = search_tiles(s);
    if (best || s->wish->ahead_state >= 0)
        return best;
    const struct plan_wish *asked = s->wish;
    struct plan_wish late = *asked;
    late.ahead_state = 0;
    s->wish = &late;
    best = search_tiles(s);
    s->wish = asked;
    return best;
}

/* search_all(), for rows that stop at random also with KV for more than the mean row: in a batch of
 * few rows many long ones may meet, and what is sent back is computed again. The play counts that.
 * 1 with the fastest plan in *best; 0: none. */
static int search_rooms(struct search *s, struct ranked *best)
{
    static const double rooms[] = {1, 1.25, 1.6};
    const struct setting *asked = s->set;
    const int n = work_may_stop(asked->work) ? (int)(sizeof rooms / sizeof *rooms) : 1;
    struct work work = *asked->work;
    struct setting set = *asked;
    int found = 0;
    set.work = &work;
    s->set = &set;
    for (int i = 0; i < n; i++) {
        work.slots_mean = (int64_t)(rooms[i] * (double)asked->work->slots_mean);
        const struct ranked *next = search_all(s);
        if (!next || (found && next->s >= best->s))
            continue;
        *best = *next;
        found = 1;
    }
    s->set = asked;
    return found;
}

/* A shared disk may be faster later than when it was probed; decoding must keep ahead. */
int plan_search_encodes(const struct setting *set, const struct plan_wish *wish)
{
    return wish->codec < 0 && set->costs->codec_share > 0 &&
           set->machine->nvme_read.value * CODEC_MARGIN < set->costs->codec_rate;
}

int plan_search(const struct setting *set, const struct plan_wish *wish,
                const struct budget *budget, void *memory, struct plan *plan,
                struct plan_ranking *ranking, char *why, int why_cap)
{
    struct search s = {.set = set,
                       .wish = wish,
                       .budget = budget,
                       .ranking = ranking,
                       .codec = wish->codec < 0 ? PLAN_CODEC_NONE : wish->codec};
    if (ranking)
        ranking->n = 0;
    s.tried = memory;
    s.memory = s.tried + TRIED_MOST;
    struct ranked best;
    if (!search_rooms(&s, &best)) {
        snprintf(why, (size_t)why_cap, "%s%s", s.why[0] ? "the smallest plan " : "no plan fits",
                 s.why);
        return -1;
    }
    *plan = best.plan;
    if (!plan_search_encodes(set, wish))
        return 0;
    struct ranked encoded = best;
    s.codec = encoded.seed.plan.codec = PLAN_CODEC_ZSTD;
    const struct ranked *with = search_from(&s, &encoded);
    if (with && with->plan.codec != PLAN_CODEC_NONE &&
        with->s + set->costs->codec_make_s < best.s * PLAN_CODEC_GAIN)
        *plan = with->plan;
    return 0;
}
