#!/usr/bin/env python3
"""Speed against the batch: run_batch.py [-o bench/results/batch.csv] [-m MODEL] [--mem-ram SIZE]

For every batch `sluice bench throughput` generates for as many rows, once with all weights streamed from disk
under --mem-ram, once with all in RAM. One row each: output tokens/s, the median of --repeat runs, and the roof: the
rate at which the slowest of disk, RAM and matmuls would be done (roofline_fraction of the summary; for weights in
RAM also their bytes a pass at the RAM rate). Streamed runs that are predicted to take 30 s are framed by reads of
the disk; `rates` says so.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

from run_budget import HERE, header, peer

COLUMNS = ["weights", "model", "dummy_weights", "batch", "tok_s", "tok_s_min", "tok_s_max", "roof_tok_s", "rates", "bound",
           "predicted_s", "elapsed_s", "peak_ram_mib", "runs"]


BYTES = {"f32": 4, "bf16": 2, "f16": 2, "bf12": 1.5, "q8": 1.0625, "q4": 0.5625, "q4_1": 0.625, "q8_0": 1.0625}


def layer_bytes(a):
    """Of the weights that one pass reads."""
    done = subprocess.run([a.sluice, "inspect", "--json", a.model], stdout=subprocess.PIPE, text=True, check=True)
    tensors = json.loads(done.stdout)["tensors"]
    return sum(t["n"] * t["k"] * BYTES.get(t["format"], 0) for t in tensors if t["layer"] > 0)


def throughput(a, batch, more, summary):
    command = [a.sluice, "bench", "throughput", "--json", "-m", a.model, "--batch", str(batch), "--batches", "1",
               "--num-prompts", str(batch), "--prompt-len", str(a.prompt_len), "--gen-len", str(a.gen_len),
               "--progress", "none", "-q", "--summary", summary, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        peer.say(f"batch: {batch}: ended with {done.returncode}: no row")
        return None
    with open(summary, encoding="utf-8") as f:
        return json.load(f)


def roof(a, s, streamed):
    """Output tokens/s that the rates would allow."""
    least_s = s["roofline_fraction"] * s["elapsed_s"]
    if not streamed:
        least_s = max(least_s, s["passes"] * layer_bytes(a) / s["machine"]["ram_read"])
    return s["output_tokens"] / least_s


def row_of(a, weights, batch, more):
    """The row of one batch; None: it does not fit."""
    runs = []
    with tempfile.TemporaryDirectory() as work:
        for _ in range(a.repeat):
            peer.say(f"batch: {weights}: {batch} rows")
            runs.append(throughput(a, batch, more, os.path.join(work, "summary.json")))
            if not runs[-1]:
                return None
    rates = [r["output_tokens_per_s"] for r in runs]
    s = sorted(runs, key=lambda r: r["output_tokens_per_s"])[len(runs) // 2]
    return {"weights": weights, "model": s["model"], "dummy_weights": s["dummy_weights"], "batch": s["plan"]["batch"],
            "tok_s": f"{statistics.median(rates):.3f}", "tok_s_min": f"{min(rates):.3f}",
            "tok_s_max": f"{max(rates):.3f}", "roof_tok_s": f"{roof(a, s, weights == 'streamed'):.3f}",
            "rates": s["roofline_rates"], "bound": s["bound"], "predicted_s": f"{s['predicted_elapsed_s']:.2f}",
            "elapsed_s": f"{s['elapsed_s']:.2f}", "peak_ram_mib": s["peak_bytes"]["ram"] // peer.MIB, "runs": len(runs)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", default=os.path.join(HERE, "results/batch.csv"))
    p.add_argument("-m", "--model", default="configs/llama-1b.cfg")
    p.add_argument("--mem-ram", default="1G", help="of the streamed runs [1G]")
    p.add_argument("--batches", default="1,4,16,64,256", help="[%(default)s]")
    p.add_argument("--prompt-len", type=int, default=16)
    p.add_argument("--gen-len", type=int, default=24)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--sluice", default=os.path.join(peer.TREE, "sluice"))
    p.add_argument("--note", default="", help="one more line of the head")
    a = p.parse_args()
    part, more = a.output + ".part", {"note": a.note} if a.note else {}
    with open(part, "w", newline="", encoding="utf-8") as f:
        header(f, peer.command_line(), job=f"batch x ({a.prompt_len} prompt + {a.gen_len} new tokens), sluice bench "
               f"throughput; streamed: --mem-ram {a.mem_ram} --weights-resident 0", **more)
        w = csv.DictWriter(f, COLUMNS, restval="", lineterminator="\n")
        w.writeheader()
        for weights, flags in (("streamed", ["--mem-ram", a.mem_ram, "--weights-resident", "0"]),
                               ("resident", ["--weights-resident", "100%"])):
            for batch in map(int, a.batches.split(",")):
                row = row_of(a, weights, batch, flags)
                if row is None:
                    break
                w.writerow(row)
                f.flush()
    os.replace(part, a.output)


if __name__ == "__main__":
    sys.exit(main())
