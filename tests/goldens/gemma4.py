"""Gemma 4's text models in families.py's checkpoints: layers with heads of two sizes, experts beside the MLP.

Owns: their configurations, GGUF files. Refuses: torch.
"""
import re

import numpy as np

FAMILIES = ("gemma4_text", "gemma4", "gemma4_moe")


def specs(common):
    def gemma(*shape, **more):
        return common("gemma4_text", *shape, **{"rms_norm_eps": 1e-6, "hidden_size_per_layer_input": 0, "tie_word_embeddings": True, **more})

    def vision(text):
        tower = {"model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 8,
                 "position_embedding_size": 16}
        ids = {f"{of}_token_id": 400 + i for i, of in enumerate(("image", "video", "audio", "boi", "eoi"))}  # in no row: they stand for images
        return {"model_type": "gemma4", "text_config": text, "vision_config": tower, "audio_config": None, "tie_word_embeddings": True, **ids}

    def ropes(theta, local, partial=0.25):
        return {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": partial, "rope_theta": theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": local}}

    def mixed(n, times):
        return ([*["sliding_attention"] * n, "full_attention"]) * times

    def inputs(n):
        return {"hidden_size_per_layer_input": n, "vocab_size_per_layer_input": common("gemma4_text", 1, 1, 1, 1, 1)["vocab_size"]}

    tied = {"attention_k_eq_v": True, "final_logit_softcapping": 3.0}
    experts = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 64}
    return {
        # as 31B: every sixth layer attends to all tokens
        "gemma4-dense": gemma(96, 4, 4, 160, 7, head_dim=32, global_head_dim=64, num_global_key_value_heads=1, sliding_window=24, **tied),
        # sizes that are no powers of two; values of their own, so that KV heads are alike; the last layer has no window, though listed
        "gemma4-odd": gemma(72, 6, 3, 88, 4, head_dim=24, global_head_dim=40, num_global_key_value_heads=1, sliding_window=33,
                            layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
                            rope_parameters=ropes(50000.0, 20000.0, 0.6), attention_bias=True, tie_word_embeddings=False),
        "gemma4-vision": vision(gemma(64, 2, 1, 96, 3, head_dim=32, global_head_dim=48, sliding_window=20, **tied,
                                      layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                      rope_parameters=ropes(1000000.0, 10000.0))),
        # as 26B-A4B
        "gemma4_moe-a4b": gemma(96, 4, 4, 80, 3, head_dim=32, global_head_dim=64, num_global_key_value_heads=1, sliding_window=40,
                                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                rope_parameters=ropes(1000000.0, 10000.0), **tied, **experts),
        # as E2B: layers get inputs of their own; the last ones use K and V of earlier ones and have a wider MLP
        "gemma4-e2b": gemma(96, 4, 1, 80, 6, head_dim=32, global_head_dim=64, sliding_window=24, final_logit_softcapping=3.0,
                            layer_types=mixed(2, 2), num_kv_shared_layers=3, use_double_wide_mlp=True, **inputs(32)),
        # as E4B, with sizes that are no powers of two; three layers share K and V, two of them of one kind
        "gemma4-vision-e4b": vision(gemma(72, 6, 2, 88, 7, head_dim=24, global_head_dim=40, sliding_window=20, final_logit_softcapping=3.0,
                                   layer_types=[*mixed(2, 1), *mixed(3, 1)], num_kv_shared_layers=3, rope_parameters=ropes(1000000.0, 10000.0),
                                   **inputs(20))),
        # values are made of the keys that other layers use, too; wide layers have KV heads of their own number
        "gemma4-lent": gemma(64, 4, 2, 96, 5, head_dim=32, global_head_dim=48, num_global_key_value_heads=1, sliding_window=33,
                             layer_types=["full_attention", *mixed(1, 2)], num_kv_shared_layers=2, **tied, **inputs(64)),
    }


def shares(config):
    """Layers use K and V of others, which stay beside the other ops."""
    return "num_kv_shared_layers" in config.get("text_config", config)


def is_scale(kind, name):
    """Vectors of factors, whose norms are stored as they are, unlike those of earlier gemmas."""
    return kind in FAMILIES and name.endswith(("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "layernorm.weight",
                                               "scale", "layer_scalar"))


def size(kind, name):
    """Of such a vector: scores are not divided by anything, so that queries must be small for attention not to be all of one token."""
    return 0.25 if kind in FAMILIES and name.endswith("q_norm.weight") else 1


# ---- GGUF ---------------------------------------------------------------------------------------


def windows(c):
    """Which layers have a window: never the last one."""
    n = c["num_hidden_layers"]
    types = c.get("layer_types") or ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(n)]
    return [t == "sliding_attention" for t in types[:-1]] + [False]


def gguf_keys(w, c):
    """Beside llama's, of which key_length is that of wide heads."""
    kv, narrow, wide = c["num_key_value_heads"], c["head_dim"], c["global_head_dim"]
    ropes = c.get("rope_parameters", {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})
    others = c.get("num_global_key_value_heads") if c.get("attention_k_eq_v") else None  # the class reads it only then
    w.add_head_count_kv([kv if has else others for has in windows(c)] if others else kv)
    shared = c.get("num_kv_shared_layers", 0)
    w.add_shared_kv_layers(shared)
    if c.get("use_double_wide_mlp"):
        own, ffn = c["num_hidden_layers"] - shared, c["intermediate_size"]
        w.add_feed_forward_length([ffn] * own + [2 * ffn] * shared)
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern(windows(c))
    w.add_key_length(wide)
    w.add_value_length(wide)
    w.add_key_length_swa(narrow)
    w.add_value_length_swa(narrow)
    w.add_rope_dimension_count(wide)
    w.add_rope_dimension_count_swa(narrow)
    w.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    w.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if "final_logit_softcapping" in c:
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    partial = ropes["full_attention"].get("partial_rotary_factor", 0.25)
    turned = int(wide * partial / 2)
    w.add_tensor("rope_freqs.weight", np.array([1] * turned + [1e30] * (wide // 2 - turned), np.float32))


def gguf_names(tensors):
    """{name that gguf's table knows, or the file's own: array}."""
    own = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    for name, x in tensors.items():
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if layer and layer[2] in own:
            yield f"blk.{layer[1]}.{own[layer[2]]}", x
        else:
            yield name + ".weight" if name.endswith(("layer_scalar", "experts.gate_up_proj", "experts.down_proj")) else name, x
