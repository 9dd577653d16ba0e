/* kernels/score.h - what eviction's scores need of kernels/math.h: the trait of a slot, made of its
 * key and value. The same bits everywhere.
 *
 * Owns: the sums, and their scalar form. Refuses: what a trait is for (policy/evict_score.h);
 * kernels/cuda repeats the sums over lanes. */
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

/* ---- lags (policy/evict_lagkv.h) ---- */

/* What makes of a channel's way from its least the share of all of it. */
static inline float score_lag_inverse(float least, float greatest)
{
    const float width = greatest - least;
    return width > 0x1p-120f ? 1.0f / width : 0.0f;
}
/* Of the sum of squares off their mean of n numbers. */
static inline float score_spread(float squares, int n)
{
    return sqrtf(squares / (float)(n > 1 ? n - 1 : 1));
}

/* What a chunk's keys, or values, are held against: the next chunk's, channel by channel. */
struct score_lag {
    int n; // channels
    float least[2 * SHAPE_ROPE_MAX], greatest[2 * SHAPE_ROPE_MAX], inverse[2 * SHAPE_ROPE_MAX];
};
static inline void score_lag_begin(struct score_lag *l, int n)
{
    l->n = n;
    for (int d = 0; d < n; d++) {
        l->least[d] = INFINITY;
        l->greatest[d] = -INFINITY;
    }
}
/* A vector [n] of the next chunk; no number has no part in it. */
static inline void score_lag_see(struct score_lag *l, const float *x)
{
    for (int d = 0; d < l->n; d++) {
        l->least[d] = x[d] < l->least[d] ? x[d] : l->least[d];
        l->greatest[d] = x[d] > l->greatest[d] ? x[d] : l->greatest[d];
    }
}
static inline void score_lag_end(struct score_lag *l)
{
    for (int d = 0; d < l->n; d++)
        l->inverse[d] = score_lag_inverse(l->least[d], l->greatest[d]);
}

/* The standard deviation over channels of x [n], as shares: sums in 16 lanes. */
static inline float score_lag_spread(const struct score_lag *l, const float *x)
{
    float lanes[16] = {0}, squares[16] = {0};
    for (int d = 0; d < l->n; d++)
        lanes[d % 16] = lanes[d % 16] + (x[d] - l->least[d]) * l->inverse[d];
    const float mean = math_sum16(lanes) / (float)l->n;
    for (int d = 0; d < l->n; d++) {
        const float off = (x[d] - l->least[d]) * l->inverse[d] - mean;
        squares[d % 16] = fmaf(off, off, squares[d % 16]);
    }
    return score_spread(math_sum16(squares), l->n);
}

/* Softmax over a chunk [lag], in place. */
static inline void score_lag_softmax(float *x, int lag)
{
    float lanes[16] = {0}, most = -INFINITY;
    for (int i = 0; i < lag; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < lag; i++) {
        x[i] = math_exp(x[i] - most);
        lanes[i % 16] = lanes[i % 16] + x[i];
    }
    const float inverse = 1.0f / math_sum16(lanes);
    for (int i = 0; i < lag; i++)
        x[i] = x[i] * inverse;
}

/* scores [lag] of a chunk from its spreads of keys and values [lag], which are written over. */
static inline void score_lag_ranks(float *of_keys, float *of_values, int lag, float *scores)
{
    score_lag_softmax(of_keys, lag);
    score_lag_softmax(of_values, lag);
    for (int i = 0; i < lag; i++)
        of_keys[i] = 0.5f * (of_keys[i] + of_values[i]);
    for (int i = 0; i < lag; i++) {
        int before = 0;
        for (int j = 0; j < lag; j++)
            before += evict_before(of_keys[j], j, of_keys[i], i);
        scores[i] = evict_lag_rank(before, lag);
    }
}

#endif
