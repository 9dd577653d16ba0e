/* engine/chat/template_series.c - the filters of lists: order, groups, choice, and other filters
 * and tests applied to every item.
 *
 * Owns: the attribute argument ("a.b.0"). Refuses: random.
 * The one fact: map, select and their kin give iterators, which are always true and have no length,
 * as templates that were tested against Python rely on. */
#include "engine/chat/template_series.h"

#include <stdlib.h>
#include <string.h>

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

/* The same by one or several attributes, "a,b.c": a list, so that what is missing everywhere is
 * equal, and no error. */
static enum err sort_keys(struct tv_mem *m, struct tv item, struct tv path, int exact,
                          struct tv *out)
{
    int64_t n = 1, at = 0, k = 0;
    for (int64_t i = 0; path.kind == TV_STR && i < path.n; i++)
        n += path.u.s[i] == ',';
    TRY(tv_list_new(m, TV_SEQ_LIST, n, out));
    if (n == 1)
        return sort_key(m, item, path, exact, out->u.list->items);
    for (int64_t i = 0; i <= path.n; i++) {
        if (i < path.n && path.u.s[i] != ',')
            continue;
        struct tv part = tv_str(path.u.s + at, i - at);
        TRY(sort_key(m, item, part, exact, &out->u.list->items[k++]));
        at = i + 1;
    }
    return OK;
}

typedef enum err key_of(struct tv_mem *m, struct tv item, struct tv path, int exact,
                        struct tv *out);

/* Copies of the items of v and their keys. */
static enum err keyed_copy(struct tv_mem *m, struct tv v, key_of *key, struct tv path, int exact,
                           struct tv *items, struct tv *keys)
{
    struct tv *from;
    int64_t n;
    TRY(tv_walk(m, v, &from, &n));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, items));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, keys));
    for (int64_t i = 0; i < n; i++) {
        items->u.list->items[i] = from[i];
        TRY(key(m, from[i], path, exact, &keys->u.list->items[i]));
    }
    return OK;
}

enum err ts_join(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
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

enum err ts_sum(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
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

enum err ts_sort(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    TRY(keyed_copy(m, in, sort_keys, a[2], tv_truth(a[1]), out, &keys));
    return tv_sort(m, out->u.list->items, keys.u.list->items, keys.u.list->n, tv_truth(a[0]));
}

enum err ts_unique(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    TRY(keyed_copy(m, in, sort_key, a[1], tv_truth(a[0]), out, &keys));
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
    TRY(keyed_copy(m, in, sort_key, a[1], tv_truth(a[0]), &items, &keys));
    for (int64_t i = 1; i < keys.u.list->n; i++) {
        int order;
        TRY(tv_order(m, keys.u.list->items[i], keys.u.list->items[best], &order));
        if (order != 2 && (sign < 0 ? order < 0 : order > 0))
            best = i;
    }
    *out = keys.u.list->n ? items.u.list->items[best] : tv_undefined("extreme of nothing", 18);
    return OK;
}

enum err ts_min(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    return extreme(m, in, a, -1, out);
}

enum err ts_max(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
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

enum err ts_items(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    (void)a;
    if (in.kind == TV_UNDEFINED)
        return tv_list_new(m, TV_SEQ_ITER, 0, out);
    if (in.kind != TV_DICT)
        return tv_fail(m, "items needs a mapping, not %s", tv_type_name(in));
    return pairs_of(m, in.u.dict, TV_SEQ_ITER, out);
}

enum err ts_dictsort(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv keys;
    int by_value = tv_is_str(a[1], "value");
    if (in.kind != TV_DICT)
        return tv_fail(m, "dictsort needs a mapping, not %s", tv_type_name(in));
    if (!by_value && !tc_is_absent(a[1]) && !tv_is_str(a[1], "key"))
        return tv_fail(m, "dictsort: by must be key or value");
    const struct tv_dict *d = in.u.dict;
    TRY(pairs_of(m, d, TV_SEQ_LIST, out));
    TRY(tv_list_new(m, TV_SEQ_LIST, d->n, &keys));
    for (int64_t i = 0; i < d->n; i++) {
        struct tv key = by_value ? d->pairs[i].value : d->pairs[i].key, path = tv_none();
        TRY(sort_key(m, key, path, tv_truth(a[0]), &keys.u.list->items[i]));
    }
    return tv_sort(m, out->u.list->items, keys.u.list->items, d->n, tv_truth(a[2]));
}

enum err ts_batch(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
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

/* Into `count` lists, the first of them one longer where it does not come out even. */
enum err ts_slice(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv *items;
    int64_t n, count, at = 0;
    TRY(tc_int(m, a[0], 0, &count));
    TRY(tv_walk(m, in, &items, &n));
    if (count == 0)
        return tv_fail(m, "slice needs a number of lists");
    count = max_i64(count, 0);
    int fills = !tc_is_absent(a[1]) && a[1].kind != TV_NONE;
    TRY(tv_list_new(m, TV_SEQ_ITER, count, out));
    for (int64_t i = 0; i < count; i++) {
        int64_t have = n / count + (i < n % count), filled = fills && i >= n % count;
        struct tv *row = &out->u.list->items[i];
        TRY(tv_list_new(m, TV_SEQ_LIST, have + filled, row));
        for (int64_t k = 0; k < have; k++)
            row->u.list->items[k] = items[at++];
        if (filled)
            row->u.list->items[have] = a[1];
    }
    return OK;
}

/* Pairs of (what the items have in common, the items), sorted; .grouper and .list name the two. */
enum err ts_groupby(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out)
{
    struct tv items, keys, *from;
    int64_t n, n_groups = 0, end;
    TRY(tv_walk(m, in, &from, &n));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, &items));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, &keys));
    struct tv *item = items.u.list->items, *key = keys.u.list->items;
    for (int64_t i = 0; i < n; i++) {
        item[i] = from[i];
        TRY(get_path(m, from[i], a[0], a[1], &key[i]));
        if (!tv_truth(a[2]) && key[i].kind == TV_STR)
            TRY(tc_lower(m, key[i], &key[i]));
    }
    TRY(tv_sort(m, item, key, n, 0));
    TRY(tv_list_new(m, TV_SEQ_LIST, n, out));
    for (int64_t i = 0; i < n; i = end) {
        struct tv group, *pair = &out->u.list->items[n_groups++];
        int same = 1;
        for (end = i + 1; end < n; end++) {
            TRY(tv_equal(m, key[i], key[end], &same));
            if (!same)
                break;
        }
        TRY(tv_list_new(m, TV_SEQ_LIST, end - i, &group));
        memcpy(group.u.list->items, item + i, (size_t)(end - i) * sizeof *item);
        TRY(tv_pair_new(m, key[i], group, pair));
        TRY(get_path(m, item[i], a[0], a[1], &pair->u.list->items[0])); // in its own case
        pair->u.list->is_group = 1;
    }
    out->u.list->n = n_groups;
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

enum err ts_map(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
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

enum err ts_select(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    return pick(m, in, args, 0, 1, out);
}

enum err ts_reject(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    return pick(m, in, args, 0, 0, out);
}

enum err ts_selectattr(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    return pick(m, in, args, 1, 1, out);
}

enum err ts_rejectattr(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out)
{
    return pick(m, in, args, 1, 0, out);
}
