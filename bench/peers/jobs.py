"""The jobs of all engines, and one engine as a process: its files, one run, the best of its flags.

Owns: the token ids of a job, the files to drop from the page cache before a run, the status of a failed run.
Refuses: tables and repeats (bench/run.py). Every engine gets the same ids, greedy, end-of-text ignored.
Standard library only.
"""
import json
import os
import random
import shlex
import signal
import subprocess
import sys

import peer

ENGINES = {"sluice": "sluice", "llamacpp": "llama.cpp", "openvino": "openvino-genai", "accelerate": "accelerate",
           "ctranslate2": "ctranslate2", "flexgen": "flexgen", "accelerate_gpu": "accelerate", "deepspeed": "deepspeed",
           "vllm": "vllm"}
FIRST_FORMAT = {"sluice": "q4_1", "llamacpp": "q4_0", "openvino": "q4_1", "accelerate": "bf16", "ctranslate2": "int8",
                "flexgen": "f16", "accelerate_gpu": "bf16", "deepspeed": "bf16", "vllm": "bf16"}
LARGE = ("accelerate", "ctranslate2", "flexgen", "accelerate_gpu", "deepspeed", "vllm")  # installed only when asked for: torch takes 5 GB
FIRST_IDS, VOCAB = 100, 49152  # smaller ids are special tokens
STATUS = {124: "timeout", 125: "no control group", 137: "killed for memory"}


def chat_ids(sluice, rows, data=os.path.join(peer.TREE, "tests/data/prompts.jsonl")):
    """Ids of the first rows of a file of chat requests, template applied, as sluice sees them."""
    with open(data, encoding="utf-8") as f:
        bodies = [json.loads(line) for line, _ in zip(f, range(rows))]
    if len(bodies) < rows:
        sys.exit(f"{data}: has {len(bodies)} rows, {rows} are needed")
    text = "".join(json.dumps({"messages": row.get("body", row)["messages"]}) + "\n" for row in bodies)
    done = subprocess.run([sluice, "tokenize", "-m", peer.model_path("smollm2", "q4_1")], input=text,
                          stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def random_ids(rows, length):
    draw = random.Random(1)
    return [[draw.randrange(FIRST_IDS, VOCAB) for _ in range(length)] for _ in range(rows)]


def job_write(path, prompts, n_new):
    with open(path, "w", encoding="utf-8") as f:
        for i, ids in enumerate(prompts):
            f.write(json.dumps({"custom_id": f"row-{i}", "prompt_token_ids": ids, "max_tokens": n_new,
                                "temperature": 0, "ignore_eos": True}) + "\n")
    return path


def drop_cache(paths):
    """Drops files (and files of folders) from the page cache, else a limited run reads them from there."""
    files = []
    for path in paths:
        inside = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
        files += inside if os.path.isdir(path) else [path]
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Engine:
    """One engine with its flags. `own` follows `--` (flags of sluice run).

    space: flag -> values to try, the initial one first. `best` has the result.
    """

    def __init__(self, name, flags="", own="", space=None, case="", rows=0):
        self.name, self.case, self.rows = name, case, rows
        self.flags, self.own = shlex.split(flags), shlex.split(own)
        self.space = space or {}
        self.best = {flag: values[0] for flag, values in self.space.items()}
        self.files = []

    def command(self, more=(), best=None):
        """The command line; `more` goes before a `--`, which is followed by the engine's own flags."""
        words = [sys.executable, os.path.join(peer.HERE, f"run_{self.name}.py"), *more, *self.flags]
        for flag, value in (self.best if best is None else best).items():
            words += [flag, str(value)]
        return words + (["--", *self.own] if self.own else [])

    def label(self, best=None):
        return shlex.join([self.name, *self.command(best=best)[2:]])

    def known(self):
        """The columns that do not depend on the result of the run."""
        words = self.flags + self.own

        def value(flag, default):
            return words[words.index(flag) + 1] if flag in words else default
        weights = value("--format", FIRST_FORMAT[self.name])
        if self.name == "sluice":
            return {"weights": weights, "compute": value("--compute", "bf16"), "shares": value("--share-prefixes", "on")}
        weights = "q4" if "--compress-weight" in words else weights
        compute = "int8" if self.name in ("llamacpp", "openvino") and weights != "bf16" else weights
        return {"weights": weights, "compute": compute, "shares": value("--share" if self.name == "llamacpp" else "--prefix-caching", "off")}

    def installed(self):
        return self.name not in LARGE or os.path.exists(os.path.join(peer.ROOT, self.name, "ready"))

    def check(self):
        """Whether its imports exist (scripts for a GPU); its message."""
        done = subprocess.run(self.command(["--check"]), stdout=subprocess.PIPE, text=True)
        return done.returncode == 0, done.stdout.strip()

    def prepare(self):
        done = peer.run(self.command(["--prepare"]), stdout=subprocess.PIPE, text=True)
        self.files = done.stdout.split("\n")[:-1]

    def run(self, job, limits=None, best=None, warm=False, timeout_s=3600):
        """The row of one run as a dict whose `status` is "ok", or a dict with only a status."""
        limits = limits or {}
        more = ["--job", job] + ["--warm"] * warm
        outside = []
        if self.name in ("sluice", "llamacpp"):  # only their own process is limited
            more += ["--limit-mib", str(limits["mib"])] if limits.get("mib") else []
            more += ["--limit-disk", limits["disk"]] if limits.get("disk") else []
        elif limits:
            outside = [os.path.join(peer.HERE, "limited.py")]
            outside += ["--mib", str(limits["mib"])] if limits.get("mib") else []
            outside += ["--disk", limits["disk"]] if limits.get("disk") else []
        if limits.get("cold"):
            drop_cache(self.files)
        child = subprocess.Popen([*outside, *self.command(more, best)], stdout=subprocess.PIPE, text=True,
                                 start_new_session=True)
        try:
            text = child.communicate(timeout=timeout_s)[0]
            code = child.returncode
        except subprocess.TimeoutExpired:
            code, text = 124, ""
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)  # ours: its own session
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        if code:
            return {**self.known(), "status": STATUS.get(code, f"ended with {code}")}
        return {**json.loads(text.splitlines()[-1]), **self.known(), "status": "ok"}
