#!/usr/bin/env python3
"""Runs a command under limits: limited.py [--mib N] [--disk RATE:PATH]... COMMAND [ARG]...

--mib N          memory in MiB; includes page cache filled by the command; no swap
--disk RATE:PATH most bytes per second read from the disk of PATH, and the same for writes; may be given again
Control groups of its own, version 2 or 1, whichever is writable (as a rule: by root). The exit status is
the command's (137: usually killed for memory); 125 if no group can be made, with the reason. Prints on stderr the
peak charged memory, and the number of kills for memory. Pages that were in the page
cache before are not charged: drop them first (jobs.drop_cache). Standard library only.
"""
import argparse
import os
import signal
import subprocess
import sys

MIB = 1 << 20


def die(why):
    print(f"limited.py: {why}", file=sys.stderr)
    sys.exit(125)


def disk_of(path):
    """MAJOR:MINOR of the disk that holds a path: of the whole disk, because only whole disks can be limited."""
    dev = os.stat(path).st_dev
    at = os.path.realpath(f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}")
    if not os.path.isdir(at):
        die(f"{path}: not on a disk of its own (device {os.major(dev)}:{os.minor(dev)}): its rate cannot be held")
    if os.path.exists(os.path.join(at, "partition")):
        at = os.path.dirname(at)
    with open(os.path.join(at, "dev"), encoding="ascii") as f:
        return f.read().strip()


def mounts():
    """(version, controllers, mount point) of every hierarchy of control groups."""
    with open("/proc/mounts", encoding="utf-8") as f:
        for line in f:
            _, place, kind, options = line.split()[:4]
            if kind == "cgroup2":
                yield 2, set(), place
            elif kind == "cgroup":
                yield 1, set(options.split(",")), place


def own_group(controller):
    """Our own group in the hierarchy of a controller; of version 2: ""."""
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.split(",") or controller == names == "":
                return path
    return "/"


def put(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


def enabled(at, controller):
    """Version 2: whether groups below `at` may have the controller."""
    try:
        with open(os.path.join(at, "cgroup.controllers"), encoding="ascii") as f:
            if controller not in f.read().split():
                return False
        put(os.path.join(at, "cgroup.subtree_control"), f"+{controller}")
        return True
    except OSError:
        return False


def group_make(v1, v2, settings):
    """A new group with its settings, a list per version of (file, text, whether it may fail): its path and version."""
    for version, controllers, mount in mounts():
        if version == 1 and v1 not in controllers:
            continue
        own = own_group(v1 if version == 1 else "")
        for at in (own, os.path.dirname(own), "/"):
            above = mount + at.rstrip("/")
            place = os.path.join(above, f"sluice-bench-{v2}-{os.getpid()}")
            if version == 2 and not enabled(above, v2):
                continue
            try:
                os.mkdir(place)
            except OSError:
                continue
            try:
                for name, text, optional in settings[version]:
                    try:
                        put(os.path.join(place, name), text)
                    except OSError:
                        if not optional:
                            raise
                return place, version
            except OSError:
                os.rmdir(place)
    return die(f"no control group for {v2} can be made here: neither version 2 nor version 1 is writable (root?)")


def memory_group(mib):
    n = str(mib * MIB)
    return group_make("memory", "memory", {
        1: [("memory.limit_in_bytes", n, False), ("memory.memsw.limit_in_bytes", n, True)],
        2: [("memory.max", n, False), ("memory.swap.max", "0", True)]})


def disk_group(limits):
    """limits: (bytes per second, path) of each disk."""
    disks = [(int(float(rate)), disk_of(path)) for rate, path in limits]
    return group_make("blkio", "io", {
        1: [(f"blkio.throttle.{way}_bps_device", f"{disk} {rate}", False) for rate, disk in disks for way in ("read", "write")],
        2: [("io.max", f"{disk} rbps={rate} wbps={rate}", False) for rate, disk in disks]})


def memory_told(place, version, mib):
    peak, events = [("memory.max_usage_in_bytes", "memory.oom_control"), ("memory.peak", "memory.events")][version - 1]
    def read(name):
        try:
            with open(os.path.join(place, name), encoding="ascii") as f:
                return f.read()
        except OSError:
            return ""
    kills = [line.split()[1] for line in read(events).splitlines() if line.startswith("oom_kill ")]
    print(f"limited.py: limit {mib} MiB, peak charged {int(read(peak) or 0) // MIB} MiB, killed for memory "
          f"{kills[0] if kills else '?'} times", file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mib", type=int, default=0)
    p.add_argument("--disk", action="append", default=[])
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args()
    if not a.command:
        p.error("no command given")
    memory, groups = None, []
    for n in (signal.SIGINT, signal.SIGTERM):  # also sent to the process group; our control groups are removed in any case
        signal.signal(n, lambda *_: None)
    try:
        if a.mib:
            memory = memory_group(a.mib)
            groups.append(memory[0])
            os.environ["SLUICE_LIMIT_MIB"] = str(a.mib)
        if a.disk:
            groups.append(disk_group([d.split(":", 1) for d in a.disk])[0])

        def enter():
            for place in groups:
                put(os.path.join(place, "cgroup.procs"), str(os.getpid()))
        status = subprocess.call(a.command, preexec_fn=enter)
        if memory:
            memory_told(*memory, a.mib)
    finally:
        for place in groups:
            try:
                os.rmdir(place)
            except OSError:
                pass
    sys.exit(128 - status if status < 0 else status)


if __name__ == "__main__":
    main()
