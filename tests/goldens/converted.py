#!/usr/bin/env python3
"""GGUF files as llama.cpp's own converter writes them: converted.py SLUICE LLAMA_CPP [--only WORD].

Converts the small checkpoints of families.py with the scripts in LLAMA_CPP, a folder of llama.cpp's sources (the one that
bench/peers/run_llamacpp.py --prepare leaves in build/peers/llamacpp/src/vendor/llama.cpp), and compares sluice's log-probabilities
with transformers'. families.py writes the GGUF files of all other tests; this tells whether it writes them as users get them.
Skipped, with the reason: what GGUF cannot say (NO_GGUF), and what the converter refuses, as names of tensors that only
transformers 5 saves. By hand: needs what make.py needs, and sentencepiece. Two minutes.
"""
import argparse
import json
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import families  # noqa: E402
from golden_common import Sluice, SluiceFailed, goldens, score_row  # noqa: E402
from score_golden import F32, MAX_F32, MEAN_F32, TIE_F32, check_scores  # noqa: E402
from trial import Tally  # noqa: E402

VOCABULARY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "merges": [],
                                                              "vocab": {f"t{i}": i for i in range(families.VOCAB)}}}
DEFAULTS = ("n_ctx", "rotary_pct", "rotary_dim", "mamba_expand", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_conv",
            "mamba_n_groups", "moe_intermediate_size", "attention_in_multiplier", "attention_out_multiplier", "key_multiplier",
            "ssm_in_multiplier", "ssm_out_multiplier", "mlp_multipliers", "ssm_multipliers")  # that the converter looks for, and config.json may leave out
PUBLISHED = {  # keys of published files that transformers does not know
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "solar_open": {"intermediate_size": 64, "partial_rotary_factor": 1.0},
}
LEFT_OUT = {"lfm2_moe-plain": "routed_scaling_factor", "granitemoehybrid-experts": "RoPE in a model with Mamba-2",
            "nemotron_h-dense": "that it has no experts", "nemotron_h-bare": "that it has no experts", "mistral4-scored": "llama_4_scaling_beta"}  # by the converter


def complete(config):
    """config.json as a published model has it."""
    import transformers
    from transformers.models.auto import modeling_auto as auto
    kind, text = config["model_type"], {}
    names = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if "text_config" in config else auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    full = transformers.AutoConfig.for_model(**config).to_dict()
    text = {key: full[key] for key in DEFAULTS if full.get(key) is not None}
    if kind == "gpt2":
        text["n_ctx"] = config["n_positions"]
    if kind in ("gpt_neox", "cohere2"):
        text["rotary_pct"] = full["rope_parameters"].get("partial_rotary_factor", 1.0)
    if kind == "minimax_m2":
        text["rotary_dim"] = config.get("rotary_dim", config["head_dim"])
    if kind == "hunyuan_v1_moe":
        text |= {key: [config.get(key, number)] * config["num_hidden_layers"]
                 for key, number in (("moe_intermediate_size", config["intermediate_size"]), ("num_shared_expert", 1), ("moe_topk", 1))}
        del config["moe_topk"]
    name = "Mistral3ForConditionalGeneration" if kind == "mistral4" else names[kind]  # with a tower, all that are published
    return {**text, **PUBLISHED.get(kind, {}), **config, "architectures": [name]}


def each_class(of):
    yield of
    for sub in of.__subclasses__():
        yield from each_class(sub)


def convert(llama_cpp, folder, out, said):
    """In a process of its own, since the converter's classes keep what they read. Puts why it failed."""
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    for name in [m for m in sys.modules if m.split(".")[0] == "gguf"]:
        del sys.modules[name]
    logging.disable(logging.ERROR)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its bars of progress
    try:
        import conversion
        import gguf
        import torch
        from conversion import base
        path = pathlib.Path(folder)
        kind = base.get_model_architecture(base.ModelBase.load_hparams(path, False), base.ModelType.TEXT)
        reader = conversion.get_model_class(kind)
        for model in each_class(base.TextModel):  # one reader may hold another
            model.no_mtp, model.set_vocab = True, base.TextModel._set_vocab_none
        with torch.inference_mode():
            reader(path, gguf.LlamaFileType.ALL_F32, pathlib.Path(out)).write()
        said.put("")
    except Exception as e:  # whatever its reason, it is printed
        said.put(f"{type(e).__name__}: {e}".splitlines()[0][:150])


def check_spec(t, sluice, llama_cpp, spec, entry, folder):
    path = os.path.join(folder, spec)
    config, tensors = families.gguf_part(spec, entry["tensors"])
    if config is not families.SPECS[spec]:
        return "a part only"
    families.write_hf(path, spec, tensors, "f32")
    config_path = os.path.join(path, "config.json")
    with open(config_path, encoding="utf-8") as f:
        config = complete(json.load(f))
    for name, content in (("config.json", config), ("tokenizer.json", VOCABULARY)):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    fork, out = multiprocessing.get_context("fork"), os.path.join(folder, f"{spec}.gguf")
    said = fork.Queue()
    worker = fork.Process(target=convert, args=(llama_cpp, path, out, said))
    worker.start()
    why = said.get()
    worker.join()
    if why:
        return why
    rows = [score_row(f"row-{i}", r["context_ids"], r["continuation_ids"]) for i, r in enumerate(entry["rows"])]
    try:
        check_scores(t, spec, rows, sluice.rows("score", out, rows, *F32), entry["weights"]["f32"]["rows"], MEAN_F32, MAX_F32, TIE_F32)
    except SluiceFailed as e:
        t.check(False, f"{spec}: {e}")
    return ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sluice")
    p.add_argument("llama_cpp")
    p.add_argument("--only", default="")
    a, t = p.parse_args(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        sluice = Sluice(a.sluice, folder)
        for spec, entry in goldens("families.json.gz")["models"].items():
            if a.only in spec:
                why = families.NO_GGUF.get(spec, LEFT_OUT.get(spec))
                why = check_spec(t, sluice, os.path.abspath(a.llama_cpp), spec, entry, folder) if why is None else why or "not in GGUF"
                if why:
                    t.skip(f"{spec}: {why}")
    t.finish()


if __name__ == "__main__":
    main()
