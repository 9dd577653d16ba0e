"""Chat templates: the interpreter against the jinja2 package, live.

Usage: template_live.py TOOL [CACHE]    (TOOL: build/tests/tools/template_tool; CACHE: where the packages with real
templates are kept, see sdist). Each case renders with both: the bytes must be equal, or both must raise, and for a
reason of the same class; every template must render at least one text. The environment is the one of
transformers' apply_chat_template. -v prints every difference in full."""
import datetime
import functools
import itertools
import json
import os
import re
import struct
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

import sdist
from template_families import FAMILIES
from trial import LEVEL, Tally

NOW = 1753876543  # 30 July 2025
TEMPLATE_KEY = struct.pack("<Q", 23) + b"tokenizer.chat_template" + struct.pack("<I", 8)  # in a GGUF: a string

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a place — \"now\" & <soon>",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer", "default": 3},
                    "where": {
                        "type": "object",
                        "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                        "required": ["lat"],
                    },
                    "any": {"type": ["string", "null"]},
                },
                "required": ["city"],
            },
            "return": {"type": "string"},
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, ident="call12345"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "You are terse.\n"}
UNICODE = "Grüße, 世界! 🙂 \u00a0 \u2028 e\u0301 “x” \t\\ 'q' \"d\" <|im_end|> {{ 7*7 }} {% raw %}"


def conversations():
    yield "user", {"messages": [user("Hello")]}
    yield "system", {"messages": [SYSTEM, user("Hello")]}
    yield "multi", {"messages": [SYSTEM, user("One"), assistant("Two"), user("Three"), assistant("Four"), user(" Five ")]}
    yield "nosystem", {"messages": [user("One"), assistant("Two"), user("Three")]}
    yield "ends", {"messages": [user("One"), assistant("Two")]}
    yield "empty", {"messages": [{"role": "system", "content": ""}, user(""), assistant(""), user("x")]}
    yield "none", {"messages": []}
    yield "null", {"messages": [user("a"), assistant(None), user("b")]}
    yield "unicode", {"messages": [{"role": "system", "content": UNICODE}, user(UNICODE), assistant(UNICODE), user(UNICODE)]}
    yield "order", {"messages": [user("a"), user("b"), assistant("c"), assistant("d")]}
    yield "role", {"messages": [{"role": "critic", "content": "x"}, user("y")]}
    yield "developer", {"messages": [{"role": "developer", "content": "Be kind."}, user("y")]}
    yield "parts", {"messages": [user([{"type": "text", "text": "Look"}, {"type": "text", "text": " here"}]), assistant("ok"), user("x")]}
    yield "image", {"messages": [user([{"type": "image"}, {"type": "text", "text": "What?"}])]}
    yield "think", {"messages": [user("2+2?"), assistant("<think>\nadd\n</think>\n\n4"), user("sure?"), assistant("Yes", reasoning_content="hm\n"), user("ok")]}
    yield "thinking-off", {"messages": [user("2+2?")], "extra": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}}
    yield "thinking-on", {"messages": [SYSTEM, user("2+2?")], "extra": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}}
    yield "missing", {"messages": [{"role": "user"}]}
    yield "date", {"messages": [user("x")], "extra": {"date_string": "26 Jul 2024", "custom_tools": None, "documents": [{"title": "T", "text": "D"}]}}
    yield "tools", {"messages": [user("Weather?")], "tools": TOOLS}
    yield "tools+system", {"messages": [SYSTEM, user("Weather?")], "tools": TOOLS}
    yield "one-tool", {"messages": [SYSTEM, user("Weather?")], "tools": TOOLS[:1]}
    yield "tools-user", {"messages": [SYSTEM, user("Weather?")], "tools": TOOLS, "extra": {"tools_in_user_message": False}}
    for name, arguments in (("object", {"city": "Köln", "days": 2, "x": [1, None, True, 1.5, {"a": "b"}]}), ("string", '{"city": "Köln", "days": 2}')):
        for content in ("", None, "Let me see."):
            called = assistant(content, tool_calls=[call("get_weather", arguments)])
            yield f"call-{name}-{content!r}", {"messages": [user("W?"), called], "tools": TOOLS}
            yield f"result-{name}-{content!r}", {
                "messages": [SYSTEM, user("W?"), called, {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": '{"t": 21}'}],
                "tools": TOOLS,
            }
            yield f"answer-{name}-{content!r}", {
                "messages": [
                    user("W?"),
                    called,
                    {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "21 °C"},
                    assistant("It is 21 °C."),
                    user("Thanks"),
                ],
                "tools": TOOLS,
            }
    # Some templates recurse without end on the type of TOOLS' "any"; one wants its functions as text.
    plain = {"name": "now", "description": "The time", "parameters": {
        "type": "object", "properties": {"zone": {"type": "string", "description": "A zone"}}, "required": ["zone"]}}
    yield "plain-tool", {"messages": [SYSTEM, user("t?")], "tools": [{"type": "function", "function": plain}],
                         "extra": {"functions": "[]", "datetime": "now"}}
    two = assistant(None, tool_calls=[call("get_weather", {"city": "A"}), call("now", {}, "call67890")], reasoning_content="both")
    yield "two-calls", {
        "messages": [
            user("W?"),
            two,
            {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "1"},
            {"role": "tool", "name": "now", "tool_call_id": "call67890", "content": "2"},
        ],
        "tools": TOOLS,
    }
    bare = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": {}}}]}
    yield "bare-call", {"messages": [user("t?"), bare, {"role": "tool", "content": "12:00"}], "tools": TOOLS}
    kinds = {"type": "object", "required": ["a"], "properties": {
        "a": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "number"}, "c": {"type": "boolean"}}}},
        "d": {"type": "string", "enum": ["x", "y"], "nullable": True, "default": "x"},
        "e": {"oneOf": [{"type": "string", "default": "s"}, {"type": "integer"}]},
        "f": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "g": {"type": "object"}, "h": {}}}
    yield "schemas", {"messages": [user("?")], "tools": [{"type": "function", "function": {
        "name": "many", "description": "Kinds", "parameters": kinds}}]}
    # What templates take besides: see their own comments, and chat_template_kwargs of a row.
    yield "gpt-oss", {"messages": [SYSTEM, user("?")], "tools": TOOLS[1:], "extra": {
        "builtin_tools": ["browser", "python"], "model_identity": "I am I.", "reasoning_effort": "high"}}
    yield "documents", {"messages": [user("?")], "extra": {
        "documents": [{"doc_id": 1, "title": "T", "text": "One."}, {"doc_id": "b", "title": "U", "text": "Two."}],
        "controls": {"citations": True, "length": "short"}, "available_tools": TOOLS[1:]}}
    yield "tool-kinds", {"messages": [SYSTEM, user("?")], "extra": {
        "xml_tools": TOOLS, "python_tools": ["def f(): pass"], "custom_tools": TOOLS[1:], "builtin_tools": ["python"], "tool_choice": "auto"}}
    yield "no-thoughts", {"messages": [{"role": "system", "content": "/no_think Be brief."}, user("?"), assistant("!"), user("?")]}
    yield "own-tokens", {"messages": [user("?"), assistant("!")], "extra": {"bos_token": "<B>", "eos_token": "<E>"}}
    for key in ("thinking", "reasoning_content", "reasoning"):
        thought = {"role": "assistant", "content": "", key: "hm\n", "tool_calls": [call("now", {})]}
        yield f"{key}-call", {"messages": [user("t?"), thought, {"role": "tool", "tool_call_id": "call12345", "content": "12"}], "tools": TOOLS[1:]}
        yield f"{key}-last", {"messages": [user("t?"), {"role": "assistant", "content": "It is 12.", key: "hm"}]}
    two = assistant(None, tool_calls=[call("now", {}, "aaaaaaaaa"), call("get_weather", {"city": "Köln"}, "bbbbbbbbb")])
    yield "two-calls", {"messages": [user("t?"), two, {"role": "tool", "tool_call_id": "aaaaaaaaa", "name": "now", "content": "12"},
                                     {"role": "tool", "tool_call_id": "bbbbbbbbb", "name": "get_weather", "content": {"content": "21"}},
                                     assistant("Both."), user("ok")], "tools": TOOLS}
    flat = {"role": "assistant", "content": "", "tool_calls": [{"name": "now", "arguments": {"a": 1}}]}
    yield "flat-call", {"messages": [user("t?"), flat, {"role": "tool", "content": {"a": 1}}], "tools": TOOLS}


def python_environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

        def _pass(self, caller):
            return caller()

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            self, args = args[0], args[1:]
            values = dict(*args, **kwargs)
            for name in values:
                Namespace._check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            Namespace._check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(name)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    env.globals["namespace"] = Namespace
    return env


@functools.lru_cache(maxsize=None)
def compiled(env, text):
    return env.from_string(text)  # most of the time that jinja2 takes


def by_python(env, job):
    try:
        values = {name: job[name] for name in ("bos_token", "eos_token") if job.get(name) is not None}
        values |= {"tools": job.get("tools"), "documents": None, **(job.get("extra") or {})}
        template = compiled(env, job["template"])
        return {"text": template.render(messages=job["messages"], add_generation_prompt=job.get("add_generation_prompt", False), **values)}
    except Exception as e:  # whatever Python raises is "raises"
        return {"error": f"{type(e).__name__}: {e}"}


class Tool:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, job):
        self.process.stdin.write(json.dumps({**job, "now_epoch": NOW}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the tool died (status {self.process.wait()}) of {json.dumps(job)}")
        return json.loads(line)


# Why a template raises: the class, what we say of it, and what Python raises then. First match.
REASONS = (
    ("refuses", r"the template refuses: ", ("TemplateError",)),
    ("no such global", r"'(cycler|joiner|lipsum)' is undefined$", ("SecurityError",)),  # there they exist, guarded
    ("undefined", r" is undefined$", ("UndefinedError",)),
    ("unknown name", r"unknown (filter|test) ", ("TemplateAssertionError", "TemplateRuntimeError")),
    ("not allowed", r" is refused\b|cannot hold names|range\(\) of more than", ("SecurityError", "OverflowError")),
    ("no files", r"unsupported or unexpected tag {% (include|import|from|extends) %}", ("TypeError",)),
    ("syntax", r"unsupported or unexpected tag|unexpected |template ends|tag ends|without ({%|end)|cannot be chained|"
     r"expected .*, found |cannot assign|positional argument follows|outside a loop", ("TemplateSyntaxError", "SyntaxError")),
    ("recursion", r"nested too deeply", ("RecursionError",)),
    ("not settable", r"only a namespace has settable", ("TemplateRuntimeError",)),
    ("value", r"", ("TypeError", "ValueError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError",
                    "AssertionError")),
)


def reason(ours, theirs):
    """(class of our error, whether Python's is of it); a template's own words must be the same."""
    text = re.sub(r"^live: chat template: (line \d+: )?", "", ours)
    kind, raised = theirs.split(": ", 1)
    name, words, kinds = next(r for r in REASONS if re.search(r[1], text))
    same = kind in kinds
    if name == "refuses":
        same = same and text.split(": ", 1)[1].strip() == raised.strip()
    if name == "unknown name":
        same = same and re.search(r"'.*'", text)[0] in raised
    return name, same


class Count(Tally):
    def __init__(self, verbose):
        super().__init__()
        self.rendered, self.raised, self.verbose = 0, {}, verbose

    def compare(self, name, ours, theirs):
        if "error" in ours and "error" in theirs:
            kind, same = reason(ours["error"], theirs["error"])
            self.raised[kind] = self.raised.get(kind, 0) + 1
            what = f"{name}: both raise, but not for the same reason ({kind})"
        else:
            same = ours.get("text") == theirs.get("text") and "text" in ours
            self.rendered += same
            what = name
        self.check(same, f"{what}\n  ours   {shorten(ours, theirs, self.verbose)}\n  python "
                   f"{shorten(theirs, ours, self.verbose)}")
        return same


def shorten(a, b, verbose):
    if "error" in a:
        return a["error"]
    if verbose or "error" in b:
        return repr(a["text"]) if verbose else "text"
    at = next((i for i, (x, y) in enumerate(zip(a["text"], b["text"])) if x != y), min(len(a["text"]), len(b["text"])))
    return f"at {at}: ...{a['text'][max(0, at - 40):at + 40]!r}"


def real_templates(count, cache):
    """(name, text) of what the packages hold: files, and what stands inside vocabularies."""
    found = []
    for path in sdist.files(cache, ".jinja"):
        with open(path, encoding="utf-8", newline="") as f:
            found.append((os.path.basename(path), f.read()))
    for path in sdist.files(cache, ".gguf"):
        with open(path, "rb") as f:
            data = f.read()
        at = data.find(TEMPLATE_KEY)  # a reader of GGUF takes minutes over the vocabularies around it
        if at >= 0:
            at += len(TEMPLATE_KEY)
            size = struct.unpack_from("<Q", data, at)[0]
            found.append((os.path.basename(path), data[at + 8:at + 8 + size].decode()))
    if found:
        count.check(len(found) > 53, f"only {len(found)} templates in {sdist.PACKAGE}")
    elif LEVEL:
        count.skip(f"templates of {sdist.PACKAGE}: could not be downloaded")
    more = sdist.wheel_templates(cache)
    if more:
        count.check(len(more) > 20, f"only {len(more)} templates in {sdist.WHEEL}")
    elif LEVEL:
        count.skip(f"templates of {sdist.WHEEL}: could not be downloaded")
    texts = {}
    for name, text in found + more:
        texts.setdefault(text, name)
    return [(name, text) for text, name in texts.items()]


# What level check renders of each template: one conversation of each kind.
KINDS = ("user", "tools+system", "answer-object-None", "think", "unicode", "none")


def run_templates(tool, env, count, cache):
    talks = [c for c in conversations() if LEVEL or c[0] in KINDS]
    for name, text in [(f"like {name}", text) for name, text in FAMILIES.items()] + real_templates(count, cache):
        equal = texts = total = 0
        for (what, job), prompt in itertools.product(talks, (False, True)):
            job = {"template": text, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt, **job}
            before = count.rendered
            equal += count.compare(f"{name}: {what} prompt={prompt}", tool.render(job), by_python(env, job))
            texts += count.rendered - before
            total += 1
        print(f"{equal:3}/{total} equal, {texts:3} of them texts: {name}")
        count.check(texts, f"{name}: no conversation gave a text")


def run_snippets(tool, env, count):
    from template_snippets import SNIPPETS, VALUES

    for text in SNIPPETS:
        job = {"template": text, "messages": [SYSTEM, user("Hi"), assistant("Yo")], "extra": VALUES, "bos_token": "<s>", "eos_token": None}
        count.compare(repr(text), tool.render(job), by_python(env, job))
    print(f"{len(SNIPPETS)} snippets")


def main():
    arguments = [a for a in sys.argv[1:] if a != "-v"]
    if not arguments:
        print(__doc__)
        return 2
    count, tool, env = Count("-v" in sys.argv), Tool(arguments[0]), python_environment()
    run_snippets(tool, env, count)
    run_templates(tool, env, count, arguments[1] if len(arguments) > 1 else "build/cache")
    print("both raise, by reason: " + ", ".join(f"{n} {kind}" for kind, n in sorted(count.raised.items())))
    return count.end()


if __name__ == "__main__":
    sys.exit(main())
