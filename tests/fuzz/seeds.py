#!/usr/bin/env python3
"""Sound inputs for the fuzzers to start from, and their dictionaries: seeds.py SLUICE OUT

Writes OUT/NAME/* and OUT/NAME.dict for every harness of tests/fuzz. Owns: one small input of each kind
that a parser takes, so that a run begins behind the first checks. Packs come out of the binary itself.
Standard library only.
"""
import base64
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from template_families import FAMILIES  # noqa: E402
from template_snippets import SNIPPETS  # noqa: E402

PART = b"\xff"  # between the files of one input
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
          "'<|im_end|>'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def dump(*values):
    return PART.join(v if isinstance(v, bytes) else json.dumps(v, ensure_ascii=False, separators=(",", ":")).encode()
                     for v in values)


# ---- models ----

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
         "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
         "num_hidden_layers": 2, "vocab_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
         "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu", "hidden_size": 32,
       "num_attention_heads": 2, "ffn_dim": 48, "num_hidden_layers": 2, "vocab_size": 40, "dropout": 0.1,
       "max_position_embeddings": 64, "do_layer_norm_before": True, "word_embed_proj_dim": 32, "eos_token_id": [2, 3]}
ROPES = [{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}, {"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2}]
SHARD = "a.safetensors"
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
NAMES = ["input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
         "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def json_seeds():
    generation = {"eos_token_id": [2, 5], "temperature": 0.6, "a": {"b": "c"}}
    tensors = ["model.embed_tokens.weight", "model.norm.weight"]
    tensors += [f"model.layers.{layer}.{n}.weight" for layer in range(2) for n in NAMES]
    index = {"metadata": {"total_size": 1}, "weight_map": {n: SHARD for n in tensors}}
    yield dump(LLAMA)
    yield dump(LLAMA, generation)
    yield dump(LLAMA, {}, index)
    yield dump(OPT, generation)
    yield dump({**LLAMA, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32,
                "use_sliding_window": False, "text_config": {"eos_token_id": 1}})
    for rope in ROPES:
        yield dump({**LLAMA, "rope_scaling": rope})
    for kind in ("mistral", "qwen2", "qwen3", "gemma", "smollm3", "seed_oss", "olmo3", "exaone4", "cohere2", "ministral3", "apertus",
                 "hunyuan_v1_dense"):
        yield dump({**LLAMA, "model_type": kind, "architectures": [kind.capitalize() + "ForCausalLM"]})
    for config, shapes in family_seeds():
        yield dump(config, b"", b"", header_of(shapes))
        yield dump(config)
    yield b'{"a":[1,"\\u00e9",[[]],{"b":1e400}],"b":{"c":{"d":-9223372036854775808}}}'


def header_of(shapes):
    """A header of safetensors: name -> shape, in bf16, those of MXFP4 in bytes."""
    header, at = {}, 0
    for name, shape in shapes.items():
        quant = name.endswith(("_blocks", "_scales"))
        n = (1 if quant else 2) * math.prod(shape)
        header[name] = {"dtype": "U8" if quant else "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    return header


def family_seeds():
    """A layer or two each, with their shapes: experts apart, all in one, as [inputs, outputs] and in MXFP4, not in every
    layer, with one for all tokens, in groups; soft caps and
    what null means; the text of a model that sees."""
    d, ffn, n, kv = 32, 32, 2, 32
    moe = {**LLAMA, "num_hidden_layers": 1, "intermediate_size": ffn, "num_local_experts": n, "num_experts_per_tok": 1,
           "tie_word_embeddings": False}
    ends = {"model.embed_tokens.weight": [40, d], "model.norm.weight": [d], "lm_head.weight": [40, d]}
    base = {"input_layernorm.weight": [d], "post_attention_layernorm.weight": [d], "self_attn.q_proj.weight": [d, d],
            "self_attn.k_proj.weight": [kv, d], "self_attn.v_proj.weight": [kv, d], "self_attn.o_proj.weight": [d, d]}

    def shapes(layer, prefix="model."):
        return {**{x.replace("model.", prefix): y for x, y in ends.items()},
                **{f"{prefix}layers.0.{name}": shape for name, shape in layer.items()}}
    own = {f"block_sparse_moe.experts.{e}.{w}.weight": [ffn, d] for e in range(n) for w in ("w1", "w2", "w3")}
    yield {**moe, "model_type": "mixtral"}, shapes({**base, "block_sparse_moe.gate.weight": [n, d], **own})
    qk = {"self_attn.q_norm.weight": [16], "self_attn.k_norm.weight": [16], "mlp.gate.weight": [n, d]}
    stacks = {"mlp.experts.gate_up_proj": [n, 2 * ffn, d], "mlp.experts.down_proj": [n, d, ffn]}
    yield ({**moe, "model_type": "qwen3_moe", "num_experts": n, "moe_intermediate_size": ffn, "mlp_only_layers": [],
            "decoder_sparse_step": 1, "norm_topk_prob": True}, shapes({**base, **qk, **stacks}))
    dense = {f"mlp.{x}_proj.weight": [48, d] if x != "down" else [d, 48] for x in ("gate", "up", "down")}
    kinds = {**moe, "num_hidden_layers": 2, "intermediate_size": 48, "num_experts": n, "moe_intermediate_size": ffn}
    second = {f"model.layers.1.{name}": shape for name, shape in {**base, **dense, **qk}.items() if name != "mlp.gate.weight"}
    yield {**kinds, "model_type": "qwen3_moe", "mlp_only_layers": [1]}, {**shapes({**base, **qk, **stacks}), **second}
    shared = {"mlp.shared_expert_gate.weight": [1, d], "mlp.gate.weight": [n, d],
              **{f"mlp.shared_expert.{x}_proj.weight": [40, d] if x != "down" else [d, 40] for x in ("gate", "up", "down")}}
    biased = {**base, **{f"self_attn.{x}_proj.bias": [32] for x in "qkv"}}
    second = {f"model.layers.1.{name}": shape for name, shape in {**biased, **shared, **stacks}.items()}
    yield ({**kinds, "model_type": "qwen2_moe", "decoder_sparse_step": 2, "shared_expert_intermediate_size": 40,
            "use_sliding_window": True, "sliding_window": 8}, {**shapes({**biased, **dense}), **second})
    grouped = {"mlp.gate.weight": [4, d], "mlp.gate.e_score_correction_bias": [4], "mlp.experts.gate_up_proj": [4, 48, d],
               "mlp.experts.down_proj": [4, d, 24],
               **{f"mlp.shared_experts.{x}_proj.weight": [24, d] if x != "down" else [d, 24] for x in ("gate", "up", "down")}}
    second = {f"model.layers.1.{name}": shape for name, shape in {**base, **grouped}.items()}
    yield ({**kinds, "model_type": "glm4_moe", "num_local_experts": 4, "moe_intermediate_size": 24, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
            "use_qk_norm": False}, {**shapes({**base, **dense}), **second})
    oss = {**base, **{f"self_attn.{x}_proj.bias": [32] for x in "qkvo"}, "self_attn.sinks": [2], "mlp.router.weight": [n, d],
           "mlp.router.bias": [n], "mlp.experts.gate_up_proj_bias": [n, 2 * ffn], "mlp.experts.down_proj_bias": [n, d]}
    config = {**moe, "model_type": "gpt_oss", "sliding_window": 8, "layer_types": ["sliding_attention"], "swiglu_limit": 7.0,
              "attention_bias": True}
    yield config, shapes({**oss, "mlp.experts.gate_up_proj": [n, d, 2 * ffn], "mlp.experts.down_proj": [n, ffn, d]})
    blocks = {"mlp.experts.gate_up_proj_blocks": [n, 2 * ffn, 1, 16], "mlp.experts.gate_up_proj_scales": [n, 2 * ffn, 1],
              "mlp.experts.down_proj_blocks": [n, d, 1, 16], "mlp.experts.down_proj_scales": [n, d, 1]}
    yield {**config, "quantization_config": {"quant_method": "mxfp4"}}, shapes({**oss, **blocks})
    around = {**base, **{f"{x}_feedforward_layernorm.weight": [d] for x in ("pre", "post")},
              **{f"mlp.{x}_proj.weight": [ffn, d] for x in ("gate", "up", "down")}}
    gemma = {**LLAMA, "num_hidden_layers": 1, "intermediate_size": ffn, "hidden_activation": "gelu_pytorch_tanh"}
    yield ({**gemma, "model_type": "gemma2", "sliding_window": None, "attn_logit_softcapping": None,
            "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 16}, shapes(around))
    yield {**gemma, "model_type": "gemma2", "sliding_window": 8}, shapes(around)
    norms = {"self_attn.q_norm.weight": [16], "self_attn.k_norm.weight": [16]}
    text = {**gemma, "model_type": "gemma3_text", "sliding_window": 8, "rope_local_base_freq": 1e4}
    yield ({"model_type": "gemma3", "text_config": text, "vision_config": {"num_hidden_layers": 3}},
           shapes({**around, **norms}, "language_model.model."))


def safetensors(header, n_data, tail=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(n_data) + tail


def safetensors_seeds():
    one = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
    yield safetensors({"b": one}, 12)
    yield safetensors({"__metadata__": {"format": "pt"}, "b": {**one, "data_offsets": [4, 16]},
                       "a": {"shape": [1], "data_offsets": [0, 4], "dtype": "F32"},
                       "é": {"dtype": "F8_E4M3", "shape": [1, 1, 1, 1, 1, 2], "data_offsets": [16, 18]},
                       "h": {"dtype": "F16", "shape": [], "data_offsets": [18, 20]}}, 20)
    yield safetensors({"z": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}, "b": one}, 12)
    yield safetensors({"f": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}, 4)
    yield safetensors(b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   ', 3)
    yield safetensors(b"{}", 0)
    yield b"version https://git-lfs.github.com/spec/v1\n"
    yield b"PK\3\4" + bytes(20)
    yield b"<!DOCTYPE html><html>"


def checkpoint(config, tensors, data=b"\x5a"):
    """A part of config.json, a header, and data that repeats; tensors: (name, dtype, shape, bytes or None)."""
    sizes, header, body = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8}, {}, b""
    for name, dtype, shape, own in tensors:
        n = sizes[dtype]
        for d in shape:
            n *= d
        own = own if own is not None else (data * n)[:n]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + n]}
        body += own
    return dump({"quantization_config": config}, header) + PART + body


def quantized_seeds():
    groups = struct.pack("<64i", *(i // 32 for i in range(64)))
    gptq = [("a.qweight", "I32", [8, 8], None), ("a.qzeros", "I32", [2, 1], None), ("a.scales", "F16", [2, 8], None),
            ("a.g_idx", "I32", [64], groups)]
    yield checkpoint({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq)
    yield checkpoint({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq[:3])
    yield checkpoint({"quant_method": "gptq", "bits": 4, "desc_act": True},
                     gptq[:3] + [("a.g_idx", "I32", [64], groups[::-1])])
    yield checkpoint({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True},
                     [("a.qweight", "I32", [32, 1], None), ("a.qzeros", "I32", [1, 1], None),
                      ("a.scales", "F16", [1, 8], None)])
    yield checkpoint({"quant_method": "gptq", "bits": 8}, [("a.qweight", "I32", [16, 4], None), ("a.qzeros", "I32", [2, 1], None),
                                                           ("a.scales", "F16", [2, 4], None)])
    fp8 = ("a.weight", "F8_E4M3", [3, 160], None)
    yield checkpoint({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
                     [fp8, ("a.weight_scale_inv", "F32", [1, 2], None)])
    yield checkpoint({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
                      {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
                     [fp8, ("a.weight_scale", "F16", [3, 1], None)])
    packed = [("a.weight_packed", "I32", [3, 8], None), ("a.weight_scale", "BF16", [3, 2], None),
              ("a.weight_shape", "I64", [2], struct.pack("<2q", 3, 64))]
    compressed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
                  {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}}
    yield checkpoint(compressed, packed)
    yield checkpoint(compressed, [("a.weight", "I8", [3, 32], None), ("a.weight_scale", "F16", [3, 1], None),
                                  ("a.weight_zero_point", "I8", [3, 1], None)])
    yield checkpoint(compressed, packed + [("a.weight_zero_point", "I32", [1, 2], None), ("a.weight_g_idx", "I32", [64], groups)])
    fp4 = [("a.weight_packed", "U8", [2, 32], None), ("a.weight_scale", "F8_E4M3", [2, 4], None),
           ("a.weight_global_scale", "F32", [1], struct.pack("<f", 7))]
    yield checkpoint({**compressed, "format": "nvfp4-pack-quantized"}, fp4)
    yield checkpoint({**compressed, "format": "mxfp4-pack-quantized"}, [fp4[0], ("a.weight_scale", "U8", [2, 2], None)])
    yield checkpoint({"quant_method": "modelopt", "quant_algo": "NVFP4"}, [
        ("a.weight", "U8", [2, 32], None), fp4[1], ("a.weight_scale_2", "F32", [], struct.pack("<f", 7)), ("b.weight", *fp8[1:]),
        ("b.weight_scale", "F32", [], None)])
    for nested in (False, True):
        state = {"quant_type": "nf4", "blocksize": 64, "shape": [2, 256]}
        state |= {"nested_blocksize": 256, "nested_offset": 0.5} if nested else {}
        text, nf4 = json.dumps(state).encode(), [struct.pack("<f", x) for x in NF4]
        tensors = [("a.weight", "U8", [256, 1], None), ("a.weight.quant_map", "F32", [16], b"".join(nf4)),
                   ("a.weight.absmax", "U8" if nested else "F32", [8], None),
                   ("a.weight.quant_state.bitsandbytes__nf4", "U8", [len(text)], text)]
        if nested:
            tensors += [("a.weight.nested_absmax", "F32", [1], None),
                        ("a.weight.nested_quant_map", "F32", [256], None)]
        yield checkpoint({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, tensors)
    yield checkpoint({"quant_method": "mxfp4"}, [("a_blocks", "U8", [2, 2, 3, 16], None),
                                                 ("a_scales", "U8", [2, 2, 3], None)])
    yield checkpoint({"quant_method": "mxfp4"}, [("a_blocks", "U8", [3, 2, 16], None), ("a_scales", "U8", [3, 2], None),
                                                 ("b_blocks", "U8", [1, 2, 1, 2, 16], None), ("b_scales", "U8", [2, 1, 2], None)])


U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)
Q4_0, MXFP4 = 2, 39  # of tensors
SCALARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def gguf_str(text):
    b = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(b)) + b


def gguf_value(kind, x):
    if kind == STR:
        return gguf_str(x)
    if kind == ARRAY:
        element, items = x
        return struct.pack("<IQ", element, len(items)) + b"".join(gguf_value(element, i) for i in items)
    return struct.pack("<" + SCALARS[kind], x)


def gguf(keys, tensors, version=3, align=32):
    """tensors: name, dims (fast to slow), ggml type, bytes."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, x in keys:
        out += gguf_str(name) + struct.pack("<I", kind) + gguf_value(kind, x)
    at = 0
    for name, dims, kind, n in tensors:
        out += gguf_str(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, at)
        at += -(-n // align) * align
    return out + bytes(-len(out) % align) + bytes(at)


def gguf_llama(vocab, pre, dim=8, quant=0, model="gpt2"):
    tokens = ["<s>", "<|end|>"] + [chr(97 + i) for i in range(vocab - 5)] + ["ab", "abc", "Ġ"]
    keys = [("general.architecture", STR, "llama"), ("llama.block_count", U32, 1),
            ("llama.embedding_length", U32, dim), ("llama.feed_forward_length", U32, 8),
            ("llama.attention.head_count", U32, 2), ("llama.attention.head_count_kv", U32, 1),
            ("llama.context_length", U32, 64), ("llama.rope.freq_base", F32, 1e4), ("llama.vocab_size", U32, vocab),
            ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), ("llama.rope.dimension_count", U32, dim // 2),
            ("tokenizer.ggml.model", STR, model), ("tokenizer.ggml.pre", STR, pre),
            ("tokenizer.ggml.tokens", ARRAY, (STR, tokens)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3 if model == "gpt2" else 2] + [1] * (vocab - 2))),
            ("tokenizer.ggml.bos_token_id", U32, 0),
            ("tokenizer.ggml.eos_token_id", U32, 1), ("tokenizer.ggml.add_bos_token", BOOL, 1),
            ("tokenizer.chat_template", STR, CHATML[:60])]
    if model == "gpt2":
        keys += [("tokenizer.ggml.merges", ARRAY, (STR, ["a b", "ab c"]))]
    else:
        table = struct.pack("<IIII", 8, 1 << 10, 0, 0) + b"ab\0"
        keys += [("tokenizer.ggml.scores", ARRAY, (F32, [-i / 4 for i in range(vocab)])), ("tokenizer.ggml.unknown_token_id", U32, 1),
                 ("tokenizer.ggml.add_space_prefix", BOOL, 1), ("tokenizer.ggml.remove_extra_whitespaces", BOOL, model == "t5"),
                 ("tokenizer.ggml.precompiled_charsmap", ARRAY, (U8, table))]
    shapes = [("token_embd", (dim, vocab)), ("output_norm", (dim,)), ("blk.0.attn_norm", (dim,)),
              ("blk.0.ffn_norm", (dim,)), ("blk.0.attn_q", (dim, dim)), ("blk.0.attn_k", (dim, dim // 2)),
              ("blk.0.attn_v", (dim, dim // 2)), ("blk.0.attn_output", (dim, dim)), ("blk.0.ffn_gate", (dim, 8)),
              ("blk.0.ffn_up", (dim, 8)), ("blk.0.ffn_down", (8, dim))]
    tensors = []
    for name, dims in shapes:
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        as_block = quant and len(dims) > 1 and dims[0] % 32 == 0
        tensors.append((name + ".weight", dims, quant if as_block else 0, n // 32 * 18 if as_block else 4 * n))
    return gguf(keys, tensors)


def gguf_experts():
    """Of one layer: experts of llama, qwen3moe and gpt-oss, all in one tensor and, as once, each in its own."""
    d, n = 32, 2
    attention = {"attn_norm": [d], "attn_q": [d, d], "attn_k": [d, d], "attn_v": [d, d], "attn_output": [d, d],
                 "ffn_gate_inp": [d, n]}
    stacks = {f"ffn_{x}_exps": [d, d, n] for x in ("gate", "up", "down")}
    alone = {f"ffn_{x}.{e}": [d, d] for x in ("gate", "up", "down") for e in range(n)}
    qk = {"attn_q_norm": [16], "attn_k_norm": [16]}
    oss = {**{f"attn_{x}.bias": [d] for x in ("q", "k", "v", "output")}, "attn_sinks": [2], "ffn_gate_inp.bias": [n],
           **{f"ffn_{x}_exps.bias": [d, n] for x in ("gate", "up", "down")}, "post_attention_norm": [d]}
    for arch, layer, kind in (("llama", {**attention, **stacks, "ffn_norm": [d]}, Q4_0),
                              ("llama", {**attention, **alone, "ffn_norm": [d]}, Q4_0),
                              ("qwen3moe", {**attention, **stacks, **qk, "ffn_norm": [d]}, Q4_0),
                              ("qwen3moe", {**attention, **alone, **qk, "ffn_norm": [d]}, Q4_0),
                              ("gpt-oss", {**attention, **stacks, **oss}, MXFP4)):
        keys = [("general.architecture", STR, arch)] + [(f"{arch}.{key}", U32, x) for key, x in (
            ("block_count", 1), ("embedding_length", d), ("feed_forward_length", d), ("expert_feed_forward_length", d),
            ("attention.head_count", 2), ("attention.head_count_kv", 2), ("context_length", 64), ("vocab_size", 8),
            ("expert_count", n), ("expert_used_count", 1), ("attention.sliding_window", 8))]
        shapes = {"token_embd": [d, 8], "output_norm": [d], "output": [d, 8], **{"blk.0." + x: y for x, y in layer.items()}}
        tensors = []
        for name, dims in shapes.items():
            matrix = len(dims) > 1 and not name.endswith(".bias")
            tensors.append((name if name.endswith(".bias") else name + ".weight", dims, kind if matrix else 0,
                            math.prod(dims) // 32 * (18 if kind == Q4_0 else 17) if matrix else 4 * math.prod(dims)))
        yield gguf(keys, tensors)


def gguf_seeds():
    every = [("general.architecture", STR, "llama"), ("general.alignment", U32, 64), ("v.u8", U8, 200),
             ("v.i8", I8, -3), ("v.u16", U16, 65535), ("v.i16", I16, -300), ("v.i32", I32, -70000),
             ("v.f32", F32, 0.25), ("a", BOOL, 2), ("v.u64", U64, 2**64 - 1), ("v.i64", I64, -2**63),
             ("v.f64", F64, 1e300), ("v.empty", STR, ""), ("tokenizer.ggml.tokens", ARRAY, (STR, ["a", "", "ccc"])),
             ("tokenizer.ggml.scores", ARRAY, (F32, [0.0, 0.5, 1.0])),
             ("tokenizer.ggml.token_type", ARRAY, (I32, [-1, 0, 1])), ("v.none", ARRAY, (U8, []))]
    tensors = [("token_embd.weight", (32, 3), 3, 60), ("norm", (5,), 0, 20), ("last", (2, 1), 1, 4)]
    yield gguf(every, tensors, align=64)
    yield gguf(every[:2], [], version=2)
    yield gguf([("split.count", U16, 2), ("split.no", U16, 0)], [])
    for pre in ("gpt-2", "llama-bpe", "qwen2", "smollm"):
        yield gguf_llama(20, pre)
    yield gguf_llama(20, "default", dim=32, quant=2)
    for model in ("llama", "t5"):
        yield gguf_llama(20, "default", model=model)
    yield from gguf_experts()
    for kind in range(41):  # one row of each format, as long as any needs
        yield gguf([], [("t", (256,), kind, 1024)])
    yield b"GGML" + bytes(16)


# ---- tokenizers ----

def tokenizer_json(vocab, merges, added=(), normalizer=None, pre=BYTE_LEVEL, post=None, decoder=BYTE_LEVEL, **model):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added),
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post,
            "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, **model, "vocab": vocab, "merges": merges}}


def added(i, text, special=True, **flags):
    return {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special, **flags}


def split(pattern, behavior="Isolated", kind="Regex", invert=False):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, {**BYTE_LEVEL, "use_regex": False}]}


def tokenizer_seeds():
    vocab = {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "abc": 5, "1": 6, "!": 7, "x": 8, "Ã": 9, "©": 10}
    merges, end = ["a b", ["ab", "c"]], added(11, "<|end|>")
    config = {"bos_token": "<|end|>", "eos_token": {"content": "<|end|>", "lstrip": True}, "add_bos_token": True,
              "chat_template": CHATML[:80], "added_tokens_decoder": {"11": end}}
    post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [11], "tokens": ["<|end|>"]}}}
    yield b"T" + dump(tokenizer_json(vocab, merges, [end]), config, {}, {"eos_token_id": [11]}, CHATML.encode()[:40])
    yield b"T" + dump(tokenizer_json(vocab, merges, [end], post=post), config)
    yield b"T" + dump(tokenizer_json(vocab, merges, [end], post={"type": "ByteLevel"}, unk_token="x", fuse_unk=True,
                                     ignore_merges=True), {"chat_template": [{"name": "default", "template": "t"}]})
    for norm in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield b"T" + dump(tokenizer_json(vocab, merges, normalizer={"type": norm}))
    norms = [{"type": "Prepend", "prepend": "a"}, {"type": "Replace", "pattern": {"String": "b"}, "content": "c"},
             {"type": "NFC"}]
    yield b"T" + dump(tokenizer_json(vocab, merges, normalizer={"type": "Sequence", "normalizers": norms}))
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        yield b"T" + dump(tokenizer_json(vocab, merges, pre=sequence(split("[a-b]", behavior))))
    yield b"T" + dump(tokenizer_json(vocab, merges, pre=sequence(
        split(LLAMA3), {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
        split("b", "Removed", "String", True))))
    flags = [added(11, "<|end|>", lstrip=True, rstrip=True), added(12, "ab", False, single_word=True, normalized=True)]
    yield b"T" + dump(tokenizer_json(vocab, [], flags))
    yield b"V" + dump(vocab, b"#version: 0.2\na b\nab c\n", config, {"unk_token": "x"}, {"eos_token_id": 11})
    yield from text_seeds()
    yield from model_seeds()


def text_seeds():
    """Pieces of characters: BPE with bytes in the old form and the new, Unigram with a table of replacements."""
    vocab = {t: i for i, t in enumerate(["<unk>", "\u2581", "a", "b", "ab", "\u2581a", *(f"<0x{b:02X}>" for b in range(40, 60))])}
    merges, end = ["a b", ["\u2581", "a"]], added(len(vocab), "<|end|>")
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    tail = [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, *tail]}
    norm = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    settings = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    yield b"T" + dump(tokenizer_json(vocab, merges, [end], normalizer=norm, pre=None, decoder=decoder, **settings))
    yield b"T" + dump(tokenizer_json(vocab, merges, [end], pre=meta, decoder=decoder, **settings))
    table = base64.b64encode(struct.pack("<IIII", 8, 1 << 10, 0, 0) + b"ab\0").decode()
    norm = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": table}, {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]}
    pre = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {**meta, "prepend_scheme": "always", "split": True}]}
    unigram = tokenizer_json(vocab, [], [end], normalizer=norm, pre=pre, decoder=meta)
    unigram["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [[t, -float(i)] for t, i in vocab.items()]}
    yield b"T" + dump(unigram)


def model_seeds():
    """tokenizer.model: SentencePiece's protobuf, and tiktoken's lines; tekken.json."""
    def number(n):
        return bytes([n & 127 | 128]) + number(n >> 7) if n > 127 else bytes([n])

    def text(field, value):
        return number(field << 3 | 2) + number(len(value)) + value

    def piece(t, score, kind):
        return text(1, text(1, t.encode()) + number(2 << 3 | 5) + struct.pack("<f", score) + number(3 << 3) + number(kind))
    words = [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("</s>", 0, 3), piece("<|x|>", 0, 4), piece("\u2581", -1, 1),
             piece("a", -2, 1), piece("b", -3, 1), piece("ab", -1.5, 1)]
    table = struct.pack("<IIII", 8, 1 << 10, 0, 0) + b"ab\0"
    for kind in (1, 2):
        trainer = text(2, number(3 << 3) + number(kind) + number(44 << 3 | 2) + number(1) + b"?")
        for norm in (b"", text(2, table), number(3 << 3) + b"\0" + number(4 << 3) + b"\0"):
            yield b"M" + b"".join(words) + trainer + text(3, norm)
    yield b"M" + b"".join(words) + b"".join(piece(f"<0x{b:02X}>", 0, 6) for b in range(256)) + text(
        2, number(3 << 3) + b"\2" + number(35 << 3) + b"\1")
    yield b"M" + b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate((b"a", b"b", b"ab", b" ", b"1", b"abab")))
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode()} for i, t in enumerate((b"a", b"b", b"ab", b" ", b"1"))]
    config = {"pattern": r"\p{L}+|\s+|\S", "default_vocab_size": 8, "default_num_special_tokens": 4, "version": "v3"}
    named = [{"rank": i, "token_str": t} for i, t in enumerate(("<s>", "</s>", "<|end|>"))]
    yield b"K" + json.dumps({"config": config, "vocab": vocab}).encode()
    yield b"K" + json.dumps({"config": {**config, "version": "v11"}, "special_tokens": named, "vocab": vocab}).encode()
    yield b"K" + json.dumps({"vocab": vocab, "special_tokens": None, "config": {**config, "default_num_special_tokens": 0,
                                                                               "default_vocab_size": 5}}).encode()


def blob_seeds():
    """As token_draft.c writes it: head, arrays, text."""
    pieces = [b"a", b"b", b"ab", b"<|end|>", b" ", b"1"]
    patterns = [(5, 0, b"a", b""), (6, 0, b"x", b"y"), (0, 0, b"", b""), (4, 0, b"", b""), (11, 0, rb"\p{N}{1,3}", b""),
                (12, 1, b"b", b""), (13, 0, b"", b""), (14, 2, b"", b""), (16, 0, b"", b"")]
    text_steps = [(7, 0, b"a+", b"b"), (8, 3, b"", b""), (9, 0, b"", b""), (15, 1, b"", b""), (17, 1, b"_", b"")]
    for steps, flags in [([], 4), ([patterns[4]], 4), (patterns, 4), ([patterns[8]], 4), (text_steps, 26), ([(10, 13, b"", b"")], 24)]:
        text, spans = b"".join(pieces), []
        for _, _, a, b in steps:
            spans.append((len(text), len(a), len(text) + len(a), len(b)))
            text += a + b
        at, ends = 0, [0]
        for p in pieces:
            at += len(p)
            ends.append(at)
        body = struct.pack(f"<{len(ends)}I", *ends) + struct.pack("<3I", 0, 1, 2)
        body += struct.pack("<4I", 3, 0, 4, 7)
        for (kind, behavior, _, _), span in zip(steps, spans):
            body += struct.pack("<7I", kind, behavior, 0, *span)
        body += struct.pack("<3i", 3, 3, 3) + bytes([1, 1, 1, 2 | 4, 1, 1]) + text
        counts = struct.pack("<9I", len(pieces), 1, 1, 1, len(steps), 1, 1, 1, len(text))
        scores = struct.pack(f"<{len(pieces)}d", *(-i / 2 for i in range(len(pieces)))) if flags & 16 else b""
        rest = struct.pack("<I3iI4I6I8I", flags, 3, 3, -1, 1, 0, 9 if flags & 16 else 0, 0, len(scores) // 8, 4, 7, 4, 7, 0, 3,
                           0, 1, 1, 1, 0, 0, 0, 0)
        head = struct.pack("<IIQ", 0x4B544C53, 2, 0) + counts + rest
        yield head + scores + body


def encode_seeds():
    for which in range(7):
        for text in ("hello world hell", "<|end|>a <> b<|end|>", "word wordy a word", "aaaaaaaaaaaaaaaa'll 12345\n\n x",
                     "é e\u0301 ﬁ İ 😀\u200d 漢字 ­", "\0\x01\t"):
            yield bytes([which]) + text.encode()


# ---- jobs ----

def rows_seeds():
    rows = [
        {"prompt": "abc", "max_tokens": 3, "seed": 5, "stop": ["a", "b"], "min_tokens": 1},
        {"custom_id": "c1", "method": "POST", "url": "/v1/completions",
         "body": {"model": "m", "prompt": [1, 2], "top_k": 9, "logprobs": 3, "repetition_penalty": 1.2, "user": "u"}},
        {"custom_id": "c2", "url": "/v1/chat/completions",
         "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "c"}]}], "top_logprobs": 4,
                  "logprobs": True, "stream": False, "n": 1}},
        {"messages": [{"role": "u", "content": "a"}], "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.5},
        {"prompt_token_ids": [1, 256], "logit_bias": {"5": -100, "7": 1.5}, "ignore_eos": True, "echo": True},
        {"prompt": "x", "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "stop_token_ids": [3],
         "stop": "q"},
        {"prompt": "", "response_format": {"type": "text"}},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}],
         "chat_template_kwargs": {"mode": "x", "add_generation_prompt": False, "documents": [{"text": "d"}]}},
        {"messages": [{"role": "assistant", "content": None, "thinking": "h", "tool_calls": [{"id": "c", "function": {
            "name": "f", "arguments": {"x": [1, None]}}}]}, {"role": "tool", "tool_call_id": "c", "content": {"t": 1}}]},
        {"url": "/v1/chat/completions", "body": {"messages": [{"role": "u", "content": "", "mood": 1, "audio": None}], "tools": []}},
    ]
    score = [{"custom_id": "s", "context": "ab", "continuation": "c"}, {"context_ids": [1], "continuation_ids": [2, 3]}]
    for row in rows:
        yield b"\0" + json.dumps(row).encode()
    for row in score:
        yield b"\1" + json.dumps(row).encode() + b"\n"
    yield b"\0\xef\xbb\xbf\r\n" + b"\r\n".join(json.dumps(r).encode() for r in rows)


RECORD = struct.Struct("<IHHqqqIIqQII")  # as trial.py reads them; checksums are the harness's


def journal_seeds():
    def row(i, group, failed=0):
        return RECORD.pack(0, 1, failed, i, 10 * i, 10, 7, 0, group, 0, 0, 0)

    def tokens(i, group, ids):
        return RECORD.pack(0, 2, 0, i, 2, len(ids), 0, 0, group, 0, 0, 0) + struct.pack(f"<{len(ids)}i", *ids)

    head = bytes(64)
    whole = head + row(0, 64) + row(1, 64, 1) + tokens(2, 192, [4, 5, 6]) + row(3, 192)
    torn = bytearray(whole)
    torn[64 + 128 + 56] = 1  # a record that is not mended
    for mode in (0, 1):
        yield bytes([mode]) + whole
        yield bytes([mode]) + whole[:-10]
        yield bytes([mode]) + bytes(torn)
    yield b"\0" + head
    yield b"\0" + head[:10]
    yield b"\0"


def manifest_seeds():
    identity = {"version": "1", "job": "run", "input_bytes": "9", "limit": "0", "epoch": "0", "model": "fake"}
    base = {"input": "in.jsonl", "identity": identity, "rows": 3, "predicted_elapsed_s": 1.5, "prompt_cap": None,
            "complete": False}
    yield json.dumps(base).encode()
    yield json.dumps({**base, "complete": True, "ok": 2, "failed": 1, "out_bytes": 99, "prompt_cap": 5}).encode()
    yield json.dumps({**base, "identity": {**identity, "model": "other"}}).encode()
    yield b'{"identity":{}}'


def plan_seeds():
    plan = {"batch": 4, "batches": 2, "weights_resident": 1, "weights_decoded": 0, "weights_codec": 1, "kv_home": 1,
            "hidden_home": 2, "ahead_weights": 3, "ahead_state": 1, "prefill_tokens": 256}
    yield json.dumps({"model": "m", "plan": plan, "bytes": {"ram": 5}, "work": {}}).encode()
    yield b'{"plan":{}}'


# ---- settings ----

def files_of(folder, pattern):
    for name in sorted(os.listdir(folder)):
        if re.match(pattern, name):
            with open(os.path.join(folder, name), "rb") as f:
                yield f.read()


def config_seeds(sluice):
    configs = os.path.join(HERE, "../../configs")
    for text in files_of(configs, "smollm2"):
        yield b"\0\0" + text
    flags = subprocess.run([sluice, "run", "--help"], check=True, capture_output=True, text=True).stdout
    names = re.findall(r"--([a-z-]+)", flags)
    yield b"\0\0" + "".join(f"{n} = 1\n" for n in names).encode()
    yield b"\0\1--percent\n0\n50\n0\n0\n0\n0\n-m\nx\n--mem-ram=2.3G\n--limit\n10k\nword\n-n\n4"
    yield b"\3\1--allow\nq8,h2o=0.2\n--time-limit\n3h50m\n--bach\n1\n--top-p\n0.5"
    yield b"\0\0# comment\nkv-policy = h2o # x\r\nstop = a\nstop = b\ntime-limit = 90s\nmem-ram = 24g\n"


MODELS = {
    "llama": "family = llama\ndim = 32\nlayers = 2\nheads = 2\nkv_heads = 1\nffn = 48\nvocab = 40\ncontext = 64\n",
    "opt": "family = opt\ndim = 32\nlayers = 1\nheads = 2\nffn = 48\nvocab = 40\ncontext = 64\ntied = 0\n",
    "gpt_oss": "family = gpt_oss\ndim = 32\nlayers = 1\nheads = 2\nhead_dim = 16\nffn = 32\nexperts = 3\nexperts_used = 2\n"
               "vocab = 40\ncontext = 64\n",
    "qwen2_moe": "family = qwen2_moe\ndim = 32\nlayers = 2\nheads = 2\nhead_dim = 16\nffn = 32\nexperts = 3\nexperts_used = 2\n"
                 "shared_ffn = 40\ndense_ffn = 48\ndense_layers = 1\nvocab = 40\ncontext = 64\n",
    "gemma4": "family = gemma4\ndim = 32\nlayers = 6\nheads = 2\nhead_dim = 16\nwide_head_dim = 24\nwide_kv_heads = 1\nffn = 32\n"
              "experts = 3\nexperts_used = 2\nshared_ffn = 40\nvocab = 40\ncontext = 64\n",
}


def model_cfg_seeds():
    yield from files_of(os.path.join(HERE, "../../configs"), "(llama|opt)")
    for text in MODELS.values():
        yield text.encode()
    yield MODELS["llama"].replace("llama", "gpt_oss").encode() + b"experts = 6\nexperts_used = 2\n"
    yield MODELS["llama"].replace("llama", "gemma2").encode() + b"tied = 1\n"
    yield MODELS["llama"].encode() + b"head_dim = 16\nrope_theta = 5e5\nnorm_eps = 1e-6 # x\n"


def pack_seeds(sluice):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in MODELS.items():
            cfg, pack = os.path.join(folder, name + ".cfg"), os.path.join(folder, name + ".pack")
            with open(cfg, "w", encoding="utf-8") as f:
                f.write(text)
            for weights in ("auto", "f32", "q8", "q4"):
                subprocess.run([sluice, "pack", cfg, "-o", pack, "--weights", weights], check=True,
                               capture_output=True)
                with open(pack, "rb") as f:
                    data = f.read()
                os.unlink(pack)
                at, n = struct.unpack_from("<QQ", data, 24)
                if n < 8000 or weights == "auto":
                    yield b"\0" + struct.pack("<I", at // 4096) + data[at:at + n]
        yield b"\1" + data[:4096]


def codec_seeds():
    pieces = [(0, 0), (4096, 4096), (8192, 4096), (0, 0), (0, 0), (12288, 4096)]
    yield b"\0" + struct.pack("<I", 4) + b"".join(struct.pack("<QI", *p) for p in pieces)
    yield b"\0" + struct.pack("<I", 1) + bytes(72)
    yield b"\1" + b"sluicezs" + bytes(60)


def template_seeds():
    for text in SNIPPETS:
        yield text.encode()
    for text in FAMILIES.values():
        yield text.encode()
    yield CHATML.encode()


def machine_seeds():
    yield from files_of(os.path.join(HERE, "../../configs"), "machine")


def write(out, name, seeds):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    words = set()
    for i, seed in enumerate(seeds):
        with open(os.path.join(folder, f"seed{i:03d}"), "wb") as f:
            f.write(seed)
        words |= set(re.findall(rb"[A-Za-z_][A-Za-z_0-9.-]{2,30}", seed))
    with open(os.path.join(out, name + ".dict"), "w", encoding="ascii") as f:
        for word in sorted(words)[:1500]:
            quote = '\\"' if name in ("json", "rows", "tokenizer", "manifest", "plan", "safetensors") else ""
            f.write(f'"{quote}{word.decode()}{quote}"\n')
        for extra in ("{%", "%}", "{{", "}}", "{%-", "-%}", "\\xff", "\\\\u0000", "1e400", "-1", "9223372036854775808"):
            f.write(f'"{extra}"\n')


def main():
    sluice, out = sys.argv[1:]
    kinds = {"json": json_seeds(), "safetensors": safetensors_seeds(),
             "quantized": quantized_seeds(), "gguf": gguf_seeds(),
             "tokenizer": tokenizer_seeds(), "token_blob": blob_seeds(), "encode": encode_seeds(),
             "template": template_seeds(), "rows": rows_seeds(), "journal": journal_seeds(),
             "manifest": manifest_seeds(), "plan": plan_seeds(), "machine": machine_seeds(),
             "config": config_seeds(sluice), "model_cfg": model_cfg_seeds(), "pack": pack_seeds(sluice),
             "codec": codec_seeds()}
    for name, seeds in kinds.items():
        write(out, name, seeds)


if __name__ == "__main__":
    main()
