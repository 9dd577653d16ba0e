/* engine/chat/template_eval.c - evaluates chat template expressions and calls.
 *
 * Owns: operators with short cuts, lookups, macro calls, loop.*, the global functions. Refuses:
 * assigning (template_run.c), text work (template_filter.c, template_method.c). The one fact: `and`
 * and `or` give back an operand, and undefined is a value: only using it is an error. */
#include "engine/chat/template_eval.h"

#include <string.h>

#define RANGE_MAX 100000 // items of range(), as in the sandbox that these templates are written for

struct tv te_lookup(struct te *e, int32_t name)
{
    for (const struct te_scope *s = e->scope; s; s = s->parent) {
        e->m.steps_left -= s->n / 16;
        for (int32_t i = 0; i < s->n; i++) {
            if (s->vars[i].name == name)
                return s->vars[i].value;
        }
    }
    return e->globals[name];
}

enum err te_args(struct te *e, int32_t first, struct tc_args *args)
{
    const struct tn *nodes = e->t->nodes;
    int n_pos = 0, n_named = 0;
    void *pos, *named;
    for (int32_t i = first; i >= 0; i = nodes[i].next) {
        n_pos += nodes[i].type != TN_KWARG;
        n_named += nodes[i].type == TN_KWARG;
    }
    TRY(tv_take(&e->m, n_pos, sizeof(struct tv), &pos));
    TRY(tv_take(&e->m, n_named, sizeof(struct tc_kwarg), &named));
    *args = (struct tc_args){.pos = pos, .named = named};
    for (int32_t i = first; i >= 0; i = nodes[i].next) {
        const struct tn *n = &nodes[i];
        if (n->type != TN_KWARG) {
            TRY(te_eval(e, i, &args->pos[args->n_pos++]));
            continue;
        }
        struct tc_kwarg *k = &args->named[args->n_named++];
        *k = (struct tc_kwarg){.name = e->t->text + n->u.text.at, .n = n->u.text.n};
        TRY(te_eval(e, n->a, &k->value));
    }
    return OK;
}

/* --- global functions --- */

static enum err call_range(struct te *e, const struct tc_args *args, struct tv *out)
{
    static const struct tc_params params = {{"start", "stop", "step"}, 3, 1};
    struct tv bound[3];
    int64_t from = 0, to, step, n = 0, span;
    TRY(tc_bind(&e->m, "range", &params, args, bound));
    if (tc_is_absent(bound[1])) {
        TRY(tc_int(&e->m, bound[0], 0, &to));
    } else {
        TRY(tc_int(&e->m, bound[0], 0, &from));
        TRY(tc_int(&e->m, bound[1], 0, &to));
    }
    TRY(tc_int(&e->m, bound[2], 1, &step));
    if (step == 0)
        return tv_fail(&e->m, "range() needs a step other than 0");
    if (__builtin_sub_overflow(to, from, &span))
        n = RANGE_MAX + 1;
    else if ((span > 0) == (step > 0) && span != 0)
        n = step == INT64_MIN ? 1 : (span + step - (step > 0 ? 1 : -1)) / step;
    if (n > RANGE_MAX)
        return tv_fail(&e->m, "range() of more than %d items", RANGE_MAX);
    TRY(tv_list_new(&e->m, TV_SEQ_RANGE, n, out));
    for (int64_t i = 0; i < n; i++)
        out->u.list->items[i] = tv_int(from + i * step);
    return OK;
}

static enum err call_namespace(struct te *e, const struct tc_args *args, struct tv *out)
{
    if (args->n_pos)
        return tv_fail(&e->m, "namespace() takes named values");
    TRY(tv_dict_new(&e->m, args->n_named, out));
    for (int i = 0; i < args->n_named; i++) {
        const struct tc_kwarg *k = &args->named[i];
        if (k->name[0] == '_')
            return tv_fail(&e->m, "a namespace cannot hold names that begin with '_'");
        TRY(tv_dict_set(&e->m, out->u.dict, tv_str(k->name, k->n), k->value));
    }
    out->kind = TV_NAMESPACE;
    return OK;
}

static enum err call_raise(struct te *e, const struct tc_args *args)
{
    static const struct tc_params params = {{"message"}, 1, 1};
    struct tv message;
    TRY(tc_bind(&e->m, "raise_exception", &params, args, &message));
    TRY(tv_to_str(&e->m, message, &message));
    return tv_fail(&e->m, "the template refuses: %.*s", (int)min_i64(message.n, 4096), message.u.s);
}

enum err te_global_call(struct te *e, struct tv function, const struct tc_args *args,
                        struct tv *out)
{
    static const struct tc_params strftime_params = {{"format"}, 1, 1};
    struct tv format;
    switch (function.u.i) {
    case TE_RAISE:
        return call_raise(e, args);
    case TE_STRFTIME:
        TRY(tc_bind(&e->m, "strftime_now", &strftime_params, args, &format));
        return tc_strftime(&e->m, format, e->now_epoch, out);
    case TE_RANGE:
        return call_range(e, args, out);
    default:
        return call_namespace(e, args, out);
    }
}

/* --- loop --- */

enum err te_loop_attr(struct te *e, struct te_loop *loop, const char *name, int64_t n,
                      struct tv *out)
{
    static const char *const names[] = {"index",    "index0",   "first",    "last",     "length",
                                        "previtem", "nextitem", "revindex", "revindex0"};
    enum { INDEX, INDEX0, FIRST, LAST, LENGTH, PREV, NEXT, REV, REV0, N };
    int which = 0;
    while (which < N && !tv_is_str(tv_str(name, n), names[which]))
        which++;
    int needs_all = which == LENGTH || which == REV || which == REV0;
    int64_t i = loop->index;
    if (needs_all || which == LAST || which == NEXT)
        TRY(te_loop_fetch(e, loop, needs_all ? loop->n_source : i + 2));
    *out = tv_undefined(name, n);
    if (which == INDEX || which == INDEX0)
        *out = tv_int(i + (which == INDEX));
    else if (which == FIRST || which == LAST)
        *out = tv_bool(which == FIRST ? i == 0 : i + 1 >= loop->n_items);
    else if (which == LENGTH)
        *out = tv_int(loop->n_items);
    else if (which == PREV && i > 0)
        *out = loop->items[i - 1];
    else if (which == NEXT && i + 1 < loop->n_items)
        *out = loop->items[i + 1];
    else if (which == REV || which == REV0)
        *out = tv_int(loop->n_items - i - (which == REV0));
    return OK;
}

/* --- expressions --- */

static enum err eval_attr(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv object;
    const char *name = e->t->text + n->u.text.at;
    TRY(te_eval(e, n->a, &object));
    e->m.line = n->line;
    if (object.kind == TV_LOOP)
        return te_loop_attr(e, object.u.ptr, name, n->u.text.n, out);
    return tc_attr(&e->m, object, name, n->u.text.n, out);
}

static enum err eval_item(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv object, key;
    TRY(te_eval(e, n->a, &object));
    TRY(te_eval(e, n->b, &key));
    e->m.line = n->line;
    if (object.kind == TV_LOOP && key.kind == TV_STR)
        return te_loop_attr(e, object.u.ptr, key.u.s, key.n, out);
    return tc_item(&e->m, object, key, out);
}

static enum err eval_slice(struct te *e, const struct tn *n, struct tv *out)
{
    const int32_t nodes[] = {n->b, n->c, n->d};
    struct tv object, bounds[3];
    TRY(te_eval(e, n->a, &object));
    for (int i = 0; i < 3; i++) {
        bounds[i] = tv_none();
        if (nodes[i] >= 0)
            TRY(te_eval(e, nodes[i], &bounds[i]));
    }
    e->m.line = n->line;
    if (object.kind == TV_UNDEFINED)
        return tv_fail_undefined(&e->m, object);
    return tc_slice(&e->m, object, bounds[0], bounds[1], bounds[2], out);
}

static enum err eval_call(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv f;
    struct tc_args args;
    TRY(te_eval(e, n->a, &f));
    TRY(te_args(e, n->b, &args));
    e->m.line = n->line;
    switch (f.kind) {
    case TV_METHOD:
        return tc_method(&e->m, f.u.bound, &args, out);
    case TV_MACRO:
        return te_macro_call(e, f.u.ptr, &args, out);
    case TV_GLOBAL:
        return te_global_call(e, f, &args, out);
    case TV_UNDEFINED:
        return tv_fail_undefined(&e->m, f);
    default:
        return tv_fail(&e->m, "%s is not a function", tv_type_name(f));
    }
}

enum err te_filter_value(struct te *e, const struct tn *n, struct tv in, struct tv *out)
{
    struct tc_args args;
    TRY(te_args(e, n->b, &args));
    e->m.line = n->line;
    if (n->op < 0)
        return tv_fail(&e->m, "unknown %s '%.*s'", n->type == TN_FILTER ? "filter" : "test",
                       n->u.text.n, e->t->text + n->u.text.at);
    if (n->type == TN_FILTER)
        return tc_filter(&e->m, n->op, in, &args, out);
    int yes;
    TRY(tc_test(&e->m, n->op, in, &args, &yes));
    *out = tv_bool(yes);
    return OK;
}

static enum err eval_filter(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv in;
    TRY(te_eval(e, n->a, &in));
    return te_filter_value(e, n, in, out);
}

static enum err eval_compare(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv left, right;
    int yes = 1;
    TRY(te_eval(e, n->a, &left));
    for (int32_t i = n->b; yes && i >= 0; i = e->t->nodes[i].next) {
        TRY(te_eval(e, e->t->nodes[i].a, &right));
        e->m.line = n->line;
        TRY(tc_compare(&e->m, (enum tc_compare)e->t->nodes[i].op, left, right, &yes));
        left = right;
    }
    *out = tv_bool(yes);
    return OK;
}

static enum err eval_concat(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv_buf b = {0};
    for (int32_t i = n->a; i >= 0; i = e->t->nodes[i].next) {
        struct tv v;
        TRY(te_eval(e, i, &v));
        e->m.line = n->line;
        TRY(tv_put_str(&e->m, &b, v));
    }
    *out = tv_text(&b);
    return OK;
}

static enum err eval_sequence(struct te *e, const struct tn *n, struct tv *out)
{
    int64_t count = 0;
    for (int32_t i = n->a; i >= 0; i = e->t->nodes[i].next)
        count++;
    TRY(tv_list_new(&e->m, n->type == TN_LIST ? TV_SEQ_LIST : TV_SEQ_TUPLE, count, out));
    struct tv *item = out->u.list->items;
    for (int32_t i = n->a; i >= 0; i = e->t->nodes[i].next)
        TRY(te_eval(e, i, item++));
    return OK;
}

static enum err eval_dict(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv key, value;
    TRY(tv_dict_new(&e->m, 4, out));
    for (int32_t i = n->a; i >= 0; i = e->t->nodes[e->t->nodes[i].next].next) {
        TRY(te_eval(e, i, &key));
        TRY(te_eval(e, e->t->nodes[i].next, &value));
        e->m.line = n->line;
        TRY(tv_dict_set(&e->m, out->u.dict, key, value));
    }
    return OK;
}

static enum err eval_binary(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv a, b;
    TRY(te_eval(e, n->a, &a));
    TRY(te_eval(e, n->b, &b));
    e->m.line = n->line;
    if (a.kind == TV_UNDEFINED || b.kind == TV_UNDEFINED)
        return tv_fail_undefined(&e->m, a.kind == TV_UNDEFINED ? a : b);
    return tc_binary(&e->m, n->op, a, b, out);
}

static enum err eval_sign(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv a;
    TRY(te_eval(e, n->a, &a));
    e->m.line = n->line;
    if (a.kind == TV_UNDEFINED)
        return tv_fail_undefined(&e->m, a);
    return tc_negate(&e->m, a, n->type == TN_NEG ? -1 : 1, out);
}

static enum err eval_cond(struct te *e, const struct tn *n, struct tv *out)
{
    struct tv test;
    TRY(te_eval(e, n->a, &test));
    int32_t pick = tv_truth(test) ? n->b : n->c;
    if (pick >= 0)
        return te_eval(e, pick, out);
    *out = tv_undefined("if without else", 15);
    return OK;
}

/* and, or: the operand that decided; not: a bool. */
static enum err eval_logic(struct te *e, const struct tn *n, struct tv *out)
{
    TRY(te_eval(e, n->a, out));
    if (n->type == TN_NOT) {
        *out = tv_bool(!tv_truth(*out));
        return OK;
    }
    return tv_truth(*out) == (n->type == TN_AND) ? te_eval(e, n->b, out) : OK;
}

static enum err eval_node(struct te *e, const struct tn *n, struct tv *out)
{
    switch ((enum tn_type)n->type) {
    case TN_NONE:
        *out = tv_none();
        return OK;
    case TN_BOOL:
        *out = tv_bool((int)n->u.i);
        return OK;
    case TN_INT:
        *out = tv_int(n->u.i);
        return OK;
    case TN_FLOAT:
        *out = tv_float(n->u.f);
        return OK;
    case TN_STR:
        *out = tv_str(e->t->text + n->u.text.at, n->u.text.n);
        return OK;
    case TN_NAME:
        *out = te_lookup(e, n->name);
        return OK;
    case TN_ATTR:
        return eval_attr(e, n, out);
    case TN_ITEM:
        return eval_item(e, n, out);
    case TN_SLICE:
        return eval_slice(e, n, out);
    case TN_CALL:
        return eval_call(e, n, out);
    case TN_FILTER:
    case TN_TEST:
        return eval_filter(e, n, out);
    case TN_NEG:
    case TN_POS:
        return eval_sign(e, n, out);
    case TN_NOT:
    case TN_AND:
    case TN_OR:
        return eval_logic(e, n, out);
    case TN_BINARY:
        return eval_binary(e, n, out);
    case TN_CONCAT:
        return eval_concat(e, n, out);
    case TN_COMPARE:
        return eval_compare(e, n, out);
    case TN_COND:
        return eval_cond(e, n, out);
    case TN_LIST:
    case TN_TUPLE:
        return eval_sequence(e, n, out);
    case TN_DICT:
        return eval_dict(e, n, out);
    default:
        return tv_fail(&e->m, "this is not an expression");
    }
}

enum err te_eval(struct te *e, int32_t node, struct tv *out)
{
    TRY(tv_pay(&e->m, 1));
    TRY(tv_enter(&e->m));
    TRY(eval_node(e, &e->t->nodes[node], out));
    e->m.depth--;
    return OK;
}
