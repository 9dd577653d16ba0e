#!/usr/bin/env python3
"""Our job on sluice: run_sluice.py --job JOB.jsonl [--model smollm2] [--format q4_1] [--batch 64] [-- FLAGS]

The model is the same file that the peers read, packed beside it (by --prepare, or on the first run).
--batch 0 leaves the batch to the plan. FLAGS after -- go to `sluice run`, say `-- --mem-ram 2400M`.
seconds is elapsed_s (step 0 to the last durable row); opening, probing and planning are load_s.
"""
import json
import os
import subprocess
import sys
import tempfile

import models
import peer

WEIGHTS = {"q4_1": "auto", "bf16": "auto", "q8": "q8", "q4": "q4", "auto": "auto"}


def pack_path(binary, a):
    """The pack of the model; made when the file or the binary is newer."""
    source = peer.model_path(a.model, models.FIRST.get(a.model, ""))
    os.makedirs(models.PLACE, exist_ok=True)
    path = os.path.join(models.PLACE, f"{os.path.basename(source)}-{WEIGHTS[a.format]}.pack")
    newest = max(os.path.getmtime(source), os.path.getmtime(binary))
    if not os.path.exists(path) or os.path.getmtime(path) < newest:
        peer.run([binary, "pack", source, "-o", path, "--weights", WEIGHTS[a.format], "-q"])
    return path


def run_measured(command):
    """Runs to success; its own peak resident memory, packing apart."""
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"peers: sluice ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_maxrss / 1024


def main():
    p = peer.limits(peer.arguments(__doc__, list(WEIGHTS), 0))
    p.add_argument("--sluice", default=os.path.join(peer.TREE, "sluice"), help="the binary [./sluice of this tree]")
    p.add_argument("flags", nargs="*", help="after --: flags of `sluice run`")
    a = peer.parse(p)
    if a.format not in WEIGHTS:
        p.error(f"--format: one of {' '.join(WEIGHTS)}")
    pack = pack_path(a.sluice, a)
    if a.prepare:
        print(pack)
        return
    job = peer.Job(a.job)
    with tempfile.TemporaryDirectory() as work:
        out, summary = os.path.join(work, "out.jsonl"), os.path.join(work, "summary.json")
        peak_mib = run_measured(peer.limited(a, [
            a.sluice, "run", "-m", pack, "-i", a.job, "-o", out, "--summary", summary, "--threads", str(a.threads),
            "--batch", str(a.batch), "--progress", "none", *a.flags]))
        with open(summary, encoding="utf-8") as f:
            s = json.load(f)
        with open(out, encoding="utf-8") as f:
            tokens = [json.loads(line)["token_ids"] for line in f]
    version = subprocess.run([a.sluice, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    a.batch = s["plan"]["batch"] * s["plan"]["batches"]
    peer.emit(a, job, tokens, "sluice", version, s["elapsed_s"], peak_mib, load_s=s["startup_s"])


if __name__ == "__main__":
    main()
