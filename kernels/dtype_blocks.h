/* kernels/dtype_blocks.h - the block formats: decodes and encodes n numbers of consecutive blocks.
 *
 * Owns: the byte layout of every block. Refuses: rows, panels, argument checks (kernels/dtype.c).
 * Calls start on a block boundary; n is a multiple of the block, except that the last block of q8
 * and q4 may hold fewer numbers (its size is the same, the rest is zero). Blocks need no alignment.
 * Decoders do the float operations of the format's definition in its order: the bits are those of
 * ggml's reference dequantisers. */
#ifndef KERNELS_DTYPE_BLOCKS_H
#define KERNELS_DTYPE_BLOCKS_H

#include <stdint.h>

/* Decoders are compiled for several vector widths; the loader picks one. All give the same bits,
 * since every product and sum is rounded (-ffp-contract=off). */
#ifdef __x86_64__
#define DTYPE_CLONES                                                                               \
    __attribute__((target_clones("default", "avx2", "arch=x86-64-v4"), optimize("O3")))
#else
#define DTYPE_CLONES
#endif

#define DTYPE_GROUP 64 // numbers per group of q8 and q4

void blocks_decode_q4_0(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q4_1(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q5_0(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q5_1(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q8_0(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq4_nl(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_mxfp4(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q2_k(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q3_k(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q4_k(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q5_k(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_q6_k(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq4_xs(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_tq2_0(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_tq1_0(const uint8_t *blocks, int64_t n, float *restrict out);
/* kernels/dtype_grid.c */
void blocks_decode_iq1_s(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq1_m(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq2_xxs(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq2_xs(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq2_s(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq3_xxs(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_iq3_s(const uint8_t *blocks, int64_t n, float *restrict out);

/* Formats of safetensors checkpoints, in sluice's own byte order. 4-bit codes of a group: low
 * halves of the bytes hold the first half of the numbers, high halves the second.
 * g4: f16 scale, u8 zero, codes: number = scale * (code - zero).
 * f8: f32 scale, e4m3 bytes: number = byte * scale.
 * nf4: f32 scale, codes: number = table[code] * scale.
 * b4: bf16 scale, codes: number = scale * (code - 8).
 * i8: f32 scale, u8 zero, bytes: number = scale * (byte - zero).
 * nv4: f32 factor, e4m3 scale per 16 numbers, codes: number = e2m1[code] * e4m3_scaled(scale,
 * factor). */
void blocks_decode_g4_32(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_g4_64(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_g4_128(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_f8_32(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_f8_128(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_nf4(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_nf4_s8(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_b4_32(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_b4_128(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_nv4_64(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_nv4_256(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_i8_32(const uint8_t *blocks, int64_t n, float *restrict out);
void blocks_decode_i8_128(const uint8_t *blocks, int64_t n, float *restrict out);

/* q8: f32 scale, 64 int8: number = q * scale. */
void blocks_decode_q8(const uint8_t *blocks, int64_t n, float *restrict out);
/* q4: f16 scale, f16 minimum, 32 bytes: numbers 0..31 in the low halves of the bytes, 32..63 in the
 * high ones: number = q * scale + minimum. */
void blocks_decode_q4(const uint8_t *blocks, int64_t n, float *restrict out);

/* Nearest code, ties to even. A group with a NaN, an infinity or (q4) a number beyond f16 decodes
 * to NaN throughout, so that bad weights stay visible. */
void blocks_encode_q8(const float *in, int64_t n, uint8_t *blocks);
void blocks_encode_q4(const float *in, int64_t n, uint8_t *blocks);

#endif
