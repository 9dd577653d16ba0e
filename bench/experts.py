#!/usr/bin/env python3
"""Mixtures of experts that do not fit: experts.py [flags]; 31 to 47 billion parameters in 4 bits, under 4 GiB of memory.

Dummy weights of the shapes of Mixtral 8x7B, Qwen3 30B-A3B and Qwen3.6 35B-A3B (configs/*.cfg), with batches that keep all experts
busy, so that every pass reads all but a few weights. A row of bench/results/experts-CPU.csv is a run, with the columns of
predict.py; figures are tokens per second, and the rate of weight reads while the disk is busy, beside the rate that `sluice probe`
measured in the same session (nvme_read). Packs of 17 to 28 GB under build/planned are made first, one at a time, within minutes,
and deleted afterwards. --llamacpp: then llama.cpp on the same shape in q4_0 (kind = llama.cpp, elapsed_s includes loading), one
batch over one KV cache, in a control group with the same memory; its GGUF is made and deleted likewise. The batch has all rows;
of Qwen3.6, where a row has a state of 63 MiB, as many as gave llama.cpp most tokens a second. It stops after --timeout. Can be
stopped and continued like predict.py. --quick: seconds, a small llama, no figures.
"""
import json
import os
import signal
import statistics
import subprocess
import sys

import conditions
import jobs
import peer
import planned
from planned import Job

TURNS = 3
PEER = "llama.cpp"
PEER_ROWS = {"qwen3.6-35b-a3b": 48}  # of its batch, where not all


def listed():
    yield Job("mixtral 8x7b, 4G", "mixtral-8x7b", "q4", 96, 4, 10, "--mem-ram 4G", vocab=32000)
    yield Job("qwen3 30b-a3b, 4G", "qwen3-30b-a3b", "q4", 192, 4, 20, "--mem-ram 4G")
    yield Job("qwen3.6 35b-a3b, 4G", "qwen3.6-35b-a3b", "q4", 192, 4, 20, "--mem-ram 4G", vocab=248320)


def quick():
    yield Job("mixtral", "mixtral-8x7b", "q4", 32, 4, 8, "--mem-ram 64M")


def told(rows, roof):
    lines = []
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case and r["kind"] == "run" and r["status"] == "ok"]
        if not mine:
            continue
        ours = statistics.median(float(r["output_tokens"]) / float(r["elapsed_s"]) for r in mine)
        for r in rows:
            if r["case"] == case and r["kind"] == PEER:
                rate = float(r["output_tokens"] or 0) / float(r["elapsed_s"])
                lines.append(f"{case}: {PEER}: {r['status']}, {r['output_tokens'] or 'no'} tokens in {float(r['elapsed_s']):.0f} s" +
                             (f": {rate:.2f} tok/s, sluice {ours / rate:.1f} x" if rate else ""))

        def median(of):
            return statistics.median(of(r) for r in mine)
        rate = median(lambda r: float(r["read_gb"]) / float(r["read_s"]))
        whole = median(lambda r: float(r["read_gb"]) / float(r["elapsed_s"]))
        lines.append(f"{case}: {median(lambda r: float(r['output_tokens']) / float(r['elapsed_s'])):.1f} output tok/s; weights came at "
                     f"{rate:.2f} GB/s, {rate / roof:.0%} of the {roof:.2f} probed, {whole / roof:.0%} over the whole job; predicted / "
                     f"taken {median(lambda r: float(r['ratio'])):.2f}; peak {median(lambda r: float(r['peak_ram_mib'])):.0f} MiB; bound: "
                     f"{mine[0]['bound']}")
    return lines


def beside(bench, job):
    """Runs the same rows with llama.cpp under the same limit; unfinished rows at the timeout count as not done."""
    a, limit = bench.a, int(job.flags[job.flags.index("--mem-ram") + 1].rstrip("G")) << 10
    path, rows = peer.model_path(job.model, "q4_0"), PEER_ROWS.get(job.model, job.rows)
    few = Job(f"{job.name}, {rows} rows", job.model, job.form, rows, job.prompt, job.new, "", vocab=job.vocab)
    jobs.drop_cache([path])
    words = [os.path.join(peer.HERE, "run_llamacpp.py"), "--job", bench.file(few), "--model", job.model, "--format", "q4_0", "--batch",
             rows, "--threads", a.threads, "--kv", "unified", "--repack", "keep", "--limit-mib", limit]
    busy = conditions.wait_idle(a.busy_max, a.idle_wait, not a.allow_busy)
    row = {"kind": PEER, "case": job.name, "turn": 1, "model": job.model, "format": "q4_0", "rows": rows, "batch": rows,
           "batches": 1, "flags": " ".join(map(str, words[7:])), "busy": f"{busy:.3f}", "idle": "yes" if busy <= a.busy_max else "no",
           "date": conditions.now(), "elapsed_s": a.timeout, "output_tokens": 0, "status": "timeout"}
    with subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, text=True, start_new_session=True) as done:
        try:
            said, _ = done.communicate(timeout=a.timeout)
            row["status"] = "ok" if done.returncode == 0 else f"exit {done.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGTERM)  # limited.py removes its control group
    if row["status"] == "ok":
        told = json.loads(said)
        row.update(elapsed_s=told["whole_s"], output_tokens=told["new_tokens"], prompt_tokens=told["prompt_tokens"],
                   startup_s=told["load_s"], peak_ram_mib=told["peak_rss_mib"])
    bench.table.add(row)
    os.unlink(path)


def main():
    p = planned.arguments("experts", __doc__, TURNS)
    p.add_argument("--llamacpp", action="store_true", help="measure llama.cpp on the same shapes too, once each")
    a, cases = planned.asked(p, "experts", listed, quick)

    def measured(bench):
        bench.open(job=f"{len(cases)} jobs (experts.py --list)")
        for job in cases:
            for turn in range(1, a.turns + 1):
                if bench.time_is_up():
                    return True
                if not bench.is_done(case=job.name, turn=turn):
                    code, said = bench.dry(job)  # makes the pack and the first-use measurements
                    if code:
                        sys.exit(f"experts.py: {job.name}: exit {code}: {said.strip().splitlines()[-1:]}")
                    bench.measure(job, turn, job.name, " ".join(job.flags))
            made = None if a.quick else bench.packs.pop((job.model, job.form), None)
            if made:
                os.unlink(made)
            if a.llamacpp and not bench.is_done(case=job.name, kind=PEER):
                beside(bench, job)
        return False

    def report(rows):
        with open(a.output, encoding="utf-8") as f:
            head = dict(line[2:].rstrip("\n").split(": ", 1) for line in f if line.startswith("# "))
        return told(rows, float(head["disk_read_gb_s"]))
    return planned.run(a, measured, report)


if __name__ == "__main__":
    sys.exit(main())
