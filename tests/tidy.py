#!/usr/bin/env python3
"""The house rules as a check: tidy.py [--self-test] [--objects BUILD] [ROOT]

Owns: direction of includes and calls, sizes, banned calls, and the look of the files. Refuses: style that
clang-format decides. A rule is one function over a source file; each yields (line, what). Comments and
strings are blanked before calls are looked for, so that prose may name what code may not.
--objects BUILD also asks nm which names the objects in that folder define and use.
--self-test first runs over a canary tree that breaks every rule once: a rule that stays silent fails.
"""
import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile

# Each may include and call those before it; bench and tests may include all.
PLACES = ["kernels/base", "policy", "kernels", "offload",
          *("engine/" + room for room in ("data", "model/containers", "model/families", "model", "text", "job", "line", "api", "cli"))]
CALLS_UP = {"command_bench"}  # main.c starts every command, and this one is in bench
LINE_MAX, FUNCTION_MAX, KERNEL_FUNCTION_MAX, FILE_MAX = 100, 70, 120, 800

# Foreign headers that one place only may know.
FOREIGN = [
    (r"liburing", r"offload/ring_uring\.c"),
    (r"hwloc", r"offload/machine\.c"),
    (r"zstd", r"offload/codec\.c"),
    (r"isa-l", r"kernels/base/base\.c"),
    (r"(cuda|cublas|cuda_|nccl|mma)\w*(\.h|\.cuh)", r"kernels/cuda/.*"),
    (r"jansson", r"(engine|bench)/.*"),
    (r"pcre2", r"engine/text/token.*"),
    (r"utf8proc", r"engine/text/.*"),
    (r"cmocka", r"tests/.*"),
]
POLICY_INCLUDES = {"assert.h", "float.h", "limits.h", "math.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h",
                   "string.h", "kernels/base/num.h", "kernels/base/limits.h"}
BANNED = [ # call, where it may stand (regular expression, or None), why not
    (r"strcpy|strcat|sprintf|vsprintf|gets|strtok|stpcpy", None, "unbounded or stateful"),
    (r"atoi|atol|atoll|atof", r"tests/.*", "cannot report an error"),
    (r"alloca", None, "unbounded stack"),
    (r"setjmp|longjmp|mktemp|tmpnam", None, "not here"),
    (r"system|popen", r"tests/.*", "no shell"),
    (r"mmap|mremap", r"(kernels/base/arena|offload/(machine|ring_uring))\.c|bench/.*|tests/.*",
     "data files are read into owned buffers"),
    (r"assert", r"tests/.*", "CHECK is for bugs, fail() for errors"),
    (r"abort", r"kernels/base/base\.c|tests/.*", "only CHECK aborts"),
    (r"_?exit|_Exit|quick_exit", r"engine/cli/main\.c|tests/.*", "only main.c exits"),
    (r"v?printf|puts|putchar|fputchar", r"engine/cli/(main|help\w*|commands\w*)\.c|engine/api/(version|commands\w*|explain|plan_file|run_plan|example)\.c|bench/.*|tests/.*",
     "stdout is for results, written by commands"),
]
# Who allocates: what comes up before the line starts (parsers, openers, rings), never the line itself.
ALLOCATES = (r"kernels/(device_cpu|base/trace|base/pool|base/thread)\.c|kernels/cuda/(device|loose|pins)\.cu|offload/(codec|mover|peers\w*|ring\w*|tier_nvme|machine|probe_matmul|machine_file)\.c|"
             r"engine/(data|model|text|job|api|cli)/.*\.c|engine/line/(engine|dummy_layers)\.c|"
             r"bench/.*|tests/.*")
SILENT = r"policy/.*"  # formats into buffers; never onto a stream


def blank(text):
    """The text with comments, strings and character constants as spaces; lines stay where they are."""
    token = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.S)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


class Source:
    def __init__(self, root, path):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            self.text = f.read()
        self.path, self.folder = path, path.split("/")[0]
        self.lines = self.text.split("\n")
        self.code = blank(self.text)
        self.code_lines = self.code.split("\n")
        self.is_c = path.endswith((".c", ".h", ".inc", ".cu", ".cuh"))


def place_of(path):
    """The folder or room that a file belongs to; None outside of all."""
    return next((p for p in [*PLACES, "bench", "tests"] if path.startswith(p + "/")), None)


def includes(s):
    for i, line in enumerate(s.lines):
        m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if m:
            yield i + 1, m[1] == '"', m[2]


def rule_include_direction(s):
    here = place_of(s.path)
    if s.is_c and not here:
        yield 1, "stands in no folder of the house (engine has rooms)"
    rank = PLACES.index(here) if here in PLACES else len(PLACES)
    for line, ours, name in includes(s):
        place = place_of(name)
        if ours and not place:
            yield line, f'"{name}": includes are written from the root'
        elif ours and place in PLACES and PLACES.index(place) > rank:
            yield line, f'"{name}": {here} may not include {place}'
        elif ours and place in ("bench", "tests") and here not in (place, "tests"):
            yield line, f'"{name}": nothing includes {place}'


def rule_foreign(s):
    for line, ours, name in includes(s):
        for pattern, where in FOREIGN:
            if not ours and re.match(pattern, name) and not re.fullmatch(where, s.path) and s.folder != "tests":
                yield line, f"<{name}> belongs to {where}"
        if s.folder == "policy" and name not in POLICY_INCLUDES and not name.startswith("policy/"):
            yield line, f"<{name}>: policy includes libc's pure part and kernels/base/{{num,limits}}.h only"


def rule_own_header_first(s):
    own = s.path[:-2] + ".h"
    if not s.path.endswith(".c") or not os.path.exists(os.path.join(s.root, own)):
        return
    first = next(includes(s), None)
    private = s.path[:-2] + "_impl.h"  # a module of many files: it includes the public one itself
    if not first or first[2] not in (own, private):
        yield (first[0] if first else 1), f'the first include must be "{own}"'


def rule_guard(s):
    if not s.path.endswith(".h"):
        return
    guard = re.sub(r"\W", "_", s.path).upper()
    if not re.search(rf"^#ifndef {guard}\n#define {guard}$", s.text, re.M):
        yield 1, f"header guard must be {guard}"


def rule_opens_with_block(s):
    if s.path.endswith((".c", ".h")) and not s.text.startswith("/*"):
        yield 1, "opens with a block: what the file owns, what it refuses"


def rule_size(s):
    if len(s.lines) - 1 > FILE_MAX:
        yield FILE_MAX, f"{len(s.lines) - 1} lines, at most {FILE_MAX}"


def rule_lines(s):
    for i, line in enumerate(s.lines):
        if s.is_c and len(line) > LINE_MAX:
            yield i + 1, f"{len(line)} columns, at most {LINE_MAX}"
        if line != line.rstrip():
            yield i + 1, "trailing space"
        if "\t" in line and not s.path.endswith("Makefile"):
            yield i + 1, "tab"
    if s.text and not s.text.endswith("\n") or s.text.endswith("\n\n"):
        yield len(s.lines), "ends in one newline"


def rule_functions(s):
    """A body opens with a brace in column 0 (K&R) after a line that ends in ')'."""
    if not s.is_c:
        return
    most = KERNEL_FUNCTION_MAX if s.folder == "kernels" else FUNCTION_MAX
    start = 0
    for i, line in enumerate(s.code_lines):
        if line.rstrip() == "{" and i and re.search(r"\)(\s*\w+)*\s*$", s.code_lines[i - 1]):
            start = i
        elif line.startswith("}") and start:
            if i - start - 1 > most:
                yield start, f"function of {i - start - 1} lines, at most {most}"
            start = 0


def rule_calls(s):
    if not s.is_c:
        return
    banned = BANNED + [(r"malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|strdup|strndup|asprintf",
                        ALLOCATES, "memory comes from an arena")]
    if re.fullmatch(SILENT, s.path):
        banned = banned + [(r"v?fprintf|fputs|fputc|fwrite|perror|putc|fopen|open|getenv|time|clock_gettime", None,
                            "policy is pure")]
    for i, line in enumerate(s.code_lines):
        for names, where, why in banned:
            m = re.search(rf"(?<![\w.>])({names})\s*\(", line)
            if m and not (where and re.fullmatch(where, s.path)):
                yield i + 1, f"{m[1]}(): {why}"


def rule_words(s):
    if s.path == "tests/tidy.py":
        return
    for i, line in enumerate(s.lines):
        m = re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line)
        if m:
            yield i + 1, f"{m[1]}: do it, or leave it out"


def rule_types(s):
    if not s.is_c or s.folder == "tests" or s.path == "kernels/cpu/v16.h":  # one name for three vector types
        return
    for i, line in enumerate(s.code_lines):
        if re.match(r"\s*typedef\s+(struct|union|enum)\b[^(]*$", line):  # of a function it is fine
            yield i + 1, "no typedef of a struct"


RULES = [rule_include_direction, rule_foreign, rule_own_header_first, rule_guard, rule_opens_with_block, rule_size,
         rule_lines, rule_functions, rule_calls, rule_words, rule_types]


def files(root):
    """Tracked and new files that git does not ignore; all of them where there is no repository."""
    wanted = (".c", ".h", ".inc", ".cu", ".cuh", ".py", ".sh", ".md", ".cfg")
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True,
                             capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        out = [os.path.relpath(os.path.join(d, f), root) for d, _, names in os.walk(root) for f in names]
        out = [p for p in out if not p.startswith(("build", ".git/"))]
    return sorted(p for p in set(out) if (p.endswith(wanted) or p == "Makefile") and
                  os.path.isfile(os.path.join(root, p)))


def run(root, report):
    """Number of files, and (rule, path, line, what) of each breach."""
    found, paths = [], files(root)
    for path in paths:
        s = Source(root, path)
        s.root = root
        for rule in RULES:
            for line, what in rule(s):
                found.append((rule.__name__, path, line, what))
                if report:
                    print(f"FAILED {path}:{line}: {what}")
    return len(paths), found


def export_breaches(root, build, report):
    """What the objects in `build` define and use: breaches as run() has them, and the number of exported names of each room.

    A room may use the names of those before it, as in PLACES. A name that no other object uses has to be static, unless
    code outside of the rooms has it: tests, other devices, users of libsluice.
    """
    home, users, found = {}, collections.defaultdict(set), []
    paths = [p for p in files(root) if p.endswith(".c") and os.path.exists(os.path.join(root, build, p[:-2] + ".o"))]
    rooms = [p for p in paths if place_of(p) in PLACES or re.fullmatch(r"bench/\w+\.c", p)]
    if not rooms:
        sys.exit(f"tidy.py: {build} has no objects")
    names = subprocess.run(["nm", "-A", "-P", *(p[:-2] + ".o" for p in rooms)], cwd=os.path.join(root, build), check=True,
                           capture_output=True, text=True).stdout
    for path, name, kind in re.findall(r"^(\S+)\.o: (\w+) (\w)", names, re.M):
        if kind in "Uw":
            users[name].add(path + ".c")
        elif kind.isupper():
            home[name] = path + ".c"
    outside = set()
    for path in set(files(root)) - set(rooms):
        if path.endswith((".c", ".cu", ".cuh", "engine/api/sluice.h")) or path.startswith("tests/"):
            with open(os.path.join(root, path), encoding="utf-8") as f:
                outside.update(re.findall(r"\w+", blank(f.read())))
    rank = {place: i for i, place in enumerate([*PLACES, "bench"])}
    for name, path in home.items():
        for user in users[name]:
            if rank[place_of(user)] < rank[place_of(path)] and name not in CALLS_UP:
                found.append((user, f"{name}(): {place_of(user)} may not call {place_of(path)}"))
        if not users[name] and name not in outside and name != "main" and place_of(path) in PLACES:
            found.append((path, f"{name}: no other object uses this exported name (static, or delete)"))
    if report:
        for path, what in found:
            print(f"FAILED {path}: {what}")
    return [("export_breaches", path, 1, what) for path, what in found], collections.Counter(map(place_of, home.values()))


HEAD = "/* canary */\n"
CANARIES = { # rule and a word of its sentence -> file, text
    ("rule_include_direction", "may not include"): ("kernels/a.c", HEAD + '#include "engine/data/x.h"\n'),
    ("rule_include_direction", "engine/model may not include engine/text"): (
        "engine/model/a.c", HEAD + '#include "engine/text/x.h"\n'),
    ("rule_include_direction", "has rooms"): ("engine/a.c", HEAD),
    ("rule_include_direction", "from the root"): ("kernels/b.c", HEAD + '#include "x.h"\n'),
    ("rule_include_direction", "nothing includes"): ("engine/data/a.c", HEAD + '#include "tests/x.h"\n'),
    ("rule_foreign", "ring_uring"): ("engine/data/b.c", HEAD + "#include <liburing.h>\n"),
    ("rule_foreign", "machine"): ("offload/a.c", HEAD + "#include <hwloc.h>\n"),
    ("rule_foreign", "codec"): ("offload/b.c", HEAD + "#include <zstd.h>\n"),
    ("rule_foreign", "base"): ("offload/d.c", HEAD + "#include <isa-l/crc.h>\n"),
    ("rule_foreign", "kernels/cuda"): ("kernels/c.c", HEAD + "#include <cuda_runtime.h>\n"),
    ("rule_foreign", "libc"): ("policy/a.c", HEAD + "#include <time.h>\n"),
    ("rule_own_header_first", "first include"): ("engine/data/c.c", HEAD + "#include <stdio.h>\n"),
    ("rule_guard", "ENGINE_DATA_C_H"): ("engine/data/c.h", HEAD + "#ifndef C_H\n#define C_H\n#endif\n"),
    ("rule_opens_with_block", "opens"): ("engine/data/d.c", "int x;\n"),
    ("rule_size", "801 lines"): ("engine/data/e.c", HEAD + "\n" * 799 + "int x;\n"),
    ("rule_lines", "columns"): ("engine/data/f.c", HEAD + "int " + "x" * 100 + ";\n"),
    ("rule_lines", "trailing"): ("engine/data/g.c", HEAD + "int x; \n"),
    ("rule_lines", "tab"): ("engine/data/h.c", HEAD + "\tint x;\n"),
    ("rule_lines", "newline"): ("engine/data/i.c", HEAD + "int x;"),
    ("rule_functions", "at most 70"): ("engine/data/j.c", HEAD + "int f(void)\n{\n" + "    f();\n" * 71 + "}\n"),
    ("rule_functions", "at most 120"): ("kernels/j.c", HEAD + "int f(int a,\n      int b)\n{\n" + "    f();\n" * 121 +
                                        "}\n"),
    ("rule_words", "TODO"): ("engine/data/k.c", HEAD + "// TODO\n"),
    ("rule_types", "typedef"): ("engine/data/l.c", HEAD + "typedef struct x y;\n"),
    ("rule_calls", "strcpy"): ("engine/data/m.c", HEAD + "void f(void)\n{\n    strcpy(a, b);\n}\n"),
    ("rule_calls", "atoi"): ("engine/data/n.c", HEAD + "int x = atoi(y);\n"),
    ("rule_calls", "alloca"): ("engine/data/o.c", HEAD + "int *x = alloca(4);\n"),
    ("rule_calls", "malloc"): ("engine/line/stage.c", HEAD + "int *x = malloc(4);\n"),
    ("rule_calls", "mmap"): ("engine/model/pack.c", HEAD + "int *x = mmap(y);\n"),
    ("rule_calls", "printf"): ("engine/line/layer.c", HEAD + "int x = printf(y);\n"),
    ("rule_calls", "exit"): ("engine/data/p.c", HEAD + "void f(void)\n{\n    exit(1);\n}\n"),
    ("rule_calls", "assert"): ("offload/c.c", HEAD + "void f(void)\n{\n    assert(1);\n}\n"),
    ("rule_calls", "policy is pure"): ("policy/b.c", HEAD + "void f(void)\n{\n    fprintf(y, z);\n}\n"),
}
FINE = ("engine/data/q.c", HEAD + '#include "kernels/base/base.h"\n\n/* strcpy(), exit(1): prose */\nint f(void)\n{\n'
        '    return snprintf(x, 3, "malloc(%d)", y->exit(1));\n}\n')


def canary_exports(root):
    """Breaches of two objects: policy calls upwards, and `lonely` has no user; `low` is used, `tested` by a test."""
    for path, text in (("policy/z.c", "void high(void);\nvoid low(void);\nvoid low(void) { high(); }\n"),
                       ("engine/data/z.c", "void low(void);\nvoid high(void) { low(); }\nvoid tested(void) {}\nvoid lonely(void) {}\n"),
                       ("tests/z.c", "void tested(void);\n")):
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "w", encoding="utf-8") as f:
            f.write(text)
        os.makedirs(os.path.join(root, "build", os.path.dirname(path)), exist_ok=True)
        subprocess.run(["cc", "-c", "-o", "build/" + path[:-2] + ".o", path], cwd=root, check=True)
    return export_breaches(root, "build", False)[0]


def self_test():
    """Every canary is caught by its rule, and a clean file by none. Returns (passed, failed)."""
    passed = failed = 0
    with tempfile.TemporaryDirectory() as root:
        for path, text in [*CANARIES.values(), FINE]:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        found = run(root, False)[1]
        for (rule, word), (path, _) in CANARIES.items():
            hit = any(r == rule and p == path and word in what for r, p, _, what in found)
            passed, failed = passed + hit, failed + (not hit)
            if not hit:
                print(f"FAILED canary {path}: {rule} does not say '{word}'")
        clean = not any(p == FINE[0] for _, p, _, _ in found)
        passed, failed = passed + clean, failed + (not clean)
        right = sorted(what.split(":")[0] for _, _, _, what in canary_exports(root)) == ["high()", "lonely"]
        passed, failed = passed + right, failed + (not right)
        if not right:
            print("FAILED canary objects: a call upwards and an exported name without users")
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--objects", metavar="BUILD")
    parser.add_argument("root", nargs="?", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    a = parser.parse_args()
    passed, failed = self_test() if a.self_test else (0, 0)
    n, found = run(a.root, True)
    if a.objects:
        more, exported = export_breaches(a.root, a.objects, True)
        found += more
        print("exported names: " + ", ".join(f"{place} {exported[place]}" for place in [*PLACES, "bench"]))
    broken = len({(p) for _, p, _, _ in found})
    print(f"{passed + n - broken} passed, {failed + len(found)} failed, 0 skipped")
    return 1 if failed or found else 0


if __name__ == "__main__":
    sys.exit(main())
