/* kernels/score.h - what eviction's scores need of kernels/math.h: the trait of a slot, made of its
 * key and value, and noise for weights. The same bits everywhere.
 *
 * Owns: the sums, and their scalar form. Refuses: what a trait is for (policy/evict_score.h);
 * kernels/cuda repeats the sums over lanes, kernels/cpu the noise. */
#ifndef KERNELS_SCORE_H
#define KERNELS_SCORE_H

#include "kernels/kv.h"
#include "kernels/math.h"
#include "policy/evict.h"

/* ---- traits ---- */

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

/* The trait (enum evict_trait) of a token with key and value k, v [n]. */
static inline float score_trait(int trait, const float *k, const float *v, int n)
{
    if (trait == EVICT_VALUE_NORM)
        return math_norm(v, n);
    if (trait == EVICT_QUANT_ERROR)
        return score_code_error(k, n) + score_code_error(v, n);
    return 0;
}

/* ---- noise (policy/evict_keyformer.h) ---- */

/* Weights below this have no logarithm to speak of, and stay 0. */
#define SCORE_WEIGHT_MIN 0x1p-126f

static inline uint64_t score_noise_key(int now, int kv_head)
{
    return mix64((uint64_t)(uint32_t)now << 32 | (uint32_t)kv_head);
}

/* Of the query that has the key, on the slot of position pos. */
static inline float score_noise(uint64_t key, int pos)
{
    return math_gumbel(math_uniform(key, pos));
}

/* What becomes of an attention weight, before all of a query are made to sum up to 1. */
static inline float score_noised(float weight, float noise, float sharpness)
{
    if (weight < SCORE_WEIGHT_MIN)
        return 0;
    return math_exp((math_log(weight) + noise) * sharpness);
}

/* What makes them sum up to 1; 0 where there are none. */
static inline float score_noised_inverse(float sum)
{
    return sum > 0.0f ? 1.0f / sum : 0.0f;
}

#endif
