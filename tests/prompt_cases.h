/* tests/prompt_cases.h - attention of prompts: against kernels/ref, and bit against bit over tile
 * cuts, threads and mates. prompt_test.c runs these on this CPU, simt_prompt_test.c on the SIMT
 * shim.
 *
 * The includer says where ops run: variant(i) is the i-th place to test, with isa N_ISAS behind the
 * last; tested() says whether these places compute so, by_pairs() whether a place multiplies pairs
 * of bf16, and WHOLE how far the weights of a query, which are summed before, may add up to another
 * number than 1. */
#ifndef TESTS_PROMPT_CASES_H
#define TESTS_PROMPT_CASES_H

#include "tests/ops_help.h"

struct model {
    int n_heads, n_kv_heads, head_dim;
    enum kv_format format; // of the workspace
};

struct prompt {
    int n;
    float *q, *k, *v; // [n, q_stride], [n, kv_stride]
    uint8_t *pages;   // NaN where nothing was stored
    float *out;       // [n, q_stride]
    float *scores;    // [n_kv_heads, n_pad]
    int64_t out_bytes, scores_bytes;
};

static int q_stride(const struct model *m)
{
    return m->n_heads * m->head_dim + (m->n_heads % 2 ? 5 : 4); // rows of q on 16 bytes and not
}

static int kv_stride(const struct model *m)
{
    return m->n_kv_heads * m->head_dim + 3;
}

static struct prompt prompt_make(const struct model *m, int n, uint64_t seed)
{
    struct kv_layout l;
    kv_layout_init(&l, m->format, m->n_kv_heads, m->head_dim);
    int64_t page_bytes = ceil_div(n, PAGE_SLOTS) * l.page_bytes;
    struct prompt p = {.n = n,
                       .q = noise_array(seed, (int64_t)n * q_stride(m), 3),
                       .k = noise_array(seed + 1, (int64_t)n * kv_stride(m), 2),
                       .v = noise_array(seed + 2, (int64_t)n * kv_stride(m), 1),
                       .pages = memset(take(page_bytes), 0xff, (size_t)page_bytes),
                       .out_bytes = (int64_t)n * q_stride(m) * 4,
                       .scores_bytes = m->n_kv_heads * round_up(n, PAGE_SLOTS) * 4};
    p.out = take(p.out_bytes);
    p.scores = take(p.scores_bytes);
    return p;
}

static void prompt_free(struct prompt *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->pages);
    free(p->out);
    free(p->scores);
}

/* All prompts' arrays one behind the other, a token and a page in front: what ops see. */
struct joint {
    int64_t n_tokens, n_pages, gap; // gap: scores of a page
    float *q, *out, *scores;
    uint8_t *pages;
};

static void joint_move(void *own, void *joint, int64_t n_bytes, int back)
{
    memcpy(back ? own : joint, back ? joint : own, (size_t)n_bytes);
}

static void joint_copy(struct joint *j, const struct model *m, struct prompt *const *p,
                       int n_prompts, int64_t page_bytes, int back)
{
    int64_t token = 1, page = 1, qs = q_stride(m);
    for (int i = 0; i < n_prompts; i++) {
        int64_t n_pages = ceil_div(p[i]->n, PAGE_SLOTS);
        joint_move(p[i]->q, j->q + token * qs, p[i]->out_bytes, back);
        joint_move(p[i]->out, j->out + token * qs, p[i]->out_bytes, back);
        joint_move(p[i]->pages, j->pages + page * page_bytes, n_pages * page_bytes, back);
        joint_move(p[i]->scores, j->scores + page * j->gap, p[i]->scores_bytes, back);
        token += p[i]->n;
        page += n_pages;
    }
}

static void (*attend)(const struct ops *ops, const struct attend_prompt_args *args) =
    ops_run_attend_prompt;     // of all calls
static int policy = EVICT_H2O; // of all calls: whose scores
static int window;             // of all calls; 0: none
static float cap;              // likewise
static const float *sinks;     // [n_heads]; NULL: none

/* Queries [first, first + n) of several prompts in one call, each as far as it has any. */
static void prompts_call(const struct ops *ops, const struct model *m, struct prompt *const *p,
                         int n_prompts, int first, int n, int with_scores)
{
    struct kv_layout l;
    struct prompt_span spans[8];
    struct joint j = {.n_tokens = 1, .n_pages = 1, .gap = (int64_t)PAGE_SLOTS * m->n_kv_heads};
    int n_spans = 0, longest = 0, n_max = 0, end_max = 0, qs = q_stride(m), kvs = kv_stride(m);
    kv_layout_init(&l, m->format, m->n_kv_heads, m->head_dim);
    for (int i = 0; i < n_prompts; i++) {
        int part = p[i]->n - first < n ? p[i]->n - first : n;
        if (part > 0) {
            n_max = part > n_max ? part : n_max;
            end_max = first + part > end_max ? first + part : end_max;
            ops_run_kv_store(ops, &(struct kv_store_args){.layout = l,
                                                          .pages = p[i]->pages,
                                                          .k = p[i]->k + (int64_t)first * kvs,
                                                          .v = p[i]->v + (int64_t)first * kvs,
                                                          .k_stride = kvs,
                                                          .v_stride = kvs,
                                                          .first = first,
                                                          .n = part});
            spans[n_spans++] = (struct prompt_span){.n_prompt = p[i]->n,
                                                    .first = first,
                                                    .n = part,
                                                    .token = (int)j.n_tokens + first,
                                                    .page = (int)j.n_pages};
        }
        longest = p[i]->n > longest ? p[i]->n : longest;
        j.n_tokens += p[i]->n;
        j.n_pages += ceil_div(p[i]->n, PAGE_SLOTS);
    }
    j.q = take(j.n_tokens * qs * 4);
    j.out = take(j.n_tokens * qs * 4);
    j.pages = take(j.n_pages * l.page_bytes);
    j.scores = take(j.n_pages * j.gap * 4);
    void *scratch =
        take(attend_prompt_scratch_bytes(ops, longest, m->n_heads, m->n_kv_heads, m->head_dim));
    joint_copy(&j, m, p, n_prompts, l.page_bytes, 0);
    attend(ops, &(struct attend_prompt_args){.layout = l,
                                             .q = j.q,
                                             .out = j.out,
                                             .pages = j.pages,
                                             .scores = with_scores ? j.scores : NULL,
                                             .policy = policy,
                                             .spans = spans,
                                             .n_spans = n_spans,
                                             .n_heads = m->n_heads,
                                             .n_max = n_max,
                                             .end_max = end_max,
                                             .scale = 0.2f,
                                             .cap = cap,
                                             .sinks = sinks,
                                             .window = window,
                                             .q_stride = qs,
                                             .out_stride = qs,
                                             .scratch = scratch});
    joint_copy(&j, m, p, n_prompts, l.page_bytes, 1);
    free(j.q);
    free(j.out);
    free(j.pages);
    free(j.scores);
    free(scratch);
}

static struct prompt prompt_run(const struct ops *ops, const struct model *m, int n, uint64_t seed,
                                int cut)
{
    struct prompt p = prompt_make(m, n, seed), *at = &p;
    for (int first = 0; first < n; first += cut)
        prompts_call(ops, m, &at, 1, first, cut, 1);
    return p;
}

static struct ops variant(int i);
static int tested(const struct model *m, enum compute compute);
/* Pairs of bf16 are multiplied: this place has bytes and tolerances of its own. */
static int by_pairs(const struct ops *ops, const struct model *m);
#define FOR_EACH_VARIANT(ops)                                                                      \
    for (int place = 0; place >= 0; place = -1)                                                    \
        for (struct ops ops = variant(place); ops.isa != N_ISAS; ops = variant(++place))

static void prompt_compare(const struct ops *ops, const struct model *m, const struct prompt *p,
                           const struct prompt *want)
{
    int pairs = by_pairs(ops, m);
    int64_t n_pad = round_up(p->n, PAGE_SLOTS);
    /* Pairs: values are within 1, weights are good to 2^-8 and lie on both sides of the truth. */
    assert_close(p->out, want->out, p->out_bytes / 4, pairs ? 0x1p-8 : 5e-6, "prompt");
    const struct evict_rule score = evict_rule_of(policy);
    double whole = 0; // a query's weights add up to 1 a head, or what it is worth
    for (int query = 0; query < p->n; query++)
        whole += (double)evict_query_worth(&score, query, p->n) * m->n_heads / m->n_kv_heads;
    for (int head = 0; head < m->n_kv_heads; head++) {
        double sum = 0;
        for (int64_t i = head * n_pad; i < (head + 1) * n_pad; i++) {
            double limit = (pairs ? 0x1p-8 : 1e-5) * want->scores[i] + 1e-5;
            if (!(fabs((double)p->scores[i] - want->scores[i]) <= limit))
                fail_msg("score %lld is %.9g, not %.9g", (long long)i, (double)p->scores[i],
                         (double)want->scores[i]);
            sum += p->scores[i];
        }
        assert_true(sinks ? sum < 0.99 * whole : fabs(sum - whole) < WHOLE * whole + 1e-4);
    }
}

/* Every set against ref; the bits of every set but the one that multiplies pairs are equal, and all
 * are over cuts and threads. */
static void prompt_check(const struct model *m, int n)
{
    static const int cuts[] = {1 << 20, 32, 64, 96, 256};
    for (enum compute compute = COMPUTE_BF16; compute <= COMPUTE_F32; compute++) {
        if (!tested(m, compute))
            continue;
        struct prompt want =
            prompt_run(&(struct ops){.isa = ISA_REF, .compute = compute}, m, n, 100, n);
        struct prompt first = {0};
        FOR_EACH_VARIANT(ops)
        for (int i = 0; i < 5; i += sweep_step(3)) {
            ops.compute = compute;
            ops.pool = pool_of(i / 2 + 1);
            struct prompt p = prompt_run(&ops, m, n, 100, cuts[i]);
            pool_close(ops.pool);
            prompt_compare(&ops, m, &p, &want);
            if (first.out && !(by_pairs(&ops, m) && i == 0)) {
                assert_same_bits(p.out, first.out, p.out_bytes, "outputs");
                assert_same_bits(p.scores, first.scores, p.scores_bytes, "scores");
            }
            prompt_free(&first);
            first = p;
        }
        prompt_free(&first);
        prompt_free(&want);
    }
}

static void prompts_equal_ref(void **state)
{
    (void)state;
    static const struct model models[] = {
        {1, 1, 32, KV_F32},  {3, 1, 64, KV_BF16}, {9, 3, 64, KV_BF16}, {8, 1, 80, KV_F32},
        {5, 5, 96, KV_BF16}, {14, 2, 33, KV_F32}, {6, 1, 72, KV_BF16}, {4, 2, 128, KV_BF16},
        {1, 1, 16, KV_BF16}, {3, 3, 33, KV_BF16}, {5, 1, 40, KV_F32},
    };
    static const int lengths[] = {1, 31, 32, 33, 70, 129};
    size_t step = (size_t)sweep_step(6);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t j = i % step; j < sizeof lengths / sizeof *lengths; j += step)
            prompt_check(&models[i], lengths[j]);
}

/* Several chunks of keys and several rounds of tiles. */
static void long_prompts_equal_ref(void **state)
{
    (void)state;
    prompt_check(&(struct model){2, 1, 16, KV_BF16}, 800);
    prompt_check(&(struct model){3, 1, 64, KV_BF16}, 513);
    prompt_check(&(struct model){1, 1, 512, KV_BF16}, 40);
    prompt_check(&(struct model){2, 2, 40, KV_F32}, 290);
}

/* Keys leave the window within pages, at their ends, before the first chunk of 256 and behind it.
 */
static void windows_equal_ref(void **state)
{
    (void)state;
    static const struct model models[] = {
        {3, 1, 64, KV_BF16}, {14, 2, 33, KV_F32}, {1, 1, 16, KV_BF16}, {4, 2, 72, KV_BF16}};
    static const int windows[] = {1, 7, 32, 33, 100}, lengths[] = {32, 70, 129};
    size_t step = (size_t)sweep_step(3);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t j = i % step; j < 5; j += step) {
            static const int policies[] = {EVICT_H2O, EVICT_EMA, EVICT_TOVA, EVICT_SNAPKV};
            window = windows[j];
            policy = policies[(i + j) % 4];
            prompt_check(&models[i], lengths[(i + j) % 3]);
        }
    policy = EVICT_EMA;
    window = 300;
    prompt_check(&models[0], 800);
    policy = EVICT_H2O;
    window = 31;
    prompt_check(&models[3], 600);
    window = 257;
    prompt_check(&models[2], 513);
    window = 0;
}

/* A cap below most logits, sinks about the greatest of them, both; with windows, over chunks. */
static void caps_and_sinks_equal_ref(void **state)
{
    (void)state;
    static const struct model models[] = {
        {3, 1, 64, KV_BF16}, {14, 2, 33, KV_F32}, {1, 1, 16, KV_BF16}, {4, 2, 72, KV_BF16}};
    static const int lengths[] = {32, 70, 129, 600};
    float *all = noise_array(8, 14, 4);
    for (int i = sweep(1, 0); i < 12; i += sweep(5, 1)) { // 1, 6, 11: a cap, sinks, both
        const int n = lengths[(i + i / 4) % 4];
        cap = i % 3 == 1 ? 0 : 2;
        sinks = i % 3 == 0 ? NULL : all;
        window = i % 2 ? n / 2 : 0;
        prompt_check(&models[i % 4], n);
    }
    cap = 0;
    sinks = NULL;
    window = 0;
    free(all);
}

/* Once a sink is beyond all logits nothing is left for the keys. */
static void a_sink_may_take_all(void **state)
{
    (void)state;
    static const struct model m = {2, 1, 32, KV_BF16};
    float *all = noise_array(8, 2, 0);
    all[0] = 1000;
    sinks = all;
    FOR_EACH_VARIANT(ops)
    for (enum compute compute = COMPUTE_BF16; compute <= COMPUTE_F32; compute++) {
        if (!tested(&m, compute))
            continue;
        ops.compute = compute;
        struct prompt p = prompt_run(&ops, &m, 70, 5, 32);
        double sum = 0;
        for (int i = 0; i < 70; i++)
            for (int d = 0; d < 32; d++) {
                assert_true(p.out[i * q_stride(&m) + d] == 0);
                assert_true(p.out[i * q_stride(&m) + 32 + d] != 0);
            }
        for (int i = 0; i < 70; i++)
            sum += p.scores[i];
        assert_true(sum > 10 && sum < 70); // of the other head
        prompt_free(&p);
    }
    sinks = NULL;
    free(all);
}

/* Prompts of one call leave each other alone, whatever the threads and whoever wants scores. */
static void prompts_share_a_call(void **state)
{
    (void)state;
    enum { N = 5 };
    static const struct model m = {6, 2, 64, KV_BF16};
    static const int lengths[N] = {40, 1, 330, 32, 97};
    FOR_EACH_VARIANT(ops)
    for (int run = 0; run < 10; run += sweep(3, 1)) {
        static const int policies[] = {EVICT_H2O, EVICT_EMA, EVICT_SCISSORHANDS, EVICT_SNAPKV};
        ops.pool = pool_of(1 + run / 2);
        int with_scores = run % 5 != 0;
        policy = policies[run % 4];
        struct prompt together[N], *at[N];
        for (int i = 0; i < N; i++) {
            together[i] = prompt_make(&m, lengths[i], 40 + (uint64_t)i);
            at[i] = &together[i];
        }
        prompts_call(&ops, &m, at, N, 0, 1 << 20, with_scores);
        for (int i = 0; i < N; i++) {
            struct prompt alone = prompt_run(&ops, &m, lengths[i], 40 + (uint64_t)i, 64);
            assert_same_bits(together[i].out, alone.out, alone.out_bytes, "mates' outputs");
            if (with_scores)
                assert_same_bits(together[i].scores, alone.scores, alone.scores_bytes, "scores");
            prompt_free(&alone);
        }
        for (int i = 0; i < N; i++)
            prompt_free(&together[i]);
        pool_close(ops.pool);
    }
    policy = EVICT_H2O;
}

/* What follows a query, be it no number at all, does not reach it. */
static void prompts_are_causal(void **state)
{
    (void)state;
    enum { N = 300, BAD = 270 };
    static const struct model m = {3, 1, 80, KV_BF16};
    FOR_EACH_VARIANT(ops)
    {
        struct prompt good = prompt_run(&ops, &m, N, 77, N), p = prompt_make(&m, N, 77), *at = &p;
        p.k[BAD * kv_stride(&m) + 3] = NAN;
        p.v[BAD * kv_stride(&m) + 5] = INFINITY;
        prompts_call(&ops, &m, &at, 1, 0, N, 1);
        assert_same_bits(p.out, good.out, (int64_t)BAD * q_stride(&m) * 4, "queries before");
        assert_true(isnan(p.out[BAD * q_stride(&m)]));
        prompt_free(&good);
        prompt_free(&p);
    }
}

/* A row whose greatest logit comes late throws away what earlier chunks gave it. */
static void a_late_maximum_wins(void **state)
{
    (void)state;
    enum { N = 600, AT = 580 };
    static const struct model m = {1, 1, 16, KV_BF16};
    FOR_EACH_VARIANT(ops)
    {
        struct prompt p = prompt_make(&m, N, 5), *at = &p;
        for (int d = 0; d < 16; d++) {
            for (int i = 0; i < N; i++)
                p.k[i * kv_stride(&m) + d] = i == AT ? 64.0f : -64.0f;
            p.q[(N - 1) * q_stride(&m) + d] = 64.0f; // logits +-13107: e to either is no f32
            p.v[AT * kv_stride(&m) + d] = 0.5f;
        }
        prompts_call(&ops, &m, &at, 1, 0, N, 1);
        for (int d = 0; d < 16; d++)
            assert_true(p.out[(N - 1) * q_stride(&m) + d] == 0.5f);
        prompt_free(&p);
    }
}

#define PROMPT_CASES                                                                               \
    cmocka_unit_test(prompts_equal_ref), cmocka_unit_test(long_prompts_equal_ref),                 \
        cmocka_unit_test(windows_equal_ref), cmocka_unit_test(caps_and_sinks_equal_ref),           \
        cmocka_unit_test(a_sink_may_take_all), cmocka_unit_test(prompts_share_a_call),             \
        cmocka_unit_test(prompts_are_causal), cmocka_unit_test(a_late_maximum_wins)

#endif
