"""The benchmarks of the planner, on a tiny model: jobs, runs that go on in their CSV, causes, grids, policies by hand, roofs."""
import json
import os
import shlex
import sys

import trial

TREE = os.path.dirname(trial.HERE)
sys.path.insert(0, os.path.join(TREE, "bench"))
import conditions  # noqa: E402
import choice  # noqa: E402
import hand  # noqa: E402
import jobs  # noqa: E402
import paper  # noqa: E402
import planned  # noqa: E402
import predict  # noqa: E402
import tables  # noqa: E402
from planned import Job  # noqa: E402

jobs.VOCAB = trial.VOCAB  # of the model that runs here
HEAD = {"table": "predict", "command": "predict.py", "commit": "abc", "binary_sha256": "one", "date": "2026-01-01T00:00Z", "turns": "2"}


class Bench(planned.Bench):
    """Over the tests' own tiny model, on whatever machine."""

    def __init__(self, place, table="predict"):
        class Flags:
            quick, seconds, threads, timeout, turns, busy_max, sluice = True, 0, 2, 300, 2, 1.0, place.binary
        os.environ["SLUICE_CACHE_DIR"] = place.env["SLUICE_CACHE_DIR"]
        super().__init__(Flags, place.folder)
        self.place = place
        self.table = conditions.Kept(place.at(f"{table}-x.csv"), {**HEAD, "table": table, "cpu": "A CPU"}, planned.COLUMNS)

    def pack(self, job):
        return self.place.model


def small(name, rows=24, prompt=(4, 12), new=8, flags="--mem-ram 48M", **more):
    return Job(name, "tiny", "auto", rows, prompt, new, flags, **more)


def own_rows(tally, place, a):
    """The same rows every time, within their bounds."""
    job = small("ragged", prompt=(4, 12), new=(2, 5), shared=6)
    rows = planned.rows_of(job)
    tally.check(rows == planned.rows_of(job), "rows are drawn by a seed")
    lengths = {len(r["prompt_token_ids"]) - 6 for r in rows}
    tally.check(lengths <= set(range(4, 13)) and len(lengths) > 3, f"lengths: {sorted(lengths)}")
    tally.check({r["max_tokens"] for r in rows} == {2, 3, 4, 5}, "tokens per row are drawn, too")
    tally.check(len({tuple(r["prompt_token_ids"][:6]) for r in rows}) == 1, "a shared prefix")
    chats = planned.rows_of(Job("chat", "smollm2", "auto", 70, "chat", 9, ""))
    tally.check(len(chats) == 70 and chats[0]["messages"] == chats[64]["messages"] and chats[3]["max_tokens"] == 9, "chats come again")
    texts = planned.rows_of(Job("text", "smollm2", "auto", 5, "text", 9, "", chars=300))
    tally.check(all(len(r["prompt"]) == 300 for r in texts) and len({r["prompt"] for r in texts}) == 5, "pieces of a text")
    for script in (predict, choice, hand):
        names = [c.name for c in script.listed()]
        tally.check(len(names) == len(set(names)) >= {predict: 40, choice: 8, hand: 8}[script], f"{script.__name__}: {names}")


def runs(tally, place, a):
    """Figures of a run, of a scored and of a resumed one; what has a row is not run again, but by another binary."""
    bench = Bench(place)
    wanted = [small("a run", prompt=(40, 60), flags="--mem-ram 48M --percent 0 0 0 0 0 100"), small("scored", new=6, kind="score"),
              small("resumed", rows=80, new=40, kind="resume", flags="--mem-ram 48M --batch 2 --batches 1")]
    for job in wanted:
        row = bench.measure(job, 1, job.name, "flags")
        if not tally.check(row and row["status"] == "ok", f"{job.name}: {row}"):
            continue
        tally.check(row["predicted_s"] > 0 and row["elapsed_s"] > 0 and row["passes"] > 0, f"{job.name}: {row}")
        tally.check(abs(row["ratio"] * row["elapsed_s"] / row["predicted_s"] - 1) < 1e-6, f"{job.name}: ratio {row['ratio']}")
        tally.check(row["predicted_cpu_s"] > 0 and row["cpu_s"] > 0, f"{job.name}: lane cpu: {row}")
        tally.check((abs(row["ratio"] - 1) <= planned.OFF) == (row["cause"] == ""), f"{job.name}: {row['ratio']}, {row['cause']!r}")
    first = bench.table.rows[0]
    tally.check(float(first["read_gb"]) > 0 and float(first["write_gb"]) > 0, f"bytes: {first}")
    tally.check(abs(float(first["predicted_read_gb"]) / float(first["read_gb"]) - 1) < 0.01, f"bytes are those predicted: {first}")
    all_rows, _ = planned.rows_of(wanted[2]), bench.table.close()
    done = json.loads(place.sluice("status", os.path.join(bench.half(wanted[2]), "out.jsonl"), "--json").out)
    tally.check(0 < done["output_tokens"] + done["live_tokens"] < sum(r["max_tokens"] for r in all_rows), f"half way: {done}")
    with open(place.at("predict-x.csv"), "a", encoding="utf-8") as f:
        f.write("run,a run,2,ok,ti")  # a power cut
    bench = Bench(place)
    tally.check(len(bench.table.rows) == 3, f"a line that was cut off is dropped: {len(bench.table.rows)}")
    tally.check(bench.measure(wanted[0], 1, "a run", "flags") is None, "what has a row is not run again")
    row = bench.measure(small("no room", flags="--mem-ram 1M"), 2, "no room", "flags")
    tally.check(row["status"] == "does not fit", f"exit 4: {row}")
    bench.table.close()
    tally.check(len(tables.Sheet(place.at("predict-x.csv")).rows) == 4, "rows of both are there, and no more")
    try:
        conditions.Kept(place.at("predict-x.csv"), {**HEAD, "binary_sha256": "two"}, planned.COLUMNS)
        tally.check(False, "rows of two binaries in one CSV")
    except SystemExit as e:
        tally.check("--again" in str(e), f"why: {e}")
    both = conditions.Kept(place.at("predict-x.csv"), {**HEAD, "binary_sha256": "two"}, planned.COLUMNS, any_binary=True)
    both.close()
    tally.check(tables.Sheet(both.path).head["binary_sha256"] == "one two" and len(both.rows) == 4, "--any-binary says so")
    new = conditions.Kept(place.at("predict-x.csv"), HEAD, planned.COLUMNS, again=True)
    new.close()
    tally.check(not new.rows, "--again begins anew")


GOOD = {"predicted_s": 10.0, "elapsed_s": 10.0, "predicted_passes": 20, "passes": 20, "predicted_read_gb": 5.0, "read_gb": 5.0,
        "predicted_read_s": 4.0, "read_s": 4.0, "predicted_write_gb": 0.0, "write_gb": 0.0, "predicted_write_s": 0.0, "write_s": 0.0,
        "predicted_cpu_gb": 0.0, "cpu_gb": 0.0, "predicted_cpu_s": 9.0, "cpu_s": 9.0, "stall_s": 1.0, "predicted_bound": "cpu",
        "bound": "cpu", "case": "a case", "turn": "1", "status": "ok", "kind": "run", "flags": "--batch 4"}


def made(**more):
    row = {**GOOD, **more}
    row["ratio"] = row["predicted_s"] / row["elapsed_s"]
    return {**row, "cause": planned.cause(row)}


def causes(tally, place, a):
    """Passes before bytes before rates; a lane that the run did not wait for is no cause."""
    for want, more in (("", {"elapsed_s": 11.0}), ("passes: 20 predicted, 25", {"elapsed_s": 13.0, "passes": 25, "read_gb": 6.0}),
                       ("bytes of nvme-read: 5.00 GB predicted, 6.00", {"elapsed_s": 13.0, "read_gb": 6.0}),
                       ("rate of cpu: 9.00 s predicted, 12.00", {"elapsed_s": 13.0, "cpu_s": 12.0, "read_s": 7.0}),
                       ("rate of nvme-read: 4.00 s predicted, 12.50", {"elapsed_s": 13.0, "read_s": 12.5, "bound": "nvme-read"}),
                       ("rate of cpu: 9.00 s predicted, 5.00", {"elapsed_s": 6.0, "cpu_s": 5.0}),
                       ("waits", {"elapsed_s": 14.0, "stall_s": 5.0}),
                       ("rate of cpu", {"elapsed_s": 13.0, "cpu_s": 12.0, "predicted_write_gb": 1.0, "write_gb": 2.0})):
        tally.check(made(**more)["cause"].startswith(want) and bool(want) == bool(made(**more)["cause"]),
                    f"{more}: {made(**more)['cause']!r}, want {want!r}")
    rows = [made(case=f"job {i}", elapsed_s=10.0 / (1 + off)) for i, off in enumerate((0.0, 0.02, -0.04, 0.06, 0.5))]
    rows += [made(case="job 4", turn="2", elapsed_s=10.0 / 1.3), made(case="job 4", turn="3", elapsed_s=10.0 / 1.4),
             {"case": "dead", "turn": "4", "status": "timeout"}]
    lines = predict.told(rows)
    tally.check("5 jobs" in lines[-1] and "median 4.0 %, 90th percentile 40.0 %, worst 40.0 % (job 4)" in lines[-1], f"{lines[-1]}")
    tally.check("of each turn 4.0 and 50.0 %, 30.0 and 30.0 %, 40.0 and 40.0 %" in lines[-1], f"{lines[-1]}")
    tally.check(any("dead" in line for line in lines), f"failed runs are told: {lines}")
    tally.check([predict.percentile(range(1, 11), s) for s in (0.9, 0.5, 1.0)] == [9, 5, 10], "percentiles")


def grids(tally, place, a):
    """Plans of a grid fit, differ and freeze what they say; one that stands in the CSV is not drawn again."""
    bench, job = Bench(place, "choice"), small("a case", rows=16)
    found = choice.grid(bench, job, 6)
    tally.check(len(found) == 6 and len({choice.placement(f) for f in found}) == 6, f"plans: {found}")
    tally.check(choice.placement(bench.frozen(job)) not in {choice.placement(f) for f in found}, "the automatic plan is not among them")
    for flags in found:
        tally.check(choice.placement(bench.frozen(job, *flags)) == choice.placement(flags), f"frozen: {flags}")
    tried, choice.candidates = choice.candidates, lambda auto, seed: [[], ["--batch", "4"], ["--batch", "4"]]
    other = choice.grid(bench, small("another case", rows=16), 6)
    choice.candidates = tried
    tally.check([choice.value(f, "--batch") for f in other] == ["4"], f"neither the automatic plan nor one twice: {other}")
    bench.table.close()
    bench = Bench(place, "choice")
    bench.frozen = None
    tally.check(choice.grid(bench, job, 6) == found, "the grid of the CSV")
    for turn, (chosen, other) in enumerate(((2.0, 1.5), (3.0, 1.0), (2.2, 2.0))):
        for flags, seconds in (("auto", chosen), (shlex.join(found[0]), other), (shlex.join(found[1]), 9.0)):
            bench.table.add({**made(elapsed_s=seconds), "turn": turn, "flags": flags})
    lines = choice.told(bench.table.rows)
    tally.check("median 1.467" in lines[-1] and "best of 3 plans 1.50 s" in lines[0], f"chosen / best of medians: {lines}")
    bench.table.close()
    text = tables.choice(tables.sheets("choice", place.folder))
    tally.check("| a case | 2.20 | 1.50 | 9.00 | 3 | 1.47 |" in text, f"table: {text}")
    text = tables.predict(tables.sheets("choice", place.folder))
    tally.check("| a case |" in text and "predicted / taken" in text, f"table: {text}")


def by_hand(tally, place, a):
    """A published policy is taken as it is where it fits, else shares go before rows; the table says by how much it loses."""
    class Told:
        def __init__(self, fits):
            self.fits = fits

        def frozen(self, job, *flags):
            batch, shares = int(flags[1]), [int(s) for s in flags[5::2]]
            return self.fits(batch, shares)
    case = hand.Case("30B", "30B", planned.SMALL, "bf16", 8, 8, 8, "20 80 0 100 0 100", 48, 3)
    tally.check(hand.by_hand(Told(lambda b, s: True), case) == shlex.split("--batch 48 --batches 3 --percent 20 0 0 0 0 0"), "as published")
    tally.check(hand.by_hand(Told(lambda b, s: s[0] <= 10), case)[5] == "10", "less of the weights in RAM")
    tally.check(hand.by_hand(Told(lambda b, s: b < 20), case)[:2] == ["--batch", "12"], "then fewer rows")
    budget = int(case.job.flags[1].rstrip("M"))
    tally.check(budget == 68, f"16 GB to 60 GB: {budget} MiB")
    rows = [made(elapsed_s=3.0), made(elapsed_s=5.0), made(elapsed_s=2.0, flags=hand.AUTO)]
    tally.check("2.00 x" in hand.told(rows)[-1] and hand.told(rows)[0].startswith("  2.00 x"), f"{hand.told(rows)}")


def papers(tally, place, a):
    """The roof is what its text says, on numbers that can be done in the head; a plan under it explains itself."""
    m = {"device_flops": 1e12, "device_read": 1e12, "h2d": 1e9, "ram_read": 1e10, "nvme_read": 1e9, "device_memory": 0.0, "ram": 1e15}
    c = {"layers": "1", "heads": "1", "dim": "64"}
    rate, rows, bound = paper.roof(m, c, (2e9, 0), 32, "lossless")  # 3 GB over a link of 1 GB/s
    tally.check(bound == "FLOPs" and abs(rate * 4e9 * 544 / 32 / 1e12 - 1) < 0.01 and rows == 45, f"{rate}, {rows}, {bound}")
    rate, rows, bound = paper.roof({**m, "h2d": 1e7}, c, (2e9, 0), 32, "lossless")
    tally.check(bound == "link" and rows == paper.ROWS and abs(rate / (1000 / 300) - 1) < 1e-6, f"{rate}, {rows}, {bound}")
    rate4, _, _ = paper.roof({**m, "h2d": 1e7}, c, (2e9, 0), 32, "q4 weights")
    tally.check(abs(rate4 / rate - 1.5 / 0.5625) < 1e-6, f"4 bits over a link: {rate4}")
    _, _, bound = paper.roof({**m, "ram": 0.0}, c, (2e9, 0), 32, "lossless")
    tally.check(bound in ("NVMe", "FLOPs"), bound)
    kv, wide = {**m, "h2d": 1e15, "device_flops": 1e18}, {**c, "heads": "1000", "dim": "64000"}
    full, h2o = (paper.roof(kv, wide, (2e9, 0), 1024, v)[0] for v in ("lossless", "lossless, H2O"))
    tally.check(h2o > 2 * full, f"H2O reads less KV: {full}, {h2o}")
    row = paper.row_of(("t4", "opt-30b", 32, "lossless", "cpu"),
                       {"plan": {"batch": 10, "batches": 20}, "work": {"output_tokens": 32000},
                        "predicted": {**{key: 1.0 for key in paper.LANES.values()}, "h2d_s": 8.0, "gpu_s": 5.0, "pass_s": 10.0, "passes": 9.0,
                                      "job_s": 3200.0}}, "1 2 3 4 5 6", (20.0, 30, "link"))
    tally.check(row["tok_s"] == 10.0 and row["of_roof"] == 0.5 and abs(row["times_flexgen"] - 10 / 7.32) < 1e-9, f"{row}")
    tally.check(row["why"] == "h2d works 80 % of a pass, gpu 50 %; 200 rows at once, FlexGen 144; the roof is link, from 30 rows on",
                row["why"])
    text = paper.markdown([row, {**row, "attn": "device", "tok_s": 9.0, "plan": "a slower one"}, {**row, "new": 1024, "status": "no room"}])
    tally.check(text.count("\n| ") == 3 and "| 1.37 |" in text and "slower" not in text, f"the better attention, what fits: {text}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (own_rows, runs, causes, grids, by_hand, papers)))
