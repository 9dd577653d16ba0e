#!/usr/bin/env python3
"""configs/cluster/*.sbatch under a Slurm on this machine: slurm_test.py [SLUICE] [--level LEVEL] [--only PART]

The recipes run as they are, on three nodes that are three slurmds here. From level full on a node is killed in the middle of
a job. Needs root and the packages slurm-wlm and munge.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from trial import Place, difference, from_full, job_rows, read, run_parts

HERE = os.path.dirname(os.path.abspath(__file__))
RECIPES = os.path.join(os.path.dirname(HERE), "configs/cluster")
NODES = 3


def wait_for(ready, limit_s=60):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if ready():
            return True
        time.sleep(0.02)
    return False


def pids(name):
    return [int(p) for p in subprocess.run(["pgrep", name], capture_output=True, text=True).stdout.split()]


def environ(pid):
    try:
        return read(f"/proc/{pid}/environ")
    except (ProcessLookupError, PermissionError):  # it has just ended, or is not ours
        return b""


def parent(pid):
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


CONF = """ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
PropagateResourceLimits=NONE
PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Slurm(Place):
    """A place with a Slurm of one controller and NODES slurmds on this machine: loopback, no systemd, no cgroups."""

    def __init__(self, folder, a):
        super().__init__(folder, a.sluice)
        self.slurm, self.daemons, self.why = self.at("slurm"), [], None
        self.env.update(SLURM_CONF=os.path.join(self.slurm, "slurm.conf"), SLUICE_BEAT_S="0.3",
                        PATH=os.path.dirname(self.binary) + ":" + os.environ["PATH"])
        if os.getuid() != 0:
            self.why = "needs root"
        elif not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
            self.why = "slurm-wlm and munge could not be downloaded"
        if self.why:
            return
        os.makedirs(self.slurm)
        os.makedirs(os.path.join(self.slurm, "state"))
        for path in (folder, self.slurm):
            os.chmod(path, 0o755)  # munged asks for that
        host = socket.gethostname().split(".")[0]
        nodes = range(1, NODES + 1)
        with open(self.env["SLURM_CONF"], "w", encoding="utf-8") as f:
            f.write(CONF.format(host=host, folder=self.slurm, nodes=NODES))
            for i in nodes:
                os.makedirs(os.path.join(self.slurm, f"n{i}"))
                f.write(f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={17000 + i} CPUs={os.cpu_count()} RealMemory=1000\n")
        key = self.write("slurm/key", os.urandom(128))
        os.chmod(key, 0o400)
        names = {x: os.path.join(self.slurm, x) for x in ("munge.sock", "munged.pid", "munged.log", "munge.seed")}
        self.daemon("munged", "-F", "--force", "--key-file=" + key, "--socket=" + names["munge.sock"], "--pid-file=" + names["munged.pid"],
                    "--log-file=" + names["munged.log"], "--seed-file=" + names["munge.seed"])
        wait_for(lambda: os.path.exists(names["munge.sock"]), 10)
        self.daemon("slurmctld", "-D")
        self.slurmd = {f"n{i}": self.daemon("slurmd", "-D", "-N", f"n{i}") for i in nodes}
        if not wait_for(lambda: self.command("sinfo", "-h", "-N", "-o", "%T").count("idle") == NODES, 30):
            self.why = "Slurm does not start here"
            print(self.log())

    def daemon(self, *command):
        self.daemons.append(subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self.daemons[-1]

    def stop(self):
        """Ends the daemons, and what is left of jobs, which would wait for them for ever."""
        for p in reversed(self.daemons):
            p.terminate()
        for p in self.daemons:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
        mine = b"SLURM_CONF=" + self.env["SLURM_CONF"].encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if mine in environ(pid):
                os.kill(pid, signal.SIGKILL)

    def command(self, *args):
        return subprocess.run(args, env=self.env, capture_output=True, text=True, cwd=self.folder, timeout=60).stdout.strip()

    def submit(self, recipe, *args):
        """The job's number. Flags of sbatch begin with --."""
        flags = [x for x in args if x.startswith("--") and "=" in x]
        return self.command("sbatch", "--parsable", "--chdir", self.folder, *flags, os.path.join(RECIPES, recipe),
                            *[x for x in args if x not in flags])

    def ended(self, job, limit_s=300):
        """Waits until no task of the job is in the queue."""
        deadline = time.monotonic() + limit_s
        while self.command("squeue", "-h", "-j", job) and time.monotonic() < deadline:
            time.sleep(0.5)
        return not self.command("squeue", "-h", "-j", job)

    def said(self):
        return "\n".join(read(self.at(f)).decode("utf-8", "replace") for f in sorted(os.listdir(self.folder))
                         if f.startswith("slurm-"))

    def log(self):
        return read(os.path.join(self.slurm, "slurmctld.log")).decode("utf-8", "replace")[-3000:]

    def alone(self, tally, n, tokens):
        source = self.rows("in.jsonl", job_rows(n, 21, tokens=tokens))
        out = self.fresh("alone")
        tally.check(self.sluice("run", "-m", self.model, "-i", source, "-o", out, "--progress", "none").code == 0, "alone")
        return source, read(out)

    def begin(self, tally):
        """A job of three nodes, of which some rows are claimed: (job, OUT, the bytes that OUT will have, 1 if it got that far)."""
        source, want = self.alone(tally, 24, (100, 200))
        out = self.fresh()
        claims = out + ".work/claims"
        job = self.submit("slurm-work-dir.sbatch", f"--nodes={NODES}", self.model, source, out, out + ".work", *SMALL)
        return job, out, want, wait_for(lambda: os.path.isdir(claims) and len(os.listdir(claims)) > 8)


SMALL = ["--mem-ram", "96M", "-t", "1", "--batch", "2", "--batches", "1"]


def work_dir(tally, place, a):
    """Three nodes share a job."""
    if place.why:
        return tally.skip(place.why)
    source, want = place.alone(tally, 40, (20, 60))
    out = place.fresh()
    job = place.submit("slurm-work-dir.sbatch", f"--nodes={NODES}", place.model, source, out, out + ".work", *SMALL)
    tally.check(place.ended(job), f"work dir: {place.command('squeue')}")
    tally.check(read(out) == want, f"work dir: {difference(want, read(out))}: {place.said()[-900:]}")
    done = place.said().count(" has done ")
    tally.check(done == NODES, f"work dir: {done} of {NODES} nodes took part")


def array(tally, place, a):
    """An array of which one task is missing; it runs again by what `merge --missing` prints."""
    if place.why:
        return tally.skip(place.why)
    source, want = place.alone(tally, 20, (10, 30))
    part = place.at("part")
    parts = [f"{part}.{i}.jsonl" for i in range(4)]
    tally.check(place.ended(place.submit("slurm-array.sbatch", "--array=0-1,3", place.model, source, part, "4", *SMALL)), "array")
    missing = place.sluice("merge", "--missing", *parts).out.strip()
    tally.check(missing == "2", f"missing: {missing!r}: {place.said()[-900:]}")
    tally.check(place.ended(place.submit("slurm-array.sbatch", f"--array={missing}", place.model, source, part, "4", *SMALL)), "array")
    out = place.fresh()
    done = place.sluice("merge", "-o", out, *parts)
    tally.check(done.code == 0 and read(out) == want, f"array: exit {done.code}: {done.last()}: {difference(want, read(out))}")


@from_full
def requeued(tally, place, a):
    """Slurm's notice (USR1) ends the tasks with exit 75; the job goes back into the queue, and resumes.
    Slurm starts it again 2 minutes later."""
    if place.why:
        return tally.skip(place.why)
    job, out, want, begun = place.begin(tally)
    place.command("scancel", "--signal=USR1", job)
    tally.check(begun and place.ended(job), f"requeued: {place.command('squeue')}")
    tally.check(read(out) == want, f"requeued: {difference(want, read(out))}: {place.said()[-900:]}")
    tally.check("Exited with exit code 75" in place.said(), f"requeued: nothing was interrupted: {place.said()}\n{place.log()}")


@from_full
def node_lost(tally, place, a):
    """slurmd, step and task of a node are killed in the middle: the other nodes do its rows at once."""
    if place.why:
        return tally.skip(place.why)
    job, out, want, begun = place.begin(tally)
    tasks = [p for p in pids("sluice") if b"SLURMD_NODENAME=n2" in environ(p)]
    steps = [parent(p) for p in tasks]
    tally.check(begun and tasks and set(steps) <= set(pids("slurmstepd")), f"node n2: tasks {tasks}, steps {steps}: {place.said()[-900:]}")
    for pid in (place.slurmd["n2"].pid, *steps, *tasks):
        os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    made = wait_for(lambda: read(out) == want, 120)
    tally.check(made, f"node lost: {difference(want, read(out))}: {place.said()[-900:]}")
    print(f"OUT is complete {time.monotonic() - start:.1f} s after the node was lost")
    place.command("scancel", job)


if __name__ == "__main__":
    places = []

    def make(folder, a):
        places.append(Slurm(folder, a))
        return places[0]

    try:
        code = run_parts(__doc__, [work_dir, array, requeued, node_lost], make)
    finally:
        for slurm in places:
            slurm.stop()
    sys.exit(code)
