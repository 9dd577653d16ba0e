#!/usr/bin/env python3
"""Weights that the devices of a machine share in RAM: shared_weights_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Jobs with --devices on simulated devices whose weights are in RAM: they are there once, all processes together keep to --mem-ram,
OUT has the bytes of a run by one process. A process is stopped or killed while it fills a layer; a stored byte is wrong; devices
differ in size; plans change during the run.
"""
import json
import os
import random
import shutil
import signal
import sys
import time

from devices_test import Job, children, left, proc, rows_of, words
from sim_run_test import SIM
from trial import CODE_BYTES, MIB, Place, job_rows, pick, read, run_parts

MODEL = """family = llama
dim = 512
layers = 12
heads = 8
kv_heads = 4
head_dim = 64
ffn = 1536
vocab = 3000
context = 512
tied = 0
"""
MARGIN = 64  # MiB of a device that no plan uses
IN_RAM = ["--percent", "0", "100", "100", "0", "100", "0"]  # the weights; all else on the device


def bed(tally, place, flags=IN_RAM):
    """A job of a packed model, the same for all parts; what is made on demand would not be shared."""
    if not hasattr(place, "job"):
        source = place.write("shared.cfg", MODEL.encode())
        place.model = place.at("shared.pack")
        place.expect(tally, "pack", 0, "pack", source, "-o", place.model)
        place.job = Job(tally, place, job_rows(24, 3, tokens=(20, 50)), *IN_RAM)
        told = place.job.end("ample", place.job.run("all", 2, "--mem-ram", "2G"))
        place.job.plan = told["devices"][0]["summary"]["plan"]
        place.job.shared = place.job.plan["shared_bytes"]
        tally.check(place.job.shared > 40 * MIB, f"shared: {place.job.shared} bytes of {place.job.plan}")
    place.job.flags = flags
    place.job.fresh()
    return place.job


def enough(job, n):
    """--mem-ram for n processes if the weights are there once."""
    return n * (CODE_BYTES + job.plan["ram_bytes"] - job.shared // 2 + MIB) + job.shared


def kib(pid, name, key):
    """A line of a file of a process, in bytes."""
    found = [x for x in proc(pid, name).decode().splitlines() if x.startswith(key + ":")]
    return int(found[0].split()[1]) << 10 if found else 0


def watch(p):
    """The most bytes of a run in RAM, shared ones counted once; and when all was mapped by all: (mapped shared bytes, those in RAM)."""
    most, mapped = 0, (0, 0)
    while p.running():
        pids = (p.p.pid, *children(p.p.pid))
        shared = [kib(k, "status", "RssShmem") for k in pids]
        most = max(most, max(shared) + sum(kib(k, "status", key) for k in pids for key in ("RssAnon", "RssFile")))
        mapped = max(mapped, (sum(shared), -sum(kib(k, "smaps_rollup", "Pss_Shmem") for k in pids)))  # of as many mapped the fewest
        time.sleep(0.01)
    return most, mapped[0], -mapped[1]


def stays_within(tally, what, told, most, ram):
    """All processes and their parent, less the memory of the simulated devices, which is RAM here."""
    used = most - told["peak_bytes"]["device"]
    tally.check(0 < used <= ram + CODE_BYTES, f"{what}: {used / MIB:.1f} MiB of {ram / MIB:.1f}")
    tally.check(told["peak_bytes"]["ram"] - told["peak_bytes"]["device"] <= ram, f"{what}: peaks of {told['peak_bytes']} for {ram}")


def plans(told):
    """Of the processes that came to have rows."""
    return [d["summary"]["plan"] for d in told["devices"] if "plan" in (d["summary"] or {})]


def read_bytes(worker):
    lanes = (worker["summary"] or {}).get("lanes", [])
    return sum(lane["bytes"] for lane in lanes if lane["name"] == "nvme-read")


def once(tally, place, a):
    """One, two and three devices: the same bytes; the weights are in RAM once, and are read once or little more."""
    job = bed(tally, place)
    for n in (2, 3):
        job.fresh()
        ram = enough(job, n)
        p = job.start("all", n, "--mem-ram", str(ram))
        most, mapped, there = watch(p)
        done = p.end()
        told = job.end(f"{n} devices", done)
        each = [plan["shared_bytes"] for plan in plans(told)]
        tally.check(len(each) > 1 and set(each) == {job.shared}, f"{n} devices share {each} of {job.shared} bytes")
        tally.check(f"its part of {job.shared >> 20} MiB shared" in done.err, f"{n} devices: {done.err[-600:]}")
        stays_within(tally, f"{n} devices", told, most, ram)
        peaks = told["peak_bytes"]["ram"]
        tally.check(peaks <= most + 12 * MIB, f"{n} devices: their peaks add up to {peaks / MIB:.1f} MiB, {most / MIB:.1f} were seen")
        tally.check(there <= 1.02 * job.shared and mapped >= 0.98 * n * job.shared, f"{n} devices: {there} of {job.shared}, mapped {mapped}")
        came = sum(map(read_bytes, told["devices"]))
        passes = sum(d["summary"].get("passes", 0) for d in told["devices"])
        tally.check(came <= (n + 0.5) * job.shared and passes > 4 * n, f"{n} devices read {came / job.shared:.1f} x in {passes} passes")


def more(tally, place, a):
    """Under the same --mem-ram more layers are in RAM than if each process had its own."""
    job = bed(tally, place, ["--mem-device", "40M"])
    ram = enough(job, 2)
    told = job.end("shared", job.run("all", 2, "--mem-ram", str(ram)))
    file = place.at("alone.json")
    place.expect(tally, "alone", 0, "plan", "-m", place.model, "-i", job.source, "--batch", "3", "--batches", "2", *job.flags,
                 "--device", f"{SIM}:0", "--mem-ram", str(ram // 2 - CODE_BYTES), "--no-advice", "-o", file)
    own = json.loads(read(file))["plan"]
    shared = [round(float(plan["percent"].split()[1]) * 13 / 100) for plan in plans(told)]  # percents are cut after two places
    least = 1.25 * own["weights_ram"]  # by bytes it is 2; the plans of the two differ in what else they keep in RAM
    tally.check(min(shared) >= least > 0, f"{shared} of 13 layers are in RAM, alone {own['weights_ram']}")


def locks(pid):
    """Bytes of the memory file that a process has locked."""
    try:
        inode = str(os.stat(f"/proc/{pid}/fd/4").st_ino)
    except OSError:
        return []
    return [w[-2] for w in map(str.split, read("/proc/locks").decode().splitlines())
            if w[1] == "POSIX" and str(pid) in w and w[-3].rpartition(":")[2] == inode]


def fills(tally, place, a):
    """While one process fills a layer and is stopped, the others go on; when it is killed, another process fills the layer."""
    job = bed(tally, place)
    ram = str(enough(job, 2))
    for name in ("stopped", "killed"):
        job.fresh()
        p, found = job.start("all", 2, "--mem-ram", ram), []

        def is_filling():
            found[:] = [k for k in children(p.p.pid) if locks(k)]
            return found
        p.wait_for(is_filling)
        os.kill(found[0], signal.SIGSTOP)
        dead = sorted(children(p.p.pid)).index(found[0])  # on a busy machine the second may be seen first
        held = locks(found[0])
        if name == "stopped":
            p.wait_for(lambda: rows_of(job) >= 4)
            tally.check(p.running() and held and locks(found[0]) == held, f"{name}: {held} were locked, {locks(found[0])} are")
        os.kill(found[0], signal.SIGKILL)
        told = job.end(name, p.end(120))
        tally.check([d["signal"] for d in told["devices"]] == ([None, 9] if dead else [9, None]), f"{name}: {told['devices']}")
        came, other = read_bytes(told["devices"][1 - dead]), told["devices"][1 - dead]["summary"]
        tally.check(name == "stopped" or not held or (came < 1.5 * job.shared and other["passes"] >= 20),
                    f"{name}: {came / job.shared:.1f} x all layers were read in {other['passes']} passes")


def damaged(tally, place, a):
    """A stored byte is wrong: no process uses what another has read."""
    job = bed(tally, place)
    right, place.model = place.model, place.at("damaged.pack")
    shutil.copyfile(right, place.model)
    with open(place.model, "r+b") as f:
        f.seek(os.path.getsize(place.model) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 4]))
    done = job.run("all", 2)
    place.model = right
    tally.check(done.code == 7 and not os.path.exists(job.out), f"exit {done.code}: {left(job.dir)}: {done.err[-600:]}")


def resumed(tally, place, a):
    """The first process of a resumed job, whose folder has all that the others need, still decides alone what is shared."""
    job = bed(tally, place)
    ram = str(enough(job, 2))
    p = job.start("all", 2, "--mem-ram", ram)
    p.wait_for(lambda: rows_of(job) >= 4)
    p.signal(signal.SIGTERM)
    tally.check(p.end(60).code == 75, "a signal: no exit 75")
    p, found = job.start("all", 2, "--mem-ram", ram), []

    def is_there():
        found[:] = [k for k in children(p.p.pid) if "--device" in words(k)]
        return found
    p.wait_for(is_there)
    os.kill(found[0], signal.SIGSTOP)
    time.sleep(1)
    early = len(children(p.p.pid))
    os.kill(found[0], signal.SIGCONT)
    told = job.end("resumed", p.end())
    tally.check(early == 1 and len(told["devices"]) == 2, f"{early} of {len(told['devices'])} processes before the first has planned")


def on_demand(tally, place, a):
    """Layers of a model that is made on demand are not in its file: each process makes its own."""
    os.mkdir(place.at("on-demand"))
    own = Place(place.at("on-demand"), place.binary)
    job = Job(tally, own, job_rows(12, 3), *IN_RAM)
    told = job.end("on demand", job.run())
    tally.check(plans(told) and not any(plan["shared_bytes"] for plan in plans(told)), f"on demand: {told['devices']}")


def differ(tally, place, a):
    """A smaller device has other layers in its memory than the first, and takes from RAM what the first decided to share."""
    job = bed(tally, place, [])
    for sizes in ((40, 32), (32, 40)):  # more than a layer apart
        job.fresh()
        ram = enough(job, 2)
        memory = ",".join(f"{i}:{(MARGIN + size) * MIB}" for i, size in enumerate(sizes))
        p = job.start("all", 2, "--mem-ram", str(ram), SIM_MEMORY=memory)
        most = watch(p)
        told = job.end(f"sizes of {sizes}", p.end())
        each = {(plan["shared_bytes"], plan["percent"].split()[0]) for plan in plans(told)}
        tally.check(len({shared for shared, _ in each}) == 1 and min(each)[0] > 0, f"sizes of {sizes}: {each}")
        tally.check(sizes[0] < sizes[1] or len(each) == len(plans(told)), f"sizes of {sizes}: plans alike: {each}")
        stays_within(tally, f"sizes of {sizes}", told, most[0], ram)


def changes(tally, place, a):
    """Plans change in the middle: with the shared layers, without, and with them again."""
    job = bed(tally, place, ["--mem-device", "40M"])
    for n in range(pick(1, 2, 20)):
        job.fresh()
        ram = enough(job, 2) + random.Random(100 * a.seed + n).randrange(0, 60) * MIB
        p = job.start("all", 2, "--mem-ram", str(ram), SLUICE_REPLAN=f"5,{100 * a.seed + n}")
        most = watch(p)
        told = job.end(f"plans change, round {n}", p.end())
        counts = [d["summary"]["replans"]["count"] for d in told["devices"] if "replans" in d["summary"]]
        tally.check(max(counts) > 1, f"plans changed {counts} times")
        stays_within(tally, f"plans change, round {n}", told, most[0], ram)


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [once, more, fills, damaged, resumed, on_demand, differ, changes],
                       lambda folder, a: Place(folder, a.sluice)))
