/* kernels/cpu/matmul_avx512.c - see matmul.inc. */
#define CPU_ISA CPU_AVX512
#include "kernels/cpu/matmul.inc"

void cpu_matmul_avx512(const struct ops *ops, const struct matmul_args *args)
{
    multiply(ops, args);
}
