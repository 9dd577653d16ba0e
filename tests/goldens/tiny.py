#!/usr/bin/env python3
"""Small random checkpoints, the same bytes everywhere: `tiny.py DIR [name ...]`.

Owns: the shapes under test and how they are written (safetensors, GGUF, tokenizers). Refuses:
torch, transformers, and any reading of checkpoints. Weights come from numpy's frozen RandomState
and exact arithmetic only (no libm), so that goldens computed once hold for files made anywhere;
`digest` of the weights stands beside the goldens to prove it. Norms and biases are chosen exact
in bf16 and f16.
"""

import hashlib
import json
import os
import struct
import sys
import zlib

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama(dim, heads, kv_heads, head_dim, ffn, layers, vocab, **more):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def opt(dim, heads, ffn, layers, vocab, **more):
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "activation_function": "relu",
        "hidden_size": dim,
        "num_attention_heads": heads,
        "ffn_dim": ffn,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "word_embed_proj_dim": dim,
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
        "_remove_final_layer_norm": False,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
        **more,
    }


# name: config, safetensors formats (* sharded), GGUF formats, tokenizer
SPECS = {
    "llama-mha": (
        llama(96, 3, 3, 32, 160, 2, 512, tie_word_embeddings=True),
        ["f32", "bf16", "f16"],
        ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"],
        "tokenizer.json",
    ),
    "llama-gqa": (
        llama(576, 9, 3, 64, 320, 3, 1000, rope_theta=100000.0),
        ["f32*", "bf16"],
        ["bf16", "q4_0", "q5_0", "q5_1"],
        None,
    ),
    "llama-rope3": (
        llama(320, 4, 2, 80, 192, 2, 9000, rope_scaling=LLAMA3),
        ["f32", "bf16"],
        ["f32", "q8_0"],
        None,
    ),
    "llama-bias": (
        llama(
            224,
            7,
            1,
            128,
            256,
            2,
            700,
            attention_bias=True,
            mlp_bias=True,
            rope_theta=500000.0,
            rms_norm_eps=1e-6,
        ),
        ["f32", "f16"],
        ["f32", "bf16"],
        None,
    ),
    "llama-k": (
        llama(256, 4, 1, 64, 512, 2, 300, tie_word_embeddings=True),
        ["f32"],
        ["q4_k"],
        None,
    ),
    "opt-mha": (
        opt(192, 3, 384, 2, 600),
        ["f32*", "bf16", "f16"],
        ["f32", "bf16", "q8_0"],
        "merges.txt",
    ),
    "opt-post": (
        opt(128, 2, 256, 3, 5000, word_embed_proj_dim=64, do_layer_norm_before=False),
        ["f32", "f16"],
        ["f32", "q4_0"],
        None,
    ),
    "opt-untied": (
        opt(144, 3, 256, 4, 450, tie_word_embeddings=False, activation_function="gelu"),
        ["f32", "bf16"],
        ["f32", "bf16"],
        None,
    ),
}
CONFIG_V5 = ("llama-k",)  # config.json as transformers 5 writes it: rope_parameters, dtype


def files(names=None):
    """Every checkpoint, or those of the specs and paths in names: (spec, weights format, path under DIR)."""
    for spec, (_, hf, ggufs, _) in SPECS.items():
        every = [(spec, form.rstrip("*"), f"{spec}-{form.rstrip('*')}") for form in hf]
        every += [(spec, form, f"{spec}-{form}.gguf") for form in ggufs]
        yield from (f for f in every if not names or spec in names or f[2] in names)


# ---- numbers ----------------------------------------------------------------------------------


def rng(*key):
    return np.random.RandomState(zlib.crc32("/".join(map(str, key)).encode()))


def spread(r, shape, std):
    """Nearly normal: three uniforms, so that only additions and products are rounded."""
    u = r.random_sample(shape) + r.random_sample(shape) + r.random_sample(shape)
    return ((u - 1.5) * (2 * std)).astype(np.float32)


def f32_to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_to_f32(u):
    return (u.astype(np.uint32) << 16).view(np.float32)


def q4_k_pack(x):
    """f32 [n, k], k a multiple of 256 -> block bytes [n, k / 256 * 144]. A plain fit: any block
    is a good test, the reference reads the numbers back from the bytes."""
    g = x.reshape(-1, 8, 32)
    low = np.minimum(g.min(-1), 0)
    scale, low = (g.max(-1) - low) / 15, -low
    d, dmin = [(s.max(-1) / 63).astype(np.float16) for s in (scale, low)]
    wide = [np.where(v > 0, v, 1).astype(np.float32)[:, None] for v in (d, dmin)]
    s6, m6 = [np.clip(np.rint(v / w), 0, 63).astype(np.uint8) for v, w in zip((scale, low), wide)]
    step = (wide[0] * s6)[..., None]
    q = (g + (wide[1] * m6)[..., None]) / np.where(step > 0, step, 1)
    q = np.clip(np.rint(q), 0, 15).astype(np.uint8)
    packed = np.zeros((len(g), 12), np.uint8)
    packed[:, 0:4] = (s6[:, :4] & 63) | (s6[:, 4:] >> 4 << 6)
    packed[:, 4:8] = (m6[:, :4] & 63) | (m6[:, 4:] >> 4 << 6)
    packed[:, 8:12] = (s6[:, 4:] & 15) | (m6[:, 4:] & 15) << 4
    pairs = q.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    blocks = np.concatenate(
        [d[:, None].view(np.uint8), dmin[:, None].view(np.uint8), packed, nibbles], axis=1
    )
    return blocks.reshape(x.shape[0], -1)


def encode(x, form):
    """A matrix as GGUF stores it: (ggml type, array of plain numbers or bytes)."""
    if form == "q4_k" and x.shape[1] % 256 == 0:
        return Q.Q4_K, q4_k_pack(x)
    kind = {"f32": Q.F32, "f16": Q.F16, "bf16": Q.BF16, "q4_k": Q.Q8_0}.get(form) or Q[form.upper()]
    if kind == Q.F32:
        return kind, x
    if kind == Q.F16:
        return kind, x.astype(np.float16)
    if kind == Q.BF16:
        return kind, f32_to_bf16(x).view(np.uint8).reshape(x.shape[0], -1)
    return kind, gguf.quants.quantize(x, kind)


def decode(kind, stored):
    if kind == Q.BF16:
        return bf16_to_f32(np.ascontiguousarray(stored).view(np.uint16))
    return np.asarray(gguf.quants.dequantize(stored, kind), np.float32)


# ---- weights, by their Hugging Face names ------------------------------------------------------


def shapes_llama(c):
    dim, d, ffn = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (c["vocab_size"], dim), (
        2.5 if c["tie_word_embeddings"] else 12
    )
    yield "model.norm.weight", (dim,), 1
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (dim,), 1
        yield p + "post_attention_layernorm.weight", (dim,), 1
        for name, n, k, gain in (
            ("q", q, dim, 1.3),
            ("k", kv, dim, 1.3),
            ("v", kv, dim, 1),
            ("o", dim, q, 1.5),
        ):
            yield f"{p}self_attn.{name}_proj.weight", (n, k), gain
            if c["attention_bias"]:
                yield f"{p}self_attn.{name}_proj.bias", (n,), 0
        for name, n, k in (("gate", ffn, dim), ("up", ffn, dim), ("down", dim, ffn)):
            yield f"{p}mlp.{name}_proj.weight", (n, k), 1.2
            if c["mlp_bias"]:
                yield f"{p}mlp.{name}_proj.bias", (n,), 0
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], dim), 2.5


def shapes_opt(c):
    dim, width, p = c["hidden_size"], c["word_embed_proj_dim"], "model.decoder."
    yield p + "embed_tokens.weight", (c["vocab_size"], width), 2.5
    yield p + "embed_positions.weight", (c["max_position_embeddings"] + 2, dim), 2
    if width != dim:
        yield p + "project_in.weight", (dim, width), 2
        yield p + "project_out.weight", (width, dim), 1
    norms = ["final_layer_norm"] if c["do_layer_norm_before"] else []
    for i in range(c["num_hidden_layers"]):
        q = f"layers.{i}."
        norms += [q + "self_attn_layer_norm", q + "final_layer_norm"]
        for name, n, k, gain in (
            ("self_attn.q_proj", dim, dim, 1.3),
            ("self_attn.k_proj", dim, dim, 1.3),
            ("self_attn.v_proj", dim, dim, 1),
            ("self_attn.out_proj", dim, dim, 1.5),
            ("fc1", c["ffn_dim"], dim, 1.2),
            ("fc2", dim, c["ffn_dim"], 1.4),
        ):
            yield f"{p}{q}{name}.weight", (n, k), gain
            yield f"{p}{q}{name}.bias", (n,), 0
    for name in norms:
        yield f"{p}{name}.weight", (dim,), 1
        yield f"{p}{name}.bias", (dim,), 0
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], width), 2.5


def weights(spec, form="f32"):
    """{Hugging Face name: f32 array}, as a reader gets them back from a file of this format."""
    config = SPECS[spec][0]
    out = {}
    for name, shape, gain in (shapes_llama if config["model_type"] == "llama" else shapes_opt)(
        config
    ):
        r = rng(spec, name)
        if len(shape) == 1:  # norm weights in 0.5 .. 1.5, biases in -0.25 .. 0.25
            steps = r.randint(-32, 33, shape)
            x = ((64 + steps) / 64 if gain else steps / 128).astype(np.float32)
        else:
            x = spread(r, shape, gain / 16 * (256 / shape[1]) ** 0.5)
            if form != "f32":
                x = decode(*encode(x, form)).reshape(shape)
        out[name] = x
    return out


def digest(tensors):
    """Of the numbers, not of the file: the GGUF writer may order its keys as it likes."""
    h = hashlib.sha256()
    for name in sorted(tensors):
        h.update(f"{name} {tensors[name].shape}\n".encode())
        h.update(np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return h.hexdigest()[:32]


# ---- tokenizers ---------------------------------------------------------------------------------

WORDS = (
    "the of and to in is was he for it with as his on be at by had not are but from or have an "
    "they which one you were her all she there would their we him been has when who will more no "
    "if out so said what up its about into than them can only other new some could time these two "
    "may then do first any my now such like our over man me even most made after also did many"
).split()


def byte_chars():
    """The printable stand-in of each byte, as byte-level BPE vocabularies spell them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in chars:
            chars[b], extra = chr(extra), extra + 1
    return [chars[b] for b in range(256)]


def bpe(n_vocab):
    """(vocab list, merges): specials <unk> <s> </s>, 256 bytes, then merges that spell WORDS."""
    vocab = ["<unk>", "<s>", "</s>", *byte_chars()]
    merges, known = [], set(vocab)
    for word in WORDS:
        for head in ("\u0120", ""):
            left = head or word[0]
            for c in word[0 if head else 1 :]:
                if left + c not in known and len(vocab) < n_vocab:
                    merges.append((left, c))
                    vocab.append(left + c)
                    known.add(left + c)
                left += c
    return vocab, merges


def padded(vocab, n_vocab):
    return vocab + [f"<unused{i}>" for i in range(n_vocab - len(vocab))]


def write_tokenizer(folder, kind, n_vocab):
    vocab, merges = bpe(min(n_vocab, 480))
    ids = {t: i for i, t in enumerate(vocab)}

    def dump(name, obj):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(obj, f, ensure_ascii=False, indent=1)

    special = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, t in enumerate(vocab[:3])
    ]
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    if kind == "tokenizer.json":
        dump(
            "tokenizer.json",
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": special,
                "normalizer": None,
                "pre_tokenizer": level,
                "post_processor": None,
                "decoder": level,
                "model": {
                    "type": "BPE",
                    "dropout": None,
                    "unk_token": None,
                    "fuse_unk": False,
                    "continuing_subword_prefix": None,
                    "end_of_word_suffix": None,
                    "byte_fallback": False,
                    "vocab": ids,
                    "merges": [list(m) for m in merges],
                },
            },
        )
        dump(
            "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **names,
                "chat_template": "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n"
                "{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}",
            },
        )
    else:
        dump("vocab.json", ids)
        with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
            f.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
        dump(
            "tokenizer_config.json",
            {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **names},
        )


# ---- safetensors --------------------------------------------------------------------------------


def write_safetensors(path, tensors, form):
    code, store = {
        "f32": ("F32", lambda x: x),
        "bf16": ("BF16", f32_to_bf16),
        "f16": ("F16", lambda x: x.astype(np.float16)),
    }[form]
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, x in tensors.items():
        packed = x.dtype == np.uint8  # bytes of a quantised format
        blobs.append(np.ascontiguousarray(x if packed else store(x)).tobytes())
        header[name] = {
            "dtype": "U8" if packed else code,
            "shape": list(x.shape),
            "data_offsets": [at, at + len(blobs[-1])],
        }
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_hf(folder, spec, form):
    config, forms, _, tokenizer = SPECS[spec]
    os.makedirs(folder, exist_ok=True)
    tensors = weights(spec, form)
    dtype = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[form]
    written = {**config, "torch_dtype": dtype}
    if spec in CONFIG_V5:
        rope = {"rope_type": "default", "rope_theta": written.pop("rope_theta")}
        del written["rope_scaling"], written["torch_dtype"]
        written.update(dtype=dtype, rope_parameters=rope)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(written, f, indent=1)
    if tokenizer:
        write_tokenizer(folder, tokenizer, config["vocab_size"])
    if form + "*" not in forms:
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors, form)
        return
    names, where, n = list(tensors), {}, 3
    for i in range(n):
        part = names[i::n]
        file = f"model-{i + 1:05}-of-{n:05}.safetensors"
        write_safetensors(os.path.join(folder, file), {k: tensors[k] for k in part}, form)
        where.update({k: file for k in part})
    size = sum(x.nbytes for x in tensors.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": size}, "weight_map": where}, f, indent=1)


# ---- GGUF ---------------------------------------------------------------------------------------


def rope_permute(x, n_heads):
    """GGUF llama files pair neighbouring rows of a head (2i, 2i + 1); Hugging Face pairs (i, i +
    d / 2)."""
    half = x.shape[0] // n_heads // 2
    return x.reshape(n_heads, 2, half, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def rope_unpermute(x, n_heads):
    half = x.shape[0] // n_heads // 2
    return x.reshape(n_heads, half, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def rope3_factors(config):
    """Divisors of the rotation frequencies under llama3 scaling, f32 [head_dim / 2]."""
    s, d = config["rope_scaling"], config["head_dim"]
    inv = config["rope_theta"] ** -(np.arange(0, d, 2) / d)
    turns = s["original_max_position_embeddings"] * inv / (2 * np.pi)
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    mix = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - mix) / s["factor"] + mix)).astype(np.float32)


GGUF_NAMES = {
    "llama": {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
    "opt": {
        "model.decoder.embed_tokens": "token_embd",
        "model.decoder.embed_positions": "position_embd",
        "model.decoder.project_in": "project_in",
        "model.decoder.project_out": "project_out",
        "model.decoder.final_layer_norm": "output_norm",
        "lm_head": "output",
        "self_attn_layer_norm": "attn_norm",
        "final_layer_norm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_output",
        "fc1": "ffn_up",
        "fc2": "ffn_down",
    },
}
LAYER_PREFIX = {"llama": "model.layers.", "opt": "model.decoder.layers."}


def gguf_name(family, name):
    stem, leaf = name.rsplit(".", 1)
    if stem.startswith(LAYER_PREFIX[family]):
        layer, rest = stem[len(LAYER_PREFIX[family]) :].split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[family][rest]}.{leaf}"
    return f"{GGUF_NAMES[family][stem]}.{leaf}"


def hf_name(family, name):
    parts = name.split(".")
    layered = parts[0] == "blk"
    for stem, short in GGUF_NAMES[family].items():
        outside = stem.startswith("model.") or stem == "lm_head"
        if short == parts[-2] and outside != layered:
            return (
                f"{LAYER_PREFIX[family]}{parts[1]}.{stem}.{parts[-1]}"
                if layered
                else f"{stem}.{parts[-1]}"
            )
    raise KeyError(name)


def gguf_keys_llama(w, c):
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if c["rope_scaling"]:
        w.add_tensor("rope_freqs.weight", rope3_factors(c))


def gguf_keys_opt(w, c):
    """No published converter writes opt; these are the keys that engine/model/families/family_opt.c defines."""
    w.add_feed_forward_length(c["ffn_dim"])
    w.add_layer_norm_eps(1e-5)
    w.add_bool("opt.norm_after", not c["do_layer_norm_before"])
    w.add_string("opt.activation", c["activation_function"])


def gguf_tokenizer(w, tokenizer, n_vocab):
    w.add_tokenizer_model("gpt2" if tokenizer else "none")
    if not tokenizer:
        return
    vocab, merges = bpe(min(n_vocab, 480))
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(padded(vocab, n_vocab))
    w.add_token_types([3] * 3 + [1] * (len(vocab) - 3) + [5] * (n_vocab - len(vocab)))
    w.add_token_merges([f"{a} {b}" for a, b in merges])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)


def write_gguf(path, spec, form):
    config, _, _, tokenizer = SPECS[spec]
    family = config["model_type"]
    w = gguf.GGUFWriter(path, family)
    w.add_name(f"tiny {spec}")
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_head_count(config["num_attention_heads"])
    w.add_vocab_size(config["vocab_size"])
    (gguf_keys_llama if family == "llama" else gguf_keys_opt)(w, config)
    gguf_tokenizer(w, tokenizer, config["vocab_size"])
    heads = (
        {}
        if family == "opt"
        else {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    )
    for name, x in weights(spec).items():
        part = name.split(".")[-2]
        if part in heads:
            x = rope_permute(x, heads[part])
        kind, stored = encode(x, form) if x.ndim == 2 else (Q.F32, x)
        w.add_tensor(gguf_name(family, name), stored, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write(folder, names=None):
    """Writes the checkpoints and returns [(spec, format, path)]."""
    os.makedirs(folder, exist_ok=True)
    out = []
    for spec, form, name in files(names):
        path = os.path.join(folder, name)
        (write_gguf if name.endswith(".gguf") else write_hf)(path, spec, form)
        out.append((spec, form, path))
    return out


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for _spec, _form, _path in write(sys.argv[1], sys.argv[2:]):
        print(_path)
