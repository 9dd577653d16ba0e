#!/usr/bin/env python3
"""Compares the number formats with gguf-py's dequantisers, bit for bit, and the reader with its
writer.

Needs the tools of build/tests/tools; $BUILD names another build.
Arguments are GGUF files to compare as well, all tensors of them.
"""
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np

from trial import Tally

BUILD = os.environ.get("BUILD", "build")
TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", BUILD, "tests/tools")
Type = gguf.GGMLQuantizationType
N_ROWS, K = 67, 1536  # two panels and three rows more; three ranges of dtype_dump
tally = Tally()
rng = np.random.default_rng(20240817)


def report(name, ok, detail=""):
    tally.check(ok, f"{name}: {detail}")


def dump(name, rows, how):
    out = subprocess.run([TOOLS + "/dtype_dump", name, str(K), how], input=rows.tobytes(),
                         stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(out, np.uint16 if how == "bf16" else np.uint32).reshape(N_ROWS, -1)


def compare(name, got, want):
    if got.shape != want.shape:
        return report(name, False, f"shape {got.shape}, expected {want.shape}")
    bad = np.argwhere(got != want)
    detail = ""
    if len(bad):
        r, i = bad[0]
        detail = f"{len(bad)} of {got.size} differ, [{r}, {i}]: {got[r, i]:#x} for {want[r, i]:#x}"
    report(name, not len(bad), detail)


def random_blocks(qtype, scale_at):
    """Random bytes, but the f16 scales are finite: -1.99..1.99, with subnormals and zeros."""
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (N_ROWS, K // block, size), np.uint8)
    for at in scale_at:
        blocks[..., at + 1] &= 0xBF
        blocks[: N_ROWS // 4, :, at + 1] &= 0x83  # a quarter of the rows: subnormal scales
    return blocks.reshape(N_ROWS, -1)


SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.Q2_K: [80, 82], Type.Q3_K: [108],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.TQ1_0: [52], Type.TQ2_0: [64], Type.MXFP4: [],
}
# Of grids: drawn thrice, so that each of 2,048 points is met. A block of iq1_m has its scale in four pieces.
GRIDS = {
    Type.IQ1_S: [0], Type.IQ1_M: [54], Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0],
    Type.IQ3_S: [0],
}
SCALES |= GRIDS
PLAIN = [Type.F32, Type.F16, Type.BF16]


def weights():
    x = rng.standard_normal((N_ROWS, K)).astype(np.float32)
    x *= np.exp2(rng.integers(-20, 6, (N_ROWS, 1))).astype(np.float32)
    x[3] = 0
    x[4, :64] = 1.5
    return x


def cases():
    x = weights()
    for qtype in PLAIN + list(SCALES):
        name = qtype.name.lower()
        try:
            yield name, qtype, gguf.quants.quantize(x, qtype)
        except NotImplementedError:
            pass
        for _ in range(3 if qtype in GRIDS else 1 if qtype in SCALES else 0):
            yield name, qtype, random_blocks(qtype, SCALES[qtype])
    for qtype, top in ((Type.F32, 4), (Type.F16, 2), (Type.BF16, 2)):
        bits = rng.integers(0, 256, (N_ROWS, K * top), np.uint8)
        bits[:, top - 1 :: top] &= 0xBF  # any finite number, of either sign
        yield qtype.name.lower(), qtype, bits


def formats_check():
    for n, (name, qtype, rows) in enumerate(cases()):
        rows = np.ascontiguousarray(rows).view(np.uint8)
        want = gguf.quants.dequantize(rows, qtype).astype(np.float32).reshape(N_ROWS, K)
        bits = np.ascontiguousarray(want).view(np.uint32)
        label = f"{name} #{n}"
        compare(label + " row", dump(name, rows, "row"), bits)
        compare(label + " f32 panel", dump(name, rows, "f32"), bits)
        rounded = gguf.quants.quantize(want, Type.BF16).view(np.uint16)
        compare(label + " bf16 panel", dump(name, rows, "bf16"), rounded)


def read(path, *what):
    run = subprocess.run([TOOLS + "/gguf_dump", path, *what], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    return run.stdout if run.returncode == 0 else run.stderr


def tensors_check(label, path, tensors):
    """tensors: name -> (type, dims slow to fast, bytes); the tool lists the same ones."""
    listed = {}
    for line in read(path).decode().splitlines():
        name, dtype, dims, _, n_bytes = line.rsplit(" ", 4)
        listed[name] = dtype, tuple(map(int, dims.split("x"))), int(n_bytes)
    report(label + " directory", listed == {
        name: (qtype.name.lower(), dims, len(data)) for name, (qtype, dims, data) in tensors.items()
    }, f"{len(listed)} tensors")
    for name, (qtype, dims, data) in tensors.items():
        report(f"{label} {name} bytes", read(path, "data", name) == data)
        rows = np.frombuffer(data, np.uint8)
        want = gguf.quants.dequantize(rows, qtype).astype(np.float32).tobytes()
        report(f"{label} {name} numbers", read(path, "f32", name) == want)


KEYS = [  # how to read it, key, value as gguf_dump prints it
    ("str", "general.architecture", b"llama\0"),
    ("int", "llama.block_count", b"3\n"),
    ("float", "llama.rope.freq_base", b"10000\n"),
    ("bool", "tokenizer.ggml.add_bos_token", b"1\n"),
    ("strs", "tokenizer.ggml.tokens", b"a\0\0\xc4\xa0b\0"),
    ("f32s", "tokenizer.ggml.scores", b"0\n-1\n0.5\n"),
    ("i32s", "tokenizer.ggml.token_type", b"1\n3\n1\n"),
    ("int", "x.i64", b"-9000000000\n"),
    ("str", "tokenizer.chat_template", "{{ \u00e4 }}\0".encode()),
]


def writer_check(folder, n_per_part):
    path = os.path.join(folder, "m.gguf")
    w = gguf.GGUFWriter(path, "llama", split_max_tensors=n_per_part)
    w.add_block_count(3)
    w.add_rope_freq_base(10000.0)
    w.add_add_bos_token(True)
    w.add_token_list([b"a", b"", b"\xc4\xa0b"])
    w.add_token_scores([0.0, -1.0, 0.5])
    w.add_token_types([1, 3, 1])
    w.add_int64("x.i64", -9000000000)
    w.add_chat_template("{{ \u00e4 }}")
    tensors = {}
    for i, (name, qtype, rows) in enumerate(cases()):
        rows = np.ascontiguousarray(rows).view(np.uint8)
        name, shape = f"blk.{i}.{name}.weight", rows.shape
        w.add_tensor(name, rows, raw_shape=shape, raw_dtype=qtype)
        tensors[name] = qtype, (N_ROWS, K), rows.tobytes()
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    label = "one file" if not n_per_part else "split"
    if n_per_part:
        n_parts = -(-len(tensors) // n_per_part)
        path = os.path.join(folder, f"m-00001-of-{n_parts:05d}.gguf")
    tensors_check(label, path, tensors)
    for how, key, want in KEYS:
        got = read(path, how, key)
        report(f"{label} {key}", got == want, f"{got} for {want}")


def nvfp4_check(folder):
    """NVFP4 has the numbers of gguf-py, times the factor of its matrix; the factor rounds a scale, not a number."""
    path, quant = os.path.join(folder, "nvfp4.gguf"), gguf.quants.NVFP4
    w, want = gguf.GGUFWriter(path, "llama"), {}
    for name, n, rows, k in (("wide", 1, 67, 1536), ("narrow", 1, 5, 320), ("experts", 3, 34, 512)):
        blocks = rng.integers(0, 256, (n * rows, k // 64, 36), np.uint8)
        blocks[..., :4][blocks[..., :4] == 0xFF] = 0x7F  # the reference ignores the sign of scales, and reads 0x7f as 0
        blocks = blocks.reshape(n * rows, -1)
        exact = gguf.quants.dequantize(blocks, Type.NVFP4).astype(np.float32).reshape(-1, 16)
        w.add_tensor(name + ".weight", blocks.reshape(*([n] if n > 1 else []), rows, -1), raw_dtype=Type.NVFP4)
        if name in ("wide", "experts"):
            factors = (rng.random(n) * 1e-3 + 1e-5).astype(np.float32)
            w.add_tensor(name + ".scale", factors)
            scales = quant.ue4m3_to_fp32(blocks.reshape(-1, 36)[:, :4]).astype(np.float32).reshape(-1, 1) * np.float32(2)
            scaled = scales * factors.repeat(len(scales) // n)[:, None]
            exact = np.divide(exact, scales, out=exact.copy(), where=scales > 0) * scaled
        want[name + ".weight"] = exact
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    for name, numbers in want.items():
        got = np.frombuffer(read(path, "f32", name), np.uint32).reshape(1, -1)
        compare(f"nvfp4 {name}", got, numbers.view(np.uint32).reshape(1, -1))


def model_check(path):
    tensors = {}
    for t in gguf.GGUFReader(path).tensors:
        tensors[t.name] = t.tensor_type, tuple(int(n) for n in reversed(t.shape)), t.data.tobytes()
    tensors_check(os.path.basename(path), path, tensors)


def main():
    formats_check()
    for n_per_part in (0, 7):
        with tempfile.TemporaryDirectory() as folder:
            writer_check(folder, n_per_part)
    with tempfile.TemporaryDirectory() as folder:
        nvfp4_check(folder)
    for path in sys.argv[1:]:
        model_check(path)
    return tally.end()


if __name__ == "__main__":
    sys.exit(main())
