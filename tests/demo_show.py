#!/usr/bin/env python3
"""The end of `make demo`: three answers and the key figures. demo_show.py OUT.jsonl IN.jsonl SUMMARY.json SLUICE

Fails when the run was not what the demo promises: every row answered, and weights streamed from disk.
"""
import glob
import json
import os
import sys
import textwrap

N_SHOWN = 3


def rows(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def wrapped(label, text):
    return textwrap.fill(" ".join(text.split()), 100, initial_indent=label, subsequent_indent=" " * len(label))


def times(folder, sluice, summary_path, run_s):
    """Where the demo's seconds went: its files carry the times at which each part of it ended."""
    ended = {name: os.path.getmtime(os.path.join(folder, name)) for name in ("begin", "model", "run")}
    with open(os.path.join(folder, "model"), encoding="utf-8") as f:
        packs = glob.glob(glob.escape(f.read().strip()) + "-*.pack")
    built, done = os.path.getmtime(sluice), os.path.getmtime(summary_path)
    packed = max([ended["run"], *map(os.path.getmtime, packs)])
    return (f"{done - ended['begin']:.0f} s in all: build {max(0, built - ended['begin']):.1f} s (model fetched after "
            f"{ended['model'] - ended['begin']:.1f} s), pack {packed - ended['run']:.1f} s, probe and plan "
            f"{max(0, done - run_s - packed):.1f} s, run {run_s:.1f} s")


def main():
    out_path, in_path, summary_path, sluice = sys.argv[1:5]
    answers, questions = rows(out_path), {r["custom_id"]: r for r in rows(in_path)}
    with open(summary_path, encoding="utf-8") as f:
        s = json.load(f)
    for answer in answers[:N_SHOWN]:
        question = questions[answer["custom_id"]]["body"]["messages"][-1]["content"]
        choice = answer["response"]["body"]["choices"][0]
        print("\n" + wrapped("question  ", question))
        print(wrapped("answer    ", choice["message"]["content"]) +
              (" ..." if choice["finish_reason"] == "length" else ""))
    plan, peak = s["plan"], s["peak_bytes"]
    # The embedding is gathered row by row and never counts as resident.
    total, resident = plan["layers"] - 1, plan["weights_resident"]
    lanes = {lane["name"]: lane for lane in s["lanes"]}
    read = lanes.get("nvme-read", {}).get("bytes", 0)
    print(f"\n{s['rows']['ok']} of {s['rows']['total']} rows, {s['output_tokens']} tokens in {s['elapsed_s']:.1f} s "
          f"(predicted {s['predicted_elapsed_s']:.1f} s): {s['output_tokens_per_s']:.1f} tokens/s")
    print(f"{total - resident} of {total} parts of the weights (layers, slices of the output matrix) streamed from disk, {read / 1e9:.2f} GB in {s['passes']} passes; "
          f"peak memory {peak['ram'] / 2**20:.0f} MiB")
    print(times(os.path.dirname(out_path), sluice, summary_path, s["elapsed_s"]))
    print(f"answers: {out_path}   figures: {summary_path}")
    if s["rows"]["failed"] or not answers or resident >= total or read == 0:
        print("this is not the demo: rows failed, or no layer streamed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
