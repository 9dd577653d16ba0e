/* tests/tiles_int8_test.c - int8_test.c on tile instructions in C (tests/tiles.h), so that CPUs
 * without AMX run the AMX kernels, too. */
#include "tests/int8_test.c"
