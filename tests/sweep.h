/* tests/sweep.h - how much of a sweep over shapes, plans or instruction sets a build takes.
 *
 * All of it as users have it; under the sanitizers each third case, since registers that live on a
 * checked stack are a hundred times slower, and a touch beyond the end needs shapes, not every
 * combination. */
#ifndef TESTS_SWEEP_H
#define TESTS_SWEEP_H

#ifdef __SANITIZE_ADDRESS__
#define SWEEP_STEP 3
#else
#define SWEEP_STEP 1
#endif

#endif
