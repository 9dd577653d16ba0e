"""What the Python drivers share: counting, stored goldens, and one way to run ./sluice on rows."""

import gzip
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "goldens"))
RUN_LIMIT_S = 300


class Tally:
    def __init__(self, quiet=False):
        self.passed = self.failed = self.skipped = 0
        self.quiet, self.lines = quiet, []

    def check(self, ok, what):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            self.lines.append(what)
            if not self.quiet:
                print("FAIL", what, flush=True)
        return ok

    def add(self, other):
        """What a quiet one counted."""
        self.passed += other.passed
        for what in other.lines:
            self.check(False, what)

    def skip(self, what):
        self.skipped += 1
        print("SKIP", what, flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        sys.exit(1 if self.failed else 0)


def goldens(name):
    with gzip.open(os.path.join(HERE, "goldens", "data", name), "rt", encoding="utf-8") as f:
        return json.load(f)


class SluiceFailed(Exception):
    pass


class Sluice:
    """Runs the binary in a folder of its own: rows in, rows out, nothing left in the user's
    cache."""

    def __init__(self, binary, folder):
        self.binary, self.folder, self.runs = os.path.abspath(binary), folder, 0
        self.env = {**os.environ, "SLUICE_CACHE_DIR": os.path.join(folder, "cache")}

    def call(self, args, stdin=None):
        """stdout; SluiceFailed holds the last lines of stderr."""
        try:
            done = subprocess.run(
                [self.binary, *map(str, args)],
                input=stdin,
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=RUN_LIMIT_S,
            )
        except (subprocess.TimeoutExpired, OSError) as e:
            raise SluiceFailed(f"sluice {args[0]}: {e}") from None
        if done.returncode:
            tail = " | ".join(done.stderr.strip().splitlines()[-2:])
            raise SluiceFailed(f"sluice {args[0]}: exit {done.returncode}: {tail}")
        return done.stdout

    def rows(self, command, model, rows, *flags):
        """`score` or `run` on rows; answers in the order of the rows."""
        self.runs += 1
        files = [os.path.join(self.folder, f"{self.runs}.{end}.jsonl") for end in ("in", "out")]
        with open(files[0], "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
        self.call(
            [command, "-m", model, "-i", files[0], "-o", files[1], "--progress", "none", *flags]
        )
        out = jsonl(files[1])
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
