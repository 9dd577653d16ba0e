#!/usr/bin/env python3
"""Runs the fuzzers of build/fuzz and keeps count: run.py [--only NAME] [--runs N] [--seconds S]

Each harness goes on from build/fuzz/work/NAME (its inputs so far, and how many executions they took)
until it has had N executions in all, S seconds more, or a finding. The sums stand in RESULTS.csv.
A finding lies in build/fuzz/found/NAME-*; replay it with build/fuzz/fuzz_NAME FILE. Once fixed it goes
into corpus/NAME, which `make check` replays, and into the `findings` column.
`run.py --minimise [--only NAME]` makes corpus/NAME anew: the fewest inputs that reach what the work
folder reaches, and what stands there already under a name of its own.
"""
import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build/fuzz")
RESULTS = os.path.join(HERE, "RESULTS.csv")
COLUMNS = ["harness", "executions", "seconds", "edges", "findings", "commit"]
MAX_LEN = {"gguf": 10240, "tokenizer": 6144, "json": 4096, "pack": 8192, "codec": 256, "journal": 1024,
           "token_blob": 1024, "encode": 512, "rows": 1024, "machine": 1024, "config": 2048, "template": 512,
           "model_cfg": 1024, "quantized": 4096}
ROUND_S = 120  # sums are written after each
CORPUS_BYTES = 20000  # of one harness; all together stay below 300 KB
OPTIONS = {"ASAN_OPTIONS": "allocator_may_return_null=1:malloc_context_size=2:quarantine_size_mb=4:detect_leaks=1",
           "UBSAN_OPTIONS": "print_stacktrace=1"}


def results_read():
    if not os.path.exists(RESULTS):
        return {}
    with open(RESULTS, encoding="utf-8", newline="") as f:
        return {row["harness"]: row for row in csv.DictReader(f)}


def results_write(rows):
    with open(RESULTS, "w", encoding="utf-8", newline="") as f:
        out = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        out.writeheader()
        out.writerows(rows[name] for name in sorted(rows))


def commit():
    """Of the source; what this script writes itself does not make it another."""
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!" + os.path.relpath(RESULTS, ROOT))
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if dirty else "")


def work_folder(name):
    """The work folder, filled from corpus/ and the seeds when it is new."""
    folder = os.path.join(BUILD, "work", name)
    if not os.path.isdir(folder):
        seeds = os.path.join(BUILD, "seeds")
        if not os.path.isdir(seeds):
            sluice = os.environ.get("SLUICE", os.path.join(ROOT, "sluice"))
            if not os.path.exists(sluice):
                subprocess.run(["make", "--no-print-directory"], cwd=ROOT, check=True)
            subprocess.run([sys.executable, os.path.join(HERE, "seeds.py"), sluice, seeds], check=True)
        os.makedirs(folder)
        for source in (os.path.join(HERE, "corpus", name), os.path.join(seeds, name)):
            for entry in os.listdir(source) if os.path.isdir(source) else []:
                shutil.copy(os.path.join(source, entry), folder)
    return folder


def arguments(name):
    words = os.path.join(BUILD, "seeds", name + ".dict")
    return [os.path.join(BUILD, "fuzz_" + name), "-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=256",
            f"-max_len={MAX_LEN.get(name, 2048)}", "-reload=0", "-print_final_stats=1", "-verbosity=1",
            f"-artifact_prefix={BUILD}/found/{name}-"] + ([f"-dict={words}"] if os.path.exists(words) else [])


def round_run(name, runs, seconds):
    """Executions, seconds, edges and whether it ended without a finding."""
    command = arguments(name) + [f"-runs={runs}", f"-max_total_time={seconds}", work_folder(name)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                          env={**os.environ, **OPTIONS})
    took = time.monotonic() - start
    text = done.stderr
    count = [int(x) for x in re.findall(r"stat::number_of_executed_units: *(\d+)|^#(\d+)\s", text, re.M) for x in x if x]
    edges = [int(x) for x in re.findall(r"cov: (\d+)", text)]
    with open(os.path.join(BUILD, "work", name + ".log"), "w", encoding="utf-8") as f:
        f.write(text)
    if done.returncode:
        lines = text.splitlines()
        start = next((i for i, x in enumerate(lines) if re.search(r"runtime error|sluice: bug|==ERROR|== ERROR", x)), 0)
        print("\n".join(x[:160] for x in lines[start:start + 24]))
    return max(count, default=0), took, max(edges, default=0), done.returncode == 0


def run(name, runs, seconds):
    rows = results_read()
    row = rows.get(name, {"harness": name, "executions": 0, "seconds": 0, "edges": 0, "findings": ""})
    end, fine = time.monotonic() + seconds, True
    while fine and int(row["executions"]) < runs and time.monotonic() < end:
        left = max(1, int(min(ROUND_S, end - time.monotonic())))
        n, took, edges, fine = round_run(name, runs - int(row["executions"]), left)
        row.update(executions=int(row["executions"]) + n, seconds=round(float(row["seconds"]) + took),
                   edges=edges, commit=commit())
        rows = results_read()  # another harness may run beside this one
        rows[name] = row
        results_write(rows)
    print(f"{name}: {row['executions']} executions, {row['seconds']} s, {row['edges']} edges, "
          f"{'ok' if fine else 'FOUND SOMETHING: ' + BUILD + '/found'}", flush=True)
    return fine


def minimise(name):
    target = os.path.join(HERE, "corpus", name)
    os.makedirs(target, exist_ok=True)
    for entry in os.listdir(target):
        if re.fullmatch("[0-9a-f]{40}", entry):
            os.unlink(os.path.join(target, entry))
    made = os.path.join(BUILD, "merge", name)
    shutil.rmtree(made, ignore_errors=True)
    os.makedirs(made)
    subprocess.run(arguments(name) + ["-set_cover_merge=1", made, work_folder(name)], check=True, capture_output=True,
                   env={**os.environ, **OPTIONS})
    total = 0
    for entry in sorted(os.listdir(made), key=lambda e: os.path.getsize(os.path.join(made, e))):
        path = os.path.join(made, entry)
        total += os.path.getsize(path)
        if total <= CORPUS_BYTES:
            shutil.copy(path, target)
    print(f"{name}: {len(os.listdir(target))} inputs, {total} bytes before the cut at {CORPUS_BYTES}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append")
    p.add_argument("--runs", type=int, default=10_000_000)
    p.add_argument("--seconds", type=int, default=10**9)
    p.add_argument("--minimise", action="store_true")
    a = p.parse_args()
    names = sorted(f[5:] for f in os.listdir(BUILD) if re.fullmatch("fuzz_[a-z_]+", f))
    if a.only and not set(a.only) <= set(names):
        p.error(f"there are: {' '.join(names)}")
    os.makedirs(os.path.join(BUILD, "found"), exist_ok=True)
    todo = a.only or names
    if a.minimise:
        for name in todo:
            minimise(name)
        return 0
    fine = [run(name, a.runs, a.seconds) for name in todo]  # all of them, whatever one finds
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
