#!/usr/bin/env python3
"""A disk that lies: fault_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

Faults from a seed (SLUICE_FAULT, ring_fault.c) and packs damaged on the disk. What heals ends with
the bytes of a run without faults; what does not ends with one line, an exit code, and a job that resumes.
Reads that bring wrong bytes are verify_test's. Standard library only.
"""
import os
import random
import sys

import trial
from trial import ALL_ON_DISK, H2O, NIGHT, ON_DISK, difference, from_full, job_rows, pick, read

HARMLESS = ("read.short=1/4,again=1/9", "delay=1/4,reorder=1/3", "short=1/6,intr=1/9,busy=1/20,delay=1/5,reorder=1/5",
            "again=1/3", "read.einval=1/50", "einval=1/1", "reorder=1/1")
SETTINGS = {
    "streaming": ["--weights-resident", "0", "--batch", "4", "--batches", "2"],
    "KV on disk": [*ON_DISK, "--batch", "4", "--batches", "3"],
    "h2o, all on disk": [*ALL_ON_DISK, *H2O, "--batch", "3", "--batches", "4"],
}
KV_ONLY = ["--percent", "0", "100", "0", "0", "0", "100", "--batch", "4", "--batches", "3"]


class Job:
    """Rows and flags whose OUT without faults is known."""

    def __init__(self, tally, place, name, rows, flags, model=None):
        self.tally, self.place, self.flags, self.model = tally, place, flags, model or place.model
        self.source = place.rows(name, rows)
        out = place.fresh()
        done = self.run(out, "")
        tally.check(done.code == 0 and read(out), f"without faults: exit {done.code}: {done.err[-300:]!r}")
        self.want = read(out)

    def run(self, out, faults, *more):
        env = {"SLUICE_FAULT": faults} if faults else {}
        return self.place.sluice("run", "-m", self.model, "-i", self.source, "-o", out, "--mem-ram", "64M",
                                 "--progress", "none", "-t", "1", *self.flags, *more, **env)

    def meets(self, faults, codes, *more, resumes=True):
        """One run under faults: OUT as without them, or one of the codes with one line, then a resume."""
        out, what = self.place.fresh(), f"{faults} {' '.join(self.flags)}"
        done = self.run(out, faults, *more)
        if done.code == 0:
            self.tally.check(read(out) == self.want, f"{what}: other bytes: {difference(self.want, read(out))}")
            return done
        lines = [x for x in done.err.splitlines() if x.startswith("sluice: error: ")]
        self.tally.check(done.code in codes and len(lines) == 1 and not read(out),
                         f"{what}: exit {done.code}, want {codes}: {done.err[-300:]!r}")
        if resumes:
            again = self.run(out, "", *more)
            self.tally.check(again.code == 0 and read(out) == self.want,
                             f"{what}: exit {done.code}, then {again.code}: {difference(self.want, read(out))}")
        return done


def seeds(a, few, many):
    return range(a.seed, a.seed + pick(few, few, many))


@from_full
def harmless(tally, place, a):
    """Short, late, out of order, refused and asked again: nobody notices."""
    rows = job_rows(24, 11)
    for name, flags in SETTINGS.items():
        job = Job(tally, place, "in.jsonl", rows, flags)
        for faults in HARMLESS if NIGHT or name != "streaming" else HARMLESS[2:3]:
            for seed in seeds(a, 1, 6):
                for io in ("auto", "threads") if NIGHT else (("auto", "threads")[seed % 2],):
                    job.meets(f"seed={seed},{faults}", (), "--io", io)


def count(tally, what, codes, *wanted):
    print(f"{what}: " + ", ".join(f"{codes.count(c)} ended with {c}" for c in sorted(set(codes))), flush=True)
    for c in wanted:
        tally.check(c in codes, f"{what}: no run ended with {c}")


def recomputed(done):
    return done.err.count("will be computed again")


@from_full
def read_errors(tally, place, a):
    """EIO: read once more, then 9 for weights; for KV the rows are computed again."""
    rows = job_rows(24, 16)
    job = Job(tally, place, "in.jsonl", rows, SETTINGS["streaming"])
    codes = [job.meets(f"seed={seed},read.eio=1/{q}", (9,)).code for q in (300, 20, 1) for seed in seeds(a, 2, 10)]
    count(tally, "EIO of weights", codes, 0, 9)
    for flags in (KV_ONLY, [*KV_ONLY, *H2O]):
        job, n, codes = Job(tally, place, "in.jsonl", rows, flags), 0, []
        for q in (30, 6):
            for seed in seeds(a, 2, 10):
                done = job.meets(f"seed={seed},read.eio=1/{q}", (9,))
                codes.append(done.code)
                n += recomputed(done) if done.code == 0 else 0
        count(tally, "EIO of KV pages", codes, 0)
        tally.check(n > 0, "EIO of KV pages: no row was computed again")


def write_errors(tally, place, a):
    """What cannot be written to scratch ends the run with 9, and the job resumes."""
    for flags in (SETTINGS["KV on disk"], SETTINGS["h2o, all on disk"]):
        job = Job(tally, place, "in.jsonl", job_rows(24, 17), flags)
        codes = []
        for kind in ("enospc", "eio", "edquot", "efbig", "erofs"):
            for seed in seeds(a, 1, 5):
                codes.append(job.meets(f"seed={seed},write.{kind}=1/40", (9,)).code)
        done = job.meets(f"seed={a.seed},write.enospc=1/9", (9,))
        tally.check("scratch" in done.error_line(), f"ENOSPC of scratch: {done.error_line()!r}")
        count(tally, "writes that fail", codes, 9)


@from_full
def damaged_packs(tally, place, a):
    """Bytes changed on the disk, anywhere in the pack: 5 or 7 and one line; never other text."""
    pack, hurt = place.at("whole.pack"), place.at("hurt.pack")
    done = place.sluice("pack", place.model, "-o", pack, "-q")
    tally.check(done.code == 0, f"pack: exit {done.code}: {done.err[-200:]!r}")
    whole = read(pack)
    r, codes, rows = random.Random(a.seed), [], job_rows(12, 18)
    jobs = [Job(tally, place, f"in-{i}.jsonl", rows, flags, model=pack)
            for i, flags in enumerate((SETTINGS["streaming"], ["--weights-resident", "100%"]))]
    for i in range(pick(16, 16, 40)):
        at, bytes_ = r.randrange(len(whole)), bytearray(whole)
        if i % 8 == 7:
            del bytes_[at:]
        elif i % 8 == 6:
            bytes_[at:at + 4096] = bytes(len(bytes_[at:at + 4096]))
        else:
            bytes_[at] ^= 1 << r.randrange(8)
        place.write("hurt.pack", bytes_)
        job, out = jobs[i % 2], place.fresh()
        job.model = hurt
        done = job.run(out, "")
        codes.append(done.code)
        lines = [x for x in done.err.splitlines() if x.startswith("sluice: error: ")]
        if done.code == 0:
            tally.check(read(out) == job.want, f"pack damaged at {at}: other bytes: {difference(job.want, read(out))}")
        else:
            tally.check(done.code in (5, 7) and len(lines) == 1,
                        f"pack damaged at {at}: exit {done.code}: {done.err[-300:]!r}")
    count(tally, "damaged packs", codes, 7)
    for part in (whole[:4096], whole[-4096:]):
        at = whole.index(part) + r.randrange(200)
        bytes_ = bytearray(whole)
        bytes_[at] ^= 0x10
        place.write("hurt.pack", bytes_)
        done = place.sluice("inspect", hurt)
        tally.check(done.code in (0, 5, 7), f"inspect of a pack damaged at {at}: exit {done.code}")


def codec_flips(tally, place, a):
    """Encoded weights: flips in flight are healed or exit 7, lasting damage is named, a broken file is made again."""
    rows = [dict(r, max_tokens=1) for r in job_rows(8, 19, prompt_max=20)]
    flags = ["--weights-resident", "0", "--batch", "8", "--batches", "1", "--weights-codec", "zstd"]
    job = Job(tally, place, "in.jsonl", rows, flags)
    codes = [job.meets(f"seed={seed},read.flip=1/{q}", (7,)).code for q in (2, 8) for seed in seeds(a, 4, 25)]
    for seed in seeds(a, 1, 6):
        job.meets(f"seed={seed},read.short=1/4,again=1/9,reorder=1/3", ())
    count(tally, "flips of encoded weights", codes, 0, 7)
    name = next(f for f in os.listdir(place.at("cache")) if f.endswith(".pack.zst"))
    path, r, found = place.at(f"cache/{name}"), random.Random(a.seed), 0
    whole = read(path)
    for i in range(pick(10, 10, 40)):
        at, bytes_ = r.randrange(4096, len(whole) - 4096), bytearray(whole)
        bytes_[at] ^= 1 << r.randrange(8)
        place.write(f"cache/{name}", bytes_)
        out = place.fresh()
        done = job.run(out, "")
        found += done.code == 7
        if done.code == 0:  # padding, or the other half of a symbol nobody reads
            tally.check(read(out) == job.want, f".zst damaged at {at}: {difference(job.want, read(out))}")
        else:
            tally.check(done.code == 7 and name in done.error_line() and "delete the file" in done.error_line(),
                        f".zst damaged at {at}: exit {done.code}: {done.err[-300:]!r}")
    tally.check(found > 5, f".zst damaged: found {found} times")
    other = [whole[:n] for n in (0, 3, 100, 4096, len(whole) // 2)]
    other += [whole[:-5] + b"X" + whole[-4:], whole[:8] + bytes(len(whole) - 8)]
    for bytes_ in other:  # header and table: made again
        place.write(f"cache/{name}", bytes_)
        out = place.fresh()
        done = job.run(out, "")
        tally.check(done.code == 0 and read(out) == job.want and read(path) == whole,
                    f".zst of {len(bytes_)} bytes: exit {done.code}: {done.err[-300:]!r}")
    for bytes_ in (b"?" + whole[1:], bytes(4096), b"\x28\xb5\x2f\xfd" + whole[4:], b"slu?"):  # not encoded layers: stays
        place.write(f"cache/{name}", bytes_)
        out = place.fresh()
        done = job.run(out, "")
        tally.check(done.code == 5 and "was not written by sluice (move it away" in done.error_line() and not read(out) and
                    read(path) == bytes_, f".zst that begins {bytes_[:8]}: exit {done.code}: {done.err[-300:]!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (harmless, read_errors, write_errors, damaged_packs, codec_flips)))
