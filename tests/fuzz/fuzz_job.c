/* tests/fuzz/fuzz_job.c - what a job finds beside OUT when it starts: its journal, its manifest. */
#include "engine/job/job_impl.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the journal ----
 * Random bytes end at the first checksum. Unless the first byte says so, every record gets the
 * magic, job and checksums that it should have; one whose `zero` is odd keeps what it has. */

#define ID     0x1234567890abcdefull
#define RECORD 64

struct record { // as engine/job/journal.c writes it
    uint32_t magic;
    uint16_t kind, failed;
    int64_t index, offset, n;
    uint32_t crc, chain;
    int64_t group;
    uint64_t job_id;
    uint32_t zero, self;
};
_Static_assert(sizeof(struct record) == RECORD, "record");

static void header_mend(uint8_t *bytes)
{
    static const uint64_t id = ID;
    memcpy(bytes, "SLUICEJ1", 8);
    memcpy(bytes + 8, &id, 8);
    const uint32_t crc = crc32c(0, bytes, 44);
    memcpy(bytes + 44, &crc, 4);
}

static void records_mend(uint8_t *bytes, int64_t n)
{
    uint32_t chain = 0;
    for (int64_t at = RECORD; at + RECORD <= n;) {
        struct record r;
        memcpy(&r, bytes + at, sizeof r);
        int64_t n_payload = 0;
        if (r.kind == JOURNAL_TOKENS && r.n > 0 && r.n <= (n - at - RECORD) / 4)
            n_payload = 4 * r.n;
        if (!(r.zero & 1)) {
            r.magic = 0x4c4a4c53u;
            r.job_id = ID;
            r.chain = chain;
            if (n_payload > 0)
                r.crc = crc32c(0, bytes + at + RECORD, n_payload);
            r.self = crc32c(0, &r, offsetof(struct record, self));
            memcpy(bytes + at, &r, sizeof r);
        }
        chain = r.self;
        at += RECORD + n_payload;
    }
}

struct seen {
    int64_t n, sum;
};

static enum err entry_see(void *ctx, const struct journal_entry *e)
{
    struct seen *s = ctx;
    CHECK(e->kind == JOURNAL_ROW || e->kind == JOURNAL_TOKENS);
    CHECK(e->index >= 0 && e->offset >= 0 && e->n >= 0);
    if (e->kind == JOURNAL_TOKENS)
        s->sum += (int64_t)(hash_bytes(e->ids, 4 * e->n, 0) & 0xffff);
    s->n++;
    s->sum += e->index % 1000 + e->failed;
    return OK;
}

static enum err journal_see(struct journal *j, int fd, struct seen *s, int *empty)
{
    const struct journal_reader reader = {.entry = entry_see, .ctx = s};
    *s = (struct seen){.n = 0};
    return journal_load(j, fd, "j", ID, &reader, empty);
}

static void journal_one(const uint8_t *data, size_t n)
{
    static uint8_t bytes[1 << 16];
    static const int32_t ids[3] = {7, 8, 9};
    struct journal j;
    struct seen first, second;
    int empty;
    if (n < 1 || n > sizeof bytes)
        return;
    memcpy(bytes, data + 1, --n);
    if (n >= RECORD && !(data[0] & 1)) {
        header_mend(bytes);
        records_mend(bytes, (int64_t)n);
    }
    fuzz_file_writable("j", bytes, n);
    const int fd = open(FUZZ_DIR "/j", O_RDWR);
    CHECK(fd >= 0);
    (void)journal_pid(fd);
    enum err e = journal_see(&j, fd, &first, &empty);
    CHECK(e == OK || e == ERR_CORRUPT || e == ERR_JOB);
    if (e == OK && empty)
        e = journal_create(&j, fd, "j", ID);
    if (e == OK) { // what was read, and what is added, is there the next time
        CHECK(
            journal_append(&j, &(struct journal_entry){
                                   .kind = JOURNAL_TOKENS, .index = 5, .n = 3, .ids = ids}) == OK);
        CHECK(journal_commit(&j) == OK);
        journal_close(&j);
        CHECK(journal_see(&j, fd, &second, &empty) == OK && !empty && second.n == first.n + 1);
    }
    journal_close(&j);
    close(fd);
}

const struct fuzz_target fuzz_journal = {.name = "journal", .one = journal_one};

/* ---- the manifest ---- */

static void manifest_one(const uint8_t *data, size_t n)
{
    static char identity[] = "version=1\njob=run\ninput_bytes=9\nlimit=0\nepoch=0\nmodel=fake\n";
    static char path[] = FUZZ_DIR "/OUT.job.json";
    static struct job job = {.identity = identity, .paths.manifest = path};
    struct manifest_end end;
    fuzz_file("OUT.job.json", data, n);
    const enum err e = manifest_read(&job, &end);
    CHECK(e == OK || e == ERR_JOB);
    if (e == OK)
        CHECK(end.found && end.prompt_cap >= -1);
}

const struct fuzz_target fuzz_manifest = {.name = "manifest", .one = manifest_one};
