/* offload/probe_impl.h - what the files of the probe share (see probe.h).
 *
 * Owns: the loop that measures all rates but the disk's and a device's. Refuses: everything else.
 */
#ifndef OFFLOAD_PROBE_IMPL_H
#define OFFLOAD_PROBE_IMPL_H

#include "kernels/base/arena.h"
#include "offload/probe.h"

#define PROBE_MIB       ((int64_t)1 << 20)
#define PROBE_TURNS_MAX 4096
#define PROBE_STEP_OPS  11 // ops of a decoder layer: matmuls, norms, rope, attention

/* The rate of `amount` per call of turn(ctx, i), i = 0, 1, ... Call 0 warms up pages and clocks and
 * is not counted. The others run for `seconds` and at least `least` times, but no longer than 8 x
 * `seconds`. If call 0 takes over 4 x `seconds` and least <= 1, its rate is the result. */
struct probe_loop {
    void (*turn)(void *ctx, int i);
    void *ctx;
    double amount, seconds;
    int least;
};
struct rate probe_loop(const struct probe_loop *l);

/* Bytes to measure RAM with, not caches: four times the last-level caches times share, or the
 * largest of 8, 32, 128 and 512 MiB that the probe may use. Few sizes, because each is a file of
 * the cache. */
int64_t probe_ram_bytes(const struct probe_config *c);
/* Memory that the disk is read into in turn: so much that the bytes leave the caches, as the
 * weights of a run do, but at most probe_ram_bytes(). */
#define PROBE_BUFFER_MOST (32 * PROBE_MIB)
static inline int64_t probe_buffer_bytes(const struct probe_config *c)
{
    const int64_t most = probe_ram_bytes(c);
    return most < PROBE_BUFFER_MOST ? most : PROBE_BUFFER_MOST;
}
/* Bytes touched to measure fresh memory; 0: the run has so little memory that it populates all of
 * it at its start. */
int64_t probe_fresh_bytes(const struct probe_config *c);
/* Part of probe_ram_bytes() for other arrays: two of 256 rows of 2,048 numbers, and a little. */
#define PROBE_BESIDE_BYTES (6 * PROBE_MIB)

/* Opens an arena. ERR_FIT: more bytes than the probe may use; the message names a sufficient
 * budget. */
enum err probe_arena_open(struct arena *a, const struct probe_config *c, int64_t bytes);

/* Seconds of a measurement: `quick`, ten times that in a full probe, times share. */
double probe_seconds(const struct probe_config *c, double quick);
/* Logs a rate if the probe is verbose. */
void probe_say(const struct probe_config *c, enum machine_rate id, const struct rate *r);

/* Fills a range of memory with copies of one weight panel. ERR_FIT. */
enum err probe_fill_panels(enum dtype t, int k, uint8_t *base, int64_t n_bytes);

/* Matmuls over weights in RAM. One arena: panels, x, y, scratch. */
struct matmul_bed {
    const struct ops *ops;
    struct arena arena; // owned: the caller closes it
    uint8_t *panels;    // filled by probe_fill_panels()
    int64_t panels_bytes, panel_bytes;
    float *x, *y;
    void *scratch;
    struct matmul_args args;
    int64_t next; // panel of the next call
};
/* Bytes of a bed with these ops and panels_bytes, for p->m rows and p->n outputs. */
int64_t probe_bed_bytes(struct matmul_bed b, const struct probe_matmul *p);
enum err probe_bed_open(struct matmul_bed *b, const struct probe_config *c,
                        const struct probe_matmul *p);
/* Sets the shape of the next calls. */
void probe_bed_shape(struct matmul_bed *b, const struct probe_matmul *p);
/* One call, over the panels after those of the call before. */
void probe_bed_turn(void *bed, int i);

/* 1: this machine has the part. Each part fills its own rates; the device comes last, because it
 * replaces step_s. */
int probe_has_part(const struct probe_config *c, enum machine_part part);
enum err probe_run_part(struct machine *m, const struct probe_config *c, enum machine_part part);
enum err probe_disk(struct machine *m, const struct probe_config *c);
/* Part of probe_disk: few in flight, single transfers, reads beside matmuls. Rewrites the file. */
struct disk_probe;
enum err probe_tickets(struct machine *m, const struct probe_config *c, struct disk_probe *d);
enum err probe_matmuls(struct machine *m, const struct probe_config *c);
enum err probe_attention(struct machine *m, const struct probe_config *c);

/* Decoding rows that attend, each over `slots` slots (whole pages); under an evicting policy each
 * row is full. */
struct probe_attend {
    enum kv_format format;
    int n_heads, n_kv_heads, head_dim;
    int keys_only;      // 1: values are keys (kernels/kv.h)
    int slots, rows;    // slots of a row; rows of a call, fewer if memory is short
    struct evict evict; // policy, scope and positions are used
    int rope_dim;       // rotated numbers of a key, if positions are ranks
    double seconds;
};
/* Rows per second. *row_kv_bytes: KV of a row. ERR_FIT: no memory, or heads too wide. */
enum err probe_attend_rows(const struct probe_config *c, const struct probe_attend *p,
                           struct rate *rate, double *row_kv_bytes);

/* Parts of probe_model: rows_s; the rates from attend_s on, which depend on the KV. ERR_FIT. */
struct probe_layer;
enum err probe_layer_rows(struct model_rates *r, const struct probe_layer *l,
                          const struct probe_config *c);
enum err probe_layer_attend(struct model_rates *r, const struct probe_layer *l,
                            const struct probe_config *c);
/* prompt_s, prompt_token_s and pair_s; they stay 0 where memory is too small for prompts. */
enum err probe_prompts(struct model_rates *r, const struct probe_layer *l,
                       const struct probe_config *c);

/* Bytes of pinned RAM, and of device memory, for measuring a device. */
int64_t probe_pinned_bytes(const struct probe_config *c);
int64_t probe_device_bytes(const struct probe_config *c, const struct device_info *info);
/* Sets step_s from launch_s. */
void probe_device_step(struct machine *m);

#endif
