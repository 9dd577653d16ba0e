#!/usr/bin/env python3
"""Can the tests see? Faults of one line, put into a copy of the source; a named test has to fail.

    mutants.py [--only WORD]... [--since REV] [--stale] [--shard I/N] [--minutes N] [--jobs N] [--list] [--applies]

The faults stand in mutant_list.py and the other mutant_*.py. Each is applied to a copy of the tree under
build/mutants, built, and met by the tests it names, until one fails: killed. One that passes them all survives, and is a test that is
missing. A test runs as check.py runs it, built without sanitizers: at level check first, which sees most faults, then at
level full. What came of each fault, and at which level, is kept in tests/MUTANTS.csv. Ends in one line `N passed, N failed, N skipped`: killed, not killed, and not killed for a reason that
mutant_fault.SURVIVORS gives. --applies only checks that each fault still finds its line (what `make check` does).
Refuses: to call a fault killed that does not build, or when the same tests fail on the source as it is. Standard library, make
and a C compiler.
"""
import argparse
import concurrent.futures
import os
import queue
import shutil
import signal
import subprocess
import sys
import time

import mutant_list  # noqa: F401  fills MUTANTS, as the next ones do
import mutant_evict  # noqa: F401
import mutant_cuda  # noqa: F401
import mutant_formats  # noqa: F401
import mutant_gemma4  # noqa: F401
import mutant_likes  # noqa: F401
import mutant_mla  # noqa: F401
import mutant_outputs  # noqa: F401
import mutant_plan  # noqa: F401
import mutant_promises  # noqa: F401
import mutant_routers  # noqa: F401
import mutant_states  # noqa: F401
import mutant_rows  # noqa: F401
import mutant_devices  # noqa: F401
import mutant_pipeline  # noqa: F401
import mutant_workdir  # noqa: F401
import mutant_simt  # noqa: F401
import mutant_results
from mutant_fault import M as MUTANTS
from mutant_fault import ROOT, SURVIVORS, mutated, source_of

WORK = os.path.join(ROOT, "build/mutants")
PARTS = ("policy", "kernels", "offload", "engine", "bench", "tests", "configs")
LIMIT_S = 420  # of one test; a fault that makes it hang is seen as well
MEMORY_DIR = "/dev/shm"


def applies(mutant):
    """"" when its text is there once, else what is wrong."""
    try:
        return mutated(mutant, source_of(mutant))[1]
    except OSError as e:
        return str(e)


def environment(level):
    """What check.py gives a test."""
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BUILD")
    env = {k: v for k, v in os.environ.items() if k not in ours}
    env.update(LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", BUILD="build", SLUICE_TEST_LEVEL=level, SLUICE_PROBE_SHARE="0.03",
               OPENBLAS_NUM_THREADS="1", SLUICE_CACHE_DIR=os.path.join(WORK, "cache"))
    if os.access(MEMORY_DIR, os.W_OK):
        env["TMPDIR"] = MEMORY_DIR
    return env


def run(argv, folder, limit_s, log, level="full"):
    """The exit status; None when it did not end in time."""
    p = subprocess.Popen(argv, cwd=folder, env=environment(level), stdin=subprocess.DEVNULL, stdout=log,
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
    tools = ["nth.so", "nouring"]
    tools += ["source_dump", "pack_source"] if words[0] in ("quantized_test.py", "pack_formats.py") else []
    library = ["build/libsluice.so.0"] if words[0] in ("evaluate_test.py", "python_test.py") else []
    library += ["mpi"] if words[0] == "pipeline_test.py" else []
    return ([python(), "tests/" + words[0], "./sluice", *words[1:]],
            ["sluice", "build/tests/sluice-faults", "build/tests/sim_device.so", *library, *("build/tests/tools/" + tool for tool in tools)])


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

    def passes(self, test, level, log):
        """Does the test pass on the source as it is? Asked once."""
        if (test, level) not in self.baseline:
            argv, targets = command(test)
            self.baseline[test, level] = self.make(targets, log) and run(argv, self.folder, LIMIT_S, log, level) == 0
        return self.baseline[test, level]

    def meet(self, mutant, level, log):
        """(what came of it, by which test) at a level."""
        for test in mutant.tests:
            if not self.passes(test, level, log):
                return "fails without it", test
        text = source_of(mutant)
        self.write(mutant.file, mutated(mutant, text)[0])
        try:
            for test in mutant.tests:
                argv, targets = command(test)
                if not self.make(targets, log):
                    return "does not build", test
                if run(argv, self.folder, LIMIT_S, log, level) != 0:
                    return "killed", test
        finally:
            self.write(mutant.file, text)
        return "survived", ", ".join(mutant.tests)

    def meet_levels(self, mutant):
        """(what came of it, by which test, at which level, seconds)"""
        start = time.monotonic()
        with open(self.log_path, "ab") as log:
            for level in ("check", "full"):
                what, test = self.meet(mutant, level, log)
                if what != "survived":
                    break
        return what, test, level, time.monotonic() - start


def check_list(mutants):
    passed = failed = 0
    names = [m.name for m in mutants]
    for m in mutants:
        wrong = applies(m) or ("its name is taken" if names.count(m.name) > 1 else "")
        wrong = wrong or ("" if m.tests else "names no test")
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print(f"FAILED {m.entry}: {m.name}: {m.file}: {wrong}")
    return passed, failed


def meet_all(mutants, jobs, deadline):
    """[(fault, what came of it, by which test)] of those that were begun before the deadline."""
    trees, results = queue.Queue(), []
    for i in range(min(jobs, len(mutants))):
        trees.put(Tree(i))

    def one(m):
        if time.monotonic() >= deadline:
            return
        tree = trees.get()
        try:
            what, test, level, seconds = tree.meet_levels(m)
        finally:
            trees.put(tree)
        mutant_results.keep(m, what, test, level, MUTANTS)
        results.append((m, what, test))
        print(f"  {what:16s} {m.name} ({m.file}) by {test} at level {level}, {seconds:.0f} s", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, mutants))
    return results


def chosen(a):
    """The faults that the flags leave."""
    mutants = [m for m in MUTANTS if not a.only or any(w in f"{m.name} {m.file} {m.entry}" for w in a.only)]
    if a.since:
        mutants = mutant_results.changed_since(mutants, a.since)
        if mutants is None:
            sys.exit(f"mutants.py: --since {a.since}: git knows no such revision here")
    if a.stale:
        mutants = mutant_results.stale(mutants)
    i, n = map(int, a.shard.split("/"))
    return mutants[i::n]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", action="append", default=[], metavar="WORD", help="faults with WORD in their name, file or list")
    p.add_argument("--since", metavar="REV", help="faults in files that have changed since this revision")
    p.add_argument("--stale", action="store_true", help="faults that MUTANTS.csv does not say were killed, or whose file has changed since")
    p.add_argument("--shard", default="0/1", metavar="I/N", help="each N-th of these faults, from the I-th, I from 0")
    p.add_argument("--minutes", type=float, default=1e9, metavar="N", help="no fault is begun after so long")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--list", action="store_true")
    p.add_argument("--applies", action="store_true")
    a = p.parse_args()
    deadline = time.monotonic() + 60 * a.minutes
    mutants = chosen(a)
    if a.list:
        print("\n".join(f"{m.name:60s} {m.file:36s} {', '.join(m.tests)}" for m in mutants))
        return 0
    passed, failed = check_list(mutants)
    if a.applies or failed:
        print(f"{passed} passed, {failed} failed, 0 skipped")
        return 1 if failed else 0
    os.makedirs(WORK, exist_ok=True)
    results = meet_all(mutants, a.jobs, deadline)
    bad = [r for r in results if r[1] != "killed"]
    for m, what, test in bad:
        may = what == "survived" and SURVIVORS.get(m.name)
        print(f"{'may survive' if may else 'FAILED'} {m.entry}: {m.name}: {may or what}: {test}")
    if len(results) < len(mutants):
        print(f"{len(mutants) - len(results)} of {len(mutants)} faults are left after {a.minutes:g} minutes")
    justified = sum(what == "survived" and m.name in SURVIVORS for m, what, _ in bad)
    print(f"{len(results) - len(bad)} passed, {len(bad) - justified} failed, {justified} skipped")
    return 1 if len(bad) > justified else 0


if __name__ == "__main__":
    sys.exit(main())
