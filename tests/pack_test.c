/* tests/pack_test.c - packs written from numbers in memory: what is read back is what was given,
 * and no damage goes unseen. */
#include "engine/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "tests/pack_check.h"
#include "tests/sweep.h"
#include "tests/temp_dir.h"

#define ALL_BIASES                                                                                 \
    (ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B) | ROLE_BIT(ROLE_O_B) |           \
     ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B))

/* A model whose numbers are a function of (role, layer, row, column). */
struct fake {
    enum dtype dtype[N_ROLES];
    int fail_after; // rows calls until one fails; -1: never
    float scale;    // of every number of a matrix; 0: 1
    int n_odd;      // so many numbers of row 70 of ROLE_DOWN have random bits: bf16 only
};

static char pack_path[96];

static float number_at(enum tensor_role role, int layer, int row, int column)
{
    uint64_t key = ((uint64_t)role << 56) ^ ((uint64_t)layer << 48) ^ ((uint64_t)row << 24);
    uint64_t h = mix64(key ^ (uint64_t)column);
    return (float)((int)(h % 2001) - 1000) / 512.0f;
}

static enum dtype fake_dtype(void *impl, enum tensor_role role, int layer)
{
    (void)layer;
    return ((struct fake *)impl)->dtype[role];
}

static void fake_row(const struct fake *f, enum tensor_role role, int layer, int row, int k,
                     void *out)
{
    enum dtype t = f->dtype[role];
    float *numbers = malloc((size_t)k * sizeof *numbers);
    for (int i = 0; i < k; i++)
        numbers[i] = number_at(role, layer, row, i) * (f->scale != 0 ? f->scale : 1);
    if (dtype_info(t)->ggml_id >= 0 && dtype_info(t)->block > 1) {
        uint8_t *bytes = out; // GGUF blocks have no encoder: take bytes, with a tame scale
        for (int64_t i = 0; i < dtype_row_bytes(t, k); i++)
            bytes[i] = (uint8_t)mix64((uint64_t)(row * 31 + layer) * 65536 + (uint64_t)i);
        for (int64_t i = 0; i < dtype_row_bytes(t, k); i += dtype_info(t)->block_bytes)
            memcpy(bytes + i, "\x11\x2c\x05\x30", 4); // f16 scale (and minimum, or two codes)
    } else {
        dtype_encode_row(t, numbers, k, out);
    }
    for (int i = 0; role == ROLE_DOWN && row == 70 && i < min_i64(f->n_odd, k); i++)
        ((uint16_t *)out)[i] = (uint16_t)mix64((uint64_t)i);
    free(numbers);
}

static const struct shape *fake_shape; // the provider's, for k by role

static enum err fake_rows(void *impl, enum tensor_role role, int layer, int first, int n, void *out)
{
    struct fake *f = impl;
    int rows, k;
    role_dims(fake_shape, role, layer, &rows, &k);
    assert_true(first >= 0 && n > 0 && n <= PANEL_ROWS && first + n <= rows);
    if (f->fail_after == 0)
        return fail(ERR_IO, "fake: no more rows");
    f->fail_after -= f->fail_after > 0;
    for (int i = 0; i < n; i++)
        fake_row(f, role, layer, first + i, k,
                 (uint8_t *)out + i * dtype_row_bytes(f->dtype[role], k));
    return OK;
}

static enum err fake_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    (void)impl;
    for (int i = 0; i < n; i++)
        out[i] = number_at(role, layer, 0, i);
    return OK;
}

static struct pack_provider provider(struct fake *f, struct shape shape, uint64_t optional)
{
    struct pack_provider p = {.shape = shape,
                              .tied = 0,
                              .name = "fake-model",
                              .impl = f,
                              .dtype = fake_dtype,
                              .rows = fake_rows,
                              .vector = fake_vector};
    for (int role = 0; role < N_ROLES; role++) {
        enum role_need need = role_need(&shape, role);
        if (need == ROLE_REQUIRED || (need == ROLE_OPTIONAL && (optional & ROLE_BIT(role))))
            p.roles |= ROLE_BIT(role);
    }
    return p;
}

static struct shape llama_shape(void)
{
    struct shape s = {.family = "llama",
                      .n_layers = 2,
                      .dim = 96,
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .head_dim = 24,
                      .ffn_dim = 160,
                      .vocab = 9001,
                      .context = 128,
                      .embed_dim = 96,
                      .norm = NORM_RMS,
                      .final_norm = 1,
                      .norm_eps = 1e-5f,
                      .act = ACT_SILU,
                      .gated = 1,
                      .embed_scale = 1,
                      .branch_scale = 0.5f,
                      .mlp_scale = 0.75f,
                      .logit_scale = 2,
                      .attn_softcap = 50,
                      .logit_softcap = 30,
                      .sinks = 1,
                      .position = POSITION_ROPE,
                      .rope_dim = 24,
                      .query_beta = 0.25f,
                      .query_period = 16,
                      .layer_rope = {0, SHAPE_NO_ROPE}};
    s.ropes[0].scale = 1.25f;
    for (int i = 0; i < 12; i++)
        s.ropes[0].inv_freq[i] = 1.0f / (float)(1 + i);
    return s;
}

/* Like opt-350m: post-norm, a narrow embedding, no final norm. */
static struct shape opt_shape(void)
{
    return (struct shape){.family = "opt",
                          .n_layers = 3,
                          .dim = 64,
                          .n_heads = 4,
                          .n_kv_heads = 4,
                          .head_dim = 16,
                          .ffn_dim = 128,
                          .vocab = 333,
                          .context = 30,
                          .embed_dim = 32,
                          .norm = NORM_LAYER,
                          .norm_place = NORM_AFTER_SUM,
                          .norm_eps = 1e-5f,
                          .act = ACT_XIELU,
                          .layer_alpha = {{1, 2}, {0.5f, 1.5f}, {3, 0.75f}},
                          .embed_scale = 1,
                          .branch_scale = 1,
                          .mlp_scale = 1,
                          .logit_scale = 1,
                          .position = POSITION_LEARNED,
                          .position_offset = 2};
}

static enum err write_pack(const struct pack_provider *p, enum pack_weights weights)
{
    struct pack_request r = {.provider = p,
                             .weights = weights,
                             .tokenizer = "tokens!",
                             .tokenizer_bytes = 7,
                             .path = pack_path};
    fake_shape = &p->shape;
    return pack_write(&r);
}

static uint8_t *read_file(const char *path, int64_t *n_bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *buf = aligned_alloc(64, (size_t)round_up(st.st_size, 64));
    assert_int_equal(read(fd, buf, (size_t)st.st_size), st.st_size);
    close(fd);
    *n_bytes = st.st_size;
    return buf;
}

static void write_file(const char *path, const void *buf, int64_t n_bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, buf, (size_t)n_bytes), n_bytes);
    close(fd);
}

/* What the stored row must decode to: through f32 exactly once when it was converted. */
static void expected_row(const struct fake *f, enum tensor_role role, int layer, int row, int k,
                         enum dtype stored, float *out)
{
    uint8_t *raw = calloc(1, (size_t)k * 8 + 64), *again = calloc(1, (size_t)k * 8 + 64);
    fake_row(f, role, layer, row, k, raw);
    dtype_decode_row(f->dtype[role], raw, k, out);
    if (stored != f->dtype[role]) {
        dtype_encode_row(stored, out, k, again);
        dtype_decode_row(stored, again, k, out);
    }
    free(raw);
    free(again);
}

static void compare_tensor(const struct fake *f, const struct model_layer *l, enum tensor_role role,
                           int layer, const uint8_t *extent)
{
    const struct model_tensor *t = &l->tensors[role];
    if (role_kind(role) == ROLE_IS_VECTOR) {
        const float *v = model_vector(l, role, extent);
        for (int i = 0; i < t->n; i++)
            assert_true(v[i] == number_at(role, layer, 0, i));
        return;
    }
    float *expected = malloc((size_t)t->k * sizeof(float)), *row = malloc((size_t)t->k * 4);
    float *panel = aligned_alloc(64, (size_t)round_up((int64_t)t->k * PANEL_ROWS * 4, 64));
    for (int i = 0; i < t->n; i++) {
        if (role_kind(role) == ROLE_IS_ROWS) {
            dtype_decode_row(t->dtype, extent + t->offset + i * dtype_row_bytes(t->dtype, t->k),
                             t->k, row);
        } else {
            struct weight w = model_weight(l, role, extent);
            if (i % PANEL_ROWS == 0)
                panel_decode_f32(w.dtype,
                                 (const uint8_t *)w.panels +
                                     i / PANEL_ROWS * dtype_panel_bytes(w.dtype, w.k),
                                 w.k, 0, w.k, panel);
            for (int c = 0; c < w.k; c++)
                row[c] = panel[c * PANEL_ROWS + i % PANEL_ROWS];
        }
        expected_row(f, role, layer, i + l->vocab_first, t->k, t->dtype, expected);
        assert_memory_equal(row, expected, (size_t)t->k * 4);
    }
    free(expected);
    free(row);
    free(panel);
}

/* Opens the pack and compares everything in it. */
static void compare_all(const struct fake *f, const struct pack_provider *p)
{
    struct model m;
    int64_t n_bytes;
    assert_int_equal(model_open(&m, pack_path), OK);
    assert_int_equal(pack_check(pack_path), OK);
    assert_true(model_is_pack(pack_path));
    assert_memory_equal(&m.shape, &p->shape, sizeof m.shape);
    assert_string_equal(m.name, "fake-model");
    assert_int_equal(m.tokenizer_bytes, 7);
    assert_memory_equal(m.tokenizer, "tokens!", 7);
    uint8_t *file = read_file(pack_path, &n_bytes);
    assert_int_equal(n_bytes, m.file_bytes);
    int64_t decoder_max = 0;
    int vocab = 0;
    for (int i = 0; i < m.n_layers; i++) {
        const struct model_layer *l = &m.layers[i];
        int decoder = i >= 1 && i <= m.shape.n_layers;
        if (decoder)
            decoder_max = max_i64(decoder_max, l->n_bytes);
        if (i > m.shape.n_layers) {
            assert_int_equal(l->vocab_first, vocab);
            assert_true(l->n_bytes <= decoder_max || l->vocab_rows <= HEAD_TILE);
            vocab += l->vocab_rows;
        }
        for (int role = 0; role < N_ROLES; role++) {
            enum role_place place =
                i == 0 ? ROLE_IN_EMBEDDING : (decoder ? ROLE_IN_DECODER : ROLE_IN_SLICE);
            assert_int_equal(model_has(l, role),
                             role_place(role) == place && (p->roles & ROLE_BIT(role)) != 0);
            if (model_has(l, role))
                compare_tensor(f, l, role, decoder ? i - 1 : 0, file + l->offset);
        }
    }
    assert_int_equal(vocab, m.shape.vocab);
    free(file);
    model_close(&m);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const enum dtype formats[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8, DTYPE_Q4};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        for (int opt = 0; opt < 2; opt++) {
            struct fake f = {.fail_after = -1};
            for (int role = 0; role < N_ROLES; role++)
                f.dtype[role] = formats[i];
            f.dtype[ROLE_POS] = DTYPE_F16;
            f.dtype[ROLE_DOWN] = DTYPE_F32; // formats may differ inside a layer
            struct pack_provider p =
                provider(&f, opt ? opt_shape() : llama_shape(), opt ? ALL_BIASES : 0);
            assert_int_equal(write_pack(&p, PACK_AUTO), OK);
            compare_all(&f, &p);
        }
    }
}

static void test_blocks_stay(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1};
    for (int role = 0; role < N_ROLES; role++)
        f.dtype[role] = DTYPE_Q8_0;
    f.dtype[ROLE_Q] = DTYPE_Q4_1;
    f.dtype[ROLE_DOWN] = DTYPE_Q5_0;
    struct pack_provider p = provider(&f, llama_shape(), 0);
    assert_int_equal(write_pack(&p, PACK_AUTO), OK);
    compare_all(&f, &p);
    struct model m;
    assert_int_equal(model_open(&m, pack_path), OK);
    assert_int_equal(m.layers[1].tensors[ROLE_Q].dtype, DTYPE_Q4_1);
    assert_int_equal(m.layers[0].tensors[ROLE_EMBED].dtype, DTYPE_Q8_0);
    model_close(&m);
}

static void test_conversion(void **state)
{
    (void)state;
    static const enum dtype expected[N_PACK_WEIGHTS] = {
        [PACK_F32] = DTYPE_F32, [PACK_F16] = DTYPE_F16, [PACK_BF16] = DTYPE_BF16,
        [PACK_Q8] = DTYPE_Q8,   [PACK_Q4] = DTYPE_Q4,   [PACK_BF12] = DTYPE_BF12};
    for (int w = PACK_F32; w < N_PACK_WEIGHTS; w++) {
        for (int blocks = 0; blocks < 2; blocks++) {
            struct fake f = {.fail_after = -1};
            for (int role = 0; role < N_ROLES; role++)
                f.dtype[role] = blocks ? DTYPE_Q8_0 : DTYPE_BF16;
            struct pack_provider p = provider(&f, opt_shape(), ALL_BIASES);
            assert_int_equal(write_pack(&p, w), OK);
            compare_all(&f, &p);
            struct model m;
            assert_int_equal(model_open(&m, pack_path), OK);
            assert_int_equal(m.weights, w);
            assert_int_equal(m.layers[1].tensors[ROLE_UP].dtype, expected[w]);
            assert_int_equal(m.layers[m.n_layers - 1].tensors[ROLE_HEAD].dtype, expected[w]);
            enum dtype pos = dtype_of_rows(expected[w]);
            if (w == PACK_Q8 || w == PACK_Q4)
                pos = blocks ? DTYPE_F32 : DTYPE_BF16;
            assert_int_equal(m.layers[0].tensors[ROLE_POS].dtype, pos);
            model_close(&m);
        }
    }
}

/* auto: bf16 matrices become bf12 where they can, to the bit, NaNs too; one panel that cannot keeps
 * its whole matrix bf16; rows stay, and so do other formats. */
static void test_auto_finds_bf12(void **state)
{
    (void)state;
    for (int fits = 0; fits < 2; fits++) {
        struct fake f = {.fail_after = -1, .n_odd = fits ? 9 : 1000};
        for (int role = 0; role < N_ROLES; role++)
            f.dtype[role] = DTYPE_BF16;
        f.dtype[ROLE_UP] = DTYPE_F16;
        struct pack_provider p = provider(&f, llama_shape(), 0);
        struct model m;
        int64_t n_bytes;
        assert_int_equal(write_pack(&p, PACK_AUTO), OK);
        assert_int_equal(model_open(&m, pack_path), OK);
        const struct model_layer *l = &m.layers[1];
        const struct model_tensor *down = &l->tensors[ROLE_DOWN];
        assert_int_equal(m.layers[0].tensors[ROLE_EMBED].dtype, DTYPE_BF16);
        assert_int_equal(l->tensors[ROLE_Q].dtype, DTYPE_BF12);
        assert_int_equal(l->tensors[ROLE_UP].dtype, DTYPE_F16);
        assert_int_equal(down->dtype, fits ? DTYPE_BF12 : DTYPE_BF16);
        assert_int_equal(m.layers[m.n_layers - 1].tensors[ROLE_HEAD].dtype, DTYPE_BF12);
        uint8_t *file = read_file(pack_path, &n_bytes);
        uint16_t *row = calloc(1, (size_t)down->k * 2);
        uint16_t *pairs = calloc(PANEL_ROWS, (size_t)down->k * 2 + 2);
        fake_row(&f, ROLE_DOWN, 0, 70, down->k, row);
        const int64_t panel =
            l->offset + down->offset + 70 / PANEL_ROWS * dtype_panel_bytes(down->dtype, down->k);
        panel_decode_bf16(down->dtype, file + panel, down->k, 0, down->k, pairs);
        for (int i = 0; i < down->k; i++)
            assert_int_equal(pairs[(i / 2 * PANEL_ROWS + 70 % PANEL_ROWS) * 2 + i % 2], row[i]);
        free(file);
        free(row);
        free(pairs);
        model_close(&m);
        f.n_odd = 0;
        assert_int_equal(write_pack(&p, PACK_AUTO), OK);
        compare_all(&f, &p);
    }
}

static void test_rows_and_params(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1};
    for (int role = 0; role < N_ROLES; role++)
        f.dtype[role] = DTYPE_F32;
    struct pack_provider p = provider(&f, opt_shape(), ALL_BIASES);
    p.tied = 1;
    assert_int_equal(write_pack(&p, PACK_AUTO), OK);
    struct model m;
    int64_t offset, n_bytes, file_bytes;
    assert_int_equal(model_open(&m, pack_path), OK);
    uint8_t *file = read_file(pack_path, &file_bytes);
    float first;
    model_embed_row(&m, 332, &offset, &n_bytes);
    assert_int_equal(n_bytes, 32 * 4);
    memcpy(&first, file + offset, 4);
    assert_true(first == number_at(ROLE_EMBED, 0, 332, 0));
    const struct model_tensor *positions = &m.layers[0].tensors[ROLE_POS];
    assert_int_equal(dtype_row_bytes(positions->dtype, positions->k), 64 * 4);
    memcpy(&first, file + m.layers[0].offset + positions->offset + 31 * 64 * 4, 4);
    assert_true(first == number_at(ROLE_POS, 0, 31, 0));
    int64_t per_layer = 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 64 + 128 + 4 * 64;
    assert_int_equal(m.n_params, 333 * 32 + 32 * 64 + 2 * 64 * 32 + 3 * per_layer);
    assert_int_equal(m.tied, 1);
    assert_int_equal(m.dummy, 0);
    free(file);
    model_close(&m);
}

static void test_slices_fit_decoder_layer(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1};
    for (int role = 0; role < N_ROLES; role++)
        f.dtype[role] = DTYPE_BF16;
    struct shape s = llama_shape();
    s.ffn_dim = 5000; // a decoder layer of 3 MB: three tiles of 768 KiB fit
    s.vocab = 5 * HEAD_TILE + 7;
    struct pack_provider p = provider(&f, s, 0);
    assert_int_equal(write_pack(&p, PACK_AUTO), OK);
    struct model m;
    assert_int_equal(model_open(&m, pack_path), OK);
    assert_int_equal(m.n_slices, 2);
    assert_int_equal(m.layers[3].vocab_rows, 3 * HEAD_TILE);
    assert_int_equal(m.layers[4].vocab_rows, 2 * HEAD_TILE + 7);
    assert_true(m.layers[3].n_bytes <= m.layers[1].n_bytes);
    model_close(&m);
}

/* The same numbers give the same bytes, whatever the file is called; other numbers another value.
 */
static void test_fingerprint(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1};
    struct pack_provider p = provider(&f, opt_shape(), ALL_BIASES);
    uint64_t prints[4];
    for (int i = 0; i < 4; i++) {
        struct model m;
        for (int role = 0; role < N_ROLES; role++)
            f.dtype[role] = i == 2 ? DTYPE_F16 : DTYPE_F32;
        p.name = i == 1 ? "other name" : "name";
        p.shape.norm_eps = i == 3 ? 1e-6f : 1e-5f;
        assert_int_equal(write_pack(&p, PACK_AUTO), OK);
        assert_int_equal(model_open(&m, pack_path), OK);
        prints[i] = m.fingerprint;
        model_close(&m);
    }
    assert_true(prints[0] == prints[1]);
    assert_true(prints[0] != prints[2] && prints[0] != prints[3]);
}

/* A pack small enough to damage every byte of it. */
static uint8_t *small_pack(int64_t *n_bytes)
{
    struct fake f = {.fail_after = -1};
    for (int role = 0; role < N_ROLES; role++)
        f.dtype[role] = DTYPE_BF16;
    struct shape s = opt_shape();
    s.n_layers = 1;
    s.vocab = 50;
    s.dim = 16;
    s.embed_dim = 8;
    s.n_heads = 2;
    s.n_kv_heads = 2;
    s.head_dim = 8;
    s.ffn_dim = 16;
    struct pack_provider p = provider(&f, s, ALL_BIASES);
    assert_int_equal(write_pack(&p, PACK_AUTO), OK);
    return read_file(pack_path, n_bytes);
}

static void test_every_flip_is_seen(void **state)
{
    (void)state;
    int64_t n_bytes;
    uint8_t *file = small_pack(&n_bytes);
    struct pack_header h;
    assert_int_equal(pack_header_decode(&h, file, "x"), OK);
    int fd = open(pack_path, O_WRONLY);
    for (int64_t i = 0; i < n_bytes; i += sweep(3, 1)) {
        uint8_t flipped = file[i] ^ (uint8_t)(1 << (i % 8));
        struct model m;
        assert_int_equal(pwrite(fd, &flipped, 1, i), 1);
        enum err e = model_open(&m, pack_path);
        if (i < BLOCK_BYTES || i >= h.meta_offset) {
            assert_int_equal(e, i < 8 ? ERR_INPUT : ERR_CORRUPT);
        } else {
            assert_int_equal(e, OK);
            assert_int_equal(pack_check(pack_path), ERR_CORRUPT);
            model_close(&m);
        }
        assert_int_equal(pwrite(fd, file + i, 1, i), 1);
    }
    close(fd);
    assert_int_equal(pack_check(pack_path), OK);
    free(file);
}

static void test_every_prefix_is_refused(void **state)
{
    (void)state;
    int64_t n_bytes;
    uint8_t *file = small_pack(&n_bytes);
    for (int64_t n = n_bytes - 1; n >= 0; n -= n > 4200 ? 37 : 1) {
        struct model m;
        assert_int_equal(truncate(pack_path, n), 0);
        assert_int_equal(model_open(&m, pack_path), n < BLOCK_BYTES ? ERR_INPUT : ERR_CORRUPT);
    }
    write_file(pack_path, file, n_bytes);
    assert_int_equal(truncate(pack_path, n_bytes + 1), 0);
    struct model m;
    assert_int_equal(model_open(&m, pack_path), ERR_CORRUPT);
    free(file);
}

/* Files that lie under right checksums: refused, or harmless. */
static void test_hostile_metadata(void **state)
{
    (void)state;
    int64_t n_bytes;
    int n_refused = 0, n_opened = 0;
    uint8_t *file = small_pack(&n_bytes);
    struct pack_header h;
    assert_int_equal(pack_header_decode(&h, file, "x"), OK);
    uint8_t *meta = file + h.meta_offset, page[BLOCK_BYTES];
    for (int64_t i = 0; i < h.meta_bytes; i++) {
        static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x10};
        for (size_t v = 0; v < sizeof masks; v++) {
            struct model m;
            uint8_t saved = meta[i];
            meta[i] ^= masks[v];
            h.meta_crc = crc32c(0, meta, h.meta_bytes);
            pack_header_encode(&h, page);
            int fd = open(pack_path, O_WRONLY);
            assert_int_equal(pwrite(fd, page, BLOCK_BYTES, 0), BLOCK_BYTES);
            assert_int_equal(pwrite(fd, meta, (size_t)h.meta_bytes, h.meta_offset), h.meta_bytes);
            close(fd);
            enum err e = model_open(&m, pack_path);
            assert_true(e == OK || e == ERR_CORRUPT);
            n_refused += e != OK;
            n_opened += e == OK;
            for (int l = 0; e == OK && l < m.n_layers; l++)
                for (int role = 0; role < N_ROLES; role++) {
                    const struct model_tensor *t = &m.layers[l].tensors[role];
                    assert_true(t->n == 0 || t->offset + role_bytes(role, t->dtype, t->n, t->k) <=
                                                 m.layers[l].n_bytes);
                }
            if (e == OK)
                model_close(&m);
            meta[i] = saved;
        }
    }
    assert_true(n_refused > 1000 && n_opened > 100); // both sides were reached
    free(file);
}

/* A format that has a name but no decoder in this program. */
static void test_unknown_format(void **state)
{
    (void)state;
    static const char *const names[] = {"bf13", "q9_9", ""};
    int64_t n_bytes;
    uint8_t *file = small_pack(&n_bytes), page[BLOCK_BYTES];
    struct pack_header h;
    assert_int_equal(pack_header_decode(&h, file, "x"), OK);
    uint8_t *at = memmem(file + h.meta_offset, (size_t)h.meta_bytes, "bf16\0\0\0\0", 8);
    assert_non_null(at);
    for (int i = 0; i < 3; i++) {
        struct model m;
        memset(at, 0, 8);
        memcpy(at, names[i], strlen(names[i]));
        h.meta_crc = crc32c(0, file + h.meta_offset, h.meta_bytes);
        pack_header_encode(&h, page);
        memcpy(file, page, BLOCK_BYTES);
        write_file(pack_path, file, n_bytes);
        assert_int_equal(model_open(&m, pack_path), ERR_CORRUPT);
        assert_non_null(strstr(err_text(), "layer 0: bad tensor format"));
    }
    free(file);
}

static int n_files(void)
{
    char command[128];
    snprintf(command, sizeof command, "exit $(ls %s | wc -l)", temp_dir);
    int status = system(command);
    return WEXITSTATUS(status);
}

static enum err stop_at_once(void *ctx, int64_t done_bytes, int64_t total_bytes)
{
    assert_true(done_bytes > 0 && done_bytes <= total_bytes);
    ++*(int *)ctx;
    return fail(ERR_STOPPED, "stopped");
}

/* Errors leave neither a pack nor a temporary file, and an older pack stays. */
static void test_failures_leave_nothing(void **state)
{
    (void)state;
    struct fake f = {.fail_after = 5};
    struct pack_provider p = provider(&f, llama_shape(), 0);
    int n_calls = 0;
    unlink(pack_path);
    assert_int_equal(write_pack(&p, PACK_AUTO), ERR_IO);
    assert_int_equal(n_files(), 0);
    f.fail_after = -1;
    struct pack_request r = {
        .provider = &p, .path = pack_path, .progress = stop_at_once, .ctx = &n_calls};
    assert_int_equal(pack_write(&r), ERR_STOPPED);
    assert_int_equal(n_calls, 1);
    assert_int_equal(n_files(), 0);
    assert_int_equal(write_pack(&p, PACK_AUTO), OK);
    assert_int_equal(pack_write(&r), ERR_STOPPED);
    assert_int_equal(pack_check(pack_path), OK);
    assert_int_equal(n_files(), 1);
    r.path = "/nowhere/at/all/x.pack";
    assert_int_equal(pack_write(&r), ERR_IO);
}

/* A disk that fills up on the way: the limit of a file's size stands in for it. */
static void test_write_error(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1};
    struct pack_provider p = provider(&f, llama_shape(), 0);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    signal(SIGXFSZ, SIG_IGN);
    unlink(pack_path);
    for (rlim_t limit = 0; limit < 4000000; limit += 399999) {
        small.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        enum err e = write_pack(&p, PACK_AUTO);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(e, ERR_IO);
        assert_non_null(strstr(err_text(), "write at"));
        assert_int_equal(n_files(), 0);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* 512 layers of 131072 x 131072 do not fit any disk: said before anything is written. */
static void test_preflight(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1};
    struct shape s = llama_shape();
    s.n_layers = SHAPE_LAYERS_MAX;
    s.dim = s.embed_dim = s.ffn_dim = SHAPE_DIM_MAX;
    s.n_heads = s.n_kv_heads = SHAPE_DIM_MAX / 128;
    s.head_dim = 128;
    struct pack_provider p = provider(&f, s, 0);
    unlink(pack_path);
    assert_int_equal(write_pack(&p, PACK_AUTO), ERR_IO);
    assert_non_null(strstr(err_text(), "needs 246")); // 512 * 7 * 2^34 * 4 bytes and a little
    assert_int_equal(n_files(), 0);
}

static void test_f16_overflow(void **state)
{
    (void)state;
    struct fake f = {.fail_after = -1, .scale = 1e5f};
    for (int role = 0; role < N_ROLES; role++)
        f.dtype[role] = DTYPE_BF16;
    struct pack_provider p = provider(&f, llama_shape(), 0);
    assert_int_equal(write_pack(&p, PACK_F16), ERR_INPUT);
    assert_non_null(strstr(err_text(), "does not fit f16"));
    assert_int_equal(write_pack(&p, PACK_F32), OK);
}

static void test_cache_path(void **state)
{
    (void)state;
    char model[128], cache[128], a[256], b[256], c[256];
    snprintf(model, sizeof model, "%s/m.gguf", temp_dir);
    snprintf(cache, sizeof cache, "%s/cache/deep", temp_dir);
    setenv("SLUICE_CACHE_DIR", cache, 1);
    write_file(model, "abc", 3);
    assert_int_equal(pack_cache_path(model, PACK_AUTO, 1, a, sizeof a), OK);
    assert_int_equal(pack_cache_path(model, PACK_Q8, 1, b, sizeof b), OK);
    assert_string_not_equal(a, b);
    assert_memory_equal(a, cache, strlen(cache));
    assert_non_null(strstr(a, "/m.gguf-"));
    assert_non_null(strstr(a, "-auto.pack"));
    assert_int_equal(access(cache, W_OK), 0);
    assert_int_equal(pack_cache_path(model, PACK_AUTO, 2, c, sizeof c), OK);
    assert_string_not_equal(a, c);
    write_file(a, "", 0); // that of a copy is taken
    assert_int_equal(pack_cache_path("/nowhere/copy", PACK_AUTO, 1, b, sizeof b), OK);
    assert_string_equal(a, b);
    assert_int_equal(pack_cache_path(model, PACK_AUTO, 2, c, 20), ERR_USAGE);
}

static void test_names(void **state)
{
    (void)state;
    for (int w = 0; w < N_PACK_WEIGHTS; w++)
        assert_int_equal(pack_weights_by_name(pack_weights_name(w)), w);
    assert_int_equal(pack_weights_by_name("q5"), N_PACK_WEIGHTS);
    for (int role = 0; role < N_ROLES; role++)
        assert_non_null(role_name(role));
    assert_false(model_is_pack("/dev/null"));
    struct model m;
    assert_int_equal(model_open(&m, "/nowhere"), ERR_INPUT);
    assert_int_equal(model_open(&m, "/dev/null"), ERR_INPUT);
    model_close(&m);
}

static int make_folder(void **state)
{
    (void)state;
    temp_dir_make();
    snprintf(pack_path, sizeof pack_path, "%s/test.pack", temp_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_blocks_stay),
        cmocka_unit_test(test_conversion),
        cmocka_unit_test(test_auto_finds_bf12),
        cmocka_unit_test(test_rows_and_params),
        cmocka_unit_test(test_slices_fit_decoder_layer),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_every_flip_is_seen),
        cmocka_unit_test(test_every_prefix_is_refused),
        cmocka_unit_test(test_hostile_metadata),
        cmocka_unit_test(test_unknown_format),
        cmocka_unit_test(test_failures_leave_nothing),
        cmocka_unit_test(test_write_error),
        cmocka_unit_test(test_preflight),
        cmocka_unit_test(test_f16_overflow),
        cmocka_unit_test(test_cache_path),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, make_folder, temp_dir_teardown);
}
