/* engine/model/containers/hf.h - a Hugging Face model directory: configuration, weights, side
 * files.
 *
 * Owns: which files of the directory are read, and that they agree: config.json (required),
 * generation_config.json, hf_quant_config.json, model.safetensors or model.safetensors.index.json
 * with its shards. Refuses: pickles, code, the network, shard paths that leave the directory by
 * name. (Links are followed: the hub's cache keeps every file of a model as a link.) */
#ifndef ENGINE_MODEL_CONTAINERS_HF_H
#define ENGINE_MODEL_CONTAINERS_HF_H

#include "engine/data/values.h"
#include "engine/model/containers/safetensors.h"

#define HF_CONFIG_BYTES_MAX (16 << 20)

struct hf {
    char *dir;                // owned; as the user gave it
    struct values config;     // config.json; nested members by dotted key
    struct values generation; // generation_config.json; empty if absent
    struct values quant;      // hf_quant_config.json; empty if absent
    struct safetensors weights;
    char **shards; // owned; the names of the weight files in the directory, [weights.n_files]
    int n_shards;
};

/* Reads all headers. ERR_INPUT: one line that names the file; lists all missing shards. */
enum err hf_open(struct hf **out, const char *dir);
/* 1: the folder holds a LoRA adapter (adapter_config.json), alone or beside a model. */
int hf_has_adapter(const char *dir);
/* Accepts NULL. */
void hf_close(struct hf *hf);

/* Lists of config.json, e.g. eos_token_id (a number is a list of one) or layer_types: see
 * values.h. */
enum err hf_int_array(const struct hf *hf, const char *key, int64_t min, int64_t max, int64_t *out,
                      int64_t capacity, int64_t *n, int *found);
enum err hf_str_array(const struct hf *hf, const char *key, const char **out, int64_t capacity,
                      int64_t *n, int *found);

/* Ids that end a text: eos_token_id of generation_config.json, else of config.json, else of its
 * text_config. *n = 0: none given. ERR_INPUT, for any of these files: an empty list, an entry that
 * is no id in [0, vocab), too many. */
#define HF_EOS_MAX 64
enum err hf_eos_ids(const struct hf *hf, int64_t vocab, int64_t ids[HF_EOS_MAX], int64_t *n);

#endif
