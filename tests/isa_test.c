/* tests/isa_test.c - which instruction sets the tests of ops could run here: each set that this CPU
 * lacks is a skipped test. */
#include "kernels/ops.h"
#include "tests/skip.h"

static void has(enum isa isa)
{
    if (isa_best() < isa)
        skip_because("this CPU has no %s: its kernels were not run", isa_name(isa));
    assert_int_equal(isa_by_name(isa_name(isa)), isa);
}

static void has_portable(void **state)
{
    (void)state;
    has(ISA_PORTABLE);
}

static void has_avx2(void **state)
{
    (void)state;
    has(ISA_AVX2);
}

static void has_avx512f(void **state)
{
    (void)state;
    has(ISA_AVX512F);
}

static void has_avx512(void **state)
{
    (void)state;
    has(ISA_AVX512);
}

static void has_amx(void **state)
{
    (void)state;
    has(ISA_AMX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_portable), cmocka_unit_test(has_avx2), cmocka_unit_test(has_avx512f),
        cmocka_unit_test(has_avx512),   cmocka_unit_test(has_amx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
