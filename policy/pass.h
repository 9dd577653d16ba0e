/* policy/pass.h - how long a pass takes: its steps one after the other, and what they wait for.
 *
 * Owns: the price of a pass. Refuses: which rows are in it (policy/simulate.h), which bytes it
 * moves (policy/moves.h). Lanes overlap only as far as look-ahead and window let them: so the steps
 * of a pass are played with the walk's own rule (what step n needs is fetched when step n - ahead
 * is at hand, the disk serves what is due first), not the sums of its lanes compared. */
#ifndef POLICY_PASS_H
#define POLICY_PASS_H

#include "policy/moves.h"

/* Of a pass, or of many. */
struct lanes {
    double s[N_WORK_LANES], bytes[N_WORK_LANES]; // busy seconds; bytes of the four that move them
    double wall_s;
    double to_cpu_s, to_device_s; // of the link besides, where rows attend on the CPU
};

/* What a plan is for, and where. Borrowed. */
struct setting {
    const struct weights_info *weights;
    const struct work *work;
    const struct shape *shape;
    const struct evict *evict;
    const struct plan_costs *costs;
    const struct machine *machine;
};

#define PRICING_KEPT 16

/* A pass that was played, and how much longer it took than its lanes alone. */
struct played_pass {
    double s[N_WORK_LANES], quick_s, wall_s;
    double disk_more_s[2]; // as below
};

/* Prices the passes of a job, in order. */
struct pricing {
    const struct setting *set;
    const struct plan *plan;
    struct moves moves;
    struct lanes sum;                      // of what was priced so far
    double first_s;                        // the first pass that was priced
    struct played_pass kept[PRICING_KEPT]; // the passes played last, in turn
    int matched;                           // of these, the one that the last pass was like
    struct load *last;                     // [batches] of the last pass that was priced
    struct lanes priced;                   // what it came to
    int repeated;                          // passes since that were taken to cost the same
    int64_t plays;                         // passes that were played, not taken from another
    int kinds;                             // of KV that the model's layers hold
    int quick;                             // 1: no steps are played, lanes are compared
    struct load *typical;                  // [batches] room for who makes loads up
    double slowed;         // of the pass: how much longer ops take for what is checked beside them
    double disk_more_s[2]; // reads and writes of the pass: in flight so much longer than their
                           // bytes take at full depth
    int64_t kv_on_disk[KV_KINDS_MAX]; // KV extents that live there
    double experts_share;             // of the pass: of experts' bytes what it brings
    double decoding_s;                // of a pass: layers that are decoded behind their copy
    int decoded[KV_KINDS_MAX][2];     // decoder layers that are not, and that are, held as tiles
    int decoded_slices;               // slices that are
    double fresh_read_s, fresh_ops_s; // of the first pass: touching memory that was never touched
    struct replay *replay;
};

/* Bytes of `memory`, 8-aligned. quick: for lanes that are compared alone, a fraction of it. */
int64_t pricing_bytes(const struct plan *plan, int quick);
void pricing_make(struct pricing *p, const struct setting *set, const struct plan *plan, int quick,
                  void *memory);
/* As struct simulation wants it; ctx: the pricing. A pass whose lanes are much like those of one
 * that was played is not played: its steps wait as much. */
double pricing_pass(void *ctx, int64_t pass, const struct load *loads);

#endif
