#!/usr/bin/env python3
"""One small random model at a time, as a Hugging Face directory and as a GGUF file: both must pack to
the same shape and the same numbers, and each pack must hold what its file holds: pack_formats.py

The safetensors package writes the one, in one file or in shards, gguf the other; the GGUF side follows the
published layout (names, keys, order of the rows of q and k), not a converter, so that opt and biases are
covered too. $BUILD/tests/tools/pack_source packs and compares.
"""
import json
import os
import subprocess
import sys

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import golden_common  # noqa: F401  (where tiny is found)
import tiny
import trial

TOOL = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/tools/pack_source")
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=8192)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
SMALL = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=5000, max_position_embeddings=256, rms_norm_eps=1e-6,
             hidden_act="silu", tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
             rope_parameters=PLAIN)
OPT = dict(model_type="opt", architectures=["OPTForCausalLM"], hidden_size=64, ffn_dim=128, num_hidden_layers=3,
           num_attention_heads=4, vocab_size=5000, max_position_embeddings=100, word_embed_proj_dim=64,
           do_layer_norm_before=True, activation_function="relu", enable_bias=True, tie_word_embeddings=True,
           layer_norm_elementwise_affine=True, _remove_final_layer_norm=False)


def llama(kind="llama", **more):
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[kind]
    return {**SMALL, "model_type": kind, "architectures": [name + "ForCausalLM"], **more}


MODELS = {
    "llama-tied-llama3": llama(tie_word_embeddings=True, rope_parameters=LLAMA3),
    "llama-biases-linear": llama(attention_bias=True, mlp_bias=True,
                                 rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama-heads": llama(num_key_value_heads=4),
    "mistral-head-dim": llama("mistral", head_dim=32, sliding_window=None),
    "qwen2": llama("qwen2", use_sliding_window=False),
    "opt": OPT,
    "opt-350m": {**OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "opt-gelu-no-bias": {**OPT, "activation_function": "gelu", "enable_bias": False},
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


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rope_divisors(config):
    """Plain over scaled rotation frequencies, in f32 as a converter has them."""
    rope, d = config["rope_parameters"], head_dim(config)
    plain = (1 / np.float32(rope["rope_theta"]) ** (np.arange(0, d, 2, dtype=np.float32) / d)).astype(np.float32)
    old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    length = 2 * np.pi / plain
    smooth = (old / length - low) / (high - low)
    scaled = np.where(length > old / low, plain / rope["factor"], plain)
    between = (length <= old / low) & (length >= old / high)
    scaled = np.where(between, ((1 - smooth) / rope["factor"] + smooth) * plain, scaled)
    return (plain / scaled).astype(np.float32)


def tensors_of(config, seed):
    """{Hugging Face name: f32 array of numbers that bf16 holds}; norms and biases are random too."""
    kind = config["model_type"]
    if kind == "opt":
        shapes = tiny.shapes_opt(config)
        norms = ("layer_norm.weight", "layer_norm.bias")
        keep = lambda name: config["enable_bias"] or name.endswith(("weight", *norms))
    else:
        biased = config["attention_bias"] or kind == "qwen2"
        shapes = tiny.shapes_llama({**config, "head_dim": head_dim(config), "attention_bias": biased})
        keep = lambda name: kind != "qwen2" or not name.endswith("o_proj.bias")
    r = np.random.RandomState(seed)
    return {name: (r.standard_normal(shape) * 0.1).astype(ml_dtypes.bfloat16).astype(np.float32)
            for name, shape, _ in shapes if keep(name)}


def write_hf(folder, tensors, config, sharded):
    os.mkdir(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "dtype": "bfloat16"}, f)
    stored = {name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items()}
    if not sharded:
        return save_file(stored, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    where = {}
    for i in range(3):
        part = sorted(stored)[i::3]
        where.update(dict.fromkeys(part, f"model-{i + 1:05}-of-00003.safetensors"))
        save_file({name: stored[name] for name in part}, os.path.join(folder, where[part[0]]))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)
    return None


def write_gguf(path, tensors, config, types=None):
    """types: {name: type} of tensors that are bytes of blocks."""
    opt = config["model_type"] == "opt"
    arch = "opt" if opt else "qwen2" if config["model_type"] == "qwen2" else "llama"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["ffn_dim"] if opt else config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_context_length(config["max_position_embeddings"])
    if opt:
        writer.add_layer_norm_eps(1e-5)
        writer.add_bool("opt.norm_after", not config["do_layer_norm_before"])
        writer.add_string("opt.activation", config["activation_function"])
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        if "head_dim" in config:
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
        if config["rope_parameters"]["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(config["rope_parameters"]["factor"])
        if config["rope_parameters"]["rope_type"] == "llama3":
            writer.add_tensor("rope_freqs.weight", rope_divisors(config))
    for name, data in tensors.items():
        if arch == "llama" and ".q_proj." in name and data.size > 1:
            data = paired(data, config["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name and data.size > 1:
            data = paired(data, config["num_key_value_heads"])
        writer.add_tensor(gguf_name(name, OPT_NAMES if opt else LLAMA_NAMES),
                          np.ascontiguousarray(data), raw_dtype=(types or {}).get(name))
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


def packs(tally, what, *paths):
    done = subprocess.run([TOOL, *paths], capture_output=True, text=True, check=False)
    tally.check(done.returncode == 0, f"{what}: {(done.stdout + done.stderr)[-600:]}")


def formats(tally, place, a):
    """Each model in both formats, alone and against each other; llama's config as two versions write it."""
    for seed, (name, config) in enumerate(MODELS.items()):
        tensors = tensors_of(config, seed)
        folder, file = place.at(name), place.at(name + ".gguf")
        write_hf(folder, tensors, config, sharded=seed % 2)
        write_gguf(file, tensors, config)
        packs(tally, f"{name}, both", folder, file)
        packs(tally, f"{name}, directory", folder)
        packs(tally, f"{name}, GGUF", file)
        if config["model_type"] != "opt":
            to_v4(folder)
            packs(tally, f"{name}, config.json of version 4", folder, file)


GRIDS = [gguf.GGMLQuantizationType[name] for name in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")]


def grids(tally, place, a):
    """Matrices in formats that only GGUF has, of any bytes: as they are, and against their numbers as f32."""
    config = llama(hidden_size=256, intermediate_size=512, vocab_size=300)
    r, plain, blocks, types = np.random.RandomState(7), tensors_of(config, 7), {}, {}
    for i, (name, x) in enumerate(plain.items()):
        if x.ndim == 1:
            continue
        types[name] = qtype = GRIDS[i % len(GRIDS)]
        size = gguf.GGML_QUANT_SIZES[qtype][1]
        rows = r.randint(0, 256, (x.shape[0], x.shape[1] // 256, size)).astype(np.uint8)
        rows[..., size - 1 if qtype == gguf.GGMLQuantizationType.IQ1_M else 1] &= 0xBF  # no infinite scales
        blocks[name] = rows.reshape(x.shape[0], -1)
        plain[name] = gguf.quants.dequantize(blocks[name], qtype).astype(np.float32)
    assert set(types.values()) == set(GRIDS)
    files = place.at("grids.gguf"), place.at("grids-f32.gguf")
    write_gguf(files[0], {**plain, **blocks}, config, types)
    write_gguf(files[1], plain, config)
    packs(tally, "grids", files[0])
    packs(tally, "grids, and as f32", *files)


def nvfp4_parts(r, n, k):
    """A matrix as modelopt stores it, and as GGUF does: number i of 16 shares a byte with number i + 8."""
    codes, scales = r.randint(0, 16, (n, k)).astype(np.uint8), r.randint(0, 127, (n, k // 16)).astype(np.uint8)
    factor, of = np.float32(r.rand() * 1e-4 + 1e-5), codes.reshape(n, k // 64, 4, 2, 8)
    halves = (of[..., 0, :] | of[..., 1, :] << 4).reshape(n, k // 64, 32)
    blocks = np.concatenate([scales.reshape(n, k // 64, 4), halves], 2).reshape(n, -1)
    own = {"": codes[:, ::2] | codes[:, 1::2] << 4, "_scale": scales.view(ml_dtypes.float8_e4m3fn), "_scale_2": factor}
    return {".weight" + tail: x for tail, x in own.items()}, blocks, factor


def nvfp4(tally, place, a):
    """NVFP4 in GGUF gives the pack that the same checkpoint of modelopt gives."""
    for dim, ffn in ((256, 512), (192, 320)):
        config = llama(hidden_size=dim, intermediate_size=ffn, vocab_size=300)
        r, plain = np.random.RandomState(dim), tensors_of(config, dim)
        stored, types = {name: x.astype(ml_dtypes.bfloat16) for name, x in plain.items()}, {}
        for name in [name for name, x in plain.items() if x.ndim == 2 and "layers" in name]:
            own, blocks, factor = nvfp4_parts(r, *plain[name].shape)
            del stored[name]
            stored.update({name.removesuffix(".weight") + tail: x for tail, x in own.items()})
            plain[name], types[name] = blocks, gguf.GGMLQuantizationType.NVFP4
            plain[name.removesuffix("weight") + "scale"] = np.array([factor])
            plain[name.removesuffix("weight") + "input_scale"] = np.array([factor * 2])  # of activations: not used
        folder, file = place.at(f"modelopt-{dim}"), place.at(f"nvfp4-{dim}.gguf")
        os.mkdir(folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump({**config, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, f)
        save_file({name: np.ascontiguousarray(x) for name, x in stored.items()}, os.path.join(folder, "model.safetensors"))
        write_gguf(file, plain, config, types)
        packs(tally, f"nvfp4 {dim}, both", folder, file)
        packs(tally, f"nvfp4 {dim}, GGUF", file)
        place.sluice("pack", file, "-o", place.at(f"{dim}.pack"))
        share = os.path.getsize(place.at(f"{dim}.pack")) / os.path.getsize(file)
        tally.check(share < (1.05 if dim % 256 == 0 else 1.12), f"nvfp4 {dim}: a pack of {share:.3f} of the file")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (formats, grids, nvfp4)))
