/* kernels/cpu/decode_portable.c - see decode.h: every row is the portable decoder. */
#include "kernels/cpu/decode.h"

const struct panel_decoder cpu_decoders_portable[N_DTYPES] = {{0}};
