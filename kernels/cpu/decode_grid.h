/* kernels/cpu/decode_grid.h - decoders of panels of grid formats, per instruction set.
 *
 * Owns: the names. Arguments and results are those of panel_decode_bf16() and panel_decode_f32()
 * (kernels/dtype.h) for one format, with the portable decoder's bits (except for the payload of a
 * NaN). The caller has checked the range. */
#ifndef KERNELS_CPU_DECODE_GRID_H
#define KERNELS_CPU_DECODE_GRID_H

#include "kernels/dtype_grid.h"

#define DECODE_GRID(NAME, name, ...)                                                               \
    void decode_##name##_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,         \
                                  float *out);                                                     \
    void decode_##name##_f32_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,       \
                                    float *out);                                                   \
    void decode_##name##_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,      \
                                     uint16_t *out);
GRID_FORMATS(DECODE_GRID)
#undef DECODE_GRID

#endif
