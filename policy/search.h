/* policy/search.h - the fastest plan that fits. */
#ifndef POLICY_SEARCH_H
#define POLICY_SEARCH_H

#include "policy/cost.h"

/* A plan that a search has played step by step. */
struct plan_choice {
    struct plan plan;
    double job_s, moved; // of the job; bytes that all lanes move
};

/* The played plans of a search, fastest first; the slowest are left out if the list is full. */
struct plan_ranking {
    struct plan_choice *list; // [cap], borrowed
    int cap, n;
};

#define SEARCH_BATCHES_MOST 24   // greatest number of batches that is tried
#define PLAN_CODEC_GAIN     0.97 // an encoded file must reduce job time to this share

/* Bytes of `memory` that a search for this wish and work needs, a multiple of 8. */
int64_t plan_search_bytes(const struct plan_wish *wish, const struct work *work, int layers);
/* 1: a search also tries encoded weights. 0: decoding is not faster than the disk, the wish has a
 * codec, or the ratio of encoding was not measured. */
int plan_search_encodes(const struct setting *set, const struct plan_wish *wish);
/* Finds the fastest plan (plan_cost) that plan_check accepts. Weights are encoded if that was
 * measured and pays, including the time to make the file. Returns 0, or -1 with `why`. ranking (or
 * NULL): the plans it chose among. */
int plan_search(const struct setting *set, const struct plan_wish *wish,
                const struct budget *budget, void *memory, struct plan *plan,
                struct plan_ranking *ranking, char *why, int why_cap);

#endif
