#!/usr/bin/env python3
"""Which rows a plan takes in, and how many at once: admission_test.py [SLUICE] [--only PART]

A frozen placement that does not fit is exit 4 and never an error row; a prompt is too long only where no
plan within the budgets holds it; rows that want log-probabilities cost what they are. A model with
pseudo-random weights; standard library only.
"""
import json
import re
import sys

import trial
from trial import MIB, difference, from_full, read

FROZEN = ["--percent", "0", "100", "0", "100", "0", "100", "--batch", "64", "--batches", "5"]
CODE = "prompt_too_long_for_memory"


def plan_of(place, model, path, *flags):
    done = place.sluice("plan", "-m", model, "-i", path, "--json", *flags)
    return (json.loads(done.out) if done.code == 0 else None), done


def frozen_batch(tally, place, a):
    """Too many rows asked for: exit 4 with a size that fits, and a batch that does."""
    path = place.rows("in.jsonl", trial.job_rows(24, 3))
    run = ["run", "-m", place.model, "-i", path, "--progress", "none"]
    whole = place.fresh()
    tally.check(place.sluice(*run, "-o", whole).code == 0, "all rows with room for them")
    for flags in (FROZEN, ["--batch", "48"], ["--batch", "8", "--batches", "40"], ["--weights-resident", "100%"]):
        name = " ".join(flags)
        ram = 64
        while ram > 8:  # the first size at which this placement does not fit
            done = place.sluice(*run, "--dry-run", "--mem-ram", f"{ram}M", *flags)
            if done.code != 0 or CODE[:15] in done.err or "become error rows" in done.err:
                break
            ram -= 4
        tally.check(done.code == 4, f"{name} in {ram}M: exit {done.code}: {done.last()}")
        tally.check("error rows" not in done.err, f"{name} in {ram}M makes error rows: {done.err[-300:]!r}")
        hint = re.search(r"--mem-ram (\d+)M\)$", done.error_line())
        if not tally.check(hint, f"{name} in {ram}M: the hint ends in a size: {done.error_line()!r}"):
            continue
        out = place.fresh()
        done = place.sluice(*run, "-o", out, "--mem-ram", hint[1] + "M", *flags)
        tally.check(done.code == 0 and read(out) == read(whole),
                    f"{name} in {hint[1]}M: exit {done.code}, {difference(read(whole), read(out))}")


def free_choice_named(tally, place, a):
    """Where a smaller batch would do, the refusal names it, and it does."""
    path = place.rows("in.jsonl", trial.job_rows(24, 3))
    run = ["run", "-m", place.model, "-i", path, "--progress", "none", "--mem-ram", "40M"]
    done = place.sluice(*run, "--dry-run", *FROZEN)
    flags = re.search(r"--batch \d+ --batches \d+", done.error_line())
    if tally.check(done.code == 4 and flags, f"exit {done.code}, {done.error_line()!r}"):
        done = place.sluice(*run, "-o", place.fresh(), *flags[0].split())
        tally.check(done.code == 0, f"{flags[0]}: exit {done.code}: {done.last()}")


def one_rule(tally, place, a):
    """Which prompts are too long does not depend on placement flags."""
    model = place.write("long.cfg", trial.MODEL.replace("context = 512", "context = 4096").encode())
    lengths = (3, 40, 3000, 700, 1500, 2200, 60)
    path = place.rows("in.jsonl", [
        {"custom_id": f"r{i}", "prompt_token_ids": [(i + 7 * k) % trial.VOCAB for k in range(n)], "max_tokens": 4,
         "temperature": 0, "ignore_eos": True} for i, n in enumerate(lengths)])
    run = ["run", "-m", model, "-i", path, "--progress", "none"]
    for mib in range(17, 80):
        done = place.sluice(*run, "--dry-run", "--mem-ram", f"{mib}M")
        if done.code in (0, 3):  # 3: some rows are bad, as those that are left out
            break
    cap = re.search(r"prompts above (\d+) tokens", done.err)
    if not tally.check(cap, f"{mib}M leaves prompts out: {done.err[-300:]!r}"):
        return
    for flags in (["--batch", "1"], ["--batches", "2"], ["--batch", "7"], ["--weights-resident", "0"],
                  ["--weights-resident", "100%"], ["--ahead-weights", "9"], ["--prefill-tokens", "2048"]):
        done = place.sluice(*run, "--dry-run", "--mem-ram", f"{mib}M", *flags)
        other = re.search(r"prompts above (\d+) tokens", done.err)
        tally.check(done.code == 4 or (done.code in (0, 3) and other and other[1] == cap[1]),
                    f"{mib}M {' '.join(flags)}: exit {done.code}, above {other and other[1]}, free above {cap[1]}")


def logprobs_rows(n, wanting, echo=False):
    rows = []
    for i in range(n):
        rows.append({"custom_id": f"r{i}", "prompt_token_ids": [(i * 31 + k * 7) % trial.VOCAB for k in range(60)],
                     "max_tokens": 40, "temperature": 0, "ignore_eos": True})
        if i < wanting:
            rows[-1].update({"logprobs": 2, **({"echo": True} if echo else {})})
    return rows


def placement(plan):
    """The flags that ask for the plan's placement with two rows fewer (or one of each batch)."""
    batch = plan["batch"] - (2 if plan["batches"] == 1 else 1)
    names = ("batches", "weights_resident", "ahead_weights", "ahead_state", "prefill_tokens")
    pairs = [("--batch", batch)] + [("--" + name.replace("_", "-"), plan[name]) for name in names]
    return [str(word) for pair in pairs for word in pair]


@from_full
def few_score(tally, place, a):
    """What log-probabilities cost is less than two rows, whether one row of 64 wants them or all. The placement and
    the RAM are those of the plan without: which plan is the fastest depends on rates as measured."""
    model = place.write("wide.cfg", trial.MODEL.replace("layers = 6", "layers = 12").encode())
    free, done = plan_of(place, model, place.rows("in-0.jsonl", logprobs_rows(64, 0)), "--mem-ram", "38M", "--mem-disk", "0")
    if not tally.check(free, f"no row wants logprobs: exit {done.code}: {done.last()}"):
        return
    ram = free["bytes"]["ram"]
    flags = ["--mem-ram", str(ram), "--mem-disk", "0", *placement(free["plan"])]
    for n, echo in ((1, False), (1, True), (64, False), (64, True)):
        path = place.rows(f"in-{n}-{echo}.jsonl", logprobs_rows(64, n, echo))
        what = f"{n} rows want logprobs{' and echo' if echo else ''}"
        plan, done = plan_of(place, model, path, *flags)
        if not tally.check(plan, f"{what}: {' '.join(flags)}: exit {done.code}: {done.last()}") or (n != 1 and not echo):
            continue
        summary = place.fresh()
        done = place.sluice("run", "-m", model, "-i", path, "-o", place.fresh(), "--progress", "none", "--summary",
                            summary, *flags)
        if tally.check(done.code == 0, f"{what}: exit {done.code}: {done.last()}"):
            passes, said = json.loads(read(summary))["passes"], plan["predicted"]["passes"]
            tally.check(passes < said * 1.5 and said < passes * 1.5, f"{what}: {said} passes predicted, {passes} measured")
            tally.check(done.rss <= ram + trial.CODE_BYTES, f"{what}: peak {done.rss / MIB:.1f} MiB")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [frozen_batch, free_choice_named, one_rule, few_score]))
