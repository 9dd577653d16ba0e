/* tests/isa_test.c - which instruction sets the tests of ops could run here: each set that this CPU
 * lacks is a skipped test. */
#include "kernels/ops.h"
#include "tests/skip.h"

static void is_here(void **state)
{
    const enum isa isa = *(const enum isa *)*state;
    if (isa_best() < isa)
        skip_because("this CPU has no %s: its kernels were not run", isa_name(isa));
    assert_int_equal(isa_by_name(isa_name(isa)), isa);
}

int main(void)
{
    enum isa sets[N_ISAS - ISA_PORTABLE];
    struct CMUnitTest tests[N_ISAS - ISA_PORTABLE] = {0};
    for (int i = 0; i < N_ISAS - ISA_PORTABLE; i++) {
        sets[i] = (enum isa)(ISA_PORTABLE + i);
        tests[i] = (struct CMUnitTest){isa_name(sets[i]), is_here, NULL, NULL, &sets[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
