"""Gemma 4's text models in families.py's checkpoints: layers with heads of two sizes, experts beside the MLP.

Owns: their configurations. Refuses: torch.
"""

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
    }


def is_scale(kind, name):
    """Vectors of factors, whose norms are stored as they are, unlike those of earlier gemmas."""
    return kind in FAMILIES and name.endswith(("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "layernorm.weight",
                                               "scale", "layer_scalar"))


def size(kind, name):
    """Of such a vector: scores are not divided by anything, so that queries must be small for attention not to be all of one token."""
    return 0.25 if kind in FAMILIES and name.endswith("q_norm.weight") else 1
