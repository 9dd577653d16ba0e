"""What the figures of bench/README.md rest on: tables of CSVs, the idle check, the clean tree, searches, limits."""
import argparse
import os
import subprocess
import sys

import trial

TREE = os.path.dirname(trial.HERE)
sys.path.insert(0, os.path.join(TREE, "bench"))
import conditions  # noqa: E402
import cases  # noqa: E402
import jobs  # noqa: E402
import peer  # noqa: E402
import run  # noqa: E402
import tables  # noqa: E402

HEAD = {"table": "ram", "command": "run.py ram", "commit": "abc", "date": "2026-01-01T00:00Z", "turns": "3", "job": "a job",
        "prompt_tokens": "100"}


def sheet(folder, name, cpu, rates, **head):
    """A CSV of `ram` on a CPU: (engine, compute, shares) -> tok_s of each run."""
    results = conditions.Results(os.path.join(folder, f"ram-{name}.csv"), {**HEAD, "cpu": cpu, "machine": cpu, **head},
                                 cases.COLUMNS)
    for (engine, compute, shares), values in rates.items():
        for i, v in enumerate(values):
            results.add({"kind": "run", "engine": engine, "weights": "q8", "compute": compute, "shares": shares, "turn": i + 1,
                         "status": "ok" if v else "killed for memory", "tok_s": v or "", "whole_tok_s": v / 2 if v else "",
                         "idle": head.get("idle", "yes"), "shared_prompt_tokens": 40, "roof_fraction": 0.5,
                         "flags": f"{engine} --batch 8"})
    results.close()


def tables_test(tally, place, a):
    """Two CPUs are two groups of columns, medians stand with least and most, failed runs by name, conditions are told."""
    sheet(place.folder, "one", "CPU One", {("sluice", "bf16", "on"): [100.0, 300.0, 200.0],
                                           ("openvino-genai", "int8", "on"): [50.0, 40.0, 60.0],
                                           ("llama.cpp", "int8", "off"): [0]})
    sheet(place.folder, "two", "CPU Two", {("sluice", "bf16", "on"): [30.0, 30.0, 30.0]}, dirty="yes", idle="no")
    text = tables.TABLES["ram"](tables.sheets("ram", place.folder))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    head, first, peer, dead = lines[0], lines[2], lines[3], lines[4]
    tally.check(head[4] == "CPU One: output tokens/s" and head[7] == "CPU Two: output tokens/s", f"columns: {head}")
    tally.check(first[4:6] == ["200 (100 to 300)", "100 (50.0 to 150)"], f"median, least and most: {first}")
    tally.check(first[7] == "30.0", f"equal runs have no range: {first}")
    tally.check(peer[6] == "bf16 4.00 x (4.00 x whole)", f"ratio: {peer}")
    tally.check(dead[4] == "killed for memory" and peer[7] == "not measured", f"no figure: {dead}, {peer}")
    said = " ".join(text.split())
    tally.check("NOT COMMITTED" in said and "3 runs on a busy machine" in said, "dirty and busy are told")
    made = tables.replaced("a\n<!-- ram -->\nold\n<!-- /ram -->\nz\n", "ram", "new\n")
    tally.check(made == "a\n<!-- ram -->\nnew\n<!-- /ram -->\nz\n", f"a table takes its place: {made!r}")
    for bad in ("a\n", "<!-- ram -->\n<!-- ram -->\n<!-- /ram -->\n"):
        try:
            tables.replaced(bad, "ram", "new\n")
            tally.check(False, "a README without the place, or with two, is taken")
        except SystemExit:
            tally.check(True, "")


def readme_test(tally, place, a):
    """No figure of a table is typed: what stands in the README is what the CSVs give. How old it is depends on the last commit."""
    def ageless(text):
        return [line for line in text.splitlines() if not line.startswith("- OLD: ")]
    with open(os.path.join(TREE, "bench/README.md"), encoding="utf-8") as f:
        text = f.read()
    for name, table in tables.TABLES.items():
        found = tables.sheets(name, os.path.join(TREE, "bench/results"))
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
        tally.check(text.count(begin) == 1 and text.count(end) == 1, f"bench/README.md: no place for {name}")
        if found:
            stands = text.split(begin)[1].split(end)[0]
            tally.check(ageless(stands) == ageless(table(found)), f"bench/README.md: {name} is not what bench/tables.py makes of the CSVs")


def idle_test(tally, place, a):
    """A busy machine ends the benchmark, or marks the row."""
    spin = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        busy = conditions.busy_share(0.5)
        tally.check(busy > 0.3, f"spinning processes on every CPU: {busy:.2f} busy")
        tally.check(conditions.wait_idle(0.01, 0, fails=False) > 0.01, "the share is told where it may be busy")
        try:
            conditions.wait_idle(0.01, 0)
            tally.check(False, "a busy machine is measured")
        except SystemExit as e:
            tally.check("not idle" in str(e), f"why: {e}")
    finally:
        for child in spin:
            child.kill()
            child.wait()


def clean_test(tally, place, a):
    """What differs from the commit is refused, but not what the benchmarks write themselves."""
    def git(*words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", place.folder, *words], check=True,
                       stdout=subprocess.DEVNULL)
    for name in ("bench/README.md", "engine.c", "bench/results/ram-x.csv"):
        os.makedirs(os.path.dirname(os.path.join(place.folder, name)), exist_ok=True)
        place.write(name, b"one")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    tree, conditions.TREE = conditions.TREE, place.folder
    try:
        place.write("bench/README.md", b"two")
        place.write("bench/results/ram-x.csv", b"two")
        tally.check(conditions.changes() == "", f"results are no change: {conditions.changes()!r}")
        for name in ("engine.c", "new.c"):
            place.write(name, b"two")
            tally.check(name in conditions.changes(), f"{name}: a change is seen")
    finally:
        conditions.TREE = tree


class FakeEngine(jobs.Engine):
    """Its rate is a table of its flags; a batch of 99 is killed."""

    def run(self, job, limits=None, best=None, warm=False, timeout_s=0):
        best = best or self.best
        if best["--batch"] == 99:
            return {**self.known(), "status": "killed for memory"}
        seconds = {16: 8.0, 32: 4.0}[best["--batch"]] / {64: 1.0, 128: 2.0}[best["--ubatch"]]
        return {**self.known(), "status": "ok", "seconds": seconds, "whole_s": seconds + (0 if warm else 10), "load_s": 1.0,
                "new_tokens": 80, "batch": best["--batch"]}


def search_test(tally, place, a):
    """The search finds the best flags, keeps every try, and goes around what dies; cold and warm runs make a row."""
    class Told:
        search_values, search_new, search_timeout, timeout, turns, allow_busy = 0, 8, 1, 1, 2, True
        busy_max, idle_wait = 1.0, 0
    bench, out = run.Bench(Told, place.folder), os.path.join(place.folder, "search.csv")
    bench.idle = lambda: {"busy": "0", "idle": "yes"}
    bench.results = conditions.Results(out, {"table": "ram"}, cases.COLUMNS)
    e = FakeEngine("llamacpp", space={"--batch": [16, 99, 32], "--ubatch": [64, 128]})
    bench.in_turns([e], lambda e, best, n: "job", 80, lambda e: None)
    bench.results.close()
    rows = tables.Sheet(out).rows
    tries, runs = ([r for r in rows if r["kind"] == kind] for kind in ("search", "run"))
    tally.check(e.best == {"--batch": 32, "--ubatch": 128}, f"found: {e.best}")
    tally.check(len(tries) == 4 and sum(r["status"] != "ok" for r in tries) == 1, f"tries: {tries}")
    tally.check(len(runs) == 2 and all(r["seconds"] == "2" and r["whole_s"] == "12" for r in runs),
                f"both clocks: {[(r['seconds'], r['whole_s']) for r in runs]}")
    dead = FakeEngine("llamacpp", space={"--batch": [99, 99], "--ubatch": [64]})
    bench.results = conditions.Results(out, {"table": "ram"}, cases.COLUMNS)
    tally.check(bench.in_turns([dead], lambda e, best, n: "job", 80, lambda e: None) == [], "what never ran is not run again")
    bench.results.close()


def limits_test(tally, place, a):
    """The flags that limit a peer reach limited.py, which refuses a disk whose rate it cannot hold before anything runs."""
    def words(*flags):
        return peer.limited(peer.limits(argparse.ArgumentParser()).parse_args(flags), ["echo", "ran"])
    limited = os.path.join(TREE, "bench/peers/limited.py")
    for flags, want in (((), []), (("--limit-mib", "64"), [limited, "--mib", "64"]),
                        (("--limit-mib", "64", "--limit-disk", "9:/"), [limited, "--mib", "64", "--disk", "9:/"])):
        tally.check(words(*flags) == [*want, "echo", "ran"], f"{flags}: {words(*flags)}")
    done = subprocess.run(words("--limit-disk", "1e9:/proc"), capture_output=True, text=True)
    tally.check(done.returncode == 125 and "cannot be held" in done.stderr and not done.stdout, f"{done}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (tables_test, readme_test, idle_test, clean_test, search_test, limits_test)))
