#!/usr/bin/env python3
"""Plans for other machines, compared with published figures: paper.py [flags]; nothing is run.

`sluice plan --machine FILE` for the machine of the FlexGen paper (a T4, 208 GB of RAM, NVMe: OPT-6.7B, 30B, 175B) and for A10, RTX
4090, A100 and H200 (Llama-3-70B), at 512 + 32 and 512 + 1024 tokens: lossless weights, 4 bits, H2O 0.2. Their rates are published,
assumed or, of the cards themselves, modelled (see the heads of configs/machine-*.cfg): no row is measured. FlexGen's figures are from its
repository (FMInference/FlexLLMGen, README and bench_suite.py; of 30B and 175B projected from 10 steps), with H2O from the logs
in FMInference/H2O (h2o_flexgen/benchmark).

roof: an upper bound for any schedule on that machine. A pass gives one token for each of B rows and takes at least the longest of
  FLOPs         B x FLOPs of a row / its tokens / device_flops; of a row 2 x (parameters of the body) x (prompt + new) + 2 x (head) x new
                + 4 x heads x head_dim x layers x (prompt^2 / 2 + new x context), context = prompt + new / 2, or what H2O keeps
  device        weights / device_read
  link          (weights - device_memory) / h2d: attention may run in the memory of KV
  RAM           (weights + KV of B rows - device_memory) / ram_read
  NVMe          (weights + KV of B rows - device_memory - ram) / nvme_read
and the roof is the best B / pass over all B up to the rows of the job.
Writes bench/results/paper-configs.csv and paper-configs.md (all rows); tables.py takes the README's from the CSV.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

import conditions
from conditions import HERE, TREE
import models

ROWS, PROMPT = 1000, 512
BYTES = {"bf12": 1.5, "q4": 36 / 64}  # of a number; of KV likewise
KV_BYTES = {"bf16": 2.0, "q4": 36 / 64}
LANES = {"nvme-read": "read_s", "nvme-write": "write_s", "h2d": "h2d_s", "d2h": "d2h_s", "gpu": "gpu_s", "cpu": "compute_s"}
VARIANTS = {"lossless": [], "q4 weights": ["--weights", "q4"], "q4 weights and KV": ["--weights", "q4", "--kv-format", "q4"],
            "lossless, H2O": ["--kv-policy", "h2o", "--kv-budget", "0.2"],
            "q4 weights, H2O": ["--weights", "q4", "--kv-policy", "h2o", "--kv-budget", "0.2"]}
# (model, new, variant): output tokens/s, rows of a batch x batches, its six shares.
PUBLISHED = {
    ("opt-6.7b", 32, "lossless"): (25.26, 2, "2 x 1, 100 0 100 0 100 0"),
    ("opt-30b", 32, "lossless"): (7.32, 144, "48 x 3, 20 80 0 100 0 100, attention on the CPU"),
    ("opt-175b", 32, "lossless"): (0.69, 256, "32 x 8, 0 50 0 0 0 100, attention on the CPU"),
    ("opt-6.7b", 32, "q4 weights and KV"): (29.12, 72, "72 x 1, 100 0 100 0 100 0"),
    ("opt-30b", 32, "q4 weights and KV"): (8.38, 512, "64 x 8, 0 100 0 100 0 100, KV in 4 bits, weights not"),
    ("opt-175b", 32, "q4 weights and KV"): (1.12, 144, "48 x 3, 0 100 0 100 0 100"),
    ("opt-30b", 32, "lossless, H2O"): (14.34, 768, "48 x 16, 20 80 0 100 0 100, attention on the CPU, H2O"),
    ("opt-30b", 1024, "lossless, H2O"): (14.80, 280, "40 x 7, 20 80 0 100 0 100, attention on the CPU, H2O"),
}
COLUMNS = ["machine", "model", "prompt", "new", "variant", "attn", "status", "flexgen_tok_s", "flexgen_rows", "flexgen_policy",
           "tok_s", "times_flexgen", "rows_at_once", "plan", "pass_s", "passes", "job_s", "bound", "bound_share", "next",
           "next_share", "roof_tok_s", "roof_rows", "roof_bound", "of_roof", "why"]


def asked(quick):
    """(machine, model, new, variant, attn); attention on the CPU if the paper's policies use it."""
    if quick:
        return [("t4", "opt-6.7b", 32, "lossless", "device"), ("t4", "opt-30b", 32, "q4 weights", "cpu"),
                ("h200", "llama-3-70b", 32, "lossless, H2O", "device")]
    found = [("t4", model, new, v, attn) for model in ("opt-6.7b", "opt-30b", "opt-175b") for new in (32, 1024)
             for v in VARIANTS for attn in ("device", "cpu")]
    return found + [(m, "llama-3-70b", new, v, "device") for m in ("a10", "rtx4090", "a100", "h200") for new in (32, 1024)
                    for v in VARIANTS]


# ---- the roof ----

def parameters(sluice, model):
    """Parameters of the matrices of all layers, and those of the head."""
    done = subprocess.run([sluice, "inspect", "--json", os.path.join(TREE, "configs", f"{model}.cfg")], check=True,
                          capture_output=True, text=True)
    tensors = [t for t in json.loads(done.stdout)["tensors"] if t["layer"] > 0 and t["k"] > 1]
    return sum(t["n"] * t["k"] for t in tensors), sum(t["n"] * t["k"] for t in tensors if t["tensor"] == "head")


def machine_read(name):
    """Numbers of a machine file."""
    with open(os.path.join(TREE, "configs", f"machine-{name}.cfg"), encoding="utf-8") as f:
        lines = [line.partition("#")[0].partition("=") for line in f]
    return {key.strip(): float(value) for key, equals, value in lines if equals}


def roof(m, c, numbers, new, variant):
    """(tokens/s, rows, limit) as defined above. c: a model's config; numbers: its parameters()."""
    words = VARIANTS[variant]
    layers, width = int(c["layers"]), int(c["heads"]) * int(c.get("head_dim", int(c["dim"]) // int(c["heads"])))
    kv_width = width * int(c.get("kv_heads", c["heads"])) // int(c["heads"])
    context = 0.2 * (PROMPT + new) if "h2o" in words else PROMPT + new / 2
    body, head = numbers[0] - numbers[1], numbers[1]
    flops = 2 * body * (PROMPT + new) + 2 * head * new + 4 * width * layers * (PROMPT ** 2 / 2 + new * context)
    weights = numbers[0] * BYTES["q4" if "q4" in words[:2] else "bf12"]
    row = 2 * layers * kv_width * context * KV_BYTES["q4" if "--kv-format" in words else "bf16"]
    best = (0.0, 0, "")
    for rows in range(1, ROWS + 1):
        held = weights + rows * row - m["device_memory"]
        lanes = {"FLOPs": rows * flops / new / m["device_flops"], "device": weights / m["device_read"],
                 "link": max(weights - m["device_memory"], 0) / m["h2d"], "RAM": max(held, 0) / m["ram_read"],
                 "NVMe": max(held - m["ram"], 0) / m["nvme_read"]}
        bound = max(lanes, key=lanes.get)
        if rows / lanes[bound] > best[0] * (1 + 1e-9):  # the fewest rows that reach the rate
            best = (rows / lanes[bound], rows, bound)
    return best


# ---- plans ----

def planned(sluice, machine, model, new, variant, attn):
    """The plan as JSON, with the printed placement; None if no plan fits."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        done = subprocess.run([sluice, "plan", "-m", f"configs/{model}.cfg", "--machine", f"configs/machine-{machine}.cfg", "--prompt-len",
                               str(PROMPT), "--gen-len", str(new), "--num-prompts", str(ROWS), "--attn", attn, "-o", path,
                               *VARIANTS[variant]], cwd=TREE, capture_output=True, text=True)
        if done.returncode:
            return None, done.stderr.strip().splitlines()[-1]
        with open(path, encoding="utf-8") as f:
            return json.load(f), re.search(r"--percent ((\S+ ){6})", done.stdout)[1].strip()


def why(row):
    """The reason for the difference in one line, from the lanes of the plan."""
    text = f"{row['bound']} works {100 * row['bound_share']:.0f} % of a pass, {row['next']} {100 * row['next_share']:.0f} %"
    if row["flexgen_rows"]:
        text += f"; {row['rows_at_once']} rows at once, FlexGen {row['flexgen_rows']}"
    return text + f"; the roof is {row['roof_bound']}, from {row['roof_rows']} rows on"


def row_of(case, plan, percent, found):
    """A row of the CSV. found: roof()."""
    machine, model, new, variant, attn = case
    theirs = PUBLISHED.get((model, new, variant)) if machine == "t4" else None
    row = {"machine": machine, "model": model, "prompt": PROMPT, "new": new, "variant": variant, "attn": attn,
           **dict(zip(("flexgen_tok_s", "flexgen_rows", "flexgen_policy"), theirs or ("", "", "")))}
    if not plan:
        return {**row, "status": percent}
    p, said = plan["plan"], plan["predicted"]
    busy = sorted(LANES, key=lambda lane: -said[LANES[lane]])
    share = [said[LANES[lane]] / said["pass_s"] for lane in busy]
    row.update(status="ok", tok_s=plan["work"]["output_tokens"] / said["job_s"], rows_at_once=p["batch"] * p["batches"],
               plan=f"{p['batch']} x {p['batches']}, {percent}", pass_s=said["pass_s"], passes=int(said["passes"]), job_s=said["job_s"],
               bound=busy[0], bound_share=share[0], next=busy[1], next_share=share[1])
    row.update(roof_tok_s=found[0], roof_rows=found[1], roof_bound=found[2], of_roof=row["tok_s"] / found[0],
               times_flexgen=row["tok_s"] / theirs[0] if theirs else "")
    return {**row, "why": why(row)}


def markdown(rows):
    """All rows, each with the better place of attention."""
    best = {}
    for r in rows:
        key = r["machine"], r["model"], r["new"], r["variant"]
        if r["status"] == "ok" and (key not in best or r["tok_s"] > best[key]["tok_s"]):
            best[key] = r
    head = ["machine", "model", "tokens", "variant", "FlexGen, tokens/s", "its policy", "planned", "x FlexGen", "plan", "attention",
            "roof", "of it", "why"]
    lines = [[r["machine"], r["model"], f"{r['prompt']} + {r['new']}", r["variant"], f"{r['flexgen_tok_s']}", r["flexgen_policy"],
              f"{r['tok_s']:.2f}", f"{r['times_flexgen']:.2f}" if r["times_flexgen"] else "", r["plan"], r["attn"],
              f"{r['roof_tok_s']:.2f}", f"{r['of_roof']:.2f}", r["why"]] for r in best.values()]
    text = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines]]
    return "\n".join(["# Plans for machines that are not here", "", "Planned, not run, at rates that are published, assumed or modelled: "
                      "`bench/paper.py --help` says what this is, what the roof is, and where FlexGen's figures are from.", "", *text]) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", help="[bench/results/paper-configs.csv]")
    p.add_argument("--sluice", help="the sluice to measure [the one built here]")
    p.add_argument("--dirty", action="store_true", help="measure a tree that is not committed; the CSV records dirty: yes")
    p.add_argument("--quick", action="store_true", help="try the script: three plans, into build/planned")
    a = p.parse_args()
    a.dirty |= a.quick
    name = os.path.join(TREE, "build/planned/paper-quick") if a.quick else os.path.join(HERE, "results", "paper-configs")
    a.output = a.output or name + ".csv"
    conditions.clean(a)
    cases, numbers, machines = asked(a.quick), {}, {}
    for machine, model, *_ in cases:
        numbers[model] = numbers.get(model) or parameters(a.sluice, model)
        machines[machine] = machines.get(machine) or machine_read(machine)
    results = conditions.Results(a.output, {
        "table": "paper", "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
        "binary_sha256": a.binary, "date": conditions.now(), "machine": "configs/machine-*.cfg, published, assumed and modelled rates",
        "job": f"{ROWS:,} rows of {PROMPT} + 32 or 1,024 tokens; plans, nothing was run"}, COLUMNS)
    rows = []
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for case, (plan, percent) in zip(cases, pool.map(lambda case: planned(a.sluice, *case), cases)):
            machine, model, new, variant, _ = case
            found = roof(machines[machine], models.config_read(model), numbers[model], new, variant)
            rows.append(row_of(case, plan, percent, found))
            results.add(rows[-1])
    results.close()
    with open(os.path.splitext(a.output)[0] + ".md", "w", encoding="utf-8") as f:
        f.write(markdown(rows))
    above = [r for r in rows if r["status"] == "ok" and r["of_roof"] > 1]
    for r in rows:
        print(f"{r['machine']}, {r['model']}, {r['new']}, {r['variant']}, {r['attn']}: " +
              (f"{r['tok_s']:.2f} tokens/s of {r['roof_tok_s']:.2f}: {r['why']}" if r["status"] == "ok" else r["status"]))
    if above:
        sys.exit(f"paper.py: {len(above)} plans are faster than the roof: one of the two is wrong: {above[0]}")


if __name__ == "__main__":
    main()
