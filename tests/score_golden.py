#!/usr/bin/env python3
"""Log-probabilities and greedy tokens of ./sluice against transformers': score_golden.py SLUICE
[MODELS-DIR]

Every tiny checkpoint (written to MODELS-DIR, or to a folder that goes again) is scored in f32,
where only the order of sums may differ, and as users run it (bf16), where the bound is what bf16
costs transformers itself on the same weights. SLUICE_TEST_GGUF=FILE adds SmolLM2-135M-Instruct
Q4_1: four of its rows at level check, all of them at level night.
"""

import json
import os
import sys
import tempfile

import numpy as np
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from golden_common import Sluice, SluiceFailed, goldens, jsonl, run_row, score_row
from trial import LEVEL, NIGHT, Tally, pick
import tiny

F32 = ("--compute", "f32", "--kv-format", "f32")
# Measured in f32: 7e-6 and 3e-5 in the worst checkpoint; only the order of sums differs.
MEAN_F32, MAX_F32, TIE_F32 = 3e-5, 5e-4, 1e-3
# Of what bf16 costs transformers itself on a tiny checkpoint, whose random weights are far sharper than trained ones:
# its bf16 run rounds every sum, ours the inputs of products. Measured: 0.40 to 0.75 (means of 0.009 to 0.031) where pairs
# of bf16 are multiplied (AVX-512), to 0.86 where each is a number of f32 before (AVX2): other sums, other roundings of outputs.
BF16_SHARE = 0.9
MEAN_BF16, MAX_BF16, TIE_BF16 = 0.02, 0.3, 0.25
# See check_greedy. Measured: in f32 all of 222 generations; SmolLM2 in bf16 38 of 50, 13 of 1,600 tokens.
EQUAL_F32, EQUAL_BF16 = (0.9, 0.002), (0.6, 0.015)


def check_scores(t, what, rows, out, want, mean, most, tie):
    """Log-probabilities within bounds; is_greedy where it does not hang on less than `tie`."""
    diffs = []
    for row, got, ref in zip(rows, out, want):
        name = f"{what} {row['custom_id']}"
        got_logprobs = got["token_logprobs"]
        if not t.check(
            len(got_logprobs) == len(ref["logprobs"]) == got["num_tokens"],
            f"{name}: {len(got_logprobs)} log-probabilities for {len(ref['logprobs'])} tokens",
        ):
            continue
        diffs.append(np.abs(np.subtract(got_logprobs, ref["logprobs"])))
        t.check(
            abs(got["logprob"] - sum(got_logprobs)) <= 1e-4 * (1 + abs(got["logprob"])),
            f"{name}: logprob {got['logprob']} is not the sum {sum(got_logprobs)}",
        )
        t.check(
            got["is_greedy"] == ref["greedy"] or ref["margin"] < tie,
            f"{name}: is_greedy {got['is_greedy']}, margin {ref['margin']}",
        )
    if not diffs:
        return
    diffs = np.concatenate(diffs)
    t.check(
        diffs.mean() <= mean and diffs.max() <= most,
        f"{what}: log-probabilities differ by {diffs.mean():.2e} (at most {mean:g}), "
        f"largest {diffs.max():.2e} (at most {most:g})",
    )
    print(f"  {what}: mean {diffs.mean():.1e}, max {diffs.max():.1e}")


def check_greedy(t, what, prompts, generate, want, tie, least_whole, most_splits):
    """Every token of every generation. Where two best logits are closer than `tie` either may win; the row then goes
    on behind the golden's token, so that nothing after a split is left out. least_whole: the share of generations
    that are equal to the last token without that; most_splits: the share of tokens where the other one won."""
    n_all, todo, n_splits, split_rows = sum(r["max_tokens"] for r in prompts), [], 0, set()
    for row, ref in zip(prompts, want):
        todo.append((row, ref, 0))
    while todo:
        again = []
        for (row, ref, at), got in zip(todo, generate([row for row, _, _ in todo])):
            n, ids, name = row["max_tokens"], got["token_ids"], f"{what} {row['custom_id']}"
            t.check(
                len(ids) == n and got["finish_reason"] == "length",
                f"{name}: {len(ids)} tokens of {n}, {got['finish_reason']}",
            )
            split = next((i for i, (a, b) in enumerate(zip(ids, ref["ids"][at:])) if a != b), None)
            if split is None:
                continue
            n_splits += 1
            split_rows.add(row["custom_id"])
            t.check(
                ref["gaps"][at + split] < tie,
                f"{name}: token {at + split} is {ids[split]}, want {ref['ids'][at + split]} "
                f"(leads by {ref['gaps'][at + split]})",
            )
            if split + 1 < n:
                prompt = row["prompt_token_ids"] + ref["ids"][at : at + split + 1]
                rest = run_row(row["custom_id"], prompt, n - split - 1)
                again.append((rest, ref, at + split + 1))
        todo = again
    whole = len(prompts) - len(split_rows)
    print(
        f"  {what}: {whole} of {len(prompts)} generations equal to the last token, "
        f"{n_splits} of {n_all} tokens where the second best won"
    )
    t.check(whole >= least_whole * len(prompts), f"{what}: only {whole} generations are equal")
    t.check(n_splits <= most_splits * n_all, f"{what}: {n_splits} of {n_all} tokens differ")


def check_tiny(t, sluice, golden, spec, form, path):
    what = os.path.basename(path)
    entry = golden[spec]["weights"][form]
    every = entry["every"]
    rows = [
        score_row(f"row-{i}", r["context_ids"], r["continuation_ids"])
        for i, r in enumerate(golden[spec]["rows"][::every])
    ]
    prompts = [run_row(f"gen-{i}", p, 40) for i, p in enumerate(golden[spec]["prompts"][::every])]
    noise_mean, noise_max = entry["bf16_noise"]
    check_scores(
        t,
        f"{what} f32",
        rows,
        sluice.rows("score", path, rows, *F32),
        entry["rows"],
        MEAN_F32,
        MAX_F32,
        TIE_F32,
    )
    if not LEVEL and form != "f32":
        return
    check_greedy(
        t,
        f"{what} f32",
        prompts,
        lambda rows: sluice.rows("run", path, rows, *F32),
        entry["gen"],
        TIE_F32,
        *EQUAL_F32,
    )
    check_scores(
        t,
        f"{what} bf16",
        rows,
        sluice.rows("score", path, rows),
        entry["rows"],
        BF16_SHARE * noise_mean,
        1.25 * noise_max,
        2 * noise_max,
    )


def check_text(t, sluice, spec, path):
    """Rows of text score as the rows of their ids: the tokenizer of the folder, context and
    continuation apart."""
    if tiny.SPECS[spec][3] == "tokenizer.json":
        tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    else:
        tok = ByteLevelBPETokenizer(
            os.path.join(path, "vocab.json"), os.path.join(path, "merges.txt")
        )
    texts = [
        ("The man", " was there before them, and 1234 other people"),
        ("na\u00efve \u65e5\u672c", "\n\n  x  y's"),
        ("when will it", " be so?\tout up"),
        ("a", "\U0001f600 at the end "),
    ]
    text_rows = [
        {"custom_id": f"text-{i}", "context": a, "continuation": b}
        for i, (a, b) in enumerate(texts)
    ]
    id_rows = [
        score_row(f"text-{i}", *(tok.encode(x, add_special_tokens=False).ids for x in pair))
        for i, pair in enumerate(texts)
    ]
    out = [sluice.rows("score", path, rows, *F32) for rows in (text_rows, id_rows)]
    for a, b in zip(*out):
        t.check(
            a == b, f"{os.path.basename(path)} {a['custom_id']}: text and ids score apart: {a} {b}"
        )


def check_smollm2(t, sluice, path):
    golden = goldens("smollm2.json.gz")
    few, n = pick((4, 32), (4, 32), (24, 48))
    rows = [
        score_row(r["custom_id"], r["context_ids"], r["continuation_ids"]) for r in golden["rows"]
    ]
    prompts = [run_row(p["custom_id"], p["prompt_token_ids"], n) for p in golden["prompts"]]
    if not LEVEL:
        out = sluice.rows("score", path, rows[:few])
        check_scores(t, "SmolLM2 bf16", rows[:few], out, golden["rows"][:few], MEAN_BF16, MAX_BF16, TIE_BF16)
        return
    check_scores(
        t,
        "SmolLM2 f32",
        rows[:few],
        sluice.rows("score", path, rows[:few], *F32),
        golden["rows"][:few],
        MEAN_F32,
        MAX_F32,
        TIE_F32,
    )
    check_scores(
        t,
        "SmolLM2 bf16",
        rows,
        sluice.rows("score", path, rows),
        golden["rows"],
        MEAN_BF16,
        MAX_BF16,
        TIE_BF16,
    )
    check_greedy(
        t,
        "SmolLM2 f32",
        prompts if NIGHT else prompts[::5],
        lambda rows: sluice.rows("run", path, rows, *F32),
        golden["prompts"] if NIGHT else golden["prompts"][::5],
        TIE_F32,
        *EQUAL_F32,
    )
    check_greedy(
        t,
        "SmolLM2 bf16",
        prompts,
        lambda rows: sluice.rows("run", path, rows),
        golden["prompts"],
        TIE_BF16,
        *EQUAL_BF16,
    )
    chats = os.path.join(sluice.folder, "chats.jsonl")
    with open(chats, "w", encoding="utf-8") as f:
        f.write(
            sluice.call(
                ["tokenize", "-m", path],
                "".join(json.dumps({"messages": p["messages"]}) + "\n" for p in golden["prompts"]),
            )
        )
    for got, p in zip(jsonl(chats), golden["prompts"]):
        t.check(got["ids"] == p["prompt_token_ids"], f"SmolLM2 {p['custom_id']}: ids of the chat")


def names_of_level():
    """Of the checkpoints those that bring a model, or a number format of a container, that none before has; all from level full."""
    seen, out = set(), []
    for spec, form, name in tiny.files():
        new = {spec, (form, name.endswith(".gguf"))} - seen
        seen |= new
        out += [name] if new or LEVEL else []
    return out


def guarded(t, what, check, *args):
    try:
        check(t, *args)
    except (SluiceFailed, LookupError, TypeError, ValueError, OSError) as e:
        t.check(False, f"{what}: {type(e).__name__} {e}")


def main(argv):
    if len(argv) not in (2, 3):
        sys.exit(__doc__)
    t, golden = Tally(), goldens("tiny.json.gz")["models"]
    with tempfile.TemporaryDirectory() as folder:
        sluice = Sluice(argv[1], folder)
        models = argv[2] if len(argv) == 3 else os.path.join(folder, "models")
        for spec, form, path in tiny.write(os.path.abspath(models), names_of_level()):
            what = os.path.basename(path)
            if not t.check(
                tiny.digest(tiny.weights(spec, form)) == golden[spec]["weights"][form]["digest"],
                f"{what}: these are not the weights of the goldens",
            ):
                continue
            guarded(t, what, check_tiny, sluice, golden, spec, form, path)
            if form == "f32" and tiny.SPECS[spec][3] and os.path.isdir(path):
                guarded(t, what, check_text, sluice, spec, path)
        gguf = os.environ.get("SLUICE_TEST_GGUF")
        if gguf and os.path.exists(gguf):
            guarded(t, "SmolLM2", check_smollm2, sluice, os.path.abspath(gguf))
        else:
            t.skip("SmolLM2: SLUICE_TEST_GGUF names no file")
    t.finish()


if __name__ == "__main__":
    main(sys.argv)
