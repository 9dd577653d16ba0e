/* engine/model/dummy.h - models without weights: a config file from configs/ gives the shape, a
 * generator the numbers, so that speed can be measured without a download.
 *
 * Owns: the config's keys and the generator. Refuses: tokenizers (rows then need token ids). File:
 * flat `key = value` lines, # starts a comment. Keys: family (llama or opt), dim, layers, heads,
 * ffn, vocab, context; for nemotron_h pattern instead of layers (family_nemotron_h_layers());
 * optional kv_heads (heads), head_dim (dim / heads), rope_dim (the family's), latent_key,
 * latent_value, latent_query, state_k_heads, state_v_heads, state_k_dim, state_v_dim
 * (policy/shape.h), tied (0 or 1; 1), rope_theta (10000), norm_eps (1e-5). */
#ifndef ENGINE_MODEL_DUMMY_H
#define ENGINE_MODEL_DUMMY_H

#include "engine/model/pack.h"

/* 1 if the file is a model config: its name ends in ".cfg". */
int dummy_is_config(const char *path);
/* A provider of bf16 weights (normal, see dummy_numbers.h), norms of 1 and biases of 0; decays
 * of -1 and taps of 1 / 4 in layers with a state. A number
 * depends only on its tensor and position: same file, same bytes, on every machine. ERR_INPUT names
 * file and line, or key. */
enum err dummy_open(struct pack_provider *p, const char *path);
/* ERR_INPUT: another version's generator made the weights of this dummy model. */
enum err dummy_check(const struct model *m);
/* The same provider, for the model of a dummy pack (m->dummy). ERR_INPUT: dummy_check(). */
enum err dummy_of_model(struct pack_provider *p, const struct model *m);
void dummy_close(struct pack_provider *p); // accepts a zeroed provider

#endif
