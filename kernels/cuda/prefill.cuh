/* kernels/cuda/prefill.cuh - shared by the kernels of a prompt's attention.
 *
 * Owns: the arguments of a launch. Refuses: the order of sums (f32: prefill.cu, tensor cores:
 * prefill_mma.cu). */
#ifndef KERNELS_CUDA_PREFILL_CUH
#define KERNELS_CUDA_PREFILL_CUH

#include "kernels/cuda/kv.cuh"

struct prompt {
    struct attend_prompt_args a;
    int round_q, first_span;
    float *max, *inverse; // [span][n_max][n_heads] per query; only with scores
};

DEVICE int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* First query that sees no key of the page. */
DEVICE int last_query(const struct attend_prompt_args *a, int page, int end)
{
    const int past = a->window > 0 ? (page + 1) * PAGE_SLOTS + a->window - 1 : end;
    return past < end ? past : end;
}

/* 1 if tensor cores can process these prompts on the current device: q and the pages are bf16, the
 * device multiplies bf16, and the outputs of 16 queries fit into the registers of a warp. */
int prompt_mma_takes(const struct prompt *f);
/* Outputs of spans [f->first_span, f->first_span + n_spans), and scores if the call has them. */
void prompt_mma(cudaStream_t stream, const struct prompt *f, int n_spans);

#endif
