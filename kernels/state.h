/* kernels/state.h - parts of the ops on row states (kernels/ops.h) that every implementation
 * shares.
 */
#ifndef KERNELS_STATE_H
#define KERNELS_STATE_H

#include "kernels/math.h"
#include "kernels/ops.h"

/* The state of a span's row. */
static inline float *state_of(const struct state_rows *rows, const struct state_span *s,
                              int64_t offset)
{
    return (float *)(void *)(rows->base + s->row * rows->stride + offset);
}

/* g and b of a token of head h of v. */
static inline void recur_gates(const struct recur_args *a, int64_t token, int h, float *g, float *b)
{
    const float step = math_softplus(a->dt[token * a->dt_stride + h] + a->dt_bias[h]);
    *g = math_exp(a->a[h] * step);
    *b = a->beta ? math_logistic(a->beta[token * a->beta_stride + h]) : step;
}

/* Where q and k of head h of v are, in numbers from those of the token. */
static inline int recur_key_of(const struct recur_args *a, int h)
{
    return (a->tiled ? h % a->k_heads : h / (a->v_heads / a->k_heads)) * a->k_dim;
}

/* What k, or q, is multiplied by; squares: the sum of its squares. */
static inline float recur_unit(const struct recur_args *a, float squares)
{
    return a->unit_eps > 0 ? 1.0f / sqrtf(squares + a->unit_eps) : 1.0f;
}

#endif
