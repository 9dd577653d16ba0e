/* kernels/score.h - the trait of a slot (policy/evict_rule.h), computed from its key and value: the
 * same bits on every device.
 *
 * Owns: the sums, in scalar form. Refuses: how a trait is used. kernels/cuda repeats the sums over
 * lanes. */
#ifndef KERNELS_SCORE_H
#define KERNELS_SCORE_H

#include "kernels/kv.h"
#include "kernels/math.h"
#include "policy/evict.h"

/* 4-bit codes of a group of numbers, as in KV_Q4, but with minimum and step in f32, so that the
 * error does not jump where f16 would round them. */
struct code_steps {
    float least, step, inverse;
};
static inline struct code_steps code_steps(float least, float greatest)
{
    struct code_steps s;
    s.least = least;
    s.step = (greatest - least) / 15.0f;
    s.inverse = s.step > 0x1p-120f ? 1.0f / s.step : 0.0f;
    return s;
}

/* What x loses by being coded. */
static inline float code_error(const struct code_steps *s, float x)
{
    const float off = x - s->least;
    return fmaf(0.0f - floorf(off * s->inverse + 0.5f), s->step, off);
}

/* Relative error from sums of squares: of errors, and of the numbers. All zeros: 0. */
static inline float code_error_relative(float errors, float squares)
{
    return squares == 0.0f ? 0.0f : sqrtf(errors / squares);
}

/* The norm of the coding errors of x [n], relative to the norm of x. */
static inline float score_code_error(const float *x, int n)
{
    float errors[16] = {0}, squares[16] = {0};
    for (int first = 0; first < n; first += KV_GROUP) {
        const int last = first + KV_GROUP < n ? first + KV_GROUP : n;
        float least = x[first], greatest = x[first];
        for (int i = first; i < last; i++) {
            least = x[i] < least ? x[i] : least;
            greatest = x[i] > greatest ? x[i] : greatest;
        }
        const struct code_steps steps = code_steps(least, greatest);
        for (int i = first; i < last; i++) {
            const float error = code_error(&steps, x[i]);
            errors[i % 16] = fmaf(error, error, errors[i % 16]);
            squares[i % 16] = fmaf(x[i], x[i], squares[i % 16]);
        }
    }
    return code_error_relative(math_sum16(errors), math_sum16(squares));
}

/* The share of key and value that coding keeps, from the errors of both. */
static inline float score_codes_left(float key_error, float value_error)
{
    return fmaf(-0.5f, key_error + value_error, 1.0f);
}

/* The trait (enum evict_trait) of a token with key and value k, v [n]. */
static inline float score_trait(int trait, const float *k, const float *v, int n)
{
    if (trait == EVICT_VALUE_NORM)
        return math_norm(v, n);
    if (trait == EVICT_CODES_LEFT)
        return score_codes_left(score_code_error(k, n), score_code_error(v, n));
    return 0;
}

#endif
