"""The jobs that all engines do, and one engine as a process: its files, one run, the best of its flags.

Owns: the token ids of a job, what leaves the page cache before a run, how a run that came to nothing is called.
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
FIRST_IDS, VOCAB = 100, 49152  # below stand the special tokens
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
    """Takes files (and files of folders) out of the page cache; else a limited run reads them free of charge."""
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
    """One engine with its flags. `own` stands behind `--` (flags of sluice run).

    space: flag -> values that are to be tried, the one to begin with first. What was found stands in `best`.
    """

    def __init__(self, name, flags="", own="", space=None, case="", rows=0):
        self.name, self.case, self.rows = name, case, rows
        self.flags, self.own = shlex.split(flags), shlex.split(own)
        self.space = space or {}
        self.best = {flag: values[0] for flag, values in self.space.items()}
        self.files = []

    def command(self, more=(), best=None):
        """The words that run it; `more` stands before a `--`, behind which flags are the engine's own."""
        words = [sys.executable, os.path.join(peer.HERE, f"run_{self.name}.py"), *more, *self.flags]
        for flag, value in (self.best if best is None else best).items():
            words += [flag, str(value)]
        return words + (["--", *self.own] if self.own else [])

    def label(self, best=None):
        return shlex.join([self.name, *self.command(best=best)[2:]])

    def known(self):
        """What a row says that is the same however the run ends."""
        words = self.flags + self.own

        def value(flag, default):
            return words[words.index(flag) + 1] if flag in words else default
        weights = value("--format", FIRST_FORMAT[self.name])
        if self.name == "sluice":
            return {"weights": weights, "compute": value("--compute", "bf16"), "shares": value("--share-prefixes", "on")}
        weights = "q4" if "--compress-weight" in words else weights
        compute = "int8" if self.name in ("llamacpp", "openvino") and weights != "bf16" else weights
        return {"weights": weights, "compute": compute, "shares": value("--prefix-caching", "off")}

    def installed(self):
        return self.name not in LARGE or os.path.exists(os.path.join(peer.ROOT, self.name, "ready"))

    def check(self):
        """Whether what it imports is there (scripts for a GPU); what it said."""
        done = subprocess.run(self.command(["--check"]), stdout=subprocess.PIPE, text=True)
        return done.returncode == 0, done.stdout.strip()

    def prepare(self):
        done = peer.run(self.command(["--prepare"]), stdout=subprocess.PIPE, text=True)
        self.files = done.stdout.split("\n")[:-1]

    def run(self, job, limits=None, best=None, warm=False, timeout_s=3600):
        """The row of one run as a dict whose `status` is "ok", or one with a status alone."""
        limits = limits or {}
        more = ["--job", job] + ["--warm"] * warm
        outside = []
        if self.name in ("sluice", "llamacpp"):  # a process of their own, which alone is limited
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
