/* offload/probe_model.h - what the layers of one model take on this CPU, by its own shapes.
 *
 * Owns: the measurement and its cache. Refuses: models: whoever has one lists its matrices. */
#ifndef OFFLOAD_PROBE_MODEL_H
#define OFFLOAD_PROBE_MODEL_H

#include "offload/probe.h"

#define PROBE_TENSORS 10

/* A matrix, as it is stored and as a tile. */
struct probe_tensor {
    enum dtype stored, tile;
    int n, k;          // of all experts
    int joins;         // 1: a part of the same call as the one before
    int experts, used; // of which a token takes `used`; 0, 0: all of it
};
/* What a decoder layer does besides. */
struct probe_layer {
    int dim, n_heads, n_kv_heads, head_dim, ffn_dim;
    int rope_dim; // 0: nothing is rotated
    int gated;    // the activation is a product
    enum kv_format kv_format;
    struct evict evict; // its policy, scope and positions count
};
struct probe_model {
    struct probe_tensor layer[PROBE_TENSORS]; // of a decoder layer, in the order of its calls
    int n_layer;
    struct probe_tensor head; // at most one tile of the vocabulary
    struct probe_layer beside;
};

/* Its matrices and the rest of its layers, as numbers for machine files. */
void probe_model_weights(const struct probe_model *p, struct model_weights *w);

/* Measures, in about a second and a half: copies of the layer that do not fit the caches are gone
 * through at matmul_rows[] tokens; where a sweep is long by m->matmul_flops it is over a share of
 * each matrix's outputs. Of c it takes ops, the memory and time_share. ERR_FIT: no memory. */
enum err probe_model(struct model_rates *r, const struct machine *m, const struct probe_model *p,
                     const struct probe_config *c);
/* The same from the cache, as probe_cached. */
enum err probe_model_cached(struct model_rates *r, const struct machine *m,
                            const struct probe_model *p, const struct probe_config *c,
                            const char *cache_dir, int *measured);

#endif
