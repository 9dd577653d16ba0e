/* engine/text/token_charsmap.c - sentencepiece's table of replacements, and its normalizer.
 *
 * Owns: the table (a double-array trie of replaced strings, and their replacements), untrusted
 * until checked, and two ways to apply it. Refuses: trusting any index of the table. Note:
 * sentencepiece applies the longest rule at each character; `tokenizers` applies the shortest rule
 * at the start of a grapheme of less than 6 bytes, else of a character, and replaces all of it. */
#include "engine/text/token_impl.h"

#include <string.h>
#include <utf8proc.h>

#define GRAPHEME_BYTES_MAX 5

struct charsmap { // borrowed: the blob
    const char *units;
    uint32_t n_units;
    const char *texts; // each ends with NUL, or at the table's end
    uint32_t n_texts;
};

static struct charsmap charsmap_of(const struct tokenizer *tok)
{
    struct token_span span = tok->head->charsmap;
    struct charsmap m = {0};
    uint32_t n_trie;
    if (span.n == 0)
        return m;
    const char *p = tok->text + span.at;
    memcpy(&n_trie, p, 4);
    return (struct charsmap){p + 4, n_trie / 4, p + 4 + n_trie, span.n - 4 - n_trie};
}

enum err charsmap_check(const struct tokenizer *tok, const char *file)
{
    struct token_span span = tok->head->charsmap;
    uint32_t n_trie = 0;
    if (span.at > tok->head->n_text || span.n > tok->head->n_text - span.at)
        return fail(ERR_CORRUPT, "%s: tokenizer: the charsmap is out of range", file);
    if (span.n == 0)
        return OK;
    if (span.n >= 4)
        memcpy(&n_trie, tok->text + span.at, 4);
    if (span.n < 4 || n_trie == 0 || n_trie % 4 || n_trie > span.n - 4)
        return fail(ERR_CORRUPT, "%s: tokenizer: a charsmap of %u bytes with a trie of %u", file,
                    span.n, n_trie);
    return OK;
}

static uint32_t unit_at(const struct charsmap *m, uint32_t node)
{
    uint32_t unit;
    memcpy(&unit, m->units + 4 * (int64_t)node, 4);
    return unit;
}

static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* Bytes of the rule at the start of the text; 0: none. A rule that ends inside a character does not
 * count. */
static int64_t rule_find(const struct charsmap *m, const char *p, int64_t n, int takes_longest,
                         uint32_t *value)
{
    int64_t n_rule = 0;
    if (m->n_units == 0)
        return 0;
    uint32_t node = unit_offset(unit_at(m, 0));
    for (int64_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)p[i];
        node ^= c;
        if (node >= m->n_units)
            break;
        uint32_t unit = unit_at(m, node);
        if ((unit & 0x800000ffu) != c)
            break;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1))
            continue;
        if (node >= m->n_units)
            break;
        if (i + 1 < n && ((uint8_t)p[i + 1] & 0xc0) == 0x80)
            continue;
        n_rule = i + 1;
        *value = unit_at(m, node) & 0x7fffffffu;
        if (!takes_longest)
            break;
    }
    return n_rule;
}

static enum err rule_text(const struct charsmap *m, uint32_t value, const char **p, int64_t *n)
{
    if (value >= m->n_texts)
        return fail(ERR_ROW, "text: the tokenizer's charsmap has an offset out of range");
    *p = m->texts + value;
    const char *end = memchr(*p, 0, m->n_texts - value);
    *n = end ? end - *p : (int64_t)(m->n_texts - value);
    if (utf8_valid(*p, *n) != *n)
        return fail(ERR_ROW, "text: the tokenizer's charsmap gives bytes that are not UTF-8");
    return OK;
}

/* ---- as `tokenizers` ---- */

static enum err part_put(struct norm_out *o, const struct charsmap *m, const char *p, int64_t n,
                         int *found)
{
    uint32_t value = 0;
    *found = rule_find(m, p, n, 0, &value) > 0;
    if (!*found)
        return OK;
    TRY(rule_text(m, value, &p, &n));
    return norm_put(o, p, n);
}

static int64_t grapheme_bytes(const char *p, int64_t n)
{
    int n_char, state = 0;
    int32_t before = utf8_at(p, n, &n_char);
    int64_t at = n_char;
    while (at < n) {
        int32_t c = utf8_at(p + at, n - at, &n_char);
        if (utf8proc_grapheme_break_stateful(before, c, &state))
            break;
        before = c;
        at += n_char;
    }
    return at;
}

enum err charsmap_run(struct norm_out *o, const char *p, int64_t n)
{
    struct charsmap m = charsmap_of(o->tok);
    for (int64_t at = 0, end; at < n; at = end) {
        int n_char, is_whole = 0, is_known;
        end = at + grapheme_bytes(p + at, n - at);
        if (end - at <= GRAPHEME_BYTES_MAX)
            TRY(part_put(o, &m, p + at, end - at, &is_whole));
        for (int64_t i = at; i < end && !is_whole; i += n_char) {
            utf8_at(p + i, end - i, &n_char);
            TRY(part_put(o, &m, p + i, n_char, &is_known));
            if (!is_known)
                TRY(norm_put(o, p + i, n_char));
        }
    }
    return OK;
}

/* ---- as sentencepiece ---- */

/* Replacement (*out, *n_out) of the first *n_used bytes of a text. User-defined pieces stay. */
static enum err prefix_find(const struct tokenizer *tok, const struct charsmap *m, const char *p,
                            int64_t n, const char **out, int64_t *n_out, int64_t *n_used)
{
    uint32_t value;
    int n_char;
    *out = p;
    *n_out = *n_used = user_piece_bytes(tok, p, n);
    if (*n_used > 0)
        return OK;
    *n_used = rule_find(m, p, n, 1, &value);
    if (*n_used > 0)
        return rule_text(m, value, out, n_out);
    utf8_at(p, n, &n_char);
    *n_out = *n_used = n_char;
    return OK;
}

static enum err escaped_put(struct norm_out *o, uint32_t flags, const char *p, int64_t n)
{
    while (n > 0) {
        const char *space = flags & SPM_ESCAPE ? memchr(p, ' ', (size_t)n) : NULL;
        int64_t before = space ? space - p : n;
        TRY(norm_put(o, p, before));
        if (!space)
            break;
        TRY(norm_put(o, SPM_SPACE, 3));
        p += before + 1;
        n -= before + 1;
    }
    return OK;
}

static void trailing_trim(struct norm_out *o, uint32_t flags)
{
    const char *space = flags & SPM_ESCAPE ? SPM_SPACE : " ";
    int64_t n = flags & SPM_ESCAPE ? 3 : 1;
    const char *p = o->tok->buffers[o->to].p;
    while (o->n >= n && !memcmp(p + o->n - n, space, (size_t)n))
        o->n -= n;
}

enum err spm_run(struct norm_out *o, uint32_t flags, const char *p, int64_t n)
{
    struct charsmap m = charsmap_of(o->tok);
    const char *out;
    int64_t n_out, n_used;
    int trims = (flags & SPM_TRIM) != 0;
    int has_prefix = flags & SPM_PREFIX && (o->is_first || !(flags & SPM_PREFIX_FIRST));
    for (; trims && n > 0; p += n_used, n -= n_used) {
        TRY(prefix_find(o->tok, &m, p, n, &out, &n_out, &n_used));
        if (n_out != 1 || *out != ' ')
            break;
    }
    if (n == 0)
        return OK;
    if (has_prefix && !(flags & SPM_SUFFIX))
        TRY(escaped_put(o, flags, " ", 1));
    if (!trims && m.n_units == 0) {
        TRY(escaped_put(o, flags, p, n));
        n = 0;
    }
    for (int after_space = trims; n > 0; p += n_used, n -= n_used) {
        TRY(prefix_find(o->tok, &m, p, n, &out, &n_out, &n_used));
        for (; after_space && n_out > 0 && *out == ' '; out++)
            n_out--;
        TRY(escaped_put(o, flags, out, n_out));
        if (n_out > 0)
            after_space = trims && out[n_out - 1] == ' ';
    }
    if (trims)
        trailing_trim(o, flags);
    return has_prefix && flags & SPM_SUFFIX ? escaped_put(o, flags, " ", 1) : OK;
}
