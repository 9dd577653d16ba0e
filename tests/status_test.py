#!/usr/bin/env python3
"""`sluice status`: a running, a stopped and a complete job seen from another process; and that bytes of
OUT.partial that go bad while the binary runs never reach OUT.

    status_test.py [SLUICE] [--only PART]...

The figures are held to OUT.journal as trial.py reads it by itself.
"""
import json
import os
import signal
import sys

from trial import Journal, Place, difference, job_rows, read, run_parts

STREAMED = ["--weights-resident", "0", "--batch", "4", "--batches", "1"]


def status(place, out):
    done = place.sluice("status", out, "--json")
    return done.code, json.loads(done.out) if done.code == 0 else done.error_line()


def running_and_stopped(tally, place, _):
    rows = place.rows("in.jsonl", job_rows(40, 5, tokens=(4, 16)) + [{"prompt_token_ids": "x"}])
    command = ["run", "-m", place.model, "-i", rows, *STREAMED]
    whole, out = place.fresh(), place.fresh()
    tally.check(place.sluice(*command, "-o", whole).code == 3, "the whole job")
    code, said = status(place, out)
    tally.check(code == 5 and "no job" in said, f"no job: {code} {said}")
    slow = place.start([*command, "-o", out])
    tally.check(slow.wait_for(lambda: Journal(out).rows >= 2), "the run came to its second row")
    slow.signal(signal.SIGSTOP)
    code, seen = status(place, out)
    tally.check(code == 0 and seen["state"] == "running" and seen["pid"] == slow.p.pid,
                f"running: {code} {seen}")
    text = place.sluice("status", out)
    tally.check(text.code == 0 and f"running, pid {slow.p.pid}" in text.out and not text.err, text.out + text.err)
    slow.signal(signal.SIGKILL)
    slow.end()
    code, seen = status(place, out)
    told, rows_said = Journal(out), seen["rows"]
    tally.check(seen["state"] == "stopped" and seen["pid"] is None, f"stopped: {seen}")
    tally.check(rows_said["ok"] + rows_said["failed"] == told.rows and rows_said["failed"] == 1,
                f"rows: {rows_said}, the journal has {told.rows}")
    tally.check(rows_said["total"] == 41 and rows_said["left"] == 41 - told.rows, f"left: {rows_said}")
    text = place.sluice("status", out).out
    tally.check(f"{rows_said['left']} to do ({told.live_rows} of these partly done)\n" in text
                and f", and {told.live_tokens} of rows that are partly done\n" in text, text)
    tally.check(rows_said["live"] == told.live_rows, f"live: {rows_said}, the journal has {told.live_rows}")
    tally.check(seen["output_tokens"] == told.tokens - told.live_tokens and seen["live_tokens"] == told.live_tokens > 0,
                f"tokens: {seen}, the journal has {told.tokens}, {told.live_tokens} of them of rows under way")
    kinds = [{"code": "invalid_request", "message": "prompt_token_ids must be a list of token ids", "rows": 1, "lines": [41]}]
    tally.check(seen["errors"] == {"invalid_request": 1} and seen["error_kinds"] == kinds, f"stopped: {seen}")
    tally.check(seen["job"] == "run" and seen["elapsed_s"] >= 0 and seen["predicted_elapsed_s"] > 0, f"{seen}")
    before = {s: read(out + s) for s in (".journal", ".partial", ".job.json")}
    status(place, out)
    tally.check(all(read(out + s) == b for s, b in before.items()), "status changed a byte")
    summary = out + ".summary"
    again = place.sluice(*command, "-o", out, "--summary", summary)
    tally.check(again.code == 3 and read(out) == read(whole), difference(read(whole), read(out)))
    failed = json.loads(read(summary))["rows"]
    tally.check(failed["failed"] == 1 and failed["errors"] == {"invalid_request": 1} and failed["error_kinds"] == kinds
                and failed["ignored_fields"] == {}, f"summary: {failed}")
    code, seen = status(place, out)
    tokens = sum(len(json.loads(x).get("token_ids") or ()) for x in read(out).splitlines())
    tally.check(seen["state"] == "complete" and seen["output_tokens"] == tokens and seen["rows"]["left"] == 0
                and seen["error_kinds"] == kinds, f"complete: {seen}, {tokens} tokens")
    text = place.sluice("status", out).out
    tally.check(" 0 to do\n" in text and "partly" not in text, text)
    tally.check(place.sluice("status").code == 2, "status without OUT is a usage error")


def hurt(data, which):
    lines = data.splitlines(keepends=True)
    if which == "zeros":
        middle = len(data) // 3
        return data[:middle] + bytes(64) + data[middle + 64:]
    if which == "digit":
        at = data.index(b'"token_ids":[') + 13  # of the first row that is no error
        return data[:at] + (b"1" if data[at:at + 1] != b"1" else b"2") + data[at + 1:]
    if which == "cut":
        return data[:100]
    return b"".join([lines[1], lines[0], *lines[2:]])


def partial_goes_bad(tally, place, _):
    rows = place.rows("in.jsonl", job_rows(18, 6, tokens=(4, 16)))
    for order, which_ones in (("input", ("zeros", "digit", "cut", "swap")), ("completion", ("digit", "swap"))):
        command = ["run", "-m", place.model, "-i", rows, *STREAMED, "--order", order]
        whole = place.fresh()
        tally.check(place.sluice(*command, "-o", whole).code == 0, "the whole job")
        want = sorted(read(whole).splitlines())
        for which in which_ones:
            out = place.fresh()
            slow = place.start([*command, "-o", out])
            tally.check(slow.wait_for(lambda: Journal(out).rows >= 4), f"{which}: the run came to its fourth row")
            slow.signal(signal.SIGSTOP)
            data = hurt(read(out + ".partial"), which)
            with open(out + ".partial", "r+b") as f:
                f.write(data)
                f.truncate()
            slow.signal(signal.SIGCONT)
            done = slow.end()
            tally.check(done.code == 7 and "runs these rows again" in done.error_line() and not os.path.exists(out),
                        f"{order}, {which}: {done.code} {done.error_line()}")
            done = place.sluice(*command, "-o", out)
            tally.check(done.code == 0 and sorted(read(out).splitlines()) == want,
                        f"{order}, {which}: {done.code} {done.error_line()} {difference(read(whole), read(out))}")


def partial_is_replaced(tally, place, _):
    """Another file takes OUT.partial's name while the binary runs: OUT has the rows of the job all the same."""
    rows = place.rows("in.jsonl", job_rows(18, 6, tokens=(4, 16)))
    for order in ("input", "completion"):
        command = ["run", "-m", place.model, "-i", rows, *STREAMED, "--order", order]
        whole, out = place.fresh(), place.fresh()
        tally.check(place.sluice(*command, "-o", whole).code == 0, "the whole job")
        slow = place.start([*command, "-o", out])
        tally.check(slow.wait_for(lambda: Journal(out).rows >= 4), f"{order}: the run came to its fourth row")
        slow.signal(signal.SIGSTOP)
        os.replace(place.write("other", hurt(read(out + ".partial"), "zeros")), out + ".partial")
        slow.signal(signal.SIGCONT)
        done = slow.end()
        tally.check(done.code == 0 and sorted(read(out).splitlines()) == sorted(read(whole).splitlines()),
                    f"{order}: {done.code} {done.error_line()} {difference(read(whole), read(out))}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [running_and_stopped, partial_goes_bad, partial_is_replaced]))
