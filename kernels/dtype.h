/* kernels/dtype.h - number formats: sizes, rows, and the 32-row panels that matmuls read.
 *
 * Owns: the table of formats. Refuses: arithmetic on more than one row or panel.
 * A new weight format is one line of the table and a decoder.
 *
 * Row: k numbers of one output (one row of W[n, k]), blocks in ascending k, as in GGUF and numpy.
 * Panel: 32 consecutive rows (missing rows are zero) in the order in which kernels read them:
 *   bf16           [k_even / 2][32][2]   pairs of k interleaved, k_even = k rounded up to 2
 *   f32, f16       [k][32]
 *   blocks         one column per block along k (kernels/dtype_columns.h), padded to 64 bytes;
 *                  iq1_*, iq2_*, iq3_*: [16-bit words of a row][32] (kernels/dtype_grid.h)
 *                  tq1_0: row after row
 *   q8, q4, bf12   see kernels/dtype_own.h; a row of bf12 is a row of bf16
 *   nf4_s8         see kernels/dtype_nf4.h
 * Decoded panels are bf16 pairs or f32 (the first two layouts), for any format. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include "kernels/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PANEL_ROWS 32

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q4_0, // GGUF blocks, decoded bit-exactly as ggml defines them
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_IQ4_NL,
    DTYPE_MXFP4, // also of safetensors, reordered as in GGUF
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_IQ4_XS,
    DTYPE_TQ2_0,
    DTYPE_TQ1_0,
    DTYPE_IQ1_S,
    DTYPE_IQ1_M,
    DTYPE_IQ2_XXS,
    DTYPE_IQ2_XS,
    DTYPE_IQ2_S,
    DTYPE_IQ3_XXS,
    DTYPE_IQ3_S,
    DTYPE_G4_32, // GPTQ, AWQ: groups of 4-bit codes along k, each with an f16 scale and an integer
                 // zero
    DTYPE_G4_64,
    DTYPE_G4_128,
    DTYPE_F8_32, // FP8: groups of e4m3 along k, each with an f32 scale
    DTYPE_F8_128,
    DTYPE_NF4,    // bitsandbytes: groups of 64 4-bit table codes, each with an f32 scale
    DTYPE_NF4_S8, // the same with 8-bit scales (kernels/dtype_nf4.h)
    DTYPE_B4_32,  // compressed-tensors: groups of 4-bit codes less 8, each with a bf16 scale
    DTYPE_B4_128,
    DTYPE_NV4_64, // NVFP4: e2m1 codes, an e4m3 scale per 16, an f32 factor per block
    DTYPE_NV4_256,
    DTYPE_I8_32, // GPTQ, compressed-tensors: groups of bytes, each with an f32 scale and a zero
    DTYPE_I8_128,
    DTYPE_Q8,   // ours: groups of 64 along k (the last may be shorter): symmetric int8, f32 scale
    DTYPE_Q4,   // ours: groups of 64 along k: unsigned 4-bit codes, f16 scale and f16 minimum
    DTYPE_BF12, // ours: lossless 12-bit bf16, in panels only, and only where bf12_fits()
    N_DTYPES
};

struct dtype_info {
    const char *name;  // "q4_1", as the command line and inspect print it
    int block;         // numbers per block along k; 1 for plain formats
    int block_bytes;   // bytes of one block
    int partial_block; // 1: the last block of a row may hold fewer numbers (q8, q4), but keeps its
                       // size
    int ggml_id;       // type id in a GGUF file, -1 when GGUF has no such type
};

const struct dtype_info *dtype_info(enum dtype t);
/* Finds a format by name or by GGUF id; N_DTYPES when unknown. */
enum dtype dtype_by_name(const char *name);
enum dtype dtype_by_ggml_id(int ggml_id);

/* Bytes of one row of k numbers; -1 when k is no multiple of the block and partial_block is 0. */
int64_t dtype_row_bytes(enum dtype t, int64_t k);
/* Bytes of one 32-row panel, or of all panels of W[n, k] (multiples of 64). */
int64_t dtype_panel_bytes(enum dtype t, int64_t k);
int64_t dtype_panels_bytes(enum dtype t, int64_t n, int64_t k);

/* The format of the rows that panels of t are packed from: bf16 for bf12, else t. */
enum dtype dtype_of_rows(enum dtype t);

/* row -> f32[k], exact up to the f32 rounding that the format's definition implies. */
void dtype_decode_row(enum dtype t, const void *row, int64_t k, float *out);
/* f32[k] -> row, rounded to nearest even; CHECKs that t is f32, f16, bf16, bf12, q8 or q4. */
void dtype_encode_row(enum dtype t, const float *in, int64_t k, void *row);

/* 1 when these 32 bf16 rows (NULL = zeros) fit a panel of bf12: at most 1 of 256 numbers has an
 * exponent outside the panel's 15 most frequent ones. */
int bf12_fits(const void *const rows[PANEL_ROWS], int64_t k);
/* Packs 32 rows (each in format t, NULL = zeros) into one panel of format t. CHECKs bf12_fits(). */
void panel_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, void *panel);
/* Decodes columns k0 <= k < k1 (k0 even and on a block boundary; k1 likewise or = k) of a panel.
 * bf16: out [(k1 - k0 + 1) / 2][32][2], rounded to nearest even from the exact f32 value;
 * f32: out [k1 - k0][32]. */
void panel_decode_bf16(enum dtype t, const void *panel, int64_t k, int64_t k0, int64_t k1,
                       uint16_t *out);
void panel_decode_f32(enum dtype t, const void *panel, int64_t k, int64_t k0, int64_t k1,
                      float *out);

union f32_bits {
    uint32_t u;
    float f;
};

/* Moves exponent and mantissa into place; adding 112 to the exponent makes a normal number an f32.
 * A subnormal is then 2^-14 too large; infinity and NaN need another 112. Masks and signed
 * comparisons instead of branches let gcc convert four numbers at a time with SSE2. */
static inline float f16_to_f32(uint16_t h)
{
    const int32_t rest = (h & 0x7fff) << 13;
    const int32_t is_tiny = -(rest < 1 << 23), is_special = -(rest >= 31 << 23);
    const int32_t normal = rest + (112 << 23) + (is_special & 112 << 23);
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    union f32_bits tiny, x;
    tiny.u = (uint32_t)(rest + (113 << 23));
    tiny.f -= 0x1p-14f; // exact: the result has at most 10 bits
    x.u = (tiny.u & (uint32_t)is_tiny) | (uint32_t)(normal & ~is_tiny) | sign;
    return x.f;
}

/* Rounds to nearest even; NaN stays NaN, too large numbers become infinity. */
static inline uint16_t f32_to_f16(float f)
{
    union f32_bits x, tiny;
    x.f = f;
    const uint16_t sign = (uint16_t)(x.u >> 16 & 0x8000);
    x.u &= 0x7fffffffu;
    if (x.u > 0x7f800000u) // NaN: quiet, with the upper bits of its payload
        return (uint16_t)(sign | 0x7e00 | (x.u >> 13 & 0x3ff));
    if (x.u >= 143u << 23) // 65536 and above
        return (uint16_t)(sign | 0x7c00);
    if (x.u < 113u << 23) { // below 2^-14: 0.5 + x rounds x to a multiple of 2^-24
        tiny.f = x.f + 0.5f;
        return (uint16_t)(sign | (tiny.u - (126u << 23)));
    }
    x.u += 0xfff + (x.u >> 13 & 1); // to nearest even; a carry into infinity is correct
    return (uint16_t)(sign | ((x.u - (112u << 23)) >> 13));
}

static inline float bf16_to_f32(uint16_t b)
{
    union f32_bits x;
    x.u = (uint32_t)b << 16;
    return x.f;
}

/* Rounds to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f)
{
    union f32_bits x;
    x.f = f;
    if ((x.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((x.u >> 16) | 0x40);
    return (uint16_t)((x.u + 0x7fff + ((x.u >> 16) & 1)) >> 16);
}

#ifdef __cplusplus
}
#endif

#endif
