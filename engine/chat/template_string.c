/* engine/chat/template_string.c - text operations that filters and methods share.
 *
 * Owns: case, strip, replace, split, lines, "{}".format, HTML escapes, as functions of values.
 * Refuses: arguments (its callers bind them). The one fact: text marked safe (Markup) stays so, and
 * escapes what is put into it. */
#include "engine/chat/template_call.h"

#include <locale.h>
#include <string.h>
#include <time.h>

static enum err map_case(struct tv_mem *m, struct tv s, int upper, struct tv *out)
{
    struct tv_buf b = {0};
    TRY(tv_pay(m, s.n / 16));
    for (int64_t i = 0; i < s.n;) {
        int32_t cp, bytes = tt_decode(s.u.s + i, s.n - i, &cp);
        if (upper && cp == 0xdf)
            TRY(tv_puts(m, &b, "SS"));
        else
            TRY(tv_put_cp(m, &b, upper ? tt_to_upper(cp) : tt_to_lower(cp)));
        i += bytes;
    }
    *out = tv_text(&b);
    out->sub = s.sub;
    return OK;
}

enum err tc_upper(struct tv_mem *m, struct tv s, struct tv *out)
{
    return map_case(m, s, 1, out);
}

enum err tc_lower(struct tv_mem *m, struct tv s, struct tv *out)
{
    return map_case(m, s, 0, out);
}

enum err tc_capitalize(struct tv_mem *m, struct tv s, struct tv *out)
{
    struct tv head = s, tail = s;
    head.n = tt_offset(s.u.s, s.n, 1);
    tail.u.s += head.n;
    tail.n -= head.n;
    TRY(tc_upper(m, head, &head));
    TRY(tc_lower(m, tail, &tail));
    return tc_binary(m, '+', head, tail, out);
}

enum err tc_escape(struct tv_mem *m, struct tv s, struct tv *out)
{
    struct tv_buf b = {0};
    *out = s;
    if (s.sub)
        return OK;
    for (int64_t i = 0; i < s.n; i++) {
        char c = s.u.s[i];
        const char *to = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '\'' ? "&#39;"
                         : c == '"'  ? "&#34;"
                                     : NULL;
        TRY(tv_pay(m, i % 16 == 0));
        TRY(to ? tv_puts(m, &b, to) : tv_put(m, &b, &c, 1));
    }
    *out = tv_text(&b);
    out->sub = 1;
    return OK;
}

enum err tc_title(struct tv_mem *m, struct tv s, int after_space, struct tv *out)
{
    struct tv_buf b = {0};
    int starts = 1;
    TRY(tv_pay(m, s.n / 16));
    for (int64_t i = 0; i < s.n;) {
        int32_t cp, bytes = tt_decode(s.u.s + i, s.n - i, &cp);
        TRY(tv_put_cp(m, &b, starts ? tt_to_upper(cp) : tt_to_lower(cp)));
        starts = after_space ? tt_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", cp))
                             : tt_to_lower(cp) == cp && tt_to_upper(cp) == cp;
        i += bytes;
    }
    *out = tv_text(&b);
    out->sub = s.sub;
    return OK;
}

enum err tc_need_str(struct tv_mem *m, struct tv v)
{
    return v.kind == TV_STR ? OK : tv_fail(m, "a string is needed, not %s", tv_type_name(v));
}

enum err tc_strip(struct tv_mem *m, struct tv s, struct tv chars, enum tt_side side, struct tv *out)
{
    int given = !tc_is_absent(chars) && chars.kind != TV_NONE;
    if (given)
        TRY(tc_need_str(m, chars));
    TRY(tv_pay(m, s.n / 64 * (given ? 1 + chars.n / 2 : 1)));
    struct tt_span span =
        tt_strip_chars(s.u.s, s.n, given ? chars.u.s : NULL, given ? chars.n : 0, side);
    *out = tv_str(span.s, span.n);
    out->sub = s.sub;
    return OK;
}

enum err tc_replace(struct tv_mem *m, struct tv s, struct tv from, struct tv to, int64_t count,
                    struct tv *out)
{
    struct tv_buf b = {0};
    int64_t i = 0, at;
    if (!from.n)
        return tv_fail(m, "replace needs a non-empty text to look for");
    if (s.sub) {
        TRY(tc_escape(m, from, &from));
        TRY(tc_escape(m, to, &to));
    }
    TRY(tv_pay(m, s.n / 64));
    for (; count != 0 && (at = tt_find(s.u.s + i, s.n - i, from.u.s, from.n)) >= 0; count--) {
        TRY(tv_pay(m, 1));
        TRY(tv_put(m, &b, s.u.s + i, at));
        TRY(tv_put(m, &b, to.u.s, to.n));
        i += at + from.n;
    }
    TRY(tv_put(m, &b, s.u.s + i, s.n - i));
    *out = tv_text(&b);
    out->sub = s.sub;
    return OK;
}

/* Cuts `rest` at its first separator (NULL: white space): 0 when there is none. */
static int split_once(struct tv *rest, const struct tv *sep, struct tv *piece)
{
    int64_t at = sep ? tt_find(rest->u.s, rest->n, sep->u.s, sep->n) : 0, after = at;
    if (sep) {
        after += sep->n;
    } else {
        int32_t cp, bytes = 0;
        for (; at < rest->n; at += bytes) {
            bytes = tt_decode(rest->u.s + at, rest->n - at, &cp);
            if (tt_is_space(cp))
                break;
        }
        after = at == rest->n ? -1 : tt_strip(rest->u.s + at, rest->n - at, TT_LEFT).s - rest->u.s;
        at = after < 0 ? -1 : at;
    }
    if (at < 0)
        return 0;
    *piece = *rest;
    piece->n = at;
    rest->u.s += after;
    rest->n -= after;
    return 1;
}

enum err tc_split(struct tv_mem *m, struct tv s, struct tv sep, int64_t limit, struct tv *out)
{
    int by_space = tc_is_absent(sep) || sep.kind == TV_NONE;
    struct tv piece, rest;
    int64_t n = 0;
    if (by_space)
        TRY(tc_strip(m, s, tv_none(), TT_LEFT, &s));
    else
        TRY(tc_need_str(m, sep));
    if (!by_space && !sep.n)
        return tv_fail(m, "split needs a non-empty separator");
    TRY(tv_pay(m, s.n / 16));
    for (int pass = 0; pass < 2; pass++) { // count, then fill
        if (pass)
            TRY(tv_list_new(m, TV_SEQ_LIST, n + 1, out));
        rest = s;
        for (n = 0; (limit < 0 || n < limit) && split_once(&rest, by_space ? NULL : &sep, &piece);
             n++) {
            TRY(tv_pay(m, 1));
            if (pass)
                out->u.list->items[n] = piece;
        }
    }
    out->u.list->items[n] = rest;
    out->u.list->n -= by_space && !rest.n;
    return OK;
}

/* Bytes of the line break at s[i]; 0 when there is none. */
static int64_t line_break(struct tv s, int64_t i)
{
    int32_t cp, bytes = tt_decode(s.u.s + i, s.n - i, &cp);
    if (cp == '\r' && i + 1 < s.n && s.u.s[i + 1] == '\n')
        return 2;
    int breaks = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                 cp == 0x2028 || cp == 0x2029;
    return breaks ? bytes : 0;
}

enum err tc_lines(struct tv_mem *m, struct tv s, struct tv *out)
{
    int64_t n = 0;
    TRY(tv_pay(m, s.n / 32));
    for (int pass = 0; pass < 2; pass++) { // count, then fill
        if (pass)
            TRY(tv_list_new(m, TV_SEQ_LIST, n, out));
        n = 0;
        for (int64_t i = 0, start = 0; i < s.n;) {
            int64_t brk = line_break(s, i);
            i += brk ? brk : tt_offset(s.u.s + i, s.n - i, 1);
            if (!brk && i < s.n)
                continue;
            if (pass) {
                out->u.list->items[n] = tv_str(s.u.s + start, i - brk - start);
                out->u.list->items[n].sub = s.sub;
            }
            n++;
            start = i;
        }
    }
    return OK;
}

/* The argument that a field names: {} the next, {2} by position, {name}. *next: of {}; -1: a
 * position was given. */
static enum err field_value(struct tv_mem *m, const struct tc_args *args, struct tv field,
                            int *next, struct tv *out)
{
    int digits = 0, index = 0;
    while (digits < field.n && digits < 4 && field.u.s[digits] >= '0' && field.u.s[digits] <= '9')
        index = index * 10 + field.u.s[digits++] - '0';
    TRY(tv_pay(m, 4 + args->n_named / 16));
    for (int k = 0; digits < field.n && k < args->n_named; k++) {
        *out = args->named[k].value;
        if (tv_is_text(field, args->named[k].name, args->named[k].n))
            return OK;
    }
    if (digits < field.n)
        return tv_fail(m, "the format has no value for '%.*s' (widths and types are not supported)",
                       (int)min_i64(field.n, 64), field.u.s);
    if (digits ? *next > 0 : *next < 0)
        return tv_fail(m, "a format cannot mix {} and {0}");
    if (digits)
        *next = -1;
    else
        index = (*next)++;
    if (index >= args->n_pos)
        return tv_fail(m, "too few values for the format");
    *out = args->pos[index];
    return OK;
}

enum err tc_format(struct tv_mem *m, struct tv format, const struct tc_args *args, struct tv *out)
{
    struct tv_buf b = {0};
    struct tv v;
    int next = 0;
    if (format.sub)
        return tv_fail(m, "format of text marked safe is not supported");
    for (int64_t i = 0, end; i < format.n; i = end) {
        char c = format.u.s[i];
        for (end = i; end < format.n && format.u.s[end] != '{' && format.u.s[end] != '}';)
            end++;
        TRY(tv_put(m, &b, format.u.s + i, end - i));
        if (end > i)
            continue;
        if (i + 1 < format.n && format.u.s[i + 1] == c) {
            TRY(tv_put(m, &b, &c, 1));
            end = i + 2;
            continue;
        }
        end = tt_find(format.u.s + i, format.n - i, "}", 1);
        if (end <= 0)
            return tv_fail(m, "a lone '%c' in a format", c);
        TRY(field_value(m, args, tv_str(format.u.s + i + 1, end - 1), &next, &v));
        TRY(tv_put_str(m, &b, v));
        end += i + 1;
    }
    *out = tv_text(&b);
    return OK;
}

enum err tc_strftime(struct tv_mem *m, struct tv format, int64_t epoch, struct tv *out)
{
    char f[256], text[1024];
    if (format.kind != TV_STR || format.n >= (int64_t)sizeof f ||
        memchr(format.u.s, 0, (size_t)format.n))
        return tv_fail(m, "strftime_now needs a short format string");
    memcpy(f, format.u.s, (size_t)format.n);
    f[format.n] = 0;
    TRY(tv_pay(m, 100));
    time_t now = (time_t)epoch;
    struct tm tm;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c || !gmtime_r(&now, &tm)) {
        if (c)
            freelocale(c);
        return tv_fail(m, "strftime_now: the clock cannot be read");
    }
    size_t n = strftime_l(text, sizeof text, f, &tm, c);
    freelocale(c);
    if (!n && format.n)
        return tv_fail(m, "strftime_now: the date is empty or too long");
    if (!tt_valid(text, (int64_t)n))
        return tv_fail(m, "strftime_now: the date is not UTF-8");
    void *p;
    TRY(tv_take(m, (int64_t)n, 1, &p));
    memcpy(p, text, n);
    *out = tv_str(p, (int64_t)n);
    return OK;
}
