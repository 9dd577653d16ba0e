#!/usr/bin/env python3
"""Hostile and broken files end to end: bad_input_test.py [SLUICE]

Each case is one damaged copy of a small valid model, or a bad job file, given to the binary. Expected:
the exit code, ONE line `sluice: error: FILE: WHERE: WHAT (hint)` that names the file and what is wrong,
within a second, without memory beyond a good run's, and with nothing left in the cache folder.
Standard library only: files are built here byte by byte.
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time

SLUICE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "./sluice")
SANITIZED = "asan" in SLUICE  # slower, and shadow memory is no measure of the program's
LIMIT_S = 30.0 if SANITIZED else 1.0
RSS_SLACK = 64 << 20
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
DIM, HEADS, FFN, LAYERS, VOCAB = 64, 2, 96, 2, 128
counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(ok, what):
    counts["passed" if ok else "failed"] += 1
    if not ok:
        print("FAILED", what, flush=True)
    return ok


# ---- running -------------------------------------------------------------------------------------

class Done:
    pass


def sluice(args, cache, stdin=None):
    """Exit code, stdout, stderr, seconds and peak RSS of one run of the binary."""
    done = Done()
    env = {**os.environ, "SLUICE_CACHE_DIR": cache, "LC_ALL": "C"}
    start = time.monotonic()
    p = subprocess.Popen([SLUICE, *args], stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    timer = threading.Timer(60, p.kill)
    timer.start()
    err = []
    reader = threading.Thread(target=lambda: err.append(p.stderr.read()))
    reader.start()
    if stdin is not None:
        p.stdin.write(stdin)
        p.stdin.close()
    done.out = p.stdout.read().decode("utf-8", "replace")
    reader.join()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = done.code = os.waitstatus_to_exitcode(status)
    timer.cancel()
    p.stdout.close()
    p.stderr.close()
    done.err = err[0].decode("utf-8", "replace")
    done.seconds, done.rss = time.monotonic() - start, usage.ru_maxrss << 10
    return done


# ---- a small valid model, and its damaged copies -------------------------------------------------

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
                data += struct.pack("<f", 0.01) * n
                data += b"\0" * (-len(data) % 32)
        out += b"\0" * (-len(out) % 32) + data
        return out[:len(out) - self.cut]


def gguf(**fields):
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


# ---- cases: name, expected words (a regular expression, in lower case), how to make it ------------

def edit(name, **fields):
    return lambda header: header[name].update(fields)


Q0 = "blk.0.attn_q.weight"
HQ0 = "model.layers.0.self_attn.q_proj.weight"

GGUF_CASES = [
    ("empty file", "", b""),
    ("magic only", "", b"GGUF"),
    ("cut in the header", "", Gguf().bytes()[:100]),
    ("cut in the tensor list", "", Gguf().bytes()[:600]),
    ("data cut by a byte", "", gguf(cut=1)),
    ("data cut by half", "", gguf(cut=100000)),
    ("wrong magic", "gguf", gguf(magic=b"GGML")),
    ("version 1", "version", gguf(version=1)),
    ("big-endian", "endian|version", gguf(version=0x03000000)),
    ("2^64 - 1 tensors", "", gguf(n_tensors=2**64 - 1)),
    ("2^61 tensors", "", gguf(n_tensors=2**61)),
    ("2^63 keys", "", gguf(n_kv=2**63)),
    ("a string of 2^64 - 1 bytes", "", gguf(n_kv=11, extra=struct.pack("<Q", 2**64 - 1))),
    ("a string of 1 GiB that is not there", "", gguf(n_kv=11, extra=text("k") + struct.pack("<IQ", STR, 1 << 30))),
    ("value type 13", "type", gguf(n_kv=11, extra=text("k") + struct.pack("<I", 13) + b"\0" * 64)),
    ("array of 2^63", "", gguf(n_kv=11, extra=text("k") + struct.pack("<IIQ", ARR, U32, 2**63))),
    ("array whose bytes wrap", "", gguf(n_kv=11, extra=text("k") + struct.pack("<IIQ", ARR, U64, 2**61 + 1))),
    ("array of arrays", "", gguf(n_kv=11, extra=text("k") + struct.pack("<IIQ", ARR, ARR, 1) + b"\0" * 64)),
    ("duplicate key", "duplicate", gguf(n_kv=11, extra=text("llama.block_count") + struct.pack("<II", U32, 2))),
    ("alignment 3", "alignment", Gguf().set("general.alignment", U32, 3)),
    ("alignment 0", "alignment", Gguf().set("general.alignment", U32, 0)),
    ("five dimensions", "dim", gguf(tensors={**Gguf().tensors, Q0: [2, 2, 2, 2, 2]})),
    ("dimension 0", "", gguf(tensors={**Gguf().tensors, Q0: [0, 64]})),
    ("product of dimensions wraps", "", gguf(tensors={**Gguf().tensors, Q0: [2**33, 2**33]})),
    ("unknown tensor type", "type", gguf(types={Q0: 255})),
    ("removed tensor type", "type", gguf(types={Q0: 4})),
    ("offset unaligned", "offset", gguf(offsets={Q0: 4})),
    ("offset beyond the file", "", gguf(offsets={Q0: 1 << 40})),
    ("offset near 2^64", "", gguf(offsets={Q0: 2**64 - 32})),
    ("tensors overlap", "overlap|offset", gguf(offsets={Q0: 0})),
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
    ("Git LFS pointer", "", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    ("HTML page", "", b"<!DOCTYPE html><html><body>404</body></html>" * 20),
]

SAFETENSORS_CASES = [
    ("7 bytes", "", b"\0" * 7),
    ("header of 0 bytes", "", struct.pack("<Q", 0) + b"\0" * 64),
    ("header of 2^64 - 1 bytes", "", struct.pack("<Q", 2**64 - 1) + b"{}"),
    ("header of 100,000,001 bytes", "", struct.pack("<Q", 100000001) + b"{" + b" " * 100),
    ("header longer than the file", "", struct.pack("<Q", 1000) + b"{}"),
    ("not JSON", "", safetensors(raw=b"{\"a\":}" + b" " * 8)),
    ("100,000 brackets", "", safetensors(raw=b"[" * 100000)),
    ("not UTF-8", "", safetensors(raw=b"{\"\xff\":1}")),
    ("duplicate tensor", "duplicate", safetensors(raw=b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                                                      b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}')),
    ("unknown dtype", "dtype", safetensors(edit(HQ0, dtype="F128"))),
    ("negative dimension", "", safetensors(edit(HQ0, shape=[-1, DIM]))),
    ("fractional dimension", "", safetensors(edit(HQ0, shape=[1.5, DIM]))),
    ("sizes overflow", "", safetensors(edit(HQ0, shape=[4194305, 4194305, 211106198978564]))),
    ("shape and offsets differ", "", safetensors(edit(HQ0, shape=[DIM, DIM + 1]))),
    ("begin after end", "offset", safetensors(edit(HQ0, data_offsets=[8192, 4096]))),
    ("end beyond the file", "", safetensors(edit(HQ0, data_offsets=[1 << 40, (1 << 40) + DIM * DIM * 4]))),
    ("tensors overlap", "", safetensors(edit(HQ0, data_offsets=[0, DIM * DIM * 4]))),
    ("cut by a byte", "", safetensors(cut=1)),
    ("trailing bytes", "", safetensors(extra=b"polyglot")),
    ("a tensor is missing", "q_proj", safetensors(lambda h: h.update({"x": h.pop(HQ0)}))),
    ("pickle", "", b"PK\x03\x04" + b"\0" * 200),
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
    ("unknown architecture", "gpt9", dict(config={"architectures": ["GPT9"], "model_type": "gpt9"})),
    ("index names a missing shard", "shard", dict(weights="none", model__safetensors__index__json=json.dumps(
        {"weight_map": {n: "model-00001-of-00001.safetensors" for n in hf_tensors()}}).encode())),
    ("index leaves the directory", "", dict(weights="none", model__safetensors__index__json=json.dumps(
        {"weight_map": {n: "../../etc/passwd" for n in hf_tensors()}}).encode())),
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

def refuse(what, done, path, words, baseline, codes=(5,)):
    """One sentence, the right exit code, soon, and small."""
    lines = done.err.splitlines()
    bad = []
    if done.code not in codes:
        bad.append(f"exit {done.code}, want {'/'.join(map(str, codes))}")
    if len(lines) != 1 or not lines[0].startswith("sluice: error: "):
        bad.append(f"stderr is not one line of ours: {done.err[-300:]!r}")
    elif os.path.basename(path) not in lines[0]:
        bad.append(f"the file is not named: {lines[0]!r}")
    elif words and not re.search(words, lines[0].split(os.path.basename(path), 1)[1].lower()):
        bad.append(f"'{words}' is not in {lines[0]!r}")
    elif lines[0].count(": ") < 3:
        bad.append(f"not FILE: WHERE: WHAT: {lines[0]!r}")
    if done.out:
        bad.append("stdout is not empty")
    if done.seconds > LIMIT_S:
        bad.append(f"took {done.seconds:.1f} s")
    if not SANITIZED and done.rss > baseline + RSS_SLACK:
        bad.append(f"{done.rss >> 20} MiB, a good run takes {baseline >> 20}")
    check(not bad, f"{what}: {'; '.join(bad)}")


def one_file(kind, cases, ending, baseline):
    for name, words, data in cases:
        with tempfile.TemporaryDirectory() as folder:
            cache = os.path.join(folder, "cache")
            path = write(os.path.join(folder, "bad" + ending), data.bytes() if isinstance(data, Gguf) else data)
            done = sluice(["inspect", "-q", path], cache)
            refuse(f"{kind}: {name}", done, path, words, baseline)
            left = os.listdir(cache) if os.path.isdir(cache) else []
            if left:
                check(False, f"{kind}: {name}: left in the cache: {left}")


def directories(baseline):
    cases = [("safetensors", n, w, dict(weights=d)) for n, w, d in SAFETENSORS_CASES]
    cases += [("config.json", n, w, d) for n, w, d in CONFIG_CASES]
    for kind, name, words, fields in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = hf(folder, **fields)
            done = sluice(["inspect", "-q", path], os.path.join(folder, "cache"))
            refuse(f"{kind}: {name}", done, "model", words, baseline)


def odd_paths(baseline):
    """Paths that are no regular file, and packs whose bytes went bad."""
    with tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "cache")
        os.mkfifo(os.path.join(folder, "fifo.gguf"))
        os.mkdir(os.path.join(folder, "empty"))
        os.symlink("loop.gguf", os.path.join(folder, "loop.gguf"))
        for name in ("fifo.gguf", "empty", "loop.gguf", "absent.gguf"):
            path = os.path.join(folder, name)
            refuse(f"path: {name}", sluice(["inspect", "-q", path], cache), path, "", baseline, codes=(2, 5))
        good = write(os.path.join(folder, "good.gguf"), Gguf().bytes())
        pack = os.path.join(folder, "good.pack")
        check(sluice(["pack", "-q", good, "-o", pack], cache).code == 0, "pack: a good model packs")
        with open(pack, "rb") as f:
            data = f.read()
        for name, damaged in (("cut", data[:len(data) // 2]), ("header bit", data[:40] + bytes([data[40] ^ 1]) + data[41:]),
                              ("only a header", data[:4096])):
            path = write(os.path.join(folder, "bad.pack"), damaged)
            refuse(f"pack: {name}", sluice(["inspect", "-q", path], cache), path, "", baseline, codes=(5, 7))


def jobs(baseline):
    """Rows of `run`: bad rows become error rows and exit 3; bad files are refused."""
    with tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "cache")
        model = write(os.path.join(folder, "good.gguf"), Gguf().bytes())
        good = '{"custom_id":"good","prompt_token_ids":[1,2,3],"max_tokens":2,"temperature":0}\n'
        rows = write(os.path.join(folder, "in.jsonl"),
                     (good + "".join(row + "\n" for _, row, _ in ROW_CASES)).encode())
        out = os.path.join(folder, "out.jsonl")
        base = ["run", "-q", "--mem-ram", "128M", "--progress", "none", "-m", model]
        done = sluice(base + ["-i", rows, "-o", out], cache)
        check(done.code == 3, f"rows: exit {done.code}, want 3: {done.err[-300:]}")
        answers = []
        if os.path.exists(out):
            with open(out, encoding="utf-8") as f:
                answers = [json.loads(line) for line in f]
        check(len(answers) == len(ROW_CASES) + 1, f"rows: {len(answers)} answers for {len(ROW_CASES) + 1} rows")
        if answers:
            check(len(answers[0].get("token_ids", [])) == 2, f"rows: the good row: {answers[0]}")
        for i, ((name, _, code), answer) in enumerate(zip(ROW_CASES, answers[1:])):
            error = answer.get("error") or {}
            check(str(error.get("code", "")).startswith(code) and error.get("line") == i + 2 and error.get("message"),
                  f"rows: {name}: want {code} in line {i + 2}: {str(answer)[:200]}")
        for name, data in (("gzip", b"\x1f\x8b\x08" + b"\0" * 40), ("UTF-16", b"\xff\xfe{\0}\0\n\0"),
                           ("zstd", b"\x28\xb5\x2f\xfd" + b"\0" * 40)):
            path = write(os.path.join(folder, "bad.jsonl"), data)
            done = sluice(base + ["-i", path, "-o", out + "2"], cache)
            refuse(f"input: {name}", done, path, name.lower(), baseline + RSS_SLACK)
        for name, path in (("absent", os.path.join(folder, "none.jsonl")), ("a directory", cache)):
            done = sluice(base + ["-i", path, "-o", out + "3"], cache)
            refuse(f"input: {name}", done, path, "", baseline + RSS_SLACK, codes=(2, 5))
        before = os.path.getsize(rows)
        done = sluice(base + ["-i", rows, "-o", rows], cache)
        refuse("output = input", done, rows, "", baseline + RSS_SLACK, codes=(2,))
        check(os.path.getsize(rows) == before, "output = input: the input is untouched")


def main():
    with tempfile.TemporaryDirectory() as folder:
        good = write(os.path.join(folder, "good.gguf"), Gguf().bytes())
        a = sluice(["inspect", "-q", good], os.path.join(folder, "cache"))
        b = sluice(["inspect", "-q", hf(folder)], os.path.join(folder, "cache"))
        fine = check(a.code == 0, f"a good GGUF file: exit {a.code}: {a.err}")
        fine = check(b.code == 0, f"a good directory: exit {b.code}: {b.err}") and fine
    baseline = max(a.rss, b.rss)
    if fine:
        one_file("GGUF", GGUF_CASES, ".gguf", baseline)
        directories(baseline)
        one_file("model config", DUMMY_CASES, ".cfg", baseline)
        odd_paths(baseline)
        jobs(baseline)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
