/* tests/prompt_test.c - attention of prompts on this CPU: the cases of prompt_cases.h on every
 * instruction set. */
#define WHOLE 1e-6
#include "tests/prompt_cases.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {PROMPT_CASES};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
