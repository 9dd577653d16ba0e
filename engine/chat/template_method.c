/* engine/chat/template_method.c - attributes, items and the methods of strings, dicts and lists.
 *
 * Owns: METHODS and the order of lookup: object.x is a method first, then a key; object['x'] is a
 * key first. Refuses: methods that change their object (they are there, but calling one is an
 * error) and all names with two underscores in front. The one fact: a dict with a key "items" still
 * has the method .items, and templates fall over it in Python just so. */
#include "engine/chat/template_call.h"

#include <string.h>

/* --- methods of strings --- */

static enum err need_str(struct tv_mem *m, struct tv v)
{
    return v.kind == TV_STR ? OK : tv_fail(m, "a string is needed, not %s", tv_type_name(v));
}

static enum err strip(struct tv_mem *m, struct tv s, struct tv chars, enum tt_side side,
                      struct tv *out)
{
    int given = !tc_is_absent(chars) && chars.kind != TV_NONE;
    if (given)
        TRY(need_str(m, chars));
    TRY(tv_pay(m, s.n / 64 * (given ? 1 + chars.n / 2 : 1)));
    struct tt_span span =
        tt_strip_chars(s.u.s, s.n, given ? chars.u.s : NULL, given ? chars.n : 0, side);

    *out = tv_str(span.s, span.n);
    out->sub = s.sub;
    return OK;
}

static enum err s_strip(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return strip(m, s, a[0], TT_BOTH, out);
}

static enum err s_lstrip(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return strip(m, s, a[0], TT_LEFT, out);
}

static enum err s_rstrip(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return strip(m, s, a[0], TT_RIGHT, out);
}

/* The next piece of s to split off its front (or, from the right, its end); 0 when s has no
 * separator. */
static int split_once(struct tv *s, struct tv sep, int right, struct tv *piece)
{
    if (sep.kind == TV_STR) {
        int64_t at = right ? tt_find_last(s->u.s, s->n, sep.u.s, sep.n)
                           : tt_find(s->u.s, s->n, sep.u.s, sep.n);
        if (at < 0)
            return 0;
        int64_t after = at + sep.n;
        *piece = right ? tv_str(s->u.s + after, s->n - after) : tv_str(s->u.s, at);
        *s = right ? tv_str(s->u.s, at) : tv_str(s->u.s + after, s->n - after);
        return 1;
    }
    int64_t i = right ? s->n : 0, word = i;
    while (right ? i > 0 : i < s->n) {
        int64_t at = i;
        if (right)
            for (at--; at > 0 && ((unsigned char)s->u.s[at] & 0xc0) == 0x80; at--)
                ;
        int32_t cp, bytes = tt_decode(s->u.s + at, s->n - at, &cp);
        if (tt_is_space(cp))
            break;
        i = word = right ? at : at + bytes;
    }
    if (right ? word == 0 : word == s->n)
        return 0;
    *piece = right ? tv_str(s->u.s + word, s->n - word) : tv_str(s->u.s, word);
    struct tt_span rest =
        right ? tt_strip(s->u.s, word, TT_RIGHT) : tt_strip(s->u.s + word, s->n - word, TT_LEFT);
    *s = tv_str(rest.s, rest.n);
    return 1;
}

/* How often the separator can be used: at most `limit` times (-1: always). */
static enum err split(struct tv_mem *m, struct tv s, struct tv *a, int right, struct tv *out)
{
    int64_t limit, n = 0;
    struct tv sep = a[0], piece, all = s;
    int by_space = tc_is_absent(sep) || sep.kind == TV_NONE;
    TRY(tc_int(m, a[1], -1, &limit));
    if (by_space) {
        struct tt_span span = tt_strip(s.u.s, s.n, right ? TT_RIGHT : TT_LEFT);
        all = tv_str(span.s, span.n);
        sep = tv_none();
    } else {
        TRY(need_str(m, sep));
        if (!sep.n)
            return tv_fail(m, "split needs a non-empty separator");
    }
    TRY(tv_pay(m, s.n / 16 * (right && !by_space ? 1 + sep.n / 16 : 1)));
    for (struct tv rest = all; (limit < 0 || n < limit) && split_once(&rest, sep, right, &piece);
         n++) {
        TRY(tv_pay(m, 1));
        if (by_space && !rest.n) {
            n++;
            break;
        }
    }
    struct tv rest = all;
    TRY(tv_list_new(m, TV_SEQ_LIST, n + 1, out));
    struct tv_list *l = out->u.list;
    for (int64_t i = 0; i < n; i++)
        split_once(&rest, sep, right, &l->items[right ? n - i : i]);
    struct tt_span end = {rest.u.s, rest.n};
    if (by_space && right) // the uncut rest keeps its inner space only
        end = tt_strip(end.s, end.n, TT_RIGHT);
    l->items[right ? 0 : n] = tv_str(end.s, end.n);
    if (by_space && !end.n) {
        l->n--;
        l->items += right;
    }
    for (int64_t i = 0; i < l->n; i++)
        l->items[i].sub = s.sub;
    return OK;
}

static enum err s_split(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return split(m, s, a, 0, out);
}

static enum err s_rsplit(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return split(m, s, a, 1, out);
}

static enum err s_splitlines(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return tc_lines(m, s, tv_truth(a[0]), out);
}

/* s.partition(sep) and, from the right, s.rpartition(sep). */
static enum err partition(struct tv_mem *m, struct tv s, struct tv sep, int right, struct tv *out)
{
    TRY(need_str(m, sep));
    if (!sep.n)
        return tv_fail(m, "partition needs a non-empty separator");
    TRY(tv_pay(m, s.n / 64 * (right ? 1 + sep.n / 16 : 1)));
    TRY(tv_list_new(m, TV_SEQ_TUPLE, 3, out));
    struct tv *items = out->u.list->items;
    int64_t at = (right ? tt_find_last : tt_find)(s.u.s, s.n, sep.u.s, sep.n);
    items[0] = items[1] = items[2] = tv_str("", 0);
    if (at < 0) {
        items[right ? 2 : 0] = s;
        return OK;
    }
    items[0] = tv_str(s.u.s, at);
    items[1] = sep;
    items[2] = tv_str(s.u.s + at + sep.n, s.n - at - sep.n);
    return OK;
}

static enum err s_partition(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return partition(m, s, a[0], 0, out);
}

static enum err s_rpartition(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return partition(m, s, a[0], 1, out);
}

/* The part of s between a[0] and a[1], as for a slice; *start: the characters before it, or -1
 * where there is no such part. */
static enum err window(struct tv_mem *m, struct tv s, const struct tv *a, struct tv *part,
                       int64_t *start)
{
    int64_t n, at[2], given = 0;
    *part = s;
    *start = 0;
    for (int i = 0; i < 2; i++)
        given += !tc_is_absent(a[i]);
    if (!given)
        return OK;
    TRY(tv_pay(m, s.n / 64));
    n = tt_count(s.u.s, s.n);
    for (int i = 0; i < 2; i++) {
        at[i] = i ? n : 0;
        if (a[i].kind != TV_NONE)
            TRY(tc_int(m, a[i], at[i], &at[i]));
        at[i] = at[i] < 0 ? max_i64(at[i] + n, 0) : at[i];
    }
    at[1] = min_i64(at[1], n);
    *start = at[0] <= at[1] ? at[0] : -1;
    int64_t from = tt_offset(s.u.s, s.n, min_i64(at[0], n));
    *part = tv_str(s.u.s + from, 0);
    if (*start >= 0)
        part->n = tt_offset(part->u.s, s.n - from, at[1] - at[0]);
    return OK;
}

/* Does s begin (or end) with `what`, a string or any of a tuple of them? */
static enum err has_affix(struct tv_mem *m, struct tv s, struct tv what, int at_end, int *out)
{
    *out = 0;
    if (what.kind == TV_LIST && what.sub == TV_SEQ_TUPLE) {
        for (int64_t i = 0; i < what.u.list->n && !*out; i++) {
            TRY(need_str(m, what.u.list->items[i]));
            TRY(has_affix(m, s, what.u.list->items[i], at_end, out));
        }
        return OK;
    }
    TRY(need_str(m, what));
    TRY(tv_pay(m, 1 + what.n / 64));
    *out = s.n >= what.n && !memcmp(s.u.s + (at_end ? s.n - what.n : 0), what.u.s, (size_t)what.n);
    return OK;
}

static enum err affix(struct tv_mem *m, struct tv s, const struct tv *a, int at_end, struct tv *out)
{
    int64_t start;
    int yes;
    TRY(window(m, s, a + 1, &s, &start));
    TRY(has_affix(m, s, a[0], at_end, &yes));
    *out = tv_bool(yes && start >= 0);
    return OK;
}

static enum err s_startswith(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return affix(m, s, a, 0, out);
}

static enum err s_endswith(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return affix(m, s, a, 1, out);
}

static enum err s_removeprefix(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int yes;
    TRY(need_str(m, a[0]));
    TRY(has_affix(m, s, a[0], 0, &yes));
    *out = s;
    out->u.s += yes ? a[0].n : 0;
    out->n -= yes ? a[0].n : 0;
    return OK;
}

static enum err s_removesuffix(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int yes;
    TRY(need_str(m, a[0]));
    TRY(has_affix(m, s, a[0], 1, &yes));
    *out = s;
    out->n -= yes ? a[0].n : 0;
    return OK;
}

static enum err s_replace(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int64_t count;
    TRY(need_str(m, a[0]));
    TRY(need_str(m, a[1]));
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

static enum err pad(struct tv_mem *m, struct tv s, struct tv *a, enum tt_side side, struct tv *out)
{
    return tc_pad(m, s, a[0], tc_is_absent(a[1]) ? tv_str(" ", 1) : a[1], side, out);
}

static enum err s_center(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return pad(m, s, a, TT_BOTH, out);
}

static enum err s_ljust(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return pad(m, s, a, TT_RIGHT, out);
}

static enum err s_rjust(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return pad(m, s, a, TT_LEFT, out);
}

/* Zeros behind the sign. */
static enum err s_zfill(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int signed_ = s.n > 0 && (s.u.s[0] == '-' || s.u.s[0] == '+');
    struct tv sign = tv_str(s.u.s, signed_), digits = tv_str(s.u.s + signed_, s.n - signed_), width;
    TRY(tc_binary(m, '-', a[0], tv_int(signed_), &width));
    TRY(tc_pad(m, digits, width, tv_str("0", 1), TT_LEFT, &digits));
    return tc_binary(m, '+', sign, digits, out);
}

static enum err s_capitalize(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return tc_capitalize(m, s, out);
}

/* Upper case for every letter behind something that is none. */
static enum err s_title(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    struct tv_buf b = {0};
    int inside = 0;
    (void)a;
    for (int64_t i = 0; i < s.n;) {
        int32_t cp, bytes = tt_decode(s.u.s + i, s.n - i, &cp);
        TRY(tv_put_cp(m, &b, inside ? tt_to_lower(cp) : tt_to_upper(cp)));
        inside = tt_to_lower(cp) != cp || tt_to_upper(cp) != cp;
        i += bytes;
    }
    TRY(tv_pay(m, s.n / 16));
    *out = tv_text(&b);
    out->sub = s.sub;
    return OK;
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
        TRY(need_str(m, items[i]));
        TRY(tv_pay(m, 1));
        if (i)
            TRY(tv_put(m, &b, s.u.s, s.n));
        TRY(tv_put(m, &b, items[i].u.s, items[i].n));
    }
    *out = tv_text(&b);
    return OK;
}

static enum err find(struct tv_mem *m, struct tv s, const struct tv *a, int right, int must,
                     struct tv *out)
{
    struct tv what = a[0];
    int64_t start;
    TRY(need_str(m, what));
    TRY(window(m, s, a + 1, &s, &start));
    TRY(tv_pay(m, s.n / 64 * (right ? 1 + what.n / 16 : 1)));
    int64_t at =
        right ? tt_find_last(s.u.s, s.n, what.u.s, what.n) : tt_find(s.u.s, s.n, what.u.s, what.n);
    int found = at >= 0 && start >= 0;
    if (!found && must)
        return tv_fail(m, "index: not found in the string");
    *out = tv_int(found ? start + tt_count(s.u.s, at) : -1);
    return OK;
}

static enum err s_find(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return find(m, s, a, 0, 0, out);
}

static enum err s_rfind(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return find(m, s, a, 1, 0, out);
}

static enum err s_index(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    return find(m, s, a, 0, 1, out);
}

static enum err s_count(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    int64_t n = 0, i = 0, at, start;
    TRY(need_str(m, a[0]));
    TRY(window(m, s, a + 1, &s, &start));
    TRY(tv_pay(m, s.n / 32));
    *out = tv_int(start < 0 ? 0 : tt_count(s.u.s, s.n) + 1);
    if (!a[0].n)
        return OK;
    while ((at = tt_find(s.u.s + i, s.n - i, a[0].u.s, a[0].n)) >= 0) {
        i += at + a[0].n;
        n++;
    }
    *out = tv_int(n);
    return OK;
}

static int is_alnum(int32_t cp)
{
    return tt_is_alpha(cp) || tt_is_digit(cp);
}

static enum err all_are(struct tv_mem *m, struct tv s, int (*is)(int32_t), struct tv *out)
{
    int yes = s.n > 0;
    TRY(tv_pay(m, s.n / 16));
    for (int64_t i = 0; yes && i < s.n;) {
        int32_t cp;
        i += tt_decode(s.u.s + i, s.n - i, &cp);
        yes = is(cp);
    }
    *out = tv_bool(yes);
    return OK;
}

static enum err s_isalpha(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return all_are(m, s, tt_is_alpha, out);
}

static enum err s_isdigit(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return all_are(m, s, tt_is_digit, out);
}

static enum err s_isalnum(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return all_are(m, s, is_alnum, out);
}

static enum err s_isspace(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    return all_are(m, s, tt_is_space, out);
}

static enum err s_isupper(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_pay(m, s.n / 16));
    *out = tv_bool(tc_is_case(s, 1));
    return OK;
}

static enum err s_islower(struct tv_mem *m, struct tv s, struct tv *a, struct tv *out)
{
    (void)a;
    TRY(tv_pay(m, s.n / 16));
    *out = tv_bool(tc_is_case(s, 0));
    return OK;
}

/* --- methods of dicts and lists --- */

static enum err d_get(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    struct tv *found;
    TRY(tv_dict_find(m, d.u.dict, a[0], &found));
    *out = found ? *found : tc_is_absent(a[1]) ? tv_none() : a[1];
    return OK;
}

enum dict_part { PART_KEYS, PART_VALUES, PART_ITEMS };

static enum err dict_view(struct tv_mem *m, const struct tv_dict *d, enum dict_part part,
                          struct tv *out)
{
    static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
    TRY(tv_list_new(m, TV_SEQ_VIEW, d->n, out));
    out->u.list->view = names[part];
    for (int64_t i = 0; i < d->n; i++) {
        const struct tv_pair *pair = &d->pairs[i];
        struct tv *item = &out->u.list->items[i];
        *item = part == PART_KEYS ? pair->key : pair->value;
        if (part == PART_ITEMS)
            TRY(tv_pair_new(m, pair->key, pair->value, item));
    }
    return OK;
}

static enum err d_keys(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    (void)a;
    return dict_view(m, d.u.dict, PART_KEYS, out);
}

static enum err d_values(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    (void)a;
    return dict_view(m, d.u.dict, PART_VALUES, out);
}

static enum err d_items(struct tv_mem *m, struct tv d, struct tv *a, struct tv *out)
{
    (void)a;
    return dict_view(m, d.u.dict, PART_ITEMS, out);
}

/* Nothing can change a dict or list, so a copy may be the same. */
static enum err any_copy(struct tv_mem *m, struct tv v, struct tv *a, struct tv *out)
{
    (void)m;
    (void)a;
    *out = v;
    return OK;
}

static enum err l_index(struct tv_mem *m, struct tv l, struct tv *a, struct tv *out)
{
    for (int64_t i = 0; i < l.u.list->n; i++) {
        int same;
        TRY(tv_equal(m, l.u.list->items[i], a[0], &same));
        if (same) {
            *out = tv_int(i);
            return OK;
        }
    }
    return tv_fail(m, "index: not found in the list");
}

static enum err l_count(struct tv_mem *m, struct tv l, struct tv *a, struct tv *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < l.u.list->n; i++) {
        int same;
        TRY(tv_equal(m, l.u.list->items[i], a[0], &same));
        n += same;
    }
    *out = tv_int(n);
    return OK;
}

struct method {
    enum tv_kind kind;
    const char *name;
    enum err (*call)(struct tv_mem *m, struct tv self, struct tv *a,
                     struct tv *out); // NULL: unsafe
    struct tc_params params;
};

static const struct method METHODS[] = {
    {TV_STR, "capitalize", s_capitalize, {{0}, 0, 0}},
    {TV_STR, "center", s_center, {{"width", "fillchar"}, 2, 1}},
    {TV_STR, "count", s_count, {{"sub", "start", "end"}, 3, 1}},
    {TV_STR, "endswith", s_endswith, {{"suffix", "start", "end"}, 3, 1}},
    {TV_STR, "find", s_find, {{"sub", "start", "end"}, 3, 1}},
    {TV_STR, "format", any_copy, {{0}, 0, 0}}, // takes any arguments: see tc_method
    {TV_STR, "index", s_index, {{"sub", "start", "end"}, 3, 1}},
    {TV_STR, "isalnum", s_isalnum, {{0}, 0, 0}},
    {TV_STR, "isalpha", s_isalpha, {{0}, 0, 0}},
    {TV_STR, "isdigit", s_isdigit, {{0}, 0, 0}},
    {TV_STR, "islower", s_islower, {{0}, 0, 0}},
    {TV_STR, "isspace", s_isspace, {{0}, 0, 0}},
    {TV_STR, "isupper", s_isupper, {{0}, 0, 0}},
    {TV_STR, "join", s_join, {{"iterable"}, 1, 1}},
    {TV_STR, "ljust", s_ljust, {{"width", "fillchar"}, 2, 1}},
    {TV_STR, "lower", s_lower, {{0}, 0, 0}},
    {TV_STR, "lstrip", s_lstrip, {{"chars"}, 1, 0}},
    {TV_STR, "partition", s_partition, {{"sep"}, 1, 1}},
    {TV_STR, "removeprefix", s_removeprefix, {{"prefix"}, 1, 1}},
    {TV_STR, "removesuffix", s_removesuffix, {{"suffix"}, 1, 1}},
    {TV_STR, "replace", s_replace, {{"old", "new", "count"}, 3, 2}},
    {TV_STR, "rfind", s_rfind, {{"sub", "start", "end"}, 3, 1}},
    {TV_STR, "rjust", s_rjust, {{"width", "fillchar"}, 2, 1}},
    {TV_STR, "rpartition", s_rpartition, {{"sep"}, 1, 1}},
    {TV_STR, "rsplit", s_rsplit, {{"sep", "maxsplit"}, 2, 0}},
    {TV_STR, "rstrip", s_rstrip, {{"chars"}, 1, 0}},
    {TV_STR, "split", s_split, {{"sep", "maxsplit"}, 2, 0}},
    {TV_STR, "splitlines", s_splitlines, {{"keepends"}, 1, 0}},
    {TV_STR, "startswith", s_startswith, {{"prefix", "start", "end"}, 3, 1}},
    {TV_STR, "strip", s_strip, {{"chars"}, 1, 0}},
    {TV_STR, "title", s_title, {{0}, 0, 0}},
    {TV_STR, "upper", s_upper, {{0}, 0, 0}},
    {TV_STR, "zfill", s_zfill, {{"width"}, 1, 1}},
    {TV_DICT, "clear", NULL, {{0}, 0, 0}},
    {TV_DICT, "copy", any_copy, {{0}, 0, 0}},
    {TV_DICT, "get", d_get, {{"key", "default"}, 2, 1}},
    {TV_DICT, "items", d_items, {{0}, 0, 0}},
    {TV_DICT, "keys", d_keys, {{0}, 0, 0}},
    {TV_DICT, "pop", NULL, {{0}, 0, 0}},
    {TV_DICT, "popitem", NULL, {{0}, 0, 0}},
    {TV_DICT, "setdefault", NULL, {{0}, 0, 0}},
    {TV_DICT, "update", NULL, {{0}, 0, 0}},
    {TV_DICT, "values", d_values, {{0}, 0, 0}},
    {TV_LIST, "append", NULL, {{0}, 0, 0}},
    {TV_LIST, "clear", NULL, {{0}, 0, 0}},
    {TV_LIST, "copy", any_copy, {{0}, 0, 0}},
    {TV_LIST, "count", l_count, {{"value"}, 1, 1}},
    {TV_LIST, "extend", NULL, {{0}, 0, 0}},
    {TV_LIST, "index", l_index, {{"value"}, 1, 1}},
    {TV_LIST, "insert", NULL, {{0}, 0, 0}},
    {TV_LIST, "pop", NULL, {{0}, 0, 0}},
    {TV_LIST, "remove", NULL, {{0}, 0, 0}},
    {TV_LIST, "reverse", NULL, {{0}, 0, 0}},
    {TV_LIST, "sort", NULL, {{0}, 0, 0}},
};

/* Does v have this method? A tuple has but two of a list's. */
static int has_method(struct tv v, const struct method *x)
{
    if (v.kind != x->kind || v.kind != TV_LIST)
        return v.kind == x->kind;
    return v.sub == TV_SEQ_LIST ||
           (v.sub <= TV_SEQ_RANGE && (x->call == l_count || x->call == l_index));
}

/* 1 and a bound method when the object has it. */
static enum err find_method(struct tv_mem *m, struct tv object, const char *name, int64_t n,
                            struct tv *out, int *found)
{
    *found = 0;
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (!tv_is_str(tv_str(name, n), METHODS[i].name) || !has_method(object, &METHODS[i]))
            continue;
        *found = 1;
        if (!METHODS[i].call) {
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

/* .grouper and .list of what |groupby gave: 1 when it is one of them. */
static int group_item(struct tv object, const char *name, int64_t n, struct tv *out)
{
    int is_group = object.kind == TV_LIST && object.u.list->is_group;
    int is_list = tv_is_str(tv_str(name, n), "list");
    if (!is_group || (!is_list && !tv_is_str(tv_str(name, n), "grouper")))
        return 0;
    *out = object.u.list->items[is_list];
    return 1;
}

enum err tc_attr(struct tv_mem *m, struct tv object, const char *name, int64_t n, struct tv *out)
{
    int found;
    TRY(find_method(m, object, name, n, out, &found));
    if (found)
        return OK;
    struct tv *value = NULL;
    if (object.kind == TV_DICT || object.kind == TV_NAMESPACE) {
        TRY(tv_pay(m, object.u.dict->n / 16));
        value = tv_dict_find_str(object.u.dict, name, n);
    }
    if (value) {
        *out = *value;
        return OK;
    }
    if (group_item(object, name, n, out))
        return OK;
    *out = tv_undefined(name, n);
    return refuse_dunder(m, name, n);
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
    int found;
    struct tv *value = NULL;
    if (object.kind == TV_UNDEFINED)
        return tv_fail(m, "'%.*s' is undefined", (int)object.n, object.u.s);
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
    if (key.kind == TV_STR && object.kind == TV_NAMESPACE)
        return tc_attr(m, object, key.u.s, key.n, out);
    if (key.kind == TV_STR) {
        TRY(find_method(m, object, key.u.s, key.n, out, &found));
        if (found || group_item(object, key.u.s, key.n, out))
            return OK;
        TRY(refuse_dunder(m, key.u.s, key.n));
    }
    *out = key.kind == TV_STR ? tv_undefined(key.u.s, key.n) : tv_undefined("item", 4);
    return OK;
}

enum err tc_method(struct tv_mem *m, const struct tv_bound *bound, const struct tc_args *args,
                   struct tv *out)
{
    const struct method *x = &METHODS[bound->method];
    struct tv values[TC_PARAMS_MAX];
    if (bound->self.kind == TV_STR && !strcmp(x->name, "format"))
        return tc_format_braces(m, bound->self, args, out);
    TRY(tc_bind(m, x->name, &x->params, args, values));
    return x->call(m, bound->self, values, out);
}
