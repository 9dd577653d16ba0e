#!/usr/bin/env python3
"""Our job on sluice: run_sluice.py --job JOB.jsonl [--model smollm2] [--format q4_1] [--batch 64] [-- FLAGS]

The model is the same file that the peers read, packed beside it (by --prepare, or on the first run); of a model
config the weights are dummies, in --format. --batch 0 leaves the batch to the plan. FLAGS after -- go to
`sluice run`, say `-- --mem-ram 2400M`. whole_s is the process from start to end; seconds is elapsed_s (step 0
to the last durable row), after opening, planning and the page faults of the arena: --warm changes
nothing. A run ended by `-- --time-limit D` is a good row with its tokens so far.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import models
import peer

WEIGHTS = {"q4_1": "auto", "bf16": "bf16", "bf12": "bf12", "q8": "q8", "q4": "q4", "auto": "auto"}
INTERRUPTED = 75


def pack_path(binary, a):
    """The pack of the model; made if the file or the binary is newer. For a model config: the config."""
    if a.model.endswith(".cfg"):
        return a.model
    source = peer.model_path(a.model, models.FIRST.get(a.model, ""))
    os.makedirs(models.PLACE, exist_ok=True)
    path = os.path.join(models.PLACE, f"{os.path.basename(source)}-{WEIGHTS[a.format]}.pack")
    newest = max(os.path.getmtime(source), os.path.getmtime(binary))
    if not os.path.exists(path) or os.path.getmtime(path) < newest:
        peer.run([binary, "pack", source, "-o", path, "--weights", WEIGHTS[a.format], "-q"])
    return path


def run_measured(command, good):
    """Runs sluice: seconds from start to end, and its peak resident memory, without packing."""
    begin = time.monotonic()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, used = os.wait4(pid, 0)
    seconds, code = time.monotonic() - begin, os.waitstatus_to_exitcode(status)
    if code not in good:
        peer.say(f"peers: sluice ended with {code}")
        sys.exit(128 - code if code < 0 else code)
    return seconds, used.ru_maxrss / 1024


def lane(s, name):
    return next((x for x in s["lanes"] if x["name"] == name), {})


def more_of(s):
    """Figures from sluice's summary in addition to the clocks."""
    read, cpu = lane(s, "nvme-read"), lane(s, "cpu")
    busy = {f"{name}_busy": lane(s, name)["busy_share"] for name in ("h2d", "d2h", "gpu") if "busy_share" in lane(s, name)}
    return {
        "shared_prompt_tokens": s["shared_prompt_tokens"], "passes": s["passes"],
        "steady_tok_s": s["steady_output_tokens_per_s"], "done_tokens": s["output_tokens"],
        "predicted_s": s["predicted_elapsed_s"], "roof_fraction": s["roofline_fraction"],
        "roof_rates": s["roofline_rates"], "bound": s["bound"], "disk_gb_s": read.get("bytes_per_s", 0) / 1e9,
        "read_gb": read.get("bytes", 0) / 1e9, "read_busy": read.get("busy_share", 0),
        "cpu_busy": cpu.get("busy_share", 0), "isa": s["machine"]["isa"],
        "matmul_gflops": s["machine"]["matmul_flops"] / 1e9, "device": s["device"],
        "h2d_gb_s": lane(s, "h2d").get("bytes_per_s", 0) / 1e9, "peak_gpu_mib": s["peak_bytes"]["device"] >> 20, **busy}


def main():
    p = peer.limits(peer.arguments(__doc__, list(WEIGHTS), 0))
    p.add_argument("--sluice", default=os.path.join(peer.TREE, "sluice"), help="the binary [./sluice of this tree]")
    p.add_argument("flags", nargs="*", help="after --: flags of `sluice run`")
    a = peer.parse(p)
    if a.format not in WEIGHTS:
        p.error(f"--format: one of {' '.join(WEIGHTS)}")
    pack = pack_path(a.sluice, a)
    if a.prepare:  # probes too, so that no run has to
        compute = a.flags[a.flags.index("--compute") + 1] if "--compute" in a.flags else "bf16"
        peer.run([a.sluice, "plan", "-m", pack, "--prompt-len", 8, "--gen-len", 1, "--num-prompts", 1, "--threads",
                  a.threads, "--compute", compute, "-q"])
        print(pack)
        return
    job = peer.Job(a.job)
    cut = "--time-limit" in a.flags
    own = ["--weights", WEIGHTS[a.format]] if pack == a.model else []
    with tempfile.TemporaryDirectory(dir=models.PLACE) as work:
        out, summary = os.path.join(work, "out.jsonl"), os.path.join(work, "summary.json")
        whole_s, peak_mib = run_measured(peer.limited(a, [
            a.sluice, "run", "-m", pack, "-i", a.job, "-o", out, "--summary", summary, "--threads", str(a.threads),
            "--batch", str(a.batch), "--progress", "none", "--offload-dir", work, *own, *a.flags]),
            (0, INTERRUPTED) if cut else (0,))
        with open(summary, encoding="utf-8") as f:
            s = json.load(f)
        tokens = None
        if not s["interrupted"]:
            with open(out, encoding="utf-8") as f:
                tokens = [json.loads(line)["token_ids"] for line in f]
    a.batch = s["plan"]["batch"] * s["plan"]["batches"]
    peer.emit(a, job, tokens, "sluice", s["version"], s["elapsed_s"], whole_s, s["startup_s"], peak_mib,
              **more_of(s))


if __name__ == "__main__":
    main()
