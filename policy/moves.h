/* policy/moves.h - the bytes that a pass moves, by lane: what the engine's movers will count.
 *
 * Owns: which fetch sees which rows. Refuses: seconds (policy/pass.h).
 * Exact but for four: rows of the embedding that are gathered (by their mean), pages that rows
 * write over which evict by scores (expected ones), experts of passes that want few (expected
 * ones), encoded weights before their file is made. */
#ifndef POLICY_MOVES_H
#define POLICY_MOVES_H

#include "policy/plan.h"
#include "policy/simulate.h"

/* A fetch for the next pass may be issued before it is known who leaves and who enters: it sees the
 * rows of the pass before, those of them that go on, or those of its own. */
enum fetch_sees { SEES_BEFORE, SEES_KEPT, SEES_OWN, N_FETCH_SEES };

/* Of a batch: how many decoder layers' KV of a tier is fetched when. */
struct moves_batch {
    int kv[N_TIERS][KV_KINDS_MAX][N_FETCH_SEES];
    int64_t seen_pages[KV_KINDS_MAX]; // SEES_BEFORE of the next pass
};

struct moves {
    const struct plan *plan;
    const struct weights_info *weights;
    const struct plan_costs *costs;
    int64_t dim;
    int64_t every[N_WORK_LANES]; // weights of a pass
    int64_t once[N_WORK_LANES];  // of the first one, more
    int64_t experts;             // of `every`, bytes of experts that are read from NVMe
    double row_bytes;            // that the gather of a token reads
    struct moves_batch *batches; // [plan.batches]
};

/* Of the experts' bytes the share that a pass brings; 1: layers come whole. */
double moves_experts_share(const struct moves *m, const struct load *loads);

/* Bytes of `memory`, 8-aligned. */
int64_t moves_bytes(const struct plan *plan);
void moves_make(struct moves *m, const struct plan *plan, const struct weights_info *weights,
                const struct plan_costs *costs, const struct shape *shape, void *memory);
/* Adds what pass `pass` moves; passes come one after the other. */
void moves_pass(struct moves *m, int64_t pass, const struct load *loads,
                double bytes[N_WORK_LANES]);
/* Adds what was fetched for the pass that does not come; loads: of the last one. */
void moves_end(struct moves *m, const struct load *loads, double bytes[N_WORK_LANES]);

/* Bytes of one batch's hidden states, of so many tokens, on their way. */
int64_t moves_hidden(int64_t dim, int64_t tokens);

#endif
