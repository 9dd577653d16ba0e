/* kernels/cpu/attend_prompt_portable.c - see attend_prompt.inc. */
#define CPU_ISA CPU_PORTABLE
#include "kernels/cpu/attend.inc"
#include "kernels/cpu/attend_prompt_page.inc"
#include "kernels/cpu/attend_prompt.inc"
