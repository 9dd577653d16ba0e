#!/usr/bin/env python3
"""tests/gpu/check_gpu.py, which nobody sees at work where there is no GPU: on the simulated accelerator.

What it says, what it writes, that it goes on where it stopped, and that it meets a device that computes something
else. Wants $BUILD/tests/sim_device.so (of the target of tests/tools).
"""
import csv
import os
import subprocess
import sys

import trial
from trial import HERE, from_full, read

SCRIPT = os.path.join(HERE, "gpu/check_gpu.py")
LIBRARY = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
PICK = ["--only", "engine", "--match", "KV q8"]  # four tests on dummy weights


def run(p, *args, binary=None, device=LIBRARY + ":1,20"):
    """The script to its end: .code, .out and the rows of its CSV."""
    done = trial.Done()
    ended = subprocess.run([sys.executable, SCRIPT, "--sluice", binary or p.binary, "--device", device, "--work", p.at("work"),
                            "--models", p.at("none"), "-o", p.at("check.csv"), *args], capture_output=True, text=True,
                           cwd=p.folder)
    done.code, done.out = ended.returncode, ended.stdout + ended.stderr
    text = read(p.at("check.csv")).decode()
    done.rows = list(csv.DictReader(x for x in text.splitlines() if not x.startswith("#")))
    return done


def no_device(t, p, _):
    for device in (LIBRARY + ":none", "cuda:0"):
        if device == "cuda:0" and os.path.exists("/dev/nvidiactl"):
            continue
        done = run(p, device=device)
        t.check(done.code == 6 and "no GPU here, nothing was checked: sluice: error" in done.out,
                f"{device}: exit {done.code}: {done.out[-300:]}")
        t.check(not done.rows, f"{device}: {done.rows}")


@from_full
def goes_on(t, p, _):
    first = run(p, *PICK, "--for", "21s")  # time for one test at most
    t.check(first.code == 75 and "to do: the same command resumes" in first.out, f"--for: exit {first.code}: {first.out[-300:]}")
    done = run(p, *PICK)
    t.check(done.code == 0 and "4 passed, 0 failed, 0 skipped" in done.out, f"exit {done.code}: {done.out[-300:]}")
    t.check([r["result"] for r in done.rows] == ["passed"] * 4 and all(r["detail"] for r in done.rows), f"{done.rows}")
    again = run(p, *PICK)
    t.check(again.code == 0 and again.rows == done.rows and "  engine: " not in again.out, f"not done again: {again.out}")
    again = run(p, *PICK, "--again")
    t.check(again.code == 0 and again.out.count("  engine: ") == 4, f"--again: {again.out}")
    torn = read(p.at("check.csv")).decode().splitlines(keepends=True)[:-1]
    p.write("check.csv", "".join(torn).encode())  # killed before its last row
    again = run(p, *PICK)
    t.check(again.code == 0 and again.out.count("  engine: ") == 1, f"torn: {again.out}")
    other = run(p, *PICK, "--list", device=LIBRARY + ":2,20")
    t.check(other.code == 0 and other.out.count("engine: ") == 4, f"--list: {other.out}")


def wrapper(p, name, edit):
    """A binary that does something else on a device."""
    path = p.write(name, f"#!/bin/sh\ncase \"$*\" in *'--device cpu'*) ;; *) {edit} ;; esac\nexec '{p.binary}' \"$@\"\n".encode())
    os.chmod(path, 0o755)
    return path


@from_full
def wrong_device(t, p, _):
    other = wrapper(p, "other", 'set -- "$@" --kv-format q4')
    done = run(p, *PICK, binary=other)
    t.check(done.code == 1 and any(r["result"] == "failed" for r in done.rows), f"other numbers: {done.code}: {done.out}")
    here = wrapper(p, "here", 'set -- "$@" --device cpu')
    done = run(p, *PICK, binary=here)
    t.check(done.code == 1 and all("ran on cpu" in r["detail"] or "twice" in r["detail"] for r in done.rows),
            f"the CPU in its place: {done.code}: {done.out}")
    done = run(p, "--only", "engine", "--match", "SmolLM2")
    t.check(done.code == 1 and {r["result"] for r in done.rows} == {"skipped"}, f"all skipped is no pass: {done.code} {done.out}")


@from_full
def peers_models(t, p, _):
    """The dummy checkpoints that peers on a GPU read, read by sluice; --check of each script says what is missing."""
    sys.path.insert(0, os.path.join(HERE, "../bench/peers"))
    import card
    import models
    card.CHUNK, card.SHARD_BYTES, models.PLACE = 1 << 16, 1 << 20, p.folder
    shapes = {"llama": {"family": "llama", "dim": "128", "layers": "3", "heads": "4", "kv_heads": "2", "ffn": "256", "vocab": "3000",
                        "context": "256", "tied": "0"},
              "opt": {"family": "opt", "dim": "128", "layers": "3", "heads": "4", "ffn": "256", "vocab": "3000", "context": "256"}}
    models.config_read = lambda name: shapes[name]
    source = p.rows("in.jsonl", [{"prompt_token_ids": [7, 8, 9], "max_tokens": 4, "temperature": 0, "ignore_eos": True}])
    for name in shapes:
        place = card.folder(name)
        t.check(len([x for x in os.listdir(place) if x.endswith(".safetensors")]) > 1, f"{name}: in shards")
        p.expect(t, f"a run of {name}", 0, "run", "-m", place, "-i", source, "-o", p.fresh(), "-q")
    for script in ("flexgen", "deepspeed", "vllm", "accelerate_gpu"):
        done = subprocess.run([sys.executable, os.path.join(HERE, f"../bench/peers/run_{script}.py"), "--check"],
                              capture_output=True, text=True)
        t.check(done.returncode in (0, card.LACKS) and any(x in done.stdout for x in (": missing: ", ": all there: ", ": not fetched: ")),
                f"{script} --check: {done.returncode} {done.stdout + done.stderr}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (no_device, goes_on, wrong_device, peers_models)))
