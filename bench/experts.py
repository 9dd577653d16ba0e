#!/usr/bin/env python3
"""Mixtures of experts that do not fit: experts.py [flags]; 47 and 31 billion parameters in 4 bits, under 4 GiB of memory.

Dummy weights of the shapes of Mixtral 8x7B and Qwen3 30B-A3B (configs/*.cfg), with batches that keep all experts busy, so that every
pass reads all weights but the few that stay. A row of bench/results/experts-CPU.csv is a run, with the columns of predict.py;
figures are tokens per second, and the rate at which weights came while the disk was read, beside the one that `sluice probe`
measured in the same session (nvme_read). Packs of 28 and 17 GB under build/planned are made first, in minutes, one at a time, and
deleted again. Stops and goes on as predict.py does. --quick: seconds, a small llama, no figures.
"""
import os
import statistics
import sys

import planned
from planned import Job

TURNS = 3


def listed():
    yield Job("mixtral 8x7b, 4G", "mixtral-8x7b", "q4", 96, 4, 10, "--mem-ram 4G", vocab=32000)
    yield Job("qwen3 30b-a3b, 4G", "qwen3-30b-a3b", "q4", 192, 4, 20, "--mem-ram 4G")


def quick():
    yield Job("mixtral", "mixtral-8x7b", "q4", 32, 4, 8, "--mem-ram 64M")


def told(rows, roof):
    lines = []
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case and r["status"] == "ok"]
        if not mine:
            continue

        def median(of):
            return statistics.median(of(r) for r in mine)
        rate = median(lambda r: float(r["read_gb"]) / float(r["read_s"]))
        whole = median(lambda r: float(r["read_gb"]) / float(r["elapsed_s"]))
        lines.append(f"{case}: {median(lambda r: float(r['output_tokens']) / float(r['elapsed_s'])):.1f} output tok/s; weights came at "
                     f"{rate:.2f} GB/s, {rate / roof:.0%} of the {roof:.2f} probed, {whole / roof:.0%} over the whole job; predicted / "
                     f"taken {median(lambda r: float(r['ratio'])):.2f}; peak {median(lambda r: float(r['peak_ram_mib'])):.0f} MiB; bound: "
                     f"{mine[0]['bound']}")
    return lines


def main():
    a, cases = planned.asked(planned.arguments("experts", __doc__, TURNS), "experts", listed, quick)

    def measured(bench):
        bench.open(job=f"{len(cases)} jobs (experts.py --list)")
        for job in cases:
            for turn in range(1, a.turns + 1):
                if bench.time_is_up():
                    return True
                if not bench.is_done(case=job.name, turn=turn):
                    code, said = bench.dry(job)  # makes the pack, and measures what a first use measures
                    if code:
                        sys.exit(f"experts.py: {job.name}: exit {code}: {said.strip().splitlines()[-1:]}")
                    bench.measure(job, turn, job.name, " ".join(job.flags))
            made = None if a.quick else bench.packs.pop((job.model, job.form), None)
            if made:
                os.unlink(made)
        return False

    def report(rows):
        with open(a.output, encoding="utf-8") as f:
            head = dict(line[2:].rstrip("\n").split(": ", 1) for line in f if line.startswith("# "))
        return told(rows, float(head["disk_read_gb_s"]))
    return planned.run(a, measured, report)


if __name__ == "__main__":
    sys.exit(main())
