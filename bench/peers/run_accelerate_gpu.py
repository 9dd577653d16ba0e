#!/usr/bin/env python3
"""Our job on transformers + accelerate, on a GPU: run_accelerate_gpu.py --job JOB.jsonl --model opt-13b --gpu-mib 8192 \\
                            [--cpu-mib 40000] [--batch 16]

device_map="auto" with max_memory: --weights-mib of weights on the card, --cpu-mib in RAM, the rest read from the
safetensors files when needed; other layers are copied to the card without look-ahead. KV and
activations stay on the card: to leave memory for them --weights-mib is less than --gpu-mib, and is searched with --batch.
Prompts of a batch are padded on the left; rows are sorted by length.
"""
import os
import tempfile
import time

import card
import peer

MODULES = ["torch", "transformers", "accelerate"]


def model_open(a, path, work):
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    room = {0: f"{a.weights_mib}MiB", "cpu": f"{a.cpu_mib}MiB" if a.cpu_mib else "1000GiB"}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, device_map="auto", max_memory=room,
                                                              offload_folder=work)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    where = list(map(str, model.hf_device_map.values()))
    peer.say("peers: accelerate: parts " + ", ".join(f"{where.count(x)} on {x}" for x in sorted(set(where))))
    return model


def main():
    p = card.arguments(__doc__, 16)
    p.add_argument("--weights-mib", type=int, default=0, help="of weights on the card [half of --gpu-mib]")
    p.add_argument("--cpu-mib", type=int, default=0, help="weights that stay in RAM [all that are not on the card]")
    a = card.parse(p)
    card.enter("accelerate", MODULES, a.check)
    path = card.folder(a.model)
    if a.prepare:
        print(path)
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    a.weights_mib = a.weights_mib or a.gpu_mib // 2 or 1 << 20
    job, begin = peer.Job(a.job), time.monotonic()
    torch = card.torch_capped(a.gpu_mib)
    torch.set_num_threads(a.threads)
    with tempfile.TemporaryDirectory(dir=peer.ROOT) as work, torch.no_grad():
        model = model_open(a, path, work)
        card.run_hf(a, torch, model, job, begin, "accelerate")


if __name__ == "__main__":
    main()
