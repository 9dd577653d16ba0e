#!/usr/bin/env python3
"""Prompts that no plan can hold: prompt_cap_test.py [SLUICE] [--only PART]

Where memory holds all rows but those with the longest prompts, these become error rows, the others are
as they would be; the cap that the first run chose stands in OUT.job.json and binds the runs that resume.
A model with pseudo-random weights; standard library only.
"""
import json
import os
import re
import signal
import sys

import trial
from trial import Journal, difference, read

CONTEXT, LONGEST = 4096, 3000
MODEL = trial.MODEL.replace("context = 512", f"context = {CONTEXT}")
LENGTHS = (3, 40, LONGEST, 700, 90, 1500, 12, 2200, 300, 1100, 1, 60)
CODE = "prompt_too_long_for_memory"


def rows(n_tokens):
    return [{"custom_id": f"r{i}", "prompt_token_ids": [(i + 7 * k) % trial.VOCAB for k in range(n)],
             "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 2} for i, n in enumerate(LENGTHS)]


class Case:
    """One job, what it gives with room for all, and a budget that is too small for its longest prompts."""

    def __init__(self, place, n_tokens):
        self.place = place
        model = place.write("long.cfg", MODEL.encode())
        self.args = ["run", "-m", model, "-i", place.rows("in.jsonl", rows(n_tokens)), "--progress", "none"]
        self.all = self.ends(place.fresh(), "512M")
        for mib in range(17, 200):
            self.small = f"{mib}M"
            done = self.place.sluice(*self.args, "--dry-run", "--mem-ram", self.small)
            if done.code != 4:
                break
        self.hint = re.search(r"longest prompts do not fit: .*--mem-ram (\d+)M", done.err)
        self.warning = done.err

    def run(self, out, ram, *more):
        return self.place.sluice(*self.args, "-o", out, "--mem-ram", ram, *more)

    def ends(self, out, ram, *more):
        """(exit code, OUT, stderr)"""
        done = self.run(out, ram, *more)
        return done.code, read(out), done.err

    def killed(self, out, ram, *more):
        """Killed once a row is committed: what stands in OUT.job.json then."""
        p = self.place.start([*self.args, "-o", out, "--mem-ram", ram, *more])
        ready = p.wait_for(lambda: read(out + ".journal") and Journal(out).rows > 1)
        p.signal(signal.SIGKILL)
        p.end()
        return ready and json.loads(read(out + ".job.json"))


def cap_of(out):
    """The cap that error rows tell, and which rows they are."""
    lines = [json.loads(x) for x in out.splitlines()]
    bad = [i for i, x in enumerate(lines) if (x.get("error") or {}).get("code") == CODE]
    caps = {int(re.search(r"at most (\d+) can be held", lines[i]["error"]["message"])[1]) for i in bad}
    return (caps.pop() if len(caps) == 1 else None), bad


def longest_rows(tally, place, a):
    """Error rows for the longest prompts, everything else as ever; the hint is right."""
    case = Case(place, 4)
    code, everything, _ = case.all
    tally.check(code == 0, f"room for all: exit {code}")
    if not tally.check(case.hint, f"a plan under {case.small} warns and names --mem-ram: {case.warning[-400:]!r}"):
        return
    code, out, err = case.ends(place.fresh(), case.small)
    cap, bad = cap_of(out)
    tally.check(code == 3 and err.count("longest prompts do not fit") == 1, f"{case.small}: exit {code}, {err[-300:]!r}")
    tally.check(bad and cap is not None and bad == [i for i, n in enumerate(LENGTHS) if n > cap],
                f"error rows are the prompts above the cap: {bad}, cap {cap}")
    tally.check(cap in LENGTHS, f"the cap is the longest prompt that is held: {cap}")
    above = min(n for n in LENGTHS if n > (cap or 0))
    for most, fits in ((cap or 0, True), (above, False)):
        some = place.rows("some.jsonl", [row for row, n in zip(rows(4), LENGTHS) if n <= most])
        done = place.sluice("run", "-m", place.at("long.cfg"), "-i", some, "--dry-run", "--mem-ram", case.small)
        held = done.code == 0 and "longest prompts do not fit" not in done.err
        tally.check(held == fits, f"prompts of up to {most} tokens, with a cap of {cap}: exit {done.code}: {done.err[-200:]!r}")
    for i, (x, y) in enumerate(zip(everything.splitlines(), out.splitlines())):
        tally.check(i in bad or x == y, f"row {i} differs under a cap")
    code, out, _ = case.ends(place.fresh(), case.hint[1] + "M")
    tally.check(code == 0 and out == everything, f"--mem-ram {case.hint[1]}M holds all rows: exit {code}")
    done = case.run(place.fresh(), "2M")
    tally.check(done.code == 4 and "--mem-ram" in done.error_line(), f"no row fits: exit {done.code}: {done.err[-200:]!r}")


def resumed(tally, place, a):
    """A job keeps its cap, and its promise to hold all rows."""
    case = Case(place, 60)
    _, everything, _ = case.all
    code, want, _ = case.ends(place.fresh(), case.small)
    tally.check(code == 3, f"{case.small}: exit {code}")
    cap, _ = cap_of(want)

    out = place.fresh()
    job = case.killed(out, case.small)
    if tally.check(job, "a capped job was killed after its first rows"):
        tally.check(job.get("prompt_cap") == cap, f"OUT.job.json keeps the cap {cap}: {job.get('prompt_cap')}")
        code, got, _ = case.ends(out, "512M")
        tally.check(code == 3 and got == want, f"resumed with more memory: exit {code}, {difference(want, got)}")
        code, got, _ = case.ends(out, "512M", "--retry-errors")
        tally.check(code == 0 and got == everything, f"--retry-errors: exit {code}, {difference(everything, got)}")

    out = place.fresh()
    job = case.killed(out, "512M", "--batch", "4", "--batches", "1")  # or all rows would end at once
    if tally.check(job, "a job without a cap was killed after its first rows"):
        manifest = read(out + ".job.json")
        place.write(os.path.basename(out) + ".job.json", manifest.replace(b'"prompt_cap": 0,', b'"prompt_cap": 1,'))
        code, _, err = case.ends(out, "512M")
        tally.check(code == 8 and "prompt_cap" in err, f"a cap that was edited: exit {code}, {err[-200:]!r}")
        place.write(os.path.basename(out) + ".job.json", manifest)
        tally.check(job.get("prompt_cap") == 0, f"OUT.job.json says that there is no cap: {job.get('prompt_cap')}")
        code, _, err = case.ends(out, case.small)
        tally.check(code == 4, f"resumed with less memory: exit {code}, {err[-300:]!r}")
        code, got, _ = case.ends(out, "512M")
        tally.check(code == 0 and got == everything, f"and with enough: exit {code}, {difference(everything, got)}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [longest_rows, resumed]))
