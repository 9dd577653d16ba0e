/* engine/chat/template_print.c - template values as text: str(), repr() and json.dumps of Python.
 *
 * Owns: those three. Refuses: what has no stable text (functions, iterators). The one fact:
 * templates print True, None and {'a': 1}, not JSON, unless they say tojson. */
#include "engine/chat/template_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static enum err put_number(struct tv_mem *m, struct tv_buf *b, struct tv v)
{
    char s[32];
    int n = v.kind == TV_FLOAT ? tt_float(v.u.f, s) : snprintf(s, sizeof s, "%" PRId64, v.u.i);
    return tv_put(m, b, s, n);
}

/* 'text', or "text" when only single quotes stand inside. */
static enum err put_quoted(struct tv_mem *m, struct tv_buf *b, const char *s, int64_t n)
{
    char quote = memchr(s, '\'', (size_t)n) && !memchr(s, '"', (size_t)n) ? '"' : '\'';
    TRY(tv_pay(m, n / 16));
    TRY(tv_put(m, b, &quote, 1));
    for (int64_t i = 0; i < n;) {
        int32_t cp, bytes = tt_decode(s + i, n - i, &cp);
        char esc[16];
        int n_esc = 0;
        if (cp == quote || cp == '\\')
            n_esc = snprintf(esc, sizeof esc, "\\%c", cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            n_esc = snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (!tt_is_printable(cp))
            n_esc = snprintf(esc, sizeof esc,
                             cp < 0x100     ? "\\x%02x"
                             : cp < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                             (unsigned)cp);
        TRY(tv_put(m, b, n_esc ? esc : s + i, n_esc ? n_esc : bytes));
        i += bytes;
    }
    return tv_put(m, b, &quote, 1);
}

static enum err repr_list(struct tv_mem *m, struct tv_buf *b, struct tv v)
{
    if (v.sub > TV_SEQ_TUPLE)
        return tv_fail(m, "a %s cannot be printed (use |list)", tv_type_name(v));
    const struct tv_list *l = v.u.list;
    int tuple = v.sub == TV_SEQ_TUPLE;
    TRY(tv_puts(m, b, tuple ? "(" : "["));
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            TRY(tv_puts(m, b, ", "));
        TRY(tv_put_repr(m, b, l->items[i]));
    }
    return tv_puts(m, b, !tuple ? "]" : l->n == 1 ? ",)" : ")");
}

static enum err repr_dict(struct tv_mem *m, struct tv_buf *b, const struct tv_dict *d)
{
    TRY(tv_puts(m, b, "{"));
    for (int64_t i = 0; i < d->n; i++) {
        if (i)
            TRY(tv_puts(m, b, ", "));
        TRY(tv_put_repr(m, b, d->pairs[i].key));
        TRY(tv_puts(m, b, ": "));
        TRY(tv_put_repr(m, b, d->pairs[i].value));
    }
    return tv_puts(m, b, "}");
}

/* n spaces; the number comes from the template. */
enum err tv_put_spaces(struct tv_mem *m, struct tv_buf *b, int64_t n)
{
    static const char spaces[] = "                ";
    for (int64_t more; n > 0; n -= more) {
        more = min_i64(n, sizeof spaces - 1);
        TRY(tv_pay(m, 1));
        TRY(tv_put(m, b, spaces, more));
    }
    return OK;
}

enum err tv_put_repr(struct tv_mem *m, struct tv_buf *b, struct tv v)
{
    enum err e;
    TRY(tv_pay(m, 1));
    TRY(tv_enter(m));
    switch (v.kind) {
    case TV_UNDEFINED:
        e = tv_puts(m, b, "Undefined");
        break;
    case TV_NONE:
        e = tv_puts(m, b, "None");
        break;
    case TV_BOOL:
        e = tv_puts(m, b, v.u.i ? "True" : "False");
        break;
    case TV_INT:
    case TV_FLOAT:
        e = put_number(m, b, v);
        break;
    case TV_STR:
        if (v.sub)
            TRY(tv_puts(m, b, "Markup("));
        e = put_quoted(m, b, v.u.s, v.n);
        if (v.sub && e == OK)
            e = tv_puts(m, b, ")");
        break;
    case TV_LIST:
        e = repr_list(m, b, v);
        break;
    case TV_DICT:
        e = repr_dict(m, b, v.u.dict);
        break;
    case TV_NAMESPACE:
        TRY(tv_puts(m, b, "<Namespace "));
        TRY(repr_dict(m, b, v.u.dict));
        e = tv_puts(m, b, ">");
        break;
    default:
        e = tv_fail(m, "a %s cannot be printed", tv_type_name(v));
        break;
    }
    m->depth--;
    return e;
}

enum err tv_put_str(struct tv_mem *m, struct tv_buf *b, struct tv v)
{
    if (v.kind == TV_UNDEFINED)
        return OK;
    return v.kind == TV_STR ? tv_put(m, b, v.u.s, v.n) : tv_put_repr(m, b, v);
}

enum err tv_to_str(struct tv_mem *m, struct tv v, struct tv *out)
{
    if (v.kind == TV_STR) {
        *out = v;
        return OK;
    }
    struct tv_buf b = {0};
    TRY(tv_put_str(m, &b, v));
    *out = tv_text(&b);
    return OK;
}

static enum err json_escaped(struct tv_mem *m, struct tv_buf *b, int32_t cp)
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
    return tv_puts(m, b, s);
}

static enum err json_string_text(struct tv_mem *m, struct tv_buf *b, struct tv v, int ensure_ascii)
{
    TRY(tv_pay(m, v.n / 32));
    TRY(tv_puts(m, b, "\""));
    int64_t plain = 0, i = 0;
    while (i < v.n) {
        int32_t cp, bytes = tt_decode(v.u.s + i, v.n - i, &cp);
        if (cp < 0x20 || cp == '"' || cp == '\\' || (ensure_ascii && cp > 0x7e)) {
            TRY(tv_pay(m, 1));
            TRY(tv_put(m, b, v.u.s + plain, i - plain));
            TRY(json_escaped(m, b, cp));
            plain = i + bytes;
        }
        i += bytes;
    }
    TRY(tv_put(m, b, v.u.s + plain, v.n - plain));
    return tv_puts(m, b, "\"");
}

static enum err json_break(struct tv_mem *m, struct tv_buf *b, const struct tv_json_style *style,
                           int level)
{
    if (style->indent < 0)
        return OK;
    TRY(tv_puts(m, b, "\n"));
    return tv_put_spaces(m, b, level * style->indent);
}

static enum err json_scalar(struct tv_mem *m, struct tv_buf *b, struct tv v,
                            const struct tv_json_style *style)
{
    switch (v.kind) {
    case TV_NONE:
        return tv_puts(m, b, "null");
    case TV_BOOL:
        return tv_puts(m, b, v.u.i ? "true" : "false");
    case TV_FLOAT:
        if (!isfinite(v.u.f))
            return tv_puts(m, b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
        return put_number(m, b, v);
    case TV_INT:
        return put_number(m, b, v);
    case TV_STR:
        return json_string_text(m, b, v, style->ensure_ascii);
    default:
        return tv_fail(m, "%s cannot be written as JSON", tv_type_name(v));
    }
}

static enum err json_value(struct tv_mem *m, struct tv_buf *b, struct tv v,
                           const struct tv_json_style *style, int level);

static enum err json_list(struct tv_mem *m, struct tv_buf *b, const struct tv_list *l,
                          const struct tv_json_style *style, int level)
{
    if (!l->n)
        return tv_puts(m, b, "[]");
    TRY(tv_puts(m, b, "["));
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            TRY(tv_put(m, b, style->item.s, style->item.n));
        TRY(json_break(m, b, style, level + 1));
        TRY(json_value(m, b, l->items[i], style, level + 1));
    }
    TRY(json_break(m, b, style, level));
    return tv_puts(m, b, "]");
}

static enum err json_dict(struct tv_mem *m, struct tv_buf *b, const struct tv_dict *d,
                          const struct tv_json_style *style, int level)
{
    if (!d->n)
        return tv_puts(m, b, "{}");
    TRY(tv_puts(m, b, "{"));
    for (int64_t i = 0; i < d->n; i++) {
        const struct tv_pair *pair = &d->pairs[i];
        if (i)
            TRY(tv_put(m, b, style->item.s, style->item.n));
        TRY(json_break(m, b, style, level + 1));
        if (pair->key.kind == TV_STR) {
            TRY(json_string_text(m, b, pair->key, style->ensure_ascii));
        } else {
            TRY(tv_puts(m, b, "\""));
            TRY(json_scalar(m, b, pair->key, style));
            TRY(tv_puts(m, b, "\""));
        }
        TRY(tv_put(m, b, style->colon.s, style->colon.n));
        TRY(json_value(m, b, pair->value, style, level + 1));
    }
    TRY(json_break(m, b, style, level));
    return tv_puts(m, b, "}");
}

static enum err json_value(struct tv_mem *m, struct tv_buf *b, struct tv v,
                           const struct tv_json_style *style, int level)
{
    enum err e;
    TRY(tv_pay(m, 1));
    TRY(tv_enter(m));
    if (v.kind == TV_LIST && v.sub <= TV_SEQ_TUPLE)
        e = json_list(m, b, v.u.list, style, level);
    else if (v.kind == TV_DICT)
        e = json_dict(m, b, v.u.dict, style, level);
    else
        e = json_scalar(m, b, v, style);
    m->depth--;
    return e;
}

enum err tv_put_json(struct tv_mem *m, struct tv_buf *b, struct tv v,
                     const struct tv_json_style *style)
{
    return json_value(m, b, v, style, 0);
}
