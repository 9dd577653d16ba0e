/* bench/copies.c - `bench copies`: the rates of the link between RAM and a device.
 *
 * Owns: the grid of direction x piece x depth, and the time that a small copy waits behind large
 * ones. Pieces are sent as by the mover: `depth` in flight, each followed by a notify; the next one
 * is queued when any has landed. A PCIe 5.0 x16 card transfers about 55 GB/s per direction, PCIe
 * 3.0 x16 about 13; small pieces are slower because the host wakes after each. */
#include "bench/bench.h"

#include <pthread.h>

#include "kernels/device.h"

#define MIB       ((int64_t)1 << 20)
#define RAM_BYTES (64 * MIB) // pinned: one half per direction
#define CELL_S    0.1        // seconds per cell, about
#define SMALL     4096       // bytes of a small copy
#define TRIES     32         // small copies per case; the median counts
#define LOADED    8          // large copies queued ahead of a small one, as by the mover
#define LARGE     (8 * MIB)

enum way { TO_DEVICE, FROM_DEVICE, N_WAYS };

/* One direction: its stream, and the copies in flight. */
struct sender {
    struct stream *stream;
    uint8_t *ram, *device; // [RAM_BYTES / 2] each
    enum way way;
    int64_t at; // offset of the next piece
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int in_flight; // guarded by `lock`, like the next fields
    enum err err;
};

struct copies {
    struct device *device;
    struct bench_table *table;
    uint8_t *ram;
    void *memory;
    int pinned;
    struct sender lanes[N_WAYS];
    struct stream *ops;
    struct event *done;
};

static void landed(void *ctx, enum err err)
{
    struct sender *l = ctx;
    pthread_mutex_lock(&l->lock);
    l->in_flight--;
    l->err = l->err == OK ? err : l->err;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Waits until at most `most` pieces are in flight. */
static enum err lane_wait(struct sender *l, int most)
{
    pthread_mutex_lock(&l->lock);
    while (l->in_flight > most)
        pthread_cond_wait(&l->changed, &l->lock);
    const enum err err = l->err;
    pthread_mutex_unlock(&l->lock);
    return err;
}

static void lane_send(struct sender *l, const struct device_api *api, int64_t n_bytes)
{
    if (l->at + n_bytes > RAM_BYTES / 2)
        l->at = 0;
    uint8_t *ram = l->ram + l->at, *device = l->device + l->at;
    l->at += n_bytes;
    pthread_mutex_lock(&l->lock);
    l->in_flight++;
    pthread_mutex_unlock(&l->lock);
    if (l->way == TO_DEVICE)
        api->copy(l->stream, device, ram, n_bytes);
    else
        api->copy(l->stream, ram, device, n_bytes);
    api->notify(l->stream, landed, l);
}

/* Bytes per second, summed over the directions with a bit in `ways`. */
static enum err rate(struct copies *c, unsigned ways, int64_t piece, int depth, double *bytes_s)
{
    const struct device_api *api = c->device->api;
    const int64_t start = clock_ns();
    int64_t bytes = 0, ns = 0;
    while (ns < (int64_t)(CELL_S * 1e9)) {
        for (int i = 0; i < N_WAYS; i++) {
            if (!(ways >> i & 1))
                continue;
            TRY(lane_wait(&c->lanes[i], depth - 1));
            lane_send(&c->lanes[i], api, piece);
            bytes += piece;
        }
        ns = clock_ns() - start;
    }
    for (int i = 0; i < N_WAYS; i++)
        TRY(lane_wait(&c->lanes[i], 0));
    *bytes_s = (double)bytes * 1e9 / (double)(clock_ns() - start);
    return OK;
}

static enum err rate_row(struct copies *c, const char *name, unsigned ways, int64_t piece,
                         int depth, int runs)
{
    double rates[BENCH_RUNS_MAX];
    for (int i = 0; i < runs; i++)
        TRY(rate(c, ways, piece, depth, &rates[i]));
    const double median = bench_median(rates, runs);
    return bench_row(c->table, json_pack("{ss sI si sf sf sf sn}", "copy", name, "piece_kib",
                                         (json_int_t)(piece >> 10), "depth", depth, "gb_s",
                                         median * 1e-9, "gb_s_min", rates[0] * 1e-9, "gb_s_max",
                                         rates[runs - 1] * 1e-9, "us"));
}

static enum err rates(struct copies *c, int runs)
{
    static const int kib[] = {64, 128, 256, 512, 1024, 4096, 8192}, depths[] = {1, 4, 8, 16, 64};
    static const struct {
        const char *name;
        unsigned ways;
    } cases[] = {{"h2d", 1}, {"d2h", 2}, {"both", 3}};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 7; k++)
            for (int d = 0; d < 5; d++)
                if (kib[k] * depths[d] <= (64 << 10))
                    TRY(rate_row(c, cases[i].name, cases[i].ways, (int64_t)kib[k] << 10, depths[d],
                                 runs));
    return OK;
}

/* Microseconds from queueing a small copy on the ops' stream until the host knows that it has
 * landed, behind n_large copies of the mover. */
static enum err small_row(struct copies *c, int n_large)
{
    const struct device_api *api = c->device->api;
    struct sender *l = &c->lanes[TO_DEVICE];
    double us[TRIES];
    for (int i = 0; i < TRIES; i++) {
        for (int j = 0; j < n_large; j++)
            lane_send(l, api, min_i64(LARGE, RAM_BYTES / 2 / 2));
        const int64_t start = clock_ns();
        api->copy(c->ops, c->lanes[FROM_DEVICE].device, c->lanes[FROM_DEVICE].ram, SMALL);
        api->record(c->ops, c->done);
        TRY(api->event_wait(c->ops, c->done));
        us[i] = (double)(clock_ns() - start) * 1e-3;
        TRY(lane_wait(l, 0));
    }
    const double median = bench_median(us, TRIES);
    return bench_row(c->table, json_pack("{ss sI si sn sn sn sf}", "copy",
                                         n_large ? "small behind large" : "small alone",
                                         "piece_kib", (json_int_t)(SMALL >> 10), "depth", n_large,
                                         "gb_s", "gb_s_min", "gb_s_max", "us", median));
}

static enum err copies_open(struct copies *c)
{
    const struct device_api *api = c->device->api;
    void *ram;
    TRY(device_cpu()->api->alloc(device_cpu(), RAM_BYTES, &ram));
    c->ram = ram;
    TRY(api->pin(c->device, c->ram, RAM_BYTES));
    c->pinned = 1;
    TRY(api->alloc(c->device, RAM_BYTES, &c->memory));
    TRY(api->stream_open(c->device, &c->ops));
    TRY(api->event_open(c->device, &c->done));
    for (int i = 0; i < N_WAYS; i++) {
        struct sender *l = &c->lanes[i];
        l->way = (enum way)i;
        l->ram = c->ram + i * (RAM_BYTES / 2);
        l->device = (uint8_t *)c->memory + i * (RAM_BYTES / 2);
        TRY(api->stream_open(c->device, &l->stream));
    }
    return OK;
}

/* Closing a stream waits for all queued copies, so nothing lands later. */
static void copies_close(struct copies *c)
{
    const struct device_api *api = c->device->api;
    for (int i = 0; i < N_WAYS; i++)
        api->stream_close(c->lanes[i].stream);
    api->stream_close(c->ops);
    api->event_close(c->done);
    api->release(c->device, c->memory, RAM_BYTES);
    if (c->pinned)
        api->unpin(c->device, c->ram, RAM_BYTES);
    device_cpu()->api->release(device_cpu(), c->ram, RAM_BYTES);
}

static enum err copies_run(struct device *device, const struct config *config)
{
    struct bench_table t;
    struct device_info info;
    struct copies c = {.device = device, .table = &t};
    if (device->api->unified)
        return fail(ERR_USAGE, "bench copies: the CPU copies nothing over a link (--device cuda)");
    for (int i = 0; i < N_WAYS; i++) {
        pthread_mutex_init(&c.lanes[i].lock, NULL);
        pthread_cond_init(&c.lanes[i].changed, NULL);
    }
    TRY(device->api->info(device, &info));
    bench_table_open(&t, config);
    bench_table_note(&t, "device", json_string(info.model));
    enum err err = copies_open(&c);
    if (err == OK)
        err = small_row(&c, 0);
    if (err == OK)
        err = small_row(&c, LOADED);
    if (err == OK)
        err = rates(&c, bench_runs(config));
    copies_close(&c);
    enum err closed = bench_table_close(&t);
    return err != OK ? err : closed;
}

enum err bench_copies(const struct config *c)
{
    struct device *device;
    TRY(device_open(c->device, &device));
    enum err err = copies_run(device, c);
    device_close(device);
    return err;
}
