#!/usr/bin/env python3
"""Our job on FlexGen: run_flexgen.py --job JOB.jsonl --model opt-13b --gpu-mib 8192 --batch 24 --gpu-batches 4 \\
                            --percent 0 100 0 100 100 0

FlexGen 0.1.8 of PyPI (its last; archived), weights of ones as its own benchmarks have them (_DUMMY_), f16. A block is
--batch x --gpu-batches rows, and the job must have whole blocks of rows. Whole runs, every token computed: its
published figures of 30B and 175B are projected from 10 steps of the first decode token (--debug fewer_batch).
What it does not do: rows of other lengths (all prompts of the job must be equally long), end early, refill.
Known: with --cpu-cache-compute and more than one batch its only workspace is overwritten by the next batch's KV: the
speed is real, the tokens are not its model's. Beside --gpu-mib it pins 8 GiB of RAM for copies from disk, always.
Patched at install where needed (see PATCHES): it was written for torch 1.13 and runs on 2.
"""
import os
import subprocess
import sys
import tempfile
import time

import card
import peer

WHEEL = "flexgen==0.1.8"
PLACE = os.path.join(peer.ROOT, "flexgen", "src")
# (file, old text, new text, why)
PATCHES = [
    ("flexgen/flex_opt.py", "from transformers import AutoTokenizer\n", "",
     "prompts are given as ids; its tokenizer would be fetched from the network"),
]
MODULES = ["torch", "numpy", "tqdm", "attr"]


def install():
    """Unpacks and patches its files; installs none of its packages."""
    ready = os.path.join(PLACE, "ready")
    if os.path.exists(ready):
        return PLACE
    os.makedirs(PLACE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as work:
        peer.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", work, WHEEL])
        wheel, = [os.path.join(work, n) for n in os.listdir(work)]
        peer.run([sys.executable, "-m", "zipfile", "-e", wheel, PLACE])
    for name, old, new, why in PATCHES:
        path = os.path.join(PLACE, name)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if old not in text:
            sys.exit(f"peers: flexgen: {name}: nothing to patch ({why})")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))
    with open(ready, "w", encoding="utf-8") as f:
        f.write(WHEEL + "\n")
    return PLACE


def arguments():
    p = card.arguments(__doc__, 24)
    p.add_argument("--gpu-batches", type=int, default=1, help="its --num-gpu-batches [1]")
    p.add_argument("--percent", type=int, nargs=6, default=[0, 100, 0, 100, 100, 0], metavar="N",
                   help="wG wC cG cC aG aC [0 100 0 100 100 0]")
    p.add_argument("--cpu-cache-compute", action="store_true")
    p.add_argument("--compress-weight", action="store_true", help="4 bits")
    p.add_argument("--compress-cache", action="store_true", help="4 bits")
    p.add_argument("--no-pin-weight", action="store_true")
    p.set_defaults(format="f16")
    return card.parse(p)


def model_open(a, work):
    from flexgen import flex_opt as f
    gpu, cpu, disk = f.TorchDevice("cuda:0"), f.TorchDevice("cpu"), f.TorchDisk(work)
    env = f.ExecutionEnv(gpu=gpu, cpu=cpu, disk=disk, mixed=f.TorchMixedDevice([gpu, cpu, disk]))

    def four_bits(dim):
        return f.CompressionConfig(num_bits=4, group_size=64, group_dim=dim, symmetric=False)
    policy = f.Policy(a.batch, a.gpu_batches, *a.percent, True, True, not a.no_pin_weight, a.cpu_cache_compute, 1.0,
                      a.compress_weight, four_bits(0), a.compress_cache, four_bits(2))
    return f.OptLM(f.get_opt_config(a.model), env, f.DUMMY_WEIGHT, policy), env


def main():
    a = arguments()
    if a.check and not os.path.exists(os.path.join(PLACE, "ready")):
        print("flexgen: not fetched: run_flexgen.py --prepare")
        sys.exit(card.LACKS)
    if not a.check:
        sys.path.insert(0, install())
    if a.prepare:
        return
    card.enter("flexgen", MODULES, a.check, "accelerate")  # torch's environment
    job, block = peer.Job(a.job), a.batch * a.gpu_batches
    if len(job.prompts) % block or len({len(p) for p in job.prompts}) != 1:
        sys.exit(f"peers: flexgen: {len(job.prompts)} rows are not a multiple of {block}, or prompts differ in length")
    begin = time.monotonic()
    torch = card.torch_capped(a.gpu_mib)
    import numpy as np
    torch.set_num_threads(a.threads)
    out = []
    with tempfile.TemporaryDirectory(dir=peer.ROOT) as work, torch.no_grad():
        model, env = model_open(a, work)
        load_s = time.monotonic() - begin
        try:
            if a.warm:
                model.generate(np.array([job.warm_prompt()[:32]] * block), max_new_tokens=1)
            start = time.monotonic()
            for at in range(0, len(job.prompts), block):
                ids = model.generate(np.array(job.prompts[at:at + block]), max_new_tokens=job.n_new)
                out += ids[:, len(job.prompts[0]):].tolist()
            end = time.monotonic()
        finally:
            env.close_copy_threads()
    a.batch = block
    peer.emit(a, job, out, "flexgen", "0.1.8, torch " + torch.__version__, end - start, end - begin, load_s,
              peer.peak_rss_mib(), gpu_mib=a.gpu_mib, peak_gpu_mib=card.peak_mib(torch))
    sys.stdout.flush()
    os._exit(0)  # its threads outlive errors


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(f"peers: flexgen: {e}")
