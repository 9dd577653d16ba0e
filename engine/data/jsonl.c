/* engine/data/jsonl.c - see jsonl.h. Owns the window over the file; refuses to interpret a line.
 *
 * Note: a line longer than line_max costs no memory. jsonl_next() only counts its bytes, and the
 * next line begins after its newline. */
#include "engine/data/jsonl.h"

#include <stdlib.h>
#include <string.h>

#ifndef JSONL_WINDOW_BYTES // `make fuzz` asks for 64, so that short lines cross windows, too
#define JSONL_WINDOW_BYTES ((int64_t)256 << 10)
#endif

/* Refuses files that are not UTF-8 text, by their first bytes. */
static enum err check_kind(const struct jsonl *j, const unsigned char *p, int64_t n)
{
    static const struct {
        const char *magic;
        int n;
        const char *name, *hint;
    } kinds[] = {
        {"\x1f\x8b", 2, "gzip", "gunzip it first"},
        {"\x28\xb5\x2f\xfd", 4, "zstd", "unzstd it first"},
        {"\xff\xfe", 2, "UTF-16", "convert it to UTF-8 first"},
        {"\xfe\xff", 2, "UTF-16", "convert it to UTF-8 first"},
        {"{\0", 2, "UTF-16", "convert it to UTF-8 first"},
        {"\0{", 2, "UTF-16", "convert it to UTF-8 first"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (n >= kinds[i].n && memcmp(p, kinds[i].magic, (size_t)kinds[i].n) == 0)
            return fail(ERR_INPUT, "%.512s: byte 0: looks like %s (%s)", j->file.path,
                        kinds[i].name, kinds[i].hint);
    return OK;
}

/* Fills the window with bytes from `offset` on, as many as it holds. */
static enum err window_load(struct jsonl *j, int64_t offset)
{
    j->n_buf = 0; // an empty window if the read fails
    int64_t n = min_i64(j->buf_cap, j->file.n_bytes - offset);
    TRY(file_read(&j->file, offset, n, j->buf));
    j->at = offset;
    j->n_buf = n;
    return OK;
}

static enum err window_grow(struct jsonl *j, int64_t cap)
{
    char *grown = realloc(j->buf, (size_t)cap);
    if (!grown)
        return fail(ERR_FIT, "%.512s: no memory for a line of %lld bytes", j->file.path,
                    (long long)cap);
    j->buf = grown;
    j->buf_cap = cap;
    return OK;
}

/* Hashes the window just loaded, which begins where `hash` ends. */
static void window_hash(struct jsonl *j)
{
    int64_t end = j->at + j->n_buf;
    if (j->mark_bytes >= j->at && j->mark_bytes <= end && (j->mark_bytes > j->at || j->at == 0))
        j->mark_hash = hash_bytes(j->buf, j->mark_bytes - j->at, j->hash);
    j->hash = hash_bytes(j->buf, j->n_buf, j->hash);
    j->hashed = end;
}

enum err jsonl_open(struct jsonl *j, const char *path)
{
    memset(j, 0, sizeof *j);
    j->file.fd = -1;
    TRY(file_open(&j->file, path));
    j->line_max = JSONL_LINE_BYTES_MAX;
    enum err err = window_grow(j, JSONL_WINDOW_BYTES);
    if (err == OK)
        err = window_load(j, 0);
    if (err == OK)
        err = check_kind(j, (const unsigned char *)j->buf, j->n_buf);
    if (err != OK) {
        jsonl_close(j);
        return err;
    }
    j->mark_bytes = -1;
    window_hash(j);
    if (j->n_buf >= 3 && memcmp(j->buf, "\xef\xbb\xbf", 3) == 0)
        j->pos = 3;
    return OK;
}

void jsonl_close(struct jsonl *j)
{
    if (j->file.path)
        file_close(&j->file);
    free(j->buf);
    memset(j, 0, sizeof *j);
    j->file.fd = -1;
}

void jsonl_mark(struct jsonl *j, int64_t n_bytes)
{
    CHECK(j->at == 0 && j->hashed == j->n_buf);
    j->mark_bytes = n_bytes;
    j->hash = 0;
    window_hash(j);
}

/* Windows of the pass begin at multiples of their size, so that the hash depends on the bytes
 * alone. */
static enum err window_next(struct jsonl *j)
{
    TRY(window_load(j, j->at + j->n_buf));
    if (j->at == j->hashed)
        window_hash(j);
    return OK;
}

static int is_blank(const char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r')
            return 0;
    return 1;
}

enum err jsonl_next(struct jsonl *j, struct jsonl_line *line, int *found)
{
    *found = 0;
    int64_t start = j->pos;
    int blank = 1;
    char last = 0;
    uint32_t crc = 0;
    while (j->pos < j->file.n_bytes) {
        if (j->pos >= j->at + j->n_buf)
            TRY(window_next(j));
        const char *p = j->buf + (j->pos - j->at);
        int64_t n = j->at + j->n_buf - j->pos;
        const char *end = memchr(p, '\n', (size_t)n);
        if (end)
            n = end - p;
        blank = blank && is_blank(p, n);
        crc = crc32c(crc, p, n);
        if (n > 0)
            last = p[n - 1];
        j->pos += n;
        if (!end && j->pos < j->file.n_bytes)
            continue; // the line goes on in the next window
        int64_t n_bytes = j->pos - start;
        j->pos += end != NULL;
        j->line++;
        if (!blank) {
            n_bytes -= end && last == '\r';
            *line = (struct jsonl_line){.offset = start,
                                        .n_bytes = n_bytes,
                                        .line = j->line,
                                        .too_long = n_bytes > j->line_max,
                                        .crc = crc};
            *found = 1;
            return OK;
        }
        start = j->pos;
        last = 0;
        crc = 0;
    }
    return OK;
}

void jsonl_trim(struct jsonl *j)
{
    if (j->buf_cap <= JSONL_WINDOW_BYTES)
        return;
    free(j->buf);
    j->buf = NULL;
    j->buf_cap = j->n_buf = 0;
}

enum err jsonl_read(struct jsonl *j, int64_t offset, const char **text, int64_t *n_bytes)
{
    CHECK(offset >= 0 && offset < j->file.n_bytes);
    int64_t seen = 0; // bytes from offset on that hold no newline
    if (!j->buf)
        TRY(window_grow(j, JSONL_WINDOW_BYTES));
    if (offset < j->at || offset >= j->at + j->n_buf)
        TRY(window_load(j, offset));
    for (;;) {
        const char *p = j->buf + (offset - j->at);
        int64_t n = j->at + j->n_buf - offset;
        const char *end = memchr(p + seen, '\n', (size_t)(n - seen));
        if (end || offset + n == j->file.n_bytes) {
            n = end ? end - p : n;
            n -= end && n > 0 && p[n - 1] == '\r';
            *text = p;
            *n_bytes = n;
            return OK;
        }
        if (n > j->line_max + 1)
            return fail(ERR_CORRUPT, "%.512s: changed while reading: a longer line at byte %lld",
                        j->file.path, (long long)offset);
        seen = j->at == offset ? n : 0;
        if (j->at == offset) // the window holds nothing but the line, which is longer
            TRY(window_grow(
                j, min_i64(2 * j->buf_cap, max_i64(j->line_max + 2, JSONL_WINDOW_BYTES))));
        TRY(window_load(j, offset));
    }
}
