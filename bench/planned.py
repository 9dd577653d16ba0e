"""Shared by predict.py, choice.py and hand.py: jobs of sluice alone; each run is a process whose summary is a row.

Owns: models and jobs (the same on every machine, from bundled data and seeds), packs made before measurements,
runs and their limits, the CSV that continues after a stop. Refuses: choosing what to compare.
Note: --quick runs the same code in small (a tiny model, a busy machine, a CSV under build/) to test a script;
its figures are meaningless. Standard library only.
"""
import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import conditions  # first: it knows where the peers' modules are
from conditions import HERE, ME, TREE
import jobs
import peer

PLACE = os.path.join(TREE, "build/planned")
CACHE = os.path.join(PLACE, "cache")  # what sluice measures: no run before the benchmark's own corrects a prediction
OWN = dict(os.environ)  # without CACHE: tests/model.sh keeps the model in the user's cache
QUICK = """family = llama
dim = 256
layers = 8
heads = 4
ffn = 1024
vocab = 50000
context = 2048
"""
SMALL = "smollm2"  # with a tokenizer and real weights
WIKITEXT = os.path.join(TREE, "tests/goldens/wikitext-sample.txt")
CHATS = os.path.join(TREE, "tests/data/prompts.jsonl")
INTERRUPTED, NO_ROOM, MORE = 75, 4, 75
LANES = {"nvme-read": "read", "nvme-write": "write", "cpu": "cpu"}
COLUMNS = ["kind", "case", "turn", "status", "model", "format", "rows", "batch", "batches", "homes", "resident", "prefill_tokens",
           "prompt_tokens", "output_tokens", "predicted_s", "elapsed_s", "ratio", "predicted_passes", "passes",
           "predicted_read_gb", "read_gb", "predicted_write_gb", "write_gb", "predicted_read_s", "read_s", "predicted_write_s",
           "write_s", "predicted_cpu_s", "cpu_s", "stall_s", "predicted_bound", "bound", "startup_s", "peak_ram_mib", "corrected", "cause",
           "busy", "idle", "date", "flags"]


class Job:
    """Rows for one model in one format. prompt: ids per row, a number or (least, most); "chat", "text" (with
    `chars` characters). new: tokens per row, likewise. shared: ids at the start of all prompts. kind: run,
    score (prompt is context, new continuation), resume (a run that was stopped half way), ends (end-of-text ends a row before
    `new`), reasons (a row ends with its paragraph, after 200 tokens at the earliest).
    Weights are encoded only if the flags say so: a file made by one run would change the plans of later runs."""

    def __init__(self, name, model, form, rows, prompt, new, flags, kind="run", chars=0, shared=0, vocab=0):
        self.name, self.model, self.form, self.kind = name, model, form, kind
        self.rows, self.prompt, self.new, self.chars, self.shared = rows, prompt, new, chars, shared
        self.vocab = vocab or jobs.VOCAB
        self.flags = shlex.split(flags)
        if "--weights-codec" not in self.flags:
            self.flags += ["--weights-codec", "none"]

    def line(self):
        """The line of --list."""
        return (f"{self.name}: {self.model} {self.form}, {self.rows} rows of {self.prompt} + {self.new}, {self.kind}: "
                f"{' '.join(self.flags)}")


# ---- rows, the same on every machine ----

def drawn(draw, span):
    return draw.randint(*span) if isinstance(span, tuple) else span


def row_of(job, i, draw, prefix, source):
    new = drawn(draw, job.new)
    same = {"max_tokens": new, "temperature": 0, "ignore_eos": True}
    if job.kind == "ends":
        same = {"max_tokens": new, "temperature": 0.7, "seed": i}
    if job.kind == "reasons":
        same = {"max_tokens": new, "temperature": 1, "seed": i, "min_tokens": min(200, new), "stop": ["\n\n"]}
    if job.prompt == "chat":
        return {"custom_id": f"row-{i}", "messages": source[i % len(source)], **same}
    if job.prompt == "text":
        at = draw.randrange(len(source) - job.chars)
        return {"custom_id": f"row-{i}", "prompt": source[at:at + job.chars], **same}
    ids = prefix + [draw.randrange(jobs.FIRST_IDS, job.vocab) for _ in range(drawn(draw, job.prompt))]
    if job.kind == "score":
        more = [draw.randrange(jobs.FIRST_IDS, job.vocab) for _ in range(new)]
        return {"custom_id": f"row-{i}", "context_ids": ids, "continuation_ids": more}
    return {"custom_id": f"row-{i}", "prompt_token_ids": ids, **same}


def rows_of(job):
    draw, source = random.Random(f"{job.name} {job.rows}"), None
    prefix = [draw.randrange(jobs.FIRST_IDS, job.vocab) for _ in range(job.shared)]
    if job.prompt == "chat":
        with open(CHATS, encoding="utf-8") as f:
            source = [json.loads(line)["body"]["messages"] for line in f]
    if job.prompt == "text":
        with open(WIKITEXT, encoding="utf-8") as f:
            source = f.read()
    return [row_of(job, i, draw, prefix, source) for i in range(job.rows)]


def in_turn(turn, things):
    """The order of a turn: there and back, because the first run of a case is often slower than the next."""
    return list(things)[::1 if turn % 2 else -1]


# ---- figures of a run ----

def figures(s):
    """The columns of a summary."""
    plan, said = s["plan"], s["plan"]["predicted"]
    row = {"batch": plan["batch"], "batches": plan["batches"], "resident": plan["weights_resident"],
           "homes": "/".join(plan["tiers"][k] for k in ("weights", "kv", "hidden")), "prefill_tokens": plan["prefill_tokens"],
           "prompt_tokens": s["prompt_tokens"], "output_tokens": s["output_tokens"], "predicted_s": s["predicted_elapsed_s"],
           "elapsed_s": s["elapsed_s"], "predicted_passes": said["passes"], "passes": s["passes"], "stall_s": s["stall_s"],
           "predicted_bound": said["bound"], "bound": s["bound"], "startup_s": s["startup_s"],
           "peak_ram_mib": s["peak_bytes"]["ram"] >> 20, "ratio": s["predicted_elapsed_s"] / max(s["elapsed_s"], 1e-9)}
    row["corrected"] = f"{plan['corrected']['times']:.3f} of {plan['corrected']['runs']}"
    for lane in s["lanes"]:
        short = LANES.get(lane["name"])
        if short:
            row[f"predicted_{short}_s"], row[f"{short}_s"] = lane["predicted_s"], lane["busy_s"]
            row[f"predicted_{short}_gb"], row[f"{short}_gb"] = lane["predicted_bytes"] / 1e9, lane["bytes"] / 1e9
    return row


class Bench:
    """The state of a benchmark: flags, folder of jobs, CSV, and the end of the allowed time."""

    def __init__(self, a, work):
        self.a, self.work, self.packs, self.files = a, work, {}, {}
        self.under = []  # the command that runs sluice, if it runs under limits
        self.end = time.monotonic() + a.seconds if a.seconds else None
        self.table = None

    def open(self, **more):
        a = self.a
        head = {"table": a.table, "command": conditions.command_line(), "commit": a.commit,
                **({"dirty": "yes"} if a.is_dirty else {}), "binary_sha256": a.binary, "date": conditions.now(),
                **conditions.machine_lines(a.sluice, a.cpu_name, PLACE), "turns": a.turns, **more}
        if a.note:
            head["note"] = a.note
        self.table = conditions.Kept(a.output, head, COLUMNS, a.again, a.any_binary)

    # ---- before the clock ----

    def pack(self, job):
        """The pack of a job's model; made if missing or older than the binary, then dropped from the page cache, so
        that no run reads it from there."""
        key = "quick" if self.a.quick else job.model, job.form
        if key in self.packs:
            return self.packs[key]
        if self.a.quick:
            source = os.path.join(PLACE, "quick.cfg")
            with open(source, "w", encoding="utf-8") as f:
                f.write(QUICK)
        elif job.model == SMALL:
            source = peer.run([os.path.join(TREE, "tests/model.sh")], stdout=subprocess.PIPE, text=True, env=OWN).stdout.strip()
        else:
            source = os.path.join(TREE, "configs", f"{job.model}.cfg")
        path = os.path.join(PLACE, f"{key[0]}-{job.form}.pack")
        if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(self.a.sluice):
            peer.say(f"{ME}: writing {path}")
            for old in (path, path + ".zst"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
            peer.run([self.a.sluice, "pack", source, "-o", path, "--weights", job.form, "-q"])
            jobs.drop_cache([path])
        self.packs[key] = path
        return path

    def words(self, job, out):
        """The command of a job and its OUT. The plan is kept, because the plan made before step 0 is judged."""
        verb = "score" if job.kind == "score" else "run"
        return [*self.under, self.a.sluice, verb, "-m", self.pack(job), "-i", self.file(job), "-o", out, "--threads", str(self.a.threads),
                "--offload-dir", self.work, "--progress", "none", "--replan", "off", "-q", *job.flags]

    def file(self, job):
        if job.name not in self.files:
            self.files[job.name] = os.path.join(self.work, f"{len(self.files)}.jsonl")
            with open(self.files[job.name], "w", encoding="utf-8") as f:
                f.writelines(json.dumps(row) + "\n" for row in rows_of(job))
        return self.files[job.name]

    def dry(self, job, *flags):
        """Only plans a job: exit code and messages. Makes the first-use measurements."""
        out = os.path.join(self.work, "dry.jsonl")
        words = [w for w in self.words(job, out) if w != "-q"] + ["--dry-run", "-v", *flags]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
        for name in os.listdir(self.work):
            if name.startswith("dry.jsonl"):
                os.unlink(os.path.join(self.work, name))
        return done.returncode, done.stderr

    def frozen(self, job, *flags):
        """The flags that freeze the plan for `flags`; None if it does not fit."""
        code, said = self.dry(job, *flags)
        if code == NO_ROOM:
            return None
        if code or "to repeat this plan: " not in said:
            sys.exit(f"{ME}: {job.name}: {shlex.join(flags)}: exit {code}: {said.strip().splitlines()[-1:]}")
        return shlex.split(said.split("to repeat this plan: ")[1].splitlines()[0])

    def half(self, job):
        """OUT's files of a job stopped near its half, made once; searches the time limit."""
        kept = os.path.join(self.work, f"half-{os.path.basename(self.file(job))}")
        if os.path.isdir(kept):
            return kept
        limit_s, total = 2.0, sum(row["max_tokens"] for row in rows_of(job))
        most_s = None  # then the job was beyond its half
        for _ in range(12):
            shutil.rmtree(kept, ignore_errors=True)  # existing files would be resumed
            os.makedirs(kept)
            out = os.path.join(kept, "out.jsonl")
            code = subprocess.run([*self.words(job, out), "--time-limit", f"{limit_s:.2f}"], stderr=subprocess.DEVNULL).returncode
            if code not in (0, INTERRUPTED):
                sys.exit(f"{ME}: {job.name}: exit {code}")
            told = subprocess.run([self.a.sluice, "status", out, "--json"], stdout=subprocess.PIPE, text=True, check=True)
            seen = json.loads(told.stdout)
            share = (seen["output_tokens"] + seen["live_tokens"]) / total
            if code == INTERRUPTED and 0.3 <= share <= 0.8:
                return kept
            if code == INTERRUPTED and share < 0.3:
                limit_s = (limit_s + most_s) / 2 if most_s else limit_s * 2
            else:
                most_s, limit_s = limit_s, limit_s * 0.7
        sys.exit(f"{ME}: {job.name}: no time limit stops the job near half way")

    # ---- runs ----

    def is_done(self, **key):
        return any(all(r[k] == str(v) for k, v in key.items()) for r in self.table.rows)

    def time_is_up(self):
        return self.end is not None and time.monotonic() >= self.end

    def once(self, job, flags):
        """One run: its summary's columns, or a status with the reason for its end."""
        place = tempfile.mkdtemp(dir=self.work)
        try:
            if job.kind == "resume":
                shutil.copytree(self.half(job), place, dirs_exist_ok=True)
            summary = os.path.join(place, "summary.json")
            words = [*self.words(job, os.path.join(place, "out.jsonl")), *flags, "--summary", summary]
            try:
                code = subprocess.run(words, timeout=self.a.timeout).returncode
            except subprocess.TimeoutExpired:
                return {"status": "timeout"}
            if code:
                return {"status": "does not fit" if code == NO_ROOM else f"exit {code}"}
            with open(summary, encoding="utf-8") as f:
                return {"status": "ok", **figures(json.load(f))}
        finally:
            shutil.rmtree(place)

    def measure(self, job, turn, case, label, flags=(), **more):
        """The row of a run, after the check for an idle machine; None if the row exists."""
        if self.is_done(case=case, turn=turn, flags=label):
            return None
        a = self.a
        busy = conditions.busy_share(0.1) if a.quick else conditions.wait_idle(a.busy_max, a.idle_wait, not a.allow_busy)
        row = {"kind": "run", "case": case, "turn": turn, "model": "quick" if a.quick else job.model, "format": job.form, "rows": job.rows,
               "flags": label, "busy": f"{busy:.3f}", "idle": "yes" if busy <= a.busy_max else "no",
               "date": conditions.now(), **self.once(job, flags), **more}
        if row["status"] == "ok" and "cause" not in row:
            row["cause"] = cause(row)
        self.table.add(row)
        peer.say(f"{ME}: turn {turn} of {a.turns}: {case}: {label}: {row['status']}" +
                 (f", predicted {row['predicted_s']:.1f} s, took {row['elapsed_s']:.1f} s" if "elapsed_s" in row else ""))
        return row


# ---- why a prediction was off ----

OFF = 0.12


def cause(r):
    """What differs from the prediction by more than OFF: passes, bytes, or the lane with most of the
    difference in seconds; if none, lanes waited for each other in another way."""
    gap = r["elapsed_s"] - r["predicted_s"]
    if abs(r["ratio"] - 1) <= OFF:
        return ""
    if abs(r["passes"] / max(r["predicted_passes"], 1) - 1) > 0.03:
        return f"passes: {r['predicted_passes']:.0f} predicted, {r['passes']:.0f} made"
    for lane, short in LANES.items():
        said, moved = r.get(f"predicted_{short}_gb", 0), r.get(f"{short}_gb", 0)
        counts = max(r.get(f"{short}_s", 0), r.get(f"predicted_{short}_s", 0)) > 0.1 * r["elapsed_s"]
        if counts and abs(said - moved) > 0.05 * max(said, moved):
            return f"bytes of {lane}: {said:.2f} GB predicted, {moved:.2f} GB moved"
    more = {lane: r.get(f"{short}_s", 0) - r.get(f"predicted_{short}_s", 0) for lane, short in LANES.items()}
    first = sorted(more, key=lambda lane: (lane != r["bound"], lane != r["predicted_bound"], -abs(more[lane])))
    for lane in first:
        if more[lane] * gap > 0 and abs(more[lane]) >= abs(gap) / 2:
            short = LANES[lane]
            return f"rate of {lane}: {r[f'predicted_{short}_s']:.2f} s predicted, {r[f'{short}_s']:.2f} s busy"
    return f"waits: lanes as predicted, {r['stall_s']:.2f} s of {r['elapsed_s']:.2f} s stalled"


# ---- the command line ----

def arguments(table, about, turns):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", help=f"[bench/results/{table}-CPU.csv]")
    p.add_argument("--cpu-name", default=conditions.cpu_name(), help="name of the CPU [%(default)s]")
    p.add_argument("--turns", type=int, default=turns, help="[%(default)s]")
    p.add_argument("--case", action="append", default=[], metavar="TEXT", help="only cases with this in their name; may be given again")
    p.add_argument("--first", type=int, default=0, metavar="N", help="only the first N cases; the list begins with one of each kind")
    p.add_argument("--for", dest="seconds", type=float, default=0, metavar="SECONDS", help="start no run after this time; exit 75")
    p.add_argument("--again", action="store_true", help="start the CSV over")
    p.add_argument("--any-binary", action="store_true", help="continue a CSV of another binary; the CSV records both")
    p.add_argument("--list", action="store_true", help="print the cases and end")
    p.add_argument("--quick", action="store_true", help="try the script in seconds, into build/planned")
    p.add_argument("--timeout", type=int, default=600, help="seconds of one run [%(default)s]")
    conditions.arguments(p)
    return p


def asked(p, table, listed, quick):
    """The flags with defaults filled in, and the selected cases; --list prints the cases and exits."""
    a = p.parse_args()
    a.table = table
    name = os.path.join(PLACE, f"{table}-quick.csv") if a.quick else \
        os.path.join(HERE, "results", f"{table}-{conditions.slug(a.cpu_name)}.csv")
    a.output = a.output or name
    if a.quick:
        a.again, a.allow_busy, a.dirty, a.turns = True, True, True, 1
    cases = [c for c in (quick() if a.quick else listed()) if not a.case or any(text in c.name for text in a.case)]
    cases = cases[:a.first] if a.first else cases
    if a.list:
        print("\n".join(c.line() for c in cases))
        sys.exit(0)
    return a, cases


def run(a, measured, told):
    """Builds, measures, prints; returns the exit code. measured(bench) opens the CSV and is True when time was up."""
    conditions.clean(a)
    if a.again:
        shutil.rmtree(CACHE, ignore_errors=True)
    os.makedirs(CACHE, exist_ok=True)
    os.environ["SLUICE_CACHE_DIR"] = CACHE
    with tempfile.TemporaryDirectory(dir=PLACE) as work:
        bench = Bench(a, work)
        over = measured(bench)
        bench.table.close()
        print("\n".join(told(bench.table.rows)))
    peer.say(f"{ME}: {a.output}" + ("; time is up: the same command resumes" if over else ""))
    return MORE if over else 0
