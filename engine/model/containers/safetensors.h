/* engine/model/containers/safetensors.h - the tensors of one or more safetensors files, as one list
 * with one index.
 *
 * Owns: the header of each file (every name, shape and byte range is checked against the file
 * before use), the open descriptors, the lookup by name. Refuses: the meaning of the files, and
 * which files belong together (hf.c). Memory per tensor: about 110 bytes plus its name. */
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

/* Reads the header of one more file. A tensor of a format without an enum dtype, or with 5 to 8
 * dimensions, is listed with dtype N_DTYPES (leading dimensions beyond 4 are folded into one).
 * Tensors may have zero bytes and any alignment. ERR_INPUT "PATH: ...": incomplete or inconsistent
 * file, or a name of an earlier file; ERR_CORRUPT: the file changed meanwhile. After an error the
 * list can only be closed. */
enum err safetensors_add(struct safetensors *st, const char *path);
void safetensors_close(struct safetensors *st);

/* NULL if there is none. Valid until the next safetensors_add. */
const struct source_tensor *safetensors_find(const struct safetensors *st, const char *name);

/* The format as the file spells it: "BF16", "F8_E4M3". */
const char *safetensors_format(const struct safetensors *st, const struct source_tensor *t);

/* Reads bytes [offset, offset + n_bytes) of a tensor, which must be inside. As file_read. */
enum err safetensors_read(const struct safetensors *st, const struct source_tensor *t,
                          int64_t offset, int64_t n_bytes, void *buf);

#endif
