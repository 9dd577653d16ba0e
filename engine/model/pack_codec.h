/* engine/model/pack_codec.h - PACK.zst: the layers of a pack in fewer bytes, for disks slower than
 * decoding.
 *
 * Owns: that file: its format, its maker, its check; the measuring of what it would give. Refuses:
 * the coding (offload/codec.h), reading it (the mover does), deciding whether to use it (the plan).
 *
 * File = header page | pieces | table. A piece is PIECE_BYTES bytes of a layer that is not the
 * embedding, whose rows are gathered; stored encoded, or as it is, from a multiple of 4096 on.
 *   header  4096 bytes: magic, version, sizes, the pack's fingerprint, CRC of the table; the last 4
 *           bytes are its CRC
 *   table   per piece of the pack u64 offset, u32 stored bytes; 0: not there
 * Note: pieces have no CRC here. The pack's, of the decoded bytes, decides; so
 * nothing in this file can change an answer. */
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
    int64_t memory_bytes; // about what may be taken; one thread's part is taken anyway
    /* As in pack_request. */
    enum err (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* What encoding gives, measured. */
struct pack_codec_sample {
    double share;  // stored bytes of one byte
    double rate;   // bytes decoded per second in a run, one thread
    double make_s; // to encode one byte, one thread
};

/* 1 when the file starts like an encoded pack. */
int pack_codec_is(const char *path);
/* Opens the file that belongs to the model's pack; every number in it is checked. ERR_INPUT: there
 * is none, or it is of another pack; ERR_CORRUPT; ERR_IO. On error there is nothing to close. */
enum err pack_codec_open(struct pack_codec *z, const struct model *m);
void pack_codec_close(struct pack_codec *z); // accepts a zeroed one
/* The table entries of a layer, or NULL: it is not there. */
const struct codec_piece *pack_codec_layer(const struct pack_codec *z, const struct model_layer *l);
/* 1 when every layer that the plan streams is there. */
int pack_codec_covers(const struct pack_codec *z, const struct model *m, const struct plan *plan);
/* Makes it, of all layers that the pack has; appears complete, by rename, or not at all. Where
 * another process makes it at the same time, the first one that is complete stays. ERR_IO: the disk
 * has too little room (checked first) or fails; ERR_CORRUPT: the pack. */
enum err pack_codec_make(const struct pack_codec_request *r);
/* Encodes and decodes a few pieces of a layer in the middle. */
enum err pack_codec_measure(const struct model *m, struct pack_codec_sample *sample);
/* Seconds of one thread to make the file for what the plan streams, disk apart; 0: it is there. */
double pack_codec_make_s(const struct model *m, const struct plan *plan,
                         const struct pack_codec_sample *sample);

#endif
