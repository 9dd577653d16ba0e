"""Faults of eviction policies: score modes, patterns, defaults. See mutants.py."""
from mutant_fault import fault

SIMT_ATTEND = "simt_attend_test"
ATTEND_CU, EVICT_CU, PREFILL_CU = "kernels/cuda/attend.cu", "kernels/cuda/attend_evict.cu", "kernels/cuda/prefill.cu"
SCORE_H, GOLDEN = "policy/evict_score.h", "evict_golden.py"
fault("decode forgets nothing", SCORE_H, "return fmaf(score, s->keep, weight);", "return score + weight;", "evict_test")
fault("a prompt's last query has decayed", SCORE_H, "int after = n_prompt - 1 - query;", "int after = n_prompt - query;", "evict_test")
fault("one query too many counts", SCORE_H, "return n_prompt > s->last ? n_prompt - s->last : 0;",
      "return n_prompt > s->last ? n_prompt - s->last - 1 : 0;", "evict_test")
fault("a pool is a neighbour short", SCORE_H, "for (int i = first; i <= last; i++)", "for (int i = first; i < last; i++)",
      "evict_test")
fault("more than the mean is asked of a hit", SCORE_H, ">= (float)group", "> (float)group", "evict_test")
fault("frozen scores go on", "policy/evict.h", "evict_prompt_scores(policy) && !evict_score_of(policy).frozen;",
      "evict_prompt_scores(policy);", GOLDEN)
fault("a pattern's stride does not fit", "policy/evict_strided.h", "(pos & evict_stride_mask(newest / n_slots))",
      "(pos & evict_stride_mask(newest / n_slots) / 2)", "evict_test")
fault("a default count does not give way to the budget", "policy/evict.c", "return recent < rest ? (int)recent : rest;",
      "return (int)recent;", "evict_test")
fault("a policy's scope is always head", "engine/app/run_setup.c", "e->scope = evict_policy_scope(e->policy);",
      "e->scope = EVICT_SCOPE_HEAD;", GOLDEN)
fault("a prompt's slots keep scores that are not pooled", "kernels/cpu/slots.c",
      "kv->slot_score[meta] = kept_score(a, &mode, s, head, pos);",
      "kv->slot_score[meta] = a->scores ? a->scores[head * round_up(a->n_prompt, 32) + pos] : 0.0f * mode.keep;", "attend_test")
fault("a key's norm is of the wrong token", "kernels/cpu/attend_forced_evict.inc",
      "a->k + token * a->k_stride + (int64_t)(u->head + h)", "a->k + u->span->token * a->k_stride + (int64_t)(u->head + h)",
      "attend_test")
fault("queries of a prompt all count alike in f32", "kernels/cpu/attend_prompt.inc",
      "        inverse[r] *= row_worth(u, first + r);\n", "        (void)row_worth(u, first + r);\n", "attend_test")
fault("queries of a prompt all count alike in bf16", "kernels/cpu/attend_prompt_bf16.inc",
      "inverse[r] * row_worth(u, first + r)", "inverse[r] + 0 * row_worth(u, first + r)", "prompt_test")
fault("a tile's bits come in one too low", "kernels/cpu/attend_prompt.inc",
      "evict_hits_shift(scores[i], end - query,", "evict_hits_shift(scores[i], end - query - 1,", "attend_test")
fault("tiles without a query that counts are the only ones", "kernels/cpu/attend_prompt.inc",
      "u->tile >= prompt_first_tile(u->args, u->span)", "u->tile > prompt_first_tile(u->args, u->span)", "attend_test")

# ---- on the device

fault("attend_evict.cu: bits are added up over heads", EVICT_CU, "score = score + evict_score_value(&f.score, own);",
      "score = score + own;", SIMT_ATTEND)
fault("prefill.cu: bits of a group's first head", PREFILL_CU, "(row0 + r + 1) % group != 0", "(row0 + r) % group != 0",
      SIMT_ATTEND)
fault("prefill.cu: queries count alike", PREFILL_CU, "f.inverse[i] * evict_query_worth(&mode, query, s.n_prompt);",
      "f.inverse[i];", SIMT_ATTEND)
fault("attend.cu: a key's norm leaves a lane out", ATTEND_CU, "            square = fmaf(k[d], k[d], square);",
      "            square = d == 15 ? square : fmaf(k[d], k[d], square);", SIMT_ATTEND)
fault("slots.cu: no key is looked at", "kernels/cuda/slots.cu", "if (mode->source != EVICT_KEYS)", "if (mode->source)",
      SIMT_ATTEND)
