"""SASS as text (nvdisasm -c -gi) read into functions, loops and counts. tools/sass.py makes the table; sass_test.py holds the counts.

A loop is what a branch back to a dominating block closes. What is counted in a loop is static: each instruction once, an inner
loop's with those of the loop around it.
"""
import bisect
import collections
import functools
import re

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LABEL = re.compile(r"^(\.L_x_\d+):")
SECTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?),")
OTHER = re.compile(r"^\s*\.section\s")
SOURCE = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
REGISTER = re.compile(r"(?<![\w.])R(\d+)(?:\.(64))?")
MMA = re.compile(r"(H|I)G?MMA\b|QG?MMA\b")
LOAD = re.compile(r"LDG?\.")
WIDTH = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
ENDS = ("EXIT", "RET", "BRX", "BRXU", "JMP", "JMX")


class Instruction:
    """One line: where the source has it is a chain, innermost first, of (file, line)."""

    def __init__(self, at, guard, op, rest, chain):
        self.at, self.guard, self.op, self.rest, self.chain = at, guard, op, rest, chain
        self.name = op.split(".")[0]
        self.is_mma = bool(MMA.match(op))
        self.is_load = bool(LOAD.match(op))
        self.to_shared = self.name == "LDGSTS"
        self.bytes = next((WIDTH[p] for p in op.split(".")[1:] if p in WIDTH), 4) if self.is_load or self.to_shared else 0
        self.targets = re.findall(r"\.L_x_\d+", rest) if self.name in ("BRA", "BRX", "BRXU", "JMP") else []

    def writes(self):
        """Registers that a load fills."""
        found = REGISTER.search(self.rest)
        return {int(found[1]) + i for i in range(max(1, self.bytes // 4))} if self.is_load and found else set()

    def reads(self):
        """Registers among the operands: of an address one or a pair, of others as many as the instruction takes at most. What an
        instruction writes counts too, except for loads: it waits for a load into the same register as well."""
        rest = self.rest.split(",", 1)[1] if self.is_load and "," in self.rest else self.rest
        address = " ".join(re.findall(r"\[.*?\]", rest))
        wide = 4 if self.op.endswith(".128") or self.is_mma else 2 if ".64" in self.op or ".WIDE" in self.op else 1
        others = REGISTER.findall(re.sub(r"\[.*?\]", " ", rest))
        return ({int(r) + i for r, pair in REGISTER.findall(address) for i in range(2 if pair else 1)} |
                {int(r) + i for r, pair in others for i in range(max(wide, 2 if pair else 1))})


class Loop:
    """The blocks of a loop and the branch that closes it. code: its instructions; own: those in no loop within."""

    def __init__(self, head, blocks, closes):
        self.head, self.blocks, self.closes = head, blocks, closes
        self.code, self.own, self.loads, self.load_bytes = [], [], 0, 0


class Function:
    """A kernel, or a function that it calls."""

    def __init__(self, mangled):
        self.mangled, self.code, self.labels = mangled, [], {}

    def blocks(self):
        """[(first, end)] of instructions, and the successors of each."""
        starts = {0} | {i for i in self.labels.values() if i < len(self.code)}
        starts |= {i + 1 for i, x in enumerate(self.code[:-1]) if x.targets or x.name in ENDS}
        starts = sorted(starts)
        out = list(zip(starts, starts[1:] + [len(self.code)]))
        follows = []
        for n, (_, end) in enumerate(out):
            last = self.code[end - 1]
            to = [bisect.bisect_right(starts, self.labels[t]) - 1 for t in last.targets if t in self.labels]
            falls = last.guard or "UP" in last.rest or last.name not in ENDS and last.op != "BRA"
            follows.append(sorted({*to, *([n + 1] if falls and n + 1 < len(out) else [])}))
        return out, follows

    def loops(self):
        """Loops, the outer before the inner ones."""
        blocks, follows = self.blocks()
        before = [[] for _ in blocks]
        for n, to in enumerate(follows):
            for m in to:
                before[m].append(n)
        over = dominators(follows, before)
        bodies, closing = collections.defaultdict(set), {}
        for n, to in enumerate(follows):
            for head in to:
                if over[n] and head in over[n]:
                    bodies[head] |= body_of(head, n, before)
                    closing[head] = self.code[blocks[n][1] - 1]
        found = [Loop(h, sorted(b), closing[h]) for h, b in bodies.items()]
        found.sort(key=lambda x: (-len(x.blocks), x.head))
        for x in found:
            x.code = [i for b in x.blocks for i in self.code[slice(*blocks[b])]]
            within = set().union(*(y.blocks for y in found if set(y.blocks) < set(x.blocks)))
            x.own = [i for b in x.blocks if b not in within for i in self.code[slice(*blocks[b])]]
            x.loads, x.load_bytes = in_flight(x, self.code, blocks, follows)
        return found


def dominators(follows, before):
    """For each block the set of those that every way from block 0 passes; None where no way leads."""
    order, seen, stack = [], {0}, [(0, iter(follows[0]))]
    while stack:
        n, it = stack[-1]
        m = next((x for x in it if x not in seen), None)
        if m is None:
            order.append(n)
            stack.pop()
        else:
            seen.add(m)
            stack.append((m, iter(follows[m])))
    order.reverse()
    over = [None] * len(follows)
    over[0], changed = {0}, True
    while changed:
        changed = False
        for n in order[1:]:
            new = {n}.union(set.intersection(*(over[p] for p in before[n] if over[p] is not None)))
            if new != over[n]:
                over[n], changed = new, True
    return over


def body_of(head, end, before):
    """The blocks from which `end` is reached without passing `head`."""
    body, todo = {head, end}, [end] if end != head else []
    while todo:
        for p in before[todo.pop()]:
            if p not in body:
                body.add(p)
                todo.append(p)
    return body


def in_flight(loop, code, blocks, follows):
    """The most loads, and the most bytes of loads, whose registers nothing has read yet, at any place of the loop. Where ways
    through the loop join, the loads of each way count. Copies to shared memory, which fill no register, all count."""
    entry, todo, loads, load_bytes = {b: frozenset() for b in loop.blocks}, list(loop.blocks), 0, 0
    while todo:
        b = todo.pop(0)
        waiting = set(entry[b])
        for i in range(*blocks[b]):
            x = code[i]
            if waiting:
                read = x.reads()
                waiting = {w for w in waiting if not code[w].writes() & read}
            if x.is_load or x.to_shared:
                mine = x.writes()
                waiting = {w for w in waiting if not code[w].writes() & mine} | {i}
                loads, load_bytes = max(loads, len(waiting)), max(load_bytes, sum(code[w].bytes for w in waiting))
        for m in follows[b]:
            if m in entry and not waiting <= entry[m]:
                entry[m] |= waiting
                todo.append(m)
    return loads, load_bytes


def functions(text):
    """Every function of a disassembly."""
    out, here, chain, fresh = [], None, [], False
    for line in text.splitlines():
        if found := SECTION.match(line):
            here, chain = Function(found[1]), []
            out.append(here)
        elif OTHER.match(line):
            here = None
        elif here is None:
            continue
        elif found := LABEL.match(line):
            here.labels[found[1]] = len(here.code)
        elif found := SOURCE.search(line):
            chain = [*(chain if fresh else []), (found[1], int(found[2]))]
            fresh = True
        elif found := LINE.match(line):
            fresh = False
            here.code.append(Instruction(int(found[1], 16), found[2], found[3], found[4], chain))
    return out


MAX_THREADS = re.compile(r"nvinfo : EIATTR_MAX_THREADS.*?\.word\s+0x([0-9a-f]+)", re.S)


def threads(text):
    """{mangled name: threads of a block}, from what __launch_bounds__ left in the section .nv.info of each kernel."""
    parts = re.split(r"^\s*\.section\s+\.nv\.info\.(\S+?),", text, flags=re.M)
    return {name: int(found[1], 16) for name, part in zip(parts[1::2], parts[2::2]) if (found := MAX_THREADS.search(part))}


# ---- names of loops, from the source

HEADER = re.compile(r"(?<![\w<])(?!__launch_bounds__|if|for|while|switch)([A-Za-z_]\w*)\s*\(")
QUALIFIER = re.compile(r"\b(?:KV|DTYPE)_[A-Z]+\d*\b")


@functools.cache
def lines_of(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().splitlines()
    except OSError:
        return []


@functools.cache
def function_at(path, line):
    """The function whose body, which begins with a brace in the first column, has this line."""
    lines = lines_of(path)
    opening = next((i for i in range(min(line, len(lines)) - 1, -1, -1) if lines[i] == "{"), None)
    if opening is None:
        return ""
    start = opening
    while start and lines[start - 1] and not re.search(r"[};/]$|^#", lines[start - 1]):
        start -= 1
    found = HEADER.findall(" ".join(lines[start:opening]))
    return found[-1] if found else ""


def path_of(chain):
    """The functions around a place, outermost first; after a call of a template, the format that it is called with."""
    words = []
    for file, line in reversed(chain):
        text = lines_of(file)[line - 1] if line <= len(lines_of(file)) else ""
        words += [function_at(file, line), *(QUALIFIER.findall(text)[:1])]
    return " ".join(w for w in words if w)


def hottest(loops, path, rare=""):
    """Among the loops whose path matches: that with the most mma of its own, or else the most bytes in flight; None without one.
    Instructions of functions that match `rare` are left out."""
    found = [x for x in loops if re.search(path, path_of(x.closes.chain))]
    hot = most_of(found)
    if hot and rare:
        hot.code, hot.own = ([x for x in some if not re.search(rare, path_of(x.chain))] for some in (hot.code, hot.own))
    return hot


def most_of(found):
    return max(found, key=lambda x: (sum(i.is_mma for i in x.own), x.load_bytes, len(x.code)), default=None)
