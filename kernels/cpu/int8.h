/* kernels/cpu/int8.h - matmuls under --compute int8 over q8 and q4 panels: names, and the layout of
 * the packed inputs that their scratch is sized by.
 *
 * A group of 64 inputs becomes codes q = round(x * 127 / max|x|) and one scale; ops.h has the
 * rules. They are packed per tile of rows, per group along k, as words of 32 bits with the rows
 * side by side: first the sum of the codes as the kernel wants it (of q8 a whole number times -128,
 * the bias of the weights' codes; of q4 f32 times the scale), then the scale, then 16 quads of
 * codes (four bytes, or, for AVX2, two words of twice 16 bits). */
#ifndef KERNELS_CPU_INT8_H
#define KERNELS_CPU_INT8_H

#include "kernels/dtype_own.h"
#include "kernels/ops.h"

#define INT8_SPLIT_ROWS 32    // rows per thread from which threads split rows instead of panels
#define INT8_PACK_ALONE 32768 // inputs below which waking the threads costs more than packing

void cpu_matmul_int8_portable(const struct ops *ops, const struct matmul_args *args);
void cpu_matmul_int8_avx2(const struct ops *ops, const struct matmul_args *args);
void cpu_matmul_int8_avx512(const struct ops *ops, const struct matmul_args *args);

static inline int int8_multiplies(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_Q4;
}

static inline int int8_quad_words(enum isa isa)
{
    return isa == ISA_AVX2 ? 2 : 1;
}

/* Words of the packed inputs of one row. */
static inline int64_t int8_row_words(enum isa isa, int64_t k)
{
    return ceil_div(k, OWN_GROUP) * (2 + OWN_QUADS * int8_quad_words(isa));
}

static inline int64_t int8_scratch_bytes(enum isa isa, int64_t m, int64_t k)
{
    return round_up(m * int8_row_words(isa, k) * 4, 64);
}

#endif
