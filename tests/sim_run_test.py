#!/usr/bin/env python3
"""The whole program on a device that is not there: sim_run_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

`run` and `score` on the simulated accelerator (tests/sim_device.c), whose memory the host cannot touch and whose
streams are late, against the bytes of the CPU: placements drawn from a seed; kills, signals and time limits,
resumed on a device that is late otherwise; a disk that lies; a device that is lost at any command; and what is
refused. A device has no more memory than --mem-device says. Standard library and a C compiler.
"""
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import trial
from placement_test import text_model, text_rows
from trial import HERE, LEVEL, MIB, NIGHT, Journal, difference, from_full, job_rows, pick, read, remove_job

ROOT = os.path.dirname(HERE)
SIM = os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests/sim_device.so")
VOCAB = 1500
LLAMA = f"""family = llama
dim = 64
layers = 4
heads = 4
kv_heads = 2
head_dim = 16
ffn = 96
vocab = {VOCAB}
context = 1024
tied = 0
"""
OPT = f"""family = opt
dim = 72
layers = 3
heads = 6
ffn = 160
vocab = {VOCAB}
context = 1024
tied = 0
"""
GEMMA2 = f"""family = gemma2
dim = 64
layers = 3
heads = 4
kv_heads = 2
head_dim = 16
ffn = 96
vocab = {VOCAB}
context = 1024
"""  # soft caps of scores and logits
H2O = ["--kv-policy", "h2o", "--kv-budget", "40"]
# What is part of the answer.
KINDS = {
    "full": [],
    "h2o": H2O,
    "h2o-mean, layer scope": ["--kv-policy", "h2o-mean", "--kv-budget", "0.4", "--kv-scope", "layer"],
    "window": ["--kv-policy", "window", "--kv-budget", "33"],
    "streaming": ["--kv-policy", "streaming", "--kv-budget", "40"],
    "f32": ["--compute", "f32", "--kv-format", "f32"],
    "h2o, f32": [*H2O, "--compute", "f32", "--kv-format", "f32"],
    "q8": ["--kv-format", "q8"],
    "h2o, q4": [*H2O, "--kv-format", "q4"],
    "mixed": ["--kv-format", "mixed"],
    "h2o, mixed": [*H2O, "--kv-format", "mixed"],
    "h2o-mean, mixed, layer scope": ["--kv-policy", "h2o-mean", "--kv-budget", "40", "--kv-scope", "layer", "--kv-format",
                                     "mixed"],
    "int8 over q8": ["--compute", "int8", "--weights", "q8"],
    "int8 over q4": ["--compute", "int8", "--weights", "q4", *H2O],
    "weights in q4": ["--weights", "q4", "--compute", "f32"],
    "h2o, simulated": [*H2O, "--kv-simulate"],
}
ALL_NVME = ["--percent", "0", "0", "0", "0", "0", "0"]
IN_RAM = ["--percent", "0", "100", "0", "100", "0", "100"]
TIERS = ("device", "ram", "nvme")


def shares(r, device):
    """A share on the device and one in RAM, of 100."""
    near = r.choice((0, 0, 100, r.randint(1, 99))) if device else 0
    return near, r.choice((0, 100 - near, r.randint(0, 100 - near)))


def placement(r, attn):
    """Flags that change no byte, drawn from r: all that a user may say of where and when."""
    percent = [*shares(r, True), *shares(r, attn == "device"), *shares(r, True)]
    flags = ["--attn", attn, "--percent", *percent, "--batch", r.choice((1, 2, 3, 4, 6)), "--batches", r.randint(1, 4),
             "--ahead-weights", r.choice((0, 1, 2, 5, 1000)), "--ahead-state", r.choice((0, 1, 2, 4, 1000, 1000, 1000)),
             "--prefill-tokens", r.choice((1, 9, 40, 90, 300, 2000)), "--io", r.choice(("uring", "threads")),
             "--share-prefixes", r.choice(("on", "on", "off"))]
    if percent[0] + percent[1] < 100 and r.random() < 0.3:
        flags += ["--weights-codec", "zstd"]
    return flags


def device(seed, delay_us=30, lose_at=0, memory=None):
    return ["--device", f"{SIM}:{seed},{delay_us},{lose_at}" + ("" if memory is None else f",{memory}")]


def tiers_of(text):
    """Which tiers a summary names."""
    return [t for t in TIERS if t in (text or "")]


def asked(done):
    """The --mem-device that an exit 4 proposes, in MiB."""
    found = re.search(r"--mem-device (\d+)M", done.error_line())
    return int(found[1]) if found else 0


def echo_rows():
    """Prompts that begin alike and want their own log-probabilities, and rows that grow beyond the mean."""
    r = random.Random(5)
    base = [r.randrange(3, VOCAB) for _ in range(120)]
    rows = [{"custom_id": f"like-{i}", "prompt_token_ids": base[:n] + [r.randrange(3, VOCAB) for _ in range(1 + i % 3 * 20)],
             "max_tokens": 6 + i, "ignore_eos": True, "logprobs": 2, "temperature": i % 2 * 0.8, "seed": i,
             "echo": i % 4 == 2} for i, n in enumerate((33, 24, 100, 31, 64, 1))]
    rows += [{"custom_id": f"long-{i}", "prompt_token_ids": base[i:4 + 2 * i], "max_tokens": 75 + 9 * i, "ignore_eos": True,
              "temperature": i % 2 * 0.7, "seed": i, "logprobs": 1} for i in range(4)]
    rows += [{"custom_id": f"short-{i}", "prompt_token_ids": [5 + i], "max_tokens": 3, "temperature": 0, "logprobs": 1}
             for i in range(8)]
    return rows


def score_rows():
    r = random.Random(6)
    return [{"custom_id": f"s{i}", "context_ids": [r.randrange(3, VOCAB) for _ in range((1, 20, 33, 64)[i % 4])],
             "continuation_ids": [r.randrange(3, VOCAB) for _ in range(r.choice((5, 33, 70)))]} for i in range(7)]


class Bed(trial.Place):
    """A folder with models and rows, the CPU's answers, and runs beside them; one for all parts."""

    def __init__(self, folder, binary, tally):
        super().__init__(folder, binary)
        self.tally, self.wants = tally, {}
        llama, opt = self.write("llama.cfg", LLAMA.encode()), self.write("opt.cfg", OPT.encode())
        text = self.write("text.gguf", text_model())
        rows = self.rows("rows.jsonl", job_rows(8, 3, vocab=VOCAB, tokens=(4, 12), prompt_max=80))
        scores = self.rows("scores.jsonl", score_rows())
        self.jobs = {"rows": ("run", llama, rows), "opt": ("run", opt, rows),
                     "alike and long": ("run", llama, self.rows("echo.jsonl", echo_rows())),
                     "text": ("run", text, self.rows("text.jsonl", text_rows()[:12])),
                     "score": ("score", llama, scores), "score, opt": ("score", opt, scores)}
        done = self.run("rows", self.fresh(), "--io", "uring", "--weights-resident", "0")
        self.have_uring = done.code == 0
        if not self.have_uring:
            tally.skip(f"io_uring is refused here: {done.err.strip()[-120:]}")

    def args(self, job, out, *flags):
        command, model, source = self.jobs[job]
        return [command, "-m", model, "-i", source, "-o", out, "--progress", "none", "-t", "1", *flags]

    def run(self, job, out, *flags, **more):
        """One run; `summary` is what it says of itself."""
        path = self.at("summary.json")
        if os.path.exists(path):
            os.unlink(path)
        done = self.sluice(*self.args(job, out, "--summary", path, *flags), **more)
        done.summary = json.loads(read(path) or b"{}")
        return done

    def want(self, job, kind):
        """The CPU's bytes."""
        key = job, kind
        if key not in self.wants:
            out = self.fresh()
            done = self.run(job, out, *KINDS[kind])
            self.tally.check(done.code == 0 and read(out), f"{job}, {kind}, CPU: exit {done.code}: {done.err[-300:]!r}")
            self.wants[key] = read(out)
            remove_job(out)
        return self.wants[key]

    def same(self, what, out, job, kind, done):
        want = self.want(job, kind)
        return self.tally.check(done.code == 0 and read(out) == want, f"{what}: exit {done.code}, {done.error_line()!r}: "
                                f"{difference(want, read(out))}")

    def io_of(self, flags):
        return flags if self.have_uring else ["threads" if f == "uring" else f for f in flags]


def one_line(tally, what, done, code, *words):
    """Refused in one line."""
    line, lines = done.error_line(), sum(x.startswith("sluice: error: ") for x in done.err.splitlines())
    return tally.check(done.code == code and lines == 1 and all(w in line for w in words),
                       f"{what}: exit {done.code}, want {code} and {words}: {done.err[-400:]!r}")


# ---- placements -----------------------------------------------------------------------------------------

class Seen:
    """What the runs of a part met: a placement that never happens proves nothing."""

    def __init__(self):
        self.met = set()
        self.least_room = None

    def add(self, summary, flags):
        plan = summary.get("plan", {})
        self.met |= {(what, tier) for what, text in plan.get("tiers", {}).items() for tier in tiers_of(text)}
        self.met |= {("attn", flags[flags.index("--attn") + 1]), ("batches", plan.get("batches")),
                     ("codec", plan.get("weights_codec")), ("io", plan.get("io"))}
        self.met |= {name for name, n in (("requeued", summary.get("rows", {}).get("requeued")),
                                          ("shared", summary.get("shared_prompt_tokens")),
                                          ("evicted", summary.get("kv", {}).get("evicted_tokens")),
                                          ("as tiles", plan.get("weights_decoded")),
                                          ("ahead", plan.get("ahead_state"))) if n}


def capped(bed, job, out, flags, n, extra_mib, **env):
    """A run within the least --mem-device that its own refusal names and extra_mib, on a device that has no more.
    (what came of it, bytes)"""
    done, cap = bed.run(job, out, *flags, *device(n), "--mem-device", "64K", **env), 0
    for _ in range(3):  # more of it may show what else needs more
        if done.code != 4 or not bed.tally.check(asked(done) * MIB > cap, f"--mem-device {cap} {flags}: {done.error_line()!r}"):
            break
        cap = asked(done) * MIB
        done = bed.run(job, out, *flags, *device(n, memory=cap + extra_mib * MIB), "--mem-device",
                       f"{cap // MIB + extra_mib}M", **env)
    bed.tally.check(cap > 0, f"--mem-device 64K {flags}: exit {done.code}: {done.error_line()!r}")
    return done, cap + extra_mib * MIB


def placements(tally, bed, a):
    """Any placement, any kind of answer: the CPU's bytes, within --mem-device."""
    seen, n_runs = Seen(), pick(14, 42, 480)
    kinds, jobs = list(KINDS), list(bed.jobs)
    for n in range(n_runs):
        r = random.Random(1_000_003 * a.seed + n)
        job, kind = jobs[n // 2 % len(jobs)], kinds[n % len(kinds)]
        flags = bed.io_of([*KINDS[kind], *placement(r, ("cpu", "device")[n % 3 > 0])])
        what = f"placement {n}, {job}, {kind}, {' '.join(map(str, flags))}"
        out = bed.fresh()
        if n % 3:
            done, cap = capped(bed, job, out, flags, n, r.choice((0, 0, 1, 5)))
        else:
            done, cap = bed.run(job, out, *flags, *device(n, r.choice((0, 30, 200)))), 1 << 30
        if bed.same(what, out, job, kind, done):
            tally.check(0 < done.summary["peak_bytes"]["device"] <= cap, f"{what}: peak "
                        f"{done.summary['peak_bytes']['device']} bytes of {cap}")
            healed = done.summary.get("repairs", {})  # of bytes that were read too early
            tally.check(set(healed.values()) == {0}, f"{what}: {healed}")
            seen.add(done.summary, flags)
        remove_job(out)
    want = {(what, tier) for what in ("weights", "kv") for tier in TIERS} | {("attn", "cpu"), ("attn", "device"), "evicted", "ahead"}
    if LEVEL:  # more runs meet more
        want |= {("hidden", tier) for tier in TIERS} | {("batches", n) for n in (1, 2, 3, 4)} | {"requeued", "shared"}
        want |= {("codec", "zstd"), ("codec", "none"), ("io", "threads")} | ({("io", "io_uring")} if bed.have_uring else set())
    tally.check(want <= seen.met, f"placements: never met {sorted(map(str, want - seen.met))}")
    print(f"placements: {n_runs} runs, {len(bed.wants)} answers", flush=True)


def families(tally, bed, a):
    """The same of experts, sinks and a window of which rows see the end, of soft caps, and of layers of two kinds."""
    rows = job_rows(6, 3, vocab=VOCAB, tokens=(4, 12), prompt_max=100)
    rows[1].update(prompt_token_ids=[3 + 7 * i % 900 for i in range(120)], max_tokens=20)
    rows[2].update(prompt_token_ids=[3 + 5 * i % 900 for i in range(150)], max_tokens=3)
    source = bed.rows("families.jsonl", rows)
    kinds = ("full", "h2o", "f32", "streaming", "h2o, mixed", "q8")
    for name, text in (("gpt_oss", trial.OSS.replace("5000", str(VOCAB))), ("gemma2", GEMMA2),
                       ("qwen2_moe", trial.TWO_KINDS.replace("5000", str(VOCAB)))):
        bed.jobs[name] = ("run", bed.write(name + ".cfg", text.encode()), source)
        for n in range(pick(3, 6, 60)):
            r = random.Random(1_000_003 * a.seed + n)
            kind = kinds[n % len(kinds)]
            flags = bed.io_of([*KINDS[kind], *placement(r, ("device", "cpu")[n % 3 > 1])])
            out, what = bed.fresh(), f"{name} {n}, {kind}, {' '.join(map(str, flags))}"
            done = bed.run(name, out, *flags, *device(n, r.choice((0, 30, 200))))
            if bed.same(what, out, name, kind, done):
                healed = done.summary.get("repairs", {})
                tally.check(set(healed.values()) == {0}, f"{what}: {healed}")
            remove_job(out)


# ---- interrupted ----------------------------------------------------------------------------------------

SETTINGS = {
    "all on NVMe": ("device", "full", [*ALL_NVME, "--batch", "3", "--batches", "2"]),
    "all on NVMe, CPU attends": ("cpu", "h2o", [*ALL_NVME, "--batch", "2", "--batches", "3"]),
    "in RAM": ("device", "h2o, mixed", [*IN_RAM, "--batch", "4", "--batches", "2"]),
    "a third each": ("device", "h2o", ["--percent", "33", "33", "33", "33", "33", "33", "--batch", "2", "--batches", "4"]),
    "in RAM, CPU attends": ("cpu", "full", ["--percent", "50", "50", "0", "100", "0", "100", "--batch", "2", "--batches", "4"]),
    "on the device": ("device", "streaming", ["--percent", "100", "0", "100", "0", "100", "0", "--batch", "8", "--batches",
                                              "1"]),
}
# What may change between two runs of a job; (--attn cpu, else)
MOVES = {
    "cpu": (ALL_NVME, IN_RAM, ["--percent", "0", "50", "0", "30", "100", "0"], ["--batch", "6", "--batches", "1"]),
    "device": (ALL_NVME, IN_RAM, ["--percent", "100", "0", "100", "0", "100", "0"], ["--batch", "1", "--batches", "4"],
               ["--percent", "20", "30", "50", "20", "0", "50"]),
}


def until_done(bed, what, job, kind, flags, n, out):
    """Runs until it ends well."""
    done = bed.run(job, out, *flags, *device(n))
    ok = bed.same(what, out, job, kind, done)
    left = sorted(f for f in os.listdir(bed.folder) if f.startswith(os.path.basename(out) + "."))
    bed.tally.check(not ok or left == [os.path.basename(out) + ".job.json"], f"{what}: left beside OUT: {left}")
    remove_job(out)


@from_full
def kills(tally, bed, a):
    """SIGKILL at random moments, each time on a device that is late otherwise, then to the end."""
    n = met = begun = 0
    rows = job_rows(pick(12, 12, 30), 4, vocab=VOCAB, tokens=(16, 40), prompt_max=80)
    bed.jobs["more rows"] = ("run", bed.jobs["rows"][1], bed.rows("more.jsonl", rows))
    r = random.Random(a.seed)
    for name, (attn, kind, where) in SETTINGS.items():
        flags = [*KINDS[kind], "--attn", attn]
        out = bed.fresh()
        whole = bed.run("more rows", out, *flags, *where, *device(n, 30))
        bed.same(f"kills, {name}", out, "more rows", kind, whole)
        for round_ in range(pick(1, 1, 8)):
            out, what, before = bed.fresh(), f"kills, {name}, round {round_}", 0
            for k in range(r.choice((1, 2, 3))):
                n += 1
                more = r.choice(MOVES[attn]) if before else []
                p = bed.start(bed.args("more rows", out, *flags, *where, *more, *device(n, r.choice((0, 30, 100)))))
                p.wait_for(lambda: os.path.exists(out + ".journal"))
                time.sleep(r.uniform(0, 0.5) * whole.seconds)
                p.signal(signal.SIGKILL)
                done = p.end()
                if done.code != -signal.SIGKILL or os.path.exists(out):
                    tally.check(done.code in (0, -signal.SIGKILL), f"{what}: exit {done.code}: {done.err[-300:]!r}")
                    break
                held = Journal(out).tokens
                tally.check(held >= before, f"{what}: {held} tokens held, {before} before")
                met, begun, before = met + 1, begun + (held > 0), held
            until_done(bed, what, "more rows", kind, [*flags, *where, *r.choice(([], *MOVES[attn]))], n, out)
    tally.check(begun >= met // 3, f"kills: only {begun} of {met} met a job with tokens committed")
    print(f"kills: {met}, {begun} of them with tokens committed", flush=True)


@from_full
def signals(tally, bed, a):
    """SIGINT and --time-limit: 75, and the same command resumes, with its tokens as forced spans."""
    n, stops = 100, 0
    r = random.Random(a.seed)
    for name, (attn, kind, where) in list(SETTINGS.items())[:None if NIGHT else 3]:
        flags, what = [*KINDS[kind], "--attn", attn, *where], f"signals, {name}"
        out = bed.fresh()
        p = bed.start(bed.args("alike and long", out, *flags, *device(n, 100)))
        p.wait_for(lambda: Journal(out).tokens)
        p.signal(signal.SIGINT)
        done = p.end()
        if done.code != 0:
            one_line(tally, what, done, 75, "resumes")
            stops += 1
        limit_s = 0.1
        for n in range(n + 1, n + 40):
            if done.code == 0:
                break
            done = bed.run("alike and long", out, *flags, *device(n, r.choice((0, 50))), "--time-limit", f"{limit_s:.2f}s")
            stops += done.code == 75
            tally.check(done.code in (0, 75), f"{what}: exit {done.code}: {done.err[-300:]!r}")
            limit_s *= 1.4
        bed.same(what, out, "alike and long", kind, done)
        remove_job(out)
    tally.check(stops >= 3, f"signals: only {stops} interruptions")
    print(f"signals: {stops} interruptions", flush=True)


# ---- a disk that lies -------------------------------------------------------------------------------------

HEALS = ("read.short=1/4,again=1/9,delay=1/5", "reorder=1/2,write.delay=1/2", "short=1/6,intr=1/9,busy=1/20,reorder=1/5")
LIES = ("read.flip=1/60", "read.eio=1/40", "write.stale=1/40", "read.swap=1/60", "write.lost=1/40", "read.torn=1/80",
        "write.foreign=1/60", "read.zero=1/60")
FULL = ("write.enospc=1/5", "write.eio=1/5")


@from_full
def faults(tally, bed, a):
    """Bad pieces heal, lose their rows, which are computed again, or end the run; never another answer."""
    codes, repairs = [], {}
    places = {
        "KV": ["--percent", "100", "0", "0", "0", "100", "0", "--batch", "3", "--batches", "3"],
        "hidden": ["--percent", "100", "0", "0", "100", "0", "0", "--batch", "2", "--batches", "4"],
        "all": [*ALL_NVME, "--batch", "3", "--batches", "3"],
        "KV, device before RAM before NVMe": ["--percent", "50", "0", "0", "50", "0", "50", "--batch", "2", "--batches", "4"],
    }
    cases = [(f, (0, 9) if f in FULL else (0,) if f in HEALS else (0, 7, 9)) for f in (*HEALS, *LIES, *FULL)]
    rounds = range(a.seed, a.seed + pick(1, 1, 12))
    for seed in rounds:
        for i, (fault, may) in enumerate(cases):
            r = random.Random(100 * seed + i)
            names = list(places) if NIGHT else ["all" if fault in FULL else list(places)[(i + seed) % len(places)]]
            for name in names:
                attn = ("cpu", "device")[(i // 4 + seed) % 2]
                kind = r.choice(("full", "h2o", "mixed"))
                flags = [*KINDS[kind], "--attn", attn, *places[name], "--io", r.choice(("auto", "threads"))]
                out, what = bed.fresh(), f"faults, {name}, {attn}, {kind}: {fault}"
                done = bed.run("rows", out, *flags, *device(seed + i), SLUICE_FAULT=f"seed={seed},{fault}")
                codes.append(done.code)
                for key, n in done.summary.get("repairs", {}).items():
                    repairs[key] = repairs.get(key, 0) + n
                if done.code:
                    one_line(tally, what, done, done.code if done.code in may else may[0])
                    tally.check(not os.path.exists(out), f"{what}: exit {done.code} left an OUT")
                    done = bed.run("rows", out, *flags, *device(seed + i + 1))
                bed.same(what, out, "rows", kind, done)
                remove_job(out)
    tally.check(0 in codes and 9 in codes, f"faults: runs ended with {sorted(set(codes))}")
    tally.check(repairs.get("pieces", 0) > 0 and repairs.get("rows", 0) > 0, f"faults: {repairs}")
    print(f"faults: {len(codes)} runs, " + ", ".join(f"{codes.count(c)} x {c}" for c in sorted(set(codes))) +
          f"; {repairs}", flush=True)


@from_full
def damaged_pack(tally, bed, a):
    """Weights that went bad on the disk are no answer, wherever they are kept: 7, and healed the job resumes."""
    pack, hurt = bed.at("whole.pack"), bed.at("hurt.pack")
    done = bed.sluice("pack", bed.jobs["rows"][1], "-o", pack, "-q")
    tally.check(done.code == 0, f"pack: exit {done.code}: {done.err[-200:]!r}")
    whole, r, codes = read(pack), random.Random(a.seed), []
    bed.jobs["hurt"] = ("run", hurt, bed.jobs["rows"][2])
    bed.write("hurt.pack", whole)
    for i in range(pick(4, 4, 36)):
        attn = ("cpu", "device")[i % 2]
        share = (("0", "0"), ("100", "0"), ("0", "100"), ("30", "30"))[i // 2 % 4]
        flags = ["--attn", attn, "--percent", *share, "0", "100", "100", "0", "--batch", "4", "--batches", "2"]
        bed.write("hurt.pack", whole)
        bed.want("hurt", "full")
        out, bytes_ = bed.fresh(), bytearray(whole)
        at = r.randrange(len(whole) // 3, len(whole) - 8192)
        bytes_[at] ^= 1 << r.randrange(8)
        bed.write("hurt.pack", bytes_)
        done = bed.run("hurt", out, *flags, *device(i))
        codes.append(done.code)
        if done.code:
            one_line(tally, f"pack damaged at {at}", done, 7)
            bed.write("hurt.pack", whole)
            done = bed.run("hurt", out, *flags, *device(i + 1))
        bed.same(f"pack damaged at {at}, {flags}", out, "hurt", "full", done)
        remove_job(out)
    tally.check(7 in codes, f"damaged packs ended with {codes}")
    print(f"damaged packs: {codes}", flush=True)


# ---- a device that is lost, or is none ------------------------------------------------------------------

@from_full
def lost(tally, bed, a):
    """Lost at any command: 6 and one line; with a device again the same command resumes."""
    n_lost = held_some = 0
    r = random.Random(a.seed)
    for n in range(pick(12, 12, 200)):
        name = list(SETTINGS)[n % len(SETTINGS)]
        attn, kind, where = SETTINGS[name]
        flags, out = [*KINDS[kind], "--attn", attn, *where], bed.fresh()
        what, before = f"lost, {name}", 0
        for k in range(r.choice((1, 1, 3))):
            at = int(2 ** r.uniform(0, 13.5))
            what += f", at {at}"
            done = bed.run("rows", out, *flags, *device(n + k, 0, at))
            if done.code == 0:
                break
            n_lost += 1
            one_line(tally, what, done, 6, "device")
            tally.check(not os.path.exists(out), f"{what}: there is an OUT")
            held = Journal(out).tokens
            tally.check(held >= before, f"{what}: {held} tokens held, {before} before")
            before, held_some = held, held_some + (held > 0)
        until_done(bed, what, "rows", kind, flags, n, out)
    tally.check(n_lost >= pick(6, 6, 100) and held_some > 1, f"lost: {n_lost} times, {held_some} with tokens committed")
    print(f"lost: {n_lost} times, {held_some} of them with tokens committed", flush=True)


def old_library(bed):
    """The device's library as another version of sluice would have it."""
    source = bed.write("old.c", b'#include "kernels/device.h"\n#undef DEVICE_VERSION\n#define DEVICE_VERSION 99\n'
                         b'#include "tests/sim_device.c"\n')
    path = bed.at("old.so")
    done = subprocess.run([*os.environ.get("CC", "gcc").split(), "-std=c17", "-D_GNU_SOURCE", "-I", ROOT, "-fPIC", "-shared", "-o", path,
                           source], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"old.c: {done.stderr[-300:]}")
    return path


def refusals(tally, bed, a):
    """What cannot be, in one line with the right code; what was there stays as it is."""

    def refused(what, code, *flags, words=()):
        out = bed.fresh()
        one_line(tally, what, bed.run("rows", out, *flags), code, *words)
        tally.check(not os.path.exists(out), f"{what}: there is an OUT")

    fixed = [*IN_RAM, "--batch", "2", "--batches", "2"]
    refused("a library that is not there", 6, "--device", bed.at("none.so"), words=["none.so"])
    refused("no library", 6, "--device", bed.write("text.so", b"no ELF"), words=["text.so"])
    refused("no device", 6, "--device", os.path.join(os.path.dirname(SIM), "tools/nth.so"), words=["nth.so", "not a device"])
    refused("a device of another version", 6, "--device", old_library(bed), words=["version"])
    refused("--attn device on the CPU", 6, "--device", "cpu", "--attn", "device", words=["--attn"])
    refused("a library's matmuls on the CPU", 2, "--device", "cpu", "--matmul", "cublaslt", words=["--matmul", "cpu"])
    refused("a library's matmuls in f32", 2, *device(1), "--matmul", "cublaslt", "--compute", "f32", words=["--matmul", "f32"])
    refused("a library that nobody knows", 2, *device(1), "--matmul", "blas", words=["--matmul", "own or cublaslt"])
    refused("KV of CPU attention on the device", 2, *device(1), "--attn", "cpu", "--percent", "0", "0", "50", "0", "0", "0")
    refused("--kv-dump on a device", 2, *device(1), "--kv-dump", bed.at("dump.jsonl"), words=["--kv-dump"])
    refused("a device of 1 MiB", 4, *device(1, memory=MIB), words=["--mem-device"])
    refused("a device that has less than it may take", 4, *device(1, memory=2 * MIB), "--mem-device", "64M", *fixed)
    for attn in ("cpu", "device"):
        out = bed.fresh()
        done, _ = capped(bed, "rows", out, ["--attn", attn, *fixed], 2, 0, SLUICE_CACHE_DIR=bed.at(f"probes-{attn}"))
        bed.same(f"the size that a refusal names, --attn {attn}", out, "rows", "full", done)
    other_device(tally, bed)


def other_device(tally, bed):
    """A job stays where it began: on the CPU or a device, its rows attending on one of them, by whose matmuls."""
    homes = {"CPU": ["--device", "cpu"], "device": [*device(3), "--attn", "device"], "CPU attends": [*device(3), "--attn", "cpu"],
             "library": [*device(3), "--attn", "device", "--matmul", "cublaslt"]}
    where = ["--batch", "2", "--batches", "2"]
    for n, (name, flags) in enumerate(homes.items()):
        out, limit_s = bed.fresh(), 0.01
        for _ in range(40):
            done = bed.run("alike and long", out, *flags, *where, "--time-limit", f"{limit_s:.4f}s")
            if done.code not in (0, 75) or (done.code == 75 and Journal(out).tokens):
                break
            if done.code == 0:  # over before it was stopped
                out = bed.fresh()
            limit_s *= 0.8 if done.code == 0 else 1.3
        if not tally.check(done.code == 75, f"a job of the {name}: exit {done.code}: {done.error_line()!r}"):
            continue
        before = [read(out + x) for x in (".journal", ".partial", ".job.json")]
        for other, more in homes.items():
            if other != name:
                done = bed.run("alike and long", out, *more, *where)
                one_line(tally, f"a job of the {name}, {other}", done, 8)
                tally.check(any(w in done.error_line() for w in (" device: ", " attn: ", " isa: ", " matmul: ")), done.error_line())
        tally.check(before == [read(out + x) for x in (".journal", ".partial", ".job.json")], f"{name}: a refusal changed it")
        bed.same(f"a job of the {name}", out, "alike and long", "full", bed.run("alike and long", out, *flags, *where))


# ---- bench ops ----------------------------------------------------------------------------------------

def bench_rows(tally, bed, what, *flags):
    """The rows of `bench ops --csv`, by op; each stands for a time, and says what share of its roof that is."""
    done = bed.sluice("bench", "ops", "--csv", "--runs", "1", "-q", "-m", bed.at("llama.cfg"), *flags)
    tally.check(done.code == 0, f"{what}: exit {done.code}: {done.err[-300:]!r}")
    lines, rows = done.out.splitlines(), {}
    head = next(csv.DictReader(lines), {})
    tally.check(head.get("device") == "simulated" and min(float(head[f"roof_{x}"]) for x in ("gflop_s", "memory_gb_s")) > 0
                and "roof_ram_gb_s" not in head, f"{what}: the head says {head}")
    for row in csv.DictReader(lines):
        rows.setdefault(row["op"], []).append(row)
        us, low, high, rate = (float(row[x]) for x in ("us", "us_min", "us_max", "roof"))
        if row["bound"] == "pairs":  # a difference: noise alone may make it negative
            good = low <= us <= high and abs(float(row["step"])) < 1
        elif row["bound"] == "launch":
            good = row["op"] == "launch" and us > 0 and rate == 0
        else:
            good = 0 < low <= us <= high and rate > 0 and row["bound"] in ("flops", "memory")
            good = good and max(float(row["gflop_s"]), float(row["gb_s"])) > 0
            good = good and (0 < float(row["step"]) < 1 if row["op"] == "attend_forced" else row["step"] == "")
        tally.check(good and None not in row and None not in row.values(), f"{what}: {row}")
    return rows


@from_full
def bench(tally, bed, a):
    """`bench ops` on a device: every op, in its memory; less memory makes less of them, or one line."""
    with open(os.path.join(ROOT, "kernels/ops.h"), encoding="utf-8") as f:
        ops = set(re.findall(r"^ +X\((\w+)\)", f.read(), re.M))
    rows = bench_rows(tally, bed, "bench ops", *device(1, 0), "--mem-device", "64M")
    tally.check(set(rows) == ops | {"launch"}, f"bench ops: {sorted(set(rows) ^ ops)} differ")
    shapes = {op: [row["shape"] for row in found] for op, found in rows.items()}
    want = [f"bf16 {n}x{k} m={m}" for n, k in ((64, 64), (32, 64), (96, 64), (64, 96), (VOCAB, 64)) for m in (1, 16, 64, 256, 1024)]
    want += [f"{w} int8 96x64 m={m}" for w in ("q8", "q4") for m in (1, 16, 64, 256, 1024)]
    tally.check(shapes["matmul"] == want, f"bench ops: matmuls are {shapes['matmul']}")
    tally.check({s.split()[0] for s in shapes["decode"]} == {"bf12", "q8", "q4", "q4_1", "q8_0", "f16", "f32"}, f"{shapes['decode']}")
    sizes = ("16 rows x 2048", "64 rows x 640", "64 rows x 2048", "256 rows x 640")
    want = [f"{n} {f} {p}" for f in ("bf16", "q8", "q4", "mixed") for n in sizes for p in ("full", "h2o", "scores")]
    tally.check(shapes["attend_forced"] == want, f"bench ops: {shapes['attend_forced']}")
    rows = bench_rows(tally, bed, "bench ops, 2 MiB", "attend_forced", *device(1, 0, memory=2 * MIB), "--mem-device", "2M")
    few = {int(row["shape"].split()[0]) for row in rows["attend_forced"]}
    tally.check(max(few) < 16, f"bench ops, 2 MiB: rows {few}")
    done = bed.sluice("bench", "ops", "decode", "--json", "--runs", "1", "-q", "-m", bed.at("llama.cfg"), *device(2, 0))
    found = json.loads(done.out)
    tally.check(done.code == 0 and found["rows"] == [] and found["device"] == "simulated",
                f"bench ops, a device that reads what is stored decodes nothing: {found}")
    done = bed.sluice("bench", "copies", "--csv", "--runs", "1", *device(1, 0))
    rows = list(csv.DictReader(done.out.splitlines()))
    tally.check(done.code == 0 and {r["copy"] for r in rows} == {"small alone", "small behind large", "h2d", "d2h", "both"}, f"bench copies: {done}")
    tally.check(all(float(r["us"] or r["gb_s"]) > 0 for r in rows), f"bench copies: {rows}")
    one_line(tally, "bench copies, lost", bed.sluice("bench", "copies", *device(1, 0, 300)), 6, "device")
    one_line(tally, "bench copies on the CPU", bed.sluice("bench", "copies", "--device", "cpu"), 2, "bench copies", "--device cuda")
    for what, code, flags, words in (("no room", 4, [*device(1), "--mem-device", "1M"], ["--mem-device"]),
                                     ("lost", 6, device(1, 0, 3000), ["device"]), ("none", 6, ["--device", bed.at("none.so")], ["none.so"]),
                                     ("launch on the CPU", 2, ["launch", "--device", "cpu"], ["launch"])):
        done = bed.sluice("bench", "ops", "--runs", "1", "--csv", "-m", bed.at("llama.cfg"), *flags)
        one_line(tally, f"bench ops, {what}", done, code, *words)


if __name__ == "__main__":
    tally_ = trial.Tally()
    sys.exit(trial.run_parts(__doc__, (placements, families, kills, signals, faults, damaged_pack, lost, refusals, bench),
                             lambda folder, a: Bed(folder, a.sluice, tally_), tally_))
