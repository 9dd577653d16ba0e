/* engine/text/template_value.h - the values of chat template expressions: Python's values and their
 * text, in an arena, and functions on them. For template*.c only.
 *
 * Owns: values, their memory, text, operators, filters, tests and methods. Refuses: scopes; no
 * function changes a value passed to it. Functions that can run long pay steps, functions that
 * recurse on data pay depth, and every failure is ERR_ROW with the current line. Strings are UTF-8
 * (sources and JSON are checked before), borrowed from the input, the template or the arena;
 * nothing is freed before the render ends.
 *
 * Calls go one way: template_value.c, then template_text.c, template_ops.c, template_call.c, and
 * template_run.c on top. Functions shared by these files and the parser start with tpl_. */
#ifndef ENGINE_TEXT_TEMPLATE_VALUE_H
#define ENGINE_TEXT_TEMPLATE_VALUE_H

#include <jansson.h>
#include <stdint.h>

#include "kernels/base/arena.h"

enum val_kind {
    VAL_UNDEFINED, // s: the undefined name, for messages; n bytes; sub: enum undefined_why
    VAL_NONE,
    VAL_BOOL,      // i
    VAL_INT,       // i
    VAL_FLOAT,     // f
    VAL_STR,       // s, n bytes; sub: 1 for Markup (escapes text added to it)
    VAL_LIST,      // list; sub: enum seq
    VAL_DICT,      // dict
    VAL_NAMESPACE, // dict, but assignable, and equal only to itself
    VAL_MACRO,     // ptr: struct macro
    VAL_LOOP,      // ptr: struct loop
    VAL_METHOD,    // bound
    VAL_GLOBAL,    // i: a global function
};

enum undefined_why {
    UNDEFINED_MISSING, // no such name, key or attribute
    UNDEFINED_ABSENT,  // an argument that was not given
    UNDEFINED_UNSAFE,  // a method that changes its object
};

enum seq {
    SEQ_LIST,
    SEQ_TUPLE,
    SEQ_RANGE, // indexable, but no list
    SEQ_VIEW,  // of a dict: has a length, no index
    SEQ_ITER,  // can be iterated once
};

struct val {
    uint8_t kind; // enum val_kind
    uint8_t sub;
    int64_t n;
    union {
        int64_t i;
        double f;
        const char *s;
        struct list *list;
        struct dict *dict;
        struct bound *bound;
        void *ptr;
    } u;
};

struct list {
    struct val *items; // [n]
    int64_t n;
    int spent; // SEQ_ITER: 1 after iteration
};

struct pair {
    struct val key, value;
};

struct dict {
    struct pair *pairs; // [n], in order of insertion
    int64_t n, cap;
};

struct bound {
    struct val self;
    int method; // index into the table of template_call.c
};

/* The limits of one render. */
struct mem {
    struct arena arena;
    int64_t steps_left;
    int depth;
    int32_t line;       // of the current node, for messages
    const char *file;   // borrowed: the template's
    int64_t low_stored; // least arena offset of an object that received a value since the last
                        // reset: memory allocated after it must stay (see `release`)
};

/* Growing text; its bytes are in the arena. */
struct buf {
    char *p;
    int64_t n, cap;
};

/* ---- template_value.c: memory, characters, containers, comparison */

enum err tpl_fail(const struct mem *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "'name' is undefined", or refused; v is VAL_UNDEFINED. */
enum err tpl_fail_undefined(const struct mem *m, struct val v);
/* Pays n steps. ERR_ROW: none left. */
enum err tpl_pay(struct mem *m, int64_t n);
/* One level deeper; pair with m->depth--. */
enum err tpl_enter(struct mem *m);
/* n * item_bytes bytes, uninitialised. ERR_ROW: limit reached. */
enum err tpl_take(struct mem *m, int64_t n, int64_t item_bytes, void **out);
/* Records that the object at p received a value. */
void tpl_stored(struct mem *m, const void *p);

/* Code point at s (n >= 1 bytes left); returns its bytes. */
int32_t tpl_decode(const char *s, int64_t n, int32_t *cp);
/* Writes cp (1 to 4 bytes); returns the bytes. */
int32_t tpl_encode(int32_t cp, char *out);
/* 1 if s[0, n) is UTF-8 without surrogates. */
int tpl_is_utf8(const char *s, int64_t n);
/* Byte offset of code point number `index` (0 .. count). */
int64_t tpl_offset(const char *s, int64_t n, int64_t index);
int tpl_is_space(int32_t cp); // Python's str.isspace
/* Offset of the first `what` in s, or -1. */
int64_t tpl_find(const char *s, int64_t n, const char *what, int64_t n_what);

enum side { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };
/* The string s without the code points of `chars` (not a string: white space) at those ends. */
struct val tpl_strip(struct val s, struct val chars, enum side side);

struct val tpl_undefined(const char *name, int64_t n);
struct val tpl_none(void);
struct val tpl_bool(int b);
struct val tpl_int(int64_t i);
struct val tpl_float(double f);
struct val tpl_str(const char *s, int64_t n);
/* A list of n items, uninitialised. */
enum err tpl_list(struct mem *m, enum seq seq, int64_t n, struct val *out);
enum err tpl_dict(struct mem *m, int64_t cap, struct val *out);
enum err tpl_dict_set(struct mem *m, struct dict *d, struct val key, struct val value);
/* The value under `key`, or NULL. ERR_ROW: the key is not hashable. */
enum err tpl_dict_find(struct mem *m, const struct dict *d, struct val key, struct val **out);
enum part { PART_KEYS, PART_VALUES, PART_ITEMS };
/* A list of the dict's keys, values or (key, value) tuples. */
enum err tpl_dict_list(struct mem *m, const struct dict *d, enum part part, enum seq seq,
                       struct val *out);
enum err tpl_from_json(struct mem *m, const json_t *j, struct val *out);

int tpl_is(struct val v, const char *s);  // v is the string s
int tpl_same(struct val a, struct val b); // two strings are equal
int tpl_is_number(struct val v);          // bool counts, as in Python
int tpl_is_int(struct val v);             // likewise
int tpl_is_absent(struct val v);          // an argument that was not given
double tpl_as_float(struct val v);
int tpl_hashable(struct val v);
int tpl_truth(struct val v);
const char *tpl_type_name(struct val v);
enum err tpl_equal(struct mem *m, struct val a, struct val b, int *out);
/* *out is -1, 0, 1, or 2 if one is NaN. ERR_ROW: values without order. */
enum err tpl_order(struct mem *m, struct val a, struct val b, int *out);
enum err tpl_contains(struct mem *m, struct val container, struct val item, int *out);
/* The items that `for` iterates over; spends an iterator. ERR_ROW: v is not iterable. */
enum err tpl_walk(struct mem *m, struct val v, struct val **items, int64_t *n);
/* len(v); -1: it has none. */
int64_t tpl_length(struct val v);
/* Stable sort of items by keys[i] (both [n], both reordered). */
enum err tpl_sort(struct mem *m, struct val *items, struct val *keys, int64_t n, int reverse);

/* ---- template_text.c: values as text, and text from text */

enum err tpl_put(struct mem *m, struct buf *b, const char *s, int64_t n);
enum err tpl_puts(struct mem *m, struct buf *b, const char *s);
enum err tpl_put_spaces(struct mem *m, struct buf *b, int64_t n);
struct val tpl_buf_str(const struct buf *b);
/* str(v): text unchanged, undefined as "". */
enum err tpl_to_str(struct mem *m, struct val v, struct val *out);
enum err tpl_put_str(struct mem *m, struct buf *b, struct val v);

struct json_style {
    int ensure_ascii;
    int64_t indent;         // spaces per level; -1: all on one line
    struct val item, colon; // separators
};

enum err tpl_put_json(struct mem *m, struct buf *b, struct val v, const struct json_style *style);

enum text_case { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_FILTER_TITLE };
/* CASE_TITLE: upper case after non-letters; CASE_FILTER_TITLE: after white space and - ( { [ <. One
 * code point maps to one, except the German sharp s. */
enum err tpl_case(struct mem *m, struct val s, enum text_case how, struct val *out);
/* Replaces the first `count` of `from` by `to` (-1: all). */
enum err tpl_replace(struct mem *m, struct val s, struct val from, struct val to, int64_t count,
                     struct val *out);
/* A list of the parts between separators (not a string: white space), at most `limit` cuts (-1:
 * all). */
enum err tpl_split(struct mem *m, struct val s, struct val sep, int64_t limit, struct val *out);
enum err tpl_lines(struct mem *m, struct val s, struct val *out);
/* HTML-escapes text, as for text added to Markup. */
enum err tpl_escape(struct mem *m, struct val s, struct val *out);
/* The time, seconds since 1970, in UTC and the C locale. */
enum err tpl_strftime(struct mem *m, struct val format, int64_t epoch, struct val *out);

/* ---- template_ops.c: operators, tests, global functions */

enum compare { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };

enum err tpl_compare(struct mem *m, enum compare op, struct val a, struct val b, int *out);
#define OP2(a, b) ((a) << 8 | (b)) // an operator of two characters

/* `op`: + - * / %, or OP2('/', '/'). */
enum err tpl_binary(struct mem *m, int op, struct val a, struct val b, struct val *out);
enum err tpl_sign(struct mem *m, int op, struct val a, struct val *out);
/* object[from:to:step]; missing bounds are VAL_NONE. */
enum err tpl_slice(struct mem *m, struct val object, const struct val bounds[3], struct val *out);

struct kwarg {
    struct val name; // a string
    struct val value;
};

struct args {
    struct val *pos;     // [n_pos]
    struct kwarg *named; // [n_named]
    int n_pos, n_named;
};

#define PARAMS_MAX 3

/* Parameter names in order; a call binds positional and named arguments to them. */
struct params {
    int n_required;
    const char *names[PARAMS_MAX];
};

/* Fills bound[]; arguments not given are VAL_UNDEFINED with sub UNDEFINED_ABSENT. ERR_ROW: surplus,
 * unknown, duplicate or missing arguments; `what` names the callee. */
enum err tpl_bind(struct mem *m, const char *what, const struct params *params,
                  const struct args *args, struct val bound[PARAMS_MAX]);
/* v as an int; `fallback` if not given. ERR_ROW: another type. */
enum err tpl_int_arg(struct mem *m, struct val v, int64_t fallback, int64_t *out);

int tpl_test_find(struct val name); // or -1
enum err tpl_test(struct mem *m, int id, struct val in, const struct args *args, int *out);

/* The global function of that name, or undefined. */
struct val tpl_global_find(struct val name);
enum err tpl_global(struct mem *m, int id, int64_t now_epoch, const struct args *args,
                    struct val *out);
enum err tpl_namespace_set(struct mem *m, struct val namespace, struct val name, struct val value);

/* ---- template_call.c: filters, attributes and methods */

int tpl_filter_find(struct val name); // or -1
enum err tpl_filter(struct mem *m, int id, struct val in, const struct args *args, struct val *out);
/* object.name: a method, then a key. ERR_ROW: attributes of undefined, and __names__. */
enum err tpl_attr(struct mem *m, struct val object, struct val name, struct val *out);
/* object[key]: an item, then (for a string key) a method; undefined if there is none. */
enum err tpl_item(struct mem *m, struct val object, struct val key, struct val *out);
enum err tpl_method(struct mem *m, const struct bound *bound, const struct args *args,
                    struct val *out);

#endif
