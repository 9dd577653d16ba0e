/* engine/text/template_value.c - memory, characters, values and their comparison: see
 * template_value.h.
 *
 * Refuses: integers beyond 64 bits. Note: a dict is an array searched from its start, paid in
 * steps: a large one is slow but bounded. Lengths and indices count code points, never bytes. */
#include "engine/text/template_value.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/template.h"

enum err tpl_fail(const struct mem *m, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof what) {
        for (n = sizeof what - 1; n > 0 && ((unsigned char)what[n - 1] & 0xc0) == 0x80; n--)
            ;
        what[max_i64(n - 1, 0)] = 0; // cuts at a character: the text becomes JSON
    }
    return fail(ERR_ROW, "%s: chat template: line %d: %s", m->file, m->line, what);
}

enum err tpl_fail_undefined(const struct mem *m, struct val v)
{
    return tpl_fail(m, "'%.*s' is %s", (int)v.n, v.u.s,
                    v.sub == UNDEFINED_UNSAFE ? "refused: it would change its object"
                                              : "undefined");
}

enum err tpl_pay(struct mem *m, int64_t n)
{
    m->steps_left -= n;
    return m->steps_left >= 0
               ? OK
               : tpl_fail(m, "more than %d steps (a loop or a text that is too long)",
                          TEMPLATE_STEPS_MAX);
}

enum err tpl_enter(struct mem *m)
{
    if (m->depth >= TEMPLATE_DEPTH_MAX)
        return tpl_fail(m, "nested too deeply (limit %d)", TEMPLATE_DEPTH_MAX);
    m->depth++;
    return OK;
}

enum err tpl_take(struct mem *m, int64_t n, int64_t item_bytes, void **out)
{
    int64_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(n, item_bytes, &bytes) ||
        bytes > m->arena.capacity - 64 - m->arena.used)
        return tpl_fail(m, "needs more than %d MiB of memory", TEMPLATE_RENDER_BYTES_MAX >> 20);
    *out = arena_take(&m->arena, bytes, 16);
    return OK;
}

void tpl_stored(struct mem *m, const void *p)
{
    m->low_stored = min_i64(m->low_stored, (const uint8_t *)p - m->arena.base);
}

/* --- characters --- */

int32_t tpl_decode(const char *s, int64_t n, int32_t *cp)
{
    unsigned char c = (unsigned char)s[0];
    int32_t bytes = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (bytes == 1 || bytes > n) {
        *cp = c;
        return 1;
    }
    int32_t v = c & (0xff >> (bytes + 1));
    for (int32_t i = 1; i < bytes; i++)
        v = v << 6 | ((unsigned char)s[i] & 0x3f);
    *cp = v;
    return bytes;
}

int32_t tpl_encode(int32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int32_t bytes = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int32_t i = bytes - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00 >> bytes & 0xff) | cp);
    return bytes;
}

int tpl_is_utf8(const char *s, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)s + i, n - i, &cp);
        if (used <= 0)
            return 0;
        i += used;
    }
    return 1;
}

/* Code points in s[0, n). */
static int64_t tpl_count(const char *s, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

int64_t tpl_offset(const char *s, int64_t n, int64_t index)
{
    int64_t i = 0;
    while (i < n && index > 0) {
        i++;
        while (i < n && ((unsigned char)s[i] & 0xc0) == 0x80)
            i++;
        index--;
    }
    return i;
}

int tpl_is_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static int in_set(int32_t cp, struct val chars)
{
    if (chars.kind != VAL_STR)
        return tpl_is_space(cp);
    for (int64_t i = 0; i < chars.n;) {
        int32_t c;
        i += tpl_decode(chars.u.s + i, chars.n - i, &c);
        if (c == cp)
            return 1;
    }
    return 0;
}

struct val tpl_strip(struct val s, struct val chars, enum side side)
{
    int32_t cp;
    while ((side & SIDE_LEFT) && s.n > 0) {
        int32_t used = tpl_decode(s.u.s, s.n, &cp);
        if (!in_set(cp, chars))
            break;
        s.u.s += used;
        s.n -= used;
    }
    while ((side & SIDE_RIGHT) && s.n > 0) {
        int64_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.u.s[at] & 0xc0) == 0x80)
            at--;
        tpl_decode(s.u.s + at, s.n - at, &cp);
        if (!in_set(cp, chars))
            break;
        s.n = at;
    }
    return s;
}

int64_t tpl_find(const char *s, int64_t n, const char *what, int64_t n_what)
{
    if (n_what == 0)
        return 0;
    const char *p = n_what > n ? NULL : memmem(s, (size_t)n, what, (size_t)n_what);
    return p ? p - s : -1;
}

/* --- values --- */

struct val tpl_undefined(const char *name, int64_t n)
{
    return (struct val){.kind = VAL_UNDEFINED, .n = n, .u.s = name};
}

struct val tpl_none(void)
{
    return (struct val){.kind = VAL_NONE};
}

struct val tpl_bool(int b)
{
    return (struct val){.kind = VAL_BOOL, .u.i = !!b};
}

struct val tpl_int(int64_t i)
{
    return (struct val){.kind = VAL_INT, .u.i = i};
}

struct val tpl_float(double f)
{
    return (struct val){.kind = VAL_FLOAT, .u.f = f};
}

struct val tpl_str(const char *s, int64_t n)
{
    return (struct val){.kind = VAL_STR, .n = n, .u.s = s};
}

enum err tpl_list(struct mem *m, enum seq seq, int64_t n, struct val *out)
{
    void *list, *items;
    TRY(tpl_pay(m, n / 8));
    TRY(tpl_take(m, 1, sizeof(struct list), &list));
    TRY(tpl_take(m, n, sizeof(struct val), &items));
    *out = (struct val){.kind = VAL_LIST, .sub = (uint8_t)seq, .u.list = list};
    *out->u.list = (struct list){.items = items, .n = n};
    return OK;
}

enum err tpl_dict(struct mem *m, int64_t cap, struct val *out)
{
    void *dict, *pairs;
    TRY(tpl_take(m, 1, sizeof(struct dict), &dict));
    TRY(tpl_take(m, cap, sizeof(struct pair), &pairs));
    *out = (struct val){.kind = VAL_DICT, .u.dict = dict};
    *out->u.dict = (struct dict){.pairs = pairs, .cap = cap};
    return OK;
}

int tpl_hashable(struct val v)
{
    if (v.kind == VAL_LIST && v.sub == SEQ_TUPLE) {
        for (int64_t i = 0; i < v.u.list->n; i++) {
            if (v.u.list->items[i].kind == VAL_LIST || v.u.list->items[i].kind == VAL_DICT)
                return 0; // nested tuples are refused too: no template uses one as a key
        }
        return 1;
    }
    return v.kind != VAL_DICT && (v.kind != VAL_LIST || v.sub >= SEQ_RANGE);
}

int tpl_same(struct val a, struct val b)
{
    return a.kind == VAL_STR && b.kind == VAL_STR && a.n == b.n &&
           !memcmp(a.u.s, b.u.s, (size_t)a.n);
}

int tpl_is(struct val v, const char *s)
{
    return tpl_same(v, tpl_str(s, (int64_t)strlen(s)));
}

int tpl_is_int(struct val v)
{
    return v.kind == VAL_BOOL || v.kind == VAL_INT;
}

int tpl_is_number(struct val v)
{
    return tpl_is_int(v) || v.kind == VAL_FLOAT;
}

int tpl_is_absent(struct val v)
{
    return v.kind == VAL_UNDEFINED && v.sub == UNDEFINED_ABSENT;
}

enum err tpl_dict_find(struct mem *m, const struct dict *d, struct val key, struct val **out)
{
    int same = 0;
    *out = NULL;
    if (!tpl_hashable(key))
        return tpl_fail(m, "a %s cannot be the key of a dict", tpl_type_name(key));
    TRY(tpl_pay(m, d->n / 16));
    for (int64_t i = 0; !same && i < d->n; i++) {
        if (key.kind == VAL_STR)
            same = tpl_same(d->pairs[i].key, key);
        else
            TRY(tpl_equal(m, d->pairs[i].key, key, &same));
        *out = same ? &d->pairs[i].value : NULL;
    }
    return OK;
}

enum err tpl_dict_set(struct mem *m, struct dict *d, struct val key, struct val value)
{
    struct val *old;
    TRY(tpl_dict_find(m, d, key, &old));
    tpl_stored(m, d);
    if (old) {
        *old = value;
        return OK;
    }
    if (d->n == d->cap) {
        int64_t cap = max_i64(8, d->cap * 2);
        void *pairs;
        TRY(tpl_take(m, cap, sizeof(struct pair), &pairs));
        if (d->n)
            memcpy(pairs, d->pairs, (size_t)d->n * sizeof(struct pair));
        d->pairs = pairs;
        d->cap = cap;
    }
    d->pairs[d->n++] = (struct pair){key, value};
    return OK;
}

enum err tpl_dict_list(struct mem *m, const struct dict *d, enum part part, enum seq seq,
                       struct val *out)
{
    TRY(tpl_list(m, seq, d->n, out));
    for (int64_t i = 0; i < d->n; i++) {
        const struct pair *pair = &d->pairs[i];
        struct val *item = &out->u.list->items[i];
        *item = part == PART_KEYS ? pair->key : pair->value;
        if (part == PART_ITEMS) {
            TRY(tpl_list(m, SEQ_TUPLE, 2, item));
            item->u.list->items[0] = pair->key;
            item->u.list->items[1] = pair->value;
        }
    }
    return OK;
}

static enum err from_object(struct mem *m, const json_t *j, struct val *out)
{
    const char *key;
    json_t *item;
    TRY(tpl_dict(m, (int64_t)json_object_size(j), out));
    struct dict *d = out->u.dict;
    json_object_foreach((json_t *)(uintptr_t)j, key, item)
    {
        /* keys of one object are unique, so no search; jansson refuses NUL in keys */
        struct pair *pair = &d->pairs[d->n++];
        pair->key = tpl_str(key, (int64_t)strlen(key));
        TRY(tpl_from_json(m, item, &pair->value));
    }
    return OK;
}

enum err tpl_from_json(struct mem *m, const json_t *j, struct val *out)
{
    TRY(tpl_pay(m, 1));
    TRY(tpl_enter(m));
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = tpl_none();
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tpl_bool(json_is_true(j));
        break;
    case JSON_INTEGER:
        *out = tpl_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = tpl_float(json_real_value(j));
        break;
    case JSON_STRING:
        *out = tpl_str(json_string_value(j), (int64_t)json_string_length(j));
        break;
    case JSON_ARRAY: {
        int64_t n = (int64_t)json_array_size(j);
        TRY(tpl_list(m, SEQ_LIST, n, out));
        for (int64_t i = 0; i < n; i++)
            TRY(tpl_from_json(m, json_array_get(j, (size_t)i), &out->u.list->items[i]));
        break;
    }
    case JSON_OBJECT:
        TRY(from_object(m, j, out));
        break;
    }
    m->depth--;
    return OK;
}

double tpl_as_float(struct val v)
{
    return v.kind == VAL_FLOAT ? v.u.f : (double)v.u.i;
}

int64_t tpl_length(struct val v)
{
    switch (v.kind) {
    case VAL_UNDEFINED:
        return 0;
    case VAL_STR:
        return tpl_count(v.u.s, v.n);
    case VAL_LIST:
        return v.sub == SEQ_ITER ? -1 : v.u.list->n;
    case VAL_DICT:
        return v.u.dict->n;
    default:
        return -1;
    }
}

int tpl_truth(struct val v)
{
    switch (v.kind) {
    case VAL_UNDEFINED:
    case VAL_NONE:
        return 0;
    case VAL_BOOL:
    case VAL_INT:
        return v.u.i != 0;
    case VAL_FLOAT:
        return v.u.f != 0;
    case VAL_STR:
        return v.n != 0;
    case VAL_LIST:
        return v.sub == SEQ_ITER || v.u.list->n != 0; // an iterator is true even if empty
    case VAL_DICT:
        return v.u.dict->n != 0;
    default:
        return 1;
    }
}

const char *tpl_type_name(struct val v)
{
    static const char *const seqs[] = {"list", "tuple", "range", "dict view", "generator"};
    static const char *const kinds[] = {"undefined", "None",   "bool",    "int",       "float",
                                        "str",       "list",   "dict",    "namespace", "macro",
                                        "loop",      "method", "function"};
    return v.kind == VAL_LIST ? seqs[v.sub] : kinds[v.kind];
}

/* --- comparison --- */

static enum err equal_lists(struct mem *m, const struct list *a, const struct list *b, int *out)
{
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++)
        TRY(tpl_equal(m, a->items[i], b->items[i], out));
    return OK;
}

static enum err equal_dicts(struct mem *m, const struct dict *a, const struct dict *b, int *out)
{
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++) {
        struct val *other;
        TRY(tpl_dict_find(m, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other)
            TRY(tpl_equal(m, a->pairs[i].value, *other, out));
    }
    return OK;
}

/* Order of two numbers; 2 if one is NaN. A long double holds each int and double exactly. */
static int order_numbers(struct val a, struct val b)
{
    long double x = a.kind == VAL_FLOAT ? (long double)a.u.f : (long double)a.u.i;
    long double y = b.kind == VAL_FLOAT ? (long double)b.u.f : (long double)b.u.i;
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}
_Static_assert(LDBL_MANT_DIG >= 64, "a long double holds an int64_t");

enum err tpl_equal(struct mem *m, struct val a, struct val b, int *out)
{
    enum err e = OK;
    TRY(tpl_pay(m, 1));
    *out = 0;
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = order_numbers(a, b) == 0;
        return OK;
    }
    if (a.kind != b.kind)
        return OK;
    TRY(tpl_enter(m));
    switch (a.kind) {
    case VAL_UNDEFINED:
    case VAL_NONE:
        *out = 1;
        break;
    case VAL_STR:
        e = tpl_pay(m, min_i64(a.n, b.n) / 64);
        *out = a.n == b.n && !memcmp(a.u.s, b.u.s, (size_t)a.n);
        break;
    case VAL_LIST:
        if (a.sub == b.sub && a.sub < SEQ_VIEW)
            e = equal_lists(m, a.u.list, b.u.list, out);
        else
            *out = a.u.list == b.u.list;
        break;
    case VAL_DICT:
        e = equal_dicts(m, a.u.dict, b.u.dict, out);
        break;
    case VAL_GLOBAL:
        *out = a.u.i == b.u.i;
        break;
    default:
        *out = a.u.ptr == b.u.ptr;
        break;
    }
    m->depth--;
    return e;
}

enum err tpl_order(struct mem *m, struct val a, struct val b, int *out)
{
    TRY(tpl_pay(m, 1));
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = order_numbers(a, b);
        return OK;
    }
    if (a.kind == VAL_STR && b.kind == VAL_STR) {
        int64_t n = min_i64(a.n, b.n);
        TRY(tpl_pay(m, n / 64));
        int c = memcmp(a.u.s, b.u.s, (size_t)n);
        *out = c ? (c > 0) - (c < 0) : a.n < b.n ? -1 : a.n > b.n;
        return OK;
    }
    if (a.kind == VAL_UNDEFINED && b.kind == VAL_UNDEFINED) { // |sort by a key that no item has
        *out = 0;
        return OK;
    }
    if (a.kind == VAL_UNDEFINED || b.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, a.kind == VAL_UNDEFINED ? a : b);
    return tpl_fail(m, "%s and %s cannot be compared", tpl_type_name(a), tpl_type_name(b));
}

enum err tpl_contains(struct mem *m, struct val container, struct val item, int *out)
{
    *out = 0;
    if (container.kind == VAL_STR) {
        if (item.kind != VAL_STR)
            return tpl_fail(m, "'in' a string needs a string, not %s", tpl_type_name(item));
        TRY(tpl_pay(m, container.n / 64));
        *out = tpl_find(container.u.s, container.n, item.u.s, item.n) >= 0;
        return OK;
    }
    if (container.kind == VAL_DICT) {
        struct val *found;
        TRY(tpl_dict_find(m, container.u.dict, item, &found));
        *out = found != NULL;
        return OK;
    }
    struct val *items;
    int64_t n;
    TRY(tpl_walk(m, container, &items, &n));
    for (int64_t i = 0; i < n && !*out; i++)
        TRY(tpl_equal(m, items[i], item, out));
    return OK;
}

/* The characters of a string, or the keys of a dict, as an array. */
static enum err walk_copy(struct mem *m, struct val v, struct val **items, int64_t *n)
{
    void *p;
    *n = tpl_length(v);
    TRY(tpl_pay(m, *n / 8));
    TRY(tpl_take(m, *n, sizeof(struct val), &p));
    *items = p;
    const char *s = v.u.s;
    for (int64_t i = 0; i < *n; i++) {
        if (v.kind == VAL_DICT) {
            (*items)[i] = v.u.dict->pairs[i].key;
            continue;
        }
        int32_t cp, bytes = tpl_decode(s, v.u.s + v.n - s, &cp);
        (*items)[i] = tpl_str(s, bytes);
        s += bytes;
    }
    return OK;
}

enum err tpl_walk(struct mem *m, struct val v, struct val **items, int64_t *n)
{
    switch (v.kind) {
    case VAL_UNDEFINED:
        *items = NULL;
        *n = 0;
        return OK;
    case VAL_LIST:
        *items = v.u.list->items;
        *n = v.sub == SEQ_ITER && v.u.list->spent ? 0 : v.u.list->n;
        v.u.list->spent = 1;
        return OK;
    case VAL_STR:
    case VAL_DICT:
        return walk_copy(m, v, items, n);
    default:
        return tpl_fail(m, "%s is not iterable", tpl_type_name(v));
    }
}

enum err tpl_sort(struct mem *m, struct val *items, struct val *keys, int64_t n, int reverse)
{
    for (int64_t i = 1; i < n; i++) { // insertion sort: templates sort a few names
        struct val item = items[i], key = keys[i];
        int64_t at = i;
        for (int order; at > 0; at--) {
            TRY(tpl_order(m, keys[at - 1], key, &order));
            if (order != (reverse ? -1 : 1))
                break;
            items[at] = items[at - 1];
            keys[at] = keys[at - 1];
        }
        items[at] = item;
        keys[at] = key;
    }
    return OK;
}
