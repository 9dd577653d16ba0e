/* tests/heads_test.c - heads that share what a layer has: who keeps what behind a prompt. */
#include "tests/attend_help.h"

/* What heads that share keep, from the rank of every position in every head, best first: what is
 * protected, each its best `sure`, then whoever is best of all in a head that may have more. */
static void share_by_hand(int n_heads, int n, const float *rank, const struct evict_row *limits,
                          uint8_t *kept)
{
    int count[8] = {0}, left = n_heads * limits->budget;
    memset(kept, 0, (size_t)(n_heads * n));
    for (int i = 0; i < n_heads * n; i++)
        if (evict_protected(limits, i % n, n - 1)) {
            kept[i] = 1;
            count[i / n]++;
            left--;
        }
    for (int sure = 1; left > 0; left--) {
        int best = -1;
        for (int turn = sure; best < 0 && turn >= 0; sure = turn, turn--)
            for (int i = 0; i < n_heads * n; i++) {
                const int most = turn ? limits->sure : 2 * limits->budget, pos = i % n;
                if (!kept[i] && count[i / n] < most &&
                    (best < 0 || rank[i] > rank[best] ||
                     (rank[i] == rank[best] && pos >= best % n))) // of equals the highest head
                    best = i;
            }
        kept[best] = 1;
        count[best / n]++;
    }
}

/* One head's keys are short, so that knorm gives it all it may have; another's are long. Norms are
 * rounded, so that there are ties within heads and between them. */
static void heads_share_what_a_layer_has(void **state)
{
    (void)state;
    enum { N = 130 };
    static const struct evict_row cases[] = {{40, 12, 0, 1, 16},
                                             {33, 4, 4, 1, 8},
                                             {40, 0, 0, 1, 1},
                                             {20, 19, 0, 1, 19},
                                             {100, 3, 2, 1, 20}};
    static const float lengths[][4] = {{1, 2, 4, 8}, {1, 1, 1, 1}, {4, 4, 1, 1}, {2, 1, 2, 1}};
    for (int c = 0; c < 5 * 4 * 2; c++) {
        const struct model m = {4, c % 2 ? 4 : 2, 16, KV_F32, KV_F32};
        struct tokens t = tokens_make(&m, N, 700 + (uint64_t)c);
        struct evict_row limits = cases[c / 8];
        const struct evict e = {.policy = EVICT_KNORM};
        float rank[4 * N];
        uint8_t want[4 * N], got[4 * N] = {0};
        memset(t.k, 0, (size_t)(t.n * t.kv_stride) * 4);
        for (int i = 0; i < m.n_kv_heads * N; i++) {
            const float length =
                lengths[c / 2 % 4][i / N] * (float)(1 + mix64((uint64_t)(c + 77 * i)) % 5);
            t.k[i % N * t.kv_stride + i / N * 16] = length;
            rank[i] = -length;
        }
        for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
            struct ops ops = {.isa = isa};
            struct row r = row_run(&ops, &m, &t, e, limits, N, 1);
            share_by_hand(m.n_kv_heads, N, rank, &r.limits, want);
            memset(got, 0, sizeof got);
            for (int i = 0; i < m.n_kv_heads * r.kv.n_slots; i++) {
                const int h = i / r.kv.n_slots, slot = i % r.kv.n_slots;
                const int pos = r.kv.slot_pos[h * r.kv.slots_cap + slot];
                if (pos >= 0)
                    got[h * N + pos] = 1;
            }
            assert_memory_equal(got, want, (size_t)(m.n_kv_heads * N));
            row_free(&r);
        }
        tokens_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_share_what_a_layer_has)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
