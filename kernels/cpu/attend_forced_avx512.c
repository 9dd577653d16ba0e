/* kernels/cpu/attend_forced_avx512.c - see attend_forced.inc. */
#define CPU_ISA CPU_AVX512
#include "kernels/cpu/attend.inc"
#include "kernels/cpu/attend_forced_kind.inc"
#include "kernels/cpu/attend_forced_turn.inc"
#include "kernels/cpu/codes.inc"
#include "kernels/cpu/attend_forced_split.inc"
#include "kernels/cpu/attend_forced_evict.inc"
#include "kernels/cpu/attend_forced.inc"
