#!/usr/bin/env python3
"""Plans for a device with memory of its own, on the simulated accelerator: plan_device_test.py [SLUICE] [--only PART]

What `plan` and `run` print freezes the plan to the byte, by flags and by a plan file; every corner of --percent is
what runs, and gives the CPU's bytes; device memory stays within --mem-device, and what is refused works with the size
that it names. A model with pseudo-random weights; standard library only.
"""
import itertools
import json
import os
import re
import shlex
import sys

import trial
from trial import from_full, pick, read

SIM = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
RAM, DISK = ["--mem-ram", "96M"], ["--mem-disk", "1G"]
CAPS = RAM + DISK
PLANNED = ("batch", "batches", "tiers", "weights_resident", "weights_decoded", "percent", "ahead_weights", "ahead_state",
           "ahead_hidden", "prefill_tokens", "ram_bytes", "disk_bytes", "device_bytes", "streamed_bytes", "predicted")


def device(seed, delay=0):
    return ["--device", f"{SIM}:{seed},{delay}"]


def mib(text):
    return int(re.fullmatch(r"(\d+)M", text)[1]) << 20


class Runs:
    """A job and the bytes that the CPU gives for it."""

    def __init__(self, tally, place, n=6):
        self.tally, self.place = tally, place
        self.rows = place.rows("in.jsonl", trial.job_rows(n, 7, prompt_max=80, tokens=(8, 24)))
        self.want = None

    def run(self, *flags, code=0):
        out, summary = self.place.fresh(), self.place.at("summary.json")
        if os.path.exists(summary):
            os.unlink(summary)
        done = self.place.sluice("run", "-m", self.place.model, "-i", self.rows, "-o", out,
                                 "--summary", summary, "--progress", "none", *flags)
        self.tally.check(done.code == code, f"{' '.join(flags)}: exit {done.code}, want {code}: {done.err[-400:]!r}")
        done.out, done.summary = read(out), json.loads(read(summary) or b"{}")
        return done

    def bytes_of_cpu(self):
        if self.want is None:
            self.want = self.run("--device", "cpu", *CAPS).out
        return self.want

    def same(self, done, what):
        """The CPU's bytes, within the cap that it was given."""
        want = self.bytes_of_cpu()
        self.tally.check(done.out == want, f"{what}: {trial.difference(want, done.out)}")

    def within(self, done, cap, what):
        peak = done.summary["peak_bytes"]["device"]
        self.tally.check(0 < peak <= cap, f"{what}: {peak} bytes of device memory under {cap}")
        self.tally.check(peak == done.summary["plan"]["device_bytes"], f"{what}: {peak} taken, {done.summary['plan']}")


def planned(done):
    return {key: done.summary["plan"][key] for key in PLANNED}


def freezes(tally, place, a):
    """The flags that a run prints, and the plan file of `plan`, are exactly its plan; the bytes are the CPU's."""
    r = Runs(tally, place)
    r.run(*device(0), "--mem-device", "64M", *CAPS)  # measures: what is kept of it has fewer digits
    for i, (cap, flags) in enumerate(((8, []), (9, ["--batch", "2"]), (16, ["--batches", "5", "--percent", "30", "40", "10", "20", "0", "100"]),
                                      (10, ["--batches", "4"]), (12, ["--kv-policy", "h2o", "--kv-budget", "48"]),
                                      (64, []),
                                      (14, ["--batch", "1", "--batches", "16", "--percent", "30", "40", "3.125", "96.875", "100", "0"]))[::pick(4, 1)]):
        budget = ["--mem-device", f"{cap}M", *CAPS]
        policy = flags if "--kv-policy" in flags else []
        what = f"{cap}M {' '.join(flags)}"
        first = r.run("-v", *device(i), *budget, *flags)
        if first.code != 0:
            continue
        r.within(first, cap << 20, what)
        line = re.search(r"to repeat this plan: (--.*)", first.err)
        if not tally.check(line, f"{what}: no flags in {first.err!r}"):
            continue
        again = r.run(*shlex.split(line[1]), *budget, *policy)
        same = planned(first) == planned(again)
        tally.check(same, f"{what}: frozen {line[1]}: {planned(first)} became {planned(again)}")
        tally.check("asked for" not in again.err and "instead of" not in again.err, f"{what}: {again.err!r}")
        tally.check(first.out == again.out, f"{what}: other bytes: {trial.difference(first.out, again.out)}")
        if not policy:
            r.same(first, what)
        path = place.at("plan.json")
        told = place.sluice("plan", "-m", place.model, "-i", r.rows, *device(i), *budget, *flags, "-o", path)
        tally.check(told.code == 0, f"plan {what}: exit {told.code}: {told.last()}")
        tally.check(line[1] in told.out, f"plan {what}: {line[1]} is not in {told.out!r}")
        filed = r.run("--plan", path, *device(i), *budget, *policy)
        tally.check(planned(first) == planned(filed), f"{what}: --plan {planned(first)} became {planned(filed)}")
        tally.check(first.out == filed.out, f"{what}: --plan: {trial.difference(first.out, filed.out)}")
        if i == 0:
            there = r.run("--plan", path, "--device", "cpu", *CAPS, code=2)
            tally.check("plan.json" in there.error_line() and "--device" in there.error_line(), f"on the CPU: {there.last()}")
            on_cpu = place.at("cpu.json")
            place.sluice("plan", "-m", place.model, "-i", r.rows, "--device", "cpu", *CAPS, "-o", on_cpu)
            r.run("--plan", on_cpu, *device(0), *budget, code=2)


def corners(tally, place, a):
    """Each corner of --percent, and a mixture of all, is where things are; bytes never change."""
    r = Runs(tally, place, 3)
    names = ("device", "ram", "nvme")
    share = {"device": ["100", "0"], "ram": ["0", "100"], "nvme": ["0", "0"]}
    for i, homes in enumerate(list(itertools.product(names, repeat=3))[::pick(4, 1)]):  # 4: each tier in each place
        percent = sum((share[home] for home in homes), [])
        done = r.run(*device(i, 20 * (i % 3)), "--mem-device", "24M", *CAPS, "--batches", "4", "--percent", *percent)
        what = "weights, KV, hidden states in " + ", ".join(homes)
        if done.code != 0:
            continue
        r.same(done, what)
        r.within(done, 24 << 20, what)
        tiers = done.summary["plan"]["tiers"]
        tally.check(tuple(tiers[k] for k in ("weights", "kv", "hidden")) == homes, f"{what}: {tiers}")
        tally.check(done.summary["plan"]["percent"].split() == percent, f"{what}: {done.summary['plan']['percent']}")
    done = r.run(*device(3), "--mem-device", "24M", *CAPS, "--batches", "6", "--percent", "28", "43", "33.3", "33.3", "20", "40")
    r.same(done, "a mixture")
    tiers = done.summary["plan"]["tiers"]
    tally.check(set(tiers.values()) == {"device+ram+nvme"}, f"a mixture: {tiers}")
    lanes = {x["name"]: x for x in done.summary["lanes"]}
    for name in ("nvme-read", "h2d", "d2h", "nvme-write"):
        tally.check(lanes[name]["bytes"] > 0 and lanes[name]["probed_bytes_per_s"] > 0, f"a mixture: {lanes[name]}")
    predicted = done.summary["plan"]["predicted"]
    tally.check(all(predicted[k] > 0 for k in ("h2d_s", "d2h_s", "gpu_s", "read_s", "write_s")), f"a mixture: {predicted}")
    rates = ("h2d", "d2h", "device_read", "device_flops", "device_attend_read", "device_attend_flops")
    tally.check(all(done.summary["machine"][k] > 0 for k in rates), f"rates of the device: {done.summary['machine']}")
    bad = r.run(*device(0), *CAPS, "--percent", "0", "100", "60", "41", "100", "0", code=2)
    tally.check("--percent" in bad.error_line(), f"more than all: {bad.last()}")


def given(tally, place, a):
    """A batch that the search takes is not refused when it is asked for, also where KV has room for one frame only."""
    model, machine = (os.path.join(os.path.dirname(trial.HERE), "configs", name) for name in ("opt-30b.cfg", "machine-t4.cfg"))
    job = ["--prompt-len", "512", "--gen-len", "64", "--num-prompts", "1000", "--machine", machine, "--no-advice", "--batches"]
    for batches in ("2", "3"):
        found = place.sluice("plan", "-m", model, *job, batches)
        rows = re.search(r"^rows .* of (\d+);", found.out, re.M)
        again = place.sluice("plan", "-m", model, *job, batches, "--batch", rows[1]) if rows else found
        tally.check(rows and again.code == 0 and rows[0] in again.out, f"{batches} batches: {rows}, then exit {again.code}: {again.last()}")


@from_full
def too_small(tally, place, a):
    """What does not fit names sizes with which it does, one budget after the other."""
    r = Runs(tally, place)
    for flags in ([], ["--batch", "8", "--batches", "4"], ["--percent", "100", "0", "100", "0", "100", "0"]):
        caps = {"--mem-device": "1M", "--mem-ram": "24M", "--mem-disk": "64M"}
        refused = 0
        for _ in range(5):
            done = place.sluice("run", "-m", place.model, "-i", r.rows, "-o", place.fresh(), "--dry-run", *device(1), *flags,
                                *itertools.chain(*caps.items()))
            if done.code == 0:
                break
            refused += 1
            hint = re.search(r"\((--mem-(?:device|ram|disk)) (\d+M)\)$", done.error_line())
            if not tally.check(done.code == 4 and hint, f"{flags} under {caps}: exit {done.code}: {done.last()}"):
                break
            tally.check(mib(hint[2]) > mib(caps[hint[1]]), f"{flags} under {caps}: {done.last()}")
            caps[hint[1]] = hint[2]
        tally.check(done.code == 0 and refused > 0, f"{flags}: refused {refused} times, then exit {done.code}: {done.last()}")
        ran = r.run(*device(1), *flags, *itertools.chain(*caps.items()))
        if ran.code == 0:
            r.same(ran, f"{flags} under {caps}")
            r.within(ran, mib(caps["--mem-device"]), f"{flags} under {caps}")


@from_full
def probed(tally, place, a):
    """`probe --device` measures it, and a machine file carries what it found."""
    path = place.at("machine.cfg")
    done = place.sluice("probe", *device(0), "--offload-dir", place.folder, "-o", path)
    text = read(path).decode()
    tally.check(done.code == 0 and "# device: simulated" in text, f"exit {done.code}: {done.last()} {text!r}")
    for key in ("h2d", "d2h", "device_read", "device_flops", "device_attend_read", "device_attend_flops", "device_memory"):
        tally.check(re.search(rf"^{key} = [\d.e+]+ ", text, re.M), f"{key} in {text!r}")
    told = place.sluice("plan", "-m", place.model, "--prompt-len", "64", "--gen-len", "32", "--num-prompts", "100",
                        "--machine", path, "--mem-device", "10M")
    tally.check(told.code == 0 and re.search(r"pass .*limited by .*NVMe reads .*copies to the device .*the device ", told.out, re.S), f"plan: {told.out!r} {told.last()}")
    bare = place.sluice("probe", "--device", "cpu", "--offload-dir", place.folder)
    tally.check(bare.code == 0 and "h2d" not in bare.out and "device" not in bare.out, f"without a device: {bare.out!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [freezes, corners, given, too_small, probed]))
