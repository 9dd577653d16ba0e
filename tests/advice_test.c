/* tests/advice_test.c - what a run says of int8, and when it keeps quiet. */
#include "engine/api/advice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void int8_is_told_where_it_pays(void **state)
{
    (void)state;
    char text[256] = "";
    assert_int_equal(advice_int8_text(100e9, 149e9, 1, text, sizeof text), 0);
    assert_int_equal(advice_int8_text(0, 149e9, 1, text, sizeof text), 0);
    assert_true(advice_int8_text(100e9, 310e9, 1, text, sizeof text) > 0);
    assert_non_null(strstr(text, "3.1 x"));
    assert_non_null(strstr(text, "(--compute int8)"));
    assert_non_null(strstr(text, "perplexity"));
    assert_true(advice_int8_text(100e9, 310e9, 0, text, sizeof text) > 0);
    assert_non_null(strstr(text, "(--compute int8 --weights q8)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_is_told_where_it_pays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
