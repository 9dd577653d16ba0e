#!/usr/bin/env python3
"""The command line as a contract: cli_test.py [SLUICE]

Help, exit codes, what stands on stdout and what does not, every command once on a model of two layers.
--model or $SLUICE_TEST_GGUF, or SmolLM2-135M-Instruct in the cache folder of the user, adds a real model with text.
"""
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys

import trial
from model_make import Gguf
from trial import HERE, from_full, pick, read, remove_job

COMMANDS = ("run", "gen", "score", "plan", "probe", "pack", "bench", "inspect", "tokenize")
RAM = ["--mem-ram", "128M"]
LIMIT_S = 300
# What is wrong, words of the one line that says so, and the command.
BAD_FLAGS = (
    ("unknown command", "unknown command (see sluice help)", ("wings",)),
    ("command with a wrong letter", "unknown command (did you mean inspect?)", ("inspekt",)),
    ("unknown flag", "did you mean --mem-ram?", ("run", "--mem-ramm", "1G")),
    ("flag of another command", "unknown flag", ("inspect", "--mem-ram", "1G")),
    ("flag without value", "needs", ("run", "-m")),
    ("bad size", "--mem-ram", ("run", "--mem-ram", "12Q")),
    ("bad duration", "--time-limit", ("run", "--time-limit", "3y")),
    ("one word too many", "too many", ("inspect", "a", "b", "c", "d", "e")),
    ("no model", "no model", ("tokenize",)),
    ("unknown policy", "--kv-policy: invalid value 'lru' (expected full, window, streaming, h2o, ", ("gen", "-m", "tiny.gguf", "-p", "x", "--kv-policy", "lru")),
    ("budget below sink + recent", "--kv-budget", ("gen", "-m", "tiny.gguf", "-p", "x", "--kv-policy", "h2o",
                                                   "--kv-budget", "40", "--kv-recent", "50")),
    ("unknown ISA", "--isa: invalid value 'mmx' (expected auto, amx, avx512, avx512f, avx2 or portable)", ("gen", "-m", "tiny.gguf", "-p", "x", "--isa", "mmx")),
    ("not a choice", "--io: invalid value 'aio' (expected auto, uring or threads)", ("gen", "-m", "tiny.gguf", "-p", "x", "--io", "aio")),
    ("not a switch", "--ignore-eos: invalid value 'maybe' (expected on or off)", ("run", "--ignore-eos=maybe")),
    ("bad --percent", "--percent", ("plan", "-q", "-m", "tiny.gguf", "--prompt-len", "8", "--percent", "0", "150", "0",
                                    "100", "0", "100")),
    ("absent --offload-dir", "none: offload directory: No such file", ("gen", "-m", "tiny.gguf", "-p", "x", "--offload-dir", ".,none")),
    ("zstd for several drives", "--weights-codec zstd: works with one --offload-dir only",
     ("plan", "-q", "-m", "tiny.gguf", "--prompt-len", "8", "--offload-dir", ".,..", "--weights-codec", "zstd")),
    ("absent --config", "--config", ("run", "--config", "none.cfg")),
    ("--config of a folder", "Is a directory", ("run", "--config", "."))
)
tally = trial.Tally()
check = tally.check


class Place(trial.Place):
    """With a GGUF model of two layers; paths given to the binary are relative to the folder."""

    def __init__(self, folder, binary):
        super().__init__(folder, binary, sync_s=None)
        self.model = self.write("tiny.gguf", Gguf().bytes())

    def expect(self, what, code, *args, env=None, **more):
        return super().expect(tally, what, code, *args, limit_s=LIMIT_S, **more, **(env or {}))

    def job(self, rows):
        return self.rows(os.path.basename(self.fresh("in")), rows)


def ids_row(i, n=4, **more):
    return {"custom_id": f"r{i}", "prompt_token_ids": [(7 * i + k) % 128 for k in range(1 + 5 * i)],
            "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}


def parse(what, text):
    """JSON on stdout, or a failure and an empty object."""
    try:
        return json.loads(text)
    except ValueError as e:
        check(False, f"{what}: stdout is not one JSON value ({e}): {text[:200]!r}")
        return {}


def usage(tally, p, a):
    done = p.expect("--help", 0, "--help")
    for command in COMMANDS:
        check(f"sluice {command}" in done.out, f"--help names {command}")
        one = p.expect(f"{command} --help", 0, command, "--help")
        check("--help" in one.out and not one.err, f"{command} --help is on stdout")
    done = p.expect("--version", 0, "--version")
    check(done.out.startswith("sluice ") and done.out.count("\n") == 1, f"--version: {done.out!r}")
    done = p.expect("no command", 2)
    check(not done.out and "sluice run" in done.err, "no command: the usage is on stderr")
    done = p.expect("gen -f of no file", 5, "gen", "-q", "-m", p.model, "-f", p.at("absent.txt"), "--mem-ram", "64M")
    check("absent.txt: No such file" in done.error_line(), f"gen -f of no file: {done.err!r}")
    for what, words, args in BAD_FLAGS:
        done = p.expect(what, 2, *args)
        lines = done.err.splitlines()
        check(len(lines) == 1 and lines[0].startswith("sluice: error: ") and words in lines[0] and not done.out,
              f"{what}: one line with '{words}': {done.err[-300:]!r}")
    p.write("bad.cfg", b"mem-ram = 1G\nwings = 2\n")
    done = p.expect("unknown key in --config", 2, "run", "--config", "bad.cfg")
    check("bad.cfg" in done.err and "line 2" in done.err, f"--config: {done.err!r}")


def inspect_and_pack(tally, p, a):
    done = p.expect("inspect --json", 0, "inspect", "--json", p.model)
    shape = parse("inspect --json", done.out)
    check((shape.get("dim"), shape.get("n_layers"), shape.get("vocab")) == (64, 2, 128), f"inspect --json: {shape}")
    check(len(shape.get("tensors", [])) >= 20, "inspect --json lists tensors")
    done = p.expect("inspect", 0, "inspect", p.model)
    check("128" in done.out and "packing" not in done.err, "the second use finds the pack of the first")
    p.expect("pack", 0, "pack", p.model, "-o", "f32.pack", "--weights", "f32")
    done = p.expect("inspect of a pack", 0, "inspect", "--json", "f32.pack")
    check(parse("inspect of a pack", done.out).get("dim") == 64, "a pack is a MODEL")
    done = p.expect("pack without -o", 2, "pack", p.model)
    done = p.expect("tokenize without a tokenizer", 5, "tokenize", "-m", p.model, stdin='{"text":"x"}\n')


def plan(tally, p, a):
    job = ("--prompt-len", "32", "--gen-len", "8", "--num-prompts", "16")
    done = p.expect("plan --json", 0, "plan", "-m", p.model, *job, *RAM, "--json")
    check(isinstance(parse("plan --json", done.out), dict), "plan --json is an object")
    done = p.expect("a plan that does not fit", 4, "plan", "-m", p.model, *job, "--mem-ram", "1M")
    last = done.err.splitlines()[-1]
    check(last.startswith("sluice: error: ") and "--mem-ram" in last, f"does not fit names the flag: {last!r}")
    fits = last.split("--mem-ram")[-1].strip(" )")
    p.expect(f"the size that it names ({fits}) fits", 0, "plan", "-m", p.model, *job, "--mem-ram", fits)


def run(tally, p, a):
    rows = [ids_row(i) for i in range(6)]
    source = p.job(rows)
    base = ("run", "-m", p.model, *RAM, "--progress", "none")
    done = p.expect("run", 0, *base, "-i", source, "-o", "a.jsonl", "--summary", "a.json")
    check(not done.out, f"run prints nothing on stdout: {done.out[:100]!r}")
    with open(p.at("a.jsonl"), encoding="utf-8") as f:
        out = [json.loads(line) for line in f]
    check([r.get("custom_id") for r in out] == [r["custom_id"] for r in rows], "OUT is in input order")
    for row, answer in zip(rows, out):
        check(len(answer.get("token_ids", [])) == 4 and answer.get("finish_reason") == "length" and
              answer.get("usage", {}).get("prompt_tokens") == len(row["prompt_token_ids"]), f"run: {answer}")
    with open(p.at("a.json"), encoding="utf-8") as f:
        summary = json.load(f)
    for key in ("model", "dummy_weights", "device", "plan", "rows", "prompt_tokens", "output_tokens", "startup_s",
                "elapsed_s", "passes", "output_tokens_per_s", "total_tokens_per_s", "steady_output_tokens_per_s",
                "predicted_elapsed_s", "lanes", "bound", "roofline_fraction", "peak_bytes", "kv", "version", "machine"):
        check(key in summary, f"--summary has {key}")
    check({k: summary.get("rows", {}).get(k) for k in ("total", "ok", "failed")} == {"total": 6, "ok": 6, "failed": 0},
          f"--summary rows: {summary.get('rows')}")
    check(summary.get("output_tokens") == 24, f"--summary output_tokens: {summary.get('output_tokens')}")

    bytes_a = read(p.at("a.jsonl"))
    p.expect("the same command again", 0, *base, "-i", source, "-o", "a.jsonl")
    other = p.job(rows[:3])
    done = p.expect("OUT of another job", 8, *base, "-i", other, "-o", "a.jsonl")
    check("a.jsonl" in done.err and "--overwrite" in done.err, f"exit 8 names OUT: {done.err[-300:]!r}")
    check(read(p.at("a.jsonl")) == bytes_a, "exit 8 leaves OUT alone")
    p.expect("--overwrite", 0, *base, "-i", other, "-o", "a.jsonl", "--overwrite")
    p.expect("does not fit", 4, "run", "-m", p.model, "--mem-ram", "1M", "-i", source, "-o", "b.jsonl")
    check(not os.path.exists(p.at("b.jsonl")), "a run that does not fit writes no OUT")
    p.expect("absent model", 5, "run", "-m", "none.gguf", "-i", source, "-o", "c.jsonl")
    done = p.expect("a bad row", 3, *base, "-i", p.job([rows[0], {"max_tokens": 3}]), "-o", "d.jsonl")
    p.expect("--dry-run", 0, *base, "-i", source, "-o", "e.jsonl", "--dry-run")
    check(not os.path.exists(p.at("e.jsonl")), "--dry-run writes no OUT")
    p.write("run.cfg", b"# a run\nmem-ram = 1M\nlimit = 2\nprogress = none\n")
    p.expect("--config, and the command line wins", 0, "run", "--config", "run.cfg", "-m", p.model, *RAM, "-i",
             source, "-o", "f.jsonl")
    check(read(p.at("f.jsonl")) == b"".join(bytes_a.splitlines(True)[:2]), "--limit 2: the first two rows, the same bytes")
    done = p.expect("no CUDA device", 6, *base, "-i", source, "-o", "g.jsonl", "--device", "cuda:99")
    with_cuda, p.binary = p.binary, shutil.copy(p.binary, p.at("alone"))  # no alone-cuda.so is beside it
    done = p.expect("the CUDA part is not built", 6, *base, "-i", source, "-o", "h.jsonl", "--device", "cuda")
    missing = "make cuda" if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg") else "no NVIDIA driver here"
    check(missing in done.err.splitlines()[-1], f"what is missing is not named: {done.err[-200:]!r}")
    p.binary = with_cuda


def stop_and_resume(tally, p, a):
    """SIGINT is exit 75, and the same command ends with the bytes of a run that was left alone."""
    source = p.job([ids_row(i, n=100) for i in range(1, 6)])
    base = ("run", "-m", p.model, *RAM, "--progress", "none", "-i", source)
    p.expect("the long run", 0, *base, "-o", "whole.jsonl")
    for _ in range(10):  # on a busy machine a run may be over before the signal comes
        cut = p.start([*base, "-o", "cut.jsonl"])
        cut.wait_for(lambda: os.path.exists(p.at("cut.jsonl.journal")))
        cut.signal(signal.SIGINT)
        code = cut.end(60).code
        if code != 0:
            break
        remove_job(p.at("cut.jsonl"))
    check(code == 75 and not os.path.exists(p.at("cut.jsonl")), f"SIGINT: exit {code}, want 75 and no OUT")
    p.expect("the same command resumes", 0, *base, "-o", "cut.jsonl")
    check(read(p.at("whole.jsonl")) == read(p.at("cut.jsonl")), "the bytes are those of a run that was left alone")


def score(tally, p, a):
    rows = [{"custom_id": f"s{i}", "context_ids": [1, 2, 3 + i], "continuation_ids": list(range(10, 15 + i))}
            for i in range(4)]
    p.expect("score", 0, "score", "-m", p.model, *RAM, "--progress", "none", "-i", p.job(rows), "-o", "s.jsonl")
    with open(p.at("s.jsonl"), encoding="utf-8") as f:
        out = [json.loads(line) for line in f]
    for row, answer in zip(rows, out):
        numbers = answer.get("token_logprobs", [])
        check(list(answer)[:1] == ["custom_id"] and answer["num_tokens"] == len(row["continuation_ids"]) == len(numbers)
              and abs(sum(numbers) - answer["logprob"]) < 1e-3 and max(numbers) <= 0, f"score: {answer}")


@from_full
def bench(tally, p, a):
    """bench: every op of kernels/ops.h has rows, at the shapes of -m; a CSV says where it comes from."""
    with open(os.path.join(HERE, "../kernels/ops.h")) as f:
        ops = re.findall(r"^ +X\((\w+)\)", f.read(), re.M)
    check(len(ops) >= 10, f"bench ops: kernels/ops.h lists {ops}")
    done = p.expect("bench ops --csv", 0, "bench", "ops", "--csv", "--runs", "1", "-m", p.model, "-q")
    text = done.out.encode()
    rows = list(csv.DictReader(done.out.splitlines()))
    columns = {"command", "version", "machine", "date", "isa", "threads", "compute", "roof_gflop_s", "roof_ram_gb_s"}
    check(columns <= set(rows[0]), f"bench ops --csv: columns {list(rows[0])}")
    check(rows[0]["command"].endswith(f"bench ops --csv --runs 1 -m {p.model} -q"), f"bench ops --csv: {rows[0]}")
    check(all(re.fullmatch(r'(("(""|[^"])*"|[^",]*)(,|$))+', x) for x in done.out.splitlines()), "bench ops --csv: a line that is no row")
    check({row["op"] for row in rows} == set(ops), f"bench ops: {set(ops) ^ {row['op'] for row in rows}} differ")
    for row in rows:
        good = 0 < float(row["us_min"]) <= float(row["us"]) <= float(row["us_max"]) and float(row["roof"]) > 0 and row["bound"] in ("flops", "ram")
        if row["bound"] == "pairs":  # a difference: noise alone may make it negative
            good = row["op"] == "attend_forced" and row["shape"].endswith(" scores") and math.isfinite(float(row["us"]))
        check(good and None not in row and None not in row.values(), f"bench ops --csv: {row}")
    shapes = " ".join(row["shape"] for row in rows if row["op"] == "matmul")
    for wanted in ("bf16 64x64 m=1024", "bf12 ", "q8 ", "q4 ", "q8 int8 ", "q4 int8 "):
        check(wanted in shapes, f"bench ops: no matmul {wanted}")
    shapes = " ".join(row["shape"] for row in rows if row["op"] == "attend_forced")
    for wanted in ("f32", "bf16", "q8", "q4", "mixed"):
        check(f" {wanted} h2o" in shapes, f"bench ops: no attend_forced over KV in {wanted}")
    done = p.expect("bench ops --policies", 0, "bench", "ops", "attend_forced", "--policies", "full,h2o,tova,vlen", "--csv", "--runs", "1", "-m", p.model)
    shapes = [row["shape"].split() for row in csv.DictReader(done.out.splitlines())]
    check([x[-1] for x in shapes if x[-2] == "bf16" and x[3] == "640"] == ["read", "full", "h2o", "tova", "vlen", "scores"], f"bench ops --policies: {shapes}")
    p.expect("bench ops --policies of none", 2, "bench", "ops", "--policies", "lru", "-m", p.model)
    done = p.expect("bench ops norm --json", 0, "bench", "ops", "norm", "--json", "--runs", "1", "-m", p.model)
    found = parse("bench ops --json", done.out)
    check("machine" in found and [r["op"] for r in found["rows"]] == ["norm"], f"bench ops --json: {found}")
    head = "".join(f"# {key}: {rows[0][key]}\n" for key in sorted(columns))
    at = p.write("ops-made.csv", f"# table: ops\n{head}".encode() + text)
    table = subprocess.run([sys.executable, os.path.join(HERE, "../bench/tables.py"), "--results", os.path.dirname(at),
                            "ops"], capture_output=True, text=True)
    check(table.stdout.count("\n| ") > 20 and not table.stderr, f"bench/tables.py: {table}")
    done = p.expect("bench of nothing", 2, "bench")
    check("(ops, io, copies, throughput, frontier or attention)" in done.err, f"bench of nothing: {done.err!r}")
    p.expect("bench ops of no op", 2, "bench", "ops", "add")
    job = ["bench", "throughput", "-m", p.model, *RAM, "--num-prompts", "4", "--prompt-len", "4", "--gen-len", "2", "--compare"]
    done = p.expect("--compare", 0, *job, "--batch 2 --batches 1; auto;--percent 0 100 0 100 0 100 --batch 3;--mem-ram 1M", "--csv")
    rows = list(csv.DictReader(done.out.splitlines()))
    said = ["auto", "--batch 2 --batches 1", "--percent 0 100 0 100 0 100 --batch 3", "--mem-ram 1M"]
    check([row["flags"] for row in rows] == said and [row["batch"] for row in rows[1:]] == ["2", "3", ""], f"--compare: {done.out!r}")
    for i, row in enumerate(rows[:3]):
        rate, own, predicted = (float(x) for x in (row["measured_tok_s"], rows[0]["measured_tok_s"], row["predicted_tok_s"]))
        check(math.isclose(float(row["times_auto"]), rate / own, rel_tol=1e-4) and row["why"] == "", f"--compare: {row}")
        check(math.isclose(float(row["error_percent"]), 100 * (predicted / rate - 1), rel_tol=1e-3, abs_tol=1e-3), f"--compare: {row}")
        check(f"{i + 1} of 4: {row['flags']}: " in done.err, f"--compare: progress {done.err!r}")
    check(rows[3]["measured_tok_s"] == "" and "--mem-ram" in rows[3]["why"], f"--compare, what does not fit: {rows[3]}")
    found = parse("--compare --json", p.expect("--compare --json", 0, *job, "--batch 2", "--json", "-q").out)
    check([row["flags"] for row in found["rows"]] == ["auto", "--batch 2"] and found["model"], f"--compare --json: {found}")
    for bad, words in (("4", "4: one word too many"), ("--batchs 4", "--batch?"), ("--csv", "'--csv'"), ("--batch", "needs"), ("auto;--batch x", "--batch")):
        done = p.expect(f"--compare {bad}", 2, *job, bad)
        check(words in done.err and "--compare" in done.err and not done.out, f"--compare {bad}: {done.err!r}")


@from_full
def real_model(tally, p, a):
    """Text in and out, with SmolLM2."""
    model = a.model
    if not os.path.exists(model):
        tally.skip("text commands: no SmolLM2 (tests/model.sh fetches it, --model names it)")
        return
    texts = ["Hello, world", " two  spaces", "naïve café 東京 🙂", "a\nb\tc", ""]
    done = p.expect("tokenize", 0, "tokenize", "-m", model, stdin="".join(json.dumps({"text": t}) + "\n" for t in texts))
    check(len(done.out.splitlines()) == len(texts), "tokenize: a line for a line")
    back = p.expect("tokenize --decode", 0, "tokenize", "-m", model, "--decode", stdin=done.out)
    check([parse("decode", x).get("text") for x in back.out.splitlines()] == texts, f"round trip: {back.out!r}")
    done = p.expect("tokenize of messages", 0, "tokenize", "-m", model,
                    stdin='{"messages":[{"role":"user","content":"Hi"}]}\n')
    check("<|im_start|>user\nHi<|im_end|>" in parse("messages", done.out).get("text", ""), f"chat: {done.out!r}")
    for bad in ("1.5", '"a"', "true", "null", "[5]", "-1", "49152", "99999999999"):
        done = p.expect(f"tokenize --decode of {bad}", 3, "tokenize", "-m", model, "--decode",
                        stdin='{"ids":[28120]}\n{"ids":[28120,%s,905]}\n' % bad)
        good, error = [parse(bad, x) for x in done.out.splitlines()]
        check(good.get("text") and error.get("error", {}).get("line") == 2 and "ids[1]" in error["error"]["message"],
              f"tokenize --decode of {bad}: {done.out!r}")
    done = p.expect("add_special_tokens of 5", 3, "tokenize", "-m", model, stdin='{"text":"a","add_special_tokens":5}\n')
    check("add_special_tokens" in done.out, f"add_special_tokens of 5: {done.out!r}")
    done = p.expect("tokenize of nonsense", 3, "tokenize", "-m", model, stdin="{}\n")
    flags = ("--mem-ram", "512M", "--temperature", "0", "-n", "12")
    done = p.expect("gen", 0, "gen", "-m", model, "-p", "The capital of France is", *flags)
    check("Paris" in done.out, f"gen: {done.out!r}")
    for args in (("gen", "-q", "-m", model, "-p", "The", *flags), ("tokenize", "-m", model)):
        p.expect(f"{args[0]}, stdout closed", 9, *args, stdin='{"text":"a"}\n', wrapper=["sh", "-c", 'exec "$@" >&-', "sh"])
    again = p.expect("gen -f", 0, "gen", "-q", "-m", model, "-f",
                     p.write("p.txt", b"The capital of France is"), *flags)
    check(again.out == done.out, f"gen -f: {again.out!r}")
    done = p.expect("gen of an endless file", 4, "gen", "-q", "-m", model, "-f", "/dev/zero", "--mem-ram", "64M")
    check(done.rss < 88 << 20 and "--mem-ram" in done.err, f"gen of an endless file: {done.rss} bytes, {done.err!r}")
    check(not again.err, f"gen -q prints nothing but text: {again.err!r}")
    done = p.expect("gen --chat", 0, "gen", "-m", model, "--chat", "-p", "What is the capital of France?", *flags)
    check("Paris" in done.out, f"gen --chat: {done.out!r}")
    with open(os.path.join(HERE, "goldens/wikitext-sample.txt"), "rb") as f:
        p.write("t.txt", f.read(20000))
    done = p.expect("score --text", 0, "score", "-m", model, "--mem-ram", "512M", "--text", p.at("t.txt"),
                    "--prefix", "32", "--window", "128", "--limit", "3")
    answer = parse("score --text", done.out)
    check(answer.get("windows") == 3 and answer.get("tokens") == 288 and 5 < answer.get("ppl", 0) < 200,
          f"score --text: {answer}")


def shapes(tally, p, a):
    """What the comments in configs/ say of a model is what inspect prints.

    Both figures grow by the same amount with every layer after the dense ones, so two small copies of a config
    tell those of all its layers: inspect makes every number of a model to choose its format, and that of 30 G takes minutes.
    """
    configs = os.path.join(os.path.dirname(HERE), "configs")
    n = 0
    for name in sorted(x for x in os.listdir(configs) if x.endswith(".cfg"))[::pick(3, 1)]:
        text = read(os.path.join(configs, name)).decode()
        layers = re.search(r"^layers = (\d+)", text, re.M)
        if not layers:
            continue
        n += 1
        said = re.search(r"^# ([\d.]+) G parameters; K and V of a token take ([\d,]+) bytes in bf16\.$", text, re.M)
        found = []
        dense = re.search(r"^dense_layers = (\d+)", text, re.M)
        period = 4 if "state_v_heads" in text else 6 if "wide_head_dim" in text else 1  # layers of two kinds, in this order
        least = int(dense[1]) + 1 if dense else period
        shares = "kv_own_layers" in text  # so that the last layers are not as the first ones
        for few in (int(layers[1]),) if shares else (least, least + period):
            p.write(name, re.sub(r"^layers = \d+", f"layers = {few}", text, flags=re.M).encode())
            done = p.expect(f"inspect {name}, {few} layers", 0, "inspect", name)
            got = re.search(r"(\d+) parameters\n(?s:.*)KV (\d+) bytes a token in bf16", done.out)
            found.append([int(x) for x in got.groups()] if got else [0, 0])
        params, kv = found[0] if shares else (x + (int(layers[1]) - least) // period * (y - x) for x, y in zip(*found))
        check(said and f"{params / 1e9:.2f}" == said[1] and f"{kv:,}" == said[2],
              f"{name}: its comment says {said and said.groups()}, inspect {params} and {kv}")
    check(n >= pick(2, 6), f"{n} model shapes in configs/")


def planned(tally, p, a):
    """Every shape of configs/ has a plan on a card that it does not fit, or a line that says what it needs."""
    configs = os.path.join(os.path.dirname(HERE), "configs")
    machine = os.path.join(configs, "machine-t4.cfg")
    for name in sorted(x for x in os.listdir(configs) if x.endswith(".cfg"))[::pick(6, 1)]:
        path = os.path.join(configs, name)
        if re.search(r"^family = ", read(path).decode(), re.M):
            done = p.sluice("plan", "-m", path, "--weights", "q4", "--machine", machine, "--prompt-len", 64, "--gen-len", 16,
                            "--num-prompts", 100, "--no-advice")
            check(done.code == 0 or (done.code == 4 and "the smallest plan needs" in done.err),
                  f"plan of {name}: exit {done.code}: {done.err[-300:]}")


def dummy(tally, p, a):
    """A model config: only what the plan streams is written, and it shows neither in OUT nor in the next run."""
    text = ("family = llama\ndim = 256\nlayers = 6\nheads = 4\nffn = 1024\nvocab = 9000\ncontext = 256\n")
    model, rows = p.write("small.cfg", text.encode()), p.job([ids_row(i) for i in range(4)])
    cache, outs = p.at("dummies"), []

    def walk(name, resident, more=0):
        out = p.at(name)
        p.expect(f"dummy, {resident} resident", 0, "run", "-m", model, *RAM, "-i", rows, "-o", out, "--progress",
                 "none", "--weights-resident", resident, env={"SLUICE_CACHE_DIR": cache})
        outs.append(read(out))
        packs = [os.path.join(cache, x) for x in os.listdir(cache) if x.endswith(".pack")]
        check(len(packs) == 1, f"dummy: one pack, not {packs}")
        return os.stat(packs[0]).st_size, os.stat(packs[0]).st_blocks * 512

    whole, none = walk("all.jsonl", "100%")
    _, some = walk("some.jsonl", "6")
    _, every = walk("none.jsonl", "0")
    _, again = walk("again.jsonl", "100%")
    layer = whole / 8  # six layers and the slices of the head, each as large as one
    check(none < 0.5 * layer, f"dummy: resident layers stay in memory: {none} of {whole} bytes on disk")
    check(0.5 * layer < some < 4 * layer, f"dummy: what the plan streams is written: {some} of {whole} bytes")
    check(some < every <= whole + 65536, f"dummy: another plan adds layers: {every} of {whole} bytes")
    check(again == every, f"dummy: a plan that needs none adds none: {again}, was {every}")
    check(len(set(outs)) == 1, "dummy: OUT depends on what was streamed")
    p.expect("dummy, packed by hand", 0, "pack", model, "-o", p.at("small.pack"))
    p.expect("dummy, from the whole pack", 0, "run", "-m", p.at("small.pack"), *RAM, "-i", rows, "-o", p.at("hand"))
    check(read(p.at("hand")) == outs[0], "dummy: OUT of the whole pack differs")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (usage, inspect_and_pack, plan, run, stop_and_resume, score, shapes, planned, dummy,
                                       bench, real_model), lambda folder, a: Place(folder, a.sluice), tally))
