/* policy/search_climb.c - the second half of a search: see search_impl.h.
 *
 * From the fastest plan so far, all plans that differ in one thing, then in two, are grown, until
 * none is faster; then from others that are nearly as fast, and from the best plan of each number
 * of batches. Compared lanes are a lower bound of a plan's time, so most plans are never played.
 * The time that waits add is guessed from played plans with the same number of batches. A few plans
 * are played between climbs: with a busy link, lanes alone say little, and the search would stay on
 * one hill.
 * Of plans within 2 % of the fastest, the one that moves the fewest bytes wins: rates are not known
 * better, and other users of the disk slow it least. */
#include "policy/search_impl.h"

#include "policy/rates.h"

#include <math.h>
#include <string.h>

#define PLAYED_LEAST 12 // plans that are always played, step by step
#define PLAYED_CLIMB 8  // greatest number of plans played between two climbs
/* Work is counted in batches of passes, about three million per CPU second; at the limit the search
 * ends. A search may take about 0.1 % of its job's time. */
#define WORK_SECOND  3e3 // per second of the job
#define WORK_LEAST   2e6
#define WORK_MOST    1e7
#define BRIEF        0.2  // share of the limit for a brief search
#define PLAYED_STEPS 40   // work per played job: about this many passes are played step by step
#define BUILT_WORK   10   // work per layer to find a plan that fits
#define CLIMBED      1.1  // a plan slower than this times the fastest is not climbed from
#define ALIKE        1e-3 // times that differ by less are one plan in all but name
#define TIE          1.02 // a ratio within which rates cannot tell which plan is faster
#define MOVED        1.01 // a smaller ratio of moved bytes does not decide

/* ---- tried ---- */

/* 1 when two plans differ only in the limit on prompt tokens, which changes no pass. */
static int is_alike(const struct ranked *a, const struct ranked *b)
{
    struct plan p = a->plan;
    if (a->compared_s != b->compared_s || a->moved != b->moved)
        return 0;
    p.prefill_tokens = b->plan.prefill_tokens;
    p.step_tokens = b->plan.step_tokens;
    p.pass_tokens = b->plan.pass_tokens;
    p.head_positions = b->plan.head_positions;
    p.gather_windows = b->plan.gather_windows;
    return memcmp(&p, &b->plan, sizeof p) == 0;
}

/* Compares the lanes of a plan that was not tried yet, and adds it. */
static void try(struct search *s, struct seed seed)
{
    struct ranked *r = &s->tried[s->n_tried];
    struct plan_time t;
    if (s->n_tried == TRIED_MOST || !search_build(s, &seed, &r->plan))
        return;
    s->work += BUILT_WORK * (double)s->set->weights->n_layers;
    for (int i = 0; i < s->n_tried; i++)
        if (memcmp(&s->tried[i].plan, &r->plan, sizeof r->plan) == 0)
            return;
    if (plan_cost_quick(s->set, &r->plan, s->memory, &t) != 0)
        return;
    s->work += plan_cost_passes(&r->plan, s->set->work, 1, &t) * r->plan.batches;
    r->seed = seed;
    r->s = r->compared_s = t.job_s;
    r->played = r->climbed = 0;
    r->moved = 0;
    for (int i = 0; i < N_WORK_LANES; i++)
        r->moved += t.bytes[i];
    for (int i = 0; i < s->n_tried; i++)
        if (is_alike(&s->tried[i], r))
            return;
    s->n_tried++;
}

/* Per number of batches: the least ratio of played to compared time; 0: none was played. */
static void find_waits(const struct search *s, double waits[SEARCH_BATCHES_MOST + 1])
{
    memset(waits, 0, (SEARCH_BATCHES_MOST + 1) * sizeof *waits);
    for (int i = 0; i < s->n_tried; i++) {
        const struct ranked *r = &s->tried[i];
        double *least = &waits[min_i64(r->plan.batches, SEARCH_BATCHES_MOST)];
        if (r->played && r->compared_s > 0 && (*least == 0 || r->s < *least * r->compared_s))
            *least = r->s / r->compared_s;
    }
}

/* The unplayed plan that is probably fastest, if its lanes allow it to win; NULL: none. */
static struct ranked *promising(const struct search *s)
{
    struct ranked *first = NULL;
    double most_s = s->best ? s->best->s : INFINITY, first_s = INFINITY;
    double waits[SEARCH_BATCHES_MOST + 1];
    find_waits(s, waits);
    for (int i = 0; i < s->n_tried; i++) {
        struct ranked *r = &s->tried[i];
        double limit_s = s->best && r->moved < s->best->moved ? most_s * TIE : most_s;
        double times = waits[min_i64(r->plan.batches, SEARCH_BATCHES_MOST)];
        double likely_s = r->s * (times > 0 ? times : 1);
        if (r->played || r->s >= limit_s || likely_s >= first_s)
            continue;
        first = r;
        first_s = likely_s;
    }
    return first;
}

/* Tries more look-ahead for a plan whose lanes are fast enough but do not overlap. */
static void look_further(struct search *s, const struct seed *seed)
{
    int base = search_ahead(&seed->plan);
    for (int k = 2; k <= 8 && s->wish->ahead_weights < 0; k *= 2) {
        struct seed other = *seed;
        other.plan.ahead_weights = k * base;
        if (seed->plan.ahead_weights <= base)
            try(s, other);
    }
}

static int is_over(const struct search *s)
{
    double most = s->best ? s->best->s * WORK_SECOND : WORK_MOST;
    double share = s->wish->brief ? BRIEF : 1;
    return s->work > share * fmin(fmax(most, WORK_LEAST), WORK_MOST);
}

/* Plays plans that may be the fastest, the most probable first. */
static void play_promising(struct search *s, int most)
{
    for (struct ranked *r; most > 0 && (r = promising(s)); most--) {
        struct plan_time t;
        if (s->n_played >= PLAYED_LEAST && is_over(s))
            return;
        r->played = 1;
        if (plan_cost(s->set, &r->plan, s->memory, &t) != 0) {
            r->s = INFINITY;
            continue;
        }
        struct order order = plan_order(&r->plan);
        r->s = t.job_s;
        s->n_played++;
        s->work += plan_cost_passes(&r->plan, s->set->work, 0, &t) * r->plan.batches +
                   PLAYED_STEPS * (double)order_pass_steps(&order);
        if (!s->best || r->s < s->best->s)
            s->best = r;
        else if (r->compared_s < s->best->s)
            look_further(s, &r->seed);
    }
}

/* ---- the climb ---- */

/* Tries another limit on prompt tokens. */
static void try_prefill(struct search *s, struct seed seed, double prefill)
{
    double most = seed.plan.device ? PREFILL_DEVICE : PREFILL_MAX;
    double all = (double)(s->set->work->prompt_tokens + s->set->work->forced_max);
    if (s->wish->prefill_tokens <= 0)
        seed.plan.prefill_tokens =
            (int)min_d(max_d(prefill, PREFILL_LEAST), max_d(min_d(most, all), 1));
    try(s, seed);
}

/* Tries another number of rows per batch, with the old limit on prompt tokens and an estimated
 * one. */
static void try_rows(struct search *s, struct seed seed, int64_t batch, int wide)
{
    int64_t most = min_i64(PLAN_BATCH_MAX, PLAN_ROWS_MAX / seed.plan.batches);
    int64_t all = ceil_div(max_i64(s->set->work->n_rows, 1), seed.plan.batches);
    seed.plan.batch = (int)max_i64(min_i64(min_i64(batch, most), all), 1);
    try(s, seed);
    if (wide) {
        try_prefill(s, seed, seed.plan.prefill_tokens / 2.0);
        try_prefill(s, seed, PREFILL_LEAST);
    }
    try_prefill(s, seed, search_prefill(s, &seed.plan));
}

static void around_rows(struct search *s, const struct seed *seed, int wide)
{
    static const double times[] = {0.25, 0.5, 0.75, 0.875, 1.125, 1.25, 1.5, 2, 4};
    int64_t n = max_i64(s->set->work->n_rows, 1), batches = seed->plan.batches;
    int64_t now = seed->plan.batch * batches, waves = ceil_div(n, now);
    for (int i = 0; i < (int)(sizeof times / sizeof *times); i++) {
        int64_t of = max_i64(ceil_div(n, max_i64((int64_t)((double)now * times[i]), 1)), 1);
        try_rows(s, *seed, ceil_div(ceil_div(n, of), batches), wide); // waves of equal size
        try_rows(s, *seed, (int64_t)((double)seed->plan.batch * times[i]), wide);
    }
    for (int64_t of = max_i64(waves - 3, 1); of <= waves + 3; of++)
        try_rows(s, *seed, ceil_div(ceil_div(n, of), batches), wide);
}

/* Recomputes shares that the user fixed for another number of batches. */
static void keep_shares(const struct search *s, struct plan *p)
{
    const struct plan_wish *w = s->wish;
    int64_t extents = (int64_t)s->set->weights->n_decoder * p->batches;
    int *fields[] = {&p->kv_near, &p->kv_ram, &p->hidden_near, &p->hidden_ram};
    const int wishes[] = {w->kv_near, w->kv_ram, w->hidden_near, w->hidden_ram};
    for (int i = 0; i < 4; i++) {
        int n = search_wished(s, wishes[i], (enum plan_percent)(KV_NEAR + i),
                              i < 2 ? extents : p->batches);
        *fields[i] = n >= 0 ? n : *fields[i];
    }
}

/* Tries the same rows in more or fewer batches with the same look-ahead; `wide`: also half, twice
 * ... the rows, and no look-ahead. */
static void around_batches(struct search *s, const struct seed *seed, int wide)
{
    int64_t n = max_i64(s->set->work->n_rows, 1), batches = seed->plan.batches;
    int64_t now = seed->plan.batch * batches, ahead = seed->plan.ahead_weights;
    for (int i = 0; search_batches[i] > 0 && search_batches[i] <= n; i++)
        for (int k = wide ? 0 : 1; k < (wide ? 5 : 2); k++) {
            int64_t rows = min_i64(k < 4 ? max_i64((now << k) / 2, 1) : n, n);
            struct seed other = *seed;
            other.plan.batches = search_batches[i];
            keep_shares(s, &other.plan);
            if (s->wish->ahead_weights < 0 && ahead > 0) // as many layers
                other.plan.ahead_weights = (int)max_i64(ahead * search_batches[i] / batches, 1);
            try_rows(s, other, ceil_div(rows, search_batches[i]), wide);
            if (s->wish->ahead_weights >= 0 || !wide || ahead == 0)
                continue;
            other.plan.ahead_weights = 0;
            try_rows(s, other, ceil_div(rows, search_batches[i]), wide);
        }
}

static void around_ahead(struct search *s, const struct seed *seed)
{
    const struct plan_wish *wish = s->wish;
    int base = search_ahead(&seed->plan);
    const int weights[] = {0, 1, base, 2 * base, 4 * base, 8 * base, seed->plan.ahead_weights};
    for (int i = 0; i < 7; i++)
        for (int state = 0; state <= 4; state = state > 0 ? 2 * state : 1) {
            struct seed other = *seed;
            if (wish->ahead_weights < 0)
                other.plan.ahead_weights = weights[i];
            if (wish->ahead_state < 0)
                other.plan.ahead_state = state;
            try(s, other);
        }
}

/* Tries fewer resident layers, which make room for other data. */
static void around_layers(struct search *s, const struct ranked *r)
{
    int n = s->set->weights->n_layers - 1, now = r->plan.resident;
    const int most[] = {n, now, now - 1, now - 2, now * 3 / 4, now / 2, 0};
    int base = search_ahead(&r->seed.plan);
    for (int i = 0; i < 7 && s->wish->resident < 0; i++)
        for (int tiles = TILES_NONE; tiles <= TILES_ALL; tiles++)
            for (int ahead = 1; ahead <= 4; ahead *= 2) {
                struct seed other = r->seed;
                other.resident_most = (int)max_i64(most[i], 0);
                other.tiles = (enum tiles)tiles;
                if (s->wish->ahead_weights < 0 && ahead > 1)
                    other.plan.ahead_weights = base * ahead;
                try(s, other);
            }
}

/* Tries numbers of resident layers, each with the most rows that fit. */
static void around_layers_and_rows(struct search *s, const struct ranked *r)
{
    int n = s->set->weights->n_layers - 1, now = r->plan.resident;
    const int layers[] = {n, n - 1, now + 2, now + 1, now - 1, now - 2, now / 2, 0};
    int64_t all = ceil_div(max_i64(s->set->work->n_rows, 1), r->seed.plan.batches);
    int64_t cap = min_i64(PLAN_BATCH_MAX, PLAN_ROWS_MAX / r->seed.plan.batches);
    for (int i = 0; i < 8; i++)
        for (int less = 1; less <= 64 && layers[i] >= 0 && layers[i] <= n; less *= 4) {
            struct seed seed = r->seed;
            int least = 0, most = (int)min_i64(all, cap);
            seed.resident_most = layers[i];
            if (s->wish->prefill_tokens <= 0)
                seed.plan.prefill_tokens =
                    (int)max_i64(seed.plan.prefill_tokens / less, PREFILL_LEAST);
            while (least < most) {
                struct plan p = seed.plan;
                p.batch = (least + most + 1) / 2;
                int mid = p.batch;
                if (search_with_resident(s, &p, layers[i], TILES_NONE))
                    least = mid;
                else
                    most = mid - 1;
            }
            seed.plan.batch = least;
            if (least > 0)
                try(s, seed);
        }
}

/* Tries KV, hidden states and layers on one tier, each and together. */
static void around_homes(struct search *s, const struct seed *seed)
{
    const struct plan_wish *wish = s->wish;
    enum tier_kind first = wish->device ? TIER_DEVICE : TIER_RAM;
    for (enum tier_kind hidden = first; hidden <= TIER_NVME; hidden++)
        for (enum tier_kind kv = first; kv <= TIER_NVME; kv++)
            for (int layers_ram = 0; layers_ram <= wish->device; layers_ram++) {
                struct seed other = *seed;
                const struct plan *p = &seed->plan;
                other.plan = search_candidate(s, p->batch, p->batches,
                                              (struct homes){kv, hidden, layers_ram});
                other.plan.prefill_tokens = p->prefill_tokens;
                other.plan.ahead_weights = p->ahead_weights;
                try(s, other);
            }
}

/* The fastest plan whose neighbours are not all tried; of equally fast plans, only one. */
static struct ranked *next_to_climb(struct search *s)
{
    struct ranked *first = NULL;
    for (int i = 0; i < s->n_tried; i++) {
        struct ranked *r = &s->tried[i];
        int alike = 0;
        if (!r->played || r->climbed == 2 || r->s > s->best->s * CLIMBED ||
            (first && r->s >= first->s))
            continue;
        for (int k = 0; k < s->n_tried && !alike; k++)
            alike = s->tried[k].climbed > r->climbed && fabs(s->tried[k].s - r->s) < ALIKE * r->s;
        if (!alike)
            first = r;
    }
    return first;
}

/* The fastest plan of a number of batches that no climb started from: it may be another hill. */
static struct ranked *next_hill(struct search *s)
{
    for (int i = 0; search_batches[i] > 0; i++) {
        struct ranked *first = NULL;
        int climbed = 0;
        for (int k = 0; k < s->n_tried; k++) {
            struct ranked *r = &s->tried[k];
            if (r->plan.batches != search_batches[i])
                continue;
            climbed |= r->climbed;
            if (!first || r->s < first->s)
                first = r;
        }
        if (first && !climbed && first->s < INFINITY)
            return first;
    }
    return NULL;
}

/* Tries plans that differ in one thing; on the second call for the same plan, in two. */
static void climb_from(struct search *s, struct ranked *from)
{
    const struct seed *seed = &from->seed;
    double prefill = from->plan.prefill_tokens;
    int wide = from->climbed++;
    if (!wide)
        for (double times = 0.5; times <= 2; times += 0.25)
            try_prefill(s, *seed, prefill * times);
    for (double tokens = PREFILL_LEAST; !wide && tokens < 2 * PREFILL_DEVICE; tokens *= 2)
        try_prefill(s, *seed, tokens);
    if (s->wish->batch <= 0)
        around_rows(s, seed, wide);
    if (s->wish->batches <= 0 && s->wish->batch <= 0)
        around_batches(s, seed, wide);
    if (!wide) {
        around_ahead(s, seed);
        around_layers(s, from);
        return;
    }
    if (s->wish->batch <= 0 && s->wish->resident < 0)
        around_layers_and_rows(s, from);
    around_homes(s, seed);
}

/* Adds a played plan to the ranking if there is room. */
static void remember(struct plan_ranking *to, const struct ranked *r)
{
    if (!to || to->cap == 0 || (to->n == to->cap && to->list[to->n - 1].job_s <= r->s))
        return;
    int i = to->n < to->cap ? to->n++ : to->cap - 1;
    for (; i > 0 && to->list[i - 1].job_s > r->s; i--)
        to->list[i] = to->list[i - 1];
    to->list[i] = (struct plan_choice){.plan = r->plan, .job_s = r->s, .moved = r->moved};
}

/* Of the plans within TIE of the fastest: those that move the least, and the fastest of these. */
static const struct ranked *settle(const struct search *s)
{
    const struct ranked *least = s->best;
    double moved = s->best->moved;
    for (int i = 0; i < s->n_tried; i++)
        if (s->tried[i].played && s->tried[i].s <= s->best->s * TIE)
            moved = min_d(moved, s->tried[i].moved);
    for (int i = 0; i < s->n_tried; i++) {
        const struct ranked *r = &s->tried[i];
        if (r->played)
            remember(s->ranking, r);
        if (r->played && r->s <= s->best->s * TIE && r->moved <= moved * MOVED &&
            (least->moved > moved * MOVED || r->s < least->s))
            least = r;
    }
    return least;
}

const struct ranked *search_climb(struct search *s)
{
    struct ranked *from;
    for (int i = 0; i < s->n_estimated; i++)
        try(s, s->estimated[i].seed);
    play_promising(s, PLAYED_LEAST);
    while (s->best && !is_over(s) && s->n_tried < TRIED_MOST) {
        if (!(from = next_to_climb(s)) && !(from = next_hill(s)))
            break;
        climb_from(s, from);
        play_promising(s, PLAYED_CLIMB);
    }
    play_promising(s, TRIED_MOST);
    return s->best ? settle(s) : NULL;
}
