"""What run.py measures: one function per table, TABLES names them. Each opens its CSV and fills it.

Owns: which engines with which flags, which job, which limits. Refuses: clocks, turns, searches (run.py).
"""
import csv
import json
import os
import statistics
import subprocess
import sys
import time

from conditions import TREE
import jobs
import peer
from jobs import Engine

BUDGETS = [64, 96, 128, 192, 256, 400, 640]
CODE_MIB = 24         # what sluice may use in addition to --mem-ram
KV_BYTES = 23040      # of a token of SmolLM2-135M: 30 layers, 3 heads of 64, K and V, two bytes
BATCHES = [64, 32, 16, 8, 4, 2, 1]
SMALL = "SmolLM2-135M-Instruct"
LIMIT_MIB = 2560      # of streamed
WIKITEXT = os.path.join(TREE, "tests/goldens/wikitext-sample.txt")


COLUMNS = ["kind", "case", "engine", "version", "weights", "compute", "shares", "turn", "rows", "prompt_tokens",
           "new_tokens", "shared_prompt_tokens", "batch", "status", "whole_s", "whole_tok_s", "seconds", "tok_s",
           "steady_tok_s", "load_s", "passes", "predicted_s", "roof_fraction", "roof_rates", "bound", "disk_gb_s",
           "read_gb", "read_busy", "cpu_busy", "matmul_gflops", "peak_rss_mib", "limit_mib", "disk_limit", "answer",
           "busy", "idle", "date", "flags"]


def sharing(fmt, own="", **more):
    """sluice with common prefixes of prompts computed once, and for every prompt."""
    return [Engine("sluice", f"--format {fmt}", f"{own} --share-prefixes {way}", **more) for way in ("on", "off")]


def cache_folder():
    """The folder for packs of dummy weights, on the limited disk."""
    at = os.environ.get("SLUICE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice")
    os.makedirs(at, exist_ok=True)
    return at


def held_disk(rate):
    """Checks that the limit of a disk works: if not, the table is not measured."""
    if not rate:
        return {}
    limit = f"{rate:.0f}:{cache_folder()}"
    done = subprocess.run([os.path.join(peer.HERE, "limited.py"), "--disk", limit, "true"])
    if done.returncode:
        sys.exit("run.py: the disk cannot be limited to a rate here, see above (--disk-rate 0 measures without a limit)")
    return {"disk": limit}


# ---- engines on one job ----

def ram(bench):
    a = bench.a
    rows, n_new = a.rows or 64, a.new or 64
    a.search_new = a.search_new or min(16, n_new)
    prompts = jobs.chat_ids(a.sluice, rows)
    llama = {"--repack": ["auto", "keep"], "--batch": [64, 32, 16], "--ubatch": [512, 256, 1024, 2048], "--kv": ["split", "unified"],
             "--flash": ["auto", "off"], "--kv-type": ["f16", "q8_0"]}
    openvino = {"--tokens-a-step": [1024, 256, 512, 2048], "--batch": [64, 32], "--hint": ["LATENCY", "THROUGHPUT"], "--kv": ["u8", "bf16"],
                "--group": [32, 128, 0], "--kv-gib": [0, 1]}
    engines = [*sharing("q4_1"), *sharing("q8", "--compute int8"),
               *[Engine("openvino", f"--format {f} --prefix-caching {way}", space=dict(openvino))
                 for f in ("q4_1", "q8_0") for way in ("on", "off")],
               *[Engine("llamacpp", f"--format {f} --share on", space=dict(llama)) for f in ("q4_0", "q8_0")],
               Engine("accelerate", space={"--batch": [64, 32, 16]}),
               Engine("ctranslate2", "--format int8", space={"--batch": [64, 32, 16]})]
    engines = bench.present(engines)
    bench.open(COLUMNS, job=f"{rows} chat prompts, {sum(map(len, prompts))} tokens, {n_new} new each, {SMALL}, in RAM",
               prompt_tokens=sum(map(len, prompts)), new_tokens=n_new)
    bench.in_turns(engines, lambda e, best, n: bench.job(prompts, n, f"ram{n}"), n_new, lambda e: None)


def streamed(bench):
    """Every engine on one full batch of its best size; sluice on as many rows, and on a queue."""
    a = bench.a
    queue, n_new = a.rows or 384, a.new or 32
    a.search_new = a.search_new or min(4, n_new)
    model = a.model or "llama-3b"
    one = min(64, queue)
    batches = [min(b, queue) for b in (64, 32, 128)]
    llama = {"--batch": batches, "--ubatch": [2048, 512], "--kv": ["split", "unified"], "--flash": ["auto", "off"]}
    bf12, int8 = "--mem-ram 2.3G", "--mem-ram 2.3G --kv-format q8 --compute int8"
    engines = [Engine("sluice", f"--model {model} --format {f}", own, rows=r)
               for f, own in (("bf12", bf12), ("q8", int8)) for r in (queue, one)]
    engines += [Engine("llamacpp", f"--model {model} --format bf16", space=dict(llama)),
                Engine("llamacpp", f"--model {model} --format q8_0 --repack keep", space=dict(llama)),
                Engine("accelerate", f"--model {model}",
                       space={"--batch": batches, "--cpu-mib": [1200, 800, 1500]})]
    for e in engines:
        e.case = f"{e.rows} rows" if e.rows else "a batch"
    engines = bench.present(engines)
    bench.open(COLUMNS, job=f"rows of 32 random ids, {n_new} new each; {model}; {LIMIT_MIB} MiB of memory",
               new_tokens=n_new)

    def job_of(e, best, n):
        rows = e.rows or best["--batch"]
        return bench.job(jobs.random_ids(rows, 32), n, f"stream{rows}-{n}")
    bench.in_turns(engines, job_of, n_new, lambda e: {"mib": LIMIT_MIB, "cold": True})


def chosen(a, engines):
    return [e for e in engines if a.cases in e.case]


def h2o(bench):
    a = bench.a
    rows, n_new, model = a.rows or 2000, a.new or 64, a.model or os.path.join(TREE, "configs/llama-1b.cfg")
    small = f"--mem-ram 640M --time-limit {a.time_limit}"
    evict = "--kv-policy h2o --kv-budget 0.2"
    cases = [(f"{w}, {name}", w, f"{small} {flags}") for w, compute in (("bf12", ""), ("q8", "--compute int8 "))
             for name, flags in (("KV full, in RAM", f"{compute}--mem-disk 0"),
                                 ("KV full, on NVMe", f"{compute}--mem-disk 40G"),
                                 ("h2o 0.2", f"{compute}--mem-disk 0 {evict}"))]
    engines = [Engine("sluice", f"--model {model} --format {w}", own, case=case) for case, w, own in cases]
    limits = held_disk(a.disk_rate)
    engines = bench.present(chosen(a, engines))
    bench.open(COLUMNS, job=f"rows of 128 random ids, {n_new} new each, {os.path.basename(model)}, dummy weights, --mem-ram "
               f"640M, ended after {a.time_limit}; steady from the first row that is done")
    bench.in_turns(engines, lambda e, best, n: bench.job(jobs.random_ids(rows, 2 * min(64, n_new)), n), n_new,
                   lambda e: limits)


def formats(bench):
    a = bench.a
    rows, n_new, model = a.rows or 16, a.new or 32, a.model or os.path.join(TREE, "configs/llama-1b.cfg")
    own = "--batches 1 --mem-ram 1G --weights-resident 0 --weights-codec none"
    made = [(w, c) for c, ws in (("bf16", ("bf16", "bf12", "q8", "q4")), ("int8", ("q8", "q4"))) for w in ws]
    held = held_disk(a.disk_rate)
    engines = [Engine("sluice", f"--model {model} --format {w} --batch {rows}", f"{own} --compute {c}", case=case)
               for case in (["disk held", "disk free"] if held else ["disk free"]) for w, c in made]
    engines = bench.present(chosen(a, engines))
    bench.open(COLUMNS, job=f"{rows} rows of 32 random ids, {n_new} new each, {os.path.basename(model)}, dummy weights, every "
               "layer streamed in every pass")
    bench.in_turns(engines, lambda e, best, n: bench.job(jobs.random_ids(rows, 32), n), n_new,
                   lambda e: held if e.case == "disk held" else None)


def start(bench):
    """Time to the first token, and the share of a run in RAM without computing."""
    a = bench.a
    rows, n_new = a.rows or 64, a.new or 64
    prompts = jobs.chat_ids(a.sluice, rows)
    engines = [Engine("sluice", case="1 token, files cached"), Engine("sluice", case="1 token, files not cached"),
               Engine("sluice", "--format q8", "--compute int8", case="whole job, int8"),
               Engine("sluice", case="whole job")]
    engines = bench.present(engines)
    bench.open(COLUMNS, job=f"{SMALL}: 1 prompt and 1 token; {rows} chat prompts, {n_new} new each")
    bench.in_turns(engines, lambda e, best, n: bench.job(prompts, n, "all") if "whole" in e.case
                   else bench.job(prompts[:1], 1, "one"), n_new,
                   lambda e: {"cold": True} if "not cached" in e.case else None)


# ---- budgets ----

def budget_engine(name, fmt, budget_mib, longest):
    if name == "sluice":
        return Engine("sluice", f"--format {fmt}", f"--mem-ram {budget_mib - CODE_MIB}M" +
                      (" --compute int8" if fmt == "q8" else ""))
    fit = [b for b in BATCHES if b * longest * KV_BYTES <= budget_mib * peer.MIB * 2 / 3] or BATCHES[-1:]
    large = budget_mib >= 256
    return Engine(name, f"--format {fmt}",
                  space={"--repack": ["auto", "keep"] if large else ["keep"], "--batch": fit[:3 if large else 2], "--ubatch": [512, 64] if large else [64, 512],
                         "--kv": ["split", "unified"]})


def budget(bench):
    """One row per engine and budget, over its runs; runs and tries are in a second CSV."""
    a = bench.a
    rows, n_new = a.rows or 64, a.new or 64
    a.search_new = a.search_new or min(16, n_new)
    a.timeout, a.search_timeout = min(a.timeout, 300), min(a.search_timeout, 90)
    prompts = jobs.chat_ids(a.sluice, rows)
    longest = -(-(max(map(len, prompts)) + n_new) // 256) * 256
    engines = bench.present([budget_engine(name, fmt, b, longest) for b in map(int, a.budgets.split(","))
                             for name, fmt in (("sluice", "q4_1"), ("sluice", "q8"), ("llamacpp", "q4_0"))])
    sizes = [b for b in map(int, a.budgets.split(",")) for _ in range(len(engines) // len(a.budgets.split(",")))]
    for e, mib in zip(engines, sizes):
        e.case = str(mib)
    job = f"{rows} chat prompts, {sum(map(len, prompts))} tokens, {n_new} new each, {SMALL}"
    runs = f"{os.path.splitext(a.output)[0]}.runs.csv"
    bench.open(COLUMNS, runs, job=f"{job}; every run")
    done = bench.in_turns(engines, lambda e, best, n: bench.job(prompts, n, f"budget{n}"), n_new,
                          lambda e: {"mib": int(e.case), "cold": True})
    bench.results.close()
    named = ["engine", "format", "budget_mib", "batch", "tok_s", "tok_s_min", "tok_s_max", "whole_tok_s", "runs",
             "peak_rss_mib", "status", "flags"]
    bench.open(named, job=f"{job}; output tokens/s, medians; every run and try is in {os.path.basename(runs)}")
    for e in engines:
        mine = [r for r in done if r["case"] == e.case and r["flags"] == e.label()]
        good = [r for r in mine if r["status"] == "ok"]
        row = {"engine": jobs.ENGINES[e.name], "format": e.flags[1], "budget_mib": e.case, "flags": e.label(),
               "status": "; ".join(sorted({r["status"] for r in mine})) or "no try was good"}
        if good and len(good) == len(mine):
            rates = [r["tok_s"] for r in good]
            row.update(tok_s=statistics.median(rates), tok_s_min=min(rates), tok_s_max=max(rates), runs=len(rates),
                       whole_tok_s=statistics.median(r["whole_tok_s"] for r in good), batch=good[-1]["batch"],
                       peak_rss_mib=max(r["peak_rss_mib"] for r in good))
        bench.results.add(row)


# ---- tables without jobs ----

def rows_of(text):
    """Rows of a CSV of bench/results, without comment lines."""
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def ops(bench):
    a = bench.a
    model = a.model or "configs/llama-1b.cfg"
    told = bench.idle()
    done = subprocess.run([a.sluice, "bench", "ops", "-m", model, "--csv", "--runs", str(a.turns), "--threads",
                           str(a.threads)], stdout=subprocess.PIPE, text=True, check=True, cwd=TREE)
    rows = rows_of(done.stdout)
    keys = ("isa", "threads", "compute", "roof_gflop_s", "roof_ram_gb_s")
    head = {k: rows[0][k] for k in ("command", *keys)}
    columns = [k for k in rows[0] if k not in (*head, "version", "machine", "date", "cpu")]  # those of the head: bench.open has its own
    bench.open(columns, job=head["command"], idle=told["idle"], **{k: head[k] for k in keys})
    for row in rows:
        bench.results.add(row)


def libraries(bench):
    """Needs libdnnl-dev 3 (Debian 13) and libopenblas-dev."""
    a, binary = bench.a, os.path.join(TREE, "build/matmul_libs")
    subprocess.run(["make", "-s", "-C", TREE, "build/libsluice.a"], check=True, stdout=sys.stderr)
    done = subprocess.run(["gcc", "-std=c17", "-O2", "-D_GNU_SOURCE", "-I.", "bench/peers/matmul_libs.c", "build/libsluice.a",
                           "-o", binary, "-ldnnl", "-lopenblas", "-fopenmp", *LDLIBS], cwd=TREE)
    if done.returncode:
        sys.exit("run.py: matmul_libs.c needs: apt-get install libdnnl-dev (3.x, Debian 13) libopenblas-dev")
    told = bench.idle()
    done = subprocess.run([binary, str(a.threads), str(a.turns)], stdout=subprocess.PIPE, text=True, check=True)
    rows = rows_of(done.stdout)
    bench.open(list(rows[0]), job=f"matmul_libs {a.threads} {a.turns}: best of the rounds; weights out of the caches",
               idle=told["idle"])
    for row in rows:
        bench.results.add(row)


LDLIBS = "-ljansson -lpcre2-8 -lutf8proc -luring -lhwloc -lzstd -lisal -ldl -lm -pthread".split()


def quality(bench):
    """The loss in perplexity, and the gain in speed."""
    a = bench.a
    policies = [("KV " + p, "q4_1", ["--kv-policy", p] + (["--kv-budget", "128"] if p != "full" else []), a.windows or 64)
                for p in ("full", "h2o-mean", "h2o", "streaming", "window")]
    weights = [(f"{w} {c}", w, ["--compute", c], a.windows or 16)
               for w, c in (("q4_1", "bf16"), ("q8", "bf16"), ("q8", "int8"), ("q4", "bf16"), ("q4", "int8"))]
    bench.open(["case", "weights", "compute", "ppl", "nll", "tokens", "windows", "kv", "seconds", "idle", "flags"],
               job=f"{SMALL}; windows of 1,024 tokens of {os.path.basename(WIKITEXT)}, the first 512 of each are prompt")
    for case, w, flags, windows in policies + weights:
        e, = bench.present([Engine("sluice", f"--format {w}")])
        told, begin = bench.idle(), time.monotonic()
        done = subprocess.run([a.sluice, "score", "-m", e.files[0], "--text", WIKITEXT, "--limit", str(windows), "--threads",
                               str(a.threads), "--progress", "none", "-q", *flags],
                              stdout=subprocess.PIPE, text=True, check=True)
        s = json.loads(done.stdout)
        bench.results.add({"case": case, "weights": w, "compute": flags[1] if "--compute" in flags else "bf16",
                           **{k: s[k] for k in ("ppl", "nll", "tokens", "windows")}, "kv": json.dumps(s["kv"]),
                           "seconds": time.monotonic() - begin, "idle": told["idle"], "flags": " ".join(flags)})


TABLES = {"ram": ram, "streamed": streamed, "h2o": h2o, "formats": formats, "budget": budget, "ops": ops,
          "libraries": libraries, "quality": quality, "start": start}
