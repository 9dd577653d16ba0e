#!/usr/bin/env python3
"""The power is cut: powercut_test.py [SLUICE] [--level LEVEL] [--seed N]

An ext4 file system on a loop device holds OUT, its companions, the packs and scratch of a job. At a call (tests/
tools/nth.c) or at a random moment it loses everything that was not written (EXT4_IOC_SHUTDOWN without a flush of
its log), the process dies, the disk is mounted again: every commit that had returned is there, and the same command
ends with the undisturbed bytes. 3 cuts, 1 at level check; level night (make powercut): 30. Needs root. Standard library only.
"""
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import kill_test
import nth
import trial
from trial import Journal, difference

SHUT_DOWN, NO_LOG_FLUSH = 0x8004587D, 2
DISK_BYTES = 48 << 20
CUTS = (("cut-after", "pwrite", "journal"), ("cut-after", "fdatasync", "journal"), ("cut-after", "rename", "OUT.tmp"),
        ("cut-before", "fdatasync", "journal"), ("cut-before", "fdatasync", "partial"), ("cut-after", "rename", "job.json"),
        ("cut-before", "fsync", "OUT's folder"), ("cut-after", "rename", "pack"), ("cut-before", "fsync", "pack"),
        ("cut-after", "fsync", "OUT.tmp"), ("cut-after", "unlink", "partial"), ("cut-after", "unlink", "journal"),
        ("cut-after", "rename", "codec"), ("cut-after", "pwrite", "scratch"), ("cut-before", "fsync", "codec"))


class Disk:
    """An ext4 file system in a file; its mount dies with this process (unshare -m)."""

    def __init__(self, folder):
        self.image, self.path = os.path.join(folder, "disk.img"), os.path.join(folder, "disk")
        os.mkdir(self.path)

    def make(self, *features):
        self.unmount()
        with open(self.image, "wb") as f:
            f.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", *features, self.image], check=True)
        self.mount()

    def mount(self):
        subprocess.run(["mount", "-o", "loop", self.image, self.path], check=True)

    def unmount(self):
        for _ in range(100):  # a process that has ended may hold files until its ring is taken down
            if not os.path.ismount(self.path):
                return
            if subprocess.run(["umount", self.path], capture_output=True, check=False).returncode:
                time.sleep(0.1)
        subprocess.run(["umount", "-l", self.path], check=True)

    def cut(self):
        fd = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(fd, SHUT_DOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(fd)


class Job(kill_test.Job):
    """As there, but everything lies on the disk, and every run is a first one."""

    def fresh(self):
        for name in ("jobs", "offload", "cache"):
            folder = self.place.at("disk/" + name)
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder)
        for f in os.listdir(self.place.at("probes")):
            shutil.copyfile(self.place.at("probes/" + f), self.place.at("disk/cache/" + f))
        return self.place.at("disk/jobs/out.jsonl")

    def args(self, out, *more):
        """Every run measures the codec for itself: what hangs on that, and so on which pass a token comes in, is fixed."""
        return [self.place.at("disk/offload") if x == self.place.at("offload") else x
                for x in kill_test.Job.args(self, out, "--prefill-tokens", "160", *more)]


def one_cut(tally, disk, job, what, act, delay_s):
    """One run that loses its disk; True when it was met under way."""
    disk.make()
    out, log = job.fresh(), job.place.at("cut.nth")
    os.sync()
    if os.path.exists(log):
        os.unlink(log)
    p = job.place.start(job.args(out), **nth.env(act, log, NTH_CUT=disk.path, **nth.EVERY_PASS))
    was_cut = False
    if not act:
        p.wait_for(lambda: time.monotonic() - p.start_s >= delay_s)
        if p.running():
            disk.cut()
            was_cut = True
            p.signal(signal.SIGKILL)
    done = p.end()
    if done.code != -signal.SIGKILL and not (was_cut and done.code):  # it may have met the dead disk before its end
        tally.check(done.code == 0 and job.rows(out) == job.want, f"{what}: not met: exit {done.code}: {done.err[-200:]!r}")
        return False
    disk.unmount()
    disk.mount()
    calls = nth.Log(log)
    held = Journal(out).tokens if os.path.exists(out + ".journal") and not os.path.exists(out) else None
    # The first of each made the journal; a commit had returned, too, when the next one was written.
    commits = max(calls.count("fdatasync", "journal") - 1, calls.count("pwrite", "journal") - 2, 0)
    commits = min(commits, len(job.commits) - 1)
    if commits > 0 and not os.path.exists(out):
        tally.check(held is not None and held >= job.commits[commits],
                    f"{what}: {held} tokens are there; {commits} commits had returned and held {job.commits[commits]}")
    if os.path.exists(out):
        tally.check(job.rows(out) == job.want, f"{what}: an OUT with its name: {difference(job.want, job.rows(out))}")
    again = job.run(out)
    got = job.rows(out)
    tally.check(again.code == 0 and got == job.want, f"{what}: then exit {again.code}: {again.err[-200:]!r}: "
                f"{difference(job.want, got)}")
    return True


def cuts(tally, place, a):
    if os.geteuid() != 0:
        tally.skip("power cuts: no root")
        return
    missing = [t for t in ("mkfs.ext4", "mount", "losetup") if not shutil.which(t)]
    if missing or not os.path.exists("/dev/loop-control"):
        tally.skip(f"power cuts: no loop devices ({' '.join(missing) or '/dev/loop-control'})")
        return
    disk, r = Disk(place.folder), random.Random(a.seed)
    place.env["SLUICE_CACHE_DIR"] = place.at("disk/cache")
    try:
        disk.make()
    except subprocess.CalledProcessError as e:
        tally.skip(f"power cuts: no loop devices ({e})")
        return
    try:
        os.makedirs(place.at("disk/offload"))
        os.mkdir(place.at("probes"))
        os.makedirs(place.at("cache"), exist_ok=True)  # kill_test.Job's, unused
        nth.prepare(place)
        done = place.sluice("plan", "-m", place.model, "--prompt-len", "8", "--gen-len", "4", "--num-prompts", "4",
                            "--mem-ram", "64M", "--offload-dir", place.at("disk/offload"))
        tally.check(done.code == 0, f"plan: exit {done.code}: {done.err[-200:]!r}")
        for f in os.listdir(place.at("disk/cache")):
            if f.startswith("probe-"):
                shutil.copyfile(place.at("disk/cache/" + f), place.at("probes/" + f))
        job = Job(tally, place, "first use")
        met = random_cuts = 0
        start = time.monotonic()
        job.run(job.fresh())
        whole_s = time.monotonic() - start
        n_cuts = trial.pick(1, 3, 30)
        for i in range(4 * n_cuts):
            if met == n_cuts:
                break
            act, call, kind = CUTS[(i if trial.NIGHT or i == 0 else r.randrange(len(CUTS))) % len(CUTS)]
            n = max(job.log.count(call, kind), 1)
            number = n if i == 0 else r.randint(1, n)  # the first time all but the last commit had returned
            at_random = i % 3 == 2
            what = "power cut " + ("at random" if at_random else f"{act} {call} of {kind}")
            met_one = one_cut(tally, disk, job, what, "" if at_random else
                              f"{act},{call},{number},0,{nth.pattern(kind)}", r.uniform(0.1, 0.9) * whole_s)
            met, random_cuts = met + met_one, random_cuts + (met_one and at_random)
        tally.check(met == n_cuts, f"only {met} power cuts met a job under way")
        print(f"power cuts: {met}, {random_cuts} of them at random moments", flush=True)
    finally:
        disk.unmount()


def mounts_of_its_own():
    """Starts the script again where its mounts are seen by nobody else and end with it."""
    if os.geteuid() == 0 and shutil.which("unshare") and "SLUICE_TEST_APART" not in os.environ:
        os.environ["SLUICE_TEST_APART"] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv])


if __name__ == "__main__":
    mounts_of_its_own()
    sys.exit(trial.run_parts(__doc__, (cuts,)))
