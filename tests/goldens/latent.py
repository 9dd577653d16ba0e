"""Latent attention (MLA) in families.py's checkpoints: configurations, and how GGUF files hold the matrices of heads.

Refuses: torch, transformers.
"""

import gguf

FAMILIES = ("deepseek_v3", "glm4_moe_lite", "deepseek_v2", "mistral4")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
GROWING = {**YARN, "rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def sizes(latent, turned, key, value, query):
    return {"kv_lora_rank": latent, "qk_rope_head_dim": turned, "qk_nope_head_dim": key, "v_head_dim": value, "q_lora_rank": query}


def specs(common):
    def deepseek(dim, heads, ffn, layers, **more):
        return common("deepseek_v3", dim, heads, heads, ffn, layers, hidden_act="silu", rms_norm_eps=1e-6, **more)

    def lite(dim, heads, ffn, layers, **more):
        return common("glm4_moe_lite", dim, heads, heads, ffn, layers, hidden_act="silu", rms_norm_eps=1e-5, n_group=1, topk_group=1, **more)

    def second(dim, heads, ffn, layers, **more):
        return common("deepseek_v2", dim, heads, heads, ffn, layers, hidden_act="silu", rms_norm_eps=1e-6, **{"topk_method": "greedy", **more})

    def mistral(dim, heads, ffn, layers, **more):
        return common("mistral4", dim, heads, heads, ffn, layers, hidden_act="silu", rms_norm_eps=1e-6, n_group=1, topk_group=1, **more)

    return {
        "deepseek_v3-plain": deepseek(128, 4, 192, 3, **sizes(64, 16, 32, 32, 48), rope_theta=10000.0, rope_scaling=None,
                                      moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
                                      n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                                      first_k_dense_replace=1, num_nextn_predict_layers=0),
        # groups of experts, two layers without; queries of x itself; scores that grow with the context
        "deepseek_v3-yarn": deepseek(96, 3, 160, 4, **sizes(32, 32, 24, 64, None), rope_theta=10000.0,
                                     rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, moe_intermediate_size=32,
                                     n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2, n_group=4, topk_group=2,
                                     norm_topk_prob=False, routed_scaling_factor=0.5, first_k_dense_replace=2),
        # the largest head; RoPE of halves; cosines that grow, too; a norm of queries beside the rest's
        "deepseek_v3-wide-fused": deepseek(64, 2, 128, 2, **sizes(512, 64, 48, 32, 32), rope_interleave=False,
                                           rope_parameters={**YARN, "rope_theta": 50000.0, "mscale": 0.7, "mscale_all_dim": 1.2},
                                           moe_intermediate_size=96, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
                                           n_group=3, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.25,
                                           first_k_dense_replace=0, tie_word_embeddings=True),
        "glm4_moe_lite-plain": lite(128, 4, 192, 3, **sizes(96, 32, 48, 64, 64), rope_parameters={**DEFAULT, "rope_theta": 1000000.0},
                                    moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
                                    norm_topk_prob=True, routed_scaling_factor=1.8),
        "glm4_moe_lite-types": lite(96, 3, 160, 4, **sizes(64, 8, 24, 32, None), rope_theta=10000.0, moe_intermediate_size=32,
                                    n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, norm_topk_prob=False,
                                    routed_scaling_factor=1.0, mlp_layer_types=["sparse", "dense", "sparse", "dense"]),
        # groups, and weights that sum up to 1, are what transformers leaves out of account
        "deepseek_v2-plain": second(96, 3, 160, 3, **sizes(64, 16, 32, 32, None), rope_theta=10000.0, moe_intermediate_size=32,
                                    n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, n_group=1, topk_group=1,
                                    norm_topk_prob=False, routed_scaling_factor=1.5, first_k_dense_replace=1),
        "deepseek_v2-yarn": second(128, 4, 128, 2, **sizes(32, 16, 16, 64, 40), moe_intermediate_size=64, n_routed_experts=6,
                                   num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1, norm_topk_prob=True,
                                   routed_scaling_factor=1.0, first_k_dense_replace=0, tie_word_embeddings=True,
                                   rope_parameters={**YARN, "rope_theta": 10000.0, "mscale": 0.707, "mscale_all_dim": 0.707}),
        # queries grow from position 64 on
        "mistral4-plain": mistral(96, 3, 160, 3, **sizes(32, 16, 24, 32, 48), rope_parameters={**GROWING, "partial_rotary_factor": 0.4},
                                  moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                                  norm_topk_prob=True, routed_scaling_factor=1.0, first_k_dense_replace=1),
        "mistral4-scored": mistral(64, 2, 128, 2, **sizes(64, 32, 32, 64, None), moe_intermediate_size=64, n_routed_experts=6,
                                   num_experts_per_tok=3, n_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=2.0,
                                   first_k_dense_replace=0, rope_parameters={**GROWING, "llama_4_scaling_beta": 0.5, "factor": 2.0,
                                                                             "partial_rotary_factor": 0.5}),
    }


PUBLISHED_BETA = 0.1
OLD_GGUF = ("deepseek_v2",)  # in one matrix a layer, as before 2025
ARCHITECTURES = {**{kind: "deepseek2" for kind in FAMILIES}, "mistral4": "mistral4"}


def gguf_names(c, tensors):
    """kv_b_proj as GGUF files hold it: of every head a matrix from queries to the latent, and one from there to outputs. Of
    experts that one tensor has, gate stays above up, as llama.cpp's converter leaves mistral4."""
    out = {}
    if c["model_type"] in OLD_GGUF:
        return tensors
    for name, x in tensors.items():
        if name.endswith(".experts.gate_up_proj") or name.endswith(".experts.down_proj"):
            out[f"blk.{name.split('.')[2]}.ffn_{name.split('.')[-1].removesuffix('_proj')}_exps.weight"] = x
            continue
        if not name.endswith("kv_b_proj.weight"):
            out[name] = x
            continue
        x = x.reshape(c["num_attention_heads"], -1, c["kv_lora_rank"])
        keys = c["qk_nope_head_dim"]
        out[name.replace("kv_b_proj", "k_b_proj")] = x[:, :keys].swapaxes(1, 2)
        out[name.replace("kv_b_proj", "v_b_proj")] = x[:, keys:]
    return out


def gguf_keys(w, c):
    turned, rope = c["qk_rope_head_dim"], c.get("rope_parameters") or c.get("rope_scaling") or {}
    heads = c["qk_nope_head_dim"] + turned, c["v_head_dim"]
    if c["model_type"] in OLD_GGUF:
        w.add_head_count_kv(c["num_attention_heads"])
        w.add_key_length(heads[0])
        w.add_value_length(heads[1])
    else:
        w.add_head_count_kv(1)
        w.add_key_length(c["kv_lora_rank"] + turned)
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(heads[0])
        w.add_value_length_mla(heads[1])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    if c["q_lora_rank"]:
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_rope_dimension_count(turned)
    w.add_rope_freq_base(rope.get("rope_theta", c.get("rope_theta", 10000.0)))
    if rope.get("rope_type") == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if rope.get("llama_4_scaling_beta", PUBLISHED_BETA) != PUBLISHED_BETA:  # which llama.cpp's converter leaves out
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        w.add_attn_temperature_length(rope["original_max_position_embeddings"])


FUSED = ("deepseek_v3-wide-fused",)
NO_GGUF = {"deepseek_v3-wide-fused": "mscale, rope_interleave", "glm4_moe_lite-types": "mlp_layer_types", "deepseek_v2-yarn": "groups"}
