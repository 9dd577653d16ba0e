"""Of evict_ref.py's self-test what is about a Rule and masks: H2O's own simulation."""
import os

import numpy as np

from evict_ref import model_open, sample_row, score, softmax
from evict_rule import Rule


def masks_of_h2o(logits, n_prompt, heavy, recent):
    """What each query sees [queries, keys] in H2O's own simulation of one head, from its description: everything stays
    in the cache, and before the softmax a mask. Columns of weights are added up; once there are more than the budget,
    the next query sees the best `heavy` of those older than the last `recent` scores, the last recent - 1 and itself;
    scores of who is in neither the choice nor the last `recent` become 0."""
    n = len(logits)
    seen, scores = np.tril(np.ones((n, n), bool)), np.zeros(n)
    for t in range(n):
        x = np.where(seen[t, : t + 1], logits[t, : t + 1], -np.inf)
        scores[: t + 1] += softmax(x)
        there = t + 1
        if there < n_prompt or there <= heavy + recent or there == n:
            continue
        best = np.argsort(-scores[: there - recent], kind="stable")[:heavy]
        seen[there, : there - recent + 1] = False
        seen[there, best] = True
        stays = seen[there, :there].copy()
        stays[there - recent :] = True
        scores[:there] *= stays
    return seen


def test_h2o_hf(t):
    """The masks of H2O's simulation, and by hand: H = R = 4, a token at 20 does not see 16."""
    rng = np.random.RandomState(20)
    for heavy, recent, n_prompt, n in ((4, 4, 20, 60), (4, 4, 3, 60), (8, 1, 9, 50), (3, 12, 40, 90), (5, 5, 10, 40), (6, 2, 1, 30)):
        logits = rng.randn(n, n) * 2
        rule, what = Rule("h2o-hf", heavy + recent, recent=str(recent)), f"h2o-hf {heavy}+{recent}, prompt of {n_prompt}"
        want, held, scores = masks_of_h2o(logits, n_prompt, heavy, recent), [], np.zeros(n)
        differ = []
        for now in range(n):
            held = sorted([*held, now])
            sees = [p for p in held if now < n_prompt or p != rule.hidden(now)]
            if sees != np.flatnonzero(want[now]).tolist():
                differ.append(now)
            scores[sees] += softmax(logits[now, sees])
            while now >= n_prompt - 1 and len(held) > rule.budget:
                pos = np.array(held)
                held.remove(int(pos[rule.first_to_go(pos, scores[pos], now)[0]]))
        t.check(not differ, f"{what}: queries {differ[:5]} see other slots than under H2O's masks")
    sees = masks_of_h2o(rng.randn(21, 21), 20, 4, 4)[20]
    t.check(sees.sum() == 8 and sees[17:].all() and not sees[16], f"h2o-hf: the query at 20 sees {np.flatnonzero(sees)}")
    t.check(Rule("h2o-hf", 8).hidden(20) == 16 and Rule("h2o", 8).hidden(20) is None, "16 is hidden from 20")
    t.check(Rule("h2o-hf", 8).hidden(8) is None and Rule("h2o-hf", 8, recent="0").hidden(20) is None, "nobody is hidden")


def test_rule(t):
    for args, want in (
        ((("h2o", "0.2", 200)), (40, 20, 0)),
        (("h2o", "0.2", 201), (41, 20, 0)),
        (("h2o-mean", "0.1", 200), (32, 16, 4)),
        (("window", 64, 0), (64, 64, 0)),
        (("streaming", "0.5", 130), (65, 61, 4)),
        (("h2o", 64, 0, "0.3"), (64, 19, 0)),
        (("h2o-mean", 64, 0, 10, 2), (64, 10, 2)),
    ):
        r = Rule(*args)
        t.check(
            (r.budget, r.recent, r.sink) == want, f"Rule{args}: {r.budget}, {r.recent}, {r.sink}"
        )
    ages, c = np.full((1, 9), 7), np.random.RandomState(1).rand(1, 9)
    order = [
        Rule(n, 4, recent=0, sink=0).first_to_go(
            ages[0], Rule(n, 4, recent=0).ranks(ages, c, 9)[0], 9
        )
        for n in ("h2o", "h2o-mean")
    ]
    t.check((order[0] == order[1]).all(), "equal ages: mean ranks as sum")
