/* engine/model/containers/gguf_header.h - the checked keys and tensors of one GGUF file's header.
 * For gguf.c only.
 *
 * Owns: the open file and one buffer with the header's bytes; names and strings point into the
 * buffer. Refuses: the meaning of keys (except general.alignment), split files. */
#ifndef ENGINE_MODEL_CONTAINERS_GGUF_HEADER_H
#define ENGINE_MODEL_CONTAINERS_GGUF_HEADER_H

#include "engine/data/names.h"
#include "engine/model/containers/source.h"

#define GGUF_HEADER_BYTES_MAX (512ll << 20)
#define GGUF_STRING_BYTES_MAX (64ll << 20)
#define GGUF_KEY_BYTES_MAX    65535
#define GGUF_NAME_BYTES_MAX   63
#define GGUF_KEYS_MAX         (1 << 16)
#define GGUF_TENSORS_MAX      (1 << 20)
#define GGUF_ALIGNMENT_MAX    (1 << 20)

enum gguf_type { // of values; the numbers of the file format
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    N_GGUF_TYPES
};

struct gguf_value {
    const char *key; // first, for names.h; points into the buffer
    int64_t key_at;  // offsets into the buffer, which moves while it grows
    int64_t at;      // scalar: its bytes; string: its NUL-terminated text; array: first element
    int64_t n;       // string: bytes; array: elements
    enum gguf_type type, element; // element: of an array
};

struct gguf_header {
    char *path;      // owned
    char label[256]; // the path (the end of a long one), for messages
    int fd;
    int64_t n_file_bytes;
    uint8_t *bytes;  // owned: the header, from the file's start
    int64_t n_bytes; // in `bytes` so far
    int64_t at;      // read position
    int64_t n_keys, n_tensors;
    struct gguf_value *values;     // owned [n_keys]
    struct source_tensor *tensors; // owned [n_tensors]; offsets are absolute
    int64_t *name_at;              // owned [n_tensors], while reading
    struct names keys;
    int64_t alignment;
    int64_t data_at; // file offset of the data section
    // subject of a message: "header", or the index-th key or tensor, by name once known
    const char *place;
    int64_t place_index, place_name_at;
};

/* Opens the file, reads and checks its whole header. gguf_header_close() is safe after any
 * error. */
enum err gguf_header_open(struct gguf_header *h, const char *path);
void gguf_header_close(struct gguf_header *h);

/* NULL if there is none. */
const struct gguf_value *gguf_header_find(const struct gguf_header *h, const char *key);
/* "u32", "str", "array of f32": static, or in the caller's buffer. */
const char *gguf_type_text(const struct gguf_value *v, char buf[32]);
int gguf_type_bytes(enum gguf_type type); // of a number
/* Reads exactly n bytes; ERR_CORRUPT if the file is now shorter, ERR_IO if the disk fails. */
enum err gguf_header_read(const struct gguf_header *h, int64_t offset, int64_t n_bytes, void *buf);

#endif
