#!/usr/bin/env python3
"""Races, by ThreadSanitizer: tsan.py NAME_test... (`make tsan` builds what it runs in build/tsan)

The unit tests of what has threads, then jobs whose weights (zstd on the disk), KV and hidden states all
stream, on three threads, over both I/O back ends, with completions that come late and out of order, cut
short and resumed; and on the simulated accelerator, rows attending there and on the CPU. OUT must be the
same every time. What it cannot see: the kernel's own writes into memory, which is how io_uring reads; the
pread back end does the same copies where it can be seen.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from trial import ALL_ON_DISK, Place, Tally, difference, job_rows, read  # noqa: E402

BUILD = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build/tsan")
RACE = "WARNING: ThreadSanitizer"
MODEL = """family = llama
dim = 64
layers = 3
heads = 2
kv_heads = 1
head_dim = 32
ffn = 96
vocab = 300
context = 512
"""
OPTIONS = {"TSAN_OPTIONS": "exitcode=66:history_size=3"}
REPORT_LINES = 60


def report(tally, what, text):
    at = text.find(RACE)
    tally.check(at < 0, what + ": " + "\n".join(text[max(at, 0):].splitlines()[:REPORT_LINES]))


def unit(tally, name):
    done = subprocess.run([os.path.join(BUILD, "tests", name)], capture_output=True, text=True, errors="replace",
                          check=False, env={**os.environ, **OPTIONS})
    report(tally, name, done.stdout + done.stderr)
    tally.check(done.returncode == 0, f"{name}: exit {done.returncode}: {done.stderr[-300:]}")
    print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)


def job(tally, place, io, fault, limit, *flags):
    """One job to its end; limit: cut short first. What OUT holds."""
    out = place.fresh()
    args = ["run", "-m", place.write("m.cfg", MODEL.encode()), "-i", place.at("in.jsonl"), "-o", out, *ALL_ON_DISK,
            "--weights-codec", "zstd", "--io", io, "-t", 3, "--isa", "portable", "--progress", "none",
            "--batch", 3, "--batches", 3, "--offload-dir", place.folder, *flags]
    env = {**OPTIONS, **({"SLUICE_FAULT": fault} if fault else {})}
    for more in ([["--time-limit", limit]] if limit else []) + [[]]:
        done = place.sluice(*args, *more, **env)
        what = f"run --io {io}{' ' + fault if fault else ''} {' '.join([*flags, *more])}".strip()
        report(tally, what, done.err)
        tally.check(done.code in ((0, 75) if more else (0,)), f"{what}: exit {done.code}: {done.err[-400:]}")
        print(f"{what}: exit {done.code}", flush=True)
    return read(out)


def main():
    tally = Tally()
    for name in sys.argv[1:]:
        unit(tally, name)
    with tempfile.TemporaryDirectory(prefix="sluice-tsan-") as folder:
        place = Place(folder, os.path.join(BUILD, "sluice"))
        place.rows("in.jsonl", job_rows(12, seed=3, vocab=300, prompt_max=64))
        want = None
        for io in ("threads", "uring"):
            for fault, limit in (("", ""), ("seed=7,delay=1/4,reorder=1/4", "1s")):
                got = job(tally, place, io, fault, limit)
                want = want or got
                tally.check(got == want, f"--io {io} {fault}: {difference(want, got)}")
        for attn, limit in (("cpu", ""), ("device", "2s")):
            sim = os.path.join(BUILD, "tests/sim_device.so") + ":3,30"
            got = job(tally, place, "threads", "", limit, "--device", sim, "--attn", attn)
            tally.check(got == want, f"--attn {attn}: {difference(want, got)}")
    return tally.end()


if __name__ == "__main__":
    sys.exit(main())
