"""Which tests a source file has, the closest first. `make test F=engine/line/stage.c`

A test belongs to a file because a fault of mutant_*.py that lies in the file names the test (the most faults first), because
the test is called after the file or a part of its name, includes its header, or (of Python) imports or runs it. A file with
fewer than two such tests also has the tests that the faults of its folder name most. Owns: these rules. Refuses: to know how a test is run (check.py).
"""
import collections
import glob
import os
import re

import mutants

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENOUGH_S = 40.0  # core-seconds of tests of one file
FOLDER_TESTS = 3


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def files(pattern):
    return sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, pattern), recursive=True))


def name_of(test):
    """tests/plan_test.c, or `verify_test.py --only kv` of a fault: as check.py calls it."""
    first, *args = test.split()
    return " ".join([re.sub(r"\.(py|c)$", "", os.path.basename(first)), *args])


def is_test(path):
    return path.endswith("_test.c") or path.endswith(".py") and "\nif __name__ ==" in read(path) and path not in ("tests/check.py", "tests/oracle.py")


def of_faults(in_file):
    """The tests that kill faults of the files for which in_file(path) holds, those of the most faults first."""
    n = collections.Counter(name_of(m.tests[0]) for m in mutants.MUTANTS if in_file(m.file) and m.tests)
    return [name for name, _ in n.most_common()]


def including(header, of, seen):
    """The tests that include a header: themselves, or through a header of tests/ or of the product."""
    if header in seen:
        return []
    seen.add(header)
    mine = re.compile(r'#include "(?:%s|%s)"' % (re.escape(header), re.escape(os.path.basename(header))))
    found = [f for f in of if mine.search(read(f))]
    tests = [name_of(f) for f in found if f.endswith("_test.c")]
    for f in found:
        if not f.endswith("_test.c") and f.startswith("tests/"):
            tests += including(f, of, seen)
    return tests


def importing(path, of, seen):
    """The drivers that import a Python file or name it in a command: themselves, or through a module of tests/."""
    seen.add(path)
    stem, base = os.path.splitext(os.path.basename(path))[0], os.path.basename(path)
    mine = re.compile(r"^(?:import|from) %s\b|[/\"' ]%s\b" % (re.escape(stem), re.escape(base)), re.M)
    tests = []
    for f in of:
        if f not in seen and mine.search(read(f)):
            tests += [name_of(f)] if is_test(f) else importing(f, of, seen)
    return tests


def header_of(path):
    """home_kv.c -> home_kv.h, or else home.h: the longest header of the folder whose name the file's begins with."""
    stem = os.path.splitext(path)[0]
    near = [h for h in files(os.path.dirname(path) + "/*.h") if stem == h[:-2] or stem.startswith(h[:-2] + "_")]
    return max(near, key=len, default="")


def called_after(path, tests):
    """The tests whose name is the file's, or a part of the file's name: commands_merge.c -> merge_test.py."""
    words = os.path.splitext(os.path.basename(path))[0].split("_")
    parts = ["_".join(words[i:j]) for i in range(len(words)) for j in range(len(words), i, -1)]
    wanted = [("simt_%s_test" if "/cuda/" in path else "%s_test") % part for part in sorted(parts, key=len, reverse=True)]
    return sorted((n for n in map(name_of, tests) if n in wanted), key=wanted.index)


def tests_of(path):
    """[(name, why)], the closest first."""
    path = os.path.relpath(os.path.abspath(path), ROOT)
    stem = os.path.splitext(os.path.basename(path))[0]
    found = [(name_of(path), "itself")] if path.startswith("tests/") and is_test(path) else []
    found += [(name, "its faults") for name in of_faults(lambda f: f == path)]
    tests = files("tests/*_test.c") + files("tests/*.py")
    if path.endswith((".c", ".h", ".cu", ".cuh", ".inc")):
        header = path if path.endswith((".h", ".cuh", ".inc")) else header_of(path)
        found += [(n, f"includes {header}") for n in including(header, files("tests/**/*.[ch]"), set())] if header else []
    else:
        found += [(n, "names it") for n in importing(path, files("tests/*.py"), set())]
    found += [(n, "its name") for n in called_after(path, tests)]
    folder = os.path.dirname(path)
    while folder and len({name for name, _ in found}) < 2:
        near = of_faults(lambda f: f.startswith(folder + "/"))
        found += [(name, f"faults of {folder}") for name in near[:FOLDER_TESTS]]
        folder = os.path.dirname(folder)
    first = {}
    for name, why in found:
        first.setdefault(name, why)
    return list(first.items())


def within(found, seconds):
    """As many of them, from the front, as take ENOUGH_S together; at least one."""
    kept, s = [], 0.0
    for name, why in found:
        took = seconds(name)
        if not kept or s + took <= ENOUGH_S:
            kept, s = kept + [(name, why)], s + took
    return kept
