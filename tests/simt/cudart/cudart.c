/* tests/simt/cudart/cudart.c - see cudart.h.
 *
 * Note: there is no thread here. A stream is a list; its commands run
 * when somebody waits for them, or, by the seed, while others are queued: so a copy reads what
 * stands there by then, and not when it was queued. One lock is around all of it. */
#include "tests/simt/cudart/cudart.h"

#include "kernels/base/base.h"
#include "tests/simt/simt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define COPY_FEW (64 << 10)
#define SLOTS    256 // of allocations, of pinned ranges, of streams
#define KERNELS  128 // of different names

enum kind { COPY, FILL, LAUNCH, CALL, RECORD, WAIT };

struct CUevent_st {
    int device;
    int times;
    int64_t recorded, happened; // counts of records queued and come to
    int64_t happened_ns;        // when it came to the last of them
};

struct command {
    struct command *next;
    enum kind kind;
    void *to;
    const void *from;
    size_t n_bytes;
    int byte;
    _Alignas(16) struct simt_work work; // its parameters follow, on 16 bytes too
    void (*call)(const void *args);     // as do these
    struct CUevent_st *event;
    int64_t record; // which record of the event
};

struct CUstream_st {
    int device;
    int64_t n_launches, n_few; // queued so far: launches, copies of less than COPY_FEW
    struct command *first, **last;
};

struct range {
    uint8_t *base;
    int64_t n_bytes;
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all that follows
static struct cudart_machine machine;
static struct range blocks[SLOTS], pins[SLOTS];
static struct CUstream_st *streams[SLOTS];
static struct CUevent_st gone = {.happened = INT64_MAX}; // in place of one that was destroyed
static int64_t n_calls, fail_call, n_commands, fail_command, bytes, peak_bytes, pinned_bytes;
static int64_t n_host_calls;
static int64_t n_few; // of streams that are gone and had launches
static int n_events;
static struct cudart_counts queued;
static struct {
    char name[64];
    int64_t times;
} kernels[KERNELS];
static cudaError_t fail_with, lost; // lost: cudaSuccess, or what every call says
static int fail_lost;
static uint64_t rng;
static _Thread_local int current;
static _Thread_local cudaError_t last_error;

static void queue_launch(struct CUstream_st *s, const struct simt_work *work);
static int may_touch(const char *kernel, const void *p, int64_t n_bytes, int write);

/* ---- failing ---- */

static cudaError_t say(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

/* Of every call: locks, counts, and fails what is to fail. The kernels' errors lose the device. */
static cudaError_t begin(void)
{
    pthread_mutex_lock(&lock);
    if (++n_calls == fail_call && lost == cudaSuccess) {
        lost = fail_lost ? fail_with : cudaSuccess;
        return fail_with;
    }
    if (simt_error() && lost == cudaSuccess)
        lost = cudaErrorIllegalAddress;
    return lost;
}

static cudaError_t end(cudaError_t e)
{
    pthread_mutex_unlock(&lock);
    return say(e);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;
    pthread_mutex_lock(&lock);
    last_error = lost; // what loses the device cannot be taken back
    pthread_mutex_unlock(&lock);
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    if (simt_error())
        return simt_error();
    return e == cudaErrorMemoryAllocation         ? "out of memory"
           : e == cudaErrorIllegalAddress         ? "an illegal memory access was encountered"
           : e == cudaErrorInsufficientDriver     ? "CUDA driver version is insufficient"
           : e == cudaErrorNoDevice               ? "no CUDA-capable device is detected"
           : e == cudaErrorDevicesUnavailable     ? "CUDA-capable device(s) is/are busy"
           : e == cudaErrorNoKernelImageForDevice ? "no kernel image is available"
                                                  : "some error of CUDA";
}

void cudart_fail_call(int64_t n, cudaError_t e, int is_lost)
{
    pthread_mutex_lock(&lock);
    fail_call = n > 0 ? n_calls + n : 0;
    fail_with = e;
    fail_lost = is_lost;
    pthread_mutex_unlock(&lock);
}

void cudart_fail_command(int64_t n)
{
    pthread_mutex_lock(&lock);
    fail_command = n > 0 ? n_commands + n : 0;
    pthread_mutex_unlock(&lock);
}

int64_t cudart_calls(void)
{
    return n_calls;
}

int64_t cudart_commands(void)
{
    return n_commands;
}

int64_t cudart_host_calls(void)
{
    return n_host_calls;
}

struct cudart_counts cudart_queued(void)
{
    return queued;
}

int64_t cudart_launched(const char *kernel)
{
    int64_t n = 0;
    for (int i = 0; i < KERNELS && kernels[i].name[0]; i++)
        n += strncmp(kernels[i].name, kernel, strlen(kernel)) == 0 ? kernels[i].times : 0;
    return n;
}

static void count_launch(const char *name)
{
    int i = 0;
    name += name[0] == '('; // a template with a comma
    while (kernels[i].name[0] && strncmp(kernels[i].name, name, sizeof kernels[i].name - 1) != 0)
        CHECK(++i < KERNELS);
    snprintf(kernels[i].name, sizeof kernels[i].name, "%s", name);
    kernels[i].times++;
    queued.launches++;
}

int64_t cudart_small_copies(void)
{
    int64_t n = n_few;
    for (int i = 0; i < SLOTS; i++)
        n += streams[i] && streams[i]->n_launches > 0 ? streams[i]->n_few : 0;
    return n;
}

int64_t cudart_peak_bytes(void)
{
    return peak_bytes;
}

int cudart_held(void)
{
    int n = n_events;
    for (int i = 0; i < SLOTS; i++)
        n += (blocks[i].base != NULL) + (pins[i].base != NULL) + (streams[i] != NULL);
    return n;
}

void cudart_open(const struct cudart_machine *m)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS; i++) {
        for (struct command *c = streams[i] ? streams[i]->first : NULL, *next; c; c = next) {
            next = c->next;
            free(c);
        }
        free(streams[i]);
        streams[i] = NULL;
    }
    memset(blocks, 0, sizeof blocks);
    memset(pins, 0, sizeof pins);
    memset(kernels, 0, sizeof kernels);
    queued = (struct cudart_counts){0};
    n_calls = fail_call = n_commands = fail_command = bytes = peak_bytes = pinned_bytes = 0;
    n_events = 0;
    n_few = n_host_calls = 0;
    lost = last_error = cudaSuccess;
    machine = *m;
    rng = mix64(m->seed);
    simt_clear();
    simt_free_all();
    simt_arch_set(m->sm);
    simt_queue = queue_launch;
    simt_may_touch = may_touch;
    pthread_mutex_unlock(&lock);
}

/* ---- memory ---- */

/* The range that all of p lies in; NULL: none. */
static struct range *range_of(struct range *ranges, const void *p, size_t n_bytes)
{
    for (int i = 0; i < SLOTS; i++) {
        struct range *r = &ranges[i];
        const uintptr_t at = (uintptr_t)p - (uintptr_t)r->base;
        if (r->base && at < (uintptr_t)r->n_bytes && n_bytes <= (uintptr_t)r->n_bytes - at)
            return r;
    }
    return NULL;
}

static struct range *range_free(struct range *ranges)
{
    int i = 0;
    while (ranges[i].base)
        CHECK(++i < SLOTS);
    return &ranges[i];
}

static int is_device(const void *p)
{
    return range_of(blocks, p, 1) != NULL;
}

static int is_copy_kernel(const char *kernel)
{
    return strncmp(kernel, "copy_units", 10) == 0;
}

/* Kernels see pinned RAM where the host has it, and only copies write there. They run with the lock
 * held. */
static int may_touch(const char *kernel, const void *p, int64_t n_bytes, int write)
{
    if (machine.idle && range_of(blocks, p, (size_t)n_bytes))
        return !write;
    return (!write || is_copy_kernel(kernel)) && range_of(pins, p, (size_t)n_bytes) != NULL;
}

cudaError_t cudaMalloc(void **p, size_t n_bytes)
{
    cudaError_t e = begin();
    if (e == cudaSuccess && bytes + (int64_t)n_bytes > machine.memory_bytes)
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        struct range *r = range_free(blocks);
        uint8_t *base = machine.idle ? mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                     : simt_alloc((int64_t)n_bytes);
        CHECK(base != MAP_FAILED);
        *r = (struct range){base, (int64_t)n_bytes, current};
        bytes += r->n_bytes;
        peak_bytes = max_i64(peak_bytes, bytes);
        *p = r->base;
    }
    return end(e);
}

static void run_all(void);

/* Waits for everything that was queued, as CUDA does. Who reads it later reads what nobody wrote.
 */
cudaError_t cudaFree(void *p)
{
    cudaError_t e = begin();
    struct range *r = e == cudaSuccess ? range_of(blocks, p, 1) : NULL;
    if (r && r->base == p) {
        run_all();
        if (machine.idle)
            munmap(r->base, (size_t)r->n_bytes);
        else
            simt_forget(r->base, r->n_bytes);
        bytes -= r->n_bytes;
        *r = (struct range){0};
        if (bytes == 0)
            simt_free_all();
    } else if (e == cudaSuccess) {
        e = cudaErrorInvalidValue;
    }
    return end(e);
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_all)
{
    cudaError_t e = begin();
    if (e == cudaSuccess) {
        *n_free = (size_t)(machine.memory_bytes - bytes);
        *n_all = (size_t)machine.memory_bytes;
    }
    return end(e);
}

cudaError_t cudaHostRegister(void *p, size_t n_bytes, unsigned flags)
{
    cudaError_t e = begin();
    CHECK(flags == (cudaHostRegisterPortable | cudaHostRegisterMapped));
    if (e == cudaSuccess && range_of(pins, p, 1))
        e = cudaErrorHostMemoryAlreadyRegistered;
    if (e == cudaSuccess && pinned_bytes + (int64_t)n_bytes > machine.pin_bytes)
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        *range_free(pins) = (struct range){p, (int64_t)n_bytes, current};
        pinned_bytes += (int64_t)n_bytes;
    }
    return end(e);
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t e = begin();
    struct range *r = e == cudaSuccess ? range_of(pins, p, 1) : NULL;
    if (r && r->base == p) {
        pinned_bytes -= r->n_bytes;
        *r = (struct range){0};
    } else if (e == cudaSuccess) {
        e = cudaErrorHostMemoryNotRegistered;
    }
    return end(e);
}

/* ---- commands ---- */

static int is_wrong_side(const void *p, size_t n_bytes)
{
    return !range_of(is_device(p) ? blocks : pins, p, n_bytes);
}

static void copy(void *to, const void *from, size_t n_bytes)
{
    if (!is_device(to))
        memcpy(to, from, n_bytes);
    else if (is_device(from))
        simt_move(to, from, (int64_t)n_bytes);
    else
        simt_put(to, from, (int64_t)n_bytes);
}

static void fill(uint8_t *to, int byte, size_t n_bytes)
{
    uint8_t some[4096];
    memset(some, byte, sizeof some);
    for (size_t at = 0; at < n_bytes; at += sizeof some) {
        const size_t n = n_bytes - at < sizeof some ? n_bytes - at : sizeof some;
        if (is_device(to))
            simt_put(to + at, some, (int64_t)n);
        else
            memcpy(to + at, some, n);
    }
}

/* A small copy, which a kernel does: its first parameter says where to. */
static int is_copy_to_ram(const struct command *c)
{
    return c->kind == LAUNCH && is_copy_kernel(c->work.kernel.name) &&
           range_of(pins, *(void *const *)c->work.params, 1);
}

/* Runs the first command of a stream. 0: there is none, or it waits. On a lost device nothing runs.
 */
static int run_one(struct CUstream_st *s)
{
    struct command *c = s->first;
    if (!c || lost != cudaSuccess || (c->kind == WAIT && c->event->happened < c->record))
        return 0;
    s->first = c->next;
    if (!s->first)
        s->last = &s->first;
    if (++n_commands == fail_command)
        lost = cudaErrorIllegalAddress;
    else if (c->kind == COPY &&
             (is_wrong_side(c->to, c->n_bytes) || is_wrong_side(c->from, c->n_bytes)))
        lost = cudaErrorIllegalAddress;
    else if (machine.idle && !(c->kind == RECORD || is_copy_to_ram(c)))
        ; // nothing
    else if (c->kind == COPY)
        copy(c->to, c->from, c->n_bytes);
    else if (c->kind == FILL && is_wrong_side(c->to, c->n_bytes))
        lost = cudaErrorIllegalAddress;
    else if (c->kind == FILL)
        fill(c->to, c->byte, c->n_bytes);
    else if (c->kind == LAUNCH)
        simt_run(&c->work);
    else if (c->kind == CALL)
        c->call(c + 1);
    else if (c->kind == RECORD) {
        c->event->happened = max_i64(c->event->happened, c->record);
        c->event->happened_ns = clock_ns();
    }
    if (simt_error())
        lost = cudaErrorIllegalAddress;
    free(c);
    return 1;
}

/* The stream in which a record of an event is still to come; NULL: none. */
static struct CUstream_st *stream_with(const struct CUevent_st *e, int64_t record)
{
    for (int i = 0; i < SLOTS; i++)
        for (struct command *c = streams[i] ? streams[i]->first : NULL; c; c = c->next)
            if (c->kind == RECORD && c->event == e && c->record == record)
                return streams[i];
    return NULL;
}

/* Runs what has to run until a record of an event has happened, and nothing else. */
static void run_until(const struct CUevent_st *e, int64_t record)
{
    struct CUstream_st *s = stream_with(e, record);
    while (s && e->happened < record && lost == cudaSuccess)
        if (!run_one(s))
            run_until(s->first->event, s->first->record);
}

static void run_stream(struct CUstream_st *s)
{
    while (s->first && lost == cudaSuccess)
        if (!run_one(s))
            run_until(s->first->event, s->first->record);
}

static void run_all(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (streams[i])
            run_stream(streams[i]);
}

/* Some of what could run, by the seed. */
static void run_some(void)
{
    for (int turns = 0; machine.seed > 1 && turns < 64; turns++) {
        rng = mix64(rng);
        if (rng % 4 == 0)
            return;
        struct CUstream_st *s = streams[rng / 4 % 8];
        for (uint64_t n = rng / 32 % 8; s && n > 0; n--)
            if (!run_one(s))
                break;
    }
    if (machine.seed == 1)
        run_all();
}

static cudaError_t queue(struct CUstream_st *s, const struct command *command)
{
    struct command *c = malloc(sizeof *c);
    CHECK(c);
    if (s->device != current) {
        free(c);
        return cudaErrorInvalidResourceHandle;
    }
    *c = *command;
    c->next = NULL;
    *s->last = c;
    s->last = &c->next;
    run_some();
    return cudaSuccess;
}

/* The args follow their command. */
static cudaError_t queue_with(struct CUstream_st *s, const struct command *command,
                              const void *args, int64_t n_bytes)
{
    cudaError_t e = begin();
    struct command *c = malloc(sizeof *c + (size_t)n_bytes);
    CHECK(c);
    *c = *command;
    memcpy(c + 1, args, (size_t)n_bytes);
    c->work.params = c + 1;
    if (e == cudaSuccess && s->device != current)
        e = cudaErrorInvalidResourceHandle;
    if (e != cudaSuccess) {
        free(c);
        return end(e);
    }
    s->n_launches += command->kind == LAUNCH;
    if (command->kind == LAUNCH)
        count_launch(command->work.kernel.name);
    *s->last = c;
    s->last = &c->next;
    run_some();
    return end(e);
}

static void queue_launch(struct CUstream_st *s, const struct simt_work *work)
{
    (void)queue_with(s, &(struct command){.kind = LAUNCH, .work = *work}, work->params,
                     work->bytes);
}

cudaError_t cudart_queue_call(cudaStream_t s, void (*call)(const void *args), const void *args,
                              int64_t n_bytes)
{
    return queue_with(s, &(struct command){.kind = CALL, .call = call}, args, n_bytes);
}

struct host_call {
    cudaHostFn_t fn;
    void *ctx;
};

static void call_host(const void *args)
{
    const struct host_call *h = args;
    n_host_calls++;
    h->fn(h->ctx);
}

/* As CUDA does: on a lost device it is left out. */
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *ctx)
{
    const struct host_call h = {fn, ctx};
    return cudart_queue_call(s, call_host, &h, sizeof h);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    cudaError_t e = begin();
    CHECK(kind == cudaMemcpyDefault);
    if (e == cudaSuccess && (is_wrong_side(to, n_bytes) || is_wrong_side(from, n_bytes)))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        e = queue(s, &(struct command){.kind = COPY, .to = to, .from = from, .n_bytes = n_bytes});
    if (e == cudaSuccess)
        s->n_few += n_bytes < COPY_FEW, queued.copies++;
    return end(e);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t n_bytes, cudaStream_t s)
{
    cudaError_t e = begin();
    if (e == cudaSuccess)
        e = queue(s, &(struct command){.kind = FILL, .to = to, .byte = byte, .n_bytes = n_bytes});
    queued.fills += e == cudaSuccess;
    return end(e);
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    cudaError_t e = begin();
    CHECK(flags == cudaStreamNonBlocking);
    if (e == cudaSuccess) {
        int i = 0;
        while (streams[i])
            CHECK(++i < SLOTS);
        streams[i] = calloc(1, sizeof *streams[i]);
        CHECK(streams[i]);
        streams[i]->device = current;
        streams[i]->last = &streams[i]->first;
        *out = streams[i];
    }
    return end(e);
}

/* What is queued runs first. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t e = begin();
    if (e == cudaSuccess) {
        run_stream(s);
        e = lost;
    }
    if (e == cudaSuccess) {
        int i = 0;
        while (streams[i] != s)
            CHECK(++i < SLOTS);
        streams[i] = NULL;
        n_few += s->n_launches > 0 ? s->n_few : 0;
        free(s);
    }
    return end(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t e = begin();
    if (e == cudaSuccess) {
        run_stream(s);
        e = lost;
    }
    return end(e);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags)
{
    cudaError_t e = begin();
    CHECK(flags == 0);
    if (e == cudaSuccess && event->recorded > 0)
        e = queue(s, &(struct command){.kind = WAIT, .event = event, .record = event->recorded});
    return end(e);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    cudaError_t e = begin();
    CHECK(flags & cudaEventBlockingSync); // others wait by spinning
    if (e == cudaSuccess) {
        *out = calloc(1, sizeof **out);
        CHECK(*out);
        (*out)->device = current;
        (*out)->times = !(flags & cudaEventDisableTiming);
        n_events++;
    }
    return end(e);
}

/* One that is still to happen stays until it has. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t e = begin();
    if (e == cudaSuccess) {
        run_until(event, event->recorded);
        e = lost;
    }
    for (int i = 0; i < SLOTS && e == cudaSuccess; i++) // who waits for it need not
        for (struct command *c = streams[i] ? streams[i]->first : NULL; c; c = c->next)
            if (c->event == event)
                c->event = &gone;
    if (e == cudaSuccess) {
        free(event);
        n_events--;
    }
    return end(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    cudaError_t e = begin();
    if (e == cudaSuccess && event->device != s->device)
        e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess)
        e = queue(s,
                  &(struct command){.kind = RECORD, .event = event, .record = ++event->recorded});
    return end(e);
}

/* Of one that was never recorded it waits for nothing. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e = begin();
    if (e == cudaSuccess) {
        run_until(event, event->recorded);
        e = lost;
    }
    return end(e);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t e = begin();
    if (e == cudaSuccess && (!from->times || !to->times || !from->recorded || !to->recorded))
        e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess && (from->happened < from->recorded || to->happened < to->recorded))
        e = cudaErrorNotReady;
    if (e == cudaSuccess)
        *ms = (float)(to->happened_ns - from->happened_ns) * 1e-6f;
    return end(e);
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    cudaError_t e = begin();
    if (e == cudaSuccess)
        e = machine.no_device;
    *n = e == cudaSuccess ? machine.n_devices : 0;
    return end(e);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int cap, int device)
{
    cudaError_t e = begin();
    snprintf(id, (size_t)cap, "0000:%02X:00.0", device + 1);
    return end(e);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    cudaError_t e = begin();
    *version = machine.driver;
    return end(e);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    cudaError_t e = begin();
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Shim %d", device);
    p->major = machine.sm / 10;
    p->minor = machine.sm % 10;
    return end(e);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = begin();
    if (e == cudaSuccess && (device < 0 || device >= machine.n_devices))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess)
        current = device;
    return end(e);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t e = begin();
    CHECK(attribute == cudaDevAttrCanUseHostPointerForRegisteredMem);
    (void)device;
    *value = !machine.hides_ram;
    return end(e);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel)
{
    cudaError_t e = begin();
    CHECK(kernel);
    a->maxThreadsPerBlock = 1024;
    return end(e);
}
