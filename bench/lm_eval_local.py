#!/usr/bin/env python3
"""lm_eval_sluice.py beside the harness's own hf model, on generated tasks: lm_eval_local.py -m MODEL.gguf [flags]

Four tasks, one of each form: endings of a passage (multiple_choice), its last word (loglikelihood), passages whole
(loglikelihood_rolling), sums after examples (generate_until). Texts come from tests/goldens/wikitext-sample.txt or --text,
cut and drawn by a seed; no downloads. Both models compute in float32 on the same weights, one after the other; --only sluice
leaves hf out. A row of the CSV is a task of a model, with its metric, tokens per second over the requests of that form, and the
differences of its answers from hf's. Exit 1 if an accuracy or a text differs, or a log-likelihood differs by more than --tolerance
or 1e-5 of its value, the effect of the order of sums over the hundreds of tokens of a passage.

Needs lm_eval, torch, transformers, accelerate, and gguf where MODEL is one.
"""
import argparse
import json
import os
import random
import shutil
import sys
import time

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"  # before their packages are imported
import conditions
import lm_eval_sluice
import peer
from conditions import HERE, TREE
from evaluate_tasks import paragraphs

PLACE = os.path.join(TREE, "build/lm-eval")
WIKITEXT = os.path.join(TREE, "tests/goldens/wikitext-sample.txt")
COLUMNS = ["model", "task", "form", "requests", "metric", "value", "tokens", "seconds", "tok_s", "most_apart", "answers_apart", "idle",
           "flags"]
METRICS = {"local_endings": "acc", "local_last_word": "acc", "local_passages": "word_perplexity", "local_sums": "exact_match"}
RELATIVE = 1e-5
PASSAGE_WORDS = 60  # at least
FORMS = {"local_endings": "multiple_choice", "local_last_word": "loglikelihood", "local_passages": "loglikelihood_rolling",
         "local_sums": "generate_until"}
TASKS = {
    "local_endings": """output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{label}}"
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "local_last_word": """output_type: loglikelihood
doc_to_text: "{{text}}"
doc_to_target: " {{word}}"
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: perplexity
""",
    "local_passages": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
""",
    "local_sums": """output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 12
metric_list:
  - metric: exact_match
    ignore_case: true
filter_list:
  - name: strict
    filter:
      - function: regex
        regex_pattern: "(-?[0-9]+)"
      - function: take_first
""",
}


# ---- tasks, the same for both models ----

def documents(text, n, seed):
    """Rows of each task."""
    draw = random.Random(seed)
    found = paragraphs(text, PASSAGE_WORDS)
    draw.shuffle(found)
    rows = {name: [] for name in TASKS}
    for passage in found[:n]:
        words = passage.split()
        at = draw.randrange(20, 41)
        others = [f.split() for f in draw.sample([f for f in found if f is not passage], 3)]
        endings = [" ".join(words[at:at + 8])] + [" ".join(o[at:at + 8]) for o in others]
        order = draw.sample(range(4), 4)
        rows["local_endings"].append({"text": " ".join(words[:at]), "endings": [endings[i] for i in order], "label": order.index(0)})
        last = next(i for i in range(30, len(words)) if words[i].isalpha() and len(words[i]) > 3)
        rows["local_last_word"].append({"text": " ".join(words[:last]), "word": words[last]})
        rows["local_passages"].append({"text": passage})
        sums = [(draw.randrange(2, 50), draw.randrange(2, 50)) for _ in range(5)]
        shown = "\n".join(f"Q: {a} + {b} = ?\nA: {a + b}" for a, b in sums[:4])
        a, b = sums[4]
        rows["local_sums"].append({"text": f"{shown}\nQ: {a} + {b} = ?\nA:", "answer": str(a + b)})
    return rows


def write_tasks(folder, rows):
    """Writes the files for --include_path of the harness."""
    os.makedirs(folder, exist_ok=True)
    for name, form in TASKS.items():
        data = os.path.join(folder, f"{name}.jsonl")
        with open(data, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows[name])
        with open(os.path.join(folder, f"{name}.yaml"), "w", encoding="utf-8") as f:
            f.write(f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n{form}"
                    "metadata:\n  version: 1\n")


# ---- the two models ----

def timed(model):
    """Measures seconds by form of request: the harness calls each form once, with all requests of all tasks."""
    spent = {}
    for form in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        def wrapped(requests, *words, form=form, inner=getattr(model, form), **more):
            begin = time.monotonic()
            found = inner(requests, *words, **more)
            spent[form] = time.monotonic() - begin
            return found
        setattr(model, form, wrapped)
    return spent


def hf_model(a):
    import torch
    from lm_eval.models.huggingface import HFLM
    torch.set_num_threads(a.threads)
    folder, name = os.path.split(os.path.abspath(a.model))
    own = {"pretrained": folder, "gguf_file": name} if os.path.isfile(a.model) else {"pretrained": os.path.abspath(a.model)}
    # Without its cache of logits: if two requests split one text at two places, the shorter continuation reads the
    # logits of the longer one's first tokens (seen in lm_eval 0.4.13).
    return HFLM(**own, device="cpu", dtype="float32", batch_size=a.hf_batch, logits_cache=False)


def sluice_model(a):
    return lm_eval_sluice.SluiceLM(model=a.model, jobs=os.path.join(a.place, "jobs"), compute="f32", kv_format="f32",
                                   threads=a.threads, progress="none", quiet=True)


def evaluated(make, a):
    """(metrics, answers one by one, tokens and seconds by task) of one model."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    model = make(a)
    spent = timed(model)
    found = lm_eval.simple_evaluate(model=model, tasks=list(TASKS), task_manager=TaskManager(include_path=a.place, include_defaults=False),
                                    log_samples=True, bootstrap_iters=0)
    value = {t: next(v for k, v in found["results"][t].items() if k.split(",")[0] == METRICS[t]) for t in TASKS}
    answers = {t: [r for s in sorted(found["samples"][t], key=lambda s: s["doc_id"]) for r in s["resps"]] for t in TASKS}
    return value, answers, spent


def tokens_of(sluice, task, rows, answers):
    """The tokens of a task, counted equally for both models' rates."""
    texts = []
    for row, said in zip(rows, answers):
        if task == "local_endings":
            texts += [f"{row['text']} {e}" for e in row["endings"]]
        elif task == "local_sums":
            texts.append(row["text"] + said[0])
        else:
            texts.append(row["text"] + (" " + row["word"] if "word" in row else ""))
    return sum(map(len, sluice.encode(texts, True)))


def flat(answers):
    """Log-likelihoods or texts of a task, one by one; the harness's lists nest by repeats."""
    out = []
    for one in answers:
        while isinstance(one, (list, tuple)) and len(one) == 1:
            one = one[0]
        out.append(one[0] if isinstance(one, (list, tuple)) else one)
    return out


def apart(mine, theirs, tolerance):
    """The largest difference of log-likelihoods, how many texts differ, and whether both are within the tolerance."""
    pairs = list(zip(flat(mine), flat(theirs), strict=True))
    numbers = [(abs(float(x) - float(y)), abs(float(y))) for x, y in pairs if not isinstance(x, str)]
    texts = sum(x != y for x, y in pairs if isinstance(x, str))
    return max(numbers, default=(0.0, 0))[0], texts, not texts and all(d <= max(tolerance, RELATIVE * of) for d, of in numbers)


def measured(a, results, rows, idle):
    """Both models over all tasks; a row each. True when they agree."""
    told, good = {}, True
    for name, make in (("hf", hf_model), ("sluice", sluice_model)):
        if a.only and name != a.only:
            continue
        peer.say(f"lm_eval_local.py: {name}")
        told[name] = evaluated(make, a)
    engine = sluice_model(a).sluice
    for name, (value, answers, spent) in told.items():
        n_tokens = {t: tokens_of(engine, t, rows[t], [flat([x]) for x in answers[t]]) for t in TASKS}
        for task, form in FORMS.items():
            kind = "loglikelihood" if form == "multiple_choice" else form
            alike = [t for t, f in FORMS.items() if (f if f != "multiple_choice" else "loglikelihood") == kind]
            most, texts = "", ""
            if "hf" in told:
                most, texts, may = apart(answers[task], told["hf"][1][task], a.tolerance)
                share = METRICS[task] in ("acc", "exact_match")
                gap, base = abs(value[task] - told["hf"][0][task]), told["hf"][0][task]
                good &= may and (gap == 0 if share else gap <= 1e-4 * base)
            results.add({"model": name, "task": task, "form": form, "requests": len(answers[task]), "metric": METRICS[task],
                         "value": float(value[task]), "tokens": n_tokens[task], "seconds": spent[kind],
                         "tok_s": sum(n_tokens[t] for t in alike) / spent[kind], "most_apart": most, "answers_apart": texts, "idle": idle,
                         "flags": "float32, " + (f"batches of {a.hf_batch}" if name == "hf" else "planned")})
            peer.say(f"{name:7} {task:16} {METRICS[task]:16} {value[task]:10.5f}  {n_tokens[task]:7d} tokens, "
                     f"{sum(n_tokens[t] for t in alike) / spent[kind]:8.0f} tokens/s" +
                     (f", apart from hf: {most:.1e}, {texts} texts" if "hf" in told and name != "hf" else ""))
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True, help="a GGUF file or a Hugging Face folder that both read")
    p.add_argument("-o", "--output", help="[bench/results/lm_eval-CPU.csv]")
    p.add_argument("--cpu-name", default=conditions.cpu_name(), help="name of the CPU [%(default)s]")
    p.add_argument("--text", default=WIKITEXT, help="where passages come from [the WikiText-2 of the tests]")
    p.add_argument("--docs", type=int, default=100, help="documents of each task [%(default)s]")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tolerance", type=float, default=1e-3, help="largest difference of log-likelihoods [%(default)s]")
    p.add_argument("--hf-batch", type=int, default=8, help="batch_size of the hf model [%(default)s]")
    p.add_argument("--only", choices=["sluice", "hf"], help="run only this model")
    p.add_argument("--tasks-only", action="store_true", help="write the tasks into build/lm-eval, for the harness's own command line")
    conditions.arguments(p)
    a = p.parse_args()
    if a.sluice:
        p.error("--sluice: the library of this tree is measured")
    if not lm_eval_sluice.HAS_HARNESS and not a.tasks_only:
        sys.exit("lm_eval_local.py: the harness is missing: pip install lm_eval")
    a.place = PLACE
    with open(a.text, encoding="utf-8") as f:
        rows = documents(f.read(), a.docs, a.seed)
    write_tasks(PLACE, rows)
    if a.tasks_only:
        return 0
    shutil.rmtree(os.path.join(PLACE, "jobs"), ignore_errors=True)  # a finished job would take no time
    conditions.clean(a)
    a.output = a.output or os.path.join(HERE, "results", f"lm_eval-{conditions.slug(a.cpu_name)}.csv")
    busy = conditions.wait_idle(a.busy_max, a.idle_wait, not a.allow_busy)
    head = {"table": "lm_eval", "command": conditions.command_line(), "commit": a.commit, **({"dirty": "yes"} if a.is_dirty else {}),
            "binary_sha256": a.binary, "date": conditions.now(), **conditions.machine_lines(a.sluice, a.cpu_name, PLACE), "turns": 1,
            "job": f"{a.docs} documents a task, {os.path.basename(a.model)}, float32, {a.threads} threads",
            **({"note": a.note} if a.note else {})}
    results = conditions.Results(a.output, head, COLUMNS)
    good = measured(a, results, rows, "yes" if busy <= a.busy_max else "no")
    results.close()
    peer.say(f"lm_eval_local.py: {a.output}" + ("" if good else ": the two models differ"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
