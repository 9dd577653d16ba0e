/* offload/probe_layer.c - of probe_model.h: a model's decoder layer without its matmuls.
 *
 * Owns: norms, rotations and activations at the model's widths, and attention of its rows. Refuses:
 * matmuls (probe_model.c), attention of prompts (probe_prompt.c).
 * Note: few tokens spend most of the time on starting ops on all threads, which no rate by bytes
 * includes. */
#include "offload/probe_impl.h"
#include "offload/probe_model.h"

#include <math.h>

#include "kernels/base/arena.h"

#define CELL_S     0.01
#define ATTEND_S   0.03
#define SLOTS_FEW  PAGE_SLOTS
#define SLOTS_MANY 512
#define ROWS_KINDS 4     // matmul_rows[] that are measured: the rest is scaled up
#define LEAST_S    1e-12 // least difference of two measurements

/* ---- norms, rotations, activations ---- */

struct layer_bed {
    const struct ops *ops;
    const struct probe_layer *l;
    int m, most;        // tokens; tokens that there is room for
    float *x, *y;       // [most, dim]
    float *weight;      // [dim]
    float *q, *k;       // [most, heads, head_dim], [most, KV heads, head_dim]
    float *angles;      // [head_dim] cosine and sine of the same angle
    float *gate, *up;   // [most, ffn_dim]
    int32_t *positions; // [most]
};

static void layer_carve(struct layer_bed *b, struct arena *a)
{
    const struct probe_layer *l = b->l;
    const int64_t most = b->most;
    b->x = ARENA_ARRAY(a, float, most * l->dim);
    b->y = ARENA_ARRAY(a, float, most * l->dim);
    b->weight = ARENA_ARRAY(a, float, l->dim);
    b->q = ARENA_ARRAY(a, float, most * l->n_heads * l->head_dim);
    b->k = ARENA_ARRAY(a, float, most * l->n_kv_heads * l->head_dim);
    b->angles = ARENA_ARRAY(a, float, l->head_dim);
    b->gate = ARENA_ARRAY(a, float, most * l->ffn_dim);
    b->up = ARENA_ARRAY(a, float, most * l->ffn_dim);
    b->positions = ARENA_ARRAY(a, int32_t, most);
}

/* Inputs that the ops leave as they are: see norm_fill() in probe_attend.c. */
static void layer_fill(struct layer_bed *b)
{
    const struct probe_layer *l = b->l;
    const int64_t most = b->most;
    for (int64_t i = 0; i < most * l->dim; i++)
        b->x[i] = (float)(mix64((uint64_t)i) % 1024) * 0x1p-10f;
    for (int i = 0; i < l->dim; i++)
        b->weight[i] = 1;
    for (int i = 0; i < l->head_dim; i++)
        b->angles[i] = 0.70710678f;
    for (int64_t i = 0; i < most * l->ffn_dim; i++) {
        b->gate[i] = (float)(mix64((uint64_t)i) % 1024) * 0x1p-10f - 1;
        b->up[i] = 1 + expf(-b->gate[i]);
    }
}

static void layer_turn(void *ctx, int i)
{
    struct layer_bed *b = ctx;
    const struct probe_layer *l = b->l;
    struct norm_args norm = {.x = b->x,
                             .y = b->y,
                             .weight = b->weight,
                             .m = b->m,
                             .dim = l->dim,
                             .x_stride = l->dim,
                             .y_stride = l->dim,
                             .kind = NORM_RMS,
                             .eps = 1e-5f};
    struct rope_args rope = {.x = b->q,
                             .cos = b->angles,
                             .sin = b->angles,
                             .pos = b->positions,
                             .m = b->m,
                             .n_heads = l->n_heads,
                             .head_dim = l->head_dim,
                             .rope_dim = l->rope_dim,
                             .x_stride = (int64_t)l->n_heads * l->head_dim};
    struct gate_mul_args silu = {b->gate,    b->up,    b->m, l->ffn_dim, l->ffn_dim,
                                 l->ffn_dim, ACT_SILU, 0,    {0}};
    (void)i;
    ops_run_norm(b->ops, &norm);
    if (l->rope_dim > 0) {
        ops_run_rope(b->ops, &rope);
        rope.x = b->k;
        rope.n_heads = l->n_kv_heads;
        rope.x_stride = (int64_t)l->n_kv_heads * l->head_dim;
        ops_run_rope(b->ops, &rope);
    }
    ops_run_norm(b->ops, &norm);
    if (l->gated)
        ops_run_gate_mul(b->ops, &silu);
}

enum err probe_layer_rows(struct model_rates *r, const struct probe_layer *l,
                          const struct probe_config *c)
{
    struct layer_bed b = {.ops = c->ops, .l = l, .most = 2 * matmul_rows[N_MATMUL_ROWS - 1]};
    struct arena a;
    do { // halves the tokens until they fit; the time of more tokens is scaled up
        b.most /= 2;
        arena_init(&a);
        layer_carve(&b, &a);
    } while (c->memory_bytes > 0 && a.used > c->memory_bytes && b.most > 1);
    TRY(probe_arena_open(&a, c, a.used));
    layer_carve(&b, &a);
    layer_fill(&b);
    for (int i = 0; i < N_MATMUL_ROWS; i++) {
        b.m = (int)min_i64(matmul_rows[i], b.most);
        struct rate turns = probe_loop(&(struct probe_loop){
            .turn = layer_turn, .ctx = &b, .amount = 1, .seconds = probe_seconds(c, CELL_S)});
        r->layer_spread = fmax(r->layer_spread, turns.spread / turns.value);
        r->rows_s[i] = matmul_rows[i] / (b.m * turns.value);
    }
    arena_close(&a);
    return OK;
}

/* ---- rows that attend ---- */

/* Seconds of `rows` rows over `slots` slots each; raises *spread to its spread by value. */
static enum err attend_cell(double *s, double *spread, const struct probe_layer *l,
                            const struct probe_config *c, int rows, int slots)
{
    const struct probe_attend p = {.format = l->kv_format,
                                   .n_heads = l->n_heads,
                                   .n_kv_heads = l->n_kv_heads,
                                   .head_dim = l->head_dim,
                                   .keys_only = l->keys_only,
                                   .slots = slots,
                                   .rows = rows,
                                   .evict = l->evict,
                                   .rope_dim = l->rope_dim,
                                   .seconds = probe_seconds(c, ATTEND_S)};
    struct rate rate;
    double bytes;
    TRY(probe_attend_rows(c, &p, &rate, &bytes));
    *s = rows / rate.value;
    *spread = fmax(*spread, rate.spread / rate.value);
    return OK;
}

/* attend_s: rows that attend over nothing; slot_s: each slot; then prompts. */
enum err probe_layer_attend(struct model_rates *r, const struct probe_layer *l,
                            const struct probe_config *c)
{
    for (int i = 0; i < ROWS_KINDS; i++) {
        const int rows = matmul_rows[i];
        double few, many;
        TRY(attend_cell(&few, &r->attend_spread, l, c, rows, SLOTS_FEW));
        TRY(attend_cell(&many, &r->attend_spread, l, c, rows, SLOTS_MANY));
        double slot_s = (many - few) / ((double)rows * (SLOTS_MANY - SLOTS_FEW));
        r->slot_s[i] = fmax(slot_s, LEAST_S);
        r->attend_s[i] = fmax(few - r->slot_s[i] * rows * SLOTS_FEW, LEAST_S);
    }
    for (int i = ROWS_KINDS; i < N_MATMUL_ROWS; i++) {
        r->slot_s[i] = r->slot_s[i - 1];
        r->attend_s[i] = r->attend_s[i - 1] * matmul_rows[i] / matmul_rows[i - 1];
    }
    return probe_prompts(r, l, c);
}
