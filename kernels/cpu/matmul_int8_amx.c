/* kernels/cpu/matmul_int8_amx.c - see matmul_int8.inc: products in AMX tiles, chains in AVX-512. */
#define CPU_ISA CPU_AVX512
#define MATMUL_AMX
#include "kernels/cpu/matmul_int8.inc"

#define ROWS_FEW 4 // up to here vector registers read the panels faster than tiles decode them

void cpu_matmul_int8_amx(const struct ops *ops, const struct matmul_args *args)
{
    if (args->m <= ROWS_FEW)
        cpu_matmul_int8_avx512(ops, args);
    else
        multiply_int8(ops, args);
}
