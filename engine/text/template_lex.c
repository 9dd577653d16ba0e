/* engine/text/template_lex.c - chat template text to tokens.
 *
 * Owns: tags, whitespace control, literals. Refuses: grammar (template_parse.c). Note: trim_blocks
 * and lstrip_blocks are on, so the newline after a block or comment is dropped, and so is the space
 * before one that is first on its line; {{ }} keeps both. */
#include "engine/text/template_tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct template *t;
    const char *s; // t->text
    int32_t n;     // bytes of source
    int32_t at;    // next byte
    int32_t line;
    int32_t pool; // position of the next decoded literal, after the source
    int starting; // 1: the last match ended a line
    struct tok *toks;
    int32_t n_toks, cap;
    char open[NEST_MAX]; // stack of open brackets
    int n_open;
};

static enum err lex_fail(const struct lexer *x, const char *what)
{
    return tpl_syntax(x->t, x->line, "%s", what);
}

static enum err lex_add(struct lexer *x, enum tok_type type, struct tok **out)
{
    TRY(tpl_grow(x->t, (void **)&x->toks, x->n_toks, &x->cap, sizeof(struct tok)));
    struct tok *k = &x->toks[x->n_toks++];
    *k = (struct tok){.type = type, .line = x->line};
    if (out)
        *out = k;
    return OK;
}

/* Moves to `to` and counts lines. */
static void lex_move(struct lexer *x, int32_t to)
{
    for (int32_t i = x->at; i < to; i++)
        x->line += x->s[i] == '\n';
    x->starting = to > x->at ? x->s[to - 1] == '\n' : x->starting;
    x->at = to;
}

static int32_t lex_skip_space(const struct lexer *x, int32_t at)
{
    while (at < x->n) {
        int32_t cp, n = tpl_decode(x->s + at, x->n - at, &cp);
        if (!tpl_is_space(cp))
            break;
        at += n;
    }
    return at;
}

static int lex_is(const struct lexer *x, int32_t at, const char *what)
{
    int32_t n = (int32_t)strlen(what);
    return x->n - at >= n && !memcmp(x->s + at, what, (size_t)n);
}

/* End of a tag that closes with `end`, at `at`: -end drops all space after it, end (if trim) one
 * newline, +end nothing. Returns the offset after it, or -1 if there is none here. */
static int32_t lex_tag_end(const struct lexer *x, int32_t at, const char *end, int plus, int trim)
{
    if (lex_is(x, at, "-") && lex_is(x, at + 1, end))
        return lex_skip_space(x, at + 3);
    if (plus && lex_is(x, at, "+") && lex_is(x, at + 1, end))
        return at + 3;
    if (lex_is(x, at, end))
        return trim && lex_is(x, at + 2, "\n") ? at + 3 : at + 2;
    return -1;
}

/* Consumes the text before a tag, s[x->at, end); `sign` and lstrip_blocks decide which part of its
 * tail is dropped. */
static enum err lex_data(struct lexer *x, int32_t end, char sign, int lstrip)
{
    int32_t keep = end;
    if (sign == '-') {
        int64_t n = end - x->at;
        keep = x->at + (int32_t)tpl_strip(tpl_str(x->s + x->at, n), tpl_none(), SIDE_RIGHT).n;
    } else if (sign != '+' && lstrip) {
        int32_t line = end;
        while (line > x->at && x->s[line - 1] != '\n')
            line--;
        if ((line > x->at || x->starting) && lex_skip_space(x, line) >= end)
            keep = line;
    }
    if (keep > x->at) {
        struct tok *k;
        TRY(lex_add(x, TOK_DATA, &k));
        k->u.text = (struct text){x->at, keep - x->at};
    }
    lex_move(x, end);
    return OK;
}

static char lex_sign(const struct lexer *x, int32_t at)
{
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : 0;
}

/* "{%" at `at`, then `word` and the end of the tag: the offset after it, or -1. */
static int32_t lex_word_tag(const struct lexer *x, int32_t at, const char *word, int plus, int trim)
{
    at += 2 + (lex_sign(x, at + 2) != 0);
    at = lex_skip_space(x, at);
    if (!lex_is(x, at, word))
        return -1;
    at = lex_skip_space(x, at + (int32_t)strlen(word));
    return lex_tag_end(x, at, "%}", plus, trim);
}

/* {% raw %}: everything up to {% endraw %} is text. x->at is after the opening tag. */
static enum err lex_raw(struct lexer *x)
{
    for (int32_t i = x->at; i + 1 < x->n; i++) {
        if (!lex_is(x, i, "{%"))
            continue;
        int32_t after = lex_word_tag(x, i, "endraw", 1, 1);
        if (after < 0)
            continue;
        TRY(lex_data(x, i, lex_sign(x, i + 2), 1));
        lex_move(x, after);
        return OK;
    }
    return lex_fail(x, "{% raw %} without {% endraw %}");
}

static enum err lex_comment(struct lexer *x)
{
    for (int32_t i = x->at; i < x->n; i++) {
        int32_t after = lex_tag_end(x, i, "#}", 1, 1);
        if (after >= 0) {
            lex_move(x, after);
            return OK;
        }
    }
    return lex_fail(x, "comment without end: {# needs #}");
}

static int32_t hex_digits(const char *s, int32_t n)
{
    int32_t v = 0;
    for (int32_t i = 0; i < n; i++) {
        char c = s[i];
        int32_t d = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (d < 0 || v > 0x110000)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* One escape; s[0] is the character after the backslash. Returns its code point (-1 bad, -2 no
 * escape: keep both characters, -3 nothing: an escaped newline); *used: bytes read. */
static int32_t lex_escape(const char *s, int32_t n, int32_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    *used = 1;
    const char *known = s[0] ? strchr(from, s[0]) : NULL;
    if (known)
        return to[known - from];
    if (s[0] == '\n')
        return -3;
    if (s[0] >= '0' && s[0] <= '7') {
        int32_t v = 0, i = 0;
        for (; i < 3 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
            v = v * 8 + s[i] - '0';
        *used = i;
        return v;
    }
    int32_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (!digits)
        return s[0] == 'N' ? -1 : -2;
    *used = 1 + digits;
    int32_t cp = n < *used ? -1 : hex_digits(s + 1, digits);
    return cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) ? -1 : cp;
}

/* Decodes a string literal with text s[at, end) to after the source. Decoding never lengthens. */
static enum err lex_string(struct lexer *x, int32_t at, int32_t end)
{
    struct tok *k;
    TRY(lex_add(x, TOK_STR, &k));
    char *out = x->t->text + x->pool;
    int32_t n = 0;
    while (at < end) {
        if (x->s[at] != '\\') {
            out[n++] = x->s[at++];
            continue;
        }
        int32_t used, cp = lex_escape(x->s + at + 1, end - at - 1, &used);
        if (cp == -1)
            return lex_fail(x, "bad or unsupported escape in a string");
        if (cp >= 0)
            n += tpl_encode(cp, out + n);
        else if (cp == -2) {
            out[n++] = '\\';
            used = 0;
        }
        at += 1 + used;
    }
    k->u.text = (struct text){x->pool, n};
    x->pool += n;
    return OK;
}

static int32_t lex_digits(const struct lexer *x, int32_t at)
{
    if (at >= x->n || x->s[at] < '0' || x->s[at] > '9')
        return at;
    while (at < x->n &&
           ((x->s[at] >= '0' && x->s[at] <= '9') ||
            (x->s[at] == '_' && at + 1 < x->n && x->s[at + 1] >= '0' && x->s[at + 1] <= '9')))
        at++;
    return at;
}

static enum err lex_number(struct lexer *x)
{
    char buf[64], *stop;
    int32_t end = lex_digits(x, x->at), frac = end, n = 0;
    if (end < x->n && x->s[end] == '.')
        frac = lex_digits(x, end + 1);
    int is_float = frac > end + 1;
    end = is_float ? frac : end;
    if (end < x->n && (x->s[end] | 32) == 'e') {
        int32_t digits = end + 1;
        digits += digits < x->n && (x->s[digits] == '+' || x->s[digits] == '-');
        if (lex_digits(x, digits) > digits)
            is_float = 1, end = lex_digits(x, digits);
    }
    for (int32_t i = x->at; i < end; i++) {
        if (x->s[i] != '_' && n < (int32_t)sizeof buf - 1)
            buf[n++] = x->s[i];
    }
    buf[n] = 0;
    struct tok *k;
    TRY(lex_add(x, is_float ? TOK_FLOAT : TOK_INT, &k));
    errno = 0;
    if (is_float)
        k->u.f = strtod(buf, &stop);
    else
        k->u.i = strtoll(buf, &stop, 10);
    if (*stop || (errno && !is_float) || n == (int32_t)sizeof buf - 1)
        return lex_fail(x, "bad or too large number");
    lex_move(x, end);
    return OK;
}

/* Checks that brackets pair up; inside them "}}" and "%}" do not end the tag. */
static enum err lex_bracket(struct lexer *x, char c)
{
    const char *closing = strchr("(){}[]", c);
    if (!closing || !c)
        return OK;
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open == NEST_MAX)
            return lex_fail(x, "nested too deeply");
        x->open[x->n_open++] = closing[1];
        return OK;
    }
    if (!x->n_open || x->open[x->n_open - 1] != c)
        return tpl_syntax(x->t, x->line, "unexpected '%c'", c);
    x->n_open--;
    return OK;
}

static enum err lex_operator(struct lexer *x)
{
    static const char *const two[] = {"//", "==", "!=", ">=", "<="};
    struct tok *k;
    char c = x->s[x->at];
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (!lex_is(x, x->at, two[i]))
            continue;
        TRY(lex_add(x, TOK_OP, &k));
        k->op = OP2(two[i][0], two[i][1]);
        lex_move(x, x->at + 2);
        return OK;
    }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return (unsigned char)c < 0x80 && (unsigned char)c >= 0x20
                   ? tpl_syntax(x->t, x->line, "unexpected character '%c'", c)
                   : lex_fail(x, "unexpected character");
    TRY(lex_bracket(x, c));
    TRY(lex_add(x, TOK_OP, &k));
    k->op = c;
    lex_move(x, x->at + 1);
    return OK;
}

static int is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Reads one token inside a tag. */
static enum err lex_inside(struct lexer *x)
{
    char c = x->s[x->at];
    if (c >= '0' && c <= '9')
        return lex_number(x);
    if (is_name_char(c)) {
        int32_t end = x->at;
        while (end < x->n && is_name_char(x->s[end]))
            end++;
        struct tok *k;
        TRY(lex_add(x, TOK_NAME, &k));
        k->u.text = (struct text){x->at, end - x->at};
        lex_move(x, end);
        return OK;
    }
    if (c != '"' && c != '\'')
        return lex_operator(x);
    int32_t end = x->at + 1;
    while (end < x->n && x->s[end] != c)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return lex_fail(x, "string without end");
    TRY(lex_string(x, x->at + 1, end));
    lex_move(x, end + 1);
    return OK;
}

static enum err lex_tag(struct lexer *x, int is_block)
{
    TRY(lex_add(x, is_block ? TOK_BLOCK_BEGIN : TOK_VAR_BEGIN, NULL));
    while (1) {
        lex_move(x, lex_skip_space(x, x->at));
        if (x->at >= x->n)
            return lex_fail(x, is_block ? "the template ends inside {% ... %}"
                                        : "the template ends inside {{ ... }}");
        int32_t after = x->n_open  ? -1
                        : is_block ? lex_tag_end(x, x->at, "%}", 1, 1)
                                   : lex_tag_end(x, x->at, "}}", 0, 0);
        if (after >= 0) {
            TRY(lex_add(x, is_block ? TOK_BLOCK_END : TOK_VAR_END, NULL));
            lex_move(x, after);
            return OK;
        }
        TRY(lex_inside(x));
    }
}

static enum err lex_all(struct lexer *x)
{
    while (x->at < x->n) {
        int32_t i = x->at;
        while (i < x->n &&
               !(x->s[i] == '{' && i + 1 < x->n && strchr("{%#", x->s[i + 1]) && x->s[i + 1]))
            i++;
        if (i >= x->n) {
            TRY(lex_data(x, x->n, '+', 0));
            break;
        }
        char kind = x->s[i + 1], sign = lex_sign(x, i + 2);
        TRY(lex_data(x, i, sign, kind != '{'));
        int32_t raw = kind == '%' ? lex_word_tag(x, i, "raw", 0, 0) : -1;
        lex_move(x, raw >= 0 ? raw : i + 2 + (sign != 0));
        if (raw >= 0)
            TRY(lex_raw(x));
        else if (kind == '#')
            TRY(lex_comment(x));
        else
            TRY(lex_tag(x, kind == '%'));
    }
    return lex_add(x, TOK_EOF, NULL);
}

enum err tpl_lex(struct template *t, int32_t n_text, struct tok **toks, int32_t *n_toks)
{
    struct lexer x = {.t = t, .s = t->text, .n = n_text, .line = 1, .pool = n_text, .starting = 1};
    enum err e = lex_all(&x);
    *toks = x.toks;
    *n_toks = x.n_toks;
    return e;
}
