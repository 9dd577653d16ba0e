"""Shared by the peers' scripts on a GPU: the cap of device memory, dummy weights in a Hugging Face folder, --check.

Owns: `--gpu-mib` (the same cap as sluice's --mem-device, enforced by the framework), the folder of a
model of configs/ (config.json as transformers names it; numbers drawn once and repeated, so that 60 GB are
written at the speed of the disk: speed is real, text is not). Refuses: clocks and rows (peer.py).
With SLUICE_PEERS_PYTHON=system a script keeps its Python and uses the installed packages of any
version (recorded in the row): for machines without a network. Standard library only.
"""
import array
import importlib.metadata
import importlib.util
import json
import os
import random
import sys
import time

import models
import peer

MIB = 1 << 20
CHUNK = 8 << 20        # numbers that are drawn once
SHARD_BYTES = 4 << 30
LACKS = 3              # exit status of --check: a package is missing
OPT, LLAMA = "opt", "llama"


def arguments(about, batch):
    p = peer.arguments(about, ["bf16", "f16"], batch)
    p.set_defaults(model="opt-13b")
    p.add_argument("--gpu-mib", type=int, default=0, help="device memory that the framework may take [all]")
    p.add_argument("--check", action="store_true", help="say whether all that it imports is there, without a GPU; no run")
    return p


def parse(p):
    a = p.parse_args()
    if not a.check and not a.prepare and not a.job:
        p.error("--job is missing")
    if a.batch < 1 or a.gpu_mib < 0:
        p.error("--batch, --gpu-mib: out of range")
    return a


def system():
    return os.environ.get("SLUICE_PEERS_PYTHON") == "system"


def enter(name, modules, check, environment=""):
    """Continues in the environment with the modules; with --check prints what is missing and exits."""
    if not system() and not check:
        peer.enter(environment or name)
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if check:
        print(f"{name}: " + (f"missing: {' '.join(missing)}" if missing else "all there: " + ", ".join(
            f"{m} {version(m)}" for m in modules)))
        sys.exit(LACKS if missing else 0)
    if missing:
        sys.exit(f"peers: {name}: missing: {' '.join(missing)}")


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def torch_capped(gpu_mib):
    """torch with a card and a capped allocator; the memory of CUDA itself is not included."""
    import torch
    if not torch.cuda.is_available():
        sys.exit("peers: torch sees no GPU")
    torch.cuda.set_device(0)
    if gpu_mib:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_mib * MIB / total), 0)
    return torch


def peak_mib(torch):
    return round(torch.cuda.max_memory_reserved(0) / MIB)


# ---- a model of configs/ as transformers reads it ----

def config_of(c):
    """config.json of a file of configs/."""
    dim, heads, layers = int(c["dim"]), int(c["heads"]), int(c["layers"])
    common = {"vocab_size": int(c["vocab"]), "max_position_embeddings": int(c["context"]), "num_attention_heads": heads,
              "hidden_size": dim, "num_hidden_layers": layers, "tie_word_embeddings": c.get("tied", "1") == "1",
              "dtype": "bfloat16", "torch_dtype": "bfloat16", "bos_token_id": 2, "eos_token_id": 2}
    if c["family"] == OPT:
        return {"architectures": ["OPTForCausalLM"], "model_type": OPT, "activation_function": "relu", "ffn_dim": int(c["ffn"]),
                "word_embed_proj_dim": dim, "do_layer_norm_before": True, "enable_bias": True, "dropout": 0.0,
                "layer_norm_elementwise_affine": True, "attention_dropout": 0.0, "pad_token_id": 1, **common}
    return {"architectures": ["LlamaForCausalLM"], "model_type": LLAMA, "hidden_act": "silu",
            "intermediate_size": int(c["ffn"]), "num_key_value_heads": int(c.get("kv_heads", heads)),
            "head_dim": int(c.get("head_dim", dim // heads)), "rms_norm_eps": float(c.get("norm_eps", 1e-5)),
            "rope_theta": float(c.get("rope_theta", 10000)), "attention_bias": False, "mlp_bias": False, **common}


def tensors_of(config):
    """(name, shape) of every tensor, in the order of the layers."""
    dim, vocab = config["hidden_size"], config["vocab_size"]
    if config["model_type"] == OPT:
        at, ffn = "model.decoder.", config["ffn_dim"]
        yield at + "embed_tokens.weight", [vocab, dim]
        yield at + "embed_positions.weight", [config["max_position_embeddings"] + 2, dim]
        for norm in ["final_layer_norm"] + [f"layers.{i}.{n}_layer_norm" for i in range(config["num_hidden_layers"])
                                            for n in ("self_attn", "final")]:
            yield f"{at}{norm}.weight", [dim]
            yield f"{at}{norm}.bias", [dim]
        for i in range(config["num_hidden_layers"]):
            for part, n, k in [(f"self_attn.{x}_proj", dim, dim) for x in ("q", "k", "v", "out")] + [("fc1", ffn, dim), ("fc2", dim, ffn)]:
                yield f"{at}layers.{i}.{part}.weight", [n, k]
                yield f"{at}layers.{i}.{part}.bias", [n]
        return
    ffn, head = config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [vocab, dim]
    yield "model.norm.weight", [dim]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [vocab, dim]
    for i in range(config["num_hidden_layers"]):
        for part, shape in (("input_layernorm", [dim]), ("post_attention_layernorm", [dim]), ("self_attn.q_proj", [q, dim]),
                            ("self_attn.k_proj", [kv, dim]), ("self_attn.v_proj", [kv, dim]), ("self_attn.o_proj", [dim, q]),
                            ("mlp.gate_proj", [ffn, dim]), ("mlp.up_proj", [ffn, dim]), ("mlp.down_proj", [dim, ffn])):
            yield f"model.layers.{i}.{part}.weight", shape


def numbers():
    """bf16 numbers of about normal(0, 0.02), in bytes."""
    draw = random.Random(1)
    few = [draw.gauss(0, 0.02) for _ in range(1 << 16)]
    bits = array.array("I", array.array("f", few).tobytes())
    few = array.array("H", [(b + 0x7fff + ((b >> 16) & 1)) >> 16 for b in bits]).tobytes()
    return few * (2 * CHUNK // len(few))


def shard_write(path, tensors, drawn):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        n_bytes = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors:
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if len(shape) == 1:
                f.write((b"\x80\x3f" if name.endswith("norm.weight") else b"\0\0") * shape[0])
                continue
            while left > 0:
                left -= f.write(drawn[:left])


def folder(model, weights=True):
    """The folder of configs/MODEL.cfg; `weights` with its tensors, else config.json alone."""
    if os.path.isdir(model):
        return model
    place = os.path.join(models.PLACE, f"{model}-{'dummy' if weights else 'config'}")
    if os.path.exists(place):
        return place
    config, part = config_of(models.config_read(model)), place + ".part"
    os.makedirs(part, exist_ok=True)
    shards, n_bytes = [[]], 0
    for name, shape in tensors_of(config) if weights else ():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        if n_bytes + size > SHARD_BYTES:
            shards.append([])
            n_bytes = 0
        shards[-1].append((name, shape))
        n_bytes += size
    drawn, where = numbers() if weights else b"", {}
    for i, tensors in enumerate(shards if weights else ()):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        peer.say(f"peers: writing {os.path.join(place, file)}")
        shard_write(os.path.join(part, file), tensors, drawn)
        where.update({name: file for name, _ in tensors})
    if weights:
        with open(os.path.join(part, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump({"metadata": {}, "weight_map": where}, f)
    with open(os.path.join(part, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    os.rename(part, place)
    return place


def generate_all(torch, model, job, batch, generate_one):
    """Batches of the job, rows of like length together, by transformers' generate()."""
    order = sorted(range(len(job.prompts)), key=lambda r: len(job.prompts[r]))
    out = [None] * len(order)
    for at in range(0, len(order), batch):
        rows = order[at:at + batch]
        for r, ids in zip(rows, generate_one(torch, model, [job.prompts[r] for r in rows], job.n_new)):
            out[r] = ids
    return out


def generate_hf(torch, model, prompts, n_new):
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device="cuda:0")
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device="cuda:0")
    done = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=n_new, min_new_tokens=n_new, do_sample=False)
    return done[:, longest:].tolist()


def run_hf(a, torch, model, job, begin, package):
    """Warms up as asked, runs the job through a model of transformers and prints the peer's row. begin: time before it was
    opened."""
    load_s = time.monotonic() - begin
    if a.warm:
        generate_hf(torch, model, [job.warm_prompt()], peer.WARM_TOKENS)
    start = time.monotonic()
    out = generate_all(torch, model, job, a.batch, generate_hf)
    end = time.monotonic()
    peer.emit(a, job, out, package, version(package), end - start, end - begin, load_s, peer.peak_rss_mib(),
              gpu_mib=a.gpu_mib, peak_gpu_mib=peak_mib(torch))
