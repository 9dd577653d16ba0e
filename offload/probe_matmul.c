/* offload/probe_matmul.c - of probe.h: one matmul, or all those of a machine file, and step_s.
 *
 * Owns: the weights that they read. Note: the weights are copies of one panel, end to end, and a
 * call of n outputs reads the next n / 32 panels. A machine that is slow at many rows computes
 * fewer outputs. */
#include "offload/probe_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_S        0.02  // seconds per format and M
#define CELL_LEAST    3     // calls, at least
#define CALL_S        0.015 // seconds of one call, where outputs can be left out
#define OUTPUTS       2048
#define OUTPUTS_LEAST 128

enum err probe_fill_panels(enum dtype t, int k, uint8_t *base, int64_t n_bytes)
{
    int64_t row_bytes = dtype_row_bytes(dtype_of_rows(t), k), panel_bytes = dtype_panel_bytes(t, k);
    uint8_t *row = malloc((size_t)round_up(row_bytes, 64));
    if (!row)
        return fail(ERR_FIT, "no memory for %lld bytes to measure matmuls", (long long)row_bytes);
    /* Small normal numbers as f32, f16 and bf16, and valid scales and quants. */
    for (int64_t i = 0; i < row_bytes; i++)
        row[i] = (uint8_t)(0x30 + mix64((uint64_t)i) % 12);
    const void *rows[PANEL_ROWS];
    for (int i = 0; i < PANEL_ROWS; i++)
        rows[i] = row;
    panel_pack(t, rows, k, base);
    for (int64_t at = panel_bytes; at + panel_bytes <= n_bytes; at += panel_bytes)
        memcpy(base + at, base, (size_t)panel_bytes);
    free(row);
    return OK;
}

/* Room for p->m rows and p->n outputs. */
static void bed_carve(struct matmul_bed *b, const struct probe_matmul *p, struct arena *a)
{
    b->panels = arena_take(a, b->panels_bytes, 4096);
    b->x = arena_take(a, (int64_t)p->m * p->k * 4, 4096);
    b->y = arena_take(a, (int64_t)p->m * p->n * 4, 4096);
    b->scratch = arena_take(a, matmul_scratch_bytes(b->ops, p->m, p->n, p->k), 4096);
}

int64_t probe_bed_bytes(struct matmul_bed b, const struct probe_matmul *p)
{
    arena_init(&b.arena);
    bed_carve(&b, p, &b.arena);
    return b.arena.used;
}

enum err probe_bed_open(struct matmul_bed *b, const struct probe_config *c,
                        const struct probe_matmul *p)
{
    TRY(probe_arena_open(&b->arena, c, probe_bed_bytes(*b, p)));
    arena_populate(b->arena.base, b->arena.capacity, b->ops->pool);
    bed_carve(b, p, &b->arena);
    for (int64_t i = 0; i < (int64_t)p->m * p->k; i++)
        b->x[i] = (float)(mix64((uint64_t)i) % 1024) * 0x1p-10f;
    return OK;
}

void probe_bed_shape(struct matmul_bed *b, const struct probe_matmul *p)
{
    b->panel_bytes = dtype_panel_bytes(p->dtype, p->k);
    b->args = (struct matmul_args){
        .x = b->x,
        .m = p->m,
        .x_stride = p->k,
        .parts = {{.w = {.dtype = p->dtype, .n = p->n, .k = p->k}, .y = b->y, .y_stride = p->n}},
        .n_parts = 1,
        .scratch = b->scratch};
}

void probe_bed_turn(void *ctx, int i)
{
    struct matmul_bed *b = ctx;
    int64_t take = ceil_div(b->args.parts[0].w.n, PANEL_ROWS);
    (void)i;
    if (b->next + take > b->panels_bytes / b->panel_bytes)
        b->next = 0;
    b->args.parts[0].w.panels = b->panels + b->next * b->panel_bytes;
    b->next += take;
    ops_run_matmul(b->ops, &b->args);
}

static struct rate bed_rate(struct matmul_bed *b, const struct probe_matmul *p, int least)
{
    probe_bed_shape(b, p);
    return probe_loop(&(struct probe_loop){.turn = probe_bed_turn,
                                           .ctx = b,
                                           .amount = 2.0 * p->m * p->n * p->k,
                                           .seconds = p->seconds,
                                           .least = least});
}

enum err probe_matmul(const struct ops *ops, const struct probe_matmul *p, struct rate *flops,
                      int64_t *copy_bytes)
{
    const struct probe_config c = {.ops = ops};
    if (p->m < 1 || p->n < 1 || dtype_row_bytes(p->dtype, p->k) < 0)
        return fail(ERR_USAGE, "matmul [%d, %d, %d]: %s cannot store rows of this length", p->m,
                    p->n, p->k, dtype_info(p->dtype)->name);
    int64_t copy = dtype_panels_bytes(p->dtype, p->n, p->k);
    int64_t n_copies = max_i64(p->weight_bytes / copy, 1);
    if (copy_bytes)
        *copy_bytes = copy;
    struct matmul_bed b = {.ops = ops, .panels_bytes = n_copies * copy};
    TRY(probe_bed_open(&b, &c, p));
    enum err err = probe_fill_panels(p->dtype, p->k, b.panels, b.panels_bytes);
    if (err == OK)
        *flops = bed_rate(&b, p, (int)min_i64(n_copies, 8));
    arena_close(&b.arena);
    return err;
}

/* ---- all matmuls of a machine file ---- */

/* All M of one format; p.n: outputs of the first call. The next M has four times the rows, so
 * outputs are halved while the next call would take longer than CALL_S. */
static void measure_format(struct machine *m, const struct probe_config *c, struct matmul_bed *b,
                           enum matmul_format format, struct probe_matmul p)
{
    double call_s = 0;
    for (int i = 0; i < N_MATMUL_ROWS; i++) {
        enum machine_rate id = machine_matmul_rate(format, i);
        while (call_s * 4 > CALL_S && p.n > OUTPUTS_LEAST) {
            p.n /= 2;
            call_s /= 2;
        }
        p.m = matmul_rows[i];
        m->rates[id] = bed_rate(b, &p, CELL_LEAST);
        call_s = 2.0 * p.m * p.n * p.k / m->rates[id].value;
        probe_say(c, id, &m->rates[id]);
    }
}

/* step_s: the fixed cost of a step, PROBE_STEP_OPS matmuls of almost no bytes and FLOPs. */
static enum err measure_step(struct machine *m, const struct probe_config *c)
{
    struct probe_matmul tiny = {
        .dtype = DTYPE_BF16, .m = 1, .n = 64, .k = 64, .seconds = probe_seconds(c, 0.03)};
    struct rate flops;
    TRY(probe_matmul(c->ops, &tiny, &flops, NULL));
    double s = PROBE_STEP_OPS * 2.0 * tiny.n * tiny.k / flops.value;
    m->step_s = (struct rate){s, s * flops.spread / flops.value, flops.n};
    probe_say(c, RATE_step_s, &m->step_s);
    return OK;
}

enum err probe_matmuls(struct machine *m, const struct probe_config *c)
{
    static const enum dtype formats[N_MATMUL_FORMATS] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8, DTYPE_Q4};
    struct matmul_bed b = {.ops = c->ops, .panels_bytes = probe_ram_bytes(c) - PROBE_BESIDE_BYTES};
    struct probe_matmul p = {.m = matmul_rows[N_MATMUL_ROWS - 1],
                             .n = OUTPUTS,
                             .k = OUTPUTS,
                             .seconds = probe_seconds(c, CELL_S)};
    /* Little memory, or many threads: each packs inputs of its own, of length k. */
    while (p.k > OUTPUTS_LEAST &&
           (b.panels_bytes < dtype_panels_bytes(DTYPE_F32, p.n, p.k) ||
            (c->memory_bytes > 0 && probe_bed_bytes(b, &p) > c->memory_bytes))) {
        p.n = p.k /= 2;
        b.panels_bytes = probe_ram_bytes(c) / 2;
    }
    TRY(probe_bed_open(&b, c, &p));
    enum err err = OK;
    for (int f = 0; f < N_MATMUL_FORMATS && err == OK; f++) {
        p.dtype = formats[f];
        err = probe_fill_panels(p.dtype, p.k, b.panels, b.panels_bytes);
        if (err == OK)
            measure_format(m, c, &b, (enum matmul_format)f, p);
    }
    arena_close(&b.arena);
    TRY(err);
    const int int8 = c->ops->compute == COMPUTE_INT8;
    m->matmul_flops = int8 ? m->matmul_q8_m64 : m->matmul_bf16_m64;
    probe_say(c, RATE_matmul_flops, &m->matmul_flops);
    return measure_step(m, c);
}
