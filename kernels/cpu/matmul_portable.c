/* kernels/cpu/matmul_portable.c - see matmul.inc. */
#define CPU_ISA CPU_PORTABLE
#include "kernels/cpu/matmul.inc"

void cpu_matmul_portable(const struct ops *ops, const struct matmul_args *args)
{
    multiply(ops, args);
}
