#!/usr/bin/env python3
"""One small random model at a time, as a Hugging Face directory and as a GGUF file: both must pack to
the same shape and the same numbers, and each pack must hold what its file holds.

    tests/pack_formats.py [build/tests/pack_source_test]

Needs torch, transformers and gguf; skips without them. The GGUF side is written here from the published
layout (names, keys, order of the rows of q and k), not by a converter, so that opt and biases are
covered too."""

import json
import os
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    import torch
    from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                              OPTConfig, OPTForCausalLM, Qwen2Config, Qwen2ForCausalLM)
except ImportError as e:
    print(f"no {e.name}: skipped")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)

LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=8192)
SMALL = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=5000, max_position_embeddings=256)
OPT = dict(hidden_size=64, ffn_dim=128, num_hidden_layers=3, num_attention_heads=4, vocab_size=5000,
           max_position_embeddings=100, word_embed_proj_dim=64, dropout=0.0)
MODELS = {
    "llama-tied-llama3": (LlamaForCausalLM, LlamaConfig(
        **SMALL, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "llama-biases-linear": (LlamaForCausalLM, LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True,
        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0))),
    "llama-heads": (LlamaForCausalLM, LlamaConfig(**{**SMALL, "num_key_value_heads": 4})),
    "mistral-head-dim": (MistralForCausalLM, MistralConfig(
        **SMALL, head_dim=32, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL, use_sliding_window=False)),
    "opt": (OPTForCausalLM, OPTConfig(**OPT)),
    "opt-350m": (OPTForCausalLM, OPTConfig(**{
        **OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False})),
    "opt-gelu-no-bias": (OPTForCausalLM, OPTConfig(
        **OPT, activation_function="gelu", enable_bias=False)),
}
LLAMA_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OPT_NAMES = {
    "model.decoder.embed_tokens": "token_embd", "model.decoder.embed_positions": "position_embd",
    "model.decoder.final_layer_norm": "output_norm", "model.decoder.project_in": "project_in",
    "model.decoder.project_out": "project_out", "lm_head": "output",
    "self_attn_layer_norm": "attn_norm", "final_layer_norm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output", "fc1": "ffn_up", "fc2": "ffn_down",
}


def gguf_name(name, names):
    stem, end = name.rsplit(".", 1)
    for layers in ("model.layers.", "model.decoder.layers."):
        if stem.startswith(layers):
            number, rest = stem[len(layers):].split(".", 1)
            return f"blk.{number}.{names[rest]}.{end}"
    return f"{names[stem]}.{end}"


def paired(rows, n_heads):
    """The order of q and k rows in GGUF llama files: pairs of neighbours are rotated."""
    half = rows.shape[0] // n_heads // 2
    return rows.reshape(n_heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def rope_divisors(config, inv_freq):
    dim = config.head_dim or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, dim, 2, dtype=torch.float) / dim  # in f32, as the converter has it
    plain = 1.0 / (config.rope_parameters["rope_theta"] ** exponents)
    return (plain.double() / inv_freq.double()).float().numpy()


def write_gguf(path, model, config):
    opt = config.model_type == "opt"
    arch = "opt" if opt else "qwen2" if config.model_type == "qwen2" else "llama"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn_dim if opt else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_context_length(config.max_position_embeddings)
    if opt:
        writer.add_layer_norm_eps(1e-5)
        writer.add_bool("opt.norm_after", not config.do_layer_norm_before)
        writer.add_string("opt.activation", config.activation_function)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        if getattr(config, "head_dim", None):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        if config.rope_parameters["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(config.rope_parameters["factor"])
        if config.rope_parameters["rope_type"] == "llama3":
            writer.add_tensor("rope_freqs.weight",
                              rope_divisors(config, type(model.model.rotary_emb)(config).inv_freq))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.float().numpy()
        if arch == "llama" and ".q_proj." in name:
            data = paired(data, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            data = paired(data, config.num_key_value_heads)
        writer.add_tensor(gguf_name(name, OPT_NAMES if opt else LLAMA_NAMES),
                          np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def to_v4(directory):
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling instead of rope_parameters."""
    path = os.path.join(directory, "config.json")
    with open(path) as f:
        config = json.load(f)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    with open(path, "w") as f:
        json.dump(config, f)


def run(program, *paths):
    done = subprocess.run([program, *paths], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/tests/pack_source_test"
    n_ok = n_all = 0
    for seed, (name, (cls, config)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = cls(config).to(torch.bfloat16).eval()
        with torch.no_grad():
            for p in model.parameters():  # norms and biases too
                p.copy_(torch.randn(p.shape) * 0.1)
        results = []
        with tempfile.TemporaryDirectory() as temp:
            directory, file = os.path.join(temp, name), os.path.join(temp, name + ".gguf")
            model.save_pretrained(directory, max_shard_size="300KB" if seed % 2 else "1GB")
            write_gguf(file, model, config)
            results.append(run(program, directory, file))
            results.append(run(program, directory))
            results.append(run(program, file))
            if config.model_type in ("llama", "mistral", "qwen2"):
                to_v4(directory)
                results.append(run(program, directory, file))
        print(f"{name}: {sum(results)} of {len(results)} ok")
        n_ok += sum(results)
        n_all += len(results)
    print(f"{n_ok} passed, {n_all - n_ok} failed, 0 skipped")
    return 0 if n_ok == n_all else 1


if __name__ == "__main__":
    sys.exit(main())
