/* kernels/base/base.h - errors, checks, the log, the clock, checksums and hashes.
 *
 * Owns: the error message of each thread, and the log. Refuses: everything else.
 * A bug stops the process (CHECK). An operating error is a value (enum err); its message is written
 * where the error happens and kept in a thread-local buffer. */
#ifndef KERNELS_BASE_BASE_H
#define KERNELS_BASE_BASE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/limits.h"
#include "kernels/base/num.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values below 100 are the exit codes of the process (table in the README). */
enum err {
    OK = 0,
    ERR_INTERNAL = 1, // a bug that can be reported instead of aborting
    ERR_USAGE = 2,    // bad flag or value
    ERR_ROWS = 3,     // finished, some rows failed
    ERR_FIT = 4,      // does not fit the budgets, or the system refused memory
    ERR_INPUT = 5,    // bad model or input file
    ERR_DEVICE = 6,   // device missing or lost
    ERR_CORRUPT = 7,  // stored bytes are corrupt
    ERR_JOB = 8,      // job does not match, or is locked
    ERR_IO = 9,       // disk error or full; the job can be resumed
    ERR_STOPPED = 75, // interrupted; the job can be resumed
    ERR_BUSY = 100,   // no room now, retry later (never reaches the user)
    ERR_ROW = 101,    // this row is bad, the job goes on (written as an error row)
};

/* Records the message "FILE: WHERE: WHAT (hint)" of this thread and returns `e`. */
enum err fail(enum err e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* ERR_USAGE, "--FLAG: invalid value 'VALUE' (expected a, b or c)"; choices is "a|b|c". */
enum err fail_choice(const char *flag, const char *value, const char *choices);
/* The message of this thread's last fail(), or "". Valid until the next fail(). */
const char *err_text(void);

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum err try_err_ = (expr);                                                                \
        if (try_err_ != OK)                                                                        \
            return try_err_;                                                                       \
    } while (0)

void check_failed(const char *cond, const char *file, int line) __attribute__((noreturn));
#define CHECK(cond) ((cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))

/* Writes one line per event to stderr: "12.034s info where: text". LOG_INFO: a few lines per
 * run. */
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
/* The lowest priority that the calling thread writes. New threads inherit the level of the thread
 * that starts them (kernels/base/thread.h), so that two runs in one process may differ. */
extern __thread enum log_level log_level_max;
void log_begin(void); // starts the log's clock; otherwise the first line does
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int64_t clock_ns(void); // CLOCK_MONOTONIC

/* CRC32C (Castagnoli), computed by ISA-L: 24 GB/s per core on cached data where the CPU has
 * carry-less multiplication. Start with crc = 0; pass the previous result to chain. */
uint32_t crc32c(uint32_t crc, const void *data, int64_t n_bytes);

/* SplitMix64 finaliser: hashes small keys, makes counter-based random numbers. */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* FNV-1a with a final mix, for hash tables and fingerprints; not for security. */
uint64_t hash_bytes(const void *data, int64_t n_bytes, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
