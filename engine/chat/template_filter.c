/* engine/chat/template_filter.c - the filters: value | name(args).
 *
 * Owns: FILTERS, argument binding, the filters of one value. Refuses: filters that make HTML or
 * need a file system; lists (template_series.c). */
#include "engine/chat/template_series.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tc_is_absent(struct tv v)
{
    return v.kind == TV_UNDEFINED && v.sub == TV_ABSENT;
}

enum err tc_int(struct tv_mem *m, struct tv v, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (tc_is_absent(v))
        return OK;
    if (v.kind != TV_INT && v.kind != TV_BOOL)
        return tv_fail(m, "an integer is needed, not %s", tv_type_name(v));
    *out = v.u.i;
    return OK;
}

enum err tc_bind(struct tv_mem *m, const char *what, const struct tc_params *params,
                 const struct tc_args *args, struct tv *bound)
{
    if (args->n_pos > params->n)
        return tv_fail(m, "%s takes at most %d arguments", what, params->n);
    for (int i = 0; i < params->n; i++) {
        bound[i] = tv_undefined("argument", 8);
        bound[i].sub = TV_ABSENT;
        if (i < args->n_pos)
            bound[i] = args->pos[i];
    }
    for (int k = 0; k < args->n_named; k++) {
        const struct tc_kwarg *named = &args->named[k];
        int i = 0;
        while (i < params->n && !tv_is_str(tv_str(named->name, named->n), params->names[i]))
            i++;
        if (i == params->n || !tc_is_absent(bound[i]))
            return tv_fail(m, "%s does not take the argument '%.*s' here", what, named->n,
                           named->name);
        bound[i] = named->value;
    }
    for (int i = 0; i < params->n_required; i++) {
        if (tc_is_absent(bound[i]))
            return tv_fail(m, "%s needs the argument '%s'", what, params->names[i]);
    }
    return OK;
}

/* --- filters with plain parameters; a[] is bound to the names in FILTERS --- */

static enum err f_default(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)m;
    int missing = in.kind == TV_UNDEFINED || (tv_truth(a[1]) && !tv_truth(in));
    *out = !missing ? in : tc_is_absent(a[0]) ? tv_str("", 0) : a[0];
    return OK;
}

static enum err f_length(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_pay(m, in.kind == TV_STR ? in.n / 64 : 0));
    int64_t n = tv_length(in);
    *out = tv_int(n);
    return n >= 0 ? OK : tv_fail(m, "a %s has no length", tv_type_name(in));
}

static enum err f_first(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items;
    int64_t n;
    (void)a;
    TRY(tv_walk(m, in, &items, &n));
    *out = n ? items[0] : tv_undefined("first of nothing", 16);
    return OK;
}

static enum err f_last(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items;
    int64_t n;
    (void)a;
    if (in.kind == TV_LIST && in.sub == TV_SEQ_ITER)
        return tv_fail(m, "a generator has no last item (use |list)");
    TRY(tv_walk(m, in, &items, &n));
    *out = n ? items[n - 1] : tv_undefined("last of nothing", 15);
    return OK;
}

static enum err f_list(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items;
    int64_t n;
    (void)a;
    TRY(tv_walk(m, in, &items, &n));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, out));
    if (n)
        memcpy(out->u.list->items, items, (size_t)n * sizeof *items);
    return OK;
}

static enum err f_reverse(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items;
    int64_t n;
    (void)a;
    if (in.kind == TV_STR)
        return tc_slice(m, in, tv_none(), tv_none(), tv_int(-1), out);
    int lists =
        in.kind == TV_LIST && in.sub == TV_SEQ_ITER; // what cannot be reversed becomes a list
    TRY(tv_walk(m, in, &items, &n));
    TRY(tv_list_new(m, lists ? TV_SEQ_LIST : TV_SEQ_ITER, n, out));
    for (int64_t i = 0; i < n; i++)
        out->u.list->items[i] = items[n - 1 - i];
    return OK;
}

static enum err f_string(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    return tv_to_str(m, in, out);
}

static enum err f_safe(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    out->sub = 1;
    return OK;
}

static enum err f_escape(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    return tc_escape(m, *out, out);
}

/* Also of what is marked safe. */
static enum err f_forceescape(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    out->sub = 0;
    return tc_escape(m, *out, out);
}

/* A method, or nothing: never a key. */
static enum err f_attr(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    if (a[0].kind != TV_STR)
        return tv_fail(m, "attr needs a name, not %s", tv_type_name(a[0]));
    if (in.kind == TV_UNDEFINED)
        return tv_fail(m, "'%.*s' is undefined", (int)in.n, in.u.s);
    TRY(tc_attr(m, in, a[0].u.s, a[0].n, out));
    if (in.kind == TV_DICT && out->kind != TV_METHOD)
        *out = tv_undefined(a[0].u.s, a[0].n);
    return OK;
}

static enum err f_center(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv width = tc_is_absent(a[0]) ? tv_int(80) : a[0];
    TRY(tv_to_str(m, in, &in));
    return tc_pad(m, in, width, tv_str(" ", 1), TT_BOTH, out);
}

static enum err f_upper(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    return tc_upper(m, *out, out);
}

static enum err f_lower(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    return tc_lower(m, *out, out);
}

static enum err f_capitalize(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    return tc_capitalize(m, *out, out);
}

/* Upper case behind - ( { [ < and white space, lower case elsewhere. */
static enum err f_title(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv_buf b = {0};
    int starts = 1;
    (void)a;
    TRY(tv_to_str(m, in, &in));
    TRY(tv_pay(m, in.n / 16));
    for (int64_t i = 0; i < in.n;) {
        int32_t cp, bytes = tt_decode(in.u.s + i, in.n - i, &cp);
        TRY(tv_put_cp(m, &b, starts ? tt_to_upper(cp) : tt_to_lower(cp)));
        starts = tt_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", cp));
        i += bytes;
    }
    *out = tv_text(&b);
    out->sub = in.sub;
    return OK;
}

static enum err f_trim(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    TRY(tv_to_str(m, in, &in));
    if (!tc_is_absent(a[0]) && a[0].kind != TV_STR && a[0].kind != TV_NONE)
        return tv_fail(m, "trim needs characters, not %s", tv_type_name(a[0]));
    int given = a[0].kind == TV_STR;
    TRY(tv_pay(m, in.n / 64 * (given ? 1 + a[0].n / 2 : 1)));
    struct tt_span s =
        tt_strip_chars(in.u.s, in.n, given ? a[0].u.s : NULL, given ? a[0].n : 0, TT_BOTH);

    *out = tv_str(s.s, s.n);
    out->sub = in.sub;
    return OK;
}

static enum err f_replace(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    int64_t count = -1;
    if (a[2].kind != TV_NONE)
        TRY(tc_int(m, a[2], -1, &count));
    TRY(tv_to_str(m, in, &in));
    TRY(tv_to_str(m, a[0], &a[0]));
    TRY(tv_to_str(m, a[1], &a[1]));
    in.sub = 0;
    return tc_replace(m, in, a[0], a[1], count, out);
}

/* Cut to `length` characters, `end` among them; between words unless `killwords`. */
static enum err f_truncate(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    int64_t length, leeway;
    struct tv end = tc_is_absent(a[2]) ? tv_str("...", 3) : a[2];
    TRY(tc_int(m, a[0], 255, &length));
    leeway = 5;
    if (a[3].kind != TV_NONE)
        TRY(tc_int(m, a[3], 5, &leeway));
    if (in.kind != TV_STR || end.kind != TV_STR)
        return tv_fail(m, "truncate needs a string, not %s",
                       tv_type_name(in.kind == TV_STR ? end : in));
    int64_t n_end = tt_count(end.u.s, end.n);
    if (length < n_end || leeway < 0)
        return tv_fail(m, "truncate needs a length of at least %lld", (long long)n_end);
    TRY(tv_pay(m, in.n / 16));
    *out = in;
    if (tt_count(in.u.s, in.n) - length <= leeway)
        return OK;
    int64_t keep = tt_offset(in.u.s, in.n, length - n_end);
    int64_t space = tv_truth(a[1]) ? -1 : tt_find_last(in.u.s, keep, " ", 1);
    struct tv head = tv_str(in.u.s, space < 0 ? keep : space);
    head.sub = in.sub;
    return tc_binary(m, '+', head, end, out);
}

static enum err f_wordcount(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    int64_t n = 0;
    int inside = 0;
    (void)a;
    TRY(tv_to_str(m, in, &in));
    TRY(tv_pay(m, in.n / 16));
    for (int64_t i = 0; i < in.n;) {
        int32_t cp;
        i += tt_decode(in.u.s + i, in.n - i, &cp);
        int word = tt_is_alpha(cp) || tt_is_digit(cp) || cp == '_';
        n += word && !inside;
        inside = word;
    }
    *out = tv_int(n);
    return OK;
}

static enum err f_tojson(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv_json_style style = {.ensure_ascii = tv_truth(a[0]),
                                  .sort_keys = tv_truth(a[3]),
                                  .item = {", ", 2},
                                  .colon = {": ", 2}};
    struct tv_buf b = {0};
    struct tv indent, *pair;
    int64_t width, n;
    if (a[1].kind == TV_STR) {
        style.indent = (struct tt_span){a[1].u.s, a[1].n};
        style.item.n = 1;
    } else if (a[1].kind != TV_NONE && !tc_is_absent(a[1])) {
        TRY(tc_int(m, a[1], 0, &width));
        TRY(tc_binary(m, '*', tv_str(" ", 1), tv_int(width), &indent));
        style.indent = (struct tt_span){indent.u.s, indent.n};
        style.item.n = 1;
    }
    if (a[2].kind != TV_NONE && !tc_is_absent(a[2])) {
        TRY(tv_walk(m, a[2], &pair, &n));
        if (n != 2 || pair[0].kind != TV_STR || pair[1].kind != TV_STR)
            return tv_fail(m, "tojson: separators must be two strings");
        style.item = (struct tt_span){pair[0].u.s, pair[0].n};
        style.colon = (struct tt_span){pair[1].u.s, pair[1].n};
    }
    TRY(tv_put_json(m, &b, in, &style));
    *out = tv_text(&b);
    return OK;
}

static enum err f_indent(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv pad = a[0], lines;
    struct tv_buf b = {0};
    int64_t width;
    if (in.kind != TV_STR)
        return tv_fail(m, "indent needs a string, not %s", tv_type_name(in));
    if (pad.kind != TV_STR) {
        TRY(tc_int(m, pad, 4, &width));
        TRY(tc_binary(m, '*', tv_str(" ", 1), tv_int(width), &pad));
    }
    TRY(tc_binary(m, '+', in, tv_str("\n", 1), &lines)); // so that a last empty line counts
    TRY(tc_lines(m, lines, 0, &lines));
    for (int64_t i = 0; i < lines.u.list->n; i++) {
        struct tv line = lines.u.list->items[i];
        if (i)
            TRY(tv_puts(m, &b, "\n"));
        if (i ? line.n || tv_truth(a[2]) : tv_truth(a[1]))
            TRY(tv_put(m, &b, pad.u.s, pad.n));
        TRY(tv_put(m, &b, line.u.s, line.n));
    }
    *out = tv_text(&b);
    out->sub = in.sub;
    return OK;
}

/* Text as Python's int() or float() reads it: white space around, underscores between digits. */
static int number_text(struct tv v, char *buf, size_t cap)
{
    struct tt_span s = tt_strip(v.u.s, v.n, TT_BOTH);
    size_t n = 0;
    for (int64_t i = 0; i < s.n; i++) {
        char c = s.s[i];
        int between = i > 0 && i + 1 < s.n && s.s[i - 1] >= '0' && s.s[i - 1] <= '9';
        if (c == '_' && between)
            continue;
        if (n + 1 >= cap || !c || c == '_' || c == '(' || tt_is_space(c))
            return 0;
        buf[n++] = c;
    }
    buf[n] = 0;
    return n > 0;
}

/* float(v): 1 when it is one. */
static int parse_float(struct tv v, double *out)
{
    char buf[128], *end;
    if (tv_is_number(v)) {
        *out = tv_as_float(v);
        return 1;
    }
    if (v.kind != TV_STR || !number_text(v, buf, sizeof buf) || strpbrk(buf, "xXpP"))
        return 0;
    *out = strtod(buf, &end);
    return !*end;
}

static enum err f_int(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    char buf[128], *end;
    int64_t base;
    double f;
    TRY(tc_int(m, a[1], 10, &base));
    if (in.kind == TV_UNDEFINED || base < 2 || base > 36)
        return tv_fail(m, in.kind == TV_UNDEFINED ? "'%.*s' is undefined" : "int: bad base",
                       (int)in.n, in.u.s);
    if (in.kind == TV_STR && number_text(in, buf, sizeof buf)) {
        errno = 0;
        *out = tv_int(strtoll(buf, &end, (int)base));
        if (errno)
            return tv_fail(m, "int: the number exceeds 64 bits");
        if (!*end)
            return OK;
    }
    *out = tc_is_absent(a[0]) ? tv_int(0) : a[0];
    if (in.kind == TV_INT || in.kind == TV_BOOL) {
        *out = tv_int(in.u.i);
    } else if (parse_float(in, &f) && isfinite(f)) {
        if (!(fabs(f) < 9.2e18))
            return tv_fail(m, "int: the number exceeds 64 bits");
        *out = tv_int((int64_t)f);
    }
    return OK;
}

static enum err f_float(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    double f;
    if (in.kind == TV_UNDEFINED)
        return tv_fail(m, "'%.*s' is undefined", (int)in.n, in.u.s);
    *out = parse_float(in, &f) ? tv_float(f) : tc_is_absent(a[0]) ? tv_float(0) : a[0];
    return OK;
}

static enum err f_abs(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    int negative = tv_is_number(in) && tv_as_float(in) < 0;
    return tc_negate(m, in, negative ? -1 : 1, out);
}

static enum err f_round(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    char s[400];
    int64_t digits;
    TRY(tc_int(m, a[0], 0, &digits));
    if (!tv_is_number(in) || digits < 0 || digits > 30)
        return tv_fail(m, "round needs a number and 0 to 30 digits");
    double f = tv_as_float(in), scale = pow(10, (double)digits);
    if (tc_is_absent(a[1]) || tv_is_str(a[1], "common")) {
        if (in.kind != TV_FLOAT) {
            *out = tv_int(in.u.i);
            return OK;
        }
        snprintf(s, sizeof s, "%.*f", (int)digits, f); // exact, ties to even, as Python's round
        *out = tv_float(strtod(s, NULL));
        return OK;
    }
    if (!tv_is_str(a[1], "ceil") && !tv_is_str(a[1], "floor"))
        return tv_fail(m, "round: the method must be common, ceil or floor");
    *out = tv_float((a[1].u.s[0] == 'c' ? ceil : floor)(f * scale) / scale);
    return OK;
}

static enum err f_format(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    struct tv values;
    TRY(tv_to_str(m, in, &in));
    if (args->n_named && args->n_pos)
        return tv_fail(m, "format takes positions or names, not both");
    if (args->n_named) {
        TRY(tv_dict_new(m, args->n_named, &values));
        for (int i = 0; i < args->n_named; i++) {
            const struct tc_kwarg *k = &args->named[i];
            TRY(tv_dict_set(m, values.u.dict, tv_str(k->name, k->n), k->value));
        }
        return tc_format_percent(m, in, values, out);
    }
    TRY(tv_list_new(m, TV_SEQ_TUPLE, args->n_pos, &values));
    for (int i = 0; i < args->n_pos; i++)
        values.u.list->items[i] = args->pos[i];
    return tc_format_percent(m, in, values, out);
}

struct filter {
    const char *name;
    tc_plain *plain;
    struct tc_params params; // of plain
    tc_any *any;
};

static const struct filter FILTERS[] = {
    {"abs", f_abs, {{0}, 0, 0}, NULL},
    {"attr", f_attr, {{"name"}, 1, 1}, NULL},
    {"batch", ts_batch, {{"linecount", "fill_with"}, 2, 1}, NULL},
    {"capitalize", f_capitalize, {{0}, 0, 0}, NULL},
    {"center", f_center, {{"width"}, 1, 0}, NULL},
    {"count", f_length, {{0}, 0, 0}, NULL},
    {"d", f_default, {{"default_value", "boolean"}, 2, 0}, NULL},
    {"default", f_default, {{"default_value", "boolean"}, 2, 0}, NULL},
    {"dictsort", ts_dictsort, {{"case_sensitive", "by", "reverse"}, 3, 0}, NULL},
    {"e", f_escape, {{0}, 0, 0}, NULL},
    {"escape", f_escape, {{0}, 0, 0}, NULL},
    {"first", f_first, {{0}, 0, 0}, NULL},
    {"float", f_float, {{"default"}, 1, 0}, NULL},
    {"forceescape", f_forceescape, {{0}, 0, 0}, NULL},
    {"format", NULL, {{0}, 0, 0}, f_format},
    {"groupby", ts_groupby, {{"attribute", "default", "case_sensitive"}, 3, 1}, NULL},
    {"indent", f_indent, {{"width", "first", "blank"}, 3, 0}, NULL},
    {"int", f_int, {{"default", "base"}, 2, 0}, NULL},
    {"items", ts_items, {{0}, 0, 0}, NULL},
    {"join", ts_join, {{"d", "attribute"}, 2, 0}, NULL},
    {"last", f_last, {{0}, 0, 0}, NULL},
    {"length", f_length, {{0}, 0, 0}, NULL},
    {"list", f_list, {{0}, 0, 0}, NULL},
    {"lower", f_lower, {{0}, 0, 0}, NULL},
    {"map", NULL, {{0}, 0, 0}, ts_map},
    {"max", ts_max, {{"case_sensitive", "attribute"}, 2, 0}, NULL},
    {"min", ts_min, {{"case_sensitive", "attribute"}, 2, 0}, NULL},
    {"reject", NULL, {{0}, 0, 0}, ts_reject},
    {"rejectattr", NULL, {{0}, 0, 0}, ts_rejectattr},
    {"replace", f_replace, {{"old", "new", "count"}, 3, 2}, NULL},
    {"reverse", f_reverse, {{0}, 0, 0}, NULL},
    {"round", f_round, {{"precision", "method"}, 2, 0}, NULL},
    {"safe", f_safe, {{0}, 0, 0}, NULL},
    {"select", NULL, {{0}, 0, 0}, ts_select},
    {"selectattr", NULL, {{0}, 0, 0}, ts_selectattr},
    {"slice", ts_slice, {{"slices", "fill_with"}, 2, 1}, NULL},
    {"sort", ts_sort, {{"reverse", "case_sensitive", "attribute"}, 3, 0}, NULL},
    {"string", f_string, {{0}, 0, 0}, NULL},
    {"sum", ts_sum, {{"attribute", "start"}, 2, 0}, NULL},
    {"title", f_title, {{0}, 0, 0}, NULL},
    {"tojson", f_tojson, {{"ensure_ascii", "indent", "separators", "sort_keys"}, 4, 0}, NULL},
    {"trim", f_trim, {{"chars"}, 1, 0}, NULL},
    {"truncate", f_truncate, {{"length", "killwords", "end", "leeway"}, 4, 0}, NULL},
    {"unique", ts_unique, {{"case_sensitive", "attribute"}, 2, 0}, NULL},
    {"upper", f_upper, {{0}, 0, 0}, NULL},
    {"wordcount", f_wordcount, {{0}, 0, 0}, NULL},
};

int tc_filter_find(const char *name, int64_t n)
{
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++) {
        if (tv_is_str(tv_str(name, n), FILTERS[i].name))
            return (int)i;
    }
    return -1;
}

enum err tc_filter(struct tv_mem *m, int id, struct tv in, const struct tc_args *args,
                   struct tv *out)
{
    const struct filter *f = &FILTERS[id];
    enum err e;
    TRY(tv_enter(m)); // map('map', 'map', ...) nests without end
    if (f->any) {
        e = f->any(m, in, args, out);
    } else {
        struct tv bound[TC_PARAMS_MAX];
        TRY(tc_bind(m, f->name, &f->params, args, bound));
        e = f->plain(m, in, bound, out);
    }
    m->depth--;
    return e;
}
