/* engine/model/pack_codec.h - PACK.zst: the layers of a pack in fewer bytes, for disks slower than
 * decoding.
 *
 * Owns: the format of PACK.zst, its maker, its check; measuring its benefit. Refuses: the coding
 * (offload/codec.h), reading it (the mover), deciding whether to use it (the plan).
 *
 * File = header page | pieces | table. A piece is PIECE_BYTES bytes of a layer (not of the
 * embedding, whose rows are gathered), stored encoded or raw, aligned to 4096.
 *   header  4096 bytes: magic, version, sizes, the pack's fingerprint, CRC of the table; the last 4
 *           bytes are its CRC
 *   table   per piece of the pack u64 offset, u32 stored bytes; 0: not stored
 * Note: pieces have no CRC here. The pack's CRC of the decoded bytes decides, so this file cannot
 * change an answer. */
#ifndef ENGINE_MODEL_PACK_CODEC_H
#define ENGINE_MODEL_PACK_CODEC_H

#include "engine/model/model.h"
#include "kernels/base/pool.h"
#include "offload/codec.h"
#include "policy/plan.h"

struct pack_codec {
    char path[4200];
    struct codec_piece *pieces; // owned: [n_pieces] of the pack
    int64_t n_pieces, file_bytes;
};

struct pack_codec_request {
    const struct model *model;
    struct pool *pool;    // borrowed; or NULL
    int64_t memory_bytes; // memory limit, approximate; one thread's share is used in any case
    /* As in pack_request. */
    enum err (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* Measured effect of encoding. */
struct pack_codec_sample {
    double share;  // stored bytes per byte
    double rate;   // decoded bytes per second of one thread in a run
    double make_s; // seconds to encode one byte, one thread
};

/* 1 if the file starts like an encoded pack. */
int pack_codec_is(const char *path);
/* Opens the file that belongs to the model's pack and checks every number. ERR_INPUT: no such file,
 * or another pack's; ERR_CORRUPT; ERR_IO. On error there is nothing to close. */
enum err pack_codec_open(struct pack_codec *z, const struct model *m);
void pack_codec_close(struct pack_codec *z); // accepts a zeroed struct
/* The table entries of a layer; NULL: not stored. */
const struct codec_piece *pack_codec_layer(const struct pack_codec *z, const struct model_layer *l);
/* 1: all layers that the plan streams are stored. */
int pack_codec_covers(const struct pack_codec *z, const struct model *m, const struct plan *plan);
/* Makes the file for all layers that the pack has; it appears complete, by rename, or not at all.
 * If another process makes it at the same time, the first complete one stays. ERR_IO: the disk has
 * too little room (checked first) or fails; ERR_CORRUPT: the pack is damaged. */
enum err pack_codec_make(const struct pack_codec_request *r);
/* Encodes and decodes a few pieces of a layer in the middle. */
enum err pack_codec_measure(const struct model *m, struct pack_codec_sample *sample);
/* Seconds of one thread to make the file for the plan's streamed layers, disk apart; 0: exists. */
double pack_codec_make_s(const struct model *m, const struct plan *plan,
                         const struct pack_codec_sample *sample);

#endif
