/* kernels/cpu/decode_op.c - the decode op: converts whole matrices of panels to the format that
 * matmuls read.
 *
 * Owns: the split of panels over threads. Refuses: formats (the tables of decode.h). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/decode.h"

struct decode_task {
    const struct decode_args *args;
    const struct panel_decoder *table;
};

static void decode_part(void *ctx, int thread, int n_threads)
{
    const struct decode_task *t = ctx;
    const struct weight *w = &t->args->w;
    int64_t from_bytes = dtype_panel_bytes(w->dtype, w->k);
    int64_t to_bytes = dtype_panel_bytes(t->args->to, w->k);
    int64_t panel, last;
    pool_split(ceil_div(w->n, PANEL_ROWS), thread, n_threads, &panel, &last);
    for (; panel < last; panel++) {
        const uint8_t *from = (const uint8_t *)w->panels + panel * from_bytes;
        uint8_t *to = (uint8_t *)t->args->panels + panel * to_bytes;
        if (t->args->to == DTYPE_BF16)
            cpu_decode_bf16(t->table, w->dtype, from, w->k, 0, w->k, (uint16_t *)(void *)to);
        else
            cpu_decode_f32(t->table, w->dtype, from, w->k, 0, w->k, (float *)(void *)to);
    }
}

static void decode(const struct ops *ops, const struct decode_args *args,
                   const struct panel_decoder *table)
{
    CHECK(args->to == DTYPE_BF16 || args->to == DTYPE_F32);
    CHECK(args->w.layout == WEIGHT_PANELS && args->layout == WEIGHT_PANELS);
    struct decode_task t = {args, table};
    pool_run(ops->pool, decode_part, &t);
}

void cpu_decode_portable(const struct ops *ops, const struct decode_args *args)
{
    decode(ops, args, cpu_decoders_portable);
}

void cpu_decode_avx2(const struct ops *ops, const struct decode_args *args)
{
    decode(ops, args, cpu_decoders_avx2);
}

void cpu_decode_avx512(const struct ops *ops, const struct decode_args *args)
{
    decode(ops, args, cpu_decoders_avx512);
}
