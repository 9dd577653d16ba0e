/* kernels/ref/state.c - ops on row states: in double as their definition says, and exact, in the
 * order of kernels/ops.h. */
#include "kernels/ref/ref.h"
#include "kernels/state.h"

#include <string.h>

void ref_conv(const struct ops *ops, const struct conv_args *a)
{
    const int past = a->taps - 1;
    (void)ops;
    for (int i = 0; i < a->rows.n_spans; i++) {
        const struct state_span *s = &a->rows.spans[i];
        float *state = state_of(&a->rows, s, a->offset);
        for (int c = 0; c < a->n; c++) {
            float x[STATE_TAPS_MAX];
            for (int j = 0; j < past; j++)
                x[j] = s->fresh ? 0 : state[(int64_t)j * a->n + c];
            for (int t = 0; t < s->n; t++) {
                float *at = a->x + (s->token + t) * a->x_stride + c;
                double sum = a->bias ? a->bias[c] : 0;
                x[past] = *at;
                for (int j = 0; j < a->taps; j++)
                    sum += (double)a->weight[(int64_t)c * a->taps + j] * x[j];
                memmove(x, x + 1, (size_t)past * sizeof *x);
                *at = (float)ref_act(a->act, sum);
            }
            for (int j = 0; j < past; j++)
                state[(int64_t)j * a->n + c] = x[j];
        }
    }
}

void exact_conv(const struct ops *ops, const struct conv_args *a)
{
    const int past = a->taps - 1;
    (void)ops;
    for (int i = 0; i < a->rows.n_spans; i++) {
        const struct state_span *s = &a->rows.spans[i];
        float *state = state_of(&a->rows, s, a->offset);
        for (int t = 0; t < s->n; t++)
            for (int c = 0; c < a->n; c++) {
                float *at = a->x + (s->token + t) * a->x_stride + c, sum = a->bias ? a->bias[c] : 0;
                const float *w = a->weight + (int64_t)c * a->taps, x = *at;
                for (int j = 0; j < past; j++) {
                    float *held = &state[(int64_t)j * a->n + c];
                    *held = s->fresh && t == 0 ? 0 : *held;
                    sum = fmaf(w[j], *held, sum);
                }
                *at = math_act(a->act, fmaf(w[past], x, sum));
                for (int j = 0; j < past; j++)
                    state[(int64_t)j * a->n + c] =
                        j + 1 < past ? state[(int64_t)(j + 1) * a->n + c] : x;
            }
    }
}

static double squares_of(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

/* One token of one column: S [k_dim], v_dim numbers apart. */
static double ref_column(const struct recur_args *a, float *s, const double *q, const double *k,
                         double g, double b, double v)
{
    double seen = 0, out = 0;
    for (int i = 0; i < a->k_dim; i++)
        seen += g * s[(int64_t)i * a->v_dim] * k[i];
    const double d = b * (a->corrects ? v - seen : v);
    for (int i = 0; i < a->k_dim; i++) {
        const double x = g * s[(int64_t)i * a->v_dim] + k[i] * d;
        s[(int64_t)i * a->v_dim] = (float)x;
        out += x * q[i];
    }
    return out;
}

static void ref_token(const struct recur_args *a, float *s, int64_t token, int h)
{
    const int64_t at = token * a->qkv_stride + recur_key_of(a, h);
    const double x = a->dt[token * a->dt_stride + h] + a->dt_bias[h];
    const double step = x > 30 ? x : log1p(exp(x)), g = exp(a->a[h] * step);
    const double b = a->beta ? 1 / (1 + exp(-a->beta[token * a->beta_stride + h])) : step;
    const double eps = a->unit_eps;
    const double of_q = a->q_scale / (eps > 0 ? sqrt(squares_of(a->q + at, a->k_dim) + eps) : 1);
    const double of_k = 1 / (eps > 0 ? sqrt(squares_of(a->k + at, a->k_dim) + eps) : 1);
    double q[STATE_DIM_MAX], k[STATE_DIM_MAX];
    for (int i = 0; i < a->k_dim; i++) {
        q[i] = a->q[at + i] * of_q;
        k[i] = a->k[at + i] * of_k;
    }
    for (int j = 0; j < a->v_dim; j++) {
        const double v = a->v[token * a->qkv_stride + (int64_t)h * a->v_dim + j];
        const double skip = a->skip ? a->skip[h] * v : 0;
        a->out[token * a->out_stride + (int64_t)h * a->v_dim + j] =
            (float)(ref_column(a, s + j, q, k, g, b, v) + skip);
    }
}

static void exact_token(const struct recur_args *a, float *s, int64_t token, int h)
{
    const int64_t at = token * a->qkv_stride + recur_key_of(a, h);
    float q[STATE_DIM_MAX], k[STATE_DIM_MAX], q2[16] = {0}, k2[16] = {0}, kq[16] = {0}, g, b;
    recur_gates(a, token, h, &g, &b);
    for (int i = 0; i < a->k_dim; i++) {
        q2[i % 16] = fmaf(a->q[at + i], a->q[at + i], q2[i % 16]);
        k2[i % 16] = fmaf(a->k[at + i], a->k[at + i], k2[i % 16]);
    }
    const float q_scale = recur_unit(a, math_sum16(q2)) * a->q_scale;
    const float k_scale = recur_unit(a, math_sum16(k2));
    for (int i = 0; i < a->k_dim; i++) {
        q[i] = a->q[at + i] * q_scale;
        k[i] = a->k[at + i] * k_scale;
        kq[i % 16] = fmaf(k[i], q[i], kq[i % 16]);
    }
    for (int j = 0; j < a->v_dim; j++) {
        const float v = a->v[token * a->qkv_stride + (int64_t)h * a->v_dim + j];
        float p = 0, r = 0;
        for (int i = 0; i < a->k_dim; i++) {
            p = fmaf(s[(int64_t)i * a->v_dim + j], k[i], p);
            r = fmaf(s[(int64_t)i * a->v_dim + j], q[i], r);
        }
        const float d = b * (a->corrects ? fmaf(-g, p, v) : v);
        const float out = fmaf(math_sum16(kq), d, g * r);
        a->out[token * a->out_stride + (int64_t)h * a->v_dim + j] =
            a->skip ? fmaf(a->skip[h], v, out) : out;
        for (int i = 0; i < a->k_dim; i++) {
            float *x = &s[(int64_t)i * a->v_dim + j];
            *x = fmaf(k[i], d, g * *x);
        }
    }
}

static void recur(const struct recur_args *a,
                  void (*token)(const struct recur_args *a, float *s, int64_t token, int h))
{
    const int64_t size = (int64_t)a->k_dim * a->v_dim;
    for (int i = 0; i < a->rows.n_spans; i++) {
        const struct state_span *s = &a->rows.spans[i];
        float *state = state_of(&a->rows, s, 0);
        if (s->fresh)
            memset(state, 0, (size_t)(a->v_heads * size) * sizeof *state);
        for (int t = 0; t < s->n; t++)
            for (int h = 0; h < a->v_heads; h++)
                token(a, state + h * size, s->token + t, h);
    }
}

void ref_recur(const struct ops *ops, const struct recur_args *a)
{
    (void)ops;
    recur(a, ref_token);
}

void exact_recur(const struct ops *ops, const struct recur_args *a)
{
    (void)ops;
    recur(a, exact_token);
}
