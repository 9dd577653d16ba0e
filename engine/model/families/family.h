/* engine/model/families/family.h - model families: how metadata becomes a shape and names become
 * roles.
 *
 * Owns: the one table of families, and the checks that are the same for all. Refuses: weights.
 * A new family is one file family_x.c and one line of FAMILIES; a new variant is a field of struct
 * shape that engine/line/layer_*.c read. */
#ifndef ENGINE_MODEL_FAMILIES_FAMILY_H
#define ENGINE_MODEL_FAMILIES_FAMILY_H

#include "engine/model/containers/source.h"
#include "engine/model/families/role.h"

/* Names of tensors by role; NULL: the family has none. Decoder roles are completed to
 * PREFIX + layer + N + "." + name, the others to PREFIX + name; the head takes no prefix. */
struct family_names {
    const char *layer; // "layers." or "blk."
    const char *roles[N_ROLES];
};

/* Which rows of a tensor are a role's, where one tensor has several (fused projections): row r is
 * row first + r / group * stride + r % group of it. */
struct family_cut {
    int64_t rows;  // of the tensor; 0: all of it is the role's
    int64_t first; // where the role's row 0 stands
    int64_t group, stride;
};

/* What a family found in a source. */
struct family_model {
    struct shape shape;
    uint64_t roles;      // ROLE_BIT()s; ROLE_HEAD always
    int tied;            // 1: the head is the embedding
    int paired_rows;     // 1: rows of q and k stand in the order (2i, 2i + 1): GGUF llama
    uint64_t transposed; // ROLE_BIT()s of matrices that the file holds as [k, n]
    uint64_t plus_one;   // of vectors that the file holds less 1
    struct family_cut cut[N_ROLES];
    const struct family_names *names;
    const char *prefix;
};

/* Tensors of a file outside the model that the family reads, as a vision tower is. */
struct family_unused {
    int64_t n_tensors, n_bytes;
    char parts[200]; // their names' first members, a space between
};

/* name, GGUF architecture ("" none), Hugging Face model_type, HF class, reader */
#define FAMILIES(X)                                                                                \
    X("llama", "llama", "llama", "LlamaForCausalLM", family_llama_read)                            \
    X("mistral", "", "mistral", "MistralForCausalLM", family_llama_read)                           \
    X("qwen2", "qwen2", "qwen2", "Qwen2ForCausalLM", family_llama_read)                            \
    X("qwen3", "qwen3", "qwen3", "Qwen3ForCausalLM", family_qwen3_read)                            \
    X("mixtral", "", "mixtral", "MixtralForCausalLM", family_mixtral_read)                         \
    X("qwen2_moe", "qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", family_qwen2_moe_read)          \
    X("qwen3_moe", "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", family_qwen3_moe_read)          \
    X("gpt_oss", "gpt-oss", "gpt_oss", "GptOssForCausalLM", family_gpt_oss_read)                   \
    X("gemma", "gemma", "gemma", "GemmaForCausalLM", family_gemma_read)                            \
    X("gemma2", "gemma2", "gemma2", "Gemma2ForCausalLM", family_gemma2_read)                       \
    X("gemma3", "gemma3", "gemma3_text", "Gemma3ForCausalLM", family_gemma3_read)                  \
    X("gemma3", "", "gemma3", "Gemma3ForConditionalGeneration", family_gemma3_vision_read)         \
    X("phi3", "phi3", "phi3", "Phi3ForCausalLM", family_phi3_read)                                 \
    X("gpt_neox", "gptneox", "gpt_neox", "GPTNeoXForCausalLM", family_gpt_neox_read)               \
    X("gpt2", "gpt2", "gpt2", "GPT2LMHeadModel", family_gpt2_read)                                 \
    X("stablelm", "stablelm", "stablelm", "StableLmForCausalLM", family_stablelm_read)             \
    X("olmo2", "olmo2", "olmo2", "Olmo2ForCausalLM", family_olmo2_read)                            \
    X("granite", "granite", "granite", "GraniteForCausalLM", family_granite_read)                  \
    X("granitemoe", "granitemoe", "granitemoe", "GraniteMoeForCausalLM", family_granite_moe_read)  \
    X("granitemoe", "", "granitemoeshared", "GraniteMoeSharedForCausalLM",                         \
      family_granite_moe_read)                                                                     \
    X("smollm3", "smollm3", "smollm3", "SmolLM3ForCausalLM", family_smollm3_read)                  \
    X("opt", "opt", "opt", "OPTForCausalLM", family_opt_read)

/* Finds the family, reads the shape, and checks that every tensor is there and has its dimensions.
 * ERR_INPUT: "PATH: KEY or tensor: WHAT". Nothing to close. */
enum err family_read(struct family_model *m, const struct source *s);
void family_unused(const struct family_model *m, const struct source *s, struct family_unused *u);
/* The tensor of a role; `layer` counts for decoder roles. NULL when the source has none. */
const struct source_tensor *family_tensor(const struct family_model *m, const struct source *s,
                                          enum tensor_role role, int layer);
/* What the file holds in several tensors (a "%d" in their name), vectors by head and matrices by
 * expert: how many, and which. */
int family_parts(const struct family_model *m, enum tensor_role role);
const struct source_tensor *family_part(const struct family_model *m, const struct source *s,
                                        enum tensor_role role, int layer, int part);
/* Which row (or number of a bias) of the file is row `row` of the role: undoes paired_rows and
 * cuts. */
int64_t family_source_row(const struct family_model *m, enum tensor_role role, int64_t row);

/* Readers: `name` is the family's; fill m->shape, roles, names, prefix. Used by the table only. */
#define FAMILY_DECLARE(name, gguf, hf, hf_class, read)                                             \
    enum err read(struct family_model *m, const struct source *s, const char *family);
FAMILIES(FAMILY_DECLARE)
#undef FAMILY_DECLARE

/* Which keys of config.json give a layer a window. The rules are those of the families' classes in
 * transformers: a key that the class does not read changes nothing here either. */
enum {
    WINDOWS_HAVE = 1,   // sliding_window counts
    WINDOWS_ASKED = 2,  // only where use_sliding_window is true
    WINDOWS_LISTED = 4, // layer_types says in which layers
    WINDOWS_LATE = 8,   // without a list: in layers from max_window_layers on
};
#define FAMILY_WINDOW 4096 // of most classes, where config.json has no sliding_window

/* How a family differs from llama in its keys and names; zeros and NULL: as llama. What else it is
 * stands in m->shape before the call. */
struct family_dialect {
    const struct family_names *hf, *gguf;
    /* Where files hold all experts' matrices in one tensor, gate and up one below the other in
     * Hugging Face's; else each has its own. Taken when the first one's is there. */
    const struct family_names *hf_experts, *gguf_experts;
    const char *experts_key, *expert_ffn_key; // config.json's; NULL: no experts, intermediate_size
    const char *shared_ffn_key; // of the expert of all tokens, likewise; NULL: there is none
    int route_alone;            // where config.json does not say
    int route_all;              // 1: GGUF's files mean a softmax over all experts
    int sparse_layers;          // 1: config.json may say which layers have experts
    const char *act_key, *act;  // config.json's; "hidden_act", "silu"
    const char *eps_key;        // "rms_norm_eps"
    const char *theta_key, *partial_key; // "rope_theta", "partial_rotary_factor"
    double theta;                        // where the file does not say; 0: 10,000
    double partial;                      // likewise; 0: 1
    uint64_t biases;                     // optional roles that config.json need not name
    int attention_bias;                  // where config.json does not say
    int tied;                            // where config.json does not say: 1, 0; -1: by presence
    int yarn_is_long;                    // 1: a rope type "yarn" means longrope
    int yarn_smooth;                     // 1: GGUF's ramps are not cut to whole pairs
    unsigned windows;                    // WINDOWS_...: what config.json may say; 0: no window
    int window;                          // where config.json has no sliding_window; 0: no window
    int unpaired;                        // 1: GGUF's rows of q and k stand as we turn them
    const char *prefixes[3];             // of tensors in safetensors; "model.", ""
};
enum err family_read_dialect(struct family_model *m, const struct source *s, const char *name,
                             const struct family_dialect *d);
/* Rows of q, k and v one after the other in one tensor. */
void family_cut_qkv(struct family_model *m);
/* Rows of gate and up one below the other in each expert's matrix; in that of all tokens. */
void family_cut_experts(struct family_model *m);
void family_cut_shared(struct family_model *m);
/* granite's four factors. */
enum err family_granite_factors(struct family_model *m, const struct source *s, const char *name);

/* For readers. A key that starts with a dot is completed by the family's name
 * ("llama.block_count"). Integers go to the field of struct shape at `field`. */
struct family_int {
    const char *key;
    int max; // 1 .. max is accepted
    // required, unless the field has a number already: the family's own, where nobody says
    enum family_key { KEY_REQUIRED, KEY_OPTIONAL } need;
    size_t field; // offsetof(struct shape, ...)
};
enum err family_ints(const struct source *s, const char *name, const struct family_int *keys, int n,
                     struct shape *shape);
/* Absent keys leave *out as it is. family_float refuses numbers outside [min, max] and NaN. */
enum err family_float(const struct source *s, const char *name, const char *key, double min,
                      double max, double *out);
enum err family_flag(const struct source *s, const char *name, const char *key, int *out);
/* No key that other families compute with; family_read has seen to those of the whole file. */
enum err family_check_keys(const struct source *s, const char *family, const char *name);
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
uint64_t family_roles(const struct shape *s, uint64_t optional);
/* Chooses m->prefix among n: the first under which the embedding is found. */
enum err family_prefix(struct family_model *m, const struct source *s, const char *const *prefixes,
                       int n);
/* An activation by its name in config.json; what a name means to a family it has said before. */
enum err family_act(const struct source *s, const char *name, const char *key, const char *act,
                    int *out);
/* What gemma2 has besides its sizes, where no file says otherwise: for dummies, too. */
void family_gemma2_shape(struct shape *shape);
/* The same of gpt-oss. */
void family_gpt_oss_shape(struct shape *shape);
/* What a shape has before a family says anything: no factor, plain angles. */
void family_defaults(struct shape *shape);
/* Decides m->tied. `flag`: 1, 0, or -1 when the file does not say: then tied iff there is no head.
 */
void family_tie(struct family_model *m, const struct source *s, int flag);

#endif
