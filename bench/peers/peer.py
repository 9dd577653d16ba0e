"""Shared by all engines' scripts: paths, the job file, the clocks, and the resulting row.

Owns: the folder of the peers ($SLUICE_PEERS_DIR, else build/peers), their Python environments
with pinned versions, arguments, checks and the row (one JSON object on stdout). Refuses: facts about single engines.
A script that calls enter() is restarted inside its own environment. Standard library only.

The clocks, the same for all: `whole_s` starts with the engine's process or its first import, with files present
and prompts tokenized, and ends with the last token; it includes loading and first inference. `seconds` is
the job alone; with --warm after one request of other tokens, so without loading and first inference.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
ROOT = os.path.abspath(os.environ.get("SLUICE_PEERS_DIR") or os.path.join(TREE, "build/peers"))
MIB = 1 << 20

PACKAGES = {
    "llamacpp": ["llama-cpp-python==0.3.36"],  # only its sources are used
    "openvino": ["openvino-genai==2026.4.1.0"],
    "ctranslate2": ["ctranslate2==4.8.5", "numpy==2.4.6"],
    "accelerate": ["accelerate==1.15.0", "transformers==5.23.0", "torch==2.15.0"],
    "deepspeed": ["deepspeed==0.19.8", "accelerate==1.15.0", "transformers==5.23.0", "torch==2.15.0"],
    "vllm": ["vllm==0.33.0"],
    "models": ["gguf==0.19.0", "numpy==2.4.6"],
}
WARM_TOKENS = 2  # of the warm-up request: a prompt and a decode


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def version_of(name):
    return PACKAGES[name][0].partition("==")[2]


def run(command, **more):
    """Runs a command that must succeed; its output goes to stderr, so that stdout is one row."""
    return subprocess.run([str(c) for c in command], check=True, stdout=more.pop("stdout", sys.stderr), **more)


def venv(name):
    """The Python of an environment, made on first use or when its pins have changed."""
    place = os.path.join(ROOT, name)
    python, ready = os.path.join(place, "bin/python"), os.path.join(place, "ready")
    wanted = "\n".join(PACKAGES[name]) + "\n"
    if not os.path.exists(ready) or open(ready, encoding="utf-8").read() != wanted:
        say(f"peers: installing {', '.join(PACKAGES[name])} into {place}")
        run([sys.executable, "-m", "venv", place])
        run(["nice", "-n", "10", python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES[name]])
        with open(ready, "w", encoding="utf-8") as f:
            f.write(wanted)
    return python


def enter(name):
    """Restarts the script inside the environment; returns only there."""
    python = venv(name)
    if os.path.abspath(sys.prefix) != os.path.join(ROOT, name):
        os.execv(python, [python, *sys.argv])


def model_path(model, kind):
    """A file or folder of a known model (made by models.py), or MODEL itself if it is a path."""
    if os.path.exists(model):
        return os.path.abspath(model)
    made = run([venv("models"), os.path.join(HERE, "models.py"), model, kind], stdout=subprocess.PIPE, text=True)
    return made.stdout.strip()


def arguments(about, formats, batch):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--job", help="JSONL: prompt_token_ids and max_tokens of each row (jobs.job_write makes it)")
    p.add_argument("--model", default="smollm2", help="smollm2, llama-3b, or a path [smollm2]")
    p.add_argument("--format", default=formats[0], help=f"{' '.join(formats)} [{formats[0]}]")
    p.add_argument("--batch", type=int, default=batch, help=f"rows computed together [{batch}]")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--out", help="token ids of each row, as JSONL")
    p.add_argument("--warm", action="store_true", help="a warm-up request before the clock of the job")
    p.add_argument("--prepare", action="store_true", help="install, make the model's files, print their paths; no run")
    return p


def limits(p):
    """Flags of engines with their own process, which alone is limited: our Python is not counted."""
    p.add_argument("--limit-mib", type=int, default=0, help="memory limit of the engine's process [none]")
    p.add_argument("--limit-disk", default="", metavar="RATE:PATH", help="disk limit of the engine's process [none]")
    return p


def limited(a, command):
    """The command, under the limits of the flags."""
    flags = ["--mib", a.limit_mib] * bool(a.limit_mib) + ["--disk", a.limit_disk] * bool(a.limit_disk)
    return [str(c) for c in ([os.path.join(HERE, "limited.py"), *flags] if flags else []) + command]


def parse(p):
    a = p.parse_args()
    if not a.prepare and not a.job:
        p.error("--job is missing")
    if a.batch < 0 or a.threads < 1:
        p.error("--batch, --threads: out of range")
    return a


class Job:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f if line.strip()]
        self.prompts = [r["prompt_token_ids"] for r in rows]
        news = {r["max_tokens"] for r in rows}
        if len(news) != 1 or not all(self.prompts):
            sys.exit(f"{path}: rows need prompt_token_ids and one max_tokens")
        self.n_new = news.pop()

    def warm_prompt(self):
        """As long as the first prompt, of other tokens, so that no prefix cache helps the job."""
        return [t ^ 1 for t in reversed(self.prompts[0])]


def check_rows(job, out):
    """Checks that every row has all of its tokens."""
    short = [r for r, ids in enumerate(out) if len(ids) != job.n_new]
    if len(out) != len(job.prompts) or short:
        sys.exit(f"peers: {len(out)} of {len(job.prompts)} rows came back; not of {job.n_new} tokens: {short[:8]}")


def peak_rss_mib():
    with open("/proc/self/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024


def emit(a, job, out, engine, version, seconds, whole_s, load_s, peak_mib, **more):
    """Checks OUT, keeps it where --out says, prints the row. OUT is None after a time limit."""
    if out is not None:
        check_rows(job, out)
        if a.out:
            with open(a.out, "w", encoding="utf-8") as f:
                f.writelines(json.dumps({"token_ids": ids}) + "\n" for ids in out)
    n = len(job.prompts) * job.n_new
    answer = hashlib.sha256(json.dumps(out).encode()).hexdigest()[:12] if out is not None else ""
    row = {"engine": engine, "version": version, "model": os.path.basename(a.model), "weights": a.format,
           "rows": len(job.prompts), "prompt_tokens": sum(map(len, job.prompts)), "new_tokens": n,
           "batch": min(a.batch, len(job.prompts)), "threads": a.threads, "warm": a.warm, "seconds": seconds,
           "whole_s": whole_s, "load_s": load_s, "peak_rss_mib": round(peak_mib), "answer": answer, **more}
    print(json.dumps(row))
