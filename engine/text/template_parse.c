/* engine/text/template_parse.c - chat template text to a tree: statements, and the parsed template.
 *
 * Owns: tags; opening and freeing a template. Refuses: include, import, extends and block, which
 * need a file system or a page layout; call and with, which no model's template uses. Note: bodies
 * are parsed by one function that recurses per nested block; p->nest bounds the depth. */
#include "engine/text/template_tree.h"

#include <stdlib.h>
#include <string.h>

static enum err expect_end(struct parser *p)
{
    if (p->toks[p->at].type != TOK_BLOCK_END)
        return tpl_unexpected(p, "'%}'");
    p->at++;
    return OK;
}

static enum err body(struct parser *p, const char *const *ends, int32_t *first, int *which);

/* Parses the body after a tag whose "%}" is still to come, up to one of `ends`, which is consumed
 * (with its "%}" if it is the last of them). */
static enum err block(struct parser *p, const char *const *ends, int32_t *first, int *which)
{
    TRY(expect_end(p));
    TRY(tpl_enter_nest(p));
    TRY(body(p, ends, first, which));
    p->nest--;
    return OK;
}

/* A body with its own frame: an unknown filter is an error again. */
static enum err inner_block(struct parser *p, const char *const *ends, int32_t *first, int *which)
{
    int soft = p->soft;
    p->soft = 0;
    TRY(block(p, ends, first, which));
    p->soft = soft;
    return OK;
}

/* The same with a single end, e.g. "endset". */
static enum err whole_block(struct parser *p, const char *end, int32_t *first)
{
    const char *const ends[] = {end, NULL};
    int which;
    return inner_block(p, ends, first, &which);
}

static enum err parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct chain list = {0};
    int soft = p->soft, which = 0;
    p->soft = 1;
    while (which < 2) {
        struct node branch = {.type = NODE_BRANCH};
        int is_else = which == 1;
        int32_t at;
        if (!is_else)
            TRY(tpl_tuple(p, NO_COND, &branch.a));
        TRY(block(p, is_else ? ends + 2 : ends, &branch.b, &which));
        branch.line = p->toks[p->at].line;
        TRY(tpl_add(p, branch, &at));
        tpl_append(p, &list, at);
        which = is_else ? 2 : which;
    }
    p->soft = soft;
    n->a = list.first;
    return OK;
}

/* name, name.attribute (only if a namespace may be assigned), or (a, b). */
static enum err target_item(struct parser *p, int with_namespace, int32_t *out)
{
    const struct tok *k = &p->toks[p->at];
    if (k->type != TOK_NAME || k[1].type != TOK_OP || k[1].op != '.')
        return tpl_primary(p, out);
    struct node n = {.type = NODE_NSREF, .line = k->line};
    TRY(tpl_name(p, k->u.text, &n.name));
    p->at += 2;
    TRY(tpl_expect_name(p, &n.u.text));
    if (!with_namespace)
        return tpl_syntax(p->t, n.line, "only {%% set %%} may assign to an attribute");
    return tpl_add(p, n, out);
}

static enum err check_target(struct parser *p, int32_t node, int nested)
{
    const struct node *n = &p->t->nodes[node];
    if (n->type == NODE_NAME || n->type == NODE_NSREF)
        return OK;
    if (n->type != NODE_TUPLE || nested > 8)
        return tpl_syntax(p->t, n->line, "cannot assign to this");
    for (int32_t i = n->a; i; i = p->t->nodes[i].next)
        TRY(check_target(p, i, nested + 1));
    return OK;
}

/* One target, or several: a, b. */
static enum err target(struct parser *p, int with_namespace, int32_t *out)
{
    struct node n = {.type = NODE_TUPLE, .line = p->toks[p->at].line};
    struct chain list = {0};
    int comma = 0;
    do {
        if (tpl_is_word(p, "in") || tpl_is_op(p, '=') || p->toks[p->at].type == TOK_BLOCK_END)
            break;
        TRY(target_item(p, with_namespace, out));
        TRY(check_target(p, *out, 0));
        tpl_append(p, &list, *out);
    } while (tpl_skip_op(p, ',') && (comma = 1));
    if (!list.first)
        return tpl_unexpected(p, "a name");
    n.a = *out = list.first;
    return comma ? tpl_add(p, n, out) : OK;
}

static enum err parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    int which;
    TRY(target(p, 0, &n->a));
    if (!tpl_skip_word(p, "in"))
        return tpl_unexpected(p, "'in'");
    TRY(tpl_tuple(p, NO_COND, &n->b));
    if (tpl_skip_word(p, "if"))
        TRY(tpl_expr(p, WITH_COND, &n->c));
    p->loops++;
    TRY(inner_block(p, ends, &n->d, &which));
    p->loops--;
    return which == 0 ? whole_block(p, "endfor", &n->e) : OK;
}

static enum err parse_set(struct parser *p, struct node *n)
{
    TRY(target(p, 1, &n->a));
    if (tpl_skip_op(p, '='))
        return tpl_tuple(p, WITH_COND, &n->b);
    if (p->t->nodes[n->a].type == NODE_TUPLE)
        return tpl_syntax(p->t, n->line, "a set block needs one name");
    n->type = NODE_SET_BLOCK;
    if (tpl_skip_op(p, '|'))
        TRY(tpl_filters(p, 0, &n->b));
    return whole_block(p, "endset", &n->c);
}

static enum err parse_macro(struct parser *p, struct node *n)
{
    struct chain list = {0};
    struct text text;
    int loops = p->loops, defaults = 0;
    TRY(tpl_expect_name(p, &text));
    TRY(tpl_name(p, text, &n->name));
    TRY(tpl_expect_op(p, '('));
    while (!tpl_is_op(p, ')')) {
        if (list.first)
            TRY(tpl_expect_op(p, ','));
        struct node param = {.type = NODE_PARAM, .line = p->toks[p->at].line};
        int32_t at;
        TRY(tpl_expect_name(p, &text));
        TRY(tpl_name(p, text, &param.name));
        if (tpl_skip_op(p, '=')) {
            defaults = 1;
            TRY(tpl_expr(p, WITH_COND, &param.a));
        } else if (defaults) {
            return tpl_syntax(p->t, param.line,
                              "a parameter without a default follows one with a default");
        }
        TRY(tpl_add(p, param, &at));
        tpl_append(p, &list, at);
    }
    p->at++;
    n->a = list.first;
    p->loops = 0;
    TRY(whole_block(p, "endmacro", &n->b));
    p->loops = loops;
    return OK;
}

static enum err parse_filter_block(struct parser *p, struct node *n)
{
    TRY(tpl_filters(p, 0, &n->a));
    return whole_block(p, "endfilter", &n->b);
}

/* {% generation %} marks text for training masks; the text is kept. */
static enum err parse_generation(struct parser *p, struct node *n)
{
    return whole_block(p, "endgeneration", &n->a);
}

static enum err parse_jump(struct parser *p, struct node *n)
{
    return p->loops ? OK
                    : tpl_syntax(p->t, n->line, "%s outside a loop",
                                 n->type == NODE_BREAK ? "break" : "continue");
}

static enum err statement(struct parser *p, int32_t *out)
{
    static const struct {
        const char *word;
        enum node_type type;
        enum err (*parse)(struct parser *p, struct node *n);
    } tags[] = {
        {"if", NODE_IF, parse_if},
        {"for", NODE_FOR, parse_for},
        {"set", NODE_SET, parse_set},
        {"macro", NODE_MACRO, parse_macro},
        {"filter", NODE_FILTER_BLOCK, parse_filter_block},
        {"generation", NODE_SCOPE, parse_generation},
        {"break", NODE_BREAK, parse_jump},
        {"continue", NODE_CONTINUE, parse_jump},
    };
    const struct tok *k = &p->toks[p->at];
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!tpl_skip_word(p, tags[i].word))
            continue;
        struct node n = {.type = (uint8_t)tags[i].type, .line = k->line};
        TRY(tags[i].parse(p, &n));
        TRY(expect_end(p));
        return tpl_add(p, n, out);
    }
    if (k->type != TOK_NAME)
        return tpl_unexpected(p, "a tag");
    return tpl_syntax(p->t, k->line, "unsupported or unexpected tag {%% %.*s %%}", k->u.text.n,
                      p->t->text + k->u.text.at);
}

static int at_end(struct parser *p, const char *const *ends)
{
    for (int i = 0; ends && ends[i]; i++) {
        if (tpl_skip_word(p, ends[i]))
            return i;
    }
    return -1;
}

/* Statements up to a tag named in `ends` (NULL: the end of the template); *which is its index. */
static enum err body(struct parser *p, const char *const *ends, int32_t *first, int *which)
{
    struct chain list = {0};
    const struct tok *k;
    while ((k = &p->toks[p->at])->type != TOK_EOF) {
        struct node n = {.type = NODE_DATA, .line = k->line, .u.text = k->u.text};
        int32_t node;
        p->at++;
        if (k->type == TOK_BLOCK_BEGIN) {
            *which = at_end(p, ends);
            *first = list.first;
            if (*which >= 0)
                return OK;
            TRY(statement(p, &node));
        } else {
            if (k->type == TOK_VAR_BEGIN) {
                n.type = NODE_OUTPUT;
                TRY(tpl_tuple(p, WITH_COND, &n.a));
                if (p->toks[p->at].type != TOK_VAR_END)
                    return tpl_unexpected(p, "'}}'");
                p->at++;
            }
            TRY(tpl_add(p, n, &node));
        }
        tpl_append(p, &list, node);
    }
    *first = list.first;
    while (ends && ends[1])
        ends++;
    return ends ? tpl_syntax(p->t, k->line, "the template ends without {%% %s %%}", *ends) : OK;
}

/* Copies the source with every line end as \n and without the last one; returns its bytes. */
static int32_t copy_source(char *to, const char *text, int64_t n_bytes)
{
    int32_t n = 0;
    for (int64_t i = 0; i < n_bytes; i++) {
        if (text[i] == '\r' && i + 1 < n_bytes && text[i + 1] == '\n')
            continue;
        to[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    return n && to[n - 1] == '\n' ? n - 1 : n;
}

static enum err parse_into(struct template *t, const char *text, int64_t n_bytes)
{
    struct tok *toks = NULL;
    int32_t n_toks, none;
    int which;
    /* twice: decoded string literals follow the source */
    t->text = malloc((size_t)n_bytes * 2 + 1);
    struct parser *p = calloc(1, sizeof *p);
    enum err e = !t->text || !p ? fail(ERR_FIT, "%s: " TEMPLATE_WHAT "no memory for %lld bytes",
                                       t->file, (long long)n_bytes)
                                : tpl_lex(t, copy_source(t->text, text, n_bytes), &toks, &n_toks);
    if (e == OK) {
        p->t = t;
        p->toks = toks;
        e = tpl_add(p, (struct node){.type = NODE_NONE}, &none);
    }
    if (e == OK)
        e = body(p, NULL, &t->body, &which);
    free(p);
    free(toks);
    return e;
}

enum err template_parse(struct template **out, const char *text, int64_t n_bytes, const char *file)
{
    *out = NULL;
    if (n_bytes < 0 || n_bytes > TEMPLATE_TEXT_BYTES_MAX)
        return fail(ERR_INPUT, "%s: " TEMPLATE_WHAT "%lld bytes is too long (limit %d)", file,
                    (long long)n_bytes, TEMPLATE_TEXT_BYTES_MAX);
    if (!tpl_is_utf8(text, n_bytes))
        return fail(ERR_INPUT, "%s: " TEMPLATE_WHAT "not UTF-8", file);
    struct template *t = calloc(1, sizeof *t);
    if (t)
        t->file = strdup(file);
    enum err e = t && t->file ? parse_into(t, text, n_bytes)
                              : fail(ERR_FIT, "%s: " TEMPLATE_WHAT "no memory to parse it", file);
    if (e == OK)
        *out = t;
    else
        template_free(t);
    return e;
}

struct template *template_broken(const char *why)
{
    struct template *t = calloc(1, sizeof *t);
    if (t)
        t->broken = strdup(why);
    if (t && t->broken)
        return t;
    template_free(t);
    return NULL;
}

const char *template_why(const struct template *t)
{
    return t->broken;
}

static int is_text(const struct template *t, struct text text, const char *s)
{
    return tpl_is(tpl_str(t->text + text.at, text.n), s);
}

int template_names(const struct template *t, const char *name)
{
    for (int32_t i = 0; i < t->n_names; i++) {
        if (is_text(t, t->names[i], name))
            return 1;
    }
    for (int32_t i = 0; i < t->n_nodes; i++) {
        const struct node *n = &t->nodes[i];
        if ((n->type == NODE_ATTR || n->type == NODE_STR) && is_text(t, n->u.text, name))
            return 1;
    }
    return 0;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    free(t->file);
    free(t->text);
    free(t->nodes);
    free(t->names);
    free(t->broken);
    free(t);
}
