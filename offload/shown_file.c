/* offload/shown_file.c - see shown_file.h. A line is a run: its lanes, then the probe's of its day.
 */
#include "offload/shown_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "offload/machine_file.h"
#include "offload/probe_cache.h"

#define KEY_MAX 1536

enum err shown_file_path(const struct probe_model *p, const struct probe_config *c,
                         const char *cache_dir, char *path, int cap)
{
    char key[KEY_MAX];
    struct stat st;
    struct device_info device = {0};
    unsigned long long disk = stat(c->dir, &st) == 0 ? (unsigned long long)st.st_dev : 0;
    if (c->device && !c->device->api->unified)
        TRY(c->device->api->info(c->device, &device));
    int n =
        snprintf(key, sizeof key, "1 %s %d %s %s %d %llx %d %s", c->info ? c->info->cpu_name : "",
                 pool_threads(c->ops->pool), isa_name(c->ops->isa), compute_name(c->ops->compute),
                 (int)c->ops->matmul, disk, (int)c->io, device.model);
    probe_model_key(p, key + n, (int)sizeof key - n);
    return probe_cache_path(cache_dir, "shown", key, path, cap);
}

/* -1: it is not one. */
static int parse(struct shown *s, const char *text)
{
    const char *at = strchr(text, '\n');
    *s = (struct shown){0};
    while (at && *++at) {
        struct shown_run run;
        for (int i = 0; i < 2 * N_PLAN_LANES; i++) {
            char *end;
            double *to = i < N_PLAN_LANES ? &run.slower[i] : &run.reference[i - N_PLAN_LANES];
            *to = strtod(at, &end);
            if (end == at || !(*to >= 0) || !isfinite(*to))
                return -1;
            at = end;
        }
        shown_add(s, &run);
        at = strchr(at, '\n');
    }
    return 0;
}

void shown_file_read(struct shown *s, const char *path)
{
    static char text[MACHINE_FILE_BYTES_MAX + 1];
    int64_t n = probe_cache_read(path, text);
    *s = (struct shown){0};
    if (n < 0)
        return;
    text[n] = 0;
    if (parse(s, text) != 0)
        *s = (struct shown){0};
}

void shown_file_add(const char *path, const struct shown_run *run)
{
    static char text[MACHINE_FILE_BYTES_MAX];
    struct shown s;
    shown_file_read(&s, path);
    shown_add(&s, run);
    int n = snprintf(text, sizeof text,
                     "# sluice: runs: lanes by what the probe foretold, seconds of the probe\n");
    for (int i = 0; i < s.n; i++)
        for (int k = 0; k < 2 * N_PLAN_LANES; k++) {
            const struct shown_run *r = &s.runs[i];
            double x = k < N_PLAN_LANES ? r->slower[k] : r->reference[k - N_PLAN_LANES];
            n += snprintf(text + n, sizeof text - (size_t)n, "%.6g%c", x,
                          k + 1 < 2 * N_PLAN_LANES ? ' ' : '\n');
        }
    probe_cache_write(path, text, n);
}
