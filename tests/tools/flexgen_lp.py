#!/usr/bin/env python3
"""Is a plan slower than FlexGen's linear program would have it, and by how much?

    flexgen_lp.py [--sluice PATH] [--prompts N] [MODEL:MACHINE:PROMPT/GEN]...

FlexGen (arXiv 2303.06865, section 4.3) places weights and KV cache by the share of each tier and lets the slowest
lane decide: T = max(ctog, gtoc, dtoc, ctod, comp), minimised over the shares under the peak memory of each tier, for
every block size. Here that program is fed with the rates of our machine files and our own bytes. It knows no layers,
batches, frames, steps or look-ahead, no start and no end, and prompts of later rows enter beside the rows that
decode, so each lane is summed over a row's whole life: no plan of ours may come below it. Where one does, our
prediction is wrong: exit status 1. Not part of `make check`: needs highspy (pip install highspy) and ./sluice.
"""
import argparse
import json
import os
import re
import subprocess
import sys

import highspy

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs")
JOBS = [f"{model}:{machine}:512/{n}" for model in ("opt-30b", "llama-3-70b") for machine in ("t4", "a100")
        for n in (32, 256, 1024)]


def read_cfg(name):
    with open(os.path.join(CONFIGS, name + ".cfg"), encoding="utf-8") as f:
        pairs = re.findall(r"^(\w+) *= *([^#\n]*?) *(?:#.*)?$", f.read(), re.M)
    return {k: float(v) if re.fullmatch(r"[-+.\deE]+", v) else v for k, v in pairs}


def plan(sluice, model, machine, prompt, gen, rows, *more):
    argv = [sluice, "plan", "-q", "-m", f"{CONFIGS}/{model}.cfg", "--machine", f"{CONFIGS}/machine-{machine}.cfg",
            "--prompt-len", str(prompt), "--gen-len", str(gen), "--num-prompts", str(rows), "--json", *more]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


class Bytes:
    """Of the whole model: weights that stream, KV of a token, FLOPs of a token, of a prompt's attention, of a head."""

    def __init__(self, shape, stored, prompt):
        kv_heads = shape.get("kv_heads", shape["heads"])
        head_dim = shape.get("head_dim", shape["dim"] / shape["heads"])
        layers, heads, dim = shape["layers"], shape["heads"] * head_dim, shape["dim"]
        embed = shape["vocab"] * dim * 2
        self.weights = max(stored - embed, 0)  # rows of the embedding are gathered
        self.kv_token = layers * 2 * kv_heads * head_dim * 2
        mlp = (3 if shape["family"] == "llama" else 2) * dim * shape["ffn"]
        self.token_flops = 2 * layers * (dim * (2 * heads + 2 * kv_heads * head_dim) + mlp)
        self.prompt_flops = prompt * self.token_flops + 2 * layers * heads * prompt * prompt
        self.head_flops = 2 * dim * shape["vocab"]


def fastest_pass(b, m, rows, prompt, gen):
    """Seconds of a pass in which `rows` decode and rows / gen prompts enter; None: it does not fit."""
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    wg, wc, wn, cg, cc, cn = (h.addVariable(0, 1) for _ in range(6))
    t = h.addVariable(0, highspy.kHighsInf)
    peak = rows * (prompt + gen) * b.kv_token  # eq. of peak memory: 4 (s + n) h1 bls l
    read = rows * max(prompt + gen / 2 - 32, 0) * b.kv_token  # whole pages of the mean context
    written = rows * max((prompt + gen) / gen - 32 / gen, 0) * b.kv_token  # prompts, and a token each
    flops = rows * (b.token_flops + b.head_flops + b.prompt_flops / gen)
    h.addConstr(wg + wc + wn == 1)
    h.addConstr(cg + cc + cn == 1)
    scale = 1e-9
    for weights, kv, room in ((wg, cg, m["device_memory"]), (wc, cc, m["ram"]), (None, cn, m["disk"])):
        used = peak * scale * kv + (b.weights * scale * weights if weights is not None else 0 * kv)
        h.addConstr(used <= room * scale)
    h.addConstr(b.weights * scale * (wc + wn) + read * scale * (cc + cn) <= m["h2d"] * scale * t)  # ctog
    h.addConstr(written * scale * (cc + cn) <= m["d2h"] * scale * t)  # gtoc
    h.addConstr(b.weights / m["nvme_read"] * wn +
                (read / m["nvme_read"] + written / m["nvme_write"]) * cn <= t)  # dtoc and ctod, one disk
    h.addConstr(t >= flops / m["device_flops"] + read / m["device_read"])  # comp
    h.addConstr(t >= (b.weights + read) / m["device_read"])  # which theirs leaves out: few rows would be free
    h.minimize(t)
    if h.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return h.getObjectiveValue()


def bound(b, m, rows_max, prompt, gen):
    """Seconds of a token, and the rows at once that give it."""
    best = None
    k = 0
    while (rows := round(2 ** (k / 4))) <= min(rows_max, 65536):
        k += 1
        s = fastest_pass(b, m, rows, prompt, gen)
        if s is not None and (best is None or s / rows < best[0]):
            best = s / rows, rows
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--sluice", default="./sluice")
    p.add_argument("--prompts", type=int, default=20000)
    p.add_argument("jobs", nargs="*", default=JOBS)
    args = p.parse_args()
    below = 0
    print(f"{'job':32} {'LP s/token':>12} {'rows':>6} {'ours s/token':>13} {'rows':>6} {'bound':>11} {'ours / LP':>9}")
    for job in args.jobs:
        model, machine, prompt, gen = re.fullmatch(r"(.+):(.+):(\d+)/(\d+)", job).groups()
        prompt, gen, m = int(prompt), int(gen), read_cfg(f"machine-{machine}")
        everything = plan(args.sluice, model, machine, prompt, gen, 1, "--mem-device", "9000G", "--mem-ram", "9000G",
                          "--weights-decoded", "0")
        ours = plan(args.sluice, model, machine, prompt, gen, args.prompts)
        b = Bytes(read_cfg(model), everything["bytes"]["weights_resident"], prompt)
        lp_s, rows = bound(b, m, args.prompts, prompt, gen)
        token_s = ours["predicted"]["job_s"] / ours["work"]["output_tokens"]
        below += token_s < lp_s
        print(f"{job:32} {lp_s:12.5g} {rows:6} {token_s:13.5g} {ours['plan']['batch'] * ours['plan']['batches']:6} "
              f"{ours['predicted']['bound']:>11} {token_s / lp_s:9.2f}{'  BELOW' if token_s < lp_s else ''}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
