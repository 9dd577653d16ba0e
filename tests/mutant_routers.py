"""Faults of routers that choose experts by scores, as mutant_list.py has the others."""
from mutant_fault import fault

LLAMA, ROUTE, LAYER, FAMILY = "engine/model/families/family_llama.c", "kernels/route.h", "engine/line/layer_ffn.c", "engine/model/families/family.c"
GLM, TEST = "family_golden.py --only glm4_moe", "family_experts_test"
fault("routers: the bias for the choice is left out", LAYER, ".bias = model_vector(l, ROLE_CHOICE_B, weights)", ".bias = NULL", "family_golden.py --only minimax_m2")
fault("routers: the bias weighs experts, too", ROUTE, "by_score ? logits[chosen[j]] :", "by_score ? route_key(a, logits, chosen[j]) :", "experts_test")
fault("routers: logistics are a softmax", LAYER, ".logistic = s->route_logistic", ".logistic = 0", "family_golden.py --only dots1")
fault("routers: every group of experts may be used", LAYER, ".n_groups = s->n_groups,", ".n_groups = 0,", "family_golden.py --only glm4_moe-groups")
fault("routers: a group counts by its best expert alone", ROUTE, "return a->group_best ? first : first + second;", "return first;", "experts_test")
fault("routers: the factor on weights is left out", LAYER, ".scale = s->route_scale", ".scale = 1", "family_golden.py --only glm4_moe-plain")
fault("routers: a softmax with a bias is not over all", ROUTE, "logits[e] /= sum;", "logits[e] /= 1 + 0 * sum;", "experts_test")
fault("routers: the layers without experts are the last", LLAMA, "memset(shape->layer_dense, 1, (size_t)n);", "memset(shape->layer_dense + shape->n_layers - n, 1, (size_t)n);", TEST)
fault("routers: several shared experts are one", LLAMA, "shape->shared_dim = (int)n * shape->ffn_dim;", "shape->shared_dim = (n > 0) * shape->ffn_dim;", TEST)
fault("routers: one group is a group", LLAMA, "if (shape->n_groups == 1)", "if (0)", GLM + "-plain")
fault("routers: norm_topk_prob is not read", LLAMA, "(!shape->route_alone || (d->router & ROUTER_KEYS))", "!shape->route_alone", TEST)
fault("routers: GGUF's weights always sum up to 1", LLAMA, 'TRY(family_flag(s, name, ".expert_weights_norm", &shape->route_alone));', ";", "family_golden.py --only glm4_moe-groups")
fault("routers: groups need not have the experts of a token", "policy/shape.c", "s->n_groups_used * (s->n_experts / s->n_groups) >= s->n_experts_used", "s->n_groups_used > 0", "family_experts_test")
fault("ernie: q and k rotate halves", "engine/model/families/family_ernie4_5_moe.c", "m->paired_rows = 1;", "m->paired_rows = s->kind == SOURCE_GGUF;", "family_golden.py --only ernie4_5_moe-plain")
fault("ernie: a bias of one group is refused", FAMILY, "if (role == ROLE_CHOICE_B && t->n_dims == 2 && dims[0] == 1)", "if (0)", "family_golden.py --only ernie4_5_moe-plain")
fault("minimax_m2: all of a head is rotated", "engine/model/families/family_minimax_m2.c", ".partial = (double)rotated / (double)head_dim", ".partial = 1", "family_golden.py --only minimax_m2-plain")
fault("glm4_moe: all of a head is rotated", "engine/model/families/family_glm4_moe.c", ".partial = solar ? 1 : 0.5", ".partial = 1", TEST)
fault("olmoe: weights of a token's experts sum up to 1", "engine/model/families/family_olmoe.c", ".route_all = 1", ".route_all = 0", "family_golden.py --only olmoe-plain")
fault("phimoe: all experts are near", ROUTE, "if (!before && !(max - logits[e] > a->near *", "if (!before && !(0 > a->near *", "experts_test")
fault("phimoe: a choice is weighed with those before it", ROUTE, "before |= chosen[i] == e;", "before |= chosen[i] == e && 0;", "experts_test")
fault("phimoe: weights are a softmax over all", LAYER, ".near = s->route_near,", ".near = 0,", "family_golden.py --only phimoe")
fault("phimoe: the head has no bias", "engine/line/layer_head.c", ".bias = bias ? bias + l->vocab_first + row : NULL", ".bias = NULL && bias",
      "family_golden.py --only phimoe")
fault("phimoe: both tables have one factor", "engine/model/families/family_phimoe.c", "shape->ropes[t].scale = (float)scale[t];",
      "shape->ropes[t].scale = (float)scale[0];", TEST)
fault("phimoe: a pack may weigh near experts in two ways", "policy/shape.c", "(s->route_near > 0 &&\n", "(0 &&\n", TEST)
fault("phimoe: a pack forgets how near experts are", "engine/model/pack.c", "    X(query_beta)                                                                                  \\\n    X(route_near)", "    X(query_beta)", "family_golden.py --only phimoe")
