/* kernels/ref/ops.c - every op in obvious loops: the specification, never optimised.
 *
 * Owns: what an op means. Refuses: threads, scratch, speed.
 * A newcomer would miss: sums are double, so a fast op differs from this by its rounding alone;
 * what the contract rounds (inputs to the compute format, K and V to the KV format) is rounded here
 * too. */
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

#define HEAD_DIM_MAX (2 * SHAPE_ROPE_MAX)
#define CHUNK        256 // columns of a panel decoded at a time: whole blocks in any format

static float round_bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

static double act(int kind, double x)
{
    if (kind == ACT_RELU)
        return x > 0 ? x : 0;
    if (kind == ACT_GELU)
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    return x;
}

void ref_matmul(const struct ops *ops, const struct matmul_args *a)
{
    CHECK(ops->compute == COMPUTE_BF16 || ops->compute == COMPUTE_F32);
    int round = ops->compute == COMPUTE_BF16;
    float w[CHUNK * PANEL_ROWS]; // [chunk][32]
    for (int out0 = 0; out0 < a->w.n; out0 += PANEL_ROWS) {
        const uint8_t *panel = (const uint8_t *)a->w.panels +
                               out0 / PANEL_ROWS * dtype_panel_bytes(a->w.dtype, a->w.k);
        for (int row = 0; row < a->m; row++) {
            double sum[PANEL_ROWS] = {0};
            for (int k0 = 0; k0 < a->w.k; k0 += CHUNK) {
                int k1 = k0 + CHUNK < a->w.k ? k0 + CHUNK : a->w.k;
                panel_decode_f32(a->w.dtype, panel, a->w.k, k0, k1, w);
                for (int k = k0; k < k1; k++)
                    for (int o = 0; o < PANEL_ROWS; o++) {
                        float x = a->x[row * a->x_stride + k];
                        float y = w[(k - k0) * PANEL_ROWS + o];
                        sum[o] += round ? (double)round_bf16(x) * round_bf16(y) : (double)x * y;
                    }
            }
            for (int o = out0; o < out0 + PANEL_ROWS && o < a->w.n; o++) {
                float *y = &a->y[row * a->y_stride + o];
                double v = act(a->act, sum[o - out0] + (a->bias ? a->bias[o] : 0));
                *y = (float)(a->add ? *y + v : v);
            }
        }
    }
}

void ref_decode(const struct ops *ops, const struct decode_args *a)
{
    (void)ops;
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
            y[i] = (float)((x[i] - mean) / sqrt(var + (double)a->eps) * a->weight[i] +
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
                double c = a->cos[row * half + i], s = a->sin[row * half + i];
                double x0 = x[0], x1 = x[half];
                x[0] = (float)(x0 * c - x1 * s);
                x[half] = (float)(x1 * c + x0 * s);
            }
}

void ref_silu_mul(const struct ops *ops, const struct silu_mul_args *a)
{
    (void)ops;
    for (int row = 0; row < a->m; row++)
        for (int i = 0; i < a->n; i++) {
            float *gate = &a->gate[row * a->gate_stride + i];
            double g = *gate;
            *gate = (float)(g / (1 + exp(-g)) * a->up[row * a->up_stride + i]);
        }
}

void ref_kv_store(const struct ops *ops, const struct kv_store_args *a)
{
    (void)ops;
    const struct kv_layout *l = a->layout;
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < l->n_kv_heads; h++) {
            int token = a->first + i;
            uint8_t *page = (uint8_t *)a->pages + token / KV_PAGE_SLOTS * l->page_bytes;
            kv_put(l, page, token % KV_PAGE_SLOTS, h, a->k + i * a->k_stride + h * l->head_dim,
                   a->v + i * a->v_stride + h * l->head_dim);
        }
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* One query of one head against keys 0..query of the prompt. */
static void prompt_query(const struct attend_prompt_args *a, const struct prompt_span *s, int query,
                         int head, int round)
{
    const struct kv_layout *l = a->layout;
    float q[HEAD_DIM_MAX];
    for (int d = 0; d < l->head_dim; d++) {
        q[d] = s->q[(query - s->first) * a->q_stride + head * l->head_dim + d];
        q[d] = round ? round_bf16(q[d]) : q[d];
    }
    float *out = s->out + (query - s->first) * a->out_stride + head * l->head_dim;
    int kv_head = head / (a->n_heads / l->n_kv_heads);
    int64_t n_pad = round_up(s->n_prompt, KV_PAGE_SLOTS);
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    double max = -INFINITY, sum = 0, mean[HEAD_DIM_MAX] = {0};
    for (int pass = 0; pass < 3; pass++) // the maximum, the sum, the outputs
        for (int key = 0; key <= query; key++) {
            const uint8_t *page = (const uint8_t *)s->pages + key / KV_PAGE_SLOTS * l->page_bytes;
            kv_get(l, page, key % KV_PAGE_SLOTS, kv_head, k, v);
            double x = dot(q, k, l->head_dim) * a->scale;
            if (pass == 0)
                max = fmax(max, x);
            else if (pass == 1)
                sum += exp(x - max);
            else
                for (int d = 0; d < l->head_dim; d++)
                    mean[d] += exp(x - max) / sum * v[d];
            if (pass == 2 && s->scores)
                s->scores[kv_head * n_pad + key] += (float)(exp(x - max) / sum);
        }
    for (int d = 0; d < l->head_dim; d++)
        out[d] = (float)mean[d];
}

void ref_attend_prompt(const struct ops *ops, const struct attend_prompt_args *a)
{
    int round = ops->compute != COMPUTE_F32 && a->layout->format == KV_BF16;
    CHECK(a->layout->head_dim <= HEAD_DIM_MAX);
    for (int i = 0; i < a->n_spans; i++) {
        const struct prompt_span *s = &a->spans[i];
        for (int query = s->first; query < s->first + s->n; query++)
            for (int head = 0; head < a->n_heads; head++)
                prompt_query(a, s, query, head, round);
    }
}

/* Where the ring keeps the position and score of its token of position pos, in one head. */
static int64_t ring_meta(const struct kv_row *kv, int pos, int head)
{
    return (int64_t)(head + 1) * kv->slots_cap - kv->ring_slots + pos % kv->ring_slots;
}

static uint8_t *ring_page(const struct kv_layout *ring, const struct kv_row *kv, int pos)
{
    return kv->ring + pos % kv->ring_slots / KV_PAGE_SLOTS * ring->page_bytes;
}

static void ring_put(const struct kv_layout *ring, const struct kv_row *kv, int pos, int head,
                     const float *k, const float *v, float score)
{
    kv_put(ring, ring_page(ring, kv, pos), pos % kv->ring_slots % KV_PAGE_SLOTS, head, k, v);
    if (kv->slot_pos)
        kv->slot_pos[ring_meta(kv, pos, head)] = pos;
    if (kv->slot_score)
        kv->slot_score[ring_meta(kv, pos, head)] = score;
}

static void ring_get(const struct kv_layout *ring, const struct kv_row *kv, int pos, int head,
                     float *k, float *v)
{
    kv_get(ring, ring_page(ring, kv, pos), pos % kv->ring_slots % KV_PAGE_SLOTS, head, k, v);
}

/* K and V number `index` of those that the token at `now` attends: page slots, the ring by slot,
 * its own. Returns where its position and score stand, -1 for the own token, -2 for a masked one.
 */
static int64_t attended(const struct attend_forced_args *a, const struct forced_span *s, int now,
                        int index, int head, const float *own_k, const float *own_v, float *k,
                        float *v)
{
    const struct kv_row *kv = s->kv;
    int64_t at = (int64_t)head * kv->slots_cap + index;
    int n_ring = kv_ring_used(kv, now), in_ring = index - kv->n_slots;
    if (in_ring == n_ring) {
        memcpy(k, own_k, HEAD_DIM_MAX * sizeof *k);
        memcpy(v, own_v, HEAD_DIM_MAX * sizeof *v);
        return -1;
    }
    if (in_ring >= 0) {
        ring_get(a->ring, kv, in_ring, head, k, v);
        return ring_meta(kv, in_ring, head);
    }
    kv_get(a->layout, kv->pages[index / KV_PAGE_SLOTS], index % KV_PAGE_SLOTS, head, k, v);
    return kv->slot_pos && kv->slot_pos[at] < 0 ? -2 : at;
}

/* Token i of a span, one query head. Returns its own weight; adds the others to the scores when the
 * row has them. */
static double forced_query(const struct ops *ops, const struct attend_forced_args *a,
                           const struct forced_span *s, int i, int head, const float *own_k,
                           const float *own_v)
{
    const struct kv_layout *l = a->layout;
    const struct kv_row *kv = s->kv;
    float q[HEAD_DIM_MAX];
    for (int d = 0; d < l->head_dim; d++) {
        q[d] = s->q[i * a->q_stride + head * l->head_dim + d];
        q[d] = ops->compute == COMPUTE_BF16 ? round_bf16(q[d]) : q[d];
    }
    float *out = s->out + i * a->out_stride + head * l->head_dim;
    int kv_head = head / (a->n_heads / l->n_kv_heads), now = s->pos + i;
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    double max = -INFINITY, sum = 0, mean[HEAD_DIM_MAX] = {0}, weight = 0;
    for (int pass = 0; pass < 3; pass++) // the maximum, the sum, the outputs
        for (int index = 0; index <= kv->n_slots + kv_ring_used(kv, now); index++) {
            int64_t at = attended(a, s, now, index, kv_head, own_k, own_v, k, v);
            if (at == -2)
                continue;
            double x = dot(q, k, l->head_dim) * a->scale;
            if (pass == 0)
                max = fmax(max, x);
            else if (pass == 1)
                sum += exp(x - max);
            else
                for (int d = 0; d < l->head_dim; d++)
                    mean[d] += exp(x - max) / sum * v[d];
            if (pass < 2)
                continue;
            weight = exp(x - max) / sum;
            if (at >= 0 && evict_policy_scores(a->evict->policy))
                kv->slot_score[at] += (float)weight;
        }
    for (int d = 0; d < l->head_dim; d++)
        out[d] = (float)mean[d];
    return weight;
}

/* What asks for a page slot in one step: the new token, or the one that leaves the ring. */
struct comer {
    int pos;      // -1: nobody, the ring is not full
    float *score; // [n_kv_heads]
};

/* Chooses among the page slots and the comer (slot n_slots), for heads [first, last) together. */
static int forced_victim(const struct attend_forced_args *a, const struct forced_span *s, int first,
                         int last, int now, const struct comer *comer, struct evict_event *event)
{
    const struct kv_row *kv = s->kv;
    int best = -1, best_pos = 0;
    float best_rank = 0;
    for (int slot = 0; slot <= kv->n_slots; slot++) {
        int pos =
            slot < kv->n_slots ? kv->slot_pos[(int64_t)first * kv->slots_cap + slot] : comer->pos;
        if (pos < 0 || evict_protected(&s->evict, pos, now))
            continue;
        float score = 0;
        for (int h = first; h < last && evict_policy_scores(a->evict->policy); h++)
            score += slot < kv->n_slots ? kv->slot_score[(int64_t)h * kv->slots_cap + slot]
                                        : comer->score[h];
        float rank = evict_rank(a->evict->policy, score, pos, now);
        if (best < 0 || evict_before(rank, pos, best_rank, best_pos)) {
            best = slot;
            best_pos = pos;
            best_rank = rank;
            *event = (struct evict_event){pos, score};
        }
    }
    CHECK(best >= 0);
    return best;
}

/* Stores token i for heads [first, last) after its attention. Returns the page slots then in use.
 */
static int forced_store(const struct attend_forced_args *a, const struct forced_span *s, int i,
                        int first, int last, float *own_score)
{
    const struct kv_layout *l = a->layout;
    struct kv_row *kv = s->kv;
    struct evict_event event = {.pos = -1};
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    int now = s->pos + i, slot = kv->n_slots, n_live = kv_ring_used(kv, now);
    struct comer comer = {now, own_score};
    if (kv->ring_slots > 0) {
        comer = (struct comer){now >= kv->ring_slots ? now - kv->ring_slots : -1,
                               own_score + l->n_kv_heads};
        for (int h = first; h < last && kv->slot_score; h++)
            comer.score[h] = kv->slot_score[ring_meta(kv, now, h)];
    }
    int pos = comer.pos;
    for (int j = 0; j < kv->n_slots; j++)
        n_live += !kv->slot_pos || kv->slot_pos[(int64_t)first * kv->slots_cap + j] >= 0;
    if (a->evict->policy != EVICT_FULL && n_live >= s->evict.budget) {
        int victim = forced_victim(a, s, first, last, now, &comer, &event);
        for (int h = first; h < last && a->evict->simulate && victim < kv->n_slots; h++)
            kv->slot_pos[(int64_t)h * kv->slots_cap + victim] = ~event.pos;
        if (a->evict->simulate)
            pos = victim == kv->n_slots ? ~pos : pos;
        else
            slot = victim == kv->n_slots ? -1 : victim;
    }
    if (comer.pos < 0)
        slot = -1;
    for (int h = first; h < last; h++) {
        const float *own_k = s->k + i * a->k_stride + h * l->head_dim;
        const float *own_v = s->v + i * a->v_stride + h * l->head_dim;
        if (s->events)
            s->events[(int64_t)i * l->n_kv_heads + h] = event;
        memcpy(k, own_k, (size_t)l->head_dim * sizeof *k);
        memcpy(v, own_v, (size_t)l->head_dim * sizeof *v);
        if (kv->ring_slots > 0 && comer.pos >= 0)
            ring_get(a->ring, kv, now, h, k, v);
        if (kv->ring_slots > 0)
            ring_put(a->ring, kv, now, h, own_k, own_v, own_score[h]);
        if (slot < 0)
            continue;
        kv_put(l, kv->pages[slot / KV_PAGE_SLOTS], slot % KV_PAGE_SLOTS, h, k, v);
        if (kv->slot_pos)
            kv->slot_pos[(int64_t)h * kv->slots_cap + slot] = pos;
        if (kv->slot_score)
            kv->slot_score[(int64_t)h * kv->slots_cap + slot] = comer.score[h];
    }
    if (slot >= 0)
        kv->dirty[slot / KV_PAGE_SLOTS / 64] |= 1ull << (slot / KV_PAGE_SLOTS % 64);
    return slot == kv->n_slots ? kv->n_slots + 1 : kv->n_slots;
}

/* own_score [2, n_kv_heads]: of the token, then of the one that leaves the ring. */
static void forced_token(const struct ops *ops, const struct attend_forced_args *a,
                         const struct forced_span *s, int i, float *own_score)
{
    const struct kv_layout *l = a->layout, *own = s->kv->ring_slots > 0 ? a->ring : l;
    int group = a->n_heads / l->n_kv_heads, n_slots = s->kv->n_slots;
    float k[HEAD_DIM_MAX] = {0}, v[HEAD_DIM_MAX] = {0};
    for (int h = 0; h < l->n_kv_heads; h++) {
        kv_round(own, s->k + i * a->k_stride + h * l->head_dim, k);
        kv_round(own, s->v + i * a->v_stride + h * l->head_dim, v);
        double sum = 0;
        for (int g = 0; g < group; g++)
            sum += forced_query(ops, a, s, i, h * group + g, k, v);
        own_score[h] = evict_policy_scores(a->evict->policy) ? (float)sum : 0;
    }
    int step = a->evict->scope == EVICT_SCOPE_LAYER ? l->n_kv_heads : 1;
    for (int h = 0; h < l->n_kv_heads; h += step)
        n_slots = forced_store(a, s, i, h, h + step, own_score);
    s->kv->n_slots = n_slots;
}

void ref_attend_forced(const struct ops *ops, const struct attend_forced_args *a)
{
    CHECK(a->layout->head_dim <= HEAD_DIM_MAX);
    for (int i = 0; i < a->n_spans; i++)
        for (int token = 0; token < a->spans[i].n; token++)
            forced_token(ops, a, &a->spans[i], token, a->scratch);
}

/* The unprotected position that goes first among those not gone yet: slot_pos holds ~pos of the
 * gone. */
static int keep_victim(const struct prompt_keep_args *a, int head)
{
    int64_t stride = round_up(a->n_prompt, KV_PAGE_SLOTS);
    int now = a->n_prompt - 1, best = -1;
    float best_rank = 0;
    for (int pos = 0; pos < a->n_prompt; pos++) {
        if (((const int32_t *)a->scratch)[pos] < 0 || evict_protected(&a->row, pos, now))
            continue;
        float score = 0;
        for (int h = 0; h < a->from->n_kv_heads && a->scores; h++)
            if (h == head || a->evict->scope == EVICT_SCOPE_LAYER)
                score += a->scores[h * stride + pos];
        float rank = evict_rank(a->evict->policy, score, pos, now);
        if (best < 0 || evict_before(rank, pos, best_rank, best)) {
            best = pos;
            best_rank = rank;
        }
    }
    CHECK(best >= 0);
    return best;
}

void ref_prompt_keep(const struct ops *ops, const struct prompt_keep_args *a)
{
    (void)ops;
    struct kv_row *kv = a->kv;
    int64_t stride = round_up(a->n_prompt, KV_PAGE_SLOTS);
    int32_t *marks = a->scratch; // [n_prompt] the position, or ~position once it is gone
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    CHECK(a->from->head_dim <= HEAD_DIM_MAX);
    for (int h = 0; h < a->from->n_kv_heads; h++) {
        for (int pos = 0; pos < a->n_prompt; pos++)
            marks[pos] = pos;
        for (int n = a->n_prompt; n > a->row.budget; n--) {
            int pos = keep_victim(a, h);
            marks[pos] = ~pos;
        }
        int slot = 0, first_in_ring = a->n_prompt - kv_ring_used(kv, a->n_prompt);
        for (int pos = 0; pos < a->n_prompt; pos++) {
            if (marks[pos] < 0 && !a->evict->simulate)
                continue;
            float score = a->scores ? a->scores[h * stride + pos] : 0;
            kv_get(a->from, (const uint8_t *)a->pages + pos / KV_PAGE_SLOTS * a->from->page_bytes,
                   pos % KV_PAGE_SLOTS, h, k, v);
            if (pos >= first_in_ring) {
                ring_put(a->ring, kv, pos, h, k, v, score);
                continue;
            }
            kv_put(a->to, kv->pages[slot / KV_PAGE_SLOTS], slot % KV_PAGE_SLOTS, h, k, v);
            kv->dirty[slot / KV_PAGE_SLOTS / 64] |= 1ull << (slot / KV_PAGE_SLOTS % 64);
            if (kv->slot_pos)
                kv->slot_pos[(int64_t)h * kv->slots_cap + slot] = marks[pos];
            if (kv->slot_score)
                kv->slot_score[(int64_t)h * kv->slots_cap + slot] = score;
            slot++;
        }
        kv->n_slots = slot;
    }
}

/* Puts a candidate into a descending list of at most `cap`; equal logits by ascending id. */
static void list_insert(struct head_candidate *list, int *n, int cap, struct head_candidate new)
{
    if (new.logit != new.logit)
        return;
    int at = 0;
    while (at < *n && list[at].logit >= new.logit)
        at++;
    if (at == cap)
        return;
    if (*n < cap)
        *n += 1;
    memmove(&list[at + 1], &list[at], (size_t)(*n - 1 - at) * sizeof *list);
    list[at] = new;
}

static void reduce_score(struct head_state *s, const float *logits, int n, int first)
{
    double max = s->max, sum = 0;
    for (int i = 0; i < n; i++) {
        max = fmax(max, logits[i]);
        if (first + i == s->target)
            s->target_logit = logits[i];
    }
    for (int i = 0; i < n; i++)
        sum += max > -INFINITY ? exp(logits[i] - max) : 0;
    if (s->max > -INFINITY)
        sum += s->sum * exp(s->max - max);
    s->max = (float)max;
    s->sum = (float)sum;
}

static void reduce_logit(struct head_state *s, float raw, int32_t id)
{
    double logit = raw;
    if (raw != raw || raw == INFINITY)
        s->best_logit = NAN;
    if (raw > s->best_logit) {
        s->best_logit = raw;
        s->best_id = id;
    }
    if (s->want & HEAD_TOP)
        list_insert(s->top, &s->n_candidates, s->n_top, (struct head_candidate){raw, id, raw});
    for (int i = 0; i < s->n_edits; i++)
        if (s->edits[i].id == id)
            logit = (logit > 0 ? logit / (double)s->edits[i].repeat
                               : logit * (double)s->edits[i].repeat) +
                    (double)s->edits[i].add;
    if (s->want & HEAD_FILTER)
        list_insert(s->candidates, &s->n_filter, HEAD_SAMPLE_MAX,
                    (struct head_candidate){(float)logit, id, raw});
    if (s->want & HEAD_SAMPLE) {
        if (s->temperature > 0)
            logit = logit / (double)s->temperature + (double)head_gumbel(s->noise_key, id);
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
        if (a->states[row]->want & HEAD_SCORE)
            reduce_score(a->states[row], logits, a->n, a->first);
        for (int i = 0; i < a->n; i++)
            reduce_logit(a->states[row], logits[i], a->first + i);
    }
}
