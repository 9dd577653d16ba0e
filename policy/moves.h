/* policy/moves.h - bytes that a pass moves, by lane, as the engine's movers will count them.
 *
 * Owns: which fetch sees which rows. Refuses: seconds (policy/pass.h).
 * Exact except for four numbers: gathered embedding rows (mean), pages overwritten under
 * score-based eviction (expected), experts of passes that need few (expected), and encoded weights
 * before their file exists. */
#ifndef POLICY_MOVES_H
#define POLICY_MOVES_H

#include "policy/plan.h"
#include "policy/simulate.h"

/* A fetch for the next pass may be issued before it is known which rows leave and enter. It then
 * sees the rows of the pass before, only those that go on, or the rows of its own pass. */
enum fetch_sees { SEES_BEFORE, SEES_KEPT, SEES_OWN, N_FETCH_SEES };

/* Per batch: number of decoder layers whose KV is fetched, by home, kind and what the fetch sees.
 */
struct moves_batch {
    int kv[N_TIERS][KV_KINDS_MAX][N_FETCH_SEES];
    int64_t seen_pages[KV_KINDS_MAX]; // as SEES_BEFORE of the next pass sees them
};

struct moves {
    const struct plan *plan;
    const struct weights_info *weights;
    const struct plan_costs *costs;
    const struct shape *shape;
    int64_t every[N_WORK_LANES]; // weights, each pass
    int64_t once[N_WORK_LANES];  // in addition, in the first pass
    int64_t experts;             // part of `every`: bytes of experts read from NVMe
    double row_bytes;            // bytes that gathering one token's embedding row reads
    struct moves_batch *batches; // [plan.batches]
};

/* The share of experts' bytes that a pass reads; 1: whole layers. */
double moves_experts_share(const struct moves *m, const struct load *loads);

/* Bytes of `memory`, a multiple of 8. */
int64_t moves_bytes(const struct plan *plan);
/* sweeps: how often a pass reads the weights that stream. */
void moves_make(struct moves *m, const struct plan *plan, int sweeps,
                const struct weights_info *weights, const struct plan_costs *costs,
                const struct shape *shape, void *memory);
/* Adds the bytes of pass `pass`; call it for consecutive passes. */
void moves_pass(struct moves *m, int64_t pass, const struct load *loads,
                double bytes[N_WORK_LANES]);
/* Adds fetches for a pass after the last one. loads: of the last pass. */
void moves_end(struct moves *m, const struct load *loads, double bytes[N_WORK_LANES]);

/* Bytes that one batch's hidden states of this many tokens move; after the last decoder layer, of
 * wanted positions. */
int64_t moves_hidden(const struct shape *shape, int64_t tokens);
int64_t moves_positions(const struct shape *shape, int64_t positions);

#endif
