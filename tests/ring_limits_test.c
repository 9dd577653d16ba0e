/* tests/ring_limits_test.c - offload/ring where the system says no: lost completions, hung threads,
 * io_uring refused, limits on memory, descriptors, file size and disk. */
#include "tests/ring_util.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- the watchdog ---- */

static void test_watchdog(void **state)
{
    (void)state;
    char path[128];
    uint8_t *model = file_make("stuck", path, 65536), *buf = pages(65536);
    enum log_level before = log_level_max;
    log_level_max = LOG_ERROR;
    for (int k = !have_uring; k < 2; k++) {
        struct ring *r;
        struct ring_config config = {.kind = KINDS[k], .depth = 8, .watchdog_ms = 200};
        ring_faults = "seed=9,stuck=1/3";
        assert_int_equal(ring_open(&r, &config), OK);
        int file = file_add(r, path, O_RDONLY), n_lost = 0, n_good = 0;
        struct ring_io ios[8], *done[8];
        for (int i = 0; i < 8; i++) {
            ios[i] = (struct ring_io){
                .file = file, .offset = 8192 * i, .n_bytes = 8192, .buf = buf + 8192 * i};
            assert_int_equal(ring_submit(r, &ios[i]), OK);
        }
        int64_t start = clock_ns();
        while (ring_in_flight(r) > 0) {
            int n = ring_reap(r, done, 8, RING_WAIT);
            for (int i = 0; i < n; i++) {
                n_lost += done[i]->err == ERR_IO;
                n_good += done[i]->err == OK;
                if (done[i]->err == ERR_IO) {
                    assert_non_null(strstr(done[i]->err_text, "no completion for 1 s"));
                    assert_non_null(strstr(done[i]->err_text, "stuck: read of 8192 bytes at "));
                }
            }
        }
        int64_t ms = (clock_ns() - start) / 1000000;
        assert_in_range(ms, 150, 5000);
        assert_true(n_lost > 0 && n_good > 0 && n_lost + n_good == 8);
        assert_int_equal(ring_submit(r, &ios[0]), ERR_IO);
        assert_non_null(strstr(err_text(), "no completion"));
        ring_close(r);
    }
    log_level_max = before;
    free(buf);
    free(model);
}

/* A read that truly hangs: its buffer is a page that nobody delivers. The other thread's read comes
 * back, ring_close does not wait for ever, and the thread cleans up when it is let go. */
static void test_hung_thread(void **state)
{
    (void)state;
    char path[128];
    uint8_t *model = file_make("hung", path, 8192), good[100];
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    uint8_t *hole = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hole, MAP_FAILED);
    struct uffdio_register hang = {.range = {(uintptr_t)hole, 4096},
                                   .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0 ||
        ioctl(uffd, UFFDIO_REGISTER, &hang) != 0) {
        free(model);
        skip_because("no userfaultfd here");
    }
    struct ring *r;
    struct ring_config config = {
        .kind = RING_THREADS, .depth = 4, .n_threads = 2, .watchdog_ms = 300};
    assert_int_equal(ring_open(&r, &config), OK);
    int file = file_add(r, path, O_RDONLY);
    struct ring_io bad = {.file = file, .offset = 1, .n_bytes = 100, .buf = hole}, *done[2];
    struct ring_io fine = {.file = file, .offset = 5, .n_bytes = 100, .buf = good};
    assert_int_equal(ring_submit(r, &bad), OK);
    assert_int_equal(ring_submit(r, &fine), OK);
    assert_int_equal(ring_reap(r, done, 2, RING_WAIT), 1);
    assert_ptr_equal(done[0], &fine);
    assert_int_equal(fine.err, OK);
    assert_memory_equal(good, model + 5, 100);
    assert_int_equal(ring_reap(r, done, 2, RING_WAIT), 1);
    assert_ptr_equal(done[0], &bad);
    assert_int_equal(bad.err, ERR_IO);
    assert_non_null(strstr(bad.err_text, "hung: read of 100 bytes at 1: no completion"));
    ring_close(r);
    close(uffd); // lets the thread go
    usleep(100000);
    assert_memory_equal(hole, model + 1, 100);
    munmap(hole, 4096);
    free(model);
}

/* ---- what needs a process of its own: the child's exit status is the verdict ---- */

static int in_child(int (*body)(const char *path), const char *path)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(body(path));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define CHILD_SKIP 77
#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", __FILE__, __LINE__, #cond,      \
                    err_text());                                                                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Reads 4096 bytes of the file made by child_check and looks at them. */
static int child_read(struct ring *r, const char *path)
{
    int file;
    static _Alignas(4096) uint8_t buf[4096];
    EXPECT(ring_file_add(r, path, -1, O_RDONLY, &file) == OK);
    struct ring_io io = {.file = file, .offset = 4096, .n_bytes = 4096, .buf = buf}, *done[1];
    EXPECT(ring_submit(r, &io) == OK);
    EXPECT(ring_reap(r, done, 1, RING_WAIT) == 1 && done[0] == &io && io.err == OK);
    for (int i = 0; i < 4096; i++)
        EXPECT(buf[i] == 0x5a);
    return 0;
}

/* Makes io_uring's three system calls fail with `e`. */
static int uring_refuse(int e)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((uint32_t)e & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int refused_errno;

static int child_refused(const char *path)
{
    if (!uring_refuse(refused_errno))
        return CHILD_SKIP;
    struct ring *r;
    struct ring_config config = {.kind = RING_URING, .depth = 64};
    EXPECT(ring_open(&r, &config) == ERR_USAGE);
    EXPECT(strstr(err_text(), strerror(refused_errno)));
    config.kind = RING_AUTO;
    EXPECT(ring_open(&r, &config) == OK);
    EXPECT(strcmp(ring_name(r), "threads") == 0 && ring_depth(r) == 64);
    EXPECT(child_read(r, path) == 0);
    ring_close(r);
    return 0;
}

/* Locked memory too small for the buffers, as an ordinary user (root is exempt). */
static int child_memlock(const char *path)
{
    struct rlimit limit = {65536, 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        (geteuid() == 0 && setresuid(65534, 65534, 65534)))
        return CHILD_SKIP;
    struct ring_buffer range = {pages(1 << 20), 1 << 20};
    struct ring_config config = {.kind = RING_AUTO, .depth = 8, .buffers = &range, .n_buffers = 1};
    struct ring *r;
    EXPECT(ring_open(&r, &config) == OK);
    int is_uring = strcmp(ring_name(r), "io_uring") == 0;
    EXPECT(is_uring || !have_uring);
    EXPECT(child_read(r, path) == 0);
    ring_close(r);
    free(range.base);
    return 0;
}

/* Too few descriptors for the table of registered files. */
static int child_nofile(const char *path)
{
    struct rlimit limit = {24, 24};
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    struct ring_config config = {.kind = RING_AUTO, .depth = 8};
    struct ring *r;
    EXPECT(ring_open(&r, &config) == OK);
    EXPECT(child_read(r, path) == 0);
    enum err e = OK;
    for (int i = 0, file; i < 24 && e == OK; i++)
        e = ring_file_add(r, path, -1, O_RDONLY, &file);
    EXPECT(e == ERR_FIT && strstr(err_text(), "ulimit -n"));
    ring_close(r);
    return 0;
}

static int child_write(enum ring_kind kind, const char *path, int64_t limit, const char *text)
{
    struct ring_config config = {.kind = kind, .depth = 8};
    struct ring *r;
    int file;
    static _Alignas(4096) uint8_t buf[65536];
    EXPECT(ring_open(&r, &config) == OK);
    EXPECT(ring_file_add(r, path, -1, O_RDWR | O_CREAT | O_TRUNC, &file) == OK);
    struct ring_io io = {.file = file, .write = 1, .n_bytes = sizeof buf, .buf = buf}, *done[1];
    int64_t n_ok = 0;
    for (io.offset = 0; io.offset <= limit; io.offset += io.n_bytes) {
        EXPECT(ring_submit(r, &io) == OK);
        EXPECT(ring_reap(r, done, 1, RING_WAIT) == 1);
        if (io.err != OK)
            break;
        n_ok++;
    }
    EXPECT(io.err == ERR_IO && strstr(io.err_text, text));
    EXPECT(n_ok == limit / (int64_t)sizeof buf);
    /* io_uring lets go of a file a moment after it is closed: give the space back by hand. */
    EXPECT(ftruncate(ring_file_fd(r, file), 0) == 0);
    ring_close(r);
    unlink(path);
    return 0;
}

static int child_fsize(const char *path)
{
    char out[160];
    snprintf(out, sizeof out, "%s.out", path);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {200000, 200000};
    EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    if (have_uring)
        EXPECT(child_write(RING_URING, out, 200000, "ulimit -f") == 0);
    EXPECT(child_write(RING_THREADS, out, 200000, "ulimit -f") == 0);
    return 0;
}

static int child_disk_full(const char *path)
{
    char at[160], out[200];
    snprintf(at, sizeof at, "%s.mnt", path);
    snprintf(out, sizeof out, "%s/out", at);
    mkdir(at, 0700);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", at, "tmpfs", 0, "size=300k") != 0)
        return CHILD_SKIP;
    if (have_uring)
        EXPECT(child_write(RING_URING, out, 300 << 10, "the disk is full") == 0);
    EXPECT(child_write(RING_THREADS, out, 300 << 10, "the disk is full") == 0);
    return 0;
}

/* Reads for about two seconds with completions held back, so that something is always in flight. */
static int child_stopped(const char *path)
{
    struct ring_config config = {.kind = RING_AUTO, .depth = 8, .watchdog_ms = 400};
    ring_faults = "delay=1/1";
    struct ring *r;
    int file;
    static uint8_t buf[8][100];
    struct ring_io ios[8], *done[8];
    log_level_max = LOG_ERROR;
    EXPECT(ring_open(&r, &config) == OK);
    EXPECT(ring_file_add(r, path, -1, O_RDONLY, &file) == OK);
    for (int i = 0; i < 8; i++) {
        ios[i] = (struct ring_io){.file = file, .offset = 4096 + i, .n_bytes = 100, .buf = buf[i]};
        EXPECT(ring_submit(r, &ios[i]) == OK);
    }
    for (int64_t start = clock_ns(); clock_ns() - start < 2000000000;) {
        int n = ring_reap(r, done, 8, RING_WAIT);
        for (int i = 0; i < n; i++) {
            EXPECT(done[i]->err == OK);
            EXPECT(ring_submit(r, done[i]) == OK);
        }
    }
    ring_close(r);
    return 0;
}

static void child_check(int (*body)(const char *path))
{
    char path[128];
    snprintf(path, sizeof path, "%s/child", temp_dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < 65536; i++)
        putc(i / 4096 == 1 ? 0x5a : i % 251, f);
    fclose(f);
    chmod(path, 0644);
    int code = in_child(body, path);
    if (code == CHILD_SKIP)
        skip_because("not root, or no seccomp filter here");
    assert_int_equal(code, 0);
}

static void test_uring_refused(void **state)
{
    (void)state;
    static const int ERRNOS[] = {EPERM, ENOSYS, ENOMEM};
    for (int i = 0; i < 3; i++) {
        refused_errno = ERRNOS[i];
        child_check(child_refused);
    }
}

static void test_memlock(void **state)
{
    (void)state;
    child_check(child_memlock);
}

static void test_nofile(void **state)
{
    (void)state;
    child_check(child_nofile);
}

static void test_fsize(void **state)
{
    (void)state;
    child_check(child_fsize);
}

static void test_disk_full(void **state)
{
    (void)state;
    child_check(child_disk_full);
}

/* A stopped process finds nothing lost when it continues. */
static void test_stopped_process(void **state)
{
    (void)state;
    char path[128];
    free(file_make("stopped", path, 8192));
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(child_stopped(path));
    usleep(200000);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    usleep(1200000);
    assert_int_equal(kill(pid, SIGCONT), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_back_ends_are_there),
        cmocka_unit_test(test_watchdog),      cmocka_unit_test(test_hung_thread),
        cmocka_unit_test(test_uring_refused), cmocka_unit_test(test_memlock),
        cmocka_unit_test(test_nofile),        cmocka_unit_test(test_fsize),
        cmocka_unit_test(test_disk_full),     cmocka_unit_test(test_stopped_process),
    };
    return cmocka_run_group_tests(tests, ring_setup, temp_dir_teardown);
}
