"""What a fault of mutants.py is, and where in the source it goes. The other mutant_*.py have the faults."""
import difflib
import hashlib
import os
import re
import sys
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# function "": the whole file. tests: what has to fail. entry: FILE:LINE of the fault in its list.
Mutant = namedtuple("Mutant", "name file function old new tests entry")
M = []
# Faults that no test has to meet, each by its name with the reason why that is right.
SURVIVORS = {}


def fault(name, file, old, new, *tests):
    """old, which becomes new, stands once in file; of "FILE:FUNCTION" once in that function, which may be part of a line."""
    caller = sys._getframe(1)
    file, _, function = file.partition(":")
    entry = f"tests/{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
    M.append(Mutant(name, file, function, old, new, tests, entry))


def id_of(m):
    """Stays the same while the fault changes the same text of the same file to the same other text."""
    return hashlib.sha256("\0".join((m.file, m.function, m.old, m.new)).encode()).hexdigest()[:10]


def source_of(m):
    with open(os.path.join(ROOT, m.file), encoding="utf-8") as f:
        return f.read()


def span(text, function):
    """(from, to) of a C function's definition: from its name in column 0's line to the `}` in column 0; None without one."""
    for found in re.finditer(rf"^[^\s#/].*?\b{re.escape(function)}\b[^;{{]*\n\{{(.|\n)*?^\}}", text, re.M):
        return found.span()
    return None


def mutated(m, text):
    """The text with the fault in it, or (None, what is wrong)."""
    where = span(text, m.function) if m.function else (0, len(text))
    if not where:
        return None, f"has no function {m.function}()"
    part = text[where[0]:where[1]]
    n = part.count(m.old)
    if n != 1:
        return None, f"{m.old!r} is found {n} times, not once" + (nearest(m.old, text, where) if n == 0 else "")
    if m.old == m.new:
        return None, "changes nothing"
    return text[:where[0]] + part.replace(m.old, m.new) + text[where[1]:], ""


def nearest(old, text, where):
    """Where in the source something much like it stands now."""
    lines, n = text.splitlines(), old.strip("\n").count("\n") + 1
    first, last = text.count("\n", 0, where[0]), text.count("\n", 0, where[1])
    want = " ".join(old.split())
    match = difflib.SequenceMatcher(b=want, autojunk=False)
    best, at = 0.0, None
    for i in range(first, max(first, last - n + 1) + 1):
        match.set_seq1(" ".join(" ".join(lines[i:i + n]).split()))
        if match.real_quick_ratio() > best and match.quick_ratio() > best and match.ratio() > best:
            best, at = match.ratio(), i
    return "" if best < 0.5 else f"; most like it is line {at + 1}: {' '.join(x.strip() for x in lines[at:at + n])[:200]!r}"
