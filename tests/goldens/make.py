#!/usr/bin/env python3
"""Computes the goldens with transformers (fp32 on a CPU) and writes them under tests/goldens/data/.

    make.py [--out DIR] [--smollm2 FILE.gguf --prompts gsm8k.jsonl --text wikitext.txt]

Needs torch, transformers, gguf, tokenizers, jinja2; those who read the goldens need not. Without
--smollm2 only tiny.json.gz is made. A block-quantised GGUF is read back to f32 and run as that:
the reference of a quantised model is the model that its bytes say.
"""

import argparse
import gzip
import json
import os
import tempfile

import gguf
import jinja2.sandbox
import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import tiny

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXTS = (1, 2, 31, 32, 33, 64, 100, 150, 5, 17, 48, 96, 127, 128, 129, 80)
CONTINUATIONS = (1, 60, 7, 33, 32, 31, 60, 12, 40, 2, 20, 60, 5, 9, 16, 50)
PROMPTS = (1, 32, 33, 100, 7, 64, 150, 31)
NEAR_TIE = 1e-3


def versions():
    mods = (torch, transformers, tokenizers, np)
    out = {m.__name__: m.__version__ for m in mods}
    out["gguf"] = __import__("importlib.metadata").metadata.version("gguf")
    return out


# ---- models -------------------------------------------------------------------------------------


def model_empty(config):
    kind = {"llama": transformers.LlamaConfig, "opt": transformers.OPTConfig}[config["model_type"]]
    config = kind(**{k: v for k, v in config.items() if k not in ("architectures", "model_type")})
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu").float().eval()
    model.tie_weights()
    return model


def gguf_tensors(path):
    """{Hugging Face name: f32 array} of a GGUF, llama's rows of q and k back in halves."""
    r = gguf.GGUFReader(path)
    family = r.fields["general.architecture"].contents()
    heads = {}
    if family == "llama":
        heads = {
            "q_proj": int(r.fields["llama.attention.head_count"].contents()),
            "k_proj": int(r.fields["llama.attention.head_count_kv"].contents()),
        }
    out = {}
    for t in r.tensors:
        if t.name == "rope_freqs.weight":
            continue
        x = np.asarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32)
        x = x.reshape([int(n) for n in reversed(t.shape)])
        name = tiny.hf_name(family, t.name)
        proj = name.split(".")[-2]
        out[name] = tiny.rope_unpermute(x, heads[proj]) if proj in heads else x
    return out


def rope_refresh(model):
    for m in model.modules():
        if hasattr(m, "compute_default_rope_parameters"):
            fresh = type(m)(m.config)
            m._buffers.update(fresh._buffers)  # of each kind of layer, where they differ
            if hasattr(fresh, "inv_freq"):
                m.original_inv_freq = fresh.inv_freq.clone()


def model_from_tensors(config, tensors):
    model = model_empty(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(np.array(tensors[name])))
    rope_refresh(model)  # to_empty left its tables undefined
    return model


def model_open(spec, path):
    if path.endswith(".gguf"):
        return model_from_tensors(tiny.SPECS[spec][0], gguf_tensors(path))
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


# ---- references ---------------------------------------------------------------------------------


@torch.no_grad()
def score(model, context, continuation):
    """Log-probabilities, is_greedy, and by how much is_greedy holds (or fails)."""
    ids = torch.tensor([context + continuation])
    logits = model(ids, use_cache=False).logits[0, len(context) - 1 : -1].double()
    target = torch.tensor(continuation)
    logprobs = torch.log_softmax(logits, -1).gather(1, target[:, None])[:, 0]
    top = logits.topk(2, -1).values
    mine = logits.gather(1, target[:, None])[:, 0]
    greedy = bool((logits.argmax(-1) == target).all())
    margin = (top[:, 0] - top[:, 1]).min() if greedy else (top[:, 0] - mine).max()
    return {
        "logprobs": [round(float(x), 5) for x in logprobs],
        "greedy": greedy,
        "margin": round(float(margin), 5),
    }


@torch.no_grad()
def generate(model, prompt, n):
    """Argmax tokens; gaps: best logit less the second best, per step."""
    ids, gaps, state, feed = [], [], None, prompt
    for _ in range(n):
        out = model(torch.tensor([feed]), past_key_values=state, use_cache=True)
        state = out.past_key_values
        top = out.logits[0, -1].topk(2)
        ids.append(int(out.logits[0, -1].argmax()))
        gaps.append(round(float(top.values[0] - top.values[1]), 4))
        feed = ids[-1:]
    return {"ids": ids, "gaps": gaps, "near_tie": min(gaps) < NEAR_TIE}


def tiny_rows(spec, model):
    """Contexts are random; every fourth continuation is the model's own, so that is_greedy is
    seen true."""
    vocab = tiny.SPECS[spec][0]["vocab_size"]
    r = tiny.rng(spec, "rows")
    rows = []
    for i, (n, m) in enumerate(zip(CONTEXTS, CONTINUATIONS)):
        context = r.randint(0, vocab, n).tolist()
        own = generate(model, context, m)["ids"]
        rows.append(
            {
                "context_ids": context,
                "continuation_ids": own if i % 4 == 2 else r.randint(0, vocab, m).tolist(),
            }
        )
    prompts = [r.randint(0, vocab, n).tolist() for n in PROMPTS]
    return rows, prompts


def bf16_noise(model, rows, golden):
    """mean and max |difference| of transformers' own bf16 run: what bf16 may cost on these
    weights."""
    half = model.to(torch.bfloat16)
    rope_refresh(half)  # frequencies stay f32, as in any engine
    diffs = [
        np.abs(
            np.subtract(
                score(half, r["context_ids"], r["continuation_ids"])["logprobs"], g["logprobs"]
            )
        )
        for r, g in zip(rows, golden)
    ]
    return [
        round(float(np.concatenate(diffs).mean()), 4),
        round(float(np.concatenate(diffs).max()), 4),
    ]


def make_tiny():
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for spec, form, path in tiny.write(folder):
            model = model_open(spec, path)
            state = {k: v.detach().numpy() for k, v in model.named_parameters()}
            digest = tiny.digest(state)
            assert digest == tiny.digest(tiny.weights(spec, form)), f"{path}: read back differently"
            if spec not in out:
                rows, prompts = tiny_rows(spec, model)
                out[spec] = {"rows": rows, "prompts": prompts, "weights": {}}
            entry = out[spec]
            if form in entry["weights"]:
                continue
            few = 1 if form == "f32" else 2
            rows, prompts = entry["rows"][::few], entry["prompts"][::few]
            golden = {
                "digest": digest,
                "every": few,
                "rows": [score(model, r["context_ids"], r["continuation_ids"]) for r in rows],
                "gen": [generate(model, p, 40) for p in prompts],
            }
            golden["bf16_noise"] = bf16_noise(model, rows, golden["rows"])
            entry["weights"][form] = golden
            n = sum(g["near_tie"] for g in golden["gen"])
            print(f"{spec} {form}: bf16 noise {golden['bf16_noise']}, {n} near ties", flush=True)
    return {"versions": versions(), "models": out}


# ---- SmolLM2 ------------------------------------------------------------------------------------


def smollm2_tokenizer(r):
    tokens = r.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in r.fields["tokenizer.ggml.merges"].contents()]
    kinds = r.fields["tokenizer.ggml.token_type"].contents()
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(
        [
            AddedToken(s, normalized=False)
            for s, k in zip(tokens, kinds)
            if k == gguf.TokenType.CONTROL
        ]
    )
    return t


def smollm2_config(r):
    def get(key):
        return r.fields["llama." + key].contents()

    return {
        "model_type": "llama",
        "hidden_size": get("embedding_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "vocab_size": get("vocab_size"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": get("rope.freq_base")},
        "tie_word_embeddings": "output.weight" not in [t.name for t in r.tensors],
    }


def make_smollm2(path, prompts_path, text_path):
    r = gguf.GGUFReader(path)
    model = model_from_tensors(smollm2_config(r), gguf_tensors(path))
    tok = smollm2_tokenizer(r)
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = env.from_string(r.fields["tokenizer.chat_template"].contents())

    def ids_of(text):
        return tok.encode(text, add_special_tokens=False).ids

    with open(prompts_path, encoding="utf-8") as f:
        chats = [json.loads(line)["body"]["messages"] for line in f][:150]
    with open(text_path, encoding="utf-8") as f:
        wiki = ids_of(f.read(120000))
    rows = []
    for i in range(24):
        n, m = 64 + 136 * i // 23, 64
        if i % 2:
            ids = ids_of("\n\n".join(c[-1]["content"] for c in chats[50 + 4 * i : 57 + 4 * i]))[
                : n + m
            ]
        else:
            ids = wiki[1000 * i : 1000 * i + n + m]
        row = {
            "custom_id": f"{'gsm8k' if i % 2 else 'wiki'}-{i}",
            "context_ids": ids[:n],
            "continuation_ids": ids[n:],
        }
        rows.append({**row, **score(model, row["context_ids"], row["continuation_ids"])})
    prompts = []
    for i, messages in enumerate(chats[:50]):
        text = template.render(messages=messages, add_generation_prompt=True)
        ids = ids_of(text)
        prompts.append(
            {
                "custom_id": f"prompt-{i}",
                "messages": messages,
                "prompt_token_ids": ids,
                **generate(model, ids, 48),
            }
        )
        print(
            f"{i}: {len(ids)} tokens, near tie {prompts[-1]['near_tie']}: "
            f"{tok.decode(prompts[-1]['ids'])[:60]!r}",
            flush=True,
        )
    return {
        "versions": versions(),
        "model": "SmolLM2-135M-Instruct Q4_1",
        "digest": tiny.digest({k: v.detach().numpy() for k, v in model.named_parameters()}),
        "rows": rows,
        "prompts": prompts,
    }


def store(folder, name, obj):
    path = os.path.join(folder, name)
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode())
    print(f"{path}: {os.path.getsize(path)} bytes")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--out", default=os.path.join(HERE, "data"))
    p.add_argument("--smollm2", help="SmolLM2-135M-Instruct Q4_1 as GGUF")
    p.add_argument("--prompts", help="chat rows, gsm8k (JSONL)")
    p.add_argument("--text", help="running text, wikitext-2")
    p.add_argument("--no-tiny", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(min(2, os.cpu_count()))
    transformers.logging.set_verbosity_error()
    print(versions())
    os.makedirs(a.out, exist_ok=True)
    if not a.no_tiny:
        store(a.out, "tiny.json.gz", make_tiny())
    if a.smollm2:
        store(a.out, "smollm2.json.gz", make_smollm2(a.smollm2, a.prompts, a.text))


if __name__ == "__main__":
    main()
