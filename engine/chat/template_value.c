/* engine/chat/template_value.c - see template_value.h.
 *
 * Owns: memory, containers, comparison. str(), repr() and JSON are in template_print.c.
 * Refuses: integers beyond 64 bits. The one fact: a dict is an array searched from its start; that
 * is paid in steps, so a large one is slow but bounded. */
#include "engine/chat/template_value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/chat/template.h"

enum err tv_fail(const struct tv_mem *m, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof what) {
        for (n = sizeof what - 1; n > 0 && ((unsigned char)what[n - 1] & 0xc0) == 0x80; n--)
            ;
        what[max_i64(n - 1, 0)] = 0; // not half a character: this becomes JSON
    }
    return fail(ERR_ROW, "%s: chat template: line %d: %s", m->file, m->line, what);
}

enum err tv_fail_undefined(const struct tv_mem *m, struct tv v)
{
    return tv_fail(m, "'%.*s' is %s", (int)v.n, v.u.s,
                   v.sub == TV_UNSAFE ? "refused: it would change its object" : "undefined");
}

enum err tv_pay(struct tv_mem *m, int64_t n)
{
    m->steps_left -= n;
    return m->steps_left >= 0 ? OK
                              : tv_fail(m, "more than %d steps (a loop or a text that is too long)",
                                        TEMPLATE_STEPS_MAX);
}

enum err tv_enter(struct tv_mem *m)
{
    if (m->depth >= TEMPLATE_DEPTH_MAX)
        return tv_fail(m, "nested too deeply (limit %d)", TEMPLATE_DEPTH_MAX);
    m->depth++;
    return OK;
}

enum err tv_take(struct tv_mem *m, int64_t n, int64_t item_bytes, void **out)
{
    int64_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(n, item_bytes, &bytes) ||
        bytes > m->arena.capacity - 64 - m->arena.used)
        return tv_fail(m, "needs more than %d MiB of memory", TEMPLATE_RENDER_BYTES_MAX >> 20);
    *out = arena_take(&m->arena, bytes, 16);
    return OK;
}

void tv_stored(struct tv_mem *m, const void *p)
{
    m->low_stored = min_i64(m->low_stored, (const uint8_t *)p - m->arena.base);
}

enum err tv_put(struct tv_mem *m, struct tv_buf *b, const char *s, int64_t n)
{
    TRY(tv_pay(m, n / 64));
    if (n > b->cap - b->n) {
        int64_t more = max_i64(n, max_i64(b->cap, 64));
        void *p;
        TRY(tv_take(m, more, 1, &p));
        if (b->p && (uint8_t *)p == (uint8_t *)b->p + round_up(b->cap, 16)) {
            b->cap = (char *)p - b->p + more; // nothing was carved since: it grows in place
        } else {
            m->arena.used = (uint8_t *)p - m->arena.base;
            TRY(tv_take(m, b->cap + more, 1, &p));
            if (b->n)
                memcpy(p, b->p, (size_t)b->n);
            b->p = p;
            b->cap += more;
        }
    }
    if (n)
        memcpy(b->p + b->n, s, (size_t)n);
    b->n += n;
    return OK;
}

enum err tv_puts(struct tv_mem *m, struct tv_buf *b, const char *s)
{
    return tv_put(m, b, s, (int64_t)strlen(s));
}

enum err tv_put_cp(struct tv_mem *m, struct tv_buf *b, int32_t cp)
{
    char s[4];
    return tv_put(m, b, s, tt_encode(cp, s));
}

struct tv tv_undefined(const char *name, int64_t n)
{
    return (struct tv){.kind = TV_UNDEFINED, .n = n, .u.s = name};
}

struct tv tv_none(void)
{
    return (struct tv){.kind = TV_NONE};
}

struct tv tv_bool(int b)
{
    return (struct tv){.kind = TV_BOOL, .u.i = !!b};
}

struct tv tv_int(int64_t i)
{
    return (struct tv){.kind = TV_INT, .u.i = i};
}

struct tv tv_float(double f)
{
    return (struct tv){.kind = TV_FLOAT, .u.f = f};
}

struct tv tv_str(const char *s, int64_t n)
{
    return (struct tv){.kind = TV_STR, .n = n, .u.s = s};
}

struct tv tv_text(const struct tv_buf *b)
{
    return tv_str(b->p ? b->p : "", b->n);
}

enum err tv_list_new(struct tv_mem *m, enum tv_seq seq, int64_t n, struct tv *out)
{
    void *list, *items;
    TRY(tv_pay(m, n / 8));
    TRY(tv_take(m, 1, sizeof(struct tv_list), &list));
    TRY(tv_take(m, n, sizeof(struct tv), &items));
    *out = (struct tv){.kind = TV_LIST, .sub = (uint8_t)seq, .u.list = list};
    *out->u.list = (struct tv_list){.items = items, .n = n};
    return OK;
}

enum err tv_dict_new(struct tv_mem *m, int64_t cap, struct tv *out)
{
    void *dict, *pairs;
    TRY(tv_take(m, 1, sizeof(struct tv_dict), &dict));
    TRY(tv_take(m, cap, sizeof(struct tv_pair), &pairs));
    *out = (struct tv){.kind = TV_DICT, .u.dict = dict};
    *out->u.dict = (struct tv_dict){.pairs = pairs, .cap = cap};
    return OK;
}

int tv_hashable(struct tv v)
{
    if (v.kind == TV_LIST && v.sub == TV_SEQ_TUPLE) {
        for (int64_t i = 0; i < v.u.list->n; i++) {
            if (v.u.list->items[i].kind == TV_LIST || v.u.list->items[i].kind == TV_DICT)
                return 0; // a tuple in a tuple is refused as well: nobody uses one as a key
        }
        return 1;
    }
    return v.kind != TV_DICT && (v.kind != TV_LIST || v.sub >= TV_SEQ_RANGE);
}

struct tv *tv_dict_find_str(const struct tv_dict *d, const char *s, int64_t n)
{
    for (int64_t i = 0; i < d->n; i++) {
        if (tv_is_text(d->pairs[i].key, s, n))
            return &d->pairs[i].value;
    }
    return NULL;
}

enum err tv_dict_find(struct tv_mem *m, const struct tv_dict *d, struct tv key, struct tv **out)
{
    *out = NULL;
    if (!tv_hashable(key))
        return tv_fail(m, "a %s cannot be the key of a dict", tv_type_name(key));
    TRY(tv_pay(m, d->n / 16));
    if (key.kind == TV_STR) {
        *out = tv_dict_find_str(d, key.u.s, key.n);
        return OK;
    }
    for (int64_t i = 0; i < d->n; i++) {
        int same;
        TRY(tv_equal(m, d->pairs[i].key, key, &same));
        if (same) {
            *out = &d->pairs[i].value;
            return OK;
        }
    }
    return OK;
}

enum err tv_dict_set(struct tv_mem *m, struct tv_dict *d, struct tv key, struct tv value)
{
    struct tv *old;
    TRY(tv_dict_find(m, d, key, &old));
    tv_stored(m, d);
    if (old) {
        *old = value;
        return OK;
    }
    if (d->n == d->cap) {
        int64_t cap = max_i64(8, d->cap * 2);
        void *pairs;
        TRY(tv_take(m, cap, sizeof(struct tv_pair), &pairs));
        if (d->n)
            memcpy(pairs, d->pairs, (size_t)d->n * sizeof(struct tv_pair));
        d->pairs = pairs;
        d->cap = cap;
    }
    d->pairs[d->n++] = (struct tv_pair){key, value};
    return OK;
}

enum err tv_dict_list(struct tv_mem *m, const struct tv_dict *d, enum tv_part part, enum tv_seq seq,
                      struct tv *out)
{
    TRY(tv_list_new(m, seq, d->n, out));
    for (int64_t i = 0; i < d->n; i++) {
        const struct tv_pair *pair = &d->pairs[i];
        struct tv *item = &out->u.list->items[i];
        *item = part == TV_KEYS ? pair->key : pair->value;
        if (part == TV_ITEMS) {
            TRY(tv_list_new(m, TV_SEQ_TUPLE, 2, item));
            item->u.list->items[0] = pair->key;
            item->u.list->items[1] = pair->value;
        }
    }
    return OK;
}

static enum err from_object(struct tv_mem *m, const json_t *j, struct tv *out)
{
    const char *key;
    json_t *item;
    TRY(tv_dict_new(m, (int64_t)json_object_size(j), out));
    struct tv_dict *d = out->u.dict;
    json_object_foreach((json_t *)(uintptr_t)j, key, item)
    {
        /* keys of one object differ, so nothing is searched; jansson refuses NUL in keys */
        struct tv_pair *pair = &d->pairs[d->n++];
        pair->key = tv_str(key, (int64_t)strlen(key));
        TRY(tv_from_json(m, item, &pair->value));
    }
    return OK;
}

enum err tv_from_json(struct tv_mem *m, const json_t *j, struct tv *out)
{
    TRY(tv_pay(m, 1));
    TRY(tv_enter(m));
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = tv_none();
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tv_bool(json_is_true(j));
        break;
    case JSON_INTEGER:
        *out = tv_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = tv_float(json_real_value(j));
        break;
    case JSON_STRING:
        *out = tv_str(json_string_value(j), (int64_t)json_string_length(j));
        break;
    case JSON_ARRAY: {
        int64_t n = (int64_t)json_array_size(j);
        TRY(tv_list_new(m, TV_SEQ_LIST, n, out));
        for (int64_t i = 0; i < n; i++)
            TRY(tv_from_json(m, json_array_get(j, (size_t)i), &out->u.list->items[i]));
        break;
    }
    case JSON_OBJECT:
        TRY(from_object(m, j, out));
        break;
    }
    m->depth--;
    return OK;
}

int tv_is_text(struct tv v, const char *s, int64_t n)
{
    return v.kind == TV_STR && v.n == n && !memcmp(v.u.s, s, (size_t)n);
}

int tv_is_str(struct tv v, const char *s)
{
    return tv_is_text(v, s, (int64_t)strlen(s));
}

int tv_is_number(struct tv v)
{
    return v.kind == TV_BOOL || v.kind == TV_INT || v.kind == TV_FLOAT;
}

double tv_as_float(struct tv v)
{
    return v.kind == TV_FLOAT ? v.u.f : (double)v.u.i;
}

int64_t tv_length(struct tv v)
{
    switch (v.kind) {
    case TV_UNDEFINED:
        return 0;
    case TV_STR:
        return tt_count(v.u.s, v.n);
    case TV_LIST:
        return v.sub == TV_SEQ_ITER ? -1 : v.u.list->n;
    case TV_DICT:
        return v.u.dict->n;
    default:
        return -1;
    }
}

int tv_truth(struct tv v)
{
    switch (v.kind) {
    case TV_UNDEFINED:
    case TV_NONE:
        return 0;
    case TV_BOOL:
    case TV_INT:
        return v.u.i != 0;
    case TV_FLOAT:
        return v.u.f != 0;
    case TV_STR:
        return v.n != 0;
    case TV_LIST:
        return v.sub == TV_SEQ_ITER || v.u.list->n != 0; // an iterator is true even when empty
    case TV_DICT:
        return v.u.dict->n != 0;
    default:
        return 1;
    }
}

const char *tv_type_name(struct tv v)
{
    static const char *const seqs[] = {"list", "tuple", "range", "dict view", "generator"};
    static const char *const kinds[] = {"undefined", "None",   "bool",    "int",       "float",
                                        "str",       "list",   "dict",    "namespace", "macro",
                                        "loop",      "method", "function"};
    return v.kind == TV_LIST ? seqs[v.sub] : kinds[v.kind];
}

static enum err equal_lists(struct tv_mem *m, const struct tv_list *a, const struct tv_list *b,
                            int *out)
{
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++)
        TRY(tv_equal(m, a->items[i], b->items[i], out));
    return OK;
}

static enum err equal_dicts(struct tv_mem *m, const struct tv_dict *a, const struct tv_dict *b,
                            int *out)
{
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++) {
        struct tv *other;
        TRY(tv_dict_find(m, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other)
            TRY(tv_equal(m, a->pairs[i].value, *other, out));
    }
    return OK;
}

/* An int against a float, exactly: a float of that size may round the int away. */
static int order_mixed(int64_t i, double f)
{
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

/* Order of two numbers; 2 when one is not a number. */
static int order_numbers(struct tv a, struct tv b)
{
    int fa = a.kind == TV_FLOAT, fb = b.kind == TV_FLOAT;
    if ((fa && isnan(a.u.f)) || (fb && isnan(b.u.f)))
        return 2;
    if (fa && fb)
        return a.u.f < b.u.f ? -1 : a.u.f > b.u.f;
    if (fb)
        return order_mixed(a.u.i, b.u.f);
    if (fa)
        return -order_mixed(b.u.i, a.u.f);
    return a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
}

enum err tv_equal(struct tv_mem *m, struct tv a, struct tv b, int *out)
{
    enum err e = OK;
    TRY(tv_pay(m, 1));
    *out = 0;
    if (tv_is_number(a) && tv_is_number(b)) {
        *out = order_numbers(a, b) == 0;
        return OK;
    }
    if (a.kind != b.kind)
        return OK;
    TRY(tv_enter(m));
    switch (a.kind) {
    case TV_UNDEFINED:
    case TV_NONE:
        *out = 1;
        break;
    case TV_STR:
        e = tv_pay(m, min_i64(a.n, b.n) / 64);
        *out = a.n == b.n && !memcmp(a.u.s, b.u.s, (size_t)a.n);
        break;
    case TV_LIST:
        if (a.sub == b.sub && a.sub < TV_SEQ_VIEW)
            e = equal_lists(m, a.u.list, b.u.list, out);
        else
            *out = a.u.list == b.u.list;
        break;
    case TV_DICT:
        e = equal_dicts(m, a.u.dict, b.u.dict, out);
        break;
    case TV_GLOBAL:
        *out = a.u.i == b.u.i;
        break;
    default:
        *out = a.u.ptr == b.u.ptr;
        break;
    }
    m->depth--;
    return e;
}

enum err tv_order(struct tv_mem *m, struct tv a, struct tv b, int *out)
{
    TRY(tv_pay(m, 1));
    if (tv_is_number(a) && tv_is_number(b)) {
        *out = order_numbers(a, b);
        return OK;
    }
    if (a.kind == TV_STR && b.kind == TV_STR) {
        int64_t n = min_i64(a.n, b.n);
        TRY(tv_pay(m, n / 64));
        int c = memcmp(a.u.s, b.u.s, (size_t)n);
        *out = c ? (c > 0) - (c < 0) : a.n < b.n ? -1 : a.n > b.n;
        return OK;
    }
    if (a.kind == TV_UNDEFINED && b.kind == TV_UNDEFINED) { // |sort by a key that no item has
        *out = 0;
        return OK;
    }
    if (a.kind == TV_UNDEFINED || b.kind == TV_UNDEFINED)
        return tv_fail_undefined(m, a.kind == TV_UNDEFINED ? a : b);
    if (a.kind != TV_LIST || b.kind != TV_LIST || a.sub != b.sub || a.sub > TV_SEQ_TUPLE)
        return tv_fail(m, "%s and %s cannot be compared", tv_type_name(a), tv_type_name(b));
    TRY(tv_enter(m));
    const struct tv_list *x = a.u.list, *y = b.u.list;
    for (int64_t i = 0; i < x->n && i < y->n; i++) {
        int same;
        TRY(tv_equal(m, x->items[i], y->items[i], &same));
        if (same)
            continue;
        TRY(tv_order(m, x->items[i], y->items[i], out));
        m->depth--;
        return OK;
    }
    m->depth--;
    *out = x->n < y->n ? -1 : x->n > y->n;
    return OK;
}

enum err tv_contains(struct tv_mem *m, struct tv container, struct tv item, int *out)
{
    *out = 0;
    if (container.kind == TV_STR) {
        if (item.kind != TV_STR)
            return tv_fail(m, "'in' a string needs a string, not %s", tv_type_name(item));
        TRY(tv_pay(m, container.n / 64));
        *out = tt_find(container.u.s, container.n, item.u.s, item.n) >= 0;
        return OK;
    }
    if (container.kind == TV_DICT) {
        struct tv *found;
        TRY(tv_dict_find(m, container.u.dict, item, &found));
        *out = found != NULL;
        return OK;
    }
    struct tv *items;
    int64_t n;
    TRY(tv_walk(m, container, &items, &n));
    for (int64_t i = 0; i < n && !*out; i++)
        TRY(tv_equal(m, items[i], item, out));
    return OK;
}

/* The characters of a string, or the keys of a dict, as an array. */
static enum err walk_copy(struct tv_mem *m, struct tv v, struct tv **items, int64_t *n)
{
    void *p;
    *n = tv_length(v);
    TRY(tv_pay(m, *n / 8));
    TRY(tv_take(m, *n, sizeof(struct tv), &p));
    *items = p;
    const char *s = v.u.s;
    for (int64_t i = 0; i < *n; i++) {
        if (v.kind == TV_DICT) {
            (*items)[i] = v.u.dict->pairs[i].key;
            continue;
        }
        int32_t cp, bytes = tt_decode(s, v.u.s + v.n - s, &cp);
        (*items)[i] = tv_str(s, bytes);
        s += bytes;
    }
    return OK;
}

enum err tv_walk(struct tv_mem *m, struct tv v, struct tv **items, int64_t *n)
{
    switch (v.kind) {
    case TV_UNDEFINED:
        *items = NULL;
        *n = 0;
        return OK;
    case TV_LIST:
        *items = v.u.list->items;
        *n = v.sub == TV_SEQ_ITER && v.u.list->spent ? 0 : v.u.list->n;
        v.u.list->spent = 1;
        return OK;
    case TV_STR:
    case TV_DICT:
        return walk_copy(m, v, items, n);
    default:
        return tv_fail(m, "%s is not iterable", tv_type_name(v));
    }
}

enum err tv_sort(struct tv_mem *m, struct tv *items, struct tv *keys, int64_t n, int reverse)
{
    void *mem;
    TRY(tv_take(m, 2 * n, sizeof(struct tv), &mem));
    struct tv *from[2] = {items, keys}, *to[2] = {mem, (struct tv *)mem + n};
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t at = 0; at < n; at += 2 * width) {
            int64_t i = at, i_end = min_i64(at + width, n), j = i_end,
                    j_end = min_i64(at + 2 * width, n);
            for (int64_t k = at; k < j_end; k++) {
                int take_right = i == i_end, order;
                if (i < i_end && j < j_end) {
                    TRY(tv_order(m, from[1][i], from[1][j], &order));
                    take_right = order == 2 ? 0 : reverse ? order < 0 : order > 0;
                }
                int64_t source = take_right ? j++ : i++;
                to[0][k] = from[0][source];
                to[1][k] = from[1][source];
            }
        }
        for (int s = 0; s < 2; s++) {
            struct tv *swap = from[s];
            from[s] = to[s];
            to[s] = swap;
        }
    }
    if (from[0] != items && n) {
        memcpy(items, from[0], (size_t)n * sizeof *items);
        memcpy(keys, from[1], (size_t)n * sizeof *keys);
    }
    return OK;
}
