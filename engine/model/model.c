/* engine/model/model.c - opens a pack: all checks that make the directory safe to use.
 *
 * Refuses: packs whose numbers disagree with their shape, even with a valid checksum: a file may be
 * hostile. Note: extents must be contiguous, so offsets in the file are checked by summing up
 * sizes. */
#include "engine/model/model.h"

#include "engine/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL_META_MAX ((int64_t)1 << 30)

enum err model_read_at(int fd, const char *path, int64_t offset, int64_t n_bytes, void *buf)
{
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t got = pread(fd, (uint8_t *)buf + done, (size_t)(n_bytes - done), offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(ERR_IO, "%s: read at %lld: %s", path, (long long)(offset + done),
                        strerror(errno));
        if (got == 0)
            return fail(ERR_CORRUPT, "%s: the file was cut short", path);
        done += got;
    }
    return OK;
}

static enum err bad_meta(const struct model *m, int layer, const char *what)
{
    return fail(ERR_CORRUPT, "%s: layer %d: bad %s (pack the model again)", m->path, layer, what);
}

/* Reads one tensor of the directory; checks it against the shape and its extent. */
static enum err read_tensor(struct model *m, struct pack_in *in, int layer, enum role_place place)
{
    struct model_layer *l = &m->layers[layer];
    uint32_t role = pack_get_u32(in);
    const char *format = pack_get(in, 8);
    struct model_tensor t = {.n = (int)pack_get_u32(in), .k = (int)pack_get_u32(in)};
    t.offset = (int64_t)pack_get_u64(in);
    if (in->failed)
        return bad_meta(m, layer, "directory");
    if (role >= N_ROLES || role_place(role) != place || l->tensors[role].n != 0 ||
        role_need(&m->shape, role) == ROLE_ABSENT || !role_in_layer(&m->shape, role, layer - 1))
        return bad_meta(m, layer, "tensor role");
    char name[9] = {0};
    memcpy(name, format, 8);
    t.dtype = dtype_by_name(name);
    if (t.dtype >= N_DTYPES || (role_kind(role) == ROLE_IS_VECTOR && t.dtype != DTYPE_F32))
        return bad_meta(m, layer, "tensor format");
    int n, k;
    role_dims(&m->shape, role, layer - 1, &n, &k);
    if (role == ROLE_HEAD)
        n = l->vocab_rows;
    int64_t n_bytes = t.n == n && t.k == k ? role_bytes(role, t.dtype, n, k) : -1;
    if (n_bytes < 0)
        return bad_meta(m, layer, "tensor size");
    if (t.offset < 0 || t.offset % 64 != 0 || t.offset > l->n_bytes ||
        n_bytes > l->n_bytes - t.offset)
        return bad_meta(m, layer, "tensor offset");
    l->tensors[role] = t;
    return OK;
}

static enum role_place place_of(const struct model *m, int layer)
{
    if (layer == 0)
        return ROLE_IN_EMBEDDING;
    return layer <= m->shape.n_layers ? ROLE_IN_DECODER : ROLE_IN_SLICE;
}

/* The records of the embedding lie within its extent. */
static enum err check_records(const struct model *m)
{
    const struct model_layer *l = &m->layers[0];
    const struct model_tensor *t = &l->tensors[ROLE_EMBED], *more = &l->tensors[ROLE_INPUTS_EMBED];
    if (!model_has(l, ROLE_INPUTS_EMBED))
        return OK;
    return more->offset == t->offset + model_record_at(l, ROLE_INPUTS_EMBED) &&
                   model_record_bytes(l) * t->n <= l->n_bytes - t->offset
               ? OK
               : bad_meta(m, 0, "tensor offset");
}

/* `end`, `vocab_end`: where the previous layer ended in the file and in the vocabulary. */
static enum err read_layer(struct model *m, struct pack_in *in, int layer, int64_t *end,
                           int *vocab_end)
{
    struct model_layer *l = &m->layers[layer];
    enum role_place place = place_of(m, layer);
    l->offset = (int64_t)pack_get_u64(in);
    l->n_bytes = (int64_t)pack_get_u64(in);
    l->vocab_first = (int)pack_get_u32(in);
    l->vocab_rows = (int)pack_get_u32(in);
    uint32_t n_tensors = pack_get_u32(in);
    if (in->failed || n_tensors > N_ROLES)
        return bad_meta(m, layer, "directory");
    if (l->offset != *end || l->n_bytes <= 0 || l->n_bytes % BLOCK_BYTES != 0 ||
        l->n_bytes > m->file_bytes - l->offset)
        return bad_meta(m, layer, "extent");
    *end += l->n_bytes;
    l->piece = m->n_pieces;
    m->n_pieces += model_pieces(l);
    if (place != ROLE_IN_SLICE ? l->vocab_first != 0 || l->vocab_rows != 0
                               : l->vocab_first != *vocab_end || l->vocab_rows <= 0 ||
                                     l->vocab_first % HEAD_TILE != 0 ||
                                     l->vocab_rows > m->shape.vocab - l->vocab_first)
        return bad_meta(m, layer, "vocabulary rows");
    *vocab_end += l->vocab_rows;
    for (uint32_t i = 0; i < n_tensors; i++)
        TRY(read_tensor(m, in, layer, place));
    for (int role = 0; role < N_ROLES; role++)
        if (role_place(role) == place && l->tensors[role].n == 0 &&
            role_need(&m->shape, role) == ROLE_REQUIRED &&
            role_in_layer(&m->shape, role, layer - 1))
            return bad_meta(m, layer, "tensor list (one is missing)");
    return layer == 0 ? check_records(m) : OK;
}

/* Reads which layers are a hole in the file. Only dummy models, which can generate layers, may. */
static enum err read_absent(struct model *m, struct pack_in *in)
{
    m->on_demand = (int)pack_get_u32(in);
    if (in->failed || m->on_demand < 0 || m->on_demand > (m->dummy > 0))
        return bad_meta(m, 0, "table of layers");
    for (int i = 0; i < m->n_layers; i++) {
        m->layers[i].absent = (int)pack_get_u32(in);
        if (in->failed || m->layers[i].absent < 0 || m->layers[i].absent > m->on_demand)
            return bad_meta(m, i, "table of layers");
    }
    return OK;
}

/* name | fingerprint | shape, flags | tokenizer | directory | absent layers | CRCs */
static enum err read_meta(struct model *m, const struct pack_header *h)
{
    struct pack_in in = {.data = m->meta, .n_bytes = h->meta_bytes};
    uint32_t name_bytes = pack_get_u32(&in); // includes the final NUL
    m->name = pack_get(&in, name_bytes);
    if (!m->name || name_bytes == 0 || m->name[name_bytes - 1] != 0)
        return bad_meta(m, 0, "name");
    m->fingerprint = pack_get_u64(&in);
    pack_get_shape(&in, &m->shape);
    m->weights = (int)pack_get_u32(&in);
    m->tied = (int)pack_get_u32(&in);
    m->dummy = (int)pack_get_u32(&in);
    m->n_params = (int64_t)pack_get_u64(&in);
    m->tokenizer_bytes = (int64_t)pack_get_u64(&in);
    const void *tokenizer = pack_get(&in, m->tokenizer_bytes);
    uint32_t n_layers = pack_get_u32(&in);
    if (in.failed || m->weights < 0 || m->weights >= N_PACK_WEIGHTS || m->n_params <= 0 ||
        m->dummy < 0)
        return bad_meta(m, 0, "metadata");
    m->tokenizer = m->tokenizer_bytes > 0 ? tokenizer : NULL;
    const char *bad = shape_check(&m->shape);
    if (bad)
        return bad_meta(m, 0, bad);
    int n_slices_max = (int)ceil_div(m->shape.vocab, HEAD_TILE);
    if ((int64_t)n_layers - 1 - m->shape.n_layers < 1 ||
        (int64_t)n_layers - 1 - m->shape.n_layers > n_slices_max)
        return bad_meta(m, 0, "number of layers");
    m->n_layers = (int)n_layers;
    m->n_slices = m->n_layers - 1 - m->shape.n_layers;
    m->layers = calloc(n_layers, sizeof *m->layers);
    if (!m->layers)
        return fail(ERR_FIT, "no memory for the directory of %s", m->path);
    int64_t end = BLOCK_BYTES;
    int vocab_end = 0;
    for (int i = 0; i < m->n_layers; i++)
        TRY(read_layer(m, &in, i, &end, &vocab_end));
    if (end != h->meta_offset || vocab_end != m->shape.vocab)
        return bad_meta(m, m->n_layers - 1, "end");
    TRY(read_absent(m, &in));
    if (m->n_pieces + m->shape.vocab > (in.n_bytes - in.at) / 4)
        return bad_meta(m, 0, "table of checksums");
    m->piece_crcs = malloc((size_t)m->n_pieces * sizeof *m->piece_crcs);
    m->row_crcs = malloc((size_t)m->shape.vocab * sizeof *m->row_crcs);
    if (!m->piece_crcs || !m->row_crcs)
        return fail(ERR_FIT, "no memory for the directory of %s", m->path);
    for (int64_t i = 0; i < m->n_pieces; i++)
        m->piece_crcs[i] = pack_get_u32(&in);
    for (int i = 0; i < m->shape.vocab; i++)
        m->row_crcs[i] = pack_get_u32(&in);
    return in.at == in.n_bytes ? OK : bad_meta(m, 0, "end of the metadata");
}

static enum err read_file(struct model *m, int fd)
{
    uint8_t page[BLOCK_BYTES];
    struct pack_header h;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fail(ERR_IO, "%s: stat: %s", m->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < BLOCK_BYTES)
        return fail(ERR_INPUT, "%s: header: not a pack", m->path);
    TRY(model_read_at(fd, m->path, 0, BLOCK_BYTES, page));
    TRY(pack_header_decode(&h, page, m->path));
    m->file_bytes = st.st_size;
    if (h.file_bytes != st.st_size)
        return fail(ERR_CORRUPT, "%s: header: says %lld bytes, the file has %lld (cut short?)",
                    m->path, (long long)h.file_bytes, (long long)st.st_size);
    if (h.meta_offset < BLOCK_BYTES || h.meta_offset > st.st_size || h.meta_bytes <= 0 ||
        h.meta_bytes > MODEL_META_MAX || h.meta_bytes != st.st_size - h.meta_offset)
        return fail(ERR_CORRUPT, "%s: header: the metadata lies outside the file", m->path);
    m->meta = malloc((size_t)h.meta_bytes);
    if (!m->meta)
        return fail(ERR_FIT, "no memory for the directory of %s", m->path);
    TRY(model_read_at(fd, m->path, h.meta_offset, h.meta_bytes, m->meta));
    if (crc32c(0, m->meta, h.meta_bytes) != h.meta_crc)
        return fail(ERR_CORRUPT, "%s: metadata: checksum mismatch (pack the model again)", m->path);
    TRY(read_meta(m, &h));
    m->range = h.range;
    m->source = h.source;
    if (m->range.known &&
        (m->range.known != 1 || m->range.layer < 0 || m->range.layer >= m->n_layers ||
         m->range.role < 0 || m->range.role >= N_ROLES || !(m->range.most >= 0)))
        return bad_meta(m, 0, "range of the numbers");
    return OK;
}

enum err model_open_fd(struct model *m, const char *path, int fd)
{
    *m = (struct model){0};
    m->path = strdup(path);
    enum err e = m->path ? read_file(m, fd) : fail(ERR_FIT, "no memory for a path");
    if (e != OK)
        model_close(m);
    return e;
}

int model_lock(int fd, enum model_lock which, int write, int wait)
{
    struct flock lock = {.l_type = write ? F_WRLCK : F_RDLCK, .l_start = (off_t)which, .l_len = 1};
    int bad;
    while ((bad = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock)) != 0 && errno == EINTR)
        ;
    return bad == 0 || (errno != EAGAIN && errno != EACCES);
}

static void model_unlock(int fd, enum model_lock which)
{
    struct flock lock = {.l_type = F_UNLCK, .l_start = (off_t)which, .l_len = 1};
    fcntl(fd, F_OFD_SETLK, &lock);
}

enum err model_open(struct model *m, const char *path)
{
    *m = (struct model){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // do not wait for the writer of a FIFO
    if (fd < 0)
        return fail(errno == ENOENT ? ERR_INPUT : ERR_IO, "%s: open: %s", path, strerror(errno));
    model_lock(fd, MODEL_DIRECTORY, 0, 1); // wait while the directory is being rewritten
    enum err e = model_open_fd(m, path, fd);
    if (e != OK) {
        close(fd);
        return e;
    }
    model_unlock(fd, MODEL_DIRECTORY);
    model_lock(fd, MODEL_USED, 0, 0);
    m->used_fd = fd;
    return OK;
}

enum err model_cut(struct model *part, const struct model *whole, int from, int to)
{
    struct shape *s = &part->shape;
    const int n = to - from, ends = to == whole->shape.n_layers;
    CHECK(from >= 0 && n > 0 && to <= whole->shape.n_layers);
    if (shape_before_part(&whole->shape, N_PARTS) > whole->shape.dim)
        return fail(ERR_FIT,
                    "%s models cannot be cut into stages: layers share inputs, keys and values "
                    "(without --pipeline)",
                    whole->shape.family);
    *part = *whole;
    part->first = from;
    s->n_layers = n;
    memmove(s->layer_wide, s->layer_wide + from, (size_t)n * sizeof *s->layer_wide);
    memmove(s->layer_rope, s->layer_rope + from, (size_t)n * sizeof *s->layer_rope);
    memmove(s->layer_dense, s->layer_dense + from, (size_t)n * sizeof *s->layer_dense);
    memmove(s->layer_state, s->layer_state + from, (size_t)n * sizeof *s->layer_state);
    memmove(s->layer_bare, s->layer_bare + from, (size_t)n * sizeof *s->layer_bare);
    memmove(s->layer_window, s->layer_window + from, (size_t)n * sizeof *s->layer_window);
    memmove(s->layer_alpha, s->layer_alpha + from, (size_t)n * sizeof *s->layer_alpha);
    memmove(s->layer_scale, s->layer_scale + from, (size_t)n * sizeof *s->layer_scale);
    part->n_slices = ends ? whole->n_slices : 0;
    part->n_layers = 1 + n + part->n_slices;
    part->layers = calloc((size_t)part->n_layers, sizeof *part->layers);
    if (!part->layers)
        return fail(ERR_FIT, "no memory for %d layers", part->n_layers);
    memcpy(part->layers + 1, whole->layers + 1 + from,
           (size_t)(part->n_layers - 1) * sizeof *part->layers);
    part->layers[0] = whole->layers[0];
    if (from > 0) {
        part->layers[0].n_bytes = 0;
        part->layers[0].tensors[ROLE_POS].n = part->layers[0].tensors[ROLE_PROJ_IN].n = 0;
    }
    return OK;
}

void model_cut_close(struct model *part)
{
    free(part->layers);
    part->layers = NULL;
}

void model_close(struct model *m)
{
    free(m->layers);
    free(m->piece_crcs);
    free(m->row_crcs);
    free(m->meta);
    free(m->path);
    if (m->used_fd > 0)
        close(m->used_fd);
    *m = (struct model){0};
}

int model_starts_with(const char *path, const char want[8])
{
    char magic[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    ssize_t n = pread(fd, magic, sizeof magic, 0);
    close(fd);
    return n == (ssize_t)sizeof magic && memcmp(magic, want, sizeof magic) == 0;
}

int model_is_pack(const char *path)
{
    return model_starts_with(path, PACK_MAGIC);
}

static int64_t row_bytes_of(const struct model_layer *l, enum tensor_role role)
{
    const struct model_tensor *t = &l->tensors[role];
    return dtype_row_bytes(t->dtype, t->k);
}

int64_t model_record_at(const struct model_layer *l, enum tensor_role role)
{
    return role == ROLE_EMBED ? 0 : round_up(row_bytes_of(l, ROLE_EMBED), 64);
}

int64_t model_record_bytes(const struct model_layer *l)
{
    if (!model_has(l, ROLE_INPUTS_EMBED))
        return row_bytes_of(l, ROLE_EMBED);
    return model_record_at(l, ROLE_INPUTS_EMBED) + round_up(row_bytes_of(l, ROLE_INPUTS_EMBED), 64);
}

void model_embed_row(const struct model *m, int id, int64_t *offset, int64_t *n_bytes)
{
    const struct model_layer *l = &m->layers[0];
    const struct model_tensor *t = &l->tensors[ROLE_EMBED];
    CHECK(id >= 0 && id < t->n);
    *n_bytes = model_record_bytes(l);
    *offset = l->offset + t->offset + id * *n_bytes;
}

int64_t model_pieces(const struct model_layer *l)
{
    return ceil_div(l->n_bytes, PIECE_BYTES);
}

enum err model_piece_check(const struct model *m, int layer, int64_t piece, const void *data,
                           int64_t n_bytes)
{
    CHECK(layer >= 0 && layer < m->n_layers);
    const struct model_layer *l = &m->layers[layer];
    CHECK(piece >= 0 && piece < model_pieces(l));
    CHECK(n_bytes == min_i64(PIECE_BYTES, l->n_bytes - piece * PIECE_BYTES));
    if (crc32c(0, data, n_bytes) == m->piece_crcs[l->piece + piece])
        return OK;
    return fail(ERR_CORRUPT,
                "%s: layer %d: checksum mismatch in piece %lld, at byte %lld (pack the "
                "model again)",
                m->path, layer, (long long)piece, (long long)(l->offset + piece * PIECE_BYTES));
}

void model_kv_layout(const struct shape *s, int wide, enum kv_format format, struct kv_layout *l)
{
    kv_layout_init(l, format, shape_kv_heads_of(s, wide), shape_head_dim_of(s, wide));
    if (s->latent_key > 0)
        kv_layout_keys_only(l);
}

enum dtype model_tile_dtype(enum compute compute, enum dtype stored)
{
    if (compute == COMPUTE_INT8 && (stored == DTYPE_Q8 || stored == DTYPE_Q4))
        return stored;
    return compute == COMPUTE_F32 ? DTYPE_F32 : DTYPE_BF16;
}

/* Tiles are in the format that the device reads. The CPU reads the stored format in place; its
 * tiles are what it would decode into the cache. Tiles on a device are as narrow as possible. */
static struct weight_form tile_form(struct device *device, enum compute compute, enum dtype stored)
{
    struct weight_form form = device->api->reads(device, compute, stored);
    if (device->api->unified && form.dtype == stored && form.layout == WEIGHT_PANELS)
        form.dtype = model_tile_dtype(compute, stored);
    return form;
}

int model_must_decode(const struct model_layer *stored, struct device *device, enum compute compute)
{
    for (int role = 0; role < N_ROLES; role++) {
        const struct model_tensor *t = &stored->tensors[role];
        if (t->n == 0 || role_kind(role) != ROLE_IS_PANELS)
            continue;
        struct weight_form form =
            device->api->reads(device, model_compute(role, compute), t->dtype);
        if (form.dtype != t->dtype || form.layout != WEIGHT_PANELS)
            return 1;
    }
    return 0;
}

/* 1: the device's matmuls read some matrix of the model as f16. */
static int reads_f16(const struct model *m, struct device *device, enum compute compute)
{
    int reads = 0;
    for (int i = 0; i < m->n_layers; i++)
        for (int role = 0; role < N_ROLES; role++) {
            const struct model_tensor *t = &m->layers[i].tensors[role];
            if (t->n > 0 && role_kind(role) == ROLE_IS_PANELS && t->dtype != DTYPE_F16)
                reads |= device->api->reads(device, model_compute(role, compute), t->dtype).as_f16;
        }
    return reads;
}

enum err model_range_check(const struct model *m, struct device *device, enum compute compute)
{
    const struct model_range *r = &m->range;
    if (m->dummy || !reads_f16(m, device, compute))
        return OK;
    if (!r->known)
        log_line(LOG_WARN,
                 "model: %s does not say how large its numbers are: this device reads f16, numbers "
                 "beyond %.0f become infinite (pack it again)",
                 m->path, (double)MODEL_F16_MAX);
    if (!r->known || r->most <= MODEL_F16_MAX)
        return OK;
    return fail(ERR_INPUT,
                "%s: layer %d: %s: %g exceeds %.0f, the largest f16 number, and this device reads "
                "f16 (--compute f32, or a device of sm_80 or newer)",
                m->path, r->layer, role_name((enum tensor_role)r->role), (double)r->most,
                (double)MODEL_F16_MAX);
}

void model_layer_tiles(const struct model_layer *stored, struct device *device,
                       enum compute compute, struct model_layer *tiles)
{
    *tiles = *stored;
    int64_t at = 0;
    for (int role = 0; role < N_ROLES; role++) {
        struct model_tensor *t = &tiles->tensors[role];
        if (t->n == 0 || role_kind(role) == ROLE_IS_ROWS)
            continue;
        t->offset = at;
        if (role_kind(role) == ROLE_IS_PANELS) {
            struct weight_form form = tile_form(device, model_compute(role, compute), t->dtype);
            t->dtype = form.dtype;
            t->layout = form.layout;
            at += round_up(weight_bytes(t->layout, t->dtype, t->n, t->k), 64);
        } else {
            at += round_up(role_bytes(role, t->dtype, t->n, t->k), 64);
        }
    }
    tiles->offset = -1;
    tiles->n_bytes = round_up(at, 4096);
}
