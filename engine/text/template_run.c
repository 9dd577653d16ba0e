/* engine/text/template_run.c - runs a parsed chat template: statements and expressions.
 *
 * Owns: scopes, assignment, loops, macros, the output, and the limits of a render. Refuses:
 * functions independent of scopes (template_call.c, template_ops.c).
 *
 * Note: a loop body, a macro and a block have scopes of their own, an `if` has none; variables end
 * with their scope, which is why templates keep state in namespace(). `and` and `or` return an
 * operand, and undefined is a value: only its use is an error. As in transformers, `tools` and
 * `documents` are always defined, as none if not given. The render's memory is an arena, freed
 * after each statement, see `release`. */
#include <string.h>

#include "engine/text/template_tree.h"

struct var {
    int32_t name;
    struct val value;
};

struct scope {
    struct scope *parent;
    struct var *vars; // [n]
    int32_t n, cap;
};

struct macro {
    const struct node *node; // NODE_MACRO
    struct scope *scope;     // scope of its definition, visible to its body
};

struct loop {
    const struct node *node; // NODE_FOR
    struct scope *scope;
    struct val *source; // [n_source] items of the loop
    int64_t n_source, at;
    struct val *items; // [n_items] those that passed the loop's `if`, so far
    int64_t n_items;
    int64_t index; // from 0
};

/* One render in progress. */
struct run {
    struct mem m;
    const struct template *t;
    struct scope *scope;
    struct val *globals; // [t->n_names] values outside all scopes
    int32_t name_loop;   // index of the name "loop"; -1: not used
    int64_t now_epoch;
    char *out; // borrowed: the caller's
    int64_t n, cap;
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

/* Runs the statements from `first` on; *flow: how they ended. */
static enum err run_body(struct run *e, int32_t first, enum flow *flow);
static enum err eval(struct run *e, int32_t node, struct val *out);

/* Frees memory allocated between mark_memory() and release(), unless an object older than the mark
 * now points to it (tpl_stored). */
struct mark {
    int64_t used, low_stored;
};

static struct mark mark_memory(struct run *e)
{
    struct mark mark = {e->m.arena.used, e->m.low_stored};
    e->m.low_stored = INT64_MAX;
    return mark;
}

static void release(struct run *e, struct mark mark)
{
    if (e->m.low_stored >= mark.used) {
        e->m.arena.used = mark.used;
        e->m.low_stored = mark.low_stored;
    } else {
        e->m.low_stored = min_i64(e->m.low_stored, mark.low_stored);
    }
}

static enum err push_scope(struct run *e, struct scope *parent)
{
    void *scope;
    TRY(tpl_take(&e->m, 1, sizeof(struct scope), &scope));
    e->scope = scope;
    *e->scope = (struct scope){.parent = parent};
    return OK;
}

/* The variable, or undefined. The search costs steps, which are checked at the next tpl_pay. */
static struct val lookup(struct run *e, int32_t name)
{
    for (const struct scope *s = e->scope; s; s = s->parent) {
        e->m.steps_left -= s->n / 16;
        for (int32_t i = 0; i < s->n; i++) {
            if (s->vars[i].name == name)
                return s->vars[i].value;
        }
    }
    return e->globals[name];
}

/* Assigns in the innermost scope. */
static enum err assign(struct run *e, int32_t name, struct val value)
{
    struct scope *s = e->scope;
    TRY(tpl_pay(&e->m, s->n / 16));
    tpl_stored(&e->m, s);
    for (int32_t i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].value = value;
            return OK;
        }
    }
    if (s->n == s->cap) {
        void *vars;
        int32_t cap = s->cap ? s->cap * 2 : 4;
        TRY(tpl_take(&e->m, cap, sizeof(struct var), &vars));
        if (s->n)
            memcpy(vars, s->vars, (size_t)s->n * sizeof(struct var));
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct var){name, value};
    return OK;
}

static enum err assign_attribute(struct run *e, const struct node *n, struct val value)
{
    struct val object = lookup(e, n->name);
    struct val name = tpl_str(e->t->text + n->u.text.at, n->u.text.n);
    e->m.line = n->line;
    if (object.kind != VAL_NAMESPACE)
        return tpl_fail(&e->m, "cannot set '%.*s': only a namespace has settable attributes",
                        (int)name.n, name.u.s);
    return tpl_namespace_set(&e->m, object, name, value);
}

static enum err assign_target(struct run *e, int32_t target, struct val value)
{
    const struct node *n = &e->t->nodes[target];
    if (n->type == NODE_NAME)
        return assign(e, n->name, value);
    if (n->type == NODE_NSREF)
        return assign_attribute(e, n, value);
    struct val *items;
    int64_t n_items, i = 0;
    e->m.line = n->line;
    if (value.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(&e->m, value);
    TRY(tpl_walk(&e->m, value, &items, &n_items));
    int32_t at = n->a;
    for (; at && i < n_items; at = e->t->nodes[at].next)
        TRY(assign_target(e, at, items[i++]));
    return !at && i == n_items
               ? OK
               : tpl_fail(&e->m, "%lld values do not fit these names", (long long)n_items);
}

/* --- calls --- */

static struct val text_of(const struct run *e, struct text text)
{
    return tpl_str(e->t->text + text.at, text.n);
}

/* Evaluates an argument list. */
static enum err eval_args(struct run *e, int32_t first, struct args *args)
{
    const struct node *nodes = e->t->nodes;
    int n_pos = 0, n_named = 0;
    void *pos, *named;
    for (int32_t i = first; i; i = nodes[i].next) {
        n_pos += nodes[i].type != NODE_KWARG;
        n_named += nodes[i].type == NODE_KWARG;
    }
    TRY(tpl_take(&e->m, n_pos, sizeof(struct val), &pos));
    TRY(tpl_take(&e->m, n_named, sizeof(struct kwarg), &named));
    *args = (struct args){.pos = pos, .named = named};
    for (int32_t i = first; i; i = nodes[i].next) {
        if (nodes[i].type != NODE_KWARG) {
            TRY(eval(e, i, &args->pos[args->n_pos++]));
            continue;
        }
        struct kwarg *k = &args->named[args->n_named++];
        k->name = text_of(e, nodes[i].u.text);
        TRY(eval(e, nodes[i].a, &k->value));
    }
    return OK;
}

/* Runs a body and returns its output as a value: it is written after the output so far, copied and
 * removed. */
static enum err capture(struct run *e, int32_t first, struct scope *parent, enum flow *flow,
                        struct val *out)
{
    struct scope *scope = e->scope;
    int64_t start = e->n;
    void *p;
    if (parent)
        TRY(push_scope(e, parent));
    TRY(run_body(e, first, flow));
    TRY(tpl_take(&e->m, e->n - start, 1, &p));
    *out = tpl_str(p, e->n - start);
    if (out->n)
        memcpy(p, e->out + start, (size_t)out->n);
    e->n = start;
    e->scope = scope;
    return OK;
}

/* The value of the macro's parameter i: by position, by name, its default or undefined. */
static enum err macro_param(struct run *e, const struct node *param, const struct args *args, int i,
                            int *n_used, struct val *out)
{
    struct val name = text_of(e, e->t->names[param->name]);
    int k = 0;
    TRY(tpl_pay(&e->m, 1 + args->n_named / 16));
    while (k < args->n_named && !tpl_same(name, args->named[k].name))
        k++;
    *out = tpl_undefined(name.u.s, name.n);
    *n_used += i < args->n_pos || k < args->n_named;
    if (i < args->n_pos && k < args->n_named)
        return tpl_fail(&e->m, "two values for the argument '%.*s'", (int)name.n, name.u.s);
    if (i < args->n_pos)
        *out = args->pos[i];
    else if (k < args->n_named)
        *out = args->named[k].value;
    else if (param->a)
        return eval(e, param->a, out);
    return OK;
}

/* Reports the argument that a macro of n_params parameters does not take. */
static enum err surplus(struct run *e, const struct node *macro, const struct args *args,
                        int n_params)
{
    const struct node *nodes = e->t->nodes;
    if (args->n_pos > n_params)
        return tpl_fail(&e->m, "the macro takes %d arguments, not %d", n_params, args->n_pos);
    for (int k = 0; k < args->n_named; k++) {
        struct val name = args->named[k].name;
        int32_t at = macro->a;
        while (at && !tpl_same(name, text_of(e, e->t->names[nodes[at].name])))
            at = nodes[at].next;
        if (!at)
            return tpl_fail(&e->m, "the macro takes no argument '%.*s'", (int)name.n, name.u.s);
    }
    return tpl_fail(&e->m, "two values for an argument of the macro");
}

static enum err call_macro(struct run *e, const struct macro *macro, const struct args *args,
                           struct val *out)
{
    const struct node *nodes = e->t->nodes;
    struct scope *scope = e->scope;
    enum flow flow = FLOW_NEXT;
    int i = 0, n_used = 0;
    TRY(tpl_enter(&e->m));
    TRY(push_scope(e, macro->scope));
    for (int32_t at = macro->node->a; at; at = nodes[at].next, i++) {
        struct val v;
        TRY(macro_param(e, &nodes[at], args, i, &n_used, &v));
        TRY(assign(e, nodes[at].name, v));
    }
    if (n_used < args->n_pos + args->n_named)
        return surplus(e, macro->node, args, i);
    TRY(capture(e, macro->node->b, NULL, &flow, out));
    e->scope = scope;
    e->m.depth--;
    return OK;
}

/* --- loop --- */

/* Fetches items until n_items >= n, if there are enough. */
static enum err loop_fetch(struct run *e, struct loop *loop, int64_t n)
{
    struct scope *scope = e->scope;
    while (loop->n_items < n && loop->at < loop->n_source) {
        struct val item = loop->source[loop->at++], yes;
        if (loop->node->c) {
            struct mark mark = mark_memory(e);
            TRY(push_scope(e, loop->scope));
            TRY(assign_target(e, loop->node->a, item));
            TRY(eval(e, loop->node->c, &yes));
            e->scope = scope;
            release(e, mark);
            if (!tpl_truth(yes))
                continue;
        }
        loop->items[loop->n_items++] = item;
    }
    return OK;
}

static enum err loop_attr(struct run *e, struct loop *loop, struct val name, struct val *out)
{
    static const char *const names[] = {"index",    "index0",   "first",    "last",     "length",
                                        "previtem", "nextitem", "revindex", "revindex0"};
    enum { INDEX, INDEX0, FIRST, LAST, LENGTH, PREV, NEXT, REV, REV0, N };
    int which = 0;
    while (which < N && !tpl_is(name, names[which]))
        which++;
    int needs_all = which == LENGTH || which == REV || which == REV0;
    int64_t i = loop->index;
    if (needs_all || which == LAST || which == NEXT)
        TRY(loop_fetch(e, loop, needs_all ? loop->n_source : i + 2));
    *out = tpl_undefined(name.u.s, name.n);
    if (which == INDEX || which == INDEX0)
        *out = tpl_int(i + (which == INDEX));
    else if (which == FIRST || which == LAST)
        *out = tpl_bool(which == FIRST ? i == 0 : i + 1 >= loop->n_items);
    else if (which == LENGTH)
        *out = tpl_int(loop->n_items);
    else if (which == PREV && i > 0)
        *out = loop->items[i - 1];
    else if (which == NEXT && i + 1 < loop->n_items)
        *out = loop->items[i + 1];
    else if (which == REV || which == REV0)
        *out = tpl_int(loop->n_items - i - (which == REV0));
    return OK;
}

/* --- expressions --- */

/* object.name, object[key] */
static enum err eval_part(struct run *e, const struct node *n, struct val *out)
{
    struct val object, key;
    TRY(eval(e, n->a, &object));
    if (n->type == NODE_ATTR)
        key = text_of(e, n->u.text);
    else
        TRY(eval(e, n->b, &key));
    e->m.line = n->line;
    if (object.kind == VAL_LOOP && key.kind == VAL_STR)
        return loop_attr(e, object.u.ptr, key, out);
    return (n->type == NODE_ATTR ? tpl_attr : tpl_item)(&e->m, object, key, out);
}

static enum err eval_slice(struct run *e, const struct node *n, struct val *out)
{
    const int32_t nodes[] = {n->b, n->c, n->d};
    struct val object, bounds[3];
    TRY(eval(e, n->a, &object));
    for (int i = 0; i < 3; i++)
        TRY(eval(e, nodes[i], &bounds[i])); // node 0: none
    e->m.line = n->line;
    return tpl_slice(&e->m, object, bounds, out);
}

static enum err eval_call(struct run *e, const struct node *n, struct val *out)
{
    struct val f;
    struct args args;
    TRY(eval(e, n->a, &f));
    TRY(eval_args(e, n->b, &args));
    e->m.line = n->line;
    switch (f.kind) {
    case VAL_METHOD:
        return tpl_method(&e->m, f.u.bound, &args, out);
    case VAL_MACRO:
        return call_macro(e, f.u.ptr, &args, out);
    case VAL_GLOBAL:
        return tpl_global(&e->m, (int)f.u.i, e->now_epoch, &args, out);
    case VAL_UNDEFINED:
        return tpl_fail_undefined(&e->m, f);
    default:
        return tpl_fail(&e->m, "%s is not a function", tpl_type_name(f));
    }
}

/* Applies one filter (or test) n to a value. */
static enum err apply(struct run *e, const struct node *n, struct val in, struct val *out)
{
    struct args args;
    int yes;
    TRY(eval_args(e, n->b, &args));
    e->m.line = n->line;
    if (n->op < 0)
        return tpl_fail(&e->m, "unknown %s '%.*s'", n->type == NODE_FILTER ? "filter" : "test",
                        n->u.text.n, e->t->text + n->u.text.at);
    if (n->type == NODE_FILTER)
        return tpl_filter(&e->m, n->op, in, &args, out);
    TRY(tpl_test(&e->m, n->op, in, &args, &yes));
    *out = tpl_bool(yes);
    return OK;
}

static enum err eval_compare(struct run *e, const struct node *n, struct val *out)
{
    struct val left, right;
    int yes = 1;
    TRY(eval(e, n->a, &left));
    for (int32_t i = n->b; yes && i; i = e->t->nodes[i].next) {
        TRY(eval(e, e->t->nodes[i].a, &right));
        e->m.line = n->line;
        TRY(tpl_compare(&e->m, (enum compare)e->t->nodes[i].op, left, right, &yes));
        left = right;
    }
    *out = tpl_bool(yes);
    return OK;
}

static enum err eval_concat(struct run *e, const struct node *n, struct val *out)
{
    struct buf b = {0};
    for (int32_t i = n->a; i; i = e->t->nodes[i].next) {
        struct val v;
        TRY(eval(e, i, &v));
        e->m.line = n->line;
        TRY(tpl_put_str(&e->m, &b, v));
    }
    *out = tpl_buf_str(&b);
    return OK;
}

static enum err eval_sequence(struct run *e, const struct node *n, struct val *out)
{
    int64_t count = 0;
    for (int32_t i = n->a; i; i = e->t->nodes[i].next)
        count++;
    TRY(tpl_list(&e->m, n->type == NODE_LIST ? SEQ_LIST : SEQ_TUPLE, count, out));
    struct val *item = out->u.list->items;
    for (int32_t i = n->a; i; i = e->t->nodes[i].next)
        TRY(eval(e, i, item++));
    return OK;
}

static enum err eval_dict(struct run *e, const struct node *n, struct val *out)
{
    struct val key, value;
    TRY(tpl_dict(&e->m, 4, out));
    for (int32_t i = n->a; i; i = e->t->nodes[e->t->nodes[i].next].next) {
        TRY(eval(e, i, &key));
        TRY(eval(e, e->t->nodes[i].next, &value));
        e->m.line = n->line;
        TRY(tpl_dict_set(&e->m, out->u.dict, key, value));
    }
    return OK;
}

/* a op b; NODE_SIGN: op a */
static enum err eval_operator(struct run *e, const struct node *n, struct val *out)
{
    struct val a, b;
    TRY(eval(e, n->a, &a));
    TRY(eval(e, n->b, &b));
    e->m.line = n->line;
    return n->type == NODE_SIGN ? tpl_sign(&e->m, n->op, a, out)
                                : tpl_binary(&e->m, n->op, a, b, out);
}

static enum err eval_cond(struct run *e, const struct node *n, struct val *out)
{
    struct val test;
    TRY(eval(e, n->a, &test));
    int32_t pick = tpl_truth(test) ? n->b : n->c;
    if (pick)
        return eval(e, pick, out);
    *out = tpl_undefined("if without else", 15);
    return OK;
}

/* and, or: the operand that decided; not: a bool. */
static enum err eval_logic(struct run *e, const struct node *n, struct val *out)
{
    TRY(eval(e, n->a, out));
    if (n->type == NODE_NOT) {
        *out = tpl_bool(!tpl_truth(*out));
        return OK;
    }
    return tpl_truth(*out) == (n->type == NODE_AND) ? eval(e, n->b, out) : OK;
}

static enum err eval_node(struct run *e, const struct node *n, struct val *out)
{
    switch ((enum node_type)n->type) {
    case NODE_NONE:
        *out = tpl_none();
        return OK;
    case NODE_BOOL:
        *out = tpl_bool((int)n->u.i);
        return OK;
    case NODE_INT:
        *out = tpl_int(n->u.i);
        return OK;
    case NODE_FLOAT:
        *out = tpl_float(n->u.f);
        return OK;
    case NODE_STR:
        *out = text_of(e, n->u.text);
        return OK;
    case NODE_NAME:
        *out = lookup(e, n->name);
        return OK;
    case NODE_ATTR:
    case NODE_ITEM:
        return eval_part(e, n, out);
    case NODE_SLICE:
        return eval_slice(e, n, out);
    case NODE_CALL:
        return eval_call(e, n, out);
    case NODE_FILTER:
    case NODE_TEST:
        TRY(eval(e, n->a, out));
        return apply(e, n, *out, out);
    case NODE_SIGN:
    case NODE_BINARY:
        return eval_operator(e, n, out);
    case NODE_NOT:
    case NODE_AND:
    case NODE_OR:
        return eval_logic(e, n, out);
    case NODE_CONCAT:
        return eval_concat(e, n, out);
    case NODE_COMPARE:
        return eval_compare(e, n, out);
    case NODE_COND:
        return eval_cond(e, n, out);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_sequence(e, n, out);
    case NODE_DICT:
        return eval_dict(e, n, out);
    default:
        return tpl_fail(&e->m, "this is not an expression");
    }
}

static enum err eval(struct run *e, int32_t node, struct val *out)
{
    TRY(tpl_pay(&e->m, 1));
    TRY(tpl_enter(&e->m));
    TRY(eval_node(e, &e->t->nodes[node], out));
    e->m.depth--;
    return OK;
}

/* --- statements --- */

static enum err write_out(struct run *e, struct val s)
{
    if (s.n > e->cap - e->n)
        return tpl_fail(&e->m, "the text is longer than %lld bytes", (long long)e->cap);
    TRY(tpl_pay(&e->m, s.n / 64));
    if (s.n)
        memcpy(e->out + e->n, s.u.s, (size_t)s.n);
    e->n += s.n;
    return OK;
}

static enum err run_output(struct run *e, const struct node *n)
{
    struct val v;
    struct mark mark = mark_memory(e);
    TRY(eval(e, n->a, &v));
    e->m.line = n->line;
    TRY(tpl_to_str(&e->m, v, &v));
    TRY(write_out(e, v));
    release(e, mark);
    return OK;
}

static enum err run_if(struct run *e, const struct node *n, enum flow *flow)
{
    for (int32_t i = n->a; i; i = e->t->nodes[i].next) {
        const struct node *branch = &e->t->nodes[i];
        int yes = 1;
        if (branch->a) {
            struct val v;
            struct mark mark = mark_memory(e);
            TRY(eval(e, branch->a, &v));
            yes = tpl_truth(v);
            release(e, mark);
        }
        if (yes)
            return run_body(e, branch->b, flow);
    }
    return OK;
}

/* One iteration in a scope of its own. */
static enum err loop_turn(struct run *e, struct loop *loop, enum flow *flow)
{
    struct mark mark = mark_memory(e);
    TRY(tpl_pay(&e->m, 1));
    TRY(push_scope(e, loop->scope));
    if (e->name_loop >= 0)
        TRY(assign(e, e->name_loop, (struct val){.kind = VAL_LOOP, .u.ptr = loop}));
    TRY(assign_target(e, loop->node->a, loop->items[loop->index]));
    TRY(run_body(e, loop->node->d, flow));
    e->scope = loop->scope;
    release(e, mark);
    return OK;
}

static enum err run_for(struct run *e, const struct node *n, enum flow *flow)
{
    struct mark mark = mark_memory(e);
    struct val v;
    void *p;
    TRY(eval(e, n->b, &v));
    e->m.line = n->line;
    TRY(tpl_take(&e->m, 1, sizeof(struct loop), &p));
    struct loop *loop = p;
    *loop = (struct loop){.node = n, .scope = e->scope};
    TRY(tpl_walk(&e->m, v, &loop->source, &loop->n_source));
    TRY(tpl_take(&e->m, n->c ? loop->n_source : 0, sizeof(struct val), &p));
    loop->items = n->c ? p : loop->source;
    loop->n_items = loop->at = n->c ? 0 : loop->n_source;
    for (;; loop->index++) {
        enum flow turn = FLOW_NEXT;
        TRY(loop_fetch(e, loop, loop->index + 1));
        if (loop->index >= loop->n_items)
            break;
        TRY(loop_turn(e, loop, &turn));
        if (turn == FLOW_BREAK)
            break;
    }
    if (loop->n_items == 0 && n->e) {
        TRY(push_scope(e, loop->scope));
        TRY(run_body(e, n->e, flow));
        e->scope = loop->scope;
    }
    release(e, mark);
    return OK;
}

/* A block's filters are a chain whose innermost input, node 0, is the block's text. */
static enum err filter_text(struct run *e, int32_t filter, struct val *text)
{
    if (!filter)
        return OK;
    TRY(filter_text(e, e->t->nodes[filter].a, text));
    return apply(e, &e->t->nodes[filter], *text, text);
}

static enum err run_set_block(struct run *e, const struct node *n, enum flow *flow)
{
    struct val text;
    TRY(capture(e, n->c, e->scope, flow, &text));
    TRY(filter_text(e, n->b, &text));
    return assign_target(e, n->a, text);
}

static enum err run_filter_block(struct run *e, const struct node *n, enum flow *flow)
{
    struct mark mark = mark_memory(e);
    struct val text;
    TRY(capture(e, n->b, e->scope, flow, &text));
    TRY(filter_text(e, n->a, &text));
    TRY(tpl_to_str(&e->m, text, &text));
    TRY(write_out(e, text));
    release(e, mark);
    return OK;
}

static enum err run_scope(struct run *e, const struct node *n, enum flow *flow)
{
    struct scope *scope = e->scope;
    TRY(push_scope(e, scope));
    TRY(run_body(e, n->a, flow));
    e->scope = scope;
    return OK;
}

static enum err run_macro(struct run *e, const struct node *n)
{
    void *p;
    TRY(tpl_take(&e->m, 1, sizeof(struct macro), &p));
    *(struct macro *)p = (struct macro){n, e->scope};
    return assign(e, n->name, (struct val){.kind = VAL_MACRO, .u.ptr = p});
}

static enum err run_statement(struct run *e, const struct node *n, enum flow *flow)
{
    struct val v;
    switch ((enum node_type)n->type) {
    case NODE_DATA:
        return write_out(e, text_of(e, n->u.text));
    case NODE_OUTPUT:
        return run_output(e, n);
    case NODE_IF:
        return run_if(e, n, flow);
    case NODE_FOR:
        return run_for(e, n, flow);
    case NODE_SET:
        TRY(eval(e, n->b, &v));
        return assign_target(e, n->a, v);
    case NODE_SET_BLOCK:
        return run_set_block(e, n, flow);
    case NODE_MACRO:
        return run_macro(e, n);
    case NODE_FILTER_BLOCK:
        return run_filter_block(e, n, flow);
    case NODE_SCOPE:
        return run_scope(e, n, flow);
    case NODE_BREAK:
    case NODE_CONTINUE:
        *flow = n->type == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return OK;
    default:
        return tpl_fail(&e->m, "this is not a statement");
    }
}

static enum err run_body(struct run *e, int32_t first, enum flow *flow)
{
    TRY(tpl_enter(&e->m));
    for (int32_t i = first; i && *flow == FLOW_NEXT; i = e->t->nodes[i].next) {
        TRY(tpl_pay(&e->m, 1));
        e->m.line = e->t->nodes[i].line;
        TRY(run_statement(e, &e->t->nodes[i], flow));
    }
    e->m.depth--;
    return OK;
}

/* --- variables of a template --- */

/* The value of `name` outside all scopes. */
static enum err global_value(struct run *e, const struct template_input *in, struct val name,
                             struct val *out)
{
    if (tpl_is(name, "messages") && in->messages)
        return tpl_from_json(&e->m, in->messages, out);
    if (tpl_is(name, "tools") && in->tools)
        return tpl_from_json(&e->m, in->tools, out);
    if (tpl_is(name, "add_generation_prompt")) {
        *out = tpl_bool(in->add_generation_prompt);
        return OK;
    }
    char key[128];
    if (in->extra && name.n < (int64_t)sizeof key) {
        memcpy(key, name.u.s, (size_t)name.n);
        key[name.n] = 0;
        const json_t *value = json_object_get(in->extra, key);
        if (value)
            return tpl_from_json(&e->m, value, out);
    }
    const char *special = tpl_is(name, "bos_token")   ? in->bos_token
                          : tpl_is(name, "eos_token") ? in->eos_token
                                                      : NULL;
    if (special) {
        *out = tpl_str(special, (int64_t)strlen(special));
        return tpl_is_utf8(special, out->n) ? OK : tpl_fail(&e->m, "%.9s is not UTF-8", name.u.s);
    }
    int always = tpl_is(name, "tools") || tpl_is(name, "documents");
    *out = always ? tpl_none() : tpl_global_find(name);
    return OK;
}

static enum err set_globals(struct run *e, const struct template_input *in)
{
    const struct template *t = e->t;
    void *globals;
    TRY(tpl_take(&e->m, t->n_names, sizeof(struct val), &globals));
    e->globals = globals;
    e->name_loop = -1;
    for (int32_t i = 0; i < t->n_names; i++) {
        struct val name = text_of(e, t->names[i]);
        TRY(global_value(e, in, name, &e->globals[i]));
        if (tpl_is(name, "loop"))
            e->name_loop = i;
    }
    return OK;
}

enum err template_render(const struct template *t, const struct template_input *input, char *out,
                         int64_t cap, int64_t *n_out)
{
    struct run e = {.m = {.steps_left = TEMPLATE_STEPS_MAX,
                          .line = 1,
                          .file = t->file,
                          .low_stored = INT64_MAX},
                    .t = t,
                    .now_epoch = input->now_epoch,
                    .out = out,
                    .cap = cap};
    enum flow flow = FLOW_NEXT;
    *n_out = 0;
    TRY(arena_open(&e.m.arena, TEMPLATE_RENDER_BYTES_MAX));
    enum err err = set_globals(&e, input);
    if (err == OK)
        err = push_scope(&e, NULL);
    if (err == OK)
        err = run_body(&e, t->body, &flow);
    arena_close(&e.m.arena);
    *n_out = err == OK ? e.n : 0;
    return err;
}
