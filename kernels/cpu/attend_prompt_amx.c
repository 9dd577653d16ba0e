/* kernels/cpu/attend_prompt_amx.c - see attend_prompt.inc: products of bf16 in AMX tiles, the rest
 * in AVX-512. COMPUTE_F32 and pages of f32 have no tiles and the bytes of every other set. */
#define CPU_ISA CPU_AVX512
#define PROMPT_AMX
#include "kernels/cpu/attend.inc"
#include "kernels/cpu/attend_prompt_page.inc"
#include "kernels/cpu/attend_prompt.inc"

void cpu_attend_prompt_amx(const struct ops *ops, const struct attend_prompt_args *args)
{
    if (ops->compute == COMPUTE_F32 || args->layout.format != KV_BF16)
        cpu_attend_prompt_avx512(ops, args);
    else
        prompt_run(ops, args);
}
