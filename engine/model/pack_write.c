/* engine/model/pack_write.c - writes a pack: layout, contents, and the final name at the end.
 *
 * Owns: the order and alignment of tensors, the cut of the head into slices, conversion of rows,
 * the temporary file. Refuses: whole tensors in memory: it holds 32 rows, their panel, and one more
 * row. Note: every slice repeats the final norm and proj_out, so that its own extent suffices to
 * compute it. */
#include "engine/model/pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "kernels/base/whole.h"

#define TMP_INFIX ".tmp."

struct writer {
    const struct pack_request *r;  // borrowed
    const struct pack_provider *p; // borrowed: the request's
    struct model_layer *layers;    // owned: [n_layers]
    int n_layers, n_slices;
    int64_t n_params;
    int64_t end;    // file offset after the last extent
    uint32_t *crcs; // owned: [n_pieces]
    int64_t n_pieces;
    uint32_t *row_crcs; // owned: [vocab] of the embedding's records, which are gathered
    int64_t row_bytes_max, rows_bytes, panel_bytes; // sizes of the buffers
    int k_max;
    uint8_t *bf12;               // owned: [n_layers][N_ROLES] 1: becomes bf12
    uint8_t *raw, *rows, *panel; // owned: one source row; 32 rows to write; their panel, or records
    float *numbers;              // owned: [k_max]
    uint8_t *memory;             // borrowed: address for a layer made in memory; else NULL
    int64_t memory_offset;       // file offset of that layer's extent
    int fd;
    int64_t pos;        // write position in the file
    int64_t piece_left; // bytes missing in the current piece
    uint32_t crc;       // CRC of the current piece so far
    int64_t piece;      // index of the current piece
    int layer;          // line layer being written
    struct model_range range;
    struct standing was; // the file at the pack's path before
    char tmp[PATH_MAX], folder[PATH_MAX];
};

static enum dtype stored_as(const struct writer *w, enum tensor_role role, int layer)
{
    if (role_kind(role) == ROLE_IS_VECTOR)
        return DTYPE_F32;
    enum dtype source = w->p->dtype(w->p->impl, role, layer);
    static const enum dtype wanted[N_PACK_WEIGHTS] = {
        [PACK_F32] = DTYPE_F32, [PACK_F16] = DTYPE_F16, [PACK_BF16] = DTYPE_BF16,
        [PACK_Q8] = DTYPE_Q8,   [PACK_Q4] = DTYPE_Q4,   [PACK_BF12] = DTYPE_BF16,
    };
    if (w->bf12[layer * N_ROLES + role])
        return DTYPE_BF12;
    enum dtype t = w->r->weights == PACK_AUTO ? source : wanted[w->r->weights];
    if (role_is_choice(role)) // its format before bf12
        return dtype_of_rows(source);
    if (role == ROLE_POS &&
        dtype_info(t)->block > 1) // never in blocks: they are added to the hidden states
        return dtype_info(source)->block > 1 ? DTYPE_F32 : source;
    return t;
}

/* Assigns an offset to every tensor of a line layer. `vocab_rows` > 0 for slices. */
static enum err place_layer(struct writer *w, struct model_layer *l, enum role_place place,
                            int layer, int vocab_rows)
{
    const struct shape *s = &w->p->shape;
    int64_t at = 0;
    l->vocab_rows = vocab_rows;
    for (int role = 0; role < N_ROLES; role++) {
        if (role_place(role) != place || !pack_has(w->p, role, layer))
            continue;
        struct model_tensor *t = &l->tensors[role];
        role_dims(s, role, layer, &t->n, &t->k);
        if (role == ROLE_HEAD)
            t->n = vocab_rows;
        t->dtype = stored_as(w, role, layer);
        t->offset = role == ROLE_INPUTS_EMBED ? model_record_at(l, role) : at;
        int64_t n_bytes = role_bytes(role, t->dtype, t->n, t->k);
        if (n_bytes < 0)
            return fail(ERR_INPUT, "%s: %s: rows of %d numbers are not whole blocks of %s",
                        w->p->name, role_name(role), t->k, dtype_info(t->dtype)->name);
        at += n_bytes;
        if (role == ROLE_INPUTS_EMBED) // beside the rows before
            at = model_record_bytes(l) * t->n;
        at = round_up(at, 64);
    }
    l->n_bytes = round_up(max_i64(at, 1), BLOCK_BYTES);
    return OK;
}

/* As many vocabulary tiles as fit in the size of the largest decoder layer, so that one frame
 * serves both. */
static enum err slice_rows(struct writer *w, int64_t bytes_max, int *rows)
{
    int vocab = w->p->shape.vocab;
    *rows = (int)min_i64(HEAD_TILE, vocab);
    while (*rows < vocab) {
        struct model_layer l = {0};
        int more = (int)min_i64(*rows + HEAD_TILE, vocab);
        TRY(place_layer(w, &l, ROLE_IN_SLICE, 0, more));
        if (l.n_bytes > bytes_max)
            break;
        *rows = more;
    }
    return OK;
}

static void count_params(struct writer *w)
{
    const struct pack_provider *p = w->p;
    for (int role = 0; role < N_ROLES; role++) {
        if (!(p->roles & ROLE_BIT(role)) || (role == ROLE_HEAD && p->tied))
            continue;
        for (int layer = 0; layer < pack_copies(p, role); layer++) {
            int n, k;
            role_dims(&p->shape, role, layer, &n, &k);
            w->n_params += pack_has(p, role, layer) ? (int64_t)n * k : 0;
        }
    }
}

/* The provider's index of a layer: decoder layers count from 0. */
static int decoder_of(const struct writer *w, int index)
{
    return index >= 1 && index <= w->p->shape.n_layers ? index - 1 : 0;
}

static void measure_tensor(struct writer *w, enum tensor_role role, int layer,
                           const struct model_tensor *t)
{
    w->k_max = (int)max_i64(w->k_max, role_kind(role) == ROLE_IS_VECTOR ? t->n : t->k);
    if (role_kind(role) == ROLE_IS_VECTOR)
        return;
    enum dtype source = w->p->dtype(w->p->impl, role, layer);
    w->row_bytes_max = max_i64(w->row_bytes_max, dtype_row_bytes(source, t->k));
    w->rows_bytes = max_i64(w->rows_bytes, PANEL_ROWS * dtype_row_bytes(t->dtype, t->k));
    w->panel_bytes = max_i64(w->panel_bytes, dtype_panel_bytes(t->dtype, t->k));
}

static void measure_layer(struct writer *w, int index)
{
    const struct model_layer *l = &w->layers[index];
    for (int role = 0; role < N_ROLES; role++)
        if (model_has(l, role))
            measure_tensor(w, role, decoder_of(w, index), &l->tensors[role]);
    if (index == 0)
        w->panel_bytes = max_i64(w->panel_bytes, PANEL_ROWS * model_record_bytes(l));
}

static enum err lay_out(struct writer *w)
{
    const struct shape *s = &w->p->shape;
    int64_t n_max = 1 + (int64_t)s->n_layers + ceil_div(s->vocab, HEAD_TILE);
    w->layers = calloc((size_t)n_max, sizeof *w->layers);
    if (!w->layers)
        return fail(ERR_FIT, "no memory for the directory of %s", w->p->name);
    TRY(place_layer(w, &w->layers[0], ROLE_IN_EMBEDDING, 0, 0));
    int64_t decoder_max = 0;
    for (int i = 0; i < s->n_layers; i++) {
        TRY(place_layer(w, &w->layers[1 + i], ROLE_IN_DECODER, i, 0));
        decoder_max = max_i64(decoder_max, w->layers[1 + i].n_bytes);
    }
    w->n_layers = 1 + s->n_layers;
    int rows;
    TRY(slice_rows(w, decoder_max, &rows));
    for (int first = 0; first < s->vocab; first += rows) {
        struct model_layer *l = &w->layers[w->n_layers++];
        TRY(place_layer(w, l, ROLE_IN_SLICE, 0, (int)min_i64(rows, s->vocab - first)));
        l->vocab_first = first;
    }
    w->n_slices = w->n_layers - 1 - s->n_layers;
    w->end = BLOCK_BYTES;
    for (int i = 0; i < w->n_layers; i++) {
        struct model_layer *l = &w->layers[i];
        l->offset = w->end;
        l->piece = w->n_pieces;
        w->end += l->n_bytes;
        w->n_pieces += model_pieces(l);
        l->absent = w->r->on_demand;
        measure_layer(w, i);
    }
    count_params(w);
    return OK;
}

static enum err take_buffers(struct writer *w)
{
    w->raw = aligned_alloc(64, (size_t)round_up(max_i64(w->row_bytes_max, 1), 64));
    w->rows = aligned_alloc(64, (size_t)round_up(max_i64(w->rows_bytes, 1), 64));
    w->panel = aligned_alloc(64, (size_t)round_up(max_i64(w->panel_bytes, 1), 64));
    w->numbers = aligned_alloc(64, (size_t)round_up((int64_t)sizeof(float) * w->k_max, 64));
    if (!w->raw || !w->rows || !w->panel || !w->numbers)
        return fail(ERR_FIT, "no memory for the rows of %s", w->p->name);
    return OK;
}

static void free_buffers(struct writer *w)
{
    free(w->raw);
    free(w->rows);
    free(w->panel);
    free(w->numbers);
}

static enum err take_tables(struct writer *w)
{
    w->crcs = calloc((size_t)w->n_pieces, sizeof *w->crcs);
    w->row_crcs = calloc((size_t)w->p->shape.vocab, sizeof *w->row_crcs);
    return w->crcs && w->row_crcs ? OK
                                  : fail(ERR_FIT, "no memory for the checksums of %s", w->p->name);
}

static enum err write_at(struct writer *w, int64_t offset, const void *data, int64_t n_bytes)
{
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t put =
            pwrite(w->fd, (const uint8_t *)data + done, (size_t)(n_bytes - done), offset + done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return fail(ERR_IO, "%s: write at %lld of %lld: %s", w->tmp, (long long)(offset + done),
                        (long long)w->end, put < 0 ? strerror(errno) : "no bytes were written");
        done += put;
    }
    return OK;
}

/* Appends to the current extent and to the CRC of its current piece. */
static enum err append(struct writer *w, const void *data, int64_t n_bytes)
{
    const uint8_t *from = data;
    if (w->memory) {
        uint8_t *to = w->memory + (w->pos - w->memory_offset);
        if (to != from) // a panel may be made in place
            memcpy(to, from, (size_t)n_bytes);
        w->pos += n_bytes;
        return OK;
    }
    TRY(write_at(w, w->pos, data, n_bytes));
    w->pos += n_bytes;
    while (n_bytes > 0) {
        int64_t n = min_i64(n_bytes, w->piece_left);
        w->crc = crc32c(w->crc, from, n);
        from += n;
        n_bytes -= n;
        w->piece_left -= n;
        if (w->piece_left > 0)
            continue;
        CHECK(w->piece < w->n_pieces);
        w->crcs[w->piece++] = w->crc;
        w->crc = 0;
        w->piece_left = PIECE_BYTES;
        if (w->r->progress)
            TRY(w->r->progress(w->r->ctx, w->pos, w->end));
    }
    return OK;
}

static enum err append_zeros(struct writer *w, int64_t until)
{
    static const uint8_t zeros[BLOCK_BYTES];
    CHECK(until >= w->pos);
    while (w->pos < until)
        TRY(append(w, zeros, min_i64(until - w->pos, (int64_t)sizeof zeros)));
    return OK;
}

/* Reads rows [first, first + n), n <= 32, into w->rows in the stored format. */
static enum err get_rows(struct writer *w, enum tensor_role role, int layer,
                         const struct model_tensor *t, int first, int n)
{
    enum dtype source = w->p->dtype(w->p->impl, role, layer);
    if (source == dtype_of_rows(t->dtype)) // bit-exact, NaNs included
        return w->p->rows(w->p->impl, role, layer, first, n, w->rows);
    int64_t row_bytes = dtype_row_bytes(t->dtype, t->k);
    for (int i = 0; i < n; i++) {
        TRY(w->p->rows(w->p->impl, role, layer, first + i, 1, w->raw));
        dtype_decode_row(source, w->raw, t->k, w->numbers);
        for (int j = 0; t->dtype == DTYPE_F16 && j < t->k; j++)
            if (fabsf(w->numbers[j]) > MODEL_F16_MAX && isfinite(w->numbers[j]))
                return fail(ERR_INPUT, "%s: %s: %g does not fit f16 (use --weights bf16)",
                            w->p->name, role_name(role), (double)w->numbers[j]);
        dtype_encode_row(t->dtype, w->numbers, t->k, w->rows + i * row_bytes);
    }
    return OK;
}

/* Updates w->range by n rows of the current matrix, as stored. */
static void range_rows(struct writer *w, enum tensor_role role, const struct model_tensor *t, int n)
{
    const enum dtype form = dtype_of_rows(t->dtype);
    const int64_t row_bytes = dtype_row_bytes(form, t->k);
    for (int i = 0; i < n; i++) {
        float most = 0;
        dtype_decode_row(form, w->rows + i * row_bytes, t->k, w->numbers);
        for (int j = 0; j < t->k; j++) {
            const float x = fabsf(w->numbers[j]);
            most = x > most && x < INFINITY ? x : most;
        }
        if (most >= w->range.most)
            w->range = (struct model_range){1, most, w->layer, role};
    }
}

static enum err write_tensor(struct writer *w, enum tensor_role role, int layer, int first_row,
                             const struct model_tensor *t)
{
    if (role_kind(role) == ROLE_IS_VECTOR) {
        TRY(w->p->vector(w->p->impl, role, layer, t->n, w->numbers));
        return append(w, w->numbers, (int64_t)sizeof(float) * t->n);
    }
    int64_t row_bytes = dtype_row_bytes(t->dtype, t->k);
    int64_t panel_bytes = dtype_panel_bytes(t->dtype, t->k);
    int direct = w->p->panel && role_kind(role) == ROLE_IS_PANELS &&
                 t->dtype == w->p->dtype(w->p->impl, role, layer);
    for (int done = 0; done < t->n; done += PANEL_ROWS) {
        int n = (int)min_i64(PANEL_ROWS, t->n - done);
        if (direct) {
            uint8_t *panel = w->memory ? w->memory + (w->pos - w->memory_offset) : w->panel;
            TRY(w->p->panel(w->p->impl, role, layer, first_row + done, n, panel));
            TRY(append(w, panel, panel_bytes));
            continue;
        }
        TRY(get_rows(w, role, layer, t, first_row + done, n));
        if (role_kind(role) == ROLE_IS_ROWS) {
            TRY(append(w, w->rows, n * row_bytes));
            continue;
        }
        range_rows(w, role, t, n);
        const void *rows[PANEL_ROWS] = {0};
        for (int i = 0; i < n; i++)
            rows[i] = w->rows + i * row_bytes;
        if (t->dtype == DTYPE_BF12 && !bf12_fits(rows, t->k))
            return fail(ERR_INPUT, "%s: %s: changed while it was packed", w->p->name,
                        role_name(role));
        panel_pack(t->dtype, rows, t->k, w->panel);
        TRY(append(w, w->panel, panel_bytes));
    }
    return OK;
}

/* The records of the embedding, and their checksums. */
static enum err write_records(struct writer *w, const struct model_layer *l)
{
    static const enum tensor_role roles[] = {ROLE_EMBED, ROLE_INPUTS_EMBED};
    const int64_t n_bytes = model_record_bytes(l);
    const int n_all = l->tensors[ROLE_EMBED].n;
    for (int first = 0, n; first < n_all; first += n) {
        n = (int)min_i64(PANEL_ROWS, n_all - first);
        memset(w->panel, 0, (size_t)(n * n_bytes));
        for (int r = 0; r < 2 && model_has(l, roles[r]); r++) {
            const struct model_tensor *t = &l->tensors[roles[r]];
            const int64_t row_bytes = dtype_row_bytes(t->dtype, t->k);
            uint8_t *to = w->panel + model_record_at(l, roles[r]);
            TRY(get_rows(w, roles[r], 0, t, first, n));
            for (int i = 0; i < n; i++)
                memcpy(to + i * n_bytes, w->rows + i * row_bytes, (size_t)row_bytes);
        }
        for (int i = 0; !w->memory && i < n; i++)
            w->row_crcs[first + i] = crc32c(0, w->panel + i * n_bytes, n_bytes);
        TRY(append(w, w->panel, n * n_bytes));
    }
    return OK;
}

static enum err write_layer(struct writer *w, int index)
{
    const struct model_layer *l = &w->layers[index];
    int layer = decoder_of(w, index);
    CHECK(w->pos == l->offset);
    w->layer = index;
    w->piece_left = PIECE_BYTES;
    w->crc = 0;
    for (int role = 0; role < N_ROLES; role++) {
        if (!model_has(l, role) || role == ROLE_INPUTS_EMBED)
            continue;
        TRY(append_zeros(w, l->offset + l->tensors[role].offset));
        if (role == ROLE_EMBED)
            TRY(write_records(w, l));
        else
            TRY(write_tensor(w, role, layer, role == ROLE_HEAD ? l->vocab_first : 0,
                             &l->tensors[role]));
    }
    TRY(append_zeros(w, l->offset + l->n_bytes));
    if (w->piece_left < PIECE_BYTES) // the last piece of an extent may be shorter
        w->crcs[w->piece++] = w->crc;
    CHECK(w->memory || w->piece == l->piece + model_pieces(l));
    return OK;
}

static void put_layer(struct pack_out *o, const struct model_layer *l)
{
    uint32_t n_tensors = 0;
    for (int role = 0; role < N_ROLES; role++)
        n_tensors += model_has(l, role);
    pack_put_u64(o, (uint64_t)l->offset);
    pack_put_u64(o, (uint64_t)l->n_bytes);
    pack_put_u32(o, (uint32_t)l->vocab_first);
    pack_put_u32(o, (uint32_t)l->vocab_rows);
    pack_put_u32(o, n_tensors);
    for (int role = 0; role < N_ROLES; role++) {
        const struct model_tensor *t = &l->tensors[role];
        if (t->n == 0)
            continue;
        char format[9] = {0};
        snprintf(format, sizeof format, "%s", dtype_info(t->dtype)->name);
        pack_put_u32(o, (uint32_t)role);
        pack_put(o, format, 8);
        pack_put_u32(o, (uint32_t)t->n);
        pack_put_u32(o, (uint32_t)t->k);
        pack_put_u64(o, (uint64_t)t->offset);
    }
}

/* Writes everything that can change an answer; its hash is the fingerprint. The part after
 * *numbers_at identifies the weights; those of dummy models follow from the part before, and which
 * layers a dummy pack holds changes no answer. */
static void put_body(struct writer *w, struct pack_out *o, int64_t *numbers_at)
{
    pack_put_shape(o, &w->p->shape);
    pack_put_u32(o, w->r->weights);
    pack_put_u32(o, w->p->tied != 0);
    pack_put_u32(o, (uint32_t)w->p->dummy);
    pack_put_u64(o, (uint64_t)w->n_params);
    int64_t n_tokenizer = w->r->tokenizer ? w->r->tokenizer_bytes : 0;
    pack_put_u64(o, (uint64_t)n_tokenizer);
    pack_put(o, w->r->tokenizer, n_tokenizer);
    pack_put_u32(o, (uint32_t)w->n_layers);
    for (int i = 0; i < w->n_layers; i++)
        put_layer(o, &w->layers[i]);
    *numbers_at = o->n_bytes;
    pack_put_u32(o, (uint32_t)w->r->on_demand);
    for (int i = 0; i < w->n_layers; i++)
        pack_put_u32(o, (uint32_t)w->layers[i].absent);
    for (int64_t i = 0; i < w->n_pieces; i++)
        pack_put_u32(o, w->crcs[i]);
    for (int i = 0; i < w->p->shape.vocab; i++)
        pack_put_u32(o, w->row_crcs[i]);
}

static enum err write_meta(struct writer *w)
{
    struct pack_out body = {0}, meta = {0};
    int64_t numbers_at;
    put_body(w, &body, &numbers_at);
    int64_t n_hashed = w->p->dummy ? numbers_at : body.n_bytes;
    uint32_t name_bytes = (uint32_t)strlen(w->p->name) + 1;
    pack_put_u32(&meta, name_bytes);
    pack_put(&meta, w->p->name, name_bytes);
    pack_put_u64(&meta, body.failed ? 0 : hash_bytes(body.data, n_hashed, PACK_VERSION));
    if (!body.failed)
        pack_put(&meta, body.data, body.n_bytes);
    enum err e = OK;
    if (body.failed || meta.failed) {
        e = fail(ERR_FIT, "no memory for the metadata of %s", w->p->name);
    } else {
        uint8_t page[BLOCK_BYTES];
        struct pack_header h = {w->end + meta.n_bytes,
                                w->end,
                                meta.n_bytes,
                                crc32c(0, meta.data, meta.n_bytes),
                                w->p->dummy ? (struct model_range){0} : w->range,
                                w->r->source};
        pack_header_encode(&h, page);
        e = write_at(w, w->end, meta.data, meta.n_bytes);
        if (e == OK)
            e = write_at(w, 0, page, BLOCK_BYTES);
        if (e == OK && ftruncate(w->fd, h.file_bytes) != 0)
            e = fail(ERR_IO, "%s: truncate: %s", w->tmp, strerror(errno));
    }
    free(body.data);
    free(meta.data);
    return e;
}

/* An upper bound of the file's disk usage. */
static int64_t file_bytes_max(const struct writer *w)
{
    int64_t per_layer = 64 + 64 * N_ROLES;
    int64_t crcs = (w->n_pieces + w->p->shape.vocab) * 4;
    return (w->r->on_demand ? 0 : w->end) + 64 * 1024 + w->n_layers * per_layer + crcs +
           (w->r->tokenizer ? w->r->tokenizer_bytes : 0);
}

/* Removes temporary files of this pack by killed runs, whose locks are gone. */
static void remove_stale(const struct writer *w)
{
    DIR *dir = opendir(w->folder);
    if (!dir)
        return;
    const char *slash = strrchr(w->r->path, '/'), *name = slash ? slash + 1 : w->r->path;
    size_t n = strlen(name);
    for (const struct dirent *d; (d = readdir(dir));) {
        if (strncmp(d->d_name, name, n) != 0 ||
            strncmp(d->d_name + n, TMP_INFIX, sizeof TMP_INFIX - 1) != 0)
            continue;
        int fd = openat(dirfd(dir), d->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (model_lock(fd, MODEL_USED, 1, 0))
            unlinkat(dirfd(dir), d->d_name, 0);
        close(fd);
    }
    closedir(dir);
}

/* Checks for a full disk before writing, which may take an hour. */
static enum err open_file(struct writer *w)
{
    const char *path = w->r->path, *slash = strrchr(path, '/');
    int n_folder = slash ? (int)max_i64(slash - path, 1) : 1;
    if (snprintf(w->tmp, sizeof w->tmp, "%s" TMP_INFIX "%ld.pack", path, (long)getpid()) >=
        (int)sizeof w->tmp)
        return fail(ERR_USAGE, "%s: path too long", path);
    snprintf(w->folder, sizeof w->folder, "%.*s", n_folder, slash ? path : ".");
    standing_look(&w->was, path);
    if (w->was.there && !w->was.regular)
        return fail(ERR_USAGE, "%s: is not a regular file (remove it)", path);
    remove_stale(w);
    struct statvfs fs;
    if (statvfs(w->folder, &fs) != 0)
        return fail(ERR_IO, "%s: %s", w->folder, strerror(errno));
    int64_t needed = file_bytes_max(w);
    if ((double)fs.f_bavail * (double)fs.f_frsize < (double)needed)
        return fail(ERR_IO,
                    "%s: the pack needs %lld bytes, the disk has %.0f bytes free (set "
                    "SLUICE_CACHE_DIR, or another -o)",
                    path, (long long)needed, (double)fs.f_bavail * (double)fs.f_frsize);
    unlink(w->tmp); // left by a killed process with this pid
    w->fd = open(w->tmp, O_RDWR | WHOLE_NEW, 0644);
    if (w->fd < 0)
        return fail(ERR_IO, "%s: open: %s", w->tmp, strerror(errno));
    // Marks the file as in use. A process that starts at the same moment may still take the file
    // for a dead run's: then the rename below fails, and no wrong file gets the pack's name.
    model_lock(w->fd, MODEL_USED, 1, 0);
    TRY(write_at(w, 0, PACK_MAGIC, 8)); // after a kill `cache` knows the file by name and magic
    // Reserves all blocks at once (less fragmented); a file system that cannot is no error.
    if (!w->r->on_demand && fallocate(w->fd, 0, 0, needed) != 0 &&
        (errno == ENOSPC || errno == EDQUOT))
        return fail(ERR_IO, "%s: the pack needs %lld bytes: %s", path, (long long)needed,
                    strerror(errno));
    return OK;
}

/* Gives the pack its name; replaces a pack of the same model made meanwhile by another process. */
static enum err take_name(struct writer *w)
{
    enum err e;
    do {
        if (model_is_pack(w->r->path))
            standing_look(&w->was, w->r->path);
        e = standing_replace(&w->was, w->tmp, w->r->path);
    } while (e == ERR_JOB && w->was.regular && model_is_pack(w->r->path));
    return e;
}

static enum err write_all(struct writer *w)
{
    w->pos = BLOCK_BYTES;
    for (int i = 0; i < w->n_layers && !w->r->on_demand; i++)
        TRY(write_layer(w, i));
    if (w->r->progress && !w->r->on_demand) // the last piece of a layer may be short
        TRY(w->r->progress(w->r->ctx, w->end, w->end));
    TRY(write_meta(w));
    if (fsync(w->fd) != 0)
        return fail(ERR_IO, "%s: fsync: %s", w->tmp, strerror(errno));
    enum err named = take_name(w);
    w->tmp[0] = named == ERR_IO ? w->tmp[0] : 0; // after ERR_JOB the temporary file stays
    TRY(named);
    int dir = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum err e = dir >= 0 && fsync(dir) == 0
                     ? OK
                     : fail(ERR_IO, "%s: fsync: %s", w->folder, strerror(errno));
    if (dir >= 0)
        close(dir);
    return e;
}

enum err pack_write(const struct pack_request *r)
{
    CHECK(r->weights >= 0 && r->weights < N_PACK_WEIGHTS);
    CHECK(shape_check(&r->provider->shape) == NULL);
    for (int role = 0; role < N_ROLES; role++) {
        int there = (r->provider->roles & ROLE_BIT(role)) != 0;
        enum role_need need = role_need(&r->provider->shape, role);
        CHECK(there ? need != ROLE_ABSENT : need != ROLE_REQUIRED);
    }
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for a pack's writer");
    w->r = r;
    w->p = r->provider;
    w->fd = -1;
    w->bf12 = calloc((size_t)max_i64(w->p->shape.n_layers, 1), N_ROLES);
    enum err e =
        w->bf12 ? pack_choose_bf12(r, w->bf12) : fail(ERR_FIT, "no memory for a pack's writer");
    if (e == OK)
        e = lay_out(w);
    if (e == OK)
        e = take_tables(w);
    if (e == OK)
        e = take_buffers(w);
    if (e == OK)
        e = open_file(w);
    if (e == OK)
        e = write_all(w);
    if (w->fd >= 0) {
        close(w->fd);
        if (w->tmp[0])
            unlink(w->tmp);
    }
    free(w->bf12);
    free(w->layers);
    free(w->crcs);
    free(w->row_crcs);
    free_buffers(w);
    free(w);
    return e;
}

/* ---- packs for planning only ---- */

static const struct model_layer *layer_of_role(const struct model *m, enum tensor_role role,
                                               int layer)
{
    enum role_place place = role_place(role);
    return &m->layers[place == ROLE_IN_EMBEDDING ? 0
                      : place == ROLE_IN_DECODER ? 1 + layer
                                                 : 1 + m->shape.n_layers];
}

static enum dtype dtype_of_model(void *impl, enum tensor_role role, int layer)
{
    return layer_of_role(impl, role, layer)->tensors[role].dtype;
}

enum err pack_model_as(const struct model *m, enum pack_weights weights, struct model *as)
{
    struct pack_provider p = {.shape = m->shape,
                              .tied = m->tied,
                              .dummy = m->dummy,
                              .name = m->name,
                              .impl = (void *)(uintptr_t)m,
                              .dtype = dtype_of_model};
    struct pack_request r = {.provider = &p, .weights = weights, .on_demand = m->on_demand};
    const struct model_layer *last = &m->layers[m->n_layers - 1];
    CHECK(weights != PACK_AUTO && weights != PACK_BF12);
    for (int role = 0; role < N_ROLES; role++)
        for (int layer = 0; layer < pack_copies(&p, role); layer++)
            if (model_has(layer_of_role(m, role, layer), role))
                p.roles |= ROLE_BIT(role);
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for a pack's writer");
    w->r = &r;
    w->p = &p;
    w->bf12 = calloc((size_t)max_i64(m->shape.n_layers, 1), N_ROLES);
    enum err e = w->bf12 ? lay_out(w) : fail(ERR_FIT, "no memory for a pack's writer");
    free(w->bf12);
    if (e == OK) {
        *as = *m;
        as->weights = (int)weights;
        as->layers = w->layers;
        as->n_layers = w->n_layers;
        as->n_slices = w->n_slices;
        as->n_pieces = w->n_pieces;
        as->file_bytes += w->end - (last->offset + last->n_bytes) + 4 * (w->n_pieces - m->n_pieces);
    } else {
        free(w->layers);
    }
    free(w);
    return e;
}

/* ---- packs on demand ---- */

/* A writer for an existing model, whose tables it borrows. */
static void writer_of_model(struct writer *w, const struct pack_provider *p, struct model *m,
                            int fd)
{
    *w = (struct writer){.p = p,
                         .layers = m->layers,
                         .n_layers = m->n_layers,
                         .n_slices = m->n_slices,
                         .n_params = m->n_params,
                         .crcs = m->piece_crcs,
                         .n_pieces = m->n_pieces,
                         .row_crcs = m->row_crcs,
                         .fd = fd};
    const struct model_layer *last = &m->layers[m->n_layers - 1];
    w->end = last->offset + last->n_bytes;
    snprintf(w->tmp, sizeof w->tmp, "%s", m->path); // for messages
}

enum err pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                         void *to)
{
    CHECK(layer >= 0 && layer < m->n_layers);
    struct model_layer *l = &m->layers[layer];
    struct pack_request r = {.provider = p};
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for a pack's writer");
    writer_of_model(w, p, m, fd);
    w->r = &r;
    w->memory = to;
    w->memory_offset = w->pos = l->offset;
    w->piece = l->piece;
    measure_layer(w, layer);
    enum err e = take_buffers(w);
    if (e == OK)
        e = write_layer(w, layer);
    if (e == OK && !to)
        l->absent = 0;
    free_buffers(w);
    free(w);
    return e;
}

enum err pack_panels_make(const struct pack_provider *p, struct model *m, int layer,
                          enum tensor_role role, int n, void *to)
{
    struct model_tensor t = m->layers[layer].tensors[role];
    CHECK(role_kind(role) == ROLE_IS_PANELS && n > 0 && n <= t.n && n % PANEL_ROWS == 0);
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for a pack's writer");
    writer_of_model(w, p, m, -1);
    w->memory = to;
    t.n = n;
    measure_tensor(w, role, decoder_of(w, layer), &t);
    enum err e = take_buffers(w);
    if (e == OK)
        e = write_tensor(w, role, decoder_of(w, layer), 0, &t);
    free_buffers(w);
    free(w);
    return e;
}

enum err pack_directory_write(const struct pack_provider *p, struct model *m, int fd)
{
    struct pack_request r = {.provider = p,
                             .weights = (enum pack_weights)m->weights,
                             .tokenizer = m->tokenizer,
                             .tokenizer_bytes = m->tokenizer_bytes,
                             .source = m->source,
                             .on_demand = m->on_demand};
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for a pack's writer");
    writer_of_model(w, p, m, fd);
    w->r = &r;
    enum err e = write_meta(w);
    free(w);
    return e == OK && fsync(fd) != 0 ? fail(ERR_IO, "%s: fsync: %s", m->path, strerror(errno)) : e;
}
