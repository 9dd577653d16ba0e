/* engine/model/families/family_minimax_m2.c - minimax_m2: mixtral with logistic scores and a bias
 * for the choice, RMS norms over all of q and all of k, and RoPE over a part of a head.
 *
 * Owns: minimax_m2's tensor names. Note: config.json gives the rotated part as rotary_dim. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_QK_NORM

static const struct family_names names = {
    "layers.",
    {LAYER, [ROLE_ROUTER] = "block_sparse_moe.gate.weight",
     [ROLE_CHOICE_B] = "block_sparse_moe.e_score_correction_bias",
     [ROLE_GATE] = "block_sparse_moe.experts.%d.w1.weight",
     [ROLE_UP] = "block_sparse_moe.experts.%d.w3.weight",
     [ROLE_DOWN] = "block_sparse_moe.experts.%d.w2.weight"}};
static const struct family_names names_all = {
    "layers.", {LAYER, HF_ROUTER, [ROLE_CHOICE_B] = "mlp.e_score_correction_bias", HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O,
                                                GGUF_QK_NORM, GGUF_ROUTER, GGUF_CHOICE_BIAS,
                                                GGUF_ALL_EXPERTS}};

enum err family_minimax_m2_read(struct family_model *m, const struct source *s, const char *name)
{
    int64_t head_dim = 128, rotated = 0;
    int found = 0;
    if (s->kind == SOURCE_HF) {
        TRY(source_int(s, "head_dim", 1, 2 * SHAPE_ROPE_MAX, &head_dim, &found));
        TRY(source_int(s, "rotary_dim", 1, head_dim, &rotated, &found));
    }
    m->shape.head_dim = (int)head_dim;
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_WHOLE;
    return family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names,
                                 .gguf = &names_gguf,
                                 .hf_experts = &names_all,
                                 .gguf_experts = &names_gguf,
                                 .experts_key = "num_local_experts",
                                 .route_alone = 1,
                                 .router = ROUTER_LOGISTIC | ROUTER_BIAS,
                                 .theta = 5e6,
                                 .partial = (double)rotated / (double)head_dim,
                                 .tied = 0,
                                 .unpaired = 1});
}
