#!/usr/bin/env python3
"""One job, several engines, taken in turns: side_by_side.py --job ram|stream -o FILE.csv ENGINE...

ENGINE is a name and its flags in one word or quotes, say sluice 'llamacpp --format q4_0 --batch 64'
'sluice -- --batch 64'. What names no model gets the job's: smollm2 (ram), llama-3b (stream).
  ram     chat prompts of --data (OpenAI batch rows; the first --rows), ids by `sluice tokenize`
  stream  --rows prompts of --prompt-len ids, under a memory limit (--limit-mib) and with files out of
          the page cache before every run
Every engine gets the same ids, greedy, end-of-text ignored, --new tokens a row. All is prepared first
(installed, built, packed, without the limit), then turn by turn each engine runs once; every run is a
row of FILE. At the end stand medians, ratios to the first engine, and how many rows begin with the same
8 tokens as the first engine's (informational: formats differ). Standard library only.
"""
import argparse
import csv
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

import peer

ENGINES = ["sluice", "llamacpp", "openvino", "accelerate", "ctranslate2"]
MODEL = {"ram": "smollm2", "stream": "llama-3b"}
LIMIT_MIB = {"ram": 0, "stream": 2560}
FIRST_IDS, VOCAB = 100, 49152  # below stand the special tokens
SAME = 8


class Engine:
    """One engine with its flags, as given on the command line."""

    def __init__(self, words, model):
        self.label = words
        name, *flags = shlex.split(words)
        if name not in ENGINES:
            sys.exit(f"side_by_side.py: {name}: no such engine ({' '.join(ENGINES)})")
        if "--model" not in flags:
            flags = ["--model", model, *flags]
        self.command = [sys.executable, os.path.join(peer.HERE, f"run_{name}.py")]
        self.flags = flags
        self.files, self.seconds, self.tok_s, self.tokens = [], [], [], None

    def prepare(self):
        # --prepare stands before a `--`, behind which flags are the engine's own
        done = peer.run([*self.command, "--prepare", *self.flags], stdout=subprocess.PIPE, text=True)
        self.files = done.stdout.split("\n")[:-1]

    def run(self, job, out, limit_mib):
        limit = [os.path.join(peer.HERE, "cgroup_run.sh"), str(limit_mib)] if limit_mib else []
        done = subprocess.run([*limit, *self.command, "--job", job, "--out", out, *self.flags],
                              stdout=subprocess.PIPE, text=True)
        if done.returncode:
            peer.say(f"peers: {self.label}: ended with {done.returncode}: no row")
            return None
        row, = csv.DictReader(done.stdout.splitlines())
        self.seconds.append(float(row["seconds"]))
        self.tok_s.append(float(row["output_tok_s"]))
        with open(out, encoding="utf-8") as f:
            self.tokens = [json.loads(line)["token_ids"] for line in f]
        return row


def chat_ids(a):
    """Ids of the first rows of --data, chat template applied, as sluice sees them."""
    with open(a.data, encoding="utf-8") as f:
        bodies = [json.loads(line) for line, _ in zip(f, range(a.rows))]
    rows = [{"messages": row.get("body", row)["messages"]} for row in bodies]
    if len(rows) < a.rows:
        sys.exit(f"{a.data}: {len(rows)} rows, --rows wants {a.rows}")
    done = subprocess.run([os.path.join(peer.TREE, "sluice"), "tokenize", "-m", peer.model_path("smollm2", "q4_1")],
                          input="".join(json.dumps(r) + "\n" for r in rows), stdout=subprocess.PIPE, text=True,
                          check=True)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def random_ids(a):
    draw = random.Random(1)
    return [[draw.randrange(FIRST_IDS, VOCAB) for _ in range(a.prompt_len)] for _ in range(a.rows)]


def job_write(path, prompts, n_new):
    with open(path, "w", encoding="utf-8") as f:
        for i, ids in enumerate(prompts):
            f.write(json.dumps({"custom_id": f"row-{i}", "prompt_token_ids": ids, "max_tokens": n_new,
                                "temperature": 0, "ignore_eos": True}) + "\n")


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


def row_append(path, row):
    new = not os.path.exists(path) or os.path.getsize(path) == 0
    with open(path, "a", newline="", encoding="utf-8") as f:
        w = csv.DictWriter(f, peer.COLUMNS, lineterminator="\n")
        if new:
            w.writeheader()
        w.writerow(row)


def same_start(a, b):
    return sum(x[:SAME] == y[:SAME] for x, y in zip(a, b)) / len(a)


def summarise(engines):
    first = engines[0]
    print(f"{'engine':<60} {'runs':>4} {'median s':>10} {'output tok/s':>13} {'ratio':>7} {'same start':>11}")
    for e in engines:
        if not e.seconds:
            print(f"{e.label:<60} {0:>4}   did not run")
            continue
        rate = statistics.median(e.tok_s)
        ratio = f"{rate / statistics.median(first.tok_s):.3f}" if first.tok_s else "-"
        same = f"{same_start(first.tokens, e.tokens):.0%}" if first.tokens else "-"
        print(f"{e.label:<60} {len(e.seconds):>4} {statistics.median(e.seconds):>10.2f} {rate:>13.2f} {ratio:>7} "
              f"{same:>11}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("engines", nargs="+", metavar="ENGINE")
    p.add_argument("--job", choices=list(MODEL), default="ram")
    p.add_argument("-o", "--output", required=True, help="CSV; rows are appended")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--rows", type=int, default=64)
    p.add_argument("--new", type=int, default=64, help="tokens generated per row [64]")
    p.add_argument("--prompt-len", type=int, default=32, help="of the stream job [32]")
    p.add_argument("--data", default=os.path.join(peer.TREE, "tests/data/prompts.jsonl"),
                   help="chat rows of the ram job [64 of tests/data]")
    p.add_argument("--limit-mib", type=int, help="memory limit of every run; 0: none [ram 0, stream 2560]")
    a = p.parse_args()
    if a.repeat < 1 or a.rows < 1 or a.new < 1 or a.prompt_len < 1:
        p.error("--repeat, --rows, --new, --prompt-len: at least 1")
    if a.limit_mib is None:
        a.limit_mib = LIMIT_MIB[a.job]
    return a


def main():
    a = arguments()
    engines = [Engine(words, MODEL[a.job]) for words in a.engines]
    for e in engines:
        e.prepare()
    with tempfile.TemporaryDirectory() as work:
        job, out = os.path.join(work, "job.jsonl"), os.path.join(work, "out.jsonl")
        job_write(job, chat_ids(a) if a.job == "ram" else random_ids(a), a.new)
        for turn in range(a.repeat):
            for e in engines:
                peer.say(f"peers: turn {turn + 1} of {a.repeat}: {e.label}")
                if a.limit_mib:
                    drop_cache(e.files)
                row = e.run(job, out, a.limit_mib)
                if row:
                    row_append(a.output, row)
    summarise(engines)
    return 0 if all(e.seconds for e in engines) else 1


if __name__ == "__main__":
    sys.exit(main())
