"""Runs of the binary in which the n-th call of a kind goes wrong (tests/tools/nth.c), and a small job for them.

Owns: what a call is about (KINDS), the lists of calls that a run made, a model of two layers with a tokenizer.
Refuses: to know what must come of it; that stands in kill_test, nth_test and trouble_test. Standard library
only. A run of this job takes some 20 ms, so that thousands of them can be tried.
"""
import fnmatch
import json
import os
import random
import struct
import tempfile

import trial

HERE = os.path.dirname(os.path.abspath(__file__))
SO = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/tools/nth.so")
TINY = """family = llama
dim = 64
layers = 2
heads = 2
kv_heads = 1
head_dim = 32
ffn = 128
vocab = 500
context = 512
"""
VOCAB = 500
EVERY_PASS = {"SLUICE_SYNC_S": "0.000001"}  # a commit at the end of every pass: the same calls in every run

# What a path is, by the first pattern that fits (fnmatch). O_TMPFILE is opened by its folder's name.
KINDS = (("OUT.tmp", "*.jsonl.tmp"), ("job.json", "*.job.json*"), ("journal", "*.jsonl.journal"),
         ("partial", "*.jsonl.partial"), ("scratch", "*(deleted)"), ("scratch folder", "*/offload"),
         ("codec", "*.pack.zst*"), ("OUT", "*/jobs/*.jsonl"), ("pack", "*.pack*"), ("probe", "*/probe-*"), ("OUT's folder", "*/jobs"),
         ("cache folder", "*/cache"), ("summary", "*/summary.json*"))


class Log:
    """What NTH_LOG says: calls [(ns, call, kind, offset)] in order, counts by call, live blocks, callers.

    inside: "malloc:17" and so on, of the calls that came through the library of NTH_WHO.
    """

    def __init__(self, path):
        self.calls, self.counts, self.live, self.hits, self.by, self.at, self.inside = [], {}, 0, None, "", [], set()
        for line in trial.read(path).decode("utf-8", "replace").splitlines():
            if line.startswith("= by"):
                self.by = line[5:]
            elif line.startswith("= at"):
                self.at.append(line[5:])
            elif line.startswith("= in "):
                self.inside.add(line[5:].rsplit(" ", 1)[0])
            elif line.startswith("= "):
                name, n = line[2:].rsplit(" ", 1)
                if name in ("live", "hits"):
                    setattr(self, name, int(n))
                else:
                    self.counts[name] = int(n)
            elif line.count(" ") >= 3:
                ns, call, offset, name = line.split(" ", 3)
                kind = next((k for k, p in KINDS if fnmatch.fnmatchcase(name, p)), None)
                if kind and ns.isdigit():
                    self.calls.append((int(ns), call, kind, int(offset)))

    def count(self, call, kind):
        return sum(c == call and k == kind for _, c, k, _ in self.calls)


def pattern(kind):
    return dict(KINDS)[kind]


def env(act="", log="", **more):
    """The environment that makes `act` (act,call,n,errno[,pattern]) happen."""
    out = {"LD_PRELOAD": SO, **more}
    if act:
        out["NTH"] = act
    if log:
        out["NTH_LOG"] = log
    return out


def run(place, args, act="", limit_s=60.0, **more):
    """One run under `act`, killed after limit_s; .log is what it called."""
    fd, log = tempfile.mkstemp(dir=place.folder, suffix=".nth")
    os.close(fd)
    done = place.start(args, **env(act, log, **more)).end(limit_s)
    done.log = Log(log)
    os.unlink(log)
    return done


def prepare(place):
    """Folders whose names KINDS knows, and the probe of this machine, which takes longer than all the rest."""
    for name in ("jobs", "offload"):
        os.makedirs(place.at(name), exist_ok=True)
    place.model = place.write("tiny.cfg", TINY.encode())
    source = place.rows("first.jsonl", [{"prompt_token_ids": [5], "max_tokens": 1}])
    return place.sluice("run", "-m", place.model, "-i", source, "-o", place.at("jobs/first.jsonl"), "--mem-ram",
                        "32M", "--progress", "none")


def rows(n, seed, tokens=(6, 14)):
    """Rows of ids with every kind of sampling, all with log-probabilities, so that no change goes unseen."""
    out = trial.job_rows(n, seed, vocab=VOCAB, prompt_max=40, tokens=tokens)
    return [dict(row, logprobs=1) for row in out]


def text_model(folder, dim=64, layers=2):
    """A Hugging Face directory: a llama in bf16 whose tokens are bytes; byte 0 ends a row."""
    heads, ffn, r = 2, 96, random.Random(5)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    vocab = {chr(b) if b in plain else chr(next(spare)): b for b in range(256)}
    shapes = {"model.embed_tokens.weight": [256, dim], "model.norm.weight": [dim]}
    for i in range(layers):
        for name, dims in (("input_layernorm", [dim]), ("post_attention_layernorm", [dim]),
                           ("self_attn.q_proj", [dim, dim]), ("self_attn.k_proj", [dim, dim]),
                           ("self_attn.v_proj", [dim, dim]), ("self_attn.o_proj", [dim, dim]),
                           ("mlp.gate_proj", [ffn, dim]), ("mlp.up_proj", [ffn, dim]), ("mlp.down_proj", [dim, ffn])):
            shapes[f"model.layers.{i}.{name}.weight"] = dims
    head, data = {}, bytearray()
    for name, dims in shapes.items():
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        start = len(data)
        for _ in range(n):
            data += struct.pack("<f", 1.0 if len(dims) == 1 else r.gauss(0, 0.2))[2:]
        head[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [start, len(data)]}
    text = json.dumps(head).encode()
    os.makedirs(folder, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
              "intermediate_size": ffn, "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
              "bos_token_id": 1, "eos_token_id": 0}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": {"type": "ByteLevel"},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                           "merges": []}}
    for name, content in (("config.json", json.dumps(config).encode()),
                          ("tokenizer.json", json.dumps(tokenizer).encode()),
                          ("model.safetensors", struct.pack("<Q", len(text)) + text + bytes(data))):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(content)
    return folder
