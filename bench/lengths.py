#!/usr/bin/env python3
"""Rows that end long before max_tokens, with and without new plans for their lengths: lengths.py [flags]

Chats of grade-school problems (tests/data/prompts.jsonl), up to 2,048 tokens each, under budgets that KV fills. "reasons": a row
has 200 tokens and goes on to the end of its paragraph, most often 200 to 600 tokens. "ends": end-of-text ends a row; the small
model repeats itself in many, and these reach max_tokens. `--replan off` keeps the first plan, which has KV for max_tokens;
`--replan on` plans again with the lengths of ended rows. OUT is the same. A row of bench/results/lengths-CPU.csv is a run; the
last lines are the figures: seconds off / on. Can be stopped and continued like predict.py.
"""
import statistics
import sys

import planned
from planned import Job, SMALL

TURNS = 3
MODES = {"off": ("--replan", "off"), "on": ("--replan", "on")}


class Case:
    def __init__(self, kind, rows, new, ram, prompt="chat"):
        self.name = f"{kind}, {rows} rows, {ram} MiB"
        self.job = Job(self.name, SMALL, "q4", rows, prompt, new, f"--mem-ram {ram}M", kind=kind)

    def line(self):
        return self.job.line()


def listed():
    for kind, rows in (("reasons", 192), ("ends", 64)):
        for ram in (512, 1024):
            yield Case(kind, rows, 2048, ram)


def quick():
    for kind in ("reasons", "ends"):
        yield Case(kind, 12, 256, 160, (4, 20))


def told(rows):
    lines = []
    for case in dict.fromkeys(r["case"] for r in rows):
        s = {mode: [float(r["elapsed_s"]) for r in rows if r["case"] == case and r["flags"] == mode and r["status"] == "ok"] for mode in MODES}
        if all(s.values()):
            off, on = (statistics.median(s[mode]) for mode in MODES)
            lines.append(f"{off / on:6.2f} x  {case}: --replan off {off:.1f} s, on {on:.1f} s")
    return lines


def main():
    a, cases = planned.asked(planned.arguments("lengths", __doc__, TURNS), "lengths", listed, quick)

    def measured(bench):
        for case in cases:
            bench.pack(case.job)
        bench.open(job="rows that end before max_tokens")
        for turn in range(1, a.turns + 1):
            for case in cases:
                for mode, flags in planned.in_turn(turn, MODES.items()):
                    if bench.time_is_up():
                        return True
                    bench.measure(case.job, turn, case.name, mode, flags)
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
