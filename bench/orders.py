#!/usr/bin/env python3
"""The order of eviction policies, compared with an independent replay: orders.py -m MODEL [flags]

  decode   perplexity of texts, every token under the policy: 128 slots for 1,024 tokens; of all tokens and of the second half
  prompt   a prompt of 1,024 tokens cut to 256 and to 128 slots: the loss of the next 128 tokens, and the recall of a passage of 64
           tokens in its middle when its first 8 tokens are repeated after the cut (blind) or end the prompt (asked)

The replay is one of the same model in numpy, on another text (essays there, Wikipedia here), four texts for `decode` and eight for
`prompt`; its figures are in this file. Engines that agree have the same order: the last lines are the rank
correlation (Spearman's) and the pairs in another order by more than the replay's noise of a few per cent. Jobs resume after
a stop (build/orders). Needs no Python package.
"""
import argparse
import math
import os
import random
import sys

import conditions  # first: it knows where the peers' modules are
from conditions import HERE, TREE
import lm_eval_sluice
import peer

WIKITEXT = os.path.join(TREE, "tests/goldens/wikitext-sample.txt")
COLUMNS = ["setting", "policy", "flags", "slots", "all", "half", "blind", "asked", "replay_all", "replay_half", "replay_blind",
           "replay_asked"]
LENGTH, NEXT, CUE, PASSAGE = 1024, 128, 8, 72

# Label, flags, and the replay's increase of perplexity in %: all tokens, second half.
DECODE = [
    ("window", "window", (124, 144)),
    ("streaming", "streaming", (15.4, 25.5)),
    ("streaming, slot", "streaming --kv-positions slot", (14.9, 24.2)),
    ("h2o", "h2o", (7.7, 15.1)),
    ("h2o 4+60", "h2o --kv-sink 4 --kv-recent 60", (8.2, 15.5)),
    ("h2o 4+60, slot", "h2o --kv-sink 4 --kv-recent 60 --kv-positions slot", (7.1, 12.6)),
    ("h2o 4+96", "h2o --kv-sink 4 --kv-recent 96", (9.3, 17.3)),
    ("h2o 4+16", "h2o --kv-sink 4 --kv-recent 16", (20.8, 32.1)),
    ("h2o 4+60, layer", "h2o --kv-sink 4 --kv-recent 60 --kv-scope layer", (11.2, 20.5)),
    ("h2o-mean 4+60", "h2o-mean --kv-sink 4 --kv-recent 60", (6.9, 12.7)),
    ("h2o-mean 4+16", "h2o-mean --kv-sink 4 --kv-recent 16", (7.7, 12.3)),
    ("ema 4+60", "ema --kv-sink 4 --kv-recent 60", (7.2, 13.2)),
    ("vlen 4+60", "vlen --kv-sink 4 --kv-recent 60", (7.7, 14.5)),
    ("tova", "tova", (11.7, 19.0)),
    ("tova, head", "tova --kv-scope head", (15.1, 23.8)),
    ("tova 4+60, head", "tova --kv-scope head --kv-sink 4 --kv-recent 60", (13.1, 22.1)),
]

# Label, flags, and the replay at 256 and 128 slots: added nats of the next tokens, % of the passage recalled, blind and asked.
PROMPT = [
    ("streaming", "streaming", ((.074, 15, 21), (.139, 4, 11))),
    ("h2o", "h2o", ((.050, 15, 24), (.080, 9, 17))),
    ("h2o 0+32", "h2o --kv-recent 32", ((.066, 28, 37), (.101, 12, 22))),
    ("h2o-mean", "h2o-mean --kv-sink 0", ((.039, 19, 27), (.077, 9, 17))),
    ("snapkv", "snapkv", ((.061, 19, 41), (.129, 8, 24))),
    ("snapkv, pyramid", "snapkv --kv-budget-layers pyramid", ((.090, 12, 28), (.167, 5, 18))),
    ("tova", "tova", ((.095, 11, 43), (.145, 6, 27))),
    ("tova, head", "tova --kv-scope head", ((.110, 17, 47), (.186, 8, 31))),
]


def nll_of(answers, first=0):
    """Mean negative log-likelihood of the tokens from `first` on."""
    logprobs = [p for a in answers for p in a["token_logprobs"][first:]]
    return -math.fsum(logprobs) / len(logprobs)


def slices(ids, n, length):
    """n texts of one length, spread evenly."""
    room = len(ids) - length
    if room < n:
        raise ValueError(f"the text has {len(ids)} tokens, {n} texts of {length} are wanted")
    return [ids[i * room // n:i * room // n + length] for i in range(n)]


class Setting:
    """A model with flags."""

    def __init__(self, a, words, slots):
        parts = ["kv_policy", *words.split()]
        flags = {k.removeprefix("--").replace("-", "_"): v for k, v in zip(parts[::2], parts[1::2])}
        if slots:
            flags["kv_budget"] = slots
        self.sluice = lm_eval_sluice.Sluice(a.model, a.jobs, kv_format="bf16", **flags)
        self.flags = " ".join(lm_eval_sluice.words_of(self.sluice.flags))

    def score(self, pairs):
        return self.sluice.answers("score", [{"context_ids": list(c), "continuation_ids": list(t)} for c, t in pairs])


# ---- decode ----

def decode_rows(a, ids):
    pairs = [(t[:1], t[1:]) for t in slices(ids, a.texts, LENGTH)]
    halves = (0, LENGTH // 2 - 1)
    answers = Setting(a, "full", None).score(pairs)
    full = [nll_of(answers, first) for first in halves]
    yield {"setting": "decode", "policy": "full", "all": math.exp(full[0]), "half": math.exp(full[1])}
    for label, words, replay in DECODE:
        setting = Setting(a, words, 128)
        answers = setting.score(pairs)
        more = [100 * (math.exp(nll_of(answers, first) - base) - 1) for first, base in zip(halves, full)]
        yield {"setting": "decode", "policy": label, "flags": setting.flags, "slots": 128, "all": more[0], "half": more[1],
               "replay_all": replay[0], "replay_half": replay[1]}


# ---- prompts ----

def prompt_jobs(ids, n, seed):
    """(context, tokens to score) of three tasks: next tokens; a passage repeated after the cut; the same, asked for before the cut."""
    draw = random.Random(seed)
    texts = slices(ids, n, LENGTH + NEXT)
    far = [texts[(i + n // 2) % n][:PASSAGE] for i in range(n)]  # of another text
    goes_on = [(t[:LENGTH], t[LENGTH:]) for t in texts]
    blind, asked = [], []
    for text, passage in zip(texts, far):
        at = draw.randint(150, 800)
        hides = text[:at] + passage + text[at:]
        blind.append((hides[:LENGTH], passage))
        asked.append((hides[:LENGTH - CUE] + passage[:CUE], passage[CUE:]))
    return goes_on, blind, asked


def prompt_figures(setting, jobs):
    """Nats of the next tokens, and of the passage after its cue, blind and asked."""
    goes_on, blind, asked = jobs
    answers = setting.score(goes_on + blind + asked)
    n = len(goes_on)
    return [nll_of(answers[:n]), nll_of(answers[n:2 * n], CUE), nll_of(answers[2 * n:])]


def prompt_rows(a, ids):
    jobs = prompt_jobs(ids, 2 * a.texts, a.seed)
    full = prompt_figures(Setting(a, "full", None), jobs)
    none = nll_of(Setting(a, "full", None).score([(p[:CUE], p[CUE:]) for _, p in jobs[1]]))
    yield {"setting": "prompt", "policy": "full", "all": full[0], "blind": full[1], "asked": full[2]}
    yield {"setting": "prompt", "policy": "without the prompt", "blind": none, "asked": none}
    for slots, i in (256, 0), (128, 1):
        for label, words, replays in PROMPT:
            setting = Setting(a, words, slots)
            told = prompt_figures(setting, jobs)
            left = [100 * (none - nats) / (none - least) for nats, least in zip(told[1:], full[1:])]
            yield {"setting": "prompt", "policy": label, "flags": setting.flags, "slots": slots, "all": told[0] - full[0],
                   "blind": left[0], "asked": left[1],
                   **dict(zip(("replay_all", "replay_blind", "replay_asked"), replays[i]))}


# ---- orders ----

def ranks(values):
    """Ranks from 0; equal values share their mean rank."""
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def correlation(xs, ys):
    """Spearman's correlation: Pearson's of the ranks."""
    xs, ys = ranks(xs), ranks(ys)
    mean = (len(xs) - 1) / 2
    both = math.fsum((x - mean) * (y - mean) for x, y in zip(xs, ys))
    return both / math.sqrt(math.fsum((x - mean)**2 for x in xs) * math.fsum((y - mean)**2 for y in ys))


def swapped(rows, figure, apart):
    """Pairs in another order in the replay, if they differ by more than the share `apart` in either."""
    out = []
    for i, p in enumerate(rows):
        for q in rows[i + 1:]:
            mine, theirs = p[figure] - q[figure], p[f"replay_{figure}"] - q[f"replay_{figure}"]
            clear = [abs(d) > apart * max(abs(a), abs(b)) for d, a, b in
                     ((mine, p[figure], q[figure]), (theirs, p[f"replay_{figure}"], q[f"replay_{figure}"]))]
            if mine * theirs < 0 and all(clear):
                out.append(f"{p['policy']} / {q['policy']}")
    return out


def told_orders(rows, apart=0.1):
    for setting, slots in dict.fromkeys((r["setting"], r["slots"]) for r in rows if r.get("slots")):
        mine = [r for r in rows if (r["setting"], r.get("slots")) == (setting, slots)]
        for figure in "all", "half", "blind", "asked":
            those = [r for r in mine if f"replay_{figure}" in r]
            if those:
                pairs = swapped(those, figure, apart)
                yield (f"{setting}, {slots} slots, {figure}: correlation {correlation(*zip(*((r[figure], r['replay_' + figure]) for r in those))):.2f}; "
                       f"{len(pairs)} of {len(those) * (len(those) - 1) // 2} pairs otherwise{': ' * bool(pairs)}{', '.join(pairs)}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-o", "--output", help="[bench/results/orders-CPU.csv]")
    p.add_argument("--cpu-name", default=conditions.cpu_name(), help="name of the CPU [%(default)s]")
    p.add_argument("--text", default=WIKITEXT, help="[the WikiText-2 of the tests]")
    p.add_argument("--texts", type=int, default=8, help="texts of `decode`; `prompt` takes twice as many [%(default)s]")
    p.add_argument("--settings", default="decode,prompt")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", default=os.path.join(TREE, "build/orders"), help="folder of the jobs [build/orders]")
    p.add_argument("--dirty", action="store_true", help="measure a tree that is not committed; the CSV records dirty: yes")
    p.set_defaults(sluice=None)  # the library of this tree
    return p.parse_args()


def main():
    a = arguments()
    conditions.clean(a)
    a.output = a.output or os.path.join(HERE, "results", f"orders-{conditions.slug(a.cpu_name)}.csv")
    head = {"table": "orders", "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
            "binary_sha256": a.binary, "date": conditions.now(), "cpu": a.cpu_name, "model": os.path.basename(a.model),
            "job": f"{a.texts} texts of {LENGTH} tokens, {2 * a.texts} prompts, seed {a.seed}; {os.path.basename(a.text)}"}
    results, rows = conditions.Results(a.output, head, COLUMNS), []
    settings = {"decode": decode_rows, "prompt": prompt_rows}
    try:
        with open(a.text, encoding="utf-8") as f:
            ids, = Setting(a, "full", None).sluice.encode([f.read()], False)
        for name in a.settings.split(","):
            for row in settings[name](a, ids):
                rows.append(row)
                results.add(row)
                peer.say("orders.py: " + ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
                                                   for k, v in row.items() if k != "flags"))
    except (lm_eval_sluice.Error, ValueError) as e:
        sys.exit(f"orders.py: {e}")
    results.close()
    print("\n".join(told_orders(rows)))
    peer.say(f"orders.py: {a.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
