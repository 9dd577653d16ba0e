/* engine/job/errors.c - see errors.h. */
#include "engine/job/errors.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX ((int64_t)1 << 20) // of an error row: message and custom_id are shorter
#define MARK           "..."              // replaces values that differ

/* ---- one message for many rows ---- */

/* Length of the row's own value at p; 0: there is none. */
static size_t own_value(const char *text, const char *p)
{
    if (p > text && (isalnum((unsigned char)p[-1]) || p[-1] == '_'))
        return 0; // the 2 of "q2", the quote of "model's"
    if (*p != '\'')
        return strspn(p, "0123456789");
    const char *end = strchr(p + 1, '\'');
    return end ? (size_t)(end - p) + 1 : strlen(p);
}

static int append(char *to, size_t cap, size_t *n, const char *p, size_t n_p)
{
    if (*n + n_p >= cap)
        return 0;
    memcpy(to + *n, p, n_p);
    *n += n_p;
    to[*n] = 0;
    return 1;
}

/* Widens `pattern` to match `message`, too. 0: the two differ in more than values. */
static int fold(char *pattern, size_t cap, const char *message)
{
    char folded[sizeof(struct row_error)] = "";
    const char *p = pattern, *m = message;
    size_t n = 0, n_mark = strlen(MARK);
    while (*p && *m) {
        size_t n_m = own_value(message, m);
        size_t n_p = strncmp(p, MARK, n_mark) == 0 ? n_mark : own_value(pattern, p);
        int same = n_m == n_p && strncmp(p, m, n_m) == 0;
        if (n_m == 0 || n_p == 0) {
            if (*p != *m)
                return 0;
            n_p = n_m = 1;
            same = 1;
        }
        if (!append(folded, cap, &n, same ? m : MARK, same ? n_m : n_mark))
            return 0;
        p += n_p;
        m += n_m;
    }
    if (*p || *m)
        return 0;
    memcpy(pattern, folded, n + 1);
    return 1;
}

/* ---- groups ---- */

static void add_code(struct job_errors *e, const char *code, int64_t n)
{
    int i = 0;
    while (i < e->n_codes && strcmp(e->codes[i].code, code) != 0)
        i++;
    if (i == JOB_ERROR_CODES)
        return;
    if (i == e->n_codes) {
        snprintf(e->codes[i].code, sizeof e->codes[i].code, "%s", code);
        e->codes[i].n = 0;
        e->n_codes++;
    }
    e->codes[i].n += n;
}

static void add_line(struct job_error_kind *k, int64_t line)
{
    int at = k->n_lines;
    while (at > 0 && k->lines[at - 1] > line)
        at--;
    if (line <= 0 || at == JOB_ERROR_LINES)
        return;
    k->n_lines += k->n_lines < JOB_ERROR_LINES;
    memmove(k->lines + at + 1, k->lines + at, (size_t)(k->n_lines - 1 - at) * sizeof k->lines[0]);
    k->lines[at] = line;
}

/* The group of this error, made if needed; NULL: no room. */
static struct job_error_kind *kind_of(struct job_errors *e, const struct row_error *error)
{
    for (int i = 0; i < e->n_kinds; i++) {
        struct row_error *known = &e->kinds[i].error;
        if (strcmp(known->code, error->code) == 0 && strcmp(known->field, error->field) == 0 &&
            fold(known->message, sizeof known->message, error->message))
            return &e->kinds[i];
    }
    if (e->n_kinds == JOB_ERROR_KINDS)
        return NULL;
    struct job_error_kind *k = &e->kinds[e->n_kinds++];
    *k = (struct job_error_kind){.error = *error};
    return k;
}

static void add_rows(struct job_errors *e, const struct row_error *error, int64_t n,
                     const int64_t *lines, int n_lines)
{
    struct job_error_kind *k = kind_of(e, error);
    if (!k)
        return;
    k->n += n;
    for (int i = 0; i < n_lines; i++)
        add_line(k, lines[i]);
}

void errors_add(struct job_errors *e, const struct row_error *error, int64_t line)
{
    add_code(e, error->code, 1);
    add_rows(e, error, 1, &line, 1);
}

int64_t errors_ungrouped(const struct job_errors *e)
{
    int64_t n = 0;
    for (int i = 0; i < e->n_codes; i++)
        n += e->codes[i].n;
    for (int i = 0; i < e->n_kinds; i++)
        n -= e->kinds[i].n;
    return max_i64(n, 0);
}

/* ---- in files ---- */

static void copy_word(char *to, size_t cap, const json_t *from, const char *key)
{
    const char *text = json_string_value(json_object_get(from, key));
    snprintf(to, cap, "%s", text ? text : "");
}

static void read_error(struct row_error *error, const json_t *from)
{
    copy_word(error->code, sizeof error->code, from, "code");
    copy_word(error->message, sizeof error->message, from, "message");
    copy_word(error->field, sizeof error->field, from, "param");
}

enum err errors_add_row(struct job_errors *e, int fd, int64_t offset, int64_t n)
{
    if (n <= 0 || n > LINE_BYTES_MAX)
        return OK;
    char *text = malloc((size_t)n);
    if (!text)
        return fail(ERR_FIT, "no memory for error rows");
    json_error_t why;
    json_t *root = pread(fd, text, (size_t)n, (off_t)offset) == (ssize_t)n
                       ? json_loadb(text, (size_t)n, JSON_ALLOW_NUL, &why)
                       : NULL;
    const json_t *from = json_object_get(root, "error");
    struct row_error error;
    read_error(&error, from);
    if (error.code[0])
        errors_add(e, &error, json_integer_value(json_object_get(from, "line")));
    json_decref(root);
    free(text);
    return OK;
}

/* Truncated text may end within a character: its last bytes are dropped. */
static json_t *text_json(const char *text)
{
    size_t n = strlen(text), cut = 0;
    json_t *string = json_string(text);
    while (!string && cut < 3 && cut < n)
        string = json_stringn(text, n - ++cut);
    return string ? string : json_string("");
}

void errors_put(const struct job_errors *e, json_t *to)
{
    json_t *codes = json_object(), *kinds = json_array();
    for (int i = 0; i < e->n_codes; i++)
        json_object_set_new(codes, e->codes[i].code, json_integer(e->codes[i].n));
    for (int i = 0; i < e->n_kinds; i++) {
        const struct job_error_kind *k = &e->kinds[i];
        json_t *kind = json_object(), *lines = json_array();
        json_object_set_new(kind, "code", json_string(k->error.code));
        json_object_set_new(kind, "message", text_json(k->error.message));
        if (k->error.field[0])
            json_object_set_new(kind, "param", json_string(k->error.field));
        json_object_set_new(kind, "rows", json_integer(k->n));
        for (int at = 0; at < k->n_lines; at++)
            json_array_append_new(lines, json_integer(k->lines[at]));
        json_object_set_new(kind, "lines", lines);
        json_array_append_new(kinds, kind);
    }
    json_object_set_new(to, "errors", codes);
    json_object_set_new(to, "error_kinds", kinds);
}

void errors_take(struct job_errors *e, const json_t *from)
{
    const char *code;
    const json_t *kind;
    json_t *count;
    size_t i;
    json_object_foreach(json_object_get(from, "errors"), code, count)
        add_code(e, code, json_integer_value(count));
    json_array_foreach(json_object_get(from, "error_kinds"), i, kind)
    {
        const json_t *list = json_object_get(kind, "lines");
        int64_t lines[JOB_ERROR_LINES];
        int n = (int)min_i64((int64_t)json_array_size(list), JOB_ERROR_LINES);
        struct row_error error;
        read_error(&error, kind);
        for (int at = 0; at < n; at++)
            lines[at] = json_integer_value(json_array_get(list, (size_t)at));
        add_rows(e, &error, json_integer_value(json_object_get(kind, "rows")), lines, n);
    }
}
