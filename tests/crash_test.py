#!/usr/bin/env python3
"""Nothing is lost: crash_test.py [SLUICE] [--model GGUF] [--level LEVEL] [--seed N] [--only PART]

Jobs that are killed, stopped, run out of disk or find damaged files beside OUT: the same command ends with
the bytes of a run left alone, or says in one line why not. Below level night a tenth of the kills. Mounts small
tmpfs for full disks where it may. Standard library only; $BUILD/tests/tools/nouring refuses io_uring.
"""
import os
import random
import signal
import subprocess
import sys
import time

import trial
from trial import ALL_ON_DISK, EMA, H2O, HERE, NIGHT, ON_DISK, Journal, copy_job, difference, from_full, job_rows, pick, read, remove_job

N_ROWS = 200
NOURING = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/tools/nouring")

# name: flags, whether io_uring is refused, and the model where it is another
SETTINGS = {
    "streaming": (["--mem-ram", "40M", "--weights-resident", "0", "--batch", "8", "--batches", "2"], False),
    "KV on disk": (["--mem-ram", "64M", *ON_DISK, "--batch", "8", "--batches", "3"], False),
    "h2o, all on disk": (["--mem-ram", "64M", *ALL_ON_DISK, *H2O, "--batch", "6", "--batches", "4"], False),
    "io_uring refused": (["--mem-ram", "64M", *ON_DISK, "--batch", "8", "--batches", "2"], True),
    "ema in RAM": (["--mem-ram", "96M", *EMA, "--kv-scope", "layer", "--batch", "16", "--batches", "1"], False),
    "experts, sinks, windows": (["--mem-ram", "64M", *ALL_ON_DISK, "--batch", "6", "--batches", "2"], False, trial.OSS),
}


class Job:
    """A command line whose OUT is known."""

    def __init__(self, place, source, flags, wrapper=(), model=None):
        self.place, self.source, self.flags, self.wrapper = place, source, flags, wrapper
        self.model = place.write("other.cfg", model.encode()) if model else place.model

    def args(self, out, *more):
        return ["run", "-m", self.model, "-i", self.source, "-o", out, "--progress", "none", "-t", "1",
                *self.flags, *more]

    def start(self, out, *more):
        return self.place.start(self.args(out, *more), self.wrapper)

    def run(self, out, *more):
        return self.start(out, *more).end()

    def whole(self, tally):
        out = self.place.fresh()
        done = self.run(out)
        tally.check(done.code == 0 and read(out), f"left alone: exit {done.code}: {done.err[-300:]!r}")
        return read(out), done


def small_job(place, n=60, flags=()):
    return Job(place, place.rows(f"in-{n}.jsonl", job_rows(n, 7)),
               list(flags) or ["--mem-ram", "64M", *ON_DISK, "--batch", "4", "--batches", "2"])


def beside(out):
    name = os.path.basename(out) + "."
    return sorted(f[len(name):] for f in os.listdir(os.path.dirname(out)) if f.startswith(name))


def ends_well(tally, what, job, out, want, *more):
    """The same command ends the job: its bytes, and nothing left but OUT.job.json."""
    done = job.run(out, *more)
    got = read(out)
    ok = tally.check(done.code == 0 and got == want,
                     f"{what}: exit {done.code}, {done.error_line()!r}: {difference(want, got)}")
    if ok:
        tally.check(beside(out) == ["job.json"], f"{what}: left beside OUT: {beside(out)}")
    return done


def refuses(tally, what, done, codes, *words):
    """One error line with these words, and one of these exit codes."""
    line = done.error_line()
    lines = sum(x.startswith("sluice: error: ") for x in done.err.splitlines())
    tally.check(done.code in codes and lines == 1 and all(w in line for w in words),
                f"{what}: exit {done.code}, want {codes} and {words}: {done.err[-300:]!r}")


def cut_job(tally, job, out, *more, least_rows=0):
    """A job stopped by SIGKILL with something committed."""
    for _ in range(20):
        p = job.start(out, *more)
        ready = p.wait_for(lambda: Journal(out).rows > least_rows)
        p.signal(signal.SIGKILL)
        p.end()
        if ready and not os.path.exists(out):
            return True
        remove_job(out)
    return tally.check(False, "no run could be killed with rows committed")


# ---- SIGKILL ----------------------------------------------------------------------------------------

def kill_once(tally, what, job, out, delay_s, early, before):
    """Runs for delay_s, and unless it may be killed early until something is committed, and kills; what is committed only
    grows. None: OUT had its name already."""
    p = job.start(out)
    if not p.wait_for(lambda: time.monotonic() - p.start_s >= delay_s and (early or Journal(out).tokens > 0), 60):
        p.end()
        return None
    p.signal(signal.SIGKILL)
    p.end()
    if os.path.exists(out):
        return None
    after = Journal(out)
    tally.check(after.tokens >= before.tokens and after.rows >= before.rows,
                f"{what}: {after.rows} rows, {after.tokens} tokens committed, {before.rows} and {before.tokens} before")
    return after


class Nothing:
    rows = tokens = live_rows = 0


def kills(tally, place, a):
    """SIGKILL at random moments, each job several times, then to the end. kill_test.py counts what is lost."""
    r = random.Random(a.seed)
    n_kills = pick(6, 12, 60)
    rows = job_rows(N_ROWS, 3, tokens=(16, 64)) if NIGHT else job_rows(N_ROWS // 4, 3)
    source = place.rows("in.jsonl", rows)
    met = begun = 0
    settings = list(SETTINGS.items())[::pick(2, 1)]
    share = [n_kills // len(settings)] * len(settings)
    share[0] += n_kills - sum(share)
    for (name, (flags, refused, *model)), n in zip(settings, share):
        if refused and not os.path.exists(NOURING):
            tally.skip(f"{name}: {NOURING} is not built")
            continue
        job = Job(place, source, flags, (NOURING,) if refused else (), *model)
        want, done = job.whole(tally)
        if done.code == 77 and refused:
            tally.skip(f"{name}: no seccomp filter here")
            continue
        if done.code:
            continue
        while n > 0:
            out, before = place.fresh(), Nothing
            for _ in range(min(n, r.randint(1, 4))):
                left_s = done.seconds * (1 - before.rows / len(rows))
                before = kill_once(tally, f"{name}: kill {n}", job, out, r.uniform(0.02, 0.9) * left_s, r.random() < 0.25, before)
                if before is None:
                    break
                n, met, begun = n - 1, met + 1, begun + (before.live_rows > 0 or before.rows > 0)
            ends_well(tally, f"{name}: {n} kills to go", job, out, want)
        print(f"{name}: {met} kills so far, {tally.failed} failed", flush=True)
    # On a busy machine a run takes longer to begin than the one that was timed.
    tally.check(begun >= pick(1, met // 2), f"only {begun} of {met} kills met a job with something committed")


# ---- signals and time -------------------------------------------------------------------------------

def signals(tally, place, a):
    """SIGTERM, SIGINT, SIGHUP and SIGUSR1: 75 before the job is done, every token kept; ignored from the start: nothing."""
    job = small_job(place)
    want, _ = job.whole(tally)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        out, summary = place.fresh(), place.at("sum.json")
        p = job.start(out, *(["--summary", summary] if number == signal.SIGTERM else []))
        met = p.wait_for(lambda: p.said(" rows at once") and Journal(out).bytes)
        time.sleep(0.3)
        p.signal(number)
        done = p.end()
        tally.check(met and done.code == 75, f"{number.name}: exit {done.code}, want 75: {done.err[-200:]!r}")
        refuses(tally, number.name, done, (75,), "resumes")
        committed = Journal(out)
        if number == signal.SIGTERM:
            said = trial.json.loads(read(summary) or b"{}")
            tally.check(said.get("rows", {}).get("ok") == committed.rows
                        and said.get("output_tokens") == committed.tokens,
                        f"SIGTERM: {committed.rows} rows and {committed.tokens} tokens committed, the summary says "
                        f"{said.get('rows')} and {said.get('output_tokens')}")
        ends_well(tally, f"after {number.name}", job, out, want)
    out = place.fresh()
    p = place.start(job.args(out), ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh"])
    met = p.wait_for(lambda: p.said(" rows at once") and Journal(out).bytes)
    p.signal(signal.SIGHUP)
    p.signal(signal.SIGINT)
    done = p.end()
    tally.check(met and done.code == 0 and read(out) == want, f"SIGHUP and SIGINT, ignored: exit {done.code}")
    second_signal(tally, place, job, want)
    early(tally, place, job, want, a)


def second_signal(tally, place, job, want):
    """With a read that never ends the first signal waits for it; the second does not, unless it comes with the first, as timeout(1)'s."""
    out = place.fresh()
    p = place.start(job.args(out), SLUICE_FAULT="seed=1,read.stuck=1/60")
    p.wait_for(lambda: Journal(out).bytes)
    stuck = p.stands_still()
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):  # both at once
        p.signal(number)
    time.sleep(0.5)
    waits = stuck and p.running()
    p.signal(signal.SIGTERM)
    done = p.end()
    tally.check(waits, f"a read that is stuck: one signal, exit {done.code}: {done.err[-200:]!r}")
    tally.check(done.code == 75, f"two signals: exit {done.code}: {done.err[-200:]!r}")
    ends_well(tally, "after two signals", job, out, want)


def catches(p, number):
    """Has the process its handler for this signal? Before main it cannot."""
    mask = next((line for line in read(f"/proc/{p.p.pid}/status").splitlines() if line.startswith(b"SigCgt")), b": 0")
    return int(mask.split()[1], 16) >> (number - 1) & 1


def early(tally, place, job, want, a):
    """Signals while it starts: 75, or 0 when it had ended, and the same bytes."""
    r = random.Random(a.seed)
    for _ in range(pick(1, 3, 10)):
        out = place.fresh()
        p = job.start(out)
        p.wait_for(lambda: catches(p, signal.SIGINT))
        time.sleep(r.choice((0, r.uniform(0, 0.02), r.uniform(0.02, 0.4))))
        p.signal(signal.SIGINT)
        done = p.end()
        tally.check(done.code == 75 or done.code == 0 and read(out) == want,
                    f"SIGINT at the start: exit {done.code}: {done.err[-200:]!r}")
        ends_well(tally, "after SIGINT at the start", job, out, want)


@from_full
def time_limit(tally, place, a):
    job = small_job(place, 100)
    want, done = job.whole(tally)
    out, n = place.fresh(), 0
    for _ in range(60):
        n += 1
        done = job.run(out, "--time-limit", "1s")
        if done.code != 75:
            break
    tally.check(done.code == 0 and read(out) == want, f"--time-limit 1s, {n} times: exit {done.code}, "
                f"{done.error_line()!r}: {difference(want, read(out))}")
    out = place.fresh()
    done = job.run(out, "--time-limit", "0.01s")
    refuses(tally, "--time-limit 0.01s", done, (75,), "--time-limit", "resumes")
    ends_well(tally, "after --time-limit", job, out, want)


# ---- whose job ----------------------------------------------------------------------------------------

@from_full
def two_at_once(tally, place, a):
    """The second process on a job is refused and names the first, which goes on undisturbed."""
    job = small_job(place, 100)
    want, _ = job.whole(tally)
    out = place.fresh()
    first = job.start(out)
    tally.check(first.wait_for(lambda: Journal(out).bytes), "the first process did not come to its journal")
    os.kill(first.p.pid, signal.SIGSTOP)
    refuses(tally, "two processes on one job", job.run(out), (8,), "locked", str(first.p.pid))
    refuses(tally, "--overwrite of a job under way", job.run(out, "--overwrite"), (8,), "locked")
    os.kill(first.p.pid, signal.SIGCONT)
    done = first.end()
    tally.check(done.code == 0 and read(out) == want, f"the first of two: exit {done.code}: {difference(want, read(out))}")


@from_full
def other_flags(tally, place, a):
    """What would change bytes is refused by name; what does not may change between two runs of a job."""
    job = small_job(place)
    want, _ = job.whole(tally)
    cut = place.fresh()
    if not cut_job(tally, job, cut):
        return
    rows = job_rows(60, 7)
    changed = [dict(r) for r in rows]
    changed[5]["max_tokens"] += 1
    other = place.write("other.cfg", trial.MODEL.replace("ffn = 512", "ffn = 384").encode())
    for field, more in {"compute": ["--compute", "f32"], "kv_format": ["--kv-format", "f32"], "kv": H2O,
                        "isa": ["--isa", "portable"], "seed": ["--seed", "7"], "limit": ["--limit", "50"],
                        "order": ["--order", "completion"], "shard": ["--shard", "0/2"], "model": ["-m", other],
                        "line 6 has changed": ["-i", place.rows("changed.jsonl", changed)]}.items():
        out = copy_job(cut, place.fresh())
        refuses(tally, f"changed {field}", job.run(out, *more), (8,), field)
        ends_well(tally, f"after a refusal ({field})", job, out, want)
        remove_job(out)
    for more in (["--batch", "16", "--batches", "1"], ["-t", "3"], ["--mem-ram", "200M"], ["--io", "threads"],
                 ALL_ON_DISK, ["--percent", "0", "100", "0", "100", "0", "100"], ["--prefill-tokens", "40"],
                 ["-i", place.rows("moved.jsonl", rows)]):
        out = copy_job(cut, place.fresh())
        ends_well(tally, f"resumed with {' '.join(map(os.path.basename, more))}", job, out, want, *more)
    done = job.run(cut, "--overwrite", "--seed", "7")
    tally.check(done.code == 0 and read(cut) not in (b"", want), f"--overwrite with --seed 7: exit {done.code}")


def other_out(tally, place, a):
    """OUT that is somebody else's stays as it is, unless --overwrite."""
    job = small_job(place, 20)
    want, _ = job.whole(tally)
    out = place.fresh()
    ends_well(tally, "first", job, out, want)
    before = os.stat(out)
    done = job.run(out)
    tally.check(done.code == 0 and "rows are done: " in done.err and os.stat(out).st_mtime_ns == before.st_mtime_ns,
                f"OUT is complete: exit {done.code}: {done.err[-200:]!r}")
    refuses(tally, "OUT of another job", job.run(out, "--seed", "9"), (8,), "seed", "--overwrite")
    tally.check(read(out) == want, "OUT of another job was touched")
    stranger = place.write("stranger.jsonl", b"mine\n")
    refuses(tally, "OUT without its OUT.job.json", job.run(stranger), (8,), "stranger.jsonl", "--overwrite")
    tally.check(read(stranger) == b"mine\n" and beside(stranger) == [], f"a stranger's file: {beside(stranger)}")
    ends_well(tally, "--overwrite", job, stranger, want, "--overwrite")
    with open(out, "ab") as f:
        f.write(b"x\n")
    refuses(tally, "OUT changed after its end", job.run(out), (8,), "changed")
    refuses(tally, "OUT is IN", job.run(job.source), (2,), "input")
    refuses(tally, "OUT is a folder", job.run(place.folder), (2,))
    refuses(tally, "OUT's folder is missing", job.run(place.at("no/where.jsonl")), (2,), "no/where")


# ---- damaged files -------------------------------------------------------------------------------------

def torn(tally, place, a):
    """Tails as a power cut leaves them are cut off; damage before them is found, never used."""
    job = small_job(place, 16, ["--mem-ram", "64M", "--batch", "4", "--batches", "1"])
    want, _ = job.whole(tally)
    cut, r, limit_s, tokens = place.fresh(), random.Random(a.seed), 0.02, 0
    for _ in range(50):  # each stop commits a group of rows and live tokens
        done = job.run(cut, "--time-limit", f"{limit_s:.3f}s")
        if done.code != 75 or Journal(cut).rows >= 6:
            break
        limit_s *= 1.2 if Journal(cut).tokens == tokens else 1  # a pass has to fit
        tokens = Journal(cut).tokens
    if not tally.check(done.code == 75 and Journal(cut).live_rows > 0,
                       f"--time-limit {limit_s:.3f}s: exit {done.code}, {Journal(cut).live_rows} live rows committed"):
        return
    journal, partial = read(cut + ".journal"), read(cut + ".partial")
    print(f"torn: {Journal(cut).rows} rows, {Journal(cut).live_rows} live, {len(journal)} bytes of journal")

    def resumed(what, new_journal, new_partial, may_refuse):
        out = copy_job(cut, place.at("torn.jsonl"))
        place.write("torn.jsonl.journal", new_journal)
        place.write("torn.jsonl.partial", new_partial)
        done, got = job.run(out), read(out)
        if done.code == 7 and may_refuse:
            refuses(tally, what, done, (7,), "torn.jsonl")
            done, got = job.run(out, "--overwrite"), read(out)
        tally.check(done.code == 0 and got == want,
                    f"{what}: exit {done.code}, {done.error_line()!r}: {difference(want, got)}")

    n = pick(1, 4, 20)
    for at in [0, 63, 64] + [r.randrange(len(journal)) for _ in range(n)]:
        resumed(f"journal of {at} bytes", journal[:at], partial, False)
    for size in pick((64,), (1, 64, 5000)):
        resumed(f"{size} bytes behind the journal", journal + r.randbytes(size), partial, False)
        resumed(f"{size} zeros behind the journal", journal + bytes(size), partial, False)
        resumed(f"{size} bytes behind OUT.partial", journal, partial + r.randbytes(size), False)
    for _ in range(n):
        at = r.randrange(len(journal))
        resumed(f"bit flipped at byte {at} of the journal",
                journal[:at] + bytes([journal[at] ^ 1 << r.randrange(8)]) + journal[at + 1:], partial, True)
        at = r.randrange(len(partial))
        resumed(f"bit flipped at byte {at} of OUT.partial", journal,
                partial[:at] + bytes([partial[at] ^ 1 << r.randrange(8)]) + partial[at + 1:], True)
        at = r.randrange(len(partial))
        resumed(f"OUT.partial of {at} bytes", journal, partial[:at], True)
    resumed("an empty OUT.partial", journal, b"", True)


# ---- full and read-only disks ------------------------------------------------------------------------------

class Tmpfs:
    """A mounted file system of a size; as a context, None where it may not be mounted."""

    def __init__(self, path, size_bytes):
        self.path, self.size_bytes = path, size_bytes

    def __enter__(self):
        os.makedirs(self.path, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size_bytes}", "sluice-test", self.path],
                              capture_output=True, check=False)
        self.mounted = done.returncode == 0
        return self if self.mounted else None

    def __exit__(self, *_):
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=False)

    def options(self, text):
        return subprocess.run(["mount", "-o", "remount," + text, self.path], capture_output=True,
                              check=False).returncode == 0

    def leave(self, n_bytes):
        """Fills it but for n_bytes."""
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with open(os.path.join(self.path, "filler"), "ab") as f:
            f.write(bytes(max(free - n_bytes, 0)))

    def clear(self):
        path = os.path.join(self.path, "filler")
        if os.path.exists(path):
            os.unlink(path)


@from_full
def disk_full(tally, place, a):
    """No space for OUT: 9 with the path; with space again the same command ends the job."""
    job = small_job(place)
    want, _ = job.whole(tally)
    with Tmpfs(place.at("small"), 48 << 20) as disk:
        if not disk:
            tally.skip("disk full: tmpfs cannot be mounted here")
            return
        for left in (0, 4096, 16384, len(want) // 2 // 4096 * 4096, len(want) + 16384):
            out = os.path.join(disk.path, f"left-{left}.jsonl")
            disk.leave(left)
            done = job.run(out)
            if done.code:
                refuses(tally, f"{left} bytes left on the disk", done, (9,), "left-", "space")
            tally.check(done.code == 9 or left > len(want), f"{left} bytes left: exit {done.code}")
            tally.check(done.code == 0 or not os.path.exists(out), f"{left} bytes left: there is an OUT")
            again = job.run(out) if done.code else done
            tally.check(again.code in (9, 0), f"{left} bytes left, again: exit {again.code}: {again.error_line()!r}")
            disk.clear()
            ends_well(tally, f"{left} bytes were left", job, out, want)
            remove_job(out)
        disk.leave(0)
        scratch = small_job(place, 60, ["--mem-ram", "64M", *ON_DISK, "--batch", "4", "--batches", "2",
                                         "--offload-dir", disk.path])
        out = place.fresh()
        refuses(tally, "no space for scratch", scratch.run(out, "--mem-disk", "1G"), (9,), "--offload-dir")
        refuses(tally, "no space for scratch, default", scratch.run(out), (4, 9), "--mem-disk")
        disk.clear()
        ends_well(tally, "scratch has space again", scratch, out, want)
        disk.leave(1 << 20)
        done = place.sluice(*job.args(place.fresh()), SLUICE_CACHE_DIR=os.path.join(disk.path, "cache"))
        refuses(tally, "no space for streamed dummy layers", done, (9,), "small/cache", "free")
        left = sum(f.stat().st_blocks * 512 for f in os.scandir(os.path.join(disk.path, "cache")))
        tally.check(left < 128 << 10, f"dummy layers that did not fit left {left} bytes")
        packed = place.sluice("pack", place.model, "-o", os.path.join(disk.path, "a.pack"))
        refuses(tally, "no space for the pack", packed, (9,), "small/a.pack", "free")
        tally.check(not [f for f in os.listdir(disk.path) if "a.pack" in f], "a pack that did not fit left something")


@from_full
def read_only(tally, place, a):
    """Where nothing can be written it says so before it works."""
    job = small_job(place, 10)
    with Tmpfs(place.at("small"), 1 << 20) as disk:
        if not disk or not disk.options("ro"):
            tally.skip("read-only disk: tmpfs cannot be mounted here")
            return
        done = job.run(os.path.join(disk.path, "out.jsonl"))
        refuses(tally, "OUT on a read-only disk", done, (2, 9), "small/out.jsonl", "ead-only")
        done = job.run(place.fresh(), "--offload-dir", disk.path)
        refuses(tally, "scratch on a read-only disk", done, (2, 4, 9), "--mem-disk")
        in_ram = small_job(place, 10, ["--mem-ram", "96M"])  # writes nothing there
        done = place.sluice(*in_ram.args(place.fresh()), "--offload-dir", disk.path, SLUICE_CACHE_DIR=place.at("unmeasured"))
        tally.check(done.code == 0 and done.err.count("the plan assumes a disk of") == 1,
                    f"a disk that cannot be measured: exit {done.code}: {done.err[-300:]!r}")
        done = place.sluice(*job.args(place.fresh()), SLUICE_CACHE_DIR=os.path.join(disk.path, "cache"))
        refuses(tally, "cache on a read-only disk", done, (2, 9), "small/cache", "SLUICE_CACHE_DIR")


@from_full
def file_limit(tally, place, a):
    """A limit on file sizes is a full disk, not a death by signal."""
    job = small_job(place, 60, ["--mem-ram", "96M"])
    want, _ = job.whole(tally)
    out = place.fresh()
    limited = Job(place, job.source, job.flags, ("bash", "-c", 'ulimit -f 12; exec "$@"', "bash"))
    refuses(tally, "ulimit -f", limited.run(out), (9,), os.path.basename(out))
    ends_well(tally, "after ulimit -f", job, out, want)


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (kills, signals, time_limit, two_at_once, other_flags, other_out,
                                       torn, disk_full, read_only, file_limit)))
