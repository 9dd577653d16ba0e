/* tests/pack_as_test.c - a pack that nobody writes, against the one that would have been written:
 * the same layers, tensor by tensor. */
#include "engine/model/dummy.h"
#include "engine/model/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

static const enum pack_weights plain[] = {PACK_F32, PACK_F16, PACK_BF16, PACK_Q8, PACK_Q4};

static void write_as(const char *name, enum pack_weights weights, struct model *m)
{
    struct pack_provider p;
    struct pack_request r = {.provider = &p, .weights = weights, .on_demand = 1};
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("as.pack"));
    r.path = path;
    assert_int_equal(dummy_open(&p, temp_path(name)), OK);
    assert_int_equal(pack_write(&r), OK);
    dummy_close(&p);
    assert_int_equal(model_open(m, path), OK);
}

static void compare(const struct model *as, const struct model *m)
{
    assert_int_equal(as->n_layers, m->n_layers);
    assert_int_equal(as->n_slices, m->n_slices);
    assert_int_equal(as->n_pieces, m->n_pieces);
    assert_int_equal(as->weights, m->weights);
    assert_true(llabs(as->file_bytes - m->file_bytes) < 1 << 16); // but for the directory
    for (int i = 0; i < m->n_layers; i++) {
        const struct model_layer *a = &as->layers[i], *b = &m->layers[i];
        assert_true(a->offset == b->offset && a->n_bytes == b->n_bytes && a->piece == b->piece);
        assert_true(a->vocab_first == b->vocab_first && a->vocab_rows == b->vocab_rows);
        assert_int_equal(a->absent, b->absent);
        for (int role = 0; role < N_ROLES; role++) {
            const struct model_tensor *x = &a->tensors[role], *y = &b->tensors[role];
            assert_true(x->n == y->n && x->k == y->k && x->offset == y->offset);
            assert_true(x->n == 0 || x->dtype == y->dtype);
        }
    }
}

/* From every format to every other; learned positions, which stay as they are, from bf16 only. */
static void as_it_would_be(void **state)
{
    (void)state;
    static const char *const models[] = {
        "family = llama\ndim = 64\nlayers = 3\nheads = 4\nffn = 9000\nvocab = 30000\ncontext = "
        "64\n",
        "family = llama\ndim = 96\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 200\n"
        "vocab = 9001\ncontext = 64\ntied = 0\n",
        "family = opt\ndim = 64\nlayers = 2\nheads = 4\nffn = 256\nvocab = 5000\ncontext = 64\n",
        "family = qwen2_moe\ndim = 64\nlayers = 3\nheads = 4\nffn = 32\nexperts = 6\nexperts_used "
        "= 2\n"
        "shared_ffn = 64\ndense_ffn = 128\ndense_layers = 1\nvocab = 5000\ncontext = 64\n"};
    for (int i = 0; i < 4; i++) {
        temp_write_text("m.cfg", models[i]);
        for (int from = 0; from < 6; from++) {
            struct model m, want, as;
            if (i == 2 && from < 5 && plain[from] != PACK_BF16)
                continue;
            write_as("m.cfg", from < 5 ? plain[from] : PACK_AUTO, &m);
            for (int to = 0; to < 5; to++) {
                assert_int_equal(pack_model_as(&m, plain[to], &as), OK);
                write_as("m.cfg", plain[to], &want);
                compare(&as, &want);
                free(as.layers);
                model_close(&want);
            }
            model_close(&m);
        }
    }
}

/* A head in another format than the layers is cut as the layers allow then. */
static void slices_follow(void **state)
{
    (void)state;
    struct model m, as;
    temp_write_text("m.cfg", "family = llama\ndim = 64\nlayers = 2\nheads = 4\nffn = 4096\n"
                             "vocab = 12000\ncontext = 64\n");
    write_as("m.cfg", PACK_F16, &m);
    assert_int_equal(m.n_slices, 1);
    m.layers = realloc(m.layers, 6 * sizeof *m.layers); // a head in f32 has a tile in a slice
    m.n_slices = 3;
    m.n_layers = 6;
    for (int i = 3; i < 6; i++) {
        m.layers[i] = m.layers[3];
        m.layers[i].tensors[ROLE_HEAD].dtype = DTYPE_F32;
    }
    assert_int_equal(pack_model_as(&m, PACK_Q8, &as), OK);
    assert_true(as.n_slices == 1 && as.n_layers == 4);
    assert_int_equal(as.layers[as.n_layers - 1].tensors[ROLE_HEAD].dtype, DTYPE_Q8);
    assert_int_equal(as.layers[as.n_layers - 1].vocab_rows, 12000);
    free(as.layers);
    model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_it_would_be),
        cmocka_unit_test(slices_follow),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
