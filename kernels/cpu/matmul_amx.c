/* kernels/cpu/matmul_amx.c - see matmul.inc: pairs of bf16 in AMX tiles, the rest in AVX-512.
 * COMPUTE_F32 has no tiles and the bytes of every other set. */
#define CPU_ISA CPU_AVX512
#define MATMUL_AMX
#include "kernels/cpu/matmul.inc"

void cpu_matmul_amx(const struct ops *ops, const struct matmul_args *args)
{
    if (ops->compute == COMPUTE_F32)
        cpu_matmul_avx512(ops, args);
    else
        multiply(ops, args);
}
