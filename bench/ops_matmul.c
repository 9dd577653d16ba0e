/* bench/ops_matmul.c - matmul and decode of `bench ops`: the ops that read weights, in all formats.
 *
 * Owns: the measured layers, rows and formats, and `bench_result`, which prints the row of any op.
 * Refuses: the weights of matmuls (offload/probe.c). Note: all copies of a weight together are
 * larger than the caches, so weights come from RAM, as on the line. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "kernels/base/arena.h"
#include "offload/probe.h"

#define WEIGHT_BYTES ((int64_t)128 << 20) // all copies of a weight

enum err bench_result(const struct bench_run *run, const struct bench_result *r)
{
    struct bench_turns *t = run->turns;
    const double by_flops = r->flops / run->roof->flops;
    const double by_bytes = r->bytes / (r->ram > 0 ? r->ram : run->roof->ram);
    const double now[N_FIGURES] = {[FIGURE_S] = r->seconds,
                                   [FIGURE_LEAST_S] = by_flops > by_bytes ? by_flops : by_bytes,
                                   [FIGURE_STEP_S] = r->step_s,
                                   [FIGURE_LOW_S] = r->low_s,
                                   [FIGURE_HIGH_S] = r->high_s};
    double median[N_FIGURES];
    CHECK(t->at < BENCH_CASES_MAX && t->turn < t->n_turns);
    for (int i = 0; i < N_FIGURES; i++) {
        double *of_turns = t->figures + ((ptrdiff_t)i * BENCH_CASES_MAX + t->at) * t->n_turns;
        of_turns[t->turn] = now[i];
        if (t->turn + 1 == t->n_turns)
            median[i] = bench_median(of_turns, t->n_turns);
    }
    const double *seconds = t->figures + (ptrdiff_t)t->at * t->n_turns; // sorted in the last turn
    const int own = r->low_s != 0 || r->high_s != 0;
    t->at++;
    if (t->turn + 1 < t->n_turns)
        return OK;
    const double s = median[FIGURE_S], least = median[FIGURE_LEAST_S], step = median[FIGURE_STEP_S];
    const char *bound = r->kind ? r->kind : by_flops > by_bytes ? "flops" : run->roof->memory;
    const double per_s = r->kind ? 0 : 1 / s; // a difference has no rate
    const double low = own ? median[FIGURE_LOW_S] : seconds[0];
    const double high = own ? median[FIGURE_HIGH_S] : seconds[t->n_turns - 1];
    json_t *row =
        json_pack("{ss ss ss sf sf sf sf sf sf sf ss}", "op", r->op, "model", r->model, "shape",
                  r->shape, "us", s * 1e6, "us_min", low * 1e6, "us_max", high * 1e6, "gflop_s",
                  r->flops * per_s * 1e-9, "gb_s", r->bytes * per_s * 1e-9, "peak",
                  by_flops * per_s, "roof", least * per_s, "bound", bound);
    if (row && run->device)
        json_object_set_new(row, "step", step > 0 ? json_real(s / step) : json_null());
    return bench_row(run->table, row);
}

/* ---- matmul ---- */

struct matmul_case {
    enum dtype dtype;
    int n, k, m;
};

static enum err bench_matmul(const struct bench_run *run, const struct ops *ops,
                             const struct bench_model *model, const struct matmul_case *c)
{
    struct probe_matmul p = {.dtype = c->dtype,
                             .m = c->m,
                             .n = c->n,
                             .k = c->k,
                             .weight_bytes = WEIGHT_BYTES,
                             .seconds = BENCH_WINDOW_S};
    struct rate rate;
    int64_t weight_bytes = 0;
    char shape[64];
    TRY(probe_matmul(ops, &p, &rate, &weight_bytes));
    const int int8 = ops->compute == COMPUTE_INT8 && (c->dtype == DTYPE_Q8 || c->dtype == DTYPE_Q4);
    snprintf(shape, sizeof shape, "%s%s %dx%d m=%d", dtype_info(c->dtype)->name,
             int8 ? " int8" : "", c->n, c->k, c->m);
    struct bench_result result = {.op = "matmul", .model = model->name, .shape = shape};
    result.flops = 2.0 * c->m * c->n * c->k;
    result.bytes = (double)weight_bytes + 4.0 * c->m * (c->n + c->k);
    result.seconds = result.flops / rate.value;
    return bench_result(run, &result);
}

static const int rows_all[] = {1, 4, 16, 64, 256, 1024};
#define N_ROWS    ((int)(sizeof rows_all / sizeof rows_all[0]))
#define MANY_ROWS 2 // formats are compared from here on

/* Formats at the shape of `up`; a format whose block size does not divide dim is left out. */
static enum err bench_formats(const struct bench_run *run, const struct ops *ops,
                              const struct bench_model *model, const enum dtype *formats, int n)
{
    for (int f = 0; f < n; f++)
        for (int r = MANY_ROWS; r < N_ROWS; r++) {
            struct matmul_case c = {formats[f], model->ffn, model->dim, rows_all[r]};
            if (dtype_row_bytes(c.dtype, c.k) >= 0)
                TRY(bench_matmul(run, ops, model, &c));
        }
    return OK;
}

/* The same under int8, whatever --compute is. A byte dot product, also in tiles, handles twice the
 * numbers of a bf16 one, so the roof is doubled. */
static enum err bench_int8(const struct bench_run *run, const struct ops *ops,
                           const struct bench_model *model)
{
    static const enum dtype formats[] = {DTYPE_Q8, DTYPE_Q4};
    struct ops int8 = *ops;
    struct bench_roof roof = *run->roof;
    struct bench_run doubled = *run;
    int8.compute = COMPUTE_INT8;
    if (ops->isa >= ISA_AVX512) {
        const struct ops pairs = {.isa = ops->isa, .compute = COMPUTE_BF16, .pool = ops->pool};
        roof.flops = 2 * bench_peak_flops(&pairs, BENCH_WINDOW_S);
    }
    doubled.roof = &roof;
    return bench_formats(&doubled, &int8, model, formats, 2);
}

void bench_layers(const struct bench_model *model, int layers[BENCH_LAYERS][2])
{
    const int heads = model->n_heads * model->head_dim, kv = model->n_kv_heads * model->head_dim;
    const int all[BENCH_LAYERS][2] = {{heads, model->dim}, // q; o has as many numbers
                                      {kv, model->dim},
                                      {model->ffn, model->dim},
                                      {model->dim, model->ffn},
                                      {model->head, model->dim}};
    memcpy(layers, all, sizeof all);
}

enum err bench_matmuls(const struct bench_run *run, const struct ops *ops,
                       const struct bench_model *model)
{
    static const enum dtype formats[] = {DTYPE_BF12, DTYPE_Q8,   DTYPE_Q4,  DTYPE_Q4_1, DTYPE_Q4_K,
                                         DTYPE_Q6_K, DTYPE_Q8_0, DTYPE_F16, DTYPE_F32};
    int layers[BENCH_LAYERS][2];
    struct ops plain = *ops;
    bench_layers(model, layers);
    if (run->only && strcmp(run->only, "matmul") != 0)
        return OK;
    if (plain.compute == COMPUTE_INT8) // int8 has its own rows
        plain.compute = COMPUTE_BF16;
    for (int l = 0; l < BENCH_LAYERS; l++)
        for (int r = 0; r < N_ROWS; r++) {
            struct matmul_case c = {DTYPE_BF16, layers[l][0], layers[l][1], rows_all[r]};
            TRY(bench_matmul(run, &plain, model, &c));
        }
    TRY(bench_formats(run, &plain, model, formats, (int)(sizeof formats / sizeof formats[0])));
    return bench_int8(run, ops, model);
}

/* ---- decode ---- */

/* Copies of one weight and their decoded form. */
struct decode_memory {
    uint8_t *from, *to; // [n_copies * copy_bytes], panels as matmuls read them
    int n_copies;
    int64_t copy_bytes;
};

static void decode_carve(struct decode_memory *mem, struct arena *a, const struct decode_args *args)
{
    const struct weight *w = &args->w;
    mem->copy_bytes = round_up(dtype_panels_bytes(w->dtype, w->n, w->k), 64);
    mem->n_copies = (int)max_i64(WEIGHT_BYTES / mem->copy_bytes, 1);
    mem->from = arena_take(a, mem->n_copies * mem->copy_bytes, 64);
    mem->to = arena_take(a, dtype_panels_bytes(args->to, w->n, w->k), 64);
}

void bench_panel(enum dtype dtype, int k, uint8_t *row, uint8_t *panel)
{
    int64_t row_bytes = dtype_row_bytes(dtype_of_rows(dtype), k);
    const void *rows[PANEL_ROWS];
    for (int64_t i = 0; i < row_bytes; i++)
        row[i] = (uint8_t)(0x30 + mix64((uint64_t)i) % 12);
    for (int i = 0; i < PANEL_ROWS; i++)
        rows[i] = row;
    panel_pack(dtype, rows, k, panel);
}

static void decode_fill(struct decode_memory *mem, const struct weight *w)
{
    int64_t panel_bytes = dtype_panel_bytes(w->dtype, w->k);
    /* `to` is larger than a row in any format, and unused before the first call. */
    bench_panel(w->dtype, w->k, mem->to, mem->from);
    for (int64_t at = panel_bytes; at + panel_bytes <= mem->n_copies * mem->copy_bytes;
         at += panel_bytes)
        memcpy(mem->from + at, mem->from, (size_t)panel_bytes);
}

static double decode_seconds(const struct ops *ops, struct decode_args *args,
                             const struct decode_memory *mem)
{
    int n = 0;
    ops_run_decode(ops, args);
    int64_t start_ns = clock_ns(), now_ns;
    do {
        n++;
        args->w.panels = mem->from + n % mem->n_copies * mem->copy_bytes;
        ops_run_decode(ops, args);
        now_ns = clock_ns();
    } while ((double)(now_ns - start_ns) < BENCH_WINDOW_S * 1e9);
    return (double)(now_ns - start_ns) * 1e-9 / n;
}

static enum err decode_row(const struct bench_run *run, const struct ops *ops,
                           const struct bench_model *model, enum dtype dtype, enum dtype to)
{
    struct decode_args args = {.w = {.dtype = dtype, .n = model->ffn, .k = model->dim}, .to = to};
    struct decode_memory mem;
    struct arena arena;
    char shape[64];
    arena_init(&arena);
    decode_carve(&mem, &arena, &args);
    TRY(arena_open(&arena, arena.used));
    decode_carve(&mem, &arena, &args);
    decode_fill(&mem, &args.w);
    args.w.panels = mem.from;
    args.panels = mem.to;
    snprintf(shape, sizeof shape, "%s to %s %dx%d", dtype_info(dtype)->name,
             dtype_info(args.to)->name, args.w.n, args.w.k);
    struct bench_result result = {.op = "decode", .model = model->name, .shape = shape};
    result.bytes = (double)dtype_panels_bytes(dtype, args.w.n, args.w.k) +
                   (double)dtype_panels_bytes(args.to, args.w.n, args.w.k);
    result.seconds = decode_seconds(ops, &args, &mem);
    enum err err = bench_result(run, &result);
    arena_close(&arena);
    return err;
}

enum err bench_decode(const struct bench_run *run, const struct ops *ops,
                      const struct bench_model *model)
{
    const enum dtype to = ops->compute == COMPUTE_F32 ? DTYPE_F32 : DTYPE_BF16;
    if (run->only && strcmp(run->only, "decode") != 0)
        return OK;
    for (int f = 0; f < N_DTYPES; f++)
        if (dtype_row_bytes(dtype_of_rows((enum dtype)f), model->dim) >= 0 && f != (int)to)
            TRY(decode_row(run, ops, model, (enum dtype)f, to));
    return OK;
}
