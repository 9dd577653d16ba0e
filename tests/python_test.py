#!/usr/bin/env python3
"""The Python package: python_test.py [SLUICE] [--only PART]

Rows of `whatif` are held against `plan` with the same flags; what models generate and score against `run` and `score`. A model with
pseudo-random weights, a tiny one with a tokenizer, and a machine that is a file.
"""
import json
import math
import os
import resource
import re
import signal
import subprocess
import sys
import threading

from matplotlib.figure import Figure

import trial
from trial import from_full, pick

TREE = os.path.dirname(trial.HERE)
sys.path.insert(0, os.path.join(TREE, "engine", "python"))
from sluice import Error, Model, run, whatif

sys.path.insert(0, os.path.join(trial.HERE, "goldens"))
import tiny

RAM = {"mem_ram": "96M", "threads": 1}

JOB = {"prompt_len": 400, "gen_len": 32, "num_prompts": 24}
RATES = {"nvme_read": "3e8", "nvme_write": "2e8", "ram_read": "2e10", "matmul_flops": "1e12", "step_s": "1e-5", "threads": "2", "ram": "52428800",
         "disk": "1073741824", "attend_f32": "9e9", "attend_bf16": "6e9", "attend_q8": "5e9", "attend_q4": "1.5e9", "attend_mixed": "1.2e9"}


def bed(place):
    """The flags of a job on a machine that is a file; the package's program and cache are those of the test."""
    os.environ.update({k: v for k, v in place.env.items() if k.startswith("SLUICE_")}, SLUICE_PROGRAM=place.binary,
                      SLUICE_LIBRARY=os.path.join(TREE, "build", "libsluice.so.0"))
    return {**JOB, "machine": place.write("here.cfg", "".join(f"{k} = {v}\n" for k, v in RATES.items()).encode())}


def words(flags):
    return [w for k, v in flags.items() for w in ("--" + k.replace("_", "-"), *(str(v).split() if k == "percent" else [str(v)]))]


def same(tally, place, row, flags, what):
    """A row is what the program says with its flags."""
    done = place.sluice("plan", "-q", "-m", place.model, *words(flags), "--json", "--no-advice")
    if done.code == 4:
        tally.check(done.last() == "sluice: error: " + row["why"] and row["tokens_per_s"] is None, f"{what}: {row}, plan says {done.last()!r}")
        return
    if not tally.check(done.code == 0 and row["why"] == "", f"{what}: exit {done.code}: {done.last()!r}; {row}"):
        return
    said = json.loads(done.out)
    want = {**{k: said["plan"][k] for k in ("batch", "batches", "weights_resident", "prefill_tokens")},
            **{k + "_mib": said["bytes"][k] / 2**20 for k in ("device", "ram", "disk")},
            **{k: said["predicted"][k] for k in ("pass_s", "job_s")},
            "tokens_per_s": said["work"]["output_tokens"] / said["predicted"]["job_s"]}
    apart = {k: (row[k], x) for k, x in want.items() if k not in flags and not math.isclose(row[k], x, rel_tol=1e-9)}
    tally.check(not apart and row["bound"] == said["predicted"]["bound"], f"{what}: {apart}")


def sweeps(tally, place, _):
    """Every combination of the lists is a row; a value that does not fit is a row as well."""
    job = bed(place)
    for swept in ({"mem_ram": ["8M", "24M", "64M"]}, {"kv_policy": ["full", "h2o"], "kv_format": ("bf16", "q8")}, {"batch": range(2, 5)},
                  {"weights_resident": ["0", "50%"]}, {"percent": ["0 50 0 100 0 100", "0 0 0 0 0 100"]})[::pick(3, 1)]:
        rows = whatif.sweep(place.model, **job, **swept)
        points = [{}]
        for flag, values in swept.items():
            points = [{**p, flag: v} for p in points for v in values]
        tally.check([{k: r[k] for k in swept} for r in rows] == points, f"{swept}: {rows}")
        for row, point in zip(rows, points):
            same(tally, place, row, {**job, **point}, f"{point}")
        tally.check(len({r["job_s"] for r in rows}) > 1, f"{swept} makes no difference: {rows}")
    text = [place.sluice("plan", "-q", "-m", place.model, *words(job), *more).out for more in ((), ("--no-advice",))]
    tally.check(text[0].startswith(text[1]) and "faster " in text[0] and "repeat " in text[1] and "faster " not in text[1], f"as text: {text}")


def advice(tally, place, _):
    """What would help is what the plan with these flags says; to look for that leaves the plan as it is."""
    job = {**bed(place), "mem_ram": "30M"}
    slow = place.write("slow.cfg", trial.read(job["machine"]).replace(b"nvme_read = 3e8", b"nvme_read = 1e7"))
    for flags, kinds in ((job, {"kv_format", "kv_policy", "weights"}), ({**job, "machine": slow, "weights_resident": 1, "num_prompts": 2000}, {"weights"})):
        found = whatif.plan(place.model, **flags, advice=True)
        plain = whatif.plan(place.model, **flags)
        tally.check({**found, "alternatives": [], "would_help": []} == plain != found, f"{flags}: with and without advice it is one plan")
        seen = set()
        for x in found["would_help"]:
            given = (x["flags"] or "").removeprefix("--").split(" --")
            more = {k.replace("-", "_"): v for k, _, v in (word.partition(" ") for word in given)}
            if not kinds & set(more):
                continue
            seen |= set(more)
            if "weights" in more:
                more["weights_codec"] = "none"  # weights that are not there cannot be tried with a codec
            want = whatif.plan(place.model, **{**flags, **more})["predicted"]["job_s"]
            tally.check(math.isclose(x["job_s"], want, rel_tol=1e-5), f"{more}: {x['job_s']} s, its plan says {want}")
        tally.check(kinds <= seen, f"never told: {kinds - seen}: {found['would_help']}")


def allows(tally, place, _):
    """The plan as asked, then the fastest first; each is what `plan` says with its flags; a combination beats its parts."""
    job = {**bed(place), "mem_ram": "30M"}
    options = ("q8", "h2o=0.2", "int8", "kv-q8")[:pick(2, 4)]
    rows = whatif.allow(place.model, [*options, "q8"], **job)
    by_name = {r["options"]: r for r in rows}
    rates = [r["tokens_per_s"] for r in rows]
    tally.check(rows[0]["options"] == "" and rates[1:] == sorted(rates[1:], reverse=True) and len(by_name) == len(rows), f"order: {list(by_name)}, {rates}")
    tally.check(set(options) <= set(by_name) and any(" + " in x for x in by_name), f"each option alone, and some together: {list(by_name)}")
    for name, row in by_name.items():
        same(tally, place, row, {**job, **row["flags"]}, name)
        parts = name.split(" + ")
        fewer = max((by_name.get(" + ".join(x for x in parts if x != y), {}).get("tokens_per_s") or 0 for y in parts), default=0)
        tally.check(math.isclose(row["times"], row["tokens_per_s"] / rates[0]) and (len(parts) == 1 or row["tokens_per_s"] >= 1.02 * fewer),
                    f"{name}: {row['tokens_per_s']} brings nothing over {fewer}")
    said = by_name["h2o=0.2"]
    tally.check(re.fullmatch(r"h2o \+\d+\.\d %", said["more_perplexity"]) and "SmolLM2" in said["measured_on"], f"measured: {said}")
    tally.check(by_name.get("int8", {}).get("more_perplexity", "") == "", "int8 over other weights is bf16, and costs nothing")
    tally.check(by_name["q8"]["more_perplexity"] == "q8 not measured" and rows[0]["more_perplexity"] == "", f"not measured: {by_name['q8']}")


def errors(tally, place, _):
    """An exception has the exit code, the sentence and the hint."""
    job = bed(place)
    for call, code, sentence in ((lambda: whatif.plan(place.model, **job, mem_ram="1M"), 4, "the budget is 1.0"),
                               (lambda: whatif.allow(place.model, ["q8"], **{**job, "mem_ram": "1M"}), 4, "the budget is 1.0"),
                               (lambda: whatif.allow(place.model, ["q5"], **job), 2, "'q5'"),
                               (lambda: whatif.sweep(place.model, **job, wings=[1, 2]), 2, "unknown flag"),
                               (lambda: whatif.sweep(place.at("none.cfg"), **job), 5, "none.cfg")):
        refused(tally, call, code, sentence)
    try:
        whatif.plan(place.model, **job, mem_ram="1M")
    except Error as e:
        tally.check(e.hint.startswith("--mem-ram ") and e.hint in e.sentence, f"hint: {e.hint!r} of {e.sentence!r}")


def chatty(place):
    """A tiny model that has a tokenizer."""
    bed(place)
    path = place.at("model")
    tiny.write_hf(path, "llama-gqa", "f32")
    tiny.write_tokenizer(path, "tokenizer.json", 1000)
    return path


def asked(n):
    return [{"prompt": " ".join(tiny.WORDS[(i + k) % len(tiny.WORDS)] for k in range(3 + i % 5)), "max_tokens": 2 + i % 7, "seed": i, "logprobs": True}
            for i in range(n)]


def rows_of(place, tally, command, model, rows):
    """What the program answers, in the order of the rows."""
    out = place.fresh()
    place.expect(tally, command, 0, command, "-q", "-m", model, "-i", place.rows("asked.jsonl", rows), "-o", out, *words(RAM))
    return [json.loads(line) for line in trial.read(out).splitlines()]


def generates(tally, place, _):
    """Each row is that of `sluice run`, in any order; a prompt has four forms; a row that fails is one row."""
    path, rows = chatty(place), asked(20)
    want = rows_of(place, tally, "run", path, rows)
    with Model(path, **RAM) as model:
        found = list(model.generate(rows))
        tally.check(sorted(r.index for r in found) == list(range(20)), f"each row once: {[r.index for r in found]}")
        for r in found:
            w = want[r.index]
            tally.check((r.text, list(r.token_ids), r.finish_reason, r.n_prompt, r.error) ==
                        (w["text"], w["token_ids"], w["finish_reason"], w["usage"]["prompt_tokens"], None), f"row {r.index}: {r}, run says {w}")
            tally.check(len(r.logprobs) == len(r.token_ids) and str(r.logprobs.dtype) == "float32", f"row {r.index}: {r.logprobs!r}")
        ids = json.loads(place.sluice("tokenize", "-m", path, stdin=json.dumps({"text": rows[0]["prompt"]}) + "\n").out)["ids"]
        same_prompt = [rows[0]["prompt"], ids, {"prompt": rows[0]["prompt"]}]
        texts = [r.text for r in model.generate(same_prompt, max_tokens=5, temperature=0)]
        tally.check(len(texts) == 3 and len(set(texts)) == 1, f"text, ids and a row are one prompt: {texts}")
        bad = {r.index: r for r in model.generate(["a", {"prompt": "a", "max_tokens": -1}, "b"], max_tokens=2)}
        tally.check([bad[i].error is None for i in range(3)] == [True, False, True] and "max_tokens" in bad[1].error.sentence, f"a bad row: {bad}")
        first = next(iter(model.generate(asked(300))))
        tally.check(not first.error and [r.error for r in model.generate(rows[:2])] == [None, None], "a loop that is left stops; the model goes on")
        plan = model.plan(num_prompts=10, prompt_len=16, gen_len=8)
        tally.check(plan["work"]["rows"] == 10 and plan["predicted"]["job_s"] > 0, f"plan: {plan}")
        left = model.generate(asked(300))  # more rows than can end before the model is closed
        next(left)
        refused(tally, lambda: model.score("a", "b"), 2, "busy")
    refused(tally, lambda: list(left), 75, "closed")
    refused(tally, lambda: list(model.generate(rows)), 2, "closed")
    refused(tally, lambda: Model(place.at("none"), **RAM), 5, "none")
    refused(tally, lambda: Model(path, wings=2), 2, "wings")
    refused(tally, lambda: Model(path, mem_ram="1M").plan(prompt_len=8), 4, "--mem-ram")


def refused(tally, call, code, sentence):
    try:
        tally.check(False, f"no error: {call()}")
    except Error as e:
        tally.check(e.code == code and sentence in e.sentence, f"{e.code}: {e.sentence!r}, want {code} and {sentence!r}")


def scores(tally, place, _):
    """Sums are those of `sluice score`, of texts and of ids; a failed row raises where one row was asked for."""
    path = chatty(place)
    pairs = [(tiny.WORDS[i], " " + tiny.WORDS[i + 1]) for i in range(6)]
    want = rows_of(place, tally, "score", path, [{"context": a, "continuation": b} for a, b in pairs])
    with Model(path, **RAM) as model:
        for r in model.scores(pairs):
            w = want[r.index]
            tally.check(math.isclose(r.logprob, w["logprob"], rel_tol=1e-5) and math.isclose(float(r.logprobs.sum()), r.logprob, rel_tol=1e-5)
                        and r.is_greedy == w["is_greedy"], f"{pairs[r.index]}: {r}, score says {w}")
        one = model.score([5, 6, 7], [8, 9])
        tally.check(one.token_ids == (8, 9) and len(one.logprobs) == 2, f"ids: {one}")
        refused(tally, lambda: model.score([5], [10 ** 6]), 3, "")


CHAT = ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content }};"
        "{% endfor %}{% if add_generation_prompt %}<{{ who or 'assistant' }}>{% endif %}")


def texts(tally, place, _):
    """Text, ids and prompts are those of `sluice tokenize`; what goes wrong says so."""
    path = chatty(place)
    place.write("model/chat_template.jinja", CHAT.encode())

    def tokenized(row, *words):
        return json.loads(place.sluice("tokenize", "-m", path, *words, stdin=json.dumps(row) + "\n").out)

    with Model(path, **RAM) as model:
        for text in ("", "a b", "d\u00e9j\u00e0 vu <s> \U0001f600\0", " ".join(tiny.WORDS) * 50):
            for special in (True, False):
                ids = model.encode(text, add_special_tokens=special)
                tally.check(ids == tokenized({"text": text, "add_special_tokens": special})["ids"], f"{text[:40]!r} {special}: {ids}")
            tally.check(model.decode(ids) == tokenized({"ids": ids}, "--decode")["text"] == text, f"{text[:40]!r}: back {model.decode(ids)!r}")
        tally.check(model.decode([1, 5, 2]) == "<s>" + model.decode([5], skip_special_tokens=True) + "</s>"
                    and model.decode([1, 5, 2], skip_special_tokens=True) == model.decode([5]), "special tokens left out")
        tally.check((model.bos_token_id, model.eos_token_id, model.context_length) == (1, 2, 512), f"{vars(model)}")
        hi = [{"role": "user", "content": "hi"}]
        want = tokenized({"messages": hi})
        tally.check(model.apply_chat_template(hi, add_generation_prompt=True, tokenize=False) == want["text"] == "<user>hi;<assistant>", f"{want}")
        tally.check(model.apply_chat_template(hi, add_generation_prompt=True) == want["ids"], "ids of a prompt")
        tally.check(model.apply_chat_template(hi, tokenize=False) == "<user>hi;", "no generation prompt")
        tally.check(model.apply_chat_template(hi, add_generation_prompt=True, tokenize=False, who="bot") == "<user>hi;<bot>", "a variable")
        refused(tally, lambda: model.apply_chat_template([{"role": "system", "content": ""}]), 2, "no system")
        refused(tally, lambda: model.apply_chat_template([{"role": "user"}]), 2, "messages[0].content")
        refused(tally, lambda: model.apply_chat_template(hi, [{"type": "function"}]), 2, "tools")
        for bad in (10**6, -1, 2**32 + 5):
            refused(tally, lambda bad=bad: model.decode([5, bad]), 2, "ids[1]")
        rows = model.generate(asked(4))
        next(rows)
        refused(tally, lambda: model.encode("a"), 2, "busy")
        rows.close()
        tally.check(model.encode("a"), "a loop that is left frees the model")
    refused(tally, lambda: model.encode("a"), 2, "closed")
    with Model(place.model, **RAM) as model:
        tally.check(model.bos_token_id is None and model.eos_token_id is None and model.context_length == 512, f"{vars(model)}")
        for call in (lambda: model.encode("a"), lambda: model.decode([1]), lambda: model.apply_chat_template(hi)):
            refused(tally, call, 5, "no tokenizer")


def threads(tally, place, _):
    """Two models in two threads answer as one alone does."""
    path, rows, found = chatty(place), asked(12), [None, None]
    want = {i: r["text"] for i, r in enumerate(rows_of(place, tally, "run", path, rows))}

    def work(i):
        with Model(path, **RAM) as model:
            found[i] = [{r.index: model.decode(model.encode(r.text)) for r in list(model.generate(rows))} for _ in range(2)]

    both = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    tally.check(found == [[want, want]] * 2, f"two models: {found}")


def jobs(tally, place, _):
    """A job on files: the bytes of `sluice run`, a summary, progress; a bad row; Ctrl-C, and the same call goes on."""
    path = chatty(place)
    source, out = place.rows("in.jsonl", [*asked(40), {"prompt": 5}]), place.fresh()
    job = run(path, source, out, **RAM)
    place.expect(tally, "run", 3, "run", "-q", "-m", path, "-i", source, "-o", place.at("want"), *words(RAM))
    tally.check(trial.read(out) == trial.read(place.at("want")), "OUT is that of the program")
    tally.check(job.summary["rows"]["ok"] == 40 and job.summary["rows"]["failed"] == 1 and job.output == out, f"summary: {job.summary['rows']}")
    again = run(path, source, out, **RAM).summary
    tally.check(again["rows"] == {**job.summary["rows"], "requeued": 0} and "plan" not in again, f"the same call again finds OUT: {again}")
    refused(tally, lambda: run(path, source, out, **RAM, kv_format="q8"), 8, "")
    # Ctrl-C in a process of its own, once rows are there.
    many, out = place.rows("many.jsonl", [{"prompt": "a", "max_tokens": 200, "ignore_eos": True} for _ in range(400)]), place.fresh()
    script = f"import sluice\nsluice.run({path!r}, {many!r}, {out!r}, **{RAM!r}, progress=lambda p: print(p['output_tokens'], flush=True))"
    env = {**os.environ, "PYTHONPATH": os.path.join(TREE, "engine", "python")}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    told = child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    tally.check(told and child.returncode != 0 and "KeyboardInterrupt" in err and not os.path.exists(out), f"Ctrl-C: {child.returncode} {told!r} {err[-300:]!r}")
    job = run(path, many, out, **RAM)
    tally.check(job.summary["rows"]["ok"] == 400 and len(trial.read(out).splitlines()) == 400, f"resumed: {job.summary['rows']}")


@from_full
def streams(tally, place, _):
    """10,000 rows: memory stays flat while they go by."""
    with Model(chatty(place), **RAM) as model:
        peaks, n = [], 0
        for r in model.generate(({"prompt": "a b", "max_tokens": 1} for _ in range(10000))):
            n += not r.error
            if n in (2000, 10000):
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        tally.check(n == 10000 and peaks[1] - peaks[0] < 8 << 10, f"{n} rows, KiB at their peak {peaks}")


def example(tally, place, _):
    """The example of the package runs, twice."""
    path = chatty(place)
    for said in ("100 rows in", "complete already"):
        done = subprocess.run([sys.executable, os.path.join(TREE, "engine/python/example.py"), path, place.folder], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.path.join(TREE, "engine", "python")})
        tally.check(done.returncode == 0 and said in done.stdout and "tokens/s" in done.stdout, f"{done.stdout[-300:]} {done.stderr[-500:]}")


def figures(tally, place, _):
    """What the drawings name: axes, lanes, policies, the points that nothing beats."""
    rows = [{"mem_ram": ram, "tokens_per_s": rate, "bound": bound} for ram, rate, bound in
            (("128M", None, None), ("512M", 12.0, "nvme-read"), ("1G", 40.0, "cpu"))]
    figure = whatif.sweep_figure(rows, "mem_ram")
    axes, = figure.axes
    tally.check(isinstance(figure, Figure), "a figure of matplotlib, that draws no window")
    tally.check(list(axes.get_xticks()) == [2**27, 2**29, 2**30] and [x.get_text() for x in axes.get_xticklabels()] == ["128M", "512M", "1G"],
                f"numbers have their place: {axes.get_xticks()}")
    tally.check([x.get_text() for x in axes.get_legend().get_texts()] == ["limited by nvme-read", "limited by cpu"], "lanes are named")
    axes, = whatif.sweep_figure([{**r, "machine": f"configs/{i}.cfg"} for i, r in enumerate(rows)], "machine").axes
    tally.check([x.get_text() for x in axes.get_xticklabels()] == ["0.cfg", "1.cfg", "2.cfg"] and len(axes.patches) == 2, "words are side by side")
    # bf16: full and h2o=64; h2o=32 is as fast as h2o=64 and worse, window much worse than all that are named.
    head = "# model: m\nkv_policy,kv_budget,kv_format,perplexity,output_tok_s\n"
    points = "full,,bf16,10,50\nh2o,64,bf16,12,100\nh2o,32,bf16,13,100.5\nwindow,64,bf16,80,90\nstreaming,64,bf16,12.5,\n"
    figure = whatif.frontier_figure(place.write("frontier.csv", (head + points).encode()))
    names = [x.get_text() for x in figure.axes[0].texts]
    tally.check(names == ["h2o=64 bf16", "full bf16"] or names == ["h2o=32 bf16", "h2o=64 bf16", "full bf16"], f"named: {names}")
    many = "".join(f"h2o,{i},bf16,{10 + i / 9},{50 + i}\n" for i in range(12))
    close = whatif.frontier_figure(place.write("many.csv", (head + many).encode())).axes[0].texts
    heights = [x.xyann[1] for x in close]
    tally.check(len(close) == 12 and all(a - b > 2 for a, b in zip(heights, heights[1:])), f"names stand on each other: {heights}")
    head = "layer,head,sparsity,slots_95,top_5,top_10,top_20,power,power_r2,h2o~window,model\n"
    lines = "".join(f"{layer},{h},0.5,0.25,0.1,0.2,{0.3 + 0.1 * h},1.5,0.9,0.{layer},m\n" for layer in range(3) for h in range(2))
    panels = whatif.attention_figure(place.write("attention.csv", (head + lines).encode())).axes
    shares = panels[1].get_lines()[2]
    tally.check(len(panels) == 4 and shares.get_label() == "top_20" and all(math.isclose(y, 0.35) for y in shares.get_ydata()), "the mean over the heads of a layer")
    tally.check([x.get_label() for x in panels[3].get_lines()] == ["h2o, window"], "pairs of policies")


@from_full
def wheel(tally, place, _):
    """Installed beside no compiler: the command, and a sweep that uses the program of the wheel."""
    job = bed(place)
    made = subprocess.run([sys.executable, os.path.join(TREE, "engine/python/wheel.py"), place.at("made"), place.binary,
                           os.environ["SLUICE_LIBRARY"]], capture_output=True, text=True)
    if not tally.check(made.returncode == 0, f"wheel.py: {made.stderr[-500:]}"):
        return
    path = made.stdout.strip()
    tally.check(re.search(r"/sluice-[\d.]+-py3-none-(manylinux|linux)_\w+\.whl$", path) and os.listdir(place.at("made"))[:1], f"its name: {path}")
    venv = place.at("venv")
    installed = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True)
    bare = {"PATH": venv + "/bin", "HOME": place.folder, "SLUICE_CACHE_DIR": place.at("cache")}
    if installed.returncode == 0:
        installed = subprocess.run([venv + "/bin/pip", "install", "--no-index", "--disable-pip-version-check", path], capture_output=True, text=True, env=bare)
    tally.check(installed.returncode == 0, f"installed: {installed.stdout[-300:]} {installed.stderr[-300:]}")
    script = (f"from sluice import Model, whatif; print(*[r['job_s'] for r in whatif.sweep({place.model!r}, batch=[4, 8], **{job!r})], "
              f"len(next(Model({place.model!r}, **{RAM!r}).generate([[1, 2, 3]], max_tokens=2)).token_ids))")
    done = subprocess.run([venv + "/bin/python", "-c", script], capture_output=True, text=True, env=bare, cwd=place.folder)
    want = [str(r["job_s"]) for r in whatif.sweep(place.model, batch=[4, 8], **job)] + ["2"]
    tally.check(done.stdout.split() == want, f"a sweep, two tokens: {done.stdout!r}, want {want}: {done.stderr[-500:]}")
    done = subprocess.run([venv + "/bin/python", "-m", "lm_eval_sluice"], capture_output=True, text=True, env=bare, cwd=place.folder)
    tally.check("pip install lm_eval" in done.stderr, f"the adapter: {done.stderr!r}")
    done = subprocess.run(["sluice", "--version"], capture_output=True, text=True, env=bare, cwd=place.folder)
    tally.check(done.stdout == place.sluice("--version").out, f"the command: {done.stdout!r} {done.stderr!r}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (sweeps, advice, allows, errors, generates, scores, texts, threads, jobs, streams, example, figures, wheel)))
