#!/usr/bin/env python3
"""`sluice merge`: the OUTs of all shards become, byte for byte, the OUT of the job without shards, and
`run` finds it complete; parts that do not belong together, are not all there, or have changed are refused
by name. And --dry-run and `done` beside them: every bad row counted, by what is wrong with it.

    merge_test.py [SLUICE] [--only PART]...
"""
import json
import os
import shutil
import sys

from trial import copy_job, difference, job_rows, read, run_parts

def bad(name):
    """A row with a field that nobody knows, and one that is wrong."""
    return [{"custom_id": name + "-field", "prompt_token_ids": [5], "max_tokens": 3, "mirostat": 2},
            {"custom_id": name + "-value", "prompt_token_ids": "x"}]




def shards(tally, place, _):
    rows = place.rows("in.jsonl", [*job_rows(20, 7, tokens=(3, 6)), *bad("a"), {"prompt_token_ids": [9], "max_tokens": 3}])
    command = ["run", "-m", place.model, "-i", rows]
    whole, parts = place.fresh(), [place.fresh() for _ in range(3)]
    tally.check(place.sluice(*command, "-o", whole).code == 3, "the whole job")
    for i, part in enumerate(parts):
        done = place.sluice(*command, "-o", part, "--shard", f"{i}/3")
        tally.check(done.code in (0, 3), f"shard {i}: {done.code} {done.error_line()}")
    out = place.fresh()

    def refused(what, code, words, *args):
        done = place.sluice("merge", *args)
        tally.check(done.code == code and words in done.error_line(), f"{what}: {done.code} {done.error_line()}")
        tally.check(not os.path.exists(out) and not os.path.exists(out + ".tmp"), f"{what}: left something")

    refused("a shard is missing", 8, "missing: shard 1/3", "-o", out, parts[0], parts[2])
    refused("a shard twice", 8, "are both shard 0/3", "-o", out, parts[0], parts[1], parts[0])
    refused("no part", 2, "needs -o", "-o", out)
    refused("no such part", 5, "not the OUT of a job", "-o", out, parts[0], place.at("nothing"))
    refused("a part is OUT", 2, "one of the parts", "-o", parts[0], parts[0], parts[1])
    other = place.fresh()
    place.sluice(*command, "-o", other, "--shard", "1/3", "--temperature", "0.5")
    refused("another job", 8, "temperature is 0.5, not by row", "-o", out, parts[0], other, parts[2])
    hurt = copy_job(parts[2], place.fresh())
    data = bytearray(read(hurt))
    data[30] ^= 1
    place.write(os.path.basename(hurt), data)
    refused("a part has changed", 7, "has changed since its job ended", "-o", out, parts[0], parts[1], hurt)
    begun = copy_job(parts[1], place.fresh())
    with open(begun + ".job.json") as f:
        manifest = f.read()
    place.write(os.path.basename(begun) + ".job.json", manifest.replace('"complete": true', '"complete": false').encode())
    refused("a part is not complete", 8, "is not complete", "-o", out, parts[0], begun, parts[2])

    done = place.sluice("merge", "-o", out, parts[2], parts[0], parts[1])
    tally.check(done.code == 0 and not done.out, f"merge: {done.code} {done.err}")
    tally.check(read(out) == read(whole), difference(read(whole), read(out)))
    seen = json.loads(place.sluice("status", "--json", out).out)
    want = json.loads(place.sluice("status", "--json", whole).out)
    tally.check(seen["state"] == "complete" and all(seen[k] == want[k] for k in ("rows", "output_tokens")), f"{seen}")
    again = place.sluice(*command, "-o", out)  # after status: a run mends a manifest that has other counts than OUT
    tally.check(again.code == 3 and all(words in again.err for words in (
        "all 23 rows are done: 21 ok, 2 failed", '  1 x field "mirostat" is not supported, line 21\n', "  1 x prompt_token_ids must be a list of token ids, line 22\n",
        "these fields: --ignore-fields mirostat --retry-errors\n")), again.err)
    done = place.sluice("merge", "-o", out, *parts)
    tally.check(done.code == 8 and "--overwrite" in done.error_line(), done.error_line())
    tally.check(place.sluice("merge", "--overwrite", "-o", out, *parts).code == 0, "merge over an old OUT")
    fixed = place.sluice(*command, "-o", out, "--ignore-fields", "mirostat", "--retry-errors")
    fresh = place.fresh()
    place.sluice(*command, "-o", fresh, "--ignore-fields", "mirostat")
    tally.check(fixed.code == 3 and read(out) == read(fresh), "a merged OUT is a job like others: "
                + difference(read(fresh), read(out)))


def older_jobs(tally, place, command, out):
    """What --unknown-fields said in the manifest of a job that an older sluice made."""
    manifest = read(out + ".job.json").decode()
    for was, code, words in (("error", 3, "all 14 rows are done"), ("warn", 8, "older sluice with --unknown-fields warn")):
        tally.check('"ignore_fields": ""' in manifest, manifest)
        place.write(os.path.basename(out) + ".job.json", manifest.replace('"ignore_fields": ""', f'"unknown_fields": "{was}"').encode())
        done = place.sluice(*command)
        tally.check(done.code == code and words in done.err, f"--unknown-fields {was}: {done.code} {done.err}")
    place.write(os.path.basename(out) + ".job.json", manifest.encode())


def dry_run(tally, place, _):
    good = job_rows(9, 3, tokens=(3, 5))
    rows = place.rows("in.jsonl", [good[0], *bad("a"), *good[1:], *bad("b"), {"prompt_token_ids": [1] * 600}])
    command = ["run", "-m", place.model, "-i", rows]
    out = place.fresh()
    done = place.sluice(*command, "-o", out, "--dry-run")
    tally.check(done.code == 3 and not os.path.exists(out), f"dry run: {done.code}")
    mirostat, ids = '  2 x field "mirostat" is not supported, lines 2, 12', "  2 x prompt_token_ids must be a list of token ids, lines 3, 13"
    too_long = "  1 x prompt_token_ids has 600 tokens, the model's context is 512, line 14 ("
    for words in ("dry run: 9 of 14 rows are valid", " rows at once, weights in RAM, ", mirostat, ids, too_long, "these fields: --ignore-fields mirostat\n"):
        tally.check(words in done.err, f"dry run does not say {words!r}: {done.err}")
    only_good = place.rows("good.jsonl", good)
    done = place.sluice("run", "-m", place.model, "-i", only_good, "-o", out, "--dry-run")
    tally.check(done.code == 0 and "9 of 9 rows are valid" in done.err, f"{done.code} {done.err}")
    done = place.sluice(*command, "-o", out)
    at = done.err.find("done: 9 of 14 rows ok, 5 failed")
    tally.check(done.code == 3 and at >= 0 and all(words in done.err[at:] for words in (mirostat, ids, too_long)), done.err)
    done = place.sluice(*command, "-o", out)
    tally.check("all 14 rows are done: 9 ok, 5 failed" in done.err and mirostat in done.err, done.err)
    seen = place.sluice("status", out)
    tally.check(mirostat in seen.out and ids in seen.out and too_long in seen.out, f"status: {seen.out}")
    older_jobs(tally, place, [*command, "-o", out], out)
    done = place.sluice(*command, "-o", out, "--ignore-fields", "mirostat")
    tally.check(done.code == 8 and "--retry-errors" in done.error_line(), done.error_line())
    done = place.sluice(*command, "-o", out, "--ignore-fields", "mirostat", "--retry-errors")
    tally.check(done.code == 3 and "done: 11 of 14 rows ok, 3 failed" in done.err, done.err)
    done = place.sluice(*command, "-o", out, "--ignore-fields", "mirostat", "--top-k", "4")
    tally.check(done.code == 8 and "top_k: was 0, is 4" in done.error_line(), done.error_line())
    with open(rows, "ab") as f:
        f.write(b'{"prompt_token_ids":[7,8],"max_tokens":4}\n')
    done = place.sluice(*command, "-o", out, "--ignore-fields", "mirostat")
    tally.check(done.code == 3 and "resume: 14 of 15 rows are done" in done.err, done.err)
    fresh = place.fresh()
    place.sluice(*command, "-o", fresh, "--ignore-fields", "mirostat")
    tally.check(read(out) == read(fresh), difference(read(fresh), read(out)))
    shutil.copyfile(only_good, rows)
    done = place.sluice(*command, "-o", out, "--ignore-fields", "mirostat")
    tally.check(done.code == 8 and "line 2 has changed" in done.error_line(), done.error_line())


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [shards, dry_run]))
