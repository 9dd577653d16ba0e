#!/usr/bin/env python3
"""The cost of KV policies, budgets and formats in answers: evaluate.py -m MODEL [--policies full,h2o --budgets 0.2,0.5] [flags]

  passkey   a number hidden in a text, lengths x depths
  needles   several numbers hidden in one text, each asked for
  ppl       perplexity of a text by length: the first half of a window is prompt, the rest is under the policy
  summary   ROUGE-1, 2, L of generated sentences: --summaries ROWS.jsonl of {"text", "summary"}, else first sentences of --text
  gsm8k     --gsm8k ROWS.jsonl of {"question", "answer"}: the number behind ####

All prompts of a variant (policy, budget, format) are one job of `sluice score` (log-probability of the answers) and one of `sluice
run` (greedy; share of right answers); both resume after a stop (build/evaluate). Log-probabilities are means
per token of the answer. One table on stdout; a row of the CSV is a task of a variant at one length, depth or number of needles; --plot
draws it, which needs matplotlib; nothing else needs a Python package.
"""
import argparse
import json
import math
import os
import subprocess
import sys

import conditions  # first: it knows where the peers' modules are
from conditions import HERE, TREE
import evaluate_tasks as tasks
import lm_eval_sluice
import peer

PLACE = os.path.join(TREE, "build/evaluate")
WIKITEXT = os.path.join(TREE, "tests/goldens/wikitext-sample.txt")
TASKS = ["passkey", "needles", "ppl", "summary", "gsm8k"]
FIGURES = ["exact", "logprob", "ppl", "rouge1", "rouge2", "rougeL"]
COLUMNS = ["task", "policy", "budget", "format", "length", "depth", "needles", "cases", *FIGURES, "flags"]
# The columns of the table: title, task, figure, whether it is a share.
SHOWN = [("passkey", "passkey", "exact", True), ("log p", "passkey", "logprob", False), ("needles", "needles", "exact", True),
         ("log p", "needles", "logprob", False), ("ROUGE-1", "summary", "rouge1", True), ("2", "summary", "rouge2", True),
         ("L", "summary", "rougeL", True), ("log p", "summary", "logprob", False), ("GSM8K", "gsm8k", "exact", True),
         ("log p", "gsm8k", "logprob", False)]


def variants(a):
    """(policy, budget, format): full once per format, the others at each budget."""
    for form in a.formats:
        for policy in a.policies:
            for budget in [""] if policy == "full" else a.budgets:
                yield policy, budget, form


def flags_of(variant):
    policy, budget, form = variant
    return {"kv_policy": policy, "kv_format": form, **({"kv_budget": budget} if budget else {})}


# ---- cases ----

def cases_of(a, sluice):
    """Every prompt of every task, the same for all variants."""
    with open(a.text, encoding="utf-8") as f:
        text = f.read()
    bos, = sluice.encode([""], True)
    filler, = sluice.encode(["\n".join(tasks.paragraphs(text, 20)) or text], False)
    if "passkey" in a.tasks:
        yield from tasks.passkeys(sluice, filler, bos, a.lengths, a.depths, a.samples, a.seed)
    if "needles" in a.tasks:
        yield from tasks.multi_needles(sluice, filler, bos, a.lengths, a.needles, a.samples, a.seed)
    if "summary" in a.tasks:
        rows = tasks.read_rows(a.summaries, ("text", "summary")) if a.summaries else tasks.leads(text, a.rows, a.seed)
        yield from tasks.summaries(sluice, bos, rows[:a.rows], max(a.lengths))
    if "gsm8k" in a.tasks:
        rows = tasks.read_rows(a.gsm8k, ("question", "answer"))
        yield from tasks.gsm8k(sluice, bos, rows[:a.rows + a.shots], a.shots, a.max_tokens)


def perplexity(a, sluice, length):
    """Perplexity of windows of one length, stored beside the jobs for later runs."""
    with open(a.text, "rb") as f:
        place = sluice.folder("ppl", f.read() + f" {length} {a.windows}".encode())
    path = os.path.join(place, "ppl.json")
    if not os.path.exists(path):
        os.makedirs(place, exist_ok=True)
        out = subprocess.run([a.sluice, "score", "-m", a.model, "--text", a.text, "--prefix", str(length // 2), "--window", str(length),
                              "--limit", str(a.windows), *lm_eval_sluice.words_of(sluice.flags)], stdout=subprocess.PIPE, check=True).stdout
        with open(path + ".part", "wb") as f:
            f.write(out)
        os.replace(path + ".part", path)
    with open(path, encoding="utf-8") as f:
        return json.load(f)


# ---- figures ----

def figures(cases, scores, texts):
    """Per task and group: the mean of each figure."""
    found = {}
    for case, score, text in zip(cases, scores, texts, strict=True):
        one = {"logprob": score["logprob"] / score["num_tokens"], **case.judge(text["text"])}
        found.setdefault((case.task, tuple(sorted(case.group.items()))), []).append(one)
    for (task, group), ones in found.items():
        yield {"task": task, **dict(group), "cases": len(ones), **{k: math.fsum(o[k] for o in ones) / len(ones) for k in ones[0]}}


def measured(a, results):
    """All variants; the rows of the CSV."""
    first = lm_eval_sluice.Sluice(a.model, a.jobs)
    cases, out = list(cases_of(a, first)), []
    peer.say(f"evaluate.py: {len(cases)} prompts, {sum(len(c.prompt) for c in cases)} tokens, for each variant")
    for variant in variants(a):
        sluice = lm_eval_sluice.Sluice(a.model, a.jobs, **flags_of(variant), **a.more)
        same = {"policy": variant[0], "budget": variant[1], "format": variant[2], "flags": " ".join(lm_eval_sluice.words_of(sluice.flags))}
        peer.say(f"evaluate.py: {same['flags']}")
        rows = list(figures(cases, sluice.answers("score", [c.score_row() for c in cases]),
                            sluice.answers("run", [c.run_row() for c in cases])))
        for length in a.ppl_lengths if "ppl" in a.tasks else ():
            told = perplexity(a, sluice, length)
            rows.append({"task": "ppl", "length": length, "cases": told["windows"], "ppl": told["ppl"], "logprob": -told["nll"]})
        for row in rows:
            out.append({**same, **row})
            results.add(out[-1])
    return out


def cell(rows, figure, share):
    """The mean over a task's rows, weighted by their cases."""
    cases = sum(r["cases"] for r in rows)
    if not cases:
        return ""
    value = math.fsum(r[figure] * r["cases"] for r in rows) / cases
    return f"{100 * value:.1f} %" if share else f"{value:.3f}"


def aligned(lines, n_left):
    """Pads columns; the first ones are left-aligned."""
    width = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(text.ljust(w) if i < n_left else text.rjust(w) for i, (text, w) in enumerate(zip(line, width))).rstrip()
            for line in lines]


def table(rows, ppl_lengths):
    """One line per variant; only selected tasks have columns."""
    there = {r["task"] for r in rows}
    shown = [s for s in SHOWN if s[1] in there]
    lines = [["KV", "budget", "format"] + [s[0] for s in shown] + [f"ppl {n}" for n in ppl_lengths if "ppl" in there]]
    for variant in dict.fromkeys((r["policy"], r["budget"], r["format"]) for r in rows):
        mine = [r for r in rows if (r["policy"], r["budget"], r["format"]) == variant]
        line = list(variant) + [cell([r for r in mine if r["task"] == task], figure, share) for _, task, figure, share in shown]
        lines.append(line + [f"{r['ppl']:.2f}" for r in mine if r["task"] == "ppl"])
    return aligned(lines, 3)


def by_depth(rows):
    """Lines: the pass key's log-probability at each depth of each length."""
    mine = [r for r in rows if r["task"] == "passkey"]
    depths = sorted({r["depth"] for r in mine})
    lines = [["pass key, log p", "budget", "format", "length"] + [f"depth {d:g}" for d in depths]]
    for key in dict.fromkeys((r["policy"], r["budget"], r["format"], r["length"]) for r in mine):
        value = {r["depth"]: f"{r['logprob']:.3f}" for r in mine if (r["policy"], r["budget"], r["format"], r["length"]) == key}
        lines.append([str(k) for k in key] + [value[d] for d in depths])
    return aligned(lines, 3) if mine else []


# ---- the command line ----

def numbers(kind):
    return lambda text: [kind(w) for w in text.split(",") if w]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-o", "--output", help="[bench/results/evaluate-CPU.csv]")
    p.add_argument("--cpu-name", default=conditions.cpu_name(), help="name of the CPU [%(default)s]")
    p.add_argument("--policies", type=numbers(str), default=["full", "h2o-mean", "h2o", "streaming", "window"],
                   help="KV policies [full,h2o-mean,h2o,streaming,window]")
    p.add_argument("--budgets", type=numbers(str), default=["0.2", "0.5"], help="fractions or counts, as --kv-budget [0.2,0.5]")
    p.add_argument("--formats", type=numbers(str), default=["bf16"], help="as --kv-format [bf16]")
    p.add_argument("--tasks", type=numbers(str), help=f"some of {','.join(TASKS)} [all that have their rows]")
    p.add_argument("--lengths", type=numbers(int), default=[512, 1024], help="tokens of a prompt with needles [512,1024]")
    p.add_argument("--depths", type=numbers(float), default=[0.0, 0.25, 0.5, 0.75, 1.0],
                   help="places of a pass key in its text [0,0.25,0.5,0.75,1]")
    p.add_argument("--needles", type=numbers(int), default=[4], help=f"pass keys in one text, at most {len(tasks.NAMES)} [4]")
    p.add_argument("--samples", type=int, default=4, help="texts at each length and depth [%(default)s]")
    p.add_argument("--ppl-lengths", type=numbers(int), default=[512, 1024], help="tokens of a window for perplexity [512,1024]")
    p.add_argument("--windows", type=int, default=16, help="windows of each length [%(default)s]")
    p.add_argument("--rows", type=int, default=32, help="at most so many summaries and questions of GSM8K [%(default)s]")
    p.add_argument("--shots", type=int, default=2, help="solved examples before a question of GSM8K [%(default)s]")
    p.add_argument("--max-tokens", type=int, default=256, help="tokens of an answer to GSM8K [%(default)s]")
    p.add_argument("--text", default=WIKITEXT, help="text for perplexity and around pass keys [the WikiText-2 of the tests]")
    p.add_argument("--summaries", help="JSONL with texts and reference summaries")
    p.add_argument("--gsm8k", help="JSONL with questions of GSM8K")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flag", action="append", default=[], metavar="KEY=VALUE", help="another flag of sluice: --flag mem-ram=2G")
    p.add_argument("--jobs", default=os.path.join(PLACE, "jobs"), help="folder of the jobs [build/evaluate/jobs]")
    p.add_argument("--plot", metavar="FILE.svg")
    p.add_argument("--dirty", action="store_true", help="measure a tree that is not committed; the CSV records dirty: yes")
    p.set_defaults(sluice=None)  # the program and the library of this tree
    a = p.parse_args()
    a.tasks = a.tasks or [t for t in TASKS if t != "gsm8k" or a.gsm8k]
    a.more = {k.replace("-", "_"): v or True for k, _, v in (f.partition("=") for f in a.flag)}
    if set(a.tasks) - set(TASKS):
        p.error(f"no such task: {', '.join(set(a.tasks) - set(TASKS))}")
    if "gsm8k" in a.tasks and not a.gsm8k:
        p.error("gsm8k: --gsm8k ROWS.jsonl is missing")
    if a.plot and not ({"ppl", "passkey"} <= set(a.tasks) and "full" in a.policies and len(a.policies) > 1):
        p.error("--plot needs --tasks ppl and passkey, and --policies full and one more")
    if max(a.needles) > len(tasks.NAMES):
        p.error(f"--needles: at most {len(tasks.NAMES)}")
    return a


def main():
    a = arguments()
    conditions.clean(a)
    a.output = a.output or os.path.join(HERE, "results", f"evaluate-{conditions.slug(a.cpu_name)}.csv")
    head = {"table": "evaluate", "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
            "binary_sha256": a.binary, "date": conditions.now(), "cpu": a.cpu_name, "model": os.path.basename(a.model),
            "job": f"{a.samples} texts at each length and depth, {a.windows} windows, seed {a.seed}; {os.path.basename(a.text)}"}
    results = conditions.Results(a.output, head, COLUMNS)
    try:
        rows = measured(a, results)
    except (lm_eval_sluice.Error, subprocess.CalledProcessError, ValueError) as e:
        sys.exit(f"evaluate.py: {e}")
    results.close()
    depths = by_depth(rows)
    print("\n".join(table(rows, a.ppl_lengths) + [""] * bool(depths) + depths))
    if a.plot:
        import plots  # pylint: disable=import-outside-toplevel
        plots.evaluate(a.output).savefig(a.plot)
    peer.say(f"evaluate.py: {a.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
