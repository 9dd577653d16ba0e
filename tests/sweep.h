/* tests/sweep.h - how many cases of a sweep a run takes: $SLUICE_TEST_LEVEL says it to the binary.
 *
 * check: at least one case of every kind, a few minutes for all tests together.
 * full, night, or unset: every case; under the sanitizers each third of the sweeps over shapes,
 * plans and instruction sets, because their kernels take up to a hundred times as long there. */
#ifndef TESTS_SWEEP_H
#define TESTS_SWEEP_H

#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* The count or stride of this level. */
static inline int sweep(int check, int full)
{
    const char *level = getenv("SLUICE_TEST_LEVEL");
    return level && strcmp(level, "check") == 0 ? check : full;
}

/* A stride over shapes, plans or instruction sets. */
static inline int sweep_step(int check)
{
    return sweep(check, SANITIZED ? 3 : 1);
}

#endif
