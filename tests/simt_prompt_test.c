/* tests/simt_prompt_test.c - attention of prompts on tensor cores under the SIMT shim: the cases of
 * prompt_cases.h that are in bf16. simt_attend_test.c has the others, byte for byte. */
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
    static const int archs[] = {80, 90};
    if (i == sweep(1, 2))
        return (struct ops){.isa = N_ISAS};
    simt_arch_set(archs[i]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {PROMPT_CASES};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
