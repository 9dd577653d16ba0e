/* engine/model/model.h - an opened pack: the model's shape and where every tensor lies, checked.
 *
 * Owns: the directory of one pack. Refuses: reading weights (the mover
 * does) and trusting the file: every number was checked against the shape and the file's size.
 *
 * A model is a row of line layers: layer 0 is the embedding, 1 .. n_layers are the decoder layers,
 * the rest are the slices of the output head. Each is one extent of the file. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/model/families/role.h"
#include "kernels/device.h"

#define MODEL_F16_MAX 65504.0f // the largest number of f16

struct model_tensor {
    enum dtype dtype;          // vectors: DTYPE_F32
    int n, k;                  // as role_dims; a slice's head has n = its rows; n = 0: not there
    int64_t offset;            // bytes from the start of the extent, a multiple of 64
    enum weight_layout layout; // of a matrix; in packs always panels
};

struct model_layer {
    int64_t offset, n_bytes;     // the extent in the file, multiples of 4096
    int64_t piece;               // index of the CRC of its first piece
    int vocab_first, vocab_rows; // slices: the rows of the vocabulary it computes; else 0, 0
    int absent;                  // 1: a hole in the file (on demand); its CRCs are 0
    struct model_tensor tensors[N_ROLES];
};

/* Of all matrices as they are stored: the number furthest from 0, infinities left out. */
struct model_range {
    int known; // 0: of dummy weights, and in older packs, nobody has looked
    float most;
    int layer, role; // where it stands
};

struct model {
    struct shape shape;
    char *path;                 // owned: the pack file
    const char *name;           // inside meta: what `model` prints
    int weights;                // enum pack_weights it was packed with
    int tied;                   // 1: the head's rows are the embedding's
    int dummy;                  // > 0: pseudo-random weights, of this generation of the generator
    int on_demand;              // 1: a dummy pack that holds only layers that some run streamed
    uint64_t fingerprint;       // of everything that can change an answer: same numbers, same value
    struct model_range range;   // of its matrices
    uint64_t source;            // hash of the files that it was packed from; 0: not known
    int64_t n_params;           // numbers in all tensors; a tied head counts once
    int64_t file_bytes;         // of the whole pack
    int n_layers;               // line layers: 1 + shape.n_layers + n_slices
    int n_slices;               // >= 1
    struct model_layer *layers; // owned: [n_layers]
    uint32_t *piece_crcs;       // owned: [n_pieces]
    int64_t n_pieces;
    uint32_t *row_crcs;    // owned: [vocab] CRC32C of each row of the embedding
    const void *tokenizer; // inside meta: the blob of engine/text/token.h; NULL: none
    int64_t tokenizer_bytes;
    uint8_t *meta; // owned
    int used_fd;   // owned; > 0: locked, so that `cache rm` leaves the pack to its users
};

/* Opens and verifies a pack's metadata (not its weights); waits while another process adds layers
 * to it. ERR_INPUT: not a pack, or of another version; ERR_CORRUPT: damaged or cut short; ERR_IO.
 * On error there is nothing to close. */
enum err model_open(struct model *m, const char *path);
/* The same from an open file, which stays the caller's; `path` is its name. Waits for nobody. */
enum err model_open_fd(struct model *m, const char *path, int fd);
void model_close(struct model *m); // accepts a zeroed model
/* Locks of an open pack, each on a byte of its own, so that network file systems, too, keep them
 * apart. They go when the file is closed. `write`: alone, else beside other readers; `wait`: until
 * it can be had. 0: another process has it. Where there are no locks: 1. */
enum model_lock { MODEL_DIRECTORY, MODEL_USED };
int model_lock(int fd, enum model_lock which, int write, int wait);
/* 1 when the file starts with these 8 bytes; those of a pack. */
int model_starts_with(const char *path, const char magic[8]);
int model_is_pack(const char *path);

static inline int model_has(const struct model_layer *l, enum tensor_role role)
{
    return l->tensors[role].n > 0;
}

/* The matrix of a role; `base` is where the extent lies in memory (64-byte aligned). */
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

/* The f32 vector of a role, or NULL when the model has none. */
static inline const float *model_vector(const struct model_layer *l, enum tensor_role role,
                                        const void *base)
{
    const struct model_tensor *t = &l->tensors[role];
    return t->n > 0 ? (const float *)(const void *)((const uint8_t *)base + t->offset) : NULL;
}

/* What a matrix is multiplied in under `compute`. */
static inline enum compute model_compute(enum tensor_role role, enum compute compute)
{
    return role_is_choice(role) ? COMPUTE_F32 : compute;
}
/* The format in which a matmul of this compute format reads panels in place; what its stored format
 * already allows stays. */
enum dtype model_tile_dtype(enum compute compute, enum dtype stored);
/* 1 when the device's matmuls cannot read a layer's matrices as they are stored. */
int model_must_decode(const struct model_layer *stored, struct device *device,
                      enum compute compute);
/* Whether matrices that the device reads as f16 fit in it. ERR_INPUT names file, layer and matrix;
 * where nobody knows, a warning. */
enum err model_range_check(const struct model *m, struct device *device, enum compute compute);
/* The layout of a layer whose matrices are held as tiles, which the device's matmuls read in place:
 * offsets and n_bytes (a multiple of 4096) of memory, no extent. What is gathered row by row is not
 * in it. */
void model_layer_tiles(const struct model_layer *stored, struct device *device,
                       enum compute compute, struct model_layer *tiles);

/* Where in the file the embedding's row of a token id lies. An id out of range is a bug (CHECK). */
void model_embed_row(const struct model *m, int id, int64_t *offset, int64_t *n_bytes);

/* Reads n_bytes at an offset of an open file. ERR_CORRUPT: the file ends before; ERR_IO. */
enum err model_read_at(int fd, const char *path, int64_t offset, int64_t n_bytes, void *buf);
/* Number of pieces of a layer; the last one may be shorter than PIECE_BYTES. */
int64_t model_pieces(const struct model_layer *l);
/* Verifies one piece in memory. ERR_CORRUPT names file, layer and piece. */
enum err model_piece_check(const struct model *m, int layer, int64_t piece, const void *data,
                           int64_t n_bytes);

#endif
