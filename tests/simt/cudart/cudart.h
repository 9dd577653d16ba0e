/* tests/simt/cudart/cudart.h - a CUDA runtime without a GPU, as hostile as the real one may be:
 * its streams run late and out of step with each other, and any call, or any command when it runs,
 * may be the one that fails.
 *
 * Owns: device memory (of the SIMT shim, which looks at every byte), pinned ranges, streams,
 * events. Refuses: timing. It is stricter than CUDA: RAM that is not pinned cannot be copied from
 * or to. Commands run on the threads that wait, or that queue others; kernels run in tests/simt. */
#ifndef TESTS_SIMT_CUDART_CUDART_H
#define TESTS_SIMT_CUDART_CUDART_H

#include <stdint.h>

#include "tests/simt/cudart/cuda_runtime.h"

struct cudart_machine {
    int n_devices;
    int sm;                          // of each: 75, 80 ...
    int64_t memory_bytes, pin_bytes; // of all of them, and of RAM that may be pinned
    int hides_ram;                   // kernels do not see pinned RAM where the host has it
    cudaError_t no_device;           // what the count says; cudaSuccess: n_devices
    int driver;                      // its version; 0: no driver is installed
    int idle; // 1: commands are counted and do nothing, but small copies to RAM, which bring
              // zeros; device memory takes no RAM
    uint64_t seed; // of who runs when: 0 only what somebody waits for, 1 everything at once, else
                   // drawn
};
/* Starts anew: nothing allocated, nothing failed. What was left of the one before is freed. */
void cudart_open(const struct cudart_machine *machine);

/* The n-th call from now on returns e, and if it is lost every later one (0: none does). Calls that
 * give things back (cudaFree and so on) count, cudaGetLastError does not. */
void cudart_fail_call(int64_t n, cudaError_t e, int lost);
/* The n-th command from now on loses the device when it runs. */
void cudart_fail_command(int64_t n);
int64_t cudart_calls(void);
int64_t cudart_commands(void);

/* What was queued so far, by kind, in all streams. */
struct cudart_counts {
    int64_t launches, copies, fills;
};
struct cudart_counts cudart_queued(void);
/* How often a kernel was launched whose name begins so. */
int64_t cudart_launched(const char *kernel);

/* Copies by the engine of less than 64 KiB in streams that kernels are launched in: those streams
 * wait for them, and they wait for the large copies of other streams. */
int64_t cudart_small_copies(void);

/* Host functions that streams have called. */
int64_t cudart_host_calls(void);

/* For libraries beside it: queues a call with a copy of args; it may use the shim's memory. */
cudaError_t cudart_queue_call(cudaStream_t s, void (*call)(const void *args), const void *args,
                              int64_t n_bytes);

/* Allocations, pinned ranges, streams and events that there are; bytes of device memory that were
 * taken at most. */
int cudart_held(void);
int64_t cudart_peak_bytes(void);

#endif
