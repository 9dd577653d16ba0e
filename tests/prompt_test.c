/* tests/prompt_test.c - attention of prompts on this CPU: the cases of prompt_cases.h on every
 * instruction set. */
#define WHOLE 1e-6
#include "kernels/ref/ref.h"
#include "tests/prompt_cases.h"
#include "tests/skip.h"

static struct ops variant(int i)
{
    for (int isa = ISA_PORTABLE + i; isa < N_ISAS; isa++)
        if (isa_here((enum isa)isa))
            return (struct ops){.isa = (enum isa)isa};
    return (struct ops){.isa = N_ISAS};
}

static int tested(const struct model *m, enum compute compute)
{
    (void)m;
    (void)compute;
    return 1;
}

static int by_pairs(const struct ops *ops, const struct model *m)
{
    return ops->isa >= ISA_AVX512 && ops->compute != COMPUTE_F32 && m->format == KV_BF16;
}

/* Rule h: chunks of dimensions whole and half, diagonals in every place of a pair of pages, blocks
 * of rows that end in every place, chunks of keys before a window and behind the first. */
static void tiles_have_one_order(void **state)
{
    (void)state;
    static const struct model models[] = {
        {9, 3, 64, KV_BF16}, {5, 5, 96, KV_BF16}, {6, 1, 72, KV_BF16},  {4, 2, 128, KV_BF16},
        {1, 1, 16, KV_BF16}, {3, 3, 33, KV_BF16}, {17, 1, 48, KV_BF16}, {2, 2, 512, KV_BF16}};
    static const int lengths[] = {1, 31, 33, 70, 129, 290, 600};
    static const int policies[] = {EVICT_H2O, EVICT_EMA, EVICT_SCISSORHANDS, EVICT_SNAPKV};
    if (!isa_here(ISA_AMX))
        skip_because("this CPU has no %s", isa_name(ISA_AMX));
    float *all = noise_array(8, 17, 4);
    for (size_t i = 0; i < 8; i++)
        for (size_t j = i % (size_t)sweep(3, 1); j < 7; j += (size_t)sweep(3, 1)) {
            const int n = lengths[j];
            if (n > 300 && models[i].head_dim * models[i].n_heads > 400)
                continue; // too slow
            window = (i + j) % 3 == 0 ? n / 2 + 1 : 0;
            cap = (i + j) % 4 == 1 ? 2 : 0;
            sinks = (i + j) % 5 == 2 ? all : NULL;
            policy = policies[(i + 2 * j) % 4];
            struct ops ops = {.isa = ISA_AMX};
            attend = exact_attend_prompt_amx;
            struct prompt want = prompt_run(&ops, &models[i], n, 100, n);
            attend = ops_run_attend_prompt;
            ops.pool = pool_of(2);
            struct prompt p = prompt_run(&ops, &models[i], n, 100, 96);
            pool_close(ops.pool);
            assert_same_bits(p.out, want.out, p.out_bytes, "outputs in tiles");
            assert_same_bits(p.scores, want.scores, p.scores_bytes, "scores in tiles");
            prompt_free(&p);
            prompt_free(&want);
        }
    window = 0;
    cap = 0;
    sinks = NULL;
    policy = EVICT_H2O;
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {PROMPT_CASES, cmocka_unit_test(tiles_have_one_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
