/* engine/chat/template_parse.c - chat template statements to nodes, and the parser's hands.
 *
 * Owns: tags, the node array, the table of names. Refuses: include, import, extends, block and
 * whatever else a chat template has no file system or page layout for. The one fact: a body is
 * parsed by one function that calls itself per nested block; p->nest bounds it. */
#include "engine/chat/template_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum err tn_fail(const struct template *t, int32_t line, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return fail(ERR_INPUT, "%s: chat template: line %d: %s", t->file, line, what);
}

enum err tn_grow(const struct template *t, void **items, int32_t n, int32_t *cap, size_t item_bytes)
{
    if (n < *cap)
        return OK;
    int32_t wider = *cap ? *cap * 2 : 64;
    void *p = realloc(*items, (size_t)wider * item_bytes);
    if (!p)
        return fail(ERR_FIT, "%s: chat template: no memory to parse it", t->file);
    *items = p;
    *cap = wider;
    return OK;
}

enum err tp_node(struct tp *p, enum tn_type type, int32_t line, int32_t *out)
{
    struct template *t = p->t;
    TRY(tn_grow(t, (void **)&t->nodes, t->n_nodes, &p->cap_nodes, sizeof(struct tn)));
    *out = t->n_nodes++;
    t->nodes[*out] = (struct tn){.type = (uint8_t)type,
                                 .depth = 1,
                                 .line = line,
                                 .next = -1,
                                 .a = -1,
                                 .b = -1,
                                 .c = -1,
                                 .d = -1,
                                 .e = -1};
    return OK;
}

enum err tp_close(struct tp *p, int32_t node)
{
    struct tn *nodes = p->t->nodes, *n = &nodes[node];
    const int32_t children[] = {n->a, n->b, n->c, n->d, n->e};
    int depth = 0;
    for (int i = 0; i < 5; i++) {
        for (int32_t c = children[i]; c >= 0; c = nodes[c].next)
            depth = nodes[c].depth > depth ? nodes[c].depth : depth;
    }
    if (depth >= TN_DEPTH_MAX)
        return tn_fail(p->t, n->line, "nested too deeply (limit %d)", TN_DEPTH_MAX);
    n->depth = (int16_t)(depth + 1);
    return OK;
}

void tp_append(struct tp *p, struct tp_list *list, int32_t node)
{
    if (list->first < 0)
        list->first = node;
    else
        p->t->nodes[list->last].next = node;
    list->last = node;
}

enum err tp_name(struct tp *p, struct tn_text text, int32_t *out)
{
    struct template *t = p->t;
    uint64_t h = hash_bytes(t->text + text.at, text.n, 0);
    for (uint64_t i = h;; i++) {
        int32_t *slot = &p->slots[i % TP_NAME_SLOTS];
        if (*slot < 0) {
            if (t->n_names == TN_NAMES_MAX)
                return tn_fail(t, p->toks[p->at].line, "more than %d names", TN_NAMES_MAX);
            TRY(tn_grow(t, (void **)&t->names, t->n_names, &p->cap_names, sizeof *t->names));
            *slot = t->n_names;
            t->names[t->n_names++] = text;
        }
        struct tn_text *name = &t->names[*slot];
        if (name->n == text.n && !memcmp(t->text + name->at, t->text + text.at, (size_t)text.n)) {
            *out = *slot;
            return OK;
        }
    }
}

int tp_is_op(const struct tp *p, int32_t op)
{
    return p->toks[p->at].type == TOK_OP && p->toks[p->at].op == op;
}

int tp_is_word(const struct tp *p, const char *word)
{
    const struct tok *k = &p->toks[p->at];
    return k->type == TOK_NAME && (size_t)k->u.text.n == strlen(word) &&
           !memcmp(p->t->text + k->u.text.at, word, (size_t)k->u.text.n);
}

int tp_skip_op(struct tp *p, int32_t op)
{
    int is = tp_is_op(p, op);
    p->at += is;
    return is;
}

int tp_skip_word(struct tp *p, const char *word)
{
    int is = tp_is_word(p, word);
    p->at += is;
    return is;
}

enum err tp_unexpected(const struct tp *p, const char *wanted)
{
    const struct tok *k = &p->toks[p->at];
    switch (k->type) {
    case TOK_EOF:
        return tn_fail(p->t, k->line, "expected %s, the template ends here", wanted);
    case TOK_VAR_END:
    case TOK_BLOCK_END:
        return tn_fail(p->t, k->line, "expected %s, the tag ends here", wanted);
    case TOK_NAME:
        return tn_fail(p->t, k->line, "expected %s, found '%.*s'", wanted, k->u.text.n,
                       p->t->text + k->u.text.at);
    case TOK_OP:
        return k->op < 256 ? tn_fail(p->t, k->line, "expected %s, found '%c'", wanted, k->op)
                           : tn_fail(p->t, k->line, "expected %s, found '%c%c'", wanted, k->op >> 8,
                                     k->op & 255);
    default:
        return tn_fail(p->t, k->line, "expected %s, found a literal", wanted);
    }
}

enum err tp_expect_op(struct tp *p, int32_t op)
{
    char wanted[8];
    snprintf(wanted, sizeof wanted, "'%c'", op);
    return tp_skip_op(p, op) ? OK : tp_unexpected(p, wanted);
}

enum err tp_expect_name(struct tp *p, struct tn_text *out)
{
    if (p->toks[p->at].type != TOK_NAME)
        return tp_unexpected(p, "a name");
    *out = p->toks[p->at++].u.text;
    return OK;
}

enum err tp_enter(struct tp *p)
{
    if (p->nest >= TN_NEST_MAX)
        return tn_fail(p->t, p->toks[p->at].line, "nested too deeply (limit %d)", TN_NEST_MAX);
    p->nest++;
    return OK;
}

static enum err expect_end(struct tp *p)
{
    if (p->toks[p->at].type != TOK_BLOCK_END)
        return tp_unexpected(p, "'%}'");
    p->at++;
    return OK;
}

static enum err body(struct tp *p, const char *const *ends, int32_t *first, int *which);

/* The body behind a tag that still needs its "%}", up to one of `ends` (which is consumed, its "%}"
 * too when it is the last of them). */
static enum err block(struct tp *p, const char *const *ends, int32_t *first, int *which)
{
    TRY(expect_end(p));
    TRY(tp_enter(p));
    TRY(body(p, ends, first, which));
    p->nest--;
    return OK;
}

/* A body in a frame of its own: there an unknown filter is an error again. */
static enum err inner_block(struct tp *p, const char *const *ends, int32_t *first, int *which)
{
    int soft = p->soft;
    p->soft = 0;
    TRY(block(p, ends, first, which));
    p->soft = soft;
    return OK;
}

static enum err parse_if(struct tp *p, int32_t node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct tp_list list = {-1, -1};
    int soft = p->soft, which = 0;
    p->soft = 1;
    while (which < 2) {
        int32_t branch, cond = -1, first;
        if (which == 0)
            TRY(tp_tuple(p, TP_NO_COND, &cond));
        int is_else = which == 1;
        TRY(block(p, is_else ? last : ends, &first, &which));
        TRY(tp_node(p, TN_BRANCH, p->toks[p->at].line, &branch));
        p->t->nodes[branch].a = cond;
        p->t->nodes[branch].b = first;
        TRY(tp_close(p, branch));
        tp_append(p, &list, branch);
        if (is_else)
            break;
    }
    p->soft = soft;
    p->t->nodes[node].a = list.first;
    return OK;
}

/* name, name.attribute (only where a namespace may be assigned), or (a, b) / a, b. */
static enum err target_item(struct tp *p, int with_namespace, int32_t *out)
{
    int32_t line = p->toks[p->at].line;
    const struct tok *k = &p->toks[p->at];
    if (k->type == TOK_NAME && k[1].type == TOK_OP && k[1].op == '.') {
        struct tn_text text;
        int32_t name;
        TRY(tp_name(p, k->u.text, &name));
        p->at += 2;
        TRY(tp_expect_name(p, &text));
        if (!with_namespace)
            return tn_fail(p->t, line, "only {%% set %%} may assign to an attribute");
        TRY(tp_node(p, TN_NSREF, line, out));
        p->t->nodes[*out].name = name;
        p->t->nodes[*out].u.text = text;
        return OK;
    }
    TRY(tp_primary(p, out));
    return OK;
}

static enum err check_target(struct tp *p, int32_t node, int nested)
{
    const struct tn *n = &p->t->nodes[node];
    if (n->type == TN_NAME || n->type == TN_NSREF)
        return OK;
    if (n->type != TN_TUPLE || nested > 8)
        return tn_fail(p->t, n->line, "cannot assign to this");
    for (int32_t i = n->a; i >= 0; i = p->t->nodes[i].next)
        TRY(check_target(p, i, nested + 1));
    return OK;
}

static enum err target(struct tp *p, int with_namespace, int32_t *out)
{
    int32_t line = p->toks[p->at].line, item, node;
    struct tp_list list = {-1, -1};
    int comma = 0;
    do {
        if (tp_is_word(p, "in") || tp_is_op(p, '=') || p->toks[p->at].type == TOK_BLOCK_END)
            break;
        TRY(target_item(p, with_namespace, &item));
        TRY(check_target(p, item, 0));
        tp_append(p, &list, item);
    } while (tp_skip_op(p, ',') && (comma = 1));
    if (list.first < 0)
        return tp_unexpected(p, "a name");
    *out = list.first;
    if (!comma)
        return OK;
    TRY(tp_node(p, TN_TUPLE, line, &node));
    p->t->nodes[node].a = list.first;
    *out = node;
    return tp_close(p, node);
}

static enum err parse_for(struct tp *p, int32_t node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    int32_t to, iter, cond = -1, first, other = -1;
    int which;
    TRY(target(p, 0, &to));
    if (!tp_skip_word(p, "in"))
        return tp_unexpected(p, "'in'");
    TRY(tp_tuple(p, TP_NO_COND, &iter));
    if (tp_skip_word(p, "if"))
        TRY(tp_expr(p, TP_WITH_COND, &cond));
    p->loops++;
    TRY(inner_block(p, ends, &first, &which));
    p->loops--;
    if (which == 0)
        TRY(inner_block(p, last, &other, &which));
    struct tn *n = &p->t->nodes[node];
    n->a = to;
    n->b = iter;
    n->c = cond;
    n->d = first;
    n->e = other;
    return OK;
}

static enum err parse_set(struct tp *p, int32_t node)
{
    static const char *const ends[] = {"endset", NULL};
    int32_t to, value, first;
    int which;
    TRY(target(p, 1, &to));
    if (tp_skip_op(p, '=')) {
        TRY(tp_tuple(p, TP_WITH_COND, &value));
        p->t->nodes[node].a = to;
        p->t->nodes[node].b = value;
        return OK;
    }
    value = -1;
    if (p->t->nodes[to].type == TN_TUPLE)
        return tn_fail(p->t, p->t->nodes[node].line, "a set block needs one name");
    if (tp_skip_op(p, '|'))
        TRY(tp_filters(p, -1, &value));
    TRY(inner_block(p, ends, &first, &which));
    struct tn *n = &p->t->nodes[node];
    n->type = TN_SET_BLOCK;
    n->a = to;
    n->b = value;
    n->c = first;
    return OK;
}

static enum err params(struct tp *p, int32_t *first)
{
    struct tp_list list = {-1, -1};
    int defaults = 0;
    TRY(tp_expect_op(p, '('));
    while (!tp_is_op(p, ')')) {
        if (list.first >= 0)
            TRY(tp_expect_op(p, ','));
        int32_t line = p->toks[p->at].line, param, name, value = -1;
        struct tn_text text;
        TRY(tp_expect_name(p, &text));
        TRY(tp_name(p, text, &name));
        if (tp_skip_op(p, '=')) {
            defaults = 1;
            TRY(tp_expr(p, TP_WITH_COND, &value));
        } else if (defaults) {
            return tn_fail(p->t, line, "a parameter without a default follows one with a default");
        }
        TRY(tp_node(p, TN_PARAM, line, &param));
        p->t->nodes[param].name = name;
        p->t->nodes[param].a = value;
        TRY(tp_close(p, param));
        tp_append(p, &list, param);
    }
    p->at++;
    *first = list.first;
    return OK;
}

static enum err parse_macro(struct tp *p, int32_t node)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct tn_text text;
    int32_t name, list = -1, first;
    int which, loops = p->loops;
    TRY(tp_expect_name(p, &text));
    TRY(tp_name(p, text, &name));
    TRY(params(p, &list));
    p->loops = 0;
    TRY(inner_block(p, ends, &first, &which));
    p->loops = loops;
    struct tn *n = &p->t->nodes[node];
    n->name = name;
    n->a = list;
    n->b = first;
    return OK;
}

static enum err parse_filter_block(struct tp *p, int32_t node)
{
    static const char *const ends[] = {"endfilter", NULL};
    int32_t filters, first;
    int which;
    TRY(tp_filters(p, -1, &filters));
    TRY(inner_block(p, ends, &first, &which));
    p->t->nodes[node].a = filters;
    p->t->nodes[node].b = first;
    return OK;
}

/* {% generation %} marks what training masks look at; the text passes through. */
static enum err parse_generation(struct tp *p, int32_t node)
{
    static const char *const ends[] = {"endgeneration", NULL};
    int which;
    int32_t first;
    TRY(inner_block(p, ends, &first, &which));
    p->t->nodes[node].a = first;
    return OK;
}

static enum err parse_jump(struct tp *p, int32_t node)
{
    const struct tn *n = &p->t->nodes[node];
    return p->loops ? OK
                    : tn_fail(p->t, n->line, "%s outside a loop",
                              n->type == TN_BREAK ? "break" : "continue");
}

static enum err statement(struct tp *p, int32_t *out)
{
    static const struct {
        const char *word;
        enum tn_type type;
        enum err (*parse)(struct tp *p, int32_t node);
    } tags[] = {
        {"if", TN_IF, parse_if},
        {"for", TN_FOR, parse_for},
        {"set", TN_SET, parse_set},
        {"macro", TN_MACRO, parse_macro},
        {"filter", TN_FILTER_BLOCK, parse_filter_block},
        {"generation", TN_SCOPE, parse_generation},
        {"break", TN_BREAK, parse_jump},
        {"continue", TN_CONTINUE, parse_jump},
    };
    const struct tok *k = &p->toks[p->at];
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!tp_skip_word(p, tags[i].word))
            continue;
        TRY(tp_node(p, tags[i].type, k->line, out));
        TRY(tags[i].parse(p, *out));
        TRY(expect_end(p));
        return tp_close(p, *out);
    }
    if (k->type != TOK_NAME)
        return tp_unexpected(p, "a tag");
    return tn_fail(p->t, k->line, "unsupported or unexpected tag {%% %.*s %%}", k->u.text.n,
                   p->t->text + k->u.text.at);
}

static int at_end(struct tp *p, const char *const *ends)
{
    for (int i = 0; ends && ends[i]; i++) {
        if (tp_skip_word(p, ends[i]))
            return i;
    }
    return -1;
}

/* Statements up to a tag named in `ends` (NULL: the end of the template); *which is its index. */
static enum err body(struct tp *p, const char *const *ends, int32_t *first, int *which)
{
    struct tp_list list = {-1, -1};
    int32_t node;
    while (1) {
        const struct tok *k = &p->toks[p->at];
        if (k->type == TOK_EOF) {
            int last = 0;
            while (ends && ends[last + 1])
                last++;
            if (ends)
                return tn_fail(p->t, k->line, "the template ends without {%% %s %%}", ends[last]);
            break;
        }
        p->at++;
        if (k->type == TOK_DATA) {
            TRY(tp_node(p, TN_DATA, k->line, &node));
            p->t->nodes[node].u.text = k->u.text;
        } else if (k->type == TOK_VAR_BEGIN) {
            int32_t value;
            TRY(tp_tuple(p, TP_WITH_COND, &value));
            if (p->toks[p->at].type != TOK_VAR_END)
                return tp_unexpected(p, "'}}'");
            p->at++;
            TRY(tp_node(p, TN_OUTPUT, k->line, &node));
            p->t->nodes[node].a = value;
            TRY(tp_close(p, node));
        } else {
            *which = at_end(p, ends);
            if (*which >= 0)
                break;
            TRY(statement(p, &node));
        }
        tp_append(p, &list, node);
    }
    *first = list.first;
    return OK;
}

enum err tn_parse(struct template *t, const struct tok *toks, int32_t n_toks)
{
    CHECK(n_toks > 0 && toks[n_toks - 1].type == TOK_EOF);
    struct tp *p = malloc(sizeof *p);
    if (!p)
        return fail(ERR_FIT, "%s: chat template: no memory to parse it", t->file);
    *p = (struct tp){.t = t, .toks = toks};
    memset(p->slots, 0xff, sizeof p->slots);
    int which;
    enum err e = body(p, NULL, &t->body, &which);
    free(p);
    return e;
}
