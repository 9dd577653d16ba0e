"""What the Python tests share: one tally, one way to run the binary, made-up rows, OUT.journal, difference().

A test is parts, each `part(tally, place, arguments)`: `sys.exit(trial.run_parts(__doc__, (part, ...)))`. Each
part gets a folder of its own; the binary is the first argument, ./sluice without one.
Owns: running the binary with its own cache folder and measuring it; rows and models that need no files
from elsewhere; reading a journal from outside. Refuses: to know what is right; that stands in the tests.
Standard library only.
"""
import argparse
import csv
import glob
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

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
OSS = """family = gpt_oss
dim = 96
layers = 4
heads = 6
kv_heads = 2
head_dim = 32
ffn = 64
experts = 6
experts_used = 2
vocab = 5000
context = 1024
tied = 0
"""  # experts, sinks, biases, a window of 128 tokens in every other layer
TWO_KINDS = """family = qwen2_moe
dim = 96
layers = 4
heads = 6
kv_heads = 2
head_dim = 32
ffn = 64
experts = 6
experts_used = 2
shared_ffn = 160
dense_ffn = 288
dense_layers = 1
vocab = 5000
context = 1024
tied = 0
"""  # the first layer has one MLP, the others experts and one more for all tokens
ON_DISK = ["--percent", "0", "0", "0", "0", "0", "100"]  # weights streamed, KV on disk, hidden in RAM
ALL_ON_DISK = ["--percent", "0", "0", "0", "0", "0", "0"]
H2O = ["--kv-policy", "h2o", "--kv-budget", "48"]
EMA = ["--kv-policy", "ema", "--kv-budget", "48"]
SHARED = ("probe-disk-", "probe-cpu-", "probe-model-", "probe-attend-")
SLOTS_MIN = 54  # prompt and tokens of a row: more than any budget of the tests that compare bytes

# Under nohup and `&` these are ignored, and what is run here would inherit that: the tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How much a driver tries: `check` holds every promise once, `full` is the default of a driver that is run by hand,
# `night` has the numbers of the promise and takes hours in all.
LEVELS = ("check", "full", "night")


def level_of(argv, env):
    """The level as a number: --level LEVEL, which leaves argv so that no driver has to parse it, else $SLUICE_TEST_LEVEL,
    else full."""
    name = env.get("SLUICE_TEST_LEVEL") or "full"
    if "--level" in argv:
        at = argv.index("--level")
        name = argv[at + 1] if at + 1 < len(argv) else ""
        del argv[at:at + 2]
    if name not in LEVELS:
        sys.exit(f"--level, SLUICE_TEST_LEVEL: invalid value {name!r} (expected {', '.join(LEVELS)})")
    env["SLUICE_TEST_LEVEL"] = name  # of a driver that starts itself again
    return LEVELS.index(name)


LEVEL = level_of(sys.argv, os.environ)
NIGHT = LEVEL == 2


def pick(check, full, night=None):
    """The value for the level; night is as full when it is left out."""
    return (check, full, full if night is None else night)[LEVEL]


def from_full(part):
    """Decorates a part that level check leaves out; --only runs the part at any level."""
    part.from_full = True
    return part


def runs(part, name, only):
    """Does a part of this name run at this level, when --only named these?"""
    return name in only if only else LEVEL > 0 or not hasattr(part, "from_full")


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
        """Only for a reason that check.py's SKIPS names: any other fails `make check`."""
        self.skipped += 1
        print("SKIP", why, flush=True)

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0

    def finish(self):
        sys.exit(self.end())


def arguments(about):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter,
                                epilog="--level check|full|night: how much is tried (default: $SLUICE_TEST_LEVEL, or full)")
    p.add_argument("sluice", nargs="?", default="./sluice")
    p.add_argument("--model", help="SmolLM2-135M-Instruct as GGUF; default: $SLUICE_TEST_GGUF, or the cache's")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", action="append", default=[], metavar="PART", help="this part; may be given again")
    a = p.parse_args()
    a.sluice = os.path.abspath(a.sluice)
    if not a.model:
        cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
        a.model = os.environ.get("SLUICE_TEST_GGUF",
                                 os.path.join(cache, "sluice/SmolLM2-135M-Instruct.Q4_1.gguf"))
    return a


def run_parts(about, parts, make=None, tally=None):
    """Each part gets (tally, place, arguments); the exit code of the script.

    Every part has a fresh folder, or, with make(folder, arguments), all of them the one Place that it gives.
    """
    a, tally = arguments(about), tally or Tally()
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        os.environ.setdefault("SLUICE_TEST_PROBES", os.path.join(folder, "probes"))
        shared = make(folder, a) if make else None
        for part in parts:
            if not runs(part, part.__name__, a.only):
                continue
            start, failed, done = time.monotonic(), tally.failed, tally.passed + tally.failed
            with tempfile.TemporaryDirectory(prefix="part-", dir=folder) as own:
                try:
                    part(tally, shared or Place(own, a.sluice), a)
                except Exception as e:  # a part that dies is one failure; the others still run
                    traceback.print_exc(file=sys.stdout)
                    tally.check(False, f"{part.__name__}: {type(e).__name__}: {e}")
            print(f"{part.__name__}: {'FAILED' if tally.failed > failed else 'ok'}, "
                  f"{tally.passed + tally.failed - done} checks, {time.monotonic() - start:.1f} s", flush=True)
    return tally.end()


# ---- running the binary ---------------------------------------------------------------------------

class Done:
    """code (negative: the signal), out, err (text), seconds, cpu_s (of a core), rss (bytes, at its peak)."""

    def last(self):
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""

    def error_line(self):
        return next((x for x in self.err.splitlines() if x.startswith("sluice: error: ")), "")


class Process:
    """One run under way; stderr is read as it comes, each line with its time. stdin: bytes, or none."""

    def __init__(self, argv, env, stdin=None, cwd=None):
        self.start_s = time.monotonic()
        self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd)
        self.lines, self.out = [], b""
        self.carriers = [threading.Thread(target=f, daemon=True) for f in (self.read_err, self.read_out)]
        if stdin is not None:
            self.carriers.append(threading.Thread(target=self.write_in, args=(stdin,), daemon=True))
        for t in self.carriers:
            t.start()
        self.status = self.usage = None

    def write_in(self, data):
        try:
            with self.p.stdin as pipe:
                pipe.write(data)
        except BrokenPipeError:  # it ended without reading all: the test sees what it said instead
            pass

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

    def stands_still(self, seconds=1.0, limit_s=60.0):
        """Until no CPU time passes for so long; True when it was so while running."""
        since, spent, deadline = time.monotonic(), None, time.monotonic() + limit_s
        while self.running() and time.monotonic() < deadline:
            now = sum(map(int, read(f"/proc/{self.p.pid}/stat").rpartition(b")")[2].split()[11:13] or [b"0"]))
            if now != spent:
                since, spent = time.monotonic(), now
            elif time.monotonic() - since >= seconds:
                return True
            time.sleep(0.02)
        return False

    def stopped(self):
        return read(f"/proc/{self.p.pid}/stat").rpartition(b")")[2].split()[:1] == [b"T"]

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
        for t in self.carriers:
            t.join()
        self.p.stdout.close()
        self.p.stderr.close()
        done = Done()
        done.code, done.rss, done.seconds = self.p.returncode, self.usage.ru_maxrss << 10, self.end_s - self.start_s
        done.cpu_s = self.usage.ru_utime + self.usage.ru_stime
        done.out, done.err = self.out.decode("utf-8", "replace"), "".join(x for _, x in self.lines)
        return done


class Place:
    """A folder with a cache, a model and jobs in it, and the binary that works there."""

    def __init__(self, folder, binary, sync_s="0.05"):
        """sync_s: how often a job syncs; on a fast disk a small one is over before the first 5 s, which
        None leaves as they are, and level night as well."""
        self.folder, self.binary, self.n = folder, os.path.abspath(binary), 0
        self.env = {**os.environ, "SLUICE_CACHE_DIR": self.at("cache"), "LC_ALL": "C"}
        for name in ("SLUICE_SYNC_S", "SLUICE_REPLAN"):
            self.env.pop(name, None)
        if not NIGHT:
            self.env["SLUICE_PROBE_SHARE"] = "0.03"  # what is tested is not how fast the machine is
        if sync_s and not NIGHT:
            self.env["SLUICE_SYNC_S"] = sync_s
        self.model = self.write("tiny.cfg", MODEL.encode())
        # A cache of its own costs 0.8 s of probing, so places share what they measured; at level night each probes.
        self.probes = None if NIGHT else os.environ.get("SLUICE_TEST_PROBES")
        if self.probes:
            os.makedirs(self.probes, exist_ok=True)
            copy_probes(self.probes, self.at("cache"))

    def at(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        path = self.at(name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def policies(self):
        """Names of all KV policies."""
        listed = self.sluice("run", "--help", COLUMNS="120").out.split("KV policies (")[1].split("\n\n")[0]
        return re.findall(r"^  (\S+)", listed, re.M)

    def rows(self, name, rows):
        return self.write(name, "".join(json.dumps(r) + "\n" for r in rows).encode())

    def fresh(self, name="out"):
        """A path for OUT that nobody used."""
        self.n += 1
        return self.at(f"{name}-{self.n}.jsonl")

    def start(self, args, wrapper=(), stdin=None, **env):
        """A run under way, in this folder; paths of args may be relative to it. stdin: text or bytes."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        binary = with_faults(self.binary) if "SLUICE_FAULT" in env else self.binary
        return Process([*wrapper, binary, *map(str, args)], {**self.env, **env}, data, self.folder)

    def sluice(self, *args, wrapper=(), stdin=None, limit_s=LIMIT_S, **env):
        """One run to its end (killed after limit_s: then code is -SIGKILL)."""
        done = self.start(args, wrapper, stdin, **env).end(limit_s)
        if self.probes:
            copy_probes(self.at("cache"), self.probes)
        return done

    def expect(self, tally, what, code, *args, **more):
        """A run that must end with this code."""
        done = self.sluice(*args, **more)
        tally.check(done.code == code, f"{what}: exit {done.code}, want {code}: {done.err.strip()[-400:]!r}")
        return done


def with_faults(binary):
    """The same program, linked with ring_fault.c, which reads SLUICE_FAULT."""
    build = os.path.dirname(binary)
    if not os.path.exists(os.path.join(build, "tests/sluice-faults")):
        build = os.path.join(build, "build")
    return os.path.join(build, "tests/sluice-faults")


def copy_probes(folder, to):
    """What was measured of the disk, the CPU, and models on it, where `to` lacks the file. Not of devices, which differ under one
    name, nor what runs showed, which corrects the plans of later runs."""
    os.makedirs(to, exist_ok=True)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith(SHARED) and not name.endswith(".tmp") and not os.path.exists(os.path.join(to, name)):
            part = os.path.join(to, f"{os.getpid()}.{name}")
            shutil.copyfile(os.path.join(folder, name), part)
            os.replace(part, os.path.join(to, name))


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


def difference(want, got):
    """Where two OUTs part, with what stands around it."""
    for i, (x, y) in enumerate(zip(want.splitlines(), got.splitlines())):
        if x != y:
            at = next((k for k, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            around = slice(max(0, at - 40), at + 60)
            return f"row {i} from byte {at}: {y[around]!r} where {x[around]!r} was expected"
    if want == got:
        return "the same bytes"
    return f"{len(got.splitlines())} rows where {len(want.splitlines())} were expected"


def more_perplexity():
    """{KV policy or "int8": [percent by which it raised the perplexity]}, a number for each table of bench/results."""
    found = {}
    for path in glob.glob(os.path.join(os.path.dirname(HERE), "bench/results/quality-*.csv")):
        with open(path, encoding="utf-8") as f:
            ppl = {r["case"]: float(r["ppl"]) for r in csv.DictReader(x for x in f if not x.startswith("#"))}
        found.setdefault("int8", []).append(100 * (ppl["q8 int8"] / ppl["q8 bf16"] - 1))
        for case in ppl:
            if case.startswith("KV ") and case != "KV full":
                found.setdefault(case[3:], []).append(100 * (ppl[case] / ppl["KV full"] - 1))
    return found


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
        if not partial and os.path.exists(out):  # OUT was made between the two reads
            data = b""
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
        self.live_rows, self.live_tokens, self.bytes = len(live), sum(live.values()), len(data)
