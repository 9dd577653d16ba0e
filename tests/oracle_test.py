#!/usr/bin/env python3
"""The oracle: two recordings of one program are equal, and a difference is shown: oracle_test.py [SLUICE] [--only PART]

Standard library only.
"""
import contextlib
import io
import itertools
import os
import sys

import oracle
import trial
from oracle_cases import bad_cases, help_cases

GROUPS = {"help": help_cases, "bad": lambda place: itertools.islice(bad_cases(place), 0, None, 12)}


def said(old, new):
    """(exit status, what is printed) of a comparison."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = oracle.compare(old, new)
    return code, text.getvalue()


def recordings(tally, place, a):
    old, new = place.at("old.txt"), place.at("new.txt")
    for path in (old, new):
        oracle.record(a.sluice, path, GROUPS)
    names = oracle.read_record(old)
    tally.check(len(names) > 60 and {code for code, _, _ in names.values()} >= {"0", "2", "5"}, f"what was recorded: {list(names.items())[:4]}")
    code, text = said(old, new)
    tally.check(code == 0 and text == f"0 of {len(names)} lines differ\n", f"two recordings of one program: {text[-2000:]}")
    planted(tally, old, new)


def planted(tally, old, new):
    """A word of the help, an exit code, bytes of an OUT, a case that is gone: each is seen, and only that."""
    with open(old, encoding="utf-8") as f:
        lines = f.read().splitlines(True)
    at = next(i for i, line in enumerate(lines) if line.startswith("help|run: help|"))
    name = lines[at].rstrip().rsplit("|", 1)[1]
    text = trial.read(os.path.join(old + ".d", name)).replace(b"rows to compute", b"rows to guess")
    with open(os.path.join(new + ".d", oracle.sha(text)), "wb") as f:
        f.write(text)
    head, out, printed = lines[at + 1].rstrip().rsplit("|", 2)
    for what, changed, words in (
            ("a word", lines[at].replace(name, oracle.sha(text)), ("help|run: help", "rows to guess", "1 of ")),
            ("an exit code", lines[at].replace("|0|", "|1|"), ("exit 0, now 1", "1 of ")),
            ("a case that is gone", "", ("help|run: help", "only in ", "1 of "))):
        write(new, lines[:at] + [changed] + lines[at + 1:])
        code, shown = said(old, new)
        tally.check(code == 1 and all(word in shown for word in words), f"{what}: {code}, {shown[:500]!r}")
    write(new, lines[:at + 1] + [f"{head}|{'0' * 64}|{printed}\n"] + lines[at + 2:])
    code, shown = said(old, new)
    tally.check(code == 1 and f"OUT {out[:12]}, now 000000000000" in shown, f"an OUT: {code}, {shown[:500]!r}")


def write(path, lines):
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(lines))


def blanks(tally, place, a):
    """What was measured is blanked, and nothing beside it."""
    def blanked(x):
        return oracle.blanked(x, "/case/1", "/program/sluice")

    text = "0.031s info plan: 7 rows at once, about 0.0 s\ndone: 8 of 8 rows ok; 612 output tokens/s\n  5 prompt tokens in 0.05 s\n/case/1/in /program/configs\n"
    want = "info plan: 7 rows at once, about 0.0 s\ndone: 8 of 8 rows ok\nFOLDER/in PROGRAM/configs\n"
    tally.check(blanked(text) == want, f"a run: {blanked(text)!r}")
    for same in ("sluice: error: --mem-ram: cannot read '12Q'\n", "the smallest plan needs 23.3 MiB of RAM\n", "  1 x needs exactly one of prompt, line 1\n"):
        tally.check(blanked(same) == same, f"{same!r}: {blanked(same)!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (recordings, blanks)))
