"""Jobs on the device with a clock (bench/clock.py): they end, and the figures of their logs are right."""
import argparse
import os
import sys

import trial

TREE = os.path.dirname(trial.HERE)
sys.path.insert(0, os.path.join(TREE, "bench"))
import clock  # noqa: E402

SLUICE = os.path.join(TREE, os.environ.get("BUILD", "build"), "bench/clock_sluice")


def jobs_test(tally, place, a):
    """Weights that stream and weights that stay, under full KV and under a policy: on every card a job ends and has its figures."""
    os.environ.update(place.env)
    flags = argparse.Namespace(sluice=SLUICE, sass=os.path.join(TREE, "bench/results/cuda-sass.csv"), cache=place.at("cache"), timeout=120)
    for card, more in (("h100", "--percent 0 100 100 0 100 0"), ("t4", "--percent 100 0 0 100 100 0"),
                       ("h100", "--percent 100 0 100 0 100 0 --kv-policy h2o --kv-budget 0.5")):
        row = clock.play(flags, ("a job", place.at("tiny"), card, 6, 40, 8, "--weights bf16 " + more))
        tally.check(row["status"] == "ok", f"{card} {more}: {row['status']}")
        streams = not more.startswith("--percent 100 0 100")
        tally.check((row.get("h2d_busy", -1) > 0) == streams, f"{card} {more}: copies to the device in decode: {row}")
        tally.check(0 < row.get("compute_busy", -1) < 1 and row.get("host_us", -1) > 0, f"{card} {more}: figures: {row}")


def log_test(tally, place, a):
    """A log of a prompt and two tokens of decode, which lasts from 2 to 12 ms."""
    log = place.write("log", b"""compute,0,1000000,attend_prompt,0
compute,1000000,2000000,head_reduce,0
host,2000000,500000,record,100
h2d,1000000,4000000,copy,8
h2d,4000000,5000000,copy,8
h2d,9000000,14000000,copy,8
compute,4500000,6000000,matmul,0
compute,9500000,10000000,head_reduce,0
compute,11500000,12000000,head_reduce,0
d2h,11000000,12000000,copy,8
host,11900000,900000,record,200
""")
    row = clock.decode_of(*clock.log_read(log))
    want = {"passes_s": 0.01, "h2d_busy": 0.6, "d2h_busy": 0.1, "compute_busy": 0.25, "gap_ms": 4, "look_ahead": 0.15, "commands": 100,
            "host_us": 4}
    tally.check({k: round(row.get(k, -1), 9) for k in want} == want, f"decode begins at the first token: {row}")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (jobs_test, log_test)))
