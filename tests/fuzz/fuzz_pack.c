/* tests/fuzz/fuzz_pack.c - a pack's header and metadata, and the table of PACK.zst.
 *
 * Random bytes end at the first checksum, so the harness makes header and checksums itself: the
 * input is a byte that says otherwise when it is odd, where the metadata stands (u32, in 4096
 * bytes), and the metadata. What lies between is zeros. */
#include "engine/model/pack.h"
#include "engine/model/pack_codec.h"
#include "engine/text/token.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define PATH FUZZ_DIR "/m.pack"

static void model_use(const struct model *m)
{
    int64_t offset, n_bytes, pieces = 0;
    for (int i = 0; i < m->n_layers; i++) {
        struct model_layer tiles;
        const struct model_layer *l = &m->layers[i];
        CHECK(l->piece == pieces && l->offset + l->n_bytes <= m->file_bytes);
        pieces += model_pieces(l);
        for (int compute = COMPUTE_BF16; compute < N_COMPUTES; compute++)
            model_layer_tiles(l, device_cpu(), (enum compute)compute, &tiles);
        for (int role = 0; role < N_ROLES; role++) {
            const struct model_tensor *t = &l->tensors[role];
            if (t->n > 0)
                CHECK(t->offset + role_bytes((enum tensor_role)role, t->dtype, t->n, t->k) <=
                      l->n_bytes);
        }
    }
    CHECK(pieces == m->n_pieces);
    model_embed_row(m, m->shape.vocab - 1, &offset, &n_bytes);
    CHECK(offset + n_bytes <= m->layers[0].offset + m->layers[0].n_bytes);
    struct tokenizer *tok;
    if (m->tokenizer && tokenizer_open(&tok, m->tokenizer, m->tokenizer_bytes, "m.pack") == OK) {
        fuzz_tokenizer_use(tok, "a b", 3);
        tokenizer_close(tok);
    }
}

static void pack_one(const uint8_t *data, size_t n)
{
    static uint8_t page[BLOCK_BYTES];
    struct model m;
    uint32_t pages;
    if (n < 5)
        return;
    memcpy(&pages, data + 1, 4);
    const uint8_t *meta = data + 5;
    const int64_t n_meta = (int64_t)n - 5, at = (int64_t)pages * BLOCK_BYTES;
    if (data[0] & 1) {
        fuzz_file("m.pack", data + 1, n - 1);
    } else {
        const struct pack_header h = {.file_bytes = at + n_meta,
                                      .meta_offset = at,
                                      .meta_bytes = n_meta,
                                      .meta_crc = crc32c(0, meta, n_meta)};
        pack_header_encode(&h, page);
        fuzz_file_sparse("m.pack", at + n_meta, page, min_i64(BLOCK_BYTES, at + n_meta), meta,
                         n_meta);
    }
    if (model_open(&m, PATH) != OK)
        return;
    model_use(&m);
    model_close(&m);
}

const struct fuzz_target fuzz_pack = {.name = "pack", .one = pack_one};

/* ---- PACK.zst ---- */

#define LAYERS 4
#define PIECES 6 // 1, 2, 2, 1
#define ID     0x1122334455667788ull

static void codec_one(const uint8_t *data, size_t n)
{
    static uint8_t page[BLOCK_BYTES];
    static char path[] = PATH;
    static struct model_layer layers[LAYERS] = {
        {.offset = BLOCK_BYTES, .n_bytes = PIECE_BYTES, .piece = 0},
        {.n_bytes = PIECE_BYTES + BLOCK_BYTES, .piece = 1},
        {.n_bytes = PIECE_BYTES + BLOCK_BYTES, .piece = 3},
        {.n_bytes = BLOCK_BYTES, .piece = 5},
    };
    static const struct model m = {
        .path = path, .fingerprint = ID, .n_pieces = PIECES, .n_layers = LAYERS, .layers = layers};
    struct pack_codec z;
    uint32_t pages;
    if (n < 5)
        return;
    memcpy(&pages, data + 1, 4);
    const uint8_t *table = data + 5;
    const int64_t n_table = (int64_t)n - 5, at = (int64_t)pages * BLOCK_BYTES;
    if (data[0] & 1) {
        fuzz_file("m.pack.zst", data + 1, n - 1);
    } else {
        struct pack_out o = {.data = page, .capacity = sizeof page};
        memset(page, 0, sizeof page);
        pack_put(&o, "sluicezs", 8);
        pack_put_u32(&o, 1);
        pack_put_u32(&o, crc32c(0, table, n_table));
        pack_put_u64(&o, (uint64_t)(at + n_table));
        pack_put_u64(&o, PIECES);
        pack_put_u64(&o, (uint64_t)at);
        pack_put_u64(&o, ID);
        o.n_bytes = BLOCK_BYTES - 4;
        pack_put_u32(&o, crc32c(0, page, BLOCK_BYTES - 4));
        fuzz_file_sparse("m.pack.zst", at + n_table, page, min_i64(BLOCK_BYTES, at + n_table),
                         table, n_table);
    }
    if (pack_codec_open(&z, &m) != OK)
        return;
    for (int i = 0; i < LAYERS; i++) {
        const struct codec_piece *p = pack_codec_layer(&z, &layers[i]);
        for (int64_t k = 0; p && k < model_pieces(&layers[i]); k++)
            CHECK(p[k].stored_bytes > 0 && p[k].stored_bytes <= PIECE_BYTES &&
                  p[k].offset + p[k].stored_bytes <= z.file_bytes);
    }
    pack_codec_close(&z);
}

const struct fuzz_target fuzz_codec = {.name = "codec", .one = codec_one};
