/* engine/chat/template_filter.c - the filters: value | name(args).
 *
 * Owns: FILTERS, those of Jinja's that chat templates use; argument binding; the attribute argument
 * ("a.b.0"). The one fact: map, select and their kin give iterators, which are always true and have
 * no length, as templates that were tested against Python rely on. */
#include "engine/chat/template_call.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INDENT_MAX 1000

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

static enum err f_title(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_to_str(m, in, out));
    return tc_title(m, *out, 1, out);
}

static enum err f_trim(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    TRY(tv_to_str(m, in, &in));
    return tc_strip(m, in, a[0], TT_BOTH, out);
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

static enum err f_tojson(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv_json_style style = {
        .ensure_ascii = tv_truth(a[0]), .indent = -1, .item = {", ", 2}, .colon = {": ", 2}};
    struct tv_buf b = {0};
    if (a[1].kind != TV_NONE && !tc_is_absent(a[1])) {
        TRY(tc_int(m, a[1], 0, &style.indent));
        style.indent = max_i64(style.indent, 0);
        style.item.n = 1;
    }
    if (style.indent > INDENT_MAX)
        return tv_fail(m, "tojson: an indent of more than %d", INDENT_MAX);
    if (a[2].kind != TV_NONE && !tc_is_absent(a[2])) {
        struct tv *pair;
        int64_t n;
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
    struct tv lines;
    struct tv_buf b = {0};
    int64_t width;
    TRY(tc_need_str(m, in));
    TRY(tc_int(m, a[0], 4, &width));
    TRY(tc_binary(m, '+', in, tv_str("\n", 1), &lines)); // so that a last empty line counts
    TRY(tc_lines(m, lines, &lines));
    for (int64_t i = 0; i < lines.u.list->n; i++) {
        struct tv line = lines.u.list->items[i];
        if (i)
            TRY(tv_puts(m, &b, "\n"));
        if (i ? line.n || tv_truth(a[2]) : tv_truth(a[1]))
            TRY(tv_put_spaces(m, &b, width));
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

static enum err f_int(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    char buf[128], *end;
    double f = NAN;
    *out = tc_is_absent(a[0]) ? tv_int(0) : a[0];
    if (in.kind == TV_UNDEFINED)
        return tv_fail_undefined(m, in);
    if (in.kind == TV_INT || in.kind == TV_BOOL) {
        *out = tv_int(in.u.i);
        return OK;
    }
    if (in.kind == TV_FLOAT)
        f = in.u.f;
    if (in.kind == TV_STR && number_text(in, buf, sizeof buf)) {
        errno = 0;
        int64_t i = strtoll(buf, &end, 10);
        if (errno)
            return tv_fail(m, "int: the number exceeds 64 bits");
        if (!*end) {
            *out = tv_int(i);
            return OK;
        }
        f = strpbrk(buf, "xXpP") ? NAN : strtod(buf, &end);
        f = *end ? NAN : f;
    }
    if (!isfinite(f))
        return OK;
    *out = tv_int((int64_t)f);
    return fabs(f) < 9.2e18 ? OK : tv_fail(m, "int: the number exceeds 64 bits");
}

/* --- filters of lists --- */

/* The attribute "a.b.0" of an item, or item[path] when it is no string. */
static enum err get_path(struct tv_mem *m, struct tv item, struct tv path, struct tv *out)
{
    *out = item;
    if (path.kind != TV_STR)
        return tc_item(m, item, path, out);
    for (int64_t i = 0, end; i <= path.n; i = end + 1) {
        int64_t digits = 0;
        for (end = i; end < path.n && path.u.s[end] != '.'; end++)
            digits += path.u.s[end] >= '0' && path.u.s[end] <= '9';
        struct tv key = tv_str(path.u.s + i, end - i), from = *out;
        if (digits == end - i && digits > 0 && digits < 18)
            key = tv_int(strtoll(path.u.s + i, NULL, 10));
        TRY(tv_pay(m, 1));
        TRY(tc_item(m, from, key, out));
    }
    return OK;
}

/* The items of v as a new list, and what to order them by: themselves or the attribute, in lower
 * case. */
static enum err keyed_copy(struct tv_mem *m, struct tv v, struct tv path, struct tv *items,
                           struct tv *keys)
{
    struct tv *from;
    int64_t n;
    TRY(tv_walk(m, v, &from, &n));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, items));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, keys));
    for (int64_t i = 0; i < n; i++) {
        struct tv *key = &keys->u.list->items[i];
        items->u.list->items[i] = *key = from[i];
        if (!tc_is_absent(path) && path.kind != TV_NONE)
            TRY(get_path(m, from[i], path, key));
        if (key->kind == TV_STR)
            TRY(tc_lower(m, *key, key));
    }
    return OK;
}

static enum err f_join(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items, glue = tv_str("", 0);
    int64_t n;
    struct tv_buf b = {0};
    if (!tc_is_absent(a[0]))
        TRY(tv_to_str(m, a[0], &glue));
    TRY(tv_walk(m, in, &items, &n));
    for (int64_t i = 0; i < n; i++) {
        if (i)
            TRY(tv_put(m, &b, glue.u.s, glue.n));
        TRY(tv_pay(m, 1));
        TRY(tv_put_str(m, &b, items[i]));
    }
    *out = tv_text(&b);
    return OK;
}

static enum err f_sort(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    if (!tc_is_absent(a[1]))
        TRY(tc_need_str(m, a[1])); // by position it is something else in Jinja
    if (!tc_is_absent(a[1]) && memchr(a[1].u.s, ',', (size_t)a[1].n))
        return tv_fail(m, "sort takes one attribute");
    TRY(keyed_copy(m, in, a[1], out, &keys));
    return tv_sort(m, out->u.list->items, keys.u.list->items, keys.u.list->n, tv_truth(a[0]));
}

static enum err f_dictsort(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv pairs, keys;
    (void)a;
    if (in.kind != TV_DICT)
        return tv_fail(m, "dictsort needs a mapping, not %s", tv_type_name(in));
    TRY(tv_dict_list(m, in.u.dict, TV_ITEMS, TV_SEQ_LIST, &pairs));
    TRY(keyed_copy(m, pairs, tv_int(0), out, &keys));
    return tv_sort(m, out->u.list->items, keys.u.list->items, keys.u.list->n, 0);
}

static enum err f_unique(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    (void)a;
    TRY(keyed_copy(m, in, tv_none(), out, &keys));
    out->sub = TV_SEQ_ITER;
    struct tv *items = out->u.list->items, *key = keys.u.list->items;
    int64_t n = 0;
    for (int64_t i = 0; i < out->u.list->n; i++) {
        int seen = 0;
        if (!tv_hashable(key[i]))
            return tv_fail(m, "unique cannot compare a %s", tv_type_name(key[i]));
        for (int64_t k = 0; k < n && !seen; k++)
            TRY(tv_equal(m, key[k], key[i], &seen));
        if (seen)
            continue;
        items[n] = items[i];
        key[n++] = key[i];
    }
    out->u.list->n = n;
    return OK;
}

static enum err extreme(struct tv_mem *m, struct tv in, int sign, struct tv *out)
{
    struct tv items, keys;
    int64_t best = 0;
    TRY(keyed_copy(m, in, tv_none(), &items, &keys));
    for (int64_t i = 1; i < keys.u.list->n; i++) {
        int order;
        TRY(tv_order(m, keys.u.list->items[i], keys.u.list->items[best], &order));
        best = order == sign ? i : best;
    }
    *out = keys.u.list->n ? items.u.list->items[best] : tv_undefined("extreme of nothing", 18);
    return OK;
}

static enum err f_min(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    return extreme(m, in, -1, out);
}

static enum err f_max(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    return extreme(m, in, 1, out);
}

static enum err f_items(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    if (in.kind == TV_UNDEFINED)
        return tv_list_new(m, TV_SEQ_ITER, 0, out);
    if (in.kind != TV_DICT)
        return tv_fail(m, "items needs a mapping, not %s", tv_type_name(in));
    return tv_dict_list(m, in.u.dict, TV_ITEMS, TV_SEQ_ITER, out);
}

/* --- filters that take other filters and tests --- */

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
    static const struct tc_params params = {{"attribute"}, 1, 1};
    struct tv path, *items;
    struct tc_args rest;
    int64_t n;
    int id = -1;
    if (args->n_pos)
        TRY(take_name(m, args, 0, 1, &id, &rest));
    else
        TRY(tc_bind(m, "map", &params, args, &path));
    TRY(walk_if_any(m, in, &items, &n));
    TRY(tv_list_new(m, TV_SEQ_ITER, n, out));
    struct tv *to = out->u.list->items;
    for (int64_t i = 0; i < n; i++) {
        TRY(tv_pay(m, 1));
        TRY(id >= 0 ? tc_filter(m, id, items[i], &rest, &to[i])
                    : get_path(m, items[i], path, &to[i]));
    }
    return OK;
}

/* select, reject (by the item) and selectattr, rejectattr (by its attribute, the first argument).
 */
static enum err pick(struct tv_mem *m, struct tv in, const struct tc_args *args, int by_attr,
                     int keep, struct tv *out)
{
    struct tv *items, value;
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
            TRY(get_path(m, items[i], args->pos[0], &value));
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

struct filter {
    const char *name;
    tc_plain *plain;
    struct tc_params params; // of plain
    tc_any *any;
};

static const struct filter FILTERS[] = {
    {"capitalize", f_capitalize, {{0}, 0, 0}, NULL},
    {"count", f_length, {{0}, 0, 0}, NULL},
    {"d", f_default, {{"default_value", "boolean"}, 2, 0}, NULL},
    {"default", f_default, {{"default_value", "boolean"}, 2, 0}, NULL},
    {"dictsort", f_dictsort, {{0}, 0, 0}, NULL},
    {"e", f_escape, {{0}, 0, 0}, NULL},
    {"escape", f_escape, {{0}, 0, 0}, NULL},
    {"first", f_first, {{0}, 0, 0}, NULL},
    {"indent", f_indent, {{"width", "first", "blank"}, 3, 0}, NULL},
    {"int", f_int, {{"default"}, 1, 0}, NULL},
    {"items", f_items, {{0}, 0, 0}, NULL},
    {"join", f_join, {{"d"}, 1, 0}, NULL},
    {"last", f_last, {{0}, 0, 0}, NULL},
    {"length", f_length, {{0}, 0, 0}, NULL},
    {"list", f_list, {{0}, 0, 0}, NULL},
    {"lower", f_lower, {{0}, 0, 0}, NULL},
    {"map", NULL, {{0}, 0, 0}, f_map},
    {"max", f_max, {{0}, 0, 0}, NULL},
    {"min", f_min, {{0}, 0, 0}, NULL},
    {"reject", NULL, {{0}, 0, 0}, f_reject},
    {"rejectattr", NULL, {{0}, 0, 0}, f_rejectattr},
    {"replace", f_replace, {{"old", "new", "count"}, 3, 2}, NULL},
    {"reverse", f_reverse, {{0}, 0, 0}, NULL},
    {"safe", f_safe, {{0}, 0, 0}, NULL},
    {"select", NULL, {{0}, 0, 0}, f_select},
    {"selectattr", NULL, {{0}, 0, 0}, f_selectattr},
    {"sort", f_sort, {{"reverse", "attribute"}, 2, 0}, NULL},
    {"string", f_string, {{0}, 0, 0}, NULL},
    {"title", f_title, {{0}, 0, 0}, NULL},
    {"tojson", f_tojson, {{"ensure_ascii", "indent", "separators"}, 3, 0}, NULL},
    {"trim", f_trim, {{"chars"}, 1, 0}, NULL},
    {"unique", f_unique, {{0}, 0, 0}, NULL},
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
