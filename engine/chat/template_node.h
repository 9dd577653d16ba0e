/* engine/chat/template_node.h - tokens and the flat tree of a parsed chat template. Internal to
 * template*.c.
 *
 * Owns: the shape of the tree. Nodes live in one array; a child is an index, -1 is none, and lists
 * are chained through `next`. `depth` bounds the recursion of everything that walks the tree. */
#ifndef ENGINE_CHAT_TEMPLATE_NODE_H
#define ENGINE_CHAT_TEMPLATE_NODE_H

#include "engine/chat/template.h"

#define TN_DEPTH_MAX 250  // height of the tree (a long chain of + is high, not nested)
#define TN_NEST_MAX  64   // open brackets and blocks
#define TN_NAMES_MAX 4096 // distinct variable names

/* Text inside struct template: `at` counts from template.text. */
struct tn_text {
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
    TOK_OP, // op holds the character, or TOK_OP2(a, b) for two
};

#define TOK_OP2(a, b) ((a) << 8 | (b))

struct tok {
    enum tok_type type;
    int32_t line;
    int32_t op;
    union {
        struct tn_text text; // DATA, NAME, STR
        int64_t i;
        double f;
    } u;
};

enum tn_type {
    /* expressions */
    TN_NONE,
    TN_BOOL,    // u.i
    TN_INT,     // u.i
    TN_FLOAT,   // u.f
    TN_STR,     // u.text
    TN_NAME,    // name: index into names
    TN_ATTR,    // a.u.text
    TN_ITEM,    // a[b]
    TN_SLICE,   // a[b:c:d]
    TN_CALL,    // a(list b of values, then TN_KWARG)
    TN_KWARG,   // u.text = a
    TN_FILTER,  // a | op(list b); a = -1: the text of a block; op = -1: unknown, u.text names it
    TN_TEST,    // a is op(list b)
    TN_NOT,     // not a
    TN_NEG,     // -a
    TN_POS,     // +a
    TN_AND,     // a and b
    TN_OR,      // a or b
    TN_BINARY,  // a op b
    TN_CONCAT,  // list a, joined by ~
    TN_COMPARE, // a, then the list b of TN_OPERAND
    TN_OPERAND, // op a; op: enum tc_compare
    TN_COND,    // b if a else c (or -1)
    TN_LIST,    // list a
    TN_TUPLE,   // list a
    TN_DICT,    // list a: key, value, key, value
    /* statements */
    TN_DATA,         // u.text
    TN_OUTPUT,       // {{ a }}
    TN_IF,           // list a of TN_BRANCH
    TN_BRANCH,       // condition a (or -1: else), body b
    TN_FOR,          // a in b if c (or -1): body d, else e
    TN_SET,          // a = b
    TN_SET_BLOCK,    // a = filters b (or -1) of body c
    TN_MACRO,        // name: parameters a (list of TN_PARAM), body b
    TN_PARAM,        // name, default a (or -1)
    TN_FILTER_BLOCK, // filters a of body b
    TN_SCOPE,        // body a in a scope of its own
    TN_NSREF,        // target name.u.text
    TN_BREAK,
    TN_CONTINUE,
};

struct tn {
    uint8_t type; // enum tn_type
    int16_t depth;
    int32_t op;
    int32_t line;
    int32_t next;
    int32_t name;
    int32_t a, b, c, d, e;
    union {
        int64_t i;
        double f;
        struct tn_text text;
    } u;
};

struct template
{
    char *file;            // owned
    char *text;            // owned: the source, newlines made \n, then the decoded string literals
    struct tn *nodes;      // owned
    struct tn_text *names; // owned; [n_names]
    int32_t n_nodes, n_names;
    int32_t body; // first statement
    char *broken; // owned: why the text cannot be used; NULL: it can
};

/* Cuts the source in t->text[0, n_text) into tokens, decoding string literals behind it (the buffer
 * holds twice n_text). *toks is owned by the caller, also on error. ERR_INPUT, ERR_FIT. */
enum err tn_lex(struct template *t, int32_t n_text, struct tok **toks, int32_t *n_toks);

/* Parses tokens into t->nodes and t->names. ERR_INPUT, ERR_FIT. */
enum err tn_parse(struct template *t, const struct tok *toks, int32_t n_toks);

/* ERR_INPUT "FILE: chat template: line L: ...". */
enum err tn_fail(const struct template *t, int32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Doubles *items (of `item_bytes`) when n == *cap. ERR_FIT. */
enum err tn_grow(const struct template *t, void **items, int32_t n, int32_t *cap,
                 size_t item_bytes);

#endif
