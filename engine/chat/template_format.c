/* engine/chat/template_format.c - "%s" % value, "{}".format(value) and strftime.
 *
 * Owns: conversions s r d i u x X o f F e E g G c % and their widths. Refuses: field access inside
 * braces, grouping and other rarities, by an error. The one fact: widths come from templates, so
 * they are bounded. */
#include "engine/chat/template_call.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WIDTH_MAX 1000

/* How one value is laid out. */
struct spec {
    char align; // '<', '>', '^', '=' or 0: by type
    char sign;  // '+', ' ' or 0
    int alternate;
    int32_t fill;             // code point
    int64_t width, precision; // -1: none
    char type;                // 0: by value
};

/* Reads digits at s[*i] into *out, -1 when there are none. */
static enum err read_width(struct tv_mem *m, struct tv s, int64_t *i, int64_t *out)
{
    *out = -1;
    while (*i < s.n && s.u.s[*i] >= '0' && s.u.s[*i] <= '9') {
        *out = max_i64(*out, 0) * 10 + s.u.s[(*i)++] - '0';
        if (*out > WIDTH_MAX)
            return tv_fail(m, "a width or precision in a format exceeds %d", WIDTH_MAX);
    }
    return OK;
}

static enum err put_padding(struct tv_mem *m, struct tv_buf *b, int32_t fill, int64_t n)
{
    TRY(tv_pay(m, n / 16));
    for (int64_t i = 0; i < n; i++)
        TRY(tv_put_cp(m, b, fill));
    return OK;
}

/* body with `n_sign` leading sign bytes, padded to the width. */
static enum err put_aligned(struct tv_mem *m, struct tv_buf *b, const struct spec *spec,
                            const char *body, int64_t n, int64_t n_sign)
{
    int64_t pad = max_i64(spec->width - tt_count(body, n), 0);
    int64_t left = spec->align == '>' ? pad : spec->align == '^' ? pad / 2 : 0;
    if (spec->align == '=') {
        TRY(tv_put(m, b, body, n_sign));
        TRY(put_padding(m, b, spec->fill, pad));
        return tv_put(m, b, body + n_sign, n - n_sign);
    }
    TRY(put_padding(m, b, spec->fill, left));
    TRY(tv_put(m, b, body, n));
    return put_padding(m, b, spec->fill, pad - left);
}

static enum err put_text(struct tv_mem *m, struct tv_buf *b, struct spec spec, struct tv v)
{
    if (spec.precision >= 0)
        v.n = tt_offset(v.u.s, v.n, spec.precision);
    if (!spec.align)
        spec.align = '<';
    return put_aligned(m, b, &spec, v.u.s, v.n, 0);
}

static enum err put_int(struct tv_mem *m, struct tv_buf *b, struct spec spec, int64_t i)
{
    char digits[80], s[96];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    int n = 0, n_sign;
    if (i < 0 || spec.sign)
        s[n++] = i < 0 ? '-' : spec.sign;
    if (spec.alternate && strchr("xXob", spec.type)) {
        s[n++] = '0';
        s[n++] = spec.type;
    }
    n_sign = n;
    uint64_t base = spec.type == 'x' || spec.type == 'X' ? 16
                    : spec.type == 'o'                   ? 8
                    : spec.type == 'b'                   ? 2
                                                         : 10;
    int n_digits = 0;
    do {
        digits[n_digits++] = (spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
        u /= base;
    } while (u);
    while (n_digits)
        s[n++] = digits[--n_digits];
    if (!spec.align)
        spec.align = '>';
    return put_aligned(m, b, &spec, s, n, n_sign);
}

static enum err put_float(struct tv_mem *m, struct tv_buf *b, struct spec spec, double f)
{
    char format[8] = "%+.*f", s[WIDTH_MAX + 400];
    int n, n_sign;
    format[4] = spec.type == '%' ? 'f' : spec.type;
    n = snprintf(s, sizeof s, format, (int)(spec.precision < 0 ? 6 : spec.precision),
                 spec.type == '%' ? f * 100 : f);
    if (spec.type == '%')
        s[n++] = '%';
    n_sign = 1;
    char *body = s;
    if (s[0] == '+' && !spec.sign) {
        body++;
        n--;
        n_sign = 0;
    } else if (s[0] == '+') {
        s[0] = spec.sign;
    }
    if (!spec.align)
        spec.align = '>';
    return put_aligned(m, b, &spec, body, n, n_sign);
}

/* One %-conversion of v. */
static enum err put_percent(struct tv_mem *m, struct tv_buf *b, struct spec spec, struct tv v)
{
    struct tv text;
    struct tv_buf repr = {0};
    if (strchr("sr", spec.type)) {
        if (spec.type == 'r')
            TRY(tv_put_repr(m, &repr, v));
        else
            TRY(tv_put_str(m, &repr, v));
        text = tv_text(&repr);
        spec.align = spec.align ? spec.align : '>';
        spec.align = spec.align == '=' ? '>' : spec.align;
        spec.fill = ' ';
        return put_text(m, b, spec, text);
    }
    if (!tv_is_number(v))
        return tv_fail(m, "%%%c needs a number, not %s", spec.type, tv_type_name(v));
    if (strchr("eEfFgG", spec.type))
        return put_float(m, b, spec, tv_as_float(v));
    int is_decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (spec.precision >= 0 || (v.kind == TV_FLOAT && (!is_decimal || !(fabs(v.u.f) < 9e18))))
        return tv_fail(m, "%%%c cannot format this %s", spec.type, tv_type_name(v));
    return put_int(m, b, spec, v.kind == TV_FLOAT ? (int64_t)v.u.f : v.u.i);
}

/* The value a conversion takes: the next one of a tuple, the only one, or the one under (key). */
struct percent_values {
    struct tv value;
    int64_t taken;
};

static enum err take_value(struct tv_mem *m, struct percent_values *p, struct tv key,
                           struct tv *out)
{
    if (key.kind == TV_STR) {
        struct tv *found = NULL;
        if (p->value.kind == TV_DICT)
            TRY(tv_dict_find(m, p->value.u.dict, key, &found));
        if (!found)
            return tv_fail(m, "the format's key '%.*s' is missing", (int)key.n, key.u.s);
        *out = *found;
        return OK;
    }
    int tuple = p->value.kind == TV_LIST && p->value.sub == TV_SEQ_TUPLE;
    if (p->taken >= (tuple ? p->value.u.list->n : 1))
        return tv_fail(m, "too few values for the format");
    *out = tuple ? p->value.u.list->items[p->taken] : p->value;
    p->taken++;
    return OK;
}

/* One conversion; *i stands behind its '%'. */
static enum err percent_one(struct tv_mem *m, struct tv_buf *b, struct tv f, int64_t *i,
                            struct percent_values *values)
{
    struct spec spec = {.fill = ' ', .precision = -1};
    struct tv key = tv_none(), v;
    TRY(tv_pay(m, 4));
    if (*i < f.n && f.u.s[*i] == '(') {
        int64_t end = tt_find(f.u.s + *i, f.n - *i, ")", 1);
        if (end < 0)
            return tv_fail(m, "the format's key has no ')'");
        key = tv_str(f.u.s + *i + 1, end - 1);
        *i += end + 1;
    }
    for (; *i < f.n && f.u.s[*i] && strchr("-+ 0#", f.u.s[*i]); ++*i) {
        char c = f.u.s[*i];
        if (c == '-')
            spec.align = '<';
        else if (c == '0' && spec.align != '<')
            spec.align = '=', spec.fill = '0';
        else if (c == '#')
            spec.alternate = 1;
        else if (c == '+' || (c == ' ' && !spec.sign))
            spec.sign = c;
    }
    if (spec.align == '<')
        spec.fill = ' ';
    TRY(read_width(m, f, i, &spec.width));
    if (*i < f.n && f.u.s[*i] == '.') {
        ++*i;
        TRY(read_width(m, f, i, &spec.precision));
        spec.precision = max_i64(spec.precision, 0);
    }
    if (*i >= f.n || !f.u.s[*i] || !strchr("srdiuxXofFeEgG%", f.u.s[*i]))
        return tv_fail(m, "the format has an unsupported conversion");
    spec.type = f.u.s[(*i)++];
    if (spec.type == '%')
        return tv_put(m, b, "%", 1);
    TRY(take_value(m, values, key, &v));
    return put_percent(m, b, spec, v);
}

enum err tc_format_percent(struct tv_mem *m, struct tv format, struct tv value, struct tv *out)
{
    struct tv_buf b = {0};
    struct percent_values values = {value, 0};
    if (format.sub)
        return tv_fail(m, "%% of text marked safe is not supported");
    for (int64_t i = 0; i < format.n;) {
        int64_t end = i;
        while (end < format.n && format.u.s[end] != '%')
            end++;
        TRY(tv_put(m, &b, format.u.s + i, end - i));
        i = end + 1;
        if (end < format.n)
            TRY(percent_one(m, &b, format, &i, &values));
    }
    int tuple = value.kind == TV_LIST && value.sub == TV_SEQ_TUPLE;
    if (tuple ? values.taken < value.u.list->n
              : !values.taken && value.kind != TV_DICT && value.kind != TV_LIST)
        return tv_fail(m, "too many values for the format");
    *out = tv_text(&b);
    return OK;
}

/* [[fill]align][sign][#][0][width][.precision][type], all of s. */
static enum err parse_spec(struct tv_mem *m, struct tv s, struct spec *spec)
{
    int32_t cp;
    int64_t i = 0, first = s.n ? tt_decode(s.u.s, s.n, &cp) : 0;
    *spec = (struct spec){.fill = ' ', .width = -1, .precision = -1};
    if (first < s.n && s.u.s[first] && strchr("<>^=", s.u.s[first])) {
        spec->fill = cp;
        spec->align = s.u.s[first];
        i = first + 1;
    } else if (s.n && s.u.s[0] && strchr("<>^=", s.u.s[0])) {
        spec->align = s.u.s[i++];
    }
    if (i < s.n && (s.u.s[i] == '+' || s.u.s[i] == ' ' || s.u.s[i] == '-'))
        spec->sign = s.u.s[i++];
    spec->sign = spec->sign == '-' ? 0 : spec->sign;
    if (i < s.n && s.u.s[i] == '#')
        spec->alternate = 1, i++;
    if (i < s.n && s.u.s[i] == '0' && !spec->align) {
        spec->align = '=';
        spec->fill = '0';
        i++;
    }
    TRY(read_width(m, s, &i, &spec->width));
    if (i < s.n && s.u.s[i] == '.') {
        i++;
        TRY(read_width(m, s, &i, &spec->precision));
    }
    if (i < s.n && s.u.s[i] && strchr("sdxXobfFeEgG%", s.u.s[i]))
        spec->type = s.u.s[i++];
    return i == s.n ? OK : tv_fail(m, "unsupported format '%.*s'", (int)min_i64(s.n, 64), s.u.s);
}

/* One {field:spec} of v. */
static enum err put_braces(struct tv_mem *m, struct tv_buf *b, struct tv v, struct tv spec_text)
{
    struct spec spec;
    struct tv text;
    if (!spec_text.n)
        return tv_put_str(m, b, v);
    TRY(parse_spec(m, spec_text, &spec));
    if (v.kind == TV_STR) {
        if (spec.type && spec.type != 's')
            return tv_fail(m, "format '%c' needs a number", spec.type);
        if (spec.align == '=')
            return tv_fail(m, "format '=' needs a number");
        return put_text(m, b, spec, v);
    }
    if (!tv_is_number(v) || spec.type == 's')
        return tv_fail(m, "a %s cannot be formatted", tv_type_name(v));
    if (strchr("eEfFgG%", spec.type) && spec.type)
        return put_float(m, b, spec, tv_as_float(v));
    if (v.kind == TV_FLOAT) {
        if (spec.type || spec.precision >= 0)
            return tv_fail(m, "unsupported format of a float");
        TRY(tv_to_str(m, v, &text));
        spec.align = spec.align ? spec.align : '>';
        return put_aligned(m, b, &spec, text.u.s, text.n, text.u.s[0] == '-');
    }
    spec.type = spec.type ? spec.type : 'd';
    return spec.precision >= 0 ? tv_fail(m, "an int has no precision") : put_int(m, b, spec, v.u.i);
}

/* The argument that a field names: {} the next, {2} by position, {name}. */
static enum err field_value(struct tv_mem *m, const struct tc_args *args, struct tv field,
                            int *next, struct tv *out)
{
    int64_t i = 0, index;
    TRY(tv_pay(m, 4 + args->n_named / 16));
    TRY(read_width(m, field, &i, &index));
    if (i == field.n) { // empty or a number
        if (index >= 0 ? *next > 0 : *next < 0)
            return tv_fail(m, "a format cannot mix {} and {0}");
        *next = index >= 0 ? -1 : *next;
        index = index >= 0 ? index : (*next)++;
        if (index >= args->n_pos)
            return tv_fail(m, "too few values for the format");
        *out = args->pos[index];
        return OK;
    }
    for (int k = 0; k < args->n_named; k++) {
        if (args->named[k].n == field.n &&
            !memcmp(args->named[k].name, field.u.s, (size_t)field.n)) {
            *out = args->named[k].value;
            return OK;
        }
    }
    return tv_fail(m, "the format's field '%.*s' is missing", (int)min_i64(field.n, 64), field.u.s);
}

/* One field; *i stands behind its '{'. */
static enum err braces_one(struct tv_mem *m, struct tv_buf *b, struct tv f, int64_t *i,
                           const struct tc_args *args, int *next)
{
    int64_t end = *i, name_end;
    while (end < f.n && f.u.s[end] != '}' && f.u.s[end] != '{')
        end++;
    if (end >= f.n || f.u.s[end] == '{')
        return tv_fail(m, "unsupported or unfinished field in a format");
    for (name_end = *i; name_end < end && !strchr(":!", f.u.s[name_end]); name_end++)
        ;
    struct tv v, spec = tv_str("", 0), repr;
    TRY(field_value(m, args, tv_str(f.u.s + *i, name_end - *i), next, &v));
    if (name_end < end && f.u.s[name_end] == '!') {
        struct tv_buf buf = {0};
        char how = name_end + 1 < end ? f.u.s[name_end + 1] : 0;
        if (how != 's' && how != 'r')
            return tv_fail(m, "unsupported conversion in a format");
        TRY(how == 'r' ? tv_put_repr(m, &buf, v) : tv_put_str(m, &buf, v));
        repr = tv_text(&buf);
        v = repr;
        name_end += 2;
        if (name_end < end && f.u.s[name_end] != ':')
            return tv_fail(m, "unsupported conversion in a format");
    }
    if (name_end < end)
        spec = tv_str(f.u.s + name_end + 1, end - name_end - 1);
    *i = end + 1;
    return put_braces(m, b, v, spec);
}

enum err tc_format_braces(struct tv_mem *m, struct tv format, const struct tc_args *args,
                          struct tv *out)
{
    struct tv_buf b = {0};
    int next = 0;
    if (format.sub)
        return tv_fail(m, "format of text marked safe is not supported");
    for (int64_t i = 0; i < format.n;) {
        char c = format.u.s[i];
        if (c != '{' && c != '}') {
            int64_t end = i;
            while (end < format.n && format.u.s[end] != '{' && format.u.s[end] != '}')
                end++;
            TRY(tv_put(m, &b, format.u.s + i, end - i));
            i = end;
        } else if (i + 1 < format.n && format.u.s[i + 1] == c) {
            TRY(tv_put(m, &b, &c, 1));
            i += 2;
        } else if (c == '}') {
            return tv_fail(m, "a lone '}' in a format");
        } else {
            i++;
            TRY(braces_one(m, &b, format, &i, args, &next));
        }
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
