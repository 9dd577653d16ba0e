/* engine/chat/template_filter.c - the filters: value | name(args).
 *
 * Owns: FILTERS and argument binding. Refuses: filters that make HTML or need a file system.
 * The one fact: map, select and their kin give iterators, which are always true and have no length,
 * as templates that were tested against Python rely on. */
#include "engine/chat/template_call.h"

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

/* --- the attribute argument of map, join, sort and others: "a.b.0" --- */

static enum err get_path(struct tv_mem *m, struct tv item, struct tv path, struct tv fallback,
                         struct tv *out)
{
    *out = item;
    if (path.kind != TV_STR)
        return tc_item(m, item, path, out);
    for (int64_t i = 0; i <= path.n;) {
        int64_t end = i, digits = 0;
        while (end < path.n && path.u.s[end] != '.')
            digits += path.u.s[end] >= '0' && path.u.s[end] <= '9', end++;
        struct tv key = tv_str(path.u.s + i, end - i);
        if (digits == end - i && digits > 0 && digits < 18)
            key = tv_int(strtoll(path.u.s + i, NULL, 10));
        struct tv from = *out;
        TRY(tv_pay(m, 1));
        if (from.kind == TV_UNDEFINED)
            return tv_fail(m, "'%.*s' is undefined", (int)from.n, from.u.s);
        TRY(tc_item(m, from, key, out));
        if (out->kind == TV_UNDEFINED && !tc_is_absent(fallback) && fallback.kind != TV_NONE)
            *out = fallback;
        i = end + 1;
    }
    return OK;
}

static int has_path(struct tv path)
{
    return !tc_is_absent(path) && path.kind != TV_NONE;
}

/* What to compare an item by: itself or its attribute, in lower case unless `exact`. */
static enum err sort_key(struct tv_mem *m, struct tv item, struct tv path, int exact,
                         struct tv *out)
{
    struct tv none = tv_none();
    *out = item;
    if (has_path(path))
        TRY(get_path(m, item, path, none, out));
    return !exact && out->kind == TV_STR ? tc_lower(m, *out, out) : OK;
}

/* Copies of the items of v and their keys. */
static enum err keyed_copy(struct tv_mem *m, struct tv v, struct tv path, int exact,
                           struct tv *items, struct tv *keys)
{
    struct tv *from;
    int64_t n;
    TRY(tv_walk(m, v, &from, &n));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, items));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, keys));
    for (int64_t i = 0; i < n; i++) {
        items->u.list->items[i] = from[i];
        TRY(sort_key(m, from[i], path, exact, &keys->u.list->items[i]));
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

static enum err f_join(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items, glue = tv_str("", 0), none = tv_none();
    int64_t n;
    struct tv_buf b = {0};
    if (!tc_is_absent(a[0]))
        TRY(tv_to_str(m, a[0], &glue));
    TRY(tv_walk(m, in, &items, &n));
    for (int64_t i = 0; i < n; i++) {
        struct tv item = items[i];
        if (has_path(a[1]))
            TRY(get_path(m, items[i], a[1], none, &item));
        if (i)
            TRY(tv_put(m, &b, glue.u.s, glue.n));
        TRY(tv_pay(m, 1));
        TRY(tv_put_str(m, &b, item));
    }
    *out = tv_text(&b);
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
            return tv_fail(m, "tojson: separators are two strings");
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
            return tv_fail(m, "int: the number is beyond 64 bits");
        if (!*end)
            return OK;
    }
    *out = tc_is_absent(a[0]) ? tv_int(0) : a[0];
    if (in.kind == TV_INT || in.kind == TV_BOOL) {
        *out = tv_int(in.u.i);
    } else if (parse_float(in, &f) && isfinite(f)) {
        if (!(fabs(f) < 9.2e18))
            return tv_fail(m, "int: the number is beyond 64 bits");
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
        return tv_fail(m, "round: the method is common, ceil or floor");
    *out = tv_float((a[1].u.s[0] == 'c' ? ceil : floor)(f * scale) / scale);
    return OK;
}

static enum err f_sum(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items, item, none = tv_none();
    int64_t n;
    struct tv sum = tc_is_absent(a[1]) ? tv_int(0) : a[1];
    TRY(tv_walk(m, in, &items, &n));
    for (int64_t i = 0; i < n; i++) {
        item = items[i];
        if (has_path(a[0]))
            TRY(get_path(m, items[i], a[0], none, &item));
        if (sum.kind == TV_STR)
            return tv_fail(m, "sum does not add strings (use join)");
        TRY(tv_pay(m, 1));
        TRY(tc_binary(m, '+', sum, item, &sum));
    }
    *out = sum;
    return OK;
}

static enum err f_sort(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    if (a[2].kind == TV_STR && memchr(a[2].u.s, ',', (size_t)a[2].n))
        return tv_fail(m, "sort by several attributes is not supported");
    TRY(keyed_copy(m, in, a[2], tv_truth(a[1]), out, &keys));
    return tv_sort(m, out->u.list->items, keys.u.list->items, keys.u.list->n, tv_truth(a[0]));
}

static enum err f_unique(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    TRY(keyed_copy(m, in, a[1], tv_truth(a[0]), out, &keys));
    out->sub = TV_SEQ_ITER;
    struct tv_list *l = out->u.list;
    int64_t n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        int seen = 0;
        if (!tv_hashable(keys.u.list->items[i]))
            return tv_fail(m, "unique cannot compare a %s", tv_type_name(keys.u.list->items[i]));
        for (int64_t k = 0; k < n && !seen; k++)
            TRY(tv_equal(m, keys.u.list->items[k], keys.u.list->items[i], &seen));
        if (seen)
            continue;
        l->items[n] = l->items[i];
        keys.u.list->items[n++] = keys.u.list->items[i];
    }
    l->n = n;
    return OK;
}

static enum err extreme(struct tv_mem *m, struct tv in, struct tv *a, int sign, struct tv *out)
{
    struct tv items, keys;
    int64_t best = 0;
    TRY(keyed_copy(m, in, a[1], tv_truth(a[0]), &items, &keys));
    for (int64_t i = 1; i < keys.u.list->n; i++) {
        int order;
        TRY(tv_order(m, keys.u.list->items[i], keys.u.list->items[best], &order));
        if (order != 2 && (sign < 0 ? order < 0 : order > 0))
            best = i;
    }
    *out = keys.u.list->n ? items.u.list->items[best] : tv_undefined("extreme of nothing", 18);
    return OK;
}

static enum err f_min(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    return extreme(m, in, a, -1, out);
}

static enum err f_max(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    return extreme(m, in, a, 1, out);
}

static enum err pairs_of(struct tv_mem *m, const struct tv_dict *d, enum tv_seq seq, struct tv *out)
{
    TRY(tv_list_new(m, seq, d->n, out));
    for (int64_t i = 0; i < d->n; i++)
        TRY(tv_pair_new(m, d->pairs[i].key, d->pairs[i].value, &out->u.list->items[i]));
    return OK;
}

static enum err f_items(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    if (in.kind == TV_UNDEFINED)
        return tv_list_new(m, TV_SEQ_ITER, 0, out);
    if (in.kind != TV_DICT)
        return tv_fail(m, "items needs a mapping, not %s", tv_type_name(in));
    return pairs_of(m, in.u.dict, TV_SEQ_ITER, out);
}

static enum err f_dictsort(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    int by_value = tv_is_str(a[1], "value");
    if (in.kind != TV_DICT)
        return tv_fail(m, "dictsort needs a mapping, not %s", tv_type_name(in));
    if (!by_value && !tc_is_absent(a[1]) && !tv_is_str(a[1], "key"))
        return tv_fail(m, "dictsort sorts by key or value");
    const struct tv_dict *d = in.u.dict;
    TRY(pairs_of(m, d, TV_SEQ_LIST, out));
    TRY(tv_list_new(m, TV_SEQ_LIST, d->n, &keys));
    for (int64_t i = 0; i < d->n; i++) {
        struct tv key = by_value ? d->pairs[i].value : d->pairs[i].key, path = tv_none();
        TRY(sort_key(m, key, path, tv_truth(a[0]), &keys.u.list->items[i]));
    }
    return tv_sort(m, out->u.list->items, keys.u.list->items, d->n, tv_truth(a[2]));
}

static enum err f_batch(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items, fill = a[1];
    int64_t n, size;
    TRY(tc_int(m, a[0], 1, &size));
    TRY(tv_walk(m, in, &items, &n));
    if (size < 1)
        return tv_fail(m, "batch needs a size of at least 1");
    TRY(tv_list_new(m, TV_SEQ_ITER, n ? (n - 1) / size + 1 : 0, out));
    for (int64_t i = 0; i < out->u.list->n; i++) {
        int64_t have = min_i64(size, n - i * size);
        int64_t width = tc_is_absent(fill) || fill.kind == TV_NONE ? have : size;
        struct tv *row = &out->u.list->items[i];
        TRY(tv_list_new(m, TV_SEQ_LIST, width, row));
        for (int64_t k = 0; k < width; k++)
            row->u.list->items[k] = k < have ? items[i * size + k] : fill;
    }
    return OK;
}

/* --- filters that take other filters and tests --- */

static enum err take_name(struct tv_mem *m, const struct tc_args *args, int at, int is_filter,
                          int *id, struct tc_args *rest)
{
    struct tv name = args->pos[at];
    *id = name.kind != TV_STR ? -1
          : is_filter         ? tc_filter_find(name.u.s, name.n)
                              : tc_test_find(name.u.s, name.n);
    if (*id < 0)
        return tv_fail(m, "unknown %s '%.*s'", is_filter ? "filter" : "test",
                       name.kind == TV_STR ? (int)min_i64(name.n, 64) : 0,
                       name.kind == TV_STR ? name.u.s : "");
    *rest = *args;
    rest->pos += at + 1;
    rest->n_pos -= at + 1;
    return OK;
}

/* To these filters whatever is false, none included, is empty. */
static enum err walk_if_any(struct tv_mem *m, struct tv in, struct tv **items, int64_t *n)
{
    *items = NULL;
    *n = 0;
    return tv_truth(in) ? tv_walk(m, in, items, n) : OK;
}

static enum err f_map(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    static const struct tc_params params = {{"attribute", "default"}, 2, 1};
    struct tv bound[2], *items;
    struct tc_args rest;
    int64_t n;
    int id = -1;
    if (args->n_pos)
        TRY(take_name(m, args, 0, 1, &id, &rest));
    else
        TRY(tc_bind(m, "map", &params, args, bound));
    TRY(walk_if_any(m, in, &items, &n));
    TRY(tv_list_new(m, TV_SEQ_ITER, n, out));
    struct tv *to = out->u.list->items;
    for (int64_t i = 0; i < n; i++) {
        TRY(tv_pay(m, 1));
        TRY(id >= 0 ? tc_filter(m, id, items[i], &rest, &to[i])
                    : get_path(m, items[i], bound[0], bound[1], &to[i]));
    }
    return OK;
}

/* select, reject (by the item) and selectattr, rejectattr (by its attribute, the first argument).
 */
static enum err pick(struct tv_mem *m, struct tv in, const struct tc_args *args, int by_attr,
                     int keep, struct tv *out)
{
    struct tv *items, value, none = tv_none();
    struct tc_args rest;
    int64_t n, n_kept = 0;
    int id = -1, yes;
    if (args->n_pos < by_attr)
        return tv_fail(m, "selectattr and rejectattr need an attribute");
    if (args->n_pos > by_attr)
        TRY(take_name(m, args, by_attr, 0, &id, &rest));
    TRY(walk_if_any(m, in, &items, &n));
    TRY(tv_list_new(m, TV_SEQ_ITER, n, out));
    for (int64_t i = 0; i < n; i++) {
        TRY(tv_pay(m, 1));
        value = items[i];
        if (by_attr)
            TRY(get_path(m, items[i], args->pos[0], none, &value));
        yes = tv_truth(value);
        if (id >= 0)
            TRY(tc_test(m, id, value, &rest, &yes));
        if (yes == keep)
            out->u.list->items[n_kept++] = items[i];
    }
    out->u.list->n = n_kept;
    return OK;
}

static enum err f_select(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    return pick(m, in, args, 0, 1, out);
}

static enum err f_reject(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    return pick(m, in, args, 0, 0, out);
}

static enum err f_selectattr(struct tv_mem *m, struct tv in, const struct tc_args *args,
                             struct tv *out)
{
    return pick(m, in, args, 1, 1, out);
}

static enum err f_rejectattr(struct tv_mem *m, struct tv in, const struct tc_args *args,
                             struct tv *out)
{
    return pick(m, in, args, 1, 0, out);
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
    enum err (*plain)(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out);
    struct tc_params params; // of plain
    enum err (*any)(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out);
};

static const struct filter FILTERS[] = {
    {"abs", f_abs, {{0}, 0, 0}, NULL},
    {"batch", f_batch, {{"linecount", "fill_with"}, 2, 1}, NULL},
    {"capitalize", f_capitalize, {{0}, 0, 0}, NULL},
    {"count", f_length, {{0}, 0, 0}, NULL},
    {"d", f_default, {{"default_value", "boolean"}, 2, 0}, NULL},
    {"default", f_default, {{"default_value", "boolean"}, 2, 0}, NULL},
    {"dictsort", f_dictsort, {{"case_sensitive", "by", "reverse"}, 3, 0}, NULL},
    {"e", f_escape, {{0}, 0, 0}, NULL},
    {"escape", f_escape, {{0}, 0, 0}, NULL},
    {"first", f_first, {{0}, 0, 0}, NULL},
    {"float", f_float, {{"default"}, 1, 0}, NULL},
    {"format", NULL, {{0}, 0, 0}, f_format},
    {"indent", f_indent, {{"width", "first", "blank"}, 3, 0}, NULL},
    {"int", f_int, {{"default", "base"}, 2, 0}, NULL},
    {"items", f_items, {{0}, 0, 0}, NULL},
    {"join", f_join, {{"d", "attribute"}, 2, 0}, NULL},
    {"last", f_last, {{0}, 0, 0}, NULL},
    {"length", f_length, {{0}, 0, 0}, NULL},
    {"list", f_list, {{0}, 0, 0}, NULL},
    {"lower", f_lower, {{0}, 0, 0}, NULL},
    {"map", NULL, {{0}, 0, 0}, f_map},
    {"max", f_max, {{"case_sensitive", "attribute"}, 2, 0}, NULL},
    {"min", f_min, {{"case_sensitive", "attribute"}, 2, 0}, NULL},
    {"reject", NULL, {{0}, 0, 0}, f_reject},
    {"rejectattr", NULL, {{0}, 0, 0}, f_rejectattr},
    {"replace", f_replace, {{"old", "new", "count"}, 3, 2}, NULL},
    {"reverse", f_reverse, {{0}, 0, 0}, NULL},
    {"round", f_round, {{"precision", "method"}, 2, 0}, NULL},
    {"safe", f_safe, {{0}, 0, 0}, NULL},
    {"select", NULL, {{0}, 0, 0}, f_select},
    {"selectattr", NULL, {{0}, 0, 0}, f_selectattr},
    {"sort", f_sort, {{"reverse", "case_sensitive", "attribute"}, 3, 0}, NULL},
    {"string", f_string, {{0}, 0, 0}, NULL},
    {"sum", f_sum, {{"attribute", "start"}, 2, 0}, NULL},
    {"title", f_title, {{0}, 0, 0}, NULL},
    {"tojson", f_tojson, {{"ensure_ascii", "indent", "separators", "sort_keys"}, 4, 0}, NULL},
    {"trim", f_trim, {{"chars"}, 1, 0}, NULL},
    {"unique", f_unique, {{"case_sensitive", "attribute"}, 2, 0}, NULL},
    {"upper", f_upper, {{0}, 0, 0}, NULL},
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
