/* engine/model/families/family_mistral3.c - ministral3: mistral with queries that grow with their
 * position; mistral3: the text part (mistral, ministral3 or mistral4) of a model with a vision
 * tower.
 *
 * Owns: the keys of that growth; where mistral3 has its text part. Note: GGUF files of both are
 * "mistral3", with or without the growth. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#include <string.h>

#define BETA       0.1
#define ORIGINAL   16384 // context before RoPE is stretched
#define PERIOD_MAX (1 << 27)
#define TEXT       "text_config"

/* The head's name in published files, and as transformers 5 writes it. */
#define LAYER HF_EMBED, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_GATED_MLP
static const struct family_names names_hf[] = {
    {"layers.", {LAYER, [ROLE_HEAD] = "language_model.lm_head.weight"}},
    {"layers.", {LAYER, HF_HEAD}}};

/* Of ministral3 without RoPE's parameters. */
static const struct rope usual_rope = {.kind = ROPE_YARN,
                                       .theta = 1e6,
                                       .partial = 1,
                                       .factor = 16,
                                       .original = ORIGINAL,
                                       .beta_fast = 32,
                                       .beta_slow = 1,
                                       .mscale = 1,
                                       .mscale_all_dim = 1,
                                       .truncate = 1};

enum err family_growth(const struct source *s, const char *name, struct shape *shape, int original)
{
    static const struct {
        const char *beta, *period;
    } keys[] = {
        {".attention.temperature_scale", ".rope.scaling.original_context_length"},
        {".attention.temperature_scale", ".attention.temperature_length"},
        {"rope_scaling.llama_4_scaling_beta", "rope_scaling.original_max_position_embeddings"},
        {"rope_parameters.llama_4_scaling_beta",
         "rope_parameters.original_max_position_embeddings"}};
    double ignored, beta = BETA;
    int64_t period = original;
    int old = 0, new = 0, found = 0;
    source_weigh(s, "rope_scaling", &ignored, &old);
    source_weigh(s, "rope_parameters", &ignored, &new);
    if (s->kind == SOURCE_GGUF || old || new) {
        beta = s->kind == SOURCE_GGUF ? (double)shape->query_beta : -1;
        period = 0;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        TRY(family_float(s, name, keys[i].beta, 0, 1e3, &beta));
        TRY(family_one_int(s, name, keys[i].period, 1, PERIOD_MAX, &period, &found));
    }
    if (beta < 0 || (beta > 0 && period == 0))
        return family_fail(s, "", "rope_parameters", "%s: missing",
                           beta < 0 ? "llama_4_scaling_beta" : "original_max_position_embeddings");
    shape->query_beta = (float)beta;
    shape->query_period = beta > 0 ? (int)period : 0;
    return OK;
}

static enum err read_text(struct family_model *m, const struct source *s, const char *name,
                          const char *const prefixes[2], int grows)
{
    const int old_head = source_find(s, names_hf[0].roles[ROLE_HEAD]) != NULL;
    m->shape.gated = 1;
    m->shape.norm_eps = grows ? 1e-5f : 1e-6f;
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names_hf[!old_head],
                                                     .rope = grows ? &usual_rope : NULL,
                                                     .tied = -1,
                                                     .windows = WINDOWS_HAVE,
                                                     .window = grows ? 0 : FAMILY_WINDOW,
                                                     .prefixes = {prefixes[0], prefixes[1]}}));
    return grows ? family_growth(s, name, &m->shape, ORIGINAL) : OK;
}

enum err family_ministral3_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"model.", ""};
    return read_text(m, s, name, prefixes, 1);
}

enum err family_mistral3_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"language_model.model.", "model.language_model."};
    struct source text = *s;
    char type[64] = "mistral";
    if (s->kind == SOURCE_GGUF)
        return read_text(m, s, name, prefixes, 1);
    text.section = TEXT;
    TRY(family_str(&text, name, "model_type", type, sizeof type));
    const int latent = strcmp(type, "mistral4") == 0;
    if (strcmp(type, "mistral") != 0 && strcmp(type, "ministral3") != 0 && !latent)
        return family_fail(&text, name, "model_type", "unsupported: %s", type);
    TRY(family_check_keys(&text, latent ? type : name, name));
    if (latent)
        return family_mistral4_text(m, &text, name, prefixes);
    return read_text(m, &text, name, prefixes, strcmp(type, "ministral3") == 0);
}
