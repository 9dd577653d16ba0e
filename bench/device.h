/* bench/device.h - what `bench ops` measures a device with: operands in its memory, its own clock.
 *
 * Owns: a stream, two events and a stretch of memory that keeps the device busy while calls queue
 * up. Refuses: what is measured (bench/ops*.c). */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include "kernels/base/arena.h"
#include "kernels/device.h"

struct bench_device {
    struct device *device;   // borrowed
    struct ops ops;          // its stream is owned here
    struct event *from, *to; // owned
    void *gate;              // owned: [gate_bytes] of the device
    int64_t gate_bytes;
    int64_t gate_fill; // of them are filled ahead of a round
    double gate_s;     // in so many seconds
    double queued_s;   // host: of queueing one call, the least of the last measurement
    int64_t room;      // bytes of its memory that operands may take at once
};

/* room: bytes of the device's memory that all of it may take. ERR_FIT, ERR_DEVICE. Close it also
 * after an error. */
enum err bench_device_open(struct bench_device *d, struct device *device, const struct ops *ops,
                           int64_t room);
void bench_device_close(struct bench_device *d);

/* Queues one call. */
typedef void (*bench_call_fn)(void *ctx);
/* Seconds of a call on the device's clock: the mean of a window of many, which stand in its queue
 * before it comes to the first. ERR_DEVICE. */
enum err bench_device_seconds(struct bench_device *d, bench_call_fn call, void *ctx,
                              double *seconds);
/* The same of n calls once, nothing before them but what queues them up. */
enum err bench_device_burst(struct bench_device *d, bench_call_fn call, void *ctx, int n,
                            double *seconds);

/* Operands: RAM that the host fills, and where ops read them: the same, or a copy of it in a
 * device's memory with more behind it. Carve `host`, which measures; open; carve `host` again, fill
 * it, send it, and carve `near`. */
struct bench_memory {
    struct bench_device *device; // borrowed; NULL: the CPU, whose `near` is `host`
    int64_t more_bytes;          // what only the device has
    struct arena host;           // owned; pinned where there is a device
    struct arena near;
    uint8_t *more; // [more_bytes], 4 KiB aligned
    int64_t near_bytes;
    int pinned;
};
/* ERR_FIT: more than may be taken; `what` names it. Close it also after an error. */
enum err bench_memory_open(struct bench_memory *m, const char *what);
/* What ops read becomes what the host filled. ERR_DEVICE. */
enum err bench_memory_send(struct bench_memory *m);
void bench_memory_close(struct bench_memory *m);
/* Queues it all over [n_bytes] of the device: copies of a unit, which stands in m's host. */
void bench_memory_spread(struct bench_memory *m, uint8_t *to, const uint8_t *unit,
                         int64_t unit_bytes, int64_t n_bytes);

#endif
