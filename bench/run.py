#!/usr/bin/env python3
"""Measures one table of bench/README.md: run.py TABLE [flags]. tables.py puts the result into bench/README.md.

  ram        64 chat prompts on a small model in memory, every engine at its searched best
  streamed   a model of 5.9 GB under 2,560 MiB of memory
  h2o        the gain of eviction: rows at once and steady rate, with a limited disk
  formats    weight formats when the disk is the limit, with a limited and a free disk
  budget     speed against the memory of a control group (plot)
  ops        every op under the roofs (plot)
  libraries  matmuls beside oneDNN's and OpenBLAS's
  quality    perplexity of KV policies, of int8 and of weight formats
  start      time to start, time that the CPU is not computing

Engines take turns; a row of the CSV is one run. Needs a committed tree (or --dirty, recorded in the CSV), an idle machine
before every run (or --allow-busy, likewise) and root, to limit disks and memory by control groups. The CSV's head has the
machine, its rates and the commit. The binary is built first. Every row has two clocks: whole_s includes loading
and first inference of every engine, seconds excludes them (see bench/peers/peer.py).
"""
import argparse
import os
import statistics
import sys
import tempfile

import conditions  # first: it knows where the peers' modules are
from conditions import HERE
import cases
import jobs
import models
import peer

TURNS = {"ram": 5, "start": 5, "streamed": 3, "h2o": 3, "formats": 3, "budget": 3, "ops": 5,
         "libraries": 5, "quality": 1}


class Bench:
    """The state of one table: flags, folder of the jobs, CSV, the check before each run."""

    def __init__(self, a, work):
        self.a, self.work = a, work
        self.left_out, self.results = [], None

    def head(self, **more):
        a = self.a
        lines = {"table": a.table, "command": conditions.command_line(), "commit": a.commit,
                 **({"dirty": "yes"} if a.is_dirty else {}), "binary_sha256": a.binary, "date": conditions.now(),
                 **conditions.machine_lines(a.sluice, a.cpu_name, jobs_folder()), "turns": a.turns, **more}
        if self.left_out:
            lines["left_out"] = "; ".join(self.left_out)
        if a.note:
            lines["note"] = a.note
        return lines

    def open(self, columns, output=None, **more):
        self.results = conditions.Results(output or self.a.output, self.head(**more), columns)

    def idle(self):
        """The check before a run: columns of its row."""
        busy = conditions.wait_idle(self.a.busy_max, self.a.idle_wait, not self.a.allow_busy)
        return {"busy": f"{busy:.3f}", "idle": "yes" if busy <= self.a.busy_max else "no", "date": conditions.now()}

    def job(self, prompts, n_new, name="job"):
        return jobs.job_write(os.path.join(self.work, f"{name}.jsonl"), prompts, n_new)

    def present(self, engines):
        """Prepares and returns the engines to measure; large ones only with --with."""
        found = []
        for e in engines:
            if self.a.engines and e.name not in self.a.engines:
                continue
            if not e.installed() and e.name not in self.a.install:
                said = f"{e.name}: not installed (--with {e.name})"
                if said not in self.left_out:
                    self.left_out.append(said)
                    peer.say(f"run.py: left out: {said}")
                continue
            if e.name == "sluice":
                e.flags += ["--sluice", self.a.sluice]
            e.flags += ["--threads", str(self.a.threads)]
            peer.say(f"run.py: preparing {e.label()}")
            e.prepare()
            found.append(e)
        return found

    # ---- runs ----

    def once(self, e, job, limits, best, warm, timeout_s):
        told = self.idle()
        row = e.run(job, limits, best, warm, timeout_s)
        return {**told, **row}

    def measure(self, e, job, limits, turn, best=None):
        """A row: whole_s of a cold run, seconds of a run after a warm-up request. One run gives both
        for sluice, which has no server to warm up, and for a job whose files are dropped from the page cache first:
        a warm-up cannot cache what every pass reads."""
        peer.say(f"run.py: turn {turn + 1} of {self.a.turns}: {e.case} {e.label(best)}")
        row = self.once(e, job, limits, best, False, self.a.timeout)
        if row["status"] == "ok" and e.name != "sluice" and not (limits or {}).get("cold"):
            warm = self.once(e, job, limits, best, True, self.a.timeout)
            row = {**warm, "whole_s": row["whole_s"], "load_s": row["load_s"], "busy": max(row["busy"], warm["busy"]),
                   "idle": min(row["idle"], warm["idle"])} if warm["status"] == "ok" else warm
        return self.finish(e, row, limits, best, kind="run", turn=turn + 1)

    def finish(self, e, row, limits, best, **more):
        limits = limits or {}
        row.update(more, case=e.case, engine=jobs.ENGINES[e.name], limit_mib=limits.get("mib", ""),
                   disk_limit=limits.get("disk", "").partition(":")[0], flags=e.label(best))
        if row["status"] == "ok":
            tokens = row.get("done_tokens", row["new_tokens"])
            row["tok_s"], row["whole_tok_s"] = tokens / row["seconds"], tokens / row["whole_s"]
        self.results.add(row)
        return row

    def search(self, e, job_of, limits):
        """One flag after the other, each value with the best of the others; every try is a row of the CSV. Returns whether any
        try succeeded."""
        rates = {}

        def rate(best):
            key = tuple(best.items())
            if key not in rates:
                peer.say(f"run.py: search: {e.label(best)}")
                row = self.once(e, job_of(e, best, self.a.search_new), limits, best, not (limits or {}).get("cold"),
                                self.a.search_timeout)
                row = self.finish(e, row, limits, best, kind="search", turn=len(rates) + 1)
                rates[key] = row.get("tok_s", 0.0)
            return rates[key]
        for flag, values in e.space.items():
            tried = values[:self.a.search_values] if self.a.search_values else values
            e.best[flag] = max(tried, key=lambda v, flag=flag: rate({**e.best, flag: v}))
        return any(rates.values())

    def in_turns(self, engines, job_of, n_new, limits_of):
        live = [e for e in engines if not any(len(values) > 1 for values in e.space.values())
                or self.search(e, job_of, limits_of(e))]
        rows = []
        for turn in range(self.a.turns):
            for e in list(live):
                rows.append(self.measure(e, job_of(e, e.best, n_new), limits_of(e), turn))
                if rows[-1]["status"] != "ok":
                    live.remove(e)  # it would fail again
        told(engines, rows)
        return rows


def told(engines, rows):
    """Prints the medians."""
    for e in engines:
        mine = [r for r in rows if r["flags"] == e.label() and r["case"] == e.case and r["status"] == "ok"]
        if not mine:
            peer.say(f"{e.case} {e.label()}: no run was good")
            continue
        steady, whole = ([float(r[k]) for r in mine] for k in ("tok_s", "whole_tok_s"))
        peer.say(f"{statistics.median(steady):9.2f} tok/s ({min(steady):.2f} to {max(steady):.2f}), whole job "
                 f"{statistics.median(whole):.2f}: {e.case} {e.label()}")


def jobs_folder():
    os.makedirs(models.PLACE, exist_ok=True)
    return models.PLACE


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("table", choices=list(TURNS))
    p.add_argument("-o", "--output", help="[bench/results/TABLE-CPU.csv]")
    p.add_argument("--cpu-name", default=conditions.cpu_name(), help="name of the CPU [%(default)s]")
    p.add_argument("--turns", type=int, help="runs of each engine; the median counts [5 in RAM, 3 streamed]")
    p.add_argument("--rows", type=int, help="rows of the job [the table's]")
    p.add_argument("--new", type=int, help="tokens generated per row [the table's]")
    p.add_argument("--model", help="model of h2o, formats, ops [configs/llama-1b.cfg], of streamed [llama-3b]")
    p.add_argument("--engines", default="", help="names with commas [all]")
    p.add_argument("--with", dest="install", default="", metavar="ENGINE,...",
                   help=f"install and measure these large ones too ({' '.join(jobs.LARGE)})")
    p.add_argument("--cases", default="", help="h2o, formats: only cases that have this in their name")
    p.add_argument("--search-new", type=int, help="tokens per row while flags are searched [16; streamed 4]")
    p.add_argument("--search-values", type=int, default=0, help="try the first N values of a flag only [all]")
    p.add_argument("--budgets", default=",".join(map(str, cases.BUDGETS)), help="budget: memory budgets in MiB [%(default)s]")
    p.add_argument("--disk-rate", type=float, default=1.3e9, help="h2o, formats: limit of the disk in bytes/s; 0: none [1.3e9]")
    p.add_argument("--time-limit", default="4m", help="h2o: time limit of a run [4m]")
    p.add_argument("--timeout", type=int, default=3600, help="seconds of one run [3600; budget at most 300]")
    p.add_argument("--search-timeout", type=int, default=600, help="seconds of one try [600; budget at most 90]")
    p.add_argument("--windows", type=int, default=0, help="quality: windows [64 and 16]")
    conditions.arguments(p)
    a = p.parse_args()
    a.turns = a.turns or TURNS[a.table]
    a.engines = [e for e in a.engines.split(",") if e]
    a.install = [e for e in a.install.split(",") if e]
    for e in a.engines + a.install:
        if e not in jobs.ENGINES:
            p.error(f"{e}: no such engine ({' '.join(jobs.ENGINES)})")
    a.output = a.output or os.path.join(HERE, "results", f"{a.table}-{conditions.slug(a.cpu_name)}.csv")
    return a


def main():
    a = arguments()
    conditions.clean(a)
    with tempfile.TemporaryDirectory(dir=jobs_folder()) as work:
        bench = Bench(a, work)
        cases.TABLES[a.table](bench)
        if conditions.commit() != a.commit or conditions.file_hash(a.sluice) != a.binary:
            sys.exit(f"run.py: commit or binary changed meanwhile; rows are left in {a.output}.part")
        bench.results.close()
    peer.say(f"run.py: {a.output}; `make tables` puts it into bench/README.md")


if __name__ == "__main__":
    main()
