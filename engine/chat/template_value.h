/* engine/chat/template_value.h - what chat template expressions compute with: Python's values, in
 * an arena.
 *
 * Owns: values, their memory, equality, order, str(), repr() and JSON. Refuses: evaluating
 * (template_eval). Internal to template*.c. Every function that can take long pays with steps,
 * every one that recurses on data pays with depth, and every failure is ERR_ROW with the line at
 * hand. Strings are UTF-8, borrowed from the input, the template or the arena; nothing here is
 * freed before the render ends. */
#ifndef ENGINE_CHAT_TEMPLATE_VALUE_H
#define ENGINE_CHAT_TEMPLATE_VALUE_H

#include <jansson.h>

#include "engine/chat/template_text.h"
#include "kernels/base/arena.h"

enum tv_kind {
    TV_UNDEFINED, // s: what was undefined, for messages; n bytes; sub: enum tv_undefined_why
    TV_NONE,
    TV_BOOL,      // i
    TV_INT,       // i
    TV_FLOAT,     // f
    TV_STR,       // s, n bytes; sub: 1 when it is Markup (escapes what is added to it)
    TV_LIST,      // list; sub: enum tv_seq
    TV_DICT,      // dict
    TV_NAMESPACE, // dict, but assignable and equal only to itself
    TV_MACRO,     // ptr: struct te_macro
    TV_LOOP,      // ptr: struct te_loop
    TV_METHOD,    // bound
    TV_GLOBAL,    // i: enum te_global
};

enum tv_undefined_why {
    TV_MISSING, // no such name, key or attribute
    TV_ABSENT,  // an argument that was not given
    TV_UNSAFE,  // a method that would change its object
};

enum tv_seq {
    TV_SEQ_LIST,
    TV_SEQ_TUPLE,
    TV_SEQ_RANGE, // indexable, but no list
    TV_SEQ_VIEW,  // of a dict: has a length, no index
    TV_SEQ_ITER,  // can be walked once
};

struct tv {
    uint8_t kind; // enum tv_kind
    uint8_t sub;
    int64_t n;
    union {
        int64_t i;
        double f;
        const char *s;
        struct tv_list *list;
        struct tv_dict *dict;
        struct tv_bound *bound;
        void *ptr;
    } u;
};

struct tv_list {
    struct tv *items; // [n]
    int64_t n;
    int spent; // TV_SEQ_ITER that was walked
};

struct tv_pair {
    struct tv key, value;
};

struct tv_dict {
    struct tv_pair *pairs; // [n], in order of insertion
    int64_t n, cap;
};

enum tv_part { TV_KEYS, TV_VALUES, TV_ITEMS };

struct tv_bound {
    struct tv self;
    int method; // index into the table of template_method.c
};

/* The budget of one render. */
struct tv_mem {
    struct arena arena;
    int64_t steps_left;
    int depth;
    int32_t line;       // of the node at hand, for messages
    const char *file;   // borrowed: the template's
    int64_t low_stored; // least arena offset of an object that was given a value since it was
                        // reset: what was carved after that object must stay (see te_release)
};

/* Text that grows; its bytes stand in the arena. */
struct tv_buf {
    char *p;
    int64_t n, cap;
};

enum err tv_fail(const struct tv_mem *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* "'name' is undefined", or refused: v is TV_UNDEFINED. */
enum err tv_fail_undefined(const struct tv_mem *m, struct tv v);
/* Pays n steps. ERR_ROW when they are used up. */
enum err tv_pay(struct tv_mem *m, int64_t n);
/* One level deeper; pair with m->depth--. */
enum err tv_enter(struct tv_mem *m);
/* n * item_bytes bytes, uninitialised. ERR_ROW at the limit. */
enum err tv_take(struct tv_mem *m, int64_t n, int64_t item_bytes, void **out);
/* Notes that the object at p was given a value. */
void tv_stored(struct tv_mem *m, const void *p);

enum err tv_put(struct tv_mem *m, struct tv_buf *b, const char *s, int64_t n);
enum err tv_puts(struct tv_mem *m, struct tv_buf *b, const char *s);
enum err tv_put_spaces(struct tv_mem *m, struct tv_buf *b, int64_t n);
enum err tv_put_cp(struct tv_mem *m, struct tv_buf *b, int32_t cp);

struct tv tv_undefined(const char *name, int64_t n);
struct tv tv_none(void);
struct tv tv_bool(int b);
struct tv tv_int(int64_t i);
struct tv tv_float(double f);
struct tv tv_str(const char *s, int64_t n);
struct tv tv_text(const struct tv_buf *b);
/* A list of n items, uninitialised. */
enum err tv_list_new(struct tv_mem *m, enum tv_seq seq, int64_t n, struct tv *out);
enum err tv_dict_new(struct tv_mem *m, int64_t cap, struct tv *out);
enum err tv_dict_set(struct tv_mem *m, struct tv_dict *d, struct tv key, struct tv value);
/* The value under `key`, or NULL. ERR_ROW when the key cannot be one. */
enum err tv_dict_find(struct tv_mem *m, const struct tv_dict *d, struct tv key, struct tv **out);
/* A list of its keys, values or (key, value) tuples. */
enum err tv_dict_list(struct tv_mem *m, const struct tv_dict *d, enum tv_part part, enum tv_seq seq,
                      struct tv *out);
struct tv *tv_dict_find_str(const struct tv_dict *d, const char *s, int64_t n);
enum err tv_from_json(struct tv_mem *m, const json_t *j, struct tv *out);

int tv_is_str(struct tv v, const char *s);
int tv_is_text(struct tv v, const char *s, int64_t n);
int tv_is_number(struct tv v); // bool counts, as in Python
double tv_as_float(struct tv v);
int tv_hashable(struct tv v);
int tv_truth(struct tv v);
const char *tv_type_name(struct tv v);
enum err tv_equal(struct tv_mem *m, struct tv a, struct tv b, int *out);
/* *out is -1, 0, 1, or 2 when a NaN is compared. ERR_ROW for values without order. */
enum err tv_order(struct tv_mem *m, struct tv a, struct tv b, int *out);
enum err tv_contains(struct tv_mem *m, struct tv container, struct tv item, int *out);
/* The items that `for` would see. An iterator is spent by it. ERR_ROW when v cannot be walked. */
enum err tv_walk(struct tv_mem *m, struct tv v, struct tv **items, int64_t *n);
/* len(v), or -1 when it has none. */
int64_t tv_length(struct tv v);

/* str(v): text unchanged, undefined as "". */
enum err tv_to_str(struct tv_mem *m, struct tv v, struct tv *out);
enum err tv_put_str(struct tv_mem *m, struct tv_buf *b, struct tv v);
enum err tv_put_repr(struct tv_mem *m, struct tv_buf *b, struct tv v);

struct tv_json_style {
    int ensure_ascii;
    int64_t indent;             // spaces of one level; -1: all on one line
    struct tt_span item, colon; // separators
};

enum err tv_put_json(struct tv_mem *m, struct tv_buf *b, struct tv v,
                     const struct tv_json_style *style);

/* Stable sort of items by keys[i] (both [n], both reordered). */
enum err tv_sort(struct tv_mem *m, struct tv *items, struct tv *keys, int64_t n, int reverse);

#endif
