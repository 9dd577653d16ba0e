/* engine/model/containers/gguf_nvfp4.h - NVFP4 matrices of GGUF files as rows of nv4_*, which are
 * those of safetensors. For gguf*.c only.
 *
 * Owns: the file's blocks: of 64 numbers four e4m3 scales without sign, then four times 8 bytes of
 * codes, number i of 16 with number i + 8. The factor of a matrix is a tensor of its own. A tensor
 * of the file has dtype nv4_* and the bytes of such rows. Refuses: reading. */
#ifndef ENGINE_MODEL_CONTAINERS_GGUF_NVFP4_H
#define ENGINE_MODEL_CONTAINERS_GGUF_NVFP4_H

#include "engine/model/containers/source.h"

#define GGUF_NVFP4_ID 40

/* The format of rows of k numbers. */
enum dtype gguf_nvfp4_dtype(int64_t k);
int gguf_is_nvfp4(const struct source_tensor *t);
/* Bytes in the file of `n_bytes` of a tensor, whole rows; fewer in NVFP4. */
int64_t gguf_file_bytes(const struct source_tensor *t, int64_t n_bytes);
/* Makes a row of n_bytes of the file's blocks, which may lie in the same memory so far behind `row`
 * that the last of both end alike. Returns 0 where a scale is none: 0xff. */
int gguf_nvfp4_row(const struct source_tensor *t, float factor, const uint8_t *blocks,
                   int64_t n_bytes, uint8_t *row);

#endif
