"""Files of a Python package's sources that tests read: chat templates and vocabularies of real models.

Owns: fetching the package once, by pip, and what is taken out of it. Refuses: running or building any of it.
Standard library only.
"""
import fcntl
import glob
import os
import subprocess
import sys
import tarfile

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
LIMIT_S = 600


def files(cache, ending):
    """Paths of its files with this ending (.jinja, .gguf) under `cache`; [] when it cannot be had."""
    os.makedirs(cache, exist_ok=True)
    folder = os.path.join(cache, f"{PACKAGE}-{VERSION}")
    with open(os.path.join(cache, "lock"), "w") as lock:  # two tests may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(folder) and not unpack(cache, folder):
            return []
    return sorted(glob.glob(os.path.join(folder, "*" + ending)))


def unpack(cache, folder):
    archive = os.path.join(cache, f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz")
    if not os.path.exists(archive):
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d", cache,
                               f"{PACKAGE}=={VERSION}"], timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if not os.path.exists(archive):
            print(done.stdout.decode("utf-8", "replace")[-300:])
            return False
    os.makedirs(folder + ".part", exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            template = "/models/templates/" in member.name and name.endswith(".jinja")
            if member.isfile() and (template or name.startswith("ggml-vocab-") and name.endswith(".gguf")):
                with open(os.path.join(folder + ".part", name), "wb") as f:
                    f.write(tar.extractfile(member).read())
    os.rename(folder + ".part", folder)
    os.unlink(archive)  # a hundred times what was taken
    return True
