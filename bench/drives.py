#!/usr/bin/env python3
"""Several drives used as one, --offload-dir a,b,c: drives.py [flags]; the speed of a streamed job on 1, 2 and 4 drives.

The drives are files with a file system each (loop devices), read and written at most at RATE_MB MB/s each, by a control group; so
this needs root. The model's pack lies on the first. With several, sluice copies the streamed weights to all before the first
pass: startup_s has that time, elapsed_s has not. A row of bench/results/drives-CPU.csv is a run, with the columns of predict.py; flags
says how many drives. Can be stopped and continued like predict.py. --quick: seconds, no figures.
"""
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys

import planned  # first: it knows where the peers' modules are
import peer
from planned import Job

TURNS = 3
RATE_MB = 300
DRIVES = (1, 2, 4)
DRIVE_MIB = 6144  # a sparse file


def listed():
    yield Job("llama-3b, weights", "llama-3b", "q4", 32, 16, 12, "--mem-ram 1G --weights-resident 0")
    yield Job("llama-3b, weights and KV", "llama-3b", "q4", 32, 256, 12, "--mem-ram 1G --percent 0 0 0 0 0 100")


def quick():
    yield Job("weights", "llama-1b", "q4", 4, 8, 4, "--mem-ram 512M --weights-resident 0")


@contextlib.contextmanager
def drives(n, folder):
    """n mounted file systems, on loop devices."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unmounts
    with contextlib.ExitStack() as stack:
        places = []
        for i in range(n):
            image, place = (os.path.join(folder, f"{i}{end}") for end in (".img", ""))
            os.mkdir(place)
            with open(image, "wb") as f:
                f.truncate(DRIVE_MIB << 20)
            stack.callback(os.unlink, image)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image], check=True)
            device = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", image], check=True, stdout=subprocess.PIPE,
                                    text=True).stdout.strip()
            stack.callback(subprocess.run, ["losetup", "--detach", device], check=False)
            subprocess.run(["mount", device, place], check=True)
            stack.callback(subprocess.run, ["umount", place], check=False)
            places.append(place)
        yield places


def told(rows):
    lines = []
    for case in dict.fromkeys(r["case"] for r in rows):
        s = {}
        for r in rows:
            if r["case"] == case and r["status"] == "ok":
                s.setdefault(r["flags"], []).append(r)
        first = statistics.median(float(r["elapsed_s"]) for r in s.get("drives 1", ())) if "drives 1" in s else 0
        for label, mine in s.items():
            elapsed, start, ratio = (statistics.median(float(r[k]) for r in mine) for k in ("elapsed_s", "startup_s", "ratio"))
            lines.append(f"{case}: {label}: {elapsed:.1f} s after {start:.1f} s to start; {first / elapsed:.2f} x one drive; "
                         f"predicted / taken {ratio:.2f}; bound: {mine[0]['bound']}")
    return lines


def main():
    a, cases = planned.asked(planned.arguments("drives", __doc__, TURNS), "drives", listed, quick)

    def measured(bench):
        packs = {job: bench.pack(job) for job in cases}
        bench.open(job=f"drives of {RATE_MB} MB/s each")
        with drives(max(DRIVES), bench.work) as places:
            bench.under = [sys.executable, os.path.join(peer.HERE, "limited.py")]
            for place in places:
                bench.under += ["--disk", f"{RATE_MB}e6:{place}"]
            for job in cases:
                key = "quick" if a.quick else job.model, job.form
                bench.packs[key] = os.path.join(places[0], "model.pack")
                shutil.copyfile(packs[job], bench.packs[key])
                for turn in range(1, a.turns + 1):
                    for n in DRIVES:
                        if bench.time_is_up():
                            return True
                        flags = ["--offload-dir", ",".join(places[:n])]
                        code, said = bench.dry(job, *flags)  # first-use measurements
                        if code:
                            sys.exit(f"drives.py: {job.name}: exit {code}: {said.strip().splitlines()[-1:]}")
                        bench.measure(job, turn, job.name, f"drives {n}", flags)
        return False
    return planned.run(a, measured, told)


if __name__ == "__main__":
    sys.exit(main())
