#!/usr/bin/env python3
"""Our job on OpenVINO GenAI: run_openvino.py --job JOB.jsonl [--model smollm2] [--format q4_1] [--batch 64]

Continuous batching straight from the GGUF, which it compiles at every start (load_s). --batch is the
most rows scheduled at once. No prefix caching unless --prefix-caching on, as it is by default.
The streaming job: it reads the whole model into memory, so under a limit below the file it is killed.
"""
import time

import peer


def main():
    p = peer.arguments(__doc__, ["q4_1", "q8_0", "q4_0"], 64)
    p.add_argument("--tokens-a-step", type=int, default=1024, help="most tokens of a step [1024]")
    p.add_argument("--prefix-caching", choices=["on", "off"], default="off")
    a = peer.parse(p)
    peer.enter("openvino")
    path = peer.model_path(a.model, a.format)
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
    schedule.enable_prefix_caching = a.prefix_caching == "on"
    pipe = genai.ContinuousBatchingPipeline(path, schedule, "CPU", {"INFERENCE_NUM_THREADS": a.threads})
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
