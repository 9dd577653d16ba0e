/* engine/model/containers/gguf.h - reads GGUF models, v2 and v3, little-endian, in one file or
 * split into parts.
 *
 * Owns: the open files, their headers in memory (a few MiB), the tensor directory over all parts.
 * Refuses: the meaning of keys (family_*.c), keeping tensor data. Nothing is mapped: tensors are
 * read with pread into the caller's memory.
 *
 * gguf_open() checks every name, size and offset against the files: type and block size, contiguous
 * tensors inside the data section, no duplicates, matching parts, and tokenizer arrays as long as
 * the vocabulary. Pointers and views are valid until gguf_close(). Not thread-safe, except
 * gguf_read(). */
#ifndef ENGINE_MODEL_CONTAINERS_GGUF_H
#define ENGINE_MODEL_CONTAINERS_GGUF_H

#include "engine/model/containers/source.h"

#include <string.h>

struct gguf; // opaque: hides the format's own types

/* path: the file, or the first part of a split model (the others are found beside it by name). *g
 * is NULL on error. ERR_INPUT: malformed file, ERR_CORRUPT: the file changed while reading, ERR_IO:
 * the disk failed, ERR_FIT: no memory. */
enum err gguf_open(struct gguf **g, const char *path);
void gguf_close(struct gguf *g); // accepts NULL

/* All parts' tensors, in file order. */
const struct source_tensor *gguf_tensors(const struct gguf *g, int64_t *n_tensors);
/* NULL if there is none. */
const struct source_tensor *gguf_find(const struct gguf *g, const char *name);
/* 1: a factor of an NVFP4 matrix, or of its inputs: NAME.scale, NAME.input_scale. */
int gguf_is_part(const struct gguf *g, const char *name);
/* As source_read(); the range must lie inside the tensor (CHECKed), and be whole rows of NVFP4. */
enum err gguf_read(const struct gguf *g, const struct source_tensor *t, int64_t offset,
                   int64_t n_bytes, void *buf);

/* Scalars by key, from the first part: as source_int() etc. in source.h. If the key is absent,
 * *found is 0 and *out unchanged. int accepts every integer type (not bool), float also f32 and f64
 * (finite), bool any nonzero byte as true; a str ends with NUL, which n_bytes does not count. */
enum err gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                  int *found);
enum err gguf_float(const struct gguf *g, const char *key, double *out, int *found);
enum err gguf_bool(const struct gguf *g, const char *key, int *out, int *found);
enum err gguf_str(const struct gguf *g, const char *key, const char **out, int64_t *n_bytes,
                  int *found);

/* Arrays by key, as views. Another element type is ERR_INPUT, an absent key is OK with *found 0.
 *
 *   struct gguf_strings s;
 *   TRY(gguf_str_array(g, "tokenizer.ggml.tokens", &s, &found));
 *   while ((text = gguf_strings_next(&s, &n_bytes)))  // s.n strings; without NUL at the end */
struct gguf_strings {
    int64_t n;           // strings in the array
    int64_t n_left;      // not yet returned
    const uint8_t *next; // borrowed: the file's header
};
enum err gguf_str_array(const struct gguf *g, const char *key, struct gguf_strings *out,
                        int *found);

static inline const char *gguf_strings_next(struct gguf_strings *s, int64_t *n_bytes)
{
    if (s->n_left == 0)
        return NULL;
    const char *text = (const char *)s->next + 8;
    memcpy(n_bytes, s->next, 8);
    s->next += 8 + *n_bytes;
    s->n_left--;
    return text;
}

/* As source_int_list() and source_float_list(). */
enum err gguf_int_list(const struct gguf *g, const char *key, int64_t min, int64_t max,
                       int64_t *out, int64_t capacity, int64_t *n, int *found);
enum err gguf_float_list(const struct gguf *g, const char *key, double *out, int64_t capacity,
                         int64_t *n, int *found);

/* Arrays of u8 or i8; borrowed like the views. */
enum err gguf_byte_array(const struct gguf *g, const char *key, const void **out, int64_t *n,
                         int *found);

struct gguf_numbers {
    int64_t n;
    const uint8_t *bytes; // borrowed: 4-byte numbers, not aligned
};
/* i32; an array of u32 is accepted if all values are below 2^31. */
enum err gguf_i32_array(const struct gguf *g, const char *key, struct gguf_numbers *out,
                        int *found);
enum err gguf_f32_array(const struct gguf *g, const char *key, struct gguf_numbers *out,
                        int *found);

static inline int32_t gguf_i32_at(const struct gguf_numbers *a, int64_t i)
{
    int32_t x;
    memcpy(&x, a->bytes + 4 * i, 4);
    return x;
}

static inline float gguf_f32_at(const struct gguf_numbers *a, int64_t i)
{
    float x;
    memcpy(&x, a->bytes + 4 * i, 4);
    return x;
}

#endif
