/* offload/codec.h - pieces of the NVMe tier, stored in fewer bytes with zstd and decoded into
 * place.
 *
 * Owns: zstd and its contexts, the form of a stored piece, the table entry that says where one
 * lies. Refuses: files, checksums (they are of the decoded bytes), knowing what the bytes mean.
 * Nothing is allocated after codec_open(). One thread at a time. */
#ifndef OFFLOAD_CODEC_H
#define OFFLOAD_CODEC_H

#include "kernels/base/base.h"

#define CODEC_UNIT  64        // bytes that go the same way; pieces are multiples of it

/* Where a piece lies in the file, [stored_bytes] with its padding. As many as the piece has: stored
 * as it is. 0: it is not in the file. */
struct codec_piece {
    int64_t offset, stored_bytes;
};

struct codec; // opaque: hides zstd

/* `compresses` 0: for decoding alone, which takes less memory. ERR_FIT. */
enum err codec_open(struct codec **c, int compresses);
void codec_close(struct codec *c);   // accepts NULL
int64_t codec_bytes(int compresses); // what an open one takes, about

/* Stores a piece at `to` (of PIECE_BYTES bytes), filled up with zeros to a multiple of BLOCK_BYTES;
 * returns that size, or 0 when it would not be smaller than the piece by at least a block. */
int64_t codec_compress(struct codec *c, const void *piece, int64_t n_bytes, void *to);
/* The n_bytes of a piece from what was stored. Returns 0, or -1 for what no codec_compress() wrote;
 * then `piece` holds anything. Reads and writes within the two sizes, whatever the bytes are. */
int codec_decompress(struct codec *c, const void *stored, int64_t stored_bytes, void *piece,
                     int64_t n_bytes);

#endif
