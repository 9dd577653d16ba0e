/* engine/text/template_call.c - filters (value | name(args)), attributes and methods
 * (object.name(args)).
 *
 * Owns: FILTERS and METHODS, those of Jinja's and Python's that models' templates use; the order of
 * lookup: object.x is a method first, then a key; object['x'] is a key first. Refuses: methods that
 * change their object (calling one is an error) and all names that start with two underscores.
 *
 * Note: a dict with a key "items" still has the method .items, so templates fail on such a dict as
 * in Python; map, select etc. return iterators, which are always true and have no length, and
 * templates rely on that. */
#include "engine/text/template_value.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INDENT_MAX 1000

static enum err need_str(struct mem *m, struct val v)
{
    return v.kind == VAL_STR ? OK : tpl_fail(m, "a string is needed, not %s", tpl_type_name(v));
}

/* A string, or none if not given. */
static enum err str_or_none(struct mem *m, struct val *v)
{
    if (tpl_is_absent(*v))
        *v = tpl_none();
    return v->kind == VAL_NONE ? OK : need_str(m, *v);
}

/* --- with plain parameters: a[] is bound to the names in the tables, which also set `how` --- */

/* One call of a filter or method. */
struct call {
    struct mem *m;
    struct val in;            // the filter's input, or the method's object
    const struct args *args;  // as passed
    struct val a[PARAMS_MAX]; // bound to the names in the table
    int how;                  // from the table
    struct val *out;
};

static enum err default_of(struct call *c)
{
    int missing = c->in.kind == VAL_UNDEFINED || (tpl_truth(c->a[1]) && !tpl_truth(c->in));
    *c->out = !missing ? c->in : tpl_is_absent(c->a[0]) ? tpl_str("", 0) : c->a[0];
    return OK;
}

static enum err length(struct call *c)
{
    TRY(tpl_pay(c->m, c->in.kind == VAL_STR ? c->in.n / 64 : 0));
    int64_t n = tpl_length(c->in);
    *c->out = tpl_int(n);
    return n >= 0 ? OK : tpl_fail(c->m, "a %s has no length", tpl_type_name(c->in));
}

/* The first item, or the last. */
static enum err end_item(struct call *c)
{
    struct val *items;
    int64_t n;
    if (c->how && c->in.kind == VAL_LIST && c->in.sub == SEQ_ITER)
        return tpl_fail(c->m, "a generator has no last item (use |list)");
    TRY(tpl_walk(c->m, c->in, &items, &n));
    *c->out = n ? items[c->how ? n - 1 : 0] : tpl_undefined("item of nothing", 15);
    return OK;
}

/* list and reverse. */
static enum err list_of(struct call *c)
{
    struct val *items;
    int64_t n;
    if (c->how && c->in.kind == VAL_STR)
        return tpl_slice(c->m, c->in, (struct val[]){tpl_none(), tpl_none(), tpl_int(-1)}, c->out);
    int is_iter = c->in.kind == VAL_LIST && c->in.sub == SEQ_ITER; // reverse makes a list of it
    TRY(tpl_walk(c->m, c->in, &items, &n));
    TRY(tpl_list(c->m, c->how && !is_iter ? SEQ_ITER : SEQ_LIST, n, c->out));
    for (int64_t i = 0; i < n; i++)
        c->out->u.list->items[i] = items[c->how ? n - 1 - i : i];
    return OK;
}

/* string, and safe. */
static enum err string_of(struct call *c)
{
    TRY(tpl_to_str(c->m, c->in, c->out));
    c->out->sub |= (uint8_t)c->how;
    return OK;
}

static enum err escape(struct call *c)
{
    TRY(tpl_to_str(c->m, c->in, c->out));
    return tpl_escape(c->m, *c->out, c->out);
}

static enum err change_case(struct call *c)
{
    TRY(tpl_to_str(c->m, c->in, c->out));
    return tpl_case(c->m, *c->out, (enum text_case)c->how, c->out);
}

static enum err strip(struct call *c)
{
    TRY(tpl_to_str(c->m, c->in, c->out));
    TRY(str_or_none(c->m, &c->a[0]));
    TRY(tpl_pay(c->m, c->out->n / 64 * (1 + c->a[0].n / 2)));
    *c->out = tpl_strip(*c->out, c->a[0], (enum side)c->how);
    return OK;
}

/* The filter converts anything to text and returns plain text; the method does neither. */
static enum err replace(struct call *c)
{
    int64_t count;
    TRY(tpl_int_arg(c->m, c->a[2], -1, &count));
    for (int i = 0; i < 2; i++)
        TRY(c->how ? tpl_to_str(c->m, c->a[i], &c->a[i]) : need_str(c->m, c->a[i]));
    TRY(tpl_to_str(c->m, c->in, &c->in));
    c->in.sub = c->how ? 0 : c->in.sub;
    return tpl_replace(c->m, c->in, c->a[0], c->a[1], count, c->out);
}

static enum err to_json(struct call *c)
{
    struct json_style style = {.ensure_ascii = tpl_truth(c->a[0]),
                               .indent = -1,
                               .item = tpl_str(", ", 2),
                               .colon = tpl_str(": ", 2)};
    struct buf b = {0};
    if (c->a[1].kind != VAL_NONE && !tpl_is_absent(c->a[1])) {
        TRY(tpl_int_arg(c->m, c->a[1], 0, &style.indent));
        style.indent = max_i64(style.indent, 0);
        style.item.n = 1;
    }
    if (style.indent > INDENT_MAX)
        return tpl_fail(c->m, "tojson: an indent of more than %d", INDENT_MAX);
    if (c->a[2].kind != VAL_NONE && !tpl_is_absent(c->a[2])) {
        struct val *pair;
        int64_t n;
        TRY(tpl_walk(c->m, c->a[2], &pair, &n));
        if (n != 2 || pair[0].kind != VAL_STR || pair[1].kind != VAL_STR)
            return tpl_fail(c->m, "tojson: separators must be two strings");
        style.item = pair[0];
        style.colon = pair[1];
    }
    TRY(tpl_put_json(c->m, &b, c->in, &style));
    *c->out = tpl_buf_str(&b);
    return OK;
}

static enum err indent(struct call *c)
{
    struct val lines;
    struct buf b = {0};
    int64_t width;
    if (c->in.kind != VAL_STR)
        return tpl_fail(c->m, "indent needs a string, not %s", tpl_type_name(c->in));
    TRY(tpl_int_arg(c->m, c->a[0], 4, &width));
    TRY(tpl_binary(c->m, '+', c->in, tpl_str("\n", 1), &lines)); // keeps a last empty line
    TRY(tpl_lines(c->m, lines, &lines));
    for (int64_t i = 0; i < lines.u.list->n; i++) {
        struct val line = lines.u.list->items[i];
        if (i)
            TRY(tpl_puts(c->m, &b, "\n"));
        if (i ? line.n || tpl_truth(c->a[2]) : tpl_truth(c->a[1]))
            TRY(tpl_put_spaces(c->m, &b, width));
        TRY(tpl_put(c->m, &b, line.u.s, line.n));
    }
    *c->out = tpl_buf_str(&b);
    c->out->sub = c->in.sub;
    return OK;
}

/* Text for Python's int() or float(): white space around, underscores between digits. */
static int number_text(struct val v, char *buf, size_t cap)
{
    struct val s = tpl_strip(v, tpl_none(), SIDE_BOTH);
    size_t n = 0;
    for (int64_t i = 0; i < s.n; i++) {
        char c = s.u.s[i];
        if (c == '_' && i > 0 && i + 1 < s.n && s.u.s[i - 1] >= '0' && s.u.s[i - 1] <= '9')
            continue;
        if (n + 1 >= cap || !c || c == '_' || c == '(' || tpl_is_space(c))
            return 0;
        buf[n++] = c;
    }
    buf[n] = 0;
    return n > 0;
}

static enum err int_of(struct call *c)
{
    char buf[128], *end;
    double f = c->in.kind == VAL_FLOAT ? c->in.u.f : NAN;
    *c->out = tpl_is_absent(c->a[0]) ? tpl_int(0) : c->a[0];
    if (c->in.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(c->m, c->in);
    if (tpl_is_int(c->in))
        *c->out = tpl_int(c->in.u.i);
    if (c->in.kind == VAL_STR && number_text(c->in, buf, sizeof buf)) {
        errno = 0;
        int64_t i = strtoll(buf, &end, 10);
        if (errno)
            return tpl_fail(c->m, "int: the number exceeds 64 bits");
        if (!*end) {
            *c->out = tpl_int(i);
            return OK;
        }
        f = strpbrk(buf, "xXpP") ? NAN : strtod(buf, &end);
        f = *end ? NAN : f;
    }
    if (!isfinite(f))
        return OK;
    if (!(fabs(f) < 9.2e18))
        return tpl_fail(c->m, "int: the number exceeds 64 bits");
    *c->out = tpl_int((int64_t)f);
    return OK;
}

/* The filter joins the texts of any values; the method ("glue".join) accepts strings only. */
static enum err join(struct mem *m, struct val items, struct val glue, int is_filter,
                     struct val *out)
{
    struct buf b = {0};
    struct val *item;
    int64_t n;
    TRY(tpl_walk(m, items, &item, &n));
    for (int64_t i = 0; i < n; i++) {
        if (!is_filter)
            TRY(need_str(m, item[i]));
        TRY(tpl_pay(m, 1));
        if (i)
            TRY(tpl_put(m, &b, glue.u.s, glue.n));
        TRY(tpl_put_str(m, &b, item[i]));
    }
    *out = tpl_buf_str(&b);
    return OK;
}

static enum err join_filter(struct call *c)
{
    struct val glue = tpl_str("", 0);
    if (!tpl_is_absent(c->a[0]))
        TRY(tpl_to_str(c->m, c->a[0], &glue));
    return join(c->m, c->in, glue, 1, c->out);
}

static enum err join_method(struct call *c)
{
    return c->in.sub ? tpl_fail(c->m, "join by text marked safe is not supported")
                     : join(c->m, c->a[0], c->in, 0, c->out);
}

static enum err split(struct call *c)
{
    int64_t limit;
    TRY(str_or_none(c->m, &c->a[0]));
    TRY(tpl_int_arg(c->m, c->a[1], -1, &limit));
    return tpl_split(c->m, c->in, c->a[0], limit, c->out);
}

static enum err splitlines(struct call *c)
{
    return tpl_lines(c->m, c->in, c->out);
}

/* Whether the string starts (or ends) with a[0], a string or any of a tuple. */
static enum err has_affix(struct call *c)
{
    int is_tuple = c->a[0].kind == VAL_LIST && c->a[0].sub == SEQ_TUPLE, yes = 0;
    const struct val *one = is_tuple ? c->a[0].u.list->items : &c->a[0];
    for (int64_t i = 0; !yes && i < (is_tuple ? c->a[0].u.list->n : 1); i++, one++) {
        TRY(need_str(c->m, *one));
        TRY(tpl_pay(c->m, 1 + one->n / 64));
        yes = c->in.n >= one->n &&
              !memcmp(c->in.u.s + (c->how ? c->in.n - one->n : 0), one->u.s, (size_t)one->n);
    }
    *c->out = tpl_bool(yes);
    return OK;
}

static enum err get(struct call *c)
{
    struct val *found;
    TRY(tpl_dict_find(c->m, c->in.u.dict, c->a[0], &found));
    *c->out = found ? *found : tpl_is_absent(c->a[1]) ? tpl_none() : c->a[1];
    return OK;
}

static enum err dict_part(struct call *c)
{
    return tpl_dict_list(c->m, c->in.u.dict, (enum part)c->how, SEQ_VIEW, c->out);
}

static enum err items_filter(struct call *c)
{
    if (c->in.kind == VAL_UNDEFINED)
        return tpl_list(c->m, SEQ_ITER, 0, c->out);
    if (c->in.kind != VAL_DICT)
        return tpl_fail(c->m, "items needs a mapping, not %s", tpl_type_name(c->in));
    return tpl_dict_list(c->m, c->in.u.dict, PART_ITEMS, SEQ_ITER, c->out);
}

/* --- filters of lists, by items or by their attributes --- */

/* The attribute "a.b.0" of an item, or item[path] if path is no string. */
static enum err get_path(struct mem *m, struct val item, struct val path, struct val *out)
{
    *out = item;
    if (path.kind != VAL_STR)
        return tpl_item(m, item, path, out);
    for (int64_t i = 0, end; i <= path.n; i = end + 1) {
        int64_t digits = 0;
        for (end = i; end < path.n && path.u.s[end] != '.'; end++)
            digits += path.u.s[end] >= '0' && path.u.s[end] <= '9';
        struct val key = tpl_str(path.u.s + i, end - i), from = *out;
        if (digits == end - i && digits > 0 && digits < 18)
            key = tpl_int(strtoll(path.u.s + i, NULL, 10));
        TRY(tpl_pay(m, 1));
        TRY(tpl_item(m, from, key, out));
    }
    return OK;
}

/* The items of v as a new list, and their sort keys: the items or their attribute, in lower
 * case. */
static enum err keyed_copy(struct mem *m, struct val v, struct val path, struct val *items,
                           struct val *keys)
{
    struct val *from;
    int64_t n;
    TRY(tpl_walk(m, v, &from, &n));
    TRY(tpl_list(m, SEQ_LIST, n, items));
    TRY(tpl_list(m, SEQ_LIST, n, keys));
    for (int64_t i = 0; i < n; i++) {
        struct val *key = &keys->u.list->items[i];
        items->u.list->items[i] = *key = from[i];
        if (path.kind != VAL_NONE)
            TRY(get_path(m, from[i], path, key));
        if (key->kind == VAL_STR)
            TRY(tpl_case(m, *key, CASE_LOWER, key));
    }
    return OK;
}

static enum err sort(struct call *c)
{
    struct val keys;
    TRY(str_or_none(c->m, &c->a[1])); // by position it means something else in Jinja
    if (c->a[1].n && memchr(c->a[1].u.s, ',', (size_t)c->a[1].n))
        return tpl_fail(c->m, "sort takes one attribute");
    TRY(keyed_copy(c->m, c->in, c->a[1], c->out, &keys));
    return tpl_sort(c->m, c->out->u.list->items, keys.u.list->items, keys.u.list->n,
                    tpl_truth(c->a[0]));
}

static enum err dictsort(struct call *c)
{
    struct val pairs, keys;
    if (c->in.kind != VAL_DICT)
        return tpl_fail(c->m, "dictsort needs a mapping, not %s", tpl_type_name(c->in));
    TRY(tpl_dict_list(c->m, c->in.u.dict, PART_ITEMS, SEQ_LIST, &pairs));
    TRY(keyed_copy(c->m, pairs, tpl_int(0), c->out, &keys));
    return tpl_sort(c->m, c->out->u.list->items, keys.u.list->items, keys.u.list->n, 0);
}

static enum err unique(struct call *c)
{
    struct val keys;
    int64_t n = 0;
    TRY(keyed_copy(c->m, c->in, tpl_none(), c->out, &keys));
    c->out->sub = SEQ_ITER;
    struct val *items = c->out->u.list->items, *key = keys.u.list->items;
    for (int64_t i = 0; i < c->out->u.list->n; i++) {
        int seen = 0;
        if (!tpl_hashable(key[i]))
            return tpl_fail(c->m, "unique cannot compare a %s", tpl_type_name(key[i]));
        for (int64_t k = 0; k < n && !seen; k++)
            TRY(tpl_equal(c->m, key[k], key[i], &seen));
        if (seen)
            continue;
        items[n] = items[i];
        key[n++] = key[i];
    }
    c->out->u.list->n = n;
    return OK;
}

/* min (sign -1) and max (1). */
static enum err extreme(struct call *c)
{
    struct val items, keys;
    int64_t best = 0;
    int order;
    TRY(keyed_copy(c->m, c->in, tpl_none(), &items, &keys));
    for (int64_t i = 1; i < keys.u.list->n; i++) {
        TRY(tpl_order(c->m, keys.u.list->items[i], keys.u.list->items[best], &order));
        best = order == c->how ? i : best;
    }
    *c->out = keys.u.list->n ? items.u.list->items[best] : tpl_undefined("extreme of nothing", 18);
    return OK;
}

/* --- with unbound arguments --- */

/* The argument of a format field: {} the next one, {2} by position, {name}. *next: counter of {};
 * -1 after a field by position. */
static enum err field_value(struct mem *m, const struct args *args, struct val field, int *next,
                            struct val *out)
{
    int digits = 0, index = 0;
    while (digits < field.n && digits < 4 && field.u.s[digits] >= '0' && field.u.s[digits] <= '9')
        index = index * 10 + field.u.s[digits++] - '0';
    TRY(tpl_pay(m, 4 + args->n_named / 16));
    for (int k = 0; digits < field.n && k < args->n_named; k++) {
        *out = args->named[k].value;
        if (tpl_same(field, args->named[k].name))
            return OK;
    }
    if (digits < field.n)
        return tpl_fail(m,
                        "the format has no value for '%.*s' (widths and types are not supported)",
                        (int)min_i64(field.n, 64), field.u.s);
    if (digits ? *next > 0 : *next < 0)
        return tpl_fail(m, "a format cannot mix {} and {0}");
    if (digits)
        *next = -1;
    else
        index = (*next)++;
    if (index >= args->n_pos)
        return tpl_fail(m, "too few values for the format");
    *out = args->pos[index];
    return OK;
}

/* "{} {0} {name}".format(...). */
static enum err format(struct call *c)
{
    struct buf b = {0};
    struct val v;
    int next = 0;
    if (c->in.sub)
        return tpl_fail(c->m, "format of text marked safe is not supported");
    for (int64_t i = 0, end; i < c->in.n; i = end) {
        char brace = c->in.u.s[i];
        for (end = i; end < c->in.n && c->in.u.s[end] != '{' && c->in.u.s[end] != '}';)
            end++;
        TRY(tpl_put(c->m, &b, c->in.u.s + i, end - i));
        if (end > i)
            continue;
        if (i + 1 < c->in.n && c->in.u.s[i + 1] == brace) {
            TRY(tpl_put(c->m, &b, &brace, 1));
            end = i + 2;
            continue;
        }
        end = tpl_find(c->in.u.s + i, c->in.n - i, "}", 1);
        if (end <= 0)
            return tpl_fail(c->m, "a lone '%c' in a format", brace);
        TRY(field_value(c->m, c->args, tpl_str(c->in.u.s + i + 1, end - 1), &next, &v));
        TRY(tpl_put_str(c->m, &b, v));
        end += i + 1;
    }
    *c->out = tpl_buf_str(&b);
    return OK;
}

/* The filter or test named by argument `at`, and the arguments after it. */
static enum err take_name(struct mem *m, const struct args *args, int at, int is_filter, int *id,
                          struct args *rest)
{
    struct val name = args->pos[at];
    *id = is_filter ? tpl_filter_find(name) : tpl_test_find(name);
    if (*id < 0)
        return tpl_fail(m, "unknown %s '%.*s'", is_filter ? "filter" : "test",
                        name.kind == VAL_STR ? (int)min_i64(name.n, 64) : 0,
                        name.kind == VAL_STR ? name.u.s : "");
    *rest = *args;
    rest->pos += at + 1;
    rest->n_pos -= at + 1;
    return OK;
}

/* The items of v and an iterator of the same length; for map and select, false values are empty. */
static enum err walk_if_any(struct mem *m, struct val v, struct val **items, int64_t *n,
                            struct val *out)
{
    *items = NULL;
    *n = 0;
    if (tpl_truth(v))
        TRY(tpl_walk(m, v, items, n));
    return tpl_list(m, SEQ_ITER, *n, out);
}

static enum err map(struct call *c)
{
    static const struct params params = {1, {"attribute"}};
    struct val path[PARAMS_MAX], *items;
    struct args rest;
    int64_t n;
    int id = -1;
    if (c->args->n_pos)
        TRY(take_name(c->m, c->args, 0, 1, &id, &rest));
    else
        TRY(tpl_bind(c->m, "map", &params, c->args, path));
    TRY(walk_if_any(c->m, c->in, &items, &n, c->out));
    struct val *to = c->out->u.list->items;
    for (int64_t i = 0; i < n; i++) {
        TRY(tpl_pay(c->m, 1));
        TRY(id >= 0 ? tpl_filter(c->m, id, items[i], &rest, &to[i])
                    : get_path(c->m, items[i], path[0], &to[i]));
    }
    return OK;
}

enum pick { PICK_KEEP = 1, PICK_BY_ATTRIBUTE = 2 };

/* select, reject (by the item) and selectattr, rejectattr (by its attribute, the first argument).
 */
static enum err pick(struct call *c)
{
    struct val *items, value;
    struct args rest;
    int64_t n, n_kept = 0;
    int id = -1, yes, by_attr = (c->how & PICK_BY_ATTRIBUTE) != 0;
    if (c->args->n_pos < by_attr)
        return tpl_fail(c->m, "selectattr and rejectattr need an attribute");
    if (c->args->n_pos > by_attr)
        TRY(take_name(c->m, c->args, by_attr, 0, &id, &rest));
    TRY(walk_if_any(c->m, c->in, &items, &n, c->out));
    for (int64_t i = 0; i < n; i++) {
        TRY(tpl_pay(c->m, 1));
        value = items[i];
        if (by_attr)
            TRY(get_path(c->m, items[i], c->args->pos[0], &value));
        yes = tpl_truth(value);
        if (id >= 0)
            TRY(tpl_test(c->m, id, value, &rest, &yes));
        if (yes == (c->how & PICK_KEEP))
            c->out->u.list->items[n_kept++] = items[i];
    }
    c->out->u.list->n = n_kept;
    return OK;
}

/* --- the tables --- */

#define AS_THEY_CAME -1 // as n_required: arguments are not bound to names

struct callable {
    const char *name;
    enum err (*run)(struct call *c);
    int how;
    struct params params;
};

static const struct callable FILTERS[] = {
    {"capitalize", change_case, CASE_CAPITALIZE, {0}},
    {"count", length, 0, {0}},
    {"d", default_of, 0, {0, {"default_value", "boolean"}}},
    {"default", default_of, 0, {0, {"default_value", "boolean"}}},
    {"dictsort", dictsort, 0, {0}},
    {"e", escape, 0, {0}},
    {"escape", escape, 0, {0}},
    {"first", end_item, 0, {0}},
    {"indent", indent, 0, {0, {"width", "first", "blank"}}},
    {"int", int_of, 0, {0, {"default"}}},
    {"items", items_filter, 0, {0}},
    {"join", join_filter, 0, {0, {"d"}}},
    {"last", end_item, 1, {0}},
    {"length", length, 0, {0}},
    {"list", list_of, 0, {0}},
    {"lower", change_case, CASE_LOWER, {0}},
    {"map", map, 0, {AS_THEY_CAME, {0}}},
    {"max", extreme, 1, {0}},
    {"min", extreme, -1, {0}},
    {"reject", pick, 0, {AS_THEY_CAME, {0}}},
    {"rejectattr", pick, PICK_BY_ATTRIBUTE, {AS_THEY_CAME, {0}}},
    {"replace", replace, 1, {2, {"old", "new", "count"}}},
    {"reverse", list_of, 1, {0}},
    {"safe", string_of, 1, {0}},
    {"select", pick, PICK_KEEP, {AS_THEY_CAME, {0}}},
    {"selectattr", pick, PICK_KEEP | PICK_BY_ATTRIBUTE, {AS_THEY_CAME, {0}}},
    {"sort", sort, 0, {0, {"reverse", "attribute"}}},
    {"string", string_of, 0, {0}},
    {"title", change_case, CASE_FILTER_TITLE, {0}},
    {"tojson", to_json, 0, {0, {"ensure_ascii", "indent", "separators"}}},
    {"trim", strip, SIDE_BOTH, {0, {"chars"}}},
    {"unique", unique, 0, {0}},
    {"upper", change_case, CASE_UPPER, {0}},
};

static const struct method {
    enum val_kind kind;
    struct callable is;
} METHODS[] = {
    {VAL_STR, {"capitalize", change_case, CASE_CAPITALIZE, {0}}},
    {VAL_STR, {"endswith", has_affix, 1, {1, {"suffix"}}}},
    {VAL_STR, {"format", format, 0, {AS_THEY_CAME, {0}}}},
    {VAL_STR, {"join", join_method, 0, {1, {"iterable"}}}},
    {VAL_STR, {"lower", change_case, CASE_LOWER, {0}}},
    {VAL_STR, {"lstrip", strip, SIDE_LEFT, {0, {"chars"}}}},
    {VAL_STR, {"replace", replace, 0, {2, {"old", "new", "count"}}}},
    {VAL_STR, {"rstrip", strip, SIDE_RIGHT, {0, {"chars"}}}},
    {VAL_STR, {"split", split, 0, {0, {"sep", "maxsplit"}}}},
    {VAL_STR, {"splitlines", splitlines, 0, {0}}},
    {VAL_STR, {"startswith", has_affix, 0, {1, {"prefix"}}}},
    {VAL_STR, {"strip", strip, SIDE_BOTH, {0, {"chars"}}}},
    {VAL_STR, {"title", change_case, CASE_TITLE, {0}}},
    {VAL_STR, {"upper", change_case, CASE_UPPER, {0}}},
    {VAL_DICT, {"get", get, 0, {1, {"key", "default"}}}},
    {VAL_DICT, {"items", dict_part, PART_ITEMS, {0}}},
    {VAL_DICT, {"keys", dict_part, PART_KEYS, {0}}},
    {VAL_DICT, {"values", dict_part, PART_VALUES, {0}}},
};

/* Methods that change their object. */
static const char *const LIST_UNSAFE[] = {"append", "clear",  "extend",  "insert",
                                          "pop",    "remove", "reverse", "sort"};
static const char *const DICT_UNSAFE[] = {"clear", "pop", "popitem", "setdefault", "update"};

int tpl_filter_find(struct val name)
{
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++) {
        if (tpl_is(name, FILTERS[i].name))
            return (int)i;
    }
    return -1;
}

static enum err call(struct mem *m, const struct callable *x, struct val in,
                     const struct args *args, struct val *out)
{
    struct call c = {.m = m, .in = in, .args = args, .how = x->how, .out = out};
    if (x->params.n_required != AS_THEY_CAME)
        TRY(tpl_bind(m, x->name, &x->params, args, c.a));
    return x->run(&c);
}

enum err tpl_filter(struct mem *m, int id, struct val in, const struct args *args, struct val *out)
{
    TRY(tpl_enter(m)); // map('map', 'map', ...) nests without bound
    TRY(call(m, &FILTERS[id], in, args, out));
    m->depth--;
    return OK;
}

enum err tpl_method(struct mem *m, const struct bound *bound, const struct args *args,
                    struct val *out)
{
    return call(m, &METHODS[bound->method].is, bound->self, args, out);
}

/* --- attributes and items --- */

static int is_unsafe(struct val object, struct val name)
{
    int is_list = object.kind == VAL_LIST && object.sub == SEQ_LIST;
    const char *const *names = is_list ? LIST_UNSAFE : DICT_UNSAFE;
    size_t n = is_list                   ? sizeof LIST_UNSAFE / sizeof *LIST_UNSAFE
               : object.kind == VAL_DICT ? sizeof DICT_UNSAFE / sizeof *DICT_UNSAFE
                                         : 0;
    while (n && !tpl_is(name, names[n - 1]))
        n--;
    return n > 0;
}

enum err tpl_attr(struct mem *m, struct val object, struct val name, struct val *out)
{
    struct val *value = NULL;
    void *p;
    if (object.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, object);
    *out = tpl_undefined(name.u.s, name.n);
    if (is_unsafe(object, name)) {
        out->sub = UNDEFINED_UNSAFE;
        return OK;
    }
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (METHODS[i].kind != object.kind || !tpl_is(name, METHODS[i].is.name))
            continue;
        TRY(tpl_take(m, 1, sizeof(struct bound), &p));
        *out = (struct val){.kind = VAL_METHOD, .u.bound = p};
        *out->u.bound = (struct bound){.self = object, .method = (int)i};
        return OK;
    }
    if (object.kind == VAL_DICT || object.kind == VAL_NAMESPACE)
        TRY(tpl_dict_find(m, object.u.dict, name, &value));
    if (value)
        *out = *value;
    else if (name.n > 1 && name.u.s[0] == '_' && name.u.s[1] == '_')
        return tpl_fail(m, "the attribute '%.*s' is refused", (int)min_i64(name.n, 64), name.u.s);
    return OK;
}

/* The item of a string or list at `index` (negative: from the end), or undefined. */
static enum err item_at(struct mem *m, struct val object, int64_t index, struct val *out)
{
    TRY(tpl_pay(m, object.kind == VAL_STR ? object.n / 64 : 0));
    int64_t n = tpl_length(object);
    index += index < 0 ? n : 0;
    *out = tpl_undefined("item out of range", 17);
    if (index < 0 || index >= n)
        return OK;
    if (object.kind == VAL_LIST) {
        *out = object.u.list->items[index];
        return OK;
    }
    int64_t at = tpl_offset(object.u.s, object.n, index);
    *out = tpl_str(object.u.s + at, tpl_offset(object.u.s + at, object.n - at, 1));
    out->sub = object.sub;
    return OK;
}

enum err tpl_item(struct mem *m, struct val object, struct val key, struct val *out)
{
    struct val *value = NULL;
    if (object.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, object);
    if (object.kind == VAL_DICT && tpl_hashable(key))
        TRY(tpl_dict_find(m, object.u.dict, key, &value));
    int indexable = object.kind == VAL_STR || (object.kind == VAL_LIST && object.sub <= SEQ_RANGE);
    if (value)
        *out = *value;
    else if (indexable && tpl_is_int(key))
        return item_at(m, object, key.u.i, out);
    else if (key.kind == VAL_STR)
        return tpl_attr(m, object, key, out);
    else
        *out = tpl_undefined("item", 4);
    return OK;
}
