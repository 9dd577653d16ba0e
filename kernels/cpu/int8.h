/* kernels/cpu/int8.h - matmuls under --compute int8 over q8 and q4 panels: names, and the layout of
 * the packed inputs, which defines their scratch.
 *
 * A group of 64 inputs becomes codes q = round(x * 127 / max|x|) and one scale (rules:
 * kernels/ops.h). Inputs are packed per tile of rows, per group along k, in 32-bit words with the
 * rows of the tile contiguous: first the sum of the codes (for q8 an integer times -128, the bias
 * of the weight codes; for q4 f32 times the scale), then the scale, then 16 quads of codes (four
 * bytes; for AVX2 without AVX-VNNI two words of two 16-bit codes). AMX reads the 16 quads of a row
 * as one row of a tile: per tile of rows and group along k [rows][16], and behind all of them the
 * sums and scales, per tile and group [2][rows]. */
#ifndef KERNELS_CPU_INT8_H
#define KERNELS_CPU_INT8_H

#include "kernels/dtype_own.h"
#include "kernels/ops.h"

#define INT8_PACK_ALONE 32768 // below so many inputs, waking the threads costs more than packing

void cpu_matmul_int8_portable(const struct ops *ops, const struct matmul_args *args);
void cpu_matmul_int8_avx2(const struct ops *ops, const struct matmul_args *args);
void cpu_matmul_int8_avxvnni(const struct ops *ops, const struct matmul_args *args);
void cpu_matmul_int8_avx512(const struct ops *ops, const struct matmul_args *args);
void cpu_matmul_int8_amx(const struct ops *ops, const struct matmul_args *args);

static inline int int8_multiplies(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_Q4;
}

/* ISA_AVX512F: of AVX2's code, which runs where there is no VNNI; enough for both. */
static inline int int8_quad_words(enum isa isa)
{
    return isa == ISA_AVX2 || isa == ISA_AVX512F ? 2 : 1;
}

/* Words of one row of packed inputs; on AMX without its sums and scales. */
static inline int64_t int8_row_words(enum isa isa, int64_t k)
{
    const int head = isa == ISA_AMX ? 0 : 2;
    return ceil_div(k, OWN_GROUP) * (head + OWN_QUADS * int8_quad_words(isa));
}

static inline int64_t int8_packed_bytes(enum isa isa, int64_t m, int64_t k)
{
    const int64_t heads = isa == ISA_AMX ? ceil_div(k, OWN_GROUP) * 2 : 0;
    return round_up(m * (int8_row_words(isa, k) + heads) * 4, 64);
}

/* AMX decodes the codes of a panel, per thread. */
static inline int64_t int8_decoded_bytes(enum isa isa, int64_t k)
{
    return isa == ISA_AMX ? round_up(k, OWN_GROUP) * PANEL_ROWS : 0;
}

static inline int64_t int8_scratch_bytes(enum isa isa, int64_t m, int64_t k, int n_threads)
{
    return int8_packed_bytes(isa, m, k) + int8_decoded_bytes(isa, k) * n_threads;
}

#endif
