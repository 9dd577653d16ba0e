"""Models with a row state in families.py's checkpoints: configurations, and numbers of their own kind.

Owns: what of these models is neither a llama's nor an expert's. Refuses: torch.
"""

FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe")
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}


def specs(common):
    def state(keys, values, key_dim, value_dim, taps=4):
        return {"linear_num_key_heads": keys, "linear_num_value_heads": values, "linear_key_head_dim": key_dim,
                "linear_value_head_dim": value_dim, "linear_conv_kernel_dim": taps}

    def qwen(kind, *shape, **more):
        c = common(kind, *shape, hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, **more)
        if kind == "qwen3_5_moe_text":
            del c["intermediate_size"]
        return c

    def vision(kind, text):
        tower = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14, "out_hidden_size": 64,
                 "num_position_embeddings": 16}
        return {"model_type": kind, "text_config": text, "vision_config": tower, "image_token_id": 300, "video_token_id": 301,
                "vision_start_token_id": 302, "vision_end_token_id": 303, "tie_word_embeddings": text["tie_word_embeddings"]}

    sections = {**DEFAULT, "mrope_interleaved": True, "mrope_section": [2, 1, 1]}
    return {
        "qwen3_next-plain": qwen("qwen3_next", 96, 3, 1, 160, 4, head_dim=32, rope_parameters=DEFAULT, **state(2, 4, 16, 32),
                                 moe_intermediate_size=64, shared_expert_intermediate_size=48, num_experts=6, num_experts_per_tok=2),
        "qwen3_next-listed": qwen("qwen3_next", 64, 4, 2, 128, 4, head_dim=32, rope_theta=1000000.0, partial_rotary_factor=0.5,
                                  layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
                                  **state(2, 2, 32, 16, 3), moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=5,
                                  num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[1], tie_word_embeddings=True),
        "qwen3_next-fused": qwen("qwen3_next", 128, 2, 2, 96, 3, head_dim=64, rope_parameters=DEFAULT, full_attention_interval=2,
                                 **state(1, 3, 48, 64), moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4,
                                 num_experts_per_tok=2, decoder_sparse_step=2),
        "qwen3_5-text": qwen("qwen3_5_text", 96, 3, 1, 160, 4, head_dim=32, rope_parameters=sections, **state(2, 4, 16, 32)),
        "qwen3_5-tied": qwen("qwen3_5_text", 64, 2, 1, 128, 5, head_dim=48, rope_parameters={**sections, "rope_theta": 10000000.0},
                             full_attention_interval=3, **state(3, 3, 64, 48, 2), tie_word_embeddings=True),
        "qwen3_5-vision": vision("qwen3_5", qwen("qwen3_5_text", 64, 2, 2, 96, 4, head_dim=32, rope_parameters=sections,
                                                 **state(1, 2, 128, 16))),
        "qwen3_5_moe-text": qwen("qwen3_5_moe_text", 96, 3, 1, 0, 4, head_dim=32, rope_parameters=sections, **state(2, 4, 16, 32),
                                 moe_intermediate_size=64, shared_expert_intermediate_size=48, num_experts=6, num_experts_per_tok=2),
        "qwen3_5_moe-narrow": qwen("qwen3_5_moe_text", 64, 4, 2, 0, 3, head_dim=32, rope_parameters=sections, full_attention_interval=2,
                                   **state(1, 4, 32, 32), moe_intermediate_size=24, shared_expert_intermediate_size=40, num_experts=5,
                                   num_experts_per_tok=3, tie_word_embeddings=True),
        "qwen3_5_moe-vision": vision("qwen3_5_moe", qwen("qwen3_5_moe_text", 64, 2, 1, 0, 4, head_dim=32, rope_parameters=sections,
                                                         **state(2, 2, 16, 48), moe_intermediate_size=32,
                                                         shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2)),
    }


def has_state(spec):
    """Rounding reaches a state's later tokens: bf16 alone sends some to other experts, so rows are not chosen for their routes."""
    return spec.startswith(FAMILIES)


def gain_of(name):
    """How wide numbers are spread; None where families.py's own rule does."""
    return 5 if name.endswith("conv1d.weight") else None


def is_plus_one(kind, name):
    """Norms that are stored less 1."""
    return kind in FAMILIES and "linear_attn" not in name
