/* engine/model/containers/quantized_impl.h - shared by quantized*.c only. */
#ifndef ENGINE_MODEL_CONTAINERS_QUANTIZED_IMPL_H
#define ENGINE_MODEL_CONTAINERS_QUANTIZED_IMPL_H

#include "engine/model/containers/quantized.h"

#define QUANTIZED_NAME_BYTES 512

enum quantized_method {
    METHOD_GPTQ,
    METHOD_AWQ,
    METHOD_FP8,
    METHOD_NF4,
    METHOD_MXFP4,
    METHOD_COMPRESSED, // of a checkpoint: its matrices are of the methods below, FP8 and MXFP4
    METHOD_PACKED,
    METHOD_NVFP4,
};

/* One matrix. */
struct quantized_tensor {
    struct source_tensor t; // as a family sees it; name is owned, file is -1
    enum quantized_method method;
    const struct source_tensor *codes, *scales; // borrowed from hf
    const struct source_tensor *zeros;          // likewise; NULL: none
    const struct source_tensor *order; // gptq: group of each number along k; NULL: ascending
    enum dtype coded;                  // with an order: the format of the band's rows
    int64_t scale_n, scale_k;          // rows and numbers along k that share a scale
    /* nf4 with quantised scales: map[code] * nested[i / 256] + offset. */
    const struct source_tensor *nested; // NULL: scales are f32
    float *map;                         // owned: [256]; NULL: nf4_scale_number()'s table
    float offset;
    float factor; // nvfp4: see e4m3_scaled()
};

struct quantized {
    const struct hf *hf;         // borrowed
    const struct values *config; // borrowed from hf: the file that says how it is quantised
    const char *section;         // the object of that file
    enum quantized_method method;
    int64_t block_n, block_k;         // fp8: block that shares a scale
    int bits;                         // gptq: of a code
    int order_told;                   // 1: what an order costs has been said
    int zero_add;                     // gptq: added to the file's zeros
    int biases_count;                 // 1: some bias of a matrix is not 0
    struct quantized_tensor *tensors; // owned: sorted by name
    int64_t n_tensors, tensors_cap;
    struct { // cached rows [first, first + n) of gptq and awq, whose files store columns
        const struct quantized_tensor *of;
        int64_t first, n;
        uint8_t *rows;  // owned
        int32_t *order; // owned: [k], where the matrix has one
    } band;
};

/* The method of q->section, and what the files of a method leave open. */
enum err quantized_config(struct quantized *q);

/* STEM + tail, or NULL. */
const struct source_tensor *quantized_beside(const struct quantized *q, const char *stem,
                                             const char *tail);
/* NAME without its tail; NULL: another tail, or too long. */
const char *quantized_stem(const struct source_tensor *t, const char *tail,
                           char stem[QUANTIZED_NAME_BYTES]);
int quantized_is(const struct quantized *q, const struct source_tensor *t, const char *format);
/* The tensor STEM + tail, which must have this format ("": any plain numbers) and shape. */
enum err quantized_need(const struct quantized *q, const char *stem, const char *tail,
                        const char *format, int64_t n, int64_t k, const struct source_tensor **out);
/* Checks STEM + tail, the group of each number along k; *order is NULL if there is none, or if
 * groups of `group` numbers stand in the order of k. */
enum err quantized_order(const struct quantized *q, const char *stem, const char *tail, int64_t k,
                         int64_t group, const struct source_tensor **order);
/* g4_* or i8_* for groups of this length along k: the largest whose groups divide them; N_DTYPES:
 * none. */
enum dtype quantized_with_zeros(int bits, int64_t group);

/* Adds the matrix of t to the list, if t is its FP8 codes. */
enum err quantized_fp8_add(struct quantized *q, const struct source_tensor *t);
/* Likewise for each kind of codes of compressed-tensors (quantized_compressed.c). */
enum err quantized_compressed_add(struct quantized *q, const struct source_tensor *t);

/* Rows [first, first + n) in the format of q->t. */
enum err quantized_rows(struct quantized *q, const struct quantized_tensor *t, int64_t first,
                        int64_t n, uint8_t *out);

/* Adds the matrix of t to the list, if t is nf4 codes (quantized_nf4.c). */
enum err quantized_nf4_add(struct quantized *q, const struct source_tensor *t);
/* Adds a complete matrix to the list: sets name (STEM + tail) and bytes of `as`. */
enum err quantized_keep(struct quantized *q, struct quantized_tensor as, const char *stem,
                        const char *tail);
/* The scale codes of four groups from `first` on, their factor and offset: the head of a block of
 * nf4_s8. */
enum err quantized_nf4_head(const struct quantized *q, const struct quantized_tensor *t,
                            int64_t first, uint8_t out[12]);
/* The scales of n groups from `first` on of an nf4 matrix. */
enum err quantized_nf4_scales(const struct quantized *q, const struct quantized_tensor *t,
                              int64_t first, int64_t n, float *out);

/* "DIR: tensor NAME: ...", ERR_INPUT. */
enum err quantized_fail(const struct quantized *q, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
