/* kernels/cpu/matmul_int8_avx2.c - see matmul_int8.inc. */
#define CPU_ISA CPU_AVX2
#include "kernels/cpu/matmul_int8.inc"
