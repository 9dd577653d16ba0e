#!/usr/bin/env python3
"""Quantised safetensors checkpoints: the numbers that the libraries decode, bit for bit, whole models
packed, what a pack may cost beside its files, and files that lie: quantized_test.py [SLUICE]

tests/goldens/quantized.py has asked the libraries; no library but safetensors is needed here.
"""
import hashlib
import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import trial
from trial import from_full, pick

TOOLS = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/tools")
GOLDENS = os.path.join(trial.HERE, "goldens", "data", "quantized.safetensors")
E4M3 = ml_dtypes.float8_e4m3fn
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], np.float32)
UP = "model.layers.0.mlp.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized",
              "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*embed.*"],
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}}}}
NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
         "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group"}}}}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
MIXED = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
    "group_0": {"format": "pack-quantized", **PACKED["config_groups"]["group_0"]},
    "group_1": {"format": "nvfp4-pack-quantized", **NVFP4["config_groups"]["group_0"]},
    "group_2": {"format": "float-quantized", **COMPRESSED["config_groups"]["group_0"]}}}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
STATE = ".weight.quant_state.bitsandbytes__nf4"


# ---- random matrices of each method, and their f32 numbers by its definition

def nibbles(words, axis, bits=4):
    """int32 words to eight codes each along an axis (of 8 bits: four), low bits first."""
    codes = np.stack([words.view(np.uint32) >> bits * i & 2**bits - 1 for i in range(32 // bits)], axis + 1)
    shape = list(words.shape)
    shape[axis] *= 32 // bits
    return codes.reshape(shape).astype(np.int32)


def random_words(r, *shape):
    return r.integers(0, 2**32, shape, np.uint32).view(np.int32)


def random_scales(r, *shape):
    return (r.random(shape) * 0.02).astype(np.float16)


def gptq(r, n, k, group=128, add=1, bits=4):
    t = {"qweight": random_words(r, k * bits // 32, n), "qzeros": random_words(r, k // group, n * bits // 32),
         "scales": random_scales(r, k // group, n), "g_idx": (np.arange(k) // group).astype(np.int32)}
    zeros = (nibbles(t["qzeros"], 1, bits) + add & 2**bits - 1).repeat(group, 0)
    want = t["scales"].astype(np.float32).repeat(group, 0) * (nibbles(t["qweight"], 0, bits) - zeros).astype(np.float32)
    return {"." + key: x for key, x in t.items()}, want.T


def gptq_ordered(r, n, k, group=128, bits=4):
    """desc_act: any number along k may be of any group."""
    t, _ = gptq(r, n, k, group, bits=bits)
    order = t[".g_idx"] = r.permutation(np.arange(k) // group).astype(np.int32)
    zeros = nibbles(t[".qzeros"], 1, bits) + 1 & 2**bits - 1
    return t, (t[".scales"].astype(np.float32)[order] * (nibbles(t[".qweight"], 0, bits) - zeros[order]).astype(np.float32)).T


def awq(r, n, k, group=64):
    t = {"qweight": random_words(r, k, n // 8), "qzeros": random_words(r, k // group, n // 8),
         "scales": random_scales(r, k // group, n)}
    column = np.arange(n).reshape(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1)  # of nibbles, by row
    codes, zeros = nibbles(t["qweight"], 1)[:, column], nibbles(t["qzeros"], 1)[:, column].repeat(group, 0)
    want = t["scales"].astype(np.float32).repeat(group, 0) * (codes - zeros).astype(np.float32)
    return {"." + key: x for key, x in t.items()}, want.T


def e4m3(r, n, k):
    bits = r.integers(0, 256, (n, k), np.uint8)
    bits[bits & 127 == 127] -= 1  # NaN
    return bits.view(E4M3)


def fp8(r, n, k):
    t = {".weight": e4m3(r, n, k), ".weight_scale_inv": r.random((-(-n // 128), -(-k // 128)), np.float32)}
    scale = t[".weight_scale_inv"].repeat(128, 0)[:n].repeat(128, 1)[:, :k]
    return t, t[".weight"].astype(np.float32) * scale


def fp8_channel(r, n, k):
    t = {".weight": e4m3(r, n, k), ".weight_scale": r.random((n, 1), np.float32).astype(ml_dtypes.bfloat16)}
    return t, t[".weight"].astype(np.float32) * t[".weight_scale"].astype(np.float32)


def int8(r, n, k):
    t = {"": r.integers(-128, 128, (n, k), np.int8), "_scale": (r.random((n, 1)) * 0.02).astype(ml_dtypes.bfloat16)}
    return {".weight" + key: x for key, x in t.items()}, t[""].astype(np.float32) * t["_scale"].astype(np.float32)


def packed(r, n, k, group=32, kind=ml_dtypes.bfloat16, zeros=False, bits=4):
    group = group or k
    scales = (r.random((n, k // group)) * 0.02).astype(kind)
    if kind == ml_dtypes.bfloat16 and not zeros:
        scales[::3] *= np.float32(2.0**-90)  # that f16 cannot hold
    t = {"packed": random_words(r, n, k * bits // 32), "scale": scales, "shape": np.array([n, k])}
    zero = np.int32(2**(bits - 1))
    if zeros:
        t["scale"] += np.asarray(2.0**-13, kind)
        t["zero_point"] = random_words(r, -(-n * bits // 32), k // group)
        zero = nibbles(t["zero_point"], 0, bits)[:n].repeat(group, 1)
    want = (nibbles(t["packed"], 1, bits) - zero).astype(np.float32) * t["scale"].astype(np.float32).repeat(group, 1)
    return {".weight_" + key: x for key, x in t.items()}, want


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nvfp4(r, n, k, divides=True):
    """compressed-tensors divides scales by their factor, modelopt multiplies them."""
    codes, scale, factor = r.integers(0, 256, (n, k // 2), np.uint8), e4m3(r, n, k // 16), r.random(1, np.float32) + np.float32(0.1)
    numbers = E2M1[np.stack([codes & 15, codes >> 4], 2).reshape(n, k)]
    d = scale.astype(np.float32) / factor if divides else scale.astype(np.float32) * factor
    names = ("_packed", "_scale", "_global_scale") if divides else ("", "_scale", "_scale_2")
    parts = codes, scale, factor if divides else factor.reshape(())
    return {".weight" + name: x for name, x in zip(names, parts)}, d.repeat(16, 1) * numbers


def packed_mxfp4(r, n, k):
    codes, scale = r.integers(0, 256, (n, k // 2), np.uint8), r.integers(100, 140, (n, k // 32), np.uint8)
    numbers = E2M1[np.stack([codes & 15, codes >> 4], 2).reshape(n, k)]
    want = np.exp2(scale.astype(np.float32) - 127).repeat(32, 1) * numbers
    return {".weight_packed": codes, ".weight_scale": scale}, want


def mixed(r, n, k):
    """Each module has another format than its neighbours."""
    return (packed, nvfp4, fp8_channel, packed_mxfp4, packed)[r.integers(0, 5)](r, n, k)


def nf4(r, n, k, nested=False, own_map=False):
    packed = r.integers(0, 256, (n * k // 2, 1), np.uint8)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k]}
    t = {".weight": packed, ".weight.quant_map": NF4}
    if nested:
        codes, blocks = r.integers(0, 256, n * k // 64, np.uint8), -(-n * k // 64 // 256)
        t |= {".weight.absmax": codes, ".weight.nested_absmax": r.random(blocks, np.float32),
              ".weight.nested_quant_map": np.sort(r.random(256, np.float32) * 2 - 1) if own_map else known_map()}
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 1.25}
        scales = t[".weight.nested_quant_map"][codes] * t[".weight.nested_absmax"].repeat(256)[:len(codes)]
        scales = scales + np.float32(1.25)
    else:
        scales = t[".weight.absmax"] = r.random(n * k // 64, np.float32)
    t[STATE] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    codes = np.stack([packed[:, 0] >> 4, packed[:, 0] & 15], 1).reshape(n, k)
    return t, NF4[codes] * scales.reshape(n, -1).repeat(64, 1)


def known_map():
    """bitsandbytes' table of scales, from the golden."""
    return read(GOLDENS)[1]["nf4-nested/" + UP + ".weight.nested_quant_map"]


def nf4_nested(r, n, k):
    return nf4(r, n, k, True)


def nf4_own_map(r, n, k):
    return nf4(r, n, k, True, True)


METHODS = {
    "gptq": (GPTQ, gptq), "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, lambda r, n, k: gptq(r, n, k, 128, 0)),
    "gptq-32": (GPTQ, lambda r, n, k: gptq(r, n, k, 32)), "gptq-row": (GPTQ, lambda r, n, k: gptq(r, n, k, k)),
    "gptq-8bit": ({**GPTQ, "bits": 8}, lambda r, n, k: gptq(r, n, k, bits=8)),
    "gptq-8bit-32": ({**GPTQ, "bits": 8}, lambda r, n, k: gptq(r, n, k, 32, bits=8)),
    "gptq-ordered": ({**GPTQ, "desc_act": True}, gptq_ordered),
    "gptq-ordered-8bit": ({**GPTQ, "bits": 8}, lambda r, n, k: gptq_ordered(r, n, k, 64, 8)),
    "awq": (AWQ, awq), "awq-128": (AWQ, lambda r, n, k: awq(r, n, k, 128)),
    "fp8": (FP8, fp8), "fp8-channel": (COMPRESSED, fp8_channel),
    "packed": (PACKED, packed), "packed-128": (PACKED, lambda r, n, k: packed(r, n, k, 128)),
    "packed-row": (PACKED, lambda r, n, k: packed(r, n, k, 0)),
    "packed-f16": (PACKED, lambda r, n, k: packed(r, n, k, 32, np.float16)),
    "packed-f16-128": (PACKED, lambda r, n, k: packed(r, n, k, 128, np.float16)),
    "packed-8bit": (PACKED, lambda r, n, k: packed(r, n, k, 0, np.float16, bits=8)),
    "packed-8bit-zeros": (PACKED, lambda r, n, k: packed(r, n, k, 128, zeros=True, bits=8)),
    "int8": ({**PACKED, "format": "int-quantized"}, int8),
    "packed-zeros": (PACKED, lambda r, n, k: packed(r, n, k, 32, zeros=True)),
    "packed-zeros-64": (PACKED, lambda r, n, k: packed(r, n, k, 64, np.float16, zeros=True)),
    "nvfp4": (NVFP4, nvfp4), "modelopt": (MODELOPT, lambda r, n, k: nvfp4(r, n, k, False)),
    "mxfp4": ({**NVFP4, "format": "mxfp4-pack-quantized"}, packed_mxfp4), "mixed": (MIXED, mixed),
    "nf4": (BNB, nf4), "nf4-nested": (BNB, nf4_nested), "nf4-own-map": (BNB, nf4_own_map),
}


# ---- files

def write(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()},
              os.path.join(folder, "model.safetensors"))


def read(path):
    """Metadata and tensors; numpy alone has no numbers of 8 bits to give the package."""
    kinds = {"U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64, "F16": np.float16, "F32": np.float32, "BF16": ml_dtypes.bfloat16,
             "F8_E4M3": E4M3}
    with open(path, "rb") as f:
        data = f.read()
    at = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:at])
    return header.pop("__metadata__"), {
        name: np.frombuffer(data[at + t["data_offsets"][0]:at + t["data_offsets"][1]],
                            kinds[t["dtype"]]).reshape(t["shape"]) for name, t in header.items()}


def dump(folder, *what):
    done = subprocess.run([TOOLS + "/source_dump", folder, *what], capture_output=True, timeout=120)
    return done.returncode, done.stdout, done.stderr.decode().strip()


def same(tally, what, folder, name, want):
    code, out, why = dump(folder, "--f32", name)
    got = np.frombuffer(out, np.uint32)
    bits = np.ascontiguousarray(want).view(np.uint32).reshape(-1)
    bad = np.argwhere(got != bits) if got.shape == bits.shape else []
    tally.check(code == 0 and got.shape == bits.shape and not len(bad),
                f"{what}: {code} {why}; {len(bad)} of {bits.size} differ, {got.size} numbers, first {bad[:1]}")


def llama(layers=1, dim=256, ffn=512, vocab=320):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": dim, "intermediate_size": ffn,
            "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
            "rope_theta": 10000.0}


def model(config, make, seed):
    """Tensors of a whole model whose matrices of layers are quantised, and of the same model in f32."""
    r, dim, ffn = np.random.default_rng(seed), config["hidden_size"], config["intermediate_size"]
    norm, tensors, plain, kv = np.ones(dim, np.float16), {}, {}, dim // 2
    tensors["model.embed_tokens.weight"] = (r.standard_normal((config["vocab_size"], dim)) * 0.1).astype(np.float16)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.norm.weight"] = norm
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        tensors[p + "input_layernorm.weight"] = tensors[p + "post_attention_layernorm.weight"] = norm
        rows = rows_fused if config["model_type"] == "phi3" else rows_apart
        for name, n, k in rows(dim, kv, ffn):
            parts, numbers = make(r, n, k)
            tensors.update({f"{p}{name}_proj{tail}": x for tail, x in parts.items()})
            plain[f"{p}{name}_proj.weight"] = numbers.astype(np.float32)
    return tensors, {**{name: x for name, x in tensors.items() if "_proj" not in name}, **plain}


def rows_apart(dim, kv, ffn):
    return (("self_attn.q", dim, dim), ("self_attn.k", kv, dim), ("self_attn.v", kv, dim), ("self_attn.o", dim, dim),
            ("mlp.gate", ffn, dim), ("mlp.up", ffn, dim), ("mlp.down", dim, ffn))


def rows_fused(dim, kv, ffn):
    return (("self_attn.qkv", dim + 2 * kv, dim), ("self_attn.o", dim, dim), ("mlp.gate_up", 2 * ffn, dim),
            ("mlp.down", dim, ffn))


# ---- the parts

def libraries(tally, place, a):
    """What auto-gptq, autoawq, compressed-tensors, transformers and bitsandbytes decode."""
    header, tensors = read(GOLDENS)
    for case, note in json.loads(header["cases"]).items():
        own = {name.split("/", 1)[1]: x for name, x in tensors.items() if name.startswith(case + "/")}
        write(place.at(case), {"quantization_config": note["config"]}, own)
        code, out, why = dump(place.at(case), "--f32", note["name"])
        numbers = np.frombuffer(out, np.float32) + np.float32(0)
        got = hashlib.sha256(numbers.tobytes()).hexdigest()
        tally.check(code == 0 and numbers.size == np.prod(note["shape"]) and got == note["sha256"],
                    f"{case}: {code} {why}, {numbers.size} numbers, other ones than the library's")


def definitions(tally, place, a):
    """Each method by its definition, small and long enough for several bands of rows."""
    for seed, (name, (config, make)) in enumerate(METHODS.items()):
        for n, k in ((72, 256), (200, 384), (4600, 4096), (64, 192))[:pick(2, 4)]:
            if (k > 400 and name not in ("gptq", "gptq-ordered", "awq", "nvfp4")) or (k == 192 and name not in ("nvfp4", "packed")):
                continue
            tensors, want = make(np.random.default_rng(seed), n, k)
            folder = place.at(f"{name}-{n}")
            write(folder, {"quantization_config": config}, {UP + tail: x for tail, x in tensors.items()})
            same(tally, f"{name}, {n} x {k}", folder, UP + ".weight", want)


@from_full
def packs(tally, place, a):
    """Whole models through the packer, in every format; and a pack's bytes beside the file's."""
    for seed, (name, (config, make)) in enumerate(METHODS.items()):
        small, folder = llama(2), place.at(name)
        write(folder, {**small, "quantization_config": config}, model(small, make, seed)[0])
        done = subprocess.run([TOOLS + "/pack_source", folder], capture_output=True, text=True, check=False)
        tally.check(done.returncode == 0, f"{name}: {(done.stdout + done.stderr)[-600:]}")
        if "ordered" in name:  # f32, which is said where the file is opened
            tally.check("groups in the order of activations (desc_act): " in done.stderr, f"{name}: {done.stderr[-300:]}")
            continue
        big, folder = llama(1, 2048, 4096), place.at(name + "-big")
        write(folder, {**big, "quantization_config": config}, model(big, make, seed)[0])
        run = place.sluice("pack", folder, "-o", place.at("big.pack"))
        file_bytes = os.path.getsize(os.path.join(folder, "model.safetensors"))
        pack_bytes = os.path.getsize(place.at("big.pack")) if run.code == 0 else 0
        # scales of 8 bits that are no table's of ours are f32, and so are those of bytes
        limit = {"nf4-own-map": 1.09, "gptq-8bit-32": 1.06}.get(name, 1.05)
        tally.check(0 < pack_bytes <= limit * file_bytes,
                    f"{name}: {run.last()}; pack of {pack_bytes} bytes for {file_bytes}")
        print(f"{name}: file {file_bytes}, pack {pack_bytes}, {pack_bytes / file_bytes:.3f}")


def answers(tally, place, a):
    """A quantised model, its matrices fused, says what the same numbers say in f32, to the last bit of a logarithm."""
    config = {**llama(2), "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "sliding_window": None,
              "original_max_position_embeddings": 128, "rope_scaling": None}
    rows = [{"prompt_token_ids": [3 * i + 1, 7, 2 + i], "max_tokens": 12, "temperature": 0, "ignore_eos": True,
             "logprobs": True} for i in range(3)]
    place.write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    for seed, (name, (method, make)) in enumerate(METHODS.items()):
        tensors, plain = model(config, make, seed)
        out = []
        for what, keys, own in (("codes", {**config, "quantization_config": method}, tensors), ("f32", config, plain)):
            write(place.at(f"{name}-{what}"), keys, own)
            run = place.sluice("run", "-m", place.at(f"{name}-{what}"), "-i", place.at("in.jsonl"), "-o",
                               place.at("out.jsonl"), "--overwrite", "--compute", "f32")
            out.append(trial.read(place.at("out.jsonl")) if run.code == 0 else run.last())
        tally.check(out[0] == out[1] and b"logprob" in out[0], f"{name}: {out[0][:300]} for {out[1][:300]}")


def strangers(tally, place, a):
    """What stands beside the matrices: biases of zeros and scales of activations are none of the model's."""
    small = llama()
    for what, method, tail, x, ok in (
            ("biases of 0", "gptq", "self_attn.q_proj.bias", np.zeros(256, np.float16), True),
            ("a bias", "gptq", "self_attn.q_proj.bias", np.full(256, 2**-24, np.float16), False),
            ("a bias of awq", "awq", "self_attn.q_proj.bias", np.zeros(256, np.float16), False),
            ("a scale of inputs", "fp8", "mlp.up_proj.input_scale", np.ones(1, np.float32), True),
            ("an order that is none", "packed", "mlp.up_proj.weight_g_idx", np.arange(256, dtype=np.int32) // 32, True),
            ("a scale of keys", "fp8-channel", "self_attn.k_scale", np.ones(1, np.float32), True),
            ("scales of nothing", "gptq", "self_attn.x_proj.scales", np.ones((2, 64), np.float16), False),
            ("a stranger", "nf4", "self_attn.x_proj.absmax", np.ones(64, np.float32), False)):
        config, make = METHODS[method]
        tensors, _ = model(small, make, 5)
        tensors["model.layers.0." + tail] = x
        write(place.at("m"), {**small, "quantization_config": config}, tensors)
        run = place.sluice("inspect", place.at("m"))
        tally.check((run.code == 0) == ok and (ok or tail in run.error_line()), f"{what}: {run.code} {run.last()}")


def change(tensors, tail, x):
    out = dict(tensors)
    if x is None:
        del out[tail]
    else:
        out[tail] = x
    return out


def state_of(**changes):
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 256], **changes}
    return np.frombuffer(json.dumps(state).encode(), np.uint8)


def lies():
    """(what, quantization_config, tensors by tail, a part of the message)"""
    r = np.random.default_rng(7)
    g, w, f, c, b, bb = (make(r, 64, 256)[0] for make in (gptq, awq, fp8, fp8_channel, nf4, nf4_nested))
    yield "method", {"quant_method": "eetq"}, {}, "quantization_config.quant_method: unsupported: eetq (supported: gptq, "
    yield "no method", {"bits": 4}, {}, "quantization_config.quant_method: unsupported: missing"
    yield "method's type", {"quant_method": 7}, {}, "quantization_config.quant_method: expected string"
    yield "bits", {**GPTQ, "bits": 3}, {}, "quantization_config.bits: unsupported: 3 (supported: 4, 8)"
    yield "format", {**GPTQ, "checkpoint_format": "marlin"}, {}, "checkpoint_format: unsupported: marlin (supported: gptq"
    yield "half a name", {**GPTQ, "checkpoint_format": "gpt"}, {}, "checkpoint_format: unsupported: gpt (supported: gptq"
    yield "gemv", {**AWQ, "version": "gemv"}, {}, "quantization_config.version: unsupported: gemv (supported: gemm"
    yield "no zeros", {**AWQ, "zero_point": False}, {}, "quantization_config.zero_point: unsupported: false"
    yield "blocks", {**FP8, "weight_block_size": [128]}, {}, "weight_block_size: expected [rows, columns]"
    yield "blocks of 0", {**FP8, "weight_block_size": [128, 0]}, {}, "weight_block_size"
    yield "blocks of 48", {**FP8, "weight_block_size": [1, 48]}, {}, "weight_block_size: expected"
    yield "e5m2", {**FP8, "fmt": "e5m2"}, {}, "quantization_config.fmt: unsupported: e5m2 (supported: e4m3)"
    yield "sparse", {**PACKED, "format": "marlin-24"}, {}, "format: unsupported: marlin-24 (supported: float-quantized, int"
    weights = {"num_bits": 3, "type": "int", "strategy": "group"}
    yield "group", {**COMPRESSED, "config_groups": {"group_3": {"weights": weights}}}, {}, "group_3.weights.num_bits: unsupported: 3 (supported: 4"
    yield "rotated", {**PACKED, "transform_config": {"config_groups": {"u": {}}}}, {}, "transform_config: unsupported: present"
    yield from lies_packed(r)
    yield from lies_nvfp4(r)
    yield "8 bits", {**BNB, "load_in_8bit": True}, {}, "quantization_config.load_in_8bit: unsupported: true"
    yield "fp4", {**BNB, "bnb_4bit_quant_type": "fp4"}, {}, "bnb_4bit_quant_type: unsupported: fp4 (supported: nf4)"
    yield "storage", {**BNB, "bnb_4bit_quant_storage": "bfloat16"}, {}, "bnb_4bit_quant_storage: unsupported"
    for far in (2, -1, 2**31 - 1):
        index = g[".g_idx"].copy()
        index[130] = far
        yield f"g_idx {far}", GPTQ, change(g, ".g_idx", index), f"g_idx: number 130 is {far}, there are 2 groups"
    yield "g_idx short", GPTQ, change(g, ".g_idx", g[".g_idx"][:-1]), "g_idx: expected [256] I32"
    yield "no scales", GPTQ, change(g, ".scales", None), "do not match"
    yield "no zeros", GPTQ, change(g, ".qzeros", None), ".qzeros is missing"
    yield "3 groups", GPTQ, change(g, ".scales", np.ones((3, 64), np.float16)), "do not match"
    yield "4 groups", GPTQ, change(g, ".scales", np.ones((4, 64), np.float16)), ".qzeros: expected [4, 8]"
    yield "groups of 16", GPTQ, {**g, ".scales": np.ones((16, 64), np.float16),
                                 ".qzeros": random_words(r, 16, 8)}, "unsupported: groups of 16"
    yield "scales of rows", GPTQ, change(g, ".scales", np.ones((2, 63), np.float16)), ".scales: expected [2, 64]"
    yield "scales of words", GPTQ, change(g, ".scales", random_words(r, 2, 64)), ".scales: is I32, expected numbers"
    yield "zeros of bytes", GPTQ, change(g, ".qzeros", np.ones((2, 8), np.int8)), ".qzeros: is I8, expected I32"
    yield "codes of bytes", GPTQ, change(g, ".qweight", np.ones((32, 64), np.int8)), ".qweight: expected I32"
    yield "codes in a row", GPTQ, change(g, ".qweight", random_words(r, 64)), ".qweight: expected I32"
    yield "no codes", GPTQ, change(g, ".qweight", random_words(r, 0, 64)), ".qweight: expected I32"
    yield "twice", GPTQ, change(g, ".weight", np.ones((64, 256), np.float16)), "stored both quantised and unquantised"
    yield "awq's zeros", AWQ, change(w, ".qzeros", random_words(r, 4, 7)), ".qzeros: expected [4, 8]"
    yield "no scale", FP8, change(f, ".weight_scale_inv", None), "_scale or _scale_inv is missing"
    yield "scale's shape", FP8, change(f, ".weight_scale_inv", np.ones((2, 2), np.float32)), "expected one scale, [64"
    yield "scale of bytes", FP8, change(f, ".weight_scale_inv", np.ones((1, 2), np.uint8)), "scales are not numbers"
    yield "scale's rank", COMPRESSED, change(c, ".weight_scale", np.ones((64, 1, 1), np.float32)), "expected one scale"
    yield "e4m3 in a row", FP8, change(f, ".weight", e4m3(r, 1, 64)[0]), "expected two dimensions"
    yield "rows of 40", COMPRESSED, {".weight": e4m3(r, 64, 40), ".weight_scale": np.ones(1, np.float32)}, "rows of 40"
    yield "no state", BNB, change(b, STATE, None), "quant_state.bitsandbytes__nf4 is missing"
    yield "state's text", BNB, change(b, STATE, np.frombuffer(b"{\"shape\":", np.uint8)), "ends too early"
    yield "no bytes", BNB, change(b, STATE, np.zeros(0, np.uint8)), "empty file"
    yield "type", BNB, change(b, STATE, state_of(quant_type="fp4")), "quant_type: unsupported: fp4 (supported: nf4)"
    yield "blocksize", BNB, change(b, STATE, state_of(blocksize=128)), "blocksize: unsupported: 128 (supported: 64)"
    yield "shape", BNB, change(b, STATE, state_of(shape=[64, 512])), "has 8192 numbers, expected 16384"
    yield "huge", BNB, change(b, STATE, state_of(shape=[2**31 - 1, 2**31 - 64])), "expected"
    yield "no rank", BNB, change(b, STATE, state_of(shape=[64])), "shape: expected [rows, columns]"
    yield "rows of 32", BNB, change(b, STATE, state_of(shape=[512, 32])), "rows of 32 numbers (supported: multiples of 64)"
    yield "other table", BNB, change(b, ".weight.quant_map", NF4[::-1]), "this is not the nf4 table"
    yield "absmax", BNB, change(b, ".weight.absmax", np.ones(255, np.float32)), "has 255 numbers, expected 256"
    yield "absmax of bytes", BNB, change(b, ".weight.absmax", np.ones(256, np.uint8)), "is U8, expected F32"
    yield "nested", BNB, change(bb, ".weight.nested_absmax", np.ones(2, np.float32)), "has 2 numbers, expected 1"
    yield "nested table", BNB, change(bb, ".weight.nested_quant_map", None), ".nested_quant_map is missing"
    yield "no offset", BNB, change(bb, STATE, state_of(nested_blocksize=256)), "nested_offset: missing"
    blocks = {"_blocks": np.zeros((2, 3, 4, 16), np.uint8), "_scales": np.ones((2, 3, 4), np.uint8)}
    yield "no exponents", {"quant_method": "mxfp4"}, change(blocks, "_scales", None), "a scale of each block in"
    yield "an exponent short", {"quant_method": "mxfp4"}, change(blocks, "_scales", np.ones((2, 3, 3), np.uint8)), "scale"
    yield "blocks of 8", {"quant_method": "mxfp4"}, change(blocks, "_blocks", np.ones((2, 3, 4, 8), np.uint8)), "[.., 16]"


def lies_packed(r):
    p, z = packed(r, 64, 256)[0], packed(r, 60, 256, zeros=True)[0]
    for tail in ("scale", "shape"):
        yield "no " + tail, PACKED, change(p, ".weight_" + tail, None), f".weight_{tail} is missing"
    for what, shape in (("short", [64]), ("of bytes", np.ones(2, np.uint8)), ("of no rows", [0, 256]), ("far", [64, 2**40]),
                        ("of less", [64, 128]), ("of no bits", [64, 192]), ("of more", [65, 256])):
        message = {"short": "shape: expected [2] I64", "of bytes": "shape: expected [2] I64", "of no rows": "0 is no size",
                   "far": "1099511627776 is no size", "of less": "unsupported: groups of 16", "of no bits": "expected [64, 24 or 48] I32",
                   "of more": "packed: expected [65, 32 or 64] I32"}[what]
        yield "shape " + what, PACKED, change(p, ".weight_shape", np.array(shape)), message
    for what, x in (("of rows", np.ones(64, np.float16)), ("7 groups", np.ones((64, 7), np.float16)), ("none", np.ones((64, 0), np.float16)),
                    ("63 rows", np.ones((63, 8), np.float16)), ("of bytes", np.ones((64, 8), np.uint8))):
        yield "scales, " + what, PACKED, change(p, ".weight_scale", x), "weight_scale: expected numbers, [64, groups]"
    yield "groups of 16", PACKED, change(p, ".weight_scale", np.ones((64, 16), np.float16)), "unsupported: groups of 16"
    yield "codes of i16", PACKED, change(p, ".weight_packed", np.ones((64, 32), np.int16)), "packed: expected two dimensions of I32 or U8"
    yield "codes of fp4", PACKED, change(p, ".weight_packed", np.ones((64, 128), np.uint8)), "weight_scale: is BF16, expected F8_E4M3"
    yield "codes in a row", PACKED, change(p, ".weight_packed", random_words(r, 64 * 32)), "packed: expected two dimensions"
    b = int8(r, 64, 256)[0]
    yield "int8 without a scale", PACKED, change(b, ".weight_scale", None), ".weight_scale is missing"
    yield "int8 of three dimensions", PACKED, change(b, ".weight", np.ones((2, 64, 256), np.int8)), "weight: expected two dimensions"
    yield "zeros of int8 in words", PACKED, {**b, ".weight_zero_point": random_words(r, 64, 1)}, "zero_point: is I32, expected I8"
    yield "rows of 40 of int8", PACKED, change(b, ".weight", np.ones((64, 40), np.int8)), "unsupported: groups of 40"
    e = gptq(r, 64, 256, bits=8)[0]
    yield "zeros of 4 bits", {**GPTQ, "bits": 8}, change(e, ".qzeros", random_words(r, 2, 8)), ".qzeros: expected [2, 16]"
    yield "zeros short", PACKED, change(z, ".weight_zero_point", random_words(r, 7, 8)), "zero_point: expected [8, 8]"
    order = np.random.default_rng(1).permutation(256).astype(np.int32) // 32
    yield "packed out of order", PACKED, change(p, ".weight_g_idx", order), "unsupported: groups in the order of activations"


def lies_nvfp4(r):
    c, m = nvfp4(r, 64, 256)[0], nvfp4(r, 64, 256, False)[0]
    for tail in ("_scale", "_scale_2"):
        yield "no " + tail, MODELOPT, change(m, ".weight" + tail, None), f".weight{tail} is missing"
    yield "no factor", NVFP4, change(c, ".weight_global_scale", None), ".weight_scale_2 is missing"
    for what, x in (("none", 0), ("below 0", -1), ("NaN", np.nan), ("infinite", np.inf), ("tiny", 1e-40)):
        yield f"a factor that is {what}", NVFP4, change(c, ".weight_global_scale", np.full(1, x, np.float32)), "is no factor"
    yield "two factors", NVFP4, change(c, ".weight_global_scale", np.ones(2, np.float32)), "expected one number, F32"
    yield "a factor of f16", MODELOPT, change(m, ".weight_scale_2", np.ones(2, np.float16)), "expected one number, F32"
    yield "a scale per 32", NVFP4, change(c, ".weight_scale", e4m3(r, 64, 8)), "weight_scale: expected [64, 16]"
    yield "scales of f16", NVFP4, change(c, ".weight_scale", np.ones((64, 16), np.float16)), "is F16, expected F8_E4M3"
    yield "exponents per 16", NVFP4, change(c, ".weight_scale", np.ones((64, 16), np.uint8)), "weight_scale: expected [64, 8]"
    yield "codes of 3 dimensions", NVFP4, change(c, ".weight_packed", np.ones((2, 64, 128), np.uint8)), "expected two dimensions"
    yield "no codes", MODELOPT, change(m, ".weight", np.ones((64, 0), np.uint8)), "expected two dimensions"
    yield "rows of 96", NVFP4, change(c, ".weight_packed", np.ones((64, 48), np.uint8)), "rows of 96 numbers (supported: multiples of 64)"
    yield "inputs scaled", {**MODELOPT, "quant_algo": "NVFP4_AWQ"}, {}, "quant_algo: unsupported: NVFP4_AWQ (supported: FP8, "


def hostile(tally, place, a):
    """One clear line each, whatever does not agree."""
    for i, (what, config, tensors, message) in enumerate(lies()):
        folder = place.at(str(i))
        write(folder, {"quantization_config": config}, {UP + tail: x for tail, x in tensors.items()})
        code, out, why = dump(folder)
        tally.check(code == 5 and message in why and why.count("\n") == 0 and folder in why,
                    f"{what}: {code} {why!r}, expected {message!r}")


def unreadable(tally, place, a):
    """Numbers that have no exact form are refused where their rows are read."""
    r, name = np.random.default_rng(3), UP + ".weight"
    scales = np.full((2, 64), 1e-3, np.float32)
    nan = np.full((64, 16), 0x7f, np.uint8).view(E4M3)
    cases = (("a scale of e4m3's NaN", NVFP4, {**nvfp4(r, 64, 256)[0], ".weight_scale": nan}, name, "a scale is NaN"),
             ("a scale that does not fit f16", GPTQ, {**gptq(r, 64, 256)[0], ".scales": scales}, name, "does not fit f16"),
             ("of f32, packed", PACKED, {**packed(r, 64, 256)[0], ".weight_scale": scales.T}, name, "does not fit f16"),
             ("of bf16, with zeros", PACKED, {**packed(r, 64, 256, zeros=True)[0], ".weight_scale": np.full(
                 (64, 8), 1e-9, ml_dtypes.bfloat16)}, name, "a scale of 9.96806e-10 does not fit f16"),
             ("a scale of NaN", {"quant_method": "mxfp4"}, {"_blocks": np.zeros((2, 3, 4, 16), np.uint8),
              "_scales": np.full((2, 3, 4), 255, np.uint8)}, UP, "a scale is NaN"))
    for what, config, tensors, name, message in cases:
        write(place.at("m"), {"quantization_config": config}, {UP + tail: x for tail, x in tensors.items()})
        code, _, why = dump(place.at("m"), "--f32", name)
        tally.check(code == 5 and message in why, f"{what}: {code} {why!r}")


def apart(tally, place, a):
    """Some say elsewhere how they are quantised: modelopt's older checkpoints in hf_quant_config.json."""
    tensors, want = packed(np.random.default_rng(8), 64, 256)
    write(place.at("text"), {"text_config": {"quantization_config": PACKED}}, {UP + tail: x for tail, x in tensors.items()})
    same(tally, "text_config", place.at("text"), UP + ".weight", want)
    tensors, want = nvfp4(np.random.default_rng(9), 64, 256, False)
    write(place.at("m"), {}, {UP + tail: x for tail, x in tensors.items()})
    for algo, ok in (("NVFP4", True), ("MXFP8", False)):
        quant = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algo, "exclude_modules": ["lm_head"]}}
        place.write("m/hf_quant_config.json", json.dumps(quant).encode())
        if ok:
            same(tally, algo, place.at("m"), UP + ".weight", want)
        else:
            code, _, why = dump(place.at("m"))
            tally.check(code == 5 and "hf_quant_config.json: quantization.quant_algo: unsupported: MXFP8" in why, why)


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (libraries, definitions, apart, packs, answers, strangers, hostile, unreadable)))
