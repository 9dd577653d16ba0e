#!/usr/bin/env python3
"""Hostile and broken files end to end: bad_input_test.py [SLUICE]

Each case is one damaged copy of a small valid model, or a bad job file, given to the binary. Expected:
the exit code, ONE line `sluice: error: FILE: WHERE: WHAT (hint)` that names the file and what is wrong,
without memory beyond a good run's, and with nothing left in the cache folder.
Standard library only: files are built byte by byte (model_make).
"""
import json
import math
import os
import re
import struct
import sys
import tempfile

import trial
from model_make import ARR, DIM, HEADS, FFN, LAYERS, STR, U32, U64, VOCAB, Gguf, gguf, hf, hf_tensors, safetensors, text, write

RSS_SLACK = 64 << 20


# ---- cases: name, expected words (a regular expression, in lower case), how to make it ------------

def edit(name, **fields):
    return lambda header: header[name].update(fields)


Q0 = "blk.0.attn_q.weight"
HQ0 = "model.layers.0.self_attn.q_proj.weight"

# What the headers' parsers refuse, gguf_bad_test and safetensors_test hold to the byte; of that here only
# what every layer above has to pass on: one file that is cut, one that lies about sizes, one that asks for
# memory, one that is something else. The rest are models that do not fit together.
GGUF_CASES = [
    ("empty file", "truncated in magic", b""),
    ("cut in the tensor list", "truncated|remain", Gguf().bytes()[:600]),
    ("data cut by a byte", "incomplete", gguf(cut=1)),
    ("2^64 - 1 tensors", "claims 18446744073709551615 tensors", gguf(n_tensors=2**64 - 1)),
    ("a string of 1 GiB that is not there", "string of 1073741824 bytes",
     gguf(n_kv=11, extra=text("k") + struct.pack("<IQ", STR, 1 << 30))),
    ("array whose bytes wrap", "array of 2305843009213693953",
     gguf(n_kv=11, extra=text("k") + struct.pack("<IIQ", ARR, U64, 2**61 + 1))),
    ("product of dimensions wraps", "overflows", gguf(tensors={**Gguf().tensors, Q0: [2**33, 2**33]})),
    ("offset near 2^64", "offset 18446744073709551584", gguf(offsets={Q0: 2**64 - 32})),
    ("HTML page", "html", b"<!DOCTYPE html><html><body>404</body></html>" * 20),
    ("wrong shape", r"attn_q.*64", gguf(tensors={**Gguf().tensors, Q0: [DIM, 32]})),
    ("tensor missing", "attn_q", gguf(tensors={k: v for k, v in Gguf().tensors.items() if k != Q0})),
    ("no architecture", "architecture", gguf(kv={k: v for k, v in Gguf().kv.items() if not k.startswith("general")})),
    ("unknown architecture", "mamba", Gguf().set("general.architecture", STR, "mamba")),
    ("0 blocks", "block_count", Gguf().set("block_count", U32, 0)),
    ("2^31 blocks", "block_count", Gguf().set("block_count", U32, 2**31)),
    ("block count as text", "block_count", Gguf().set("block_count", STR, "2")),
    ("0 heads", "head_count", Gguf().set("attention.head_count", U32, 0)),
    ("KV heads do not divide heads", "head_count_kv|kv", Gguf().set("attention.head_count_kv", U32, 3)),
    ("rope wider than a head", "rope", Gguf().set("rope.dimension_count", U32, 4096)),
]

E = 4  # experts


def experts(arch="llama", tensors=None, **keys):
    """The good model with experts in the place of its MLPs; tensors and keys (None: left out) changed."""
    g = Gguf()
    for i in range(LAYERS):
        for name in ("gate", "up", "down"):
            k, n = g.tensors.pop(f"blk.{i}.ffn_{name}.weight")
            g.tensors[f"blk.{i}.ffn_{name}_exps.weight"] = [k, n, E]
        g.tensors[f"blk.{i}.ffn_gate_inp.weight"] = [DIM, E]
    g.tensors.update(tensors or {})
    g.set("expert_count", U32, E).set("expert_used_count", U32, 2)
    for key, x in keys.items():
        g.kv["llama." + key] = (U32, x)
        if x is None:
            del g.kv["llama." + key]
    g.kv = {key.replace("llama.", arch + "."): v for key, v in g.kv.items()}
    g.kv["general.architecture"] = (STR, arch)
    return g


STACK = "blk.1.ffn_gate_exps.weight"
GGUF_CASES += [
    ("0 experts, and their tensors", "ffn_gate.weight: missing", experts(expert_count=0)),
    ("2^31 experts", "expert_count", experts(expert_count=2**31)),
    ("1 expert", "expert_used_count: 2 exceeds the 1", experts(expert_count=1)),
    ("an expert more than there are", r"exps.weight: expected \[480, 64\]", experts(expert_count=E + 1)),
    ("no word on experts of a token", "expert_used_count: missing", experts(expert_used_count=None)),
    ("0 experts of a token", "expert_used_count", experts(expert_used_count=0)),
    ("more experts of a token than there are", "exceeds the 4", experts(expert_used_count=E + 1)),
    ("experts of one tensor are 3 of 4", r"exps.weight: expected \[384, 64\]", experts(tensors={STACK: [DIM, FFN, E - 1]})),
    ("experts of one tensor are 2 of twice the size", r"exps.weight: expected \[384, 64\]",
     experts(tensors={STACK: [DIM, 2 * FFN, 2]})),
    ("experts in four dimensions", "exps.weight: expected", experts(tensors={STACK: [DIM, FFN, 2, 2]})),
    ("an expert of another size", r"exps.weight: expected \[380, 64\]", experts(expert_feed_forward_length=FFN - 1)),
    ("a family of experts without any", "qwen3moe.expert_count: missing", experts("qwen3moe", expert_count=None)),
    ("experts that are shared", "expert_shared_count", experts(expert_shared_count=1)),
]

SAFETENSORS_CASES = [
    ("7 bytes", "7 bytes|truncated|header", b"\0" * 7),
    ("header longer than the file", "truncated download", struct.pack("<Q", 1000) + b"{}"),
    ("sizes overflow", "overflows", safetensors(edit(HQ0, shape=[4194305, 4194305, 211106198978564]))),
    ("end beyond the file", "offsets|incomplete", safetensors(edit(HQ0, data_offsets=[1 << 40, (1 << 40) + DIM * DIM * 4]))),
    ("tensors overlap", "overlaps", safetensors(edit(HQ0, data_offsets=[0, DIM * DIM * 4]))),
    ("cut by a byte", "incomplete", safetensors(cut=1)),
    ("pickle", "pickle", b"PK\x03\x04" + b"\0" * 200),
    ("a tensor is missing", "q_proj", safetensors(lambda h: h.update({"x": h.pop(HQ0)}))),
]

CONFIG_CASES = [
    ("empty", "config.json", dict(raw_config=b"")),
    ("a list", "config.json", dict(raw_config=b"[]")),
    ("not JSON", "config.json", dict(raw_config=b"{\"a\": 1,")),
    ("100,000 brackets", "config.json", dict(raw_config=b"{\"a\":" * 100000)),
    ("no hidden_size", "hidden_size", dict(config={"hidden_size": "ABSENT"})),
    ("hidden_size as text", "hidden_size", dict(config={"hidden_size": "64"})),
    ("hidden_size 0", "hidden_size", dict(config={"hidden_size": 0})),
    ("hidden_size 2^32 + 64", "hidden_size", dict(config={"hidden_size": 2**32 + 64})),
    ("0 layers", "num_hidden_layers", dict(config={"num_hidden_layers": 0})),
    ("2^31 layers", "num_hidden_layers", dict(config={"num_hidden_layers": 2**31})),
    ("more layers than the file has", "", dict(config={"num_hidden_layers": 3})),
    ("KV heads do not divide heads", "num_key_value_heads", dict(config={"num_key_value_heads": 3})),
    ("vocabulary of another model", "", dict(config={"vocab_size": 129})),
    ("rope_theta -1", "rope_theta", dict(config={"rope_theta": -1})),
    ("unknown rope scaling", "rope", dict(config={"rope_scaling": {"rope_type": "warp", "factor": 2}})),
    ("eos_token_id -1", "eos_token_id: -1 out of range", dict(config={"eos_token_id": -1})),
    ("eos_token_id as text", "eos_token_id: expected integer", dict(config={"eos_token_id": "x"})),
    ("an eos_token_id as large as the vocabulary", f"eos_token_id: {VOCAB} out of range", dict(config={"eos_token_id": [1, VOCAB]})),
    ("generation_config.json's eos_token_id", "generation_config.json: eos_token_id: -1 out of range",
     dict(generation_config__json=json.dumps({"eos_token_id": -1}).encode())),
    ("unknown architecture", "gpt9", dict(config={"architectures": ["GPT9"], "model_type": "gpt9"})),
    ("index names a missing shard", "shard", dict(weights="none", model__safetensors__index__json=json.dumps(
        {"weight_map": {n: "model-00001-of-00001.safetensors" for n in hf_tensors()}}).encode())),
    ("index leaves the directory", "", dict(weights="none", model__safetensors__index__json=json.dumps(
        {"weight_map": {n: "../../etc/passwd" for n in hf_tensors()}}).encode())),
]

MOE = {"model_type": "mixtral", "num_local_experts": E, "num_experts_per_tok": 2}
GEMMA2 = {"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"}
SEES = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "sliding_window": 8}}
CONFIG_CASES += [
    ("0 experts", "num_local_experts", dict(config={**MOE, "num_local_experts": 0})),
    ("2^40 experts", "num_local_experts", dict(config={**MOE, "num_local_experts": 2**40})),
    ("experts as a list", "num_local_experts: unsupported: 5 in layer 1", dict(config={**MOE, "num_local_experts": [E, E + 1]})),
    ("experts null", "num_local_experts: missing", dict(config={**MOE, "num_local_experts": None})),
    ("5 of 4 experts", "num_experts_per_tok: 5 exceeds", dict(config={**MOE, "num_experts_per_tok": E + 1})),
    ("experts that the file lacks", "experts.0.w1.weight: missing", dict(config=MOE)),
    ("a llama of experts", "num_local_experts: unsupported in llama", dict(config={"num_local_experts": E})),
    ("a cap of 0", "attn_logit_softcapping", dict(config={**GEMMA2, "attn_logit_softcapping": 0})),
    ("a cap as text", "final_logit_softcapping", dict(config={**GEMMA2, "final_logit_softcapping": "30"})),
    ("a window of 1", "sliding_window", dict(config={**GEMMA2, "sliding_window": 1})),
    ("a window null where layers have it", "sliding_window: missing",
     dict(config={**GEMMA2, "sliding_window": None, "layer_types": ["sliding_attention"] * LAYERS})),
    ("a scalar of 0", "query_pre_attn_scalar", dict(config={**GEMMA2, "query_pre_attn_scalar": 0})),
    ("text_config a list", "text_config.sliding_window: missing", dict(config={**SEES, "text_config": [1]})),
    ("text_config null", "text_config.sliding_window: missing", dict(config={**SEES, "text_config": None})),
    ("text_config of another", "text_config.model_type: unsupported: llama",
     dict(config={**SEES, "text_config": {"model_type": "llama", "sliding_window": 8}})),
    ("text_config without sizes", "text_config.num_hidden_layers: missing", dict(config=SEES)),
    ("text_config in text_config", "text_config.sliding_window: missing",
     dict(config={**SEES, "text_config": {"text_config": SEES["text_config"]}})),
]


def stacks(quantized=False, **changes):
    """A gpt-oss of one layer as a directory; changes: shapes by the last part of a name, with dots as __."""
    d, ffn, base = DIM, 96, "model.layers.0."
    at = {"model.embed_tokens.weight": [VOCAB, d], "model.norm.weight": [d], "lm_head.weight": [VOCAB, d]}
    at |= {base + x: [d] for x in ("input_layernorm.weight", "post_attention_layernorm.weight")}
    at |= {f"{base}self_attn.{x}_proj.{y}": [d, d][:1 + (y == "weight")] for x in "qkvo" for y in ("weight", "bias")}
    at |= {base + "self_attn.sinks": [HEADS], base + "mlp.router.weight": [E, d], base + "mlp.router.bias": [E],
           base + "mlp.experts.gate_up_proj_bias": [E, 2 * ffn], base + "mlp.experts.down_proj_bias": [E, d]}
    for name, n, k in (("gate_up_proj", 2 * ffn, d), ("down_proj", d, ffn)):
        if quantized:
            at |= {f"{base}mlp.experts.{name}_blocks": [E, n, k // 32, 16], f"{base}mlp.experts.{name}_scales": [E, n, k // 32]}
        else:
            at[f"{base}mlp.experts.{name}"] = [E, k, n]
    at |= {base + "mlp.experts." + name: shape for name, shape in changes.items()}
    header, end = {}, 0
    for name, shape in at.items():
        u8 = name.endswith(("_blocks", "_scales"))
        n = (1 if u8 else 4) * math.prod(shape)
        header[name] = {"dtype": "U8" if u8 else "F32", "shape": shape, "data_offsets": [end, end + n]}
        end += n
    head = json.dumps(header).encode()
    config = {"model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": E, "num_experts_per_tok": 2,
              "sliding_window": 16, "tie_word_embeddings": False, "intermediate_size": ffn}
    if quantized:
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return dict(config=config, weights=struct.pack("<Q", len(head)) + head + bytes(end))


STACK_CASES = [
    ("experts below each other where columns are read", r"down_proj: expected one matrix per expert, the file has \[384, 64",
     stacks(down_proj=[E * 96, DIM])),
    ("3 of 4 experts", r"gate_up_proj: expected \[.*, the file has \[3, 64, 192\]", stacks(gate_up_proj=[3, DIM, 192])),
    ("experts without columns", "down_proj: expected", stacks(down_proj=[E, 2**50, 0])),
    ("biases of 3 experts", "gate_up_proj_bias: expected", stacks(gate_up_proj_bias=[3, 192])),
    ("mxfp4 of 3 experts", "down_proj: expected", stacks(True, down_proj_blocks=[3, DIM, 3, 16], down_proj_scales=[3, DIM, 3])),
    ("mxfp4, scales of 3 experts", "a scale of each block", stacks(True, down_proj_scales=[3, DIM, 3])),
    ("mxfp4, flat blocks", "a scale of each block", stacks(True, down_proj_blocks=[E * DIM * 3, 16])),
    ("mxfp4 and bf16", "down_proj: stored both quantised and unquantised", stacks(True, down_proj=[E, 96, DIM])),
]

PATTERN = {"pattern": r"\p{L}+|\s+|[^\s\p{L}]+", "version": "v3"}
TEKKEN_CASES = [
    ("not JSON", "invalid json", b"{\"config\":"),
    ("2^62 tokens", "out of range", dict(config={**PATTERN, "default_vocab_size": 2**62, "default_num_special_tokens": 0})),
    ("special tokens below 0", "out of range", dict(config={**PATTERN, "default_vocab_size": 5, "default_num_special_tokens": -1})),
    ("one rank twice", "token id 0 is used twice", dict(
        config={**PATTERN, "default_vocab_size": 2, "default_num_special_tokens": 0},
        vocab=[{"rank": 0, "token_bytes": "YQ=="}, {"rank": 0, "token_bytes": "Yg=="}])),
    ("100,000 brackets", "nesting deeper", b"{\"vocab\":" + b"[" * 100000),
]

DUMMY_CASES = [
    ("unknown key", "wings", b"family = llama\nwings = 2\n"),
    ("no dim", "dim", b"family = llama\nlayers = 1\nheads = 1\nffn = 32\nvocab = 32\ncontext = 32\n"),
    ("dim of 10^15", "dim", b"family = llama\ndim = 1000000000000000\n"),
    ("no '='", ":", b"family llama\n"),
]

# A row of `run`, and the error code that its row in OUT must carry.
ROW_CASES = [
    ("not JSON", "{", "invalid_json"),
    ("a list", "[]", "invalid_"),
    ("100,000 brackets", "[" * 100000, "invalid_json"),
    ("duplicate key", '{"prompt_token_ids":[1],"prompt_token_ids":[2]}', "invalid_json"),
    ("no prompt", '{"max_tokens":1}', "invalid_request"),
    ("max_tokens 0", '{"prompt_token_ids":[1],"max_tokens":0}', "invalid_request"),
    ("max_tokens as text", '{"prompt_token_ids":[1],"max_tokens":"10"}', "invalid_request"),
    ("temperature -1", '{"prompt_token_ids":[1],"temperature":-1}', "invalid_request"),
    ("top_p 2", '{"prompt_token_ids":[1],"top_p":2}', "invalid_request"),
    ("seed 2^64", '{"prompt_token_ids":[1],"seed":18446744073709551616}', "invalid_"),
    ("id -1", '{"prompt_token_ids":[-1]}', "invalid_request"),
    ("id beyond the vocabulary", '{"prompt_token_ids":[128]}', "invalid_request"),
    ("prompt beyond the context", json.dumps({"prompt_token_ids": [1] * 200}), "context_length_exceeded"),
    ("unknown field", '{"prompt_token_ids":[1],"n_discard":-5}', "unsupported_field"),
]


# ---- the checks ----------------------------------------------------------------------------------

class Judge:
    """What a refusal has to be, beside a good run of the same binary."""

    def __init__(self, tally, place):
        self.tally, self.place = tally, place
        self.sanitized = "asan" in place.binary  # slower, and shadow memory is no measure of the program's
        self.good = place.write("good.gguf", Gguf().bytes())
        runs = [place.expect(tally, f"a good model: {what}", 0, "inspect", "-q", path)
                for what, path in (("GGUF", self.good), ("directory", hf(place.folder)))]
        self.most_rss = max(done.rss for done in runs) + RSS_SLACK

    def refused(self, what, done, path, words, codes=(5,), most_rss=None):
        """One sentence, the right exit code, and little memory."""
        lines, name = done.err.splitlines(), os.path.basename(path)
        bad = []
        if done.code not in codes:
            bad.append(f"exit {done.code}, want {'/'.join(map(str, codes))}")
        if len(lines) != 1 or not lines[0].startswith("sluice: error: "):
            bad.append(f"stderr is not one line of ours: {done.err[-300:]!r}")
        elif name not in lines[0]:
            bad.append(f"the file is not named: {lines[0]!r}")
        elif words and not re.search(words, lines[0].split(name, 1)[1].lower()):
            bad.append(f"'{words}' is not in {lines[0]!r}")
        elif lines[0].count(": ") < 3:
            bad.append(f"not FILE: WHERE: WHAT: {lines[0]!r}")
        if done.out:
            bad.append("stdout is not empty")
        most = most_rss or self.most_rss
        if not self.sanitized and done.rss > most:
            bad.append(f"{done.rss >> 20} MiB, at most {most >> 20}")
        self.tally.check(not bad, f"{what}: {'; '.join(bad)}")

    def inspects(self, what, path, words, codes=(5,)):
        """inspect refuses it, and leaves nothing in the cache."""
        with tempfile.TemporaryDirectory(dir=self.place.folder) as cache:
            done = self.place.sluice("inspect", "-q", path, SLUICE_CACHE_DIR=cache)
            self.refused(what, done, path, words, codes)
            left = os.listdir(cache)
        if left:
            self.tally.check(False, f"{what}: left in the cache: {left}")


def files(tally, place, a):
    """Single files that are no model."""
    judge = Judge(tally, place)
    for kind, cases, ending in (("GGUF", GGUF_CASES, ".gguf"), ("model config", DUMMY_CASES, ".cfg")):
        for name, words, data in cases:
            path = place.write("bad" + ending, data.bytes() if isinstance(data, Gguf) else data)
            judge.inspects(f"{kind}: {name}", path, words)


def directories(tally, place, a):
    """Hugging Face directories that are no model."""
    judge = Judge(tally, place)
    cases = [("safetensors", n, w, dict(weights=d)) for n, w, d in SAFETENSORS_CASES]
    cases += [("config.json", n, w, d) for n, w, d in CONFIG_CASES]
    cases += [("experts in one tensor", n, w, d) for n, w, d in STACK_CASES]
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        for quantized in (False, True):
            path = hf(os.path.join(folder, str(quantized)), **stacks(quantized))
            place.expect(tally, "experts in one tensor, sound", 0, "pack", "-q", path, "-o", path + ".pack")
    for kind, name, words, fields in cases:
        with tempfile.TemporaryDirectory(dir=place.folder) as folder:
            judge.inspects(f"{kind}: {name}", hf(folder, **fields), words)


def tokenizers(tally, place, a):
    """A sound model whose tekken.json is none: one warning, and it works with ids alone."""
    for name, words, data in TEKKEN_CASES:
        with tempfile.TemporaryDirectory(dir=place.folder) as folder:
            path = hf(folder, tekken__json=data if isinstance(data, bytes) else json.dumps(data).encode())
            pack = os.path.join(folder, "m.pack")
            done = place.sluice("pack", path, "-o", pack)
            said = [x for x in done.err.lower().splitlines() if "tekken.json: " in x]
            tally.check(done.code == 0 and len(said) == 1 and re.search(words, said[0]),
                        f"tekken.json: {name}: {done.code} {done.err[-300:]!r}")
            place.expect(tally, f"tekken.json: {name}: text", 5, "tokenize", "-q", "-m", pack, stdin='{"text":"a"}\n')


def odd_paths(tally, place, a):
    """Paths that are no regular file, and packs whose bytes went bad."""
    judge = Judge(tally, place)
    os.mkfifo(place.at("fifo.gguf"))
    os.mkdir(place.at("empty"))
    os.symlink("loop.gguf", place.at("loop.gguf"))
    for name in ("fifo.gguf", "empty", "loop.gguf", "absent.gguf"):
        judge.inspects(f"path: {name}", place.at(name), "", codes=(2, 5))
    os.mkdir(place.at("lora"))
    place.write("lora/adapter_config.json", b"{}")
    judge.inspects("path: an adapter alone", place.at("lora"), "this is a lora adapter, not a model .*merge_and_unload")
    judge.inspects("path: a name on a hub", "nobody/opt-6.7b", "does not use the network .*huggingface-cli download nobody/opt-6.7b ")
    os.mkdir(place.at("beside"))
    model = hf(place.at("beside"), adapter_config__json=b"{}")
    for command in (["inspect", model], ["tokenize", "-m", model]):
        done = place.sluice(*command, stdin="")
        tally.check(done.err.count("adapter_model.safetensors is not used") == 1, f"an adapter beside a model: {command}: {done.err[-300:]}")
    place.expect(tally, "a good model packs", 0, "pack", "-q", judge.good, "-o", "good.pack")
    data = trial.read(place.at("good.pack"))
    for name, damaged in (("cut", data[:len(data) // 2]), ("header bit", data[:40] + bytes([data[40] ^ 1]) + data[41:]),
                          ("only a header", data[:4096])):
        judge.inspects(f"pack: {name}", place.write("bad.pack", damaged), "", codes=(5, 7))


def jobs(tally, place, a):
    """Rows of `run`: bad rows become error rows and exit 3; bad files are refused."""
    judge = Judge(tally, place)
    good = '{"custom_id":"good","prompt_token_ids":[1,2,3],"max_tokens":2,"temperature":0}\n'
    rows = place.write("in.jsonl", (good + "".join(row + "\n" for _, row, _ in ROW_CASES)).encode())
    base = ["run", "-q", "--mem-ram", "128M", "--progress", "none", "-m", judge.good]
    place.expect(tally, "rows", 3, *base, "-i", rows, "-o", "out.jsonl")
    answers = [json.loads(line) for line in trial.read(place.at("out.jsonl")).splitlines()]
    tally.check(len(answers) == len(ROW_CASES) + 1, f"rows: {len(answers)} answers for {len(ROW_CASES) + 1} rows")
    if answers:
        tally.check(len(answers[0].get("token_ids", [])) == 2, f"rows: the good row: {answers[0]}")
    for i, ((name, _, code), answer) in enumerate(zip(ROW_CASES, answers[1:])):
        error = answer.get("error") or {}
        tally.check(str(error.get("code", "")).startswith(code) and error.get("line") == i + 2 and error.get("message"),
                    f"rows: {name}: want {code} in line {i + 2}: {str(answer)[:200]}")

    def refused(what, source, words, out, codes=(5,)):
        done = place.sluice(*base, "-i", source, "-o", out)
        judge.refused(what, done, source, words, codes, judge.most_rss + RSS_SLACK)

    for name, data in (("gzip", b"\x1f\x8b\x08" + b"\0" * 40), ("UTF-16", b"\xff\xfe{\0}\0\n\0"),
                       ("zstd", b"\x28\xb5\x2f\xfd" + b"\0" * 40)):
        refused(f"input: {name}", place.write("bad.jsonl", data), name.lower(), place.fresh())
    for name, path in (("absent", place.at("none.jsonl")), ("a directory", place.at("cache"))):
        refused(f"input: {name}", path, "", place.fresh(), codes=(2, 5))
    before = os.path.getsize(rows)
    refused("output = input", rows, "", rows, codes=(2,))
    tally.check(os.path.getsize(rows) == before, "output = input: the input is untouched")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (files, directories, tokenizers, odd_paths, jobs)))
