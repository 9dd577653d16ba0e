/* engine/model/containers/safetensors.h - the tensors of one or more safetensors files, as one list
 * with one index.
 *
 * Owns: the header of each file (every name, shape and byte range is checked against the file
 * before anything uses it), the open descriptors, the lookup by name. Refuses: what the files mean;
 * which files belong together is hf.c's business. Memory: per tensor about 110 bytes and its name.
 */
#ifndef ENGINE_MODEL_CONTAINERS_SAFETENSORS_H
#define ENGINE_MODEL_CONTAINERS_SAFETENSORS_H

#include "engine/data/file.h"
#include "engine/model/containers/source.h"

#define SAFETENSORS_HEADER_BYTES_MAX 100000000 // the format's own limit
#define SAFETENSORS_TENSORS_MAX      1000000   // in all files together

struct safetensors {
    struct source_tensor *tensors; // owned; in the order of the files and headers
    int64_t n_tensors;
    struct file *files; // owned; source_tensor.file counts these
    int n_files;

    // Private.
    int64_t tensors_cap;
    uint8_t *formats; // owned [tensors_cap]: rows of the format table
    int files_cap;
    struct safetensors_slot *slots; // owned: name -> tensor, open addressing
    int64_t n_slots;
    struct safetensors_text *text; // owned: blocks that hold the names
    uint64_t seed;
};

/* Empty. Cannot fail. */
void safetensors_init(struct safetensors *st);

/* Reads the header of one more file. A tensor whose format is not one of enum dtype, or that has 5
 * to 8 dimensions, is listed with dtype N_DTYPES (with more than 4 dimensions the first ones are
 * folded into one). Tensors of zero bytes and of any alignment are fine. ERR_INPUT says "PATH: ..."
 * when the file is no whole, consistent safetensors file, or a name was in an earlier one;
 * ERR_CORRUPT when it changed meanwhile. After an error the list can only be closed. */
enum err safetensors_add(struct safetensors *st, const char *path);
void safetensors_close(struct safetensors *st);

/* NULL when there is none. Valid until the next safetensors_add. */
const struct source_tensor *safetensors_find(const struct safetensors *st, const char *name);

/* The format as the file spells it: "BF16", "F8_E4M3". */
const char *safetensors_format(const struct safetensors *st, const struct source_tensor *t);

/* Bytes [offset, offset + n_bytes) of a tensor (inside it: a bug otherwise). As file_read. */
enum err safetensors_read(const struct safetensors *st, const struct source_tensor *t,
                          int64_t offset, int64_t n_bytes, void *buf);

#endif
