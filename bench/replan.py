#!/usr/bin/env python3
"""What a change of plan under way is worth: replan.py [flags]; a disk or memory that changes half way through a job.

Three runs a turn: one that nobody disturbs; one under which, at half of that time, the disk is held to a quarter of its rate
or the memory of its control group is lowered by a third; and one that is interrupted there and resumed with a plan that knows:
made from a probe of the held disk, or for the smaller memory. A row of bench/results/replan-CPU.csv is such a turn: seconds from
the disturbance to the end, those of the resumed run from its start, their ratio, how often the plan changed, whether OUT is
byte for byte the undisturbed one, OOM kills. Version 1 of control groups lets nobody lower a limit below what is used: there the
soft limit falls first and the hard one as soon as it is taken; version 2 gets memory.high and then memory.max. Needs root.
"""
import os
import signal
import shlex
import statistics
import subprocess
import sys
import time

import planned
from planned import Job
import conditions
import limited

TURNS = 3
MIB = 1 << 20
COLUMNS = ["kind", "case", "turn", "disturbed", "whole_s", "at_s", "after_s", "knowing_s", "ratio", "replans", "why", "same_bytes",
           "oom_kills", "busy", "date", "flags"]


class Case:
    """disk: of its rate, what is left; memory: of the group's MiB."""

    def __init__(self, name, job, disk=0.0, mib=0):
        self.name, self.job, self.disk, self.mib = name, job, disk, mib

    def line(self):
        change = f"disk at {self.disk:g} of its rate" if self.disk else f"{self.mib} MiB lowered by a third"
        return f"{self.job.line()}: {change}"


def listed():
    one = "llama-1b"
    yield Case("1b, 700M: a disk slowed to a quarter", Job("1b slow", one, "bf12", 160, 32, 40, "--mem-ram 700M"), disk=0.25)
    yield Case("1b, 1200M: memory lowered by a third", Job("1b low", one, "bf12", 96, 32, 48, "--mem-ram 1170M"), mib=1200)
    yield Case("1b, 900M, h2o: a disk slowed to a quarter",
               Job("1b h2o slow", one, "bf12", 96, 96, 32, "--mem-ram 900M --kv-policy h2o --kv-budget 0.2"), disk=0.25)


def quick():
    yield Case("disk", Job("disk", planned.SMALL, "bf12", 64, 32, 64, "--mem-ram 48M"), disk=0.25)


class Held:
    """The two control groups of a run."""

    def __init__(self, case):
        self.case = case
        self.disk = limited.disk_of(planned.PLACE)
        self.memory, self.v = limited.memory_group(case.mib) if case.mib else (None, 0)
        self.io, self.io_v = limited.disk_group(1 << 40, planned.PLACE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for place in (self.memory, self.io):
            for _ in range(20):
                try:
                    if place:
                        os.rmdir(place)
                    break
                except OSError:
                    time.sleep(0.1)

    def enter(self):
        for place in (self.memory, self.io):
            if place:
                limited.put(os.path.join(place, "cgroup.procs"), str(os.getpid()))

    def slow(self, rate):
        if self.io_v == 1:
            for way in ("read", "write"):
                limited.put(os.path.join(self.io, f"blkio.throttle.{way}_bps_device"), f"{self.disk} {rate}")
        else:
            limited.put(os.path.join(self.io, "io.max"), f"{self.disk} rbps={rate} wbps={rate}")

    def lower(self, mib, process):
        names = ("memory.soft_limit_in_bytes", "memory.limit_in_bytes") if self.v == 1 else ("memory.high", "memory.max")
        limited.put(os.path.join(self.memory, names[0]), str(mib * MIB))
        while process is not None and process.poll() is None:
            used = "memory.usage_in_bytes" if self.v == 1 else "memory.current"
            with open(os.path.join(self.memory, used), encoding="ascii") as f:
                fits = self.v == 1 or int(f.read()) < mib * MIB
            try:
                if fits:
                    return limited.put(os.path.join(self.memory, names[1]), str(mib * MIB))
            except OSError:
                pass
            time.sleep(0.2)
        return None

    def kills(self):
        if not self.memory:
            return 0
        with open(os.path.join(self.memory, "memory.oom_control" if self.v == 1 else "memory.events"), encoding="ascii") as f:
            return sum(int(line.split()[1]) for line in f if line.startswith("oom_kill "))


def words(bench, job, out, *more):
    keep = [w for w in bench.words(job, out) if w != "-q"]
    at = keep.index("--replan")
    return [*keep[:at], *keep[at + 2:], *more]


def start(held, argv, err):
    return subprocess.Popen(argv, preexec_fn=held.enter, stderr=err)


def disturb(case, held, process, rate):
    if case.disk:
        held.slow(rate)
    else:
        held.lower(case.mib * 2 // 3, process)


def turn_of(bench, case, turn, rate):
    """One row of the CSV."""
    job, work = case.job, bench.work
    outs = [os.path.join(work, f"{name}-{turn}.jsonl") for name in ("whole", "disturbed", "resumed")]
    log = os.path.join(work, "log")
    busy = conditions.busy_share(0.1) if bench.a.quick else conditions.wait_idle(bench.a.busy_max, bench.a.idle_wait,
                                                                               not bench.a.allow_busy)
    with Held(case) as held:
        at = time.monotonic()
        subprocess.run(words(bench, job, outs[0], "--replan", "off"), preexec_fn=held.enter, stderr=subprocess.DEVNULL, check=True)
        whole_s = time.monotonic() - at
    with Held(case) as held, open(log, "w", encoding="utf-8") as err:
        p = start(held, words(bench, job, outs[1]), err)
        time.sleep(whole_s / 2)
        at = time.monotonic()
        disturb(case, held, p, rate)
        code, after_s, kills = p.wait(), time.monotonic() - at, held.kills()
    with open(log, encoding="utf-8") as f:
        told = [line.split("plan: pass ", 1)[1].strip() for line in f if "plan: pass " in line]
    with Held(case) as held:
        p = start(held, words(bench, job, outs[2], "--replan", "off"), subprocess.DEVNULL)
        time.sleep(whole_s / 2)
        p.send_signal(signal.SIGINT)
        stopped = p.wait()
        disturb(case, held, None, rate)
        more = ["--mem-ram", f"{case.mib * 2 // 3 - 30}M"]
        if case.disk:
            more = ["--machine", os.path.join(work, "held.cfg")]
            subprocess.run([bench.a.sluice, "probe", "--offload-dir", work, "-o", more[1]], preexec_fn=held.enter, check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        at = time.monotonic()
        resumed = start(held, words(bench, job, outs[2], "--replan", "off", *more), subprocess.DEVNULL).wait()
        knowing_s = time.monotonic() - at
    data = [open(out, "rb").read() if os.path.exists(out) else b"" for out in outs]
    for out in outs:
        for name in os.listdir(work):
            if name.startswith(os.path.basename(out)):
                os.unlink(os.path.join(work, name))
    return {"kind": "run", "case": case.name, "turn": turn, "disturbed": f"exit {code}/{stopped}/{resumed}", "whole_s": whole_s,
            "at_s": whole_s / 2, "after_s": after_s, "knowing_s": knowing_s, "ratio": after_s / knowing_s, "replans": len(told),
            "why": "; ".join(told)[:400], "same_bytes": "yes" if data[0] and data[0] == data[1] == data[2] else "no",
            "oom_kills": kills, "busy": f"{busy:.3f}", "date": conditions.now(), "flags": shlex.join(job.flags)}


def told(rows):
    lines = []
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case]
        ratios = sorted(float(r["ratio"]) for r in mine)
        lines.append(f"{case}: after the disturbance / knowing of it: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to "
                     f"{ratios[-1]:.2f}), plans changed {[int(r['replans']) for r in mine]}, same bytes "
                     f"{sum(r['same_bytes'] == 'yes' for r in mine)} of {len(mine)}, OOM kills {sum(int(r['oom_kills']) for r in mine)}")
    return lines


def main():
    p = planned.arguments("replan", __doc__, TURNS)
    a, cases = planned.asked(p, "replan", listed, quick)

    def measured(bench):
        for case in cases:
            bench.pack(case.job)
            bench.dry(case.job)
        bench.table = conditions.Kept(a.output, {
            "table": a.table, "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
            "binary_sha256": a.binary, "date": conditions.now(),
            **conditions.machine_lines(a.sluice, a.cpu_name, planned.PLACE), "turns": a.turns}, COLUMNS, a.again, a.any_binary)
        probe = subprocess.run([a.sluice, "probe", "--offload-dir", planned.PLACE], stdout=subprocess.PIPE, text=True, check=True).stdout
        read = float(next(line for line in probe.splitlines() if line.startswith("nvme_read =")).split()[2])
        for turn in range(1, a.turns + 1):
            for case in cases:
                if any(r["case"] == case.name and r["turn"] == str(turn) for r in bench.table.rows):
                    continue
                if bench.time_is_up():
                    return True
                bench.table.add(turn_of(bench, case, turn, int(read * case.disk)))
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
