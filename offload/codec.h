/* offload/codec.h - pieces of a file, compressed with zstd and decoded into memory.
 *
 * Owns: zstd and its contexts, the format of a stored piece, the table entry with its position.
 * Refuses: files, checksums (they are of the decoded bytes), knowing what the bytes mean. Nothing
 * is allocated after codec_open(). One thread at a time. */
#ifndef OFFLOAD_CODEC_H
#define OFFLOAD_CODEC_H

#include "kernels/base/base.h"

#define CODEC_UNIT 64 // bytes that are compressed or not; a piece has a multiple

/* Position of a piece in the file; stored_bytes include the padding. As many as the piece has:
 * stored uncompressed. 0: not in the file. */
struct codec_piece {
    int64_t offset, stored_bytes;
};

struct codec; // opaque: hides zstd

/* `compresses` 0: only decodes, with less memory. ERR_FIT. */
enum err codec_open(struct codec **c, int compresses);
void codec_close(struct codec *c);   // accepts NULL
int64_t codec_bytes(int compresses); // memory of an open codec, about

/* Compresses a piece into to[PIECE_BYTES], zero-padded to a multiple of BLOCK_BYTES. Returns that
 * size, 0 if it saves less than a block. */
int64_t codec_compress(struct codec *c, const void *piece, int64_t n_bytes, void *to);
/* Decodes a stored piece of n_bytes. Returns -1 if codec_compress() cannot have written it; then
 * `piece` is undefined. Stays within the two sizes, whatever the bytes are. */
int codec_decompress(struct codec *c, const void *stored, int64_t stored_bytes, void *piece,
                     int64_t n_bytes);

#endif
