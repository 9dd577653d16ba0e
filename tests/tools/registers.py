#!/usr/bin/env python3
"""What ptxas makes of the CUDA kernels: registers, shared memory and spills of each, by architecture, as CSV.
usage: registers.py -o FILE.csv NVCC FLAGS... -- ARCH...
Exits 1 when a kernel spills on sm_80 or above."""
import csv
import glob
import os
import re
import subprocess
import sys
import tempfile

ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
FREE_OF_SPILLS = 80


def kernel_name(mangled):
    """What a kernel is called, with its template arguments."""
    plain = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.replace("(int)", "")
    return re.match(r"(?:void )?([\w:]+(?:<[^()]*>)?)", plain)[1]


def rows_of(source, arch, command):
    """(file, kernel, arch, registers, stack, spill stores, spill loads, shared) of every entry of a file."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as out:
        done = subprocess.run([*command, "-Xptxas", "-v", "-cubin", f"-arch=sm_{arch}", "-o", out.name, source], capture_output=True,
                              text=True, check=False)
    if done.returncode:
        sys.exit(f"registers: {source}, sm_{arch}: {done.stderr[-800:]}")
    name, spills = None, (0, 0, 0)
    for line in done.stderr.splitlines():
        if found := ENTRY.search(line):
            name = kernel_name(found[1])
        elif found := SPILLS.search(line):
            spills = tuple(int(x) for x in found.groups())
        elif (found := USED.search(line)) and name:
            yield os.path.basename(source), name, f"sm_{arch}", int(found[1]), *spills, int(found[2] or 0)
            name = None


def main():
    """Compiles every file once for each architecture."""
    at = sys.argv.index("--")
    path, command, archs = sys.argv[2], sys.argv[3:at], sys.argv[at + 1:]
    command = [x for x in command if x not in ("-MMD", "-MP")]
    table = [row for source in sorted(glob.glob("kernels/cuda/*.cu")) for arch in archs for row in rows_of(source, arch, command)]
    with open(path, "w", encoding="utf-8", newline="") as f:
        w = csv.writer(f)
        w.writerow(["file", "kernel", "arch", "registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "shared_bytes"])
        w.writerows(table)
    bad = [r for r in table if r[5] + r[6] > 0 and int(r[2][3:]) >= FREE_OF_SPILLS]
    for row in bad:
        print(f"FAILED {row[1]} of {row[0]} spills {row[5]} + {row[6]} bytes on {row[2]}")
    print(f"{len(table)} kernels, {len(bad)} that spill on sm_{FREE_OF_SPILLS} and above: {path}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
