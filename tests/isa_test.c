/* tests/isa_test.c - which instruction sets the tests of ops could run here: each set that this CPU
 * lacks is a skipped test; and that a library's vector code leaves the CPU as it was. */
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/ops.h"
#include "tests/skip.h"

static void is_here(void **state)
{
    const enum isa isa = *(const enum isa *)*state;
    if (isa_best() < isa)
        skip_because("this CPU has no %s: its kernels were not run", isa_name(isa));
    assert_int_equal(isa_by_name(isa_name(isa)), isa);
}

/* State components in use (XINUSE) that slow down code of plain SSE: 4, the upper halves of AVX; 0
 * on CPUs that cannot tell. */
static unsigned upper_halves(void)
{
    unsigned in_use = 0, high = 0;
#ifdef __x86_64__
    unsigned a, b, c, d;
    if (__builtin_cpu_supports("avx") && __get_cpuid_count(13, 1, &a, &b, &c, &d) && (a & 4))
        __asm__ volatile("xgetbv" : "=a"(in_use), "=d"(high) : "c"(1));
#endif
    return (in_use | high) & 4;
}

static void checksums_leave_no_state(void **state)
{
    static uint8_t bytes[1 << 16];
    (void)state;
    for (int64_t n = 0; n <= (int64_t)sizeof bytes; n = n * 2 + 1) {
        const uint32_t crc = crc32c(0, bytes, n);
        assert_int_equal(upper_halves(), 0);
        assert_true(n == 0 || crc != 0);
    }
}

int main(void)
{
    enum isa sets[N_ISAS - ISA_PORTABLE];
    struct CMUnitTest tests[N_ISAS - ISA_PORTABLE + 1] = {
        [N_ISAS - ISA_PORTABLE] = cmocka_unit_test(checksums_leave_no_state)};
    for (int i = 0; i < N_ISAS - ISA_PORTABLE; i++) {
        sets[i] = (enum isa)(ISA_PORTABLE + i);
        tests[i] = (struct CMUnitTest){isa_name(sets[i]), is_here, NULL, NULL, &sets[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
