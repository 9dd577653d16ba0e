/* bench/device.h - measures a device for `bench ops`: operands in its memory, and its clock.
 *
 * Owns: a stream, two events and a block of memory whose filling keeps the device busy while calls
 * are queued. Refuses: the choice of ops (bench/ops*.c). */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include "kernels/base/arena.h"
#include "kernels/device.h"

struct bench_device {
    struct device *device;   // borrowed
    struct ops ops;          // its stream is owned here
    struct event *from, *to; // owned
    void *gate;              // owned: [gate_bytes] in device memory
    int64_t gate_bytes;
    int64_t gate_fill; // bytes to fill ahead of a round
    double gate_s;     // seconds per fill
    double queued_s;   // host seconds to queue one call: least of the last measurement
    int64_t room;      // bytes of device memory for operands at one time
};

/* room: bytes of device memory in all. ERR_FIT, ERR_DEVICE. Close it also after an error. */
enum err bench_device_open(struct bench_device *d, struct device *device, const struct ops *ops,
                           int64_t room);
void bench_device_close(struct bench_device *d);

/* Queues one call. */
typedef void (*bench_call_fn)(void *ctx);
/* Seconds per call on the device's clock: the mean of many calls that were queued before the first
 * one starts. ERR_DEVICE. */
enum err bench_device_seconds(struct bench_device *d, bench_call_fn call, void *ctx,
                              double *seconds);
/* The same for n calls once, with only the fills before them. */
enum err bench_device_burst(struct bench_device *d, bench_call_fn call, void *ctx, int n,
                            double *seconds);

/* Operands: `host` is RAM that the host fills, `near` is where ops read: the same memory, or a copy
 * in the device's memory followed by more_bytes. Carve `host` to measure; open; carve `host` again,
 * fill and send it; then carve `near`. */
struct bench_memory {
    struct bench_device *device; // borrowed; NULL: the CPU, whose `near` is `host`
    int64_t more_bytes;          // device memory without a copy in RAM
    struct arena host;           // owned; pinned for a device
    struct arena near;
    uint8_t *more; // [more_bytes], 4 KiB aligned
    int64_t near_bytes;
    int pinned;
};
/* ERR_FIT: needs more than the room; `what` names the operands. Close it also after an error. */
enum err bench_memory_open(struct bench_memory *m, const char *what);
/* Copies `host` to `near`. ERR_DEVICE. */
enum err bench_memory_send(struct bench_memory *m);
void bench_memory_close(struct bench_memory *m);
/* Queues copies of a unit, in m's host, to fill [n_bytes] of the device. */
void bench_memory_spread(struct bench_memory *m, uint8_t *to, const uint8_t *unit,
                         int64_t unit_bytes, int64_t n_bytes);

#endif
