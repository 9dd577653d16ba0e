/* tests/mover_test.c - offload/mover: the order of tickets, errors and checksums, under a back end
 * that lies (see ring_fault.c). Both back ends where the kernel has both. */
#include "offload/mover.h"

#include "tests/ring_util.h"

#define N_SEEDS    12
#define FILE_BYTES (24 * MOVER_PIECE + 4096)

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
    return ring_teardown(state);
}

/* File 0 is data.bin, read only; file 1 a scratch file of its own. */
static struct mover *mover_make(enum ring_kind kind, int depth, const char *fault, int *fd)
{
    char path[128];
    snprintf(path, sizeof path, "%s/scratch.bin", dir);
    *fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(*fd >= 0);
    assert_int_equal(ftruncate(*fd, FILE_BYTES), 0);
    struct mover_config config = {
        .kind = kind,
        .depth = depth,
        .fault = fault,
        .places = {{data_path, -1, FILE_BYTES, NULL}, {path, *fd, 0, NULL}},
        .n_places = 2,
        .base = scratch,
        .n_bytes = FILE_BYTES,
        .trace = &trace};
    struct mover *m = NULL;
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

static int kinds_first(void)
{
    return have_uring ? 0 : 1; // KINDS[0] is io_uring
}

/* ---- order ---- */

/* While a long read is on its way, what was submitted leaves by due, equal dues as they came. */
static int order_trial(struct mover *m, int seed)
{
    enum { N = 12 };
    struct segment gate_segment = {0, 16 * MOVER_PIECE, scratch};
    struct ticket gate = {.segments = &gate_segment, .n_segments = 1, .due = -1, .name = "gate"};
    static struct segment segments[N];
    static struct ticket t[N];
    mover_submit(m, &gate);
    for (int i = 0; i < N; i++) {
        int64_t at = 16 * MOVER_PIECE + i * 4096;
        segments[i] = (struct segment){at, 4096, scratch + at};
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
    assert_memory_equal(scratch, model, 16 * MOVER_PIECE + N * 4096);
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
    enum { BYTES = 3 * MOVER_PIECE, ROUNDS = 6 };
    for (int seed = 1; seed <= N_SEEDS; seed++) {
        char fault[96];
        int fd;
        snprintf(fault, sizeof fault,
                 "seed=%d,write.delay=1/3,write.reorder=1/4,short=1/5,again=1/9", seed);
        enum ring_kind kind = KINDS[have_uring ? seed & 1 : 1];
        struct mover *m = mover_make(kind, 8, fault, &fd);
        uint8_t *from = scratch, *to = scratch + BYTES;
        struct segment out = {4096, BYTES, from}, in = {4096, BYTES, to};
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
    struct segment s = {0, 8192, scratch};
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
        struct segment s[2] = {{0, 3 * MOVER_PIECE, scratch}, {0, 4096, scratch + 4 * MOVER_PIECE}};
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
        s[0] = (struct segment){FILE_BYTES - 4096, 8192, scratch}; // past the end
        mover_submit(m, &r);
        assert_int_equal(mover_wait(m, &r), ERR_CORRUPT);
        mover_end(m, fd);
    }
}

static void piece_crcs(uint32_t *crc, int64_t offset, int n)
{
    for (int i = 0; i < n; i++)
        crc[i] = crc32c(0, model + offset + (int64_t)i * MOVER_PIECE, MOVER_PIECE);
}

/* One wrong checksum in the list: the piece is read twice, then the ticket fails and says where. */
static void test_wrong_checksum(void **state)
{
    (void)state;
    for (int k = kinds_first(); k < 2; k++) {
        int fd;
        uint32_t crc[4];
        struct mover *m = mover_make(KINDS[k], 2, NULL, &fd);
        struct segment s = {MOVER_PIECE, 4 * MOVER_PIECE, scratch};
        struct ticket t = {.segments = &s,
                           .n_segments = 1,
                           .crc = crc,
                           .name = "weights",
                           .layer = 7,
                           .batch = -1};
        piece_crcs(crc, s.offset, 4);
        crc[2] ^= 1;
        mover_submit(m, &t);
        assert_int_equal(mover_wait(m, &t), ERR_CORRUPT);
        assert_non_null(strstr(err_text(), "layer 7"));
        mover_end(m, fd);
        m = mover_make(KINDS[k], 2, NULL, &fd);
        crc[2] ^= 1;
        mover_submit(m, &t);
        assert_int_equal(mover_wait(m, &t), OK);
        assert_memory_equal(scratch, model + s.offset, (size_t)s.n_bytes);
        mover_end(m, fd);
    }
}

/* Flipped bits: a ticket that says OK holds the right bytes; one flip is healed by reading again.
 */
static void test_flips_are_seen(void **state)
{
    (void)state;
    int n_ok = 0, n_corrupt = 0;
    for (int seed = 1; seed <= N_SEEDS; seed++) {
        char fault[64];
        int fd;
        snprintf(fault, sizeof fault, "seed=%d,read.flip=1/6", seed);
        struct mover *m = mover_make(KINDS[have_uring ? seed & 1 : 1], 4, fault, &fd);
        for (int i = 0; i < 12; i++) {
            uint32_t crc[2];
            struct segment s = {2 * i * (int64_t)MOVER_PIECE, 2 * MOVER_PIECE, scratch};
            struct ticket t = {.segments = &s, .n_segments = 1, .crc = crc, .name = "weights"};
            piece_crcs(crc, s.offset, 2);
            mover_submit(m, &t);
            enum err err = mover_wait(m, &t);
            assert_true(err == OK || err == ERR_CORRUPT);
            if (err == OK)
                assert_memory_equal(scratch, model + s.offset, (size_t)s.n_bytes);
            n_ok += err == OK;
            n_corrupt += err == ERR_CORRUPT;
        }
        mover_end(m, fd);
    }
    /* 288 pieces: about 48 are flipped once, 8 twice. */
    assert_in_range(n_corrupt, 1, 30);
    assert_true(n_ok > 100);
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
                s[i][j] = (struct segment){at, n, scratch + at};
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
            s[i] =
                (struct segment){i * (int64_t)MOVER_PIECE, MOVER_PIECE, scratch + i * MOVER_PIECE};
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
        cmocka_unit_test(test_earliest_due_first),
        cmocka_unit_test(test_after),
        cmocka_unit_test(test_after_is_over),
        cmocka_unit_test(test_errors_land_in_the_ticket),
        cmocka_unit_test(test_wrong_checksum),
        cmocka_unit_test(test_flips_are_seen),
        cmocka_unit_test(test_trouble_that_passes),
        cmocka_unit_test(test_close_under_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
