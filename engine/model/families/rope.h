/* engine/model/families/rope.h - rotary positions: from metadata to angles.
 *
 * Owns: the kinds of scaling, their keys in config.json (both dialects) and in GGUF, their
 * arithmetic. Refuses: which layer uses which table (the families). Used by family*.c only. */
#ifndef ENGINE_MODEL_FAMILIES_ROPE_H
#define ENGINE_MODEL_FAMILIES_ROPE_H

#include "engine/model/containers/source.h"
#include "policy/shape.h"

enum rope_kind {
    ROPE_PLAIN,
    ROPE_DYNAMIC, // rows stay within the original context, where it equals ROPE_PLAIN
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONG,
    ROPE_PROPORTIONAL
};

struct rope {
    enum rope_kind kind;
    double theta;
    double partial;                // rotated share of a head
    double factor;                 // stretch of the context; 0: not given
    double original;               // context before the stretch; 0: not given
    double alpha;                  // dynamic: theta grows by a power of it; 0: not given
    double attention_factor;       // of cosines and sines; 0: derived from the kind
    double low_freq, high_freq;    // llama3
    double beta_fast, beta_slow;   // yarn: turns over the original context
    double mscale, mscale_all_dim; // yarn; 0: unset
    int truncate;                  // yarn: the ramp starts and ends at whole pairs
    float short_factor[SHAPE_ROPE_MAX], long_factor[SHAPE_ROPE_MAX]; // longrope: divisors
    int n_factors;
};

/* Initial value: plain, all dimensions of a head. */
struct rope rope_plain(double theta);
/* From config.json: `rope_scaling` beside theta_key and partial_key (transformers 4), or
 * `rope_parameters` (5). */
enum err rope_read_hf(struct rope *r, const struct source *s, const char *theta_key,
                      const char *partial_key);
/* From GGUF: NAME.rope.*, and the tensors rope_freqs and rope_factors_{long,short}. */
enum err rope_read_gguf(struct rope *r, const struct source *s, const char *name, int rope_dim);
/* Fills shape->ropes, rope_long, and context if scaling extends it. head_dim, rope_dim and context
 * must be set. ERR_INPUT. */
enum err rope_fill(const struct rope *r, const struct source *s, struct shape *shape);
/* Angles of one table without scaling. */
void rope_fill_plain(struct shape *shape, int table, double theta);
/* For layers with a window, table 1: unscaled, of a theta of their own. `theta`: the default.
 * ERR_INPUT. */
enum err rope_fill_windows(const struct source *s, const char *name, struct shape *shape,
                           double theta);
/* Divides frequencies by the tensor rope_freqs.weight of a GGUF file, if present. */
enum err rope_divide(const struct source *s, struct shape *shape);

#endif
