#!/usr/bin/env python3
"""Rows with tools and template variables, through the binary: chat_rows_test.py [SLUICE] [--only PART]

What `tokenize` shows of a conversation is what jinja2 makes of it, and `run` computes on just those tokens.
The models are llamas of two layers whose tokens are bytes, with templates in the manner of families.
"""
import json
import os
import re
import select
import subprocess
import sys

import nth
import template_live
import trial
from template_families import FAMILIES
from template_live import NOW, SYSTEM, TOOLS, call, user
from trial import difference, read

BOS, EOS = "\1", "\2"
RESULT = {"role": "tool", "name": "now", "tool_call_id": "abcdefghi", "content": "12:00"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [call("now", {"zone": "Köln"}, "abcdefghi")]}
THOUGHT = {"role": "assistant", "content": "Noon.", "reasoning_content": "12 is noon\n"}
ROWS = (
    {"messages": [user("t?")]},
    {"messages": [SYSTEM, user("t?")], "tools": TOOLS},
    {"messages": [user("t?"), CALLED, RESULT, THOUGHT, user("ok")], "tools": TOOLS[1:]},
    {"messages": [user("t?"), CALLED, RESULT], "tools": TOOLS[1:], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [user("?")], "chat_template_kwargs": {
        "documents": [{"doc_id": 1, "text": "One <b>."}], "controls": {"length": "short"}, "thinking": True,
        "reasoning_effort": "high", "builtin_tools": ["python"], "model_identity": "I am I."}},
    {"messages": [user("a"), THOUGHT], "chat_template_kwargs": {"add_generation_prompt": False, "eos_token": "<E>"}},
)


def model(place, name, template):
    """A model whose context holds what templates make of tools."""
    folder = nth.text_model(place.at(name.replace(" ", "-")))
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**config, "max_position_embeddings": 4096, "bos_token_id": ord(BOS), "eos_token_id": ord(EOS)}, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"chat_template": template}, f)
    return folder


def tokenized(tally, place, path, rows):
    done = place.expect(tally, "tokenize", 0, "tokenize", "-m", path, stdin="".join(json.dumps(r) + "\n" for r in rows),
                        SOURCE_DATE_EPOCH=str(NOW))
    return [json.loads(x) for x in done.out.splitlines()]


def rendered(tally, place, _):
    """The text of every row is jinja2's."""
    env = template_live.python_environment()
    for name in ("qwen3", "granite", "gpt oss", "smollm3", "mistral tools", "gemma3"):
        path, texts = model(place, name, FAMILIES[name]), []
        for row in ROWS:
            extra = dict(row.get("chat_template_kwargs", {}))
            texts.append(template_live.by_python(env, {
                "template": FAMILIES[name], "messages": row["messages"], "tools": row.get("tools"), "extra": extra,
                "bos_token": BOS, "eos_token": EOS, "add_generation_prompt": extra.pop("add_generation_prompt", True)}))
        named = [(row, t["text"]) for row, t in zip(ROWS, texts) if "text" in t and usable(row, FAMILIES[name])]
        tally.check(len(named) > 1, f"{name}: {len(named)} rows that it can render")
        got = [x.get("text") for x in tokenized(tally, place, path, [row for row, _ in named])]
        for (row, text), ours in zip(named, got):
            tally.check(ours == text, f"{name}: {row}\n  ours   {ours!r}\n  python {text!r}")


def usable(row, template):
    return ("tools" in template or "tools" not in row) and (
        "tool_calls" in template or not any("tool_calls" in m for m in row["messages"]))


def computed(tally, place, _):
    """A row of messages gives what a row of its tokens gives, in both forms of rows."""
    path = model(place, "gpt oss", FAMILIES["gpt oss"])
    rows = [dict(r, custom_id=f"r{i}", max_tokens=6, temperature=0, ignore_eos=True) for i, r in enumerate(ROWS)]
    ids = [x["ids"] for x in tokenized(tally, place, path, ROWS)]
    plain = [{"custom_id": r["custom_id"], "prompt_token_ids": t, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
             for r, t in zip(rows, ids)]
    batch = [{"custom_id": r.pop("custom_id"), "method": "POST", "url": "/v1/chat/completions", "body": r}
             for r in [dict(r) for r in rows]]
    outs = []
    for what, each in (("messages", rows), ("tokens", plain), ("batch", batch)):
        out = place.fresh()
        place.expect(tally, f"run of {what}", 0, "run", "-m", path, "-i", place.rows("in.jsonl", each), "-o", out, "--mem-ram", "64M",
                     "--progress", "none", SOURCE_DATE_EPOCH=str(NOW))
        outs.append(read(out))
    tally.check(outs[0] == outs[1] and len(outs[0].splitlines()) == len(ROWS), f"tokens: {difference(outs[1], outs[0])}")
    bodies = [json.loads(x)["response"]["body"] for x in outs[2].splitlines()]
    tally.check([b["usage"]["prompt_tokens"] for b in bodies] == [len(t) for t in ids], "prompt tokens of the batch form")
    tally.check([b["choices"][0]["message"]["content"] for b in bodies] == [json.loads(x)["text"] for x in outs[0].splitlines()],
                "text of the batch form")


def refused(tally, place, _):
    """Bad fields are rows of their own; what the template cannot show is not dropped in silence."""
    path = model(place, "olmo2", FAMILIES["olmo2"])
    rows = [{"messages": [user("a")], "tools": TOOLS}, {"messages": [user("a")], "chat_template_kwargs": []},
            {"messages": [user("a"), CALLED, RESULT]}, {"messages": [user("a")], "max_tokens": 2}]
    run = ["run", "-m", path, "-i", place.rows("in.jsonl", rows), "--mem-ram", "64M", "--progress", "none"]
    out = place.fresh()
    place.expect(tally, "run of bad rows", 3, *run, "-o", out)
    codes = [json.loads(x).get("error", {}).get("code") for x in read(out).splitlines()]
    tally.check(codes == ["unsupported_field", "invalid_request", "unsupported_field", None], f"codes: {codes}")
    out = place.fresh()
    done = place.expect(tally, "run of bad rows, --ignore-fields", 3, *run, "-o", out, "--ignore-fields", "tools,tool_calls")
    codes = [(json.loads(x).get("error") or {}).get("code") for x in read(out).splitlines()]
    tally.check(codes == [None, "invalid_request", None, None], f"--ignore-fields: codes {codes}")
    tally.check(all(f'--ignore-fields: 1 row is answered without "{name}"' in done.err for name in ("tools", "tool_calls")),
                f"--ignore-fields: {done.err[-300:]!r}")
    broken = model(place, "broken", "{{ a\n}}{% if %}")
    out = place.fresh()
    place.expect(tally, "run with a template that does not parse", 3, *run[:2], broken, *run[3:], "-o", out)
    said = {json.loads(x)["error"]["message"] for x in read(out).splitlines()}
    tally.check(len(said) == 1 and all(re.fullmatch("the model's chat template cannot be used: line 2: .+", x) for x in said),
                f"a template that does not parse: {said}")
    done = place.sluice("tokenize", "-m", path, stdin=json.dumps(rows[0]) + "\n")
    tally.check(done.code == 3 and "does not use it" in done.out, f"tokenize: exit {done.code} {done.out!r}")


def at_once(tally, place, _):
    """A row's answer is there before the next row is written."""
    path = model(place, "once", "{{ messages[0].content }}")
    with subprocess.Popen([place.binary, "tokenize", "-q", "-m", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=place.env) as p:
        p.stdin.write(b'{"text": "a"}\n')
        p.stdin.flush()
        tally.check(select.select([p.stdout], [], [], 60)[0] and p.stdout.readline() == b'{"ids":[97]}\n', "tokenize answers row by row")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (rendered, computed, refused, at_once)))
