#!/usr/bin/env python3
"""The same answers wherever it runs: environs_test.py [SLUICE] [--only PART]

One small set under locales with other decimal points and capitals, odd time zones, as an ordinary user, with few locked
pages, few files, a small stack, without io_uring, and with older instruction sets: a job that streams and evicts, killed
and resumed, what status says of it, a text and a plan. OUT and the text have the bytes that they have here.
Standard library only; the wrapper that refuses io_uring is tests/tools/nouring.c.
"""
import json
import os
import shutil
import signal
import subprocess
import sys

import nth
import trial
from trial import ALL_ON_DISK, Journal, difference, read

NOURING = os.path.join(os.path.dirname(nth.SO), "nouring")
NOBODY = 65534
THIRD_COMMIT = "kill-after,fdatasync,3,0,*.journal"


class Set:
    """What is run, and its answers here; flags: those of every command that computes."""

    def __init__(self, tally, place, *flags):
        self.place, self.flags = place, flags
        self.text_model = place.at("hf")
        self.source = place.rows("in.jsonl", nth.rows(4, 5, (8, 16)))
        self.out, self.text, _ = self.answers(tally, "here", {}, ())

    def answers(self, tally, what, env, wrapper, *more):
        """OUT, a text, and the summary of the run that resumed."""
        place, out, summary = self.place, self.place.at("jobs/out.jsonl"), self.place.at("jobs/summary.json")
        trial.remove_job(out)
        budget = ["--mem-ram", "48M", "-t", "1", "--offload-dir", place.at("offload"), *self.flags, *more]
        run = ["run", "-m", place.model, "-i", self.source, "-o", out, "--progress", "none", "--weights-resident", "0", "--batch", "2",
               "--batches", "2", *ALL_ON_DISK, "--kv-policy", "h2o", "--kv-budget", "0.75", *budget, "--summary", summary]

        def ends(code, *args, **also):
            done = place.sluice(*args, wrapper=wrapper, **{**env, **also})
            tally.check(done.code == code, f"{what}: {args[0]}: exit {done.code}, want {code}: {done.err[-300:]!r}")
            return done

        ends(-signal.SIGKILL, *run, **nth.EVERY_PASS, NTH=THIRD_COMMIT, LD_PRELOAD=place.at("nth.so"))
        held = Journal(out)
        seen = json.loads(ends(0, "status", "--json", out).out or "{}")
        tally.check(seen.get("state") == "stopped" and seen["output_tokens"] + seen["live_tokens"] == held.tokens > 0,
                    f"{what}: status says {seen}, the journal has {held.tokens} tokens")
        ends(0, *run)
        text = ends(0, "gen", "-q", "-m", self.text_model, "-p", "I istanbul \u0130", "-n", "12", "--ignore-eos", "--temperature", "0.5",
                    "--seed", "3", *budget).out
        plan = ends(0, "plan", "-q", "-m", place.model, "-i", self.source, "--json", "--kv-budget", "0.75", "--kv-policy", "h2o", *budget)
        tally.check(json.loads(plan.out or "{}").get("work", {}).get("rows") == 4, f"{what}: plan: {plan.out[:200]!r}")
        return read(out), text, json.loads(read(summary) or b"{}")

    def compare(self, tally, what, env=(), wrapper=(), *more):
        out, text, summary = self.answers(tally, what, dict(env), wrapper, *more)
        tally.check(out == self.out != b"", f"{what}: {difference(self.out, out)}")
        tally.check(text == self.text != "", f"{what}: gen: {text!r}, here {self.text!r}")
        return summary


def begin(tally, place, *flags):
    nth.prepare(place)
    nth.text_model(place.at("hf"))
    shutil.copy(nth.SO, place.at("nth.so"))
    return Set(tally, place, *flags)


def limited(flag, n):
    return ("bash", "-c", f'ulimit {flag} {n} && exec "$@"', "sh")


def locales(tally, place, a):
    """A comma as decimal point, an i whose capital has a dot, clocks that are half an hour off."""
    here = begin(tally, place)
    folder = place.at("locale")
    os.mkdir(folder)
    for name in ("de_DE", "tr_TR"):
        path = os.path.join(folder, name + ".UTF-8")
        if not shutil.which("localedef") or subprocess.run(["localedef", "-i", name, "-f", "UTF-8", path], capture_output=True,
                                                           check=False).returncode > 1:
            tally.skip(f"{name}: no localedef")
            continue
        here.compare(tally, name, {"LOCPATH": folder, "LC_ALL": name + ".UTF-8", "LANG": name + ".UTF-8"})
    here.compare(tally, "time zone", {"TZ": "<+1345>-13:45<+1445>,M9.5.0,M4.1.0"})


def limits(tally, place, a):
    """ulimit: no locked pages, few files, a small stack."""
    here = begin(tally, place)
    for flag, n in (("-l", 0), ("-n", 64), ("-s", 256)):
        here.compare(tally, f"ulimit {flag} {n}", (), limited(flag, n))


def ordinary(tally, place, a):
    """A user without rights, and no home but a folder of the job's."""
    if os.geteuid() != 0:
        tally.skip("an ordinary user: needs root, to be another")
        return
    here = begin(tally, place)
    place.binary = shutil.copy2(place.binary, place.at("sluice"))
    for path, _, files in os.walk(place.folder):
        for name in (path, *(os.path.join(path, f) for f in files)):
            os.chown(name, NOBODY, NOBODY)
    os.chmod(os.path.dirname(place.folder), 0o755)  # of run_parts
    user = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps=-all")
    here.compare(tally, "an ordinary user", {"HOME": place.folder}, user)


def no_uring(tally, place, a):
    """io_uring refused as a container does it, and as an old kernel."""
    here = begin(tally, place)
    for name, number in (("EPERM", "1"), ("ENOSYS", "38")):
        if place.sluice("--version", wrapper=(NOURING,)).code == 77:
            tally.skip("no seccomp filter here")
            return
        summary = here.compare(tally, f"io_uring: {name}", {"NOURING_ERRNO": number}, (NOURING,))
        io = summary.get("plan", {}).get("io")
        tally.check(io == "threads", f"io_uring: {name}: the summary says {io}")


def sets(tally, place, a):
    """Instruction sets, under f32, where they are no part of the answer."""
    here = begin(tally, place, "--compute", "f32")
    for isa in ("portable", "avx2"):
        done = place.sluice("gen", "-q", "-m", place.at("hf"), "-p", "a", "-n", "1", "--isa", isa, "--mem-ram", "48M")
        if "this CPU" in done.error_line():
            tally.skip(f"this CPU has no {isa}")
            continue
        here.compare(tally, f"--isa {isa}", (), (), "--isa", isa)


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (locales, limits, ordinary, no_uring, sets)))
