/* engine/chat/template_string.c - text operations that filters and methods share.
 *
 * Owns: case, replace, lines, HTML escapes, as functions of values. Refuses: arguments (its callers
 * bind them). The one fact: text marked safe (Markup) stays so, and escapes what is put into it. */
#include "engine/chat/template_call.h"

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

enum err tc_pad(struct tv_mem *m, struct tv s, struct tv width, struct tv fill, enum tt_side side,
                struct tv *out)
{
    int64_t wide, n = tt_count(s.u.s, s.n), left = 0;
    struct tv pad;
    TRY(tc_int(m, width, 0, &wide));
    if (fill.kind != TV_STR || tt_count(fill.u.s, fill.n) != 1)
        return tv_fail(m, "the fill must be one character");
    TRY(tv_pay(m, s.n / 64));
    *out = s;
    if (wide <= n)
        return OK;
    int64_t missing = wide - n;
    if (side == TT_LEFT)
        left = missing;
    else if (side == TT_BOTH)
        left = missing / 2 + (missing & wide & 1); // as Python's str.center
    TRY(tc_binary(m, '*', fill, tv_int(left), &pad));
    TRY(tc_binary(m, '+', pad, s, out));
    TRY(tc_binary(m, '*', fill, tv_int(missing - left), &pad));
    return tc_binary(m, '+', *out, pad, out);
}

enum err tc_replace(struct tv_mem *m, struct tv s, struct tv from, struct tv to, int64_t count,
                    struct tv *out)
{
    struct tv_buf b = {0};
    int64_t i = 0;
    if (s.sub) {
        TRY(tc_escape(m, from, &from));
        TRY(tc_escape(m, to, &to));
    }
    TRY(tv_pay(m, s.n / 64));
    for (; count != 0; count--) {
        int64_t at = tt_find(s.u.s + i, s.n - i, from.u.s, from.n);
        if (at < 0)
            break;
        if (from.n == 0 && i > 0) { // an empty pattern stands before every character and at the end
            if (i >= s.n)
                break;
            at = tt_offset(s.u.s + i, s.n - i, 1);
        }
        TRY(tv_pay(m, 1));
        TRY(tv_put(m, &b, s.u.s + i, at));
        TRY(tv_put(m, &b, to.u.s, to.n));
        i += at + from.n;
        if (from.n == 0 && i == 0) {
            int64_t first = tt_offset(s.u.s, s.n, 1);
            if (count == 1 || !first)
                break;
            TRY(tv_put(m, &b, s.u.s, first));
            TRY(tv_put(m, &b, to.u.s, to.n));
            i = first;
            count--;
        }
    }
    TRY(tv_put(m, &b, s.u.s + i, s.n - i));
    *out = tv_text(&b);
    out->sub = s.sub;
    return OK;
}

/* Length of the line break at s[i], 0 when there is none. */
static int64_t line_break(struct tv s, int64_t i)
{
    int32_t cp, bytes = tt_decode(s.u.s + i, s.n - i, &cp);
    if (cp == '\r' && i + 1 < s.n && s.u.s[i + 1] == '\n')
        return 2;
    int breaks = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                 cp == 0x2028 || cp == 0x2029;
    return breaks ? bytes : 0;
}

enum err tc_lines(struct tv_mem *m, struct tv s, int keep_ends, struct tv *out)
{
    int64_t n = 0, start = 0;
    TRY(tv_pay(m, s.n / 32));
    for (int pass = 0; pass < 2; pass++) { // count, then fill
        if (pass)
            TRY(tv_list_new(m, TV_SEQ_LIST, n, out));
        n = start = 0;
        for (int64_t i = 0; i <= s.n;) {
            int64_t brk = i < s.n ? line_break(s, i) : 0;
            if (brk || (i == s.n && start < s.n)) {
                if (pass) {
                    out->u.list->items[n] =
                        tv_str(s.u.s + start, i - start + (keep_ends ? brk : 0));
                    out->u.list->items[n].sub = s.sub;
                }
                n++;
                start = i + brk;
            }
            i += brk ? brk : 1;
            while (i < s.n && ((unsigned char)s.u.s[i] & 0xc0) == 0x80)
                i++;
        }
    }
    return OK;
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

int tc_is_case(struct tv s, int upper)
{
    int any = 0;
    for (int64_t i = 0; i < s.n;) {
        int32_t cp, bytes = tt_decode(s.u.s + i, s.n - i, &cp);
        if (upper ? tt_is_lower(cp) : tt_is_upper(cp))
            return 0;
        any |= upper ? tt_is_upper(cp) : tt_is_lower(cp);
        i += bytes;
    }
    return any;
}
