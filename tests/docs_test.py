#!/usr/bin/env python3
"""What readers rely on in the README files: docs_test.py [SLUICE] [--only PART]

Links lead somewhere, the first page stays short, lines can be read in a terminal, and tables of keys are complete.
Standard library only.
"""
import glob
import os
import re
import subprocess
import sys

import trial

TREE = os.path.dirname(trial.HERE)
FIRST_PAGE_LINES = 200
COLUMNS = 160  # tables apart
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages():
    """Every README of the tree, by its path in the tree."""
    listed = subprocess.run(["git", "-C", TREE, "ls-files", "*README.md"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    names = listed.stdout.decode().split() or [os.path.relpath(p, TREE) for p in glob.glob(f"{TREE}/*/README.md")]
    return {name: text(name) for name in names}


def text(name):
    with open(os.path.join(TREE, name), encoding="utf-8") as f:
        return f.read()


def anchors(page):
    """The names that headings of a page have in links, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"^( {4}|```).*$", "", page, flags=re.M), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def dead_links(pages_, name):
    dead = []
    for link in LINK.findall(pages_[name]):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        page = target if target.endswith(".md") else os.path.join(target, "README.md")
        if not os.path.exists(os.path.join(TREE, target)) or (anchor and anchor not in anchors(pages_.get(page, ""))):
            dead.append(link)
    return dead


def part_links(tally, place, _):
    """Files and headings that links name are there."""
    found = pages()
    tally.check(len(found) >= 8, f"only {len(found)} README files")
    for name in found:
        dead = dead_links(found, name)
        tally.check(not dead, f"{name}: dead links: {', '.join(dead)}")
    lies = {"README.md": "# One\n[x](#two) [y](nothere.c) [z](#one)"}
    tally.check(dead_links(lies, "README.md") == ["#two", "nothere.c"], "a dead link is not seen")


def part_length(tally, place, _):
    """The first page has at most FIRST_PAGE_LINES lines; no line of prose is longer than a wide terminal."""
    found = pages()
    n_lines = found["README.md"].count("\n")
    tally.check(n_lines <= FIRST_PAGE_LINES, f"README.md has {n_lines} lines, at most {FIRST_PAGE_LINES}")
    for name, page in found.items():
        page = re.sub(r"<!-- flags -->.*<!-- /flags -->", lambda m: "\n" * m.group().count("\n"), page, flags=re.S)  # generated
        for number, line in enumerate(page.split("\n"), 1):
            if len(line) > COLUMNS and not line.startswith(("|", "    ", "![", "- !")):
                tally.check(False, f"{name}:{number}: {len(line)} columns, at most {COLUMNS}")


def part_keys(tally, place, _):
    """configs/README.md names every key of machine files and of model configs."""
    page = text("configs/README.md")
    names = set(re.findall(r"[a-z0-9_]+", page))
    wanted = re.findall(r'\{"(\w+)", \w+, [01], offsetof', text("engine/model/dummy.c"))
    wanted += re.findall(r'strcmp\(key, "(\w+)"\)', text("engine/model/dummy.c"))
    wanted += re.findall(r'^    \{"(\w+)", offsetof', text("offload/machine_file.c"), flags=re.M)
    rates = re.findall(r"^    X\((\w+), (?:DISK|CPU|DEVICE)", text("policy/machine.h"), flags=re.M)
    tally.check(len(wanted) > 15 and len(rates) > 30, f"tables of keys were not found: {wanted}, {rates}")
    for key in wanted + [r for r in rates if not r.startswith("matmul_f")]:
        short = re.sub(r"^nvme_read(?=_d[24]$)", "", key)
        tally.check(key in names or short in names, f"configs/README.md does not name {key}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (part_links, part_length, part_keys)))
