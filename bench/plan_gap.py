#!/usr/bin/env python3
"""Can flags by hand beat the planner? plan_gap.py [flags]; plans only, nothing is run.

For other machines (configs/machine-*.cfg) and models of configs/: the automatic plan of `sluice plan`, then
whatif.sweep() over flags that change placement or pace but no answers, one at a time and batch with batches.
A row of the CSV is a plan; gain_percent compares its tokens/s with the automatic plan's. --attn changes how answers
are rounded: the planner never changes --attn, but must name it as *faster* (column named). Exit 1 if the same answers
are more than 2 % faster by hand, or --attn gains 5 % or more and is not named.
"""
import argparse
import concurrent.futures
import os
import sys

import conditions
from conditions import HERE, TREE

sys.path.insert(0, os.path.join(TREE, "engine", "python"))
from sluice import Error, whatif

MACHINES, MODELS = ("t4", "a10", "rtx4090", "h200"), ("opt-13b", "opt-30b", "opt-66b", "llama-3-70b")
JOBS = ((512, 32, 1000),)
MOST, WORTH = 0.02, 0.05
COLUMNS = ["machine", "model", "prompt", "new", "rows", "flags", "same_answers", "tok_s", "gain_percent", "bound", "named", "why"]
# Six shares: weights, KV and hidden states, on the device and in RAM.
PERCENTS = ["0 100 0 100 100 0", "0 100 50 50 100 0", "0 100 100 0 100 0", "10 90 0 100 100 0", "50 50 0 100 100 0", "100 0 0 100 100 0"]
SWEEPS = [{"attn": ["cpu"]}, {"percent": PERCENTS}, {"batches": [2, 8]}, {"batch": [32, 128]}, {"weights_resident": ["0%", "20%"]},
          {"ahead_weights": [0, 4]}, {"prefill_tokens": [512, 2048, 8192]}, {"batches": 3, "batch": [32, 64]}]


def job_flags(case):
    machine, model, (prompt, new, rows) = case
    return {"model": f"{TREE}/configs/{model}.cfg", "machine": f"{TREE}/configs/machine-{machine}.cfg", "prompt_len": prompt, "gen_len": new,
            "num_prompts": rows}


def planned(case):
    """(tokens/s, flags that *faster* names) of the automatic plan; (None, why) if none fits."""
    try:
        plan = whatif.plan(**job_flags(case), advice=True)
    except Error as error:
        return None, error.sentence
    return plan["work"]["output_tokens"] / plan["predicted"]["job_s"], [x["flags"] for x in plan["would_help"]]


def swept(case, flags):
    """Rows of one sweep; a refused flag gets a row as well."""
    def text(point):
        return " ".join(f"--{k.replace('_', '-')} {v}" for k, v in point.items())
    try:
        rows = whatif.sweep(**job_flags(case), **flags)
    except Error as error:
        return [{"flags": text({k: "" for k in flags}).strip(), "why": error.sentence}]
    return [{"flags": text({k: row.get(k, v) for k, v in flags.items()}), "tok_s": row["tokens_per_s"] or 0, "bound": row["bound"] or "",
             "why": row["why"]} for row in rows]


def rows_of(case, own, named, found):
    """Rows of the CSV, the automatic plan first."""
    machine, model, (prompt, new, rows) = case
    about = {"machine": machine, "model": model, "prompt": prompt, "new": new, "rows": rows}
    if not own:
        return [{**about, "why": named}]
    out = [{**about, "flags": "", "same_answers": 1, "tok_s": own, "gain_percent": 0.0}]
    for r in found:
        fits = r.get("tok_s", 0) > 0
        out.append({**about, **r, "same_answers": int("--attn" not in r["flags"]), "tok_s": r["tok_s"] if fits else "",
                    "gain_percent": 100 * (r["tok_s"] / own - 1) if fits else "",
                    "named": int(r["flags"] in named)})
    return out


def is_missed(row):
    gain = (row.get("gain_percent") or 0) / 100
    return gain > MOST if row.get("same_answers") else gain >= WORTH and not row.get("named")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", help="[bench/results/plan-gap.csv]")
    p.add_argument("--sluice", help="a binary [built here]")
    p.add_argument("--dirty", action="store_true", help="a tree that is not committed; the CSV says dirty: yes")
    p.add_argument("--only", default="", help="MACHINE or MACHINE,MODEL")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="plans at once [CPUs]")
    a = p.parse_args()
    a.output = a.output or os.path.join(HERE, "results", "plan-gap.csv")
    conditions.clean(a)
    os.environ["SLUICE_PROGRAM"] = a.sluice
    only = [word for word in a.only.split(",") if word]
    cases = [(machine, model, job) for machine in MACHINES for model in MODELS for job in JOBS if set(only) <= {machine, model}]
    results = conditions.Results(a.output, {
        "table": "plan-gap", "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
        "binary_sha256": a.binary, "date": conditions.now(), "machine": "configs/machine-*.cfg, published and assumed rates"}, COLUMNS)
    missed = []
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        own = [pool.submit(planned, case) for case in cases]
        found = [[pool.submit(swept, case, sweep) for sweep in SWEEPS] for case in cases]
        for case, plan, sweeps in zip(cases, own, found):
            rows = rows_of(case, *plan.result(), [row for sweep in sweeps for row in sweep.result()])
            for row in rows:
                results.add(row)
            missed += [row for row in rows if is_missed(row)]
            best = {same: max((r for r in rows[1:] if r["same_answers"] == same and r["tok_s"]), key=lambda r: r["tok_s"], default=None)
                    for same in (1, 0)}
            print(f"{case[0]}, {case[1]}: {rows[0].get('tok_s') or 0:.2f} tokens/s; " + "; ".join(
                f"{r['gain_percent']:+.1f} % with {r['flags']}" for r in best.values() if r), flush=True)
    results.close()
    for row in missed:
        print(f"missed: {row['machine']}, {row['model']}: {row['gain_percent']:+.1f} % with {row['flags']}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
