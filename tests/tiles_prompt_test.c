/* tests/tiles_prompt_test.c - prompt_test.c on tile instructions in C (tests/tiles.h), so that CPUs
 * without AMX run the AMX kernels, too. */
#include "tests/prompt_test.c"
