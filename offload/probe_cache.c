/* offload/probe_cache.c - of probe.h: cached measurements, a file for each part.
 *
 * Owns: the names of the files, and whether a file is valid. Refuses: making the folder.
 * Note: the memory of a run is part of the key only for rates measured in memory, so that runs
 * under many budgets share the disk's figures, and most often the others. */
#include "offload/probe_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "offload/cpu_wait.h"
#include "offload/machine_file.h"
#include "offload/probe_impl.h"
#include "offload/scratch.h"

#define CACHE_AGE_S (30 * 24 * 3600)
/* A file's time may be this far ahead of time(): since Linux 6.13 file systems take times between
 * the ticks that time() counts, and a file server has a clock of its own. */
#define AHEAD_S     60
#define SPREAD_MOST 0.15  // of a rate, by its value: above it the machine was busy
#define DISK_GUESS  0.5e9 // bytes per second
#define BUSY_AGE_S  120   // of figures measured on a busy machine
#define AGAIN_S     3600  // sooner the machine is still busy, and every start would measure
/* The last line: a checksum of everything before it, because a cut file would still parse. */
#define CHECK_FORMAT "# check = %08x\n"
#define CHECK_BYTES  19

enum err probe_cache_path(const char *cache_dir, const char *what, const char *key, char *path,
                          int cap)
{
    int n = snprintf(path, (size_t)cap, "%s/probe-%s-%016llx.cfg", cache_dir, what,
                     (unsigned long long)hash_bytes(key, (int64_t)strlen(key), 0));
    return n < cap ? OK : fail(ERR_USAGE, "%.100s...: path is too long", cache_dir);
}

int64_t probe_cache_read(const char *path, char *text)
{
    struct stat st;
    int64_t n;
    char check[CHECK_BYTES + 1];
    if (stat(path, &st) != 0)
        return -1;
    const time_t age = time(NULL) - st.st_mtime;
    if (age < -AHEAD_S || age > CACHE_AGE_S || machine_text_load(path, text, &n) != OK ||
        n < CHECK_BYTES)
        return -1;
    n -= CHECK_BYTES;
    snprintf(check, sizeof check, CHECK_FORMAT, crc32c(0, text, n));
    return memcmp(check, text + n, CHECK_BYTES) == 0 ? n : -1;
}

/* If the cache cannot be written, the next run measures again. */
void probe_cache_write(const char *path, char *text, int64_t n, int busy)
{
    n += snprintf(text + n, CHECK_BYTES + 1, CHECK_FORMAT, crc32c(0, text, n));
    enum err err = machine_text_save(path, text, n);
    if (err != OK && err != ERR_JOB) // ERR_JOB: another process wrote the file meanwhile
        log_line(LOG_WARN, "probe: the result is not stored: %s", err_text());
    const time_t then = time(NULL) - (CACHE_AGE_S - BUSY_AGE_S);
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = then}};
    if (err == OK && busy)
        (void)utimensat(AT_FDCWD, path, times, 0);
}

/* 1: the name has the form of probe_cache_path(). */
static int is_named(const char *name)
{
    const char *last = strrchr(name, '-');
    return strncmp(name, "probe-", 6) == 0 && last > name + 6 &&
           strspn(last + 1, "0123456789abcdef") == 16 && strcmp(last + 17, ".cfg") == 0;
}

/* 1: the last line is a checksum, right or wrong. */
static int is_ours(const char *path, struct stat *st)
{
    char end[CHECK_BYTES + 1] = "", check[CHECK_BYTES + 1];
    unsigned sum;
    if (lstat(path, st) != 0 || !S_ISREG(st->st_mode) || st->st_size < CHECK_BYTES)
        return 0;
    FILE *f = fopen(path, "r");
    int found = f && fseek(f, -CHECK_BYTES, SEEK_END) == 0 &&
                fread(end, 1, CHECK_BYTES, f) == CHECK_BYTES &&
                sscanf(end, CHECK_FORMAT, &sum) == 1;
    if (f)
        fclose(f);
    snprintf(check, sizeof check, CHECK_FORMAT, found ? sum : 0);
    return found && memcmp(end, check, CHECK_BYTES) == 0;
}

int probe_cache_is(const char *path, const char *name)
{
    struct stat st;
    return is_named(name) && is_ours(path, &st);
}

enum err probe_cache_reset(const char *cache_dir, int64_t *n, int64_t *n_bytes)
{
    *n = *n_bytes = 0;
    enum err err = OK;
    DIR *dir = opendir(cache_dir);
    if (!dir)
        return errno == ENOENT ? OK : fail(ERR_IO, "%s: %s", cache_dir, strerror(errno));
    for (const struct dirent *e; err == OK && (e = readdir(dir));) {
        char path[4200];
        struct stat st;
        if (!is_named(e->d_name) ||
            snprintf(path, sizeof path, "%s/%s", cache_dir, e->d_name) >= (int)sizeof path)
            continue;
        if (!is_ours(path, &st))
            continue;
        if (unlink(path) != 0)
            err = fail(ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
        else
            *n += 1, *n_bytes += st.st_size;
    }
    closedir(dir);
    return err;
}

int probe_cache_again(const char *path, const struct probe_config *c, double spread)
{
    struct stat st;
    double most = c->spread_most > 0 ? c->spread_most : SPREAD_MOST;
    return spread > most && stat(path, &st) == 0 && time(NULL) - st.st_mtime > AGAIN_S;
}

static double waited_here(const struct cpu_wait *from, int threads)
{
    struct cpu_wait now;
    cpu_wait_read(&now, NULL);
    return cpu_wait_share(from, &now, threads);
}

enum err probe_judged(const struct probe_config *c, const char *what,
                      enum err (*measure)(void *ctx), void *ctx, int *busy)
{
    const int judged = c->waited || !(c->share > 0), threads = pool_threads(c->ops->pool);
    struct cpu_wait from;
    cpu_wait_read(&from, NULL);
    TRY(measure(ctx));
    double share = judged ? (c->waited ? c->waited : waited_here)(&from, threads) : 0;
    *busy = share > CPU_WAIT_STARVED;
    if (*busy)
        log_line(LOG_WARN,
                 "probe: %s: other processes had the cores for %.0f %% of the time: these rates "
                 "are kept for two minutes only",
                 what, 100 * share);
    return OK;
}

/* ---- a few numbers ---- */

static int figures_parse(const char *text, double *x, int n)
{
    double read[PROBE_FIGURES_MAX];
    const char *at = text;
    for (int i = 0; i < n; i++) {
        char *end;
        read[i] = strtod(at, &end);
        if (end == at || !(read[i] > 0) || !isfinite(read[i]))
            return 0;
        at = end;
    }
    memcpy(x, read, (size_t)n * sizeof *x);
    return 1;
}

int probe_figures_read(const char *path, double *x, int n)
{
    char text[MACHINE_FILE_BYTES_MAX + 1];
    CHECK(n <= PROBE_FIGURES_MAX);
    int64_t n_bytes = probe_cache_read(path, text);
    text[max_i64(n_bytes, 0)] = 0;
    return n_bytes >= 0 && figures_parse(text, x, n);
}

void probe_figures_write(const char *path, double *x, int n)
{
    char text[PROBE_FIGURES_MAX * 32 + CHECK_BYTES + 1];
    int n_bytes = 0;
    CHECK(n <= PROBE_FIGURES_MAX);
    for (int i = 0; i < n; i++)
        n_bytes += snprintf(text + n_bytes, sizeof text - (size_t)n_bytes, "%.6g\n", x[i]);
    if (figures_parse(text, x, n)) // else the file would be refused when read
        probe_cache_write(path, text, n_bytes, 0);
}

/* ---- keys ---- */

static const char *cpu_name(const struct probe_config *c)
{
    return c->info ? c->info->cpu_name : "";
}

void probe_cache_key(const struct probe_config *c, char *key, int cap)
{
    snprintf(key, (size_t)cap, "5 %s %d %s %s %lld %lld", cpu_name(c), pool_threads(c->ops->pool),
             isa_name(c->ops->isa), compute_name(c->ops->compute), (long long)probe_ram_bytes(c),
             (long long)probe_fresh_bytes(c));
}

/* ---- parts of a machine ---- */

static const char *const part_names[N_MACHINE_PARTS] = {"disk", "cpu", "device"};

static enum err part_path(const struct probe_config *c, enum machine_part part,
                          const char *cache_dir, char *path, int cap)
{
    char key[512];
    struct device_info device = {0};
    if (part == MACHINE_CPU)
        probe_cache_key(c, key, sizeof key);
    if (part == MACHINE_DISK) {
        struct scratch_room room;
        TRY(scratch_room(c->dir, &room));
        snprintf(key, sizeof key, "4 %s %d %llx %d %lld", cpu_name(c), pool_threads(c->ops->pool),
                 (unsigned long long)room.id, (int)c->io, (long long)probe_buffer_bytes(c));
    }
    if (part == MACHINE_DEVICE) {
        TRY(c->device->api->info(c->device, &device));
        snprintf(key, sizeof key, "3 %s %s %s %d %lld %lld", cpu_name(c), device.model,
                 compute_name(c->ops->compute), (int)c->ops->matmul,
                 (long long)probe_pinned_bytes(c), (long long)probe_device_bytes(c, &device));
    }
    return probe_cache_path(cache_dir, part_names[part], key, path, cap);
}

/* The rates of one part. */
static void part_copy(struct machine *to, const struct machine *from, enum machine_part part)
{
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part == part)
            to->rates[i] = from->rates[i];
}

/* Reads a part into m. 0: the file is not valid, or a needed rate is missing. */
static int part_read(struct machine *m, enum machine_part part, const char *path)
{
    char text[MACHINE_FILE_BYTES_MAX];
    struct machine read;
    int64_t n = probe_cache_read(path, text);
    if (n < 0 || machine_text_parse(&read, text, n, path) != OK)
        return 0;
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part == part && machine_rates[i].needed && read.rates[i].value <= 0)
            return 0;
    part_copy(m, &read, part);
    return 1;
}

/* ---- measuring again ---- */

static double spread_of(const struct rate *r)
{
    return r->value > 0 && r->n > 1 ? r->spread / r->value : INFINITY;
}

/* The rate that a plan divides by with the widest spread; -1: none has samples. */
static int part_widest(const struct machine *m, enum machine_part part)
{
    int widest = -1;
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part == part && machine_rates[i].needed && m->rates[i].n > 1 &&
            (widest < 0 || spread_of(&m->rates[i]) > spread_of(&m->rates[widest])))
            widest = i;
    return widest;
}

/* Measures a part once more; of each rate the one with the narrower spread stays. */
static enum err part_again(struct machine *m, const struct probe_config *c, enum machine_part part,
                           int widest)
{
    struct machine again = *m;
    log_line(LOG_INFO, "probe: %s: samples differ by %.0f %%, measuring again",
             machine_rates[widest].key, 100 * spread_of(&m->rates[widest]));
    TRY(probe_run_part(&again, c, part));
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part == part && spread_of(&again.rates[i]) < spread_of(&m->rates[i]))
            m->rates[i] = again.rates[i];
    return OK;
}

/* Writes a part; m gets the digits of the file, so that plans do not depend on the cache. */
static void part_write(struct machine *m, const struct probe_config *c, enum machine_part part,
                       const char *path, int busy)
{
    char text[MACHINE_TEXT_BYTES + CHECK_BYTES + 1], comment[300], date[32];
    time_t now = time(NULL);
    struct tm tm;
    struct machine only = {0};
    part_copy(&only, m, part);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    snprintf(comment, sizeof comment, "%s of %s\ndate: %s", part_names[part], cpu_name(c), date);
    int n = machine_text_format(&only, comment, text, MACHINE_TEXT_BYTES);
    if (n < 0 || machine_text_parse(&only, text, n, path) != OK)
        return; // the file would be refused when read
    part_copy(m, &only, part);
    probe_cache_write(path, text, n, busy);
}

/* A full or read-only disk cannot be measured, but a job that writes little may still run. */
static void guess_disk(struct machine *m)
{
    log_line(LOG_WARN, "%s; the plan assumes a disk of %.1f GB/s", err_text(), DISK_GUESS * 1e-9);
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part == MACHINE_DISK)
            m->rates[i] = (struct rate){0};
    m->nvme_read = m->nvme_write = (struct rate){.value = DISK_GUESS, .n = 1};
}

struct part_probe {
    struct machine *m;
    const struct probe_config *c;
    enum machine_part part;
    int widest; // of a cached part: the rate for which it is measured again; -1: not cached
};

static enum err part_measure(void *ctx)
{
    const struct part_probe *p = ctx;
    return p->widest >= 0 ? part_again(p->m, p->c, p->part, p->widest)
                          : probe_run_part(p->m, p->c, p->part);
}

enum err probe_cached(struct machine *m, const struct probe_config *c, const char *cache_dir,
                      int *measured)
{
    char path[4200];
    *measured = 0;
    *m = (struct machine){.threads = pool_threads(c->ops->pool)};
    for (int i = 0; i < N_MACHINE_PARTS; i++) {
        enum machine_part part = (enum machine_part)i;
        if (!probe_has_part(c, part))
            continue;
        TRY(part_path(c, part, cache_dir, path, sizeof path));
        int read = !c->full && part_read(m, part, path), widest = part_widest(m, part);
        int wide = read && widest >= 0 && probe_cache_again(path, c, spread_of(&m->rates[widest]));
        if (!read || wide) {
            struct part_probe p = {m, c, part, wide ? widest : -1};
            int busy = 0;
            enum err err = probe_judged(c, part_names[part], part_measure, &p, &busy);
            if (err == ERR_IO && part == MACHINE_DISK && !wide) { // there may be room next time
                guess_disk(m);
                continue;
            }
            TRY(err);
            part_write(m, c, part, path, busy);
            *measured = 1;
        }
        if (part == MACHINE_DEVICE)
            probe_device_step(m);
    }
    return OK;
}
