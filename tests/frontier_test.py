#!/usr/bin/env python3
"""What KV policies cost and bring: `bench frontier`, and who reads it: frontier_test.py [SLUICE] [--only PART]

Every figure is held against another way to it: perplexity against `score --text`, pass keys against `score` of rows
that are put together here, bytes against the layout of a page, speed against `plan`, the best points against all pairs.
A tiny model with random weights and a tokenizer of its own.
"""
import csv
import json
import math
import os
import re
import shutil
import signal
import sys

import trial
from trial import from_full, read

sys.path.insert(0, os.path.join(trial.HERE, "goldens"))
import families
import family_ref
import tiny

SPEC, LAYERS, KV_HEADS, HEAD_DIM = "llama-gqa", 3, 3, 64
PREFIX, WINDOW, LIMIT, DEPTHS = 96, 192, 3, 5
RAM = ["--mem-ram", "96M"]
POLICIES, BUDGETS, FORMATS = ("streaming", "h2o"), ("0.3", "40"), ("bf16", "q8", "mixed")
RATES = {"nvme_read": "3e8", "nvme_write": "2e8", "ram_read": "2e10", "matmul_flops": "1e12", "step_s": "1e-5", "threads": "1",
         "attend_f32": "9e9", "attend_bf16": "6e9", "attend_q8": "3e9", "attend_q4": "1.5e9", "attend_mixed": "1.2e9"}
M64 = (1 << 64) - 1


class Bed:
    """One folder for all parts: the model, a text, a machine file, and one frontier that most of them look at."""

    def __init__(self, folder, a):
        self.place = trial.Place(folder, a.sluice)
        self.model = self.place.at("model")
        tiny.write_hf(self.model, SPEC, "f32")
        tiny.write_tokenizer(self.model, "tokenizer.json", 1000)
        words = tiny.WORDS
        text = " ".join(words[(i * i + i // 7) % len(words)] + (".\n" if i % 17 == 16 else "") for i in range(900))
        self.text = self.place.write("text.txt", text.encode())
        self.machine = self.place.write("here.cfg", "".join(f"{k} = {v}\n" for k, v in RATES.items()).encode())
        self.found = None

    def frontier(self, *more, cache=None, code=0, tally=None):
        env = {"SLUICE_CACHE_DIR": cache} if cache else {}
        done = self.place.sluice("bench", "frontier", "-m", self.model, "--text", self.text, *RAM, "-t", "1", "--prefix", PREFIX,
                                 "--window", WINDOW, "--limit", LIMIT, *more, **env)
        if tally:
            tally.check(done.code == code, f"bench frontier {more}: exit {done.code}: {done.err[-400:]!r}")
        return done

    def whole(self, tally):
        if not self.found:
            done = self.frontier("--json", "--needles", "1", "--policies", ",".join(POLICIES), "--budgets", ",".join(BUDGETS),
                                 "--kv-formats", ",".join(FORMATS), "--machine", self.machine, "--num-prompts", "50", tally=tally)
            self.found = json.loads(done.out)
        return self.found

    def store(self, cache=None):
        folder = cache or self.place.at("cache")
        return [os.path.join(folder, x) for x in os.listdir(folder) if x.startswith("frontier-")]


def flags(row):
    budget = ["--kv-budget", row["kv_budget"]] if row["kv_budget"] else []
    return ["--kv-policy", row["kv_policy"], *budget, "--kv-format", row["kv_format"]]


def name(row):
    return row["kv_policy"] + ("=" + row["kv_budget"] if row["kv_budget"] else "") + " " + row["kv_format"]


@from_full
def combinations(tally, bed, _):
    """Each once, full first of its format."""
    rows = bed.whole(tally)["rows"]
    want = [f"{kv} {f}" for f in FORMATS for kv in ("full", *(f"{p}={b}" for p in POLICIES for b in BUDGETS))]
    tally.check([name(r) for r in rows] == want, f"combinations: {[name(r) for r in rows]}")


def perplexity(tally, bed, _):
    """To the last digit what `score --text` prints."""
    rows = bed.whole(tally)["rows"]
    for row in rows:
        done = bed.place.expect(tally, name(row), 0, "score", "-q", "-m", bed.model, "--text", bed.text, *RAM, "--prefix", PREFIX,
                                "--window", WINDOW, "--limit", LIMIT, *flags(row))
        want = json.loads(done.out)["ppl"]
        tally.check(row["perplexity"] == want, f"{name(row)}: {row['perplexity']}, score says {want}")
        more = 100 * (want / rows[0]["perplexity"] - 1)
        tally.check(abs(row["more_percent"] - more) < 1e-3 * (1 + more), f"{name(row)}: {row['more_percent']} %, want {more}")


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def needle_rows(bed):
    """The rows as bench/needle.h says, from the text's own tokens."""
    def ids(*texts):
        done = bed.place.sluice("tokenize", "-m", bed.model, stdin="".join(json.dumps({"text": t}) + "\n" for t in texts))
        return [json.loads(line)["ids"] for line in done.out.splitlines()]
    text, = ids(read(bed.text).decode())
    rows, lost = [], []
    for i in range(DEPTHS):
        key = 10000 + mix64((mix64(0) + i) & M64) % 90000
        asked = "\nThe secret number is"
        told, question, answer = ids(f"{asked} {key}. Remember it: {key}.\n", asked, f" {key}")
        filler = WINDOW - len(told) - len(question) - len(answer)
        before, window = filler * (2 * i + 1) // (2 * DEPTHS), text[i % LIMIT * WINDOW:][:filler]
        rows.append((window[:before] + told + window[before:] + question, answer))
        lost.append((question, answer))
    return rows, lost


def needles(tally, bed, _):
    """The log-probability of the keys, and that as a share between no text and all of it."""
    found = bed.whole(tally)["rows"]
    rows, lost = needle_rows(bed)

    def scored(which, *more):
        path = bed.place.rows("needles.jsonl", [{"context_ids": c, "continuation_ids": k} for c, k in which])
        out = bed.place.fresh()
        bed.place.expect(tally, f"score {more}", 0, "score", "-q", "-m", bed.model, "-i", path, "-o", out, *RAM, *more)
        return sum(json.loads(x)["logprob"] for x in read(out).splitlines()) / len(which)

    none, full = scored(lost), None
    for row in found:
        want = scored(rows, *flags(row))
        full = want if full is None else full
        tally.check(math.isclose(row["needle_logprob"], want, rel_tol=1e-5), f"{name(row)}: {row['needle_logprob']}, score says {want}")
        share = (want - none) / (full - none) if full > none else None
        good = row["retrieval"] is None if share is None else row["retrieval"] is not None and abs(row["retrieval"] - share) < 1e-4 * (1 + abs(share))
        tally.check(good, f"{name(row)}: retrieval {row['retrieval']}, want {share}")


def page_bytes(form, kv_heads=KV_HEADS, head_dim=HEAD_DIM):
    """K and V of 32 slots: see kernels/kv.h; scales and minima of q8 and q4 are f16, of groups of 64."""
    number = {"f32": 4, "bf16": 2, "q8": 1, "q4": 0.5}[form]
    codes = 32 * head_dim * number + (2 * 2 * 32 if form in ("q8", "q4") else 0)
    return -(-int(2 * kv_heads * codes) // 4096) * 4096


def kv_bytes(tally, bed, _):
    """Pages, ring, positions and scores of a row of the job, which is as long as a window."""
    for row in bed.whole(tally)["rows"]:
        tokens, budget = WINDOW, row["kv_budget"]
        slots = tokens if not budget else math.ceil(float(budget) * tokens) if "." in budget else int(budget)
        ring = ring_bytes = 0
        if row["kv_format"] == "mixed":
            recent = slots if not budget else slots // 2 if row["kv_policy"] == "h2o" else slots - 4
            ring, ring_bytes = min(64, recent, slots), 2 * page_bytes("q8")
        pages = -(-(slots - ring) // 32) * page_bytes("q4" if ring else row["kv_format"])
        want = LAYERS * (pages + ring_bytes + (slots * KV_HEADS * 8 if budget else 0))
        tally.check(row["kv_row_bytes"] == want, f"{name(row)}: {row['kv_row_bytes']} bytes a row, want {want}")
        tally.check(math.isclose(row["kv_token_bytes"], want / tokens, rel_tol=1e-5), f"{name(row)}: {row['kv_token_bytes']} a token")


def windows(tally, bed, _):
    """Layers that see a window hold no more, and score as `score` has them."""
    path, spec = bed.place.at("gemma2"), "gemma2-window"
    families.write_hf(path, spec, families.stored()[spec]["tensors"], "f32")
    tiny.write_tokenizer(path, "tokenizer.json", families.VOCAB)
    model, c = family_ref.model_open(path), families.SPECS[spec]
    done = bed.frontier("-m", path, "--json", "--needles", "0", "--policies", "h2o", "--budgets", "0.5", "--machine", bed.machine,
                        cache=bed.place.at("cache-of-windows"), tally=tally)
    for row in json.loads(done.out)["rows"]:
        want, most = 0, -(-WINDOW // 2) if row["kv_budget"] else WINDOW
        for layer in range(model.layers):
            window = model.window(layer)
            slots = min(most, int(window) - 1) if window else most
            want += -(-slots // 32) * page_bytes("bf16", c["num_key_value_heads"], c["head_dim"])
            want += slots * c["num_key_value_heads"] * 8 if window or row["kv_budget"] else 0
        tally.check(row["kv_row_bytes"] == want, f"{spec} {name(row)}: {row['kv_row_bytes']} bytes a row, want {want}")
        done = bed.place.expect(tally, name(row), 0, "score", "-q", "-m", path, "--text", bed.text, *RAM, "--prefix", PREFIX, "--window", WINDOW,
                                "--limit", LIMIT, *flags(row))
        tally.check(row["perplexity"] == json.loads(done.out)["ppl"], f"{spec} {name(row)}: {row['perplexity']}, score says {done.out!r}")


def speed(tally, bed, _):
    """What `plan` says of the same job and flags."""
    rows, planned = bed.whole(tally)["rows"], set()
    for row in rows:
        done = bed.place.expect(tally, f"plan {name(row)}", 0, "plan", "-q", "-m", bed.model, *RAM, "--machine", bed.machine, "--prompt-len",
                                PREFIX, "--gen-len", WINDOW - PREFIX, "--num-prompts", "50", "--no-advice", "--json", *flags(row))
        told = json.loads(done.out)
        want = told["work"]["output_tokens"] / told["predicted"]["job_s"]
        planned.add(want)
        tally.check(math.isclose(row["output_tok_s"], want, rel_tol=1e-4) and row["speed"] == "planned",
                    f"{name(row)}: {row['output_tok_s']} {row['speed']}, plan says {want}")
    tally.check(len(planned) > 3, f"one speed for all: {planned}")


def pareto(tally, bed, _):
    """No other point is as fast and as good, and better in one; speeds within 1 % are one, as those of budgets that differ by a slot."""
    done = bed.frontier("--json", "--needles", "0", "--policies", "h2o,streaming", "--budgets", "40,41,42,43,44,45", "--machine", bed.machine,
                        "--num-prompts", "50", tally=tally)
    unbeaten = []
    for found in bed.whole(tally), json.loads(done.out):
        points = [(r["output_tok_s"], r["perplexity"], name(r)) for r in found["rows"]]
        unbeaten = [[n for s, p, n in points if not any(t >= same * s and q <= p and (t > s or q < p) for t, q, _ in points)]
                    for same in (0.99, 1)]
        tally.check(found["pareto"] == unbeaten[0] and 0 < len(unbeaten[0]) < len(points), f"best: {found['pareto']}, want {unbeaten[0]}")
    tally.check(len(unbeaten[0]) < len(unbeaten[1]), f"nothing within 1 %: {unbeaten}")


def table(text):
    """Rows of a CSV, without what differs from call to call."""
    return [{k: v for k, v in row.items() if k not in ("command", "date")} for row in csv.DictReader(text.splitlines())]


def resumes(tally, bed, _):
    """What is kept is not scored again; what of a line a stopped run left is no row; other conditions are."""
    cache = bed.place.at("other")
    more = ("--needles", "0", "--policies", "h2o", "--budgets", "0.3", "--kv-formats", "bf16,q8", "--machine", bed.machine, "--csv")
    flat = lambda done: table(done.out)  # noqa: E731
    scored = lambda done: re.findall(r"frontier: (\S+ \w+) \(\d of 4\)", done.err)  # noqa: E731
    every = ["full bf16", "h2o=0.3 bf16", "full q8", "h2o=0.3 q8"]
    first = bed.frontier(*more, cache=cache, tally=tally)
    tally.check(scored(first) == every, f"scored: {scored(first)}")
    again = bed.frontier(*more, cache=cache, tally=tally)
    tally.check(scored(again) == [] and flat(again) == flat(first), f"again: {scored(again)}: {flat(again)} is not {flat(first)}")
    path, = bed.store(cache)
    whole = read(path)
    with open(path, "wb") as f:
        f.write(whole[:whole.rstrip().rfind(b"\n") + 40])  # the last row is cut off
    rest = bed.frontier(*more, cache=cache, tally=tally)
    tally.check(scored(rest) == every[3:] and flat(rest) == flat(first), f"the rest: {scored(rest)}")
    tally.check(read(path).count(b"\n") == whole.count(b"\n") + 1, f"{read(path)!r}")
    other = bed.frontier(*more, "--limit", "2", cache=cache, tally=tally)
    tally.check(scored(other) == every, f"two windows are not three: {scored(other)}")
    f32 = bed.frontier(*more, "--compute", "f32", cache=cache, tally=tally)
    tally.check(scored(f32) == every, f"f32 is not bf16: {scored(f32)}")
    keyed = bed.frontier("--needles", "1", *more[2:], cache=cache, tally=tally)
    tally.check(scored(keyed) == every, f"with keys it is another job: {scored(keyed)}")
    full, = [r for r in flat(again) if r["kv_policy"] == "full" and r["kv_format"] == "q8"]
    tally.check(full["needle_logprob"] == full["retrieval"] == "", f"without keys: {full}")
    shutil.rmtree(cache)


@from_full
def interrupted(tally, bed, _):
    """SIGINT: exit 75, and the same command goes on where it stopped."""
    cache = bed.place.at("stopped")
    argv = ["bench", "frontier", "-m", bed.model, "--text", bed.text, *RAM, "--prefix", PREFIX, "--window", WINDOW, "--csv", "--machine", bed.machine,
            "--policies", "window,streaming,h2o,h2o-mean", "--budgets", "0.2,0.3,0.4"]
    process = bed.place.start(argv, SLUICE_CACHE_DIR=cache)
    process.wait_for(lambda: process.said("(3 of 13)"))
    process.signal(signal.SIGINT)
    done = process.end()
    rows = table(done.out)
    tally.check(done.code == 75 and 2 <= len(rows) <= 11, f"SIGINT: exit {done.code}, {len(rows)} lines: {done.err[-200:]!r}")
    again = bed.place.sluice(*argv, SLUICE_CACHE_DIR=cache)
    whole = table(again.out)
    tally.check(again.code == 0 and len(whole) == 13 and whole[:len(rows)] == rows, f"exit {again.code}: {whole} after {rows}")
    tally.check("full bf16 (1 of" not in again.err and "(13 of 13)" in again.err, f"scored again: {again.err!r}")


def measured(tally, bed, _):
    """--measure runs the job, once."""
    more = ("--needles", "0", "--policies", "h2o", "--budgets", "0.3", "--prompt-len", "24", "--gen-len", "8", "--num-prompts", "3", "--measure",
            "--json")
    one, two = (json.loads(bed.frontier(*more, tally=tally).out)["rows"] for _ in range(2))
    tally.check([r["speed"] for r in one] == ["measured"] * 2 and all(r["output_tok_s"] > 0 for r in one), f"measured: {one}")
    tally.check(one == two, f"what was measured is kept: {one}, {two}")
    other = json.loads(bed.frontier(*more[:-3], "4", *more[-2:], tally=tally).out)["rows"]
    tally.check(all(a["output_tok_s"] != b["output_tok_s"] for a, b in zip(one, other)), f"of another job it is not: {one}, {other}")


def costs(bed, tally, *flags, model=None, **env):
    """{what: (percent, on)} of the plan's own flags, as `plan --json` has them."""
    done = bed.place.expect(tally, f"plan {flags}", 0, "plan", "-q", "-m", model or bed.model, *RAM, "--machine", bed.machine, "--prompt-len", PREFIX,
                            "--gen-len", WINDOW - PREFIX, "--num-prompts", "50", "--no-advice", "--json", *flags, **env)
    return {x["what"]: (x["more_perplexity"] and round(100 * x["more_perplexity"], 1), x["on"]) for x in json.loads(done.out)["quality"] or ()}


@from_full
def told(tally, bed, _):
    """A plan has the model's own figures for its lossy flags, and says so; of the rest the table's."""
    rows = {name(r): round(max(r["more_percent"], 0), 1) for r in bed.whole(tally)["rows"]}
    mine = f"this model: text.txt, {LIMIT} windows of {PREFIX} + {WINDOW - PREFIX} tokens"
    table = trial.more_perplexity()

    def kv(policy, budget):
        return "--kv-policy", policy, "--kv-budget", budget

    for flags, want in ((kv("h2o", "0.30"), {"h2o": "h2o=0.3 bf16"}), (kv("h2o", "40"), {"h2o": "h2o=40 bf16"}),
                        (("--kv-format", "q8"), {"kv-q8": "full q8"}), (kv("streaming", "0.3"), {"streaming": "streaming=0.3 bf16"}),
                        ((*kv("h2o", "0.3"), "--kv-format", "q8"), {"h2o + kv-q8": "h2o=0.3 q8"}), ((), {})):
        found = costs(bed, tally, *flags)
        tally.check(found == {what: (rows[point], mine) for what, point in want.items()}, f"{flags}: {found}, want {want} of {rows}")
    found = costs(bed, tally, *kv("h2o", "0.3"), "--kv-format", "q4")
    tally.check(found == {"h2o": (rows["h2o=0.3 bf16"], mine), "kv-q4": (None, None)}, f"not both: {found}")
    of_table = [kv(policy, "0.4") for policy in table if policy != "int8"]
    of_table += [(*kv("h2o", "0.3"), "--kv-scope", "layer"), (*kv("h2o", "0.3"), "-m", bed.place.model)]
    for flags in of_table:
        found = costs(bed, tally, *flags)
        (what, (more, on)), = found.items()
        tally.check(any(abs(more - x) < 0.051 for x in table[what]) and on.startswith("SmolLM2-135M"), f"{flags}: {found}, the table {table[what]}")
    found = costs(bed, tally, "--weights", "q8", "--compute", "int8")
    more, on = found.pop("int8")
    tally.check(any(abs(more - x) < 0.051 for x in table["int8"]) and on == "SmolLM2-135M (q8)" and found == {"q8": (None, None)}, f"int8 over q8: {more}, {found}")
    tally.check(not costs(bed, tally, "--compute", "int8"), "int8 over other weights is bf16, and costs nothing")


def most_scored(tally, bed, _):
    """Of rows that say the same the one with the most tokens counts, and what is no row is passed over."""
    bed.whole(tally)
    cache = bed.place.at("kept")
    shutil.copytree(bed.place.at("cache"), cache)
    path, = bed.store(cache)
    row = next(x for x in read(path).decode().splitlines() if ",h2o=0.3,bf16," in x).split(",")
    head = row[:2]

    def line(windows, more, kv="h2o=0.3"):
        return ",".join([*head, "96", "192", str(windows), kv, "bf16", "9.5", str(more), "", "", "", ""]) + "\n"
    with open(path, "a", encoding="utf-8") as f:
        f.write(line(40, 11.1) + line(40, 12.2) + line(2, 99) + "nonsense\n" + line(50, "nan") + line(60, 77).replace(",9.5,", ",,") +
                line(70, 66, "h2o=0.31") + line(90, 55)[:-1] + "12")  # the end may be missing
    found = costs(bed, tally, "--kv-policy", "h2o", "--kv-budget", "0.3", SLUICE_CACHE_DIR=cache)
    tally.check(found["h2o"][0] == 12.2 and "40 windows" in found["h2o"][1], f"{found}")


def refused(tally, bed, _):
    for what, words, more in (("no such policy", "'lru'", ["--policies", "h2o,lru"]), ("no such format", "'q3'", ["--kv-formats", "q3"]),
                              ("no budget", "out of range", ["--budgets", "1.5"]), ("a budget too small", "fewer than sink", ["--budgets", "3"]),
                              ("a share too small", "39 slots are fewer than", ["--budgets", "0.2", "--kv-recent", "60"]),
                              ("an empty list", "no values", ["--budgets", ","]), ("many needles", "--needles", ["--needles", "100"]),
                              ("no room for a key", "do not hold a pass key", ["--prefix", "20", "--window", "40", "--needles", "1"]),
                              ("prefix", "prefix < window", ["--prefix", "192"]), ("a long window", "context is 512", ["--window", "600"]),
                              ("rows of a file", "unknown flag", ["-i", "x.jsonl"])):
        done = bed.frontier(*more)
        tally.check(done.code == 2 and words in done.error_line() and not done.out, f"{what}: exit {done.code}: {done.err[-300:]!r}")
    done = bed.place.sluice("bench", "frontier", "-m", bed.model)
    tally.check(done.code == 2 and "--text" in done.error_line(), f"no text: {done.err!r}")
    done = bed.place.sluice("bench", "frontier", "-m", bed.place.model, "--text", bed.text, *RAM)
    tally.check(done.code == 5 and "no tokenizer" in done.error_line(), f"no tokenizer: {done.err!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (combinations, perplexity, needles, kv_bytes, windows, speed, pareto, resumes, interrupted, measured, told, most_scored,
                                       refused), make=Bed))
