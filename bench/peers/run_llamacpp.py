#!/usr/bin/env python3
"""Our job on llama.cpp: run_llamacpp.py --job JOB.jsonl [--model smollm2] [--format q4_0] [--batch 64]

Sources are those inside the sdist of llama-cpp-python, built here with GGML_NATIVE; the job itself is
llamacpp_job.cpp over its library: our token ids, greedy, end-of-text ignored. Weights are mmap'd, so a
file larger than memory streams through the page cache. --repack keep computes from the mapped file where the library
would rearrange a format (a second copy in RAM): q8_0 of llama-3b needs it under a small limit.
--gpu-layers N builds it with CUDA (in a folder of its own) and puts N layers on the card; prompts of any length are then
computed there (the library copies the other layers' weights for large batches), decode of the others on the CPU.
--kv-cpu leaves KV in RAM. It has no cap of device memory: N is what fits beside KV under --gpu-mib of the other peers.
$SLUICE_LLAMACPP_CMAKE: more flags for its build. Built by GCC 12, auto crashes on CPUs with AMX (exit 132; see README).
"""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import peer

PLACE = os.path.join(peer.ROOT, "llamacpp")
SOURCE = os.path.join(PLACE, "src/vendor/llama.cpp")
TARGETS = ["llama", "llama-quantize"]
MORE = os.environ.get("SLUICE_LLAMACPP_CMAKE", "")


def fetch():
    if os.path.exists(os.path.join(SOURCE, "CMakeLists.txt")):
        return
    os.makedirs(os.path.join(PLACE, "src"), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as work:
        peer.run(["python3", "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary",
                  "llama-cpp-python", "-d", work, *peer.PACKAGES["llamacpp"]])
        sdist, = glob.glob(os.path.join(work, "*.tar.gz"))
        peer.run(["tar", "-xzf", sdist, "--strip-components=1", "-C", os.path.join(PLACE, "src")])


def build(cuda=False):
    """The build folder; complete if its marker exists."""
    place = os.path.join(PLACE, "build-cuda" if cuda else "build")
    ready = os.path.join(place, "ready")
    if not os.path.exists(ready):
        peer.say(f"peers: building llama.cpp in {place}")
        fetch()
        peer.run(["cmake", "-S", SOURCE, "-B", place, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                  "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF",
                  "-DLLAMA_OPENSSL=OFF", *(["-DGGML_CUDA=ON"] if cuda else []),
                  *shlex.split(MORE)])
        peer.run(["nice", "-n", "10", "cmake", "--build", place, "-j1", "--target", *TARGETS])
        with open(ready, "w", encoding="utf-8") as f:
            f.write(peer.version_of("llamacpp") + "\n")
    return place


def job_binary(cuda=False):
    place, code = build(cuda), os.path.join(peer.HERE, "llamacpp_job.cpp")
    binary = os.path.join(place, "llamacpp_job")
    if not os.path.exists(binary) or os.path.getmtime(binary) < os.path.getmtime(code):
        libraries = os.path.join(place, "bin")
        peer.run(["g++", "-std=c++17", "-O3", "-march=native", "-ffinite-math-only", "-fno-signed-zeros", "-Wall",
                  "-Wextra", f"-I{SOURCE}/include", f"-I{SOURCE}/ggml/include", code, "-o", binary, f"-L{libraries}",
                  f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base"])
    return binary


def version():
    with open(os.path.join(SOURCE, "CMakeLists.txt"), encoding="utf-8") as f:
        numbers = re.findall(r"set\(LLAMA_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)\)", f.read())
    return f"{'.'.join(numbers)} (llama-cpp-python {peer.version_of('llamacpp')}{' ' + MORE if MORE else ''})"


def main():
    p = peer.limits(peer.arguments(__doc__, ["q4_0", "q4_1", "q8_0", "bf16"], 64))
    p.add_argument("--ubatch", type=int, default=512, help="tokens computed at once [512]")
    p.add_argument("--kv", choices=["unified", "split"], default="split", help="one KV stream, or one per row [split]")
    p.add_argument("--kv-type", choices=["f16", "q8_0"], default="f16")
    p.add_argument("--flash", choices=["auto", "on", "off"], default="auto", help="flash attention [auto]")
    p.add_argument("--share", choices=["on", "off"], default="off", help="compute the common prefix of a batch once [off]")
    p.add_argument("--repack", choices=["auto", "keep"], default="auto")
    p.add_argument("--gpu-layers", type=int, default=-1, help="layers on a GPU, 99: all [no CUDA]")
    p.add_argument("--kv-cpu", action="store_true", help="with --gpu-layers: KV and attention in RAM")
    p.add_argument("--check", action="store_true", help="say whether it is built, or can be; no run")
    a = p.parse_args() if "--check" in sys.argv else peer.parse(p)
    if a.check:
        tools = ["cmake", "g++"] + ["nvcc"] * (a.gpu_layers >= 0)
        missing = [t for t in tools if not shutil.which(t)]
        made = os.path.exists(os.path.join(PLACE, "build-cuda" if a.gpu_layers >= 0 else "build", "ready"))
        print("llamacpp: " + ("built" if made else f"missing: {' '.join(missing)}" if missing else
                              f"not built: run_llamacpp.py --gpu-layers {a.gpu_layers} --prepare"))
        sys.exit(0 if made else 3)
    on_gpu = [f"gpu_layers={a.gpu_layers}", f"kv_on_gpu={int(not a.kv_cpu)}"] if a.gpu_layers >= 0 else []
    binary, path = job_binary(bool(on_gpu)), peer.model_path(a.model, a.format)
    if a.prepare:
        print(path)
        return
    job = peer.Job(a.job)
    with tempfile.TemporaryDirectory() as work:
        rows, out = os.path.join(work, "rows"), os.path.join(work, "out")
        with open(rows, "w", encoding="utf-8") as f:
            print(len(job.prompts), job.n_new, file=f)
            f.writelines(f"{len(ids)} {' '.join(map(str, ids))}\n" for ids in job.prompts)
        begin = time.monotonic()
        settings = [f"batch={a.batch}", f"threads={a.threads}", f"ubatch={a.ubatch}", f"kv={a.kv}", f"kv_type={a.kv_type}",
                    f"flash={a.flash}", f"repack={int(a.repack == 'auto')}", f"share={int(a.share == 'on')}", f"warm={int(a.warm)}"]
        done = subprocess.run(peer.limited(a, [binary, path, rows, out, *settings, *on_gpu]), stdout=subprocess.PIPE, text=True)
        whole_s = time.monotonic() - begin
        if done.returncode:
            sys.exit(128 - done.returncode if done.returncode < 0 else done.returncode)
        with open(out, encoding="utf-8") as f:
            tokens = [[int(word) for word in line.split()] for line in f]
    figures = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    peer.say("peers: llama.cpp:", figures["system"])
    peer.emit(a, job, tokens, "llama.cpp", version(), float(figures["seconds"]), whole_s, float(figures["load_s"]),
              int(figures["peak_rss_kib"]) / 1024, prefill_s=float(figures["prefill_s"]))


if __name__ == "__main__":
    main()
