/* engine/text/token_regex.c - the patterns of pre-tokenizers, matched by PCRE2.
 *
 * Owns: the translation from the files' dialect (Oniguruma, Ruby syntax), compiling, and bounded
 * matching. Refuses: by name, every construct on which the dialects do or may differ; a pattern is
 * never silently read differently. Note: \s is spelled out because PCRE2's also matches U+180E;
 * scripts become sc:NAME because in PCRE2 a bare name means script extensions. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/token_impl.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define REGEX_SPACE        "\\t-\\r\\x{85}\\p{Z}"
#define REGEX_GROWTH       24 // most output bytes per byte of a pattern
#define REGEX_NEST_MAX     64
#define REGEX_HEAP_KIB_MAX 16384

struct regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
};

struct translation {
    const char *in;
    int64_t n, at;
    char *out; // owned by the caller; room for REGEX_GROWTH * n bytes
    int64_t n_out;
    int in_class;
    const char *refused; // the unsupported construct; NULL: none
};

static void put(struct translation *t, const char *s, int64_t n)
{
    memcpy(t->out + t->n_out, s, (size_t)n);
    t->n_out += n;
}

static void put_text(struct translation *t, const char *s)
{
    put(t, s, (int64_t)strlen(s));
}

static int peek(const struct translation *t, int64_t ahead)
{
    return t->at + ahead < t->n ? (uint8_t)t->in[t->at + ahead] : -1;
}

static int starts(const struct translation *t, const char *s)
{
    int64_t n = (int64_t)strlen(s);
    return t->n - t->at >= n && !memcmp(t->in + t->at, s, (size_t)n);
}

static int is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static int is_category(const char *name, int64_t n)
{
    static const char *const names[] = {
        "C",  "Cc", "Cf", "Cn", "Co", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
        "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf",
        "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((int64_t)strlen(names[i]) == n && !memcmp(names[i], name, (size_t)n))
            return 1;
    return 0;
}

/* Translates \p{..} and \P{..}; `at`: the p. */
static void property(struct translation *t)
{
    int negated = peek(t, 0) == 'P';
    int64_t from = t->at + 2, end = from;
    if (peek(t, 1) == '{' && peek(t, 2) == '^') {
        negated = !negated;
        from = end = t->at + 3;
    }
    while (end < t->n && ((t->in[end] >= 'a' && t->in[end] <= 'z') ||
                          (t->in[end] >= 'A' && t->in[end] <= 'Z') || t->in[end] == '_'))
        end++;
    if (peek(t, 1) != '{' || end >= t->n || t->in[end] != '}' || end == from || end - from > 40) {
        t->refused = "a property that is not \\p{Name}";
        return;
    }
    put_text(t, negated ? "\\P{" : "\\p{");
    if (!is_category(t->in + from, end - from))
        put_text(t, "sc:");
    put(t, t->in + from, end - from);
    put_text(t, "}");
    t->at = end + 1;
}

/* Translates \x{H..}, \xHH below 80, \uHHHH; `at`: the letter. */
static void code_point(struct translation *t)
{
    int braced = peek(t, 1) == '{', is_u = peek(t, 0) == 'u';
    int64_t from = t->at + 1 + braced, end = from;
    while (end < t->n && end - from < 8 && is_hex((uint8_t)t->in[end]))
        end++;
    int64_t n = end - from, want = is_u ? 4 : 2;
    if (!braced && n > want)
        n = want, end = from + want;
    int closed = end < t->n && t->in[end] == '}';
    int wide = !braced && !is_u && n > 0 && t->in[from] >= '8'; // a byte there, U+00HH here
    if (n == 0 || (braced && (!closed || is_u)) || (!braced && n != want) || wide) {
        t->refused = "a numeric escape that is not \\x{..}, \\x00-\\x7f or \\uXXXX";
        return;
    }
    put_text(t, "\\x{");
    put(t, t->in + from, n);
    put_text(t, "}");
    t->at = end + braced;
}

/* Translates an escape; `at`: the backslash. */
static void escape(struct translation *t)
{
    t->at++;
    int c = peek(t, 0);
    if (c == 'p' || c == 'P') {
        property(t);
    } else if (c == 'x' || c == 'u') {
        code_point(t);
    } else if (c == 's' || c == 'S') {
        if (t->in_class && c == 'S') {
            t->refused = "\\S inside a class";
            return;
        }
        put_text(t, t->in_class ? REGEX_SPACE
                    : c == 's'  ? "[" REGEX_SPACE "]"
                                : "[^" REGEX_SPACE "]");
        t->at++;
    } else if (c == 'd' || c == 'D') {
        put_text(t, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
        t->at++;
    } else if (c == 'r' || c == 'n' || c == 't' || c == 'f' ||
               (c > 0x20 && c < 0x7f && !is_hex(c) && !(c >= 'g' && c <= 'z') &&
                !(c >= 'G' && c <= 'Z'))) {
        put(t, t->in + t->at - 1, 2);
        t->at++;
    } else {
        t->refused = "an escape other than \\s \\S \\d \\D \\p \\P \\r \\n \\t \\f \\x \\u";
    }
}

/* Translates "(...": only groups with the same meaning in both dialects. */
static void group(struct translation *t)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (starts(t, known[i])) {
            put_text(t, known[i]);
            t->at += (int64_t)strlen(known[i]);
            return;
        }
    }
    if (peek(t, 1) == '?' || peek(t, 1) == '*') {
        t->refused = "a group other than (?: (?i: (?= (?! (?> (?<= (?<!";
        return;
    }
    put_text(t, "(");
    t->at++;
}

/* Translates {n}, {n,}, {n,m}; `at`: the brace. */
static void repeat(struct translation *t)
{
    int64_t end = t->at + 1;
    int n_commas = 0;
    while (end < t->n && ((t->in[end] >= '0' && t->in[end] <= '9') ||
                          (t->in[end] == ',' && end > t->at + 1 && !n_commas)))
        n_commas += t->in[end++] == ',';
    if (end >= t->n || t->in[end] != '}' || end == t->at + 1 || end - t->at > 12 ||
        (end + 1 < t->n && t->in[end + 1] == '+')) {
        t->refused = "a brace that is not {n}, {n,} or {n,m}";
        return;
    }
    put(t, t->in + t->at, end + 1 - t->at);
    t->at = end + 1;
}

static void class_open(struct translation *t)
{
    t->in_class = 1;
    put_text(t, "[");
    t->at++;
    if (peek(t, 0) == '^') {
        put_text(t, "^");
        t->at++;
    }
    if (peek(t, 0) == ']')
        t->refused = "a class that starts with ]";
}

static void class_member(struct translation *t)
{
    if (peek(t, 0) == ']') {
        t->in_class = 0;
    } else if (peek(t, 0) == '[' || starts(t, "&&")) {
        t->refused = "a class inside a class";
        return;
    }
    put(t, t->in + t->at++, 1);
}

/* Before every newline and at the end; PCRE2's own $ only before a last newline. */
static void line_end(struct translation *t)
{
    put_text(t, "(?=\\n|\\z)");
    t->at++;
}

static void translate(struct translation *t)
{
    while (t->at < t->n && !t->refused) {
        int c = peek(t, 0);
        if (c == '\\')
            escape(t);
        else if (t->in_class)
            class_member(t);
        else if (c == '[')
            class_open(t);
        else if (c == '(')
            group(t);
        else if (c == '{')
            repeat(t);
        else if (c == '$')
            line_end(t);
        else if (c == '^')
            t->refused = "an anchor";
        else
            put(t, t->in + t->at++, 1);
    }
    if (t->in_class && !t->refused)
        t->refused = "a class without its end";
}

static enum err regex_compile(struct regex *r, const char *pattern, int64_t n, const char *file,
                              enum err e)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return fail(ERR_FIT, "%s: no memory for a pattern", file);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, REGEX_NEST_MAX);
    int code;
    size_t at;
    r->code = pcre2_compile((PCRE2_SPTR)pattern, (size_t)n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        char why[128] = "";
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return fail(ERR_FIT, "%s: no memory for a pattern", file);
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return fail(e, "%s: unsupported pattern: %s", file, why);
    }
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); // fails under W^X: same matches, slower
    r->match = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    if (!r->match || !r->context)
        return fail(ERR_FIT, "%s: no memory for a pattern", file);
    pcre2_set_heap_limit(r->context, REGEX_HEAP_KIB_MAX);
    return OK;
}

enum err regex_open(struct regex **out, const char *pattern, int64_t n, const char *file,
                    enum err e)
{
    *out = NULL;
    if (n <= 0 || n > TOKEN_PATTERN_MAX)
        return fail(e, "%s: unsupported pattern: %lld bytes (1 to %d)", file, (long long)n,
                    TOKEN_PATTERN_MAX);
    struct translation t = {.in = pattern, .n = n, .out = malloc((size_t)(n * REGEX_GROWTH))};
    struct regex *r = calloc(1, sizeof *r);
    enum err err = t.out && r ? OK : fail(ERR_FIT, "%s: no memory for a pattern", file);
    if (err == OK) {
        translate(&t);
        if (t.refused)
            err = fail(e, "%s: unsupported pattern: %s at byte %lld of '%.*s'", file, t.refused,
                       (long long)t.at, (int)min_i64(n, 200), pattern);
        else
            err = regex_compile(r, t.out, t.n_out, file, e);
    }
    free(t.out);
    if (err != OK) {
        regex_close(r);
        return err;
    }
    *out = r;
    return OK;
}

void regex_close(struct regex *r)
{
    if (!r)
        return;
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->match);
    pcre2_code_free(r->code);
    free(r);
}

int64_t regex_bytes(const struct regex *r)
{
    size_t code = 0, jit = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_SIZE, &code);
    pcre2_pattern_info(r->code, PCRE2_INFO_JITSIZE, &jit);
    return (int64_t)(sizeof *r + code + jit + pcre2_get_match_data_size(r->match));
}

enum err regex_find(struct regex *r, const char *text, int64_t n, int64_t from, int64_t *at,
                    int64_t *end)
{
    // A greedy run may give back every character once, so the limit grows with the text; nested
    // repeats, which would try all ways of cutting the text, reach the limit.
    pcre2_set_match_limit(r->context, (uint32_t)min_i64(1000000 + 32 * (n - from), UINT32_MAX));
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, (size_t)n, (size_t)from, PCRE2_NO_UTF_CHECK,
                         r->match, r->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)text, (size_t)n, (size_t)from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->match, r->context);
    *at = *end = -1;
    if (rc == PCRE2_ERROR_NOMATCH)
        return OK;
    if (rc < 0) {
        char why[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return fail(ERR_ROW, "text: the pre-tokenizer's pattern failed: %s", why);
    }
    const size_t *ovector = pcre2_get_ovector_pointer(r->match);
    *at = (int64_t)ovector[0];
    *end = (int64_t)ovector[1];
    return OK;
}
