#!/usr/bin/env python3
"""Can the tests see? Faults of one line, put into a copy of the source; a named test has to fail.

    mutants.py [--only WORD]... [--jobs N] [--list] [--applies]

The faults stand in mutant_list.py and the other mutant_*.py. Each is applied to a copy of the tree under
build/mutants, built, and met by the tests it names, until one fails: killed. One that passes them all survives, and is a test that is
missing. Ends in a table and one line `N passed, N failed, N skipped`; --applies only checks that each fault
still finds its line (what `make check` does). Refuses: to call a fault killed that does not build, or when
the same tests fail on the source as it is. Standard library, make and a C compiler.
"""
import argparse
import concurrent.futures
import csv
import os
import queue
import shutil
import signal
import subprocess
import sys
import time

import mutant_list  # noqa: F401  fills MUTANTS, as the next ones do
import mutant_evict  # noqa: F401
import mutant_formats  # noqa: F401
import mutant_outputs  # noqa: F401
import mutant_plan  # noqa: F401
from mutant_fault import M as MUTANTS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "build/mutants")
PARTS = ("policy", "kernels", "offload", "engine", "bench", "tests", "configs")
LIMIT_S = 420  # of one test; a fault that makes it hang is seen as well
MEMORY_DIR = "/dev/shm"


def source_of(mutant):
    with open(os.path.join(ROOT, mutant.file), encoding="utf-8") as f:
        return f.read()


def applies(mutant):
    """"" when its line is there once, else what is wrong."""
    if mutant.old == mutant.new:
        return "changes nothing"
    try:
        n = source_of(mutant).count(mutant.old)
    except OSError as e:
        return str(e)
    return "" if n == 1 else f"{mutant.old!r} is there {n} times, not once"


def environment():
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BUILD", "SLUICE_FAULT")
    env = {k: v for k, v in os.environ.items() if k not in ours}
    env.update(LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", BUILD="build")
    if os.access(MEMORY_DIR, os.W_OK):
        env["TMPDIR"] = MEMORY_DIR
    return env


def run(argv, folder, limit_s, log):
    """The exit status; None when it did not end in time."""
    p = subprocess.Popen(argv, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=log,
                         stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return p.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()


def python():
    own = os.environ.get("SLUICE_PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
    return own if os.path.exists(own) else sys.executable


def command(test):
    """How a test is run, and what make has to build for it. `name` is a cmocka binary; `name.py ARGS` a driver, whose
    first argument is the binary; some preload a shim."""
    words = test.split()
    if not words[0].endswith(".py"):
        return [f"build/tests/{words[0]}"], [f"build/tests/{words[0]}"]
    tools = ["nth.so", *(["source_dump", "pack_source"] if words[0] == "quantized_test.py" else [])]
    return ([python(), "tests/" + words[0], "./sluice", *words[1:]],
            ["sluice", "build/tests/sim_device.so", *("build/tests/tools/" + tool for tool in tools)])


class Tree:
    """A copy of the source with its own build."""

    def __init__(self, number):
        self.folder = os.path.join(WORK, f"tree-{number}")
        os.makedirs(self.folder, exist_ok=True)
        shutil.copy2(os.path.join(ROOT, "Makefile"), self.folder)
        for part in PARTS:
            to = os.path.join(self.folder, part)
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree(os.path.join(ROOT, part), to, ignore=shutil.ignore_patterns("__pycache__", "results"))
        for file in {m.file for m in MUTANTS}:  # newer than what a run before this one built of a fault
            os.utime(os.path.join(self.folder, file))
        self.log_path = os.path.join(WORK, f"log-{number}.txt")
        self.baseline = {}

    def make(self, targets, log):
        return run(["make", "-j1", "CUDA=0", "WARN=-w", *sorted(set(targets))], self.folder, 1800, log) == 0

    def write(self, file, text):
        with open(os.path.join(self.folder, file), "w", encoding="utf-8") as f:
            f.write(text)

    def passes(self, test, log):
        """Does the test pass on the source as it is? Asked once."""
        if test not in self.baseline:
            argv, targets = command(test)
            self.baseline[test] = self.make(targets, log) and run(argv, self.folder, LIMIT_S, log) == 0
        return self.baseline[test]

    def meet(self, mutant):
        """(what came of it, by which test, seconds)"""
        start = time.monotonic()
        with open(self.log_path, "ab") as log:
            for test in mutant.tests:
                if not self.passes(test, log):
                    return "fails without it", test, time.monotonic() - start
            text = source_of(mutant)
            self.write(mutant.file, text.replace(mutant.old, mutant.new))
            try:
                for test in mutant.tests:
                    argv, targets = command(test)
                    if not self.make(targets, log):
                        return "does not build", test, time.monotonic() - start
                    if run(argv, self.folder, LIMIT_S, log) != 0:
                        return "killed", test, time.monotonic() - start
            finally:
                self.write(mutant.file, text)
        return "SURVIVED", ", ".join(mutant.tests), time.monotonic() - start


def check_list(mutants):
    passed = failed = 0
    names = [m.name for m in mutants]
    for m in mutants:
        wrong = applies(m) or ("its name is taken" if names.count(m.name) > 1 else "")
        wrong = wrong or ("" if m.tests else "names no test")
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print(f"FAILED {m.name}: {m.file}: {wrong}")
    return passed, failed


def meet_all(mutants, jobs):
    trees, results = queue.Queue(), []
    for i in range(jobs):
        trees.put(Tree(i))

    def one(m):
        tree = trees.get()
        try:
            what, test, seconds = tree.meet(m)
        finally:
            trees.put(tree)
        results.append((m, what, test, seconds))
        print(f"  {what:16s} {m.name} ({m.file}) by {test}, {seconds:.0f} s", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, mutants))
    results.sort(key=lambda r: mutants.index(r[0]))
    with open(os.path.join(WORK, "mutants.csv"), "w", encoding="utf-8", newline="") as f:
        table = csv.writer(f)
        table.writerow(["fault", "file", "result", "test", "seconds"])
        table.writerows([m.name, m.file, what, test, f"{s:.0f}"] for m, what, test, s in results)
    return results


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", action="append", default=[], metavar="WORD", help="faults with WORD in name or file")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--list", action="store_true")
    p.add_argument("--applies", action="store_true")
    a = p.parse_args()
    mutants = [m for m in MUTANTS if not a.only or any(w in m.name + " " + m.file for w in a.only)]
    if a.list:
        print("\n".join(f"{m.name:60s} {m.file:36s} {', '.join(m.tests)}" for m in mutants))
        return 0
    passed, failed = check_list(mutants)
    if a.applies or failed:
        print(f"{passed} passed, {failed} failed, 0 skipped")
        return 1 if failed else 0
    os.makedirs(WORK, exist_ok=True)
    results = meet_all(mutants, a.jobs)
    killed = sum(what == "killed" for _, what, _, _ in results)
    for m, what, test, _ in results:
        if what != "killed":
            print(f"FAILED {m.name}: {what}: {test}")
    print(f"{killed} passed, {len(results) - killed} failed, 0 skipped")
    return 0 if killed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
