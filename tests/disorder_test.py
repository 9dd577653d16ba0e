#!/usr/bin/env python3
"""Late and out of turn: disorder_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Completions that the fault back end holds back and reorders by seed, under io_uring and under threads, with
weights, KV and hidden states on disk and every look-ahead: the bytes of a run without faults, and not one page,
piece or state that was read again. A read that does not wait for the last write of its extent comes with a
checksum that is not the one of that write; it heals when it is read again, so that OUT alone would not tell.
Standard library only.
"""
import json
import sys

import trial
from trial import ALL_ON_DISK, H2O, LEVEL, NIGHT, difference, job_rows, read

KV = ["--percent", "0", "100", "0", "0", "0", "100"]
HIDDEN = ["--percent", "0", "100", "0", "100", "0", "0"]
FAR = ["--ahead-state", "1000"]  # as far as the order of bytes allows
PLACEMENTS = {
    "KV, far ahead": [*KV, *FAR, "--batch", "6", "--batches", "4"],
    "KV of one batch": [*KV, *FAR, "--batch", "12", "--batches", "1"],
    "hidden states, far ahead": [*HIDDEN, *FAR, "--batch", "4", "--batches", "6"],
    "hidden states, 3 batches": [*HIDDEN, *FAR, "--batch", "8", "--batches", "3"],
    "all": [*ALL_ON_DISK, *FAR, "--batch", "4", "--batches", "5", "--ahead-weights", "7"],
    "all, next step only": [*ALL_ON_DISK, "--ahead-state", "1", "--batch", "6", "--batches", "4"],
}
FAULTS = ("delay=1/2,reorder=1/3", "write.delay=1/1,write.reorder=1/2,read.delay=1/9", "write.reorder=1/1,short=1/9")


def disorder(tally, place, a):
    source, n, n_ios = place.rows("in.jsonl", job_rows(24, a.seed)), 0, {"uring": 0, "threads": 0}
    oss, some = place.write("oss.cfg", trial.OSS.encode()), "all, next step only"
    for policy, model, flags, places in (("h2o", place.model, H2O, PLACEMENTS), ("full", place.model, [], PLACEMENTS),
                                         ("gpt_oss", oss, [], PLACEMENTS if NIGHT else {some: PLACEMENTS[some]})):
        args = ["run", "-m", model, "-i", source, "--progress", "none", "-t", "1", *flags]
        out = place.fresh()
        done = place.sluice(*args, "-o", out)
        want = read(out)
        tally.check(done.code == 0 and want, f"{policy}: exit {done.code}: {done.err[-300:]!r}")
        for name, more in places.items():
            for io in n_ios if LEVEL else [list(n_ios)[(n + n // len(PLACEMENTS)) % 2]]:  # level check: each place by each back end once
                for faults in FAULTS if NIGHT else FAULTS[n % 3:][:1]:
                    n += 1
                    what = f"{policy}, {name}, {io}, seed={n},{faults}"
                    n_ios[io] += one(tally, what, place, [*args, *more, "--io", io], want, f"seed={n},{faults}")
    if n_ios["uring"] == 0:
        tally.skip("io_uring is refused here: disorder on it")
    print(f"{n} runs: {n_ios}", flush=True)


def one(tally, what, place, args, want, faults):
    """One run; 0 when the kernel refuses the back end."""
    out, summary = place.fresh(), place.at("summary.json")
    done = place.sluice(*args, "-o", out, "--summary", summary, SLUICE_FAULT=faults)
    if done.code != 0 and "io_uring" in done.error_line() and "uring" in args:
        return 0
    if not tally.check(done.code == 0, f"{what}: exit {done.code}: {done.err[-300:]!r}"):
        return 1
    got, said = read(out), json.loads(read(summary))
    plan = said["plan"]
    tally.check(got == want, f"{what}: other bytes: {difference(want, got)}")
    tally.check(said["repairs"] == {"pieces": 0, "bad": 0, "rows": 0}, f"{what}: {said['repairs']}")
    io = {"uring": "io_uring", "threads": "threads"}[args[args.index("--io") + 1]]
    tally.check(plan["io"] == io, f"{what}: the back end is {plan['io']}")
    wrote = {lane["name"]: lane["bytes"] for lane in said["lanes"]}["nvme-write"]
    tally.check(wrote > 0, f"{what}: nothing was written, {plan['tiers']}")
    return 1


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (disorder,)))
