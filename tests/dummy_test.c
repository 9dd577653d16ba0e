/* tests/dummy_test.c - models without weights: the config's errors, and numbers that stay the same.
 */
#include "engine/dummy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail // ours, from base.h

static char folder[] = "/tmp/sluice-dummy-XXXXXX";
static char cfg[64], pack[64];

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
    assert_true(p.shape.rope_inv_freq[0] == 1.0f);
    assert_true(fabsf(p.shape.rope_inv_freq[8] - 0.01f) < 1e-8f); // 10000^(-16 / 32)
    assert_int_equal(p.tied, 1);
    assert_int_equal(p.dummy, 1);
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
    expect_bad("family = llama\n", "dim: missing");
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
    struct pack_request r = {.provider = &p, .path = pack};
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
        {BASE "kv_heads = 2\n", 0x0203b4b186d34f35ull},
        {"family = opt\ndim = 64\nlayers = 1\nheads = 2\nffn = 96\nvocab = 99\ncontext = 32\n",
         0xeced63f60a8ee4bdull},
    };
    for (int i = 0; i < 2; i++) {
        struct model m;
        write_dummy(models[i].text);
        assert_int_equal(model_open(&m, pack), OK);
        uint64_t sums = hash_bytes(m.piece_crcs, m.n_pieces * 4, 0);
        if (sums != models[i].sums)
            print_error("checksums 0x%016llx\n", (unsigned long long)sums);
        assert_true(sums == models[i].sums);
        assert_int_equal(m.dummy, 1);
        assert_int_equal(m.tied, 1);
        assert_null(m.tokenizer);
        model_close(&m);
    }
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
    assert_true(fabs(sum / n) < 4 * 0.02 / 64);
    assert_true(std > 0.019 && std < 0.021);
    assert_true(fourth / n / (std * std * std * std) > 2.4); // uniform: 1.8, normal: 3
    assert_int_equal(p.vector(p.impl, ROLE_NORM2_W, 1, 128, norm), OK);
    assert_true(norm[0] == 1 && norm[127] == 1);
    dummy_close(&p);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(cfg, sizeof cfg, "%s/model.cfg", folder);
    snprintf(pack, sizeof pack, "%s/model.pack", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(cfg);
    unlink(pack);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_numbers_stay),
        cmocka_unit_test(test_distribution),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
