/* engine/job/ignore.c - see ignore.h. */
#include "engine/job/ignore.h"

#include <stdio.h>
#include <string.h>

#include "engine/job/request_fields.h"

/* Index of a name, or the index at which it would be inserted. */
static int place_of(const struct ignore_list *list, const char *name, int *found)
{
    int at = 0;
    while (at < list->n && strcmp(list->names[at], name) < 0)
        at++;
    *found = at < list->n && strcmp(list->names[at], name) == 0;
    return at;
}

/* 0: there is no room. */
static int add(struct ignore_list *list, const char *name)
{
    int found, at = place_of(list, name, &found);
    if (found)
        return 1;
    if (list->n == IGNORE_MAX || strlen(name) >= IGNORE_NAME_BYTES)
        return 0;
    memmove(list->names[at + 1], list->names[at], (size_t)(list->n - at) * sizeof list->names[0]);
    snprintf(list->names[at], sizeof list->names[at], "%s", name);
    list->n++;
    return 1;
}

/* May the list have this name? A name close to a field that sluice lacks is a typing error. A name
 * close to a field that sluice honours is accepted: the rows may have that misspelling. */
static enum err check_name(const char *name)
{
    int known, honoured;
    const char *near = field_near(name, &known, &honoured);
    if (known && honoured)
        return fail(ERR_USAGE,
                    "--ignore-fields: sluice honours \"%s\" (name only fields that it lacks, such "
                    "as tools or response_format)",
                    name);
    if (near && !honoured)
        return fail(ERR_USAGE, "--ignore-fields: unknown field \"%s\" (did you mean %s?)", name,
                    near);
    return OK;
}

enum err ignore_parse(struct ignore_list *list, const char *text)
{
    *list = (struct ignore_list){0};
    for (const char *at = text ? text : ""; *at; at += *at == ',') {
        char name[IGNORE_NAME_BYTES];
        size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof name)
            return fail(
                ERR_USAGE,
                "--ignore-fields: '%.200s': a name has 1 to %d bytes (give names and commas, "
                "e.g. tools,response_format)",
                text, IGNORE_NAME_BYTES - 1);
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        TRY(check_name(name));
        if (!add(list, name))
            return fail(ERR_USAGE, "--ignore-fields: at most %d names", IGNORE_MAX);
        at += n;
    }
    return OK;
}

void ignore_text(const struct ignore_list *list, char *text, size_t cap)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < list->n && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, "%s%s", i > 0 ? "," : "", list->names[i]);
}

struct ignore_list ignore_without(const struct ignore_list *a, const struct ignore_list *b)
{
    struct ignore_list rest = {0};
    for (int i = 0, found; i < a->n; i++) {
        place_of(b, a->names[i], &found);
        if (!found)
            add(&rest, a->names[i]);
    }
    return rest;
}

struct ignore_list ignore_union(const struct ignore_list *a, const struct ignore_list *b)
{
    struct ignore_list all = *a;
    for (int i = 0; i < b->n; i++)
        add(&all, b->names[i]);
    return all;
}

enum err row_lacks(const struct ignore_list *list, uint32_t *ignored, struct row_error *error,
                   const char *field, const char *fmt, ...)
{
    va_list args;
    int found = 0, at = list ? place_of(list, field, &found) : 0;
    if (found) {
        *ignored |= (uint32_t)1 << at;
        return OK;
    }
    *error = (struct row_error){.code = "unsupported_field"};
    if (strlen(field) < sizeof error->field && !strpbrk(field, ", \t\n\"'"))
        snprintf(error->field, sizeof error->field, "%s", field);
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
    return ERR_ROW;
}
