#!/usr/bin/env python3
"""The planner against policies set by hand: hand.py [flags]; FlexGen's default and published policies, on this engine.

FlexGen's policies (its README and bench_suite.py, H2O's h2o_suite.py) are six shares and a block of batches, for a T4 with 16 GB, 208 GB
of RAM and 1.5 TB of disk. Translated by one rule:
  shares   RAM plays the GPU, the disk plays the CPU and the disk: `20 80 0 100 0 100` is --percent 20 0 0 0 0 0
  budget   --mem-ram / model bytes here = 16 GB / model bytes there, but at least LEAST, the frames of a small
           model; 160M for H2O, whose scores of all rows stay in RAM
  block    rows of a batch and batches as published; if that does not fit, the shares in RAM are lowered by a tenth at a time,
           then the rows of a batch are halved, as a user would do after a failure
  lengths  512 + 32 becomes 64 + 8, or 32 + 8 of many rows, 512 + 1024 becomes 16 + 32: enough passes in seconds
  formats  f16 is bf16, 4 bits are q4 (weights, KV), H2O's budget is 0.2; the automatic plan has the same
The planner chooses the rest (prefill tokens, look-ahead) in both, so only what FlexGen sets by hand is compared. A row of
bench/results/hand-CPU.csv is a run; the last line is the figure: how much faster the automatic plan is, median and
least. Can be stopped and continued like predict.py.
"""
import shlex
import statistics
import sys

import planned
from planned import Job, SMALL

TURNS = 3
AUTO = "auto"
GPU_BYTES = 16e9
THEIRS = {"6.7B": 13.3e9, "30B": 60e9, "175B": 350e9}  # bytes in f16
OURS = {"llama-1b": 2.15e9, SMALL: 269e6}              # in bf16
LEAST = {"llama-1b": 487 << 20, SMALL: 64 << 20}
H2O = "--kv-policy h2o --kv-budget 0.2"


class Case:
    """A policy of FlexGen: shares (wG wC cG cC aG aC), rows of a batch, batches."""

    def __init__(self, name, theirs, model, form, rows, prompt, new, percent, batch, batches, more="", ram=0):
        ram = ram or max(int(OURS[model] * GPU_BYTES / THEIRS[theirs]), LEAST[model])
        self.name, self.batch, self.batches = name, batch, batches
        self.shares = [int(word) for word in percent.split()[::2]]
        self.job = Job(name, model, form, rows, prompt, new, f"--mem-ram {ram >> 20}M {more}")

    def line(self):
        return f"{self.job.line()}: {self.batch} x {self.batches}, RAM shares {self.shares}"


def listed():
    one, s = "llama-1b", SMALL
    yield Case("default, all fits", "6.7B", s, "bf16", 64, 64, 32, "100 0 100 0 100 0", 4, 1, ram=16 << 30)
    yield Case("default, half fits", "6.7B", one, "bf16", 12, 64, 8, "100 0 100 0 100 0", 4, 1, ram=1 << 30)
    yield Case("6.7B", "6.7B", one, "bf16", 16, 64, 8, "100 0 100 0 100 0", 2, 1)
    yield Case("6.7B, 4 bits", "6.7B", one, "q4", 72, 64, 8, "100 0 100 0 100 0", 72, 1, "--kv-format q4")
    yield Case("30B", "30B", one, "bf16", 144, 64, 8, "20 80 0 100 0 100", 48, 3)
    yield Case("30B, small", "30B", s, "bf16", 144, 64, 8, "20 80 0 100 0 100", 48, 3)
    yield Case("30B, KV in 4 bits", "30B", s, "bf16", 512, 64, 8, "0 100 0 100 0 100", 64, 8, "--kv-format q4")
    yield Case("175B", "175B", s, "bf16", 256, 64, 8, "0 50 0 0 0 100", 32, 8)
    yield Case("175B, 4 bits", "175B", s, "q4", 144, 64, 8, "0 100 0 100 0 100", 48, 3, "--kv-format q4")
    yield Case("30B, H2O", "30B", s, "bf16", 768, 32, 8, "20 80 0 100 0 100", 48, 16, H2O, ram=160 << 20)
    yield Case("30B, H2O, 512 + 1024", "30B", s, "bf16", 280, 16, 32, "20 80 0 100 0 100", 40, 7, H2O, ram=160 << 20)


def quick():
    yield Case("default", "6.7B", SMALL, "bf16", 16, 32, 8, "100 0 100 0 100 0", 4, 1, ram=64 << 20)
    yield Case("30B", "30B", SMALL, "bf16", 48, 32, 8, "20 80 0 100 0 100", 16, 3, ram=64 << 20)


def attempts(case):
    """The published policy, then the changes to try if it does not fit."""
    batch = case.batch
    while batch >= 1:
        shares = case.shares
        yield batch, shares
        while any(shares):
            shares = [max(share - 10, 0) for share in shares]
            yield batch, shares
        batch //= 2


def by_hand(bench, case):
    """The flags of the policy that fits, and its difference from the published one."""
    for batch, shares in attempts(case):
        percent = [word for share in shares for word in (str(share), "0")]
        flags = ["--batch", str(batch), "--batches", str(case.batches), "--percent", *percent]
        if bench.frozen(case.job, *flags):
            return flags
    sys.exit(f"hand.py: {case.name}: no plan fits")


def told(rows):
    lines, ratios = [], []
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case and r["status"] == "ok"]
        auto = [float(r["elapsed_s"]) for r in mine if r["flags"] == AUTO]
        hand = [r for r in mine if r["flags"] != AUTO]
        if auto and hand:
            seconds = statistics.median(float(r["elapsed_s"]) for r in hand)
            ratios.append(seconds / statistics.median(auto))
            lines.append(f"{ratios[-1]:6.2f} x  {case}: by hand {seconds:.2f} s, planned {statistics.median(auto):.2f} s: "
                         f"{hand[0]['flags']}")
        else:
            lines.append(f"{case}: nothing to compare: {sorted({r['status'] for r in rows if r['case'] == case})}")
    if ratios:
        lines.append(f"{len(ratios)} policies: the automatic plan is faster by: median {statistics.median(ratios):.2f} x, least "
                     f"{min(ratios):.2f} x")
    return lines


def main():
    p = planned.arguments("hand", __doc__, TURNS)
    a, cases = planned.asked(p, "hand", listed, quick)

    def measured(bench):
        for case in cases:
            bench.pack(case.job)
        hands = {case.name: by_hand(bench, case) for case in cases}
        bench.open(job=f"{len(cases)} policies of FlexGen, scaled (hand.py --help), and the automatic plan")
        for turn in range(1, a.turns + 1):
            for case in cases:
                for flags in planned.in_turn(turn, (None, hands[case.name])):
                    if bench.time_is_up():
                        return True
                    bench.measure(case.job, turn, case.name, AUTO if flags is None else shlex.join(flags), flags or ())
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
