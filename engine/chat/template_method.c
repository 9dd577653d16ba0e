/* engine/chat/template_method.c - attributes, items and the methods of strings and dicts.
 *
 * Owns: METHODS and the order of lookup: object.x is a method first, then a key; object['x'] is a
 * key first. Refuses: methods that change their object (they are there, but calling one is an
 * error) and all names with two underscores in front. The one fact: a dict with a key "items" still
 * has the method .items, and templates fall over it in Python just so. */
#include "engine/chat/template_call.h"

#include <string.h>

static enum err s_strip(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return tc_strip(m, s, a[0], TT_BOTH, out);
}

static enum err s_lstrip(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return tc_strip(m, s, a[0], TT_LEFT, out);
}

static enum err s_rstrip(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return tc_strip(m, s, a[0], TT_RIGHT, out);
}

static enum err s_split(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int64_t limit;
    TRY(tc_int(m, a[1], -1, &limit));
    return tc_split(m, s, a[0], limit, out);
}

static enum err s_splitlines(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return tc_lines(m, s, out);
}

/* Does s begin (or end) with `what`, a string or any of a tuple of them? */
static enum err has_affix(struct tv_mem *m, struct tv s, struct tv what, int at_end, struct tv *out)
{
    int is_tuple = what.kind == TV_LIST && what.sub == TV_SEQ_TUPLE;
    const struct tv *one = is_tuple ? what.u.list->items : &what;
    int yes = 0;
    for (int64_t i = 0; !yes && i < (is_tuple ? what.u.list->n : 1); i++, one++) {
        TRY(tc_need_str(m, *one));
        TRY(tv_pay(m, 1 + one->n / 64));
        yes =
            s.n >= one->n && !memcmp(s.u.s + (at_end ? s.n - one->n : 0), one->u.s, (size_t)one->n);
    }
    *out = tv_bool(yes);
    return OK;
}

static enum err s_startswith(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return has_affix(m, s, a[0], 0, out);
}

static enum err s_endswith(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return has_affix(m, s, a[0], 1, out);
}

static enum err s_replace(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int64_t count;
    TRY(tc_need_str(m, a[0]));
    TRY(tc_need_str(m, a[1]));
    TRY(tc_int(m, a[2], -1, &count));
    return tc_replace(m, s, a[0], a[1], count, out);
}

static enum err s_upper(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return tc_upper(m, s, out);
}

static enum err s_lower(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return tc_lower(m, s, out);
}

static enum err s_capitalize(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return tc_capitalize(m, s, out);
}

static enum err s_title(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return tc_title(m, s, 0, out);
}

static enum err s_join(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    struct tv_buf b = {0};
    struct tv *items;
    int64_t n;
    if (s.sub)
        return tv_fail(m, "join by text marked safe is not supported");
    TRY(tv_walk(m, a[0], &items, &n));
    for (int64_t i = 0; i < n; i++) {
        TRY(tc_need_str(m, items[i]));
        TRY(tv_pay(m, 1));
        if (i)
            TRY(tv_put(m, &b, s.u.s, s.n));
        TRY(tv_put(m, &b, items[i].u.s, items[i].n));
    }
    *out = tv_text(&b);
    return OK;
}

static enum err d_get(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    struct tv *found;
    TRY(tv_dict_find(m, d.u.dict, a[0], &found));
    *out = found ? *found : tc_is_absent(a[1]) ? tv_none() : a[1];
    return OK;
}

static enum err d_keys(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    (void)a;
    return tv_dict_list(m, d.u.dict, TV_KEYS, TV_SEQ_VIEW, out);
}

static enum err d_values(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    (void)a;
    return tv_dict_list(m, d.u.dict, TV_VALUES, TV_SEQ_VIEW, out);
}

static enum err d_items(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    (void)a;
    return tv_dict_list(m, d.u.dict, TV_ITEMS, TV_SEQ_VIEW, out);
}

struct method {
    enum tv_kind kind;
    const char *name;
    tc_plain *plain; // of the arguments that `params` names
    struct tc_params params;
    tc_any *any; // of the arguments as they are; both NULL: it would change its object
};

static const struct method METHODS[] = {
    {TV_STR, "capitalize", s_capitalize, {{0}, 0, 0}, NULL},
    {TV_STR, "endswith", s_endswith, {{"suffix"}, 1, 1}, NULL},
    {TV_STR, "format", NULL, {{0}, 0, 0}, tc_format},
    {TV_STR, "join", s_join, {{"iterable"}, 1, 1}, NULL},
    {TV_STR, "lower", s_lower, {{0}, 0, 0}, NULL},
    {TV_STR, "lstrip", s_lstrip, {{"chars"}, 1, 0}, NULL},
    {TV_STR, "replace", s_replace, {{"old", "new", "count"}, 3, 2}, NULL},
    {TV_STR, "rstrip", s_rstrip, {{"chars"}, 1, 0}, NULL},
    {TV_STR, "split", s_split, {{"sep", "maxsplit"}, 2, 0}, NULL},
    {TV_STR, "splitlines", s_splitlines, {{0}, 0, 0}, NULL},
    {TV_STR, "startswith", s_startswith, {{"prefix"}, 1, 1}, NULL},
    {TV_STR, "strip", s_strip, {{"chars"}, 1, 0}, NULL},
    {TV_STR, "title", s_title, {{0}, 0, 0}, NULL},
    {TV_STR, "upper", s_upper, {{0}, 0, 0}, NULL},
    {TV_DICT, "clear", NULL, {{0}, 0, 0}, NULL},
    {TV_DICT, "get", d_get, {{"key", "default"}, 2, 1}, NULL},
    {TV_DICT, "items", d_items, {{0}, 0, 0}, NULL},
    {TV_DICT, "keys", d_keys, {{0}, 0, 0}, NULL},
    {TV_DICT, "pop", NULL, {{0}, 0, 0}, NULL},
    {TV_DICT, "popitem", NULL, {{0}, 0, 0}, NULL},
    {TV_DICT, "setdefault", NULL, {{0}, 0, 0}, NULL},
    {TV_DICT, "update", NULL, {{0}, 0, 0}, NULL},
    {TV_DICT, "values", d_values, {{0}, 0, 0}, NULL},
    {TV_LIST, "append", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "clear", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "extend", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "insert", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "pop", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "remove", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "reverse", NULL, {{0}, 0, 0}, NULL},
    {TV_LIST, "sort", NULL, {{0}, 0, 0}, NULL},
};

/* *found: 1 and a bound method when the object has it. A tuple has none of a list's. */
static enum err find_method(struct tv_mem *m, struct tv object, const char *name, int64_t n,
                            struct tv *out, int *found)
{
    *found = 0;
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        const struct method *x = &METHODS[i];
        if (x->kind != object.kind || (x->kind == TV_LIST && object.sub != TV_SEQ_LIST) ||
            !tv_is_str(tv_str(name, n), x->name))
            continue;
        *found = 1;
        if (!x->plain && !x->any) {
            *out = tv_undefined(name, n);
            out->sub = TV_UNSAFE;
            return OK;
        }
        void *p;
        TRY(tv_take(m, 1, sizeof(struct tv_bound), &p));
        *out = (struct tv){.kind = TV_METHOD, .u.bound = p};
        *out->u.bound = (struct tv_bound){.self = object, .method = (int)i};
        return OK;
    }
    return OK;
}

static enum err refuse_dunder(const struct tv_mem *m, const char *name, int64_t n)
{
    return n > 1 && name[0] == '_' && name[1] == '_'
               ? tv_fail(m, "the attribute '%.*s' is refused", (int)min_i64(n, 64), name)
               : OK;
}

enum err tc_attr(struct tv_mem *m, struct tv object, const char *name, int64_t n, struct tv *out)
{
    int found;
    struct tv *value = NULL;
    if (object.kind == TV_UNDEFINED)
        return tv_fail_undefined(m, object);
    TRY(find_method(m, object, name, n, out, &found));
    if (found)
        return OK;
    if (object.kind == TV_DICT || object.kind == TV_NAMESPACE) {
        TRY(tv_pay(m, object.u.dict->n / 16));
        value = tv_dict_find_str(object.u.dict, name, n);
    }
    *out = value ? *value : tv_undefined(name, n);
    return value ? OK : refuse_dunder(m, name, n);
}

/* The item of a string or list at `index` (from the end when negative), or undefined. */
static enum err item_at(struct tv_mem *m, struct tv object, int64_t index, struct tv *out)
{
    TRY(tv_pay(m, object.kind == TV_STR ? object.n / 64 : 0));
    int64_t n = tv_length(object);
    index += index < 0 ? n : 0;
    *out = tv_undefined("item out of range", 17);
    if (index < 0 || index >= n)
        return OK;
    if (object.kind == TV_LIST) {
        *out = object.u.list->items[index];
        return OK;
    }
    int64_t at = tt_offset(object.u.s, object.n, index);
    *out = tv_str(object.u.s + at, tt_offset(object.u.s + at, object.n - at, 1));
    out->sub = object.sub;
    return OK;
}

enum err tc_item(struct tv_mem *m, struct tv object, struct tv key, struct tv *out)
{
    struct tv *value = NULL;
    if (object.kind == TV_UNDEFINED)
        return tv_fail_undefined(m, object);
    if (object.kind == TV_DICT && tv_hashable(key)) {
        TRY(tv_dict_find(m, object.u.dict, key, &value));
        if (value) {
            *out = *value;
            return OK;
        }
    }
    int indexable = object.kind == TV_STR || (object.kind == TV_LIST && object.sub <= TV_SEQ_RANGE);
    if (indexable && (key.kind == TV_INT || key.kind == TV_BOOL))
        return item_at(m, object, key.u.i, out);
    if (key.kind == TV_STR)
        return tc_attr(m, object, key.u.s, key.n, out);
    *out = tv_undefined("item", 4);
    return OK;
}

enum err tc_method(struct tv_mem *m, const struct tv_bound *bound, const struct tc_args *args,
                   struct tv *out)
{
    const struct method *x = &METHODS[bound->method];
    struct tv values[TC_PARAMS_MAX];
    if (x->any)
        return x->any(m, bound->self, args, out);
    TRY(tc_bind(m, x->name, &x->params, args, values));
    return x->plain(m, bound->self, values, out);
}
