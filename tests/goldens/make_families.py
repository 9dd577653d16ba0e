#!/usr/bin/env python3
"""References of families.py's checkpoints by transformers, f32 on a CPU: `make_families.py [--only NAME,...] [DATA.json.gz]`.

Needs what make.py needs. Lists the tensors of each model, writes the checkpoint, lets transformers read it back, and keeps
log-probabilities and greedy tokens. --only: of the checkpoints whose names begin so; the file's other ones stay as they are.
"""

import argparse
import copy
import gzip
import json
import os
import tempfile

import safetensors
import torch
import transformers

import experts
import families
import gemma4
import routes
import states
import tiny
from make import bf16_noise, generate, score, versions

LENGTHS = ((1, 60), (33, 31), (100, 40), (150, 60), (50, 40))  # context, continuation
PROMPTS = (5, 96, 130)
NEW = 24


def tensors_of(config):
    """[name, shape] of what a checkpoint of this model holds."""
    if config["model_type"] in (*experts.FAMILIES, *states.FAMILIES, *gemma4.FAMILIES, "apertus") or "text_config" in config:
        return saved_tensors(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**copy.deepcopy(config)))
    tied = config.get("tie_word_embeddings", config["model_type"] in ("gpt2",))
    heads = ("lm_head.weight", "embed_out.weight")
    return [[name, list(x.shape)] for name, x in model.named_parameters() if not (tied and name in heads)]


class Mistral4(transformers.Mistral4ForCausalLM):
    """Not in the table of classes."""

    @classmethod
    def from_config(cls, config):
        return cls._from_config(config)


def class_of(config):
    if config["model_type"] == "mistral4":
        return Mistral4
    return transformers.AutoModelForImageTextToText if "text_config" in config else transformers.AutoModelForCausalLM


def saved_tensors(config):
    """The same where transformers computes with other tensors than it saves."""
    config = {k: v for k, v in config.items() if k != "quantization_config"}
    with tempfile.TemporaryDirectory() as folder:
        class_of(config).from_config(transformers.AutoConfig.for_model(**copy.deepcopy(config))).save_pretrained(folder)
        with safetensors.safe_open(os.path.join(folder, "model.safetensors"), "np") as f:
            return [[name, f.get_slice(name).get_shape()] for name in f.keys()]


def opened(path, config):
    more = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if "quantization_config" in config else {}
    return class_of(config).from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **more).eval()


def rows_of(spec, model):
    if spec.split("-")[0] in experts.FAMILIES and not states.has_state(spec):
        return routes.rows_of(spec, model, LENGTHS, PROMPTS, NEW)
    vocab, r = families.VOCAB, tiny.rng(spec, "rows")
    rows = []
    for i, (n, m) in enumerate(LENGTHS):
        context = r.randint(3, vocab, n).tolist()
        own = generate(model, context, m)["ids"] if i == 1 else r.randint(3, vocab, m).tolist()
        rows.append({"context_ids": context, "continuation_ids": own})
    return rows, [r.randint(3, vocab, n).tolist() for n in PROMPTS]


def kept(path, only):
    """Of a file that is there the checkpoints that are not made anew, and the versions that it names."""
    if not only or not os.path.exists(path):
        return {}, versions()
    with gzip.open(path, "rt", encoding="utf-8") as f:
        stored = json.load(f)
    return {spec: entry for spec, entry in stored["models"].items() if not spec.startswith(only)}, stored["versions"]


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("path", nargs="?", default=families.DATA)
    p.add_argument("--only", type=lambda text: tuple(text.split(",")), default=("",))
    a = p.parse_args()
    old, made_by = kept(a.path, a.only != ("",) and a.only)
    out = dict(old)
    with tempfile.TemporaryDirectory() as folder:
        for spec, config in families.SPECS.items():
            if not spec.startswith(a.only):
                continue
            entry = out[spec] = {"tensors": tensors_of(config), "weights": {}}
            for form in families.FORMS:
                path = os.path.join(folder, f"{spec}-{form}")
                families.write_hf(path, spec, entry["tensors"], form)
                model = opened(path, config)
                state = {k: v.detach().numpy() for k, v in model.state_dict().items()}
                want = families.weights(spec, entry["tensors"], form)
                read = families.own_names(experts.fused(want))
                assert tiny.digest({k: state[k] for k in read}) == tiny.digest(read), f"{path}: read back differently"
                if form == "f32":
                    entry["rows"], entry["prompts"] = rows_of(spec, model)
                golden = {"digest": tiny.digest(want),
                          "rows": [score(model, r["context_ids"], r["continuation_ids"]) for r in entry["rows"]]}
                if form == "f32":
                    golden["gen"] = [generate(model, p, NEW) for p in entry["prompts"]]
                if spec.split("-")[0] in experts.FAMILIES and not states.has_state(spec):
                    golden["route_gap"] = routes.check(model, entry["rows"], golden.get("gen", []), entry["prompts"])
                golden["bf16_noise"] = bf16_noise(model, entry["rows"], golden["rows"])
                entry["weights"][form] = golden
                print(f"{spec} {form}: bf16 noise {golden['bf16_noise']} {golden.get('route_gap', '')}", flush=True)
    with open(a.path, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0) as z:
        z.write(json.dumps({"versions": made_by, "models": out}, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
