/* kernels/ref/exact_forced.c - rule b of kernels/ops.h as code: a row's token over its slots.
 *
 * Owns: the order of every sum of attend_forced. Refuses: speed; where tokens are stored (slots.c).
 * A split has sums of its own, relative to its own greatest logit; splits are joined in order with
 * weights relative to the greatest logit of all. The exps of a split are computed again wherever
 * they are needed, so scratch does not grow with the row. */
#include "kernels/math.h"
#include "kernels/ref/ref.h"
#include "kernels/score.h"

#include <math.h>
#include <string.h>

#define SPLIT  256
#define GROUPS (HEAD_DIM_MAX / KV_GROUP)

/* One query head of one token. */
struct query {
    const struct attend_forced_args *args;
    const struct forced_span *span;
    const struct kv_row *kv;
    int head, row; // KV head, query head
    int n_splits, n_ring;
    int now;                                        // position of the token
    float q[HEAD_DIM_MAX];                          // rounded (ref_round_query)
    int ints;                                       // 1: codes are multiplied as integers
    int codes[HEAD_DIM_MAX];                        // of q
    float q_scales[GROUPS];
    float own_k[HEAD_DIM_MAX], own_v[HEAD_DIM_MAX]; // as the KV format rounds them
};

/* The sums of one split, and its exps. */
struct split {
    int first, n;     // slots: index of the first one, how many
    float max, sum;   // greatest logit; sum of the exps
    float exp[SPLIT]; // exp(logit - max); 0 where masked
    float out[HEAD_DIM_MAX];
};

static int sees(const struct query *q, const struct ref_slot *at)
{
    return ref_sees(q->args, q->span, q->kv, at, q->now);
}

/* Sum of q over a group of dimensions, in 16 lanes. */
static float group_sum(const struct kv_layout *l, const float *q, int group)
{
    float lanes[16] = {0};
    for (int d = group * KV_GROUP; d < l->head_dim && d < (group + 1) * KV_GROUP; d++)
        lanes[d % 16] = lanes[d % 16] + q[d];
    return math_sum16(lanes);
}

/* Codes of q times the codes k of group g: an exact sum, times the scale of q's codes. */
static float group_dot(const struct query *q, const struct kv_layout *l, const float *k, int g)
{
    int sum = 0;
    for (int d = g * KV_GROUP; d < l->head_dim && d < (g + 1) * KV_GROUP; d++)
        sum += q->codes[d] * (int)k[d];
    return (float)sum * q->q_scales[g];
}

/* One chain over dimensions. With codes and an unrotated key: one chain (or group_dot) per group,
 * whose scale and minimum enter as two links of a chain over groups. rank: rotates the key. */
static float logit(const struct query *q, struct ref_slot at, int rank)
{
    const struct kv_layout *l = at.layout;
    float k[HEAD_DIM_MAX], scales[GROUPS], minima[GROUPS], sum = 0, all = 0;
    if (l->groups == 0 || q->args->rope.cos) {
        kv_get(l, at.page, at.slot, q->head, k, NULL);
        ref_turn(&q->args->rope, rank, k);
        for (int d = 0; d < l->head_dim; d++)
            sum = fmaf(q->q[d], k[d], sum);
        return math_softcap(sum * q->args->scale, q->args->cap);
    }
    kv_get_codes(l, at.page, at.slot, q->head, 0, k, scales, minima);
    for (int g = 0; g < l->groups; g++) {
        sum = 0;
        for (int d = g * KV_GROUP; d < l->head_dim && d < (g + 1) * KV_GROUP; d++)
            sum = fmaf(q->q[d], k[d], sum);
        sum = q->ints ? group_dot(q, l, k, g) : sum;
        all = fmaf(scales[g] * q->args->scale, sum, all);
        all = fmaf(minima[g] * q->args->scale, group_sum(l, q->q, g), all);
    }
    return math_softcap(all, q->args->cap);
}

/* out += (exps * scales of V) . codes of V over the n slots of a page, in integers: of each group
 * of dimensions, exp * scale becomes a code, the sum of products is exact and its product with the
 * scale of these codes is one link. */
static void page_ints(const struct query *q, int first, int n, const float *exps, float *out)
{
    const struct kv_layout *l = ref_slot_at(q->kv, q->head, first).layout;
    float v[HEAD_DIM_MAX], scales[GROUPS], minima[GROUPS], weights[GROUPS][PAGE_SLOTS] = {{0}};
    float max[GROUPS];
    int sums[HEAD_DIM_MAX] = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            struct ref_slot at = ref_slot_at(q->kv, q->head, first + i);
            kv_get_codes(l, at.page, at.slot, q->head, 1, v, scales, minima);
            for (int g = 0; g < l->groups && sees(q, &at) && pass == 0; g++)
                weights[g][i] = exps[i] * scales[g];
            for (int d = 0; d < l->head_dim && pass == 1; d++)
                sums[d] += (int)v[d] * ref_code(weights[d / KV_GROUP][i], max[d / KV_GROUP],
                                                CODE_MOST);
        }
        for (int g = 0; g < l->groups; g++)
            max[g] = ref_largest(weights[g], n);
    }
    for (int d = 0; d < l->head_dim; d++)
        out[d] = fmaf((float)sums[d], max[d / KV_GROUP] / CODE_MOST, out[d]);
}

/* out += exps . V over the n slots of a page from index `first`: one chain over slots. With codes
 * the page's minima are added first, as one sum in 16 lanes, then exp * scale times the codes (or
 * page_ints). */
static void page_values(const struct query *q, int first, int n, const float *exps, float *out)
{
    const struct kv_layout *l = ref_slot_at(q->kv, q->head, first).layout;
    float v[HEAD_DIM_MAX], scales[GROUPS], minima[GROUPS], lanes[GROUPS][16] = {{0}};
    for (int i = 0; i < n && l->groups > 0; i++) {
        struct ref_slot at = ref_slot_at(q->kv, q->head, first + i);
        kv_get_codes(l, at.page, at.slot, q->head, 1, NULL, scales, minima);
        for (int g = 0; g < l->groups && sees(q, &at); g++)
            lanes[g][i % 16] = lanes[g][i % 16] + exps[i] * minima[g];
    }
    for (int d = 0; d < l->head_dim && l->groups > 0; d++)
        out[d] = out[d] + math_sum16(lanes[d / KV_GROUP]);
    if (q->ints) {
        page_ints(q, first, n, exps, out);
        return;
    }
    for (int i = 0; i < n; i++) {
        struct ref_slot at = ref_slot_at(q->kv, q->head, first + i);
        if (!sees(q, &at)) // may contain anything
            continue;
        if (l->groups == 0)
            kv_get(l, at.page, at.slot, q->head, NULL, v);
        else
            kv_get_codes(l, at.page, at.slot, q->head, 1, v, scales, minima);
        for (int d = 0; d < l->head_dim; d++)
            out[d] = fmaf(l->groups == 0 ? exps[i] : exps[i] * scales[d / KV_GROUP], v[d], out[d]);
    }
}

/* Splits begin at multiples of 256 page slots; the ring is the last split. */
static void split_run(const struct query *q, int index, struct split *s)
{
    const int n_pages = q->kv->n_slots;
    const int in_pages = index * SPLIT < n_pages;
    float lanes[16] = {0};
    s->first = in_pages ? index * SPLIT : n_pages;
    s->n = in_pages ? (int)min_i64(SPLIT, n_pages - s->first) : q->n_ring;
    s->max = -INFINITY;
    for (int i = 0; i < s->n; i++) {
        struct ref_slot at = ref_slot_at(q->kv, q->head, s->first + i);
        const int rank = q->args->rope.cos ? ref_rank(q->kv, q->head, q->now, s->first + i) : 0;
        s->exp[i] = sees(q, &at) ? logit(q, at, rank) : -INFINITY;
        s->max = s->exp[i] > s->max ? s->exp[i] : s->max;
    }
    for (int i = 0; i < s->n; i++) {
        s->exp[i] = math_exp(s->exp[i] - (s->max == -INFINITY ? 0 : s->max));
        lanes[i % 16] = lanes[i % 16] + s->exp[i];
    }
    s->sum = math_sum16(lanes);
    memset(s->out, 0, sizeof s->out);
    for (int i = 0; i < s->n; i += PAGE_SLOTS)
        page_values(q, s->first + i, (int)min_i64(PAGE_SLOTS, s->n - i), s->exp + i, s->out);
}

/* The token's own logit, in 16 lanes over the dimensions. */
static float own_logit(const struct query *q)
{
    float lanes[16] = {0};
    for (int d = 0; d < q->args->kv.layout.head_dim; d++)
        lanes[d % 16] = fmaf(q->q[d], q->own_k[d], lanes[d % 16]);
    return math_softcap(math_sum16(lanes) * q->args->scale, q->args->cap);
}

/* Writes the outputs [head_dim] of a query. columns [slots] (or NULL): adds each slot's weight, a
 * chain over query heads. Returns the token's own weight. A query with NaN weights adds nothing and
 * returns 0. */
static float query_run(const struct query *q, float *to, float *columns)
{
    const int head_dim = q->args->kv.layout.head_dim;
    struct split s;
    float own = own_logit(q), max = own, sum = 0, out[HEAD_DIM_MAX] = {0};
    for (int i = 0; i < q->n_splits; i++) {
        split_run(q, i, &s);
        max = max > s.max ? max : s.max;
    }
    for (int i = 0; i < q->n_splits; i++) {
        split_run(q, i, &s);
        float weight = math_exp(s.max - max);
        sum = fmaf(weight, s.sum, sum);
        for (int d = 0; d < head_dim; d++)
            out[d] = fmaf(weight, s.out[d], out[d]);
    }
    own = math_exp(own - max);
    float inverse = 1.0f / (sum + own + math_sink(q->args->sinks, q->row, max));
    for (int d = 0; d < head_dim; d++)
        to[d] = fmaf(own, q->own_v[d], out[d]) * inverse;
    if (!isfinite(inverse))
        return 0;
    for (int i = 0; i < q->n_splits && columns; i++) {
        split_run(q, i, &s);
        float weight = math_exp(s.max - max) * inverse;
        for (int j = 0; j < s.n; j++)
            columns[s.first + j] = fmaf(s.exp[j], weight, columns[s.first + j]);
    }
    return own * inverse;
}

/* Runs token i of a span in one KV head. Returns its own score. */
static float head_run(const struct ops *ops, const struct attend_forced_args *a,
                      const struct forced_span *s, const struct kv_row *kv, int i, int head,
                      float *columns)
{
    const struct kv_layout *rounded = ref_own_layout(kv);
    const int head_dim = a->kv.layout.head_dim, group = a->n_heads / a->kv.layout.n_kv_heads;
    const int now = s->pos + i, n = ref_slot_count(kv, now);
    const int scores = evict_decode_scores(a->evict.policy);
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    const int64_t token = s->token + i;
    const int rank = evict_rank_new(&s->limits, now);
    struct query q = {
        .args = a, .span = s, .kv = kv, .head = head, .n_ring = kv_ring_used(kv, now), .now = now};
    q.n_splits = (int)ceil_div(kv->n_slots, SPLIT) + (q.n_ring > 0);
    kv_round(rounded, a->k + token * a->k_stride + head * head_dim, q.own_k);
    ref_turn(&a->rope, rank, q.own_k);
    kv_round(rounded, a->v + token * a->v_stride + head * head_dim, q.own_v);
    if (scores)
        memset(columns, 0, (size_t)n * sizeof *columns);
    float own_score = 0;
    for (int row = head * group; row < (head + 1) * group; row++) {
        q.row = row;
        memcpy(q.q, a->q + token * a->q_stride + row * head_dim, (size_t)head_dim * sizeof *q.q);
        ref_turn_query(&a->rope, rank, head_dim, q.q);
        q.ints = ref_round_query(ops, &a->kv.layout, q.q, q.codes, q.q_scales);
        float *to = a->out + token * a->out_stride + (int64_t)row * head_dim;
        own_score += query_run(&q, to, scores ? columns : NULL);
    }
    for (int j = 0; j < n && scores; j++) {
        float *score = kv->slot_score + ref_slot_at(kv, head, j).meta;
        *score = evict_score_next(&mode, *score, columns[j], group, now);
    }
    return ref_own_score(a, now, own_score);
}

void exact_attend_forced(const struct ops *ops, const struct attend_forced_args *a)
{
    const int n_heads = a->kv.layout.n_kv_heads;
    float *own_score = a->scratch, *columns = own_score + REF_OWN * n_heads;
    CHECK(a->kv.layout.head_dim <= HEAD_DIM_MAX);
    for (int i = 0; i < a->n_spans; i++) {
        const struct forced_span *s = &a->spans[i];
        struct kv_row kv = kv_row_at(&a->kv, s->row, &s->limits, s->n_slots);
        for (int token = 0; token < s->n; token++) {
            for (int head = 0; head < n_heads; head++)
                own_score[head] = head_run(ops, a, s, &kv, token, head, columns);
            ref_place(a, s, &kv, token, own_score);
        }
    }
}
