#!/usr/bin/env python3
"""One job on several processes of this machine, measured: many.py [--sluice PATH] [--turns N] [--quota SHARE] [-o CSV]

workers: 1, 2 and 4 workers of one --work-dir, each with one thread and QUOTA of a core (a control group of its own, which needs root):
    machines that compute at one speed. efficiency: rows per second over those of one worker times the number of workers.
pipeline: `mpirun -np 2 sluice run --pipeline`, two ranks of one thread, beside one process. `in RAM`: one process has all weights and two
    threads. `half in RAM`: each process, alone or a rank, has RAM for about half of the weights, so that one process streams the others
    from the disk. ratio: its output tokens per second over those of one process.
Dummy weights (configs/). Wants sluice-mpi.so (make mpi) and mpirun. Turns alternate; the median counts.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import conditions
from conditions import HERE, TREE

SMALL = "family = llama\ndim = 576\nlayers = 30\nheads = 9\nkv_heads = 3\nhead_dim = 64\nffn = 1536\nvocab = 49152\ntied = 1\ncontext = 2048\n"  # SmolLM2 135M
COLUMNS = ["table", "case", "processes", "turn", "seconds", "output_tokens_per_s", "ratio"]
GROUPS = "/sys/fs/cgroup/cpu" if os.path.isdir("/sys/fs/cgroup/cpu") else "/sys/fs/cgroup"
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none",  # Open MPI 5
       "OMPI_MCA_hwloc_base_binding_policy": "none"}


def rows_file(folder, n, prompt, tokens):
    path = os.path.join(folder, f"rows-{n}-{tokens}.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for i in range(n):
            ids = [3 + (i * 7919 + k * 104729) % 40000 for k in range(prompt)]
            f.write(json.dumps({"custom_id": str(i), "prompt_token_ids": ids, "max_tokens": tokens, "ignore_eos": True}) + "\n")
    return path


class Quota:
    """A control group that gives its processes a share of a core."""

    def __init__(self, name, share):
        self.path = os.path.join(GROUPS, f"sluice-many-{os.getpid()}-{name}")
        os.mkdir(self.path)
        v2 = os.path.exists(os.path.join(self.path, "cpu.max"))
        with open(os.path.join(self.path, "cpu.max" if v2 else "cpu.cfs_quota_us"), "w", encoding="ascii") as f:
            f.write(f"{int(share * 100000)}" + (" 100000" if v2 else ""))

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as f:
            f.write(str(os.getpid()))

    def remove(self):
        os.rmdir(self.path)


def end(processes):
    codes = [p.wait() for p in processes]
    if any(codes):
        raise SystemExit(f"{conditions.ME}: exit codes {codes}: {b''.join(p.stderr.read() for p in processes).decode()[-2000:]}")


def start(argv, **more):
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)


def workers(a, folder, n):
    """Seconds that n workers take for one job."""
    source, out = rows_file(folder, a.rows, 16, 24), os.path.join(folder, f"out-{time.monotonic_ns()}.jsonl")
    model = os.path.join(folder, "small.cfg")
    with open(model, "w", encoding="ascii") as f:
        f.write(SMALL)
    argv = [a.sluice, "run", "-m", model, "-i", source, "-o", out, "--work-dir", out + ".work", "-t", "1", "--mem-ram", "1G",
            "--batch", "16", "--batches", "1", "--progress", "none"]
    groups = [Quota(i, a.quota) for i in range(n)]
    begin = time.monotonic()
    end([start(argv, preexec_fn=g.enter) for g in groups])
    seconds = time.monotonic() - begin
    for g in groups:
        g.remove()
    return seconds, a.rows * 24 / seconds


def pipeline(a, folder, case, ranks):
    """Seconds and output tokens per second of the walk, as rank 0 reports them."""
    source, out = rows_file(folder, 64, 32, 32), os.path.join(folder, f"out-{time.monotonic_ns()}.jsonl")
    summary = out + ".summary"
    argv = [a.sluice, "run", "-m", os.path.join(TREE, "configs/llama-1b.cfg"), "-i", source, "-o", out, "--progress", "none", "--summary", summary,
            "-t", "2" if ranks == 1 and case == "in RAM" else "1", "--mem-ram", "6G" if case == "in RAM" else "1500M"]
    if ranks > 1:
        argv = ["mpirun", "-np", str(ranks), *argv, "--pipeline"]
    end([start(argv, env={**os.environ, **MPI})])
    with open(summary, encoding="utf-8") as f:
        found = json.load(f)
    return found["elapsed_s"], found["output_tokens_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(TREE, "sluice"))
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--quota", type=float, default=0.5)
    p.add_argument("--rows", type=int, default=256)
    p.add_argument("--only", choices=("workers", "pipeline"))
    p.add_argument("-o", "--output", default=os.path.join(HERE, "results", "many.csv"))
    a = p.parse_args()
    head = {"table": "many", "command": conditions.command_line(), "commit": conditions.commit(), **({"dirty": "yes"} if conditions.changes() else {}),
            "date": conditions.now(), "cpu": conditions.cpu_name(), "cores": os.cpu_count(), "quota": a.quota}
    results, folder = conditions.Results(a.output, head, COLUMNS), tempfile.mkdtemp(prefix="sluice-many-", dir=HERE)
    cases = [("workers", "equal", n) for n in (1, 2, 4)] + [("pipeline", c, n) for c in ("in RAM", "half in RAM") for n in (1, 2)]
    speeds = {}
    for turn in range(a.turns):
        for table, case, n in cases:
            if a.only and a.only != table:
                continue
            seconds, speed = workers(a, folder, n) if table == "workers" else pipeline(a, folder, case, n)
            speeds.setdefault((table, case, n), []).append(speed)
            one = statistics.median(speeds[table, case, 1])
            ratio = statistics.median(speeds[table, case, n]) / one / (n if table == "workers" else 1)
            row = dict(zip(COLUMNS, (table, case, n, turn, f"{seconds:.2f}", f"{speed:.2f}", f"{ratio:.3f}")))
            print(*row.values(), flush=True)
            results.add(row)
    results.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
