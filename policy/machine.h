/* policy/machine.h - what a machine gives: its rates, and what a model's matmuls take there.
 *
 * Owns: the one table of rates, from which machine files, their messages, the probe's cache and its
 * printing are made; rates that follow from others. Refuses: to measure (offload/probe.h).
 *
 * What some rates mean, beside their unit in the table:
 *   nvme_*        as runs read and write: pieces of 1 MiB, eight in flight. The plain ones hold for
 *                 ever; where the first bytes went faster *_burst is their rate and *_burst_bytes
 *                 how many they were; unknown: no burst was seen. nvme_mixed counts both directions
 *                 while as many bytes are written as are read. nvme_read_dN: N pieces in flight.
 *   ticket_s      from the submission of a transfer until its waiter goes on, beside its bytes: the
 *                 mover, its thread and the waiter's wake up. gather_s: a row of 4 KiB of many that
 *                 one transfer brings.
 *   read_beside   what is left of nvme_read while all threads compute; matmul_beside: of a matmul
 *                 that comes out of RAM while the disk is read as fast as it goes.
 *   matmul_F_mM   all threads, M rows of x against weights of format F, near 2,048 x 2,048, out of
 *                 RAM, under the machine's --compute. matmul_flops is the one for a guess: M = 64,
 *                 in bf16 (int8: q8). A machine file needs it, or any of these; what is not given
 *                 follows (machine_matmul).
 *   attend_*      KV bytes that decoding rows attend over, all threads, out of RAM: 32 heads of 128
 *                 on 8 of KV. prompt_flops: q k and p v of a prompt of 512 tokens, the lower
 *                 triangle only.
 *   rows_read     f32 bytes that norms, rope and activations read, all threads: a token of a layer
 *                 is 4 x (2 dim + heads + KV heads + 2 ffn) of them, heads in numbers.
 *   step_s        queuing the ops of a step; launch_s: one op on a device with memory of its own.
 *   duplex        h2d and d2h while both run, added up.
 *   device_read   of a device's memory; device_flops: of its matmuls for many tokens.
 *   device_attend_*
 *                 attention on a device. device_attend_read: bytes of K and V that rows which
 *                 decode attend over, heads of 128 numbers, each query head with KV of its own.
 *                 device_attend_flops: of a prompt's pairs of a query and a key, the lower triangle
 *                 only, 4 x heads x head_dim FLOPs a pair. Unknown: machine_device_attend_*(). */
#ifndef POLICY_MACHINE_H
#define POLICY_MACHINE_H

#include <stdint.h>

/* Something measured: the median of n samples, and the median of their distances from it, in the
 * same unit. value 0: not known; n 0: nobody said how it came about. */
struct rate {
    double value, spread;
    int n;
};

/* Parts of the probe, each with a cache of its own. */
enum machine_part { MACHINE_DISK, MACHINE_CPU, MACHINE_DEVICE, N_MACHINE_PARTS };

#define MACHINE_MATMULS(X, format)                                                                 \
    X(matmul_##format##_m1, CPU, 0, 1e18, "FLOPs per second")                                      \
    X(matmul_##format##_m4, CPU, 0, 1e18, "FLOPs per second")                                      \
    X(matmul_##format##_m16, CPU, 0, 1e18, "FLOPs per second")                                     \
    X(matmul_##format##_m64, CPU, 0, 1e18, "FLOPs per second")                                     \
    X(matmul_##format##_m256, CPU, 0, 1e18, "FLOPs per second")

/* X(key, part, needed, greatest value, unit); needed: 1 where a plan divides by it (of a device:
 * a plan for a device does). */
#define MACHINE_RATES(X)                                                                           \
    X(nvme_read, DISK, 1, 1e15, "bytes per second, sustained")                                     \
    X(nvme_write, DISK, 1, 1e15, "bytes per second, sustained")                                    \
    X(nvme_mixed, DISK, 0, 1e15, "bytes per second, half of them written")                         \
    X(nvme_read_d1, DISK, 0, 1e15, "bytes per second, one piece in flight")                        \
    X(nvme_read_d2, DISK, 0, 1e15, "bytes per second, two")                                        \
    X(nvme_read_d4, DISK, 0, 1e15, "bytes per second, four")                                       \
    X(ticket_s, DISK, 0, 60, "seconds of overhead a transfer")                                     \
    X(gather_s, DISK, 0, 60, "seconds a row of 4 KiB")                                             \
    X(read_beside, DISK, 0, 1e3, "of nvme_read beside matmuls")                                    \
    X(matmul_beside, DISK, 0, 1e3, "of a matmul's rate beside reads")                              \
    X(nvme_read_burst, DISK, 0, 1e15, "bytes per second before that")                              \
    X(nvme_read_burst_bytes, DISK, 0, 1e15, "bytes until then")                                    \
    X(nvme_write_burst, DISK, 0, 1e15, "bytes per second before that")                             \
    X(nvme_write_burst_bytes, DISK, 0, 1e15, "bytes until then")                                   \
    X(ram_read, CPU, 1, 1e15, "bytes per second")                                                  \
    X(ram_read_one, CPU, 0, 1e15, "bytes per second, one thread")                                  \
    X(ram_fresh, CPU, 0, 1e15, "bytes per second, touched for the first time")                     \
    X(crc, CPU, 0, 1e15, "bytes per second, one thread")                                           \
    X(matmul_flops, CPU, 1, 1e18, "FLOPs per second")                                              \
    MACHINE_MATMULS(X, f32)                                                                        \
    MACHINE_MATMULS(X, bf16)                                                                       \
    MACHINE_MATMULS(X, q8)                                                                         \
    MACHINE_MATMULS(X, q4)                                                                         \
    X(attend_f32, CPU, 0, 1e15, "bytes of KV per second")                                          \
    X(attend_bf16, CPU, 0, 1e15, "bytes of KV per second")                                         \
    X(attend_q8, CPU, 0, 1e15, "bytes of KV per second")                                           \
    X(attend_q4, CPU, 0, 1e15, "bytes of KV per second")                                           \
    X(attend_mixed, CPU, 0, 1e15, "bytes of KV per second")                                        \
    X(prompt_flops, CPU, 0, 1e18, "FLOPs per second")                                              \
    X(rows_read, CPU, 0, 1e15, "bytes per second")                                                 \
    X(step_s, CPU, 1, 60, "seconds of overhead a step")                                            \
    X(h2d, DEVICE, 1, 1e15, "bytes per second")                                                    \
    X(d2h, DEVICE, 1, 1e15, "bytes per second")                                                    \
    X(duplex, DEVICE, 0, 1e15, "bytes per second, half of them each way")                          \
    X(device_read, DEVICE, 1, 1e15, "bytes per second")                                            \
    X(device_flops, DEVICE, 1, 1e18, "FLOPs per second")                                           \
    X(device_attend_read, DEVICE, 0, 1e15, "bytes of KV per second")                               \
    X(device_attend_flops, DEVICE, 0, 1e18, "FLOPs per second of prompt attention")                \
    X(launch_s, DEVICE, 0, 60, "seconds to queue one op")

#define MACHINE_RATE_ID(key, part, needed, max, unit)    RATE_##key,
#define MACHINE_RATE_FIELD(key, part, needed, max, unit) struct rate key;
enum machine_rate { MACHINE_RATES(MACHINE_RATE_ID) N_MACHINE_RATES };

struct machine {
    union {
        struct {
            MACHINE_RATES(MACHINE_RATE_FIELD)
        };
        struct rate rates[N_MACHINE_RATES]; // the same, by enum machine_rate
    };
    int threads;
    int64_t ram, disk, device_memory; // bytes that a run may take there; 0: not said
};
#undef MACHINE_RATE_ID
#undef MACHINE_RATE_FIELD

/* The table, by enum machine_rate. */
struct machine_rate_info {
    const char *key, *unit;
    enum machine_part part;
    int needed;
    double max;
};
extern const struct machine_rate_info machine_rates[N_MACHINE_RATES];

/* Of n >= 1 samples, which it sorts. */
struct rate rate_of_samples(double *samples, int n);

/* Bytes per second of a disk with so many pieces in flight, up to IO_DEPTH, by straight lines
 * between what is given; that follows from nvme_read and the latency of a common drive. */
double machine_read_rate(const struct machine *m, int in_flight);
/* ticket_s and gather_s as given, else as common drives and kernels have them. */
double machine_ticket_s(const struct machine *m);
double machine_gather_s(const struct machine *m);

/* Attention on a device as given, else as fast as its memory and its matmuls: no real device is,
 * so that a plan by such a file is too fast where attention bounds it. */
double machine_device_attend_read(const struct machine *m);
double machine_device_attend_flops(const struct machine *m);

/* Formats of weights that matmuls are measured in, and the rows of x. */
enum matmul_format { MATMUL_F32, MATMUL_BF16, MATMUL_Q8, MATMUL_Q4, N_MATMUL_FORMATS };
#define N_MATMUL_ROWS 5
extern const int matmul_rows[N_MATMUL_ROWS]; // 1, 4, 16, 64, 256

static inline enum machine_rate machine_matmul_rate(enum matmul_format format, int i)
{
    return (enum machine_rate)(RATE_matmul_f32_m1 + (int)format * N_MATMUL_ROWS + i);
}

/* FLOPs per second of matmul_rows[i] rows: as given, else at the slower of two: weights come at
 * ram_read, and matmul_flops does the work, to which decoding a number of q8 or q4 adds 16 FLOPs
 * (14 to 16 were measured with AVX-512). */
double machine_matmul(const struct machine *m, enum matmul_format format, int i);
/* matmul_flops where only some of the others are given: the one nearest to M = 64 in bf16, else in
 * the first format that has one. */
void machine_complete(struct machine *m);

/* ---- the layers of one model ---- */

/* As the pack stores weights, decoded beside the cache; or as tiles. */
enum weight_state { WEIGHTS_STORED, WEIGHTS_TILES, N_WEIGHT_STATES };

/* Numbers in the matrices of one decoder layer, and of a tile of the head (4,096 rows of the
 * vocabulary), by the format whose rate is theirs. */
struct model_weights {
    double layer[N_WEIGHT_STATES][N_MATMUL_FORMATS], head[N_WEIGHT_STATES][N_MATMUL_FORMATS];
    double experts[N_WEIGHT_STATES][N_MATMUL_FORMATS]; // of all, besides those of `layer`
    int n_experts, n_used;                             // 0: there are none
};

/* Seconds of all matmuls of one decoder layer, and of a tile of the head, at matmul_rows[] tokens.
 * They grow with tokens. Where the model was measured (rows_s is not 0) the head's are with the
 * reduction of its logits, and the rest of a layer is known, too: its norms, rotations and
 * activations, and so many decoding rows that attend: over nothing, and what a slot of one adds;
 * of a prompt that attends what it takes, each of its tokens, and each pair of a query and a key.
 */
struct model_rates {
    double layer_s[N_WEIGHT_STATES][N_MATMUL_ROWS], head_s[N_WEIGHT_STATES][N_MATMUL_ROWS];
    double rows_s[N_MATMUL_ROWS];
    double layer_spread; // of the one so far whose samples were furthest apart, by its value
    double attend_s[N_MATMUL_ROWS], slot_s[N_MATMUL_ROWS];
    double prompt_s, prompt_token_s, pair_s; // 0: not measured
    double attend_spread;                    // as above, of those behind it
};

/* From the rates of a machine, where the model was not measured there (offload/probe_model.h). */
void model_rates_derive(struct model_rates *r, const struct machine *m,
                        const struct model_weights *w);
/* Fewer tokens never take more time. Where measuring says otherwise it was disturbed at the fewer:
 * they take as long as the more. */
void model_rates_ascend(struct model_rates *r);
/* Seconds at any number of tokens, by straight lines between those of the table, from 0 at none;
 * beyond what the engine takes at once in RAM (256 tokens of a layer, 64 positions of the head) in
 * tiles of that and a rest. */
double model_layer_s(const struct model_rates *r, enum weight_state state, double tokens);
double model_head_s(const struct model_rates *r, enum weight_state state, double positions);
double model_rows_s(const struct model_rates *r, double tokens);
/* Of prompts that attend, or of what their first does not share with them; 0: not measured. */
double model_prompts_s(const struct model_rates *r, double prompts, double tokens, double pairs);
/* Of so many tokens that decode, which attend over `slots` in all. */
double model_attend_s(const struct model_rates *r, double tokens, double slots);

#endif
