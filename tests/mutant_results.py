"""tests/MUTANTS.csv: what came of each fault of mutants.py when it was last tried.

A row has the id of its fault (mutant_fault.id_of), the fault's file and name, `killed`, `survived`, `does not build` or `fails
without it`, the test that gave that result and its level, the day, the commit that was checked out, and the first digits of git's blob hash
of the file that the fault was put into. A row tells something only while the file still has this hash: hashes of
files, unlike those of commits, outlive a rebase, and need no history. Rows are sorted by file.
"""
import csv
import hashlib
import os
import subprocess
import threading
import time

from mutant_fault import ROOT, id_of

PATH = os.path.join(ROOT, "tests/MUTANTS.csv")
COLUMNS = ("id", "file", "fault", "result", "test", "level", "date", "commit", "blob")
LOCK = threading.Lock()


def git(*args):
    done = subprocess.run(["git", *args], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def blob(file):
    """As `git hash-object FILE` has it, without a process for each of hundreds of files."""
    with open(os.path.join(ROOT, file), "rb") as f:
        data = f.read()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()[:12]


def load():
    """{id: row}"""
    try:
        with open(PATH, encoding="utf-8", newline="") as f:
            return {row["id"]: row for row in csv.DictReader(f)}
    except FileNotFoundError:
        return {}


def keep(m, result, test, level, all_mutants):
    """One more result; rows of faults that are in no list any more go."""
    commit = (git("rev-parse", "--short=12", "HEAD") or "").strip()
    row = dict(zip(COLUMNS, (id_of(m), m.file, m.name, result, test, level, time.strftime("%Y-%m-%d"), commit, blob(m.file))))
    known = {id_of(x) for x in all_mutants}
    with LOCK:
        rows = {k: v for k, v in load().items() if k in known}
        rows[row["id"]] = row
        with open(PATH + ".tmp", "w", encoding="utf-8", newline="") as f:
            out = csv.DictWriter(f, COLUMNS, lineterminator="\n")
            out.writeheader()
            out.writerows(sorted(rows.values(), key=lambda r: (r["file"], r["fault"], r["id"])))
        os.replace(PATH + ".tmp", PATH)


def stale(mutants):
    """Those that were tried, and were not killed or lie in a file that has changed since."""
    blobs = {file: blob(file) for file in {m.file for m in mutants}}
    rows = load()
    return [m for m in mutants if id_of(m) in rows
            and (rows[id_of(m)]["result"], rows[id_of(m)]["blob"]) != ("killed", blobs[m.file])]


def changed_since(mutants, revision):
    """Those in files that differ from a revision's; None when git does not know it."""
    names = git("diff", "--name-only", revision, "--")
    return None if names is None else [m for m in mutants if m.file in set(names.splitlines())]
