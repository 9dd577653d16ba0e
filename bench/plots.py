"""The drawings of bench/README.md, each of one CSV of bench/results: DRAWINGS[name](path) is a figure of matplotlib.

Colours are Okabe and Ito's, which colour-blind people can distinguish.
"""
import csv

from matplotlib.figure import Figure

INK, SOFT = "#333333", "#777777"
BLUE, RED, ORANGE, GREEN, PINK, SKY = "#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"


def sheet(path):
    """({key: value} of the head, rows); figures are numbers, a field without one is None."""
    def value(text):
        try:
            return float(text)
        except ValueError:
            return text or None
    with open(path, encoding="utf-8", newline="") as f:
        lines = f.readlines()
    head = dict(line[2:].rstrip("\n").split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    return head, [{k: value(v) for k, v in row.items()} for row in csv.DictReader(x for x in lines if not x.startswith("#"))]


def canvas(title, about, panels=1):
    """A figure and its axes; a small subtitle says what was measured."""
    figure = Figure(figsize=(8 if panels == 1 else 11, 5), layout="constrained")
    figure.suptitle(title, x=0.02, ha="left", weight="bold", color=INK)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    axes[0].set_title(about, loc="left", fontsize=8, color=INK)
    for one in axes:
        one.grid(color="#dddddd", lw=0.8)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def line(axes, rows, x, y, color, name, style="o-"):
    """Points in the order of x, and a name in the legend."""
    found = sorted((r[x], r[y]) for r in rows if r[x] is not None and r[y] is not None)
    if found:
        axes.plot(*zip(*found), style, color=color, label=name)


def log_axis(axis, values):
    """Ticks at these values, as plain numbers."""
    axis.set_ticks(values, [f"{v:g}" for v in values])
    axis.set_ticks([], minor=True)


def rounds(rows, key):
    """1, 2, 5, 10, ... around all values of a column."""
    found = [r[key] for r in rows if r[key]]
    return [v for e in range(-1, 5) for v in (10**e, 2 * 10**e, 5 * 10**e) if min(found) / 2.5 <= v <= max(found) * 2.5]


def budget(path):
    """Output tokens/s against the memory budget, a line for each engine."""
    head, rows = sheet(path)
    rows = [r for r in rows if r["status"] == "ok"]
    figure, (axes,) = canvas("Output tokens/s under a memory budget",
                             "SmolLM2-135M-Instruct (98 MB in Q4_1), 64 chat prompts, 64 new tokens each; " + head["machine"])
    axes.loglog()
    for engine, form, name, color in (("sluice", "q4_1", "sluice", BLUE), ("llama.cpp", "q4_1", "llama.cpp Q4_1", RED),
                                      ("llama.cpp", "q4_0", "llama.cpp Q4_0", ORANGE), ("sluice", "q8", "sluice q8, int8", SKY)):
        line(axes, [r for r in rows if (r["engine"], r["format"]) == (engine, form)], "budget_mib", "tok_s", color, name)
    log_axis(axes.xaxis, sorted({r["budget_mib"] for r in rows}))
    log_axis(axes.yaxis, rounds(rows, "tok_s"))
    axes.set(xlabel="memory of the control group, MiB", ylabel="output tokens/s, prompts included")
    axes.legend(loc="lower right")
    return figure


def evaluate(path):
    """The cost of KV policies against the budget: perplexity of the longest windows, and hidden numbers. Of several KV formats the
    first is drawn."""
    head, rows = sheet(path)
    rows = [r for r in rows if r["format"] == rows[0]["format"]]
    longest = max(r["length"] for r in rows if r["task"] == "ppl")
    figure, panels = canvas("What KV policies cost in answers", f"{head['model']}, KV {rows[0]['format']}; dashed: full KV", 2)
    for axes, task, figure_of, title in zip(panels, ("ppl", "passkey"), ("ppl", "logprob"), (f"perplexity, windows of {longest:g} tokens",
                                                                                               "log p of a token of a hidden number")):
        mine = [r for r in rows if r["task"] == task and (task != "ppl" or r["length"] == longest) and r[figure_of] is not None]
        means = {}
        for r in mine:
            means.setdefault((r["policy"], r["budget"]), []).append(r[figure_of])
        means = {key: sum(x) / len(x) for key, x in means.items()}
        axes.axhline(means[("full", None)], ls="--", color=SOFT)
        for i, policy in enumerate(dict.fromkeys(p for p, _ in means if p != "full")):
            found = sorted((b, y) for (p, b), y in means.items() if p == policy)
            axes.plot(*zip(*found), "os^Dvp"[i % 6] + "-", color=(BLUE, RED, GREEN, ORANGE, PINK, SKY)[i % 6], label=policy)
        axes.set(xlabel="KV budget", ylabel=title)
    panels[0].legend(loc="upper right")
    return figure


def kind(row):
    """(name, colour, point) of an op; None: it moves bytes only."""
    op, shape = row["op"], row["shape"]
    if op == "matmul":
        return (("matmul int8 (q8, q4)", PINK, "D") if "int8" in shape else ("matmul bf16", BLUE, "o") if "bf16" in shape else
                ("matmul bf12", SKY, "o") if "bf12" in shape else ("matmul q8, q4, ...", GREEN, "s"))
    if op == "attend_prompt":
        return "attend prompt", RED, "p"
    if op == "attend_forced":
        return ("attend KV q8, q4, mixed", ORANGE, "v") if any(x in shape for x in ("q8", "q4", "mixed")) else ("attend KV bf16, f32", ORANGE, "^")
    return ("norm, rope, gate_mul", SOFT, "x") if op in ("norm", "rope", "gate_mul", "silu_mul", "mix") else None


def roofline(path):
    """GFLOP/s of the ops against FLOPs per byte, under the roofs of the same run."""
    head, rows = sheet(path)
    peak, ram = float(head["roof_gflop_s"]), float(head["roof_ram_gb_s"])
    figure, (axes,) = canvas("The ops under the roofs of the machine", f"{head['machine']}; {head['command']}")
    axes.loglog()
    edge = peak / ram
    axes.plot([0.2, edge, 1500], [0.2 * ram, peak, peak], color=INK, lw=2)
    axes.plot([edge, 2 * edge, 1500], [peak, 2 * peak, 2 * peak], "--", color=SOFT)
    axes.text(0.02, 0.93, f"roofs: bf16 {peak:.0f} GFLOP/s (int8: twice that), RAM {ram:.0f} GB/s", transform=axes.transAxes, color=INK)
    points = {}
    for r in rows:
        if (found := kind(r)) and r["gb_s"] and r["gflop_s"]:
            points.setdefault(found, []).append((r["gflop_s"] / r["gb_s"], r["gflop_s"]))
    for (name, color, point), found in points.items():
        axes.scatter(*zip(*found), color=color, marker=point, s=18, label=name)
    axes.set(xlabel="FLOPs per byte", ylabel="GFLOP/s", xlim=(0.2, 1500), ylim=(5, 4 * peak))
    axes.legend(loc="lower right", fontsize=8)
    return figure


DRAWINGS = {"budget": budget, "evaluate": evaluate, "roofline": roofline}
