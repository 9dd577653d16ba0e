/* tests/trait_test.c - what slots carry beside their score, and noise: each held to sums in double
 * over the tokens themselves, whatever way a token's slot has gone. Whether kernels agree is
 * attend_test's. */
#include "kernels/score.h"
#include "tests/attend_help.h"

/* The norm of what codes of four bits lose of x, relative to that of x. */
static double lost_by_codes(const float *x, int n)
{
    double lost = 0, all = 0;
    for (int first = 0; first < n; first += 64) {
        const int last = first + 64 < n ? first + 64 : n;
        double least = x[first], most = x[first];
        for (int i = first; i < last; i++) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        for (int i = first; i < last; i++) {
            const double step = (most - least) / 15, code = floor((x[i] - least) / step + 0.5);
            lost += pow(x[i] - least - code * step, 2);
            all += (double)x[i] * x[i];
        }
    }
    return sqrt(lost / all);
}

static void traits_are_of_their_tokens(void **state)
{
    (void)state;
    static const enum kv_format formats[] = {KV_F32, KV_Q4, KV_MIXED};
    static const int policies[] = {EVICT_VLEN, EVICT_QHITTER};
    for (int i = 0; i < 12; i++) {
        struct model m = {4, 2, i % 2 ? 80 : 33, KV_F32, formats[i % 3]};
        struct evict e = {.policy = policies[i / 6], .scope = i / 3 % 2};
        struct tokens t = tokens_make(&m, 90, 670);
        struct ops ops = {.isa = isa_best(), .compute = COMPUTE_F32};
        struct row r = row_run(&ops, &m, &t, e, (struct evict_row){40, 18, 4}, 45, 7);
        int n = 0;
        for (int head = 0; head < 2; head++)
            for (int slot = 0; slot < r.kv.slots_cap; slot++) {
                const int64_t at = (int64_t)head * r.kv.slots_cap + slot;
                const int ring = r.kv.slots_cap - r.kv.ring_slots;
                if (slot >= r.kv.n_slots && slot < ring)
                    continue;
                const int64_t own = r.kv.slot_pos[at] * t.kv_stride + head * m.head_dim;
                double norm = 0;
                for (int d = 0; d < m.head_dim; d++)
                    norm += (double)t.v[own + d] * t.v[own + d];
                const double lost =
                    lost_by_codes(t.k + own, m.head_dim) + lost_by_codes(t.v + own, m.head_dim);
                const double want = e.policy == EVICT_VLEN ? sqrt(norm) : lost;
                assert_true(fabs((double)r.kv.slot_trait[at] - want) < 1e-5 * want);
                n++;
            }
        assert_int_equal(n, 80);
        row_free(&r);
        tokens_free(&t);
    }
}

/* Under noise a token gives softmax((logit + noise) / tau) to every slot and itself: here from the
 * logits, in double, over the group. */
static void noise_is_of_the_logits(void **state)
{
    (void)state;
    enum { N = 40, PROMPT = 20 };
    static const struct model plain = {1, 1, 16, KV_F32, KV_F32};
    float weights[N];
    for (int i = 0; i < N; i++)
        weights[i] = (float)(i * 7 % 11 + 1) / 16;
    struct tokens t = tokens_make(&plain, N, 1);
    for (int i = 0; i < N; i++) {
        memset(t.q + i * t.q_stride, 0, 16 * sizeof *t.q);
        memset(t.k + i * t.kv_stride, 0, 16 * sizeof *t.k);
        t.q[i * t.q_stride] = 5; // times the scale of 0.2
        t.k[i * t.kv_stride] = logf(weights[i]);
    }
    FOR_EACH_ISA(isa)
    {
        struct ops ops = {.isa = isa, .compute = COMPUTE_F32};
        struct row r = row_run(&ops, &plain, &t, (struct evict){.policy = EVICT_KEYFORMER},
                               (struct evict_row){.budget = N, .recent = 1}, PROMPT, 3);
        double want[N] = {0};
        for (int now = 0; now < N; now++) {
            const double tau = 1 + 0.01 * (now - PROMPT);
            double given[N], sum = 0;
            for (int pos = 0; pos <= now; pos++) {
                given[pos] = weights[pos];
                if (now >= PROMPT)
                    given[pos] = exp((log((double)weights[pos]) +
                                      (double)score_noise(score_noise_key(now, 0), pos)) /
                                     tau);
                sum += given[pos];
            }
            for (int pos = 0; pos <= now; pos++)
                want[pos] += given[pos] / sum;
        }
        for (int slot = 0; slot < N; slot++)
            assert_true(fabs((double)r.kv.slot_score[slot] - want[slot]) < 1e-5);
        row_free(&r);
    }
    tokens_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traits_are_of_their_tokens),
        cmocka_unit_test(noise_is_of_the_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
