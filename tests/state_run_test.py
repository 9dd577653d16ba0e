#!/usr/bin/env python3
"""Models whose layers pass more on than hidden states: state_run_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Rows with a state of fixed size, of a gated delta net, of Mamba-2 beside experts and of Mamba-2 beside attention, and layers with inputs
of their own that use K and V of others (gemma4's small models). Wherever states, inputs, K and V are, however rows are batched, evicted from, sent back or
resumed, and whatever becomes of a page: the same bytes. The numbers themselves are held to transformers' by family_golden.py.
"""
import json
import os
import random
import re
import signal
import sys

from trial import ALL_ON_DISK, H2O, HERE, Journal, difference, job_rows, pick, read, run_parts

MODEL = """family = qwen3_5
dim = 96
layers = 8
heads = 6
kv_heads = 2
head_dim = 32
rope_dim = 8
state_k_heads = 2
state_v_heads = 4
state_k_dim = 32
state_v_dim = 48
ffn = 128
vocab = 3000
context = 512
"""
LENT = """family = gemma4
dim = 96
layers = 10
heads = 4
kv_heads = 1
head_dim = 32
wide_head_dim = 64
ffn = 80
late_ffn = 160
kv_own_layers = 6
layer_input = 512
vocab = 3000
context = 512
"""  # wide: the fifth and the last layer. What goes with 50 tokens is more than a MiB, which is checked as one
MAMBA = """family = nemotron_h
pattern = MEM*EMEM*E
dim = 96
heads = 6
kv_heads = 2
head_dim = 32
state_k_heads = 2
state_v_heads = 4
state_k_dim = 32
state_v_dim = 48
ffn = 64
experts = 6
experts_used = 2
expert_dim = 64
shared_ffn = 64
vocab = 3000
context = 512
"""  # a layer without an MLP, experts in the others
PAIRS = MODEL.replace("qwen3_5", "falcon_h1").replace("layers = 8", "layers = 5").replace("rope_dim = 8\n", "")
MODELS = {"states": MODEL, "mamba": MAMBA, "lent": LENT, "pairs": PAIRS}
APART = {"states": "state of each row", "mamba": "state of each row", "pairs": "state of each row", "lent": "share keys and values between layers"}  # why layers do not attend apart
SIM = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
DEVICE = ["--device", f"{SIM}:7,20,0,{48 << 20}", "--mem-device", "32M"]
TWO = ["--batch", "3", "--batches", "2"]


class Job:
    def __init__(self, tally, place, name, n, *flags, tokens=(8, 32), rows=None):
        self.tally, self.place, self.name, self.flags = tally, place, name, flags
        self.model = place.write(f"{name}.cfg", MODELS[name].encode())
        self.source = place.rows("rows.jsonl", rows or job_rows(n, 21, tokens=tokens))
        self.want = b""
        self.want = self.same("alone", "--batch", "1")

    def args(self, out, *more):
        return ("run", "-m", self.model, "-i", self.source, "-o", out, "--progress", "none", *self.flags, *more)

    def same(self, what, *more, **env):
        out = self.place.fresh()
        done = self.place.sluice(*self.args(out, *more), **env)
        self.tally.check(done.code == 0, f"{self.name}, {what}: exit {done.code}: {done.err[-300:]!r}")
        self.tally.check(not self.want or read(out) == self.want, f"{self.name}, {what}: {difference(self.want, read(out))}")
        self.err = done.err
        return read(out)


def each(part):
    """The part of every model."""
    def run(tally, place, a):
        for name in MODELS:
            part(tally, place, a, name)
    run.__name__, run.__doc__ = part.__name__, part.__doc__
    return run


@each
def places(tally, place, a, name):
    """In RAM, on the disk and on a device; batches of any size; prompts in tiles; threads."""
    for flags in pick(([],), ([], H2O, ["--kv-format", "q4"], ["--kv-format", "mixed", *H2O], ["--compute", "f32", "--kv-format", "f32"],
                              [*H2O, "--kv-positions", "slot"])):
        job = Job(tally, place, name, 12, *flags)
        job.same("two batches", *TWO, "-t", "2")
        job.same("on the disk", *ALL_ON_DISK, *TWO)
        job.same("prompts by the piece", *ALL_ON_DISK, "--batch", "4", "--batches", "2", "--prefill-tokens", "40")
        job.same("half of it", "--percent", "0", "50", "0", "50", "0", "50", *TWO)
        job.same("without sharing", "--share-prefixes", "off")
    job = Job(tally, place, name, 12, *DEVICE)
    job.same("in its RAM", "--percent", "0", "100", "0", "100", "0", "100", *TWO)
    job.same("half of it, a device", *["--percent"], "50", "50", "50", "25", "50", "50", *TWO)
    job.same("on the disk, a device", *ALL_ON_DISK, *TWO)
    done = place.sluice(*job.args(place.fresh(), "--attn", "cpu"))
    tally.check(done.code == 2 and APART[name] in done.last(), f"{name}, --attn cpu: exit {done.code}: {done.last()}")


@each
def prefixes(tally, place, a, name):
    """Prompts that begin alike: a state is copied where a prefix ends, wherever tiles and batches end."""
    r = random.Random(5)
    common = [r.randrange(3, 2000) for _ in range(150)]
    rows = [{"custom_id": f"r{i}", "prompt_token_ids": common[:n] + [r.randrange(3, 2000) for _ in range(own)], "max_tokens": 6 + i % 5,
             "temperature": 0, "ignore_eos": True, "logprobs": 1}
            for i, (n, own) in enumerate([(120, 0), (120, 4), (33, 20), (150, 1), (120, 9), (0, 50), (120, 30), (64, 2), (1, 3), (150, 40)])]
    together = ["--prefill-tokens", "1100"]  # prompts share in the pass that they enter in: all at once, whatever the rates of this machine
    for flags in pick(([],), ([], H2O, ["--kv-policy", "window", "--kv-budget", "40"])):
        job = Job(tally, place, name, 0, *flags, rows=rows)
        cases = (("on the disk", [*ALL_ON_DISK, "--batch", "4", "--batches", "2", *together]),
                 ("a device", [*DEVICE, *ALL_ON_DISK, "--batch", "5", "--batches", "2", "--prefill-tokens", "350"]),
                 ("two batches", ["--batch", "5", "--batches", "2", "-t", "2", *together]),
                 ("one batch", ["--batch", "10", "--batches", "1", *together]),
                 ("prompts by the piece", ["--batch", "6", "--batches", "1", "--prefill-tokens", "260"]))
        for what, more in cases[:pick(2, 5)]:
            base = Job(tally, place, name, 0, *flags, *DEVICE, rows=rows) if what == "a device" else job
            summary = place.at("summary.json")
            base.same(what, *more, "--summary", summary)
            with open(summary, encoding="utf-8") as f:
                shared = json.load(f)["shared_prompt_tokens"]
            tally.check((shared > 100) == ("h2o" not in flags), f"{name}, {what}: {shared} tokens were shared")


@each
def kills(tally, place, a, name):
    """A killed job goes on from its tokens: what layers pass on is made again."""
    job = Job(tally, place, name, 10, *TWO, tokens=(20, 60))
    for n in range(pick(3, 20)):
        out, r = place.fresh(), random.Random(1000 * a.seed + n)
        for flags in ([], [*ALL_ON_DISK]):
            p, wanted = place.start(job.args(out, *flags)), r.randrange(1, 40)
            p.wait_for(lambda: Journal(out).live_tokens >= wanted or not p.running(), 20)
            p.signal(signal.SIGKILL)
            p.end(60)
        done = place.sluice(*job.args(out))
        tally.check(done.code == 0 and read(out) == job.want, f"{name}, kill {n}: exit {done.code}: {difference(job.want, read(out))}")


@each
def repairs(tally, place, a, name):
    """A page of a state, or a piece of what goes with tokens, that changes on the disk costs its rows another start, and no byte."""
    job = Job(tally, place, name, 12, *TWO)
    again = 0
    percent = ("0", "100", "0", "0", "0", "100") if name == "states" else ("0", "100", "100", "0", "0", "0")
    for seed in range(a.seed, a.seed + pick(3, 20)):
        job.same(f"flips, seed {seed}", "--percent", *percent, SLUICE_FAULT=f"seed={seed},read.flip=1/40")
        again += len(re.findall(r"will be computed again", job.err))
    tally.check(again > 0, f"{name}: no flip was met")


@each
def replans(tally, place, a, name):
    """A plan that changes after some passes, for a budget that is drawn."""
    job = Job(tally, place, name, 10, "--mem-ram", "48M", "--prefill-tokens", "48", tokens=(16, 40))
    changes = 0
    for seed in range(a.seed, a.seed + pick(2, 6)):
        job.same(f"replans, seed {seed}", *(ALL_ON_DISK if seed % 2 else []), SLUICE_REPLAN=f"{1 + seed % 3},{seed}")
        changes += job.err.count("plan: pass ")
    tally.check(changes > 0, f"{name}: no plan changed")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [places, prefixes, kills, repairs, replans]))
