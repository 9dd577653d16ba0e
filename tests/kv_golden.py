#!/usr/bin/env python3
"""Quantised KV of ./sluice against numpy, decision by decision and number by number: kv_golden.py SLUICE

Codes are chosen by rounding: a K that differs in its last bit may get the next code, and one step of q4 is 1/15
of a group's range, so that after a layer or two no reference that computes K and V by itself has the engine's
pages. So this one does not: a copy of the source, patched and built here, writes down every Q, K and V that goes
into attention and what comes out; numpy quantises those K and V with the page's exact rounding (evict_ref,
round_codes), attends, scores and evicts. Every kept set, every victim, every score and every output of every
layer, row, model and configuration is compared as with f32; none may stray.
And end to end: log-probabilities stay within the noise of the format, per row and model.
"""

import os
import struct
import sys
import tempfile

import numpy as np

import evict_ref
from evict_golden import SCORE, Dump, Tally, flags_of, model_and_rows, rule_words
from evict_ref import Trail
from evict_rule import Rule
from golden_common import Sluice, SluiceFailed, jsonl
from patched import PatchFailed, patched
from trial import pick

PATCHED = "engine/line/layer_attend.c"
ANCHOR = "    tile_forced(w, t, cuts, b, &at);\n"
CALL = "    golden_write(w, t, cuts, b, layer);\n"
BEFORE = "void tile_attend(struct layer_work *w,"
CODE = """#include <stdio.h>
#include <stdlib.h>
static void golden_write(const struct layer_work *w, const struct tile *t, const struct cut *cuts,
                         const struct batch *b, int layer)
{
    static FILE *f;
    const struct shape *s = w->shape;
    size_t heads = (size_t)(s->n_heads * s->head_dim), kv = (size_t)(s->n_kv_heads * s->head_dim), at = 0;
    if (!f)
        f = fopen(getenv("SLUICE_GOLDEN"), "wb");
    CHECK(f);
    for (int i = 0; i < t->n_cuts; at += (size_t)cuts[i].n, i++) {
        const struct span *span = cuts[i].span;
        size_t n = (size_t)cuts[i].n;
        int head[4] = {(int)b->rows[span->row].request->index, layer, span->pos + cuts[i].offset, (int)n};
        CHECK(fwrite(head, sizeof head, 1, f) == 1);
        CHECK(fwrite(w->q + at * heads, 4, n * heads, f) == n * heads);
        CHECK(fwrite(w->k + at * kv, 4, n * kv, f) == n * kv);
        CHECK(fwrite(w->v + at * kv, 4, n * kv, f) == n * kv);
        CHECK(fwrite(w->attn + at * heads, 4, n * heads, f) == n * heads);
    }
    CHECK(fflush(f) == 0);
}

"""
MODELS = pick(("llama-gqa",), ("llama-mha", "llama-gqa", "opt-mha", "llama-rope3", "llama-bias"))
LENGTHS = pick(((100, 30), (1, 48)), ((100, 30), (20, 50), (1, 48)))
# Positions by slot: a prompt's keys are rotated back in f32, which only those of position 0 come through as they were.
SLOT = {"positions": "slot"}
# What f32 sums cost against f64 ones, relative to the largest number of a token's output. Measured: at most 4e-6.
OUT = 2e-5
# Log-probabilities of the whole model against a reference with K, V and codes of its own: mean over a row. Measured
# in the worst row of the worst model, llama-gqa: 1.2e-3, 3.4e-3, 4.4e-2 and 3.1e-2; q4 of the others 1e-3.
NOISE = {"bf16": 3e-3, "q8": 1e-2, "q4": 0.1, "mixed": 0.08}

# policy, scope, budget, further Rule arguments; of each format the first also masked. Rings of mixed: 24, 8, 60, none
CONFIGS = {
    "bf16": [("h2o", "head", "40", {}), ("tova", None, "40", {})],
    "q8": [
        ("h2o", "head", "40", {}),
        ("h2o-mean", "layer", "36", {"recent": "16"}),
        ("vlen", None, "40", {}),
        ("streaming", None, "40", SLOT),
    ],
    "q4": [
        ("h2o-mean", "layer", "36", {"recent": "16"}),
        ("h2o", "head", "0.4", {}),
        ("h2o-hf", None, "40", {}),
        ("fixed-h2o", None, "40", {}),
        ("qhitter", "layer", "36", {"recent": "16"}),
        ("h2o", "head", "40", SLOT),
    ],
    "mixed": [
        ("h2o", "head", "48", {}),
        ("h2o", "layer", "40", {"recent": "8"}),
        ("streaming", "head", "64", {}),
        ("ema", None, "48", {}),
        ("snapkv", None, "48", {}),
        ("h2o-hf", None, "48", {}),
        ("scissorhands", "layer", "40", {"recent": "8"}),
        ("qhitter", None, "48", {}),
        ("strided", None, "48", {}),
        ("window", "head", "36", {"recent": "0"}),
        ("h2o", "head", "40", {"recent": "16", **SLOT}),
    ],
}


def golden_read(path, model):
    """{(row, layer): [q, k, v, out], each [position, heads, head_dim]} of what the patched binary wrote."""
    with open(path, "rb") as f:
        data = f.read()
    parts, at = {}, 0
    while at < len(data):
        row, layer, pos, n = struct.unpack_from("<4i", data, at)
        at += 16
        arrays = []
        for heads in (model.heads, model.kv_heads, model.kv_heads, model.heads):
            size = n * heads * model.head_dim
            arrays.append(np.frombuffer(data, "<f4", size, at).reshape(n, heads, model.head_dim))
            at += 4 * size
        parts.setdefault((row, layer), {})[pos] = arrays
    out = {}
    for key, by_pos in parts.items():
        order = sorted(by_pos)
        ends = [p + len(by_pos[p][0]) for p in order]
        if order[0] != 0 or ends[:-1] != order[1:]:
            raise ValueError(f"row, layer {key}: positions from {order} to {ends}")
        out[key] = [
            np.concatenate([by_pos[p][i] for p in order]).astype(np.float64) for i in range(4)
        ]
    return out


def compare_layer(t, what, model, layer, arrays, n_prompt, rule, trail, kv, simulate, by_slot):
    """One layer of one row from the engine's own Q, K and V; the largest difference of an output."""
    q, k, v, got = arrays
    want, weights = evict_ref.attend_prompt(model, *(x[:n_prompt] for x in (q, k, v)), layer)
    prompt = (k[:n_prompt], v[:n_prompt], weights)
    rest = tuple(x[n_prompt:] for x in (q, k, v))
    forced = evict_ref.attend_forced(model, rule, trail, layer, prompt, rest, n_prompt, kv, simulate, by_slot)
    want = np.concatenate([want, forced])
    off = np.abs(got.reshape(want.shape) - want).max(-1) / np.abs(want).max(-1)
    t.check(
        off.max() <= OUT,
        f"{what} layer {layer}: outputs differ by {off.max():.1e} of the largest at position "
        f"{off.argmax()} (prompt of {n_prompt})",
    )
    return off.max()


def compare_row(t, what, model, arrays, row, lines, rule, kv, simulate, by_slot):
    """Kept sets, victims, scores and outputs of every layer."""
    n_prompt, worst = len(row["context_ids"]), 0.0
    end = n_prompt + len(row["continuation_ids"]) - 1
    dump = Dump(lines, end)
    trail = Trail(dump)
    for layer in range(model.layers):
        worst = max(
            worst,
            compare_layer(
                t, what, model, layer, arrays[layer], n_prompt, rule, trail, kv, simulate, by_slot
            ),
        )
    t.check(not trail.errors, f"{what}: {len(trail.errors)} decisions differ: {trail.errors[:1]}")
    t.check(dump.order_ok, f"{what}: order of the dump's lines")
    n = 0
    for key, events in trail.victims.items():
        n += len(events)
        theirs = dump.victims.get(key, {})
        t.check({e[0] for e in events} == set(theirs), f"{what}: {key}: evicts at other positions")
        off = [
            e
            for e in events
            if theirs.get(e[0]) == e[1]
            and abs(dump.scores[key + (e[0],)] - e[2]) > SCORE * abs(e[2]) + 1e-6
        ]
        t.check(not (rule.scored and off), f"{what}: {key}: {len(off)} scores differ: {off[:1]}")
    t.check(set(dump.victims) == set(trail.victims), f"{what}: victims where nothing needs to go")
    return worst, n, trail.near_ties


def check_config(t, sluice, model, path, rows, config, kv, also_masked):
    policy, scope, budget, more = config
    more, by_slot = rule_words(more)
    rows = [r for r in rows if not by_slot or len(r["context_ids"]) == 1]
    flags = ["--compute", "f32", "--kv-format", kv, *flags_of(*config)]
    base, logprobs = f"{os.path.basename(path)} {' '.join(map(str, flags[2:]))}", []
    for masked in ((), ("--kv-simulate",)) if also_masked else ((),):
        name = " ".join((base, *masked))
        dump, golden = os.path.join(sluice.folder, "dump.jsonl"), os.environ["SLUICE_GOLDEN"]
        for f in (dump, golden):
            if os.path.exists(f):
                os.remove(f)
        out = sluice.rows("score", path, rows, *flags, *masked, "--kv-dump", dump)
        logprobs.append([np.array(r["token_logprobs"]) for r in out])
        seen, lines = golden_read(golden, model), {}
        for line in jsonl(dump):
            lines.setdefault(line["row"], []).append(line)
        worst, victims, near = 0.0, 0, 0
        for i, row in enumerate(rows):
            n = len(row["context_ids"]) + len(row["continuation_ids"])
            rule = Rule(policy, budget, n, scope=scope, **more)
            arrays = [seen[i, layer] for layer in range(model.layers)]
            off, gone, ties = compare_row(
                t, f"{name} {row['custom_id']}", model, arrays, row,
                lines.get(row["custom_id"], []), rule, kv, bool(masked), by_slot,
            )  # fmt: skip
            worst, victims, near = max(worst, off), victims + gone, near + ties
        print(f"  {name}: outputs {worst:.1e}, {victims} victims, {near} near ties", flush=True)
    for i, row in enumerate(rows):
        n = len(row["context_ids"]) + len(row["continuation_ids"])
        rule = Rule(policy, budget, n, scope=scope, **more)
        want = evict_ref.score(
            model, row["context_ids"], row["continuation_ids"], rule, kv=kv, by_slot=by_slot
        )[0]
        for name, got in zip((base, f"{base} --kv-simulate"), logprobs):
            diff = float(np.abs(got[i] - want).mean())
            t.noise.setdefault((os.path.basename(path), kv), []).append(diff)
            t.check(
                diff <= NOISE[kv],
                f"{name} {row['custom_id']}: log-probabilities differ by {diff:.1e}",
            )


def check_model(t, sluice, models, spec):
    path, model, rows = model_and_rows(models, spec, LENGTHS)
    for kv, configs in CONFIGS.items():
        for config in configs:
            if "positions" in config[3] and spec == "opt-mha":  # whose positions are learned
                continue
            check_config(t, sluice, model, path, rows, config, kv, config is configs[0])


def main(argv):
    if len(argv) != 2:
        sys.exit(__doc__)
    t = Tally()
    t.noise = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            binary = patched(
                os.path.join(folder, "source"), PATCHED, (ANCHOR, ANCHOR + CALL), (BEFORE, CODE + BEFORE)
            )
            os.environ["SLUICE_GOLDEN"] = os.path.join(folder, "golden.bin")  # of every run
            sluice = Sluice(binary, folder)
            for spec in MODELS:
                check_model(t, sluice, os.path.join(folder, "models"), spec)
        except (SluiceFailed, PatchFailed, LookupError, TypeError, ValueError, OSError) as e:
            t.check(False, f"{type(e).__name__} {e}")
    for (path, kv), diffs in t.noise.items():
        print(f"  {path} {kv}: mean {np.mean(diffs):.1e}, worst row {np.max(diffs):.1e}")
    t.finish()


if __name__ == "__main__":
    main(sys.argv)
