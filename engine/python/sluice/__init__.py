"""sluice from Python: models and jobs (`Model`, `run`), and what a job would take under other flags (`sluice.whatif`).

    model = sluice.Model("SmolLM2-135M.Q4_1.gguf", mem_ram="2G", kv_policy="h2o", kv_budget=0.2)
    for result in model.generate(["Hello", "Bye"], max_tokens=64, temperature=0):  # as rows finish
        print(result.index, result.text)

A keyword is a flag of the `sluice` program with _ for -: `mem_ram="2G"` is `--mem-ram 2G`. No torch; log-probabilities need numpy,
drawings matplotlib.
"""
from . import whatif
from ._program import Error
from .model import Job, Model, Result, run

__all__ = ["Error", "Job", "Model", "Result", "run", "whatif"]
