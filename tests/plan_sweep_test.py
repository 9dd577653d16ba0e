#!/usr/bin/env python3
"""What would be, otherwise: `plan --sweep`, --plot and --allow: plan_sweep_test.py [SLUICE] [--only PART]

Every row of a sweep and every line of --allow is what `plan` says with those flags; what cannot be swept is refused by
name; rows that are alike are alike to the digit. A model with pseudo-random weights; standard library only.
"""
import csv
import io
import json
import math
import os
import re
import shutil
import struct
import sys
import zlib

import model_make
import trial
from trial import LEVEL, from_full, pick, read

JOB = {"prompt-len": "64", "gen-len": "32", "num-prompts": "24"}
RATES = {"nvme_read": "3e8", "nvme_write": "2e8", "ram_read": "2e10", "matmul_flops": "1e12", "step_s": "1e-5",
         "threads": "2", "ram": "52428800", "disk": "1073741824", "attend_f32": "9e9", "attend_bf16": "6e9", "attend_q8": "3e9",
         "attend_q4": "1.5e9", "attend_mixed": "1.2e9"}
DEVICE = {"device_memory": "16e6", "h2d": "1e10", "d2h": "1e10", "device_read": "1e11", "device_flops": "1e13"}
COLUMNS = ("flag,value,kv_policy,kv_budget,kv_format,weights,compute,batch,batches,weights_resident,prefill_tokens,"
           "device_mib,ram_mib,disk_mib,pass_s,job_s,output_tokens_per_s,bound,why").split(",")


def machine(place, name, **more):
    keys = {**RATES, **more}
    return place.write(name, "".join(f"{k} = {v}\n" for k, v in keys.items()).encode())


def words(flags):
    """{"batch": "4"} as words of a command line; --percent is six of them."""
    return [w for flag, value in flags.items()
            for w in (f"--{flag}", *(value.split() if flag == "percent" else [value]))]


class Planner:
    """`plan` of a made-up job (or of -i) on a machine that is a file."""

    def __init__(self, tally, place):
        self.tally, self.place = tally, place
        self.machine = machine(place, "here.cfg")
        self.planned = {}  # by flags: `plan` explains itself, which takes several times what a row of a sweep does

    def run(self, flags, *more):
        job = {} if "input" in flags else JOB
        asked = {"model": self.place.model, "machine": self.machine, **job, **flags}
        return self.place.sluice("plan", "-q", *words(asked), *more)

    def sweep(self, text, flags=None, code=0):
        """The rows; [] where the columns are others."""
        done = self.run(flags or {}, "--sweep", text)
        self.tally.check(done.code == code, f"--sweep {text}: exit {done.code}, want {code}: {done.last()!r}")
        rows = list(csv.DictReader(io.StringIO(done.out), strict=True))
        if code:
            return done
        whole = done.out.splitlines()[:1] == [",".join(COLUMNS)] and all(None not in r and None not in r.values() for r in rows)
        return rows if self.tally.check(whole, f"--sweep {text}: columns: {done.out[:300]!r}") else []

    def plan(self, flags):
        """A row's figures, as `plan --json` has them; or its error."""
        key = tuple(sorted(flags.items()))
        if key not in self.planned:
            self.planned[key] = self.plan_now(flags)
        return self.planned[key]

    def plan_now(self, flags):
        done = self.run(flags, "--json")
        if done.code == 4:
            return {"why": done.error_line().removeprefix("sluice: error: ")}
        if done.code:
            return {"why": f"exit {done.code}: {done.last()}"}
        root = json.loads(done.out)
        plan, at, kv = root["plan"], root["predicted"], root["kv"]
        return {"kv_policy": kv["policy"], "kv_budget": "" if kv["budget"] is None else kv["budget"], "kv_format": kv["format"],
                **{k: plan[k] for k in ("batch", "batches", "weights_resident", "prefill_tokens")},
                **{k + "_mib": root["bytes"][k] / 2**20 for k in ("device", "ram", "disk")},
                "pass_s": at["pass_s"], "job_s": at["job_s"], "output_tokens_per_s": root["work"]["output_tokens"] / at["job_s"],
                "bound": at["bound"], "why": ""}

    def row(self, flags):
        """What plan() gives, out of a sweep of one point, a sixth of the time: points() has shown that they are the same."""
        (row,) = self.sweep("machine=" + flags.get("machine", self.machine), flags)
        return {"why": row["why"]} if row["why"] else {**row, **{k: float(row[k]) for k in ("output_tokens_per_s", "ram_mib")}}


def same(row, plan):
    """Where they differ: '' nowhere."""
    for key, want in plan.items():
        got = row[key]
        near = (math.isclose(float(got or "nan"), want, rel_tol=2e-5, abs_tol=0.051 if key.endswith("_mib") else 0)
                if isinstance(want, (int, float)) else got == want)
        if not near:
            return f"{key} is {got!r}, plan says {want!r}"
    return ""


H2O, Q8 = {"kv-policy": "h2o"}, {"weights": "q8"}
# Sweep, flags beside it, the values that it goes through, columns that have to change with it.
SWEEPS = (
    ("num-prompts=3..24", {}, ("3", "6", "12", "24"), ("job_s", "batch")),
    ("prompt-len=16,300", {"num-prompts": "100"}, ("16", "300"), ("job_s", "batch")),
    ("gen-len=8..100", {}, ("8", "16", "32", "64", "100"), ("job_s",)),
    ("mem-ram=16M..64M", {}, ("16777216", "33554432", "67108864"), ("ram_mib", "why")),
    ("mem-ram=24M,0.03G,64MiB", {}, ("25165824", "32212254", "67108864"), ("ram_mib",)),
    ("mem-disk=1M,64M", {"percent": "0 100 0 0 0 100", "batch": "16"}, ("1048576", "67108864"), ("disk_mib", "why")),
    ("kv-policy=full,h2o,streaming", {"prompt-len": "300"}, ("full", "h2o", "streaming"), ("kv_policy", "ram_mib")),
    ("kv-budget=0.1..0.8", {**H2O, "prompt-len": "400"}, ("0.1", "0.2", "0.4", "0.8"), ("kv_budget", "ram_mib")),
    ("kv-budget=0.3..1.0", {**H2O, "prompt-len": "400"}, ("0.3", "0.6", "1.0"), ("kv_budget", "ram_mib")),
    ("kv-budget=32..200", {**H2O, "prompt-len": "400"}, ("32", "64", "128", "200"), ("kv_budget", "ram_mib")),
    ("kv-recent=0.1,0.9", H2O, ("0.1", "0.9"), ()),
    ("kv-sink=1..8", H2O, ("1", "2", "4", "8"), ()),
    ("kv-scope=head,layer", H2O, ("head", "layer"), ()),
    ("kv-format=f32,bf16,q8,q4,mixed", {"prompt-len": "300"}, ("f32", "bf16", "q8", "q4", "mixed"), ("kv_format", "batch")),
    ("weights=auto,f32,q8,q4", {}, ("auto", "f32", "q8", "q4"), ("weights", "ram_mib")),
    ("compute=bf16,f32,int8", Q8, ("bf16", "f32", "int8"), ("compute",)),
    ("batch=2..16", {}, ("2", "4", "8", "16"), ("batch", "job_s")),
    ("batches=1,2,3", {"batch": "8"}, ("1", "2", "3"), ("batches",)),
    ("weights-resident=10%..100%", {}, ("10%", "20%", "40%", "80%", "100%"), ("weights_resident",)),
    ("weights-resident=0,3,6", {}, ("0", "3", "6"), ("weights_resident",)),
    ("weights-decoded=0,2", {"weights-resident": "100%", "mem-ram": "90M"}, ("0", "2"), ()),
    ("percent=0 50 0 100 0 100,0 0 0 0 0 100", {}, ("0 50 0 100 0 100", "0 0 0 0 0 100"), ("weights_resident", "disk_mib")),
    ("ahead-weights=1..8", {"weights-resident": "0"}, ("1", "2", "4", "8"), ("ram_mib",)),
    ("ahead-state=1,4", {"percent": "0 100 0 0 0 100", "batch": "8", "batches": "2"}, ("1", "4"), ("ram_mib",)),
    ("prefill-tokens=32..512", {}, ("32", "64", "128", "256", "512"), ("prefill_tokens",)),
    ("share-prefixes=on,off", {}, ("on", "off"), ()),
    ("weights-codec=none,none", {}, ("none", "none"), ()),
    ("io=uring,threads", {}, ("uring", "threads"), ()),
    ("isa=portable,auto", {}, ("portable", "auto"), ()),
    ("device=cpu,auto", {}, ("cpu", "auto"), ()),
)


def points(tally, place, a):
    """Each row is what `plan` says with that flag, and a flag changes what it names."""
    p = Planner(tally, place)
    for n, (text, flags, values, columns) in enumerate(SWEEPS):
        flag, rows = text.split("=")[0], p.sweep(text, flags)
        tally.check(tuple(r["value"] for r in rows) == values, f"{text}: values {[r['value'] for r in rows]}")
        for r, value in zip(rows, values):
            asked = {**flags, flag: value}
            apart = same(r, p.plan(asked)) if LEVEL or n % 3 == 0 and r is rows[-1] else ""
            tally.check(r["flag"] == flag and not apart, f"{text} at {value}: {apart}")
        for key in columns:
            tally.check(len({r[key] for r in rows}) > 1, f"{text}: {key} is the same at every point: {rows}")
    weights = [r["weights"] for r in p.sweep("weights=f32,q8,q4")]
    tally.check(weights == ["f32", "q8", "q4"], f"weights: {weights}")
    compute = [r["compute"] for r in p.sweep("compute=bf16,f32,int8", Q8) + p.sweep("compute=int8", {"weights": "bf16"})]
    tally.check(compute == ["bf16", "f32", "int8", "bf16"], f"compute: {compute}")


@from_full
def machines(tally, place, a):
    """A machine file's rates and capacities are each point's own; a device's lanes, memory and plot too."""
    p = Planner(tally, place)
    small, card = machine(place, "small.cfg", ram="30e6"), machine(place, "card.cfg", **DEVICE)
    rows = p.sweep(f"machine={p.machine},./small.cfg,{card}")
    tally.check(len(rows) == 3 and float(rows[1]["ram_mib"]) < 30e6 / 2**20 < float(rows[0]["ram_mib"]),
                f"ram of a machine file is its point's budget: {rows}")
    tally.check([float(r["device_mib"]) > 0 for r in rows] == [False, False, True], f"a device's memory is counted: {rows}")
    for r, path in zip(rows, (p.machine, small, card)):
        tally.check(not same(r, p.plan({"machine": path})), f"machine {path}: {same(r, p.plan({'machine': path}))}")
    few = {"machine": card, "num-prompts": "8"}
    for text in ("mem-device=8M,10M,16M", "attn=device,cpu"):
        rows = p.sweep(text, few)
        for r in rows:
            apart = same(r, p.plan({**few, r["flag"]: r["value"]}))
            tally.check(not apart, f"{text} at {r['value']}: {apart}")
        tally.check(len({r["device_mib"] for r in rows}) == len(rows) > 1, f"{text}: {rows}")


@from_full
def input_rows(tally, place, a):
    """-i: read again at every point, also from a pipe."""
    p = Planner(tally, place)
    path = place.rows("in.jsonl", trial.job_rows(40, 1))
    for text, columns in (("limit=5..40", ("job_s",)), ("kv-policy=full,h2o", ("kv_policy", "ram_mib")), ("batch=2,8", ("batch",))):
        rows = p.sweep(text, {"input": path})
        for r in rows:
            apart = same(r, p.plan({"input": path, r["flag"]: r["value"]}))
            tally.check(not apart, f"{text} at {r['value']}: {apart}")
        for key in columns:
            tally.check(len({r[key] for r in rows}) == len(rows) > 1, f"{text} of -i: {key}: {rows}")
    asked = ("plan", "-q", "-m", place.model, "--machine", p.machine, "--sweep", "batch=2,8", "-i")
    piped, named = place.sluice(*asked, "-", stdin=read(path)), place.sluice(*asked, path)
    tally.check(piped.code == 0 and piped.out == named.out, f"-i -: {piped.last()!r} {piped.out!r}")


def quoted(tally, place, a):
    """A field that holds quotes and commas is one field, the same as `plan` says."""
    p = Planner(tally, place)
    os.mkdir(place.at('"a, b"'))
    shutil.copy(place.model, place.at('"a, b"/m.cfg'))
    shutil.copy(p.machine, place.at('"c".cfg'))
    odd = {"model": '"a, b"/m.cfg'}
    rows = p.sweep("mem-ram=1M,64M", odd)
    tally.check(len(rows) == 2 and rows[0]["why"].startswith('"a, b"/m.cfg: ') and not rows[1]["why"], f"why: {rows}")
    tally.check(rows and not same(rows[0], p.plan({**odd, "mem-ram": "1M"})), f"why: {rows[:1]}, {p.plan({**odd, 'mem-ram': '1M'})}")
    tally.check([r["value"] for r in p.sweep('machine="c".cfg')] == ['"c".cfg'], "a value with quotes")


def alike(tally, place, a):
    """Points that are alike have rows that are: what is measured is measured once, and it is not the disk that says so."""
    p = Planner(tally, place)
    fast = {k: "1e13" for k in ("nvme_read", "nvme_write", "ram_read", "matmul_flops")}
    streamed = {"machine": machine(place, "fast.cfg", **fast), "weights-resident": "0", "weights-codec": "zstd", "batch": "4"}
    rows = p.sweep("prefill-tokens=64,64,64,64", streamed)
    tally.check(len(rows) == 4 and len({tuple(r.values()) for r in rows}) == 1, f"the codec is sampled once: {rows}")
    here = place.sluice("plan", "-q", "-m", place.model, *words(JOB), "--sweep", "batch=8,8,8")
    lines = here.out.splitlines()
    tally.check(here.code == 0 and len(lines) == 4 and len(set(lines[1:])) == 1, f"on this machine: {here.out!r} {here.err!r}")
    loud = place.sluice("plan", "-m", place.model, "--machine", p.machine, *words(JOB), "--sweep", "batch=8,8,8")
    tally.check(loud.err.count("dummy weights") == 1, f"a warning is said once: {loud.err!r}")


def refused(tally, place, a):
    """What cannot be swept, or has no effect beside the other flags: exit 2, and the flag's name."""
    p = Planner(tally, place)
    path, pack = place.rows("in.jsonl", trial.job_rows(4, 1)), place.at("tiny.pack")
    place.expect(tally, "pack", 0, "pack", place.model, "-o", pack)
    for text, flags, said in (
            *((f"{f}=a,b", {}, f"--{f} cannot be swept")
              for f in ("model", "input", "output", "sweep", "plot", "allow", "config", "offload-dir")),
            ("json=0,1", {}, "--json cannot be swept"), ("time-limit=1..2", {}, "--time-limit cannot be swept"),
            ("wings=1..4", {}, "unknown flag"), ("seed=1..4", {}, "unknown flag"),
            ("batch", {}, "FLAG=A..B"), ("batch=", {}, "no values"), ("batch=,", {}, "no values"), ("=1..4", {}, "unknown flag"),
            ("batch=4..2", {}, "0 < A <= B"), ("batch=0..4", {}, "0 < A <= B"), ("batch=a..b", {}, "--batch"),
            ("batch=1.5,2", {}, "--batch"), ("batch=1..", {}, "--batch"), ("mem-ram=64..128", {}, "--mem-ram"),
            ("kv-policy=full..h2o", {}, "--kv-policy takes words"), ("kv-policy=full,lru", {}, "lru"),
            ("kv-format=q8,q9", {}, "q9"), ("compute=bf16,fp8", {}, "fp8"), ("share-prefixes=on,maybe", {}, "maybe"),
            ("kv-budget=0.1..512", H2O, "not of one kind"), ("weights-resident=10%..100", {}, "not of one kind"),
            ("kv-budget=0.5,1.5", H2O, "1.5"),
            *((f"{f}=0.2,0.4", {}, f"--{f} has no effect") for f in ("kv-budget", "kv-recent", "kv-sink")),
            ("kv-scope=head,layer", {}, "--kv-scope has no effect"), ("limit=1..4", {}, "--limit has no effect"),
            ("num-prompts=1..4", {"input": path}, "--num-prompts has no effect"),
            ("prompt-len=1..4", {"input": path}, "--prompt-len has no effect"),
            ("threads=1..2", {}, "--threads has no effect"), ("weights=q8,q4", {"model": pack}, "--weights has no effect"),
            ("mem-device=1M..2M", {}, "--mem-device has no effect"), (f"batch={','.join('1' * 65)}", {}, "more than 64")):
        done = p.sweep(text, flags, code=2)
        tally.check(said in done.error_line() and not done.out, f"--sweep {text}: no {said!r} in {done.last()!r}, {done.out!r}")
    for more, said in ((["--json"], "--json"), (["-o", "x.json"], "-o"), (["--allow", "q8"], "--allow")):
        done = p.run({}, "--sweep", "batch=1..4", *more)
        tally.check(done.code == 2 and said in done.error_line(), f"--sweep {more[0]}: exit {done.code}: {done.last()!r}")


def plots(tally, place, a):
    """A range stands where its values are, a list side by side; what fails leaves no file."""
    p, svg = Planner(tally, place), place.at("a.svg")
    done = p.run({}, "--plot", svg)
    tally.check(done.code == 2, f"--plot alone: exit {done.code}")
    none = place.sluice("plan", "-q", *words({"model": place.model, **JOB}), "--sweep", "batch=1..4", "--plot", svg, PATH=place.at("no"))
    tally.check(none.code == 2 and "gnuplot-nox" in none.err and not os.path.exists(svg), f"without gnuplot: {none.err!r}")
    if not shutil.which("gnuplot"):
        tally.skip("plan --plot: no gnuplot")
        return
    card = machine(place, "card.cfg", **DEVICE)
    for text, flags, labels in (("mem-ram=16M..2G", {}, ("16M", "512M", "1G", "2G", "--mem-ram")),
                                ("kv-policy=full,h2o", {}, ("full", "h2o")), ("mem-ram=1M,2M", {}, ("1M", "2M")),
                                (f"machine={p.machine},{card}", {}, ("here.cfg", "card.cfg")), ("batch=4..8", {"machine": card}, ("4", "8"))):
        done = p.run(flags, "--sweep", text, "--plot", svg)
        drawn = read(svg).decode()
        texts = re.findall(r"<text>(?:<tspan[^>]*>)?\s*([^<]*)", drawn)
        rows = list(csv.DictReader(io.StringIO(done.out)))
        tally.check(done.code == 0 and drawn.rstrip().endswith("</svg>") and len(rows) > 1, f"{text}: exit {done.code} {done.last()!r}")
        for word in (*labels, *{r["bound"] for r in rows if not r["why"]}):
            tally.check(word in texts, f"{text}: no {word!r} among {texts}")
        os.unlink(svg)
    png = place.at("a.png")
    done = p.run({}, "--sweep", "batch=1..4", "--plot", png)
    data, at = read(png), 8
    chunks = []
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        tally.check(zlib.crc32(data[at + 4:at + 8 + n]) == struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0], f"PNG: {kind} has a wrong sum")
        chunks.append(kind)
        at += 12 + n
    tally.check(data[:8] == b"\x89PNG\r\n\x1a\n" and chunks[-2:] == [b"tEXt", b"IEND"] and done.code == 0, f"PNG: {chunks}, exit {done.code}")
    done = p.run({}, "--sweep", "batch=1..4", "--plot", png)
    tally.check(done.code == 0, f"a PNG of ours is drawn again: {done.last()!r}")
    for name in ("a.jpg", "png"):
        done = p.run({}, "--sweep", "batch=1..4", "--plot", place.at(name))
        tally.check(done.code == 2 and not done.out and ".svg" in done.err and not os.path.exists(place.at(name)), f"--plot {name}: {done.err!r}")
    for what, more, path in (("a folder that is not there", ["--sweep", "batch=1..4"], "no/a.svg"),
                             ("a bad flag", ["--sweep", "wings=1..4"], svg), ("a bad point", ["--sweep", "machine=none.cfg"], svg)):
        done = p.run({}, *more, "--plot", path)
        tally.check(done.code in (2, 5) and not os.path.exists(place.at(path)), f"--plot, {what}: exit {done.code} {done.last()!r}")


# ---- --allow --------------------------------------------------------------------------------------

FLAGS_OF = {"q8": {"weights": "q8"}, "q4": {"weights": "q4"}, "int8": {"compute": "int8"}, "kv-q8": {"kv-format": "q8"},
            "kv-q4": {"kv-format": "q4"}, "mixed": {"kv-format": "mixed"}}


def mixed_model():
    """A GGUF file whose head is in f32, the rest in f16: in q8 it is cut into fewer slices."""
    g, dim, ffn, vocab = model_make.Gguf(), 64, 4096, 12000
    g.set("feed_forward_length", model_make.U32, ffn).set("vocab_size", model_make.U32, vocab)
    g.tensors["token_embd.weight"] = g.tensors["output.weight"] = [dim, vocab]
    for name, dims in g.tensors.items():
        if "ffn_" in name and len(dims) == 2:
            g.tensors[name] = [ffn, dim] if "down" in name else [dim, ffn]
        if name.startswith("blk") and len(dims) == 2:
            g.types[name] = model_make.F16
    return g.bytes()


def flags_of(name):
    flags = {}
    for word in name.split(" + "):
        policy, _, budget = word.partition("=")
        flags.update(FLAGS_OF.get(word) or {"kv-policy": policy, "kv-budget": budget})
    return flags


def allowed(p, text, flags=None):
    """(lines behind the first: [name, tokens/s or None, RAM MiB, quality], the first, what stands below)."""
    done = p.run(flags or {}, "--allow", text)
    if not p.tally.check(done.code == 0, f"--allow {text}: exit {done.code}: {done.last()!r}"):
        return [], None, ""
    head, *lines = done.out.splitlines()
    found = []
    for x in lines:
        m = re.match(r"(\S.*?) {2,}([\d.e+]+|-) +(?:([\d.]+)x +)?([\d.]+|-)  (no plan fits|\S+) +(\S.*)", x)
        if not m:
            break
        found.append([m[1], *(float(y) if y != "-" else None for y in (m[2], m[4])), m[6], m[5]])
    p.tally.check("more perplexity" in head and found, f"--allow {text}: {done.out!r}")
    return found[1:], found[0], "\n".join(lines[len(found):])


@from_full
def allow(tally, place, a):
    """Each line is what `plan` says with its flags; best first; a combination beats its parts."""
    p = Planner(tally, place)
    long = {"prompt-len": "400", "mem-ram": "30M"}
    path = place.rows("in.jsonl", trial.job_rows(40, 1))
    for text, flags in (("q8,q4,int8,h2o=0.2,mixed", long), ("q8,q4,h2o=0.5", {}), ("int8", {}), ("int8", {"weights": "q4"}),
                        ("kv-q8,kv-q4,mixed,window=64", {"prompt-len": "400", "machine": machine(place, "card.cfg", **DEVICE)}),
                        ("q4,h2o=0.2,kv-q8", {"input": path}), ("h2o=0.3", {"kv-policy": "streaming", "kv-format": "q8"}))[::pick(3, 1)]:
        lines, first, rest = allowed(p, text, flags)
        base = p.row(flags)
        names = [x[0] for x in lines]
        rates = dict(x[:2] for x in lines)
        tally.check(first and math.isclose(first[1], base["output_tokens_per_s"], rel_tol=1e-3), f"{text}: {first} is not {base}")
        tally.check(first[0] == ("as asked" if "kv-policy" in flags else "default (lossless)"), f"{text}: {first}")
        tally.check([x[1] or 0 for x in lines] == sorted((x[1] or 0 for x in lines), reverse=True), f"{text}: best first: {lines}")
        tally.check(len(lines) <= 12 and len(set(names)) == len(names), f"{text}: {names}")
        tally.check("change the answers" in rest, f"{text}: {rest!r}")
        for word in text.split(","):
            alone = [word] if word != "int8" else ["q8 + int8"] if "weights" not in flags else ["int8"]
            tally.check(set(alone) <= set(names), f"{text}: no line for {alone} in {names}")
        for name, rate, ram, quality, bound in lines:
            want = p.row({**flags, **flags_of(name)})
            good = (math.isclose(rate, want["output_tokens_per_s"], rel_tol=1e-3) and abs(ram - want["ram_mib"]) < 0.1 and bound == want["bound"]
                    if rate else "kv_policy" not in want)
            tally.check(good, f"{text}: {name}: {rate} tokens/s, {ram} MiB, {bound}; plan says {want}")
            parts = name.split(" + ")
            fewer = [" + ".join(x for x in parts if x != y) for y in parts]
            best = max((rates.get(f) or 0 for f in fewer), default=0)
            tally.check(len(parts) == 1 or (len(parts) == 2 and parts[1] == "int8") or rate >= 1.019 * best,
                        f"{text}: {name} at {rate} brings nothing over {fewer} at {best}")
    mixed = {"model": place.write("mixed.gguf", mixed_model()), "weights-codec": "none", "weights-resident": "1"}
    for name, rate, ram, _, _ in allowed(p, "q8,q4", mixed)[0]:
        want = p.row({**mixed, **flags_of(name)})
        tally.check(math.isclose(rate, want["output_tokens_per_s"], rel_tol=1e-3) and abs(ram - want["ram_mib"]) < 0.1,
                    f"the head in other slices: {name}: {rate} tokens/s, {ram} MiB; plan says {want}")
    slow = {**mixed, "machine": machine(place, "slow.cfg", nvme_read="1e7"), "num-prompts": "2000", "weights-codec": "auto"}
    encoded, plain = (p.row({**slow, "weights": "q8", "weights-codec": c})["output_tokens_per_s"] for c in ("auto", "none"))
    (_, rate, *_), = allowed(p, "q8", slow)[0]
    tally.check(math.isclose(rate, plain, rel_tol=1e-3) and encoded > 1.03 * plain,
                f"of weights that are not there nothing is measured: {rate} tokens/s, plan says {plain}, {encoded} with zstd")
    streamed = {"prompt-len": "400", "percent": "0 0 0 0 0 100", "batch": "16"}
    names = [x[0] for x in allowed(p, "q8,int8,h2o=0.2,kv-q8", streamed)[0]]
    tally.check("q8 + h2o=0.2 + kv-q8" in names, f"what brings something together has a line: {names}")
    tally.check([x[0] for x in allowed(p, "q8,q8,h2o=0.2,q8")[0]].count("q8") == 1, "an option that is said twice has one line")
    many = allowed(p, "q8,q4,int8,h2o=0.2,h2o=0.1,h2o=0.3,kv-q8,mixed,kv-q4", streamed)[0]
    tally.check(len(many) == 12 and sum(" + " not in x[0] for x in many) == 8, f"at most twelve lines, no single option left out: {many}")


def allow_refuses(tally, place, a):
    p = Planner(tally, place)
    for bad in ("q5", "h2o", "h2o=2.5", "lfu=0.2", ",", "kv-q5", "h2o=" + "1" * 60, ",".join(f"h2o=0.{i}" for i in range(10, 26))):
        done = p.run({}, "--allow", bad)
        tally.check(done.code == 2 and not done.out, f"--allow {bad}: exit {done.code}: {done.last()!r}")
    for more in (["--sweep", "batch=1..4"], ["--json"], ["-o", "x.json"]):
        tally.check(p.run({}, "--allow", "q8", *more).code == 2, f"--allow with {more[0]}")
    done = p.run({"mem-ram": "8M"}, "--allow", "q8")
    tally.check(done.code == 4 and not done.out, f"--allow of a job that does not fit: exit {done.code}: {done.out!r}")


@from_full
def qualities(tally, place, a):
    """What a line says of quality stands in bench/results, or it says that nobody measured it."""
    p, measured = Planner(tally, place), trial.more_perplexity()
    tally.check(set(measured) >= {"h2o", "h2o-mean", "streaming", "window"}, f"bench/results: {measured}")
    lines, _, rest = allowed(p, "q8,int8,kv-q4,h2o=0.2,h2o-mean=0.2,streaming=0.2,window=0.2")
    seen = set()
    for name, _, _, quality, _ in lines:
        parts = [x.partition("=")[0] for x in name.split(" + ")]
        told = [x.partition(" ")[::2] for x in quality.split(", ")]
        tally.check([x[0] for x in told] == parts, f"{name}: quality of {parts}: {quality!r}")
        for what, said in told:
            seen.add(what)
            if what in measured:
                number = re.fullmatch(r"\+([\d.]+) %", said)
                tally.check(number and any(abs(float(number[1]) - x) < 0.051 for x in measured[what]), f"{what}: {said!r}, bench: {measured[what]}")
            else:
                tally.check(said == ("+0.7 %" if what == "int8" else "not measured"), f"{what}: {said!r}")
    tally.check(seen >= set(measured) | {"q8", "int8", "kv-q4"}, f"all are told of: {seen}")
    tally.check("SmolLM2" in rest and "128 of 1,024" in rest and "int8 at the rates of bf16" in rest, f"on what: {rest!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (points, machines, input_rows, quoted, alike, refused, plots, allow, allow_refuses, qualities)))
