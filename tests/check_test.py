#!/usr/bin/env python3
"""The runner itself: what must not pass for green does not. check_test.py

Each case is a program that check.py runs and counts as it does every test. Standard library only.
"""
import contextlib
import io
import os
import re
import sys
import tempfile

import check
import trial

CMOCKA = """[==========] tests: Running 3 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b
%s[  SKIPPED ] b
[==========] tests: 2 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b
"""
WHEEL = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'numpy'\n"
OTHER = WHEEL.replace("numpy", "nimpy")
# what it is, what the program prints, its exit status, (passed, failed, skipped), the same in CI
CASES = (
    ("a good driver", "5 passed, 0 failed, 0 skipped\n", 0, (5, 0, 0), (5, 0, 0)),
    ("a driver that counts failures", "FAILED x\n4 passed, 1 failed, 0 skipped\n", 1, (4, 1, 0), (4, 1, 0)),
    ("a driver without a summary", "all is well\n", 0, (0, 1, 0), (0, 1, 0)),
    ("a driver that says nothing", "", 0, (0, 1, 0), (0, 1, 0)),
    ("a driver that ran nothing", "0 passed, 0 failed, 0 skipped\n", 0, (0, 1, 0), (0, 1, 0)),
    ("a driver that fails and counts nothing", "5 passed, 0 failed, 0 skipped\n", 1, (5, 1, 0), (5, 1, 0)),
    ("a driver that dies", "5 passed, 0 failed, 0 skip", -11, (0, 1, 0), (0, 1, 0)),
    ("a skip that may be", "SKIP no CUDA device\n5 passed, 0 failed, 1 skipped\n", 0, (5, 0, 1), (5, 0, 1)),
    ("a skip for no listed reason", "SKIP it rains\n5 passed, 0 failed, 1 skipped\n", 0, (5, 1, 0), (5, 1, 0)),
    ("a skip that gives no reason", "5 passed, 0 failed, 1 skipped\n", 0, (5, 1, 0), (5, 1, 0)),
    ("one reason for two skips", "SKIP no GPU\n5 passed, 0 failed, 2 skipped\n", 0, (5, 1, 1), (5, 1, 1)),
    ("a missing wheel", WHEEL, 1, (0, 0, 1), (0, 1, 0)),
    ("a missing module that is no wheel", OTHER, 1, (0, 1, 0), (0, 1, 0)),
    ("a missing model", "SKIP no SmolLM2\n5 passed, 0 failed, 1 skipped\n", 0, (5, 0, 1), (5, 1, 0)),
    ("cmocka", CMOCKA % "SKIP not root\n", 0, (1, 0, 1), (1, 0, 1)),
    ("cmocka, a skip without a reason", CMOCKA % "", 0, (1, 1, 0), (1, 1, 0)),
    ("cmocka, dead on the way", "[==========] tests: Running 3 test(s).\n[       OK ] a\n", -6, (1, 1, 0), (1, 1, 0)),
)


def counted(place, name, text, status):
    """A Runner after a program that prints text and ends so."""
    said = place.write("said", text.encode())
    ends = f"os._exit({status})" if status >= 0 else f"os.kill(os.getpid(), {-status})"
    program = f"import os; os.write(1, open({said!r}, 'rb').read()); {ends}"
    r = check.Runner(name, [sys.executable, "-c", program], None)
    return check.run_one(r, {})


def last_lines(todo, built):
    """(exit status, what end() prints)"""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = check.end(todo, built)
    return status, out.getvalue().splitlines()


def judged(tally, place, a):
    """Every case, outside CI and in it."""
    check.LOGS = place.folder
    for in_ci in (False, True):
        check.IN_CI = in_ci
        for name, text, status, *want in CASES:
            r = counted(place, "case", text, status)
            got = (r.passed, r.failed, r.skipped)
            tally.check(got == want[in_ci], f"{name}, in CI {in_ci}: {got}, want {want[in_ci]} ({r.why})")
            status, lines = last_lines([r], {})
            tally.check(status == bool(got[1]) and lines[-1] == "%d passed, %d failed, %d skipped" % got,
                        f"{name}: ends with {status} and {lines[-1]!r}")
            tally.check(len([x for x in lines if x.startswith("skipped, ")]) == bool(got[2]),
                        f"{name}: the last lines name what was skipped: {lines}")


def names(tally, place, a):
    """The last lines say which test was skipped, why, and that a folder did not build."""
    check.LOGS, check.IN_CI = place.folder, True
    r = counted(place, "some_test", "SKIP no GPU\nSKIP tmpfs cannot be mounted\n5 passed, 0 failed, 2 skipped\n", 0)
    _, lines = last_lines([r], {})
    tally.check(lines == ["skipped, no GPU: some_test (1)", "skipped, no root: some_test (1)",
                          "5 passed, 0 failed, 2 skipped"], f"the last lines are {lines}")
    status, lines = last_lines([r], {"build": 2})
    tally.check(status == 1 and lines[-1] == "5 passed, 1 failed, 2 skipped", f"a build that fails: {status}, {lines}")
    tally.check(last_lines([], {})[0] == 1, "a run of nothing is not green")
    absent = check.run_one(check.Runner("absent", ["build/tests/absent_test"], "build"), {})
    tally.check(absent.failed == 1 and "not built" in absent.why, f"a test that was not built: {absent.why}")


def again(tally, place, a):
    """Of a long run only the end may be kept: there every runner that failed stands again, with what it said."""
    check.LOGS, check.IN_CI = place.folder, True
    todo = [counted(place, "good_test", "5 passed, 0 failed, 0 skipped\n", 0),
            counted(place, "bad_test", "FAILED row 7\nmuch else\nFAILED row 9\n4 passed, 2 failed, 0 skipped\n", 1),
            counted(place, "dead_test", "part one: ok\nTraceback: boom\n", -11)]
    _, lines = last_lines(todo, {})
    at = [i for i, x in enumerate(lines) if x.startswith("FAILED ")]
    tally.check([lines[i].split(":")[0] for i in at] == ["FAILED bad_test", "FAILED dead_test"], f"who failed: {lines}")
    tally.check([x.strip() for x in lines[at[0] + 1:at[1]]] == ["FAILED row 7", "FAILED row 9"], f"what failed: {lines}")
    tally.check("    Traceback: boom" in lines[at[1]:], f"the last words of the dead: {lines}")
    tally.check(lines[-1] == "9 passed, 3 failed, 0 skipped", f"and last the count: {lines[-1]!r}")


def everything(tally, place, a):
    """Level `full` runs each tests/*.py and tests/*_test.c, and only what is asked for is built."""
    full = {r.name: r for r in check.runners(1)}
    for f in os.listdir(trial.HERE):
        with open(os.path.join(trial.HERE, f), encoding="utf-8") if f.endswith((".c", ".h", ".py")) else io.StringIO() as text:
            text = text.read()
        if f.endswith("_test.c"):
            tally.check(f[:-2] in full, f"{f} does not run in release")
            tally.check(f[:-2] in check.NOT_ASAN or "asan/" + f[:-2] in full, f"{f} does not run under the sanitizers")
        elif f.endswith(".py") and f[:-3] not in check.NOT_DRIVERS | {"check_test"}:
            tally.check(f[:-3] in full, f"{f} does not run")
            tally.check(not re.search(r"except (ImportError|ModuleNotFoundError)", text),
                        f"{f} hides a missing wheel from check.py")
        if f.endswith((".c", ".h")) and f != "skip.h":
            tally.check(not re.search(r"\bskip\(\)", text), f"{f} skips without a reason (skip_because)")
    here = {r.name for r in check.runners(0)}
    tally.check(here < set(full) and set(full) - here >= check.FROM_FULL, "level check is a part of level full")
    named = set(check.SCRIPT_ARGS) | check.RELEASE | check.NOT_ASAN | check.FROM_FULL | check.WANT_MODEL | check.FSYNC_HEAVY
    tally.check(named <= set(full), f"check.py's lists name tests that are no more: {named - set(full)}")
    tally.check(full["attend_test"].targets() == {"build/tests/attend_test"}, "attend_test builds more than itself")
    tally.check("build/asan/sluice" in full["asan/bad_input_test"].targets(), "a driver under the sanitizers builds another binary")
    tally.check(full["bad_input_test"].targets() == {"sluice", "tools"} and full["tidy"].targets() == {"sluice", "tools"}, "what drivers build")


def chosen(tally, place, a):
    """--only takes names as people write them, and says so when a name is none; --file finds the tests of a file."""
    def names_of(*words):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            found = check.only(words, 0)
        return None if found is None else sorted(r.name for r in found), err.getvalue()

    for word in ("plan_test", "asan/plan_test", "tests/plan_test.c"):
        tally.check(names_of(word) == (["asan/plan_test"], ""), f"--only {word}: {names_of(word)}")
    tally.check(names_of("plan_flags")[0] == ["plan_flags_test"], f"a part of a name: {names_of('plan_flags')}")
    tally.check(names_of("evict_ref")[0] == ["evict_ref"], "a test of level full is run when it is named")
    none, said = names_of("plan_tset")
    tally.check(none is None and "did you mean" in said and "plan_test" in said, f"a name that is none: {said}")
    for file, want in (("policy/plan.c", "plan_test"), ("engine/cli/commands_merge.c", "merge_test"),
                       ("tests/merge_test.py", "merge_test"), ("tests/trial.py", "merge_test"), ("kernels/kv.h", "kv_test")):
        found = [name.split()[0] for name, _ in check.tests_of.tests_of(os.path.join(check.ROOT, file))]
        tally.check(want in found, f"--file {file}: {found}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (judged, names, again, everything, chosen)))
