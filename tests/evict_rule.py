"""What each KV policy scores, ranks and protects, in numpy: one Rule per row, for evict_ref.py.

Written from the policies' papers and the README, not from the C. A score is of a slot and a KV head; `weights` are
softmax weights summed over the query heads of a KV head.
"""

import copy
import math

import numpy as np

# default sink, default recent (a fraction of the budget, a count, or "rest"), default scope
POLICIES = {
    "full": (0, "rest", "head"),
    "window": (0, "rest", "head"),
    "streaming": (4, "rest", "head"),
    "h2o": (0, 0.5, "head"),
    "heavy": (0, 1, "head"),
    "h2o-mean": (4, 0.5, "head"),
    "h2o-hf": (0, 0.5, "head"),
    "ema": (4, 0.5, "head"),
    "tova": (0, 1, "layer"),
    "snapkv": (0, 0.5, "head"),
    "scissorhands": (0, 32, "head"),
    "vlen": (4, 0.5, "head"),
    "qhitter": (4, 0.5, "head"),
    "strided": (0, 0.5, "head"),
    "strided-h2o": (0, 0.5, "head"),
    "fixed": (0, 0.5, "head"),
    "fixed-h2o": (0, 0.5, "head"),
}
UNSCORED = ("full", "window", "streaming", "strided", "fixed")
DECAY = float(np.float32(0.98))
POOL = 3


def code_errors(x):
    """Of vectors [.., dim] what codes of four bits for groups of 64 numbers lose, relative to their norms."""
    lost = []
    for first in range(0, x.shape[-1], 64):
        g = x[..., first : first + 64]
        least = g.min(-1, keepdims=True)
        step = (g.max(-1, keepdims=True) - least) / 15
        codes = np.floor((g - least) / np.where(step > 0, step, 1) + 0.5)
        lost.append(g - (least + codes * step))
    norms = np.linalg.norm(x, axis=-1)
    return np.linalg.norm(np.concatenate(lost, -1), axis=-1) / np.where(norms > 0, norms, 1)


class Rule:
    """What to keep, for one row of n_tokens (context + continuation, or prompt + max_tokens).

    budget, recent, budget_of, budget_layers: as on the command line; a string or number with a decimal point is a
    fraction. in_layer() has what becomes of it where layers share the budget.
    """

    group = 1  # query heads of a KV head
    near = 1e-5  # of ranks that rounding may swap, relative

    def __init__(
        self, policy="full", budget=None, n_tokens=0, recent=None, sink=None, scope=None, n_prompt=0, budget_of="total",
        budget_layers="even"
    ):
        self.layers = budget_layers
        default_sink, default_recent, default_scope = POLICIES[policy]
        self.policy, self.scope = policy, scope or default_scope
        self.scored = policy not in UNSCORED
        if policy == "full":
            self.budget, self.recent, self.sink = math.inf, math.inf, 0
            return
        text = str(budget)
        whole = n_prompt if budget_of == "prompt" else n_tokens
        self.budget = max(32, math.ceil(float(text) * whole)) if "." in text else int(text)
        self.sink = default_sink if sink is None else sink
        rest, text = self.budget - self.sink, str(recent)
        if recent is not None:
            self.recent = math.floor(float(text) * self.budget) if "." in text else int(text)
        elif isinstance(default_recent, float):
            self.recent = math.floor(default_recent * self.budget)
        else:
            self.recent = rest if default_recent == "rest" else min(default_recent, rest)
        assert self.sink + self.recent <= self.budget or self.budget >= n_tokens, "usage error"

    def in_layer(self, layer, n_layers):
        """pyramid:BETA: from the first layer to the last what is not protected falls to 1 / BETA of its mean; where all
        behind the sink is recent, that does. For models of up to 8 layers, which need no steps."""
        if self.layers == "even":
            return self
        beta = float(self.layers.split(":")[1])
        shares = np.linspace(2 - 1 / beta, 1 / beta, n_layers)
        all_recent = self.sink + self.recent == self.budget
        kept, own = self.sink + (0 if all_recent else self.recent), copy.copy(self)
        most = int(shares[0] * (self.budget - kept) + 1e-6)  # the first layer's; others in proportion
        own.budget = kept + int(most * shares[layer] / shares[0] + 1e-6)
        own.recent = own.budget - own.sink if all_recent else self.recent
        return own

    def behind_prompt(self, ring):
        """The rule by which a prompt is cut; ring: so many of the newest have to stay."""
        own = copy.copy(self)
        if self.policy == "snapkv":  # its window; decode's tokens have no scores, and recent is theirs
            own.recent = min(self.recent, max(16, ring))
        return own

    # ---- scores

    def prompt_scores(self, weights):
        """weights [KV heads, queries, positions] -> [KV heads, positions]."""
        n = weights.shape[1]
        if self.policy == "ema":
            return np.tensordot(weights, DECAY ** np.arange(n - 1.0, -1, -1), (1, 0))
        if self.policy == "tova":
            return weights[:, -1] if n else weights.sum(1)
        if self.policy == "snapkv":
            last = weights[:, -16:].sum(1)
            return np.stack([last[:, max(0, j - POOL) : j + POOL + 1].max(1) for j in range(n)], 1) if n else last
        if self.policy == "scissorhands":  # bits, the last query's lowest
            bits = [self.hits(weights[:, t], t) * 2.0 ** (n - 1 - t) for t in range(max(0, n - 32), n)]
            return np.sum(bits, 0) if n else weights.sum(1)
        return weights.sum(1)

    def traits(self, keys, values):
        """keys, values [positions, KV heads, dim] of a prompt -> [KV heads, positions]: what a slot carries beside its
        score."""
        if self.policy == "vlen":
            return np.linalg.norm(values, axis=-1).T
        if self.policy == "qhitter":
            return 1 - (code_errors(keys) + code_errors(values)).T / 2
        return np.zeros(keys.shape[1::-1])

    def next_scores(self, scores, weights, now):
        """Of slots [KV heads, slots], the new token's (0 so far) with them, behind the token at position now."""
        if self.policy == "ema":
            return DECAY * scores + weights
        if self.policy == "tova":
            return weights
        if self.policy == "scissorhands":
            return scores * 2 % 2.0**32 + self.hits(weights, now)
        return scores if self.policy == "snapkv" else scores + weights

    def hits(self, weights, now):
        """Where the mean over the group is at least that over all tokens so far."""
        return weights / self.group >= 1 / (now + 1)

    # ---- ranks

    def values(self, scores, traits=None):
        """Numbers that may be added over heads."""
        if self.policy in ("vlen", "qhitter"):
            return scores * traits
        if self.policy == "scissorhands":
            return np.vectorize(lambda bits: bin(int(bits)).count("1"), otypes=[float])(scores)
        return scores

    def ranks(self, pos, score, now, traits=None):
        """pos, score, traits [KV heads, slots] -> rank, higher stays."""
        if not self.scored:
            return np.zeros(pos.shape)
        score = self.values(score, traits)
        if self.scope == "layer":
            score = np.broadcast_to(score.sum(0), score.shape)
        return score / (now - pos + 1) if self.policy == "h2o-mean" else score

    def protected(self, pos, now):
        return (pos < self.sink) | (pos > now - self.recent) | np.isin(pos, self.pattern(now))

    def pattern(self, now):
        """Positions that a static pattern holds: as many as fit its slots, thinned out by powers of two."""
        if not self.policy.startswith(("strided", "fixed")):
            return []
        slots, stride = self.budget - self.recent - self.sink, 1
        old = range(now - self.recent + 1)
        if slots <= 0:
            return []
        slots //= 2 if self.policy.endswith("h2o") else 1
        if self.policy.startswith("strided"):
            while len(old[::stride]) > max(slots, 1):
                stride *= 2
            return list(old[::stride]) if slots else []
        ends = range(31, now - self.recent + 32, 32)  # of all blocks that have begun
        while len(ends[stride - 1 :: stride]) > slots // 4:
            stride *= 2
        return [p for end in ends[stride - 1 :: stride] for p in range(end - 3, end + 1)]

    def hidden(self, now):
        """The position that a token at `now` does not see, though its head keeps it; None: it sees all."""
        gap = self.policy == "h2o-hf" and self.recent > 0 and now > self.budget
        return now - self.recent if gap else None

    def first_to_go(self, pos, rank, now):
        """Slots of one head that may go, first to go first."""
        order = np.lexsort((pos, rank))
        return order[~self.protected(pos[order], now)]
