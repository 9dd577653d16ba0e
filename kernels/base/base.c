/* kernels/base/base.c - see base.h. */
#include "kernels/base/base.h"

#include <isa-l/crc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Thread_local char err_buf[1024];

enum err fail(enum err e, const char *fmt, ...)
{
    char text[sizeof err_buf]; // not err_buf itself: the arguments may quote the previous message
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (char *c = text; *c; c++) // file names may contain control characters: keep one line
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    memcpy(err_buf, text, sizeof err_buf);
    return e;
}

enum err fail_choice(const char *flag, const char *value, const char *choices)
{
    char list[sizeof err_buf];
    const char *last = strrchr(choices, '|');
    size_t n = 0;
    for (const char *c = choices; *c && n + sizeof " or " < sizeof list; c++) {
        const char *joint = c == last ? " or " : ", ";
        const size_t n_joint = *c == '|' ? strlen(joint) : 1;
        memcpy(list + n, *c == '|' ? joint : c, n_joint);
        n += n_joint;
    }
    return fail(ERR_USAGE, "--%s: invalid value '%.200s' (expected %.*s)", flag, value, (int)n,
                list);
}

const char *err_text(void)
{
    return err_buf;
}

void check_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "sluice: bug: %s:%d: %s\n", file, line, cond);
    abort();
}

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

__thread enum log_level log_level_max = LOG_INFO;
static _Atomic int64_t log_start_ns;

void log_begin(void)
{
    log_start_ns = clock_ns();
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if (level > log_level_max)
        return;
    if (!log_start_ns)
        log_begin();
    char text[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "%.3fs %s %s\n", (double)(clock_ns() - log_start_ns) * 1e-9, names[level],
            text);
}

/* The library leaves the upper halves of vector registers in use (it is assembly without
 * vzeroupper). Until they are cleared, code for plain SSE waits at each instruction: sampling took
 * 8 times as long behind a checksum. */
static void upper_halves_off(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroupper");
#endif
}

uint32_t crc32c(uint32_t crc, const void *data, int64_t n_bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    while (n_bytes > 0) { // the library's length is an int
        int n = (int)min_i64(n_bytes, 1 << 30);
        crc = crc32_iscsi((unsigned char *)(uintptr_t)p, n, crc);
        p += n;
        n_bytes -= n;
    }
    upper_halves_off();
    return ~crc;
}

uint64_t hash_bytes(const void *data, int64_t n_bytes, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325ull ^ mix64(seed);
    for (int64_t i = 0; i < n_bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return mix64(h);
}
