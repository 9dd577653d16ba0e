#!/usr/bin/env python3
"""Thirty minutes on a card, in three calls of ten: card.py CALL -o FOLDER [--device cuda[:i]] [--smoke] [--list]

A lent machine takes commands of at most ten minutes and gives back one folder. Call 1: the machine, the first ops, one
streamed job. Call 2: the figures that others published. Call 3: Nsight Compute on seven kernels, cuBLASLt, placements,
compute-sanitizer, SIGKILL. Every item has its own limit, and a call begins no item that could not end in time. After each
item FOLDER has its output and all CSVs, so that a call that is cut loses one item. Run it where ./sluice is: in the tree
(after make check-gpu and gpu-kit built the tests) or in a kit. Ends with 1 when an item failed, 75 when some did not fit.
--smoke: small jobs, to try the script on a simulated device.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CALL_S, MORE = 570, 75
FACTS = """nvidia-smi -q; lscpu; free -m; df -h . /tmp; ulimit -l; cat /sys/kernel/mm/transparent_hugepage/enabled
timeout 12 find / -name 'libcublasLt.so*' 2>/dev/null; which ncu nsys compute-sanitizer; true"""
CHECK, BENCH = "python3 tests/gpu/check_gpu.py", "python3 bench/gpu.py"
# What Nsight Compute looks at: kernel, op of `bench ops`, model.
PROFILED = (("forced_split<1>", "forced_split", "attend_forced", "opt-6.7b"), ("forced_split<4>", "forced_split", "attend_forced", "llama-8b"),
            ("matmul few rows", "matmul_mma_tile", "matmul", "opt-6.7b"), ("matmul q4", "matmul_q_tile", "matmul", "llama-8b"),
            ("prompt", "prompt", "attend_prompt", "llama-8b"), ("head", "head_row", "head_reduce", "llama-8b"),
            ("norm", "norm_row", "norm", "opt-6.7b"))


def file_name(name):
    return re.sub("[^a-zA-Z0-9]+", "-", name).strip("-")


def items(call):
    """(name, seconds at most, shell command); {device} and {out} are filled in."""
    if call == 1:
        return [("facts", 20, FACTS), ("probe", 60, "./sluice probe --device {device} -o {out}/machine.cfg"),
                ("ops right", 90, CHECK + " --only ops --for 85s"),
                ("engine right", 60, CHECK + " --only engine --match llama-mha --for 55s"),
                ("copies", 45, "./sluice bench copies --device {device} --runs 1 --csv -o {out}/copies.csv"),
                ("ops fast", 120, BENCH + " ops --for 115s"),
                ("13B streamed", 80, BENCH + " streamed --engines sluice --match bf16 --for 75s"),
                ("13B FlexGen", 90, BENCH + " streamed --engines flexgen --for 85s")]
    if call == 2:
        return [("6.7B published", 285, BENCH + " published --match 6.7b --for 275s"),
                ("30B published", 195, BENCH + " published --match 30b --for 185s"), ("13B h2o", 85, BENCH + " h2o --for 80s")]
    profile = [(f"ncu {name}", 25, f"ncu --clock-control none --set full --launch-skip 8 --launch-count 1 --kernel-name regex:{kernel} "
                f"-f -o {{out}}/ncu-{file_name(name)} ./sluice bench ops {op} -m configs/{model}.cfg --device {{device}} "
                "--runs 1 -q") for name, kernel, op, model in PROFILED]
    return [*profile, ("cublaslt right", 60, CHECK + " --only cublaslt --for 55s"), ("cublaslt fast", 90, BENCH + " matmul --for 85s"),
            ("placements", 90, CHECK + " --only placement --for 85s"), ("sanitizer", 90, CHECK + " --only sanitizer --for 85s"),
            ("trouble", 45, CHECK + " --only trouble --for 40s")]


def collect(out):
    """Everything that a row was written to, as of now."""
    for path in glob.glob(os.path.join(ROOT, "build/gpu/check.csv*")) + glob.glob(os.path.join(ROOT, "bench/results/gpu_*.csv")) + \
            glob.glob(os.path.join(ROOT, "build/gpu/smoke/*.csv")) + glob.glob(os.path.join(ROOT, "build/gpu/work/*.log")):
        shutil.copy(path, out)


def run(name, limit_s, command, out):
    """Exit status, and seconds. What it printed is in FOLDER/NAME.log as it comes."""
    path = os.path.join(out, file_name(name) + ".log")
    start = time.monotonic()
    with open(path, "w", encoding="utf-8") as log:
        done = subprocess.run(["timeout", "--kill-after", "5", str(limit_s), "sh", "-c", command], cwd=ROOT, stdout=log,
                              stderr=subprocess.STDOUT, check=False)
    return done.returncode, time.monotonic() - start


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("call", type=int, choices=(1, 2, 3))
    p.add_argument("-o", "--output", required=True, metavar="FOLDER")
    p.add_argument("--device", default=os.environ.get("DEVICE", "cuda"))
    p.add_argument("--smoke", action="store_true")
    p.add_argument("--list", action="store_true", help="the items and their limits")
    a = p.parse_args()
    os.makedirs(a.output, exist_ok=True)
    out, stop, failed, left = os.path.abspath(a.output), time.monotonic() + CALL_S, 0, 0
    os.environ["DEVICE"] = a.device
    for name, limit_s, command in items(a.call):
        command = command.format(device=a.device, out=out)
        if a.smoke and command.startswith(BENCH):
            command += " --smoke"
        if a.list:
            print(f"{limit_s:5} s  {name}: {command}")
            continue
        if time.monotonic() + limit_s > stop:
            left += 1
            print(f"card: {name}: not begun, no time left", flush=True)
            continue
        code, seconds = run(name, limit_s, command, out)
        collect(out)
        failed += code not in (0, MORE)
        line = f"card: {name}: exit {code}, {seconds:.0f} s of {limit_s}"
        print(line, flush=True)
        with open(os.path.join(out, "log"), "a", encoding="utf-8") as log:
            log.write(f"{line}: {command}\n")
    return 1 if failed else MORE if left else 0


if __name__ == "__main__":
    sys.exit(main())
