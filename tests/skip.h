/* tests/skip.h - a test that cannot run here, or not in full, says why; check.py accepts the
 * reasons that it lists. */
#ifndef TESTS_SKIP_H
#define TESTS_SKIP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* Part of a test is left out: the line that check.py reads. */
#define skip_line(...) (printf("\nSKIP " __VA_ARGS__), printf("\n"), fflush(stdout))

/* The test ends here. */
#define skip_because(...)                                                                          \
    do {                                                                                           \
        skip_line(__VA_ARGS__);                                                                    \
        skip();                                                                                    \
    } while (0)

#endif
