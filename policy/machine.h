/* policy/machine.h - the rates of a machine, and the time of a model's matmuls on it.
 *
 * Owns: the one table of rates, from which machine files, their messages, the probe's cache and its
 * output are made; rates that follow from others. Refuses: measuring (offload/probe.h).
 *
 * What some rates mean, besides their unit in the table:
 *   nvme_*        as in runs: pieces of 1 MiB, eight in flight. The plain rates are sustained. If
 *                 the first bytes were faster, *_burst is their rate and *_burst_bytes their
 *                 number; unknown: no burst. nvme_mixed: both directions, as many bytes written as
 *                 read. nvme_read_dN: N pieces in flight.
 *   ticket_s      overhead of a transfer, from submission until its waiter continues: the mover,
 *                 its thread and the wake-up. gather_s: a row of 4 KiB among many in one transfer.
 *   read_beside   share of nvme_read left while all threads compute; matmul_beside: share of a
 *                 matmul's rate, with weights in RAM, left while the disk reads at full speed.
 *   matmul_F_mM   all threads, M rows of x by weights of format F, about 2,048 x 2,048, in RAM,
 *                 under the machine's --compute. matmul_flops: M = 64 in bf16 (int8: q8). A machine
 *                 file needs matmul_flops or any of these; the missing ones follow
 *                 (machine_matmul).
 *   attend_*      KV bytes that decoding rows attend over, all threads, in RAM: 32 heads of 128 on
 *                 8 of KV. prompt_flops: q k and p v of a prompt of 512 tokens, lower triangle
 *                 only.
 *   rows_read     f32 bytes that norms, rope and activations read, all threads: per token and layer
 *                 4 x (2 dim + heads + KV heads + 2 ffn), heads in numbers.
 *   step_s        queuing the ops of a step; launch_s: one op on a device with its own memory.
 *   duplex        h2d plus d2h while both run.
 *   device_read   of a device's memory; device_flops: of its matmuls for many tokens.
 *   device_attend_*
 *                 attention on a device. device_attend_read: bytes of K and V that decoding rows
 *                 attend over, heads of 128, each query head with its own KV. device_attend_flops:
 *                 prompt pairs of a query and a key, lower triangle only, 4 x heads x head_dim
 *                 FLOPs per pair. Unknown: machine_device_attend_*(). */
#ifndef POLICY_MACHINE_H
#define POLICY_MACHINE_H

#include <stdint.h>

/* A measured number: the median of n samples, and the median of their distances from it (same
 * unit). value 0: unknown; n 0: of unknown origin. */
struct rate {
    double value, spread;
    int n;
};

/* Parts of the probe, each with its own cache. */
enum machine_part { MACHINE_DISK, MACHINE_CPU, MACHINE_DEVICE, N_MACHINE_PARTS };

#define MACHINE_MATMULS(X, format)                                                                 \
    X(matmul_##format##_m1, CPU, 0, 1e18, "FLOPs per second")                                      \
    X(matmul_##format##_m4, CPU, 0, 1e18, "FLOPs per second")                                      \
    X(matmul_##format##_m16, CPU, 0, 1e18, "FLOPs per second")                                     \
    X(matmul_##format##_m64, CPU, 0, 1e18, "FLOPs per second")                                     \
    X(matmul_##format##_m256, CPU, 0, 1e18, "FLOPs per second")

/* X(key, part, needed, greatest value, unit). needed 1: a plan divides by it (DEVICE: a plan for a
 * device does). */
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
        struct rate rates[N_MACHINE_RATES]; // the same, indexed by enum machine_rate
    };
    int threads;
    int64_t ram, disk, device_memory; // bytes that a run may use there; 0: not given
    int64_t net, p2p;                 // bytes per second: see machine_hop(); 0: not given
};
#undef MACHINE_RATE_ID
#undef MACHINE_RATE_FIELD

/* The table, indexed by enum machine_rate. */
struct machine_rate_info {
    const char *key, *unit;
    enum machine_part part;
    int needed;
    double max;
};
extern const struct machine_rate_info machine_rates[N_MACHINE_RATES];

/* The rate of n >= 1 samples; sorts them. */
struct rate rate_of_samples(double *samples, int n);

/* Read rate of a disk with in_flight pieces in flight, up to IO_DEPTH: interpolated between given
 * rates, which otherwise follow from nvme_read and the latency of a common drive. */
double machine_read_rate(const struct machine *m, int in_flight);
/* Pieces that the mover keeps in flight: the fewest that give nearly the full rate, so that a read
 * that a step waits for queues behind few others. */
int machine_depth(const struct machine *m);
/* ticket_s and gather_s as given, else those of common drives and kernels. */
double machine_ticket_s(const struct machine *m);
double machine_gather_s(const struct machine *m);

/* Bytes per second from machine a to machine b, while b sends to the next: the slower network of
 * the two (unknown: 10 Gbit Ethernet). one_box 1: a and b are two devices of one box, which p2p
 * connects where it is given. */
double machine_hop(const struct machine *a, const struct machine *b, int one_box);

/* Device attention rates as given, else the rates of device memory and matmuls. Real devices are
 * slower, so such a plan is too fast where attention limits it. */
double machine_device_attend_read(const struct machine *m);
double machine_device_attend_flops(const struct machine *m);

/* Weight formats in which matmuls are measured, and numbers of rows of x. */
enum matmul_format { MATMUL_F32, MATMUL_BF16, MATMUL_Q8, MATMUL_Q4, N_MATMUL_FORMATS };
#define N_MATMUL_ROWS 5
extern const int matmul_rows[N_MATMUL_ROWS]; // 1, 4, 16, 64, 256

static inline enum machine_rate machine_matmul_rate(enum matmul_format format, int i)
{
    return (enum machine_rate)(RATE_matmul_f32_m1 + (int)format * N_MATMUL_ROWS + i);
}

/* FLOPs per second with matmul_rows[i] rows: as given, else the slower of reading weights at
 * ram_read and computing at matmul_flops, where decoding a number of q8 or q4 adds 16 FLOPs (14 to
 * 16 measured with AVX-512). */
double machine_matmul(const struct machine *m, enum matmul_format format, int i);
/* Sets matmul_flops from other matmul rates if it is missing: the one nearest to M = 64 in bf16,
 * else in the first format that has one. */
void machine_complete(struct machine *m);

/* ---- the layers of one model ---- */

/* As the pack stores weights, decoded in cache by matmuls; or held as tiles. */
enum weight_state { WEIGHTS_STORED, WEIGHTS_TILES, N_WEIGHT_STATES };

/* Numbers in the matrices of one decoder layer, and of a tile of the head (4,096 vocabulary rows),
 * by the format whose rate applies. */
struct model_weights {
    double layer[N_WEIGHT_STATES][N_MATMUL_FORMATS], head[N_WEIGHT_STATES][N_MATMUL_FORMATS];
    double experts[N_WEIGHT_STATES][N_MATMUL_FORMATS]; // all experts, in addition to `layer`
    int n_experts, n_used;                             // 0: no experts
};

/* Seconds of all matmuls of one decoder layer, and of a tile of the head, at matmul_rows[] tokens,
 * ascending. If the model was measured (rows_s is not 0), head_s includes the reduction of its
 * logits, and the rest of a layer is known: norms, rotations and activations (rows_s); attention of
 * decoding rows over no slots (attend_s), and per slot of a row (slot_s); attention of a prompt
 * (prompt_s), of each of its tokens (prompt_token_s), of each pair of a query and a key (pair_s).
 */
struct model_rates {
    double layer_s[N_WEIGHT_STATES][N_MATMUL_ROWS], head_s[N_WEIGHT_STATES][N_MATMUL_ROWS];
    double rows_s[N_MATMUL_ROWS];
    double layer_spread; // greatest relative spread of its samples so far
    double attend_s[N_MATMUL_ROWS], slot_s[N_MATMUL_ROWS];
    double prompt_s, prompt_token_s, pair_s; // 0: not measured
    double attend_spread; // the same for attention: attend_s, slot_s, prompt_s, ...
};

/* Derives the rates from a machine's, for a model not measured there (offload/probe_model.h). */
void model_rates_derive(struct model_rates *r, const struct machine *m,
                        const struct model_weights *w);
/* Makes times ascend with tokens: where fewer tokens took longer, that measurement was disturbed,
 * and the time of more tokens is used. */
void model_rates_ascend(struct model_rates *r);
/* Seconds at any number of tokens, interpolated between the table's and 0 at none. Beyond what the
 * engine computes at once in RAM (256 tokens of a layer, 64 positions of the head): full tiles and
 * a rest. */
double model_layer_s(const struct model_rates *r, enum weight_state state, double tokens);
double model_head_s(const struct model_rates *r, enum weight_state state, double positions);
double model_rows_s(const struct model_rates *r, double tokens);
/* Attention of prompts (without what they share with the first); 0: not measured. */
double model_prompts_s(const struct model_rates *r, double prompts, double tokens, double pairs);
/* Attention of decoding tokens over `slots` slots in all. */
double model_attend_s(const struct model_rates *r, double tokens, double slots);

#endif
