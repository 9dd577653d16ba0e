#!/usr/bin/env python3
"""Evaluation through the binary: evaluate_test.py [SLUICE] [--only PART]

What bench/lm_eval_sluice.py makes of a harness's requests, row by row, and of the answers; how its jobs go on; what bench/evaluate.py
hides, asks and counts. The model is a llama of two layers whose tokens are bytes, so that every id is known here. lm_eval itself is not
needed: its place is taken by the few names that the adapter imports. (Beside the real one: bench/lm_eval_local.py.)
"""
import argparse
import csv
import json
import os
import random
import subprocess
import sys

import nth
import trial

TREE = os.path.dirname(trial.HERE)
sys.path.insert(0, os.path.join(TREE, "bench"))
import conditions  # noqa: E402
import evaluate  # noqa: E402
import evaluate_tasks as tasks  # noqa: E402
import lm_eval_local  # noqa: E402
import lm_eval_sluice  # noqa: E402
import plots  # noqa: E402
from lm_eval_sluice import Error, Sluice, SluiceLM  # noqa: E402

BOS, END = "\u0101", "\u0100"  # how the model writes its tokens 1 and 0
F32 = {"compute": "f32", "kv_format": "f32", "threads": 1, "progress": "none", "quiet": True}
CHAT = ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")


class Request:
    """What the harness gives: only its args are looked at."""

    def __init__(self, *args):
        self.args = args


def model_of(place, adds_bos=False, template=None):
    folder = place.at(f"model-{adds_bos}-{bool(template)}")
    if os.path.exists(folder):
        return folder
    nth.text_model(folder)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as f:
        tok = json.load(f)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tok["added_tokens"] = [{"id": i, "content": t, "special": True, **plain} for i, t in enumerate((END, BOS))]
    if adds_bos:
        tok["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": BOS, "type_id": 0}},
                                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                                 "pair": [], "special_tokens": {BOS: {"id": BOS, "ids": [1], "tokens": [BOS]}}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tok, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"bos_token": BOS, "eos_token": END, **({"chat_template": template} if template else {})}, f)
    return folder


def harness(place, **more):
    adds_bos, template = more.pop("adds_bos", False), more.pop("template", None)
    os.environ.update(place.env)
    return SluiceLM(model=model_of(place, adds_bos, template), jobs=place.at("jobs"), **{**F32, **more})


def rows_of(lm, command):
    """The rows of the newest job, and its answers."""
    jobs = [os.path.join(lm.sluice.jobs, n) for n in os.listdir(lm.sluice.jobs) if n.startswith(command)]
    newest = max(jobs, key=os.path.getmtime)
    return [[json.loads(x) for x in trial.read(os.path.join(newest, n)).splitlines()] for n in ("in.jsonl", "out.jsonl")]


def ids(text):
    return list(text.encode())


def own_scores(tally, place, model, pairs):
    """The same asked of the binary by hand."""
    rows = [{"custom_id": str(i), "context_ids": a, "continuation_ids": b} for i, (a, b) in enumerate(pairs)]
    out = place.fresh()
    source = place.rows("own.jsonl", rows)
    place.expect(tally, "score", 0, "score", "-m", model, "-i", source, "-o", out, "-q", "-t", "1", "--compute", "f32", "--kv-format", "f32")
    return [json.loads(x) for x in trial.read(out).splitlines()]


def likelihoods(tally, place, a):
    """Where a pair of texts is cut, what an empty context is, and which end is cut off."""
    lm = harness(place, max_length=24)
    long, text = "0123456789" * 6, "abcd" * 14 + "xy"
    asked = [("the cat", " sat"), ("the cat \n", "sat"), ("", "cat"), ("", BOS + "cat"), (long, "end"), (BOS + "a", "b")]
    want = [(ids("the cat"), ids(" sat")), (ids("the cat"), ids(" \nsat")), ([1], ids("cat")), ([1], ids("cat")),
            (ids(long)[-22:], ids("end")), ([1] + ids("a"), ids("b"))]
    got = lm.loglikelihood([Request(*pair) for pair in asked])
    rows, _ = rows_of(lm, "score")
    for (what, row, pair) in zip(asked, rows, want, strict=True):
        tally.check((row["context_ids"], row["continuation_ids"]) == pair, f"{what}: {row}, want {pair}")
    own = own_scores(tally, place, lm.sluice.model, want)
    tally.check(got == [(r["logprob"], r["is_greedy"]) for r in own], f"answers: {got}")
    tally.check(all(p < 0 for p, _ in got), f"log-probabilities: {got}")
    # A greedy continuation is called so.
    best = lm.generate_until([Request("the cat", {"max_gen_toks": 3, "until": []})])
    out = rows_of(lm, "run")[1][0]["token_ids"]
    mine = own_scores(tally, place, lm.sluice.model, [(ids("the cat"), out)])[0]
    tally.check(mine["is_greedy"] and len(out) == 3 and isinstance(best[0], str), f"greedy: {mine}")

    rolled = lm.loglikelihood_rolling([Request(text), Request("short"), Request("")])
    rows, answers = rows_of(lm, "score")
    windows = [([1], ids(text)[:24]), (ids(text)[23:24], ids(text)[24:48]), (ids(text)[33:48], ids(text)[48:]), ([1], ids("short"))]
    tally.check([(r["context_ids"], r["continuation_ids"]) for r in rows] == windows, f"windows: {rows}")
    tally.check(rolled == [sum(r["logprob"] for r in answers[:3]), answers[3]["logprob"], 0], f"rolling: {rolled}")


def with_bos(tally, place, a):
    """A tokenizer that adds BOS does so once: not to what follows a context, nor where a template wrote it."""
    lm = harness(place, adds_bos=True)
    lm.loglikelihood([Request("ab", "c"), Request("", "ab"), Request(BOS + "ab", "c")])
    rows, _ = rows_of(lm, "score")
    tally.check([(r["context_ids"], r["continuation_ids"]) for r in rows] == [([1] + ids("ab"), ids("c")), ([1], ids("ab")),
                                                                             ([1] + ids("ab"), ids("c"))], f"{rows}")
    lm.generate_until([Request("ab", {"max_gen_toks": 2})])
    tally.check(rows_of(lm, "run")[0][0]["prompt_token_ids"] == [1] + ids("ab"), "a prompt has its BOS")
    bare = harness(place, adds_bos=True, add_bos_token=False)
    tally.check(bare.encode(["ab"]) == [ids("ab")], "add_bos_token=False")
    told = json.loads(place.expect(tally, "inspect", 0, "inspect", "--json", lm.sluice.model).out)["tokenizer"]
    tally.check(told == {"bos": 1, "bos_text": BOS, "eos": 0, "eos_text": END, "adds_bos": True, "stops": [0]}, f"inspect: {told}")
    out = place.expect(tally, "tokenize", 0, "tokenize", "-m", lm.sluice.model,
                       stdin='{"text":"ab"}\n{"text":"ab","add_special_tokens":true}\n').out
    tally.check(out == '{"ids":[97,98]}\n{"ids":[1,97,98]}\n', f"tokenize: {out}")
    none = place.expect(tally, "inspect of ids only", 0, "inspect", "--json", place.model).out
    tally.check(json.loads(none)["tokenizer"] is None, "no tokenizer is null")


def generations(tally, place, a):
    """Options by their names, stops, prompts cut from the left; text as `run` gives it."""
    lm = harness(place, max_length=64, max_gen_toks=9)
    asked = [("one", {"until": ["\n", ""], "max_gen_toks": 12, "do_sample": False, "temperature": 0.7}),
             ("two", {"until": "zz", "temperature": 0.5, "do_sample": True, "top_p": 0.9}),
             ("0123456789" * 10, {"max_new_tokens": 20, "num_beams": 1}),
             ("two", {"until": "zz", "temperature": 0.5, "do_sample": True, "top_p": 0.9})]
    texts = lm.generate_until([Request(*r) for r in asked])
    rows, answers = rows_of(lm, "run")
    want = [{"prompt_token_ids": ids("one"), "temperature": 0, "max_tokens": 12, "stop": ["\n"]},
            {"prompt_token_ids": ids("two"), "temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "stop": ["zz"], "seed": 1},
            {"prompt_token_ids": ids(("0123456789" * 10)[-44:]), "temperature": 0, "max_tokens": 20},
            {"prompt_token_ids": ids("two"), "temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "stop": ["zz"], "seed": 3}]
    for row, one in zip(rows, want, strict=True):
        row.pop("custom_id")
        tally.check(row == one, f"{row}, want {one}")
    tally.check(texts == [r["text"] for r in answers] and len(texts) == 4, f"texts: {texts}")
    for what, bad in (("unknown option", {"length_penalty": 2.0}), ("beams", {"num_beams": 4}), ("no room", {"max_gen_toks": 64})):
        try:
            lm.generate_until([Request("x", bad)])
            tally.check(False, f"{what} is refused")
        except Error as e:
            tally.check(any(w in str(e) for w in (*bad, "length is 64")), f"{what}: {e}")


def chats(tally, place, a):
    """Conversations one at a time, their last message left open, and a template that knows no system message."""
    lm = harness(place, template=CHAT)
    user, said = {"role": "user", "content": "hi"}, {"role": "assistant", "content": " The sum is "}
    tally.check(lm.apply_chat_template([user]) == "<user>hi;<assistant>", "a prompt")
    open_end = lm.apply_chat_template([user, said], add_generation_prompt=False)
    tally.check(open_end == "<user>hi;<assistant> The sum is ", f"an answer that goes on: {open_end}")
    tally.check(lm.apply_chat_template([{"role": "system", "content": "s"}, user]) == "<user>hi;<assistant>", "again without system")
    more = [lm.apply_chat_template([{"role": "user", "content": f"{i}"}]) for i in range(20)]
    tally.check(more == [f"<user>{i};<assistant>" for i in range(20)], f"20 more: {more}")
    tally.check("<user>USER;" in lm.chat_template(True) and lm.chat_template(False) is None, "what tells templates apart")


def jobs_go_on(tally, place, a):
    """A job that is done costs nothing, one that was stopped goes on; what changes an answer is another job."""
    asked = [Request(f"row {i}", f" {'x' * (i % 7 + 1)}") for i in range(30)]
    lm = harness(place, mem_ram="64M")
    first = lm.loglikelihood(asked)
    tally.check(len(lm.sluice.ran) == 1 and lm.sluice.ran[0]["rows"] == 30, f"figures: {lm.sluice.ran}")
    again = harness(place, mem_ram="128M")
    tally.check(again.loglikelihood(asked) == first and not again.sluice.ran, "nothing is run twice, whatever the placement")
    h2o = harness(place, kv_policy="h2o", kv_budget=32)
    h2o.loglikelihood(asked)
    tally.check(h2o.sluice.ran and len(os.listdir(lm.sluice.jobs)) == 2, "another policy is another job")
    words = lm_eval_sluice.words_of({"kv_budget": 0.2, "kv_simulate": True, "threads": 2, "replan": None, "verbose": False, "percent": "0 5 0 0 0 9"})
    tally.check(words == "--kv-budget 0.2 --kv-simulate --threads 2 --percent 0 5 0 0 0 9".split(), f"flags to words: {words}")
    path = os.path.join(lm.sluice.model, "config.json")
    os.utime(path, ns=(1, 1))
    tally.check(harness(place).sluice.folder("score", b"") != lm.sluice.folder("score", b""), "a changed model is another job")

    rows = [{"prompt_token_ids": ids(f"{i}"), "max_tokens": 300, "temperature": 0, "ignore_eos": True} for i in range(60)]
    stopped = Sluice(lm.sluice.model, lm.sluice.jobs, **F32, time_limit=0.05, batch=4, batches=1)
    try:
        stopped.answers("run", rows)
        tally.check(False, "a job that is over time")
    except Error as e:
        tally.check("resumes" in str(e), f"stopped: {e}")
    folder = max((os.path.join(stopped.jobs, n) for n in os.listdir(stopped.jobs)), key=os.path.getmtime)
    tally.check(os.path.exists(os.path.join(folder, "out.jsonl.journal")), "what was done is kept")
    on = Sluice(lm.sluice.model, lm.sluice.jobs, **F32)
    found = on.answers("run", rows)
    tally.check(len(found) == 60 and not os.path.exists(os.path.join(folder, "out.jsonl.journal")), "it went on in its folder")
    tally.check(all(len(r["token_ids"]) == 300 for r in found), "all tokens")


def failures(tally, place, a):
    """Nothing is answered by halves."""
    lm, rows = harness(place), [{"prompt_token_ids": [5] * n} for n in (1, 600)]
    for what, words, call in (
            ("a row that fails", "context_length_exceeded", lambda: lm.sluice.answers("run", rows)),
            ("a long continuation", "length is 512", lambda: lm.loglikelihood([Request("a", "b" * 600)])),
            ("no continuation", "no token in the continuation", lambda: lm.loglikelihood([Request("a", "")])),
            ("no tokenizer", "no tokenizer", lambda: Sluice(place.model)),
            ("a flag of its own", "shard", lambda: Sluice(place.model, shard="0/2")),
            ("no model", "no such model", lambda: Sluice(place.at("none"))),
            ("a template by name", "model's own", lambda: lm.chat_template("rag")),
            ("an unknown flag", "wings", lambda: harness(place, wings=2).loglikelihood([Request("a", "b")]))):
        try:
            call()
            tally.check(False, f"{what}: no error")
        except Error as e:
            tally.check(words in str(e), f"{what}: {e}")


FAKE = {"__init__.py": "", "api/__init__.py": "",
        "api/model.py": "class LM:\n    def __init__(self):\n        self.is_harness = True\n",
        "api/registry.py": "MODELS = {}\ndef register_model(*names):\n    def put(model):\n        MODELS.update({n: model for n in names})\n"
                           "        return model\n    return put\n",
        "__main__.py": "import json, sys\nfrom lm_eval.api.registry import MODELS\ndef cli_evaluate():\n"
                       "    lm = MODELS['sluice'](**json.loads(sys.argv[1]), batch_size=1, max_batch_size=None)\n"
                       "    print(lm.is_harness, lm.max_length, lm.tokenizer_name, lm.get_model_info()['sluice_flags'])\n"}


def command_line(tally, place, a):
    """The file is a model of the harness by its name, and its command line."""
    for name, text in FAKE.items():
        path = place.at(f"fake/lm_eval/{name}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    script = os.path.join(TREE, "bench/lm_eval_sluice.py")
    args = json.dumps({"pretrained": model_of(place), "max_length": 99, "kv_policy": "h2o", "device": "cuda:0"})
    env = {**place.env, "PYTHONPATH": place.at("fake")}
    done = subprocess.run([sys.executable, script, args], capture_output=True, text=True, env=env)
    tally.check(done.returncode == 0 and done.stdout.startswith("True 99 ") and "['--kv-policy', 'h2o']" in done.stdout, f"{done}")
    if not lm_eval_sluice.HAS_HARNESS:
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=place.env)
        tally.check(done.returncode == 1 and "pip install lm_eval" in done.stderr, f"without the harness: {done}")


def local_tasks(tally, place, a):
    """The tasks of the check against hf: the same each time, with their answers in them; what may differ and what not."""
    with open(lm_eval_local.WIKITEXT, encoding="utf-8") as f:
        text = f.read()
    rows = lm_eval_local.documents(text, 12, 3)
    tally.check(rows == lm_eval_local.documents(text, 12, 3) and all(len(r) == 12 for r in rows.values()), "drawn by a seed")
    for ends, last, whole, sums in zip(*rows.values(), strict=True):
        right = f"{ends['text']} {ends['endings'][ends['label']]}"
        tally.check(whole["text"].startswith(right) and len(set(ends["endings"])) == 4, f"endings: {ends}")
        tally.check(whole["text"].startswith(f"{last['text']} {last['word']}"), f"last word: {last}")
        one, other = sums["text"].rpartition("Q: ")[2].partition(" =")[0].split(" + ")
        tally.check(int(one) + int(other) == int(sums["answer"]) and sums["text"].count("A:") == 5, f"sums: {sums}")
    lm_eval_local.write_tasks(place.at("tasks"), rows)
    tally.check(sorted(os.listdir(place.at("tasks"))) == sorted(f"{t}.{e}" for t in rows for e in ("jsonl", "yaml")), "files of the harness")
    for what, mine, theirs, want in (("rounding", [[(-700.003, False)]], [[(-700.0, False)]], (True, 0)),
                                     ("a number", [[(-7.003, False)]], [[(-7.0, False)]], (False, 0)),
                                     ("a text", [["a"], ["b"]], [["a"], ["c"]], (False, 1)), ("texts", [["a"]], [["a"]], (True, 0))):
        most, texts, may = lm_eval_local.apart(mine, theirs, 1e-3)
        tally.check((may, texts) == want, f"{what}: {most} {texts} {may}")


# ---- evaluate.py ----

# F-measures of rouge_score 0.1.2, without its stemmer; 3,000 random pairs were compared with it besides.
ROUGE = (("the cat sat on the mat", "the cat lay on a mat today", 0.615385, 0.181818, 0.615385),
         ("In 1,000 years it's the U.S. that leads", "It leads: the US, in 1000 years", 0.555556, 0, 0.222222),
         ("one two three four", "four three two one", 1, 0, 0.25), ("nothing alike", "at all", 0, 0, 0), ("", "a", 0, 0, 0),
         ("a b a b a", "a a b", 0.75, 0.333333, 0.75), ("a b", "a a a", 0.4, 0, 0.4))


def judged(tally, place, a):
    """ROUGE as its package counts it, numbers as they are meant."""
    for want, text, *values in ROUGE:
        got = tasks.rouge(want, text)
        tally.check(all(abs(got[k] - v) < 1e-6 for k, v in zip(("rouge1", "rouge2", "rougeL"), values, strict=True)), f"{text}: {got}")
    for text, want in (("so 3 + 4 = 7.\n#### 1,234", "1234"), ("It is $12.50 in all.", "12.5"), ("I have 3, no, -4.", "-4"), ("none", None),
                       ("#### 18\n\nThen 5", "18"), ("7.00", "7"), ("####", None)):
        tally.check(tasks.last_number(text) == want, f"{text!r}: {tasks.last_number(text)}")
    text = "The old town of the north was built in a year . " + "It had many houses and a wall . " * 12 + "\nshort line\n"
    rows = tasks.leads(text, 3, 1)
    tally.check(len(rows) == 1 and rows[0]["summary"].endswith("a year .") and rows[0]["text"].startswith("It had"), f"leads: {rows}")


def needles(tally, place, a):
    """Prompts of exactly their length; needles where they should be; each asked for once, and its answer behind it."""
    os.environ.update(place.env)
    sluice = Sluice(model_of(place), place.at("jobs"))
    filler = ids("Grass grows. ") * 30
    found = list(tasks.passkeys(sluice, filler, [1], [200, 300], [0, 0.5, 1], 2, 7))
    again = list(tasks.passkeys(sluice, filler, [1], [200, 300], [0, 0.5, 1], 2, 7))
    tally.check(len(found) == 12 and [c.prompt for c in found] == [c.prompt for c in again], "drawn by a seed")
    for c in found:
        text, answer = bytes(c.prompt[1:]).decode(), bytes(c.answer).decode()
        tally.check(len(c.prompt) == c.group["length"] and c.prompt[0] == 1, f"length: {len(c.prompt)}")
        tally.check(text.count(answer.strip()) == 2 and text.endswith("The pass key is") and len(answer) == 6, f"{text} -> {answer}")
        room = len(text) - len("\nWhat is the pass key? The pass key is")
        at = text.index("\nThe pass key is")
        needle = text.index("is the pass key.\n") + len("is the pass key.\n") - at
        tally.check(at == round(c.group["depth"] * (room - needle)), f"depth {c.group['depth']}: at {at}")
        tally.check(c.judge(answer + " and")["exact"] == 1 and c.judge(" 1")["exact"] == 0, "an answer is right or not")
    many = list(tasks.multi_needles(sluice, filler, [], [400], [3], 2, 7))
    tally.check(len(many) == 6 and len({bytes(c.answer) for c in many}) == 6, "each needle is asked for")
    for c in many:
        text, answer = bytes(c.prompt).decode(), bytes(c.answer).decode()
        name = text.rpartition("number of ")[2].removesuffix(" is")
        tally.check(f"\nThe number of {name} is{answer}.\n" in text and text.count("\nThe number of") == 3, f"{text} -> {answer}")
    try:
        tasks.hidden(filler, [filler], [0.5], [1], 20, 0)
        tally.check(False, "a needle that is longer than its text")
    except ValueError:
        tally.check(True, "")


def variants(tally, place, a):
    """A small evaluation: every figure, the answers of full KV as `score` gives them; the same again runs nothing."""
    os.environ.update(place.env)
    gsm = place.rows("gsm.jsonl", [{"question": f"{i} + 1?", "answer": f"It is\n#### {i + 1}"} for i in range(3)])
    short = place.rows("s.jsonl", [{"text": "A b c. " * 9, "summary": "A b."}] * 2)
    words = random.Random(1).choices("the old town had a wall . and so it was".split(), k=1500)
    text = place.write("text.txt", " ".join(words).encode())
    flags = argparse.Namespace(model=model_of(place), sluice=place.binary, jobs=place.at("jobs"), policies=["full", "window"],
                               budgets=["0.3"], formats=["f32"], tasks=evaluate.TASKS, lengths=[200], depths=[0.0, 1.0], needles=[2],
                               samples=1, seed=1, text=text, summaries=short, gsm8k=gsm, shots=1, rows=2, max_tokens=8, ppl_lengths=[64],
                               windows=3, more={k: v for k, v in F32.items() if k != "kv_format"})
    results = conditions.Results(place.at("evaluate-x.csv"), {"table": "evaluate", "model": "m"}, evaluate.COLUMNS)
    rows = evaluate.measured(flags, results)
    results.close()
    tally.check([r["task"] for r in rows[:6]] == ["passkey", "passkey", "needles", "summary", "gsm8k", "ppl"] and len(rows) == 12, f"{rows}")
    tally.check([r["cases"] for r in rows[:6]] == [1, 1, 2, 2, 2, 3], f"cases: {rows[:6]}")
    full, window = rows[:6], rows[6:]
    tally.check(all(x["logprob"] != y["logprob"] for x, y in zip(full, window)), "the policy is in every figure")
    case = next(iter(evaluate.cases_of(flags, Sluice(flags.model, flags.jobs))))
    own = own_scores(tally, place, flags.model, [(case.prompt, case.answer)])[0]
    tally.check(abs(full[0]["logprob"] - own["logprob"] / own["num_tokens"]) < 1e-6, f"{full[0]}: {own}")
    told = json.loads(place.expect(tally, "ppl", 0, "score", "-m", flags.model, "--text", text, "--prefix", "32", "--window", "64",
                                   "--limit", "3", "-q", "--compute", "f32", "--kv-format", "f32").out)
    tally.check(full[5]["ppl"] == told["ppl"], f"perplexity: {full[5]} {told}")
    before = {f: os.stat(f).st_mtime_ns for d, _, fs in os.walk(flags.jobs) for f in [os.path.join(d, x) for x in fs]}
    results = conditions.Results(place.at("evaluate-x.csv"), {"table": "evaluate", "model": "m"}, evaluate.COLUMNS)
    tally.check(evaluate.measured(flags, results) == rows, "the same figures again")
    results.close()
    tally.check(before == {f: os.stat(f).st_mtime_ns for f in before}, "and nothing was run for them")
    lines = evaluate.table(rows, flags.ppl_lengths)
    tally.check(len(lines) == 3 and lines[0].split()[:3] == ["KV", "budget", "format"] and lines[0].endswith("ppl 64"), f"{lines}")
    tally.check(lines[2].startswith("window  0.3") and len(evaluate.by_depth(rows)) == 3, f"{lines}")
    with open(place.at("evaluate-x.csv"), encoding="utf-8") as f:
        there = list(csv.DictReader(line for line in f if not line.startswith("#")))
    tally.check(len(there) == 12 and set(there[0]) == set(evaluate.COLUMNS), f"CSV: {there[:1]}")
    panels = plots.evaluate(place.at("evaluate-x.csv")).axes
    tally.check(len(panels) == 2 and [x.get_text() for x in panels[0].get_legend().get_texts()] == ["window"], "a drawing names the policies")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (likelihoods, with_bos, generations, chats, jobs_go_on, failures, command_line, local_tasks, judged,
                                       needles, variants)))
