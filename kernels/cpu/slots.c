/* kernels/cpu/slots.c - kv_store and prompt_keep: stores tokens in the workspace, and kept tokens
 * in pages.
 *
 * Owns: which slots a prompt keeps. Refuses: sums (none here, so one source serves all sets).
 * A bounded heap finds the n - budget slots to evict; the slots are never sorted. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "kernels/math.h"
#include "kernels/score.h"

static void store_part(void *ctx, int thread, int n_threads)
{
    const struct kv_store_args *a = ctx;
    const struct kv_layout *l = &a->layout;
    int64_t page0 = a->first / PAGE_SLOTS, first, last; // whole pages: threads share no cache line
    pool_split(ceil_div(a->first + a->n, PAGE_SLOTS) - page0, thread, n_threads, &first, &last);
    int64_t end = min_i64((page0 + last) * PAGE_SLOTS, (int64_t)a->first + a->n);
    for (int64_t t = max_i64((page0 + first) * PAGE_SLOTS, a->first); t < end; t++) {
        uint8_t *page = (uint8_t *)a->pages + t / PAGE_SLOTS * l->page_bytes;
        const float *k = a->k + (t - a->first) * a->k_stride;
        const float *v = a->v + (t - a->first) * a->v_stride;
        for (int h = 0; h < l->n_kv_heads; h++)
            kv_put(l, page, (int)(t % PAGE_SLOTS), h, k + (int64_t)h * l->head_dim,
                   v + (int64_t)h * l->head_dim);
    }
}

void cpu_kv_store(const struct ops *ops, const struct kv_store_args *args)
{
    if (args->n > 0)
        pool_run(ops->pool, store_part, (void *)(uintptr_t)args);
}

/* One thread's scratch for prompt_keep. */
struct keep_scratch {
    float *rank;   // [n_prompt_pad]
    int32_t *heap; // [n_prompt_pad] positions to evict, the last of them at the root
    uint8_t *gone; // [n_prompt_pad]
    float *k, *v;  // [head_dim]
};

static int64_t keep_scratch_lay_out(struct keep_scratch *s, uint8_t *base, int64_t n_prompt,
                                    int head_dim)
{
    int64_t n = round_up(n_prompt, PAGE_SLOTS), dim = round_up(head_dim, 16);
    if (s) {
        s->rank = (float *)base;
        s->heap = (int32_t *)(base + n * 4);
        s->k = (float *)(base + n * 8);
        s->v = s->k + dim;
        s->gone = (uint8_t *)(s->v + dim);
    }
    return round_up(n * 9 + dim * 8, 64);
}

int64_t prompt_keep_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_kv_heads,
                                  int head_dim)
{
    (void)n_kv_heads; // a thread runs one head at a time
    return keep_scratch_lay_out(NULL, NULL, n_prompt_max, head_dim) * pool_threads(ops->pool);
}

static int goes_before(const float *rank, int32_t a, int32_t b)
{
    return evict_before(rank[a], a, rank[b], b);
}

static void sift_down(const float *rank, int32_t *heap, int n, int at)
{
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n)
            return;
        if (child + 1 < n && goes_before(rank, heap[child], heap[child + 1]))
            child++;
        if (!goes_before(rank, heap[at], heap[child]))
            return;
        int32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

/* Marks the first n_out unprotected positions to evict. */
static void choose_gone(const struct prompt_keep_args *a, struct keep_scratch *s, int n_out)
{
    int n = 0;
    memset(s->gone, 0, (size_t)a->n_prompt);
    for (int32_t pos = 0; pos < a->n_prompt && n_out > 0; pos++) {
        if (prompt_kept_anyway(a, pos))
            continue;
        if (n < n_out) {
            s->heap[n++] = pos;
            for (int i = n / 2 - 1; n == n_out && i >= 0; i--)
                sift_down(s->rank, s->heap, n, i);
        } else if (goes_before(s->rank, pos, s->heap[0])) {
            s->heap[0] = pos;
            sift_down(s->rank, s->heap, n, 0);
        }
    }
    CHECK(n == n_out); // holds because evict_row_init checked sink + recent <= budget
    for (int i = 0; i < n; i++)
        s->gone[s->heap[i]] = 1;
}

/* K and V (or NULL) of a position, K as it is stored: unrotated where positions are ranks. */
static void position_get(const struct prompt_keep_args *a, int head, int pos, float *k, float *v)
{
    const uint8_t *page = (const uint8_t *)a->pages + pos / PAGE_SLOTS * a->from.page_bytes;
    const int half = a->rope.cos ? a->rope.rope_dim / 2 : 0;
    const float scale = half > 0 ? a->rope.scale : 1, inverse = 1.0f / (scale * scale);
    kv_get(&a->from, page, pos % PAGE_SLOTS, head, k, v);
    for (int i = 0; i < half; i++) {
        const int64_t at = (int64_t)pos * half + i;
        const float x = k[i], y = k[half + i], c = a->rope.cos[at], sine = a->rope.sin[at];
        k[i] = math_back_a(x, y, c, sine, inverse);
        k[half + i] = math_back_b(x, y, c, sine, inverse);
    }
}

/* The trait that a position has in its slot. */
static float kept_trait(const struct prompt_keep_args *a, const struct evict_rule *mode,
                        struct keep_scratch *s, int head, int pos)
{
    if (mode->trait == EVICT_NO_TRAIT)
        return 0;
    position_get(a, head, pos, s->k, s->v);
    return score_trait(mode->trait, s->k, s->v, a->from.head_dim);
}

/* The rank of every position for one head, or for all heads together (scope layer). */
static void rank_positions(const struct prompt_keep_args *a, struct keep_scratch *s, int head)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    int layer = a->evict.scope == EVICT_SCOPE_LAYER;
    int first = layer ? 0 : head, last = layer ? a->from.n_kv_heads : head + 1;
    for (int pos = 0; pos < a->n_prompt; pos++) {
        float score = 0;
        for (int h = first; h < last && mode.source != EVICT_NO_SCORE; h++)
            score += evict_score_value(&mode, prompt_kept_score(a, &mode, h, pos),
                                       kept_trait(a, &mode, s, h, pos));
        s->rank[pos] = evict_rank(a->evict.policy, &a->limits, score, pos, a->n_prompt - 1);
    }
}

/* Copies one slot between pages of the same format: its column of the K panel, its line of V. Not
 * for codes: they are not 32-bit words, and have scales elsewhere. */
static void copy_slot(const struct kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to,
                      int to_slot)
{
    CHECK(l->format == KV_F32 || l->format == KV_BF16);
    const uint32_t *k = (const uint32_t *)from + from_slot;
    uint32_t *k_to = (uint32_t *)to + to_slot;
    int64_t words = l->panel_bytes / 4; // of a panel; every 32nd word of K is the slot's
    for (int64_t i = 0; i < words; i += PAGE_SLOTS)
        k_to[i] = k[i];
    if (l->v_offset == 0)
        return;
    from += l->v_offset;
    to += l->v_offset;
    if (l->format == KV_F32) {
        memcpy(to + (int64_t)to_slot * l->dim_pad * 4, from + (int64_t)from_slot * l->dim_pad * 4,
               (size_t)l->dim_pad * 4);
        return;
    }
    const uint16_t *v = (const uint16_t *)from + from_slot / 2 * l->dim_pad * 2 + from_slot % 2;
    uint16_t *v_to = (uint16_t *)to + to_slot / 2 * l->dim_pad * 2 + to_slot % 2;
    for (int d = 0; d < l->dim_pad * 2; d += 2)
        v_to[d] = v[d];
}

static uint8_t *page_to(const struct kv_row *kv, int slot)
{
    return kv_page_of(kv->all, kv->page_ids[slot / PAGE_SLOTS]);
}

/* 1: a row's slot holds the same bytes as the workspace. */
static int stays_as_is(const struct prompt_keep_args *a)
{
    return a->from.format == a->kv.layout.format && !a->rope.cos;
}

static void keep_slot(const struct prompt_keep_args *a, const struct kv_row *kv,
                      struct keep_scratch *s, int head, int pos, int slot)
{
    const uint8_t *from = (const uint8_t *)a->pages + pos / PAGE_SLOTS * a->from.page_bytes;
    uint8_t *to = page_to(kv, slot);
    int from_slot = pos % PAGE_SLOTS, to_slot = slot % PAGE_SLOTS;
    if (stays_as_is(a)) {
        int64_t panel = a->from.panel_bytes * head;
        copy_slot(&a->kv.layout, from + panel, from_slot, to + panel, to_slot);
        return;
    }
    position_get(a, head, pos, s->k, s->v);
    kv_put(&a->kv.layout, to, to_slot, head, s->k, s->v);
}

/* Copies whole full pages when every slot keeps its place. Returns the slots copied. */
static int keep_pages(const struct prompt_keep_args *a, const struct kv_row *kv, int head)
{
    const struct kv_layout *l = &a->from;
    int n_pages = a->n_prompt / PAGE_SLOTS;
    for (int page = 0; page < n_pages; page++) {
        int64_t at = l->panel_bytes * head;
        const uint8_t *from = (const uint8_t *)a->pages + page * l->page_bytes + at;
        uint8_t *to = page_to(kv, page * PAGE_SLOTS) + at;
        memcpy(to, from, (size_t)l->panel_bytes);
        if (a->kv.layout.v_offset > 0)
            memcpy(to + l->v_offset, from + l->v_offset, (size_t)l->panel_bytes);
    }
    return n_pages * PAGE_SLOTS;
}

/* Stores a token in the ring (mixed). */
static void keep_in_ring(const struct prompt_keep_args *a, const struct kv_row *kv,
                         struct keep_scratch *s, int head, int pos, int at)
{
    uint8_t *to = kv->ring + at / PAGE_SLOTS * a->kv.ring.page_bytes;
    position_get(a, head, pos, s->k, s->v);
    kv_put(&a->kv.ring, to, at % PAGE_SLOTS, head, s->k, s->v);
}

static void keep_head(const struct prompt_keep_args *a, const struct kv_row *kv,
                      struct keep_scratch *s, int head, int n_out)
{
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    int64_t cap = kv->slots_cap;
    if (n_out > 0)
        rank_positions(a, s, head);
    choose_gone(a, s, n_out);
    const int first_in_ring = a->n_prompt - kv_ring_used(kv, a->n_prompt);
    int slot = 0, rank = 0, n_copied = 0;
    if (kv->n_slots == a->n_prompt && stays_as_is(a) && (n_out == 0 || a->evict.simulate))
        n_copied = keep_pages(a, kv, head);
    for (int pos = 0; pos < a->n_prompt; pos++) {
        if (s->gone[pos] && !a->evict.simulate)
            continue;
        int64_t meta = head * cap + slot;
        if (pos >= first_in_ring) {
            int at = pos % kv->ring_slots;
            keep_in_ring(a, kv, s, head, pos, at);
            meta = (head + 1) * cap - kv->ring_slots + at;
        } else if (pos >= n_copied) {
            keep_slot(a, kv, s, head, pos, slot++);
        } else {
            slot++; // copied by keep_pages
        }
        if (kv->slot_pos)
            kv->slot_pos[meta] = s->gone[pos] ? ~pos : pos;
        if (kv->slot_rank)
            kv->slot_rank[meta] = rank;
        rank += !s->gone[pos];
        if (kv->slot_score)
            kv->slot_score[meta] = prompt_kept_score(a, &mode, head, pos);
        if (kv->slot_trait)
            kv->slot_trait[meta] = kept_trait(a, &mode, s, head, pos);
    }
}

struct keep_task {
    const struct prompt_keep_args *args;
    struct kv_row kv;
    int n_out; // positions over the budget
};

static struct keep_scratch thread_scratch(const struct prompt_keep_args *a, int thread)
{
    struct keep_scratch s;
    int64_t bytes = keep_scratch_lay_out(NULL, NULL, a->n_prompt, a->from.head_dim);
    keep_scratch_lay_out(&s, (uint8_t *)a->scratch + bytes * thread, a->n_prompt, a->from.head_dim);
    return s;
}

static void keep_part(void *ctx, int thread, int n_threads)
{
    const struct keep_task *t = ctx;
    const struct prompt_keep_args *a = t->args;
    int64_t first, last;
    struct keep_scratch s = thread_scratch(a, thread);
    pool_split(a->from.n_kv_heads, thread, n_threads, &first, &last);
    for (int64_t head = first; head < last; head++)
        keep_head(a, &t->kv, &s, (int)head, t->n_out);
}

void cpu_prompt_keep(const struct ops *ops, const struct prompt_keep_args *a)
{
    int ring_slots = a->kv.rings ? evict_ring_slots(&a->limits) : 0;
    int n_slots = evict_slots_after(&a->evict, &a->limits, ring_slots, 0, 0, a->n_prompt);
    struct keep_task t = {.args = a, .kv = kv_row_at(&a->kv, a->row, &a->limits, n_slots)};
    t.n_out = (int)max_i64(0, (int64_t)a->n_prompt - a->limits.budget);
    CHECK(n_slots <= t.kv.slots_cap - ring_slots);
    CHECK(!evict_policy_trait(a->evict.policy) || t.kv.slot_trait);
    pool_run(ops->pool, keep_part, &t);
    for (int page = 0; page < ceil_div(n_slots, PAGE_SLOTS); page++)
        t.kv.dirty[page / 64] |= 1ull << (page % 64);
}
