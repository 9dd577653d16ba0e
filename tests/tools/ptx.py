#!/usr/bin/env python3
"""The PTX that nvcc makes of the CUDA kernels, interpreted: ptx.py [--plant] [--test NAME]... ARCH...

`make check-ptx` builds what it runs: build/ptx/ARCH/*.ptx and the simt tests. Each test runs with the PTX of each
architecture in place of the code that g++ made (tests/simt/ptx.h); what it compares is the same. A kernel that
no test launched is a failure, unless its PTX traps: that is one which cards of the architecture are never asked for.
Then faults are planted into copies of the PTX, each of which a test has to meet, or the check is blind
(--plant: only those). Owns: the count of what ran. Refuses: to call a fault met by PTX that cannot be read.
"""
import argparse
import collections
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from trial import Tally  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
TESTS = sorted(os.path.basename(p)[:-2] for p in glob.glob(os.path.join(ROOT, "tests/simt_*_test.c"))
               if not re.search("_(shim|ptx|step)_", p))  # kernels of their own, or none that runs
LIMIT_S = 1800
UNREADABLE = 99  # PTX_UNREADABLE of tests/simt/ptx.h

Fault = collections.namedtuple("Fault", "what test kernel old new")
FAULTS = [  # the first line of the kernel on which `old` stands; of the architecture's kernel, where it has the line
    Fault("a sum is cut, not rounded", "simt_rows_test", "norm_row", r"(shfl\.sync\.bfly[^;]*;[^;]*;[^;]*?)add\.rn\.f32", r"\1add.rz.f32"),
    Fault("a barrier is left out", "simt_rows_test", "norm_row", r"bar\.sync\s+0;", ""),
    Fault("a sum is taken in other lanes", "simt_rows_test", "norm_row",
          r"(shfl\.sync\.bfly\.b32\s+%r\d+\|%p\d+, %r\d+), %r\d+, (%r\d+)", r"\1, \2, \2"),
    Fault("a bound is one too far", "simt_rows_test", "gate_mul_row", r"setp\.ge\.s32", "setp.gt.s32"),
    Fault("a constant is off by one", "simt_rows_test", "gate_mul_row", r"(mul\.rn\.f32[^;\n]*, )0f3F000000", r"\g<1>0f3F000001"),
    Fault("an output is left out", "simt_rows_test", "gather_row", r"st\.global\.f32.*", ""),
    Fault("a branch is taken the other way", "simt_rows_test", "rope_row", r"@%p(\d+) bra", r"@!%p\1 bra"),
    Fault("an address is off by one element", "simt_rows_test", "compact_columns", r"(st\.global\.f32\s+\[%rd\d+)\]", r"\1+4]"),
    Fault("a parameter more", "simt_rows_test", "norm_row", r"_param_0\[64\]", "_param_0[72]"),
    Fault("a barrier is left out", "simt_head_test", "head_row", r"bar\.sync\s+0;", ""),
    Fault("a count is off by one", "simt_head_test", "head_row", r"(atom\.shared\.add\.u32.*), 1;", r"\1, 2;"),
    Fault("a sign is lost", "simt_decode_test", "decode_rows",  # of what may have one: a bias was taken from it
          r"(add\.s32\s+(%r\d+), %r\d+, -\d+;(?:\s*\.loc.*)*\s*cvt\.rn\.f32)\.s32(\s+%f\d+, \2;)", r"\1.u32\3"),
    Fault("rows of a fragment are swapped", "simt_matmul_test", "matmul_mma_tile",
          r"(mma\.sync.*\}, \{)(%r\d+), (%r\d+)", r"\1\3, \2"),
    Fault("a copy is not waited for", "simt_matmul_test", "matmul_mma_tile", r"cp\.async\.wait_group \d+;", ""),
    Fault("a product is not fused", "simt_matmul_test", "matmul_f32_tile",  # four in a row: not a decoder's
          r"fma\.rn\.f32(\s+%f\d+, %f\d+, %f\d+), %f\d+;(?=(?:\s*fma\.rn\.f32[^;]*;){3})", r"mul.rn.f32\1;"),
    Fault("a barrier is left out", "simt_attend_test", "forced_place",  # the second: without the first, one thread reads what it wrote
          r"(?s)(bar\.sync\s+0;.*?)bar\.sync\s+0;", r"\1"),
]


class Ran:
    """What a program did with a folder of PTX: exit status (None: it did not end), CPU seconds, output, and times
    that each instruction ran, {(file, kernel): (launches, {line: (opcode, times)})}."""

    def __init__(self, test, folder):
        self.kernels = {}
        with tempfile.TemporaryDirectory(prefix="sluice-ptx-") as place:
            counts, log = os.path.join(place, "ran"), os.path.join(place, "log")
            env = {**os.environ, "SIMT_PTX": folder, "SIMT_PTX_RAN": counts}
            with open(log, "wb") as f:
                p = subprocess.Popen(["timeout", "-k", "5", str(LIMIT_S), os.path.join(BUILD, "tests", test)], cwd=ROOT,
                                     env=env, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)
                _, status, usage = os.wait4(p.pid, 0)
                p.returncode = os.waitstatus_to_exitcode(status)
            self.code, self.seconds = p.returncode, usage.ru_utime + usage.ru_stime
            with open(log, encoding="utf-8", errors="replace") as f:
                self.text = f.read()
            if os.path.exists(counts):
                self.read(counts)

    def read(self, path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                first, second, *rest = line.split()
                if first == "file":
                    file = os.path.basename(second)
                elif first == "kernel":
                    lines = {}
                    self.kernels[file, second] = (int(rest[0]), lines)
                else:
                    lines[int(first)] = (rest[0], int(second))

    def why(self):
        """What it said of its failure."""
        said = [line for line in self.text.splitlines() if line.startswith("ERROR:") or ".ptx:" in line]
        return f"exit {self.code}: {said[0] if said else self.text[-300:]}"[:500]

    def instructions(self):
        return sum(times for _, lines in self.kernels.values() for _, times in lines.values())


def short(kernel):
    """norm_row of _Z8norm_row9norm_args, and the numbers of a template behind it."""
    m = re.match(r"_Z(\d+)", kernel)
    name = kernel[m.end():m.end() + int(m[1])]
    numbers = re.findall(r"Li(\d+)E", kernel[m.end() + int(m[1]):])
    return f"{name}<{', '.join(numbers)}>" if numbers else name


def covered(tally, arch, runs):
    """Joins what all tests ran of an architecture's PTX, and prints what none did."""
    joined = {}
    for ran in runs:
        for key, (launches, lines) in ran.kernels.items():
            before, sums = joined.setdefault(key, (0, collections.Counter()))
            sums.update({(line, opcode): times for line, (opcode, times) in lines.items()})
            joined[key] = (before + launches, sums)
    n_ran = n_all = 0
    opcodes, foreign = collections.Counter(), []
    for (file, kernel), (launches, sums) in sorted(joined.items()):
        n_all += len(sums)
        n_ran += sum(times > 0 for times in sums.values())
        for (_, opcode), times in sums.items():
            opcodes[opcode] += times
        if launches == 0 and any(opcode == "trap" for _, opcode in sums):
            foreign.append(short(kernel))
        elif any(opcode != "ret" for _, opcode in sums):  # one that only returns is asked for, not launched
            tally.check(launches > 0, f"sm_{arch}: no test launches {short(kernel)} of {file}")
    shares = sorted((sum(times > 0 for times in sums.values()) / len(sums), short(kernel))
                    for (_, kernel), (launches, sums) in joined.items() if launches)
    never = sorted(opcode for opcode, times in opcodes.items() if times == 0)
    print(f"sm_{arch}: {len(joined)} kernels, of whose {n_all} instructions {n_ran} ran ({100 * n_ran / max(n_all, 1):.1f} %); "
          f"least of {', '.join(f'{kernel} ({100 * share:.0f} %)' for share, kernel in shares[:5])}; "
          f"{len(opcodes)} opcodes, never: {', '.join(never) or 'none'}"
          + (f"; not for this architecture: {', '.join(foreign)}" if foreign else ""), flush=True)


def check_arch(tally, pool, arch, tests):
    folder = os.path.join(BUILD, "ptx", arch)
    runs = pool.map(lambda test: Ran(test, folder), tests)
    done = []
    for test, ran in zip(tests, runs):
        n = sum(launches > 0 for launches, _ in ran.kernels.values())
        ok = ran.code == 0 and n > 0
        print(f"sm_{arch} {test}: {'passed' if ok else 'FAILED'}, {n} kernels, {ran.instructions() / 1e6:.1f} M instructions, "
              f"{ran.seconds:.1f} s", flush=True)
        tally.check(ok, f"sm_{arch} {test}: {ran.why()}")
        done.append(ran)
    if tests == TESTS:
        covered(tally, arch, done)


def plant(fault, folder):
    """Puts it into the first kernel of that name which has such a line. True when there was one."""
    for path in sorted(glob.glob(os.path.join(folder, "*.ptx"))):
        with open(path, encoding="utf-8") as f:
            parts = re.split(r"(?m)^(?=(?:\.visible )?\.entry )", f.read())
        for i, part in enumerate(parts):
            name = re.match(r"(?:\.visible )?\.entry (\w+)", part)
            changed = re.sub(fault.old, fault.new, part, count=1)
            if name and short(name[1]).split("<")[0] == fault.kernel and changed != part:
                with open(path, "w", encoding="utf-8") as f:
                    f.write("".join(parts[:i] + [changed] + parts[i + 1:]))
                return True
    return False


def met(arch, fault):
    """(whether the test met it, what it said)"""
    with tempfile.TemporaryDirectory(prefix="sluice-ptx-") as place:
        folder = os.path.join(place, arch)
        shutil.copytree(os.path.join(BUILD, "ptx", arch), folder)
        if not plant(fault, folder):
            return False, "the PTX has no such line"
        ran = Ran(fault.test, folder)
    return ran.code not in (0, UNREADABLE) and "ERROR:" in ran.text, ran.why() if ran.code else "passed"


def check_faults(tally, pool, arch, tests):
    faults = [f for f in FAULTS if f.test in tests and ("cp" not in f.old or int(arch) >= 80)]
    for fault, (ok, said) in zip(faults, pool.map(lambda f: met(arch, f), faults)):
        what = f"sm_{arch} {fault.kernel}: {fault.what}: {said}"
        tally.check(ok, what)
        if ok:
            print(f"met: {what}"[:200], flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("archs", nargs="+", metavar="ARCH")
    p.add_argument("--plant", action="store_true", help="only the planted faults")
    p.add_argument("--test", action="append", choices=TESTS, help="this test; may be given again")
    a = p.parse_args()
    tally = Tally()
    tests = a.test or TESTS
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for arch in [] if a.plant else a.archs:
            check_arch(tally, pool, arch, tests)
        check_faults(tally, pool, a.archs[-1], tests)
    return tally.end()


if __name__ == "__main__":
    sys.exit(main())
