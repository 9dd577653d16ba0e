/* engine/text/token_norm.c - normalizers (utf8proc).
 *
 * Owns: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip over valid UTF-8. Refuses: invalid
 * UTF-8 (the caller checks); sentencepiece's normalizer (token_charsmap.c). Note: text is
 * normalized in chunks. An ASCII character never composes with the character before, so each one
 * starts a chunk, and plain ASCII is copied. Combining marks are ordered here by counting, because
 * utf8proc's exchange sort is quadratic in a run of marks. */
#include "engine/text/token_impl.h"

#include <string.h>
#include <utf8proc.h>

#define NORM_DECOMPOSED_MAX 32 // most code points from one (18 in Unicode 14)

enum err norm_put(struct norm_out *o, const char *p, int64_t n)
{
    struct token_buffer *to = &o->tok->buffers[o->to];
    if (o->n + n > to->cap)
        TRY(scratch_grow(o->tok, o->to, o->n + n));
    if (n > 0)
        memcpy((char *)to->p + o->n, p, (size_t)n);
    o->n += n;
    return OK;
}

static enum err out_char(struct norm_out *o, int32_t c)
{
    char text[4];
    return norm_put(o, text, utf8proc_encode_char(c, (utf8proc_uint8_t *)text));
}

static int combining_class(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Stable sort by combining class in every run of marks. tmp: n code points. */
static void marks_order(int32_t *codes, int64_t n, int32_t *tmp)
{
    for (int64_t from = 0, end; from < n; from = end) {
        end = from + 1;
        if (!combining_class(codes[from]))
            continue;
        int sorted = 1;
        for (; end < n && combining_class(codes[end]); end++)
            sorted &= combining_class(codes[end - 1]) <= combining_class(codes[end]);
        if (sorted)
            continue;
        int64_t start[257] = {0};
        for (int64_t i = from; i < end; i++)
            start[combining_class(codes[i]) + 1]++;
        for (int k = 1; k < 257; k++)
            start[k] += start[k - 1];
        for (int64_t i = from; i < end; i++)
            tmp[start[combining_class(codes[i])]++] = codes[i];
        memcpy(codes + from, tmp, (size_t)(end - from) * sizeof *codes);
    }
}

/* Characters that neither decompose nor compose, so that they end a chunk: an endless Chinese text
 * needs no more memory than a short one. */
static int stands_apart(int32_t c)
{
    return (c >= 0x3400 && c < 0x4dc0) || (c >= 0x4e00 && c < 0xa000) ||
           (c >= 0x20000 && c < 0x2a6e0) || char_is_inert(c);
}

static enum err codes_end(struct norm_out *o, int64_t n_codes, int options)
{
    if (n_codes == 0) // the buffer may be missing
        return OK;
    TRY(scratch_grow(o->tok, BUFFER_CODES, n_codes * 8));
    int32_t *codes = o->tok->buffers[BUFFER_CODES].p;
    marks_order(codes, n_codes, codes + n_codes);
    if (options & UTF8PROC_COMPOSE)
        n_codes = utf8proc_normalize_utf32(codes, n_codes, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (int64_t i = 0; i < n_codes; i++)
        TRY(out_char(o, codes[i]));
    return OK;
}

static enum err chunk_normalize(struct norm_out *o, const char *p, int64_t n, int options)
{
    int64_t n_codes = 0;
    for (int64_t i = 0; i < n;) {
        int n_char, bound = 0;
        int32_t c = utf8_at(p + i, n - i, &n_char);
        if (stands_apart(c)) {
            TRY(codes_end(o, n_codes, options));
            TRY(out_char(o, c));
            n_codes = 0;
            i += n_char;
            continue;
        }
        TRY(scratch_grow(o->tok, BUFFER_CODES, (n_codes + NORM_DECOMPOSED_MAX) * 4));
        int64_t n_more =
            utf8proc_decompose_char(c, (int32_t *)o->tok->buffers[BUFFER_CODES].p + n_codes,
                                    NORM_DECOMPOSED_MAX, options, &bound);
        if (n_more < 0 || n_more > NORM_DECOMPOSED_MAX)
            return fail(ERR_ROW, "text: U+%04X cannot be decomposed", (unsigned)c);
        n_codes += n_more;
        i += n_char;
    }
    return codes_end(o, n_codes, options);
}

static int is_ascii(char c)
{
    return (uint8_t)c < 0x80;
}

static enum err form_run(struct norm_out *o, const char *p, int64_t n, int options)
{
    for (int64_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (is_ascii(p[i])) { // a run of ASCII but its last character, which a mark may follow
            while (end < n && is_ascii(p[end]))
                end++;
            if (end < n && end > i + 1)
                end--;
            if (end == n || is_ascii(p[end])) {
                TRY(norm_put(o, p + i, end - i));
                continue;
            }
        }
        while (end < n && !is_ascii(p[end]))
            end++;
        TRY(chunk_normalize(o, p + i, end - i, options));
    }
    return OK;
}

static enum err lower_run(struct norm_out *o, const char *p, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        int n_char;
        int32_t c = utf8_at(p + i, n - i, &n_char);
        if (c == 0x130) // the only character with a lower case of two
            TRY(norm_put(o, "i\xcc\x87", 3));
        else
            TRY(out_char(o, utf8proc_tolower(c)));
        i += n_char;
    }
    return OK;
}

static enum err replace_run(struct norm_out *o, const char *p, int64_t n, const char *from,
                            int64_t n_from, const char *to, int64_t n_to)
{
    while (n > 0) {
        const char *hit = memmem(p, (size_t)n, from, (size_t)n_from);
        int64_t before = hit ? hit - p : n;
        TRY(norm_put(o, p, before));
        if (!hit)
            break;
        TRY(norm_put(o, to, n_to));
        p += before + n_from;
        n -= before + n_from;
    }
    return OK;
}

/* Replaces every match by `to`; also empty matches, except right after a match. */
static enum err replace_regex(struct norm_out *o, struct regex *r, const char *p, int64_t n,
                              const char *to, int64_t n_to)
{
    int64_t from = 0, search = 0, last_end = -1, at, end;
    while (n > 0 && search <= n) {
        TRY(regex_find(r, p, n, search, &at, &end));
        if (at < 0)
            break;
        if (at < end || end != last_end) {
            TRY(norm_put(o, p + from, at - from));
            TRY(norm_put(o, to, n_to));
            from = search = last_end = end;
            if (at < end)
                continue;
        }
        int n_char = 1;
        if (search < n)
            utf8_at(p + search, n - search, &n_char);
        search += n_char;
    }
    return from < n ? norm_put(o, p + from, n - from) : OK;
}

static enum err strip_run(struct norm_out *o, uint32_t sides, const char *p, int64_t n)
{
    int n_char;
    while (sides & STRIP_LEFT && n > 0 && char_is_space(utf8_at(p, n, &n_char))) {
        p += n_char;
        n -= n_char;
    }
    while (sides & STRIP_RIGHT && n > 0 && char_is_space(utf8_before(p, n, &n_char)))
        n -= n_char;
    return norm_put(o, p, n);
}

static enum err step_run(struct norm_out *o, int step, const char *p, int64_t n)
{
    const struct token_step *s = &o->tok->steps[step];
    const char *pool = o->tok->text;
    switch ((enum step_kind)s->kind) {
    case STEP_NFC:
        return form_run(o, p, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case STEP_NFD:
        return form_run(o, p, n, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case STEP_NFKC:
        return form_run(o, p, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case STEP_NFKD:
        return form_run(o, p, n, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case STEP_LOWER:
        return lower_run(o, p, n);
    case STEP_PREPEND:
        if (n > 0)
            TRY(norm_put(o, pool + s->a.at, s->a.n));
        return norm_put(o, p, n);
    case STEP_REPLACE:
        return replace_run(o, p, n, pool + s->a.at, s->a.n, pool + s->b.at, s->b.n);
    case STEP_REPLACE_REGEX:
        return replace_regex(o, o->tok->regex[step], p, n, pool + s->b.at, s->b.n);
    case STEP_STRIP:
        return strip_run(o, s->behavior, p, n);
    case STEP_CHARSMAP:
        return charsmap_run(o, p, n);
    case STEP_SENTENCEPIECE:
        return spm_run(o, s->behavior, p, n);
    default:
        return fail(ERR_INTERNAL, "tokenizer: step %u does not normalize", s->kind);
    }
}

enum err norm_run(struct tokenizer *tok, const char *text, int64_t n, int is_first,
                  const char **out, int64_t *n_out)
{
    *out = text;
    *n_out = n;
    for (int i = 0; i < tok->n_normalizers; i++) {
        struct norm_out o = {
            .tok = tok, .to = i & 1 ? BUFFER_NORM_2 : BUFFER_NORM, .is_first = is_first};
        TRY(scratch_grow(tok, o.to, *n_out));
        TRY(step_run(&o, i, *out, *n_out));
        *out = tok->buffers[o.to].p;
        *n_out = o.n;
    }
    return OK;
}
