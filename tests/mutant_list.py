"""The faults of mutants.py: what goes wrong, where, and which tests have to see it.

Each changes one line, or one thing, of the product. A test is a cmocka binary or `driver.py ARGS`; the first
that fails kills. When a line here no longer matches the source, the fault moves with the code or goes with it.
"""
from mutant_fault import fault


BYTES = "placement_test.py --only=placements"
DISORDER = "disorder_test.py"
LINE = "line_device_test"
VERIFY_KV, VERIFY_HIDDEN = "verify_test.py --only kv", "verify_test.py --only hidden"
VERIFY_WEIGHTS, VERIFY_ROWS = "verify_test.py --only weights", "verify_test.py --only rows"

# ---- order of bytes: reads and writes of an extent, frames, look-ahead

fault("a KV read does not wait for the last write", "engine/line/home_kv.c",
      "    frames_fetch(&h->kv_frames, f, n, use_of(h, home, step, layer, batch));",
      """    struct last_write none = {0};
    struct frame_use use = use_of(h, home, step, layer, batch);
    use.last = &none;
    frames_fetch(&h->kv_frames, f, n, use);""", DISORDER)
fault("a hidden-state read does not wait for the last write", "engine/line/home_hidden.c",
      "    frames_fetch(&h->hidden_frames, f, n, use_of(h, step, batch));",
      """    struct last_write none = {0};
    struct frame_use use = use_of(h, step, batch);
    use.last = &none;
    frames_fetch(&h->hidden_frames, f, n, use);""", DISORDER)
fault("the last write of KV is not remembered", "engine/line/frames.c",
      "        *use.last =", "        if (use.layer < 0)\n            *use.last =", DISORDER)
fault("the last write of hidden states is not remembered", "engine/line/frames.c",
      "        *use.last =", "        if (use.layer >= 0)\n            *use.last =", DISORDER)
fault("a frame is taken while it is still written", "engine/line/frames.c",
      "    TRY(frames_wait(f->mover, f->trace, &oldest->write, step));\n", "", DISORDER)
fault("compute does not wait for its KV", "engine/line/home_kv.c",
      """    else
        TRY(frames_ready(&h->kv_frames, f));
    *base""", "    *base", DISORDER)
fault("compute does not wait for its weights", "engine/line/home_weights.c",
      "        TRY(frames_wait(h->mover, h->trace, &w->ticket, step));\n", "", DISORDER, BYTES)
fault("a page's dirty bit is dropped", "engine/line/stage.c",
      ">> (p.page & 63) & 1)", ">> (p.page & 63) & (p.page + 1 < p.n))", BYTES)
fault("a page that fills up is not moved to its frame", "engine/line/layer_spans.c",
      "n_slots % PAGE_SLOTS && before != tail)", "0 && before != tail)", BYTES)
fault("a tail page is moved 64 bytes short", "engine/line/layer_spans.c",
      "                 w->rows.layout.page_bytes);\n", "                 w->rows.layout.page_bytes - 64);\n", BYTES)
fault("the tail of another layer", "engine/line/home_kv.c",
      "    return h->kv_tails + at * h->plan->batch * h->kv_tail_bytes;",
      "    return h->kv_tails + (at > 1 ? at - 1 : at) * h->plan->batch * h->kv_tail_bytes;", BYTES)
fault("a KV extent is that of the batch before", "engine/line/home_kv.c",
      "return ((int64_t)layer * h->plan->batches + batch) * plan_pool_pages(h->plan);",
      "return ((int64_t)layer * h->plan->batches + (batch > 1 ? batch - 1 : batch)) * plan_pool_pages(h->plan);", BYTES, DISORDER)
fault("look-ahead brings pages of the pass before", "engine/line/stage.c",
      "s.layer - 1, s.pass != b->pass, &p)", "s.layer - 1, 0 * (s.pass != b->pass), &p)", "placement_test.py --only=streamed", BYTES)
fault("hidden states of the batch before", "engine/line/home_hidden.c",
      "int64_t first = h->hidden_offset[home.tier] + home.rank * h->hidden_frame_bytes;",
      "int64_t first = h->hidden_offset[home.tier] + (home.rank > 1 ? home.rank - 1 : home.rank) * h->hidden_frame_bytes;",
      BYTES, LINE)
fault("a weight frame is given back too early", "engine/line/stage.c",
      "+ e->order.batches - 1 && s.whole)", "&& s.whole)", BYTES, DISORDER)
fault("look-ahead beyond what the order allows", "policy/plan.c",
      "return max_i64(0, order_pass_steps(order) - 1 - plan->window - apart);",
      "return max_i64(0, order_pass_steps(order) + 2 + apart);", "plan_test",
      DISORDER)
fault("the order of layers: slices before the last decoder layer", "policy/walk.c",
      "s->layer <= order->decoder ? STEP_DECODE", "s->layer < order->decoder ? STEP_DECODE", "walk_test")
fault("a two-part layer starts its batches out of turn", "policy/walk.c",
      "batch + 1 + (batch + 1 < last));", "batch + 1);", "walk_test")

# ---- stored bytes: checksums, errors

fault("the checksum of a read is not compared", "offload/mover.c",
      "return !s->crc || unit_crc(p, i) == s->crc[p->from / PIECE_BYTES];", "return 1;", "mover_test")
fault("only the first piece of a segment is checked", "offload/mover.c",
      "return !s->crc || unit_crc(p, i) == s->crc[p->from / PIECE_BYTES];",
      "return p->from > 0 || unit_crc(p, i) == s->crc[p->from / PIECE_BYTES];", "mover_test")
fault("what is right at the second read stays wrong", "offload/mover.c",
      "            p->ticket->segments[i].err = OK;\n        atomic_fetch_add(&m->repaired, 1);",
      "            p->ticket->segments[i].err = ERR_CORRUPT;\n        atomic_fetch_add(&m->repaired, 1);", "mover_test")
fault("the second read is believed", "offload/mover.c",
      "int right = p->io.err == OK && piece_decode(m->codec, p) && unit_is_right(p, i);",
      "int right = p->io.err == OK && piece_decode(m, p);", "mover_test")
fault("one bad segment fails its neighbours", "offload/mover.c",
      "        if (wrong && p->n > 1)\n            p->ticket->segments[i].err = ERR_BUSY;",
      "        if (p->n > 1)\n            p->ticket->segments[i].err = wrong ? ERR_BUSY : ERR_CORRUPT;", "mover_test")
fault("a failed write is nobody's affair", "offload/mover.c",
      "if (t->write || e == ERR_DEVICE || ring_lost(m->ring))", "if (ring_lost(m->ring))", "mover_test")
fault("neighbours travel together that are none", "offload/mover.c",
      "s[n].offset == s[0].offset + *n_bytes &&", "s[n].offset >= s[0].offset + *n_bytes &&", "mover_test")
fault("neighbours in the place travel together, wherever they go", "offload/mover.c",
      "s[n].buf == (void *)((uint8_t *)s[0].buf + *n_bytes))", "1)", "mover_test")
fault("the earliest due does not go first", "offload/mover.c",
      "while (*at && (*at)->due <= t->due)", "while (*at && (*at)->due >= t->due)", "mover_test")
fault("`after` is forgotten", "offload/mover.c",
      "return !a || a->state != TICKET_QUEUED || a->seq != t->after_seq;",
      "return !a || a->state != TICKET_QUEUED || a->seq != t->after_seq + 1;", "mover_test")
fault("a page that could not be read is used", "engine/line/home_kv.c",
      "    if (!f || !f->bad)\n        return OK;\n", "    if (!f || 1)\n        return OK;\n", "verify_test.py --only kv")
fault("the wrong page's error", "engine/line/home_kv.c",
      "return f->segments[f->pages[id]].err;", "return f->segments[f->pages[id] > 0 ? f->pages[id] - 1 : 0].err;", VERIFY_KV)
fault("hidden states that could not be read are used", "engine/line/home_hidden.c",
      "    if (!f || !f->bad)\n        return OK;", "    if (!f || 1)\n        return OK;", VERIFY_HIDDEN)
fault("a lost prompt leaves those that share with it", "engine/line/stage.c",
      "        if (i == b->first_prompt)\n            shared = err;\n", "", "verify_test.py --only sharers")
fault("a lost row is not computed again", "engine/line/stage.c",
      "    row->lost = 1;\n", "", VERIFY_KV, VERIFY_HIDDEN)
fault("a gathered row is taken from the window beside it", "engine/line/gather.c",
      "row->ahead_window = n;", "row->ahead_window = n > 0 ? n - 1 : n;", BYTES)
fault("a gathered row that did not come is used", "engine/line/gather.c",
      "g->ahead[batch->index].segments[row->ahead_window].err == OK", "1", VERIFY_ROWS)
fault("the codec's wrong bytes are not looked at", "offload/mover.c",
      "return codec_decompress(codec, p->io.buf, p->io.n_bytes, p->ram, p->n_bytes) == 0;",
      "codec_decompress(codec, p->io.buf, p->io.n_bytes, p->ram, p->n_bytes / 2);\n    return 1;", "codec_test",
      "verify_test.py --only zstd")
fault("a short read counts as whole", "offload/ring.c",
      "if (io->done_bytes == io->n_bytes)", "if (io->done_bytes > 0)", "ring_test")
fault("a checker's wrong pieces are right", "offload/mover.c:piece_complete", "p->n_wrong >= 0 ? p->n_wrong :", "p->n_wrong >= 0 ? 0 :",
      "mover_test")
fault("the rest of a short read goes to its start", "offload/ring.c",
      "char *buf = (char *)io->buf + io->done_bytes;", "char *buf = (char *)io->buf;", "ring_test")

# ---- batches, rows, pages

fault("prefix sharing is blind to one token", "engine/line/batch.c",
      "while (shared < most && tokens[shared] == r->tokens[shared] && !wants_score(r, shared))",
      "while (shared < most && (shared == 5 || tokens[shared] == r->tokens[shared]) && !wants_score(r, shared))",
      "placement_test.py --only=prefixes")
fault("prefix sharing under scores", "engine/line/batch.c",
      "if (t->first_prompt < 0 || evict_prompt_scores(b->evict->policy))", "if (t->first_prompt < 0)",
      "placement_test.py --only=prefixes")
fault("a row that leaves keeps its pages", "engine/line/batch.c",
      "        t->free_pages[t->n_free_pages++] = row->pages[--row->n_pages];",
      "        row->n_pages--;", "placement_test.py --only=requeues", BYTES)
fault("pages of a row that leaves are handed out twice", "engine/line/batch.c",
      "        row->pages[row->n_pages++] = t->free_pages[--t->n_free_pages];",
      "        row->pages[row->n_pages++] = t->free_pages[t->n_free_pages > 1 ? --t->n_free_pages : 0];",
      "placement_test.py --only=requeues")
fault("the oldest row returns to the queue instead of the youngest", "engine/line/batch.c",
      "t->rows[r].entered > young->entered", "t->rows[r].entered < young->entered", "placement_test.py --only=requeues")
fault("positions are compacted one too few", "engine/line/layer_head.c",
      ".n = batch->n_positions,\n                                .dim", ".n = batch->n_positions - 1,\n                                .dim", BYTES)
fault("a forced span is cut one token late", "engine/line/layer_spans.c",
      "int pos = c->span->pos + c->offset;", "int pos = c->span->pos;",
      "placement_test.py --only=forced")
fault("RoPE of the cut's own tokens starts at its span", "engine/line/layer_spans.c",
      "c->span->pos + c->offset + j;", "c->span->pos + j;",
      "placement_test.py --only=prefixes")

# ---- eviction

fault("ties of ranks: the youngest goes", "kernels/cpu/attend_forced_evict.inc",
      "((key == first) & (pos < first_pos))", "((key == first) & (pos > first_pos))", "attend_test")
fault("ties between lanes: the youngest goes", "kernels/cpu/attend_forced_evict.inc",
      "(of > key || (of == key && pos_at > best.pos))",
      "(of > key || (of == key && pos_at < best.pos))", "attend_test")
fault("ties of a prompt's ranks: the youngest goes", "policy/evict.h",
      "return rank_a < rank_b || (rank_a == rank_b && pos_a < pos_b);",
      "return rank_a < rank_b || (rank_a == rank_b && pos_a > pos_b);", "plan_test")
fault("one recent position too few is protected", "policy/evict.h",
      "return pos < row->sink || pos > now - row->recent;", "return pos < row->sink || pos > now - row->recent + 1;",
      "prompt_test", "attend_test")
fault("the victim's slot is the next one", "kernels/cpu/attend_forced_evict.inc",
      "slot = v.slot == u->n_slots ? -1 : v.slot;",
      "slot = v.slot == u->n_slots ? -1 : (v.slot + 1) % u->n_slots;", "attend_test")
fault("the new token's own weight is not scored", "kernels/cpu/attend_forced_evict.inc",
      "            own += u->own[h * u->group + r];", "            own += 0;", "attend_test")
fault("a written slot keeps the victim's score", "kernels/cpu/attend_forced_evict.inc",
      "            kv->slot_score[meta + slot] = score;", "            (void)score;", "attend_test")
fault("a page that eviction changed is not dirty", "kernels/cpu/attend_forced_evict.inc",
      "__atomic_fetch_or(&kv->dirty[page / 64], 1ull << (page % 64), __ATOMIC_RELAXED);",
      "__atomic_fetch_or(&kv->dirty[page / 64], (uint64_t)(slot == u->n_slots) << (page % 64), __ATOMIC_RELAXED);",
      "attend_test", BYTES)
fault("the ring's slot is one off", "kernels/cpu/attend_forced_evict.inc",
      "int slot = (s->pos + i) % kv->ring_slots;", "int slot = (s->pos + i + 1) % kv->ring_slots;", "attend_test")
fault("a prompt keeps one position too many for the ring", "kernels/cpu/slots.c",
      "first_in_ring = a->n_prompt - kv_ring_used(kv, a->n_prompt);",
      "first_in_ring = a->n_prompt - kv_ring_used(kv, a->n_prompt) + (kv->ring_slots > 0);", "attend_test", "kv_test",
      "prompt_test")
fault("scope layer ranks by the first head alone", "kernels/cpu/slots.c",
      "int first = layer ? 0 : head, last = layer ? a->from.n_kv_heads : head + 1;",
      "int first = layer ? 0 : head, last = layer ? 1 : head + 1;", "prompt_test", "attend_test")
fault("a fractional budget counts the prompt alone", "policy/evict.c",
      "of = e->budget_of_prompt ? n_prompt : n_tokens;", "of = n_prompt;", "plan_test")
fault("a fractional budget counts all, whatever it is of", "policy/evict.c",
      "of = e->budget_of_prompt ? n_prompt : n_tokens;", "of = n_tokens;", "plan_test")

# ---- matmuls of several parts

fault("every part ends as the first one does", "kernels/cpu/matmul.inc",
      "            .part = p,\n", "            .part = t->args->parts,\n", "parts_test")
fault("int8 multiplies the first part's panels for all", "kernels/cpu/matmul_int8.inc",
      "*part = &t->args->parts[s->part];", "*part = &t->args->parts[0];", "parts_test")
fault("no thread has the last panel of a later part's share", "kernels/cpu/cpu.h",
      "s->last = min_i64(max_i64(to, 0) / cost, n_panels);",
      "s->last = min_i64(max_i64(to, 0) / cost, n_panels) - (i > 0);", "parts_test")
fault("K and V take the bias of Q", "engine/line/layer.c",
      "bias_vector(l, p->bias, weights),", "bias_vector(l, projections->bias, weights),",
      "score_golden.py")

# ---- families

fault("a row turns by what its prompt's length says", "engine/line/batch.c",
      "row->request->n_cap > shape->rope_long", "row->request->n_prompt > shape->rope_long", "family_golden.py --only phi3")
fault("a long row shares what a short one has turned", "engine/line/batch.c",
      "!= batch_turns_long(b->shape, row))\n        return 0;", "!= batch_turns_long(b->shape, row))\n        shared = 0;",
      "family_golden.py --only phi3")
fault("norms that are stored less 1 stay so", "engine/model/pack_source.c",
      "ROLE_BIT(role)) ? 1.0f : 0.0f;", "ROLE_BIT(role)) ? 0.0f : 0.0f;", "family_golden.py --only gemma")
fault("attention's norm serves the MLP beside it", "engine/line/layer_decode.c",
      "shared ? ROLE_NORM1_W : ROLE_NORM2_W", "shared ? ROLE_NORM1_W : ROLE_NORM1_W", "family_golden.py --only gpt_neox")
fault("layers without positions turn", "engine/line/layer_spans.c",
      "s->position != POSITION_ROPE || s->layer_rope[layer] == SHAPE_NO_ROPE", "s->position != POSITION_ROPE",
      "family_golden.py --only smollm3")
fault("branches are added whole", "engine/line/layer_ffn.c",
      "layer_mix(w, x, branch, 1, scale,", "layer_mix(w, x, branch, 1, 1,", "family_golden.py --only granite")
fault("every head of q is normed by the first one's weight", "engine/line/layer_decode.c",
      "        args.weight += dim;\n", "", "family_golden.py --only stablelm")
fault("a weight that nobody reads is no matter", "engine/model/families/family.c",
      "                TRY(check_strangers(m, s, i, ROLE_NORM1_W));\n", "", "family_test")

fault("the text's keys are looked for in the whole", "engine/model/containers/source.c",
      "    if (!s->section)\n        return key;", "    if (s->path)\n        return key;", "family_golden.py --only vision")
fault("scores are scaled by the head where nobody says", "engine/model/families/family_gemma3.c",
      "s->kind == SOURCE_HF ? SCALAR : 0", "0", "family_golden.py --only vision")
fault("the text's keys may say anything", "engine/model/families/family_gemma3.c",
      "    TRY(family_check_keys(&text, name, name));\n", "", "family_test")
fault("a vision tower passes for text", "engine/model/families/family.c",
      "        u->n_tensors++;\n", "", "family_test", "family_golden.py --only vision")

fault("a window is one token too wide", "policy/evict.h",
      "kind_row->budget = kind_row->budget < of.window - 1 ? kind_row->budget : of.window - 1;",
      "kind_row->budget = kind_row->budget < of.window ? kind_row->budget : of.window;", "family_golden.py --only window")
fault("a prompt sees all of its keys", "engine/line/layer_attend.c",
      "        .window = s->layer_window[w->layer],\n", "", "family_golden.py --only window")
fault("pages beyond a window are fetched", "engine/line/batch.c",
      "int slots = batch_kind_slots(all->evict, row, plan_kind(all->plan, layer), taken);",
      "int slots = batch_slots_after(all->evict, row, taken + 0 * layer);", "family_golden.py --only window")
fault("the first page of a window is whole", "kernels/cpu/attend_prompt_bf16.inc",
      "const uint32_t seen = (uint32_t)((1ull << end) - 1) & ~(uint32_t)((1ull << below) - 1);",
      "const uint32_t seen = (uint32_t)((1ull << end) - 1) & ~(uint32_t)(below < 0);", "prompt_test")

# ---- soft caps and sinks

FORCED_SPLIT, PROMPT_INC = "kernels/cpu/attend_forced_split.inc", "kernels/cpu/attend_prompt.inc"
PROMPT_BF16 = "kernels/cpu/attend_prompt_bf16.inc"
GEMMA2 = "family_golden.py --only gemma2"

fault("slots are not capped", FORCED_SPLIT,
      "        row_cap(x + r * u->x_stride, n_pages * PAGE_SLOTS, u->args->cap);", "        (void)r;", "attend_test")
fault("the own token is not capped", FORCED_SPLIT,
      "u->own[r] = math_softcap(v16_sum(sum) * a->scale, a->cap);", "u->own[r] = v16_sum(sum) * a->scale;", "attend_test")
fault("a prompt's keys are not capped", PROMPT_INC, "        row_cap(x + r * n, n, a->cap);\n", "", "prompt_test")
fault("pairs of a prompt are not capped", PROMPT_BF16,
      "v16_softcap(v16_mul(v16_load(x), scale), cap);", "v16_mul(v16_load(x), scale);", "prompt_test")
fault("a prompt is capped after its mask", PROMPT_INC,
      """        row_cap(x + r * n, n, a->cap);
        row_fill(x + r * n, 0, row_low(u, first + r) - key0, -INFINITY);
        row_fill(x + r * n, n_whole + n_seen[r], n, -INFINITY);
""", """        row_fill(x + r * n, 0, row_low(u, first + r) - key0, -INFINITY);
        row_fill(x + r * n, n_whole + n_seen[r], n, -INFINITY);
        row_cap(x + r * n, n, a->cap);
""", "prompt_test")
fault("slots are capped after their mask", FORCED_SPLIT,
      """    for (int r = 0; r < rows; r++)
        row_cap(x + r * u->x_stride, n_pages * PAGE_SLOTS, u->args->cap);
    for (int h = 0; h < u->n_heads; h++)
        split_mask(u, &s, h, x + h * group * u->x_stride);
""", """    for (int h = 0; h < u->n_heads; h++)
        split_mask(u, &s, h, x + h * group * u->x_stride);
    for (int r = 0; r < rows; r++)
        row_cap(x + r * u->x_stride, n_pages * PAGE_SLOTS, u->args->cap);
""", "attend_test")
fault("slots know no sink", FORCED_SPLIT,
      "float inverse = 1.0f / (sum + own + sink);", "float inverse = 1.0f / (sum + own + 0 * sink);", "attend_test")
fault("the sinks are another KV head's", FORCED_SPLIT,
      "math_sink(u->args->sinks, u->head * u->group + row, max);", "math_sink(u->args->sinks, row, max);", "attend_test",
      "exact_test")
fault("scores of slots know no sink", FORCED_SPLIT,
      "        weight[s] *= inverse;\n", "        weight[s] *= 1.0f / (sum + own);\n", "attend_test")
fault("a prompt's keys know no sink", PROMPT_INC,
      "inverse[r] = 1.0f / (sum + math_sink(a->sinks, row_head(u, first + r), max));", "inverse[r] = 1.0f / sum;",
      "prompt_test")
fault("a prompt's scores know no sink", PROMPT_BF16,
      "        inverse[r] = isfinite(inverse[r]) ? inverse[r] * row_worth(u, first + r) : 0.0f;\n",
      "        inverse[r] = isfinite(inverse[r]) ? 1.0f / bf16_sum_lanes(b.sum[r]) : 0.0f;\n", "prompt_test")
fault("a capped prompt's sink is scaled as its logits were", PROMPT_BF16, "b.max[r] * b.scale);", "b.max[r] * b.qk_scale);",
      "prompt_test")
fault("the lower rows of a tile meet the left half of a panel twice", "kernels/cpu/matmul_tile_amx.inc",
      "_tile_dpbf16ps(3, 5, 7);", "_tile_dpbf16ps(3, 5, 6);", "tiles_exact_test", "exact_test")
fault("a group's second 16 outputs are its first", "kernels/cpu/matmul_int8_amx.inc",
      "_tile_dpbssd(1, 4, 7);", "_tile_dpbssd(1, 4, 6);", "tiles_int8_test", "int8_test")
fault("the last 16 dimensions of a head are left out", "kernels/cpu/attend_prompt_amx.inc",
      "    if (d < b->l->dim_pad)\n        AMX_QK(5, 7);\n", "", "tiles_prompt_test", "prompt_test")
fault("inputs stay f32 where products are", "kernels/cpu/matmul.inc:pack_rows",
      "if (t->round)", "if (0)", "exact_test")
fault("prompts of the line are not capped", "engine/line/layer_attend.c",
      "        .cap = s->attn_softcap,\n        .sinks = w->sinks,\n        .window",
      "        .sinks = w->sinks,\n        .window", GEMMA2)
fault("spans of the line are not capped", "engine/line/layer_attend.c",
      "                                      .cap = s->attn_softcap,\n", "", GEMMA2)
fault("logits of the line are not capped", "engine/line/layer_head.c", ".cap = w->shape->logit_softcap};", ".cap = 0};", GEMMA2)
fault("the line has no sinks", "engine/line/layer_decode.c:layer_decode",
      "    w->sinks = w->shape->sinks ? model_vector(l, ROLE_SINKS, weights) : NULL;\n", "    w->sinks = NULL;\n", "engine_test")
fault("sinks do not go to where attention runs apart", "engine/line/layer_parts.c",
      "        ops_copy(&w->ops, x->sinks, w->sinks, w->shape->n_heads * 4);\n",
      "        (void)x;\n", "line_device_test")
fault("a cap that is null is the usual one", "engine/model/families/family_gemma2.c",
      "double value = source_null(s, key) ? 0 : (double)*cap;", "double value = (double)*cap;", GEMMA2)
fault("windows are in the other layers", "engine/model/families/family.c",
      "(i + 1) % every != 0 ? window : 0;", "i % every != 0 ? window : 0;", GEMMA2)
fault("a GGUF file says nothing of a layer's window", "engine/model/families/family_llama.c",
      "        shape->layer_window[i] = has[i] ? (int)window : 0;\n    return OK;", "        (void)has[i];\n    return OK;",
      "family_test")

# ---- attention, numbers

fault("a join of splits out of order", "kernels/cpu/attend_forced_split.inc",
      """    for (int s = 0; s < n_splits; s++) {
        const float *part""",
      """    for (int s = n_splits - 1; s >= 0; s--) {
        const float *part""", "attend_test", "exact_test")
fault("the own token's weight is added first", "kernels/cpu/attend_forced_split.inc",
      "float max = u->own[row], sum = 0.0f;", "float max = u->own[row] + 1.0f, sum = 0.0f;", "exact_test")
fault("splits are joined without their weights", "kernels/cpu/attend_forced_split.inc",
      "weight[s] = math_exp(split_max[s] - max);", "weight[s] = 1.0f;", "attend_test")
fault("slots behind the last one count", "kernels/cpu/attend_forced_split.inc",
      "row_fill(x + r * u->x_stride, s->n, round_up(s->n, PAGE_SLOTS), -INFINITY);",
      "row_fill(x + r * u->x_stride, s->n, round_up(s->n, PAGE_SLOTS), 0.0f);", "attend_test")
fault("the padding of a token's own key is what scratch held", FORCED_SPLIT + ":round_to_kv",
      "    for (int d = l->head_dim; d < l->dim_pad; d++)\n        to[d] = 0.0f;\n", "", "attend_test")
fault("the padding of a query is what scratch held", FORCED_SPLIT + ":forced_begin",
      "        for (int d = l->head_dim; d < l->dim_pad; d++)\n            to[d] = 0.0f;\n", "", "attend_test")
fault("weights of empty slots of a last page are scaled", FORCED_SPLIT + ":scale_weights",
      "        row_fill(to, n, PAGE_SLOTS, 0.0f);\n", "", "attend_test")
fault("minima of empty slots of a last page are added", FORCED_SPLIT + ":scale_weights",
      "        row_fill(offset, n, PAGE_SLOTS, 0.0f);\n", "", "attend_test")
fault("keys are gathered from the first slot of a page", "kernels/cpu/kv_store.inc", "half * 16 - first", "half * 16", "ops_test")
fault("q4's second code is the first", "kernels/kv.c",
      "(int)(slow % per_word) * bits,", "(int)(slow % per_word / 2 * 2) * bits,", "kv_test")
fault("a quantised group's minimum is that of the group before", "kernels/kv.c",
      "*scale_at(l, panel, l->groups + group, slot) = g.min;",
      "*scale_at(l, panel, l->groups + (group > 0 ? group - 1 : 0), slot) = g.min;", "kv_test", "attend_test")
fault("the log-sum-exp forgets the tiles before", "kernels/cpu/head_reduce.inc",
      "s->sum = fmaf(v16_sum(sum), math_exp(max - joined), rest);",
      "s->sum = fmaf(v16_sum(sum), math_exp(max - joined), 0 * rest);", "ops_test", "sample_test")
fault("ties of logits go to the highest id", "kernels/cpu/head_reduce.inc",
      "if (!(max > s->best_logit))", "if (!(max >= s->best_logit))", "ops_test", "sample_test")
fault("noise does not know the position", "engine/job/sample.c",
      "q.noise_key = mix64(key ^ (uint64_t)pos);", "q.noise_key = mix64(key);", "sample_test", BYTES)
fault("top-k keeps one more", "engine/job/sample.c", "n = p->top_k;", "n = p->top_k + 1;", "sample_test")

# ---- the job: commits, resume, OUT

fault("a journal record is skipped", "engine/job/journal.c",
      "    j->n_buf += n_payload;\n    j->chain = r.self;", "    j->n_buf -= r.index == 3 ? RECORD_BYTES : 0;\n    j->chain = r.self;",
      "journal_test", "job_resume_test")
fault("a commit does not reach the disk", "engine/job/journal.c",
      "    TRY(write_all(j->fd, j->path, g->at, g->buf, g->n));\n    return sync_data(j->fd, j->path);",
      "    return write_all(j->fd, j->path, g->at, g->buf, g->n);", "kill_test.py --only every_point",
      "nth_test.py --only disk", "journal_test")
fault("a record's checksum is not compared", "engine/job/journal.c",
      "return r->magic == RECORD_MAGIC && r->self == record_crc(r) && r->job_id == j->job_id;",
      "return r->magic == RECORD_MAGIC && r->job_id == j->job_id;", "journal_test")
fault("the chain of records is not followed", "engine/job/journal.c",
      "!record_sound(j, r) || r->chain != j->chain)", "!record_sound(j, r))", "journal_foreign_test")
fault("tokens are committed without their payload", "engine/job/journal.c",
      "r.crc = crc32c(0, entry->ids, n_payload);", "r.crc = 0;", "journal_test")
fault("damage is taken for a torn tail", "engine/job/journal.c",
      "*found = record_sound(j, &r) && r.group > at;", "*found = 0;", "journal_test")
fault("lines of OUT are not held against the journal", "engine/job/job_out.c",
      "*sound = crc == row->crc;", "*sound = 1;", "job_out_test")
fault("a resumed row forgets its last token", "engine/job/job_queue.c",
      "for (int64_t i = 0; i < from->n; i++) {", "for (int64_t i = 0; i + 1 < from->n; i++) {", "job_resume_test")
fault("tokens are committed at every third chance only", "engine/job/job.c",
      "(double)(now - job->commit_ns) * 1e-9 >= sync_s / 2;",
      "(double)(now - job->commit_ns) * 1e-9 >= 20 * sync_s;", "kill_test.py --only loss")
fault("a commit is begun before the last one is durable", "engine/job/job_commit.c",
      "    TRY(files_commit_end(job, 1));\n    commit_take", "    commit_take", "job_ahead_test")
fault("what the writer met is forgotten", "engine/job/job_commit.c",
      "busy || w->err == OK ? OK", "busy || w->err != OK ? OK", "job_ahead_test", "nth_test.py --only disk")
fault("lines are not durable before their records", "engine/job/job_commit.c",
      "c->sync_lines = job->written_bytes > job->partial_bytes;", "c->sync_lines = 0;", "job_ahead_test")
fault("a row is asked for twice", "engine/job/job_queue.c", "    row->state = ROW_LIVE;\n", "", "job_ahead_test")
fault("what is ready ahead has no bound", "engine/job/job_queue.c",
      "(r->n_made == r->n_asked || r->n_bytes >= QUEUE_BYTES)", "r->n_made == r->n_asked", "job_ahead_test")
fault("an error of a row to come is met before its time", "engine/job/job_queue.c",
      "    if (*found && r->n_made == r->n_taken) {\n        err", "    if (*found && r->err != OK) {\n        err", "job_ahead_test")

# ---- conversations and their templates

CHAT, TEMPLATE = "request_test", "template_test"
fault("tools do not reach the template", "engine/job/request_chat.c", "                                   .tools = c->tools,\n", "", CHAT)
fault("variables of a row do not reach the template", "engine/job/request_chat.c",
      "                                   .extra = c->kwargs,\n", "", CHAT)
fault("tools that a template does not know are dropped in silence", "engine/job/request_chat.c",
      'if (asks && !template_names(c->tmpl, "tools"))', "if (0)", CHAT)
fault("members that a template does not know are dropped in silence", "engine/job/request_chat.c",
      "is_one_of(key, silent) || template_names(c->tmpl, key)", "is_one_of(key, silent) || 1", CHAT)
fault("null is a member", "engine/job/request_chat.c", "json_is_null(value) && strcmp", "0 && strcmp", CHAT)
fault("a variable stands for tools", "engine/job/request_chat.c", "if (is_one_of(key, taken))", "if (0)", CHAT)
fault("the generation prompt cannot be left out", "engine/job/request_chat.c", "= !json_is_false(prompt),", "= 1,", CHAT)
fault("a text that moves loses its last byte", "engine/text/template_text.c", "memcpy(p, b->p, (size_t)b->n);",
      "memcpy(p, b->p, (size_t)b->n - 1);", TEMPLATE)
fault("values of tools are not counted", "engine/job/request.c", "{&f->messages, &f->tools, &f->chat_template_kwargs}",
      "{&f->messages, &f->chat_template_kwargs}", CHAT)
fault("tools without messages", "engine/job/request.c", "if (!f->messages.set && (f->tools.set ||", "if (0 && (f->tools.set ||", CHAT)
fault("an argument by name that a macro does not have is dropped", "engine/text/template_run.c",
      "n_used < args->n_pos + args->n_named", "n_used < args->n_pos", TEMPLATE)
fault("tokens of the model win over a row's", "engine/text/template_run.c", "        if (value)\n            return tpl_from_json(&e->m, value, out);",
      "        if (value && key[0] != 'b')\n            return tpl_from_json(&e->m, value, out);", TEMPLATE)

# ---- a device with memory of its own

fault("a step is taken for done when it is queued", "engine/line/stage.c",
      "TRY(device->event_wait(e->stream, e->done[slot]));", "", LINE)
fault("a step is waited for by the event of the one before", "engine/line/stage.c",
      "TRY(device->event_wait(e->stream, e->done[slot]));",
      "TRY(device->event_wait(e->stream, e->done[(slot + e->config.plan.window) % (e->config.plan.window + 1)]));",
      LINE)
fault("two steps share a slot of tables", "engine/line/stage.c",
      "    tables_turn(&e->tables, s.n);\n", "    tables_turn(&e->tables, s.n / 2);\n", LINE)
fault("a weight frame is free when its ops are queued", "engine/line/stage.c",
      "    device->record(e->stream, e->done[slot]);\n",
      "    device->record(e->stream, e->done[slot]);\n    if (s.batch == e->order.batches - 1)\n"
      "        home_weights_put(&e->home, s.layer);\n", LINE)
fault("a batch begins before its tokens are there", "policy/walk.c",
      "begins ? min_i64(w->plan->window, w->order.batches) : w->plan->window", "w->plan->window + 0 * begins", "walk_test", LINE)
fault("a share is computed twice", "kernels/base/pool.c",
      "    return atomic_compare_exchange_strong(&w->taken, &before, round);",
      "    atomic_compare_exchange_strong(&w->taken, &before, round);\n    return 1;", "pool_test")
fault("the caller waits for threads that sleep", "kernels/base/pool.c",
      "if (take(&pool->workers[i], round))", "if (0 && take(&pool->workers[i], round))", "pool_test")
fault("the results of two passes share a place", "engine/line/batch.c",
      ": t->pass & 1];", ": 0];", LINE)
fault("a copy is taken for done when it is queued", "offload/mover.c",
      "    api->notify(s, piece_landed, p);", "    piece_landed(p, OK);", LINE, "device_test")
fault("copies in flight are counted, not their bytes", "offload/mover.c",
      " && m->kind_bytes[kind] < COPY_BYTES;", ";", "device_test")
fault("bytes for the device stay in the bounce buffer", "offload/mover.c",
      "    int reads = p->hop == HOP_FILE && t->on_device && !t->write;",
      "    int reads = p->hop == HOP_FILE && t->on_device && !t->write && p->from == 0;", "device_test", LINE)
fault("pages that the device wrote stay there", "engine/line/stage.c",
      "                 (int64_t)b->n_rows * rows->dirty_stride * 8);",
      "                 (int64_t)(b->n_rows - 1) * rows->dirty_stride * 8);", LINE)
fault("rows of embeddings take turns one set too few", "engine/line/gather.c",
      "&g->chunks[g->turn % g->n_chunks];", "&g->chunks[g->turn % (g->n_chunks - 1)];", LINE)
fault("RAM copies before it is read", "engine/line/home_weights.c",
      ".after = w->loads ? &w->load : NULL,", ".after = NULL,", LINE)
fault("device memory is not counted", "policy/plan.c",
      "is_over(bytes->device, budget->device,", "is_over(bytes->device - 4096, budget->device,", "plan_test")

# Attention on a thread of its own, and homes on three tiers.
SIM, SIM_REFUSALS = "sim_run_test.py --only placements", "sim_run_test.py --only refusals"
fault("attention begins before part 0 has left its numbers", "engine/line/attend.c",
      "    job->err = device->event_wait(a->cross.to_cpu, a->ready[n % ATTEND_JOBS]);",
      "    job->err = OK;\n    (void)device;", LINE)
fault("part 1 does not wait for attention", "engine/line/attend.c",
      "    while (a->n_done == a->n_waited)", "    while (0)", LINE)
fault("two batches bring their q, k and v to one place", "engine/line/attend.c",
      "        x->in = CARVE_SLAB(", "        x->in = i ? a->exchange[0].in : CARVE_SLAB(", LINE)
fault("two batches get their attention from one place", "engine/line/attend.c",
      "        x->out = CARVE_SLAB(", "        x->out = i ? a->exchange[0].out : CARVE_SLAB(", LINE)
CROSS_C = "engine/line/cross.c"
fault("the link takes numbers that ops have not left yet", CROSS_C,
      "    b->empties->device->api->stream_wait(b->empties, b->full[i]);\n", "", LINE)
fault("ops fill a buffer that is on the link", CROSS_C,
      "    b->fills->device->api->stream_wait(b->fills, b->empty[i]);\n", "", "simt_cross_test")
fault("what a matmul reads as f16 crosses as bf16", "engine/line/costs.c",
      "compute == COMPUTE_BF16 && !device->api->reads(device, compute, DTYPE_BF16).as_f16",
      "compute == COMPUTE_BF16 && device", "costs_test")
fault("k stands where q ends in f32", CROSS_C,
      "    c->buffer += n * bytes;\n", "    c->buffer += n * 4;\n", LINE)
fault("a prompt is cut where the one before is on the link", CROSS_C,
      "    belt_next(&c->kept);\n", "", "simt_cross_test")
fault("part 1 takes the attention of prompts for that of spans", "engine/line/layer_parts.c",
      "{SPAN_FORCED, SPAN_PROMPT};", "{SPAN_PROMPT, SPAN_FORCED};", LINE)
fault("what prompts leave is not written home", "engine/line/layer_parts.c:mark_prompts",
      "1ull << (page & 63);", "0ull << (page & 63);", LINE)
fault("the page that a prompt fills in part goes to the frame", "engine/line/layer_parts.c:send_kept",
      "page_id(w, b, r, i, tail)", "page_id(w, b, r, i, 0 * tail - 1)", LINE)
fault("scores of a prompt stay on the device", "engine/line/layer_parts.c:send_kept",
      "        ops_copy(copies, home->slot_score + at, rows->slot_score, n_bytes);\n", "", LINE)
fault("what prompts leave has a page too few", "engine/line/cross.c:place_kept",
      "pages * plan_page_most(p, costs)", "(pages - 1) * plan_page_most(p, costs)", LINE)
fault("layers with a window attend in the scratch of scores", "kernels/cpu/cpu.h",
      "int64_t logits = max_i64(all, SPLIT_SLOTS);", "int64_t logits = scores ? all : SPLIT_SLOTS;", LINE)
fault("attention comes back as the other width", CROSS_C,
      "cross_widen(ops, c->bytes.out, to, c->buffer, n);", "cross_widen(ops, c->bytes.in, to, c->buffer, n);", LINE)
fault("q that is still to be rotated is rounded", "engine/line/costs.c",
      " && evict->positions != EVICT_POSITIONS_SLOT)\n        bytes.in", ")\n        bytes.in", LINE)
fault("what becomes codes is rounded before", "engine/line/costs.c",
      "kv_format == KV_BF16 && evict", "kv_format != KV_F32 && evict", LINE)
fault("f32 crosses as bf16", "engine/line/costs.c",
      "if (compute == COMPUTE_BF16 && !device", "if (!device", LINE)
fault("dirty bits of the other job", "engine/line/attend.c",
      "    *dirty = a->dirty[slot];", "    *dirty = a->dirty[1 - slot];", LINE)
fault("a KV frame is given back after part 0", "engine/line/stage.c",
      "    if (!s.whole) // the part only read the hidden states\n",
      "    if (!s.whole && s.kind == STEP_DECODE)\n        TRY(home_kv_put(&e->home, s.n, s.layer - 1, s.batch));\n"
      "    if (!s.whole) // the part only read the hidden states\n", LINE)
fault("a layer's frame is given back after part 0 of its last batch", "engine/line/stage.c",
      "+ e->order.batches - 1 && s.whole)", "+ e->order.batches - 1)", LINE)
fault("the next part reads KV before the other has written it", "policy/plan.c",
      "int apart = order->parts == 2 ? ORDER_PARTS_APART : 0;", "int apart = 0;", LINE, SIM)
fault("a layer is decoded in its first pass only", "engine/line/home_weights.c",
      "        return first ? h->tiles : NULL;",
      "    {\n        static uint8_t seen[PLAN_LAYERS_MAX];\n        return first && !seen[layer]++ ? h->tiles : NULL;\n    }", LINE)
fault("tiles are read before they are decoded", "engine/line/stage.c",
      "const int first = s.batch == order_first(&e->order, s.pass) && s.part == 0;",
      "const int first = s.batch == order_first(&e->order, s.pass) + e->order.batches - 1 && s.part == 0;", LINE)
fault("a trace shows the slots of before", "engine/line/layer_attend.c",
      "kv_row_at(&w->rows, f->row, &f->limits, slots);", "kv_row_at(&w->rows, f->row, &f->limits, slots & ~3);",
      "evict_golden.py")
fault("KV lives where that of another extent does", "engine/line/home_kv.c",
      "    return h->kv_places[layer * h->plan->batches + batch];",
      "    return h->kv_places[layer * h->plan->batches + (batch > 1 ? batch - 1 : batch)];", LINE)
fault("tails of KV in RAM and on NVMe share a place", "engine/line/home_kv.c",
      "int64_t at = home.rank + (home.tier == TIER_NVME ? h->plan->kv_ram : 0);", "int64_t at = home.rank;", LINE)
fault("hidden states stand where KV does", "engine/line/home.c:home_place_stays",
      "CARVE_BLOCKS(c, hidden, ARENA_DISK, 1, hidden_disk * frame).offset", "0 * CARVE_BLOCKS(c, hidden, ARENA_DISK, 1, hidden_disk * frame).offset",
      "engine_test")
fault("the tiles at hand have no place", "engine/line/home.c:tiles_bytes",
      "most = max_i64(most, w->tile_bytes[layer]);", "most = max_i64(most, 0 * w->tile_bytes[layer]);", LINE)
fault("--mem-device is what is free, whatever it says", "policy/plan.c",
      "is_over(bytes->device, budget->device,", "is_over(bytes->device - (1 << 20), budget->device,", SIM)
fault("a lost device is not noticed", "engine/line/stage.c",
      "TRY(device->event_wait(e->stream, e->done[slot]));",
      "(void)device->event_wait(e->stream, e->done[slot]);", LINE)
fault("where rows attend is no part of the answer", "engine/api/run_setup.c",
      'if (r->config->attn == ATTN_CPU)', "if (0)", SIM_REFUSALS)
fault("whose matmuls run is no part of the answer", "engine/api/run_setup.c",
      'snprintf(r->session->matmul, sizeof r->session->matmul, "own");\n    if (c->matmul == MATMUL_OWN)\n        return OK;',
      'snprintf(r->session->matmul, sizeof r->session->matmul, "own");\n    if (r->session->matmul[0])\n        return OK;', SIM_REFUSALS)
fault("heads are prepared whole", "engine/line/engine.c",
      "prepare_matrix(e, t, t->n % HEAD_TILE, c->plan.tile_positions)", "prepare_matrix(e, t, t->n, c->plan.tile_positions)",
      SIM_REFUSALS, "simt_line_test")

# ---- memory

fault("the budget is one page off", "policy/plan.c",
      "is_over(bytes->ram, budget->ram,", "is_over(bytes->ram - 4096, budget->ram,",
      "plan_test", "engine_test")
fault("a KV frame has no place", "engine/line/home.c:place_kv",
      "CARVE_BLOCKS(c, kv_frames, ARENA_ATTEND, n, plan_pool_bytes(p, costs))",
      "CARVE_BLOCKS(c, kv_frames, ARENA_ATTEND, n - 1, plan_pool_bytes(p, costs))", "engine_test")
fault("parts overlap", "engine/line/carve.c", "round_up(all, CARVE_ALIGN)", "round_up(all - 64, CARVE_ALIGN)", "engine_test")
fault("scores of prompts have no place", "engine/line/layer.c",
      "(int64_t)w->prompt_page_cap * PAGE_SLOTS * shape_kv_heads_most(s));", "0);", "engine_test")
fault("what is placed differs from what was measured", "engine/line/layer.c:layer_place_apart",
      "if (w->evict->positions == EVICT_POSITIONS_SLOT)\n", "if (w->slot_cos)\n", LINE)

# ---- attention on CUDA, under the SIMT shim

ATTEND_CU, EVICT_CU, PREFILL_CU = "kernels/cuda/attend.cu", "kernels/cuda/attend_evict.cu", "kernels/cuda/prefill.cu"
SLOTS_CU, JOIN_CU, SIMT_ATTEND = "kernels/cuda/slots.cu", "kernels/cuda/attend_join.cu", "simt_attend_test"

fault("attend.cu: exps do not wait for logits", ATTEND_CU,
      "    __syncthreads();\n    split_exps<R>(", "    split_exps<R>(", SIMT_ATTEND)
fault("attend.cu: the next groups are scaled too early", ATTEND_CU,
      "            __syncthreads(); // stages and scaled exps have been read\n", "", SIMT_ATTEND)
fault("attend.cu: a page off by one", ATTEND_CU,
      "t.kv.page_ids[split * SPLIT_PAGES + slot]", "t.kv.page_ids[split * SPLIT_PAGES + slot + 1]", SIMT_ATTEND)
fault("attend.cu: masked slots of the first split are attended", ATTEND_CU,
      "if (live && t.kv.slot_pos && (in_pages || hidden >= 0)) {",
      "if (live && t.kv.slot_pos && split > 0) {", SIMT_ATTEND)
fault("attend.cu: an unaligned vector", ATTEND_CU,
      "*(const float4 *)(s->q + r * s->l.dim_pad + d)", "*(const float4 *)(s->q + r * s->l.dim_pad + (d ^ 1))",
      SIMT_ATTEND)
fault("attend_join.cu: the last output is not written", JOIN_CU,
      "i < group * head_dim; i += THREADS) {", "i < group * head_dim - 1; i += THREADS) {", SIMT_ATTEND)
fault("attend_join.cu: splits are joined last to first", JOIN_CU,
      "for (int split = 0; split < t->n_splits; split++) {", "for (int split = t->n_splits - 1; split >= 0; split--) {",
      SIMT_ATTEND)
fault("attend.cu: the wrong sixteen lanes are added", ATTEND_CU,
      "sum = sum + warp_down(e, 16);", "sum = sum + warp_down(e, 8);", SIMT_ATTEND)
fault("attend_join.cu: dirty bits without an atomic", JOIN_CU,
      "atomicOr((unsigned long long *)&t->kv.dirty[page / 64], 1ull << page % 64);",
      "t->kv.dirty[page / 64] |= 1ull << page % 64;", SIMT_ATTEND)
fault("attend_join.cu: each head looks for a victim of its own under scope layer", JOIN_CU,
      "const int first = f->a.evict.scope == EVICT_SCOPE_LAYER ? 0 : head;", "const int first = head;", SIMT_ATTEND)
fault("attend_join.cu: the ring pushes nobody out when it is just full", JOIN_CU,
      "t->now >= R ? t->now - R : -1;", "t->now > R ? t->now - R : -1;", SIMT_ATTEND)
FORCED_H = "kernels/cuda/forced.h"
fault("attend.cu: rows beyond those of a launch are left out", ATTEND_CU,
      "f.first_span < args->n_spans; f.first_span += at_once)", "f.first_span < at_once; f.first_span += at_once)", SIMT_ATTEND)
fault("attend.cu: a launch takes a row more than scratch holds", ATTEND_CU,
      "(int)(n_units / span_units);", "(int)(n_units / span_units) + 1;", SIMT_ATTEND)
fault("forced.h: scratch is that of all rows, whatever their number", FORCED_H,
      "min_i64(n_spans * span_units, most / unit)", "n_spans * span_units", SIMT_ATTEND)
fault("forced.h: a row that needs more than a launch may take has no scratch", FORCED_H,
      "return max_i64(span_units, min_i64(n_spans * span_units, most / unit));", "return min_i64(n_spans * span_units, most / unit);",
      SIMT_ATTEND)
fault("forced.h: a launch of few rows has the scratch of many", FORCED_H,
      "min_i64(n_spans * span_units, most / unit)", "most / unit", SIMT_ATTEND)
fault("attend_join.cu: splits that no slot fills have a victim", JOIN_CU,
      "    if (t->page_splits > 0) {", "    if (1) {", SIMT_ATTEND)
fault("attend_join.cu: protected slots go where there are no scores", JOIN_CU,
      "if (pos < 0 || evict_protected(&t->s.limits, pos, t->now))", "if (pos < 0)", SIMT_ATTEND)
fault("attend_join.cu: room is made before the victim is known", JOIN_CU,
      "    __syncthreads();\n    if (threadIdx.x == 0)\n        *room", "    if (threadIdx.x == 0)\n        *room", SIMT_ATTEND)
fault("attend_join.cu: slots behind the first of each thread never go", JOIN_CU,
      "slot < t->kv.n_slots; slot += THREADS) {", "slot < t->kv.n_slots && slot < THREADS; slot += THREADS) {", SIMT_ATTEND)
fault("attend_evict.cu: a query that is no number takes the scores away", EVICT_CU,
      "if (inverse != 0.0f)", "if (inverse == inverse)", SIMT_ATTEND)
fault("attend_join.cu: the own token is not capped", JOIN_CU,
      "logit = math_softcap(warp_sum16(logit) * f->a.scale, f->a.cap);", "logit = warp_sum16(logit) * f->a.scale;", SIMT_ATTEND)
fault("attend.cu: codes are not capped", ATTEND_CU,
      "        logit[r] = math_softcap(logit[r], s->cap);\n", "        (void)s->cap;\n", SIMT_ATTEND)
fault("attend_join.cu: no sink", JOIN_CU, "(sum + e + math_sink(f->a.sinks, head * group + r, max));", "(sum + e);", SIMT_ATTEND)
fault("prefill.cu: scores are not capped", PREFILL_CU,
      "e = math_exp(prompt_logit(&f, x[r]) - (max == -INFINITY", "e = math_exp(x[r] * f.a.scale - (max == -INFINITY", SIMT_ATTEND)
fault("prefill.cu: no sink", PREFILL_CU, "(all + math_sink(f.a.sinks, head, max[r]));", "(all);", SIMT_ATTEND)
fault("slots.cu: one more of the equals goes", SLOTS_CU,
      "(key == t.key && equal < t.n)", "(key == t.key && equal <= t.n)", SIMT_ATTEND)
fault("slots.cu: ranks do not wait for each other's counts", SLOTS_CU,
      "    __syncthreads();\n    *total = 0;", "    *total = 0;", SIMT_ATTEND)
fault("kv.cuh: slots that share a word are wiped", "kernels/cuda/kv.cuh",
      "(uint16_t)(mask == whole ? word : (*to & ~mask) | word)", "(uint16_t)word", SIMT_ATTEND)
fault("kv.cuh: codes are made of numbers that are on their way", "kernels/cuda/kv.cuh",
      "            __syncthreads();\n            if (l->groups > 0) {", "            if (l->groups > 0) {", SIMT_ATTEND)
fault("prefill.cu: a query sees the key behind it", PREFILL_CU,
      "if (key >= n_first + r)", "if (key > n_first + r)", SIMT_ATTEND)
fault("prefill.cu: outputs do not wait for the warp's exps", PREFILL_CU,
      "        __syncwarp();\n        const int n = last", "        const int n = last", SIMT_ATTEND)
fault("prefill.cu: a column does not wait for the exps of other warps", PREFILL_CU,
      "            __syncthreads();\n            const int n = n_rows", "            const int n = n_rows", SIMT_ATTEND)

# ---- bench ops on a device

SIM_BENCH = "sim_run_test.py --only bench"
fault("bench: operands stay in the host's memory", "bench/ops.c",
      "    operands_carve(&o, &image->memory->near);\n", "", SIM_BENCH)
fault("bench: a device does not get what the host filled", "bench/device.c",
      "    ops_copy(&m->device->ops, m->near.base, m->host.base, m->near.capacity);\n", "", SIM_BENCH)
fault("bench: as many rows as asked for, whatever there is room for", "bench/ops_forced_device.c",
      "if (b->rows == 1 || m->host", "if (1 || m->host", SIM_BENCH)
fault("bench: formats that a device reads as they are stored are decoded", "bench/ops_device.c",
      "!same_form(form, stored) && ", "(void *)&stored && ", SIM_BENCH)
fault("bench: a decode step is attention alone", "bench/ops_forced_device.c",
      "full_s, layer_s + full_s", "full_s, full_s", SIM_BENCH)

# ---- a CUDA device, over the CUDA runtime of tests/simt/cudart

DEVICE_CU, SIMT_DEVICE, SIMT_LINE = "kernels/cuda/device.cu", "simt_device_test", "simt_line_test"
fault("device.cu: a note is told at once", DEVICE_CU,
      "if (n->recorded && enter(g))", "if (0 && enter(g))", SIMT_DEVICE)
fault("device.cu: notes of a lost device are told that all is well", DEVICE_CU,
      "n->fn(n->ctx, state_of(g));", "n->fn(n->ctx, OK);", SIMT_DEVICE)
fault("device.cu: threads think that they share a device", DEVICE_CU,
      "static __thread int current = -1;", "static int current = -1;", SIMT_DEVICE)
fault("device.cu: a stream waits for no event", DEVICE_CU,
      "(void)DONE(g, cudaStreamWaitEvent, stream_of(s)->cuda, ((struct gpu_event *)e)->cuda, 0);", "(void)e;",
      SIMT_DEVICE)
fault("device.cu: a copy that was refused is no loss", DEVICE_CU,
      "(void)DONE(g, cudaMemcpyAsync, to, from, (size_t)n_bytes, cudaMemcpyDefault, s->cuda);",
      "(void)cudaMemcpyAsync(to, from, (size_t)n_bytes, cudaMemcpyDefault, s->cuda);", SIMT_DEVICE)
fault("device.cu: small copies between ops wait for the copy engine", DEVICE_CU,
      "if (ops && n_bytes < CUDA_COPY_FEW) {", "if (ops && n_bytes < 0) {", SIMT_LINE)
fault("copy.cu: words of 16 bytes stand at any multiple of 4", "kernels/cuda/copy.cu",
      "all % 16 == 0", "all % 4 == 0", SIMT_DEVICE)
fault("device.cu: a launch is not asked how it went", DEVICE_CU,
      "(void)done(g, cudaGetLastError(), entries[op].name);", "", SIMT_DEVICE)
fault("device.cu: memory stands where CUDA has it", DEVICE_CU,
      "/ PAGE * PAGE);", "- (PAGE - 1));", SIMT_DEVICE)
fault("device.cu: the host waits for no event", DEVICE_CU,
      "(void)DONE(g, cudaEventSynchronize, ((struct gpu_event *)e)->cuda);", "(void)e;", SIMT_DEVICE)
fault("device.cu: what did not fit fails the next launch", DEVICE_CU,
      "    (void)cudaGetLastError();\n    size_t n_free", "    size_t n_free", SIMT_DEVICE)
PINS_CU, SIMT_PINS = "kernels/cuda/pins.cu", "simt_pins_test"
fault("pins.cu: what cannot be pinned fails the next launch", PINS_CU,
      "        (void)cudaGetLastError(); //", "        ; //", SIMT_DEVICE)
fault("pins.cu: a copy goes on into the next chunk", PINS_CU,
      "chunk_at(r, i + 1) - (const uint8_t *)at);", "r->base + r->n_bytes - (const uint8_t *)at);", SIMT_PINS)
fault("pins.cu: a chunk that was refused counts as pinned", PINS_CU,
      "        *loose = !r->pinned[i];", "        *loose = 0;", SIMT_PINS)
fault("pins.cu: chunks stay pinned", PINS_CU,
      "r->pinned[i] ? cudaHostUnregister(at) : cudaSuccess;", "r->pinned[i] && i > 0 ? cudaHostUnregister(at) : cudaSuccess;", SIMT_PINS)
fault("pins.cu: threads mean another device", PINS_CU,
      "chunks_work(c, cudaSetDevice(c->device));", "chunks_work(c, cudaSetDevice(c->device + 1));", SIMT_PINS)
fault("device.cu: what was pinned in part is kept", DEVICE_CU,
      "    drop_pins(g, p, n_bytes);\n    locked_limit", "    locked_limit", SIMT_PINS)
fault("device.cu: buffers of copies come when there is no room", DEVICE_CU,
      "    TRY(buffers_open(g));\n    const int64_t n_pinned = pins_add(&g->pins, g->index, p, n_bytes, &why);\n",
      "    const int64_t n_pinned = pins_add(&g->pins, g->index, p, n_bytes, &why);\n    TRY(buffers_open(g));\n", SIMT_PINS)
fault("device.cu: RAM that is not pinned is told of each time", DEVICE_CU,
      "if (n_pinned == n_bytes || g->told)", "if (n_pinned == n_bytes)", SIMT_PINS)
fault("loose.cu: RAM is read and written when a copy is queued", "kernels/cuda/loose.cu",
      "    return cudaLaunchHostFunc(cuda, carry_now, s);", "    carry_now(s);\n    return cuda ? cudaSuccess : cudaErrorUnknown;", SIMT_PINS)
fault("loose.cu: streams share a buffer", "kernels/cuda/loose.cu",
      "            s->all->taken[i] = 1;\n", "", SIMT_PINS)
fault("rows of embeddings lie in RAM that ops do not see", "engine/line/home.c",
      "tier_pin(&h->pinned, busy[ARENA_PINNED])", "tier_pin(&h->pinned, 0)", LINE)
fault("device.h: sm_75 reads bf16", "kernels/device.h", "sm < 80 ? DTYPE_F16", "sm < 75 ? DTYPE_F16", SIMT_DEVICE)
fault("device.h: codes are made rows", "kernels/device.h", "if (lib || !narrow)", "if (lib || narrow)", SIMT_DEVICE)
fault("device.h: codes that become f16 are not looked at", "kernels/device.h", "form.as_f16 = sm < 80;", "form.as_f16 = 0;", SIMT_DEVICE)
fault("kv.cuh: bits that nobody wrote are kept", "kernels/cuda/kv.cuh",
      "if (put || slot >= p->used) {", "if (put) {", SIMT_LINE)
fault("attend.cu: words of V that were not copied are read", ATTEND_CU,
      "column_numbers<FORMAT>(stage, VALUE_DIMS, slot, d, bits, v);", "column_numbers<FORMAT>(stage, VALUE_DIMS, slot, d, 15, v);",
      SIMT_ATTEND)
fault("attend.cu: slots that nobody wrote are copied", ATTEND_CU,
      "first < s->n && s->live[page] >> slot & ((1 << C::PER) - 1))", "page * PAGE_SLOTS < s->n)", SIMT_ATTEND)
fault("attend.cu: a chunk of V is read before all threads have copied", ATTEND_CU,
      "            __syncthreads(); // chunk c has arrived; the stage of c - 1 is free\n", "", SIMT_ATTEND)
fault("attend.cu: a chunk of V is read while it is on its way", ATTEND_CU,
      "cp_async_wait<C::STAGES - 2>();", "cp_async_wait<C::STAGES - 1>();", SIMT_ATTEND)
fault("attend.cu: gaps of a chunk are attended", ATTEND_CU,
      "            if (live == all)", "            if (live != 0)", SIMT_ATTEND)
fault("attend_join.cu: a ring's score is read before there is one", JOIN_CU,
      "if (R > 0 && in_pos >= 0 && t->kv.slot_score)", "if (R > 0 && t->kv.slot_score)", SIMT_LINE)

# ---- tokenizers of pieces that are text

SPM = "token_spm_test"
fault("SentencePiece's merges go by their place", "engine/text/token_bpe.c",
      "if (merge == BPE_NONE || !(tok->head->flags & TOKEN_BY_SCORE))", "if (merge != BPE_NONE || 1)", SPM)
fault("a word is cut at spaces that a piece goes across", "engine/text/token_bpe.c",
      "tok->cuts_at_space = !is_bytes && cuts_find(tok);", "tok->cuts_at_space = !is_bytes && cuts_find(tok) < 2;", SPM)
fault("newlines of Gemma 4's GGUF files are text", "engine/text/token_gguf.c", "    TRY(newlines_add(d));\n", "", "token_hostile_test")
fault("spaces of Gemma 4's GGUF files stay", "engine/text/token_gguf.c", "    TRY(draft_step(d, spaces));\n", "", "token_hostile_test")
fault("an unknown character is not held back behind bytes", "engine/text/token_bpe.c",
      "    if (is_held)\n        symbol_put(w, tok->head->unk);\n}", "}", SPM)
fault("a bad byte is one for its whole run", "engine/text/token_decode.c",
      "        bad_put(d, d->n_pending, s);\n    d->n_pending = d->is_broken = 0;",
      "        bad_put(d, 1, s);\n    d->n_pending = d->is_broken = 0;", SPM)
fault("a long run forgets that it is broken", "engine/text/token_decode.c",
      "            d->is_broken = 1;\n", "", SPM)
fault("a text keeps its first space", "engine/text/token_decode.c",
      ".n_strip = (int)tok->head->n_strip", ".n_strip = 0", SPM)
fault("one leading space goes where all do", "engine/text/token_decode.c",
      "d->no_lead = !(h->decode & DECODE_LEAD_ALL);", "d->no_lead = 1;", SPM)
fault("the first token keeps its spaces", "engine/text/token_decode.c",
      "    if (is_first && h->decode & DECODE_FIRST_BARE) {", "    if (is_first && h->decode & DECODE_FIRST_BARE && id < 0) {", SPM)
fault("Metaspace puts its prefix behind special tokens", "engine/text/token_split.c",
      "s->behavior == PREPEND_FIRST && is_first", "s->behavior == PREPEND_FIRST && is_first >= 0", SPM)
fault("the newer rule for the prefix is not read", "engine/text/token_dir.c",
      "kind == STEP_SENTENCEPIECE && !is_legacy)", "kind == STEP_SENTENCEPIECE && is_legacy > 1)", SPM)
fault("the length of a field is not checked", "engine/text/token_protobuf.c",
      "if (f->value > (uint64_t)(p->end - p->at))", "if (f->value > (uint64_t)(p->end - p->at) + 5)", SPM)
fault("a number of 70 bits", "engine/text/token_protobuf.c", "if (shift == 63 && b > 1)", "if (shift == 63 && b > 127)", SPM)
fault("byte_fallback with bytes missing", "engine/text/token_spm.c",
      "    if (m->byte_fallback)\n        TRY(bytes_all(d));\n", "    if (m->byte_fallback && unk < 0)\n        TRY(bytes_all(d));\n", SPM)
fault("scores of no number", "engine/text/token_spm.c", "    if (!isfinite(score))", "    if (isinf(score))", SPM, "token_hostile_test")
fault("a trie as long as its table", "engine/text/token_charsmap.c", "n_trie > span.n - 4)", "n_trie > span.n)", "token_hostile_test")
fault("a list of ids has no more room than the text has bytes", "engine/text/token.c",
      "if (e != ERR_ROW || *n_ids <= cap) {", "if (e != OK) {", "token_test")
fault("an unknown character costs the lowest score", "engine/text/token_unigram.c",
      "#define UNKNOWN_PENALTY 10", "#define UNKNOWN_PENALTY 0", SPM)
fault("ranks count on behind the special tokens that there are", "engine/text/token_tekken.c",
      "draft_piece_put(t->d, t->n_special + rank,", "draft_piece_put(t->d, rank + 5,", "tekken_test", "token_spm_live.py")
fault("all tokens of the file are used", "engine/text/token_tekken.c",
      "if (rank >= t->n_ids - t->n_special)", "if (rank < 0)", "tekken_test", "token_spm_live.py")
fault("special tokens may stand in any order", "engine/text/token_tekken.c",
      "if (rank != t->n_read || rank", "if (rank", "tekken_test")

fault("a pre-token that is a token is merged", "engine/text/token_tiktoken.c",
      "TOKEN_BY_SCORE | TOKEN_IGNORE_MERGES", "TOKEN_BY_SCORE", SPM)
fault("a dollar ends only the last line", "engine/text/token_regex.c", '"(?=\\\\n|\\\\z)"', '"$"', "token_test")
