#!/usr/bin/env python3
"""The README's table of ops out of `sluice bench ops -m MODEL --csv`: ops_table.py [bench/results/ops.csv]

Per op and kind the rate and the share of the roof, from the least to the greatest of its rows where there are
several. With --write README.md it takes the place of what stands there between the lines <!-- ops --> and
<!-- /ops -->. Standard library only.
"""
import argparse
import csv
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN, END = "<!-- ops -->\n", "<!-- /ops -->\n"

# Name, op, what the shape must match, whether FLOPs count (else bytes do).
LINES = [
    ("matmul bf16, 16 rows", "matmul", r"^bf16 .* m=16$", True),
    ("matmul bf16, 64 to 1,024 rows", "matmul", r"^bf16 .* m=(64|256|1024)$", True),
    ("matmul bf12, 16 rows", "matmul", r"^bf12 .* m=16$", True),
    ("matmul bf12, 64 to 1,024 rows", "matmul", r"^bf12 .* m=(64|256|1024)$", True),
    ("matmul q8 and q4, 16 rows", "matmul", r"^q[84] \d+x.* m=16$", True),
    ("matmul q8 and q4, 64 to 1,024 rows", "matmul", r"^q[84] \d+x.* m=(64|256|1024)$", True),
    ("matmul int8 over q8 and q4, 16 rows", "matmul", r"int8 .* m=16$", True),
    ("matmul int8 over q8 and q4, 64 to 1,024 rows", "matmul", r"int8 .* m=(64|256|1024)$", True),
    ("attend_prompt", "attend_prompt", r"", True),
    ("attend_forced, KV bf16, 640 and 2,048 slots", "attend_forced", r" (640|2048) bf16 (full|h2o)$", False),
    ("attend_forced, KV q8", "attend_forced", r" (640|2048) q8 (full|h2o)$", False),
    ("attend_forced, KV q4", "attend_forced", r" (640|2048) q4 (full|h2o)$", False),
    ("attend_forced, KV mixed", "attend_forced", r" (640|2048) mixed (full|h2o)$", False),
    ("decode bf12 to bf16", "decode", r"^bf12 ", False),
    ("decode q8 and q4 to bf16", "decode", r"^q[84] ", False),
    ("norm", "norm", r"", False),
    ("rope", "rope", r"", False),
    ("silu_mul", "silu_mul", r"", False),
    ("kv_store", "kv_store", r"", False),
    ("prompt_keep", "prompt_keep", r"", False),
    ("head_reduce", "head_reduce", r"", False),
]


def span(values, form):
    texts = [form.format(v) for v in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def table(path):
    with open(path, encoding="utf-8") as f:
        lines = f.readlines()
    head = dict(line[2:].rstrip("\n").split(": ", 1) for line in lines if line.startswith("# "))
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    roof, ram = float(head["roof_gflop_s"]), float(head["roof_ram_gb_s"])
    out = [f"`{head['command']}`; {head['machine']}, {head['isa']}, {head['threads']} threads; roofs probed in the same "
           f"run: {roof:.0f} GFLOP/s, {ram:.1f} GB/s.\n\n", "| op | rate | of the roof |\n", "|---|---|---|\n"]
    for name, op, shape, by_flops in LINES:
        mine = [r for r in rows if r["op"] == op and re.search(shape, r["shape"])]
        if not mine:
            continue
        rates = span([float(r["gflop_s" if by_flops else "gb_s"]) for r in mine], "{:.0f}")
        shares = span([float(r["roof"]) for r in mine], "{:.2f}")
        out.append(f"| {name} | {rates} {'GFLOP/s' if by_flops else 'GB/s'} | {shares} |\n")
    return "".join(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("csv", nargs="?", default=os.path.join(HERE, "results/ops.csv"))
    p.add_argument("--write", metavar="FILE")
    a = p.parse_args()
    text = table(a.csv)
    if not a.write:
        print(text, end="")
        return
    with open(a.write, encoding="utf-8") as f:
        before, rest = f.read().split(BEGIN)
    after = rest.split(END)[1]
    with open(a.write, "w", encoding="utf-8") as f:
        f.write(before + BEGIN + text + END + after)


if __name__ == "__main__":
    main()
