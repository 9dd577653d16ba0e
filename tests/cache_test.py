#!/usr/bin/env python3
"""`sluice cache`: what it lists, what it removes, and what it leaves: cache_test.py [SLUICE] [--only PART]"""
import json
import os
import shutil
import signal
import sys

import model_make
import trial


def files(place):
    return json.loads(place.sluice("cache", "list", "--json").out)["files"]


def filled(place):
    """A cache after a run: packs of two weight formats and what was measured."""
    rows = place.rows("in.jsonl", trial.job_rows(4, 1, tokens=(2, 4)))
    for weights in ("f32", "bf16"):
        place.sluice("run", "-q", "-m", place.model, "-i", rows, "-o", place.fresh(), "--weights", weights, "--mem-ram", "64M")
    return rows


FOREIGN = {"notes.txt": b"mine", "mine-0123456789abcdef-auto.pack": b"not a pack", "probe-cpu-0123456789abcdef.cfg": b"no checksum\n",
           "frontier-0123456789abcdef.csv": b"a,b\n", "x.pack.zst": b"not encoded"}


def lists_and_removes(tally, place, _):
    filled(place)
    for name, data in FOREIGN.items():
        place.write(os.path.join("cache", name), data)
    os.symlink(place.write("victim", b"sluicepk"), place.at("cache/link-0123456789abcdef-f32.pack"))
    listed = files(place)
    kinds = {x["kind"] for x in listed}
    tally.check(kinds == {"pack", "machine", "content"}, f"kinds: {kinds}")
    packs = [x for x in listed if x["kind"] == "pack"]
    tally.check([x["model"] for x in packs] == ["tiny.cfg"] * 2, f"packs: {packs}")
    tally.check(not {x["name"] for x in listed} & {*FOREIGN, "link-0123456789abcdef-f32.pack"}, f"foreign files are listed: {listed}")
    table = place.sluice("cache").out
    tally.check(all(x["name"] in table for x in listed) and f"{len(listed)} files, " in table, table)
    place.expect(tally, "rm of a foreign file", 2, "cache", "rm", "notes.txt")
    place.expect(tally, "rm of nothing", 2, "cache", "rm")
    place.expect(tally, "prune without --max", 2, "cache", "prune")
    place.expect(tally, "a word that is none", 2, "cache", "clear")
    place.expect(tally, "rm", 0, "cache", "rm", packs[0]["name"])
    left = {x["name"] for x in files(place)}
    gone = {x["name"] for x in listed} - left
    tally.check(gone == {packs[0]["name"]}, f"rm took {gone}")
    done = place.expect(tally, "prune", 0, "cache", "prune", "--max", "0", "--json")
    tally.check(json.loads(done.out)["removed_files"] == len(left), done.out)
    stay = sorted([*FOREIGN, "link-0123456789abcdef-f32.pack"])
    tally.check(sorted(os.listdir(place.at("cache"))) == stay, f"after prune: {os.listdir(place.at('cache'))}")
    tally.check(trial.read(place.at("victim")) == b"sluicepk", "the file behind a link was touched")


def many_files(tally, place, _):
    filled(place)
    one = trial.read(place.at("cache/" + next(x["name"] for x in files(place) if x["kind"] == "machine")))
    os.mkdir(place.at("many"))
    for i in range(5000):
        place.write(f"many/probe-cpu-{i:016x}.cfg", one)
    done = place.sluice("cache", "list", "--json", SLUICE_CACHE_DIR=place.at("many"))
    tally.check(len(json.loads(done.out)["files"]) == 5000, f"not all of 5000: {done.out[-300:]}")


def age(place, but=""):
    for name in os.listdir(place.at("cache")):
        if name != but:
            os.utime(place.at("cache/" + name), (1e9, 1e9))


def oldest_first(tally, place, _):
    """The pack that was used last stays, whichever was made first; what is removed is made again."""
    rows = filled(place)
    packs = [x["name"] for x in files(place) if x["kind"] == "pack"]
    age(place)
    used = {x["last_used"][:4] for _ in range(2) for x in files(place)}
    tally.check(used == {"2001"}, f"a listing counts as use: {used}")
    run = ["run", "-q", "-m", place.model, "-i", rows, "--mem-ram", "64M", "--weights", "f32"]
    place.expect(tally, "a run of the older pack", 0, *run, "-o", place.fresh())
    f32 = next(x for x in files(place) if x["name"].endswith("-f32.pack"))
    tally.check(len(packs) == 2 and f32["last_used"] > "2020", f"last use: {f32}")
    age(place, f32["name"])  # what the run measured may be newer than the pack by a second
    place.expect(tally, "prune", 0, "cache", "prune", "--max", str(f32["bytes"]) + "B")
    left = [x["name"] for x in files(place)]
    tally.check(left == [f32["name"]], f"left: {left}, want {f32['name']}")
    place.sluice("cache", "prune", "--max", "0")
    place.expect(tally, "a run after all is gone", 0, *run, "-o", place.fresh())


def used_packs_stay(tally, place, _):
    rows = place.rows("in.jsonl", trial.job_rows(400, 2, tokens=(48, 64)))
    p = place.start(["run", "-m", place.model, "-i", rows, "-o", place.fresh(), "--mem-ram", "64M"])
    tally.check(p.wait_for(lambda: p.said("plan:")), "the run did not begin")
    p.signal(signal.SIGSTOP)
    packs = [x["name"] for x in files(place) if x["kind"] == "pack"]
    done = place.expect(tally, "rm of a pack in use", 8, "cache", "rm", *packs)
    tally.check("a running process uses it" in done.err, done.err)
    done = place.expect(tally, "prune beside a run", 0, "cache", "prune", "--max", "0")
    tally.check("running processes use them" in done.err, done.err)
    tally.check(len(packs) == 1 and [x["name"] for x in files(place)] == packs, f"left: {files(place)}, want {packs}")
    p.signal(signal.SIGKILL)
    p.end()
    place.expect(tally, "rm after the run", 0, "cache", "rm", *packs)


def copies_share_a_pack(tally, place, _):
    """A copy, and a model that was touched, use the pack that is there; one byte less or other makes another pack."""
    os.mkdir(place.at("m"))
    first, second = model_make.hf(place.at("m")), place.at("copy")
    rows = place.rows("ids.jsonl", [{"prompt_token_ids": [1, 2, 3 + i], "max_tokens": 6} for i in range(4)])

    def run(model, packs):
        out = place.fresh()
        done = place.expect(tally, f"a run of {model}", 0, "run", "-m", model, "-i", rows, "-o", out, "--mem-ram", "64M")
        have = [x["name"] for x in files(place) if x["kind"] == "pack"]
        tally.check(len(have) == packs, f"{model}: {have}, want {packs}: {done.err[-300:]}")
        return trial.read(out)

    answers = run(first, 1)
    shutil.copytree(first, second)  # with other times
    tally.check(run(second, 1) == answers, "a copy gives other answers")
    os.utime(os.path.join(first, "model.safetensors"), (1e9, 1e9))
    tally.check(run(first, 1) == answers, "a touched model gives other answers")
    said = json.loads(place.sluice("inspect", second, "--json").out)["model"]
    tally.check(said == "copy", f"the copy is called {said}")
    path = os.path.join(second, "model.safetensors")
    data = bytearray(trial.read(path))
    data[len(data) * 2 // 3] ^= 1
    place.write(path, bytes(data))
    run(second, 2)
    run(first, 2)


def homeless(tally, place, _):
    """Without a folder for a cache a job has one beside OUT; what has no OUT says which variable helps."""
    rows = place.rows("in.jsonl", trial.job_rows(4, 1, tokens=(2, 4)))
    none = {"SLUICE_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": ""}
    for what, env in (("no home", none), ("no folder", {**none, "HOME": "/proc/none"})):
        out = place.fresh()
        run = ["run", "-m", place.model, "-i", rows, "--mem-ram", "64M"]
        done = place.expect(tally, what, 0, *run, "-o", out, **env)
        tally.check(done.err.count(f"this job uses {out}.cache") == 1, f"{what}: {done.err[-400:]}")
        tally.check(any(x.endswith(".pack") for x in os.listdir(out + ".cache")), f"{what}: no pack beside OUT")
        done = place.sluice(*run, "-o", place.fresh(), **{**env, "SLUICE_CACHE_DIR": "/proc/none"})
        tally.check(done.code == 9 and "/proc/none" in done.err, f"a folder that was asked for: exit {done.code} {done.err[-300:]}")
        done = place.sluice("gen", "-m", place.model, "-p", "hi", **env)
        tally.check(done.code != 0 and "set SLUICE_CACHE_DIR" in done.err, f"{what}: gen: exit {done.code} {done.err[-300:]}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (lists_and_removes, many_files, oldest_first, used_packs_stay, copies_share_a_pack, homeless)))
