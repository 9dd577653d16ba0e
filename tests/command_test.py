#!/usr/bin/env python3
"""The command line people expect: command_test.py [SLUICE] [--only PART]

What the flags refuse and warn of, standard input and output, help, limits of the process, plans and
traces, packing, prefix sharing. Beside it cli_test.py holds the contract, config_test.c the parser.
"""
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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model_make  # noqa: E402
from trial import difference, from_full, job_rows, pick, read, run_parts  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
NOURING = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/tools/nouring")
RAM = ["--mem-ram", "96M"]
QUIET = ["--progress", "none"]
JOB = ["--prompt-len", "16", "--gen-len", "4", "--num-prompts", "8"]
SPREAD = ["--percent", "0", "0", "0", "100", "0", "100"]  # weights streamed
COMMANDS = ("run", "gen", "score", "plan", "probe", "pack", "bench", "inspect", "tokenize")


def refused(t, p, what, code, words, *args, lines=1, **more):
    """One line that holds the words, nothing on stdout, and the code."""
    done = p.sluice(*args, **more)
    err = done.err.splitlines()
    t.check(done.code == code and done.last().startswith("sluice: error: ") and words in done.last() and not done.out
            and (not lines or len(err) == lines),
            f"{what}: exit {done.code}, want {code} and '{words}' in one line: {done.err[-400:]!r}")
    return done


def fed(p, args, data=b"", wrapper=(), **env):
    """With standard input."""
    return subprocess.run([*wrapper, p.binary, *map(str, args)], input=data, capture_output=True, timeout=300,
                          cwd=p.folder, env={**p.env, **env})


def small_rows(p, n=6, name="in.jsonl", **more):
    rows = job_rows(n, 1, prompt_max=20, tokens=(4, 8))
    for row in rows:
        row.update(more)
    return p.rows(name, rows), rows


# ---- help and limits of the process -----------------------------------------------------------------

def help_words(t, p, _):
    done = p.sluice("help")
    t.check(done.code == 0 and "sluice run" in done.out and not done.err, f"sluice help: {done.code} {done.err!r}")
    for command in COMMANDS:
        one, other = p.sluice("help", command), p.sluice(command, "--help")
        t.check(one.code == 0 and one.out == other.out and "--help" in one.out, f"sluice help {command}: {one.err!r}")
    for args in (("help",), ("help", "run"), ("run", "--help")):
        done = p.sluice(*args, wrapper=["sh", "-c", '(sleep 0.1; exec "$@") | true', "sh"])
        t.check(done.code == 0 and not done.err, f"sluice {' '.join(args)}, its reader gone: {done.err!r}")
    refused(t, p, "help of nothing", 2, "unknown command", "help", "wings")


def full_stdout(t, p, _):
    """What cannot be written to stdout is one line and exit 9, whatever writes it."""
    cases = [("help",), ("--help",), ("--version",), *((c, "--help") for c in COMMANDS),
             ("inspect", p.model), ("inspect", "--json", p.model), ("plan", "-q", "-m", p.model, *JOB, *RAM),
             ("plan", "-q", "-m", p.model, *JOB, *RAM, "--json"), ("probe", "-q", "--offload-dir", p.folder),
             ("bench", "ops", "norm", "--runs", "1", "-q", "-m", p.model, "--csv")]
    p.sluice("plan", "-m", p.model, *JOB, *RAM)  # packs, probes
    for args in cases:
        done = p.sluice(*args, wrapper=["sh", "-c", 'exec "$@" >/dev/full', "sh"])
        t.check(done.code == 9 and done.err.count("\n") == 1 and done.err.startswith("sluice: error: stdout"),
                f"{' '.join(args[:3])} >/dev/full: exit {done.code}, {done.err!r}")
    out = p.fresh()
    source, _ = small_rows(p)
    p.sluice("run", "-q", "-m", p.model, "-i", source, "-o", out, *RAM)
    for args in (*cases, ("status", out), ("status", "--json", out)):
        done = p.sluice(*args, wrapper=["sh", "-c", 'exec "$@" >&-', "sh"])
        t.check(done.code == 9 and done.err.count("\n") == 1 and done.err.startswith("sluice: error: stdout"),
                f"{' '.join(args[:3])} >&-: exit {done.code}, {done.err!r}")
    out = p.fresh()
    done = p.sluice("run", "-q", "-m", p.model, "-i", source, "-o", out, *RAM, wrapper=["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"])
    t.check(done.code == 0 and len(read(out).splitlines()) == 6, f"run with 0 to 2 closed: exit {done.code}")


def limits(t, p, _):
    """Small stacks, few processes, no memory for libraries: an answer, or one line and the right code."""
    source, _ = small_rows(p)
    base = ["run", "-m", p.model, "-i", source, *RAM, *QUIET]
    whole = p.fresh()
    p.sluice(*base, "-o", whole)
    for kib in (64, 256):
        out = p.fresh()
        done = p.sluice(*base, "-o", out, "-t", "2", wrapper=["bash", "-c", f'ulimit -s {kib}; exec "$@"', "sh"])
        t.check(done.code == 0, f"ulimit -s {kib}: exit {done.code}, {done.err[-300:]!r}")
        t.check(read(out) == read(whole), f"ulimit -s {kib}: {difference(read(whole), read(out))}")
    for io in ("uring", "threads"):
        done = p.sluice(*base, "-o", p.fresh(), "-t", "2", "--io", io, *SPREAD,
                        wrapper=["bash", "-c", 'ulimit -s 64; exec "$@"', "sh"])
        if io == "uring" and "io_uring cannot be used" in done.error_line():
            t.skip("io_uring is refused: the smallest stack under it")
            continue
        t.check(done.code == 0, f"ulimit -s 64, --io {io}: exit {done.code}, {done.err[-300:]!r}")


def few_processes(t, p, _):
    """ulimit -u: the cause is named and the code says that something does not fit."""
    if os.geteuid() != 0:
        t.skip("ulimit -u: needs root, to be a user that nobody else is")
        return
    source, _ = small_rows(p)
    os.makedirs(p.at("cache"), exist_ok=True)
    p.sluice("plan", "-m", p.model, *JOB, *RAM)  # packs and probes as root
    subprocess.run(["chmod", "-R", "a+rwX", p.folder], check=True)
    os.chmod(os.path.dirname(p.folder), 0o755)
    seen = set()
    for n in (1, 2, 3, 5, 7):
        out = p.fresh()
        done = p.sluice("run", "-m", p.model, "-i", source, "-o", out, "-t", "4", *RAM, *QUIET, *SPREAD,
                        wrapper=["setpriv", "--reuid", "54321", "--clear-groups", "bash", "-c", f'ulimit -u {n}; exec "$@"', "sh"])
        seen.add(done.code)
        good = done.code == 0 or (done.code == 4 and "ulimit -u" in done.last() and done.last().startswith("sluice: error"))
        t.check(good, f"ulimit -u {n}: exit {done.code}: {done.last()!r}")
    t.check(4 in seen, f"ulimit -u: no run was short of threads: {seen}")


NO_MEMORY = """#include <errno.h>
#include <stdlib.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long calls, at = -1;
static int fails(void)
{
    if (at < 0)
        at = getenv("FAIL_AT") ? atol(getenv("FAIL_AT")) : 0;
    return at && __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) >= at ? (errno = ENOMEM) : 0;
}
void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t each) { return fails() ? NULL : __libc_calloc(n, each); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
"""


def no_memory(t, p, _):
    """Memory ends at the n-th call: exit 4 and one line, the last; libhwloc, which does not look, may have said something before
    it, and the loader, which asks before main does, ends with 127. The same command, with memory, ends the job."""
    library = p.at("no_memory.so")
    built = subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-o", library, p.write("no_memory.c", NO_MEMORY.encode())],
                           capture_output=True, text=True)
    if not t.check(built.returncode == 0, f"no_memory.so: {built.stderr[-300:]!r}"):
        return
    source, _ = small_rows(p)
    args, whole = ["run", "-q", "-m", p.model, "-i", source, *RAM, *QUIET], p.fresh()
    p.sluice(*args, "-o", whole)
    seen = []
    for n in (3, 8, 15, 40, 100, 200, 400, 3200, 12800):
        out = p.fresh()
        done = p.sluice(*args, "-o", out, FAIL_AT=str(n), wrapper=["timeout", "20", "env", f"LD_PRELOAD={library}"])
        lines, inside = done.err.splitlines(), "libhwloc" in done.last()
        seen.append("libhwloc" if inside else "loader" if done.code == 127 else done.code)
        ours = done.code == 4 and done.last().startswith("sluice: error: ") and (inside or len(lines) == 1)
        t.check(ours or done.code == 127 and lines or done.code == 0,
                f"no memory from call {n} on: exit {done.code}, {done.err[-300:]!r}")
        again = p.sluice(*args, "-o", out)
        t.check(again.code == 0 and read(out) == read(whole), f"no memory from call {n} on, and then enough: exit {again.code}: "
                f"{difference(read(whole), read(out))}")
    t.check("libhwloc" in seen and 4 in seen, f"no memory: met {seen}")


# ---- what flags mean together ---------------------------------------------------------------------

def flags(t, p, _):
    source, _ = small_rows(p)
    run = ["run", "-m", p.model, "-i", source, *QUIET, "--dry-run"]
    for more in (["--temperature", "-3"], ["-n", "2.5"], ["-n", "3", "5", "foo"], ["--top-p", "7"], ["--min-p", "-1"],
                 ["--repetition-penalty", "0"], ["--mem-ram", "300"], ["--time-limit", "3h50"], ["--progress", "loud"],
                 ["--share-prefixes", "maybe"], ["--order", "random"]):
        refused(t, p, " ".join(more), 2, "foo" if "foo" in more and False else more[0].replace("-n", "max-tokens") if len(more) == 2
                else "5: one word too many", *run, *more)
    done = p.sluice(*run, "--mem-ram", "900000G")
    t.check(done.code == 0 and "--mem-ram: 921600000.0 MiB is more than the" in done.err and "MiB free" in done.err,
            f"--mem-ram above the machine: exit {done.code}, {done.err!r}")
    done = p.sluice(*run, *RAM, "--kv-budget", "0.1", "--kv-sink", "4")
    t.check(done.err.count("--kv-budget has no effect") == 1 and "--kv-sink has no effect" in done.err, f"full: {done.err!r}")
    done = p.sluice(*run, *RAM, "--kv-policy", "h2o", "--kv-budget", "0.9")
    t.check("no effect" not in done.err, f"h2o: {done.err!r}")
    done = p.sluice(*run, *RAM, "--mem-device", "1K")
    t.check(done.code == 0 and "--mem-device has no effect" in done.err, f"--mem-device: {done.err!r}")
    done = p.sluice(*run, *RAM, "--attn", "device")
    t.check(done.code == 6 and "--attn cpu" in done.last(), f"--attn device: exit {done.code}, {done.err!r}")
    t.check("auto|cpu|device" in p.sluice("help", "run").out, "--attn stands in the help")
    for size in ("300MB", "300MiB", "0.3g", "0.3GB", "307200K", "300m"):
        done = p.sluice(*run, "--mem-ram", size)
        t.check(done.code == 0, f"--mem-ram {size}: exit {done.code}, {done.err[-200:]!r}")
    done = p.sluice("plan", "-m", p.model, "--prompt-len", "16", "--gen-len", "4", "--num-prompts", "10k", "--json", "-q", *RAM)
    t.check(json.loads(done.out)["work"]["rows"] == 10000, "--num-prompts 10k")
    done = p.sluice(*run, *RAM, "--time-limit", "3h50m")
    t.check(done.code == 0, f"--time-limit 3h50m: {done.err!r}")


def outputs(t, p, _):
    """Where an answer cannot go is said before anything happens, and what is no model is called so."""
    source, _ = small_rows(p)
    fresh = p.write("other.cfg", read(p.model) + b"rope_theta = 20000\n")
    for flag, args in (("output", ["-o", "no/where.jsonl"]), ("summary", ["-o", p.fresh(), "--summary", p.at("no/s.json")]),
                       ("trace", ["-o", p.fresh(), "--trace", p.at("no/t.json")]), ("output", ["-o", p.folder])):
        refused(t, p, f"--{flag} {args[-1]}", 2, f"--{flag}: ", "run", "-m", fresh, "-i", source, *args)
    refused(t, p, "plan -o", 2, "--output: ", "plan", "-m", fresh, *JOB, "-o", p.at("no/p.json"))
    refused(t, p, "pack -o", 2, "--output: ", "pack", fresh, "-o", p.at("no/p.pack"))
    refused(t, p, "-m rows", 5, "neither", "run", "-m", source, "-i", source, "-o", p.fresh())
    refused(t, p, "-m an empty folder", 5, "config.json", "run", "-m", p.folder, "-i", source, "-o", p.fresh())


def stdin_rows(t, p, a):
    source, rows = small_rows(p, 12)
    text, base = read(source), ["run", "-m", p.model, *RAM, *QUIET]
    whole, out = p.fresh(), p.fresh()
    p.sluice(*base, "-i", source, "-o", whole)
    done = fed(p, [*base, "-i", "-", "-o", out], text)
    t.check(done.returncode == 0 and read(out) == read(whole), f"run -i -: {done.returncode}, {done.stderr[-300:]!r}")
    t.check(read(out + ".input") == text, "run -i -: OUT.input holds what came in")
    done = fed(p, [*base, "-i", "-", "-o", out], text)
    t.check(done.returncode == 0 and b"rows are done: " in done.stderr, f"again: {done.stderr[-200:]!r}")
    done = fed(p, [*base, "-i", "-", "-o", out], b"")
    t.check(done.returncode == 0 and b"rows are done: " in done.stderr and b"is empty" in done.stderr,
            f"again, without input: {done.stderr[-200:]!r}")
    done = fed(p, [*base, "-i", "-", "-o", out], text[200:])
    t.check(done.returncode == 8 and b"other rows than stdin" in done.stderr and read(out + ".input") == text,
            f"other rows: {done.returncode} {done.stderr[-200:]!r}")
    cut = p.fresh()  # stopped, and resumed from what was kept
    done = fed(p, [*base, "-i", "-", "-o", cut, "--time-limit", "0.001s"], text)
    t.check(done.returncode == 75 and not os.path.exists(cut), f"stopped: {done.returncode} {done.stderr[-200:]!r}")
    done = fed(p, [*base, "-i", "-", "-o", cut], b"")
    t.check(done.returncode == 0 and read(cut) == read(whole), f"resumed: {done.returncode} {difference(read(whole), read(cut))}")
    done = fed(p, [*base, "-i", "-", "--dry-run"], text)
    t.check(done.returncode == 0, f"--dry-run -i -: {done.stderr[-200:]!r}")
    done = fed(p, ["plan", "-q", "-m", p.model, "-i", "-", "--json", *RAM], text)
    t.check(done.returncode == 0 and json.loads(done.stdout)["work"]["rows"] == 12, f"plan -i -: {done.stderr[-200:]!r}")
    score, pairs = p.fresh(), b'{"context_ids":[1,2,3],"continuation_ids":[4,5]}\n'
    done = fed(p, ["score", "-m", p.model, "-i", "-", "-o", score, *RAM, *QUIET], pairs)
    t.check(done.returncode == 0 and json.loads(read(score))["num_tokens"] == 2, f"score -i -: {done.stderr[-200:]!r}")
    if not os.path.exists(a.model):
        t.skip("gen -f -: no SmolLM2 (tests/model.sh fetches it, SLUICE_TEST_GGUF names it)")
        return
    gen = ["gen", "-q", "-m", a.model, "--mem-ram", "512M", "-n", "4"]
    want = fed(p, [*gen, "-p", "Once upon"]).stdout
    for flag in ("-f", "-p"):
        done = fed(p, [*gen, flag, "-"], b"Once upon")
        t.check(done.returncode == 0 and done.stdout == want != b"\n", f"gen {flag} -: {done.stdout!r}, want {want!r}")


# ---- plans, traces, reports -----------------------------------------------------------------------

def plans(t, p, _):
    """The plan's words and JSON; a file or the printed flags give the same plan again."""
    source, _ = small_rows(p, 12)
    made = ["plan", "-m", p.model, "-i", source, *RAM]
    shape = ["--kv-policy", "h2o", "--kv-budget", "20", "--kv-format", "q8", "--percent", "0", "50", "0", "0", "0", "0",
             "--batch", "4", "--batches", "3"]
    done = p.sluice(*made, *shape, "-o", p.at("plan.json"))
    t.check(re.search(r"^kv +h2o \(budget 20, at most 20 slots a row\) q8 on NVMe, hidden states on NVMe$", done.out, re.M), f"plan: the KV line: {done.out!r}")
    t.check(re.search(r"^weights  3 of 7 parts in RAM, 4 streamed from NVMe$", done.out, re.M), f"plan: {done.out!r}")
    t.check("rows at once" not in done.err and "repeat" not in done.err, f"plan says its plan once: {done.err!r}")
    plan = json.loads(read(p.at("plan.json")))
    t.check((plan["plan"]["kv_near"], plan["plan"]["hidden_near"], plan["plan"]["weights_codec"]) == (0, 0, "none")
            and plan["plan"]["share_prefixes"] == "on", f"names, not numbers: {plan['plan']}")
    t.check(plan["kv"] == {"policy": "h2o", "budget": 20, "format": "q8", "slots": 20, "scope": "head", "positions": "true",
                           "simulated": False, "budget_of": "total", "budget_layers": "even"},
            f"plan: kv {plan['kv']}")
    full = p.sluice(*made).out
    t.check(re.search(r"^kv +full bf16 in RAM, hidden states in RAM$", full, re.M) and "all 7 parts in RAM" in full, f"plan under full: {full!r}")

    kv = shape[:6]
    first = run_plan(t, p, source, [*kv, *shape[6:]])
    repeat = re.search(r"repeat   (.*)", done.out)[1].split()
    for what, more in (("--plan FILE", ["--plan", p.at("plan.json")]), ("the printed flags", repeat)):
        again = run_plan(t, p, source, [*kv, *more])
        t.check(again == first, f"{what}: {again} where {first} was planned")
    p.write("bad.json", b'{"plan":{"weights_codec":"moon"}}')
    refused(t, p, "a plan file with a wrong word", 2, "weights_codec", "run", "-m", p.model, "-i", source, "-o", p.fresh(), "-q",
            "--plan", p.at("bad.json"))
    # One batch: hidden states cannot leave their frame, and what was asked stays asked.
    done = p.sluice("run", "-v", "-m", p.model, "-i", source, "--dry-run", *RAM, "--batch", "12", "--batches", "1", "--percent",
                    *"000000")
    t.check("--percent 0 0 0 0 0 0 " in done.err and "hidden states stay in RAM" in done.err, f"--percent freezes: {done.err!r}")
    t4 = p.sluice("plan", "-q", "-m", os.path.join(HERE, "../configs/opt-6.7b.cfg"), *JOB, "--machine",
                  os.path.join(HERE, "../configs/machine-t4.cfg"), "--mem-ram", "64G", "--mem-disk", "100G")
    t.check(t4.code == 0 and "repeat" in t4.out, f"plan --machine: {t4.err!r}")


def run_plan(t, p, source, flags):
    """What the summary of a run says that it planned."""
    done = p.sluice("run", "-m", p.model, "-i", source, "-o", p.fresh(), *RAM, *QUIET, "--summary", p.at("s.json"), *flags)
    t.check(done.code == 0, f"run {flags}: exit {done.code} {done.err[-300:]!r}")
    plan = json.loads(read(p.at("s.json")))["plan"]
    return {k: plan[k] for k in ("batch", "batches", "tiers", "weights_resident", "weights_decoded", "ahead_weights",
                                 "ahead_state", "prefill_tokens", "ram_bytes", "disk_bytes", "kv") if k != "kv"}


@from_full
def first_plan(t, p, _):
    """The first plan of a large model config packs and measures nothing, and leaves no pack."""
    config = os.path.join(HERE, "../configs/opt-13b.cfg")
    cache = p.at("fresh-cache")
    os.mkdir(cache)
    plan = ["plan", "-m", config, *JOB, "--mem-ram", "64G", "--mem-disk", "64G", "--machine", os.path.join(HERE, "../configs/machine-t4.cfg")]
    done = p.sluice(*plan, SLUICE_CACHE_DIR=cache)
    t.check(done.code == 0 and "probe: " not in done.err and "packing" not in done.err, f"plan of opt-13b: exit {done.code} {done.err[-200:]!r}")
    killed = p.start(plan, SLUICE_CACHE_DIR=cache)
    opened = f"/proc/{killed.p.pid}/fd/*"
    t.check(killed.wait_for(lambda: any(os.path.realpath(x).endswith(".plan (deleted)") for x in glob.glob(opened))), "the pack of a plan has a name")
    killed.signal(signal.SIGKILL)
    killed.end()
    left = [x for x in os.listdir(cache) if "pack" in x or "plan" in x]
    t.check(not left, f"plan leaves {left}")


def traces(t, p, _):
    source, _ = small_rows(p, 8)
    done = p.sluice("run", "-m", p.model, "-i", source, "-o", p.fresh(), *RAM, *QUIET, "--trace", p.at("t.json"), "--summary",
                    p.at("s.json"), "--weights-resident", "0", "--batch", "2", "--batches", "2", "--percent", *"000000")
    t.check(done.code == 0, f"--trace: {done.err!r}")
    events = [e for e in json.loads(read(p.at("t.json")))["traceEvents"] if e["ph"] == "X"]
    passes = json.loads(read(p.at("s.json")))["passes"]
    kinds = {e["name"] for e in events}
    t.check({"weights", "layer", "slice", "embed", "hidden"} <= kinds, f"--trace: {kinds}")
    for kind in sorted(kinds):
        found = {e["args"].get("pass") for e in events if e["name"] == kind}
        t.check(None not in found and min(found) >= 0 and max(found) <= passes,  # weights of the next pass come ahead
                f"--trace: {kind} events have passes {min(found)} to {max(found)} of a run of {passes}")
    layers = {(e["args"]["pass"], e["args"]["layer"]) for e in events if e["name"] == "weights"}
    t.check(layers >= {(k, 1 + i) for k in range(passes) for i in range(6)}, "--trace: weights of every pass and layer")
    t.check(not any(v < 0 for e in events for v in e["args"].values()), "--trace: -1 stands for nothing")
    t.check(all(("bytes" in e["args"]) == (e["cat"].startswith("nvme")) for e in events), "--trace: bytes where bytes move")


def tail_of(done):
    """The end report."""
    return done.err[done.err.index("done: "):]


def reports(t, p, _):
    """One line says the plan. Small jobs end in three lines; real ones in the table; what is undefined is absent."""
    few, _ = small_rows(p, 2, "few.jsonl")
    many, _ = small_rows(p, 20, "many.jsonl")
    base = ["run", "-m", p.model, *RAM, "--summary", p.at("s.json")]
    done = p.sluice(*base, "-i", few, "-o", p.fresh())
    tail = done.err[done.err.index("done: "):].splitlines()
    t.check(len(tail) <= 3 and "output tokens/s" in tail[0] and re.match(r"  job: predicted \S+ s, measured ", tail[-1]), f"footer: {tail}")
    t.check("last new one" not in done.err and json.loads(read(p.at("s.json")))["steady_output_tokens_per_s"] is None,
            f"steady: {tail}")
    done = p.sluice(*base, "-i", few, "-o", p.fresh(), "-v")
    t.check("limited by" in tail_of(done) and "  the CPU " in tail_of(done), f"-v: the whole table: {done.err!r}")
    done = p.sluice(*base, "-i", many, "-o", p.fresh())
    t.check("  a whole pass " in tail_of(done) and "NVMe" not in tail_of(done), f"20 rows in RAM: {done.err[-400:]!r}")
    t.check(re.search(r"plan: \d+ rows at once, weights in RAM, KV in RAM, about [0-9.]+ s, limited by the CPU$", done.err, re.M)
            and "repeat" not in done.err, f"the plan is one line: {done.err[:400]!r}")
    times = [float(x) for x in re.findall(r"^(\d+\.\d+)s ", done.err, re.M)]
    t.check(times and max(times) > 0, f"the clock of the log: {times}")
    done = p.sluice(*base, "-i", few, "-o", p.fresh(), "--progress", "lines")
    bar = p.sluice(*base, "-i", many, "-o", p.fresh(), "--progress", "bar")
    t.check(done.code == 0 and bar.code == 0, "--progress lines, bar")
    out = p.fresh()
    p.sluice(*base, "-i", few, "-o", out)
    t.check(all(json.loads(x).get("dummy_weights") is True for x in read(out).splitlines()), "rows of dummy weights say so")


def sampling(t, p, _):
    """Flags give what a row's own fields give; SOURCE_DATE_EPOCH is `created`."""
    plain = [{"custom_id": f"r{i}", "prompt_token_ids": [5 + i, 9, 77], "max_tokens": 12, "ignore_eos": True} for i in range(4)]
    for flags, fields in ((["--temperature", "1.3", "--seed", "7", "--top-p", "0.8"], {"temperature": 1.3, "seed": 7, "top_p": 0.8}),
                          (["--seed", "7", "--top-k", "20"], {"seed": 7, "top_k": 20}),
                          (["--seed", "7", "--min-p", "0.2"], {"seed": 7, "min_p": 0.2}),
                          (["--temperature", "0", "--repetition-penalty", "1.5"], {"temperature": 0, "repetition_penalty": 1.5})):
        outs = []
        for rows, more in ((plain, flags), ([{**r, **fields} for r in plain], [])):
            out = p.fresh()
            done = p.sluice("run", "-m", p.model, "-i", p.rows("s.jsonl", rows), "-o", out, *RAM, *QUIET, *more)
            t.check(done.code == 0, f"{more}: exit {done.code} {done.err[-200:]!r}")
            outs.append(read(out))
        t.check(outs[0] == outs[1], f"{flags}: {difference(outs[1], outs[0])}")
    batch = [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt_token_ids": [3, 4], "max_tokens": 2}}]
    out = p.fresh()
    p.sluice("run", "-m", p.model, "-i", p.rows("b.jsonl", batch), "-o", out, *RAM, *QUIET, SOURCE_DATE_EPOCH="1700000000")
    body = json.loads(read(out))["response"]["body"]
    t.check(body["created"] == 1700000000 and body["dummy_weights"] is True, f"SOURCE_DATE_EPOCH: {body}")


def sharing(t, p, _):
    """--share-prefixes off computes every prompt whole, and changes no byte."""
    head = [7 * i % 3000 for i in range(64)]
    rows = [{"custom_id": f"r{i}", "prompt_token_ids": head + [i, 5], "max_tokens": 6, "temperature": 0, "ignore_eos": True,
             "logprobs": 1} for i in range(8)]
    source, outs, shared = p.rows("same.jsonl", rows), [], []
    for word in ("on", "off"):
        out = p.fresh()
        done = p.sluice("run", "-m", p.model, "-i", source, "-o", out, *RAM, *QUIET, "--batch", "8", "--summary", p.at("s.json"),
                        "--share-prefixes", word)
        flags = json.loads(read(out + ".job.json"))["plan_flags"]
        t.check(done.code == 0 and f"--share-prefixes {word} " in flags, f"--share-prefixes {word}: {flags} {done.err[-300:]!r}")
        outs.append(read(out))
        summary = json.loads(read(p.at("s.json")))
        shared.append(summary["prompt_tokens"] - summary["shared_prompt_tokens"])
    t.check(outs[0] == outs[1] and len(outs[0].splitlines()) == 8, f"--share-prefixes: {difference(outs[1], outs[0])}")
    t.check(shared[1] == 8 * 66 and shared[0] < shared[1] / 2, f"--share-prefixes: {shared} prompt tokens computed on, off")


def spellings(t, p, _):
    """Two ways to write one value are one job; a variable of the environment that is no number is refused."""
    source, _ = small_rows(p)
    out = p.fresh()
    for flags, code in (("0.5", 0), ("0.50", 0), ("0.5 --kv-recent 0.5", 0), ("0.5 --kv-recent 0.25", 8), ("0.51", 8)):
        done = p.sluice("run", "-m", p.model, "-i", source, "-o", out, *RAM, *QUIET, "--kv-policy", "h2o", "--kv-budget",
                        *flags.split())
        t.check(done.code == code, f"--kv-budget {flags} after 0.5: exit {done.code}, want {code}: {done.err[-200:]!r}")
    for name, value in (("SOURCE_DATE_EPOCH", "abc"), ("SOURCE_DATE_EPOCH", "1.5"), ("SLUICE_SYNC_S", "nan"),
                        ("SLUICE_PROBE_SHARE", "-1")):
        refused(t, p, f"{name}={value}", 2, name, "inspect", p.model, **{name: value})
    done = p.sluice("run", "-m", p.model, "-i", source, "-o", p.fresh(), *RAM, *QUIET, wrapper=[NOURING],
                    SLUICE_CACHE_DIR=p.at("new"))
    t.check(done.code == 0 and done.err.count("io_uring cannot be used") == 1,
            f"io_uring refused, first use: exit {done.code}, {done.err.count('io_uring')} warnings")


# ---- packing, probing, benchmarks -----------------------------------------------------------------

def packing(t, p, _):
    source, _ = small_rows(p)
    for weights in ("f32", "f16", "bf16", "bf12", "q8", "q4")[::pick(3, 1)]:
        pack = p.at(weights + ".pack")
        done = p.sluice("pack", p.model, "-o", pack, "--weights", weights, "--progress", "lines")
        t.check(done.code == 0 and "packing 100.0 %" in done.err and "MiB" in done.err, f"pack --weights {weights}: {done.err!r}")
        shape = json.loads(p.sluice("inspect", "--json", pack).out)
        formats = {x["format"] for x in shape["tensors"] if x["tensor"] == "up"}
        t.check(formats == {weights}, f"pack --weights {weights}: {formats}")
        out = p.fresh()
        done = p.sluice("run", "-m", pack, "-i", source, "-o", out, *RAM, *QUIET)
        t.check(done.code == 0 and len(read(out).splitlines()) == 6, f"run of {weights}: {done.err[-300:]!r}")
    done = p.sluice("pack", p.model, "-o", p.at("none.pack"), "--progress", "none")
    t.check(done.code == 0 and "packing" not in done.err, f"--progress none: {done.err!r}")
    done = p.sluice("pack", p.model, "-o", p.at("bar.pack"), "--progress", "bar")
    t.check("\rpacking" in done.err and done.err.count("\x1b[K"), f"--progress bar: {done.err!r}")


def foreign_pack(t, p, _):
    """A pack of another model under a model's name in the cache is made again, or exit 7; never used. A link stays."""
    models, packs, answers = [], [], []
    for seed, name in enumerate("ab"):
        r, blank = random.Random(seed), model_make.safetensors()
        n = (len(blank) - 8 - struct.unpack_from("<Q", blank)[0]) // 4
        weights = blank[:-4 * n] + struct.pack(f"<{n}f", *(r.gauss(0, 0.5) for _ in range(n)))
        models.append(model_make.hf(p.at(name), weights=weights))
    source = p.rows("ids.jsonl", [{"prompt_token_ids": [1, 2, 3 + i], "max_tokens": 6, "ignore_eos": True} for i in range(4)])
    cache = p.at("packs")

    def run(model, *more, **how):
        out = p.fresh()
        done = p.sluice("run", "-m", model, "-i", source, "-o", out, *RAM, *QUIET, *more, SLUICE_CACHE_DIR=cache, **how)
        return done, read(out)

    for model in models:
        done, out = run(model)
        answers.append(out)
        packs.append(next(x for x in glob.glob(cache + "/*.pack") if x not in packs))
        t.check(done.code == 0 and "packing" in done.err, f"first run of {model}: exit {done.code}, {done.err[-300:]!r}")
    t.check(answers[0] != answers[1], "the two models give other answers")
    done, out = run(models[0])
    t.check(done.code == 0 and out == answers[0] and "packing" not in done.err, f"its own pack: {done.err[-300:]!r}")
    other = read(packs[1])
    for put in (shutil.copyfile, os.symlink):
        os.unlink(packs[0])
        put(packs[1], packs[0])
        done, out = run(models[0], wrapper=["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"])
        t.check(done.code == 7 and "another model" in done.error_line(), f"no room: exit {done.code}: {done.err[-300:]!r}")
        done, out = run(models[0])
        if put is os.symlink:
            t.check(done.code == 7 and not out and "not a regular file (remove it)" in done.error_line() and
                    os.path.islink(packs[0]), f"a link to another model's pack: exit {done.code}: {done.err[-300:]!r}")
            os.unlink(packs[0])
            done, out = run(models[0])
            t.check(done.code == 0 and out == answers[0], f"the link was removed: exit {done.code}: {done.err[-300:]!r}")
        else:
            t.check(done.code == 0 and out == answers[0] and done.err.count("another model") == 1,
                    f"a pack of another model: exit {done.code}, {out == answers[1]}: {done.err[-300:]!r}")
        t.check(read(packs[1]) == other, "the other model's pack is as it was")
    p.sluice("pack", models[0], "-o", packs[0])  # as older packs, it does not say what it was made from
    done, out = run(models[0])
    t.check(done.code == 0 and out == answers[0] and "packing" not in done.err, f"an older pack: {done.err[-300:]!r}")


@from_full
def measured(t, p, _):
    done = p.sluice("probe", "--offload-dir", p.folder, "-o", p.at("machine.cfg"), "--json")
    found = json.loads(done.out)
    t.check(done.code == 0 and found["matmul_flops"] > 0 and found["nvme_read"] > 0, f"probe --json: {done.out!r}")
    done = p.sluice("plan", "-q", "-m", p.model, *JOB, *RAM, "--machine", p.at("machine.cfg"))
    t.check(done.code == 0, f"plan --machine of probe -o: {done.err!r}")
    done = p.sluice("bench", "throughput", "--csv", "-q", "-m", p.model, *RAM, *JOB, "--kv-policy", "h2o", "--kv-budget",
                    "0.5", "--kv-format", "q8")
    row, = csv.DictReader(done.out.splitlines())
    t.check((row["kv_policy"], row["kv_budget"], row["kv_format"], row["kv_slots"], row["mem_ram"], row["compute"]) ==
            ("h2o", "0.5", "q8", "20", str(96 << 20), "bf16"), f"bench throughput --csv: {row}")
    done = p.sluice("bench", "throughput", "--json", "-q", "-m", p.model, *RAM, *JOB)
    found = json.loads(done.out)
    t.check(found["kv_policy"] == "full" and found["kv_budget"] is None and found["num_requests"] == 8, f"--json: {found}")
    done = p.sluice("bench", "throughput", "-q", "-m", p.model, *RAM, *JOB)
    t.check(done.out.startswith("Throughput: ") and "dummy weights" in done.out, f"bench throughput: {done.out!r}")


def stdout_rows(t, p, _):
    """-o -: rows on stdout when the job ends; a job that is not over is kept, and goes on."""
    source, _ = small_rows(p, 12)
    text, whole, temp, work = read(source), p.fresh(), p.at("temp"), p.at("work")
    os.mkdir(temp)
    base = ["run", "-m", p.model, *RAM, *QUIET]
    p.sluice(*base, "-i", source, "-o", whole)
    want = read(whole)

    def to_stdout(*more, code=0, data=text, **streams):
        done = subprocess.run([p.binary, *base, "-i", "-", "-o", "-", *more], timeout=300, cwd=p.folder, env={**p.env, "TMPDIR": temp},
                              **{"input": data, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams})
        what = f"-o - {' '.join(more)} {streams}: "
        t.check(done.returncode == code, f"{what}exit {done.returncode}, want {code}: {done.stderr[-300:]!r}")
        t.check((done.stdout or b"") == (want if code == 0 else b""), f"{what}stdout")
        return done.stderr.decode()

    def kept(error):
        """The folder that the error names."""
        found = re.search("the same command with --work-dir (.+) goes on", error.splitlines()[-1])
        t.check(found and os.path.isdir(found[1]) and os.listdir(temp) == [os.path.basename(found[1])], f"no folder: {error[-300:]!r}")
        return found[1]

    to_stdout()
    t.check(os.listdir(temp) == [], f"left in TMPDIR: {os.listdir(temp)}")
    folder = kept(to_stdout("-q", "--time-limit", "0.001s", code=75))
    t.check(not os.path.exists(os.path.join(folder, "rows.jsonl")), "OUT of a job that was stopped")
    to_stdout("--work-dir", folder)
    to_stdout("--work-dir", folder, data=b"")
    shutil.rmtree(folder)
    with open("/dev/full", "wb") as full:
        folder = kept(to_stdout(code=9, stdout=full))
    t.check(read(os.path.join(folder, "rows.jsonl")) == want, "stdout is full: the rows")
    to_stdout("--work-dir", folder)
    shutil.rmtree(folder)
    reader, writer = os.pipe()
    os.close(reader)
    shutil.rmtree(kept(to_stdout(code=9, stdout=writer)))  # nobody reads
    os.close(writer)
    fifo = p.at("fifo")  # a reader that does not read
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    os.write(reader, bytes(1 << 20))
    slow = p.start([*base, "-i", source, "-o", "-"], wrapper=["sh", "-c", f'exec "$@" > "{fifo}"', "sh"], TMPDIR=temp)
    t.check(slow.wait_for(lambda: glob.glob(os.path.join(temp, "*/rows.jsonl"))) and slow.stands_still(), "slow reader: no rows")
    slow.signal(signal.SIGINT)
    done = slow.end()
    t.check(done.code == 75 and "stdout: interrupted; the rows are in" in done.error_line(), f"slow reader: {done.code} {done.err[-300:]!r}")
    t.check(read(os.path.join(kept(done.err), "rows.jsonl")) == want, "slow reader: the rows")
    shutil.rmtree(kept(done.err))
    os.close(reader)
    said = to_stdout("--work-dir", work, "--time-limit", "0.001s", code=75)
    t.check("goes on" not in said, f"--work-dir: {said[-300:]!r}")
    to_stdout("--work-dir", work)
    done = p.sluice("status", work)
    t.check(done.code == 0 and "12 of 12 ok" in done.out, f"status of a folder: {done.out} {done.err}")
    said = to_stdout("--work-dir", work, data=text[200:], code=8)
    t.check("other rows than stdin" in said, f"other rows: {said!r}")
    to_stdout("--work-dir", p.at("none/work"), code=2)
    to_stdout(code=5, data=b"no rows\n")
    t.check(os.listdir(temp) == [], f"a refused job left {os.listdir(temp)}")
    done = fed(p, [*base, "-i", source, "-o", "-", "--work-dir", work, "--dry-run"])
    t.check(done.returncode == 0 and not done.stdout, f"dry run: {done.stdout[:80]!r} {done.stderr!r}")
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", p.binary, *base, "-i", source, "-o", "-"], capture_output=True, cwd=p.folder,
                          env={**p.env, "TMPDIR": temp})
    t.check(done.returncode == 9 and b"stdout: is closed" in done.stderr and b"plan" not in done.stderr, f"closed: {done.stderr!r}")
    pairs, score = b'{"context_ids":[1,2,3],"continuation_ids":[4,5]}\n', p.fresh()
    fed(p, ["score", "-m", p.model, "-i", "-", "-o", score, *RAM, *QUIET], pairs)
    done = fed(p, ["score", "-m", p.model, "-i", "-", "-o", "-", *RAM, *QUIET], pairs, TMPDIR=temp)
    t.check(done.returncode == 0 and done.stdout == read(score) != b"" and os.listdir(temp) == [], f"score -o -: {done.stderr[-300:]!r}")


PARTS = [help_words, full_stdout, limits, few_processes, no_memory, flags, outputs, stdin_rows, stdout_rows, plans, first_plan, traces, reports, sampling,
         sharing, spellings, packing, foreign_pack, measured]


def main():
    return run_parts(__doc__, PARTS)


if __name__ == "__main__":
    sys.exit(main())
