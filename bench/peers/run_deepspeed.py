#!/usr/bin/env python3
"""Our job on DeepSpeed ZeRO-Inference: run_deepspeed.py --job JOB.jsonl --model opt-13b --gpu-mib 8192 [--batch 16]

ZeRO stage 3 with parameters offloaded to pinned RAM (--nvme DIR: to files there) under transformers' generate(), bf16.
KV stays on the card: its offload of KV to RAM and its 4-bit weights are in a fork of transformers (DeepSpeedExamples)
that PyPI does not have, and are skipped here. Prompts of a batch are padded on the left.
"""
import os
import time

import card
import peer

MODULES = ["torch", "transformers", "deepspeed", "accelerate"]


def settings(a, dim):
    """Its configuration for inference, from its examples."""
    param = {"device": "nvme", "nvme_path": a.nvme, "buffer_count": 5, "buffer_size": 2 * dim * 4 * dim} if a.nvme else \
            {"device": "cpu"}
    return {"bf16": {"enabled": True}, "train_batch_size": 1, "steps_per_print": 1 << 30, "wall_clock_breakdown": False,
            "zero_optimization": {"stage": 3, "offload_param": {**param, "pin_memory": True},
                                  "stage3_prefetch_bucket_size": 2 * dim * dim, "stage3_max_live_parameters": 8 * dim * dim,
                                  "stage3_param_persistence_threshold": dim},
            "aio": {"block_size": 1 << 20, "queue_depth": 32, "thread_count": 2, "single_submit": False, "overlap_events": True}}


def model_open(a, path):
    import deepspeed
    import torch
    import transformers
    from transformers.integrations import HfDeepSpeedConfig
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "29511")):
        os.environ.setdefault(name, value)
    deepspeed.init_distributed("nccl")
    config = transformers.AutoConfig.from_pretrained(path)
    wanted = settings(a, config.hidden_size)
    kept = HfDeepSpeedConfig(wanted)  # must be alive while the model is read, because it splits the layers
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    engine = deepspeed.initialize(model=model.eval(), config_params=wanted)[0]
    engine.module.eval()
    return engine.module, kept


def main():
    p = card.arguments(__doc__, 16)
    p.add_argument("--nvme", default="", metavar="DIR", help="parameters in files there [in RAM]")
    a = card.parse(p)
    card.enter("deepspeed", MODULES, a.check)
    path = card.folder(a.model)
    if a.prepare:
        print(path)
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    job, begin = peer.Job(a.job), time.monotonic()
    torch = card.torch_capped(a.gpu_mib)
    torch.set_num_threads(a.threads)
    with torch.no_grad():
        model, _kept = model_open(a, path)
        card.run_hf(a, torch, model, job, begin, "deepspeed")


if __name__ == "__main__":
    main()
