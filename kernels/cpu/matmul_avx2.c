/* kernels/cpu/matmul_avx2.c - see matmul.inc. */
#define CPU_ISA CPU_AVX2
#include "kernels/cpu/matmul.inc"

void cpu_matmul_avx2(const struct ops *ops, const struct matmul_args *args)
{
    multiply(ops, args);
}
