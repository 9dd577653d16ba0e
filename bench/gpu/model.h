/* bench/gpu/model.h - a model of graphics cards: the seconds that a card needs for one op.
 *
 * Owns: published rates of cards, counts from the kernels' machine code, and the arithmetic from
 * both to seconds. Refuses: measuring; every second in this file is modelled.
 *
 * A kernel takes the longest of three times: its bytes at the rate that its loads in flight allow
 * (Little's law, at most GPU_HBM_SHARE of the memory's rate); its instructions, one per scheduler
 * and cycle; its work on tensor cores. Each kernel adds launch_s, the gap before a kernel that
 * depends on the one before it. */
#ifndef BENCH_GPU_MODEL_H
#define BENCH_GPU_MODEL_H

#include "kernels/device.h"

#define GPU_WARP          32
#define GPU_SCHEDULERS    4
#define GPU_HBM_SHARE     0.92 // of the published rate: reached by copies
#define GPU_HBM_ANYHOW    0.75 // of the published rate: one-pass kernels without counted loads
#define GPU_WARP_CPI      1.7  // least cycles between two instructions of a warp
#define GPU_SMALL_BYTES   (64 << 10)
#define GPU_COPY_START_S  1.5e-6 // gap between two copies of a copy engine
#define GPU_FACTS_MAX     1024
#define GPU_KERNEL_NAME   64
#define GPU_INT8_SHARE    0.05 // of the bf16 tensor rate: up to four rows multiply by dp4a
/* Of the rate that matmuls reach on tensor cores: FlashAttention-2, whose kernel has the same form,
 * reaches 0.57 on an H100 and 0.8 on an A100, as published. */
#define GPU_ATTEND_SHARE 0.6
#define GPU_SCALAR_SHARE  0.7  // of the peak issue rate of a scheduler: loops without mma
#define GPU_DECODE_SHARE  0.8  // of the memory's rate: decode writes whole rows

struct gpu_card {
    const char *name;
    int arch; // 75, 80, 86, 89, 90
    int n_sm;
    double clock_hz;
    int64_t memory_bytes;
    double memory_rate;       // bytes per second
    double latency_s;         // of a load from memory, under load
    double near_s;            // of a load served by L2
    double tensor_flops;      // per second, bf16 (sm_75: f16) with f32 sums, dense
    double tensor_share;      // share of tensor_flops that mma.sync reaches
    double f32_flops;         // per second
    double h2d, d2h;          // bytes per second
    double launch_s, queue_s; // gap before a dependent kernel; host time to queue a kernel
};

/* "t4", "a10", "rtx4090", "a100-40", "a100", "h100", "h200"; NULL: unknown. */
const struct gpu_card *gpu_card_by_name(const char *name);
const struct gpu_card *gpu_card_at(int i); // NULL after the last

/* Counts from a loop of a kernel's machine code, for one architecture. */
struct gpu_fact {
    char kernel[GPU_KERNEL_NAME]; // beginning of its name, "matmul_mma_tile<16, 32"
    int arch;
    double per_mma;         // instructions per mma; 0: no mma
    double bytes_in_flight; // per SM, of loads from memory
    int blocks_per_sm, threads;
    char loop[16]; // "K bf16", "V q4"; "": not named
};

/* Reads a table written by `make sass` (bench/results/cuda-sass.csv): rows of its last commit
 * replace the built-in facts. ERR_INPUT names file and line. */
enum err gpu_facts_read(const char *path);
/* Mean over the loops of a kernel whose names contain `loop` or are empty, for the card's
 * architecture, or the next older one. */
struct gpu_fact gpu_fact_of(const struct gpu_card *card, const char *kernel, const char *loop);

/* The cost of an op. */
struct gpu_cost {
    double s;       // seconds on the card
    int n_launches; // kernels
    double bytes;   // read and written in the card's memory
    double flops;
};

/* Args as for the launch of struct device_api, but with spans that the host can read. */
struct gpu_cost gpu_op(const struct gpu_card *card, enum op op, const struct ops *ops,
                       const void *args);
/* A copy over the link, or within the device. */
enum gpu_copy { GPU_H2D, GPU_D2H, GPU_INSIDE };
double gpu_copy_s(const struct gpu_card *card, enum gpu_copy kind, int64_t n_bytes);
/* The form in which the device reads weights (struct device_api). */
struct weight_form gpu_weight_form(const struct gpu_card *card, enum compute compute,
                                   enum dtype stored);

#endif
