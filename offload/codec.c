/* offload/codec.c - see codec.h.
 *
 * In weights, runs of incompressible bytes (signs, mantissas) alternate with runs of few different
 * values (exponents), 64 bytes and more each. zstd's blocks are too coarse for this, and one table
 * of codes for both saves next to nothing. So each unit of 64 bytes is either given to zstd or
 * stored as it is, which also makes decoding fast.
 *
 * A stored piece:
 *     u32 packed_bytes, u32 n_units of these
 *     map     a bit per unit of the piece, from the lowest: 1: packed
 *     packed  one zstd frame: the packed units in their order
 *     plain   the other units in their order
 * Note: packed units are decoded into the end of the piece and moved forward from there, which
 * needs no second buffer: at most n_plain plain units come before unit i, so no unit moves to a
 * higher address. */
#include "offload/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LEVEL      1 // weights have no repetitions: only entropy codes pay
#define UNITS_MAX  (PIECE_BYTES / CODEC_UNIT)
#define HEAD_BYTES 8

struct codec {
    ZSTD_DCtx *decoder; // owned
    ZSTD_CCtx *encoder; // owned; NULL: decodes only
    uint8_t *packed;    // owned: [PIECE_BYTES] units to be packed; NULL: decodes only
};

int64_t codec_bytes(int compresses)
{
    int64_t decoder = 256 << 10; // of zstd 1.5: 94 to 160 KiB
    return decoder + (compresses ? PIECE_BYTES + (1 << 20) : 0);
}

enum err codec_open(struct codec **out, int compresses)
{
    *out = NULL;
    struct codec *c = calloc(1, sizeof *c);
    if (!c)
        return fail(ERR_FIT, "no memory for the codec");
    c->decoder = ZSTD_createDCtx();
    int whole = c->decoder != NULL;
    if (compresses) {
        c->encoder = ZSTD_createCCtx();
        c->packed = malloc(PIECE_BYTES);
        whole = whole && c->encoder && c->packed;
    }
    if (!whole) {
        codec_close(c);
        return fail(ERR_FIT, "no memory for the codec");
    }
    *out = c;
    return OK;
}

void codec_close(struct codec *c)
{
    if (!c)
        return;
    ZSTD_freeDCtx(c->decoder);
    ZSTD_freeCCtx(c->encoder);
    free(c->packed);
    free(c);
}

static int64_t map_bytes(int64_t n_units)
{
    return ceil_div(n_units, 8);
}

static void put_u32(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* saved[v]: bits that a byte of value v saves, coded by its frequency in `counts`. */
static void savings(const int64_t counts[256], float saved[256])
{
    int64_t n = 0;
    for (int v = 0; v < 256; v++)
        n += counts[v] + 1;
    for (int v = 0; v < 256; v++)
        saved[v] = log2f((float)(counts[v] + 1) * 256.0f / (float)n);
}

/* Sets the map of units to pack: first by the frequencies in the whole piece, then by those in the
 * units chosen first, which separate better. Returns the number of units to pack. */
static int64_t choose_units(const uint8_t *piece, int64_t n_units, uint8_t *map)
{
    int64_t counts[256] = {0}, n_packed = 0;
    for (int64_t i = 0; i < n_units * CODEC_UNIT; i++)
        counts[piece[i]]++;
    for (int round = 0; round < 2; round++) {
        float saved[256];
        savings(counts, saved);
        memset(counts, 0, sizeof counts);
        memset(map, 0, (size_t)map_bytes(n_units));
        n_packed = 0;
        for (int64_t u = 0; u < n_units; u++) {
            const uint8_t *unit = piece + u * CODEC_UNIT;
            float gain = 0;
            for (int i = 0; i < CODEC_UNIT; i++)
                gain += saved[unit[i]];
            if (gain <= 0)
                continue;
            for (int i = 0; i < CODEC_UNIT; i++)
                counts[unit[i]]++;
            map[u / 8] |= (uint8_t)(1u << (u % 8));
            n_packed++;
        }
    }
    return n_packed;
}

int64_t codec_compress(struct codec *c, const void *piece, int64_t n_bytes, void *to)
{
    CHECK(c->encoder && n_bytes > 0 && n_bytes <= PIECE_BYTES && n_bytes % CODEC_UNIT == 0);
    const uint8_t *from = piece;
    int64_t n_units = n_bytes / CODEC_UNIT;
    uint8_t *out = to, *map = out + HEAD_BYTES;
    int64_t packed_at = HEAD_BYTES + map_bytes(n_units);
    if (packed_at > n_bytes - BLOCK_BYTES)
        return 0;
    int64_t n_packed = choose_units(from, n_units, map), k = 0;
    for (int64_t u = 0; u < n_units; u++)
        if (map[u / 8] >> (u % 8) & 1)
            memcpy(c->packed + CODEC_UNIT * k++, from + u * CODEC_UNIT, CODEC_UNIT);
    size_t packed =
        ZSTD_compressCCtx(c->encoder, out + packed_at, (size_t)(PIECE_BYTES - packed_at), c->packed,
                          (size_t)(n_packed * CODEC_UNIT), LEVEL);
    if (ZSTD_isError(packed)) // no room
        return 0;
    int64_t plain_at = packed_at + (int64_t)packed;
    int64_t stored = round_up(plain_at + (n_units - n_packed) * CODEC_UNIT, BLOCK_BYTES);
    if (stored > n_bytes - BLOCK_BYTES)
        return 0;
    put_u32(out, (uint32_t)packed);
    put_u32(out + 4, (uint32_t)n_packed);
    uint8_t *plain = out + plain_at;
    for (int64_t u = 0; u < n_units; u++)
        if (!(map[u / 8] >> (u % 8) & 1)) {
            memcpy(plain, from + u * CODEC_UNIT, CODEC_UNIT);
            plain += CODEC_UNIT;
        }
    memset(plain, 0, (size_t)(out + stored - plain));
    return stored;
}

int codec_decompress(struct codec *c, const void *stored, int64_t stored_bytes, void *piece,
                     int64_t n_bytes)
{
    const uint8_t *in = stored;
    uint8_t *out = piece;
    int64_t n_units = n_bytes / CODEC_UNIT, map_at = HEAD_BYTES;
    int64_t packed_at = map_at + map_bytes(n_units);
    CHECK(n_bytes > 0 && n_bytes <= PIECE_BYTES && n_bytes % CODEC_UNIT == 0);
    if (stored_bytes < packed_at)
        return -1;
    int64_t packed_bytes = get_u32(in), n_packed = get_u32(in + 4), n_set = 0;
    for (int64_t i = 0; i < map_bytes(n_units); i++)
        n_set += __builtin_popcount(in[map_at + i]);
    if (n_packed > n_units || n_set != n_packed ||
        (n_units % 8 && in[packed_at - 1] >> n_units % 8))
        return -1;
    int64_t plain_at = packed_at + packed_bytes;
    if (round_up(plain_at + (n_units - n_packed) * CODEC_UNIT, BLOCK_BYTES) != stored_bytes)
        return -1;
    uint8_t *packed = out + (n_units - n_packed) * CODEC_UNIT;
    size_t got = ZSTD_decompressDCtx(c->decoder, packed, (size_t)(n_packed * CODEC_UNIT),
                                     in + packed_at, (size_t)packed_bytes);
    if (got != (size_t)(n_packed * CODEC_UNIT)) // an error code differs, too
        return -1;
    const uint8_t *plain = in + plain_at;
    for (int64_t u = 0; u < n_units; u++, out += CODEC_UNIT) {
        if (in[map_at + u / 8] >> (u % 8) & 1) {
            memmove(out, packed, CODEC_UNIT);
            packed += CODEC_UNIT;
        } else {
            memcpy(out, plain, CODEC_UNIT);
            plain += CODEC_UNIT;
        }
    }
    return 0;
}
