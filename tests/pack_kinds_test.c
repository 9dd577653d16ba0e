/* tests/pack_kinds_test.c - packs of models whose layers are of two kinds, and of models with rows
 * for all layers beside the embedding's: what each layer holds, and directories that lie about it
 * under right checksums. */
#include "engine/model/dummy.h"
#include "engine/model/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/pack_check.h"
#include "tests/temp_dir.h"

#define N_LAYERS 4
#define N_DENSE  2
#define EXPERTS  16 // as many as K has outputs: a bias of one could be the other's

static const char model_text[] =
    "family = qwen2_moe\ndim = 64\nlayers = 4\nheads = 4\nkv_heads = 1\nhead_dim = 16\nffn = 32\n"
    "experts = 16\nexperts_used = 2\nshared_ffn = 48\ndense_ffn = 80\ndense_layers = 2\n"
    "vocab = 300\ncontext = 64\ntied = 0\n";

/* Layers 4 and 9 are wide; layers from 6 on use keys and values of layers 4 and 5. */
static const char lent_text[] =
    "family = gemma4\ndim = 72\nlayers = 10\nheads = 2\nkv_heads = 1\nhead_dim = 16\n"
    "wide_head_dim = 32\nffn = 40\nlate_ffn = 80\nkv_own_layers = 6\nlayer_input = 24\n"
    "vocab = 301\ncontext = 64\n";

static void write_model(const char *text, enum pack_weights weights, struct pack_provider *p,
                        char path[1024])
{
    struct pack_request r = {.provider = p, .weights = weights, .path = path};
    snprintf(path, 1024, "%s", temp_path("kinds.pack"));
    temp_write_text("kinds.cfg", text);
    assert_int_equal(dummy_open(p, temp_path("kinds.cfg")), OK);
    assert_int_equal(pack_write(&r), OK);
}

static void write_kinds(enum pack_weights weights, struct pack_provider *p, char path[1024])
{
    write_model(model_text, weights, p, path);
}

/* The whole file, to be freed, and its header. */
static uint8_t *read_pack(const char *path, struct pack_header *h)
{
    uint8_t page[BLOCK_BYTES];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(page, 1, sizeof page, f), sizeof page);
    assert_int_equal(pack_header_decode(h, page, path), OK);
    uint8_t *file = malloc((size_t)h->file_bytes);
    rewind(f);
    assert_int_equal(fread(file, 1, (size_t)h->file_bytes, f), h->file_bytes);
    fclose(f);
    return file;
}

static void test_layers(void **state)
{
    (void)state;
    static const enum tensor_role dense[] = {ROLE_DENSE_GATE, ROLE_DENSE_UP, ROLE_DENSE_DOWN};
    static const enum tensor_role experts[] = {ROLE_ROUTER,    ROLE_GATE,       ROLE_UP,
                                               ROLE_DOWN,      ROLE_SHARE,      ROLE_SHARED_GATE,
                                               ROLE_SHARED_UP, ROLE_SHARED_DOWN};
    static const enum pack_weights formats[] = {PACK_AUTO, PACK_F32, PACK_Q8, PACK_BF12};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct pack_provider p;
        struct model m;
        char path[1024];
        int64_t n_params = 0;
        write_kinds(formats[f], &p, path);
        assert_int_equal(model_open(&m, path), OK);
        assert_int_equal(pack_check(path), OK);
        assert_memory_equal(&m.shape, &p.shape, sizeof m.shape);
        for (int i = 0; i < m.n_layers; i++) {
            const struct model_layer *l = &m.layers[i];
            const int kind = i == 0 || i > N_LAYERS ? -1 : i > N_DENSE;
            for (size_t r = 0; r < sizeof dense / sizeof *dense; r++)
                assert_int_equal(model_has(l, dense[r]), kind == 0);
            for (size_t r = 0; r < sizeof experts / sizeof *experts; r++)
                assert_int_equal(model_has(l, experts[r]), kind == 1);
            for (int role = 0; role < N_ROLES; role++)
                n_params += (int64_t)l->tensors[role].n * l->tensors[role].k;
            if (kind == 1 && formats[f] == PACK_Q8) { // a choice stays as it was
                assert_int_equal(l->tensors[ROLE_ROUTER].dtype, DTYPE_BF16);
                assert_int_equal(l->tensors[ROLE_SHARE].dtype, DTYPE_BF16);
            }
        }
        assert_int_equal(m.n_slices, 1);
        assert_int_equal(m.n_params, n_params);
        model_close(&m);
        dummy_close(&p);
    }
}

/* What a token's experts are, and count, is computed in f32 whatever the rest is. */
static void test_choices(void **state)
{
    (void)state;
    for (int role = 0; role < N_ROLES; role++)
        for (int compute = 0; compute < N_COMPUTES; compute++)
            assert_int_equal(model_compute(role, compute), role == ROLE_ROUTER || role == ROLE_SHARE
                                                               ? (int)COMPUTE_F32
                                                               : compute);
}

/* The metadata of the pack, again under right checksums. */
static void rewrite(const char *path, uint8_t *file, struct pack_header *h)
{
    h->meta_crc = crc32c(0, file + h->meta_offset, h->meta_bytes);
    pack_header_encode(h, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file, 1, (size_t)h->file_bytes, f), h->file_bytes);
    assert_int_equal(fclose(f), 0);
}

static void expect_corrupt(const char *path, uint8_t *file, struct pack_header *h, const char *what)
{
    struct model m;
    rewrite(path, file, h);
    assert_int_equal(model_open(&m, path), ERR_CORRUPT);
    assert_non_null(strstr(err_text(), what));
}

static uint8_t *find(uint8_t *in, int64_t n_bytes, const void *what, int64_t n)
{
    for (int64_t i = 0; i + n <= n_bytes; i++)
        if (memcmp(in + i, what, (size_t)n) == 0)
            return in + i;
    return NULL;
}

static void test_lies(void **state)
{
    (void)state;
    struct pack_provider p;
    struct pack_header h;
    struct pack_out shape = {0}, bias = {0};
    struct model m;
    char path[1024];
    write_kinds(PACK_BF16, &p, path);
    uint8_t *file = read_pack(path, &h), *meta = file + h.meta_offset;
    pack_put_shape(&shape, &p.shape);
    uint8_t *kinds = find(meta, h.meta_bytes, shape.data, shape.n_bytes);
    assert_non_null(kinds);
    kinds += shape.n_bytes - (1 + 1 + 4) * SHAPE_LAYERS_MAX; // behind it: layer_wide, layer_scale
    for (int i = 0; i < N_LAYERS; i++) {
        kinds[i] ^= 1;
        expect_corrupt(path, file, &h, "tensor role");
        kinds[i] ^= 5; // 4, or 5
        expect_corrupt(path, file, &h, "layer_dense");
        kinds[i] ^= 4;
    }
    uint8_t *states = kinds - 2 * SHAPE_LAYERS_MAX; // layer_bare comes between
    states[1] = 1;
    expect_corrupt(path, file, &h, "layer_state");
    states[1] = 0;
    memset(kinds, 1, N_LAYERS);
    expect_corrupt(path, file, &h, "layer_dense");
    memset(kinds + N_DENSE, 0, N_LAYERS - N_DENSE);
    pack_put_u32(&bias, ROLE_K_B);
    pack_put(&bias, "f32\0\0\0\0", 8);
    pack_put_u32(&bias, EXPERTS);
    uint8_t *first = find(meta, h.meta_bytes, bias.data, bias.n_bytes);
    assert_non_null(first);
    *first = ROLE_ROUTER_B; // in a layer without experts
    expect_corrupt(path, file, &h, "layer 1: bad tensor role");
    *first = ROLE_K_B;
    rewrite(path, file, &h);
    assert_int_equal(model_open(&m, path), OK);
    model_close(&m);
    free(shape.data);
    free(bias.data);
    free(file);
    dummy_close(&p);
}

/* A token's two rows are side by side, with one checksum. */
static void test_records(void **state)
{
    (void)state;
    static const enum tensor_role roles[] = {ROLE_EMBED, ROLE_INPUTS_EMBED};
    struct pack_provider p;
    struct pack_header h;
    struct model m, part;
    char path[1024];
    write_model(lent_text, PACK_AUTO, &p, path);
    assert_int_equal(model_open(&m, path), OK);
    assert_int_equal(pack_check(path), OK);
    assert_memory_equal(&m.shape, &p.shape, sizeof m.shape);
    uint8_t *file = read_pack(path, &h);
    for (int id = 0; id < m.shape.vocab; id++) {
        int64_t offset, n_bytes;
        uint8_t row[2 * 240];
        model_embed_row(&m, id, &offset, &n_bytes);
        assert_int_equal(n_bytes, 192 + 512); // of 144 bytes and of 480
        assert_int_equal(m.row_crcs[id], crc32c(0, file + offset, n_bytes));
        for (int r = 0; r < 2; r++) {
            assert_int_equal(p.rows(p.impl, roles[r], 0, id, 1, row), OK);
            assert_memory_equal(file + offset + (r ? 192 : 0), row, r ? 480 : 144);
        }
    }
    assert_int_equal(model_cut(&part, &m, 0, 5), ERR_FIT);
    assert_non_null(strstr(err_text(), "cannot be cut into stages"));
    free(file);
    model_close(&m);
    dummy_close(&p);
}

/* Opens the pack with another shape under a right checksum. */
static void expect_bad_shape(const char *path, uint8_t *file, struct pack_header *h,
                             const struct shape *was, const struct shape *s, const char *what)
{
    struct pack_out old = {0}, new = {0};
    pack_put_shape(&old, was);
    pack_put_shape(&new, s);
    uint8_t *at = find(file + h->meta_offset, h->meta_bytes, old.data, old.n_bytes);
    assert_true(at && new.n_bytes == old.n_bytes);
    memcpy(at, new.data, (size_t) new.n_bytes);
    expect_corrupt(path, file, h, what);
    memcpy(at, old.data, (size_t)old.n_bytes);
    free(old.data);
    free(new.data);
}

/* Where the directory has the offset of a tensor of line layer 0. */
static uint8_t *offset_at(uint8_t *file, const struct pack_header *h, enum tensor_role role,
                          const struct model_tensor *t)
{
    struct pack_out entry = {0};
    pack_put_u32(&entry, role);
    pack_put(&entry, "bf16\0\0\0\0", 8);
    pack_put_u32(&entry, (uint32_t)t->n);
    pack_put_u32(&entry, (uint32_t)t->k);
    uint8_t *at = find(file + h->meta_offset, h->meta_bytes, entry.data, entry.n_bytes);
    assert_non_null(at);
    at += entry.n_bytes;
    free(entry.data);
    return at;
}

static void test_lent_lies(void **state)
{
    (void)state;
    static const struct {
        size_t field;
        int value;
        const char *what;
    } lies[] = {{offsetof(struct shape, kv_own_layers), -1, "kv_own_layers"},
                {offsetof(struct shape, kv_own_layers), 10, "kv_own_layers"},
                {offsetof(struct shape, kv_own_layers), 4, "kv_own_layers"}, // no wide layer
                {offsetof(struct shape, kv_own_layers), 5, "tensor"},
                {offsetof(struct shape, kv_own_layers), 0, "late_ffn_dim"},
                {offsetof(struct shape, late_ffn_dim), 0, "late_ffn_dim"},
                {offsetof(struct shape, late_ffn_dim), 81, "tensor size"},
                {offsetof(struct shape, layer_input), -1, "layer_input"},
                {offsetof(struct shape, layer_input), SHAPE_DIM_MAX / 10 + 1, "layer_input"},
                {offsetof(struct shape, layer_input), 0, "tensor role"},
                {offsetof(struct shape, layer_input), 25, "tensor size"}};
    struct pack_provider p;
    struct pack_header h;
    struct model m;
    char path[1024];
    write_model(lent_text, PACK_BF16, &p, path);
    uint8_t *file = read_pack(path, &h);
    assert_int_equal(model_open(&m, path), OK);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct shape s = p.shape;
        *(int *)(void *)((char *)&s + lies[i].field) = lies[i].value;
        expect_bad_shape(path, file, &h, &p.shape, &s, lies[i].what);
    }
    const struct model_layer *l = &m.layers[0];
    uint8_t *first = offset_at(file, &h, ROLE_EMBED, &l->tensors[ROLE_EMBED]);
    uint8_t *second = offset_at(file, &h, ROLE_INPUTS_EMBED, &l->tensors[ROLE_INPUTS_EMBED]);
    *second += 64;
    expect_corrupt(path, file, &h, "layer 0: bad tensor offset");
    *second -= 64;
    /* Room for all rows, one after the other, but not for the records. */
    const uint32_t late = (uint32_t)((l->n_bytes - 301 * 600) / 64 * 64), beside = late + 192;
    memcpy(first, &late, 4);
    memcpy(second, &beside, 4);
    expect_corrupt(path, file, &h, "layer 0: bad tensor offset");
    free(file);
    model_close(&m);
    dummy_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers), cmocka_unit_test(test_choices), cmocka_unit_test(test_lies),
        cmocka_unit_test(test_records), cmocka_unit_test(test_lent_lies)};
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
