"""Every model family's forward pass in numpy, f64, for evict_ref.py: embed, q k v, the rest of a layer, logits.

Written from the families' published definitions (tests/goldens/README.md names the library that the numbers are held to), not
from the C: a table of what differs, by model_type, and one class that reads it.
"""

import json
import math
import os

import numpy as np

from evict_ref import rope_frequencies, safetensors_read, softmax

ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + ERF(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}
ACTS["gelu_pytorch_tanh"] = ACTS["gelu_new"]
GEMMA4 = "gemma4_text"
HUNYUAN = ("hunyuan_v1_dense", "hunyuan_v1_moe")
LATENT = ("deepseek_v3", "glm4_moe_lite", "deepseek_v2", "mistral4")  # attention
LOGISTIC = ("glm4_moe", "solar_open", "dots1", "minimax_m2", "deepseek_v3", "glm4_moe_lite")  # of routers
NOT_NORMED = ("qwen2_moe", "qwen3_moe", "glm4_moe", "solar_open", "dots1", "olmoe", *LATENT)  # unless norm_topk_prob
CHOICE_BIASES = ("mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias",
                 "mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias")
SLOPES = {True: 1 / 10, False: 1 / 20}  # of logistics and of a softmax by logits, as goldens/routes.py has them


APERTUS_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}
OF_BRANCHES = ("olmo2", "olmo3", "exaone4")  # norms only of what attention and MLP add


def cut(x, sizes):
    return np.split(x, np.cumsum(sizes)[:-1], axis=-1)


class Family:
    """hidden states [n, dim]; q, k, v [n, heads, head_dim]."""

    def __init__(self, config, tensors):
        if config["model_type"] == "apertus" and not config.get("rope_scaling") and not config.get("rope_parameters"):
            config = {**config, "rope_theta": 12e6, "rope_scaling": APERTUS_ROPE}
        self.c, self.w, self.kind = config, tensors, config["model_type"]
        c = config
        self.dim = c.get("hidden_size", c.get("n_embd"))
        self.heads = c.get("num_attention_heads", c.get("n_head"))
        self.kv_heads = c.get("num_key_value_heads", self.heads)
        self.head_dim = c.get("head_dim") or self.dim // self.heads
        self.layers = c.get("num_hidden_layers", c.get("n_layer"))
        self.eps = c.get("rms_norm_eps", c.get("layer_norm_eps", c.get("layer_norm_epsilon", 1e-5)))
        scalar = c.get("query_pre_attn_scalar", 256 if self.kind == "gemma2" else self.head_dim)
        self.scale = c.get("attention_multiplier", scalar**-0.5)
        self.softcap, self.logit_cap = (c.get(f"{of}_logit_softcapping", default if self.kind == "gemma2" else None)
                                        for of, default in (("attn", 50.0), ("final", 30.0)))
        act = c.get("hidden_activation") or c.get("hidden_act") or c.get("activation_function", "gelu_new")
        self.act = ACTS.get("gelu_new" if self.kind == "gemma" else act)  # xIELU has numbers of each layer
        self.plus = 1.0 if self.kind.startswith("gemma") and self.kind != GEMMA4 else 0.0
        self.lent = {}  # K and V of the tokens at hand, by kind of layer
        self.route_gap = math.inf  # the least lead of a chosen expert over the rest, of all tokens so far
        if self.kind in LATENT:
            self.kv_heads, self.head_dim = 1, c["qk_rope_head_dim"] + c["kv_lora_rank"]
            self.scale = (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) ** -0.5
        if self.kind == GEMMA4:
            self.scale = 1.0
        self.set_rope()
        self.names()

    # ---- positions

    def set_rope(self):
        c = self.c
        rope = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
        rope = dict(rope.get("full_attention", rope))
        usual = 1e6 if self.kind == GEMMA4 else c.get("rotary_emb_base", 10000.0)
        rope.setdefault("rope_theta", c.get("rope_theta", usual))
        partial = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", c.get("rotary_pct")))
        if "rotary_dim" in c:
            partial = c["rotary_dim"] / self.head_dim
        partial = {GEMMA4: 0.25, "gpt_neox": 0.25, "stablelm": 0.25, "glm4_moe": 0.5}.get(self.kind, 1.0) if partial is None else partial
        kind = rope.get("rope_type", rope.get("type", "default"))
        self.turned = self.c["qk_rope_head_dim"] if self.kind in LATENT else int(self.head_dim * partial)
        stretch = rope.get("alpha", 1) ** (self.turned / (self.turned - 2))
        base = (rope["rope_theta"] * stretch) ** (np.arange(0, self.turned, 2) / self.turned)
        self.freq, self.long_freq, self.rope_scale, self.long_from = 1 / base, None, 1.0, math.inf
        usual = c.get("rope_local_base_freq", 5e5 if self.kind == "olmo3" else 1e4)
        local = (c.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta", usual)
        self.local_freq = local ** -(np.arange(0, self.turned, 2) / self.turned)
        if self.kind == GEMMA4:  # of the wider heads of layers without a window some pairs stand still
            wide = c.get("global_head_dim", 512)
            self.freq = rope["rope_theta"] ** -(np.arange(0, wide, 2) / wide)
            self.freq[int(partial * wide // 2) :] = 0
            self.local_freq = local ** -(np.arange(0, self.head_dim, 2) / self.head_dim)
        if kind == "linear":
            self.freq = self.freq / rope["factor"]
        if kind == "llama3":
            self.freq = rope_frequencies({**c, "head_dim": self.head_dim})
        if kind == "yarn":
            self.yarn(rope, base)
        if kind == "longrope":
            original = c["original_max_position_embeddings"]
            ratio = c["max_position_embeddings"] / original
            self.freq, self.long_freq = (1 / (np.array(rope[w + "_factor"]) * base) for w in ("short", "long"))
            scale = math.sqrt(1 + math.log(ratio) / math.log(original))
            self.rope_scale, self.long_scale = (rope.get(f"{w}_mscale", scale) for w in ("short", "long"))
            self.long_from = original

    def yarn(self, rope, base):
        factor, original = rope["factor"], rope["original_max_position_embeddings"]

        def pair(turns):
            return self.turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

        low, high = pair(rope.get("beta_fast", 32)), pair(rope.get("beta_slow", 1))
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.turned - 1)
        ramp = np.clip((np.arange(self.turned // 2) - low) / max(high - low, 1e-3), 0, 1)
        self.freq = ramp / (factor * base) + (1 - ramp) / base
        grown = 0.1 * math.log(factor)
        if self.kind in LATENT:
            self.scale *= (rope.get("mscale_all_dim", 0) * grown + 1) ** 2
        self.rope_scale = grown + 1
        if "mscale" in rope and "mscale_all_dim" in rope:
            self.rope_scale = (rope["mscale"] * grown + 1) / (rope["mscale_all_dim"] * grown + 1)
        self.rope_scale = rope.get("attention_factor", self.rope_scale)

    def is_local(self, layer):
        if self.kind == GEMMA4 and layer == self.layers - 1:  # whatever is listed
            return False
        every = {"gemma2": 2, "gemma3_text": 6, GEMMA4: 6, "olmo3": 4, "exaone4": 4, "cohere2": 4}.get(self.kind)
        if every is None:
            return False
        types, every = self.c.get("layer_types"), self.c.get("sliding_window_pattern", every)
        return types[layer] == "sliding_attention" if types else (layer + 1) % every != 0

    def has_window(self, layer):
        c = self.c
        if self.kind == "gpt_oss":
            types = c.get("layer_types")
            return types[layer] == "sliding_attention" if types else layer % 2 == 0
        if self.kind in ("mistral", "ministral3", "mixtral", "phi3", "phimoe") or self.is_local(layer):
            return True
        if self.kind == "smollm3":
            return c.get("use_sliding_window") and not self.turns(layer)
        if self.kind == "qwen2_moe" and not c.get("layer_types"):
            return c.get("use_sliding_window") and layer % 2 == 0 and layer < c.get("max_window_layers", 28)
        if self.kind == "dots1":
            return layer >= c.get("max_window_layers", 62)
        if self.kind not in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
            return False
        return c.get("use_sliding_window") and (self.kind == "qwen3_moe" or layer >= c.get("max_window_layers", 28))

    def window(self, layer):
        """Tokens that a query sees, itself included; None: all."""
        c, used = self.c, self.has_window(layer)
        window = c.get("sliding_window", 4096 if self.kind == "gemma2" else None) if used else None
        return None if window is None or window >= c["max_position_embeddings"] else window

    def turns(self, layer):
        c = self.c
        if self.kind == "gpt2":
            return False
        if self.kind == "smollm3":
            listed = c.get("no_rope_layers")
            return listed[layer] == 1 if listed else (layer + 1) % c.get("no_rope_layer_interval", 4) != 0
        if self.kind == "exaone4":
            return c["sliding_window"] is None or self.is_local(layer)
        return self.kind != "cohere2" or self.is_local(layer)

    def rotate(self, x, pos, layer, n_tokens):
        if not self.turns(layer):
            return x
        freq = self.long_freq if n_tokens > self.long_from else self.freq
        scale = self.long_scale if n_tokens > self.long_from else self.rope_scale
        if self.kind in ("gemma3_text", GEMMA4, "olmo3") and self.is_local(layer):
            freq, scale = self.local_freq, 1.0
        angle = np.outer(pos, freq)[:, None]
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        if self.kind.startswith(("cohere", "ernie")):  # neighbours turn
            a, b = x[..., ::2], x[..., 1::2]
            return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
        a, b, rest = cut(x, (self.turned // 2, self.turned // 2, x.shape[-1] - self.turned))
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def grown(self, q, pos):
        """Queries of ministral3 by their positions."""
        rope = self.c.get("rope_parameters") or self.c.get("rope_scaling") or {}
        if self.kind not in ("ministral3", "mistral4"):
            return q
        steps = np.asarray(pos) // rope["original_max_position_embeddings"]
        return q * (1 + rope["llama_4_scaling_beta"] * np.log(1 + steps))[:, None, None]

    def sinks(self, layer):
        """Of every query head a logit without a value, or None."""
        return self.w.get(self.p.format(layer) + "self_attn.sinks")

    # ---- pieces

    def names(self):
        kind = self.kind
        self.p = {"gpt_neox": "gpt_neox.layers.{}.", "gpt2": "transformer.h.{}."}.get(kind, "model.layers.{}.")
        self.embedding = {"gpt_neox": "gpt_neox.embed_in", "gpt2": "transformer.wte"}.get(kind, "model.embed_tokens")
        self.last_norm = {"gpt_neox": "gpt_neox.final_layer_norm", "gpt2": "transformer.ln_f"}.get(kind, "model.norm")
        own = {"gpt2": ("ln_1", "ln_2"), "apertus": ("attention_layernorm", "feedforward_layernorm")}
        self.norm1, self.norm2 = own.get(kind, ("input_layernorm", "post_attention_layernorm"))
        self.o = {"gpt_neox": "attention.dense", "gpt2": "attn.c_proj"}.get(kind, "self_attn.o_proj")

    def linear(self, name, x):
        w = self.w[name + ".weight"]
        y = x @ (w if self.kind == "gpt2" else w.T)
        bias = self.w.get(name + ".bias")
        return y if bias is None else y + bias

    def layer_norm(self, x, weight, bias=0.0):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight + bias

    def rms_norm(self, x, weight, eps=None):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + (eps or self.eps)) * weight

    def norm(self, name, x):
        weight = self.w[name + ".weight"]
        if self.kind.startswith("cohere"):
            return self.layer_norm(x, weight)
        if self.kind in ("gpt_neox", "gpt2", "stablelm", "phimoe"):
            return self.layer_norm(x, weight, self.w[name + ".bias"])
        return self.rms_norm(x, weight + self.plus)

    def embed(self, ids, pos):
        x = self.w[self.embedding + ".weight"][ids]
        if self.c.get("hidden_size_per_layer_input"):
            self.inputs = self.layer_inputs(ids, x * math.sqrt(self.dim))
        if self.kind == "gpt2":
            x = x + self.w["transformer.wpe.weight"][np.asarray(pos)]
        return x * (math.sqrt(self.dim) if self.kind.startswith("gemma") else self.c.get("embedding_multiplier", 1))

    def layer_inputs(self, ids, x):
        """Of gemma4's small models, [token, layer, number]: a row of the token, and what a matrix makes of its embedding."""
        at, size = self.embedding.removesuffix("embed_tokens"), self.c["hidden_size_per_layer_input"]
        own = self.w[at + "embed_tokens_per_layer.weight"][ids].reshape(len(x), -1, size) * math.sqrt(size)
        made = (self.linear(at + "per_layer_model_projection", x) / math.sqrt(self.dim)).reshape(own.shape)
        return (own + self.norm(at + "per_layer_projection_norm", made)) / math.sqrt(2)

    # ---- a layer

    def projections(self, p, x):
        if self.kind in LATENT:
            return self.latent(p, x)
        n, q, kv = len(x), self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.kind == "gpt_neox":
            parts = self.linear(p + "attention.query_key_value", x).reshape(n, self.heads, 3 * self.head_dim)
            return cut(parts, [self.head_dim] * 3)
        fused = {"gpt2": "attn.c_attn", "phi3": "self_attn.qkv_proj"}.get(self.kind)
        if fused:
            parts = cut(self.linear(p + fused, x), (q, kv, kv))
        else:
            tied = f"{p}self_attn.v_proj.weight" not in self.w  # values are keys as they are here
            parts = [self.linear(f"{p}self_attn.{name}_proj", x) for name in ("qkk" if tied else "qkv")]
        if self.kind == GEMMA4:
            parts[2] = self.rms_norm(parts[2].reshape(n, -1, self.head_dim), 1.0)
        if self.kind in ("olmo2", "olmo3", "olmoe", "minimax_m2"):
            parts[:2] = [self.rms_norm(y, self.w[f"{p}self_attn.{name}_norm.weight"]) for name, y in zip("qk", parts)]
        return [y.reshape(n, -1, self.head_dim) for y in parts]

    def qk_norms(self, p, x, name):
        if self.kind == "cohere" and self.c.get("use_qk_norm"):
            return self.layer_norm(x, self.w[f"{p}self_attn.{name}_norm.weight"])
        if self.kind in ("qwen3", "qwen3_moe", "gemma3_text", GEMMA4, "exaone4", "apertus", "dots1") or self.c.get("use_qk_norm"):
            return self.rms_norm(x, self.w[f"{p}self_attn.{name}_norm.weight"] + self.plus)
        if self.kind == "stablelm" and self.c.get("qk_layernorm"):
            weights = [self.w[f"{p}self_attn.{name}_layernorm.norms.{h}.weight"] for h in range(x.shape[1])]
            return self.layer_norm(x, np.stack(weights))
        return x

    # ---- latent attention: one KV head of the shared rotated numbers, then the latent; values are keys

    def of_heads(self, p):
        """Of every head the rows that make its keys, and its values, of the latent."""
        c = self.c
        w = self.w[p + "self_attn.kv_b_proj.weight"].reshape(self.heads, -1, c["kv_lora_rank"])
        return np.split(w, [c["qk_nope_head_dim"]], axis=1)

    def latent_norm(self, p, name, x):
        return self.rms_norm(x, self.w[f"{p}self_attn.{name}_layernorm.weight"], 1e-6)

    def latent(self, p, x):
        c, of_keys = self.c, self.of_heads(p)[0]

        def halves(x):
            return np.concatenate([x[..., ::2], x[..., 1::2]], -1) if c.get("rope_interleave", True) else x

        if c["q_lora_rank"] is None:
            q = self.linear(p + "self_attn.q_proj", x)
        else:
            q = self.linear(p + "self_attn.q_b_proj", self.latent_norm(p, "q_a", self.linear(p + "self_attn.q_a_proj", x)))
        own, turned = cut(q.reshape(len(x), self.heads, -1), (c["qk_nope_head_dim"], self.turned))
        latent, shared = cut(self.linear(p + "self_attn.kv_a_proj_with_mqa", x), (c["kv_lora_rank"], self.turned))
        k = np.concatenate([halves(shared), self.latent_norm(p, "kv_a", latent)], -1)[:, None]
        return [np.concatenate([halves(turned), np.einsum("nhk,hkl->nhl", own, of_keys)], -1), k, k]

    def outputs(self, p, attention):
        x = attention.reshape(len(attention), self.heads, -1)[..., self.turned :]
        return np.einsum("nhl,hvl->nhv", x, self.of_heads(p)[1]).reshape(len(attention), -1)

    def set_heads(self, layer):
        """Those of the layer."""
        if self.kind != GEMMA4:
            return
        c, local = self.c, self.is_local(layer)
        self.kv_heads = c.get("num_key_value_heads", 4)
        if not local and c.get("attention_k_eq_v"):
            self.kv_heads = c.get("num_global_key_value_heads") or self.kv_heads
        self.turned = self.head_dim = c.get("head_dim", 256) if local else c.get("global_head_dim", 512)

    def qkv(self, layer, h, pos, n_tokens):
        p = self.p.format(layer)
        self.set_heads(layer)
        x = h if self.kind in OF_BRANCHES else self.norm(p + self.norm1, h)
        if layer >= self.layers - self.c.get("num_kv_shared_layers", 0):  # K and V are those of the last layer of its kind with its own
            q = self.qk_norms(p, self.linear(p + "self_attn.q_proj", x).reshape(len(x), -1, self.head_dim), "q")
            return self.rotate(q, pos, layer, n_tokens), *self.lent[self.is_local(layer)]
        q, k, v = self.projections(p, x)
        if self.kind in HUNYUAN:
            q, k = self.rotate(q, pos, layer, n_tokens), self.rotate(k, pos, layer, n_tokens)
            return *(self.rms_norm(y, self.w[f"{p}self_attn.{name}_layernorm.weight"]) for y, name in ((q, "query"), (k, "key"))), v
        q, k = self.qk_norms(p, q, "q"), self.qk_norms(p, k, "k")
        k = self.rotate(k, pos, layer, n_tokens)
        if self.kind == GEMMA4:
            self.lent[self.is_local(layer)] = k, v
        return self.grown(self.rotate(q, pos, layer, n_tokens), pos), k, v

    def clamped(self, x):
        """Gates and ups of gpt_oss, which stand in turn."""
        limit = self.c.get("swiglu_limit", 7.0)
        gate, up = np.minimum(x[:, ::2], limit), np.clip(x[:, 1::2], -limit, limit)
        return (up + 1) * gate / (1 + np.exp(-1.702 * gate))

    def expert(self, p, e, x):
        both, down = (self.w.get(f"{p}mlp.experts.{name}") for name in ("gate_up_proj", "down_proj"))
        if self.kind == "gpt_oss":
            biases = [self.w[f"{p}mlp.experts.{name}_bias"][e] for name in ("gate_up_proj", "down_proj")]
            return self.clamped(x @ both[e] + biases[0]) @ down[e] + biases[1]
        for moe in (p + "block_sparse_moe.", p + "block_sparse_moe.experts."):  # granitemoe, as published and as computed with
            both = self.w.get(moe + "input_linear.weight", self.w.get(moe + "gate_up_proj", both))
            down = self.w.get(moe + "output_linear.weight", self.w.get(moe + "down_proj", down))
        if both is not None:  # of all experts, gate above up
            gate, up = np.split(x @ both[e].T, 2, axis=-1)
            return self.act(gate) * up @ down[e].T
        own = [p + f"block_sparse_moe.experts.{e}.w{i}" for i in (1, 3, 2)]
        if own[0] + ".weight" not in self.w:
            own = [p + f"mlp.experts.{e}.{name}_proj" for name in ("gate", "up", "down")]
        return self.linear(own[2], self.act(self.linear(own[0], x)) * self.linear(own[1], x))

    def choice(self, p, logits, scores):
        """What experts are chosen by, and how steep that is by logits: logits, or scores with a bias, within groups."""
        bias = next((self.w[p + name] for name in CHOICE_BIASES if p + name in self.w), None)
        best = self.c.get("topk_method") == "group_limited_greedy"  # groups count by their best
        if bias is None and not best:
            return logits, 1
        slope, terms = (1, 1) if best else (SLOPES[self.kind in LOGISTIC], 2)
        key, n, used = logits if best else scores + bias.reshape(-1), self.c.get("n_group", 1), self.c.get("topk_group", 1)
        if n > used:
            sums = np.sort(key.reshape(len(key), n, -1), -1)[..., -terms:].sum(-1)
            self.near(sums, used, logits, terms * slope)
            worst = np.sort(sums, -1)[:, [-used]]
            key = np.where(np.repeat(sums >= worst, key.shape[1] // n, -1), key, key.min(-1, keepdims=True) - 1)
        return key, slope

    def near(self, key, k, logits, slope):
        ranked = -np.sort(-key, -1)
        gap = (ranked[:, k - 1] - ranked[:, k]) / (slope * np.abs(logits).max(-1))
        self.route_gap = min(self.route_gap, gap.min())

    def experts(self, p, router, x):
        """Of each token the experts with the largest logits, or scores with a bias, by their share."""
        logits, k = self.linear(router, x), self.c.get("num_experts_per_tok", self.c.get("moe_k", self.c.get("moe_topk")))
        k = k[0] if isinstance(k, list) else k
        scores = 1 / (1 + np.exp(-logits)) if self.kind in LOGISTIC else softmax(logits)
        key, slope = self.choice(p, logits, scores)
        self.near(key, k, logits, slope)
        chosen = np.argsort(-key, axis=-1, kind="stable")[:, :k]
        share = np.take_along_axis(scores, chosen, -1)
        if self.kind == "phimoe":
            share = self.near_shares(logits, chosen)
        elif self.kind not in NOT_NORMED or (self.c.get("norm_topk_prob") and self.kind != "deepseek_v2"):
            share = share / share.sum(-1, keepdims=True)
        share = share * self.c.get("routed_scaling_factor", 1.0)
        out = np.zeros_like(x)
        for e in range(logits.shape[-1]):
            rows, rank = np.nonzero(chosen == e)
            out[rows] += share[rows, rank, None] * self.expert(p, e, x[rows])
        return out + self.shared(p, x)

    def near_shares(self, logits, chosen):
        """Of each choice its share among the experts near it, without the choices before."""
        rest, out = logits.copy(), []
        for e in chosen.T:
            best = np.take_along_axis(rest, e[:, None], -1)
            near = (best - logits) / np.maximum(np.abs(logits), best) <= 2 * self.c.get("router_jitter_noise", 0.01)
            out.append(1 / np.where(near, np.exp(rest - best), 0).sum(-1))
            np.put_along_axis(rest, e[:, None], -np.inf, -1)
        return np.stack(out, -1)

    def beside(self, p, h):
        """Experts beside the MLP, with norms of their own: gemma4."""
        k, x = self.c["top_k_experts"], self.norm(p + "pre_feedforward_layernorm_2", h)
        logits = self.linear(p + "router.proj", self.rms_norm(h, self.w[p + "router.scale"] * self.dim**-0.5))
        self.near(logits, k, logits, 1)
        chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
        share = softmax(np.take_along_axis(logits, chosen, -1)) * self.w[p + "router.per_expert_scale"][chosen]
        out = np.zeros_like(x)
        for e in range(logits.shape[-1]):
            rows, rank = np.nonzero(chosen == e)
            gate, up = np.split(x[rows] @ self.w[p + "experts.gate_up_proj"][e].T, 2, axis=-1)
            out[rows] += share[rows, rank, None] * (self.act(gate) * up @ self.w[p + "experts.down_proj"][e].T)
        return self.norm(p + "post_feedforward_layernorm_2", out)

    def xielu(self, p, x):
        above, below = (np.log1p(np.exp(self.w[f"{p}mlp.act_fn.alpha_{name}"])) for name in "pn")
        return np.where(x > 0, above * x * x, (0.5 + below) * (np.expm1(np.minimum(x, 0)) - x)) + 0.5 * x

    def gated(self, p, x):
        return self.linear(p + "down_proj", self.act(self.linear(p + "gate_proj", x)) * self.linear(p + "up_proj", x))

    def shared(self, p, x):
        """The expert of all tokens, if there is one, by its own logistic."""
        if p + "shared_mlp.input_linear.weight" in self.w:  # granitemoe: gate above up, without a logistic
            gate, up = np.split(self.linear(p + "shared_mlp.input_linear", x), 2, axis=-1)
            return self.linear(p + "shared_mlp.output_linear", self.act(gate) * up)
        for name in ("mlp.shared_experts.", "mlp.shared_mlp."):
            if f"{p}{name}up_proj.weight" in self.w:
                return self.gated(p + name, x)
        if p + "mlp.shared_expert_gate.weight" not in self.w:
            return 0
        return self.gated(p + "mlp.shared_expert.", x) / (1 + np.exp(-self.linear(p + "mlp.shared_expert_gate", x)))

    def mlp(self, p, x):
        for router in ("block_sparse_moe.gate", "block_sparse_moe.router.layer", "block_sparse_moe.router", "mlp.gate", "mlp.gate.wg",
                       "mlp.router"):
            if f"{p}{router}.weight" in self.w:
                return self.experts(p, p + router, x)
        if self.kind == "gpt_neox":
            return self.linear(p + "mlp.dense_4h_to_h", self.act(self.linear(p + "mlp.dense_h_to_4h", x)))
        if self.kind == "apertus":
            return self.linear(p + "mlp.down_proj", self.xielu(p, self.linear(p + "mlp.up_proj", x)))
        if self.kind == "gpt2":
            return self.linear(p + "mlp.c_proj", self.act(self.linear(p + "mlp.c_fc", x)))
        if self.kind == "phi3":
            gate, up = np.split(self.linear(p + "mlp.gate_up_proj", x), 2, axis=-1)
            return self.linear(p + "mlp.down_proj", self.act(gate) * up)
        return self.gated(p + "mlp.", x)

    def after(self, layer, h, attention):
        p, kind = self.p.format(layer), self.kind
        a = self.linear(p + self.o, self.outputs(p, attention) if kind in LATENT else attention)
        if kind == GEMMA4:
            h = h + self.norm(p + "post_attention_layernorm", a)
            x = self.gated(p + "mlp.", self.norm(p + "pre_feedforward_layernorm", h))
            if self.c.get("enable_moe_block"):
                x = self.norm(p + "post_feedforward_layernorm_1", x) + self.beside(p, h)
            h = h + self.norm(p + "post_feedforward_layernorm", x)
            if self.c.get("hidden_size_per_layer_input"):
                x = self.act(self.linear(p + "per_layer_input_gate", h)) * self.inputs[:, layer]
                h = h + self.norm(p + "post_per_layer_input_norm", self.linear(p + "per_layer_projection", x))
            return h * self.w[p + "layer_scalar"]
        if kind in ("gemma2", "gemma3_text"):
            h = h + self.norm(p + "post_attention_layernorm", a)
            x = self.mlp(p, self.norm(p + "pre_feedforward_layernorm", h))
            return h + self.norm(p + "post_feedforward_layernorm", x)
        if kind in OF_BRANCHES:
            h = h + self.norm(p + "post_attention_layernorm", a)
            return h + self.norm(p + "post_feedforward_layernorm", self.mlp(p, h))
        if kind.startswith("cohere"):
            return h + a + self.mlp(p, self.norm(p + self.norm1, h))
        if kind in ("gpt_neox", "stablelm") and self.c.get("use_parallel_residual", kind == "gpt_neox"):
            return h + a + self.mlp(p, self.norm(p + (self.norm1 if kind == "stablelm" else self.norm2), h))
        scale = self.c.get("residual_multiplier", 1.0)
        h = h + scale * a
        return h + scale * self.mlp(p, self.norm(p + self.norm2, h))

    def logits(self, h):
        tied = self.c.get("tie_word_embeddings", self.kind == "gpt2")
        head = self.w[self.embedding + ".weight"] if tied else self.w.get("lm_head.weight", self.w.get("embed_out.weight"))
        scale = self.c.get("logit_scale", 0.0625) if self.kind.startswith("cohere") else 1 / self.c.get("logits_scaling", 1.0)
        logits = self.norm(self.last_norm, h) @ head.T * scale + self.w.get("lm_head.bias", 0)
        return logits if self.logit_cap is None else self.logit_cap * np.tanh(logits / self.logit_cap)


def mxfp4_unpack(tensors):
    """Bytes of two numbers each, the even one low, and a power of two for every 32, as matrices [expert, in, out]."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for name in [n for n in tensors if n.endswith("_blocks")]:
        blocks, scales = tensors.pop(name), tensors.pop(name.replace("_blocks", "_scales"))
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
        x = values[codes & 7] * np.where(codes & 8, -1, 1) * 2.0 ** (scales.astype(int) - 127)[..., None]
        tensors[name.replace("_blocks", "")] = x.reshape(*x.shape[:2], -1).swapaxes(1, 2)
    return tensors


def text_model(config, tensors):
    """Of a model that has a vision tower too: what its file leaves out is as in the smallest of them."""
    if "text_config" not in config:
        return config, tensors
    starts = ("language_model.model.", "model.language_model.", "language_model.", "")
    if config["model_type"] == "mistral3":
        names = {name: next(s for s in starts if name.startswith(s)) for name in tensors}
        heads = {"language_model.": "", "": ""}
        return config["text_config"], {heads.get(s, "model.") + name[len(s) :]: tensors[name] for name, s in names.items()}
    usual = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
             "rope_theta": 1e6, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    texts = {name: next((s for s in starts[:2] if name.startswith(s)), None) for name in tensors}
    return {**usual, **config["text_config"]}, {"model." + name[len(s) :]: tensors[name] for name, s in texts.items() if s}


def model_open(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        return Family(*text_model(json.load(f), mxfp4_unpack(safetensors_read(folder))))
