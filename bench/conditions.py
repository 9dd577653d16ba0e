"""The conditions of a benchmark, and the CSV that records them: a clean commit, an idle machine, its rates.

Owns: the head of every CSV of bench/results (`# key: value`), the check before each run.
Refuses: measuring an uncommitted tree, except with --dirty; then every CSV says `dirty: yes`.
Note: one CSV holds one table on one CPU (TABLE-CPU.csv), so all of its rows are of one commit
and one binary; tables.py puts the CPUs side by side. Standard library only.
"""
import csv
import datetime
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(HERE, "peers"))

ME = os.path.basename(sys.argv[0])
MIB = 1 << 20
WINDOW_S = 2.0
FLAGS = ["avx2", "avx_vnni", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_bf16", "amx_int8"]
# Written by the benchmarks: a change here changes no figure.
WRITTEN = [":(exclude)bench/results", ":(exclude)bench/plots/*.svg", ":(exclude)bench/README.md"]


def git(*words):
    return subprocess.run(["git", "-C", TREE, *words], capture_output=True, text=True, check=True).stdout


def changes():
    """Files that differ from the commit, except results; "" when clean."""
    return git("status", "--porcelain", "--", ".", *WRITTEN).strip()


def commit():
    return git("rev-parse", "--short=12", "HEAD").strip()


def file_hash(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:12]


def arguments(p):
    """Adds the flags of all benchmarks: what is measured, and when the machine counts as idle."""
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--busy-max", type=float, default=0.05, help="share of the CPUs that may be busy before a run [0.05]")
    p.add_argument("--idle-wait", type=float, default=300, help="seconds to wait for an idle machine [300]")
    p.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too; such rows record idle: no")
    p.add_argument("--dirty", action="store_true", help="measure a tree that is not committed; the CSV records dirty: yes")
    p.add_argument("--sluice", help="the sluice to measure [the one built here]")
    p.add_argument("--note", default="", help="a remark for the head of the CSV")


def clean(a, program="sluice"):
    """Refuses a tree with changes, builds the program that is measured, and sets a.commit, a.binary and a.is_dirty for the CSV's head."""
    a.commit, changed = commit(), changes()
    a.is_dirty = bool(changed) or bool(a.sluice)
    if changed and not a.dirty:
        sys.exit(f"{ME}: the tree differs from commit {a.commit} (commit, or --dirty, which the CSV records):\n{changed}")
    if a.sluice and not a.dirty:
        sys.exit(f"{ME}: --sluice names a binary of an unknown commit (add --dirty, which the CSV records)")
    if not a.sluice:
        subprocess.run(["make", "-s", "-C", TREE, program, "build/libsluice.so.0"], check=True, stdout=sys.stderr)
    a.sluice = os.path.abspath(a.sluice or os.path.join(TREE, program))
    a.binary = file_hash(a.sluice)


# ---- the machine ----

def proc(path, key):
    with open(path, encoding="utf-8") as f:
        for line in f:
            name, colon, value = line.partition(":")
            if colon and name.strip() == key:
                return value.strip()
    return ""


def cpu_name():
    """Without common words; some hypervisors report the maker only, then use --cpu-name."""
    name = re.sub(r"\((R|TM|tm)\)|\bProcessor\b|\bCPU\b|@.*|\d+-Core", "", proc("/proc/cpuinfo", "model name"))
    return " ".join(name.split()) or os.uname().machine


def slug(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def probed(sluice, folder):
    """The roofs that `sluice probe` measures now, in bytes and FLOPs per second."""
    done = subprocess.run([sluice, "probe", "--json", "--offload-dir", folder, "-q"], capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)


def machine_lines(sluice, name, folder):
    """Keys and values that describe the machine and its current rates."""
    p = probed(sluice, folder)
    has = set(proc("/proc/cpuinfo", "flags").split())
    ram = int(proc("/proc/meminfo", "MemTotal").split()[0]) / MIB
    cpus = len(os.sched_getaffinity(0))
    return {"cpu": name, "cpu_model": f"{proc('/proc/cpuinfo', 'vendor_id')} family {proc('/proc/cpuinfo', 'cpu family')} "
            f"model {proc('/proc/cpuinfo', 'model')}", "machine": f"{name}; {cpus} cpus; {ram:.1f} GiB",
            "cpu_flags": " ".join(f for f in FLAGS if f in has), "cpus": cpus, "ram_gib": f"{ram:.1f}",
            "isa": p["isa"], "disk_read_gb_s": f"{p['nvme_read'] / 1e9:.2f}",
            "disk_write_gb_s": f"{p['nvme_write'] / 1e9:.2f}", "ram_gb_s": f"{p['ram_read'] / 1e9:.1f}",
            "matmul_bf16_gflop_s": f"{p['matmul_flops'] / 1e9:.0f}"}


# ---- idle ----

def cpu_times():
    """Ticks of all CPUs since boot: total and idle. Stolen ticks count as busy."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(word) for word in f.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def busy_share(seconds=WINDOW_S):
    before = cpu_times()
    time.sleep(seconds)
    after = cpu_times()
    return 1 - (after[1] - before[1]) / max(after[0] - before[0], 1)


def wait_idle(most, wait_s, fails=True):
    """Waits until the machine is idle; returns the busy share of the last window. fails: exit if it stays busy."""
    end = time.monotonic() + wait_s
    while True:
        busy = busy_share()
        if busy <= most or not fails and time.monotonic() >= end:
            return busy
        if time.monotonic() >= end:
            sys.exit(f"{ME}: the machine is not idle: {busy:.0%} busy over {WINDOW_S:.0f} s after {wait_s:.0f} s of "
                     f"waiting, the limit is {most:.0%} (--busy-max; --allow-busy measures and marks the rows)")


# ---- the CSV ----

class Results:
    """One CSV, written row by row, renamed to its final path when done."""

    def __init__(self, path, head, columns):
        self.path, self.columns = path, columns
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self.file = open(path + ".part", "w", newline="", encoding="utf-8")
        self.file.writelines(f"# {key}: {value}\n" for key, value in head.items())
        self.writer = csv.DictWriter(self.file, columns, restval="", extrasaction="ignore", lineterminator="\n")
        self.writer.writeheader()

    def add(self, row):
        self.writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})
        self.file.flush()

    def close(self):
        self.file.close()
        os.replace(self.path + ".part", self.path)


class Kept(Results):
    """A CSV that grows at its final path: cases with a row are not measured again. All rows are of the binary in its head, or
    --any-binary, which the head says."""

    def __init__(self, path, head, columns, again=False, any_binary=False):
        was, self.rows = read_csv(path) if os.path.exists(path) and not again else ({}, [])
        binary = head["binary_sha256"]
        if was and binary not in was["binary_sha256"].split():
            if not any_binary:
                sys.exit(f"{ME}: {path} belongs to another binary, of commit {was['commit']} (--again starts over, "
                         "--any-binary continues and the CSV records both)")
            was["binary_sha256"] += " " + binary
            was["commit"] += " " + head["commit"]
        whole = [r for r in self.rows if None not in r.values() and set(r) == set(columns)]
        if self.rows and not whole:
            sys.exit(f"{ME}: {path} has other columns (--again starts over)")
        super().__init__(path, {**head, **was, "turns": head["turns"]}, columns)
        self.rows = []
        for row in whole:
            self.add(row)
        os.replace(path + ".part", path)  # the file stays open: later rows are added at the new path

    def add(self, row):
        super().add(row)
        os.fsync(self.file.fileno())
        self.rows.append({k: str(row.get(k, "")) for k in self.columns})

    def close(self):
        self.file.close()


def read_csv(path):
    """Head and rows of a CSV of bench/results; a truncated line lacks columns (None)."""
    with open(path, encoding="utf-8", newline="") as f:
        lines = f.readlines()
    head = dict(line[2:].rstrip("\n").split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    rows = [line for line in lines if not line.startswith("#") and line.endswith("\n")]
    return head, list(csv.DictReader(rows))


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")


def command_line():
    return shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
