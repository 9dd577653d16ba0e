"""What a job would take under other flags: plans side by side, lossy options with their measured cost, and drawings.

    rows = whatif.sweep("configs/llama-1b.cfg", prompt_len=128, gen_len=64, num_prompts=200, mem_ram=["1G", "2G", "4G"])
    pandas.DataFrame(rows)                                      # a table
    whatif.sweep_figure(rows, "mem_ram").savefig("memory.svg")  # a drawing

Every figure is a prediction of `sluice plan`: nothing is run, and no flag that changes answers is ever chosen. Drawings need matplotlib.
"""
from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._program import Error, call

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORTH = 1.02  # times the rate of fewer options: what one more option has to bring
SAME_SPEED = 0.99  # speeds that are measured no closer are one, as for `bench frontier`
DOES_NOT_FIT = 4
MIB = 2 ** 20
OPTIONS = {"q8": {"weights": "q8"}, "q4": {"weights": "q4"}, "int8": {"compute": "int8"}, "kv-q8": {"kv_format": "q8"},
           "kv-q4": {"kv_format": "q4"}, "mixed": {"kv_format": "mixed"}}


def plan(model: str, *, advice: bool = False, **flags: Any) -> dict[str, Any]:
    """What `sluice plan --json` says. advice: also other plans and what would make the job faster, which takes several times as
    long. Error: no plan fits (code 4), or a flag is wrong."""
    return json.loads(call("plan", {"model": model, **flags, "json": True, "quiet": True, "no_advice": not advice}))


def _quality(found: list[dict[str, Any]]) -> str:
    """Perplexity that each change costs: "q4 not measured, h2o +25.4 %"; "" where answers stay."""
    return ", ".join(q["what"] + (" not measured" if q["more_perplexity"] is None else f" +{100 * q['more_perplexity']:.1f} %") for q in found)


def _row(model: str, flags: dict[str, Any]) -> dict[str, Any]:
    """The figures of one plan; where no plan fits, `why` says why, and the figures are None."""
    try:
        found, why = plan(model, **flags), ""
    except Error as error:
        if error.code != DOES_NOT_FIT:
            raise
        found, why = None, error.sentence
    figures: dict[str, Any] = dict.fromkeys(("batch", "batches", "weights_resident", "prefill_tokens", "device_mib", "ram_mib", "disk_mib",
                                             "pass_s", "job_s", "tokens_per_s", "bound", "more_perplexity", "measured_on"))
    if found:
        figures |= {k: found["plan"][k] for k in ("batch", "batches", "weights_resident", "prefill_tokens")}
        figures |= {f"{k}_mib": found["bytes"][k] / MIB for k in ("device", "ram", "disk")}
        figures |= {k: found["predicted"][k] for k in ("pass_s", "job_s", "bound")}
        figures["tokens_per_s"] = found["work"]["output_tokens"] / figures["job_s"] if figures["job_s"] else 0.0
        figures["more_perplexity"] = _quality(found["quality"] or [])
        figures["measured_on"] = "; ".join(dict.fromkeys(q["on"] for q in found["quality"] or [] if q["on"]))
    return {**figures, "why": why}


def sweep(model: str, **flags: Any) -> list[dict[str, Any]]:
    """A row for each plan: flags whose value is a list or a range go through all their values, in every combination. A row has
    these flags as they were given and the figures of the plan; a plan that does not fit has no figures, and `why`. Name budgets, or a
    machine file, to compare plans: else each plan has what is free on this machine at its time."""
    swept = {k: list(v) for k, v in flags.items() if isinstance(v, (list, tuple, range))}
    rows = []
    for values in itertools.product(*swept.values()):
        point = dict(zip(swept, values))
        rows.append({**point, **_row(model, {**flags, **point}), **point})
    return rows


# ---- lossy options --------------------------------------------------------------------------------

def _option(word: str) -> tuple[str, dict[str, Any]]:
    """What an option changes, and its flags: "h2o=0.2" is kv_policy, kv_policy=h2o and kv_budget=0.2."""
    policy, equals, budget = word.partition("=")
    if not equals and word not in OPTIONS:
        raise Error(2, f"allow: invalid option {word!r} ({', '.join(OPTIONS)} or POLICY=BUDGET, h2o=0.2)")
    found: dict[str, Any] = {"kv_policy": policy, "kv_budget": budget} if equals else dict(OPTIONS[word])
    return next(iter(found)), found


def allow(model: str, options: Iterable[str], **flags: Any) -> list[dict[str, Any]]:
    """The plan as asked, then the job under lossy options, the fastest first: each option alone, and combinations that are at least
    2 % faster than their parts. `times` is the speed-up; `more_perplexity` is what the changes were measured to cost, by
    `bench frontier` on this model, else on the model and text of `measured_on`. `int8` is another speed over q8 and q4 weights only; weights in another format are packed at
    their first use."""
    kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for word in dict.fromkeys(options):
        kind, changed = _option(word)
        kinds.setdefault(kind, []).append((word, changed))
    asked = {"options": "", "flags": {}, **_row(model, flags)}
    if asked["why"]:
        raise Error(DOES_NOT_FIT, asked["why"])
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for combined in sorted(itertools.product(*([None, *some] for some in kinds.values())), key=lambda x: sum(map(bool, x))):
        chosen = [x for x in combined if x]
        names = tuple(word for word, _ in chosen)
        parts = [rows[x] for i in range(len(names)) if (x := names[:i] + names[i + 1:]) in rows]
        if not names or (len(names) > 1 and not parts):
            continue
        more = {k: v for _, changed in chosen for k, v in changed.items()}
        row = {"options": " + ".join(names), "flags": more, **_row(model, {**flags, **more})}
        if len(names) == 1 or (row["tokens_per_s"] or 0) >= WORTH * max(x["tokens_per_s"] or 0 for x in parts):
            rows[names] = row
    lines = [asked, *sorted(rows.values(), key=lambda x: -(x["tokens_per_s"] or 0))]
    return [{**x, "times": x["tokens_per_s"] and x["tokens_per_s"] / asked["tokens_per_s"]} for x in lines]


# ---- drawings -------------------------------------------------------------------------------------

def _figure(width: float, height: float) -> Figure:
    """No pyplot: nothing is shown, and no window system is needed."""
    from matplotlib.figure import Figure  # pylint: disable=import-outside-toplevel
    return Figure(figsize=(width, height), layout="constrained")


def _number(value: object) -> float | None:
    """2**30 of "1G", 0.2 of 0.2 or "20%"; None of words."""
    found = re.fullmatch(r"([\d.]+)(?:([KMGTkmg])(?:i?B)?)?(%?)", str(value))
    if not found:
        return None
    unit = {"K": 2 ** 10, "M": 2 ** 20, "G": 2 ** 30, "T": 2 ** 40, "k": 1e3, "m": 1e6, "g": 1e9}.get(found[2], 1)
    return float(found[1]) * unit / (100 if found[3] else 1)


def sweep_figure(rows: list[dict[str, Any]], flag: str) -> Figure:
    """Tokens a second at the values of a flag, a colour for each lane that limits a plan: along an axis where all values are numbers,
    else side by side. Values at which no plan fits keep their place."""
    figure = _figure(8, 5)
    axes = figure.subplots()
    numbers = [_number(row[flag]) for row in rows]
    scaled = len(rows) > 1 and all(numbers)
    at = numbers if scaled else list(range(len(rows)))
    if scaled:
        axes.plot(at, [row["tokens_per_s"] for row in rows], color="0.7", zorder=1)
        axes.set_xscale("log", base=2)
    for bound in dict.fromkeys(row["bound"] for row in rows if row["bound"]):
        mine = [(x, row["tokens_per_s"]) for x, row in zip(at, rows) if row["bound"] == bound]
        (axes.scatter if scaled else axes.bar)(*zip(*mine), label=f"limited by {bound}")
    axes.set_xticks(at, [str(row[flag]).rsplit("/", 1)[-1] for row in rows])
    axes.minorticks_off()
    axes.set(xlabel=flag, ylabel="predicted output tokens/s", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _table(path: str) -> list[dict[str, Any]]:
    """Rows of a CSV of `sluice bench`; lines that begin with # are its head."""
    with open(path, encoding="utf-8", newline="") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def frontier_figure(path: str) -> Figure:
    """Speed over perplexity of KV policies, of a CSV of `bench frontier`: a colour for each policy; points that no point beats have
    their names, in a column at the right. Points that are much worse than these are left out."""
    points = [{**row, "x": float(row["perplexity"]), "y": float(row["output_tok_s"]), "name":
               row["kv_policy"] + (f"={row['kv_budget']}" if row["kv_budget"] else "") + " " + row["kv_format"]}
              for row in _table(path) if row["output_tok_s"]]
    best = [p for p in points if not any(q["y"] >= SAME_SPEED * p["y"] and q["x"] <= p["x"] and
                                         (q["y"] > p["y"] or q["x"] < p["x"]) for q in points)]
    best.sort(key=lambda p: -p["y"])
    least = min(p["x"] for p in points)
    most = max(1.1 * max(p["x"] for p in best), 1.5 * least)
    top = 1.08 * max(p["y"] for p in points)
    figure = _figure(10, 6)
    axes = figure.subplots()
    for i, policy in enumerate(dict.fromkeys(p["kv_policy"] for p in points)):
        mine = [p for p in points if p["kv_policy"] == policy and p["x"] <= most]
        axes.scatter([p["x"] for p in mine], [p["y"] for p in mine], s=18, label=policy, marker="os^"[i // 10 % 3])
    axes.plot([p["x"] for p in best], [p["y"] for p in best], color="0.5", zorder=1)
    line, step = top, top / max(32, len(best) + 1)
    for p in best:  # each beside its point, or below the name before
        line = min(line - step, p["y"])
        axes.annotate(p["name"], (p["x"], p["y"]), (most, line), fontsize=8, va="center", arrowprops={"arrowstyle": "-", "color": "0.8"})
    axes.set(xlim=(least - 0.03 * (most - least), most + 0.5 * (most - least)), ylim=(0, top), ylabel="output tokens/s",
             xlabel="perplexity (points much worse than the named ones are not drawn)", title="speed and loss of KV policies")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    return figure


def attention_figure(path: str) -> Figure:
    """Where the weight of attention lies, of a CSV of `bench attention`: four drawings over the layers."""
    rows = [{k: float(row[k]) for k in row if k in ("layer", "sparsity", "slots_95", "top_5", "top_10", "top_20", "power") or "~" in k}
            for row in _table(path)]
    layers = sorted({row["layer"] for row in rows})

    def means(key: str) -> list[float]:
        mine = [[row[key] for row in rows if row["layer"] == layer] for layer in layers]
        return [sum(x) / len(x) for x in mine]

    figure = _figure(12, 8)
    pairs = [key for key in rows[0] if "~" in key]
    titles = (("sparsity of heads, and slots that hold 95 % of a query", ("sparsity", "slots_95"), True),
              ("share of accumulated weight on the heaviest positions", ("top_5", "top_10", "top_20"), False),
              ("accumulated weight falls as rank^-power", ("power",), True),
              ("kept sets: share that two policies have in common", pairs, False))
    for axes, (title, keys, heads) in zip(figure.subplots(2, 2).flat, titles):
        for i, key in enumerate(keys):
            axes.plot(layers, means(key), color=f"C{i}", label=key.replace("~", ", "))
            if heads:
                axes.scatter([row["layer"] for row in rows], [row[key] for row in rows], s=3, color=f"C{i}")
        axes.set(title=title, xlabel="layer")
        axes.grid(alpha=0.3)
        if keys:
            axes.legend()
    return figure
