#!/usr/bin/env python3
"""The figures on a GPU: gpu.py [--device cuda[:i]] [--for 9m] [FIGURE...]

  streamed   OPT-13B (26 GB), 512 + 32 tokens, 8 GiB of device memory: sluice in bf16 and bf12 beside FlexGen, accelerate,
             DeepSpeed ZeRO-Inference and vLLM under the same cap
  h2o        the same model and cap, 512 + 128: full KV and H2O 0.2, in turns
  nvme       OPT-6.7B with its weights on NVMe; Llama-8B with KV on NVMe, and in RAM under --attn cpu and device; llama.cpp
  matmul     OPT-6.7B in bf16 all on the device: sluice's matmuls beside cuBLASLt's (--matmul cublaslt), in turns
  published  OPT-30B 512 + 32 under 16 GiB beside FlexGen's 7.32 tokens/s on a T4 (8.38 in 4 bits); OPT-6.7B all on the
             device, 2048 + 2048, full KV and H2O 0.2, beside H2O's 494, 919 and 1161 tokens/s on an A100
  ops        each op at the shapes of Llama-8B and OPT-13B, beside the card's roofs measured in the same run; the share of
             scores in a decode step; the cost of a launch (`sluice bench ops --device`): a row per op and shape

Each run adds a row to bench/results/gpu_FIGURE.csv, with command, machine and commit. Cases with a row of this commit
and machine are not run again (--again does), so the same command continues where the last one stopped. --for
limits the time (exit 75: more to do). Dummy weights. Peers run if their packages are installed (bench/peers/README.md); each try of
their flags is a row. A run of more than nine minutes is a row with status `timeout`.
Without a GPU: exit 6. --smoke runs everything in small on any device, without writing to bench/results.
"""
import argparse
import csv
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import conditions  # first: it knows where the peers' modules are
from conditions import TREE
import jobs
import models
import peer
from jobs import Engine

LIMIT_S, MORE, NO_DEVICE = 530, 75, 6
ROOM = 80e9  # disk bytes of the largest model, in one form
CACHE = "build/gpu/cache"
COLUMNS = ["figure", "case", "engine", "version", "weights", "turn", "status", "rows", "prompt_tokens", "new_tokens", "batch",
           "tok_s", "steady_tok_s", "seconds", "whole_s", "load_s", "passes", "predicted_s", "roof_fraction", "bound",
           "h2d_busy", "h2d_gb_s", "d2h_busy", "gpu_busy", "cpu_busy", "read_busy", "disk_gb_s", "peak_gpu_mib",
           "card_used_mib", "sm_mhz", "power_w", "pcie", "throttled", "peak_rss_mib", "device", "date", "commit", "machine", "command"]
OPS_COLUMNS = ["figure", "case", "engine", "version", "turn", "status", "op", "shape", "us", "us_min", "us_max", "gflop_s", "gb_s", "peak",
               "roof", "bound", "step", "roof_gflop_s", "roof_memory_gb_s", "sm_mhz",
               "power_w", "pcie", "throttled", "device", "date", "commit", "machine", "command"]
H2O = "--kv-policy h2o --kv-budget 0.2"
SMOKE = "build/gpu/smoke.cfg"
SMALL = "family = llama\ndim = 128\nlayers = 4\nheads = 4\nffn = 256\nvocab = 50000\ncontext = 512\n"


class Case:
    """One run of one engine: `rows` prompts of `prompt` ids, `new` tokens each. wants: flags that some devices reject."""

    def __init__(self, engine, rows, prompt, new, turns=1, wants=""):
        self.engine, self.rows, self.prompt, self.new, self.turns, self.wants = engine, rows, prompt, new, turns, wants


def sluice(a, case, model, weights, own, batch=0):
    """Flags as in the CSV: paths are relative to the tree, where everything runs."""
    binary = "" if a.sluice == os.path.join(TREE, "sluice") else f" --sluice {a.sluice}"
    path = SMOKE if model == a.small else f"configs/{model}.cfg"
    return Engine("sluice", f"--model {path} --format {weights} --batch {batch}{binary}",
                  f"--device {a.device} {own} --time-limit 8m", case=case)


def streamed(a):
    """All engines have the same cap: --mem-device, the allocator's fraction, gpu_memory_utilization."""
    model, cap = a.small or "opt-13b", "--mem-device 8G --mem-ram 48G"
    for weights in ("bf16", "bf12"):
        yield Case(sluice(a, f"{model} under 8 GiB", model, weights, cap), 96, 512, 32, 3)
    for batch, n, more in ((24, 2, "0 100 0 100 100 0"), (12, 4, "0 100 0 100 100 0"), (24, 2, "0 100 0 100 100 0 --cpu-cache-compute"),
                           (44, 1, "0 100 0 100 100 0"), (8, 1, "10 90 100 0 100 0"),
                           (48, 3, "0 100 0 100 100 0 --compress-weight --compress-cache")):
        e = Engine("flexgen", f"--model {model} --gpu-mib 8192 --batch {batch} --gpu-batches {n} --percent {more}",
                   case=f"{model} under 8 GiB")
        yield Case(e, batch * n, 512, 32)
    for batch, weights in ((8, 3000), (4, 5000)):
        e = Engine("accelerate_gpu", f"--model {model} --gpu-mib 8192 --weights-mib {weights} --batch {batch}",
                   case=f"{model} under 8 GiB")
        yield Case(e, batch, 512, 32)
    for batch in (8, 12):
        yield Case(Engine("deepspeed", f"--model {model} --gpu-mib 8192 --batch {batch}", case=f"{model} under 8 GiB"), batch, 512, 32)
    for gib in (20, 22):
        yield Case(Engine("vllm", f"--model {model} --gpu-mib 8192 --offload-gib {gib} --batch 96", case=f"{model} under 8 GiB"),
                   48, 512, 32)


def h2o(a):
    """Full and evicting runs alternate, so that a drift of the machine affects both."""
    model = a.small or "opt-13b"
    for turn in range(3):
        for name, flags in (("full KV", ""), ("H2O 0.2", H2O)):
            e = sluice(a, f"{model} under 8 GiB, {name}, turn {turn + 1}", model, "bf16", f"--mem-device 8G --mem-ram 48G {flags}")
            yield Case(e, 192, 512, 128)


def nvme(a):
    small, llama = a.small or "opt-6.7b", a.small or "llama-8b"
    yield Case(sluice(a, f"{small}, weights on NVMe", small, "bf16", "--percent 0 0 100 0 100 0"), 96, 512, 32)
    for name, flags in (("KV on NVMe", "--percent 100 0 0 0 100 0 --mem-disk 40G"),
                        ("KV in RAM, --attn device", "--percent 100 0 0 100 100 0 --attn device"),
                        ("KV in RAM, --attn cpu", "--percent 100 0 0 100 100 0 --attn cpu")):
        yield Case(sluice(a, f"{llama}, {name}", llama, "bf16", f"{flags} --mem-device 24G"), 256, 512, 64)
    for layers, kv in ((99, ""), (99, "--kv-cpu"), (16, "--kv-cpu")):
        e = Engine("llamacpp", f"--model llama-8b --format bf16 --gpu-layers {layers} {kv} --batch 64 --ubatch 2048",
                   case=f"{llama}, llama.cpp")
        yield Case(e, 64, 512, 64)


def matmul(a):
    """Few rows, limited by memory, and many, limited by tensor cores."""
    model = a.small or "opt-6.7b"
    for turn in range(3):
        for batch, prompt, new in ((16, 32, 128), (96, 512, 32)):
            for flags in ("--matmul own", "--matmul cublaslt"):
                e = sluice(a, f"{model} all on the device, batch {batch}, turn {turn + 1}", model, "bf16",
                           f"--percent 100 0 100 0 100 0 --batches 1 {flags}", batch)
                yield Case(e, batch, prompt, new, wants=flags)


def published(a):
    large, small = a.small or "opt-30b", a.small or "opt-6.7b-4k"
    for weights in ("bf16", "bf12", "q4"):
        e = sluice(a, f"{large} under 16 GiB, weights in RAM", large, weights, "--mem-device 16G --mem-ram 100G")
        yield Case(e, 144, 512, 32)
    for batch, name, flags in ((24, "full KV", ""), (24, "H2O 0.2", H2O), (64, "H2O 0.2", H2O)):  # full KV of 64 rows takes 150 GB
        e = sluice(a, f"{small} all on the device, batch {batch}, {name}", small, "bf16",
                   f"--percent 100 0 100 0 100 0 --batches 1 {flags}", batch)
        yield Case(e, batch, 2048, 2048)


class Ops(Engine):
    """`sluice bench ops`: many rows in one run."""

    def __init__(self, a, model):
        path = SMOKE if model == a.small else f"configs/{model}.cfg"
        super().__init__("sluice", f"--model {path}", case=model)
        self.binary, self.words = a.sluice, ["bench", "ops", "-m", path, "--device", a.device, "--json", "-q"]

    def label(self, best=None):
        return shlex.join(["sluice", *self.words])

    def measure(self, timeout_s):
        try:
            done = subprocess.run([self.binary, *self.words], stdout=subprocess.PIPE, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return [{"status": "timeout"}]
        if done.returncode:
            return [{"status": f"exit {done.returncode}"}]
        found = json.loads(done.stdout)
        same = {k: found[k] for k in ("version", "device", "roof_gflop_s", "roof_memory_gb_s")}
        return [{"status": "ok", **same, **{k: "" if v is None else v for k, v in row.items()}} for row in found["rows"]]


def ops(a):
    for model in (a.small,) if a.small else ("llama-8b", "opt-13b"):
        yield Case(Ops(a, model), 0, 0, 0)


FIGURES = {f.__name__: f for f in (streamed, h2o, nvme, matmul, published, ops)}


# ---- the machine, and the card while something runs ----

def smi(query):
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", "0"],
                              capture_output=True, text=True, timeout=20)
        return done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine(a):
    ram = int(conditions.proc("/proc/meminfo", "MemTotal").split()[0]) / conditions.MIB
    card = smi("name,driver_version") or a.device
    return f"{card}; {conditions.cpu_name()}; {len(os.sched_getaffinity(0))} cpus; {ram:.0f} GiB"


def commit():
    path = os.path.join(TREE, "COMMIT")  # of a kit without git history
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    return conditions.commit() + ("-dirty" if conditions.changes() else "")


class Card:
    """Samples nvidia-smi once a second: most memory in use by all processes, mean clock and power, the link, and whether
    the clock was throttled (power, heat)."""
    WATCHED = "memory.used,clocks.sm,power.draw,pcie.link.gen.current,pcie.link.width.current,clocks_throttle_reasons.active"
    HELD_DOWN = 0xec  # power cap, hardware slowdown, heat: of clocks_throttle_reasons

    def __enter__(self):
        self.seen, self.end = [], threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        while not self.end.wait(1.0):
            values = smi(self.WATCHED).split(", ")
            if len(values) != 6 or not values[0].isdigit():
                return
            self.seen.append(values)

    def columns(self):
        if not self.seen:
            return {}
        used, mhz, watt, gen, width, held = zip(*self.seen)
        mean = {k: [float(x) for x in v if re.fullmatch(r"[\d.]+", x)] for k, v in (("sm_mhz", mhz), ("power_w", watt))}
        return {"card_used_mib": max(map(int, used)), **{k: f"{sum(v) / len(v):.0f}" for k, v in mean.items() if v},
                "pcie": f"gen {gen[-1]} x{width[-1]}",
                "throttled": sum(int(x, 16) & self.HELD_DOWN != 0 for x in held if x.startswith("0x"))}

    def __exit__(self, *_):
        self.end.set()
        self.thread.join(30)


# ---- rows ----

class Results:
    """One CSV per figure; earlier rows are kept."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def path(self, figure):
        return os.path.join(self.folder, f"gpu_{figure}.csv")

    def done(self, figure):
        if not os.path.exists(self.path(figure)):
            return set()
        with open(self.path(figure), encoding="utf-8", newline="") as f:
            return {(r["case"], r["command"], r["turn"], r["commit"], r["machine"]) for r in csv.DictReader(f)}

    def add(self, rows):
        """Adds the rows of one run: all, or none."""
        figure = rows[0]["figure"]
        path, columns = self.path(figure), OPS_COLUMNS if figure == "ops" else COLUMNS
        fresh = not os.path.exists(path)
        with open(path, "a", encoding="utf-8", newline="") as f:
            w = csv.DictWriter(f, columns, restval="", extrasaction="ignore", lineterminator="\n")
            if fresh:
                w.writeheader()
            w.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
            f.flush()
            os.fsync(f.fileno())


def make_room(e):
    """Removes packs and checkpoints of earlier cases if the disk is too full for more."""
    words = e.flags
    model = os.path.basename(words[words.index("--model") + 1])
    form = words[words.index("--format") + 1] if "--format" in words else ""
    for path in glob.glob(os.path.join(CACHE, "*.pack*")) + glob.glob(os.path.join(models.PLACE, "*-dummy")):
        mine = os.path.basename(path).startswith(model) and re.search(rf"-({form}\.pack.*|dummy)$", path)
        if not mine and shutil.disk_usage(".").free < ROOM:
            peer.say(f"bench-gpu: {path} goes, to make room")
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def measure(case, work, left):
    """The rows of a run. One of a whole job: without (`seconds`) and with (`whole_s`) loading."""
    e = case.engine
    if isinstance(e, Ops):
        with Card() as card:
            rows = e.measure(left)
        return [{**row, **card.columns()} for row in rows]
    make_room(e)
    job = jobs.job_write(os.path.join(work, "job.jsonl"), jobs.random_ids(case.rows, case.prompt), case.new)
    with Card() as card:
        row = e.run(job, warm=e.name not in ("sluice", "llamacpp"), timeout_s=left)
    row.update(card.columns())
    if row["status"] == "ok":
        row["tok_s"] = row.get("done_tokens", row["new_tokens"]) / row["seconds"]
    return [row]


def here(a, e):
    """Whether the engine can run, and its message."""
    return (os.path.exists(a.sluice), a.sluice) if e.name == "sluice" else e.check()


def there(a, flags=""):
    """None if the device accepts these flags, else the message of sluice."""
    with tempfile.TemporaryDirectory() as work:
        job = jobs.job_write(os.path.join(work, "job.jsonl"), [[5, 6, 7]], 2)
        done = subprocess.run([a.sluice, "run", "-m", SMOKE, "-i", job, "-o", os.path.join(work, "out.jsonl"), "--device",
                               a.device, "-q", *flags.split()], capture_output=True, text=True)
    return None if done.returncode != NO_DEVICE else done.stderr.strip().splitlines()[-1]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{' '.join(FIGURES)} [all]")
    p.add_argument("--device", default=os.environ.get("DEVICE", "cuda"))
    p.add_argument("--sluice", default=os.path.join(TREE, "sluice"))
    p.add_argument("--engines", default="", help="names with commas [all that are installed]")
    p.add_argument("--match", default="", help="only cases whose name or flags have this in them")
    p.add_argument("--for", dest="seconds", default="", metavar="TIME", help="start no run after this time: 9m, 500s [no limit]")
    p.add_argument("--again", action="store_true")
    p.add_argument("--smoke", action="store_true", help="try the script: sluice alone on tiny jobs, into build/gpu/smoke")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    if set(a.figures) - set(FIGURES):
        p.error(f"no such figure: {' '.join(set(a.figures) - set(FIGURES))}")
    a.seconds = float(a.seconds.rstrip("ms")) * (60 if a.seconds.endswith("m") else 1) if a.seconds else None
    a.sluice, a.small = os.path.abspath(a.sluice), "smoke" if a.smoke else ""
    return a


def smaller(case):
    """A job of seconds, for --smoke."""
    case.rows, case.prompt, case.new = min(case.rows, 6), min(case.prompt, 24), min(case.new, 6)
    words = case.engine.own
    if "--mem-ram" in words:
        words[words.index("--mem-ram") + 1] = "1G"
    if "--mem-device" in words:
        words[words.index("--mem-device") + 1] = "200M"
    return case


def main():
    a = arguments()
    os.chdir(TREE)
    os.makedirs(CACHE, exist_ok=True)
    os.environ["SLUICE_CACHE_DIR"] = os.path.abspath(CACHE)
    with open(SMOKE, "w", encoding="utf-8") as f:
        f.write(SMALL)
    cases = [(name, case) for name in a.figures or FIGURES for case in FIGURES[name](a)
             if (case.engine.name in a.engines.split(",") or not a.engines and (not a.smoke or case.engine.name == "sluice"))
             and a.match in f"{case.engine.case} {case.engine.label()}"]
    if a.list:
        print("\n".join(f"{name}: {case.engine.case}: {case.rows} x ({case.prompt} + {case.new}): {case.engine.label()}"
                        for name, case in cases))
        return 0
    why = there(a)
    if why:
        print(f"bench-gpu: no GPU here, nothing was measured: {why}")
        return NO_DEVICE
    results = Results(os.path.join(TREE, "build/gpu/smoke" if a.smoke else "bench/results"))
    stop = time.monotonic() + a.seconds if a.seconds else None
    known, told, absent, failed = (commit(), machine(a)), {}, set(), 0
    lacks = {"": None}  # by flags: why the device rejects them
    os.makedirs(models.PLACE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models.PLACE) as work:
        for name, case in cases:
            e = smaller(case).engine if a.smoke else case.engine
            label = e.label()
            for turn in range(1, case.turns + 1):
                if not a.again and (e.case, label, str(turn), *known) in results.done(name) or e.name in absent:
                    continue
                left = LIMIT_S if stop is None else min(LIMIT_S, stop - time.monotonic())
                if left < 30:
                    print("bench-gpu: time is up; the same command resumes")
                    return MORE
                if e.name not in told:
                    told[e.name], said = here(a, e)
                    if not told[e.name]:
                        absent.add(e.name)
                        peer.say(f"bench-gpu: left out: {said}")
                        break
                if case.wants not in lacks:
                    lacks[case.wants] = there(a, case.wants)
                    if lacks[case.wants]:
                        peer.say(f"bench-gpu: left out: {lacks[case.wants]}")
                if lacks[case.wants]:
                    break
                rows = measure(case, work, left)
                row = rows[0]
                if row["status"] == "timeout" and left < LIMIT_S:
                    print("bench-gpu: time is up within a run; the same command resumes")
                    return MORE
                failed += row["status"] != "ok"
                same = {"figure": name, "case": e.case, "engine": jobs.ENGINES[e.name], "turn": turn, "date": conditions.now(),
                        "commit": known[0], "machine": known[1], "command": label}
                results.add([{**r, **same} for r in rows])
                got = f"{len(rows)} rows" if name == "ops" else f"{row.get('tok_s', 0):.4g} tok/s"
                peer.say(f"bench-gpu: {name}: {e.case}: {label}: {row['status']}, {got}")
    print(f"bench-gpu: {results.folder}/gpu_*.csv" + (f"; {failed} runs failed" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
