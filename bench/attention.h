/* bench/attention.h - what `bench attention` sees of a prompt's attention: where its mass lies, and
 * which positions the policies keep.
 *
 * Owns: the figures and how they are made. Refuses: a loop over layers of its own: it looks at the
 * ops of a run as they are launched. Note: no matrix of weights is ever there;
 * weights are computed again, a query at a time, from the op's own q and K. */
#ifndef BENCH_ATTENTION_H
#define BENCH_ATTENTION_H

#include "kernels/device.h"
#include "policy/shape.h"

#define LOOK_LEAST 32   // queries that see fewer slots tell nothing of sparsity
#define LOOK_SMALL 0.01 // of the greatest weight of a query: what counts as none (H2O)
#define LOOK_MASS  0.95

/* Of one layer and head; sums over prompts until look_means(). */
enum look_figure {
    LOOK_SPARSITY, // share of weights below LOOK_SMALL of their query's greatest
    LOOK_SLOTS,    // share of its slots that hold LOOK_MASS of a query's weight, at least
    LOOK_TOP_5,    // share of the accumulated weight on so many percent of the positions
    LOOK_TOP_10,
    LOOK_TOP_20,
    LOOK_POWER,    // accumulated weight falls as rank^-power: a line through the logarithms
    LOOK_POWER_R2, // how well
    N_LOOK_FIGURES
};
extern const char *const look_names[N_LOOK_FIGURES];

struct look_scratch;

struct look {
    struct device device;  // what the run computes on: the CPU, looked at
    struct device_api api; // the CPU's, but its launch
    int n_layers, n_heads, n_kv_heads, head_dim, n_prompt, n_threads;
    int layer; // that comes next
    int set;   // -1: the figures; else which policy's kept positions are written down
    int n_sets;
    double *mass;    // owned: [n_heads][n_prompt] of the layer at hand
    double *figures; // owned: [n_layers][n_heads][N_LOOK_FIGURES]
    double *tally;   // owned: [n_heads][3] weights, small ones, queries' shares of slots
    int64_t *seen;   // owned: [n_heads] queries
    uint8_t *kept;   // owned: [n_sets][n_layers][n_kv_heads][n_prompt]
    double *overlap; // owned: [n_sets][n_sets][n_layers][n_kv_heads] |A and B| / |A or B|
    struct look_scratch *scratch; // owned: of each thread
    int n_prompts;                // that were looked at
};

/* Everything is made here; device: the CPU, that of the run. ERR_FIT. */
enum err look_open(struct look *l, struct device *device, const struct shape *shape, int n_prompt,
                   int n_threads, int n_sets);
void look_close(struct look *l); // accepts a zeroed one
/* A pass over one prompt begins: what of it is wanted (set: see struct look). */
void look_begin(struct look *l, int set);
/* All sets of a prompt are there: compares them. */
void look_compare(struct look *l);
/* Sums become means. */
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
