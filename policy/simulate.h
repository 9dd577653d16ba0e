/* policy/simulate.h - plays a job with numbers alone: which rows are in which pass.
 *
 * Owns: the walk over passes from the real lengths of rows, with the engine's rule of admission
 * (policy/admit.h). Refuses: seconds; the caller's `price` gives those of a pass.
 *
 * A decoding row takes a token per pass and a page every 32 passes, so it needs no attention until
 * it ends. A pass therefore costs a few additions plus the rows that enter or leave, however many
 * rows it has. Only a batch that is short of pages, or with rows that know more tokens than they
 * have done, is visited row by row. */
#ifndef POLICY_SIMULATE_H
#define POLICY_SIMULATE_H

#include "policy/plan.h"

/* What a batch does in a pass in one decoder layer of a kind. */
struct kv_load {
    int evicting;         // live rows that overwrite a victim's slot
    int64_t prompt_pairs; // pairs (query, key): load_pairs() summed over prompts
    int64_t slots;        // slots attended, summed over forced tokens
    int64_t pages_read;   // full pages before the pass
    int64_t pages_kept;   // the same before rows were sent back to the queue
    int64_t pages_filled; // pages that the pass fills, including all full pages of a prompt
    int64_t pages_over;   // of those read, pages that rows evicting in turn overwrite
};

/* What a batch does in a pass. */
struct load {
    int rows;              // live rows
    int prompts;           // rows that enter with a prompt
    int64_t prompt_tokens; // tokens of these prompts, without what they share with the first prompt
    int64_t forced_tokens; // all other tokens: one per decoding row, more for rows that came back
    int64_t positions;     // positions that reach the head
    struct kv_load kv[KV_KINDS_MAX];
};

/* Pairs of a query and a key that it sees, over the first n tokens of a prompt. */
static inline int64_t load_pairs(const struct evict *e, int kind, int64_t n)
{
    int64_t window = evict_kind(e, kind).window;
    int64_t rising = window > 0 && window < n ? window : n; // each sees one more key
    return rising * (rising + 1) / 2 + (n - rising) * window;
}

/* A batch's states of `pages` each: of its live rows `old` had one before the pass; kept: pages
 * before rows were sent back. */
static inline void load_states(int pages, int live, int old, int64_t kept, struct kv_load *l)
{
    const struct kv_load states = {.pages_read = (int64_t)old * pages,
                                   .pages_kept = kept,
                                   .pages_filled = (int64_t)(live - old) * pages,
                                   .pages_over = (int64_t)old * pages};
    *l = states;
}

/* How far a job is. */
struct progress {
    int64_t rows, passes; // rows that entered; passes that ended
    double job_s;
};

/* Sums over a job. */
struct played {
    int64_t passes, requeued;
    int64_t rows; // rows that entered, each counted once
    int64_t live; // rows that were live before the first pass
    /* When all places were filled for the first time, and the last time that another full set of
     * rows had entered since. */
    struct progress filled_from, filled_to;
    int64_t row_passes; // live rows, summed over passes
    struct load sum;    // of all passes and batches
    double job_s;       // sum of `price`
};

/* A row that was admitted before the simulation begins. */
struct live_row {
    struct work_row row;
    int32_t done;    // tokens done
    int64_t entered; // number among all admitted rows, from 1
};

struct simulation {
    const struct plan *plan;
    const struct work *work; // lengths of the rows
    const struct evict *evict;
    int ring;  // 1: KV format mixed
    int every; // only every so-many-th row is played; 0: all
    /* For a job between two passes: returns 1 with the row at `seat` of a batch, or 0. `work` then
     * has only the waiting rows, and pass 0 is over. NULL: the job begins. */
    int (*live)(void *ctx, int batch, int seat, struct live_row *row);
    void *live_ctx;
    /* Seconds of a pass, from the loads of its batches. NULL: 0. */
    double (*price)(void *ctx, int64_t pass, const struct load *loads);
    void *ctx;
};

/* Sets w->stops from `sampled` tokens by eighths of the output, of which `stopped` were the last of
 * a row before its cap. An eighth with few samples gets about the chance of the eighth before: rows
 * that have outlived the others tend to go on. */
void work_learn(struct work *w, const int64_t sampled[WORK_EIGHTHS],
                const int64_t stopped[WORK_EIGHTHS]);
/* Sets w->slots_mean and w->output_tokens to what is expected when rows stop as in w->stops.
 * Changes nothing for scored rows and for work without lengths. */
void work_expect(struct work *w, const struct evict *e);

/* Bytes that a simulation of a plan needs, a multiple of 8. */
int64_t simulate_bytes(const struct plan *plan);
/* Plays the whole job. 0; -1: a row can never enter, its pages are more than a batch has. */
int simulate(const struct simulation *s, void *memory, struct played *out);

#endif
