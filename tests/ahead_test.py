#!/usr/bin/env python3
"""Slow text, slow disks: ahead_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Rows are read ahead of the line and commits become durable behind it. Reads of the input and fdatasync take long, each
another time (tests/tools/nth.c): OUT's bytes are the undisturbed ones, in either order of rows, also of jobs that a
signal ended under way, which must end soon. Standard library only.
"""
import json
import os
import random
import signal
import sys
import time

import nth
import trial
from trial import difference, read, remove_job

SLOW_US = 60000
SOON_S = 20.0  # of a busy machine
PAD = "x" * 20000  # a window over the input holds a dozen rows


class Job:
    """Rows of text, some of them bad, with a window over the input for every dozen of them."""

    def __init__(self, tally, place, order):
        self.place, self.order, r = place, order, random.Random(3)
        rows = [{"prompt": "".join(chr(r.randrange(97, 123)) for _ in range(r.randrange(1, 60))), "user": PAD,
                 "max_tokens": r.randrange(2, 9), "seed": i, "logprobs": 1, "ignore_eos": True} for i in range(48)]
        rows[5] = rows[29] = {"prompt": 7}
        self.source, self.model = place.rows("text.jsonl", rows), nth.text_model(place.at("hf"))
        out = place.at("jobs/undisturbed.jsonl")
        done = self.run(out)
        self.want = read(out)
        remove_job(out)
        tally.check(done.code == 3 and self.want.count(b"\n") == 48, f"undisturbed: exit {done.code}: {done.err[-300:]!r}")

    def args(self, out, *more):
        return ["run", "-m", self.model, "-i", self.source, "-o", out, "--mem-ram", "64M", "--progress", "none", "--order",
                self.order, "--batch", "3", "--batches", "2", "--prefill-tokens", "64", "-t", "1", *more]

    def run(self, out, act="", *more, **env):
        return nth.run(self.place, self.args(out, *more), act, **{"SLUICE_SYNC_S": "0.02", **env})


def slow(seed):
    """Something of a job that is late."""
    call, pattern = (("pread", "*/text.jsonl"), ("fdatasync", "*.jsonl.journal"), ("fdatasync", "*.jsonl.partial"))[seed % 3]
    return f"slow,{call},{seed},{SLOW_US},{pattern}"


def late(tally, place, a):
    """The bytes, the order of rows and the exit code are those of a machine where nothing is late."""
    nth.prepare(place)
    waits = set()
    for order in ("input", "completion"):
        job = Job(tally, place, order)
        for seed in range(a.seed, a.seed + 30):
            if seed >= a.seed + 3 and len(waits) == 2 and not trial.NIGHT:
                break  # else nothing was late yet where it matters
            out, summary = place.at(f"jobs/late-{order}-{seed}.jsonl"), place.at("summary.json")
            done = job.run(out, slow(seed), "--summary", summary)
            tally.check(done.code == 3 and read(out) == job.want, f"{order}, {slow(seed)}: exit {done.code}, "
                        f"{done.err[-200:]!r}: {difference(job.want, read(out))}")
            waits |= {key for key in ("text_wait_s", "commit_wait_s") if json.loads(read(summary))[key] > 0}
            remove_job(out)
    tally.check(len(waits) == 2, f"the line stood for {waits} only")


def ended(tally, place, a):
    """A signal while rows are read and commits are under way: 75, soon, and the same bytes afterwards."""
    nth.prepare(place)
    job, met = Job(tally, place, "input"), 0
    for seed in range(a.seed, a.seed + trial.pick(3, 3, 30)):
        out = place.at(f"jobs/ended-{seed}.jsonl")
        p = place.start(job.args(out), **nth.env(slow(seed), SLUICE_SYNC_S="0.02"))
        p.wait_for(lambda: os.path.exists(out + ".partial"))
        time.sleep(0.02 + 0.05 * (seed % 4))
        asked = time.monotonic()
        p.signal(signal.SIGTERM if seed % 2 else signal.SIGINT)
        done = p.end()
        took = time.monotonic() - asked
        met += done.code == 75
        tally.check(done.code in (3, 75) and took < SOON_S, f"{slow(seed)}, a signal: exit {done.code} after {took:.1f} s: "
                    f"{done.err[-200:]!r}")
        done = job.run(out, slow(seed + 1))
        tally.check(done.code == 3 and read(out) == job.want, f"{slow(seed)}, resumed: exit {done.code}, "
                    f"{done.err[-200:]!r}: {difference(job.want, read(out))}")
        remove_job(out)
    tally.check(met > 0, "no signal met a job under way")
    print(f"ended: {met} jobs")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (late, ended)))
