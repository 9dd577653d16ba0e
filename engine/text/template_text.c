/* engine/text/template_text.c - values to text, and text to text: Python's str(), repr() and
 * json.dumps; case, replace, split, lines, HTML escapes, strftime.
 *
 * Refuses: values without a stable text (functions, iterators). Note: templates print True, None
 * and {'a': 1}, not JSON, unless they use tojson; text marked safe (Markup) stays safe and escapes
 * text added to it. */
#include "engine/text/template_value.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

enum err tpl_put(struct mem *m, struct buf *b, const char *s, int64_t n)
{
    TRY(tpl_pay(m, n / 64));
    if (n > b->cap - b->n) {
        int64_t more = max_i64(n, max_i64(b->cap, 64));
        void *p;
        TRY(tpl_take(m, more, 1, &p));
        if (b->p && (uint8_t *)p == (uint8_t *)b->p + round_up(b->cap, 16)) {
            b->cap = (char *)p - b->p + more; // last block of the arena: grows in place
        } else {
            m->arena.used = (uint8_t *)p - m->arena.base;
            TRY(tpl_take(m, b->cap + more, 1, &p));
            if (b->n)
                memcpy(p, b->p, (size_t)b->n);
            b->p = p;
            b->cap += more;
        }
    }
    if (n)
        memcpy(b->p + b->n, s, (size_t)n);
    b->n += n;
    return OK;
}

enum err tpl_puts(struct mem *m, struct buf *b, const char *s)
{
    return tpl_put(m, b, s, (int64_t)strlen(s));
}

static enum err put_cp(struct mem *m, struct buf *b, int32_t cp)
{
    char s[4];
    return tpl_put(m, b, s, tpl_encode(cp, s));
}

struct val tpl_buf_str(const struct buf *b)
{
    return tpl_str(b->p ? b->p : "", b->n);
}

/* n spaces; n comes from the template, so it is paid in steps. */
enum err tpl_put_spaces(struct mem *m, struct buf *b, int64_t n)
{
    static const char spaces[] = "                ";
    for (int64_t more; n > 0; n -= more) {
        more = min_i64(n, sizeof spaces - 1);
        TRY(tpl_pay(m, 1));
        TRY(tpl_put(m, b, spaces, more));
    }
    return OK;
}

/* repr of f to out (32 bytes): the fewest digits that read back as f. Returns the length. */
static int float_text(double f, char *out)
{
    if (!isfinite(f))
        return snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    int precision = -1, n;
    do
        n = snprintf(out, 32, "%.*e", ++precision, f);
    while (precision < 16 && strtod(out, NULL) != f);
    int exponent = (int)strtol(strchr(out, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16)
        return n;
    return snprintf(out, 32, "%.*f", precision > exponent ? precision - exponent : 1, f);
}

static enum err put_number(struct mem *m, struct buf *b, struct val v)
{
    char s[32];
    int n = v.kind == VAL_FLOAT ? float_text(v.u.f, s) : snprintf(s, sizeof s, "%" PRId64, v.u.i);
    return tpl_put(m, b, s, n);
}

/* As in repr(). */
static int is_printable(int32_t cp)
{
    if (cp < 0x80)
        return cp >= 0x20 && cp < 0x7f;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return 0;
    default:
        return 1;
    }
}

/* 'text', or "text" if it contains ' but no ". */
static enum err put_quoted(struct mem *m, struct buf *b, const char *s, int64_t n)
{
    char quote = memchr(s, '\'', (size_t)n) && !memchr(s, '"', (size_t)n) ? '"' : '\'';
    TRY(tpl_pay(m, n / 16));
    TRY(tpl_put(m, b, &quote, 1));
    for (int64_t i = 0; i < n;) {
        int32_t cp, bytes = tpl_decode(s + i, n - i, &cp);
        char esc[16];
        int n_esc = 0;
        if (cp == quote || cp == '\\')
            n_esc = snprintf(esc, sizeof esc, "\\%c", cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            n_esc = snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (!is_printable(cp))
            n_esc = snprintf(esc, sizeof esc,
                             cp < 0x100     ? "\\x%02x"
                             : cp < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                             (unsigned)cp);
        TRY(tpl_put(m, b, n_esc ? esc : s + i, n_esc ? n_esc : bytes));
        i += bytes;
    }
    return tpl_put(m, b, &quote, 1);
}

static enum err put_repr(struct mem *m, struct buf *b, struct val v);

static enum err repr_list(struct mem *m, struct buf *b, struct val v)
{
    if (v.sub > SEQ_TUPLE)
        return tpl_fail(m, "a %s cannot be printed (use |list)", tpl_type_name(v));
    const struct list *l = v.u.list;
    int tuple = v.sub == SEQ_TUPLE;
    TRY(tpl_puts(m, b, tuple ? "(" : "["));
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            TRY(tpl_puts(m, b, ", "));
        TRY(put_repr(m, b, l->items[i]));
    }
    return tpl_puts(m, b, !tuple ? "]" : l->n == 1 ? ",)" : ")");
}

static enum err repr_dict(struct mem *m, struct buf *b, const struct dict *d)
{
    TRY(tpl_puts(m, b, "{"));
    for (int64_t i = 0; i < d->n; i++) {
        if (i)
            TRY(tpl_puts(m, b, ", "));
        TRY(put_repr(m, b, d->pairs[i].key));
        TRY(tpl_puts(m, b, ": "));
        TRY(put_repr(m, b, d->pairs[i].value));
    }
    return tpl_puts(m, b, "}");
}

static enum err put_repr(struct mem *m, struct buf *b, struct val v)
{
    enum err e;
    TRY(tpl_pay(m, 1));
    TRY(tpl_enter(m));
    switch (v.kind) {
    case VAL_UNDEFINED:
        e = tpl_puts(m, b, "Undefined");
        break;
    case VAL_NONE:
        e = tpl_puts(m, b, "None");
        break;
    case VAL_BOOL:
        e = tpl_puts(m, b, v.u.i ? "True" : "False");
        break;
    case VAL_INT:
    case VAL_FLOAT:
        e = put_number(m, b, v);
        break;
    case VAL_STR:
        if (v.sub)
            TRY(tpl_puts(m, b, "Markup("));
        e = put_quoted(m, b, v.u.s, v.n);
        if (v.sub && e == OK)
            e = tpl_puts(m, b, ")");
        break;
    case VAL_LIST:
        e = repr_list(m, b, v);
        break;
    case VAL_DICT:
        e = repr_dict(m, b, v.u.dict);
        break;
    case VAL_NAMESPACE:
        TRY(tpl_puts(m, b, "<Namespace "));
        TRY(repr_dict(m, b, v.u.dict));
        e = tpl_puts(m, b, ">");
        break;
    default:
        e = tpl_fail(m, "a %s cannot be printed", tpl_type_name(v));
        break;
    }
    m->depth--;
    return e;
}

enum err tpl_put_str(struct mem *m, struct buf *b, struct val v)
{
    if (v.kind == VAL_UNDEFINED)
        return OK;
    return v.kind == VAL_STR ? tpl_put(m, b, v.u.s, v.n) : put_repr(m, b, v);
}

enum err tpl_to_str(struct mem *m, struct val v, struct val *out)
{
    if (v.kind == VAL_STR) {
        *out = v;
        return OK;
    }
    struct buf b = {0};
    TRY(tpl_put_str(m, &b, v));
    *out = tpl_buf_str(&b);
    return OK;
}

static enum err json_escaped(struct mem *m, struct buf *b, int32_t cp)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    char s[16];
    const char *known = cp && cp < 0x80 ? strchr(from, cp) : NULL;
    if (known)
        snprintf(s, sizeof s, "\\%c", to[known - from]);
    else if (cp < 0x10000)
        snprintf(s, sizeof s, "\\u%04x", (unsigned)cp);
    else
        snprintf(s, sizeof s, "\\u%04x\\u%04x", 0xd800u + ((unsigned)(cp - 0x10000) >> 10),
                 0xdc00u + ((unsigned)cp & 0x3ff));
    return tpl_puts(m, b, s);
}

static enum err json_string_text(struct mem *m, struct buf *b, struct val v, int ensure_ascii)
{
    TRY(tpl_pay(m, v.n / 32));
    TRY(tpl_puts(m, b, "\""));
    int64_t plain = 0, i = 0;
    while (i < v.n) {
        int32_t cp, bytes = tpl_decode(v.u.s + i, v.n - i, &cp);
        if (cp < 0x20 || cp == '"' || cp == '\\' || (ensure_ascii && cp > 0x7e)) {
            TRY(tpl_pay(m, 1));
            TRY(tpl_put(m, b, v.u.s + plain, i - plain));
            TRY(json_escaped(m, b, cp));
            plain = i + bytes;
        }
        i += bytes;
    }
    TRY(tpl_put(m, b, v.u.s + plain, v.n - plain));
    return tpl_puts(m, b, "\"");
}

static enum err json_break(struct mem *m, struct buf *b, const struct json_style *style, int level)
{
    if (style->indent < 0)
        return OK;
    TRY(tpl_puts(m, b, "\n"));
    return tpl_put_spaces(m, b, level * style->indent);
}

static enum err json_scalar(struct mem *m, struct buf *b, struct val v,
                            const struct json_style *style)
{
    switch (v.kind) {
    case VAL_NONE:
        return tpl_puts(m, b, "null");
    case VAL_BOOL:
        return tpl_puts(m, b, v.u.i ? "true" : "false");
    case VAL_FLOAT:
        if (!isfinite(v.u.f))
            return tpl_puts(m, b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
        return put_number(m, b, v);
    case VAL_INT:
        return put_number(m, b, v);
    case VAL_STR:
        return json_string_text(m, b, v, style->ensure_ascii);
    default:
        return tpl_fail(m, "%s cannot be written as JSON", tpl_type_name(v));
    }
}

static enum err json_value(struct mem *m, struct buf *b, struct val v,
                           const struct json_style *style, int level);

static enum err json_list(struct mem *m, struct buf *b, const struct list *l,
                          const struct json_style *style, int level)
{
    if (!l->n)
        return tpl_puts(m, b, "[]");
    TRY(tpl_puts(m, b, "["));
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            TRY(tpl_put(m, b, style->item.u.s, style->item.n));
        TRY(json_break(m, b, style, level + 1));
        TRY(json_value(m, b, l->items[i], style, level + 1));
    }
    TRY(json_break(m, b, style, level));
    return tpl_puts(m, b, "]");
}

static enum err json_dict(struct mem *m, struct buf *b, const struct dict *d,
                          const struct json_style *style, int level)
{
    if (!d->n)
        return tpl_puts(m, b, "{}");
    TRY(tpl_puts(m, b, "{"));
    for (int64_t i = 0; i < d->n; i++) {
        const struct pair *pair = &d->pairs[i];
        if (i)
            TRY(tpl_put(m, b, style->item.u.s, style->item.n));
        TRY(json_break(m, b, style, level + 1));
        if (pair->key.kind == VAL_STR) {
            TRY(json_string_text(m, b, pair->key, style->ensure_ascii));
        } else {
            TRY(tpl_puts(m, b, "\""));
            TRY(json_scalar(m, b, pair->key, style));
            TRY(tpl_puts(m, b, "\""));
        }
        TRY(tpl_put(m, b, style->colon.u.s, style->colon.n));
        TRY(json_value(m, b, pair->value, style, level + 1));
    }
    TRY(json_break(m, b, style, level));
    return tpl_puts(m, b, "}");
}

static enum err json_value(struct mem *m, struct buf *b, struct val v,
                           const struct json_style *style, int level)
{
    enum err e;
    TRY(tpl_pay(m, 1));
    TRY(tpl_enter(m));
    if (v.kind == VAL_LIST && v.sub <= SEQ_TUPLE)
        e = json_list(m, b, v.u.list, style, level);
    else if (v.kind == VAL_DICT)
        e = json_dict(m, b, v.u.dict, style, level);
    else
        e = json_scalar(m, b, v, style);
    m->depth--;
    return e;
}

enum err tpl_put_json(struct mem *m, struct buf *b, struct val v, const struct json_style *style)
{
    return json_value(m, b, v, style, 0);
}

/* --- text from text --- */

static int32_t to_upper(int32_t cp)
{
    return cp < 0x80 ? (cp >= 'a' && cp <= 'z' ? cp - 32 : cp) : utf8proc_toupper(cp);
}

static int32_t to_lower(int32_t cp)
{
    return cp < 0x80 ? (cp >= 'A' && cp <= 'Z' ? cp + 32 : cp) : utf8proc_tolower(cp);
}

enum err tpl_case(struct mem *m, struct val s, enum text_case how, struct val *out)
{
    struct buf b = {0};
    int upper = how != CASE_LOWER;
    TRY(tpl_pay(m, s.n / 16));
    for (int64_t i = 0; i < s.n;) {
        int32_t cp, bytes = tpl_decode(s.u.s + i, s.n - i, &cp);
        if (upper && cp == 0xdf && how < CASE_TITLE)
            TRY(tpl_puts(m, &b, "SS"));
        else
            TRY(put_cp(m, &b, upper ? to_upper(cp) : to_lower(cp)));
        if (how == CASE_CAPITALIZE)
            upper = 0;
        else if (how == CASE_TITLE)
            upper = to_lower(cp) == cp && to_upper(cp) == cp;
        else if (how == CASE_FILTER_TITLE)
            upper = tpl_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", cp));
        i += bytes;
    }
    *out = tpl_buf_str(&b);
    out->sub = s.sub;
    return OK;
}

enum err tpl_replace(struct mem *m, struct val s, struct val from, struct val to, int64_t count,
                     struct val *out)
{
    struct buf b = {0};
    int64_t i = 0, at;
    if (!from.n)
        return tpl_fail(m, "replace needs a non-empty text to look for");
    if (s.sub) {
        TRY(tpl_escape(m, from, &from));
        TRY(tpl_escape(m, to, &to));
    }
    TRY(tpl_pay(m, s.n / 64));
    for (; count != 0 && (at = tpl_find(s.u.s + i, s.n - i, from.u.s, from.n)) >= 0; count--) {
        TRY(tpl_pay(m, 1));
        TRY(tpl_put(m, &b, s.u.s + i, at));
        TRY(tpl_put(m, &b, to.u.s, to.n));
        i += at + from.n;
    }
    TRY(tpl_put(m, &b, s.u.s + i, s.n - i));
    *out = tpl_buf_str(&b);
    out->sub = s.sub;
    return OK;
}

/* Cuts `rest` at its first separator (NULL: white space); returns 0 if there is none. */
static int split_once(struct val *rest, const struct val *sep, struct val *piece)
{
    int64_t at = sep ? tpl_find(rest->u.s, rest->n, sep->u.s, sep->n) : 0, after = at;
    if (sep) {
        after += sep->n;
    } else {
        int32_t cp, bytes = 0;
        for (; at < rest->n; at += bytes) {
            bytes = tpl_decode(rest->u.s + at, rest->n - at, &cp);
            if (tpl_is_space(cp))
                break;
        }
        struct val tail = tpl_str(rest->u.s + at, rest->n - at);
        after = tail.n ? tpl_strip(tail, tpl_none(), SIDE_LEFT).u.s - rest->u.s : -1;
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

enum err tpl_split(struct mem *m, struct val s, struct val sep, int64_t limit, struct val *out)
{
    int by_space = sep.kind != VAL_STR;
    struct val piece, rest;
    int64_t n = 0;
    if (by_space)
        s = tpl_strip(s, sep, SIDE_LEFT);
    else if (!sep.n)
        return tpl_fail(m, "split needs a non-empty separator");
    TRY(tpl_pay(m, s.n / 16));
    for (int pass = 0; pass < 2; pass++) { // count, then fill
        if (pass)
            TRY(tpl_list(m, SEQ_LIST, n + 1, out));
        rest = s;
        for (n = 0; (limit < 0 || n < limit) && split_once(&rest, by_space ? NULL : &sep, &piece);
             n++) {
            TRY(tpl_pay(m, 1));
            if (pass)
                out->u.list->items[n] = piece;
        }
    }
    out->u.list->items[n] = rest;
    out->u.list->n -= by_space && !rest.n;
    return OK;
}

/* Bytes of the line break at s[i]; 0: none. */
static int64_t line_break(struct val s, int64_t i)
{
    int32_t cp, bytes = tpl_decode(s.u.s + i, s.n - i, &cp);
    if (cp == '\r' && i + 1 < s.n && s.u.s[i + 1] == '\n')
        return 2;
    int breaks = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                 cp == 0x2028 || cp == 0x2029;
    return breaks ? bytes : 0;
}

enum err tpl_lines(struct mem *m, struct val s, struct val *out)
{
    int64_t n = 0;
    TRY(tpl_pay(m, s.n / 32));
    for (int pass = 0; pass < 2; pass++) { // count, then fill
        if (pass)
            TRY(tpl_list(m, SEQ_LIST, n, out));
        n = 0;
        for (int64_t i = 0, start = 0; i < s.n;) {
            int64_t brk = line_break(s, i);
            i += brk ? brk : tpl_offset(s.u.s + i, s.n - i, 1);
            if (!brk && i < s.n)
                continue;
            if (pass) {
                out->u.list->items[n] = tpl_str(s.u.s + start, i - brk - start);
                out->u.list->items[n].sub = s.sub;
            }
            n++;
            start = i;
        }
    }
    return OK;
}

enum err tpl_escape(struct mem *m, struct val s, struct val *out)
{
    struct buf b = {0};
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
        TRY(tpl_pay(m, i % 16 == 0));
        TRY(to ? tpl_puts(m, &b, to) : tpl_put(m, &b, &c, 1));
    }
    *out = tpl_buf_str(&b);
    out->sub = 1;
    return OK;
}

enum err tpl_strftime(struct mem *m, struct val format, int64_t epoch, struct val *out)
{
    char f[256], text[1024];
    if (format.kind != VAL_STR || format.n >= (int64_t)sizeof f ||
        memchr(format.u.s, 0, (size_t)format.n))
        return tpl_fail(m, "strftime_now needs a short format string");
    memcpy(f, format.u.s, (size_t)format.n);
    f[format.n] = 0;
    TRY(tpl_pay(m, 100));
    time_t now = (time_t)epoch;
    struct tm tm;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c || !gmtime_r(&now, &tm)) {
        if (c)
            freelocale(c);
        return tpl_fail(m, "strftime_now: the clock cannot be read");
    }
    size_t n = strftime_l(text, sizeof text, f, &tm, c);
    freelocale(c);
    if (!n && format.n)
        return tpl_fail(m, "strftime_now: the date is empty or too long");
    if (!tpl_is_utf8(text, (int64_t)n))
        return tpl_fail(m, "strftime_now: the date is not UTF-8");
    void *p;
    TRY(tpl_take(m, (int64_t)n, 1, &p));
    memcpy(p, text, n);
    *out = tpl_str(p, (int64_t)n);
    return OK;
}
