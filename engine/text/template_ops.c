/* engine/text/template_ops.c - Python's operators on template values, the tests (value is name),
 * the global functions, and binding of arguments.
 *
 * Owns: + - * / // % and the signs, comparisons, slices. Refuses: integers beyond 64 bits (an
 * error, not a wrap). Note: // and % round towards minus infinity. */
#include "engine/text/template_value.h"

#include <math.h>
#include <string.h>

#define RANGE_MAX 100000 // most items of range(), as in the sandbox that templates are written for

static enum err overflow(const struct mem *m)
{
    return tpl_fail(m, "the result exceeds 64 bits");
}

static enum err int_binary(struct mem *m, int op, int64_t a, int64_t b, struct val *out)
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
            return tpl_fail(m, "division by zero");
        if (b == -1) { // the only quotient that can overflow
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
    *out = tpl_int(r);
    return wrapped ? overflow(m) : OK;
}

static enum err float_binary(struct mem *m, int op, double a, double b, struct val *out)
{
    double r, rest;
    if (b == 0 && (op == '/' || op == '%' || op == OP2('/', '/')))
        return tpl_fail(m, "division by zero");
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
    *out = tpl_float(r);
    return OK;
}

static enum err repeat(struct mem *m, struct val s, int64_t times, struct val *out)
{
    int64_t total;
    void *p;
    times = max_i64(times, 0);
    if (__builtin_mul_overflow(s.n, times, &total))
        return overflow(m);
    TRY(tpl_pay(m, (s.n ? times / 8 : 0) + total / 64));
    TRY(tpl_take(m, total, 1, &p));
    for (int64_t i = 0; s.n && i < times; i++)
        memcpy((char *)p + i * s.n, s.u.s, (size_t)s.n);
    *out = tpl_str(p, total);
    out->sub = s.sub;
    return OK;
}

static enum err join_two(struct mem *m, struct val a, struct val b, struct val *out)
{
    if (a.kind == VAL_STR) {
        struct buf buf = {0};
        if (a.sub != b.sub) // one is Markup: escape the other
            TRY(tpl_escape(m, a.sub ? b : a, a.sub ? &b : &a));
        TRY(tpl_put(m, &buf, a.u.s, a.n));
        TRY(tpl_put(m, &buf, b.u.s, b.n));
        *out = tpl_buf_str(&buf);
        out->sub = a.sub;
        return OK;
    }
    int64_t n = a.u.list->n;
    TRY(tpl_list(m, a.sub, n + b.u.list->n, out));
    for (int64_t i = 0; i < out->u.list->n; i++)
        out->u.list->items[i] = i < n ? a.u.list->items[i] : b.u.list->items[i - n];
    return OK;
}

enum err tpl_binary(struct mem *m, int op, struct val a, struct val b, struct val *out)
{
    int a_int = a.kind == VAL_INT || a.kind == VAL_BOOL,
        b_int = b.kind == VAL_INT || b.kind == VAL_BOOL;
    if (a.kind == VAL_UNDEFINED || b.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, a.kind == VAL_UNDEFINED ? a : b);
    if (a_int && b_int && op != '/')
        return int_binary(m, op, a.u.i, b.u.i, out);
    if (tpl_is_number(a) && tpl_is_number(b))
        return float_binary(m, op, tpl_as_float(a), tpl_as_float(b), out);
    if (op == '+' && a.kind == VAL_STR && b.kind == VAL_STR)
        return join_two(m, a, b, out);
    if (op == '+' && a.kind == VAL_LIST && b.kind == VAL_LIST && a.sub == b.sub &&
        a.sub <= SEQ_TUPLE)
        return join_two(m, a, b, out);
    if (op == '*' && a.kind == VAL_STR && b_int)
        return repeat(m, a, b.u.i, out);
    if (op == '*' && b.kind == VAL_STR && a_int)
        return repeat(m, b, a.u.i, out);
    char name[3] = {(char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? op & 255 : 0), 0};
    return tpl_fail(m, "%s %s %s does not work", tpl_type_name(a), name, tpl_type_name(b));
}

enum err tpl_compare(struct mem *m, enum compare op, struct val a, struct val b, int *out)
{
    int order;
    switch (op) {
    case CMP_EQ:
    case CMP_NE:
        TRY(tpl_equal(m, a, b, out));
        *out ^= op == CMP_NE;
        return OK;
    case CMP_IN:
    case CMP_NOT_IN:
        TRY(tpl_contains(m, b, a, out));
        *out ^= op == CMP_NOT_IN;
        return OK;
    default:
        break;
    }
    if (a.kind == VAL_UNDEFINED || b.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, a.kind == VAL_UNDEFINED ? a : b);
    TRY(tpl_order(m, a, b, &order));
    *out = order == 2     ? 0 // one is NaN
           : op == CMP_LT ? order < 0
           : op == CMP_LE ? order <= 0
           : op == CMP_GT ? order > 0
                          : order >= 0;
    return OK;
}

enum err tpl_sign(struct mem *m, int op, struct val a, struct val *out)
{
    if (a.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, a);
    if (!tpl_is_number(a))
        return tpl_fail(m, "a sign needs a number, not %s", tpl_type_name(a));
    if (a.kind == VAL_FLOAT)
        *out = tpl_float(op == '-' ? -a.u.f : a.u.f);
    else if (op == '-' && a.u.i == INT64_MIN)
        return overflow(m);
    else
        *out = tpl_int(op == '-' ? -a.u.i : a.u.i);
    return OK;
}

/* A bound of a slice over n items, clamped as in Python. */
static enum err slice_bound(struct mem *m, struct val v, int64_t n, int64_t step, int64_t if_none,
                            int64_t *out)
{
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    *out = if_none;
    if (v.kind == VAL_NONE)
        return OK;
    if (v.kind != VAL_INT && v.kind != VAL_BOOL)
        return tpl_fail(m, "a slice needs integers, not %s", tpl_type_name(v));
    int64_t at = v.u.i < 0 ? max_i64(v.u.i, -n - 1) + n : v.u.i;
    *out = at < low ? low : min_i64(at, high);
    return OK;
}

/* s[from], s[from + step], ... as text. */
static enum err slice_text(struct mem *m, struct val v, int64_t from, int64_t step, int64_t count,
                           struct val *out)
{
    if (step == 1) {
        int64_t at = tpl_offset(v.u.s, v.n, from);
        *out = tpl_str(v.u.s + at, tpl_offset(v.u.s + at, v.n - at, count));
    } else {
        struct val *chars;
        int64_t n;
        struct buf b = {0};
        TRY(tpl_walk(m, v, &chars, &n));
        for (int64_t i = 0; i < count; i++)
            TRY(tpl_put(m, &b, chars[from + i * step].u.s, chars[from + i * step].n));
        *out = tpl_buf_str(&b);
    }
    out->sub = v.sub;
    return OK;
}

enum err tpl_slice(struct mem *m, struct val object, const struct val bounds[3], struct val *out)
{
    int64_t n = tpl_length(object), i, end, by = 1;
    struct val step = bounds[2];
    if (object.kind == VAL_UNDEFINED)
        return tpl_fail_undefined(m, object);
    if (object.kind != VAL_STR && (object.kind != VAL_LIST || object.sub > SEQ_RANGE))
        return tpl_fail(m, "a %s cannot be sliced", tpl_type_name(object));
    TRY(tpl_pay(m, object.kind == VAL_STR ? object.n / 64 : 1));
    if (tpl_is_int(step))
        by = max_i64(step.u.i, -INT64_MAX);
    else if (step.kind != VAL_NONE)
        return tpl_fail(m, "a slice needs integers, not %s", tpl_type_name(step));
    if (by == 0)
        return tpl_fail(m, "a slice needs a step other than 0");
    TRY(slice_bound(m, bounds[0], n, by, by < 0 ? n - 1 : 0, &i));
    TRY(slice_bound(m, bounds[1], n, by, by < 0 ? -1 : n, &end));
    int64_t span = by < 0 ? i - end : end - i, size = by < 0 ? -by : by;
    int64_t count = span <= 0 ? 0 : (span - 1) / size + 1;
    if (object.kind == VAL_STR)
        return slice_text(m, object, i, by, count, out);
    TRY(tpl_list(m, object.sub, count, out));
    for (int64_t k = 0; k < count; k++)
        out->u.list->items[k] = object.u.list->items[i + k * by];
    return OK;
}

/* --- tests: a bool is a number, a dict is a sequence, and undefined is iterable, as in Python ---
 */

enum check {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_TRUE,
    IS_FALSE,
    IS_BOOLEAN,
    IS_INTEGER,
    IS_FLOAT,
    IS_NUMBER,
    IS_STRING,
    IS_MAPPING,
    IS_SEQUENCE,
    IS_ITERABLE,
    IS_ODD,
    IS_EVEN,
    IS_DIVISIBLE, // from here on, tests take one argument
    IS_COMPARED,  // plus an enum compare
};

static const struct {
    const char *name;
    int check;
} TESTS[] = {
    {"defined", IS_DEFINED},
    {"undefined", IS_UNDEFINED},
    {"none", IS_NONE},
    {"true", IS_TRUE},
    {"false", IS_FALSE},
    {"boolean", IS_BOOLEAN},
    {"integer", IS_INTEGER},
    {"float", IS_FLOAT},
    {"number", IS_NUMBER},
    {"string", IS_STRING},
    {"mapping", IS_MAPPING},
    {"sequence", IS_SEQUENCE},
    {"iterable", IS_ITERABLE},
    {"odd", IS_ODD},
    {"even", IS_EVEN},
    {"divisibleby", IS_DIVISIBLE},
    {"in", IS_COMPARED + CMP_IN},
    {"eq", IS_COMPARED + CMP_EQ},
    {"==", IS_COMPARED + CMP_EQ},
    {"equalto", IS_COMPARED + CMP_EQ},
    {"ne", IS_COMPARED + CMP_NE},
    {"!=", IS_COMPARED + CMP_NE},
    {"lt", IS_COMPARED + CMP_LT},
    {"<", IS_COMPARED + CMP_LT},
    {"lessthan", IS_COMPARED + CMP_LT},
    {"le", IS_COMPARED + CMP_LE},
    {"<=", IS_COMPARED + CMP_LE},
    {"gt", IS_COMPARED + CMP_GT},
    {">", IS_COMPARED + CMP_GT},
    {"greaterthan", IS_COMPARED + CMP_GT},
    {"ge", IS_COMPARED + CMP_GE},
    {">=", IS_COMPARED + CMP_GE},
};

int tpl_test_find(struct val name)
{
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++) {
        if (tpl_is(name, TESTS[i].name))
            return (int)i;
    }
    return -1;
}

/* Whether the remainder of v by `by` equals `want`. */
static enum err check_rest(struct mem *m, struct val v, struct val by, int64_t want, int *out)
{
    struct val rest;
    TRY(tpl_binary(m, '%', v, by, &rest));
    return tpl_equal(m, rest, tpl_int(want), out);
}

/* Tests of the value alone. */
static int check_kind(enum check check, struct val v)
{
    switch (check) {
    case IS_DEFINED:
        return v.kind != VAL_UNDEFINED;
    case IS_UNDEFINED:
        return v.kind == VAL_UNDEFINED;
    case IS_NONE:
        return v.kind == VAL_NONE;
    case IS_TRUE:
        return v.kind == VAL_BOOL && v.u.i;
    case IS_FALSE:
        return v.kind == VAL_BOOL && !v.u.i;
    case IS_BOOLEAN:
        return v.kind == VAL_BOOL;
    case IS_INTEGER:
        return v.kind == VAL_INT;
    case IS_FLOAT:
        return v.kind == VAL_FLOAT;
    case IS_NUMBER:
        return tpl_is_number(v);
    case IS_STRING:
        return v.kind == VAL_STR;
    case IS_MAPPING:
        return v.kind == VAL_DICT;
    case IS_SEQUENCE:
        return v.kind == VAL_UNDEFINED || v.kind == VAL_STR || v.kind == VAL_DICT ||
               (v.kind == VAL_LIST && v.sub <= SEQ_RANGE);
    default: // IS_ITERABLE
        return v.kind == VAL_UNDEFINED || v.kind == VAL_STR || v.kind == VAL_LIST ||
               v.kind == VAL_DICT || v.kind == VAL_LOOP;
    }
}

enum err tpl_test(struct mem *m, int id, struct val in, const struct args *args, int *out)
{
    int check = TESTS[id].check, wants = check >= IS_DIVISIBLE;
    if (args->n_pos != wants || args->n_named)
        return tpl_fail(m, "the test %s takes %s", TESTS[id].name,
                        wants ? "one argument" : "no arguments");
    if (check >= IS_COMPARED)
        return tpl_compare(m, (enum compare)(check - IS_COMPARED), in, args->pos[0], out);
    if (check == IS_DIVISIBLE)
        return check_rest(m, in, args->pos[0], 0, out);
    if (check == IS_ODD || check == IS_EVEN)
        return check_rest(m, in, tpl_int(2), check == IS_ODD, out);
    *out = check_kind((enum check)check, in);
    return OK;
}

/* --- arguments --- */

enum err tpl_int_arg(struct mem *m, struct val v, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (tpl_is_absent(v))
        return OK;
    if (!tpl_is_int(v))
        return tpl_fail(m, "an integer is needed, not %s", tpl_type_name(v));
    *out = v.u.i;
    return OK;
}

enum err tpl_bind(struct mem *m, const char *what, const struct params *params,
                  const struct args *args, struct val bound[PARAMS_MAX])
{
    int n = 0;
    for (; n < PARAMS_MAX && params->names[n]; n++) {
        bound[n] = tpl_undefined("argument", 8);
        bound[n].sub = UNDEFINED_ABSENT;
        if (n < args->n_pos)
            bound[n] = args->pos[n];
    }
    if (args->n_pos > n)
        return tpl_fail(m, "%s takes at most %d arguments", what, n);
    for (int k = 0; k < args->n_named; k++) {
        struct val name = args->named[k].name;
        int i = 0;
        while (i < n && !tpl_is(name, params->names[i]))
            i++;
        if (i == n || !tpl_is_absent(bound[i]))
            return tpl_fail(m, "%s does not take the argument '%.*s' here", what, (int)name.n,
                            name.u.s);
        bound[i] = args->named[k].value;
    }
    for (int i = 0; i < params->n_required; i++) {
        if (tpl_is_absent(bound[i]))
            return tpl_fail(m, "%s needs the argument '%s'", what, params->names[i]);
    }
    return OK;
}

/* --- global functions --- */

enum global { GLOBAL_RAISE, GLOBAL_STRFTIME, GLOBAL_NAMESPACE, GLOBAL_RANGE, GLOBAL_N };

static const char *const GLOBALS[] = {"raise_exception", "strftime_now", "namespace", "range"};

struct val tpl_global_find(struct val name)
{
    for (int i = 0; i < GLOBAL_N; i++) {
        if (tpl_is(name, GLOBALS[i]))
            return (struct val){.kind = VAL_GLOBAL, .u.i = i};
    }
    return tpl_undefined(name.u.s, name.n);
}

static enum err call_range(struct mem *m, const struct val *a, struct val *out)
{
    int64_t from = 0, to, step, n = 0, span;
    TRY(tpl_int_arg(m, a[0], 0, &to));
    if (!tpl_is_absent(a[1])) {
        from = to;
        TRY(tpl_int_arg(m, a[1], 0, &to));
    }
    TRY(tpl_int_arg(m, a[2], 1, &step));
    if (step == 0)
        return tpl_fail(m, "range() needs a step other than 0");
    if (__builtin_sub_overflow(to, from, &span))
        n = RANGE_MAX + 1;
    else if ((span > 0) == (step > 0) && span != 0)
        n = step == INT64_MIN ? 1 : (span + step - (step > 0 ? 1 : -1)) / step;
    if (n > RANGE_MAX)
        return tpl_fail(m, "range() of more than %d items", RANGE_MAX);
    TRY(tpl_list(m, SEQ_RANGE, n, out));
    for (int64_t i = 0; i < n; i++)
        out->u.list->items[i] = tpl_int(from + i * step);
    return OK;
}

enum err tpl_namespace_set(struct mem *m, struct val namespace, struct val name, struct val value)
{
    if (name.u.s[0] == '_')
        return tpl_fail(m, "a namespace cannot hold names that begin with '_'");
    return tpl_dict_set(m, namespace.u.dict, name, value);
}

enum err tpl_global(struct mem *m, int id, int64_t now_epoch, const struct args *args,
                    struct val *out)
{
    static const struct params params[] = {
        {1, {"message"}}, {1, {"format"}}, {0, {0}}, {1, {"start", "stop", "step"}}};
    struct val a[PARAMS_MAX];
    if (id == GLOBAL_NAMESPACE) {
        if (args->n_pos)
            return tpl_fail(m, "namespace() takes named values");
        TRY(tpl_dict(m, args->n_named, out));
        out->kind = VAL_NAMESPACE;
        for (int i = 0; i < args->n_named; i++)
            TRY(tpl_namespace_set(m, *out, args->named[i].name, args->named[i].value));
        return OK;
    }
    TRY(tpl_bind(m, GLOBALS[id], &params[id], args, a));
    if (id == GLOBAL_RANGE)
        return call_range(m, a, out);
    if (id == GLOBAL_STRFTIME)
        return tpl_strftime(m, a[0], now_epoch, out);
    TRY(tpl_to_str(m, a[0], &a[0]));
    return tpl_fail(m, "the template refuses: %.*s", (int)min_i64(a[0].n, 4096), a[0].u.s);
}
