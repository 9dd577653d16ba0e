#!/usr/bin/env python3
"""Compares source_dump with what the real safetensors package wrote: single and sharded models,
every format, unaligned layouts, and damaged copies that both must refuse.

    python3 tests/safetensors_live.py [build/tests/tools/source_dump]
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

DUMP = sys.argv[1] if len(sys.argv) > 1 else "build/tests/tools/source_dump"
counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(name, ok, why=""):
    counts["passed" if ok else "failed"] += 1
    if not ok:
        print(f"FAILED {name}: {why}")


def finish():
    print(", ".join(f"{n} {word}" for word, n in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


try:
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ImportError as e:
    print(f"skipped: {e}")
    counts["skipped"] = 1
    finish()

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


def tensor_bytes(t):
    return t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def format_name(t):
    return {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
            torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
            torch.int16: "I16", torch.int8: "I8",
            torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
            torch.float8_e5m2: "F8_E5M2"}[t.dtype]


def expected_lines(tensors):
    lines = set()
    for name, t in tensors.items():
        fmt = format_name(t)
        dims = list(t.shape)
        usable = fmt in ("F32", "F16", "BF16") and len(dims) <= 4
        if len(dims) > 4:
            folded = 1
            for d in dims[:len(dims) - 3]:
                folded *= d
            dims = [folded] + dims[len(dims) - 3:]
        crc = f"{crc32c(tensor_bytes(t)):08x}" if usable else "-"
        lines.add(f"tensor\t{name}\t{fmt}\t{dims}\t{crc}")
    return lines


def dump(path, *keys):
    p = subprocess.run([DUMP, path, *keys], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout.splitlines(), p.stderr.strip()


def compare(name, path, tensors):
    rc, lines, why = dump(path)
    got, want = set(lines), expected_lines(tensors)
    check(name, rc == 0 and got == want and len(lines) == len(want),
          f"rc {rc} {why}; missing {sorted(want - got)[:3]}, extra {sorted(got - want)[:3]}")


def config_write(folder, values):
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(values, f, indent=2)


def some_tensors(seed):
    g = torch.Generator().manual_seed(seed)
    def rand(*shape):
        return torch.randn(*shape, generator=g)
    out = {}
    for layer in range(3):
        p = f"model.layers.{layer}."
        out[p + "self_attn.q_proj.weight"] = rand(48, 32).to(torch.bfloat16)
        out[p + "mlp.up_proj.weight"] = rand(64, 32).to(torch.float16)
        out[p + "norm.weight"] = rand(32)
    return out


def odd_tensors():
    return {
        "scalar": torch.tensor(1.5), "empty": torch.zeros(0, 7),
        "bool": torch.tensor([True, False, True]),
        "one_byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "f64": torch.ones(3, dtype=torch.float64),
        "i64": torch.arange(5), "i32": torch.arange(5, dtype=torch.int32),
        "i16": torch.arange(5, dtype=torch.int16), "i8": torch.arange(5, dtype=torch.int8),
        "f8": torch.ones(4).to(torch.float8_e4m3fn), "f8b": torch.ones(4).to(torch.float8_e5m2),
        "rank5": torch.ones(2, 3, 1, 2, 2), "rank4": torch.ones(2, 1, 3, 2).to(torch.float16),
        "name with spaces and \u00e9\u20ac\U0001f600": torch.ones(2),
        'quote" back\\slash': torch.ones(1),
    }


def test_single(tmp):
    config_write(tmp, {"model_type": "llama"})
    path = os.path.join(tmp, "model.safetensors")
    for name, tensors in (("plain", some_tensors(1)), ("odd", odd_tensors()), ("none", {})):
        save_file(tensors, path, metadata={"format": "pt", "note": "a \"b\" \u00e9"})
        compare(f"single {name}", tmp, tensors)
        save_file(tensors, path)
        compare(f"single {name} without metadata", tmp, tensors)


def test_sharded(tmp):
    config_write(tmp, {})
    tensors = some_tensors(2)
    names = sorted(tensors)
    shards = [names[0::3], names[1::3], names[2::3]]
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        save_file({n: tensors[n] for n in shard}, os.path.join(tmp, file))
        weight_map.update({n: file for n in shard})
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    with open(os.path.join(tmp, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=2)
    compare("sharded", tmp, tensors)
    os.rename(os.path.join(tmp, "model-00002-of-00003.safetensors"), os.path.join(tmp, "away"))
    rc, _, why = dump(tmp)
    check("sharded, one missing",
          rc == 5 and "missing shard(s): model-00002-of-00003.safetensors" in why, why)


def test_config(tmp):
    config_write(tmp, {"hidden_size": 576, "rms_norm_eps": 1e-05, "rope_theta": 100000, "tie": True,
                       "rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "head_dim": None,
                       "model_type": "ll\u00e4ma"})
    save_file({"a": torch.ones(1)}, os.path.join(tmp, "model.safetensors"))
    keys = {"hidden_size": "int 576", "rms_norm_eps": "float 1.0000000000000001e-05",
            "rope_theta": "int 100000", "tie": "bool 1",
            "rope_scaling.rope_type": "str llama3", "rope_scaling.factor": "float 8",
            "head_dim": "absent", "absent": "absent", "model_type": "str ll\u00e4ma"}
    rc, lines, why = dump(tmp, *keys)
    want = [f"value\t{k}\t{v}" for k, v in keys.items()]
    check("config", rc == 0 and lines[1:] == want, f"{rc} {why} {lines[1:]}")


def test_verdicts(tmp):
    """Damaged headers: we take what the package takes, and nothing else."""
    config_write(tmp, {})
    path = os.path.join(tmp, "model.safetensors")
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4).to(torch.bfloat16)}, path)
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = raw[8:8 + n], raw[8 + n:]
    state = 12345
    n_both_take = n_both_refuse = 0
    for i in range(400):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        at = (state >> 33) % len(header)
        copy = bytearray(header)
        copy[at] = b"{}[]:,\"0123456789-.eFb \\"[(state >> 20) % 24]
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", n) + bytes(copy) + data)
        try:
            with safe_open(path, framework="pt") as f:
                for k in f.keys():
                    f.get_tensor(k)
            theirs = True
        except (SafetensorError, KeyError, UnicodeDecodeError, ValueError, RuntimeError):
            theirs = False
        rc, lines, why = dump(tmp)
        ours = rc == 0
        n_both_take += ours and theirs
        n_both_refuse += not ours and not theirs
        if ours != theirs:
            check(f"verdict {i} at {at}", False,
                  f"package {'takes' if theirs else 'refuses'}, we {'take' if ours else why}: "
                  f"{bytes(copy)!r}")
        elif rc not in (0, 5):
            check(f"verdict {i} at {at}", False, f"exit code {rc}: {why}")
    check("verdicts", n_both_take > 10 and n_both_refuse > 100, f"{n_both_take} {n_both_refuse}")


for test in (test_single, test_sharded, test_config, test_verdicts):
    with tempfile.TemporaryDirectory() as tmp_dir:
        test(tmp_dir)
finish()
