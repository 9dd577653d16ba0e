/* engine/chat/template_check.c - the tests: value is name(args).
 *
 * Owns: TESTS, those of Jinja's that chat templates use. The one fact: a bool is a number, a dict
 * is a sequence, and undefined is iterable, as in Python. */
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
    IS_ODD,
    IS_EVEN,
    IS_DIVISIBLE, // this and what follows take one argument
    IS_COMPARED,  // and an enum tc_compare on top
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
    {"in", IS_COMPARED + TC_IN},
    {"eq", IS_COMPARED + TC_EQ},
    {"==", IS_COMPARED + TC_EQ},
    {"equalto", IS_COMPARED + TC_EQ},
    {"ne", IS_COMPARED + TC_NE},
    {"!=", IS_COMPARED + TC_NE},
    {"lt", IS_COMPARED + TC_LT},
    {"<", IS_COMPARED + TC_LT},
    {"lessthan", IS_COMPARED + TC_LT},
    {"le", IS_COMPARED + TC_LE},
    {"<=", IS_COMPARED + TC_LE},
    {"gt", IS_COMPARED + TC_GT},
    {">", IS_COMPARED + TC_GT},
    {"greaterthan", IS_COMPARED + TC_GT},
    {"ge", IS_COMPARED + TC_GE},
    {">=", IS_COMPARED + TC_GE},
};

int tc_test_find(const char *name, int64_t n)
{
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++) {
        if (tv_is_str(tv_str(name, n), TESTS[i].name))
            return (int)i;
    }
    return -1;
}

/* Is the remainder of v by a number equal to `want`? */
static enum err check_rest(struct tv_mem *m, struct tv v, struct tv by, int64_t want, int *out)
{
    struct tv rest;
    if (v.kind == TV_UNDEFINED || by.kind == TV_UNDEFINED)
        return tv_fail_undefined(m, v.kind == TV_UNDEFINED ? v : by);
    TRY(tc_binary(m, '%', v, by, &rest));
    return tv_equal(m, rest, tv_int(want), out);
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
    default: // IS_ITERABLE
        return v.kind == TV_UNDEFINED || v.kind == TV_STR || v.kind == TV_LIST ||
               v.kind == TV_DICT || v.kind == TV_LOOP;
    }
}

enum err tc_test(struct tv_mem *m, int id, struct tv in, const struct tc_args *args, int *out)
{
    int check = TESTS[id].check, wants = check >= IS_DIVISIBLE;
    if (args->n_pos != wants || args->n_named)
        return tv_fail(m, "the test %s takes %s", TESTS[id].name,
                       wants ? "one argument" : "no arguments");
    if (check >= IS_COMPARED)
        return tc_compare(m, (enum tc_compare)(check - IS_COMPARED), in, args->pos[0], out);
    if (check == IS_DIVISIBLE)
        return check_rest(m, in, args->pos[0], 0, out);
    if (check == IS_ODD || check == IS_EVEN)
        return check_rest(m, in, tv_int(2), check == IS_ODD, out);
    *out = check_kind((enum check)check, in);
    return OK;
}
