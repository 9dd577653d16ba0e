#!/usr/bin/env python3
"""It always fits: budget_test.py [SLUICE] [--model GGUF] [--level LEVEL] [--seed N] [--only PART]

Peak resident memory of whole commands against --mem-ram + 24 MiB, over budgets, batches, KV homes and
policies; the size in the hint of what does not fit works when it is tried; --mem-disk is a cap. With
SmolLM2 in bf16 where it is found, with pseudo-random weights everywhere. Standard library only.
"""
import json
import os
import random
import re
import sys

import trial
from trial import ALL_ON_DISK, CODE_BYTES, H2O, MIB, NIGHT, ON_DISK, from_full, job_rows, pick, read

SETTINGS = {
    "automatic": [],
    "1 row": ["--batch", "1", "--batches", "1"],
    "weights with zstd": ["--weights-resident", "0", "--weights-codec", "zstd"],
    "many rows": ["--batch", "16", "--batches", "2"],
    "KV on disk": [*ON_DISK, "--batch", "8", "--batches", "3"],
    "all on disk, h2o": [*ALL_ON_DISK, *H2O, "--batch", "8", "--batches", "4"],
    "h2o in RAM": ["--percent", "0", "0", "0", "100", "0", "100", *H2O, "--batch", "8", "--batches", "2"],
    "half of the weights": ["--percent", "0", "50", "0", "100", "0", "100"],
    "f32": ["--compute", "f32", "--kv-format", "f32", "--batch", "8"],
    "far ahead": ["--ahead-weights", "24", "--ahead-state", "6", *ON_DISK, "--batch", "4", "--batches", "8"],
}


def within(tally, what, done, budget):
    """Ended well, within its budget; returns what it took beyond."""
    tally.check(done.code == 0, f"{what}: exit {done.code}: {done.err[-300:]!r}")
    over = done.rss - budget
    tally.check(over <= CODE_BYTES, f"{what}: peak RSS {done.rss / MIB:.1f} MiB with a budget of {budget / MIB:.0f} MiB")
    return over


def hint(done):
    """The flag and the bytes that an exit 4 proposes, or the warning that the longest prompts do not fit."""
    found = re.search(r"(--mem-ram|--mem-disk|--mem-device) (\d+)M\)?$", done.error_line())
    found = found or re.search(r"longest prompts do not fit: .*(--mem-ram|--mem-disk|--mem-device) (\d+)M", done.err)
    return (found[1], int(found[2])) if found else (None, 0)


def fits_or_says(tally, what, place, args, flag, size_mib, *more):
    """A run within a budget; one that is refused is tried again with the size of its hint."""
    out = place.fresh()
    done = place.sluice(*args, "-o", out, flag, f"{size_mib}M", *more)
    asked = size_mib
    for _ in range(3):  # more of one budget may show that the other is too small
        capped = done.code == 3 and hint(done)[0]
        if done.code != 4 and not capped:
            break
        if capped:
            over = done.rss - size_mib * MIB
            tally.check(over <= CODE_BYTES, f"{what}, without its longest prompts: peak RSS {done.rss / MIB:.1f} MiB "
                        f"with a budget of {size_mib} MiB")
        named, asked = hint(done)
        if not tally.check(named == flag and asked > size_mib,
                           f"{what}: {flag} {size_mib}M: exit {done.code} without a larger size: {done.error_line()!r}"):
            return None
        size_mib = asked
        done = place.sluice(*args, "-o", out, flag, f"{asked}M", *more, *(("--overwrite",) if capped else ()))
    tally.check(done.code == 0 and read(out), f"{what}: {flag} {asked}M: exit {done.code}: {done.error_line()!r}")
    return done, asked


def sweep(tally, place, model, source, budgets, settings):
    """Every setting under every budget: within it, or refused with a size that works, within that."""
    most, n, refused = -CODE_BYTES, 0, 0
    for name in settings:
        for mib in budgets:
            what = f"{name}, {mib} MiB"
            args = ["run", "-m", model, "-i", source, "--progress", "none", *SETTINGS[name]]
            got = fits_or_says(tally, what, place, args, "--mem-ram", mib)
            if got:
                done, asked = got
                n += 1
                refused += asked != mib
                most = max(most, within(tally, f"{what} ({asked} MiB asked)", done, asked * MIB))
    print(f"{n} runs, {refused} of them after a refusal; peak RSS at most --mem-ram + {most / MIB:.1f} MiB", flush=True)


def small_model(tally, place, a):
    """Budgets at the edge of what a small model needs."""
    source = place.rows("in.jsonl", job_rows(24, 21))
    sweep(tally, place, place.model, source, pick((1,), (1, 32), (1, 24, 32, 64)), SETTINGS)
    for command in (["score"], ["run"]):
        rows = [{"context_ids": [1, 2, 3], "continuation_ids": list(range(5, 60))}] * 8
        args = [*command, "-m", place.model, "-i", place.rows("s.jsonl", rows) if command == ["score"] else source,
                "--progress", "none"]
        fits_or_says(tally, command[0], place, args, "--mem-ram", 2)


def empty_cache(place):
    for f in os.listdir(place.at("cache")) if os.path.isdir(place.at("cache")) else ():
        os.unlink(os.path.join(place.at("cache"), f))


def many_threads(tally, place, a):
    """The probe's scratch of every thread is within the budget; where it cannot be, a size that works is named."""
    args = ["run", "-m", place.model, "-i", place.rows("in.jsonl", job_rows(8, 26)), "--progress", "none"]
    for threads, mib in ((1, 48), (8, 48), (32, 64), (128, 96)):
        empty_cache(place)
        done = place.sluice(*args, "-o", place.fresh(), "-t", str(threads), "--mem-ram", f"{mib}M")
        within(tally, f"first run, -t {threads}, {mib} MiB", done, mib * MIB)
    empty_cache(place)
    done = place.sluice(*args, "-o", place.fresh(), "-t", "1000", "--mem-ram", "64M")
    named, size = hint(done)
    tally.check(done.code == 4 and named == "--mem-ram" and size > 64 and done.rss <= 64 * MIB + CODE_BYTES,
                f"-t 1000, 64 MiB: exit {done.code}, peak RSS {done.rss / MIB:.1f} MiB: {done.error_line()!r}")


def first_use(tally, place, a):
    """Packing and probing on first use are within the budget too."""
    config = place.write("wide.cfg", trial.MODEL.replace("layers = 6", "layers = 40").replace(
        "ffn = 512", "ffn = 2048").encode())
    source = place.rows("in.jsonl", job_rows(8, 22))
    for mib in pick((32,), (32, 48, 64)):
        for _ in range(2):  # without AVX-512 a tile of f32 makes the smallest 34 MiB: that has to do, then
            empty_cache(place)
            done = place.sluice("run", "-m", config, "-i", source, "-o", place.fresh(), "--progress", "none", "--mem-ram",
                                f"{mib}M")
            if done.code != 4 or mib > 32:
                break
            mib = hint(done)[1]
            tally.check(32 < mib <= 34, f"first use: the smallest is {mib} MiB: {done.error_line()!r}")
        within(tally, f"first use, {mib} MiB", done, mib * MIB)


def long_lines(tally, place, a):
    """Long rows and many rows are counted."""
    r = random.Random(a.seed)
    rows = job_rows(20, 23, prompt_max=32)
    for k in (3, 11):  # what makes it tight is not left out for its prompt; user is read, and ignored
        rows[k].update(user="x" * (2 << 20), prompt_token_ids=[7])
    args = ["run", "-m", place.model, "-i", place.rows("long.jsonl", rows), "--progress", "none"]
    got = fits_or_says(tally, "lines of 2 MiB", place, args, "--mem-ram", 40)
    if got:
        within(tally, "lines of 2 MiB", got[0], got[1] * MIB)
    n = pick(5_000, 20_000, 200_000)
    rows = ({"custom_id": f"request-number-{i}", "prompt_token_ids": [3 + r.randrange(2000)], "max_tokens": 1}
            for i in range(n))
    args = ["run", "-m", place.model, "-i", place.rows("many.jsonl", rows), "--progress", "none"]
    got = fits_or_says(tally, f"{n} rows", place, args, "--mem-ram", 40)
    if got:
        within(tally, f"{n} rows", got[0], got[1] * MIB)


LINE_SHARE = 16  # bytes of --mem-ram for each byte of the longest line
IDS = {"prompt_token_ids": [3, 4, 5], "max_tokens": 2}


def write_line(f, field, n_bytes):
    """A line of about so many bytes; in pieces, since a child's peak RSS begins with its parent's."""
    fill = {"prompt": ('{"prompt": "', "a b ", '"}'), "custom_id": ('{"custom_id": "', "x", '"}'),
            "prompt_token_ids": ('{"prompt_token_ids": [', "7,", "7]}"),
            "messages": ('{"messages": [{"role": "user", "content": "', "a b ", '"}]}'),
            "logit_bias": ('{"prompt_token_ids": [1], "logit_bias": {', '"17":1,', '"18":1}}'),
            "spaces": ('{"prompt_token_ids": [3, 4, 5], ', " ", '"max_tokens": 2}'),
            "user": ('{"prompt_token_ids": [3, 4, 5], "max_tokens": 2, "user": "', "x", '"}')}
    before, part, after = fill[field]
    f.write(before)
    for _ in range(n_bytes // (1024 * len(part))):
        f.write(part * 1024)
    f.write(after + "\n")


def one_long_line(tally, place, a):
    """A line beyond the budget's share is one error row, whatever field is long; a shorter one is read, and counted."""
    mib, retried = 32, 24 * LINE_SHARE + LINE_SHARE
    for field in ("prompt", "custom_id", "prompt_token_ids", "messages", "logit_bias", "spaces", "user"):
        for line_bytes in (24 * MIB, mib * MIB // LINE_SHARE - 4096):
            source, valid = place.at("in.jsonl"), field in ("spaces", "user")
            with open(source, "w", encoding="ascii") as f:
                f.write(json.dumps(IDS) + "\n")
                write_line(f, field, line_bytes)
                f.write(json.dumps(IDS) + "\n")
            args = ["run", "-m", place.model, "-i", source, "--progress", "none"]
            out, what, refused = place.fresh(), f"{field} of {line_bytes / MIB:.1f} MiB", line_bytes > 2 * MIB
            done = place.sluice(*args, "-o", out, "--mem-ram", f"{mib}M")
            if done.code == 4 and valid and not refused:  # the line is counted: the size of the hint has room for it
                out, mib_asked = place.fresh(), hint(done)[1]
                done = place.sluice(*args, "-o", out, "--mem-ram", f"{mib_asked}M")
                within(tally, what, done, mib_asked * MIB)
                continue
            rows = [json.loads(x) for x in (read(out) or b"").splitlines()]
            code = len(rows) == 3 and (rows[1].get("error") or {}).get("code")
            tally.check(done.code == (3 if refused or not valid else 0) and len(rows) == 3
                        and (code == "line_too_long_for_memory") == refused
                        and not rows[0].get("error") and not rows[2].get("error"),
                        f"{what}: exit {done.code}, code {code}, {len(rows)} rows: {done.err[-300:]!r}")
            tally.check(done.rss <= mib * MIB + CODE_BYTES, f"{what}: peak RSS {done.rss / MIB:.1f} MiB, budget {mib} MiB")
            if refused and valid:
                done = place.sluice(*args, "-o", out, "--mem-ram", f"{retried}M", "--retry-errors")
                within(tally, f"{what}, --retry-errors", done, retried * MIB)


def disk(tally, place, a):
    """--mem-disk caps what the run writes; 0 forbids it."""
    rows = job_rows(24, 24)
    args = ["run", "-m", place.model, "-i", place.rows("in.jsonl", rows), "--progress", "none", "--mem-ram", "64M"]
    done = place.sluice(*args, "-o", place.fresh(), *ON_DISK, "--mem-disk", "0")
    named, size = hint(done)
    tally.check(done.code == 4 and named == "--mem-disk", f"KV on disk, --mem-disk 0: exit {done.code}: "
                f"{done.error_line()!r}")
    done = place.sluice(*args, "-o", place.fresh(), *ON_DISK, "--mem-disk", f"{size}M")
    tally.check(done.code == 0, f"--mem-disk {size}M: exit {done.code}: {done.error_line()!r}")
    for mib in (26, 40, 64):
        out, summary = place.fresh(), place.at("sum.json")
        done = place.sluice(*args, "-o", out, "--mem-ram", f"{mib}M", "--mem-disk", "0", "--summary", summary)
        if done.code == 4:
            tally.check(hint(done)[0] == "--mem-ram", f"--mem-ram {mib}M, --mem-disk 0: {done.error_line()!r}")
            continue
        said = json.loads(read(summary) or b"{}")
        tally.check(done.code == 0 and said.get("peak_bytes", {}).get("disk") == 0,
                    f"--mem-ram {mib}M, --mem-disk 0: exit {done.code}, {said.get('peak_bytes')}, {done.err[-300:]!r}")
    for name in ("KV on disk", "all on disk, h2o"):
        got = fits_or_says(tally, name, place, [*args, *SETTINGS[name]], "--mem-disk", 0)
        tally.check(got and 0 < got[1] < 1000, f"{name}: --mem-disk {got and got[1]}M")


def text_rows(n, seed):
    """Prompts of text, chat and plain, for the real model."""
    r = random.Random(seed)
    words = "the a river stone seven light of and carried under winter map engine quiet bread by mountain".split()
    rows = []
    for i in range(n):
        text = " ".join(r.choice(words) for _ in range(r.choice((4, 30, 120))))
        row = {"prompt": text} if i % 2 else {"messages": [{"role": "user", "content": text}]}
        rows.append({"custom_id": f"t{i}", "max_tokens": r.randint(4, 12), "temperature": i % 3 * 0.5, **row})
    return rows


@from_full
def real_model(tally, place, a):
    """SmolLM2 in bf16, 270 MB of weights: --mem-ram 160M and less."""
    if not os.path.exists(a.model):
        tally.skip("budgets with SmolLM2: no model (tests/model.sh fetches it, --model names it)")
        return
    pack = place.at("smollm2-bf16.pack")
    done = place.sluice("pack", a.model, "-o", pack, "--weights", "bf16", "-q")
    tally.check(done.code == 0, f"pack --weights bf16: exit {done.code}: {done.err[-300:]!r}")
    print(f"pack --weights bf16: {os.path.getsize(pack) / 1e6:.0f} MB, peak RSS {done.rss / MIB:.1f} MiB", flush=True)
    source = place.rows("in.jsonl", text_rows(pick(6, 6, 16), 25))
    done = place.sluice("run", "-m", pack, "-i", source, "-o", place.fresh(), "--progress", "none", "--mem-ram", "160M")
    over = within(tally, "SmolLM2 bf16, --mem-ram 160M", done, 160 * MIB)
    print(f"SmolLM2 bf16, --mem-ram 160M: peak RSS {(160 * MIB + over) / MIB:.1f} MiB", flush=True)
    done = place.sluice("run", "-m", a.model, "-i", source, "-o", place.fresh(), "--progress", "none", "--mem-ram", "64M",
                        SLUICE_CACHE_DIR=place.at("fresh"))
    within(tally, "SmolLM2, packed on first use, --mem-ram 64M", done, 64 * MIB)
    sweep(tally, place, pack, source, pick((64,), (64,), (1, 64, 80, 96, 128, 160)),
          SETTINGS if NIGHT else ("automatic", "KV on disk", "h2o in RAM"))


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (small_model, many_threads, first_use, long_lines, one_long_line, disk, real_model)))
