/* tests/attend_help.h - rows under attention: tokens, pages, a prompt, forced spans, comparisons.
 */
#ifndef TESTS_ATTEND_HELP_H
#define TESTS_ATTEND_HELP_H

#include "tests/ops_help.h"

struct model {
    int n_heads, n_kv_heads, head_dim;
    enum kv_format work, kv; // of the workspace, of the row's pages
};

struct tokens {
    int n;
    int q_stride, kv_stride;
    float *q, *k, *v; // [n, stride]
};

/* Of every row: values are keys, in V parts of their own, or in none. */
static enum { VALUES_APART, VALUES_COPIED, VALUES_ARE_KEYS } attend_values;

static inline struct tokens tokens_make(const struct model *m, int n, uint64_t seed)
{
    struct tokens t = {.n = n,
                       .q_stride = m->n_heads * m->head_dim + 5,
                       .kv_stride = m->n_kv_heads * m->head_dim + 3};
    t.q = noise_array(seed, (int64_t)n * t.q_stride, m->head_dim > 512 ? 1 : 3);
    const int apart = attend_values == VALUES_APART; // values are below 1
    t.k = noise_array(seed + 1, (int64_t)n * t.kv_stride, apart ? 2 : 1);
    t.v = noise_array(seed + 1 + (uint64_t)apart, (int64_t)n * t.kv_stride, 1);
    return t;
}

static inline void tokens_free(struct tokens *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
}

static float attend_cap;             // of every call; 0: none
static const float *attend_sinks;    // [n_heads]; NULL: none
static struct slot_rope attend_rope; // without tables q and k come rotated

/* Of real angles, times `scale`, for so many positions; queries have factors if it is 1. To be
 * taken down by angles_free(). */
static inline struct slot_rope angles_make(int rope_dim, int n, float scale)
{
    const int half = rope_dim / 2;
    float *c = take((int64_t)n * half * 4), *s = take((int64_t)n * half * 4);
    for (int i = 0; i < n * half; i++) {
        const double angle = (i / half) * pow(10000, -(double)(i % half) / half);
        c[i] = scale * (float)cos(angle);
        s[i] = scale * (float)sin(angle);
    }
    float *factors = scale == 1 ? take((int64_t)n * 4) : NULL;
    for (int i = 0; i < n && factors; i++)
        factors[i] = 1 + 0.125f * (float)(i / 3 % 5);
    return (struct slot_rope){
        .cos = c, .sin = s, .factors = factors, .rope_dim = rope_dim, .scale = scale};
}

static inline void angles_free(struct slot_rope *rope)
{
    free((void *)(uintptr_t)rope->cos);
    free((void *)(uintptr_t)rope->sin);
    free((void *)(uintptr_t)rope->factors);
    *rope = (struct slot_rope){0};
}

/* A row under one policy, and all that came out of it. */
struct row {
    struct kv_row kv; // its own arrays; ops get them among others' (struct joint)
    struct evict evict;
    struct evict_row limits;
    struct kv_layout layout, ring; // ring: under KV_MIXED
    int64_t ring_bytes;
    int n_pages;
    uint8_t *memory;            // [n_pages][page_bytes]
    void **pages;               // [n_pages]
    float *out;                 // [n_tokens, q_stride]
    float *scores;              // [n_kv_heads, n_prompt_pad] of the prompt
    struct evict_event *events; // [n_tokens, n_kv_heads]
    int n_tokens, n_prompt;
    int64_t out_bytes;
};

static inline struct row row_make(const struct model *m, const struct tokens *t, struct evict evict,
                                  struct evict_row limits, int n_prompt)
{
    struct row r = {.evict = evict, .limits = limits, .n_tokens = t->n, .n_prompt = n_prompt};
    int cap = evict.simulate || limits.budget > t->n ? t->n : limits.budget;
    kv_layout_init(&r.layout, kv_page_format(m->kv), m->n_kv_heads, m->head_dim);
    kv_layout_init(&r.ring, KV_Q8, m->n_kv_heads, m->head_dim);
    if (attend_values == VALUES_ARE_KEYS) {
        kv_layout_keys_only(&r.layout);
        kv_layout_keys_only(&r.ring);
    }
    r.ring_bytes = m->kv == KV_MIXED ? KV_RING_PAGES * r.ring.page_bytes : 0;
    r.n_pages = (int)ceil_div(cap, PAGE_SLOTS);
    r.memory = take(r.n_pages * r.layout.page_bytes);
    memset(r.memory, 0xff, (size_t)(r.n_pages * r.layout.page_bytes)); // NaN: no slot, no number
    r.pages = take(r.n_pages * (int64_t)sizeof *r.pages);
    for (int i = 0; i < r.n_pages; i++) // in falling order: nothing may rely on neighbours
        r.pages[i] = r.memory + (r.n_pages - 1 - i) * r.layout.page_bytes;
    r.kv = (struct kv_row){.slots_cap = cap};
    if (r.ring_bytes > 0) {
        r.kv.ring = take(r.ring_bytes);
        memset(r.kv.ring, 0xff, (size_t)r.ring_bytes);
        r.kv.ring_slots = evict_ring_slots(&limits);
        r.kv.slots_cap = cap += EVICT_RING_MAX;
    }
    if (evict.policy != EVICT_FULL || evict.simulate) {
        r.kv.slot_pos = take((int64_t)m->n_kv_heads * cap * 4);
        r.kv.slot_score = take((int64_t)m->n_kv_heads * cap * 4);
        if (attend_rope.cos)
            r.kv.slot_rank = take((int64_t)m->n_kv_heads * cap * 4);
    }
    if (evict_policy_trait(evict.policy))
        r.kv.slot_trait = take((int64_t)m->n_kv_heads * cap * 4);
    r.kv.dirty = take(ceil_div(r.n_pages, 64) * 8);
    r.out_bytes = (int64_t)t->n * t->q_stride * 4;
    r.out = take(r.out_bytes);
    r.scores = take(m->n_kv_heads * round_up(n_prompt, PAGE_SLOTS) * 4);
    r.events = take((int64_t)t->n * m->n_kv_heads * (int64_t)sizeof *r.events);
    return r;
}

static inline void row_free(struct row *r)
{
    free(r->memory);
    free(r->kv.ring);
    free(r->pages);
    free(r->kv.slot_pos);
    free(r->kv.slot_score);
    free(r->kv.slot_rank);
    free(r->kv.slot_trait);
    free(r->kv.dirty);
    free(r->out);
    free(r->scores);
    free(r->events);
}

/* ---- rows as ops see them: bases, strides and ids, with gaps wherever there may be some ---- */

struct joint {
    struct kv_rows kv; // row i of the test is row i + 1 here
    int32_t *ids;
    int64_t slots, words; // of a row: numbers of slot_pos, words of dirty
};

/* Page p of a row lies before page p - 1; the last one is a tail. */
static inline struct joint joint_make(struct row *const *rows, int n_rows)
{
    const struct row *r = rows[0];
    int n_all = n_rows + 1, n_pages = r->n_pages;
    struct joint j = {.slots = (int64_t)r->layout.n_kv_heads * r->kv.slots_cap,
                      .words = ceil_div(n_pages, 64)};
    struct kv_rows *kv = &j.kv;
    *kv = (struct kv_rows){.layout = r->layout,
                           .ring = r->ring,
                           .tail_stride = 2 * r->layout.page_bytes,
                           .ring_stride = r->ring_bytes + 4096,
                           .slot_stride = j.slots + 7,
                           .page_ids_stride = n_pages + 3,
                           .dirty_stride = (int)j.words + 1,
                           .slots_cap = r->kv.slots_cap};
    kv->pages = take((int64_t)n_all * n_pages * r->layout.page_bytes);
    kv->tails = take(n_all * kv->tail_stride);
    kv->page_ids = j.ids = take((int64_t)n_all * kv->page_ids_stride * 4);
    kv->dirty = take((int64_t)n_all * kv->dirty_stride * 8);
    kv->rings = r->kv.ring ? take(n_all * kv->ring_stride) : NULL;
    if (r->kv.slot_pos) {
        kv->slot_pos = take(n_all * kv->slot_stride * 4);
        kv->slot_score = take(n_all * kv->slot_stride * 4);
        if (r->kv.slot_rank)
            kv->slot_rank = take(n_all * kv->slot_stride * 4);
    }
    if (r->kv.slot_trait)
        kv->slot_trait = take(n_all * kv->slot_stride * 4);
    for (int i = 1; i < n_all; i++) {
        int32_t *ids = j.ids + i * kv->page_ids_stride;
        assert_int_equal(rows[i - 1]->n_pages, n_pages);
        assert_int_equal(rows[i - 1]->kv.slots_cap, kv->slots_cap);
        for (int p = 0; p < n_pages; p++)
            ids[p] = p + 1 < n_pages ? i * n_pages + n_pages - 1 - p : ~i;
    }
    return j;
}

static inline void joint_move(void *own, void *joint, int64_t n_bytes, int back)
{
    if (own)
        memcpy(back ? own : joint, back ? joint : own, (size_t)n_bytes);
}

/* The rows' own arrays into the joint ones, or back. */
static inline void joint_copy(struct joint *j, struct row *const *rows, int n_rows, int back)
{
    for (int i = 0; i < n_rows; i++) {
        struct row *r = rows[i];
        struct kv_row at = kv_row_at(&j->kv, i + 1, &r->limits, 0);
        for (int p = 0; p < r->n_pages; p++)
            joint_move(r->pages[p], kv_page_of(&j->kv, at.page_ids[p]), r->layout.page_bytes, back);
        joint_move(r->kv.slot_pos, at.slot_pos, j->slots * 4, back);
        joint_move(r->kv.slot_score, at.slot_score, j->slots * 4, back);
        joint_move(r->kv.slot_rank, at.slot_rank, j->slots * 4, back);
        joint_move(r->kv.slot_trait, at.slot_trait, j->slots * 4, back);
        joint_move(r->kv.dirty, at.dirty, j->words * 8, back);
        joint_move(r->kv.ring, at.ring, r->ring_bytes, back);
    }
}

static inline void joint_free(struct joint *j)
{
    free(j->kv.pages);
    free(j->kv.tails);
    free(j->ids);
    free(j->kv.slot_pos);
    free(j->kv.slot_score);
    free(j->kv.slot_rank);
    free(j->kv.slot_trait);
    free(j->kv.dirty);
    free(j->kv.rings);
}

/* What a prompt leaves of itself in its row, by ops of its own. */
static inline void row_keep(const struct ops *keep, const struct model *m, struct row *r,
                            const struct kv_layout *work, const uint8_t *pages, float *scores)
{
    int n = r->n_prompt;
    struct joint j = joint_make(&r, 1);
    void *scratch = take_scratch(prompt_keep_scratch_bytes(keep, n, m->n_kv_heads, m->head_dim));
    joint_copy(&j, &r, 1, 0);
    ops_run_prompt_keep(keep, &(struct prompt_keep_args){.from = *work,
                                                         .pages = pages,
                                                         .scores = scores,
                                                         .rope = attend_rope,
                                                         .kv = j.kv,
                                                         .evict = r->evict,
                                                         .limits = r->limits,
                                                         .row = 1,
                                                         .n_prompt = n,
                                                         .scratch = scratch});
    joint_copy(&j, &r, 1, 1);
    joint_free(&j);
    free(scratch);
    r->kv.n_slots = evict_slots_after(&r->evict, &r->limits, r->kv.ring_slots, 0, 0, n);
}

static int prompt_window; // of every prompt; 0: none

/* The prompt in calls of `cut` queries, behind a page of another one, then what it keeps. */
static inline void row_prompt_kept_by(const struct ops *ops, const struct ops *keep,
                                      const struct model *m, const struct tokens *t, struct row *r,
                                      int cut)
{
    struct kv_layout work;
    kv_layout_init(&work, m->work, m->n_kv_heads, m->head_dim);
    int n = r->n_prompt;
    int scored = evict_prompt_scores(r->evict.policy);
    int whole_tiles = cut % PAGE_SLOTS == 0 || cut >= n; // else there are no scores
    int64_t n_pages = 1 + ceil_div(n, PAGE_SLOTS), gap = (int64_t)PAGE_SLOTS * m->n_kv_heads;
    uint8_t *pages = take(n_pages * work.page_bytes);
    float *scores = take(n_pages * gap * 4);
    memset(pages, 0xff, (size_t)(n_pages * work.page_bytes)); // NaN
    void *scratch =
        take_scratch(attend_prompt_scratch_bytes(ops, n, m->n_heads, m->n_kv_heads, m->head_dim));
    for (int first = 0; first < n; first += cut) {
        int part = n - first < cut ? n - first : cut;
        ops_run_kv_store(ops, &(struct kv_store_args){.layout = work,
                                                      .pages = pages + work.page_bytes,
                                                      .k = t->k + first * t->kv_stride,
                                                      .v = t->v + first * t->kv_stride,
                                                      .k_stride = t->kv_stride,
                                                      .v_stride = t->kv_stride,
                                                      .first = first,
                                                      .n = part});
        struct prompt_span span = {
            .n_prompt = n, .first = first, .n = part, .token = first, .page = 1};
        ops_run_attend_prompt(ops,
                              &(struct attend_prompt_args){.layout = work,
                                                           .q = t->q,
                                                           .out = r->out,
                                                           .pages = pages,
                                                           .scores = whole_tiles ? scores : NULL,
                                                           .policy = r->evict.policy,
                                                           .spans = &span,
                                                           .n_spans = 1,
                                                           .n_heads = m->n_heads,
                                                           .n_max = part,
                                                           .end_max = first + part,
                                                           .window = prompt_window,
                                                           .scale = 0.2f,
                                                           .cap = attend_cap,
                                                           .sinks = attend_sinks,
                                                           .q_stride = t->q_stride,
                                                           .out_stride = t->q_stride,
                                                           .scratch = scratch});
    }
    free(scratch);
    memcpy(r->scores, scores + gap, (size_t)((n_pages - 1) * gap * 4));
    row_keep(keep, m, r, &work, pages + work.page_bytes, scored ? r->scores : NULL);
    free(pages);
    free(scores);
}

static inline void row_prompt(const struct ops *ops, const struct model *m, const struct tokens *t,
                              struct row *r, int cut)
{
    row_prompt_kept_by(ops, ops, m, t, r, cut);
}

/* Tokens [first, first + n) of several rows of one model and policy in one call. */
static inline void rows_forced(const struct ops *ops, const struct model *m,
                               const struct tokens *const *t, struct row *const *rows, int n_rows,
                               int first, int n)
{
    struct forced_span spans[8];
    int64_t q_stride = t[0]->q_stride, kv_stride = t[0]->kv_stride, n_tokens = n_rows * n + 1;
    struct joint j = joint_make(rows, n_rows);
    int slots_max = 0;
    float *q = take(n_tokens * q_stride * 4), *out = take(n_tokens * q_stride * 4);
    float *k = take(n_tokens * kv_stride * 4), *v = take(n_tokens * kv_stride * 4);
    struct evict_event *events = take(n_tokens * m->n_kv_heads * (int64_t)sizeof *events);
    joint_copy(&j, rows, n_rows, 0);
    for (int i = 0; i < n_rows; i++) {
        struct row *r = rows[i];
        int64_t at = 1 + (int64_t)i * n;
        spans[i] = (struct forced_span){.row = i + 1,
                                        .n_slots = r->kv.n_slots,
                                        .n = n,
                                        .pos = first,
                                        .token = (int)at,
                                        .limits = r->limits};
        int slots =
            evict_slots_after(&r->evict, &r->limits, r->kv.ring_slots, r->kv.n_slots, first, n);
        slots_max = slots > slots_max ? slots : slots_max;
        memcpy(q + at * q_stride, t[i]->q + first * q_stride, (size_t)(n * q_stride * 4));
        memcpy(k + at * kv_stride, t[i]->k + first * kv_stride, (size_t)(n * kv_stride * 4));
        memcpy(v + at * kv_stride, t[i]->v + first * kv_stride, (size_t)(n * kv_stride * 4));
    }
    void *scratch = take_scratch(
        attend_forced_scratch_bytes(ops, n_rows, j.kv.slots_cap, m->n_heads, m->n_kv_heads,
                                    m->head_dim, evict_decode_scores(rows[0]->evict.policy)));
    ops_run_attend_forced(ops, &(struct attend_forced_args){.kv = j.kv,
                                                            .rope = attend_rope,
                                                            .evict = rows[0]->evict,
                                                            .spans = spans,
                                                            .n_spans = n_rows,
                                                            .n_heads = m->n_heads,
                                                            .n_max = n,
                                                            .slots_max = slots_max,
                                                            .scale = 0.2f,
                                                            .cap = attend_cap,
                                                            .sinks = attend_sinks,
                                                            .q = q,
                                                            .k = k,
                                                            .v = v,
                                                            .out = out,
                                                            .q_stride = q_stride,
                                                            .k_stride = kv_stride,
                                                            .v_stride = kv_stride,
                                                            .out_stride = q_stride,
                                                            .events = events,
                                                            .scratch = scratch});
    joint_copy(&j, rows, n_rows, 1);
    for (int i = 0; i < n_rows; i++) {
        struct row *r = rows[i];
        int64_t at = 1 + (int64_t)i * n, heads = m->n_kv_heads;
        memcpy(r->out + first * q_stride, out + at * q_stride, (size_t)(n * q_stride * 4));
        memcpy(r->events + first * heads, events + at * heads,
               (size_t)(n * heads) * sizeof *events);
        r->kv.n_slots =
            evict_slots_after(&r->evict, &r->limits, r->kv.ring_slots, r->kv.n_slots, first, n);
    }
    joint_free(&j);
    free(q);
    free(k);
    free(v);
    free(out);
    free(events);
    free(scratch);
}

/* A whole row: its prompt, then the other tokens in spans of `step`. */
static inline struct row row_run(const struct ops *ops, const struct model *m,
                                 const struct tokens *t, struct evict evict,
                                 struct evict_row limits, int n_prompt, int step)
{
    struct row r = row_make(m, t, evict, limits, n_prompt), *rows[] = {&r};
    if (n_prompt > 0)
        row_prompt(ops, m, t, &r, n_prompt);
    for (int at = n_prompt; at < t->n; at += step)
        rows_forced(ops, m, &t, rows, 1, at, at + step < t->n ? step : t->n - at);
    return r;
}

/* Of slots that are live: nobody reads those of others. */
static inline void ranks_same(const struct row *a, const struct row *b, const char *what)
{
    const int cap = a->kv.slots_cap, R = a->kv.ring_slots;
    const int n_ring = evict_ring_used(R, a->n_tokens);
    for (int i = 0; i < a->layout.n_kv_heads * cap && a->kv.slot_rank; i++) {
        const int slot = i % cap,
                  used = slot < a->kv.n_slots || (slot >= cap - R && slot < cap - R + n_ring);
        if (used && a->kv.slot_pos[i] >= 0 && a->kv.slot_rank[i] != b->kv.slot_rank[i])
            fail_msg("%s: rank of slot %d of head %d is %d, not %d", what, slot, i / cap,
                     a->kv.slot_rank[i], b->kv.slot_rank[i]);
    }
}

static inline void rows_same(const struct row *a, const struct row *b, const char *what)
{
    int n_heads = a->layout.n_kv_heads;
    int64_t slot_bytes = (int64_t)n_heads * a->kv.slots_cap * 4;
    assert_same_bits(a->out, b->out, a->out_bytes, what);
    assert_int_equal(a->kv.n_slots, b->kv.n_slots);
    assert_same_bits(a->memory, b->memory, a->n_pages * a->layout.page_bytes, what);
    assert_same_bits(a->kv.ring, b->kv.ring, a->ring_bytes, what);
    assert_same_bits(a->kv.dirty, b->kv.dirty, ceil_div(a->n_pages, 64) * 8, what);
    assert_same_bits(a->events, b->events,
                     (int64_t)a->n_tokens * n_heads * (int64_t)sizeof *a->events, what);
    assert_same_bits(a->scores, b->scores, n_heads * round_up(a->n_prompt, PAGE_SLOTS) * 4, what);
    if (!a->kv.slot_pos)
        return;
    assert_same_bits(a->kv.slot_pos, b->kv.slot_pos, slot_bytes, what);
    assert_same_bits(a->kv.slot_score, b->kv.slot_score, slot_bytes, what);
    ranks_same(a, b, what);
    if (a->kv.slot_trait)
        assert_same_bits(a->kv.slot_trait, b->kv.slot_trait, slot_bytes, what);
}

/* Scores of two rows under one policy: bits are the same, numbers close. */
static inline void scores_close(const struct row *row, const float *a, const float *b, int64_t n,
                                double tolerance, const char *what)
{
    if (evict_rule_of(row->evict.policy).source == EVICT_EACH)
        assert_same_bits(a, b, n * 4, what);
    else
        assert_close(a, b, n, tolerance, what);
}

/* Outputs within out_tolerance; scores within ten times `tolerance`; the rest the same. */
static inline void rows_close_to(const struct row *a, const struct row *b, double tolerance,
                                 double out_tolerance, const char *what)
{
    int n_heads = a->layout.n_kv_heads;
    int64_t n = (int64_t)n_heads * a->kv.slots_cap;
    assert_close(a->out, b->out, a->out_bytes / 4, out_tolerance, what);
    scores_close(a, a->scores, b->scores, n_heads * round_up(a->n_prompt, PAGE_SLOTS),
                 tolerance * 10, what);
    assert_int_equal(a->kv.n_slots, b->kv.n_slots);
    for (int64_t i = 0; i < (int64_t)a->n_tokens * n_heads; i++) {
        assert_int_equal(a->events[i].pos, b->events[i].pos);
        assert_true(fabsf(a->events[i].score - b->events[i].score) <= (float)tolerance * 10);
    }
    assert_same_bits(a->memory, b->memory, a->n_pages * a->layout.page_bytes, what);
    assert_same_bits(a->kv.ring, b->kv.ring, a->ring_bytes, what);
    assert_same_bits(a->kv.dirty, b->kv.dirty, ceil_div(a->n_pages, 64) * 8, what);
    if (!a->kv.slot_pos)
        return;
    assert_same_bits(a->kv.slot_pos, b->kv.slot_pos, n * 4, what);
    scores_close(a, a->kv.slot_score, b->kv.slot_score, n, tolerance * 10, what);
    ranks_same(a, b, what);
    if (a->kv.slot_trait)
        assert_same_bits(a->kv.slot_trait, b->kv.slot_trait, n * 4, what);
}

static const struct evict_row never = {.budget = INT32_MAX, .recent = INT32_MAX, .sink = 0};

struct scenario {
    struct evict evict;
    struct evict_row limits;
};

static const struct scenario scenarios[] = {
    {{.policy = EVICT_FULL}, {INT32_MAX, INT32_MAX, 0}},
    {{.policy = EVICT_WINDOW}, {40, 40, 0}},
    {{.policy = EVICT_STREAMING}, {40, 36, 4}},
    {{.policy = EVICT_H2O}, {40, 20, 0}},
    {{.policy = EVICT_H2O_MEAN}, {45, 20, 4}},
    {{.policy = EVICT_H2O, .scope = EVICT_SCOPE_LAYER}, {40, 20, 0}},
    {{.policy = EVICT_H2O_MEAN, .scope = EVICT_SCOPE_LAYER}, {33, 8, 4}},
    {{.policy = EVICT_STREAMING, .scope = EVICT_SCOPE_LAYER}, {40, 36, 4}},
    {{.policy = EVICT_H2O}, {40, 0, 0}},
    {{.policy = EVICT_H2O_HF}, {40, 20, 0}},
    {{.policy = EVICT_H2O_HF}, {36, 1, 2}},
    {{.policy = EVICT_H2O_HF, .scope = EVICT_SCOPE_LAYER}, {36, 8, 2}},
    {{.policy = EVICT_EMA}, {40, 18, 4}},
    {{.policy = EVICT_EMA, .scope = EVICT_SCOPE_LAYER}, {36, 8, 0}},
    {{.policy = EVICT_TOVA, .scope = EVICT_SCOPE_LAYER}, {40, 1, 0}},
    {{.policy = EVICT_TOVA}, {33, 4, 2}},
    {{.policy = EVICT_SNAPKV}, {40, 24, 0}},
    {{.policy = EVICT_SNAPKV, .scope = EVICT_SCOPE_LAYER}, {34, 8, 2}},
    {{.policy = EVICT_SCISSORHANDS}, {40, 8, 0}},
    {{.policy = EVICT_SCISSORHANDS, .scope = EVICT_SCOPE_LAYER}, {36, 4, 2}},
    {{.policy = EVICT_VLEN}, {40, 18, 4}},
    {{.policy = EVICT_VLEN, .scope = EVICT_SCOPE_LAYER}, {36, 4, 0}},
    {{.policy = EVICT_QHITTER}, {40, 18, 4}},
    {{.policy = EVICT_QHITTER, .scope = EVICT_SCOPE_LAYER}, {36, 4, 0}},
    {{.policy = EVICT_STRIDED}, {40, 20, 0}},
    {{.policy = EVICT_STRIDED_H2O}, {40, 10, 2}},
    {{.policy = EVICT_FIXED, .scope = EVICT_SCOPE_LAYER}, {36, 8, 0}},
    {{.policy = EVICT_FIXED_H2O}, {40, 12, 2}},
};
#define N_SCENARIOS ((int)(sizeof scenarios / sizeof *scenarios))

/* The prompt by the best set, the other tokens by `ops` in one span. */
static inline struct row forced_run(const struct ops *ops, const struct model *m,
                                    const struct tokens *t, struct scenario s, int n_prompt)
{
    struct ops best = {.isa = isa_best(), .compute = COMPUTE_F32}; // whose answer all sets have
    struct row r = row_make(m, t, s.evict, s.limits, n_prompt), *rows[] = {&r};
    row_prompt(&best, m, t, &r, n_prompt);
    rows_forced(ops, m, &t, rows, 1, n_prompt, t->n - n_prompt);
    return r;
}

/* One answer on all sets, that of the order rules. Unless f32, q is rounded (in the reference too).
 * Over codes the weights of a page are 16-bit codes then: each is off by at most 2^-16 of the
 * greatest, and values below 1 have a range below 2. Where pairs of bf16 are multiplied, sets
 * differ: an attention weight is rounded by up to 2^-8 of itself. */
static inline void forced_check(const struct model *m, int n_prompt, int n, struct scenario s)
{
    struct tokens t = tokens_make(m, n_prompt + n, 200);
    for (int compute = COMPUTE_BF16; compute <= COMPUTE_F32; compute++) {
        struct ops ref = {.isa = ISA_REF, .compute = compute};
        struct ops exact = {.isa = ISA_EXACT, .compute = compute};
        struct row want = forced_run(&ref, m, &t, s, n_prompt);
        struct row first = forced_run(&exact, m, &t, s, n_prompt);
        double rounding = compute == COMPUTE_BF16 && m->kv >= KV_Q8 ? 0x1p-12 : 1e-5;
        rows_close_to(&first, &want, 1e-5, rounding, "exact");
        FOR_EACH_ISA(isa)
        {
            struct ops ops = {.isa = isa, .compute = compute};
            int pairs = isa >= ISA_AVX512 && compute == COMPUTE_BF16 && m->kv == KV_BF16;
            struct row r = forced_run(&ops, m, &t, s, n_prompt);
            rows_close_to(&r, &want, 1e-5, pairs ? 0x1p-8 : rounding, "forced");
            if (!pairs)
                rows_same(&r, &first, "forced over sets");
            row_free(&r);
        }
        row_free(&first);
        row_free(&want);
    }
    tokens_free(&t);
}

/* Threads, who share a row's splits where there are many of them, and cuts of the span of 8 tokens
 * behind the prompt: in pages of bf16, and with a ring. */
static inline void threads_check(const struct scenario *cases, int n_cases, int n_prompt)
{
    for (int c = 0; c < 2 * n_cases; c++) {
        const struct scenario *one = &cases[c / 2];
        if (sweep(1, 0) && c % 2 != c / 2 % 2) // check: each case in one of the two
            continue;
        struct model m = {4, 2, 48, KV_BF16, c % 2 ? KV_MIXED : KV_BF16};
        struct tokens t = tokens_make(&m, n_prompt + 8, 350);
        const struct tokens *ts[] = {&t};
        struct row want = forced_run(&(struct ops){.isa = isa_best()}, &m, &t, *one, n_prompt);
        for (int threads = 1; threads <= 7; threads += 2)
            for (int step = 1; step <= 3; step++) {
                struct ops ops = {.isa = isa_best(), .pool = pool_of(threads)};
                struct ops best = {.isa = isa_best(), .compute = COMPUTE_F32};
                struct row r = row_make(&m, &t, one->evict, one->limits, n_prompt), *rows[] = {&r};
                row_prompt(&best, &m, &t, &r, n_prompt);
                for (int at = n_prompt; at < t.n; at += step)
                    rows_forced(&ops, &m, ts, rows, 1, at, at + step < t.n ? step : t.n - at);
                rows_same(&r, &want, "threads");
                pool_close(ops.pool);
                row_free(&r);
            }
        row_free(&want);
        tokens_free(&t);
    }
}

#endif
