/* policy/search_impl.h - what the two files of the search share: search.c finds plans that fit,
 * search_climb.c the fastest of them. */
#ifndef POLICY_SEARCH_IMPL_H
#define POLICY_SEARCH_IMPL_H

#include "kernels/base/num.h"
#include "policy/search.h"

#define PREFILL_MAX    4096  // tokens that a pass admits: more only lengthens it
#define PREFILL_DEVICE 16384 // on a device: what keeps the rows full is many
#define PREFILL_LEAST  32    // fewer starve the rows
#define ESTIMATED      20    // best plans by estimate that are tried
#define TRIED_MOST     1024  // plans that are tried in all

/* Which resident layers are held as tiles: none, those for which there is room when no more layers
 * fit, or all, and fewer are resident. */
enum tiles { TILES_NONE, TILES_AFTER, TILES_ALL };

/* What a plan is grown from: rows, homes, look-ahead, prompt tokens. */
struct seed {
    struct plan plan;
    int resident_most; // layers that are taken in at most
    enum tiles tiles;
};

struct ranked {
    struct seed seed;
    struct plan plan;
    double s, moved; // the job, as estimated, compared or played; bytes of all lanes
    double compared_s;
    int played;  // 1: step by step
    int climbed; // 1: what differs from it a little was tried; 2: what differs more, too
};

struct search {
    const struct setting *set;
    const struct plan_wish *wish;
    const struct budget *budget;
    void *memory; // of plan_cost
    int codec, tile_tokens; // of every candidate
    struct ranked estimated[ESTIMATED];
    int n_estimated;
    struct ranked *tried;         // [TRIED_MOST]
    struct plan_ranking *ranking; // of those that were played; NULL: nobody asks
    int n_tried, n_played;
    double work;               // of what was played
    const struct ranked *best; // of those that were played; NULL: none was
    int64_t least_over;        // bytes of memory that the candidate lacks which is nearest to fit
    int least_on_disk;         // 1: it keeps to the disk's budget
    char why[256];             // of that candidate
};

/* Where a candidate's bytes live before what is left is given away. */
struct homes {
    enum tier_kind kv, hidden;
    int layers_ram; // 1: no layer on NVMe
};

extern const int search_batches[]; // numbers of batches that are tried; the last is 0

/* Look-ahead of one layer. Steps that are queued have theirs already. */
static inline int search_ahead(const struct plan *p)
{
    int held = p->device ? p->window - 1 : 0;
    return (int)max_i64(p->batches * (1 + p->attn_cpu) - held, 1);
}

/* Prompt tokens that a pass admits, by estimate. */
int search_prefill(struct search *s, const struct plan *p);
/* A field as the user fixed it, by count or share of n; -1: free. */
int search_wished(const struct search *s, int count, enum plan_percent kind, int64_t n);
/* The leanest plan of these rows and homes. */
struct plan search_candidate(const struct search *s, int batch, int batches, struct homes homes);
/* The plan with so many layers resident and all else as it is. 1, or 0: it does not fit. */
int search_with_resident(struct search *s, struct plan *p, int resident, enum tiles tiles);
/* Grows a plan out of a seed, whose prompt tokens are lowered where they have to be. 1, or 0: it
 * does not fit. */
int search_build(struct search *s, struct seed *seed, struct plan *p);
/* The plan to take, of those that were estimated and all that is found from there; NULL: none. */
const struct ranked *search_climb(struct search *s);

#endif
