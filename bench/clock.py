#!/usr/bin/env python3
"""Jobs of models larger than this machine, on a device that takes a card's time and computes nothing: clock.py [flags].

The engine, the mover and the planner are the real ones; the device is build/bench/clock_device.so, whose seconds come from
bench/gpu/model.h. Resident weights are present from the start. Every row says modelled: yes. Decode is everything after the last
kernel of a prompt.
  h2d_busy      share of decode in which the copy engine to the device was busy; gap_ms: its longest pause
  look_ahead    share of decode in which a copy to the device was under way while a kernel ran
  host_us       CPU time of the queueing thread per command of decode; includes 2.5 us a kernel for the card's runtime
  error         predicted / played - 1 of the whole job
Writes bench/results/clock.csv. Needs an idle machine and a free core for the device's thread.
"""
import argparse
import glob
import json
import os
import subprocess
import tempfile

import conditions
from conditions import HERE, TREE

PLAIN = "--weights bf16"
# (name, model, card, rows, prompt, new, flags): a job of a few passes, whose layers have their true sizes.
JOBS = [
    ("OPT-30B in 16 GB", "opt-30b", "h100", 24, 512, 16, PLAIN + " --mem-device 16G --mem-ram 100G"),
    ("OPT-30B in 16 GB", "opt-30b", "h100", 144, 512, 8, PLAIN + " --mem-device 16G --mem-ram 190G"),
    ("OPT-30B in 16 GB", "opt-30b", "a10", 24, 512, 8, PLAIN + " --mem-device 16G --mem-ram 100G"),
    ("OPT-30B in 16 GB", "opt-30b", "rtx4090", 24, 512, 8, PLAIN + " --mem-device 16G --mem-ram 100G"),
    ("OPT-30B in 16 GB", "opt-30b", "t4", 8, 128, 8, PLAIN + " --mem-device 14G --mem-ram 100G"),
    ("OPT-6.7B resident", "opt-6.7b-4k", "a100", 24, 512, 32, PLAIN + " --percent 100 0 100 0 100 0 --batches 1"),
    ("OPT-6.7B resident", "opt-6.7b-4k", "h100", 24, 512, 32, PLAIN + " --percent 100 0 100 0 100 0 --batches 1"),
    ("OPT-6.7B resident, H2O", "opt-6.7b-4k", "h100", 24, 512, 32,
     PLAIN + " --percent 100 0 100 0 100 0 --batches 1 --kv-policy h2o --kv-budget 0.2"),
    ("Llama-3-70B in q4", "llama-3-70b", "h100", 16, 256, 16, "--weights q4 --percent 100 0 100 0 100 0 --batches 1"),
    ("Llama-3-70B streamed", "llama-3-70b", "h100", 32, 256, 4, PLAIN + " --mem-device 24G --mem-ram 190G"),
    ("Qwen3-30B-A3B", "qwen3-30b-a3b", "h100", 64, 256, 16, PLAIN + " --percent 100 0 100 0 100 0 --batches 1"),
    ("Qwen3-30B-A3B in q4", "qwen3-30b-a3b", "rtx4090", 32, 256, 8, "--weights q4 --percent 100 0 100 0 100 0 --batches 1"),
]
COLUMNS = ["job", "model", "card", "rows", "prompt", "new", "flags", "modelled", "status", "batch", "batches", "bound", "predicted_bound",
           "predicted_s", "played_s", "error", "tokens_per_s", "passes_s", "h2d_busy", "d2h_busy", "compute_busy", "gap_ms", "look_ahead",
           "commands", "host_us"]


def log_read(path):
    """Intervals by engine, and the host's records: (ns, CPU ns, commands)."""
    found, host = {"h2d": [], "d2h": [], "compute": []}, []
    with open(path, encoding="utf-8") as f:
        for line in f:
            who, start, end, what, n = line.rstrip("\n").split(",")
            if who == "host":
                host.append((int(start), int(end), int(n)))
            else:
                found[who].append((int(start), int(end), what))
    return found, host


def union(intervals, low, high):
    """Intervals of an engine inside a window, joined where they touch."""
    joined = []
    for start, end, *_ in sorted(intervals):
        start, end = max(start, low), min(end, high)
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined


def both(a, b):
    """Nanoseconds in which an interval of a and one of b run."""
    i = j = total = 0
    while i < len(a) and j < len(b):
        total += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def decode_of(found, host):
    """The figures of decode."""
    prompts = [end for _, end, what in found["compute"] if what in ("attend_prompt", "prompt_keep")]
    last = [end for _, end, what in found["compute"] if what == "head_reduce"]
    heads = [t for t in last if t > max(prompts)]
    low, high = min(heads, default=0), max(heads, default=0)  # from the prompts' own tokens to the last ones
    if high <= low:
        return {}
    lanes = {name: union(of, low, high) for name, of in found.items()}
    row = {f"{name}_busy": sum(e - s for s, e in of) / (high - low) for name, of in lanes.items()}
    gaps = [b[0] - a[1] for a, b in zip(lanes["h2d"], lanes["h2d"][1:])]
    row.update(passes_s=(high - low) / 1e9, gap_ms=max(gaps, default=0) / 1e6, look_ahead=both(lanes["h2d"], lanes["compute"]) / (high - low))
    inside = [h for h in host if low <= h[0] <= high]
    if len(inside) > 1 and inside[-1][2] > inside[0][2]:
        commands = inside[-1][2] - inside[0][2]
        row.update(commands=commands, host_us=(inside[-1][1] - inside[0][1]) / commands / 1e3)
    return row


def play(a, job):
    name, model, card, rows, prompt, new, flags = job
    row = {"job": name, "model": model, "card": card, "rows": rows, "prompt": prompt, "new": new, "flags": flags, "modelled": "yes"}
    for runs in glob.glob(os.path.join(a.cache, "probe-pace-*")):  # so that no job corrects the next prediction
        os.unlink(runs)
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        device = os.path.join(os.path.dirname(a.sluice), "clock_device.so") + f":{card},{log}" + (f",{a.sass}" if a.sass else "")
        try:
            done = subprocess.run([a.sluice, "bench", "throughput", "-m", os.path.join("configs", f"{model}.cfg"), "--device", device, "--num-prompts",
                                   str(rows), "--prompt-len", str(prompt), "--gen-len", str(new), "--json", *flags.split()], cwd=TREE,
                                  capture_output=True, text=True, timeout=a.timeout, env={**os.environ, "SLUICE_CACHE_DIR": a.cache})
        except subprocess.TimeoutExpired:
            return {**row, "status": "timeout"}
        if done.returncode:
            return {**row, "status": f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1]}"}
        said = json.loads(done.stdout)
        row.update(status="ok", batch=said["batch"], batches=said["batches"], bound=said["bound"], predicted_bound=said["predicted_bound"],
                   predicted_s=said["predicted_elapsed_time"], played_s=said["elapsed_time"], tokens_per_s=said["output_tokens_per_second"],
                   error=said["predicted_elapsed_time"] / said["elapsed_time"] - 1)
        return {**row, **decode_of(*log_read(log))}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", default=os.path.join(HERE, "results/clock.csv"))
    p.add_argument("--sluice", help="a clock_sluice [the one built here]")
    p.add_argument("--sass", default=os.path.join(HERE, "results/cuda-sass.csv"), help="counts that the model goes by [results/cuda-sass.csv]")
    p.add_argument("--only", default="", help="jobs whose name, model and card hold this word")
    p.add_argument("--timeout", type=float, default=600, help="seconds of one job [600]")
    p.add_argument("--dirty", action="store_true", help="measure a tree that is not committed; the CSV records dirty: yes")
    a = p.parse_args()
    conditions.clean(a, "build/bench/clock_sluice")
    results = conditions.Results(a.output, {
        "table": "clock", "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
        "binary_sha256": a.binary, "date": conditions.now(), "machine": "cards by the clock of bench/gpu/model.h: modelled, nothing is computed"},
        COLUMNS)
    with tempfile.TemporaryDirectory(dir=os.path.join(TREE, "build")) as a.cache:
        for job in JOBS:
            if a.only in " ".join(map(str, job)):
                row = play(a, job)
                results.add(row)
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    results.close()


if __name__ == "__main__":
    main()
