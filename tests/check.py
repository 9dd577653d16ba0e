#!/usr/bin/env python3
"""Everything `make check` runs, two jobs at a time; ends with one line `N passed, N failed, N skipped`.

    check.py [--list] [--only NAME]... [--asan] [--jobs N]

Builds first (release; ASan + UBSan under build/asan), then runs the cmocka binaries of both builds, the
Python drivers and tidy. Owns: what is run, how it is counted, the logs in build/check/NAME.log. Refuses:
to call anything passed that did not say so: a runner without a summary, or with a bad exit status and
no failure counted, counts as one failure. Needs only the standard library itself; drivers run in
build/venv ($SLUICE_PYTHON names another interpreter).
"""
import argparse
import concurrent.futures
import glob
import os
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build/check")
SANITIZE = ["BUILD=build/asan", "OPT=-O1 -g", "SAN=-fsanitize=address,undefined -fno-sanitize-recover"]
LIMIT_S = 900  # a shared machine may take thrice what an idle one does

# Arguments of drivers whose defaults do not do; {build} is the build folder.
SCRIPT_ARGS = {
    "score_golden": ["./sluice"],
    "evict_golden": ["./sluice"],
    "template_live": ["{build}/tests/tools/template_tool", "build/cache"],
    "token_live": ["--cache", "build/cache", "--strings", "3000"],
    "cli_test": ["./sluice"],
    "command_test": ["./sluice"],
    "placement_test": ["./sluice"],
    "crash_test": ["./sluice"],
    "fault_test": ["./sluice"],
    "budget_test": ["./sluice"],
    "bad_input_test": ["./sluice"],
    "prompt_cap_test": ["./sluice"],
}
# Modules that drivers import, and this.
NOT_DRIVERS = {"check", "tidy", "demo_show", "trial", "golden_common", "template_snippets"}
# These run under the sanitizers too: hostile input end to end.
ALSO_ASAN = {"bad_input_test"}
# These run hundreds of small durable jobs: on a busy disk they wait for nothing but fsync, so their
# files lie in memory when there is room. Real disks are ring_test's, budget_test's and the goldens'.
FSYNC_HEAVY = {"crash_test", "command_test", "placement_test", "fault_test", "prompt_cap_test"}
MEMORY_DIR, MEMORY_BYTES = "/dev/shm", 2 << 30
# These have parts for a real model: tests/model.sh fetches it, and they skip those parts when it cannot.
WANT_MODEL = {"score_golden", "command_test", "budget_test"}
WHEELS = {"numpy", "tokenizers", "jinja2", "gguf", "safetensors", "torch", "transformers"}
SLOW_FIRST = ("crash_test", "placement_test", "budget_test", "fault_test", "template_live", "token_live",
              "evict_golden", "score_golden", "evict_ref")


MODEL = ""  # of WANT_MODEL, once main has it


class Runner:
    """One program whose result counts; `build` names what must have been built before."""

    def __init__(self, name, argv, build):
        self.name, self.argv, self.build = name, argv, build
        self.passed = self.failed = self.skipped = 0
        self.why, self.seconds = "", 0.0

    def log_path(self):
        return os.path.join(LOGS, self.name.replace("/", "-") + ".log")


def python():
    own = os.environ.get("SLUICE_PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
    return own if os.path.exists(own) else sys.executable


def runners(want_release):
    out = []
    units = sorted(os.path.basename(p)[:-2] for p in glob.glob(os.path.join(ROOT, "tests/*_test.c")))
    scripts = sorted(os.path.basename(p)[:-3] for p in glob.glob(os.path.join(ROOT, "tests/*.py")))
    scripts = [s for s in scripts if s not in NOT_DRIVERS]
    scripts.sort(key=lambda s: SLOW_FIRST.index(s) if s in SLOW_FIRST else len(SLOW_FIRST))
    if want_release:
        out.append(Runner("tidy", [sys.executable, "tests/tidy.py", "--self-test"], None))
        out += [Runner(s, [python(), f"tests/{s}.py"] +
                       [a.format(build="build") for a in SCRIPT_ARGS.get(s, [])], "build") for s in scripts]
    out += [Runner(f"asan/{s}", [python(), f"tests/{s}.py", "build/asan/sluice"], "build/asan")
            for s in scripts if s in ALSO_ASAN]
    out += [Runner(f"asan/{u}", [f"build/asan/tests/{u}"], "build/asan") for u in units]
    if want_release:
        out += [Runner(u, [f"build/tests/{u}"], "build") for u in units]
    return out


def count(r, text, code):
    """cmocka's closing lines, or the last `N passed, N failed, N skipped` of a driver."""
    own = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", text, re.M)
    if own:
        r.passed, r.failed, r.skipped = map(int, own[-1])
    elif re.search(r"^\[==========\]", text, re.M):
        totals = {k: sum(map(int, re.findall(rf"^\[  {k} *\] (\d+) test", text, re.M)))
                  for k in ("PASSED", "FAILED", "SKIPPED")}
        r.passed, r.failed, r.skipped = totals["PASSED"], totals["FAILED"], totals["SKIPPED"]
        if not any(totals.values()):  # it died on the way
            r.passed = len(re.findall(r"^\[ +OK \]", text, re.M))
    else:
        r.why = "printed no summary"
        missing = re.search(r"^ModuleNotFoundError: No module named '(\w+)", text, re.M)
        if missing and missing[1] in WHEELS:
            r.skipped, r.why = 1, f"Python module {missing[1]} is missing"
            return
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    if code and not r.failed:
        r.failed = 1
        r.why = f"exit status {code}" + (f": {lines[-1][:100]}" if lines else "")
    elif r.passed + r.failed + r.skipped == 0:
        r.failed, r.why = 1, r.why or "ran no test"
    elif r.failed:
        bad = [x for x in lines if re.match(r"(FAIL|\[  FAILED  \] [a-z])", x)]
        r.why = bad[0][:120] if bad else ""
    elif r.skipped:
        skips = [x for x in lines if re.search(r"\bskip", x, re.I) and x != lines[-1]]
        r.why = skips[0][:120] if skips else ""


def run_one(r, built):
    start = time.monotonic()
    if r.build and not os.path.exists(r.argv[0]):
        r.failed, r.why = 1, f"{r.argv[0]} was not built"
        return r
    if r.build and built.get(r.build, 0) and r.argv[0].endswith(("python", "python3")):
        r.failed, r.why = 1, f"the build in {r.build} failed"
        return r
    env = {**os.environ, "BUILD": r.build or "build", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
           "SLUICE_CACHE_DIR": os.path.join(ROOT, "build/check/cache"),
           "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
           "UBSAN_OPTIONS": "print_stacktrace=1"}
    with open(r.log_path(), "wb") as log:
        if r.name in WANT_MODEL and MODEL:
            env["SLUICE_TEST_GGUF"] = MODEL
        if r.name in FSYNC_HEAVY and memory_has_room():
            env = {**env, "TMPDIR": MEMORY_DIR}
        p = subprocess.Popen(r.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                             env=env, start_new_session=True)
        try:
            code = p.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            code = f"none within {LIMIT_S} s"
    with open(r.log_path(), encoding="utf-8", errors="replace") as log:
        count(r, log.read(), code)
    r.seconds = time.monotonic() - start
    return r


def fetch_model():
    """The path of the GGUF that model.sh fetches, "" when it cannot."""
    env = {**os.environ, "SLUICE_CACHE_DIR": os.path.join(ROOT, "build/check/cache")}
    done = subprocess.run(["sh", "tests/model.sh"], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def memory_has_room():
    try:
        st = os.statvfs(MEMORY_DIR)
    except OSError:
        return False
    return os.access(MEMORY_DIR, os.W_OK) and st.f_bavail * st.f_frsize >= MEMORY_BYTES


def build(folder, args, jobs):
    """make's exit status; what it printed goes to build/check/make-*.log."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    start = time.monotonic()
    path = os.path.join(LOGS, "make-" + folder.replace("/", "-") + ".log")
    with open(path, "wb") as log:
        code = subprocess.run(["make", "-k", f"-j{jobs}", "all", "tests"] + args, cwd=ROOT, env=env, stdout=log,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    what = "built" if code == 0 else f"DOES NOT BUILD, see {os.path.relpath(path, ROOT)}"
    print(f"  {folder:28s} {what} ({time.monotonic() - start:.0f} s)", flush=True)
    return code


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--list", action="store_true", help="names, and nothing is run")
    p.add_argument("--only", action="append", default=[], metavar="NAME", help="this runner; may be given again")
    p.add_argument("--asan", action="store_true", help="the sanitized tests only")
    p.add_argument("--jobs", type=int, default=2)
    a = p.parse_args()
    os.chdir(ROOT)
    todo = [r for r in runners(not a.asan) if not a.only or r.name in a.only]
    if a.list:
        print("\n".join(r.name for r in todo))
        return 0
    os.makedirs(LOGS, exist_ok=True)
    builds = [("build", [])] if any(r.build == "build" for r in todo) else []
    builds += [("build/asan", SANITIZE)] if any(r.build == "build/asan" for r in todo) else []
    built = {folder: build(folder, args, a.jobs) for folder, args in builds}

    global MODEL
    MODEL = os.environ.get("SLUICE_TEST_GGUF", "")
    if not MODEL and any(r.name in WANT_MODEL for r in todo):
        MODEL = fetch_model()
    lock = threading.Lock()

    def one(r):
        run_one(r, built)
        with lock:
            note = f"  ({r.why})" if r.why else ""
            print(f"  {r.name:28s} {r.passed} passed, {r.failed} failed, {r.skipped} skipped, "
                  f"{r.seconds:.1f} s{note}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(one, todo))
    failed = sum(r.failed for r in todo) + sum(code != 0 for code in built.values())
    if failed:
        print(f"logs: {os.path.relpath(LOGS, ROOT)}/")
    print(f"{sum(r.passed for r in todo)} passed, {failed} failed, {sum(r.skipped for r in todo)} skipped")
    return 1 if failed or not todo else 0


if __name__ == "__main__":
    sys.exit(main())
