"""libsluice.so through ctypes, as engine/api/sluice.h declares the library."""
from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from typing import Any

from ._program import Error, words

P = c.POINTER


class Option(c.Structure):
    _fields_ = [("name", c.c_char_p), ("value", c.c_char_p)]


class Request(c.Structure):
    _fields_ = [("json", c.c_char_p)]


class Row(c.Structure):
    """struct sluice_result."""
    _fields_ = [("index", c.c_int64), ("error_code", c.c_char_p), ("error", c.c_char_p), ("text", P(c.c_char)), ("n_text", c.c_int64),
                ("tokens", P(c.c_int32)), ("n_tokens", c.c_int), ("n_prompt", c.c_int), ("finish_reason", c.c_char_p),
                ("logprobs", P(c.c_float)), ("n_logprobs", c.c_int), ("logprob", c.c_double), ("is_greedy", c.c_int)]


class Progress(c.Structure):
    """struct sluice_progress."""
    _fields_ = [("rows", c.c_int64), ("rows_done", c.c_int64), ("rows_failed", c.c_int64), ("output_tokens", c.c_int64),
                ("elapsed_s", c.c_double), ("left_s", c.c_double)]


class Work(c.Structure):
    _fields_ = [("input", c.c_char_p), ("n_rows", c.c_int64), ("prompt_len", c.c_int64), ("gen_len", c.c_int64)]


class Info(c.Structure):
    """struct sluice_model."""
    _fields_ = [("context", c.c_int), ("bos", c.c_int32), ("eos", c.c_int32)]


PROGRESS = [field[0] for field in Progress._fields_]
RowFunction = c.CFUNCTYPE(c.c_int, c.c_void_p, P(Row))
ProgressFunction = c.CFUNCTYPE(None, c.c_void_p, P(Progress))


class Events(c.Structure):
    _fields_ = [("ctx", c.c_void_p), ("progress", ProgressFunction)]


HANDLE, OUT, N_OUT = c.c_void_p, P(c.c_void_p), P(c.c_int64)
FUNCTIONS = {
    "sluice_open": (c.c_int, P(HANDLE), c.c_char_p, P(Option), c.c_int), "sluice_close": (None, HANDLE),
    "sluice_code": (c.c_int, HANDLE), "sluice_error": (c.c_char_p, HANDLE), "sluice_stop": (None, HANDLE),
    "sluice_model": (c.c_int, HANDLE, P(Info)), "sluice_encode": (c.c_int, HANDLE, c.c_char_p, c.c_int64, c.c_int, OUT, N_OUT),
    "sluice_decode": (c.c_int, HANDLE, P(c.c_int32), c.c_int64, c.c_int, OUT, N_OUT),
    "sluice_chat_prompt": (c.c_int, HANDLE, c.c_char_p, OUT, N_OUT),
    "sluice_batch": (c.c_int, HANDLE, P(Request), c.c_int, RowFunction, c.c_void_p),
    "sluice_score_batch": (c.c_int, HANDLE, P(Request), c.c_int, RowFunction, c.c_void_p),
    "sluice_run": (c.c_int, HANDLE, c.c_char_p, c.c_char_p, P(Events)), "sluice_score_run": (c.c_int, HANDLE, c.c_char_p, c.c_char_p, P(Events)),
    "sluice_summary_json": (c.c_int, HANDLE, OUT), "sluice_plan_json": (c.c_int, HANDLE, P(Work), OUT), "sluice_version": (c.c_char_p,)}


def _load() -> c.CDLL:
    """The library: of SLUICE_LIBRARY, of the wheel, of the source tree, or where the system's loader finds libraries."""
    here = Path(__file__).resolve()
    places = [os.environ.get("SLUICE_LIBRARY"), here.parent / "libsluice.so.0", here.parents[3] / "build" / "libsluice.so.0"]
    found = next((str(path) for path in places if path and os.path.isfile(path)), "libsluice.so.0")
    try:
        library = c.CDLL(found)
    except OSError as error:
        raise Error(2, f"{error} (build libsluice.so with make, or name the file in SLUICE_LIBRARY)") from None
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_loaded: list[c.CDLL] = []


def library() -> c.CDLL:
    """Loaded at the first use: `sluice.whatif` needs the program only."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def options(flags: dict[str, object]) -> Any:
    """An array of struct sluice_option."""
    pairs: list[Option] = []
    for key, value in flags.items():
        flag, *rest = words({key: value}) or [""]
        if flag:
            pairs.append(Option(flag[2:].encode(), " ".join(rest).encode() if rest else None))
    return (Option * len(pairs))(*pairs)


def take(pointer: c.c_void_p, n_bytes: int = -1) -> bytes:
    """What the library made for the caller, freed. n_bytes -1: up to a NUL."""
    text = c.string_at(pointer, n_bytes)
    free = c.CDLL(None).free
    free.argtypes, free.restype = [c.c_void_p], None
    free(pointer)
    return text
