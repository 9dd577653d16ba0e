/* engine/chat/template_check.c - the tests: value is name(args).
 *
 * Owns: TESTS, all of Jinja's own.
 * The one fact: a bool is a number, a dict is a sequence, and undefined is iterable: as Python
 * says. */
#include "engine/chat/template_call.h"

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
    IS_CALLABLE,
    IS_LOWER,
    IS_UPPER,
    IS_ESCAPED,
    IS_FILTER,
    IS_TEST,
    IS_ODD,
    IS_EVEN,
    IS_SAME, // this and what follows take one argument
    IS_DIVISIBLE,
    IS_IN,
    IS_EQ,
    IS_NE,
    IS_LT,
    IS_LE,
    IS_GT,
    IS_GE,
};

static const struct {
    const char *name;
    enum check check;
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
    {"callable", IS_CALLABLE},
    {"lower", IS_LOWER},
    {"upper", IS_UPPER},
    {"escaped", IS_ESCAPED},
    {"filter", IS_FILTER},
    {"test", IS_TEST},
    {"odd", IS_ODD},
    {"even", IS_EVEN},
    {"sameas", IS_SAME},
    {"divisibleby", IS_DIVISIBLE},
    {"in", IS_IN},
    {"eq", IS_EQ},
    {"==", IS_EQ},
    {"equalto", IS_EQ},
    {"ne", IS_NE},
    {"!=", IS_NE},
    {"lt", IS_LT},
    {"<", IS_LT},
    {"lessthan", IS_LT},
    {"le", IS_LE},
    {"<=", IS_LE},
    {"gt", IS_GT},
    {">", IS_GT},
    {"greaterthan", IS_GT},
    {"ge", IS_GE},
    {">=", IS_GE},
};

int tc_test_find(const char *name, int64_t n)
{
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++) {
        if (tv_is_str(tv_str(name, n), TESTS[i].name))
            return (int)i;
    }
    return -1;
}

static int is_iterable(struct tv v)
{
    return v.kind == TV_UNDEFINED || v.kind == TV_STR || v.kind == TV_LIST || v.kind == TV_DICT ||
           v.kind == TV_LOOP;
}

/* Remainder of v by a number, compared with `want`. */
static enum err check_rest(struct tv_mem *m, struct tv v, struct tv by, int64_t want, int *out)
{
    struct tv rest, missing = v.kind == TV_UNDEFINED ? v : by;
    if (missing.kind == TV_UNDEFINED && v.kind != TV_STR)
        return tv_fail(m, "'%.*s' is undefined", (int)missing.n, missing.u.s);
    TRY(tc_binary(m, '%', v, by, &rest));
    return tv_equal(m, rest, tv_int(want), out);
}

static enum err check_case(struct tv_mem *m, struct tv v, int upper, int *out)
{
    TRY(tv_to_str(m, v, &v));
    TRY(tv_pay(m, v.n / 64));
    *out = tc_is_case(v, upper);
    return OK;
}

static enum err check_order(struct tv_mem *m, enum check check, struct tv a, struct tv b, int *out)
{
    int order;
    TRY(tv_order(m, a, b, &order));
    *out = order == 2       ? 0
           : check == IS_LT ? order < 0
           : check == IS_LE ? order <= 0
           : check == IS_GT ? order > 0
                            : order >= 0;
    return OK;
}

static enum err check_same(struct tv a, struct tv b, int *out)
{
    int scalar = a.kind == TV_NONE || a.kind == TV_BOOL || a.kind == TV_INT;
    *out =
        a.kind == b.kind && (a.kind == TV_NONE || (scalar ? a.u.i == b.u.i : a.u.ptr == b.u.ptr));
    return OK;
}

/* Tests of the value alone. */
static int check_kind(enum check check, struct tv v)
{
    switch (check) {
    case IS_DEFINED:
        return v.kind != TV_UNDEFINED;
    case IS_UNDEFINED:
        return v.kind == TV_UNDEFINED;
    case IS_NONE:
        return v.kind == TV_NONE;
    case IS_TRUE:
        return v.kind == TV_BOOL && v.u.i;
    case IS_FALSE:
        return v.kind == TV_BOOL && !v.u.i;
    case IS_BOOLEAN:
        return v.kind == TV_BOOL;
    case IS_INTEGER:
        return v.kind == TV_INT;
    case IS_FLOAT:
        return v.kind == TV_FLOAT;
    case IS_NUMBER:
        return tv_is_number(v);
    case IS_STRING:
        return v.kind == TV_STR;
    case IS_MAPPING:
        return v.kind == TV_DICT;
    case IS_SEQUENCE:
        return v.kind == TV_UNDEFINED || v.kind == TV_STR || v.kind == TV_DICT ||
               (v.kind == TV_LIST && v.sub <= TV_SEQ_RANGE);
    case IS_ITERABLE:
        return is_iterable(v);
    case IS_ESCAPED:
        return v.kind == TV_STR && v.sub;
    case IS_FILTER:
        return v.kind == TV_STR && tc_filter_find(v.u.s, v.n) >= 0;
    case IS_TEST:
        return v.kind == TV_STR && tc_test_find(v.u.s, v.n) >= 0;
    default: // IS_CALLABLE
        return v.kind == TV_MACRO || v.kind == TV_METHOD || v.kind == TV_GLOBAL ||
               v.kind == TV_UNDEFINED || v.kind == TV_LOOP;
    }
}

enum err tc_test(struct tv_mem *m, int id, struct tv in, const struct tc_args *args, int *out)
{
    enum check check = TESTS[id].check;
    int wants = check >= IS_SAME;
    if (args->n_pos != wants || args->n_named)
        return tv_fail(m, "the test %s takes %s", TESTS[id].name,
                       wants ? "one argument" : "no arguments");
    struct tv other = wants ? args->pos[0] : tv_none();
    switch (check) {
    case IS_LOWER:
    case IS_UPPER:
        return check_case(m, in, check == IS_UPPER, out);
    case IS_ODD:
    case IS_EVEN:
        return check_rest(m, in, tv_int(2), check == IS_ODD, out);
    case IS_SAME:
        return check_same(in, other, out);
    case IS_DIVISIBLE:
        return check_rest(m, in, other, 0, out);
    case IS_IN:
        return tv_contains(m, other, in, out);
    case IS_EQ:
    case IS_NE:
        TRY(tv_equal(m, in, other, out));
        *out ^= check == IS_NE;
        return OK;
    case IS_LT:
    case IS_LE:
    case IS_GT:
    case IS_GE:
        return check_order(m, check, in, other, out);
    default:
        *out = check_kind(check, in);
        return OK;
    }
}
