/* tests/dummy_test.c - models without weights: the config's errors, and numbers that stay the same.
 */
#include "engine/model/dummy.h"

#include "engine/line/dummy_layers.h"
#include "engine/model/dummy_numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "tests/pack_check.h"
#include "tests/temp_dir.h"

static char cfg[96], pack[96], some_pack[96];

static void write_config(const char *text)
{
    FILE *f = fopen(cfg, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static enum err open_text(struct pack_provider *p, const char *text)
{
    write_config(text);
    return dummy_open(p, cfg);
}

static void expect_bad(const char *text, const char *word)
{
    struct pack_provider p;
    enum err e = open_text(&p, text);
    if (e != ERR_INPUT || !strstr(err_text(), word))
        print_error("expected an error with \"%s\", got %d: %s\n", word, e, err_text());
    assert_int_equal(e, ERR_INPUT);
    assert_non_null(strstr(err_text(), word));
}

#define BASE                                                                                       \
    "family = llama\ndim = 128\nlayers = 2\nheads = 4\nffn = 256\nvocab = 5000\ncontext = 64\n"

static void test_config(void **state)
{
    (void)state;
    struct pack_provider p;
    assert_int_equal(open_text(&p, BASE "kv_heads = 2 # two\n\n# end"), OK);
    assert_string_equal(p.shape.family, "llama");
    assert_int_equal(p.shape.head_dim, 32);
    assert_int_equal(p.shape.n_kv_heads, 2);
    assert_int_equal(p.shape.rope_dim, 32);
    assert_true(p.shape.ropes[0].inv_freq[0] == 1.0f);
    assert_true(fabsf(p.shape.ropes[0].inv_freq[8] - 0.01f) < 1e-8f); // 10000^(-16 / 32)
    assert_int_equal(p.tied, 1);
    assert_int_equal(p.dummy, DUMMY_GENERATION);
    assert_string_equal(p.name, "model");
    dummy_close(&p);
    assert_int_equal(open_text(&p, BASE "tied = 0\nrope_theta = 1e6\nnorm_eps = 1e-6\n"), OK);
    assert_int_equal(p.tied, 0);
    assert_int_equal(p.shape.n_kv_heads, 4);
    assert_true(p.shape.norm_eps == 1e-6f);
    dummy_close(&p);
    dummy_close(&p);
    expect_bad("family = gpt\n", ":1: family: unsupported: gpt");
    expect_bad("dim = 128\n", "family: missing");
    expect_bad("family = llama\n", "layers: missing");
    expect_bad("family = llama\nlayers = 2\n", "dim: missing");
    expect_bad(BASE "heads = 0\n", ":8: heads: 0 is out of range");
    expect_bad(BASE "heads = x\n", ":8: heads: expected a number");
    expect_bad(BASE "heads = 1.5\n", ":8: heads: expected an integer");
    expect_bad(BASE "heads = 3\n", "dim: 128 is not a multiple of heads, 3");
    expect_bad(BASE "kv_heads = 3\n", "n_kv_heads");
    expect_bad(BASE "head_dim = 33\n", "head_dim: 33 is odd");
    expect_bad(BASE "layers = 513\n", ":8: layers");
    expect_bad(BASE "norm_eps = nan\n", ":8: norm_eps");
    expect_bad(BASE "colour = 3\n", ":8: colour: unknown key");
    expect_bad(BASE "dim\n", ":8: dim: expected key = value");
    assert_int_equal(dummy_open(&p, "/nowhere.cfg"), ERR_INPUT);
    assert_true(dummy_is_config("a/b.cfg"));
    assert_false(dummy_is_config("a/b.cfg/model.gguf"));
    assert_false(dummy_is_config(".cfg"));
}

static void write_dummy(const char *text)
{
    struct pack_provider p;
    assert_int_equal(open_text(&p, text), OK);
    struct pack_request r = {.provider = &p, .weights = PACK_BF16, .path = pack};
    assert_int_equal(pack_write(&r), OK);
    dummy_close(&p);
    assert_int_equal(pack_check(pack), OK);
}

/* The checksums cover every number: they must never change, on any machine. */
static void test_numbers_stay(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t sums;
    } models[] = {
        {BASE "kv_heads = 2\n", 0x0c142186dc652434ull},
        {"family = opt\ndim = 64\nlayers = 1\nheads = 2\nffn = 96\nvocab = 99\ncontext = 32\n",
         0x09325c981b039b29ull},
    };
    for (int i = 0; i < 2; i++) {
        struct model m;
        write_dummy(models[i].text);
        assert_int_equal(model_open(&m, pack), OK);
        uint64_t sums = hash_bytes(m.piece_crcs, m.n_pieces * 4, 0);
        if (sums != models[i].sums)
            print_error("checksums 0x%016llx\n", (unsigned long long)sums);
        assert_true(sums == models[i].sums);
        assert_int_equal(m.dummy, DUMMY_GENERATION);
        assert_int_equal(m.tied, 1);
        assert_null(m.tokenizer);
        model_close(&m);
    }
}

/* The quantiles: as many above as below, deviation and tails of a normal. */
static void test_normals(void **state)
{
    (void)state;
    struct dummy_numbers *d = malloc(sizeof *d);
    double squares = 0, fourth = 0;
    assert_non_null(d);
    dummy_numbers_init(d);
    for (int i = 0; i < 65536; i++) {
        double x = (double)bf16_to_f32(d->normals[i]);
        assert_int_equal(d->normals[65535 - i], d->normals[i] ^ 0x8000);
        assert_true(i == 0 || x >= (double)bf16_to_f32(d->normals[i - 1]));
        squares += x * x;
        fourth += x * x * x * x;
    }
    squares /= 65536;
    assert_true(fabs(sqrt(squares) - DUMMY_STD) < 1e-5);
    assert_true(fabs(fourth / 65536 / (squares * squares) - 3) < 0.01);
    assert_true(fabs((double)bf16_to_f32(d->normals[55138]) - 0.02) < 1e-4); // Phi(1) = 0.84134
    free(d);
}

/* A panel made at once is the panel packed of its rows, for every length of row and panel. */
static void test_panels(void **state)
{
    (void)state;
    static const int ks[] = {1, 2, 3, 4, 5, 6, 7, 64, 127, 301};
    struct dummy_numbers *d = malloc(sizeof *d);
    assert_non_null(d);
    dummy_numbers_init(d);
    for (int i = 0; i < 10; i++)
        for (int n = 1; n <= PANEL_ROWS; n += n < 31 ? 10 : 1) {
            const int k = ks[i];
            uint16_t rows[PANEL_ROWS * 301], packed[PANEL_ROWS * 302], made[PANEL_ROWS * 302];
            const void *at[PANEL_ROWS] = {0};
            for (int r = 0; r < n; r++) {
                at[r] = rows + r * k;
                dummy_row(d, 99, 1000 + r, k, rows + r * k);
            }
            memset(made, 0xee, sizeof made);
            panel_pack(DTYPE_BF16, at, k, packed);
            dummy_panel(d, 99, 1000, n, k, made);
            assert_memory_equal(packed, made, (size_t)dtype_panel_bytes(DTYPE_BF16, k));
        }
    free(d);
}

static const char *const shapes[] = {
    BASE "kv_heads = 2\ntied = 0\n",
    BASE "kv_heads = 1\n",
    "family = opt\ndim = 66\nlayers = 3\nheads = 2\nffn = 90\nvocab = 9000\ncontext = 32\n",
};

static void read_extent(const char *path, const struct model_layer *l, uint8_t *to)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)l->offset, SEEK_SET), 0);
    assert_int_equal(fread(to, 1, (size_t)l->n_bytes, f), l->n_bytes);
    fclose(f);
}

/* A layer made in memory, one added to a pack on demand, and one of a whole pack: the same bytes.
 */
static void check_layers(enum pack_weights weights)
{
    struct model whole, some;
    struct pack_provider p;
    struct pack_request r = {.provider = &p, .weights = weights, .path = pack};
    assert_int_equal(dummy_open(&p, cfg), OK);
    assert_int_equal(pack_write(&r), OK);
    r.path = some_pack;
    r.on_demand = 1;
    assert_int_equal(pack_write(&r), OK);
    dummy_close(&p);
    assert_int_equal(model_open(&whole, pack), OK);
    assert_int_equal(model_open(&some, some_pack), OK);
    assert_true(whole.fingerprint == some.fingerprint);
    assert_int_equal(whole.on_demand, 0);
    assert_int_equal(some.on_demand, 1);
    assert_int_equal(dummy_of_model(&p, &some), OK);

    struct plan plan = {.layers = some.n_layers, .resident = some.n_layers - 2};
    struct dummy_layers layers = {.model = &some};
    assert_int_equal(dummy_layers_store(&layers, &plan), OK);
    int n_absent = 0;
    for (int i = 0; i < some.n_layers; i++) {
        const struct model_layer *l = &some.layers[i];
        uint8_t *want = malloc((size_t)l->n_bytes), *got = malloc((size_t)l->n_bytes);
        assert_non_null(want);
        assert_non_null(got);
        assert_int_equal(l->absent, plan_layer_resident(&plan, i));
        n_absent += l->absent;
        read_extent(pack, &whole.layers[i], want);
        memset(got, 0xee, (size_t)l->n_bytes);
        assert_int_equal(pack_layer_make(&p, &some, i, -1, got), OK);
        assert_memory_equal(want, got, (size_t)l->n_bytes);
        read_extent(some_pack, l, got);
        if (!l->absent)
            assert_memory_equal(want, got, (size_t)l->n_bytes);
        free(want);
        free(got);
    }
    assert_int_equal(n_absent, some.n_layers - 2); // one line layer and the embedding stream
    assert_int_equal(pack_check(some_pack), OK);

    /* Another run, another plan: what is there stays, the rest is added. */
    struct model other;
    assert_int_equal(model_open(&other, some_pack), OK);
    layers.model = &other;
    plan.resident = 0;
    assert_int_equal(dummy_layers_store(&layers, &plan), OK);
    for (int i = 0; i < other.n_layers; i++)
        assert_int_equal(other.layers[i].absent, 0);
    assert_memory_equal(other.piece_crcs, whole.piece_crcs, (size_t)whole.n_pieces * 4);
    assert_memory_equal(other.row_crcs, whole.row_crcs, (size_t)whole.shape.vocab * 4);
    assert_int_equal(pack_check(some_pack), OK);
    model_close(&other);

    /* The first run learns of it and adds nothing. */
    layers.model = &some;
    assert_int_equal(dummy_layers_store(&layers, &plan), OK);
    assert_memory_equal(some.piece_crcs, whole.piece_crcs, (size_t)whole.n_pieces * 4);
    dummy_close(&p);
    model_close(&some);
    model_close(&whole);
}

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        write_config(shapes[i]);
        check_layers(PACK_AUTO);
        check_layers(PACK_F32);
        check_layers(PACK_Q8);
    }
}

/* Numbers of another generator cannot be continued. */
static void test_generation(void **state)
{
    (void)state;
    struct model m = {.dummy = DUMMY_GENERATION + 1, .path = pack};
    struct pack_provider p;
    assert_int_equal(dummy_of_model(&p, &m), ERR_INPUT);
    dummy_close(&p);
}

static void test_distribution(void **state)
{
    (void)state;
    struct pack_provider p;
    double sum = 0, squares = 0, fourth = 0;
    const int n = 32 * 128;
    uint16_t rows[32 * 128], head[32 * 128], other[32 * 128];
    float norm[128];
    int k_max = 128;
    assert_int_equal(open_text(&p, BASE), OK);
    assert_int_equal(p.rows(p.impl, ROLE_EMBED, 0, 7, 32, rows), OK);
    assert_int_equal(p.rows(p.impl, ROLE_HEAD, 0, 7, 32, head), OK);
    assert_memory_equal(rows, head, sizeof rows); // tied
    assert_int_equal(p.rows(p.impl, ROLE_EMBED, 0, 8, 1, other), OK);
    assert_memory_equal(other, rows + k_max,
                        (size_t)k_max * 2); // a row does not depend on its call
    assert_int_equal(p.rows(p.impl, ROLE_Q, 0, 0, 32, rows), OK);
    assert_int_equal(p.rows(p.impl, ROLE_Q, 1, 0, 32, other), OK);
    assert_memory_not_equal(rows, other, sizeof rows);
    for (int i = 0; i < n; i++) {
        double x = (double)bf16_to_f32(rows[i]);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    double std = sqrt(squares / n);
    assert_true(fabs(sum / n) < 4 * 0.08 / 64);
    assert_true(std > 0.076 && std < 0.084);                 // 4 x 0.02 is nearest to 1 / sqrt(128)
    assert_true(fourth / n / (std * std * std * std) > 2.4); // uniform: 1.8, normal: 3
    assert_int_equal(p.vector(p.impl, ROLE_NORM2_W, 1, 128, norm), OK);
    assert_true(norm[0] == 1 && norm[127] == 1);
    dummy_close(&p);
}

static int make_folder(void **state)
{
    (void)state;
    temp_dir_make();
    snprintf(cfg, sizeof cfg, "%s/model.cfg", temp_dir);
    snprintf(pack, sizeof pack, "%s/model.pack", temp_dir);
    snprintf(some_pack, sizeof some_pack, "%s/some.pack", temp_dir);
    return 0;
}

int main(void)
{
    log_level_max = LOG_ERROR;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),       cmocka_unit_test(test_numbers_stay),
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_normals),
        cmocka_unit_test(test_panels),       cmocka_unit_test(test_layers),
        cmocka_unit_test(test_generation),
    };
    return cmocka_run_group_tests(tests, make_folder, temp_dir_teardown);
}
