"""The binary with a patch in one source file, built beside the objects that are there: for tests that have to look
inside a run, or to hurt it, where the product has no business to let them.

Owns: the copy of the tree and its build. Refuses: to patch what it does not find exactly once.
Standard library, make and a C compiler.
"""
import os
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ("policy", "kernels", "offload", "engine", "bench")


class PatchFailed(ValueError):
    """The lines to patch are gone, or what comes out does not build."""


def patched(folder, file, *changes):
    """Path of ./sluice of this source with changes [(old, new)] in `file`; `folder` must not exist and keeps the
    copy. What is not patched comes from $BUILD, and is built where that lacks it."""
    made = os.path.join(ROOT, os.environ.get("BUILD", "build"))
    os.mkdir(folder)
    shutil.copy2(os.path.join(ROOT, "Makefile"), folder)
    for part in PARTS:
        shutil.copytree(os.path.join(ROOT, part), os.path.join(folder, part))
        if os.path.isdir(os.path.join(made, part)):
            shutil.copytree(os.path.join(made, part), os.path.join(folder, "build", part))
    path = os.path.join(folder, file)
    with open(path, encoding="utf-8") as f:
        source = f.read()
    for old, new in changes:
        if source.count(old) != 1:
            raise PatchFailed(f"{file}: {old.strip()!r} is found {source.count(old)} times, not once")
        source = source.replace(old, new)
    with open(path, "w", encoding="utf-8") as f:
        f.write(source)
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BUILD")
    env = {k: v for k, v in os.environ.items() if k not in ours}
    done = subprocess.run(["make", "-j2", "CUDA=0", "sluice"], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PatchFailed(f"make: exit {done.returncode}: {done.stderr[-300:]}")
    return os.path.join(folder, "sluice")
