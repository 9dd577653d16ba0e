#!/usr/bin/env python3
"""sluice.ray on a Ray of this machine: ray_test.py [SLUICE] [--level LEVEL] [--only PART]

Ray comes from PyPI into build/ray-venv, at the first run. A worker of a job is killed in the middle; OUT has the bytes of one process.
"""
import os
import signal
import subprocess
import sys
import time

from trial import Place, difference, job_rows, read, run_parts

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(TREE, "build/ray-venv")
WANTED = ("ray==2.60.0", "numpy==2.4.6", "pyarrow", "pandas")
sys.path.insert(0, os.path.join(TREE, "engine/python"))
IN_VENV = "SLUICE_RAY_VENV" in os.environ
if IN_VENV:
    import ray
    import sluice.ray
    from sluice import Error

RAM = {"mem_ram": "96M", "threads": 1, "batch": 2, "batches": 2}


class Cluster(Place):
    """A place with a Ray of two CPUs, whose workers find the library and its cache."""

    def __init__(self, folder, a):
        super().__init__(folder, a.sluice)
        library = os.path.join(TREE, "build/libsluice.so.0")
        env = {**{k: v for k, v in self.env.items() if k.startswith("SLUICE_")}, "SLUICE_LIBRARY": library, "SLUICE_BEAT_S": "0.3",
               "SLUICE_PROGRAM": self.binary, "PYTHONPATH": os.path.join(TREE, "engine/python")}
        os.environ.update(env)
        try:
            self.why = None
            self.begin(env)
        except Exception as error:  # whatever this machine forbids: ports, processes, shared memory
            self.why = f"Ray does not start here: {error}"

    @staticmethod
    def begin(env):
        ray.init(num_cpus=3, logging_level="ERROR", include_dashboard=False, log_to_driver=False, _temp_dir=os.path.join("/tmp", f"ray-{os.getpid()}"),
                 object_store_memory=100 << 20, runtime_env={"env_vars": env})


def alone(tally, place, n, tokens):
    source = place.rows("in.jsonl", job_rows(n, 31, tokens=tokens))
    out = place.fresh("alone")
    tally.check(place.sluice("run", "-m", place.model, "-i", source, "-o", out, "--progress", "none").code == 0, "alone")
    return source, read(out)


def jobs(tally, place, a):
    """Three workers; then a job whose files are URIs."""
    if place.why:
        return tally.skip(place.why)
    source, want = alone(tally, place, 60, (20, 60))
    out = place.fresh()
    job = sluice.ray.run(place.model, source, out, out + ".work", num_workers=3, **RAM)
    tally.check(read(out) == want and job.summary["rows"]["ok"] == 60, f"three workers: {difference(want, read(out))}: {job.summary}")
    out = place.fresh()
    sluice.ray.run(place.model, "file://" + source, "file://" + out, out + ".work", **RAM)
    tally.check(read(out) == want and not os.path.exists(out + ".work.files"), f"URIs: {difference(want, read(out))}")
    try:
        sluice.ray.run(place.model, source, place.fresh(), place.at("none/work"), num_workers=2, **RAM)
        tally.check(False, "a folder that cannot be made is no error")
    except Error as error:
        tally.check(error.code == 2 and "--work-dir" in str(error), f"a folder that cannot be made: {error}")


def killed(tally, place, a):
    """The process of a worker is killed; Ray starts the task again, and the job ends."""
    if place.why:
        return tally.skip(place.why)
    source, want = alone(tally, place, 60, (100, 200))
    out = place.fresh()
    work = out + ".work"

    def kill():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            names = [f for f in os.listdir(work) if f.endswith(".worker")] if os.path.isdir(work) else []
            if len(names) >= 2 and len(os.listdir(work + "/claims")) > 10:
                os.kill(int(names[0].split(".")[1]), signal.SIGKILL)
                return 1
            time.sleep(0.01)
        return 0

    hit = ray.remote(num_cpus=0)(kill).remote()
    sluice.ray.run(place.model, source, out, work, num_workers=2, **RAM)
    tally.check(ray.get(hit) == 1, "no worker was killed")
    tally.check(read(out) == want, f"killed: {difference(want, read(out))}")


def data(tally, place, a):
    """A step of a Ray Data pipeline gives what Model gives."""
    if place.why:
        return tally.skip(place.why)
    prompts = [[3 + i, 4, 5 + i] for i in range(20)]
    rows = ray.data.from_items([{"prompt": p, "n": i} for i, p in enumerate(prompts)])
    fields = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answers = rows.map_batches(sluice.ray.Generator, fn_constructor_kwargs={"model": place.model, "fields": fields, **RAM},
                               batch_size=10, concurrency=1).take_all()
    with sluice.Model(place.model, **RAM) as model:
        want = {r.index: r.finish_reason for r in model.generate(prompts, **fields)}
    got = {int(r["n"]): r["finish_reason"] for r in answers}
    tally.check(got == want and len(got) == 20 and all(r["error"] is None for r in answers), f"Ray Data: {got}, not {want}")


def main():
    if IN_VENV:
        try:
            return run_parts(__doc__, [jobs, killed, data], Cluster)
        finally:
            ray.shutdown()
    python = os.path.join(VENV, "bin/python")
    if not os.path.exists(os.path.join(VENV, "ready")):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *WANTED], capture_output=True, text=True)
        if done.returncode:
            print("SKIP ray could not be downloaded: " + done.stderr.strip().splitlines()[-1][:200])
            print("0 passed, 0 failed, 1 skipped")
            return 0
        with open(os.path.join(VENV, "ready"), "w", encoding="utf-8"):
            pass
    os.environ["SLUICE_RAY_VENV"] = VENV
    os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    sys.exit(main())
