"""Models and jobs: libsluice in this process. See Model and run()."""
from __future__ import annotations

import ctypes as c
import json
import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _library as lib
from ._program import Error

if TYPE_CHECKING:
    import numpy

OK, SOME_FAILED, INTERNAL, USAGE, STOPPED = 0, 3, 1, 2, 75
AHEAD = 256  # finished rows that wait for the caller; then the model waits


@dataclass
class Result:
    """What became of one row. `error`: why the row failed, else None; a failed row has no text.

    Generated rows have `text`, `token_ids`, `finish_reason` ("stop" or "length") and, where `logprobs` was asked for, the natural
    log-probability of each token. Scored rows have `logprobs` of the tokens of the continuation, `logprob`, their sum, and
    `is_greedy`: True when each token was the likeliest. `logprobs` is an array of numpy."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    n_prompt: int = 0
    logprobs: numpy.ndarray | None = None
    logprob: float | None = None
    is_greedy: bool | None = None
    error: Error | None = None


@dataclass
class Job:
    """A job that has ended. `summary` is what --summary writes (engine/job/README.md); rows may have failed: summary["rows"]. Where
    `output` was complete already, the summary has no plan and no times."""

    output: str
    summary: dict[str, Any]


def _result(row: lib.Row, scored: bool) -> Result:
    """A copy: what the library points at is gone when the callback returns."""
    if row.error_code:
        return Result(row.index, error=Error(SOME_FAILED, f"{row.error_code.decode()}: {(row.error or b'').decode()}"))
    logprobs = None
    if row.logprobs:
        import numpy  # pylint: disable=import-outside-toplevel
        logprobs = numpy.ctypeslib.as_array(row.logprobs, (row.n_logprobs,)).copy()
    return Result(row.index, c.string_at(row.text, row.n_text).decode(errors="replace") if row.text else "", tuple(row.tokens[:row.n_tokens]),
                  row.finish_reason.decode() if row.finish_reason else None, row.n_prompt, logprobs,
                  row.logprob if scored else None, bool(row.is_greedy) if scored else None)


def _input(prompt: object) -> dict[str, Any]:
    """A row of a prompt: a text, token ids, messages, or a row as `sluice run` reads it."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, dict):
        return prompt
    ids = list(prompt)  # type: ignore[call-overload]
    return {"messages": ids} if ids and isinstance(ids[0], dict) else {"prompt_token_ids": [int(x) for x in ids]}


def _pair(context: object, continuation: object) -> dict[str, Any]:
    """A row to score. Texts are encoded with the model's tokenizer."""
    row: dict[str, Any] = {}
    for key, value in (("context", context), ("continuation", continuation)):
        row |= {key: value} if isinstance(value, str) else {f"{key}_ids": [int(x) for x in value]}  # type: ignore[attr-defined]
    return row


class _Call:
    """A call of the library in a thread of its own, so that Ctrl-C stops the call instead of waiting for its end."""

    def __init__(self, model: Model, function: Callable[[_Call], int]) -> None:
        self.model, self.function, self.code, self.left, self.ended = model, function, INTERNAL, False, threading.Event()
        self.error: BaseException | None = None  # raised in a callback, where Python would only print it
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        """The thread."""
        try:
            self.code = self.function(self)
        finally:
            self.ended.set()

    def leave(self) -> None:
        """Stops the call where it has not ended, and waits, also through a second Ctrl-C: the library uses the memory of the call."""
        while not self.ended.is_set():
            self.left = True
            self.model.stop()  # again: the thread may not have reached the library yet
            try:
                self.ended.wait(0.1)
            except KeyboardInterrupt:
                continue


class Model:
    """A model, opened with the flags of `sluice run`: Model("model.gguf", mem_ram="2G", kv_policy="h2o", kv_budget=0.2).

    Packing a large model at its first use takes minutes. Errors are sluice.Error. A model does one thing at a time, and threads may
    have a model each; with `with`, or close(), its memory is freed at once. `context_length`: tokens of the longest row.
    `bos_token_id`, `eos_token_id`: of the tokens that begin and end a text, or None."""

    def __init__(self, model: str | os.PathLike[str], **flags: object) -> None:
        self._lib, self._handle = lib.library(), c.c_void_p()
        self._busy = threading.Lock()
        self._running: _Call | None = None
        options = lib.options(flags)
        code = self._lib.sluice_open(c.byref(self._handle), os.fsencode(model), options, len(options))
        if code != OK:
            error = self._failure(code)
            self.close()
            raise error
        info = lib.Info()
        self._lib.sluice_model(self._handle, c.byref(info))
        self.context_length: int = info.context
        self.bos_token_id, self.eos_token_id = (None if x < 0 else int(x) for x in (info.bos, info.eos))

    def _failure(self, code: int) -> Error:
        text = self._lib.sluice_error(self._handle).decode(errors="replace") if self._handle else "no memory for a handle"
        return Error(code, text or f"sluice: code {code}")

    def close(self) -> None:
        """Frees the model, and stops what the model is doing. A closed model may be closed again."""
        if self._running:
            self._running.leave()
        self._lib.sluice_close(self._handle)
        self._handle = c.c_void_p()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def stop(self) -> None:
        """The call in progress ends after its step, with code 75; any thread may ask for that. Between calls a stop does nothing."""
        self._lib.sluice_stop(self._handle)

    def _claim(self) -> None:
        if not self._handle:
            raise Error(USAGE, "the model is closed")
        if not self._busy.acquire(blocking=False):
            raise Error(USAGE, "the model is busy (read the other call's rows to their end, or open one model for each thread)")

    def _start(self, function: Callable[[_Call], int]) -> _Call:
        self._claim()
        self._running = _Call(self, function)
        return self._running

    def _end(self, call: _Call) -> None:
        call.leave()
        self._running = None
        self._busy.release()

    def _call(self, function: Callable[..., int], *arguments: object, may: tuple[int, ...] = (OK,)) -> None:
        call = self._start(lambda _: function(self._handle, *arguments))
        try:
            while not call.ended.wait(0.1):
                pass
        finally:
            self._end(call)
        if call.code not in may:
            raise self._failure(call.code)

    # ---- text ----

    def _bytes(self, function: Callable[..., int], *arguments: object, size: int = 1) -> bytes:
        """What a call that takes no time gives: n things of `size` bytes."""
        out, n = c.c_void_p(), c.c_int64()
        self._claim()
        try:
            code = function(self._handle, *arguments, c.byref(out), c.byref(n))
            if code != OK:
                raise self._failure(code)
        finally:
            self._busy.release()
        return lib.take(out, n.value * size)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. `add_special_tokens`: with what the tokenizer puts around a prompt, often BOS."""
        data = text.encode()
        return memoryview(self._bytes(self._lib.sluice_encode, data, len(data), add_special_tokens, size=4)).cast("i").tolist()

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        ids = array("i", [x if 0 <= x < 1 << 31 else -1 for x in token_ids])
        return self._bytes(self._lib.sluice_decode, (c.c_int32 * len(ids)).from_buffer(ids), len(ids), skip_special_tokens).decode()

    def apply_chat_template(self, conversation: Iterable[dict[str, Any]], tools: list[dict[str, Any]] | None = None, *,
                            add_generation_prompt: bool = False, tokenize: bool = True, **kwargs: object) -> list[int] | str:
        """The token ids of the prompt that the model's chat template makes of messages, or with tokenize=False the prompt's text.
        `add_generation_prompt`: the prompt ends where the answer begins. kwargs are further variables of the template."""
        row = {"messages": list(conversation), "tools": tools, "chat_template_kwargs": {**kwargs, "add_generation_prompt": add_generation_prompt}}
        text = self._bytes(self._lib.sluice_chat_prompt, json.dumps(row).encode()).decode()
        return self.encode(text, add_special_tokens=False) if tokenize else text

    # ---- in memory ----

    def _rows(self, function: Callable[..., int], rows: list[dict[str, Any]], scored: bool) -> Iterator[Result]:
        """Results as rows finish; a caller that leaves the loop stops the job."""
        finished: queue.Queue[Result] = queue.Queue(AHEAD)

        def put(call: _Call, result: Result) -> int:
            while not call.left:
                try:
                    finished.put(result, timeout=0.1)
                    return 0
                except queue.Full:
                    continue
            return 1

        def work(call: _Call) -> int:
            def tell(_: object, row: Any) -> int:
                try:
                    return put(call, _result(row[0], scored))
                except BaseException as error:  # pylint: disable=broad-exception-caught
                    call.error = error
                    return 1

            requests = (lib.Request * len(rows))(*(lib.Request(json.dumps(row).encode()) for row in rows))
            return function(self._handle, requests, len(rows), lib.RowFunction(tell), None)

        call = self._start(work)
        try:
            while not call.ended.is_set() or not finished.empty():
                try:
                    yield finished.get(timeout=0.05)
                except queue.Empty:
                    continue
        finally:
            self._end(call)
        if call.error:
            raise call.error
        if call.code not in (OK, SOME_FAILED):
            raise self._failure(call.code) if self._handle else Error(STOPPED, "the model was closed")

    def generate(self, prompts: Iterable[object], **fields: object) -> Iterator[Result]:
        """A Result for each prompt, in the order in which rows finish (`index` is the prompt's). A prompt is a text, token ids, a list
        of messages, or a dict as a line of `sluice run`; fields are of every row: max_tokens=64, temperature=0, stop=["\\n"], seed=1,
        logprobs=True. Give many prompts at once: they are planned as one job. Rows that fail have `error`."""
        rows = [{**fields, **_input(prompt)} for prompt in prompts]
        return self._rows(self._lib.sluice_batch, rows, False)

    def chat(self, messages: Iterable[dict[str, Any]], **fields: object) -> Result:
        """The answer to one conversation, by the model's chat template. Error: the row failed."""
        return self._one(self.generate([list(messages)], **fields))

    def scores(self, pairs: Iterable[tuple[object, object]]) -> Iterator[Result]:
        """A Result for each (context, continuation), texts or token ids, as rows finish."""
        return self._rows(self._lib.sluice_score_batch, [_pair(*pair) for pair in pairs], True)

    def score(self, context: object, continuation: object) -> Result:
        """How likely the continuation is. Error: the row failed."""
        return self._one(self.scores([(context, continuation)]))

    @staticmethod
    def _one(results: Iterator[Result]) -> Result:
        result, = results
        if result.error:
            raise result.error
        return result

    # ---- jobs on files, plans ----

    def run(self, input: str, output: str, *, score: bool = False,  # pylint: disable=redefined-builtin
            progress: Callable[[dict[str, Any]], None] | None = None) -> Job:
        """Every row of the file `input` into `output`: durable, and after Ctrl-C, a kill or a power cut the same call goes on.
        `score`: rows are scored, as by `sluice score`. `progress` is called about once a second, in another thread."""
        def tell(_: object, now: Any) -> None:
            if progress:
                progress({name: getattr(now[0], name) for name in lib.PROGRESS})

        events = lib.Events(None, lib.ProgressFunction(tell))
        self._call(self._lib.sluice_score_run if score else self._lib.sluice_run, os.fsencode(input), os.fsencode(output), c.byref(events),
                   may=(OK, SOME_FAILED))
        return Job(output, self._json(self._lib.sluice_summary_json))

    def plan(self, *, input: str | None = None, num_prompts: int = 64,  # pylint: disable=redefined-builtin
             prompt_len: int = 0, gen_len: int = 32) -> dict[str, Any]:
        """What the rows of a file, or made-up rows, would take: what `sluice plan --json` says. Nothing is run."""
        work = lib.Work(os.fsencode(input) if input else None, num_prompts, prompt_len, gen_len)
        return self._json(self._lib.sluice_plan_json, c.byref(work))

    def _json(self, function: Callable[..., int], *arguments: object) -> dict[str, Any]:
        text = c.c_void_p()
        self._call(function, *arguments, c.byref(text))
        return json.loads(lib.take(text))


def run(model: str | os.PathLike[str], input: str, output: str, *,  # pylint: disable=redefined-builtin
        progress: Callable[[dict[str, Any]], None] | None = None, **flags: object) -> Job:
    """`sluice run` in this process: job = sluice.run("model.gguf", "in.jsonl", "out.jsonl", mem_ram="24G"); job.summary. See Model.run."""
    with Model(model, **flags) as opened:
        return opened.run(input, output, progress=progress)
