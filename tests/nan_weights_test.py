#!/usr/bin/env python3
"""S27: weights that are not numbers. A row that meets them is an error row, its neighbours keep their bytes.

A model's file may hold NaN and infinities (they are numbers of the format, and read as they are). Two rows
of the embedding get them, a third one a number whose square overflows in a norm's sum; a job whose prompts use those ids, and others, in the same batches, must end with
exit 3, `numeric_error` for the first and, for the others, the bytes of the sound model.
"""
import json
import os
import random
import struct
import sys
from trial import difference, read, run_parts

DIM, LAYERS, HEADS, HEAD_DIM, FFN, VOCAB = 32, 2, 2, 16, 48, 64
BAD = {7: float("nan"), 9: float("inf"), 11: 1e25}  # the last one's square is no f32
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": DIM,
          "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "intermediate_size": FFN,
          "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": False}


def tensors():
    yield "model.embed_tokens.weight", (VOCAB, DIM)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name + ".weight", (DIM,)
        for name in "qkvo":
            yield at + f"self_attn.{name}_proj.weight", (DIM, DIM)
        yield at + "mlp.gate_proj.weight", (FFN, DIM)
        yield at + "mlp.up_proj.weight", (FFN, DIM)
        yield at + "mlp.down_proj.weight", (DIM, FFN)
    yield "model.norm.weight", (DIM,)
    yield "lm_head.weight", (VOCAB, DIM)


def model(place, name, bad):
    """A directory; bad: rows of the embedding and what stands in the middle of them."""
    r, header, data = random.Random(5), {}, b""
    folder = place.at(name)
    os.mkdir(folder)
    for tensor, shape in tensors():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [1.0] * n if len(shape) == 1 else [r.uniform(-0.5, 0.5) for _ in range(n)]
        for row, x in bad.items() if tensor == "model.embed_tokens.weight" else ():
            numbers[row * DIM + 11] = x
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *numbers)
    text = json.dumps(header).encode()
    place.write(os.path.join(name, "model.safetensors"), struct.pack("<Q", len(text)) + text + data)
    place.write(os.path.join(name, "config.json"), json.dumps(CONFIG).encode())
    return folder


def numeric_errors(tally, place, _):
    r, rows, hit = random.Random(6), [], []
    sound = [i for i in range(3, VOCAB) if i not in BAD]
    for i in range(12):
        ids = [r.choice(sound) for _ in range(r.randint(1, 40))]
        if i % 3 == 1:  # somewhere in the prompt
            ids[r.randrange(len(ids))] = r.choice(list(BAD))
            hit.append(i)
        row = {"custom_id": f"r{i}", "prompt_token_ids": ids, "max_tokens": 6, "ignore_eos": True,
               "temperature": i // 2 % 2, "seed": i, "logit_bias": {str(b): -100 for b in BAD}}
        rows.append({**row, "logprobs": 2} if i % 2 else row)  # a score that is no number is refused apart
    place.rows("in.jsonl", rows)
    for weights in ("f32", "bf16", "q8"):
        outs = []
        for name, bad, code in (("sound", {}, 0), ("bad", BAD, 3)):
            out = place.fresh()
            folder = place.at(name + weights)
            folder = folder if os.path.isdir(folder) else model(place, name + weights, bad)
            done = place.sluice("run", "-m", folder, "-i", place.at("in.jsonl"), "-o", out, "--batch", 4,
                                "--batches", 2, "--weights", weights, "--progress", "none")
            tally.check(done.code == code, f"{weights}: {name}: exit {done.code}, want {code}: {done.err[-300:]}")
            outs.append(read(out).splitlines(True))
        want, got = outs
        tally.check(len(want) == len(got) == len(rows), f"{weights}: {len(want)} and {len(got)} rows")
        for i, (a, b) in enumerate(zip(want, got)):
            error = (json.loads(b).get("error") or {}).get("code")
            if i in hit:
                tally.check(error == "numeric_error", f"{weights}: row {i}: {b[:200]}")
            else:
                tally.check(a == b, f"{weights}: row {i}: {difference(a, b)}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [numeric_errors]))
