#!/usr/bin/env python3
"""The Python package, step by step: example.py MODEL FOLDER

Generates in memory, scores, plans a job, runs the job on files, and asks what other memory would bring. FOLDER keeps the job, so the
same command goes on where it was stopped.
"""
import json
import os
import sys

import sluice

path, folder = sys.argv[1:]
flags = {"mem_ram": "256M", "threads": 2}

# In memory: many prompts at once, results as rows finish.
with sluice.Model(path, **flags) as model:
    prompts = [f"Question {i}:" for i in range(8)]
    for result in model.generate(prompts, max_tokens=8, temperature=0):
        print(result.index, result.finish_reason, repr(prompts[result.index] + result.text))

    # Text to token ids and back. (model.apply_chat_template makes a prompt of messages.)
    ids = model.encode(prompts[1])
    print(f"{prompts[1]!r} is {len(ids)} of at most {model.context_length} tokens: {[model.decode([i]) for i in ids]}")

    # How likely a text is, token by token: logprobs is an array of numpy.
    score = model.score("Question 1:", " an answer")
    print(f"log p = {score.logprob:.2f}, the least likely token {score.logprobs.min():.2f}")

# A job on files: durable. Ctrl-C stops the job, and the same call goes on.
source, output = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
if not os.path.exists(source):
    with open(source, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"custom_id": str(i), "prompt": f"Question {i}:", "max_tokens": 8}) + "\n" for i in range(100))
job = sluice.run(path, source, output, **flags)
print(f"{job.summary['rows']['ok']} rows in {output}" + ("" if "plan" in job.summary else ", which was complete already"))

# Before a large job: what would other memory bring? (pandas.DataFrame(rows) is a table.)
for row in sluice.whatif.sweep(path, num_prompts=1000, prompt_len=32, gen_len=32, threads=2, mem_ram=["128M", "256M"]):
    print(row["mem_ram"], "does not fit" if row["why"] else f"{row['tokens_per_s']:.0f} tokens/s, limited by {row['bound']}")
