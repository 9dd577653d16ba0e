"""Rows whose tokens no router sends near a tie, where rounding would choose other experts.

A gap is what the last logit that is chosen leads the first that is not, over the largest of the token's logits, the smallest of
all layers; of routers that choose by scores, it is what it would take of logits. Attention is causal, so a token that is replaced leaves the gaps before it as they are.
"""

import copy

import torch
from transformers import DynamicCache

import families
import tiny
from make import rope_refresh

TRIES = 12  # of a token at once
SLOPES = {"logistic": 1 / 10, "softmax": 1 / 20}  # of scores by logits
LEAST = 0.1  # of tokens that are drawn: bf16 moves logits by less, nearly always
LEAST_OWN = 0.05  # of the model's own continuation of a row, which is scored in bf16 too
LEAST_GREEDY = 1e-3  # of generated tokens, which are compared in f32 only
OWN = 8  # tokens of that continuation: longer ones without a near-tie are hard to find


def is_gemma4(module):
    return type(module).__name__ == "Gemma4TextRouter"  # gives probabilities, not logits


def logits_of(router, x):
    return router.proj(router.norm(x) * router.scale * router.scalar_root_size)


def keys(router, args, logits):
    """What experts are chosen by, logits or scores with a bias, and how steep that is, on the average, by logits."""
    statics = getattr(router, "moe_statics", None)
    bias = statics.e_score_correction_bias[0] if statics else getattr(router, "e_score_correction_bias", args[1] if args[1:] else None)
    if bias is None:
        return logits, 1
    return (logits.softmax(-1) + bias, SLOPES["softmax"]) if statics else (logits.sigmoid() + bias, SLOPES["logistic"])


def lead(router, args, logits):
    """The gap of experts, and of groups of experts by the sums of two, whichever is smaller."""
    key, slope = keys(router, args, logits)

    def of(x, k, terms=1):
        top = x.topk(k + 1, -1).values
        return (top[:, -2] - top[:, -1]) / (terms * slope * logits.abs().amax(-1))

    top_k = router.config.top_k_experts if is_gemma4(router) else router.top_k
    n, used = getattr(router, "num_group", 1), getattr(router, "topk_group", 1)
    if n == used or getattr(router, "topk_method", None) == "greedy":  # then nothing reads the groups
        return of(key, top_k)
    terms = 1 if getattr(router, "topk_method", None) else 2  # deepseek_v2's groups count by their best
    sums = key.view(len(key), n, -1).topk(terms).values.sum(-1)
    inside = torch.zeros_like(sums).scatter_(1, sums.topk(used).indices, 1).repeat_interleave(key.shape[1] // n, 1)
    return torch.minimum(of(sums, used, terms), of(torch.where(inside > 0, key, key.amin(-1, True) - 1), top_k))


@torch.no_grad()
def routed(model, ids, state=None):
    """ids [row, token], behind the tokens of `state`, which they join: gaps [row, token], the experts that are chosen
    [layer, row, token, k], ascending, and the next token of each row."""
    near, chosen, hooks = [], [], []

    def see(router, args, out):
        logits = logits_of(router, args[0]) if is_gemma4(router) else out[0]
        near.append(lead(router, args, logits.double()).view(ids.shape))
        chosen.append(out[2].sort(-1).values.view(*ids.shape, -1))

    for m in model.modules():
        if type(m).__name__.lower().endswith(("topkrouter", "moev1gate")) or is_gemma4(m):
            hooks.append(m.register_forward_hook(see))
    logits = model(ids, past_key_values=state, use_cache=state is not None).logits
    for h in hooks:
        h.remove()
    return torch.stack(near).amin(0), torch.stack(chosen), logits[:, -1].argmax(-1)


def gaps(model, ids):
    return routed(model, torch.tensor([ids]))[0][0].tolist()


def repeated(state, n):
    out = copy.deepcopy(state)
    for layer in out.layers if out.get_seq_length() else ():
        if hasattr(layer, "batch_repeat_interleave"):
            layer.batch_repeat_interleave(n)
            continue
        for states in (layer.conv_states, layer.recurrent_states):  # of a row state
            states.update({i: x.repeat_interleave(n, 0) for i, x in states.items()})
    return out


class Draw:
    """Draws tokens for a model that bf16, too, sends to the same experts."""

    def __init__(self, spec, model):
        self.r, self.model, self.half = tiny.rng(spec, "rows"), model, copy.deepcopy(model).to(torch.bfloat16)
        rope_refresh(self.half)

    def tries(self):
        return torch.tensor(self.r.randint(3, families.VOCAB, (TRIES, 1)))

    def differs(self, ids):
        """The first token for which bf16 chooses other experts, or None."""
        one, other = (routed(m, torch.tensor([ids]))[1] for m in (self.model, self.half))
        at = (one != other).any(-1).any(0)[0].nonzero()
        return int(at[0]) if len(at) else None

    def tokens(self, n, before=()):
        """n tokens behind `before`."""
        ids, state, total = list(before), DynamicCache(config=self.model.config), len(before) + n
        while True:
            if state.get_seq_length() < len(ids):
                routed(self.model, torch.tensor([ids[state.get_seq_length() :]]), state)
            while len(ids) < total:
                tries = self.tries()
                good = (routed(self.model, tries, repeated(state, TRIES))[0][:, 0] >= LEAST).nonzero()
                if len(good):
                    ids.append(int(tries[good[0]]))
                    routed(self.model, torch.tensor([ids[-1:]]), state)
            at = self.differs(ids)
            if at is None or at < len(before):
                return ids[len(before) :]
            ids, state = ids[:at], DynamicCache(config=self.model.config)

    def prompt(self, n, m, least):
        """A prompt of n tokens whose m greedy ones are no near-ties either, and these."""
        start, state = self.tokens(n - 1), DynamicCache(config=self.model.config)
        routed(self.model, torch.tensor([start]), state)
        while True:
            last, rows = self.tries(), repeated(state, TRIES)
            near, _, token = routed(self.model, last, rows)
            ok, own = near[:, 0] >= LEAST, []
            for _ in range(m):
                own.append(token)
                near, _, token = routed(self.model, token[:, None], rows)
                ok &= near[:, 0] >= least
            for i in ok.nonzero()[:, 0].tolist():
                prompt, greedy = start + last[i].tolist(), [int(t[i]) for t in own]
                if least < LEAST_OWN or self.differs(prompt + greedy) is None:
                    return prompt, greedy

    def row(self, n, m, own):
        context, continuation = self.prompt(n, OWN, LEAST_OWN) if own else (self.tokens(n), None)
        return {"context_ids": context, "continuation_ids": continuation or self.tokens(m, context)}


def rows_of(spec, model, lengths, prompts, new):
    draw = Draw(spec, model)
    rows = [draw.row(n, m, i == 1) for i, (n, m) in enumerate(lengths)]
    return rows, [draw.prompt(n, new, LEAST_GREEDY)[0] for n in prompts]


def check(model, rows, generated, prompts):
    """The smallest gap of scored rows, as these weights route them; that of prompts with what they generate is enough too."""
    scored = min(min(gaps(model, r["context_ids"] + r["continuation_ids"])) for r in rows)
    near = min((min(gaps(model, p + g["ids"])) for p, g in zip(prompts, generated)), default=1)
    assert scored > LEAST_OWN / 10 and near >= LEAST_GREEDY / 2, f"routers near a tie: {scored}, {near}"
    return round(scored, 4)
