#!/usr/bin/env python3
"""Rows that end long before max_tokens, with and without new plans for their lengths: lengths.py [flags]

Chats of grade-school problems (tests/data/prompts.jsonl) at temperature 0.7, up to 2,048 tokens each, under budgets that KV
fills. `--replan off` keeps the first plan, which has KV for max_tokens; `--replan on` plans again with the lengths of ended rows.
OUT is the same. A row of bench/results/lengths-CPU.csv is a run; the last line is the figure: seconds off / on. Can be
stopped and continued like predict.py.
"""
import statistics
import sys

import planned
from planned import Job, SMALL

TURNS = 3
MODES = {"off": ("--replan", "off"), "on": ("--replan", "on")}


class Case:
    def __init__(self, rows, new, ram, prompt="chat"):
        self.name = f"{rows} rows, {ram} MiB"
        self.job = Job(self.name, SMALL, "q4", rows, prompt, new, f"--mem-ram {ram}M", kind="ends")

    def line(self):
        return self.job.line()


def listed():
    yield Case(192, 2048, 512)
    yield Case(192, 2048, 1024)


def quick():
    yield Case(12, 64, 160, (4, 20))


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
                for mode, flags in MODES.items():
                    if bench.time_is_up():
                        return True
                    bench.measure(case.job, turn, case.name, mode, flags)
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
