#!/usr/bin/env python3
"""One job on several devices of a machine: devices_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

`run` and `score` with --devices, on simulated devices (tests/sim_device.c): OUT has the bytes of a run by one process, whatever
becomes of the processes; budgets and CPUs are divided; one device is as --device; what is refused.
"""
import json
import os
import random
import signal
import sys
import time

from sim_run_test import SIM, one_line
from trial import CODE_BYTES, MIB, difference, job_rows, pick, read, run_parts

RAM = 260 * MIB
STOPS = (("SIGTERM", 1), ("SIGINT", 3), ("SIGUSR1", 2))  # and how many devices go on


class Job:
    """A job, its bytes when one process runs it, and runs of it on devices."""

    def __init__(self, tally, place, rows, *flags, kind="run"):
        self.tally, self.place, self.flags, self.kind, self.n_rows = tally, place, flags, kind, len(rows)
        self.source = place.rows("in.jsonl", rows)
        self.fresh()
        done = place.sluice(*self.args(), "--device", f"{SIM}:1")
        self.want = read(self.out)
        tally.check(self.want and done.code in (0, 3), f"alone: exit {done.code}: {done.last()}")
        self.fresh()

    def fresh(self):
        self.out = self.place.fresh()
        self.dir, self.summary = self.out + ".work", self.out + ".summary"

    def args(self, *more):
        return [self.kind, "-m", self.place.model, "-i", self.source, "-o", self.out, "--progress", "none", "--batch", "3",
                "--batches", "2", *self.flags, *more]

    def start(self, which="all", n=2, *more, **env):
        return self.place.start(self.args("--devices", f"{SIM}:{which}", "--mem-ram", str(RAM), "--summary", self.summary, *more),
                                **{"SIM_DEVICES": str(n), "SLUICE_BEAT_S": "0.1", **env})

    def run(self, *args, **env):
        return self.start(*args, **env).end(120)

    def end(self, what, done, code=0):
        """OUT is what one process writes, and nothing else is left; what the summary says."""
        got = read(self.out)
        self.tally.check(done.code == code and got == self.want, f"{what}: exit {done.code}: {difference(self.want, got)}: {done.err[-900:]}")
        self.tally.check(not os.path.exists(self.dir), f"{what}: left in the folder: {left(self.dir)}")
        return json.loads(read(self.summary) or b"{}")


def left(folder):
    return [f for _, _, files in os.walk(folder) for f in files][:9]


def proc(pid, name):
    """A file of a process; empty if the process is gone."""
    try:
        return read(f"/proc/{pid}/{name}")
    except ProcessLookupError:
        return b""


def stat(pid):
    return proc(pid, "stat").rpartition(b")")[2].split()


def children(parent):
    """Process ids, in the order in which they were started."""
    stats = {int(p): stat(p) for p in os.listdir("/proc") if p.isdigit()}
    return sorted((p for p, s in stats.items() if s[1:2] == [str(parent).encode()]), key=lambda p: (int(stats[p][19]), p))


def words(pid):
    return proc(pid, "cmdline").decode().split("\0")


def workers(p, n, limit_s=60):
    """The processes of n devices, once they run the program."""
    p.wait_for(lambda: sum("--device" in words(k) for k in children(p.p.pid)) >= n, limit_s)
    return [k for k in children(p.p.pid) if "--device" in words(k)]


def rows_of(job):
    """Rows that are in the journals of the work directory."""
    told = job.place.sluice("status", job.dir, "--json")
    return json.loads(told.out)["rows"]["ok"] if told.code == 0 else 0


def status(pid, key):
    for line in proc(pid, "status").decode().splitlines():
        if line.startswith(key + ":"):
            return line.split(":", 1)[1].strip()
    return ""


def rss(pid):
    """Bytes in RAM, without the memory of the simulated device, which is shared."""
    return sum(int((status(pid, key) or "0").split()[0]) << 10 for key in ("RssAnon", "RssFile"))


def cpus(pid):
    found = set()
    for part in status(pid, "Cpus_allowed_list").split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1)) if low else set()
    return found


def shares(tally, place, a):
    """Two and three devices: the same bytes; all take part; budgets and CPUs are divided."""
    job = Job(tally, place, job_rows(60, 3, tokens=(20, 60)))
    for n in (2, 3):
        job.fresh()
        p, most, seen, early = job.start("all", n), 0, {}, 0
        while p.running():
            is_there = os.path.exists(job.summary)
            pids = children(p.p.pid)
            early += is_there and len(pids) > 0
            most = max(most, sum(map(rss, (p.p.pid, *pids))))
            now = {k: (words(k), cpus(k)) for k in pids}
            seen.update({k: x for k, x in now.items() if "--threads" in x[0] and x[1]})
            time.sleep(0.02)
        told = job.end(f"{n} devices", p.end())
        tally.check(early == 0, f"{n} devices: a summary before the last process has ended")
        each = [d["rows"] for d in told["devices"]]
        tally.check(sum(each) == job.n_rows and min(each) > 0 and len(each) == n, f"{n} devices did {each} of {job.n_rows} rows")
        tally.check(told["rows"]["ok"] == job.n_rows and told["exit_code"] == 0 and told["output_tokens"] ==
                    sum(d["output_tokens"] for d in told["devices"]) > 0 and told["peak_bytes"]["ram"] > 0, f"{n} devices: {told}")
        tally.check(len(seen) == n and 0 < most <= RAM + CODE_BYTES, f"{n} devices, {len(seen)} seen: {most / MIB:.0f} MiB")
        for flags, _ in seen.values():
            ram = int(flags[flags.index("--mem-ram", flags.index("--work-dir")) + 1])
            tally.check(RAM - n * MIB < n * (ram + CODE_BYTES) <= RAM, f"{n} devices have {ram} bytes of RAM each")
        whole = cpus(os.getpid())
        sets = [of for flags, of in seen.values()]
        if len(whole) >= 2 * n or (n == 2 and len(whole) == 2):
            tally.check(sorted(c for s in sets for c in s) == sorted(whole), f"CPUs {whole} are divided as {sets}")
    tally.check(all(f"{os.path.basename(SIM)}:{i}" in p.end().err for i in range(3)), f"a line for each: {p.end().err[-600:]}")


def planned(tally, place, a):
    """Without flags a worker plans for its part of the rows, so that the first does not begin all of them."""
    job = Job(tally, place, job_rows(60, 9, tokens=(20, 60)), "--batch", "0", "--batches", "0")
    told = job.end("planned", job.run())
    plan = told["devices"][0]["summary"]["plan"]  # when the second is ready, nothing may be left for it to plan
    tally.check(len(told["devices"]) == 2 and plan["batch"] * plan["batches"] <= 30, f"rows at once: {plan}")


def kinds(tally, place, a):
    """Rows that fail, scores, flags from a file, and a folder of the user's."""
    rows = job_rows(24, 4)
    rows[3] = {"custom_id": "bad", "prompt": 7}
    job = Job(tally, place, rows, "--kv-policy", "h2o", "--kv-budget", "48")
    told = job.end("a bad row", job.run(), 3)
    tally.check(told["rows"]["failed"] == 1 and told["rows"]["errors"], f"a bad row: {told['rows']}")
    scores = [{"context_ids": row["prompt_token_ids"], "continuation_ids": [5, 6, 7 + i]} for i, row in enumerate(job_rows(20, 16))]
    job = Job(tally, place, scores, kind="score")
    job.end("scores", job.run())
    again = job.run()
    tally.check(again.code == 0 and "20 of 20 rows ok" in again.err and read(job.out) == job.want, f"again: {again.code} {again.err[-300:]}")
    job.fresh()
    twice = [job.start(), job.start()]  # the same command, as from two machines
    done = [p.end() for p in twice]
    tally.check(done[1].code == 0, f"two commands: exit {done[1].code}: {done[1].last()}")
    job.end("two commands", done[0])
    job.fresh()
    flags = place.write("flags.cfg", f"devices = {SIM}:1,0\nmem-ram = 300M\n".encode())
    job.dir = place.at("own.work")
    done = place.sluice(*job.args("--config", flags, "--work-dir", job.dir, "--summary", job.summary))
    told = job.end("flags from a file", done)
    tally.check([d["device"].rpartition(":")[2] for d in told["devices"]] == ["1", "0"][:len(told["devices"])], f"order: {told['devices']}")


def kills(tally, place, a):
    """Processes are killed, the first or another, some or all; a device is lost."""
    job = Job(tally, place, job_rows(40, 5, tokens=(30, 70)))
    for n in range(pick(2, 8, 60)):
        r = random.Random(1000 * a.seed + n)
        job.fresh()
        p = job.start("all", 3)
        at = r.randrange(1, 12)
        found = workers(p, 3)
        p.wait_for(lambda: rows_of(job) >= at)
        victims = r.sample(found, min(r.choice((1, 1, 2)), len(found)))
        was_running = p.running()
        for k in victims:
            os.kill(k, signal.SIGKILL)
        done = p.end(120)
        told = job.end(f"kills, round {n}", done)
        warned = sum("take over its rows" in x and "signal 9" in x for x in done.err.splitlines())
        tally.check(not was_running or warned == len(victims) == sum(d["signal"] == 9 for d in told["devices"]),
                    f"kills, round {n}: {len(victims)} killed, {warned} told: {done.err[-600:]}")
    job.fresh()
    p = job.start("all", 2, SLUICE_BEAT_S="5")  # a beat that is missed would be noticed after 30 s
    found = workers(p, 2)
    p.wait_for(lambda: rows_of(job) >= 3)
    os.kill(found[1], signal.SIGKILL)
    start = time.monotonic()
    job.end("killed, long beats", p.end(120))
    tally.check(time.monotonic() - start < 25, "the rows of a dead process waited for its beats")
    job.fresh()
    p = job.start("0,1")
    found = workers(p, 2)
    p.wait_for(lambda: rows_of(job) >= 3)
    for k in found:
        os.kill(k, signal.SIGKILL)
    done = p.end(60)
    one_line(tally, "all killed", done, 75, "signal 9", "resumes")
    job.end("after all were killed", job.run())
    job.fresh()
    done = job.run("all", 2, SIM_LOSE="1:200")
    told = job.end("a lost device", done)
    tally.check([d["exit_code"] for d in told["devices"]] == [0, 6] and sum("exit 6" in x for x in done.err.splitlines()) == 1
                and "sluice: error" not in done.err, f"a lost device: {done.err[-600:]}")
    job.fresh()
    told = job.end("the first device is lost", job.run("all", 2, SIM_LOSE="0:200"))
    tally.check([d["exit_code"] for d in told["devices"]] == [6, 0], f"the first device is lost: {told['devices']}")


def stops(tally, place, a):
    """Signals and time limits end all processes; the same command resumes, on as many devices or not."""
    job = Job(tally, place, job_rows(40, 6, tokens=(30, 70)))
    for name, n_after in STOPS[:pick(2, 3)]:
        job.fresh()
        p = job.start("all", 2)
        found = workers(p, 2)
        p.wait_for(lambda: rows_of(job) >= 4)
        p.signal(getattr(signal, name))
        one_line(tally, name, p.end(60), 75, "interrupted", "resumes")
        tally.check(len(found) == 2 and not any(os.path.exists(f"/proc/{k}") for k in found), f"{name}: processes are left")
        tally.check(not os.path.exists(job.out) and read(os.path.join(job.dir, "job.json")), f"{name}: {left(job.dir)}")
        told = job.end(f"after {name}", job.run("all", n_after))
        tally.check(told["rows"]["ok"] == job.n_rows, f"after {name}: {told['rows']}")
    job.fresh()
    p = job.start("all", 2)
    found = workers(p, 2)
    p.wait_for(lambda: rows_of(job) >= 4)
    p.signal(signal.SIGKILL)
    p.end(60)
    deadline = time.monotonic() + 30
    while any(stat(k)[0:1] not in ([], [b"Z"]) for k in found) and time.monotonic() < deadline:
        time.sleep(0.02)
    tally.check(time.monotonic() < deadline and not os.path.exists(job.out), "a parent that was killed leaves processes behind")
    job.end("after the parent was killed", job.run("all", 2))
    job.fresh()
    one_line(tally, "--time-limit", job.run("all", 2, "--time-limit", "0.05s"), 75, "--time-limit", "resumes")
    job.end("after --time-limit", job.run("all", 2))


def alone(tally, place, a):
    """One device: no other process, and no folder."""
    job = Job(tally, place, job_rows(16, 7))
    for which, n in (("1", 2), ("all", 1)):
        job.fresh()
        p, others = job.start(which, n), 0
        while p.running():
            others += len(children(p.p.pid)) + os.path.exists(job.dir)
            time.sleep(0.01)
        told = job.end(f"--devices {which} of {n}", p.end())
        tally.check(others == 0 and "devices" not in told and told["device"] == "simulated", f"{which} of {n}: {others} others, {told}")


def refusals(tally, place, a):
    """One line, the right code, and nothing is made."""
    job = Job(tally, place, job_rows(8, 8))
    text = place.write("text.txt", b"some text\n")
    for what, code, says, args in (
            ("twice", 2, "twice", ["--devices", f"{SIM}:0,1,0"]),
            ("not there", 2, "no device 2 (this machine has 0 to 1)", ["--devices", f"{SIM}:0,2"]),
            ("no list", 2, "expected all or 0,2", ["--devices", f"{SIM}:0,x"]),
            ("an end", 2, "expected all or 0,2", ["--devices", f"{SIM}:0,"]),
            ("nothing", 2, "expected all or 0,2", ["--devices", ""]),
            ("below 0", 2, "expected all or 0,2", ["--devices", f"{SIM}:-1"]),
            ("a large number", 2, "no device", ["--devices", f"{SIM}:99999999999999999999"]),
            ("another kind", 2, "expected all or 0,2", ["--devices", "tpu:all"]),
            ("no library", 6, "none.so", ["--devices", place.at("none.so") + ":all"]),
            ("--device", 2, "does not go with --device", ["--devices", f"{SIM}:all", "--device", "cpu"]),
            ("--shard", 2, "does not go with --shard", ["--devices", f"{SIM}:all", "--shard", "0/2"]),
            ("-i -", 2, "does not go with --input -", ["--devices", f"{SIM}:all", "-i", "-"]),
            ("-o -", 2, "does not go with --output -", ["--devices", f"{SIM}:all", "-o", "-"]),
            ("--dry-run", 2, "does not go with --dry-run", ["--devices", f"{SIM}:all", "--dry-run"]),
            ("--trace", 2, "does not go with --trace", ["--devices", f"{SIM}:all", "--trace", place.at("t")]),
            ("--overwrite", 2, "does not go with --overwrite", ["--devices", f"{SIM}:all", "--overwrite"]),
            ("little RAM", 4, "--mem-ram", ["--devices", f"{SIM}:all", "--mem-ram", "40M"]),
            ("less than a plan needs", 4, "sizes are those of one of 2", ["--devices", f"{SIM}:all", "--mem-ram", "52M"])):
        done = place.sluice(*job.args(*args), limit_s=60)
        one_line(tally, what, done, code, says)
        tally.check(not os.path.exists(job.out), f"{what}: there is an OUT")
        tally.check(not os.path.exists(job.dir), f"{what}: there is a folder: {left(job.dir)}")
    done = place.sluice("score", "-m", place.model, "--text", text, "--devices", f"{SIM}:all")
    one_line(tally, "--text", done, 2, "does not go with --text")
    os.mkdir(job.dir)
    mine = os.path.join(job.dir, "mine")
    place.write(mine, b"mine\n")
    one_line(tally, "a folder of the user's", job.run(), 2, ".work", "--work-dir")
    tally.check(left(job.dir) == ["mine"] and read(mine) == b"mine\n", f"a folder of the user's: {left(job.dir)}")
    os.unlink(mine)
    job.end("an empty folder", job.run())
    job.fresh()
    os.symlink(place.folder, job.dir)
    one_line(tally, "a link", job.run(), 2, ".work", "--work-dir")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [shares, planned, kinds, kills, stops, alone, refusals]))
