#!/usr/bin/env python3
"""What a plan is told: machine files, plan files, flags that contradict them: plan_flags_test.py [SLUICE] [--only PART]

What is missing or impossible is refused by name; a machine file brings its capacities along; a placement
that cannot be as it was asked for says so. A model with pseudo-random weights; standard library only.
"""
import glob
import json
import os
import re
import sys
import time

import trial
from trial import LEVEL, from_full, read

JOB = ["--prompt-len", "64", "--gen-len", "32", "--num-prompts", "100"]
RATES = {"nvme_read": "2e9", "nvme_write": "1e9", "ram_read": "2e10", "matmul_flops": "1e12", "step_s": "1e-5",
         "threads": "7"}
CAPACITIES = {"ram": "52428800", "disk": "1073741824"}
DEVICE = {"device_memory": "16e6", "h2d": "1e10", "d2h": "1e10", "device_read": "1e11", "device_flops": "1e13"}


def machine(place, name, keys):
    return place.write(name, "".join(f"{k} = {v}\n" for k, v in keys.items()).encode())


def plan(place, *flags):
    done = place.sluice("plan", "-m", place.model, *JOB, *flags)
    return done


def machine_files(tally, place, a):
    """A rate that is missing, zero, negative or no number is refused by its name."""
    whole = machine(place, "whole.cfg", RATES)
    tally.check(plan(place, "--machine", whole).code == 0, "a whole machine file")
    for key in RATES:
        for value in (None, "0", "-1", "nan", "inf", "-inf", "1e999", "", "0x10"):
            keys = {k: v for k, v in RATES.items() if k != key}
            if value is not None:
                keys[key] = value
            done = plan(place, "--machine", machine(place, "bad.cfg", keys))
            tally.check(done.code in (2, 5) and key in done.error_line(),
                        f"{key} = {value}: exit {done.code}: {done.last()}")


@from_full
def capacities(tally, place, a):
    """ram and disk of a machine file are the budgets of `plan`, flags win, and it says so."""
    bare, full = machine(place, "bare.cfg", RATES), machine(place, "full.cfg", {**RATES, **CAPACITIES})
    flags = ["--mem-ram", "50M", "--mem-disk", "1G"]
    by_flags, by_file = plan(place, "--machine", bare, *flags), plan(place, "--machine", full)
    same = [[x for x in p.out.splitlines() if x.startswith(("rows", "weights", "  ", "repeat"))] for p in (by_file, by_flags)]
    tally.check(by_file.code == 0 and same[0] == same[1], f"exit {by_file.code}: {by_file.out[-400:]!r}")
    tally.check(re.search(r"budget +50\.0 +1024\.0", by_file.out), f"budgets are printed: {by_file.out!r}")
    tally.check("full.cfg" in by_file.err, f"and where they come from: {by_file.err!r}")
    wide = plan(place, "--machine", full, "--mem-ram", "80M")
    tally.check(re.search(r"budget +80\.0 +1024\.0", wide.out), f"--mem-ram wins: {wide.out[-400:]!r}")
    bad = plan(place, "--machine", machine(place, "bad.cfg", {**RATES, "ram": "-5"}))
    tally.check(bad.code == 5 and "ram" in bad.error_line(), f"ram = -5: exit {bad.code}: {bad.last()}")
    keys = {**RATES, **CAPACITIES, **DEVICE}
    whole = plan(place, "--machine", machine(place, "card.cfg", keys))
    tally.check(whole.code == 0 and re.search(r"budget +15\.3 +50\.0 +1024\.0", whole.out),
                f"a device has a column: exit {whole.code}: {whole.out!r} {whole.last()}")
    without = plan(place, "--machine", machine(place, "card.cfg", keys), "--device", "cpu")
    tally.check(without.code == 0 and same[0] == [x for x in without.out.splitlines() if x.startswith(("rows", "weights", "  ", "repeat"))],
                f"--device cpu plans without it: {without.out!r}")
    wins = plan(place, "--machine", machine(place, "card.cfg", keys), "--mem-device", "12M", "--mem-disk", "2G", "--mem-ram", "60M")
    tally.check(wins.code == 0 and re.search(r"budget +12\.0 +60\.0 +2048\.0", wins.out), f"flags win over a machine file: {wins.out!r}")
    rows = place.rows("in.jsonl", trial.job_rows(6, 1))
    run = ("run", "-m", place.model, "-i", rows, "--dry-run", "--machine", machine(place, "small.cfg", {**RATES, "ram": "1e6"}))
    here, more = place.sluice(*run), place.sluice(*run, "--mem-ram", "64M")
    tally.check(here.code == 4 and "the budget is 1.0" in here.err, f"of a run ram is one more cap: exit {here.code}: {here.last()!r}")
    tally.check(more.code == 0 and "RAM 64.0 MiB (--mem-ram)" in more.err, f"that a flag beats: exit {more.code}: {more.err!r}")
    for key in DEVICE:
        some = machine(place, "some.cfg", {k: v for k, v in keys.items() if k != key})
        done = plan(place, "--machine", some)
        if key == "device_memory":
            tally.check(done.code == 0 and "device" not in done.out, f"without {key}: {done.out!r}")
        else:
            tally.check(done.code == 5 and f"some.cfg: {key}: missing or 0, a plan for a device" in done.error_line(),
                        f"without {key}: exit {done.code}: {done.last()}")
            tally.check(plan(place, "--machine", some, "--device", "cpu").code == 0, f"without {key}, --device cpu")
    configs = sorted(glob.glob(os.path.join(os.path.dirname(trial.HERE), "configs/machine-*.cfg")))
    tally.check(len(configs) > 1, "configs/machine-*.cfg are there")
    for path in configs if LEVEL else configs[:1]:
        done = plan(place, "--machine", path)
        tally.check(done.code == 0 and os.path.basename(path) in done.err, f"{path}: exit {done.code}: {done.last()}")


def threads_of_run(tally, place, a):
    """--machine of `run`: this machine's threads run, and stand in the flags that freeze it."""
    full = machine(place, "full.cfg", {**RATES, **CAPACITIES, "ram": "900e9"})
    path = place.rows("in.jsonl", trial.job_rows(6, 1))
    done = place.sluice("run", "-m", place.model, "-i", path, "-o", place.fresh(), "--threads", "2", "--machine", full, "-v")
    tally.check(done.code == 0 and "--threads 2" in done.err, f"exit {done.code}: {done.err[-500:]!r}")
    done = plan(place, "--machine", full)
    tally.check("--threads 7" in done.out and "--threads" not in done.err, f"plan is for that machine: {done.out[-300:]!r}")
    for n, told in (("7", 0), ("3", 1)):
        done = plan(place, "--machine", full, "--threads", n)
        tally.check("--threads 7" in done.out and ("--threads has no effect" in done.err) == told, f"--threads {n}: {done.err!r}")


def plan_file(place, **change):
    """A plan of this job, with keys changed (None: left out)."""
    path = place.at("plan.json")
    if not os.path.exists(path):
        place.sluice("plan", "-m", place.model, *JOB, "-o", path, "--mem-ram", "64M", "--mem-disk", "1G")
    root = json.loads(read(path))
    for key, value in change.items():
        root["plan"].pop(key, None) if value is None else root["plan"].__setitem__(key, value)
    return place.write("changed.json", json.dumps(root).encode())


def plan_values(tally, place, a):
    """Impossible values and unknown keys of --plan: usage errors that name the key."""
    path = place.rows("in.jsonl", trial.job_rows(6, 1))
    run = ["run", "-m", place.model, "-i", path, "--dry-run", "--mem-ram", "96M", "--mem-disk", "1G", "--plan"]
    done = place.sluice(*run, plan_file(place))
    tally.check(done.code == 0, f"a plan file as it was written: exit {done.code}: {done.last()}")
    bad = {"batch": (0, -1, 4097, 1.5, "4"), "batches": (0, 65537), "weights_resident": (-1, 9999),
           "weights_decoded": (-1, 9999), "weights_codec": (2, "lzma"), "kv_near": (-1, "ram"), "kv_ram": (-1,), "hidden_near": (-1,), "hidden_ram": ("tape",), "weights_ram": (-1,), "share_prefixes": (1, "maybe"),
           "ahead_weights": (-1,), "ahead_state": (-1, 1e9), "prefill_tokens": (0, -3), "batchs": (4,)}
    for key, values in bad.items():
        for value in values:
            done = place.sluice(*run, plan_file(place, **{key: value}))
            tally.check(done.code == 2 and key in done.error_line(), f"{key}: {value}: exit {done.code}: {done.last()}")
    done = place.sluice(*run, plan_file(place, batch=4000, batches=60000))
    tally.check(done.code == 2 and "batches" in done.error_line(), f"too many rows: exit {done.code}: {done.last()}")


def freeze_of(done):
    """What the flags that freeze a plan say, by flag."""
    return dict(re.findall(r"--(\S+) ([^-\s]\S*(?: [\d.]+){0,5})", done.err.rpartition("to repeat this plan: ")[2]))


def said_auto(tally, place, run, file):
    """Each flag beats the file, with a value and with `auto`; what is counted over batches holds as shares."""
    was = freeze_of(place.sluice(*run, file))
    for flag, value in (("batch", "3"), ("batches", "2"), ("weights-resident", "1"), ("weights-codec", "zstd"), ("ahead-weights", "2"),
                        ("prefill-tokens", "77"), ("share-prefixes", "off"), ("percent", "0 25 0 50 0 100")):
        done = place.sluice(*run, file, f"--{flag}={value}")
        line = next((x for x in done.err.splitlines() if f"--{flag} " in x and " instead of " in x), None)
        wants = {"percent": "0 28.57 0 50 0 100"}.get(flag, value)
        tally.check(done.code == 0 and line and freeze_of(done).get(flag) == wants != was[flag],
                    f"--{flag} {value}: {freeze_of(done).get(flag)!r}, the file's is {was[flag]!r}: {line}")
    for flag, auto in (("batch", "0"), ("batches", "0"), ("weights-resident", "auto"), ("weights-decoded", "-1"), ("weights-codec", "auto"),
                       ("ahead-weights", "-1"), ("ahead-state", "-1"), ("prefill-tokens", "0")):
        done = place.sluice(*run, file, f"--{flag}={auto}")
        tally.check(done.code == 0 and f"plan: --{flag} auto instead of {flag.replace('-', '_')} " in done.err, f"--{flag} {auto}: {done.err!r}")
    free = place.sluice(*run, file, "--batch", "0", "--batches", "0")
    loose = place.sluice(*[x for x in run if x != "--plan"], "--weights-resident", "2", "--ahead-weights", "1")
    tally.check(freeze_of(free)["batch"] == freeze_of(loose)["batch"] != "16", f"auto is automatic: {freeze_of(free)}, {freeze_of(loose)}")
    for near, batches, kv in ((6, "3", "0 100"), (3, "2", "0 50"), (0, "2", "0 0")):
        some = plan_file(place, batch=4, batches=1, kv_near=near)
        done = place.sluice(*run, some, "--batches", batches)
        tally.check(done.code == 0 and "keep the shares" in done.err and f"--percent 0 100 {kv} 0 100" in done.err,
                    f"KV of {near} layers in RAM, {batches} batches: {done.err!r}")
        same = place.sluice(*run, some, "--batches", "1")
        tally.check("keep the shares" not in same.err, f"the file's own batches: {same.err!r}")
    for flags, said in ((["--kv-policy", "h2o"], 'KV policy is "h2o", not "full"'), (["--kv-format", "q8"], 'KV format is "q8", not "bf16"'), ([], "")):
        done = place.sluice(*run, file, *flags)
        lines = [x for x in done.err.splitlines() if "a plan file places KV" in x]
        tally.check(done.code == 0 and len(lines) == bool(said) and all(said in x for x in lines), f"{flags}: {done.err!r}")


def flags_win(tally, place, a):
    """A flag beats the plan file, aloud; a placement that has to change says so."""
    path = place.rows("in.jsonl", trial.job_rows(6, 1))
    run = ["run", "-m", place.model, "-i", path, "--dry-run", "-v", "--mem-ram", "96M", "--mem-disk", "1G", "--plan"]
    file = plan_file(place, batch=16, batches=1, weights_resident=2, ahead_weights=1)
    done = place.sluice(*run, file)
    tally.check(done.code == 0 and "1 batch of 16 rows" in done.err and "instead" not in done.err, f"as it is: {done.err!r}")
    for flags, said, plan_says in ((["--batch", "2"], "--batch 2", "1 batch of 2 rows"),
                                   (["--weights-resident", "50%"], "--weights-resident", None),
                                   (["--ahead-weights", "3"], "--ahead-weights 3", None),
                                   (["--percent", "0", "0", "0", "0", "0", "100"], "--percent", "bf16 on NVMe")):
        done = place.sluice(*run, file, *flags)
        line = next((x for x in done.err.splitlines() if "instead" in x and said in x), None)
        tally.check(done.code == 0 and line, f"{' '.join(flags)} over a plan file: exit {done.code}: {done.err!r}")
        tally.check(not plan_says or plan_says in done.err, f"{' '.join(flags)}: no {plan_says!r} in {done.err!r}")
    said_auto(tally, place, run, file)
    loose = [x for x in run if x != "--plan"]
    for flags, said in ((["--ahead-weights", "9999"], "ahead_weights"), (["--ahead-state", "9999"], "ahead_state"),
                        (["--weights-resident", "999"], "weights_resident"),
                        (["--percent", "0", "0", "0", "0", "0", "0", "--batches", "1"], "hidden_near")):
        done = place.sluice(*loose, "--percent", "0", "0", "0", "0", "0", "100", *flags)
        line = next((x for x in done.err.splitlines() if said in x and "asked for" in x), None)
        tally.check(done.code == 0 and line, f"{' '.join(flags)} changes aloud: exit {done.code}: {done.err[-600:]!r}")
    for flags in (["--batch", "4097"], ["--batches", "70000"], ["--batch", "4000", "--batches", "20"]):
        done = place.sluice(*loose, *flags)
        tally.check(done.code == 2 and "batch" in done.error_line(), f"{' '.join(flags)}: exit {done.code}: {done.last()}")
    pack = place.at("tiny.pack")
    tally.check(place.sluice("pack", place.model, "-o", pack, "--weights", "q8").code == 0, "a pack")
    frozen = plan_file(place, batch=16, batches=1, weights_resident=7, weights_decoded=7)
    run[2] = pack
    for ram in range(70, 8, -1):
        done = place.sluice(*run, frozen, "--mem-ram", f"{ram}M")
        if done.code == 4:
            tally.check(False, f"no budget under which only the tiles of a plan file do not fit, down to {ram}M")
            break
        if "(7 held decoded)" not in done.err:
            tally.check("weights_decoded" in done.err and "asked for" in done.err, f"{ram}M: {done.err!r}")
            break


@from_full
def binding(tally, place, a):
    """`probe` measures threads that are bound as those of `run` are."""
    def spread(args):
        p, seen = place.start(args), {}
        while p.running():
            for path in glob.glob(f"/proc/{p.p.pid}/task/*/status"):
                try:
                    with open(path) as f:
                        where = re.search(r"Cpus_allowed_list:\s*(\S+)", f.read())[1]
                except (OSError, TypeError):
                    continue
                seen.setdefault(path, []).append(where)
            time.sleep(0.005)
        return p.end(), {max(set(s), key=s.count) for s in seen.values() if len(s) >= 20}  # not who only looks around
    path = place.rows("in.jsonl", trial.job_rows(20, 1, tokens=(32, 64)))
    done, run = spread(["run", "-m", place.model, "-i", path, "-o", place.fresh(), "--progress", "none"])
    probed, probe = spread(["probe", "--offload-dir", place.folder])
    tally.check(done.code == 0 and probed.code == 0 and run and probe == run, f"run on {run}, probe on {probe}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [machine_files, capacities, threads_of_run, plan_values, flags_win, binding]))
