/* kernels/cpu/attend_prompt_avx512f.c - see attend_prompt.inc. */
#define CPU_ISA CPU_AVX512F
#include "kernels/cpu/attend.inc"
#include "kernels/cpu/attend_prompt_page.inc"
#include "kernels/cpu/attend_prompt.inc"
