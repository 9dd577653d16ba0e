/* kernels/cpu/matmul_int8_avxvnni.c - see matmul_int8.inc: AVX2 with a dot product of bytes. */
#define CPU_ISA CPU_AVX2
#define INT8_VNNI
#include "kernels/cpu/matmul_int8.inc"

void cpu_matmul_int8_avxvnni(const struct ops *ops, const struct matmul_args *args)
{
    multiply_int8(ops, args);
}
