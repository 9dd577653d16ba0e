"""Mixtures of experts in families.py's checkpoints: configurations, and how files of each kind hold the experts.

Owns: the ways from the tensors that transformers saves to fused ones, to GGUF's stacks, and to MXFP4 and back. Refuses: torch.
"""

import re

import gguf
import numpy as np

import latent
import tiny

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "granitemoe", "granitemoeshared", "glm4_moe", "solar_open", "dots1",
            "minimax_m2", "ernie4_5_moe", "olmoe", "hunyuan_v1_moe", "phimoe", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe", "lfm2_moe", "granitemoehybrid",
            "nemotron_h", "gemma4_moe", *latent.FAMILIES)
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 64}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}


def specs(common):
    def mixtral(*shape, **more):
        return common("mixtral", *shape, hidden_act="silu", rms_norm_eps=1e-5, **more)

    def qwen3(*shape, **more):
        return common("qwen3_moe", *shape, hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, **more)

    def qwen2(*shape, **more):
        return common("qwen2_moe", *shape, hidden_act="silu", rms_norm_eps=1e-6, **more)

    def granite(kind, *shape, **more):
        return common(kind, *shape, hidden_act="silu", rms_norm_eps=1e-5, attention_multiplier=0.125, **more)

    def gpt_oss(*shape, **more):
        return common("gpt_oss", *shape, hidden_act="silu", rms_norm_eps=1e-5, attention_bias=True, **more)

    def glm(*shape, **more):
        return common("glm4_moe", *shape, hidden_act="silu", rms_norm_eps=1e-5, **more)

    def solar(*shape, **more):
        c = common("solar_open", *shape[:3], None, *shape[3:], hidden_act="silu", rms_norm_eps=1e-5, **more)
        del c["intermediate_size"]
        return c

    def dots(*shape, **more):
        return common("dots1", *shape, hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, **more)

    def minimax(*shape, **more):
        return common("minimax_m2", *shape, hidden_act="silu", rms_norm_eps=1e-6, **more)

    def ernie(*shape, **more):
        return common("ernie4_5_moe", *shape, hidden_act="silu", rms_norm_eps=1e-5, use_bias=False, **more)

    def olmoe(*shape, **more):
        return common("olmoe", *shape, hidden_act="silu", rms_norm_eps=1e-5, **more)

    def hunyuan(*shape, **more):
        return common("hunyuan_v1_moe", *shape, hidden_act="silu", rms_norm_eps=1e-5, **more)

    def phimoe(*shape, **more):
        return common("phimoe", *shape, hidden_act="silu", rms_norm_eps=1e-5, num_experts_per_tok=2, **more)

    def scaled(short, long, original):  # transformers keeps to the short divisors, so both are alike
        divisors = [1 + i / 16 for i in range(16)]
        return {"type": "longrope", "short_factor": divisors, "long_factor": divisors, "short_mscale": short, "long_mscale": long,
                "original_max_position_embeddings": original}

    return {
        "mixtral-plain": mixtral(128, 4, 2, 160, 2, sliding_window=None, rope_theta=1000000.0, num_local_experts=8,
                                 num_experts_per_tok=2),
        "mixtral-window": mixtral(96, 3, 1, 128, 3, sliding_window=48, rope_parameters=DEFAULT, num_local_experts=4,
                                  num_experts_per_tok=2),
        "mixtral-wide": mixtral(64, 2, 1, 96, 2, head_dim=48, sliding_window=None, rope_theta=10000.0, num_local_experts=6,
                                num_experts_per_tok=3, tie_word_embeddings=True),
        "mixtral-fused": mixtral(64, 4, 4, 64, 2, sliding_window=33, rope_theta=10000.0, num_local_experts=5,
                                 num_experts_per_tok=3),
        "qwen3_moe-plain": qwen3(128, 4, 2, 192, 2, head_dim=64, rope_theta=1000000.0, moe_intermediate_size=96, num_experts=8,
                                 num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]),
        "qwen3_moe-listed": qwen3(96, 3, 1, 160, 3, head_dim=48, rope_theta=1000000.0, moe_intermediate_size=64, num_experts=6,
                                  num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[1],
                                  use_sliding_window=False, sliding_window=32),
        "qwen3_moe-fused": qwen3(64, 2, 1, 128, 5, head_dim=64, rope_parameters=DEFAULT, moe_intermediate_size=96,
                                 num_local_experts=4, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=2,
                                 mlp_only_layers=[1], tie_word_embeddings=True),
        # every layer has the window, whatever max_window_layers says; norm_topk_prob is false by default
        "qwen3_moe-window": qwen3(96, 6, 2, 128, 2, head_dim=32, rope_theta=10000.0, moe_intermediate_size=32, num_experts=5,
                                  num_experts_per_tok=4, use_sliding_window=True, sliding_window=40, max_window_layers=1),
        "qwen3_moe-narrow-fused": qwen3(64, 2, 2, 96, 2, head_dim=32, rope_theta=10000.0, moe_intermediate_size=48, num_experts=5,
                                        num_experts_per_tok=2, norm_topk_prob=True),
        "qwen2_moe-plain": qwen2(128, 4, 2, 192, 2, rope_theta=1000000.0, moe_intermediate_size=96, num_experts=8,
                                 shared_expert_intermediate_size=160, num_experts_per_tok=3, norm_topk_prob=False),
        # layers 0 and 2 have one MLP; the window is that of layer 0, too, the only even one below 2
        "qwen2_moe-window": qwen2(96, 3, 1, 128, 4, rope_theta=10000.0, moe_intermediate_size=64, num_experts=6,
                                  shared_expert_intermediate_size=80, num_experts_per_tok=2, norm_topk_prob=True,
                                  decoder_sparse_step=2, use_sliding_window=True, sliding_window=40, max_window_layers=2,
                                  tie_word_embeddings=True),
        "qwen2_moe-fused": qwen2(64, 2, 2, 160, 3, head_dim=32, rope_parameters=DEFAULT, moe_intermediate_size=32, num_experts=5,
                                 shared_expert_intermediate_size=224, num_experts_per_tok=4, norm_topk_prob=False,
                                 mlp_only_layers=[1, 2], qkv_bias=False),
        "granitemoe-plain": granite("granitemoe", 128, 4, 2, 96, 2, rope_theta=10000.0, num_local_experts=8, num_experts_per_tok=3,
                                    embedding_multiplier=6.0, residual_multiplier=0.75, logits_scaling=4.0),
        "granitemoe-fused": granite("granitemoe", 96, 3, 1, 64, 3, rope_parameters=DEFAULT, num_local_experts=5,
                                    num_experts_per_tok=2, tie_word_embeddings=True, embedding_multiplier=1.0,
                                    residual_multiplier=1.0, logits_scaling=1.0),
        "granitemoe-shared": granite("granitemoeshared", 64, 2, 1, 64, 3, rope_theta=10000.0, num_local_experts=6,
                                     num_experts_per_tok=2, shared_intermediate_size=144, embedding_multiplier=3.0,
                                     residual_multiplier=0.5, logits_scaling=2.0),
        # limits that the weights reach
        "gpt_oss-plain": gpt_oss(128, 4, 2, 128, 2, head_dim=64, sliding_window=33, rope_theta=150000.0, rope_scaling=YARN,
                                 num_local_experts=6, num_experts_per_tok=4, swiglu_limit=7.0),
        "gpt_oss-limit": gpt_oss(96, 3, 1, 160, 4, head_dim=32, sliding_window=24, rope_parameters={**YARN, "rope_theta": 10000.0},
                                 num_local_experts=4, num_experts_per_tok=2, swiglu_limit=0.75),
        "gpt_oss-types": gpt_oss(64, 2, 2, 96, 3, head_dim=48, sliding_window=48, rope_parameters=DEFAULT, num_local_experts=5,
                                 num_experts_per_tok=3, swiglu_limit=1.5,
                                 layer_types=["full_attention", "sliding_attention", "full_attention"]),
        "gpt_oss-mxfp4": gpt_oss(64, 4, 1, 96, 2, head_dim=32, sliding_window=20, rope_theta=150000.0, rope_scaling=YARN,
                                 num_local_experts=6, num_experts_per_tok=2, swiglu_limit=7.0,
                                 quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
                                     "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}),
        "glm4_moe-plain": glm(128, 4, 2, 192, 3, head_dim=48, rope_theta=1000000.0, partial_rotary_factor=0.5, attention_bias=True,
                              moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=1,
                              topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, first_k_dense_replace=1,
                              use_qk_norm=False),
        "glm4_moe-groups": glm(96, 3, 1, 160, 4, head_dim=32, rope_theta=10000.0, moe_intermediate_size=32, n_routed_experts=12,
                               num_experts_per_tok=3, n_shared_experts=2, n_group=4, topk_group=2, norm_topk_prob=False,
                               routed_scaling_factor=0.5, first_k_dense_replace=2, use_qk_norm=True),
        "glm4_moe-fused": glm(64, 2, 2, 128, 2, head_dim=64, rope_parameters={**DEFAULT, "partial_rotary_factor": 0.25},
                              moe_intermediate_size=96, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, n_group=3,
                              topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.0, first_k_dense_replace=0,
                              use_qk_norm=True, tie_word_embeddings=True),
        "solar_open-plain": solar(96, 3, 1, 3, head_dim=48, rope_theta=1000000.0, moe_intermediate_size=64, n_routed_experts=8,
                                  num_experts_per_tok=3, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
                                  routed_scaling_factor=1.0),
        "dots1-plain": dots(128, 4, 4, 192, 3, rope_theta=10000000.0, moe_intermediate_size=64, n_routed_experts=8,
                            num_experts_per_tok=3, n_shared_experts=2, n_group=1, topk_group=1, norm_topk_prob=True,
                            routed_scaling_factor=2.5, first_k_dense_replace=1, sliding_window=None),
        "dots1-window": dots(96, 3, 1, 160, 4, rope_theta=10000.0, moe_intermediate_size=32, n_routed_experts=6,
                             num_experts_per_tok=2, n_shared_experts=1, norm_topk_prob=False, first_k_dense_replace=0,
                             sliding_window=40, max_window_layers=1, tie_word_embeddings=True),
        "dots1-fused": dots(64, 2, 1, 128, 3, rope_parameters=DEFAULT, moe_intermediate_size=96, n_routed_experts=8,
                            num_experts_per_tok=4, n_shared_experts=1, n_group=4, topk_group=3, norm_topk_prob=True,
                            routed_scaling_factor=1.25, first_k_dense_replace=1, sliding_window=None),
        "minimax_m2-plain": minimax(128, 4, 2, 64, 2, head_dim=48, rotary_dim=32, rope_theta=5000000.0, num_local_experts=8,
                                    num_experts_per_tok=3),
        "minimax_m2-whole": minimax(96, 3, 1, 96, 3, head_dim=32, rope_theta=10000.0, num_local_experts=6, num_experts_per_tok=2,
                                    tie_word_embeddings=True),
        "minimax_m2-fused": minimax(64, 2, 2, 64, 2, head_dim=64, num_local_experts=5, num_experts_per_tok=4,
                                    rope_parameters={**DEFAULT, "partial_rotary_factor": 0.5}),
        "ernie4_5_moe-plain": ernie(128, 4, 2, 192, 2, rope_theta=500000.0, moe_intermediate_size=64, moe_num_experts=6, moe_k=2,
                                    moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=1),
        "ernie4_5_moe-alone": ernie(96, 3, 1, 160, 2, head_dim=48, rope_theta=10000.0, moe_intermediate_size=32,
                                    moe_num_experts=6, moe_k=2, moe_num_shared_experts=0, moe_layer_start_index=0,
                                    tie_word_embeddings=True),
        "ernie4_5_moe-fused": ernie(64, 2, 2, 128, 4, rope_parameters=DEFAULT, moe_intermediate_size=96, moe_num_experts=5,
                                    moe_k=4, moe_num_shared_experts=1, moe_layer_start_index=2),
        "olmoe-plain": olmoe(128, 4, 4, 64, 2, rope_theta=10000.0, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False),
        "olmoe-norm": olmoe(96, 3, 1, 96, 3, rope_theta=10000.0, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
                            tie_word_embeddings=True),
        "olmoe-narrow": olmoe(64, 2, 1, 24, 2, rope_theta=10000.0, num_experts=6, num_experts_per_tok=3),
        "hunyuan_v1_moe-alpha": hunyuan(128, 4, 2, 96, 2, head_dim=32, rope_theta=10000.0, rope_scaling=ALPHA, num_experts=8,
                                        moe_topk=[2, 2]),
        "hunyuan_v1_moe-narrow": hunyuan(96, 3, 3, 48, 2, head_dim=48, rope_theta=20000.0, num_experts=6, moe_topk=2,
                                         attention_bias=True, tie_word_embeddings=True),
        "hunyuan_v1_moe-fused": hunyuan(64, 2, 1, 64, 3, head_dim=64, rope_parameters=DEFAULT, num_experts=5, moe_topk=4),
        "phimoe-long": phimoe(128, 4, 2, 96, 2, rope_theta=10000.0, rope_scaling=scaled(1.25, 1.25, 64), num_local_experts=6,
                              original_max_position_embeddings=64, attention_bias=True, lm_head_bias=True),
        "phimoe-near": phimoe(96, 3, 1, 64, 2, rope_parameters=DEFAULT, num_local_experts=6, router_jitter_noise=0.25,
                              sliding_window=40),
        # nearly all rows are long: rows are drawn token by token, which must not change the factor
        "phimoe-fused": phimoe(64, 2, 2, 48, 2, rope_theta=10000.0, rope_scaling=scaled(1.25, 1.5, 2), num_local_experts=4,
                               original_max_position_embeddings=2, router_jitter_noise=0.5, lm_head_bias=True),
        "olmoe-fused": olmoe(64, 2, 1, 32, 2, rope_parameters=DEFAULT, num_experts=5, num_experts_per_tok=4),
    }


FUSED = ("mixtral-fused", "qwen3_moe-fused", "qwen3_moe-narrow-fused", "qwen2_moe-fused", "granitemoe-fused", "glm4_moe-fused", "dots1-fused",
         "minimax_m2-fused", "ernie4_5_moe-fused", "olmoe-fused", "hunyuan_v1_moe-fused", "phimoe-fused", "qwen3_next-fused", "qwen3_5_moe-text",
         *latent.FUSED)  # as save_original_format=False leaves them
OLD_GGUF = ("mixtral-wide",)  # one tensor per expert, as before 2024
NO_GGUF = {"mixtral-window": "sliding_window", "mixtral-fused": "sliding_window",
           "qwen3_moe-listed": "norm_topk_prob, mlp_only_layers", "qwen3_moe-fused": "decoder_sparse_step",
           "qwen3_moe-window": "sliding_window", "qwen2_moe-window": "decoder_sparse_step", "qwen2_moe-fused": "mlp_only_layers",
           "solar_open-plain": "no architecture", "dots1-window": "sliding_window", "olmoe-norm": "norm_topk_prob",
           "phimoe-near": "router_jitter_noise", "phimoe-fused": "router_jitter_noise", "gpt_oss-limit": "swiglu_limit", "gpt_oss-types": "layer_types"}
# gate, up and down of an expert of a file's own
OWN = re.compile(r"(?P<layer>.*\.)(?P<block>mlp|block_sparse_moe|feed_forward|mixer)\.experts\.(?P<i>\d+)\.(?P<part>\w+)\.weight")
OF_GRANITE = {"input_linear.weight": "experts.gate_up_proj", "output_linear.weight": "experts.down_proj",
              "router.layer.weight": "router.weight"}
PARTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def gain_of(spec, name):
    """How wide numbers are spread; None where families.py's own rule does."""
    if spec == "gpt_oss-plain" and name.endswith("experts.gate_up_proj"):
        return 4
    if name.endswith("router.proj.weight"):  # of vectors as long as 1
        return 20
    routers = ("mlp.gate.weight", "mlp.gate.wg.weight", "block_sparse_moe.gate.weight", "feed_forward.gate.weight", "mixer.gate.weight", "router.weight",
               "router.layer.weight")
    return 2.5 if name.endswith(routers) else None


def stacks(tensors):
    """{(prefix of the layer's experts, gate | up | down): [expert, ...]} of split experts, and everything else."""
    out, rest = {}, {}
    for name, x in tensors.items():
        own = OWN.fullmatch(name)
        if own:
            block = "mlp" if own["block"] == "block_sparse_moe" else own["block"]
            out.setdefault((f"{own['layer']}{block}.", PARTS[own["part"]]), {})[int(own["i"])] = x
        else:
            rest[name] = x
    return {key: np.stack([x[i] for i in range(len(x))]) for key, x in out.items()}, rest


def fused(tensors):
    """The tensors that transformers computes with: of all experts at once, gate and up in one."""
    parts, rest = stacks(tensors)
    out, router = {}, "router" if "model.norm.bias" in tensors else "gate"  # of phimoe
    for name, x in rest.items():
        name = name.replace("block_sparse_moe.gate.weight", f"mlp.{router}.weight")
        layer, _, leaf = name.partition("block_sparse_moe.")
        name = name.replace(".mlp.moe_statics.", ".mlp.gate.moe_statics.")
        out[f"{layer}block_sparse_moe.{OF_GRANITE[leaf]}" if leaf in OF_GRANITE else name.replace(".block_sparse_moe.", ".mlp.")] = x
    for at in {at: None for at, _ in parts}:
        if (at, "gate") in parts:
            out[at + "experts.gate_up_proj"] = np.concatenate([parts[at, "gate"], parts[at, "up"]], 1)
        else:
            out[at + "experts.up_proj"] = parts[at, "up"]
        out[at + "experts.down_proj"] = parts[at, "down"]
    return out


# ---- GGUF ---------------------------------------------------------------------------------------


def gguf_names(spec, tensors):
    """{name that gguf's table knows: array}: one tensor for all experts, gate and up apart."""
    parts, rest = ({}, tensors) if spec in OLD_GGUF else stacks(tensors)
    out = {}
    for name, x in rest.items():
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        stem, _, leaf = name.rpartition(".")
        x = x[0] if leaf == "bias" and x.shape[0] == 1 else x
        if name.endswith("input_linear.weight"):  # granitemoe: of all experts, or of the one for all tokens
            layer, both = ".".join(name.split(".")[:3]), np.split(x, 2, axis=-2)
            of = f"{layer}.mlp.experts" if x.ndim == 3 else f"{layer}.mlp.shared_expert"
            out[f"{of}.gate_proj.weight"], out[f"{of}.up_proj.weight"] = both
            continue
        kind = {"gate_up_proj": "weight", "down_proj": "weight", "gate_up_proj_bias": "bias", "down_proj_bias": "bias"}.get(leaf)
        if not stem.endswith("experts"):
            x = x[0] if name.endswith("shared_expert_gate.weight") else x
            out[name + ".weight" if leaf == "sinks" else name] = x
            continue
        if kind == "weight":  # [expert, in, out]
            x = stored_mxfp4(spec, name, x.shape) if is_mxfp4(spec, name) else x.swapaxes(1, 2)
        if leaf.startswith("gate_up"):
            out[f"{stem}.gate_proj.{kind}"], out[f"{stem}.up_proj.{kind}"] = x[:, ::2], x[:, 1::2]
        else:
            out[f"{stem}.down_proj.{kind}"] = x
    for (at, part), x in parts.items():
        out[f"{at}experts.{part}_proj.weight"] = x
    return out


def gguf_name_old(name):
    """blk.N.ffn_gate.E.weight and the like, None for what is no expert's."""
    own = OWN.fullmatch(name)
    return own and f"blk.{own['layer'].split('.')[-2]}.ffn_{PARTS[own['part']]}.{own['i']}.weight"


def gguf_keys(w, c):
    count = next((c[k] for k in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") if k in c), None)
    if count is None:  # nemotron_h with MLPs
        return
    w.add_expert_count(count)
    if "moe_topk" in c:
        w.add_expert_used_count(max(np.atleast_1d(c["moe_topk"]).tolist()))
        w.add_expert_shared_count(1)
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["intermediate_size"])
    if "num_experts_per_tok" in c or "moe_k" in c:
        w.add_expert_used_count(c.get("num_experts_per_tok", c.get("moe_k")))
    if c["model_type"] in ("glm4_moe", "dots1", "minimax_m2", "ernie4_5_moe", "lfm2_moe", "deepseek_v2", "deepseek_v3"):
        softmax = c["model_type"] in ("ernie4_5_moe", "deepseek_v2")
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if softmax else gguf.ExpertGatingFuncType.SIGMOID)
    if "n_shared_experts" in c or "moe_num_shared_experts" in c:
        w.add_expert_shared_count(c.get("n_shared_experts", c.get("moe_num_shared_experts")))
    if "moe_shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
    elif "n_shared_experts" in c or "moe_num_shared_experts" in c:
        w.add_leading_dense_block_count(c.get("first_k_dense_replace", c.get("moe_layer_start_index", 1)))
    if "num_dense_layers" in c:
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
    if "n_shared_experts" in c:
        w.add_expert_weights_scale(c.get("routed_scaling_factor", 1.0))
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_group_count(c.get("n_group", 1))
        w.add_expert_group_used_count(c.get("topk_group", 1))
    if "moe_intermediate_size" in c:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c or "shared_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c.get("shared_expert_intermediate_size", c.get("shared_intermediate_size")))
    if c["model_type"] == "gpt_oss":
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_sliding_window(c["sliding_window"])


# ---- MXFP4 --------------------------------------------------------------------------------------
# 32 numbers share a power of two, 2^(scale - 127); each is a sign, two bits of exponent and one of mantissa.

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])


def is_mxfp4(spec, name):
    return spec.endswith("mxfp4") and name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def mxfp4_codes(spec, name, shape):
    """Of a matrix [expert, in, out]: codes [expert, out, in / 32, 32] and scales [expert, out, in / 32]."""
    n, width, rows = shape
    r = tiny.rng(spec, name)
    return r.randint(0, 16, (n, rows, width // 32, 32)).astype(np.uint8), r.randint(122, 125, (n, rows, width // 32)).astype(np.uint8)


def mxfp4_decoded(spec, name, shape):
    codes, scales = mxfp4_codes(spec, name, shape)
    power = (scales.astype(np.uint32) << 23).view(np.float32)[..., None]
    return (E2M1[codes] * power).reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2)


def split_mxfp4(spec, name, shape):
    """As safetensors hold it: neighbours share a byte, the even one in the low half; scales apart."""
    codes, scales = mxfp4_codes(spec, name, shape)
    return {name + "_blocks": codes[..., ::2] | codes[..., 1::2] << 4, name + "_scales": scales}


def stored_mxfp4(spec, name, shape):
    """As GGUF holds it: a scale and its 16 bytes, number i with number i + 16."""
    codes, scales = mxfp4_codes(spec, name, shape)
    blocks = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], -1)
    return blocks.reshape(shape[0], shape[2], -1)
