#!/usr/bin/env python3
"""Killed at every point: kill_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

SIGKILL before, after and in the middle of every write, and before and after every fsync, rename, ftruncate, unlink,
mkdir and fallocate of OUT, its companions, packs and scratch: the points are those that a run made (tests/tools/nth.c),
not a list. Each resume, placed otherwise, ends with the undisturbed bytes. What was lost is counted in tokens
against the promise: those of the last SYNC_S, or of one pass. Standard library only.
"""
import json
import os
import random
import signal
import sys
import time

import nth
import trial
from trial import ALL_ON_DISK, NIGHT, Journal, difference, from_full, pick, read, remove_job

CALLS = ("create", "write", "pwrite", "fsync", "fdatasync", "rename", "ftruncate", "unlink", "mkdir", "fallocate")
STALL_S = 0.08  # of a busy machine
LIVE = 6  # rows of batches 2 x 3: a pass gives each of them one token at most
H2O = ["--kv-policy", "h2o", "--kv-budget", "32"]
# Where KV and hidden states lie, under which policy and format; the rest of the flags are Job's.
SETTINGS = {
    "full KV in RAM": ["--percent", "0", "100", "0", "100", "0", "100"],
    "KV and hidden states on NVMe": ALL_ON_DISK,
    "h2o": [*ALL_ON_DISK, *H2O],
    "mixed": [*ALL_ON_DISK, "--kv-format", "mixed"],
    "sampling by flags": ["--percent", "0", "0", "0", "100", "0", "0", "--temperature", "0.8", "--seed", "4"],
    "order of completion": [*ALL_ON_DISK, "--order", "completion"],
    "first use": [*ALL_ON_DISK, "--weights-codec", "zstd"],
    "errors retried": [*ALL_ON_DISK, "--retry-errors"],
}
# What may change between two runs of a job.
PLACEMENTS = ([], ["--percent", "0", "100", "0", "100", "0", "100"], ALL_ON_DISK, ["--batch", "4", "--batches", "1"],
              ["--prefill-tokens", "40"], ["-t", "3", "--io", "auto"], ["--percent", "0", "0", "0", "0", "0", "100"],
              ["--batch", "1", "--batches", "5"])


class Job:
    """One setting whose undisturbed bytes, calls and commits are known."""

    def __init__(self, tally, place, name):
        self.place, self.name, self.cache = place, name, place.at("cache")
        rows = nth.rows(10, 3)
        if name == "sampling by flags":
            rows = [{k: v for k, v in row.items() if k not in ("temperature", "seed")} for row in rows]
        if name == "errors retried":
            rows[4]["max_tokens"] = rows[7]["max_tokens"] = 0  # they fail again each time
        self.source = place.rows("in.jsonl", rows)
        self.retried = place.at("jobs/before.jsonl") if name == "errors retried" else None
        self.first_use = name == "first use"
        self.code = 3 if self.retried else 0
        if self.retried:
            nth.run(place, self.args(self.retried), **nth.EVERY_PASS)
        self.run(place.fresh())
        out = self.fresh()
        done = self.run(out)
        self.log, self.want = done.log, self.rows(out)
        tally.check(done.code == self.code and self.want, f"{name}: exit {done.code}: {done.err[-300:]!r}")
        self.commits = self.tokens_by_commit(tally)

    def rows(self, out):
        """OUT; with --order completion its rows are the same, their order is not."""
        data = read(out)
        return b"".join(sorted(data.splitlines(True))) if self.name == "order of completion" else data

    def args(self, out, *more):
        return ["run", "-m", self.place.model, "-i", self.source, "-o", out, "--offload-dir", self.place.at("offload"),
                "--mem-ram", "64M", "--progress", "none", "-t", "1", "--io", "threads", "--batch", "3", "--batches",
                "2", *SETTINGS[self.name], *more]

    def fresh(self):
        """What stood there before the first run."""
        self.place.n += 1
        out = self.place.at(f"jobs/out-{self.place.n}.jsonl")
        if self.retried:
            trial.copy_job(self.retried, out)
        for f in os.listdir(self.cache) if self.first_use else ():
            if ".pack" in f:
                os.unlink(os.path.join(self.cache, f))
        return out

    def run(self, out, act="", *more, **env):
        return nth.run(self.place, self.args(out, *more), act, **{**nth.EVERY_PASS, **env})

    def tokens_by_commit(self, tally):
        """Tokens that stand committed after each group of the journal; the last: all of the job."""
        if self.retried:
            return None
        out = self.fresh()
        last = "kill-before,rename,1,0," + ("*.jsonl.partial" if self.name == "order of completion" else "*.jsonl.tmp")
        self.run(out, last)
        data, partial, at = read(out + ".journal"), read(out + ".partial"), trial.RECORD.size
        live, done, tokens, group = {}, {}, [0], at
        while at < len(data):
            _, kind, _, index, offset, n, _, _, begins, *_ = trial.RECORD.unpack_from(data, at)
            if begins != group:
                tokens.append(sum(live.values()) + sum(done.values()))
                group = begins
            if kind == trial.KIND_TOKENS:
                live[index] = live.get(index, 0) + n
            else:
                live.pop(index, None)
                done[index] = len(json.loads(partial[offset:offset + n]).get("token_ids") or ())
            at += trial.RECORD.size + (4 * n if kind == trial.KIND_TOKENS else 0)
        tokens.append(sum(live.values()) + sum(done.values()))
        tally.check(tokens[-1] == Journal(out).tokens, f"{self.name}: {tokens[-1]} tokens are in the journal")
        remove_job(out)
        steps = [b - a for a, b in zip(tokens, tokens[1:])]
        tally.check(len(steps) > 8 and max(steps) <= LIVE, f"{self.name}: with a commit at the end of every pass one "
                    f"holds up to {max(steps, default=0)} tokens, {LIVE} rows live: {steps}")
        return tokens

    def beside(self, out):
        name = os.path.basename(out) + "."
        return sorted(f[len(name):] for f in os.listdir(os.path.dirname(out)) if f.startswith(name))


def points(log, full):
    """Every (act, call, kind, n): the first two, the middle and the last call of each kind, or all of them."""
    for call in CALLS:
        for kind in sorted({k for _, c, k, _ in log.calls if c == call}):
            n = log.count(call, kind)
            which = range(1, n + 1) if full and n <= 24 else sorted({1, min(2, n), (n + 1) // 2, n})
            acts = ("kill-before", "kill-after", "kill-torn") if "write" in call else ("kill-before", "kill-after")
            yield from ((act, call, kind, i) for i in which for act in acts)


class Met:
    """Kills that met their point, those that came too late, tokens to be sampled again."""

    def __init__(self):
        self.kills = self.missed = self.lost = self.most = 0


def held_enough(tally, what, job, out, log, met):
    """Committed is at least what the completed commits held; lost is at most one pass."""
    if job.commits is None or os.path.exists(out) or not os.path.exists(out + ".journal"):
        return
    done = max(log.count("fdatasync", "journal") - 1, 0)  # the first one made the journal
    done = min(done, len(job.commits) - 1)
    held, made = Journal(out).tokens, job.commits[min(done + 1, len(job.commits) - 1)]
    lost = max(made - held, 0)
    met.lost, met.most = met.lost + lost, max(met.most, lost)
    tally.check(held >= job.commits[done] and lost <= LIVE, f"{what}: {held} tokens held after {done} commits, which "
                f"held {job.commits[done]}; {lost} of {made} lost, one pass is {LIVE}")


def ends_well(tally, what, job, out, more):
    done = job.run(out, "", *more)
    got = job.rows(out)
    if tally.check(done.code == job.code and got == job.want, f"{what}: resumed with {' '.join(more) or 'the same'}: "
                   f"exit {done.code}, {done.err[-200:]!r}: {difference(job.want, got)}"):
        tally.check(job.beside(out) == ["job.json"], f"{what}: left beside OUT: {job.beside(out)}")
    remove_job(out)
    left = [f for f in os.listdir(job.cache) if ".tmp" in f]
    tally.check(not job.first_use or not left, f"{what}: left in the cache: {left}")


def kill_at(tally, job, points, r, met):
    """A job killed at one point after the other, then to its end."""
    out, what = job.fresh(), job.name
    for i, (act, call, kind, n) in enumerate(points):
        what += f", {act} {call} {n} of {kind}"
        before = Journal(out).tokens if os.path.exists(out + ".journal") and not os.path.exists(out) else 0
        more = r.choice(PLACEMENTS[:5]) if before else []
        done = job.run(out, f"{act},{call},{n},0,{nth.pattern(kind)}", *more)
        if done.code != -signal.SIGKILL:
            met.missed += 1
            tally.check(i > 0, f"{what}: a first run did not come by")
            tally.check(done.code == job.code, f"{what}: exit {done.code}: {done.err[-200:]!r}")
            break
        met.kills += 1
        if before == 0:
            held_enough(tally, what, job, out, done.log, met)
        elif os.path.exists(out + ".journal") and not os.path.exists(out):
            after = Journal(out).tokens
            tally.check(after >= before, f"{what}: {after} tokens held, {before} before")
    ends_well(tally, what, job, out, r.choice(PLACEMENTS if not job.first_use else PLACEMENTS[:1]))


def every_point(tally, place, a):
    nth.prepare(place)
    r, all_met = random.Random(a.seed), Met()
    for name in pick(("h2o", "order of completion", "first use"), SETTINGS):
        job, met = Job(tally, place, name), Met()
        all_points = list(points(job.log, NIGHT))
        tally.check(len(all_points) > 60, f"{name}: only {len(all_points)} points")
        some = all_points if NIGHT else r.sample(all_points, pick(5, 7))
        for point in some:
            kill_at(tally, job, [point], r, met)
        for _ in range(pick(1, 1, 12)):  # killed again while it resumes
            kill_at(tally, job, r.sample(all_points, r.choice((2, 3))), r, met)
        tally.check(met.missed <= met.kills // 2, f"{name}: {met.missed} points were not met, {met.kills} were")
        print(f"{name}: {len(all_points)} points, {met.kills} kills, {met.missed} not met, {met.lost} tokens sampled again, "
              f"at most {met.most} by one kill; {tally.failed} failed", flush=True)
        all_met.kills += met.kills
    print(f"every point: {all_met.kills} kills", flush=True)


@from_full
def packing(tally, place, a):
    """A pack that was being made is no pack, and leaves nothing behind: neither its own file nor another's."""
    nth.prepare(place)
    model, folder = nth.text_model(place.at("hf")), place.at("jobs/packs")
    os.makedirs(folder)
    args = ["pack", model, "-o", os.path.join(folder, "a.pack"), "-q"]
    good = nth.run(place, args)
    want, kills, r = read(args[3]), 0, random.Random(a.seed)
    all_points = list(points(good.log, NIGHT))
    for act, call, kind, n in all_points if NIGHT else r.sample(all_points, 7):
        what = f"pack, {act} {call} {n} of {kind}"
        os.unlink(args[3])
        done = nth.run(place, args, f"{act},{call},{n},0,{nth.pattern(kind)}")
        kills += done.code == -signal.SIGKILL
        tally.check(done.code == -signal.SIGKILL, f"{what}: exit {done.code}: {done.err[-200:]!r}")
        tally.check(read(args[3]) in (b"", want), f"{what}: half a pack has its name")
        left = {x for x in os.listdir(folder) if os.path.getsize(os.path.join(folder, x)) >= len("sluicepk")}
        listed = json.loads(place.sluice("cache", "--json", SLUICE_CACHE_DIR=folder).out)["files"]
        tally.check({x["name"] for x in listed} == left, f"{what}: {left} are there, cache lists {listed}")
        again = nth.run(place, args)
        tally.check(again.code == 0 and read(args[3]) == want and os.listdir(folder) == ["a.pack"],
                    f"{what}: then exit {again.code}: {again.err[-200:]!r}, {os.listdir(folder)}")
    print(f"packing: {len(all_points)} points, {kills} kills", flush=True)


@from_full
def uring(tally, place, a):
    """What io_uring writes passes no function: its fault back end kills before the attempt."""
    nth.prepare(place)
    job, kills = Job(tally, place, "h2o"), 0
    for seed in range(a.seed, a.seed + pick(3, 3, 40)):
        out = job.fresh()
        kind = ("write.kill=1/40", "read.kill=1/90")[seed % 2]
        done = place.sluice(*job.args(out, "--io", "auto"), SLUICE_FAULT=f"seed={seed},{kind}", **nth.EVERY_PASS)
        tally.check(done.code in (0, -signal.SIGKILL), f"{kind}, seed {seed}: exit {done.code}: {done.err[-200:]!r}")
        kills += done.code == -signal.SIGKILL
        ends_well(tally, f"{kind}, seed {seed}", job, out, PLACEMENTS[seed % len(PLACEMENTS)])
    tally.check(kills > 0, "no kill of the ring met a run")
    print(f"uring: {kills} kills", flush=True)


# ---- the loss, by the clock ------------------------------------------------------------------------------

def passes(log):
    """When each pass read the last layer: the offset of the pack that is read most often, of those the last."""
    times = {}
    for ns, call, kind, offset in log.calls:
        if call == "pread" and kind == "pack":
            times.setdefault(offset, []).append(ns)
    most = max((len(t) for t in times.values()), default=0)
    last = max((o for o, t in times.items() if len(t) >= most - 1), default=None)
    return times.get(last, [])


def loss(tally, place, a):
    """At a random moment, tokens older than SYNC_S before the passes under way began are committed."""
    nth.prepare(place)
    sync_s, n_tokens = pick((0.3, 200), (0.3, 200), (5.0, 400))
    job = Job.__new__(Job)
    n_rows, source = pick(36, 36, 120), None
    job.place, job.name, job.source, job.retried, job.first_use, job.cache = (
        place, "full KV in RAM", source, None, False, place.at("cache"))
    job.code = 0
    more = ["--weights-resident", "0", "--batch", "6", "--batches", "1"]
    job.args = lambda out, *m: [*Job.args(job, out), *more, *m]
    for again in range(5):  # until the job is long enough to be killed in; the first may measure the machine as well
        rows = [dict(row, max_tokens=n_tokens) for row in nth.rows(n_rows, 5)]
        job.source = place.rows("long.jsonl", rows)
        out = job.fresh()
        whole = job.run(out, SLUICE_SYNC_S=str(sync_s))
        if whole.code or (again and whole.seconds > 5 * sync_s):
            break
        n_rows *= 2 if again else 1
        remove_job(out)
    print(f"loss: {n_rows} rows, {whole.seconds:.2f} s", flush=True)
    commits = job.tokens_by_commit(tally)
    job.want, r, told, lost_most = read(out), random.Random(a.seed), 0, 0
    tally.check(whole.code == 0 and whole.seconds > 2 * sync_s, f"loss: exit {whole.code}, {whole.seconds:.1f} s is too "
                f"short to tell anything of {sync_s} s")
    n_kills = pick(4, 8, 4)
    for i in range(n_kills):
        out, log = job.fresh(), place.at("loss.nth")
        p = place.start(job.args(out), **nth.env(log=log, SLUICE_SYNC_S=str(sync_s)))
        p.wait_for(lambda: os.path.exists(out + ".journal"))
        time.sleep(r.uniform(0.4, 0.9) * whole.seconds)
        p.signal(signal.SIGKILL)
        killed = p.end().code == -signal.SIGKILL
        seen = passes(nth.Log(log))
        os.unlink(log)
        if killed and not os.path.exists(out) and len(seen) > 3:
            held = Journal(out).tokens
            # Reads run up to two passes ahead, and the pass before the running one may be under commit.
            begun = seen[-5] if len(seen) > 5 else 0
            old = sum(t <= begun - (sync_s + STALL_S) * 1e9 for t in seen)
            must, made = commits[max(old - 3, 0)], commits[min(max(len(seen) - 3, 0), len(commits) - 1)]
            told += must > 0
            lost_most = max(lost_most, made - held)
            tally.check(held >= must, f"loss, kill {i}: {held} tokens held in pass {len(seen)}, {must} of them were made "
                        f"more than {sync_s} s before it")
        if i < 1:
            ends_well(tally, f"loss, kill {i}", job, out, PLACEMENTS[i])
        remove_job(out)
    tally.check(told >= n_kills // 3, f"loss: only {told} of {n_kills} kills tell anything")
    print(f"loss: {n_kills} kills, {told} with tokens older than {sync_s} s; at most {lost_most} tokens of "
          f"{commits[-1]} sampled again", flush=True)


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (every_point, packing, uring, loss)))
