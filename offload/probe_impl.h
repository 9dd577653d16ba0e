/* offload/probe_impl.h - what the files of the probe share (see probe.h).
 *
 * Owns: the loop that all rates but the disk's and a device's are measured with. Refuses:
 * everything else. */
#ifndef OFFLOAD_PROBE_IMPL_H
#define OFFLOAD_PROBE_IMPL_H

#include "kernels/base/arena.h"
#include "offload/probe.h"

#define PROBE_MIB       ((int64_t)1 << 20)
#define PROBE_TURNS_MAX 4096
#define PROBE_STEP_OPS  11 // ops of a decoder layer: matmuls, norms, rope, attention

/* Calls turn(ctx, i), i from 0, for `seconds` and at least `least` times, or for eight times as
 * long: the rate of `amount` per call. The call before them brings in pages and clocks; where it
 * takes four times as long as all should, it is the only one. */
struct probe_loop {
    void (*turn)(void *ctx, int i);
    void *ctx;
    double amount, seconds;
    int least;
};
struct rate probe_loop(const struct probe_loop *l);

/* Bytes for what has to come out of RAM: four times the last-level caches, or as much of 8, 32,
 * 128 and 512 MiB as the probe may take. Few sizes: each is a file of the cache. */
int64_t probe_ram_bytes(const struct probe_config *c);
/* Bytes that are touched to see what fresh memory costs; 0: the run has so little that all of it is
 * brought in before it begins. */
int64_t probe_fresh_bytes(const struct probe_config *c);
/* What stands beside it: twice 256 rows of 2,048 numbers and a little. */
#define PROBE_BESIDE_BYTES (6 * PROBE_MIB)

/* Opens an arena of `bytes`. ERR_FIT where that is more than the probe may take; the message names
 * the budget that is enough. */
enum err probe_arena_open(struct arena *a, const struct probe_config *c, int64_t bytes);

/* Seconds of a quick measurement; a full one takes ten times as long. */
double probe_seconds(const struct probe_config *c, double quick);
/* A line of the log, when there is to be one. */
void probe_say(const struct probe_config *c, enum machine_rate id, const struct rate *r);

/* Panels of a weight in every place of a stretch of memory. */
enum err probe_fill_panels(enum dtype t, int k, uint8_t *base, int64_t n_bytes);

/* Matmuls over weights that come out of RAM. One stretch: panels, x, y, scratch. */
struct matmul_bed {
    const struct ops *ops;
    struct arena arena; // owned: the caller closes it
    uint8_t *panels;    // probe_fill_panels() has to fill them
    int64_t panels_bytes, panel_bytes;
    float *x, *y;
    void *scratch;
    struct matmul_args args;
    int64_t next; // panel of the next call
};
/* Bytes that a bed with these ops and panels_bytes takes; room for p->m rows and p->n outputs. */
int64_t probe_bed_bytes(struct matmul_bed b, const struct probe_matmul *p);
enum err probe_bed_open(struct matmul_bed *b, const struct probe_config *c,
                        const struct probe_matmul *p);
/* Calls from now on are of this shape. */
void probe_bed_shape(struct matmul_bed *b, const struct probe_matmul *p);
/* One call; its weights lie behind those of the call before. */
void probe_bed_turn(void *bed, int i);

/* The parts that this machine has. Each fills its own rates; a device's come last, since step_s is
 * then its own, too. */
int probe_has_part(const struct probe_config *c, enum machine_part part);
enum err probe_run_part(struct machine *m, const struct probe_config *c, enum machine_part part);
enum err probe_disk(struct machine *m, const struct probe_config *c);
/* Of probe_disk: few in flight, transfers one by one, and beside ops. Writes the file again. */
struct disk_probe;
enum err probe_tickets(struct machine *m, const struct probe_config *c, struct disk_probe *d);
enum err probe_matmuls(struct machine *m, const struct probe_config *c);
enum err probe_attention(struct machine *m, const struct probe_config *c);

/* Rows that decode and attend, each over `slots` (whole pages); under a policy that evicts each is
 * full. */
struct probe_attend {
    enum kv_format format;
    int n_heads, n_kv_heads, head_dim;
    int slots, rows;    // of a row; of a call, fewer where memory is short
    struct evict evict; // policy, scope and positions
    int rope_dim;       // what keys are rotated by where positions are ranks
    double seconds;
};
/* Rows per second. *row_kv_bytes: of each. ERR_FIT: no memory, or heads too wide. */
enum err probe_attend_rows(const struct probe_config *c, const struct probe_attend *p,
                           struct rate *rate, double *row_kv_bytes);

/* Of probe_model: rows_s; all from attend_s on, which is what KV bears on. ERR_FIT as there. */
struct probe_layer;
enum err probe_layer_rows(struct model_rates *r, const struct probe_layer *l,
                          const struct probe_config *c);
enum err probe_layer_attend(struct model_rates *r, const struct probe_layer *l,
                            const struct probe_config *c);
/* prompt_s, prompt_token_s and pair_s; they stay 0 where memory is too small for prompts. */
enum err probe_prompts(struct model_rates *r, const struct probe_layer *l,
                       const struct probe_config *c);

/* Pinned RAM, and device memory, that measuring a device takes. */
int64_t probe_pinned_bytes(const struct probe_config *c);
int64_t probe_device_bytes(const struct probe_config *c, const struct device_info *info);
/* step_s from launch_s. */
void probe_device_step(struct machine *m);

#endif
