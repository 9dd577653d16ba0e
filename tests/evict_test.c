/* tests/evict_test.c - the table of eviction policies: defaults, scores and static patterns,
 * as the numbers that kernels read. What kernels make of them is attend_test's. */
#include "policy/evict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect_row(int policy, double budget, int recent, int sink)
{
    struct evict e = {.policy = policy, .budget = budget, .sink = -1};
    struct evict_row row;
    assert_int_equal(evict_row_init(&e, 500, 10, &row), 0);
    assert_int_equal(row.recent, recent);
    assert_int_equal(row.sink, sink);
}

static void defaults_are_the_policys(void **state)
{
    (void)state;
    expect_row(EVICT_STREAMING, 64, 60, 4);
    expect_row(EVICT_H2O, 65, 32, 0);
    expect_row(EVICT_H2O_HF, 64, 32, 0);
    expect_row(EVICT_EMA, 64, 32, 4);
    expect_row(EVICT_TOVA, 64, 1, 0);
    expect_row(EVICT_SNAPKV, 64, 32, 0);
    expect_row(EVICT_SCISSORHANDS, 64, 32, 0);
    expect_row(EVICT_VLEN, 64, 32, 4);
    expect_row(EVICT_QHITTER, 65, 32, 4);
    expect_row(EVICT_HEAVY, 64, 1, 0);
    expect_row(EVICT_SCISSORHANDS, 20, 20, 0); // a count gives way to the budget
    for (int policy = 0; policy < N_EVICT_POLICIES; policy++) {
        const int layer = policy == EVICT_TOVA;
        assert_int_equal(evict_rule_of(policy).scope, layer ? EVICT_SCOPE_LAYER : EVICT_SCOPE_HEAD);
        assert_true(strlen(evict_policy_goes(policy)) > 0);
        assert_non_null(strstr(EVICT_NAMES, evict_policy_name(policy)));
    }
    assert_memory_equal(EVICT_NAMES, "full|window|", 12);
}

/* Plays weights of n queries, the last `decoded` of them by decode's rule. */
static float played(struct evict_rule s, const float *weights, int n, int decoded)
{
    float score = 0;
    for (int q = 0; q < n - decoded; q++)
        score += weights[q] * evict_query_worth(&s, q, n - decoded);
    for (int q = n - decoded; q < n; q++)
        score = evict_score_next(&s, score, weights[q], 1, q);
    return score;
}

/* A prompt's sum is what decode's steps come to, wherever the prompt ends; a decayed sum with d 1
 * is the sum, with d 0 the last query's weight. */
static void prompts_and_steps_agree(void **state)
{
    (void)state;
    enum { N = 24 };
    static const struct evict_rule one = {.source = EVICT_WEIGHTS, .last = INT32_MAX, .keep = 1};
    static const struct evict_rule none = {.source = EVICT_WEIGHTS, .last = INT32_MAX};
    float weights[N], sum = 0, decayed = 0;
    for (int i = 0; i < N; i++) {
        weights[i] = (float)(i * 7 % 11 + 1) / 16;
        sum += weights[i];
        decayed = decayed * 0.98f + weights[i];
    }
    for (int decoded = 0; decoded <= N; decoded++) {
        assert_true(fabsf(played(evict_rule_of(EVICT_EMA), weights, N, decoded) - decayed) < 1e-5);
        assert_true(played(evict_rule_of(EVICT_TOVA), weights, N, decoded) == weights[N - 1]);
        assert_true(played(evict_rule_of(EVICT_H2O), weights, N, decoded) == sum);
        assert_true(played(one, weights, N, decoded) == sum);
        assert_true(played(none, weights, N, decoded) == weights[N - 1]);
    }
    struct evict_rule snapkv = evict_rule_of(EVICT_SNAPKV);
    assert_true(evict_query_worth(&snapkv, 83, 100) == 0);
    assert_true(evict_query_worth(&snapkv, 84, 100) == 1);
    assert_true(evict_query_worth(&snapkv, 0, 16) == 1);
    static const float scores[] = {1, 2, 3, 9, 1, 1, 1, 8};
    static const float pooled[] = {9, 9, 9, 9, 9, 9, 9, 8};
    for (int pos = 0; pos < 8; pos++)
        assert_true(evict_score_pooled(&snapkv, scores, pos, 8) == pooled[pos]);
}

/* The last 32 answers and no more; at the mean is not below it. */
static void hits_are_counted(void **state)
{
    (void)state;
    const struct evict_rule s = evict_rule_of(EVICT_SCISSORHANDS);
    const union {
        uint32_t u;
        float f;
    } bits = {UINT32_MAX};
    float score = 0;
    int want = 0, answers[100];
    for (int now = 0; now < 100; now++) {
        answers[now] = now % 3 != 0 || now > 60;
        const float mean = 4.0f / (float)(now + 1);
        score = evict_score_next(&s, score, answers[now] ? mean * 1.01f : mean * 0.99f, 4, now);
        want += answers[now] - (now >= 32 ? answers[now - 32] : 0);
        assert_true(evict_score_value(&s, score, 0) == (float)want);
    }
    assert_int_equal(evict_scissorhands_bits(evict_score_next(&s, 0, 0.5f, 2, 3)), 1);
    const float all = evict_scissorhands_join(0, bits.f, 32);
    assert_int_equal(evict_scissorhands_bits(evict_scissorhands_join(score, 1.5f, 32)),
                     evict_scissorhands_bits(1.5f));
    assert_true(evict_score_value(&s, all, 0) == 32);
    const struct evict_rule h2o = evict_rule_of(EVICT_H2O);
    assert_true(evict_score_value(&h2o, 2.5f, 7) == 2.5f);
}

/* Only who has a trait pays for one; what it makes of a score. */
static void traits_count(void **state)
{
    (void)state;
    static const int traits[N_EVICT_POLICIES] = {
        [EVICT_VLEN] = EVICT_VALUE_NORM, [EVICT_QHITTER] = EVICT_CODES_LEFT};
    for (int policy = 0; policy < N_EVICT_POLICIES; policy++)
        assert_int_equal(evict_policy_trait(policy), traits[policy]);
    const struct evict_rule vlen = evict_rule_of(EVICT_VLEN);
    const struct evict_rule qhitter = evict_rule_of(EVICT_QHITTER);
    assert_true(evict_score_value(&vlen, 3, 0.5f) == 1.5f);
    assert_true(evict_score_value(&qhitter, 3, 0.75f) == 2.25f);
}

/* Of a prompt snapkv protects the queries that its scores are of, whatever decode protects. */
static void a_prompt_protects_its_window(void **state)
{
    (void)state;
    const struct evict_row row = {.budget = 64, .recent = 32, .sink = 4};
    assert_int_equal(evict_behind_prompt(EVICT_SNAPKV, &row, 8).recent, 16);
    assert_int_equal(evict_behind_prompt(EVICT_SNAPKV, &row, 20).recent, 20);
    assert_int_equal(evict_behind_prompt(EVICT_H2O, &row, 8).recent, 32);
}

/* h2o-hf hides who has just left the window once a row has had more tokens than its budget: with H
 * = R = 4 a token at 20 does not see 16. */
static void the_gap_is_behind_the_window(void **state)
{
    (void)state;
    const struct evict_rule gapped = evict_rule_of(EVICT_H2O_HF);
    const struct evict_rule h2o = evict_rule_of(EVICT_H2O);
    const struct evict_row row = {.budget = 8, .recent = 4}, none = {.budget = 8};
    assert_int_equal(evict_hidden(&gapped, &row, 20), 16);
    assert_int_equal(evict_hidden(&gapped, &row, 9), 5);
    assert_int_equal(evict_hidden(&gapped, &row, 8), -1);
    assert_int_equal(evict_hidden(&gapped, &none, 20), -1);
    assert_int_equal(evict_hidden(&h2o, &row, 20), -1);
    assert_false(evict_protected(&row, 16, 20)); // it may go in the same step
    assert_true(evict_prompt_scores(EVICT_H2O_HF) && evict_decode_scores(EVICT_H2O_HF));
}

/* At most n_slots positions that are not recent, however long the text, and who is out once has
 * never been in later: a pattern cannot ask for what is gone. */
static void patterns_fit(void **state)
{
    (void)state;
    static const int policies[] = {EVICT_STRIDED, EVICT_STRIDED_H2O, EVICT_FIXED, EVICT_FIXED_H2O};
    static const struct evict_row rows[] = {{.budget = 48, .recent = 24},
                                            {.budget = 33, .recent = 8, .sink = 1},
                                            {.budget = 40, .recent = 40},
                                            {.budget = 64, .recent = 1, .sink = 4}};
    for (int p = 0; p < 4; p++)
        for (int r = 0; r < 4; r++) {
            const struct evict_row *row = &rows[r];
            const int left = row->budget - row->recent - row->sink;
            const int most = p % 2 ? left / 2 : left;
            int gone[600] = {0}, best = 0;
            for (int now = row->recent; now < 600; now++) {
                int n = 0;
                for (int pos = 0; pos <= now - row->recent; pos++) {
                    const int in = evict_rank(policies[p], row, 1, pos, now) == INFINITY;
                    assert_true(!in || !gone[pos]);
                    gone[pos] = !in;
                    n += in;
                }
                assert_true(n <= most);
                best = n > best ? n : best;
            }
            assert_true(best > most * 3 / 4 || most < 4); // and it is made use of
        }
}

/* Rows may go on as long as their budget leaves every rank within the context. */
static void rows_go_on_by_slot(void **state)
{
    (void)state;
    struct evict e = {.policy = EVICT_STREAMING, .budget = 63, .sink = -1};
    struct evict_row row;
    assert_int_equal(evict_tokens_max(&e, 64), 64);
    e.positions = EVICT_POSITIONS_SLOT;
    assert_int_equal(evict_tokens_max(&e, 64), EVICT_TOKENS_MAX);
    e.budget = 64;
    assert_int_equal(evict_tokens_max(&e, 64), 64);
    e.budget_is_fraction = 1;
    for (int i = 1; i < 100; i++) {
        e.budget = i / 100.0;
        const int64_t most = evict_tokens_max(&e, 512);
        assert_int_equal(evict_row_init(&e, most, 0, &row), 0);
        assert_true(evict_rank_new(&row, (int)most - 1) < 512);
        evict_row_init(&e, most + 100 / i + 1, 0, &row);
        assert_true(row.budget >= 512);
    }
    e.budget = 0;
    assert_int_equal(evict_tokens_max(&e, 512), EVICT_TOKENS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_policys),
        cmocka_unit_test(prompts_and_steps_agree),
        cmocka_unit_test(hits_are_counted),
        cmocka_unit_test(traits_count),
        cmocka_unit_test(a_prompt_protects_its_window),
        cmocka_unit_test(the_gap_is_behind_the_window),
        cmocka_unit_test(patterns_fit),
        cmocka_unit_test(rows_go_on_by_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
