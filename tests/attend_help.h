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

static inline struct tokens tokens_make(const struct model *m, int n, uint64_t seed)
{
    struct tokens t = {.n = n,
                       .q_stride = m->n_heads * m->head_dim + 5,
                       .kv_stride = m->n_kv_heads * m->head_dim + 3};
    t.q = noise_array(seed, (int64_t)n * t.q_stride, 3);
    t.k = noise_array(seed + 1, (int64_t)n * t.kv_stride, 2);
    t.v = noise_array(seed + 2, (int64_t)n * t.kv_stride, 1);
    return t;
}

static inline void tokens_free(struct tokens *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
}

/* A row under one policy, and all that came out of it. */
struct row {
    struct kv_row kv;
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
    r.ring_bytes = m->kv == KV_MIXED ? KV_RING_PAGES * r.ring.page_bytes : 0;
    r.n_pages = (int)ceil_div(cap, KV_PAGE_SLOTS);
    r.memory = take(r.n_pages * r.layout.page_bytes);
    memset(r.memory, 0xff, (size_t)(r.n_pages * r.layout.page_bytes)); // NaN: no slot, no number
    r.pages = take(r.n_pages * (int64_t)sizeof *r.pages);
    for (int i = 0; i < r.n_pages; i++) // in falling order: nothing may rely on neighbours
        r.pages[i] = r.memory + (r.n_pages - 1 - i) * r.layout.page_bytes;
    r.kv = (struct kv_row){.pages = r.pages, .slots_cap = cap};
    if (r.ring_bytes > 0) {
        r.kv.ring = take(r.ring_bytes);
        memset(r.kv.ring, 0xff, (size_t)r.ring_bytes);
        r.kv.ring_slots = evict_ring_slots(&limits);
        r.kv.slots_cap = cap += EVICT_RING_MAX;
    }
    if (evict.policy != EVICT_FULL || evict.simulate) {
        r.kv.slot_pos = take((int64_t)m->n_kv_heads * cap * 4);
        r.kv.slot_score = take((int64_t)m->n_kv_heads * cap * 4);
    }
    r.kv.dirty = take(ceil_div(r.n_pages, 64) * 8);
    r.out_bytes = (int64_t)t->n * t->q_stride * 4;
    r.out = take(r.out_bytes);
    r.scores = take(m->n_kv_heads * round_up(n_prompt, KV_PAGE_SLOTS) * 4);
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
    free(r->kv.dirty);
    free(r->out);
    free(r->scores);
    free(r->events);
}

/* The prompt in calls of `cut` queries, then what it keeps, by ops of its own. */
static inline void row_prompt_kept_by(const struct ops *ops, const struct ops *keep,
                                      const struct model *m, const struct tokens *t, struct row *r,
                                      int cut)
{
    struct kv_layout work;
    kv_layout_init(&work, m->work, m->n_kv_heads, m->head_dim);
    int n = r->n_prompt;
    uint8_t *pages = take(ceil_div(n, KV_PAGE_SLOTS) * work.page_bytes);
    memset(pages, 0xff, (size_t)(ceil_div(n, KV_PAGE_SLOTS) * work.page_bytes)); // NaN
    void *scratch =
        take(attend_prompt_scratch_bytes(ops, n, m->n_heads, m->n_kv_heads, m->head_dim));
    for (int first = 0; first < n; first += cut) {
        int part = n - first < cut ? n - first : cut;
        ops_run_kv_store(ops, &(struct kv_store_args){.layout = &work,
                                                      .pages = pages,
                                                      .k = t->k + first * t->kv_stride,
                                                      .v = t->v + first * t->kv_stride,
                                                      .k_stride = t->kv_stride,
                                                      .v_stride = t->kv_stride,
                                                      .first = first,
                                                      .n = part});
        struct prompt_span span = {.n_prompt = n,
                                   .first = first,
                                   .n = part,
                                   .q = t->q + first * t->q_stride,
                                   .out = r->out + first * t->q_stride,
                                   .pages = pages,
                                   .scores = r->scores};
        ops_run_attend_prompt(ops, &(struct attend_prompt_args){.layout = &work,
                                                                .spans = &span,
                                                                .n_spans = 1,
                                                                .n_heads = m->n_heads,
                                                                .scale = 0.2f,
                                                                .q_stride = t->q_stride,
                                                                .out_stride = t->q_stride,
                                                                .scratch = scratch});
    }
    free(scratch);
    scratch = take(prompt_keep_scratch_bytes(keep, n, m->n_kv_heads, m->head_dim));
    ops_run_prompt_keep(keep, &(struct prompt_keep_args){
                                  .from = &work,
                                  .to = &r->layout,
                                  .ring = r->kv.ring ? &r->ring : NULL,
                                  .pages = pages,
                                  .scores = evict_policy_scores(r->evict.policy) ? r->scores : NULL,
                                  .evict = &r->evict,
                                  .row = r->limits,
                                  .kv = &r->kv,
                                  .n_prompt = n,
                                  .scratch = scratch});
    free(scratch);
    free(pages);
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
    int slots_max = 0;
    for (int i = 0; i < n_rows; i++) {
        struct row *r = rows[i];
        slots_max = r->kv.slots_cap > slots_max ? r->kv.slots_cap : slots_max;
        spans[i] = (struct forced_span){
            .kv = &r->kv,
            .evict = r->limits,
            .n = n,
            .pos = first,
            .q = t[i]->q + first * t[i]->q_stride,
            .k = t[i]->k + first * t[i]->kv_stride,
            .v = t[i]->v + first * t[i]->kv_stride,
            .out = r->out + first * t[i]->q_stride,
            .events = r->events + (int64_t)first * m->n_kv_heads,
        };
    }
    void *scratch =
        take(attend_forced_scratch_bytes(ops, slots_max, m->n_heads, m->n_kv_heads, m->head_dim,
                                         evict_policy_scores(rows[0]->evict.policy)));
    ops_run_attend_forced(
        ops, &(struct attend_forced_args){.layout = &rows[0]->layout,
                                          .ring = rows[0]->kv.ring ? &rows[0]->ring : NULL,
                                          .evict = &rows[0]->evict,
                                          .spans = spans,
                                          .n_spans = n_rows,
                                          .n_heads = m->n_heads,
                                          .scale = 0.2f,
                                          .q_stride = t[0]->q_stride,
                                          .k_stride = t[0]->kv_stride,
                                          .v_stride = t[0]->kv_stride,
                                          .out_stride = t[0]->q_stride,
                                          .scratch = scratch});
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
    assert_same_bits(a->scores, b->scores, n_heads * round_up(a->n_prompt, KV_PAGE_SLOTS) * 4,
                     what);
    if (!a->kv.slot_pos)
        return;
    assert_same_bits(a->kv.slot_pos, b->kv.slot_pos, slot_bytes, what);
    assert_same_bits(a->kv.slot_score, b->kv.slot_score, slot_bytes, what);
}

/* Outputs within out_tolerance; scores within ten times `tolerance`; the rest the same. */
static inline void rows_close_to(const struct row *a, const struct row *b, double tolerance,
                                 double out_tolerance, const char *what)
{
    int n_heads = a->layout.n_kv_heads;
    int64_t n = (int64_t)n_heads * a->kv.slots_cap;
    assert_close(a->out, b->out, a->out_bytes / 4, out_tolerance, what);
    assert_close(a->scores, b->scores, n_heads * round_up(a->n_prompt, KV_PAGE_SLOTS),
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
    assert_close(a->kv.slot_score, b->kv.slot_score, n, tolerance * 10, what);
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

#endif
