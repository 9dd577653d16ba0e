/* engine/model/containers/quantized_impl.h - what quantized.c lists and quantized_rows.c reads. */
#ifndef ENGINE_MODEL_CONTAINERS_QUANTIZED_IMPL_H
#define ENGINE_MODEL_CONTAINERS_QUANTIZED_IMPL_H

#include "engine/model/containers/quantized.h"

enum quantized_method { METHOD_GPTQ, METHOD_AWQ, METHOD_FP8, METHOD_NF4, METHOD_MXFP4 };

/* One matrix. */
struct quantized_tensor {
    struct source_tensor t; // as a family sees it; its name is owned; file is -1
    enum quantized_method method;
    const struct source_tensor *codes, *scales, *zeros; // borrowed: hf's; zeros of gptq, awq
    int64_t scale_n, scale_k; // rows and numbers along k that share a scale
    /* nf4 whose scales are codes themselves: map[code] * nested[i / 256] + offset. */
    const struct source_tensor *nested; // NULL: scales are f32
    float *map;                         // owned: [256]; NULL: the one of nf4_scale_number()
    float offset;
};

struct quantized {
    const struct hf *hf; // borrowed
    enum quantized_method method;
    int64_t block_n, block_k;         // fp8: of blocks of scales
    int zero_add;                     // gptq: what the file's zeros lack
    int biases_count;                 // 1: some bias of a matrix is not 0
    struct quantized_tensor *tensors; // owned: sorted by name
    int64_t n_tensors, tensors_cap;
    struct { // rows [first, first + n) of gptq and awq, whose files are in columns
        const struct quantized_tensor *of;
        int64_t first, n;
        uint8_t *rows; // owned
    } band;
};

/* Rows [first, first + n) in the format of q->t. */
enum err quantized_rows(struct quantized *q, const struct quantized_tensor *t, int64_t first,
                        int64_t n, uint8_t *out);

/* For the list: t, where it is codes of nf4 (quantized_nf4.c); a matrix that is complete. */
enum err quantized_nf4_add(struct quantized *q, const struct source_tensor *t);
/* Completes `as` by name (STEM + tail) and bytes. */
enum err quantized_keep(struct quantized *q, struct quantized_tensor as, const char *stem,
                        const char *tail);
/* The codes of the scales of four groups from `first` on, their factor and the offset: the head of
 * a block of nf4_s8. */
enum err quantized_nf4_head(const struct quantized *q, const struct quantized_tensor *t,
                            int64_t first, uint8_t out[12]);
/* The scales of n groups from `first` on of a matrix of nf4. */
enum err quantized_nf4_scales(const struct quantized *q, const struct quantized_tensor *t,
                              int64_t first, int64_t n, float *out);

/* "DIR: tensor NAME: ...", ERR_INPUT. */
enum err quantized_fail(const struct quantized *q, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
