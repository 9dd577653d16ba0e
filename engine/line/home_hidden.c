/* engine/line/home_hidden.c - hidden states of home.h: near the compute, or through frames. */
#include "engine/line/home.h"

static struct plan_home home_of(const struct home *h, int batch)
{
    return plan_hidden_home(h->plan, batch);
}

int home_hidden_moves(const struct home *h, int batch)
{
    return home_of(h, batch).tier != plan_near(h->plan);
}

/* Cuts the states into segments; a bad segment costs only the rows in it. */
static int segments_of(const struct home *h, struct frame *f, int batch, int64_t numbers)
{
    int64_t n_bytes = round_up(numbers * 4, 4096);
    uint64_t identity[3] = {h->run_number, (uint64_t)batch, h->hidden_generation[batch]};
    uint32_t seed = crc32c(0, identity, sizeof identity);
    struct plan_home home = home_of(h, batch);
    int64_t first = h->hidden_offset[home.tier] + home.rank * h->hidden_frame_bytes;
    int n = 0;
    for (int64_t at = 0; at < n_bytes; at += PIECE_BYTES, n++)
        f->segments[n] = (struct segment){
            .offset = first + at,
            .n_bytes = min_i64(PIECE_BYTES, n_bytes - at),
            .buf = f->base + at,
            .crc = home.tier == TIER_NVME ? h->hidden_crc + (int64_t)batch * h->hidden_units + n
                                          : NULL,
            .seed = seed};
    return n;
}

static struct frame_use use_of(struct home *h, int64_t step, int batch)
{
    return (struct frame_use){.step = step,
                              .place = mover_place_of(home_of(h, batch).tier),
                              .layer = -1,
                              .batch = batch,
                              .last = &h->hidden_last[batch]};
}

enum err home_hidden_fetch(struct home *h, int64_t step, int batch, int64_t numbers)
{
    if (!home_hidden_moves(h, batch) || numbers == 0)
        return OK;
    struct frame *f;
    TRY(frames_take(&h->hidden_frames, step, &f));
    int n = segments_of(h, f, batch, numbers);
    frames_fetch(&h->hidden_frames, f, n, use_of(h, step, batch));
    return OK;
}

enum err home_hidden_get(struct home *h, int64_t step, int batch, int64_t first_token, float **x)
{
    if (!home_hidden_moves(h, batch)) {
        *x =
            (float *)(void *)h->hidden + first_token * shape_before_part(&h->model->shape, N_PARTS);
        return OK;
    }
    struct frame *f = frames_of(&h->hidden_frames, step);
    if (!f)
        TRY(frames_take(&h->hidden_frames, step, &f));
    else
        TRY(frames_ready(&h->hidden_frames, f));
    for (int i = 0; f->bad && i < f->read.n_segments; i++)
        if (f->segments[i].err != OK)
            ops_fill(h->ops, f->segments[i].buf, 0, f->segments[i].n_bytes);
    *x = (float *)(void *)f->base;
    return OK;
}

enum err home_hidden_came(const struct home *h, int64_t step, int64_t first, int64_t n)
{
    const struct frame *f = frames_of(&h->hidden_frames, step);
    if (!f || !f->bad)
        return OK;
    enum err err = OK;
    for (int64_t i = first * 4 / PIECE_BYTES; n > 0 && i * PIECE_BYTES < (first + n) * 4; i++)
        err = err == OK ? f->segments[i].err : err;
    return err;
}

enum err home_hidden_put(struct home *h, int64_t step, int batch, int64_t numbers, int write)
{
    struct frame *f = home_hidden_moves(h, batch) ? frames_of(&h->hidden_frames, step) : NULL;
    if (!f)
        return OK;
    TRY(frames_ready(&h->hidden_frames, f));
    int n = 0;
    if (write && numbers > 0) {
        h->hidden_generation[batch]++;
        n = segments_of(h, f, batch, numbers);
    }
    frames_store(&h->hidden_frames, f, n, use_of(h, step, batch));
    return OK;
}
