/* tests/skip.h - a test that cannot run here says why; check.py accepts the reasons it lists. */
#ifndef TESTS_SKIP_H
#define TESTS_SKIP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define skip_because(...)                                                                          \
    do {                                                                                           \
        printf("\nSKIP " __VA_ARGS__);                                                             \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
        skip();                                                                                    \
    } while (0)

#endif
