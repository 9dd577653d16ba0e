"""What the drivers with goldens share: the stored goldens, and rows in, answers out of ./sluice."""

import gzip
import json
import os
import sys

from trial import HERE, Place

sys.path.insert(0, os.path.join(HERE, "goldens"))
RUN_LIMIT_S = 300


def goldens(name):
    with gzip.open(os.path.join(HERE, "goldens", "data", name), "rt", encoding="utf-8") as f:
        return json.load(f)


class SluiceFailed(Exception):
    pass


class Sluice:
    """Rows in, answers out: a Place whose runs have to end well."""

    def __init__(self, binary, folder):
        self.place, self.folder, self.runs = Place(folder, binary, sync_s=None), folder, 0

    def call(self, args, stdin=None):
        """stdout; SluiceFailed holds the last lines of stderr."""
        done = self.place.sluice(*args, stdin=stdin, limit_s=RUN_LIMIT_S)
        if done.code:
            tail = " | ".join(done.err.strip().splitlines()[-2:])
            raise SluiceFailed(f"sluice {args[0]}: exit {done.code}: {tail}")
        return done.out

    def rows(self, command, model, rows, *flags):
        """`score` or `run` on rows; answers in the order of the rows."""
        self.runs += 1
        source = self.place.rows(f"{self.runs}.in.jsonl", rows)
        path = self.place.at(f"{self.runs}.out.jsonl")
        threads = () if "-t" in flags else ("-t", "1")  # beside other tests; promise 1 has tests of its own
        self.call([command, "-m", model, "-i", source, "-o", path, "--progress", "none", *threads, *flags])
        out = jsonl(path)
        if [r.get("custom_id") for r in out] != [r["custom_id"] for r in rows]:
            raise SluiceFailed(
                f"sluice {command}: custom_ids of the answers are not those of the rows"
            )
        for r in out:
            if r.get("error"):
                raise SluiceFailed(f"sluice {command}: row {r['custom_id']}: {r['error']}")
        return out


def jsonl(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def score_row(name, context, continuation):
    return {"custom_id": name, "context_ids": context, "continuation_ids": continuation}


def run_row(name, ids, n):
    return {
        "custom_id": name,
        "prompt_token_ids": ids,
        "max_tokens": n,
        "temperature": 0,
        "ignore_eos": True,
    }
