#!/usr/bin/env python3
"""Positions by slot, of texts beyond the trained context: rolling_test.py [SLUICE] [--only PART]

Rows four times as long as the model's context, against numpy (evict_ref.py, whose keys turn by rank as well); the same
bytes wherever they lie, on the simulated accelerator too, and after a kill; what is refused, and what a job must not be
resumed with.
Decisions and log-probabilities within the context are evict_golden.py's.
"""
import json
import os
import shutil
import signal
import sys

import trial
from trial import from_full, pick

sys.path.insert(0, os.path.join(trial.HERE, "goldens"))
import numpy as np

import evict_ref
import families
import tiny
from evict_rule import Rule
from golden_common import run_row, score_row

SIM = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
CONTEXT, LONG = 64, 256
F32 = ["--compute", "f32", "--kv-format", "f32"]
STREAMING = ["--kv-policy", "streaming", "--kv-budget", "40"]
SLOT = ["--kv-positions", "slot"]
FAR = 5e-4  # of a log-probability from numpy's, as evict_golden.py has it in f32


class Bed:
    """A model of 64 tokens of context, rows, and runs over them."""

    def __init__(self, folder, a):
        self.place = trial.Place(folder, a.sluice)
        self.model = self.checkpoint("llama-gqa", CONTEXT)
        self.ref = evict_ref.model_open(self.model)
        self.r = np.random.RandomState(5)
        self.scored = [score_row(f"s-{i}", self.ids(n), self.ids(LONG - n)) for i, n in enumerate((1, 40, CONTEXT))]
        self.run_rows = [run_row(f"r-{i}", self.ids(n), LONG - n) for i, n in enumerate((3, 50, 33, CONTEXT, 20, 41))]

    def ids(self, n):
        return self.r.randint(3, 1000, n).tolist()

    def checkpoint(self, spec, context):
        path = self.place.at(spec)
        tiny.write_hf(path, spec, "f32")
        with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
            json.dump({**config, "max_position_embeddings": context}, f)
        return path

    def call(self, command, rows, *flags, model=None, **env):
        """done, with OUT's bytes and lines."""
        out = self.place.fresh()
        threads = () if "-t" in flags else ("-t", "1")
        done = self.place.sluice(command, "-m", model or self.model, "-i", self.place.rows("in.jsonl", rows), "-o", out,
                                 "--progress", "none", *threads, *flags, **env)
        done.bytes = trial.read(out)
        done.rows = [json.loads(x) for x in done.bytes.splitlines()]
        return done


def longer(tally, bed, _):
    """Four times the context: numpy's log-probabilities, and text that its own score finds greedy."""
    for name, flags, rule in (("streaming", STREAMING, Rule("streaming", 40)),
                              ("h2o", ["--kv-policy", "h2o", "--kv-budget", "0.2"], Rule("h2o", "0.2", LONG))):
        done = bed.call("score", bed.scored, *F32, *flags, *SLOT)
        tally.check(done.code == 0, f"{name}: exit {done.code}: {done.err[-300:]!r}")
        for row, got in list(zip(bed.scored, done.rows))[::pick(3, 1)]:
            want, _, _ = evict_ref.score(bed.ref, row["context_ids"], row["continuation_ids"], rule, by_slot=True)
            true, _, _ = evict_ref.score(bed.ref, row["context_ids"], row["continuation_ids"], rule)
            off = np.abs(np.subtract(got.get("token_logprobs", [0]), want)).max()
            tally.check(off < FAR, f"{name}, {row['custom_id']}: {off:.1e} off numpy")
            tally.check(np.abs(true - want).max() > 20 * FAR, f"{name}, {row['custom_id']}: true positions give as much")
            ppl = np.exp(-np.mean(got.get("token_logprobs", [np.nan])))
            tally.check(np.isfinite(ppl) and 1 < ppl < 1e5, f"{name}, {row['custom_id']}: perplexity {ppl}")
    done = bed.call("run", bed.run_rows, *F32, *STREAMING, *SLOT)
    lengths = [len(r.get("token_ids", ())) for r in done.rows]
    tally.check(done.code == 0 and lengths == [r["max_tokens"] for r in bed.run_rows], f"run: {done.code}, {lengths}: {done.err[-300:]!r}")
    again = [score_row(r["custom_id"], r["prompt_token_ids"], x["token_ids"]) for r, x in zip(bed.run_rows, done.rows)]
    greedy = [r.get("is_greedy") for r in bed.call("score", again, *F32, *STREAMING, *SLOT).rows]
    tally.check(greedy == [True] * len(again), f"what run wrote is greedy: {greedy}")


def text(tally, bed, _):
    """`score --text` with a window of four contexts."""
    tiny.write_tokenizer(bed.model, "tokenizer.json", 1000)
    words = " ".join(tiny.WORDS[(i * i + i // 7) % len(tiny.WORDS)] for i in range(600)).encode()
    path = bed.place.write("text.txt", words)
    args = ["score", "-m", bed.model, "--text", path, "--prefix", CONTEXT // 2, "--window", LONG, "-t", "1", *F32]
    done = bed.place.expect(tally, "a window of four contexts", 0, *args, *STREAMING, *SLOT)
    got = json.loads(done.out or "{}")
    tally.check(1 < got.get("ppl", 0) < 1e5 and got["kv"]["positions"] == "slot" and got["kv"]["evicted_tokens"] > 0, f"{got}")
    done = bed.place.expect(tally, "true positions", 2, *args, *STREAMING)
    tally.check("--kv-positions slot" in done.error_line(), f"the hint: {done.error_line()!r}")
    done = bed.place.expect(tally, "a prefix beyond the context", 2, *args[:6], CONTEXT + 1, *args[7:], *STREAMING, *SLOT)
    tally.check("--prefix" in done.error_line(), f"--prefix: {done.error_line()!r}")
    done = bed.place.expect(tally, "a budget beyond it", 2, *args, "--kv-policy", "streaming", "--kv-budget", CONTEXT, *SLOT)


KINDS = {
    "streaming": STREAMING,
    "h2o, q8": ["--kv-policy", "h2o", "--kv-budget", "48", "--kv-format", "q8"],
    "h2o, mixed": ["--kv-policy", "h2o", "--kv-budget", "60", "--kv-format", "mixed"],
    "h2o-mean, layer scope, q4": ["--kv-policy", "h2o-mean", "--kv-budget", "0.2", "--kv-scope", "layer", "--kv-format", "q4"],
}
PLACES = {
    "one row": ["--batch", "1", "--batches", "1"],
    "batches, on disk": ["--batch", "2", "--batches", "3", *trial.ALL_ON_DISK],
    "threads": ["--batch", "6", "--batches", "1", "-t", "3"],
    "few tokens a pass": ["--prefill-tokens", "40", "--batch", "3", "--batches", "2"],
}
DEVICE = {
    "device": ["--attn", "device", "--percent", "100", "0", "100", "0", "100", "0"],
    "device, KV on disk": ["--attn", "device", "--percent", "0", "50", "0", "0", "0", "100", "--batch", "2", "--batches", "3"],
    "CPU attends": ["--attn", "cpu", "--percent", "0", "100", "0", "100", "0", "100", "--batch", "3", "--batches", "2"],
}


@from_full
def placements(tally, bed, _):
    """RAM, disk, batches and threads, and a device: the same bytes."""
    places = list({**PLACES, **{k: [*v, "--device", f"{SIM}:7,20"] for k, v in DEVICE.items()}}.items())
    for i, (kind, flags) in enumerate(KINDS.items()):
        for j, (command, rows) in enumerate((("run", bed.run_rows), ("score", bed.scored))):
            want = bed.call(command, rows, *flags, *SLOT)
            tally.check(want.code == 0, f"{command}, {kind}: exit {want.code}: {want.err[-300:]!r}")
            for name, more in pick(places[(i + 2 * j) % 4::4], places):
                got = bed.call(command, rows, *flags, *SLOT, *more)
                tally.check(got.code == 0 and got.bytes == want.bytes, f"{command}, {kind}, {name}: exit {got.code} "
                            f"{got.error_line()!r}: {trial.difference(want.bytes, got.bytes)}")


def kinds_of_layers(tally, bed, _):
    """Windows, sinks, scaled, partial and two tables of angles: as by true positions while nothing goes but out of a window."""
    stored = families.stored()
    for spec in ("gpt_oss-plain", "gemma3-types", "gemma3-pattern", "gpt_neox-parallel", "phi3-window", "ministral3-plain"):
        path = bed.place.at(spec)
        families.write_hf(path, spec, stored[spec]["tensors"], "f32")
        rows = [score_row("w", bed.r.randint(3, families.VOCAB, 60).tolist(), bed.r.randint(3, families.VOCAB, 100).tolist())]
        flags = [*F32, "--kv-policy", "streaming", "--kv-budget", "200"]
        true, slot = (bed.call("score", rows, *flags, *more, model=path) for more in ((), SLOT))
        off = np.abs(np.subtract(*(d.rows[0].get("token_logprobs", [np.nan]) for d in (true, slot)))).max()
        tally.check(true.code == slot.code == 0 and off < 1e-3, f"{spec}: {off:.1e} apart: {slot.err[-200:]!r}")


def job(tally, bed, _):
    """Part of the answer: another job's OUT, another plan file's KV; and the longest that rows may get."""
    out = bed.place.fresh()
    source = bed.place.rows("job.jsonl", [run_row("a", bed.ids(8), 4)])
    args = ["run", "-m", bed.model, "-i", source, "-o", out, "-t", "1", "--progress", "none", *STREAMING]
    bed.place.expect(tally, "by slot", 0, *args, *SLOT)
    bed.place.expect(tally, "the same job", 0, *args, *SLOT)
    bed.place.expect(tally, "true positions are another job", 8, *args)
    plan = bed.place.expect(tally, "plan", 0, "plan", "-m", bed.model, "--prompt-len", 32, "--gen-len", LONG, "--num-prompts", 4,
                            "-t", "1", *STREAMING, *SLOT, "--json")
    kv = json.loads(plan.out or "{}").get("kv", {})
    tally.check(kv.get("positions") == "slot" and kv.get("slots") == 40, f"plan: {kv}")
    bed.place.expect(tally, "plan beyond the context", 2, "plan", "-m", bed.model, "--prompt-len", 32, "--gen-len", LONG,
                     "--num-prompts", 4, "-t", "1", *STREAMING)
    done = bed.place.expect(tally, "dry run", 0, "run", "-m", bed.model, "-i", source, "--dry-run", "-v", "-t", "1", *STREAMING, *SLOT)
    tally.check("positions by slot" in done.out + done.err, f"dry run: {(done.out + done.err)[-300:]!r}")
    rows = [run_row("long prompt", bed.ids(CONTEXT + 1), 4), run_row("long output", bed.ids(CONTEXT), LONG)]
    done = bed.call("run", rows, *STREAMING, *SLOT)
    codes = [(r.get("error") or {}).get("code") for r in done.rows]
    tally.check(done.code == 3 and codes == ["context_length_exceeded", None] and len(done.rows[1]["token_ids"]) == LONG, f"{codes}")
    done = bed.call("run", rows, *STREAMING)
    codes = [(r.get("error") or {}).get("code") for r in done.rows]
    tally.check(done.code == 3 and codes == ["context_length_exceeded"] * 2, f"true positions: {codes}")
    done = bed.call("run", [run_row("cut", bed.ids(10), 4 * LONG)], "--kv-policy", "streaming", "--kv-budget", "0.5", *SLOT)
    n = len(done.rows[0].get("token_ids", ()))
    tally.check(n == (CONTEXT - 1) * 2 - 10, f"half of the tokens as slots: {n} tokens")


def resumed(tally, bed, _):
    """Killed while rows are beyond the context: what is read in again as one forced span gives the same bytes."""
    rows = [run_row(f"k-{i}", bed.ids(20 + 7 * i), 700) for i in range(6)]
    flags = ["--kv-policy", "h2o", "--kv-budget", "48", "--batch", "6", *SLOT]  # all rows at once, whatever the rates
    want, out = bed.call("run", rows, *flags), bed.place.fresh()
    args = ["run", "-m", bed.model, "-i", bed.place.rows("killed.jsonl", rows), "-o", out, "-t", "1", "--progress", "none", *flags]
    process, live = bed.place.start(args), 6 * 2 * CONTEXT
    met = process.wait_for(lambda: trial.Journal(out).tokens >= live)
    process.signal(signal.SIGKILL)
    process.end()
    tally.check(met and trial.Journal(out).live_rows == 6, f"killed with {trial.Journal(out).live_rows} live rows, {trial.Journal(out).tokens} tokens")
    done = bed.place.expect(tally, "resumed", 0, *args)
    tally.check(trial.read(out) == want.bytes, f"resumed: {done.code}, {trial.difference(want.bytes, trial.read(out))}")


def refused(tally, bed, _):
    """One clear line, exit 2."""
    opt = bed.checkpoint("opt-mha", 512)
    source = bed.place.rows("r.jsonl", [run_row("a", bed.ids(8), 4)])
    stored, phi, hunyuan = families.stored(), bed.place.at("longrope"), bed.place.at("hunyuan")
    for path, spec in ((phi, "phi3-long"), (hunyuan, "hunyuan_v1_dense-alpha")):
        families.write_hf(path, spec, stored[spec]["tensors"], "f32")
    for what, words, model, flags in (("learned positions", "learned positions", opt, STREAMING),
                                      ("full", "--kv-policy streaming", bed.model, []),
                                      ("another table", "another table", phi, STREAMING),
                                      ("norms behind RoPE", "norms keys after it turns them", hunyuan, STREAMING),
                                      ("no such word", "true or slot", bed.model, [*STREAMING, "--kv-positions", "rolling"])):
        for command in ("run", "score"):
            done = bed.place.expect(tally, f"{command}, {what}", 2, command, "-m", model, "-i", source, "-o", bed.place.fresh(), "-t", "1",
                                    *SLOT, *flags)
            tally.check(words in done.error_line(), f"{command}, {what}: {done.error_line()!r}")
        done = bed.place.expect(tally, f"plan, {what}", 2, "plan", "-m", model, "--prompt-len", 9, "--gen-len", 9, "--num-prompts", 1, "-t", "1",
                                *SLOT, *flags)
        tally.check(words in done.error_line(), f"plan, {what}: {done.error_line()!r}")
    shutil.rmtree(phi)
    shutil.rmtree(hunyuan)


@from_full
def frontier(tally, bed, _):
    """`bench frontier` beyond the context: points by slot, and only they."""
    tiny.write_tokenizer(bed.model, "tokenizer.json", 1000)
    words = " ".join(tiny.WORDS[(i * i + i // 7) % len(tiny.WORDS)] for i in range(600)).encode()
    path = bed.place.write("text.txt", words)
    args = ["bench", "frontier", "-q", "-m", bed.model, "--text", path, "--prefix", 32, "--window", LONG, "--limit", 1, "-t", "1",
            "--policies", "streaming,h2o", "--budgets", "40,0.2", "--json", *SLOT]
    done = bed.place.expect(tally, "frontier", 0, *args, "--needles", 0)
    rows = json.loads(done.out or "{}").get("rows", [])
    tally.check([r["kv_policy"] for r in rows] == ["streaming", "streaming", "h2o", "h2o"], f"{[r['kv_policy'] for r in rows]}")
    score = bed.place.expect(tally, "score", 0, "score", "-m", bed.model, "--text", path, "--prefix", 32, "--window", LONG, "--limit", 1,
                             "-t", "1", *STREAMING, *SLOT)
    tally.check(rows and abs(rows[0]["perplexity"] / json.loads(score.out)["ppl"] - 1) < 1e-4, f"{rows[:1]} {score.out}")
    done = bed.place.expect(tally, "needles", 2, *args, "--needles", 1)
    tally.check("--needles 0" in done.error_line(), f"needles: {done.error_line()!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (longer, text, placements, kinds_of_layers, job, resumed, refused, frontier), make=Bed))
