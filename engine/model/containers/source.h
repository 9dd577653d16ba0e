/* engine/model/containers/source.h - a model file as `pack` sees it: named values and named
 * tensors, in any file format.
 *
 * Owns: the common view. gguf.c and safetensors.c fill it, family_*.c reads it. Unused once a pack
 * exists. The reader has checked all names and sizes against the files. */
#ifndef ENGINE_MODEL_CONTAINERS_SOURCE_H
#define ENGINE_MODEL_CONTAINERS_SOURCE_H

#include "kernels/dtype.h"

#define SOURCE_DIMS_MAX  4
#define SOURCE_KEY_BYTES 200 // longest key of config.json that a family reads

struct source_tensor {
    const char *name; // owned by the source
    enum dtype dtype; // N_DTYPES: listed, but the format cannot be read
    int n_dims;
    int64_t dims[SOURCE_DIMS_MAX]; // slow to fast: a matrix is [n (outputs), k (inputs)]
    int file;                      // index into the source's files
    int64_t offset, n_bytes;       // within that file, checked
};

struct source {
    enum source_kind { SOURCE_GGUF, SOURCE_HF } kind;
    const char *path;            // as the user gave it, for messages
    void *impl;                  // owned: struct gguf or struct hf
    struct quantized *quantized; // owned: matrices of separate codes and scales, or NULL
    const struct source_tensor *tensors;
    int64_t n_tensors;
    const char *section; // object of config.json with the model's keys, if it describes several
                         // models; else NULL
};

/* Opens MODEL: a Hugging Face directory, or a (first) GGUF file. ERR_INPUT with one clear line. */
enum err source_open(struct source *s, const char *path);
void source_close(struct source *s);

/* NULL if there is none. A quantised matrix (separate codes and scales) is found by its unquantised
 * name and hides a tensor of that name; it is not among `tensors`, which lists the files' own. */
const struct source_tensor *source_find(const struct source *s, const char *name);
/* 1: one of `tensors` that is only a part of a quantised matrix. */
int source_is_part(const struct source *s, const struct source_tensor *t);
/* The format's name, also if dtype is N_DTYPES: "F8_E4M3", "q4_k". */
const char *source_format(const struct source *s, const struct source_tensor *t);
/* Reads bytes [offset, offset + n_bytes) of a tensor; of a quantised matrix whole rows only.
 * ERR_CORRUPT: the file is shorter than at open ("changed"); ERR_INPUT: dtype N_DTYPES. */
enum err source_read(const struct source *s, const struct source_tensor *t, int64_t offset,
                     int64_t n_bytes, void *buf);

/* Scalar metadata by key (GGUF key, or config.json member; nested members with dots). Checks type
 * and range: ERR_INPUT names the key. *found: 1 if the key exists (absent is OK). */
enum err source_int(const struct source *s, const char *key, int64_t min, int64_t max, int64_t *out,
                    int *found);
enum err source_float(const struct source *s, const char *key, double *out, int *found);
enum err source_bool(const struct source *s, const char *key, int *out, int *found);
/* The string is valid until source_close(). */
enum err source_str(const struct source *s, const char *key, const char **out, int64_t *n_bytes,
                    int *found);
/* A list of strings of config.json; a single string is a list of one. More than `capacity` is
 * ERR_INPUT. Never found in a GGUF file. */
enum err source_str_list(const struct source *s, const char *key, const char **out,
                         int64_t capacity, int64_t *n, int *found);
/* Likewise of integers in [min, max] and of numbers, and of a GGUF file's arrays, where a flag is 0
 * or 1. */
enum err source_int_list(const struct source *s, const char *key, int64_t min, int64_t max,
                         int64_t *out, int64_t capacity, int64_t *n, int *found);
enum err source_float_list(const struct source *s, const char *key, double *out, int64_t capacity,
                           int64_t *n, int *found);
/* 1: config.json has the key with value null, which may differ from leaving the key out. */
int source_null(const struct source *s, const char *key);
/* ERR_INPUT: an eos_token_id of config.json or generation_config.json is no id in [0, vocab). For
 * GGUF the tokenizer checks. */
enum err source_check_ends(const struct source *s, int64_t vocab);
/* A key of config.json with its section prefix: the key itself, or buf. */
const char *source_key(const struct source *s, const char *key, char *buf, int64_t buf_bytes);
/* The value at `key` as a number: a bool as 0 or 1, other types as NaN. */
void source_weigh(const struct source *s, const char *key, double *out, int *found);

#endif
