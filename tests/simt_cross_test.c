/* tests/simt_cross_test.c - engine/line/cross.c on a CUDA device without a GPU: whatever runs when,
 * each tile, and what each prompt leaves, arrives as it was when it was sent. */
#include "engine/line/cross.h"
#include "tests/ops_help.h"
#include "tests/simt/cudart/cudart.h"
#include "tests/simt/simt.h"

enum err sluice_device_open(int version, const char *arg, struct device **d);

enum { N_SEEDS = 24, TILES = 7, Q = 96, KV = 32, ALL = Q + 2 * KV };

struct scene {
    uint8_t in[TILES][ALL * 4], out[TILES][Q * 4], sent[TILES][ALL * 4], back[TILES][Q * 4];
    uint8_t attn[TILES][Q * 4], kept[TILES][ALL * 4];
};

/* Numbers that bf16 holds. */
static float number(int tile, int i)
{
    return (float)(tile * 8 + i % 8);
}

/* Ops leave each tile's numbers in the same memory, and find what comes back in the same memory: in
 * two runs, the second one first. Of attention that stays on the device q plays the part; what a
 * prompt leaves is all of it. */
static void play(struct device *d, struct scene *scene, struct cross_bytes bytes)
{
    const struct device_api *api = d->api;
    struct cross cross = {.bytes = bytes};
    struct stream *s;
    struct event *e;
    void *mem;
    assert_int_equal(api->alloc(d, 16 << 10, &mem), OK);
    uint8_t *at = mem;
    cross.out.buffers = (struct slab){.base = at, .stride = ALL * 4, .n_bytes = ALL * 4, .n = 2};
    cross.in.buffers = (struct slab){.base = at + 2048, .stride = Q * 4, .n_bytes = Q * 4, .n = 2};
    cross.kept.buffers =
        (struct slab){.base = at + 8192, .stride = ALL * 4, .n_bytes = ALL * 4, .n = 2};
    float *q = (float *)(void *)(at + 4096), *attn = q + ALL;
    assert_int_equal(api->stream_open(d, &s), OK);
    assert_int_equal(api->event_open(d, &e), OK);
    assert_int_equal(cross_open(&cross, s), OK);
    const struct ops ops = {.stream = s};
    for (int i = 0; i < TILES; i++) {
        ops_copy(&ops, q, scene->sent[i], ALL * 4);
        cross_out_begin(&cross);
        cross_out_add(&cross, &ops, bytes.in, q, Q);
        cross_out_add(&cross, &ops, bytes.in, q + Q, 2 * KV);
        cross_out_end(&cross, scene->in[i], ALL * bytes.in);
        cross_out_begin(&cross);
        cross_out_add(&cross, &ops, bytes.out, q, Q);
        cross_out_end(&cross, scene->attn[i], Q * bytes.out);
    }
    for (int i = 0; i < TILES; i++) { // of one tile
        ops_copy(&ops, q, scene->sent[i], ALL * 4);
        uint8_t *kept = slab_at(&cross.kept.buffers, cross_kept_begin(&cross));
        ops_copy(&ops, kept, q, ALL * 4);
        const struct ops copies = cross_kept_filled(&cross);
        ops_copy(&copies, scene->kept[i], kept, ALL * 4);
        cross_kept_end(&cross);
    }
    api->record(cross.to_cpu, e);
    assert_int_equal(api->event_wait(cross.to_cpu, e), OK);
    for (int i = 0; i < TILES; i++) {
        cross_in_begin(&cross, scene->out[i], Q * bytes.out);
        cross_in_take(&cross, &ops, attn + Q / 2, Q / 2);
        cross_in_take(&cross, &ops, attn, Q / 2);
        cross_in_end(&cross);
        ops_copy(&ops, scene->back[i], attn, Q * 4);
    }
    api->record(s, e);
    assert_int_equal(api->event_wait(s, e), OK);
    api->stream_close(s);
    api->event_close(e);
    cross_close(&cross);
    api->release(d, mem, 16 << 10);
}

static void test_tiles_do_not_meet(void **state)
{
    (void)state;
    static _Alignas(64) struct scene scene;
    for (int i = 0; i < 4 * N_SEEDS; i++) {
        const struct cross_bytes bytes = {i % 2 ? 2 : 4, i / 2 % 2 ? 2 : 4};
        const struct cudart_machine machine = {.n_devices = 1,
                                               .sm = 80,
                                               .memory_bytes = 1 << 20,
                                               .pin_bytes = 1 << 20,
                                               .seed = (uint64_t)i / 4};
        struct device *d = NULL;
        cudart_open(&machine);
        assert_int_equal(sluice_device_open(DEVICE_VERSION, "", &d), OK);
        assert_int_equal(d->api->pin(d, &scene, sizeof scene), OK);
        memset(&scene, 0, sizeof scene);
        for (int t = 0; t < TILES; t++)
            for (int j = 0; j < ALL; j++) {
                const float x = number(t, j);
                memcpy(scene.sent[t] + j * 4, &x, 4);
                if (j < Q && bytes.out == 4)
                    memcpy(scene.out[t] + j * 4, &x, 4);
                else if (j < Q)
                    memcpy(scene.out[t] + j * 2, &(uint16_t){f32_to_bf16(x)}, 2);
            }
        play(d, &scene, bytes);
        for (int t = 0; t < TILES; t++)
            for (int j = 0; j < ALL; j++) {
                uint16_t half;
                float x;
                memcpy(&half, scene.in[t] + j * 2, 2);
                memcpy(&x, scene.in[t] + j * 4 * (bytes.in == 4), 4);
                assert_true((bytes.in == 4 ? x : bf16_to_f32(half)) == number(t, j));
                memcpy(&x, scene.kept[t] + j * 4, 4);
                assert_true(x == number(t, j));
                if (j >= Q)
                    continue;
                memcpy(&half, scene.attn[t] + j * 2, 2);
                memcpy(&x, scene.attn[t] + j * 4 * (bytes.out == 4), 4);
                assert_true((bytes.out == 4 ? x : bf16_to_f32(half)) == number(t, j));
                memcpy(&x, scene.back[t] + (j + Q / 2) % Q * 4, 4);
                assert_true(x == number(t, j));
            }
        d->api->unpin(d, &scene, sizeof scene);
        assert_int_equal(cudart_held(), 0);
        device_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiles_do_not_meet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
