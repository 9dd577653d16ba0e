/* engine/job/journal.h - what a job has committed, as an append-only file of checksummed records.
 *
 * Owns: the records of OUT.journal and their order on the disk. Refuses: the contents of lines;
 * opening, locking and naming the file (engine/job/job_files.c). An fsync error is final: pages
 * that were not written count as clean afterwards, so a second fsync would succeed.
 *
 * Records are appended in groups; a group is durable before the next one begins. Damage in the last
 * group is a torn tail (cut); damage before it means that synced bytes changed (ERR_CORRUPT). */
#ifndef ENGINE_JOB_JOURNAL_H
#define ENGINE_JOB_JOURNAL_H

#include "kernels/base/base.h"

enum journal_kind {
    JOURNAL_ROW = 1, // a line of OUT.partial is durable
    /* Tokens of a live row, after those of earlier records. For a finished row: the row is run
     * again (n may be 0). */
    JOURNAL_TOKENS = 2,
};

struct journal_entry {
    int kind;
    int64_t index;      // row of the input
    int64_t offset;     // ROW: of the line in OUT.partial. TOKENS: generated tokens before these
    int64_t n;          // ROW: bytes of the line. TOKENS: count
    uint32_t crc;       // ROW: CRC32C of the line
    int failed;         // ROW: an error row
    uint32_t tokens;    // ROW: output tokens of the row (scored ones count)
    const int32_t *ids; // TOKENS: [n], borrowed
};

struct journal {
    int fd;           // borrowed
    const char *path; // borrowed, for messages
    uint64_t job_id;
    int64_t end;    // bytes that are durable, or in a group that journal_take() handed out
    uint32_t chain; // checksum of the last record
    int failed;     // a write or sync failed: nothing is written any more
    uint8_t *buf;   // owned: records of the current group
    int64_t n_buf, buf_cap;
};

/* Called for each record, in order. An error ends the load. */
struct journal_reader {
    enum err (*entry)(void *ctx, const struct journal_entry *entry);
    void *ctx;
};

/* Makes the file an empty journal of this job, durable on return. The caller holds the lock. The
 * header has the pid of this process, for messages of other processes. */
enum err journal_create(struct journal *j, int fd, const char *path, uint64_t job_id);
/* Reads all records, cuts a torn tail, writes this process's pid. *empty 1: there is no header yet,
 * call journal_create(). ERR_JOB: another job's; ERR_CORRUPT: damage before the last group; ERR_IO.
 */
enum err journal_load(struct journal *j, int fd, const char *path, uint64_t job_id,
                      const struct journal_reader *reader, int *empty);
/* Adds a record to the group. ERR_FIT. */
enum err journal_append(struct journal *j, const struct journal_entry *entry);
/* Writes the group and makes it durable. ERR_IO: final. */
enum err journal_commit(struct journal *j);

/* A group that another thread may write. */
struct journal_group {
    int64_t at;   // offset in the file
    uint8_t *buf; // owned
    int64_t n, cap;
};
/* Moves the current group into *g; the journal continues with the buffer of *g (zeroed, or already
 * written). Groups must be written in the order in which they were moved, each durable before the
 * next is begun. */
void journal_take(struct journal *j, struct journal_group *g);
/* Writes a group and makes it durable; of the journal only fd and path are read, so another thread
 * may append meanwhile. ERR_IO: final, no later group may be written. */
enum err journal_write(const struct journal *j, const struct journal_group *g);
void journal_close(struct journal *j);

/* What the header of a journal says. */
struct journal_look {
    int found; // 0: no header yet; pid and job_id are 0
    uint64_t job_id;
    int64_t pid;   // of the process that wrote last
    int64_t bytes; // of header and whole records
};
/* Reads a journal that another process may be writing, up to the first incomplete record. Changes
 * nothing; fd may be read-only. job_id other than 0: only the journal of this job, else there is no
 * record. ERR_IO, ERR_FIT. */
enum err journal_look(int fd, const char *path, uint64_t job_id,
                      const struct journal_reader *reader, struct journal_look *look);

/* The pid in the header of another process's journal; 0: not known. */
int64_t journal_pid(int fd);

/* Writes n_bytes at offset, completely. ERR_IO names the path: disk full, file size limit, ... */
enum err write_all(int fd, const char *path, int64_t offset, const void *bytes, int64_t n_bytes);
/* fdatasync. ERR_IO. */
enum err sync_data(int fd, const char *path);

#endif
