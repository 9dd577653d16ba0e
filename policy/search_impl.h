/* policy/search_impl.h - shared by the two files of the search: search.c finds plans that fit,
 * search_climb.c the fastest of them. */
#ifndef POLICY_SEARCH_IMPL_H
#define POLICY_SEARCH_IMPL_H

#include "kernels/base/num.h"
#include "policy/search.h"

#define PREFILL_MAX    4096  // greatest limit on tokens that a pass admits: more only lengthens it
#define PREFILL_DEVICE 16384 // the same on a device, whose rows need many to stay full
#define PREFILL_LEAST  32    // least limit: fewer starve the rows
#define ESTIMATED      20    // best plans by estimate, which are tried
#define TRIED_MOST     1024  // limit on tried plans

/* Which resident layers are held as tiles: none; as many as fit once no more layers do; or all, so
 * that fewer layers are resident. */
enum tiles { TILES_NONE, TILES_AFTER, TILES_ALL };

/* The start of a plan: rows, homes, look-ahead, prompt tokens. */
struct seed {
    struct plan plan;
    int resident_most; // greatest number of resident layers
    enum tiles tiles;
};

struct ranked {
    struct seed seed;
    struct plan plan;
    double s, moved; // job time as estimated, compared or played; bytes of all lanes
    double compared_s;
    int played;  // 1: s was played step by step
    int climbed; // 1: its near neighbours were tried; 2: also farther ones
};

struct search {
    const struct setting *set;
    const struct plan_wish *wish;
    const struct budget *budget;
    void *memory;           // for plan_cost
    int codec, tile_tokens; // of every candidate
    struct ranked estimated[ESTIMATED];
    int n_estimated;
    struct ranked *tried;         // [TRIED_MOST]
    struct plan_ranking *ranking; // played plans; NULL: not wanted
    int n_tried, n_played;
    double work;               // cost of the search so far
    const struct ranked *best; // fastest played plan; NULL: none yet
    int64_t least_over; // bytes of memory missing in the candidate that nearly fits; -1: none
    int least_on_disk;  // 1: that candidate fits the disk's budget
    char why[256];      // why that candidate does not fit
};

/* Homes of a candidate before the remaining room is filled. */
struct homes {
    enum tier_kind kv, hidden;
    int layers_ram; // 1: layers stream from RAM, not NVMe
};

extern const int search_batches[]; // numbers of batches that are tried; 0 ends the list

/* Look-ahead that covers one layer; steps already queued count. */
static inline int search_ahead(const struct plan *p)
{
    int held = p->device ? p->window - 1 : 0;
    return (int)max_i64(p->batches * (1 + p->attn_cpu) - held, 1);
}

/* Prompt tokens that a pass admits, by estimate. */
int search_prefill(struct search *s, const struct plan *p);
/* A count as the user fixed it, or as a percentage of n; -1: free. */
int search_wished(const struct search *s, int count, enum plan_percent kind, int64_t n);
/* The smallest plan with these rows and homes. */
struct plan search_candidate(const struct search *s, int batch, int batches, struct homes homes);
/* Sets p to have `resident` layers resident, all else unchanged. 1, or 0: it does not fit. */
int search_with_resident(struct search *s, struct plan *p, int resident, enum tiles tiles);
/* Grows a plan from a seed, whose prompt tokens are lowered if needed. 1, or 0: it does not fit. */
int search_build(struct search *s, struct seed *seed, struct plan *p);
/* The plan to use, of the estimated ones and those found from them; NULL: none. */
const struct ranked *search_climb(struct search *s);

#endif
