/* tests/rig.h - a mover between a file, RAM, a scratch file and the memory of a device. For one
 * test binary each: it defines `trace`. */
#ifndef TESTS_RIG_H
#define TESTS_RIG_H

#include "offload/mover.h"
#include "offload/tier.h"
#include "tests/ring_util.h"

static struct trace trace; // of every mover; the test opens and closes it

struct rig {
    struct device *device; // the test's
    struct mover *mover;
    struct tier ram, memory, disk; // each of twice the file's bytes
    void *bounce;
    uint8_t *model; // the file's bytes
    char path[128];
};

/* Places: 0 a file of n_bytes, 1 RAM, 2 a scratch file. */
static inline void rig_open(struct rig *r, struct device *device, enum ring_kind kind,
                            int64_t n_bytes)
{
    *r = (struct rig){.device = device};
    r->model = file_make("device.bin", r->path, n_bytes);
    struct tier_config config = {
        .device = device, .dir = temp_dir, .node = -1, .n_bytes = 2 * n_bytes};
    assert_int_equal(tier_open(&r->ram, TIER_RAM, &config), OK);
    assert_int_equal(tier_open(&r->memory, TIER_DEVICE, &config), OK);
    assert_int_equal(tier_open(&r->disk, TIER_NVME, &config), OK);
    r->bounce = aligned_alloc(4096, 4 * (size_t)PIECE_BYTES);
    assert_non_null(r->bounce);
    assert_int_equal(device->api->pin(device, r->bounce, 4 * PIECE_BYTES), OK);
    assert_int_equal(tier_pin(&r->ram, 0), OK);
    struct mover_config m = {.kind = kind,
                             .depth = 4,
                             .bounce = r->bounce,
                             .places = {{.path = r->path},
                                        {.base = r->ram.base},
                                        {.path = "scratch", .scratch = &r->disk.scratch}},
                             .n_places = 3,
                             .device = device,
                             .base = r->ram.base,
                             .n_bytes = r->ram.n_bytes,
                             .trace = &trace};
    assert_int_equal(mover_open(&r->mover, &m), OK);
}

/* Leaves the device open. */
static inline void rig_close(struct rig *r)
{
    mover_close(r->mover);
    tier_close(&r->ram);
    tier_close(&r->memory);
    tier_close(&r->disk);
    r->device->api->unpin(r->device, r->bounce, 4 * PIECE_BYTES);
    free(r->bounce);
    free(r->model);
}

#endif
