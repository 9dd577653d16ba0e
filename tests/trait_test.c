/* tests/trait_test.c - what slots carry beside their score, held to sums
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

static double norm_of(const float *x, int n)
{
    double square = 0;
    for (int d = 0; d < n; d++)
        square += (double)x[d] * x[d];
    return sqrt(square);
}

/* What a slot's trait should be. */
static double wanted(const struct model *m, const struct tokens *t, int policy, int head, int pos)
{
    const int64_t at = (int64_t)pos * t->kv_stride + head * m->head_dim;
    if (policy == EVICT_VLEN)
        return norm_of(t->v + at, m->head_dim);
    return 1 - (lost_by_codes(t->k + at, m->head_dim) + lost_by_codes(t->v + at, m->head_dim)) / 2;
}

static void traits_are_of_their_tokens(void **state)
{
    (void)state;
    enum { PROMPT = 45 };
    static const enum kv_format formats[] = {KV_F32, KV_Q4, KV_MIXED};
    static const int policies[] = {EVICT_VLEN, EVICT_QHITTER};
    for (int i = 0; i < 6 * (int)(sizeof policies / sizeof *policies); i++) {
        struct model m = {4, 2, i % 2 ? 80 : 33, KV_F32, formats[i % 3]};
        struct evict e = {.policy = policies[i / 6], .scope = i / 3 % 2};
        struct tokens t = tokens_make(&m, 90, 670);
        struct ops ops = {.isa = isa_best(), .compute = COMPUTE_F32};
        struct row r = row_run(&ops, &m, &t, e, (struct evict_row){40, 18, 4}, PROMPT, 7);
        int n = 0;
        for (int head = 0; head < 2; head++)
            for (int slot = 0; slot < r.kv.slots_cap; slot++) {
                const int64_t at = (int64_t)head * r.kv.slots_cap + slot;
                const int ring = r.kv.slots_cap - r.kv.ring_slots;
                if (slot >= r.kv.n_slots && slot < ring)
                    continue;
                const int pos = r.kv.slot_pos[at];
                const double want = wanted(&m, &t, e.policy, head, pos);
                assert_true(fabs((double)r.kv.slot_trait[at] - want) <
                            1e-5 * fmax(fabs(want), 0.1));
                n++;
            }
        assert_int_equal(n, 80);
        row_free(&r);
        tokens_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traits_are_of_their_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
