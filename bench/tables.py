#!/usr/bin/env python3
"""The figures of bench/README.md from bench/results/TABLE-CPU.csv: tables.py [--write bench/README.md] [--plots] [TABLE]...

Every table is between <!-- TABLE --> and <!-- /TABLE -->; a table without a CSV is not changed. A CPU is a column
(or a group of columns); a figure is the median of the good runs, followed by the least and the most. --plots
draws bench/plots from the newest CSV of each (needs matplotlib). The tables need the standard library only.
"""
import argparse
import csv
import glob
import os
import re
import statistics
import subprocess
import sys
import textwrap

import choice as choices
import hand as hands
import predict as predictions

HERE = os.path.dirname(os.path.abspath(__file__))
PLOTS = {"budget": "budget", "evaluate": "evaluate", "roofline": "ops"}
NAMES = {"bf16": "bf16", "int8": "8-bit activations", "float32": "f32"}


class Sheet:
    """One CSV: its head and its rows."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            lines = f.readlines()
        self.path = path
        self.head = dict(line[2:].rstrip("\n").split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
        self.rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        self.cpu = self.head.get("cpu", os.path.basename(path))
        self.runs = [r for r in self.rows if r.get("kind") == "run"]

    def good(self, **want):
        return [r for r in self.runs if r["status"] == "ok" and all(r[k] == v for k, v in want.items())]


def sheets(table, folder):
    """The CSVs of a table, one per CPU, by their heads."""
    found = [Sheet(p) for p in glob.glob(os.path.join(folder, f"{table}-*.csv")) if not p.endswith(".runs.csv")]
    return sorted((s for s in found if s.head.get("table") == table), key=lambda s: s.cpu)


def number(v):
    return f"{v:,.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def spread(values):
    """Median, and the least and the most if they differ."""
    values = [float(v) for v in values if v not in ("", None)]
    if not values:
        return ""
    texts = [number(v) for v in (statistics.median(values), min(values), max(values))]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def span(values, form):
    texts = [form.format(v) for v in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def median(rows, key):
    values = [float(r[key]) for r in rows if r.get(key)]
    return statistics.median(values) if values else 0.0


def grid(head, lines):
    rule = "|" + "---|" * len(head)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def age(sheet):
    """A line for a CSV whose commit is a hundred or more behind; "" for a newer one, or one that git does not know."""
    done = subprocess.run(["git", "-C", HERE, "rev-list", "--count", f"{sheet.head.get('commit')}..HEAD"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    hundreds = int(done.stdout) // 100 if done.returncode == 0 else 0
    return f"- OLD: {sheet.cpu} was measured more than {hundreds}00 commits ago.\n" if hundreds else ""


def origin(found):
    """The origin of the columns, a sentence per CPU, with any irregularities."""
    out = []
    for s in found:
        h = s.head
        command = h.get("command", "")
        ours = os.path.exists(os.path.join(HERE, command.split(" ")[0])) and command
        text = f"{h.get('machine', s.cpu)}: `{'bench/' * bool(ours)}{command}`"
        text += f", {h.get('date', '')[:10]}, commit {h.get('commit', 'unknown')}"
        if "disk_read_gb_s" in h:
            text += (f"; disk {h['disk_read_gb_s']} GB/s, RAM {h['ram_gb_s']} GB/s, bf16 matmul "
                     f"{h['matmul_bf16_gflop_s']} GFLOP/s")
        n = h.get("turns")
        text += f"; medians of {n}, in turns (least to most)" if n and int(n) > 1 else "; single runs" if n else ""
        busy = sum(r.get("idle") == "no" for r in s.rows)
        text += "; NOT COMMITTED" * (h.get("dirty") == "yes") + f"; {busy} runs on a busy machine" * bool(busy)
        text += f"; left out: {h['left_out']}" if "left_out" in h else ""
        text += f" ([CSV](results/{os.path.basename(s.path)}))"
        out.append(text)
    return "\n".join(f"- {text}." for text in out) + "\n" + "".join(map(age, found)) + "\n"


def keys_of(found, names):
    """The rows of a table: the values of the named columns, in the order of the CSVs."""
    keys = {}
    for s in found:
        for r in s.runs:
            keys[tuple(r[n] for n in names)] = None
    return list(keys)


def times(reference, row, key="tok_s"):
    a, b = median(reference, key), median(row, key)
    return f"{a / b:.2f}" if a and b else "?"


def status_of(s, want):
    return ", ".join(sorted({r["status"] for r in s.runs if all(r[k] == v for k, v in want.items())})) or "not measured"


# ---- engines on one job ----

def engines_table(found, names, titles, references):
    """A row per engine; per CPU the steady rate, that of the whole job, and by how much sluice's references (name,
    columns that they have, whether a row counts for the comparison) are faster, steady and whole."""
    head = titles + [t for s in found for t in (f"{s.cpu}: output tokens/s", "whole job", "sluice is")]
    lines = []
    for key in keys_of(found, names):
        want = dict(zip(names, key))
        line = [NAMES.get(v, v) if n == "compute" else {"on": "once", "off": "each"}[v] if n == "shares" and v else v
                for n, v in want.items()]
        for s in found:
            mine = s.good(**want)
            ratios = []
            for name, columns in references(want):
                ours = s.good(**columns)
                if mine and ours and want["engine"] != "sluice":
                    ratios.append(f"{name} {times(ours, mine)} x ({times(ours, mine, 'whole_tok_s')} x whole)")
            line += [spread(r["tok_s"] for r in mine) or status_of(s, want), spread(r["whole_tok_s"] for r in mine),
                     "; ".join(ratios)]
        lines.append(line)
    return grid(head, lines)


CLOCKS = ("\n*Output tokens/s*: the job alone, {} (sluice is no server: from step 0 to the last durable row, "
          "behind opening, planning and the page faults of its arena). *Whole job*: from the start of the process "
          "to the last token, load and first inference of every engine in.\n")
WARM, COLD = "after a warm-up request", "behind loading; every run begins with its files out of the page cache"


def searched(found):
    """The flags that the searches found, a line per engine."""
    out = []
    for s in found:
        tries = {}
        for r in s.rows:
            if r.get("kind") == "search":
                tries[r["engine"]] = tries.get(r["engine"], 0) + 1
        best = {}
        for r in s.runs:
            if r["engine"] != "sluice":
                words = re.sub(r"--(threads|model|sluice) \S+ ?", "", r["flags"])
                best[words] = None
        if best:
            out.append(f"{s.cpu}: best flags of {sum(tries.values())} tries (in the CSV): " +
                       "; ".join(f"`{b.strip()}`" for b in best))
    return "".join(f"\n{line}.\n" for line in out)


def ram(found):
    text = engines_table(found, ["engine", "weights", "compute", "shares"],
                         ["engine", "weights", "computes on", "common prefixes"],
                         lambda want: [(n, {"engine": "sluice", "compute": c, "shares": want["shares"]})
                                       for n, c in (("bf16", "bf16"), ("int8", "int8"))])
    skipped = [f"{median(s.good(engine='sluice', shares='on'), 'shared_prompt_tokens'):,.0f} of {s.head['prompt_tokens']} "
               f"prompt tokens ({s.cpu})" for s in found]
    roofs = [f"{s.cpu} " + ", ".join(f"{c} {median(s.good(engine='sluice', compute=c, shares='off'), 'roof_fraction'):.2f}"
                                     for c in ("bf16", "int8")) for s in found]
    return (f"{found[0].head['job']}.\n\n{origin(found)}{text}{CLOCKS.format(WARM)}\n*Common prefixes* once: prompts that begin alike "
            f"compute what they share once (peers/README.md: how each engine does it); sluice skips "
            f"{'; '.join(skipped)}. Every ratio is to sluice with the same setting. sluice's share of what the rates "
            f"allow: {'; '.join(roofs)}.\n{searched(found)}")


def streamed(found):
    text = engines_table(found, ["engine", "case", "weights", "compute"], ["engine", "rows", "weights", "computes on"],
                         lambda want: [(n, {"engine": "sluice", "compute": c, "case": "64 rows"})
                                       for n, c in (("bf16", "bf16"), ("int8", "int8"))])
    said = []
    for s in found:
        for c in ("bf16", "int8"):
            mine = [r for r in s.good(engine="sluice", compute=c) if r["case"] != "64 rows"]
            if mine:
                said.append(f"{s.cpu}, {c}: predicted {median(mine, 'predicted_s'):,.0f} s, took "
                            f"{median(mine, 'seconds'):,.0f} s, {median(mine, 'roof_fraction'):.2f} of what the rates of "
                            f"disk and matmuls allow, disk at {median(mine, 'disk_gb_s'):.2f} GB/s")
    return (f"{found[0].head['job']}; the peers do one full batch of their best size, sluice as many rows (64) and a "
            f"queue that it refills.\n\n{origin(found)}{text}{CLOCKS.format(COLD)}\nsluice's queue: {'; '.join(said)}.\n{searched(found)}")


def h2o(found):
    head = ["weights, KV"] + [t for s in found for t in (f"{s.cpu}: steady tokens/s", "rows at once", "x full KV in RAM",
                                                         "bound")]
    lines = []
    for case, in keys_of(found, ["case"]):
        line = [case]
        for s in found:
            mine, base = s.good(case=case), s.good(case=case.split(", ")[0] + ", KV full, in RAM")
            line += [spread(r["steady_tok_s"] for r in mine) or (status_of(s, {"case": case}) if not mine else "none yet"),
                     f"{median(mine, 'batch'):.0f}", times(mine, base, "steady_tok_s"),
                     "/".join(sorted({r["bound"] for r in mine}))]
        lines.append(line)
    held = ", ".join(sorted({f"{float(r['disk_limit']) / 1e9:g} GB/s" for s in found for r in s.runs if r["disk_limit"]}))
    return f"{found[0].head['job']}; disk {'held at ' + held if held else 'as it is'}.\n\n{origin(found)}{grid(head, lines)}"


def of_roof(r):
    """The least time that the rates allow, of the time taken. The rate of a held disk is its limit, which the probe has not met."""
    held = float(r["read_gb"]) * 1e9 / float(r["disk_limit"]) / float(r["seconds"]) if r["disk_limit"] else 0
    return max(float(r["roof_fraction"]), held)


def formats(found):
    head = ["disk", "weights", "computes on"] + [t for s in found for t in (
        f"{s.cpu}: tokens/s", "x bf16", "GB a pass", "disk GB/s", "of the roof", "bytes of bf16's answer")]
    lines = []
    for case, w, c in keys_of(found, ["case", "weights", "compute"]):
        line = [case, w, NAMES[c]]
        for s in found:
            mine, base = s.good(case=case, weights=w, compute=c), s.good(case=case, weights="bf16", compute="bf16")
            same = {r["answer"] for r in mine} == {r["answer"] for r in base}
            line += [spread(r["tok_s"] for r in mine), times(mine, base),
                     spread(float(r["read_gb"]) / float(r["passes"]) for r in mine), number(median(mine, "disk_gb_s")),
                     f"{statistics.median([*map(of_roof, mine)] or [0]):.2f}", "the same" if same else "others"]
        lines.append(line)
    return f"{found[0].head['job']}.\n\n{origin(found)}{grid(head, lines)}"


def start(found):
    head = ["job"] + [t for s in found for t in (f"{s.cpu}: process, s", "opening and planning, s", "time in which the CPU does not compute")]
    lines = []
    for case, in keys_of(found, ["case"]):
        line = [case]
        for s in found:
            mine = s.good(case=case)
            line += [spread(r["whole_s"] for r in mine), spread(r["load_s"] for r in mine),
                     spread(100 * (1 - float(r["cpu_busy"])) for r in mine) + " %"]
        lines.append(line)
    return f"{found[0].head['job']}.\n\n{origin(found)}{grid(head, lines)}"


# ---- plots' tables ----

def budget(found):
    kinds = [("sluice", "q4_1", "sluice Q4_1"), ("sluice", "q8", "sluice q8 int8"), ("llama.cpp", "q4_1", "llama.cpp Q4_1"),
             ("llama.cpp", "q4_0", "llama.cpp Q4_0")]
    kinds = [k for k in kinds if any(r["engine"] == k[0] and r["format"] == k[1] for s in found for r in s.rows)]
    head = ["MiB"] + [f"{s.cpu}: {title}" for s in found for _, _, title in kinds]
    sizes = sorted({int(r["budget_mib"]) for s in found for r in s.rows})
    lines = []
    for mib in sizes:
        line = [str(mib)]
        for s in found:
            for engine, form, _ in kinds:
                r = next((r for r in s.rows if (r["engine"], r["format"], r["budget_mib"]) == (engine, form, str(mib))), None)
                line.append("" if r is None else r["status"] if not r["tok_s"] else
                            spread([r["tok_s"], r["tok_s_min"], r["tok_s_max"]]))
        lines.append(line)
    return f"{found[0].head['job']}.\n\n{origin(found)}{grid(head, lines)}"


# ---- ops ----

# Name, op, what the shape must match, whether FLOPs count (else bytes do).
OPS = [
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
    ("rotate", "rotate", r"", False),
    ("gate_mul", "gate_mul", r"", False),
    ("mix", "mix", r"", False),
    ("kv_store", "kv_store", r"", False),
    ("prompt_keep", "prompt_keep", r"", False),
    ("head_reduce", "head_reduce", r"", False),
]


FORMER = {"silu_mul": "gate_mul"}  # in older CSVs


def ops_cells(s, op, shape, by_flops):
    mine = [r for r in s.rows if FORMER.get(r["op"], r["op"]) == op and re.search(shape, r["shape"])]
    if not mine:
        return ["", ""]
    rates = span([float(r["gflop_s" if by_flops else "gb_s"]) for r in mine], "{:.0f}")
    return [f"{rates} {'GFLOP/s' if by_flops else 'GB/s'}", span([float(r["roof"]) for r in mine], "{:.2f}")]


def scores_share(s):
    """The cost of scores and of choosing victims, as shares of the time of attend_forced over bf16 KV."""
    us = {r["shape"]: float(r["us"]) for r in s.rows if r["op"] == "attend_forced"}
    shares = [100 * v / us[shape.replace(" scores", " full")] for shape, v in us.items()
              if re.search(r" (640|2048) bf16 scores$", shape)]
    return [f"{span(shares, '{:.0f}')} % of attention's time" if shares else "", ""]


def ops(found):
    head = ["op"] + [t for s in found for t in (f"{s.cpu}: rate", "of the roof")]
    lines = [[name] + [c for s in found for c in ops_cells(s, op, shape, flops)] for name, op, shape, flops in OPS]
    lines = [line for line in lines if any(line[1:])]
    lines.append(["scores and victims of h2o, beside attention"] + [c for s in found for c in scores_share(s)])
    roofs = "; ".join(f"{s.cpu}: {s.head['isa']}, {s.head['threads']} threads, {float(s.head['roof_gflop_s']):.0f} GFLOP/s, "
                      f"{float(s.head['roof_ram_gb_s']):.1f} GB/s" for s in found)
    return f"{origin(found)}Roofs probed in the same run: {roofs}.\n\n{grid(head, lines)}"


def libraries(found):
    pairs = [("sluice bf16", "oneDNN bf16"), ("sluice f32", "OpenBLAS f32")]
    head = ["rows"] + [f"{s.cpu}: {a} / {b}" for s in found for a, b in pairs]
    lines = []
    for m in (1, 4, 16, 64, 256, 1024):
        line = [f"{m:,}"]
        for s in found:
            rate = {(r["lib"], r["n"], r["k"]): float(r["gflops"]) for r in s.rows if r["m"] == str(m)}
            for a, b in pairs:
                ratios = [v / rate[b, n, k] for (lib, n, k), v in rate.items() if lib == a and (b, n, k) in rate]
                line.append(span(ratios, "{:.2f}") if ratios else "")
        lines.append(line)
    return f"{origin(found)}{grid(head, lines)}"


def quality(found):
    head = ["what"] + [t for s in found for t in (f"{s.cpu}: perplexity", "windows", "more than the first of its kind")]
    lines = []
    for case in dict.fromkeys(r["case"] for s in found for r in s.rows):
        line = [case]
        for s in found:
            r = next((r for r in s.rows if r["case"] == case), None)
            base = next((b for b in s.rows if r and b["case"].startswith("KV ") == case.startswith("KV ")), None)
            line += [f"{float(r['ppl']):.2f}", r["windows"], f"{100 * (float(r['ppl']) / float(base['ppl']) - 1):.1f} %"] \
                if r else ["", "", ""]
        lines.append(line)
    return f"{origin(found)}{grid(head, lines)}"


# ---- the planner ----

def predict(found, most=6):
    """The figure of each CPU, and its jobs with the largest errors."""
    head = ["job"] + [t for s in found for t in (f"{s.cpu}: predicted, s", "took, s", "predicted / taken", "where it is off by more "
                                                 f"than {100 * predictions.planned.OFF:.0f} %")]
    errors = {s.cpu: {case: r for _, case, _, r in predictions.errors(s.runs)} for s in found}
    cases = dict.fromkeys(case for by_case in errors.values() for case in list(by_case)[:most])
    lines = []
    for case in cases:
        line = [case]
        for s in found:
            r = errors[s.cpu].get(case)
            line += [number(float(r["predicted_s"])), number(float(r["elapsed_s"])), f"{float(r['ratio']):.2f}", r["cause"]] if r else [""] * 4
        lines.append(line)
    figures = "".join(f"- {s.cpu}: {predictions.told(s.runs)[-1]}.\n" for s in found)
    return f"{origin(found)}{figures}\nThe furthest off:\n\n{grid(head, lines)}"


def choice(found):
    head = ["case"] + [t for s in found for t in (f"{s.cpu}: chosen, s", "best, s", "worst, s", "plans", "chosen / best")]
    lines = []
    for case, in keys_of(found, ["case"]):
        line = [case]
        for s in found:
            plans, runs = choices.standing(s.runs, case)
            chosen, best = plans.get(choices.AUTO), min(plans.values(), default=0)
            worst = max((max(seconds) for seconds in runs.values()), default=0)
            line += [number(chosen), number(best), number(worst), str(len(runs)), f"{chosen / best:.2f}"] if chosen else [""] * 5
        lines.append(line)
    figures = "".join(f"- {s.cpu}: {choices.told(s.runs)[-1]}.\n" for s in found)
    return f"{origin(found)}{figures}\n{grid(head, lines)}"


def hand(found):
    head = ["policy"] + [t for s in found for t in (f"{s.cpu}: by hand, s", "planned, s", "planned is", "as")]
    lines = []
    for case, in keys_of(found, ["case"]):
        line = [case]
        for s in found:
            auto, mine = s.good(case=case, flags=hands.AUTO), [r for r in s.good(case=case) if r["flags"] != hands.AUTO]
            line += [spread(r["elapsed_s"] for r in mine), spread(r["elapsed_s"] for r in auto),
                     f"{median(mine, 'elapsed_s') / median(auto, 'elapsed_s'):.2f} x" if mine and auto else "?",
                     f"`{mine[0]['flags']}`" if mine else ""]
        lines.append(line)
    figures = "".join(f"- {s.cpu}: {hands.told(s.runs)[-1]}.\n" for s in found)
    return f"{origin(found)}{figures}\n{grid(head, lines)}"


def paper(found):
    """Rows with a figure of FlexGen; each with the better place of attention."""
    head = ["OPT, tokens, variant", "FlexGen, tokens/s (rows)", "planned (rows)", "x FlexGen", "attention", "the busiest lanes of a pass",
            "of the roof"]
    best = {}
    for r in found[0].rows:
        key = r["model"], r["new"], r["variant"]
        if r["status"] == "ok" and r["flexgen_tok_s"] and float(r["tok_s"]) > float(best.get(key, {"tok_s": 0})["tok_s"]):
            best[key] = r
    lines = [[f"{r['model'].removeprefix('opt-').upper()}, {r['prompt']} + {r['new']}, {r['variant']}",
              f"{r['flexgen_tok_s']} ({r['flexgen_rows']})", f"{number(float(r['tok_s']))} ({r['rows_at_once']})",
              f"{float(r['times_flexgen']):.2f}", r["attn"],
              f"{r['bound']} {100 * float(r['bound_share']):.0f} %, {r['next']} {100 * float(r['next_share']):.0f} %",
              f"{float(r['of_roof']):.2f} ({r['roof_bound']})"]
             for r in best.values()]
    return f"{found[0].head['job']}.\n\n{origin(found[:1])}{grid(head, lines)}"


WIDTH = 130  # columns of a line outside tables


def wrapped(table):
    """Wraps the function of a table to break long lines of prose; a list item stays one item."""
    def of(found):
        return "".join(line if line[0] in "|\n" else textwrap.fill(line, WIDTH, subsequent_indent="  " * line.startswith("- "),
                                                                   break_long_words=False, break_on_hyphens=False) + "\n"
                       for line in table(found).splitlines(True))
    return of


TABLES = {f.__name__: wrapped(f) for f in (ram, streamed, h2o, formats, budget, ops, libraries, quality, start, predict, choice,
                                           hand, paper)}


def replaced(text, name, table):
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"tables.py: README.md needs {begin.strip()} and {end.strip()} once each")
    before, rest = text.split(begin)
    return before + begin + table + end + rest.split(end)[1]


def plot(name, table, folder):
    found = sorted(sheets(table, folder), key=lambda s: s.head.get("date", ""))
    if not found:
        return
    import plots  # pylint: disable=import-outside-toplevel
    plots.DRAWINGS[name](found[-1].path).savefig(os.path.join(HERE, "plots", f"{name}.svg"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tables", nargs="*", metavar="TABLE", help=f"{' '.join(TABLES)} [all]")
    p.add_argument("--results", default=os.path.join(HERE, "results"), help="folder of the CSVs [bench/results]")
    p.add_argument("--write", metavar="FILE", help="write the tables into this file instead of printing them")
    p.add_argument("--plots", action="store_true")
    a = p.parse_args()
    if set(a.tables) - set(TABLES):
        p.error(f"no such table: {' '.join(set(a.tables) - set(TABLES))}")
    text = ""
    if a.write:
        with open(a.write, encoding="utf-8") as f:
            text = f.read()
    for name in a.tables or TABLES:
        found = sheets(name, a.results)
        if not found:
            print(f"tables.py: {name}: no {name}-CPU.csv: left as it is", file=sys.stderr)
        elif a.write:
            text = replaced(text, name, TABLES[name](found))
        else:
            print(TABLES[name](found))
    if a.write:
        with open(a.write, "w", encoding="utf-8") as f:
            f.write(text)
    for name, table in PLOTS.items() if a.plots else ():
        plot(name, table, a.results)


if __name__ == "__main__":
    main()
