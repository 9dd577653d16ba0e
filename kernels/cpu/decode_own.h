/* kernels/cpu/decode_own.h - decoders of q8, q4 and bf12 panels, per instruction set.
 *
 * Owns: the names. Arguments and results are those of panel_decode_bf16() and panel_decode_f32()
 * (kernels/dtype.h) for one format, with the portable decoder's bits (except for the payload of a
 * NaN). The caller has checked the range. */
#ifndef KERNELS_CPU_DECODE_OWN_H
#define KERNELS_CPU_DECODE_OWN_H

#include "kernels/dtype_own.h"

void decode_q8_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out);
void decode_q4_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out);
void decode_bf12_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                             uint16_t *out);
/* AVX-512 uses these for f32 words, too: its fast words are pairs of bf16. */
void decode_q8_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out);
void decode_q4_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out);
void decode_bf12_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out);

#endif
