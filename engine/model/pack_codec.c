/* engine/model/pack_codec.c - see pack_codec.h. */
#include "engine/model/pack_codec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/model/dummy.h"
#include "engine/model/pack.h"
#include "kernels/base/whole.h"

#define MAGIC       "sluicezs"
#define VERSION     1
#define ENTRY_BYTES 12 // bytes per table entry
#define MAKERS_MAX  8
#define SAMPLES     4 // pieces
/* Decode rate in a run (from RAM, on the thread that drives the disk) relative to this measurement
 * from caches. On two cores: at best 1.6 GB/s in a run, 5.3 GB/s here. */
#define IN_A_RUN 0.3

struct header {
    int64_t file_bytes, n_pieces, table_offset;
    uint64_t fingerprint;
    uint32_t table_crc;
};

static enum err path_of(const struct model *m, char *path, size_t n)
{
    return snprintf(path, n, "%s.zst", m->path) < (int)n
               ? OK
               : fail(ERR_USAGE, "%s: path too long", m->path);
}

/* ---- header and table ---- */

static void header_encode(const struct header *h, uint8_t page[BLOCK_BYTES])
{
    struct pack_out o = {.data = page, .capacity = BLOCK_BYTES};
    memset(page, 0, BLOCK_BYTES);
    pack_put(&o, MAGIC, 8);
    pack_put_u32(&o, VERSION);
    pack_put_u32(&o, h->table_crc);
    pack_put_u64(&o, (uint64_t)h->file_bytes);
    pack_put_u64(&o, (uint64_t)h->n_pieces);
    pack_put_u64(&o, (uint64_t)h->table_offset);
    pack_put_u64(&o, h->fingerprint);
    o.n_bytes = BLOCK_BYTES - 4;
    pack_put_u32(&o, crc32c(0, page, BLOCK_BYTES - 4));
}

static enum err header_decode(struct header *h, const uint8_t page[BLOCK_BYTES], const char *path)
{
    struct pack_in in = {.data = page, .n_bytes = BLOCK_BYTES};
    int named = memcmp(pack_get(&in, 8), MAGIC, 8) == 0;
    uint32_t version = pack_get_u32(&in);
    h->table_crc = pack_get_u32(&in);
    h->file_bytes = (int64_t)pack_get_u64(&in);
    h->n_pieces = (int64_t)pack_get_u64(&in);
    h->table_offset = (int64_t)pack_get_u64(&in);
    h->fingerprint = pack_get_u64(&in);
    in.at = BLOCK_BYTES - 4;
    if (!named || pack_get_u32(&in) != crc32c(0, page, BLOCK_BYTES - 4))
        return fail(ERR_CORRUPT, "%s: header: checksum mismatch", path);
    if (version != VERSION)
        return fail(ERR_INPUT, "%s: header: version %u, this program reads %d", path, version,
                    VERSION);
    return OK;
}

/* Reads the entries of one layer: all present or none, each between header and table. */
static enum err read_layer(struct pack_codec *z, const struct model_layer *l, struct pack_in *in,
                           int64_t table_offset)
{
    int64_t n_pieces = model_pieces(l), n_there = 0;
    for (int64_t i = 0; i < n_pieces; i++) {
        struct codec_piece *p = &z->pieces[l->piece + i];
        p->offset = (int64_t)pack_get_u64(in);
        p->stored_bytes = pack_get_u32(in);
        int64_t n_bytes = min_i64(PIECE_BYTES, l->n_bytes - i * PIECE_BYTES);
        if (p->stored_bytes == 0)
            continue;
        n_there++;
        if (p->offset < BLOCK_BYTES || p->offset % BLOCK_BYTES != 0 || p->offset > table_offset ||
            p->stored_bytes % BLOCK_BYTES != 0 || p->stored_bytes > n_bytes ||
            p->stored_bytes > table_offset - p->offset)
            return fail(ERR_CORRUPT, "%s: table: a piece lies outside the file", z->path);
    }
    return n_there == 0 || n_there == n_pieces
               ? OK
               : fail(ERR_CORRUPT, "%s: table: a layer lacks pieces", z->path);
}

static enum err read_table(struct pack_codec *z, const struct model *m, const struct header *h,
                           int fd, uint8_t *table)
{
    int64_t n_bytes = h->n_pieces * ENTRY_BYTES;
    TRY(model_read_at(fd, z->path, h->table_offset, n_bytes, table));
    if (crc32c(0, table, n_bytes) != h->table_crc)
        return fail(ERR_CORRUPT, "%s: table: checksum mismatch", z->path);
    struct pack_in in = {.data = table, .n_bytes = n_bytes};
    for (int i = 0; i < m->n_layers; i++)
        TRY(read_layer(z, &m->layers[i], &in, h->table_offset));
    return OK;
}

static enum err read_file(struct pack_codec *z, const struct model *m, int fd)
{
    uint8_t page[BLOCK_BYTES];
    struct header h;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fail(ERR_IO, "%s: stat: %s", z->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < BLOCK_BYTES)
        return fail(ERR_CORRUPT, "%s: header: cut short", z->path);
    TRY(model_read_at(fd, z->path, 0, BLOCK_BYTES, page));
    TRY(header_decode(&h, page, z->path));
    if (h.fingerprint != m->fingerprint || h.n_pieces != m->n_pieces)
        return fail(ERR_INPUT, "%s: belongs to another pack", z->path);
    if (h.file_bytes != st.st_size || h.table_offset < BLOCK_BYTES || h.table_offset > st.st_size ||
        st.st_size - h.table_offset != h.n_pieces * ENTRY_BYTES)
        return fail(ERR_CORRUPT, "%s: header: says %lld bytes, the file has %lld (cut short?)",
                    z->path, (long long)h.file_bytes, (long long)st.st_size);
    z->n_pieces = m->n_pieces;
    z->file_bytes = st.st_size;
    z->pieces = calloc((size_t)z->n_pieces, sizeof *z->pieces);
    uint8_t *table = malloc((size_t)(z->n_pieces * ENTRY_BYTES));
    enum err e = z->pieces && table ? read_table(z, m, &h, fd, table)
                                    : fail(ERR_FIT, "no memory for the table of %s", z->path);
    free(table);
    return e;
}

int pack_codec_is(const char *path)
{
    return model_starts_with(path, MAGIC);
}

enum err pack_codec_open(struct pack_codec *z, const struct model *m)
{
    *z = (struct pack_codec){0};
    TRY(path_of(m, z->path, sizeof z->path));
    int fd = open(z->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(errno == ENOENT ? ERR_INPUT : ERR_IO, "%s: open: %s", z->path, strerror(errno));
    enum err e = read_file(z, m, fd);
    close(fd);
    if (e != OK)
        pack_codec_close(z);
    return e;
}

void pack_codec_close(struct pack_codec *z)
{
    free(z->pieces);
    *z = (struct pack_codec){0};
}

const struct codec_piece *pack_codec_layer(const struct pack_codec *z, const struct model_layer *l)
{
    return z->pieces && z->pieces[l->piece].stored_bytes > 0 ? &z->pieces[l->piece] : NULL;
}

int pack_codec_covers(const struct pack_codec *z, const struct model *m, const struct plan *plan)
{
    for (int i = 1; i < m->n_layers; i++)
        if (!plan_layer_resident(plan, i) && !pack_codec_layer(z, &m->layers[i]))
            return 0;
    return 1;
}

/* ---- making ---- */

/* One thread's piece of a round. */
struct piece_maker {
    struct codec *codec; // owned
    uint8_t *in, *out;   // owned: [PIECE_BYTES] each
    int layer;
    int64_t piece, n_bytes;
    int64_t stored_bytes; // encoded bytes at `out`; 0: stored raw, n_bytes at `in`
    enum err err;
    char text[256]; // text of err: error texts are kept per thread
};

struct maker {
    const struct pack_codec_request *r;
    const struct model *m;
    struct whole_file file;
    int pack;                   // the pack
    struct codec_piece *pieces; // owned: [n_pieces]
    struct piece_maker each[MAKERS_MAX];
    int n_each, n; // makers; pieces of this round
    int64_t end, done_bytes, total_bytes;
};

static enum err piece_make(const struct maker *w, struct piece_maker *p)
{
    const struct model_layer *l = &w->m->layers[p->layer];
    TRY(model_read_at(w->pack, w->m->path, l->offset + p->piece * PIECE_BYTES, p->n_bytes, p->in));
    TRY(model_piece_check(w->m, p->layer, p->piece, p->in, p->n_bytes));
    p->stored_bytes = codec_compress(p->codec, p->in, p->n_bytes, p->out);
    return OK;
}

static void make_task(void *ctx, int thread, int n_threads)
{
    struct maker *w = ctx;
    int64_t first, last;
    pool_split(w->n, thread, n_threads, &first, &last);
    for (int64_t i = first; i < last; i++) {
        struct piece_maker *p = &w->each[i];
        p->err = piece_make(w, p);
        if (p->err != OK)
            snprintf(p->text, sizeof p->text, "%s", err_text());
    }
}

/* Encodes the pieces of a round on all threads and appends them in order. */
static enum err make_round(struct maker *w)
{
    pool_run(w->r->pool, make_task, w);
    for (int i = 0; i < w->n; i++) {
        const struct piece_maker *p = &w->each[i];
        if (p->err != OK)
            return fail(p->err, "%s", p->text);
        int64_t n_bytes = p->stored_bytes > 0 ? p->stored_bytes : p->n_bytes;
        fwrite(p->stored_bytes > 0 ? p->out : p->in, 1, (size_t)n_bytes, w->file.f);
        w->pieces[w->m->layers[p->layer].piece + p->piece] = (struct codec_piece){w->end, n_bytes};
        w->end += n_bytes;
        w->done_bytes += p->n_bytes;
    }
    w->n = 0;
    if (ferror(w->file.f))
        return fail(ERR_IO, "%s: cannot be written: %s", w->file.path, strerror(errno));
    return w->r->progress ? w->r->progress(w->r->ctx, w->done_bytes, w->total_bytes) : OK;
}

static enum err make_pieces(struct maker *w)
{
    w->end = BLOCK_BYTES;
    fseeko(w->file.f, w->end, SEEK_SET);
    for (int i = 1; i < w->m->n_layers; i++) {
        const struct model_layer *l = &w->m->layers[i];
        for (int64_t k = 0; !l->absent && k < model_pieces(l); k++) {
            struct piece_maker *p = &w->each[w->n++];
            p->layer = i;
            p->piece = k;
            p->n_bytes = min_i64(PIECE_BYTES, l->n_bytes - k * PIECE_BYTES);
            if (w->n == w->n_each)
                TRY(make_round(w));
        }
    }
    return w->n > 0 ? make_round(w) : OK;
}

/* Writes the table after the pieces, then the header. */
static enum err make_table(struct maker *w)
{
    struct pack_out table = {0};
    for (int64_t i = 0; i < w->m->n_pieces; i++) {
        pack_put_u64(&table, (uint64_t)w->pieces[i].offset);
        pack_put_u32(&table, (uint32_t)w->pieces[i].stored_bytes);
    }
    if (table.failed)
        return fail(ERR_FIT, "no memory for the table of %s", w->file.path);
    const struct header h = {w->end + table.n_bytes, w->m->n_pieces, w->end, w->m->fingerprint,
                             crc32c(0, table.data, table.n_bytes)};
    uint8_t page[BLOCK_BYTES];
    header_encode(&h, page);
    fwrite(table.data, 1, (size_t)table.n_bytes, w->file.f);
    free(table.data);
    fseeko(w->file.f, 0, SEEK_SET);
    fwrite(page, 1, sizeof page, w->file.f);
    return OK;
}

static enum err take_makers(struct maker *w)
{
    const struct pack_codec_request *r = w->r;
    int64_t one = codec_bytes(1) + 2 * PIECE_BYTES;
    int64_t most = min_i64(min_i64(pool_threads(r->pool), MAKERS_MAX), r->memory_bytes / one);
    w->pieces = calloc((size_t)w->m->n_pieces, sizeof *w->pieces);
    if (!w->pieces)
        return fail(ERR_FIT, "no memory for the table of %s", w->file.path);
    for (w->n_each = 0; w->n_each < max_i64(most, 1); w->n_each++) {
        struct piece_maker *p = &w->each[w->n_each];
        TRY(codec_open(&p->codec, 1));
        p->in = malloc(PIECE_BYTES);
        p->out = malloc(PIECE_BYTES);
        if (!p->in || !p->out)
            return fail(ERR_FIT, "no memory for the codec");
    }
    return OK;
}

static enum err check_disk(const struct maker *w)
{
    struct statvfs fs;
    if (fstatvfs(fileno(w->file.f), &fs) != 0)
        return fail(ERR_IO, "%s: %s", w->file.path, strerror(errno));
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (free_bytes < (double)w->total_bytes)
        return fail(ERR_IO,
                    "%s: encoded layers may need %lld bytes, the disk has %.0f bytes free "
                    "(--weights-codec none does without)",
                    w->file.path, (long long)w->total_bytes, free_bytes);
    return OK;
}

/* From here on both files bypass the page cache. The kernel reports a failed sync once per file, so
 * the sync in whole_end() would not report this failure. */
static enum err make_file(struct maker *w)
{
    TRY(check_disk(w));
    TRY(take_makers(w));
    TRY(make_pieces(w));
    TRY(make_table(w));
    const int fd = fileno(w->file.f);
    if (fflush(w->file.f) != 0 || (fdatasync(fd) != 0 && errno != EINVAL))
        return fail(ERR_IO, "%s: cannot be written: %s", w->file.path, strerror(errno));
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(w->pack, 0, 0, POSIX_FADV_DONTNEED);
    return OK;
}

/* Users may also call a compressed pack PACK.zst: only encoded layers are replaced. Damaged ones
 * are recognised by their first bytes, also if fewer than the magic's bytes are left; an empty file
 * holds nothing to lose. */
static enum err check_place(const char *path)
{
    char magic[sizeof MAGIC - 1] = "";
    struct standing was;
    const char *why;
    standing_look(&was, path);
    FILE *f = was.there && was.regular ? regular_open(path, &why) : NULL;
    size_t n = f ? fread(magic, 1, sizeof magic, f) : 0;
    int ours = !was.there || (f && memcmp(magic, MAGIC, n) == 0);
    if (f)
        fclose(f);
    return ours ? OK
                : fail(ERR_INPUT,
                       "%s: exists already, and was not written by sluice (move it away, or "
                       "--weights-codec none)",
                       path);
}

static enum err make(struct maker *w)
{
    char path[4200];
    TRY(path_of(w->m, path, sizeof path));
    TRY(check_place(path));
    w->pack = open(w->m->path, O_RDONLY | O_CLOEXEC);
    if (w->pack < 0)
        return fail(ERR_IO, "%s: open: %s", w->m->path, strerror(errno));
    for (int i = 1; i < w->m->n_layers; i++)
        w->total_bytes += w->m->layers[i].absent ? 0 : w->m->layers[i].n_bytes;
    TRY(whole_open(&w->file, path));
    TRY(make_file(w));
    enum err e = whole_end(&w->file);
    if (e == ERR_JOB) // another process made the file meanwhile
        unlink(w->file.temp);
    return e == ERR_JOB ? OK : e;
}

enum err pack_codec_make(const struct pack_codec_request *r)
{
    struct maker *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for the codec");
    w->r = r;
    w->m = r->model;
    w->pack = -1;
    enum err e = make(w);
    whole_drop(&w->file);
    if (w->pack >= 0)
        close(w->pack);
    for (int i = 0; i < MAKERS_MAX; i++) {
        codec_close(w->each[i].codec);
        free(w->each[i].in);
        free(w->each[i].out);
    }
    free(w->pieces);
    free(w);
    return e;
}

/* ---- measuring ---- */

/* A decoder layer in the middle; of an on-demand pack, one that it has, if any. */
static int middle_layer(const struct model *m)
{
    int middle = 1 + m->shape.n_layers / 2;
    middle = middle > m->shape.n_layers ? m->shape.n_layers : middle;
    for (int i = 0; i < m->shape.n_layers && m->layers[middle].absent; i++)
        middle = middle % m->shape.n_layers + 1;
    return middle;
}

/* The matrix of a layer with the most numbers; there may be no MLP. */
static enum tensor_role largest_matrix(const struct model_layer *l)
{
    int role = 0;
    int64_t most = 0;
    for (int i = 0; i < N_ROLES; i++) {
        const int64_t numbers = (int64_t)l->tensors[i].n * l->tensors[i].k;
        if (role_kind((enum tensor_role)i) == ROLE_IS_PANELS && numbers > most) {
            role = i;
            most = numbers;
        }
    }
    return (enum tensor_role)role;
}

/* Generates some panels of a layer that is not in the file: *n_bytes of the `room` at `buf`. */
static enum err sample_made(const struct model *m, int layer, uint8_t *buf, int64_t room,
                            int64_t *n_bytes)
{
    const enum tensor_role role = largest_matrix(&m->layers[layer]);
    const struct model_tensor *t = &m->layers[layer].tensors[role];
    int64_t panel = dtype_panel_bytes(t->dtype, t->k), n = min_i64(room / panel, t->n / PANEL_ROWS);
    *n_bytes = n * panel / CODEC_UNIT * CODEC_UNIT;
    if (n == 0)
        return OK;
    struct pack_provider provider;
    struct model copy = *m;
    TRY(dummy_of_model(&provider, m));
    enum err e = pack_panels_make(&provider, &copy, layer, role, (int)n * PANEL_ROWS, buf);
    dummy_close(&provider);
    return e;
}

/* Reads some pieces of the middle layer into buf[SAMPLES * PIECE_BYTES]. */
static enum err sample_read(const struct model *m, uint8_t *buf, int64_t *n_bytes)
{
    int layer = middle_layer(m);
    const struct model_layer *l = &m->layers[layer];
    *n_bytes = 0;
    if (l->absent)
        return sample_made(m, layer, buf, SAMPLES * PIECE_BYTES, n_bytes);
    int fd = open(m->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(ERR_IO, "%s: open: %s", m->path, strerror(errno));
    enum err e = OK;
    int64_t n_pieces = model_pieces(l), n = min_i64(n_pieces, SAMPLES);
    for (int64_t i = 0; i < n && e == OK; i++) {
        int64_t at = n_pieces * i / n * PIECE_BYTES, size = min_i64(PIECE_BYTES, l->n_bytes - at);
        e = model_read_at(fd, m->path, l->offset + at, size, buf + *n_bytes);
        *n_bytes += size;
    }
    posix_fadvise(fd, l->offset, l->n_bytes, POSIX_FADV_DONTNEED);
    close(fd);
    return e;
}

/* Encodes and decodes the sample; per piece, the fastest of a few rounds counts. */
static void measure(struct codec *c, const uint8_t *in, int64_t n_bytes, uint8_t *stored,
                    uint8_t *out, struct pack_codec_sample *s)
{
    int64_t stored_bytes = 0, encode_ns = 0, decode_ns = 0;
    for (int64_t at = 0; at < n_bytes; at += PIECE_BYTES) {
        int64_t n = min_i64(PIECE_BYTES, n_bytes - at), start_ns = clock_ns();
        int64_t size = codec_compress(c, in + at, n, stored);
        encode_ns += clock_ns() - start_ns;
        stored_bytes += size > 0 ? size : n;
        int64_t best_ns = INT64_MAX;
        for (int i = 0; i < 3 && size > 0; i++) {
            start_ns = clock_ns();
            CHECK(codec_decompress(c, stored, size, out, n) == 0);
            best_ns = min_i64(best_ns, clock_ns() - start_ns);
        }
        decode_ns += size > 0 ? best_ns : 0;
    }
    s->share = (double)stored_bytes / (double)n_bytes;
    s->rate = IN_A_RUN * (double)n_bytes / ((double)max_i64(decode_ns, 1) * 1e-9);
    s->make_s = (double)encode_ns * 1e-9 / (double)n_bytes; // per byte
}

enum err pack_codec_measure(const struct model *m, struct pack_codec_sample *s)
{
    struct codec *c;
    int64_t n_bytes = 0;
    *s = (struct pack_codec_sample){.share = 1, .rate = 1e12};
    TRY(codec_open(&c, 1));
    uint8_t *in = malloc((size_t)(SAMPLES + 2) * PIECE_BYTES);
    enum err e = in ? sample_read(m, in, &n_bytes) : fail(ERR_FIT, "no memory for the codec");
    if (e == OK && n_bytes > 0) {
        uint8_t *stored = in + SAMPLES * PIECE_BYTES;
        measure(c, in, n_bytes, stored, stored + PIECE_BYTES, s);
    }
    free(in);
    codec_close(c);
    return e;
}

double pack_codec_make_s(const struct model *m, const struct plan *plan,
                         const struct pack_codec_sample *s)
{
    struct pack_codec z;
    int64_t all = 0;
    if (pack_codec_open(&z, m) == OK) {
        int is_there = pack_codec_covers(&z, m, plan);
        pack_codec_close(&z);
        if (is_there)
            return 0;
    }
    for (int i = 1; i < m->n_layers; i++)
        all += !m->layers[i].absent || !plan_layer_resident(plan, i) ? m->layers[i].n_bytes : 0;
    return s->make_s * (double)all;
}
