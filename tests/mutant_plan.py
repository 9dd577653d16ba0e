"""The faults of mutants.py in what plans: rates, plays, the search, what a plan tells, plans that change, evaluation. See mutant_list.py."""
from mutant_fault import fault

# ---- what a machine gives

fault("a rate measured in other memory is taken", "offload/probe_cache.c",
      "(long long)probe_ram_bytes(c),", "0LL,", "probe_test")
fault("the first plan has other digits than the next", "offload/probe_cache.c",
      "    part_copy(m, &only, part);\n    probe_cache_write", "    probe_cache_write", "probe_test")
fault("figures of a busy machine are kept for a month", "offload/probe_cache.c", "if (err == OK && busy)", "if (0)", "probe_test")
fault("a cached file with a time ahead of the clock is valid", "offload/probe_cache.c", "age < -AHEAD_S ||", "0 ||", "probe_test")
fault("a cached file may not be younger than a tick of the clock", "offload/probe_cache.c", "age < -AHEAD_S", "age < 0", "probe_test")
fault("figures of a busy machine are never kept", "offload/probe_cache.c", "(CACHE_AGE_S - BUSY_AGE_S)", "(CACHE_AGE_S + BUSY_AGE_S)", "probe_test")
fault("a burst counts as what lasts", "offload/disk_probe.c",
      "rates->lasting = rate_of(s, burst >= 3 && burst > s->n / 4 ? burst : s->n / 4, s->n);",
      "rates->lasting = rate_of(s, s->n / 4, s->n);", "disk_probe_test")
fault("reads and writes at once are reads", "offload/disk_probe.c",
      "io->write = s->next & 1;", "io->write = 0;", "disk_probe_test")
fault("the time of a share passes for that of the layer", "offload/probe_model.c",
      "s[i] = 1 / (sweeps.value * b.share);", "s[i] = 1 / sweeps.value;", "probe_test")
fault("measuring a model takes what memory it wants", "offload/probe_model.c",
      "while (c->memory_bytes > 0 && a.used > c->memory_bytes && share <= SHARE_LAST);",
      "while (0);", "probe_test")
fault("a machine file that knows one matmul is refused", "offload/machine_file.c",
      "    machine_complete(m);\n", "", "machine_file_test")
fault("the spread of a rate is lost", "offload/machine_file.c",
      "n > 1 ? x[1] : 0,", "0,", "machine_file_test")
fault("rows on a device attend as fast as it copies", "policy/machine.c",
      "m->device_attend_read.value > 0 ? m->device_attend_read.value : m->device_read.value;", "m->device_read.value;", "cost_test")
fault("prompts on a device attend as fast as it multiplies", "policy/machine.c",
      "m->device_attend_flops.value > 0 ? m->device_attend_flops.value : m->device_flops.value;", "m->device_flops.value;", "cost_test")
fault("a device that nobody measured attends in no time", "policy/machine.c",
      "m->device_attend_read.value > 0 ? m->device_attend_read.value : m->device_read.value;", "m->device_attend_read.value;", "cost_test")
fault("keys turn on a device as fast as rows attend", "policy/attention.c",
      "rate(slots * turned_bytes(set, kind), m->device_read.value)", "rate(slots * turned_bytes(set, kind), machine_device_attend_read(m))", "cost_test")
fault("rows that attend are measured in memory that is not there", "offload/probe_device.c",
      "    rows_carve(b, &a, heads);\n    if (a.used > b->n_bytes)", "    rows_carve(b, &a, heads);\n    if (0)", "probe_test")
fault("a fast device shows what it does with few rows", "offload/probe_device.c:matmul_wide",
      "PLAN_TILE_TOKENS * (int)max_i64(width / most, 1);", "PLAN_TILE_TOKENS;", "probe_test")
fault("attention of a device is not measured", "offload/probe_device.c",
      "    return measure_attention(b, m);\n", "    return OK;\n", "probe_test")
fault("every token meets all experts", "policy/machine.c",
      "return min_d(each, 1) * seconds_at", "return seconds_at", "rates_test")
fault("the last page counts as full", "policy/simulate.c",
      "over = slot < full;", "over = slot < full || 1;", "simulate_test")
fault("the first to go is the oldest of all, sink or not", "policy/evict.h",
      "return row->sink + (pos - first) % (slots - row->sink);", "return (pos - first) % slots;", "simulate_test")
fault("a page counts once for each token that writes over it", "policy/evict.h",
      "pages += behind < n - skip || behind + page * 32 + 32 - first > cycle;", "pages += behind < n - skip && cycle > 0;",
      "simulate_test")
fault("layers with a window get the pages of the others", "policy/plan.c",
      "plan->kind_pages[kind] = fewer ? (int)own : 0;",
      "plan->kind_pages[kind] = fewer * 0 * (int)own;", "plan_test")
fault("what leaves a window still is in its pages", "policy/simulate.c",
      "evict_in_kind(e, &r, kind, &rule, &limits);",
      "evict_in_kind(e, &r, KV_MOST, &rule, &limits);", "simulate_test")
fault("every layer moves what the first one does", "policy/moves.c",
      "kv[home][plan_kind(p, s.layer - 1)]", "kv[home][plan_kind(p, 0)]", "simulate_test")
fault("shares are of what is protected, too", "policy/evict.h",
      "const int kept = row->sink + (all_recent ? 0 : row->recent);", "const int kept = 0 * all_recent;", "plan_test")
fault("a layer that has less protects more", "policy/evict.h",
      "row->recent = all_recent ? row->budget - row->sink : row->recent;", "row->recent = row->recent + 0 * all_recent;", "plan_test")
fault("steps of a pyramid are their first layer's", "policy/kv_kinds.c",
      "all[i].share = sum / (end - first);", "all[i].share = all[first].share + 0 * sum;", "kinds_test")
fault("windows have a share of the budget", "policy/kv_kinds.c",
      "        if (a.window == 0) {", "        if (a.window >= 0) {", "kinds_test")
fault("shares stay as they were written", "policy/kv_kinds.c",
      "all[i].share *= without / sum;", "all[i].share *= 1 + 0 * sum;", "kinds_test")
fault("fresh memory costs ops nothing", "policy/pass.c",
      "    l->wall_s += more + p->fresh_ops_s;", "    l->wall_s += more;", "cost_test")
fault("a lane is busy as long as at full depth", "policy/pass.c",
      "*s += *s > 0 ? max_d(p->disk_more_s[write], 0) : 0;", "*s += 0 * p->played_disk_s[write];", "cost_test")
fault("a pass like another is scaled, not moved", "policy/pass.c",
      "return max_d(quick, kept->wall_s + quick - kept->quick_s);",
      "return quick * kept->wall_s / kept->quick_s;", "cost_test")
fault("few pieces in flight get what many get", "policy/servers.c",
      "machine_read_rate(m, i) / most", "machine_read_rate(m, IO_DEPTH) / most", "cost_test")
fault("a transfer is told with its last byte", "policy/servers.c",
      "*item.ready = s->disk.free + s->ticket_s;", "*item.ready = s->disk.free;", "cost_test")
fault("the disk gives as much beside ops", "policy/servers.c", "one ? 1 : s->beside", "1", "cost_test")
fault("ops lose nothing to reads but checksums", "policy/pass.c",
      "    if (left > 0)\n        s += m->threads", "    if (left < 0)\n        s += m->threads", "cost_test")
fault("what the only batch has sampled stands ready", "policy/pass.c",
      "    if (l->forced_tokens > 0)\n        s += max_d(ticket_s", "    if (l->forced_tokens < 0)\n        s += max_d(ticket_s",
      "cost_test")
fault("pages that stand apart travel together", "policy/pass.c",
      "return max_d(pieces - ceil(n_bytes / PIECE_BYTES), 0) * max_d(start_s, 0);", "return 0 * (pieces - ceil(n_bytes / PIECE_BYTES)) * start_s;", "cost_test")
fault("a disturbed disk gives more to few than to many", "policy/machine.c",
      "return min_d(given, most);", "return given;", "rates_test")
fault("a slot costs what it costs a row alone", "policy/machine.c",
      "double slot_s = r->slot_s[i];", "double slot_s = r->slot_s[i = 0];", "rates_test")
fault("a busy machine is measured at every start", "offload/probe_cache.c",
      "time(NULL) - st.st_mtime > AGAIN_S", "time(NULL) - st.st_mtime > -1", "probe_test")
fault("what was measured well is measured away", "offload/probe_cache.c",
      "if (machine_rates[i].part == part && spread_of(&again.rates[i]) < spread_of(&m->rates[i]))",
      "if (machine_rates[i].part == part)", "probe_test")
fault("rows of one KV format pass for another's", "offload/probe_model.c",
      "kv_format_name(l->kv_format)", "kv_format_name(KV_F32)", "probe_test")
fault("one model's matmuls pass for another's", "offload/probe_model.c",
      "RATES_BEFORE(attend_s), layer_key, measure_layer", "RATES_BEFORE(attend_s), attend_key, measure_layer", "probe_test")
fault("measuring norms takes what memory it wants", "offload/probe_layer.c",
      "while (c->memory_bytes > 0 && a.used > c->memory_bytes && b.most > 1);", "while (0);", "probe_test")
fault("pieces in flight are called back", "policy/servers.c",
      "item->held_s = min_d(item->flying * item->piece_s / 2, item->disk_s);", "item->held_s = 0;", "cost_test")
fault("of runs the last counts", "policy/pace.c",
      "struct rate r = rate_of_samples(times, n);", "struct rate r = rate_of_samples(times + n - 1, 1);", "pace_test")
fault("a factor has no limit", "policy/pace.c",
      "r.value = min_d(max_d(r.value, 1 / PACE_LIMIT), PACE_LIMIT);", "", "pace_test")
fault("a class that nobody ran is as predicted", "policy/pace.c",
      "    return (struct rate){.value = pace->others};", "    return (struct rate){.value = 1};", "pace_test")
fault("all classes are one", "policy/pace.c", "if (s->runs[k].class == s->runs[i].class)\n                times", "if (k <= i)\n                times", "pace_test")
fault("KV on disk is like KV in RAM", "policy/pace.c",
      "(plan_kv_count(p, (enum tier_kind)tier) > 0)", "(plan_kv_count(p, (enum tier_kind)tier) > PLAN_ALL)", "pace_test")
fault("runs of a class are never forgotten", "policy/pace.c", "if (same >= PACE_RUNS || s->n == PACE_ALL) {", "if (s->n == PACE_ALL) {", "pace_test")
fault("a prediction does not follow earlier runs", "policy/cost.c", "    t->job_s *= t->pace.value;\n", "", "cost_test")
fault("a starved run is kept", "engine/api/replan.c", "return share <= CPU_WAIT_STARVED;", "return 1;", "replan_test.py --only paced")
fault("who waits for a core has had one", "offload/cpu_wait.c",
      "i < threads ? of[i].waited_s : -of[i].ran_s", "0 * threads", "probe_test")
fault("what the run itself took is lost", "offload/cpu_wait.c",
      "i < threads ? of[i].waited_s : -of[i].ran_s", "i < threads ? of[i].waited_s : 0", "probe_test")
fault("what somebody wrote is forgotten", "offload/probe_cache.c",
      "        if (!is_ours(path, &st))\n            continue;\n", "        if (!is_ours(path, &st) && lstat(path, &st) != 0)\n            continue;\n", "probe_test")
fault("any name is ours", "offload/probe_cache.c", 'strspn(last + 1, "0123456789abcdef") == 16 &&', "1 &&", "probe_test")
fault("short prompts are long ones", "policy/machine.c", "return prompts * r->prompt_s", "return 0 * prompts * r->prompt_s",
      "rates_test")
fault("the head takes as many positions at once as a layer", "policy/machine.c",
      "seconds_at(r->head_s[state], PLAN_TILE_POSITIONS,", "seconds_at(r->head_s[state], PLAN_TILE_TOKENS,",
      "rates_test")
fault("the rest behind full tiles is free", "policy/machine.c",
      "return tiles * s[last] + from_s +", "return tiles * s[last] + (tiles > 0 ? 0 : 1) *", "rates_test")
fault("a disturbed measurement stays", "policy/machine.c",
      "r->layer_s[state][i] = min_d(r->layer_s[state][i], r->layer_s[state][i + 1]);", "", "rates_test")
fault("q8 and q4 decode for nothing", "policy/machine.c", "? DECODE_FLOPS : 0", "? 0 : 0", "rates_test")
fault("tiles cost what is stored", "policy/pass.c",
      "+ layers[1] * kv->layer[1];", "+ layers[1] * kv->layer[0];", "rates_test")

fault("the summary's lanes take each other's predicted bytes", "engine/api/report_lanes.c",
      "r->decision.time.bytes[lane]", "r->decision.time.bytes[lane ^ 1]", "report_test")
fault("reads of NVMe are predicted the seconds of writes", "engine/api/report_lanes.c", "[LANE_NVME_READ] = t->read_s,",
      "[LANE_NVME_READ] = t->write_s,", "report_test")
fault("writes of NVMe are predicted the seconds of reads", "engine/api/report_lanes.c", "[LANE_NVME_WRITE] = t->write_s,",
      "[LANE_NVME_WRITE] = t->read_s,", "report_test")
fault("writes to NVMe show the probed rate of reads", "engine/api/report_lanes.c", "[LANE_NVME_WRITE] = m->nvme_write.value,",
      "[LANE_NVME_WRITE] = m->nvme_read.value,", "report_test")
fault("a run bound by writes is said to be bound by reads", "engine/api/report_lanes.c", "? LANE_NVME_WRITE\n", "? LANE_NVME_READ\n",
      "report_test")
fault("what a lane was predicted is of a pass", "engine/api/report_summary.c",
      "number(report_lane_predicted(r, lane) * r->decision.time.passes)", "number(report_lane_predicted(r, lane))", "report_test")

# ---- the benchmarks of the planner

fault("a peer has no memory limit", "bench/peers/peer.py", '["--mib", a.limit_mib] * bool(a.limit_mib) + ', "",
      "bench_test.py --only limits_test")
fault("a peer has no disk limit", "bench/peers/peer.py", ' + ["--disk", a.limit_disk] * bool(a.limit_disk)', "",
      "bench_test.py --only limits_test")

fault("what has a row is measured again", "bench/planned.py",
      "        if self.is_done(case=case, turn=turn, flags=label):", "        if False:", "planned_test.py")
fault("a CSV takes rows of any binary", "bench/conditions.py",
      "        if was and binary not in was[\"binary_sha256\"].split():", "        if False:", "planned_test.py")
fault("bytes that differ are a rate's", "bench/planned.py",
      "if counts and abs(said - moved) > 0.05", "if False and abs(said - moved) > 0.05", "planned_test.py")
fault("the best plan is the worst", "bench/choice.py",
      "        best = min(found, key=found.get)", "        best = max(found, key=found.get)", "planned_test.py")
fault("a grid has the automatic plan twice", "bench/choice.py",
      "    found = {placement(auto): auto}", "    found = {0: auto}", "planned_test.py")
fault("rows of a batch go before shares", "bench/hand.py",
      "        while any(shares):", "        while False:", "planned_test.py")
fault("the roof has no KV", "bench/paper.py",
      "        held = weights + rows * row - m", "        held = weights - m", "planned_test.py")

# ---- evaluation

fault("tokenize adds nothing where a row asks", "engine/cli/commands_text.c",
      "tokenizer_encode_all(o->tokenizer, s, n, add_special,", "tokenizer_encode_all(o->tokenizer, s, n, 0 * add_special,", "evaluate_test.py")
fault("tokenize keeps its answers to itself", "engine/cli/commands_text.c",
      "            fflush(stdout); // a caller", "            // a caller", "chat_rows_test.py --only at_once")
fault("spaces that end a context stay there", "bench/lm_eval_sluice.py",
      "split.append((bare, context[len(bare):] + continuation))", "split.append((context, continuation))", "evaluate_test.py")
fault("a context is cut one token short", "bench/lm_eval_sluice.py",
      "both = (context + ids)[-self.max_length - 1:]", "both = (context + ids)[-self.max_length:]", "evaluate_test.py")
fault("windows of a text have one token in front", "bench/lm_eval_sluice.py",
      "yield ids[end - most - 1:at], ids[at:end]", "yield ids[at - 1:at], ids[at:end]", "evaluate_test.py")
fault("a job's folder depends on its placement", "bench/lm_eval_sluice.py",
      "if k not in PLACEMENT}", "if k}", "evaluate_test.py")
fault("a job's folder is the same under any policy", "bench/lm_eval_sluice.py",
      "sorted(answer.items())", "[]", "evaluate_test.py")
fault("a template's BOS gets another", "bench/lm_eval_sluice.py",
      "ids if ids[:1] == [self.prefix_token_id] else ", "", "evaluate_test.py")
fault("a failed row is an answer", "bench/lm_eval_sluice.py",
      "        if bad:\n", "        if False:\n", "evaluate_test.py")
fault("samples of one request are all the same", "bench/lm_eval_sluice.py",
      "row.setdefault(\"seed\", i)", "row.setdefault(\"seed\", 1)", "evaluate_test.py")
fault("an answer that goes on is closed", "bench/lm_eval_sluice.py",
      "        if not add_generation_prompt:  #", "        if False:  #", "evaluate_test.py")
fault("needles lie in front", "bench/evaluate_tasks.py",
      "at, out = [round(d * room) for d in depths], []", "at, out = [0 for d in depths], []", "evaluate_test.py")
fault("words that are said twice count twice", "bench/evaluate_tasks.py",
      "min(v, b.get(k, 0))", "b.get(k, 0)", "evaluate_test.py")
fault("log-probabilities are of whole answers", "bench/evaluate.py",
      "score[\"logprob\"] / score[\"num_tokens\"]", "score[\"logprob\"]", "evaluate_test.py")

# ---- the play of a job

fault("full pages grow by themselves", "policy/simulate.c",
      "b->kv[kind].full_pages += b->kv[kind].cross", "b->kv[kind].full_pages += 0 * b->kv[kind].cross", "simulate_test")
fault("a row that evicts goes on growing", "policy/simulate.c",
      "grow(s, b, t, kind, what == EVENT_START);", "grow(s, b, t, kind, 1);", "simulate_test")
fault("pages that are short send nobody back", "policy/simulate.c",
      "if (b->loose > 0 || need > b->free_pages)", "if (b->loose > 0)", "simulate_test")
fault("a job under way begins without what its rows have done", "policy/simulate.c",
      "            t->n_done = live.done;\n", "", "simulate_test")
fault("rows that were sent back wait in another order", "engine/job/job_scan.c",
      "    for (const struct live *row = job->requeued; row; row = row->next_requeued, k++)\n",
      "    for (const struct live *row = NULL; row; row = row->next_requeued, k++)\n", "simulate_test")
fault("rows are played to their last allowed token", "policy/simulate.c",
      "if (!s->may_stop)\n        return row->cap;", "if (entered > 0)\n        return row->cap;", "simulate_test")
fault("a row that was sent back needs room for a pass alone", "engine/line/batch.c",
      "batch_slots_after(b->evict, &probe, wanted)", "batch_slots_after(b->evict, &probe, take)", "simulate_test")
fault("an eighth without rows is like all others", "policy/simulate.c",
      "FEW * likely) /", "FEW * (double)ends / max_d((double)tokens, 1)) /", "simulate_test")
fault("rows that turn out longer keep a plan for short ones", "engine/api/replan.c",
      "fabs((double)(left.slots_mean - w->slots_mean))", "(double)(w->slots_mean - left.slots_mean)", "replan_test.py --only short_rows")
fault("rows that stop at random have KV for the mean row", "policy/search.c",
      "work_may_stop(asked->work) ?", "0 ?", "search_test")
fault("rows stop alike all along", "policy/simulate.c", "min_d(in->work->stops[i], 0.99)", "min_d(in->work->stops[0], 0.99)", "simulate_test")
fault("rows that end early change no plan", "engine/api/replan.c", "return is_short(w) || rows_end_early(w);", "return is_short(w);",
      "replan_test.py --only short_rows")
fault("KV is planned for the lengths that max_tokens allows", "policy/simulate.c", "        slots += min_d(tokens, (double)most);",
      "        slots += (double)most;", "simulate_test", "replan_test.py --only short_rows")
fault("rows that come to their length stop early", "engine/job/job.c",
      "+= *finished && r->n_tokens < r->n_cap;", "+= *finished;", "job_test")
fault("the time that is left ignores what passes took", "policy/eta.c",
      "    e->measured_s = kept * e->measured_s + measured_s;\n",
      "    e->measured_s = kept * e->measured_s + predicted_s;\n", "eta_test")
fault("the time that is left forgets nothing", "policy/eta.c",
      "exp(-measured_s / max_d(recent_s, LEAST))", "exp(0 * recent_s / LEAST)", "eta_test")
fault("prompts share nothing", "policy/simulate.c",
      "    return (int)min_i64(all->most, min_i64(all->first, n_prompt - 1));", "    return 0;", "simulate_test")
fault("a fetch across the pass sees its own rows", "policy/moves.c",
      "? SEES_KEPT : SEES_BEFORE;", "? SEES_OWN : SEES_OWN;", "simulate_test")
fault("nothing is fetched for a pass that does not come", "policy/moves.c",
      "event == WALK_FETCH_WEIGHTS && s.pass == 1", "event == WALK_FETCH_WEIGHTS && s.pass == 2", "simulate_test")
fault("hidden states of two parts are read once", "policy/moves.c",
      "p->decoder * (1 + p->attn_cpu) * tokens", "p->decoder * tokens", "simulate_test")
fault("ops wait for the link to the CPU", "policy/pass.c",
      "max_d(c->before + c->kv[kind].prompts, c->to_cpu - c->last);", "c->before + c->kv[kind].prompts + c->to_cpu;", "cost_test")
fault("what crosses to the CPU is priced as f32", "policy/pass.c",
      "(heads + kv) * cross.in +", "(heads + kv) * 4 +", "cost_test")
fault("prompts attend on the CPU beside a device", "policy/pass.c",
      "        forced.kv[kind].prompt_pairs = 0;\n", "", "cost_test")
fault("what prompts leave takes nothing of the link", "policy/pass.c",
      "cross.out + kept,", "cross.out,", "cost_test")
fault("weights that are made in RAM are foreseen as read", "policy/pass.c",
      "        !(w->p->set->weights->made_here && plan_layer_made(plan, s.layer)))", "        !(w->p->set->weights->made_here && !plan->device))", "cost_test")
fault("each half of a layer waits for the ops of both", "policy/device_layer.c",
      "2 * qkv, tokens, tile) + other_s / 2,", "2 * qkv, tokens, tile) + other_s,", "cost_test")
fault("a device's layer has 11 ops whatever its shape", "policy/device_layer.c",
      "launch_s.value * layer_ops(set->shape);", "launch_s.value * 11;", "cost_test")
fault("a device waits for its ops once a step", "policy/device_layer.c",
      "device_launches_s(set) * ceil(tokens / tile) +", "device_launches_s(set) +", "cost_test")
fault("what is between matmuls takes no time on a device", "policy/device_layer.c",
      "rate(tokens * row_bytes(s), m->device_read.value);", "0 * row_bytes(s);", "cost_test")
fault("a device reads experts that no token goes to", "policy/device_layer.c", "number * mlps * met,", "number * mlps,", "cost_test")
fault("a device's experts get their tokens for nothing", "policy/device_layer.c", "4 * experts *", "0 * experts *", "cost_test")
fault("tiles are made where they stay", "policy/plan.c",
      "    return plan_layer_home(plan, layer) == TIER_RAM && !plan_layer_decoded(plan, layer);",
      "    return plan_layer_home(plan, layer) == TIER_RAM;", "cost_test")
fault("what comes back from the CPU takes nothing of the link", "policy/pass.c",
      "l->s[LANE_H2D] + l->to_device_s", "l->s[LANE_H2D]", "cost_test")
fault("look-ahead hides everything", "policy/walk.c",
      "w->framed >= w->plan->ahead_weights", "w->framed >= w->plan->ahead_weights + 20", "walk_test", "cost_test")
fault("weights are fetched while the pass before uses them", "policy/walk.c",
      "+ own > w->retire.n", "+ own > w->retire.n + own", "walk_test", "engine_test")
fault("resident layers use up the look-ahead", "policy/walk.c",
      "plan_layer_framed(w->plan, next->layer) && next->n > w->n;", "next->n > w->n;", "walk_test")
fault("a step waits for nothing", "policy/pass.c",
      "            start = max_d(start, servers_wait(&r->servers, &r->ready[i][s.n]));", "            (void)servers_wait(&r->servers, &r->ready[i][s.n]);", "cost_test")

# ---- another plan under way

fault("the line is left with steps under way", "engine/line/engine.c",
      "    while (walk_left(&e->walk, &s))\n", "    while (0 && walk_left(&e->walk, &s))\n",
      "replan_test.py --only changed --only on_device")
fault("one of the rows that go back", "engine/job/job_queue.c",
      "            continue;\n        l->next_requeued = job->requeued;\n        job->requeued = l;\n",
      "            continue;\n        l->next_requeued = NULL;\n        job->requeued = l;\n", "simulate_test")
fault("work that is left counts what is done", "engine/job/job_scan.c",
      "(int64_t)(row->cap - row->known) * l->stride", "(int64_t)row->cap * l->stride", "simulate_test")
fault("rows that began know their prompt only", "engine/job/job_scan.c",
      "r->n_prompt, r->n_tokens, r->n_cap, .shared", "r->n_prompt, r->n_prompt, r->n_cap, .shared", "simulate_test")
fault("a limit that was lowered is none", "engine/api/replan.c",
      "    if (limit < was) {\n", "    if (limit < 0) {\n", "replan_test.py --only limit_lowered")
# ---- what a plan tells

ALTERNATIVES, HELPS = "explain_test.py --only alternatives", "explain_test.py --only would_help"
fault("a ranking begins with the slowest", "policy/search_climb.c",
      "for (; i > 0 && to->list[i - 1].job_s > r->s; i--)", "for (; i > 0 && to->list[i - 1].job_s < r->s; i--)", "plan_test")
fault("a ranking without room drops the fastest", "policy/search_climb.c",
      "(to->n == to->cap && to->list[to->n - 1].job_s <= r->s)", "to->n == to->cap", "plan_test")
fault("a ranking keeps what another search found", "policy/search.c", "        ranking->n = 0;\n", "        ;\n", "plan_test")
fault("any plan is an alternative", "engine/api/explain.c",
      "c->job_s + make_s <= r->decision.time.job_s * WITHIN &&", "make_s >= 0 &&", ALTERNATIVES)
fault("much the same is an alternative", "engine/api/explain.c",
      "            other = differ(&c->plan, &e->alternatives[k].plan);", "            other = 1;", ALTERNATIVES)
fault("an alternative with the flags of the plan", "engine/api/explain.c",
      "plan_freeze_as(r, &a->plan, a->freeze, sizeof a->freeze);", "plan_freeze(r, a->freeze, sizeof a->freeze);", ALTERNATIVES)
fault("few rows have the scratch of many", "engine/line/layer.c",
      "min_i64(p->batch * costs->attend_row_bytes, costs->attend_rows_bytes);", "costs->attend_rows_bytes;", "cost_test")
fault("rows attend in the scratch of one", "engine/line/layer.c",
      "max_i64(tile, p->attn_cpu ? 0 : rows)", "max_i64(tile, p->attn_cpu ? 0 : 0 * rows)", "cost_test", "simt_line_test")
fault("scratch for the threads of this machine", "engine/api/run_rates.c",
      "    return r->elsewhere ? take_threads(r) : OK;", "    return r->elsewhere && 0 ? take_threads(r) : OK;", ALTERNATIVES)
fault("a disk that writes no faster", "engine/api/explain_help.c",
      "    struct rate *rates[] = {&m.nvme_read, &m.nvme_write, ", "    struct rate *rates[] = {&m.nvme_read, ", HELPS)
fault("memory that nobody gets", "engine/api/explain_help.c", "? &budget.device : &budget.ram) = all << 20;",
      "? &budget.device : &budget.ram) = m->budget;", HELPS)
fault("matmuls are all there is", "engine/api/explain_help.c",
      "        return tokens * flops / r->machine.device_flops.value;",
      "        return 8 * tokens * flops / r->machine.device_flops.value;", HELPS)
fault("what would help is searched whatever bounds the job", "engine/api/explain_help.c",
      "r->decision.time.job_s < l->least_s * (1 + WORTH))\n        return 0;", "r->decision.time.job_s < 0)\n        return 0;",
      "explain_test.py --only cheap")
fault("attention elsewhere is planned as it is", "engine/api/variant.c", "        with.attn = v->attn;\n", "", HELPS)
fault("a search ends on its first hill", "policy/search_climb.c", "#define WORK_MOST    1e7", "#define WORK_MOST   1e6",
      "explain_test.py --only by_hand")
fault("flags of --policies are said to do nothing", "engine/api/advice.c", "EVICT_FULL && !c->compares_policies)", "EVICT_FULL)",
      "attention_test.py --only outputs")
fault("the least help first", "engine/api/explain_help.c",
      "e->helps[i - 1].gain < h->gain; i--)", "e->helps[i - 1].gain > h->gain; i--)", HELPS)

# ---- plans that would be otherwise, plan files

FLAGS, PYTHON = "plan_flags_test.py --only flags_win", "python_test.py --only"
fault("what brings nothing has a row", "engine/python/sluice/whatif.py", "or (row[\"tokens_per_s\"] or 0) >= WORTH *", "or 0 == 0 *", f"{PYTHON} allows")
fault("a sweep goes through its last flag only", "engine/python/sluice/whatif.py", "itertools.product(*swept.values())", "zip(*swept.values())",
      f"{PYTHON} sweeps")
fault("int8 costs over weights that stay bf16", "engine/api/explain.c", "        v.compute = COMPUTE_BF16;\n", "        ;\n", f"{PYTHON} allows")
fault("slots of a variant are the run's", "engine/api/variant.c",
      "    return plan_work(r);\n", "    return OK;\n", HELPS)
fault("KV formats are attended over alike", "engine/api/run_plan.c",
      "    r->costs.attend_rate = run_attend_rate(r);\n",
      "    if (r->costs.attend_rate == 0)\n        r->costs.attend_rate = run_attend_rate(r);\n", f"{PYTHON} advice")
fault("what is not there is encoded", "engine/api/run_plan.c", "    if (r->model != &r->session->opened.model)\n", "    if (0)\n", f"{PYTHON} advice")
fault("another format keeps the slices of the head", "engine/model/pack_write.c",
      "        as->n_layers = w->n_layers;\n", "", "pack_as_test", HELPS)
fault("auto is no flag to a plan file", "engine/api/plan_file.c",
      "is_open && !by_percent && !config_given(c, f->flag)", "is_open && !by_percent", FLAGS)
fault("a plan file's counts hold for any number of batches", "engine/api/plan_file.c",
      "    keep_shares(r, plan, wish);\n", "", FLAGS)
fault("a plan file of other KV is taken without a word", "engine/api/plan_file.c",
      "        compare_kv(r, json_object_get(root, \"kv\"));\n", "        ;\n", FLAGS)
fault("--threads beside a machine file passes in silence", "engine/api/run_rates.c",
      'config_given(r->config, "threads") && r->machine.threads != threads', "0", "plan_flags_test.py --only threads_of_run")
fault("a machine file's ram is no budget", "engine/api/run_rates.c",
      "ram = r->elsewhere ? m->ram : min_i64(ram, m->ram);", "ram = min_i64(ram, INT64_MAX);", "plan_flags_test.py --only capacities")

# ---- several machines

MACHINES = "plan_machines_test.py --only"
fault("a cut looks at its last stage alone", "policy/cut.c", "max_d(own, least[at])", "own", "cut_test")
fault("a stage without layers", "policy/cut.c", "int at = n - 1; at >= s", "int at = n; at >= 0", "cut_test")
fault("a cut is read off by the wrong stage", "policy/cut.c", "first[s] = from[s][first[s + 1]];", "first[s] = from[0][first[s + 1]];", "cut_test")
fault("rows go to all alike", "engine/api/machines.c", "s->rows /= max_d(s->time.job_s, 1e-9);", "s->rows = 1;", f"{MACHINES} unlike")
fault("a list has no end", "engine/api/machines.c", "many > MACHINES_MAX - machines", "many > MACHINES_MAX", f"{MACHINES} bad")
fault("one machine is a pipeline", "engine/cli/commands_plan.c", "if (machines->n == 1)", "if (0)", f"{MACHINES} one")
fault("layers go to all stages alike", "engine/api/stages.c", "f->s_per_byte[i] * f->layer_bytes[layer];", "1;", f"{MACHINES} unlike")
fault("stages take batches of their own", "engine/api/stages.c", "enum err err = plan_stages(f, &common, p);",
      "enum err err = OK;", f"{MACHINES} unlike")
fault("a pipeline is full at once", "engine/api/stages.c", "p->fill_s = way_s - most_s / p->groups;", "p->fill_s = 0;", f"{MACHINES} equal")
fault("a network of any speed", "engine/api/stages.c", "s->hop_s = i + 1 < p->n ? hop_s(f, p, i, passes) : 0;", "s->hop_s = 0;", f"{MACHINES} links")
fault("p2p between boxes", "policy/machine.c", "one_box && a->p2p > 0", "a->p2p > 0", f"{MACHINES} links")
fault("the faster network counts", "policy/machine.c", "min_d(net_rate(a), net_rate(b))", "max_d(net_rate(a), net_rate(b))", f"{MACHINES} links")
fault("one read of the weights serves all groups", "policy/moves.c", "m->every[i] *= sweeps;", "m->every[i] *= 1 + 0 * sweeps;", f"{MACHINES} streams")
fault("the slower way is named", "engine/cli/commands_machines.c", "w->shared_s > w->pipeline.job_s * TIE", "w->shared_s < w->pipeline.job_s * TIE",
      f"{MACHINES} equal")

# ---- the search

fault("a batch that is asked for has no last resort", "policy/search.c", "(most < each || wish->batch > 0)", "most < each", f"{MACHINES} given")
fault("nobody climbs", "policy/search_climb.c",
      "    while (s->best && !is_over(s)", "    while (0 && !is_over(s)", "search_test")
fault("a fifth is a tie", "policy/search_climb.c", "#define TIE          1.02", "#define TIE          1.2", "search_test")
fault("shares are those of other batches", "policy/search_climb.c",
      "            keep_shares(s, &other.plan);\n", "            (void)keep_shares;\n", "plan_test")

# ---- the frontier, and attention

FRONTIER, ATTENTION = "frontier_test.py --only", "attention_test.py --only"
fault("rows that hold too little are met on the way", "bench/frontier.c", "    TRY(check_rows(&c, &p->evict));\n", "    (void)check_rows;\n",
      f"{FRONTIER} refused")
fault("the slowest point is the fastest", "bench/frontier.c", "    return a->tokens_per_s >= b->tokens_per_s * SAME_SPEED &&",
      "    return a->tokens_per_s <= b->tokens_per_s * SAME_SPEED &&", f"{FRONTIER} pareto")
fault("a hair's breadth of speed is worth any loss", "bench/frontier.c", "#define SAME_SPEED 0.99", "#define SAME_SPEED 1.0", f"{FRONTIER} pareto")
fault("a ring has no bytes", "bench/frontier.c", "pages.page_bytes + ring_bytes;", "pages.page_bytes;", f"{FRONTIER} kv_bytes")
fault("pass keys stand elsewhere", "bench/needle.c", "filler * (2 * depth + 1) / (2 * NEEDLE_DEPTHS)", "filler * depth / NEEDLE_DEPTHS",
      f"{FRONTIER} needles")
fault("a share of pass keys that counts from nothing", "bench/frontier.c", "(row->needle - base->no_needle) / all", "row->needle / all",
      f"{FRONTIER} needles")
fault("what another text cost is taken", "engine/api/frontier_file.c", "strcmp(row->conditions, like->conditions) == 0", "1",
      f"{FRONTIER} resumes")
fault("bf16 and f32 cost the same", "bench/frontier.c", "hash_bytes(computes, kv - computes, hash)", "hash", f"{FRONTIER} resumes")
fault("what a stopped benchmark left of a row is joined by the next", "engine/api/frontier_file.c", "last == '\\n' ? \"\" : \"\\n\"",
      '""', f"{FRONTIER} resumes")
fault("a row without its end counts", "engine/api/frontier_file.c", "if (end == 0 || line[end - 1] != '\\n')", "if (end == 0)",
      f"{FRONTIER} most_scored")
fault("the last figure of a policy counts, however little was scored", "engine/api/frontier_file.c",
      "(found && scored(&one) < scored(row))", "(found && scored(&one) < 0)", f"{FRONTIER} most_scored")
fault("the rate of another job is taken", "engine/api/frontier_file.c", "strcmp(row->job, like->job) == 0", "1", f"{FRONTIER} measured")
fault("the table counts before the model's own figures", "engine/api/variant.c", "        !frontier_find(path, &like, &row))",
      "        !frontier_find(path, &like, &row) || q.more >= 0)", f"{FRONTIER} told")
fault("costs of two changes add up", "engine/api/variant.c", "        if (q[n].more >= 0)\n            return n + 1;\n", "        ;\n",
      f"{FRONTIER} told")
fault("scopes of eviction are one", "engine/api/frontier_file.c", '? " scope=layer" : ""', '? "" : ""', f"{FRONTIER} told")
fault("a window's queries see all", "bench/attention_look.c", "int low = prompt_low(a, query)", "int low = 0", f"{ATTENTION} kinds")
fault("sinks take nothing", "bench/attention_look.c", "    return sum + (a->sinks ? exp(a->sinks[head] - greatest) : 0);",
      "    return sum;", f"{ATTENTION} kinds")
fault("logits have no cap", "bench/attention_look.c", "a->cap > 0 ? a->cap * tanh(dot / a->cap) : dot", "dot", f"{ATTENTION} kinds")
fault("a head looks at another's keys", "bench/attention_look.c", "kv_head = head / (l->n_heads / l->n_kv_heads)",
      "kv_head = head % l->n_kv_heads", f"{ATTENTION} figures")
fault("queries that see little count", "bench/attention_look.c", "        if (n < LOOK_LEAST)\n            continue;\n", "",
      f"{ATTENTION} figures")
fault("figures of prompts are added up", "bench/attention_look.c", "        l->figures[i] /= l->n_prompts;\n", "        ;\n",
      f"{ATTENTION} figures")
fault("a ring's tokens are not kept", "bench/attention_look.c",
      "        for (int pos = n - evict_ring_used(ring, n); pos < n; pos++)\n            kept[pos] = 1;\n", "", f"{ATTENTION} alike")
fault("sets are compared with themselves", "bench/attention_look.c", "jaccard(l->kept + (a * of_set + i) * l->n_prompt,",
      "jaccard(l->kept + (b * of_set + i) * l->n_prompt,", f"{ATTENTION} overlaps")

# ---- memory that no plan counts, and packs

fault("the probe's threads take what scratch they want", "offload/probe_matmul.c",
      "(c->memory_bytes > 0 && probe_bed_bytes(b, &p) > c->memory_bytes)", "0", "budget_test.py --only many_threads")
fault("a probe takes more than the budget", "offload/probe.c",
      "if (c->memory_bytes > 0 && bytes > c->memory_bytes)", "if (0)", "budget_test.py --only many_threads")
fault("a line may be as long as it wants", "engine/job/job.c",
      "    if (job->config.line_max > 0)\n", "    if (0)\n", "budget_test.py --only one_long_line")
fault("the buffer of a long line is kept", "engine/data/jsonl.c",
      "if (j->buf_cap <= JSONL_WINDOW_BYTES)", "if (1)", "jsonl_test")
fault("a pack is its model's by name", "engine/api/opened.c",
      "o->model.source != source;", "0;", "command_test.py --only foreign_pack")
fault("two models of one size are one", "engine/model/pack.c",
      "sum = hash_bytes(block, n, sum);", "sum += (uint64_t)n;", "command_test.py --only foreign_pack")

# ---- what is worked on at once

fault("a device's tile is that of RAM", "policy/plan.c:plan_tile_tokens", "PLAN_TILE_TOKENS << (PLAN_TILES - 1);", "PLAN_TILE_TOKENS;", "tiles_test")
fault("RAM has a device's tile", "policy/search.c:search_tiles", "s->wish->device ? plan_tile_tokens(", "1 ? plan_tile_tokens(", "tiles_test")
fault("a tile takes a 16th of a device", "policy/plan.c", "#define TILE_SHARE  32 ", "#define TILE_SHARE  16 ", "tiles_test")
fault("scratch has no part in the size of a tile", "engine/line/layer.c:layer_tile_bytes", "    place_scratch(&w, &c);\n", "", "tiles_test")
fault("scratch is that of the smallest tile", "engine/line/layer.c:tile_size", "PLAN_TILE_TOKENS << i < tile_tokens", "PLAN_TILE_TOKENS << i < 0",
      "tiles_test")
fault("costs are counted for one size of a tile", "engine/line/costs.c:engine_costs", "const int tile = PLAN_TILE_TOKENS << i;",
      "const int tile = PLAN_TILE_TOKENS;", "costs_test")
fault("a tile is much larger than any step", "policy/plan.c:derive_tiles", "plan->tile_tokens / 2 >= plan->step_tokens",
      "plan->tile_tokens / 2 > plan->step_tokens", "tiles_test")
fault("a batch that the search took is refused", "policy/search.c:search_all", "late.ahead_state = 0;", "", "plan_device_test.py --only given")
fault("nothing fits beside a large tile", "policy/search.c:search_tiles", "if (best || s->tile_tokens == PLAN_TILE_TOKENS)", "if (1)",
      "tiles_test")
fault("a device's head has more positions at once than there are", "policy/plan.c:derive_tiles",
      "(int)min_i64(plan->head_positions, PLAN_DEVICE_POSITIONS)", "PLAN_DEVICE_POSITIONS", "tiles_test")
fault("logits have the place that they take in RAM", "engine/line/layer.c", "w->logits, n * HEAD_TILE);",
      "w->logits, PLAN_TILE_POSITIONS * HEAD_TILE);", "tiles_test")
fault("positions beyond a tile of the head are left out", "engine/line/layer_head.c:layer_slice",
      "i += w->plan->tile_positions) {", "i += w->plan->tile_tokens) {", "line_device_test")
fault("the head's weights are read once a tile of tokens", "policy/pass.c:cost_on_device",
      "  p->plan->tile_positions);", "  p->plan->tile_tokens);", "tiles_test")
fault("a layer's weights are read once a pass", "policy/device_layer.c:device_matmul_s", "ceil(tokens / tile) * bytes", "bytes", "tiles_test")
