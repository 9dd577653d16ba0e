#!/usr/bin/env python3
"""Compares source_dump with what the real safetensors package wrote: single and sharded models,
every format, unaligned layouts, and damaged copies that both must refuse: safetensors_live.py
"""
import json
import os
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import trial

DUMP = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/tools/source_dump")
BF16 = ml_dtypes.bfloat16
NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32",
         "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "uint16": "U16", "uint32": "U32",
         "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}

CRC_TABLE = []
for i in range(256):
    c = i
    for _ in range(8):
        c = (c >> 1) ^ 0x82F63B78 if c & 1 else c >> 1
    CRC_TABLE.append(c)


def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c = (c >> 8) ^ CRC_TABLE[(c ^ byte) & 255]
    return c ^ 0xFFFFFFFF


def expected_lines(tensors):
    lines = set()
    for name, t in tensors.items():
        fmt = NAMES[t.dtype.name]
        dims = list(t.shape)
        usable = fmt in ("F32", "F16", "BF16") and len(dims) <= 4
        if len(dims) > 4:
            folded = 1
            for d in dims[:len(dims) - 3]:
                folded *= d
            dims = [folded] + dims[len(dims) - 3:]
        crc = f"{crc32c(t.tobytes()):08x}" if usable else "-"
        lines.add(f"tensor\t{name}\t{fmt}\t{dims}\t{crc}")
    return lines


def dump(path, *keys):
    p = subprocess.run([DUMP, path, *keys], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout.splitlines(), p.stderr.strip()


def compare(tally, name, path, tensors):
    rc, lines, why = dump(path)
    got, want = set(lines), expected_lines(tensors)
    tally.check(rc == 0 and got == want and len(lines) == len(want),
                f"{name}: rc {rc} {why}; missing {sorted(want - got)[:3]}, extra {sorted(got - want)[:3]}")


def config_write(folder, values):
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(values, f, indent=2)


def some_tensors(seed):
    r = np.random.RandomState(seed)
    out = {}
    for layer in range(3):
        p = f"model.layers.{layer}."
        out[p + "self_attn.q_proj.weight"] = r.standard_normal((48, 32)).astype(BF16)
        out[p + "mlp.up_proj.weight"] = r.standard_normal((64, 32)).astype(np.float16)
        out[p + "norm.weight"] = r.standard_normal(32).astype(np.float32)
    return out


def odd_tensors():
    f32 = np.float32
    return {
        "scalar": np.array(1.5, f32), "empty": np.zeros((0, 7), f32), "bool": np.array([True, False, True]),
        "one_byte": np.array([1, 2, 3], np.uint8), "f64": np.ones(3),
        **{f"i{8 * n}": np.arange(5, dtype=f"i{n}") for n in (1, 2, 4, 8)},
        **{f"u{8 * n}": np.arange(5, dtype=f"u{n}") for n in (2, 4, 8)},
        "f8": np.ones(4).astype(ml_dtypes.float8_e4m3fn), "f8b": np.ones(4).astype(ml_dtypes.float8_e5m2),
        "rank5": np.ones((2, 3, 1, 2, 2), f32), "rank4": np.ones((2, 1, 3, 2), np.float16),
        "name with spaces and \u00e9\u20ac\U0001f600": np.ones(2, f32),
        'quote" back\\slash': np.ones(1, f32),
    }


def single(tally, place, a):
    config_write(place.folder, {"model_type": "llama"})
    path = place.at("model.safetensors")
    for name, tensors in (("plain", some_tensors(1)), ("odd", odd_tensors()), ("none", {})):
        save_file(tensors, path, metadata={"format": "pt", "note": "a \"b\" \u00e9"})
        compare(tally, f"single {name}", place.folder, tensors)
        save_file(tensors, path)
        compare(tally, f"single {name} without metadata", place.folder, tensors)


def sharded(tally, place, a):
    config_write(place.folder, {})
    tensors = some_tensors(2)
    names = sorted(tensors)
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        save_file({n: tensors[n] for n in names[i::3]}, place.at(file))
        weight_map.update({n: file for n in names[i::3]})
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    place.write("model.safetensors.index.json", json.dumps(index, indent=2).encode())
    compare(tally, "sharded", place.folder, tensors)
    os.rename(place.at("model-00002-of-00003.safetensors"), place.at("away"))
    rc, _, why = dump(place.folder)
    tally.check(rc == 5 and "missing shard(s): model-00002-of-00003.safetensors" in why, f"one shard missing: {why}")


def config(tally, place, a):
    config_write(place.folder, {"hidden_size": 576, "rms_norm_eps": 1e-05, "rope_theta": 100000, "tie": True,
                                "rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "head_dim": None,
                                "model_type": "ll\u00e4ma"})
    save_file({"a": np.ones(1, np.float32)}, place.at("model.safetensors"))
    keys = {"hidden_size": "int 576", "rms_norm_eps": "float 1.0000000000000001e-05",
            "rope_theta": "int 100000", "tie": "bool 1",
            "rope_scaling.rope_type": "str llama3", "rope_scaling.factor": "float 8",
            "head_dim": "absent", "absent": "absent", "model_type": "str ll\u00e4ma"}
    rc, lines, why = dump(place.folder, *keys)
    want = [f"value\t{k}\t{v}" for k, v in keys.items()]
    tally.check(rc == 0 and lines[1:] == want, f"config: {rc} {why} {lines[1:]}")


def package_takes(path):
    try:
        with safe_open(path, framework="np") as f:
            for k in f.keys():
                f.get_tensor(k)
        return True
    except (SafetensorError, KeyError, UnicodeDecodeError, ValueError, RuntimeError, TypeError, AttributeError):
        return False


def verdicts(tally, place, a):
    """Damaged headers: we take what the package takes, and nothing else."""
    config_write(place.folder, {})
    path = place.at("model.safetensors")
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(4).astype(BF16)}, path)
    raw = trial.read(path)
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = raw[8:8 + n], raw[8 + n:]
    state = 12345
    both_take = both_refuse = 0
    for i in range(400):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        at = (state >> 33) % len(header)
        copy = bytearray(header)
        copy[at] = b"{}[]:,\"0123456789-.eFb \\"[(state >> 20) % 24]
        place.write("model.safetensors", struct.pack("<Q", n) + bytes(copy) + data)
        theirs = package_takes(path)
        rc, _, why = dump(place.folder)
        both_take += rc == 0 and theirs
        both_refuse += rc != 0 and not theirs
        if (rc == 0) != theirs or rc not in (0, 5):
            tally.check(False, f"verdict {i} at {at}: the package {'takes' if theirs else 'refuses'}, we "
                        f"{'take' if rc == 0 else f'exit with {rc}, {why}'}: {bytes(copy)!r}")
    tally.check(both_take > 10 and both_refuse > 100, f"verdicts: {both_take} taken by both, {both_refuse} refused")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (single, sharded, config, verdicts)))
