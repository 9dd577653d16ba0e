/* kernels/ref/int8.c - the int8 matmul in plain loops: see struct matmul_args in kernels/ops.h.
 *
 * Owns: the product of quantised inputs and weights, for both references. Refuses: speed.
 * Codes equal those of the fast kernels, and sums of a group are integers; only the chain over
 * groups differs: double in one reference, f32 in the other. */
#include "kernels/dtype_own.h"
#include "kernels/math.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

struct group_number {
    int code;
    double scale, min;
};

/* Number i of output o, o < 32, of a panel. */
static struct group_number number_at(enum dtype t, const uint8_t *panel, int i, int o)
{
    struct group_number number = {0};
    const int quad = i % OWN_GROUP / 4, byte = i % 4;
    if (t == DTYPE_Q8) {
        const uint8_t *group = panel + (int64_t)(i / OWN_GROUP) * Q8_GROUP_BYTES;
        float scale;
        memcpy(&scale, group + o * 4, 4);
        number.scale = scale;
        number.code = group[Q8_HEAD_BYTES + (quad * PANEL_ROWS + o) * 4 + byte] - Q8_BIAS;
    } else {
        const uint8_t *group = panel + (int64_t)(i / OWN_GROUP) * Q4_GROUP_BYTES;
        uint16_t scale, min;
        memcpy(&scale, group + o * 2, 2);
        memcpy(&min, group + (PANEL_ROWS + o) * 2, 2);
        number.scale = f16_to_f32(scale);
        number.min = f16_to_f32(min);
        number.code = group[Q4_HEAD_BYTES + (quad * 16 + o % 16) * 4 + byte] >> (o / 16 * 4) & 15;
    }
    return number;
}

float ref_largest(const float *x, int k)
{
    float max = 0;
    for (int i = 0; i < k; i++) {
        if (!isfinite(x[i]))
            return NAN;
        max = fmaxf(max, fabsf(x[i]));
    }
    return max < 0x1p-100f ? 0 : max;
}

int ref_code(float x, float max, float most)
{
    return isfinite(max) && max > 0 ? (int)rintf(x * (most / max)) : 0;
}

/* Output o of a panel times one group of inputs from `first`: integer sums and their scales. */
struct group_sums {
    struct group_number number;
    int products, inputs;
    float scale; // of the inputs
};

static struct group_sums sum_group(const struct weight *w, const uint8_t *panel, const float *x,
                                   int first, int o)
{
    const int end = first + OWN_GROUP < w->k ? first + OWN_GROUP : w->k;
    const float max = ref_largest(x + first, end - first);
    struct group_sums s = {.scale = max / 127.0f};
    for (int i = first; i < end; i++) {
        const int code = ref_code(x[i], max, 127);
        s.number = number_at(w->dtype, panel, i, o);
        s.products += code * s.number.code;
        s.inputs += code;
    }
    return s;
}

static double chain_double(const struct weight *w, const uint8_t *panel, const float *x, int o)
{
    double chain = 0;
    for (int first = 0; first < w->k; first += OWN_GROUP) {
        struct group_sums s = sum_group(w, panel, x, first, o);
        chain += (s.number.scale * s.products + s.number.min * s.inputs) * (double)s.scale;
    }
    return chain;
}

static float chain_f32(const struct weight *w, const uint8_t *panel, const float *x, int o)
{
    float chain = 0;
    for (int first = 0; first < w->k; first += OWN_GROUP) {
        struct group_sums s = sum_group(w, panel, x, first, o);
        chain = fmaf((float)s.number.scale, (float)s.products * s.scale, chain);
        if (w->dtype == DTYPE_Q4)
            chain = fmaf((float)s.number.min, (float)s.inputs * s.scale, chain);
    }
    return chain;
}

static const uint8_t *panel_at(const struct weight *w, int o)
{
    return (const uint8_t *)w->panels + o / PANEL_ROWS * dtype_panel_bytes(w->dtype, w->k);
}

static void matmul_part_double(const struct matmul_args *a, const struct matmul_part *p)
{
    for (int row = 0; row < a->m; row++)
        for (int o = 0; o < p->w.n; o++) {
            float *y = &p->y[row * p->y_stride + o];
            double v =
                chain_double(&p->w, panel_at(&p->w, o), a->x + row * a->x_stride, o % PANEL_ROWS);
            v += p->bias ? p->bias[o] : 0;
            v = ref_act(p->act, v);
            *y = (float)(p->add ? *y + v : v);
        }
}

void ref_matmul_int8(const struct ops *ops, const struct matmul_args *a)
{
    (void)ops;
    for (int i = 0; i < a->n_parts; i++)
        matmul_part_double(a, &a->parts[i]);
}

static void matmul_part_f32(const struct matmul_args *a, const struct matmul_part *p)
{
    for (int row = 0; row < a->m; row++)
        for (int o = 0; o < p->w.n; o++) {
            float *y = &p->y[row * p->y_stride + o];
            float v =
                chain_f32(&p->w, panel_at(&p->w, o), a->x + row * a->x_stride, o % PANEL_ROWS);
            *y = exact_finish(p, v, o, *y);
        }
}

void exact_matmul_int8(const struct ops *ops, const struct matmul_args *a)
{
    (void)ops;
    for (int i = 0; i < a->n_parts; i++)
        matmul_part_f32(a, &a->parts[i]);
}
