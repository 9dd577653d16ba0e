/* kernels/cpu/decode.h - fast decoders from panels to words, per instruction set.
 *
 * Owns: one table per set, indexed by format. Refuses: layouts (kernels/dtype.h) and results other
 * than the portable decoder's: the same bits, except for the payload of a NaN.
 * To make a format faster: write its functions in a file compiled for the set
 * (kernels/cpu/decode*_avx512.c), declare them below the tables, and name them in the table's row
 * (decode_avx512.c). tests/decode_test.c compares every row with the portable decoder. */
#ifndef KERNELS_CPU_DECODE_H
#define KERNELS_CPU_DECODE_H

#include "kernels/dtype.h"

/* As panel_decode_bf16 and panel_decode_f32 (kernels/dtype.h), for one format. The caller has
 * checked the range; `out` is aligned to a cache line. */
typedef void decode_bf16_fn(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out);
typedef void decode_f32_fn(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out);

struct panel_decoder {
    decode_bf16_fn *bf16; // NULL: the portable decoder
    decode_f32_fn *f32;   // NULL: the portable decoder
};

extern const struct panel_decoder cpu_decoders_portable[N_DTYPES];
extern const struct panel_decoder cpu_decoders_avx2[N_DTYPES];
extern const struct panel_decoder cpu_decoders_avx512[N_DTYPES];
#define cpu_decoders_avx512f cpu_decoders_avx2 // f32 words, too

static inline void cpu_decode_bf16(const struct panel_decoder table[N_DTYPES], enum dtype t,
                                   const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                                   uint16_t *out)
{
    if (table[t].bf16)
        table[t].bf16(panel, k, k0, k1, out);
    else
        panel_decode_bf16(t, panel, k, k0, k1, out);
}

static inline void cpu_decode_f32(const struct panel_decoder table[N_DTYPES], enum dtype t,
                                  const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                                  float *out)
{
    if (table[t].f32)
        table[t].f32(panel, k, k0, k1, out);
    else
        panel_decode_f32(t, panel, k, k0, k1, out);
}

#endif
