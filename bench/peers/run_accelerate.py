#!/usr/bin/env python3
"""Our job on transformers + accelerate: run_accelerate.py --job JOB.jsonl [--model smollm2] [--batch 64]

bf16 weights from the Hugging Face folder that models.py makes. --cpu-mib M leaves M MiB of weights in
RAM and the rest to accelerate's disk offload, which reads each layer's weights from the safetensors
file when needed; without it all weights are in RAM. Prompts of a batch are padded on the left, as
generate() wants; rows are sorted by length so that little is padded.
"""
import os
import tempfile
import time

import peer


def model_open(path, cpu_mib, work):
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    more = {}
    if cpu_mib:
        more = {"device_map": "auto", "max_memory": {"cpu": cpu_mib * peer.MIB}, "offload_folder": work}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **more)
    model.generation_config.eos_token_id = None  # end-of-text is ignored
    model.generation_config.pad_token_id = 0
    where = list(getattr(model, "hf_device_map", {}).values())
    peer.say(f"peers: accelerate: {where.count('disk')} of {len(where)} parts on disk" if where else
             "peers: accelerate: all in RAM")
    return model


def generate(model, prompts, n_new):
    import torch
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    done = model.generate(ids, attention_mask=mask, max_new_tokens=n_new, do_sample=False)
    return done[:, longest:].tolist()


def main():
    p = peer.arguments(__doc__, ["bf16"], 64)
    p.add_argument("--cpu-mib", type=int, default=0, help="weights that stay in RAM; 0: all [0]")
    a = peer.parse(p)
    peer.enter("accelerate")
    path = peer.model_path(a.model, "hf")
    if a.prepare:
        print(path)
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    job = peer.Job(a.job)
    begin = time.monotonic()
    import torch
    torch.set_num_threads(a.threads)
    order = sorted(range(len(job.prompts)), key=lambda r: len(job.prompts[r]))
    out = [None] * len(order)
    with tempfile.TemporaryDirectory(dir=peer.ROOT) as work:
        model = model_open(path, a.cpu_mib, work)
        load_s = time.monotonic() - begin
        if a.warm:
            generate(model, [job.warm_prompt()], peer.WARM_TOKENS)
        start = time.monotonic()
        for at in range(0, len(order), a.batch):
            rows = order[at:at + a.batch]
            for r, ids in zip(rows, generate(model, [job.prompts[r] for r in rows], job.n_new)):
                out[r] = ids
        end = time.monotonic()
    peer.emit(a, job, out, "accelerate", peer.version_of("accelerate"), end - start, end - begin, load_s,
              peer.peak_rss_mib())


if __name__ == "__main__":
    main()
