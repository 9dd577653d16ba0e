#!/usr/bin/env python3
"""Speed against a memory budget: run_budget.py [-o bench/results/budget.csv] [ENGINE]...

Every engine does the same job (chat prompts, SmolLM2-135M-Instruct) under a memory control group of each
budget, the files out of the page cache before every run. ENGINE is as in peers/side_by_side.py, without
batch and memory flags; default: sluice 'llamacpp --format q4_1' (the same file) 'llamacpp --format q4_0'.
  sluice    gets --mem-ram of the budget less 24 MiB for code and libraries, and plans the rest by itself
  llamacpp  maps its file; of the batches whose KV (every row as long as the longest, a multiple of 256 tokens)
            takes at most two thirds of the budget the largest --tries ones are tried, and the best counts
One row per engine and budget: the median of --repeat runs of the whole job, prompts included. A run that is
killed for memory or passes --timeout has a status and no speed. Needs root, as a rule.
"""
import argparse
import csv
import os
import statistics
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "peers"))
import peer  # noqa: E402
import side_by_side  # noqa: E402

ENGINES = ["sluice", "llamacpp --format q4_1", "llamacpp --format q4_0"]
BUDGETS = [64, 96, 128, 192, 256, 400, 640]
CODE_MIB = 24         # what sluice may take beside --mem-ram
KV_BYTES = 23040      # of a token of SmolLM2-135M: 30 layers, 3 heads of 64, K and V, two bytes
BATCHES = [64, 32, 16, 8, 4, 2, 1]
COLUMNS = ["engine", "format", "budget_mib", "batch", "tok_s", "tok_s_min", "tok_s_max", "runs", "peak_rss_mib",
           "status", "flags"]


def header(out, command, **more):
    """What a CSV of ours begins with; also run_batch.py's."""
    lines = {"command": command, "machine": peer.machine(), "commit": peer.commit(), "date": peer.now(), **more}
    out.writelines(f"# {key}: {value}\n" for key, value in lines.items())


def candidates(words, budget_mib, longest, tries):
    """Flags to try under a budget."""
    if words.startswith("sluice"):
        own = f"--mem-ram {budget_mib - CODE_MIB}M"
        return [f"{words} {own}" if " -- " in words else f"{words} -- {own}"]
    fit = [b for b in BATCHES if b * longest * KV_BYTES <= budget_mib * peer.MIB * 2 / 3] or BATCHES[-1:]
    large = budget_mib >= 256
    return [f"{words} --batch {b} --ubatch {512 if large else 64} --repack {'auto' if large else 'keep'}"
            for b in fit[:tries]]


def measure(words, a, budget_mib, job, out):
    """Runs one candidate --repeat times: rows of peers, or None and why not."""
    if "-- " in words:
        words = words.replace(" -- ", f" --limit-mib {budget_mib} --timeout {a.timeout} -- ", 1)
    else:
        words += f" --limit-mib {budget_mib} --timeout {a.timeout}"
    engine = side_by_side.Engine(words, "smollm2")
    engine.prepare()
    rows = []
    for _ in range(a.repeat):
        side_by_side.drop_cache(engine.files)
        peer.say(f"budget: {budget_mib} MiB: {words}")
        row = engine.run(job, out, 0)
        if row is None:
            return None
        rows.append(row)
    return rows


def best_of(words, a, budget_mib, job, out):
    """One row of the CSV."""
    name = words.split()[0].replace("llamacpp", "llama.cpp")
    form = words.split("--format ")[1].split()[0] if "--format " in words else "q4_1"
    best = {"engine": name, "format": form, "budget_mib": budget_mib, "status": "failed", "flags": words}
    for flags in candidates(words, budget_mib, a.longest, a.tries):
        rows = measure(flags, a, budget_mib, job, out)
        if not rows:
            continue
        rates = [float(r["output_tok_s"]) for r in rows]
        rate = statistics.median(rates)
        if rate > float(best.get("tok_s", 0)):
            best.update(tok_s=f"{rate:.2f}", tok_s_min=f"{min(rates):.2f}", tok_s_max=f"{max(rates):.2f}",
                        runs=len(rates), batch=rows[-1]["batch"], status="ok", flags=flags,
                        peak_rss_mib=max(int(r["peak_rss_mib"]) for r in rows))
    return best


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("engines", nargs="*", metavar="ENGINE", default=ENGINES)
    p.add_argument("-o", "--output", default=os.path.join(HERE, "results/budget.csv"))
    p.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="MiB [%(default)s]")
    p.add_argument("--rows", type=int, default=64)
    p.add_argument("--new", type=int, default=64, help="tokens generated per row [64]")
    p.add_argument("--repeat", type=int, default=3, help="runs of which the median counts [3]")
    p.add_argument("--tries", type=int, default=2, help="batches of llama.cpp per budget [2]")
    p.add_argument("--timeout", type=int, default=600, help="seconds of one run [600]")
    p.add_argument("--note", default="", help="one more line of the head")
    return p.parse_args()


def main():
    a = arguments()
    given = types.SimpleNamespace(rows=a.rows, data=os.path.join(peer.TREE, "tests/data/prompts.jsonl"))
    prompts = side_by_side.chat_ids(given)
    a.longest = -(-(max(map(len, prompts)) + a.new) // 256) * 256
    part = a.output + ".part"
    with tempfile.TemporaryDirectory() as work, open(part, "w", newline="", encoding="utf-8") as f:
        job, out = os.path.join(work, "job.jsonl"), os.path.join(work, "out.jsonl")
        side_by_side.job_write(job, prompts, a.new)
        more = {"note": a.note} if a.note else {}
        header(f, peer.command_line(), job=f"{a.rows} chat prompts, {sum(map(len, prompts))} tokens, {a.new} new each, "
               "SmolLM2-135M-Instruct; output tokens/s of the whole job", **more)
        w = csv.DictWriter(f, COLUMNS, restval="", lineterminator="\n")
        w.writeheader()
        for words in a.engines:
            for budget_mib in map(int, a.budgets.split(",")):
                w.writerow(best_of(words, a, budget_mib, job, out))
                f.flush()
    os.replace(part, a.output)


if __name__ == "__main__":
    main()
