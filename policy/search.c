/* policy/search.c - see search.h.
 *
 * Candidates are rows x batches x homes of KV and of hidden states; each is grown into what room is
 * left (layers, tiles, KV nearer to the ops) and estimated. The best of these are played, with the
 * prompt tokens that a pass admits around what was estimated, and from the fastest on with rows and
 * look-ahead around its own. Of plans within 2 % of each other the one that moves fewest bytes is
 * taken: rates are not known better, and neighbours on the disk cost it least. plan_check has the
 * last word on every candidate. */
#include "policy/search.h"

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
#define BATCHES_MOST   24    // that are tried
#define ESTIMATED      10    // best plans by estimate that are played
#define PLAYED_MOST    192   // plans that are played in all
#define SETTLED        12    // of these, step by step
#define TIE            1.02  // so near each other nobody knows which is faster

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

/* A candidate: what it began with, and what it was grown into. */
struct ranked {
    struct plan seed, plan;
    double s, moved; // the job, as estimated or played; bytes of all lanes
};

struct search {
    const struct setting *set;
    const struct plan_wish *wish;
    const struct budget *budget;
    void *memory; // of plan_cost
    int codec;    // of every candidate
    struct ranked estimated[ESTIMATED];
    int n_estimated;
    struct ranked *played; // [PLAYED_MOST]
    int n_played;
    struct plan_ranking *ranking; // NULL: nobody asks
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
    const struct setting *set = s->set;
    plan_derive(p, set->weights, set->work);
    int rc = plan_check(p, set->weights, set->work, set->shape, set->evict, set->costs, s->budget,
                        &layout, &bytes, why, sizeof why);
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

static double estimate(struct search *s, const struct plan *p, struct plan_time *t)
{
    plan_estimate(s->set, p, s->memory, t);
    return t->job_s;
}

/* Prompt tokens that a pass admits, by estimate: few, what one prompt takes and two, as many as
 * keep the rows full evenly, and all that enter at once. Bytes never depend on it. */
static int choose_prefill(struct search *s, const struct plan *p)
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
    if (work->scores) // nothing else to do
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
    return wished(s, s->wish->resident, WEIGHTS_NEAR, s->set->weights->n_layers - 1);
}

/* Room that is left takes in what else would come from farther away, layers before KV: every pass
 * moves all of a layer, of KV only what stands in it. */
static void grow_homes(struct search *s, struct plan *p)
{
    const struct plan_wish *wish = s->wish;
    int layers = s->set->weights->n_layers - 1, extents = s->set->weights->n_decoder * p->batches;
    int kv_ram = wished(s, wish->kv_ram, KV_RAM, extents);
    if (!wish->device)
        return;
    grow(s, p, offsetof(struct plan, kv_near), wished(s, wish->kv_near, KV_NEAR, extents),
         extents - (kv_ram < 0 ? 0 : kv_ram));
    grow(s, p, offsetof(struct plan, weights_ram),
         wished(s, wish->weights_ram, WEIGHTS_RAM, layers), layers - p->resident);
    grow(s, p, offsetof(struct plan, kv_ram), kv_ram, extents - p->kv_near);
}

/* What room is left takes layers in, then tiles, then KV. 0: the leanest of it does not fit. */
static int build(struct search *s, struct plan *p)
{
    int n = s->set->weights->n_layers - 1;
    int wish = wished_resident(s), most = wish < 0 ? n : wish, least = p->resident;
    if (!fits(s, p))
        return 0;
    while (least < most) { // bytes grow with resident layers, but for frames: search from both ends
        int mid = (least + most + 1) / 2;
        struct plan q = *p;
        q.pages_batch = 0;
        q.resident = mid;
        if (fits(s, &q)) {
            least = mid;
            *p = q;
        } else {
            most = mid - 1;
        }
    }
    if (p->resident == (wish < 0 ? n : wish) || s->set->weights->must_decode) // if there is room
        grow(s, p, offsetof(struct plan, decoded), -1,
             s->wish->decoded >= 0 ? min64(s->wish->decoded, p->resident) : p->resident);
    grow_homes(s, p);
    return 1;
}

/* Among the best by estimate, if it is. */
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

static void consider(struct search *s, struct plan p)
{
    struct ranked r = {.seed = p};
    struct plan_time t;
    p.prefill_tokens = choose_prefill(s, &p);
    r.plan = p;
    int built = build(s, &r.plan);
    while (!built && s->wish->prefill_tokens <= 0 && p.prefill_tokens > PREFILL_LEAST) {
        p.prefill_tokens /= 2; // a pass may admit less: slower, smaller
        r.plan = p;
        built = build(s, &r.plan);
    }
    if (!built)
        return;
    r.s = estimate(s, &r.plan, &t);
    rank(s, &r);
}

/* ---- played ---- */

/* Plays a plan that nobody played yet. */
static void play(struct search *s, const struct plan *seed, const struct plan *plan)
{
    struct plan_time t;
    for (int i = 0; i < s->n_played; i++)
        if (memcmp(&s->played[i].plan, plan, sizeof *plan) == 0)
            return;
    if (s->n_played == PLAYED_MOST || plan_cost_quick(s->set, plan, s->memory, &t) != 0)
        return;
    struct ranked *r = &s->played[s->n_played++];
    *r = (struct ranked){.seed = *seed, .plan = *plan, .s = t.job_s};
    for (int i = 0; i < N_PLAN_LANES; i++)
        r->moved += t.bytes[i];
}

/* A seed with other prompt tokens a pass; a whole plan where it fits. */
static void play_with(struct search *s, struct plan seed, double prefill)
{
    double most = seed.device ? PREFILL_DEVICE : PREFILL_MAX;
    struct plan p = seed;
    p.prefill_tokens = s->wish->prefill_tokens > 0
                           ? s->wish->prefill_tokens
                           : (int)min_d(max_d(prefill, PREFILL_LEAST), most);
    if (build(s, &p))
        play(s, &seed, &p);
}

static const struct ranked *fastest(const struct search *s)
{
    const struct ranked *best = NULL;
    for (int i = 0; i < s->n_played; i++)
        if (!best || s->played[i].s < best->s)
            best = &s->played[i];
    return best;
}

/* Rows and look-ahead around those of a plan. */
static void play_around(struct search *s, const struct ranked *r)
{
    const struct plan_wish *wish = s->wish;
    static const double rows[] = {0.5, 0.75, 0.875, 1.125, 1.25, 1.5, 2};
    const struct plan seed = r->seed;
    int64_t n = max64(s->set->work->n_rows, 1), now = (int64_t)seed.batch * seed.batches;
    double prefill = r->plan.prefill_tokens;
    for (int i = 0; i < 7 && wish->batch <= 0; i++) {
        struct plan p = seed;
        int64_t waves = max64(ceil_div64(n, max64((int64_t)((double)now * rows[i]), 1)), 1);
        int64_t even = ceil_div64(ceil_div64(n, waves), seed.batches); // waves of like size
        int64_t plain = min64((int64_t)((double)seed.batch * rows[i]), ceil_div64(n, seed.batches));
        p.batch = (int)max64(min64(min64(even, PLAN_BATCH_MAX), PLAN_ROWS_MAX / p.batches), 1);
        play_with(s, p, prefill);
        p.batch = (int)max64(min64(min64(plain, PLAN_BATCH_MAX), PLAN_ROWS_MAX / p.batches), 1);
        play_with(s, p, prefill);
    }
    for (int k = 2; k <= 4 && wish->ahead_weights < 0; k *= 2) {
        struct plan p = seed;
        p.ahead_weights = seed.ahead_weights * k;
        play_with(s, p, prefill);
    }
}

/* Among those that were settled, if there is room for it. */
static void remember(struct plan_ranking *to, const struct ranked *r)
{
    if (!to || to->cap == 0 || (to->n == to->cap && to->list[to->n - 1].job_s <= r->s))
        return;
    int i = to->n < to->cap ? to->n++ : to->cap - 1;
    for (; i > 0 && to->list[i - 1].job_s > r->s; i--)
        to->list[i] = to->list[i - 1];
    to->list[i] = (struct plan_choice){.plan = r->plan, .job_s = r->s, .moved = r->moved};
}

/* The fastest few, played step by step: of those as fast as the fastest the one that moves least,
 * then the first. */
static const struct ranked *settle(struct search *s)
{
    struct ranked *best[SETTLED] = {NULL};
    int n = 0;
    for (int i = 0; i < s->n_played; i++) {
        struct ranked *r = &s->played[i];
        int k = n;
        if (k == SETTLED && best[k - 1]->s <= r->s)
            continue;
        k = n < SETTLED ? n++ : SETTLED - 1;
        for (; k > 0 && best[k - 1]->s > r->s; k--)
            best[k] = best[k - 1];
        best[k] = r;
    }
    const struct ranked *fast = NULL, *least = NULL;
    for (int i = 0; i < n; i++) {
        struct plan_time t;
        if (plan_cost(s->set, &best[i]->plan, s->memory, &t) == 0)
            best[i]->s = t.job_s;
        remember(s->ranking, best[i]);
        fast = !fast || best[i]->s < fast->s ? best[i] : fast;
    }
    for (int i = 0; i < n; i++)
        if (best[i]->s <= fast->s * TIE && (!least || best[i]->moved < least->moved))
            least = best[i];
    return least;
}

static const struct ranked *choose(struct search *s)
{
    for (int i = 0; i < s->n_estimated; i++) {
        const struct ranked *r = &s->estimated[i];
        double prefill = r->plan.prefill_tokens;
        play(s, &r->seed, &r->plan);
        for (double times = 0.25; times <= 4; times *= 2)
            play_with(s, r->seed, prefill * times);
    }
    const struct ranked *best = fastest(s), *before = NULL;
    for (int turn = 0; best && best != before && turn < 3; turn++) {
        before = best;
        play_around(s, best);
        best = fastest(s);
        for (double times = 0.5; times <= 2; times *= 2)
            play_with(s, best->seed, best->plan.prefill_tokens * times);
        best = fastest(s);
    }
    return settle(s);
}

/* ---- candidates ---- */

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
    int64_t extents = (int64_t)s->set->weights->n_decoder * batches;
    spread(plan_kv_near(&p), homes.kv, wished(s, wish->kv_near, KV_NEAR, extents),
           wished(s, wish->kv_ram, KV_RAM, extents), &p.kv_near, &p.kv_ram);
    spread(plan_near(&p), homes.hidden, wished(s, wish->hidden_near, HIDDEN_NEAR, batches),
           wished(s, wish->hidden_ram, HIDDEN_RAM, batches), &p.hidden_near, &p.hidden_ram);
    int layers_ram = wished(s, wish->weights_ram, WEIGHTS_RAM, s->set->weights->n_layers - 1);
    p.weights_ram = layers_ram >= 0 ? layers_ram : homes.layers_ram ? PLAN_ALL : 0;
    p.window = DEVICE_WINDOW;
    p.layers = s->set->weights->n_layers;
    p.codec = s->codec;
    p.no_sharing = s->wish->no_sharing > 0;
    p.decoder = s->set->weights->n_decoder;
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
        if (wish->ahead_weights < 0 && s->n_estimated == 0) {
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
    int64_t rows_max = s->set->work->n_rows < 1 ? 1 : s->set->work->n_rows;
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

int64_t plan_search_bytes(const struct plan_wish *wish, const struct work *work, int layers)
{
    int64_t batches = wish->batches > 0 ? wish->batches : BATCHES_MOST;
    int64_t batch = wish->batch > 0 ? wish->batch : ceil_div64(max64(work->n_rows, 1), batches);
    int64_t rows = min64(max64(batch * batches, max64(work->n_rows, 1)), PLAN_ROWS_MAX) + batches;
    if (wish->batch > 0)
        rows = min64(batch * batches, PLAN_ROWS_MAX);
    /* Two plans bound it: all rows in many batches, steps of as many as there may be. */
    struct plan most = {.batch = (int)min64(ceil_div64(rows, batches), PLAN_ROWS_MAX),
                        .batches = (int)min64(batches, PLAN_ROWS_MAX),
                        .layers = layers,
                        .decoder = layers,
                        .attn_cpu = 1};
    return plan_cost_bytes(&most) + PLAYED_MOST * (int64_t)sizeof(struct ranked);
}

/* The best plan of one codec; NULL with s->why. */
static const struct ranked *search_all(struct search *s, int codec)
{
    s->n_estimated = s->n_played = 0;
    search_codec(s, codec);
    return choose(s);
}

int plan_search(const struct setting *set, const struct plan_wish *wish,
                const struct budget *budget, void *memory, struct plan *plan,
                struct plan_ranking *ranking, char *why, int why_cap)
{
    struct search s = {
        .set = set, .wish = wish, .budget = budget, .ranking = ranking, .least_over = -1};
    s.played = memory;
    s.memory = s.played + PLAYED_MOST;
    if (ranking)
        ranking->n = 0;
    const struct ranked *best =
        search_all(&s, wish->codec == PLAN_CODEC_ZSTD ? PLAN_CODEC_ZSTD : PLAN_CODEC_NONE);
    if (!best) {
        snprintf(why, (size_t)why_cap, "the smallest plan %s", s.why[0] ? s.why : "does not exist");
        return -1;
    }
    *plan = best->plan;
    double best_s = best->s;
    /* A shared disk may turn out faster than its probe: decoding has to keep ahead of it. */
    if (wish->codec >= 0 || set->costs->codec_share <= 0 ||
        set->machine->nvme_read.value * CODEC_MARGIN >= set->costs->codec_rate)
        return 0;
    const struct ranked *with = search_all(&s, PLAN_CODEC_ZSTD);
    if (with && with->plan.codec != PLAN_CODEC_NONE &&
        with->s + set->costs->codec_make_s < best_s * CODEC_GAIN)
        *plan = with->plan;
    return 0;
}
