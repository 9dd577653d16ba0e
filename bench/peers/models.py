#!/usr/bin/env python3
"""The models of the jobs, in the form that an engine reads: models.py MODEL KIND; prints the path.

MODEL smollm2 is the file of tests/model.sh (Q4_1). llama-3b and llama-8b have the shapes of
configs/ and normal(0, 0.02) weights, llama-3b SmolLM2's tokenizer, llama-8b none: speed is real, text is not; so do qwen3-30b-a3b,
qwen3.6-35b-a3b and mixtral-8x7b, in q4_0 alone (17, 20 and 26 GB, blocks of random bits). KIND: q4_1 or bf16 (the
GGUF as it comes), q8_0 or q4_0 (made from it by llama.cpp's quantize), hf (a Hugging Face folder in
bf16, made from the first GGUF; q and k rows go back from GGUF's pairs to halves). Everything is written
tensor by tensor and appears by rename. Needs gguf and numpy: peer.model_path() runs it where they are.
"""
import json
import os
import shutil
import sys

import peer

PLACE = os.path.join(peer.ROOT, "files")
FIRST = {"smollm2": "q4_1", "llama-3b": "bf16", "llama-8b": "bf16", "qwen3-30b-a3b": "q4_0", "mixtral-8x7b": "q4_0",
         "qwen3.6-35b-a3b": "q4_0"}
ARCHITECTURES = {"llama": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "qwen3_5_moe": "qwen35moe"}  # names of our families in GGUF
SMOLLM2_VOCAB = 49152
DEVIATION = 0.02
EVERY, STATE, TAPS = 4, 128, 4  # of a delta net: layers to the next attention; numbers of a head; inputs of the convolution
BLOCK, BLOCK_BYTES = 32, 18  # of q4_0: an f16 scale, then half a byte a weight


def bf16_bits(x):
    """f32 to bf16, nearest even; as uint16."""
    import numpy as np
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def config_read(name):
    values = {}
    with open(os.path.join(peer.TREE, "configs", f"{name}.cfg"), encoding="utf-8") as f:
        for line in f:
            key, eq, value = line.partition("#")[0].partition("=")
            if eq:
                values[key.strip()] = value.strip()
    return values


def shapes_of(c):
    """(name, [slow, fast]) of every tensor, in the order of the layers; [experts, slow, fast] of stacked experts."""
    dim, ffn, head_dim = int(c["dim"]), int(c["ffn"]), head_dim_of(c)
    q, kv, experts, gated = int(c["heads"]) * head_dim, int(c["kv_heads"]) * head_dim, int(c.get("experts", 0)), "state_k_heads" in c
    norms = [("attn_q_norm", [head_dim]), ("attn_k_norm", [head_dim])] * c["family"].startswith("qwen3")
    mlp = [("ffn_gate_inp", [experts, dim]), ("ffn_gate_exps", [experts, ffn, dim]), ("ffn_up_exps", [experts, ffn, dim]),
           ("ffn_down_exps", [experts, dim, ffn])] if experts else [("ffn_gate", [ffn, dim]), ("ffn_up", [ffn, dim]), ("ffn_down", [dim, ffn])]
    if "shared_ffn" in c:
        n = int(c["shared_ffn"])
        mlp += [("ffn_gate_inp_shexp", [dim]), ("ffn_gate_shexp", [n, dim]), ("ffn_up_shexp", [n, dim]), ("ffn_down_shexp", [dim, n])]
    attention = [("attn_q", [q << gated, dim]), ("attn_k", [kv, dim]), ("attn_v", [kv, dim]), ("attn_output", [dim, q]), *norms]
    yield "token_embd.weight", [int(c["vocab"]), dim]
    yield "output_norm.weight", [dim]
    if c.get("tied") == "0":
        yield "output.weight", [int(c["vocab"]), dim]
    for i in range(int(c["layers"])):
        mixer = delta_net_of(c) if gated and (i + 1) % EVERY else attention
        for part, shape in [("attn_norm", [dim]), *mixer, ("post_attention_norm" if gated else "ffn_norm", [dim]), *mlp]:
            yield f"blk.{i}.{part}" + ("" if part in ("ssm_a", "ssm_dt.bias") else ".weight"), shape


def delta_net_of(c):
    dim, heads = int(c["dim"]), int(c["state_v_heads"])
    v, qkv = heads * STATE, (heads + 2 * int(c["state_k_heads"])) * STATE
    return [("attn_qkv", [qkv, dim]), ("attn_gate", [v, dim]), ("ssm_conv1d", [qkv, TAPS]), ("ssm_dt.bias", [heads]), ("ssm_a", [heads]),
            ("ssm_alpha", [heads, dim]), ("ssm_beta", [heads, dim]), ("ssm_norm", [STATE]), ("ssm_out", [dim, v])]


def head_dim_of(c):
    return int(c.get("head_dim", int(c["dim"]) // int(c["heads"])))


def writer_make(path, c):
    import gguf
    w = gguf.GGUFWriter(path, ARCHITECTURES[c["family"]])
    w.add_block_count(int(c["layers"]))
    w.add_context_length(int(c["context"]))
    w.add_embedding_length(int(c["dim"]))
    w.add_feed_forward_length(int(c["ffn"]))
    w.add_head_count(int(c["heads"]))
    w.add_head_count_kv(int(c["kv_heads"]))
    w.add_rope_freq_base(float(c["rope_theta"]))
    w.add_layer_norm_rms_eps(float(c["norm_eps"]))
    w.add_vocab_size(int(c["vocab"]))
    w.add_rope_dimension_count(int(c.get("rope_dim", head_dim_of(c))))
    w.add_key_length(head_dim_of(c))
    w.add_value_length(head_dim_of(c))
    if "experts" in c:
        w.add_expert_count(int(c["experts"]))
        w.add_expert_used_count(int(c["experts_used"]))
        w.add_expert_feed_forward_length(int(c["ffn"]))
    if "shared_ffn" in c:
        w.add_expert_shared_feed_forward_length(int(c["shared_ffn"]))
    if "state_k_heads" in c:
        w.add_rope_dimension_sections([11, 11, 10, 0])  # of text all are alike
        w.add_full_attention_interval(EVERY)
        w.add_ssm_conv_kernel(TAPS)
        w.add_ssm_state_size(STATE)
        w.add_ssm_group_count(int(c["state_k_heads"]))
        w.add_ssm_time_step_rank(int(c["state_v_heads"]))
        w.add_ssm_inner_size(int(c["state_v_heads"]) * STATE)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0 if "experts" in c else gguf.LlamaFileType.MOSTLY_BF16)
    if int(c["vocab"]) != SMOLLM2_VOCAB:
        w.add_tokenizer_model("no_vocab")  # jobs have ids only
        return w
    for key, field in gguf.GGUFReader(gguf_path("smollm2", "q4_1")).fields.items():
        if key.startswith("tokenizer."):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            w.add_key_value(key, field.contents(), field.types[0], sub)
    return w


def is_f32(name, shape):
    return len(shape) == 1 or any(part in name for part in (".ffn_gate_inp.", ".ssm_conv1d.", ".ssm_alpha.", ".ssm_beta."))


def row_bytes(kind, n):
    return n // BLOCK * BLOCK_BYTES if kind == "q4_0" else 2 * n


def dummy_data(seed, name, shape, kind):
    import numpy as np
    draw = np.random.default_rng(seed)
    if len(shape) == 1:
        return np.full(shape, -1 if name.endswith(".ssm_a") else 1, np.float32)  # states decay
    if kind == "q4_0" and not is_f32(name, shape):
        bits = draw.integers(0, 256, (int(np.prod(shape)) // BLOCK, BLOCK_BYTES), np.uint8)
        bits[:, :2] = np.array([DEVIATION / 4.6], np.float16).view(np.uint8)  # of 0..15 - 8
        return bits
    data = draw.standard_normal(shape, np.float32)
    data *= np.float32(DEVIATION)
    return data if is_f32(name, shape) else bf16_bits(data)


def dummy_write(path, c, kind):
    import gguf
    import numpy as np
    w, shapes = writer_make(path, c), list(shapes_of(c))
    for name, shape in shapes:
        if is_f32(name, shape):
            w.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        else:  # sizes of raw types are in bytes
            n = row_bytes(kind, shape[-1])
            w.add_tensor_info(name, [*shape[:-1], n], np.dtype(np.uint8), n * int(np.prod(shape[:-1])),
                              gguf.GGMLQuantizationType[kind.upper()])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for i, (name, shape) in enumerate(shapes):
        w.write_tensor_data(dummy_data(i, name, shape, kind))
    w.close()


def quantize(source, path, kind):
    import run_llamacpp
    tool = os.path.join(run_llamacpp.build(), "bin/llama-quantize")
    peer.run(["nice", "-n", "10", tool, "--allow-requantize", source, path, kind.upper(), "2"])


def gguf_path(model, kind):
    """The path of MODEL in KIND; made if missing."""
    if model == "smollm2" and kind == FIRST[model]:
        sh = os.path.join(peer.TREE, "tests/model.sh")
        return peer.run([sh], stdout=-1, text=True).stdout.strip()
    path = os.path.join(PLACE, f"{model}-{kind}.gguf")
    if not os.path.exists(path):
        peer.say(f"peers: writing {path}")
        if kind == FIRST[model]:
            dummy_write(path + ".part", config_read(model), kind)
        else:
            quantize(gguf_path(model, FIRST[model]), path + ".part", kind)
        os.rename(path + ".part", path)
    return path


# ---- a Hugging Face folder from a GGUF ----

ROLES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def hf_name(name):
    if name in ("token_embd.weight", "output_norm.weight"):
        return {"t": "model.embed_tokens.weight", "o": "model.norm.weight"}[name[0]]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{ROLES[part]}.weight"


def hf_config(value):
    """config.json from GGUF keys; value(key) looks one up."""
    dim, heads = value("embedding_length"), value("attention.head_count")
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
            "num_hidden_layers": value("block_count"), "num_attention_heads": heads,
            "num_key_value_heads": value("attention.head_count_kv"), "head_dim": dim // heads,
            "intermediate_size": value("feed_forward_length"), "vocab_size": value("vocab_size"),
            "max_position_embeddings": value("context_length"),
            "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
            "rope_theta": value("rope.freq_base"), "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
            "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16",
            "torch_dtype": "bfloat16"}


def halves_from_pairs(rows, n_heads):
    """GGUF's llama stores rows of q and k as rotated pairs (0, h/2), (1, h/2 + 1), ...; back to halves."""
    n, k = rows.shape
    return rows.reshape(n_heads, n // n_heads // 2, 2, k).swapaxes(1, 2).reshape(n, k)


def tensor_bits(t, heads):
    """A GGUF tensor as bf16 in HF's order of rows."""
    import gguf
    if t.tensor_type == gguf.GGMLQuantizationType.BF16:
        bits = t.data.view("<u2").reshape([int(n) for n in reversed(t.shape)])
    else:
        bits = bf16_bits(gguf.quants.dequantize(t.data, t.tensor_type))
    for part, n_heads in heads.items():
        if f".{part}." in t.name:
            bits = halves_from_pairs(bits, n_heads)
    return bits


def hf_write(place, source):
    import gguf
    import numpy as np
    reader = gguf.GGUFReader(source)
    config = hf_config(lambda key: reader.fields[f"llama.{key}"].contents())
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    header, at = {}, 0
    for t in reader.tensors:
        n_bytes = 2 * int(np.prod(t.shape))
        header[hf_name(t.name)] = {"dtype": "BF16", "shape": [int(n) for n in reversed(t.shape)],
                                   "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(place, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in reader.tensors:
            f.write(np.ascontiguousarray(tensor_bits(t, heads)).data)
    with open(os.path.join(place, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)


def hf_path(model):
    place = os.path.join(PLACE, f"{model}-hf")
    if not os.path.exists(place):
        peer.say(f"peers: writing {place}")
        part = place + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        hf_write(part, gguf_path(model, FIRST[model]))
        os.rename(part, place)
    return place


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in FIRST or sys.argv[2] not in \
            (FIRST[sys.argv[1]], *(("q8_0", "q4_0", "hf") if FIRST[sys.argv[1]] != "q4_0" else ())):
        sys.exit(f"models.py: {' '.join(sys.argv[1:])}: unknown; models and first kinds: {FIRST}, then q8_0 q4_0 hf")
    model, kind = sys.argv[1:]
    os.makedirs(PLACE, exist_ok=True)
    print(hf_path(model) if kind == "hf" else gguf_path(model, kind))


if __name__ == "__main__":
    main()
