"""Faults of rows with a state, as mutant_list.py has the others."""
from mutant_fault import fault

LINE, FAMILY, RUN = "engine/line/layer_state.c", "engine/model/families/family_qwen3_next.c", "state_run_test.py --only "
fault("states: the inputs of a convolution are not kept", "kernels/cpu/state.inc", "x[j] = s->fresh ? v16_zero() : v16_load(state + (int64_t)j * a->n);", "x[j] = v16_zero();", "state_test")
fault("states: a row begins with the state of the row before", LINE, ".fresh = c->span->pos + c->offset == 0", ".fresh = 0", RUN + "places")
fault("states: the last page of a state is not written home", LINE, "const int own = plan_own_pages(w->plan, w->layer);", "const int own = plan_own_pages(w->plan, w->layer) - 1;", RUN + "places")
fault("states: tokens behind a prompt are another row's", LINE, "spans[-1].n += c->n;", "spans[-1].n += 0;", RUN + "kills")
fault("states: attention's output passes its gate", "engine/line/layer_decode.c", "    if (!w->shape->query_gate)\n", "    if (1)\n", "family_golden.py --only qwen3_5-text")
fault("states: decays are as the file has them", "engine/model/pack_source.c", "if (m->logs & ROLE_BIT(role))", "if (0)", "family_golden.py --only qwen3_5-text")
fault("states: every fourth layer has one", FAMILY, "(i + 1) % every != 0", "(i + 1) % every == 0", "family_states_test")
fault("states: a row has one before its first token", "engine/line/batch.c", "return row->n_done + n > 0 ? evict_kind(evict, kind).state : 0;", "return evict_kind(evict, kind).state;", RUN + "places")
GOLDEN, DECODE = "family_golden.py --only ", "engine/line/layer_decode.c"
fault("states: Mamba-2 adds no part of its input", LINE, ".skip = model_vector(l, ROLE_STATE_SKIP, weights),", ".skip = NULL,", GOLDEN + "granitemoehybrid-dense")
fault("states: Mamba-2 normalises, then gates", LINE, "    if (s->state == STATE_DELTA) {\n", "    if (s->state != STATE_CONV && s->state_k_heads == 1) {\n", GOLDEN + "granitemoehybrid-dense")
fault("states: a convolution has no bias", LINE, ".bias = model_vector(l, ROLE_STATE_CONV_B, weights),", ".bias = NULL,", GOLDEN + "granitemoehybrid-dense")
fault("states: the convolution's channels are in the order of the delta net", "policy/shape.h", "v_first = s->state == STATE_MAMBA,", "v_first = 0,", GOLDEN + "granitemoehybrid-dense")
fault("states: a convolution alone has the delta net's activation", LINE, "s->state == STATE_CONV ? ACT_NONE : ACT_SILU", "ACT_SILU", GOLDEN + "lfm2-plain")
fault("states: an MLP is the next layer's", "engine/model/families/family.c", "m->file_layer[layer][role_is_mlp(role)]", "m->file_layer[layer][0]", "family_hybrid_test")
fault("states: each layer has an MLP", DECODE, "    if (s->layer_bare[w->layer])\n", "    if (0)\n", GOLDEN + "nemotron_h-bare")
fault("states: the square of relu is relu", "kernels/cpu/v16.h", "return v16_mul(v16_max(x, v16_zero()), v16_max(x, v16_zero()));", "return v16_max(x, v16_zero());", GOLDEN + "nemotron_h-dense")
fault("states: an MLP is as wide as the file says", "engine/model/families/family_lfm2.c", "    if (adjust)\n", "    if (0)\n", "family_hybrid_test")
fault("states: strangers among the tensors of an MLP are no matter", "engine/model/families/family.c", "                TRY(check_strangers(m, s, i, ROLE_NORM2_W));\n", "", "family_hybrid_test")
STATE = "engine/model/families/state.c"
fault("states: a GGUF file's layers with KV heads have a state", STATE, "shape->layer_state[i] = heads[i] == 0;", "shape->layer_state[i] = heads[i] != 0;", "family_hybrid_test")
fault("states: a state is as wide as all heads", STATE, "    shape->state_v_dim /= shape->state_v_heads;\n", "", "family_hybrid_test")
fault("states: decays of GGUF files are logarithms", "engine/model/families/family_granite_hybrid.c", "state_cut_mamba(m, 0);", "state_cut_mamba(m, 1);", "family_hybrid_test")
fault("states: beta and the time step of GGUF files are apart", FAMILY, "    if (next) {\n", "    if (next && !gguf) {\n", GOLDEN + "qwen3_next-plain")
fault("states: biases are those of layer 0", "engine/model/families/family.c", "while (layer < m->shape.n_layers - 1 && !role_in_layer(&m->shape, role, layer))", "while (0)", "family_hybrid_test")
fault("states: heads in tiled order are taken as side by side", "kernels/state.h", "a->tiled ? h % a->k_heads", "0 ? h % a->k_heads", "state_test")
fault("states: tiles are as wide as a head of k has heads of v", "kernels/state.h", "h % a->k_heads", "h % (a->v_heads / a->k_heads)", "state_test")
