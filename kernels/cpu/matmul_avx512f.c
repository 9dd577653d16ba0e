/* kernels/cpu/matmul_avx512f.c - see matmul.inc: products of f32, as on AVX2. */
#define CPU_ISA CPU_AVX512F
#include "kernels/cpu/matmul.inc"

void cpu_matmul_avx512f(const struct ops *ops, const struct matmul_args *args)
{
    multiply(ops, args);
}
