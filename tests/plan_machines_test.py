#!/usr/bin/env python3
"""Plans for several machines: plan_machines_test.py [SLUICE] [--only PART]

Shares and cuts cover the job, equal machines do equal work, faster ones more; what the link limits, and what is no
list of machines. Machine files with made-up rates; standard library only.
"""
import json
import os
import re
import sys

import trial
from trial import from_full, read

CONFIGS = os.path.join(os.path.dirname(trial.HERE), "configs")
CPU = {"nvme_read": "2e9", "nvme_write": "1e9", "ram_read": "2e10", "matmul_flops": "4e11", "step_s": "1e-5", "threads": "4",
       "ram": "1e9", "disk": "1e11"}
ROWS, GEN = 320, 16
JOB = ["--prompt-len", "64", "--gen-len", str(GEN), "--num-prompts", str(ROWS), "--no-advice"]
LAYERS = 8
TIE = 1.05


def machine(place, name, **change):
    return place.write(name, "".join(f"{k} = {v}\n" for k, v in {**CPU, **change}.items()).encode())


def few_layers(place):
    """The shape of llama-1b with LAYERS layers, for which a search is quick."""
    text = read(os.path.join(CONFIGS, "llama-1b.cfg")).decode()
    return place.write("few.cfg", re.sub(r"(?m)^layers = .*", f"layers = {LAYERS}", text).encode())


def plan(place, *flags, model=None, job=JOB):
    return place.sluice("plan", "-m", model or few_layers(place), *job, *flags)


def both(tally, place, machines, *flags, **more):
    """What --json says; that rows, layers and the verdict add up."""
    done = plan(place, "--machines", machines, "--json", *flags, **more)
    tally.check(done.code == 0, f"{machines}: exit {done.code}: {done.last()}")
    root = json.loads(done.out)
    shared, pipe = root["shared"], root["pipeline"]
    n_rows = int((more.get("job") or JOB)[5])
    tally.check(abs(sum(m["rows"] for m in shared["machines"]) - n_rows) < 1e-3 * n_rows, f"{machines}: rows of {shared}")
    tally.check(all(m["job_s"] <= shared["job_s"] * 1.0001 for m in shared["machines"]), f"{machines}: the last ends the job")
    at = 0
    for stage in pipe["stages"]:
        tally.check(stage["from"] == at < stage["to"], f"{machines}: consecutive layers: {stage}")
        at = stage["to"]
    for key in ("batch", "batches", "prefill_tokens"):
        tally.check(len({s["plan"][key] for s in pipe["stages"]}) == 1, f"{machines}: {key} is equal on all stages")
    slowest = max(max(s["predicted"]["pass_s"], s["hop_s"]) for s in pipe["stages"])
    passes = max(s["predicted"]["passes"] for s in pipe["stages"])
    tally.check(pipe["pass_s"] >= slowest * 0.9999, f"{machines}: a pass waits for the slowest: {pipe['pass_s']}, {slowest}")
    tally.check(abs(pipe["job_s"] - passes * pipe["pass_s"] - pipe["fill_s"]) < 1e-3 * pipe["job_s"] and pipe["fill_s"] > 0,
                f"{machines}: filling and draining count")
    want = "shared" if shared["job_s"] <= pipe["job_s"] * TIE else "pipeline"
    tally.check(root["faster"] == want, f"{machines}: faster is {root['faster']}: {shared['job_s']} s, {pipe['job_s']} s")
    return shared, pipe, at


def one(tally, place, a):
    """A list of one machine is --machine."""
    cfg = machine(place, "a.cfg")
    want = plan(place, "--machine", cfg).out
    for text in (cfg, cfg + "*1"):
        done = plan(place, "--machines", text)
        tally.check(done.code == 0 and done.out == want, f"{text}: {trial.difference(want.encode(), done.out.encode())}")


def equal(tally, place, a):
    """Two equal machines halve the time, but for the tail: rows that entered last run alone for GEN passes, on one machine as on
    two. So the time is between a half and a half and the tail."""
    cfg = machine(place, "a.cfg")
    alone = json.loads(plan(place, "--machine", cfg, "--json").out)["predicted"]
    shared, pipe, n = both(tally, place, cfg + "*2")
    half, tail = alone["job_s"] / 2, GEN * alone["pass_s"]
    tally.check(half * 0.99 <= shared["job_s"] <= half + tail, f"{shared['job_s']} s of two, {alone['job_s']} of one, {tail} of tail")
    tally.check([m["rows"] for m in shared["machines"]] == [ROWS / 2] * 2, f"equal shares: {shared['machines']}")
    tally.check(n == LAYERS and [s["to"] - s["from"] for s in pipe["stages"]] in ([4, 4], [5, 3]), f"a cut in the middle: {pipe}")
    listed, _, _ = both(tally, place, f"{cfg},{cfg}")
    tally.check(listed["job_s"] == shared["job_s"], "a,a is a*2")
    done = plan(place, "--machines", cfg + "*2")
    lines = re.findall(r"^   ([12]) +160 +50\.0 % .*a\.cfg$", done.out, re.M)
    tally.check(lines == ["1", "2"] and re.search(r"^shared .*^pipeline .*^faster ", done.out, re.M | re.S), f"a line a machine: {done.out}")
    tally.check("note" not in done.out, f"equal machines give equal bytes: {done.out}")


def unlike(tally, place, a):
    """A machine of three times the rates gets about three times the rows and layers, wherever it stands."""
    slow = machine(place, "slow.cfg")
    fast = machine(place, "fast.cfg", matmul_flops="1.2e12", ram_read="6e10", nvme_read="6e9")
    for names in ((slow, fast), (fast, slow)):
        shared, pipe, _ = both(tally, place, ",".join(names))
        rows = {m["machine"]: m["rows"] for m in shared["machines"]}
        layers = {s["machine"]: s["to"] - s["from"] for s in pipe["stages"]}
        ends = [m["job_s"] for m in shared["machines"]]
        tally.check(2 < rows[fast] / rows[slow] < 4, f"shares by speed: {rows}")
        tally.check(max(ends) < 1.1 * min(ends), f"both end together: {ends}")
        tally.check(layers[fast] > layers[slow], f"layers by speed: {layers}")
    done = plan(place, "--machines", f"{slow},{fast}")
    tally.check("note     they need the same GPU model or instruction set" in done.out, f"unlike machines: {done.out}")


def links(tally, place, a):
    """A slow network limits a pipeline; p2p counts between devices of one box only."""
    quick = both(tally, place, machine(place, "quick.cfg") + "*2")[1]
    slow = machine(place, "slow.cfg", net="1e5")
    other = machine(place, "other.cfg", net="1e9")
    box = machine(place, "box.cfg", net="1e5", p2p="2e10")
    for text, limited in ((slow + "*2", 1), (f"{other},{slow}", 1), (f"{slow},{other}", 1), (box + "*2", 0), (f"{box},{slow}", 1)):
        pipe = both(tally, place, text)[1]
        said = "link" in pipe["bound"] or "way" in pipe["bound"]
        tally.check(said == bool(limited) and (pipe["job_s"] > 1.5 * quick["job_s"]) == bool(limited), f"{text}: {pipe['bound']}, {pipe['job_s']} s")
    hop = quick["stages"][0]["hop_s"]
    tokens = (64 + GEN) * ROWS / max(s["predicted"]["passes"] for s in quick["stages"])
    tally.check(abs(hop / (tokens * 2048 * 4 / 1.17e9) - 1) < 0.01, f"without net: 10 Gbit Ethernet and dim x 4 bytes a token: {hop}")
    tally.check(quick["stages"][1]["hop_s"] == 0, "nothing leaves the last stage")


def streams(tally, place, a):
    """Weights that stay nowhere are read for every group; with the memory of both machines nothing streams."""
    cfg = machine(place, "small.cfg")
    pipe = both(tally, place, cfg + "*2", "--mem-ram", "900M")[1]
    tally.check(all(s["streamed_bytes"] == 0 for s in pipe["stages"]), "half of the model stays")
    pipe = both(tally, place, cfg + "*2", "--mem-ram", "300M")[1]
    for s in pipe["stages"]:
        busy = s["streamed_bytes"] / 2e9
        tally.check(busy > 0 and s["predicted"]["read_s"] >= 0.9 * busy, f"reads of all groups: {busy} s, {s['predicted']}")


def bad(tally, place, a):
    """What is no list of machines, and flags that do not go with one."""
    cfg = machine(place, "a.cfg")
    for text, code, words in (("no.cfg*2", 5, "no.cfg: machine file: No such file"), (cfg + "*0", 2, "at least one machine"),
                              (cfg + "*x", 2, "cannot read 'x'"), (cfg + "*", 2, "cannot read ''"), (cfg + "*-1", 2, "at least one"),
                              (cfg + "*65", 2, "65 machines"), (f"{cfg}*40,{cfg}*25", 2, "65 machines"), ("", 2, "names no file"),
                              (cfg + ",", 2, "names no file"), ("*2", 2, "names no file"),
                              (machine(place, "b.cfg", net="-1") + "*2", 5, "net: -1 is out of range")):
        done = plan(place, "--machines", text)
        tally.check(done.code == code and words in done.error_line(), f"{text}: exit {done.code}: {done.last()}")
    for flags in (("--machine", cfg), ("-o", place.at("plan.json"))):
        done = plan(place, "--machines", cfg + "*2", *flags)
        tally.check(done.code == 2 and f"--machines: does not go with {flags[0]}" in done.error_line(), f"{flags}: {done.last()}")
    done = plan(place, "--machines", cfg + "*2", "--mem-ram", "20M")
    tally.check(done.code == 4 and "the budget is 20.0" in done.error_line(), f"fits nowhere: exit {done.code}: {done.last()}")
    done = plan(place, "--machines", cfg + "*9")
    tally.check(done.code == 0 and "pipeline not possible: 9 machines are more than the 8 layers" in done.out, f"9 stages: {done.out}")


@from_full
def given(tally, place, a):
    """Machines of configs/: llama-3-70b in q4 fits four 4090s and not one; FlexGen's opt-30b fits no two T4s."""
    job = ["--prompt-len", "512", "--gen-len", "128", "--num-prompts", "1000", "--no-advice"]
    shared, pipe, n = both(tally, place, os.path.join(CONFIGS, "machine-rtx4090.cfg") + "*4", "--weights", "q4", job=job,
                           model=os.path.join(CONFIGS, "llama-3-70b.cfg"))
    tally.check(n == 80 and len(pipe["stages"]) == 4 and all(s["streamed_bytes"] == 0 for s in pipe["stages"]), "nothing streams")
    tally.check(pipe["job_s"] * 1.2 < shared["job_s"], f"so the pipeline is faster: {pipe['job_s']} s, {shared['job_s']} s")
    job = ["--prompt-len", "512", "--gen-len", "32", "--num-prompts", "1000", "--no-advice"]
    shared, pipe, n = both(tally, place, os.path.join(CONFIGS, "machine-t4.cfg") + "*2", job=job,
                           model=os.path.join(CONFIGS, "opt-30b.cfg"))
    tally.check(n == 48 and all(s["streamed_bytes"] > 0 for s in pipe["stages"]), "two T4s stream")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (one, equal, unlike, links, streams, bad, given)))
