#!/usr/bin/env python3
"""Eviction in every model family, decision by decision, against numpy: family_evict.py SLUICE [--only SPEC]

Checkpoints of goldens/families.py under h2o, ema and streaming, real and masked, and under full: log-probabilities, kept sets and
victims of family_ref.py's own forward pass, which is held to transformers' numbers first. Models with a row state are not here.
Each checkpoint takes one of the policies, by turns; at level night all.
"""

import math
import os

import numpy as np

import evict_ref
import families
import states
import family_ref
import tiny
from evict_golden import F32, LIMITS, check_policy
from family_golden import each_spec
from golden_common import score_row
from trial import NIGHT

LENGTHS = ((100, 60), (20, 40))  # longrope's long table, and its short one
CONFIGS = (("h2o", "head", "48", {}), ("ema", "layer", "40", {"recent": "8"}), ("streaming", "layer", "40", {}))
NEAR_TRANSFORMERS = 1e-4  # f64 here, f32 there; 6e-5 measured
SEEDS = {"glm4_moe_lite-types": "evict again"}  # with the usual rows a router comes within 1e-7 of a tie once tokens are gone
NEAR_TIE = 1e-4  # of routers: beyond it f32 chooses as f64 does


def check_reference(t, spec, model, entry):
    """Log-probabilities of the goldens, and experts of the same tokens."""
    for i, (row, want) in enumerate(zip(entry["rows"], entry["weights"]["f32"]["rows"])):
        got, _, _ = evict_ref.score(model, row["context_ids"], row["continuation_ids"])
        diff = np.abs(np.subtract(got, want["logprobs"])).max()
        t.check(diff <= NEAR_TRANSFORMERS, f"{spec} row {i}: the reference is {diff:.1e} off transformers")
    gap = entry["weights"]["f32"].get("route_gap")
    t.check(gap is None or abs(model.route_gap - gap) < 1e-3, f"{spec}: routers' least gap is {model.route_gap}, want {gap}")


def check_full(t, sluice, spec, model, path, rows):
    for row, got in zip(rows, sluice.rows("score", path, rows, *F32)):
        want, _, _ = evict_ref.score(model, row["context_ids"], row["continuation_ids"])
        diff = np.abs(np.subtract(got["token_logprobs"], want))
        t.check(diff.mean() <= LIMITS["f32"][0] and diff.max() <= LIMITS["f32"][1],
                f"{spec} full {row['custom_id']}: differs by {diff.mean():.2e}, largest {diff.max():.2e}")


def rows_of(model, r):
    rows = []
    for n, m in LENGTHS:
        model.route_gap = 0
        while model.route_gap < NEAR_TIE:
            row = score_row(f"row-{n}-{m}", *(r.randint(3, families.VOCAB, k).tolist() for k in (n, m)))
            model.route_gap = math.inf
            evict_ref.score(model, row["context_ids"], row["continuation_ids"])
        rows.append(row)
    return rows


def check_spec(t, sluice, spec, entry, folder):
    if states.has_state(spec):  # family_ref.py has none
        return
    path = os.path.join(folder, f"{spec}-f32")
    families.write_hf(path, spec, entry["tensors"], "f32")
    model, r = family_ref.model_open(path), tiny.rng(spec, SEEDS.get(spec, "evict"))
    check_reference(t, spec, model, entry)
    rows = rows_of(model, r)
    check_full(t, sluice, spec, model, path, rows)
    turn = list(families.SPECS).index(spec) % len(CONFIGS)
    for config in CONFIGS if NIGHT else CONFIGS[turn:turn + 1]:
        check_policy(t, sluice, model, path, rows, config)


if __name__ == "__main__":
    each_spec(__doc__, check_spec)
