#!/usr/bin/env python3
"""The faults' machinery itself: mutants_test.py [--only PART]

Where a fault goes, what is said when it goes nowhere, and which results of tests/MUTANTS.csv still hold. Standard library only.
"""
import csv
import os
import sys

import check
import mutant_fault
import mutant_results
import mutants
import trial
from mutant_fault import Mutant, id_of, mutated

SOURCE = """int sub(int a, int b);

static int add(int a, int b)
{
    return a + b;
}

int add_twice(int a,
              int b)
{
    return add(add(a, b), b);
}

int sub(int a, int b)
{
    return a + -b;
}
"""


def fault(old, new, function="", file="a.c", name="one", tests=("a_test",)):
    return Mutant(name, file, function, old, new, tests, "tests/mutant_list.py:7")


def places(tally, place, a):
    """Once in the file, or once in the function; else the reason."""
    for what, m, want in (
            ("a line of the file", fault("return a + b;", "return b;"), SOURCE.replace("return a + b;", "return b;")),
            ("a part of a function", fault("a + b", "b", "add"), SOURCE.replace("a + b;", "b;")),
            ("arguments over two lines", fault("b), b", "b), a", "add_twice"), SOURCE.replace("b), b", "b), a")),
            ("the last function", fault("a + ", "a - ", "sub"), SOURCE.replace("a + -b", "a - -b"))):
        got, wrong = mutated(m, SOURCE)
        tally.check(got == want != SOURCE and not wrong, f"{what}: {wrong} {got!r}")
    for what, m, words in (
            ("twice in the file", fault("a + ", "a - "), "2 times"),
            ("in another function", fault("-b", "b", "add"), "0 times"),
            ("no such function", fault("a", "b", "mul"), "no function mul()"),
            ("a part of a name", fault("int a", "int c", "ad"), "no function ad()"),
            ("nothing changes", fault("return a + b;", "return a + b;"), "changes nothing"),
            ("renamed since", fault("return a + -c;", "return a;"), "most like it is line 16: 'return a + -b;'")):
        got, wrong = mutated(m, SOURCE)
        tally.check(got is None and words in wrong, f"{what}: {wrong!r}, want {words!r}")


def results(tally, place, a):
    """Rows are replaced in place, sorted, and hold while the file is the one that was tried."""
    mutant_results.ROOT, mutant_results.PATH = place.folder, place.at("MUTANTS.csv")
    place.write("a.c", SOURCE.encode())
    place.write("b.c", SOURCE.encode())
    first, second, gone = fault("a + b", "b"), fault("a + b", "a", file="b.c", name="two"), fault("x", "y", name="gone")
    listed = [second, first]

    def rows():
        with open(mutant_results.PATH, encoding="utf-8", newline="") as f:
            return [(r["file"], r["fault"], r["result"], r["test"]) for r in csv.DictReader(f)]

    tally.check(mutant_results.stale(listed) == [], "what was never tried is not out of date")
    mutant_results.keep(gone, "killed", "a_test", "check", [*listed, gone])
    mutant_results.keep(second, "survived", "a_test", "check", listed)
    mutant_results.keep(first, "killed", "a_test", "check", listed)
    tally.check(mutant_results.stale(listed) == [second], "what survived is tried again")
    mutant_results.keep(second, "killed", "b_test", "full", listed)
    tally.check(rows() == [("a.c", "one", "killed", "a_test"), ("b.c", "two", "killed", "b_test")], f"rows: {rows()}")
    tally.check(mutant_results.stale(listed) == [], "all faults were tried")
    other = first._replace(new="b + 1")
    tally.check(mutant_results.stale([other]) == [], "another fault of the same name was not tried")
    renamed = first._replace(name="other words", tests=("c_test",), entry="tests/x.py:1")
    tally.check(id_of(renamed) == id_of(first) != id_of(other), "the id is that of what changes, not of its name or tests")
    place.write("b.c", SOURCE.replace("sub", "minus").encode())
    tally.check(mutant_results.stale(listed) == [second], "the file has changed since")


def anchors(tally, place, a):
    """Every fault says where it stands in its list, and names tests that check.py runs."""
    todo = {r.name for r in check.runners(1)}
    for m in mutants.MUTANTS:
        file, line = m.entry.split(":")
        with open(os.path.join(mutant_fault.ROOT, file), encoding="utf-8") as f:
            tally.check(f.read().splitlines()[int(line) - 1].startswith("fault("), f"{m.entry} is not where {m.name} stands")
        runs = {test.split()[0].removesuffix(".py") for test in m.tests}
        tally.check(runs <= todo, f"{m.entry}: check.py does not run {sorted(runs - todo)} as mutants.py does")
    names = {m.name for m in mutants.MUTANTS}
    tally.check(set(mutant_fault.SURVIVORS) <= names, "SURVIVORS names faults that are no more")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (places, results, anchors)))
