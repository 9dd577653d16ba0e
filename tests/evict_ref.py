#!/usr/bin/env python3
"""llama and opt with KV eviction in numpy, written from the rules (README "Eviction"), not from
the C.

Owns: the reference that evict_golden.py holds the engine to. Refuses: speed, torch, sampling.
Everything is f64, so that the order of sums does not matter and a near-tie can be told from a
bug. Run as a script it tests itself: against transformers' numbers (goldens) where nothing is
evicted, and against hand-worked traces and identities between policies where something is.

Rules in short. A prompt attends in full; position j of KV head g scores the sum over the group's
query heads and all prompt queries of the softmax weight on j; the head then keeps its best
`budget`. After that each token attends over the kept slots and itself, the weights are added to
the scores (its own too), and when slots + new token exceed the budget the lowest-ranked
unprotected one goes, of equals the oldest. Teacher-forced eviction is local to a layer, so a
layer takes all tokens at once and only its attention walks them one by one.
"""

import json
import math
import os
import struct
import tempfile

import numpy as np

from evict_rule import POLICIES, Rule
from golden_common import goldens
from trial import Tally
import tiny


# ---- files ------------------------------------------------------------------------------------


def safetensors_read(folder):
    """{name: f64 array} of every *.safetensors of a folder; bytes stay bytes."""
    out = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            data = f.read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            raw = data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                x = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "U8": "u1"}[t["dtype"]])
            out[name] = (x if x.dtype == np.uint8 else x.astype(np.float64)).reshape(t["shape"])
    return out


def round_bf16(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


def round_codes(x, top):
    """Groups of 64 of the last axis as codes 0..top of an f16 scale and an f16 minimum."""
    x, out = x.astype(np.float32), np.empty(x.shape)
    for at in range(0, x.shape[-1], 64):
        part = x[..., at : at + 64]
        low = part.min(-1, keepdims=True).astype(np.float16).astype(np.float32)
        scale = (part.max(-1, keepdims=True) - low) / np.float32(top)
        scale = scale.astype(np.float16).astype(np.float32)
        with np.errstate(divide="ignore"):
            inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
        code = np.floor((part - low) * inverse + np.float32(0.5)).clip(0, top)
        out[..., at : at + 64] = code * scale + low
    return out


def ring_slots(rule):
    """mixed: how many of the newest tokens stand as q8."""
    if rule.policy == "full":
        return 64
    return max(0, min(64, rule.recent, rule.budget - rule.sink))


KV_FORMATS = {
    "f32": lambda x: x.astype(np.float32).astype(np.float64),
    "bf16": round_bf16,
    "q8": lambda x: round_codes(x, 255),
    "q4": lambda x: round_codes(x, 15),
}


def rotation(head_dim, kv):
    """The matrix by which quantised pages hold keys and values: Hadamard, in blocks of a power of two."""
    block, h = min(head_dim & -head_dim, 256), np.eye(1)
    if kv in ("f32", "bf16") or block < 8:
        return np.eye(head_dim)
    while len(h) < block:
        h = np.block([[h, h], [h, -h]]) / math.sqrt(2)
    return np.kron(np.eye(head_dim // block), h)


# ---- models: embed, qkv, rest of the layer, head -------------------------------------------------


def rope_frequencies(c):
    """Radians per position, [head_dim / 2]."""
    s = c.get("rope_parameters") or {"rope_theta": c["rope_theta"], **(c.get("rope_scaling") or {})}
    inv = s["rope_theta"] ** (-np.arange(0, c["head_dim"], 2, dtype=np.float64) / c["head_dim"])
    if s.get("rope_type", "default") == "default":
        return inv
    assert s["rope_type"] == "llama3"
    context, low, high = (
        s[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    out = []
    for f in inv:
        wavelength = 2 * math.pi / f
        if wavelength > context / low:
            f = f / s["factor"]
        elif wavelength >= context / high:
            keep = (context / wavelength - low) / (high - low)
            f = (1 - keep) * f / s["factor"] + keep * f
        out.append(f)
    return np.array(out)


class Llama:
    def __init__(self, config, tensors):
        self.c, self.w = config, tensors
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config["head_dim"]
        self.scale = 1 / math.sqrt(self.head_dim)
        self.layers = config["num_hidden_layers"]
        self.freq = rope_frequencies(config)

    def linear(self, name, x):
        bias = self.w.get(name + ".bias")
        y = x @ self.w[name + ".weight"].T
        return y if bias is None else y + bias

    def norm(self, name, x):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"])
        return x / scale * self.w[name + ".weight"]

    def rotate(self, x, pos):
        angle = np.outer(pos, self.freq)[:, None]
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def embed(self, ids, pos):
        return self.w["model.embed_tokens.weight"][ids]

    def qkv(self, layer, h, pos, _n_tokens):
        p = f"model.layers.{layer}."
        x = self.norm(p + "input_layernorm", h)
        q, k, v = (
            self.linear(f"{p}self_attn.{n}_proj", x).reshape(len(h), -1, self.head_dim)
            for n in "qkv"
        )
        return self.rotate(q, pos), self.rotate(k, pos), v

    def after(self, layer, h, attention):
        p = f"model.layers.{layer}."
        h = h + self.linear(p + "self_attn.o_proj", attention)
        x = self.norm(p + "post_attention_layernorm", h)
        gate = self.linear(p + "mlp.gate_proj", x)
        return h + self.linear(
            p + "mlp.down_proj", gate / (1 + np.exp(-gate)) * self.linear(p + "mlp.up_proj", x)
        )

    def logits(self, h):
        x = self.norm("model.norm", h)
        tied = self.c["tie_word_embeddings"]
        return x @ self.w["model.embed_tokens.weight" if tied else "lm_head.weight"].T


class Opt:
    def __init__(self, config, tensors):
        self.c = config
        self.w = {n.replace("model.decoder.", ""): x for n, x in tensors.items()}
        self.heads = self.kv_heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self.layers = config["num_hidden_layers"]
        self.pre = config["do_layer_norm_before"]
        erf = np.vectorize(math.erf, otypes=[np.float64])
        self.act = {
            "relu": lambda x: np.maximum(x, 0),
            "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
        }[config["activation_function"]]

    linear = Llama.linear

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * self.w[name + ".weight"] + self.w[name + ".bias"]

    def embed(self, ids, pos):
        x = self.w["embed_tokens.weight"][ids]
        if "project_in.weight" in self.w:
            x = self.linear("project_in", x)
        return x + self.w["embed_positions.weight"][np.asarray(pos) + 2]

    def qkv(self, layer, h, pos, _n_tokens):
        p = f"layers.{layer}."
        x = self.norm(p + "self_attn_layer_norm", h) if self.pre else h
        return tuple(
            self.linear(f"{p}self_attn.{n}_proj", x).reshape(len(h), -1, self.head_dim)
            for n in "qkv"
        )

    def after(self, layer, h, attention):
        p = f"layers.{layer}."
        h = h + self.linear(p + "self_attn.out_proj", attention)
        if not self.pre:
            h = self.norm(p + "self_attn_layer_norm", h)
        x = self.norm(p + "final_layer_norm", h) if self.pre else h
        h = h + self.linear(p + "fc2", self.act(self.linear(p + "fc1", x)))
        return h if self.pre else self.norm(p + "final_layer_norm", h)

    def logits(self, h):
        if self.pre:
            h = self.norm("final_layer_norm", h)
        if "project_out.weight" in self.w:
            h = self.linear("project_out", h)
        return h @ self.w.get("lm_head.weight", self.w["embed_tokens.weight"]).T


def model_open(folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    return {"llama": Llama, "opt": Opt}[config["model_type"]](config, safetensors_read(folder))


# ---- the rules -----------------------------------------------------------------------------------


class Trail:
    """Kept sets and victims of one row, and, when following an engine's, how they compare.

    Sums of f32 and f64 differ in the last digits. Where the engine's choice has a score within
    rule.near (relative) of ours, the reference takes the engine's and counts a near-tie; otherwise
    it is an error and the reference goes its own way. Ranks that are not scores are equal, and
    the oldest goes: no near-ties.
    """

    def __init__(self, follow=None):
        self.kept = {}  # (layer, head) -> positions, ascending
        self.victims = (
            {}
        )  # (layer, head) -> [(position of the new token, victim, its summed weights)]
        self.follow = follow
        self.near_ties, self.errors = 0, []

    def is_near(self, rule, a, b):
        return rule.scored and abs(a - b) <= rule.near * max(abs(a), abs(b), 1e-30)

    def choose_kept(self, rule, layer, head, pos, rank, keep, fixed):
        """keep: indices that our rule keeps, fixed: those it may not swap. Returns the indices
        kept."""
        theirs = self.follow.kept.get((layer, head)) if self.follow else pos[keep].tolist()
        index = {int(p): i for i, p in enumerate(pos)}
        if theirs is None or len(set(theirs)) != len(keep) or any(p not in index for p in theirs):
            self.errors.append(
                f"layer {layer} head {head}: kept {theirs}, want {pos[keep].tolist()}"
            )
        else:
            other = np.array([index[p] for p in theirs])
            ours, lost = np.setdiff1d(other, keep), np.setdiff1d(keep, other)
            if len(lost) == 0:
                pass
            elif not np.isin(lost, fixed).any() and self.is_near(
                rule, rank[ours].min(), rank[lost].max()
            ):
                self.near_ties += len(ours)
                keep = np.sort(other)
            else:
                self.errors.append(
                    f"layer {layer} head {head}: kept {pos[ours].tolist()} "
                    f"rather than {pos[lost].tolist()} after the prompt"
                )
            if list(theirs) != sorted(theirs):
                self.errors.append(f"layer {layer} head {head}: kept positions not ascending")
        self.kept[layer, head] = pos[keep].tolist()
        return keep

    def choose_victim(self, rule, layer, head, new, pos, rank, score, candidates):
        best = candidates[0]
        if self.follow is not None:
            theirs = self.follow.victims.get((layer, head), {}).get(new)
            found = [i for i in candidates if pos[i] == theirs]
            if found and (found[0] == best or self.is_near(rule, rank[found[0]], rank[best])):
                self.near_ties += int(found[0] != best)
                best = found[0]
            else:
                self.errors.append(
                    f"layer {layer} head {head} position {new}: victim {theirs}, "
                    f"want {pos[best]}"
                )
        self.victims.setdefault((layer, head), []).append((new, int(pos[best]), float(score[best])))
        return best


def evict_one(rule, trail, layer, pos, score, now, trait=None, live=None):
    """Per KV head the index of the victim among pos [K, n] (the new token is in); live masks
    slots."""
    rank = rule.ranks(pos, score, now, trait)
    score = rule.values(score, trait)
    if rule.scope == "layer":  # slots hold the same positions in every head
        score = np.broadcast_to(score.sum(0), score.shape)
    out = []
    for g in range(len(pos)):
        slots = np.arange(pos.shape[1]) if live is None else np.flatnonzero(live[g])
        p, r, s = pos[g, slots], rank[g, slots], score[g, slots]
        candidates = rule.first_to_go(p, r, now)
        if rule.scope == "layer" and g:  # one victim position for all heads
            candidates = np.flatnonzero(p == pos[0, out[0]])
        i = trail.choose_victim(rule, layer, g, now, p, r, s, candidates)
        out.append(int(slots[i]))
    return np.array(out)


def softmax(x, sink=None):
    """sink: one logit more, which takes of the sum and has no value; None: none."""
    if sink is not None:
        sink = np.broadcast_to(sink, x.shape[:-1])[..., None]
        return softmax(np.concatenate([x, sink], -1))[..., :-1]
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softcap(model, logits):
    cap = getattr(model, "softcap", None)
    return logits if cap is None else cap * np.tanh(logits / cap)


def sinks_of(model, layer):
    """[heads], None each without sinks."""
    sinks = model.sinks(layer) if hasattr(model, "sinks") else None
    return [None] * model.heads if sinks is None else sinks


# ---- a row ---------------------------------------------------------------------------------------


def window_of(model, layer):
    return model.window(layer) if hasattr(model, "window") else None


def rule_in(model, layer, rule):
    """A layer with a window keeps its newest window - 1 (fewer, under a smaller budget), whatever the rule."""
    window = window_of(model, layer)
    if window is None:
        return rule.in_layer(layer, model.layers)
    return Rule("window", int(min(rule.budget, window - 1)), scope=rule.scope)


def attend_prompt(model, q, k, v, layer):
    """Causal attention, in full or over a window's last keys: output [n, dim], weights [KV heads, queries, keys]."""
    n, group = len(q), model.heads // model.kv_heads
    out, weights = np.empty_like(q), np.zeros((model.kv_heads, n, n))
    hidden, window, sinks = np.triu(np.ones((n, n), bool), 1), window_of(model, layer), sinks_of(model, layer)
    if window is not None:
        hidden |= np.tril(np.ones((n, n), bool), -window)
    for h in range(model.heads):
        logits = softcap(model, q[:, h] @ k[:, h // group].T * model.scale)
        logits[hidden] = -np.inf
        w = softmax(logits, sinks[h])
        out[:, h] = w @ v[:, h // group]
        weights[h // group] += w
    return out.reshape(n, -1), weights


def prompt_pass(model, context, n_tokens):
    """What a prompt leaves, whatever is evicted later: per layer (k, v, weights), last hidden
    state."""
    cache = model.__dict__.setdefault("prompt_cache", {})
    key = tuple(context), n_tokens
    if key not in cache:
        pos = np.arange(len(context))
        h, state = model.embed(context, pos), []
        for layer in range(model.layers):
            q, k, v = model.qkv(layer, h, pos, n_tokens)
            attention, weights = attend_prompt(model, q, k, v, layer)
            state.append((k, v, weights))
            h = model.after(layer, h, attention)
        cache[key] = state, h[-1:]
    return cache[key]


def prompt_keep(rule, trail, layer, sums, n, traits=None, ring=0):
    """Indices that each head keeps, [K, min(n, budget)], ascending."""
    rule = rule.behind_prompt(ring)
    pos = np.broadcast_to(np.arange(n), sums.shape)
    rank, out = rule.ranks(pos, sums, n - 1, traits), []
    for g in range(len(sums)):
        order = rule.first_to_go(pos[g], rank[g], n - 1)
        keep = (
            np.setdiff1d(np.arange(n), order[: n - rule.budget])
            if n > rule.budget
            else np.arange(n)
        )
        fixed = np.setdiff1d(keep, order)
        if rule.scope == "layer" and g:  # one set for all heads
            keep = fixed = out[0]
        out.append(trail.choose_kept(rule, layer, g, pos[g], rank[g], keep, fixed))
    return np.array(out)


def turn_back(model, prompt, qkv):
    """A layer's prompt (k, v, weights) and the qkv behind it, q and k as they were before they were rotated."""
    (k, v, weights), (q, new_k, new_v) = prompt, qkv
    pos = np.arange(len(k) + len(q), dtype=float)
    back = model.rotate(np.concatenate([k, new_k]), -pos)
    return (back[: len(k)], v, weights), (model.rotate(q, -pos[len(k) :]), back[len(k) :], new_v)


def turn_by_rank(model, keys, pos, live):
    """keys [KV heads, n, dim] as stored, each rotated by how many of its head's live slots are older."""
    out = np.empty_like(keys)
    for g, of in enumerate(keys):
        rank = [(live[g] & (pos[g] < p)).sum() for p in pos[g]]
        out[g] = model.rotate(of[:, None], rank)[:, 0]
    return out


def attend_forced(model, rule, trail, layer, prompt, qkv, first, kv, simulate, by_slot=False):
    """Known tokens one after the other over the slots and themselves: output [n, dim].

    by_slot: q and k come as they were before they were rotated; a token rotates keys by their ranks, and itself by as
    many as there are."""
    q, k, v = qkv
    heads, group = np.arange(model.kv_heads), model.heads // model.kv_heads
    rule.group = group
    scores, traits = rule.prompt_scores(prompt[2]), rule.traits(prompt[0], prompt[1])
    ring = ring_slots(rule) if kv == "mixed" else 0
    keep = prompt_keep(rule, trail, layer, scores, first, traits, ring)
    if simulate:  # everything stays, what is gone is masked
        live = np.zeros((model.kv_heads, first + len(q)), bool)
        for g, of in enumerate(keep):
            live[g, of] = True
        keep = np.broadcast_to(np.arange(first), (model.kv_heads, first))
    n, cap = keep.shape[1], keep.shape[1] + len(q)
    keys, values = (np.zeros((model.kv_heads, cap, model.head_dim)) for _ in "kv")
    pos = np.zeros((model.kv_heads, cap), int)
    score, trait = np.zeros((model.kv_heads, cap)), np.zeros((model.kv_heads, cap))
    old = KV_FORMATS["q4" if kv == "mixed" else kv]
    new = KV_FORMATS["q8"] if ring else old
    for to, x in (keys, prompt[0]), (values, prompt[1]):
        to[:, :n] = np.where(
            (keep >= first - ring)[:, :, None],
            new(x)[keep, heads[:, None]],
            old(x)[keep, heads[:, None]],
        )
    pos[:, :n], score[:, :n] = keep, np.take_along_axis(scores, keep, 1)
    trait[:, :n], own_traits = np.take_along_axis(traits, keep, 1), rule.traits(k, v)
    k, v, out = new(k), new(v), np.empty_like(q)
    sinks = sinks_of(model, layer)
    sink = None if sinks[0] is None else np.reshape(sinks, (model.kv_heads, group))
    for i in range(len(q)):
        m = n + 1
        keys[:, n], values[:, n], pos[:, n], score[:, n], trait[:, n] = k[i], v[i], first + i, 0, own_traits[:, i]
        query, seen = q[i], keys[:, :m]
        if by_slot:
            held = live[:, :m].copy() if simulate else np.ones((model.kv_heads, m), bool)
            held[:, n] = True
            seen = turn_by_rank(model, seen, pos[:, :m], held)
            query = model.rotate(q[i][None], [held[0].sum() - 1])[0]
        logits = query.reshape(model.kv_heads, group, -1) @ seen.transpose(0, 2, 1)
        logits = softcap(model, logits * model.scale)
        if simulate:
            live[:, n] = True
            logits[~np.broadcast_to(live[:, None, :m], logits.shape)] = -np.inf
        hidden = pos[:, :m] == rule.hidden(first + i)
        logits[np.broadcast_to(hidden[:, None], logits.shape)] = -np.inf
        w = softmax(logits, sink)
        out[i] = (w @ values[:, :m]).reshape(model.heads, -1)
        given = w.sum(1)
        score[:, :m] = rule.next_scores(score[:, :m], given, first + i)
        held = live[0, :m].sum() if simulate else m
        if held <= rule.budget:
            n = m
        else:
            gone = evict_one(
                rule,
                trail,
                layer,
                pos[:, :m],
                score[:, :m],
                first + i,
                trait[:, :m],
                live[:, :m] if simulate else None,
            )
            if simulate:
                live[heads, gone] = False
                n = m
            else:  # the new token takes the victim's slot, or is dropped when it is the victim
                for a in (keys, values, pos, score, trait):
                    a[heads, gone] = a[:, n]
        if ring:  # who is no longer among the newest
            leaves = np.nonzero(pos[:, :n] == first + i - ring)
            for a in (keys, values):
                a[leaves] = old(a[leaves])
    return out.reshape(len(q), -1)


def score(model, context, continuation, rule=None, kv="f32", simulate=False, follow=None, by_slot=False):
    """Log-probabilities of the continuation, f64, is_greedy, and the Trail."""
    rule, trail = rule or Rule(), Trail(follow)
    n_tokens = len(context) + len(continuation)  # some models turn by another table when a row gets long
    state, last = prompt_pass(model, context, n_tokens)
    pos = np.arange(len(context), len(context) + len(continuation))
    h = model.embed(continuation, pos)
    for layer in range(model.layers):
        qkv = model.qkv(layer, h, pos, n_tokens)  # heads of the model are those of this layer from here on
        of_values = rotation(model.head_dim, kv)
        of_keys = rotation(model.head_dim, "f32" if by_slot else kv)  # by_slot: stored before RoPE
        prompt = state[layer]
        if by_slot:
            prompt, qkv = turn_back(model, prompt, qkv)
        (k, v, weights), (q, new_k, new_v) = prompt, qkv
        prompt, qkv = (k @ of_keys, v @ of_values, weights), (q @ of_keys, new_k @ of_keys, new_v @ of_values)
        rule_here = rule_in(model, layer, rule)
        out = attend_forced(model, rule_here, trail, layer, prompt, qkv, len(context), kv, simulate, by_slot)
        h = model.after(layer, h, (out.reshape(q.shape) @ of_values).reshape(out.shape))
    logits = model.logits(np.concatenate([last, h[:-1]]))
    logits -= logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    mine = logprobs[np.arange(len(continuation)), continuation]
    return mine, bool((logits.argmax(-1) == continuation).all()), trail


# ---- self-test -----------------------------------------------------------------------------------


def walk(rule, start, n_tokens, weights):
    """Plays weights(positions held) -> p through one head. Returns positions, scores, victims."""
    pos, c = np.array([list(range(len(start)))]), np.array([start], float)
    trail = Trail()
    for t in range(len(start), n_tokens):
        pos, c = np.append(pos, [[t]], 1), np.append(c, [[0.0]], 1)
        c = c + weights(pos[0])
        if pos.shape[1] > rule.budget:
            gone = evict_one(rule, trail, 0, pos, c, t)[0]
            pos, c = np.delete(pos, gone, 1), np.delete(c, gone, 1)
    return pos[0].tolist(), c[0], [v for _, v, _ in trail.victims.get((0, 0), [])]


def test_traces(t):
    """Worked by hand: a cache of 3 with the first position pinned."""
    p = np.array([0.10, 0.20, 0.60, 0.10])
    grace = Rule("h2o", 3, recent=1, sink=1)
    pos, c, gone = walk(Rule("h2o", 3, recent=0, sink=1), [4.2, 0.8, 3.5], 4, lambda _: p)
    t.check(
        gone == [3] and np.allclose(c, [4.3, 1.0, 4.1]), f"newcomer goes without grace: {gone} {c}"
    )
    pos, c, gone = walk(grace, [4.2, 0.8, 3.5], 4, lambda _: p)
    t.check(
        gone == [1] and np.allclose(c, [4.3, 4.1, 0.1]), f"second slot goes with grace: {gone} {c}"
    )

    def uniform(pos):
        return np.full(len(pos), 1 / len(pos))

    for name in ("h2o", "h2o-mean"):
        pos, c, _ = walk(Rule(name, 3, recent=0, sink=1), [], 6, uniform)
        t.check(pos == [0, 1, 2], f"{name} without grace freezes: {pos}")
        t.check(np.allclose(c, [2.5833, 1.5833, 1.0833], atol=1e-4), f"{name} freeze: scores {c}")
    pos, c, _ = walk(grace, [], 6, uniform)
    t.check(
        pos == [0, 1, 5] and np.allclose(c, [2.5833, 1.5833, 0.25], atol=1e-4),
        f"grace of 1: {pos} {c}",
    )
    _, _, gone = walk(Rule("h2o", 128), [], 10000, uniform)
    t.check(len(gone) == 9872, f"10,000 tokens into 128: {len(gone)} evictions")
    equal = Rule("h2o", 4, recent=0)
    t.check(
        walk(equal, [1, 1, 1, 1], 5, lambda p: np.r_[np.zeros(len(p) - 1), 1])[2] == [0],
        "equal ranks: the oldest goes",
    )


def test_full(t, folder):
    """Nothing evicted: transformers' log-probabilities."""
    golden = goldens("tiny.json.gz")["models"]
    for spec, form, path in ((s, f, p) for s, f, p in tiny.write(folder) if os.path.isdir(p)):
        model, entry = model_open(path), golden[spec]["weights"][form]
        diffs = []
        for row, want in zip(golden[spec]["rows"][:: entry["every"]], entry["rows"]):
            got, greedy, _ = score(model, row["context_ids"], row["continuation_ids"])
            diffs.append(np.abs(got - want["logprobs"]))
            t.check(greedy == want["greedy"] or want["margin"] < 1e-3, f"{spec} {form}: is_greedy")
        diffs = np.concatenate(diffs)
        t.check(
            diffs.mean() <= 2e-5 and diffs.max() <= 1e-3,
            f"{spec} {form}: log-probabilities differ by {diffs.mean():.2e}, at most {diffs.max():.2e}",
        )


def sample_row(model, n, m):
    r = np.random.RandomState(n + m)
    return (r.randint(0, model.c["vocab_size"], k).tolist() for k in (n, m))


def test_policies(t, folder, name):
    model = model_open(os.path.join(folder, name))
    context, continuation = sample_row(model, 100, 64)

    def play(*args, n=164, **more):
        simulate = more.pop("simulate", False)
        return score(
            model, context, continuation, Rule(*args, n_tokens=n, **more), simulate=simulate
        )

    full = play("full")
    sums = prompt_pass(model, context, len(context))[0][0][2].sum(1)
    t.check(np.allclose(sums.sum(1), 100 * model.heads / model.kv_heads), f"{name}: column sums")
    for policy in list(POLICIES)[1:]:
        t.check((play(policy, 164)[0] == full[0]).all(), f"{name}: {policy} that holds all is full")
        for scope in ("head", "layer"):
            for budget in (48, "0.2", 128):
                what = f"{name}: {policy} {scope} {budget}"
                real = play(policy, budget, scope=scope)
                masked = play(policy, budget, scope=scope, simulate=True)
                t.check(np.abs(real[0] - masked[0]).max() < 1e-9, f"{what}: masked differs")
                t.check(
                    real[2].kept == masked[2].kept
                    and [[v[:2] for v in x] for x in real[2].victims.values()]
                    == [[v[:2] for v in x] for x in masked[2].victims.values()],
                    f"{what}: victims",
                )
                test_properties(t, what, model, real[2], Rule(policy, budget, 164, scope=scope))
    same = [
        play("streaming", 64),
        play("h2o", 64, sink=4, recent=60),
        play("h2o-mean", 64, recent=60),
    ]
    t.check(
        same[0][2].kept == same[1][2].kept == same[2][2].kept
        and np.abs(same[0][0] - same[1][0]).max() < 1e-9,
        f"{name}: h2o with all recent is streaming",
    )
    t.check(
        (play("window", 64)[0] == play("streaming", 64, sink=0)[0]).all(),
        f"{name}: streaming without a sink is window",
    )
    t.check(
        np.abs(play("h2o", 48)[0] - full[0]).max() > 1e-3, f"{name}: eviction changes something"
    )
    if hasattr(model, "rotate"):
        test_ranks(t, name, model, context, continuation, full)
    bf16 = score(model, context, continuation, kv="bf16")[0]
    t.check(1e-7 < np.abs(bf16 - full[0]).mean() < 0.1, f"{name}: bf16 KV")


def test_ranks(t, name, model, context, continuation, full):
    """Positions by slot: true ones until something goes, and afterwards only as many as there are slots."""
    def play(*args, **more):
        return score(model, context, continuation, Rule(*args, n_tokens=164), by_slot=True, **more)

    for policy in ("streaming", "h2o"):
        what = f"{name}: {policy} by slot"
        off = np.abs(play(policy, 164)[0] - full[0]).max()  # keys are rounded to f32 before they turn
        t.check(off < 2e-5, f"{what}: holds all, is {off:.1e} off full")
        real, masked = play(policy, 48), play(policy, 48, simulate=True)
        t.check(np.abs(real[0] - masked[0]).max() < 1e-9, f"{what}: masked differs")
    keys, live = np.random.RandomState(3).rand(1, 4, model.head_dim), np.array([[True, True, False, True]])
    got = turn_by_rank(model, keys, np.array([[0, 9, 4, 7]]), live)[0]
    want = model.rotate(keys[0][:, None], [0, 2, 0, 1])[:, 0]  # what is masked counts for nobody
    t.check(np.allclose(got[live[0]], want[live[0]]), f"{name}: keys by rank")
    true = score(model, context, continuation, Rule("streaming", 48))[0]
    t.check(np.abs(play("streaming", 48)[0] - true).max() > 1e-3, f"{name}: ranks change something")


def test_properties(t, what, model, trail, rule):
    n_prompt, ok = 100, True
    for key, kept in trail.kept.items():
        held = set(kept)
        ok &= len(held) == min(n_prompt, rule.budget) and kept == sorted(kept)
        ok &= (
            set(range(rule.sink)) <= held
            and set(range(max(0, n_prompt - rule.behind_prompt(0).recent), n_prompt)) <= held
        )
        gone = {new: v for new, v, _ in trail.victims.get(key, [])}
        for now in range(n_prompt, 164):
            held.add(now)
            if now in gone:
                ok &= gone[now] in held and rule.sink <= gone[now] <= now - rule.recent
                held.remove(gone[now])
            ok &= len(held) == min(now + 1, rule.budget)
    if rule.scope == "layer":
        for layer in range(model.layers):
            sets = [
                (trail.kept[layer, g], [v[:2] for v in trail.victims.get((layer, g), [])])
                for g in range(model.kv_heads)
            ]
            ok &= all(s == sets[0] for s in sets)
    t.check(ok, f"{what}: sizes, protection, one set per layer")


class Claim:
    """A trail as an engine would report it, to be spoilt."""

    def __init__(self, trail):
        self.kept = {k: list(x) for k, x in trail.kept.items()}
        self.victims = {k: {new: v for new, v, _ in x} for k, x in trail.victims.items()}


def test_follow(t, folder):
    """The comparison itself must be able to fail."""
    model = model_open(os.path.join(folder, "llama-gqa-f32"))
    context, continuation = sample_row(model, 60, 20)
    for rule in (
        Rule("h2o", 32),
        Rule("h2o-mean", 32, scope="layer"),
        Rule("streaming", 32, recent="8"),
    ):

        def play(follow=None):
            return score(model, context, continuation, rule, follow=follow)[2]

        what, trail = f"follow {rule.policy}", play()
        again = play(Claim(trail))
        t.check(not again.errors and not again.near_ties, f"{what}: its own trail is accepted")
        for key in ((0, 0), (2, 2)):
            claim = Claim(trail)
            claim.victims[key][70] += 1
            t.check(play(claim).errors, f"{what}: a wrong victim is found")
            claim = Claim(trail)
            del claim.victims[key][70]
            t.check(play(claim).errors, f"{what}: a missing victim is found")
            claim = Claim(trail)
            other = next(p for p in range(10, 60) if p not in claim.kept[key])
            claim.kept[key] = sorted([other, *claim.kept[key][1:]])
            t.check(play(claim).errors, f"{what}: a wrong kept set is found")


def test_near_ties(t):
    """Scores a rounding apart may be swapped, protected positions and equal ranks may not."""
    pos, rank = np.arange(8), np.array([3, 1, 1 + 5e-6, 2, 1, 1, 1, 1])
    for policy, kept, fine in (
        ("h2o", [0, 1, 3, 6, 7], True),
        ("h2o", [0, 2, 3, 6, 7], True),
        ("h2o", [0, 1, 2, 6, 7], False),
        ("h2o", [0, 1, 2, 3, 7], False),
        ("streaming", [0, 1, 3, 6, 7], False),
    ):
        claim = Claim(Trail())
        claim.kept[0, 0] = kept
        trail = Trail(claim)
        rule = Rule(policy, 5, recent=2, sink=0)
        trail.choose_kept(rule, 0, 0, pos, rank, np.array([0, 2, 3, 6, 7]), np.array([6, 7]))
        t.check(not trail.errors == fine, f"near ties {policy} {kept}: {trail.errors}")


def main():
    import evict_masks  # which imports this file

    t = Tally()
    test_traces(t)
    evict_masks.test_rule(t)
    evict_masks.test_h2o_hf(t)
    with tempfile.TemporaryDirectory() as folder:
        test_full(t, folder)
        for name in ("llama-mha-f32", "llama-gqa-f32", "opt-mha-f32"):
            test_policies(t, folder, name)
        test_follow(t, folder)
    test_near_ties(t)
    t.finish()


if __name__ == "__main__":
    main()
