/* offload/machine_file.c - machine files: flat `key = value`, # starts a comment (see probe.h).
 *
 * Owns: keys beside the rates, and every range. Refuses, with file and line: unknown and repeated
 * keys, values that are not plain decimal numbers, values out of range. Note: a missing key leaves
 * 0, "unknown". A plan would take an unknown rate for one that costs nothing, so
 * machine_file_read() refuses files without the needed rates. */
#include "offload/machine_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/whole.h"
#include "offload/probe.h"

/* Keys of a file beside the rates. */
static const struct {
    const char *key;
    size_t offset;
    int is_count; // 1: an int that has to be there; 0: bytes or bytes/s (int64_t), optional
    double max;
    const char *unit;
} others[] = {
    {"threads", offsetof(struct machine, threads), 1, 4096, "compute threads"},
    {"ram", offsetof(struct machine, ram), 0, 1e15, "bytes of RAM that a run may take"},
    {"disk", offsetof(struct machine, disk), 0, 1e17, "bytes of disk that a run may write"},
    {"device_memory", offsetof(struct machine, device_memory), 0, 1e15,
     "bytes of device memory that a run may take"},
    {"net", offsetof(struct machine, net), 0, 1e15, "bytes per second to another machine"},
    {"p2p", offsetof(struct machine, p2p), 0, 1e15,
     "bytes per second to another device of the box"},
};
#define N_OTHERS    (int)(sizeof others / sizeof others[0])
#define N_KEYS      (N_MACHINE_RATES + N_OTHERS)
#define SAMPLES_MAX 1e9
_Static_assert(N_KEYS <= 64, "a bit per key");

static const char *key_at(int i)
{
    return i < N_MACHINE_RATES ? machine_rates[i].key : others[i - N_MACHINE_RATES].key;
}

/* ---- reading ---- */

/* strtod also accepts hex and infinities: allow only digits, signs, point and exponent. */
static int number_parse(const char *text, double *x)
{
    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return -1;
    char *end;
    errno = 0;
    *x = strtod(text, &end);
    return *end || end == text || errno == ERANGE ? -1 : 0;
}

/* A key with its unit and range. */
struct field {
    const char *key, *unit, *path;
    double max;
    int line, whole; // 1: no fractions
};

static enum err number_check(const struct field *f, double x)
{
    const int in_range = x >= 0 && x <= f->max; // outside it the cast is undefined
    if (!in_range || (f->whole && x != (double)(int64_t)x))
        return fail(ERR_INPUT, "%s: line %d: %s: %g is out of range (0..%g %s)", f->path, f->line,
                    f->key, x, f->max, f->unit);
    return OK;
}

/* x[n]: the value of a rate, then its spread, then the number of samples. */
static enum err rate_set(struct rate *r, const struct field *f, const double *x, int n)
{
    const struct field samples = {f->key, "samples", f->path, SAMPLES_MAX, f->line, 1};
    TRY(number_check(f, x[0]));
    if (n > 1)
        TRY(number_check(f, x[1]));
    if (n > 2)
        TRY(number_check(&samples, x[2]));
    *r = (struct rate){x[0], n > 1 ? x[1] : 0, n > 2 ? (int)x[2] : 0};
    return OK;
}

static enum err value_set(struct machine *m, int i, const double *x, int n, struct field f)
{
    if (i < N_MACHINE_RATES) {
        f.max = machine_rates[i].max;
        f.unit = machine_rates[i].unit;
        return rate_set(&m->rates[i], &f, x, n);
    }
    i -= N_MACHINE_RATES;
    void *at = (char *)m + others[i].offset;
    f.max = others[i].max;
    f.unit = others[i].unit;
    f.whole = others[i].is_count;
    if (n > 1)
        return fail(ERR_INPUT, "%s: line %d: %s: takes one value", f.path, f.line, f.key);
    TRY(number_check(&f, x[0]));
    if (others[i].is_count)
        *(int *)at = (int)x[0];
    else
        *(int64_t *)at = (int64_t)x[0];
    return OK;
}

/* Up to three numbers. */
static enum err values_parse(struct machine *m, int i, char *text, const struct field *f)
{
    double x[3];
    int n = 0;
    char *rest = text, *word;
    do {
        word = rest;
        rest += strcspn(rest, " \t");
        if (*rest)
            *rest++ = 0;
        rest += strspn(rest, " \t");
        if (n == 3 || number_parse(word, &x[n]) != 0)
            return fail(ERR_INPUT, "%s: line %d: %s: '%.40s' is %s", f->path, f->line, f->key, word,
                        n == 3 ? "a fourth value, a rate has at most 3" : "not a number");
        n++;
    } while (*rest);
    return value_set(m, i, x, n, *f);
}

/* One line without its newline. *seen: a bit per key. */
static enum err line_parse(struct machine *m, const char *line, int64_t n, const char *path,
                           int number, uint64_t *seen)
{
    char text[256];
    if (memchr(line, 0, (size_t)n))
        return fail(ERR_INPUT, "%s: line %d: holds a zero byte (not a machine file)", path, number);
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
        return fail(ERR_INPUT, "%s: line %d: longer than 255 bytes", path, number);
    memcpy(text, line, (size_t)n);
    text[n] = 0;
    char *eq = strchr(text, '=');
    if (!eq)
        return fail(ERR_INPUT, "%s: line %d: expected key = value", path, number);
    char *value = eq + 1 + strspn(eq + 1, " \t");
    *eq = 0;
    text[strcspn(text, " \t")] = 0;
    for (int i = 0; i < N_KEYS; i++) {
        if (strcmp(text, key_at(i)) != 0)
            continue;
        if (*seen & (uint64_t)1 << i)
            return fail(ERR_INPUT, "%s: line %d: duplicate key '%s'", path, number, text);
        *seen |= (uint64_t)1 << i;
        return values_parse(m, i, value,
                            &(struct field){.key = text, .path = path, .line = number});
    }
    return fail(ERR_INPUT, "%s: line %d: unknown key '%.60s'", path, number, text);
}

enum err machine_text_parse(struct machine *m, const char *text, int64_t n_bytes, const char *path)
{
    struct machine read = {0};
    uint64_t seen = 0;
    int number = 1;
    for (int64_t at = 0; at < n_bytes; number++) {
        const char *newline = memchr(text + at, '\n', (size_t)(n_bytes - at));
        int64_t end = newline ? newline - text : n_bytes;
        TRY(line_parse(&read, text + at, end - at, path, number, &seen));
        at = end + 1;
    }
    if (!seen)
        return fail(ERR_INPUT, "%s: not a machine file: it has no key = value line", path);
    *m = read;
    return OK;
}

enum err machine_text_load(const char *path, char *text, int64_t *n_bytes)
{
    const char *why;
    FILE *f = regular_open(path, &why);
    if (!f)
        return fail(ERR_INPUT, "%s: machine file: %s", path, why);
    char extra;
    *n_bytes = (int64_t)fread(text, 1, MACHINE_FILE_BYTES_MAX, f);
    int more = *n_bytes == MACHINE_FILE_BYTES_MAX && fread(&extra, 1, 1, f) == 1;
    int bad = ferror(f);
    fclose(f);
    if (bad)
        return fail(ERR_INPUT, "%s: machine file: cannot be read", path);
    if (more)
        return fail(ERR_INPUT, "%s: machine file: larger than %d KiB", path,
                    MACHINE_FILE_BYTES_MAX >> 10);
    return OK;
}

enum err machine_device_check(const struct machine *m, const char *path)
{
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part == MACHINE_DEVICE && machine_rates[i].needed &&
            m->rates[i].value <= 0)
            return fail(ERR_INPUT, "%s: %s: missing or 0, a plan for a device needs it (%s)", path,
                        machine_rates[i].key, machine_rates[i].unit);
    return OK;
}

/* Checks every rate that a plan divides by, except a device's. */
static enum err rates_check(const struct machine *m, const char *path)
{
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (machine_rates[i].part != MACHINE_DEVICE && machine_rates[i].needed &&
            m->rates[i].value <= 0)
            return fail(ERR_INPUT, "%s: %s: missing or 0 (%s)", path, machine_rates[i].key,
                        machine_rates[i].unit);
    if (m->threads <= 0)
        return fail(ERR_INPUT, "%s: threads: missing or 0 (compute threads)", path);
    return OK;
}

enum err machine_file_read(struct machine *m, const char *path)
{
    char *text = malloc(MACHINE_FILE_BYTES_MAX);
    if (!text)
        return fail(ERR_FIT, "no memory for the machine file");
    int64_t n_bytes;
    enum err err = machine_text_load(path, text, &n_bytes);
    if (err == OK)
        err = machine_text_parse(m, text, n_bytes, path);
    free(text);
    if (err != OK)
        return err;
    machine_complete(m);
    return rates_check(m, path);
}

/* ---- writing ---- */

/* `value`, `value spread`, or `value spread n`, as far as it is known. */
static void rate_text(const struct rate *r, char *text, size_t cap)
{
    int n = snprintf(text, cap, "%.6g", r->value);
    if (r->spread > 0 || r->n > 0)
        n += snprintf(text + n, cap - (size_t)n, " %.3g", r->spread);
    if (r->n > 0)
        snprintf(text + n, cap - (size_t)n, " %d", r->n);
}

int machine_text_format(const struct machine *m, const char *comment, char *text, int cap)
{
    int n = snprintf(text, (size_t)cap, "# sluice machine file: what this machine can do\n");
    for (const char *line = comment; line && *line && n < cap;) {
        int length = (int)strcspn(line, "\n");
        n += snprintf(text + n, (size_t)(cap - n), "# %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    for (int i = 0; i < N_MACHINE_RATES && n < cap; i++) {
        char value[80];
        if (m->rates[i].value <= 0)
            continue;
        rate_text(&m->rates[i], value, sizeof value);
        n += snprintf(text + n, (size_t)(cap - n), "%s = %s # %s\n", machine_rates[i].key, value,
                      machine_rates[i].unit);
    }
    for (int i = 0; i < N_OTHERS && n < cap; i++) {
        const void *at = (const char *)m + others[i].offset;
        int64_t value = others[i].is_count ? *(const int *)at : *(const int64_t *)at;
        if (value > 0)
            n += snprintf(text + n, (size_t)(cap - n), "%s = %lld # %s\n", others[i].key,
                          (long long)value, others[i].unit);
    }
    return n < cap ? n : -1;
}

enum err machine_text_save(const char *path, const char *text, int64_t n_bytes)
{
    struct whole_file file;
    TRY(whole_open(&file, path));
    fwrite(text, 1, (size_t)n_bytes, file.f);
    return whole_end(&file);
}

enum err machine_file_write(const struct machine *m, const char *path, const char *comment)
{
    char text[MACHINE_TEXT_BYTES];
    int n = machine_text_format(m, comment, text, sizeof text);
    if (n < 0)
        return fail(ERR_USAGE, "%s: machine file: the comment is too long", path);
    return machine_text_save(path, text, n);
}
