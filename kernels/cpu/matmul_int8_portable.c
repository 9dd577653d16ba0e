/* kernels/cpu/matmul_int8_portable.c - see matmul_int8.inc. */
#define CPU_ISA CPU_PORTABLE
#include "kernels/cpu/matmul_int8.inc"
