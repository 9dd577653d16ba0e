/* kernels/cpu/matmul_int8_avx512.c - see matmul_int8.inc. */
#define CPU_ISA CPU_AVX512
#include "kernels/cpu/matmul_int8.inc"

void cpu_matmul_int8_avx512(const struct ops *ops, const struct matmul_args *args)
{
    multiply_int8(ops, args);
}
