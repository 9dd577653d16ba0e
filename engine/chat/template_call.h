/* engine/chat/template_call.h - what chat template expressions can call. Internal to template*.c.
 *
 * Owns: the contract of filters, tests, methods, operators and formatting. All are functions of
 * values: none sees scopes, and none can change a value that it was given. */
#ifndef ENGINE_CHAT_TEMPLATE_CALL_H
#define ENGINE_CHAT_TEMPLATE_CALL_H

#include "engine/chat/template_value.h"

#define TC_PARAMS_MAX 3

enum tc_compare { TC_EQ, TC_NE, TC_LT, TC_LE, TC_GT, TC_GE, TC_IN, TC_NOT_IN };

struct tc_kwarg {
    const char *name; // borrowed: the template
    int32_t n;
    struct tv value;
};

struct tc_args {
    struct tv *pos;         // [n_pos]
    struct tc_kwarg *named; // [n_named]
    int n_pos, n_named;
};

/* Parameter names in order; a call binds positions and names to them. */
struct tc_params {
    const char *names[TC_PARAMS_MAX];
    int n, n_required;
};

/* Fills bound[n]: TV_UNDEFINED with sub TV_ABSENT where nothing was given. ERR_ROW for surplus,
 * unknown, doubled or missing arguments; `what` names the callee. */
enum err tc_bind(struct tv_mem *m, const char *what, const struct tc_params *params,
                 const struct tc_args *args, struct tv *bound);
int tc_is_absent(struct tv v);
/* v as an int, or `fallback` when absent. ERR_ROW for anything else. */
enum err tc_int(struct tv_mem *m, struct tv v, int64_t fallback, int64_t *out);

/* A filter or method of bound arguments, and of arguments as they come. */
typedef enum err tc_plain(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out);
typedef enum err tc_any(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out);

int tc_filter_find(const char *name, int64_t n); // or -1
int tc_test_find(const char *name, int64_t n);   // or -1
enum err tc_filter(struct tv_mem *m, int id, struct tv in, const struct tc_args *args,
                   struct tv *out);
enum err tc_test(struct tv_mem *m, int id, struct tv in, const struct tc_args *args, int *out);

/* object.name: a method, then a key. ERR_ROW for attributes of undefined and for __names__. */
enum err tc_attr(struct tv_mem *m, struct tv object, const char *name, int64_t n, struct tv *out);
/* object[key]: an item, then (for a string key) a method; undefined when there is none. */
enum err tc_item(struct tv_mem *m, struct tv object, struct tv key, struct tv *out);
/* object[from:to:step]; absent bounds are TV_NONE. */
enum err tc_slice(struct tv_mem *m, struct tv object, struct tv from, struct tv to, struct tv step,
                  struct tv *out);
enum err tc_method(struct tv_mem *m, const struct tv_bound *bound, const struct tc_args *args,
                   struct tv *out);

/* `op` is the operator's character, or TOK_OP2('/', '/'). */
enum err tc_binary(struct tv_mem *m, int op, struct tv a, struct tv b, struct tv *out);
enum err tc_negate(struct tv_mem *m, struct tv a, int sign, struct tv *out);
enum err tc_compare(struct tv_mem *m, enum tc_compare op, struct tv a, struct tv b, int *out);

/* The time, seconds since 1970, in UTC. */
enum err tc_strftime(struct tv_mem *m, struct tv format, int64_t epoch, struct tv *out);

/* Pieces that filters and methods share; s is a string. */
enum err tc_need_str(struct tv_mem *m, struct tv v);
enum err tc_upper(struct tv_mem *m, struct tv s, struct tv *out);
enum err tc_lower(struct tv_mem *m, struct tv s, struct tv *out);
enum err tc_capitalize(struct tv_mem *m, struct tv s, struct tv *out);
/* Upper case for letters behind what is no letter; or, as the filter does, behind white space and
 * - ( { [ <. Lower case elsewhere. */
enum err tc_title(struct tv_mem *m, struct tv s, int after_space, struct tv *out);
/* Without white space, or without `chars`, at the ends that `side` names. */
enum err tc_strip(struct tv_mem *m, struct tv s, struct tv chars, enum tt_side side,
                  struct tv *out);
/* The first `count` of `from` become `to` (-1: all). */
enum err tc_replace(struct tv_mem *m, struct tv s, struct tv from, struct tv to, int64_t count,
                    struct tv *out);
/* A list of the pieces between separators (absent or none: white space), cut at most `limit` times
 * (-1: always). */
enum err tc_split(struct tv_mem *m, struct tv s, struct tv sep, int64_t limit, struct tv *out);
enum err tc_lines(struct tv_mem *m, struct tv s, struct tv *out);
enum err tc_escape(struct tv_mem *m, struct tv s, struct tv *out);
/* "{} {0} {name}".format(...). */
enum err tc_format(struct tv_mem *m, struct tv format, const struct tc_args *args, struct tv *out);

#endif
