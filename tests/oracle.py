#!/usr/bin/env python3
"""What sluice computes and prints, written down, so that a change of it is seen: `make oracle BASE=commit`

    oracle.py record -o FILE [--sluice BIN] [--only GROUP]   runs every case: a line a step in FILE, texts in FILE.d
    oracle.py compare OLD NEW                                prints what differs; exit 1 if anything does
    oracle.py against [COMMIT] [--only GROUP]                builds COMMIT, records it and ./sluice, compares

A line is group|case: step|exit|sha256 of OUT|sha256 of stderr and stdout. COMMIT defaults to where this branch left main: on main, to
what is committed. Both programs run the cases of this tree (oracle_cases.py). Owns: what the programs see of this machine, what is blanked
of what they print (times, versions, the report of measured speed), how recordings are compared. Refuses: to know what is right; the
tests do. A recording holds for one CPU type.
"""
import argparse
import collections
import concurrent.futures
import difflib
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import trial
from oracle_cases import GROUPS, ROOT, WORK, make_models

LIMIT_S = 600
LINES_MAX, NAMES_MAX, SHOWN_MAX, TEXT_MAX = 20, 8, 40, 1 << 20
# What two recordings of one program do not share, and what stands for it.
BLANKS = (
    (r"^\d+\.\d{3}s ", ""),  # when a message came
    (r"; [\d.]+ output tokens/s\n(  (?!\d+ x ).*\n)*", "\n"),  # the report of what was measured, but for kinds of bad rows
    (r"^  (\d+ prompt \+ \d+ output tokens in|job: predicted) .*\n", ""),
    (r"started \S+ \S+ UTC, \d+ s(, predicted [\d.]+ s)?", "started THEN"),
    (r"-[0-9a-f]{16}-(?=\w+\.pack)", "-ID-"),  # of the file that was packed
    (r"\bsluice \d+\.\d+\.\d+.*", "sluice VERSION"),
    (r"\b[\d.]+ (\w?i?B|bytes) (?=(are |is )?free|that is free)", "N "),
    (r"\b[\d.]+ ([smh]|seconds|minutes|hours|days) ago", "N ago"),
)


def blanked(text, folder, binary):
    """What was printed, without times and without where the folder of the case and the program are."""
    text = text.replace(folder, "FOLDER").replace(os.path.dirname(binary), "PROGRAM")
    for pattern, to in BLANKS:
        text = re.sub(pattern, to, text, flags=re.M)
    return text


def environment(folder):
    return {"PATH": os.environ.get("PATH", ""), "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""), "HOME": folder,
            "TMPDIR": folder, "SLUICE_CACHE_DIR": os.path.join(folder, "cache"), "SLUICE_PROBE_SHARE": "0.03", "LC_ALL": "C.UTF-8",
            "TZ": "UTC", "COLUMNS": "100", "SOURCE_DATE_EPOCH": "1753876543"}


def sha(data):
    return hashlib.sha256(data).hexdigest()


def run_step(binary, folder, step):
    """(exit, bytes of OUT or None, what was printed)."""
    stdin = step.stdin.encode() if step.stdin is not None else b""
    argv = [binary, *map(str, step.args)]
    try:
        done = subprocess.run(argv, cwd=folder, env={**environment(folder), **step.env}, input=stdin, capture_output=True,
                              timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return "late", None, f"not done in {LIMIT_S} s\n"
    said = done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace")
    outs = [trial.read(os.path.join(folder, name)) for name in step.outs if os.path.exists(os.path.join(folder, name))]
    return done.returncode, b"\n".join(outs) if outs else None, "".join(blanked(x, folder, binary) for x in said)


def run_case(binary, case, work, texts):
    """The lines of a case, run in a folder of its own in which configs/ and models/ are."""
    lines = []
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for name, to in (("configs", os.path.join(ROOT, "configs")), ("models", os.path.join(WORK, "models"))):
            os.symlink(to, os.path.join(folder, name))
        if case.make:
            case.make(folder)
        for step in case.steps:
            if callable(step.args):
                step.args(folder)
                continue
            code, out, said = run_step(binary, folder, step)
            for data in (out, said.encode()):
                if data and len(data) <= TEXT_MAX and b"\0" not in data:
                    with open(os.path.join(texts, sha(data)), "wb") as f:
                        f.write(data)
            name = " ".join(f"{case.name}: {step.name}".replace("|", "/").split())
            lines.append("|".join((case.group, name, str(code), "-" if out is None else sha(out), sha(said.encode()))))
    return lines


# ---- recording, comparing ---------------------------------------------------------------------------

def digest_of_inputs():
    """Of all that says what the cases are: the same digest, the same cases."""
    paths = [path for name in ("tests/*.py", "tests/goldens/*.py", "configs/*") for path in sorted(glob.glob(os.path.join(ROOT, name)))]
    return sha(b"".join(trial.read(path) for path in paths if os.path.isfile(path)))[:16]


def record(binary, to, groups):
    """Runs the cases of these groups, as many at a time as there are cores."""
    texts, began = to + ".d", time.monotonic()
    shutil.rmtree(texts, ignore_errors=True)
    os.makedirs(texts)
    lines = []
    with tempfile.TemporaryDirectory(dir=os.path.dirname(texts)) as work, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        place = trial.Place(work, binary)
        for group, cases_of in groups.items():
            start, cases = time.monotonic(), list(cases_of(place))
            found = [line for of in pool.map(lambda case: run_case(place.binary, case, work, texts), cases) for line in of]
            print(f"  {group:8s} {len(cases)} cases, {len(found)} lines, {time.monotonic() - start:.0f} s", flush=True)
            lines += found
    names = [line.rsplit("|", 3)[0] for line in lines]
    twice = [name for name, n in collections.Counter(names).items() if n > 1]
    if twice:
        sys.exit(f"oracle.py: cases of one name: {', '.join(twice)}")
    with open(to + ".part", "w", encoding="utf-8") as f:
        f.write(f"# {digest_of_inputs()} {' '.join(groups)}\n" + "".join(line + "\n" for line in sorted(lines)))
    os.replace(to + ".part", to)
    print(f"{to}: {len(lines)} lines in {time.monotonic() - began:.0f} s")


def read_record(path):
    """{group|case: (exit, sha of OUT, sha of the text)}"""
    with open(path, encoding="utf-8") as f:
        rows = [line.rstrip("\n").rsplit("|", 3) for line in f if not line.startswith("#")]
    return {name: tuple(rest) for name, *rest in rows}


def difference(old, new, was, now):
    """What a line of the recordings says otherwise, in at most LINES_MAX lines."""
    if not was or not now:
        return ["only in " + (new if now else old)]
    lines = [f"exit {was[0]}, now {now[0]}"] if was[0] != now[0] else []
    if was[1] != now[1]:
        a, b = (trial.read(os.path.join(path + ".d", x)) for path, x in ((old, was[1]), (new, now[1])))
        lines += [f"OUT {was[1][:12]}, now {now[1][:12]}" + (f": {trial.difference(a, b)}" if a and b else "")]
    if was[2] != now[2]:
        a, b = (trial.read(os.path.join(path + ".d", x)).decode("utf-8", "replace").splitlines() for path, x in ((old, was[2]), (new, now[2])))
        lines += [line for line in difflib.unified_diff(a, b, "", "", "", "", 1, "") if not line.startswith(("---", "+++"))]
    cut = [line[:300] for line in lines[:LINES_MAX]]
    return cut + ([f"... {len(lines) - LINES_MAX} more lines"] if len(lines) > LINES_MAX else [])


def compare(old, new):
    """Prints what differs, the same difference once; 1 if there is any."""
    was, now = read_record(old), read_record(new)
    alike = collections.defaultdict(list)
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            shown = difference(old, new, was.get(name), now.get(name))
            alike[tuple(line for line in shown if not line.startswith("@@"))].append((name, shown))
    for cases in sorted(alike.values(), key=lambda x: x[0][0])[:SHOWN_MAX]:
        names = [name for name, _ in cases]
        print("\n".join(names[:NAMES_MAX]) + (f"\n... and {len(names) - NAMES_MAX} more alike" if len(names) > NAMES_MAX else ""))
        print("".join(f"    {line}\n" for line in cases[0][1]))
    n, by_group = sum(map(len, alike.values())), collections.Counter(name.split("|")[0] for cases in alike.values() for name, _ in cases)
    if len(alike) > SHOWN_MAX:
        print(f"... and {len(alike) - SHOWN_MAX} more differences")
    print(f"{n} of {len(was.keys() | now.keys())} lines differ" + (": " + ", ".join(f"{k} {v}" for k, v in sorted(by_group.items())) if n else ""))
    return 1 if n else 0


def output_of(*argv):
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def build(commit):
    """The tree of a commit with its binary and its simulated device; made once."""
    tree = os.path.join(WORK, commit)
    if not os.path.exists(os.path.join(tree, "sluice")):
        os.makedirs(tree, exist_ok=True)
        archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", tree], stdin=archive.stdout, check=True)
        env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BUILD")}
        subprocess.run(["make", f"-j{os.cpu_count()}", "CUDA=0", "build/tests/sim_device.so", "sluice"], cwd=tree, env=env, check=True)
    return os.path.join(tree, "sluice")


def against(base, groups):
    """Compares ./sluice with a commit's, which is recorded once for the cases of this tree."""
    base = base or output_of("git", "merge-base", "main", "HEAD") or "HEAD"
    commit = output_of("git", "rev-parse", "--short=12", base + "^{commit}")
    if not commit:
        sys.exit(f"oracle.py: {base}: no such commit")
    old, new = (os.path.join(WORK, "-".join([name, *(groups if groups != GROUPS else ())]) + ".txt") for name in (commit, "now"))
    binary = build(commit)
    if trial.read(old).split(b" ")[1:2] != [digest_of_inputs().encode()]:
        record(binary, old, groups)
    record(os.path.join(ROOT, "sluice"), new, groups)
    print(f"what differs from {commit}:")
    return compare(old, new)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(dest="command", required=True)
    for name in ("record", "against"):
        one = commands.add_parser(name)
        one.add_argument("--only", action="append", default=[], choices=GROUPS, metavar="GROUP", help=", ".join(GROUPS))
        if name == "record":
            one.add_argument("-o", "--output", required=True)
            one.add_argument("--sluice", default=os.path.join(ROOT, "sluice"))
        else:
            one.add_argument("commit", nargs="?")
    one = commands.add_parser("compare")
    one.add_argument("old")
    one.add_argument("new")
    a = p.parse_args()
    os.makedirs(WORK, exist_ok=True)
    if a.command == "compare":
        return compare(a.old, a.new)
    groups = {name: cases_of for name, cases_of in GROUPS.items() if not a.only or name in a.only}
    if {"family", "text"} & set(groups):
        make_models()
    if a.command == "against":
        return against(a.commit, groups)
    record(a.sluice, os.path.abspath(a.output), groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())
