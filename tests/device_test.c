/* tests/device_test.c - kernels/device and offload/tier on the CPU and on the simulated
 * accelerator, or a real one (SLUICE_TEST_DEVICE); the mover's copies to and from device memory,
 * chained with reads and writes. */
#include "kernels/dtype.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/device_help.h"
#include "tests/rig.h"

#define N_SEEDS    (real_device() ? 1 : 8)
#define PIECES     6
#define BLOCK      (PIECE_BYTES + 4096) // a transfer of two pieces
#define FILE_BYTES (PIECES * BLOCK)

static int setup(void **state)
{
    return ring_setup(state) == 0 && trace_open(&trace, 0) == OK ? 0 : -1;
}

static int teardown(void **state)
{
    trace_close(&trace);
    return temp_dir_teardown(state);
}

/* What a child process dies of when it reads p; 0: it lives. */
static int death_by_reading(const volatile uint8_t *p)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(*p == 255 ? 2 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_memory_is_out_of_reach(void **state)
{
    (void)state;
    needs_simulator();
    struct device *d = sim_device_open(1, 0);
    struct tier_config config = {.device = d, .dir = temp_dir, .node = -1, .n_bytes = 5000};
    struct tier tiers[N_TIERS];
    for (int kind = 0; kind < N_TIERS; kind++)
        assert_int_equal(tier_open(&tiers[kind], (enum tier_kind)kind, &config), OK);
    assert_int_equal(tiers[TIER_DEVICE].n_bytes, 8192);
    assert_int_not_equal(death_by_reading(tiers[TIER_DEVICE].base), 0);
    assert_int_equal(death_by_reading(tiers[TIER_RAM].base), 0);
    assert_null(tiers[TIER_NVME].base);
    assert_int_equal(lseek(tiers[TIER_NVME].scratch.fds[0], 0, SEEK_END), 8192);
    for (int kind = 0; kind < N_TIERS; kind++) {
        tier_close(&tiers[kind]);
        tier_close(&tiers[kind]); // closed: nothing happens
    }
    sim_device_close(d);
}

static void test_tier_errors(void **state)
{
    (void)state;
    struct tier t;
    struct tier_config config = {.device = device_cpu(), .dir = "/no/such/dir", .node = -1};
    assert_int_equal(tier_open(&t, TIER_NVME, &config), OK); // nothing asked, nothing opened
    config.n_bytes = 4096;
    assert_int_equal(tier_open(&t, TIER_NVME, &config), ERR_IO);
    assert_non_null(strstr(err_text(), "--offload-dir"));
    tier_close(&t);
    config.n_bytes = INT64_MAX / 2 / 4096 * 4096;
    assert_int_equal(tier_open(&t, TIER_RAM, &config), ERR_FIT);
    assert_non_null(strstr(err_text(), "--mem-ram"));
    tier_close(&t);
}

/* y = x . W^T on a device: operands copied in on one stream, multiplied on another, copied out on a
 * third, ordered by events alone. */
static void multiply_on(struct device *d, float *y)
{
    enum { M = 3, N = 32, K = 8 };
    const struct device_api *api = d->api;
    static float x[M * K], w[N * K], panel[N * K];
    const void *rows[PANEL_ROWS];
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < N * K; i++)
        w[i] = (float)(i % 11) - 5;
    for (int i = 0; i < N; i++)
        rows[i] = w + i * K;
    panel_pack(DTYPE_F32, rows, K, panel);
    struct ops ops = {.isa = ISA_PORTABLE, .compute = COMPUTE_F32};
    int64_t scratch =
        api->scratch ? api->scratch->matmul(&ops, M, N, K) : matmul_scratch_bytes(&ops, M, N, K);
    struct stream *s[3];
    struct event *e[3];
    void *mem[4];
    const int64_t sizes[4] = {sizeof x, sizeof panel, M * N * sizeof(float), scratch};
    for (int i = 0; i < 4; i++)
        assert_int_equal(api->alloc(d, round_up(sizes[i], 4096), &mem[i]), OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(api->stream_open(d, &s[i]), OK);
        assert_int_equal(api->event_open(d, &e[i]), OK);
    }
    assert_int_equal(api->pin(d, x, sizeof x), OK);
    assert_int_equal(api->pin(d, panel, sizeof panel), OK);
    assert_int_equal(api->pin(d, y, sizes[2]), OK);
    api->copy(s[0], mem[0], x, sizeof x);
    api->copy(s[0], mem[1], panel, sizeof panel);
    api->record(s[0], e[0]);
    api->stream_wait(s[1], e[0]);
    ops.stream = s[1];
    struct matmul_args args = {
        .x = mem[0],
        .m = M,
        .x_stride = K,
        .parts = {{.w = {.dtype = DTYPE_F32, .n = N, .k = K, .panels = mem[1]},
                   .y = mem[2],
                   .y_stride = N}},
        .n_parts = 1,
        .scratch = mem[3]};
    ops_run_matmul(&ops, &args);
    args = (struct matmul_args){0}; // launch has read them
    api->record(s[1], e[1]);
    api->stream_wait(s[2], e[1]);
    api->copy(s[2], y, mem[2], sizes[2]);
    api->record(s[2], e[2]);
    assert_int_equal(api->event_wait(s[2], e[2]), OK);
    for (int i = 0; i < 3; i++) {
        api->stream_close(s[i]);
        api->event_close(e[i]);
    }
    api->unpin(d, x, sizeof x);
    api->unpin(d, panel, sizeof panel);
    api->unpin(d, y, sizes[2]);
    for (int i = 0; i < 4; i++)
        api->release(d, mem[i], round_up(sizes[i], 4096));
}

static void test_streams_and_events(void **state)
{
    (void)state;
    static float want[3 * 32], got[3 * 32];
    multiply_on(device_cpu(), want);
    assert_true(want[0] != 0 || want[1] != 0);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct device *d = test_device_open(seed, 300);
        memset(got, 0xff, sizeof got);
        multiply_on(d, got);
        assert_memory_equal(got, want, sizeof want);
        test_device_close(d);
    }
}

/* The order that an event gives is needed: without it late streams read before the copy came. */
static void test_lateness_shows(void **state)
{
    (void)state;
    needs_simulator();
#ifdef __SANITIZE_THREAD__
    skip_because("under TSan: the race is the point");
#endif
    int wrong = 0;
    for (uint64_t seed = 0; seed < 32; seed++) {
        struct device *d = sim_device_open(seed, 300);
        struct stream *in, *out;
        struct event *done;
        void *mem;
        static uint8_t from[64], to[64];
        memset(from, 7, sizeof from);
        memset(to, 0, sizeof to);
        assert_int_equal(d->api->alloc(d, 4096, &mem), OK);
        assert_int_equal(d->api->pin(d, from, sizeof from), OK);
        assert_int_equal(d->api->pin(d, to, sizeof to), OK);
        assert_int_equal(d->api->stream_open(d, &in), OK);
        assert_int_equal(d->api->stream_open(d, &out), OK);
        assert_int_equal(d->api->event_open(d, &done), OK);
        d->api->copy(in, mem, from, sizeof from);
        d->api->copy(out, to, mem, sizeof to); // no event in between
        d->api->record(out, done);
        assert_int_equal(d->api->event_wait(out, done), OK);
        wrong += to[0] != 7;
        d->api->stream_close(in);
        d->api->stream_close(out);
        d->api->event_close(done);
        d->api->unpin(d, from, sizeof from);
        d->api->unpin(d, to, sizeof to);
        d->api->release(d, mem, 4096);
        sim_device_close(d);
    }
    assert_true(wrong > 0);
}

/* Every block goes file -> RAM -> device -> scratch file -> device -> RAM, each leg waiting for the
 * one before by its `after` alone, all legs of all blocks in flight together. */
static void carry_blocks(struct rig *r)
{
    enum { LEGS = 5 };
    static struct segment segments[PIECES][LEGS];
    static struct ticket t[PIECES][LEGS];
    static uint32_t crc[PIECES][BLOCK / PIECE_BYTES + 1], back[PIECES][BLOCK / PIECE_BYTES + 1];
    static const struct {
        int place, write, half, on_device; // half of the memory that the leg touches
    } legs[LEGS] = {{0, 0, 0, 0}, {1, 0, 0, 1}, {2, 1, 0, 1}, {2, 0, 1, 1}, {1, 1, 1, 1}};
    memset(t, 0, sizeof t);
    memset(back, 0, sizeof back);
    for (int i = 0; i < PIECES; i++)
        for (int64_t at = 0; at < BLOCK; at += PIECE_BYTES)
            crc[i][at / PIECE_BYTES] =
                crc32c(0, r->model + i * (int64_t)BLOCK + at, min_i64(PIECE_BYTES, BLOCK - at));
    for (int i = 0; i < PIECES; i++)
        for (int k = 0; k < LEGS; k++) {
            int64_t at = (int64_t)i * BLOCK, half = legs[k].half * (int64_t)FILE_BYTES;
            segments[i][k] = (struct segment){
                .offset = at + (legs[k].place == 1 ? half : 0),
                .n_bytes = BLOCK,
                .buf = (legs[k].on_device ? r->memory.base : r->ram.base) + at + half,
                .crc = legs[k].place == 2   ? back[i]
                       : legs[k].place == 0 ? crc[i]
                                            : NULL};
            t[i][k] = (struct ticket){.place = legs[k].place,
                                      .write = legs[k].write,
                                      .on_device = legs[k].on_device,
                                      .segments = &segments[i][k],
                                      .n_segments = 1,
                                      .due = LEGS - k,
                                      .after = k ? &t[i][k - 1] : NULL};
            mover_submit(r->mover, &t[i][k]);
        }
    for (int i = 0; i < PIECES; i++)
        for (int k = 0; k < LEGS; k++)
            assert_int_equal(mover_wait(r->mover, &t[i][k]), OK);
    assert_memory_equal(back, crc, sizeof crc);
}

static void test_chains_through_the_device(void **state)
{
    (void)state;
    for (int kind = have_uring ? 0 : 1; kind < 2; kind++)
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
            struct rig r;
            rig_open(&r, test_device_open(seed, 500), KINDS[kind], FILE_BYTES);
            int64_t h2d = trace.totals[LANE_H2D].bytes, d2h = trace.totals[LANE_D2H].bytes;
            carry_blocks(&r);
            assert_memory_equal(r.ram.base, r.model, FILE_BYTES);
            assert_memory_equal(r.ram.base + FILE_BYTES, r.model, FILE_BYTES);
            const uint8_t *memory = real_device() ? NULL : sim_device_peek(r.device, r.memory.base);
            assert_true(!memory || memcmp(memory, r.model, FILE_BYTES) == 0);
            assert_true(!memory || memcmp(memory + FILE_BYTES, r.model, FILE_BYTES) == 0);
            assert_int_equal(trace.totals[LANE_H2D].bytes - h2d, 2 * FILE_BYTES);
            assert_int_equal(trace.totals[LANE_D2H].bytes - d2h, 2 * FILE_BYTES);
            rig_close(&r);
            test_device_close(r.device);
        }
}

#define HELD 80 // blocks of one copy each, in a direction that stands still

/* Tickets of one copy each, from the device (write) or to it; every other page of n_bytes. */
static void copies_submit(struct rig *r, struct ticket *t, struct segment *s, int n, int write,
                          int64_t n_bytes)
{
    for (int i = 0; i < n; i++) {
        const int64_t at = 2 * i * n_bytes;
        s[i] = (struct segment){
            .offset = at, .n_bytes = n_bytes, .buf = r->memory.base + r->memory.n_bytes / 2 + at};
        t[i] = (struct ticket){.place = 1,
                               .write = write,
                               .on_device = 1,
                               .segments = &s[i],
                               .n_segments = 1,
                               .due = i};
        mover_submit(r->mover, &t[i]);
    }
}

/* Waits until the mover has queued n copies on a stream of the device. */
static void copies_queued(struct device *d, int stream, int64_t n)
{
    while (sim_device_copies(d, stream) < n)
        usleep(1000);
}

/* One direction stands still with all that it may hold: the other one goes on. Small copies are
 * bounded by their number, large ones by their bytes. */
static void test_each_direction_has_its_own_room(void **state)
{
    (void)state;
    needs_simulator();
    static struct segment s[HELD], one;
    static struct ticket t[HELD], other;
    static const struct {
        int64_t n_bytes;
        int tickets, flying;
    } kinds[] = {{4096, HELD, 64}, {MOVER_COPY_PIECE, 10, 8}};
    for (int i = 0; i < 4; i++) {
        struct rig r;
        const int kind = i / 2, held = i % 2; // stream 0 of the mover copies to the device
        rig_open(&r, test_device_open((uint64_t)i, 0), RING_THREADS,
                 kinds[kind].n_bytes * kinds[kind].tickets * 2);
        sim_device_hold(r.device, held);
        copies_submit(&r, t, s, kinds[kind].tickets, held, kinds[kind].n_bytes);
        copies_queued(r.device, held, kinds[kind].flying);
        copies_submit(&r, &other, &one, 1, !held, 4096);
        copies_queued(r.device, !held, 1);
        assert_int_equal(mover_wait(r.mover, &other), OK);
        assert_int_equal(sim_device_copies(r.device, held), kinds[kind].flying); // and no more
        sim_device_hold(r.device, -1);
        for (int k = 0; k < kinds[kind].tickets; k++)
            assert_int_equal(mover_wait(r.mover, &t[k]), OK);
        rig_close(&r);
        test_device_close(r.device);
    }
}

/* Of a transfer of two pieces one is lost with the device: it ends, and so does every later one. */
static void test_a_lost_device_is_told(void **state)
{
    (void)state;
    needs_simulator();
    for (int n = 1; n <= 5; n++) {
        struct rig r;
        rig_open(&r, test_device_open((uint64_t)n, 50), RING_THREADS, FILE_BYTES);
        uint32_t crc[2] = {crc32c(0, r.model, PIECE_BYTES),
                           crc32c(0, r.model + PIECE_BYTES, BLOCK - PIECE_BYTES)};
        struct segment s = {.n_bytes = BLOCK, .buf = r.memory.base, .crc = crc};
        struct ticket t = {.on_device = 1, .segments = &s, .n_segments = 1};
        sim_device_lose(r.device, n); // copies and notifications of two pieces
        mover_submit(r.mover, &t);
        assert_int_equal(mover_wait(r.mover, &t), n <= 4 ? ERR_DEVICE : OK);
        assert_int_equal(mover_failed(r.mover), n <= 4 ? ERR_DEVICE : OK);
        mover_submit(r.mover, &t);
        assert_int_equal(mover_wait(r.mover, &t), ERR_DEVICE);
        assert_non_null(strstr(err_text(), "device"));
        rig_close(&r);
        test_device_close(r.device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_back_ends_are_there),
        cmocka_unit_test(test_memory_is_out_of_reach),
        cmocka_unit_test(test_tier_errors),
        cmocka_unit_test(test_streams_and_events),
        cmocka_unit_test(test_lateness_shows),
        cmocka_unit_test(test_chains_through_the_device),
        cmocka_unit_test(test_each_direction_has_its_own_room),
        cmocka_unit_test(test_a_lost_device_is_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
