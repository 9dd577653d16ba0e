/* tests/tools/pack_source.c - model files through the readers, the families and the packer.
 *
 *     pack_source MODEL          packs it in every format, compares each number with the file
 *     pack_source MODEL OTHER    packs both; wants the same shape and the same numbers
 *
 * Errors go to stderr, exit 1. */
#include "engine/model/families/family.h"
#include "engine/model/pack.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "tests/pack_check.h"

static const char *paths[2];
static char folder[] = "/tmp/sluice-packs-XXXXXX";

static void ok(enum err e)
{
    if (e != OK)
        print_error("%s\n", err_text());
    assert_int_equal(e, OK);
}

static void pack_into(const char *model_path, enum pack_weights weights, const char *pack_path)
{
    struct source s;
    struct pack_provider p;
    ok(source_open(&s, model_path));
    ok(pack_source_open(&p, &s));
    struct pack_request r = {.provider = &p, .weights = weights, .path = pack_path};
    ok(pack_write(&r));
    pack_source_close(&p);
    source_close(&s);
}

struct opened {
    struct model m;
    int fd;
    uint8_t *extent; // of the layer at hand
};

static void opened_open(struct opened *o, const char *path)
{
    int64_t bytes_max = 0;
    ok(pack_check(path));
    ok(model_open(&o->m, path));
    for (int i = 0; i < o->m.n_layers; i++)
        bytes_max = max_i64(bytes_max, o->m.layers[i].n_bytes);
    o->fd = open(path, O_RDONLY);
    o->extent = aligned_alloc(64, (size_t)bytes_max);
    assert_non_null(o->extent);
}

static void opened_close(struct opened *o)
{
    close(o->fd);
    free(o->extent);
    model_close(&o->m);
}

static void load(struct opened *o, int layer)
{
    const struct model_layer *l = &o->m.layers[layer];
    for (int64_t done = 0; done < l->n_bytes;) {
        ssize_t n = pread(o->fd, o->extent + done, (size_t)(l->n_bytes - done), l->offset + done);
        assert_true(n > 0);
        done += n;
    }
}

/* Row `row` of a tensor of the loaded layer (a vector is one row), as f32. */
static void row_of(const struct opened *o, int layer, enum tensor_role role, int row, float *out)
{
    const struct model_layer *l = &o->m.layers[layer];
    const struct model_tensor *t = &l->tensors[role];
    if (role_kind(role) == ROLE_IS_VECTOR) {
        memcpy(out, model_vector(l, role, o->extent), (size_t)t->n * 4);
    } else if (role_kind(role) == ROLE_IS_ROWS) {
        dtype_decode_row(t->dtype, o->extent + t->offset + row * dtype_row_bytes(t->dtype, t->k),
                         t->k, out);
    } else {
        static float *panel;
        static int64_t panel_numbers;
        struct weight w = model_weight(l, role, o->extent);
        if (panel_numbers < (int64_t)w.k * PANEL_ROWS) {
            free(panel);
            panel_numbers = (int64_t)w.k * PANEL_ROWS;
            panel = aligned_alloc(64, (size_t)round_up(panel_numbers * 4, 64));
        }
        panel_decode_f32(
            w.dtype, (const uint8_t *)w.panels + row / PANEL_ROWS * dtype_panel_bytes(w.dtype, w.k),
            w.k, 0, w.k, panel);
        for (int c = 0; c < w.k; c++)
            out[c] = panel[c * PANEL_ROWS + row % PANEL_ROWS];
    }
}

static int rows_of(const struct model_tensor *t, enum tensor_role role)
{
    return role_kind(role) == ROLE_IS_VECTOR ? 1 : t->n;
}

static int row_numbers(const struct model_tensor *t, enum tensor_role role)
{
    return role_kind(role) == ROLE_IS_VECTOR ? t->n : t->k;
}

/* Row `row` (of a vector: number) of q or k in a GGUF llama, as the converter put it there:
 * reshape(heads, 2, half) -> (heads, half, 2). */
static int64_t converted(const struct source *s, const struct shape *shape, enum tensor_role role,
                         int64_t row)
{
    int rotated = role == ROLE_Q || role == ROLE_K || role == ROLE_Q_B || role == ROLE_K_B;
    if (s->kind != SOURCE_GGUF || strcmp(shape->family, "llama") != 0 || !rotated)
        return row;
    int64_t half = shape->head_dim / 2, r = row % shape->head_dim;
    return row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
}

static void file_row(const struct source *s, const struct family_model *f, enum tensor_role role,
                     int layer, int row, float *out)
{
    const struct source_tensor *t = family_tensor(f, s, role, layer);
    int vector = t->n_dims == 1;
    int64_t k = vector ? t->dims[0] : t->dims[1], row_bytes = dtype_row_bytes(t->dtype, k);
    int64_t from = vector ? 0 : converted(s, &f->shape, role, row);
    uint8_t *raw = aligned_alloc(64, (size_t)round_up(row_bytes, 64));
    float *numbers = malloc((size_t)k * 4);
    ok(source_read(s, t, from * row_bytes, row_bytes, raw));
    dtype_decode_row(t->dtype, raw, k, numbers);
    for (int64_t i = 0; i < k; i++)
        out[i] = numbers[vector ? converted(s, &f->shape, role, i) : i];
    free(raw);
    free(numbers);
}

/* Numbers of the pack against those of the file, rounded as the stored format rounds. */
static void compare_layer(struct opened *o, const struct source *s, const struct family_model *f,
                          int layer)
{
    const struct model_layer *l = &o->m.layers[layer];
    int decoder = layer >= 1 && layer <= o->m.shape.n_layers;
    for (int role = 0; role < N_ROLES; role++) {
        const struct model_tensor *t = &l->tensors[role];
        if (t->n == 0)
            continue;
        int k = row_numbers(t, role), step = o->m.weights == PACK_AUTO ? 1 : 17;
        float *expected = malloc((size_t)k * 4), *got = malloc((size_t)k * 4);
        uint8_t *raw = malloc((size_t)k * 8 + 256);
        for (int row = 0; row < rows_of(t, role); row += step) {
            file_row(s, f, role, decoder ? layer - 1 : 0,
                     role == ROLE_HEAD ? row + l->vocab_first : row, expected);
            const struct source_tensor *from = family_tensor(f, s, role, decoder ? layer - 1 : 0);
            if (role_kind(role) != ROLE_IS_VECTOR && t->dtype != from->dtype) {
                dtype_encode_row(t->dtype, expected, k, raw);
                dtype_decode_row(t->dtype, raw, k, expected);
            }
            row_of(o, layer, role, row, got);
            assert_memory_equal(got, expected, (size_t)k * 4);
        }
        free(expected);
        free(got);
        free(raw);
    }
}

static void test_file(void **state)
{
    (void)state;
    struct source s;
    struct family_model f;
    ok(source_open(&s, paths[0]));
    ok(family_read(&f, &s));
    for (int w = 0; w < N_PACK_WEIGHTS; w++) {
        struct opened o;
        char path[80];
        snprintf(path, sizeof path, "%s/a.pack", folder);
        int64_t start_ns = clock_ns();
        pack_into(paths[0], w, path);
        double seconds = (double)(clock_ns() - start_ns) * 1e-9;
        opened_open(&o, path);
        print_message("%s: %lld bytes, %d slices, %lld parameters, packed in %.2f s\n",
                      pack_weights_name(w), (long long)o.m.file_bytes, o.m.n_slices,
                      (long long)o.m.n_params, seconds);
        assert_int_equal(o.m.tied, f.tied);
        for (int i = 0; i < o.m.n_layers; i++) {
            load(&o, i);
            compare_layer(&o, &s, &f, i);
        }
        opened_close(&o);
    }
    source_close(&s);
}

static void test_two_formats(void **state)
{
    (void)state;
    struct opened o[2];
    for (int i = 0; i < 2; i++) {
        char path[80];
        snprintf(path, sizeof path, "%s/%d.pack", folder, i);
        pack_into(paths[i], PACK_F32, path);
        opened_open(&o[i], path);
    }
    struct shape a = o[0].m.shape, b = o[1].m.shape;
    for (int i = 0; i < a.rope_dim / 2; i++) { // divisors in GGUF round once more
        const float ours = a.ropes[0].inv_freq[i], theirs = b.ropes[0].inv_freq[i];
        assert_true(fabsf(ours - theirs) <= 3e-7f * ours);
        for (int r = 0; r < SHAPE_ROPES; r++)
            b.ropes[r].inv_freq[i] = a.ropes[r].inv_freq[i];
    }
    memcpy(b.family, a.family, sizeof b.family); // mistral is llama in GGUF
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(o[0].m.tied, o[1].m.tied);
    assert_int_equal(o[0].m.n_params, o[1].m.n_params);
    assert_int_equal(o[0].m.n_layers, o[1].m.n_layers);
    for (int i = 0; i < o[0].m.n_layers; i++) {
        assert_int_equal(o[0].m.layers[i].n_bytes, o[1].m.layers[i].n_bytes);
        load(&o[0], i);
        load(&o[1], i);
        assert_memory_equal(o[0].extent, o[1].extent, (size_t)o[0].m.layers[i].n_bytes);
    }
    opened_close(&o[0]);
    opened_close(&o[1]);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest one[] = {cmocka_unit_test(test_file)};
    const struct CMUnitTest two[] = {cmocka_unit_test(test_two_formats)};
    if (argc != 2 && argc != 3)
        return 2;
    for (int i = 0; i < argc - 1; i++)
        paths[i] = argv[i + 1];
    return argc == 2 ? cmocka_run_group_tests(one, make_folder, remove_folder)
                     : cmocka_run_group_tests(two, make_folder, remove_folder);
}
