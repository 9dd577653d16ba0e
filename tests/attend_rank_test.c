/* tests/attend_rank_test.c - attention where positions are ranks: keys stand as they were before
 * they were rotated, and each is rotated by how many of its head's slots are older.
 *
 * kernels/ref counts the ranks anew for every token; what rows carry is held to that. */
#include "tests/attend_help.h"

/* Every policy and scope, in pages and rings; all of a head is rotated, or a part of it. */
static void forced_equals_ref(void **state)
{
    (void)state;
    static const struct model models[] = {
        {9, 3, 64, KV_BF16, KV_BF16}, {2, 2, 32, KV_F32, KV_F32},  {8, 1, 80, KV_F32, KV_Q4},
        {10, 2, 34, KV_F32, KV_Q8},   {4, 2, 128, KV_BF16, KV_Q4}, {9, 3, 64, KV_BF16, KV_MIXED},
        {8, 1, 80, KV_F32, KV_MIXED},
    };
    const int n_models = (int)(sizeof models / sizeof *models);
    for (int i = 0; i < n_models; i++) {
        const int dim = models[i].head_dim;
        attend_rope = angles_make(i % 3 == 1 ? dim / 4 * 2 : dim, 128, i % 2 ? 1.25f : 1);
        const int step = sweep(n_models, 1); // each scenario meets one model
        for (int s = 1 + i % step; s < N_SCENARIOS; s += step) {
            struct scenario scenario = scenarios[s];
            scenario.evict.simulate = (s + i) % 3 == 0;
            forced_check(&models[i], (s + i) % 2 ? 50 : 20, 40, scenario);
        }
        angles_free(&attend_rope);
    }
}

/* Pages of keys only, of whose numbers the first are rotated. */
static void values_may_be_keys(void **state)
{
    (void)state;
    attend_values = VALUES_ARE_KEYS;
    for (int i = 0; i < 5; i++) {
        const struct model m = {i % 2 ? 9 : 4, 1, i % 2 ? 576 : 80, KV_F32, (enum kv_format)i};
        struct scenario s = scenarios[1 + 5 * i % (N_SCENARIOS - 1)];
        s.evict.simulate = i % 3 == 0;
        attend_rope = angles_make(i % 2 ? 64 : 16, 128, i % 3 ? 1.25f : 1);
        forced_check(&m, 50, 40, s);
        angles_free(&attend_rope);
    }
    attend_values = VALUES_APART;
}

/* More than one split of 256 slots. */
static void splits_equal_ref(void **state)
{
    (void)state;
    struct scenario h2o = {{.policy = EVICT_H2O}, {290, 100, 0}};
    struct scenario simulate = {{.policy = EVICT_STREAMING, .simulate = 1}, {270, 266, 4}};
    attend_rope = angles_make(64, 512, 1);
    for (enum kv_format f = KV_F32; f <= KV_MIXED; f += 2) {
        struct model m = {6, 2, 64, KV_BF16, f};
        forced_check(&m, 300, 6, h2o);
        forced_check(&m, 275, 6, simulate);
    }
    angles_free(&attend_rope);
}

/* Threads, who share a row's splits where there are many of them, and cuts of a span. */
static void threads_and_cuts_do_not_show(void **state)
{
    (void)state;
    static const struct scenario cases[] = {
        {{.policy = EVICT_STREAMING}, {300, 296, 4}},
        {{.policy = EVICT_H2O}, {290, 100, 0}},
        {{.policy = EVICT_H2O_MEAN, .scope = EVICT_SCOPE_LAYER}, {280, 100, 4}},
    };
    attend_rope = angles_make(48, 512, 1);
    threads_check(cases, (int)(sizeof cases / sizeof *cases), 310);
    angles_free(&attend_rope);
}

/* q and k of every token from `first`, rotated by their positions. */
static void tokens_turn(const struct model *m, struct tokens *t, int first,
                        const struct slot_rope *rope)
{
    const struct ops ops = {.isa = ISA_EXACT};
    for (int32_t pos = first; pos < t->n; pos++) {
        struct rope_args a = {.x = t->q + pos * t->q_stride,
                              .cos = rope->cos,
                              .sin = rope->sin,
                              .factors = rope->factors,
                              .pos = &pos,
                              .m = 1,
                              .n_heads = m->n_heads,
                              .head_dim = m->head_dim,
                              .rope_dim = rope->rope_dim};
        ops_run_rope(&ops, &a);
        a.x = t->k + pos * t->kv_stride;
        a.factors = NULL;
        a.n_heads = m->n_kv_heads;
        ops_run_rope(&ops, &a);
    }
}

/* While nothing goes ranks are positions: what comes out is what rotated keys give. */
static void ranks_are_positions_until_one_goes(void **state)
{
    (void)state;
    enum { PROMPT = 40, N = 90 };
    static const int policies[] = {EVICT_STREAMING, EVICT_H2O, EVICT_EMA, EVICT_VLEN};
    const struct evict_row limits = {.budget = N, .recent = 45, .sink = 4};
    for (int i = 0; i < 8; i++) {
        const struct model m = {6, 2, 48, KV_F32, KV_F32};
        const struct evict e = {.policy = policies[i / 2]};
        struct tokens raw = tokens_make(&m, N, 40), turned = tokens_make(&m, N, 40);
        struct slot_rope rope = angles_make(i % 2 ? 48 : 32, N + 1, i % 2 ? 1 : 1.5f);
        struct ops ops = {.isa = isa_best(), .compute = COMPUTE_F32};
        tokens_turn(&m, &turned, 0, &rope);
        memcpy(raw.q, turned.q, (size_t)(PROMPT * raw.q_stride) * 4); // prompts come rotated
        memcpy(raw.k, turned.k, (size_t)(PROMPT * raw.kv_stride) * 4);
        struct row want = row_run(&ops, &m, &turned, e, limits, PROMPT, 7);
        attend_rope = rope;
        struct row got = row_run(&ops, &m, &raw, e, limits, PROMPT, 7);
        attend_rope = (struct slot_rope){0};
        assert_close(got.out, want.out, got.out_bytes / 4, 2e-5, "by rank and by position");
        for (int slot = 0; slot < 2 * N; slot++)
            assert_true(got.kv.slot_rank[slot] == got.kv.slot_pos[slot]);
        row_free(&want);
        row_free(&got);
        angles_free(&rope);
        tokens_free(&raw);
        tokens_free(&turned);
    }
}

/* A row of any length stays within the table of its budget, and its ranks are those of its
 * positions. */
static void a_long_row_stays_within_its_budget(void **state)
{
    (void)state;
    enum { N = 2000, BUDGET = 64, DIM = 32 };
    static const struct scenario cases[] = {
        {{.policy = EVICT_STREAMING}, {BUDGET, BUDGET - 4, 4}},
        {{.policy = EVICT_H2O}, {BUDGET, 20, 0}},
    };
    for (int i = 0; i < 4; i++) {
        struct model m = {4, 2, DIM, KV_F32, i % 2 ? KV_MIXED : KV_BF16};
        struct tokens t = tokens_make(&m, N, 77);
        struct ops ops = {.isa = isa_best()};
        attend_rope = angles_make(DIM, BUDGET + 1, 1);
        struct row r = row_run(&ops, &m, &t, cases[i / 2].evict, cases[i / 2].limits, 0, 100);
        const int cap = r.kv.slots_cap, R = r.kv.ring_slots;
        for (int head = 0; head < 2; head++)
            for (int a = 0; a < r.kv.n_slots + R; a++) {
                const int at = head * cap + (a < r.kv.n_slots ? a : cap - R + a - r.kv.n_slots);
                int older = 0;
                for (int b = 0; b < r.kv.n_slots + R; b++)
                    older += r.kv.slot_pos[head * cap +
                                           (b < r.kv.n_slots ? b : cap - R + b - r.kv.n_slots)] <
                             r.kv.slot_pos[at];
                assert_int_equal(r.kv.slot_rank[at], older);
            }
        for (int64_t k = 0; k < r.out_bytes / 4; k++)
            assert_true(isfinite(r.out[k]));
        row_free(&r);
        angles_free(&attend_rope);
        tokens_free(&t);
    }
}

/* Of one prompt the CPU keeps what kernels/ref keeps, bit for bit, and as many keys rotated back.
 */
static void prompts_keep_what_ref_keeps(void **state)
{
    (void)state;
    static const struct model models[] = {{6, 3, 64, KV_BF16, KV_BF16},
                                          {4, 4, 32, KV_F32, KV_F32},
                                          {6, 2, 64, KV_BF16, KV_MIXED},
                                          {4, 2, 48, KV_F32, KV_Q8}};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        attend_rope = angles_make(models[k].head_dim, 130, k % 2 ? 1.25f : 1);
        for (int s = 1; s < N_SCENARIOS; s++)
            for (int n = 30; n <= 130; n += 50) {
                const struct model *m = &models[k];
                struct scenario c = scenarios[s];
                struct ops ref = {.isa = ISA_REF}, ops = {.isa = isa_best()};
                struct tokens t = tokens_make(m, n, 900 + (uint64_t)s);
                c.evict.simulate = s % 2;
                struct row a = row_make(m, &t, c.evict, c.limits, n);
                struct row b = row_make(m, &t, c.evict, c.limits, n);
                row_prompt_kept_by(&ops, &ref, m, &t, &a, n);
                row_prompt_kept_by(&ops, &ops, m, &t, &b, n);
                rows_same(&b, &a, "kept");
                row_free(&a);
                row_free(&b);
                tokens_free(&t);
            }
        angles_free(&attend_rope);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_equals_ref),
        cmocka_unit_test(values_may_be_keys),
        cmocka_unit_test(splits_equal_ref),
        cmocka_unit_test(threads_and_cuts_do_not_show),
        cmocka_unit_test(ranks_are_positions_until_one_goes),
        cmocka_unit_test(a_long_row_stays_within_its_budget),
        cmocka_unit_test(prompts_keep_what_ref_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
