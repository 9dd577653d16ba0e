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

#ifdef __cplusplus
extern "C" {
#endif

struct device;

/* First member of an implementation's own structs. */
struct stream {
    struct device *device; // borrowed
};
struct event {
    struct device *device; // borrowed
};

/* What a device says of itself. */
struct device_info {
    char model[96]; // "NVIDIA H200, sm_90": with it, the kernels of this version fix the bytes
    int64_t memory_bytes; // of its own; 0 when it is RAM
    int64_t free_bytes;   // of them, now
};

/* Bytes of scratch that a device's ops want: as the functions of kernels/ops.h. */
struct device_scratch {
    int64_t (*matmul)(const struct ops *ops, int m, int n, int k);
    int64_t (*expert_matmul)(const struct ops *ops, int m, int n_used, int n, int k);
    int64_t (*gather)(const struct ops *ops, int k);
    int64_t (*attend_prompt)(const struct ops *ops, int n_prompt_max, int n_heads, int n_kv_heads,
                             int head_dim);
    int64_t (*attend_forced)(const struct ops *ops, int n_spans, int slots_max, int n_heads,
                             int n_kv_heads, int head_dim, int scores);
    int64_t (*prompt_keep)(const struct ops *ops, int n_prompt_max, int n_kv_heads, int head_dim);
};

struct weight_form {
    enum dtype dtype;
    enum weight_layout layout;
    int as_f16; // 1: numbers become f16 before they are multiplied, the large ones infinite
};

/* What matmuls of CUDA read on a card of this architecture. Formats of fewer than 16 bits a number
 * stay as they are stored and are decoded on the way to the tensor cores, which multiply bf16 (f16
 * on sm_75). Wider ones are made rows; the maker's library (lib) reads nothing else. Sums in f32
 * and int8 are made of what is stored. */
static inline struct weight_form device_cuda_reads(int sm, int lib, enum compute compute,
                                                   enum dtype stored)
{
    const int codes = compute == COMPUTE_INT8 && (stored == DTYPE_Q8 || stored == DTYPE_Q4);
    const int narrow = dtype_info(stored)->block > 1 || stored == DTYPE_BF12;
    struct weight_form form = {stored, WEIGHT_PANELS, 0};
    if (compute == COMPUTE_F32 || codes)
        return form;
    form.as_f16 = sm < 80;
    if (lib || !narrow) {
        form.dtype = sm < 80 ? DTYPE_F16 : DTYPE_BF16;
        form.layout = WEIGHT_ROWS;
    }
    return form;
}

/* Matmuls that the device's maker wrote, for ops that ask for them (struct ops). Whoever launches
 * one has opened the library, and prepared weights of that format, n and k. */
struct device_library {
    /* Finds it; name: which one it is, "cublaslt 13.1.0", for its version is part of the answer.
     * ERR_DEVICE: it is not there. May be called again. */
    enum err (*open)(struct device *d, char *name, int cap);
    /* Chooses how up to m rows are multiplied by weights of w's format, n and k (its numbers are
     * not read), and sees on the device that a row's bytes depend neither on how many there are nor
     * on its place among them. Waits for the stream; what stands in `room` is lost. ERR_DEVICE: it
     * does not hold, or there is no way; ERR_FIT: too little room. */
    enum err (*prepare)(struct stream *s, const struct weight *w, int m, void *room,
                        int64_t room_bytes);
};

struct device_api {
    const char *name; // "cpu", "cuda"
    int unified;      // 1: device memory is RAM; nothing has to be copied to compute on it
    const struct device_scratch *scratch;
    const struct device_library *library; // NULL: there are no matmuls but its own
    /* The form in which its matmuls read weights that are stored in panels of a format. */
    struct weight_form (*reads)(struct device *d, enum compute compute, enum dtype stored);
    enum err (*info)(struct device *d, struct device_info *info); // ERR_DEVICE
    void (*close)(struct device *d); // nothing of it is in use any more

    /* Device memory, 4 KiB aligned; what it holds is anything, unless the device is `unified`:
     * zeros. ERR_FIT names the flag to change. */
    enum err (*alloc)(struct device *d, int64_t n_bytes, void **p);
    void (*release)(struct device *d, void *p, int64_t n_bytes); // accepts NULL
    /* Makes a range of RAM one that copies read and write without a detour, and that ops may read.
     * ERR_DEVICE: it cannot be pinned. */
    enum err (*pin)(struct device *d, void *p, int64_t n_bytes);
    /* The same for copies alone, as far as it can be done: what cannot be pinned is copied more
     * slowly, and a warning says so. ERR_DEVICE, ERR_FIT. */
    enum err (*pin_some)(struct device *d, void *p, int64_t n_bytes);
    /* Of all that was pinned and begins in the range. Nothing is copied from or to it any more. */
    void (*unpin)(struct device *d, void *p, int64_t n_bytes);

    enum err (*stream_open)(struct device *d, struct stream **s);
    void (*stream_close)(struct stream *s); // after what is queued has run; accepts NULL
    /* Queues a copy of n_bytes > 0; either side may be pinned RAM or device memory. Both must stay
     * until it ran. */
    void (*copy)(struct stream *s, void *to, const void *from, int64_t n_bytes);
    /* The same on a stream that ops are launched on (ops_copy): a small one does not wait for the
     * copies of other streams. */
    void (*ops_copy)(struct stream *s, void *to, const void *from, int64_t n_bytes);
    void (*fill)(struct stream *s, void *to, int byte, int64_t n_bytes);
    /* Queues an op. The args struct and `ops` are read before launch returns; the numbers that they
     * point to are device memory, or pinned RAM that the op only reads (rows of embeddings), and
     * are touched when it runs. */
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
    /* Nanoseconds between the last records of two events, which have both happened. */
    int64_t (*between_ns)(struct event *from, struct event *to);
};

struct device {
    const struct device_api *api;
};

/* The CPU: memory is RAM, and a queued command has run when the call returns. */
struct device *device_cpu(void);

/* Opens what spec names: "cpu"; "cuda" or "cuda:N" (sluice-cuda.so beside the program);
 * "PATH.so" or "PATH.so:ARG", any other implementation; "auto": a CUDA device where there is one,
 * else the CPU. ERR_USAGE: no such spec; ERR_DEVICE: it is not there. */
enum err device_open(const char *spec, struct device **d);
void device_close(struct device *d); // accepts NULL
/* 1: an NVIDIA driver is loaded. */
int device_cuda_driver(void);
/* The path of sluice-cuda.so: in ../lib/sluice of an installed program, else beside the program
 * under the program's own name. ERR_DEVICE: it is not there. */
enum err device_cuda_library(char *path, int cap);

/* What a shared library with an implementation exports, as DEVICE_ENTRY: version is DEVICE_VERSION
 * of who calls, arg what stands behind the colon or "". Errors as device_open. */
#define DEVICE_VERSION 5
#define DEVICE_ENTRY   "sluice_device_open"
typedef enum err (*device_entry_fn)(int version, const char *arg, struct device **d);

#ifdef __cplusplus
}
#endif

#endif
