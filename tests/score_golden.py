#!/usr/bin/env python3
"""Log-probabilities and greedy tokens of ./sluice against transformers': score_golden.py SLUICE
[MODELS-DIR]

Every tiny checkpoint (written to MODELS-DIR, or to a folder that goes again) is scored in f32,
where only the order of sums may differ, and as users run it (bf16), where the bound is what bf16
costs transformers itself on the same weights. SLUICE_TEST_GGUF=FILE adds SmolLM2-135M-Instruct
Q4_1, a part of its rows unless SLUICE_TEST_FULL is set.
"""

import json
import os
import sys
import tempfile

import numpy as np
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from golden_common import Sluice, SluiceFailed, goldens, jsonl, run_row, score_row
from trial import Tally
import tiny

F32 = ("--compute", "f32", "--kv-format", "f32")
MEAN_F32, MAX_F32, TIE_F32 = 2e-4, 5e-3, 1e-3
MEAN_BF16, MAX_BF16, TIE_BF16 = 0.02, 0.3, 0.25


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


def check_greedy(t, what, rows, out, want, tie):
    """Same tokens until a step whose two best logits are closer than `tie`, where either may
    win."""
    whole = 0
    for row, got, ref in zip(rows, out, want):
        n, ids = row["max_tokens"], got["token_ids"]
        split = next((i for i, (a, b) in enumerate(zip(ids, ref["ids"])) if a != b), None)
        whole += split is None
        name = f"{what} {row['custom_id']}"
        t.check(
            len(ids) == n and got["finish_reason"] == "length",
            f"{name}: {len(ids)} tokens of {n}, {got['finish_reason']}",
        )
        t.check(
            split is None or ref["gaps"][split] < tie,
            f"{name}: token {split} is {ids[split] if split is not None else ''}, want "
            f"{ref['ids'][split or 0]} (leads by {ref['gaps'][split or 0]})",
        )
    print(f"  {what}: {whole} of {len(rows)} generations equal to the last token")


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
    check_greedy(
        t, f"{what} f32", prompts, sluice.rows("run", path, prompts, *F32), entry["gen"], TIE_F32
    )
    check_scores(
        t,
        f"{what} bf16",
        rows,
        sluice.rows("score", path, rows),
        entry["rows"],
        max(MEAN_BF16, 1.25 * noise_mean),
        max(MAX_BF16, 2 * noise_max),
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
    full = bool(os.environ.get("SLUICE_TEST_FULL"))
    few, some, n = (24, 50, 48) if full else (4, 8, 32)
    rows = [
        score_row(r["custom_id"], r["context_ids"], r["continuation_ids"]) for r in golden["rows"]
    ]
    prompts = [run_row(p["custom_id"], p["prompt_token_ids"], n) for p in golden["prompts"]]
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
        prompts[:some],
        sluice.rows("run", path, prompts[:some], *F32),
        golden["prompts"],
        TIE_F32,
    )
    check_greedy(
        t,
        "SmolLM2 bf16",
        prompts[:some],
        sluice.rows("run", path, prompts[:some]),
        golden["prompts"],
        TIE_BF16,
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
        for spec, form, path in tiny.write(os.path.abspath(models)):
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
