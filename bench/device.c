/* bench/device.c - see device.h. Note: a small op takes less time than the host needs to queue it,
 * so a round first queues fills of memory that last as long as queueing all calls; the first event
 * follows the fills. */
#include "bench/device.h"

#include "bench/bench.h"

#define MIB        ((int64_t)1 << 20)
#define ALIGN      4096
#define GATE_MOST  (256 * MIB)
#define GATE_S     5e-5 // duration of a fill, about
#define GATES_MAX  64   // per round
#define ROUND_MAX  256  // calls; a queue holds a thousand launches, and a call may need four
#define WARM_CALLS 2    // not counted: they load code and fill caches

static enum err no_room(const char *what, int64_t n_bytes, int64_t room)
{
    return fail(ERR_FIT,
                "bench ops: %s: needs %lld MiB of device memory, the budget is %lld (--mem-device)",
                what, (long long)ceil_div(n_bytes, MIB), (long long)(room / MIB));
}

/* ---- the clock ---- */

struct gate {
    struct bench_device *d;
    int64_t n_bytes;
};

static void gate_call(void *ctx)
{
    const struct gate *g = ctx;
    ops_fill(&g->d->ops, g->d->gate, 0, g->n_bytes);
}

/* Queues n calls behind fills that last for n * *queued_s seconds. Sets *seconds per call, and
 * *queued_s, the host's seconds to queue one. */
static enum err round_run(struct bench_device *d, bench_call_fn call, void *ctx, int n,
                          double *seconds, double *queued_s)
{
    const struct device_api *api = d->device->api;
    struct stream *s = d->ops.stream;
    const double wait_s = n * *queued_s;
    for (int i = 0; d->gate_s > 0 && i < GATES_MAX && i * d->gate_s < wait_s; i++)
        ops_fill(&d->ops, d->gate, 0, d->gate_fill);
    api->record(s, d->from);
    int64_t start_ns = clock_ns();
    for (int i = 0; i < n; i++)
        call(ctx);
    *queued_s = (double)(clock_ns() - start_ns) * 1e-9 / n;
    api->record(s, d->to);
    TRY(api->event_wait(s, d->to));
    *seconds = (double)max_i64(api->between_ns(d->from, d->to), 1) * 1e-9 / n;
    return OK;
}

enum err bench_device_burst(struct bench_device *d, bench_call_fn call, void *ctx, int n,
                            double *seconds)
{
    double queued_s = d->queued_s;
    return round_run(d, call, ctx, n, seconds, &queued_s);
}

enum err bench_device_seconds(struct bench_device *d, bench_call_fn call, void *ctx,
                              double *seconds)
{
    double s, queued_s = 0, all_s = 0;
    int64_t n_all = 0;
    for (int i = 0; i < WARM_CALLS; i++)
        TRY(round_run(d, call, ctx, 1, &s, &queued_s));
    d->queued_s = queued_s;
    while (all_s < BENCH_WINDOW_S) {
        int n = (int)min_i64(max_i64((int64_t)(BENCH_WINDOW_S / s), 1), ROUND_MAX);
        TRY(round_run(d, call, ctx, n, &s, &queued_s));
        d->queued_s = queued_s < d->queued_s ? queued_s : d->queued_s;
        all_s += s * n;
        n_all += n;
    }
    *seconds = all_s / (double)n_all;
    return OK;
}

/* Finds how much memory takes GATE_S to fill. */
static enum err gate_open(struct bench_device *d, int64_t room)
{
    const struct device_api *api = d->device->api;
    int64_t most = min_i64(room / 8, GATE_MOST) / ALIGN * ALIGN;
    struct gate g = {.d = d};
    double s = 0, queued_s = 0;
    if (most < ALIGN)
        return no_room("a stretch to fill", 8 * ALIGN, room);
    d->gate_bytes = most;
    TRY(api->alloc(d->device, most, &d->gate));
    d->room = room - most;
    for (g.n_bytes = min_i64(MIB, most);; g.n_bytes = min_i64(2 * g.n_bytes, most)) {
        for (int i = 0; i < WARM_CALLS; i++)
            TRY(round_run(d, gate_call, &g, 1, &s, &queued_s));
        if (s >= GATE_S || g.n_bytes == most)
            break;
    }
    d->gate_fill = g.n_bytes;
    d->gate_s = s;
    return OK;
}

enum err bench_device_open(struct bench_device *d, struct device *device, const struct ops *ops,
                           int64_t room)
{
    const struct device_api *api = device->api;
    *d = (struct bench_device){.device = device, .ops = *ops};
    TRY(api->stream_open(device, &d->ops.stream));
    TRY(api->event_open(device, &d->from));
    TRY(api->event_open(device, &d->to));
    return gate_open(d, room);
}

void bench_device_close(struct bench_device *d)
{
    if (!d->device)
        return;
    const struct device_api *api = d->device->api;
    api->stream_close(d->ops.stream);
    api->event_close(d->from);
    api->event_close(d->to);
    api->release(d->device, d->gate, d->gate_bytes);
}

/* ---- operands ---- */

static enum err wait_all(struct bench_device *d)
{
    const struct device_api *api = d->device->api;
    api->record(d->ops.stream, d->to);
    return api->event_wait(d->ops.stream, d->to);
}

enum err bench_memory_open(struct bench_memory *m, const char *what)
{
    struct bench_device *d = m->device;
    const int64_t image_bytes = round_up(max_i64(m->host.used, 1), ALIGN);
    void *base;
    if (!d) {
        TRY(arena_open(&m->host, m->host.used));
        m->near = m->host;
        return OK;
    }
    m->near_bytes = image_bytes + round_up(m->more_bytes, ALIGN);
    if (m->near_bytes > d->room)
        return no_room(what, m->near_bytes, d->room);
    TRY(arena_open(&m->host, image_bytes));
    TRY(d->device->api->pin(d->device, m->host.base, m->host.capacity));
    m->pinned = 1;
    TRY(d->device->api->alloc(d->device, m->near_bytes, &base));
    m->near = (struct arena){.base = base, .capacity = image_bytes};
    m->more = m->near.base + image_bytes;
    return OK;
}

enum err bench_memory_send(struct bench_memory *m)
{
    if (!m->device)
        return OK;
    ops_copy(&m->device->ops, m->near.base, m->host.base, m->near.capacity);
    return wait_all(m->device);
}

void bench_memory_close(struct bench_memory *m)
{
    struct bench_device *d = m->device;
    if (d) { // wait for queued commands
        (void)wait_all(d);
        d->device->api->release(d->device, m->near.base, m->near_bytes);
    }
    if (m->pinned)
        d->device->api->unpin(d->device, m->host.base, m->host.capacity);
    arena_close(&m->host);
}

void bench_memory_spread(struct bench_memory *m, uint8_t *to, const uint8_t *unit,
                         int64_t unit_bytes, int64_t n_bytes)
{
    const struct ops *ops = &m->device->ops;
    int64_t at = min_i64(unit_bytes, n_bytes);
    ops_copy(ops, to, unit, at);
    for (; at < n_bytes; at += min_i64(at, n_bytes - at)) // doubles the filled part
        ops_copy(ops, to + at, to, min_i64(at, n_bytes - at));
}
