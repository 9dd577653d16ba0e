/* kernels/device.h - the only door to a device: memory, copies, order, launches.
 *
 * Owns: the vtable that the CPU, CUDA and the tests' simulated accelerator fill in. Refuses: what
 * an op computes (kernels/ops.h) and what bytes mean (offload, engine).
 * A stream is a queue: its commands run one after the other, later than the call that queued them.
 * Between streams nothing is ordered but by events. A command that fails loses the device: nothing
 * more runs on it, and every wait and notify from then on, of any stream, says ERR_DEVICE.
 * Device memory must not be touched by the host unless the device is `unified`. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/ops.h"

struct device;

/* First member of an implementation's own structs. */
struct stream {
    struct device *device; // borrowed
};
struct event {
    struct device *device; // borrowed
};

struct device_api {
    const char *name; // "cpu", "cuda"
    int unified;      // 1: device memory is RAM; nothing has to be copied to compute on it

    /* Device memory, 4 KiB aligned; what it holds is anything, unless the device is `unified`:
     * zeros. ERR_FIT names the flag to change. */
    enum err (*alloc)(struct device *d, int64_t n_bytes, void **p);
    void (*release)(struct device *d, void *p, int64_t n_bytes); // accepts NULL
    /* Makes a range of RAM one that copies read and write without a detour. ERR_DEVICE. */
    enum err (*pin)(struct device *d, void *p, int64_t n_bytes);
    void (*unpin)(struct device *d, void *p, int64_t n_bytes);

    enum err (*stream_open)(struct device *d, struct stream **s);
    void (*stream_close)(struct stream *s); // after what is queued has run; accepts NULL
    /* Queues a copy of n_bytes > 0; either side may be pinned RAM or device memory. Both must stay
     * until it ran. */
    void (*copy)(struct stream *s, void *to, const void *from, int64_t n_bytes);
    void (*fill)(struct stream *s, void *to, int byte, int64_t n_bytes);
    /* Queues an op. The args struct and `ops` are read before launch returns; the numbers that they
     * point to are device memory and are touched when the op runs. */
    void (*launch)(struct stream *s, enum op op, const struct ops *ops, const void *args);
    /* Queues a call of fn on some thread of the device: OK, or the device is lost. fn must not call
     * the device. It is called once, whatever happens. */
    void (*notify)(struct stream *s, void (*fn)(void *ctx, enum err err), void *ctx);

    enum err (*event_open)(struct device *d, struct event **e);
    void (*event_close)(struct event *e);                   // accepts NULL
    void (*record)(struct stream *s, struct event *e);      // happens when s comes to it
    void (*stream_wait)(struct stream *s, struct event *e); // s goes on after e's last record
    /* The host waits for e's last record; of an event that was never recorded it waits for nothing,
     * and so does stream_wait. ERR_DEVICE. */
    enum err (*event_wait)(struct stream *s, struct event *e);
};

struct device {
    const struct device_api *api;
};

/* The CPU: memory is RAM, and a queued command has run when the call returns. Never closed. */
struct device *device_cpu(void);

#endif
