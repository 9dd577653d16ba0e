/* engine/job/ignore.h - --ignore-fields: rows are answered without the named fields, which sluice
 * lacks.
 *
 * Owns: the list of names, and what becomes of a row with such a field. Refuses: which fields
 * sluice lacks (THE table in request_fields.c). */
#ifndef ENGINE_JOB_IGNORE_H
#define ENGINE_JOB_IGNORE_H

#include "engine/job/errors.h"

#define IGNORE_MAX        32 // names; a row has one bit for each in a uint32_t
#define IGNORE_NAME_BYTES 64 // of a name, with its NUL

struct ignore_list {
    int n;
    char names[IGNORE_MAX][IGNORE_NAME_BYTES]; // sorted, each once
};

/* Parses "a,b" (NULL: an empty list). ERR_USAGE: a misspelled name, a field that sluice honours,
 * too many names or bytes. */
enum err ignore_parse(struct ignore_list *list, const char *text);
/* The list as text: sorted, so that the order given by the user does not matter. */
void ignore_text(const struct ignore_list *list, char *text, size_t cap);
/* The names of a that b lacks. */
struct ignore_list ignore_without(const struct ignore_list *a, const struct ignore_list *b);
/* The names of both, as far as there is room. */
struct ignore_list ignore_union(const struct ignore_list *a, const struct ignore_list *b);

/* A row asks for `field`, which sluice lacks. OK: the list names the field, and the field's bit of
 * *ignored is set. Else ERR_ROW: *error has the field and the message of fmt. list NULL: an empty
 * list. */
enum err row_lacks(const struct ignore_list *list, uint32_t *ignored, struct row_error *error,
                   const char *field, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
