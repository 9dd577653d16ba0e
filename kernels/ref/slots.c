/* kernels/ref/slots.c - which slots a token attends, which slot is evicted, where tokens are
 * stored.
 *
 * Owns: kv_store, prompt_keep, ranks and the end of attend_forced in plain loops, for both
 * references. Refuses: sums of attention; the order of eviction (policy/evict.h).
 * The token that asks for a page slot (the incoming one) is the new token, or with a ring the token
 * that the new one pushes out. Ranks are counted for every token: nothing here reads the ranks that
 * rows carry. */
#include "kernels/ref/ref.h"

#include <string.h>

#include "kernels/math.h"
#include "kernels/score.h"

void ref_kv_store(const struct ops *ops, const struct kv_store_args *a)
{
    (void)ops;
    const struct kv_layout *l = &a->layout;
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < l->n_kv_heads; h++) {
            int token = a->first + i;
            uint8_t *page = (uint8_t *)a->pages + token / PAGE_SLOTS * l->page_bytes;
            kv_put(l, page, token % PAGE_SLOTS, h, a->k + i * a->k_stride + h * l->head_dim,
                   a->v + i * a->v_stride + h * l->head_dim);
        }
}

/* ---- slots of a row ---- */

static struct ref_slot page_slot(const struct kv_row *kv, int head, int slot)
{
    int64_t meta = (int64_t)head * kv->slots_cap + slot;
    return (struct ref_slot){.layout = &kv->all->layout,
                             .page = kv_page_of(kv->all, kv->page_ids[slot / PAGE_SLOTS]),
                             .slot = slot % PAGE_SLOTS,
                             .meta = meta,
                             .masked = kv->slot_pos && kv->slot_pos[meta] < 0};
}

/* The ring slot of position pos. */
static struct ref_slot ring_slot(const struct kv_row *kv, int head, int pos)
{
    const struct kv_layout *ring = &kv->all->ring;
    int slot = pos % kv->ring_slots;
    return (struct ref_slot){.layout = ring,
                             .page = kv->ring + slot / PAGE_SLOTS * ring->page_bytes,
                             .slot = slot % PAGE_SLOTS,
                             .meta = (int64_t)(head + 1) * kv->slots_cap - kv->ring_slots + slot};
}

int ref_slot_count(const struct kv_row *kv, int now)
{
    return kv->n_slots + kv_ring_used(kv, now);
}

struct ref_slot ref_slot_at(const struct kv_row *kv, int head, int index)
{
    if (index < kv->n_slots)
        return page_slot(kv, head, index);
    return ring_slot(kv, head, index - kv->n_slots);
}

int ref_sees(const struct attend_forced_args *a, const struct forced_span *s,
             const struct kv_row *kv, const struct ref_slot *at, int now)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    const int hidden = evict_hidden(&mode, &s->limits, now);
    return !at->masked && (hidden < 0 || kv->slot_pos[at->meta] != hidden);
}

const struct kv_layout *ref_own_layout(const struct kv_row *kv)
{
    return kv->ring_slots > 0 ? &kv->all->ring : &kv->all->layout;
}

static void slot_put(const struct kv_row *kv, struct ref_slot at, int head, const float *k,
                     const float *v, int pos, float score, float trait)
{
    kv_put(at.layout, (void *)(uintptr_t)at.page, at.slot, head, k, v);
    if (kv->slot_pos)
        kv->slot_pos[at.meta] = pos;
    if (kv->slot_score)
        kv->slot_score[at.meta] = score;
    if (kv->slot_trait)
        kv->slot_trait[at.meta] = trait;
}

static void mark_dirty(const struct kv_row *kv, int slot)
{
    kv->dirty[slot / PAGE_SLOTS / 64] |= 1ull << (slot / PAGE_SLOTS % 64);
}

/* ---- ranks ---- */

void ref_turn(const struct slot_rope *rope, int rank, float *x)
{
    const int half = rope->rope_dim / 2;
    for (int i = 0; i < half && rope->cos; i++) {
        const float c = rope->cos[(int64_t)rank * half + i],
                    s = rope->sin[(int64_t)rank * half + i];
        const float a = x[i], b = x[half + i];
        x[i] = math_turn_a(a, b, c, s);
        x[half + i] = math_turn_b(a, b, c, s);
    }
}

void ref_turn_query(const struct slot_rope *rope, int rank, int head_dim, float *x)
{
    ref_turn(rope, rank, x);
    for (int i = 0; i < head_dim && rope->factors; i++)
        x[i] *= rope->factors[rank];
}

int ref_rank(const struct kv_row *kv, int head, int now, int index)
{
    const int32_t pos = kv->slot_pos[ref_slot_at(kv, head, index).meta];
    int rank = 0;
    for (int i = 0; i < ref_slot_count(kv, now); i++) {
        const struct ref_slot at = ref_slot_at(kv, head, i);
        rank += !at.masked && kv->slot_pos[at.meta] < pos;
    }
    return rank;
}

/* All ranks of a row, when its next token has position `now`. */
static void ranks(const struct kv_row *kv, int now)
{
    for (int h = 0; h < kv->all->layout.n_kv_heads && kv->slot_rank; h++)
        for (int i = 0; i < ref_slot_count(kv, now); i++)
            kv->slot_rank[ref_slot_at(kv, h, i).meta] = ref_rank(kv, h, now, i);
}

/* ---- one token of a span ---- */

/* The token that asks for a page slot. */
struct incoming {
    int pos;              // -1: none, the ring is not full
    float *score, *trait; // [n_kv_heads]
};

/* Scores and traits of the token, for the choice of a victim: parts of ref_place()'s
 * own_numbers. */
struct own {
    float *score, *trait; // [2, n_kv_heads]
};

static struct own own_at(float *own, int n_kv_heads)
{
    return (struct own){own, own + 2 * n_kv_heads};
}

/* Value of a page slot, or of the incoming token (slot n_slots), summed over heads [first,
 * last). */
static float slot_value(const struct attend_forced_args *a, const struct kv_row *kv,
                        const struct incoming *in, int slot, int first, int last)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    float value = 0;
    for (int h = first; h < last && evict_policy_scores(a->evict.policy); h++) {
        const int64_t meta = (int64_t)h * kv->slots_cap + slot;
        float score = in->score[h], trait = in->trait[h];
        if (slot < kv->n_slots) {
            score = kv->slot_score[meta];
            trait = kv->slot_trait ? kv->slot_trait[meta] : 0;
        }
        value += evict_score_value(&mode, score, trait);
    }
    return value;
}

/* The victim among the page slots and the incoming token, for heads [first, last) together. */
static int forced_victim(const struct attend_forced_args *a, const struct forced_span *s,
                         const struct kv_row *kv, int first, int last, int now,
                         const struct incoming *in, struct evict_event *event)
{
    int best = -1, best_pos = 0;
    float best_rank = 0;
    for (int slot = 0; slot <= kv->n_slots; slot++) {
        int pos =
            slot < kv->n_slots ? kv->slot_pos[(int64_t)first * kv->slots_cap + slot] : in->pos;
        if (pos < 0 || evict_protected(&s->limits, pos, now))
            continue;
        float score = slot_value(a, kv, in, slot, first, last);
        float rank = evict_rank(a->evict.policy, &s->limits, score, pos, now);
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

/* Unmasked slots of a head, in pages and ring. */
static int live_slots(const struct kv_row *kv, int head, int now)
{
    int n = kv_ring_used(kv, now);
    for (int slot = 0; slot < kv->n_slots; slot++)
        n += !kv->slot_pos || kv->slot_pos[(int64_t)head * kv->slots_cap + slot] >= 0;
    return n;
}

/* The page slot of the incoming token in heads [first, last), or -1. Under simulate the victim is
 * masked and keeps its slot; if the incoming token is the victim, *pos is masked. */
static int forced_room(const struct attend_forced_args *a, const struct forced_span *s,
                       const struct kv_row *kv, int first, int last, int now,
                       const struct incoming *in, int *pos, struct evict_event *event)
{
    int slot = in->pos < 0 ? -1 : kv->n_slots;
    if (a->evict.policy == EVICT_FULL || live_slots(kv, first, now) < s->limits.budget)
        return slot;
    int victim = forced_victim(a, s, kv, first, last, now, in, event);
    if (!a->evict.simulate)
        return victim == kv->n_slots ? -1 : victim;
    if (victim == kv->n_slots)
        *pos = ~in->pos;
    for (int h = first; h < last && victim < kv->n_slots; h++)
        kv->slot_pos[(int64_t)h * kv->slots_cap + victim] = ~event->pos;
    return slot;
}

/* Stores token i for heads [first, last). Returns the page slots then in use. */
static int forced_store(const struct attend_forced_args *a, const struct forced_span *s,
                        const struct kv_row *kv, int i, int first, int last, const struct own *own)
{
    const struct kv_layout *l = &a->kv.layout;
    const int64_t token = s->token + i;
    struct evict_event event = {.pos = -1};
    int now = s->pos + i, has_ring = kv->ring_slots > 0;
    struct incoming in = {now, own->score, own->trait};
    if (has_ring)
        in = (struct incoming){now >= kv->ring_slots ? now - kv->ring_slots : -1,
                               own->score + l->n_kv_heads, own->trait + l->n_kv_heads};
    for (int h = first; h < last && has_ring && kv->slot_score; h++) {
        const int64_t meta = ring_slot(kv, h, now).meta;
        in.score[h] = kv->slot_score[meta];
        in.trait[h] = kv->slot_trait ? kv->slot_trait[meta] : 0;
    }
    int pos = in.pos, slot = forced_room(a, s, kv, first, last, now, &in, &pos, &event);
    for (int h = first; h < last; h++) {
        const float *k = a->k + token * a->k_stride + h * l->head_dim;
        const float *v = a->v + token * a->v_stride + h * l->head_dim;
        float old_k[HEAD_DIM_MAX], old_v[HEAD_DIM_MAX];
        if (a->events)
            a->events[token * l->n_kv_heads + h] = event;
        if (has_ring) {
            struct ref_slot place = ring_slot(kv, h, now);
            if (in.pos >= 0)
                kv_get(place.layout, place.page, place.slot, h, old_k, old_v);
            slot_put(kv, place, h, k, v, now, own->score[h], own->trait[h]);
            k = old_k;
            v = old_v;
        }
        if (slot >= 0)
            slot_put(kv, page_slot(kv, h, slot), h, k, v, pos, in.score[h], in.trait[h]);
    }
    if (slot >= 0)
        mark_dirty(kv, slot);
    return slot == kv->n_slots ? kv->n_slots + 1 : kv->n_slots;
}

void ref_place(const struct attend_forced_args *a, const struct forced_span *s, struct kv_row *kv,
               int i, float *own_numbers)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    const struct kv_layout *l = &a->kv.layout;
    const int64_t token = s->token + i;
    int n_heads = l->n_kv_heads, n_slots = kv->n_slots;
    int step = a->evict.scope == EVICT_SCOPE_LAYER ? n_heads : 1;
    const struct own own = own_at(own_numbers, n_heads);
    for (int h = 0; h < n_heads; h++) {
        const int64_t at = (int64_t)h * l->head_dim;
        own.trait[h] = score_trait(mode.trait, a->k + token * a->k_stride + at,
                                   a->v + token * a->v_stride + at, l->head_dim);
    }
    for (int h = 0; h < n_heads; h += step)
        n_slots = forced_store(a, s, kv, i, h, h + step, &own);
    kv->n_slots = n_slots;
    ranks(kv, s->pos + i + 1);
}

float ref_own_score(const struct attend_forced_args *a, int now, float weight)
{
    const struct evict_rule score = evict_rule_of(a->evict.policy);
    if (!evict_decode_scores(a->evict.policy))
        return 0;
    return evict_score_next(&score, 0, weight, a->n_heads / a->kv.layout.n_kv_heads, now);
}

/* ---- after a prompt ---- */

/* K and V (or NULL) of a position, K as it is stored: unrotated where positions are ranks. */
static void prompt_get(const struct prompt_keep_args *a, int head, int pos, float *k, float *v)
{
    const struct slot_rope *rope = &a->rope;
    const int half = rope->cos ? rope->rope_dim / 2 : 0;
    const float scale = half > 0 ? rope->scale : 1, inverse = 1.0f / (scale * scale);
    kv_get(&a->from, (const uint8_t *)a->pages + pos / PAGE_SLOTS * a->from.page_bytes,
           pos % PAGE_SLOTS, head, k, v);
    for (int i = 0; i < half; i++) {
        const float c = rope->cos[(int64_t)pos * half + i], s = rope->sin[(int64_t)pos * half + i];
        const float x = k[i], y = k[half + i];
        k[i] = math_back_a(x, y, c, s, inverse);
        k[half + i] = math_back_b(x, y, c, s, inverse);
    }
}

static float kept_trait(const struct prompt_keep_args *a, const struct evict_rule *mode, int head,
                        int pos)
{
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    if (!mode->trait)
        return 0;
    prompt_get(a, head, pos, k, v);
    return score_trait(mode->trait, k, v, a->from.head_dim);
}

/* The first unprotected position to evict. marks: ~pos where a position is already evicted. */
static int keep_victim(const struct prompt_keep_args *a, const int32_t *marks, int head)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    int now = a->n_prompt - 1, best = -1;
    float best_rank = 0;
    for (int pos = 0; pos < a->n_prompt; pos++) {
        if (marks[pos] < 0 || prompt_kept_anyway(a, pos))
            continue;
        float score = 0;
        for (int h = 0; h < a->from.n_kv_heads && mode.source != EVICT_NO_SCORE; h++)
            if (h == head || a->evict.scope == EVICT_SCOPE_LAYER)
                score += evict_score_value(&mode, prompt_kept_score(a, &mode, h, pos),
                                           kept_trait(a, &mode, h, pos));
        float rank = evict_rank(a->evict.policy, &a->limits, score, pos, now);
        if (best < 0 || evict_before(rank, pos, best_rank, best)) {
            best = pos;
            best_rank = rank;
        }
    }
    CHECK(best >= 0);
    return best;
}

/* Writes marks [n_prompt] of a head: pos, or ~pos for the first n to evict. */
static void marks_cut(const struct prompt_keep_args *a, int32_t *marks, int head, int n)
{
    for (int pos = 0; pos < a->n_prompt; pos++)
        marks[pos] = pos;
    for (; n > 0; n--) {
        int pos = keep_victim(a, marks, head);
        marks[pos] = ~pos;
    }
}

/* Writes the slots that a head keeps. */
static void keep_marked(const struct prompt_keep_args *a, const struct kv_row *kv,
                        const int32_t *marks, int h)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    const int first_in_ring = a->n_prompt - kv_ring_used(kv, a->n_prompt);
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    int slot = 0;
    for (int pos = 0; pos < a->n_prompt; pos++) {
        if (marks[pos] < 0 && !a->evict.simulate)
            continue;
        float score = prompt_kept_score(a, &mode, h, pos), trait = kept_trait(a, &mode, h, pos);
        prompt_get(a, h, pos, k, v);
        if (pos >= first_in_ring) {
            slot_put(kv, ring_slot(kv, h, pos), h, k, v, pos, score, trait);
            continue;
        }
        slot_put(kv, page_slot(kv, h, slot), h, k, v, marks[pos], score, trait);
        mark_dirty(kv, slot++);
    }
}

void ref_prompt_keep(const struct ops *ops, const struct prompt_keep_args *a)
{
    (void)ops;
    struct kv_row row = kv_row_at(&a->kv, a->row, &a->limits, 0);
    int32_t *marks = a->scratch; // [n_prompt] of a head
    CHECK(a->from.head_dim <= HEAD_DIM_MAX);
    row.n_slots = evict_slots_after(&a->evict, &a->limits, row.ring_slots, 0, 0, a->n_prompt);
    for (int h = 0; h < a->from.n_kv_heads; h++) {
        marks_cut(a, marks, h, a->n_prompt - a->limits.budget);
        keep_marked(a, &row, marks, h);
    }
    ranks(&row, a->n_prompt);
}
