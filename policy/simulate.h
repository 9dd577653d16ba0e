/* policy/simulate.h - plays a job with numbers alone: who is in which pass, row by row.
 *
 * Owns: the walk over passes from the real lengths of rows, by the engine's own rule of admission
 * (policy/admit.h). Refuses: seconds; who wants them gives a function that prices a pass.
 *
 * A row that decodes takes a token a pass and a page every 32 passes: nothing has to look at it
 * until it is over. So a pass costs a few additions and what enters or leaves in it, whatever its
 * rows are; only a batch that is short of pages, or whose rows know more tokens than they have
 * done, is looked at row by row. */
#ifndef POLICY_SIMULATE_H
#define POLICY_SIMULATE_H

#include "policy/plan.h"

/* What a batch does in a pass in one decoder layer, which depends on what its KV holds. */
struct kv_load {
    int evicting;         // live rows that write over a victim's slot
    int64_t prompt_pairs; // of a query and a key: load_pairs() of each prompt
    int64_t slots;        // sum over forced tokens of the slots that they attend over
    int64_t pages_read;   // full pages before the pass
    int64_t pages_kept;   // the same before rows were sent back for want of pages
    int64_t pages_filled; // pages that the pass fills, all of a prompt's full ones
    int64_t pages_over;   // of those read, what rows write over that evict in turn
};

/* What a batch does in a pass. */
struct load {
    int rows;              // live
    int prompts;           // rows that enter with a prompt
    int64_t prompt_tokens; // of these, but for what they share with the first
    int64_t forced_tokens; // all others: a token a row that decodes, more of rows that came back
    int64_t positions;     // that reach the head
    struct kv_load kv[KV_KINDS_MAX];
};

/* Pairs of a query and a key that it sees, of a prompt's first n tokens. */
static inline int64_t load_pairs(const struct evict *e, int kind, int64_t n)
{
    int64_t window = evict_kind(e, kind).window;
    int64_t rising = window > 0 && window < n ? window : n; // each sees one more
    return rising * (rising + 1) / 2 + (n - rising) * window;
}

/* How far a job is. */
struct progress {
    int64_t rows, passes; // that have entered; that are over
    double job_s;
};

/* Sums over a job. */
struct played {
    int64_t passes, requeued;
    int64_t rows; // that entered, each counted once
    int64_t live; // that were live before the first pass
    /* Since all places were taken for the first time, and when as many rows again had entered, as
     * often as they did. */
    struct progress filled_from, filled_to;
    int64_t row_passes; // sum over passes of live rows
    struct load sum;    // of all passes and batches
    double job_s;       // what `price` said, summed
};

/* A row that was admitted before the simulation begins. */
struct live_row {
    struct work_row row;
    int32_t done;    // tokens that passes have taken
    int64_t entered; // its number among all that were admitted, from 1
};

struct simulation {
    const struct plan *plan;
    const struct work *work; // rows: their lengths
    const struct evict *evict;
    int ring;  // 1: KV format mixed
    int every; // of the rows so many-th are played; 0: all
    /* For a job that is looked at between two passes: 1 with the row at `seat` of a batch, or 0.
     * `work` then has the waiting rows alone, and pass 0 is over. NULL: the job begins. */
    int (*live)(void *ctx, int batch, int seat, struct live_row *row);
    void *live_ctx;
    /* Seconds of a pass, from the loads of its batches; NULL: 0. */
    double (*price)(void *ctx, int64_t pass, const struct load *loads);
    void *ctx;
};

/* Rows stop as `stops` says: w->slots_mean and w->output_tokens become what they then use on the
 * average. Nothing changes where rows are scored or have no lengths. */
void work_expect(struct work *w, const struct evict *e, const double stops[WORK_EIGHTHS]);

/* Bytes that a simulation of a plan needs, 8-aligned. */
int64_t simulate_bytes(const struct plan *plan);
/* Plays the whole job. 0; -1 when a row can never enter: its pages are more than a batch has. */
int simulate(const struct simulation *s, void *memory, struct played *out);

#endif
