/* engine/source/family.h - model families: how metadata becomes a shape and names become roles.
 *
 * Owns: the one table of families, and the checks that are the same for all. Refuses: weights.
 * A new family is one file family_x.c and one line of FAMILIES; a new variant is a field of struct
 * shape that engine/line/layer_*.c read. */
#ifndef ENGINE_SOURCE_FAMILY_H
#define ENGINE_SOURCE_FAMILY_H

#include "engine/source/role.h"
#include "engine/source/source.h"

/* Names of tensors by role; NULL: the family has none. Decoder roles are completed to
 * PREFIX + layer + N + "." + name, the others to PREFIX + name; the head takes no prefix. */
struct family_names {
    const char *layer; // "layers." or "blk."
    const char *roles[N_ROLES];
};

/* What a family found in a source. */
struct family_model {
    struct shape shape;
    uint32_t roles;  // ROLE_BIT()s; ROLE_HEAD always
    int tied;        // 1: the head is the embedding
    int paired_rows; // 1: rows of q and k stand in the order (2i, 2i + 1): GGUF llama
    const struct family_names *names;
    const char *prefix;
};

/* name, GGUF architecture ("" none), Hugging Face model_type, HF class, reader */
#define FAMILIES(X)                                                                                \
    X("llama", "llama", "llama", "LlamaForCausalLM", family_llama_read)                            \
    X("mistral", "", "mistral", "MistralForCausalLM", family_llama_read)                           \
    X("qwen2", "qwen2", "qwen2", "Qwen2ForCausalLM", family_llama_read)                            \
    X("opt", "opt", "opt", "OPTForCausalLM", family_opt_read)

/* Finds the family, reads the shape, and checks that every tensor is there and has its dimensions.
 * ERR_INPUT: "PATH: KEY or tensor: WHAT". Nothing to close. */
enum err family_read(struct family_model *m, const struct source *s);
/* The tensor of a role; `layer` counts for decoder roles. NULL when the source has none. */
const struct source_tensor *family_tensor(const struct family_model *m, const struct source *s,
                                          enum tensor_role role, int layer);
/* Which row (or number of a bias) of the file is row `row` of the role: undoes paired_rows. */
int64_t family_source_row(const struct family_model *m, enum tensor_role role, int64_t row);

/* Readers: `name` is the family's; fill m->shape, roles, names, prefix. Used by the table only. */
enum err family_llama_read(struct family_model *m, const struct source *s, const char *name);
enum err family_opt_read(struct family_model *m, const struct source *s, const char *name);

/* For readers. A key that starts with a dot is completed by the family's name
 * ("llama.block_count"). Integers go to the field of struct shape at `field`. */
struct family_int {
    const char *key;
    int max; // 1 .. max is accepted
    enum family_key { KEY_REQUIRED, KEY_OPTIONAL } need;
    size_t field; // offsetof(struct shape, ...)
};
enum err family_ints(const struct source *s, const char *name, const struct family_int *keys, int n,
                     struct shape *shape);
/* Absent keys leave *out as it is. family_float refuses numbers outside [min, max] and NaN. */
enum err family_float(const struct source *s, const char *name, const char *key, double min,
                      double max, double *out);
enum err family_flag(const struct source *s, const char *name, const char *key, int *out);
/* Copies a string to buf, cut off at its end; an absent key leaves buf as it is. */
enum err family_str(const struct source *s, const char *name, const char *key, char *buf,
                    int64_t buf_bytes);
/* Records "PATH: KEY: WHAT" and returns ERR_INPUT. */
enum err family_fail(const struct source *s, const char *name, const char *key, const char *fmt,
                     ...) __attribute__((format(printf, 4, 5)));

/* Head sizes shared by all: head_dim = dim / n_heads when not set, n_kv_heads = n_heads when not
 * set, divisibility. The keys are for messages. */
enum err family_heads(const struct source *s, const char *name, struct shape *shape,
                      const char *key_dim, const char *key_heads, const char *key_kv_heads,
                      const char *key_head_dim);
/* Sets m->roles: required ones, and of the optional ones those that a file without a word on biases
 * holds in its first layer. */
void family_roles_by_presence(struct family_model *m, const struct source *s);
/* ROLE_BIT()s of the roles that the shape requires, and of the optional ones those in `optional`.
 */
uint32_t family_roles(const struct shape *s, uint32_t optional);
/* Chooses m->prefix among n: the first under which the embedding is found. */
enum err family_prefix(struct family_model *m, const struct source *s, const char *const *prefixes,
                       int n);
/* Fills shape->rope_inv_freq for rope_dim: no scaling. */
void family_inv_freq(struct shape *shape, double theta);
/* Decides m->tied. `flag`: 1, 0, or -1 when the file does not say: then tied iff there is no head.
 */
void family_tie(struct family_model *m, const struct source *s, int flag);

#endif
