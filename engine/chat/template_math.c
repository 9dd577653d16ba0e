/* engine/chat/template_math.c - Python's operators on template values.
 *
 * Owns: + - * / // % and the signs, comparisons, slices. Refuses: integers beyond 64 bits (an
 * error, not a wrap). The one fact: // and % round towards minus infinity. */
#include "engine/chat/template_call.h"

#include <math.h>
#include <string.h>

#define OP2(a, b) ((a) << 8 | (b))

static enum err overflow(const struct tv_mem *m)
{
    return tv_fail(m, "the result exceeds 64 bits");
}

static enum err int_binary(struct tv_mem *m, int op, int64_t a, int64_t b, struct tv *out)
{
    int64_t r = 0;
    int wrapped = 0;
    switch (op) {
    case '+':
        wrapped = __builtin_add_overflow(a, b, &r);
        break;
    case '-':
        wrapped = __builtin_sub_overflow(a, b, &r);
        break;
    case '*':
        wrapped = __builtin_mul_overflow(a, b, &r);
        break;
    default: // // and %
        if (b == 0)
            return tv_fail(m, "division by zero");
        if (b == -1) { // the one quotient that can overflow
            wrapped = op != '%' && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = a % b;
        if (r && (r < 0) != (b < 0))
            r += b;
        if (op != '%')
            r = (a - r) / b;
        break;
    }
    *out = tv_int(r);
    return wrapped ? overflow(m) : OK;
}

static enum err float_binary(struct tv_mem *m, int op, double a, double b, struct tv *out)
{
    double r, rest;
    if (b == 0 && (op == '/' || op == '%' || op == OP2('/', '/')))
        return tv_fail(m, "division by zero");
    switch (op) {
    case '+':
        r = a + b;
        break;
    case '-':
        r = a - b;
        break;
    case '*':
        r = a * b;
        break;
    case '/':
        r = a / b;
        break;
    default: // // and %
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        r = op == '%' ? (rest == 0 ? copysign(0, b) : rest) : rint((a - rest) / b);
        break;
    }
    *out = tv_float(r);
    return OK;
}

static enum err repeat(struct tv_mem *m, struct tv s, int64_t times, struct tv *out)
{
    int64_t total;
    void *p;
    times = max_i64(times, 0);
    if (__builtin_mul_overflow(s.n, times, &total))
        return overflow(m);
    TRY(tv_pay(m, (s.n ? times / 8 : 0) + total / 64));
    TRY(tv_take(m, total, 1, &p));
    for (int64_t i = 0; s.n && i < times; i++)
        memcpy((char *)p + i * s.n, s.u.s, (size_t)s.n);
    *out = tv_str(p, total);
    out->sub = s.sub;
    return OK;
}

static enum err join_two(struct tv_mem *m, struct tv a, struct tv b, struct tv *out)
{
    if (a.kind == TV_STR) {
        struct tv_buf buf = {0};
        if (a.sub != b.sub) // one is Markup: the other is escaped
            TRY(tc_escape(m, a.sub ? b : a, a.sub ? &b : &a));
        TRY(tv_put(m, &buf, a.u.s, a.n));
        TRY(tv_put(m, &buf, b.u.s, b.n));
        *out = tv_text(&buf);
        out->sub = a.sub;
        return OK;
    }
    int64_t n = a.u.list->n;
    TRY(tv_list_new(m, a.sub, n + b.u.list->n, out));
    for (int64_t i = 0; i < out->u.list->n; i++)
        out->u.list->items[i] = i < n ? a.u.list->items[i] : b.u.list->items[i - n];
    return OK;
}

enum err tc_binary(struct tv_mem *m, int op, struct tv a, struct tv b, struct tv *out)
{
    int a_int = a.kind == TV_INT || a.kind == TV_BOOL,
        b_int = b.kind == TV_INT || b.kind == TV_BOOL;
    if (a_int && b_int && op != '/')
        return int_binary(m, op, a.u.i, b.u.i, out);
    if (tv_is_number(a) && tv_is_number(b))
        return float_binary(m, op, tv_as_float(a), tv_as_float(b), out);
    if (op == '+' && a.kind == TV_STR && b.kind == TV_STR)
        return join_two(m, a, b, out);
    if (op == '+' && a.kind == TV_LIST && b.kind == TV_LIST && a.sub == b.sub &&
        a.sub <= TV_SEQ_TUPLE)
        return join_two(m, a, b, out);
    if (op == '*' && a.kind == TV_STR && b_int)
        return repeat(m, a, b.u.i, out);
    if (op == '*' && b.kind == TV_STR && a_int)
        return repeat(m, b, a.u.i, out);
    char name[3] = {(char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? op & 255 : 0), 0};
    return tv_fail(m, "%s %s %s does not work", tv_type_name(a), name, tv_type_name(b));
}

enum err tc_compare(struct tv_mem *m, enum tc_compare op, struct tv a, struct tv b, int *out)
{
    int order;
    switch (op) {
    case TC_EQ:
    case TC_NE:
        TRY(tv_equal(m, a, b, out));
        *out ^= op == TC_NE;
        return OK;
    case TC_IN:
    case TC_NOT_IN:
        TRY(tv_contains(m, b, a, out));
        *out ^= op == TC_NOT_IN;
        return OK;
    default:
        break;
    }
    if (a.kind == TV_UNDEFINED || b.kind == TV_UNDEFINED)
        return tv_fail_undefined(m, a.kind == TV_UNDEFINED ? a : b);
    TRY(tv_order(m, a, b, &order));
    *out = order == 2    ? 0 // one is not a number
           : op == TC_LT ? order < 0
           : op == TC_LE ? order <= 0
           : op == TC_GT ? order > 0
                         : order >= 0;
    return OK;
}

enum err tc_negate(struct tv_mem *m, struct tv a, int sign, struct tv *out)
{
    if (!tv_is_number(a))
        return tv_fail(m, "a sign needs a number, not %s", tv_type_name(a));
    if (a.kind == TV_FLOAT) {
        *out = tv_float(sign < 0 ? -a.u.f : a.u.f);
        return OK;
    }
    if (sign < 0 && a.u.i == INT64_MIN)
        return overflow(m);
    *out = tv_int(sign < 0 ? -a.u.i : a.u.i);
    return OK;
}

/* A bound of a slice over n items, clamped as Python does. */
static enum err slice_bound(struct tv_mem *m, struct tv v, int64_t n, int64_t step, int64_t if_none,
                            int64_t *out)
{
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    *out = if_none;
    if (v.kind == TV_NONE)
        return OK;
    if (v.kind != TV_INT && v.kind != TV_BOOL)
        return tv_fail(m, "a slice needs integers, not %s", tv_type_name(v));
    int64_t at = v.u.i < 0 ? max_i64(v.u.i, -n - 1) + n : v.u.i;
    *out = at < low ? low : min_i64(at, high);
    return OK;
}

/* s[from], s[from + step], ... as text. */
static enum err slice_text(struct tv_mem *m, struct tv v, int64_t from, int64_t step, int64_t count,
                           struct tv *out)
{
    if (step == 1) {
        int64_t at = tt_offset(v.u.s, v.n, from);
        *out = tv_str(v.u.s + at, tt_offset(v.u.s + at, v.n - at, count));
    } else {
        struct tv *chars;
        int64_t n;
        struct tv_buf b = {0};
        TRY(tv_walk(m, v, &chars, &n));
        for (int64_t i = 0; i < count; i++)
            TRY(tv_put(m, &b, chars[from + i * step].u.s, chars[from + i * step].n));
        *out = tv_text(&b);
    }
    out->sub = v.sub;
    return OK;
}

enum err tc_slice(struct tv_mem *m, struct tv object, struct tv from, struct tv to, struct tv step,
                  struct tv *out)
{
    int64_t n = tv_length(object), i, end, by = 1;
    if (object.kind != TV_STR && (object.kind != TV_LIST || object.sub > TV_SEQ_RANGE))
        return tv_fail(m, "a %s cannot be sliced", tv_type_name(object));
    TRY(tv_pay(m, object.kind == TV_STR ? object.n / 64 : 1));
    if (step.kind == TV_INT || step.kind == TV_BOOL)
        by = max_i64(step.u.i, -INT64_MAX);
    else if (step.kind != TV_NONE)
        return tv_fail(m, "a slice needs integers, not %s", tv_type_name(step));
    if (by == 0)
        return tv_fail(m, "a slice needs a step other than 0");
    TRY(slice_bound(m, from, n, by, by < 0 ? n - 1 : 0, &i));
    TRY(slice_bound(m, to, n, by, by < 0 ? -1 : n, &end));
    int64_t span = by < 0 ? i - end : end - i, size = by < 0 ? -by : by;
    int64_t count = span <= 0 ? 0 : (span - 1) / size + 1;
    if (object.kind == TV_STR)
        return slice_text(m, object, i, by, count, out);
    TRY(tv_list_new(m, object.sub, count, out));
    for (int64_t k = 0; k < count; k++)
        out->u.list->items[k] = object.u.list->items[i + k * by];
    return OK;
}
