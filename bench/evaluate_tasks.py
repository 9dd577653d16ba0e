"""The tasks of evaluate.py: rows with a known answer, and the score of an answer.

Owns: needles hidden in a text, texts with a summary, questions with a number; ROUGE. Refuses: running, and
randomness without a seed. Note: prompts are built from token ids, so their lengths are exact. Every case is asked
twice: for the log-probability of its answer (sluice score) and for the generated text (sluice run). The log-probability
shows much smaller differences, above all for small models, which rarely generate the answer.
"""
import json
import random
import re

NAMES = ["Ada", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas", "Karin", "Liam", "Mira", "Noah", "Olga",
         "Peter"]
SUMMARY = "\n\nThe text in one sentence:"
STOP_OF = {"gsm8k": ["\nQuestion:"]}


class Case:
    """One question. group: the figure that it counts for. judge(text): scores of the generated text, by name."""

    def __init__(self, task, group, prompt, answer, max_tokens, judge):
        self.task, self.group, self.prompt, self.answer, self.max_tokens, self.judge = task, group, prompt, answer, max_tokens, judge

    def score_row(self):
        return {"context_ids": self.prompt, "continuation_ids": self.answer}

    def run_row(self):
        stop = STOP_OF.get(self.task)
        return {"prompt_token_ids": self.prompt, "max_tokens": self.max_tokens, "temperature": 0, **({"stop": stop} if stop else {})}


def with_answer(sluice, questions):
    """(ids of a question, ids of its answer): both texts are encoded together, then split at the end of the question."""
    ids = iter(sluice.encode([t for q, a in questions for t in (q, q + a)], False))
    for _ in questions:
        question, both = next(ids), next(ids)
        yield question, both[len(question):]


# ---- needles ----

def said(wanted):
    return lambda text: {"exact": float(text.strip().startswith(wanted))}


def hidden(filler, needles, depths, question, length, start):
    """A prompt of exactly `length` ids: filler with a needle at each depth (0: start, 1: end), then the question."""
    room = length - len(question) - sum(map(len, needles))
    if room < 0:
        raise ValueError(f"{length} tokens hold neither {len(needles)} needles nor their question")
    at, out = [round(d * room) for d in depths], []
    text = [filler[(start + i) % len(filler)] for i in range(room)]
    for i, needle in enumerate(needles):
        out += text[at[i - 1] if i else 0:at[i]] + needle
    return out + text[at[-1]:] + question


def passkeys(sluice, filler, bos, lengths, depths, samples, seed):
    """One number per text, at each depth of each length."""
    draw = random.Random(f"passkey {seed}")
    keys = [str(draw.randrange(10000, 100000)) for _ in range(samples)]
    needles = sluice.encode([f"\nThe pass key is {k}. Remember it: {k} is the pass key.\n" for k in keys], False)
    asked = list(with_answer(sluice, [("\nWhat is the pass key? The pass key is", f" {k}") for k in keys]))
    for length in lengths:
        for depth in depths:
            for key, needle, (question, answer) in zip(keys, needles, asked):
                prompt = bos + hidden(filler, [needle], [depth], question, length - len(bos), draw.randrange(len(filler)))
                yield Case("passkey", {"length": length, "depth": depth}, prompt, answer, len(answer) + 2, said(key))


def multi_needles(sluice, filler, bos, lengths, counts, samples, seed):
    """Several named numbers per text, spread evenly; each is asked for."""
    draw = random.Random(f"needles {seed}")
    for count in counts:
        for sample in range(samples):
            names = draw.sample(NAMES, count)
            keys = [str(draw.randrange(10000, 100000)) for _ in names]
            needles = sluice.encode([f"\nThe number of {n} is {k}.\n" for n, k in zip(names, keys)], False)
            questions = [f"\nWhat is the number of {n}? The number of {n} is" for n in names]
            asked = list(with_answer(sluice, [(q, f" {k}") for q, k in zip(questions, keys)]))
            for length in lengths:
                start = draw.randrange(len(filler))
                for key, (question, answer) in zip(keys, asked):
                    prompt = bos + hidden(filler, needles, [(i + 0.5) / count for i in range(count)], question, length - len(bos), start)
                    yield Case("needles", {"length": length, "needles": count}, prompt, answer, len(answer) + 2, said(key))


# ---- summaries ----

def paragraphs(text, least=80):
    """Paragraphs of at least so many words, without WikiText's marks."""
    lines = (re.sub(r" @(.)@ ", r"\1", line.strip()) for line in text.splitlines())
    return [line for line in lines if len(line.split()) >= least and not line.startswith("=")]


def leads(text, n, seed):
    """Rows from any text: the first sentence of a paragraph is the summary of the others."""
    rows = []
    for paragraph in paragraphs(text):
        first, dot, rest = paragraph.partition(" . ")
        if dot and 8 <= len(first.split()) <= 40 and len(rest.split()) >= 50:
            rows.append({"text": rest, "summary": first + " ."})
    random.Random(f"leads {seed}").shuffle(rows)
    return rows[:n]


def summaries(sluice, bos, rows, most):
    """Rows of {"text", "summary"}. most: tokens kept of a text."""
    asked = list(with_answer(sluice, [(SUMMARY, " " + r["summary"]) for r in rows]))
    texts = sluice.encode([r["text"] for r in rows], False)
    for row, text, (question, answer) in zip(rows, texts, asked):
        reference = row["summary"]
        yield Case("summary", {}, bos + text[:most] + question, answer, max(16, len(answer) + len(answer) // 2),
                   lambda text, reference=reference: rouge(reference, text.strip().partition("\n")[0]))


def words_of(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def counted(words, n):
    found = {}
    for i in range(len(words) - n + 1):
        key = tuple(words[i:i + n])
        found[key] = found.get(key, 0) + 1
    return found


def common_length(a, b):
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def f_measure(common, n_reference, n_said):
    if not common:
        return 0.0
    recall, precision = common / n_reference, common / n_said
    return 2 * recall * precision / (recall + precision)


def rouge(reference, text):
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L: lower-case words of letters and digits, no stemmer, no sentences."""
    want, got = words_of(reference), words_of(text)
    out = {}
    for n in (1, 2):
        a, b = counted(want, n), counted(got, n)
        out[f"rouge{n}"] = f_measure(sum(min(v, b.get(k, 0)) for k, v in a.items()), sum(a.values()), sum(b.values()))
    out["rougeL"] = f_measure(common_length(want, got), len(want), len(got))
    return out


# ---- numbers ----

def last_number(text):
    """The number after ####, else the last number; without commas and trailing zeros."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text.rpartition("####")[2] if "####" in text else text)
    if not found:
        return None
    number = (found[0] if "####" in text else found[-1]).replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def gsm8k(sluice, bos, rows, shots, max_tokens):
    """Rows of {"question", "answer"}, with the number after ####; the first `shots` are examples in every prompt."""
    form = "Question: {question}\nAnswer:"
    front = "".join(f"{form.format(**r)} {r['answer']}\n\n" for r in rows[:shots])
    asked = rows[shots:]
    for row, (prompt, answer) in zip(asked, list(with_answer(sluice, [(front + form.format(**r), " " + r["answer"]) for r in asked]))):
        want = last_number(row["answer"])
        yield Case("gsm8k", {}, bos + prompt, answer, max_tokens,
                   lambda text, want=want: {"exact": float(want is not None and last_number(text) == want)})


def read_rows(path, names):
    """Rows of a JSONL file; each must have these members."""
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f if line.strip()]
    for i, row in enumerate(rows, 1):
        lacks = [n for n in names if not isinstance(row.get(n), str)]
        if lacks:
            raise ValueError(f"{path}: row {i}: no text in {', '.join(lacks)}")
    return rows
