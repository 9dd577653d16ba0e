#!/usr/bin/env python3
"""How a job that many workers share scales, played, nothing is run: share_play.py [--rows N] [--slots N] [--machines 1,2,4,...]

Each worker has SLOTS rows at once, claims chunks of rows as its queue runs low (engine/job/claims.h: at most 16,384 chunks, 4 rows
ahead), and makes one token of each of its rows a pass. Lengths are lognormal (median 128 tokens, sigma 0.6, at most 512). Two kinds of
passes: `stream`, whose time is the same however few rows there are (weights are streamed), and `compute`, whose time grows with the rows.
efficiency = rows per second over (workers' speed x rows per second of one worker). Cases: all equal; one worker at half speed; one that
dies in the middle of the job, whose rows go on 30 s after a worker has run out of chunks. A pass of all rows takes 0.25 s.
"""
import argparse
import heapq
import math
import os
import random

import conditions
from conditions import HERE

COLUMNS = ["rows", "slots", "passes", "machines", "case", "seconds", "efficiency"]
CHUNKS, AHEAD, PASS_S = 16384, 4, 0.25


class Worker:
    def __init__(self, speed, dies_s=None):
        self.speed, self.dies_s = speed, dies_s
        self.queue, self.ends, self.passes = [], [], 0

    def rows_left(self):
        """Lengths of what it has not done."""
        return [max(end - self.passes, 1) for end in self.ends] + self.queue


def play(lengths, workers, slots, kind):
    """Seconds until the last row is done."""
    chunk, at, dead, last = -(-len(lengths) // CHUNKS), 0, [], 0.0
    clock = [(0.0, i) for i in range(len(workers))]
    while clock:
        now, i = heapq.heappop(clock)
        w = workers[i]
        if w.dies_s is not None and now >= w.dies_s:
            dead += w.rows_left()
            continue
        while len(w.ends) < slots or len(w.queue) < AHEAD:
            if not w.queue or len(w.queue) < AHEAD:
                w.queue += lengths[at:at + chunk]
                at += chunk
            if not w.queue or len(w.ends) == slots:
                break
            heapq.heappush(w.ends, w.passes + w.queue.pop(0))
        if not w.ends:
            if dead:  # taken over when the dead worker's beat has stood still
                w.queue, dead, now = dead, [], max(now, 30.0 + now)
                heapq.heappush(clock, (now, i))
            continue
        share = 1 if kind == "stream" else len(w.ends) / slots
        now += PASS_S * share / w.speed
        w.passes += 1
        while w.ends and w.ends[0] <= w.passes:
            heapq.heappop(w.ends)
        last = max(last, now)
        heapq.heappush(clock, (now, i))
    return last


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", type=int, default=100000)
    p.add_argument("--slots", type=int, default=128)
    p.add_argument("--machines", default="1,2,4,8,16,32,64")
    p.add_argument("-o", "--output", default=os.path.join(HERE, "results", "share-play.csv"))
    a = p.parse_args()
    r = random.Random(1)
    lengths = [min(512, max(1, round(math.exp(r.gauss(math.log(128), 0.6))))) for _ in range(a.rows)]
    results = conditions.Results(a.output, {"table": "share-play", "command": conditions.command_line(), "commit": conditions.commit(), **({"dirty": "yes"} if conditions.changes() else {}),
                                            "date": conditions.now(), "machine": "played; no machine"}, COLUMNS)
    for kind in ("stream", "compute"):
        one = play(lengths, [Worker(1)], a.slots, kind)
        for n in map(int, a.machines.split(",")):
            for case in ("equal", "one slow", "one dies") if n > 1 else ("equal",):
                workers = [Worker(1) for _ in range(n)]
                if case == "one slow":
                    workers[0].speed = 0.5
                if case == "one dies":
                    workers[0].dies_s = one / n / 2
                speed = sum(w.speed for w in workers) - (0.5 if case == "one dies" else 0)
                seconds = play(lengths, workers, a.slots, kind)
                row = [a.rows, a.slots, kind, n, case, f"{seconds:.0f}", f"{one / speed / seconds:.3f}"]
                print(*row)
                results.add(dict(zip(COLUMNS, row)))
    results.close()


if __name__ == "__main__":
    main()
