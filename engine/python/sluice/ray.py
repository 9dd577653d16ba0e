"""sluice on a Ray cluster: a job on many machines (`run`), or a step of a Ray Data pipeline (`Generator`). Needs `pip install ray`.

    import sluice.ray
    job = sluice.ray.run("/shared/model.gguf", "/shared/in.jsonl", "/shared/out.jsonl", "/shared/job1", num_workers=4, mem_ram="24G")

    answers = ray.data.read_json("/shared/in.jsonl").map_batches(
        sluice.ray.Generator, fn_constructor_kwargs={"model": "/shared/model.gguf", "fields": {"max_tokens": 64}, "mem_ram": "24G"},
        batch_size=1024, concurrency=4)
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import ray

from ._program import Error
from .model import Job, Model
from .model import run as run_here

__all__ = ["Generator", "run"]


@ray.remote(max_retries=-1)
def _work(model: str, source: str, out: str, work_dir: str, flags: dict[str, object]) -> dict[str, Any] | Error:
    """One worker of the job. Ray starts it again when its process dies; it is then a new worker, which takes over the old one's rows."""
    try:
        return run_here(model, source, out, work_dir=work_dir, **flags).summary
    except Error as error:
        return error


def _is_uri(path: str) -> bool:
    return "://" in path


def _copy(source: str, to: str) -> None:
    """By pyarrow's file systems, as Ray itself reads and writes: file://, s3://, gs://, hdfs:// ..."""
    from pyarrow import fs  # pylint: disable=import-outside-toplevel
    from_fs, from_path = fs.FileSystem.from_uri(source) if _is_uri(source) else (fs.LocalFileSystem(), source)
    to_fs, to_path = fs.FileSystem.from_uri(to) if _is_uri(to) else (fs.LocalFileSystem(), to)
    fs.copy_files(from_path, to_path, source_filesystem=from_fs, destination_filesystem=to_fs)


def run(model: str, input: str, output: str, work_dir: str, *, num_workers: int = 1,  # pylint: disable=redefined-builtin
        num_cpus: float = 1, num_gpus: float = 0, ray_options: Mapping[str, Any] | None = None, **flags: object) -> Job:
    """`sluice run` by num_workers Ray tasks that share one job. work_dir is a folder that all nodes see; input and output too, unless
    they are URIs of object storage: then the input is copied to work_dir first, and the output from there at the end. num_cpus, num_gpus
    and ray_options say what Ray reserves for a worker (`{"scheduling_strategy": "SPREAD"}`: one a node); flags are those of `sluice run`.
    A worker that dies is started again, and its rows go on meanwhile. Error: no worker could end the job; the same call resumes."""
    folder = work_dir.rstrip("/") + ".files"
    source = os.path.join(folder, "in.jsonl") if _is_uri(input) else input
    out = os.path.join(folder, "out.jsonl") if _is_uri(output) else output
    if folder in (os.path.dirname(source), os.path.dirname(out)):
        os.makedirs(folder, exist_ok=True)
    if source != input and not os.path.exists(source):
        _copy(input, source + ".part")
        os.rename(source + ".part", source)
    task = _work.options(num_cpus=num_cpus, num_gpus=num_gpus, **(ray_options or {}))
    ends = ray.get([task.remote(model, source, out, work_dir, flags) for _ in range(num_workers)])
    summaries = [x for x in ends if not isinstance(x, Error)]
    if not summaries:
        raise ends[0]
    if out != output:
        _copy(out, output)
    if os.path.isdir(folder):
        shutil.rmtree(folder)
    return Job(output, max(summaries, key=lambda x: x.get("output_tokens", 0)))


class Generator:
    """For ray.data.Dataset.map_batches: answers the rows of a batch. `column` has prompts (texts, or lists of messages); `fields` are
    those of a row (max_tokens, temperature, ...); flags those of `sluice run`. The answers are in the columns `generated_text` and
    `finish_reason`; a row that failed has None and its `error`. Large batches are fast: a batch is planned as one job."""

    def __init__(self, model: str, column: str = "prompt", fields: Mapping[str, object] | None = None, **flags: object) -> None:
        self.model, self.column, self.fields = Model(model, **flags), column, dict(fields or {})

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        prompts = [x.tolist() if hasattr(x, "tolist") else x for x in batch[self.column]]
        texts, reasons, errors = ([None] * len(prompts) for _ in range(3))
        for result in self.model.generate(prompts, **self.fields):
            errors[result.index] = str(result.error) if result.error else None
            if not result.error:
                texts[result.index], reasons[result.index] = result.text, result.finish_reason
        return {**batch, "generated_text": texts, "finish_reason": reasons, "error": errors}
