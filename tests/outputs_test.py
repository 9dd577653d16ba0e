#!/usr/bin/env python3
"""Nothing that is not sluice's own is touched: outputs_test.py [SLUICE] [--only PART]

Every flag that writes, against every kind of path that it must refuse; planted links at the names that
sluice makes up itself; a file that takes OUT's place; full disks; reads from FIFOs. After each refused
command the folder is what it was: names, inodes, modes, bytes.
"""
import json
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from nth import text_model  # noqa: E402
from trial import LEVEL, job_rows, read, run_parts  # noqa: E402

MODEL = """family = llama
dim = 32
layers = 2
heads = 1
kv_heads = 1
head_dim = 32
ffn = 32
vocab = 256
context = 256
"""
RAM = ["--mem-ram", "64M"]
COMPANIONS = (".partial", ".journal", ".job.json", ".job.json.tmp", ".tmp", ".input")
MADE_UP = ["--prompt-len", "8", "--gen-len", "4", "--num-prompts", "4"]
ROWS, MINE = "in.jsonl", b"mine, and no one else's\n"


def look(folder):
    """All that a command may not change."""
    seen = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            st = os.lstat(path)
            regular = os.path.isfile(path) and not os.path.islink(path)
            seen[os.path.relpath(path, folder)] = (
                st.st_ino, st.st_mode, st.st_size, read(path) if regular else os.readlink(path) if os.path.islink(path) else b"")
    return seen


def changed(before, after):
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


class Bed:
    """A fresh folder with rows, models and parts; a command with its flag to write."""

    def __init__(self, p, name):
        self.p, self.folder = p, p.at(name)
        os.makedirs(self.folder)
        self.model = self.write("tiny.cfg", MODEL.encode())
        self.rows = self.write(ROWS, "".join(json.dumps(r) + "\n" for r in job_rows(3, 1, vocab=256, prompt_max=20, tokens=(3, 4))).encode())
        self.out = self.at("out.jsonl")

    def at(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.at(name), "wb") as f:
            f.write(data)
        return self.at(name)

    def words(self, command):
        """Of a command that is right but for the flag that is tried."""
        job = ["-m", self.model, "-i", self.rows, *RAM, "-q"]
        return {"run": ["run", *job, "-o", self.out], "run -": ["run", "-m", self.model, "-i", "-", *RAM, "-q", "-o", self.out],
                "score": ["score", *job, "-o", self.out], "plan": ["plan", "-m", self.model, "-q", *MADE_UP, *RAM],
                "plan -i": ["plan", *job], "probe": ["probe", "-q", "--offload-dir", self.folder],
                "pack": ["pack", self.model, "-q"], "merge": ["merge", self.rows], "bench": ["bench", "ops", "norm", "-q", "-m", self.model, "--runs", "1"],
                "bench throughput": ["bench", "throughput", "-q", "-m", self.model, *MADE_UP, *RAM]}[command]

    def sluice(self, command, *more, **env):
        return self.p.sluice(*self.words(command), *more, **env)


FLAGS = [*((c, f) for c in ("run", "score") for f in ("-o", "--summary", "--trace", "--kv-dump", "--kv-trace")), ("run -", "-o"),
         ("run -", "--summary"), ("plan", "-o"), ("plan -i", "-o"), ("probe", "-o"), ("pack", "-o"), ("merge", "-o"),
         ("bench", "-o"), ("bench throughput", "--summary")]
ALL = [c for c, _ in FLAGS]


def plant(b, kind):
    """A path of that kind; None: it cannot be made here."""
    path = b.at("tried.svg")
    if kind == "socket":
        s = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(b.folder)  # a socket's path is short
        s.bind("tried.svg")
        os.chdir(here)
        s.close()
    elif kind == "device":
        if os.geteuid() != 0:
            return None
        os.mknod(path, 0o20666, os.makedev(1, 3))
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "link to a file":
        os.symlink(b.write("victim", MINE), path)
    elif kind == "link to nothing":
        os.symlink(b.at("nowhere"), path)
    elif kind == "link to a device":
        os.symlink("/dev/null", path)
    elif kind == "link to a folder":
        os.symlink(b.folder, path)
    elif kind in ("somebody's file", "read-only file"):
        b.write("tried.svg", MINE)
        os.chmod(path, 0o444 if kind[0] == "r" else 0o640)
    elif kind == "no folder":
        path = b.at("no/such/folder")
    elif kind.startswith("/"):
        path = kind
    elif kind == "-":
        return kind
    elif kind == "the input":
        path = b.rows
    elif kind == "the input by another path":
        os.mkdir(b.at("sub"))
        path = b.at("sub/../" + ROWS)
    elif kind == "the input by another name":
        os.link(b.rows, path)
    elif kind == "the input in a linked folder":
        os.symlink(b.folder, b.at("around"))
        path = b.at("around/" + ROWS)
    elif kind == "the model":
        path = b.model
    elif kind == "the model by another name":
        os.link(b.model, path)
    else:
        raise KeyError(kind)
    return path


KINDS = {"socket": "not a regular file", "device": "not a regular file", "FIFO": "not a regular file", "directory": "directory",
         "link to a file": "symbolic link", "link to nothing": "symbolic link", "link to a device": "symbolic link",
         "link to a folder": "symbolic link", "somebody's file": "--overwrite", "read-only file": "read-only", "no folder": "No such file",
         "/dev/null": "not a regular file", "/dev/stdout": "", "-": "not to stdout"}
SOURCES = {"the input": "--input", "the input by another path": "--input", "the input by another name": "--input",
           "the input in a linked folder": "--input"}
MODELS = {"the model": "model", "the model by another name": "model"}


def refuse(t, b, what, command, *more, codes=(2,), words="", **env):
    before = look(b.p.folder)
    done = b.sluice(command, *more, **env)
    after = look(b.p.folder)
    line = done.error_line()
    t.check(done.code in codes and words in line and done.err.count("\n") == 1,
            f"{what}: exit {done.code}, want {codes} and {words!r} in one line: {done.err[-300:]!r}")
    t.check(before == after, f"{what}: changed {changed(before, after)}")


def kinds(t, p, _):
    """Each flag that writes, each kind of path."""
    if os.geteuid() != 0:
        t.skip("devices: not root")
    for n, (command, flag) in enumerate(FLAGS):
        reads = SOURCES if command in ("run", "score", "plan -i", "merge") else {}
        models = MODELS if command != "merge" and command != "probe" else {}
        for k, (kind, words) in enumerate({**KINDS, **reads, **models}.items()):
            if kind == "-" and flag == "-o" and command not in ("pack", "merge"):
                continue  # stdout
            b = Bed(p, f"{n}-{k}")
            path = plant(b, kind)
            if path is None:
                continue
            job_s = flag == "-o" and command in ("run", "run -", "score", "merge")
            words = "one of the parts" if command == "merge" and kind in SOURCES else words
            refuse(t, b, f"{command} {flag} {kind}", command, flag, path, words=words, codes=(8,) if job_s and kind[:4] == "some" else (2,),
                   stdin=read(b.rows) if command == "run -" else None)
            shutil.rmtree(b.folder)
            shutil.rmtree(p.at("cache"), ignore_errors=True)


def each_other(t, p, _):
    """A flag's file against OUT, OUT's companions, and another flag's file."""
    sides = ("--summary", "--trace", "--kv-dump", "--kv-trace")
    for n, flag in enumerate(sides):
        b = Bed(p, f"each-{n}")
        for name in ("", *COMPANIONS):
            refuse(t, b, f"run {flag} OUT{name}", "run", flag, b.out + name, words="--output" if not name else "the job of -o writes")
        for other in sides[:n]:
            refuse(t, b, f"run {flag} and {other}", "run", flag, b.at("x"), other, b.at("./x"), words="also the file of")
        shutil.rmtree(b.folder)
    b = Bed(p, "companions")
    b.sluice("run", "-o", b.at("before"))  # packs and probes, so that the cache stays as it is
    for name in COMPANIONS[:-1]:
        rows = b.write("job" + name, read(b.rows))
        refuse(t, b, f"-i OUT{name}", "run", "-i", rows, "-o", b.at("job"), words="--input")
        os.unlink(rows)
        for kind, make in (("directory", os.mkdir), ("FIFO", os.mkfifo)):
            make(b.out + name)
            refuse(t, b, f"{kind} at OUT{name}", "run", words="not a regular file")
            os.rmdir(b.out + name) if kind == "directory" else os.unlink(b.out + name)
        b.write("out.jsonl" + name, MINE)
        refuse(t, b, f"somebody's OUT{name}", "run", codes=(7, 8), words="--overwrite")
        os.unlink(b.out + name)


def model_files(t, p, _):
    """A file of a model that is a folder, or has several parts; a file that is none of it."""
    b = Bed(p, "models")
    text_model(b.at("hf"))
    for name in os.listdir(b.at("hf")):
        for flag in ("--summary", "--trace"):
            refuse(t, b, f"{flag} {name} of the model", "run", "-m", b.at("hf"), flag, b.at("hf/" + name), "--overwrite", words="a file of the model")
    refuse(t, b, "pack -o a file of the model", "pack", "-o", b.model, "--overwrite", words="the model")
    refuse(t, b, "run -o MODEL --overwrite", "run", "-o", b.model, "--overwrite", words="--model")
    for i in (1, 2):
        b.write(f"m-0000{i}-of-00002.gguf", b"GGUF part")
    refuse(t, b, "another part of the GGUF", "run", "-m", b.at("m-00001-of-00002.gguf"), "--summary", b.at("m-00002-of-00002.gguf"), "--overwrite",
           words="a file of the model")
    b.write("p", MINE)
    refuse(t, b, "-m FILE, --plan FILE: --summary FILE", "run", "--plan", b.at("p"), "--summary", b.at("p"), "--overwrite", words="--plan")


def no_job(t, p, _):
    """What is refused later leaves no file either: no model, no row, no room, another job's OUT."""
    b = Bed(p, "nojob")
    cases = [("no model", (5,), "run", ["-m", b.at("none.cfg")]), ("no input", (5,), "run", ["-i", b.at("none.jsonl")]),
             ("does not fit", (4,), "run", ["--mem-ram", "2M"]), ("kv-trace of full", (2,), "run", ["--kv-trace", b.at("kv")]),
             ("a bad flag value", (2,), "run", ["--kv-policy", "none"])]
    b.sluice("run", "-o", b.at("before"))  # packs and probes, so that the cache stays as it is
    b.sluice("run", "-o", b.at("small"), "--mem-ram", "2M", "-q")
    for what, codes, command, more in cases:
        refuse(t, b, what, command, *more, "--summary" if command == "run" else "-o", b.at("side"), codes=codes)
    rows = read(b.rows)
    refuse(t, b, "stdin rows, and -o is a folder", "run -", "-o", b.folder, stdin=rows)
    refuse(t, b, "stdin rows that do not fit", "run -", "--mem-ram", "2M", codes=(4,), stdin=rows)
    b.write("out.jsonl", MINE)
    refuse(t, b, "stdin rows, and OUT is somebody's", "run -", codes=(8,), stdin=rows)
    os.unlink(b.out)
    b.write("out.jsonl.job.json", MINE)
    refuse(t, b, "stdin rows, and OUT.job.json is somebody's", "run -", codes=(8,), stdin=rows)


def links(t, p, _):
    """Links at every name that sluice makes up: the target stays, none is made. $$ is the pid that it will have."""
    jobs = [("run", s) for s in COMPANIONS[:-1]] + [("run -", s) for s in COMPANIONS] + [("merge", s) for s in (".job.json", ".job.json.tmp", ".tmp")]
    jobs += [("run", "sum.$$-0.tmp"), ("run", "trace.$$-0.tmp"), ("run", "dump.$$-0.tmp"), ("run -", ".input.$$-0.tmp"), ("probe", "sum.$$-0.tmp"),
             ("plan", "sum.$$-0.tmp"), ("merge", ".$$-0.tmp"), ("merge", ".job.json.$$-0.tmp")]
    for n, (command, name) in enumerate(jobs):
        for live in (True, False):
            b = Bed(p, f"links-{n}-{live}")
            victim = b.write("victim", MINE) if live else b.at("nothing")
            at = b.at(name) if not name.startswith(".") else b.out + name
            side = {"run": ["--summary", b.at("sum"), "--trace", b.at("trace"), "--kv-dump", b.at("dump")], "probe": ["-o", b.at("sum")],
                    "plan": ["-o", b.at("sum")], "merge": ["-o", b.out, "--overwrite"]}.get(command, [])
            if command == "merge":
                b.sluice("run", "-o", b.at("part"), "--shard", "0/1")
            words = b.words(command)[:1] + [b.at("part")] if command == "merge" else b.words(command)
            script = f'ln -s "$0" "{at}" || exit 99; exec "$@"'
            done = p.sluice(*words, *side, wrapper=["sh", "-c", script, victim], stdin=read(b.rows) if command == "run -" else None)
            fixed = "$$" not in name
            t.check(done.code == (2 if fixed else 0), f"{command}, link at {name}: exit {done.code}: {done.err[-200:]!r}")
            t.check(read(victim) == (MINE if live else b"") and os.path.exists(victim) == live, f"{command}: followed the link at {name}")
            left = [x for x in os.listdir(b.folder) if os.path.islink(b.at(x))]
            t.check(len(left) == 1, f"{command}: the link at {name} is gone")
            shutil.rmtree(b.folder)


def frontier(t, p, _):
    """The store of bench frontier, and a probe in the cache: links and FIFOs there."""
    b = Bed(p, "frontier")
    text_model(b.at("hf"))
    text = b.write("text", b"the quick brown fox jumps over the lazy dog. " * 20)
    words = ["bench", "frontier", "-q", "-m", b.at("hf"), "--text", text, "--policies", "h2o", "--budgets", "0.5", "--needles", "0", "--window", "96",
             "--prefix", "64", "--limit", "1", "--num-prompts", "2", "--csv", *RAM]
    done = p.sluice(*words)
    stores = [f for f in os.listdir(p.at("cache")) if f.startswith("frontier-")]
    if not t.check(done.code == 0 and len(stores) == 1, f"bench frontier: {done.code} {done.err[-300:]!r} {stores}"):
        return
    store = os.path.join(p.at("cache"), stores[0])
    for kind in ("link", "dangling link", "FIFO"):
        os.unlink(store)
        victim = b.write("victim", MINE) if kind == "link" else b.at("nothing")
        os.mkfifo(store) if kind == "FIFO" else os.symlink(victim, store)
        done = p.sluice(*words, limit_s=60)
        t.check(done.code == 9 and read(victim) == (MINE if kind == "link" else b""), f"{kind} at the store: exit {done.code} {done.err[-200:]!r}")


def again(t, p, _):
    """The same command again needs no --overwrite; over somebody's file --overwrite is needed, and does."""
    b = Bed(p, "again")
    job = ["--summary", b.at("s"), "--trace", b.at("t"), "--kv-dump", b.at("d"), "--kv-trace", b.at("k"), "--kv-policy", "h2o", "--kv-budget", "12"]
    b.sluice("run", "-o", b.at("part"), "--shard", "0/1")
    cases = [("run", job), ("plan", ["-o", b.at("plan")]), ("probe", ["-o", b.at("probe")]),
             ("pack", ["-o", b.at("pack")]), ("bench", ["-o", b.at("bench"), "--csv"]), ("bench", ["-o", b.at("json"), "--json"]),
             ("bench throughput", ["--summary", b.at("bs")])]
    for command, more in cases if LEVEL else [x for x in cases if x[0] in ("run", "plan", "pack")]:  # probe and bench take seconds
        made = [x for x in more if x.startswith(b.folder)]
        for turn in ("first", "again"):
            done = b.sluice(command, *more, *(["--overwrite"] if turn == "again" and command == "run" else []))
            t.check(done.code == 0, f"{command} {turn}: exit {done.code} {done.err[-300:]!r}")
        for path in made:
            t.check(os.path.getsize(path) > 20, f"{command} {more}: {path} was not made")
        path = made[0]
        b.write(os.path.basename(path), MINE)
        refuse(t, b, f"{command} over somebody's file", command, *more, words="--overwrite")
        done = b.sluice(command, *more, "--overwrite")
        nothing = command == "run" and done.code == 0  # the job was complete
        t.check(done.code == 0 and (nothing or read(path) != MINE), f"{command} --overwrite: exit {done.code} {done.err[-300:]!r}")
        b.write(os.path.basename(path), b"")  # an empty file is free: mktemp makes such
        done = b.sluice(command, *more)
        t.check(done.code == 0, f"{command} over an empty file: exit {done.code} {done.err[-300:]!r}")
    left = [x for x in os.listdir(b.folder) if ".tmp" in x]
    t.check(not left, f"left behind: {left}")
    done = b.sluice("plan", "-o", "-")
    t.check(done.code == 0 and json.loads(done.out)["predicted"] and not os.path.exists(b.at("-")), f"plan -o -: {done.err!r}")


def taken(t, p, _):
    """A file that stands at OUT when the job ends is left alone; the rows are kept, and OUT is made once it is gone."""
    for n, order in enumerate(("input", "completion")):
        b = Bed(p, f"taken-{n}")
        more = ["--order", order, "-t", "1"]
        b.sluice("run", *more, "-o", b.at("want"))
        done = b.sluice("run", *more, "--time-limit", "0.000001s")
        t.check(done.code == 75 and os.path.exists(b.out + ".partial"), f"stopped: exit {done.code} {done.err[-200:]!r}")
        b.write("out.jsonl", MINE)
        done = b.sluice("run", *more)
        t.check(done.code == 8 and ".partial" in done.error_line() and read(b.out) == MINE, f"OUT is taken: exit {done.code} {done.err[-300:]!r}")
        os.unlink(b.out)
        done = b.sluice("run", *more)
        t.check(done.code == 0 and read(b.out) == read(b.at("want")), f"OUT is free again: exit {done.code} {done.err[-300:]!r}")


def full(t, p, _):
    """A side file on a full disk: exit 9 with its name, OUT whole, what stood there before as it was."""
    b = Bed(p, "full")
    os.mkdir(b.at("disk"))
    mounts = 'mount -t tmpfs -o size=4k none "$0" 2>/dev/null || exit 99; head -c 4096 /dev/zero >"$0/fill"; '
    wrapper = ["unshare", "-m", "sh", "-c", mounts + 'exec "$@"', b.at("disk")]
    if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.run([*wrapper, "true"]).returncode != 0:
        t.skip("full disk: tmpfs cannot be mounted here")
        return
    side = b.at("disk/side.svg")
    h2o = ["--kv-policy", "h2o", "--kv-budget", "12"]
    cases = [("run", ["--summary", side]), ("run", ["--trace", side]), ("run", ["--kv-dump", side, *h2o]), ("run", ["--kv-trace", side, *h2o]),
             ("plan", ["-o", side]), ("probe", ["-o", side]), ("bench", ["-o", side, "--csv"]), ("bench throughput", ["--summary", side])]
    b.sluice("run", "-o", b.at("want"))
    b.sluice("run", "-o", b.at("want-h2o"), *h2o)
    for n, (command, more) in enumerate(cases):
        out = ["-o", b.at(f"o{n}")] if command == "run" else []
        done = b.sluice(command, *out, *more, wrapper=wrapper)
        t.check(done.code == 9 and side in done.error_line(), f"{command} {more[0]} on a full disk: exit {done.code} {done.err[-300:]!r}")
        if out:
            t.check(read(out[1]) == read(b.at("want-h2o" if h2o[0] in more else "want")), f"{command} {more[0]} on a full disk: OUT")


def fifos(t, p, _):
    """A FIFO where a file is read is refused; none waits for a writer."""
    b = Bed(p, "fifos")
    os.mkfifo(b.at("f"))
    for command, more, code in (("plan", ["--machine", b.at("f")], 5), ("plan", ["--config", b.at("f")], 2), ("plan", ["-m", b.at("f")], 5),
                                ("run", ["--plan", b.at("f")], 5), ("run", ["--kv-budget-layers", b.at("f"), "--kv-policy", "h2o"], 5),
                                ("run", ["-i", b.at("f")], 5)):
        done = b.sluice(command, *more, limit_s=20)
        t.check(done.code in (code, 2) and "not a" in done.error_line(), f"{command} {more[0]} FIFO: exit {done.code} {done.err[-200:]!r}")
    b.sluice("run")
    pack = next(os.path.join(p.at("cache"), f) for f in os.listdir(p.at("cache")) if f.endswith(".pack"))
    for kind, make in (("FIFO", os.mkfifo), ("dangling link", lambda path: os.symlink(b.at("nothing"), path))):
        os.unlink(pack)
        make(pack)
        done = b.sluice("run", "-o", b.at("other"), limit_s=20)
        t.check(done.code == 2 and pack in done.error_line() and not os.path.exists(b.at("nothing")),
                f"{kind} at the pack's name: exit {done.code} {done.err[-200:]!r}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, (kinds, each_other, model_files, no_job, links, frontier, again, taken, full, fifos)))
