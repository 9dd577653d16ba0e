/* offload/pace_file.c - see pace_file.h. A line is a run: the class of its plan, its factor. */
#include "offload/pace_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/machine_file.h"
#include "offload/probe_cache.h"

/* -1: the text is not a pace file. */
static int parse(struct pace_runs *s, const char *text)
{
    const char *at = strchr(text, '\n');
    while (at && *++at) {
        char *end, *last;
        struct pace_run run = {.class = (int)strtol(at, &end, 10)};
        run.times = strtod(end, &last);
        if (end == at || last == end || !(run.times > 0) || !isfinite(run.times))
            return -1;
        pace_add(s, &run);
        at = strchr(last, '\n');
    }
    return 0;
}

void pace_file_read(struct pace_runs *s, const char *path)
{
    char text[MACHINE_FILE_BYTES_MAX + 1];
    int64_t n = probe_cache_read(path, text);
    s->n = 0;
    if (n < 0)
        return;
    text[n] = 0;
    if (parse(s, text) != 0)
        s->n = 0;
}

void pace_file_add(const char *path, const struct pace_run *run)
{
    char text[MACHINE_FILE_BYTES_MAX];
    struct pace_runs s;
    pace_file_read(&s, path);
    pace_add(&s, run);
    int n = snprintf(text, sizeof text,
                     "# sluice: runs: class of plan, measured by predicted seconds\n");
    for (int i = 0; i < s.n; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%d %.6g\n", s.runs[i].class,
                      s.runs[i].times);
    probe_cache_write(path, text, n, 0);
}
