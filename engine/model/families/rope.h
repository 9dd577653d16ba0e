/* engine/model/families/rope.h - rotary positions: from what files say of them to angles.
 *
 * Owns: the kinds of scaling, their keys in config.json (both dialects) and in GGUF, their
 * arithmetic. Refuses: which layers turn by which table (the families). Used by family*.c only. */
#ifndef ENGINE_MODEL_FAMILIES_ROPE_H
#define ENGINE_MODEL_FAMILIES_ROPE_H

#include "engine/model/containers/source.h"
#include "policy/shape.h"

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG };

struct rope {
    enum rope_kind kind;
    double theta;
    double partial;                // share of a head that is turned
    double factor;                 // by which the context was stretched; 0: the file does not say
    double original;               // context it was stretched from; 0: the file does not say
    double attention_factor;       // of cosines and sines; 0: by the rule of its kind
    double low_freq, high_freq;    // llama3
    double beta_fast, beta_slow;   // yarn: turns over the original context
    double mscale, mscale_all_dim; // yarn; 0: unset
    int truncate;                  // yarn: the ramp begins and ends at whole pairs
    float short_factor[SHAPE_ROPE_MAX], long_factor[SHAPE_ROPE_MAX]; // longrope: divisors
    int n_factors;
};

/* The rule before anything was read: plain, all of a head. */
struct rope rope_plain(double theta);
/* From config.json: `rope_scaling` and `partial_rotary_factor` beside it (transformers 4), or
 * `rope_parameters` (5); theta_key and partial_key are what they are called beside it. */
enum err rope_read_hf(struct rope *r, const struct source *s, const char *theta_key,
                      const char *partial_key);
/* From GGUF: NAME.rope.*, and the tensors rope_freqs and rope_factors_{long,short}. */
enum err rope_read_gguf(struct rope *r, const struct source *s, const char *name, int rope_dim);
/* Fills shape->ropes, rope_long, and context where scaling makes it longer; head_dim, rope_dim and
 * context stand. ERR_INPUT. */
enum err rope_fill(const struct rope *r, const struct source *s, struct shape *shape);
/* Angles of one table without scaling. */
void rope_fill_plain(struct shape *shape, int table, double theta);
/* Divides by what the tensor rope_freqs.weight of a GGUF file says; nothing without one. */
enum err rope_divide(const struct source *s, struct shape *shape);

#endif
