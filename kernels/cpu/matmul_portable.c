/* kernels/cpu/matmul_portable.c - see matmul.inc. */
#define CPU_ISA CPU_PORTABLE
#include "kernels/cpu/matmul.inc"
