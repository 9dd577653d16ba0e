#!/usr/bin/env python3
"""nvcc builds the CUDA part without a warning, and its library defines the function that the program looks for: cuda_build.py

Builds into build/cuda, for CUDA_ARCHS or every card. No GPU is needed; without nvcc the one check is skipped.
"""
import os
import re
import subprocess
import sys

import trial

TREE = os.path.dirname(trial.HERE)
LIBRARY = "build/cuda/sluice-cuda.so"


def main():
    tally = trial.Tally()
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BUILD", "CUDA")}
    done = subprocess.run(["make", f"-j{os.cpu_count()}", "BUILD=build/cuda", "CUDA=1", LIBRARY], cwd=TREE, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode and "CUDA=1 needs nvcc" in done.stderr:
        tally.skip("no nvcc: the CUDA part is not built")
        tally.finish()
    tally.check(done.returncode == 0, f"make: {(done.stdout + done.stderr)[-600:]}")
    with open(os.path.join(TREE, "kernels/device.h"), encoding="utf-8") as f:
        entry = re.search(r'#define DEVICE_ENTRY +"(\w+)"', f.read())[1]
    names = subprocess.run(["nm", "-D", "--defined-only", os.path.join(TREE, LIBRARY)], capture_output=True, text=True).stdout.split()
    tally.check(entry in names, f"{LIBRARY} does not define {entry}, which device_open.c looks for")
    tally.finish()


if __name__ == "__main__":
    sys.exit(main())
