/* engine/model/model.h - an opened pack: the model's shape and the checked offset of every tensor.
 *
 * Owns: the directory of one pack. Refuses: reading weights (the mover does) and trusting the file:
 * every number is checked against the shape and the file's size.
 *
 * A model is a sequence of line layers: layer 0 is the embedding, 1 .. n_layers are the decoder
 * layers, the rest are the slices of the output head. Each is one extent of the file. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/model/families/role.h"
#include "kernels/device.h"

#define MODEL_F16_MAX 65504.0f // the largest number of f16

struct model_tensor {
    enum dtype dtype;          // vectors: DTYPE_F32
    int n, k;                  // as role_dims; a slice's head has n = its rows; n = 0: no tensor
    int64_t offset;            // bytes from the start of the extent, a multiple of 64
    enum weight_layout layout; // of a matrix; always panels in packs
};

struct model_layer {
    int64_t offset, n_bytes;     // the extent in the file, multiples of 4096
    int64_t piece;               // index of the first piece's CRC
    int vocab_first, vocab_rows; // slices: the rows of the vocabulary; else 0, 0
    int absent;                  // 1: a hole in the file (on demand); its CRCs are 0
    struct model_tensor tensors[N_ROLES];
};

/* The matrix element of largest magnitude, as stored, infinities excluded. */
struct model_range {
    int known; // 0: not measured (dummy weights, older packs)
    float most;
    int layer, role; // its tensor
};

struct model {
    struct shape shape;
    char *path;               // owned: the pack file
    const char *name;         // inside meta: the name that `model` prints
    int weights;              // enum pack_weights it was packed with
    int tied;                 // 1: the head's rows are the embedding's
    int dummy;                // 1: a dummy pack with only those layers that some run streamed
    int on_demand;            // hash of everything that can change an answer
    uint64_t fingerprint;     // of everything that can change an answer: same numbers, same value
    struct model_range range; // of its matrices, as stored
    uint64_t source;          // hash of the files it was packed from; 0: unknown
    int64_t n_params;         // numbers in all tensors; a tied head counts once
    int64_t file_bytes;       // of the whole pack
    int n_layers;             // line layers: 1 + shape.n_layers + n_slices
    int n_slices;             // >= 1, but see model_cut()
    int first; // decoder layers of the whole model before this part of it (model_cut()), else 0
    struct model_layer *layers; // owned: [n_layers]
    uint32_t *piece_crcs;       // owned: [n_pieces]
    int64_t n_pieces;
    uint32_t *row_crcs;    // owned: [vocab] CRC32C of each record of the embedding
    const void *tokenizer; // inside meta: the blob of engine/text/token.h; NULL: none
    int64_t tokenizer_bytes;
    uint8_t *meta; // owned
    int used_fd;   // owned; > 0: locked, so that `cache rm` skips packs in use
};

/* Opens a pack and verifies its metadata (not its weights); waits while another process adds
 * layers. ERR_INPUT: not a pack, or another version; ERR_CORRUPT: damaged or truncated; ERR_IO. On
 * error there is nothing to close. */
enum err model_open(struct model *m, const char *path);
/* The same for an open file, which the caller keeps; `path` is its name. Does not wait. */
enum err model_open_fd(struct model *m, const char *path, int fd);
void model_close(struct model *m); // accepts a zeroed model
/* The part of a model that a rank of a pipeline has, unless layers get more than hidden states:
 * decoder layers [from, to); the embedding's rows if from is 0, else a line layer 0 without bytes;
 * the slices of the head if `to` is the last, else none. Everything but `layers` is borrowed from
 * `whole`. ERR_FIT, also if it cannot be cut. */
enum err model_cut(struct model *part, const struct model *whole, int from, int to);
void model_cut_close(struct model *part); // accepts a zeroed part
/* Locks of an open pack, each on a byte of its own, so that they work on network file systems too.
 * Closing the file releases them. `write`: exclusive, else shared; `wait`: wait until it is free.
 * Returns 0 if another process holds it; 1 on file systems without locks. */
enum model_lock { MODEL_DIRECTORY, MODEL_USED };
int model_lock(int fd, enum model_lock which, int write, int wait);
/* 1 if the file starts with these 8 bytes; with a pack's. */
int model_starts_with(const char *path, const char magic[8]);
int model_is_pack(const char *path);

static inline int model_has(const struct model_layer *l, enum tensor_role role)
{
    return l->tensors[role].n > 0;
}

/* The matrix of a role; `base`: the extent in memory (64-byte aligned). */
static inline struct weight model_weight(const struct model_layer *l, enum tensor_role role,
                                         const void *base)
{
    const struct model_tensor *t = &l->tensors[role];
    CHECK(t->n > 0);
    return (struct weight){.dtype = t->dtype,
                           .n = t->n,
                           .k = t->k,
                           .panels = (const uint8_t *)base + t->offset,
                           .layout = t->layout};
}

/* The f32 vector of a role; NULL: the model has none. */
static inline const float *model_vector(const struct model_layer *l, enum tensor_role role,
                                        const void *base)
{
    const struct model_tensor *t = &l->tensors[role];
    return t->n > 0 ? (const float *)(const void *)((const uint8_t *)base + t->offset) : NULL;
}

/* The layout of a row's pages in this format; wide: in layers of layer_wide[] (1), or the others.
 */
void model_kv_layout(const struct shape *s, int wide, enum kv_format format, struct kv_layout *l);
/* The compute format of a matrix under `compute`. */
static inline enum compute model_compute(enum tensor_role role, enum compute compute)
{
    return role_is_choice(role) ? COMPUTE_F32 : compute;
}
/* The format of tiles that a matmul of this compute format reads in place; `stored` itself if it
 * already can be. */
enum dtype model_tile_dtype(enum compute compute, enum dtype stored);
/* 1: the device's matmuls cannot read the layer's stored matrices. */
int model_must_decode(const struct model_layer *stored, struct device *device,
                      enum compute compute);
/* Checks that matrices which the device reads as f16 fit in f16. ERR_INPUT names file, layer and
 * matrix; an unknown range only causes a warning. */
enum err model_range_check(const struct model *m, struct device *device, enum compute compute);
/* The layout of a layer whose matrices are decoded to tiles for the device's matmuls: offsets and
 * n_bytes (a multiple of 4096) in memory, no extent. Tensors gathered row by row are omitted. */
void model_layer_tiles(const struct model_layer *stored, struct device *device,
                       enum compute compute, struct model_layer *tiles);

/* The embedding has a record for each token: its row, and behind it that of ROLE_INPUTS_EMBED, each
 * on a multiple of 64 bytes if there are both. Bytes of a record; where a row begins in it. */
int64_t model_record_bytes(const struct model_layer *embedding);
int64_t model_record_at(const struct model_layer *embedding, enum tensor_role role);
/* File offset and size of a token id's record in the embedding. An id out of range is a bug
 * (CHECK). */
void model_embed_row(const struct model *m, int id, int64_t *offset, int64_t *n_bytes);

/* Reads n_bytes at an offset of an open file. ERR_CORRUPT: the file is too short; ERR_IO. */
enum err model_read_at(int fd, const char *path, int64_t offset, int64_t n_bytes, void *buf);
/* Number of pieces of a layer; the last one may be shorter than PIECE_BYTES. */
int64_t model_pieces(const struct model_layer *l);
/* Verifies one piece in memory. ERR_CORRUPT names file, layer and piece. */
enum err model_piece_check(const struct model *m, int layer, int64_t piece, const void *data,
                           int64_t n_bytes);

#endif
