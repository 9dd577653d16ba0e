/* engine/model/containers/quantized.h - matrices that a safetensors checkpoint stores as separate
 * codes and scales, as ordinary tensors.
 *
 * Owns: the known methods of quantization_config (GPTQ, AWQ, FP8, bitsandbytes, MXFP4,
 * compressed-tensors, modelopt), the list of their matrices under the unquantised names, and the
 * conversion of the files' tensors to rows in a format of kernels/dtype.h. Numbers are those that
 * the reference computes in f32; nothing is rounded, and numbers without an exact form are refused.
 * Refuses: model families.
 *
 * Tensors of each method and the rows' format (n outputs, k inputs):
 *   gptq        NAME.qweight i32 [k / 8, n], .qzeros [groups, n / 8], .scales [groups, n], .g_idx;
 *               of 8 bits likewise, four a word: i8_*; groups not in the order of k: f32
 *   awq         NAME.qweight i32 [k, n / 8], .qzeros [groups, n / 8], .scales [groups, n]   g4_*
 *   fp8, fbgemm_fp8, compressed-tensors
 *               NAME.weight e4m3 [n, k], NAME.weight_scale or .weight_scale_inv             f8_*
 *   compressed-tensors
 *               NAME.weight_packed i32 [n, k / 8], .weight_scale [n, groups], .weight_shape,
 *               .weight_zero_point i32 [n / 8, groups] if asymmetric           b4_*, q4_0, g4_*
 *               the same of 8 bits, four a word, or NAME.weight i8 [n, k],
 *               .weight_zero_point i8 [n, groups]                                           i8_*
 *               NAME.weight_packed u8 [n, k / 2], .weight_scale e4m3 [n, k / 16],
 *               .weight_global_scale; modelopt: NAME.weight, .weight_scale, .weight_scale_2  nv4_*
 *               NAME.weight_packed u8 [n, k / 2], .weight_scale u8 [n, k / 32]            mxfp4
 *   bitsandbytes  NAME.weight u8 [n * k / 2, 1], .absmax, .quant_map, .quant_state...       nf4
 *   mxfp4       NAME_blocks u8 [.., n, k / 32, 16], NAME_scales u8 [.., n, k / 32]
 * mxfp4 */
#ifndef ENGINE_MODEL_CONTAINERS_QUANTIZED_H
#define ENGINE_MODEL_CONTAINERS_QUANTIZED_H

#include "engine/model/containers/hf.h"

struct quantized; // opaque: lists and a cache of rows

/* *out is NULL if neither config.json nor hf_quant_config.json says how the model is quantised.
 * ERR_INPUT names the file and the key or tensor that is unsupported or inconsistent. hf is
 * borrowed. */
enum err quantized_open(struct quantized **out, const struct hf *hf);
void quantized_close(struct quantized *q); // accepts NULL

/* The matrix of this name; NULL if there is none, or if q is NULL. */
const struct source_tensor *quantized_find(const struct quantized *q, const char *name);
/* 1: t came from quantized_find(). */
int quantized_has(const struct source_tensor *t);
/* 1: the tensor is no weight by itself but a part: codes or scales of a matrix, a scale of
 * activations or of KV, or a bias of zeros (old GPTQ checkpoints). */
int quantized_is_part(const struct quantized *q, const char *name);
/* Reads bytes [offset, offset + n_bytes) of the rows, whole rows only. ERR_INPUT: scales without an
 * exact form; else as file_read. */
enum err quantized_read(struct quantized *q, const struct source_tensor *t, int64_t offset,
                        int64_t n_bytes, void *buf);

#endif
