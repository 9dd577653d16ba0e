/* engine/line/home_experts.c - the experts of a streamed layer, in a pass that uses few of them.
 *
 * Owns: which pieces of a layer are in its frame. A piece (1 MiB) has one checksum; some pieces
 * contain the end of one expert and the start of the next. Refuses: choosing experts (the router
 * does).
 *
 * Note: experts are read once the router has chosen, and the compute waits meanwhile. So a pass
 * does this only if it uses less than half of the experts (plan.experts_few). */
#include "engine/line/home.h"

#include <string.h>

static int64_t piece_end(const struct model_layer *l, int64_t piece)
{
    return min_i64((piece + 1) * PIECE_BYTES, l->n_bytes);
}

/* 1: the piece contains experts only. */
static int is_experts(const struct model_layer *l, int64_t piece)
{
    const role_set of_experts = ROLE_BIT(ROLE_GATE) | ROLE_BIT(ROLE_UP) | ROLE_BIT(ROLE_DOWN);
    role_set held = 0;
    for (int role = 0; role < N_ROLES; role++) {
        const struct model_tensor *t = &l->tensors[role];
        if (t->n > 0 && piece_end(l, piece) > t->offset &&
            piece * PIECE_BYTES < t->offset + role_bytes(role, t->dtype, t->n, t->k))
            held |= ROLE_BIT(role);
    }
    return held != 0 && (held & ~of_experts) == 0;
}

int64_t home_experts_bytes(const struct model_layer *l)
{
    int64_t n_bytes = 0;
    if (!model_has(l, ROLE_ROUTER))
        return 0;
    for (int64_t piece = 0; piece < model_pieces(l); piece++)
        n_bytes += is_experts(l, piece) ? piece_end(l, piece) - piece * PIECE_BYTES : 0;
    return n_bytes;
}

static int has(const struct weight_home *w, int64_t piece)
{
    return (int)(w->pieces[piece >> 6] >> (piece & 63) & 1);
}

/* Adds a piece to the ticket's segments, in ascending order. */
static void add_piece(const struct home *h, int layer, int64_t piece, int *n)
{
    struct weight_home *w = &h->weights[layer];
    const struct model_layer *l = &h->model->layers[layer];
    int64_t at = piece * PIECE_BYTES, n_bytes = piece_end(l, piece) - at;
    struct segment *last = *n > 0 ? &w->segments[*n - 1] : NULL;
    w->pieces[piece >> 6] |= 1ull << (piece & 63);
    if (last && last->offset + last->n_bytes == w->at + at) {
        last->n_bytes += n_bytes;
        return;
    }
    w->segments[(*n)++] = (struct segment){.offset = w->at + at,
                                           .n_bytes = n_bytes,
                                           .buf = home_weights_frame(h, layer) + at,
                                           .crc = h->model->piece_crcs + l->piece + piece};
}

static void submit(struct home *h, struct weight_home *w, int layer, int n, int64_t due)
{
    w->ticket = (struct ticket){.place = w->place,
                                .segments = w->segments,
                                .n_segments = n,
                                .due = due,
                                .name = "weights",
                                .layer = layer,
                                .batch = -1};
    mover_submit(h->mover, &w->ticket);
}

int home_experts_leave(struct home *h, int layer, int64_t due)
{
    struct weight_home *w = &h->weights[layer];
    const struct model_layer *l = &h->model->layers[layer];
    int n = 0;
    if (w->resident || !model_has(l, ROLE_ROUTER))
        return 0;
    w->pieces = slab_at(&h->weight_pieces, w->frame);
    w->segments = slab_at(&h->weight_segments, w->frame);
    memset(w->pieces, 0, (size_t)ceil_div(model_pieces(l), 64) * 8);
    for (int64_t piece = 0; piece < model_pieces(l); piece++)
        if (!is_experts(l, piece))
            add_piece(h, layer, piece, &n);
    submit(h, w, layer, n, due);
    return 1;
}

/* 1: an expert that has tokens overlaps the piece. */
static int is_wanted(const struct model_layer *l, const struct route *route, int64_t piece)
{
    static const enum tensor_role matrices[] = {ROLE_GATE, ROLE_UP, ROLE_DOWN};
    for (int i = 0; i < (int)(sizeof matrices / sizeof *matrices); i++) {
        const struct model_tensor *t = &l->tensors[matrices[i]];
        if (t->n == 0)
            continue;
        const int64_t each = weight_bytes(t->layout, t->dtype, t->n / route->n_experts, t->k);
        int64_t begin = piece * PIECE_BYTES - t->offset, end = piece_end(l, piece) - t->offset;
        int64_t e = max_i64(begin, 0) / each;
        for (; e < route->n_experts && e * each < end; e++)
            if (route->first[e + 1] > route->first[e])
                return 1;
    }
    return 0;
}

enum err home_experts_bring(struct home *h, int layer, const struct route *route, int64_t step)
{
    struct weight_home *w = &h->weights[layer];
    const struct model_layer *l = &h->model->layers[layer];
    int n = 0;
    if (!w->pieces)
        return OK;
    for (int64_t piece = 0; piece < model_pieces(l); piece++)
        if (!has(w, piece) && is_wanted(l, route, piece))
            add_piece(h, layer, piece, &n);
    if (n == 0)
        return OK;
    submit(h, w, layer, n, step);
    return frames_wait(h->mover, h->trace, &w->ticket, step);
}
