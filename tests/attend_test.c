/* tests/attend_test.c - attention of forced spans, and the slots that eviction leaves. */
#include "tests/attend_help.h"

/* ---- forced spans ---- */

static void forced_equals_ref(void **state)
{
    (void)state;
    static const struct model models[] = {
        {9, 3, 64, KV_BF16, KV_BF16}, {2, 2, 32, KV_F32, KV_F32},    {8, 1, 80, KV_BF16, KV_BF16},
        {7, 1, 96, KV_F32, KV_BF16},  {10, 2, 33, KV_F32, KV_F32},   {4, 2, 128, KV_BF16, KV_F32},
        {9, 3, 64, KV_BF16, KV_Q8},   {8, 1, 80, KV_F32, KV_Q4},     {10, 2, 33, KV_F32, KV_Q8},
        {4, 2, 128, KV_BF16, KV_Q4},  {9, 3, 64, KV_BF16, KV_MIXED}, {8, 1, 80, KV_F32, KV_MIXED},
    };
    const int step = sweep(12, 1); // 12: each scenario meets one model, each model four of them
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int s = (int)i % step; s < N_SCENARIOS; s += step)
            for (int simulate = 0; simulate <= 1; simulate++) {
                struct scenario scenario = scenarios[s];
                scenario.evict.simulate = simulate;
                forced_check(&models[i], (s + (int)i) % 2 ? 50 : 20, 40, scenario);
            }
}

/* More than one split of 256 slots. */
static void forced_splits_equal_ref(void **state)
{
    (void)state;
    static const struct {
        int n_prompt, n;
        struct scenario scenario;
    } cases[] = {
        {520, 8, {{.policy = EVICT_FULL}, {INT32_MAX, INT32_MAX, 0}}},
        {250, 12, {{.policy = EVICT_FULL}, {INT32_MAX, INT32_MAX, 0}}},
        {300, 12, {{.policy = EVICT_H2O}, {290, 100, 0}}},
        {300, 12, {{.policy = EVICT_QHITTER}, {290, 100, 0}}},
        {300, 12, {{.policy = EVICT_H2O_HF}, {290, 100, 0}}},
        {300, 12, {{.policy = EVICT_WINDOW, .simulate = 1}, {40, 40, 0}}}, // masks a whole split
    };
    const int n_cases = (int)(sizeof cases / sizeof *cases);
    for (int i = 0; i < 4 * n_cases; i += sweep(3, 1)) { // 3: each case and each format still
        struct model m = {6, 2, 64, KV_BF16, (enum kv_format)(KV_BF16 + i / n_cases)};
        forced_check(&m, cases[i % n_cases].n_prompt, cases[i % n_cases].n,
                     cases[i % n_cases].scenario);
    }
}

/* A cap below most logits, sinks about the greatest of them, and both. */
static void caps_and_sinks_equal_ref(void **state)
{
    (void)state;
    static const struct model models[] = {{9, 3, 64, KV_BF16, KV_BF16},
                                          {2, 2, 32, KV_F32, KV_F32},
                                          {10, 2, 33, KV_F32, KV_Q8},
                                          {4, 2, 128, KV_BF16, KV_Q4},
                                          {8, 1, 80, KV_F32, KV_MIXED}};
    struct scenario h2o = {{.policy = EVICT_H2O}, {290, 100, 0}};
    float *sinks = noise_array(8, 10, 4);
    for (int i = 0; i < 5 * N_SCENARIOS; i += sweep(11, 1)) {
        struct scenario s = scenarios[i / 5];
        s.evict.simulate = i % 2;
        attend_cap = i % 3 == 1 ? 0 : 2;
        attend_sinks = i % 3 == 0 ? NULL : sinks;
        forced_check(&models[i % 5], i % 2 ? 50 : 20, 40, s);
    }
    for (enum kv_format f = KV_BF16; f <= KV_MIXED; f++) {
        struct model m = {6, 2, 64, KV_BF16, f};
        attend_cap = 2;
        attend_sinks = sinks;
        forced_check(&m, 520, 8, scenarios[0]);
        forced_check(&m, 300, 12, h2o);
    }
    attend_cap = 0;
    attend_sinks = NULL;
    free(sinks);
}

/* Pages of keys only: what the order rules say, and the bytes of pages that hold keys twice. */
static void values_may_be_keys(void **state)
{
    (void)state;
    static const struct scenario h2o = {{.policy = EVICT_H2O}, {40, 20, 0}};
    for (int i = 0; i < 10; i++) {
        const enum kv_format f = (enum kv_format)(KV_F32 + i % 5);
        const struct model m = {i < 5 ? 11 : 6, i < 5 ? 1 : 2, i < 5 ? 576 : 48,
                                f == KV_BF16 ? KV_BF16 : KV_F32, f};
        const struct ops ops = {.isa = isa_best(), .compute = (enum compute)(i % 2)};
        const struct ops ref = {.isa = ISA_REF};
        struct scenario s = sweep(1, 0) ? h2o : scenarios[(7 * i + 3) % N_SCENARIOS];
        s.evict.simulate = i % 3 == 0;
        attend_values = VALUES_ARE_KEYS;
        forced_check(&m, 50, 30, s);
        struct tokens t = tokens_make(&m, 90, 70);
        struct row keys = row_run(&ops, &m, &t, s.evict, s.limits, 50, 7);
        struct row kept = row_make(&m, &t, s.evict, s.limits, 50);
        struct row by_ref = row_make(&m, &t, s.evict, s.limits, 50);
        row_prompt_kept_by(&ops, &ops, &m, &t, &kept, 50);
        row_prompt_kept_by(&ops, &ref, &m, &t, &by_ref, 50);
        rows_same(&kept, &by_ref, "kept");
        attend_values = VALUES_COPIED;
        struct row twice = row_run(&ops, &m, &t, s.evict, s.limits, 50, 7);
        attend_values = VALUES_APART;
        assert_same_bits(keys.out, twice.out, keys.out_bytes, "keys twice");
        assert_int_equal(keys.layout.page_bytes,
                         round_up(keys.layout.panel_bytes * m.n_kv_heads, 4096));
        row_free(&kept);
        row_free(&by_ref);
        row_free(&keys);
        row_free(&twice);
        tokens_free(&t);
    }
}

/* More threads than heads share the splits of a row. */
static void threads_do_not_show(void **state)
{
    (void)state;
    static const struct scenario cases[] = {
        {{.policy = EVICT_FULL}, {INT32_MAX, INT32_MAX, 0}},
        {{.policy = EVICT_H2O}, {540, 100, 0}},
        {{.policy = EVICT_H2O_MEAN, .scope = EVICT_SCOPE_LAYER}, {530, 100, 4}},
        {{.policy = EVICT_QHITTER, .scope = EVICT_SCOPE_LAYER}, {530, 100, 4}},
        {{.policy = EVICT_H2O_HF}, {540, 100, 0}},
        {{.policy = EVICT_WINDOW, .simulate = 1}, {300, 300, 0}},
    };
    threads_check(cases, (int)(sizeof cases / sizeof *cases), 540);
}

/* A span is its tokens one by one, whoever else is in the call, on any number of threads. */
static void forced_spans_may_be_cut(void **state)
{
    (void)state;
    static const int steps[] = {1, 3, 16, 100};
    for (int s = 0; s < N_SCENARIOS; s++)
        for (int simulate = 0; simulate <= 1; simulate++) {
            static const enum kv_format formats[] = {KV_BF16, KV_MIXED, KV_Q4, KV_MIXED};
            struct model m = {6, 2, 48, KV_BF16, formats[(s + simulate) % 4]};
            struct scenario c = scenarios[s];
            c.evict.simulate = simulate;
            struct tokens a = tokens_make(&m, 90, 300), b = tokens_make(&m, 90, 400);
            struct ops alone = {.isa = isa_best()};
            struct row want_a = row_run(&alone, &m, &a, c.evict, c.limits, 45, 45);
            struct row want_b = row_run(&alone, &m, &b, c.evict, c.limits, 45, 45);
            for (int i = 0; i < 4; i++) {
                struct ops ops = {.isa = isa_best(), .pool = pool_of(2 * i + 1)};
                struct row ra = row_make(&m, &a, c.evict, c.limits, 45);
                struct row rb = row_make(&m, &b, c.evict, c.limits, 45);
                row_prompt(&ops, &m, &a, &ra, 32);
                row_prompt(&ops, &m, &b, &rb, 32);
                const struct tokens *t[] = {&b, &a};
                struct row *rows[] = {&rb, &ra};
                for (int at = 45; at < 90; at += steps[i])
                    rows_forced(&ops, &m, t, rows, 2, at, at + steps[i] < 90 ? steps[i] : 90 - at);
                rows_same(&ra, &want_a, "cut span");
                rows_same(&rb, &want_b, "cut span");
                pool_close(ops.pool);
                row_free(&ra);
                row_free(&rb);
            }
            row_free(&want_a);
            row_free(&want_b);
            tokens_free(&a);
            tokens_free(&b);
        }
}

/* ---- eviction ---- */

/* One query head whose logits are the first number of K: the test chooses the weights. */
static const struct model plain = {1, 1, 16, KV_F32, KV_F32};

static struct tokens plain_tokens(int n, const float *weights)
{
    struct tokens t = tokens_make(&plain, n, 1);
    memset(t.q, 0, (size_t)(n * t.q_stride) * 4);
    memset(t.k, 0, (size_t)(n * t.kv_stride) * 4);
    for (int i = 0; i < n; i++) {
        t.q[i * t.q_stride] = 5; // times the scale of 0.2
        t.k[i * t.kv_stride] = weights ? logf(weights[i]) : 0;
    }
    return t;
}

static void newcomer_goes_unless_recent(void **state)
{
    (void)state;
    static const float weights[] = {.10f, .20f, .60f, .10f}, before[] = {4.20f, .80f, 3.50f};
    struct tokens t = plain_tokens(4, weights);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (int recent = 0; recent <= 1; recent++) {
            struct ops ops = {.isa = isa};
            struct evict_row limits = {.budget = 3, .recent = recent, .sink = 1};
            struct row r = row_make(&plain, &t, (struct evict){.policy = EVICT_H2O}, limits, 0);
            struct row *rows[] = {&r};
            const struct tokens *ts[] = {&t};
            rows_forced(&ops, &plain, ts, rows, 1, 0, 3);
            memcpy(r.kv.slot_score, before, sizeof before);
            rows_forced(&ops, &plain, ts, rows, 1, 3, 1);
            static const float newcomer_gone[] = {4.30f, 1.00f, 4.10f};
            static const float second_gone[] = {4.30f, .10f, 4.10f};
            assert_close(r.kv.slot_score, recent ? second_gone : newcomer_gone, 3, 1e-6, "scores");
            assert_int_equal(r.events[3].pos, recent ? 1 : 3);
            assert_true(fabsf(r.events[3].score - (recent ? 1.00f : .10f)) < 1e-6f);
            assert_int_equal(r.kv.slot_pos[1], recent ? 3 : 1);
            row_free(&r);
        }
    tokens_free(&t);
}

static void scores_freeze_without_recent(void **state)
{
    (void)state;
    struct tokens t = plain_tokens(6, NULL);
    for (int policy = EVICT_H2O; policy <= EVICT_H2O_MEAN; policy++)
        for (int recent = 0; recent <= 1; recent++) {
            struct ops ops = {.isa = isa_best()};
            struct row r =
                row_run(&ops, &plain, &t, (struct evict){.policy = policy},
                        (struct evict_row){.budget = 3, .recent = recent, .sink = 1}, 0, 6);
            static const float frozen[] = {2.5833333f, 1.5833333f, 1.0833333f};
            static const float moving[] = {2.5833333f, 1.5833333f, .25f};
            assert_close(r.kv.slot_score, recent ? moving : frozen, 3, 1e-6, "scores");
            assert_int_equal(r.kv.slot_pos[0], 0);
            assert_int_equal(r.kv.slot_pos[1], 1);
            assert_int_equal(r.kv.slot_pos[2], recent ? 5 : 2);
            row_free(&r);
        }
    tokens_free(&t);
}

static void a_long_row_evicts_once_a_token(void **state)
{
    (void)state;
    enum { N = 10000 };
    struct tokens t = plain_tokens(N, NULL);
    struct ops ops = {.isa = isa_best()};
    struct row r = row_run(&ops, &plain, &t, (struct evict){.policy = EVICT_H2O},
                           (struct evict_row){.budget = 128, .recent = 64, .sink = 0}, 0, 1000);
    int n = 0;
    for (int i = 0; i < N; i++)
        n += r.events[i].pos >= 0;
    assert_int_equal(n, N - 128);
    row_free(&r);
    tokens_free(&t);
}

/* Of one prompt's scores the CPU keeps what kernels/ref keeps, bit for bit, ring included. */
static void prompts_keep_what_ref_keeps(void **state)
{
    (void)state;
    static const struct model models[] = {
        {6, 3, 64, KV_BF16, KV_BF16}, {4, 4, 32, KV_F32, KV_F32}, {6, 2, 64, KV_BF16, KV_MIXED}};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        for (int s = 0; s < N_SCENARIOS; s++)
            for (int n = 30; n <= 130; n += 50) {
                const struct model *m = &models[k];
                struct ops ref = {.isa = ISA_REF}, ops = {.isa = isa_best()};
                struct tokens t = tokens_make(m, n, 900 + (uint64_t)s);
                struct row a = row_make(m, &t, scenarios[s].evict, scenarios[s].limits, n);
                struct row b = row_make(m, &t, scenarios[s].evict, scenarios[s].limits, n);
                row_prompt_kept_by(&ops, &ref, m, &t, &a, n);
                row_prompt_kept_by(&ops, &ops, m, &t, &b, n);
                rows_same(&b, &a, "kept");
                row_free(&a);
                row_free(&b);
                tokens_free(&t);
            }
}

/* Of equal ranks the oldest position goes, wherever its slot stands: in one lane, in several, in a
 * last vector that is not full. Slots' positions are shuffled; a few slots have one low score, the
 * others a high one. */
static void of_equal_ranks_the_oldest_goes(void **state)
{
    (void)state;
    enum { N = 75, RECENT = 10, TRIALS = 60 };
    struct tokens t = plain_tokens(N + 1, NULL);
    FOR_EACH_ISA(isa)
    for (int trial = 0; trial < TRIALS; trial++) {
        struct ops ops = {.isa = isa};
        struct evict_row limits = {.budget = N, .recent = RECENT, .sink = 0};
        struct row r = row_make(&plain, &t, (struct evict){.policy = EVICT_H2O}, limits, 0);
        struct row *rows[] = {&r};
        const struct tokens *ts[] = {&t};
        int oldest = N, first = 1 + (int)(mix64((uint64_t)trial) % (N - 1)), n_low = 2 + trial % 6;
        rows_forced(&ops, &plain, ts, rows, 1, 0, N);
        for (int slot = 0; slot < N;
             slot++) { // 7 and 75 have no common factor: every position once
            r.kv.slot_pos[slot] = (slot * 7 + first) % N;
            r.kv.slot_score[slot] = 2;
        }
        for (int i = 0; i < n_low; i++) { // 16 slots on is the same lane
            int slot = (first + i * (trial % 2 ? 16 : 5)) % N, pos = r.kv.slot_pos[slot];
            r.kv.slot_score[slot] = 1;
            oldest = pos < oldest && pos <= N - RECENT ? pos : oldest;
        }
        rows_forced(&ops, &plain, ts, rows, 1, N, 1);
        if (oldest < N)
            assert_int_equal(r.events[N].pos, oldest);
        row_free(&r);
    }
    tokens_free(&t);
}

/* A budget that holds everything is the full cache, bit for bit. */
static void large_budgets_are_full(void **state)
{
    (void)state;
    struct model m = {6, 2, 64, KV_BF16, KV_BF16};
    struct tokens t = tokens_make(&m, 80, 500);
    FOR_EACH_ISA(isa)
    {
        struct ops ops = {.isa = isa};
        struct row full =
            row_run(&ops, &m, &t, (struct evict){.policy = EVICT_FULL}, never, 30, 50);
        for (int policy = EVICT_WINDOW; policy < N_EVICT_POLICIES; policy++)
            for (int scope = 0; scope <= 1; scope++)
                for (int simulate = 0; simulate <= 1; simulate++) {
                    struct evict e = {.policy = policy, .scope = scope, .simulate = simulate};
                    struct row r = row_run(&ops, &m, &t, e, (struct evict_row){80, 40, 4}, 30, 50);
                    assert_same_bits(r.out, full.out, full.out_bytes, "budget >= tokens");
                    assert_same_bits(r.memory, full.memory, full.n_pages * full.layout.page_bytes,
                                     "budget >= tokens");
                    for (int i = 0; i < 80 * 2; i++)
                        assert_true(i < 60 || r.events[i].pos == -1);
                    row_free(&r);
                }
        row_free(&full);
    }
    tokens_free(&t);
}

static void weights_sum_to_the_group(void **state)
{
    (void)state;
    struct model m = {12, 3, 64, KV_BF16, KV_BF16};
    struct tokens t = tokens_make(&m, 70, 600);
    struct ops ops = {.isa = isa_best()};
    for (int n = 30; n <= 70; n += 8) {
        struct tokens part = t;
        part.n = n;
        struct row r = row_run(&ops, &m, &part, (struct evict){.policy = EVICT_H2O},
                               (struct evict_row){70, 35, 0}, 30, 5);
        for (int head = 0; head < 3; head++) {
            double sum = 0;
            for (int i = 0; i < n; i++)
                sum += r.kv.slot_score[head * r.kv.slots_cap + i];
            assert_true(fabs(sum - 4.0 * n) < 1e-4);
        }
        row_free(&r);
    }
    tokens_free(&t);
}

/* While nothing goes, a prompt leaves the scores that its tokens make one after the other. */
static void a_prompt_scores_as_its_tokens(void **state)
{
    (void)state;
    static const int policies[] = {EVICT_H2O,          EVICT_EMA,  EVICT_TOVA,
                                   EVICT_SCISSORHANDS, EVICT_VLEN, EVICT_QHITTER};
    struct model m = {6, 2, 32, KV_F32, KV_F32};
    struct evict_row limits = {.budget = 80, .recent = 4, .sink = 0};
    for (int n = 20; n <= 80; n += 20)
        for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
            FOR_EACH_ISA(isa)
            {
                struct tokens t = tokens_make(&m, n, 650);
                struct ops ops = {.isa = isa, .compute = COMPUTE_F32};
                struct evict e = {.policy = policies[i]};
                struct row prompt = row_run(&ops, &m, &t, e, limits, n, 1);
                struct row steps = row_run(&ops, &m, &t, e, limits, 0, 7);
                const int64_t numbers = 2 * (int64_t)prompt.kv.slots_cap;
                assert_same_bits(prompt.kv.slot_pos, steps.kv.slot_pos, numbers * 4, "positions");
                scores_close(&steps, prompt.kv.slot_score, steps.kv.slot_score, numbers, 1e-5,
                             "scores");
                if (prompt.kv.slot_trait)
                    assert_same_bits(prompt.kv.slot_trait, steps.kv.slot_trait, numbers * 4,
                                     "traits");
                row_free(&prompt);
                row_free(&steps);
                tokens_free(&t);
            }
}

/* Of a prompt no longer than snapkv's window all queries count: h2o's scores, which it then pools.
 */
static void a_short_prompt_is_all_window(void **state)
{
    (void)state;
    struct model m = {6, 2, 32, KV_F32, KV_F32};
    struct tokens t = tokens_make(&m, 16, 660);
    struct evict_row limits = {.budget = 32, .recent = 16, .sink = 0};
    FOR_EACH_ISA(isa)
    {
        struct ops ops = {.isa = isa, .compute = COMPUTE_F32};
        struct row sums = row_run(&ops, &m, &t, (struct evict){.policy = EVICT_H2O}, limits, 16, 1);
        struct row most =
            row_run(&ops, &m, &t, (struct evict){.policy = EVICT_SNAPKV}, limits, 16, 1);
        assert_same_bits(most.scores, sums.scores, 2 * 32 * 4, "all queries count");
        for (int i = 0; i < 2 * 16; i++) {
            const float *slots = sums.kv.slot_score + i / 16 * 16;
            float want = 0;
            for (int j = 0; j < 16; j++)
                want = abs(j - i % 16) <= 3 && slots[j] > want ? slots[j] : want;
            assert_true(most.kv.slot_score[i] == want);
        }
        row_free(&sums);
        row_free(&most);
    }
    tokens_free(&t);
}

static int pos_order(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Positions kept by a head, ascending; returns how many. */
static int kept_set(const struct row *r, int head, int32_t *pos)
{
    int n = 0;
    for (int i = 0; i < r->kv.n_slots; i++)
        if (r->kv.slot_pos[head * r->kv.slots_cap + i] >= 0)
            pos[n++] = r->kv.slot_pos[head * r->kv.slots_cap + i];
    for (int i = 0; i < kv_ring_used(&r->kv, r->n_tokens); i++)
        pos[n++] = r->kv.slot_pos[(head + 1) * r->kv.slots_cap - r->kv.ring_slots + i];
    qsort(pos, (size_t)n, sizeof *pos, pos_order);
    return n;
}

static void all_recent_is_streaming(void **state)
{
    (void)state;
    struct model m = {4, 2, 32, KV_F32, KV_F32};
    struct ops ops = {.isa = isa_best()};
    for (int n = 20; n <= 100; n += 16) {
        struct tokens t = tokens_make(&m, n, 700);
        for (int sink = 0; sink <= 4; sink += 4) {
            struct evict_row limits = {.budget = 40, .recent = 40 - sink, .sink = sink};
            struct row rows[3];
            static const int policies[] = {EVICT_H2O, EVICT_STREAMING, EVICT_WINDOW};
            int32_t kept[3][128];
            for (int i = 0; i < 3; i++) {
                rows[i] =
                    row_run(&ops, &m, &t, (struct evict){.policy = policies[i]}, limits, n / 2, 7);
                assert_int_equal(kept_set(&rows[i], 1, kept[i]), n < 40 ? n : 40);
                assert_memory_equal(kept[i], kept[0], (n < 40 ? n : 40) * 4);
                assert_same_bits(rows[i].out, rows[0].out, rows[0].out_bytes, "streaming");
            }
            for (int i = 0; i < 3; i++)
                row_free(&rows[i]);
        }
        tokens_free(&t);
    }
}

static void simulation_is_eviction(void **state)
{
    (void)state;
    struct model m = {6, 2, 64, KV_F32, KV_F32};
    struct tokens t = tokens_make(&m, 130, 800);
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_F32};
    for (int run = 0; run < 2 * N_SCENARIOS; run++) {
        int s = run / 2;
        m.kv = run % 2 ? KV_MIXED : KV_F32;
        struct evict e = scenarios[s].evict;
        struct row real = row_run(&ops, &m, &t, e, scenarios[s].limits, 66, 64);
        e.simulate = 1;
        struct row masked = row_run(&ops, &m, &t, e, scenarios[s].limits, 66, 64);
        assert_close(masked.out, real.out, real.out_bytes / 4, 1e-4, "simulated");
        for (int i = 0; i < 130 * 2; i++)
            assert_int_equal(masked.events[i].pos, real.events[i].pos);
        for (int head = 0; head < 2 && real.kv.slot_pos; head++) {
            int32_t a[130], b[130];
            int n = kept_set(&real, head, a);
            assert_int_equal(kept_set(&masked, head, b), n);
            assert_memory_equal(a, b, n * 4);
        }
        row_free(&real);
        row_free(&masked);
    }
    tokens_free(&t);
}

/* After every token: the count, the protected ones, no position twice, only the victim's slot
 * changed. */
static void invariants_hold(void **state)
{
    (void)state;
    struct model m = {4, 2, 32, KV_BF16, KV_BF16};
    struct tokens t = tokens_make(&m, 120, 900);
    struct ops ops = {.isa = isa_best()};
    for (int s = 1; s < N_SCENARIOS; s++) {
        const struct evict_row *limits = &scenarios[s].limits;
        struct row r = row_make(&m, &t, scenarios[s].evict, *limits, 64), *rows[] = {&r};
        const struct tokens *ts[] = {&t};
        row_prompt(&ops, &m, &t, &r, 64);
        for (int now = 63; now < 120; now++) {
            int32_t before[2][64], kept[64];
            for (int h = 0; h < 2; h++)
                memcpy(before[h], r.kv.slot_pos + h * r.kv.slots_cap, (size_t)r.kv.slots_cap * 4);
            if (now > 63)
                rows_forced(&ops, &m, ts, rows, 1, now, 1);
            for (int h = 0; h < 2; h++) {
                struct evict_row sure = evict_behind_prompt(scenarios[s].evict.policy, limits, 0);
                int n = kept_set(&r, h, kept), n_protected = 0;
                sure.recent = (int)min_i64(sure.recent + now - 63, limits->recent);
                assert_int_equal(n, limits->budget);
                for (int i = 0; i < n; i++) {
                    assert_true(i == 0 || kept[i] > kept[i - 1]);
                    n_protected += evict_protected(&sure, kept[i], now);
                }
                assert_int_equal(n_protected, limits->sink + sure.recent);
                for (int i = 0; i < n && now > 63; i++) {
                    int32_t pos = r.kv.slot_pos[h * r.kv.slots_cap + i];
                    assert_true(pos == before[h][i] ||
                                (pos == now && before[h][i] == r.events[now * 2 + h].pos));
                }
                if (scenarios[s].evict.scope == EVICT_SCOPE_LAYER)
                    assert_memory_equal(r.kv.slot_pos, r.kv.slot_pos + h * r.kv.slots_cap, n * 4);
            }
        }
        row_free(&r);
    }
    tokens_free(&t);
}

/* The stored keys are those of the positions that the slots name. */
static void slots_hold_their_positions(void **state)
{
    (void)state;
    struct model m = {4, 2, 32, KV_F32, KV_F32};
    struct tokens t = tokens_make(&m, 120, 950);
    struct ops ops = {.isa = isa_best()};
    for (int s = 1; s < N_SCENARIOS; s++) {
        struct row r = row_run(&ops, &m, &t, scenarios[s].evict, scenarios[s].limits, 60, 9);
        for (int h = 0; h < 2; h++)
            for (int slot = 0; slot < r.kv.n_slots; slot++) {
                float k[32], v[32];
                int pos = r.kv.slot_pos[h * r.kv.slots_cap + slot];
                kv_get(&r.layout, r.pages[slot / PAGE_SLOTS], slot % PAGE_SLOTS, h, k, v);
                assert_memory_equal(k, t.k + pos * t.kv_stride + h * 32, sizeof k);
                assert_memory_equal(v, t.v + pos * t.kv_stride + h * 32, sizeof v);
            }
        row_free(&r);
    }
    tokens_free(&t);
}

/* mixed: the newest tokens are the ring's, as codes of a byte; what left it was rounded twice. */
static void the_ring_holds_the_newest(void **state)
{
    (void)state;
    struct model m = {4, 2, 32, KV_F32, KV_MIXED};
    struct tokens t = tokens_make(&m, 150, 970);
    struct ops ops = {.isa = isa_best()};
    for (int run = 0; run < 4 * N_SCENARIOS; run++) {
        const struct scenario *c = &scenarios[run / 4];
        int n_prompt = 3 + run % 4 * 40, full = c->evict.policy == EVICT_FULL;
        struct row r = row_run(&ops, &m, &t, c->evict, c->limits, n_prompt, 9);
        int ring = r.kv.ring_slots, n = r.kv.n_slots;
        assert_int_equal(ring, full ? 64 : c->limits.recent);
        assert_int_equal(n, (full ? 150 : r.limits.budget) - ring);
        for (int i = 0; i < 2 * (n + ring); i++) {
            int h = i % 2, slot = i / 2 < n ? i / 2 : i / 2 - n, newest = i / 2 >= n;
            int64_t meta = (int64_t)h * r.kv.slots_cap;
            int pos = newest ? 149 - (149 - slot) % ring : full ? slot : r.kv.slot_pos[meta + slot];
            assert_true(!newest || full ||
                        r.kv.slot_pos[meta + r.kv.slots_cap - ring + slot] == pos);
            const struct kv_layout *l = newest ? &r.ring : &r.layout;
            const uint8_t *page =
                newest ? r.kv.ring + slot / 32 * r.ring.page_bytes : r.pages[slot / 32];
            float got[2][32], want[32];
            kv_get(l, page, slot % 32, h, got[0], got[1]);
            for (int kv = 0; kv < 2; kv++) {
                const float *x = (kv ? t.v : t.k) + pos * t.kv_stride + h * 32;
                int was_newest = ring > 0 && pos >= n_prompt - ring;
                kv_round(was_newest ? &r.ring : l, x, want);
                if (was_newest && !newest)
                    kv_round(l, want, want);
                assert_memory_equal(got[kv], want, sizeof want);
            }
        }
        row_free(&r);
    }
    tokens_free(&t);
}

/* NaN scores must not stop a row: the slots that have them go first. */
static void nan_does_not_stop_a_row(void **state)
{
    (void)state;
    struct model m = {2, 1, 32, KV_BF16, KV_BF16};
    struct tokens t = tokens_make(&m, 80, 960);
    t.q[50 * t.q_stride] = NAN;
    FOR_EACH_ISA(isa)
    {
        struct ops ops = {.isa = isa};
        struct row r = row_run(&ops, &m, &t, scenarios[3].evict, scenarios[3].limits, 20, 60);
        assert_int_equal(r.kv.n_slots, 40);
        assert_true(isnan(r.out[50 * t.q_stride]));
        assert_true(isfinite(r.out[51 * t.q_stride]));
        row_free(&r);
    }
    tokens_free(&t);
}

/* A query whose weights are no numbers adds nothing to the scores: those of other heads and queries
 * are as they were, and eviction goes on by them. */
static void a_nan_query_adds_nothing(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct model m = {4, 2, 32, f ? KV_F32 : KV_BF16, f ? KV_F32 : KV_BF16};
        for (int at = 37; at <= 75; at += 38) { // of the prompt, of a span
            struct tokens good = tokens_make(&m, 90, 980), bad = tokens_make(&m, 90, 980);
            bad.q[at * bad.q_stride + 32] = NAN; // query head 1, of KV head 0
            FOR_EACH_ISA(isa)
            {
                struct ops ops = {.isa = isa, .compute = f ? COMPUTE_F32 : COMPUTE_BF16};
                struct evict_row limits = {70, 30, 0};
                struct evict e = {.policy = f ? EVICT_EMA : EVICT_H2O};
                struct row want = row_run(&ops, &m, &good, e, limits, 64, 7);
                struct row got = row_run(&ops, &m, &bad, e, limits, 64, 7);
                int64_t half = got.kv.slots_cap;
                for (int i = 0; i < 64 && at < 64; i++) { // at most what the query would have added
                    float lost = want.scores[i] - got.scores[i];
                    assert_true(lost >= -1e-5f && lost <= (i <= at ? 1 : 1e-5f));
                }
                assert_same_bits(got.scores + 64, want.scores + 64, 64 * 4, "other head");
                assert_same_bits(got.kv.slot_score + half, want.kv.slot_score + half, half * 4,
                                 "other head");
                for (int i = 0; i < 2 * got.kv.n_slots; i++)
                    assert_true(isfinite(got.kv.slot_score[i]));
                for (int i = 0; i < 90; i++)
                    assert_true(!isnan(got.out[i * bad.q_stride + 32]) == (i != at));
                row_free(&want);
                row_free(&got);
            }
            tokens_free(&good);
            tokens_free(&bad);
        }
    }
}

/* Values that are no numbers leave with their slot, under simulate as by eviction. */
static void bad_values_leave_with_their_slot(void **state)
{
    (void)state;
    static const struct evict_row limits = {40, 20, 0};
    for (enum kv_format kv = KV_F32; kv <= KV_Q4; kv++)
        for (int from_prompt = 0; from_prompt <= 1; from_prompt++) {
            struct model m = {4, 2, 64, KV_F32, kv};
            struct tokens t = tokens_make(&m, 120, 990);
            const int bad = from_prompt ? 3 : 45, n_prompt = from_prompt ? 64 : 20;
            for (int d = 0; d < 128; d++)
                t.v[bad * t.kv_stride + d] = d % 2 ? NAN : INFINITY;
            FOR_EACH_ISA(isa)
            for (int simulate = 0; simulate <= 1; simulate++)
                for (int threads = 1; threads <= 3; threads += 2) {
                    struct ops ops = {.isa = isa, .pool = threads > 1 ? pool_of(threads) : NULL};
                    struct evict window = {.policy = EVICT_WINDOW, .simulate = simulate};
                    struct row r = row_run(&ops, &m, &t, window, limits, n_prompt, 1);
                    for (int i = from_prompt ? n_prompt : bad + 42; i < 120; i++)
                        for (int d = 0; d < 4 * 64; d++)
                            assert_true(isfinite(r.out[i * t.q_stride + d]));
                    row_free(&r);
                    if (ops.pool)
                        pool_close(ops.pool);
                }
            tokens_free(&t);
        }
}

/* 100,000 slots, 32 query heads over 8 KV heads of 128: the logits of a whole row are kept only
 * where scores are made of them. */
static void scratch_of_a_long_row(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best()};
    int64_t plain_bytes = attend_forced_scratch_bytes(&ops, 1, 100000, 32, 8, 128, 0);
    int64_t score_bytes = attend_forced_scratch_bytes(&ops, 1, 100000, 32, 8, 128, 1);
    int64_t splits = (100000 / 256 + 2) * 32 * (128 + 3) * 4;
    assert_true(plain_bytes > splits && plain_bytes < splits + (256 << 10));
    assert_true(score_bytes > plain_bytes + 99000 * 32 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_equals_ref),
        cmocka_unit_test(forced_splits_equal_ref),
        cmocka_unit_test(caps_and_sinks_equal_ref),
        cmocka_unit_test(values_may_be_keys),
        cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(forced_spans_may_be_cut),
        cmocka_unit_test(newcomer_goes_unless_recent),
        cmocka_unit_test(scores_freeze_without_recent),
        cmocka_unit_test(a_long_row_evicts_once_a_token),
        cmocka_unit_test(prompts_keep_what_ref_keeps),
        cmocka_unit_test(of_equal_ranks_the_oldest_goes),
        cmocka_unit_test(large_budgets_are_full),
        cmocka_unit_test(weights_sum_to_the_group),
        cmocka_unit_test(a_prompt_scores_as_its_tokens),
        cmocka_unit_test(a_short_prompt_is_all_window),
        cmocka_unit_test(all_recent_is_streaming),
        cmocka_unit_test(simulation_is_eviction),
        cmocka_unit_test(invariants_hold),
        cmocka_unit_test(slots_hold_their_positions),
        cmocka_unit_test(the_ring_holds_the_newest),
        cmocka_unit_test(nan_does_not_stop_a_row),
        cmocka_unit_test(a_nan_query_adds_nothing),
        cmocka_unit_test(bad_values_leave_with_their_slot),
        cmocka_unit_test(scratch_of_a_long_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
