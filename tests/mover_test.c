/* tests/mover_test.c - offload/mover: the order of tickets, errors and checksums, under a back end
 * that lies (ring_fault.c). Both back ends where the kernel has both. */
#include "offload/mover.h"

#include "tests/ring_util.h"

#define N_SEEDS    12
#define FILE_BYTES (24 * PIECE_BYTES + 4096)

static struct trace trace;
static uint8_t *model, *scratch; // bytes of data.bin; memory for transfers
static char data_path[128];

static int setup(void **state)
{
    if (ring_setup(state) != 0)
        return -1;
    model = file_make("data.bin", data_path, FILE_BYTES);
    scratch = pages(FILE_BYTES);
    return trace_open(&trace, 0) == OK ? 0 : -1;
}

static int teardown(void **state)
{
    free(model);
    free(scratch);
    trace_close(&trace);
    return temp_dir_teardown(state);
}

/* File 0 is data.bin, read only; file 1 a scratch file of its own. */
static struct mover *mover_make(enum ring_kind kind, int depth, const char *fault, int *fd)
{
    static char path[128]; // the mover's until it is closed
    snprintf(path, sizeof path, "%s/scratch.bin", temp_dir);
    *fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(*fd >= 0);
    assert_int_equal(ftruncate(*fd, FILE_BYTES), 0);
    static int made; // movers check by themselves, or by one or two threads
    const struct scratch file = {.fds = {*fd}, .n = 1};
    struct mover_config config = {
        .kind = kind,
        .depth = depth,
        .n_checkers = made++ % 3,
        .places = {{.path = data_path, .hint = "make it again"}, {.path = path, .scratch = &file}},
        .n_places = 2,
        .base = scratch,
        .n_bytes = FILE_BYTES,
        .trace = &trace};
    struct mover *m = NULL;
    ring_faults = fault;
    enum err err = mover_open(&m, &config);
    if (err != OK)
        print_error("%s\n", err_text());
    assert_int_equal(err, OK);
    return m;
}

static void mover_end(struct mover *m, int fd)
{
    mover_close(m);
    close(fd);
}

/* A run of data.bin to read, with the checksums that its bytes have. The list lives until SUMS more
 * were taken. */
static struct segment of_data(int64_t offset, int64_t n_bytes, void *buf)
{
    enum { SUMS = 4096 };
    static uint32_t sums[SUMS];
    static int used;
    int n = (int)ceil_div(n_bytes, PIECE_BYTES);
    used = used + n > SUMS ? 0 : used;
    struct segment s = {.offset = offset, .n_bytes = n_bytes, .buf = buf, .crc = sums + used};
    used += n;
    for (int64_t at = 0; at < n_bytes && offset + n_bytes <= FILE_BYTES; at += PIECE_BYTES)
        s.crc[at / PIECE_BYTES] =
            crc32c(0, model + offset + at, min_i64(PIECE_BYTES, n_bytes - at));
    return s;
}

static int kinds_first(void)
{
    return have_uring ? 0 : 1; // KINDS[0] is io_uring
}

/* ---- order ---- */

/* While a long read is on its way, what was submitted leaves by due, equal dues as they came. */
static int order_trial(struct mover *m, int seed)
{
    enum { N = 12 };
    struct segment gate_segment = of_data(0, 16 * PIECE_BYTES, scratch);
    struct ticket gate = {.segments = &gate_segment, .n_segments = 1, .due = -1, .name = "gate"};
    static struct segment segments[N];
    static struct ticket t[N];
    mover_submit(m, &gate);
    for (int i = 0; i < N; i++) {
        int64_t at = 16 * PIECE_BYTES + i * 4096;
        segments[i] = of_data(at, 4096, scratch + at);
        t[i] = (struct ticket){.segments = &segments[i],
                               .n_segments = 1,
                               .due = (int64_t)(mix64((uint64_t)(seed * N + i)) % 6),
                               .name = "read"};
        mover_submit(m, &t[i]);
    }
    int in_time = !mover_done(m, &gate);
    assert_int_equal(mover_wait(m, &gate), OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(mover_wait(m, &t[i]), OK);
    for (int i = 0; i < N && in_time; i++)
        for (int k = 0; k < N; k++)
            if (t[i].due < t[k].due || (t[i].due == t[k].due && i < k))
                assert_true(t[i].start_ns <= t[k].start_ns);
    assert_memory_equal(scratch, model, 16 * PIECE_BYTES + N * 4096);
    return in_time;
}

static void test_earliest_due_first(void **state)
{
    (void)state;
    for (int k = kinds_first(); k < 2; k++) {
        int fd, in_time = 0;
        struct mover *m = mover_make(KINDS[k], 1, "delay=1/4", &fd);
        for (int seed = 0; seed < N_SEEDS; seed++)
            in_time += order_trial(m, seed);
        assert_true(in_time > 0); // else the gate was too short to prove anything
        mover_end(m, fd);
    }
}

/* A read after a write of the same extent brings the new bytes, though it is due first. */
static void test_after(void **state)
{
    (void)state;
    enum { BYTES = 3 * PIECE_BYTES, ROUNDS = 6 };
    for (int seed = 1; seed <= N_SEEDS; seed++) {
        char fault[96];
        int fd;
        snprintf(fault, sizeof fault,
                 "seed=%d,write.delay=1/3,write.reorder=1/4,short=1/5,again=1/9", seed);
        enum ring_kind kind = KINDS[have_uring ? seed & 1 : 1];
        struct mover *m = mover_make(kind, 8, fault, &fd);
        uint8_t *from = scratch, *to = scratch + BYTES;
        uint32_t crc[BYTES / PIECE_BYTES];
        struct segment out = {.offset = 4096, .n_bytes = BYTES, .buf = from, .crc = crc};
        struct segment in = {.offset = 4096, .n_bytes = BYTES, .buf = to, .crc = crc};
        struct ticket w = {.place = 1, .write = 1, .segments = &out, .n_segments = 1, .due = 50};
        struct ticket r = {.place = 1, .segments = &in, .n_segments = 1, .due = 1, .after = &w};
        for (int round = 0; round < ROUNDS; round++) {
            memset(from, seed * ROUNDS + round, BYTES);
            memset(to, 0xff, BYTES);
            mover_submit(m, &w);
            mover_submit(m, &r);
            assert_int_equal(mover_wait(m, &r), OK);
            assert_true(mover_done(m, &w)); // it was waited for
            assert_int_equal(mover_wait(m, &w), OK);
            assert_memory_equal(from, to, BYTES);
        }
        mover_end(m, fd);
    }
}

/* `after` means the ticket as it was: once it is idle, or serves another transfer, nothing waits.
 */
static void test_after_is_over(void **state)
{
    (void)state;
    int fd;
    struct mover *m = mover_make(KINDS[1], 4, NULL, &fd);
    struct segment s = of_data(0, 8192, scratch);
    struct ticket idle = {0}, first = {.segments = &s, .n_segments = 1, .after = &idle};
    mover_submit(m, &first);
    assert_int_equal(mover_wait(m, &first), OK);
    struct ticket empty = {.after = &first};
    mover_submit(m, &empty); // no segments: done at once
    assert_true(mover_done(m, &empty));
    assert_int_equal(mover_wait(m, &empty), OK);
    assert_int_equal(mover_wait(m, &idle), OK); // never submitted
    mover_end(m, fd);
}

/* ---- errors ---- */

static void test_errors_land_in_the_ticket(void **state)
{
    (void)state;
    for (int k = kinds_first(); k < 2; k++) {
        int fd;
        struct mover *m = mover_make(KINDS[k], 4, "read.eio=1/1", &fd);
        struct segment s[2] = {of_data(0, 3 * PIECE_BYTES, scratch),
                               {.n_bytes = 4096, .buf = scratch + 4 * PIECE_BYTES}};
        struct ticket r = {.segments = &s[0], .n_segments = 1, .name = "weights"};
        struct ticket w = {
            .place = 1, .write = 1, .segments = &s[1], .n_segments = 1, .name = "kv"};
        mover_submit(m, &r);
        mover_submit(m, &w);
        assert_int_equal(mover_wait(m, &w), OK); // writes are well
        assert_int_equal(mover_wait(m, &r), ERR_IO);
        assert_non_null(strstr(err_text(), "data.bin"));
        assert_int_equal(mover_wait(m, &r), OK); // idle again, and clean
        mover_submit(m, &r);
        assert_int_equal(mover_wait(m, &r), ERR_IO);
        mover_end(m, fd);
        m = mover_make(KINDS[k], 4, NULL, &fd);
        s[0] = of_data(FILE_BYTES - 4096, 8192, scratch); // past the end
        mover_submit(m, &r);
        assert_int_equal(mover_wait(m, &r), ERR_CORRUPT);
        mover_end(m, fd);
    }
}

/* One wrong checksum in the list: the piece is read twice, then the ticket fails and says where. */
static void test_wrong_checksum(void **state)
{
    (void)state;
    for (int k = kinds_first(); k < 2; k++) {
        int fd;
        struct mover *m = mover_make(KINDS[k], 2, NULL, &fd);
        struct segment s = of_data(PIECE_BYTES, 4 * PIECE_BYTES, scratch);
        struct ticket t = {
            .segments = &s, .n_segments = 1, .name = "weights", .layer = 7, .batch = -1};
        for (int round = 0; round < 20; round++) { // every read is checked, not the first alone
            mover_submit(m, &t);
            assert_int_equal(mover_wait(m, &t), OK);
            assert_memory_equal(scratch, model + s.offset, (size_t)s.n_bytes);
        }
        s.crc[2] ^= 1;
        mover_submit(m, &t);
        assert_int_equal(mover_wait(m, &t), ERR_CORRUPT);
        assert_non_null(strstr(err_text(), "layer 7"));
        assert_non_null(strstr(err_text(), "data.bin"));
        assert_non_null(strstr(err_text(), "make it again"));
        assert_int_equal(mover_failed(m), OK); // a bad read is its reader's affair
        struct mover_repairs repairs;
        mover_repairs(m, &repairs);
        assert_int_equal(repairs.repaired, 0);
        assert_int_equal(repairs.bad, 1);
        mover_end(m, fd);
    }
}

/* Every way of lying about bytes: a ticket that says OK holds the right ones; a lie that is told
 * once is healed by reading again. Long segments, neighbours that travel together, rows within
 * blocks. */
static void test_lies_are_seen(void **state)
{
    (void)state;
    static const char *const kinds[] = {"flip", "zero", "swap", "torn", "foreign"};
    enum { N = 12, PAGES = 64, PAGE = 8192 };
    struct mover_repairs sum = {0};
    for (int seed = 1; seed <= 4 * N_SEEDS; seed++) {
        char fault[64];
        int fd;
        snprintf(fault, sizeof fault, "seed=%d,read.%s=1/6", seed, kinds[seed % 5]);
        struct mover *m = mover_make(KINDS[have_uring ? seed & 1 : 1], 4, fault, &fd);
        static struct segment s[N + PAGES];
        for (int i = 0; i < N; i++)
            s[i] = of_data(2 * i * (int64_t)PIECE_BYTES, 2 * PIECE_BYTES, scratch);
        for (int i = N; i < N + PAGES; i++) {
            int64_t at = (5 * PIECE_BYTES) + (i - N) * PAGE;
            s[i] = of_data(at, PAGE, scratch + 2 * PIECE_BYTES + (i - N) * PAGE);
            if (seed % 3 == 0) { // checked in part
                s[i].crc_from = 100;
                s[i].crc_bytes = 700;
                *s[i].crc = crc32c(0, model + at + 100, 700);
            }
        }
        for (int i = 0; i <= N; i++) {
            int n = i < N ? 1 : PAGES;
            struct ticket t = {.segments = &s[i], .n_segments = n, .name = "weights"};
            memset(scratch, 0x77, 4 * PIECE_BYTES);
            mover_submit(m, &t);
            enum err err = mover_wait(m, &t);
            assert_true(err == OK || err == ERR_CORRUPT);
            for (int j = i; j < i + n; j++) {
                assert_true(s[j].err == OK || (s[j].err == ERR_CORRUPT && err == ERR_CORRUPT));
                if (s[j].err != OK)
                    continue;
                int64_t from = s[j].crc_from;
                int64_t bytes = s[j].crc_bytes ? s[j].crc_bytes : s[j].n_bytes;
                assert_memory_equal((uint8_t *)s[j].buf + from, model + s[j].offset + from,
                                    (size_t)bytes);
            }
        }
        struct mover_repairs repairs;
        mover_repairs(m, &repairs);
        sum.repaired += repairs.repaired;
        sum.bad += repairs.bad;
        mover_end(m, fd);
    }
    /* 48 x 25 pieces: about 200 lies, 33 of them twice. */
    assert_in_range(sum.repaired, 100, 400);
    assert_in_range(sum.bad, 5, 80);
}

/* One segment among neighbours cannot be read or is wrong: it alone fails. */
static void test_one_bad_segment(void **state)
{
    (void)state;
    enum { PAGES = 40, PAGE = 4096, BAD = 17 };
    for (int k = kinds_first(); k < 2; k++) {
        int fd;
        struct mover *m = mover_make(KINDS[k], 4, NULL, &fd);
        struct segment s[PAGES];
        for (int i = 0; i < PAGES; i++)
            s[i] = of_data(FILE_BYTES - (PAGES - i) * PAGE, PAGE, scratch + i * PAGE);
        struct ticket t = {.segments = s, .n_segments = PAGES};
        s[BAD].crc[0] ^= 0x80;
        mover_submit(m, &t);
        assert_int_equal(mover_wait(m, &t), ERR_CORRUPT);
        for (int i = 0; i < PAGES; i++)
            assert_int_equal(s[i].err, i == BAD ? ERR_CORRUPT : OK);
        s[BAD].crc[0] ^= 0x80;
        /* A run whose end lies behind the file's: the ring fails it whole, its segments in part. */
        for (int i = 0; i < PAGES; i++)
            s[i].offset += (PAGES - BAD) * PAGE;
        for (int i = 0; i < BAD; i++)
            s[i].crc[0] = crc32c(0, model + s[i].offset, PAGE);
        mover_submit(m, &t);
        assert_int_equal(mover_wait(m, &t), ERR_CORRUPT);
        for (int i = 0; i < PAGES; i++)
            assert_int_equal(s[i].err, i >= BAD ? ERR_CORRUPT : OK);
        mover_end(m, fd);
    }
}

/* Segments that lie side by side in memory or in the place alone do not travel together; those that
 * do come right at the first read. */
static void test_neighbours(void **state)
{
    (void)state;
    enum { PAGES = 48, PAGE = 4096 };
    for (int k = kinds_first(); k < 2; k++)
        for (int gap = 0; gap < 4; gap++) { // none, in the place, in memory, in both
            int fd;
            struct mover *m = mover_make(KINDS[k], 4, NULL, &fd);
            struct segment s[PAGES];
            for (int i = 0; i < PAGES; i++)
                s[i] = of_data((int64_t)i * PAGE * (gap & 1 ? 2 : 1), PAGE,
                               scratch + (int64_t)i * PAGE * (gap & 2 ? 3 : 1));
            struct ticket t = {.segments = s, .n_segments = PAGES};
            mover_submit(m, &t);
            assert_int_equal(mover_wait(m, &t), OK);
            for (int i = 0; i < PAGES; i++)
                assert_memory_equal(s[i].buf, model + s[i].offset, PAGE);
            struct mover_repairs repairs;
            mover_repairs(m, &repairs);
            assert_int_equal(repairs.repaired + repairs.bad, 0);
            mover_end(m, fd);
        }
}

/* What a write did to the file is seen by the read of it, for every kind; one that failed is told
 * by mover_failed() even if nobody waits for it. */
static void test_bad_writes(void **state)
{
    (void)state;
    static const char *const kinds[] = {"zero", "swap", "torn", "foreign", "lost", "stale"};
    enum { PAGES = 32, PAGE = 16384 };
    int n_bad[6] = {0}, n_repaired[6] = {0};
    for (int seed = 0; seed < 36; seed++) {
        char fault[64];
        int fd;
        snprintf(fault, sizeof fault, "seed=%d,write.%s=1/4", seed, kinds[seed % 6]);
        struct mover *m = mover_make(KINDS[have_uring ? seed & 1 : 1], 4, fault, &fd);
        uint32_t crc[PAGES];
        struct segment out[PAGES], in[PAGES];
        struct ticket w[PAGES], r = {.place = 1, .segments = in, .n_segments = PAGES};
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < PAGES; i++) {
                memset(scratch + i * PAGE, seed + i + 100 * round, PAGE);
                for (int k = 0; k < PAGE; k += 512)
                    scratch[i * PAGE + k] = (uint8_t)(k / 512);
                out[i] = (struct segment){.offset = (i + 1) * PAGE,
                                          .n_bytes = PAGE,
                                          .buf = scratch + i * PAGE,
                                          .crc = crc + i,
                                          .seed = (uint32_t)(i + 7 * round)};
                in[i] = out[i];
                in[i].buf = scratch + (PAGES + i) * PAGE;
                w[i] =
                    (struct ticket){.place = 1, .write = 1, .segments = &out[i], .n_segments = 1};
                mover_submit(m, &w[i]);
            }
            for (int i = 0; i < PAGES; i++)
                assert_int_equal(mover_wait(m, &w[i]), OK);
            mover_submit(m, &r);
            enum err err = mover_wait(m, &r);
            for (int i = 0; i < PAGES; i++) {
                assert_true(in[i].err == OK || err == ERR_CORRUPT);
                if (in[i].err == OK)
                    assert_memory_equal(in[i].buf, out[i].buf, PAGE);
            }
        }
        struct mover_repairs repairs;
        mover_repairs(m, &repairs);
        n_bad[seed % 6] += (int)repairs.bad;
        n_repaired[seed % 6] += (int)repairs.repaired;
        assert_int_equal(mover_failed(m), OK);
        mover_end(m, fd);
    }
    for (int kind = 0; kind < 5; kind++)
        assert_true(n_bad[kind] > 10);
    assert_true(n_bad[5] == 0 && n_repaired[5] > 10); // what is stale comes right
}

static void test_failed_write(void **state)
{
    (void)state;
    for (int k = kinds_first(); k < 2; k++) {
        int fd;
        struct mover *m = mover_make(KINDS[k], 4, "write.enospc=1/1", &fd);
        struct segment s = {.n_bytes = 4096, .buf = scratch};
        struct ticket w = {.place = 1, .write = 1, .segments = &s, .n_segments = 1};
        assert_int_equal(mover_failed(m), OK);
        mover_submit(m, &w);
        while (!mover_done(m, &w))
            ;
        assert_int_equal(mover_failed(m), ERR_IO);
        assert_non_null(strstr(err_text(), "No space left"));
        mover_end(m, fd);
    }
}

/* Many tickets of many segments under every kind of trouble that may pass: all bytes, and the lanes
 * count them. */
static void test_trouble_that_passes(void **state)
{
    (void)state;
    enum { N = 16, PER = 5, BYTES = 200 * 1024 };
    for (int seed = 1; seed <= N_SEEDS; seed++) {
        char fault[128];
        int fd;
        snprintf(fault, sizeof fault,
                 "seed=%d,short=1/6,again=1/8,busy=1/9,intr=1/9,delay=1/5,reorder=1/6", seed);
        struct mover *m = mover_make(KINDS[have_uring ? seed & 1 : 1], 1 + seed % 7, fault, &fd);
        static struct segment s[N][PER];
        static struct ticket t[N];
        int64_t read_before = trace.totals[LANE_NVME_READ].bytes, n_bytes = 0;
        memset(scratch, 0, FILE_BYTES);
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < PER; j++) {
                int64_t at = (int64_t)(i * PER + j) * BYTES;
                int64_t n =
                    512 * (1 + (int64_t)(mix64((uint64_t)(seed * 1000 + i * PER + j)) % 390));
                s[i][j] = of_data(at, n, scratch + at);
                n_bytes += n;
            }
            t[i] = (struct ticket){.segments = s[i],
                                   .n_segments = PER,
                                   .due = N - i,
                                   .after = i > 2 ? &t[i - 3] : NULL};
            mover_submit(m, &t[i]);
        }
        for (int i = 0; i < N; i++)
            assert_int_equal(mover_wait(m, &t[i]), OK);
        for (int i = 0; i < N * PER; i++) {
            const struct segment *at = &s[i / PER][i % PER];
            assert_memory_equal(at->buf, model + at->offset, (size_t)at->n_bytes);
        }
        mover_end(m, fd);
        assert_int_equal(trace.totals[LANE_NVME_READ].bytes - read_before, n_bytes);
    }
}

/* Closing drops what is queued and waits for what is under way. */
static void test_close_under_load(void **state)
{
    (void)state;
    static struct segment s[24];
    static struct ticket t[24];
    for (int k = kinds_first(); k < 2; k++) {
        int fd;
        struct mover *m = mover_make(KINDS[k], 2, "delay=1/2", &fd);
        for (int i = 0; i < 24; i++) {
            s[i] = of_data(i * (int64_t)PIECE_BYTES, PIECE_BYTES, scratch + i * PIECE_BYTES);
            t[i] = (struct ticket){.segments = &s[i], .n_segments = 1, .due = i};
            mover_submit(m, &t[i]);
        }
        mover_end(m, fd);
    }
    mover_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_back_ends_are_there),
        cmocka_unit_test(test_earliest_due_first),
        cmocka_unit_test(test_after),
        cmocka_unit_test(test_after_is_over),
        cmocka_unit_test(test_errors_land_in_the_ticket),
        cmocka_unit_test(test_wrong_checksum),
        cmocka_unit_test(test_lies_are_seen),
        cmocka_unit_test(test_one_bad_segment),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_bad_writes),
        cmocka_unit_test(test_failed_write),
        cmocka_unit_test(test_trouble_that_passes),
        cmocka_unit_test(test_close_under_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
