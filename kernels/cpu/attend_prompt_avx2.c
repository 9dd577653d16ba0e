/* kernels/cpu/attend_prompt_avx2.c - see attend_prompt.inc. */
#define CPU_ISA CPU_AVX2
#include "kernels/cpu/attend.inc"
#include "kernels/cpu/attend_prompt_page.inc"
#include "kernels/cpu/attend_prompt.inc"
