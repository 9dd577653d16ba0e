/* kernels/cpu/lanes_portable.c - ops on single rows, and reductions of the head. */
#define CPU_ISA CPU_PORTABLE
#include "kernels/cpu/rows.inc"
#include "kernels/cpu/state.inc"
#include "kernels/cpu/head_reduce.inc"
