/* kernels/cpu/matmul_int8_avx512.c - see matmul_int8.inc. */
#define CPU_ISA CPU_AVX512
#include "kernels/cpu/matmul_int8.inc"
