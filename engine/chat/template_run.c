/* engine/chat/template_run.c - runs chat template statements: output, if, for, set, macro and the
 * block forms.
 *
 * Owns: scopes, assignment, loops, the output. Refuses: expressions (template_eval.c).
 * The one fact: a loop body, a macro and a block have a scope of their own, an `if` has none; what
 * is set in a scope is gone after it, which is why templates carry state in namespace(). */
#include "engine/chat/template_eval.h"

#include <string.h>

struct te_mark te_mark(struct te *e)
{
    struct te_mark mark = {e->m.arena.used, e->m.low_stored};
    e->m.low_stored = INT64_MAX;
    return mark;
}

void te_release(struct te *e, struct te_mark mark)
{
    if (e->m.low_stored >= mark.used) {
        e->m.arena.used = mark.used;
        e->m.low_stored = mark.low_stored;
    } else {
        e->m.low_stored = min_i64(e->m.low_stored, mark.low_stored);
    }
}

enum err te_scope_push(struct te *e, struct te_scope *parent)
{
    void *scope;
    TRY(tv_take(&e->m, 1, sizeof(struct te_scope), &scope));
    e->scope = scope;
    *e->scope = (struct te_scope){.parent = parent};
    return OK;
}

enum err te_assign(struct te *e, int32_t name, struct tv value)
{
    struct te_scope *s = e->scope;
    TRY(tv_pay(&e->m, s->n / 16));
    tv_stored(&e->m, s);
    for (int32_t i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].value = value;
            return OK;
        }
    }
    if (s->n == s->cap) {
        void *vars;
        int32_t cap = s->cap ? s->cap * 2 : 4;
        TRY(tv_take(&e->m, cap, sizeof(struct te_var), &vars));
        if (s->n)
            memcpy(vars, s->vars, (size_t)s->n * sizeof(struct te_var));
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct te_var){name, value};
    return OK;
}

static enum err assign_attribute(struct te *e, const struct tn *n, struct tv value)
{
    struct tv object = te_lookup(e, n->name);
    const char *name = e->t->text + n->u.text.at;
    e->m.line = n->line;
    if (object.kind != TV_NAMESPACE)
        return tv_fail(&e->m, "cannot set '%.*s': only a namespace has settable attributes",
                       n->u.text.n, name);
    if (name[0] == '_')
        return tv_fail(&e->m, "a namespace cannot hold names that begin with '_'");
    return tv_dict_set(&e->m, object.u.dict, tv_str(name, n->u.text.n), value);
}

enum err te_assign_target(struct te *e, int32_t target, struct tv value)
{
    const struct tn *n = &e->t->nodes[target];
    if (n->type == TN_NAME)
        return te_assign(e, n->name, value);
    if (n->type == TN_NSREF)
        return assign_attribute(e, n, value);
    struct tv *items;
    int64_t n_items, i = 0;
    e->m.line = n->line;
    if (value.kind == TV_UNDEFINED)
        return tv_fail_undefined(&e->m, value);
    TRY(tv_walk(&e->m, value, &items, &n_items));
    for (int32_t at = n->a; at >= 0; at = e->t->nodes[at].next, i++) {
        if (i >= n_items)
            break;
        TRY(te_assign_target(e, at, items[i]));
        if (e->t->nodes[at].next < 0 && i + 1 == n_items)
            return OK;
    }
    return n->a < 0 && n_items == 0
               ? OK
               : tv_fail(&e->m, "%lld values do not fit these names", (long long)n_items);
}

static enum err write_out(struct te *e, const char *s, int64_t n)
{
    if (n > e->cap - e->n)
        return tv_fail(&e->m, "the text is longer than %lld bytes", (long long)e->cap);
    TRY(tv_pay(&e->m, n / 64));
    if (n)
        memcpy(e->out + e->n, s, (size_t)n);
    e->n += n;
    return OK;
}

static enum err run_output(struct te *e, const struct tn *n)
{
    struct tv v;
    struct te_mark mark = te_mark(e);
    TRY(te_eval(e, n->a, &v));
    e->m.line = n->line;
    TRY(tv_to_str(&e->m, v, &v));
    TRY(write_out(e, v.kind == TV_STR ? v.u.s : "", v.n));
    te_release(e, mark);
    return OK;
}

static enum err run_if(struct te *e, const struct tn *n, enum te_flow *flow)
{
    for (int32_t i = n->a; i >= 0; i = e->t->nodes[i].next) {
        const struct tn *branch = &e->t->nodes[i];
        int yes = 1;
        if (branch->a >= 0) {
            struct tv v;
            struct te_mark mark = te_mark(e);
            TRY(te_eval(e, branch->a, &v));
            yes = tv_truth(v);
            te_release(e, mark);
        }
        if (yes)
            return te_body(e, branch->b, flow);
    }
    return OK;
}

enum err te_loop_fetch(struct te *e, struct te_loop *loop, int64_t n)
{
    struct te_scope *scope = e->scope;
    while (loop->n_items < n && loop->at < loop->n_source) {
        struct tv item = loop->source[loop->at++], yes;
        if (loop->node->c >= 0) {
            struct te_mark mark = te_mark(e);
            TRY(te_scope_push(e, loop->scope));
            TRY(te_assign_target(e, loop->node->a, item));
            TRY(te_eval(e, loop->node->c, &yes));
            e->scope = scope;
            te_release(e, mark);
            if (!tv_truth(yes))
                continue;
        }
        loop->items[loop->n_items++] = item;
    }
    return OK;
}

static enum err loop_open(struct te *e, const struct tn *n, struct tv v, struct te_loop **out)
{
    void *p;
    e->m.line = n->line;
    TRY(tv_take(&e->m, 1, sizeof(struct te_loop), &p));
    struct te_loop *loop = *out = p;
    *loop = (struct te_loop){.node = n, .scope = e->scope};
    TRY(tv_walk(&e->m, v, &loop->source, &loop->n_source));
    if (n->c < 0) {
        loop->items = loop->source;
        loop->n_items = loop->at = loop->n_source;
        return OK;
    }
    TRY(tv_take(&e->m, loop->n_source, sizeof(struct tv), &p));
    loop->items = p;
    return OK;
}

/* One turn in a scope of its own. */
static enum err loop_turn(struct te *e, struct te_loop *loop, enum te_flow *flow)
{
    struct te_mark mark = te_mark(e);
    TRY(tv_pay(&e->m, 1));
    TRY(te_scope_push(e, loop->scope));
    if (e->name_loop >= 0)
        TRY(te_assign(e, e->name_loop, (struct tv){.kind = TV_LOOP, .u.ptr = loop}));
    TRY(te_assign_target(e, loop->node->a, loop->items[loop->index]));
    TRY(te_body(e, loop->node->d, flow));
    e->scope = loop->scope;
    te_release(e, mark);
    return OK;
}

static enum err run_for(struct te *e, const struct tn *n, enum te_flow *flow)
{
    struct te_mark mark = te_mark(e);
    struct te_loop *loop;
    struct tv v;
    TRY(te_eval(e, n->b, &v));
    TRY(loop_open(e, n, v, &loop));
    for (;; loop->index++) {
        enum te_flow turn = TE_NEXT;
        TRY(te_loop_fetch(e, loop, loop->index + 1));
        if (loop->index >= loop->n_items)
            break;
        TRY(loop_turn(e, loop, &turn));
        if (turn == TE_BREAK)
            break;
    }
    if (loop->n_items == 0 && n->e >= 0) {
        TRY(te_scope_push(e, loop->scope));
        TRY(te_body(e, n->e, flow));
        e->scope = loop->scope;
    }
    te_release(e, mark);
    return OK;
}

/* Takes what a body writes as a value: it is written behind the output so far, copied and taken
 * back. */
static enum err capture(struct te *e, int32_t first, enum te_flow *flow, struct tv *out)
{
    int64_t start = e->n;
    void *p;
    TRY(te_body(e, first, flow));
    TRY(tv_take(&e->m, e->n - start, 1, &p));
    *out = tv_str(p, e->n - start);
    if (out->n)
        memcpy(p, e->out + start, (size_t)out->n);
    e->n = start;
    return OK;
}

static enum err capture_block(struct te *e, int32_t first, enum te_flow *flow, struct tv *out)
{
    struct te_scope *scope = e->scope;
    TRY(te_scope_push(e, scope));
    TRY(capture(e, first, flow, out));
    e->scope = scope;
    return OK;
}

/* The filters of a block are a chain whose innermost input (a = -1) is the block's text. */
static enum err filter_text(struct te *e, int32_t filters, struct tv *text)
{
    const struct tn *nodes = e->t->nodes;
    int32_t chain[TN_DEPTH_MAX];
    int n = 0;
    for (int32_t i = filters; i >= 0; i = nodes[i].a)
        chain[n++] = i;
    while (n--) {
        struct tv in = *text;
        TRY(te_filter_value(e, &nodes[chain[n]], in, text));
    }
    return OK;
}

static enum err run_set_block(struct te *e, const struct tn *n, enum te_flow *flow)
{
    struct tv text;
    TRY(capture_block(e, n->c, flow, &text));
    TRY(filter_text(e, n->b, &text));
    return te_assign_target(e, n->a, text);
}

static enum err run_filter_block(struct te *e, const struct tn *n, enum te_flow *flow)
{
    struct te_mark mark = te_mark(e);
    struct tv text;
    TRY(capture_block(e, n->b, flow, &text));
    TRY(filter_text(e, n->a, &text));
    TRY(tv_to_str(&e->m, text, &text));
    TRY(write_out(e, text.u.s, text.n));
    te_release(e, mark);
    return OK;
}

static enum err macro_value(struct te *e, const struct tn *n, struct tv *out)
{
    void *p;
    TRY(tv_take(&e->m, 1, sizeof(struct te_macro), &p));
    *out = (struct tv){.kind = TV_MACRO, .u.ptr = p};
    *(struct te_macro *)p = (struct te_macro){n, e->scope};
    return OK;
}

/* The value of the macro's parameter number i: by position, by name, its default or undefined. */
static enum err macro_param(struct te *e, const struct tn *param, const struct tc_args *args, int i,
                            int *n_used, struct tv *out)
{
    struct tn_text name = e->t->names[param->name];
    const char *text = e->t->text + name.at;
    int k = 0;
    TRY(tv_pay(&e->m, 1 + args->n_named / 16));
    while (k < args->n_named &&
           !tv_is_text(tv_str(text, name.n), args->named[k].name, args->named[k].n))
        k++;
    *out = tv_undefined(text, name.n);
    *n_used += i < args->n_pos || k < args->n_named;
    if (i < args->n_pos && k < args->n_named)
        return tv_fail(&e->m, "two values for the argument '%.*s'", name.n, text);
    if (i < args->n_pos)
        *out = args->pos[i];
    else if (k < args->n_named)
        *out = args->named[k].value;
    else if (param->a >= 0)
        return te_eval(e, param->a, out);
    return OK;
}

enum err te_macro_call(struct te *e, const struct te_macro *macro, const struct tc_args *args,
                       struct tv *out)
{
    struct te_scope *scope = e->scope;
    enum te_flow flow = TE_NEXT;
    int i = 0, n_used = 0;
    TRY(tv_enter(&e->m));
    TRY(te_scope_push(e, macro->scope));
    for (int32_t at = macro->node->a; at >= 0; at = e->t->nodes[at].next, i++) {
        const struct tn *param = &e->t->nodes[at];
        struct tv v;
        TRY(macro_param(e, param, args, i, &n_used, &v));
        TRY(te_assign(e, param->name, v));
    }
    if (n_used < args->n_pos + args->n_named)
        return tv_fail(&e->m, "the macro does not take all of these arguments");
    TRY(capture(e, macro->node->b, &flow, out));
    e->scope = scope;
    e->m.depth--;
    return OK;
}

static enum err run_set(struct te *e, const struct tn *n)
{
    struct tv v;
    TRY(te_eval(e, n->b, &v));
    return te_assign_target(e, n->a, v);
}

static enum err run_scope(struct te *e, const struct tn *n, enum te_flow *flow)
{
    struct te_scope *scope = e->scope;
    TRY(te_scope_push(e, scope));
    TRY(te_body(e, n->a, flow));
    e->scope = scope;
    return OK;
}

static enum err run_macro(struct te *e, const struct tn *n)
{
    struct tv v;
    TRY(macro_value(e, n, &v));
    return te_assign(e, n->name, v);
}

static enum err run_statement(struct te *e, const struct tn *n, enum te_flow *flow)
{
    switch ((enum tn_type)n->type) {
    case TN_DATA:
        return write_out(e, e->t->text + n->u.text.at, n->u.text.n);
    case TN_OUTPUT:
        return run_output(e, n);
    case TN_IF:
        return run_if(e, n, flow);
    case TN_FOR:
        return run_for(e, n, flow);
    case TN_SET:
        return run_set(e, n);
    case TN_SET_BLOCK:
        return run_set_block(e, n, flow);
    case TN_MACRO:
        return run_macro(e, n);
    case TN_FILTER_BLOCK:
        return run_filter_block(e, n, flow);
    case TN_SCOPE:
        return run_scope(e, n, flow);
    case TN_BREAK:
    case TN_CONTINUE:
        *flow = n->type == TN_BREAK ? TE_BREAK : TE_CONTINUE;
        return OK;
    default:
        return tv_fail(&e->m, "this is not a statement");
    }
}

enum err te_body(struct te *e, int32_t first, enum te_flow *flow)
{
    TRY(tv_enter(&e->m));
    for (int32_t i = first; i >= 0 && *flow == TE_NEXT; i = e->t->nodes[i].next) {
        TRY(tv_pay(&e->m, 1));
        e->m.line = e->t->nodes[i].line;
        TRY(run_statement(e, &e->t->nodes[i], flow));
    }
    e->m.depth--;
    return OK;
}
