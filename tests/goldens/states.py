"""Models with a row state in families.py's checkpoints: configurations, numbers of their own kind, GGUF files.

Owns: what of these models is neither a llama's nor an expert's. Refuses: torch.
"""
import numpy as np

FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe", "lfm2", "lfm2_moe", "granitemoehybrid",
            "nemotron_h", "falcon_h1")
ARCHITECTURES = {"granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1", "lfm2_moe": "lfm2moe", "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35",
                 "qwen3_5_moe_text": "qwen35moe"}
IN_GGUF = ("lfm2", "lfm2_moe", "granitemoehybrid", "qwen3_next", "qwen3_5", "nemotron_h", "falcon_h1")
NO_GGUF = {"lfm2_moe-scores": "norm_topk_prob, use_expert_bias", "qwen3_next-listed": "layer_types", "qwen3_next-fused": "decoder_sparse_step"}
DEFAULT_ALL = {"rope_type": "default", "rope_theta": 10000.0}
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

    def lfm2(kind, *shape, **more):
        return common(kind, *shape, norm_eps=1e-5, conv_bias=False, **more)

    def mamba(heads, head_dim, state, groups, taps=4):
        return {"mamba_n_heads": heads, "mamba_d_head": head_dim, "mamba_d_state": state, "mamba_n_groups": groups, "mamba_d_conv": taps}

    def granite(*shape, **more):
        return common("granitemoehybrid", *shape, hidden_act="silu", rms_norm_eps=1e-5, attention_multiplier=0.125, **more)

    def nemotron(pattern, *shape, **more):
        return common("nemotron_h", *shape, len(pattern), layer_norm_epsilon=1e-5, mlp_hidden_act="relu2",
                      hybrid_override_pattern=pattern, **more)

    def falcon(*shape, mamba, **more):
        return common("falcon_h1", *shape, hidden_act="silu", rms_norm_eps=1e-5, mamba_d_ssm=mamba["mamba_n_heads"] * mamba["mamba_d_head"],
                      mamba_norm_before_gate=False, **mamba, **more)

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
        "qwen3_5_moe-text": qwen("qwen3_5_moe_text", 96, 3, 1, 0, 4, head_dim=32, rope_parameters=sections, **state(2, 8, 16, 32),
                                 moe_intermediate_size=64, shared_expert_intermediate_size=48, num_experts=6, num_experts_per_tok=2),
        "qwen3_5_moe-narrow": qwen("qwen3_5_moe_text", 64, 4, 2, 0, 3, head_dim=32, rope_parameters=sections, full_attention_interval=2,
                                   **state(1, 4, 32, 32), moe_intermediate_size=24, shared_expert_intermediate_size=40, num_experts=5,
                                   num_experts_per_tok=3, tie_word_embeddings=True),
        "qwen3_5_moe-vision": vision("qwen3_5_moe", qwen("qwen3_5_moe_text", 64, 2, 1, 0, 4, head_dim=32, rope_parameters=sections,
                                                         **state(2, 2, 16, 48), moe_intermediate_size=32,
                                                         shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2)),
        "lfm2-plain": lfm2("lfm2", 96, 3, 1, 240, 4, rope_theta=1000000.0, block_auto_adjust_ff_dim=True, block_multiple_of=32,
                           block_ffn_dim_multiplier=1.3, conv_L_cache=3, tie_word_embeddings=True,
                           layer_types=["conv", "conv", "full_attention", "conv"]),
        "lfm2-numbered": lfm2("lfm2", 64, 2, 2, 128, 3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                              block_auto_adjust_ff_dim=False, conv_L_cache=5, full_attn_idxs=[1], tie_word_embeddings=True),
        "lfm2-narrow": lfm2("lfm2", 48, 3, 3, 100, 2, rope_theta=10000.0, block_auto_adjust_ff_dim=True, block_multiple_of=16,
                            conv_L_cache=2, layer_types=["full_attention", "conv"]),
        "lfm2_moe-plain": lfm2("lfm2_moe", 96, 3, 1, 160, 4, rope_theta=1000000.0, conv_L_cache=3, num_dense_layers=1, num_experts=6,
                               num_experts_per_tok=2, moe_intermediate_size=64, use_expert_bias=True, norm_topk_prob=True,
                               routed_scaling_factor=1.5, tie_word_embeddings=True,
                               layer_types=["conv", "full_attention", "conv", "conv"]),
        "lfm2_moe-scores": lfm2("lfm2_moe", 64, 4, 2, 96, 3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                                conv_L_cache=4, num_dense_layers=0, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=32,
                                use_expert_bias=False, norm_topk_prob=False, layer_types=["full_attention", "conv", "conv"]),
        "granitemoehybrid-dense": granite(96, 3, 1, 64, 4, num_local_experts=0, shared_intermediate_size=160, embedding_multiplier=6.0,
                                          residual_multiplier=0.75, logits_scaling=4.0, position_embedding_type="nope",
                                          layer_types=["mamba", "mamba", "attention", "mamba"], **mamba(6, 32, 64, 1)),
        "granitemoehybrid-experts": granite(64, 2, 1, 48, 3, num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=96,
                                            residual_multiplier=0.5, rope_theta=10000.0, position_embedding_type="rope",
                                            tie_word_embeddings=True, layer_types=["mamba", "attention", "mamba"],
                                            **mamba(8, 16, 128, 2, 3)),
        "granitemoehybrid-biases": granite(128, 4, 4, 96, 2, num_local_experts=0, shared_intermediate_size=64, attention_bias=True,
                                           mamba_conv_bias=False, layer_types=["attention", "mamba"], **mamba(4, 64, 16, 4)),
        "nemotron_h-experts": nemotron("MEM*EM-ME", 96, 3, 1, 160, head_dim=32, mamba_num_heads=4, mamba_head_dim=32,
                                       ssm_state_size=64, n_groups=2, conv_kernel=4, n_routed_experts=8, num_experts_per_tok=3,
                                       moe_intermediate_size=48, moe_shared_expert_intermediate_size=96, n_shared_experts=1,
                                       routed_scaling_factor=2.5, norm_topk_prob=True, n_group=1, topk_group=1),
        # experts that read fewer numbers than a token has, as many, and beside an MLP
        "nemotron_h-latent": nemotron("MEM*EME", 96, 3, 1, 160, head_dim=32, mamba_num_heads=4, mamba_head_dim=32,
                                      ssm_state_size=64, n_groups=2, conv_kernel=4, n_routed_experts=8, num_experts_per_tok=3,
                                      moe_intermediate_size=64, moe_shared_expert_intermediate_size=128, n_shared_experts=1,
                                      routed_scaling_factor=2.5, norm_topk_prob=True, n_group=1, topk_group=1, moe_latent_size=32),
        "nemotron_h-latent-groups": nemotron("M*EME", 64, 2, 2, 96, head_dim=32, mamba_num_heads=8, mamba_head_dim=16,
                                             ssm_state_size=32, n_groups=4, conv_kernel=3, use_conv_bias=False, n_routed_experts=12,
                                             num_experts_per_tok=4, moe_intermediate_size=48, moe_shared_expert_intermediate_size=32,
                                             n_shared_experts=1, routed_scaling_factor=1.0, norm_topk_prob=False, n_group=4,
                                             topk_group=2, moe_latent_size=64),
        "nemotron_h-latent-mlp": nemotron("ME*EM-M", 128, 4, 1, 192, head_dim=32, mamba_num_heads=2, mamba_head_dim=64,
                                          ssm_state_size=16, n_groups=1, conv_kernel=4, n_routed_experts=6, num_experts_per_tok=2,
                                          moe_intermediate_size=40, moe_shared_expert_intermediate_size=96, n_shared_experts=1,
                                          routed_scaling_factor=5.0, norm_topk_prob=True, n_group=1, topk_group=1, moe_latent_size=96),
        "nemotron_h-dense": nemotron("M-M*-M-", 64, 2, 2, 192, head_dim=48, mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=128,
                                     n_groups=4, conv_kernel=3, use_conv_bias=False, tie_word_embeddings=False),
        "nemotron_h-bare": nemotron("MM*M*-", 128, 4, 2, 64, head_dim=32, mamba_num_heads=2, mamba_head_dim=128, ssm_state_size=16,
                                    n_groups=1, conv_kernel=4),
        # powers of two leave the numbers of GGUF files, which have the factors in them, as they are
        "falcon_h1-norm": falcon(96, 3, 1, 160, 3, head_dim=48, rope_theta=100000000000.0, mamba=mamba(6, 32, 64, 2), mamba_rms_norm=True,
                                 embedding_multiplier=4.0, lm_head_multiplier=0.5, key_multiplier=0.5, attention_in_multiplier=2.0,
                                 attention_out_multiplier=0.5, ssm_in_multiplier=0.5, ssm_out_multiplier=2.0,
                                 mlp_multipliers=[0.5, 4.0], ssm_multipliers=[2.0, 0.5, 4.0, 1.0, 0.25]),
        "falcon_h1-published": falcon(64, 4, 2, 128, 2, head_dim=32, rope_parameters=DEFAULT_ALL, mamba=mamba(8, 16, 128, 1, 3),
                                      mamba_rms_norm=False, embedding_multiplier=5.656854249492381, lm_head_multiplier=0.375,
                                      key_multiplier=0.39062499999999994, attention_in_multiplier=1.1, attention_out_multiplier=0.9375,
                                      ssm_in_multiplier=1.25, ssm_out_multiplier=0.23570226039551587,
                                      mlp_multipliers=[0.8838834764831844, 0.5859375],
                                      ssm_multipliers=[0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]),
        "falcon_h1-tied": falcon(128, 2, 2, 96, 2, head_dim=64, rope_theta=10000.0, mamba=mamba(4, 64, 16, 4), mamba_conv_bias=False,
                                 embedding_multiplier=2.0, lm_head_multiplier=2.0, tie_word_embeddings=True),
    }


def has_state(spec):
    """Rounding reaches a state's later tokens: bf16 alone sends some to other experts, so rows are not chosen for their routes."""
    return spec.startswith(FAMILIES)


def gain_of(name):
    """How wide numbers are spread; None where families.py's own rule does."""
    return 5 if name.endswith(("conv1d.weight", "conv.conv.weight")) else None


def is_plus_one(kind, name):
    """Norms that are stored less 1."""
    return kind in FAMILIES and kind != "falcon_h1" and "linear_attn" not in name


# ---- GGUF ---------------------------------------------------------------------------------------


def architecture(c):
    """nemotron_h has two."""
    kind = c["model_type"]
    return kind + "_moe" if kind == "nemotron_h" and "n_routed_experts" in c else ARCHITECTURES.get(kind, kind)


def attends(c):
    if "hybrid_override_pattern" in c:
        return [kind == "*" for kind in c["hybrid_override_pattern"]]
    kinds = c.get("layer_types") or ["full_attention" if i in c["full_attn_idxs"] else "conv" for i in range(c["num_hidden_layers"])]
    return [kind in ("attention", "full_attention") for kind in kinds]


def mlp_width(c):
    """What lfm2 makes of block_ff_dim; of nemotron_h, a number for each layer."""
    if "hybrid_override_pattern" in c:
        width = c.get("moe_intermediate_size", c["intermediate_size"])
        return [width if kind in "-E" else 0 for kind in c["hybrid_override_pattern"]]
    if not c.get("block_auto_adjust_ff_dim"):
        return c["intermediate_size"]
    width, of = int(c.get("block_ffn_dim_multiplier", 1.0) * int(2 * c["intermediate_size"] / 3)), c["block_multiple_of"]
    return of * -(-width // of)


def gguf_keys(w, c):
    if c["model_type"].startswith("qwen"):
        heads = c["linear_num_value_heads"]
        w.add_head_count_kv(c["num_key_value_heads"])
        ssm_keys(w, c["linear_conv_kernel_dim"], c["linear_key_head_dim"], c["linear_num_key_heads"], heads, c["linear_value_head_dim"])
        every, own = c.get("full_attention_interval", 4), c["model_type"] != "qwen3_next"
        if own and every != 4:  # the converter reads no interval, but layer_types, which transformers makes of it
            w.add_array(f"{w.arch}.attention.recurrent_layers", [(i + 1) % every != 0 for i in range(c["num_hidden_layers"])])
        w.add_full_attention_interval(4 if own else every)
        if own:
            w.add_rope_dimension_sections([*c["rope_parameters"]["mrope_section"], 0])
        return
    if c["model_type"] == "falcon_h1":
        w.add_head_count_kv(c["num_key_value_heads"])
        ssm_keys(w, c["mamba_d_conv"], c["mamba_d_state"], c["mamba_n_groups"], c["mamba_n_heads"], c["mamba_d_head"])
        return
    w.add_head_count_kv([c["num_key_value_heads"] if a else 0 for a in attends(c)])
    if c["model_type"].startswith("lfm2"):
        w.add_shortconv_l_cache(c["conv_L_cache"])
    elif c["model_type"] == "nemotron_h":
        ssm_keys(w, c["conv_kernel"], c["ssm_state_size"], c["n_groups"], c["mamba_num_heads"], c["mamba_head_dim"])
        if "moe_latent_size" in c:
            w.add_moe_latent_size(c["moe_latent_size"])
        w.add_rope_scaling_finetuned(False)
    else:
        ssm_keys(w, c["mamba_d_conv"], c["mamba_d_state"], c["mamba_n_groups"], c["mamba_n_heads"], c["mamba_d_head"])
        w.add_rope_scaling_finetuned(c.get("position_embedding_type") == "rope")


def ssm_keys(w, taps, key_dim, groups, heads, value_dim):
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_state_size(key_dim)
    w.add_ssm_group_count(groups)
    w.add_ssm_inner_size(heads * value_dim)
    w.add_ssm_time_step_rank(heads)


def qwen3_next_parts(c, x):
    """in_proj_qkvz of each head of k -> q of all heads, then k, then v; and z."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    k, v = c["linear_key_head_dim"], values // keys * c["linear_value_head_dim"]
    parts = np.split(x.reshape(keys, -1, x.shape[-1]), [k, 2 * k, 2 * k + v], 1)
    q, k, v, z = (part.reshape(-1, x.shape[-1]) for part in parts)
    return np.concatenate([q, k, v]), z


def other_order(c):
    """GGUF's qwen3_5 with several heads of v to one of k, and several of these: sums over its heads are in another order. And
    falcon_h1's products of weights and factors, if they are rounded."""
    if c["model_type"] == "falcon_h1":
        return any(np.frexp(f)[0] != 0.5 for key in c if "multiplier" in key for f in np.ravel(c[key]))
    return c["model_type"].startswith("qwen3_5") and 1 < c["linear_num_key_heads"] < c["linear_num_value_heads"]


def tiled(c, name, x):
    """Heads of v of qwen3_5: those of one head of k lie side by side -> head h belongs to head h mod (heads of k)."""
    keys, each = c["linear_num_key_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"]
    if name.endswith("out_proj.weight"):
        return tiled(c, "", x.T).T
    first = 2 * keys * c["linear_key_head_dim"] if name.endswith(("in_proj_qkv.weight", "conv1d.weight")) else 0
    v = x[first:].reshape(keys, each, -1, *x.shape[1:]).swapaxes(0, 1)
    return np.concatenate([x[:first], v.reshape(-1, *x.shape[1:])])


def scaled(c, name, x):
    """falcon_h1's tensor times its factors."""
    state = (["z"] * c["mamba_d_ssm"] + ["v"] * c["mamba_d_ssm"] + ["k"] * (c["mamba_n_groups"] * c["mamba_d_state"])
             + ["q"] * (c["mamba_n_groups"] * c["mamba_d_state"]) + ["dt"] * c["mamba_n_heads"])
    gate, down = c.get("mlp_multipliers", (1, 1))
    of = dict(zip(("z", "v", "k", "q", "dt"), c.get("ssm_multipliers", [1] * 5)))
    attn, ssm = c.get("attention_in_multiplier", 1), c.get("ssm_in_multiplier", 1)
    factors = {"embed_tokens": c.get("embedding_multiplier", 1), "lm_head": c.get("lm_head_multiplier", 1), "q_proj": attn, "v_proj": attn,
               "k_proj": attn * c.get("key_multiplier", 1), "o_proj": c.get("attention_out_multiplier", 1), "gate_proj": gate,
               "down_proj": down, "out_proj": c.get("ssm_out_multiplier", 1), "in_proj": np.array([[ssm * of[s]] for s in state], np.float32)}
    return x * np.float32(factors.get(name.split(".")[-2], 1))


def gguf_names(c, tensors):
    """{name that gguf's table knows: array}."""
    for name, x in tensors.items():
        if "shared_mlp" in name and not c["num_local_experts"]:  # the MLP
            stem = name.partition("shared_mlp")[0] + "mlp."
            parts = ("gate_proj", "up_proj") if "input_linear" in name else ("down_proj",)
            yield from ((f"{stem}{part}.weight", y) for part, y in zip(parts, np.split(x, len(parts))))
            continue
        if "in_proj_qkvz" in name:
            qkv, z = qwen3_next_parts(c, x)
            yield name.replace("qkvz", "qkv"), qkv
            yield name.replace("qkvz", "z"), z
            continue
        if c["model_type"].startswith("qwen3_5") and ".linear_attn." in name and not name.endswith("linear_attn.norm.weight"):
            x = tiled(c, name, x)
        if is_plus_one(c["model_type"], name) and c["model_type"].startswith("qwen") and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if c["model_type"] == "falcon_h1":
            x = scaled(c, name, x)
        name = name.replace(".expert_bias", ".expert_bias.bias").replace(".dt_bias", ".dt_proj.bias")
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        if name.endswith(("conv.conv.weight", "conv1d.weight")):
            x = x[:, 0]
        if name.endswith(".A_log"):
            x = -np.exp(x.astype(np.float64)).astype(np.float32)
        if name.endswith((".A_log", ".D")) and "linear_attn" not in name:
            x = x[:, None]
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            x = x.reshape(c.get("mamba_n_groups", c.get("n_groups")), -1)
        yield name, x
