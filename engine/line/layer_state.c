/* engine/line/layer_state.c - layers with a row state instead of attention: enum state_kind.
 *
 * Owns: the order of the ops, and what these are told of the rows. Note: a row's state takes pages
 * of its own (struct kv_kind), one after the other from page 0 of the row on, and every step that
 * has tokens of the row reads and writes all of them; so states move, are checked and are computed
 * again as KV is. Prompts that share a prefix with the first prompt of the batch begin with a copy
 * of its state. */
#include "engine/line/layer_impl.h"

#include <math.h>

#define UNIT_EPS 1e-6f // of the norms of q and k

/* What the ops do at once in a tile: spans of different rows. A tile has one run, and one more for
 * each prefix of the first prompt that ends in the tile and that other prompts share: their states
 * begin as the first prompt's is there. */
struct run {
    int from;   // of the first prompt: the token that the next run begins at; -1: no more runs
    int shared; // prompts that share so many tokens get the first prompt's state; 0: none
    int n_spans;
};

/* The first prompt's cut of a tile, if others share with this prompt; else NULL. */
static const struct cut *shared_cut(const struct batch *b, const struct tile *t,
                                    const struct cut *cuts)
{
    for (int i = 0; i < t->n_cuts && b->n_shared > 0; i++)
        if (cuts[i].span == &b->spans[b->first_prompt])
            return &cuts[i];
    return NULL;
}

static struct run run_begin(const struct batch *b, const struct tile *t, const struct cut *cuts)
{
    const struct cut *first = shared_cut(b, t, cuts);
    return (struct run){.from = first ? first->offset : 0};
}

/* The end of the next shared prefix behind `from`, up to `end`; 0: there is none. */
static int prefix_next(const struct batch *b, int from, int end)
{
    int next = 0;
    for (int i = b->first_prompt + 1; i < b->n_spans; i++) {
        const struct span *s = &b->spans[i];
        if (s->kind == SPAN_PROMPT && s->pos > from && s->pos <= end && (!next || s->pos < next))
            next = s->pos;
    }
    return next;
}

/* The next run of a tile; 0: there is none. Writes its spans, unless NULL. */
static int run_next(const struct batch *b, const struct tile *t, const struct cut *cuts,
                    struct run *r, struct state_span *spans)
{
    const struct cut *first = shared_cut(b, t, cuts);
    const int from = r->from;
    int at = 0, n = 0, last = -1;
    if (from < 0)
        return 0;
    r->shared = first ? prefix_next(b, from, first->offset + first->n) : 0;
    r->from = r->shared > 0 ? r->shared : -1;
    for (int i = 0; i < t->n_cuts; at += cuts[i].n, i++) {
        const struct cut *c = &cuts[i];
        const int row = c->span->row, begin = c == first ? from - c->offset : 0;
        const int end = c == first && r->shared > 0 ? r->shared - c->offset : c->n;
        if (begin == end || (r->shared > 0 && c != first))
            continue;
        const int goes_on = row == last; // a prompt, and known tokens after it
        n += !goes_on;
        last = row;
        if (spans && goes_on)
            spans[n - 1].n += end;
        else if (spans)
            spans[n - 1] = (struct state_span){.row = row,
                                               .token = at + begin,
                                               .n = end - begin,
                                               .fresh = c->span->pos + c->offset + begin == 0};
    }
    r->n_spans = n;
    return 1;
}

/* After a run: the first prompt's state becomes that of the prompts that share its prefix. */
static void share_state(struct layer_work *w, const struct batch *b, const struct run *r,
                        const struct state_rows *rows)
{
    for (int i = b->first_prompt + 1; i < b->n_spans && r->shared > 0; i++) {
        const struct span *s = &b->spans[i];
        if (s->kind == SPAN_PROMPT && s->pos == r->shared)
            ops_copy(&w->ops, rows->base + s->row * rows->stride,
                     rows->base + b->spans[b->first_prompt].row * rows->stride, rows->stride);
    }
}

/* Marks all pages of the states that the batch changes as written. */
static void mark_states(struct layer_work *w, const struct batch *b)
{
    struct kv_rows *rows = &w->rows;
    const int64_t n_bytes = (int64_t)b->n_rows * rows->dirty_stride * 8;
    uint64_t *dirty = tables_take(w->tables, n_bytes);
    const int own = plan_own_pages(w->plan, w->layer);
    for (int r = 0; r < b->n_rows; r++)
        for (int i = 0; i < rows->dirty_stride; i++) {
            const int left = b->rows[r].request && b->rows[r].n_take > 0 ? own - 64 * i : 0;
            const uint64_t bits = left <= 0 ? 0 : left >= 64 ? ~0ull : (1ull << left) - 1;
            dirty[(int64_t)r * rows->dirty_stride + i] = bits;
        }
    rows->dirty = tables_seen(w->tables, dirty);
}

static void convolve(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     const struct state_rows *rows)
{
    const struct shape *s = w->shape;
    const struct conv_args args = {.x = w->state_qkv,
                                   .weight = model_vector(l, ROLE_STATE_CONV, weights),
                                   .bias = model_vector(l, ROLE_STATE_CONV_B, weights),
                                   .x_stride = shape_state_qkv(s),
                                   .n = shape_state_qkv(s),
                                   .taps = s->state_taps,
                                   .act = s->state == STATE_CONV ? ACT_NONE : ACT_SILU,
                                   .rows = *rows,
                                   .offset = shape_state_inputs_at(s)};
    ops_run_conv(&w->ops, &args);
}

static void recur(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                  const struct state_rows *rows)
{
    const struct shape *s = w->shape;
    const int delta = s->state == STATE_DELTA;
    int q, k, v;
    shape_state_at(s, &q, &k, &v);
    const struct recur_args args = {.q = w->state_qkv + q,
                                    .k = w->state_qkv + k,
                                    .v = w->state_qkv + v,
                                    .dt = w->state_dt,
                                    .beta = delta ? w->state_beta : NULL,
                                    .a = model_vector(l, ROLE_STATE_A, weights),
                                    .dt_bias = model_vector(l, ROLE_STATE_DT_B, weights),
                                    .skip = model_vector(l, ROLE_STATE_SKIP, weights),
                                    .out = w->state_out,
                                    .qkv_stride = shape_state_qkv(s),
                                    .dt_stride = s->state_v_heads,
                                    .beta_stride = s->state_v_heads,
                                    .out_stride = shape_state_v(s),
                                    .k_heads = s->state_k_heads,
                                    .v_heads = s->state_v_heads,
                                    .k_dim = s->state_k_dim,
                                    .v_dim = s->state_v_dim,
                                    .tiled = s->state_tiled,
                                    .corrects = delta,
                                    .unit_eps = delta ? UNIT_EPS : 0,
                                    .q_scale = delta ? 1.0f / sqrtf((float)s->state_k_dim) : 1,
                                    .rows = *rows};
    ops_run_recur(&w->ops, &args);
}

/* x = act(x) * y, of n tokens. */
static void multiply(struct layer_work *w, float *x, const float *y, int act, int n)
{
    const int v = shape_state_v(w->shape);
    const struct gate_mul_args args = {
        .gate = x, .up = y, .m = n, .n = v, .gate_stride = v, .up_stride = v, .act = act};
    ops_run_gate_mul(&w->ops, &args);
}

/* z = norm of each head's output, times SiLU of z; Mamba-2 normalises the product, if at all, the
 * heads of a k head together. */
static void gate_state(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                       int n)
{
    const struct shape *s = w->shape;
    const int v = shape_state_v(s);
    struct norm_args norm = {.x = w->state_out,
                             .y = w->state_out,
                             .weight = model_vector(l, ROLE_STATE_NORM_W, weights),
                             .m = n * s->state_v_heads,
                             .dim = s->state_v_dim,
                             .x_stride = s->state_v_dim,
                             .y_stride = s->state_v_dim,
                             .kind = NORM_RMS,
                             .eps = s->norm_eps};
    if (s->state == STATE_DELTA) {
        ops_run_norm(&w->ops, &norm);
        multiply(w, w->state_z, w->state_out, ACT_SILU, n);
        return;
    }
    multiply(w, w->state_z, w->state_out, ACT_SILU, n);
    if (!norm.weight)
        return;
    norm.m = n;
    norm.dim = v / s->state_k_heads;
    norm.x_stride = norm.y_stride = v;
    for (int group = 0; group < s->state_k_heads; group++, norm.weight += norm.dim) {
        norm.x = norm.y = w->state_z + (int64_t)group * norm.dim;
        ops_run_norm(&w->ops, &norm);
    }
}

/* The convolution of a tile, and what follows of it, run by run. */
static void advance(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                    const struct batch *b, const struct tile *t, struct state_rows *rows)
{
    struct run r = run_begin(b, t, w->cuts);
    for (; run_next(b, t, w->cuts, &r, NULL); rows->spans += r.n_spans) {
        rows->n_spans = r.n_spans;
        if (r.n_spans > 0)
            convolve(w, l, weights, rows);
        if (r.n_spans > 0 && w->shape->state != STATE_CONV)
            recur(w, l, weights, rows);
        share_state(w, b, &r, rows);
    }
}

static void state_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                       const struct batch *b, const struct tile *t, struct state_rows *rows,
                       const float *x)
{
    const int n = t->n;
    const int stride = shape_state_qkv(w->shape);
    float *qkv = w->state_qkv;
    int q, k, v;
    shape_state_at(w->shape, &q, &k, &v);
    const struct projection in[] = {{ROLE_STATE_Q, N_ROLES, qkv + q, ACT_NONE, 0, stride},
                                    {ROLE_STATE_K, N_ROLES, qkv + k, ACT_NONE, 0, stride},
                                    {ROLE_STATE_V, N_ROLES, qkv + v, ACT_NONE, 0, stride}};
    const struct projection gates[] = {{ROLE_STATE_Z, N_ROLES, w->state_z, ACT_NONE, 0, 0},
                                       {ROLE_STATE_DT, N_ROLES, w->state_dt, ACT_NONE, 0, 0},
                                       {ROLE_STATE_BETA, N_ROLES, w->state_beta, ACT_NONE, 0, 0}};
    const float *normed = layer_branch_input(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, n);
    layer_project(w, l, weights, in, 3, normed, n);
    layer_project(w, l, weights, gates, w->shape->state == STATE_DELTA ? 3 : 2, normed, n);
    if (w->shape->state_dt_scale > 0)
        layer_mix(w, w->state_dt, NULL, w->shape->state_dt_scale, 0, w->shape->state_v_heads, n);
    advance(w, l, weights, b, t, rows);
    gate_state(w, l, weights, n);
}

/* STATE_CONV: z = z times the convolution of v k. */
static void conv_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                      const struct batch *b, const struct tile *t, struct state_rows *rows,
                      const float *x)
{
    const int n = t->n;
    const struct projection in[] = {{ROLE_STATE_V, N_ROLES, w->state_qkv, ACT_NONE, 0, 0},
                                    {ROLE_STATE_K, N_ROLES, w->state_out, ACT_NONE, 0, 0},
                                    {ROLE_STATE_Z, N_ROLES, w->state_z, ACT_NONE, 0, 0}};
    const float *normed = layer_branch_input(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, n);
    layer_project(w, l, weights, in, 3, normed, n);
    multiply(w, w->state_qkv, w->state_out, ACT_NONE, n);
    advance(w, l, weights, b, t, rows);
    multiply(w, w->state_z, w->state_qkv, ACT_NONE, n);
}

void layer_state(struct layer_work *w, const struct model_layer *l, const struct batch *b,
                 const uint8_t *weights, const struct layer_kv *kv, float *hidden)
{
    const int64_t page = w->rows.layout.page_bytes;
    struct tile t = {0};
    int64_t n_spans = 0;
    while (tile_next(w, b, &t, w->cuts)) {
        struct run r = run_begin(b, &t, w->cuts);
        while (run_next(b, &t, w->cuts, &r, NULL))
            n_spans += r.n_spans;
    }
    struct state_span *spans = tables_take(w->tables, n_spans * (int64_t)sizeof *spans),
                      *at = spans;
    t = (struct tile){0};
    while (tile_next(w, b, &t, w->cuts)) {
        struct run r = run_begin(b, &t, w->cuts);
        for (; run_next(b, &t, w->cuts, &r, at); at += r.n_spans)
            ;
    }
    mark_states(w, b);
    tables_send(w->tables, &w->ops);
    struct state_rows rows = {.base = kv->pages,
                              .stride = plan_own_pages(w->plan, w->layer) * page,
                              .spans = tables_seen(w->tables, spans)};
    t = (struct tile){0};
    while (tile_next(w, b, &t, w->cuts)) {
        float *x = hidden + (int64_t)t.first * w->shape->dim;
        if (w->shape->state == STATE_CONV)
            conv_tile(w, l, weights, b, &t, &rows, x);
        else
            state_tile(w, l, weights, b, &t, &rows, x);
        tile_after(w, l, weights, &t, x);
    }
}
