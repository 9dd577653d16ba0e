/* tests/errors_test.c - failed rows in groups: what is one group, what its message says, and that
 * memory is bounded. */
#include "engine/job/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void add(struct job_errors *e, const char *code, const char *message, int64_t line)
{
    struct row_error error = {0};
    snprintf(error.code, sizeof error.code, "%s", code);
    snprintf(error.message, sizeof error.message, "%s", message);
    errors_add(e, &error, line);
}

static void values_fold(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"a 700 b 512", "a 90 b 512", "a ... b 512"},
        {"m[0].c[12] bad", "m[3].c[12] bad", "m[...].c[12] bad"},
        {"id 'a': x", "id 'b\"c': x", "id ...: x"},
        {"id 'a'", "id 7", "id ..."},
        {"1", "22", "..."},
        {"q4 and the model's 3", "q4 and the model's 4", "q4 and the model's ..."},
        {"ends in 'cut", "ends in 'off", "ends in ..."},
        {"a ... b", "a ... b", "a ... b"},
        {"", "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job_errors e = {0};
        add(&e, "c", cases[i][0], 1);
        add(&e, "c", cases[i][1], 2);
        add(&e, "c", cases[i][1], 3); // the folded message takes more rows
        assert_int_equal(e.n_kinds, 1);
        assert_int_equal(e.kinds[0].n, 3);
        assert_string_equal(e.kinds[0].error.message, cases[i][2]);
    }
}

static void words_do_not_fold(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"field \"tools\" is", "field \"n\" is"},
        {"q4 is", "q8 is"},
        {"has 5", "has 5 rows"},
        {"has 5 rows", "has 5"},
        {"a", ""},
        {"has x", "has 5"},
        {"the model's 'a' b", "the model's 'a' c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job_errors e = {0};
        add(&e, "c", cases[i][0], 1);
        add(&e, "c", cases[i][1], 2);
        assert_int_equal(e.n_kinds, 2);
        assert_string_equal(e.kinds[0].error.message, cases[i][0]);
    }
    struct job_errors e = {0};
    add(&e, "a", "same", 1);
    add(&e, "b", "same", 2);
    struct row_error error = {.code = "a", .message = "same", .field = "tools"};
    errors_add(&e, &error, 3);
    assert_int_equal(e.n_kinds, 3);
    assert_int_equal(e.n_codes, 2);
}

/* Messages are as long as they may be, and folding makes some longer. */
static void long_messages(void **state)
{
    (void)state;
    struct job_errors e = {0};
    char a[sizeof e.kinds[0].error.message], b[sizeof a];
    for (size_t i = 0; i < sizeof a; i++) {
        a[i] = i % 2 ? ' ' : '1';
        b[i] = i % 2 ? ' ' : '2';
    }
    a[sizeof a - 1] = b[sizeof b - 1] = 0;
    add(&e, "c", a, 1);
    add(&e, "c", b, 2);
    assert_int_equal(e.n_kinds, 2);
    assert_string_equal(e.kinds[0].error.message, a);
}

static void first_lines(void **state)
{
    (void)state;
    static const int64_t lines[] = {90, 4, 30, 8, 7, 2, 100}, want[] = {2, 4, 7, 8, 30};
    struct job_errors e = {0};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        add(&e, "c", "m", lines[i]);
    assert_int_equal(e.kinds[0].n, 7);
    assert_int_equal(e.kinds[0].n_lines, JOB_ERROR_LINES);
    assert_memory_equal(e.kinds[0].lines, want, sizeof want);
}

static void kinds_are_bounded(void **state)
{
    (void)state;
    struct job_errors e = {0};
    for (int i = 0; i < 3 * JOB_ERROR_KINDS; i++) {
        char message[32];
        snprintf(message, sizeof message, "field \"x%d\"", i);
        add(&e, "c", message, i + 1);
    }
    add(&e, "c", "field \"x0\"", 1000);
    assert_int_equal(e.n_kinds, JOB_ERROR_KINDS);
    assert_int_equal(e.kinds[0].n, 2);
    assert_int_equal(e.codes[0].n, 3 * JOB_ERROR_KINDS + 1);
    assert_int_equal(errors_ungrouped(&e), 2 * JOB_ERROR_KINDS);
    for (int i = 0; i < 3 * JOB_ERROR_CODES; i++) {
        char code[32];
        snprintf(code, sizeof code, "code%d", i);
        add(&e, code, "m", 1);
    }
    assert_int_equal(e.n_codes, JOB_ERROR_CODES);
}

/* Two shards' manifests, put together. */
static void in_files(void **state)
{
    (void)state;
    struct job_errors e = {0}, both = {0};
    json_t *root = json_object();
    add(&e, "a", "has 5", 3);
    add(&e, "a", "has 6", 9);
    add(&e, "b", "cut \xe2\x82", 4); // within a character
    errors_put(&e, root);
    errors_take(&both, root);
    errors_take(&both, root);
    assert_int_equal(both.n_kinds, 2);
    assert_int_equal(both.kinds[0].n, 4);
    assert_string_equal(both.kinds[0].error.message, "has ...");
    assert_string_equal(both.kinds[1].error.message, "cut ");
    assert_int_equal(both.codes[0].n, 4);
    assert_int_equal(both.kinds[0].lines[1], 3);
    json_decref(root);

    /* of an older sluice: codes only */
    struct job_errors older = {0};
    root = json_pack("{s{si}}", "errors", "a", 7);
    errors_take(&older, root);
    assert_int_equal(errors_ungrouped(&older), 7);
    json_decref(root);
}

static void in_rows(void **state)
{
    (void)state;
    static const char line[] = "....{\"error\":{\"code\":\"c\",\"message\":\"m 1\",\"param\":\"n\","
                               "\"line\":12}}\n";
    struct job_errors e = {0};
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(line, 1, sizeof line - 1, f), sizeof line - 1);
    fflush(f);
    int64_t n = (int64_t)sizeof line - 1 - 4;
    assert_int_equal(errors_add_row(&e, fileno(f), 4, n), OK);
    assert_int_equal(e.n_kinds, 1);
    assert_string_equal(e.kinds[0].error.field, "n");
    assert_int_equal(e.kinds[0].lines[0], 12);
    assert_int_equal(errors_add_row(&e, fileno(f), 4, n - 3), OK); // no JSON
    assert_int_equal(errors_add_row(&e, fileno(f), 5, n), OK);     // behind the end
    assert_int_equal(errors_add_row(&e, fileno(f), 4, (int64_t)1 << 40), OK);
    assert_int_equal(e.codes[0].n, 1);
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_fold),       cmocka_unit_test(words_do_not_fold),
        cmocka_unit_test(long_messages),     cmocka_unit_test(first_lines),
        cmocka_unit_test(kinds_are_bounded), cmocka_unit_test(in_files),
        cmocka_unit_test(in_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
