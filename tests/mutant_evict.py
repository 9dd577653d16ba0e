"""Faults of eviction policies: score modes, patterns, defaults. See mutants.py."""
from mutant_fault import fault

SIMT_ATTEND = "simt_attend_test"
ATTEND_CU, EVICT_CU, PREFILL_CU = "kernels/cuda/attend.cu", "kernels/cuda/attend_evict.cu", "kernels/cuda/prefill.cu"
JOIN_CU, ATTEND_CUH = "kernels/cuda/attend_join.cu", "kernels/cuda/attend.cuh"
RULE_H, EVICT_H, GOLDEN = "policy/evict_rule.h", "policy/evict.h", "evict_golden.py"
EVICT_INC = "kernels/cpu/attend_forced_evict.inc"
fault("decode forgets nothing", EVICT_H, "return fmaf(score, r->keep, weight);", "return score + weight;", "evict_test")
fault("one query too many counts", RULE_H, "return n_prompt > r->last ? n_prompt - r->last : 0;",
      "return n_prompt > r->last ? n_prompt - r->last - 1 : 0;", "evict_test")
fault("a pool is a neighbour short", RULE_H, "i <= pos + r->pool && i < n_prompt; i++)", "i < pos + r->pool && i < n_prompt; i++)",
      "evict_test")
fault("more than the mean is asked of a hit", "policy/evict_scissorhands.h", ">= (float)group", "> (float)group", "evict_test")
fault("a tile's bits come in one too low", "kernels/cpu/attend_prompt.inc",
      "evict_scissorhands_join(scores[i], columns[i], end - query);", "evict_scissorhands_join(scores[i], columns[i], end - query - 1);", "attend_test")
fault("a trait does not count", EVICT_H, "return r->trait ? score * trait : score;", "return r->trait ? score + 0 * trait : score;", "evict_test", GOLDEN)
fault("a prompt's last query has decayed", RULE_H, "int after = n_prompt - 1 - query;", "int after = n_prompt - query;", "evict_test")
fault("frozen scores go on", "policy/evict.h", "evict_prompt_scores(policy) && !evict_rule_of(policy).frozen;",
      "evict_prompt_scores(policy);", GOLDEN)
fault("a pattern's stride does not fit", "policy/evict_strided.h", "(pos & evict_stride_mask(newest / n_slots))",
      "(pos & evict_stride_mask(newest / n_slots) / 2)", "evict_test")
fault("a default count does not give way to the budget", "policy/evict.c", "return recent < rest ? (int)recent : rest;",
      "return (int)recent;", "evict_test")
fault("a policy's scope is always head", "engine/api/run_setup.c", "e->scope = evict_rule_of(e->policy).scope;",
      "e->scope = EVICT_SCOPE_HEAD;", GOLDEN)
fault("a prompt protects what decode does", "policy/evict.h", "    if (rule.frozen && limits.recent > least)\n        limits.recent = least;\n",
      "    (void)least;\n", GOLDEN)
fault("a ring's tokens may go with the prompt", "policy/evict.h", "const int least = rule.last > ring_slots ? rule.last : ring_slots;",
      "const int least = rule.last;\n    (void)ring_slots;", "attend_test")
fault("queries of a prompt all count alike in f32", "kernels/cpu/attend_prompt.inc",
      "        inverse[r] *= row_worth(u, first + r);\n", "        (void)row_worth(u, first + r);\n", "attend_test")
fault("queries of a prompt all count alike in bf16", "kernels/cpu/attend_prompt_bf16.inc",
      "inverse[r] * row_worth(u, first + r)", "inverse[r] + 0 * row_worth(u, first + r)", "prompt_test")
fault("tiles without a query that counts are the only ones", "kernels/cpu/attend_prompt.inc",
      "u->tile >= prompt_first_tile(u->args, u->span)", "u->tile > prompt_first_tile(u->args, u->span)", "attend_test")

fault("a prompt's slots keep scores that are not pooled", "kernels/cpu/slots.c",
      "kv->slot_score[meta] = prompt_kept_score(a, &mode, head, pos);",
      "kv->slot_score[meta] = a->scores ? a->scores[head * round_up(a->n_prompt, 32) + pos] : 0.0f * mode.keep;", "attend_test")

# ---- who is not seen

SPLIT_INC = "kernels/cpu/attend_forced_split.inc"
fault("the gap is a position too old", "policy/evict.h", "return gap ? now - row->recent : -1;", "return gap ? now - row->recent - 1 : -1;",
      "evict_test")
fault("the gap is there before anything is gone", "policy/evict.h", "row->recent > 0 && now > row->budget;", "row->recent > 0 && now >= row->recent;",
      "evict_test", GOLDEN)
fault("who is hidden is seen where nobody is masked", SPLIT_INC, "return u->n_live != u->n_slots + u->n_ring || u->hidden >= 0;",
      "return u->n_live != u->n_slots + u->n_ring;", "attend_test")
fault("a span's tokens all miss who the first one does", SPLIT_INC, "u->hidden = evict_hidden(&u->score, &s->limits, s->pos + i);",
      "u->hidden = evict_hidden(&u->score, &s->limits, s->pos + 0 * i);", "attend_test")
fault("shared splits see who is hidden", "kernels/cpu/attend_forced.inc", "    u.hidden = evict_hidden(&u.score, &s->limits, s->pos);\n",
      "    u.hidden = -1;\n", "attend_test")
fault("the exact reference sees who is hidden", "kernels/ref/slots.c", "(hidden < 0 || kv->slot_pos[at->meta] != hidden)",
      "(hidden < 0 || kv->slot_pos[at->meta] >= 0)", "attend_test")
fault("attend.cu: who is hidden in the ring is seen", ATTEND_CU, "if (live && t.kv.slot_pos && (in_pages || hidden >= 0)) {",
      "if (live && t.kv.slot_pos && in_pages) {", SIMT_ATTEND)

ROW_H, SLOTS_C, SLOTS_CU = "policy/evict_row.h", "kernels/cpu/slots.c", "kernels/cuda/slots.cu"

# ---- traits

TRAITS = "trait_test"
fault("traits have no place", "engine/line/layer.c", "if (evict_policy_trait(evict->policy))\n", "if (0)\n", GOLDEN)
fault("vectors forget the trait", EVICT_INC, "return u->score.trait ? v16_mul(score, trait) : score;", "return u->score.trait ? score : score;", "attend_test")
fault("a value's codes leave all", "kernels/score.h", "score_codes_left(score_code_error(k, n), score_code_error(v, n));",
      "score_codes_left(score_code_error(k, n), 0 * score_code_error(v, n));", TRAITS)
fault("attend_evict.cu: bits are added up over heads", EVICT_CU, "score = score + evict_score_value(&f.score, own, trait);",
      "score = score + own;", SIMT_ATTEND)
fault("codes of a trait are cut, not rounded", "kernels/score.h", "off * s->inverse + 0.5f", "off * s->inverse + 0.0f", TRAITS)
fault("a written slot keeps the victim's trait", EVICT_INC, "            kv->slot_trait[meta + slot] = trait;", "            (void)trait;",
      TRAITS)
fault("who leaves the ring takes the newest token's trait along", EVICT_INC,
      "trait = kv->slot_trait ? kv->slot_trait[leaves] : 0.0f;", "(void)leaves;", TRAITS)
fault("a prompt's slots have no traits", "kernels/cpu/slots.c", "kv->slot_trait[meta] = kept_trait(a, &mode, s, head, pos);",
      "kv->slot_trait[meta] = 0;", TRAITS)

# ---- on the device


fault("attend_join.cu: who leaves the ring counts by the newest token's trait", JOIN_CU,
      "leaves ? f->leaving_trait[unit] : f->own_trait[unit];", "f->own_trait[unit];", SIMT_ATTEND)
fault("attend_join.cu: a trait stays in the ring", JOIN_CU, "        in_trait = t->kv.slot_trait[ring_meta];", "        (void)ring_meta;",
      SIMT_ATTEND)
fault("slots.cu: lanes of an error are added in another order", "kernels/cuda/slots.cu",
      "(error[0] + error[2]) + (error[1] + error[3])", "(error[0] + error[1]) + (error[2] + error[3])", SIMT_ATTEND)


fault("prefill.cu: bits of a group's first head", PREFILL_CU, "(row0 + r + 1) % group != 0", "(row0 + r) % group != 0",
      SIMT_ATTEND)
fault("prefill.cu: queries count alike", PREFILL_CU, "f.inverse[i] * evict_query_worth(&mode, query, s.n_prompt);",
      "f.inverse[i];", SIMT_ATTEND)
fault("attend.cu: a key's norm leaves a lane out", "kernels/cuda/attend.cuh", "        square = fmaf(x[d], x[d], square);",
      "        square = d == 15 ? square : fmaf(x[d], x[d], square);", SIMT_ATTEND)

# ---- positions by slot

RANK, ROLLING, TURN = "attend_rank_test", "rolling_test.py", "kernels/cpu/attend_forced_turn.inc"
fault("a victim leaves a gap in the ranks", TURN, "rank[i] -= rank[i] > gone;", "rank[i] -= rank[i] > gone + (int)INT16_MAX;", RANK)
fault("the ring's ranks do not close", TURN, "ring[i] -= ring[i] > gone;", "ring[i] -= ring[i] > gone + (int)INT16_MAX;", RANK)
fault("a newcomer takes the rank of before", EVICT_INC, "        in.rank--;\n", "", RANK)
fault("what leaves the ring forgets its rank", EVICT_INC,
      "rank = kv->slot_rank[leaves];", "rank = 0;", RANK)
fault("heads share the angles of the first", TURN, "if (memcmp(of, to->rank, sizeof of) == 0)", "if (to->rank[0] >= 0)", RANK)
fault("a query turns by one less", "kernels/cpu/attend_forced_split.inc", "row_turn(&a->rope, u->n_live, turned);",
      "row_turn(&a->rope, u->n_live - (u->n_live > 0), turned);", RANK)
fault("a prompt's keys are kept rotated", "kernels/cpu/slots.c", "const int half = a->rope.cos ? a->rope.rope_dim / 2 : 0;",
      "const int half = 0;", RANK)
fault("a prompt's traits are those of rotated keys", "kernels/cpu/slots.c",
      "    position_get(a, head, pos, s->k, s->v);\n    return score_trait",
      "    kv_get(&a->from, (const uint8_t *)a->pages + pos / PAGE_SLOTS * a->from.page_bytes,\n"
      "           pos % PAGE_SLOTS, head, s->k, s->v);\n    return score_trait", RANK)
fault("a prompt's whole pages are copied as they are", "kernels/cpu/slots.c",
      "return a->from.format == a->kv.layout.format && !a->rope.cos;", "return a->from.format == a->kv.layout.format;", RANK)
fault("scaled angles are turned back unscaled", "kernels/cpu/slots.c", "const float scale = half > 0 ? a->rope.scale : 1,",
      "const float scale = 1 + 0 * a->rope.scale,", RANK)
fault("forced tokens come rotated as well", "engine/line/layer_attend.c", "if (cuts[i].span->kind == SPAN_PROMPT)\n            rope_rows",
      "if (cuts[i].n > 0)\n            rope_rows", ROLLING)
fault("the second table of angles is the first", "engine/line/layer_attend.c",
      "const int table = s->layer_rope[layer];", "const int table = 0;", ROLLING)
fault("queries that positions as ranks turn do not grow", "engine/line/layer_attend.c",
      "w->slot_factors ? w->slot_factors + first : NULL", "NULL", ROLLING)
fault("queries grow by the rank before theirs", "kernels/cpu/attend_forced_split.inc",
      "a->rope.factors[u->n_live]", "a->rope.factors[u->n_live > 0 ? u->n_live - 1 : 0]", RANK)
fault("rows that attend apart have no angles", "engine/line/layer.c",
      "tables[t] && pos < w->rope_rows;", "tables[t] == w->sin && pos < w->rope_rows;", ROLLING)
fault("rows end at the context whatever their positions", "engine/job/request.c",
      "return max_i64(f->defaults->context, f->defaults->tokens_max);", "return f->defaults->context;", ROLLING)
fault("a fraction of the tokens may exceed the context", "policy/evict.c", "floor(((double)context - 1) / budget)",
      "floor(((double)context + 99) / e->budget)", "evict_test")
fault("positions are no part of the answer", "engine/api/run_setup.c",
      'e->positions == EVICT_POSITIONS_SLOT ? "kv_positions=slot\\n" : "");', '"");', ROLLING)
fault("learned positions roll", "engine/api/run_setup.c", "if (s->position != POSITION_ROPE)\n        return fail",
      "if (s->position != POSITION_ROPE && s->dim < 0)\n        return fail", ROLLING)
fault("tables of angles end with the prompt", "engine/line/layer.c", "max_i64(work->prompt_max, work->slots_max + 1)", "work->prompt_max", "plan_test")
fault("attention by rank costs nothing", "policy/attention.c", "return 2.0 * 4 * shape_kv_heads_of(s, wide) * shape_head_dim_of(s, wide);", "return 0;", "cost_test")
fault("attend.cu: a key turns by its slot", ATTEND_CU, "s.rank = t.kv.slot_rank[", "s.rank = 0 * t.kv.slot_rank[", SIMT_ATTEND)
fault("attend_join.cu: a victim leaves a gap", JOIN_CU, "of[i] -= of[i] > gone;", "of[i] -= 0 * (of[i] > gone);", SIMT_ATTEND)
fault("slots.cu: kept keys stay rotated", "kernels/cuda/slots.cu", "if (v || !rope->cos || d >= rope->rope_dim)", "if (d >= 0)", SIMT_ATTEND)
fault("attention's output stays rotated", "engine/line/layer_attend.c",
      "    layer_rotate(w, w->attn, w->shape->n_heads, t->n);\n}", "}", "kv_golden.py")
