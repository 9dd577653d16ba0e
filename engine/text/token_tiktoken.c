/* engine/text/token_tiktoken.c - vocabularies in tiktoken's format, and base64.
 *
 * Owns: lines "base64 rank". Refuses: special tokens, which are in the config beside the file, and
 * the splitting rule, which the name of the file says. Note: there is no list of merges. Among
 * adjacent pairs, the one whose union has the lowest rank merges first; a pre-token that is a token
 * is taken whole. */
#include "engine/text/token_impl.h"

#include <string.h>

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int64_t base64_decode(char *text, int64_t n)
{
    int64_t n_out = 0;
    while (n > 0 && text[n - 1] == '=' && n % 4 != 1)
        n--;
    if (n % 4 == 1)
        return -1;
    uint32_t bits = 0;
    for (int64_t i = 0; i < n; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0)
            return -1;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 > 0)
            text[n_out++] = (char)(bits >> (6 - 2 * (i % 4)) & 0xff);
    }
    return n_out;
}

/* A line's token as bytes (room for the line's length) and its rank; 0: another kind of line. */
static int line_read(const char *line, int64_t n, char *bytes, int64_t *n_bytes, int64_t *rank)
{
    const char *space = memchr(line, ' ', (size_t)n);
    if (!space || space == line || space + 1 == line + n || n - (space - line) > 11 ||
        space - line > 2 * TOKEN_PIECE_BYTES_MAX)
        return 0;
    memcpy(bytes, line, (size_t)(space - line));
    *n_bytes = base64_decode(bytes, space - line);
    *rank = 0;
    for (const char *p = space + 1; p < line + n; p++) {
        if (*p < '0' || *p > '9')
            return 0;
        *rank = *rank * 10 + (*p - '0');
    }
    return *n_bytes > 0;
}

/* Bytes of a line without its end and a carriage return before it; *n_all: with both. */
static int64_t line_bytes(const char *buf, int64_t n, int64_t *n_all)
{
    const char *end = n > 0 ? memchr(buf, '\n', (size_t)n) : NULL;
    int64_t n_line = end ? end - buf : n;
    *n_all = n_line + (end != NULL);
    return n_line - (n_line > 0 && buf[n_line - 1] == '\r');
}

int token_is_tiktoken(const char *buf, int64_t n)
{
    char bytes[2 * TOKEN_PIECE_BYTES_MAX];
    int64_t n_bytes, rank, n_all, n_line = line_bytes(buf, n, &n_all);
    return n_line > 0 && line_read(buf, n_line, bytes, &n_bytes, &rank);
}

enum err token_load_tiktoken(struct token_draft *d, const char *buf, int64_t n, const char *rule)
{
    char bytes[2 * TOKEN_PIECE_BYTES_MAX];
    long long line = 1;
    d->flags |= TOKEN_BYTES | TOKEN_BY_SCORE | TOKEN_IGNORE_MERGES;
    d->has_scores = 1;
    for (int64_t at = 0, n_all; at < n; at += n_all, line++) {
        int64_t n_bytes, rank, n_line = line_bytes(buf + at, n - at, &n_all);
        if (n_line == 0)
            continue;
        if (!line_read(buf + at, n_line, bytes, &n_bytes, &rank))
            return fail(ERR_INPUT, "%s: line %lld: '%.*s' is not base64 and a rank", d->file, line,
                        (int)min_i64(n_line, 60), buf + at);
        TRY(draft_piece_put(d, rank, bytes, n_bytes, PIECE_BPE, -(double)rank));
    }
    TRY(draft_place(d));
    TRY(draft_merges_all(d));
    const struct split_rule *found;
    TRY(split_rule_find(d, rule, (int64_t)strlen(rule), &found));
    return split_rule_apply(d, found);
}
