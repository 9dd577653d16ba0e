#!/usr/bin/env python3
"""The byte tests can see: sight_test.py [SLUICE] [--only PART]

The rows and models whose bytes placement_test, crash_test and fault_test compare, run once as they are and
once with the KV a little wrong: another format, another policy, other products, and, in a copy of the source
that is patched and built here, one bit of one page, a page for another, one score lost. Every row of OUT has
to change: where a row does not, these tests would not see it either. Refuses: whether an answer is right.
Standard library, make and a C compiler.
"""
import json
import sys

import placement_test
import trial
from patched import patched
from trial import from_full, job_rows, pick, read

H2O = ["--kv-policy", "h2o", "--kv-budget", "48"]
F32 = ["--compute", "f32", "--kv-format", "f32"]
# name: (flags of the run, flags of the one it is held against)
FLAGS = {
    "KV as q8": (["--kv-format", "q8"], []),
    "KV as q4": (["--kv-format", "q4"], []),
    "KV as mixed": (["--kv-format", "mixed"], []),
    "a window of 32": (["--kv-policy", "window", "--kv-budget", "32"], []),
    "h2o of 48": (H2O, []),
    "products in f32": (F32, []),
    "products in int8": (["--weights", "q8", "--compute", "int8"], ["--weights", "q8"]),
}
# What the patched binary does once per row, in its third layer: (SLUICE_SIGHT, flags of both runs). The bit is the
# second of a bf16's mantissa: what the last ones add is lost where bf16 rounds the inputs of the next product.
HURTS = {
    "one bit of a K page": ("bit5", []),
    "one bit of a K page in q8": ("bit5", ["--kv-format", "q8"]),
    "a page of the layer before": ("page", []),
    "one score lost": ("score", H2O),
}
PATCHED = "engine/line/layer_decode.c"
ANCHOR = "        tile_after(w, l, weights, &t, x);\n    }\n"  # the end of a layer
CALL = """    for (int r = 0; r < batch->n_rows; r++)
        if (batch->rows[r].request)
            sight_hurt(w, &batch->rows[r], r, layer - 1);
"""
BEFORE = "void layer_decode(struct layer_work *w,"
CODE = """#include <stdlib.h>
static void sight_hurt(struct layer_work *w, const struct row *row, int r, int layer)
{
    const char *kind = getenv("SLUICE_SIGHT");
    const struct plan *p = w->plan;
    const struct kv_rows *kv = &w->rows;
    int64_t size = kv->layout.page_bytes;
    uint8_t *page = row->n_pages > 0 ? kv->pages + row->pages[0] * size : NULL;
    if (!kind || layer != 2)
        return;
    if (kind[0] == 'b' && row->n_slots == 0)
        page[0] ^= (uint8_t)(1 << (kind[3] - '0')); // of the first number of slot 0
    for (int64_t i = 0; kind[0] == 'p' && row->n_slots == 0 && i < size; i++) {
        uint8_t *other = page - (int64_t)p->batches * p->pages_batch * size;
        uint8_t was = page[i];
        page[i] = other[i];
        other[i] = was;
    }
    if (kind[0] == 's' && row->n_slots < 48 && row->n_slots_after == 48)
        kv->slot_score[r * kv->slot_stride] = 0;
}

"""
DISTINCT = 0.2  # of a greedy row's tokens; it was 1 of 22 when all dummy weights had one deviation


class Job:
    """Rows and a model of a byte test, and what they give as they are."""

    def __init__(self, place, name, model, rows):
        self.place, self.name, self.model, self.rows = place, name, model, rows
        self.source = place.rows(f"{name}.in.jsonl", rows)

    def run(self, tally, flags, binary=None, **env):
        """Lines of OUT."""
        out = self.place.fresh()
        args = ["run", "-m", self.model, "-i", self.source, "-o", out, "--progress", "none", "-t", "1", *flags]
        done = trial.Process([binary or self.place.binary, *args], {**self.place.env, **env}).end()
        lines = read(out).splitlines()
        tally.check(done.code == 0 and len(lines) == len(self.rows),
                    f"{self.name} {' '.join(flags)}: exit {done.code}: {done.err[-300:]!r}")
        return lines


def jobs_of(place):
    def config(name, words):
        return place.write(name + ".cfg", words.encode())

    return [Job(place, "crash and fault tests", place.model, job_rows(24, 11)),
            Job(place, "placement, llama", config("llama", placement_test.LLAMA), placement_test.id_rows(14, 20)),
            Job(place, "placement, opt", config("opt", placement_test.OPT), placement_test.id_rows(14, 20))]


def text_job(place):
    """Rows that end when they want: some before a budget is full, and these are not asked."""
    return Job(place, "placement, text", place.write("text.gguf", placement_test.text_model()),
               placement_test.text_rows())


def body_of(line):
    x = json.loads(line)
    return x["response"]["body"] if "response" in x else x


def all_change(tally, what, job, was, now, budget=0):
    """budget: rows with fewer tokens never evict; what is evicted last but one shows in the last token."""
    used = [body_of(x)["usage"] for x in was]
    asked = [i for i, u in enumerate(used) if u["total_tokens"] > budget + 2]
    same = [f"{i} ({used[i]['prompt_tokens']} + {used[i]['completion_tokens']} tokens)"
            for i in asked if i >= len(now) or was[i] == now[i]]
    print(f"  {job.name}: {what}: {len(asked) - len(same)} of {len(asked)} rows change", flush=True)
    tally.check(not same and asked, f"{job.name}: {what}: rows that do not change: {', '.join(same)}")
    return len(asked)


def varied(tally, place, a):
    """Every token of every row has its log-probabilities; greedy rows do not repeat a few tokens."""
    for job in jobs_of(place):
        least = 1.0
        for i, line in enumerate(job.run(tally, [])):
            x = json.loads(line)
            ids, logprobs = x["token_ids"], x.get("logprobs") or {}
            n, top = len(logprobs.get("token_logprobs", ())), len(logprobs.get("top_logprobs", ()))
            tally.check(len(ids) == n == top,
                        f"{job.name}: row {i}: {len(ids)} tokens, {n} log-probabilities, {top} best")
            if job.rows[i]["temperature"] == 0:
                least = min(least, len(set(ids)) / len(ids))
                tally.check(len(set(ids)) >= DISTINCT * len(ids),
                            f"{job.name}: row {i}: {len(set(ids))} different tokens of {len(ids)}")
        print(f"  {job.name}: at least {least:.0%} of a greedy row's tokens are different", flush=True)


def flags(tally, place, a):
    """Other formats, policies and products."""
    for job in pick([jobs_of(place)[0]], [*jobs_of(place), text_job(place)]):
        was = {}
        for name, (more, base) in FLAGS.items():
            key = tuple(base)
            was[key] = was.get(key) or job.run(tally, base)
            budget = int(more[more.index("--kv-budget") + 1]) if "--kv-budget" in more else 0
            n = all_change(tally, name, job, was[key], job.run(tally, more), budget)
            least = len(job.rows) // 2 if "text" in job.name else len(job.rows)
            tally.check(n >= least, f"{job.name}: {name}: only {n} of {len(job.rows)} rows are long enough")


@from_full
def hurts(tally, place, a):
    """One bit, one page, one score, once per row."""
    binary = patched(place.at("source"), PATCHED, (ANCHOR, ANCHOR + CALL), (BEFORE, CODE + BEFORE))
    for job in jobs_of(place):
        was = {}
        for name, (kind, more) in HURTS.items():
            key = tuple(more)
            was[key] = was.get(key) or job.run(tally, more)
            all_change(tally, name, job, was[key], job.run(tally, more, binary, SLUICE_SIGHT=kind))
        tally.check(was[()] == job.run(tally, [], binary), f"{job.name}: the patch alone changes rows")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (varied, flags, hurts)))
