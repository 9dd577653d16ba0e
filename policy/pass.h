/* policy/pass.h - how long a pass takes: its steps one after the other, and their waits.
 *
 * Owns: the price of a pass. Refuses: which rows are in the pass (policy/simulate.h), which bytes
 * it moves (policy/moves.h). Lanes overlap only as far as look-ahead and window allow. So the steps
 * of a pass are played by the walk's own rule (step n's data is fetched at step n - ahead; the disk
 * serves the earliest due first); comparing sums of lanes would be too optimistic. */
#ifndef POLICY_PASS_H
#define POLICY_PASS_H

#include "policy/moves.h"

/* Of one pass, or summed over many. */
struct lanes {
    double s[N_WORK_LANES], bytes[N_WORK_LANES]; // busy seconds; bytes of lanes that move data
    double wall_s;
    double to_cpu_s, to_device_s; // further link time, where rows attend on the CPU
};

#define PRICING_KEPT 16

/* A played pass: its lanes, their wall time without waits (quick_s), and its wall time. */
struct played_pass {
    double s[N_WORK_LANES], quick_s, wall_s;
    double disk_more_s[2]; // see struct pricing
};

/* Prices the passes of a job, in order. */
struct pricing {
    const struct setting *set;
    const struct plan *plan;
    struct plan whole; // of a pipeline: `plan`, its groups taken together
    int sweeps;        // of the layers in a pass: streamed weights are read for each group
    struct moves moves;
    struct lanes sum;                      // of all priced passes
    double first_s;                        // wall time of the first priced pass
    struct played_pass kept[PRICING_KEPT]; // the last played passes, a ring
    int matched;                           // index in `kept` that the last pass matched
    struct load *last;                     // [batches] loads of the last priced pass
    struct lanes priced;                   // lanes of the last priced pass
    int repeated;                          // passes since then that reused this price
    int64_t plays;                         // passes that were played
    int kinds;                             // kinds of KV of the model's layers
    int quick;                             // 1: compares lanes, plays no steps
    struct load *typical;                  // [batches] scratch for made-up loads
    double slowed;         // factor on ops in this pass: checksums and reads use CPU time, too
    double disk_more_s[2]; // reads and writes of the pass: seconds in flight beyond what their
                           // bytes take at full queue depth
    int64_t kv_on_disk[KV_KINDS_MAX]; // KV extents with home NVMe
    double experts_share;             // share of experts' bytes that the pass reads
    double decoding_s;                // per pass: decoding layers after their copy to the device
    int decoded[KV_KINDS_MAX][2];     // decoder layers held as stored, and as tiles
    int decoded_slices;               // slices held as tiles
    double fresh_read_s, fresh_ops_s; // first pass: time to touch fresh memory, by reads and by ops
    struct replay *replay;
};

/* Bytes of `memory`, a multiple of 8; quick needs a fraction. */
int64_t pricing_bytes(const struct plan *plan, int quick);
void pricing_make(struct pricing *p, const struct setting *set, const struct plan *plan, int quick,
                  void *memory);
/* A price for struct simulation; ctx: the pricing. A pass whose lanes are close to those of a
 * played pass is not played: its steps wait as much. */
double pricing_pass(void *ctx, int64_t pass, const struct load *loads);

#endif
