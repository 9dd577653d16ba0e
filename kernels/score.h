/* kernels/score.h - what eviction's scores need of kernels/math.h: the trait of a slot, made of its
 * key and value. The same bits everywhere.
 *
 * Owns: the sums, and their scalar form. Refuses: what a trait is for (policy/evict_rule.h);
 * kernels/cuda repeats the sums over lanes. */
#ifndef KERNELS_SCORE_H
#define KERNELS_SCORE_H

#include "kernels/kv.h"
#include "kernels/math.h"
#include "policy/evict.h"

/* Codes of four bits for a group of numbers: KV_Q4's, but least and step in f32, so that the error
 * does not jump where f16 would round them. */
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

/* What its code loses of x. */
static inline float code_error(const struct code_steps *s, float x)
{
    const float off = x - s->least;
    return fmaf(0.0f - floorf(off * s->inverse + 0.5f), s->step, off);
}

/* From sums of squares, of errors and of what they are errors of; zeros have none. */
static inline float code_error_relative(float errors, float squares)
{
    return squares == 0.0f ? 0.0f : sqrtf(errors / squares);
}

/* The norm of what codes lose of x [n], relative to that of x. */
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

/* What codes leave of key and value, from the errors of both. */
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
