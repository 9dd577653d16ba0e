#!/usr/bin/env python3
"""Hostile and broken files end to end: bad_input_test.py [SLUICE]

Each case is one damaged copy of a small valid model, or a bad job file, given to the binary. Expected:
the exit code, ONE line `sluice: error: FILE: WHERE: WHAT (hint)` that names the file and what is wrong,
within a second, without memory beyond a good run's, and with nothing left in the cache folder.
Standard library only: files are built byte by byte (model_make).
"""
import json
import os
import re
import struct
import sys
import tempfile

import trial
from model_make import ARR, DIM, STR, U32, U64, Gguf, gguf, hf, hf_tensors, safetensors, text, write

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

class Judge:
    """What a refusal has to be, beside a good run of the same binary."""

    def __init__(self, tally, place):
        self.tally, self.place = tally, place
        self.sanitized = "asan" in place.binary  # slower, and shadow memory is no measure of the program's
        self.limit_s = 30.0 if self.sanitized else 1.0
        self.good = place.write("good.gguf", Gguf().bytes())
        runs = [place.expect(tally, f"a good model: {what}", 0, "inspect", "-q", path)
                for what, path in (("GGUF", self.good), ("directory", hf(place.folder)))]
        self.most_rss = max(done.rss for done in runs) + RSS_SLACK

    def refused(self, what, done, path, words, codes=(5,), most_rss=None):
        """One sentence, the right exit code, soon, and small."""
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
        if done.seconds > self.limit_s:
            bad.append(f"took {done.seconds:.1f} s")
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
    for kind, name, words, fields in cases:
        with tempfile.TemporaryDirectory(dir=place.folder) as folder:
            judge.inspects(f"{kind}: {name}", hf(folder, **fields), words)


def odd_paths(tally, place, a):
    """Paths that are no regular file, and packs whose bytes went bad."""
    judge = Judge(tally, place)
    os.mkfifo(place.at("fifo.gguf"))
    os.mkdir(place.at("empty"))
    os.symlink("loop.gguf", place.at("loop.gguf"))
    for name in ("fifo.gguf", "empty", "loop.gguf", "absent.gguf"):
        judge.inspects(f"path: {name}", place.at(name), "", codes=(2, 5))
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
    sys.exit(trial.run_parts(__doc__, (files, directories, odd_paths, jobs)))
