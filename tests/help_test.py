#!/usr/bin/env python3
"""What is printed from the tables of flags and commands: help_test.py [SLUICE] [--only PART]

Help is wrapped to the terminal, grouped, and lists exactly the flags that the command takes; engine/README.md has the same tables.
"""
import fcntl
import os
import pty
import re
import struct
import sys
import termios

from trial import HERE, read, run_parts

COMMANDS = ("run", "gen", "score", "plan", "probe", "pack", "inspect", "status", "merge", "tokenize")
BENCHES = ("throughput", "ops", "io", "frontier", "attention")
ALL = [(c,) for c in COMMANDS] + [("bench", b) for b in BENCHES]
NOURING = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/tools/nouring")
README = os.path.join(os.path.dirname(HERE), "engine/README.md")


def flags_of(text):
    """The flags that have an entry, in order."""
    return re.findall(r"^  (?:-\w, |    )--([a-z-]+)", text, re.M)


def read_some(fd):
    """Text of a terminal; "" when the program behind it has ended."""
    try:
        return os.read(fd, 1 << 16).decode()
    except OSError:
        return ""


def widths(t, p, _):
    """Lines are as wide as COLUMNS says, or the terminal, or 80; whatever the width, the words are the same."""
    for words in ALL:
        narrow, plain, wide = (p.sluice("help", *words, COLUMNS=n).out for n in ("60", "", "110"))
        for width, text in ((60, narrow), (80, plain), (110, wide)):
            most = max(map(len, text.splitlines()))
            t.check(width - 25 < most <= width, f"help {' '.join(words)}: {most} columns, of {width}")
        t.check(narrow.split() == plain.split() == wide.split(), f"help {' '.join(words)}: other words at another width")
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    if os.fork() == 0:
        os.dup2(terminal, 1)
        os.environ.pop("COLUMNS", None)
        os.execv(p.binary, [p.binary, "help", "tokenize"])
    os.close(terminal)
    shown = ""
    while part := read_some(main):
        shown += part
    os.wait()
    shown = shown.replace("\r\n", "\n")
    t.check(shown == p.sluice("help", "tokenize", COLUMNS="100").out, f"a terminal of 100 columns: {shown[:300]!r}")


def groups(t, p, _):
    """The flags used most come first, and no flag comes twice."""
    for words in ALL:
        text = p.sluice("help", *words).out
        found = flags_of(text)
        t.check(len(found) == len(set(found)), f"help {' '.join(words)}: a flag twice: {found}")
        first = flags_of(text.split("Used most:\n")[1].split("\n\n")[0])
        t.check(1 <= len(first) <= 5 and found[:len(first)] == first, f"help {' '.join(words)}: first {first}")
        t.check(not re.search(r":\n\n|:\n$", text), f"help {' '.join(words)}: a heading without flags")
    t.check(flags_of(p.sluice("help", "run").out)[:5] == ["model", "input", "output", "mem-ram", "max-tokens"], "the first flags of run")
    names = p.policies()
    t.check(len(names) > 10 and names[0] == "full" and len(set(names)) == len(names), f"policies: {names}")


def exact(t, p, _):
    """Help lists the flags that the command takes, and the parser knows no other."""
    every = sorted({f for words in ALL for f in flags_of(p.sluice("help", *words).out)})
    t.check(len(every) > 80, f"only {len(every)} flags")
    for words in [("run",), ("inspect",), *[("bench", b) for b in BENCHES]]:
        listed = set(flags_of(p.sluice("help", *words).out))
        for flag in every:
            line = p.sluice(*words, f"--{flag}=", "--help=?").error_line()  # no command runs: --help=? is refused
            t.check((f"--{flag}: unknown flag" in line) != (flag in listed), f"{' '.join(words)} --{flag}: {line!r}, listed: {flag in listed}")
    t.check(p.sluice("help", "version").out == p.sluice("help", "help").out == p.sluice("help").out, "help of what has no flags")
    one = p.sluice("bench", "--help").out
    t.check(all(f"bench {b} " in one for b in BENCHES) and flags_of(one) == [], f"bench --help: {one!r}")
    t.check(p.sluice("bench", "io", "--help").out == p.sluice("help", "bench", "io").out != one, "bench io --help")
    line = p.sluice("run", "--csv").error_line()
    t.check("(it belongs to bench)" in line, f"a flag of every benchmark: {line!r}")
    line = p.sluice("bench", "io", "--needles", "1").error_line()
    t.check("unknown flag of bench io (it belongs to bench frontier)" in line, f"a flag of one benchmark: {line!r}")


def foreign(t, p, _):
    """Flags of FlexGen, vLLM and llama.cpp get a sentence, and the flags that it names are flags of sluice."""
    known = {f for words in ALL for f in flags_of(p.sluice("help", *words).out)}
    for command, flag, words in (
            ("bench throughput", "--gpu-batch-size", "--batch"), ("bench throughput", "--num-gpu-batches", "--batches"),
            ("bench throughput", "--compress-weight", "--weights q4"), ("run", "--compress-cache", "--kv-format q4"),
            ("run", "--cpu-cache-compute", "--attn cpu"), ("bench throughput", "--path", "--model"), ("run", "--log-file", "--summary"),
            ("run", "--cut-gen-len", "--gen-len"), ("run", "--overlap", "always on"), ("run", "--attn-sparsity", "--kv-policy"),
            ("run", "--gpu-memory-utilization=0.9", "--mem-device"), ("run", "--max-model-len", "--mem-ram"),
            ("run", "--tensor-parallel-size", "--devices"), ("run", "--max-num-seqs", "--batches"), ("run", "--dtype", "--compute"),
            ("gen", "-ngl", "--mem-device"), ("gen", "-c", "--mem-ram"), ("gen", "--ctx-size", "--mem-ram"), ("gen", "--n-gpu-layers", "planner")):
        done = p.sluice(*command.split(), flag, "4")
        t.check(done.code == 2 and f": {flag.split('=')[0]}: unknown flag (" in done.err and words in done.err, f"{command} {flag}: {done.err!r}")
        for named in re.findall(r"--([a-z-]+)", done.err.split("unknown flag")[-1]):
            t.check(named in known, f"{flag}: --{named} is no flag of sluice")
    done = p.sluice("run", "--device", "cuda", "-m", p.model, "-i", p.rows("in.jsonl", [{"prompt_token_ids": [1]}]), "-o", p.fresh())
    if not os.path.exists("/dev/nvidiactl"):
        t.check(done.code == 6 and "no NVIDIA driver here" in done.last(), f"--device cuda: {done.err!r}")
    done = p.sluice("plan", "-m", p.model, "--prompt-len", "16", "--mem-device", "16G", "--mem-ram", "96M")
    t.check("--machine configs/machine-t4.cfg" in done.err, f"--mem-device without a card: {done.err!r}")


def version(t, p, _):
    """One line, or what the program was built with and what of it works here."""
    short, long = p.sluice("--version"), p.sluice("version")
    t.check(re.fullmatch(r"sluice \d+\.\d+\.\d+\n", short.out), f"--version: {short.out!r}")
    t.check(p.sluice("--version", "-v").out == long.out and long.out.startswith(short.out), "--version -v")
    for words in (r"commit:    ([0-9a-f]{12}(-dirty)?|unknown)", r"compiler:  (gcc|clang) \d+\..*", r"CPU:       built for portable avx2 avx512f avx512 amx; "
                  r"usable here: portable.*", r"files:     io_uring (is usable|cannot be used.*)", r"CUDA:      (\S+-cuda.so|not built); (an|no) NVIDIA driver.*"):
        t.check(re.search(f"^{words}$", long.out, re.M), f"version lacks {words}: {long.out!r}")
    t.check("NVIDIA driver is here" in long.out or not os.path.exists("/dev/nvidiactl"), f"version: a driver: {long.out!r}")
    refused = p.sluice("version", wrapper=(NOURING,))
    if refused.code == 77:
        t.skip("no seccomp filter here")
    else:
        t.check("io_uring cannot be used: Operation not permitted" in refused.out, f"version without io_uring: {refused.out!r}")


def readme(t, p, _):
    """engine/README.md has the tables of this program (make help-md writes them)."""
    text = read(README).decode()
    inside = text.split("<!-- flags -->\n")[1].split("<!-- /flags -->")[0]
    done = p.sluice("help", "--markdown")
    t.check(done.code == 0 and inside == done.out, "engine/README.md: other tables than sluice help --markdown (make help-md)")
    for words in ALL:
        row = next((x for x in done.out.splitlines() if x.startswith(f"| `sluice {' '.join(words)} ")), "")
        t.check(row.count(" | ") == 1, f"markdown of {words}: {row!r}")
        for flag in flags_of(p.sluice("help", *words).out):
            t.check(f"--{flag}" in done.out, f"markdown lacks --{flag}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, (widths, groups, exact, foreign, version, readme)))
