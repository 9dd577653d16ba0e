/* engine/chat/template_eval.h - one render in progress. Internal to template*.c.
 *
 * Owns: scopes, loops, macros and the output while a template runs. The render's memory is an
 * arena: scopes and values are never freed one by one, but what a statement left behind is, see
 * te_release. */
#ifndef ENGINE_CHAT_TEMPLATE_EVAL_H
#define ENGINE_CHAT_TEMPLATE_EVAL_H

#include "engine/chat/template_call.h"
#include "engine/chat/template_node.h"

struct te_var {
    int32_t name;
    struct tv value;
};

struct te_scope {
    struct te_scope *parent;
    struct te_var *vars; // [n]
    int32_t n, cap;
};

struct te_macro {
    const struct tn *node;  // TN_MACRO
    struct te_scope *scope; // where it was defined: what its body sees
};

struct te_loop {
    const struct tn *node; // TN_FOR
    struct te_scope *scope;
    struct tv *source; // [n_source] what is walked
    int64_t n_source, at;
    struct tv *items; // [n_items] those of it that passed the loop's `if`, as far as asked for
    int64_t n_items;
    int64_t index; // from 0
};

enum te_global { TE_RAISE, TE_STRFTIME, TE_NAMESPACE, TE_RANGE, TE_N };

struct te {
    struct tv_mem m;
    const struct template *t;
    struct te_scope *scope;
    struct tv *globals; // [t->n_names] what a name means outside all scopes
    int32_t name_loop;  // or -1: not used
    int64_t now_epoch;
    char *out; // borrowed: the caller's
    int64_t n, cap;
};

enum te_flow { TE_NEXT, TE_BREAK, TE_CONTINUE };

/* Runs the statements from `first` on; *flow says how they ended. */
enum err te_body(struct te *e, int32_t first, enum te_flow *flow);
enum err te_eval(struct te *e, int32_t node, struct tv *out);
/* Evaluates an argument list. */
enum err te_args(struct te *e, int32_t first, struct tc_args *args);
/* Applies the one filter (or test) n to a value. */
enum err te_filter_value(struct te *e, const struct tn *n, struct tv in, struct tv *out);
/* Calls a macro with evaluated arguments. */
enum err te_macro_call(struct te *e, const struct te_macro *macro, const struct tc_args *args,
                       struct tv *out);
/* Assigns in the innermost scope. */
enum err te_assign(struct te *e, int32_t name, struct tv value);
enum err te_assign_target(struct te *e, int32_t target, struct tv value);
enum err te_loop_attr(struct te *e, struct te_loop *loop, const char *name, int64_t n,
                      struct tv *out);
enum err te_loop_fetch(struct te *e, struct te_loop *loop,
                       int64_t n); // so that n_items >= n if it can
enum err te_global_call(struct te *e, struct tv function, const struct tc_args *args,
                        struct tv *out);
/* The variable, or undefined. Searching is paid in steps, which run out at the next tv_pay. */
struct tv te_lookup(struct te *e, int32_t name);

/* Memory of what ran between te_mark and te_release is given back, unless something older than the
 * mark was made to point to it (tv_stored). */
struct te_mark {
    int64_t used, low_stored;
};
struct te_mark te_mark(struct te *e);
void te_release(struct te *e, struct te_mark mark);

enum err te_scope_push(struct te *e, struct te_scope *parent);

#endif
