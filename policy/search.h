/* policy/search.h - the fastest plan that fits. */
#ifndef POLICY_SEARCH_H
#define POLICY_SEARCH_H

#include "policy/cost.h"

/* A plan that a search played step by step. */
struct plan_choice {
    struct plan plan;
    double job_s, moved; // the job; bytes that all lanes move
};

/* Those of a search, the fastest first; where there is no room for all the slowest are left out. */
struct plan_ranking {
    struct plan_choice *list; // [cap], borrowed
    int cap, n;
};

#define SEARCH_BATCHES_MOST 24 // that are tried

/* Bytes of `memory` that a search for this wish and work may take, 8-aligned. */
int64_t plan_search_bytes(const struct plan_wish *wish, const struct work *work, int layers);
/* 1: a search tries encoded weights, too; 0: decoding them is not faster than the disk, the wish
 * has a codec, or what encoding gives was not measured. */
int plan_search_encodes(const struct setting *set, const struct plan_wish *wish);
/* The fastest plan by plan_cost that plan_check accepts; weights are encoded when their share was
 * measured and that is worth it, the making of the file included. 0, or -1 with `why`. `ranking`
 * (may be NULL): what it chose among. */
int plan_search(const struct setting *set, const struct plan_wish *wish,
                const struct budget *budget, void *memory, struct plan *plan,
                struct plan_ranking *ranking, char *why, int why_cap);

#endif
