/* offload/machine_file.c - machine files: flat `key = value`, # starts a comment (see probe.h).
 *
 * Owns: the table of keys and their ranges. Refuses: unknown and repeated keys, values that are not
 * plain decimal numbers, values out of range; always with file and line.
 * A newcomer would miss: a key that is not there leaves 0: "unknown". A plan for a machine whose
 * rates are unknown would be for one where they cost nothing, so machine_file_read refuses it. */
#include "offload/machine_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/probe.h"

#define VALUE_MAX 64

/* Of these, FIELD_BYTES and FIELD_DEVICE (a rate) may be left out. */
enum field_kind { FIELD_RATE, FIELD_SECONDS, FIELD_COUNT, FIELD_BYTES, FIELD_DEVICE };

static const struct {
    const char *key;
    size_t offset;
    enum field_kind kind;
    double max;
    const char *unit;
} fields[] = {
    {"nvme_read", offsetof(struct machine, nvme_read), FIELD_RATE, 1e15, "bytes per second"},
    {"nvme_write", offsetof(struct machine, nvme_write), FIELD_RATE, 1e15, "bytes per second"},
    {"ram_read", offsetof(struct machine, ram_read), FIELD_RATE, 1e15, "bytes per second"},
    {"matmul_flops", offsetof(struct machine, matmul_flops), FIELD_RATE, 1e18, "FLOPs per second"},
    {"step_s", offsetof(struct machine, step_s), FIELD_SECONDS, 60, "seconds of overhead a step"},
    {"threads", offsetof(struct machine, threads), FIELD_COUNT, 4096, "compute threads"},
    {"ram", offsetof(struct machine, ram), FIELD_BYTES, 1e15, "bytes of RAM that a run may take"},
    {"disk", offsetof(struct machine, disk), FIELD_BYTES, 1e17,
     "bytes of disk that a run may write"},
    {"device_memory", offsetof(struct machine, device_memory), FIELD_BYTES, 1e15,
     "bytes of device memory that a run may take"},
    {"h2d", offsetof(struct machine, h2d), FIELD_DEVICE, 1e15, "bytes per second"},
    {"d2h", offsetof(struct machine, d2h), FIELD_DEVICE, 1e15, "bytes per second"},
    {"device_read", offsetof(struct machine, device_read), FIELD_DEVICE, 1e15, "bytes per second"},
    {"device_flops", offsetof(struct machine, device_flops), FIELD_DEVICE, 1e18,
     "FLOPs per second"},
};
#define N_FIELDS (int)(sizeof fields / sizeof fields[0])

/* ---- reading ---- */

/* strtod takes hex, infinities and more: only digits, point and exponent may come before it. */
static int number_parse(const char *text, double *x)
{
    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return -1;
    char *end;
    errno = 0;
    *x = strtod(text, &end);
    return *end || end == text || errno == ERANGE ? -1 : 0;
}

static enum err value_set(struct machine *m, int i, double x, const char *path, int line)
{
    void *at = (char *)m + fields[i].offset;
    const int in_range = x >= 0 && x <= fields[i].max; // only then is the cast defined
    if (!in_range || (fields[i].kind == FIELD_COUNT && x != (double)(int64_t)x))
        return fail(ERR_INPUT, "%s: line %d: %s: %g is out of range (0..%g %s)", path, line,
                    fields[i].key, x, fields[i].max, fields[i].unit);
    if (fields[i].kind == FIELD_COUNT)
        *(int *)at = (int)x;
    else if (fields[i].kind == FIELD_BYTES)
        *(int64_t *)at = (int64_t)x;
    else
        *(double *)at = x;
    return OK;
}

/* One line without its newline. *seen: a bit per key. */
static enum err line_parse(struct machine *m, const char *line, int64_t n, const char *path,
                           int number, unsigned *seen)
{
    char text[256];
    if (memchr(line, 0, (size_t)n))
        return fail(ERR_INPUT, "%s: line %d: a zero byte (not a machine file)", path, number);
    const char *hash = memchr(line, '#', (size_t)n);
    n = hash ? hash - line : n;
    while (n > 0 && strchr(" \t\r", line[n - 1]))
        n--;
    while (n > 0 && strchr(" \t", *line)) {
        line++;
        n--;
    }
    if (n == 0)
        return OK;
    if (n >= (int64_t)sizeof text)
        return fail(ERR_INPUT, "%s: line %d: too long", path, number);
    memcpy(text, line, (size_t)n);
    text[n] = 0;
    char *eq = strchr(text, '=');
    if (!eq)
        return fail(ERR_INPUT, "%s: line %d: no '='", path, number);
    const char *value = eq + 1 + strspn(eq + 1, " \t");
    *eq = 0;
    text[strcspn(text, " \t")] = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        double x;
        if (strcmp(text, fields[i].key) != 0)
            continue;
        if (*seen & (1u << i))
            return fail(ERR_INPUT, "%s: line %d: %s stands there twice", path, number, text);
        *seen |= 1u << i;
        if (number_parse(value, &x) != 0)
            return fail(ERR_INPUT, "%s: line %d: %s: '%.40s' is not a number", path, number, text,
                        value);
        return value_set(m, i, x, path, number);
    }
    return fail(ERR_INPUT, "%s: line %d: unknown key '%.60s'", path, number, text);
}

enum err machine_text_parse(struct machine *m, const char *text, int64_t n_bytes, const char *path)
{
    struct machine read = {0};
    unsigned seen = 0;
    int number = 1;
    for (int64_t at = 0; at < n_bytes; number++) {
        const char *newline = memchr(text + at, '\n', (size_t)(n_bytes - at));
        int64_t end = newline ? newline - text : n_bytes;
        TRY(line_parse(&read, text + at, end - at, path, number, &seen));
        at = end + 1;
    }
    if (!seen)
        return fail(ERR_INPUT, "%s: no key of a machine file in it", path);
    *m = read;
    return OK;
}

enum err machine_text_load(const char *path, char *text, int64_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return fail(ERR_INPUT, "%s: machine file: %s", path, strerror(errno));
    char extra;
    *n_bytes = (int64_t)fread(text, 1, MACHINE_FILE_BYTES_MAX, f);
    int more = *n_bytes == MACHINE_FILE_BYTES_MAX && fread(&extra, 1, 1, f) == 1;
    int bad = ferror(f);
    fclose(f);
    if (bad)
        return fail(ERR_INPUT, "%s: machine file: cannot be read", path);
    if (more)
        return fail(ERR_INPUT, "%s: machine file: more than %d KiB", path,
                    MACHINE_FILE_BYTES_MAX >> 10);
    return OK;
}

static int may_lack(enum field_kind kind)
{
    return kind == FIELD_BYTES || kind == FIELD_DEVICE;
}

enum err machine_device_check(const struct machine *m, const char *path)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (fields[i].kind == FIELD_DEVICE &&
            *(const double *)(const void *)((const char *)m + fields[i].offset) <= 0)
            return fail(ERR_INPUT, "%s: has no %s: a plan for a device needs it (%s)", path,
                        fields[i].key, fields[i].unit);
    return OK;
}

/* Every rate that a plan divides by. */
static enum err rates_check(const struct machine *m, const char *path)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const void *at = (const char *)m + fields[i].offset;
        if (may_lack(fields[i].kind))
            continue;
        if (fields[i].kind == FIELD_COUNT ? *(const int *)at <= 0 : *(const double *)at <= 0)
            return fail(ERR_INPUT, "%s: %s: is missing or 0 (%s)", path, fields[i].key,
                        fields[i].unit);
    }
    return OK;
}

enum err machine_file_read(struct machine *m, const char *path)
{
    char *text = malloc(MACHINE_FILE_BYTES_MAX);
    if (!text)
        return fail(ERR_FIT, "memory: machine file");
    int64_t n_bytes;
    enum err err = machine_text_load(path, text, &n_bytes);
    if (err == OK)
        err = machine_text_parse(m, text, n_bytes, path);
    free(text);
    return err == OK ? rates_check(m, path) : err;
}

/* ---- writing ---- */

int machine_text_format(const struct machine *m, const char *comment, char *text, int cap)
{
    int n = snprintf(text, (size_t)cap, "# sluice machine file: what this machine can do\n");
    for (const char *line = comment; line && *line && n < cap;) {
        int length = (int)strcspn(line, "\n");
        n += snprintf(text + n, (size_t)(cap - n), "# %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    for (int i = 0; i < N_FIELDS && n < cap; i++) {
        const void *at = (const char *)m + fields[i].offset;
        char value[VALUE_MAX];
        if (fields[i].kind == FIELD_BYTES
                ? *(const int64_t *)at <= 0
                : fields[i].kind == FIELD_DEVICE && *(const double *)at <= 0)
            continue;
        if (fields[i].kind == FIELD_COUNT)
            snprintf(value, sizeof value, "%d", *(const int *)at);
        else if (fields[i].kind == FIELD_BYTES)
            snprintf(value, sizeof value, "%lld", (long long)*(const int64_t *)at);
        else
            snprintf(value, sizeof value, "%.6g", *(const double *)at);
        n += snprintf(text + n, (size_t)(cap - n), "%s = %s # %s\n", fields[i].key, value,
                      fields[i].unit);
    }
    return n < cap ? n : -1;
}

enum err machine_text_save(const char *path, const char *text, int64_t n_bytes)
{
    char temp[4200];
    int n = snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid());
    if (n >= (int)sizeof temp)
        return fail(ERR_IO, "%.100s...: machine file: path is too long", path);
    FILE *f = fopen(temp, "wb");
    if (!f)
        return fail(ERR_IO, "%s: machine file: %s", path, strerror(errno));
    int bad = fwrite(text, 1, (size_t)n_bytes, f) != (size_t)n_bytes;
    bad |= fclose(f) != 0;
    if (!bad && rename(temp, path) == 0)
        return OK;
    int saved = errno;
    unlink(temp);
    return fail(ERR_IO, "%s: machine file: cannot be written: %s", path, strerror(saved));
}

enum err machine_file_write(const struct machine *m, const char *path, const char *comment)
{
    char text[4096];
    int n = machine_text_format(m, comment, text, sizeof text);
    if (n < 0)
        return fail(ERR_USAGE, "%s: machine file: the comment is too long", path);
    return machine_text_save(path, text, n);
}
