#!/usr/bin/env python3
"""One model cut over ranks: pipeline_test.py [SLUICE] [--level LEVEL] [--seed N] [--only PART]

OUT of `mpirun -np R sluice run --pipeline` has the bytes of a run by one process, whatever R is and wherever a rank
keeps its weights, KV and hidden states; and after a rank died, with any other R. Wants sluice-mpi.so (make mpi).
"""
import os
import random
import re
import shutil
import signal
import sys
import time

from trial import (ALL_ON_DISK, H2O, HERE, MODEL, ON_DISK, OSS, TWO_KINDS, Journal, Tally, difference, job_rows, pick, read,
                   run_parts, with_faults)

sys.path.insert(0, os.path.join(HERE, "goldens"))
import families

SIM = os.path.join(os.path.dirname(HERE), os.environ.get("BUILD", "build"), "tests/sim_device.so")
# Ranks are more than cores here, and they may be root's; none is bound, so that the ranks share the threads.
ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none",  # Open MPI 5
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_btl_base_warn_component_unused": "0"}
KV_ON_DISK = ["--percent", "0", "100", "0", "0", "0", "100"]


class Pipeline:
    """A job, its bytes when one process runs it, and pipelines of it."""

    def __init__(self, tally, place, rows, *flags, kind="run"):
        self.tally, self.place, self.flags, self.kind, self.n_rows = tally, place, flags, kind, len(rows)
        self.alone = place.fresh("alone")
        self.source = place.rows(os.path.basename(self.alone) + ".in", rows)
        done = place.sluice(kind, "-m", place.model, "-i", self.source, "-o", self.alone, "--progress", "none", *flags)
        self.want = read(self.alone)
        tally.check(self.want and done.code in (0, 3), f"alone: exit {done.code}: {done.last()}")
        self.code = done.code

    def start(self, ranks, out, *more, model=None, **env):
        args = [self.kind, "--pipeline", "-m", model or self.place.model, "-i", self.source, "-o", out, "--progress", "none",
                "--mem-ram", "96M", *self.flags, *more]
        return self.place.start(args, ["mpirun", "-np", str(ranks)], **{**ENV, **env})

    def run(self, what, ranks, *more, out=None, **env):
        out = out or self.place.fresh()
        done = self.start(ranks, out, *more, **env).end(120)
        self.tally.check(done.code == self.code, f"{what}, {ranks} ranks: exit {done.code}: {done.err[-900:]}")
        got = read(out)
        self.tally.check(got == self.want, f"{what}, {ranks} ranks: {difference(self.want, got)}")
        left = [f for f in os.listdir(self.place.folder) if f.startswith(os.path.basename(out)) and ".jsonl." in f]
        self.tally.check(left == [os.path.basename(out) + ".job.json"], f"{what}: beside OUT: {left}")
        return done


def pids(process):
    """Of the ranks, in order."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if read(f"/proc/{name}/stat").rpartition(b")")[2].split()[1:2] != [str(process.p.pid).encode()]:
            continue
        rank = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", read(f"/proc/{name}/environ"))
        if rank:
            found[int(rank.group(1))] = int(name)
    return [found[k] for k in sorted(found)]


def ranks(tally, place, a):
    """Cuts of one model: each number of ranks, batches of any size, and what ranks say of themselves."""
    job = Pipeline(tally, place, job_rows(24, 1))
    for n in pick((3,), (2, 3, 4, 6)):
        done = job.run("ranks", n)
        told = re.findall(r"rank (\d+), layers (\d+) to (\d+): .*? got ([\d.]+) MiB, (\d+) bytes", done.err)
        layers = [x for t in told for x in range(int(t[1]), int(t[2]) + 1)]
        tally.check(len(told) == n and layers == list(range(6)), f"{n} ranks have layers {layers}")
        each = 192 * 4  # a hidden state
        tally.check(all(each <= int(t[4]) < 2 * each for t in told[1:]), f"{n} ranks: bytes of a token: {told}")
    out = place.fresh()
    for _ in range(2):  # the second finds the job complete
        job.run("twice", 2, out=out)
    for flags in (["--batches", "6", "--batch", "2"], ["--batch", "1"], ["--prefill-tokens", "40"], ["-t", "2"])[:pick(1, 4)]:
        job.run(" ".join(flags), 2, *flags)


def placements(tally, place, a):
    """Each rank streams weights, and keeps KV and hidden states on its disk."""
    job = Pipeline(tally, place, job_rows(24, 2))
    for flags in ([*ALL_ON_DISK, "--batches", "6"], ON_DISK, ["--weights-resident", "1"])[:pick(1, 3)]:
        job.run(" ".join(flags), 2, *flags)
    job = Pipeline(tally, place, job_rows(20, 3), *H2O)
    job.run("h2o on disk", 3, *ALL_ON_DISK)


def policies(tally, place, a):
    """Eviction is each rank's own; formats, scores, experts and windows of layers go with the layers."""
    for flags in (["--kv-policy", "scissorhands", "--kv-budget", "0.4", "--kv-scope", "layer", "--kv-format", "mixed"],
                  ["--kv-format", "q4"], ["--compute", "f32", "--kv-format", "f32"], ["--kv-policy", "window", "--kv-budget", "40"],
                  ["--kv-policy", "h2o", "--kv-budget", "0.4", "--kv-budget-layers", "pyramid"])[:pick(1, 5)]:
        Pipeline(tally, place, job_rows(16, 4), *flags).run(" ".join(flags), 3)
    for name, text in (("oss", OSS), ("two kinds", TWO_KINDS)):
        place.model = place.write(name.replace(" ", "-") + ".cfg", text.encode())
        rows = job_rows(12, 5)
        rows[0]["prompt_token_ids"] = list(range(3, 203))  # longer than the windows of every other layer
        Pipeline(tally, place, rows).run(name, 3, *pick((), ("--weights-resident", "0")))
    place.model = os.path.join(place.folder, "apertus")  # an activation of each layer's own
    families.write_hf(place.model, "apertus-gqa", families.stored()["apertus-gqa"]["tensors"], "f32")
    Pipeline(tally, place, job_rows(8, 9, families.VOCAB)).run("apertus", 3)
    place.model = place.write("tiny.cfg", MODEL.encode())
    scores = [{"context_ids": row["prompt_token_ids"], "continuation_ids": [5, 6, 7 + i]} for i, row in enumerate(job_rows(12, 6))]
    Pipeline(tally, place, scores, kind="score").run("scores", 2)
    rows = job_rows(12, 7)
    rows[3] = {"custom_id": "bad", "prompt": 7}
    rows[9]["max_tokens"] = 0
    Pipeline(tally, place, rows).run("bad rows", 2)


def device(tally, place, a):
    """The simulated accelerator: queued steps, copies, attention on the CPU beside it."""
    job = Pipeline(tally, place, job_rows(16, 8), "--device", SIM + ":1,20")
    for flags in ([], ["--percent", "0", "50", "0", "100", "100", "0"], ["--attn", "cpu"])[:pick(2, 3)]:
        twin = job if "--attn" not in flags else Pipeline(tally, place, job_rows(16, 8), "--device", SIM + ":1,20", *flags)
        twin.run("device " + " ".join(flags), 2, *([] if "--attn" in flags else flags), "--mem-device", "32M")
    job.run("device", 3)


def lost(tally, place, a):
    """A rank dies at a random moment: all end, and the same command resumes, with any number of ranks or none."""
    rows = job_rows(32, 9, tokens=(80, 160))
    job = Pipeline(tally, place, rows)
    for n in range(pick(2, 16, 60)):
        r, out = random.Random(1000 * a.seed + n), place.fresh()
        p = job.start(r.choice((2, 3)), out)
        wanted = r.randrange(1, 20)
        p.wait_for(lambda: Journal(out).rows >= wanted, 30)
        victims = pids(p)
        start = time.monotonic()
        if p.running() and victims:
            os.kill(r.choice(victims), signal.SIGKILL)
        done = p.end(60)
        tally.check(done.code != 0 or read(out) == job.want, f"lost, {n}: exit {done.code}")
        tally.check(time.monotonic() - start < 20, f"lost, {n}: it took {time.monotonic() - start:.1f} s to end")
        again = job.run(f"lost, {n}", r.choice((2, 4)), out=out) if n % 3 else None
        if not again:
            place.sluice("run", "-m", place.model, "-i", job.source, "-o", out, "--progress", "none")
            tally.check(read(out) == job.want, f"lost, {n}, then alone: {difference(job.want, read(out))}")
    job = Pipeline(tally, place, job_rows(32, 9, tokens=(200, 300)))
    for number, code in ((signal.SIGTERM, 1), (signal.SIGUSR1, 75)):  # mpirun tells the ranks; its own code for SIGTERM is 1
        out = place.fresh()
        p = job.start(2, out)
        p.wait_for(lambda: Journal(out).live_tokens > 200, 30)
        p.signal(number)
        done = p.end(60)
        said = "interrupted; the same command resumes" in done.err or code == 1 and "Errorcode: 75" in done.err  # Open MPI 5 ends first
        tally.check(done.code == code and said,
                    f"{number}: exit {done.code}: {done.err[-400:]}")
    done = job.start(2, out, "--time-limit", "0.001s").end(60)
    tally.check(done.code == 75 and "--time-limit reached" in done.err, f"--time-limit: exit {done.code}: {done.err[-400:]}")
    done = job.run("after stops", 3, out=out)
    tally.check("resume: " in done.err, f"nothing was resumed: {done.err[-300:]}")


def faults(tally, place, a):
    """A page of KV that the disk returns wrong, on one rank: every rank computes the row again."""
    library = with_faults(place.binary) + "-mpi.so"
    if not os.path.exists(library):
        os.symlink(place.binary + "-mpi.so", library)
    job = Pipeline(tally, place, job_rows(16, 10, tokens=(20, 40)))
    seen = 0
    for seed in range(pick(1, 8)):
        done = job.run(f"lies of the disk, {seed}", 2, *KV_ON_DISK, SLUICE_FAULT=f"seed={seed},write.torn=1/20")
        seen += "will be computed again" in done.err
    tally.check(seen > 0, "no row was computed again")


def refusals(tally, place, a):
    """What cannot be a pipeline, in one line, with the exit code of its kind."""
    job = Pipeline(tally, place, job_rows(4, 11))
    done = place.sluice("run", "--pipeline", "-m", place.model, "-i", job.source, "-o", place.fresh())
    tally.check(done.code == 2 and "mpirun" in done.last(), f"no launcher: exit {done.code}: {done.last()}")
    for what, code, says, n, flags in (
            ("one rank", 2, "1 ranks; it takes 2 to 64", 1, []),
            ("more ranks than layers", 2, "7 ranks, and the model has 6 layers", 7, []),
            ("batches", 2, "not a multiple of 3", 2, ["--batches", "4"]),
            ("--work-dir", 2, "does not go with --work-dir", 2, ["--work-dir", place.at("shared")]),
            ("too little memory", 4, "plan: ", 2, ["--mem-ram", "2M"])):
        out = place.fresh()
        done = job.start(n, out, *flags).end(60)
        tally.check(done.code == code and says in done.err, f"{what}: exit {done.code}: {done.err[-500:]}")
        tally.check(not os.path.exists(out), f"{what}: made {out}")
    script = place.at("other.sh")  # rank 1 has other flags
    with open(script, "w", encoding="utf-8") as f:
        f.write('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" --kv-format q8\nexec "$@"\n')
    os.chmod(script, 0o755)
    args = ["run", "--pipeline", "-m", place.model, "-i", job.source, "-o", place.fresh()]
    done = place.start(args, ["mpirun", "-np", "2", script], **ENV).end(60)
    tally.check(done.code == 8 and "kv_format=q8" in done.err, f"other flags: exit {done.code}: {done.err[-500:]}")


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        tally = Tally()
        tally.skip("no mpirun here")
        tally.finish()
    sys.exit(run_parts(__doc__, [ranks, placements, policies, device, lost, faults, refusals]))
