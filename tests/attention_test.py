#!/usr/bin/env python3
"""What a model's attention looks like: `bench attention`, against numpy: attention_test.py [SLUICE] [--only PART]

Weights of every layer and head come from evict_ref.py and family_ref.py, which have the models in numpy in f64; sets that
policies keep from their rules. Tiny models with random weights: one with fewer KV heads than heads, others whose layers
see windows, with softcap and with sinks.
"""
import csv
import json
import math
import os
import sys

import trial

sys.path.insert(0, os.path.join(trial.HERE, "goldens"))
import numpy as np

import evict_ref
import families
import family_ref
import tiny

PREFIX, WINDOW = 100, 160
LEAST = 32  # queries that see fewer slots tell nothing of sparsity
F32 = ["--compute", "f32", "--kv-format", "f32", "--mem-ram", "96M", "-t", "2"]
FIGURES = ("sparsity", "slots_95", "top_5", "top_10", "top_20", "power", "power_r2")


class Bed:
    def __init__(self, folder, a):
        self.place = trial.Place(folder, a.sluice)
        self.model = self.place.at("model")
        tiny.write_hf(self.model, "llama-gqa", "f32")
        tiny.write_tokenizer(self.model, "tokenizer.json", 1000)
        text = " ".join(tiny.WORDS[(i * i + i // 7) % len(tiny.WORDS)] for i in range(400))
        self.text = self.place.write("text.txt", text.encode())
        self.ref = evict_ref.model_open(self.model)
        done = self.place.sluice("tokenize", "-m", self.model, stdin=json.dumps({"text": text}) + "\n")
        self.ids = json.loads(done.out)["ids"]

    def attention(self, tally, *more, model=None, form="--json", code=0, say="-q"):
        return self.place.expect(tally, f"bench attention {more}", code, "bench", "attention", say, "-m", model or self.model, "--text",
                                 self.text, "--prefix", PREFIX, "--window", WINDOW, *F32, form, *more)


def weights_of(model, ids):
    """By layer: softmax weights [heads, n, n], the same summed over each KV head's queries, and keys."""
    pos = np.arange(len(ids))
    h, out = model.embed(ids, pos), []
    for layer in range(model.layers):
        q, k, v = model.qkv(layer, h, pos, len(ids))
        group, w, window = model.heads // model.kv_heads, [], evict_ref.window_of(model, layer)
        hidden = np.triu(np.ones((len(ids),) * 2, bool), 1)
        if window is not None:
            hidden |= np.tril(np.ones((len(ids),) * 2, bool), -window)
        for head, sink in zip(range(model.heads), evict_ref.sinks_of(model, layer)):
            logits = evict_ref.softcap(model, q[:, head] @ k[:, head // group].T * model.scale)
            logits[hidden] = -np.inf
            w.append(evict_ref.softmax(logits, sink))
        attention, summed = evict_ref.attend_prompt(model, q, k, v, layer)
        out.append((np.array(w), summed, k))
        h = model.after(layer, h, attention)
    return out


def figures_of(w, window=None):
    """Of one head's weights [n, n]."""
    n, small, seen, shares = len(w), 0, 0, []
    for t in range(LEAST - 1, n):
        row = np.sort(w[t, max(t + 1 - (window or n), 0):t + 1])[::-1]
        small += (row < 0.01 * row[0]).sum()
        seen += len(row)
        shares.append((np.searchsorted(row.cumsum(), 0.95 * row.sum()) + 1) / len(row))
    mass = np.sort(w.sum(0))[::-1]
    tops = [mass[:math.ceil(x * n)].sum() / mass.sum() for x in (0.05, 0.1, 0.2)]
    x, y = np.log(np.arange(1, n + 1)), np.log(mass)
    slope, _ = np.polyfit(x, y, 1)
    return [small / seen, np.mean(shares), *tops, -slope, np.corrcoef(x, y)[0, 1] ** 2]


def figures(tally, bed, _):
    """Each layer's and head's, of one prompt and the mean of two."""
    for limit in (1, 2):
        rows = json.loads(bed.attention(tally, "--limit", limit, "--policies", "h2o").out)["rows"]
        prompts = [weights_of(bed.ref, bed.ids[i * WINDOW:][:PREFIX]) for i in range(limit)]
        tally.check([(r["layer"], r["head"]) for r in rows] == [(l, h) for l in range(bed.ref.layers) for h in range(bed.ref.heads)],
                    f"rows: {[(r['layer'], r['head']) for r in rows]}")
        for r in rows:
            want = np.mean([figures_of(w[r["layer"]][0][r["head"]]) for w in prompts], axis=0)
            for what, x in zip(FIGURES, want):
                tally.check(abs(r[what] - x) < 1e-3 * (1 + abs(x)), f"{limit} prompts, layer {r['layer']} head {r['head']}: {what} {r[what]}, want {x}")
    tally.check(len({round(r["sparsity"], 3) for r in rows}) > 5, "heads are not alike")


def kinds(tally, bed, _):
    """Windows, softcap and sinks."""
    stored, seen = families.stored(), set()
    for spec in ("gemma2-window", "gpt_oss-plain"):
        path = bed.place.at(spec)
        families.write_hf(path, spec, stored[spec]["tensors"], "f32")
        tiny.write_tokenizer(path, "tokenizer.json", families.VOCAB)
        model = family_ref.model_open(path)
        done = bed.place.sluice("tokenize", "-m", path, stdin=json.dumps({"text": trial.read(bed.text).decode()}) + "\n")
        weights = weights_of(model, json.loads(done.out)["ids"][:PREFIX])
        for r in json.loads(bed.attention(tally, "--policies", "h2o", model=path).out)["rows"]:
            window = evict_ref.window_of(model, r["layer"])
            seen |= {("window", bool(window)), ("sinks", evict_ref.sinks_of(model, r["layer"])[0] is not None),
                     ("softcap", getattr(model, "softcap", None) is not None)}
            for what, x in zip(FIGURES, figures_of(weights[r["layer"]][0][r["head"]], window)):
                tally.check(abs(r[what] - x) < 1e-3 * (1 + abs(x)), f"{spec} layer {r['layer']} head {r['head']}: {what} {r[what]}, want {x}")
    tally.check(len(seen) == 6, f"with and without each: {seen}")


def overlaps(tally, bed, _):
    """Sets that our rules keep, in pairs."""
    names = ("window", "streaming", "h2o", "h2o-mean")
    for flags, budget, scope in ((["--kv-budget", "40"], "40", "head"), (["--kv-budget", "0.5", "--kv-scope", "layer"], "0.5", "layer")):
        found = json.loads(bed.attention(tally, "--policies", ",".join(names), *flags).out)
        state = weights_of(bed.ref, bed.ids[:PREFIX])
        for layer, (_, summed, _) in enumerate(state):
            kept = {}
            for policy in names:
                rule = evict_ref.Rule(policy, budget, PREFIX + 1, scope=scope)
                scores = rule.prompt_scores(summed)
                kept[policy] = [set(x) for x in evict_ref.prompt_keep(rule, evict_ref.Trail(), layer, scores, PREFIX)]
            for r in (r for r in found["rows"] if r["layer"] == layer):
                g = r["head"] // (bed.ref.heads // bed.ref.kv_heads)
                for i, a in enumerate(names):
                    for b in names[i + 1:]:
                        want = len(kept[a][g] & kept[b][g]) / len(kept[a][g] | kept[b][g])
                        tally.check(abs(r[f"{a}~{b}"] - want) < 1e-5, f"{flags}: layer {layer} head {r['head']}: {a}~{b} {r[f'{a}~{b}']}, want {want}")
        for key in (*FIGURES, "h2o~h2o-mean"):
            want = np.mean([r[key] for r in found["rows"]])
            tally.check(abs(found[f"mean {key}"] - want) < 1e-4 * (1 + abs(want)), f"mean {key}: {found[f'mean {key}']}, want {want}")


def alike(tally, bed, _):
    """Threads and tiles change nothing of a prompt's attention; a budget that holds all is one set."""
    def rows(*more):
        return json.loads(bed.attention(tally, "--policies", "h2o,streaming", *more).out)["rows"]
    whole = rows()
    for more in (["-t", "1"], ["--prefill-tokens", "32"], ["--weights-resident", "0"]):
        tally.check(rows(*more) == whole, f"{more}: other figures")
    tally.check(all(r["h2o~streaming"] < 1 for r in whole), "a budget of a fifth keeps other sets")
    tally.check(all(r["h2o~streaming"] == 1 for r in rows("--kv-budget", "200")), "all of the prompt is one set")
    tally.check(rows("--kv-format", "mixed")[0]["h2o~streaming"] == whole[0]["h2o~streaming"], "the ring's tokens are kept ones")


def outputs(tally, bed, _):
    """Text and CSV."""
    done = bed.attention(tally, "--policies", "h2o,window", form="--csv", say="-v")
    lines = done.out.splitlines()
    tally.check(lines[0].startswith((",".join(["layer", "head", *FIGURES, "window~h2o,"]), ",".join(["layer", "head", *FIGURES, "h2o~window,"]))),
                f"columns: {lines[0]}")
    first = next(csv.DictReader(lines))
    tally.check((first["prompts"], first["kv_budget"]) == ("1", "0.2") and first["model"], f"what the head says has columns: {first}")
    tally.check(len(lines) == 1 + bed.ref.layers * bed.ref.heads, f"{len(lines)} lines")
    tally.check("mean sparsity: " in done.err and "mean" not in done.out, f"means: {done.err[-300:]!r}")
    told = bed.attention(tally, "--policies", "h2o,window", "--kv-budget", "64", form="--csv", say="-v")
    tally.check("no effect" not in told.err, f"--kv-budget is that of --policies: {told.err!r}")


def budgets(tally, bed, _):
    """Layers share a KV budget by what was measured, by numbers, as a pyramid; what a file lacks is said with its line."""
    table = bed.place.write("attention.csv", bed.attention(tally, "--policies", "h2o", form="--csv").out.encode())
    rows = json.loads(bed.attention(tally, "--policies", "h2o").out)["rows"]
    spread = [np.mean([r["slots_95"] for r in rows if r["layer"] == layer]) for layer in range(bed.ref.layers)]
    n = bed.ref.layers
    numbers = bed.place.write("layers.txt", ("# a number a layer\n" + "\n".join(str(3 + 4 * i) for i in range(n))).encode())
    row = json.dumps({"custom_id": "a", "context_ids": bed.ids[:PREFIX], "continuation_ids": bed.ids[PREFIX:PREFIX + 9]}) + "\n"
    rows = bed.place.write("rows.jsonl", row.encode())
    dump = bed.place.at("dump.jsonl")
    score = ["score", "-v", "-m", bed.model, "-i", rows, "-o", bed.place.at("out.jsonl"), "--overwrite", *F32, "--kv-dump", dump, "--kv-policy",
             "h2o", "--kv-sink", "2", "--kv-recent", "8", "--kv-budget", "40"]
    for layers, shares in ((table, spread), (numbers, [3 + 4 * i for i in range(n)]), ("even", [1] * n),
                           ("pyramid:5", np.linspace(1.8, 0.2, n)), ("pyramid", np.linspace(1.95, 0.05, n))):
        done = bed.place.expect(tally, f"layers {layers}", 0, *score, "--kv-budget-layers", layers)
        most = int(30 * np.max(shares) / np.mean(shares) + 1e-6)
        want = [10 + int(most * x / np.max(shares) + 1e-6) for x in shares]
        kept = {}
        for line in map(json.loads, trial.read(dump).decode().splitlines()):
            if "kept" in line:
                kept.setdefault(line["layer"], set()).add(len(line["kept"]))
        tally.check(kept == {i: {x} for i, x in enumerate(want)}, f"layers {layers}: {kept}, want {want}")
        tally.check((", layers " in done.err) == (f", layers {layers}, " in done.err) == (layers != "even"),
                    f"layers {layers}: the plan says so: {done.err[-600:]!r}")
    done = bed.place.expect(tally, "of the prompt", 0, *score[:-1], "0.7", "--kv-budget-of", "prompt")
    kept = {len(x["kept"]) for x in map(json.loads, trial.read(dump).decode().splitlines()) if "kept" in x}
    tally.check(kept == {70} and "0.7 of the prompt" in done.err, f"of the prompt: {kept}, {done.err[-600:]!r}")
    for text, words in (("1\n" * (n - 1), "no value for layer"), ("1\n" * (n + 1), f"layers.txt:{n + 1}: "), ("1\n0\n", "layers.txt:2: "),
                        ("1\nnan\n", "layers.txt:2: "), ("# x\n1\ntwo\n", "layers.txt:3: "), ("layer,head\n0,1\n", "layers.txt:1: ")):
        bed.place.write("layers.txt", text.encode())
        done = bed.place.expect(tally, f"layers {text!r}", 2, *score, "--kv-budget-layers", numbers)
        tally.check(words in done.error_line(), f"{text!r}: {done.err!r}")
    for text in ("pyramid:0.5", "pyramid:x", "pyramids", "none.txt", "."):
        done = bed.place.expect(tally, f"layers {text}", 2, *score, "--kv-budget-layers", text)
        tally.check("--kv-budget-layers" in done.error_line(), f"{text}: {done.err!r}")


def refused(tally, bed, _):
    done = bed.place.sluice("bench", "attention", "-m", bed.model)
    tally.check(done.code == 2 and "--text" in done.error_line(), f"no text: {done.err!r}")
    for words, more in (("'lru'", ["--policies", "lru"]), ("prefix < window", ["--prefix", "500"]), ("out of range", ["--kv-budget", "0"])):
        done = bed.attention(tally, *more, code=2)
        tally.check(words in done.error_line() and not done.out, f"{more}: {done.err!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (figures, kinds, overlaps, alike, outputs, budgets, refused), make=Bed))
