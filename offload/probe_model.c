/* offload/probe_model.c - see probe_model.h.
 *
 * Owns: copies of a layer's matrices, each as large as the real one or, if the model is large, with
 * a share of its outputs. Note: the time of a share is scaled up: matmuls take time in proportion
 * to their outputs, as long as every thread has some. */
#include "offload/probe_model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/arena.h"
#include "offload/machine_file.h"
#include "offload/probe_cache.h"
#include "offload/probe_impl.h"

#define CELL_S        0.025 // seconds per state and M
#define CELL_LEAST    3     // sweeps
#define SWEEP_S       0.03  // seconds of a sweep at the most tokens
#define SHARE_MOST    64
#define SHARE_LAST    1024 // the same where memory is small
#define OUTPUTS_LEAST 128  // outputs of a call with a share, per thread
#define KEY_MAX       1024

/* A list of matrices, in the order of its calls. */
struct sweep_list {
    const struct probe_tensor *tensors;
    int n;
    int reduces; // 1: outputs are logits, reduced to the greatest
};

/* One list of matrices in one state, with memory for its copies. */
struct sweep_bed {
    const struct ops *ops;
    struct matmul_args calls[PROBE_TENSORS];
    const struct probe_tensor *of[PROBE_TENSORS]; // first matrix of each call
    int outputs[PROBE_TENSORS][MATMUL_PARTS];
    int64_t at[PROBE_TENSORS][MATMUL_PARTS]; // bytes from the start of a copy
    int n_calls, n_copies;
    int64_t copy_bytes;
    double share; // fraction of all weights that is computed
    uint8_t *copies;
    float *x, *y;                  // [rows, widest k], [rows, all outputs of the widest call]
    int reduces;                   // as in the list
    struct head_request *requests; // [rows] if it reduces
    struct head_result *results;   // the same
    void *scratch;
};

static enum dtype format_of(const struct probe_tensor *t, enum weight_state state)
{
    return state == WEIGHTS_TILES ? t->tile : t->stored;
}

static int64_t panels_bytes(const struct matmul_part *part)
{
    return round_up(dtype_panels_bytes(part->w.dtype, part->w.n, part->w.k), 64);
}

/* The calls, without pointers; each matrix keeps 1 / share of its outputs, in whole panels. */
static void sweep_calls(struct sweep_bed *b, const struct probe_tensor *t, int n,
                        enum weight_state state, int share)
{
    double all = 0, kept = 0;
    b->n_calls = 0;
    b->copy_bytes = 0;
    for (int i = 0; i < n; i++) {
        if (b->n_calls == 0 || !t[i].joins || b->calls[b->n_calls - 1].n_parts == MATMUL_PARTS) {
            b->of[b->n_calls] = &t[i];
            b->calls[b->n_calls++] = (struct matmul_args){.x_stride = t[i].k};
        }
        struct matmul_args *call = &b->calls[b->n_calls - 1];
        struct matmul_part *part = &call->parts[call->n_parts];
        int outputs = (int)min_i64(t[i].n, round_up(ceil_div(t[i].n, share), PANEL_ROWS));
        *part =
            (struct matmul_part){.w = {.dtype = format_of(&t[i], state), .n = outputs, .k = t[i].k},
                                 .y_stride = outputs};
        b->outputs[b->n_calls - 1][call->n_parts] = outputs;
        b->at[b->n_calls - 1][call->n_parts++] = b->copy_bytes;
        b->copy_bytes += panels_bytes(part);
        all += (double)t[i].n * t[i].k;
        kept += (double)outputs * t[i].k;
    }
    b->share = kept / all;
}

static void sweep_carve(struct sweep_bed *b, struct arena *a, int64_t copies_bytes)
{
    int64_t x = 0, y = 0, scratch = 64;
    const int rows = matmul_rows[N_MATMUL_ROWS - 1];
    b->n_copies = (int)max_i64(copies_bytes / b->copy_bytes, 1);
    for (int i = 0; i < b->n_calls; i++) {
        int64_t outputs = 0;
        for (int j = 0; j < b->calls[i].n_parts; j++) {
            const struct weight *w = &b->calls[i].parts[j].w;
            outputs += w->n;
            x = max_i64(x, (int64_t)rows * w->k);
            scratch = max_i64(scratch, matmul_scratch_bytes(b->ops, rows, w->n, w->k));
        }
        y = max_i64(y, rows * outputs);
    }
    b->copies = arena_take(a, b->n_copies * b->copy_bytes, 4096);
    b->x = ARENA_ARRAY(a, float, x);
    b->y = ARENA_ARRAY(a, float, y);
    b->requests = ARENA_ARRAY(a, struct head_request, b->reduces ? rows : 0);
    b->results = ARENA_ARRAY(a, struct head_result, b->reduces ? rows : 0);
    b->scratch = arena_take(a, scratch, 64);
    for (int i = 0; b->x && b->reduces && i < rows; i++) {
        b->requests[i] = (struct head_request){.want = HEAD_SAMPLE, .target = -1};
        head_start(&b->results[i]);
    }
    for (int64_t i = 0; b->x && i < x; i++)
        b->x[i] = (float)(mix64((uint64_t)i) % 1024) * 0x1p-10f;
}

static enum err sweep_fill(struct sweep_bed *b)
{
    for (int i = 0; i < b->n_calls; i++)
        for (int j = 0; j < b->calls[i].n_parts; j++) {
            const struct matmul_part *part = &b->calls[i].parts[j];
            TRY(probe_fill_panels(part->w.dtype, part->w.k, b->copies + b->at[i][j],
                                  panels_bytes(part)));
        }
    for (int i = 1; i < b->n_copies; i++)
        memcpy(b->copies + i * b->copy_bytes, b->copies, (size_t)b->copy_bytes);
    return OK;
}

/* Sets the number of tokens. Experts share them: few tokens reach only some experts, one token
 * each; many tokens reach all experts, each with its part of the tokens. */
static void sweep_tokens(struct sweep_bed *b, int tokens)
{
    for (int i = 0; i < b->n_calls; i++) {
        const struct probe_tensor *t = b->of[i];
        const int64_t experts = max_i64(t->experts, 1), pairs = tokens * max_i64(t->used, 1);
        b->calls[i].m = (int)ceil_div(pairs, experts);
        for (int j = 0; j < b->calls[i].n_parts; j++) {
            const int64_t n = b->outputs[i][j], met = min_i64(pairs, experts);
            b->calls[i].parts[j].w.n =
                (int)min_i64(n, round_up(ceil_div(n * met, experts), PANEL_ROWS));
        }
    }
}

/* Reduces logits as a slice of the head does. */
static void sweep_reduce(const struct sweep_bed *b, const struct matmul_part *part, int m)
{
    struct head_reduce_args args = {.logits = part->y,
                                    .stride = part->y_stride,
                                    .requests = b->requests,
                                    .results = b->results,
                                    .m = m,
                                    .n = part->w.n};
    ops_run_head_reduce(b->ops, &args);
}

static void sweep_turn(void *ctx, int turn)
{
    struct sweep_bed *b = ctx;
    const uint8_t *copy = b->copies + turn % b->n_copies * b->copy_bytes;
    for (int i = 0; i < b->n_calls; i++) {
        struct matmul_args args = b->calls[i];
        int64_t outputs = 0;
        args.x = b->x;
        args.scratch = b->scratch;
        for (int j = 0; j < args.n_parts; j++) {
            args.parts[j].w.panels = copy + b->at[i][j];
            args.parts[j].y = b->y + args.m * outputs;
            outputs += args.parts[j].w.n;
        }
        ops_run_matmul(b->ops, &args);
        if (b->reduces)
            sweep_reduce(b, &args.parts[0], args.m);
    }
}

/* Divides the outputs: few enough for a short sweep, enough to keep the threads busy. */
static int share_of(const struct probe_tensor *t, int n, const struct machine *m,
                    const struct ops *ops)
{
    double numbers = 0;
    int64_t least = INT64_MAX, outputs = 0;
    int share = 1;
    for (int i = 0; i < n; i++) {
        outputs = t[i].joins ? outputs + t[i].n : t[i].n; // of this call so far
        if (i + 1 == n || !t[i + 1].joins)
            least = min_i64(least, outputs);
        numbers += (double)t[i].n * t[i].k;
    }
    double s = 2 * numbers * matmul_rows[N_MATMUL_ROWS - 1] / m->matmul_flops.value;
    while (share < SHARE_MOST && s / share > SWEEP_S &&
           least / (share * 2) >= (int64_t)OUTPUTS_LEAST * pool_threads(ops->pool))
        share *= 2;
    return share;
}

/* s: seconds at matmul_rows[] tokens; *spread: raised to the widest, by its value. */
static enum err measure(double *s, double *spread, const struct sweep_list *l,
                        enum weight_state state, const struct machine *m,
                        const struct probe_config *c)
{
    struct sweep_bed b = {.ops = c->ops, .reduces = l->reduces};
    const struct probe_tensor *t = l->tensors;
    const int n = l->n;
    struct arena a;
    int64_t copies = probe_ram_bytes(c) - PROBE_BESIDE_BYTES;
    int share = share_of(t, n, m, c->ops);
    do { // one copy of a large layer may exceed the memory: compute a smaller share
        sweep_calls(&b, t, n, state, share);
        arena_init(&a);
        sweep_carve(&b, &a, copies);
        share *= 2;
    } while (c->memory_bytes > 0 && a.used > c->memory_bytes && share <= SHARE_LAST);
    TRY(probe_arena_open(&a, c, a.used));
    arena_populate(a.base, a.capacity, c->ops->pool);
    sweep_carve(&b, &a, copies);
    enum err err = sweep_fill(&b);
    for (int i = 0; i < N_MATMUL_ROWS && err == OK; i++) {
        sweep_tokens(&b, matmul_rows[i]);
        struct rate sweeps = probe_loop(&(struct probe_loop){.turn = sweep_turn,
                                                             .ctx = &b,
                                                             .amount = 1,
                                                             .seconds = probe_seconds(c, CELL_S),
                                                             .least = CELL_LEAST});
        s[i] = 1 / (sweeps.value * b.share);
        *spread = fmax(*spread, sweeps.spread / sweeps.value);
    }
    arena_close(&a);
    return err;
}

static int same_in_tiles(const struct probe_tensor *t, int n)
{
    for (int i = 0; i < n; i++)
        if (t[i].stored != t[i].tile)
            return 0;
    return 1;
}

/* Measures both states of one list. */
static enum err measure_states(double s[N_WEIGHT_STATES][N_MATMUL_ROWS], double *spread,
                               const struct sweep_list *l, const struct machine *m,
                               const struct probe_config *c)
{
    TRY(measure(s[WEIGHTS_STORED], spread, l, WEIGHTS_STORED, m, c));
    if (!same_in_tiles(l->tensors, l->n))
        return measure(s[WEIGHTS_TILES], spread, l, WEIGHTS_TILES, m, c);
    memcpy(s[WEIGHTS_TILES], s[WEIGHTS_STORED], sizeof s[0]);
    return OK;
}

static enum err measure_layer(struct model_rates *r, const struct machine *m,
                              const struct probe_model *p, const struct probe_config *c)
{
    const struct sweep_list layer = {p->layer, p->n_layer, 0}, head = {&p->head, 1, 1};
    TRY(measure_states(r->layer_s, &r->layer_spread, &layer, m, c));
    TRY(measure_states(r->head_s, &r->layer_spread, &head, m, c));
    return probe_layer_rows(r, &p->beside, c);
}

static enum err measure_attend(struct model_rates *r, const struct machine *m,
                               const struct probe_model *p, const struct probe_config *c)
{
    (void)m;
    return probe_layer_attend(r, &p->beside, c);
}

enum err probe_model(struct model_rates *r, const struct machine *m, const struct probe_model *p,
                     const struct probe_config *c)
{
    *r = (struct model_rates){0};
    TRY(measure_layer(r, m, p, c));
    TRY(measure_attend(r, m, p, c));
    model_rates_ascend(r);
    return OK;
}

/* ---- as numbers ---- */

/* The measured format with about the same cost per number: by its bits. */
static enum matmul_format rate_format(enum dtype t)
{
    double bits = 8.0 * (double)dtype_panel_bytes(t, 256) / (256 * PANEL_ROWS);
    return bits > 16.5 ? MATMUL_F32 : bits > 9 ? MATMUL_BF16 : bits > 5.2 ? MATMUL_Q8 : MATMUL_Q4;
}

void probe_model_weights(const struct probe_model *p, struct model_weights *w)
{
    *w = (struct model_weights){0};
    for (int state = 0; state < N_WEIGHT_STATES; state++) {
        enum weight_state at = (enum weight_state)state;
        for (int i = 0; i < p->n_layer; i++) {
            const struct probe_tensor *t = &p->layer[i];
            double *of = t->experts > 0 ? w->experts[state] : w->layer[state];
            of[rate_format(format_of(t, at))] += (double)t->n * t->k;
            if (t->experts > 0) {
                w->n_experts = t->experts;
                w->n_used = t->used;
            }
        }
        w->head[state][rate_format(format_of(&p->head, at))] = (double)p->head.n * p->head.k;
    }
}

/* ---- cache ---- */

static void tensor_key(const struct probe_tensor *t, char *key, int cap)
{
    int n = (int)strlen(key);
    snprintf(key + n, (size_t)(cap - n), " %s %s %d %d %d", dtype_info(t->stored)->name,
             dtype_info(t->tile)->name, t->n, t->k, t->joins);
    n = (int)strlen(key);
    if (t->experts > 0)
        snprintf(key + n, (size_t)(cap - n), " %d of %d", t->used, t->experts);
}

static void widths_key(const struct probe_layer *l, char *key, int cap)
{
    int n = (int)strlen(key);
    snprintf(key + n, (size_t)(cap - n), " %d %d %d %d %d %d %d%s", l->dim, l->n_heads,
             l->n_kv_heads, l->head_dim, l->ffn_dim, l->rope_dim, l->gated,
             l->keys_only ? " keys" : "");
}

static void kv_key(const struct probe_layer *l, char *key, int cap)
{
    int n = (int)strlen(key);
    snprintf(key + n, (size_t)(cap - n), " %s %s %d", kv_format_name(l->kv_format),
             evict_policy_name(l->evict.policy), l->evict.scope);
    n = (int)strlen(key);
    if (l->evict.positions == EVICT_POSITIONS_SLOT)
        snprintf(key + n, (size_t)(cap - n), " slot");
}

static void layer_key(const struct probe_model *p, char *key, int cap)
{
    for (int i = 0; i < p->n_layer; i++)
        tensor_key(&p->layer[i], key, cap);
    tensor_key(&p->head, key, cap);
    widths_key(&p->beside, key, cap);
}

static void attend_key(const struct probe_model *p, char *key, int cap)
{
    widths_key(&p->beside, key, cap);
    kv_key(&p->beside, key, cap);
}

/* Rates that share a cache file. Rates that do not depend on KV are measured once for all policies
 * and KV formats, so that plans that differ in these differ in nothing else. */
struct part {
    const char *file, *told; // in the file's name; in log lines
    int first, end;          // indices of the rates; the last is the spread of the others
    void (*key)(const struct probe_model *p, char *key, int cap);
    enum err (*measure)(struct model_rates *r, const struct machine *m, const struct probe_model *p,
                        const struct probe_config *c);
};
#define RATES_BEFORE(member) ((int)(offsetof(struct model_rates, member) / sizeof(double)))
static const struct part parts[] = {
    {"model", "the model's ops", 0, RATES_BEFORE(attend_s), layer_key, measure_layer},
    {"attend", "attention", RATES_BEFORE(attend_s),
     (int)(sizeof(struct model_rates) / sizeof(double)), attend_key, measure_attend}};

/* The rates as an array: all members are doubles. */
static double *rates_of(struct model_rates *r)
{
    return &r->layer_s[0][0];
}

/* The seconds of a part as text, and back. part_parse() returns 0 for other text. */
static int part_text(const struct part *part, struct model_rates *r, char *text, int cap)
{
    int n = snprintf(text, (size_t)cap, "# sluice: seconds of a layer's and a head tile's ops\n");
    for (int i = part->first; i < part->end; i++)
        n += snprintf(text + n, (size_t)(cap - n), "%.6g\n", rates_of(r)[i]);
    return n;
}

static int part_parse(const struct part *part, struct model_rates *r, const char *text)
{
    double *s = rates_of(r);
    const char *at = strchr(text, '\n');
    for (int i = part->first; i < part->end; i++) {
        char *end;
        if (!at)
            return 0;
        s[i] = strtod(at, &end);
        if (end == at || !(s[i] >= 0))
            return 0;
        at = end;
    }
    return s[part->first] > 0;
}

struct model_probe {
    const struct part *part;
    struct model_rates now;
    const struct machine *m;
    const struct probe_model *p;
    const struct probe_config *c;
};

static enum err model_measure(void *ctx)
{
    struct model_probe *probe = ctx;
    probe->now = (struct model_rates){0};
    TRY(probe->part->measure(&probe->now, probe->m, probe->p, probe->c));
    model_rates_ascend(&probe->now);
    return OK;
}

static enum err part_cached(const struct part *part, struct model_rates *r, const struct machine *m,
                            const struct probe_model *p, const struct probe_config *c,
                            const char *cache_dir, int *measured)
{
    char key[KEY_MAX], path[4200];
    char text[MACHINE_FILE_BYTES_MAX + 1];
    const int spread = part->end - 1;
    probe_cache_key(c, key, sizeof key);
    part->key(p, key, sizeof key);
    TRY(probe_cache_path(cache_dir, part->file, key, path, sizeof path));
    int64_t n = probe_cache_read(path, text);
    text[max_i64(n, 0)] = 0;
    int read = n >= 0 && part_parse(part, r, text);
    if (read && !probe_cache_again(path, c, rates_of(r)[spread]))
        return OK;
    if (read)
        log_line(LOG_INFO, "probe: %s: samples differ by %.0f %%, measuring again", part->told,
                 100 * rates_of(r)[spread]);
    struct model_probe probe = {.part = part, .m = m, .p = p, .c = c};
    double *now = rates_of(&probe.now);
    int busy = 0;
    *measured = 1;
    TRY(probe_judged(c, part->told, model_measure, &probe, &busy));
    if (!read || now[spread] < rates_of(r)[spread])
        memcpy(rates_of(r) + part->first, now + part->first,
               (size_t)(part->end - part->first) * sizeof(double));
    n = part_text(part, r, text, sizeof text);
    CHECK(part_parse(part, r, text)); // rounds r to the digits in the file
    probe_cache_write(path, text, n, busy);
    return OK;
}

enum err probe_model_cached(struct model_rates *r, const struct machine *m,
                            const struct probe_model *p, const struct probe_config *c,
                            const char *cache_dir, int *measured)
{
    *measured = 0;
    for (int i = 0; i < (int)(sizeof parts / sizeof *parts); i++)
        TRY(part_cached(&parts[i], r, m, p, c, cache_dir, measured));
    return OK;
}
