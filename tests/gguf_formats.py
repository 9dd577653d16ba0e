#!/usr/bin/env python3
"""Compares the number formats with gguf-py's dequantisers, bit for bit.

Needs numpy and gguf (skips without) and build/tests/tools/dtype_dump; $BUILD names another build.
"""
import os
import subprocess
import sys

try:
    import gguf
    import numpy as np
except ImportError as e:
    print(f"skip: {e}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)

BUILD = os.environ.get("BUILD", "build")
DUMP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", BUILD, "tests/tools/dtype_dump")
Type = gguf.GGMLQuantizationType
N_ROWS, K = 67, 1536  # two panels and three rows more; three ranges of dtype_dump
counts = {"passed": 0, "failed": 0, "skipped": 0}
rng = np.random.default_rng(20240817)


def report(name, ok, detail=""):
    counts["passed" if ok else "failed"] += 1
    if not ok:
        print(f"FAILED {name}: {detail}")


def dump(name, rows, how):
    out = subprocess.run([DUMP, name, str(K), how], input=rows.tobytes(), stdout=subprocess.PIPE,
                         check=True).stdout
    return np.frombuffer(out, np.uint16 if how == "bf16" else np.uint32).reshape(N_ROWS, -1)


def compare(name, got, want, rows):
    if got.shape != want.shape:
        return report(name, False, f"shape {got.shape}, expected {want.shape}")
    bad = np.argwhere(got != want)
    detail = ""
    if len(bad):
        r, i = bad[0]
        detail = f"{len(bad)} of {got.size} differ, first [{r}, {i}]: {got[r, i]:#x} for {want[r, i]:#x}"
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
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}
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
        if qtype in SCALES:
            yield name, qtype, random_blocks(qtype, SCALES[qtype])
    for qtype, top in ((Type.F32, 4), (Type.F16, 2), (Type.BF16, 2)):
        bits = rng.integers(0, 256, (N_ROWS, K * top), np.uint8)
        bits[:, top - 1 :: top] &= 0xBF  # any finite number, of either sign
        yield qtype.name.lower(), qtype, bits


def main():
    for n, (name, qtype, rows) in enumerate(cases()):
        rows = np.ascontiguousarray(rows).view(np.uint8)
        want = gguf.quants.dequantize(rows, qtype).astype(np.float32).reshape(N_ROWS, K)
        bits = np.ascontiguousarray(want).view(np.uint32)
        label = f"{name} #{n}"
        compare(label + " row", dump(name, rows, "row"), bits, rows)
        compare(label + " f32 panel", dump(name, rows, "f32"), bits, rows)
        rounded = gguf.quants.quantize(want, Type.BF16).view(np.uint16)
        compare(label + " bf16 panel", dump(name, rows, "bf16"), rounded, rows)
    print(", ".join(f"{v} {k}" for k, v in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
