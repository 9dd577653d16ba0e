#!/usr/bin/env python3
"""Bytes that went bad are never an answer: jobs of many passes while the I/O back end lies about bytes.

    verify_test.py [SLUICE] [--level LEVEL] [--seed N]

Every kind of lie of ring_fault.c, over everything that is read from files while a job runs:
streamed weights, weights stored with zstd, KV pages, hidden states, gathered rows of the embedding. A
run ends with the undisturbed bytes, or with exit 7 or 9 and a job that resumes to them. Each row carries
the log-probabilities of all its tokens. Level night: 24 seeds of each.
"""
import json
import os
import random
import sys

from trial import H2O, NIGHT, OSS, Journal, difference, job_rows, pick, read, remove_job, run_parts

READ_KINDS = ["zero", "swap", "torn", "foreign"]
WRITE_KINDS = ["zero", "swap", "torn", "foreign", "lost", "stale"]
SHAPE = ["--batch", "6", "--batches", "2", "-t", "1"]
# What is read from files in each; weights, KV, hidden states in RAM otherwise.
PLACES = {
    "weights": ["--weights-resident", "0"],
    "zstd": ["--weights-resident", "0", "--weights-codec", "zstd"],
    "kv": ["--percent", "0", "100", "0", "0", "0", "100"],
    "hidden": ["--percent", "0", "100", "0", "100", "0", "0"],
    "rows": ["--weights-resident", "6"],
    "all, h2o": ["--percent", "0", "0", "0", "0", "0", "0", *H2O],
}
WRITTEN = {"kv", "hidden", "all, h2o"}
PASSES = 64


def seen_rows(seed):
    """Every second row begins as the one before it: what is lost of a prompt is lost for those that share it."""
    rows = job_rows(24, seed, prompt_max=100, tokens=(30, 60))
    for one, other in zip(rows[::2], rows[1::2]):
        other["prompt_token_ids"] = one["prompt_token_ids"][:-1] + other["prompt_token_ids"][-40:]
    return rows


class Lies:
    """The undisturbed answer of a place, and runs beside it."""

    def __init__(self, tally, place, name, rows=None, shape=None):
        self.tally, self.place, self.name, self.out = tally, place, name, place.at("out.jsonl")
        self.shape = shape or SHAPE
        self.rows = place.rows("in.jsonl", rows or seen_rows(5))
        self.codes, self.repairs, self.n = {}, {"pieces": 0, "bad": 0, "rows": 0}, 0
        done = self.run("")
        tally.check(done.code == 0, f"{name}: undisturbed: {done.last()}")
        self.want = read(self.out)
        tally.check(rows or self.summary.get("passes", 0) >= PASSES, f"{name}: {self.summary.get('passes')} passes")
        remove_job(self.out)

    def run(self, fault):
        summary = self.place.at("summary.json")
        env = {"SLUICE_FAULT": fault} if fault else {}
        done = self.place.sluice("run", "-m", self.place.model, "-i", self.rows, "-o", self.out, *self.shape,
                                 *PLACES[self.name], "--progress", "none", "--summary", summary, **env)
        self.summary = json.loads(read(summary) or b"{}")
        return done

    def lie(self, fault, resume):
        done = self.run(fault)
        self.n += 1
        self.codes[done.code] = self.codes.get(done.code, 0) + 1
        for key in self.repairs:
            self.repairs[key] += self.summary.get("repairs", {}).get(key, 0)
        what = f"{self.name}: SLUICE_FAULT={fault}"
        if done.code == 0:
            got = read(self.out)
            self.tally.check(got == self.want, f"{what}: exit 0 with other bytes: {difference(self.want, got)}")
        else:
            self.tally.check(done.code in (7, 9) and done.error_line() and not os.path.exists(self.out),
                             f"{what}: exit {done.code}: {done.last()}")
            if resume:
                done = self.run("")
                self.tally.check(done.code == 0 and read(self.out) == self.want,
                                 f"{what}: resumed: exit {done.code}: {difference(self.want, read(self.out))}")
        remove_job(self.out)

    def tell(self, what):
        codes = ", ".join(f"{n} x {code}" for code, n in sorted(self.codes.items()))
        print(f"{self.name}, {what}: {self.n} runs ({codes}); {self.repairs['pieces']} pieces right when read again, "
              f"{self.repairs['bad']} bad, {self.repairs['rows']} rows computed again", flush=True)
        self.tally.check(self.repairs["pieces"] + self.repairs["bad"] > 0, f"{self.name}, {what}: no lie was seen")
        self.codes, self.repairs, self.n = {}, {"pieces": 0, "bad": 0, "rows": 0}, 0


def damaged_pack(tally, place, a):
    """Bits of the pack flip on the disk while a job streams it: exit 7, nothing of what came after is kept; once
    the pack is healed the job resumes to the undisturbed bytes."""
    lies = Lies(tally, place, "weights")
    pack = next(os.path.join(place.at("cache"), x) for x in os.listdir(place.at("cache")) if x.endswith(".pack"))
    size, codes = os.path.getsize(pack), []
    for n in range(24):
        if not NIGHT and n >= pick(1, 3) and 7 in codes:  # a job that is over before its pack is hurt shows nothing
            break
        r = random.Random(1000 * a.seed + n)
        spots = [(r.randrange(size // 2, size), 1 << r.randrange(8)) for _ in range(3)]
        out = place.fresh()
        p = place.start(["run", "-m", place.model, "-i", lies.rows, "-o", out, *SHAPE, *PLACES["weights"], "--progress",
                         "none"], SLUICE_SYNC_S="0.05")  # at level night as well: it is over before the first 5 s
        p.wait_for(lambda: Journal(out).tokens > r.randrange(400))
        flip(pack, spots)
        done = p.end()
        codes.append(done.code)
        flip(pack, spots)
        if done.code == 7:
            done = place.sluice("run", "-m", place.model, "-i", lies.rows, "-o", out, *SHAPE, *PLACES["weights"],
                                "--progress", "none")
        tally.check(done.code == 0 and read(out) == lies.want,
                    f"a damaged pack, {n}: exit {done.code}: {difference(lies.want, read(out))}")
        remove_job(out)
    tally.check(7 in codes, f"a damaged pack: no run ended with 7: {codes}")


def sharers(tally, place, a):
    """A prompt whose hidden states are lost takes those along that share its K and V, also where their own states
    lie in another piece of 1 MiB that came back well: a batch has three of them."""
    rows = job_rows(32, 7)
    for i, row in enumerate(rows):
        r = random.Random(i)
        row.update(prompt_token_ids=[3 + n % 50 for n in range(100)] + [r.randrange(3, 90) for _ in range(200)], max_tokens=2)
    lies = Lies(tally, place, "hidden", rows, ["--batch", "16", "--batches", "2", "--prefill-tokens", "4096", "-t", "1"])
    for kind in WRITE_KINDS:
        for seed in seeds(a, 1):
            lies.lie(f"seed={seed},write.{kind}=1/12", seed % 8 == 0)
    lies.tell("shared prompts, lies of writes")


def experts(tally, place, a):
    """A model whose layers are experts, with sinks, and a window of which the rows see the end."""
    place.model = place.write("oss.cfg", OSS.encode())
    rows = job_rows(12, 5, tokens=(30, 60))
    for name in ("weights", "kv"):
        lies = Lies(tally, place, name, rows)
        for seed in seeds(a, 1):
            lies.lie(f"seed={seed},read.flip=1/100", seed % 8 == 0)
            lies.lie(f"seed={seed},read.swap=1/60", seed % 8 == 0)
            for kind in ("stale", "zero") if name in WRITTEN else ():
                lies.lie(f"seed={seed},write.{kind}=1/30", seed % 8 == 0)
        lies.tell("experts")


def flip(path, spots):
    """Past the page cache's back, as far as a test can: O_DIRECT reads see it at once."""
    with open(path, "r+b") as f:
        for at, bit in spots:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ bit]))
        f.flush()
        os.fsync(f.fileno())


def seeds(a, quick):
    return range(a.seed, a.seed + pick(quick, quick, 24))


def part_of(name):
    def part(tally, place, a):
        # Few runs have to see some lies. Of rows those tell that are read ahead and are bad twice; prompts are read once, and end a run.
        lies = Lies(tally, place, name, job_rows(24, 5, prompt_max=1, tokens=(80, 120)) if name == "rows" else None)
        for rate in ("1/25", "1/8") if name == "rows" else pick(("1/60",), ("1/60", "1/300"), ("1/300", "1/1000")):
            for seed in seeds(a, 1):
                lies.lie(f"seed={seed},read.flip={rate}", seed % 8 == 0)
        lies.tell("flips")
        often = pick(20, 120)  # KV is written once, and level check has one run: at 1/120 some runs tell no lie
        for way, kinds, rates in (("read", READ_KINDS, (300, 40)), ("write", WRITE_KINDS if name in WRITTEN else [], (300, often))):
            for some in pick([kinds] if kinds else [], [[kind] for kind in kinds]):  # level check: all kinds in one run
                for seed in seeds(a, 1):
                    told = ",".join(f"{way}.{kind}=1/{rates[seed % 2] * len(some)}" for kind in some)
                    lies.lie(f"seed={seed},{told}", seed % 8 == 0)
                if NIGHT:
                    lies.tell(f"{way}.{some[0]}")
            if kinds and not NIGHT:
                lies.tell(f"lies of {way}s")
    part.__name__ = name.replace(", ", "_")
    return part


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [*(part_of(name) for name in PLACES), sharers, experts, damaged_pack]))
