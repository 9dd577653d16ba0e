/* kernels/cpu/attend_forced_page_avx2.c - see attend_forced_page.inc. */
#define CPU_ISA CPU_AVX2
#include "kernels/cpu/attend_forced_page.inc"
FORCED_KERNELS(KIND_F32)
FORCED_KERNELS(KIND_BF16)
FORCED_KERNELS(KIND_Q8)
FORCED_KERNELS(KIND_Q4)
FORCED_KERNELS(KIND_Q8_INTS)
FORCED_KERNELS(KIND_Q4_INTS)
