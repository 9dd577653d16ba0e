#!/usr/bin/env python3
"""sluice as a model of EleutherAI's lm-evaluation-harness: one file; `pip install lm_eval` is all it needs besides.

    python bench/lm_eval_sluice.py run --model sluice --tasks hellaswag,gsm8k \\
        --model_args model=MODEL.gguf,kv_policy=h2o,kv_budget=0.2,mem_ram=4G
    import lm_eval_sluice; lm_eval.simple_evaluate(model="sluice", model_args=...)  # from Python

All requests of a kind, over all tasks, are one job of `sluice score` or `sluice run`; which rows are computed together is sluice's
to plan. The folder of a job is named by a hash of model, flags and rows, so the same command goes on where it was stopped, and
costs nothing once it is done. model_args: `model`; `binary` [./sluice of this tree, else of PATH]; `jobs`, the folder of the jobs
[lm-eval in sluice's cache folder; it may be deleted whenever nothing runs]; of the harness's own `max_length`, `max_gen_toks`,
`add_bos_token`, `prefix_token_id`, `enable_thinking`; and every other flag of sluice with _ for -: kv_format=q8, compute=f32, threads=4.

Owns: requests to rows and answers back, as the harness's own hf model splits, truncates and stops them. Refuses: to guess; a
generation option that sluice lacks, and a row that fails, end the evaluation. Without lm_eval the class Sluice is still there
(bench/evaluate.py, tests/evaluate_test.py).
"""
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    HAS_HARNESS = True
except ImportError:
    LM, HAS_HARNESS = object, False

    def register_model(*names):
        return lambda model: model

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GEN_TOKENS = 256  # the harness's default of max_gen_toks
INTERRUPTED, SOME_FAILED = 75, 3
# Flags that move bytes or show something: they change no answer, so a job goes on under others.
PLACEMENT = {"mem_device", "mem_ram", "mem_disk", "offload_dir", "threads", "t", "batch", "batches", "weights_resident", "weights_decoded",
             "weights_codec", "percent", "ahead_weights", "ahead_state", "prefill_tokens", "io", "share_prefixes", "replan", "plan",
             "machine", "progress", "trace", "verbose", "quiet", "time_limit"}
OWN = {"input", "i", "output", "o", "order", "limit", "shard", "dry_run", "overwrite", "retry_errors", "max_errors", "summary", "n",
       "max_tokens", "temperature", "seed", "stop", "text"}
# Options of generation that sluice has, and what it calls them. None: says nothing more.
OPTIONS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
           "repetition_penalty": "repetition_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
           "min_tokens": "min_tokens", "min_new_tokens": "min_tokens", "ignore_eos": "ignore_eos", "do_sample": None, "until": None}
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class Failed(Exception):
    """One sentence of sluice's, or of a row's."""


def words_of(flags):
    """Flags of sluice as words of a command line."""
    out = []
    for key, value in flags.items():
        if value is None or value is False:
            continue
        out.append(("-" if len(key) == 1 else "--") + key.replace("_", "-"))
        if value is not True:
            out += shlex.split(str(value)) if key == "percent" else [str(value)]
    return out


def stat_of(model):
    """What tells one state of a model's files from another, without reading them."""
    paths = [model] if os.path.isfile(model) else [os.path.join(d, f) for d, _, names in os.walk(model) for f in names]
    if not paths:
        raise Failed(f"{model}: no such model")
    return [(p, os.stat(p).st_size, os.stat(p).st_mtime_ns) for p in sorted(paths)]


class Sluice:
    """Rows in, answers out, in jobs that go on where they were stopped."""

    def __init__(self, model, binary=None, jobs=None, **flags):
        mine = os.path.join(TREE, "sluice")
        self.binary = binary or (mine if os.path.exists(mine) else shutil.which("sluice"))
        if not self.binary:
            raise Failed(f"no program {mine}, and no sluice in PATH (make, or binary=PATH)")
        if OWN & set(flags):
            raise Failed(f"{', '.join(sorted(OWN & set(flags)))}: cannot be set here")
        self.model, self.flags, self.live, self.ran = os.path.abspath(model), flags, None, []
        self.files = stat_of(self.model)
        cache = os.environ.get("SLUICE_CACHE_DIR") or os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice")
        self.jobs = jobs or os.path.join(cache, "lm-eval")
        self.weights = words_of({"weights": flags.get("weights")})
        shape = json.loads(self.call("inspect", "--json"))
        self.context, self.tokenizer = shape["context"], shape["tokenizer"]
        if not self.tokenizer:
            raise Failed(f"{model}: has no tokenizer")

    def start(self, command):
        """How a command over the model begins. All are of one pack."""
        more = self.weights if command in ("inspect", "tokenize") else []  # of a job it is one of the flags
        return [self.binary, command, *([] if command == "inspect" else ["-m"]), self.model, *more]

    def call(self, command, *words, data=None, may=(0,)):
        """stdout of one command over the model; what it says on stderr passes through."""
        done = subprocess.run([*self.start(command), *words], input=data, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        if done.returncode == INTERRUPTED:
            raise Failed(f"sluice {command}: interrupted; the same command resumes")
        if done.returncode not in may:
            raise Failed(f"sluice {command}: exit {done.returncode}; its error is above")
        return done.stdout

    # ---- text and ids ----

    def encode(self, texts, special):
        """Ids of each text, one process for all of them. special: with what the tokenizer adds by itself; one for all, or one
        for each."""
        wanted = list(zip(texts, special if isinstance(special, list) else [special] * len(texts)))
        rows = list(dict.fromkeys(wanted))
        data = "".join(json.dumps({"text": t, "add_special_tokens": bool(s)}) + "\n" for t, s in rows)
        answers = [json.loads(line) for line in self.call("tokenize", "-q", data=data, may=(0, SOME_FAILED)).splitlines()]
        for (text, _), answer in zip(rows, answers, strict=True):
            if "error" in answer:
                raise Failed(f"tokenize: {answer['error']['message']}: {text[:60]!r}")
        ids = dict(zip(rows, (a["ids"] for a in answers)))
        return [ids[key] for key in wanted]

    def render(self, messages, more):
        """The text of a conversation, of a process that stays: the harness asks for them one at a time."""
        if self.live is None:
            self.live = subprocess.Popen([*self.start("tokenize"), "-q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         encoding="utf-8")
        self.live.stdin.write(json.dumps({"messages": messages, "chat_template_kwargs": more}) + "\n")
        self.live.stdin.flush()
        line = self.live.stdout.readline()
        answer = json.loads(line) if line else {"error": {"message": "sluice tokenize ended"}}
        if "error" in answer:
            raise Failed(answer["error"]["message"])
        return answer["text"]

    def close(self):
        if self.live:
            self.live.stdin.close()
            self.live.stdout.close()
            self.live.wait()
            self.live = None

    # ---- jobs ----

    def folder(self, command, data):
        """Where the job of these rows lives."""
        answer = {k: v for k, v in self.flags.items() if k not in PLACEMENT}
        key = json.dumps([command, self.files, sorted(answer.items()), hashlib.sha256(data).hexdigest()])
        return os.path.join(self.jobs, f"{command}-{hashlib.sha256(key.encode()).hexdigest()[:16]}")

    def answers(self, command, rows):
        """What `sluice run` or `score` makes of rows, in their order. The same call goes on where it was stopped."""
        if not rows:
            return []
        data = "".join(json.dumps({"custom_id": str(i), **row}) + "\n" for i, row in enumerate(rows)).encode()
        place = self.folder(command, data)
        source, out, summary = (os.path.join(place, n) for n in ("in.jsonl", "out.jsonl", "summary.json"))
        os.makedirs(place, exist_ok=True)
        if not os.path.exists(source):
            with open(source + ".part", "wb") as f:
                f.write(data)
            os.replace(source + ".part", source)
        was_done = os.path.exists(out)
        self.call(command, "-i", source, "-o", out, "--summary", summary, "--retry-errors", *words_of(self.flags), may=(0, SOME_FAILED))
        with open(out, encoding="utf-8") as f:
            found = [json.loads(line) for line in f]
        bad = [r for r in found if r.get("error")]
        if bad:
            error = bad[0]["error"]
            raise Failed(f"sluice {command}: {len(bad)} of {len(rows)} rows failed, the first with {error['code']}: {error['message']} "
                         f"({out})")
        if [r["custom_id"] for r in found] != [str(i) for i in range(len(rows))]:
            raise Failed(f"{out}: does not hold the answers of {source}")
        if not was_done:
            self.told(command, summary)
        return found

    def told(self, command, summary):
        """Keeps the figures of a run, and tells them."""
        with open(summary, encoding="utf-8") as f:
            s = json.load(f)
        self.ran.append({"command": command, "rows": s["rows"]["total"], "tokens": s["prompt_tokens"] + s["output_tokens"],
                         "seconds": s["elapsed_s"], "tokens_per_s": s["total_tokens_per_s"], "kv": s["kv"], "version": s["version"]})
        print("sluice {command}: {rows} rows, {tokens} tokens, {seconds:.1f} s, {tokens_per_s:.0f} tokens/s".format(**self.ran[-1]),
              file=sys.stderr)


# ---- requests to rows ----

def stops_of(until):
    """A list without the empty one, which some tasks have."""
    return [s for s in ([until] if isinstance(until, str) else until or []) if s]


def options(asked, n_default):
    """What a generation's options are to sluice: members of a row, and how many tokens."""
    unknown = [k for k in asked if k not in OPTIONS and k not in LENGTHS and not (k == "num_beams" and asked[k] == 1)]
    if unknown:
        raise Failed(f"generation options that sluice lacks: {', '.join(sorted(unknown))}")
    n = next((int(asked[k]) for k in LENGTHS if asked.get(k) is not None), n_default)
    row = {OPTIONS[k]: v for k, v in asked.items() if OPTIONS.get(k) and v is not None}
    sampled = asked.get("do_sample", float(asked.get("temperature") or 0) > 0)
    if not sampled:
        row["temperature"] = 0
    return {**row, "max_tokens": n, **({"stop": stops} if (stops := stops_of(asked.get("until"))) else {})}, bool(sampled)


def windows(ids, prefix, most):
    """(context, continuation) of a text of any length: every id is predicted once, those behind the first window with as much in
    front of them as fits `most`."""
    if ids:
        yield [prefix], ids[:most]
    for at in range(most, len(ids), most):
        end = min(at + most, len(ids))
        yield ids[end - most - 1:at], ids[at:end]


@register_model("sluice")
class SluiceLM(LM):
    """The harness's model: three kinds of requests, and a chat template."""

    def __init__(self, model=None, pretrained=None, binary=None, jobs=None, max_length=None, max_gen_toks=None, add_bos_token=None,
                 prefix_token_id=None, enable_thinking=None, chat_template_args=None, device=None, batch_size=None, max_batch_size=None,
                 **flags):
        super().__init__()
        if not (model or pretrained):
            raise Failed("model_args: model=FILE or FOLDER is missing")
        if device not in (None, "cuda:0"):  # the harness says cuda:0 where nobody said anything
            flags["device"] = device
        self.sluice = Sluice(model or pretrained, binary, jobs, **flags)  # batch sizes are the plan's
        tok = self.sluice.tokenizer
        self.max_length, self.max_gen_toks = int(max_length or self.sluice.context), int(max_gen_toks or GEN_TOKENS)
        self.add_bos_token, self.chat_args = add_bos_token, dict(chat_template_args or {})
        if enable_thinking is not None:
            self.chat_args["enable_thinking"] = enable_thinking
        is_bos = tok["bos"] >= 0
        self.eot_token_id, self.eot_text = tok["eos"], tok["eos_text"]
        self.prefix_token_id = int(prefix_token_id) if prefix_token_id is not None else tok["bos"] if is_bos else tok["eos"]
        self.prefix_text = tok["bos_text"] if is_bos else tok["eos_text"]

    # ---- tokens ----

    def encode(self, texts):
        """As a prompt is: with BOS where the tokenizer adds it, and not twice where a template has written it."""
        own = True if self.add_bos_token is None else self.add_bos_token
        return self.sluice.encode(texts, [own and not (self.prefix_text and t.startswith(self.prefix_text)) for t in texts])

    def pairs(self, asked):
        """Ids of (context, continuation): spaces that end a context go to the continuation, and both are encoded together."""
        split = []
        for context, continuation in asked:
            bare = context.rstrip()
            split.append((bare, context[len(bare):] + continuation))
        whole = iter(self.encode([t for a, b in split if a for t in (a, a + b)]))
        alone = iter(self.sluice.encode([b for a, b in split if not a], False))
        for (a, b), (_, continuation) in zip(split, asked):
            if a:
                first, both = next(whole), next(whole)
                context, ids = first, both[len(first):]
            else:
                context, ids = [self.prefix_token_id], next(alone)
                if ids[:1] == context and len(ids) > 1:
                    ids = ids[1:]
            if not context or not ids:
                raise Failed(f"no token in {'the continuation' if context else 'the context'}: {b[:60]!r}")
            yield context, ids

    # ---- what the harness asks for ----

    def score(self, pairs):
        rows = []
        for context, ids in pairs:
            if len(ids) > self.max_length:
                raise Failed(f"a continuation of {len(ids)} tokens, the model's length is {self.max_length}")
            both = (context + ids)[-self.max_length - 1:]  # the last one is only predicted
            rows.append({"context_ids": both[:-len(ids)], "continuation_ids": ids})
        return [(r["logprob"], r["is_greedy"]) for r in self.sluice.answers("score", rows)]

    def loglikelihood(self, requests, disable_tqdm=False):
        return self.score(self.pairs([r.args for r in requests]))

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        cut = [list(windows(ids, self.prefix_token_id, self.max_length)) for ids in self.encode([r.args[0] for r in requests])]
        scores = iter(self.score([pair for some in cut for pair in some]))
        return [sum(next(scores)[0] for _ in some) for some in cut]

    def generate_until(self, requests, disable_tqdm=False):
        rows = []
        for i, (request, ids) in enumerate(zip(requests, self.encode([r.args[0] for r in requests]))):
            row, sampled = options(request.args[1], self.max_gen_toks)
            room = self.max_length - row["max_tokens"]
            if room <= 0:
                raise Failed(f"{row['max_tokens']} tokens to generate, the model's length is {self.max_length}")
            if sampled:
                row.setdefault("seed", i)  # repeats of a request are others
            rows.append({"prompt_token_ids": ids[-room:] or [self.prefix_token_id], **row})
        return [r["text"] for r in self.sluice.answers("run", rows)]

    # ---- chats ----

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        chat = [dict(m) for m in chat_history]
        more = {**self.chat_args, "add_generation_prompt": add_generation_prompt}
        try:
            text = self.sluice.render(chat, more)
        except Failed:
            if not any(m["role"] == "system" for m in chat):
                raise
            chat = [m for m in chat if m["role"] != "system"]
            print("lm_eval_sluice: the chat template refuses the chat; trying again without the system message", file=sys.stderr)
            text = self.sluice.render(chat, more)
        if not add_generation_prompt:  # the last message goes on: nothing stands behind it
            last = chat[-1]["content"]
            last = last if last in text else last.strip()
            text = text[:text.rindex(last) + len(last)]
        return text

    def chat_template(self, chat_template=False):
        """What tells one template from another: the harness hashes it, and keeps it with the results."""
        if not chat_template:
            return None
        if chat_template is not True:
            raise Failed("a chat template cannot be chosen by name: sluice uses the model's own")
        return self.sluice.render([{"role": "user", "content": "USER"}, {"role": "assistant", "content": "ASSISTANT"},
                                   {"role": "user", "content": "USER"}], {**self.chat_args, "add_generation_prompt": True})

    @property
    def tokenizer_name(self):
        return self.sluice.model.strip("/").replace("/", "__")

    def get_model_info(self):
        """Into the harness's results: what was run, how fast."""
        return {"sluice_flags": words_of(self.sluice.flags), "sluice_jobs": self.sluice.ran}


def main():
    if not HAS_HARNESS:
        sys.exit("lm_eval_sluice.py: the harness is missing: pip install lm_eval")
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()


if __name__ == "__main__":
    main()
