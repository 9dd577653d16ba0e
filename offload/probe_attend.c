/* offload/probe_attend.c - of probe.h: ops of a layer beside matmuls: attention of decoding rows
 * and of prompts, norms and other ops by row.
 *
 * Owns: KV pages in one contiguous range.
 * Note: calls use the rows in turn, so that the pages of each row are read from RAM; with little
 * memory there is one row, read from caches. */
#include "offload/probe_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/arena.h"

#define HEADS        32 // of llama-3-8b
#define KV_HEADS     8
#define HEAD_DIM     128
#define HEAD_DIM_MAX 1024
#define SLOTS        512 // per row
#define ROWS         32  // per call, at most
#define ROWS_ALL     512
#define ATTEND_S     0.05
#define PROMPT       512 // tokens
#define PROMPT_TILE  256
#define PROMPT_HEADS 8
#define PROMPT_KV    2
#define TOKENS       128 // of the row ops
#define DIM          1024
#define FFN          4096

static float number(int64_t i)
{
    return (float)(mix64((uint64_t)i) >> 40) * 0x1p-24f - 0.5f;
}

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = number(i);
}

/* Fills the first page with 32 tokens and copies it to the other n - 1. */
static void fill_pages(const struct kv_layout *l, uint8_t *pages, int64_t n)
{
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    for (int slot = 0; slot < PAGE_SLOTS && n > 0; slot++)
        for (int head = 0; head < l->n_kv_heads; head++) {
            for (int i = 0; i < l->head_dim; i++) {
                k[i] = number(slot * 7919 + head * 131 + i);
                v[i] = number(slot * 104729 + head * 17 + i);
            }
            kv_put(l, pages, slot, head, k, v);
        }
    for (int64_t i = 1; i < n; i++)
        memcpy(pages + i * l->page_bytes, pages, (size_t)l->page_bytes);
}

/* ---- decoding rows ---- */

struct rows_bed {
    const struct ops *ops;
    const struct probe_attend *shape;
    struct kv_layout layout, ring;
    int n_rows, each, pages_row; // rows, rows per call, pages per row
    int ring_slots;              // slots of a row in its ring; the others are in pages
    struct evict_row limits;
    uint8_t *pages, *rings; // [n_rows][pages_row] and [n_rows][KV_RING_PAGES] pages
    int32_t *page_ids;      // [n_rows][pages_row]
    uint64_t *dirty;        // [n_rows][dirty_stride]
    int dirty_stride;
    int32_t *slot_pos;         // [n_rows, n_kv_heads, slots] if rows evict
    float *slot_score;         // the same
    int32_t *slot_rank;        // the same, if positions are ranks
    float *angles;             // [slots + 1, rope_dim / 2] if positions are ranks; cosine = sine
    float *slot_trait;         // as slot_pos, if the policy has a trait
    struct forced_span *spans; // [each]
    float *q, *out;            // [each, n_heads, head_dim]
    float *k, *v;              // [each, n_kv_heads, head_dim]
    void *scratch;
};

static int evicts(const struct rows_bed *b)
{
    return b->shape->evict.policy != EVICT_FULL;
}

static int64_t slot_numbers(const struct rows_bed *b)
{
    return evicts(b) ? (int64_t)b->shape->n_kv_heads * b->shape->slots : 0;
}

static int64_t angle_numbers(const struct rows_bed *b)
{
    const int by_rank = b->shape->evict.positions == EVICT_POSITIONS_SLOT;
    return by_rank ? (int64_t)(b->shape->slots + 1) * (b->shape->rope_dim / 2) : 0;
}

/* Numbers of slot_trait per row. */
static int64_t trait_numbers(const struct rows_bed *b)
{
    return evict_policy_trait(b->shape->evict.policy) ? slot_numbers(b) : 0;
}

static void rows_carve(struct rows_bed *b, struct arena *a)
{
    const struct probe_attend *p = b->shape;
    int64_t heads = (int64_t)b->each * p->n_heads * p->head_dim,
            kv = (int64_t)b->each * p->n_kv_heads * p->head_dim;
    int64_t rings = b->ring_slots > 0 ? b->n_rows * KV_RING_PAGES * b->ring.page_bytes : 0;
    b->pages = arena_take(a, (int64_t)b->n_rows * b->pages_row * b->layout.page_bytes, 4096);
    b->rings = arena_take(a, rings, 4096);
    b->page_ids = ARENA_ARRAY(a, int32_t, b->n_rows * b->pages_row);
    b->dirty = ARENA_ARRAY(a, uint64_t, b->n_rows * b->dirty_stride);
    b->slot_pos = ARENA_ARRAY(a, int32_t, b->n_rows * slot_numbers(b));
    b->slot_score = ARENA_ARRAY(a, float, b->n_rows *slot_numbers(b));
    b->slot_rank = ARENA_ARRAY(a, int32_t, angle_numbers(b) > 0 ? b->n_rows * slot_numbers(b) : 0);
    b->angles = ARENA_ARRAY(a, float, angle_numbers(b));
    b->slot_trait = ARENA_ARRAY(a, float, b->n_rows *trait_numbers(b));
    b->spans = ARENA_ARRAY(a, struct forced_span, b->each);
    b->q = ARENA_ARRAY(a, float, heads);
    b->out = ARENA_ARRAY(a, float, heads);
    b->k = ARENA_ARRAY(a, float, kv);
    b->v = ARENA_ARRAY(a, float, kv);
    b->scratch =
        arena_take(a,
                   attend_forced_scratch_bytes(b->ops, b->each, p->slots, p->n_heads, p->n_kv_heads,
                                               p->head_dim, evict_decode_scores(p->evict.policy)),
                   64);
}

/* Without eviction a row has a free slot for its new token, as 31 of 32 tokens have; else none. */
static void rows_fill(struct rows_bed *b)
{
    const struct probe_attend *p = b->shape;
    fill_pages(&b->layout, b->pages, (int64_t)b->n_rows * b->pages_row);
    if (b->ring_slots > 0)
        fill_pages(&b->ring, b->rings, (int64_t)b->n_rows * KV_RING_PAGES);
    fill(b->q, (int64_t)b->each * p->n_heads * p->head_dim);
    fill(b->k, (int64_t)b->each * p->n_kv_heads * p->head_dim);
    fill(b->v, (int64_t)b->each * p->n_kv_heads * p->head_dim);
    for (int i = 0; i < b->n_rows * b->pages_row; i++)
        b->page_ids[i] = i;
    for (int64_t i = 0; i < b->n_rows * slot_numbers(b); i++) {
        b->slot_pos[i] = (int32_t)(i % p->slots);
        b->slot_score[i] = number(i) + 0.5f;
        if (angle_numbers(b) > 0)
            b->slot_rank[i] = b->slot_pos[i];
    }
    for (int64_t i = 0; i < angle_numbers(b); i++)
        b->angles[i] = 0.70710678f;
    for (int64_t i = 0; i < b->n_rows * trait_numbers(b); i++)
        b->slot_trait[i] = number(i) + 0.5f;
    for (int i = 0; i < b->each; i++)
        b->spans[i] =
            (struct forced_span){.row = i,
                                 .n_slots = p->slots - b->ring_slots - (evicts(b) ? 0 : 1),
                                 .n = 1,
                                 .pos = evicts(b) ? p->slots : p->slots - 1,
                                 .token = i,
                                 .limits = b->limits};
}

static void rows_turn(void *ctx, int i)
{
    struct rows_bed *b = ctx;
    const struct probe_attend *p = b->shape;
    int64_t first = (int64_t)(i % (b->n_rows / b->each)) * b->each;
    const int by_rank = angle_numbers(b) > 0;
    int64_t ring_bytes = KV_RING_PAGES * b->ring.page_bytes;
    int q_stride = p->n_heads * p->head_dim, kv_stride = p->n_kv_heads * p->head_dim;
    for (int row = 0; row < b->each && evicts(b); row++)
        b->spans[row].pos++; // else all new tokens would have the newest position, a protected one
    struct attend_forced_args args = {
        .kv = {.layout = b->layout,
               .ring = b->ring,
               .pages = b->pages,
               .page_ids = b->page_ids + first * b->pages_row,
               .slot_pos = evicts(b) ? b->slot_pos + first * slot_numbers(b) : NULL,
               .slot_score = evicts(b) ? b->slot_score + first * slot_numbers(b) : NULL,
               .slot_rank = by_rank ? b->slot_rank + first * slot_numbers(b) : NULL,
               .slot_trait = trait_numbers(b) ? b->slot_trait + first * slot_numbers(b) : NULL,
               .dirty = b->dirty + first * b->dirty_stride,
               .rings = b->ring_slots > 0 ? b->rings + first * ring_bytes : NULL,
               .ring_stride = ring_bytes,
               .slot_stride = slot_numbers(b),
               .page_ids_stride = b->pages_row,
               .dirty_stride = b->dirty_stride,
               .slots_cap = p->slots},
        .rope = {.cos = by_rank ? b->angles : NULL,
                 .sin = by_rank ? b->angles : NULL,
                 .rope_dim = by_rank ? p->rope_dim : 0,
                 .scale = 1},
        .evict = {.policy = p->evict.policy, .scope = p->evict.scope},
        .spans = b->spans,
        .n_spans = b->each,
        .n_heads = p->n_heads,
        .n_max = 1,
        .slots_max = p->slots - b->ring_slots,
        .scale = 0.088f,
        .q = b->q,
        .k = b->k,
        .v = p->keys_only ? b->k : b->v,
        .out = b->out,
        .q_stride = q_stride,
        .k_stride = kv_stride,
        .v_stride = kv_stride,
        .out_stride = q_stride,
        .scratch = b->scratch};
    ops_run_attend_forced(b->ops, &args);
}

/* Bytes of K and V of one row, without the padding of pages. */
static double row_bytes(const struct rows_bed *b)
{
    const double parts = b->shape->keys_only ? 1 : 2, heads = b->shape->n_kv_heads;
    return parts * heads / PAGE_SLOTS *
           ((b->shape->slots - b->ring_slots) * (double)b->layout.panel_bytes +
            b->ring_slots * (double)b->ring.panel_bytes);
}

enum err probe_attend_rows(const struct probe_config *c, const struct probe_attend *p,
                           struct rate *rate, double *row_kv_bytes)
{
    const int slots = p->slots;
    struct rows_bed b = {.ops = c->ops,
                         .shape = p,
                         .pages_row = slots / PAGE_SLOTS,
                         .dirty_stride = (int)ceil_div(slots / PAGE_SLOTS, 64),
                         .limits = {.budget = INT32_MAX, .recent = slots / 2}};
    struct arena a;
    if (p->head_dim > HEAD_DIM_MAX)
        return fail(ERR_FIT, "probe: attention of heads of %d numbers cannot be measured",
                    p->head_dim);
    if (evicts(&b))
        b.limits.budget = slots;
    kv_layout_init(&b.layout, kv_page_format(p->format), p->n_kv_heads, p->head_dim);
    kv_layout_init(&b.ring, KV_Q8, p->n_kv_heads, p->head_dim);
    if (p->keys_only) {
        kv_layout_keys_only(&b.layout);
        kv_layout_keys_only(&b.ring);
    }
    b.ring_slots = p->format == KV_MIXED ? evict_ring_slots(&b.limits) : 0;
    int64_t bytes = b.pages_row * b.layout.page_bytes +
                    slot_numbers(&b) * (8 + 4 * (angle_numbers(&b) > 0)) + trait_numbers(&b) * 4 +
                    (b.ring_slots > 0 ? KV_RING_PAGES * b.ring.page_bytes : 0);
    b.n_rows = (int)min_i64(max_i64((probe_ram_bytes(c) - PROBE_BESIDE_BYTES) / bytes, 1),
                            max_i64(ROWS_ALL, p->rows));
    b.each = (int)min_i64(b.n_rows, p->rows);
    arena_init(&a);
    rows_carve(&b, &a);
    TRY(probe_arena_open(&a, c, a.used));
    arena_populate(a.base, a.capacity, c->ops->pool);
    rows_carve(&b, &a);
    rows_fill(&b);
    *rate = probe_loop(&(struct probe_loop){.turn = rows_turn,
                                            .ctx = &b,
                                            .amount = b.each,
                                            .seconds = p->seconds,
                                            .least = b.n_rows / b.each});
    *row_kv_bytes = row_bytes(&b);
    arena_close(&a);
    return OK;
}

static enum err measure_rows(struct machine *m, const struct probe_config *c, enum machine_rate id,
                             enum kv_format format)
{
    const struct probe_attend p = {.format = format,
                                   .n_heads = HEADS,
                                   .n_kv_heads = KV_HEADS,
                                   .head_dim = HEAD_DIM,
                                   .slots = SLOTS,
                                   .rows = ROWS,
                                   .seconds = probe_seconds(c, ATTEND_S)};
    struct rate rows;
    double bytes;
    TRY(probe_attend_rows(c, &p, &rows, &bytes));
    m->rates[id] = (struct rate){rows.value * bytes, rows.spread * bytes, rows.n};
    probe_say(c, id, &m->rates[id]);
    return OK;
}

/* ---- a prompt ---- */

struct prompt_bed {
    const struct ops *ops;
    struct kv_layout layout;
    uint8_t *pages; // [PROMPT / PAGE_SLOTS]
    float *q, *out; // [PROMPT_TILE, PROMPT_HEADS, HEAD_DIM]
    void *scratch;
};

static void prompt_carve(struct prompt_bed *b, struct arena *a)
{
    int64_t heads = (int64_t)PROMPT_TILE * PROMPT_HEADS * HEAD_DIM;
    b->pages = arena_take(a, PROMPT / PAGE_SLOTS * b->layout.page_bytes, 4096);
    b->q = ARENA_ARRAY(a, float, heads);
    b->out = ARENA_ARRAY(a, float, heads);
    b->scratch = arena_take(
        a, attend_prompt_scratch_bytes(b->ops, PROMPT, PROMPT_HEADS, PROMPT_KV, HEAD_DIM), 64);
}

/* A whole prompt, tile by tile. */
static void prompt_turn(void *ctx, int i)
{
    struct prompt_bed *b = ctx;
    (void)i;
    for (int first = 0; first < PROMPT; first += PROMPT_TILE) {
        struct prompt_span span = {.n_prompt = PROMPT, .first = first, .n = PROMPT_TILE};
        struct attend_prompt_args args = {.layout = b->layout,
                                          .q = b->q,
                                          .out = b->out,
                                          .pages = b->pages,
                                          .spans = &span,
                                          .n_spans = 1,
                                          .n_heads = PROMPT_HEADS,
                                          .n_max = PROMPT_TILE,
                                          .end_max = first + PROMPT_TILE,
                                          .scale = 0.088f,
                                          .q_stride = PROMPT_HEADS * HEAD_DIM,
                                          .out_stride = PROMPT_HEADS * HEAD_DIM,
                                          .scratch = b->scratch};
        ops_run_attend_prompt(b->ops, &args);
    }
}

static enum err measure_prompt(struct machine *m, const struct probe_config *c)
{
    struct prompt_bed b = {.ops = c->ops};
    struct arena a;
    kv_layout_init(&b.layout, c->ops->compute == COMPUTE_F32 ? KV_F32 : KV_BF16, PROMPT_KV,
                   HEAD_DIM);
    arena_init(&a);
    prompt_carve(&b, &a);
    TRY(probe_arena_open(&a, c, a.used));
    prompt_carve(&b, &a);
    fill_pages(&b.layout, b.pages, PROMPT / PAGE_SLOTS);
    fill(b.q, (int64_t)PROMPT_TILE * PROMPT_HEADS * HEAD_DIM);
    double pairs = (double)PROMPT * (PROMPT + 1) / 2;
    m->prompt_flops = probe_loop(&(struct probe_loop){.turn = prompt_turn,
                                                      .ctx = &b,
                                                      .amount = 4 * pairs * PROMPT_HEADS * HEAD_DIM,
                                                      .seconds = probe_seconds(c, ATTEND_S)});
    arena_close(&a);
    probe_say(c, RATE_prompt_flops, &m->prompt_flops);
    return OK;
}

/* ---- norms, rope, activations ---- */

struct norm_bed {
    const struct ops *ops;
    float *x, *y;       // [TOKENS, DIM]
    float *weight;      // [DIM] ones
    float *angles;      // [TOKENS, HEAD_DIM / 2] cosine and sine of the same angle
    float *gate, *up;   // [TOKENS, FFN]
    int32_t *positions; // [TOKENS]
};

static void norm_carve(struct norm_bed *b, struct arena *a)
{
    b->x = ARENA_ARRAY(a, float, TOKENS *DIM);
    b->y = ARENA_ARRAY(a, float, TOKENS *DIM);
    b->weight = ARENA_ARRAY(a, float, DIM);
    b->angles = ARENA_ARRAY(a, float, TOKENS *HEAD_DIM / 2);
    b->gate = ARENA_ARRAY(a, float, TOKENS *FFN);
    b->up = ARENA_ARRAY(a, float, TOKENS *FFN);
    b->positions = ARENA_ARRAY(a, int32_t, TOKENS);
}

/* Inputs that the ops leave as they are, however often they run: rotations keep lengths, and
 * silu(g) x (1 + exp(-g)) = g. */
static void norm_fill(struct norm_bed *b)
{
    fill(b->x, TOKENS * DIM);
    fill(b->gate, TOKENS * FFN);
    for (int i = 0; i < DIM; i++)
        b->weight[i] = 1;
    for (int i = 0; i < TOKENS * HEAD_DIM / 2; i++)
        b->angles[i] = 0.70710678f;
    for (int i = 0; i < TOKENS * FFN; i++) {
        b->gate[i] -= 1;
        b->up[i] = 1 + expf(-b->gate[i]);
    }
    for (int i = 0; i < TOKENS; i++)
        b->positions[i] = i;
}

static void norm_turn(void *ctx, int i)
{
    struct norm_bed *b = ctx;
    struct norm_args norm = {.x = b->x,
                             .y = b->y,
                             .weight = b->weight,
                             .m = TOKENS,
                             .dim = DIM,
                             .x_stride = DIM,
                             .y_stride = DIM,
                             .kind = NORM_RMS,
                             .eps = 1e-5f};
    struct rope_args rope = {.x = b->x,
                             .cos = b->angles,
                             .sin = b->angles,
                             .pos = b->positions,
                             .m = TOKENS,
                             .n_heads = DIM / HEAD_DIM,
                             .head_dim = HEAD_DIM,
                             .rope_dim = HEAD_DIM,
                             .x_stride = DIM};
    struct gate_mul_args silu = {b->gate, b->up, TOKENS, FFN, FFN, FFN, ACT_SILU, 0, {0}};
    (void)i;
    ops_run_norm(b->ops, &norm);
    ops_run_rope(b->ops, &rope);
    ops_run_gate_mul(b->ops, &silu);
}

static enum err measure_norms(struct machine *m, const struct probe_config *c)
{
    struct norm_bed b = {.ops = c->ops};
    struct arena a;
    arena_init(&a);
    norm_carve(&b, &a);
    TRY(probe_arena_open(&a, c, a.used));
    norm_carve(&b, &a);
    norm_fill(&b);
    m->rows_read = probe_loop(&(struct probe_loop){.turn = norm_turn,
                                                   .ctx = &b,
                                                   .amount = 4.0 * TOKENS * (DIM + DIM + 2 * FFN),
                                                   .seconds = probe_seconds(c, ATTEND_S)});
    arena_close(&a);
    probe_say(c, RATE_rows_read, &m->rows_read);
    return OK;
}

enum err probe_attention(struct machine *m, const struct probe_config *c)
{
    static const enum kv_format formats[] = {KV_F32, KV_BF16, KV_Q8, KV_Q4, KV_MIXED};
    for (int i = 0; i < (int)(sizeof formats / sizeof *formats); i++)
        TRY(measure_rows(m, c, (enum machine_rate)(RATE_attend_f32 + i), formats[i]));
    TRY(measure_prompt(m, c));
    return measure_norms(m, c);
}
