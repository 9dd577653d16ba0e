#!/usr/bin/env python3
"""Placement never changes the answer: placement_test.py [SLUICE [GGUF]] [--level LEVEL] [--only=PART]

Owns: OUT byte for byte over where things live, how far ahead they move, how rows share batches and
how forced spans are cut; and the proof, from the run's own figures, that the bytes really moved. Forced
spans (score, resume) against decode passes, log-probabilities and victims number for number.
Refuses: right or wrong answers (score_golden, evict_golden) and kills (crash_test).
Models: pseudo-random ones, a GGUF with a tokenizer that is made here, and GGUF (or $SLUICE_TEST_GGUF)
if there is one; level night runs all of tests/data/prompts.jsonl on it, 64 tokens each.
Standard library only.
"""
import array
import itertools
import json
import os
import random
import struct
import sys
import tempfile
import time

import trial
from model_make import ARR, F32, I32, STR, U32, text, value
from trial import HERE, LEVEL, NIGHT, SLOTS_MIN, difference, from_full, pick, read

RUN_LIMIT_S = 900
RESUMES_MAX = 200
DISK = ["--percent", "0", "100", "0", "0", "0", "0"]      # weights in RAM, KV and hidden states on disk
KV_DISK = ["--percent", "0", "100", "0", "0", "0", "100"]
HIDDEN_DISK = ["--percent", "0", "100", "0", "100", "0", "0"]
ALL_DISK = ["--percent", "0", "0", "0", "0", "0", "0"]

# What a user may change without changing a byte of OUT: name -> flags.
PLACEMENTS = {
    "one row at a time": ["--batch", "1", "--batches", "1"],
    "one batch of 16": ["--batch", "16", "--batches", "1"],
    "3 batches of 2": ["--batch", "2", "--batches", "3"],
    "2 batches of 3": ["--batch", "3", "--batches", "2"],
    "8 batches of 1": ["--batch", "1", "--batches", "8"],
    "1 thread": ["-t", "1"],
    "2 threads": ["-t", "2"],
    "5 threads, 5 rows": ["-t", "5", "--batch", "5"],
    "no layer in RAM": ["--weights-resident", "0"],
    "one layer in RAM": ["--weights-resident", "1", "--batch", "4", "--batches", "2"],
    "half of the layers in RAM": ["--weights-resident", "50%", "--batch", "3", "--batches", "3"],
    "all layers in RAM": ["--weights-resident", "100%"],
    "weights by threads": ["--weights-resident", "0", "--io", "threads"],
    "weights by io_uring": ["--weights-resident", "0", "--io", "uring"],
    "weights without look-ahead": ["--weights-resident", "0", "--ahead-weights", "0", "--batches", "2"],
    "weights one step ahead": ["--weights-resident", "0", "--ahead-weights", "1", "--batches", "3"],
    "weights many steps ahead": ["--weights-resident", "0", "--ahead-weights", "1000", "--batch", "2",
                                 "--batches", "3"],
    "weights with zstd": ["--weights-resident", "0", "--weights-codec", "zstd", "--batches", "2"],
    "weights with zstd, 16 threads": ["--weights-resident", "0", "--weights-codec", "zstd", "-t", "16"],
    "some weights with zstd": ["--weights-resident", "2", "--weights-codec", "zstd", "--io", "threads"],
    "KV on disk": [*KV_DISK, "--batch", "2", "--batches", "4"],
    "KV on disk, one batch": [*KV_DISK, "--batch", "8", "--batches", "1"],
    "KV on disk, no look-ahead": [*KV_DISK, "--batch", "3", "--batches", "3", "--ahead-state", "0"],
    "KV on disk, far ahead": [*KV_DISK, "--batch", "3", "--batches", "2", "--ahead-state", "1000"],
    "hidden states on disk": [*HIDDEN_DISK, "--batch", "2", "--batches", "4"],
    "hidden states, no look-ahead": [*HIDDEN_DISK, "--batch", "3", "--batches", "3", "--ahead-state", "0"],
    "hidden states, far ahead": [*HIDDEN_DISK, "--batch", "2", "--batches", "5", "--ahead-state", "1000"],
    "KV and hidden states on disk": [*DISK, "--batch", "2", "--batches", "3", "--ahead-state", "4"],
    "everything on disk": [*ALL_DISK, "--batch", "3", "--batches", "3"],
    "everything on disk, by threads": [*ALL_DISK, "--batch", "2", "--batches", "3", "--io", "threads", "-t", "1"],
    "everything on disk, no look-ahead": [*ALL_DISK, "--batch", "2", "--batches", "3", "--ahead-state", "0",
                                          "--ahead-weights", "0"],
    "3 drives, 64 threads": [*ALL_DISK, "--offload-dir", "a,b,c", "-t", "64", "--batch", "2", "--batches", "3"],  # in memory: GB/s
    "weights on 2 drives, by threads": ["--weights-resident", "2", "--offload-dir", "b,c", "--io", "threads"],
    "1 prefill token a pass": ["--prefill-tokens", "1"],
    "40 prefill tokens a pass": ["--prefill-tokens", "40", "--batch", "4", "--batches", "2"],
    "4096 prefill tokens a pass": ["--prefill-tokens", "4096"],
}
FEW = ("one row at a time", "3 drives, 64 threads", "weights with zstd", "3 batches of 2", "5 threads, 5 rows", "KV on disk, far ahead", "everything on disk",
       "40 prefill tokens a pass")
SOME = (*FEW, "weights with zstd, 16 threads", "8 batches of 1", "weights many steps ahead", "KV on disk", "KV on disk, no look-ahead",
        "hidden states, far ahead", "everything on disk, by threads", "1 prefill token a pass")

POLICIES = {
    "full": [],
    "h2o": ["--kv-policy", "h2o", "--kv-budget", "48"],
    "h2o-mean, layer scope": ["--kv-policy", "h2o-mean", "--kv-budget", "0.4", "--kv-scope", "layer"],
    "window": ["--kv-policy", "window", "--kv-budget", "40"],
    "streaming": ["--kv-policy", "streaming", "--kv-budget", "64"],
    "full, f32": ["--compute", "f32", "--kv-format", "f32"],
    "full, q8": ["--kv-format", "q8"],
    "ema, q4": ["--kv-policy", "ema", "--kv-budget", "48", "--kv-format", "q4"],
    "full, mixed": ["--kv-format", "mixed"],
    "h2o, mixed": ["--kv-policy", "h2o", "--kv-budget", "96", "--kv-format", "mixed"],  # half is the ring
    "scissorhands, layer scope, mixed": ["--kv-policy", "scissorhands", "--kv-budget", "0.4", "--kv-scope", "layer",
                                         "--kv-format", "mixed"],
    "qhitter, mixed": ["--kv-policy", "qhitter", "--kv-budget", "96", "--kv-format", "mixed"],
    "h2o-hf, mixed": ["--kv-policy", "h2o-hf", "--kv-budget", "48", "--kv-recent", "8", "--kv-format", "mixed"],
    "h2o, f32": ["--kv-policy", "h2o", "--kv-budget", "0.5", "--compute", "f32", "--kv-format", "f32"],
}
# Level check: each number format, each scope, and each kind of state that a slot may have.
KINDS = pick(("full", "full, f32", "h2o", "ema, q4", "scissorhands, layer scope, mixed", "qhitter, mixed", "h2o-hf, mixed"),
             tuple(POLICIES))


def placements_of(policy):
    """full attention tries every placement, h2o as well at level night, the others a few; level check has fewer of each."""
    if policy == "full":
        return pick(SOME, PLACEMENTS)
    return pick(FEW, SOME, PLACEMENTS) if policy == "h2o" else pick(FEW[1::2], FEW)


# ---- models ----------------------------------------------------------------------------------------

LLAMA = """family = llama
dim = 128
layers = 6
heads = 8
kv_heads = 2
head_dim = 16
ffn = 256
vocab = 9000
context = 1024
tied = 0
"""
OPT = """family = opt
dim = 72
layers = 4
heads = 6
ffn = 160
vocab = 5000
context = 1024
tied = 0
"""
EXPERTS = """family = qwen3_moe
dim = 256
layers = 3
heads = 4
kv_heads = 2
ffn = 1024
experts = 16
experts_used = 1
vocab = 5000
context = 1024
"""  # 18 MiB of a layer are experts, in pieces of 1 MiB
TWO_KINDS = EXPERTS.replace("qwen3_moe", "qwen2_moe") + "shared_ffn = 768\ndense_ffn = 1024\ndense_layers = 1\n"
OSS_WINDOW = 128  # of every other layer of trial.OSS: what leaves it is a victim, whatever the policy
DUMMY_VOCAB = 5000  # ids that all know
tally = trial.Tally()
check = tally.check


def byte_chars():
    """The printable stand-ins of bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def text_model():
    """GGUF of a small llama in f32 with a byte-level vocabulary, so that rows can be text."""
    dim, heads, kv_heads, ffn, layers = 64, 4, 2, 96, 5
    r = random.Random(11)
    chars = byte_chars()
    merges = ["t h", "i n", "e r", "a n", "th e", "in g"]
    tokens = chars + [m.replace(" ", "") for m in merges] + ["<|end|>"]
    end = len(tokens) - 1
    keys = {"general.architecture": (STR, "llama"), "llama.context_length": (U32, 1024),
            "llama.embedding_length": (U32, dim), "llama.block_count": (U32, layers),
            "llama.feed_forward_length": (U32, ffn), "llama.attention.head_count": (U32, heads),
            "llama.attention.head_count_kv": (U32, kv_heads), "llama.rope.freq_base": (F32, 10000.0),
            "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5), "llama.vocab_size": (U32, len(tokens)),
            "tokenizer.ggml.model": (STR, "gpt2"), "tokenizer.ggml.pre": (STR, "gpt-2"),
            "tokenizer.ggml.tokens": (ARR, (STR, tokens)), "tokenizer.ggml.merges": (ARR, (STR, merges)),
            "tokenizer.ggml.token_type": (ARR, (I32, [1] * end + [3])),
            "tokenizer.ggml.eos_token_id": (U32, end), "tokenizer.ggml.bos_token_id": (U32, end),
            "tokenizer.chat_template": (STR, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>")}
    shapes = {"token_embd.weight": (dim, len(tokens)), "output_norm.weight": (dim,)}
    kv = dim // heads * kv_heads
    for i in range(layers):
        for name, dims in (("attn_norm", (dim,)), ("attn_q", (dim, dim)), ("attn_k", (dim, kv)),
                           ("attn_v", (dim, kv)), ("attn_output", (dim, dim)), ("ffn_norm", (dim,)),
                           ("ffn_gate", (dim, ffn)), ("ffn_up", (dim, ffn)), ("ffn_down", (ffn, dim))):
            shapes[f"blk.{i}.{name}.weight"] = dims
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    for key, (kind, v) in keys.items():
        head += text(key) + struct.pack("<I", kind) + value(kind, v)
    data = bytearray()
    for name, dims in shapes.items():
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", 0, len(data))
        one = len(dims) == 1
        scale = 0.5 if name.startswith("token") else 2 * dims[0] ** -0.5
        data += array.array("f", [1.0 if one else r.gauss(0, scale) for _ in range(n)]).tobytes()
        data += b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + data


# ---- running ---------------------------------------------------------------------------------------

class Bench(trial.Place):
    """A folder with models, a cache of its own, and runs of the binary in it."""

    def __init__(self, binary, folder):
        super().__init__(folder, binary, sync_s=None)
        self.fault = ""
        for drive in "abc":
            os.mkdir(self.at(drive))
        self.llama = self.write("llama.cfg", LLAMA.encode())
        self.opt = self.write("opt.cfg", OPT.encode())
        self.oss = self.write("oss.cfg", trial.OSS.encode())
        self.experts = self.write("experts.cfg", EXPERTS.encode())
        self.two_kinds = self.write("two-kinds.cfg", TWO_KINDS.encode())
        self.text = self.write("text.gguf", text_model())
        done = self.once(["run", "-m", self.llama, "-i", self.rows([{"prompt_token_ids": [1], "max_tokens": 1}]),
                          "-o", self.at("uring.jsonl"), "--io", "uring", "--weights-resident", "0"])
        self.have_uring = done.code == 0
        if not self.have_uring:
            tally.skip(f"io_uring is refused here: {done.err.strip()[-120:]}")

    def rows(self, rows):
        return super().rows(os.path.basename(self.fresh("in")), rows)

    def once(self, args):
        faults = {"SLUICE_FAULT": self.fault} if self.fault else {}
        return self.sluice(*args, "--progress", "none", limit_s=RUN_LIMIT_S, **faults)

    def run(self, command, model, source, flags, out=None, dump=False):
        """One call; `out`, `summary` and `dump` are OUT's bytes, the summary and the KV dump."""
        self.n += 1
        stem = self.at(str(self.n))
        out = out or stem + ".jsonl"
        args = [command, "-m", model, "-i", source, "-o", out, "--summary", stem + ".json", *flags]
        if "-t" not in flags:
            args += ["-t", "1"]  # most models here are too small to share; placements with -t do
        done = self.once(args + (["--kv-dump", stem + ".dump"] if dump else []))
        done.flags = flags
        done.out, done.dump = read(out), read(stem + ".dump")
        done.summary = json.loads(read(stem + ".json") or b"{}")
        return done

    def good(self, what, *args, **more):
        """A call that must end with 0."""
        done = self.run(*args, **more)
        check(done.code == 0, f"{what}: exit {done.code}: {done.err.strip()[-300:]!r}")
        return done


def check_moved(what, done):
    """The summary's lanes: what the plan put on disk was really carried."""
    if done.code != 0:
        return
    s = done.summary
    plan, passes = s["plan"], s["passes"]
    lanes = {lane["name"]: lane["bytes"] for lane in s["lanes"]}
    streams = plan["weights_resident"] < plan["layers"] - 1
    check((plan["streamed_bytes"] > 0) == streams, f"{what}: {plan['weights_resident']} of {plan['layers'] - 1} "
          f"layers in RAM, {plan['streamed_bytes']} bytes stream")
    check(lanes["nvme-read"] >= passes * plan["stored_bytes"],
          f"{what}: read {lanes['nvme-read']} bytes in {passes} passes, {plan['stored_bytes']} stream in each")
    fewer = plan["stored_bytes"] < 0.97 * plan["streamed_bytes"]
    check(fewer == (streams and plan["weights_codec"] == "zstd"),
          f"{what}: {plan['streamed_bytes']} bytes stream, stored in {plan['stored_bytes']}: {plan['weights_codec']}")
    offloaded = "nvme" in (plan["tiers"]["kv"], plan["tiers"]["hidden"])
    check((lanes["nvme-write"] > 0) == offloaded, f"{what}: wrote {lanes['nvme-write']} bytes, {plan['tiers']}")
    copied = plan["streamed_bytes"] if any("," in flag for flag in done.flags) else 0  # to several drives
    disk = s["peak_bytes"]["disk"]
    check((disk > 0) == (offloaded or copied > 0) and disk >= copied, f"{what}: scratch of {disk} bytes")


def try_placements(bench, what, model, source, flags, names):
    """One answer over all placements; returns it."""
    want = bench.good(f"{what}: automatic plan", "run", model, source, flags)
    check_moved(f"{what}: automatic plan", want)
    for name in names:
        if "uring" in PLACEMENTS[name] and not bench.have_uring:
            continue
        done = bench.good(f"{what}: {name}", "run", model, source, flags + PLACEMENTS[name])
        check(done.out == want.out, f"{what}: {name}: other bytes: {difference(want.out, done.out)}")
        check_moved(f"{what}: {name}", done)
        check_wish(f"{what}: {name}", PLACEMENTS[name], done.summary.get("plan"))
    return want


def check_wish(what, flags, plan):
    """The plan is the one that was asked for: a placement that is not tried proves nothing."""
    if not plan:
        return
    for flag, key in (("--batch", "batch"), ("--batches", "batches"), ("--prefill-tokens", "prefill_tokens")):
        if flag in flags:
            check(plan[key] == int(flags[flags.index(flag) + 1]), f"{what}: {key} is {plan[key]}")
    if "--percent" in flags:
        share = flags[flags.index("--percent") + 1:][:6]
        tiers = {"kv": "nvme" if share[3] == "0" else "ram", "hidden": "nvme" if share[5] == "0" else "ram"}
        got = {k: plan["tiers"][k] for k in tiers}
        check(got == tiers, f"{what}: asked for {tiers}, planned {got}")
    if "--weights-codec" in flags:
        check(plan["weights_codec"] == flags[flags.index("--weights-codec") + 1],
              f"{what}: the codec is {plan['weights_codec']}")
    if "--weights-resident" in flags and flags[flags.index("--weights-resident") + 1] == "0":
        check(plan["weights_resident"] == 0, f"{what}: {plan['weights_resident']} layers in RAM")
    check_ahead(what, flags, plan)
    if "--io" in flags:
        io = {"uring": "io_uring", "threads": "threads"}[flags[flags.index("--io") + 1]]
        check(plan["io"] == io, f"{what}: the I/O back end is {plan['io']}")
    threads = int(flags[flags.index("-t") + 1]) if "-t" in flags else 1
    check(plan["threads"] == threads, f"{what}: {plan['threads']} threads")


def check_ahead(what, flags, plan):
    """The look-ahead that was in effect: what was asked for, less what no plan may have (a read that waits for a
    step to come), and all of that."""
    batches, steps = plan["batches"], plan["batches"] * plan["layers"]
    for flag, key, most in (("--ahead-weights", "ahead_weights", steps - batches), ("--ahead-state", "ahead_state", steps - 2),
                            ("--ahead-state", "ahead_hidden", max(0, batches - 2))):
        if flag in flags:
            asked = int(flags[flags.index(flag) + 1])
            want = min(asked, most)
            check(plan[key] == want, f"{what}: {key} is {plan[key]}, asked for {asked}, at most {most}")


# ---- parts -----------------------------------------------------------------------------------------

def id_rows(n, seed):
    """Prompts of 1 to 200 ids, outputs of 5 and more, in every way to choose a token that needs no text. Each
    with the log-probabilities of all its tokens, and long enough to evict (sight_test holds them to it)."""
    r = random.Random(seed)
    ways = ({"temperature": 0}, {"temperature": 0.8, "seed": 7}, {"temperature": 0.7, "top_p": 0.9, "seed": 3},
            {"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 1.5, "top_k": 20},
            {"temperature": 0, "min_tokens": 2}, {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.5})
    rows = []
    for i in range(n):
        length = (1, 2, 31, 32, 33, 64, 100, 200, 47, 17, 128, 129, 96, 49)[i % 14]
        rows.append({"custom_id": f"row-{i}", "prompt_token_ids": [r.randrange(3, DUMMY_VOCAB) for _ in range(length)],
                     "max_tokens": max(5 + 11 * i % 20, SLOTS_MIN - length), "ignore_eos": True,
                     "logprobs": 1 + i % 4, **ways[i % len(ways)]})
    return rows


def placements(bench):
    source = bench.rows(id_rows(14, 20))
    for policy in KINDS:
        try_placements(bench, f"llama, {policy}", bench.llama, source, POLICIES[policy], placements_of(policy))
    for policy in pick(("h2o",), ("full", "h2o")):
        try_placements(bench, f"opt, {policy}", bench.opt, source, POLICIES[policy], FEW)
    for policy in pick(("full",), ("full", "h2o", "streaming")):
        try_placements(bench, f"gpt_oss, {policy}", bench.oss, source, POLICIES[policy], FEW)


def streamed(bench):
    """What streams under --weights-resident 0 is the model: the pack but for the embedding and the rest."""
    source = bench.rows(id_rows(3, 1))
    done = bench.good("streamed bytes", "run", bench.llama, source, ["--weights-resident", "0"])
    pack = max(os.path.getsize(os.path.join(bench.at("cache"), f)) for f in os.listdir(bench.at("cache"))
               if f.startswith("llama") and f.endswith(".pack"))
    embed = 9000 * 128 * 2  # bf16 rows that are gathered
    bytes_ = done.summary.get("plan", {}).get("streamed_bytes", 0)
    check(pack - embed - (pack >> 3) <= bytes_ <= pack, f"{bytes_} bytes stream of a pack of {pack}")


def requeues(bench):
    """Four rows that grow long beside twelve short ones: the pool is made for the mean, so rows must return."""
    r = random.Random(3)
    rows = [{"custom_id": f"long-{i}", "prompt_token_ids": [r.randrange(3, DUMMY_VOCAB) for _ in range(4 + i)],
             "max_tokens": 170, "ignore_eos": True, "temperature": i % 2 * 0.8, "seed": i, "logprobs": 2}
            for i in range(4)]
    rows += [{"custom_id": f"short-{i}", "prompt_token_ids": [5 + i], "max_tokens": 3, "temperature": 0,
              "logprobs": 1} for i in range(12)]
    source = bench.rows(rows)
    for policy, flags in (("full", []), ("h2o", ["--kv-policy", "h2o", "--kv-budget", "0.7"]),
                          ("full, mixed", POLICIES["full, mixed"]),
                          ("streaming, f32", ["--kv-policy", "streaming", "--kv-budget", "0.8", "--compute", "f32",
                                              "--kv-format", "f32"])):
        want = bench.good(f"requeue, {policy}: alone", "run", bench.llama, source,
                          flags + ["--batch", "1", "--batches", "1"])
        check(want.summary.get("rows", {}).get("requeued") == 0, f"requeue, {policy}: a row alone was sent back")
        homes, splits = (("RAM", []), ("disk", DISK), ("all on disk", ALL_DISK)), ((1, 256), (3, 256), (1, 20))
        for (name, more), (batches, tokens) in pick(zip(homes, splits), itertools.product(homes, splits)):
            what = f"requeue, {policy}, {name}, {batches} batches, {tokens} tokens"
            done = bench.good(what, "run", bench.llama, source, flags + more + [
                "--batch", "4", "--batches", batches, "--prefill-tokens", tokens])
            check(done.out == want.out, f"{what}: other bytes: {difference(want.out, done.out)}")
            check(batches > 1 or done.summary.get("rows", {}).get("requeued", 0) > 0, f"{what}: none was sent back")
    done = bench.good("requeue, who", "run", bench.llama, source, ["--batch", "4", "--batches", "1", "--order", "completion"])
    names = [json.loads(line)["custom_id"] for line in done.out.splitlines()]
    check(done.summary.get("rows", {}).get("requeued", 0) > 0, "requeue, who: none was sent back")
    check([x for x in names if x.startswith("long")][:1] == ["long-0"], f"requeue: the youngest has to go, {names}")


def prefixes(bench):
    """Prompts that begin alike are computed once for a batch: the bytes are those of a row alone."""
    r = random.Random(5)
    base = [r.randrange(3, DUMMY_VOCAB) for _ in range(700)]
    rows = []
    for i, shared in enumerate((24, 24, 31, 32, 33, 100, 300, 24, 1, 640, 0, 95)):
        tail = [r.randrange(3, DUMMY_VOCAB) for _ in range((1, 7, 40, 300)[i % 4])]
        rows.append({"custom_id": f"row-{i}", "prompt_token_ids": base[:shared] + tail, "max_tokens": 6 + i,
                     "ignore_eos": True, "logprobs": 2,
                     **({"temperature": 0}, {"temperature": 0, "echo": i % 8 == 1},
                        {"temperature": 0.8, "seed": i})[i % 3]})
    for at in (5, 31, 50):  # all but one token alike
        rows.append({**rows[0], "custom_id": f"but-{at}", "prompt_token_ids": base[:at] + [base[at] ^ 1] + base[at + 1:90]})
    rows.append({**rows[0], "custom_id": "same"})
    source = bench.rows(rows)
    f32 = ["--compute", "f32", "--kv-format", "f32"]
    for policy, flags in (("full", []), ("f32", f32), ("window", ["--kv-policy", "window", "--kv-budget", "64"]),
                          ("h2o", ["--kv-policy", "h2o", "--kv-budget", "64"]),
                          ("mixed", ["--kv-format", "mixed"])):
        want = bench.good(f"prefixes, {policy}: alone", "run", bench.llama, source,
                          flags + ["--batch", "1", "--batches", "1"])
        check(want.summary.get("shared_prompt_tokens") == 0, f"prefixes, {policy}: a row alone shared")
        for name, more in (("all at once", ["--batch", "16", "--batches", "1", "--prefill-tokens", "4000"]),
                           ("two threads", ["--batch", "16", "--batches", "1", "--prefill-tokens", "4000", "-t", "2"]),
                           ("few", ["--batch", "4", "--batches", "2", "--prefill-tokens", "800"]),
                           ("all on disk", ALL_DISK + ["--batch", "5", "--batches", "3", "--prefill-tokens", "900"]))[::pick(3, 1)]:
            what = f"prefixes, {policy}, {name}"
            done = bench.good(what, "run", bench.llama, source, flags + more)
            check(done.out == want.out, f"{what}: other bytes: {difference(want.out, done.out)}")
            shared = done.summary.get("shared_prompt_tokens", -1)
            check((shared > 0) == (policy != "h2o"), f"{what}: {shared} positions shared")


@from_full
def neighbours(bench):
    """A row alone, in reverse order, in a part of the job: as among all others. In f32 on every ISA."""
    rows = id_rows(14, 20)
    whole = bench.good("neighbours: all", "run", bench.llama, bench.rows(rows), [])
    lines = whole.out.splitlines(True)
    for flags in ([], ALL_DISK + ["--batch", "3", "--batches", "2"]):
        # Noise is a function of (seed, row, position, id), so only greedy rows can change place.
        fixed = [i for i, r in enumerate(rows) if r["temperature"] == 0]
        for name, order in (("reversed", fixed[::-1]), ("one row", fixed[2:3]), ("every other", fixed[::2])):
            done = bench.good(f"neighbours: {name}", "run", bench.llama, bench.rows([rows[i] for i in order]), flags)
            want = b"".join(lines[i] for i in order)
            check(done.out == want, f"neighbours: {name}: {difference(want, done.out)}")
        done = bench.good("neighbours: --limit", "run", bench.llama, bench.rows(rows), flags + ["--limit", "5"])
        check(done.out == b"".join(lines[:5]), "neighbours: --limit 5 is not the first five rows")
        for i in range(3):
            done = bench.good("neighbours: --shard", "run", bench.llama, bench.rows(rows),
                              flags + ["--shard", f"{i}/3"])
            check(done.out == b"".join(lines[i::3]), f"neighbours: --shard {i}/3 is not every third row")
    f32 = ["--compute", "f32", "--kv-format", "f32", "--limit", "5"]  # portable takes its time: small models
    for model, source in ((bench.opt, bench.rows(rows)), (bench.oss, bench.rows(rows)), (bench.text, bench.rows(text_rows()))):
        want = bench.good("f32", "run", model, source, f32)
        done = bench.good("f32, portable", "run", model, source, [*f32, "--isa", "portable"])
        check(done.out == want.out, f"f32, portable: other bytes: {difference(want.out, done.out)}")


def few_experts(bench):
    """A pass of few tokens brings the experts that they go to and no others: the same bytes, read from fewer."""
    rows = [{"custom_id": f"row-{i}", "prompt_token_ids": [7 * i + 3] * (2 + i), "max_tokens": 30 - 9 * i,
             "ignore_eos": True, "logprobs": 2, "temperature": 0} for i in range(3)]
    source = bench.rows(rows)
    for kind, model in (("experts", bench.experts), ("layers of two kinds", bench.two_kinds)):
        want = bench.good(f"{kind}: all in RAM", "run", model, source, [])
        for name, batch, batches, fault in (("one row", 1, 1, ""), ("two rows", 1, 2, ""), ("a batch of three", 3, 1, ""),
                                            ("two drives", 1, 1, ""), ("short reads", 1, 2, "seed=4,short=1/9,delay=1/9")):
            few_case(bench, f"{kind}: {name}", model, source, want, batch, batches, fault)


def few_case(bench, name, model, source, want, batch, batches, fault):
    bench.fault = fault
    drives = ["--offload-dir", "a,b"] if "drives" in name else []
    done = bench.good(name, "run", model, source,
                      ["--weights-resident", "0", "--batch", str(batch), "--batches", str(batches), *drives])
    bench.fault = ""
    check(done.out == want.out, f"{name}: {difference(want.out, done.out)}")
    if done.code != 0:
        return
    s = done.summary
    lane = next(lane for lane in s["lanes"] if lane["name"] == "nvme-read")
    share = lane["bytes"] / s["passes"] / s["plan"]["stored_bytes"]
    check(0.3 < share < (0.6 if batch * batches == 1 else 0.8), f"{name}: {share:.3f} of the layers were read")
    off = lane["predicted_bytes"] / lane["bytes"]
    check(0.8 < off < 1.25, f"{name}: {off:.3f} of the bytes read were foreseen")


@from_full
def slow_writes(bench):
    """Writes that come late and out of turn, reads in pieces: what is read is what was written last."""
    source = bench.rows(id_rows(14, 20))
    for policy in ("full", "h2o"):
        want = bench.good(f"slow writes, {policy}: none", "run", bench.llama, source, POLICIES[policy])
        for seed, name in enumerate(k for k in PLACEMENTS if "on disk" in k or "hidden" in k):
            bench.fault = f"seed={seed + 1},write.delay=1/2,write.reorder=1/2,short=1/9"
            done = bench.good(f"slow writes, {policy}: {name}", "run", bench.llama, source,
                              POLICIES[policy] + PLACEMENTS[name])
            bench.fault = ""
            check(done.out == want.out, f"slow writes, {policy}: {name}: {difference(want.out, done.out)}")
            check(done.summary.get("repairs") == {"pieces": 0, "bad": 0, "rows": 0},
                  f"slow writes, {policy}: {name}: {done.summary.get('repairs')}")


@from_full
def tight(bench):
    """The least --mem-ram that works, as the refusal names it, and a little more: the same bytes."""
    source = bench.rows(id_rows(14, 20))
    for policy in ("full", "h2o"):
        flags = POLICIES[policy]
        want = bench.good(f"tight, {policy}: much RAM", "run", bench.llama, source, flags)
        done = bench.run("run", bench.llama, source, flags + ["--mem-ram", "1M"])
        size = done.err.rsplit("--mem-ram ", 1)[-1].split("M")[0]
        if not check(done.code == 4 and size.isdigit(), f"tight, {policy}: exit {done.code}: {done.err[-200:]!r}"):
            continue
        for more in (0, 1, 3):
            ram = f"{int(size) + more}M"
            done = bench.good(f"tight, {policy}: {ram}", "run", bench.llama, source, flags + ["--mem-ram", ram])
            check(done.out == want.out, f"tight, {policy}, {ram}: {difference(want.out, done.out)}")


def logprobs_of(line):
    """Each token's log-probability as it is written, not as it is read: equal means equal text."""
    at = line.index(b'"token_logprobs":[') + 18
    return line[at:line.index(b"]", at)].split(b",")


def dump_lines(dump):
    """Lines of a dump by (layer, head): spans of a pass go layer by layer, decode passes token by token."""
    by = {}
    for line in dump.splitlines():
        d = json.loads(line)
        by.setdefault((d["layer"], d["head"]), []).append(line.split(b",", 1)[1])  # less the custom_id
    return by


def resume(bench, what, model, source, flags, limit_s, dump=False):
    """The same command with a time limit until it is done: (last run, number of interruptions)."""
    bench.n += 1
    out = bench.at(f"{bench.n}.resumed.jsonl")
    stopped = 0
    for _ in range(RESUMES_MAX):
        done = bench.run("run", model, source, flags + ["--time-limit", f"{limit_s:.3f}s"], out=out, dump=dump)
        if done.code != 75:
            break
        stopped += 1
        limit_s *= 1.15  # a pass may take longer than the first limit
    check(done.code == 0, f"{what}: exit {done.code} after {stopped} interruptions: {done.err.strip()[-200:]!r}")
    return done, stopped


def forced_case(bench, name, model, prompt, n, flags, cuts=(4096, 67, 2), shares=(0.2, 0.6)):
    """One row decoded token by token; then its tokens forced: scored whole, scored in cuts, resumed."""
    row = {"custom_id": "r", "prompt_token_ids": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
           "logprobs": 0}
    source = bench.rows([row])
    want = bench.good(f"{name}: decoded", "run", model, source, flags, dump=True)
    if want.code != 0:
        return
    ids = json.loads(want.out)["token_ids"]
    numbers, victims = logprobs_of(want.out), dump_lines(want.dump)
    check(len(ids) == len(numbers) == n, f"{name}: {len(ids)} tokens, {len(numbers)} log-probabilities, not {n}")
    evicts = "--kv-policy" in flags or model == bench.oss and len(prompt) + n > OSS_WINDOW
    check(any(b"victim" in x for x in want.dump.splitlines()) == evicts, f"{name}: victims in the dump")
    scored = bench.rows([{"custom_id": "r", "context_ids": prompt, "continuation_ids": ids}])
    for tokens in cuts:
        what = f"{name}: scored, {tokens} tokens a pass"
        done = bench.good(what, "score", model, scored, flags + ["--prefill-tokens", tokens], dump=True)
        if done.code != 0:
            continue
        got = logprobs_of(done.out)
        check(got == numbers, f"{what}: {sum(a != b for a, b in zip(got, numbers))} of {len(numbers)} numbers differ")
        check(dump_lines(done.dump) == victims, f"{what}: other victims")
        check(tokens > 2 or done.summary["passes"] > 10, f"{what}: {done.summary['passes']} passes")
        check(tokens < 4096 or done.summary["passes"] <= 2, f"{what}: {done.summary['passes']} passes")
    elapsed_s = want.summary["elapsed_s"]
    for share in shares:
        what = f"{name}: resumed from {share}"
        done, stopped = resume(bench, what, model, source, flags, share * elapsed_s, dump=True)
        forced_case.stopped += stopped
        check(done.out == want.out, f"{what}: other bytes: {difference(want.out, done.out)}")
        check(dump_lines(done.dump) == victims, f"{what}: other victims after {stopped} interruptions")
        forced_case.shorter += stopped > 0 and done.summary["passes"] < want.summary["passes"]


def forced(bench):
    r = random.Random(9)
    forced_case.stopped = forced_case.shorter = 0
    long_ones = set()
    for i, policy in enumerate(("full", "window", "streaming", "h2o", "h2o-mean", "ema", "scissorhands")):
        for compute in pick((("bf16", "f32")[i % 2],), ("bf16", "f32")):
            for scope in ("head", "layer") if policy.startswith(("h2o", "ema")) else ("head",):
                budget = ["--kv-policy", policy, "--kv-scope", scope, "--kv-budget",
                          "40" if compute == "bf16" else "0.3"] if policy != "full" else []
                prompt = [r.randrange(3, DUMMY_VOCAB) for _ in range(45)]
                kv = "mixed" if (compute, scope) == ("bf16", "head") else compute
                long_ones.add((policy, scope, kv))
                forced_case(bench, f"forced, {policy}, {compute}, {scope}",
                            bench.llama if scope == "head" else bench.opt, prompt, 240,  # more than a tile of 256
                            budget + ["--compute", compute, "--kv-format", kv], pick((67, 2), (4096, 67, 2)), pick((0.4,), (0.2, 0.6)))
    formats = ("f32", "bf16", "q8", "q4", "mixed")
    short_ones = itertools.product(bench.policies(), ("head", "layer"), formats) if LEVEL else ()
    for i, (policy, scope, kv) in enumerate(short_ones):
        if (policy, scope, kv) in long_ones or (policy, scope) == ("full", "layer"):
            continue  # every format, scope and policy once
        if policy not in ("full", "window", "streaming", "h2o", "h2o-mean") and i // 5 % 5 != i % 5:
            continue  # of policies that share a kernel with these a format each
        flags = ["--kv-policy", policy, "--kv-scope", scope, "--kv-budget", "40"] if policy != "full" else []
        prompt = [r.randrange(3, DUMMY_VOCAB) for _ in range(37)]
        forced_case(bench, f"forced, {policy}, {scope}, {kv}", r.choice((bench.llama, bench.opt, bench.oss)), prompt, 64,
                    flags + ["--compute", "f32" if kv == "f32" else "bf16", "--kv-format", kv], (4096, 23), ())
    for policy in pick(("h2o",), ("full", "h2o", "streaming")):  # stopped on either side of a window's end
        prompt = [r.randrange(3, DUMMY_VOCAB) for _ in range(45)]
        forced_case(bench, f"forced over windows, {policy}", bench.oss, prompt, 200, POLICIES[policy], (4096, 23))
    check(forced_case.stopped > 5, f"forced: only {forced_case.stopped} interruptions")
    check(forced_case.shorter > 0, "forced: no resumed run took its tokens in fewer passes")


def text_rows():
    """Every knob of sampling, on rows of all three forms."""
    words = "the king said nothing to her and then there was an end of the thing in the other room"
    knobs = [
        {"temperature": 0}, {"temperature": 0.8, "seed": 1}, {"temperature": 0.8, "top_p": 0.7, "seed": 2},
        {"temperature": 1.2, "top_k": 5}, {"temperature": 1.0, "min_p": 0.1, "seed": 4},
        {"temperature": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.4},
        {"temperature": 0, "repetition_penalty": 1.4}, {"temperature": 0.9, "logit_bias": {"101": 4, "32": -100}},
        {"temperature": 0.8, "stop": ["e", "in"], "seed": 5}, {"temperature": 0.8, "stop": "th", "min_tokens": 6},
        {"temperature": 0.8, "stop_token_ids": [97, 98, 99, 100, 101], "seed": 6},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1, "seed": 8},
    ]
    rows = []
    for i, knob in enumerate(2 * knobs):
        prompt = words[: 3 + 29 * i % len(words)] * (1 + i % 4)
        body = {"max_tokens": 4 + 13 * i % 50, **knob}
        if i % 3 == 0:
            rows.append({"custom_id": f"t{i}", "prompt": prompt, **body, "logprobs": 2})
        elif i % 3 == 1:
            body.update(prompt=prompt, echo=i % 2 == 0, logprobs=2)
            rows.append({"custom_id": f"t{i}", "method": "POST", "url": "/v1/completions", "body": body})
        else:
            body.update(messages=[{"role": "user", "content": prompt}], logprobs=True, top_logprobs=3)
            rows.append({"custom_id": f"t{i}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return rows


@from_full
def sampling(bench):
    source = bench.rows(text_rows())
    for policy, flags in (("full", []), ("h2o", ["--kv-policy", "h2o", "--kv-budget", "36"])):
        want = try_placements(bench, f"text, {policy}", bench.text, source, flags,
                              PLACEMENTS if policy == "full" else FEW)
        reasons = {x.get("finish_reason") or x["response"]["body"]["choices"][0]["finish_reason"]
                   for x in map(json.loads, want.out.splitlines())} if want.code == 0 else set()
        check(reasons == {"length", "stop"}, f"text, {policy}: rows end by {reasons}")
        elapsed_s = want.summary.get("elapsed_s", 1)
        stops = 0
        for share, more in ((0.05, []), (0.3, ["--batch", "4", "--batches", "2"]), (0.3, ALL_DISK + [
                "--batch", "4", "--batches", "3"]), (0.2, ["--batch", "3", "--batches", "1", "--prefill-tokens", "9"])):
            what = f"text, {policy}: interrupted {' '.join(more)}"
            done, stopped = resume(bench, what, bench.text, source, flags + more, share * elapsed_s)
            check(done.out == want.out, f"{what}: other bytes: {difference(want.out, done.out)}")
            stops += stopped
        check(stops > 2, f"text, {policy}: only {stops} interruptions")


@from_full
def real_model(bench, model):
    """A trained model on real prompts: here near ties of logits are rare, but rows end when they want."""
    n_rows, n_tokens = pick((6, 10), (6, 10), (64, 64))
    with open(os.path.join(HERE, "data", "prompts.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f][:n_rows]
    for i, row in enumerate(rows):
        row["body"].update(max_tokens=n_tokens, logprobs=True, top_logprobs=2,
                           **({"temperature": 0.8, "seed": i, "top_p": 0.9} if i % 4 == 3 else {}))
    source = bench.rows(rows)
    for policy, flags in POLICIES.items():
        if not NIGHT and policy not in ("full", "h2o"):
            continue
        names = PLACEMENTS if NIGHT and policy in ("full", "h2o") else FEW
        try_placements(bench, f"{os.path.basename(model)}, {policy}", model, source, flags, names)


PARTS = {"placements": placements, "streamed": streamed, "neighbours": neighbours, "prefixes": prefixes,
         "requeues": requeues, "experts": few_experts,
         "slow writes": slow_writes, "tight": tight, "forced": forced, "sampling": sampling}


def timed(name, part, *args):
    start, before = time.monotonic(), os.times()
    part(*args)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"  {name}: {time.monotonic() - start:.1f} s, {cpu_s:.1f} s of CPU time in sluice", flush=True)


def main(argv):
    only = [a[7:] for a in argv if a.startswith("--only=")]
    words = [a for a in argv[1:] if not a.startswith("--")]
    binary = words[0] if words else "./sluice"
    model = words[1] if len(words) > 1 else os.environ.get("SLUICE_TEST_GGUF")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(binary, folder)
        for name, part in PARTS.items():
            if trial.runs(part, name, only):
                timed(name, part, bench)
        if not trial.runs(real_model, "real", only):
            pass
        elif model and os.path.exists(model):
            timed("real", real_model, bench, os.path.abspath(model))
        else:
            tally.skip("placements of a real model: no GGUF given, and SLUICE_TEST_GGUF names none")
    return tally.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
