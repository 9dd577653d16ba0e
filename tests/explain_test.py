#!/usr/bin/env python3
"""What a plan says of itself: lanes, plans beside it, what would help: explain_test.py [SLUICE] [--only PART]

Every figure is held against `plan` itself: a frozen alternative, the flags of what would help, a disk whose rates are
doubled in the machine file. Model configs and machine files only; standard library only.
"""
import glob
import itertools
import json
import os
import re
import shlex
import sys

import nth
import trial
from trial import LEVEL, difference, from_full, pick, read

CONFIGS = os.path.join(os.path.dirname(trial.HERE), "configs")
T4 = os.path.join(CONFIGS, "machine-t4.cfg")
JOB = ["--prompt-len", "512", "--gen-len", "32", "--num-prompts", "1k"]
CPU = {"nvme_read": "4e8", "nvme_write": "4e8", "ram_read": "2e10", "matmul_flops": "1e12", "step_s": "1e-5", "threads": "8",
       "ram": "4.3e9", "disk": "2e10"}
INT8 = {"matmul_q8_m16": "4e12", "matmul_q8_m64": "4e12", "matmul_q8_m256": "4e12"}
LONGER, TIE = 0.85, 1.02  # a longer search finds plans this much faster; of plans within 2 % it takes the one that moves less
WITHIN, WORTH, MOST = 1.10, 0.05, 8


def config(name):
    return os.path.join(CONFIGS, name + ".cfg")


def machine(place, name, keys):
    return place.write(name, "".join(f"{k} = {v}\n" for k, v in keys.items()).encode())


def cases(place):
    """Those of the level: a plan that explains itself takes seconds, so level check has one for a device and two for a CPU."""
    return pick(every_case(place)[2::3], every_case(place))


def every_case(place):
    """(what, model, machine file, flags): bound by the link, the disk, matmuls; on a device and on a CPU."""
    slow = machine(place, "slow.cfg", CPU)
    fast8 = machine(place, "fast8.cfg", {**CPU, "nvme_read": "2e9", **INT8})
    # What encoding would give is measured, and never twice the same.
    rows = place.rows("in.jsonl", trial.job_rows(600, 3, tokens=(16, 300)))
    short = ["--weights-codec", "none", "--prompt-len", "64", "--gen-len", "64", "--num-prompts", "2k"]
    return [("opt-30b on a T4", config("opt-30b"), T4, JOB),
            ("opt-6.7b on a T4", config("opt-6.7b"), T4, JOB),
            ("llama-8b on a T4, few rows", config("llama-8b"), T4, [*short[:-1], "300"]),
            ("opt-30b with attention on the CPU", config("opt-30b"), T4, [*JOB, "--attn", "cpu"]),
            ("llama-3b from a slow disk", config("llama-3b"), slow, short),
            ("llama-3b, its batch fixed", config("llama-3b"), slow, [*short, "--batch", "40", "--batches", "2"]),
            ("llama-1b, int8 fast", config("llama-1b"), fast8, short),
            ("llama-1b under h2o", config("llama-1b"), slow, [*short, "--kv-policy", "h2o", "--mem-ram", "1G"]),
            ("rows of many lengths", place.model, slow, ["-i", rows, "--weights-codec", "none", "--mem-ram", "40M"])]


PLANNED = {}  # by what was asked: parts ask the same


def told(place, model, file, flags):
    """(its words, its JSON), of one run; None where it is refused."""
    key = (model, read(file), *flags)
    if key not in PLANNED:
        path = place.at("plan.json")
        done = place.sluice("plan", "-q", "-m", model, "--machine", file, *flags, "-o", path)
        PLANNED[key] = (done.out, json.loads(read(path))) if done.code == 0 else None
    return PLANNED[key]


def plan(place, model, file, flags):
    """Its JSON, or None."""
    got = told(place, model, file, flags)
    return got and got[1]


def seconds(place, model, file, flags):
    """Those of the job, or None. Without advice it is the same plan, in a sixth of the time."""
    done = place.sluice("plan", "-q", "-m", model, "--machine", file, "--no-advice", "--json", *flags)
    return json.loads(done.out)["predicted"]["job_s"] if done.code == 0 else None


def with_flags(flags, text):
    """Those of a text instead of what the flags say of the same."""
    words = shlex.split(text)
    given = {w for w in words if w.startswith("--")}
    return [f for i, f in enumerate(flags) if f not in given and (i == 0 or flags[i - 1] not in given)] + words


def near(a, b, share):
    return abs(a - b) <= share * abs(b)


def lanes(tally, place, a):
    """They are those of the prediction, with their share of its pass; one of them bounds it."""
    for what, model, file, flags in cases(place)[::pick(1, 3)]:
        got = plan(place, model, file, flags)
        if not tally.check(got, f"{what}: no plan"):
            continue
        p, device = got["predicted"], got["plan"]["device"]
        key = {"nvme-read": "read_s", "nvme-write": "write_s", "h2d": "h2d_s", "d2h": "d2h_s", "gpu": "gpu_s", "cpu": "compute_s"}
        names = [x["name"] for x in got["lanes"]]
        tally.check(names == [n for n in key if device or n not in ("h2d", "d2h", "gpu")], f"{what}: lanes {names}")
        tally.check([x["name"] for x in got["lanes"] if x["bound"]] == [p["bound"]], f"{what}: bound {got['lanes']}")
        for x in got["lanes"]:
            ok = near(x["busy_s"], p[key[x["name"]]], 1e-5) and near(x["utilisation"], x["busy_s"] / p["pass_s"], 1e-4)
            tally.check(ok and (x["bytes"] > 0) == (x["name"] not in ("gpu", "cpu") and x["busy_s"] > 0), f"{what}: {x} in {p}")
        # What the passes read takes the seconds of the lane, at the rate of the file or, with few in flight, at less.
        rate = float(re.search(r"^nvme_read = (\S+)", read(file).decode(), re.M)[1])
        reads = got["lanes"][0]
        least = reads["bytes"] / rate
        tally.check(0.95 * least <= reads["busy_s"] * p["passes"] <= 4 * least + 1e-6, f"{what}: {reads} x {p['passes']} passes")


def differ(a, b, layers, decoder):
    """A second reading of what makes a plan another one."""
    def far(x, y, of, share=0.05):
        return abs(x - y) > share * of
    rows, others = a["batch"] * a["batches"], b["batch"] * b["batches"]
    if a["batches"] != b["batches"] or far(rows, others, min(rows, others), 0.1):
        return True
    kv, hidden = decoder * a["batches"], a["batches"]
    if any(a[k] != b[k] for k in ("weights_codec", "ahead_weights", "ahead_state")):
        return True
    sizes = (("kv_near", kv), ("kv_ram", kv), ("hidden_near", hidden), ("hidden_ram", hidden), ("weights_resident", layers),
             ("weights_ram", layers))
    on_disk = far(kv - a["kv_near"] - a["kv_ram"], kv - b["kv_near"] - b["kv_ram"], kv)
    return on_disk or any(far(a[k], b[k], of) for k, of in sizes)


@from_full
def alternatives(tally, place, a):
    """Sorted, other than each other, near in time, within the budgets; frozen they take the time that they say."""
    n = 0
    for what, model, file, flags in cases(place)[::pick(1, 2, 1)]:
        got = plan(place, model, file, flags)
        if not tally.check(got, f"{what}: no plan"):
            continue
        said, took = got["alternatives"], got["predicted"]["job_s"]
        n += len(said)
        tally.check(len(said) <= 5, f"{what}: {len(said)} alternatives")
        times = [x["job_s"] for x in said]
        tally.check(times == sorted(times) and all(t <= took * WITHIN * 1.00001 for t in times), f"{what}: {times} beside {took}")
        shape = dict(re.findall(r"^(\w+) = (\S+)", read(model).decode(), re.M))
        layers = int(shape["layers"])
        every = [got["plan"]] + [x["plan"] for x in said]
        for x, y in itertools.combinations(every, 2):
            tally.check(differ(x, y, layers, layers), f"{what}: much alike: {x} and {y}")
        caps = dict(re.findall(r"^(ram|disk|device_memory) = (\S+)", read(file).decode(), re.M))
        if "--mem-ram" in flags:
            size = flags[flags.index("--mem-ram") + 1]
            caps["ram"] = str(int(size[:-1]) << {"M": 20, "G": 30}[size[-1]])
        for x in said:
            fits = x["ram_bytes"] <= float(caps["ram"]) and x["disk_bytes"] <= float(caps["disk"])
            fits = fits and x["device_bytes"] <= float(caps.get("device_memory", 0))
            tally.check(fits, f"{what}: {x} does not fit {caps}")
            frozen = plan(place, model, file, with_flags(flags, x["flags"]))
            if not tally.check(frozen, f"{what}: {x['flags']} is refused"):
                continue
            tally.check(near(frozen["predicted"]["job_s"], x["job_s"], 0.01),
                        f"{what}: {x['flags']}: {frozen['predicted']['job_s']}, said {x['job_s']}")
            tally.check(frozen["plan"] == x["plan"] and frozen["bytes"]["ram"] == x["ram_bytes"],
                        f"{what}: {x['flags']}: {frozen['plan']}, said {x['plan']}")
    tally.check(n >= pick(2, 10), f"only {n} alternatives in all")


def doubled(place, file):
    text = read(file).decode()
    return place.write("doubled.cfg", re.sub(r"^(nvme_(?:read|write)) = (\S+)", lambda m: f"{m[1]} = {2 * float(m[2])!r}",
                                              text, flags=re.M).encode())


def would_help(tally, place, a):
    """`plan` with those flags is as fast, or faster: it searches longer; the greatest gain first,
    nothing below 5 %."""
    seen = set()
    for what, model, file, flags in cases(place):
        if "--attn" in flags:
            continue  # slow to search, and like the others
        got = plan(place, model, file, flags)
        if not tally.check(got, f"{what}: no plan"):
            continue
        said, job_s = got["would_help"], got["predicted"]["job_s"]
        gains = [x["gain"] for x in said]
        tally.check(len(said) <= MOST and gains == sorted(gains, reverse=True) and all(g >= WORTH for g in gains),
                    f"{what}: gains {gains}")
        for x in said:
            kind = "disk" if x["flags"] is None else x["flags"] if x["lossless"] is False else x["flags"].split()[0]
            seen.add(kind)
            tally.check(near(x["gain"], job_s / x["job_s"] - 1, 1e-4), f"{what}: {x} of {job_s}")
            memory = x["flags"] is None or x["flags"].startswith("--mem-")
            lossless = memory or x["flags"].startswith("--attn ")
            tally.check(x["same_answers"] == memory and x["lossless"] == lossless and (x["quality"] is None) == lossless, f"{what}: {x}")
            there = seconds(place, model, doubled(place, file) if x["flags"] is None else file, with_flags(flags, x["flags"] or ""))
            if not tally.check(there, f"{what}: {x} is refused"):
                continue
            least, most = (1 - 1e-5, 1 + 1e-5) if "--batch" in flags else (LONGER, TIE)  # with a fixed batch all plans are tried
            tally.check(least <= there / x["job_s"] <= most, f"{what}: {x}: plan says {there}")
    for kind in ("disk", "--mem-ram", "--mem-device", "--weights q4", "--weights q8", "--kv-format q8", "--kv-format mixed",
                 "--kv-policy h2o --kv-budget 0.2", "--weights q8 --compute int8", "--attn") if LEVEL else ("--mem-ram", "--kv-format q8"):
        tally.check(kind in seen, f"never told: {kind} (only {sorted(seen)})")


def by_hand(tally, place, a):
    """A flag that leaves the answers as they are is no more than 2 % faster than the plan without it, where the link is busy."""
    model, flags = config("opt-30b"), [*JOB, "--weights-codec", "none"]
    own = seconds(place, model, T4, flags)
    for text in ("--batches 8", "--batches 3", "--ahead-state 4"):
        took = seconds(place, model, T4, with_flags(flags, text))
        tally.check(own and took and own <= 1.02 * took, f"{text}: {took} s, without it {own} s")


@from_full
def text(tally, place, a):
    """Tables of few columns; every flag of the JSON stands in them; nothing when matmuls are all there is."""
    what, model, file, flags = every_case(place)[0]
    out, got = told(place, model, file, flags)
    tally.check(out.count("  limits\n") == 1 and re.search(r"^  copies to the device +[\d.]+ +\d+ % +[\d.]+  limits$", out, re.M), out)
    rows = [x for x in out.splitlines() if re.match(r"^ +[\d.]+ +[+\d]", x)]
    for x in got["would_help"]:
        line = next((r for r in rows if x["what"] in r), "")
        tally.check(x["flags"] in line and len(line) <= 102, f"{x} in {line!r}")
        tally.check(("same answers" in line) == x["same_answers"] and ("lossy" in line) != x["lossless"], line)
        tally.check(("other rounding" in line) == (x["lossless"] and not x["same_answers"]), line)
    def flags_of(line):
        return set(re.findall(r"--[^-]\S*(?: (?!--)\S+)*", line))
    frozen = flags_of(re.search(r"^repeat +(.*)$", out, re.M)[1])
    for x in got["alternatives"]:  # of equal speed there may be two
        lines = [r for r in rows if abs(float(r.split()[0]) / x["output_tokens_per_s"] - 1) < 6e-4 and r.split()[2][:2] == "--"]
        own = flags_of(x["flags"]) - frozen
        tally.check(own and own in map(flags_of, lines), f"{x['flags']}: {lines!r}")
    again = place.sluice("plan", "-q", "-m", model, "--machine", file, *flags, "--json")
    tally.check(json.loads(again.out) == got, "the same inputs, other words, or -o and --json differ")


@from_full
def quality(tally, place, a):
    """What lossy options are said to cost is what was measured."""
    measured = {f"{x:.1f}" for x in trial.more_perplexity()["h2o"]}
    what, model, file, flags = every_case(place)[0]
    out, got = told(place, model, file, flags)
    said = next(x["quality"] for x in got["would_help"] if "h2o" in x["flags"])
    tally.check(len(said) == 1 and said[0]["what"] == "h2o" and f"{100 * said[0]['more_perplexity']:.1f}" in measured
                and "SmolLM2" in said[0]["on"], f"h2o: {said}, measured {measured}")
    tally.check(f"lossy: h2o +{100 * said[0]['more_perplexity']:.1f} %" in out and f"measured on {said[0]['on']}\n" in out, out)


@from_full
def cheap(tally, place, a):
    """A large model on a card, bound by its matmuls: no plan is searched for what would help. Each search allocates two blocks
    and more of its own, so blocks are counted beside those of the plan alone."""
    asked = ("plan", "-q", "-m", config("llama-3-70b"), "--machine", T4, "--prompt-len", "256", "--gen-len", "8", "--num-prompts", "10k")
    done, alone = nth.run(place, asked), nth.run(place, [*asked, "--no-advice"])
    blocks = [run.log.counts.get("calloc", 0) for run in (done, alone)]
    tally.check(done.code == 0 and alone.code == 0 and blocks[1] > 0 and blocks[0] <= blocks[1] + 3,
                f"exit {done.code}, {alone.code}: {blocks[0]} blocks, {blocks[1]} of the plan alone: {done.last()}")
    tally.check("matmuls alone are 9" in done.out, f"what bounds it is said: {done.out[-300:]!r}")


@from_full
def measures_once(tally, place, a):
    """On this machine: nothing is measured but what the plan itself needs, and stdout is the same when quiet: what was measured,
    int8's speed and the codec's too, is kept."""
    asked = ["plan", "-m", place.model, "--prompt-len", "64", "--gen-len", "64", "--num-prompts", "100k", "--mem-disk", "1G"]
    for what, more in (("codec", ["--mem-ram", "40M", "--weights-resident", "5"]), ("int8", ["--mem-ram", "80M"])):
        first = place.sluice(*asked, *more, SLUICE_CACHE_DIR=place.at(what))
        tally.check(first.code == 0 and re.search(r"^(instead|faster) ", first.out, re.M), f"exit {first.code}: {first.out!r} {first.last()}")
        tally.check(first.err.count("probe: ") == 1, f"{first.err!r}")
        for part in ("disk", "cpu", "model", what):
            kept = glob.glob(os.path.join(place.at(what), f"probe-{part}-*"))
            tally.check(len(kept) == 1, f"{part}: {kept}")
        quiet = place.sluice(*asked, *more, "-q", SLUICE_CACHE_DIR=place.at(what))
        tally.check(quiet.out == first.out and quiet.err == "",
                    f"{what}, -q: {quiet.err!r}, {difference(first.out.encode(), quiet.out.encode())}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [lanes, alternatives, would_help, by_hand, text, quality, cheap, measures_once]))
