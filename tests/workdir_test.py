#!/usr/bin/env python3
"""One job, many workers: workdir_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Workers that share a job through --work-dir join late, are killed, stopped and started again, and differ in threads,
placement and memory. OUT always has the bytes of a run by one process, and the folder is gone at the end.
"""
import json
import os
import random
import re
import signal
import sys
import time

import nth
from trial import ALL_ON_DISK, OSS, Journal, difference, job_rows, pick, read, run_parts

BEAT_S = 0.1
PLACEMENTS = ([], ["--percent", "0", "100", "0", "100", "0", "100"], ALL_ON_DISK, ["--batch", "2", "--batches", "3"],
              ["--prefill-tokens", "40"], ["-t", "2"])


class Shared:
    """A job, its bytes when one process runs it, and workers of it."""

    def __init__(self, tally, place, rows, *flags, kind="run"):
        self.tally, self.place, self.flags, self.kind = tally, place, flags, kind
        alone, self.n_rows = place.fresh("alone"), len(rows)
        self.source = place.rows(os.path.basename(alone) + ".in", rows)
        self.alone = place.sluice(kind, "-m", place.model, "-i", self.source, "-o", alone, "--progress", "none", *flags)
        self.want, self.manifest = read(alone), json.loads(read(alone + ".job.json"))
        tally.check(self.want and self.alone.code in (0, 3), f"alone: exit {self.alone.code}: {self.alone.last()}")
        self.fresh()

    def fresh(self):
        self.out, self.workers = self.place.fresh(), []
        self.dir = self.out.replace(".jsonl", ".work")

    def start(self, *more, **env):
        args = [self.kind, "-m", self.place.model, "-i", self.source, "-o", self.out, "--work-dir", self.dir, "--progress",
                "none", "-t", "1", "--mem-ram", "96M", "--batch", "3", "--batches", "2", *self.flags, *more]
        p = self.place.start(args, **{"SLUICE_BEAT_S": str(BEAT_S), "SLUICE_SYNC_S": "0.05", **env})
        self.workers.append(p)
        return p

    def claims(self):
        try:
            return len(os.listdir(os.path.join(self.dir, "claims")))
        except FileNotFoundError:
            return 0

    def end(self, what, codes=(0,)):
        """All workers have ended; OUT is what one process writes, and nothing else is left."""
        done = [p.end(120) for p in self.workers]
        for d in done:
            self.tally.check(d.code in (-signal.SIGKILL, *codes), f"{what}: exit {d.code}: {d.err[-600:]!r}")
        got = read(self.out)
        self.tally.check(got == self.want, f"{what}: {difference(self.want, got)}")
        self.tally.check(not os.path.exists(self.dir), f"{what}: left in the folder: {self.left()}")
        temps = [f for f in os.listdir(self.place.folder) if ".tmp" in f]
        self.tally.check(not temps, f"{what}: left beside OUT: {temps}")
        manifest = json.loads(read(self.out + ".job.json") or b"{}")
        same = ("identity", "rows", "ok", "failed", "output_tokens", "out_bytes", "out_crc32c", "prompt_cap", "complete")
        for key in same:
            self.tally.check(manifest.get(key) == self.manifest[key],
                             f"{what}: OUT.job.json: {key} is {manifest.get(key)}, not {self.manifest[key]}")
        return done

    def names(self, process):
        """Of the worker that this process is."""
        files = os.listdir(self.dir) if os.path.isdir(self.dir) else ()
        return [f[:-7] for f in files if f.endswith(".worker") and f".{process.p.pid}." in f]

    def left(self):
        return [f for _, _, files in os.walk(self.dir) for f in files][:9]


def rows_done(done):
    found = re.search(r"has done (\d+) rows", done.err)
    return int(found.group(1)) if found else 0


def shares(tally, place, a):
    """Workers that differ in all that changes no byte; each does a part, none does a row of another."""
    job = Shared(tally, place, job_rows(60, 3, tokens=(20, 60)))
    for n, placement in enumerate(PLACEMENTS[:3]):
        job.start(*placement)
    done = job.end("three workers")
    each = [rows_done(d) for d in done]
    tally.check(sum(each) == job.n_rows, f"three workers did {each} of {job.n_rows} rows")
    job.fresh()
    job.start()
    job.end("one worker")
    again = job.start().end()
    tally.check(again.code == 0 and not os.path.exists(job.dir), f"the same command again: exit {again.code}: {again.last()}")
    os.mkdir(job.dir)  # with files of somebody else
    for name in ("job.json", "out", "prompt_cap"):
        place.write(os.path.join(job.dir, name), b"{}\n")
    again = job.start().end()
    tally.check(again.code == 0 and sorted(job.left()) == ["job.json", "out", "prompt_cap"], f"files of others: {again.code} {job.left()}")


def kills(tally, place, a):
    """Workers die and others join, at random moments."""
    job = Shared(tally, place, job_rows(40, 5, tokens=(20, 60)))
    n_rounds, twice, killed = pick(6, 40, 100), 0, 0
    total = n_rounds * job.n_rows
    for n in range(n_rounds):
        r = random.Random(1000 * a.seed + n)
        job.fresh()
        for _ in range(r.randint(1, 3)):
            job.start(*r.choice(PLACEMENTS))
        for _ in range(r.randint(1, 3)):
            victim = r.choice(job.workers)
            wanted = r.randrange(1, job.n_rows)
            victim.wait_for(lambda: job.claims() >= wanted, 0.1 + r.random())
            killed += victim.running()
            victim.signal(signal.SIGKILL)
            job.start(*r.choice(PLACEMENTS))
        dead = [p for p in job.workers if p.said("has done") is None and not p.running()]
        durable = sum(Journal(os.path.join(job.dir, f)).rows for p in dead for f in job.names(p))
        done = job.end(f"kills, round {n}")
        twice += max(durable + sum(map(rows_done, done)) - job.n_rows, 0)
    print(f"{killed} workers killed in {n_rounds} jobs of {job.n_rows} rows; {twice} of {total} rows were computed twice")


def logged_calls(job):
    """(call, pattern) of every change that a lone worker makes to the folder and to OUT, and how often."""
    log = job.place.at("calls.log")
    job.fresh()
    job.start("--io", "threads", **nth.env(log=log))
    job.end("logged")
    found = {}
    for line in read(log).decode().splitlines():
        call, _, path = line.split(" ", 3)[1:] if line.count(" ") >= 3 else ("", "", "")
        if call in ("create", "pwrite", "fdatasync", "fsync", "rename", "link", "unlink") and (job.dir in path or job.out in path):
            name = os.path.basename(path)
            kind = next((k for k in (".worker", ".journal", ".partial") if name.endswith(k)), None)
            pattern = "*" + (kind or ("/claims/*" if "/claims/" in path else "/" + name if name in ("job.json", "prompt_cap")
                                      else ".jsonl*" if job.out in path else ".tmp"))
            found[call, pattern] = found.get((call, pattern), 0) + 1
    return found


def points(tally, place, a):
    """A worker is killed before and after each kind of call on each kind of file; another one finishes the job."""
    job = Shared(tally, place, job_rows(12, 8, tokens=(10, 30)))
    found = logged_calls(job)
    wanted = {("link", "*/claims/*"), ("link", "*/job.json"), ("link", "*/prompt_cap"), ("pwrite", "*.worker"),
              ("fdatasync", "*.journal"), ("pwrite", "*.partial"), ("rename", "*.jsonl*"), ("unlink", "*.worker")}
    tally.check(wanted <= set(found), f"calls that the log lacks: {wanted - set(found)}")
    tries = [(act, call, n, pattern) for (call, pattern), most in sorted(found.items())
             for act in ("kill-before", "kill-after") for n in sorted({1, (most + 1) // 2, most})]
    random.Random(a.seed).shuffle(tries)
    met = 0
    for act, call, n, pattern in tries[:pick(10, len(tries))]:
        job.fresh()
        first = job.start("--io", "threads", **nth.env(f"{act},{call},{n},0,{pattern}"))
        met += first.end(60).code == -signal.SIGKILL
        job.start()
        job.end(f"{act} {call} {n} of {pattern}")
    tally.check(met > len(tries[:pick(10, len(tries))]) / 2, f"{met} of the workers were killed")


def stopped(tally, place, a):
    """A worker stands still until the others take it for dead, and wakes when they have its rows, or when OUT is there."""
    job = Shared(tally, place, job_rows(24, 9, tokens=(20, 60)))
    for n in range(pick(2, 10)):
        job.fresh()
        sleeper = job.start()
        sleeper.wait_for(lambda: job.claims() >= 4 + n)
        sleeper.signal(signal.SIGSTOP)
        other = job.start()
        if n % 2:
            other.wait_for(lambda: os.path.exists(job.out), 20)
            tally.check(os.path.exists(job.out), f"stopped, {n}: the rows of a worker that stands still are not done")
        else:
            other.wait_for(lambda: other.said("has done") or job.claims() > job.n_rows, 3)
        sleeper.signal(signal.SIGCONT)
        job.end(f"stopped, {n}")


def ended(tally, place, a):
    """A worker is stopped where it joins, plans or would make OUT, and goes on while or after another one ends the job."""
    job = Shared(tally, place, job_rows(12, 19, tokens=(10, 20)))
    plans, makes_out = "stop-after,create,1,0,*.work/*.partial", f"stop-before,link,1,0,*/claims/{job.n_rows:06}"
    job_gone, worker_gone = "unlink,1,0,*/job.json", "unlink,2,0,*.work/*.worker"
    claims_gone = "unlink,1,0,*.work/*.worker"  # the maker's own, behind the claims
    for joined, end in ((plans, job_gone), (plans, worker_gone), (plans, claims_gone), (makes_out, None), (makes_out, worker_gone),
                        ("stop-after,create,1,0,*.work/*.tmp", worker_gone), ("stop-after,mkdir,2,0,*.work*", None)):
        job.fresh()
        slow = job.start(**nth.env(joined))
        slow.wait_for(slow.stopped, 30)
        maker = job.start(**nth.env(f"stop-after,{end}") if end else {})
        maker.wait_for(maker.stopped if end else lambda: not maker.running(), 30)
        tally.check(slow.stopped() and (maker.stopped() or not end), f"{joined}, {end}: the moment was not met")
        slow.signal(signal.SIGCONT)
        slow.wait_for(lambda: not slow.running() or end == claims_gone and job.claims(), 60)
        maker.signal(signal.SIGCONT)
        job.end(f"{joined}, {end}")
    job.fresh()
    slow = job.start(**nth.env("stop-after,create,1,0,*.worker"))
    slow.wait_for(slow.stopped, 30)
    folder = os.path.join(job.dir, "claims")
    gone = place.sluice("run", "-m", place.model, "-i", place.at("none"), "-o", job.out, "--work-dir", job.dir, "--progress", "none")
    tally.check(gone.code == 5 and not os.path.exists(folder), f"no input: exit {gone.code}, {gone.last()}")
    slow.signal(signal.SIGCONT)
    job.end("one left without a job")


def late(tally, place, a):
    """One joins when every row is claimed; one leaves on a signal, and what it had is done without waiting."""
    job = Shared(tally, place, job_rows(16, 10, tokens=(40, 80)))
    first = job.start()
    first.wait_for(lambda: job.claims() >= job.n_rows)
    job.start()
    job.end("late")
    job.fresh()
    leaver = job.start(SLUICE_BEAT_S="5")
    leaver.wait_for(lambda: any(Journal(os.path.join(job.dir, f)).live_tokens for f in job.names(leaver)))
    leaver.signal(signal.SIGTERM)
    tally.check(leaver.end().code == 75, "a worker that is told to stop")
    start = time.monotonic()
    job.start(SLUICE_BEAT_S="5")
    heir = job.end("left", (0, 75))[-1]
    begun = re.search(r"resume: (\d+) of 16 rows are done, (\d+) partly done", heir.err)
    tally.check(begun and int(begun.group(2)) > 0, f"no row goes on where the other left it: {heir.err}")
    tally.check(time.monotonic() - start < 20, "the rows of a worker that left waited for its beats")


def faults(tally, place, a):
    """Network file systems forget handles; disks fill up; a line changes on the disk; a file system has no hard links."""
    job = Shared(tally, place, job_rows(16, 11, tokens=(20, 40)))
    job.start(**nth.env("fail,link,3,116,*/claims/*"))  # ESTALE
    job.end("ESTALE")
    job.fresh()
    full = job.start("--io", "threads", **nth.env("from,pwrite,2,28,*.partial"))
    tally.check(full.end().code == 9 and "No space left" in full.end().last(), f"a full disk: {full.end().last()}")
    job.start()
    job.end("a full disk", (0, 9))
    job.fresh()
    for _ in range(2):
        job.start(**nth.env(NTH_CLOCK="1"))  # the wall clock goes back and forth by a year
    job.end("clocks that jump")
    job.fresh()
    job.start(**nth.env("from,flock,1,38,*"))  # ENOSYS: Lustre without -o flock
    job.end("no locks")
    done = place.sluice("run", "-m", place.model, "-i", job.source, "-o", place.fresh(), **nth.env("from,flock,1,38,*.journal"))
    tally.check(done.code == 9 and "cannot be locked" in done.last(), f"no locks, alone: exit {done.code}: {done.last()}")
    job.fresh()
    none = job.start(**nth.env("from,link,1,1,*")).end()
    tally.check(none.code == 9 and "no hard links" in none.last(), f"no hard links: exit {none.code}: {none.last()}")
    job.fresh()
    victim = job.start()
    victim.wait_for(lambda: any(Journal(os.path.join(job.dir, f)).rows for f in job.names(victim)))
    victim.signal(signal.SIGKILL)
    victim.end()
    partial = next(os.path.join(job.dir, f) for f in os.listdir(job.dir) if f.endswith(".partial"))
    with open(partial, "r+b") as f:
        f.seek(100)
        f.write(b"#")
    done = job.start().end()
    tally.check(done.code == 7 and "have changed" in done.last(), f"a changed line: exit {done.code}: {done.last()}")
    job.start()
    job.end("a changed line", (0, 7))


def refusals(tally, place, a):
    """Another job, or what only one process can do."""
    job = Shared(tally, place, job_rows(8, 12), "--temperature", "0")
    first = job.start("--time-limit", "0.001s")
    tally.check(first.end().code == 75, f"--time-limit: {first.end().last()}")
    other = place.rows("other.jsonl", job_rows(8, 13))
    base = ["run", "-m", place.model, "-i", job.source, "-o", job.out, "--work-dir", job.dir, "--progress", "none"]
    for what, code, says, args in (
            ("another flag", 8, "temperature: was 0, is 1", [*base, "--temperature", "1"]),
            ("another input", 8, "input: ", [*base, "--temperature", "0", "-i", other]),
            ("another OUT", 8, "writes " + os.path.basename(job.out), [*base, "--temperature", "0", "-o", place.fresh()]),
            ("another policy", 8, "kv_policy", [*base, "--temperature", "0", "--kv-policy", "window", "--kv-budget", "64"]),
            ("--shard", 2, "does not go with --shard", [*base, "--shard", "0/2"]),
            ("--overwrite", 2, "does not go with --overwrite", [*base, "--overwrite"]),
            ("--retry-errors", 2, "does not go with --retry-errors", [*base, "--retry-errors"]),
            ("--order completion", 2, "does not go with --order completion", [*base, "--order", "completion"]),
            ("-i -", 2, "does not go with --input -", [*base, "-i", "-"])):
        done = place.sluice(*args)
        tally.check(done.code == code and says in done.last(), f"{what}: exit {done.code}: {done.last()}")
    with open(job.out, "w", encoding="utf-8") as f:
        f.write("mine\n")
    done = job.start().end()
    tally.check(done.code == 8 and read(job.out) == b"mine\n", f"a file at OUT: exit {done.code}: {done.last()}")
    os.unlink(job.out)
    job.start()
    job.end("after refusals", (0, 8, 75))


def caps(tally, place, a):
    """The first that plans says how long a prompt may be; who cannot hold that does not join."""
    rows = [{"prompt_token_ids": [3 + i] * n, "max_tokens": 4} for i, n in enumerate((40, 400, 60, 90))]
    large, small = ["--mem-ram", "200M"], ["--mem-ram", "16M", "--mem-disk", "0"]
    job = Shared(tally, place, rows, "--temperature", "0")
    first = job.start(*large, "--time-limit", "0.001s")
    tally.check(first.end().code == 75, f"large: {first.end().last()}")
    tally.check(read(os.path.join(job.dir, "prompt_cap")) == b"0\n", "the folder has the limit of the first")
    with open(os.path.join(job.dir, "prompt_cap"), "w", encoding="utf-8") as f:
        f.write("100\n")
    done = job.start(*large).end()
    found = [json.loads(x) for x in read(job.out).splitlines()]
    tally.check(done.code == 3 and [("error" in x) for x in found] == [False, True, False, False],
                f"the folder's limit: exit {done.code}: {done.last()}")


def hardware(tally, place, a):
    """Instruction sets give the same bytes under f32 with KV in f32, and are then not part of the job."""
    names = ["avx2", "avx512" if b"avx512_bf16" in read("/proc/cpuinfo") else "portable"]
    job = Shared(tally, place, job_rows(20, 14), "--compute", "f32", "--kv-format", "f32")
    tally.check("isa" not in job.manifest["identity"], "f32: the identity has an instruction set")
    for name in names:
        job.start("--isa", name)
    job.end(f"f32 on {names}")
    job = Shared(tally, place, job_rows(4, 14), "--isa", names[1])
    job.start("--time-limit", "0.001s").end()
    done = job.start("--isa", "avx2").end()
    tally.check(done.code == 8 and "isa" in done.last(), f"bf16 on two: exit {done.code}: {done.last()}")


def kinds(tally, place, a):
    """Rows that fail, twins, experts, eviction, scores."""
    rows = job_rows(20, 15)
    rows[3] = {"custom_id": "bad", "prompt": 7}
    rows[9]["custom_id"] = rows[11]["custom_id"] = "twin"
    rows[15]["max_tokens"] = 0
    job = Shared(tally, place, rows, "--kv-policy", "h2o", "--kv-budget", "48")
    for _ in range(3):
        job.start()
    job.end("bad rows", (3,))
    scores = [{"context_ids": row["prompt_token_ids"], "continuation_ids": [5, 6, 7 + i]} for i, row in enumerate(job_rows(20, 16))]
    job = Shared(tally, place, scores, kind="score")
    for _ in range(2):
        job.start()
    job.end("scores")
    place.model = place.write("oss.cfg", OSS.encode())
    job = Shared(tally, place, job_rows(16, 17, tokens=(30, 60)))
    first = job.start()
    first.wait_for(lambda: job.claims() > 8)
    first.signal(signal.SIGKILL)
    job.start()
    job.end("experts")


def status(tally, place, a):
    """What `status` says of a folder: rows, chunks, workers and what became of them."""
    job = Shared(tally, place, job_rows(30, 18, tokens=(40, 80)))
    worker = job.start()
    worker.wait_for(lambda: job.claims() >= 12)
    worker.signal(signal.SIGSTOP)
    told = json.loads(place.sluice("status", job.dir, "--json").out)
    tally.check(told["state"] == "running" and told["rows"]["total"] == 30 and told["chunks"]["total"] == 30
                and told["chunks"]["claimed"] >= 12 and [w["state"] for w in told["workers"]] == ["working"], f"running: {told}")
    worker.signal(signal.SIGCONT)
    worker.signal(signal.SIGTERM)
    worker.end()
    text = place.sluice("status", job.dir).out
    tally.check("stopped" in text and re.search(r"\bleft\b +\d+ ", text), f"left: {text}")
    job.start()
    job.end("status", (0, 75))
    done = place.sluice("status", job.out)
    tally.check(done.code == 0 and "complete" in done.out, f"complete: {done.out}")


def shards(tally, place, a):
    """--shard auto by the variables of each launcher; merge --missing prints what is to be run again."""
    source = place.rows("in.jsonl", job_rows(9, 19))
    parts = [place.at(f"part-{i}.jsonl") for i in range(9)]
    base = ["run", "-m", place.model, "-i", source, "--progress", "none"]
    for i, (shard, env) in enumerate((
            ("auto", {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "9", "SLURM_PROCID": "0",
                      "SLURM_NTASKS": "1"}),
            ("auto/9", {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "2"}),
            ("auto", {"SLURM_PROCID": "2", "SLURM_NTASKS": "9"}),
            ("auto", {"JOB_COMPLETION_INDEX": "3", "JOB_COMPLETIONS": "9"}),
            ("auto", {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "9"}), ("", {}),
            ("auto", {"SKYPILOT_NODE_RANK": "6", "SKYPILOT_NUM_NODES": "9"}))):
        if not shard:
            continue
        done = place.sluice(*base, "-o", parts[i], "--shard", shard, **env)
        got = json.loads(read(parts[i] + ".job.json") or b"{}").get("identity", {})
        tally.check(done.code == 0 and (got.get("shard"), got.get("shards")) == (str(i), "9"), f"{env}: {got}: {done.last()}")
    place.sluice(*base, "-o", parts[7], "--shard", "7/9", "--time-limit", "0.001s")  # begun, not complete
    done = place.sluice("merge", "--missing", *parts)
    tally.check(done.code == 0 and done.out == "5,7-8\n", f"--missing: exit {done.code}: {done.out!r} {done.last()}")
    place.sluice(*base, "-o", parts[0], "--shard", "0/2", "--overwrite")
    place.sluice(*base, "-o", parts[1], "--shard", "1/2", "--overwrite")
    for cap, warns in (("0", False), ("64", True)):
        text = read(parts[1] + ".job.json")
        place.write(os.path.basename(parts[1]) + ".job.json", re.sub(rb'"prompt_cap": \d+', b'"prompt_cap": ' + cap.encode(), text))
        done = place.sluice("merge", "-o", place.fresh(), *parts[:2])
        tally.check(done.code == 0 and ("different limits" in done.err) == warns, f"limits 0 and {cap}: exit {done.code}: {done.err}")
    done = place.sluice(*base, "-o", parts[5], "--shard", "auto")
    tally.check(done.code == 2 and "SLURM_ARRAY_TASK_ID" in done.last(), f"no launcher: {done.last()}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [shares, kills, points, stopped, ended, late, faults, refusals, caps, hardware, kinds, status, shards]))
