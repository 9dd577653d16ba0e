"""Faults of families that differ little from llama, as mutant_list.py has the others."""
from mutant_fault import fault

LIKES = "family_likes_test"
fault("a bias of attention's output is where the others are", "engine/model/families/family_llama.c",
      "d->out_bias_key ? out : attention", "attention", LIKES)
fault("RoPE that config.json leaves out is plain", "engine/model/families/family_llama.c",
      "if (d->rope && !old && !new) {", "if (0) {", LIKES)
fault("keys that layer_types replaces are read", "engine/model/families/family_llama.c",
      "if (n == 0 && (d->windows & WINDOWS_EVERY))", "if (d->windows & WINDOWS_EVERY)", LIKES)
fault("every class reads how many layers have a window", "engine/model/families/family_llama.c",
      "if (n == 0 && (d->windows & WINDOWS_EVERY))", "if (n == 0)", LIKES)
fault("a GGUF file without a window has none", "engine/model/families/family_llama.c",
      "d->windows & WINDOWS_SURE ? d->window : 0", "0", LIKES)
fault("a window as long as the context is no kind of layer", "engine/model/families/family.c",
      "every == 0 || (i + 1) % every != 0 ? window : 0;",
      "window < shape->context && (every == 0 || (i + 1) % every != 0) ? window : 0;", LIKES)
fault("RoPE is stretched in layers with a window, too", "engine/model/families/rope.c",
      "shape->layer_rope[i] = shape->layer_window[i] > 0;", "shape->layer_rope[i] = 0;", "family_golden.py --only olmo3")
fault("angles of a window may be stretched in their own way", "engine/model/families/rope.c",
      "if (strcmp(type, \"default\") != 0)", "if (0)", LIKES)
fault("the multiplier of YaRN's logarithm is not read", "engine/model/families/rope.c",
      "(r->mscale > 0 ? r->mscale : 1) / (r->mscale_all_dim * grown + 1);", "(r->mscale > 0 ? r->mscale : 1);",
      "family_golden.py --only ministral3-yarn")
fault("norms without biases need some", "engine/model/families/role.c",
      "return need_if(norms && s->norm == NORM_LAYER && !s->bare_norm);", "return need_if(norms && s->norm == NORM_LAYER);", LIKES)
fault("weights of norms of q stay where neighbours turn", "engine/model/families/family.c",
      " | ROLE_BIT(ROLE_Q_NORM_W) |", " |", LIKES)
fault("halves turn where neighbours should", "engine/model/families/family_cohere.c",
      "    m->paired_rows = 1;\n", "", "family_golden.py --only cohere-plain")
fault("a layer without a window turns", "engine/model/families/family_cohere.c",
      "shape->layer_window[i] > 0 ? 0 : SHAPE_NO_ROPE", "0", "family_golden.py --only cohere2")
fault("null is a window", "engine/model/families/family_exaone4.c",
      "!source_null(s, \"sliding_window\")", "1", LIKES)
fault("queries do not grow", "engine/line/layer.c",
      "(float)log1p((double)(pos / s->query_period));", "(float)log1p((double)(pos / s->query_period) * 0);",
      "family_golden.py --only ministral3")
fault("keys grow as queries do", "engine/line/layer_attend.c", "    args.factors = NULL;\n", "", "family_golden.py --only ministral3")
fault("queries of a pack may grow by no period", "policy/shape.c",
      "if (!in_range(s->query_period, s->query_beta > 0, s->query_beta > 0 ? CONTEXT_MAX : 0))", "if (0)", LIKES)
fault("every layer has the first one's xIELU", "engine/line/layer_ffn.c",
      "s->layer_alpha[w->layer]", "s->layer_alpha[0]", "family_golden.py --only apertus")
fault("numbers of xIELU are used as they are stored", "engine/model/families/family_apertus.c",
      "(float)softplus(of[ALPHA_P]);", "(float)of[ALPHA_P];", LIKES)
fault("xIELU may lack its numbers", "engine/model/families/family_apertus.c",
      "if (!(fabs(of[i]) <= MOST))", "if (fabs(of[i]) > MOST)", LIKES)
fault("other constants of xIELU are no matter", "engine/model/families/family_apertus.c",
      "if (fabs(of[BETA_OF] - BETA) > 1e-6 ||", "if (0 &&", LIKES)
fault("a pack forgets the layers' xIELU", "engine/model/pack.c",
      "s->layer_alpha[i / 2][i % 2] = get_f32(in);", "(void)get_f32(in);", "pack_test")
fault("xIELU near 0 is a difference of great numbers", "kernels/cpu/v16.h",
      "v16_select_less(x, v16_set1(MATH_XIELU_SMALL)", "v16_select_less(x, v16_set1(-0.001f)", "exact_test")
fault("rows have the first one's factor", "kernels/cpu/rows.inc",
      "a->factors[a->pos[row]]", "a->factors[a->pos[first]]", "exact_test")
fault("cuda: what does not turn does not grow", "kernels/cuda/rows.cu",
      "    if (!a.factors)\n        return;\n", "    if (1)\n        return;\n", "simt_rows_test")
fault("a GGUF file's factor on YaRN's cosines is not read", "engine/model/families/rope.c", ".rope.scaling.yarn_attn_factor",
      ".rope.scaling.yarn_attn", "family_golden.py --only olmo3-nested")
fault("GGUF: experts that a bias chooses are scored by a softmax if the file does not say how",
      "engine/model/families/family_deepseek.c", "gating = d.router & ROUTER_BIAS ? 2 : 1;", "gating = 1;",
      "family_golden.py --only glm4_moe_lite-plain")
fault("GGUF: nemotron_h's epsilon is looked for under RMSNorm's key only", "engine/model/families/family_llama.c",
      'TRY(family_float(s, name, ".attention.layer_norm_epsilon", 0, 0.1, &eps));', "", "family_hybrid_test")
fault("hunyuan: norms of q and k come before RoPE", "engine/line/layer_decode.c",
      "if (s->qk_norm != QK_NORM_NONE && s->qk_norm != QK_NORM_TURNED)", "if (s->qk_norm != QK_NORM_NONE)",
      "family_golden.py --only hunyuan_v1_dense-alpha")
fault("hunyuan: keys turn by rank, too", "engine/api/run_setup.c", "if (s->qk_norm == QK_NORM_TURNED)", "if (0)",
      "rolling_test.py --only refused")
fault("hunyuan: alpha is not read", "engine/model/families/rope.c", "if (r.kind == ROPE_DYNAMIC && r.alpha > 0)", "if (0)", LIKES)
fault("hunyuan: every family has alpha", "engine/model/families/family_llama.c", "    if (!d->alpha)\n", "    if (0)\n", LIKES)
fault("hunyuan: a list counts by its first number", "engine/model/families/family_llama.c", "if (list[i] != list[0])", "if (0)",
      "family_experts_test")
