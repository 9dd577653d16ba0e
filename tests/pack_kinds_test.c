/* tests/pack_kinds_test.c - packs of models whose layers are of two kinds: what each layer holds,
 * and directories that lie about it under right checksums. */
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

static void write_kinds(enum pack_weights weights, struct pack_provider *p, char path[1024])
{
    struct pack_request r = {.provider = p, .weights = weights, .path = path};
    snprintf(path, 1024, "%s", temp_path("kinds.pack"));
    temp_write_text("kinds.cfg", model_text);
    assert_int_equal(dummy_open(p, temp_path("kinds.cfg")), OK);
    assert_int_equal(pack_write(&r), OK);
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
    FILE *f = fopen(path, "rb");
    uint8_t page[BLOCK_BYTES];
    assert_int_equal(fread(page, 1, sizeof page, f), sizeof page);
    assert_int_equal(pack_header_decode(&h, page, path), OK);
    uint8_t *file = malloc((size_t)h.file_bytes), *meta = file + h.meta_offset;
    rewind(f);
    assert_int_equal(fread(file, 1, (size_t)h.file_bytes, f), h.file_bytes);
    fclose(f);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_choices), cmocka_unit_test(test_lies)};
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
