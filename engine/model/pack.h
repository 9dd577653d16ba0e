/* engine/model/pack.h - the pack: the only weight file that the engine runs from.
 *
 * Owns: the format, its writer, the check of a whole file, names in the cache. Refuses: model
 * families and file formats: numbers come from a provider (a file, or a generator).
 *
 * File = header page | one extent per line layer, in the order of the line | metadata.
 *   header     4096 bytes: magic, version, sizes, CRC of the metadata, range of the numbers and
 *              hash of the model's files (zeros in older packs); the last 4 bytes are its CRC
 *   extent     starts and ends on 4096; tensors start on 64; the gaps are zero
 *   metadata   shape, directory, tokenizer, CRC32C of every 1 MiB piece of every extent, and of
 *              every row of the embedding, because rows are read one by one
 * All numbers are little-endian. Every byte of the file is covered by one of the CRCs. */
#ifndef ENGINE_MODEL_PACK_H
#define ENGINE_MODEL_PACK_H

#include <sys/stat.h>

#include "engine/model/containers/source.h"
#include "engine/model/model.h"

#define PACK_MAGIC   "sluicepk"
#define PACK_VERSION 12

/* The stored format of matrices. Norms and biases are always f32; learned positions are never
 * stored in blocks. Pack files contain these numbers: append only. */
enum pack_weights {
    PACK_AUTO, // each as in the file; bf16 as bf12 if that is lossless and smaller
    PACK_F32,
    PACK_F16,
    PACK_BF16,
    PACK_Q8,
    PACK_Q4,
    PACK_BF12, // matrices that would lose by it, and rows, stay bf16
    N_PACK_WEIGHTS
};
const char *pack_weights_name(enum pack_weights w);       // "auto", "f32", ...
enum pack_weights pack_weights_by_name(const char *name); // N_PACK_WEIGHTS: unknown

/* The source of a model's numbers. `layer` is a decoder layer (from 0); 0 for other roles. */
struct pack_provider {
    struct shape shape;
    role_set roles;   // ROLE_BIT()s of existing tensors; always ROLE_HEAD, even if tied
    int tied, dummy;  // as in struct model
    const char *name; // borrowed: valid as long as impl
    void *impl;       // owned by the provider's opener
    /* The format of a matrix (rows or panels) in the source. */
    enum dtype (*dtype)(void *impl, enum tensor_role role, int layer);
    /* Reads rows [first, first + n) in that format, contiguous. */
    enum err (*rows)(void *impl, enum tensor_role role, int layer, int first, int n, void *out);
    /* The same rows, n <= 32, as a panel of that format. NULL: use `rows`. */
    enum err (*panel)(void *impl, enum tensor_role role, int layer, int first, int n, void *out);
    /* Reads a whole vector of n numbers. */
    enum err (*vector)(void *impl, enum tensor_role role, int layer, int n, float *out);
};

/* Number of layers to ask for a role's tensors, from 0; whether `layer` has one. */
int pack_copies(const struct pack_provider *p, enum tensor_role role);
int pack_has(const struct pack_provider *p, enum tensor_role role, int layer);

/* A provider for an opened model file: finds the family, reads the shape, checks every tensor.
 * `source` is borrowed until the close. ERR_INPUT names file and key or tensor. */
enum err pack_source_open(struct pack_provider *p, const struct source *source);
void pack_source_close(struct pack_provider *p); // accepts a zeroed provider

struct pack_request {
    const struct pack_provider *provider;
    enum pack_weights weights;
    const void *tokenizer; // NULL: none
    int64_t tokenizer_bytes;
    uint64_t source;  // pack_source_hash() to store; 0: none
    const char *path; // the file to make; appears complete, by rename, or not at all
    int on_demand;    // 1: layers are absent (a hole in the file) until pack_layer_make()
    /* Called about once per MiB read while choosing formats, then again from 0 per MiB written; an
     * error stops the work and is returned. May be NULL. */
    enum err (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* For PACK_AUTO and PACK_BF12: reads every matrix that may become bf12 and sets bf12[layer][role]
 * to 1 if it will (layer 0 for roles outside decoder layers; zeroed by the caller, [max(n_layers,
 * 1)][N_ROLES]). Used by pack_write(). */
enum err pack_choose_bf12(const struct pack_request *r, uint8_t *bf12);

/* Writes a pack. Uses memory for 64 rows of the widest matrix, and the metadata. ERR_IO: the disk
 * has too little room (checked first; the message says how many bytes are needed) or fails. */
enum err pack_write(const struct pack_request *r);

/* Generates the bytes of one line layer of an existing pack, equal to pack_write()'s. `to` not
 * NULL: into that memory (the whole extent; m is unchanged); else into the file `fd`, and the
 * checksums into m, which then has the layer. Other threads may generate other layers. */
enum err pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                         void *to);
/* Generates the first n rows (a multiple of 32) of one matrix, as panels of the pack. */
enum err pack_panels_make(const struct pack_provider *p, struct model *m, int layer,
                          enum tensor_role role, int n, void *to);
/* The model as a pack of another format would have it; not auto or bf12, which depend on the
 * numbers. `as` equals m but for layers, their counts, `weights` and file_bytes. For planning only.
 * Free as->layers. ERR_FIT: no memory; ERR_INPUT as pack_write. */
enum err pack_model_as(const struct model *m, enum pack_weights weights, struct model *as);
/* Overwrites the directory in the file by m's. The caller has locked the file and made the layers
 * durable. ERR_FIT, ERR_IO. */
enum err pack_directory_write(const struct pack_provider *p, struct model *m, int fd);

/* The cache folder (created if missing) for packs made on first use and the machine file.
 * ERR_USAGE: no usable folder. */
enum err pack_cache_dir(char *buf, int64_t buf_bytes);
/* Use this folder from now on, instead of the environment's. */
void pack_cache_use(const char *folder);

/* 1: `file` is a file of the model, by inode. */
int pack_is_source(const char *model_path, const struct stat *file);

/* The file in the cache for a model of this hash in this format: $SLUICE_CACHE_DIR,
 * $XDG_CACHE_HOME/sluice or ~/.cache/sluice (created if missing), then NAME-HASH-WEIGHTS.pack; an
 * existing pack under the name of a copy of the model is used. ERR_USAGE: no usable folder. */
enum err pack_cache_path(const char *model_path, enum pack_weights weights, uint64_t hash,
                         char *buf, int64_t buf_bytes);
/* Hash of every byte of the model's files, independent of folder and time; of a folder also of the
 * files' names. Reads all files: tick (may be NULL) is called before every read. */
enum err pack_source_content(const char *model_path, enum err (*tick)(void *ctx), void *ctx,
                             uint64_t *hash);
/* Hash of the names, sizes, times and first bytes of the model's files: unchanged until a file is
 * touched. */
enum err pack_source_look(const char *model_path, uint64_t *hash);
/* A model's name by its path: "a/b/model.gguf" is "model". */
void pack_source_name(const char *path, char *name, int64_t name_bytes);
/* Hash of the contents of the model's files: sizes, and 16 blocks of 4 KiB per file; never 0. A
 * pack stores the hash of its source, so that a pack under another model's name is detected. */
enum err pack_source_hash(const char *model_path, uint64_t *hash);

/* Little-endian fields, used by pack_*.c and model.c only. */
struct pack_out {
    uint8_t *data; // owned: free()
    int64_t n_bytes, capacity;
    int failed; // out of memory; later puts do nothing
};
void pack_put(struct pack_out *o, const void *data, int64_t n_bytes);
void pack_put_u32(struct pack_out *o, uint32_t v);
void pack_put_u64(struct pack_out *o, uint64_t v);

struct pack_in {
    const uint8_t *data; // borrowed
    int64_t n_bytes, at;
    int failed; // read past the end; later gets return zeros
};
/* Pointer to the next n_bytes; NULL: there are not that many. */
const void *pack_get(struct pack_in *in, int64_t n_bytes);
uint32_t pack_get_u32(struct pack_in *in);
uint64_t pack_get_u64(struct pack_in *in);

void pack_put_shape(struct pack_out *o, const struct shape *s);
void pack_get_shape(struct pack_in *in, struct shape *s);

struct pack_header {
    int64_t file_bytes, meta_offset, meta_bytes;
    uint32_t meta_crc;
    struct model_range range;
    uint64_t source; // pack_source_hash() of the model; 0: unknown (older packs)
};
void pack_header_encode(const struct pack_header *h, uint8_t page[BLOCK_BYTES]);
/* ERR_INPUT: not a pack or another version; ERR_CORRUPT: damaged. `path` is for the message. */
enum err pack_header_decode(struct pack_header *h, const uint8_t page[BLOCK_BYTES],
                            const char *path);

#endif
