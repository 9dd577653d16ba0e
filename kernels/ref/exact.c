/* kernels/ref/exact.c - the order rules of kernels/ops.h as code: scalar f32, link by link.
 *
 * Owns: the order of every sum of matmul, rows, prompts and head; exact_forced.c has forced spans,
 * int8.c the int8 matmul. Refuses: speed, threads, intrinsics.
 * Under COMPUTE_F32 every set and device gives exactly these bytes. Under COMPUTE_BF16 inputs are
 * rounded and the order is the same; sets that multiply pairs of bf16, and tensor cores, come close
 * but differ. AMX tiles have exact code of their own here. */
#include "kernels/math.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* ---- rule a: a matmul output is one chain over k ---- */

float exact_finish(const struct matmul_part *p, float sum, int o, float y)
{
    if (p->bias)
        sum = sum + p->bias[o];
    sum = math_act(p->act, sum);
    return p->add ? y + sum : sum;
}

static void matmul_part(const struct matmul_args *a, const struct matmul_part *p, int round)
{
    float w[CHUNK * PANEL_ROWS]; // [chunk][32]
    for (int out0 = 0; out0 < p->w.n; out0 += PANEL_ROWS) {
        const uint8_t *panel = (const uint8_t *)p->w.panels +
                               out0 / PANEL_ROWS * dtype_panel_bytes(p->w.dtype, p->w.k);
        for (int row = 0; row < a->m; row++) {
            float sum[PANEL_ROWS] = {0};
            for (int k0 = 0; k0 < p->w.k; k0 += CHUNK) {
                int k1 = k0 + CHUNK < p->w.k ? k0 + CHUNK : p->w.k;
                panel_decode_f32(p->w.dtype, panel, p->w.k, k0, k1, w);
                for (int k = k0; k < k1; k++)
                    for (int o = 0; o < PANEL_ROWS; o++) {
                        float x = a->x[row * a->x_stride + k];
                        float y = w[(k - k0) * PANEL_ROWS + o];
                        x = round ? ref_round_bf16(x) : x;
                        y = round ? ref_round_bf16(y) : y;
                        sum[o] = fmaf(x, y, sum[o]);
                    }
            }
            for (int o = out0; o < out0 + PANEL_ROWS && o < p->w.n; o++) {
                float *y = &p->y[row * p->y_stride + o];
                *y = exact_finish(p, sum[o - out0], o, *y);
            }
        }
    }
}

void exact_matmul(const struct ops *ops, const struct matmul_args *a)
{
    CHECK(ops->compute == COMPUTE_BF16 || ops->compute == COMPUTE_F32);
    for (int i = 0; i < a->n_parts; i++)
        matmul_part(a, &a->parts[i], ops->compute == COMPUTE_BF16);
}

/* AMX tiles flush denormal inputs and results to zero. */
static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* x * w + sum, flushed to zero where the result rounded to 24 bits with unlimited exponent is below
 * 2^-126, even if rounding it as a denormal gives 2^-126. */
static float amx_fma(float x, float w, float sum)
{
    float y = fmaf(x, w, sum);
    if (fabsf(y) <= 0x1p-126f && fabsf(fmaf(x * 0x1p32f, w * 0x1p32f, sum * 0x1p64f)) < 0x1p-62f)
        y = copysignf(0, y);
    return y;
}

/* The even and the odd products of 32 numbers along k are two chains from 0. */
static float amx_link(const float x[32], const float w[32][PANEL_ROWS], int o, float sum)
{
    float even = 0, odd = 0;
    for (int i = 0; i < 32; i += 2) {
        even = amx_fma(x[i], w[i][o], even);
        odd = amx_fma(x[i + 1], w[i + 1][o], odd);
    }
    return flushed(sum + flushed(even + odd));
}

static float amx_input(float x)
{
    return flushed(ref_round_bf16(flushed(x)));
}

static void matmul_part_amx(const struct matmul_args *a, const struct matmul_part *p)
{
    for (int out0 = 0; out0 < p->w.n; out0 += PANEL_ROWS) {
        const uint8_t *panel = (const uint8_t *)p->w.panels +
                               out0 / PANEL_ROWS * dtype_panel_bytes(p->w.dtype, p->w.k);
        for (int row = 0; row < a->m; row++) {
            float sum[PANEL_ROWS] = {0};
            for (int k0 = 0; k0 < p->w.k; k0 += CHUNK) {
                int n = k0 + CHUNK < p->w.k ? CHUNK : p->w.k - k0;
                float x[CHUNK] = {0}, w[CHUNK][PANEL_ROWS] = {{0}}; // zeros past the end
                panel_decode_f32(p->w.dtype, panel, p->w.k, k0, k0 + n, w[0]);
                for (int i = 0; i < n; i++)
                    x[i] = amx_input(a->x[row * a->x_stride + k0 + i]);
                for (int i = 0; i < n * PANEL_ROWS; i++)
                    w[i / PANEL_ROWS][i % PANEL_ROWS] =
                        flushed(ref_round_bf16(w[i / PANEL_ROWS][i % PANEL_ROWS]));
                for (int i = 0; i < n; i += 32)
                    for (int o = 0; o < PANEL_ROWS; o++)
                        sum[o] = amx_link(x + i, w + i, o, sum[o]);
            }
            for (int o = out0; o < out0 + PANEL_ROWS && o < p->w.n; o++) {
                float *y = &p->y[row * p->y_stride + o];
                *y = exact_finish(p, sum[o - out0], o, *y);
            }
        }
    }
}

void exact_matmul_amx(const struct ops *ops, const struct matmul_args *a)
{
    CHECK(ops->compute != COMPUTE_F32);
    for (int i = 0; i < a->n_parts; i++)
        matmul_part_amx(a, &a->parts[i]);
}

/* ---- rule f: sums of norms run in 16 lanes, number i in lane i mod 16 ---- */

void exact_norm(const struct ops *ops, const struct norm_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++) {
        const float *x = a->x + row * a->x_stride;
        float *y = a->y + row * a->y_stride;
        float sums[16] = {0}, squares[16] = {0};
        for (int i = 0; i < a->dim; i++)
            sums[i % 16] = sums[i % 16] + x[i];
        float mean = a->kind == NORM_LAYER ? math_sum16(sums) / (float)a->dim : 0;
        for (int i = 0; i < a->dim; i++)
            squares[i % 16] = fmaf(x[i] - mean, x[i] - mean, squares[i % 16]);
        float scale = math_norm_scale(math_sum16(squares), a->dim, a->eps);
        for (int i = 0; i < a->dim; i++) {
            float v = (x[i] - mean) * scale, weight = a->weight ? a->weight[i] : 1;
            y[i] = a->bias ? fmaf(v, weight, a->bias[i]) : v * weight;
        }
    }
}

void exact_rope(const struct ops *ops, const struct rope_args *a)
{
    (void)ops;
    const int half = a->rope_dim / 2;
    for (int row = 0; row < a->m; row++)
        for (int h = 0; h < a->n_heads; h++)
            for (int i = 0; i < half; i++) {
                float *x = a->x + row * a->x_stride + (int64_t)h * a->head_dim + i;
                const int64_t at = (int64_t)a->pos[row] * half + i;
                float c = a->cos[at], s = a->sin[at];
                float x0 = x[0], x1 = x[half];
                x[0] = math_turn_a(x0, x1, c, s);
                x[half] = math_turn_b(x0, x1, c, s);
            }
    for (int row = 0; row < a->m && a->factors; row++)
        for (int i = 0; i < a->n_heads * a->head_dim; i++)
            a->x[row * a->x_stride + i] *= a->factors[a->pos[row]];
}

void exact_rotate(const struct ops *ops, const struct rotate_args *a)
{
    (void)ops;
    for (int64_t row = 0; row < a->m; row++) {
        float *x = a->x + row * a->x_stride;
        for (int h = 1; h < a->block; h *= 2)
            for (int i = 0; i < a->n; i++) {
                if (i & h)
                    continue;
                const float first = x[i], second = x[i + h];
                x[i] = first + second;
                x[i + h] = first - second;
            }
        for (int i = 0; i < a->n; i++)
            x[i] = x[i] * rotate_scale(a->block);
    }
}

void exact_gate_mul(const struct ops *ops, const struct gate_mul_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *gate = &a->gate[row * a->gate_stride + i];
            *gate = a->up ? math_gate(a->act, a->limit, *gate, a->up[row * a->up_stride + i])
                          : math_xielu(a->alpha, *gate);
        }
}

void exact_mix(const struct ops *ops, const struct mix_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *x = &a->x[row * a->x_stride + i];
            *x = a->a != 0 ? a->a * *x : 0;
            if (a->y)
                *x = fmaf(a->b, a->y[row * a->y_stride + i], *x);
            *x = math_softcap(*x, a->cap);
        }
}

void exact_expert_sum(const struct ops *ops, const struct expert_sum_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *x = &a->x[row * a->x_stride + i], sum = 0;
            for (int j = row * a->route.n_used; j < (row + 1) * a->route.n_used; j++)
                sum = fmaf(a->route.weights[j], a->y[a->route.places[j] * a->y_stride + i], sum);
            if (a->shared)
                sum = fmaf(a->shares ? math_logistic(a->shares[row]) : 1,
                           a->shared[row * a->y_stride + i], sum);
            *x = a->add ? *x + sum : sum;
        }
}

/* ---- rules b, d: a prompt ---- */

/* Query `query` of `head`: x [query + 1] becomes exp(logit - maximum), 0 before the window; writes
 * the output. Returns 1 / (sum + sink), the factor from exps to weights. */
static float prompt_query(const struct attend_prompt_args *a, const struct prompt_span *s,
                          int query, int head, int round, float *x)
{
    const struct kv_layout *l = &a->layout;
    const uint8_t *pages = prompt_span_pages(a, s);
    const int64_t token = s->token + query - s->first;
    const float *q = a->q + token * a->q_stride + head * l->head_dim;
    const int kv_head = head / (a->n_heads / l->n_kv_heads);
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX], mean[HEAD_DIM_MAX] = {0}, lanes[16] = {0};
    float max = -INFINITY;
    const int low = prompt_low(a, query);
    memset(x, 0, (size_t)low * sizeof *x);
    for (int key = low; key <= query; key++) {
        const uint8_t *page = pages + key / PAGE_SLOTS * l->page_bytes;
        kv_get(l, page, key % PAGE_SLOTS, kv_head, k, NULL);
        float sum = 0; // a logit is one chain over dimensions
        for (int d = 0; d < l->head_dim; d++)
            sum = fmaf(round ? ref_round_bf16(q[d]) : q[d], k[d], sum);
        x[key] = math_softcap(sum * a->scale, a->cap);
        max = x[key] > max ? x[key] : max;
    }
    for (int key = low; key <= query; key++) {
        x[key] = math_exp(x[key] - (max == -INFINITY ? 0 : max));
        lanes[key % 16] = lanes[key % 16] + x[key];
    }
    float inverse = 1.0f / (math_sum16(lanes) + math_sink(a->sinks, head, max));
    for (int key = low; key <= query; key++) {
        const uint8_t *page = pages + key / PAGE_SLOTS * l->page_bytes;
        kv_get(l, page, key % PAGE_SLOTS, kv_head, NULL, v);
        for (int d = 0; d < l->head_dim; d++) // an output is one chain over slots
            mean[d] = fmaf(x[key], v[d], mean[d]);
    }
    for (int d = 0; d < l->head_dim; d++)
        a->out[token * a->out_stride + head * l->head_dim + d] = mean[d] * inverse;
    return inverse;
}

/* ---- rule h: a prompt in AMX tiles ---- */

#define TILE_CHUNK 256 // keys

static float amx_exp2(float t)
{
    const float whole = floorf(t), r = t - whole;
    float p = fmaf(MATH_EXP2_P3, r, MATH_EXP2_P2);
    p = fmaf(p, r, MATH_EXP2_P1);
    p = fmaf(p, r, MATH_EXP2_P0);
    return ldexpf(p, (int)whole);
}

/* q . K of one key. */
static float amx_logit(const float *q, const float *k, int head_dim)
{
    float sum = 0;
    for (int d0 = 0; d0 < head_dim; d0 += 32) {
        float x[32] = {0}, w[32][PANEL_ROWS] = {{0}};
        for (int i = 0; i < 32 && d0 + i < head_dim; i++) {
            x[i] = amx_input(q[d0 + i]);
            w[i][0] = flushed(k[d0 + i]);
        }
        sum = amx_link(x, w, 0, sum);
    }
    return sum;
}

/* out += weights x [32] . V over the slots of a page that are not beyond `query`. */
static void amx_page(const struct attend_prompt_args *a, const struct prompt_span *s, int first,
                     int query, int kv_head, const float *x, float *out)
{
    const struct kv_layout *l = &a->layout;
    const uint8_t *page = prompt_span_pages(a, s) + first / PAGE_SLOTS * l->page_bytes;
    float v[PAGE_SLOTS][HEAD_DIM_MAX] = {{0}}; // on the stack: threads zero their static storage
    for (int slot = 0; slot < PAGE_SLOTS && first + slot <= query; slot++)
        kv_get(l, page, slot, kv_head, NULL, v[slot]);
    for (int d = 0; d < l->head_dim; d++) {
        float w[32][PANEL_ROWS] = {{0}};
        for (int slot = 0; slot < PAGE_SLOTS; slot++)
            w[slot][0] = flushed(v[slot][d]);
        out[d] = amx_link(x, w, 0, out[d]);
    }
}

/* As prompt_query, but exp(logit - maximum) is x times the factor falls[] of its chunk. x: whole
 * pages. */
static float prompt_query_amx(const struct attend_prompt_args *a, const struct prompt_span *s,
                              int query, int head, float *x, float *falls)
{
    const struct kv_layout *l = &a->layout;
    const int64_t token = s->token + query - s->first;
    const float *q = a->q + token * a->q_stride + head * l->head_dim;
    const int kv_head = head / (a->n_heads / l->n_kv_heads), low = prompt_low(a, query);
    const float scale = a->cap > 0 ? 1 : a->scale, scale2 = scale * MATH_LOG2E;
    float k[HEAD_DIM_MAX], out[HEAD_DIM_MAX] = {0}, lanes[16] = {0}, max = -INFINITY;
    memset(x, 0, (size_t)round_up(query + 1, PAGE_SLOTS) * sizeof *x);
    for (int chunk = 0; chunk <= query; chunk += TILE_CHUNK) {
        const int first = low > chunk ? low : chunk;
        const int end = (int)min_i64(query + 1, chunk + TILE_CHUNK);
        const float before = max;
        float sums[16] = {0};
        for (int key = first; key < end; key++) {
            const uint8_t *page = prompt_span_pages(a, s) + key / PAGE_SLOTS * l->page_bytes;
            kv_get(l, page, key % PAGE_SLOTS, kv_head, k, NULL);
            x[key] = amx_logit(q, k, l->head_dim);
            x[key] = a->cap > 0 ? math_softcap(x[key] * a->scale, a->cap) : x[key];
            max = x[key] > max ? x[key] : max;
        }
        const float base = max == -INFINITY ? 0 : max;
        const float rescale = math_exp((before - base) * scale);
        falls[chunk / TILE_CHUNK] = max;
        for (int key = first; key < end; key++)
            x[key] = amx_input(amx_exp2(fmaf(x[key], scale2, -base * scale2)));
        for (int key = chunk; key < end; key += 2) // both slots of a pair in one lane
            sums[key % 32 / 2] = (sums[key % 32 / 2] + x[key + 1]) + x[key];
        for (int i = 0; i < 16; i++)
            lanes[i] = fmaf(lanes[i], rescale, sums[i]);
        for (int d = 0; d < l->head_dim; d++)
            out[d] = out[d] * rescale;
        for (int key = chunk; key < end; key += PAGE_SLOTS)
            amx_page(a, s, key, query, kv_head, x + key, out);
    }
    for (int chunk = 0; chunk <= query / TILE_CHUNK; chunk++)
        falls[chunk] = math_exp((falls[chunk] - max) * scale);
    const float inverse = 1.0f / (math_sum16(lanes) + math_sink(a->sinks, head, max * scale));
    for (int d = 0; d < l->head_dim; d++) // 0 has no sign
        a->out[token * a->out_stride + head * l->head_dim + d] = (out[d] + 0.0f) * inverse;
    return inverse;
}

/* A tile of 32 queries in one KV head: its weights, one chain per key over (query, head), are added
 * to the scores. A query with NaN weights adds nothing. */
static void prompt_tile(const struct attend_prompt_args *a, const struct prompt_span *s, int tile,
                        int kv_head, int round, int tiles)
{
    const int group = a->n_heads / a->layout.n_kv_heads;
    const int64_t n_pad = round_up(s->n_prompt, PAGE_SLOTS);
    const int first = tile * PAGE_SLOTS > s->first ? tile * PAGE_SLOTS : s->first;
    const int end = (int)min_i64((tile + 1) * PAGE_SLOTS, s->first + s->n);
    const struct evict_rule score = evict_rule_of(a->policy);
    float *x = a->scratch, *columns = x + n_pad, *falls = columns + n_pad; // [n_prompt_pad] each
    const int hits = score.source == EVICT_EACH;
    float *scores = prompt_span_scores(a, s);
    if (scores)
        scores += kv_head * n_pad;
    memset(columns, 0, (size_t)n_pad * sizeof *columns);
    for (int query = first; query < end; query++) {
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            float inverse = tiles ? prompt_query_amx(a, s, query, head, x, falls)
                                  : prompt_query(a, s, query, head, round, x);
            inverse *= evict_query_worth(&score, query, s->n_prompt);
            for (int key = 0; key <= query && isfinite(inverse); key++)
                columns[key] =
                    fmaf(x[key], tiles ? falls[key / TILE_CHUNK] * inverse : inverse, columns[key]);
        }
        for (int key = 0; key <= query && hits && scores; key++) { // each query's mean decides
            scores[key] = evict_score_next(&score, scores[key], columns[key], group, query);
            columns[key] = 0;
        }
    }
    for (int key = 0; key < end && !hits && scores; key++)
        scores[key] += columns[key];
}

static void prompts(const struct attend_prompt_args *a, int round, int tiles)
{
    CHECK(a->layout.head_dim <= HEAD_DIM_MAX);
    for (int i = 0; i < a->n_spans; i++) {
        const struct prompt_span *s = &a->spans[i];
        const int n_tiles = (int)ceil_div(s->first + s->n, PAGE_SLOTS);
        for (int tile = s->first / PAGE_SLOTS; tile < n_tiles; tile++)
            for (int kv_head = 0; kv_head < a->layout.n_kv_heads; kv_head++)
                prompt_tile(a, s, tile, kv_head, round, tiles);
    }
}

void exact_attend_prompt(const struct ops *ops, const struct attend_prompt_args *a)
{
    prompts(a, ops->compute != COMPUTE_F32 && a->layout.format == KV_BF16, 0);
}

void exact_attend_prompt_amx(const struct ops *ops, const struct attend_prompt_args *a)
{
    CHECK(ops->compute != COMPUTE_F32 && a->layout.format == KV_BF16);
    prompts(a, 1, 1);
}

/* ---- the head: tiles of 4,096 logits ---- */

static void tile_score(struct head_result *s, const float *x, int n, float max)
{
    float lanes[16] = {0};
    if (max == -INFINITY)
        return;
    for (int i = 0; i < n; i++)
        lanes[i % 16] = lanes[i % 16] + math_exp(x[i] - max);
    float joined = s->max > max ? s->max : max;
    float before = s->sum * math_exp(s->max - joined);
    s->sum = fmaf(math_sum16(lanes), math_exp(max - joined), before);
    s->max = joined;
}

static float edited(const struct head_reduce_args *a, const struct head_request *q, float logit,
                    int32_t id)
{
    for (int i = 0; i < q->n_edits; i++) {
        const struct logit_edit *e = head_edits(a, q) + i;
        if (e->id == id)
            return (logit > 0 ? logit / e->repeat : logit * e->repeat) + e->add;
    }
    return logit;
}

static void reduce_id(const struct head_reduce_args *a, int row, float raw, int32_t id)
{
    const struct head_request *q = &a->requests[row];
    struct head_result *s = &a->results[row];
    float logit = edited(a, q, raw, id), value = logit;
    if (id == q->target && (q->want & HEAD_SCORE))
        s->target_logit = raw;
    if (raw > s->best_logit) { // ids ascend: of equal logits the first wins
        s->best_logit = raw;
        s->best_id = id;
    }
    if (q->want & HEAD_TOP)
        ref_list_insert(s->top, &s->n_top, q->n_top, (struct head_candidate){raw, id, raw});
    if (q->want & HEAD_FILTER)
        ref_list_insert(head_candidates(a, q), &s->n_filter, HEAD_SAMPLE_MAX,
                        (struct head_candidate){logit, id, raw});
    if (q->temperature > 0)
        value = logit / q->temperature + head_gumbel(q->noise_key, id);
    if ((q->want & HEAD_SAMPLE) && value > s->sample_value) {
        s->sample_value = value;
        s->sample_id = id;
        s->sample_logit = raw;
    }
}

static void reduce_tile(const struct head_reduce_args *a, int row, const float *x, int n, int first)
{
    struct head_result *s = &a->results[row];
    float max = -INFINITY;
    for (int i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        if (x[i] != x[i] || x[i] == INFINITY)
            s->best_logit = NAN; // stays: nothing is greater than NaN
    }
    if (a->requests[row].want & HEAD_SCORE)
        tile_score(s, x, n, max);
    for (int i = 0; i < n; i++)
        reduce_id(a, row, x[i], first + i);
}

void exact_head_reduce(const struct ops *ops, const struct head_reduce_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int at = 0; at < a->n; at += HEAD_TILE)
            reduce_tile(a, row, a->logits + row * a->stride + at,
                        a->n - at < HEAD_TILE ? a->n - at : HEAD_TILE, a->first + at);
}
