#!/usr/bin/env python3
"""One folder with all that a machine with a GPU needs, though it has no network, no compiler and another distribution:
kit.py [-o build/gpu-kit/sluice-gpu].

  ./sluice, ./check-gpu, ./bench-gpu   scripts; README says how
  bin/      the programs, stripped, and sluice-cuda.so
  lib/      the libraries that they need, but for those of the driver (CUDA's runtime is inside sluice-cuda.so)
  glibc/    the C library and its loader, which serve where the machine's own are older than those here
  build/    the tests' programs, as scripts; tests/ bench/ configs/ the scripts; models/ small checkpoints

Owns: what is packed and how a program of it starts. Refuses: building (make gpu-kit does).
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from check_gpu import OPS_TESTS  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB_MAX = 55  # a lent machine takes uploads of at most 64 MiB, sources and results with them
LOADER = "ld-linux-x86-64.so.2"
# Whoever loads one of them has to load all of the same version; the driver asks for the last four.
GLIBC = (LOADER, "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libutil.so.1")
FILES = ("LICENSE", "tests/trial.py", "tests/gpu/card.py", "tests/gpu/check_gpu.py", "tests/data/prompts.jsonl", "bench/conditions.py",
         "bench/gpu.py", "bench/peers", "configs")

# up: where the kit is from here.
START = """#!/bin/sh
# Starts %(program)s of this kit: with the machine's C library where that is new enough, else with the kit's own
# (SLUICE_KIT_GLIBC=own: in any case).
case $0 in */*) at=$0 ;; *) at=$(command -v "$0") ;; esac
at=$(cd "${at%%/*}/%(up)s" && pwd) || exit 1
if [ "${SLUICE_KIT_GLIBC:-}" != own ] && LD_LIBRARY_PATH="$at/lib" "$at/bin/sluice" --version >/dev/null 2>&1; then
    LD_LIBRARY_PATH="$at/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LD_LIBRARY_PATH
    exec "$at/bin/%(program)s" "$@"
fi
driver=/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/lib/wsl/lib
exec "$at/glibc/%(loader)s" --library-path "$at/glibc:$at/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver" \\
    "$at/bin/%(program)s" "$@"
"""

README = """sluice, commit %(commit)s: a kit for a machine with an NVIDIA driver (version 580 for nvcc 13, 525 for nvcc 12: bin/ was built by %(nvcc)s) and Python 3.8.

    ./sluice probe --device cuda
    python3 tests/gpu/card.py 1 -o OUT   # then 2 and 3: the most valuable checks and figures in three calls of ten minutes
    ./check-gpu --for 9m       # is what the GPU computes right? Again and again, until it does not end with 75
    ./bench-gpu --for 9m       # the figures; likewise
    DEVICE=$PWD/build/tests/sim_device.so:1,20 ./check-gpu   # without a GPU: the simulated accelerator

Peers: SLUICE_PEERS_PYTHON=system ./bench-gpu takes those whose packages this machine's python3 has.
Results: build/gpu/check.csv, bench/results/gpu_*.csv. Nothing here needs root, a network or a compiler.
%(without)s"""


def needed(paths):
    """Every library that the programs load, by name."""
    found = {}
    for path in paths:
        told = subprocess.run(["ldd", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        missing = re.findall(r"^\s*(\S+) => not found", told, re.M)
        if missing:
            sys.exit(f"kit.py: {path}: {', '.join(missing)} not found")
        for name, at in re.findall(r"^\s*(\S+) => (/\S+)", told, re.M):
            found[name] = at
        for at in re.findall(r"^\s*(/\S+) \(", told, re.M):
            found[os.path.basename(at)] = at
    return found


def put(source, to, strip=False):
    os.makedirs(os.path.dirname(to), exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
        return
    shutil.copy(os.path.realpath(source), to)
    if strip:
        subprocess.run(["strip", "-s", to], check=True)


def script(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)


def starter(kit, at, program):
    up = os.path.relpath(kit, os.path.dirname(os.path.join(kit, at)))
    script(os.path.join(kit, at), START % {"program": program, "up": up, "loader": LOADER})


def programs(kit, a):
    """bin/, and what starts them; the paths of the originals."""
    made = {"sluice": os.path.join(ROOT, "sluice")}
    made.update({os.path.basename(t): os.path.join(ROOT, a.tests, t) for t in OPS_TESTS})
    for name, source in made.items():
        put(source, os.path.join(kit, "bin", name), strip=True)
    starter(kit, "sluice", "sluice")
    for t in OPS_TESTS:
        starter(kit, os.path.join("build/tests", t), os.path.basename(t))
    libraries = {"build/tests/sim_device.so": os.path.join(ROOT, a.tests, "sim_device.so")}
    cuda = os.path.join(ROOT, "sluice-cuda.so")
    if os.path.exists(cuda):
        libraries["bin/sluice-cuda.so"] = cuda
        os.symlink("bin/sluice-cuda.so", os.path.join(kit, "sluice-cuda.so"))
        # /proc/self/exe, beside which the program looks, is the loader where that was started.
        os.makedirs(os.path.join(kit, "glibc"), exist_ok=True)
        os.symlink("../bin/sluice-cuda.so", os.path.join(kit, "glibc", f"{LOADER}-cuda.so"))
    for at, source in libraries.items():
        put(source, os.path.join(kit, at), strip=True)
    return [*made.values(), *libraries.values()]


def commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "unknown"


def size_of(folder):
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", default=os.path.join(ROOT, "build/gpu-kit/sluice-gpu"))
    p.add_argument("--tests", default="build/tests")
    p.add_argument("--models", default=os.path.join(ROOT, "build/gpu/models"))
    p.add_argument("--nvcc", default="", help="what built sluice-cuda.so, for the README")
    a = p.parse_args()
    kit = os.path.abspath(a.output)
    shutil.rmtree(kit, ignore_errors=True)
    os.makedirs(kit)
    for name, at in sorted(needed(programs(kit, a)).items()):
        put(at, os.path.join(kit, "glibc" if name in GLIBC else "lib", name))
    beside = os.path.dirname(os.path.realpath(needed([os.path.join(ROOT, "sluice")])["libc.so.6"]))
    for name in GLIBC:
        if not os.path.exists(os.path.join(kit, "glibc", name)):
            put(os.path.join(beside, name), os.path.join(kit, "glibc", name))
    for path in FILES:
        put(os.path.join(ROOT, path), os.path.join(kit, path))
    for path in glob.glob(os.path.join(a.models, "*-*")):
        put(path, os.path.join(kit, "models", os.path.basename(path)))
    flexgen = os.path.join(os.environ.get("SLUICE_PEERS_DIR") or os.path.join(ROOT, "build/peers"), "flexgen/src")
    if os.path.exists(os.path.join(flexgen, "ready")):  # bench/peers/run_flexgen.py --prepare has fetched it
        put(flexgen, os.path.join(kit, "build/peers/flexgen/src"))
    for name, command in (("check-gpu", "tests/gpu/check_gpu.py --models models"), ("bench-gpu", "bench/gpu.py")):
        script(os.path.join(kit, name), '#!/bin/sh\ncd "${0%/*}" && exec python3 ' + command + ' "$@"\n')
    without = "" if os.path.exists(os.path.join(kit, "sluice-cuda.so")) else "\nBuilt without nvcc: no sluice-cuda.so in it.\n"
    script(os.path.join(kit, "COMMIT"), commit() + "\n")
    script(os.path.join(kit, "README"), README % {"commit": commit(), "without": without, "nvcc": a.nvcc or "none"})
    for name in ("COMMIT", "README"):
        os.chmod(os.path.join(kit, name), 0o644)
    mib = size_of(kit) / (1 << 20)
    print(f"{os.path.relpath(kit, ROOT)}: {mib:.1f} MiB" + (", without sluice-cuda.so" if without else ""))
    return 0 if mib < MIB_MAX else f"kit.py: more than {MIB_MAX} MiB"


if __name__ == "__main__":
    sys.exit(main())
