#!/usr/bin/env python3
"""The errors of predictions: predict.py [flags]; many small jobs of every kind, predicted and run.

A row of bench/results/predict-CPU.csv is a run: seconds and passes, predicted before step 0 and measured,
bytes and busy seconds of each lane likewise, their ratio, and the cause of errors above 12 %. Jobs
take turns, so that a drift of the machine affects all of them; the figure of a job is its median. The last line is the
figure of the planner: median and 90th percentile of |predicted / taken - 1|, and the worst job with its cause.

Needs a committed tree and an idle machine; packs and the planner's measurements are made before the
first run. The times of one turn scale the predictions of the next, as for any user (column corrected).
Can be stopped at any time: the same command continues, and measures nothing twice. The first 15 jobs of the list cover
the space (--first 15). All of them take less than 25 minutes a turn on 2 CPUs, and packs of 40 GB under build/planned, made once in
minutes. --quick: seconds, any machine, no figures.
"""
import os
import statistics
import sys

import planned
from planned import Job, SMALL

TURNS = 3


def listed():
    """Every model, format, budget, policy and kind of job; the first 15 have one of each."""
    s, one, three, seven = SMALL, "llama-1b", "llama-3b", "opt-6.7b"
    yield Job("small, all in RAM, chat", s, "auto", 64, "chat", 256, "--mem-ram 16G")
    yield Job("1b, 1G", one, "bf12", 64, (16, 48), 24, "--mem-ram 1G")
    yield Job("3b, 2560M", three, "bf12", 64, 32, 8, "--mem-ram 2560M")
    yield Job("small, 64M, chat", s, "auto", 64, "chat", 64, "--mem-ram 64M")
    yield Job("1b, 640M, h2o", one, "bf12", 32, 96, 24, "--mem-ram 640M --kv-policy h2o --kv-budget 0.2")
    yield Job("1b, 1G, q8 int8", one, "q8", 64, (16, 48), 24, "--mem-ram 1G --compute int8")
    yield Job("6.7b, 4G", seven, "bf12", 24, 32, 6, "--mem-ram 4G")
    yield Job("small, 128M, 2,000 rows", s, "auto", 2000, (4, 20), 8, "--mem-ram 128M")
    yield Job("1b, 1G, resumed", one, "bf12", 64, 32, 24, "--mem-ram 1G", kind="resume")
    yield Job("small, 256M, long prompts", s, "auto", 16, "text", 16, "--mem-ram 256M", chars=6000)
    yield Job("1b, 640M, KV q8 on NVMe", one, "bf12", 48, 64, 16,
              "--mem-ram 640M --percent 0 12 0 0 0 100 --kv-format q8")
    yield Job("small, 192M, score", s, "auto", 256, (32, 96), 64, "--mem-ram 192M", kind="score")
    yield Job("1b, 1200M, shared prefix", one, "bf12", 72, 16, 8, "--mem-ram 1200M", shared=192)
    yield Job("1b, 640M, streaming", one, "bf12", 32, 96, 24, "--mem-ram 640M --kv-policy streaming --kv-budget 64")
    yield Job("3b, 1600M, q8 int8", three, "q8", 48, 32, 8, "--mem-ram 1600M --compute int8")

    yield Job("small, 96M, 10 rows", s, "auto", 10, (16, 64), 256, "--mem-ram 96M")
    yield Job("small, 128M, h2o, long prompts", s, "auto", 16, "text", 64, "--mem-ram 128M --kv-policy h2o --kv-budget 0.2", chars=4000)
    yield Job("small, 96M, KV mixed, chat", s, "auto", 64, "chat", 128, "--mem-ram 96M --kv-format mixed")
    yield Job("small, 128M, streaming", s, "auto", 24, "text", 64, "--mem-ram 128M --kv-policy streaming --kv-budget 128", chars=3000)
    yield Job("small, 96M, h2o-mean, KV q8", s, "auto", 64, "chat", 160,
              "--mem-ram 96M --kv-policy h2o-mean --kv-budget 64 --kv-format q8")
    yield Job("small, 96M, resumed, chat", s, "auto", 64, "chat", 128, "--mem-ram 96M", kind="resume")
    yield Job("small, 512M, score, long", s, "auto", 32, (400, 800), 200, "--mem-ram 512M", kind="score")
    yield Job("small, 256M, shared prefix", s, "auto", 200, (8, 24), 16, "--mem-ram 256M", shared=256)
    yield Job("small, in RAM, 1,000 ragged rows", s, "auto", 1000, (8, 64), (1, 32), "--mem-ram 16G")
    yield Job("small, 192M, f32", s, "auto", 128, (32, 96), 32, "--mem-ram 192M --compute f32")
    yield Job("small, 160M, q8 int8, chat", s, "q8", 64, "chat", 160, "--mem-ram 160M --compute int8")
    yield Job("1b, 512M, 10 rows", one, "bf12", 10, 16, 24, "--mem-ram 512M")
    yield Job("1b, 2G, nothing resident", one, "bf12", 16, 16, 16, "--mem-ram 2G --weights-resident 0")
    yield Job("1b, 8G", one, "bf12", 64, (16, 48), 24, "--mem-ram 8G")
    yield Job("1b, 512M, q4", one, "q4", 64, 32, 16, "--mem-ram 512M")
    yield Job("1b, 1500M, q8", one, "q8", 48, 32, 24, "--mem-ram 1500M")
    yield Job("1b, 512M, KV q4", one, "bf12", 48, 48, 16, "--mem-ram 512M --kv-format q4")
    yield Job("1b, 1G, long prompts", one, "bf12", 10, 384, 8, "--mem-ram 1G")
    yield Job("1b, 768M, 300 rows", one, "bf12", 300, (8, 16), 4, "--mem-ram 768M")
    yield Job("1b, 640M, zstd", one, "bf12", 32, 32, 16, "--mem-ram 640M --weights-codec zstd")
    yield Job("1b, 1G, io threads", one, "bf12", 64, (16, 48), 24, "--mem-ram 1G --io threads")
    yield Job("1b, 1G, score", one, "bf12", 64, 32, 32, "--mem-ram 1G", kind="score")
    yield Job("3b, 16G", three, "bf12", 32, 32, 8, "--mem-ram 16G")
    yield Job("3b, 1500M, h2o", three, "bf12", 24, 64, 8, "--mem-ram 1500M --kv-policy h2o --kv-budget 32")
    yield Job("3b, 2G, q4", three, "q4", 48, 24, 8, "--mem-ram 2G")
    yield Job("3b, 1800M, streaming, KV mixed", three, "bf12", 32, 48, 8,
              "--mem-ram 1800M --kv-policy streaming --kv-budget 48 --kv-format mixed")
    yield Job("6.7b, 6G, q8 int8", seven, "q8", 24, 32, 6, "--mem-ram 6G --compute int8")
    yield Job("6.7b, 16G, q4", seven, "q4", 24, 16, 8, "--mem-ram 16G")
    yield Job("6.7b, 2G", seven, "bf12", 16, 16, 4, "--mem-ram 2G")


def quick():
    yield Job("run", SMALL, "bf12", 64, (16, 48), 24, "--mem-ram 48M")
    yield Job("h2o", SMALL, "q8", 32, 96, 24, "--mem-ram 48M --kv-policy h2o --kv-budget 0.2 --compute int8")
    yield Job("score", SMALL, "bf12", 32, 32, 16, "--mem-ram 48M", kind="score")
    yield Job("shared prefix", SMALL, "bf12", 32, 16, 8, "--mem-ram 48M", shared=64)
    yield Job("resumed", SMALL, "bf12", 256, 32, 64, "--mem-ram 48M", kind="resume")


def prepare(bench, cases):
    """Packs, encoded weights, the planner's measurements, jobs that were stopped half way; nothing here is timed."""
    cases = [job for job in cases if not all(bench.is_done(case=job.name, turn=t + 1) for t in range(bench.a.turns))]
    for job in cases:
        bench.pack(job)
    for job in cases:
        encoded = bench.pack(job) + ".zst"
        if "zstd" in job.flags and not os.path.exists(encoded):
            bench.once(job, ["--limit", "1"])
        code, said = bench.dry(job)
        if code:
            sys.exit(f"predict.py: {job.name}: exit {code}: {said.strip().splitlines()[-1:]}")
        if job.kind == "resume":
            bench.half(job)


def errors(rows):
    """Per case |median ratio - 1|, its name, that ratio, the run at the median (of two the worse one); the worst first."""
    found = []
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = sorted((r for r in rows if r["case"] == case and r["status"] == "ok"), key=lambda r: float(r["ratio"]))
        if mine:
            ratio = statistics.median(float(r["ratio"]) for r in mine)
            run = max(mine[(len(mine) - 1) // 2], mine[len(mine) // 2], key=lambda r: abs(float(r["ratio"]) - 1))
            found.append((abs(ratio - 1), case, ratio, run))
    return sorted(found, key=lambda f: -f[0])


def percentile(values, share):
    """The least value that is not exceeded by `share` of all."""
    values = sorted(values)
    return values[max(0, -int(-share * len(values) // 1) - 1)]


def by_turn(rows):
    """The error by turn: each turn corrects the predictions of the next one. And how well a turn predicts the next: the noise."""
    turns, took = [], {(r["turn"], r["case"]): float(r["elapsed_s"]) for r in rows if r["status"] == "ok"}
    before = {(str(int(turn) + 1), case): s for (turn, case), s in took.items()}
    noise = [abs(before[key] / s - 1) for key, s in took.items() if key in before]
    for turn in sorted({r["turn"] for r in rows}, key=int):
        off = [abs(float(r["ratio"]) - 1) for r in rows if r["turn"] == turn and r["status"] == "ok"]
        if off:
            turns.append(f"{100 * statistics.median(off):.1f} and {100 * percentile(off, 0.9):.1f} %")
    if not noise:
        return ""
    return (f"; of each turn {', '.join(turns)}; seconds of the turn before, as a prediction: {100 * statistics.median(noise):.1f} and "
            f"{100 * percentile(noise, 0.9):.1f} %")


def told(rows):
    found = errors(rows)
    failed = sorted({r["case"] for r in rows if r["status"] != "ok"})
    lines = [f"{100 * off:5.1f} %  {case}: predicted / taken {ratio:.3f}: {r['cause']}"
             for off, case, ratio, r in found if r["cause"]]
    if failed:
        lines.append(f"runs that failed: {', '.join(failed)}")
    if found:
        off = [f[0] for f in found]
        lines.append(f"{len(found)} jobs: |predicted / taken - 1|: median {100 * statistics.median(off):.1f} %, 90th percentile "
                     f"{100 * percentile(off, 0.9):.1f} %, worst {100 * off[0]:.1f} % ({found[0][1]}){by_turn(rows)}")
    return lines


def main():
    p = planned.arguments("predict", __doc__, TURNS)
    a, cases = planned.asked(p, "predict", listed, quick)

    def measured(bench):
        bench.open(job=f"{len(cases)} jobs of 10 to 2,000 rows (predict.py --list)")
        prepare(bench, cases)
        for turn in range(1, a.turns + 1):
            for job in cases:
                if bench.time_is_up():
                    return True
                bench.measure(job, turn, job.name, " ".join(job.flags))
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
