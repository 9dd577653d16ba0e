/* tests/tools/nth.c - built as nth.so and preloaded: the n-th call of something goes wrong.
 *     NTH=fail,malloc,17,12            malloc number 17 returns NULL, errno 12
 *     NTH=fail,fdatasync,2,5,*.journal the second fdatasync of a file that this pattern fits
 *     NTH=kill-before|kill-after|kill-torn,pwrite,3,0,*.partial   SIGKILL there; torn: half written
 *     NTH=stop-before|stop-after,fdatasync,3,0,*.journal   SIGSTOP there, until SIGCONT
 *     NTH=slow,pread,7,50000,*.jsonl   each takes up to 50,000 us longer, by seed 7
 *     NTH=cut-before|cut-after,rename,1,0,*.tmp   and the power of the disk at NTH_CUT=MOUNT is cut
 *     NTH_LOG=FILE                     what was called: `ns call offset path`; `= by` who made the
 * call that failed; at the end `= call count`, `= live` blocks, `= hits`, `= jumps` of the wall
 * clock; NTH_LIVE=1: and where each block that lives was made
 *
 * Owns: the calls of the table below, wherever in the process they come from. Refuses: what
 * io_uring writes, which passes no function (SLUICE_FAULT's kill does that). `from` instead of
 * `fail` fails that call and all later ones. Note: blocks that are still allocated
 * at the end are counted too, so a way out that leaks shows as a larger number than a good run's.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* clang-format off */
#define CALLS(X)                                                                                   \
    X(malloc) X(calloc) X(realloc) X(posix_memalign) X(aligned_alloc) X(mmap) X(pthread_create)    \
    X(open) X(create) X(fopen) X(close) X(pread) X(write) X(pwrite) X(fsync) X(fdatasync)          \
    X(rename) X(link) X(flock) X(ftruncate) X(unlink) X(mkdir) X(fallocate)
/* clang-format on */
enum call {
#define X(name) CALL_##name,
    CALLS(X)
#undef X
        N_CALLS
};
static const char *const CALL_NAMES[N_CALLS] = {
#define X(name) [CALL_##name] = #name,
    CALLS(X)
#undef X
};
#define FIRST_FILE_CALL CALL_open
#define PATH_BYTES      4200
#define LIVE_MAX        (1 << 18)
#define FRAMES          48

enum act {
    ACT_NONE,
    ACT_FAIL,
    ACT_FROM,
    ACT_KILL_BEFORE,
    ACT_KILL_AFTER,
    ACT_KILL_TORN,
    ACT_CUT_BEFORE,
    ACT_CUT_AFTER,
    ACT_STOP_BEFORE,
    ACT_STOP_AFTER,
    ACT_SLOW,
    N_ACTS
};
static const char *const ACT_NAMES[N_ACTS] = {
    "",           "fail",      "from",        "kill-before", "kill-after", "kill-torn",
    "cut-before", "cut-after", "stop-before", "stop-after",  "slow"};

static struct {
    enum act act;
    int call;
    long n;
    int errno_value;
    char pattern[256];   // "": any path
    const char *library; // calls that come through it are logged; NULL: none
    int log_fd;
} plan = {.log_fd = -1};
static atomic_long counts[N_CALLS], hits;
/* Of the last pread or pwrite. initial-exec: a thread's first use makes no loader allocate. */
static _Thread_local long long at_offset __attribute__((tls_model("initial-exec")));
static int (*real_thread)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static FILE *(*real_fopen)(const char *, const char *);
static atomic_long jumps; // of the wall clock
static atomic_int ready;  // before the constructor, and after the end, everything passes

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

/* ---- blocks that live ---- */

static struct {
    void *p, *from;
} live[LIVE_MAX];
static atomic_flag live_lock = ATOMIC_FLAG_INIT;
static long n_live;

static void live_enter(void)
{
    while (atomic_flag_test_and_set(&live_lock))
        continue;
}

static size_t live_home(const void *p)
{
    return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 20) % LIVE_MAX;
}

static void *live_add(void *p, void *from)
{
    if (!p || !ready)
        return p;
    live_enter();
    size_t i = live_home(p);
    while (live[i].p)
        i = (i + 1) % LIVE_MAX;
    live[i].p = p;
    live[i].from = from;
    n_live++;
    atomic_flag_clear(&live_lock);
    return p;
}

static void live_remove(const void *p)
{
    if (!p)
        return;
    live_enter();
    size_t i = live_home(p);
    while (live[i].p && live[i].p != p)
        i = (i + 1) % LIVE_MAX;
    if (live[i].p) { // close the gap, so that later ones are still found
        n_live--;
        live[i].p = NULL;
        for (size_t k = (i + 1) % LIVE_MAX; live[k].p; k = (k + 1) % LIVE_MAX) {
            size_t home = live_home(live[k].p);
            if ((k > i && (home <= i || home > k)) || (k < i && home <= i && home > k)) {
                live[i] = live[k];
                live[k].p = NULL;
                i = k;
            }
        }
    }
    atomic_flag_clear(&live_lock);
}

/* ---- what is to happen ---- */

/* The ext4 file system of $NTH_CUT loses all that it did not write, and writes no more. */
static void cut(void)
{
    static const unsigned shut_down = 0x8004587d, no_log_flush = 2; // EXT4_IOC_SHUTDOWN
    const char *mount = getenv("NTH_CUT");
    long fd = syscall(SYS_openat, AT_FDCWD, mount ? mount : "", O_RDONLY | O_DIRECTORY);
    if (syscall(SYS_ioctl, fd, shut_down, &no_log_flush) != 0)
        fputs("NTH_CUT: cannot be shut down\n", stderr);
}

static void stop(void)
{
    syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
}

static void die(void)
{
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;)
        pause();
}

static void log_text(const char *text, int n)
{
    if (plan.log_fd >= 0 && n > 0)
        syscall(SYS_write, plan.log_fd, text, n);
}

/* `= NAME file+offset file+offset ...`: who asked for it, innermost first. */
static void log_callers(const char *name)
{
    void *frames[FRAMES];
    char line[FRAMES * 64 + 64];
    Dl_info at;
    int n = snprintf(line, sizeof line, "= %s", name), n_frames = backtrace(frames, FRAMES);
    for (int i = 0; i < n_frames; i++) {
        if (!dladdr(frames[i], &at) || !at.dli_fname)
            continue;
        const char *slash = strrchr(at.dli_fname, '/');
        n += snprintf(line + n, sizeof line - (size_t)n, " %.40s+%lx",
                      slash ? slash + 1 : at.dli_fname,
                      (long)((char *)frames[i] - (char *)at.dli_fbase));
    }
    line[n++] = '\n';
    log_text(line, n);
}

/* Is a library of this name on the way to the call? */
static int called_through(const char *library)
{
    void *frames[FRAMES];
    Dl_info at;
    int n = backtrace(frames, FRAMES);
    for (int i = 0; i < n; i++)
        if (dladdr(frames[i], &at) && at.dli_fname && strstr(at.dli_fname, library))
            return 1;
    return 0;
}

/* What becomes of this call. path NULL: it has none. */
static enum act decide(enum call call, const char *path)
{
    if (!ready)
        return ACT_NONE;
    long number = ++counts[call];
    if (plan.library && call < FIRST_FILE_CALL && called_through(plan.library)) {
        char line[64];
        log_text(line, snprintf(line, sizeof line, "= in %s:%ld 1\n", CALL_NAMES[call], number));
    }
    if (plan.act == ACT_NONE || (int)call != plan.call)
        return ACT_NONE;
    if (plan.pattern[0] && (!path || fnmatch(plan.pattern, path, 0) != 0))
        return ACT_NONE;
    long n = ++hits;
    if (plan.act == ACT_SLOW) {
        uint64_t x = ((uint64_t)plan.n * 1000003 + (uint64_t)n) * 0x9e3779b97f4a7c15u;
        usleep((useconds_t)((x >> 32) % (uint64_t)(plan.errno_value + 1)));
        return ACT_NONE;
    }
    if (n != plan.n && !(plan.act == ACT_FROM && n > plan.n))
        return ACT_NONE;
    if (plan.act == ACT_CUT_BEFORE)
        cut();
    if (plan.act == ACT_KILL_BEFORE || plan.act == ACT_CUT_BEFORE)
        die();
    if (plan.act == ACT_STOP_BEFORE)
        stop();
    if (plan.act <= ACT_FROM && n == plan.n && plan.log_fd >= 0)
        log_callers("by");
    errno = plan.errno_value;
    return plan.act == ACT_FROM ? ACT_FAIL : plan.act;
}

/* The call came back. */
static void after(enum act act, enum call call, const char *path)
{
    if (!ready)
        return;
    int was = errno;
    if (plan.log_fd >= 0 && call >= FIRST_FILE_CALL && path && path[0] == '/') {
        struct timespec t;
        char line[PATH_BYTES + 64];
        clock_gettime(CLOCK_MONOTONIC, &t);
        log_text(line, snprintf(line, sizeof line, "%lld %s %lld %s\n",
                                (long long)t.tv_sec * 1000000000 + t.tv_nsec, CALL_NAMES[call],
                                at_offset, path));
    }
    if (act == ACT_CUT_AFTER)
        cut();
    if (act == ACT_KILL_AFTER || act == ACT_CUT_AFTER)
        die();
    if (act == ACT_STOP_AFTER)
        stop();
    errno = was;
}

static const char *fd_path(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlink, link, path, PATH_BYTES - 1);
    path[n > 0 ? n : 0] = 0;
    return path;
}

static void find_real(void)
{
    *(void **)&real_thread = dlsym(RTLD_NEXT, "pthread_create");
    *(void **)&real_fopen = dlsym(RTLD_NEXT, "fopen");
}

__attribute__((constructor)) static void begin(void)
{
    const char *log = getenv("NTH_LOG"), *text = getenv("NTH");
    if (log) {
        long fd =
            syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        plan.log_fd = fcntl((int)fd, F_DUPFD_CLOEXEC, 900);
        syscall(SYS_close, fd);
    }
    plan.library = getenv("NTH_WHO");
    char act[32] = "", call[32] = "";
    if (text && sscanf(text, "%31[^,],%31[^,],%ld,%d,%255s", act, call, &plan.n, &plan.errno_value,
                       plan.pattern) < 4) {
        fputs("NTH: expected act,call,n,errno[,pattern]\n", stderr);
        _exit(99);
    }
    for (int i = ACT_FAIL; i < N_ACTS; i++)
        if (strcmp(act, ACT_NAMES[i]) == 0)
            plan.act = (enum act)i;
    plan.call = -1;
    for (int i = 0; i < N_CALLS; i++)
        if (strcmp(call, CALL_NAMES[i]) == 0)
            plan.call = i;
    if (text && (plan.act == ACT_NONE || plan.call < 0)) {
        fprintf(stderr, "NTH: %s,%s: not known\n", act, call);
        _exit(99);
    }
    void *frame;
    backtrace(&frame, 1); // what follows gets its memory now, not in the middle of a call
    find_real();
    tzset();
    ready = 1;
}

__attribute__((destructor)) static void end(void)
{
    char line[128];
    ready = 0;
    for (int i = 0; i < N_CALLS; i++)
        log_text(line, snprintf(line, sizeof line, "= %s %ld\n", CALL_NAMES[i], counts[i]));
    log_text(line, snprintf(line, sizeof line, "= live %ld\n", n_live));
    log_text(line, snprintf(line, sizeof line, "= hits %ld\n", (long)hits));
    log_text(line, snprintf(line, sizeof line, "= jumps %ld\n", (long)jumps));
    for (size_t i = 0; getenv("NTH_LIVE") && i < LIVE_MAX; i++) {
        Dl_info at;
        if (live[i].p && dladdr(live[i].from, &at))
            log_text(line, snprintf(line, sizeof line, "= at %.80s+%#lx\n", at.dli_fname,
                                    (long)((char *)live[i].from - (char *)at.dli_fbase)));
    }
}

/* ---- memory and threads ---- */

#define FROM __builtin_return_address(0)

void *malloc(size_t n)
{
    return decide(CALL_malloc, NULL) == ACT_FAIL ? NULL : live_add(__libc_malloc(n), FROM);
}

void *calloc(size_t n, size_t size)
{
    return decide(CALL_calloc, NULL) == ACT_FAIL ? NULL : live_add(__libc_calloc(n, size), FROM);
}

void *realloc(void *p, size_t n)
{
    if (decide(CALL_realloc, NULL) == ACT_FAIL)
        return NULL;
    live_remove(p);
    void *moved = __libc_realloc(p, n);
    live_add(moved ? moved : n > 0 ? p : NULL, FROM);
    return moved;
}

void free(void *p)
{
    live_remove(p);
    __libc_free(p);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    if (decide(CALL_posix_memalign, NULL) == ACT_FAIL)
        return plan.errno_value;
    *p = live_add(__libc_memalign(align, n), FROM);
    return *p ? 0 : ENOMEM;
}

void *aligned_alloc(size_t align, size_t n)
{
    return decide(CALL_aligned_alloc, NULL) == ACT_FAIL ? NULL
                                                        : live_add(__libc_memalign(align, n), FROM);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    if (decide(CALL_mmap, NULL) == ACT_FAIL)
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset); // NOLINT
}

void *mmap64(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return mmap(at, n, prot, flags, fd, offset);
}

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *ctx)
{
    if (!real_thread) // a library's constructor asks before begin() has run
        find_real();
    if (decide(CALL_pthread_create, NULL) == ACT_FAIL)
        return plan.errno_value;
    return real_thread(t, attr, f, ctx);
}

/* ---- the wall clock, which may jump a year to and fro; CLOCK_MONOTONIC stays as it is ---- */

#define YEAR_S 31536000

static long jump_s(void)
{
    return getenv("NTH_CLOCK") ? (jumps++ % 3 - 1) * YEAR_S : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int result = (int)syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        t->tv_sec += jump_s();
    return result;
}

time_t time(time_t *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *t, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

/* ---- files ---- */

/* One call on a file: what is to happen, the system call, what happened. */
#define ON_PATH(call, path, number, ...)                                                           \
    do {                                                                                           \
        enum act act = decide(call, path);                                                         \
        long result = act == ACT_FAIL ? -1 : syscall(number, __VA_ARGS__);                         \
        after(act, call, path);                                                                    \
        return result;                                                                             \
    } while (0)
#define ON_FD(call, fd, number, ...)                                                               \
    do {                                                                                           \
        char path_[PATH_BYTES];                                                                    \
        ON_PATH(call, fd_path(fd, path_), number, __VA_ARGS__);                                    \
    } while (0)

static long open_at(int folder, const char *path, int flags, mode_t mode)
{
    int makes = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
    ON_PATH(makes ? CALL_create : CALL_open, path, SYS_openat, folder, path, flags, mode);
}

#define OPEN(folder)                                                                               \
    va_list args;                                                                                  \
    va_start(args, flags);                                                                         \
    mode_t mode =                                                                                  \
        (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;          \
    va_end(args);                                                                                  \
    return (int)open_at(folder, path, flags, mode)

int open(const char *path, int flags, ...)
{
    OPEN(AT_FDCWD);
}
int open64(const char *path, int flags, ...)
{
    OPEN(AT_FDCWD);
}
int openat(int folder, const char *path, int flags, ...)
{
    OPEN(folder);
}
int openat64(int folder, const char *path, int flags, ...)
{
    OPEN(folder);
}

FILE *fopen(const char *path, const char *mode)
{
    if (!real_fopen)
        find_real();
    enum act act = decide(CALL_fopen, path);
    FILE *f = act == ACT_FAIL ? NULL : real_fopen(path, mode);
    after(act, CALL_fopen, path);
    return f;
}

/* One that fails has closed all the same, as the kernel's does. */
int close(int fd)
{
    char path[PATH_BYTES];
    enum act act = decide(CALL_close, fd_path(fd, path));
    long result = syscall(SYS_close, fd);
    if (act == ACT_FAIL) {
        errno = plan.errno_value;
        result = -1;
    }
    after(act, CALL_close, path);
    return (int)result;
}

ssize_t pread(int fd, void *p, size_t n, off_t offset)
{
    at_offset = offset;
    ON_FD(CALL_pread, fd, SYS_pread64, fd, p, n, offset);
}
ssize_t pread64(int fd, void *p, size_t n, off_t offset)
{
    return pread(fd, p, n, offset);
}

/* Writes; the one that is torn writes its first half. */
static long on_write(enum call call, int fd, const void *p, size_t n, off_t offset)
{
    char path[PATH_BYTES];
    at_offset = offset;
    enum act act = decide(call, fd_path(fd, path));
    if (act == ACT_FAIL)
        return -1;
    if (act == ACT_KILL_TORN)
        n /= 2;
    long result =
        call == CALL_write ? syscall(SYS_write, fd, p, n) : syscall(SYS_pwrite64, fd, p, n, offset);
    after(act == ACT_KILL_TORN ? ACT_KILL_AFTER : act, call, path);
    return result;
}

ssize_t write(int fd, const void *p, size_t n)
{
    return on_write(CALL_write, fd, p, n, 0);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t offset)
{
    return on_write(CALL_pwrite, fd, p, n, offset);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off_t offset)
{
    return on_write(CALL_pwrite, fd, p, n, offset);
}

int fsync(int fd)
{
    ON_FD(CALL_fsync, fd, SYS_fsync, fd);
}
int fdatasync(int fd)
{
    ON_FD(CALL_fdatasync, fd, SYS_fdatasync, fd);
}
int ftruncate(int fd, off_t n)
{
    ON_FD(CALL_ftruncate, fd, SYS_ftruncate, fd, n);
}
int ftruncate64(int fd, off_t n)
{
    return ftruncate(fd, n);
}
int fallocate(int fd, int mode, off_t offset, off_t n)
{
    ON_FD(CALL_fallocate, fd, SYS_fallocate, fd, mode, offset, n);
}
int fallocate64(int fd, int mode, off_t offset, off_t n)
{
    return fallocate(fd, mode, offset, n);
}
int posix_fallocate(int fd, off_t offset, off_t n)
{
    return fallocate(fd, 0, offset, n) == 0 ? 0 : errno;
}
int posix_fallocate64(int fd, off_t offset, off_t n)
{
    return posix_fallocate(fd, offset, n);
}
int rename(const char *from, const char *to)
{
    ON_PATH(CALL_rename, from, SYS_rename, from, to);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    ON_PATH(CALL_rename, from, SYS_renameat2, from_folder, from, to_folder, to, flags);
}
int link(const char *from, const char *to)
{
    ON_PATH(CALL_link, to, SYS_link, from, to);
}
int flock(int fd, int operation)
{
    ON_FD(CALL_flock, fd, SYS_flock, fd, operation);
}
int unlink(const char *path)
{
    ON_PATH(CALL_unlink, path, SYS_unlink, path);
}
int unlinkat(int folder, const char *path, int flags)
{
    ON_PATH(CALL_unlink, path, SYS_unlinkat, folder, path, flags);
}
int mkdir(const char *path, mode_t mode)
{
    ON_PATH(CALL_mkdir, path, SYS_mkdir, path, mode);
}
