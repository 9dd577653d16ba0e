/* bench/ops_device.c - `bench ops --device`: the roofs of a device, the time of a launch, and the
 * ops that read weights: matmul and decode.
 *
 * Owns: weights in the forms that the device reads. Refuses: the clock (bench/device.c), other ops
 * (bench/ops.c), attend_forced (bench/ops_forced_device.c). Note: the roof of FLOPs is the best
 * rate of its own matmul over square matrices; the roof of memory is a copy, which reads and
 * writes, so an op that only reads may exceed it. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/device.h"

#define COPIES_BYTES ((int64_t)256 << 20) // all copies of a weight: larger than caches
#define STRETCH_MOST ((int64_t)1 << 30)   // copied to measure memory
#define ALIGN        4096
#define SQUARE_LEAST 64
#define SQUARE_MOST  8192
#define SQUARE_S     2e-3 // seconds of a large enough matmul

/* ---- matmul ---- */

/* Parts that share x: outputs of each, all in the form in which the device reads `stored`. */
struct weights_case {
    enum compute compute;
    enum dtype stored;
    int m, k, n_parts;
    int n[MATMUL_PARTS];
};

struct weights_bench {
    struct ops ops;
    struct weight_form form;
    struct matmul_args args;
    struct bench_memory memory;
    uint8_t *unit, *row; // in RAM: a panel or row of weights, and a row of x or of the panel
    int64_t part_at[MATMUL_PARTS]; // offset in bytes within a copy
    int64_t unit_bytes, weight_bytes, copy_bytes;
    int n_copies, turn;
};

static void weights_call(void *ctx)
{
    struct weights_bench *b = ctx;
    const uint8_t *copy = b->memory.more + b->turn++ % b->n_copies * b->copy_bytes;
    for (int i = 0; i < b->args.n_parts; i++)
        b->args.parts[i].w.panels = copy + b->part_at[i];
    ops_run_matmul(&b->ops, &b->args);
}

static void weights_carve(struct weights_bench *b, struct arena *a, int k)
{
    const int64_t numbers = weight_row_numbers(k);
    b->unit_bytes = b->form.layout == WEIGHT_PANELS ? dtype_panel_bytes(b->form.dtype, k)
                                                    : dtype_row_bytes(b->form.dtype, numbers);
    b->unit = arena_take(a, b->unit_bytes, 64);
    b->row = arena_take(a, numbers * 4, 64); // as f32, the largest format
}

/* Fills small normal numbers in any format; zeros after a row's own numbers. */
static void weights_fill(struct weights_bench *b, int k)
{
    float *x = (float *)(void *)b->row;
    const int64_t n_bytes = dtype_row_bytes(dtype_of_rows(b->form.dtype), k);
    bench_panel(b->form.dtype, k, b->row, b->unit);
    if (b->form.layout == WEIGHT_ROWS) {
        memset(b->unit, 0, (size_t)b->unit_bytes);
        memcpy(b->unit, b->row, (size_t)n_bytes);
    }
    for (int i = 0; i < k; i++)
        x[i] = (float)(mix64((uint64_t)i) >> 40) * 0x1p-24f - 0.5f;
}

/* Allocates a matmul's operands in the device's memory: copies of the weights, x, y, scratch. */
static enum err weights_open(struct weights_bench *b, struct bench_device *d,
                             const struct weights_case *c)
{
    int n_all = 0, n_max = 0;
    *b = (struct weights_bench){.ops = d->ops, .memory = {.device = d}};
    b->ops.compute = c->compute;
    b->form = d->device->api->reads(d->device, c->compute, c->stored);
    for (int i = 0; i < c->n_parts; i++) { // whole panels: each copy is a sequence of units
        const int64_t n_pad = round_up(c->n[i], PANEL_ROWS);
        b->part_at[i] = b->copy_bytes;
        b->copy_bytes += weight_bytes(b->form.layout, b->form.dtype, n_pad, c->k);
        b->weight_bytes += weight_bytes(b->form.layout, b->form.dtype, c->n[i], c->k);
        n_all += c->n[i];
        n_max = (int)max_i64(n_max, c->n[i]);
    }
    const int64_t most = min_i64(COPIES_BYTES, d->room / 4);
    b->n_copies = (int)max_i64(ceil_div(most, b->copy_bytes), 1);
    const int64_t x_at = round_up(b->n_copies * b->copy_bytes, ALIGN);
    const int64_t x_bytes = (int64_t)c->m * c->k * 4;
    const int64_t y_at = x_at + round_up(x_bytes, ALIGN);
    const int64_t scratch_at = y_at + round_up((int64_t)c->m * n_all * 4, ALIGN);
    b->memory.more_bytes = scratch_at + d->device->api->scratch->matmul(&b->ops, c->m, n_max, c->k);
    weights_carve(b, &b->memory.host, c->k);
    TRY(bench_memory_open(&b->memory, "a matmul"));
    weights_carve(b, &b->memory.host, c->k);
    weights_fill(b, c->k);
    uint8_t *more = b->memory.more;
    bench_memory_spread(&b->memory, more, b->unit, b->unit_bytes, x_at);
    bench_memory_spread(&b->memory, more + x_at, b->row, (int64_t)c->k * 4, x_bytes);
    b->args = (struct matmul_args){.x = (float *)(void *)(more + x_at),
                                   .m = c->m,
                                   .x_stride = c->k,
                                   .n_parts = c->n_parts,
                                   .scratch = more + scratch_at};
    float *y = (float *)(void *)(more + y_at);
    for (int i = 0; i < c->n_parts; i++) {
        struct weight w = {b->form.dtype, c->n[i], c->k, NULL, b->form.layout};
        b->args.parts[i] = (struct matmul_part){.w = w, .y = y, .y_stride = n_all};
        y += c->n[i];
    }
    return OK;
}

static enum err weights_seconds(struct bench_device *d, const struct weights_case *c,
                                double *seconds, int64_t *n_bytes)
{
    struct weights_bench b;
    enum err err = weights_open(&b, d, c);
    if (err == OK)
        err = bench_device_seconds(d, weights_call, &b, seconds);
    bench_memory_close(&b.memory);
    *n_bytes = b.weight_bytes;
    return err;
}

static enum err matmul_row(const struct bench_run *run, const struct bench_model *model,
                           enum compute compute, enum dtype stored, const int layer[2], int m)
{
    struct weights_case c = {
        .compute = compute, .stored = stored, .m = m, .k = layer[1], .n_parts = 1, .n = {layer[0]}};
    struct device *d = run->device->device;
    struct weight_form form = d->api->reads(d, compute, stored);
    struct bench_result r = {.op = "matmul", .model = model->name};
    int64_t n_bytes = 0;
    char shape[64];
    TRY(weights_seconds(run->device, &c, &r.seconds, &n_bytes));
    snprintf(shape, sizeof shape, "%s%s %dx%d m=%d", dtype_info(form.dtype)->name,
             compute == COMPUTE_INT8 ? " int8" : "", layer[0], layer[1], m);
    r.shape = shape;
    r.flops = 2.0 * m * layer[0] * layer[1];
    r.bytes = (double)n_bytes + 4.0 * m * (layer[0] + layer[1]);
    return bench_result(run, &r);
}

static const int rows_all[] = {1, 16, 64, 256, 1024};
#define N_ROWS ((int)(sizeof rows_all / sizeof rows_all[0]))
static const enum dtype formats[] = {DTYPE_BF16, DTYPE_BF12, DTYPE_Q8,   DTYPE_Q4,  DTYPE_Q4_1,
                                     DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q8_0, DTYPE_F16, DTYPE_F32};
#define N_FORMATS ((int)(sizeof formats / sizeof formats[0]))

static int same_form(struct weight_form a, struct weight_form b)
{
    return a.dtype == b.dtype && a.layout == b.layout;
}

/* 1 if the device reads format f in a form that no earlier format has. */
static int is_new_form(struct device *d, enum compute compute, int f)
{
    const struct weight_form form = d->api->reads(d, compute, formats[f]);
    for (int i = 0; i < f; i++)
        if (same_form(form, d->api->reads(d, compute, formats[i])))
            return 0;
    return 1;
}

/* The best rate over squares: large enough for a fast device, stopping early on a slow one. */
static enum err matmul_roof(struct bench_device *d, enum compute compute, double *flops)
{
    double s = 0;
    int64_t n_bytes;
    *flops = 0;
    for (int n = SQUARE_LEAST; n <= SQUARE_MOST && s < SQUARE_S; n *= 2) {
        struct weights_case c = {.compute = compute,
                                 .stored = compute == COMPUTE_INT8 ? DTYPE_Q8 : DTYPE_BF16,
                                 .m = n,
                                 .k = n,
                                 .n_parts = 1,
                                 .n = {n}};
        if (n > SQUARE_LEAST && 16 * (int64_t)n * n > d->room / 2) // weights, x, y, scratch
            break;
        TRY(weights_seconds(d, &c, &s, &n_bytes));
        const double rate = 2.0 * n * n * n / s;
        *flops = rate > *flops ? rate : *flops;
    }
    return OK;
}

/* Rows under int8 with their own roof, whatever --compute is. */
static enum err int8_rows(const struct bench_run *run, const struct bench_model *model,
                          const int layer[2])
{
    static const enum dtype codes[] = {DTYPE_Q8, DTYPE_Q4};
    struct bench_roof roof = *run->roof;
    struct bench_run own = *run;
    TRY(matmul_roof(run->device, COMPUTE_INT8, &roof.flops));
    own.roof = &roof;
    for (int f = 0; f < 2; f++)
        for (int r = 0; r < N_ROWS; r++)
            TRY(matmul_row(&own, model, COMPUTE_INT8, codes[f], layer, rows_all[r]));
    return OK;
}

enum err bench_device_matmuls(const struct bench_run *run, const struct bench_model *model)
{
    enum compute compute = run->device->ops.compute;
    int layers[BENCH_LAYERS][2];
    bench_layers(model, layers);
    if (run->only && strcmp(run->only, "matmul") != 0)
        return OK;
    if (compute == COMPUTE_INT8) // int8 has its own rows
        compute = COMPUTE_BF16;
    for (int l = 0; l < BENCH_LAYERS; l++)
        for (int r = 0; r < N_ROWS; r++)
            TRY(matmul_row(run, model, compute, formats[0], layers[l], rows_all[r]));
    for (int f = 1; f < N_FORMATS; f++) // at the shape of `up`
        for (int r = 0; r < N_ROWS; r++)
            if (dtype_row_bytes(formats[f], model->dim) >= 0 &&
                is_new_form(run->device->device, compute, f))
                TRY(matmul_row(run, model, compute, formats[f], layers[2], rows_all[r]));
    return int8_rows(run, model, layers[2]);
}

enum err bench_device_layer(struct bench_device *d, const struct bench_model *m, int rows,
                            double *seconds)
{
    const int heads = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const enum compute compute = d->ops.compute;
    const enum dtype stored = compute == COMPUTE_INT8 ? DTYPE_Q8 : DTYPE_BF16;
    const struct weights_case parts[] = {
        {compute, stored, rows, m->dim, 3, {heads, kv, kv}},
        {compute, stored, rows, heads, 1, {m->dim}},
        {compute, stored, rows, m->dim, m->gated ? 2 : 1, {m->ffn, m->ffn}},
        {compute, stored, rows, m->ffn, 1, {m->dim}},
    };
    *seconds = 0;
    for (int i = 0; i < 4; i++) {
        double s = 0;
        int64_t n_bytes;
        TRY(weights_seconds(d, &parts[i], &s, &n_bytes));
        *seconds += s;
    }
    return OK;
}

/* ---- decode: streamed panels, into the form that matmuls read ---- */

struct decode_bench {
    struct ops ops;
    struct decode_args args;
    struct bench_memory memory;
    uint8_t *panel, *row; // in RAM
    int64_t from_bytes, to_bytes, to_at;
    int n_copies, turn;
};

static void decode_call(void *ctx)
{
    struct decode_bench *b = ctx;
    const int copy = b->turn++ % b->n_copies;
    b->args.w.panels = b->memory.more + copy * b->from_bytes;
    b->args.panels = b->memory.more + b->to_at + copy * b->to_bytes;
    ops_run_decode(&b->ops, &b->args);
}

static void decode_carve(struct decode_bench *b, struct arena *a)
{
    b->panel = arena_take(a, dtype_panel_bytes(b->args.w.dtype, b->args.w.k), 64);
    b->row = arena_take(a, (int64_t)b->args.w.k * 4, 64); // as f32, the largest format
}

static enum err decode_measure(struct decode_bench *b, struct bench_device *d, double *seconds)
{
    const struct weight *w = &b->args.w;
    b->from_bytes = dtype_panels_bytes(w->dtype, w->n, w->k);
    b->to_bytes = round_up(weight_bytes(b->args.layout, b->args.to, w->n, w->k), ALIGN);
    const int64_t most = min_i64(COPIES_BYTES, d->room / 4);
    b->n_copies = (int)max_i64(ceil_div(most, b->from_bytes + b->to_bytes), 1);
    b->to_at = round_up(b->n_copies * b->from_bytes, ALIGN);
    b->memory.more_bytes = b->to_at + b->n_copies * b->to_bytes;
    decode_carve(b, &b->memory.host);
    TRY(bench_memory_open(&b->memory, "decode"));
    decode_carve(b, &b->memory.host);
    bench_panel(w->dtype, w->k, b->row, b->panel);
    bench_memory_spread(&b->memory, b->memory.more, b->panel, dtype_panel_bytes(w->dtype, w->k),
                        b->to_at);
    return bench_device_seconds(d, decode_call, b, seconds);
}

static enum err decode_row(const struct bench_run *run, const struct bench_model *model,
                           enum dtype dtype, struct weight_form form)
{
    struct bench_device *d = run->device;
    struct decode_bench b = {.ops = d->ops,
                             .args = {.w = {.dtype = dtype, .n = model->ffn, .k = model->dim},
                                      .to = form.dtype,
                                      .layout = form.layout},
                             .memory = {.device = d}};
    const struct weight *w = &b.args.w;
    struct bench_result r = {.op = "decode", .model = model->name};
    char shape[64];
    enum err err = decode_measure(&b, d, &r.seconds);
    bench_memory_close(&b.memory);
    TRY(err);
    snprintf(shape, sizeof shape, "%s to %s %dx%d", dtype_info(dtype)->name,
             dtype_info(form.dtype)->name, w->n, w->k);
    r.shape = shape;
    r.bytes = (double)dtype_panels_bytes(dtype, w->n, w->k) +
              (double)weight_bytes(form.layout, form.dtype, w->n, w->k);
    return bench_result(run, &r);
}

/* Formats that the device reads as stored have no row. */
enum err bench_device_decode(const struct bench_run *run, const struct bench_model *model)
{
    struct device *d = run->device->device;
    if (run->only && strcmp(run->only, "decode") != 0)
        return OK;
    for (int f = 0; f < N_FORMATS; f++) {
        const struct weight_form stored = {formats[f], WEIGHT_PANELS, 0};
        const struct weight_form form = d->api->reads(d, run->device->ops.compute, formats[f]);
        if (!same_form(form, stored) && dtype_row_bytes(formats[f], model->dim) >= 0)
            TRY(decode_row(run, model, formats[f], form));
    }
    return OK;
}

/* ---- roofs ---- */

struct stretch {
    struct bench_memory memory;
    int64_t half_bytes;
    int turn;
};

static void stretch_call(void *ctx)
{
    struct stretch *s = ctx;
    uint8_t *a = s->memory.more, *b = a + s->half_bytes;
    int back = s->turn++ & 1;
    ops_copy(&s->memory.device->ops, back ? a : b, back ? b : a, s->half_bytes);
}

enum err bench_device_roofs(struct bench_device *d, struct bench_roof *roof)
{
    struct stretch s = {.memory = {.device = d}};
    double seconds = 0;
    s.half_bytes = min_i64(STRETCH_MOST, d->room - ALIGN) / (2 * ALIGN) * ALIGN;
    s.memory.more_bytes = 2 * s.half_bytes;
    enum err err = bench_memory_open(&s.memory, "a stretch to copy");
    if (err == OK) {
        ops_fill(&d->ops, s.memory.more, 0x33, 2 * s.half_bytes);
        err = bench_device_seconds(d, stretch_call, &s, &seconds);
    }
    bench_memory_close(&s.memory);
    TRY(err);
    roof->ram = 2.0 * (double)s.half_bytes / seconds; // read and written
    return matmul_roof(d, d->ops.compute, &roof->flops);
}

/* ---- launch: a norm of one row, the smallest op of a step ---- */

struct launch_bench {
    struct bench_memory memory;
    struct norm_args args;
};

static void launch_call(void *ctx)
{
    const struct launch_bench *b = ctx;
    ops_run_norm(&b->memory.device->ops, &b->args);
}

static void launch_carve(struct launch_bench *b, struct arena *a)
{
    float *numbers = ARENA_ARRAY(a, float, 3 * b->args.dim);
    b->args.x = numbers;
    b->args.weight = numbers + b->args.dim;
    b->args.y = numbers + 2 * b->args.dim;
}

static enum err launch_measure(struct launch_bench *b, double *seconds)
{
    launch_carve(b, &b->memory.host);
    TRY(bench_memory_open(&b->memory, "launch"));
    launch_carve(b, &b->memory.host);
    for (int i = 0; i < 2 * b->args.dim; i++)
        ((float *)(void *)b->memory.host.base)[i] = 1;
    TRY(bench_memory_send(&b->memory));
    launch_carve(b, &b->memory.near);
    return bench_device_seconds(b->memory.device, launch_call, b, seconds);
}

enum err bench_device_launch(const struct bench_run *run, const struct bench_model *model)
{
    const int dim = model->dim;
    struct launch_bench b = {
        .memory = {.device = run->device},
        .args = {.m = 1, .dim = dim, .x_stride = dim, .y_stride = dim, .kind = NORM_RMS, .eps = 1}};
    struct bench_result r = {.op = "launch", .model = model->name, .kind = "launch"};
    if (run->only && strcmp(run->only, "launch") != 0)
        return OK;
    enum err err = launch_measure(&b, &r.seconds);
    bench_memory_close(&b.memory);
    TRY(err);
    r.shape = "device: norm of a row";
    TRY(bench_result(run, &r));
    r.seconds = run->device->queued_s;
    r.shape = "host: norm of a row";
    return bench_result(run, &r);
}
