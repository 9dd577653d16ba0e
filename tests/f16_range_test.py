#!/usr/bin/env python3
"""Weights beyond what f16 holds, and a device that reads f16: f16_range_test.py [SLUICE] [--only PART]

The pack says how large its numbers are, as they are stored in every format; a model with one that f16 does not hold is
refused before anything runs on a device whose matmuls read f16, and nowhere else. A pack of before that says so once.
Standard library only.
"""
import os
import re
import struct
import sys

import model_make
import trial

SIM = os.path.join(os.path.dirname(trial.HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
READS_F16, READS_BF16 = ["--device", f"{SIM}:0,0,0,{1 << 29},1"], ["--device", f"{SIM}:0"]
RANGE_AT, PAGE = 40, 4096  # of a pack's header
FORMATS = ("f32", "bf16", "bf12", "q8", "q4")
UNKNOWN = "how large its numbers are"


def model(place, name, tensor, x):
    """Weights of 0.01, one of the tensor being x."""
    found = {}

    def change(header):
        found.update({k: v["data_offsets"] for k, v in header.items()})
    data = bytearray(model_make.safetensors(change))
    at = 8 + struct.unpack_from("<Q", data)[0] + found[tensor][0] + 4 * 77
    struct.pack_into("<f", data, at, x)
    folder = place.at(name)
    os.makedirs(folder)
    return model_make.hf(folder, weights=bytes(data))


def packed(place, name, source, weights):
    done = place.sluice("pack", source, "-o", place.at(name), "--weights", weights, "--progress", "none")
    assert done.code == 0, done.err
    return place.at(name)


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def of_before(path, header):
    """The pack with another range in its header."""
    data = bytearray(trial.read(path))
    data[RANGE_AT:RANGE_AT + 16] = header
    struct.pack_into("<I", data, PAGE - 4, crc32c(data[:PAGE - 4]))
    with open(path + ".other", "wb") as f:
        f.write(data)
    return path + ".other"


def dry(place, pack, *flags):
    rows = place.rows("in.jsonl", [{"prompt_token_ids": [5, 6, 7], "max_tokens": 4}])
    return place.sluice("run", "-m", pack, "-i", rows, "-o", place.fresh(), "--dry-run", *flags)


def beyond(tally, place, _):
    """One weight of 100,000: by every format's own numbers, where it stands, and what runs it."""
    source = model(place, "large", "model.layers.1.mlp.up_proj.weight", 1e5)
    for weights in FORMATS:
        pack = packed(place, f"{weights}.pack", source, weights)
        done = dry(place, pack, *READS_F16)
        line = done.error_line()
        said = re.search(rf"{re.escape(pack)}: layer 2: up: (\S+) exceeds 65504, .*--compute f32", line)
        tally.check(done.code == 5 and said and abs(float(said[1]) - 1e5) < 500, f"{weights}: exit {done.code}: {line}")
        for what, flags in (("f32", [*READS_F16, "--compute", "f32"]), ("a device that reads bf16", READS_BF16),
                            ("the CPU", ["--device", "cpu"])):
            done = dry(place, pack, *flags)
            tally.check(done.code == 0 and UNKNOWN not in done.err, f"{weights}, {what}: exit {done.code}: {done.err[-300:]}")
    source = model(place, "head", "model.embed_tokens.weight", 7e4)
    done = dry(place, packed(place, "head.pack", source, "f32"), *READS_F16)
    tally.check(done.code == 5 and "layer 3: head: 70000 " in done.error_line(), f"a tied head: {done.code}: {done.error_line()}")


def within(tally, place, _):
    """The largest number of f16 fits; so do infinities, which stay what they are."""
    for name, x, code in (("most", 65504.0, 0), ("infinite", float("inf"), 0), ("more", 65536.0, 5), ("small", 0.01, 0)):
        pack = packed(place, f"{name}.pack", model(place, name, "model.layers.0.self_attn.q_proj.weight", x), "f32")
        done = dry(place, pack, *READS_F16)
        tally.check(done.code == code and UNKNOWN not in done.err, f"{x}: exit {done.code}: {done.err[-300:]}")
    norm = packed(place, "norm.pack", model(place, "norm", "model.norm.weight", 1e5), "f32")  # no matrix: never f16
    done = dry(place, norm, *READS_F16)
    tally.check(done.code == 0, f"a norm's weight: exit {done.code}: {done.err[-300:]}")


def before(tally, place, _):
    """A pack that does not know: one warning, where it matters; a header that lies is damaged."""
    pack = packed(place, "old.pack", model(place, "old", "model.layers.0.mlp.up_proj.weight", 1e5), "f32")
    old = of_before(pack, bytes(16))
    for flags, n in ((READS_F16, 1), (READS_BF16, 0), (["--device", "cpu"], 0)):
        done = dry(place, old, *flags)
        tally.check(done.code == 0 and done.err.count(UNKNOWN) == n, f"{flags}: exit {done.code}: {done.err[-400:]}")
    for what, header in (("layer", (1, 1.0, 99, 1)), ("role", (1, 1.0, 1, 999)), ("number", (1, float("nan"), 1, 1)),
                         ("flag", (2, 1.0, 1, 1))):
        done = dry(place, of_before(pack, struct.pack("<IfII", *header)), "--device", "cpu")
        tally.check(done.code == 7 and "range" in done.error_line(), f"{what}: exit {done.code}: {done.error_line()}")
    config = place.write("dummy.cfg", b"family = llama\ndim = 64\nlayers = 2\nheads = 2\nffn = 96\nvocab = 300\ncontext = 256\n")
    done = dry(place, config, *READS_F16)
    tally.check(done.code == 0 and UNKNOWN not in done.err, f"dummy weights: exit {done.code}: {done.err[-300:]}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, [beyond, within, before]))
