#!/usr/bin/env python3
"""sluice as a model of EleutherAI's lm-evaluation-harness (pip install lm_eval), in one process with the harness.

    python bench/lm_eval_sluice.py run --model sluice --tasks hellaswag,gsm8k \\
        --model_args model=MODEL.gguf,kv_policy=h2o,kv_budget=0.2,mem_ram=4G
    python -m lm_eval_sluice run ...  # where the wheel of sluice is installed
    import lm_eval_sluice; lm_eval.simple_evaluate(model="sluice", model_args=...)  # from Python

All requests of a kind, over all tasks, are one job of `sluice score` or `sluice run`; sluice plans which rows are
computed together. The folder of a job is named by a hash of model, flags and rows, so the same command resumes after a stop, and
a finished job costs nothing. model_args: `model`; `jobs`, the folder of the jobs [lm-eval in sluice's cache folder;
delete it when no job runs]; the harness's `max_length`, `max_gen_toks`, `add_bos_token`, `prefix_token_id`, `enable_thinking`; and
every other flag of sluice with _ for -: kv_format=q8, compute=f32, threads=4.

Owns: requests to rows and answers back; texts are split, truncated and stopped as in the harness's hf model. Refuses: guessing: a
generation option that sluice lacks, or a failed row, ends the evaluation. Without lm_eval the class Sluice still works
(bench/evaluate.py, tests/evaluate_test.py).
"""
import hashlib
import json
import os
import sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TREE, "engine", "python"))  # missing if the wheel is installed
from sluice import Error, Model
from sluice._program import words as words_of

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    HAS_HARNESS = True
except ImportError:
    LM, HAS_HARNESS = object, False

    def register_model(*names):
        return lambda model: model

GEN_TOKENS = 256  # the harness's default of max_gen_toks
SOME_FAILED = 3  # sluice's exit code if rows have failed
# Flags for placement and output change no answer, so a job resumes with other values.
PLACEMENT = {"mem_device", "mem_ram", "mem_disk", "offload_dir", "threads", "batch", "batches", "weights_resident", "weights_decoded",
             "weights_codec", "percent", "ahead_weights", "ahead_state", "prefill_tokens", "io", "share_prefixes", "replan", "plan",
             "machine", "progress", "trace", "verbose", "quiet", "time_limit"}
OWN = {"input", "output", "order", "limit", "shard", "dry_run", "overwrite", "retry_errors", "max_errors", "summary", "max_tokens",
       "temperature", "seed", "stop", "text"}
# Generation options that sluice has, and their names there. None: no member needed.
OPTIONS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
           "repetition_penalty": "repetition_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
           "min_tokens": "min_tokens", "min_new_tokens": "min_tokens", "ignore_eos": "ignore_eos", "do_sample": None, "until": None}
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class Failed(Error):
    """One sentence, of this file or of a row."""

    def __init__(self, sentence):
        super().__init__(SOME_FAILED, sentence)


def stat_of(model):
    """Names, sizes and times of a model's files: identifies their state without reading them."""
    paths = [model] if os.path.isfile(model) else [os.path.join(d, f) for d, _, names in os.walk(model) for f in names]
    if not paths:
        raise Failed(f"{model}: no such model")
    return [(p, os.stat(p).st_size, os.stat(p).st_mtime_ns) for p in sorted(paths)]


class Sluice:
    """Rows in, answers out, in jobs that resume after a stop."""

    def __init__(self, model, jobs=None, **flags):
        if OWN & set(flags):
            raise Failed(f"{', '.join(sorted(OWN & set(flags)))}: cannot be set here")
        self.model, self.flags, self.ran = os.path.abspath(model), flags, []
        self.files = stat_of(self.model)
        cache = os.environ.get("SLUICE_CACHE_DIR") or os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice")
        self.jobs = jobs or os.path.join(cache, "lm-eval")
        self.opened = Model(self.model, **{"progress": "auto", **flags}, retry_errors=True)
        self.opened.encode("")  # refuses a model without a tokenizer

    def encode(self, texts, special):
        """Ids of each text. special: with the tokens that the tokenizer adds."""
        return [self.opened.encode(text, add_special_tokens=special) for text in texts]

    # ---- jobs ----

    def folder(self, command, data):
        """The folder of the job of these rows."""
        answer = {k: v for k, v in self.flags.items() if k not in PLACEMENT}
        key = json.dumps([command, self.files, sorted(answer.items()), hashlib.sha256(data).hexdigest()])
        return os.path.join(self.jobs, f"{command}-{hashlib.sha256(key.encode()).hexdigest()[:16]}")

    def answers(self, command, rows):
        """Results of `sluice run` or `score`, in the order of rows. The same call resumes after a stop."""
        if not rows:
            return []
        data = "".join(json.dumps({"custom_id": str(i), **row}) + "\n" for i, row in enumerate(rows)).encode()
        place = self.folder(command, data)
        source, out = (os.path.join(place, n) for n in ("in.jsonl", "out.jsonl"))
        os.makedirs(place, exist_ok=True)
        if not os.path.exists(source):
            with open(source + ".part", "wb") as f:
                f.write(data)
            os.replace(source + ".part", source)
        summary = self.opened.run(source, out, score=command == "score").summary
        with open(out, encoding="utf-8") as f:
            found = [json.loads(line) for line in f]
        bad = [r for r in found if r.get("error")]
        if bad:
            error = bad[0]["error"]
            raise Failed(f"sluice {command}: {len(bad)} of {len(rows)} rows failed, the first with {error['code']}: {error['message']} "
                         f"({out})")
        if [r["custom_id"] for r in found] != [str(i) for i in range(len(rows))]:
            raise Failed(f"{out}: does not hold the answers of {source}")
        if "plan" in summary:  # else the job was already complete
            self.told(command, summary)
        return found

    def told(self, command, s):
        """Keeps the figures of a run, and prints them."""
        self.ran.append({"command": command, "rows": s["rows"]["total"], "tokens": s["prompt_tokens"] + s["output_tokens"],
                         "seconds": s["elapsed_s"], "tokens_per_s": s["total_tokens_per_s"], "kv": s["kv"], "version": s["version"]})
        print("sluice {command}: {rows} rows, {tokens} tokens, {seconds:.1f} s, {tokens_per_s:.0f} tokens/s".format(**self.ran[-1]),
              file=sys.stderr)


# ---- requests to rows ----

def stops_of(until):
    """Stop strings without the empty one, which some tasks have."""
    return [s for s in ([until] if isinstance(until, str) else until or []) if s]


def options(asked, n_default):
    """Generation options as members of a row, and the number of tokens."""
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
    """(context, continuation) of a text of any length: every id is predicted once; after the first window with as much context in
    front of them as fits `most`."""
    if ids:
        yield [prefix], ids[:most]
    for at in range(most, len(ids), most):
        end = min(at + most, len(ids))
        yield ids[end - most - 1:at], ids[at:end]


@register_model("sluice")
class SluiceLM(LM):
    """The harness's model: three kinds of requests, and a chat template."""

    def __init__(self, model=None, pretrained=None, jobs=None, max_length=None, max_gen_toks=None, add_bos_token=None,
                 prefix_token_id=None, enable_thinking=None, chat_template_args=None, device=None, batch_size=None, max_batch_size=None,
                 **flags):
        super().__init__()
        if not (model or pretrained):
            raise Failed("model_args: model=FILE or FOLDER is missing")
        if device not in (None, "cuda:0"):  # cuda:0 is the harness's default
            flags["device"] = device
        self.sluice = Sluice(model or pretrained, jobs, **flags)  # the plan chooses batch sizes
        own = self.sluice.opened
        self.max_length, self.max_gen_toks = int(max_length or own.context_length), int(max_gen_toks or GEN_TOKENS)
        self.add_bos_token, self.chat_args = add_bos_token, dict(chat_template_args or {})
        if enable_thinking is not None:
            self.chat_args["enable_thinking"] = enable_thinking
        self.eot_token_id = own.eos_token_id
        self.prefix_token_id = next(int(x) for x in (prefix_token_id, own.bos_token_id, own.eos_token_id, -1) if x is not None)

    # ---- tokens ----

    def encode(self, texts):
        """Encodes a prompt: with BOS if the tokenizer adds BOS, but not twice if the template has written BOS."""
        bare = self.sluice.encode(texts, False)
        if self.add_bos_token is False:
            return bare
        return [ids if ids[:1] == [self.prefix_token_id] else self.sluice.opened.encode(t) for ids, t in zip(bare, texts)]

    def pairs(self, asked):
        """Ids of (context, continuation): trailing spaces of a context move to the continuation, and both are encoded together."""
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

    # ---- the harness's requests ----

    def score(self, pairs):
        rows = []
        for context, ids in pairs:
            if len(ids) > self.max_length:
                raise Failed(f"a continuation of {len(ids)} tokens, the model's length is {self.max_length}")
            both = (context + ids)[-self.max_length - 1:]  # the last id is only predicted
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
                row.setdefault("seed", i)  # repeats of a request get different seeds
            rows.append({"prompt_token_ids": ids[-room:] or [self.prefix_token_id], **row})
        return [r["text"] for r in self.sluice.answers("run", rows)]

    # ---- chats ----

    def render(self, chat, open_end):
        return self.sluice.opened.apply_chat_template(chat, tokenize=False, add_generation_prompt=open_end, **self.chat_args)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        chat = [dict(m) for m in chat_history]
        try:
            text = self.render(chat, add_generation_prompt)
        except Error:
            if not any(m["role"] == "system" for m in chat):
                raise
            chat = [m for m in chat if m["role"] != "system"]
            print("lm_eval_sluice: the chat template refuses the chat; trying again without the system message", file=sys.stderr)
            text = self.render(chat, add_generation_prompt)
        if not add_generation_prompt:  # the last message is continued: nothing may follow
            last = chat[-1]["content"]
            last = last if last in text else last.strip()
            text = text[:text.rindex(last) + len(last)]
        return text

    def chat_template(self, chat_template=False):
        """Identifies the template: the harness hashes this text, and stores it with the results."""
        if not chat_template:
            return None
        if chat_template is not True:
            raise Failed("a chat template cannot be chosen by name: sluice uses the model's own")
        return self.render([{"role": "user", "content": "USER"}, {"role": "assistant", "content": "ASSISTANT"},
                            {"role": "user", "content": "USER"}], True)

    @property
    def tokenizer_name(self):
        return self.sluice.model.strip("/").replace("/", "__")

    def get_model_info(self):
        """For the harness's results: model, flags and speed."""
        return {"sluice_flags": words_of(self.sluice.flags), "sluice_jobs": self.sluice.ran}


def main():
    if not HAS_HARNESS:
        sys.exit("lm_eval_sluice.py: the harness is missing: pip install lm_eval")
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()


if __name__ == "__main__":
    main()
