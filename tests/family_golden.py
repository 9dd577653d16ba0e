#!/usr/bin/env python3
"""Every family's log-probabilities and greedy tokens against transformers': family_golden.py SLUICE [--only SPEC]

Checkpoints of goldens/families.py as safetensors (f32, bf16) and as GGUF. In f32 only the order of sums may differ; in bf16
the bound is what bf16 costs transformers itself. The same numbers in a GGUF file give the same bytes, unless the file has the
inputs of a matrix in another order, or weights times rounded factors. Level check: f32, in RAM and on disk, and a GGUF file of each family.
"""

import argparse
import json
import os
import tempfile

from golden_common import Sluice, goldens, run_row, score_row
from score_golden import BF16_SHARE, EQUAL_F32, F32, MAX_F32, MEAN_F32, TIE_F32, check_greedy, check_scores, guarded
from trial import ALL_ON_DISK, HERE, LEVEL, Tally, pick
import families
import gemma4
import states
import tiny

SIM = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
FORMS = pick(("f32",), families.FORMS)


def rows_of(entry, form):
    rows = [score_row(f"row-{i}", r["context_ids"], r["continuation_ids"]) for i, r in enumerate(entry["rows"])]
    return rows, entry["weights"][form]


def check_hf(t, sluice, spec, entry, form, path):
    rows, want = rows_of(entry, form)
    out = sluice.rows("score", path, rows, *F32)
    check_scores(t, f"{spec} {form}, f32", rows, out, want["rows"], MEAN_F32, MAX_F32, TIE_F32)
    noise_mean, noise_max = want["bf16_noise"]
    if LEVEL and not (states.has_state(spec) and "experts" in str(families.SPECS[spec])):
        check_scores(t, f"{spec} {form}, bf16", rows, sluice.rows("score", path, rows), want["rows"], BF16_SHARE * noise_mean,
                     1.5 * noise_max, 2 * noise_max)
    if "gen" in want:
        prompts = [run_row(f"gen-{i}", p, len(g["ids"])) for i, (p, g) in enumerate(zip(entry["prompts"], want["gen"]))]
        check_greedy(t, f"{spec} {form}, f32", prompts, lambda rows: sluice.rows("run", path, rows, *F32), want["gen"], TIE_F32,
                     *EQUAL_F32)
    if form == "f32":
        check_places(t, sluice, spec, rows, path, out)
        check_neighbours(t, sluice, spec, path)
        if LEVEL and ("window" in spec or "late" in spec):
            check_windows(t, sluice, spec, rows, path)
        if "vision" in spec:
            check_unused(t, sluice, spec, entry, path)
    return out


def check_places(t, sluice, spec, rows, path, want):
    """Wherever bytes are, and where attention is apart from the rest of a layer: the same answers."""
    places = {"on disk": [*ALL_ON_DISK, "--batch", "2", "--batches", "2"]}
    if LEVEL:
        device = ["--device", f"{SIM}:7,20,0,{48 << 20}", "--mem-device", "24M"]
        places["on a device"] = device
        if not states.has_state(spec) and not gemma4.shares(families.SPECS[spec]):
            places["attention on the CPU"] = [*device, "--attn", "cpu", "--batch", "2", "--batches", "2"]
    for name, flags in places.items():
        t.check(sluice.rows("score", path, rows, *F32, *flags) == want, f"{spec}, {name}: other answers")


def check_windows(t, sluice, spec, rows, path):
    """KV formats, on disk and in RAM, under windows of some layers."""
    for form in ("q8", "q4", "mixed"):
        flags = ["--kv-format", form]
        for policy in ([], ["--kv-policy", "h2o", "--kv-budget", "0.6"]):
            near = sluice.rows("score", path, rows, *flags, *policy)
            far = sluice.rows("score", path, rows, *flags, *policy, *ALL_ON_DISK, "--batch", "3", "--batches", "2")
            t.check(far == near, f"{spec}, {form} {' '.join(policy)}: other answers on disk")


def check_unused(t, sluice, spec, entry, path):
    """What of a file is no part of the text model."""
    names = [name.removeprefix("model.") for name, _ in entry["tensors"]]
    others = [name for name in names if not name.startswith(("language_model.", "lm_head."))]
    said = json.loads(sluice.call(["inspect", path, "--json"])).get("unused", {})
    parts = {name.split(".")[0] for name in others}
    t.check(said.get("tensors") == len(others) and set(said.get("parts", "").split()) == parts, f"{spec}: not used: {said}")


def check_neighbours(t, sluice, spec, path):
    """A row that may get long and one that may not, with the same beginning: each as it is alone."""
    ids = tiny.rng(spec, "neighbours").randint(3, families.VOCAB, 100).tolist()
    rows = [score_row("short", ids[:40], ids[40:60]), score_row("long", ids[:45], ids[45:])]
    alone = [out for row in rows for out in sluice.rows("score", path, [row], *F32)]
    t.check(sluice.rows("score", path, rows, *F32, "--batch", "2", "--batches", "1") == alone, f"{spec}: neighbours change a row")


def check_gguf(t, sluice, spec, entry, path, hf):
    rows, want = rows_of(entry, "f32")
    out = sluice.rows("score", path, rows, *F32)
    if states.other_order(families.text_of(families.SPECS[spec], {})[0]):
        check_scores(t, f"{spec} GGUF", rows, out, want["rows"], MEAN_F32, MAX_F32, TIE_F32)
        return
    t.check(out == hf, f"{spec}: the answers from GGUF and from safetensors differ")


def first_of_family(spec):
    return next(s for s in families.SPECS if s.split("-")[0] == spec.split("-")[0])


def check_spec(t, sluice, spec, entry, folder):
    hf = {}
    for form in FORMS:
        path = os.path.join(folder, f"{spec}-{form}")
        families.write_hf(path, spec, entry["tensors"], form)
        digest = tiny.digest(families.weights(spec, entry["tensors"], form))
        if t.check(digest == entry["weights"][form]["digest"], f"{spec} {form}: these are not the weights of the goldens"):
            hf[form] = check_hf(t, sluice, spec, entry, form, path)
    if spec not in families.NO_GGUF and (LEVEL or spec == first_of_family(spec)):
        path = os.path.join(folder, f"{spec}-f32.gguf")
        families.write_gguf(path, spec, entry["tensors"])
        if spec in families.GGUF_BLOCKS:
            part = os.path.join(folder, f"{spec}-part")
            config, tensors = families.gguf_part(spec, entry["tensors"])
            families.write_hf(part, spec, tensors, "f32", config)
            hf["f32"] = sluice.rows("score", part, rows_of(entry, "f32")[0], *F32)
        check_gguf(t, sluice, spec, entry, path, hf["f32"])


def each_spec(usage, check):
    """The main of a driver: SLUICE [--only SPEC], and check(t, sluice, spec, entry, folder) of every checkpoint."""
    p = argparse.ArgumentParser(usage=usage)
    p.add_argument("sluice")
    p.add_argument("--only", default="")
    a = p.parse_args()
    t, golden = Tally(), goldens("families.json.gz")["models"]
    t.check(set(golden) == set(families.SPECS), "the goldens are of other checkpoints: make goldens")
    for spec, entry in golden.items():
        if a.only in spec:
            with tempfile.TemporaryDirectory() as folder:  # each its own: together the checkpoints and their packs are some GB
                guarded(t, spec, check, Sluice(a.sluice, folder), spec, entry, folder)
    t.finish()


if __name__ == "__main__":
    each_spec(__doc__, check_spec)
