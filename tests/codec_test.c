/* tests/codec_test.c - offload/codec and engine/pack_codec: what is decoded is what was encoded,
 * and what is damaged is refused, never followed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include <sys/stat.h>

#include "engine/model/dummy.h"
#include "engine/model/pack.h"
#include "engine/model/pack_codec.h"
#include "tests/sweep.h"
#include "tests/temp_dir.h"

static struct codec *codec;
static uint8_t *in, *stored, *out;
static struct model model;

static void make_model(struct model *m, const char *config, const char *pack)
{
    struct pack_provider p;
    assert_int_equal(dummy_open(&p, config), OK);
    struct pack_request r = {.provider = &p, .path = pack};
    assert_int_equal(pack_write(&r), OK);
    dummy_close(&p);
    assert_int_equal(model_open(m, pack), OK);
}

static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    in = aligned_alloc(4096, PIECE_BYTES);
    stored = aligned_alloc(4096, PIECE_BYTES);
    out = aligned_alloc(4096, PIECE_BYTES);
    assert_true(in && stored && out);
    assert_int_equal(codec_open(&codec, 1), OK);
    temp_write_text("m.cfg", "family = llama\ndim = 256\nlayers = 3\nheads = 4\nffn = 1280\n"
                             "vocab = 5000\ncontext = 128\n");
    make_model(&model, temp_path("m.cfg"), temp_path("m.pack"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    codec_close(codec);
    free(in);
    free(stored);
    free(out);
    temp_dir_remove();
    return 0;
}

/* ---- pieces ---- */

static uint64_t random_state = 1;

static uint64_t random_next(void)
{
    return mix64(random_state++);
}

/* Units of which some have few values, as bf12 has them: `low` of every `period`, from `phase`. */
static void fill(int64_t n_bytes, int low, int period, int phase)
{
    for (int64_t i = 0; i < n_bytes; i++) {
        int of_low = (i / CODEC_UNIT + phase) % period < low;
        in[i] = (uint8_t)(of_low ? (uint64_t)__builtin_ctzll(random_next() | 1 << 9) * 17
                                 : random_next());
    }
}

/* A short last piece, a single block, whole ones; everything, a part and nothing of it packed. */
static void test_round_trip(void **state)
{
    (void)state;
    static const int64_t sizes[] = {PIECE_BYTES, PIECE_BYTES - 4096, 655360, 69632, 3 * 4096, 4096,
                                    64,          200000 / 64 * 64};
    static const int shapes[][2] = {{1, 3}, {1, 1}, {0, 1}, {2, 3}, {1, 2}, {1, 9}};
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 6; i++) {
            fill(sizes[k], shapes[i][0], shapes[i][1], i);
            int64_t n = codec_compress(codec, in, sizes[k], stored);
            assert_true(n % BLOCK_BYTES == 0 && (n == 0 || n <= sizes[k] - BLOCK_BYTES));
            assert_true(shapes[i][0] == 0 || sizes[k] < 65536 || i == 5 || n > 0);
            if (n == 0)
                continue;
            memset(out, 0xee, PIECE_BYTES);
            assert_int_equal(codec_decompress(codec, stored, n, out, sizes[k]), 0);
            assert_memory_equal(out, in, (size_t)sizes[k]);
            for (int64_t j = sizes[k]; j < PIECE_BYTES; j++)
                assert_int_equal(out[j], 0xee);
        }
}

/* What cannot shrink by a block is left alone; zeros nearly vanish. */
static void test_plain(void **state)
{
    (void)state;
    fill(PIECE_BYTES, 0, 1, 0);
    assert_int_equal(codec_compress(codec, in, PIECE_BYTES, stored), 0);
    memset(in, 0, PIECE_BYTES);
    assert_int_equal(codec_compress(codec, in, PIECE_BYTES, stored), BLOCK_BYTES);
    assert_int_equal(codec_compress(codec, in, BLOCK_BYTES, stored), 0);
}

/* Any bytes, in memory of exactly their size (the sanitizers look on): right, or refused, or other
 * bytes, which the pack's checksum would see. */
static void test_damage(void **state)
{
    (void)state;
    const int64_t size = 160 * 1024;
    fill(size, 1, 3, 1);
    int64_t n = codec_compress(codec, in, size, stored), refused = 0, cases = sweep(600, 3000);
    assert_true(n > 0);
    uint8_t *hurt = malloc((size_t)n), *to = malloc((size_t)size);
    for (int64_t i = 0; i < cases; i++) {
        int64_t length = n;
        memcpy(hurt, stored, (size_t)n);
        int64_t head = i % 3 == 0 ? 8 : i % 3 == 1 ? 512 : n;
        for (int k = 0; k < 1 + i % 4; k++)
            hurt[random_next() % (uint64_t)head] ^= (uint8_t)(1u << random_next() % 8);
        if (i % 5 == 4)
            length = (int64_t)(random_next() % (uint64_t)n);
        uint8_t *exact = malloc((size_t)max_i64(length, 1));
        memcpy(exact, hurt, (size_t)length);
        refused += codec_decompress(codec, exact, length, to, size) != 0;
        free(exact);
    }
    assert_true(refused > cases / 3);
    assert_int_equal(codec_decompress(codec, stored, n, to, size), 0); // the context is as before
    assert_memory_equal(to, in, (size_t)size);
    assert_int_equal(codec_decompress(codec, stored, n - 4096, to, size), -1);
    free(hurt);
    free(to);
}

/* ---- the file ---- */

/* What looks whole and was never written: refused, by the one thing that is wrong in it. */
static void test_forged(void **state)
{
    (void)state;
    enum { N_UNITS = 2004, SIZE = N_UNITS * CODEC_UNIT, MAP = 8 };
    fill(SIZE, 1, 3, 0); // units 0, 3, ... are packed
    memset(stored, 0xa5, PIECE_BYTES);
    int64_t n = codec_compress(codec, in, SIZE, stored);
    uint32_t n_packed;
    memcpy(&n_packed, stored + 4, 4);
    assert_true(n > 0 && n + BLOCK_BYTES <= PIECE_BYTES && stored[MAP] & 1 && !(stored[MAP] & 2));
    uint8_t *again = malloc((size_t)n);
    memcpy(again, stored, (size_t)n);
    memset(stored, 0x5a, PIECE_BYTES);
    assert_int_equal(codec_compress(codec, in, SIZE, stored), n);
    assert_memory_equal(again, stored, (size_t)n); // to the last byte of its padding
    assert_int_equal(codec_decompress(codec, stored, n, out, SIZE), 0);
    assert_int_equal(codec_decompress(codec, stored, n + BLOCK_BYTES, out, SIZE), -1);
    stored[MAP] ^= 1; // a bit behind the end of the map for the first one
    stored[MAP + N_UNITS / 8] ^= 0x80;
    assert_int_equal(codec_decompress(codec, stored, n, out, SIZE), -1);
    memcpy(stored, again, (size_t)n);
    stored[MAP] |= 2; // one packed unit more than the frame has
    n_packed++;
    memcpy(stored + 4, &n_packed, 4);
    assert_int_equal(codec_decompress(codec, stored, n, out, SIZE), -1);
    free(again);
}

static uint8_t *file_read(const char *name, int64_t *n_bytes)
{
    struct stat st;
    assert_int_equal(stat(temp_path(name), &st), 0);
    uint8_t *bytes = malloc((size_t)st.st_size + 1);
    FILE *f = fopen(temp_path(name), "rb");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, (size_t)st.st_size, f), st.st_size);
    fclose(f);
    *n_bytes = st.st_size;
    return bytes;
}

static enum err seen(void *ctx, int64_t done_bytes, int64_t total_bytes)
{
    *(int64_t *)ctx = done_bytes;
    assert_in_range(done_bytes, 0, total_bytes);
    return OK;
}

/* Every piece of every layer but the embedding, with and without a pool. */
static void test_file(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 3, NULL), OK);
    for (int k = 0; k < 2; k++) {
        struct pack_codec z;
        int64_t done = 0, n_bytes, all = 0, less = 0;
        struct pack_codec_request r = {.model = &model,
                                       .pool = k ? pool : NULL,
                                       .memory_bytes = 1 << 24,
                                       .progress = seen,
                                       .ctx = &done};
        assert_int_equal(pack_codec_make(&r), OK);
        assert_int_equal(access(temp_path("m.pack.zst.tmp"), F_OK), -1);
        assert_int_equal(pack_codec_open(&z, &model), OK);
        uint8_t *bytes = file_read("m.pack.zst", &n_bytes);
        assert_int_equal(n_bytes, z.file_bytes);
        assert_null(pack_codec_layer(&z, &model.layers[0]));
        for (int i = 1; i < model.n_layers; i++) {
            const struct model_layer *l = &model.layers[i];
            const struct codec_piece *p = pack_codec_layer(&z, l);
            assert_non_null(p);
            for (int64_t j = 0; j < model_pieces(l); j++) {
                int64_t n = min_i64(PIECE_BYTES, l->n_bytes - j * PIECE_BYTES);
                const uint8_t *from = bytes + p[j].offset;
                if (p[j].stored_bytes < n) {
                    assert_int_equal(codec_decompress(codec, from, p[j].stored_bytes, out, n), 0);
                    from = out;
                }
                assert_int_equal(model_piece_check(&model, i, j, from, n), OK);
                less += p[j].stored_bytes;
            }
            all += l->n_bytes;
        }
        assert_int_equal(done, all);
        assert_true((double)less < 0.93 * (double)all); // bf12 of normal numbers
        free(bytes);
        pack_codec_close(&z);
    }
    pool_close(pool);
}

static enum err open_changed(const uint8_t *bytes, int64_t n_bytes)
{
    struct pack_codec z;
    temp_write("m.pack.zst", bytes, n_bytes);
    enum err e = pack_codec_open(&z, &model);
    if (e == OK)
        pack_codec_close(&z);
    return e;
}

/* Cut anywhere, or changed in header or table: refused. Another pack's: not this one's. */
static void test_file_damage(void **state)
{
    (void)state;
    int64_t n;
    struct pack_codec z;
    uint8_t *bytes = file_read("m.pack.zst", &n);
    int64_t table = n - model.n_pieces * 12;
    for (int i = 0; i < 40; i++)
        assert_int_equal(open_changed(bytes, n * i / 40), ERR_CORRUPT);
    assert_int_equal(open_changed(bytes, n - 1), ERR_CORRUPT);
    for (int64_t at = table; at < n; at += sweep(5, 1)) { // 5: each byte of an entry of 12 in turn
        bytes[at] ^= 1;
        assert_int_equal(open_changed(bytes, n), ERR_CORRUPT);
        bytes[at] ^= 1;
    }
    for (int64_t at = 0; at < BLOCK_BYTES; at += at < 64 ? 1 : 97) {
        bytes[at] ^= 4;
        assert_int_equal(open_changed(bytes, n), ERR_CORRUPT);
        bytes[at] ^= 4;
    }
    assert_int_equal(open_changed(bytes, n), OK);
    model.fingerprint ^= 1;
    assert_int_equal(pack_codec_open(&z, &model), ERR_INPUT);
    model.fingerprint ^= 1;
    unlink(temp_path("m.pack.zst"));
    assert_int_equal(pack_codec_open(&z, &model), ERR_INPUT);
    free(bytes);
}

/* A pack that is damaged is found while its pieces are encoded; nothing gets the file's name. */
static void test_bad_pack(void **state)
{
    (void)state;
    model.piece_crcs[model.layers[2].piece] ^= 1;
    struct pack_codec_request r = {.model = &model};
    assert_int_equal(pack_codec_make(&r), ERR_CORRUPT);
    model.piece_crcs[model.layers[2].piece] ^= 1;
    assert_int_equal(access(temp_path("m.pack.zst"), F_OK), -1);
    assert_int_equal(access(temp_path("m.pack.zst.tmp"), F_OK), -1);
}

/* Of layers in the file and of layers that are still to be made. */
static void test_measure(void **state)
{
    (void)state;
    struct plan plan = {.layers = model.n_layers};
    for (int absent = 0; absent < 2; absent++) {
        struct pack_codec_sample s;
        for (int i = 0; i < model.n_layers; i++)
            model.layers[i].absent = absent;
        assert_int_equal(pack_codec_measure(&model, &s), OK);
        assert_true(s.share > 0.8 && s.share < 0.93 && s.rate > 1e6 && s.make_s > 0);
        assert_true(pack_codec_make_s(&model, &plan, &s) > s.make_s);
    }
    for (int i = 0; i < model.n_layers; i++)
        model.layers[i].absent = 0;
}

/* The layer in the middle has no MLP. */
static void test_measure_bare(void **state)
{
    (void)state;
    struct model bare;
    struct pack_codec_sample s;
    temp_write_text("bare.cfg",
                    "family = nemotron_h\npattern = MEMM*E\ndim = 256\nheads = 4\nhead_dim = 64\n"
                    "state_k_heads = 2\nstate_v_heads = 8\nstate_k_dim = 32\nstate_v_dim = 64\n"
                    "ffn = 64\nexperts = 4\nexperts_used = 2\nvocab = 5000\ncontext = 128\n");
    make_model(&bare, temp_path("bare.cfg"), temp_path("bare.pack"));
    for (int i = 0; i < bare.n_layers; i++)
        bare.layers[i].absent = 1;
    assert_int_equal(pack_codec_measure(&bare, &s), OK);
    assert_true(s.share < 0.95 && s.make_s > 0);
    model_close(&bare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_plain),
        cmocka_unit_test(test_damage),       cmocka_unit_test(test_forged),
        cmocka_unit_test(test_file),         cmocka_unit_test(test_file_damage),
        cmocka_unit_test(test_bad_pack),     cmocka_unit_test(test_measure),
        cmocka_unit_test(test_measure_bare),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
