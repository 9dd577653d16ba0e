/* kernels/cpu/matmul_avx2.c - see matmul.inc. */
#define CPU_ISA CPU_AVX2
#include "kernels/cpu/matmul.inc"
