/* kernels/device.h - the only interface to a device: memory, copies, streams, launches.
 *
 * Owns: the vtable that the CPU, CUDA and the tests' simulated accelerator fill in. Refuses: what
 * an op computes (kernels/ops.h) and what bytes mean (offload, engine).
 * A stream is a queue: its commands run in order, after the call that queued them. Only events
 * order commands of different streams. After a failed command the device is lost: it runs nothing
 * more, and every later wait and notify on any stream reports ERR_DEVICE.
 * The host must not touch device memory unless the device is `unified`. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct device;

/* First member of each implementation's own structs. */
struct stream {
    struct device *device; // borrowed
};
struct event {
    struct device *device; // borrowed
};

struct device_info {
    char model[96]; // "NVIDIA H200, sm_90": the model and the version of the kernels fix the bytes
    int64_t memory_bytes; // the device's own memory; 0 when it is RAM
    int64_t free_bytes;   // of memory_bytes, free now
};

/* Bytes of scratch that the device's ops need; arguments as the functions in kernels/ops.h. */
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
    int as_f16; // 1: numbers are converted to f16 for the product; above 65504 they become infinite
};

/* The form in which CUDA matmuls read weights on compute capability sm (80: 8.0). Formats below 16
 * bits per number stay as stored and are decoded in the kernel, for tensor cores that multiply bf16
 * (f16 below sm_80). Wider formats are converted to rows; the vendor's library (lib) reads only
 * rows. COMPUTE_F32 and int8 products read the stored panels. */
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

/* Matmuls of the device vendor's library, for ops that select it (struct ops). Before a launch, the
 * caller has called open(), and prepare() for weights of that format, n and k. */
struct device_library {
    /* Loads the library. name: "cublaslt 13.1.0"; answers depend on the version. ERR_DEVICE: not
     * found. May be called again. */
    enum err (*open)(struct device *d, char *name, int cap);
    /* Chooses the algorithm that multiplies up to m rows by weights of w's format, n and k (the
     * numbers in w are not read), and verifies on the device that the bytes of a row depend neither
     * on the number of rows nor on the row's place among them. Waits for the stream and overwrites
     * `room`. ERR_DEVICE: verification failed, or no algorithm; ERR_FIT: `room` is too small. */
    enum err (*prepare)(struct stream *s, const struct weight *w, int m, void *room,
                        int64_t room_bytes);
};

struct device_api {
    const char *name; // "cpu", "cuda"
    int unified;      // 1: device memory is RAM; nothing has to be copied to compute on it
    const struct device_scratch *scratch;
    const struct device_library *library; // NULL: the device has only sluice's own matmuls
    /* The form in which the device's matmuls read weights that are stored in panels. */
    struct weight_form (*reads)(struct device *d, enum compute compute, enum dtype stored);
    enum err (*info)(struct device *d, struct device_info *info); // ERR_DEVICE
    void (*close)(struct device *d); // after everything on the device was released

    /* Device memory, aligned to 4 KiB, uninitialised; zeroed if the device is `unified`. ERR_FIT
     * names the flag to change. */
    enum err (*alloc)(struct device *d, int64_t n_bytes, void **p);
    void (*release)(struct device *d, void *p, int64_t n_bytes); // accepts NULL
    /* Pins RAM, so that copies need no staging buffer and ops may read it. ERR_DEVICE: it cannot be
     * pinned. */
    enum err (*pin)(struct device *d, void *p, int64_t n_bytes);
    /* Pins as much as possible, for copies only. Copies of the unpinned rest are slower, and a
     * warning says so. ERR_DEVICE, ERR_FIT. */
    enum err (*pin_some)(struct device *d, void *p, int64_t n_bytes);
    /* Unpins every range whose start is within n_bytes of p. No copy may use them any more. */
    void (*unpin)(struct device *d, void *p, int64_t n_bytes);

    enum err (*stream_open)(struct device *d, struct stream **s);
    void (*stream_close)(struct stream *s); // waits for all queued commands; accepts NULL
    /* Queues a copy of n_bytes > 0 between pinned RAM and device memory, either way. Both buffers
     * must stay valid until the copy has run. */
    void (*copy)(struct stream *s, void *to, const void *from, int64_t n_bytes);
    /* The same on a stream that also launches ops: a small copy does not wait for copies of other
     * streams. */
    void (*ops_copy)(struct stream *s, void *to, const void *from, int64_t n_bytes);
    void (*fill)(struct stream *s, void *to, int byte, int64_t n_bytes);
    /* Queues an op. launch reads `ops` and the args struct before it returns. The arrays that args
     * points to are used when the op runs: device memory, or pinned RAM that the op only reads
     * (embedding rows). */
    void (*launch)(struct stream *s, enum op op, const struct ops *ops, const void *args);
    /* Queues a call fn(ctx, OK), or ERR_DEVICE if the device is lost, on some thread of the device.
     * fn is called exactly once and must not call the device. */
    void (*notify)(struct stream *s, void (*fn)(void *ctx, enum err err), void *ctx);

    enum err (*event_open)(struct device *d, struct event **e);
    void (*event_close)(struct event *e);                   // accepts NULL
    void (*record)(struct stream *s, struct event *e);      // e happens when s reaches this point
    void (*stream_wait)(struct stream *s, struct event *e); // holds s until e's last record
    /* The host waits for e's last record. Without a record, event_wait and stream_wait return at
     * once. ERR_DEVICE. */
    enum err (*event_wait)(struct stream *s, struct event *e);
    /* Nanoseconds between the last records of two events; both have happened. */
    int64_t (*between_ns)(struct event *from, struct event *to);
};

struct device {
    const struct device_api *api;
};

/* The CPU: device memory is RAM; a command has run when the call that queues it returns. */
struct device *device_cpu(void);

/* Opens a device: "cpu"; "cuda" or "cuda:N" (loads sluice-cuda.so, see device_library_path);
 * "PATH.so" or "PATH.so:ARG" (another implementation); "auto" (CUDA if present, else the CPU).
 * ERR_USAGE: unknown spec; ERR_DEVICE: not available. */
enum err device_open(const char *spec, struct device **d);
void device_close(struct device *d); // accepts NULL
#define DEVICES_MAX 64
/* Where a device is. */
struct device_place {
    char pci[16]; // its address on the PCI bus, "0000:01:00.0"; "": unknown
};
/* Counts the devices 0 to *n - 1 of a kind, "cuda" or "PATH.so", with which spec begins in n_kind
 * bytes; at most DEVICES_MAX. Opens none. ERR_USAGE: unknown kind; ERR_DEVICE: there is none. */
enum err device_count(const char *spec, int n_kind, struct device_place places[DEVICES_MAX],
                      int *n);
/* 1 when an NVIDIA driver is loaded. */
int device_cuda_driver(void);
/* Writes the path of sluice-WHICH.so ("cuda", "mpi"): ../lib/sluice/ of an installed program, else
 * beside the program, named PROGRAM-WHICH.so. ERR_DEVICE: not found. */
enum err device_library_path(const char *which, char *path, int cap);

/* What an implementation's shared library exports as DEVICE_ENTRY. version: the caller's
 * DEVICE_VERSION; arg: the text after the colon, or "". Errors as device_open. */
#define DEVICE_VERSION 5
#define DEVICE_ENTRY   "sluice_device_open"
typedef enum err (*device_entry_fn)(int version, const char *arg, struct device **d);
/* And, where there may be several devices, as DEVICE_COUNT: see device_count(). */
#define DEVICE_COUNT "sluice_device_count"
typedef enum err (*device_count_fn)(int version, struct device_place places[DEVICES_MAX], int *n);

#ifdef __cplusplus
}
#endif

#endif
