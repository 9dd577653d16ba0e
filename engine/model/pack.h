/* engine/model/pack.h - the pack: the only weight file that the engine runs from.
 *
 * Owns: the format, its writer, the check of a whole file, the names in the cache. Refuses: knowing
 * model families or file formats: numbers come from a provider (a file, or a generator).
 *
 * File = header page | one extent per line layer, in the order of the line | metadata.
 *   header     4096 bytes: magic, version, sizes, CRC of the metadata, range of the numbers and
 *              hash of the model's files (zeros in older packs); the last 4 bytes are its CRC
 *   extent     starts and ends on 4096; tensors start on 64; the gaps are zero
 *   metadata   shape, directory, tokenizer, CRC32C of every 1 MiB piece of every extent, and of
 *              every row of the embedding, because those are read one by one
 * All numbers are little-endian. Every byte of the file is under one of the CRCs. */
#ifndef ENGINE_MODEL_PACK_H
#define ENGINE_MODEL_PACK_H

#include <sys/stat.h>

#include "engine/model/containers/source.h"
#include "engine/model/model.h"

#define PACK_MAGIC   "sluicepk"
#define PACK_VERSION 6

/* What matrices are stored as. Norms and biases are always f32; learned positions are never put
 * into blocks. The numbers stand in pack files: append only. */
enum pack_weights {
    PACK_AUTO, // each as in the file, but bf16 as bf12 where that is lossless and smaller
    PACK_F32,
    PACK_F16,
    PACK_BF16,
    PACK_Q8,
    PACK_Q4,
    PACK_BF12, // matrices that would lose by it stay bf16, as rows do
    N_PACK_WEIGHTS
};
const char *pack_weights_name(enum pack_weights w);       // "auto", "f32", ...
enum pack_weights pack_weights_by_name(const char *name); // N_PACK_WEIGHTS when unknown

/* Where the numbers come from. `layer` is a decoder layer (0-based); 0 for other roles. */
struct pack_provider {
    struct shape shape;
    uint64_t roles;   // ROLE_BIT()s of the tensors there are; ROLE_HEAD always, also when tied
    int tied, dummy;  // as in struct model
    const char *name; // borrowed: lives as long as impl
    void *impl;       // owned by whoever opened the provider
    /* The format of a matrix (rows or panels) as it is stored there. */
    enum dtype (*dtype)(void *impl, enum tensor_role role, int layer);
    /* Rows [first, first + n) in that format, one after the other. */
    enum err (*rows)(void *impl, enum tensor_role role, int layer, int first, int n, void *out);
    /* The same rows, n <= 32, as a panel of that format. May be NULL: rows are asked for. */
    enum err (*panel)(void *impl, enum tensor_role role, int layer, int first, int n, void *out);
    /* A whole vector of n numbers. */
    enum err (*vector)(void *impl, enum tensor_role role, int layer, int n, float *out);
};

/* Layers that a role's tensors are asked for, from 0, and whether this one has one of them. */
int pack_copies(const struct pack_provider *p, enum tensor_role role);
int pack_has(const struct pack_provider *p, enum tensor_role role, int layer);

/* A provider over an opened model file: finds the family, reads the shape, checks every tensor.
 * `source` is borrowed until the close. ERR_INPUT names file and key or tensor. */
enum err pack_source_open(struct pack_provider *p, const struct source *source);
void pack_source_close(struct pack_provider *p); // accepts a zeroed provider

struct pack_request {
    const struct pack_provider *provider;
    enum pack_weights weights;
    const void *tokenizer; // NULL: none
    int64_t tokenizer_bytes;
    uint64_t source;  // pack_source_hash(), to be kept; 0: none
    const char *path; // the file to make; appears complete, by rename, or not at all
    int on_demand;    // 1: its layers are absent (a hole in the file) until pack_layer_make()
    /* Called about once per MiB that was looked at, to choose formats, then from 0 again per MiB
     * written; an error stops the work and is returned. May be NULL. */
    enum err (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* For PACK_AUTO and PACK_BF12: reads every matrix that may become bf12 and sets bf12[layer][role]
 * (layer 0 for other places than decoders; zeroed before, [max(n_layers, 1)][N_ROLES]) to 1 where
 * it will. Used by pack_write(). */
enum err pack_choose_bf12(const struct pack_request *r, uint8_t *bf12);

/* Writes a pack. Holds 64 rows of the widest matrix, and the metadata. ERR_IO: disk full (checked
 * before the start; the message says how many bytes are needed) or failing. */
enum err pack_write(const struct pack_request *r);

/* Makes the bytes of one line layer of a pack that is there, as pack_write() did or would have:
 * `to` not NULL: into that memory (the whole extent; m stays as it is); else into the file `fd`,
 * and their checksums into m, which then has the layer. Other threads may make other layers. */
enum err pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                         void *to);
/* The first n rows of one of its matrices of panels, n a multiple of 32, as they lie in the pack.
 */
enum err pack_panels_make(const struct pack_provider *p, struct model *m, int layer,
                          enum tensor_role role, int n, void *to);
/* The model as a pack in another format would have it, of those that look at no numbers (not auto,
 * not bf12): `as` is m but for layers, their counts, `weights` and file_bytes. It can be planned
 * with, not read. Free as->layers. ERR_FIT: no memory; ERR_INPUT as pack_write. */
enum err pack_model_as(const struct model *m, enum pack_weights weights, struct model *as);
/* Writes the directory of m over the one in its file. The caller has locked the file and made the
 * layers durable. ERR_FIT, ERR_IO. */
enum err pack_directory_write(const struct pack_provider *p, struct model *m, int fd);

/* Opens the pack and verifies the CRC of every piece; of absent layers there is none. */
enum err pack_check(const char *path);

/* The cache folder (made when missing): packs on first use and the machine file live there.
 * ERR_USAGE without a usable folder. */
enum err pack_cache_dir(char *buf, int64_t buf_bytes);
/* From now on this folder, whatever the environment says. */
void pack_cache_use(const char *folder);

/* 1: `file` is a file of the model, by its inode. */
int pack_is_source(const char *model_path, const struct stat *file);

/* The file in the cache for a model of this hash in this format: $SLUICE_CACHE_DIR,
 * $XDG_CACHE_HOME/sluice or ~/.cache/sluice (made when missing), then NAME-HASH-WEIGHTS.pack; one
 * that is there under the name of a copy of the model is taken. ERR_USAGE without a usable folder.
 */
enum err pack_cache_path(const char *model_path, enum pack_weights weights, uint64_t hash,
                         char *buf, int64_t buf_bytes);
/* Of every byte of the model's files, wherever they lie and whenever they were written; of a folder
 * also their names. Reads all of them: tick (may be NULL) is called for every MiB. */
enum err pack_source_content(const char *model_path, enum err (*tick)(void *ctx), void *ctx,
                             uint64_t *hash);
/* Of the names, sizes, times and first bytes of the model's files: the same as long as nobody
 * touches them. */
enum err pack_source_look(const char *model_path, uint64_t *hash);
/* What a model is called that lies there: "a/b/model.gguf" is "model". */
void pack_source_name(const char *path, char *name, int64_t name_bytes);
/* Of what the model's files hold: sizes, and 16 blocks of 4 KiB of each; never 0. A pack keeps the
 * hash of the files that it was made from, so that a pack under another model's name is seen. */
enum err pack_source_hash(const char *model_path, uint64_t *hash);

/* Little-endian fields, used by pack_*.c and model.c only. */
struct pack_out {
    uint8_t *data; // owned: free()
    int64_t n_bytes, capacity;
    int failed; // no memory; later puts do nothing
};
void pack_put(struct pack_out *o, const void *data, int64_t n_bytes);
void pack_put_u32(struct pack_out *o, uint32_t v);
void pack_put_u64(struct pack_out *o, uint64_t v);

struct pack_in {
    const uint8_t *data; // borrowed
    int64_t n_bytes, at;
    int failed; // read past the end; later gets give zeros
};
/* n_bytes in place, NULL when there are not that many. */
const void *pack_get(struct pack_in *in, int64_t n_bytes);
uint32_t pack_get_u32(struct pack_in *in);
uint64_t pack_get_u64(struct pack_in *in);

void pack_put_shape(struct pack_out *o, const struct shape *s);
void pack_get_shape(struct pack_in *in, struct shape *s);

struct pack_header {
    int64_t file_bytes, meta_offset, meta_bytes;
    uint32_t meta_crc;
    struct model_range range;
    uint64_t source; // pack_source_hash() of the model; 0: not kept, as in older packs
};
void pack_header_encode(const struct pack_header *h, uint8_t page[BLOCK_BYTES]);
/* ERR_INPUT: not a pack or another version; ERR_CORRUPT: damaged. `path` is for the message. */
enum err pack_header_decode(struct pack_header *h, const uint8_t page[BLOCK_BYTES],
                            const char *path);

#endif
