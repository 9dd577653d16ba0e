/* engine/model/dummy_numbers.h - the pseudo-random weights of dummy models, as bf16.
 *
 * Owns: the generator. Refuses: tensors: a tensor is a 64-bit key. Number (row, column) is a
 * function of key, row, column and k alone, so any part can be generated in any order and layout.
 * Note: no libm is used, so every machine gives the same bits. The deviation depends on k, as in
 * trained models: with one deviation for all, layers of a small model would add next to nothing to
 * the embedding, and its text would hardly depend on what it attended to. */
#ifndef ENGINE_MODEL_DUMMY_NUMBERS_H
#define ENGINE_MODEL_DUMMY_NUMBERS_H

#include "kernels/dtype.h"

/* Deviation in the table. Rows of k numbers are scaled by the power of two that brings the
 * deviation nearest to 1 / sqrt(k). */
#define DUMMY_STD 0.02
/* Changes whenever the numbers change; part of packs made from them, and of their fingerprint. */
#define DUMMY_GENERATION 3

struct dummy_numbers {
    uint16_t normals[65536]; // bf16: normal quantiles of (i + 1/2) / 65536, deviation DUMMY_STD
};

void dummy_numbers_init(struct dummy_numbers *d);
/* Numbers [row][0 .. k) of a tensor. */
void dummy_row(const struct dummy_numbers *d, uint64_t key, int64_t row, int64_t k, uint16_t *out);
/* Rows [first, first + n), n <= 32, as one bf16 panel (see kernels/dtype.h; missing rows are 0):
 * the result of panel_pack() on dummy_row(), in one pass over the memory. */
void dummy_panel(const struct dummy_numbers *d, uint64_t key, int64_t first, int n, int64_t k,
                 void *panel);

#endif
