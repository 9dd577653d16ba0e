/* tests/tiles_exact_test.c - exact_test.c on tile instructions in C (tests/tiles.h), so that CPUs
 * without AMX run the AMX kernels, too. */
#include "tests/exact_test.c"
