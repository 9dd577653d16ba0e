#!/usr/bin/env python3
"""What machines do to jobs: trouble_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Folders that go away, disks that turn read-only or have bad sectors, signals, clocks that jump, a control group just
above what --mem-ram promises: the job ends with its bytes, or with one line and a code, and resumes. What fails at the
n-th call is nth_test's, full disks are crash_test's. Some parts need root and loop devices. Standard library only.
"""
import errno
import fcntl
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import nth
import powercut_test
import trial
from trial import ALL_ON_DISK, CODE_BYTES, Journal, difference, read

FIEMAP, FIEMAP_SYNC = 0xC020660B, 1
WATCHDOG_S = 60
THIRD_COMMIT = "stop-after,fdatasync,3,0,*.journal"
WIDE = nth.TINY.replace("dim = 64\nlayers = 2", "dim = 256\nlayers = 12")


class Job:
    """A job of some seconds' work that streams its weights and keeps KV and hidden states on disk."""

    def __init__(self, tally, place, model=None, tokens=(60, 90)):
        self.place, self.model = place, model or place.model
        self.source = place.rows(f"in-{tokens[1]}.jsonl", nth.rows(12, 9, tokens))
        out = self.fresh()
        done = self.start(out).end()
        self.want = read(out)
        tally.check(done.code == 0 and self.want, f"left alone: exit {done.code}: {done.err[-300:]!r}")

    def fresh(self, folder="jobs"):
        self.place.n += 1
        return self.place.at(f"{folder}/out-{self.place.n}.jsonl")

    def args(self, out, *more):
        return ["run", "-m", self.model, "-i", self.source, "-o", out, "--offload-dir", self.place.at("offload"),
                "--mem-ram", "64M", "--progress", "none", "-t", "1", "--batch", "3", "--batches", "2", *ALL_ON_DISK,
                *more]

    def start(self, out, *more, wrapper=(), **env):
        return self.place.start(self.args(out, *more), wrapper, **{**nth.EVERY_PASS, **env})

    def under_way(self, out, deed, *more, **env):
        """Stopped at the third commit, deed(p), and on: a job of a tenth of a second is not done before."""
        p = self.start(out, *more, **nth.env(THIRD_COMMIT, **env))
        p.met = p.wait_for(p.stopped) and Journal(out).tokens > 0
        deed(p)
        p.signal(signal.SIGCONT)
        return p

    def ends(self, tally, what, done, out):
        got = read(out)
        tally.check(done.code == 0 and got == self.want, f"{what}: exit {done.code}, {done.err[-200:]!r}: "
                    f"{difference(self.want, got)}")

    def fails(self, tally, what, done, codes, *words):
        lines = [x for x in done.err.splitlines() if "error: " in x]
        tally.check(done.code in codes and len(lines) == 1 and all(w in lines[0] for w in words),
                    f"{what}: exit {done.code}, want {codes} and {words}: {done.err[-300:]!r}")

    def resumes(self, tally, what, out, *more):
        self.ends(tally, f"{what}, resumed", self.start(out, *more).end(), out)


def folders(tally, place, a):
    """The offload folder has no part in the run any more; OUT's folder has."""
    nth.prepare(place)
    job = Job(tally, place)
    out = job.fresh()
    p = job.under_way(out, lambda p: shutil.rmtree(place.at("offload")))
    tally.check(p.met, "the offload folder: the job was not under way")
    job.ends(tally, "the offload folder was removed", p.end(), out)
    os.mkdir(place.at("offload"))
    os.mkdir(place.at("gone"))
    out = job.fresh("gone")
    p = job.under_way(out, lambda p: shutil.rmtree(place.at("gone")))
    job.fails(tally, "OUT's folder was removed", p.end(), (9,), "gone")
    os.mkdir(place.at("gone"))
    job.resumes(tally, "OUT's folder is there again", out)
    os.mkdir(place.at("moved"))
    out = job.fresh("moved")
    p = job.under_way(out, lambda p: os.rename(place.at("moved"), place.at("elsewhere")))
    job.fails(tally, "OUT's folder was moved", p.end(), (9,), "moved")
    os.rename(place.at("elsewhere"), place.at("moved"))
    job.resumes(tally, "OUT's folder is back", out)
    for kind in ("read.estale=1/60", "write.estale=1/60", "write.erofs=1/60"):
        out = job.fresh()
        done = job.start(out, SLUICE_FAULT=f"seed={a.seed},{kind}").end()
        tally.check(done.code == 9, f"{kind}: exit {done.code}: {done.err[-200:]!r}")
        job.resumes(tally, kind, out)


def signals(tally, place, a):
    """SIGPIPE is nothing, SIGXCPU and SIGTERM are a wish to stop, a stopped process goes on as if nothing had been."""
    nth.prepare(place)
    job = Job(tally, place)
    out = job.fresh()
    p = job.under_way(out, lambda p: p.signal(signal.SIGPIPE))
    tally.check(p.met, "SIGPIPE: the job was not under way")
    job.ends(tally, "SIGPIPE", p.end(), out)
    out = job.fresh()
    reader, writer = os.pipe()
    quiet = subprocess.Popen([place.binary, *job.args(out, "--progress", "lines")], stdin=subprocess.DEVNULL,
                             stdout=writer, stderr=writer, env=place.env)
    os.close(writer)
    os.close(reader)  # every line of the run meets EPIPE
    quiet.wait()
    tally.check(quiet.returncode == 0 and read(out) == job.want, f"nobody reads stderr: exit {quiet.returncode}")
    for number in (signal.SIGXCPU, signal.SIGTERM):
        out = job.fresh()
        p = job.under_way(out, lambda p: p.signal(number))
        done = p.end()
        tally.check(p.met and done.code == 75, f"{number.name}: exit {done.code}: {done.err[-200:]!r}")
        job.resumes(tally, number.name, out)
    out = job.fresh()
    p = job.under_way(out, lambda p: None, SLUICE_FAULT=f"seed={a.seed},delay=1/3,reorder=1/3")
    for i in range(5):
        p.signal(signal.SIGSTOP)
        time.sleep(WATCHDOG_S + 5 if trial.NIGHT and i == 0 else 0.2)
        p.signal(signal.SIGCONT)
        time.sleep(0.02)
    tally.check(p.met, "SIGSTOP: the job was not under way")
    job.ends(tally, "SIGSTOP", p.end(), out)


def packing(tally, place, a):
    """SIGINT while a model is packed: exit 75, and the folder of the pack stays empty."""
    nth.prepare(place)
    os.mkdir(place.at("packs"))
    args = ["pack", nth.text_model(place.at("hf")), "-o", place.at("packs/a.pack")]
    p = place.start(args, **nth.env(f"stop-after,create,1,0,{nth.pattern('pack')}"))
    met = p.wait_for(p.stopped)
    p.signal(signal.SIGINT)
    p.signal(signal.SIGCONT)
    done = p.end()
    tally.check(met and done.code == 75 and "interrupted while packing" in done.error_line() and not os.listdir(place.at("packs")),
                f"SIGINT while packing: exit {done.code}: {done.err[-200:]!r}, {os.listdir(place.at('packs'))}")


@trial.from_full
def clocks(tally, place, a):
    """The wall clock jumps by years between any two looks at it."""
    nth.prepare(place)
    job = Job(tally, place)
    for more in ((), ("--time-limit", "600s", "--summary", place.at("summary.json"))):
        out, log = job.fresh(), place.at("clock.nth")
        done = job.start(out, *more, **nth.env(log=log, NTH_CLOCK="1")).end()
        tally.check(nth.Log(log).counts.get("jumps", 0) > 2, f"clock jumps {more}: the clock stood still")
        job.ends(tally, f"clock jumps {more}", done, out)
        os.unlink(log)
    out = job.fresh()
    p = job.under_way(out, lambda p: p.signal(signal.SIGKILL), NTH_CLOCK="1")
    tally.check(p.end().code == -signal.SIGKILL, "a jumping clock: the job was not killed")
    job.resumes(tally, "killed under a jumping clock", out)


# ---- disks -------------------------------------------------------------------------------------------------

def loop_disk(tally, place, what, *features):
    """A mounted ext4 file system, or None and the reason as a skip."""
    if os.geteuid() != 0:
        tally.skip(f"{what}: no root")
        return None
    if not shutil.which("mkfs.ext4") or not os.path.exists("/dev/loop-control"):
        tally.skip(f"{what}: no loop devices")
        return None
    disk = powercut_test.Disk(place.folder)
    try:
        disk.make(*features)
    except subprocess.CalledProcessError as e:
        tally.skip(f"{what}: no loop devices ({e})")
        return None
    return disk


@trial.from_full
def read_only(tally, place, a):
    """The file system of OUT turns read-only under the run, as after an error of its own."""
    disk = loop_disk(tally, place, "read-only remount")
    if not disk:
        return
    try:
        nth.prepare(place)
        job = Job(tally, place)
        disk.unmount()
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", disk.image, disk.path], check=True)
        source = subprocess.run(["findmnt", "-no", "SOURCE", disk.path], capture_output=True, text=True, check=True)
        trigger = f"/sys/fs/ext4/{os.path.basename(source.stdout.strip())}/trigger_fs_error"
        out = job.fresh("disk")
        p = job.under_way(out, lambda p: pathlib.Path(trigger).write_text("trouble_test\n"))
        done = p.end()
        job.fails(tally, "OUT's file system turned read-only", done, (9,), "disk/out-")
        disk.unmount()
        subprocess.run(["fsck.ext4", "-y", disk.image], capture_output=True, check=False)
        disk.mount()
        job.resumes(tally, "it can be written again", out)
    finally:
        disk.unmount()


def middle_of(path):
    """Where on its disk the middle of a file lies."""
    half = os.path.getsize(path) // 2
    ask = bytearray(struct.pack("=QQIIII", half, 4096, FIEMAP_SYNC, 0, 1, 0) + bytes(56))
    with open(path, "rb") as f:
        fcntl.ioctl(f, FIEMAP, ask)
    logical, physical, _ = struct.unpack_from("=QQQ", ask, 32)
    return physical + half - logical


@trial.from_full
def bad_sectors(tally, place, a):
    """A device that gives EIO for half of a pack: 9 with the file's name, then, healed, the undisturbed bytes."""
    disk = loop_disk(tally, place, "bad sectors", "-O", "^has_journal")  # it would lie in the middle
    if not disk:
        return
    try:
        nth.prepare(place)
        config = place.write("wide.cfg", WIDE.encode())
        pack = os.path.join(disk.path, "wide.pack")
        done = place.sluice("pack", config, "-o", place.at("jobs/wide.pack"), "-q")
        good = place.at("jobs/wide.pack")
        first = Job(tally, place, good, tokens=(6, 9))  # dummy layers are added to the pack here
        shutil.copyfile(good, pack)
        tally.check(done.code == 0 and os.path.getsize(pack) > 1 << 20, f"pack: exit {done.code}")
        cut, whole = middle_of(pack) // 4096 * 4096, disk.image + ".whole"
        disk.unmount()
        shutil.copyfile(disk.image, whole)
        device = subprocess.run(["losetup", "--show", "-f", disk.image], capture_output=True, text=True, check=True)
        loop = device.stdout.strip()
        try:
            for io in ("auto", "threads"):
                os.truncate(disk.image, cut)  # the device keeps its size: what lies behind is EIO
                subprocess.run(["mount", loop, disk.path], check=True)
                first.model, out = pack, first.fresh()
                done = first.start(out, "--io", io).end()
                # 7: some loop devices give zeros, now and then, for a read that goes over the end of their file
                first.fails(tally, f"EIO of weights, --io {io}", done, (9, 7), "wide.pack")
                disk.unmount()
                with open(disk.image, "r+b") as image, open(whole, "rb") as f:
                    shutil.copyfileobj(f, image)
                subprocess.run(["mount", loop, disk.path], check=True)
                first.resumes(tally, f"EIO of weights, --io {io}, healed", out)
                disk.unmount()
        finally:
            disk.unmount()
            subprocess.run(["losetup", "-d", loop], check=False)
    finally:
        disk.unmount()


# ---- control groups -----------------------------------------------------------------------------------------

class Group:
    """A memory control group of v1 or v2; as a context, None where none can be made."""

    def __init__(self, limit_bytes):
        self.limit_bytes, self.path = limit_bytes, None

    def __enter__(self):
        for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            path = os.path.join(base, f"sluice-test-{os.getpid()}")
            try:
                os.mkdir(path)
                with open(os.path.join(path, limit), "w") as f:
                    f.write(str(self.limit_bytes))
                self.path = path
                return self
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)
        return None

    def __exit__(self, *_):
        for _ in range(50):
            try:
                if self.path:
                    os.rmdir(self.path)
                return
            except OSError as e:  # its last process may not be gone yet
                if e.errno != errno.EBUSY:
                    return
                time.sleep(0.1)

    def wrapper(self):
        return ("sh", "-c", f'echo $$ >{self.path}/cgroup.procs; exec "$@"', "sh")

    def lower(self, limit_bytes, process):
        """First as a wish (v1's soft limit, v2's memory.high), then as a wall, once what is there fits below it."""
        v1 = os.path.exists(os.path.join(self.path, "memory.limit_in_bytes"))
        for name in ("memory.soft_limit_in_bytes", "memory.limit_in_bytes") if v1 else ("memory.high", "memory.max"):
            while process.running():
                fits = v1 or name == "memory.high" or int(read(os.path.join(self.path, "memory.current"))) < limit_bytes
                try:
                    if fits:
                        with open(os.path.join(self.path, name), "w") as f:
                            f.write(str(limit_bytes))
                        break
                except OSError:
                    pass
                time.sleep(0.05)
        return process.running()

    def killed(self):
        for name, key in (("memory.oom_control", "oom_kill"), ("memory.events", "oom_kill")):
            for line in read(os.path.join(self.path, name)).decode().splitlines():
                if line.split()[:1] == [key]:
                    return int(line.split()[1])
        return 0


@trial.from_full
def control_group(tally, place, a):
    """A live limit just above --mem-ram + 24 MiB: no OOM kill. Files lie on a disk: those of tmpfs would count."""
    budget = 48 << 20
    with tempfile.TemporaryDirectory(prefix="sluice-", dir="/var/tmp") as folder, Group(budget + CODE_BYTES) as group:
        if not group:
            tally.skip("control group: " + ("no root" if os.geteuid() else "no memory controller to write to"))
            return
        real = trial.Place(folder, place.binary)
        nth.prepare(real)
        job = Job(tally, real)
        for more in ((), ("--percent", "0", "100", "0", "100", "0", "100"), ("--weights-codec", "zstd"),
                     ("--batch", "12", "--batches", "1", "--io", "threads")):
            out = job.fresh()
            done = job.start(out, "--mem-ram", str(budget >> 20) + "M", *more, wrapper=group.wrapper()).end()
            job.ends(tally, f"control group, {' '.join(more)}", done, out)
            tally.check(group.killed() == 0, f"control group, {' '.join(more)}: {group.killed()} OOM kills")


if __name__ == "__main__":
    powercut_test.mounts_of_its_own()
    sys.exit(trial.run_parts(__doc__, (folders, signals, packing, clocks, read_only, bad_sectors, control_group)))
