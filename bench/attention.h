/* bench/attention.h - observes a prompt's attention for `bench attention`: the distribution of
 * weights, and which positions the policies keep.
 *
 * Owns: the figures and their computation. Refuses: its own loop over layers: it observes the ops
 * of a run at launch. Note: the matrix of weights is never stored; weights are computed again, one
 * query at a time, from the op's q and K. */
#ifndef BENCH_ATTENTION_H
#define BENCH_ATTENTION_H

#include "kernels/device.h"
#include "policy/shape.h"

#define LOOK_LEAST 32   // sparsity ignores queries with fewer slots
#define LOOK_SMALL 0.01 // of a query's greatest weight: smaller ones count as zero (H2O)
#define LOOK_MASS  0.95

/* Per layer and head; sums over prompts until look_means(). */
enum look_figure {
    LOOK_SPARSITY, // share of weights below LOOK_SMALL of the query's greatest
    LOOK_SLOTS,    // least share of slots that hold LOOK_MASS of a query's weight
    LOOK_TOP_5,    // share of the accumulated weight on the top 5 percent of positions
    LOOK_TOP_10,
    LOOK_TOP_20,
    LOOK_POWER,    // accumulated weight falls as rank^-power (line fit of the logarithms)
    LOOK_POWER_R2, // R^2 of that fit
    N_LOOK_FIGURES
};
extern const char *const look_names[N_LOOK_FIGURES];

struct look_scratch;

struct look {
    struct device device;  // given to the run: the CPU, with observed launches
    struct device_api api; // the CPU's, except launch
    int n_layers, n_heads, n_kv_heads, head_dim, n_prompt, n_threads;
    int layer; // next layer
    int set;   // -1: compute figures; else record the positions kept by this policy
    int n_sets;
    double *mass;    // owned: [n_heads][n_prompt] of the current layer
    double *figures; // owned: [n_layers][n_heads][N_LOOK_FIGURES]
    double *tally;   // owned: [n_heads][3] weights, small weights, sum of queries' slot shares
    int64_t *seen;   // owned: [n_heads] queries
    uint8_t *kept;   // owned: [n_sets][n_layers][n_kv_heads][n_prompt]
    double *overlap; // owned: [n_sets][n_sets][n_layers][n_kv_heads] |A and B| / |A or B|
    struct look_scratch *scratch; // owned: per thread
    int n_prompts;                // prompts with figures
};

/* Allocates everything; device: the CPU device of the run. ERR_FIT. */
enum err look_open(struct look *l, struct device *device, const struct shape *shape, int n_prompt,
                   int n_threads, int n_sets);
void look_close(struct look *l); // accepts a zeroed struct
/* Call before a pass over a prompt; set: see struct look. */
void look_begin(struct look *l, int set);
/* Compares all sets of a prompt; call after the last set. */
void look_compare(struct look *l);
/* Divides the sums by the number of prompts. */
void look_means(struct look *l);
static inline double look_at(const struct look *l, int layer, int head, enum look_figure figure)
{
    return l->figures[((int64_t)layer * l->n_heads + head) * N_LOOK_FIGURES + figure];
}
static inline double look_overlap(const struct look *l, int a, int b, int layer, int kv_head)
{
    return l
        ->overlap[(((int64_t)a * l->n_sets + b) * l->n_layers + layer) * l->n_kv_heads + kv_head];
}

#endif
