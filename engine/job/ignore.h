/* engine/job/ignore.h - --ignore-fields: rows that ask for what sluice lacks are answered as if
 * they had not asked.
 *
 * Owns: the list of names, and what becomes of a row with such a field. Refuses: which fields
 * sluice lacks; THE table in request_fields.c says so. */
#ifndef ENGINE_JOB_IGNORE_H
#define ENGINE_JOB_IGNORE_H

#include "engine/job/errors.h"

#define IGNORE_MAX        32 // names; a row's bits of them are a uint32_t
#define IGNORE_NAME_BYTES 64 // of a name, with its NUL

struct ignore_list {
    int n;
    char names[IGNORE_MAX][IGNORE_NAME_BYTES]; // sorted, each once
};

/* The list that `text` names ("a,b"; NULL: none). ERR_USAGE: a name that is misspelled, that no row
 * can do without, or that sluice honours. */
enum err ignore_parse(struct ignore_list *list, const char *text);
/* The same list as text, one way for all orders in which it may be given. */
void ignore_text(const struct ignore_list *list, char *text, size_t cap);
/* Names of a that b lacks. */
struct ignore_list ignore_without(const struct ignore_list *a, const struct ignore_list *b);
/* All names of both that there is room for. */
struct ignore_list ignore_union(const struct ignore_list *a, const struct ignore_list *b);

/* A row asks for `field`, which sluice lacks. OK: the list names the field, and the field's bit of
 * *ignored is set. Else ERR_ROW: *error has the field and the message of fmt. list NULL: an empty
 * list. */
enum err row_lacks(const struct ignore_list *list, uint32_t *ignored, struct row_error *error,
                   const char *field, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
