/* engine/model/pack_choose.c - chooses the matrices of a pack that become bf12: those that lose
 * nothing and get smaller.
 *
 * Owns: the first pass over all numbers, before the layout. Refuses: packing (pack_write.c). Note:
 * numbers are read twice, because the sizes of all extents must be known before the first byte is
 * written, and one panel that does not fit keeps its whole matrix bf16. */
#include "engine/model/pack.h"

#include <stdlib.h>

int pack_copies(const struct pack_provider *p, enum tensor_role role)
{
    return role_place(role) == ROLE_IN_DECODER ? p->shape.n_layers : 1;
}

int pack_has(const struct pack_provider *p, enum tensor_role role, int layer)
{
    return (p->roles & ROLE_BIT(role)) != 0 && role_in_layer(&p->shape, role, layer);
}

struct chooser {
    const struct pack_request *r; // borrowed
    uint8_t *raw;                 // owned: one row as in the file
    float *numbers;               // owned: [k]
    uint16_t *rows;               // owned: [32][k] bf16
    int64_t done_bytes, total_bytes;
    int64_t told_bytes; // done_bytes at the last call of progress
};

static int is_candidate(const struct pack_request *r, int role, int layer)
{
    const struct pack_provider *p = r->provider;
    if (!pack_has(p, role, layer) || role_kind(role) != ROLE_IS_PANELS)
        return 0;
    return r->weights == PACK_BF12 ||
           (r->weights == PACK_AUTO && p->dtype(p->impl, role, layer) == DTYPE_BF16);
}

static enum err open_buffers(struct chooser *c)
{
    const struct pack_provider *p = c->r->provider;
    int64_t raw_bytes = 1, k_max = 1;
    for (int role = 0; role < N_ROLES; role++)
        for (int layer = 0; layer < pack_copies(p, role); layer++) {
            if (!is_candidate(c->r, role, layer))
                continue;
            int n, k;
            role_dims(&p->shape, role, layer, &n, &k);
            raw_bytes = max_i64(raw_bytes, dtype_row_bytes(p->dtype(p->impl, role, layer), k));
            k_max = max_i64(k_max, k);
            c->total_bytes += (int64_t)n * k * 2;
        }
    c->raw = aligned_alloc(64, (size_t)round_up(raw_bytes, 64));
    c->numbers = aligned_alloc(64, (size_t)round_up(k_max * 4, 64));
    c->rows = aligned_alloc(64, (size_t)round_up(k_max * 2 * PANEL_ROWS, 64));
    return c->raw && c->numbers && c->rows ? OK
                                           : fail(ERR_FIT, "no memory for the rows of %s", p->name);
}

/* Rows [first, first + n) of a matrix as bf16, rounded as the writer will. */
static enum err read_rows(struct chooser *c, int role, int layer, int first, int n, int k)
{
    const struct pack_provider *p = c->r->provider;
    enum dtype source = p->dtype(p->impl, role, layer);
    if (source == DTYPE_BF16)
        return p->rows(p->impl, role, layer, first, n, c->rows);
    for (int i = 0; i < n; i++) {
        TRY(p->rows(p->impl, role, layer, first + i, 1, c->raw));
        dtype_decode_row(source, c->raw, k, c->numbers);
        dtype_encode_row(DTYPE_BF16, c->numbers, k, c->rows + (int64_t)i * k);
    }
    return OK;
}

static enum err tell(struct chooser *c, int64_t n_bytes)
{
    c->done_bytes += n_bytes;
    if (!c->r->progress ||
        (c->done_bytes - c->told_bytes < PIECE_BYTES && c->done_bytes < c->total_bytes))
        return OK;
    c->told_bytes = c->done_bytes;
    return c->r->progress(c->r->ctx, c->done_bytes, c->total_bytes);
}

static enum err choose_matrix(struct chooser *c, int role, int layer, uint8_t *bf12)
{
    int n, k;
    role_dims(&c->r->provider->shape, role, layer, &n, &k);
    const int64_t bytes = dtype_panel_bytes(DTYPE_BF12, k);
    *bf12 = bytes > 0 && bytes < dtype_panel_bytes(DTYPE_BF16, k);
    int first = 0;
    for (; first < n && *bf12; first += PANEL_ROWS) {
        const void *rows[PANEL_ROWS] = {0};
        const int n_rows = (int)min_i64(PANEL_ROWS, n - first);
        TRY(read_rows(c, role, layer, first, n_rows, k));
        for (int i = 0; i < n_rows; i++)
            rows[i] = c->rows + (int64_t)i * k;
        *bf12 = bf12_fits(rows, k) != 0;
        if (*bf12 && c->r->provider->dummy) // all its numbers are alike: see dummy.h
            return tell(c, (int64_t)(n - first) * k * 2);
        TRY(tell(c, (int64_t)n_rows * k * 2));
    }
    return first < n ? tell(c, (int64_t)(n - first) * k * 2) : OK;
}

enum err pack_choose_bf12(const struct pack_request *r, uint8_t *bf12)
{
    struct chooser c = {.r = r};
    enum err e = open_buffers(&c);
    for (int role = 0; role < N_ROLES; role++)
        for (int layer = 0; e == OK && layer < pack_copies(r->provider, role); layer++)
            if (is_candidate(r, role, layer))
                e = choose_matrix(&c, role, layer, &bf12[layer * N_ROLES + role]);
    free(c.raw);
    free(c.numbers);
    free(c.rows);
    return e;
}
