/* offload/probe.c - see probe.h: the order of the measurements, and RAM.
 *
 * Owns: the order, and for how long. Refuses: the disk (probe_disk.c), matmuls (probe_matmul.c),
 * attention and other ops of a layer (probe_attend.c), the device (probe_device.c), the cache
 * (probe_cache.c) and the file's text (machine_file.c).
 * Note: every rate is the median of many short samples, never the best: a plan needs the usual
 * speed of the machine, and the spread shows when the machine was busy. */
#include "offload/probe_impl.h"

#include "kernels/base/arena.h"

#include <stdlib.h>
#include <string.h>

#define RAM_LEAST     (8 * PROBE_MIB)
#define RAM_MOST      (1536 * PROBE_MIB)
#define CACHE_UNKNOWN (32 * PROBE_MIB)
#define FULL_TIMES    10
#define FRESH_BYTES   (512 * PROBE_MIB)
#define FRESH_WINDOW  (32 * PROBE_MIB)
#define FRESH_WINDOWS 16
#define FRESH_S       0.3

struct rate probe_loop(const struct probe_loop *l)
{
    double rates[PROBE_TURNS_MAX];
    int n = 0;
    int64_t start_ns = clock_ns(), before_ns;
    l->turn(l->ctx, 0);
    before_ns = clock_ns();
    double first_s = (double)max_i64(before_ns - start_ns, 1) * 1e-9, took_s = 0;
    if (first_s > 4 * l->seconds && l->least <= 1)
        return (struct rate){l->amount / first_s, 0, 1};
    while (n < PROBE_TURNS_MAX && (n == 0 || took_s < 8 * l->seconds) &&
           (n < l->least || took_s < l->seconds)) {
        l->turn(l->ctx, n + 1);
        int64_t now_ns = clock_ns();
        double turn_s = (double)max_i64(now_ns - before_ns, 1) * 1e-9;
        rates[n++] = l->amount / turn_s;
        took_s += turn_s;
        before_ns = now_ns;
    }
    return rate_of_samples(rates, n);
}

static double share_of(const struct probe_config *c)
{
    return c->share > 0 ? c->share : 1;
}

double probe_seconds(const struct probe_config *c, double quick)
{
    return quick * (c->full ? FULL_TIMES : 1) * share_of(c);
}

void probe_say(const struct probe_config *c, enum machine_rate id, const struct rate *r)
{
    if (c->verbose)
        log_line(LOG_INFO, "probe: %s: %.4g %s (spread %.1f %%, %d samples)", machine_rates[id].key,
                 r->value, machine_rates[id].unit, r->value > 0 ? 100 * r->spread / r->value : 0,
                 r->n);
}

/* ---- RAM ---- */

static int64_t ram_wanted(const struct probe_config *c)
{
    int64_t caches = c->info && c->info->cache_bytes > 0 ? c->info->cache_bytes : CACHE_UNKNOWN;
    int64_t wanted = (int64_t)(4 * (double)caches * share_of(c));
    return min_i64(max_i64(wanted, RAM_LEAST), RAM_MOST) / PROBE_MIB * PROBE_MIB;
}

int64_t probe_ram_bytes(const struct probe_config *c)
{
    int64_t wanted = ram_wanted(c), bytes = RAM_LEAST;
    if (c->memory_bytes <= 0 || c->memory_bytes >= wanted)
        return wanted;
    while (bytes * 4 <= c->memory_bytes)
        bytes *= 4;
    return bytes;
}

enum err probe_arena_open(struct arena *a, const struct probe_config *c, int64_t bytes)
{
    if (c->memory_bytes > 0 && bytes > c->memory_bytes)
        return fail(ERR_FIT,
                    "probe: measuring with %d threads needs %.1f MiB of RAM, the budget leaves "
                    "%.1f (a smaller --threads, or --mem-ram %lldM)",
                    pool_threads(c->ops->pool), (double)bytes / (double)PROBE_MIB,
                    (double)c->memory_bytes / (double)PROBE_MIB,
                    (long long)ceil_div(bytes + c->beside_bytes, PROBE_MIB));
    return arena_open(a, bytes);
}

int probe_reaches_ram(const struct probe_config *c)
{
    return probe_ram_bytes(c) == ram_wanted(c);
}

typedef uint64_t line_t __attribute__((vector_size(64), may_alias)); // a cache line

struct ram_scan {
    struct pool *pool;
    const line_t *lines;
    int64_t n_lines;
    uint32_t crc;
};

/* Two sums in registers: a sum in memory would wait for its own stores. */
static void ram_scan_part(void *ctx, int thread, int n_threads)
{
    const struct ram_scan *scan = ctx;
    int64_t first, last;
    pool_split(scan->n_lines / 2, thread, n_threads, &first, &last);
    line_t even = {0}, odd = {0};
    for (int64_t i = first; i < last; i++) {
        even += scan->lines[2 * i];
        odd += scan->lines[2 * i + 1];
    }
    even += odd;
    __asm__ volatile("" ::"m"(even)); // keeps the sums from being optimized away
}

static void ram_scan_turn(void *ctx, int i)
{
    struct ram_scan *scan = ctx;
    (void)i;
    pool_run(scan->pool, ram_scan_part, scan);
}

static void ram_crc_turn(void *ctx, int i)
{
    struct ram_scan *scan = ctx;
    (void)i;
    scan->crc = crc32c(scan->crc, scan->lines, scan->n_lines * 64);
}

/* Every thread touches its own part first, so that the pages come from its NUMA node. */
static void ram_fill_part(void *ctx, int thread, int n_threads)
{
    const struct ram_scan *scan = ctx;
    int64_t first, last;
    pool_split(scan->n_lines / 2, thread, n_threads, &first, &last);
    memset((void *)(uintptr_t)(scan->lines + 2 * first), 1, (size_t)(last - first) * 128);
}

static enum err ram_open(struct ram_scan *scan, struct pool *pool, int64_t buffer_bytes)
{
    void *base;
    int64_t bytes = round_up(max_i64(buffer_bytes, 4096), 4096);
    TRY(device_cpu()->api->alloc(device_cpu(), bytes, &base)); // huge pages, as in a run
    *scan = (struct ram_scan){.pool = pool, .lines = base, .n_lines = bytes / 64};
    pool_run(pool, ram_fill_part, scan);
    return OK;
}

static void ram_close(struct ram_scan *scan)
{
    device_cpu()->api->release(device_cpu(), (void *)(uintptr_t)scan->lines, scan->n_lines * 64);
}

static struct rate ram_rate(struct ram_scan *scan, void (*turn)(void *ctx, int i), double seconds)
{
    return probe_loop(&(struct probe_loop){
        .turn = turn, .ctx = scan, .amount = (double)scan->n_lines * 64, .seconds = seconds});
}

enum err probe_ram(struct pool *pool, int64_t buffer_bytes, double seconds, struct rate *rate)
{
    struct ram_scan scan;
    TRY(ram_open(&scan, pool, buffer_bytes));
    *rate = ram_rate(&scan, ram_scan_turn, seconds);
    ram_close(&scan);
    return OK;
}

int64_t probe_fresh_bytes(const struct probe_config *c)
{
    return c->memory_bytes <= 0 || c->memory_bytes >= 2 * FRESH_BYTES ? FRESH_BYTES : 0;
}

static int compare_rates(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Rate at which fresh memory is populated. A page that a hypervisor has to supply costs a hundred
 * times as much as a page in recent use, and a buffer may have both kinds: the slowest third of the
 * windows is what a large run meets. */
static enum err measure_fresh(struct machine *m, const struct probe_config *c)
{
    double rates[FRESH_WINDOWS];
    void *base;
    int n = 0;
    const double most_s = probe_seconds(c, FRESH_S);
    int64_t bytes = probe_fresh_bytes(c), start_ns = clock_ns(), before_ns = start_ns;
    if (bytes == 0)
        return OK;
    TRY(device_cpu()->api->alloc(device_cpu(), bytes, &base));
    while (n < FRESH_WINDOWS && (double)(before_ns - start_ns) * 1e-9 < most_s) {
        arena_populate((uint8_t *)base + n * FRESH_WINDOW, FRESH_WINDOW, c->ops->pool);
        int64_t now_ns = clock_ns();
        rates[n++] = (double)FRESH_WINDOW / ((double)max_i64(now_ns - before_ns, 1) * 1e-9);
        before_ns = now_ns;
    }
    device_cpu()->api->release(device_cpu(), base, bytes);
    qsort(rates, (size_t)n, sizeof *rates, compare_rates);
    m->ram_fresh = rate_of_samples(rates, (n + 2) / 3);
    probe_say(c, RATE_ram_fresh, &m->ram_fresh);
    return OK;
}

static enum err measure_ram(struct machine *m, const struct probe_config *c)
{
    struct ram_scan scan;
    double seconds = probe_seconds(c, 0.1);
    TRY(ram_open(&scan, c->ops->pool, probe_ram_bytes(c)));
    m->ram_read = ram_rate(&scan, ram_scan_turn, seconds);
    scan.pool = NULL;
    m->ram_read_one = ram_rate(&scan, ram_scan_turn, seconds);
    m->crc = ram_rate(&scan, ram_crc_turn, seconds);
    ram_close(&scan);
    probe_say(c, RATE_ram_read, &m->ram_read);
    probe_say(c, RATE_ram_read_one, &m->ram_read_one);
    probe_say(c, RATE_crc, &m->crc);
    if (c->verbose && !probe_reaches_ram(c))
        log_line(LOG_WARN,
                 "probe: %lld MiB of RAM fit the CPU's caches: the measured reads, matmuls and "
                 "attention are too fast (raise --mem-ram)",
                 (long long)(probe_ram_bytes(c) / PROBE_MIB));
    return OK;
}

enum err probe_run_part(struct machine *m, const struct probe_config *c, enum machine_part part)
{
    if (part == MACHINE_DISK)
        return probe_disk(m, c);
    if (part == MACHINE_DEVICE)
        return probe_device(m, c);
    TRY(measure_fresh(m, c)); // before other measurements free memory
    TRY(measure_ram(m, c));
    TRY(probe_matmuls(m, c));
    return probe_attention(m, c);
}

int probe_has_part(const struct probe_config *c, enum machine_part part)
{
    return part != MACHINE_DEVICE || (c->device && !c->device->api->unified);
}

enum err probe_run(struct machine *m, const struct probe_config *c)
{
    *m = (struct machine){.threads = pool_threads(c->ops->pool)};
    for (int part = 0; part < N_MACHINE_PARTS; part++)
        if (probe_has_part(c, (enum machine_part)part))
            TRY(probe_run_part(m, c, (enum machine_part)part));
    return OK;
}
