/* engine/chat/template_expr.c - chat template expressions to nodes.
 *
 * Owns: precedence, literals, calls, filters, tests. Refuses: statements.
 * The one fact: chains (a + b + c, x.y.z, f|g|h) are loops here, so only brackets and prefix
 * operators recurse, and those count in p->nest. */
#include "engine/chat/template_parse.h"

#include <string.h>

#include "engine/chat/template_call.h"

static int32_t line_of(const struct tp *p)
{
    return p->toks[p->at].line;
}

static enum err binary(struct tp *p, enum tn_type type, int32_t op, int32_t left, int32_t right,
                       int32_t *out)
{
    int32_t node;
    TRY(tp_node(p, type, p->t->nodes[left].line, &node));
    struct tn *n = &p->t->nodes[node];
    n->op = op;
    n->a = left;
    n->b = right;
    *out = node;
    return tp_close(p, node);
}

/* Comma-separated expressions up to `close`, which is consumed. */
static enum err items(struct tp *p, int32_t close, struct tp_list *list, int *n_items, int *comma)
{
    *n_items = *comma = 0;
    while (!tp_is_op(p, close)) {
        if (*n_items) {
            TRY(tp_expect_op(p, ','));
            *comma = 1;
            if (tp_is_op(p, close))
                break;
        }
        int32_t item;
        TRY(tp_expr(p, TP_WITH_COND, &item));
        tp_append(p, list, item);
        ++*n_items;
    }
    p->at++;
    return OK;
}

/* ( ... ): a grouping, or a tuple. */
static enum err paren(struct tp *p, int32_t *out)
{
    int32_t line = line_of(p), node;
    struct tp_list list = {-1, -1};
    int n_items, comma;
    p->at++;
    TRY(tp_enter(p));
    TRY(items(p, ')', &list, &n_items, &comma));
    p->nest--;
    if (n_items == 1 && !comma) {
        *out = list.first;
        return OK;
    }
    TRY(tp_node(p, TN_TUPLE, line, &node));
    p->t->nodes[node].a = list.first;
    *out = node;
    return tp_close(p, node);
}

static enum err list_literal(struct tp *p, int32_t *out)
{
    int32_t line = line_of(p), node;
    struct tp_list list = {-1, -1};
    int n_items, comma;
    p->at++;
    TRY(tp_enter(p));
    TRY(items(p, ']', &list, &n_items, &comma));
    p->nest--;
    TRY(tp_node(p, TN_LIST, line, &node));
    p->t->nodes[node].a = list.first;
    *out = node;
    return tp_close(p, node);
}

static enum err dict_literal(struct tp *p, int32_t *out)
{
    int32_t line = line_of(p), node, item;
    struct tp_list list = {-1, -1};
    p->at++;
    TRY(tp_enter(p));
    while (!tp_is_op(p, '}')) {
        if (list.first >= 0) {
            TRY(tp_expect_op(p, ','));
            if (tp_is_op(p, '}'))
                break;
        }
        TRY(tp_expr(p, TP_WITH_COND, &item));
        tp_append(p, &list, item);
        TRY(tp_expect_op(p, ':'));
        TRY(tp_expr(p, TP_WITH_COND, &item));
        tp_append(p, &list, item);
    }
    p->at++;
    p->nest--;
    TRY(tp_node(p, TN_DICT, line, &node));
    p->t->nodes[node].a = list.first;
    *out = node;
    return tp_close(p, node);
}

/* "a" "b" is one string, as in Python. */
static enum err string_literal(struct tp *p, int32_t *out)
{
    const struct tok *k = &p->toks[p->at++];
    TRY(tp_node(p, TN_STR, k->line, out));
    struct tn *n = &p->t->nodes[*out];
    n->u.text = k->u.text;
    while (p->toks[p->at].type == TOK_STR) {
        /* decoded literals follow each other without gaps */
        CHECK(n->u.text.at + n->u.text.n == p->toks[p->at].u.text.at);
        n->u.text.n += p->toks[p->at++].u.text.n;
    }
    return OK;
}

static enum err name_literal(struct tp *p, int32_t *out)
{
    static const struct {
        const char *word;
        enum tn_type type;
        int value;
    } words[] = {{"true", TN_BOOL, 1},  {"True", TN_BOOL, 1}, {"false", TN_BOOL, 0},
                 {"False", TN_BOOL, 0}, {"none", TN_NONE, 0}, {"None", TN_NONE, 0}};
    int32_t line = line_of(p), name;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!tp_skip_word(p, words[i].word))
            continue;
        TRY(tp_node(p, words[i].type, line, out));
        p->t->nodes[*out].u.i = words[i].value;
        return OK;
    }
    TRY(tp_name(p, p->toks[p->at++].u.text, &name));
    TRY(tp_node(p, TN_NAME, line, out));
    p->t->nodes[*out].name = name;
    return OK;
}

enum err tp_primary(struct tp *p, int32_t *out)
{
    const struct tok *k = &p->toks[p->at];
    switch (k->type) {
    case TOK_NAME:
        return name_literal(p, out);
    case TOK_STR:
        return string_literal(p, out);
    case TOK_INT:
        p->at++;
        TRY(tp_node(p, TN_INT, k->line, out));
        p->t->nodes[*out].u.i = k->u.i;
        return OK;
    case TOK_FLOAT:
        p->at++;
        TRY(tp_node(p, TN_FLOAT, k->line, out));
        p->t->nodes[*out].u.f = k->u.f;
        return OK;
    default:
        break;
    }
    if (tp_is_op(p, '('))
        return paren(p, out);
    if (tp_is_op(p, '['))
        return list_literal(p, out);
    if (tp_is_op(p, '{'))
        return dict_literal(p, out);
    return tp_unexpected(p, "an expression");
}

/* One bound of a slice: missing before ':' or ']'. */
static enum err bound(struct tp *p, int32_t *out)
{
    *out = -1;
    if (tp_is_op(p, ':') || tp_is_op(p, ']'))
        return OK;
    return tp_expr(p, TP_WITH_COND, out);
}

/* [index] or [from:to:step] behind `object`. */
static enum err subscript(struct tp *p, int32_t object, int32_t *out)
{
    int32_t line = line_of(p), bounds[3] = {-1, -1, -1};
    int n = 0;
    p->at++;
    TRY(tp_enter(p));
    TRY(bound(p, &bounds[0]));
    while (n < 2 && tp_skip_op(p, ':'))
        TRY(bound(p, &bounds[++n]));
    if (tp_is_op(p, ','))
        return tn_fail(p->t, line, "an index of several parts is not supported");
    if (n == 0 && bounds[0] < 0)
        return tp_unexpected(p, "an index");
    TRY(tp_expect_op(p, ']'));
    p->nest--;
    int32_t node;
    TRY(tp_node(p, n ? TN_SLICE : TN_ITEM, line, &node));
    struct tn *x = &p->t->nodes[node];
    x->a = object;
    x->b = bounds[0];
    x->c = bounds[1];
    x->d = bounds[2];
    *out = node;
    return tp_close(p, node);
}

/* .name or .0 behind `object`. */
static enum err attribute(struct tp *p, int32_t object, int32_t *out)
{
    int32_t line = line_of(p), node, index;
    p->at++;
    const struct tok *k = &p->toks[p->at];
    if (k->type == TOK_INT) {
        TRY(tp_primary(p, &index));
        return binary(p, TN_ITEM, 0, object, index, out);
    }
    struct tn_text text;
    TRY(tp_expect_name(p, &text));
    TRY(tp_node(p, TN_ATTR, line, &node));
    p->t->nodes[node].a = object;
    p->t->nodes[node].u.text = text;
    *out = node;
    return tp_close(p, node);
}

/* name=value or a value. */
static enum err call_arg(struct tp *p, int *named, int32_t *out)
{
    const struct tok *k = &p->toks[p->at];
    int32_t line = line_of(p), value;
    int is_named = k->type == TOK_NAME && k[1].type == TOK_OP && k[1].op == '=';
    if (*named && !is_named)
        return tn_fail(p->t, line, "a positional argument follows a named one");
    *named = is_named;
    p->at += is_named ? 2 : 0;
    TRY(tp_expr(p, TP_WITH_COND, &value));
    *out = value;
    if (!is_named)
        return OK;
    TRY(tp_node(p, TN_KWARG, line, out));
    struct tn *n = &p->t->nodes[*out];
    n->a = value;
    n->u.text = k->u.text;
    return tp_close(p, *out);
}

enum err tp_call_args(struct tp *p, int32_t *first)
{
    struct tp_list list = {-1, -1};
    int named = 0;
    TRY(tp_expect_op(p, '('));
    TRY(tp_enter(p));
    while (!tp_is_op(p, ')')) {
        if (list.first >= 0) {
            TRY(tp_expect_op(p, ','));
            if (tp_is_op(p, ')'))
                break;
        }
        int32_t arg;
        TRY(call_arg(p, &named, &arg));
        tp_append(p, &list, arg);
    }
    p->at++;
    p->nest--;
    *first = list.first;
    return OK;
}

static enum err call(struct tp *p, int32_t callee, int32_t *out)
{
    int32_t line = line_of(p), args;
    TRY(tp_call_args(p, &args));
    int32_t node;
    TRY(tp_node(p, TN_CALL, line, &node));
    p->t->nodes[node].a = callee;
    p->t->nodes[node].b = args;
    *out = node;
    return tp_close(p, node);
}

static enum err postfix(struct tp *p, int32_t node, int32_t *out)
{
    while (1) {
        if (tp_is_op(p, '.'))
            TRY(attribute(p, node, &node));
        else if (tp_is_op(p, '['))
            TRY(subscript(p, node, &node));
        else if (tp_is_op(p, '('))
            TRY(call(p, node, &node));
        else
            break;
    }
    *out = node;
    return OK;
}

/* Looks a filter or test up; unknown ones are errors unless an `if` may keep them from running. */
static enum err find_callable(struct tp *p, struct tn_text text, int32_t line, int is_filter,
                              int *id)
{
    const char *s = p->t->text + text.at;
    *id = is_filter ? tc_filter_find(s, text.n) : tc_test_find(s, text.n);
    if (*id < 0 && !p->soft)
        return tn_fail(p->t, line, "unknown %s '%.*s'", is_filter ? "filter" : "test", text.n, s);
    return OK;
}

enum err tp_filters(struct tp *p, int32_t input, int32_t *out)
{
    do {
        int32_t line = line_of(p), node, args = -1;
        struct tn_text text;
        int id;
        TRY(tp_expect_name(p, &text));
        TRY(find_callable(p, text, line, 1, &id));
        if (tp_is_op(p, '('))
            TRY(tp_call_args(p, &args));
        TRY(tp_node(p, TN_FILTER, line, &node));
        struct tn *n = &p->t->nodes[node];
        n->op = id;
        n->u.text = text;
        n->a = input;
        n->b = args;
        TRY(tp_close(p, node));
        input = node;
    } while (tp_skip_op(p, '|'));
    *out = input;
    return OK;
}

/* is [not] name [args], `is` being consumed. */
static enum err test(struct tp *p, int32_t input, int32_t *out)
{
    int32_t line = line_of(p), node, args = -1;
    int negated = tp_skip_word(p, "not"), id;
    struct tn_text text;
    TRY(tp_expect_name(p, &text));
    TRY(find_callable(p, text, line, 0, &id));
    const struct tok *k = &p->toks[p->at];
    if (tp_is_op(p, '(')) {
        TRY(tp_call_args(p, &args));
    } else if ((k->type >= TOK_NAME && k->type <= TOK_FLOAT) || tp_is_op(p, '[') ||
               tp_is_op(p, '{')) {
        if (tp_is_word(p, "is"))
            return tn_fail(p->t, line, "tests cannot be chained with is");
        if (!tp_is_word(p, "else") && !tp_is_word(p, "or") && !tp_is_word(p, "and")) {
            TRY(tp_primary(p, &args));
            TRY(postfix(p, args, &args));
        }
    }
    TRY(tp_node(p, TN_TEST, line, &node));
    struct tn *n = &p->t->nodes[node];
    n->op = id;
    n->u.text = text;
    n->a = input;
    n->b = args;
    TRY(tp_close(p, node));
    *out = node;
    return negated ? binary(p, TN_NOT, 0, node, -1, out) : OK;
}

static enum err filter_chain(struct tp *p, int32_t node, int32_t *out)
{
    while (1) {
        if (tp_skip_op(p, '|'))
            TRY(tp_filters(p, node, &node));
        else if (tp_skip_word(p, "is"))
            TRY(test(p, node, &node));
        else if (tp_is_op(p, '('))
            TRY(call(p, node, &node));
        else
            break;
    }
    *out = node;
    return OK;
}

/* -x and +x bind tighter than filters: -x|abs is (-x)|abs. */
static enum err unary(struct tp *p, int with_filters, int32_t *out)
{
    int32_t node;
    if (tp_is_op(p, '-') || tp_is_op(p, '+')) {
        enum tn_type type = tp_is_op(p, '-') ? TN_NEG : TN_POS;
        p->at++;
        TRY(tp_enter(p));
        TRY(unary(p, 0, &node));
        p->nest--;
        TRY(binary(p, type, 0, node, -1, &node));
    } else {
        TRY(tp_primary(p, &node));
    }
    TRY(postfix(p, node, &node));
    if (with_filters)
        TRY(filter_chain(p, node, &node));
    *out = node;
    return OK;
}

static enum err product(struct tp *p, int32_t *out)
{
    int32_t left, right;
    TRY(unary(p, 1, &left));
    while (tp_is_op(p, '*') || tp_is_op(p, '/') || tp_is_op(p, '%') ||
           tp_is_op(p, TOK_OP2('/', '/'))) {
        int32_t op = p->toks[p->at++].op;
        TRY(unary(p, 1, &right));
        TRY(binary(p, TN_BINARY, op, left, right, &left));
    }
    *out = left;
    return OK;
}

static enum err concat(struct tp *p, int32_t *out)
{
    int32_t item, node;
    struct tp_list list = {-1, -1};
    TRY(product(p, &item));
    if (!tp_is_op(p, '~')) {
        *out = item;
        return OK;
    }
    tp_append(p, &list, item);
    while (tp_skip_op(p, '~')) {
        TRY(product(p, &item));
        tp_append(p, &list, item);
    }
    TRY(tp_node(p, TN_CONCAT, p->t->nodes[list.first].line, &node));
    p->t->nodes[node].a = list.first;
    *out = node;
    return tp_close(p, node);
}

static enum err sum(struct tp *p, int32_t *out)
{
    int32_t left, right;
    TRY(concat(p, &left));
    while (tp_is_op(p, '+') || tp_is_op(p, '-')) {
        int32_t op = p->toks[p->at++].op;
        TRY(concat(p, &right));
        TRY(binary(p, TN_BINARY, op, left, right, &left));
    }
    *out = left;
    return OK;
}

/* Consumes a comparison operator: its enum tc_compare, or -1. */
static int compare_op(struct tp *p)
{
    static const int32_t ops[] = {[TC_EQ] = TOK_OP2('=', '='),
                                  [TC_NE] = TOK_OP2('!', '='),
                                  [TC_LT] = '<',
                                  [TC_LE] = TOK_OP2('<', '='),
                                  [TC_GT] = '>',
                                  [TC_GE] = TOK_OP2('>', '=')};
    for (int i = TC_EQ; i <= TC_GE; i++) {
        if (tp_skip_op(p, ops[i]))
            return i;
    }
    if (tp_skip_word(p, "in"))
        return TC_IN;
    if (!tp_skip_word(p, "not"))
        return -1;
    if (tp_skip_word(p, "in"))
        return TC_NOT_IN;
    p->at--;
    return -1;
}

static enum err comparison(struct tp *p, int32_t *out)
{
    int32_t first, right, node;
    struct tp_list list = {-1, -1};
    int op;
    TRY(sum(p, &first));
    while ((op = compare_op(p)) >= 0) {
        TRY(sum(p, &right));
        TRY(binary(p, TN_OPERAND, op, right, -1, &node));
        tp_append(p, &list, node);
    }
    if (list.first < 0) {
        *out = first;
        return OK;
    }
    return binary(p, TN_COMPARE, 0, first, list.first, out);
}

static enum err negation(struct tp *p, int32_t *out)
{
    int nots = 0;
    while (tp_skip_word(p, "not")) {
        TRY(tp_enter(p));
        nots++;
    }
    p->nest -= nots;
    TRY(comparison(p, out));
    for (; nots; nots--)
        TRY(binary(p, TN_NOT, 0, *out, -1, out));
    return OK;
}

static enum err conjunction(struct tp *p, int32_t *out)
{
    int32_t left, right;
    TRY(negation(p, &left));
    while (tp_skip_word(p, "and")) {
        TRY(negation(p, &right));
        TRY(binary(p, TN_AND, 0, left, right, &left));
    }
    *out = left;
    return OK;
}

static enum err disjunction(struct tp *p, int32_t *out)
{
    int32_t left, right;
    TRY(conjunction(p, &left));
    while (tp_skip_word(p, "or")) {
        TRY(conjunction(p, &right));
        TRY(binary(p, TN_OR, 0, left, right, &left));
    }
    *out = left;
    return OK;
}

enum err tp_expr(struct tp *p, enum tp_cond cond, int32_t *out)
{
    int32_t value, test_node, other, node;
    TRY(tp_enter(p));
    int soft = p->soft;
    TRY(disjunction(p, &value));
    while (cond == TP_WITH_COND && tp_skip_word(p, "if")) {
        int32_t line = line_of(p);
        p->soft = 1;
        TRY(disjunction(p, &test_node));
        other = -1;
        if (tp_skip_word(p, "else"))
            TRY(tp_expr(p, TP_WITH_COND, &other));
        p->soft = soft;
        TRY(tp_node(p, TN_COND, line, &node));
        struct tn *n = &p->t->nodes[node];
        n->a = test_node;
        n->b = value;
        n->c = other;
        TRY(tp_close(p, node));
        value = node;
    }
    p->nest--;
    *out = value;
    return OK;
}

enum err tp_tuple(struct tp *p, enum tp_cond cond, int32_t *out)
{
    int32_t line = line_of(p), item, node;
    struct tp_list list = {-1, -1};
    int comma = 0;
    while (1) {
        enum tok_type type = p->toks[p->at].type;
        if (type == TOK_VAR_END || type == TOK_BLOCK_END || tp_is_op(p, ')'))
            break;
        TRY(tp_expr(p, cond, &item));
        tp_append(p, &list, item);
        if (!tp_skip_op(p, ','))
            break;
        comma = 1;
    }
    if (list.first < 0)
        return tp_unexpected(p, "an expression");
    if (!comma) {
        *out = list.first;
        return OK;
    }
    TRY(tp_node(p, TN_TUPLE, line, &node));
    p->t->nodes[node].a = list.first;
    *out = node;
    return tp_close(p, node);
}
