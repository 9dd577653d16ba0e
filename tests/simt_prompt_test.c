/* tests/simt_prompt_test.c - attention of prompts on tensor cores under the SIMT shim: the cases of
 * prompt_cases.h that are in bf16, and every width of a head. simt_attend_test.c has the cases in
 * f32, byte for byte. */
#include "tests/simt_arrays.h"

#define aligned_alloc array_alloc
#define free          array_free
#define WHOLE         0x1p-9 // exps are rounded under the greatest logit so far
#include "tests/prompt_cases.h"

static void launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    (void)s;
    simt_clear();
    if (op == OP_kv_store)
        store_on_shim(ops, *(const struct kv_store_args *)args);
    else if (op == OP_attend_prompt)
        prompt_on_shim(ops, *(const struct attend_prompt_args *)args);
    else
        fail_msg("op %d", (int)op);
}

static const struct device_api shim_api = {.name = "shim", .launch = launch};
static struct device shim = {&shim_api};
static struct stream shim_stream = {&shim};

static struct ops variant(int i)
{
    if (i > 0)
        return (struct ops){.isa = N_ISAS};
    simt_arch_set(80); // newer ones take the same paths
    return (struct ops){.isa = ISA_EXACT, .stream = &shim_stream};
}

static int tested(const struct model *m, enum compute compute)
{
    return compute == COMPUTE_BF16 && m->format == KV_BF16 && m->head_dim <= 256;
}

static int by_pairs(const struct ops *ops, const struct model *m)
{
    return tested(m, ops->compute);
}

static void wide_heads_equal_ref(void **state)
{
    (void)state;
    prompt_check(&(struct model){1, 1, 256, KV_BF16}, 70);
}

/* to: the heads of 64 dimensions of `from` as the last 64 dimensions of wider heads. */
static void widened(const float *from, int from_stride, int n, int n_heads, int dim, int stride,
                    float *to)
{
    memset(to, 0, (size_t)n * stride * 4);
    for (int i = 0; i < n * n_heads; i++)
        memcpy(to + i / n_heads * stride + (i % n_heads + 1) * dim - 64,
               from + i / n_heads * from_stride + i % n_heads * 64, 64 * 4);
}

/* Scores that count queries have no tolerance. Each width of a head is code of its own and gives
 * the bytes of the narrowest width, because zeros change no sum. */
static void widths_give_the_same_counts(void **state)
{
    (void)state;
    enum { N = 70 };
    static const struct model narrow = {2, 1, 64, KV_BF16};
    policy = EVICT_SCISSORHANDS;
    for (int dim = 96; dim <= 256; dim += dim == 96 ? 32 : 128) {
        const struct model m = {2, 1, dim, KV_BF16};
        FOR_EACH_VARIANT(ops)
        {
            struct prompt want = prompt_make(&narrow, N, 7), *at = &want;
            struct prompt p = prompt_make(&m, N, 7), *wide = &p;
            float *out = take(p.out_bytes);
            widened(want.q, q_stride(&narrow), N, 2, dim, q_stride(&m), p.q);
            widened(want.k, kv_stride(&narrow), N, 1, dim, kv_stride(&m), p.k);
            widened(want.v, kv_stride(&narrow), N, 1, dim, kv_stride(&m), p.v);
            prompts_call(&ops, &narrow, &at, 1, 0, N, 1);
            prompts_call(&ops, &m, &wide, 1, 0, N, 1);
            widened(want.out, q_stride(&narrow), N, 2, dim, q_stride(&m), out);
            assert_same_bits(p.out, out, p.out_bytes, "outputs");
            assert_same_bits(p.scores, want.scores, want.scores_bytes, "scores");
            prompt_free(&want);
            prompt_free(&p);
            free(out);
        }
    }
    policy = EVICT_H2O;
}

int main(void)
{
    const struct CMUnitTest tests[] = {PROMPT_CASES, cmocka_unit_test(wide_heads_equal_ref),
                                       cmocka_unit_test(widths_give_the_same_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
