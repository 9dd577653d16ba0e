/* engine/job/journal.c - see journal.h.
 *
 * Note: every record has the offset of its group. A valid record after a broken one whose group
 * began after the break proves that the broken bytes had been synced: this is damage, not a torn
 * tail. Later records of the torn group itself prove nothing, because its pages reach the disk in
 * any order. */
#include "engine/job/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD_BYTES 64
#define RECORD_MAGIC 0x4c4a4c53u // "SLJL"
#ifndef JOURNAL_CHUNK_BYTES      // `make fuzz` asks for less
#define JOURNAL_CHUNK_BYTES ((int64_t)256 << 10)
#endif

/* The file's first 64 bytes. The checksum does not cover the pid, which changes. */
struct journal_header {
    char magic[8]; // "SLUICEJ1"
    uint64_t job_id;
    uint8_t zero[28];
    uint32_t crc; // of what is above
    int64_t pid;
    uint8_t unused[8];
};
_Static_assert(sizeof(struct journal_header) == RECORD_BYTES, "header");

struct record {
    uint32_t magic;
    uint16_t kind, failed;
    int64_t index, offset, n;
    uint32_t crc;   // ROW: of the line. TOKENS: of the ids that follow
    uint32_t chain; // checksum of the record before
    int64_t group;  // offset of the group's first record
    uint64_t job_id;
    uint32_t tokens; // ROW: of its output
    uint32_t self;   // of all above
};
_Static_assert(sizeof(struct record) == RECORD_BYTES, "record");

static const char MAGIC[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'J', '1'};

enum err write_all(int fd, const char *path, int64_t offset, const void *bytes, int64_t n_bytes)
{
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(fd, (const char *)bytes + done, (size_t)(n_bytes - done), offset + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(
                ERR_IO, "%.512s: byte %lld: %s (free space there, then the same command resumes)",
                path, (long long)(offset + done), n == 0 ? "nothing written" : strerror(errno));
        done += n;
    }
    return OK;
}

enum err sync_data(int fd, const char *path)
{
    if (fdatasync(fd) != 0)
        return fail(ERR_IO, "%.512s: fdatasync: %s (the same command resumes)", path,
                    strerror(errno));
    return OK;
}

/* As many bytes as the file has, at most n_bytes. */
static enum err read_some(const struct journal *j, int64_t offset, void *buf, int64_t n_bytes,
                          int64_t *n_read)
{
    *n_read = 0;
    while (*n_read < n_bytes) {
        ssize_t n =
            pread(j->fd, (char *)buf + *n_read, (size_t)(n_bytes - *n_read), offset + *n_read);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(ERR_IO, "%.512s: byte %lld: %s", j->path, (long long)(offset + *n_read),
                        strerror(errno));
        if (n == 0)
            return OK;
        *n_read += n;
    }
    return OK;
}

/* ---- header ---- */

static uint32_t header_crc(const struct journal_header *h)
{
    return crc32c(0, h, offsetof(struct journal_header, crc));
}

int64_t journal_pid(int fd)
{
    struct journal_header h;
    if (pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
        memcmp(h.magic, MAGIC, sizeof MAGIC) != 0)
        return 0;
    return h.pid;
}

enum err journal_create(struct journal *j, int fd, const char *path, uint64_t job_id)
{
    *j = (struct journal){.fd = fd, .path = path, .job_id = job_id, .end = RECORD_BYTES};
    struct journal_header h = {.job_id = job_id, .pid = getpid()};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.crc = header_crc(&h);
    if (ftruncate(fd, 0) != 0)
        return fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    TRY(write_all(fd, path, 0, &h, sizeof h));
    return sync_data(fd, path);
}

/* ---- records out ---- */

static enum err buf_room(struct journal *j, int64_t n)
{
    if (n <= j->buf_cap - j->n_buf)
        return OK;
    int64_t cap = max_i64(4096, 2 * (j->n_buf + n));
    uint8_t *grown = realloc(j->buf, (size_t)cap);
    if (!grown)
        return fail(ERR_FIT, "%.512s: no memory for %lld bytes of records", j->path,
                    (long long)cap);
    j->buf = grown;
    j->buf_cap = cap;
    return OK;
}

static uint32_t record_crc(const struct record *r)
{
    return crc32c(0, r, offsetof(struct record, self));
}

static int64_t payload_bytes(const struct record *r)
{
    return r->kind == JOURNAL_TOKENS ? r->n * (int64_t)sizeof(int32_t) : 0;
}

enum err journal_append(struct journal *j, const struct journal_entry *entry)
{
    struct record r = {.magic = RECORD_MAGIC,
                       .kind = (uint16_t)entry->kind,
                       .failed = (uint16_t)entry->failed,
                       .index = entry->index,
                       .offset = entry->offset,
                       .n = entry->n,
                       .crc = entry->crc,
                       .chain = j->chain,
                       .group = j->end,
                       .job_id = j->job_id,
                       .tokens = entry->tokens};
    int64_t n_payload = payload_bytes(&r);
    if (n_payload > 0)
        r.crc = crc32c(0, entry->ids, n_payload);
    r.self = record_crc(&r);
    TRY(buf_room(j, RECORD_BYTES + n_payload));
    memcpy(j->buf + j->n_buf, &r, sizeof r);
    j->n_buf += RECORD_BYTES;
    if (n_payload > 0)
        memcpy(j->buf + j->n_buf, entry->ids, (size_t)n_payload);
    j->n_buf += n_payload;
    j->chain = r.self;
    return OK;
}

enum err journal_write(const struct journal *j, const struct journal_group *g)
{
    if (g->n == 0)
        return OK;
    TRY(write_all(j->fd, j->path, g->at, g->buf, g->n));
    return sync_data(j->fd, j->path);
}

void journal_take(struct journal *j, struct journal_group *g)
{
    struct journal_group room = *g;
    *g = (struct journal_group){.at = j->end, .buf = j->buf, .n = j->n_buf, .cap = j->buf_cap};
    j->buf = room.buf;
    j->buf_cap = room.cap;
    j->n_buf = 0;
    j->end += g->n;
}

enum err journal_commit(struct journal *j)
{
    const struct journal_group g = {.at = j->end, .buf = j->buf, .n = j->n_buf};
    if (j->failed)
        return fail(ERR_IO, "%.512s: an earlier write failed", j->path);
    enum err err = journal_write(j, &g);
    j->failed = err != OK;
    if (err == OK) {
        j->end += j->n_buf;
        j->n_buf = 0;
    }
    return err;
}

void journal_close(struct journal *j)
{
    free(j->buf);
    *j = (struct journal){.fd = -1};
}

/* ---- records in ---- */

/* Is this a record of the job, whole in itself? */
static int record_sound(const struct journal *j, const struct record *r)
{
    return r->magic == RECORD_MAGIC && r->self == record_crc(r) && r->job_id == j->job_id;
}

/* The record at `at` with its payload, when both are whole and follow the chain. */
static enum err record_read(struct journal *j, int64_t at, int64_t n_file, struct record *r,
                            int *sound)
{
    int64_t n;
    *sound = 0;
    TRY(read_some(j, at, r, sizeof *r, &n));
    if (n < (int64_t)sizeof *r || !record_sound(j, r) || r->chain != j->chain)
        return OK;
    if ((r->kind != JOURNAL_ROW && r->kind != JOURNAL_TOKENS) || r->index < 0 || r->offset < 0 ||
        r->n < 0)
        return OK;
    int64_t rest = n_file - at - RECORD_BYTES;
    if (r->kind == JOURNAL_TOKENS && r->n > rest / (int64_t)sizeof(int32_t))
        return OK;
    int64_t n_payload = payload_bytes(r);
    j->n_buf = 0;
    TRY(buf_room(j, n_payload));
    TRY(read_some(j, at + RECORD_BYTES, j->buf, n_payload, &n));
    *sound = n == n_payload && (n_payload == 0 || crc32c(0, j->buf, n_payload) == r->crc);
    return OK;
}

/* Searches after a broken record for a valid one whose group began after it. Records are 4-byte
 * aligned. */
static enum err find_later_group(struct journal *j, int64_t at, int64_t n_file, int *found)
{
    *found = 0;
    j->n_buf = 0;
    TRY(buf_room(j, JOURNAL_CHUNK_BYTES));
    for (int64_t start = at; start < n_file && !*found;
         start += JOURNAL_CHUNK_BYTES - RECORD_BYTES) {
        int64_t n;
        TRY(read_some(j, start, j->buf, JOURNAL_CHUNK_BYTES, &n));
        for (int64_t i = 0; i + RECORD_BYTES <= n && !*found; i += 4) {
            struct record r;
            memcpy(&r, j->buf + i, sizeof r);
            *found = record_sound(j, &r) && r.group > at;
        }
    }
    return OK;
}

static enum err cut_tail(struct journal *j, int64_t at, int64_t n_file)
{
    int damaged;
    TRY(find_later_group(j, at, n_file, &damaged));
    if (damaged)
        return fail(ERR_CORRUPT, "%.512s: byte %lld: damaged record (--overwrite starts over)",
                    j->path, (long long)at);
    if (ftruncate(j->fd, at) != 0)
        return fail(ERR_IO, "%.512s: %s", j->path, strerror(errno));
    return OK;
}

/* Reports all records up to the first invalid one. j->end: its offset, or n_file. */
static enum err read_records(struct journal *j, int64_t n_file, const struct journal_reader *reader)
{
    while (j->end < n_file) {
        struct record r;
        int sound;
        TRY(record_read(j, j->end, n_file, &r, &sound));
        if (!sound)
            return OK;
        struct journal_entry entry = {.kind = r.kind,
                                      .index = r.index,
                                      .offset = r.offset,
                                      .n = r.n,
                                      .crc = r.crc,
                                      .failed = r.failed,
                                      .tokens = r.tokens,
                                      .ids = (const int32_t *)(const void *)j->buf};
        TRY(reader->entry(reader->ctx, &entry));
        j->chain = r.self;
        j->end += RECORD_BYTES + payload_bytes(&r);
    }
    return OK;
}

/* Reads the header. *sound 0: it is not one. */
static enum err read_header(const struct journal *j, struct journal_header *h, int *sound)
{
    int64_t n = 0;
    TRY(read_some(j, 0, h, sizeof *h, &n));
    *sound =
        n == sizeof *h && memcmp(h->magic, MAGIC, sizeof MAGIC) == 0 && h->crc == header_crc(h);
    return OK;
}

enum err journal_look(int fd, const char *path, uint64_t job_id,
                      const struct journal_reader *reader, struct journal_look *look)
{
    struct journal j = {.fd = fd, .path = path, .end = RECORD_BYTES};
    struct journal_header h = {.job_id = 0};
    int64_t n_file = lseek(fd, 0, SEEK_END);
    *look = (struct journal_look){0};
    if (n_file < 0)
        return fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    TRY(read_header(&j, &h, &look->found));
    if (!look->found)
        return OK;
    j.job_id = look->job_id = h.job_id;
    look->pid = h.pid;
    if (job_id && job_id != h.job_id)
        return OK;
    enum err err = read_records(&j, n_file, reader);
    look->bytes = j.end;
    journal_close(&j);
    return err;
}

enum err journal_load(struct journal *j, int fd, const char *path, uint64_t job_id,
                      const struct journal_reader *reader, int *empty)
{
    *j = (struct journal){.fd = fd, .path = path, .job_id = job_id, .end = RECORD_BYTES};
    struct journal_header h = {.job_id = 0};
    int sound;
    int64_t n_file = lseek(fd, 0, SEEK_END);
    *empty = 0;
    if (n_file < 0)
        return fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    TRY(read_header(j, &h, &sound));
    if (!sound && n_file <= RECORD_BYTES) { // killed while it was made: nothing was committed yet
        *empty = 1;
        return OK;
    }
    if (!sound)
        return fail(ERR_CORRUPT, "%.512s: byte 0: not a journal (--overwrite starts over)", path);
    if (h.job_id != job_id)
        return fail(ERR_JOB, "%.512s: the journal of another job (use --overwrite or another -o)",
                    path);
    TRY(read_records(j, n_file, reader));
    if (j->end < n_file)
        TRY(cut_tail(j, j->end, n_file));
    j->n_buf = 0;
    int64_t pid = getpid();
    TRY(write_all(fd, path, offsetof(struct journal_header, pid), &pid, sizeof pid));
    return sync_data(fd, path); // a killed writer may not have synced its last group
}
