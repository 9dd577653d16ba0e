"""The cases of oracle.py: jobs, texts, plans and bad input, so many that hardly a line of the program is left out.

Owns: which cases there are, by group; what they pin so that two recordings of one program are equal (rates, memory, threads,
instruction set); the random checkpoints, which need numpy and gguf. Refuses: running them. Most are those of other tests:
their models, flags and damaged files, looked at from another side.
"""
import collections
import glob
import hashlib
import json
import os
import re
import shutil
import sys

import bad_input_test as bad
import cli_test
import kill_test
import nth
import placement_test as placed
import sim_run_test as sim
import trial
from model_make import Gguf, hf

ROOT = os.path.dirname(trial.HERE)
WORK = os.path.join(ROOT, "build/oracle")

# A step runs the binary once in the folder of its case, where configs/ and models/ are too; args may be a function of the
# folder instead. outs: the files whose bytes are its OUT.
Step = collections.namedtuple("Step", "name args outs env stdin", defaults=((), {}, None))
# make(folder): writes the files of the case, before its first step.
Case = collections.namedtuple("Case", "group name steps make", defaults=(None,))
MACHINE = ["--machine", "configs/machine-t4.cfg", "--mem-ram", "256M", "--mem-disk", "8G", "-t", "1", "--replan", "off", "--progress", "none"]
CPU = ["--isa", "avx2", "--device", "cpu", "--mem-ram", "256M", "-t", "1"]


# ---- cases: jobs ------------------------------------------------------------------------------------

def writes(**files):
    """A make(folder) that writes these; dots in names as __."""
    def make(folder):
        for name, data in files.items():
            with open(os.path.join(folder, name.replace("__", ".")), "wb") as f:
                f.write(data if isinstance(data, bytes) else data.encode())
    return make


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def pairs(n, vocab):
    """Rows of `score`."""
    rows = [row["prompt_token_ids"] for row in trial.job_rows(3 * n, 8, vocab) if len(row["prompt_token_ids"]) > 20]
    return jsonl({"custom_id": f"p{i}", "context_ids": ids[:9 + i], "continuation_ids": ids[9 + i:]} for i, ids in enumerate(rows[:n]))


def job(command, model, flags, name=None, outs=("out.jsonl",), rows="in.jsonl", env=None):
    base = ["--isa", "avx2"] if "--isa" not in flags else []
    base += ["--device", "cpu"] if "--device" not in flags else []
    # How fast zstd is, is measured whatever --machine says: -q leaves out the plan that follows from it.
    base += ["-q"] if "zstd" in flags else ["--weights-codec", "none"] if "--weights-codec" not in flags else []
    return Step(name or command, [command, "-m", model, "-i", rows, "-o", "out.jsonl", *MACHINE, *base, *flags], outs, env or {})


def family_cases(_):
    """Random checkpoints of every family and format: packed, described, run, scored."""
    make = writes(in__jsonl=jsonl(trial.job_rows(6, 5, 290, 60, (6, 12))), score__jsonl=pairs(3, 290))
    for path in sorted(os.listdir(os.path.join(WORK, "models"))):
        f32 = [] if "bf16" in path else ["--compute", "f32"]
        yield Case("family", path, [
            Step("pack", ["pack", "-q", f"models/{path}", "-o", "m.pack"], ["m.pack"]), Step("inspect", ["inspect", "m.pack"]),
            job("run", "m.pack", f32), job("score", "m.pack", [*f32, "--overwrite"], rows="score.jsonl")], make)


# Models of pseudo-random weights whose shapes the tests use.
MODELS = {"llama": placed.LLAMA, "opt": placed.OPT, "gpt_oss": trial.OSS, "gemma2": sim.GEMMA2, "two kinds": trial.TWO_KINDS}


def on(model, rows=8, tokens=(8, 16)):
    """The files of a job of one of MODELS."""
    return writes(m__cfg=MODELS[model], in__jsonl=jsonl(trial.job_rows(rows, 3, 1500, 100, tokens)), score__jsonl=pairs(4, 1500))


def kv_cases(place):
    """Every policy in several formats and scopes; what is kept and evicted is part of OUT."""
    formats = ("bf16", "q8", "q4", "mixed", "f32")
    for i, policy in enumerate(place.policies()):
        for k in range(3):
            flags = ["--kv-policy", policy, "--kv-budget", ("40", "0.5", "64")[k], "--kv-format", formats[(i + 2 * k) % 5]]
            flags += [[], ["--kv-scope", "layer"], ["--compute", "f32"]][k]
            model = ("llama", "opt", "gpt_oss", "gemma2")[(i + k) % 4]
            yield Case("kv", f"{policy} {model} {' '.join(flags[2:])}", [
                job("run", "m.cfg", [*flags, "--kv-dump", "kept.jsonl"], outs=("out.jsonl", "kept.jsonl")),
                job("score", "m.cfg", [*flags, "--overwrite"], rows="score.jsonl")], on(model))
    for name, flags in (("simulated", ["--kv-simulate"]), ("slots", ["--kv-positions", "slot"]), ("pyramid", ["--kv-budget-layers", "pyramid"]),
                        ("of the prompt", ["--kv-budget-of", "prompt", "--kv-recent", "0.1", "--kv-sink", "2"]), ("trace", ["--kv-trace", "kept.txt"])):
        yield Case("kv", name, [job("run", "m.cfg", ["--kv-policy", "h2o", "--kv-budget", "0.5", *flags], outs=("out.jsonl", "kept.txt"))], on("llama"))


def place_cases(_):
    """Where bytes are, in what portions work is done: the placements and policies of placement_test."""
    for policy, flags in placed.POLICIES.items():
        every = placed.PLACEMENTS if policy == "full" else placed.FEW[1::2]
        for name in every:
            yield Case("place", f"{policy}, {name}", [job("run", "m.cfg", [*flags, *placed.PLACEMENTS[name]])], on("llama"))
    for model in MODELS:
        for name in placed.FEW:
            yield Case("place", f"{model}, {name}", [job("run", "m.cfg", placed.PLACEMENTS[name])], on(model))
    for flags in ([], ["--mem-ram", "1M"], ["--mem-ram", "40M"], ["--mem-disk", "0"], ["--share-prefixes", "off"]):
        yield Case("place", " ".join(["auto", *flags]), [job("run", "m.cfg", flags)], on("two kinds"))


def compute_cases(_):
    """Instruction sets, number formats of weights and of matmuls; packs of every format."""
    for model in MODELS:
        for weights in ("auto", "f32", "f16", "q8", "q4"):
            steps = [Step("pack", ["pack", "-q", "m.cfg", "-o", "m.pack", "--weights", weights], ["m.pack"])]
            steps += [job("run", "m.pack", ["--compute", compute, "--isa", isa, "--overwrite"], f"{isa} {compute}")
                      for isa in ("avx2", "avx512", "amx") for compute in ("bf16", "f32", "int8")]
            yield Case("compute", f"{model} {weights}", steps, on(model, 4))
    small, one = nth.TINY, jsonl(nth.rows(2, 4, (2, 3)))
    for flags in (["bf16"], ["f32"], ["int8", "--weights", "q4"]):
        yield Case("compute", f"portable {flags[0]}", [job("run", "m.cfg", ["--isa", "portable", "--compute", *flags])],
                   writes(m__cfg=small, in__jsonl=one))


def device_cases(place):
    """A device whose memory the host cannot touch (tests/sim_device.c, of the binary's own tree)."""
    so = os.path.join(os.path.dirname(place.binary), "build/tests/sim_device.so")
    for i, (kind, flags) in enumerate(sim.KINDS.items()):
        for k, places in enumerate((["--percent", "100", "0", "100", "0", "100", "0"], ["--percent", "30", "30", "0", "50", "0", "50", "--attn", "cpu"],
                                    ["--percent", "0", "0", "0", "0", "0", "0", "--batch", "3", "--batches", "2"])):
            more = [*flags, *places, "--device", f"{so}:{i + k},20,0,{48 << 20}", "--mem-device", "16M"]
            yield Case("device", f"{kind}, {' '.join(places)}", [job("run", "m.cfg", more)], on(("llama", "opt", "gemma2")[(i + k) % 3], 5))


def job_cases(_):
    """Jobs that are killed, cut, limited, sharded, retried: how they end, and what `status` says between."""
    files = writes(m__cfg=nth.TINY, in__jsonl=jsonl(nth.rows(10, 3)), short__jsonl=jsonl(nth.rows(5, 9)),
                   bad__jsonl='{"max_tokens":3}\n[]\n' + jsonl(nth.rows(2, 1)))
    flags, (status, ended) = ["--io", "threads", "--batch", "3", "--batches", "2"], (Step(x, ["status", "out.jsonl"]) for x in ("status", "status at the end"))
    for name, setting in kill_test.SETTINGS.items():
        for i, act in enumerate(("kill-before,rename,1,0,*.jsonl.tmp", "kill-after,fdatasync,3,0,*.jsonl.journal",
                                 "kill-torn,pwrite,2,0,*.jsonl.partial", "kill-before,fdatasync,9,0,*.jsonl.journal")):
            killed = job("run", "m.cfg", [*flags, *setting], "killed", env={**nth.EVERY_PASS, "LD_PRELOAD": nth.SO, "NTH": act})
            yield Case("job", f"{name}, {act}", [killed, status, job("run", "m.cfg", [*setting, *kill_test.PLACEMENTS[2 * i + 1]], "resumed"), ended], files)
    one = ["--batch", "1", "--batches", "1"]
    for name, steps in {
            "limit": [job("run", "m.cfg", ["--limit", "3"]), status, job("run", "m.cfg", ["--limit", "7"], "more"), job("run", "m.cfg", [], "all")],
            "again": [job("run", "m.cfg", []), job("run", "m.cfg", [], "again"), job("run", "m.cfg", ["--seed", "5"], "other flags"),
                      job("run", "m.cfg", [], "other rows", rows="short.jsonl"), job("run", "m.cfg", ["--overwrite"], "overwrite", rows="short.jsonl")],
            "bad rows": [job("run", "m.cfg", [], rows="bad.jsonl"), status, job("run", "m.cfg", ["--retry-errors"], "retry", rows="bad.jsonl"),
                         job("run", "m.cfg", ["--max-errors", "1", "--overwrite", "--limit", "4"], "most errors", rows="bad.jsonl")],
            "order": [job("run", "m.cfg", ["--order", "completion", *one])],
            "dry run": [job("run", "m.cfg", ["--dry-run"]), job("run", "m.cfg", ["--dry-run"], "bad rows", rows="bad.jsonl")]}.items():
        yield Case("job", name, steps, files)
    late = job("run", "m.cfg", ["--time-limit", "0.001s"], "late")  # the first pass takes longer on any machine
    yield Case("job", "time limit", [late, job("run", "m.cfg", [], "resumed")], on("llama"))
    shard = ["run", "-m", "m.cfg", "-i", "in.jsonl", *CPU, *MACHINE]
    parts = [Step(f"shard {i}", [*shard, "-o", f"p{i}.jsonl", "--shard", f"{i}/3"], [f"p{i}.jsonl"]) for i in range(3)]
    yield Case("job", "shards", [*parts, Step("merge of two", ["merge", "-o", "out.jsonl", "p0.jsonl", "p2.jsonl"], ["out.jsonl"]),
                                 Step("merge", ["merge", "-o", "out.jsonl", "p0.jsonl", "p1.jsonl", "p2.jsonl"], ["out.jsonl"])], files)


# ---- cases: texts -----------------------------------------------------------------------------------

TEXTS = ["Hello, world", " two  spaces", "naïve café 東京 🙂", "a\nb\tc", "", "<s>x</s><|end|>",
         "e\u0301 \u00a0\u2028", "1234567 0x1f", "it's I'LL", "\0\x7f"]


def text_cases(_):
    """Tokenizers, chat templates, rows of text, `gen` and `score --text`."""
    for path in sorted(glob.glob(os.path.join(WORK, "models/*"))):
        if re.search(r"^(llama|opt)-mha-(f32|f16|q8_0)", os.path.basename(path)):
            model, rows = "models/" + os.path.basename(path), jsonl({"text": x} for x in TEXTS)
            ids = jsonl({"ids": list(range(i, 512, 31))} for i in range(31))
            yield Case("text", f"tokens of {os.path.basename(path)}", [Step("encode", ["tokenize", "-m", model], stdin=rows),
                                                                       Step("decode", ["tokenize", "-m", model, "--decode"], stdin=ids)])
    files = writes(m__gguf=placed.text_model(), in__jsonl=jsonl(placed.text_rows()), t__txt=b"the king said nothing to her " * 30)
    for name, flags in {"text": [], "streaming": ["--kv-policy", "streaming", "--kv-budget", "40"], "flags": [
            "--temperature", "0.7", "--top-p", "0.8", "--seed", "4", "--stop", "th", "--repetition-penalty", "1.2"]}.items():
        yield Case("text", f"rows of text, {name}", [job("run", "m.gguf", flags), Step("tokenize", ["tokenize", "-m", "m.gguf"], stdin=jsonl(
            {"messages": [{"role": "user", "content": x}]} for x in TEXTS))], files)
    yield Case("text", "gen and score", [Step("gen", ["gen", "-q", "-m", "m.gguf", "-p", "the king", "-n", "30", *CPU]),
                                         Step("chat", ["gen", "-q", "-m", "m.gguf", "--chat", "-p", "the king", "-n", "30", "--temperature", "1", *CPU]),
                                         Step("score", ["score", "-q", "-m", "m.gguf", "--text", "t.txt", "--prefix", "32", "--window", "96", *CPU])], files)
    yield from template_cases()


def template_cases():
    """A template of each family over many conversations, snippets of one feature over one."""
    from template_families import FAMILIES
    from template_live import SYSTEM, assistant, conversations, user
    from template_snippets import SNIPPETS, VALUES

    def literal(x):
        return "none" if x is None else "{" + ", ".join(f"{json.dumps(k)}: {literal(v)}" for k, v in x.items()) + "}" if isinstance(x, dict) else \
            "[" + ", ".join(map(literal, x)) + "]" if isinstance(x, list) else \
            json.dumps("".join(c for c in x if c >= " " or c in "\n\r\t") if isinstance(x, str) else x, ensure_ascii=False)

    def model(template):
        def make(folder):
            shutil.copytree(os.path.join(WORK, "text"), os.path.join(folder, "m"))
            writes(tokenizer_config__json=json.dumps({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}))(os.path.join(folder, "m"))
        return make

    talks = jsonl({"chat_template_kwargs" if k == "extra" else k: v for k, v in talk.items()} for _, talk in conversations())
    chat = ["tokenize", "-m", "m"]
    for name, text in FAMILIES.items():
        yield Case("text", f"template like {name}", [Step("chat", chat, stdin=talks)], model(text))
    few = jsonl([{"messages": [SYSTEM, user("Hi"), assistant("Yo")]}])
    before = "".join("{%- set " + f"{name} = {literal(value)}" + " -%}" for name, value in VALUES.items())
    for i, text in enumerate(SNIPPETS):
        yield Case("text", f"snippet {i} {text}", [Step("chat", chat, stdin=few)], model(before + text))


def help_cases(place):
    """What is printed from the tables of commands and flags."""
    commands = re.findall(r"^  sluice (\w+)", place.sluice("help").out, re.M)
    benches = re.findall(r"^  bench (\w+)", place.sluice("help", "bench").out, re.M)
    for words in [[], *([c] for c in commands), *(["bench", b] for b in benches), ["--markdown"], ["--man"], ["--completion", "bash"], ["--completion", "zsh"],
                  ["--completion", "fish"], ["nothing"]]:
        yield Case("help", " ".join(words) or "all", [Step("help", ["help", *words])])
    for command in commands:
        yield Case("help", f"-h of {command}", [Step("-h", [command, "-h"])])
        if command not in ("probe", "tokenize"):
            yield Case("help", f"{command} alone", [Step("alone", [command])])


# ---- cases: plans -----------------------------------------------------------------------------------

SMALL = ["--prompt-len", "128", "--gen-len", "16", "--num-prompts", "4"]
LARGE = ["--prompt-len", "512", "--gen-len", "32", "--num-prompts", "64"]
AHEAD = ["--ahead-weights", "1", "--ahead-state", "1", "--prefill-tokens", "512"]
# Budgets of which most say a part of the placement: a search takes a second, what it does with one placement 0.2 s.
BUDGETS = {
    "2G": ["--mem-ram", "2G", "--batch", "1", "--batches", "1", *AHEAD, *SMALL],
    "8G and 2G": ["--mem-ram", "8G", "--mem-device", "2G", "--attn", "cpu", "--batch", "4", "--batches", "4", *AHEAD, *LARGE],
    "16G": ["--mem-ram", "16G", "--batch", "8", "--batches", "2", *AHEAD, *LARGE],
    "24G, h2o": ["--mem-ram", "24G", "--batch", "8", "--batches", "2", "--weights-resident", "2", "--weights-decoded", "0", "--kv-policy", "h2o", *LARGE],
    "32G, int8": ["--mem-ram", "32G", "--device", "cpu", "--batch", "16", "--batches", "1", "--compute", "int8", "--weights", "q8", *AHEAD, *LARGE],
    "48G and 12G": ["--mem-ram", "48G", "--mem-device", "12G", "--percent", "20", "30", "0", "50", "0", "100", "--batch", "8", "--batches", "2", *LARGE],
    "64G, q4": ["--mem-ram", "64G", "--batch", "32", "--batches", "1", "--weights", "q4", "--kv-format", "q4", *AHEAD, *LARGE],
}
# Searches, one of them for each model and machine.
SEARCHES = {"search 24G": ["--mem-ram", "24G", *SMALL], "search on the CPU": ["--mem-ram", "32G", "--device", "cpu", *SMALL],
            "search 2G": ["--mem-ram", "2G", *SMALL], "search, 8 rows": ["--mem-ram", "16G", "--batch", "8", "--batches", "2", *LARGE]}


def plan_cases(_):
    """Models x machines x budgets of configs/, and every form in which a plan is told."""
    names = [os.path.basename(path)[:-4] for path in sorted(glob.glob(os.path.join(ROOT, "configs/*.cfg")))]
    machines = [name for name in names if name.startswith("machine-")]
    models = [name for name in names if name not in machines and "family" in trial.read(os.path.join(ROOT, f"configs/{name}.cfg")).decode()]
    for i, model in enumerate(models):
        base = ["plan", "-m", f"configs/{model}.cfg", "--isa", "avx2", "--weights-codec", "none", "--machine"]
        for k, machine in enumerate(machines):
            search = list(SEARCHES)[(i + k) % len(SEARCHES)]
            for n, (name, flags) in enumerate({**BUDGETS, search: SEARCHES[search]}.items()):
                form = [] if (i + k + n) % 8 == 0 else ["--json"]
                yield Case("plan", f"{model} {machine} {name}", [Step("plan", [*base, f"configs/{machine}.cfg", *flags, *form])])
        yield Case("plan", f"{model} much", [Step("plan", [*base, f"configs/{machines[i % len(machines)]}.cfg", "--mem-ram", "64G", "--json", *LARGE])])
    base = ["plan", "-m", "configs/llama-1b.cfg", "--isa", "avx2", "--weights-codec", "none", "--machine", "configs/machine-t4.cfg", "--mem-ram", "4G", *LARGE]
    from_file = Step("from the file", [*base, "--plan", "p.cfg"])
    for flags in (["-v"], ["--time-limit", "1m"], ["--limit", "3"], ["--kv-policy", "streaming", "--kv-budget-layers", "pyramid"], ["-o", "p.cfg"]):
        yield Case("plan", " ".join(flags), [Step("plan", [*base, *flags], ["p.cfg"]), *([from_file] if "-o" in flags else [])])


# ---- cases: bad input -------------------------------------------------------------------------------

FIT = ("run", "gen", "score", "plan", "pack", "inspect", "status", "merge", "tokenize", "cache")  # what measures nothing


def bad_cases(place):
    """Files that are no model, rows that are none, and a senseless value for each flag of each command."""
    for ending, cases in ((".gguf", bad.GGUF_CASES), (".cfg", bad.DUMMY_CASES)):
        for name, _, data in cases:
            data = data.bytes() if isinstance(data, Gguf) else data
            yield Case("bad", f"{ending} {name}", [Step("inspect", ["inspect", "bad" + ending])], writes(**{"bad" + ending.replace(".", "__"): data}))
    fields = [("safetensors", n, dict(weights=d)) for n, _, d in bad.SAFETENSORS_CASES] + [("config.json", n, d) for n, _, d in bad.CONFIG_CASES]
    fields += [("experts", n, d) for n, _, d in bad.STACK_CASES]
    fields += [("tekken.json", n, dict(tekken__json=d if isinstance(d, bytes) else json.dumps(d).encode())) for n, _, d in bad.TEKKEN_CASES]
    for kind, name, made in fields:
        yield Case("bad", f"{kind}: {name}", [Step("inspect", ["inspect", "model"])], lambda folder, made=made: hf(folder, **made))
    good = writes(**{"tiny__gguf": Gguf().bytes(), "in__jsonl": jsonl([{"prompt_token_ids": [1, 2], "max_tokens": 2}] * 2)})
    for name, row, _ in bad.ROW_CASES:
        yield Case("bad", f"row: {name}", [job("run", "tiny.gguf", [])], writes(tiny__gguf=Gguf().bytes(), in__jsonl=row + "\n"))
    for name, _, args in cli_test.BAD_FLAGS:
        yield Case("bad", name, [Step("cli", args)], good)
    for command in FIT:
        for flag in re.findall(r"^  (?:-\w, |    )(--[a-z-]+)", place.sluice("help", command).out, re.M):
            if flag != "--help":
                steps = [Step("alone", [command, flag, "senseless"])]
                if command == "run" and flag not in ("--model", "--input", "--output"):
                    steps += [job("run", "tiny.gguf", [flag, "senseless"])]
                yield Case("bad", f"{command} {flag} senseless", steps, good)
    yield from damaged_cases()


def damaged_cases():
    """Packs of which a byte is another: the step between is one of ours."""
    for at in (0, 40, 4096, 100_000, 300_000):
        def damage(folder, at=at):
            data = bytearray(trial.read(os.path.join(folder, "m.pack")))
            data[at % len(data)] ^= 16
            writes(m__pack=bytes(data))(folder)
        yield Case("bad", f"pack, byte {at}", [
            Step("pack", ["pack", "-q", "m.cfg", "-o", "m.pack"]), Step("damage", damage), Step("inspect", ["inspect", "m.pack"]),
            job("run", "m.pack", ["--weights-resident", "0"])], writes(m__cfg=nth.TINY, in__jsonl=jsonl(nth.rows(2, 1))))


GROUPS = {"help": help_cases, "bad": bad_cases, "text": text_cases, "job": job_cases, "device": device_cases, "compute": compute_cases, "kv": kv_cases,
          "place": place_cases, "family": family_cases, "plan": plan_cases}


# ---- what the cases need ----------------------------------------------------------------------------

def make_models():
    """Random checkpoints of every family and a model whose tokens are bytes, made once."""
    sys.path.insert(0, os.path.join(ROOT, "tests/goldens"))
    made, marker = os.path.join(WORK, "models"), os.path.join(WORK, "models.made")
    want = hashlib.sha256(b"".join(trial.read(path) for path in sorted(glob.glob(os.path.join(ROOT, "tests/goldens/*.py"))))).digest()
    if trial.read(marker) == want:
        return
    import families
    import tiny
    for folder in (made, os.path.join(WORK, "text")):
        shutil.rmtree(folder, ignore_errors=True)
    nth.text_model(os.path.join(WORK, "text"))
    tiny.write(made)
    for spec, entry in families.stored().items():
        for form in families.FORMS:
            families.write_hf(os.path.join(made, f"{spec}-{form}"), spec, entry["tensors"], form)
        if spec not in families.NO_GGUF:
            families.write_gguf(os.path.join(made, f"{spec}-f32.gguf"), spec, entry["tensors"])
    with open(marker, "wb") as f:
        f.write(want)
