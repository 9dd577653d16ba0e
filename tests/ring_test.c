/* tests/ring_test.c - offload/ring: both back ends, real files, injected faults. What needs a hang
 * or a process of its own is in ring_limits_test.c. */
#include "tests/ring_util.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* ---- bytes ---- */

#define FILE_BYTES (3 * 1024 * 1024 + 777)
#define N_IOS      1500

/* The whole file in pieces of all sizes, half of them aligned, in random order. */
static void pieces_write(struct ring *r, int file, uint8_t *buf)
{
    struct ring_io *ios = calloc(N_IOS, sizeof *ios);
    int n = 0;
    for (int64_t at = 0; at < FILE_BYTES; n++) {
        assert_true(n < N_IOS);
        int64_t bytes = n % 2 ? 4096 * (1 + random_below(16)) - at % 4096 : 1 + random_below(9000);
        bytes = min_i64(bytes, FILE_BYTES - at);
        ios[n] = (struct ring_io){
            .file = file, .write = 1, .offset = at, .n_bytes = bytes, .buf = buf + at};
        at += bytes;
    }
    for (int i = n - 1; i > 0; i--) {
        int64_t k = random_below(i + 1);
        struct ring_io swap = ios[i];
        ios[i] = ios[k];
        ios[k] = swap;
    }
    assert_int_equal(ios_run(r, ios, n), 0);
    free(ios);
}

/* Random ranges, many of them up to the last byte, into aligned and unaligned places. */
static void ranges_read(struct ring *r, int file, uint8_t *buf, const uint8_t *model)
{
    enum { N_RANGES = 300 };
    struct ring_io *ios = calloc(N_RANGES, sizeof *ios);
    int64_t used = 0;
    int n;
    memset(buf, 0, FILE_BYTES);
    for (n = 0; n < N_RANGES; n++) {
        int64_t offset = random_below(FILE_BYTES), bytes = random_below(20000);
        if (n % 2)
            offset -= offset % 4096, bytes -= bytes % 4096;
        bytes = min_i64(bytes, FILE_BYTES - offset);
        if (n % 7 == 0)
            offset = FILE_BYTES - bytes;
        used = n % 4 < 2 ? round_up(used, 4096) : used;
        if (used + bytes > FILE_BYTES)
            break;
        ios[n] =
            (struct ring_io){.file = file, .offset = offset, .n_bytes = bytes, .buf = buf + used};
        used += bytes;
    }
    assert_true(n > 100);
    assert_int_equal(ios_run(r, ios, n), 0);
    for (int i = 0; i < n; i++)
        assert_memory_equal(ios[i].buf, model + ios[i].offset, (size_t)ios[i].n_bytes);
    free(ios);
}

/* registered: into how many buffers the memory is cut that the back end may register; 0: none. */
static void bytes_check(enum ring_kind kind, int depth, const char *faults, int registered)
{
    char path[128];
    random_state = 42;
    uint8_t *model = file_make("bytes", path, FILE_BYTES);
    uint8_t *buf = pages(FILE_BYTES + 4096);
    int64_t n_buf = round_up(FILE_BYTES + 4096, 4096), first = registered > 1 ? 8 * 4096 : n_buf;
    struct ring_buffer ranges[] = {{buf, first}, {buf + first, n_buf - first}};
    struct ring_config config = {
        .kind = kind, .depth = depth, .n_threads = 3, .buffers = ranges, .n_buffers = registered};
    struct ring *r;
    ring_faults = faults;
    assert_int_equal(ring_open(&r, &config), OK);
    int file = file_add(r, path, O_RDWR);
    for (int64_t i = 0; i < FILE_BYTES; i++)
        model[i] = (uint8_t)random_next();
    memcpy(buf, model, FILE_BYTES);
    pieces_write(r, file, buf);
    file_check(path, model, FILE_BYTES);
    ranges_read(r, file, buf, model);
    ring_close(r);
    free(buf);
    free(model);
    unlink(path);
}

static void test_bytes(void **state)
{
    (void)state;
    for (int k = !have_uring; k < 2; k++) {
        bytes_check(KINDS[k], 1, NULL, 0);
        bytes_check(KINDS[k], 7, NULL, 1);
        bytes_check(KINDS[k], 200, NULL, 1);
        bytes_check(KINDS[k], 200, NULL, 2);
    }
}

/* Stripe i of the file is stripe i / n of file i % n, and a read behind the end fails. */
static void striped_check(enum ring_kind kind, int n, const char *faults)
{
    char path[RING_STRIPES_MAX][128];
    int files[RING_STRIPES_MAX], file;
    random_state = 7;
    uint8_t *model = pages(FILE_BYTES), *buf = pages(FILE_BYTES + 4096);
    for (int64_t i = 0; i < FILE_BYTES; i++)
        buf[i] = model[i] = (uint8_t)random_next();
    struct ring *r = ring_make(kind, 60, faults);
    for (int i = 0; i < n; i++) {
        snprintf(path[i], sizeof path[i], "%s/stripes-%d", temp_dir, i);
        files[i] = file_add(r, path[i], O_RDWR | O_CREAT);
    }
    assert_int_equal(ring_stripe_add(r, "striped", files, n, &file), OK);
    assert_true(n > 1 ? file > files[n - 1] : file == files[0]);
    pieces_write(r, file, buf);
    for (int64_t i = 0, at = 0; at < FILE_BYTES; i++, at += RING_STRIPE_BYTES) {
        const int64_t bytes = min_i64(RING_STRIPE_BYTES, FILE_BYTES - at);
        assert_int_equal(
            pread(ring_file_fd(r, files[i % n]), buf, (size_t)bytes, i / n * RING_STRIPE_BYTES),
            bytes);
        assert_memory_equal(buf, model + at, (size_t)bytes);
    }
    ranges_read(r, file, buf, model);
    struct ring_io io = {.file = file, .offset = FILE_BYTES - 100, .n_bytes = 200, .buf = buf};
    assert_int_equal(io_run(r, &io), ERR_CORRUPT);
    assert_non_null(strstr(io.err_text, "stripes-"));
    ring_close(r);
    for (int i = 0; i < n; i++)
        unlink(path[i]);
    free(buf);
    free(model);
}

static void test_striped(void **state)
{
    (void)state;
    for (int k = !have_uring; k < 2; k++) {
        striped_check(KINDS[k], 1, NULL);
        striped_check(KINDS[k], 2, NULL);
        striped_check(KINDS[k], 3, "short=1/3");
        striped_check(KINDS[k], RING_STRIPES_MAX, NULL);
    }
}

static void test_bytes_under_faults(void **state)
{
    (void)state;
    static const char *const SPECS[] = {
        "seed=1,short=1/2",
        "seed=2,again=1/4,intr=1/10,busy=1/10,canceled=1/10,nomem=1/20",
        "seed=3,delay=1/3,reorder=1/3",
        "seed=4,einval=1/50,short=1/5,delay=1/9",
        "seed=5,short=1/3,again=1/5,delay=1/4,reorder=1/4,busy=1/9",
    };
    enum log_level before = log_level_max;
    log_level_max = LOG_ERROR;
    for (int k = !have_uring; k < 2; k++)
        for (size_t s = 0; s < sizeof SPECS / sizeof *SPECS; s++)
            bytes_check(KINDS[k], 16, SPECS[s], s % 2);
    log_level_max = before;
}

/* 10,000 reads of 512 bytes under several seeds: all come back once, with their own bytes, and not
 * in the order they went. */
static void test_reorder(void **state)
{
    (void)state;
    enum { N = 10000, PIECE = 512, N_PIECES = 256 };
    char path[128], spec[64];
    uint8_t *model = file_make("reorder", path, N_PIECES * PIECE);
    uint8_t *buf = pages((int64_t)64 * PIECE);
    struct ring_io ios[64], *done[16];
    enum log_level before = log_level_max;
    log_level_max = LOG_ERROR;
    for (int seed = 1; seed <= 6; seed++) {
        if (seed % 2 && !have_uring)
            continue;
        snprintf(spec, sizeof spec, "seed=%d,reorder=1/5,delay=1/7,again=1/10", seed);
        struct ring *r = ring_make(seed % 2 ? RING_URING : RING_THREADS, 64, spec);
        int file = file_add(r, path, O_RDONLY);
        int n_sent = 0, n_back = 0, n_overtaken = 0;
        uint64_t last = 0;
        int free_slots[64], n_free = 64;
        for (int i = 0; i < 64; i++)
            free_slots[i] = i;
        while (n_back < N) {
            while (n_sent < N && n_free > 0) {
                int slot = free_slots[--n_free];
                ios[slot] = (struct ring_io){.file = file,
                                             .offset = (n_sent * 7 % N_PIECES) * PIECE,
                                             .n_bytes = PIECE,
                                             .buf = buf + slot * PIECE};
                assert_int_equal(ring_submit(r, &ios[slot]), OK);
                n_sent++;
            }
            int n = ring_reap(r, done, 16, RING_WAIT);
            assert_true(n > 0);
            for (int i = 0; i < n; i++) {
                assert_int_equal(done[i]->err, OK);
                assert_memory_equal(done[i]->buf, model + done[i]->offset, PIECE);
                n_overtaken += done[i]->seq < last;
                last = done[i]->seq;
                free_slots[n_free++] = (int)(done[i] - ios);
            }
            n_back += n;
        }
        assert_true(n_overtaken > 500);
        ring_close(r);
    }
    log_level_max = before;
    free(buf);
    free(model);
}

/* One thread keeps the order; only the fault back end breaks it. */
static void test_reorder_alone(void **state)
{
    (void)state;
    enum { N = 64 };
    char path[128];
    free(file_make("alone", path, N * 64));
    static uint8_t buf[N][64];
    for (int turn = 0; turn < 2; turn++) {
        struct ring *r;
        struct ring_config config = {.kind = RING_THREADS, .depth = N, .n_threads = 1};
        ring_faults = turn ? "seed=2,reorder=1/5" : NULL;
        assert_int_equal(ring_open(&r, &config), OK);
        int file = file_add(r, path, O_RDONLY), n_back = 0, n_overtaken = 0;
        struct ring_io ios[N], *done[N];
        for (int i = 0; i < N; i++) {
            ios[i] = (struct ring_io){.file = file, .offset = 64 * i, .n_bytes = 64, .buf = buf[i]};
            assert_int_equal(ring_submit(r, &ios[i]), OK);
        }
        uint64_t last = 0;
        while (n_back < N) {
            int n = ring_reap(r, done, N, RING_WAIT);
            for (int i = 0; i < n; i++) {
                n_overtaken += done[i]->seq < last;
                last = done[i]->seq;
            }
            n_back += n;
        }
        assert_true(turn ? n_overtaken > 0 : n_overtaken == 0);
        ring_close(r);
    }
}

/* ---- errors ---- */

static void test_end_of_file(void **state)
{
    (void)state;
    char path[128];
    uint8_t *model = file_make("eof", path, 10000);
    uint8_t *buf = pages(16384);
    for (int k = !have_uring; k < 2; k++) {
        struct ring *r = ring_make(KINDS[k], 4, NULL);
        int file = file_add(r, path, O_RDONLY);
        int64_t align_bytes = ring_file_align_bytes(r, file);
        struct ring_io io = {.file = file, .offset = 8192, .n_bytes = 4096, .buf = buf};
        assert_int_equal(io_run(r, &io), ERR_CORRUPT);
        assert_non_null(strstr(io.err_text, "file ends at 10000"));
        assert_non_null(strstr(io.err_text, "needs 4096 bytes"));
        assert_memory_equal(buf, model + 8192, 10000 - 8192);
        io = (struct ring_io){.file = file, .offset = 1 << 20, .n_bytes = 1, .buf = buf};
        assert_int_equal(io_run(r, &io), ERR_CORRUPT);
        io = (struct ring_io){.file = file, .offset = 9999, .n_bytes = 1, .buf = buf};
        assert_int_equal(io_run(r, &io), OK);
        assert_int_equal(buf[0], model[9999]);
        io = (struct ring_io){.file = file, .offset = 100, .n_bytes = 4096, .buf = buf};
        assert_int_equal(io_run(r, &io), OK);
        assert_memory_equal(buf, model + 100, 4096);
        /* None of these cost the file its direct I/O. */
        assert_int_equal(ring_file_align_bytes(r, file), align_bytes);
        io = (struct ring_io){.file = file, .offset = 99999, .n_bytes = 0, .buf = NULL};
        assert_int_equal(io_run(r, &io), OK);
        io = (struct ring_io){
            .file = file, .write = 1, .n_bytes = 5, .buf = buf}; // opened read-only
        assert_int_equal(io_run(r, &io), ERR_INTERNAL);
        ring_close(r);
    }
    free(model);
    free(buf);
}

static void test_busy(void **state)
{
    (void)state;
    char path[128];
    uint8_t *model = file_make("busy", path, 8192), buf[3][100];
    for (int k = !have_uring; k < 2; k++) {
        struct ring *r = ring_make(KINDS[k], 2, NULL);
        assert_int_equal(ring_depth(r), 2);
        int file = file_add(r, path, O_RDONLY);
        struct ring_io ios[3], *done[4];
        for (int i = 0; i < 3; i++) {
            ios[i] = (struct ring_io){.file = file, .offset = i, .n_bytes = 100, .buf = buf[i]};
            assert_int_equal(ring_submit(r, &ios[i]), i < 2 ? OK : ERR_BUSY);
        }
        int n = ring_reap(r, done, 1, RING_WAIT);
        assert_int_equal(n, 1);
        assert_int_equal(ring_in_flight(r), 1);
        assert_int_equal(ring_submit(r, &ios[2]), OK);
        while (ring_in_flight(r) > 0)
            ring_reap(r, done, 4, RING_WAIT);
        for (int i = 0; i < 3; i++)
            assert_memory_equal(buf[i], model + i, 100);
        assert_int_equal(ring_reap(r, done, 4, RING_WAIT), 0); // nothing in flight: at once
        assert_int_equal(ring_submit(r, &ios[0]), OK);
        ring_close(r); // waits for it
    }
    free(model);
}

static void test_fault_errors(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *text;
        int write;
    } CASES[] = {
        {"write.enospc=1/1", "the disk is full", 1},
        {"write.edquot=1/1", "quota", 1},
        {"write.eio=1/1", "Input/output error", 1},
        {"write.erofs=1/1", "read-only", 1},
        {"write.efbig=1/1", "ulimit -f", 1},
        {"read.eio=1/1", "read of 4096 bytes at 4096: Input/output error", 0},
        {"read.estale=1/1", "tale", 0},
        {"again=1/1", "65 times", 0},
    };
    char path[128];
    uint8_t *model = file_make("errors", path, 16384), *buf = pages(4096);
    enum log_level before = log_level_max;
    log_level_max = LOG_ERROR;
    for (int k = !have_uring; k < 2; k++) {
        for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
            struct ring *r = ring_make(KINDS[k], 4, CASES[c].spec);
            struct ring_io io = {.file = file_add(r, path, O_RDWR),
                                 .write = CASES[c].write,
                                 .offset = 4096,
                                 .n_bytes = 4096,
                                 .buf = buf};
            memset(buf, 0, 4096);
            assert_int_equal(io_run(r, &io), ERR_IO);
            assert_non_null(strstr(io.err_text, CASES[c].text));
            assert_non_null(strstr(io.err_text, "errors: "));
            assert_int_equal(io.n_attempts, strcmp(CASES[c].spec, "read.eio=1/1") == 0 ? 2
                                            : CASES[c].spec[0] == 'a'                  ? 65
                                                                                       : 1);
            ring_close(r);
        }
    }
    log_level_max = before;
    file_check(path, model, 16384); // no failed write wrote
    free(buf);
    free(model);
}

/* The same ios meet the same faults: on both back ends, and twice on one. */
static void test_fault_seed(void **state)
{
    (void)state;
    enum { N = 400 };
    char path[128];
    uint8_t *model = file_make("seed", path, 65536), *buf = pages(65536);
    enum err first[N];
    int n_attempts[N], n_failed = 0;
    enum log_level before = log_level_max;
    log_level_max = LOG_ERROR;
    struct ring_io *ios = calloc(N, sizeof *ios);
    for (int turn = 0; turn < 4; turn++) {
        struct ring *r = ring_make(turn % 2 && have_uring ? RING_URING : RING_THREADS, 8,
                                   turn == 3 ? "seed=8,read.eio=1/3"
                                             : "seed=7,read.eio=1/3,again=1/3,delay=1/5");
        int file = file_add(r, path, O_RDONLY), n_differ = 0;
        for (int i = 0; i < N; i++)
            ios[i] =
                (struct ring_io){.file = file, .offset = i, .n_bytes = 100, .buf = buf + 128 * i};
        int n = ios_run(r, ios, N);
        for (int i = 0; i < N; i++) {
            if (turn == 0)
                first[i] = ios[i].err, n_attempts[i] = ios[i].n_attempts;
            n_differ += first[i] != ios[i].err || n_attempts[i] != ios[i].n_attempts;
        }
        if (turn == 0)
            n_failed = n;
        if (turn < 3)
            assert_int_equal(n_differ, 0);
        else
            assert_true(n_differ > 20); // another seed: others
        ring_close(r);
    }
    assert_in_range(n_failed, N / 30, N / 3); // about one in nine
    log_level_max = before;
    free(ios);
    free(buf);
    free(model);
}

static void test_flip(void **state)
{
    (void)state;
    enum { N = 128 };
    char path[128];
    uint8_t *model = file_make("flip", path, 4096 * N), *buf = pages(4096 * N);
    struct ring_io ios[N];
    for (int k = !have_uring; k < 2; k++) {
        struct ring *r = ring_make(KINDS[k], 32, "seed=3,flip=1/4");
        int file = file_add(r, path, O_RDONLY), n_flipped = 0;
        for (int i = 0; i < N; i++)
            ios[i] = (struct ring_io){
                .file = file, .offset = 4096 * i, .n_bytes = 4096, .buf = buf + 4096 * i};
        assert_int_equal(ios_run(r, ios, N), 0);
        for (int64_t i = 0; i < N; i++) {
            int n_bits = 0;
            for (int64_t j = 4096 * i; j < 4096 * (i + 1); j++)
                n_bits += __builtin_popcount(buf[j] ^ model[j]);
            assert_in_range(n_bits, 0, 1);
            uint32_t want = crc32c(0, model + 4096 * i, 4096);
            assert_int_equal(crc32c(0, buf + 4096 * i, 4096) != want, n_bits);
            n_flipped += n_bits;
        }
        assert_in_range(n_flipped, N / 8, N / 2);
        ring_close(r);
    }
    free(buf);
    free(model);
}

static void test_direct_refused(void **state)
{
    (void)state;
    char path[128];
    uint8_t *model = file_make("direct", path, 65536), *buf = pages(65536);
    enum log_level before = log_level_max;
    log_level_max = LOG_ERROR;
    for (int k = !have_uring; k < 2; k++) {
        struct ring *r = ring_make(KINDS[k], 8, "einval=1/1");
        int file = file_add(r, path, O_RDONLY);
        int was_direct = ring_file_align_bytes(r, file) > 1;
        struct ring_io ios[8];
        for (int i = 0; i < 8; i++)
            ios[i] = (struct ring_io){
                .file = file, .offset = 8192 * i, .n_bytes = 8192, .buf = buf + 8192 * i};
        assert_int_equal(ios_run(r, ios, 8), 0);
        assert_memory_equal(buf, model, 65536);
        assert_int_equal(ring_file_align_bytes(r, file), 1);
        for (int i = 0; was_direct && i < 8; i++)
            assert_int_equal(ios[i].n_attempts, 2);
        ring_close(r);
    }
    log_level_max = before;
    free(buf);
    free(model);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct ring *r;
    struct ring_config config = {.kind = RING_THREADS, .depth = 0};
    assert_int_equal(ring_open(&r, &config), ERR_USAGE);
    config.depth = RING_DEPTH_MAX + 1;
    assert_int_equal(ring_open(&r, &config), ERR_USAGE);
    r = ring_make(RING_AUTO, 4, NULL);
    char path[128];
    int file;
    snprintf(path, sizeof path, "%s/none", temp_dir);
    assert_int_equal(ring_file_add(r, path, -1, O_RDONLY, &file), ERR_INPUT);
    assert_int_equal(ring_file_add(r, temp_dir, -1, O_RDONLY, &file), ERR_INPUT);
    assert_non_null(strstr(err_text(), "not a regular file"));
    snprintf(path, sizeof path, "%s/fifo", temp_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ring_file_add(r, path, -1, O_RDONLY, &file), ERR_INPUT); // and does not hang
    assert_int_equal(ring_file_add(r, "/dev/zero", -1, O_RDONLY, &file), ERR_INPUT);
    snprintf(path, sizeof path, "%s/none/none", temp_dir);
    assert_int_equal(ring_file_add(r, path, -1, O_RDWR | O_CREAT, &file), ERR_IO);
    ring_close(r);
    ring_close(NULL);
}

/* A descriptor of an unlinked file: the usual spill file. Its owner may close it. */
static void test_unlinked_file(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/spill", temp_dir);
    for (int k = !have_uring; k < 2; k++) {
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), file;
        assert_true(fd >= 0);
        unlink(path);
        struct ring *r = ring_make(KINDS[k], 4, NULL);
        assert_int_equal(ring_file_add(r, path, fd, O_RDWR, &file), OK);
        close(fd);
        uint8_t *buf = pages(8192);
        memset(buf, 'x', 8192);
        struct ring_io io = {.file = file, .write = 1, .offset = 4096, .n_bytes = 8192, .buf = buf};
        assert_int_equal(io_run(r, &io), OK);
        memset(buf, 0, 8192);
        io = (struct ring_io){.file = file, .offset = 4096, .n_bytes = 8192, .buf = buf};
        assert_int_equal(io_run(r, &io), OK);
        assert_int_equal(buf[0], 'x');
        assert_int_equal(buf[8191], 'x');
        struct stat st;
        assert_int_equal(fstat(ring_file_fd(r, file), &st), 0);
        assert_int_equal(st.st_size, 12288);
        ring_close(r);
        free(buf);
    }
}

/* ---- threads ---- */

struct owner {
    struct ring *ring;
    uint8_t *buf;
    int n_returned;
    int64_t slept_ns, spun_ns; // of the two sleeps together; CPU time of the thread meanwhile
    enum err err;
};

static int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Opened by another thread, with a file; owned by this one. Reads once, then sleeps until woken,
 * twice. */
static void *owner_main(void *arg)
{
    struct owner *o = arg;
    struct ring_io *done[4];
    struct ring_io io = {.file = 0, .offset = 4096, .n_bytes = 4096, .buf = o->buf};
    o->err = ring_submit(o->ring, &io);
    while (o->err == OK && ring_reap(o->ring, done, 4, RING_WAIT) == 0)
        ;
    if (o->err == OK)
        o->err = io.err;
    int64_t start = clock_ns(), cpu_start = thread_cpu_ns();
    o->n_returned = ring_reap(o->ring, done, 4, RING_IDLE);
    o->n_returned += ring_reap(o->ring, done, 4, RING_IDLE);
    o->slept_ns = clock_ns() - start;
    o->spun_ns = thread_cpu_ns() - cpu_start;
    ring_close(o->ring);
    return NULL;
}

static void test_wake(void **state)
{
    (void)state;
    char path[128];
    uint8_t *model = file_make("wake", path, 8192);
    for (int turn = 0; turn < 4; turn++) {
        if (turn % 2 && !have_uring)
            continue;
        struct owner o = {.buf = pages(4096), .n_returned = -1};
        /* Without a watchdog_ms the ring looks around every 7.5 s only: a lost wake shows. */
        struct ring_config config = {
            .kind = KINDS[1 - turn % 2], .depth = 4, .watchdog_ms = turn < 2 ? 400 : 0};
        ring_faults = turn < 2 ? "seed=1,delay=1/1" : NULL;
        assert_int_equal(ring_open(&o.ring, &config), OK);
        assert_int_equal(file_add(o.ring, path, O_RDONLY), 0);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, owner_main, &o), 0);
        usleep(300000);
        ring_wake(o.ring);
        usleep(300000);
        ring_wake(o.ring);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(o.err, OK);
        assert_int_equal(o.n_returned, 0);
        assert_true(o.slept_ns > 300000000 && o.slept_ns < 4000000000);
        assert_true(o.spun_ns < 100000000);
        assert_memory_equal(o.buf, model + 4096, 4096);
        free(o.buf);
    }
    /* A wake before the sleep is not lost. */
    for (int k = !have_uring; k < 2; k++) {
        struct ring *r = ring_make(KINDS[k], 4, NULL);
        struct ring_io *done[1];
        for (int i = 0; i < 3; i++) {
            ring_wake(r);
            assert_int_equal(ring_reap(r, done, 1, RING_IDLE), 0);
        }
        ring_close(r);
    }
    free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_back_ends_are_there),
        cmocka_unit_test(test_striped),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bytes_under_faults),
        cmocka_unit_test(test_reorder),
        cmocka_unit_test(test_reorder_alone),
        cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_fault_errors),
        cmocka_unit_test(test_fault_seed),
        cmocka_unit_test(test_flip),
        cmocka_unit_test(test_direct_refused),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_unlinked_file),
        cmocka_unit_test(test_wake),
    };
    return cmocka_run_group_tests(tests, ring_setup, temp_dir_teardown);
}
