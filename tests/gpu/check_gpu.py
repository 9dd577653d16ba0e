#!/usr/bin/env python3
"""Is what a GPU computes right? check_gpu.py [--device cuda[:i]] [--for 9m] [--only STAGE] [--again]

In stages of less than nine minutes, a row of the CSV per test as it ends: stage,test,result,seconds,detail. A test
that has a row is not run again (--again does): the same command goes on where the last one stopped. --for ends it in
time (75: more to do). 0: everything was run and nothing failed; 1: something failed; 6: no such device here, nothing
was checked. A test that cannot run says why and counts as skipped, never as passed.

  ops        every op against the order reference, on the device (build/tests/gpu, flat_test, device_test, line_device_test)
  engine     whole runs against --device cpu: under f32 the same bytes, else log-probabilities within 0.02, greedy agreement
  placement  OUT byte for byte over homes of weights, KV and hidden states, for --attn device and cpu
  cublaslt   --matmul cublaslt: scores and greedy tokens as in engine, OUT byte for byte over batches and homes
  sanitizer  compute-sanitizer's memcheck, racecheck, initcheck, synccheck over the ops and a small run
  trouble    too little device memory (4), no such device (6), SIGKILL and resume
  probe      the machine file with the rates of the device

--device takes PATH.so:ARG, too: tests/sim_device.so tries the script where there is no GPU.
Standard library only (make check-gpu makes the checkpoints first; a kit has them).
"""
import argparse
import csv
import datetime
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
import trial  # noqa: E402

LIMIT_S = 500            # of one test
COLUMNS = ["stage", "test", "result", "seconds", "detail"]
MORE, NO_DEVICE = 75, 6
MEAN, MOST, TIE = 0.02, 0.3, 0.25   # of log-probabilities in bf16; where the two best are closer either may win
SPLITS = 0.03                       # of tokens where the other one won
F32 = ["--compute", "f32", "--kv-format", "f32"]
CUBLASLT = ["--matmul", "cublaslt"]
H2O = ["--kv-policy", "h2o", "--kv-budget", "48"]
# Programs of the stage `ops`, which a kit has to bring.
OPS_TESTS = ("gpu/rows_test", "gpu/head_test", "gpu/decode_test", "gpu/matmul_test", "gpu/attend_test", "gpu/prompt_test", "gpu/experts_test", "flat_test",
             "device_test", "line_device_test")
SIMULATED_CANNOT = {"rows_test", "decode_test", "matmul_test", "experts_test"}  # weights in rows: no CPU kernel reads them
LLAMA = """family = llama
dim = 128
layers = 6
heads = 8
kv_heads = 2
head_dim = 16
ffn = 256
vocab = 9000
context = 1024
tied = 0
"""
OPT = """family = opt
dim = 192
layers = 4
heads = 3
ffn = 384
vocab = 5000
context = 1024
tied = 0
"""
VOCAB = 300  # ids below are in every checkpoint


class Skip(Exception):
    """The test cannot run here; says why."""


class Failed(Exception):
    """What was seen that may not be."""


def need(ok, what):
    if not ok:
        raise Failed(what)


class Bench:
    """The binary, the device, a folder whose caches stay, and how long there is."""

    def __init__(self, a):
        self.a = a
        os.makedirs(a.work, exist_ok=True)
        self.place = trial.Place(a.work, a.sluice, sync_s=None)
        self.llama = self.place.write("llama.cfg", LLAMA.encode())
        self.opt = self.place.write("opt.cfg", OPT.encode())
        self.n = 0
        self.simulated = "sim_device" in a.device
        self.stop = time.monotonic() + a.seconds if a.seconds else None

    def left(self):
        return LIMIT_S if self.stop is None else min(LIMIT_S, self.stop - time.monotonic())

    def library(self):
        """What tests that are no sluice open: the library itself."""
        if ".so" in self.a.device:
            return self.a.device
        return self.a.library + self.a.device[len("cuda"):]

    def out(self, name):
        self.n += 1
        path = self.place.at(f"{name}-{self.n}.jsonl")
        trial.remove_job(path)
        return path

    def job(self, command, model, rows, *flags, device=None, code=0, out=None):
        """A run to its end; .data are OUT's bytes. It has to end with `code`."""
        source, out = self.place.rows("in.jsonl", rows), out or self.out("out")
        device = [] if "--device" in flags else ["--device", device or self.a.device]
        done = self.place.sluice(command, "-m", model, "-i", source, "-o", out, "--progress", "none", "-v", "--summary",
                                 self.place.at("summary.json"), *device, *flags, limit_s=self.left())
        done.data = trial.read(out)
        if done.code == code == 0:
            self.on_device(device, flags, done.err)
        need(done.code != -signal.SIGKILL, "over time")
        need(done.code == code, f"{command} {' '.join(flags)}: exit {done.code}, not {code}: {done.last()[-300:]}")
        trial.remove_job(out)
        return done

    def on_device(self, device, flags, err):
        """The run was where it was asked to be: a CPU that steps in would prove nothing."""
        s, wanted = self.summary(), device[1] if device else flags[flags.index("--device") + 1]
        need((s["device"] == "cpu") == (wanted == "cpu"), f"--device {wanted} ran on {s['device']}")
        frozen = re.search(r"to repeat this plan: .*--attn (\w+)", err)
        need("--attn" not in flags or frozen and frozen[1] == flags[flags.index("--attn") + 1],
             f"--attn is not what was asked for: {err[-300:]}")
        need((s["peak_bytes"]["device"] > 0) == (wanted != "cpu"), f"{s['peak_bytes']} on {s['device']}")

    def summary(self):
        return json.loads(trial.read(self.place.at("summary.json")) or b"{}")


# ---- rows ------------------------------------------------------------------------------------------

def ids(r, n):
    return [r.randrange(3, VOCAB) for _ in range(n)]


def score_rows(n, seed):
    r = random.Random(seed)
    return [{"custom_id": f"s{i}", "context_ids": ids(r, 5 + 23 * i), "continuation_ids": ids(r, 24)} for i in range(n)]


def greedy_rows(n, tokens, seed):
    r = random.Random(seed)
    return [{"custom_id": f"g{i}", "prompt_token_ids": ids(r, 3 + 17 * i), "max_tokens": tokens, "temperature": 0,
             "ignore_eos": True, "logprobs": True, "top_logprobs": 2} for i in range(n)]


def lines(data):
    return [json.loads(x) for x in data.splitlines()]


# ---- ops -------------------------------------------------------------------------------------------

def counted(text):
    """passed, failed, skipped of a cmocka binary, and the tests that failed."""
    total = {k: sum(map(int, re.findall(rf"^\[  {k} *\] (\d+) test", text, re.M)))
             for k in ("PASSED", "FAILED", "SKIPPED")}
    bad = re.findall(r"^\[  FAILED  \] (\w+)$", text, re.M)
    return total["PASSED"], total["FAILED"], total["SKIPPED"], sorted(set(bad))


def run_binary(b, command, **env):
    """Its status and what it printed; its group is ended when it takes too long."""
    env = {**os.environ, "SLUICE_TEST_DEVICE": b.library(), "LC_ALL": "C", **env}
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace", start_new_session=True)
    try:
        text = child.communicate(timeout=b.left())[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # ours: its own session
        child.wait()
        raise Failed(f"over {b.left():.0f} s")
    return child.returncode, text


def keep(b, name, text):
    """What a test printed, for whoever has to look."""
    path = os.path.join(b.a.work, name.replace("/", "-").replace(" ", "-") + ".log")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return os.path.relpath(path, ROOT)


def ops_binary(b, path):
    name = os.path.basename(path)
    if b.simulated and name in SIMULATED_CANNOT and "gpu" in path:
        raise Skip("weights in rows: no CPU kernel behind the simulated device reads them")
    if not os.path.exists(path):
        raise Skip(f"{path} is not built")
    code, text = run_binary(b, [path])
    log = keep(b, name, text)
    passed, failed, skipped, bad = counted(text)
    need(code == 0 and passed > 0 and not failed, f"exit {code}, {passed} passed, failed: {', '.join(bad) or '?'}; {log}")
    model = re.findall(r"have the bits of the model", text)
    return f"{passed} passed, {skipped} need the simulator" + (f", {len(model)} products off the model's last bits" if
                                                               model else "")


def stage_ops(b):
    for name in OPS_TESTS:
        yield name, lambda path=os.path.join(ROOT, b.a.tests, name): ops_binary(b, path)


# ---- engine ----------------------------------------------------------------------------------------

def same(what, want, got):
    need(got == want, f"{what}: other bytes: {trial.difference(want, got)}")


def check_f32(b, model):
    for command, rows in (("score", score_rows(6, 1)), ("run", trial.job_rows(8, 5, VOCAB, 120, (8, 24)))):
        for flags in ([], H2O if command == "run" else []):
            want, got = (b.job(command, model, rows, *F32, *flags, device=d).data for d in ("cpu", None))
            same(f"{command} {' '.join(flags)}", want, got)
    return "score and run, full and h2o: the CPU's bytes"


def difference_of(want, got):
    diffs = [abs(x - y) for w, g in zip(want, got) for x, y in zip(w["token_logprobs"], g["token_logprobs"])]
    return sum(diffs) / len(diffs), max(diffs)


def check_scores(b, model, flags, there=()):
    """`there`: flags of the device's run alone."""
    rows = score_rows(8, 2)
    want, got = (lines(b.job("score", model, rows, *flags, *more, device=d).data) for d, more in (("cpu", ()), (None, there)))
    mean, most = difference_of(want, got)
    need(mean <= MEAN and most <= MOST, f"log-probabilities differ by {mean:.2e} (at most {MEAN}), {most:.2e} (at most {MOST})")
    return f"log-probabilities: mean {mean:.1e}, most {most:.1e}"


def check_greedy(b, model, flags, there=()):
    """Rows as far as they agree: where they part, the two best have to be close on the CPU."""
    rows, n_same, n = greedy_rows(8, 32, 3), 0, 0
    want, got = (lines(b.job("run", model, rows, *flags, *more, device=d).data) for d, more in (("cpu", ()), (None, there)))
    splits = 0
    for w, g in zip(want, got):
        at = next((i for i, (x, y) in enumerate(zip(w["token_ids"], g["token_ids"])) if x != y), len(w["token_ids"]))
        n_same, n = n_same + (at == len(w["token_ids"])), n + at
        if at < len(w["token_ids"]):
            first, second = sorted(w["logprobs"]["top_logprobs"][at].values(), reverse=True)[:2]
            need(first - second < TIE, f"{w['custom_id']}: token {at} differs where the best leads by {first - second:.3f}")
            splits, n = splits + 1, n + 1
    need(splits <= max(1, SPLITS * n), f"{splits} of {n} tokens are others")
    return f"{n_same} of {len(rows)} generations alike to the end, {splits} of {n} tokens where the second best won"


def stage_engine(b):
    models = sorted(glob.glob(os.path.join(b.a.models, "*-*")))
    if not models:
        def none():
            raise Skip(f"no checkpoints in {b.a.models}")
        yield "checkpoints", none
    for path in models:
        name = os.path.basename(path)
        yield f"{name}, f32", lambda m=path: check_f32(b, m)
        yield f"{name}, bf16 scores", lambda m=path: check_scores(b, m, [])
        yield f"{name}, bf16 greedy", lambda m=path: check_greedy(b, m, [])
    for fmt in ("q8", "q4", "mixed"):
        for model in (b.llama, b.opt):
            name = os.path.basename(model)
            yield f"{name}, KV {fmt}", lambda m=model, f=fmt: check_scores(b, m, ["--kv-format", f])
            yield f"{name}, KV {fmt}, h2o", lambda m=model, f=fmt: check_greedy(
                b, m, ["--kv-format", f, "--kv-policy", "h2o", "--kv-budget", "96"])
    for weights in ("bf12", "q8", "q4"):
        for compute in ("bf16", "int8")[:1 if weights == "bf12" else 2]:
            yield f"weights {weights}, {compute}", lambda w=weights, c=compute: check_scores(
                b, b.llama, ["--weights", w, "--compute", c])
    for what, check in (("f32", check_f32), ("bf16 scores", check_scores), ("bf16 greedy", check_greedy)):
        def real(check=check):
            if not b.a.gguf or not os.path.exists(b.a.gguf):
                raise Skip("no SmolLM2 (--gguf, SLUICE_TEST_GGUF)")
            return check(b, b.a.gguf, []) if check is not check_f32 else check_f32(b, b.a.gguf)
        yield f"SmolLM2, {what}", real


# ---- placement -------------------------------------------------------------------------------------

# FlexGen's six: weights, KV and hidden states, on the device and in RAM; the rest on disk.
ON_DEVICE = {
    "weights in RAM": "0 100 100 0 100 0", "weights half in RAM": "50 50 100 0 100 0",
    "weights on NVMe": "0 0 100 0 100 0", "weights a third each": "34 33 100 0 100 0",
    "KV in RAM": "100 0 0 100 100 0", "KV on NVMe": "100 0 0 0 100 0", "KV half in RAM": "100 0 50 50 100 0",
    "KV a third each": "100 0 34 33 100 0", "hidden states in RAM": "100 0 100 0 0 100",
    "hidden states on NVMe": "100 0 100 0 0 0", "everything in RAM": "0 100 0 100 0 100",
    "everything on NVMe": "0 0 0 0 0 0", "a third of everything each": "34 33 34 33 34 33",
}
ON_CPU = {
    "weights in RAM": "0 100 0 100 100 0", "weights on NVMe": "0 0 0 100 100 0", "weights a third each": "34 33 0 100 100 0",
    "hidden states in RAM": "100 0 0 100 0 100", "hidden states on NVMe": "100 0 0 100 0 0",
    "everything in RAM": "0 100 0 100 0 100", "weights and hidden states on NVMe": "0 0 0 100 0 0",
}
# Of three batches or fewer hidden states stay in their frames (policy/plan.c), so that homes of these prove nothing.
SHAPES = {
    "one row at a time": ["--batch", "1", "--batches", "1"], "3 batches of 2": ["--batch", "2", "--batches", "3"],
    "4 batches of 3": ["--batch", "3", "--batches", "4"],
    "no look-ahead": ["--batch", "3", "--batches", "4", "--ahead-weights", "0", "--ahead-state", "0"],
    "far ahead": ["--batch", "2", "--batches", "4", "--ahead-weights", "1000", "--ahead-state", "1000"],
    "40 prefill tokens a pass": ["--batch", "2", "--batches", "4", "--prefill-tokens", "40"],
    "zstd, by threads": ["--batch", "2", "--batches", "2", "--weights-codec", "zstd", "--io", "threads"],
}
JOBS = {
    "full": [], "h2o": H2O, "h2o-mean, layer scope": ["--kv-policy", "h2o-mean", "--kv-budget", "0.4", "--kv-scope", "layer"],
    "q4, h2o": [*H2O, "--kv-format", "q4"], "mixed": ["--kv-format", "mixed", "--kv-policy", "h2o", "--kv-budget", "96"],
    "f32": F32, "int8": ["--compute", "int8", "--weights", "q8", "--kv-format", "q8"],
}


def placements(attn):
    """Homes with a shape each, in turn, and every shape over everything streamed."""
    homes, shapes = (ON_DEVICE, ON_CPU)[attn == "cpu"], list(SHAPES.items())
    for i, (name, six) in enumerate(homes.items()):
        shape, flags = shapes[(2 * i + 1) % len(shapes)]
        yield f"{name}, {shape}", ["--percent", *six.split(), *flags]
    six = homes["everything in RAM" if attn == "cpu" else "everything on NVMe"]
    for shape, flags in shapes:
        yield f"streamed, {shape}", ["--percent", *six.split(), *flags]


def check_moved(b, attn, what, flags):
    """The bytes went where the six shares say: what does not move proves nothing."""
    if "--percent" not in flags:
        return
    s, at = b.summary(), flags.index("--percent") + 1
    moved = {x["name"]: x["bytes"] for x in s["lanes"]}
    w, kv, hidden = (list(map(int, flags[at + i:at + i + 2])) for i in (0, 2, 4))
    need(moved.get("nvme-read", 0) > 0 or sum(w) == 100, f"{what}: weights on NVMe, and nothing is read: {moved}")
    need(moved.get("nvme-write", 0) > 0 or sum(kv) > 0, f"{what}: KV on NVMe, and nothing is written: {moved}")
    need(moved.get("h2d", 1) > 0 or w[0] == 100, f"{what}: weights elsewhere, and nothing goes to the device: {moved}")
    if attn == "device":  # under --attn cpu KV attends where it is, and hidden states stay in their frames
        need(moved.get("d2h", 0) > 0 or kv[0] == hidden[0] == 100, f"{what}: state elsewhere, nothing leaves the device: {moved}")


def check_placement(b, attn, model, flags):
    rows = trial.job_rows(12, 7, VOCAB)
    home = ["--percent", *("100 0 0 100 100 0" if attn == "cpu" else "100 0 100 0 100 0").split()]
    common = ["--attn", attn, *flags]
    want = b.job("run", model, rows, *common, *home, "--batch", "12", "--batches", "1").data
    n = 0
    for what, placed in placements(attn):
        same(what, want, b.job("run", model, rows, *common, *placed).data)
        check_moved(b, attn, what, placed)
        n += 1
    return f"{n} placements, {len(rows)} rows: the same bytes"


def stage_placement(b):
    for attn in ("device", "cpu"):
        for i, (name, flags) in enumerate(JOBS.items()):
            model = (b.llama, b.opt)[i % 2] if name != "int8" else b.llama
            yield f"attn {attn}, {name}", lambda a=attn, m=model, f=flags: check_placement(b, a, m, f)


# ---- cublaslt --------------------------------------------------------------------------------------

def with_library(b, test):
    """A test with --matmul cublaslt, where there is such a library."""
    source = b.place.rows("in.jsonl", greedy_rows(1, 2, 1))
    done = b.place.sluice("run", "-m", b.llama, "-i", source, "-o", b.out("library"), "--device", b.a.device, *CUBLASLT,
                          limit_s=b.left())
    if done.code == NO_DEVICE and "not found (install it" in done.error_line():
        raise Skip(done.error_line())
    return test()


def check_lt_bytes(b, model):
    """One row at a time, many, streamed, interrupted by nobody: the same bytes."""
    rows = trial.job_rows(12, 13, VOCAB, 200, (8, 24))
    want = b.job("run", model, rows, *CUBLASLT, "--batch", "12", "--batches", "1").data
    for name in ("one row at a time", "4 batches of 3", "40 prefill tokens a pass"):
        for home in ("weights half in RAM", "everything on NVMe"):
            got = b.job("run", model, rows, *CUBLASLT, *SHAPES[name], "--percent", *ON_DEVICE[home].split()).data
            same(f"{name}, {home}", want, got)
    got = b.job("run", model, rows).data
    return "7 shapes and homes: the same bytes" + ("" if got == want else "; others than own matmuls give")


def stage_cublaslt(b):
    for model in (b.llama, b.opt):
        name = os.path.basename(model)
        for what, test in (("scores", lambda m: check_scores(b, m, [], CUBLASLT)),
                           ("greedy", lambda m: check_greedy(b, m, [], CUBLASLT)), ("bytes", lambda m: check_lt_bytes(b, m))):
            yield f"{name}, {what}", lambda t=test, m=model: with_library(b, lambda: t(m))


# ---- sanitizer -------------------------------------------------------------------------------------

def sanitize(b, tool, command, name):
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not found:
        raise Skip("no compute-sanitizer")
    if b.simulated:
        raise Skip("compute-sanitizer needs a card")
    command = command()
    if not os.path.exists(command[0]):
        raise Skip(f"{command[0]} is not built")
    code, text = run_binary(b, [found, "--tool", tool, "--error-exitcode", "99", "--target-processes", "all", *command])
    log = keep(b, f"{tool}-{name}", text)
    need("Device not supported" not in text, f"compute-sanitizer refuses the card; {log}")
    need(code == 0, f"exit {code}: {(re.findall(r'ERROR SUMMARY: .*', text) or ['?'])[-1]}; {log}")
    return (re.findall(r"ERROR SUMMARY: .*|RACECHECK SUMMARY: .*", text) or ["clean"])[-1]


def stage_sanitizer(b):
    at = os.path.join(ROOT, b.a.tests)

    def small_run(flags):
        source = b.place.rows("small.jsonl", trial.job_rows(4, 3, VOCAB, 60, (4, 8)))
        out = b.out("sanitized")
        return [b.a.sluice, "run", "-m", b.llama, "-i", source, "-o", out, "--progress", "none", "--device", b.a.device,
                "--batch", "2", "--batches", "2", *flags]
    runs = {"run, all streamed, h2o": ["--percent", *"0 0 0 0 0 0".split(), *H2O],
            "run, on the device, mixed": ["--percent", *"100 0 100 0 100 0".split(), "--kv-format", "mixed"]}
    for tool in ("memcheck", "initcheck", "synccheck", "racecheck"):
        for name in ("rows", "head", "decode", "matmul", "attend", "experts"):
            yield f"{tool}, {name}", lambda t=tool, n=name: sanitize(
                b, t, lambda: [os.path.join(at, "gpu", f"{n}_test")], n)
        for name, flags in runs.items():
            yield f"{tool}, {name}", lambda t=tool, n=name, f=flags: sanitize(b, t, lambda: small_run(f), n)


# ---- trouble and probe -----------------------------------------------------------------------------

def too_small(b):
    rows = greedy_rows(2, 8, 4)
    done = b.job("run", b.llama, rows, "--mem-device", "64K", code=4)
    fits = re.search(r"--mem-device (\S+?)\)?$", done.last())
    need(fits, f"no size that would fit in: {done.last()}")
    b.job("run", b.llama, rows, "--mem-device", fits[1])
    return f"64K is refused, {fits[1]}, which it names, does"


def cap_holds(b):
    rows = greedy_rows(8, 16, 5)
    b.job("run", b.llama, rows, "--mem-device", "6M")
    peak = b.summary()["peak_bytes"]["device"]
    need(0 < peak <= 6 << 20, f"{peak} bytes of device memory under --mem-device 6M")
    return f"{peak} bytes of device memory under --mem-device 6M"


def not_there(b):
    device = b.a.device.partition(":")[0] + (":none" if b.simulated else ":99")
    done = b.job("run", b.llama, greedy_rows(1, 4, 6), device=device, code=6)
    return done.error_line()


def hidden_card(b):
    """No card for the driver to see: the same as none."""
    if b.simulated:
        raise Skip("only a CUDA device can be hidden")
    source = b.place.rows("in.jsonl", greedy_rows(1, 4, 6))
    done = b.place.sluice("run", "-m", b.llama, "-i", source, "-o", b.out("hidden"), "--device", b.a.device,
                          CUDA_VISIBLE_DEVICES="")
    need(done.code == 6, f"exit {done.code}, not 6: {done.last()}")
    return done.error_line()


def lost(b):
    """At some command the device is lost: 6, and the same command goes on where it stopped. Only a simulator can."""
    if not b.simulated:
        raise Skip("only the simulated accelerator can be lost when asked to")
    rows = trial.job_rows(8, 11, VOCAB)
    want, out = b.job("run", b.llama, rows).data, b.out("lost")
    for at in (300, 400):
        source = b.place.rows("in.jsonl", rows)
        done = b.place.sluice("run", "-m", b.llama, "-i", source, "-o", out, "--progress", "none", "--device",
                              b.a.device.partition(":")[0] + f":1,50,{at}")
        need(done.code == 6, f"lost at command {at}: exit {done.code}, not 6: {done.last()}")
    same("resumed", want, b.job("run", b.llama, rows, out=out).data)
    return "lost twice: exit 6, and resumed to the same bytes"


def killed(b):
    """SIGKILL in the middle, three times, then to the end: the bytes of a run in one go."""
    rows = trial.job_rows(24, 9, VOCAB, 120, (60, 90))
    want = b.job("run", b.llama, rows, *H2O)
    out, n_cut = b.out("killed"), 0
    for part in (0.3, 0.5, 0.7):
        source = b.place.rows("in.jsonl", rows)
        p = b.place.start(["run", "-m", b.llama, "-i", source, "-o", out, "--device", b.a.device, "--progress", "none", *H2O],
                          SLUICE_SYNC_S="0.02")
        p.wait_for(lambda t=part * want.seconds, s=time.monotonic(): time.monotonic() - s > t, 60)
        n_cut += p.running()
        p.signal(signal.SIGKILL)
        p.end(b.left())
    same("resumed", want.data, b.job("run", b.llama, rows, *H2O, out=out).data)
    return f"{n_cut} of 3 runs were killed on their way: the same bytes"


def stage_trouble(b):
    for name, test in (("device memory too small", too_small), ("--mem-device is a cap", cap_holds),
                       ("a device that is not there", not_there), ("a card that is hidden", hidden_card),
                       ("a device that is lost", lost), ("SIGKILL and resume", killed)):
        yield name, lambda t=test: t(b)


def probe(b):
    path = b.place.at("machine.cfg")
    done = b.place.sluice("probe", "--device", b.a.device, "--offload-dir", b.a.work, "-o", path, limit_s=b.left())
    need(done.code == 0, f"exit {done.code}: {done.last()}")
    text = trial.read(path).decode()
    values = dict(re.findall(r"^(\w+) = (\S+)", text, re.M))
    missing = [k for k in ("h2d", "d2h", "device_read", "device_flops", "device_attend_read", "device_attend_flops", "device_memory")
               if float(values.get(k, 0)) <= 0]
    need(not missing, f"no {', '.join(missing)} in {path}")
    return ", ".join(f"{k} {float(v):.3g}" for k, v in values.items())


def stage_probe(b):
    yield "machine file", lambda: probe(b)


# ---- going through them ----------------------------------------------------------------------------

STAGES = {"ops": stage_ops, "engine": stage_engine, "placement": stage_placement, "cublaslt": stage_cublaslt,
          "sanitizer": stage_sanitizer, "trouble": stage_trouble, "probe": stage_probe}


def hash_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


class Results:
    """The CSV: rows of before, and one more at a time, on the disk before the next test begins."""

    def __init__(self, path, head, again):
        self.path, self.rows = path, {}
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        old = trial.read(path).decode()
        if old and not old.startswith(head):
            os.replace(path, path + ".old")  # of another binary or device
            print(f"check-gpu: {path} is of another binary or device: now {path}.old", flush=True)
            old = ""
        for row in csv.DictReader(x for x in old.splitlines() if not x.startswith("#")):
            if (row["stage"], row["test"]) not in again:
                self.rows[row["stage"], row["test"]] = row
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(head + "# date: " + datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M") + "\n")
            writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows.values())

    def add(self, row):
        self.rows[row["stage"], row["test"]] = row
        with open(self.path, "a", encoding="utf-8", newline="") as f:
            csv.DictWriter(f, COLUMNS, lineterminator="\n").writerow(row)
            f.flush()
            os.fsync(f.fileno())


def one(test):
    """(result, detail)."""
    try:
        return "passed", test()
    except Skip as e:
        return "skipped", str(e)
    except Failed as e:
        return "failed", str(e)
    except Exception as e:  # a test that dies is one failure; the others still run
        return "failed", f"{type(e).__name__}: {e}"


def there(b):
    """The device answers; else why not."""
    source = b.place.rows("in.jsonl", greedy_rows(1, 2, 1))
    done = b.place.sluice("run", "-m", b.llama, "-i", source, "-o", b.out("there"), "--device", b.a.device, limit_s=120)
    return None if done.code != NO_DEVICE else done.error_line() or done.last()


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default=os.environ.get("DEVICE", "cuda"), help="cuda, cuda:1, PATH.so:ARG [$DEVICE, else cuda]")
    p.add_argument("--sluice", default=os.path.join(ROOT, "sluice"))
    p.add_argument("--library", default=os.path.join(ROOT, "sluice-cuda.so"), help="what the tests of ops open")
    p.add_argument("--tests", default="build/tests", help="where the test binaries are [build/tests]")
    p.add_argument("--models", default=os.path.join(ROOT, "build/gpu/models"), help="tiny checkpoints")
    p.add_argument("--gguf", default=os.environ.get("SLUICE_TEST_GGUF", ""), help="SmolLM2-135M-Instruct [$SLUICE_TEST_GGUF]")
    p.add_argument("--work", default=os.path.join(ROOT, "build/gpu/work"))
    p.add_argument("-o", "--output", default=os.path.join(ROOT, "build/gpu/check.csv"))
    p.add_argument("--only", action="append", default=[], choices=list(STAGES), metavar="STAGE", help=" ".join(STAGES))
    p.add_argument("--match", default="", help="only tests that have this in their name")
    p.add_argument("--again", action="store_true", help="run what has a row, too")
    p.add_argument("--for", dest="seconds", default="", metavar="TIME", help="begin nothing after 9m, 500s [no end]")
    p.add_argument("--list", action="store_true", help="the tests, and what came of them")
    a = p.parse_args()
    if a.seconds:
        a.seconds = float(a.seconds.rstrip("ms")) * (60 if a.seconds.endswith("m") else 1)
    a.sluice, a.work, a.models = map(os.path.abspath, (a.sluice, a.work, a.models))
    return a


def verdict(results, left):
    counts = {k: sum(r["result"] == k for r in results.rows.values()) for k in ("passed", "failed", "skipped")}
    for r in results.rows.values():
        if r["result"] == "failed":
            print(f"FAILED {r['stage']}: {r['test']}: {r['detail'][:300]}")
    for why in sorted({r["detail"] for r in results.rows.values() if r["result"] == "skipped"}):
        print(f"skipped: {why}")
    print(f"{results.path}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped" +
          (f", {left} to do: the same command resumes" if left else ""))
    return MORE if left else 1 if counts["failed"] or not counts["passed"] else 0


def main():
    a = arguments()
    if not os.path.exists(a.sluice):
        sys.exit(f"check-gpu: {a.sluice} not found (make)")
    b = Bench(a)
    todo = [(stage, name, test) for stage in a.only or STAGES for name, test in STAGES[stage](b) if a.match in name]
    if a.list:
        print("\n".join(f"{stage}: {name}" for stage, name, _ in todo))
        return 0
    why = there(b)
    if why:
        print(f"check-gpu: no GPU here, nothing was checked: {why}")
        return NO_DEVICE
    kit = os.path.join(os.path.dirname(a.sluice), "bin/sluice")  # in a kit ./sluice is a script
    binaries = [p for p in (kit, a.sluice, a.library) if os.path.exists(p)]
    head = f"# device: {a.device}\n# binaries: {' '.join(map(hash_of, binaries))}\n"
    results = Results(a.output, head, {(s, n) for s, n, _ in todo} if a.again else ())
    for i, (stage, name, test) in enumerate(todo):
        if (stage, name) in results.rows:
            continue
        if b.left() <= 20:
            return verdict(results, sum((s, n) not in results.rows for s, n, _ in todo[i:]))
        start = time.monotonic()
        result, detail = one(test)
        seconds = time.monotonic() - start
        if result == "failed" and b.left() <= 1:  # it was cut short
            return verdict(results, sum((s, n) not in results.rows for s, n, _ in todo[i:]))
        results.add({"stage": stage, "test": name, "result": result, "seconds": f"{seconds:.1f}",
                     "detail": " ".join(detail.split())})
        print(f"  {stage}: {name}: {result}, {seconds:.1f} s: {detail[:160]}", flush=True)
    return verdict(results, 0)


if __name__ == "__main__":
    sys.exit(main())
