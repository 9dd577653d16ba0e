#!/usr/bin/env python3
"""How good the planner's choice is: choice.py [flags]; runs the automatic plan and 16 others per case.

A row of bench/results/choice-CPU.csv with kind = plan is a plan of the grid, as the flags that freeze the plan; kind = run is a
run of a grid plan, or of the automatic plan (flags "auto") in the same turn. The grid changes the automatic plan in one of rows of
a batch, batches, resident layers, prefill tokens, place of KV (a smaller and a larger change), then in two at once, drawn by a
seed. Plans that do not fit, or equal another, are left out. The first turn runs the whole grid; the others run the automatic
plan and the --finals fastest: a plan that was slow once does not win by a median, and the best of many single runs is luck.
The last line is the figure: the median and the worst of chosen / best; best is the least median of seconds among the plans
that ran in every turn.

Can be stopped and continued like predict.py: a grid in the CSV is not drawn again.
"""
import itertools
import random
import shlex
import statistics
import sys

import planned
from planned import Job, SMALL

TURNS = 3
PLANS = 16
FINALS = 5
AUTO = "auto"


def listed():
    s, one, three = SMALL, "llama-1b", "llama-3b"
    yield Job("small, 96M, chat", s, "auto", 64, "chat", 64, "--mem-ram 96M")
    yield Job("1b, 640M", one, "bf12", 32, (16, 48), 16, "--mem-ram 640M")
    yield Job("1b, 1G, q8 int8", one, "q8", 48, (16, 48), 16, "--mem-ram 1G --compute int8")
    yield Job("1b, 640M, h2o", one, "bf12", 24, 96, 12, "--mem-ram 640M --kv-policy h2o --kv-budget 0.2")
    yield Job("small, 128M, long prompts", s, "auto", 16, "text", 32, "--mem-ram 128M", chars=4000)
    yield Job("3b, 2560M", three, "bf12", 24, 24, 8, "--mem-ram 2560M")
    yield Job("small, 64M, many rows", s, "auto", 400, (8, 40), 16, "--mem-ram 64M")
    yield Job("1b, 1G, few rows", one, "bf12", 12, 32, 24, "--mem-ram 1G")
    yield Job("small, 256M, ragged", s, "auto", 256, (8, 128), (4, 64), "--mem-ram 256M")


def quick():
    yield Job("run", SMALL, "bf12", 32, (16, 48), 12, "--mem-ram 48M")


# ---- the grid ----

def value(flags, flag, n=1):
    """The values of a flag."""
    at = flags.index(flag) + 1
    return flags[at] if n == 1 else flags[at:at + n]


def changed(auto):
    """Changes of the automatic plan per knob: lists of flags to add to those of the job."""
    batch, batches = int(value(auto, "--batch")), int(value(auto, "--batches"))
    resident, prefill = int(value(auto, "--weights-resident")), int(value(auto, "--prefill-tokens"))
    weights = value(auto, "--percent", 6)[:2]
    rows = [(batch // 2, batches), (batch * 2, batches), (batch // 2, batches * 2), (batch, batches * 2), (batch // 4, batches * 4),
            (batch * batches, 1), (batch, batches // 2)]
    yield [["--batch", str(b), "--batches", str(n)] for b, n in rows if b and n and (b, n) != (batch, batches)]
    yield [["--weights-resident", str(w)] for w in sorted({0, resident // 2, resident - 1, resident + 1, resident + 3})
           if w >= 0 and w != resident]
    yield [["--prefill-tokens", str(t)] for t in (prefill // 8, prefill // 2, prefill * 2, prefill * 8) if t]
    yield [["--percent", *weights, *kv, "0", "100"] for kv in (("0", "0"), ("0", "50"), ("0", "100"))]


def joined(*sets):
    """Joins flags of several knobs: a number of resident layers overrides the share in --percent."""
    return [word for flags in sets for word in flags]


def candidates(auto, seed):
    """The grid in the order of tries: all single changes, knobs in turns, then drawn pairs."""
    knobs = list(changed(auto))
    singles = [f for layer in itertools.zip_longest(*knobs) for f in layer if f]
    pairs = [joined(f, g) for one, other in itertools.combinations(knobs, 2) for f in one for g in other]
    random.Random(seed).shuffle(pairs)
    most = max(len(pairs) // 4, 1)
    return singles[:PLANS * 2 // 3] + pairs[:most] + singles[PLANS * 2 // 3:] + pairs[most:]


def placement(flags):
    """The key that distinguishes plans."""
    return tuple(value(flags, f) for f in ("--batch", "--batches", "--weights-resident", "--weights-decoded", "--prefill-tokens")) + \
        tuple(value(flags, "--percent", 6))


def grid(bench, job, n):
    """Frozen plans of a case, kept in the CSV."""
    there = [shlex.split(r["flags"]) for r in bench.table.rows if r["kind"] == "plan" and r["case"] == job.name]
    if there:
        return there
    auto = bench.frozen(job)
    found = {placement(auto): auto}
    for flags in candidates(auto, job.name):
        if len(found) > n:
            break
        frozen = bench.frozen(job, *flags)
        if frozen:
            found.setdefault(placement(frozen), frozen)
    plans = list(found.values())[1:]
    for flags in plans:
        bench.table.add({"kind": "plan", "case": job.name, "status": "fits", "flags": shlex.join(flags)})
    return plans


# ---- the figure ----

def seconds_of(rows, case):
    """The seconds of all runs of each plan of a case, including the automatic one."""
    found = {}
    for r in rows:
        if r["case"] == case and r["kind"] == "run" and r["status"] == "ok":
            found.setdefault(r["flags"], []).append(float(r["elapsed_s"]))
    return found


def standing(rows, case):
    """Median seconds of the plans that ran in every turn; the seconds of all runs of each plan."""
    runs = seconds_of(rows, case)
    turns = len(runs.get(AUTO, ()))
    return {flags: statistics.median(seconds) for flags, seconds in runs.items() if len(seconds) >= turns}, runs


def finals(bench, job, plans):
    """The fastest of the first turn, in the order of the grid."""
    first = [r for r in bench.table.rows if r["turn"] == "1"]
    found = {flags: seconds[0] for flags, seconds in seconds_of(first, job.name).items() if flags != AUTO}
    best = sorted(found, key=found.get)[:bench.a.finals]
    return [flags for flags in plans if shlex.join(flags) in best]


def told(rows):
    lines, ratios = [], []
    for case in dict.fromkeys(r["case"] for r in rows):
        found, runs = standing(rows, case)
        if AUTO not in found or len(found) < 2:
            lines.append(f"{case}: nothing to compare")
            continue
        best = min(found, key=found.get)
        ratios.append(found[AUTO] / found[best])
        lines.append(f"{ratios[-1]:6.3f}  {case}: chosen {found[AUTO]:.2f} s, best of {len(runs)} plans {found[best]:.2f} s "
                     f"({len(runs[AUTO])} turns), slowest {max(max(seconds) for seconds in runs.values()):.2f} s: {best}")
    if ratios:
        lines.append(f"{len(ratios)} cases: chosen / best: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")
    return lines


def main():
    p = planned.arguments("choice", __doc__, TURNS)
    p.add_argument("--plans", type=int, default=PLANS, help="plans of each case [%(default)s]")
    p.add_argument("--finals", type=int, default=FINALS, help="plans that go on after the first turn [%(default)s]")
    a, cases = planned.asked(p, "choice", listed, quick)

    def measured(bench):
        for job in cases:
            bench.pack(job)
        bench.open(job=f"{len(cases)} cases, the automatic plan and up to {a.plans} others each (choice.py --list)")
        grids = {job.name: grid(bench, job, a.plans) for job in cases}
        for turn in range(1, a.turns + 1):
            for job in cases:
                plans = grids[job.name]
                for flags in planned.in_turn(turn, [None, *(plans if turn == 1 else finals(bench, job, plans))]):
                    if bench.time_is_up():
                        return True
                    bench.measure(job, turn, job.name, AUTO if flags is None else shlex.join(flags), flags or ())
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
