#!/usr/bin/env python3
"""A plan that changes while a run goes on: replan_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

SLUICE_REPLAN=N,SEED makes a run change its plan after every N-th pass, for a budget of RAM that is drawn: OUT's bytes are
those of a run that keeps its plan, also when it is killed and resumed, and memory stays below the cap. Then the
reason for a change: a control group whose limit is lowered.
Standard library only.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import nth
import trial
from trial import ALL_ON_DISK, CODE_BYTES, H2O, MIB, ON_DISK, difference, from_full, pick, read, remove_job
from trouble_test import Group

SETTINGS = {
    "full": [],
    "full, on disk": ON_DISK,
    "h2o": H2O,
    "h2o, all on disk": [*H2O, *ALL_ON_DISK],
    "mixed": ["--kv-format", "mixed"],
    "window, q8": ["--kv-policy", "window", "--kv-budget", "48", "--kv-format", "q8"],
    "3 batches": ["--batches", "3"],
    "zstd": ["--weights-codec", "zstd", "--weights-resident", "1"],
    "by threads, no look-ahead": ["--io", "threads", "--ahead-weights", "0", "--ahead-state", "0"],
    "order of completion": ["--order", "completion"],
}
BUDGET = 36
SIM = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")


class Job:
    def __init__(self, tally, place, name, more, command="run"):
        self.place, self.name, self.command, self.more, self.n = place, name, command, more, 0
        self.source = place.rows(f"rows-{command}.jsonl", self.rows())
        self.want, _, _ = self.run(tally, 0, "--replan", "off")

    def rows(self):
        if self.command == "run":
            return trial.job_rows(10, 4, prompt_max=70, tokens=(16, 40))
        r = random.Random(6)
        return [{"context_ids": [r.randrange(3, trial.VOCAB) for _ in range(r.randrange(1, 60))],
                 "continuation_ids": [r.randrange(3, trial.VOCAB) for _ in range(r.randrange(60, 200))]}
                for _ in range(8)]

    def args(self, out):
        return [self.command, "-m", self.place.model, "-i", self.source, "-o", out, "--mem-ram", f"{BUDGET}M", "--progress", "none",
                "--prefill-tokens", "48", "-t", "2", *self.more]

    def run(self, tally, code, *more, **env):
        """OUT, sorted where its order is not fixed, and the summary."""
        self.n += 1
        out, summary = self.place.at(f"{self.command}-{self.n}.jsonl"), self.place.at("summary.json")
        if os.path.exists(summary):
            os.unlink(summary)
        done = self.place.sluice(*self.args(out), "--summary", summary, *more, **env)
        tally.check(done.code == code, f"{self.name}, {env}: exit {done.code}: {done.err[-400:]!r}")
        return self.take(out), json.loads(read(summary)), done

    def take(self, out):
        data = read(out)
        remove_job(out)
        return b"".join(sorted(data.splitlines(True))) if "completion" in self.more else data


def compare(tally, job, want, seed, every, **env):
    got, summary, done = job.run(tally, 0, SLUICE_REPLAN=f"{every},{seed}", **env)
    what = f"{job.name}, every {every} passes, seed {seed}"
    tally.check(got == want, f"{what}: {difference(want, got)}")
    n = summary["replans"]["count"]
    tally.check(n > 0 and done.err.count("plan: pass ") == n, f"{what}: {n} plans, {done.err.count('plan: pass ')} lines")
    tally.check(summary["peak_bytes"]["ram"] <= BUDGET * MIB + CODE_BYTES, f"{what}: {summary['peak_bytes']}")
    return n


def changed(tally, place, a):
    """Every setting, plans changed after every pass and after some."""
    n = 0
    for name, more in list(SETTINGS.items())[:: pick(3, 1)]:
        job = Job(tally, place, name, more)
        for seed in range(a.seed, a.seed + pick(1, 2, 12)):
            n += compare(tally, job, job.want, seed, (13, 4, 9, 1)[seed % 4])
    for name, more in (("score", []), ("score, h2o on disk", [*H2O, *ON_DISK])):
        job = Job(tally, place, name, more, "score")
        for every in (2, 1):
            k = compare(tally, job, job.want, a.seed, every)
            tally.check(k <= len(job.rows()), f"{name}: {k} plans for {len(job.rows())} rows: rows that go through it again and again")
            n += k
    print(f"changed: {n} plans")


def on_device(tally, place, a):
    """The simulated accelerator: what crosses the link, and steps that are queued when the line is left."""
    n = 0
    for seed in range(a.seed, a.seed + pick(1, 2, 8)):
        for name, more in (("device", []), ("attention on the CPU", ["--attn", "cpu"])):
            more = ["--device", f"{SIM}:{seed},20,0,{48 * MIB}", "--mem-device", "12M", *more]
            job = Job(tally, place, name, more)
            n += compare(tally, job, job.want, seed, 2 + seed % 3)
    print(f"on a device: {n} plans")


@from_full
def killed(tally, place, a):
    """A kill or a signal between plans: the same command resumes to the same bytes."""
    job, r, met = Job(tally, place, "killed", ["--batches", "2"]), random.Random(a.seed), 0
    for i in range(pick(2, 5, 20)):
        out = place.at(f"killed-{i}.jsonl")
        p = place.start(job.args(out), SLUICE_REPLAN=f"{1 + i % 3},{i}", SLUICE_SYNC_S="0.01")
        p.wait_for(lambda: os.path.exists(out + ".journal"))
        time.sleep(r.uniform(0, 0.5))
        p.signal(signal.SIGKILL if i % 2 else signal.SIGTERM)
        met += p.end().code in (75, -signal.SIGKILL)
        done = place.sluice(*job.args(out), SLUICE_REPLAN=f"{2 + i % 3},{i}")
        tally.check(done.code == 0, f"killed {i}, resumed: exit {done.code}: {done.err[-300:]!r}")
        got = job.take(out)
        tally.check(got == job.want, f"killed {i}: {difference(job.want, got)}")
    tally.check(met > 0, "no signal met a run")


def limit_lowered(tally, place, a):
    """A control group's limit falls by a third under a run: it gives way between two passes, and is not killed."""
    budget = 64 << 20
    with tempfile.TemporaryDirectory(prefix="sluice-", dir="/var/tmp") as folder, Group(budget + CODE_BYTES) as group:
        if not group:
            tally.skip("control group: " + ("no root" if os.geteuid() else "no memory controller to write to"))
            return
        real = trial.Place(folder, place.binary)
        rows = [dict(row, max_tokens=300) for row in trial.job_rows(30, 4, prompt_max=60)]
        job = Job(tally, real, "limit lowered", [])
        job.source = real.rows("long.jsonl", rows)
        want, _, _ = job.run(tally, 0, "--replan", "off", "--mem-ram", "62M")
        out, summary = real.at("lowered.jsonl"), real.at("summary.json")
        p = real.start([*job.args(out), "--mem-ram", "62M", "--summary", summary], wrapper=group.wrapper())
        p.wait_for(lambda: os.path.exists(out + ".journal"))
        time.sleep(0.3)
        lower = group.lower((budget + CODE_BYTES) * 2 // 3, p)
        done = p.end()
        got, lines = job.take(out), json.loads(read(summary))["replans"]["lines"]
        tally.check(done.code == 0 and got == want, f"limit lowered: exit {done.code}: {difference(want, got)}")
        tally.check(lower and lines and "RAM runs short" in lines[0], f"limit lowered: {lower}, {lines}")
        tally.check(group.killed() == 0, f"limit lowered: {group.killed()} OOM kills")


@from_full
def short_rows(tally, place, a):
    """Rows that stop long before max_tokens: the plan changes to one with less KV for a row and more rows at once."""
    job, r = Job(tally, place, "short rows", []), random.Random(a.seed)
    job.place.model = nth.text_model(place.at("text"), 128, 4)
    job.source = place.rows("short.jsonl", [
        {"prompt_token_ids": [r.randrange(40, 120) for _ in range(r.randrange(4, 30))], "max_tokens": 480, "temperature": 1, "seed": i,
         "logit_bias": {"0": 2}} for i in range(150)])
    few = ["--mem-ram", "26M", "--prefill-tokens", "0"]
    want, stayed, _ = job.run(tally, 0, *few, "--replan", "off")
    got, changed_, _ = job.run(tally, 0, *few)
    lines = changed_["replans"]["lines"]
    tally.check(got == want, f"short rows: {difference(want, got)}")
    tally.check(lines and "rows end with" in lines[0], f"short rows: {lines}")
    tally.check(changed_["passes"] < stayed["passes"] * 0.8, f"short rows: {stayed['passes']} passes, then {changed_['passes']}")
    longer = [{"prompt_token_ids": [50], "max_tokens": 480, "temperature": 1, "seed": i, "logit_bias": {"0": 2 if i < 40 else -9}} for i in range(90)]
    job.source = place.rows("longer.jsonl", longer)
    want, _, _ = job.run(tally, 0, *few, "--replan", "off")
    got, _, done = job.run(tally, 0, *few, "-v", "-v")
    looks = [[int(n) for n in re.findall(r"(\d+) tokens of KV instead of (\d+)", line)[0]] for line in done.err.splitlines() if "to change" in line]
    tally.check(got == want, f"longer rows: {difference(want, got)}")
    tally.check(any(a < b for a, b in looks) and any(a > b for a, b in looks), f"short rows, then long ones: {looks}")


KEPT, STARVED = "x the predicted time: kept", "later predictions do not follow this run"


@from_full
def paced(tally, place, a):
    """What a run took by its prediction scales the next one's, unless others had the cores meanwhile; and none that has a
    machine file. `probe --reset` forgets it, and leaves the packs."""
    job, spinners = Job(tally, place, "paced", []), []
    args = ["--replan", "off", "--mem-ram", "64M", "-v"]
    n, elapsed_s = 50, 0
    while elapsed_s < 3 and n < 10000:  # a short run says nothing; what these take is kept apart
        n = n * 3 // 2
        rows = [dict(row, max_tokens=300) for row in trial.job_rows(n, 4, prompt_max=60)]
        job.source = place.rows("paced.jsonl", rows)
        want, summary, _ = job.run(tally, 0, *args, SLUICE_CACHE_DIR=place.at("apart"))
        elapsed_s = summary["elapsed_s"]
    runs = 0
    for busy in (True, False, False):
        if busy:
            spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
        got, summary, done = job.run(tally, 0, *args)
        while spinners:
            p = spinners.pop()
            p.kill()
            p.wait()
        corrected = summary["plan"]["corrected"]
        tally.check(got == want, f"paced: {difference(want, got)}")
        tally.check(corrected["runs"] == runs and (runs > 0 or corrected["times"] == 1), f"paced, {runs} runs: {corrected}")
        tally.check((KEPT in done.err) != (STARVED in done.err), f"paced: {done.err[-600:]!r}")
        tally.check(not busy or STARVED in done.err, f"paced, beside {2 * os.cpu_count()} busy processes: {done.err[-600:]!r}")
        tally.check(runs == 0 or "earlier runs of this kind took" in done.err, f"paced: {done.err[-600:]!r}")
        runs += KEPT in done.err
    machine = place.at("here.cfg")
    tally.check(place.sluice("probe", "-o", machine, "--offload-dir", place.folder).code == 0, "probe")
    job.source = place.rows("few.jsonl", rows[:2])
    _, summary, _ = job.run(tally, 0, "--machine", machine)
    tally.check(summary["plan"]["corrected"] == {"times": 1, "spread": 0, "runs": 0}, f"paced, --machine: {summary['plan']['corrected']}")
    cache = place.env["SLUICE_CACHE_DIR"]
    foreign = os.path.join(cache, "probe-cpu-0123456789abcdef.cfg")
    with open(foreign, "w", encoding="ascii") as f:
        f.write("by hand\n")
    before = {name for name in os.listdir(cache) if re.fullmatch(r"probe-.*\.cfg", name)}
    done = place.sluice("probe", "--reset", "--json")
    left = {name for name in os.listdir(cache) if re.fullmatch(r"probe-.*\.cfg", name)}
    tally.check(len(before) > 2 and left == {os.path.basename(foreign)}, f"probe --reset: {before} to {left}")
    tally.check(json.loads(done.out)["removed_files"] == len(before) - 1, f"probe --reset: {done.out!r}")
    os.unlink(foreign)


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (changed, on_device, killed, limit_lowered, short_rows, paced)))
