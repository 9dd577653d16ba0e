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
