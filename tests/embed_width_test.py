#!/usr/bin/env python3
"""Embeddings narrower and wider than the model (opt's project_in and project_out): embed_width_test.py [SLUICE]

Every placement gives the same bytes, and under f32 the log-probabilities are those of the reference in
numpy (evict_ref.py). Random weights; needs numpy and gguf (tiny.py).
"""
import json
import sys

from golden_common import goldens  # noqa: F401  (its import makes goldens/ importable)
import evict_ref
import tiny
import trial

DIM, WIDTHS = 64, (24, 64, 160)  # of the model, of its embedding
ROWS = [(1, 3), (5, 20), (33, 8), (70, 5), (2, 64), (300, 4)]  # tokens of context and continuation
PLACEMENTS = [
    ["--weights-resident", "100%", "--batch", "6", "--batches", "1"],
    ["--percent", "0", "0", "0", "100", "0", "100", "--batch", "2", "--batches", "3", "--prefill-tokens", "32"],
    ["--percent", "0", "0", "0", "0", "0", "0", "--batch", "2", "--batches", "3", "--ahead-state", "1"],
    ["--percent", "0", "50", "0", "100", "0", "100", "--batch", "1", "--batches", "4", "--prefill-tokens", "512"],
]


def model(place, name, width, pre):
    tiny.SPECS[name] = (tiny.opt(DIM, 2, 96, 3, 700, word_embed_proj_dim=width, do_layer_norm_before=pre),
                        ["f32"], [], None)
    folder = place.at(name)
    tiny.write_hf(folder, name, "f32")
    return folder


def widths(tally, place, a):
    rows = []
    for i, (n, m) in enumerate(ROWS):
        ids = [(i * 131 + k * 17 + k * k) % 700 for k in range(n + m)]
        rows.append({"custom_id": f"r{i}", "context_ids": ids[:n], "continuation_ids": ids[n:]})
    path = place.rows("in.jsonl", rows)
    for width in WIDTHS:
        for pre in (True, False):
            name = f"opt-{width}-{'pre' if pre else 'post'}"
            folder = model(place, name, width, pre)
            ref = evict_ref.model_open(folder)
            want = [evict_ref.score(ref, r["context_ids"], r["continuation_ids"])[0] for r in rows]
            first = None
            for flags in PLACEMENTS:
                out = place.fresh()
                done = place.sluice("score", "-m", folder, "-i", path, "-o", out, "--compute", "f32", "--kv-format",
                                    "f32", "--progress", "none", *flags)
                got = trial.read(out)
                if not tally.check(done.code == 0, f"{name} {' '.join(flags)}: exit {done.code}: {done.last()}"):
                    continue
                first = first or got
                tally.check(got == first, f"{name} {' '.join(flags)}: {trial.difference(first, got)}")
                for w, line in zip(want, got.splitlines()):
                    answer = json.loads(line)
                    near = max(abs(x - y) for x, y in zip(w, answer["token_logprobs"]))
                    tally.check(near < 1e-4, f"{name} {' '.join(flags)} {answer['custom_id']}: off by {near:.3g}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [widths]))
