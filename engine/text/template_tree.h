/* engine/text/template_tree.h - tokens and the flat tree of a parsed chat template. For template*.c
 * only.
 *
 * Owns: the tree's layout, and the parser's state. Nodes are in one array; a child is an index, 0
 * is none, and lists are linked through `next`. `depth` bounds the recursion of every tree walk.
 * Calls go one way: template_parse.c (statements) calls template_expr.c (expressions); both read
 * template_lex.c's tokens. */
#ifndef ENGINE_TEXT_TEMPLATE_TREE_H
#define ENGINE_TEXT_TEMPLATE_TREE_H

#include "engine/text/template.h"
#include "engine/text/template_value.h"

#define NODE_DEPTH_MAX 250  // height of the tree (a long chain of + is high, not nested)
#define NEST_MAX       64   // open brackets and blocks
#define NAMES_MAX      4096 // distinct variable names

/* Text inside struct template: `at` counts from template.text. */
struct text {
    int32_t at, n;
};

enum tok_type {
    TOK_EOF,
    TOK_DATA,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STR,
    TOK_INT,
    TOK_FLOAT,
    TOK_OP, // op: the character, or OP2 of two characters
};

struct tok {
    enum tok_type type;
    int32_t line;
    int32_t op;
    union {
        struct text text; // DATA, NAME, STR
        int64_t i;
        double f;
    } u;
};

enum node_type {
    /* expressions */
    NODE_NONE,
    NODE_BOOL,    // u.i
    NODE_INT,     // u.i
    NODE_FLOAT,   // u.f
    NODE_STR,     // u.text
    NODE_NAME,    // name: index into names
    NODE_ATTR,    // a.u.text
    NODE_ITEM,    // a[b]
    NODE_SLICE,   // a[b:c:d]
    NODE_CALL,    // a(list b of values, then NODE_KWARG)
    NODE_KWARG,   // u.text = a
    NODE_FILTER,  // a | op(list b); a = 0: a block's text; op = -1: unknown name u.text
    NODE_TEST,    // a is op(list b)
    NODE_NOT,     // not a
    NODE_SIGN,    // op a; op: '-' or '+'
    NODE_AND,     // a and b
    NODE_OR,      // a or b
    NODE_BINARY,  // a op b
    NODE_CONCAT,  // list a, joined by ~
    NODE_COMPARE, // a, then the list b of NODE_OPERAND
    NODE_OPERAND, // op a; op: enum compare
    NODE_COND,    // b if a else c (or 0)
    NODE_LIST,    // list a
    NODE_TUPLE,   // list a
    NODE_DICT,    // list a: key, value, key, value
    /* statements */
    NODE_DATA,         // u.text
    NODE_OUTPUT,       // {{ a }}
    NODE_IF,           // list a of NODE_BRANCH
    NODE_BRANCH,       // condition a (or 0: else), body b
    NODE_FOR,          // a in b if c (or 0): body d, else e
    NODE_SET,          // a = b
    NODE_SET_BLOCK,    // a = filters b (or 0) of body c
    NODE_MACRO,        // name: parameters a (list of NODE_PARAM), body b
    NODE_PARAM,        // name, default a (or 0)
    NODE_FILTER_BLOCK, // filters a of body b
    NODE_SCOPE,        // body a in a scope of its own
    NODE_NSREF,        // target name.u.text
    NODE_BREAK,
    NODE_CONTINUE,
};

struct node {
    uint8_t type; // enum node_type
    int16_t depth;
    int32_t op;
    int32_t line;
    int32_t next;
    int32_t name;
    int32_t a, b, c, d, e;
    union {
        int64_t i;
        double f;
        struct text text;
    } u;
};

struct template
{
    char *file;         // owned
    char *text;         // owned: the source, newlines made \n, then the decoded string literals
    struct node *nodes; // owned; nodes[0] is unused
    struct text *names; // owned; [n_names]
    int32_t n_nodes, n_names;
    int32_t body; // first statement
    char *broken; // owned: why the template is unusable; NULL: usable
};

/* Cuts the source in t->text[0, n_text) into tokens; decoded string literals are written after it
 * (the buffer holds twice n_text). The caller frees *toks, also on error. ERR_INPUT, ERR_FIT. */
enum err tpl_lex(struct template *t, int32_t n_text, struct tok **toks, int32_t *n_toks);

/* ERR_INPUT "FILE: chat template: line L: ...". */
enum err tpl_syntax(const struct template *t, int32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Doubles *items (of `item_bytes`) if n == *cap. ERR_FIT. */
enum err tpl_grow(const struct template *t, void **items, int32_t n, int32_t *cap,
                  size_t item_bytes);

struct parser {
    struct template *t;
    const struct tok *toks; // borrowed; ends with TOK_EOF
    int32_t at;             // next token
    int32_t cap_nodes, cap_names;
    int nest;                     // number of open brackets and blocks
    int soft;                     // inside an `if` branch: unknown filters fail at run time
    int loops;                    // number of open for bodies, for break and continue
    int32_t slots[NAMES_MAX * 2]; // hash table of the names, at most half full: index + 1
};

/* A list being built, linked through `next`. */
struct chain {
    int32_t first, last;
};

/* Adds the node; its depth follows from its children a to e and their lists. ERR_INPUT: too
 * high. */
enum err tpl_add(struct parser *p, struct node node, int32_t *out);
void tpl_append(struct parser *p, struct chain *list, int32_t node);
/* Index of a variable name. */
enum err tpl_name(struct parser *p, struct text text, int32_t *out);

int tpl_is_op(const struct parser *p, int32_t op);
int tpl_is_word(const struct parser *p, const char *word);
int tpl_skip_op(struct parser *p, int32_t op);
int tpl_skip_word(struct parser *p, const char *word);
enum err tpl_expect_op(struct parser *p, int32_t op);
enum err tpl_expect_name(struct parser *p, struct text *out);
/* ERR_INPUT "expected `wanted`, found ..." about the current token. */
enum err tpl_unexpected(const struct parser *p, const char *wanted);
/* Counts an open bracket or block; pair with p->nest--. */
enum err tpl_enter_nest(struct parser *p);

enum cond { NO_COND, WITH_COND }; // whether an expression may have `if` and `else`

enum err tpl_expr(struct parser *p, enum cond cond, int32_t *out);
/* An expression, or a tuple without parentheses. */
enum err tpl_tuple(struct parser *p, enum cond cond, int32_t *out);
enum err tpl_primary(struct parser *p, int32_t *out);
/* Parses name(args) | name ... applied to `input` (0: a block's text), from the first name on. */
enum err tpl_filters(struct parser *p, int32_t input, int32_t *out);

#endif
