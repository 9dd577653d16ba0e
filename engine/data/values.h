/* engine/data/values.h - the scalars and lists of one JSON file, by dotted key, with typed getters.
 *
 * Owns: a flat copy of the tree. Refuses: duplicate keys in one object, the contents of containers
 * inside a list (they are checked and skipped).
 * null counts as absent: that is how these files write "not set". Each getter names the file and
 * the key when the type or range is wrong: ERR_INPUT "DIR/config.json: hidden_size: expected
 * integer, is string". *found says whether the key exists; absent is OK and leaves the outputs
 * alone. */
#ifndef ENGINE_DATA_VALUES_H
#define ENGINE_DATA_VALUES_H

#include "kernels/base/base.h"

#define VALUES_ITEMS_MAX 65536  // of one list
#define VALUES_MAX       200000 // of the file, list items included

struct values {
    char *file;          // owned; for messages
    struct value *nodes; // owned; the root object is node 0, a list's items follow it
    int64_t n_nodes, nodes_cap;
    char *text; // owned: keys and strings, each with a NUL
    int64_t n_text, text_cap;
};

/* Reads n_bytes of JSON whose top is an object. The buffer may be freed afterwards. On error
 * nothing is left to close. */
enum err values_read(struct values *v, const char *buf, int64_t n_bytes, const char *file);
/* Accepts a zeroed struct. */
void values_close(struct values *v);

enum err values_int(const struct values *v, const char *key, int64_t min, int64_t max, int64_t *out,
                    int *found);
/* Integers are fine too. */
enum err values_float(const struct values *v, const char *key, double *out, int *found);
enum err values_bool(const struct values *v, const char *key, int *out, int *found);
/* The string lives as long as v, followed by a NUL; a string with a NUL inside is refused. */
enum err values_str(const struct values *v, const char *key, const char **out, int64_t *n_bytes,
                    int *found);

/* A list of integers, each in [min, max], into out[capacity]; a single integer is a list of one.
 * *n: how many. More than `capacity` is ERR_INPUT; an empty list is found with *n = 0. */
enum err values_int_list(const struct values *v, const char *key, int64_t min, int64_t max,
                         int64_t *out, int64_t capacity, int64_t *n, int *found);
/* Likewise of numbers. */
enum err values_float_list(const struct values *v, const char *key, double *out, int64_t capacity,
                           int64_t *n, int *found);
/* Likewise of strings. */
enum err values_str_list(const struct values *v, const char *key, const char **out,
                         int64_t capacity, int64_t *n, int *found);
/* 1: the key is there, and null. */
int values_null(const struct values *v, const char *key);
/* The value at key as a number: a bool is 0 or 1, any other type NaN. */
void values_weigh(const struct values *v, const char *key, double *out, int *found);
/* The size of the list or object at key. */
enum err values_count(const struct values *v, const char *key, int64_t *n, int *found);

#endif
