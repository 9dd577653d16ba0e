/* engine/data/values.c - see values.h. Owns the tree and the messages about wrong types and ranges.
 *
 * A node has its parent, its key, and a scalar or the number of children. Lookups scan: a
 * configuration has a few hundred nodes and is read once. Note: keys are stored whole, so a dotted
 * path never finds a key that has a dot. */
#include "engine/data/values.h"

#include "engine/data/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_DEPTH_MAX 64

struct value {
    enum json_kind kind; // a BEGIN for containers
    int big;
    int64_t parent;
    int64_t n_children;
    int64_t key_at, n_key; // in text; n_key -1: a list item
    int64_t i64;
    double f64;
    int64_t str_at, n_str;
};

void values_close(struct values *v)
{
    free(v->file);
    free(v->nodes);
    free(v->text);
    *v = (struct values){0};
}

/* ---- reading ---- */

static enum err no_memory(const struct values *v)
{
    return fail(ERR_FIT, "%s: no memory for its values", v->file);
}

static enum err text_keep(struct values *v, const char *str, int64_t n_str, int64_t *at)
{
    if (v->text_cap - v->n_text < n_str + 1) {
        int64_t cap = max_i64(4096, 2 * (v->n_text + n_str + 1));
        char *grown = realloc(v->text, (size_t)cap);
        if (!grown)
            return no_memory(v);
        v->text = grown;
        v->text_cap = cap;
    }
    *at = v->n_text;
    memcpy(v->text + v->n_text, str, (size_t)n_str);
    v->text[v->n_text + n_str] = 0;
    v->n_text += n_str + 1;
    return OK;
}

static const char *key_of(const struct values *v, const struct value *node)
{
    return node->n_key >= 0 ? v->text + node->key_at : "";
}

/* Appends an empty node under `parent`. */
static enum err node_add(struct values *v, struct json *j, int64_t parent)
{
    if (v->n_nodes == VALUES_MAX)
        return json_fail(j, "more than %d values", VALUES_MAX);
    if (v->n_nodes == v->nodes_cap) {
        int64_t cap = max_i64(64, 2 * v->nodes_cap);
        struct value *grown = realloc(v->nodes, (size_t)cap * sizeof *grown);
        if (!grown)
            return no_memory(v);
        v->nodes = grown;
        v->nodes_cap = cap;
    }
    v->nodes[v->n_nodes++] = (struct value){.kind = JSON_NIL, .parent = parent, .n_key = -1};
    if (parent >= 0)
        v->nodes[parent].n_children++;
    return OK;
}

/* Stores j's current token, a scalar or a BEGIN, in the last node. */
static enum err node_fill(struct values *v, const struct json *j, enum json_kind kind)
{
    struct value *node = &v->nodes[v->n_nodes - 1];
    node->kind = kind;
    node->big = j->big;
    node->i64 = j->i64;
    node->f64 = j->f64;
    if (kind != JSON_STR)
        return OK;
    node->n_str = j->n_str;
    return text_keep(v, j->str, j->n_str, &node->str_at);
}

/* The items of the list that was just begun in the last node. */
static enum err list_read(struct values *v, struct json *j)
{
    int64_t list = v->n_nodes - 1;
    for (;;) {
        enum json_kind kind = json_next(j);
        if (kind == JSON_ERROR)
            return j->err;
        if (kind == JSON_ARRAY_END)
            return OK;
        if (v->nodes[list].n_children == VALUES_ITEMS_MAX)
            return json_fail(j, "%.200s: more than %d entries", key_of(v, &v->nodes[list]),
                             VALUES_ITEMS_MAX);
        TRY(node_add(v, j, list));
        TRY(node_fill(v, j, kind));
        TRY(json_skip(j));
    }
}

/* One member of object `at`; when it is an object itself, *at moves into it. */
static enum err member_read(struct values *v, struct json *j, struct json_keys *keys, int64_t *at)
{
    enum json_keys_answer answer = json_keys_put(keys, *at, j->str, j->n_str);
    if (answer == JSON_KEYS_NO_MEMORY)
        return no_memory(v);
    if (answer == JSON_KEYS_SEEN)
        return json_fail(j, "duplicate key \"%.200s\"", j->str);
    TRY(node_add(v, j, *at));
    struct value *node = &v->nodes[v->n_nodes - 1];
    node->n_key = j->n_str;
    TRY(text_keep(v, j->str, j->n_str, &node->key_at));
    enum json_kind kind = json_next(j);
    if (kind == JSON_ERROR)
        return j->err;
    TRY(node_fill(v, j, kind));
    if (kind == JSON_OBJECT_BEGIN)
        *at = v->n_nodes - 1;
    return kind == JSON_ARRAY_BEGIN ? list_read(v, j) : OK;
}

static enum err tree_read(struct values *v, struct json *j, struct json_keys *keys)
{
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    TRY(node_add(v, j, -1));
    TRY(node_fill(v, j, JSON_OBJECT_BEGIN));
    for (int64_t at = 0; at >= 0;) {
        enum json_kind kind = json_next(j);
        if (kind == JSON_KEY)
            TRY(member_read(v, j, keys, &at));
        else if (kind == JSON_OBJECT_END)
            at = v->nodes[at].parent;
        else
            return j->err;
    }
    return json_expect(j, JSON_END);
}

enum err values_read(struct values *v, const char *buf, int64_t n_bytes, const char *file)
{
    *v = (struct values){.file = strdup(file)};
    if (!v->file)
        return fail(ERR_FIT, "no memory for a path");
    enum err e;
    if (n_bytes == 0) {
        e = fail(ERR_INPUT, "%s: empty file", v->file);
    } else {
        struct json j;
        struct json_keys keys;
        json_init(&j, buf, n_bytes, v->file, VALUES_DEPTH_MAX);
        j.nonfinite = 1; // "time_step_limit": [0.0, Infinity]
        json_keys_init(&keys);
        e = tree_read(v, &j, &keys);
        json_keys_close(&keys);
        json_close(&j);
    }
    if (e != OK)
        values_close(v);
    return e;
}

/* ---- looking up ---- */

static int64_t child_find(const struct values *v, int64_t parent, const char *key, int64_t n_key)
{
    for (int64_t i = parent + 1; i < v->n_nodes; i++) { // children come after their parent
        const struct value *node = &v->nodes[i];
        if (node->parent == parent && node->n_key == n_key &&
            memcmp(v->text + node->key_at, key, (size_t)n_key) == 0)
            return i;
    }
    return -1;
}

/* The node at a dotted key; NULL when it is absent. */
static const struct value *value_at(const struct values *v, const char *key)
{
    int64_t at = 0;
    if (v->n_nodes == 0)
        return NULL;
    for (const char *part = key;; part++) {
        int64_t n = (int64_t)strcspn(part, ".");
        at = child_find(v, at, part, n);
        if (at < 0)
            return NULL;
        part += n;
        if (*part == 0)
            return &v->nodes[at];
    }
}

/* The same; also NULL if the value is null. */
static const struct value *value_find(const struct values *v, const char *key, int *found)
{
    const struct value *node = value_at(v, key);
    *found = node && node->kind != JSON_NIL;
    return *found ? node : NULL;
}

int values_null(const struct values *v, const char *key)
{
    const struct value *node = value_at(v, key);
    return node && node->kind == JSON_NIL;
}

static enum err type_fail(const struct values *v, const char *key, const char *expected,
                          const struct value *node)
{
    return fail(ERR_INPUT, "%.512s: %s: expected %s, is %s", v->file, key, expected,
                json_kind_name(node->kind));
}

static enum err int_of(const struct values *v, const char *key, const struct value *node,
                       int64_t min, int64_t max, int64_t *out)
{
    if (node->big)
        return fail(ERR_INPUT, "%.512s: %s: %.17g out of range [%lld, %lld]", v->file, key,
                    node->f64, (long long)min, (long long)max);
    if (node->kind != JSON_INT)
        return type_fail(v, key, "integer", node);
    if (node->i64 < min || node->i64 > max)
        return fail(ERR_INPUT, "%.512s: %s: %lld out of range [%lld, %lld]", v->file, key,
                    (long long)node->i64, (long long)min, (long long)max);
    *out = node->i64;
    return OK;
}

static enum err str_of(const struct values *v, const char *key, const struct value *node,
                       const char **out)
{
    if (node->kind != JSON_STR)
        return type_fail(v, key, "string", node);
    *out = v->text + node->str_at;
    if ((int64_t)strlen(*out) != node->n_str)
        return fail(ERR_INPUT, "%.512s: %s: string contains a NUL byte", v->file, key);
    return OK;
}

enum err values_int(const struct values *v, const char *key, int64_t min, int64_t max, int64_t *out,
                    int *found)
{
    const struct value *node = value_find(v, key, found);
    return node ? int_of(v, key, node, min, max, out) : OK;
}

static enum err float_of(const struct values *v, const char *key, const struct value *node,
                         double *out)
{
    if (node->kind != JSON_INT && node->kind != JSON_FLOAT)
        return type_fail(v, key, "number", node);
    *out = node->f64;
    return OK;
}

enum err values_float(const struct values *v, const char *key, double *out, int *found)
{
    const struct value *node = value_find(v, key, found);
    return node ? float_of(v, key, node, out) : OK;
}

void values_weigh(const struct values *v, const char *key, double *out, int *found)
{
    const struct value *node = value_find(v, key, found);
    if (!node)
        return;
    int number = node->kind == JSON_INT || node->kind == JSON_FLOAT;
    *out = number ? node->f64 : node->kind == JSON_BOOL ? (double)node->i64 : NAN;
}

enum err values_bool(const struct values *v, const char *key, int *out, int *found)
{
    const struct value *node = value_find(v, key, found);
    if (!node)
        return OK;
    if (node->kind != JSON_BOOL)
        return type_fail(v, key, "true or false", node);
    *out = (int)node->i64;
    return OK;
}

enum err values_str(const struct values *v, const char *key, const char **out, int64_t *n_bytes,
                    int *found)
{
    const struct value *node = value_find(v, key, found);
    if (!node)
        return OK;
    TRY(str_of(v, key, node, out));
    *n_bytes = node->n_str;
    return OK;
}

/* The items of the list at key, or the scalar itself: *n <= capacity of them. NULL: absent. */
static enum err items_find(const struct values *v, const char *key, int64_t capacity,
                           const struct value **items, int64_t *n, int *found)
{
    const struct value *node = *items = value_find(v, key, found);
    if (!node)
        return OK;
    int is_list = node->kind == JSON_ARRAY_BEGIN;
    *items = node + is_list;
    *n = is_list ? node->n_children : 1;
    if (*n <= capacity)
        return OK;
    return fail(ERR_INPUT, "%.512s: %s: %lld entries, at most %lld", v->file, key, (long long)*n,
                (long long)capacity);
}

enum err values_int_list(const struct values *v, const char *key, int64_t min, int64_t max,
                         int64_t *out, int64_t capacity, int64_t *n, int *found)
{
    const struct value *items;
    TRY(items_find(v, key, capacity, &items, n, found));
    for (int64_t i = 0; items && i < *n; i++)
        TRY(int_of(v, key, &items[i], min, max, &out[i]));
    return OK;
}

enum err values_float_list(const struct values *v, const char *key, double *out, int64_t capacity,
                           int64_t *n, int *found)
{
    const struct value *items;
    TRY(items_find(v, key, capacity, &items, n, found));
    for (int64_t i = 0; items && i < *n; i++)
        TRY(float_of(v, key, &items[i], &out[i]));
    return OK;
}

enum err values_str_list(const struct values *v, const char *key, const char **out,
                         int64_t capacity, int64_t *n, int *found)
{
    const struct value *items;
    TRY(items_find(v, key, capacity, &items, n, found));
    for (int64_t i = 0; items && i < *n; i++)
        TRY(str_of(v, key, &items[i], &out[i]));
    return OK;
}

enum err values_count(const struct values *v, const char *key, int64_t *n, int *found)
{
    const struct value *node = value_find(v, key, found);
    if (!node)
        return OK;
    if (node->kind != JSON_ARRAY_BEGIN && node->kind != JSON_OBJECT_BEGIN)
        return type_fail(v, key, "array or object", node);
    *n = node->n_children;
    return OK;
}
