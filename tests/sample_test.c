/* tests/sample_test.c - edits, filters and noise against slow and obvious versions, through the
 * real head. */
#include "engine/job/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define V   3000
#define MAX 64

static float logits[V];
static int32_t tokens[MAX];

static struct request make(int n_prompt, int n_tokens)
{
    struct request r = {.index = 3,
                        .kind = REQUEST_GENERATE,
                        .tokens = tokens,
                        .n_prompt = n_prompt,
                        .n_tokens = n_tokens,
                        .n_cap = MAX};
    r.sampling.top_p = r.sampling.repetition_penalty = 1;
    return r;
}

static void fill(uint64_t seed)
{
    for (int i = 0; i < V; i++)
        logits[i] = (float)(mix64(seed * 7919 + (uint64_t)i) >> 40) / (float)(1 << 24) * 12 - 6;
}

static struct logit_edit edits[4096];
static struct head_candidate candidates[HEAD_SAMPLE_MAX];

struct chosen {
    struct head_request q;
    struct head_result s;
};

/* The whole way of one position. */
static int32_t choose(struct chosen *c, const struct request *r, const int32_t *stops, int n_stops)
{
    c->q = sample_request(r, r->n_tokens - 1, 1, 0, stops, n_stops, 0, edits);
    head_start(&c->s);
    assert_true(c->q.n_edits <= sample_edits_max(r, n_stops));
    for (int i = 1; i < c->q.n_edits; i++)
        assert_true(edits[i - 1].id < edits[i].id);
    ops_run_head_reduce(&(struct ops){.isa = ISA_PORTABLE},
                        &(struct head_reduce_args){.logits = logits,
                                                   .stride = V,
                                                   .requests = &c->q,
                                                   .results = &c->s,
                                                   .edits = edits,
                                                   .candidates = candidates,
                                                   .m = 1,
                                                   .n = V});
    return sample_token(&c->q, &c->s, candidates, r);
}

static void greedy_and_ties(void **state)
{
    (void)state;
    struct chosen s;
    struct request r = make(2, 5);
    fill(1);
    logits[77] = logits[200] = 50;
    assert_int_equal(choose(&s, &r, NULL, 0), 77);
    r.logprobs = 1;
    assert_int_equal(choose(&s, &r, NULL, 0), 77);
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += exp((double)logits[i] - 50);
    assert_true(fabs(sample_logprob(&s.s, s.s.sample_logit) + log(sum)) < 1e-5);
}

static void noise_is_a_function(void **state)
{
    (void)state;
    struct chosen s;
    struct request r = make(2, 5);
    r.sampling.temperature = 1;
    int32_t first, seen_other = 0;
    fill(2);
    first = choose(&s, &r, NULL, 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(choose(&s, &r, NULL, 0), first);
    for (int i = 1; i < 20; i++) {
        struct request other = r;
        other.sampling.seed = (uint64_t)(i % 3 == 0 ? i : 0);
        other.index += i % 3 == 1 ? i : 0;
        other.n_tokens += i % 3 == 2 ? i : 0;
        seen_other += choose(&s, &other, NULL, 0) != first;
    }
    assert_true(seen_other > 15);
}

/* Sampled frequencies follow softmax(logits / T). */
static void frequencies(void **state)
{
    (void)state;
    enum { N = 3000, FEW = 6 };
    static const float few[FEW] = {2, 1.5f, 1, 0, -1, 2.2f};
    for (int filtered = 0; filtered < 2; filtered++) {
        int count[FEW] = {0};
        double p[FEW], total = 0;
        struct request r = make(2, 5);
        r.sampling.temperature = 0.8;
        r.sampling.top_k = filtered ? 4 : 0;
        for (int i = 0; i < V; i++)
            logits[i] = i < FEW ? few[i] : -40;
        for (int i = 0; i < FEW; i++) {
            p[i] = filtered && (i == 3 || i == 4) ? 0 : exp((double)few[i] / 0.8);
            total += p[i];
        }
        for (int n = 0; n < N; n++) {
            struct chosen s;
            r.sampling.seed = (uint64_t)n;
            int32_t id = choose(&s, &r, NULL, 0);
            assert_in_range(id, 0, FEW - 1);
            count[id]++;
        }
        for (int i = 0; i < FEW; i++) {
            double want = p[i] / total, got = (double)count[i] / N;
            assert_true(fabs(got - want) <=
                        4 * sqrt(want * (1 - want) / N) + (want == 0 ? 0 : 1e-6));
        }
    }
}

/* ---- filters, against a sort ---- */

static int by_logit(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static int32_t slow_choice(const struct request *r, uint64_t key)
{
    static int32_t order[V];
    const struct sampling *p = &r->sampling;
    int n = HEAD_SAMPLE_MAX, kept = 0;
    double total = 0, seen = 0, t = p->temperature;
    for (int i = 0; i < V; i++)
        order[i] = i;
    qsort(order, V, sizeof *order, by_logit);
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    for (int i = 0; i < n; i++)
        total += exp((logits[order[i]] - logits[order[0]]) / t);
    for (; kept < n; kept++) {
        double w = exp((logits[order[kept]] - logits[order[0]]) / t);
        if (kept > 0 && (seen >= p->top_p * total || w < p->min_p))
            break;
        seen += w;
    }
    int32_t best = -1;
    float best_value = -INFINITY;
    for (int i = 0; i < kept; i++) {
        float v = logits[order[i]] / (float)t + head_gumbel(key, order[i]);
        if (v > best_value || (v == best_value && order[i] < best)) {
            best_value = v;
            best = order[i];
        }
    }
    return best;
}

static void filters(void **state)
{
    (void)state;
    for (int i = 0; i < 400; i++) {
        struct request r = make(2, 5);
        struct sampling *p = &r.sampling;
        struct chosen s;
        fill((uint64_t)i);
        if (i % 4 == 0) // many ties
            for (int k = 0; k < V; k++)
                logits[k] = rintf(logits[k]);
        p->seed = (uint64_t)i;
        p->temperature = i % 3 ? 0.7 : 2;
        p->top_k = i % 2 ? 1 + i % 50 : 0;
        p->top_p = i % 3 == 1 ? 0.03 + i % 30 / 31.0 : 1;
        p->min_p = i % 5 == 0 ? 0.3 : p->top_k || p->top_p < 1 ? 0 : 0.001;
        assert_true(sample_filters(&r));
        int32_t got = choose(&s, &r, NULL, 0);
        assert_int_equal(got, slow_choice(&r, s.q.noise_key));
    }
    struct request r = make(2, 5);
    r.sampling.top_k = 1; // whatever the temperature: the best one
    r.sampling.temperature = 50;
    fill(9);
    logits[1234] = 90;
    struct chosen s;
    assert_int_equal(choose(&s, &r, NULL, 0), 1234);
    r.sampling.temperature = 0;
    assert_false(sample_filters(&r));
}

/* ---- edits ---- */

static float edited(const struct chosen *c, int32_t id)
{
    float x = logits[id];
    for (int i = 0; i < c->q.n_edits; i++)
        if (edits[i].id == id)
            x = (x > 0 ? x / edits[i].repeat : x * edits[i].repeat) + edits[i].add;
    return x;
}

static void penalties(void **state)
{
    (void)state;
    static const int32_t row[] = {10, 11, 12, 20, 21, 20, 20};
    struct logit_edit bias[] = {{.id = 5, .repeat = 1, .add = 3},
                                {.id = 20, .repeat = 1, .add = -1}};
    struct chosen s;
    memcpy(tokens, row, sizeof row);
    struct request r = make(3, 7);
    fill(3);
    logits[20] = 4;
    logits[10] = -2;
    r.sampling.presence_penalty = 0.5;
    r.sampling.frequency_penalty = 0.25;
    choose(&s, &r, NULL, 0);
    assert_int_equal(s.q.n_edits, 2); // generated tokens only
    assert_true(edited(&s, 20) == 4 - 0.5f - 3 * 0.25f);
    assert_true(fabsf(edited(&s, 21) - (logits[21] - 0.75f)) < 1e-6f);
    r.sampling.repetition_penalty = 2; // prompt too
    r.sampling.bias = bias;
    r.sampling.n_bias = 2;
    choose(&s, &r, NULL, 0);
    assert_int_equal(s.q.n_edits, 6);
    assert_true(edited(&s, 20) == 4 / 2.0f - 1.25f - 1);
    assert_true(edited(&s, 10) == -4);
    assert_true(edited(&s, 5) == logits[5] + 3);
    r.sampling.presence_penalty = r.sampling.frequency_penalty = 0;
    choose(&s, &r, NULL, 0);
    assert_int_equal(s.q.n_edits, 6);
    assert_true(edited(&s, 21) == (logits[21] > 0 ? logits[21] / 2 : logits[21] * 2));
}

static void banned_stops(void **state)
{
    (void)state;
    static const int32_t stops[] = {40, 41};
    int32_t own[] = {42};
    struct chosen s;
    struct request r = make(3, 5);
    for (int i = 0; i < V; i++)
        logits[i] = i == 40 ? 9 : i == 41 ? 8 : i == 42 ? 7 : i == 43 ? 6 : 0;
    r.stop_ids = own;
    r.n_stop_ids = 1;
    r.sampling.min_tokens = 3; // two are there: the third may not be a stop
    assert_int_equal(choose(&s, &r, stops, 2), 43);
    r.n_tokens = 6;
    assert_int_equal(choose(&s, &r, stops, 2), 40);
    r.n_tokens = 5;
    r.ignore_eos = 1; // then they are tokens like others; the row's own stay stops
    assert_int_equal(choose(&s, &r, stops, 2), 40);
    logits[40] = logits[41] = 0;
    assert_int_equal(choose(&s, &r, stops, 2), 43);
    r.sampling.temperature = 1;
    r.sampling.top_k = 2;
    logits[43] = -90;
    for (int i = 0; i < 50; i++) {
        r.sampling.seed = (uint64_t)i;
        assert_int_not_equal(choose(&s, &r, stops, 2), 42);
    }
}

static void no_numbers(void **state)
{
    (void)state;
    struct chosen s;
    struct request r = make(2, 5);
    for (int filtered = 0; filtered < 2; filtered++) {
        r.sampling.temperature = filtered;
        r.sampling.top_k = filtered;
        fill(4);
        logits[17] = NAN;
        assert_int_equal(choose(&s, &r, NULL, 0), -1);
        fill(4);
        logits[17] = INFINITY;
        assert_int_equal(choose(&s, &r, NULL, 0), -1);
        for (int i = 0; i < V; i++)
            logits[i] = -INFINITY;
        assert_int_equal(choose(&s, &r, NULL, 0), -1);
    }
}

static void wants(void **state)
{
    (void)state;
    struct request r = make(2, 5);
    r.logprobs = 1;
    r.top_logprobs = 5;
    tokens[3] = 99;
    struct head_request q = sample_request(&r, 2, 0, 1, NULL, 0, 3, edits);
    assert_int_equal(q.want, HEAD_SCORE | HEAD_TOP);
    assert_true(q.target == 99 && q.n_top == 5 && q.place == 3);
    q = sample_request(&r, 4, 1, 0, NULL, 0, 0, edits);
    assert_int_equal(q.want, HEAD_SCORE | HEAD_TOP | HEAD_SAMPLE);
    assert_int_equal(q.target, -1);
    r.kind = REQUEST_SCORE;
    r.top_logprobs = 0;
    q = sample_request(&r, 2, 0, 1, NULL, 0, 0, NULL);
    assert_int_equal(q.want, HEAD_SCORE);
    assert_int_equal(sample_edits_max(&r, 7), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_and_ties), cmocka_unit_test(noise_is_a_function),
        cmocka_unit_test(frequencies),     cmocka_unit_test(filters),
        cmocka_unit_test(penalties),       cmocka_unit_test(banned_stops),
        cmocka_unit_test(no_numbers),      cmocka_unit_test(wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
