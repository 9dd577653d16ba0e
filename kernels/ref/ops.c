/* kernels/ref/ops.c - every op in plain loops: the specification, never optimised.
 *
 * Owns: what an op computes; slots.c has ops that move tokens, int8.c the int8 matmul, exact.c the
 * order of sums. Refuses: threads, speed, scratch except for the logits of a query.
 * Sums are double, so a fast op differs from this by its own rounding alone. What the contract
 * rounds (inputs to the compute format, K and V to the KV format) is rounded here too. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#include "kernels/score.h"

double ref_act(int kind, double x)
{
    switch (kind) {
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_RELU2:
        return x > 0 ? x * x : 0;
    case ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case ACT_SILU:
        return x / (1 + exp(-x));
    case ACT_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
    case ACT_LOGISTIC:
        return 1 / (1 + exp(-x));
    default:
        return x;
    }
}

static double xielu(const float *alpha, double x)
{
    return 0.5 * x + (x > 0 ? (double)alpha[0] * x * x : (double)alpha[1] * (expm1(x) - x));
}

static double softcap(double x, double cap)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

static void matmul_part(const struct matmul_args *a, const struct matmul_part *p, int round)
{
    float w[CHUNK * PANEL_ROWS]; // [chunk][32]
    for (int out0 = 0; out0 < p->w.n; out0 += PANEL_ROWS) {
        const uint8_t *panel = (const uint8_t *)p->w.panels +
                               out0 / PANEL_ROWS * dtype_panel_bytes(p->w.dtype, p->w.k);
        for (int row = 0; row < a->m; row++) {
            double sum[PANEL_ROWS] = {0};
            for (int k0 = 0; k0 < p->w.k; k0 += CHUNK) {
                int k1 = k0 + CHUNK < p->w.k ? k0 + CHUNK : p->w.k;
                panel_decode_f32(p->w.dtype, panel, p->w.k, k0, k1, w);
                for (int k = k0; k < k1; k++)
                    for (int o = 0; o < PANEL_ROWS; o++) {
                        float x = a->x[row * a->x_stride + k];
                        float y = w[(k - k0) * PANEL_ROWS + o];
                        sum[o] +=
                            round ? (double)ref_round_bf16(x) * ref_round_bf16(y) : (double)x * y;
                    }
            }
            for (int o = out0; o < out0 + PANEL_ROWS && o < p->w.n; o++) {
                float *y = &p->y[row * p->y_stride + o];
                double v = ref_act(p->act, sum[o - out0] + (p->bias ? p->bias[o] : 0));
                *y = (float)(p->add ? *y + v : v);
            }
        }
    }
}

void ref_matmul(const struct ops *ops, const struct matmul_args *a)
{
    CHECK(ops->compute == COMPUTE_BF16 || ops->compute == COMPUTE_F32);
    for (int i = 0; i < a->n_parts; i++)
        matmul_part(a, &a->parts[i], ops->compute == COMPUTE_BF16);
}

void ref_decode(const struct ops *ops, const struct decode_args *a)
{
    (void)ops;
    CHECK(a->w.layout == WEIGHT_PANELS && a->layout == WEIGHT_PANELS);
    int64_t from_bytes = dtype_panel_bytes(a->w.dtype, a->w.k);
    int64_t to_bytes = dtype_panel_bytes(a->to, a->w.k);
    for (int panel = 0; panel * PANEL_ROWS < a->w.n; panel++) {
        const uint8_t *from = (const uint8_t *)a->w.panels + panel * from_bytes;
        void *to = (uint8_t *)a->panels + panel * to_bytes;
        if (a->to == DTYPE_BF16)
            panel_decode_bf16(a->w.dtype, from, a->w.k, 0, a->w.k, to);
        else
            panel_decode_f32(a->w.dtype, from, a->w.k, 0, a->w.k, to);
    }
}

void ref_gather(const struct ops *ops, const struct gather_args *a)
{
    (void)ops;
    float *row = a->scratch;
    for (int i = 0; i < a->n; i++) {
        float *x = a->x + i * a->x_stride;
        dtype_decode_row(a->dtype, (const uint8_t *)a->rows + a->offsets[i], a->k,
                         a->add ? row : x);
        for (int d = 0; d < a->k && a->add; d++)
            x[d] += row[d];
    }
}

void ref_compact(const struct ops *ops, const struct compact_args *a)
{
    (void)ops;
    for (int i = 0; i < a->n; i++)
        memmove(a->x + (int64_t)i * a->dim, a->x + (int64_t)a->from[i] * a->dim,
                (size_t)a->dim * sizeof *a->x);
}

void ref_cast(const struct ops *ops, const struct cast_args *a)
{
    (void)ops;
    for (int64_t i = 0; i < a->n; i++)
        if (a->widens)
            ((float *)a->to)[i] = bf16_to_f32(((const uint16_t *)a->from)[i]);
        else
            ((uint16_t *)a->to)[i] = f32_to_bf16(((const float *)a->from)[i]);
}

void ref_norm(const struct ops *ops, const struct norm_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++) {
        const float *x = a->x + row * a->x_stride;
        float *y = a->y + row * a->y_stride;
        double mean = 0, var = 0;
        for (int i = 0; i < a->dim && a->kind == NORM_LAYER; i++)
            mean += (double)x[i] / a->dim;
        for (int i = 0; i < a->dim; i++)
            var += (x[i] - mean) * (x[i] - mean) / a->dim;
        for (int i = 0; i < a->dim; i++)
            y[i] = (float)((x[i] - mean) / sqrt(var + (double)a->eps) *
                               (a->weight ? a->weight[i] : 1) +
                           (a->bias ? a->bias[i] : 0));
    }
}

void ref_rope(const struct ops *ops, const struct rope_args *a)
{
    (void)ops;
    int half = a->rope_dim / 2;
    for (int row = 0; row < a->m; row++)
        for (int h = 0; h < a->n_heads; h++)
            for (int i = 0; i < half; i++) {
                float *x = a->x + row * a->x_stride + (int64_t)h * a->head_dim + i;
                int64_t at = (int64_t)a->pos[row] * half + i;
                double c = a->cos[at], s = a->sin[at];
                double x0 = x[0], x1 = x[half];
                x[0] = (float)(x0 * c - x1 * s);
                x[half] = (float)(x1 * c + x0 * s);
            }
    for (int row = 0; row < a->m && a->factors; row++)
        for (int i = 0; i < a->n_heads * a->head_dim; i++)
            a->x[row * a->x_stride + i] *= a->factors[a->pos[row]];
}

void ref_rotate(const struct ops *ops, const struct rotate_args *a)
{
    (void)ops;
    double y[KV_ROTATION_MOST];
    for (int64_t row = 0; row < a->m; row++)
        for (int at = 0; at < a->n; at += a->block) {
            float *x = a->x + row * a->x_stride + at;
            for (int i = 0; i < a->block; i++) {
                y[i] = 0;
                for (int j = 0; j < a->block; j++)
                    y[i] += __builtin_parity((unsigned)(i & j)) ? -(double)x[j] : x[j];
            }
            for (int i = 0; i < a->block; i++)
                x[i] = (float)(y[i] / sqrt(a->block));
        }
}

void ref_gate_mul(const struct ops *ops, const struct gate_mul_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *gate = &a->gate[row * a->gate_stride + i];
            double g = *gate, up = a->up ? a->up[row * a->up_stride + i] : 0;
            if (a->limit > 0) {
                g = g > a->limit ? a->limit : g;
                up = (up > a->limit ? a->limit : up < -a->limit ? -a->limit : up) + 1;
            }
            *gate = (float)(a->up ? ref_act(a->act, g) * up : xielu(a->alpha, g));
        }
}

void ref_mix(const struct ops *ops, const struct mix_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *x = &a->x[row * a->x_stride + i];
            double v = a->a != 0 ? (double)a->a * *x : 0;
            v += a->y ? (double)a->b * a->y[row * a->y_stride + i] : 0;
            *x = (float)softcap(v, a->cap);
        }
}

/* 1: key a is greater than key b, where NaN is less than any number. */
static int ref_is_greater(double a, double b)
{
    return a > b || (isnan(b) && !isnan(a));
}

/* Scores of an expert in double: what a softmax over all, or a logistic, makes of its logit. */
static double ref_score(const struct route_args *a, const float *logits, int expert)
{
    double max = -INFINITY, sum = 0;
    if (a->logistic)
        return 1 / (1 + exp(-(double)logits[expert]));
    for (int e = 0; e < a->to.n_experts; e++)
        max = ref_is_greater(logits[e], max) ? logits[e] : max;
    for (int e = 0; e < a->to.n_experts; e++)
        sum += exp((double)logits[e] - max);
    return exp((double)logits[expert] - max) / sum;
}

/* What an expert is chosen by: as the rounded scores order the experts. */
static double ref_key(const struct route_args *a, const float *logits, int e)
{
    if (!route_by_score(a))
        return logits[e];
    const float score = (float)ref_score(a, logits, e);
    return a->bias ? score + a->bias[e] : score;
}

/* The best number of [0, n) that is not taken; key(i) may be NaN. */
static int ref_best(const double *keys, int n, const int32_t *taken, int n_taken)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        int is_taken = 0;
        for (int k = 0; k < n_taken; k++)
            is_taken |= taken[k] == i;
        if (!is_taken && (best < 0 || ref_is_greater(keys[i], keys[best])))
            best = i;
    }
    return best;
}

/* Marks the experts of a token's groups; without groups, all. */
static void ref_groups(const struct route_args *a, const double *keys, uint8_t *inside)
{
    const int n = a->n_groups > 0 ? a->to.n_experts / a->n_groups : 0;
    double sums[SHAPE_GROUPS_MAX];
    int32_t groups[SHAPE_GROUPS_MAX];
    memset(inside, n == 0, (size_t)a->to.n_experts);
    for (int g = 0; g < a->n_groups; g++) {
        int32_t two[2];
        two[0] = ref_best(keys + g * n, n, two, 0);
        two[1] = ref_best(keys + g * n, n, two, 1);
        sums[g] = (float)keys[g * n + two[0]];
        if (!a->group_best)
            sums[g] += (float)keys[g * n + two[1]];
    }
    for (int i = 0; i < a->n_groups_used; i++) {
        groups[i] = ref_best(sums, a->n_groups, groups, i);
        memset(inside + groups[i] * n, 1, (size_t)n);
    }
}

/* The weight of choice j with a->near: over all experts but the choices before it. */
static double ref_near(const struct route_args *a, const float *logits, const int32_t *chosen,
                       int j)
{
    const float max = logits[chosen[j]];
    double sum = 0;
    for (int e = 0; e < a->to.n_experts; e++) {
        const float size = fmaxf(fabsf(logits[e]), max);
        int before = 0;
        for (int i = 0; i < j; i++)
            before |= chosen[i] == e;
        if (!before && !(max - logits[e] > a->near * size))
            sum += exp((double)logits[e] - max);
    }
    return 1 / sum;
}

/* Sums in double; each choice scans all experts for the best one left. */
static void ref_route_token(const struct route_args *a, int row)
{
    const struct route *r = &a->to;
    const float *logits = a->logits + row * a->logits_stride;
    int32_t *chosen = r->places + row * r->n_used;
    double keys[SHAPE_EXPERTS_MAX], among[SHAPE_EXPERTS_MAX], scores[SHAPE_EXPERTS_USED_MAX];
    uint8_t inside[SHAPE_EXPERTS_MAX];
    int32_t numbers[SHAPE_EXPERTS_MAX];
    double alone = 0;
    int n = 0;
    for (int e = 0; e < r->n_experts; e++)
        keys[e] = ref_key(a, logits, e);
    ref_groups(a, keys, inside);
    for (int e = 0; e < r->n_experts; e++)
        if (inside[e]) {
            among[n] = keys[e];
            numbers[n++] = e;
        }
    for (int j = 0; j < r->n_used; j++)
        chosen[j] = ref_best(among, n, chosen, j);
    for (int j = 0; j < r->n_used; j++) {
        chosen[j] = numbers[chosen[j]];
        scores[j] = a->alone && !route_by_score(a)
                        ? exp((double)logits[chosen[j]] - logits[chosen[0]])
                        : ref_score(a, logits, chosen[j]);
        alone += scores[j];
    }
    alone = alone < ROUTE_SUM_MIN ? ROUTE_SUM_MIN : alone; // NaN stays
    for (int j = 0; j < r->n_used; j++)
        r->weights[row * r->n_used + j] = (float)(a->near > 0 ? ref_near(a, logits, chosen, j)
                                                  : a->alone  ? scores[j] / alone
                                                              : scores[j]) *
                                          a->scale * (a->scales ? a->scales[chosen[j]] : 1);
}

void ref_route(const struct ops *ops, const struct route_args *a)
{
    const struct route *r = &a->to;
    int at = 0;
    (void)ops;
    for (int row = 0; row < a->m; row++)
        ref_route_token(a, row);
    for (int e = 0; e < r->n_experts; e++) {
        r->first[e] = at;
        for (int i = 0; i < a->m * r->n_used; i++)
            if (r->places[i] == e)
                r->pairs[at++] = i;
    }
    r->first[r->n_experts] = at;
    for (int i = 0; i < at; i++)
        r->places[r->pairs[i]] = i;
}

void ref_expert_matmul(const struct ops *ops, const struct expert_matmul_args *a)
{
    const struct route *r = &a->route;
    struct ops as_bf16 = *ops;
    as_bf16.compute = COMPUTE_BF16;
    for (int e = 0; e < r->n_experts; e++)
        for (int i = r->first[e]; i < r->first[e + 1]; i++)
            for (int p = 0; p < a->matmul.n_parts; p++) {
                struct matmul_args one = a->matmul;
                const enum dtype t = one.parts[p].w.dtype;
                one.m = one.n_parts = 1;
                one.x += (a->by_token ? r->pairs[i] / r->n_used : i) * one.x_stride;
                one.parts[0] = expert_part(&a->matmul.parts[p], r->n_experts, e, i);
                if (ops->compute != COMPUTE_INT8)
                    ref_matmul(ops, &one);
                else if (t == DTYPE_Q8 || t == DTYPE_Q4)
                    ref_matmul_int8(ops, &one);
                else
                    ref_matmul(&as_bf16, &one);
            }
}

void ref_expert_sum(const struct ops *ops, const struct expert_sum_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *x = &a->x[row * a->x_stride + i];
            double sum = a->add ? *x : 0;
            for (int j = row * a->route.n_used; j < (row + 1) * a->route.n_used; j++)
                sum += (double)a->route.weights[j] * a->y[a->route.places[j] * a->y_stride + i];
            if (a->shared)
                sum += (a->shares ? 1 / (1 + exp(-(double)a->shares[row])) : 1) *
                       a->shared[row * a->y_stride + i];
            *x = (float)sum;
        }
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* One query of one head against keys 0..query of the prompt. x [query + 1] becomes its logits. Adds
 * weights to columns [query + 1] (or NULL), unless they are NaN. */
static void prompt_query(const struct attend_prompt_args *a, const struct prompt_span *s, int query,
                         int head, int round, double *x, float *columns)
{
    const struct kv_layout *l = &a->layout;
    const uint8_t *pages = prompt_span_pages(a, s);
    const int64_t token = s->token + query - s->first;
    float q[HEAD_DIM_MAX];
    for (int d = 0; d < l->head_dim; d++) {
        q[d] = a->q[token * a->q_stride + head * l->head_dim + d];
        q[d] = round ? ref_round_bf16(q[d]) : q[d];
    }
    float *out = a->out + token * a->out_stride + head * l->head_dim;
    int kv_head = head / (a->n_heads / l->n_kv_heads);
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    double max = -INFINITY, sum = 0, mean[HEAD_DIM_MAX] = {0};
    const int low = prompt_low(a, query);
    for (int key = low; key <= query; key++) {
        const uint8_t *page = pages + key / PAGE_SLOTS * l->page_bytes;
        kv_get(l, page, key % PAGE_SLOTS, kv_head, k, NULL);
        x[key] = softcap(dot(q, k, l->head_dim) * a->scale, a->cap);
        max = fmax(max, x[key]);
    }
    for (int key = low; key <= query; key++)
        sum += exp(x[key] - max);
    sum += a->sinks ? exp(a->sinks[head] - max) : 0;
    for (int key = low; key <= query; key++) {
        const uint8_t *page = pages + key / PAGE_SLOTS * l->page_bytes;
        const double weight = exp(x[key] - max) / sum;
        kv_get(l, page, key % PAGE_SLOTS, kv_head, NULL, v);
        for (int d = 0; d < l->head_dim; d++)
            mean[d] += weight * v[d];
        if (columns && sum > 0)
            columns[key] += (float)weight;
    }
    for (int d = 0; d < l->head_dim; d++)
        out[d] = (float)mean[d];
}

/* Adds a query's columns to the scores of a KV head. */
static void prompt_columns(const struct attend_prompt_args *a, const struct prompt_span *s,
                           int query, int kv_head, const float *columns)
{
    const struct evict_rule mode = evict_rule_of(a->policy);
    const float worth = evict_query_worth(&mode, query, s->n_prompt);
    float *scores = prompt_span_scores(a, s) + kv_head * round_up(s->n_prompt, PAGE_SLOTS);
    for (int key = 0; key <= query && worth > 0; key++)
        scores[key] = mode.source == EVICT_EACH
                          ? evict_score_next(&mode, scores[key], columns[key],
                                             a->n_heads / a->layout.n_kv_heads, query)
                          : scores[key] + worth * columns[key];
}

void ref_attend_prompt(const struct ops *ops, const struct attend_prompt_args *a)
{
    int round = ops->compute != COMPUTE_F32 && a->layout.format == KV_BF16;
    const int group = a->n_heads / a->layout.n_kv_heads;
    CHECK(a->layout.head_dim <= HEAD_DIM_MAX);
    for (int i = 0; i < a->n_spans; i++) {
        const struct prompt_span *s = &a->spans[i];
        float *columns = (float *)((double *)a->scratch + s->n_prompt);
        for (int query = s->first; query < s->first + s->n; query++)
            for (int head = 0; head < a->n_heads; head++) {
                if (head % group == 0)
                    memset(columns, 0, (size_t)s->n_prompt * sizeof *columns);
                prompt_query(a, s, query, head, round, a->scratch, columns);
                if (a->scores && head % group == group - 1)
                    prompt_columns(a, s, query, head / group, columns);
            }
    }
}

int ref_round_query(const struct ops *ops, const struct kv_layout *l, float *q, int *codes,
                    float *scales)
{
    const int ints = ops->compute != COMPUTE_F32 && l->groups > 0;
    for (int first = 0; first < l->head_dim && ints; first += KV_GROUP) {
        const int n = (int)min_i64(KV_GROUP, l->head_dim - first);
        const float max = ref_largest(q + first, n), scale = max / CODE_MOST;
        for (int d = first; d < first + n; d++) {
            const int code = ref_code(q[d], max, CODE_MOST);
            q[d] = (float)code * scale;
            if (codes)
                codes[d] = code;
        }
        if (codes)
            scales[first / KV_GROUP] = scale;
    }
    for (int d = 0; d < l->head_dim && ops->compute != COMPUTE_F32 && !ints; d++)
        q[d] = ref_round_bf16(q[d]);
    return ints;
}

/* K and, if want_v, V number `index` of those that a token attends: its slots, then its own.
 * Returns 0 if the token does not see the slot. */
static int forced_kv(const struct attend_forced_args *a, const struct forced_span *s,
                     const struct kv_row *kv, int now, int index, int head,
                     const float own[2][HEAD_DIM_MAX], float to[2][HEAD_DIM_MAX], int want_v)
{
    if (index == ref_slot_count(kv, now)) {
        memcpy(to, own, 2 * sizeof *to);
        return 1;
    }
    struct ref_slot at = ref_slot_at(kv, head, index);
    if (!ref_sees(a, s, kv, &at, now))
        return 0;
    kv_get(at.layout, at.page, at.slot, head, to[0], want_v ? to[1] : NULL);
    if (a->rope.cos)
        ref_turn(&a->rope, ref_rank(kv, head, now, index), to[0]);
    return 1;
}

/* Runs token i of a span for one query head. Returns its own weight; adds the other weights to
 * columns [slots] (or NULL). A query with NaN weights adds nothing. */
static double forced_query(const struct ops *ops, const struct attend_forced_args *a,
                           const struct forced_span *s, const struct kv_row *row, int i, int head,
                           const float own[2][HEAD_DIM_MAX], float *columns)
{
    const int head_dim = a->kv.layout.head_dim, now = s->pos + i, n = ref_slot_count(row, now);
    const int kv_head = head / (a->n_heads / a->kv.layout.n_kv_heads);
    const int64_t token = s->token + i;
    float q[HEAD_DIM_MAX], kv[2][HEAD_DIM_MAX];
    memcpy(q, a->q + token * a->q_stride + head * head_dim, (size_t)head_dim * sizeof *q);
    ref_turn_query(&a->rope, evict_rank_new(&s->limits, now), head_dim, q);
    ref_round_query(ops, &a->kv.layout, q, NULL, NULL);
    double max = -INFINITY, sum = 0, mean[HEAD_DIM_MAX] = {0}, weight = 0;
    for (int pass = 0; pass < 3; pass++) { // the maximum, the sum, the outputs
        sum += pass == 1 && a->sinks ? exp(a->sinks[head] - max) : 0;
        for (int index = 0; index <= n; index++) {
            if (!forced_kv(a, s, row, now, index, kv_head, own, kv, pass == 2))
                continue;
            double x = softcap(dot(q, kv[0], head_dim) * a->scale, a->cap);
            if (pass == 0) {
                max = fmax(max, x);
                continue;
            }
            if (pass == 1) {
                sum += exp(x - max);
                continue;
            }
            weight = sum > 0 ? exp(x - max) / sum : 0;
            for (int d = 0; d < head_dim; d++)
                mean[d] += exp(x - max) / sum * kv[1][d];
            if (index < n && columns)
                columns[index] += (float)weight;
        }
    }
    for (int d = 0; d < head_dim; d++)
        a->out[token * a->out_stride + head * head_dim + d] = (float)mean[d];
    return weight;
}

/* own_score: see ref_place. */
static void forced_token(const struct ops *ops, const struct attend_forced_args *a,
                         const struct forced_span *s, struct kv_row *kv, int i, float *own_score)
{
    const struct kv_layout *l = &a->kv.layout, *rounded = ref_own_layout(kv);
    const int64_t token = s->token + i;
    const struct evict_rule score = evict_rule_of(a->evict.policy);
    const int scores = evict_decode_scores(a->evict.policy), n = ref_slot_count(kv, s->pos + i);
    int group = a->n_heads / l->n_kv_heads;
    float own[2][HEAD_DIM_MAX] = {{0}}, *columns = own_score + REF_OWN * l->n_kv_heads;
    for (int h = 0; h < l->n_kv_heads; h++) {
        if (scores)
            memset(columns, 0, (size_t)n * sizeof *columns);
        kv_round(rounded, a->k + token * a->k_stride + h * l->head_dim, own[0]);
        ref_turn(&a->rope, evict_rank_new(&s->limits, s->pos + i), own[0]);
        kv_round(rounded, a->v + token * a->v_stride + h * l->head_dim, own[1]);
        double sum = 0;
        for (int g = 0; g < group; g++)
            sum += forced_query(ops, a, s, kv, i, h * group + g, own, scores ? columns : NULL);
        for (int j = 0; j < n && scores; j++) {
            float *at = kv->slot_score + ref_slot_at(kv, h, j).meta;
            *at = evict_score_next(&score, *at, columns[j], group, s->pos + i);
        }
        own_score[h] = ref_own_score(a, s->pos + i, (float)sum);
    }
    ref_place(a, s, kv, i, own_score);
}

void ref_attend_forced(const struct ops *ops, const struct attend_forced_args *a)
{
    CHECK(a->kv.layout.head_dim <= HEAD_DIM_MAX);
    for (int i = 0; i < a->n_spans; i++) {
        const struct forced_span *s = &a->spans[i];
        struct kv_row kv = kv_row_at(&a->kv, s->row, &s->limits, s->n_slots);
        for (int token = 0; token < s->n; token++)
            forced_token(ops, a, s, &kv, token, a->scratch);
    }
}

void ref_list_insert(struct head_candidate *list, int *n, int cap, struct head_candidate in)
{
    if (in.logit != in.logit)
        return;
    int at = 0;
    while (at < *n && list[at].logit >= in.logit)
        at++;
    if (at == cap)
        return;
    if (*n < cap)
        *n += 1;
    memmove(&list[at + 1], &list[at], (size_t)(*n - 1 - at) * sizeof *list);
    list[at] = in;
}

static void reduce_score(int32_t target, struct head_result *s, const float *logits, int n,
                         int first)
{
    double max = s->max, sum = 0;
    for (int i = 0; i < n; i++) {
        max = fmax(max, logits[i]);
        if (first + i == target)
            s->target_logit = logits[i];
    }
    for (int i = 0; i < n; i++)
        sum += max > -INFINITY ? exp(logits[i] - max) : 0;
    if (s->max > -INFINITY)
        sum += s->sum * exp(s->max - max);
    s->max = (float)max;
    s->sum = (float)sum;
}

static void reduce_logit(const struct head_reduce_args *a, int row, float raw, int32_t id)
{
    const struct head_request *q = &a->requests[row];
    struct head_result *s = &a->results[row];
    double logit = raw;
    if (raw != raw || raw == INFINITY)
        s->best_logit = NAN;
    if (raw > s->best_logit) {
        s->best_logit = raw;
        s->best_id = id;
    }
    if (q->want & HEAD_TOP)
        ref_list_insert(s->top, &s->n_top, q->n_top, (struct head_candidate){raw, id, raw});
    for (int i = 0; i < q->n_edits; i++) {
        const struct logit_edit *e = head_edits(a, q) + i;
        if (e->id == id)
            logit = (logit > 0 ? logit / (double)e->repeat : logit * (double)e->repeat) +
                    (double)e->add;
    }
    if (q->want & HEAD_FILTER)
        ref_list_insert(head_candidates(a, q), &s->n_filter, HEAD_SAMPLE_MAX,
                        (struct head_candidate){(float)logit, id, raw});
    if (q->want & HEAD_SAMPLE) {
        if (q->temperature > 0)
            logit = logit / (double)q->temperature + (double)head_gumbel(q->noise_key, id);
        if (logit > (double)s->sample_value) {
            s->sample_value = (float)logit;
            s->sample_id = id;
            s->sample_logit = raw;
        }
    }
}

void ref_head_reduce(const struct ops *ops, const struct head_reduce_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++) {
        const float *logits = a->logits + row * a->stride;
        if (a->requests[row].want & HEAD_SCORE)
            reduce_score(a->requests[row].target, &a->results[row], logits, a->n, a->first);
        for (int i = 0; i < a->n; i++)
            reduce_logit(a, row, logits[i], a->first + i);
    }
}
