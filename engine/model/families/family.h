/* engine/model/families/family.h - model families: metadata become a shape, tensor names become
 * roles.
 *
 * Owns: the one table of families, and the checks common to all. Refuses: weights. A new family is
 * one file family_x.c and one line of FAMILIES; a new variant is a field of struct shape that
 * engine/line/layer_*.c read. */
#ifndef ENGINE_MODEL_FAMILIES_FAMILY_H
#define ENGINE_MODEL_FAMILIES_FAMILY_H

#include "engine/model/containers/source.h"
#include "engine/model/families/role.h"

/* Tensor names by role; NULL: the family has no such tensor. Decoder roles are completed to PREFIX
 * + layer + N + "." + name, others to PREFIX + name; the head has no prefix. */
struct family_names {
    const char *layer; // "layers." or "blk."
    const char *roles[N_ROLES];
};

/* The rows of a role in a tensor that holds several roles (fused projections): row r of the role is
 * row first + r / group * stride + r % group of the tensor. */
struct family_cut {
    int64_t rows;  // of the tensor; 0: the whole tensor is the role's
    int64_t first; // the tensor's row that is row 0 of the role
    int64_t group, stride;
};

#define FAMILY_EXPERT_ROWS 32 // an expert's width in a pack is a multiple of this: zeros are added

/* Result of reading a family's metadata. */
struct family_model {
    struct shape shape;
    int file_ffn;        // shape.ffn_dim without the zeros that fill an expert's last rows
    role_set roles;      // ROLE_BIT()s; ROLE_HEAD always
    int tied;            // 1: the head is the embedding
    int paired_rows;     // 1: rows of q and k are in the order (2i, 2i + 1): GGUF llama; cohere and
                         // ernie; of latent attention those that are rotated
    role_set transposed; // ROLE_BIT()s of matrices stored as [k, n]
    role_set plus_one;   // ROLE_BIT()s of vectors stored minus 1
    role_set logs;       // ROLE_BIT()s of vectors of numbers < 0 stored as log(-x)
    int fused;             // 1: a GGUF file that has experts' gate above up, in one tensor
    float factor[N_ROLES]; // on a vector, beyond what is stored; 0: none. Those of ROLE_STATE_V, K
                           // and Q are on the weights that the convolution multiplies these by
    struct family_cut cut[N_ROLES];
    /* Files in which an MLP is a layer by itself (nemotron_h): how many layers the file has, and
     * which of them are a layer's attention and MLP; 0: those of the shape. */
    int n_file_layers;
    int16_t file_layer[SHAPE_LAYERS_MAX][2];
    const struct family_names *names;
    const char *prefix;
};

/* 1: the role's cut is one of inputs: a matrix of each head, stored as [k, n]. */
static inline int family_cuts_inputs(const struct family_model *m, enum tensor_role role)
{
    return role_is_heads(role) && (m->transposed & ROLE_BIT(role)) != 0;
}

/* Tensors of a file that the model does not use, such as a vision tower. Parts are separated by
 * spaces. */
struct family_unused {
    int64_t n_tensors, n_bytes;
    char parts[200]; // first members of their names, or "mtp" (layers that predict further tokens)
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
    X("hunyuan_dense", "hunyuan-dense", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM",           \
      family_hunyuan_read)                                                                         \
    X("hunyuan_moe", "hunyuan-moe", "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM",                   \
      family_hunyuan_read)                                                                         \
    X("gpt_oss", "gpt-oss", "gpt_oss", "GptOssForCausalLM", family_gpt_oss_read)                   \
    X("gemma", "gemma", "gemma", "GemmaForCausalLM", family_gemma_read)                            \
    X("gemma2", "gemma2", "gemma2", "Gemma2ForCausalLM", family_gemma2_read)                       \
    X("gemma3", "gemma3", "gemma3_text", "Gemma3ForCausalLM", family_gemma3_read)                  \
    X("gemma3", "", "gemma3", "Gemma3ForConditionalGeneration", family_gemma3_vision_read)         \
    X("gemma4", "gemma4", "gemma4_text", "Gemma4ForCausalLM", family_gemma4_read)                  \
    X("gemma4", "", "gemma4", "Gemma4ForConditionalGeneration", family_gemma4_vision_read)         \
    X("gemma4", "", "gemma4_unified_text", "Gemma4UnifiedForCausalLM", family_gemma4_read)         \
    X("gemma4", "", "gemma4_unified", "Gemma4UnifiedForConditionalGeneration",                     \
      family_gemma4_vision_read)                                                                   \
    X("phi3", "phi3", "phi3", "Phi3ForCausalLM", family_phi3_read)                                 \
    X("phimoe", "phimoe", "phimoe", "PhimoeForCausalLM", family_phimoe_read)                       \
    X("gpt_neox", "gptneox", "gpt_neox", "GPTNeoXForCausalLM", family_gpt_neox_read)               \
    X("gpt2", "gpt2", "gpt2", "GPT2LMHeadModel", family_gpt2_read)                                 \
    X("stablelm", "stablelm", "stablelm", "StableLmForCausalLM", family_stablelm_read)             \
    X("olmo2", "olmo2", "olmo2", "Olmo2ForCausalLM", family_olmo2_read)                            \
    X("olmo3", "", "olmo3", "Olmo3ForCausalLM", family_olmo3_read)                                 \
    X("granite", "granite", "granite", "GraniteForCausalLM", family_granite_read)                  \
    X("granitemoe", "granitemoe", "granitemoe", "GraniteMoeForCausalLM", family_granite_moe_read)  \
    X("granitemoe", "", "granitemoeshared", "GraniteMoeSharedForCausalLM",                         \
      family_granite_moe_read)                                                                     \
    X("glm4_moe", "glm4moe", "glm4_moe", "Glm4MoeForCausalLM", family_glm4_moe_read)               \
    X("solar_open", "", "solar_open", "SolarOpenForCausalLM", family_glm4_moe_read)                \
    X("deepseek_v3", "deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM", family_deepseek_v3_read) \
    X("deepseek_v2", "", "deepseek_v2", "DeepseekV2ForCausalLM", family_deepseek_v2_read)          \
    X("mistral4", "mistral4", "mistral4", "Mistral4ForCausalLM", family_mistral4_read)             \
    X("glm4_moe_lite", "", "glm4_moe_lite", "Glm4MoeLiteForCausalLM", family_glm4_moe_lite_read)   \
    X("dots1", "dots1", "dots1", "Dots1ForCausalLM", family_dots1_read)                            \
    X("minimax_m2", "minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM", family_minimax_m2_read)    \
    X("ernie4_5_moe", "ernie4_5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM",                   \
      family_ernie4_5_moe_read)                                                                    \
    X("olmoe", "olmoe", "olmoe", "OlmoeForCausalLM", family_olmoe_read)                            \
    X("smollm3", "smollm3", "smollm3", "SmolLM3ForCausalLM", family_smollm3_read)                  \
    X("cohere", "command-r", "cohere", "CohereForCausalLM", family_cohere_read)                    \
    X("cohere2", "cohere2", "cohere2", "Cohere2ForCausalLM", family_cohere_read)                   \
    X("ministral3", "", "ministral3", "Ministral3ForCausalLM", family_ministral3_read)             \
    X("mistral3", "mistral3", "mistral3", "Mistral3ForConditionalGeneration",                      \
      family_mistral3_read)                                                                        \
    X("apertus", "apertus", "apertus", "ApertusForCausalLM", family_apertus_read)                  \
    X("exaone4", "exaone4", "exaone4", "Exaone4ForCausalLM", family_exaone4_read)                  \
    X("seed_oss", "seed_oss", "seed_oss", "SeedOssForCausalLM", family_seed_oss_read)              \
    X("qwen3_next", "qwen3next", "qwen3_next", "Qwen3NextForCausalLM", family_qwen3_next_read)     \
    X("qwen3_5", "qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", family_qwen3_next_read)           \
    X("qwen3_5", "", "qwen3_5", "Qwen3_5ForConditionalGeneration", family_qwen3_5_vision_read)     \
    X("qwen3_5_moe", "qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM",                     \
      family_qwen3_next_read)                                                                      \
    X("qwen3_5_moe", "", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",                      \
      family_qwen3_5_vision_read)                                                                  \
    X("lfm2", "lfm2", "lfm2", "Lfm2ForCausalLM", family_lfm2_read)                                 \
    X("lfm2_moe", "lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM", family_lfm2_read)                   \
    X("granitehybrid", "granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM",         \
      family_granite_hybrid_read)                                                                  \
    X("falcon_h1", "falcon-h1", "falcon_h1", "FalconH1ForCausalLM", family_falcon_h1_read)         \
    X("nemotron_h", "nemotron_h", "nemotron_h", "NemotronHForCausalLM", family_nemotron_h_read)    \
    X("nemotron_h", "nemotron_h_moe", "nemotron_h", "NemotronHForCausalLM",                        \
      family_nemotron_h_read)                                                                      \
    X("opt", "opt", "opt", "OPTForCausalLM", family_opt_read)

/* Finds the family, reads the shape, and checks that every tensor exists with its dimensions.
 * ERR_INPUT: "PATH: KEY or tensor: WHAT". Nothing to close. */
enum err family_read(struct family_model *m, const struct source *s);
void family_unused(const struct family_model *m, const struct source *s, struct family_unused *u);
/* The tensor of a role; `layer` matters for decoder roles only. NULL: none. */
const struct source_tensor *family_tensor(const struct family_model *m, const struct source *s,
                                          enum tensor_role role, int layer);
/* For roles stored in several tensors ("%d" in the name; vectors by head, matrices by expert):
 * their number, and one of them. */
int family_parts(const struct family_model *m, enum tensor_role role);
const struct source_tensor *family_part(const struct family_model *m, const struct source *s,
                                        enum tensor_role role, int layer, int part);
/* role_dims() of what the file has, which lacks the zeros in experts. */
void family_file_dims(const struct family_model *m, enum tensor_role role, int layer, int *n,
                      int *k);
/* Row `row` of the role in a pack, without those zeros; -1: one of them. */
int family_file_row(const struct family_model *m, enum tensor_role role, int row);
/* The file's row (or bias element) that is row `row` of family_file_dims(): undoes paired_rows and
 * cuts. */
int64_t family_source_row(const struct family_model *m, enum tensor_role role, int64_t row);

/* Readers fill m->shape, roles, names, prefix; `name` is the family's. For the table only. */
#define FAMILY_DECLARE(name, gguf, hf, hf_class, read)                                             \
    enum err read(struct family_model *m, const struct source *s, const char *family);
FAMILIES(FAMILY_DECLARE)
#undef FAMILY_DECLARE

/* Keys of config.json that give layers a window, as the families' classes in transformers read
 * them: a key that the class ignores is ignored here too. */
enum {
    WINDOWS_HAVE = 1,   // sliding_window counts
    WINDOWS_ASKED = 2,  // only if use_sliding_window is true
    WINDOWS_LISTED = 4, // layer_types lists the layers
    WINDOWS_LATE = 8,   // without a list: layers from max_window_layers on
    WINDOWS_EVERY = 16, // sliding_window_pattern may replace the dialect's `every`
    WINDOWS_SURE = 32,  // `window` is the default of GGUF files, too
};
#define FAMILY_WINDOW 4096 // default of most classes without sliding_window

/* How a family's router chooses experts, apart from a softmax; bits (route_args of kernels/ops.h).
 */
enum {
    ROUTER_LOGISTIC = 1, // scores are logistics
    ROUTER_BIAS = 2,     // a bias for the choice
    ROUTER_KEYS = 4,     // the file has groups, the factor on weights, whether they sum up to it
};

/* A family's differences from llama in keys and names; zeros and NULL: as llama. Set other
 * differences in m->shape before the call. */
struct family_dialect {
    const struct family_names *hf, *gguf;
    /* Names if one tensor has all experts' matrices (in Hugging Face files gate above up); used if
     * the first of them exists. Else each expert has tensors of its own. */
    const struct family_names *hf_experts, *gguf_experts;
    const char *experts_key, *expert_ffn_key; // of config.json; NULL: no experts, intermediate_size
    const char *used_key; // of config.json, experts of a token; NULL: "num_experts_per_tok"
    /* The shared expert: the key of its width, or of how many experts of the usual width it is;
     * both NULL: none. */
    const char *shared_ffn_key, *shared_count_key;
    const char *first_dense_key;         // of config.json, number of first layers without experts
    int route_alone;                     // default if config.json lacks it
    unsigned router;                     // ROUTER_...
    int route_all;                       // 1: GGUF files mean a softmax over all experts
    int sparse_layers;                   // 1: config.json may list the layers with experts
    const char *act_key, *act;           // key in config.json, default; NULL: "hidden_act", "silu"
    const char *eps_key;                 // NULL: "rms_norm_eps"
    const char *theta_key, *partial_key; // NULL: "rope_theta", "partial_rotary_factor"
    double theta;                        // default; 0: 10,000
    const struct rope *rope;             // if config.json describes none; NULL: plain
    double partial;                      // default; 0: 1
    role_set biases;                     // optional roles whose presence config.json need not state
    int attention_bias;                  // default if config.json lacks it
    const char *out_bias_key;            // says it of attention's output; NULL: "attention_bias"
    int tied;                            // default if config.json lacks it: 1, 0; -1: by presence
    int yarn_is_long;                    // 1: rope type "yarn" means longrope
    int alpha;                           // 1: rope type "dynamic" may have an alpha
    int yarn_smooth;                     // 1: ramps of GGUF files do not end at whole pairs
    unsigned windows;        // WINDOWS_...: keys that config.json may have; 0: no window
    int window;              // default without sliding_window; 0: no window
    int every;               // without a list: each every-th layer has no window; 0: all have one
    int unpaired;            // 1: GGUF's rows of q and k are already in sluice's order
    int latent;              // 1: latent attention
    int states;              // 1: GGUF files list KV heads by layer
    const char *own_keys;    // llama's keys in GGUF that the family has read itself; NULL: none
    int mlp_types;           // 1: config.json may list the layers with experts by name
    int n_layers;            // number of layers; 0: config.json's num_hidden_layers
    const char *prefixes[3]; // of tensors in safetensors; all NULL: "model.", ""
};
enum err family_read_dialect(struct family_model *m, const struct source *s, const char *name,
                             const struct family_dialect *d);
/* Cuts for one tensor that holds the rows of q, then k, then v. */
void family_cut_qkv(struct family_model *m);
/* Cuts for matrices that hold gate above up: each expert's; the shared expert's. */
void family_cut_experts(struct family_model *m);
void family_cut_shared(struct family_model *m);
/* Latent attention: its sizes, which become those of heads; then the factor on scores; then, once
 * names are known, where a file's rows are. */
enum err latent_sizes(const struct source *s, const char *name, struct shape *shape);
struct rope;
enum err latent_order(struct family_model *m, const struct source *s, const struct rope *rope);
void latent_rope_gguf(struct rope *rope);
/* Queries that grow with their position; `original`: the period if config.json describes no RoPE.
 * What GGUF files do not say stays as it is in the shape. */
enum err family_growth(const struct source *s, const char *name, struct shape *shape, int original);
/* mistral4, alone or as the text part of mistral3. */
enum err family_mistral4_text(struct family_model *m, const struct source *s, const char *name,
                              const char *const prefixes[2]);
/* Row states, in files whose keys for k heads, v heads, k dim, v dim and taps are `keys`; the shape
 * has the defaults. Then which layers have one: by a list under `key` of names, each one of the
 * words in `with` or `without`; found 0: there is no list. */
enum { STATE_KEY_K_HEADS, STATE_KEY_V_HEADS, STATE_KEY_K_DIM, STATE_KEY_V_DIM, STATE_KEY_TAPS };
enum err state_sizes(const struct source *s, struct shape *shape, const char *const keys[5]);
/* The sizes in GGUF files, which must give all of them. */
enum err state_sizes_gguf(const struct source *s, const char *name, struct shape *shape);
enum err state_layers(const struct source *s, const char *key, const char *with,
                      const char *without, struct shape *shape, int *found);
/* In GGUF files the layers without KV heads have one; sets n_kv_heads, too. */
enum err state_layers_gguf(const struct source *s, const char *name, struct shape *shape);
/* ERR_INPUT if no layer, or each one, has a state. */
enum err state_layers_end(const struct source *s, const char *key, const struct shape *shape);
/* Mamba-2's in_proj: rows of z, v, k, q and the time step. `logs` 1: decays are logarithms. */
void state_cut_mamba(struct family_model *m, int logs);
/* 1: `word` is one of the words, which are separated by spaces. */
int family_has_word(const char *words, const char *word);
/* granite's four factors. */
enum err family_granite_factors(struct family_model *m, const struct source *s, const char *name);

/* For readers. A key that starts with a dot is prefixed by the family's name ("llama.block_count").
 * Integers are written to the field of struct shape at `field`. */
struct family_int {
    const char *key;
    int max; // range: 1 .. max
    // required unless the field is nonzero before, i.e. has the family's default
    enum family_key { KEY_REQUIRED, KEY_OPTIONAL } need;
    size_t field; // offsetof(struct shape, ...)
};
/* One of them, or of a list of one number a layer, which must all be the same. */
enum err family_one_int(const struct source *s, const char *name, const char *key, int64_t min,
                        int64_t max, int64_t *out, int *found);
enum err family_ints(const struct source *s, const char *name, const struct family_int *keys, int n,
                     struct shape *shape);
/* A number for each of n layers, 0 or more; if it `may_repeat`, one number may count for all.
 * Another number of entries is an error. */
#define FAMILY_LIST_MAX (2 * SHAPE_LAYERS_MAX)
enum err family_int_list(const struct source *s, const char *name, const char *key, int n,
                         int may_repeat, int64_t numbers[FAMILY_LIST_MAX]);
/* Absent keys leave *out unchanged. family_float refuses numbers outside [min, max] and NaN. */
enum err family_float(const struct source *s, const char *name, const char *key, double min,
                      double max, double *out);
enum err family_flag(const struct source *s, const char *name, const char *key, int *out);
/* Refuses keys that other families compute with; family_read checks the file's top level. */
enum err family_check_keys(const struct source *s, const char *family, const char *name);
/* The number that a tensor of one is; without the tensor *out stays. */
enum err family_number(const struct source *s, const char *tensor, double *out);
/* Copies a string to buf, truncated; an absent key leaves buf unchanged. */
enum err family_str(const struct source *s, const char *name, const char *key, char *buf,
                    int64_t buf_bytes);
/* Records "PATH: KEY: WHAT" and returns ERR_INPUT. */
enum err family_fail(const struct source *s, const char *name, const char *key, const char *fmt,
                     ...) __attribute__((format(printf, 4, 5)));

/* Head sizes: defaults head_dim = dim / n_heads and n_kv_heads = n_heads, and checks divisibility.
 * The keys are for messages. */
enum err family_heads(const struct source *s, const char *name, struct shape *shape,
                      const char *key_dim, const char *key_heads, const char *key_kv_heads,
                      const char *key_head_dim);
/* Sets m->roles: the required ones, and, for files that do not mention biases, the optional ones
 * present in their first layer. */
void family_roles_by_presence(struct family_model *m, const struct source *s);
/* ROLE_BIT()s of the roles that the shape requires, plus the optional ones in `optional`. */
role_set family_roles(const struct shape *s, role_set optional);
/* Sets m->prefix to the first of n prefixes with which the embedding is found. */
enum err family_prefix(struct family_model *m, const struct source *s, const char *const *prefixes,
                       int n);
/* An activation by its name in config.json; callers handle family-specific meanings before. */
enum err family_act(const struct source *s, const char *name, const char *key, const char *act,
                    int *out);
/* gemma2's defaults apart from its sizes; for dummies too. */
void family_gemma2_shape(struct shape *shape);
/* The same for gemma4, whose sizes of wide layers may be set. */
void family_gemma4_shape(struct shape *shape);
/* The same for gpt-oss. */
void family_gpt_oss_shape(struct shape *shape);
/* The same for qwen3_next and its kin: states as published in all but every fourth layer; sizes
 * that are set stay. */
void family_qwen3_next_shape(struct shape *shape);
/* The same for falcon_h1: layers become pairs (shape.beside_scale); sizes that are set stay. */
void family_falcon_h1_shape(struct shape *shape);
/* The same for nemotron_h; sizes that are set stay. */
void family_nemotron_h_shape(struct shape *shape);
/* Layers of a nemotron_h file, in whose pattern M is Mamba-2, * attention, - an MLP and E experts:
 * an MLP, or experts, becomes that of the layer before. Returns the number of layers; -1 - i: layer
 * i of the file is of no kind, an MLP behind no attention or Mamba-2, or one too many. */
int family_nemotron_h_layers(struct shape *shape, const char *pattern, int16_t (*file)[2]);
/* Gives all layers a window but each every-th (0: all of them). */
void family_windows(struct shape *shape, int window, int every);
/* Removes windows at least as long as the context, which mask nothing. Until then a window tells
 * the kind of its layer. */
void family_windows_end(struct shape *shape);
/* Defaults of all families: factors 1, no RoPE scaling. */
void family_defaults(struct shape *shape);
/* Sets m->tied. `flag`: 1, 0, or -1 if the file does not say: tied if there is no head tensor. */
void family_tie(struct family_model *m, const struct source *s, int flag);

#endif
