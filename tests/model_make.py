"""Small models as files, byte by byte: GGUF, and Hugging Face directories with safetensors.

Owns: a llama of two layers in either form, whose fields are changed to break it. Refuses: wheels; standard
library only. Where each byte comes from is seen here, so that a test can say what is wrong with it.
"""
import json
import os
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)  # value types of GGUF
F16 = 1  # the type of a tensor; that of f32 is 0
DIM, HEADS, FFN, LAYERS, VOCAB = 64, 2, 96, 2, 128


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STR:
        return text(v)
    if kind == ARR:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], x) for x in v[1])
    return struct.pack("<" + "BbHhIifBxxQqd"[kind], v)


class Gguf:
    """A llama of two layers in f32; fields are changed, then bytes() writes it."""

    def __init__(self):
        self.magic, self.version, self.n_tensors, self.n_kv = b"GGUF", 3, None, None
        self.kv = {"general.architecture": (STR, "llama"), "llama.context_length": (U32, 128),
                   "llama.embedding_length": (U32, DIM), "llama.block_count": (U32, LAYERS),
                   "llama.feed_forward_length": (U32, FFN), "llama.attention.head_count": (U32, HEADS),
                   "llama.attention.head_count_kv": (U32, HEADS), "llama.rope.freq_base": (F32, 10000.0),
                   "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5), "llama.vocab_size": (U32, VOCAB)}
        self.extra = b""  # raw pairs after the others, counted by hand
        self.tensors = {"token_embd.weight": [DIM, VOCAB], "output_norm.weight": [DIM]}
        for i in range(LAYERS):
            for name, dims in (("attn_norm", [DIM]), ("attn_q", [DIM, DIM]), ("attn_k", [DIM, DIM]),
                               ("attn_v", [DIM, DIM]), ("attn_output", [DIM, DIM]), ("ffn_norm", [DIM]),
                               ("ffn_gate", [DIM, FFN]), ("ffn_up", [DIM, FFN]), ("ffn_down", [FFN, DIM])):
                self.tensors[f"blk.{i}.{name}.weight"] = dims
        self.types, self.offsets, self.cut = {}, {}, 0

    def set(self, key, kind, v):
        self.kv["llama." + key if "." not in key or key.startswith(("attention", "rope")) else key] = (kind, v)
        return self

    def bytes(self):
        out = self.magic + struct.pack("<IQQ", self.version, len(self.tensors) if self.n_tensors is None
                                       else self.n_tensors, len(self.kv) if self.n_kv is None else self.n_kv)
        for key, (kind, v) in self.kv.items():
            out += text(key) + struct.pack("<I", kind) + (v if isinstance(v, bytes) else value(kind, v))
        out += self.extra
        data = b""
        for name, dims in self.tensors.items():
            n = 1
            for d in dims:
                n *= d
            out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d % 2**64) for d in dims)
            out += struct.pack("<IQ", self.types.get(name, 0) % 2**32, self.offsets.get(name, len(data)) % 2**64)
            if 0 < n < 1 << 20:
                data += struct.pack("<e" if self.types.get(name) == F16 else "<f", 0.01) * n
                data += b"\0" * (-len(data) % 32)
        out += b"\0" * (-len(out) % 32) + data
        return out[:len(out) - self.cut]


def gguf(**fields):
    """Gguf with these attributes set."""
    g = Gguf()
    for k, v in fields.items():
        setattr(g, k, v)
    return g


def hf_tensors():
    t = {"model.embed_tokens.weight": [VOCAB, DIM], "model.norm.weight": [DIM]}
    for i in range(LAYERS):
        for name, dims in (("input_layernorm", [DIM]), ("post_attention_layernorm", [DIM]),
                           ("self_attn.q_proj", [DIM, DIM]), ("self_attn.k_proj", [DIM, DIM]),
                           ("self_attn.v_proj", [DIM, DIM]), ("self_attn.o_proj", [DIM, DIM]),
                           ("mlp.gate_proj", [FFN, DIM]), ("mlp.up_proj", [FFN, DIM]), ("mlp.down_proj", [DIM, FFN])):
            t[f"model.layers.{i}.{name}.weight"] = dims
    return t


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": DIM,
          "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "intermediate_size": FFN,
          "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": True}


def safetensors(change=None, raw=None, cut=0, extra=b""):
    """Bytes of the model; change(header) edits entries, raw replaces the header's text."""
    header, at = {}, 0
    for name, dims in hf_tensors().items():
        n = 4
        for d in dims:
            n *= d
        header[name] = {"dtype": "F32", "shape": dims, "data_offsets": [at, at + n]}
        at += n
    if change:
        change(header)
    head = raw if raw is not None else json.dumps(header).encode()
    out = struct.pack("<Q", len(head)) + head + struct.pack("<f", 0.01) * (at // 4) + extra
    return out[:len(out) - cut]


def hf(folder, config=None, raw_config=None, weights=None, **more):
    """A Hugging Face directory; config holds changed keys (None: left out)."""
    path = os.path.join(folder, "model")
    os.makedirs(path)
    c = {**CONFIG, **(config or {})}
    c = {k: v for k, v in c.items() if v != "ABSENT"}
    write(os.path.join(path, "config.json"), raw_config if raw_config is not None else json.dumps(c).encode())
    if weights != "none":
        write(os.path.join(path, "model.safetensors"), weights if weights is not None else safetensors())
    for name, data in more.items():
        write(os.path.join(path, name.replace("__", ".")), data)
    return path


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path
