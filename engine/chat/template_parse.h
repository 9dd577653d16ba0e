/* engine/chat/template_parse.h - the parser's state, shared by its two halves. Internal to
 * template*.c.
 *
 * Owns: walking the tokens. template_expr.c parses expressions, template_parse.c statements. */
#ifndef ENGINE_CHAT_TEMPLATE_PARSE_H
#define ENGINE_CHAT_TEMPLATE_PARSE_H

#include "engine/chat/template_node.h"

#define TP_NAME_SLOTS (TN_NAMES_MAX * 2) // hash table of the names, at most half full

struct tp {
    struct template *t;
    const struct tok *toks; // borrowed; ends with TOK_EOF
    int32_t at;             // next token
    int32_t cap_nodes, cap_names;
    int nest;  // open brackets and blocks
    int soft;  // inside an `if` branch: unknown filters fail when they run
    int loops; // open for bodies, so that break and continue have one
    int32_t slots[TP_NAME_SLOTS];
};

/* A list being built through `next`. */
struct tp_list {
    int32_t first, last;
};

/* A new node at the line of token `at`; *out is its index. */
enum err tp_node(struct tp *p, enum tn_type type, int32_t line, int32_t *out);
/* Sets the node's depth from its children a to e and their lists. ERR_INPUT when too high. */
enum err tp_close(struct tp *p, int32_t node);
void tp_append(struct tp *p, struct tp_list *list, int32_t node);
/* Index of a variable name. */
enum err tp_name(struct tp *p, struct tn_text text, int32_t *out);

int tp_is_op(const struct tp *p, int32_t op);
int tp_is_word(const struct tp *p, const char *word);
int tp_skip_op(struct tp *p, int32_t op);
int tp_skip_word(struct tp *p, const char *word);
enum err tp_expect_op(struct tp *p, int32_t op);
enum err tp_expect_name(struct tp *p, struct tn_text *out);
/* ERR_INPUT "unexpected ..." about the token at hand. */
enum err tp_unexpected(const struct tp *p, const char *wanted);
/* One more open bracket or block; pair with p->nest--. */
enum err tp_enter(struct tp *p);

enum tp_cond { TP_NO_COND, TP_WITH_COND }; // is `a if b` part of it?

enum err tp_expr(struct tp *p, enum tp_cond cond, int32_t *out);
/* An expression, or a tuple without parentheses. */
enum err tp_tuple(struct tp *p, enum tp_cond cond, int32_t *out);
enum err tp_primary(struct tp *p, int32_t *out);
/* (args) into a list. */
enum err tp_call_args(struct tp *p, int32_t *first);
/* name(args) | name ... applied to `input` (-1: a block's text). The first name is not yet
 * consumed. */
enum err tp_filters(struct tp *p, int32_t input, int32_t *out);

#endif
