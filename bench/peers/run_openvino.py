#!/usr/bin/env python3
"""Our job on OpenVINO GenAI: run_openvino.py --job JOB.jsonl [--model smollm2] [--format q4_1] [--batch 64]

Continuous batching. The GGUF is exported to OpenVINO's own format once (--prepare), and compiled once per set of flags
into a cache, as a user would: a first run compiles, later runs load. --batch is the most rows scheduled at once. No prefix
caching unless --prefix-caching on, as it is by default. --kv, --group and --hint are OpenVINO's KV_CACHE_PRECISION,
DYNAMIC_QUANTIZATION_GROUP_SIZE (of 8-bit activations; 0: none, activations stay bf16 or f32) and PERFORMANCE_HINT; --kv-gib is
the memory of the KV cache, 0: grown as needed.
The streaming job: it reads the whole model into memory, so under a limit below the file it is killed.
"""
import os
import time

import peer


def exported(model, form):
    """The folder of the model in OpenVINO's format; made from the GGUF if missing."""
    source = peer.model_path(model, form)
    name = os.path.basename(source)
    place = os.path.join(peer.ROOT, "openvino-models", name.removesuffix(".gguf"))
    ready, link = os.path.join(place, "ready"), os.path.join(place, name)
    if not os.path.exists(ready):
        import openvino_genai as genai  # not above: a run's import is on its clock
        peer.say(f"peers: exporting {source} to {place}")
        os.makedirs(place, exist_ok=True)
        if not os.path.lexists(link):  # the files appear beside the GGUF
            os.symlink(source, link)
        genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
        os.unlink(link)  # else the folder is read as a GGUF
        with open(ready, "w", encoding="utf-8") as f:
            f.write(peer.version_of("openvino") + "\n")
    return place


def main():
    p = peer.arguments(__doc__, ["q4_1", "q8_0", "q4_0"], 64)
    p.add_argument("--tokens-a-step", type=int, default=1024, help="most tokens of a step [1024]")
    p.add_argument("--prefix-caching", choices=["on", "off"], default="off")
    p.add_argument("--kv", choices=["u8", "bf16", "f32"], default="u8")
    p.add_argument("--kv-gib", type=int, default=0)
    p.add_argument("--group", type=int, default=32)
    p.add_argument("--hint", choices=["LATENCY", "THROUGHPUT"], default="LATENCY")
    a = peer.parse(p)
    peer.enter("openvino")
    path = exported(a.model, a.format)
    if a.prepare:
        print(path)
        return
    job = peer.Job(a.job)
    begin = time.monotonic()
    import numpy as np
    import openvino
    import openvino_genai as genai
    schedule = genai.SchedulerConfig()
    schedule.max_num_seqs = a.batch
    schedule.max_num_batched_tokens = a.tokens_a_step
    schedule.cache_size = a.kv_gib
    schedule.enable_prefix_caching = a.prefix_caching == "on"
    pipe = genai.ContinuousBatchingPipeline(path, schedule, "CPU", {
        "INFERENCE_NUM_THREADS": a.threads, "KV_CACHE_PRECISION": a.kv, "DYNAMIC_QUANTIZATION_GROUP_SIZE": a.group,
        "PERFORMANCE_HINT": a.hint, "CACHE_DIR": os.path.join(path, "cache")})
    load_s = time.monotonic() - begin
    greedy = genai.GenerationConfig()
    greedy.max_new_tokens, greedy.ignore_eos, greedy.do_sample = job.n_new, True, False
    prompts = [openvino.Tensor(np.array([ids], dtype=np.int64)) for ids in job.prompts]
    if a.warm:
        first = genai.GenerationConfig()
        first.max_new_tokens, first.ignore_eos, first.do_sample = peer.WARM_TOKENS, True, False
        pipe.generate([openvino.Tensor(np.array([job.warm_prompt()], dtype=np.int64))], [first])
    start = time.monotonic()
    results = pipe.generate(prompts, [greedy] * len(prompts))
    end = time.monotonic()
    out = [[int(i) for i in r.m_generation_ids[0]] for r in results]
    peer.emit(a, job, out, "openvino-genai", peer.version_of("openvino"), end - start,
              end - begin, load_s, peer.peak_rss_mib())


if __name__ == "__main__":
    main()
