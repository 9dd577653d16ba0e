/* engine/text/template_expr.c - parses chat template expressions to nodes; the parser's helpers.
 *
 * Owns: precedence, literals, calls, filters, tests; the node array, the table of names. Refuses:
 * statements (template_parse.c). Note: chains (a + b + c, x.y.z, f|g|h) are loops, so only brackets
 * and prefix operators recurse, and p->nest counts these. */
#include "engine/text/template_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum err tpl_syntax(const struct template *t, int32_t line, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return fail(ERR_INPUT, "%s: " TEMPLATE_WHAT "line %d: %s", t->file, line, what);
}

enum err tpl_grow(const struct template *t, void **items, int32_t n, int32_t *cap,
                  size_t item_bytes)
{
    if (n < *cap)
        return OK;
    int32_t wider = *cap ? *cap * 2 : 64;
    void *p = realloc(*items, (size_t)wider * item_bytes);
    if (!p)
        return fail(ERR_FIT, "%s: " TEMPLATE_WHAT "no memory to parse it", t->file);
    *items = p;
    *cap = wider;
    return OK;
}

enum err tpl_add(struct parser *p, struct node node, int32_t *out)
{
    struct template *t = p->t;
    const int32_t children[] = {node.a, node.b, node.c, node.d, node.e};
    int depth = 0;
    for (int i = 0; i < 5; i++) {
        for (int32_t c = children[i]; c; c = t->nodes[c].next)
            depth = t->nodes[c].depth > depth ? t->nodes[c].depth : depth;
    }
    if (depth >= NODE_DEPTH_MAX)
        return tpl_syntax(t, node.line, "nested too deeply (limit %d)", NODE_DEPTH_MAX);
    node.depth = (int16_t)(depth + 1);
    TRY(tpl_grow(t, (void **)&t->nodes, t->n_nodes, &p->cap_nodes, sizeof node));
    t->nodes[t->n_nodes] = node;
    *out = t->n_nodes++;
    return OK;
}

void tpl_append(struct parser *p, struct chain *list, int32_t node)
{
    if (list->first)
        p->t->nodes[list->last].next = node;
    else
        list->first = node;
    list->last = node;
}

enum err tpl_name(struct parser *p, struct text text, int32_t *out)
{
    struct template *t = p->t;
    const size_t n_slots = sizeof p->slots / sizeof *p->slots;
    for (uint64_t i = hash_bytes(t->text + text.at, text.n, 0);; i++) {
        int32_t *slot = &p->slots[i % n_slots];
        if (!*slot) {
            if (t->n_names == NAMES_MAX)
                return tpl_syntax(t, p->toks[p->at].line, "more than %d names", NAMES_MAX);
            TRY(tpl_grow(t, (void **)&t->names, t->n_names, &p->cap_names, sizeof *t->names));
            t->names[t->n_names++] = text;
            *slot = t->n_names;
        }
        struct text *name = &t->names[*slot - 1];
        if (name->n == text.n && !memcmp(t->text + name->at, t->text + text.at, (size_t)text.n)) {
            *out = *slot - 1;
            return OK;
        }
    }
}

int tpl_is_op(const struct parser *p, int32_t op)
{
    return p->toks[p->at].type == TOK_OP && p->toks[p->at].op == op;
}

int tpl_is_word(const struct parser *p, const char *word)
{
    const struct tok *k = &p->toks[p->at];
    return k->type == TOK_NAME && (size_t)k->u.text.n == strlen(word) &&
           !memcmp(p->t->text + k->u.text.at, word, (size_t)k->u.text.n);
}

int tpl_skip_op(struct parser *p, int32_t op)
{
    int is = tpl_is_op(p, op);
    p->at += is;
    return is;
}

int tpl_skip_word(struct parser *p, const char *word)
{
    int is = tpl_is_word(p, word);
    p->at += is;
    return is;
}

enum err tpl_unexpected(const struct parser *p, const char *wanted)
{
    const struct tok *k = &p->toks[p->at];
    switch (k->type) {
    case TOK_EOF:
        return tpl_syntax(p->t, k->line, "expected %s, the template ends here", wanted);
    case TOK_VAR_END:
    case TOK_BLOCK_END:
        return tpl_syntax(p->t, k->line, "expected %s, the tag ends here", wanted);
    case TOK_NAME:
        return tpl_syntax(p->t, k->line, "expected %s, found '%.*s'", wanted, k->u.text.n,
                          p->t->text + k->u.text.at);
    case TOK_OP:
        return k->op < 256 ? tpl_syntax(p->t, k->line, "expected %s, found '%c'", wanted, k->op)
                           : tpl_syntax(p->t, k->line, "expected %s, found '%c%c'", wanted,
                                        k->op >> 8, k->op & 255);
    default:
        return tpl_syntax(p->t, k->line, "expected %s, found a literal", wanted);
    }
}

enum err tpl_expect_op(struct parser *p, int32_t op)
{
    const char wanted[] = {'\'', (char)op, '\'', 0};
    return tpl_skip_op(p, op) ? OK : tpl_unexpected(p, wanted);
}

enum err tpl_expect_name(struct parser *p, struct text *out)
{
    if (p->toks[p->at].type != TOK_NAME)
        return tpl_unexpected(p, "a name");
    *out = p->toks[p->at++].u.text;
    return OK;
}

enum err tpl_enter_nest(struct parser *p)
{
    if (p->nest >= NEST_MAX)
        return tpl_syntax(p->t, p->toks[p->at].line, "nested too deeply (limit %d)", NEST_MAX);
    p->nest++;
    return OK;
}

static int32_t line_of(const struct parser *p)
{
    return p->toks[p->at].line;
}

/* left op right, with the line of `left`. */
static enum err binary(struct parser *p, enum node_type type, int32_t op, int32_t left,
                       int32_t right, int32_t *out)
{
    struct node n = {.type = (uint8_t)type, .op = op, .a = left, .b = right};
    n.line = p->t->nodes[left].line;
    return tpl_add(p, n, out);
}

/* ( ... ): a grouping or a tuple; [ ... ]; { key: value, ... }. */
static enum err brackets(struct parser *p, char close, int32_t *out)
{
    struct node n = {.type = close == ')'   ? NODE_TUPLE
                             : close == ']' ? NODE_LIST
                                            : NODE_DICT,
                     .line = line_of(p)};
    struct chain list = {0};
    int32_t item;
    int n_items = 0, comma = 0;
    p->at++;
    TRY(tpl_enter_nest(p));
    while (!tpl_is_op(p, close)) {
        if (n_items++) {
            TRY(tpl_expect_op(p, ','));
            comma = 1;
            if (tpl_is_op(p, close))
                break;
        }
        TRY(tpl_expr(p, WITH_COND, &item));
        tpl_append(p, &list, item);
        if (n.type != NODE_DICT)
            continue;
        TRY(tpl_expect_op(p, ':'));
        TRY(tpl_expr(p, WITH_COND, &item));
        tpl_append(p, &list, item);
    }
    p->at++;
    p->nest--;
    n.a = *out = list.first;
    return n.type == NODE_TUPLE && n_items == 1 && !comma ? OK : tpl_add(p, n, out);
}

/* "a" "b" is one string, as in Python. */
static enum err string_literal(struct parser *p, int32_t *out)
{
    const struct tok *k = &p->toks[p->at++];
    struct node n = {.type = NODE_STR, .line = k->line, .u.text = k->u.text};
    while (p->toks[p->at].type == TOK_STR) {
        /* decoded literals are contiguous */
        CHECK(n.u.text.at + n.u.text.n == p->toks[p->at].u.text.at);
        n.u.text.n += p->toks[p->at++].u.text.n;
    }
    return tpl_add(p, n, out);
}

static enum err name_literal(struct parser *p, int32_t *out)
{
    static const struct {
        const char *word;
        enum node_type type;
        int value;
    } words[] = {{"true", NODE_BOOL, 1},  {"True", NODE_BOOL, 1}, {"false", NODE_BOOL, 0},
                 {"False", NODE_BOOL, 0}, {"none", NODE_NONE, 0}, {"None", NODE_NONE, 0}};
    struct node n = {.type = NODE_NAME, .line = line_of(p)};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!tpl_skip_word(p, words[i].word))
            continue;
        n.type = (uint8_t)words[i].type;
        n.u.i = words[i].value;
        return tpl_add(p, n, out);
    }
    TRY(tpl_name(p, p->toks[p->at++].u.text, &n.name));
    return tpl_add(p, n, out);
}

enum err tpl_primary(struct parser *p, int32_t *out)
{
    const struct tok *k = &p->toks[p->at];
    struct node n = {.type = NODE_INT, .line = k->line, .u.i = k->u.i};
    switch (k->type) {
    case TOK_NAME:
        return name_literal(p, out);
    case TOK_STR:
        return string_literal(p, out);
    case TOK_FLOAT:
        n.type = NODE_FLOAT;
        n.u.f = k->u.f;
        break;
    case TOK_INT:
        break;
    default:
        return tpl_is_op(p, '(')   ? brackets(p, ')', out)
               : tpl_is_op(p, '[') ? brackets(p, ']', out)
               : tpl_is_op(p, '{') ? brackets(p, '}', out)
                                   : tpl_unexpected(p, "an expression");
    }
    p->at++;
    return tpl_add(p, n, out);
}

/* A bound of a slice; missing before ':' or ']'. */
static enum err bound(struct parser *p, int32_t *out)
{
    *out = 0;
    if (tpl_is_op(p, ':') || tpl_is_op(p, ']'))
        return OK;
    return tpl_expr(p, WITH_COND, out);
}

/* [index] or [from:to:step] after `object`. */
static enum err subscript(struct parser *p, int32_t object, int32_t *out)
{
    struct node n = {.type = NODE_ITEM, .line = line_of(p), .a = object};
    p->at++;
    TRY(tpl_enter_nest(p));
    TRY(bound(p, &n.b));
    for (int i = 0; i < 2 && tpl_skip_op(p, ':'); i++) {
        n.type = NODE_SLICE;
        TRY(bound(p, i ? &n.d : &n.c));
    }
    if (tpl_is_op(p, ','))
        return tpl_syntax(p->t, n.line, "an index of several parts is not supported");
    if (n.type == NODE_ITEM && !n.b)
        return tpl_unexpected(p, "an index");
    TRY(tpl_expect_op(p, ']'));
    p->nest--;
    return tpl_add(p, n, out);
}

/* .name or .0 after `object`. */
static enum err attribute(struct parser *p, int32_t object, int32_t *out)
{
    struct node n = {.type = NODE_ATTR, .line = line_of(p), .a = object};
    p->at++;
    if (p->toks[p->at].type == TOK_INT) {
        TRY(tpl_primary(p, &n.b));
        return binary(p, NODE_ITEM, 0, object, n.b, out);
    }
    TRY(tpl_expect_name(p, &n.u.text));
    return tpl_add(p, n, out);
}

/* Parses (value, ..., name=value, ...) to a list. */
static enum err call_args(struct parser *p, int32_t *first)
{
    struct chain list = {0};
    int named = 0;
    TRY(tpl_expect_op(p, '('));
    TRY(tpl_enter_nest(p));
    while (!tpl_is_op(p, ')')) {
        if (list.first) {
            TRY(tpl_expect_op(p, ','));
            if (tpl_is_op(p, ')'))
                break;
        }
        const struct tok *k = &p->toks[p->at];
        struct node n = {.type = NODE_KWARG, .line = k->line, .u.text = k->u.text};
        int is_named = k->type == TOK_NAME && k[1].type == TOK_OP && k[1].op == '=';
        if (named && !is_named)
            return tpl_syntax(p->t, k->line, "a positional argument follows a named one");
        named = is_named;
        p->at += is_named ? 2 : 0;
        TRY(tpl_expr(p, WITH_COND, &n.a));
        int32_t arg = n.a;
        if (is_named)
            TRY(tpl_add(p, n, &arg));
        tpl_append(p, &list, arg);
    }
    p->at++;
    p->nest--;
    *first = list.first;
    return OK;
}

static enum err call(struct parser *p, int32_t callee, int32_t *out)
{
    struct node n = {.type = NODE_CALL, .line = line_of(p), .a = callee};
    TRY(call_args(p, &n.b));
    return tpl_add(p, n, out);
}

static enum err postfix(struct parser *p, int32_t node, int32_t *out)
{
    while (1) {
        if (tpl_is_op(p, '.'))
            TRY(attribute(p, node, &node));
        else if (tpl_is_op(p, '['))
            TRY(subscript(p, node, &node));
        else if (tpl_is_op(p, '('))
            TRY(call(p, node, &node));
        else
            break;
    }
    *out = node;
    return OK;
}

/* Reads the name of a filter or test to n->u.text and its index to n->op. An unknown name is an
 * error, unless an `if` may keep it from running. */
static enum err callable(struct parser *p, struct node *n)
{
    int is_filter = n->type == NODE_FILTER;
    TRY(tpl_expect_name(p, &n->u.text));
    struct val name = tpl_str(p->t->text + n->u.text.at, n->u.text.n);
    n->op = is_filter ? tpl_filter_find(name) : tpl_test_find(name);
    if (n->op < 0 && !p->soft)
        return tpl_syntax(p->t, n->line, "unknown %s '%.*s'", is_filter ? "filter" : "test",
                          n->u.text.n, name.u.s);
    return OK;
}

enum err tpl_filters(struct parser *p, int32_t input, int32_t *out)
{
    *out = input;
    do {
        struct node n = {.type = NODE_FILTER, .line = line_of(p), .a = *out};
        TRY(callable(p, &n));
        if (tpl_is_op(p, '('))
            TRY(call_args(p, &n.b));
        TRY(tpl_add(p, n, out));
    } while (tpl_skip_op(p, '|'));
    return OK;
}

/* Parses is [not] name [args], after `is`. */
static enum err test(struct parser *p, int32_t input, int32_t *out)
{
    struct node n = {.type = NODE_TEST, .line = line_of(p), .a = input};
    int negated = tpl_skip_word(p, "not");
    TRY(callable(p, &n));
    const struct tok *k = &p->toks[p->at];
    if (tpl_is_op(p, '(')) {
        TRY(call_args(p, &n.b));
    } else if ((k->type >= TOK_NAME && k->type <= TOK_FLOAT) || tpl_is_op(p, '[') ||
               tpl_is_op(p, '{')) {
        if (tpl_is_word(p, "is"))
            return tpl_syntax(p->t, n.line, "tests cannot be chained with is");
        if (!tpl_is_word(p, "else") && !tpl_is_word(p, "or") && !tpl_is_word(p, "and")) {
            TRY(tpl_primary(p, &n.b));
            TRY(postfix(p, n.b, &n.b));
        }
    }
    TRY(tpl_add(p, n, out));
    return negated ? binary(p, NODE_NOT, 0, *out, 0, out) : OK;
}

/* -x and +x bind tighter than filters: -x|int is (-x)|int. */
static enum err unary(struct parser *p, int with_filters, int32_t *out)
{
    if (tpl_is_op(p, '-') || tpl_is_op(p, '+')) {
        int32_t op = p->toks[p->at++].op;
        TRY(tpl_enter_nest(p));
        TRY(unary(p, 0, out));
        p->nest--;
        TRY(binary(p, NODE_SIGN, op, *out, 0, out));
    } else {
        TRY(tpl_primary(p, out));
    }
    TRY(postfix(p, *out, out));
    while (with_filters) {
        if (tpl_skip_op(p, '|'))
            TRY(tpl_filters(p, *out, out));
        else if (tpl_skip_word(p, "is"))
            TRY(test(p, *out, out));
        else if (tpl_is_op(p, '('))
            TRY(call(p, *out, out));
        else
            break;
    }
    return OK;
}

static enum err product(struct parser *p, int32_t *out)
{
    int32_t right;
    TRY(unary(p, 1, out));
    while (tpl_is_op(p, '*') || tpl_is_op(p, '/') || tpl_is_op(p, '%') ||
           tpl_is_op(p, OP2('/', '/'))) {
        int32_t op = p->toks[p->at++].op;
        TRY(unary(p, 1, &right));
        TRY(binary(p, NODE_BINARY, op, *out, right, out));
    }
    return OK;
}

static enum err concat(struct parser *p, int32_t *out)
{
    struct chain list = {0};
    TRY(product(p, out));
    if (!tpl_is_op(p, '~'))
        return OK;
    tpl_append(p, &list, *out);
    while (tpl_skip_op(p, '~')) {
        TRY(product(p, out));
        tpl_append(p, &list, *out);
    }
    return binary(p, NODE_CONCAT, 0, list.first, 0, out);
}

static enum err sum(struct parser *p, int32_t *out)
{
    int32_t right;
    TRY(concat(p, out));
    while (tpl_is_op(p, '+') || tpl_is_op(p, '-')) {
        int32_t op = p->toks[p->at++].op;
        TRY(concat(p, &right));
        TRY(binary(p, NODE_BINARY, op, *out, right, out));
    }
    return OK;
}

/* Consumes a comparison operator: returns its enum compare, or -1. */
static int compare_op(struct parser *p)
{
    static const int32_t ops[] = {
        [CMP_EQ] = OP2('=', '='), [CMP_NE] = OP2('!', '='), [CMP_LT] = '<',
        [CMP_LE] = OP2('<', '='), [CMP_GT] = '>',           [CMP_GE] = OP2('>', '=')};
    for (int i = CMP_EQ; i <= CMP_GE; i++) {
        if (tpl_skip_op(p, ops[i]))
            return i;
    }
    if (tpl_skip_word(p, "in"))
        return CMP_IN;
    if (!tpl_skip_word(p, "not"))
        return -1;
    if (tpl_skip_word(p, "in"))
        return CMP_NOT_IN;
    p->at--;
    return -1;
}

static enum err comparison(struct parser *p, int32_t *out)
{
    int32_t right, node;
    struct chain list = {0};
    int op;
    TRY(sum(p, out));
    while ((op = compare_op(p)) >= 0) {
        TRY(sum(p, &right));
        TRY(binary(p, NODE_OPERAND, op, right, 0, &node));
        tpl_append(p, &list, node);
    }
    return list.first ? binary(p, NODE_COMPARE, 0, *out, list.first, out) : OK;
}

static enum err negation(struct parser *p, int32_t *out)
{
    int nots = 0;
    while (tpl_skip_word(p, "not")) {
        TRY(tpl_enter_nest(p));
        nots++;
    }
    p->nest -= nots;
    TRY(comparison(p, out));
    for (; nots; nots--)
        TRY(binary(p, NODE_NOT, 0, *out, 0, out));
    return OK;
}

static enum err conjunction(struct parser *p, int32_t *out)
{
    int32_t right;
    TRY(negation(p, out));
    while (tpl_skip_word(p, "and")) {
        TRY(negation(p, &right));
        TRY(binary(p, NODE_AND, 0, *out, right, out));
    }
    return OK;
}

static enum err disjunction(struct parser *p, int32_t *out)
{
    int32_t right;
    TRY(conjunction(p, out));
    while (tpl_skip_word(p, "or")) {
        TRY(conjunction(p, &right));
        TRY(binary(p, NODE_OR, 0, *out, right, out));
    }
    return OK;
}

enum err tpl_expr(struct parser *p, enum cond cond, int32_t *out)
{
    int soft = p->soft;
    TRY(tpl_enter_nest(p));
    TRY(disjunction(p, out));
    while (cond == WITH_COND && tpl_skip_word(p, "if")) {
        struct node n = {.type = NODE_COND, .line = line_of(p), .b = *out};
        p->soft = 1;
        TRY(disjunction(p, &n.a));
        if (tpl_skip_word(p, "else"))
            TRY(tpl_expr(p, WITH_COND, &n.c));
        p->soft = soft;
        TRY(tpl_add(p, n, out));
    }
    p->nest--;
    return OK;
}

enum err tpl_tuple(struct parser *p, enum cond cond, int32_t *out)
{
    struct node n = {.type = NODE_TUPLE, .line = line_of(p)};
    struct chain list = {0};
    int comma = 0;
    do {
        enum tok_type type = p->toks[p->at].type;
        if (type == TOK_VAR_END || type == TOK_BLOCK_END || tpl_is_op(p, ')'))
            break;
        TRY(tpl_expr(p, cond, out));
        tpl_append(p, &list, *out);
    } while (tpl_skip_op(p, ',') && (comma = 1));
    if (!list.first)
        return tpl_unexpected(p, "an expression");
    n.a = *out = list.first;
    return comma ? tpl_add(p, n, out) : OK;
}
