#!/usr/bin/env python3
"""Compares SentencePiece, tiktoken and tekken vocabularies with the libraries `sentencepiece` and `tokenizers`, live.

    token_spm_live.py [--cache DIR] [--strings N]

Needs build/tests/tools/token_tool; $BUILD names another build. Vocabularies: small ones trained here, for every
setting that is followed, and Llama 2's (BPE) and XLM-R's (Unigram), which the source package of llama-cpp-python
carries (sdist). Each is written as every container it has: tokenizer.model, tokenizer.json in the old form and the
new, GGUF, and compared on N mixed strings (20,000) and on every assigned character, as token_live.py does.
"""
import argparse
import base64
import io
import json
import os
import re
import struct
import sys
import tempfile

import gguf
import numpy
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre, processors

import sdist
import token_live as live
from trial import LEVEL, pick

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
VOCABULARIES = {"llama-spm": "bpe", "nomic-bert-moe": "unigram"}  # of the package


# ---- tokenizer.model: as little of protobuf as it needs ----

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """(number, value) of each field of a message."""
    at = 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            b = data[at]
            at += 1
            n |= (b & 127) << shift
            shift += 7
            if b < 128:
                return n
    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            n = {1: 8, 5: 4}.get(key & 7) or number()
            yield key >> 3, data[at:at + n]
            at += n


class Model:
    """A vocabulary and its settings, whatever it came from."""

    def __init__(self, kind, pieces, charsmap=b"", prefix=True, trim=False, suffix=False, escape=True):
        self.kind, self.pieces, self.charsmap = kind, pieces, charsmap  # pieces: (text, score, type)
        self.prefix, self.trim, self.suffix, self.escape = prefix, trim, suffix, escape
        self.ends = ([], [])  # ids around a text

    @classmethod
    def parse(cls, data):
        model = cls("unigram", [])
        model.trim = True
        for number, value in fields(data):
            inner = dict(fields(value)) if isinstance(value, bytes) else {}
            if number == 1:
                model.pieces.append((inner[1].decode(), struct.unpack("<f", inner.get(2, bytes(4)))[0], inner.get(3, 1)))
            elif number == 2:
                model.kind = {1: "unigram", 2: "bpe"}[inner.get(3, 1)]
                model.suffix = bool(inner.get(24, 0))
            elif number == 3:
                model.charsmap = inner.get(2, b"")
                model.prefix, model.trim = bool(inner.get(3, 1)), bool(inner.get(4, 1))
        return model

    def bytes(self):
        out = b"".join(field(1, field(1, t.encode()) + field(2, float(s)) + field(3, k)) for t, s, k in self.pieces)
        out += field(2, field(3, 1 if self.kind == "unigram" else 2) + field(24, int(self.suffix)) +
                     field(35, int(self.has_bytes)))
        return out + field(3, field(1, b"x") + field(2, self.charsmap) + field(3, int(self.prefix)) +
                           field(4, int(self.trim)) + field(5, int(self.escape)))

    @property
    def has_bytes(self):
        return any(k == BYTE for _, _, k in self.pieces)

    @property
    def unk(self):
        return next(i for i, p in enumerate(self.pieces) if p[2] == UNKNOWN)

    def processor(self):
        return sentencepiece.SentencePieceProcessor(model_proto=self.bytes())

    def write(self, folder, **config):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
            f.write(self.bytes())
        if config:
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                json.dump(config, f)
        return folder

    def write_gguf(self, path):
        w = gguf.GGUFWriter(path, "llama")
        w.add_tokenizer_model("llama" if self.kind == "bpe" else "t5")
        w.add_token_list([p[0] for p in self.pieces])
        w.add_token_scores([p[1] for p in self.pieces])
        w.add_token_types([p[2] for p in self.pieces])
        w.add_add_space_prefix(self.prefix)
        w.add_remove_extra_whitespaces(self.trim)
        if self.charsmap:
            w.add_precompiled_charsmap(self.charsmap)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(self.unk)
        w.add_add_bos_token(True)
        w.add_tensor("token_embd.weight", numpy.zeros((len(self.pieces), 32), numpy.float32))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    def tokenizer(self, form):
        """As transformers turns it into a tokenizer.json: "legacy" or "new"; Unigram has one form."""
        if self.kind == "unigram":
            ref = Tokenizer(models.Unigram([(t, s) for t, s, _ in self.pieces], unk_id=self.unk, byte_fallback=self.has_bytes))
            scheme = "always" if self.prefix else "never"
            norms = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
            if self.trim:
                norms += [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), SPACE)]
            if norms:
                ref.normalizer = normalizers.Sequence(norms)
            ref.pre_tokenizer = pre.Metaspace(SPACE, scheme)
            ref.decoder = decoders.Metaspace(SPACE, scheme)
            if self.has_bytes:
                ref.decoder = decoders.Sequence([decoders.Metaspace(SPACE, scheme), decoders.ByteFallback(), decoders.Fuse()])
        else:
            ref = Tokenizer(models.BPE({t: i for i, (t, _, _) in enumerate(self.pieces)}, self.merges(), fuse_unk=True,
                                       byte_fallback=self.has_bytes, unk_token=self.pieces[self.unk][0]))
            steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
            if form == "legacy":
                ref.normalizer = normalizers.Sequence(([normalizers.Prepend(SPACE)] if self.prefix else []) +
                                                      [normalizers.Replace(" ", SPACE)])
            else:
                ref.pre_tokenizer = pre.Metaspace(SPACE, "first" if self.prefix else "never", split=False)
            ref.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if self.prefix else []))
        ref.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, _, k in self.pieces
                                if k in (UNKNOWN, CONTROL)])
        ref.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        return ref

    def merges(self):
        ids = {t: i for i, (t, _, k) in enumerate(self.pieces) if k == NORMAL}
        found = [(-self.pieces[i][1], ids[t[:k]], ids[t[k:]], t[:k], t[k:]) for t, i in ids.items()
                 for k in range(1, len(t)) if t[:k] in ids and t[k:] in ids]
        return [(left, right) for _, _, _, left, right in sorted(found)]


class Ids:
    def __init__(self, ids):
        self.ids = ids


class SentencePiece:
    """sentencepiece behind the calls that token_live.compare makes."""

    def __init__(self, model, before=(), after=()):
        self.processor, self.before, self.after = model.processor(), list(before), list(after)

    def encode_batch(self, rows, add_special_tokens):
        if not add_special_tokens:
            return [Ids(self.processor.encode(r)) for r in rows]
        return [Ids(self.before + self.processor.encode(r) + self.after) for r in rows]

    def decode(self, ids, skip_special_tokens):
        return self.processor.decode(ids)

    def get_vocab_size(self):
        return self.processor.get_piece_size()


# ---- vocabularies ----

def trained(kind, corpus, **settings):
    out = io.BytesIO()
    settings = {"vocab_size": 2000, "hard_vocab_limit": False, "num_threads": 1, "character_coverage": 0.9995,
                "minloglevel": 2, "byte_fallback": True, "normalization_rule_name": "identity",
                "remove_extra_whitespaces": False, **settings}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=out, model_type=kind, **settings)
    return Model.parse(out.getvalue())


def from_package(path):
    f = gguf.GGUFReader(path).fields

    def get(key, default=None):
        name = "tokenizer.ggml." + key
        return f[name].contents() if name in f else default
    model = Model(VOCABULARIES[os.path.basename(path)[len("ggml-vocab-"):-len(".gguf")]],
                  list(zip(get("tokens"), get("scores"), get("token_type"))))
    model.prefix, model.trim = get("add_space_prefix", True), get("remove_extra_whitespaces", False)
    model.charsmap = bytes(b & 255 for b in get("precompiled_charsmap", []))
    model.ends = ([get("bos_token_id")] if get("add_bos_token") else [], [get("eos_token_id")] if get("add_eos_token") else [])
    return model


CORPUS = None


def corpus():
    global CORPUS
    if CORPUS is None:
        CORPUS = [x for x in live.wikitext().split("\n") if x.strip()][:1500] + [s for s in live.SOLID if s.strip()]
        CORPUS = [x.replace("\0", "")[:1000] for x in CORPUS]
    return CORPUS


# ---- tests ----

def test_containers(name, model, strings, tmp, gguf_path=None):
    """One vocabulary in each of its containers, all strings from each."""
    plain = SentencePiece(model, [1] if model.kind == "bpe" else [])  # Llama's class adds BOS; there is none for Unigram
    folder = os.path.join(tmp, name)
    live.compare(name + " tokenizer.model", model.write(folder + ".model"), plain, strings, skips=(True,))
    # GGUF's reader parses special tokens in a text, sentencepiece does not
    rows = [s for s in strings if not re.search("<(unk|/?s)>", s)]
    if gguf_path:
        live.compare(name + " GGUF", gguf_path, SentencePiece(model, *model.ends), rows, skips=(True,))
    else:
        live.compare(name + " GGUF", model.write_gguf(folder + ".gguf"), SentencePiece(model, [1]), rows, skips=(True,))
    for form in ("legacy", "new") if model.kind == "bpe" else ("json",):
        rows = strings + ["<s>a", "a </s> b<unk>", "<s> x", " <s>", "</s>", "a<s>  b"]
        ref = model.tokenizer(form)
        live.compare(f"{name} tokenizer.json {form}", live.save(ref, f"{folder}.{form}"), ref, rows)


def test_settings(strings, tmp):
    """Every setting of SentencePiece that changes ids."""
    chars = "".join(sorted(c for c in set("".join(corpus())) if not c.isspace()))[:100]
    cases = {
        "bpe": {}, "bpe, no prefix": {"add_dummy_prefix": False}, "bpe, nmt_nfkc": {"normalization_rule_name": "nmt_nfkc"},
        "bpe, trimmed": {"remove_extra_whitespaces": True}, "bpe, suffix": {"treat_whitespace_as_suffix": True},
        "bpe, unknown": {"byte_fallback": False}, "bpe, nfkc_cf trimmed": {"normalization_rule_name": "nfkc_cf",
                                                                           "remove_extra_whitespaces": True},
        "bpe, user-defined": {"user_defined_symbols": ["<|im_start|>", "\u2581\u2581", "ing", "the\u2581", "\n\n", "Éa", "é"],
                              "normalization_rule_name": "nfkc"},
        "bpe, across spaces": {"split_by_whitespace": False, "required_chars": chars},
        "unigram": {}, "unigram, nmt_nfkc trimmed": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
        "unigram, unknown": {"byte_fallback": False, "add_dummy_prefix": False},
        "unigram, user-defined": {"user_defined_symbols": ["<|im_start|>", "ing", "word"]},
        "unigram, suffix": {"treat_whitespace_as_suffix": True, "remove_extra_whitespaces": True},
    }
    for k, (name, settings) in enumerate(cases.items()):
        model = trained(name.split(",")[0], corpus(), **settings)
        folder = model.write(os.path.join(tmp, f"setting{k}"))
        rows = strings[k % 7::7] + live.SOLID
        live.compare(name, folder, SentencePiece(model, [1] if model.kind == "bpe" else []), rows, skips=(True,))


def test_forms(strings, tmp):
    """tokenizer.json of other families: Gemma's, T5's old one, XLM-R's, Metaspace in each scheme. The reference of a Unigram
    is never read from JSON: serde_json rounds numbers of 17 digits twice, and of two paths with equal scores another one wins."""
    bpe = trained("bpe", corpus(), user_defined_symbols=["\n\n", SPACE * 2])
    unigram = trained("unigram", corpus(), normalization_rule_name="nmt_nfkc", byte_fallback=False)
    gemma, t5 = bpe.tokenizer("legacy"), unigram.tokenizer("json")
    gemma.normalizer, gemma.pre_tokenizer = normalizers.Replace(" ", SPACE), pre.Split(" ", "merged_with_previous")
    gemma.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    gemma.add_tokens([AddedToken("\n\n", normalized=False), AddedToken(SPACE * 2, normalized=False), AddedToken("word y", normalized=True)])
    cases = {"gemma": gemma}
    live.compare("gemma4 GGUF", *gemma4(tmp), strings[::3] + live.SOLID + ["a\n\n\nb\n", "\n" * 7, "x \n\n  y<s>z"])
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            ref = cases[f"t5 {scheme} split={split}"] = unigram.tokenizer("json")
            ref.pre_tokenizer, ref.decoder = pre.Metaspace("_" if split else SPACE, scheme, split), decoders.Metaspace(SPACE, scheme)
            ref.add_tokens([AddedToken("<x>", lstrip=True, rstrip=True), AddedToken("Éa", normalized=True)])
    ref = cases["whitespace"] = unigram.tokenizer("json")
    ref.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace(SPACE, "always")])
    ref = cases["strip"] = unigram.tokenizer("json")
    ref.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Precompiled(unigram.charsmap), normalizers.Replace(Regex("[aeiou]*"), "x")])
    for k, (name, ref) in enumerate(cases.items()):
        live.compare("form " + name, live.save(ref, os.path.join(tmp, f"form{k}")), ref, strings[k % 9::9] + live.SOLID)
    # a file as older versions wrote it
    state = json.loads(t5.to_str())
    state["pre_tokenizer"] = state["decoder"] = {"type": "Metaspace", "replacement": SPACE, "add_prefix_space": True}
    folder = os.path.join(tmp, "old")
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(state, f)
    t5.pre_tokenizer, t5.decoder = pre.Metaspace(SPACE, "always"), decoders.Metaspace(SPACE, "always")
    live.compare("form old", folder, t5, strings[::9])


def gemma4(tmp):
    """A GGUF file as llama.cpp writes it of Gemma 4, and its tokenizer.json: merges of characters, newlines are added tokens."""
    bpe = trained("bpe", corpus(), user_defined_symbols=["\n", "\n\n", "\n\n\n"])
    ref = bpe.tokenizer("legacy")
    ref.normalizer, ref.pre_tokenizer = normalizers.Replace(" ", SPACE), pre.Split(" ", "merged_with_previous")
    ref.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    ref.add_tokens([AddedToken(p[0], normalized=False) for p in bpe.pieces if not p[0].strip("\n")])
    path = os.path.join(tmp, "gemma4.gguf")
    w = gguf.GGUFWriter(path, "gemma4")
    w.add_tokenizer_model("gemma4")
    w.add_token_list([p[0] for p in bpe.pieces])
    w.add_token_scores([-1000.0] * len(bpe.pieces))
    w.add_token_types([{USER_DEFINED: NORMAL, UNKNOWN: CONTROL}.get(p[2], p[2]) for p in bpe.pieces])
    w.add_token_merges([" ".join(m) for m in bpe.merges()])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(bpe.unk)
    w.add_add_space_prefix(False)
    w.add_add_bos_token(True)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    return path, ref


def test_tiktoken(strings, tmp):
    """Base64 and rank: the lowest rank of a union merges first."""
    vocab, _ = live.trained(strings)
    spell = {c: b for b, c in enumerate(live_alphabet())}
    by_bytes = {bytes(spell[c] for c in t): i for t, i in vocab.items()}
    order = sorted(by_bytes, key=by_bytes.get)
    single = [bytes([b]) for b in range(256)]
    ranks = {t: i for i, t in enumerate(single + [t for t in order if len(t) > 1])}
    text = b"".join(base64.b64encode(t) + b" " + str(i).encode() + b"\n" for t, i in ranks.items())
    alphabet = live_alphabet()
    write = {t: "".join(alphabet[b] for b in t) for t in ranks}
    merges = sorted((i, ranks[t[:k]], ranks[t[k:]], write[t[:k]], write[t[k:]]) for t, i in ranks.items()
                    for k in range(1, len(t)) if t[:k] in ranks and t[k:] in ranks)
    for name, pattern, norm in (("tokenizer.model", live.LLAMA3, None), ("tiktoken.model", live.KIMI, None), ("qwen.tiktoken", live.QWEN2, normalizers.NFC())):
        ref = Tokenizer(models.BPE({write[t]: i for t, i in ranks.items()}, [m[3:] for m in merges], ignore_merges=True))
        ref.pre_tokenizer = pre.Sequence([pre.Split(Regex(pattern), "isolated"),
                                          pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        ref.decoder = decoders.ByteLevel()
        if norm:
            ref.normalizer = norm
        ref.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
        folder = os.path.join(tmp, name + ".dir")
        os.makedirs(folder)
        with open(os.path.join(folder, name), "wb") as f:
            f.write(text)
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"added_tokens_decoder": {str(len(ranks) + i): {"content": t, "special": True} for i, t in
                                                enumerate(("<|im_start|>", "<|im_end|>"))}}, f)
        live.compare("tiktoken " + name, folder, ref, strings if norm is None else strings[::5], special=False)


def test_tekken(strings, tmp):
    """tekken.json: special tokens first, the vocabulary behind all of their places, and more of it than is used."""
    vocab, _ = live.trained(corpus())
    spell = {c: b for b, c in enumerate(live_alphabet())}
    order = [bytes(spell[c] for c in t) for t in sorted(vocab, key=vocab.get)]
    tokens = [bytes([b]) for b in range(256)] + [t for t in order if len(t) > 1]
    named, places, used = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], 20, len(tokens) - 40
    every = named + [f"<SPECIAL_{i}>" for i in range(len(named), places)]
    alphabet = live_alphabet()
    write = ["".join(alphabet[b] for b in t) for t in tokens[:used]]
    ranks = {t: i for i, t in enumerate(tokens[:used])}
    merges = sorted((i, ranks[t[:k]], ranks[t[k:]], write[ranks[t[:k]]], write[ranks[t[k:]]]) for t, i in ranks.items()
                    for k in range(1, len(t)) if t[:k] in ranks and t[k:] in ranks)
    ids = {t: i for i, t in enumerate(every + write)}
    ref = Tokenizer(models.BPE(ids, [m[3:] for m in merges], ignore_merges=True))
    ref.pre_tokenizer = pre.Sequence([pre.Split(Regex(TEKKEN), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    ref.decoder = decoders.ByteLevel()
    ref.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in every])
    ref.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    state = {"config": {"pattern": TEKKEN, "num_vocab_tokens": len(tokens), "default_vocab_size": places + used,
                        "default_num_special_tokens": places, "version": "v11"},
             "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)],
             "special_tokens": [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(named)]}
    folder = os.path.join(tmp, "tekken")
    os.makedirs(folder)
    with open(os.path.join(folder, "tekken.json"), "w") as f:
        json.dump(state, f)
    live.compare("tekken", folder, ref, strings)


def live_alphabet():
    """The character that stands for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def test_added(tmp):
    """Tokens added beside a tokenizer.model, special or not, and the newer rule for the prefix."""
    model = trained("bpe", corpus())
    n = len(model.pieces)
    strings = ["<|a|>x", "a <|a|> b", "<tool>", "x<tool>y", "<s>a</s>", "<|a|><|a|>", " <|a|>  b ", "plain"]
    for legacy in (True, False):
        folder = model.write(os.path.join(tmp, f"added{legacy}"), legacy=legacy, added_tokens_decoder={
            "0": {"content": "<unk>", "special": True}, "1": {"content": "<s>", "special": True},
            "2": {"content": "</s>", "special": True}, str(n): {"content": "<|a|>", "special": True}})
        with open(os.path.join(folder, "added_tokens.json"), "w") as f:
            json.dump({"<tool>": n + 1}, f)
        ref = model.tokenizer("legacy")
        if not legacy:
            model.escape = True
            ref.normalizer = None
            ref.pre_tokenizer = pre.Metaspace(SPACE, "first", split=False)
        ref.add_special_tokens([AddedToken("<|a|>", special=True, normalized=False)])
        ref.add_tokens([AddedToken("<tool>", normalized=False)])
        # no text that starts with a space here: Metaspace adds none there, sentencepiece does
        rows = [s for s in strings if legacy or not s.startswith(" ")]
        want = [ref.encode(s).ids for s in rows]
        got = [json.loads(x) for x in live.tool(folder, ["--special"], rows)]
        live.report(f"added tokens, legacy={legacy}", got == want, f"{got} for {want}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cache", default="build/cache")
    p.add_argument("--strings", type=int, default=pick(600, 6000, 20000))
    a = p.parse_args()
    mixed = live.mixed_strings(a.strings)
    strings = live.SOLID + list(live.characters()) + mixed
    print(f"sentencepiece {sentencepiece.__version__}, {len(strings)} strings, {len(mixed)} of them mixed")
    found = [x for x in sdist.files(a.cache, ".gguf") if re.sub("ggml-vocab-|.gguf", "", os.path.basename(x)) in VOCABULARIES]
    if found:
        live.report("vocabularies", len(found) == len(VOCABULARIES), f"{found} found")
    elif LEVEL:
        live.tally.skip(f"vocabularies of {sdist.PACKAGE}: could not be downloaded")
    with tempfile.TemporaryDirectory() as tmp:
        test_added(tmp)
        test_tiktoken(strings, tmp)
        test_tekken(strings, tmp)
        test_forms(strings, tmp)
        test_settings(strings, tmp)
        for kind in ("bpe", "unigram") if not found else ():
            test_containers(f"trained {kind}", trained(kind, corpus()), strings, tmp)
        for path in found:
            model = from_package(path)
            test_containers(os.path.basename(path), model, strings, tmp, path)
    print(f"{live.compared} encodings compared")
    return live.tally.end()


if __name__ == "__main__":
    sys.exit(main())
