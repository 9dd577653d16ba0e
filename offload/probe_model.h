/* offload/probe_model.h - seconds of one model's layers on this CPU, at the model's shapes.
 *
 * Owns: the measurement and its cache. Refuses: models; the caller lists the matrices. */
#ifndef OFFLOAD_PROBE_MODEL_H
#define OFFLOAD_PROBE_MODEL_H

#include "offload/probe.h"

#define PROBE_TENSORS 12

/* A matrix, as it is stored and as a tile. */
struct probe_tensor {
    enum dtype stored, tile;
    int n, k;          // n: outputs of all experts together
    int joins;         // 1: computed in one call with the matrix before
    int experts, used; // a token uses `used` of the experts; 0, 0: there are none
};
/* A decoder layer without its matmuls. */
struct probe_layer {
    int dim, n_heads, n_kv_heads, head_dim, ffn_dim;
    int rope_dim;  // 0: no rotation
    int gated;     // 1: the activation is gated
    int keys_only; // 1: values are keys (kernels/kv.h)
    enum kv_format kv_format;
    struct evict evict; // policy, scope and positions are used
};
struct probe_model {
    struct probe_tensor layer[PROBE_TENSORS]; // of a decoder layer, in the order of its calls
    int n_layer;
    struct probe_tensor head; // at most one tile of the vocabulary
    struct probe_layer beside;
};

/* Numbers of weights by measured matmul format, for predictions from machine files. */
void probe_model_weights(const struct probe_model *p, struct model_weights *w);

/* Measures for about a second and a half: sweeps over copies of the layer that exceed the caches,
 * at matmul_rows[] tokens. If a sweep takes long by m->matmul_flops, it computes only a share of
 * each matrix's outputs. Uses ops, the memory and share of c. ERR_FIT: no memory. */
enum err probe_model(struct model_rates *r, const struct machine *m, const struct probe_model *p,
                     const struct probe_config *c);
/* The same through the cache, like probe_cached(). */
enum err probe_model_cached(struct model_rates *r, const struct machine *m,
                            const struct probe_model *p, const struct probe_config *c,
                            const char *cache_dir, int *measured);

#endif
