/* kernels/cpu/attend_forced_page_pairs_avx512.c - see attend_forced_page.inc. */
#define CPU_ISA CPU_AVX512
#include "kernels/cpu/attend_forced_page.inc"
FORCED_KERNELS(KIND_PAIRS)
FORCED_KERNELS(KIND_Q8_INTS)
FORCED_KERNELS(KIND_Q4_INTS)
