/* kernels/cpu/lanes_avx2.c - every op but matmul over sixteen lanes (v16.h): see the .inc files. */
#define CPU_ISA CPU_AVX2
#include "kernels/cpu/rows.inc"
#include "kernels/cpu/noise.inc"
#include "kernels/cpu/head_reduce.inc"
#include "kernels/cpu/attend.inc"
#include "kernels/cpu/attend_prompt.inc"
#include "kernels/cpu/attend_forced_page.inc"
#include "kernels/cpu/attend_forced_turn.inc"
#include "kernels/cpu/attend_forced_split.inc"
#include "kernels/cpu/attend_forced_evict.inc"
#include "kernels/cpu/attend_forced.inc"
