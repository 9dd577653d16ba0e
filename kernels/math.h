/* kernels/math.h - exp, log, erfc, tanh, activations, soft caps, rotations, sinks and Gumbel noise
 * in f32 with the same bits everywhere.
 *
 * Owns: the polynomials, in scalar form. Refuses: vectors (kernels/cpu/v16.h repeats each function
 * over 16 lanes, operation by operation).
 * Every step is an add, a multiply, a fused multiply-add, a comparison or a move of bits, so the
 * result does not depend on compiler, library or instruction set. Coefficients: minimax fits of the
 * relative error. */
#ifndef KERNELS_MATH_H
#define KERNELS_MATH_H

#include "kernels/base/base.h"
#include "policy/shape.h"

#include <math.h>

/* exp(x) = 2^n exp(r), |r| <= ln2 / 2; exp(r) = 1 + r + r^2 P(r), error 5e-11.
 * Below MATH_EXP_MIN (the last normal numbers) the result is 0: no denormals. */
#define MATH_EXP_MIN     -87.3f
#define MATH_EXP_MAX     88.72283f
#define MATH_LOG2E       1.44269504f
#define MATH_LN2_HI      0.693145752f // 15 bits: n * hi is exact
#define MATH_LN2_LO      1.42860677e-06f
#define MATH_ROUND_MAGIC 12582912.0f // 1.5 * 2^23: adding it rounds to an integer in the low bits
#define MATH_EXP_P0      0.5f
#define MATH_EXP_P1      0.166666657f
#define MATH_EXP_P2      0.0416662954f
#define MATH_EXP_P3      0.00833349675f
#define MATH_EXP_P4      0.00139446801f
#define MATH_EXP_P5      0.000197903209f

/* log(x) = e ln2 + log(1 + f), 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f - f^2 / 2 + f^3 P(f),
 * error 8e-10. */
#define MATH_SQRT_HALF_BITS 0x3f3504f3
#define MATH_LOG_P0         0.333333135f
#define MATH_LOG_P1         -0.250000089f
#define MATH_LOG_P2         0.200021192f
#define MATH_LOG_P3         -0.166679963f
#define MATH_LOG_P4         0.142195508f
#define MATH_LOG_P5         -0.124055862f
#define MATH_LOG_P6         0.118881673f
#define MATH_LOG_P7         -0.116756707f
#define MATH_LOG_P8         0.0674665198f

/* erfc(z) = exp(-z^2) t P(t), t = 1 / (1 + 0.4 z), 0 <= z <= 10, error 8e-9. */
#define MATH_ERFC_T  0.4f
#define MATH_ERFC_P0 0.225706905f
#define MATH_ERFC_P1 0.224952042f
#define MATH_ERFC_P2 0.214918971f
#define MATH_ERFC_P3 0.129680261f
#define MATH_ERFC_P4 0.272064179f
#define MATH_ERFC_P5 -0.284362584f
#define MATH_ERFC_P6 0.547430217f
#define MATH_ERFC_P7 -0.498807341f
#define MATH_ERFC_P8 0.198011354f
#define MATH_ERFC_P9 -0.0295939762f

/* Up to here log(1 - v) is computed from v itself; above, from the rounded 1 - v. */
#define MATH_LOG1M_DIRECT 0.25f

union math_bits {
    float f;
    uint32_t u;
    int32_t i;
};

/* 2^x, 0 <= x < 1. Relative error < 8e-5, a twenty-fifth of the error of rounding to bf16; its
 * constant part cancels in weight / sum. */
#define MATH_EXP2_P0 0.9999252f
#define MATH_EXP2_P1 0.69583356f
#define MATH_EXP2_P2 0.22606716f
#define MATH_EXP2_P3 0.07802452f

static inline float math_exp(float x)
{
    union math_bits t, p;
    t.f = fmaf(x, MATH_LOG2E, MATH_ROUND_MAGIC);
    float n = t.f - MATH_ROUND_MAGIC;
    float r = fmaf(-n, MATH_LN2_HI, x);
    r = fmaf(-n, MATH_LN2_LO, r);
    p.f = fmaf(MATH_EXP_P5, r, MATH_EXP_P4);
    p.f = fmaf(p.f, r, MATH_EXP_P3);
    p.f = fmaf(p.f, r, MATH_EXP_P2);
    p.f = fmaf(p.f, r, MATH_EXP_P1);
    p.f = fmaf(p.f, r, MATH_EXP_P0);
    p.f = fmaf(p.f, r * r, r);
    p.f = p.f + 1.0f;
    p.u += t.u << 23; // * 2^n: n is in the low bits of the rounded number
    float y = x < MATH_EXP_MIN ? 0.0f : p.f;
    y = MATH_EXP_MAX < x ? INFINITY : y;
    return x != x ? x : y;
}

/* log(1 + f) + e * ln2. */
static inline float math_log_sum(float f, float e)
{
    float p = fmaf(MATH_LOG_P8, f, MATH_LOG_P7);
    p = fmaf(p, f, MATH_LOG_P6);
    p = fmaf(p, f, MATH_LOG_P5);
    p = fmaf(p, f, MATH_LOG_P4);
    p = fmaf(p, f, MATH_LOG_P3);
    p = fmaf(p, f, MATH_LOG_P2);
    p = fmaf(p, f, MATH_LOG_P1);
    p = fmaf(p, f, MATH_LOG_P0);
    float f2 = f * f;
    float y = fmaf(p, f2 * f, e * MATH_LN2_LO);
    y = fmaf(-0.5f, f2, y);
    y = y + f;
    return fmaf(e, MATH_LN2_HI, y);
}

/* x = (1 + f) 2^e for a positive normal x. */
static inline void math_log_split(float x, float *f, float *e)
{
    union math_bits b = {.f = x};
    int32_t shifted = b.i - MATH_SQRT_HALF_BITS;
    *e = (float)(shifted >> 23);
    b.i = (shifted & 0x7fffff) + MATH_SQRT_HALF_BITS;
    *f = b.f - 1.0f;
}

/* log of a positive normal number; the result for any other number has no meaning. */
static inline float math_log(float x)
{
    float f, e;
    math_log_split(x, &f, &e);
    return math_log_sum(f, e);
}

/* log(1 - v) for 0 <= v <= 1; v = 1 counts as 1 - 2^-25. */
static inline float math_log1m(float v)
{
    float f, e;
    float x = 1.0f - v;
    x = x > 0x1p-25f ? x : 0x1p-25f;
    math_log_split(x, &f, &e);
    f = v < MATH_LOG1M_DIRECT ? -v : f;
    e = v < MATH_LOG1M_DIRECT ? 0.0f : e;
    return math_log_sum(f, e);
}

/* GELU, exact form: x * (1 + erf(x / sqrt 2)) / 2, through erfc so that the negative tail keeps its
 * digits. */
static inline float math_gelu(float x)
{
    float z = fabsf(x) * 0.707106781f;
    float t = 1.0f / fmaf(z, MATH_ERFC_T, 1.0f);
    float p = fmaf(MATH_ERFC_P9, t, MATH_ERFC_P8);
    p = fmaf(p, t, MATH_ERFC_P7);
    p = fmaf(p, t, MATH_ERFC_P6);
    p = fmaf(p, t, MATH_ERFC_P5);
    p = fmaf(p, t, MATH_ERFC_P4);
    p = fmaf(p, t, MATH_ERFC_P3);
    p = fmaf(p, t, MATH_ERFC_P2);
    p = fmaf(p, t, MATH_ERFC_P1);
    p = fmaf(p, t, MATH_ERFC_P0);
    float half_erfc = (p * t) * (0.5f * math_exp(-(z * z)));
    float tail = x * half_erfc;
    return x < 0.0f ? tail : x - tail;
}

/* GELU by tanh: x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is
 * x / (1 + exp(-2 u)). */
#define MATH_GELU_TANH_1 -1.59576912f   // of -2 u: x
#define MATH_GELU_TANH_3 -0.0713548163f // x^3
static inline float math_gelu_tanh(float x)
{
    float u = x * fmaf(x * x, MATH_GELU_TANH_3, MATH_GELU_TANH_1);
    return x / (1.0f + math_exp(u));
}

static inline float math_logistic(float x)
{
    return 1.0f / (1.0f + math_exp(0.0f - x));
}

static inline float math_silu(float x)
{
    return x / (1.0f + math_exp(0.0f - x));
}

/* log(1 + exp(x)); for small exp(x) from exp(x) itself, as log(1 - v) below. */
#define MATH_SOFTPLUS_LINEAR 20.0f // above, exp(-x) is lost in x
static inline float math_softplus(float x)
{
    const float v = math_exp(x);
    float f, e;
    math_log_split(1.0f + v, &f, &e);
    f = v < MATH_LOG1M_DIRECT ? v : f;
    e = v < MATH_LOG1M_DIRECT ? 0.0f : e;
    return x < MATH_SOFTPLUS_LINEAR ? math_log_sum(f, e) : x;
}

/* GELU by a logistic: x / (1 + exp(-1.702 x)). */
#define MATH_GELU_QUICK -1.702f
static inline float math_gelu_quick(float x)
{
    return x / (1.0f + math_exp(MATH_GELU_QUICK * x));
}

/* tanh(x): a polynomial near 0, where 1 - 2 / (exp(2 x) + 1) would lose digits. */
#define MATH_TANH_SMALL 0.25f
#define MATH_TANH_P1    -0.333333333f
#define MATH_TANH_P2    0.133333333f
#define MATH_TANH_P3    -0.0539682540f
#define MATH_TANH_P4    0.0218694885f
static inline float math_tanh(float x)
{
    float x2 = x * x;
    float p = fmaf(MATH_TANH_P4, x2, MATH_TANH_P3);
    p = fmaf(p, x2, MATH_TANH_P2);
    p = fmaf(p, x2, MATH_TANH_P1);
    float small = fmaf(p, x2 * x, x);
    float large = 1.0f - 2.0f / (math_exp(2.0f * fabsf(x)) + 1.0f);
    large = x < 0.0f ? 0.0f - large : large;
    return fabsf(x) < MATH_TANH_SMALL ? small : large;
}

/* c tanh(x / c) for a soft cap c > 0; c = 0: x. */
static inline float math_softcap(float x, float c)
{
    return c > 0 ? c * math_tanh(x / c) : x;
}

/* First (a) and second (b) number of the pair (a, b) rotated by the angle with cosine c and sine
 * s. */
static inline float math_turn_a(float a, float b, float c, float s)
{
    return fmaf(-b, s, a * c);
}
static inline float math_turn_b(float a, float b, float c, float s)
{
    return fmaf(b, c, a * s);
}
/* Rotates back. inverse: 1 / (c^2 + s^2), 1 unless cosines and sines are scaled. */
static inline float math_back_a(float a, float b, float c, float s, float inverse)
{
    return (a * c + b * s) * inverse;
}
static inline float math_back_b(float a, float b, float c, float s, float inverse)
{
    return (b * c - a * s) * inverse;
}

/* exp(sink - max), which a head's sink adds to the sum of exps relative to the greatest logit
 * `max`; 0 without sinks. */
static inline float math_sink(const float *sinks, int head, float max)
{
    return sinks ? math_exp(sinks[head] - (max == -INFINITY ? 0.0f : max)) : 0.0f;
}

/* xIELU of Huang and Schlag (2024), beta 1/2: alpha[0] x^2 + x / 2 above 0, else alpha[1] (e^x - 1
 * - x) + x / 2. Near 0 the bracket is a polynomial: e^x - 1 alone would round the square away. */
#define MATH_XIELU_SMALL (-1.0f) // to 0
#define MATH_XIELU_P0    0.5f    // 1 / 2! to 1 / 11!
#define MATH_XIELU_P1    0x1.555556p-3f
#define MATH_XIELU_P2    0x1.555556p-5f
#define MATH_XIELU_P3    0x1.111112p-7f
#define MATH_XIELU_P4    0x1.6c16c2p-10f
#define MATH_XIELU_P5    0x1.a01a02p-13f
#define MATH_XIELU_P6    0x1.a01a02p-16f
#define MATH_XIELU_P7    0x1.71de3ap-19f
#define MATH_XIELU_P8    0x1.27e4fcp-22f
#define MATH_XIELU_P9    0x1.ae6456p-26f
static inline float math_xielu(const float *alpha, float x)
{
    float p = fmaf(MATH_XIELU_P9, x, MATH_XIELU_P8);
    p = fmaf(p, x, MATH_XIELU_P7);
    p = fmaf(p, x, MATH_XIELU_P6);
    p = fmaf(p, x, MATH_XIELU_P5);
    p = fmaf(p, x, MATH_XIELU_P4);
    p = fmaf(p, x, MATH_XIELU_P3);
    p = fmaf(p, x, MATH_XIELU_P2);
    p = fmaf(p, x, MATH_XIELU_P1);
    p = fmaf(p, x, MATH_XIELU_P0);
    float rest = x < MATH_XIELU_SMALL ? (math_exp(x) - 1.0f) - x : p * (x * x);
    return 0.0f < x ? fmaf(alpha[0] * x, x, 0.5f * x) : fmaf(alpha[1], rest, 0.5f * x);
}

static inline float math_act(int act, float x)
{
    switch (act) {
    case ACT_RELU:
        return x > 0.0f ? x : 0.0f;
    case ACT_RELU2:
        return x > 0.0f ? x * x : 0.0f;
    case ACT_GELU:
        return math_gelu(x);
    case ACT_GELU_TANH:
        return math_gelu_tanh(x);
    case ACT_SILU:
        return math_silu(x);
    case ACT_GELU_QUICK:
        return math_gelu_quick(x);
    case ACT_LOGISTIC:
        return math_logistic(x);
    default:
        return x;
    }
}

/* The gated MLP: act(gate) * up; limit as in struct shape. */
static inline float math_gate(int act, float limit, float gate, float up)
{
    if (limit > 0.0f) {
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < 0.0f - limit ? 0.0f - limit : up;
        up = up + 1.0f;
    }
    return math_act(act, gate) * up;
}

/* A number in (0, 1] made of 32 random bits of (key, id). */
static inline float math_uniform(uint64_t key, int32_t id)
{
    uint64_t h = mix64(key + (uint64_t)(uint32_t)id * 0x9e3779b97f4a7c15ull);
    return ((float)(uint32_t)(h >> 32) + 0.5f) * 0x1p-32f;
}

/* Gumbel noise -log(-log(u)) with u = 1 - v, v = math_uniform(): the rare large values, which
 * choose the token, have the finest resolution. */
static inline float math_gumbel(float v)
{
    return 0.0f - math_log(0.0f - math_log1m(v));
}

/* The fixed tree that joins 16 lanes. */
static inline float math_sum16(const float lanes[16])
{
    float s[8];
    for (int i = 0; i < 8; i++)
        s[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++)
        s[i] = s[i] + s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Dot product of x and y [n] in 16 lanes; the loop over whole groups of 16 is vectorised. */
static inline float math_dot(const float *x, const float *y, int n)
{
    float lanes[16] = {0};
    const int whole = n - n % 16;
    for (int i = 0; i < whole; i += 16)
        for (int j = 0; j < 16; j++)
            lanes[j] = fmaf(x[i + j], y[i + j], lanes[j]);
    for (int i = whole; i < n; i++)
        lanes[i - whole] = fmaf(x[i], y[i], lanes[i - whole]);
    return math_sum16(lanes);
}

/* The factor of a norm, from the sum of squares of n numbers. Overflow of that sum gives NaN: 1 /
 * inf would be 0, and a row of zeros would give token 0 as if nothing were wrong. In every other
 * case the second term is 0. */
static inline float math_norm_scale(float squares, int n, float eps)
{
    const float mean = squares / (float)n + eps;
    return 1.0f / sqrtf(mean) + 0.0f * mean;
}

/* The length of x [n]. */
static inline float math_norm(const float *x, int n)
{
    return sqrtf(math_dot(x, x, n));
}

#endif
