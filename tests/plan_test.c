/* tests/plan_test.c - the proof that a plan fits, the search over budgets, and what eviction
 * fractions mean for one row. Numbers only: no engine here (tests/engine_test.c compares with it).
 */
#include "tests/plan_help.h"
#include "tests/sweep.h"

#define N_TRIALS sweep(32, 160)

/* ---- plan_check ---- */

/* Exactly the bytes it counts are enough, one less is not; the parts add up to the whole. */
static void test_check_bounds(void **state)
{
    (void)state;
    static const struct plan plans[] = {
        {.batch = 4,
         .batches = 3,
         .resident = 7,
         .kv_near = PLAN_ALL,
         .hidden_near = PLAN_ALL,
         .prefill_tokens = 64,
         .ahead_weights = 3},
        {.batch = 4,
         .batches = 4,
         .resident = 0,

         .prefill_tokens = 64,
         .ahead_weights = 4,
         .ahead_state = 1},
        {.batch = 100,
         .batches = 1,
         .resident = 20,
         .kv_near = PLAN_ALL,
         .hidden_near = PLAN_ALL,
         .prefill_tokens = 600},
    };
    for (int i = 0; i < (int)(sizeof plans / sizeof plans[0]); i++) {
        struct plan p = derived(plans[i]);
        struct plan_bytes b, again;
        char why[256];
        assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
        int64_t sum[N_TIERS] = {0};
        for (int k = 0; k < N_PLAN_ACCOUNTS; k++)
            for (int tier = 0; tier < N_TIERS; tier++)
                sum[tier] += b.by[k][tier];
        assert_true(sum[TIER_RAM] == b.ram && sum[TIER_NVME] == b.disk);
        assert_true(sum[TIER_DEVICE] == 0 && b.device == 0);
        assert_true(b.ram > 0);
        struct budget budget = {-1, b.ram, b.disk};
        assert_int_equal(check(&p, &budget, &again, why, sizeof why), 0);
        budget.ram--;
        assert_int_equal(check(&p, &budget, &again, why, sizeof why), -1);
        assert_non_null(strstr(why, "--mem-ram "));
        if (b.disk == 0)
            continue;
        budget = (struct budget){-1, b.ram, b.disk - 1};
        assert_int_equal(check(&p, &budget, &again, why, sizeof why), -1);
        assert_non_null(strstr(why, "--mem-disk "));
    }
}

/* Look-ahead that would read before the write, pools too small for a row: refused whatever the RAM.
 */
static void test_check_order_of_bytes(void **state)
{
    (void)state;
    struct plan p = derived((struct plan){.batch = 2,
                                          .batches = 4,

                                          .prefill_tokens = 64,
                                          .ahead_weights = 4,
                                          .ahead_state = 100000});
    struct plan_bytes b;
    char why[256];
    assert_int_equal(p.ahead_state, 4 * 21 - 2); // S - 2
    assert_int_equal(p.ahead_hidden, 4 - 2);     // D - 2, one part per layer
    assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
    struct plan bad = p;
    bad.ahead_state++;
    assert_int_equal(check(&bad, &NO_BUDGET, &b, why, sizeof why), -1);
    assert_non_null(strstr(why, "--ahead-state"));
    bad = p;
    bad.ahead_hidden++;
    assert_int_equal(check(&bad, &NO_BUDGET, &b, why, sizeof why), -1);
    bad = p;
    bad.pages_batch = (600 + 31) / 32 - 1;
    assert_int_equal(check(&bad, &NO_BUDGET, &b, why, sizeof why), -1);
    bad = p;
    bad.batch = 0;
    assert_int_equal(check(&bad, &NO_BUDGET, &b, why, sizeof why), -1);
    struct plan alone = derived((struct plan){.batch = 2,
                                              .batches = 1,
                                              .kv_near = PLAN_ALL,

                                              .prefill_tokens = 64});
    assert_int_equal(alone.hidden_near, 1); // read in the step after the write: too near
}

/* Resident layers are as many as asked for, and no two streamed ones stand closer than they must.
 */
static void test_resident_layers_are_spread(void **state)
{
    (void)state;
    for (int n = 1; n <= 40; n++)
        for (int resident = 0; resident <= n; resident++) {
            struct plan p = {.layers = n + 1, .resident = resident};
            int count = 0, gap = 0, longest = 0;
            for (int layer = 1; layer <= n; layer++) {
                int r = plan_layer_resident(&p, layer);
                count += r;
                gap = r ? gap + 1 : 0;
                longest = gap > longest ? gap : longest;
            }
            assert_int_equal(count, resident);
            if (resident < n)
                assert_true(longest <= (n + n - resident - 1) / (n - resident));
        }
}

/* ---- plan_search ---- */

/* The size behind a flag at the end of a refusal, in bytes. */
static int64_t hinted_bytes(const char *why, const char *flag)
{
    const char *at = strstr(why, flag);
    if (!at)
        return -1;
    return strtoll(at + strlen(flag), NULL, 10) * MIB;
}

static struct plan_wish random_wish(uint64_t *seed)
{
    struct plan_wish w = AUTO;
    uint64_t r = mix64(++*seed);
    if (r & 1)
        w.batch = 1 + (int)(r >> 8 & 63);
    if (r & 2)
        w.batches = 1 + (int)(r >> 16 & 7);
    if (r & 4)
        w.resident = (int)(r >> 24 & 31);
    else if (r & 8)
        w.percent[WEIGHTS_NEAR] = (double)((r >> 24 & 127) % 101);
    if (r & 16)
        w.percent[KV_NEAR] = r & 32 ? (double)(r >> 48 & 127) / 1.27 : 100;
    if (r & 64)
        w.ahead_weights = (int)(r >> 32 & 15);
    if (r & 128)
        w.ahead_state = (int)(r >> 40 & 15);
    return w;
}

/* What was found keeps the budgets and the wishes; what was refused works at the size it names. */
static void test_search_over_random_budgets(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int n_found = 0, n_refused = 0;
    for (int i = 0; i < N_TRIALS; i++) {
        struct plan_wish wish = random_wish(&seed);
        struct plan p;
        struct plan_bytes b;
        char why[320], text[320];
        struct budget budget = {-1, (int64_t)(mix64(++seed) % 512) * MIB,
                                mix64(++seed) % 3 ? (int64_t)(mix64(++seed) % 4096) * MIB : 0};
        work.filters = i & 1;
        work.scores = i >> 1 & 1;
        work.scored_positions = i & 2 ? work.output_tokens : i & 8 ? 600 : 0;
        evict = i & 4 ? (struct evict){.policy = EVICT_H2O, .budget = 128, .sink = -1}
                      : (struct evict){.policy = EVICT_FULL};
        work.slots_max = i & 4 ? 128 : 600;
        work.slots_mean = i & 4 ? 120 : 300;
        int found = 0;
        for (int turn = 0; turn < 3 && !found; turn++) { // RAM may be short, and then the disk
            found = search(&wish, &budget, &p, why, sizeof why) == 0;
            if (found)
                break;
            n_refused++;
            int64_t ram = hinted_bytes(why, "--mem-ram "), disk = hinted_bytes(why, "--mem-disk ");
            if (ram < 0 && disk < 0)
                print_error("no size in: %s\n", why);
            assert_true(ram > budget.ram || disk > budget.disk);
            budget.ram = ram > 0 ? ram : budget.ram;
            budget.disk = disk > 0 ? disk : budget.disk;
        }
        if (!found)
            print_error("trial %d: still refused: %s\n", i, why);
        assert_true(found);
        n_found++;
        assert_int_equal(check(&p, &budget, &b, text, sizeof text), 0);
        assert_true(b.ram <= budget.ram && b.disk <= budget.disk);
        assert_true(wish.batch == 0 || p.batch == wish.batch);
        assert_true(wish.batches == 0 || p.batches == wish.batches);
        double near = wish.percent[KV_NEAR] / 100 * p.decoder * p.batches;
        assert_true(near < 0 || fabs(p.kv_near - near) <= 0.5);
        assert_true(wish.resident < 0 || p.resident == (wish.resident > 20 ? 20 : wish.resident));
        assert_true((int64_t)p.pages_batch * 32 >= work.slots_max);
    }
    assert_true(n_found == N_TRIALS && n_refused > N_TRIALS / 10);
}

/* More RAM is never slower, and what a plan costs in time is a number. */
static void test_search_uses_what_it_gets(void **state)
{
    (void)state;
    double before_s = 0;
    for (int64_t ram = 2048; ram >= 64; ram -= sweep(384, 128)) {
        struct budget budget = {-1, ram * MIB, 0};
        struct plan p;
        struct plan_time t;
        char why[256];
        if (search(&AUTO, &budget, &p, why, sizeof why) != 0)
            break;
        t = time_on(&MACHINE, &p);
        assert_true(t.job_s > 0 && t.job_s < 1e6 && t.pass_s > 0 && t.bound);
        assert_true(t.job_s >= before_s * 0.99);
        assert_true(ram < 2048 || p.resident == 20);
        before_s = t.job_s;
    }
    assert_true(before_s > 0);
}

/* Plans that were settled: the fastest first, each fits and takes what it says; the one that was
 * taken is among them. Of little room the fastest have it. */
static void test_search_ranks(void **state)
{
    (void)state;
    const struct setting set = setting_of(&MACHINE);
    void *memory = malloc((size_t)plan_search_bytes(&AUTO, &work, weights.n_layers));
    assert_non_null(memory);
    for (int64_t ram = 64; ram <= 1024; ram *= sweep(4, 2)) {
        struct budget budget = {-1, ram * MIB, 4096 * (int64_t)MIB};
        static struct plan_choice all[2048];
        struct plan_choice few[3];
        struct plan_ranking every = {all, 2048, 7}, best = {few, 3, 0};
        struct plan p, same, none;
        char why[256];
        assert_int_equal(plan_search(&set, &AUTO, &budget, memory, &p, &every, why, sizeof why), 0);
        assert_int_equal(plan_search(&set, &AUTO, &budget, memory, &same, &best, why, sizeof why),
                         0);
        assert_int_equal(plan_search(&set, &AUTO, &budget, memory, &none, NULL, why, sizeof why),
                         0);
        assert_memory_equal(&p, &same, sizeof p);
        assert_memory_equal(&p, &none, sizeof p);
        assert_true(every.n > 3 && every.n < 2048 && best.n == 3);
        int taken = 0;
        for (int i = 0; i < every.n; i++) {
            struct plan_bytes b;
            struct plan_time t;
            assert_int_equal(check(&all[i].plan, &budget, &b, why, sizeof why), 0);
            t = time_on(&MACHINE, &all[i].plan);
            assert_true(all[i].job_s == t.job_s && all[i].moved >= 0);
            assert_true(i == 0 || all[i].job_s >= all[i - 1].job_s);
            taken += memcmp(&all[i].plan, &p, sizeof p) == 0;
        }
        assert_int_equal(taken, 1);
        for (int i = 0; i < best.n; i++)
            assert_true(few[i].job_s == all[i].job_s);
    }
    free(memory);
}

/* ---- with a device ---- */

/* Everything about a plan that can be asked for, asked for. */
static struct plan_wish frozen(const struct plan *p)
{
    struct plan_wish w = AUTO;
    w.device = p->device;
    w.batch = p->batch;
    w.batches = p->batches;
    w.resident = p->resident;
    w.weights_ram = p->weights_ram;
    w.decoded = p->decoded;
    w.kv_near = p->kv_near;
    w.kv_ram = p->kv_ram;
    w.hidden_near = p->hidden_near;
    w.hidden_ram = p->hidden_ram;
    w.ahead_weights = p->ahead_weights;
    w.ahead_state = p->ahead_state;
    w.prefill_tokens = p->prefill_tokens;
    w.codec = p->codec;
    w.no_sharing = p->no_sharing;
    return w;
}

static void random_device_wish(uint64_t *seed, struct plan_wish *w)
{
    *w = random_wish(seed);
    w->device = 1;
    w->percent[KV_NEAR] = -1;
    uint64_t r = mix64(++*seed);
    for (int i = 0; i < N_PLAN_PERCENTS; i += 2)
        if (r >> i & 1) {
            w->percent[i] = (double)((r >> (8 + 8 * i)) % 101);
            w->percent[i + 1] = r >> (i + 1) & 1 ? 100 - w->percent[i] : 0;
        }
}

/* As near to a share of n as whole things come, where a share was asked for. */
static int keeps_share(const struct plan_wish *w, enum plan_percent kind, int wished, int n, int is)
{
    double want = wished >= 0 ? wished : w->percent[kind] * n / 100;
    return want < 0 || fabs(is - (want > n ? n : want)) <= 0.5;
}

static void assert_keeps(const struct plan_wish *w, const struct plan *p)
{
    int extents = p->decoder * p->batches, layers = p->layers - 1;
    assert_true(w->batch == 0 || p->batch == w->batch);
    assert_true(w->batches == 0 || p->batches == w->batches);
    assert_true(keeps_share(w, WEIGHTS_NEAR, w->resident, layers, p->resident));
    if (w->resident < 0)
        assert_true(keeps_share(w, WEIGHTS_RAM, w->weights_ram, layers, p->weights_ram));
    assert_true(keeps_share(w, KV_NEAR, w->kv_near, extents, p->kv_near));
    assert_true(keeps_share(w, KV_RAM, w->kv_ram, extents, p->kv_ram));
    if (p->batches > p->window) // else they stay where they are
        assert_true(keeps_share(w, HIDDEN_NEAR, w->hidden_near, p->batches, p->hidden_near));
}

/* Where the wish is free, not one more extent of KV fits beside the ops, and no layer of NVMe in
 * RAM. */
static void assert_wastes_nothing(const struct plan_wish *w, const struct budget *budget,
                                  const struct plan *p)
{
    struct plan_bytes b;
    char why[256];
    if (w->percent[KV_NEAR] < 0 && p->kv_near + 1 < p->decoder * p->batches) {
        struct plan more = *p;
        more.kv_near++;
        more = derived(more);
        assert_int_equal(check(&more, budget, &b, why, sizeof why), -1);
    }
    if (w->percent[WEIGHTS_RAM] < 0 && p->resident + p->weights_ram + 1 < p->layers) {
        struct plan more = *p;
        more.weights_ram++;
        more = derived(more);
        assert_int_equal(check(&more, budget, &b, why, sizeof why), -1);
    }
}

/* What was found keeps three budgets and the wishes, and is found again by its own numbers; what
 * was refused works at the sizes it names, one after the other. */
static void test_search_on_a_device(void **state)
{
    (void)state;
    uint64_t seed = 77;
    int n_refused = 0, n_by_device = 0;
    for (int i = 0; i < N_TRIALS; i++) {
        struct plan_wish wish;
        struct plan p = {0}, again;
        struct plan_bytes b;
        char why[320] = "", text[320];
        random_device_wish(&seed, &wish);
        struct budget budget = {(int64_t)(mix64(++seed) % 256) * MIB,
                                (int64_t)(mix64(++seed) % 512) * MIB,
                                mix64(++seed) % 3 ? (int64_t)(mix64(++seed) % 4096) * MIB : 0};
        weights.must_decode = i & 1;
        for (int layer = 1; layer < weights.n_layers; layer++)
            weights.tile_bytes[layer] =
                weights.must_decode ? weights.layer_bytes[layer] * 4 / 3 : 0;
        work.scores = i >> 1 & 1;
        evict = i & 4 ? (struct evict){.policy = EVICT_H2O, .budget = 128, .sink = -1}
                      : (struct evict){.policy = EVICT_FULL};
        work.slots_max = i & 4 ? 128 : 600;
        work.slots_mean = i & 4 ? 120 : 300;
        int found = 0;
        for (int turn = 0; turn < 5 && !found; turn++) {
            found = search(&wish, &budget, &p, why, sizeof why) == 0;
            if (found)
                break;
            n_refused++;
            int64_t device = hinted_bytes(why, "--mem-device ");
            int64_t ram = hinted_bytes(why, "--mem-ram "), disk = hinted_bytes(why, "--mem-disk ");
            assert_true(device > budget.device || ram > budget.ram || disk > budget.disk);
            n_by_device += device > 0;
            budget.device = device > 0 ? device : budget.device;
            budget.ram = ram > 0 ? ram : budget.ram;
            budget.disk = disk > 0 ? disk : budget.disk;
        }
        if (!found)
            print_error("trial %d: still refused: %s\n", i, why);
        assert_true(found);
        assert_int_equal(check(&p, &budget, &b, text, sizeof text), 0);
        assert_true(b.device <= budget.device && b.ram <= budget.ram && b.disk <= budget.disk);
        assert_keeps(&wish, &p);
        assert_wastes_nothing(&wish, &budget, &p);
        struct plan_wish same = frozen(&p);
        assert_int_equal(search(&same, &budget, &again, why, sizeof why), 0);
        assert_memory_equal(&again, &p, sizeof p);
    }
    assert_true(n_refused > N_TRIALS / 10 && n_by_device > N_TRIALS / 16);
}

/* ---- eviction of one row ---- */

static struct evict_row row_of(struct evict e, int64_t n_prompt, int64_t n_max, int want_rc)
{
    struct evict_row row = {-1, -1, -1};
    assert_int_equal(evict_row_init(&e, n_prompt, n_max, &row), want_rc);
    return row;
}

static void expect_row(struct evict e, int64_t n_prompt, int64_t n_max, int budget, int recent,
                       int sink)
{
    struct evict_row row = row_of(e, n_prompt, n_max, 0);
    assert_int_equal(row.budget, budget);
    assert_int_equal(row.recent, recent);
    assert_int_equal(row.sink, sink);
}

static void test_evict_row(void **state)
{
    (void)state;
    struct evict h2o = {.policy = EVICT_H2O, .budget = 0.2, .budget_is_fraction = 1, .sink = -1};
    expect_row(h2o, 512, 32, 109, 54, 0); // ceil(108.8), floor(54.5)
    expect_row(h2o, 10, 10, 32, 16, 0);   // never below a page
    h2o.policy = EVICT_H2O_MEAN;
    expect_row(h2o, 512, 32, 109, 54, 4);
    struct evict window = {.policy = EVICT_WINDOW, .budget = 100, .sink = -1};
    expect_row(window, 1000, 24, 100, 100, 0);
    window.policy = EVICT_STREAMING;
    expect_row(window, 1000, 24, 100, 96, 4);
    window.sink = 40;
    expect_row(window, 1000, 24, 100, 60, 40);
    window.sink = 101; // more than all of it
    row_of(window, 1000, 24, -1);
    row_of(window, 60, 24, 0); // but this row is held whole
    struct evict given = {
        .policy = EVICT_H2O, .budget = 64, .sink = 16, .recent = 48, .recent_set = 1};
    expect_row(given, 500, 10, 64, 48, 16); // sink + recent may equal the budget
    given.recent = 49;
    row_of(given, 500, 10, -1);
    given.recent = 0.25;
    given.recent_is_fraction = 1;
    expect_row(given, 500, 10, 64, 16, 16);
    given.budget = 0.2;
    given.budget_is_fraction = given.budget_of_prompt = 1;
    expect_row(given, 500, 300, 100, 25, 16);
    struct evict full = {.policy = EVICT_FULL};
    assert_int_equal(row_of(full, 5, 5, 0).budget, INT32_MAX);
    struct evict huge = {.policy = EVICT_H2O, .budget = 1e18, .sink = -1};
    assert_int_equal(row_of(huge, 5, 5, 0).budget, INT32_MAX);
}

static void test_evict_slots(void **state)
{
    (void)state;
    struct evict h2o = {.policy = EVICT_H2O, .budget = 64, .sink = -1};
    assert_int_equal(evict_slots_max(&h2o, KV_MOST, 500, 10), 64);
    assert_int_equal(evict_slots_max(&h2o, KV_MOST, 20, 10), 30);
    h2o.simulate = 1;
    assert_int_equal(evict_slots_max(&h2o, KV_MOST, 500, 10), 510);
    struct evict full = {.policy = EVICT_FULL};
    assert_int_equal(evict_slots_max(&full, KV_MOST, 500, 10), 510);
    const int32_t some[] = {0, 17, 0, 33}, all[] = {33, 17}, none[] = {0, 0};
    struct kv_kinds kinds;
    full.kinds = &kinds;
    assert_int_equal(kv_kinds_make(&kinds, some, NULL, NULL, NULL, 0, 4), 0);
    assert_int_equal(evict_kinds(&full), 3);
    assert_int_equal(evict_slots_max(&full, KV_MOST, 500, 10), 510);
    assert_int_equal(evict_slots_max(&full, 1, 500, 10), 32); // and the token at hand
    assert_int_equal(evict_slots_max(&full, 1, 20, 10), 30);
    assert_int_equal(evict_slots_max(&full, 2, 500, 10), 16);
    assert_int_equal(evict_layer_kind(&full, 1), 2);
    assert_int_equal(evict_layer_kind(&full, 3), 1);
    struct evict small = {.policy = EVICT_H2O, .budget = 24, .sink = -1, .kinds = &kinds};
    assert_int_equal(evict_slots_max(&small, 1, 500, 10), 24);
    assert_int_equal(kv_kinds_make(&kinds, all, NULL, NULL, NULL, 0, 2), 0);
    assert_int_equal(evict_kinds(&full), 2);
    assert_int_equal(evict_slots_max(&full, KV_MOST, 500, 10), 32);
    assert_int_equal(kv_kinds_make(&kinds, none, NULL, NULL, NULL, 0, 2), 0);
    assert_int_equal(evict_kinds(&full), 1);
    assert_int_equal(evict_slots_max(&full, KV_MOST, 500, 10), 510);
}

/* Bytes of a plan's workspace; *meta: of what is known of its slots. */
static int64_t workspace(const struct plan *p, int64_t *meta)
{
    struct plan_bytes b;
    char why[256];
    check(p, &NO_BUDGET, &b, why, sizeof why);
    *meta = b.by[PLAN_BYTES_kv_meta][TIER_RAM];
    return b.by[PLAN_BYTES_workspace][TIER_RAM];
}

/* Where positions are ranks slots have one number more, and the tables of angles end with what is
 * rotated: the longest prompt, or the slots and a new token. */
static void test_ranks_have_room(void **state)
{
    (void)state;
    const struct plan p = derived((struct plan){.batch = 8, .batches = 4, .prefill_tokens = 64});
    const int64_t row = 2 * 32 * 4,
                  ranks = 32LL * 16 * 4 * p.slots_cap * 4; // of angles; of all rows
    int64_t meta, more, all;
    evict = (struct evict){.policy = EVICT_STREAMING, .budget = 128, .sink = -1};
    work.slots_max = work.slots_mean = 128;
    work.tokens_max = 100000;
    all = workspace(&p, &meta);
    evict.positions = EVICT_POSITIONS_SLOT;
    assert_in_range(all - workspace(&p, &more), 99500 * row - 4096, 99500 * row + 4096);
    assert_in_range(more - meta, ranks, ranks + 64 * 64); // with AddressSanitizer's gaps
    work.prompt_max = 40;                                 // 128 slots and a new token
    assert_in_range(all - workspace(&p, &more), 99871 * row - 4096, 99871 * row + 4096);
    work.tokens_max = 100;
    assert_in_range(all - workspace(&p, &more), 99900 * row - 4096, 99900 * row + 4096);
}

/* Pages of a kind with other heads are of another size, wherever they are; so are slots. */
static void test_pages_of_two_sizes(void **state)
{
    (void)state;
    static struct kv_kinds kinds;
    struct plan_bytes b;
    char why[256];
    int64_t bytes[N_TIERS], sum[N_TIERS] = {0};
    evict = (struct evict){.policy = EVICT_WINDOW, .budget = 600, .sink = -1};
    shape.wide_head_dim = 64;
    shape.wide_kv_heads = 3;
    for (int i = 0; i < 16; i++) {
        shape.layer_window[i] = i % 2 ? 0 : 65;
        shape.layer_wide[i] = i % 2;
    }
    assert_int_equal(kv_kinds_make(&kinds, shape.layer_window, shape.layer_wide, NULL, NULL, 0, 16),
                     0);
    work.kinds = evict.kinds = &kinds;
    work.slots_kind[1] = evict_slots_max(&evict, 1, 500, 100);
    costs.kind_page_bytes[1] = 40 * costs.kv_page_bytes;
    const struct plan p = derived((struct plan){
        .batch = 8, .batches = 4, .kv_near = 20, .prefill_tokens = 64, .ahead_state = 2});
    assert_int_equal(p.kind_pages[1], 2);
    for (int layer = 0; layer < 16; layer++)
        for (int batch = 0; batch < 4; batch++)
            sum[plan_kv_home(&p, layer, batch).tier] +=
                layer % 2 ? p.pages_batch * costs.kv_page_bytes : 8 * 2 * 40 * costs.kv_page_bytes;
    plan_kv_bytes_on(&p, &costs, bytes);
    check(&p, &NO_BUDGET, &b, why, sizeof why);
    for (enum tier_kind tier = TIER_RAM; tier <= TIER_NVME; tier++) {
        assert_true(sum[tier] > 0 && bytes[tier] == sum[tier]);
        assert_in_range(b.by[PLAN_BYTES_kv][tier], sum[tier],
                        sum[tier] + 4096); // with AddressSanitizer's gaps
    }
    assert_int_equal(plan_page_most(&p, &costs), 40 * costs.kv_page_bytes);
    assert_int_equal(plan_pool_bytes(&p, &costs), 8 * 2 * 40 * costs.kv_page_bytes);
    assert_int_equal(plan_kv_slots_before(&p, &shape, 2, 5),
                     shape.n_kv_heads * (64 + 5) + 3 * (p.slots_cap + 5));
    costs.kind_page_bytes[1] = 0;
}

/* Layers with a window among others that have none hold what it lets them hold, and no more is
 * planned for them; where rows hold less than that they take pages like all others. */
static void test_windows_have_pools_of_their_own(void **state)
{
    (void)state;
    struct plan p = {.batch = 8, .batches = 4, .prefill_tokens = 64, .resident = 3, .kv_near = 40};
    struct plan_bytes a, b;
    char why[256];
    p = derived(p);
    evict = (struct evict){.policy = EVICT_WINDOW, .budget = 600, .sink = -1};
    check(&p, &NO_BUDGET, &a, why, sizeof why);
    for (int i = 0; i < 16; i += 2)
        shape.layer_window[i] = 65;
    static struct kv_kinds kinds;
    assert_int_equal(kv_kinds_make(&kinds, shape.layer_window, NULL, NULL, NULL, 0, 16), 0);
    work.kinds = evict.kinds = &kinds;
    work.slots_kind[1] = evict_slots_max(&evict, 1, 500, 100);
    assert_int_equal(work.slots_kind[1], 64);
    p = derived(p);
    assert_int_equal(p.kind_pages[1], 2);
    check(&p, &NO_BUDGET, &b, why, sizeof why);
    int64_t windowed[N_TIERS] = {0}, bytes[N_TIERS], saved = p.pages_batch - 8 * 2;
    for (int layer = 0; layer < 16; layer += 2)
        for (int batch = 0; batch < 4; batch++)
            windowed[plan_kv_home(&p, layer, batch).tier]++;
    plan_kv_bytes_on(&p, &costs, bytes);
    for (enum tier_kind tier = TIER_RAM; tier <= TIER_NVME; tier++) {
        assert_true(windowed[tier] > 0);
        const int64_t pages = plan_kv_count(&p, tier) * p.pages_batch - windowed[tier] * saved;
        assert_int_equal(bytes[tier], pages * costs.kv_page_bytes);
        assert_int_equal(a.by[PLAN_BYTES_kv][tier] - b.by[PLAN_BYTES_kv][tier],
                         windowed[tier] * saved * costs.kv_page_bytes);
    }
    int64_t slots = 8 * 4 * (p.slots_cap - 64); // of a row, of all heads and such layers
    assert_int_equal(a.by[PLAN_BYTES_kv_meta][TIER_RAM] - b.by[PLAN_BYTES_kv_meta][TIER_RAM],
                     32 * slots * 8); // positions and scores
    work.slots_kind[1] = p.pages_batch / 8 * 32 + 1;
    assert_int_equal(derived(p).kind_pages[1], 0);
}

/* What may not go, and the order of what may. */
static void test_evict_order(void **state)
{
    (void)state;
    struct evict_row row = {.budget = 64, .recent = 10, .sink = 4};
    assert_true(evict_protected(&row, 3, 100) && !evict_protected(&row, 4, 100));
    assert_true(evict_protected(&row, 91, 100) && !evict_protected(&row, 90, 100));
    float nan = strtof("nan", NULL);
    assert_true(evict_before(1, 9, 2, 3) && !evict_before(2, 3, 1, 9));
    assert_true(evict_before(1, 3, 1, 9) && !evict_before(1, 9, 1, 3)); // ties: the older goes
    assert_true(evict_before(nan, 9, 1, 3) && !evict_before(1, 3, nan, 9));
    assert_true(evict_before(nan, 3, nan, 9) && !evict_before(nan, 9, nan, 3));
    for (int i = 0; i < N_EVICT_POLICIES; i++)
        assert_int_equal(evict_policy_by_name(evict_policy_name(i)), i);
    assert_int_equal(evict_policy_by_name("lru"), N_EVICT_POLICIES);
}

/* ---- the codec ---- */

static struct plan codec_plan(double nvme_read, int codec, int64_t ram)
{
    struct machine machine = MACHINE;
    struct plan_wish wish = AUTO;
    struct budget budget = {-1, ram, 0};
    struct plan p = {0};
    char why[256];
    machine.nvme_read.value = nvme_read;
    wish.codec = codec;
    assert_int_equal(search_on(&machine, &wish, &budget, &p, why, sizeof why), 0);
    return p;
}

/* Encoded where the disk is slow, decoding fast, the file there or worth making, and something
 * streams; its staging is counted. */
static void test_codec(void **state)
{
    (void)state;
    struct plan_costs saved = costs;
    const int64_t ram = 160 * MIB;
    work.prompt_tokens = work.n_rows = 8;
    work.output_tokens = 800;
    assert_int_equal(codec_plan(2e8, -1, ram).codec, PLAN_CODEC_NONE); // not measured
    costs.codec_bytes = 9 * MIB;
    costs.codec_share = 0.88;
    costs.codec_rate = 2e9;
    struct plan p = codec_plan(2e8, -1, ram), plain;
    assert_int_equal(p.codec, PLAN_CODEC_ZSTD);
    assert_true(p.resident < p.layers - 1);
    assert_int_equal(codec_plan(6e9, -1, ram).codec, PLAN_CODEC_NONE);
    assert_int_equal(codec_plan(2e8, -1, 4000LL * MIB).codec, PLAN_CODEC_NONE); // all in RAM
    assert_int_equal(codec_plan(2e8, PLAN_CODEC_ZSTD, 4000LL * MIB).codec, PLAN_CODEC_NONE);
    assert_int_equal(codec_plan(2e8, PLAN_CODEC_NONE, ram).codec, PLAN_CODEC_NONE);
    assert_int_equal(codec_plan(6e9, PLAN_CODEC_ZSTD, ram).codec, PLAN_CODEC_ZSTD);
    struct plan_bytes with, without;
    char why[256];
    plain = p;
    plain.codec = PLAN_CODEC_NONE;
    assert_int_equal(check(&p, &NO_BUDGET, &with, why, sizeof why), 0);
    assert_int_equal(check(&plain, &NO_BUDGET, &without, why, sizeof why), 0);
    assert_int_equal(with.ram - without.ram, costs.codec_bytes);
    costs.codec_make_s = 1e6; // never worth it
    assert_int_equal(codec_plan(2e8, -1, ram).codec, PLAN_CODEC_NONE);
    costs.codec_make_s = 0;
    costs.codec_share = 0.99;
    assert_int_equal(codec_plan(2e8, -1, ram).codec, PLAN_CODEC_NONE);
    costs = saved;
}

/* The memory of a device is a cap of its own; what is homed elsewhere does not count in it. */
static void test_device_memory(void **state)
{
    (void)state;
    int64_t least[N_TIERS] = {0};
    for (int home = 0; home < N_TIERS; home++) {
        struct plan_bytes b, again;
        char why[256];
        struct plan p = derived((struct plan){.batch = 8,
                                              .batches = 4,
                                              .device = 1,
                                              .window = 3,
                                              .resident = 5,
                                              .weights_ram = home == TIER_RAM ? 15 : 0,
                                              .kv_near = home == TIER_DEVICE ? PLAN_ALL : 0,
                                              .kv_ram = home == TIER_RAM ? PLAN_ALL : 0,
                                              .hidden_near = home == TIER_DEVICE ? PLAN_ALL : 0,
                                              .hidden_ram = home == TIER_RAM ? PLAN_ALL : 0,
                                              .prefill_tokens = 64,
                                              .ahead_weights = 1,
                                              .ahead_state = 1});
        assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
        int64_t n = 0, homed[N_TIERS] = {0};
        for (int layer = 1; layer < p.layers; layer++) {
            homed[plan_layer_home(&p, layer)]++;
            n += plan_layer_home(&p, layer) == TIER_DEVICE ? weights.layer_bytes[layer] : 0;
        }
        assert_int_equal(homed[TIER_DEVICE], 5);
        assert_int_equal(homed[TIER_RAM], p.weights_ram);
        least[home] = b.device;
        assert_true(b.device > n && b.arena > 0);
        struct budget budget = {b.device, b.ram, b.disk};
        assert_int_equal(check(&p, &budget, &again, why, sizeof why), 0);
        budget.device--;
        assert_int_equal(check(&p, &budget, &again, why, sizeof why), -1);
        assert_non_null(strstr(why, "--mem-device "));
    }
    int64_t kv = (int64_t)16 * 4 * 8 * 11 * costs.kv_page_bytes; // a mean row takes 11 pages
    assert_true(least[TIER_DEVICE] - least[TIER_RAM] > kv / 2);
    assert_int_equal(least[TIER_RAM], least[TIER_NVME]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_check_bounds, setup),
        cmocka_unit_test_setup(test_check_order_of_bytes, setup),
        cmocka_unit_test(test_resident_layers_are_spread),
        cmocka_unit_test_setup(test_codec, setup),
        cmocka_unit_test_setup(test_search_over_random_budgets, setup),
        cmocka_unit_test_setup(test_search_uses_what_it_gets, setup),
        cmocka_unit_test_setup(test_search_ranks, setup),
        cmocka_unit_test_setup(test_search_on_a_device, setup),
        cmocka_unit_test(test_evict_row),
        cmocka_unit_test(test_evict_slots),
        cmocka_unit_test_setup(test_pages_of_two_sizes, setup),
        cmocka_unit_test_setup(test_ranks_have_room, setup),
        cmocka_unit_test_setup(test_windows_have_pools_of_their_own, setup),
        cmocka_unit_test_setup(test_device_memory, setup),
        cmocka_unit_test(test_evict_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
