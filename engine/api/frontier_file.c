/* engine/api/frontier_file.c - see frontier_file.h. */
#include "engine/api/frontier_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/pack.h"
#include "kernels/base/whole.h"

#define LINE_MAX_BYTES 512
#define FIELDS         13

static const char head[] =
    "# what KV policies and formats cost this model, by `sluice bench frontier`; may be deleted\n"
    "conditions,text,prefix,window,windows,kv,format,perplexity,more_percent,needle,no_needle,job,"
    "tokens_per_s\n";

enum err frontier_path(uint64_t fingerprint, char *path, int cap)
{
    char dir[4096];
    TRY(pack_cache_dir(dir, sizeof dir));
    if (snprintf(path, (size_t)cap, "%s/frontier-%016" PRIx64 ".csv", dir, fingerprint) >= cap)
        return fail(ERR_USAGE, "%s: the cache folder's name is too long", dir);
    return OK;
}

int frontier_is(const char *path, const char *name)
{
    char line[sizeof head] = "";
    const char *why;
    FILE *f = strncmp(name, "frontier-", 9) == 0 ? regular_open(path, &why) : NULL;
    int same = f && fread(line, 1, sizeof head - 1, f) > 0 && strcmp(line, head) == 0;
    if (f)
        fclose(f);
    return same;
}

struct frontier_share frontier_share(double share, int is_fraction)
{
    struct frontier_share s;
    int n = snprintf(s.text, sizeof s.text - 2, "%.15g", share);
    if (is_fraction && !strpbrk(s.text, ".e"))
        memcpy(s.text + n, ".0", 3);
    return s;
}

void frontier_kv(const struct evict *e, char kv[FRONTIER_KV])
{
    char recent[44] = "", sink[24] = "", layers[24] = "";
    const char *scope = e->scope == EVICT_SCOPE_LAYER ? " scope=layer" : "";
    const char *positions = e->positions == EVICT_POSITIONS_SLOT ? " by-slot" : "";
    if (e->policy == EVICT_FULL) {
        snprintf(kv, FRONTIER_KV, "%s", evict_policy_name(e->policy));
        return;
    }
    if (e->recent_set)
        snprintf(recent, sizeof recent, " recent=%s",
                 frontier_share(e->recent, e->recent_is_fraction).text);
    if (e->sink >= 0)
        snprintf(sink, sizeof sink, " sink=%d", e->sink);
    if (e->kinds && kv_kinds_uneven(e->kinds))
        snprintf(layers, sizeof layers, " layers=%08x",
                 (unsigned)hash_bytes(e->kinds, sizeof *e->kinds, 0));
    snprintf(kv, FRONTIER_KV, "%.20s=%s%s%.20s%.12s%s%s%s", evict_policy_name(e->policy),
             frontier_share(e->budget, e->budget_is_fraction).text,
             e->budget_of_prompt && e->budget_is_fraction ? " of=prompt" : "", recent, sink, scope,
             layers, positions);
}

/* ---- reading ---- */

static void take_text(char *to, size_t cap, const char *field)
{
    snprintf(to, cap, "%s", field);
}

static double take_number(const char *field)
{
    return *field ? strtod(field, NULL) : NAN;
}

/* 0: not a row. */
static int read_line(char *line, struct frontier_row *row)
{
    char *fields[FIELDS];
    int n = 0;
    size_t end = strlen(line);
    if (end == 0 || line[end - 1] != '\n') // truncated, or too long
        return 0;
    line[end - 1] = 0;
    for (char *at = line; at && n < FIELDS; n++) {
        fields[n] = at;
        at = strchr(at, ',');
        if (at)
            *at++ = 0;
        else if (n + 1 < FIELDS)
            return 0;
    }
    if (*line == '#' || n < FIELDS)
        return 0;
    *row = (struct frontier_row){.prefix = strtoll(fields[2], NULL, 10),
                                 .window = strtoll(fields[3], NULL, 10),
                                 .windows = strtoll(fields[4], NULL, 10),
                                 .ppl = take_number(fields[7]),
                                 .more = take_number(fields[8]),
                                 .needle = take_number(fields[9]),
                                 .no_needle = take_number(fields[10]),
                                 .tokens_per_s = *fields[12] ? strtod(fields[12], NULL) : 0};
    take_text(row->conditions, sizeof row->conditions, fields[0]);
    take_text(row->text, sizeof row->text, fields[1]);
    take_text(row->kv, sizeof row->kv, fields[5]);
    take_text(row->format, sizeof row->format, fields[6]);
    take_text(row->job, sizeof row->job, fields[11]);
    return row->ppl > 0 && isfinite(row->ppl) && isfinite(row->more);
}

static int has_all(const struct frontier_row *row, const struct frontier_row *like)
{
    return strcmp(row->kv, like->kv) == 0 && strcmp(row->format, like->format) == 0 &&
           (!*like->conditions || strcmp(row->conditions, like->conditions) == 0) &&
           (!*like->job || strcmp(row->job, like->job) == 0);
}

static int64_t scored(const struct frontier_row *row)
{
    return row->windows * (row->window - row->prefix);
}

int frontier_find(const char *path, const struct frontier_row *like, struct frontier_row *row)
{
    char line[LINE_MAX_BYTES];
    struct frontier_row one;
    int found = 0;
    const char *why;
    FILE *f = regular_open(path, &why);
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        if (!read_line(line, &one) || !has_all(&one, like) || (found && scored(&one) < scored(row)))
            continue;
        *row = one;
        found = 1;
    }
    fclose(f);
    return found;
}

/* ---- writing ---- */

static void put_number(char *line, size_t cap, double x, const char *end)
{
    size_t n = strlen(line);
    if (isfinite(x))
        snprintf(line + n, cap - n, "%.17g%s", x, end);
    else
        snprintf(line + n, cap - n, "%s", end);
}

/* Replaces characters that would end the field or the line. */
static void put_name(char *to, size_t cap, const char *name)
{
    snprintf(to, cap, "%s", name);
    for (char *at = to; *at; at++)
        if (*at == ',' || (unsigned char)*at < ' ')
            *at = ' ';
}

/* Appends with a single write, so that rows of two processes do not mix. First ends a line that a
 * stopped process left incomplete. */
static enum err append(int fd, const char *path, const char *line)
{
    char all[sizeof head + LINE_MAX_BYTES + 1], last = '\n';
    off_t size = lseek(fd, 0, SEEK_END);
    if (size > 0 && pread(fd, &last, 1, size - 1) != 1)
        return fail(ERR_IO, "%s: %s", path, strerror(errno));
    int n =
        snprintf(all, sizeof all, "%s%s%s", size == 0 ? head : "", last == '\n' ? "" : "\n", line);
    ssize_t wrote = write(fd, all, (size_t)n);
    if (wrote != n)
        return fail(ERR_IO, "%s: %s", path, wrote < 0 ? strerror(errno) : "cannot be written");
    return OK;
}

enum err frontier_add(const char *path, const struct frontier_row *row)
{
    char line[LINE_MAX_BYTES], text[sizeof row->text];
    put_name(text, sizeof text, row->text);
    snprintf(line, sizeof line, "%s,%s,%lld,%lld,%lld,%s,%s,", row->conditions, text,
             (long long)row->prefix, (long long)row->window, (long long)row->windows, row->kv,
             row->format);
    put_number(line, sizeof line, row->ppl, ",");
    put_number(line, sizeof line, row->more, ",");
    put_number(line, sizeof line, row->needle, ",");
    put_number(line, sizeof line, row->no_needle, ",");
    size_t n = strlen(line);
    snprintf(line + n, sizeof line - n, "%s,", row->job);
    put_number(line, sizeof line, row->tokens_per_s > 0 ? row->tokens_per_s : NAN, "\n");
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | WHOLE_OPEN, 0666);
    struct stat st;
    if (fd < 0)
        return fail(ERR_IO, "%s: %s", path, strerror(errno));
    int regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    enum err err = regular ? append(fd, path, line) : fail(ERR_IO, "%s: not a regular file", path);
    close(fd);
    return err;
}
