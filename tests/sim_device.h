/* tests/sim_device.h - an accelerator that is not there, as hostile as a real one may be.
 *
 * Its memory faults when the host touches it, and holds numbers that are none when it is fresh; its
 * streams run on threads of their own, late by random times, out of step with each other; RAM that
 * it copies from or to has to be pinned, and no op is given any but rows of embeddings; it can be
 * lost at any command. It computes with the CPU's kernels, on a second mapping of the same memory.
 * Code that forgets an event, or reads a result early, fails here on a machine without a GPU. */
#ifndef TESTS_SIM_DEVICE_H
#define TESTS_SIM_DEVICE_H

#include "kernels/device.h"

/* seed: of the delays; delay_us: the longest one before a command. */
struct device *sim_device_open(uint64_t seed, int delay_us);
void sim_device_close(struct device *d);
/* As a library (build/tests/sim_device.so) it is opened by this: see DEVICE_ENTRY.
 * arg: SEED[,DELAY_US[,LOSE_AT[,MEMORY_BYTES[,READS_F16]]]]: so many bytes of memory are all that
 * it has; 1: bf16 matmuls read weights as f16, and what is stored otherwise can only be planned. */
enum err sluice_device_open(int version, const char *arg, struct device **d);
/* As many as $SIM_DEVICES says (2); device I opens as SEED I, and if $SIM_LOSE is "I:N" it is lost
 * at its N-th command; $SIM_MEMORY "I:BYTES,I:BYTES" says how much memory they have. */
enum err sluice_device_count(int version, struct device_place places[DEVICES_MAX], int *n);
/* What the device would see at an address of its memory: for checks, when its streams are idle. */
void *sim_device_peek(struct device *d, void *p);
/* The n-th command from now on loses the device (0: none does). */
void sim_device_lose(struct device *d, int64_t n);
/* Commands that have run, and the most bytes of its memory that were taken at once. */
int64_t sim_device_commands(struct device *d);
int64_t sim_device_peak_bytes(struct device *d);
/* From now on no command of a stream runs (0: the first that was opened; -1: all go on). */
void sim_device_hold(struct device *d, int stream);
/* Copies that were ever queued on a stream. */
int64_t sim_device_copies(struct device *d, int stream);

#endif
