"""Runs the tests: one job more than there are cores; ends with `N passed, N failed, N skipped`.

    check.py [--level check|full|night] [--list] [--only NAME]... [--file PATH]... [--changed] [--asan] [--jobs N] [--minutes N]

Three levels. `check` holds every promise once, in at most 8 minutes on 2 cores; `full` is every test; `night` is every test with
the counts of a release. The tests read the level from SLUICE_TEST_LEVEL (trial.py, sweep.h). --only takes a name or a part
of a name. --file runs the tests of one source file (tests_of.py), --changed those of all files that differ from HEAD. --minutes
starts no test after N minutes; those left out are named and count as skipped. The order is then drawn by the commit, so that
each commit leaves out others.

Builds what the tests need first (release; ASan + UBSan under build/asan), while pip and the model are downloaded. Owns: what is
run, how results are counted, what may be skipped, the logs in build/check/NAME.log. Refuses: to call anything passed
that did not say so (a test without a summary, or with a bad exit status and no failure counted, is one failure), and a skip
whose reason SKIPS does not know. Needs only the standard library itself; drivers run in build/venv ($SLUICE_PYTHON
names another interpreter).
"""
import argparse
import concurrent.futures
import difflib
import functools
import glob
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib

import tests_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build/check")
SANITIZE = ["BUILD=build/asan", "OPT=-O1 -g1", "SAN=-fsanitize=address,undefined -fno-sanitize-recover"]
LIMIT_S = 2400  # a shared machine may take thrice what an idle one does, and sanitized sweeps take minutes
IN_CI = os.environ.get("CI", "") not in ("", "0", "false")
LEVELS = ("check", "full", "night")

NO_TIME = "not started within --minutes"
# All that may be skipped: its name in the last lines, and what the line `SKIP reason` of the test says.
SKIPS = (
    ("no GPU", r"no GPU|no CUDA device"),
    # Mounts, loop devices, other users, control groups, and pages that nobody delivers.
    ("no root", r"cannot be mounted|no root|not root|needs root|no loop devices|no memory controller|no userfaultfd"),
    ("no io_uring", r"io_uring is refused|no seccomp filter"),         # containers forbid one or the other
    ("no such instruction set on this CPU", r"this CPU has no "),
    ("no nvcc", r"no nvcc"),
    ("no nvdisasm", r"no nvdisasm"),
    ("no unnamed files", r"no O_TMPFILE"),
    ("no Slurm or Ray", r"(Slurm|Ray) does not start here"),           # ports that are taken, a host without a name
    ("no such program here", r"no (zsh|fish|man|groff|dpkg|git folder)\b"),
    (NO_TIME, None),
)
# And these on a machine that could not fetch what they need; where CI is set they are failures.
LACKS = (
    ("no wheel", r"Python module \w+ is missing"),
    ("no model", r"no SmolLM2|no GGUF|SLUICE_TEST_GGUF names no"),
    ("no tool", r"no localedef|no mpirun|could not be downloaded"),
)

# Arguments of drivers whose defaults do not do. A driver built on trial.arguments needs none.
SCRIPT_ARGS = {
    "score_golden": ["./sluice"],
    "evict_golden": ["./sluice"],
    "family_golden": ["./sluice"],
    "family_evict": ["./sluice"],
    "kv_golden": ["./sluice"],
    "template_live": ["build/tests/tools/template_tool", "build/cache"],
    "token_live": ["--cache", "build/cache"],
    "token_spm_live": ["--cache", "build/cache"],
    "mutants": ["--applies"],
}
# This, and modules that drivers import, which have no main. Every other tests/*.py is run.
NOT_DRIVERS = {"check", "tidy", "demo_show", "oracle"} | {
    os.path.basename(p)[:-3] for p in glob.glob(os.path.join(ROOT, "tests/*.py"))
    if "\nif __name__ ==" not in open(p, encoding="utf-8").read()}
UNITS = sorted(os.path.basename(p)[:-2] for p in glob.glob(os.path.join(ROOT, "tests/*_test.c")))
SIMT = {u for u in UNITS if u.startswith("simt_")}
TILES = {u for u in UNITS if u.startswith("tiles_")}

# A driver runs at every level. A cmocka test runs under the sanitizers at every level, and without them from `full` on. But:
# ... these C tests run without the sanitizers at level `check` too: kernels, whose code the optimiser makes (other
# instructions, other order of sums), and what has threads, whose timing is another.
RELEASE = {"codec_test", "decode_test", "dtype_test", "dtype_own_test", "int8_test", "ops_test", "experts_test", "engine_test",
           "line_device_test", "probe_test", "prompt_test", "mover_test", "ring_test"}
# ... these never run under the sanitizers: sweeps over instruction sets that take the better part of an hour with them
# (ops_test, int8_test, prompt_test, engine_test and plan_test put the same code under them), and CUDA kernels under the
# SIMT shim, which has fibers and a shadow memory of its own.
NOT_ASAN = {"attend_test", "attend_rank_test", "exact_test", "search_test", "cost_test"} | SIMT | TILES
# ... these run from `full` on: what concerns the CUDA part, which level `check` does not build; tools that measure; references that
# test themselves; and what another test or the same test in release holds at level `check`.
FROM_FULL = SIMT | TILES | {"cuda_build", "attention_test", "bench_test", "evaluate_test", "frontier_test", "planned_test", "evict_ref", "install_test", "oracle_test", "ray_test",
                    "family_evict", "attend_rank_test", "cost_test", "search_test", "asan/bad_input_test", "asan/line_device_test",
                    "asan/probe_test", "asan/prompt_test"}
# ... this driver runs under the sanitizers too: hostile input end to end.
ALSO_ASAN = {"bad_input_test"}
# These run hundreds of small durable jobs: on a busy disk they wait for nothing but fsync, so their files
# lie in memory when there is room. placement_test is not among them: that bytes pass through O_DIRECT of a
# real file system is what it is for, as ring_test, budget_test and the goldens' drivers are.
FSYNC_HEAVY = {"crash_test", "fault_test", "prompt_cap_test", "sight_test", "disorder_test", "verify_test", "kill_test",
               "nth_test", "powercut_test", "trouble_test", "admission_test", "plan_flags_test", "plan_device_test",
               "ahead_test", "command_test", "sim_run_test", "devices_test", "shared_weights_test", "replan_test", "evaluate_test"}
MEMORY_DIR, MEMORY_BYTES = "/dev/shm", 2 << 30
# These have parts for a real model, which tests/model.sh fetches.
WANT_MODEL = {"token_live", "score_golden", "budget_test", "command_test", "placement_test", "cli_test"}
WHEELS = {"numpy", "tokenizers", "sentencepiece", "jinja2", "gguf", "safetensors", "ml_dtypes", "matplotlib", "kubernetes_validate", "yaml"}
TIMES = "tests/times.json"  # core-seconds a test took at each level; build/check/times.json has those of this machine
UNKNOWN_S = 30.0


MODEL = ""  # of WANT_MODEL, once main has it
LEVEL = 0   # of LEVELS


class Runner:
    """One program whose result counts; `build` names what must have been built before."""

    def __init__(self, name, argv, build):
        self.name, self.argv, self.build = name, argv, build
        self.base = name.split()[0].removeprefix("asan/")  # the test without its build and its arguments
        self.passed = self.failed = self.skipped = 0
        self.skips = []  # reasons, as SKIPS and LACKS name them
        self.why, self.seconds, self.cpu_s = "", 0.0, 0.0
        self.bad, self.tail = [], []  # what it said of its failures, and last

    def log_path(self):
        return os.path.join(LOGS, self.name.replace("/", "-") + ".log")

    def is_driver(self):
        return len(self.argv) > 1 and self.argv[1].endswith(".py")

    def targets(self):
        """What make has to build for it."""
        if not self.build:
            return set()
        binary = "sluice" if self.build == "build" else self.build + "/sluice"
        return {binary, "tools"} if self.is_driver() else {self.argv[0]}


def python():
    own = os.environ.get("SLUICE_PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
    return own if os.path.exists(own) else sys.executable


def driver(base, args=(), build="build"):
    binary = ["build/asan/sluice"] if build == "build/asan" else []
    name = ("asan/" if binary else "") + " ".join([base, *args])
    return Runner(name, [python(), f"tests/{base}.py", *SCRIPT_ARGS.get(base, binary), *args], build)


def unit(base, build="build"):
    return Runner(("asan/" if build == "build/asan" else "") + base, [f"{build}/tests/{base}"], build)


def runners(level, asan_only=False):
    """All that a level runs, the longest first."""
    scripts = sorted(os.path.basename(p)[:-3] for p in glob.glob(os.path.join(ROOT, "tests/*.py")))
    out = [driver(s, build="build/asan") for s in ALSO_ASAN]
    out += [unit(u, "build/asan") for u in UNITS if u not in NOT_ASAN]
    if not asan_only:
        out += [Runner("tidy", [sys.executable, "tests/tidy.py", "--self-test", "--objects", "build"], "build")]
        out += [driver(s) for s in scripts if s not in NOT_DRIVERS]
        out += [unit(u) for u in UNITS if level > 0 or u in RELEASE | NOT_ASAN]
    took = times(level)
    return sorted((r for r in out if level > 0 or r.name not in FROM_FULL), key=lambda r: -took.get(r.name, UNKNOWN_S))


def times(level):
    """{name: core-seconds} at this level, as this machine last saw them or else as they stand in git."""
    took = {}
    for path in (os.path.join(ROOT, TIMES), os.path.join(LOGS, "times.json")):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                took.update(json.load(f).get(LEVELS[level], {}))
    return took


def keep_times(todo, level):
    path = os.path.join(LOGS, "times.json")
    kept = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            kept = json.load(f)
    kept.setdefault(LEVELS[level], {}).update({r.name: round(r.cpu_s, 1) for r in todo if not r.failed and r.passed})
    with open(path, "w", encoding="utf-8") as f:
        json.dump(kept, f, indent=0, sort_keys=True)
        f.write("\n")


def bare(word):
    """plan_test, however it is written: tests/plan_test.c, asan/plan_test, plan_test.py."""
    return re.sub(r"^(tests/|asan/)+|\.(py|c)$", "", word)


def only(words, level):
    """The runners that these words name; None, with a line on stderr, where a word names none."""
    here, every = runners(level), runners(len(LEVELS) - 1)
    chosen = {}
    for word in words:
        found = []
        for same, of in ((lambda r: word == r.name, here), (lambda r: bare(word) == r.base, here), (lambda r: word == r.name, every),
                         (lambda r: bare(word) == r.base, every), (lambda r: bare(word) in r.name, here)):
            found = found or [r for r in of if same(r)]
        if not found:
            near = difflib.get_close_matches(bare(word), sorted({r.base for r in every}), 3, 0.4)
            print(f"check.py: no test is called {word}" + (f"; did you mean {', '.join(near)}?" if near else ""), file=sys.stderr)
            return None
        chosen.update((r.name, r) for r in found)
    return list(chosen.values())


def of_files(files, level):
    """The runners of these source files, in release; None, with a line on stderr, where a file is not there."""
    chosen = {}
    for file in files:
        if not os.path.exists(file):
            print(f"check.py: {file}: no such file", file=sys.stderr)
            return None
        took = times(level)

        def seconds(name):
            """Of a test as it runs here; else half of what it takes under the sanitizers, or of its driver's other parts."""
            base = name.split()[0]
            return took.get(name, 0.5 * took.get("asan/" + base, took.get(base, UNKNOWN_S)))

        found = tests_of.within(tests_of.tests_of(file), seconds)
        print(f"  {file}: " + (", ".join(f"{name} ({why})" for name, why in found) or "no test names it"))
        for name, _ in found:
            base, *args = name.split()
            chosen[name] = unit(base) if base in UNITS else driver(base, args)
    return list(chosen.values())


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
            r.skipped = 1
            text, code = f"SKIP Python module {missing[1]} is missing\n", 0
    judge_skips(r, re.findall(r"^SKIP (.*)$", text, re.M))
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    r.bad = [x for x in lines if re.match(r"(FAIL|\[  FAILED  \] [a-z]|\[  ERROR   \])", x)]
    r.tail = lines[-8:]
    if code and not r.failed:
        r.failed = 1
        r.why = f"exit status {code}" + (f": {lines[-1][:100]}" if lines else "")
    elif r.passed + r.failed + r.skipped == 0:
        r.failed, r.why = 1, r.why or "ran no test"
    elif r.failed and not r.why:
        r.why = r.bad[0][:120] if r.bad else ""


def judge_skips(r, reasons):
    """Each skip has a reason that may be: any other is a failure."""
    bad = []
    for reason in reasons:
        may = [name for name, words in SKIPS + (() if IN_CI else LACKS) if words and re.search(words, reason)]
        r.skips += may[:1]
        bad += [] if may else [f"may not be skipped: {reason[:100]}"]
    r.skipped = max(r.skipped, len(reasons))  # a C test names what it leaves out of a test that passes
    if r.skipped > len(reasons):
        bad += [f"{r.skipped - len(reasons)} skipped without a reason"] * (r.skipped - len(reasons))
    if bad:
        r.skipped -= len(bad)
        r.failed, r.why = r.failed + len(bad), bad[0]


def run_one(r, built):
    start = time.monotonic()
    if r.build and not os.path.exists(r.argv[0]):
        r.failed, r.why = 1, f"{r.argv[0]} was not built"
        return r
    if r.build and built.get(r.build, 0) and r.is_driver():
        r.failed, r.why = 1, f"the build in {r.build} failed"
        return r
    env = {**os.environ, "BUILD": r.build or "build", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
           "SLUICE_CACHE_DIR": os.path.join(ROOT, "build/check/cache"),
           "SLUICE_TEST_LEVEL": LEVELS[LEVEL],
           # The frames in which GCC 14 looks for uses after return are not aligned for AVX-512: stores crash (GCC's PR 110027).
           "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=0",
           "UBSAN_OPTIONS": "print_stacktrace=1",
           "SLUICE_PROBE_SHARE": "0.03", "SLUICE_TEST_PROBES": os.path.join(LOGS, "probes"),  # see trial.py
           "OPENBLAS_NUM_THREADS": "1"}  # small matrices; two runners share the cores
    with open(r.log_path(), "wb") as log:
        if r.base in WANT_MODEL and MODEL:
            env["SLUICE_TEST_GGUF"] = MODEL
        if r.base == "json_test":
            env["LOCPATH"] = locale_dir()
        if r.base in FSYNC_HEAVY and memory_has_room():
            env = {**env, "TMPDIR": MEMORY_DIR}
        p = subprocess.Popen(r.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                             env=env, start_new_session=True)
        late = threading.Timer(LIMIT_S, os.killpg, (p.pid, signal.SIGKILL))
        late.start()
        _, status, usage = os.wait4(p.pid, 0)
        code = p.returncode = os.waitstatus_to_exitcode(status) if late.is_alive() else f"none within {LIMIT_S} s"
        late.cancel()
        r.cpu_s = usage.ru_utime + usage.ru_stime  # its own, and its children's
    with open(r.log_path(), encoding="utf-8", errors="replace") as log:
        count(r, log.read(), code)
    r.seconds = time.monotonic() - start
    return r


def fetch_model():
    """The path of the GGUF that model.sh fetches into sluice's own cache, where `make demo` has it; "" when it cannot."""
    done = subprocess.run(["sh", "tests/model.sh"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def locale_dir():
    """A folder for LOCPATH with a locale whose decimal point is a comma, made once; "" without localedef."""
    folder = os.path.join(LOGS, "locale")
    if not os.path.isdir(os.path.join(folder, "de_DE.UTF-8")):
        os.makedirs(folder, exist_ok=True)
        try:
            subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", os.path.join(folder, "de_DE.UTF-8")],
                           stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError:
            return ""
    return folder


def memory_has_room():
    try:
        st = os.statvfs(MEMORY_DIR)
    except OSError:
        return False
    return os.access(MEMORY_DIR, os.W_OK) and st.f_bavail * st.f_frsize >= MEMORY_BYTES


def make(what, args, jobs):
    """make's exit status; what it printed goes to build/check/make-*.log."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    start = time.monotonic()
    path = os.path.join(LOGS, "make-" + what.replace("/", "-") + ".log")
    with open(path, "wb") as log:
        code = subprocess.run(["make", "-k", f"-j{jobs}", *args], cwd=ROOT, env=env, stdout=log,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    said = "built" if code == 0 else f"DOES NOT BUILD, see {os.path.relpath(path, ROOT)}"
    print(f"  {what:28s} {said} ({time.monotonic() - start:.0f} s)", flush=True)
    return code


def make_all(todo, jobs):
    """Builds what these runners need, and downloads in the meantime: {folder: make's exit status}."""
    global MODEL
    MODEL = os.environ.get("SLUICE_TEST_GGUF", "")
    built = {}
    want_venv = "SLUICE_PYTHON" not in os.environ and any(r.is_driver() and r.build for r in todo)
    want_model = not MODEL and any(r.base in WANT_MODEL for r in todo)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        venv = pool.submit(make, "build/venv", ["build/venv/ready"], 1) if want_venv else None
        model = pool.submit(fetch_model) if want_model else None
        for folder, args in (("build", ["CUDA=0"]), ("build/asan", ["CUDA=0"] + SANITIZE)):
            targets = set().union(*(r.targets() for r in todo if r.build == folder))
            if targets:
                built[folder] = make(folder, sorted(targets) + args, jobs)
    if venv and venv.result():
        built.update({"build/venv": venv.result()} if IN_CI else {})
        print("  no build/venv (is there a network?): tests that need its wheels are skipped")
    if model:
        MODEL = model.result()
        if not MODEL:
            print("  the model could not be fetched (is there a network?): tests that need it are skipped")
    return built


def end(todo, built):
    """The last lines: what was skipped and why, then the count; the exit status."""
    failed = sum(r.failed for r in todo) + sum(code != 0 for code in built.values())
    if failed:
        print(f"logs: {os.path.relpath(LOGS, ROOT)}/")
    for r in (r for r in todo if r.failed):  # again, here: of a long run only the end may be kept
        print(f"FAILED {r.name}: {r.why or 'see its log'}")
        print("".join(f"    {x[:300]}\n" for x in (r.bad or r.tail)[:8]), end="")
    for name, _ in SKIPS + LACKS:
        at = {r.name: r.skips.count(name) for r in todo if name in r.skips}
        if at:
            print(f"skipped, {name}: " + ", ".join(f"{who} ({n})" for who, n in at.items()))
    print(f"{sum(r.passed for r in todo)} passed, {failed} failed, {sum(r.skipped for r in todo)} skipped")
    return 1 if failed or not todo else 0


def run_all(todo, built, jobs, end_s):
    """Runs them and says of each how it ended, and about how long the rest will take. Starts none after end_s."""
    took, lock, ended = times(LEVEL), threading.Lock(), []
    whole_s, started = sum(took.get(r.name, UNKNOWN_S) for r in todo), time.monotonic()

    def one(r):
        if time.monotonic() > end_s:
            r.skipped, r.skips = 1, [NO_TIME]
            return
        run_one(r, built)
        with lock:
            ended.append(r)
            share = sum(took.get(x.name, UNKNOWN_S) for x in ended) / (whole_s or 1)
            left = (time.monotonic() - started) * (1 / share - 1) / 60 if share > 0.05 else None
            note = f"  ({r.why})" if r.why else ""
            print(f"  {len(ended):3d}/{len(todo)} {r.name:28s} {r.passed} passed, {r.failed} failed, {r.skipped} skipped, "
                  f"{r.seconds:.1f} s, {r.cpu_s:.1f} of a core{note}" + (f"; {left:.0f} min left" if left else ""), flush=True)
            if r.failed:
                print("".join(f"      {x[:200]}\n" for x in (r.bad or r.tail)[:4]), end="", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, todo))
    print(f"tests took {sum(r.cpu_s for r in todo):.0f} s of a core, most in " +
          ", ".join(f"{r.name} {r.cpu_s:.0f}" for r in sorted(todo, key=lambda r: -r.cpu_s)[:25]))


@functools.cache
def head_commit():
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip()


def changed_files():
    said = subprocess.run(["git", "status", "--porcelain", "-uall", "--no-renames"], cwd=ROOT, capture_output=True, text=True)
    return [x[3:] for x in said.stdout.splitlines() if "D" not in x[:2]]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--level", choices=LEVELS, default="check")
    p.add_argument("--list", action="store_true", help="names, and nothing is run")
    p.add_argument("--only", action="append", default=[], metavar="NAME", help="this test; may be given again")
    p.add_argument("--file", action="append", default=[], metavar="PATH", help="the tests of this source file; may be given again")
    p.add_argument("--changed", action="store_true", help="the tests of the files that differ from HEAD")
    p.add_argument("--asan", action="store_true", help="the sanitized tests only")
    p.add_argument("--minutes", type=float, default=math.inf, metavar="N", help="start no test after this many minutes")
    p.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1,
                   help="tests at a time (default: one more than cores, since many wait for the disk or for clocks)")
    return p.parse_args()


def main():
    global LEVEL
    a = parse()
    os.chdir(ROOT)
    LEVEL = LEVELS.index(a.level)
    files = a.file + (changed_files() if a.changed else [])
    if a.changed and not files:
        print("nothing differs from HEAD; `make test F=path/of/file` tests one file")
        return 0
    todo = of_files(files, LEVEL) if files else only(a.only, LEVEL) if a.only else runners(LEVEL, a.asan)
    if todo is None:
        return 2
    if a.list:
        print("\n".join(r.name for r in todo))
        return 0
    shutil.rmtree(os.path.join(LOGS, "probes"), ignore_errors=True)  # a machine is measured anew by each run
    os.makedirs(LOGS, exist_ok=True)
    started = time.monotonic()
    built = make_all(todo, a.jobs)
    for r in todo:  # build/venv is there only now
        r.argv = [python() if i == 0 and r.is_driver() and r.build else x for i, x in enumerate(r.argv)]
    if a.minutes < math.inf:
        todo.sort(key=lambda r: zlib.crc32((head_commit() + r.name).encode()))
    run_all(todo, built, a.jobs, started + 60 * a.minutes)
    keep_times(todo, LEVEL)
    print(f"{time.monotonic() - started:.0f} s in all")
    return end(todo, built)


if __name__ == "__main__":
    sys.exit(main())
