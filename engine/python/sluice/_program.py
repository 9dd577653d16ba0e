"""The `sluice` program: where it is, words of its command line, its errors as exceptions."""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


class Error(Exception):
    """What sluice could not do: the exit `code`, the `sentence`, and the `hint` in brackets at the end of the sentence, or ""."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        hint = re.search(r" \(([^()]*(?:\([^()]*\)[^()]*)*)\)$", sentence)
        self.code, self.sentence, self.hint = code, sentence, hint[1] if hint else ""

    def __reduce__(self) -> tuple[type, tuple[int, str]]:  # to other processes
        return Error, (self.code, self.sentence)


def program() -> str:
    """The program: of SLUICE_PROGRAM, of the wheel, at the root of the source tree, or of PATH."""
    here = Path(__file__).resolve()
    for path in (os.environ.get("SLUICE_PROGRAM"), here.parent / "sluice", here.parents[3] / "sluice"):
        if path and os.path.isfile(path):
            return str(path)
    found = shutil.which("sluice")
    if not found:
        raise Error(2, "sluice: no such program (build the program with make, or name it in SLUICE_PROGRAM)")
    return found


def words(flags: dict[str, object]) -> list[str]:
    """Keywords as words of a command line: True is a switch, False and None are left out, a list repeats its flag."""
    out = []
    for key, value in flags.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is None or one is False:
                continue
            out.append("--" + key.replace("_", "-"))
            if one is not True:
                out += shlex.split(str(one)) if key == "percent" else [str(one)]
    return out


def call(command: str, flags: dict[str, object]) -> str:
    """stdout of one command. Error: the command failed."""
    done = subprocess.run([program(), command, *words(flags)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          encoding="utf-8", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"sluice {command}: exit {done.returncode}"]
        raise Error(done.returncode, lines[-1].removeprefix("sluice: error: "))
    return done.stdout


def main() -> None:
    """The command `sluice` of the wheel."""
    os.execv(program(), ["sluice", *sys.argv[1:]])
