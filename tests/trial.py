"""What crash_test, fault_test and budget_test share: the binary under test, made-up jobs, OUT.journal.

Owns: running the binary with its own cache folder and measuring it; rows and models that need no files
from elsewhere; reading a journal from outside. Refuses: to know what is right; that stands in the tests.
Standard library only.
"""
import argparse
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
CODE_BYTES = 24 * MIB  # what is promised beside --mem-ram for code and libraries
LIMIT_S = 600.0
VOCAB = 3000
MODEL = f"""family = llama
dim = 192
layers = 6
heads = 6
kv_heads = 3
head_dim = 32
ffn = 512
vocab = {VOCAB}
context = 512
tied = 0
"""
ON_DISK = ["--percent", "0", "0", "0", "0", "0", "100"]  # weights streamed, KV on disk, hidden in RAM
ALL_ON_DISK = ["--percent", "0", "0", "0", "0", "0", "0"]
H2O = ["--kv-policy", "h2o", "--kv-budget", "48"]
SLOTS_MIN = 54  # prompt and tokens of a row: more than any budget of the tests that compare bytes


class Tally:
    """Counts checks; prints what failed and, last, the line that check.py reads."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, ok, what):
        self.passed += bool(ok)
        self.failed += not ok
        if not ok:
            print("FAILED", what, flush=True)
        return ok

    def skip(self, why):
        self.skipped += 1
        print("SKIP", why, flush=True)

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0


def arguments(about):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sluice", nargs="?", default="./sluice")
    p.add_argument("--model", help="SmolLM2-135M-Instruct as GGUF; default: $SLUICE_TEST_GGUF, or the cache's")
    p.add_argument("--full", action="store_true", help="the numbers of the promise; takes a quarter of an hour")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", action="append", default=[], metavar="PART", help="this part; may be given again")
    a = p.parse_args()
    a.sluice = os.path.abspath(a.sluice)
    if not a.model:
        cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
        a.model = os.environ.get("SLUICE_TEST_GGUF",
                                 os.path.join(cache, "sluice/SmolLM2-135M-Instruct.Q4_1.gguf"))
    return a


def run_parts(about, parts):
    """Each part gets (tally, place, arguments) with a fresh folder; the exit code of the script."""
    a, tally = arguments(about), Tally()
    for part in parts:
        if a.only and part.__name__ not in a.only:
            continue
        start, failed = time.monotonic(), tally.failed
        with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
            try:
                part(tally, Place(folder, a.sluice), a)
            except (OSError, KeyError, ValueError, IndexError, subprocess.SubprocessError) as e:
                tally.check(False, f"{part.__name__}: {type(e).__name__}: {e}")
        print(f"{part.__name__}: {'FAILED' if tally.failed > failed else 'ok'}, "
              f"{time.monotonic() - start:.1f} s", flush=True)
    return tally.end()


# ---- running the binary ---------------------------------------------------------------------------

class Done:
    """code (negative: the signal), out, err, seconds, rss (bytes, at its peak)."""

    def last(self):
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""

    def error_line(self):
        return next((x for x in self.err.splitlines() if x.startswith("sluice: error: ")), "")


class Process:
    """One run under way; stderr is read as it comes, each line with its time."""

    def __init__(self, argv, env):
        self.start_s = time.monotonic()
        self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=env)
        self.lines, self.out = [], b""
        self.readers = [threading.Thread(target=f, daemon=True) for f in (self.read_err, self.read_out)]
        for t in self.readers:
            t.start()
        self.status = self.usage = None

    def read_err(self):
        for line in self.p.stderr:
            self.lines.append((time.monotonic(), line.decode("utf-8", "replace")))

    def read_out(self):
        self.out = self.p.stdout.read()

    def running(self):
        if self.status is None:
            pid, status, usage = os.wait4(self.p.pid, os.WNOHANG)
            if pid:
                self.took(status, usage)
        return self.status is None

    def took(self, status, usage):
        self.status, self.usage, self.end_s = status, usage, time.monotonic()
        self.p.returncode = os.waitstatus_to_exitcode(status)

    def wait_for(self, ready, limit_s=60.0):
        """Until ready() or the end of the process; True when it was ready while running."""
        deadline = time.monotonic() + limit_s
        while self.running() and time.monotonic() < deadline:
            if ready():
                return True
            time.sleep(0.002)
        return False

    def said(self, text):
        return next((t for t, line in list(self.lines) if text in line), None)

    def signal(self, number):
        if self.running():
            os.kill(self.p.pid, number)

    def end(self, limit_s=LIMIT_S):
        timer = threading.Timer(limit_s, self.signal, [signal.SIGKILL])
        timer.start()
        if self.status is None:
            _, status, usage = os.wait4(self.p.pid, 0)
            self.took(status, usage)
        timer.cancel()
        for t in self.readers:
            t.join()
        self.p.stdout.close()
        self.p.stderr.close()
        done = Done()
        done.code, done.rss, done.seconds = self.p.returncode, self.usage.ru_maxrss << 10, self.end_s - self.start_s
        done.out, done.err = self.out.decode("utf-8", "replace"), "".join(x for _, x in self.lines)
        return done


class Place:
    """A folder with a cache, a model and jobs in it, and the binary that works there."""

    def __init__(self, folder, binary):
        self.folder, self.binary, self.n = folder, binary, 0
        self.env = {**os.environ, "SLUICE_CACHE_DIR": self.at("cache"), "LC_ALL": "C"}
        self.env.pop("SLUICE_FAULT", None)
        if "--full" not in sys.argv:
            self.env["SLUICE_SYNC_S"] = "0.05"  # on a fast disk a small job is over before the first 5 s
        self.model = self.write("tiny.cfg", MODEL.encode())

    def at(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        path = self.at(name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def rows(self, name, rows):
        return self.write(name, "".join(json.dumps(r) + "\n" for r in rows).encode())

    def fresh(self):
        """A path for OUT that nobody used."""
        self.n += 1
        return self.at(f"out-{self.n}.jsonl")

    def start(self, args, wrapper=(), **env):
        return Process([*wrapper, self.binary, *map(str, args)], {**self.env, **env})

    def sluice(self, *args, wrapper=(), **env):
        return self.start(args, wrapper, **env).end()


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return b""


def remove_job(out):
    for suffix in ("", ".partial", ".journal", ".job.json", ".tmp"):
        if os.path.exists(out + suffix):
            os.unlink(out + suffix)


def copy_job(out, to):
    remove_job(to)
    for suffix in ("", ".partial", ".journal", ".job.json", ".tmp"):
        if os.path.exists(out + suffix):
            shutil.copyfile(out + suffix, to + suffix)
    return to


def difference(a, b):
    for i, (x, y) in enumerate(zip(a.splitlines(), b.splitlines())):
        if x != y:
            return f"row {i}: {y[-120:]!r} where {x[-120:]!r} was expected"
    return f"{len(b.splitlines())} rows where {len(a.splitlines())} were expected"


# ---- rows -----------------------------------------------------------------------------------------

def job_rows(n, seed, vocab=VOCAB, prompt_max=160, tokens=(8, 32)):
    """n rows of ids: greedy, sampled, filtered, penalised. Each with the log-probabilities of all its tokens, so
    that no wrong byte of KV hides behind a token that it does not change, and, where prompt_max and the caller
    let it, with SLOTS_MIN tokens and more, so that every row evicts."""
    r = random.Random(seed)
    rows = []
    for i in range(n):
        length = min(r.choice((1, 17, 31, 32, 33, 47, 64, 65, 80, 100, 160)), prompt_max)
        row = {"custom_id": f"row-{i}", "prompt_token_ids": [r.randrange(3, vocab) for _ in range(length)],
               "max_tokens": max(r.randint(*tokens), SLOTS_MIN - length), "ignore_eos": True, "logprobs": 1 + i % 4}
        row.update(({"temperature": 0}, {"temperature": 1, "seed": i}, {"temperature": 0.7, "top_p": 0.9, "seed": 3},
                    {"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 1.5, "top_k": 20},
                    {"temperature": 0, "presence_penalty": 0.5})[i % 6])
        rows.append(row)
    return rows


# ---- OUT.journal, read from outside ---------------------------------------------------------------

RECORD = struct.Struct("<IHHqqqIIqQII")  # magic kind failed index offset n crc chain group job zero self
RECORD_MAGIC, KIND_ROW, KIND_TOKENS = 0x4C4A4C53, 1, 2


class Journal:
    """What stands committed beside OUT: rows done, and generated tokens of done and of live rows."""

    def __init__(self, out):
        data, partial = read(out + ".journal"), read(out + ".partial")
        live, done, at = {}, {}, RECORD.size
        while at + RECORD.size <= len(data):
            magic, kind, _, index, offset, n, *_ = RECORD.unpack_from(data, at)
            if magic != RECORD_MAGIC:
                break  # a torn tail
            at += RECORD.size
            if kind == KIND_TOKENS:
                if at + 4 * n > len(data):
                    break
                at += 4 * n
                live[index] = live.get(index, 0) + n
                continue
            line = json.loads(partial[offset:offset + n])
            done[index] = len(line.get("token_ids") or ())
            live.pop(index, None)
        self.rows, self.tokens = len(done), sum(done.values()) + sum(live.values())
        self.live_rows, self.bytes = len(live), len(data)
