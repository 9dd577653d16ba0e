#!/usr/bin/env python3
"""Our job on vLLM with weights offloaded to RAM: run_vllm.py --job JOB.jsonl --model opt-13b --gpu-mib 8192 --offload-gib 20

--offload-gib: its cpu_offload_gb, weights read over the link in every pass; the rest of --gpu-mib holds
the other weights and KV. Its own dummy weights (load_format="dummy"), bf16, prefixes not cached (as for the others;
prompts here share none). It schedules and refills rows itself: --batch is max_num_seqs. CUDA graphs are off unless
--graphs: they hold memory, and offloaded weights gain nothing from them. It has no tier on disk for weights or for KV of live rows.
"""
import os
import time

import card
import peer

MODULES = ["torch", "vllm"]


def main():
    p = card.arguments(__doc__, 128)
    p.add_argument("--offload-gib", type=float, default=0, help="weights in RAM [0]")
    p.add_argument("--graphs", action="store_true")
    a = card.parse(p)
    card.enter("vllm", MODULES, a.check)
    path = card.folder(a.model, weights=False)
    if a.prepare:
        print(path)
        return
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    job, begin = peer.Job(a.job), time.monotonic()
    import torch
    from vllm import LLM, SamplingParams
    total = torch.cuda.get_device_properties(0).total_memory
    share = a.gpu_mib * card.MIB / total if a.gpu_mib else 0.9
    llm = LLM(model=path, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", cpu_offload_gb=a.offload_gib,
              gpu_memory_utilization=share, max_num_seqs=a.batch, enforce_eager=not a.graphs, enable_prefix_caching=False,
              max_model_len=max(map(len, job.prompts)) + job.n_new, seed=0)
    load_s = time.monotonic() - begin

    def generate(prompts, n):
        params = SamplingParams(temperature=0, max_tokens=n, min_tokens=0, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(r.outputs[0].token_ids) for r in done]
    if a.warm:
        generate([job.warm_prompt()], peer.WARM_TOKENS)
    start = time.monotonic()
    out = generate(job.prompts, job.n_new)
    end = time.monotonic()
    peer.emit(a, job, out, "vllm", card.version("vllm"), end - start, end - begin, load_s, peer.peak_rss_mib(),
              gpu_mib=a.gpu_mib, peak_gpu_mib=card.peak_mib(torch))


if __name__ == "__main__":
    main()
