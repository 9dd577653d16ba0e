/* kernels/cpu/matmul_int8_portable.c - see matmul_int8.inc. */
#define CPU_ISA CPU_PORTABLE
#include "kernels/cpu/matmul_int8.inc"

void cpu_matmul_int8_portable(const struct ops *ops, const struct matmul_args *args)
{
    multiply_int8(ops, args);
}
