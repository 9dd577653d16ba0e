"""Faults of latent attention, as mutant_list.py has the others."""
from mutant_fault import fault

LAYER, FILES, KV = "engine/line/layer_latent.c", "engine/model/families/latent.c", "kernels/kv.c"
PLAIN, TEST, ATTEND = "family_golden.py --only deepseek_v3-plain", "family_latent_test", "attend_test"
fault("latent: pages hold keys twice", "engine/model/model.c", "if (s->latent_key > 0)", "if (0)", TEST)
fault("latent: the norms' eps is larger", LAYER, "#define LATENT_EPS 1e-6f", "#define LATENT_EPS 1e-3f", PLAIN)
fault("latent: queries lack their rotated numbers", LAYER, ".b = 1}", ".b = 0}", PLAIN)
fault("latent: queries meet the key's rotated numbers", LAYER, "w->attn + turned, query, w->q + turned,", "w->attn, query, w->q + turned,", PLAIN)
fault("latent: outputs are of the key's first numbers", LAYER, "w->attn + s->rope_dim, s->head_dim, w->q,", "w->attn, s->head_dim, w->q,", PLAIN)
fault("latent: rotated rows stay in the file's order", "engine/model/families/family.c", "2 * (at % half) + at / half : at);", "at : at);", TEST)
fault("latent: the rotated rows stand last", "engine/model/families/family.c", "return row - turned;", "return row;", TEST)
fault("latent: scores grow once", FILES, "scale *= grown * grown;", "scale *= grown;", TEST)
fault("latent: values' rows are those of keys", FILES, "(struct family_cut){rows, key, shape->latent_value, both}", "(struct family_cut){rows, 0, shape->latent_value, both}", TEST)
fault("latent: RoPE always turns neighbours", FILES, "m->paired_rows = paired;", "m->paired_rows = 1;", TEST)
fault("latent: some heads may share keys", FILES, "if (shape->n_kv_heads != 0 && shape->n_kv_heads != shape->n_heads)", "if (0)", TEST)
fault("latent: heads' matrices need not be whole panels", FILES, "return n % 32 == 0 ? OK", "return n > 0 ? OK", TEST)
fault("latent: all layers have experts unless listed", "engine/model/families/family_llama.c", 'strcmp(types[i], "dense") == 0 : i == 0;', 'strcmp(types[i], "dense") == 0 : 0;', TEST)
fault("latent: deepseek_v2's weights sum up to 1", "engine/model/families/family_deepseek.c", "m->shape.route_alone = 0;", ";", "family_golden.py --only deepseek_v2-yarn")
fault("a GGUF file's experts have gate and up apart", "engine/model/families/family_llama.c", "m->fused = m->fused && family_tensor(m, s, ROLE_GATE, first);", "m->fused = 0;", TEST, "family_gemma4_test")
fault("latent: queries of a GGUF file never grow", "engine/model/families/family_mistral3.c", "beta = s->kind == SOURCE_GGUF ? (double)shape->query_beta : -1;", "beta = s->kind == SOURCE_GGUF ? 0 : -1;", TEST)
fault("latent: queries grow by the first context only", "engine/model/families/family_mistral3.c", '".attention.temperature_length"', '".attention.temperature_none"', TEST)
fault("keys as values: a pair's second number is another slot's", KV, "to[1] = a >> 16 |", "to[1] = b >> 16 |", ATTEND)
fault("keys as values: codes stay in the order of keys", KV, "word |= (k[slot + j] >> i * bits & mask) << j * bits;", "word |= (k[slot + i] >> j * bits & mask) << j * bits;", ATTEND)
fault("keys as values: a prompt's values follow its keys", "kernels/cpu/slots.c:copy_slot", "if (l->v_offset == 0)", "if (0)", ATTEND)
