#!/usr/bin/env python3
"""Everything fails once: nth_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Memory, threads and calls on files fail at their n-th call (tests/tools/nth.c), in run, resume, score, pack, plan
and gen: one error line, 4 (memory, threads) or 9 (disk), nothing left allocated, no signal, no hang, and the same
command afterwards gives the undisturbed bytes. Level night: every n; else a sample, and level check has three of the
commands. Standard library only.
"""
import errno
import os
import random
import re
import struct
import sys

import nth
import trial
from trial import LEVEL, difference, pick, read, remove_job

MEMORY = {"malloc": errno.ENOMEM, "calloc": errno.ENOMEM, "realloc": errno.ENOMEM, "posix_memalign": errno.ENOMEM,
          "aligned_alloc": errno.ENOMEM, "mmap": errno.ENOMEM, "pthread_create": errno.EAGAIN}
DISK = {"create": errno.ENOSPC, "write": errno.ENOSPC, "pwrite": errno.ENOSPC, "fallocate": errno.ENOSPC,
        "fsync": errno.EIO, "fdatasync": errno.EIO, "close": errno.EIO, "rename": errno.EIO, "ftruncate": errno.EIO,
        "unlink": errno.EIO, "mkdir": errno.EIO, "pread": errno.EIO, "open": errno.EMFILE}
# Calls whose failure must not be passed over in silence: what they were to do is lost otherwise.
MUST_SAY = {"create", "write", "pwrite", "fsync", "fdatasync", "rename"}
# What has another way: without it the run goes on.
HELPS = {"probe", "summary", "scratch folder", "cache folder"}  # without O_TMPFILE a file is made by name
# Who else was refused memory on the way to the call: libhwloc dies of NULL by itself (machine.c asks for its memory in front
# of it), the loader ends the process with 127. Which of their calls have which number, every machine decides for itself.
HWLOC, LOADER = "libhwloc", "ld-linux"
JANSSON = "libjansson"  # drops a character of a long string for which it has no memory: another job's manifest
HANG_S = 60.0
LOADER_KIB = 512  # the loader and the first stack
ALL_ON_DISK = ["--percent", "0", "0", "0", "0", "0", "0"]
FEW = ("run", "resume", "pack")  # of level check


class Command:
    """One command whose good end is known; `fresh` puts back what stood before it."""

    def __init__(self, place, name, args, made=(), before=None):
        self.place, self.name, self.args, self.made, self.before = place, name, args, made, before or (lambda: None)
        self.fresh()
        self.run()  # what the first run leaves in the cache is there for all others
        self.fresh()
        self.good = self.run(NTH_WHO=HWLOC)
        self.want = self.result(self.good)

    def fresh(self):
        for path in self.made:
            remove_job(path)
        self.before()

    def run(self, act="", **env):
        return nth.run(self.place, self.args, act, HANG_S, NTH_LIVE="1", **nth.EVERY_PASS, **env)

    def numbers(self, call):
        """Of its calls those that are tried: what hwloc asks for is the same in every command."""
        return [n for n in range(1, self.good.log.counts.get(call, 0) + 1)
                if self.name == "run" or f"{call}:{n}" not in self.good.log.inside]

    def result(self, done):
        """What it gives, but for times."""
        out = re.sub(r"[0-9.]+ (GB/s|s\b)|about [0-9]+ passes|[0-9.]+ output tokens/s|limited by .*", "", done.out)
        return (b"".join(read(p) for p in self.made), out if self.name in ("gen",) else bool(out))


class Found:
    """What a sweep met."""

    def __init__(self):
        self.runs = self.errors = self.others = 0


def leaks(done, good):
    """Blocks that live at the end and did not in the good run; those of threads that the C library keeps apart."""
    return [a for a in done.log.at if "ld-linux" not in a and a not in good.log.at]


def once(tally, command, act, codes, found):
    """One run under `act`, and then the same command without."""
    what = f"{command.name}: {act}"
    command.fresh()
    done = command.run(act)
    found.runs += 1
    other = HWLOC in done.log.by or LOADER in done.log.by
    found.others += other
    if other and done.code not in codes:  # their own end, by their own words: no hang, no signal but hwloc's own, no lost row
        tally.check(done.code == 127 or HWLOC in done.log.by and done.code in (-6, -11),
                    f"{what}: exit {done.code}: {done.err[-200:]!r}; by {done.log.by[:160]}")
        ends_well_again(tally, command, what, done)
        return
    lines = [x for x in done.err.splitlines() if "error: " in x]
    if JANSSON in done.log.by:
        codes = (*codes, 8)
    if done.log.hits is not None and done.log.hits < int(act.split(",")[2]):
        codes = (0,)  # the run made fewer such calls than the good one
    tally.check(done.code in codes, f"{what}: exit {done.code}, want {codes}: {done.err[-200:]!r}; "
                     f"by {done.log.by[:160]}")
    if done.log.hits is not None and done.code >= 0:
        lost = leaks(done, command.good)
        tally.check(not lost, f"{what}: exit {done.code}, {len(lost)} blocks leaked, made at {lost[:3]}; "
                    f"failed by {done.log.by[:160]}")
    if done.code == 0:
        got = command.result(done)
        tally.check(got == command.want, f"{what}: exit 0: {difference(command.want[0], got[0])}")
        return
    found.errors += 1
    tally.check(len(lines) == 1 and len(lines[0]) > len("sluice: error: "), f"{what}: exit {done.code}: error lines {lines}")
    ends_well_again(tally, command, what, done)


def ends_well_again(tally, command, what, done):
    """The same command without a fault gives the undisturbed bytes."""
    again = command.run()
    got = command.result(again)
    tally.check(again.code == 0 and got == command.want, f"{what}: exit {done.code}, then {again.code}: "
                f"{again.err[-200:]!r}: {difference(command.want[0], got[0])}")


def some(r, numbers, most):
    """All of them, or the first, the last and some between."""
    if len(numbers) <= max(most, 2):
        return list(numbers)
    return sorted({numbers[0], numbers[-1], *r.sample(list(numbers)[1:-1], max(most - 2, 0))})


def sweep(tally, a, command, calls):
    r, found = random.Random(a.seed), Found()
    if not tally.check(command.good.code == 0, f"{command.name}: exit {command.good.code}: {command.good.err[-300:]!r}"):
        return
    for call in calls:
        if call in MEMORY:
            for n in some(r, command.numbers(call), pick(3, 5, 1 << 30)):
                once(tally, command, f"fail,{call},{n},{MEMORY[call]}", (0, 4), found)
            continue
        for kind in sorted({k for _, c, k, _ in command.good.log.calls if c == call}):
            count = command.good.log.count(call, kind)
            must = call in MUST_SAY and kind not in HELPS
            codes = (9,) if must else (0, 2, 4, 5, 9) if call == "open" else (0, 9)
            for n in some(r, range(1, count + 1), pick(2, 3, 1 << 30)):
                once(tally, command, f"fail,{call},{n},{DISK[call]},{nth.pattern(kind)}", codes, found)
    tally.check(found.errors > 0, f"{command.name}: none of {found.runs} calls that failed was met by the run")
    print(f"{command.name}: {found.runs} runs, {found.errors} of them ended with an error, {found.others} inside hwloc or the "
          f"loader, {tally.failed} failed", flush=True)


def job_args(place, source, out, *more):
    return ["run", "-m", place.model, "-i", source, "-o", out, "--offload-dir", place.at("offload"), "--mem-ram",
            "32M", "--progress", "none", "-t", "1", "--io", "threads", "--batch", "2", "--batches", "2", *ALL_ON_DISK,
            *more]


def job_parts(place):
    """The arguments of a run, and what it makes."""
    out = place.at("jobs/a.jsonl")
    return job_args(place, place.rows("in.jsonl", nth.rows(4, 1, (3, 5))), out), [out]


def commands(place):
    """What is tried, as Command takes it."""
    args, (out,) = job_parts(place)
    source, cache = args[4], place.at("cache")
    yield ("run", args, [out])

    def no_packs():
        for name in os.listdir(cache):
            if ".pack" in name:
                os.unlink(os.path.join(cache, name))

    yield ("run, first use", args, [out], no_packs)

    def no_codec():
        for name in os.listdir(cache):
            if ".zst" in name:
                os.unlink(os.path.join(cache, name))

    yield ("run with zstd", [*args, "--weights-codec", "zstd"], [out], no_codec)
    cut = place.at("jobs/cut.jsonl")
    nth.run(place, job_args(place, source, cut), "kill-after,fdatasync,3,0,*.journal", **nth.EVERY_PASS)
    tally_cut = os.path.getsize(cut + ".journal")
    assert tally_cut > 64, "nothing was committed before the kill"
    yield ("resume", args, [out], lambda: trial.copy_job(cut, out))
    pairs = [{"custom_id": f"s{i}", "context_ids": [3, 4, 5 + i], "continuation_ids": [7, 8, 9]} for i in range(3)]
    scores = place.at("jobs/s.jsonl")
    yield ("score", ["score", "-m", place.model, "-i", place.rows("pairs.jsonl", pairs), "-o", scores,
                     "--mem-ram", "32M", "--progress", "none", "-t", "1"], [scores])
    model, pack = nth.text_model(place.at("hf")), place.at("jobs/a.pack")
    yield ("pack", ["pack", model, "-o", pack, "-q"], [pack])
    yield ("plan", ["plan", "-m", place.model, "-i", source, "--mem-ram", "32M"])
    yield ("gen", ["gen", "-m", model, "-p", "hello", "-n", "4", "--ignore-eos", "--temperature", "0",
                   "-q", "--mem-ram", "32M", "-t", "1", "--offload-dir", place.at("offload")])


def every(tally, place, a, calls):
    if not os.path.exists(nth.SO):
        tally.check(False, f"{nth.SO} is not built")
        return
    nth.prepare(place)
    for name, *what in commands(place):
        if LEVEL or name in FEW:
            sweep(tally, a, Command(place, name, *what), calls)
    left = [f for folder in ("cache", "jobs", "offload") for f in os.listdir(place.at(folder)) if ".tmp" in f or "scratch" in f]
    tally.check(not left, f"left behind: {left}")


def calls(tally, place, a):
    """A run makes the calls that its promises rest on: one that is never made cannot fail."""
    nth.prepare(place)
    run = Command(place, "run", *job_parts(place))
    made = {(call, kind) for _, call, kind, _ in run.good.log.calls}
    wanted = {("fallocate", "scratch"), ("fdatasync", "partial"), ("fdatasync", "journal"), ("fsync", "OUT.tmp"),
              ("rename", "OUT.tmp"), ("fsync", "job.json"), ("rename", "job.json"), ("fsync", "OUT's folder")}
    tally.check(wanted <= made, f"a run does not make these calls: {sorted(wanted - made)}")


def memory(tally, place, a):
    """malloc and its like, mmap and pthread_create."""
    every(tally, place, a, MEMORY)


def disk(tally, place, a):
    """Every call that touches the files of a job, its pack and its scratch."""
    every(tally, place, a, DISK)


def ever_since(tally, place, a):
    """Not once but from then on: memory that is gone, a disk that is gone."""
    nth.prepare(place)
    command, found, r = Command(place, "run", *job_parts(place)), Found(), random.Random(a.seed)
    for call, codes in (("malloc", (0, 4)), ("pthread_create", (0, 4)), ("pwrite", (9,)), ("fdatasync", (9,)),
                        ("fsync", (9,)), ("pread", (0, 2, 5, 9))):
        for n in some(r, range(1, command.good.log.counts[call] + 1), pick(2, 5, 200)):
            once(tally, command, f"from,{call},{n},{MEMORY.get(call) or DISK[call]}", codes, found)
    print(f"ever since: {found.runs} runs, {found.errors} ended with an error, {found.others} inside hwloc or the "
          "loader", flush=True)


def image_kib(path):
    """Address space that an ELF program itself takes, without its libraries."""
    data = read(path)
    at, = struct.unpack_from("<Q", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    parts = [struct.unpack_from("<IIQQQQQ", data, at + size * i) for i in range(n)]
    return max(p[3] + p[6] for p in parts if p[0] == 1) >> 10  # PT_LOAD: address + bytes in memory


def address_space(tally, place, a):
    """ulimit -v at any height: 4 with a line, or a good run. hwloc, which dies of NULL, is not called in vain."""
    nth.prepare(place)
    source, out, codes = place.rows("in.jsonl", nth.rows(4, 1, (3, 5))), place.at("jobs/v.jsonl"), []
    for kib in range(9000, 150000, pick(24000, 6000, 500)):
        remove_job(out)
        done = place.sluice(*job_args(place, source, out), wrapper=("sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh"))
        loader = "error while loading shared libraries" in done.err or "cannot allocate" in done.err.lower()
        if done.code == 127 and loader:
            continue  # not even its libraries fit
        if done.code == -11 and not done.err and kib < image_kib(place.binary) + LOADER_KIB:
            continue  # not even the program fits: execve(2) fails when the shell is gone, so the kernel ends the process
        codes.append(done.code)
        tally.check(done.code in (0, 4), f"ulimit -v {kib}: exit {done.code}: {done.err[-200:]!r}")
    tally.check(4 in codes and 0 in codes, f"ulimit -v: codes {sorted(set(codes))}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (calls, memory, disk, ever_since, address_space)))
