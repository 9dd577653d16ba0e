#!/usr/bin/env python3
"""Small random checkpoints of every model family, as safetensors and as GGUF: `families.py DIR [name ...]`.

Owns: their configurations, and how GGUF files of each family hold what safetensors hold. Names and shapes of tensors come
from the goldens, where transformers has listed them; numbers are tiny.py's: exact arithmetic only, so that goldens hold for
files made anywhere. Refuses: torch, transformers.
"""

import gzip
import json
import os
import re
import sys

import gguf
import numpy as np

import experts
import gemma4
import latent
import states
import tiny

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data", "families.json.gz")
VOCAB = 320


def common(kind, dim, heads, kv, ffn, layers, **more):
    return {
        "model_type": kind, "hidden_size": dim, "num_attention_heads": heads, "num_key_value_heads": kv,
        "intermediate_size": ffn, "num_hidden_layers": layers, "vocab_size": VOCAB, "max_position_embeddings": 256,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False, **more,
    }


def llama(dim, heads, kv, ffn, layers, **more):
    return common("llama", dim, heads, kv, ffn, layers, **{"hidden_act": "silu", "rms_norm_eps": 1e-5, **more})


def gpt2(dim, heads, layers, **more):
    return {"model_type": "gpt2", "n_embd": dim, "n_head": heads, "n_layer": layers, "n_positions": 256, "vocab_size": VOCAB,
            "bos_token_id": 1, "eos_token_id": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **more}


def neox(dim, heads, ffn, layers, **more):
    c = common("gpt_neox", dim, heads, heads, ffn, layers, hidden_act="gelu", **more)
    del c["num_key_value_heads"]
    return c


def gemma2(dim, heads, kv, ffn, layers, **more):
    return common("gemma2", dim, heads, kv, ffn, layers, **{"hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                                                            "tie_word_embeddings": True, **more})


def vision(text):
    tower = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    return {"model_type": "gemma3", "text_config": text, "vision_config": tower, "mm_tokens_per_image": 4,
            "image_token_index": 300, "boi_token_index": 298, "eoi_token_index": 299}


def pixtral(text):
    tower = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
             "head_dim": 16, "image_size": 28, "patch_size": 14}
    return {"model_type": "mistral3", "text_config": text, "vision_config": tower, "image_token_index": 300, "spatial_merge_size": 1,
            "tie_word_embeddings": text["tie_word_embeddings"]}


def longrope(n, **more):
    return {"type": "longrope", "short_factor": [1 + i / 32 for i in range(n)], "long_factor": [1 + i / 4 for i in range(n)],
            **more}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
GROWING = {**YARN, "rope_theta": 1000000.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
           "llama_4_scaling_beta": 0.1}
SPECS = {
    # rope: the kinds that llama's own goldens leave out
    "llama-linear": llama(96, 3, 1, 160, 2, head_dim=32, rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 2.5}),
    "llama-yarn": llama(128, 4, 2, 160, 2, rope_theta=50000.0, rope_scaling=YARN),
    "llama-yarn-mscale": llama(96, 2, 1, 128, 3, rope_theta=10000.0,
                               rope_scaling={**YARN, "mscale": 0.8, "mscale_all_dim": 0.5, "beta_fast": 16, "truncate": False}),
    "llama-dynamic": llama(96, 3, 3, 160, 2, rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 4.0}),
    "mistral-wide": common("mistral", 128, 4, 1, 160, 2, head_dim=64, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=None,
                           rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "mistral-window": common("mistral", 96, 3, 1, 160, 3, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=48,
                             rope_theta=10000.0),
    "mistral-page": common("mistral", 64, 2, 2, 128, 2, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=33,
                           rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "qwen2-late": common("qwen2", 96, 3, 3, 128, 3, hidden_act="silu", rms_norm_eps=1e-6, use_sliding_window=True,
                         sliding_window=70, max_window_layers=1, rope_theta=1000000.0),
    "qwen2-bias": common("qwen2", 96, 3, 1, 144, 3, hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=True,
                         use_sliding_window=False, sliding_window=32, max_window_layers=2, rope_theta=1000000.0),
    "qwen3-gqa": common("qwen3", 128, 4, 2, 192, 2, head_dim=64, hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False,
                        rope_theta=1000000.0),
    "qwen3-mqa": common("qwen3", 96, 3, 1, 128, 3, head_dim=48, hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=True,
                        rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}),
    "qwen3-yarn": common("qwen3", 96, 6, 2, 128, 2, head_dim=32, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000.0,
                         rope_scaling=YARN),
    "gemma-mqa": common("gemma", 128, 4, 1, 256, 2, head_dim=48, hidden_act="gelu", hidden_activation="gelu_pytorch_tanh",
                        rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True),
    "gemma-mha": common("gemma", 96, 3, 3, 160, 3, head_dim=32, hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                        rope_theta=10000.0, tie_word_embeddings=True),
    "gemma-gelu": common("gemma", 64, 4, 2, 128, 2, head_dim=32, hidden_act="gelu", hidden_activation="gelu_pytorch_tanh",
                         rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
                         tie_word_embeddings=True),
    "gemma2-window": gemma2(96, 3, 1, 160, 4, head_dim=32, rope_theta=10000.0, sliding_window=40, query_pre_attn_scalar=32,
                            attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma2-types": gemma2(64, 4, 2, 128, 3, head_dim=32, sliding_window=33, query_pre_attn_scalar=16,
                           layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                           attn_logit_softcapping=3.0, final_logit_softcapping=None,
                           rope_parameters={"rope_type": "default", "rope_theta": 20000.0}),
    "gemma2-null": gemma2(64, 2, 2, 128, 2, head_dim=48, sliding_window=50, attn_logit_softcapping=None,
                          final_logit_softcapping=2.0),
    "gemma2-default": gemma2(64, 2, 1, 128, 3, head_dim=32, query_pre_attn_scalar=32),
    "gemma3-pattern": common("gemma3_text", 96, 3, 1, 160, 4, head_dim=32, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                             rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
                             sliding_window=40, sliding_window_pattern=2, query_pre_attn_scalar=64, tie_word_embeddings=True),
    "gemma3-types": common("gemma3_text", 64, 4, 2, 128, 3, head_dim=16, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                           sliding_window=33, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                           query_pre_attn_scalar=16, tie_word_embeddings=True,
                           rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}),
    "gemma3-six": common("gemma3_text", 64, 2, 1, 128, 7, head_dim=32, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                         rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window=50, sliding_window_pattern=6,
                         query_pre_attn_scalar=32, tie_word_embeddings=True),
    # with a vision tower; class defaults are 8 heads, 4 of KV, and 256 to scale scores by
    "gemma3-vision": vision({"model_type": "gemma3_text", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
                             "head_dim": 32, "vocab_size": VOCAB, "max_position_embeddings": 256, "sliding_window": 24,
                             "sliding_window_pattern": 2, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "gemma3-vision-own": vision(common("gemma3_text", 64, 2, 1, 128, 7, head_dim=32, rms_norm_eps=1e-6, sliding_window=33,
                                       query_pre_attn_scalar=32, tie_word_embeddings=True, rope_parameters={
                                           "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
    "phi3-plain": common("phi3", 96, 3, 3, 160, 2, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
                         original_max_position_embeddings=256, sliding_window=None),
    "phi3-long": common("phi3", 128, 4, 2, 192, 2, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0,
                        rope_scaling=longrope(16), original_max_position_embeddings=64, sliding_window=512),
    "phi3-partial": common("phi3", 128, 2, 1, 160, 3, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=250000.0,
                           partial_rotary_factor=0.75, rope_scaling=longrope(24), original_max_position_embeddings=64,
                           sliding_window=None, tie_word_embeddings=True),
    "phi3-window": common("phi3", 96, 6, 2, 160, 2, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
                          original_max_position_embeddings=256, sliding_window=20),
    "gpt_neox-parallel": neox(128, 4, 256, 2, layer_norm_eps=1e-5, rotary_pct=0.25, rotary_emb_base=10000,
                              use_parallel_residual=True),
    "gpt_neox-serial": neox(96, 3, 160, 3, layer_norm_eps=1e-5, rotary_pct=1.0, rotary_emb_base=20000,
                            use_parallel_residual=False),
    "gpt_neox-half": neox(96, 2, 192, 2, layer_norm_eps=1e-6, use_parallel_residual=True,
                          rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "gpt2-plain": gpt2(96, 3, 2),
    "gpt2-inner": gpt2(64, 2, 3, n_inner=192, layer_norm_epsilon=1e-6),
    "gpt2-relu": gpt2(128, 8, 2, activation_function="relu"),
    "stablelm-plain": common("stablelm", 96, 3, 3, 160, 2, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=10000.0,
                             partial_rotary_factor=0.25, use_qkv_bias=True),
    "stablelm-norms": common("stablelm", 128, 4, 2, 192, 2, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=10000.0,
                             partial_rotary_factor=0.25, qk_layernorm=True),
    "stablelm-parallel": common("stablelm", 128, 4, 1, 160, 2, hidden_act="silu", layer_norm_eps=1e-5, qk_layernorm=True,
                                use_parallel_residual=True,
                                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "olmo2-mha": common("olmo2", 96, 3, 3, 160, 2, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0),
    "olmo2-gqa": common("olmo2", 128, 4, 2, 192, 3, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0),
    "olmo2-tied": common("olmo2", 64, 2, 1, 128, 2, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "granite-gqa": common("granite", 96, 3, 1, 160, 2, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0,
                          embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.015625, logits_scaling=8.0,
                          tie_word_embeddings=True),
    "granite-mha": common("granite", 128, 4, 4, 160, 2, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000000.0,
                          embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.1, logits_scaling=2.0),
    "granite-bias": common("granite", 64, 2, 1, 128, 3, hidden_act="silu", rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True,
                           embedding_multiplier=1.0, residual_multiplier=0.22, attention_multiplier=0.25, logits_scaling=1.0,
                           rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "smollm3-list": common("smollm3", 96, 3, 1, 160, 4, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=2000000.0,
                           no_rope_layers=[1, 0, 1, 1], use_sliding_window=False, tie_word_embeddings=True),
    "smollm3-fourth": common("smollm3", 64, 4, 2, 128, 5, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=2000000.0,
                             no_rope_layer_interval=4, use_sliding_window=False),
    "smollm3-none": common("smollm3", 64, 2, 2, 128, 2, hidden_act="silu", rms_norm_eps=1e-6, no_rope_layers=[1, 1],
                           use_sliding_window=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    **experts.specs(common),
    # like llama, each in a way of its own
    "hunyuan_v1_dense-alpha": common("hunyuan_v1_dense", 128, 4, 2, 192, 2, head_dim=64, hidden_act="silu", rms_norm_eps=1e-5,
                                     rope_theta=10000.0, rope_scaling=experts.ALPHA),
    "hunyuan_v1_dense-bias": common("hunyuan_v1_dense", 96, 3, 1, 160, 3, head_dim=32, hidden_act="silu", rms_norm_eps=1e-6,
                                    attention_bias=True, tie_word_embeddings=True, rope_parameters=DEFAULT),
    "hunyuan_v1_dense-dynamic": common("hunyuan_v1_dense", 64, 2, 2, 128, 2, head_dim=48, hidden_act="silu", rms_norm_eps=1e-5,
                                       rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 4.0}),
    "seed_oss-gqa": common("seed_oss", 128, 4, 2, 192, 2, head_dim=64, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000000.0,
                           attention_bias=True, attention_out_bias=False),
    "seed_oss-out": common("seed_oss", 96, 3, 1, 160, 3, head_dim=48, hidden_act="silu", rms_norm_eps=1e-6, attention_out_bias=True,
                           mlp_bias=True, tie_word_embeddings=True, rope_parameters=DEFAULT),
    "seed_oss-bare": common("seed_oss", 64, 2, 2, 128, 2, head_dim=32, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0,
                            attention_bias=False, attention_out_bias=False),
    "olmo3-window": common("olmo3", 96, 3, 1, 160, 5, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0, sliding_window=24),
    "olmo3-yarn": common("olmo3", 128, 4, 4, 160, 3, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0, rope_scaling=YARN,
                         sliding_window=33, layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "olmo3-nested": common("olmo3", 64, 4, 2, 128, 3, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=40, tie_word_embeddings=True,
                           layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                           rope_parameters={"full_attention": {**YARN, "rope_theta": 500000.0, "attention_factor": 1.25},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}),
    # layers with a window keep the default theta, whatever rope_theta says
    "olmo3-theta": common("olmo3", 64, 2, 1, 128, 4, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, sliding_window=50),
    "exaone4-window": common("exaone4", 96, 3, 1, 160, 5, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=1000000.0, sliding_window=24,
                             sliding_window_pattern=4),
    "exaone4-types": common("exaone4", 128, 4, 2, 192, 3, head_dim=48, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=33,
                            sliding_window_pattern="LLLG", layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                            rope_parameters=DEFAULT),
    "exaone4-full": common("exaone4", 64, 2, 2, 128, 2, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=None,
                           sliding_window_pattern=None, layer_types=["full_attention"] * 2, rope_theta=1000000.0,
                           rope_scaling=tiny.LLAMA3, tie_word_embeddings=True),
    # a window that no layer has: no layer turns
    "exaone4-still": common("exaone4", 64, 4, 1, 128, 2, hidden_act="silu", rms_norm_eps=1e-6, sliding_window=32,
                            layer_types=["full_attention"] * 2, rope_parameters=DEFAULT),
    "cohere-plain": common("cohere", 96, 3, 1, 160, 2, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=10000.0,
                           tie_word_embeddings=True),
    "cohere-norms": common("cohere", 128, 4, 2, 192, 2, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=4000000.0,
                           use_qk_norm=True, logit_scale=0.25, tie_word_embeddings=True),
    "cohere-bias": common("cohere", 64, 2, 2, 128, 3, hidden_act="silu", layer_norm_eps=1e-6, attention_bias=True, logit_scale=0.5,
                          rope_parameters=DEFAULT),
    "cohere2-window": common("cohere2", 96, 3, 1, 160, 5, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=50000.0,
                             sliding_window=24, logit_scale=0.25, tie_word_embeddings=True),
    "cohere2-types": common("cohere2", 128, 4, 2, 192, 3, hidden_act="silu", layer_norm_eps=1e-5, sliding_window=33,
                            layer_types=["full_attention", "sliding_attention", "sliding_attention"], attention_bias=True,
                            rope_parameters=DEFAULT),
    "cohere2-pattern": common("cohere2", 64, 2, 2, 128, 4, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=10000.0,
                              sliding_window=40, sliding_window_pattern=2, tie_word_embeddings=True),
    # queries grow from position 64 on
    "ministral3-yarn": common("ministral3", 96, 3, 1, 160, 2, head_dim=48, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=None,
                              rope_parameters=GROWING),
    "ministral3-window": common("ministral3", 128, 4, 2, 192, 3, head_dim=32, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=70,
                                tie_word_embeddings=True, rope_scaling={**GROWING, "original_max_position_embeddings": 48,
                                                                        "llama_4_scaling_beta": 0.5}),
    "ministral3-plain": common("ministral3", 64, 2, 2, 128, 2, head_dim=32, hidden_act="silu", rms_norm_eps=1e-6,
                               rope_parameters={**DEFAULT, "original_max_position_embeddings": 20, "llama_4_scaling_beta": 0.25}),
    "mistral3-vision": pixtral(common("mistral", 64, 4, 2, 128, 2, head_dim=32, hidden_act="silu", rms_norm_eps=1e-5,
                                      sliding_window=None, rope_theta=1000000.0)),
    "mistral3-vision-own": pixtral(common("ministral3", 96, 3, 1, 160, 2, head_dim=32, hidden_act="silu", rms_norm_eps=1e-5,
                                          rope_parameters=GROWING, tie_word_embeddings=True)),
    "apertus-gqa": common("apertus", 96, 3, 1, 160, 3, hidden_act="xielu", rms_norm_eps=1e-5, rope_parameters=DEFAULT),
    "apertus-scaled": common("apertus", 128, 4, 2, 192, 2, hidden_act="xielu", rms_norm_eps=1e-5, rope_theta=12000000.0,
                             rope_scaling=tiny.LLAMA3, attention_bias=True),
    "apertus-usual": common("apertus", 64, 2, 2, 128, 2, head_dim=48, hidden_act="xielu", rms_norm_eps=1e-6, tie_word_embeddings=True),
    **states.specs(common),
    **latent.specs(common),
    **gemma4.specs(common),
}
# What GGUF files cannot say: they would be another model.
NO_GGUF = {"gemma2-types": "layer_types", "gemma2-null": "null", "gemma3-pattern": "the pattern", "gemma3-vision": "the pattern", "gemma3-types": "layer_types", "gemma-gelu": "", "gpt2-relu": "activation", "granite-bias": "", "smollm3-list": "no_rope_layers",
           "smollm3-none": "no_rope_layers", "llama-yarn-mscale": "mscale, beta, truncate", "llama-dynamic": "dynamic",
           "qwen3-yarn": "context", "mistral-window": "sliding_window", "mistral-page": "sliding_window", "qwen2-late": "sliding_window",
           "exaone4-full": "llama3's divisors, rounded",
           "ministral3-window": "sliding_window", "apertus-scaled": "llama3's divisors, rounded",
           "apertus-usual": "llama3's divisors, rounded",
           "exaone4-still": "a window of no layer", "cohere-bias": "a head of its own", "cohere2-types": "layer_types", "cohere2-pattern": "sliding_window_pattern",
           **experts.NO_GGUF, **latent.NO_GGUF, **states.NO_GGUF,
           **{spec: "not read yet" for spec in states.specs(common) if not spec.startswith(states.IN_GGUF)}}
FORMS = ("f32", "bf16")
GGUF_BLOCKS = {"nemotron_h-experts": 6, "nemotron_h-latent-mlp": 4}  # how many layers of a checkpoint a GGUF file can hold: no MLP where others have experts


def gguf_part(spec, tensors):
    """Configuration of what a GGUF file can hold of a checkpoint, and its tensors."""
    n = GGUF_BLOCKS.get(spec)
    if n is None:
        return SPECS[spec], tensors
    layer = re.compile(r"backbone\.layers\.(\d+)\.")
    pattern = SPECS[spec]["hybrid_override_pattern"][:n]
    kept = [[name, shape] for name, shape in tensors if not layer.match(name) or int(layer.match(name)[1]) < n]
    return {**SPECS[spec], "hybrid_override_pattern": pattern, "num_hidden_layers": n}, kept


def stored(path=DATA):
    with gzip.open(path, "rt", encoding="utf-8") as f:
        return json.load(f)["models"]


def gain_of(spec, name):
    """How wide the numbers of a matrix are spread: so that layers matter and logits are not all alike."""
    own = experts.gain_of(spec, name) or states.gain_of(name)
    if own:
        return own
    if "embed" in name or "wte" in name:
        return 3
    if "lm_head" in name:
        return 2.5
    return 1.3


CONSTANTS = {"act_fn.beta": 0.5, "act_fn.eps": -2.0**-20}  # of apertus


def weights(spec, tensors, form="f32"):
    """{Hugging Face name: f32 array} of [name, shape] pairs, as a reader gets them back from a file of this format."""
    kind, out = SPECS[spec]["model_type"], {}
    for name, shape in tensors:
        r = tiny.rng(spec, name)
        if experts.is_mxfp4(spec, name):
            x = experts.mxfp4_decoded(spec, name, shape)
        elif name.endswith(tuple(CONSTANTS)):
            x = np.full(shape, next(v for k, v in CONSTANTS.items() if name.endswith(k)), np.float32)
        elif name.endswith("sinks"):  # as large as scores are
            x = (r.randint(-32, 33, shape) / 16).astype(np.float32)
        elif ".moe_statics." in name:  # beside shares of a softmax
            x = (r.randint(-32, 33, shape) / 1024).astype(np.float32)
        elif len(shape) == 1 or name.endswith("bias"):
            steps = r.randint(-32, 33, shape)
            plus_one = kind.startswith("gemma") or states.is_plus_one(kind, name)
            scale = name.endswith("weight") and not plus_one or gemma4.is_scale(kind, name)
            x = ((64 + steps) / 64 * gemma4.size(kind, name) if scale else steps / 128).astype(np.float32)
        else:
            x = tiny.spread(r, shape, gain_of(spec, name) / 16 * (256 / max(shape[1], 64)) ** 0.5)
            x = x if form == "f32" else tiny.decode(*tiny.encode(x, form)).reshape(shape)
        out[name] = x
    return out


def own_names(tensors):
    """As transformers 5 computes with them, and writes with save_original_format=False: the towers under model."""
    parts = ("language_model.", "vision_tower.", "multi_modal_projector.")
    moved = {"model.language_model.model.": "model.language_model.", "model.language_model.lm_head.": "lm_head.", "backbone.": "model."}
    out = {}
    for name, x in tensors.items():
        name = f"model.{name}" if name.startswith(parts) else name
        start = next((s for s in moved if name.startswith(s)), "")
        out[moved.get(start, "") + name.removeprefix(start)] = x
    return out


def text_of(c, tensors):
    """Configuration and tensors of the text model."""
    if "text_config" not in c:
        return c, tensors
    starts = {"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."}
    return c["text_config"], {to + n.removeprefix(start): x for n, x in tensors.items() for start, to in starts.items() if n.startswith(start)}


def write_hf(folder, spec, tensors, form, config=None):
    os.makedirs(folder, exist_ok=True)
    dtype = {"f32": "float32", "bf16": "bfloat16"}[form]
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as f:
        json.dump({**(config or SPECS[spec]), "torch_dtype": dtype}, f, indent=1)
    stored = weights(spec, tensors, form)
    if spec == "gpt_neox-serial":  # as published; the others as transformers 5 writes them
        stored["embed_out.weight"] = stored.pop("lm_head.weight")
    if spec in experts.FUSED:
        stored = experts.fused(stored)
    if spec.endswith("-own"):
        stored = own_names(stored)
    for name in [n for n in stored if experts.is_mxfp4(spec, n)]:
        stored.update(experts.split_mxfp4(spec, name, stored.pop(name).shape))
    tiny.write_safetensors(os.path.join(folder, "model.safetensors"), stored, form)


# ---- GGUF ---------------------------------------------------------------------------------------

ARCHITECTURES = {"gpt_neox": "gptneox", "gemma3_text": "gemma3", "mistral": "llama", "mixtral": "llama",
                 "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss",
                 "granitemoeshared": "granitemoe", "olmo3": "olmo2", "cohere": "command-r", "ministral3": "mistral3",
                 "hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "glm4_moe": "glm4moe", "gemma4_text": "gemma4", "minimax_m2": "minimax-m2", "ernie4_5_moe": "ernie4_5-moe", **latent.ARCHITECTURES}
PAIRED = ("llama", "mistral", "mixtral", "granite", "granitemoe", "granitemoeshared", "smollm3", "ministral3", "granitemoehybrid",
          "nemotron_h")


def architecture(kind, c):
    return states.architecture(c) if kind in states.FAMILIES else ARCHITECTURES.get(kind, kind)


def fused_by_kind(x, heads):
    """gpt_neox: [heads][q, k, v][head_dim] -> all of q, all of k, all of v."""
    return x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def gguf_tensors(c, tensors):
    """(GGUF name, array), as the converters of these families leave them; bytes are MXFP4's."""
    kind, heads = c["model_type"], c.get("num_attention_heads", c.get("n_head"))
    arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture(kind, c))
    names = gguf.get_tensor_name_map(arch, c.get("num_hidden_layers", c.get("n_layer")))
    own = {}
    for name, x in tensors.items():
        if kind in PAIRED and ".q_proj." in name:
            x = tiny.rope_permute(x, heads)
        if kind in PAIRED and ".k_proj." in name:
            x = tiny.rope_permute(x, c["num_key_value_heads"])
        if name.startswith("blk."):
            yield name, x
            continue
        if kind.startswith("gemma") and kind not in gemma4.FAMILIES and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if kind == "gpt_neox" and "query_key_value" in name:
            x = fused_by_kind(x, heads)
        if ".act_fn." in name:
            continue
        if kind == "gpt2" and x.ndim == 2 and ".h." in name:
            x = x.T
        if ".norms." in name:  # stablelm: a head's norm is a tensor of its own
            stem, _, rest = name.partition(".norms.")
            own.setdefault(stem + ".weight", {})[int(rest.split(".")[0])] = x
            continue
        if experts.gguf_name_old(name):
            yield experts.gguf_name_old(name), x
            continue
        own_name = "embed_out.weight" if kind == "gpt_neox" and name == "lm_head.weight" else name
        yield names.get_name(own_name, try_suffixes=(".weight", ".bias")), x
    for name, parts in own.items():
        yield names.get_name(name, try_suffixes=(".weight",)), np.stack([parts[i] for i in range(len(parts))])


def rope_keys(w, c, head_dim):
    rope = {**(c.get("rope_scaling") or {}), **(c.get("rope_parameters") or {})}
    if c["model_type"] == "olmo3":
        w.add_rope_freq_base_swa(rope.get("sliding_attention", {}).get("rope_theta", 500000.0))
    rope = rope.get("full_attention", rope)
    kind = rope.get("rope_type", rope.get("type", "default"))
    usual = c["rotary_dim"] / head_dim if "rotary_dim" in c else 0.5 if c["model_type"] == "glm4_moe" else 1.0
    partial = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", c.get("rotary_pct", usual)))
    if c["model_type"] == "nemotron_h":  # where nothing turns, the number is llama's
        partial = c["hidden_size"] / c["num_attention_heads"] / head_dim
    w.add_rope_dimension_count(int(head_dim * partial))
    stretch = rope.get("alpha", 1) ** (head_dim / (head_dim - 2))
    w.add_rope_freq_base(rope.get("rope_theta", c.get("rope_theta", c.get("rotary_emb_base", 10000.0))) * stretch)
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope:
            w.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        if "attention_factor" in rope:
            w.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if kind == "longrope":
        original = c["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        scale = np.sqrt(1 + np.log(c["max_position_embeddings"] / original) / np.log(original))
        w.add_rope_scaling_attn_factors(rope.get("short_mscale", float(scale)))
        for which in ("long", "short"):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(rope[which + "_factor"], np.float32))


def layer_types(c):
    every = c.get("sliding_window_pattern", 4)
    return c.get("layer_types") or ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(c["num_hidden_layers"])]


def gguf_keys(w, c):
    dim, heads = c.get("hidden_size", c.get("n_embd")), c.get("num_attention_heads", c.get("n_head"))
    head_dim = c.get("head_dim", dim // heads)
    w.add_context_length(c.get("max_position_embeddings", c.get("n_positions")))
    w.add_embedding_length(dim)
    w.add_block_count(c.get("num_hidden_layers", c.get("n_layer")))
    w.add_head_count(heads)
    if c["model_type"] != "qwen3_5_moe_text" and not c.get("use_double_wide_mlp"):
        w.add_feed_forward_length(states.mlp_width(c) if c["model_type"] in ("lfm2", "nemotron_h") else c.get("intermediate_size") or c.get("n_inner") or 4 * dim)
    if c["model_type"] in latent.FAMILIES:
        latent.gguf_keys(w, c)
    elif c["model_type"] in states.FAMILIES:
        states.gguf_keys(w, c)
    elif c["model_type"] in gemma4.FAMILIES:
        gemma4.gguf_keys(w, c)
    elif "num_key_value_heads" in c:
        w.add_head_count_kv(c["num_key_value_heads"])
    if "head_dim" in c and c["model_type"] not in gemma4.FAMILIES:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    eps = next((c[key] for key in ("rms_norm_eps", "norm_eps") if key in c), None)
    if eps is not None:
        w.add_layer_norm_rms_eps(eps)
    else:
        w.add_layer_norm_eps(c.get("layer_norm_eps", c.get("layer_norm_epsilon", 1e-5)))
    if c["model_type"] not in ("gpt2", *latent.FAMILIES, *gemma4.FAMILIES):
        rope_keys(w, c, head_dim)
    if c["model_type"] in ("phi3", "phimoe", "gemma3_text") and c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if c["model_type"] == "gemma2":
        if "attn_logit_softcapping" in c:  # else the reader's own numbers
            w.add_sliding_window(c["sliding_window"])
            w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
            w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if c["model_type"] in ("olmo3", "exaone4") and c["sliding_window"]:
        w.add_sliding_window(c["sliding_window"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in layer_types(c)])
    if c["model_type"].startswith("cohere"):
        w.add_logit_scale(c.get("logit_scale", 0.0625))
    if c["model_type"] == "cohere2":
        w.add_sliding_window(c["sliding_window"])
    if c["model_type"] in ("gpt_neox", "stablelm"):
        w.add_parallel_residual(c.get("use_parallel_residual", False))
    if c["model_type"].startswith("granite"):
        for key, add in (("embedding_multiplier", w.add_embedding_scale), ("residual_multiplier", w.add_residual_scale),
                         ("attention_multiplier", w.add_attention_scale), ("logits_scaling", w.add_logit_scale)):
            if key in c:
                add(c[key])
    if c["model_type"] in experts.FAMILIES:
        experts.gguf_keys(w, c)


def gguf_own_keys(w, c, tensors):
    """What comes of tensors, or of RoPE's parameters beside them."""
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if c["model_type"] == "ministral3":
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        if rope["rope_type"] == "default":
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if c["model_type"] == "apertus":
        for number in ("alpha_p", "alpha_n", "beta", "eps"):
            of = [tensors.get(f"model.layers.{i}.mlp.act_fn.{number}") for i in range(c["num_hidden_layers"])]
            getattr(w, f"add_xielu_{number}")([float(x.item()) for x in of])


def write_gguf(path, spec, tensors):
    c, tensors = gguf_part(spec, tensors)
    c, tensors = text_of(c, weights(spec, tensors))
    kind = "mistral3" if spec.startswith("mistral3") else c["model_type"]  # with a vision tower, even a plain mistral
    w = gguf.GGUFWriter(path, architecture(kind, c))
    w.add_name(f"tiny {spec}")
    w.add_vocab_size(c["vocab_size"])
    gguf_keys(w, c)
    gguf_own_keys(w, c, tensors)
    w.add_tokenizer_model("none")
    if kind in latent.FAMILIES:
        tensors = latent.gguf_names(c, tensors)
    if kind in states.FAMILIES:
        tensors = dict(states.gguf_names(c, tensors))
    if kind in gemma4.FAMILIES:
        tensors = dict(gemma4.gguf_names(tensors))
    for name, x in gguf_tensors(c, experts.gguf_names(spec, tensors)):
        kind = gguf.GGMLQuantizationType.MXFP4 if x.dtype == np.uint8 else None
        w.add_tensor(name, np.ascontiguousarray(x), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for spec, entry in stored().items():
        if len(sys.argv) > 2 and spec not in sys.argv[2:]:
            continue
        for form in FORMS:
            write_hf(os.path.join(sys.argv[1], f"{spec}-{form}"), spec, entry["tensors"], form)
        if spec not in NO_GGUF:
            write_gguf(os.path.join(sys.argv[1], f"{spec}-f32.gguf"), spec, entry["tensors"])
