"""The faults of mutants.py in number formats and in checkpoints that are quantised: see mutant_list.py."""
from mutant_fault import fault

PANELS, SETS, CUDA = "dtype_test", "decode_test", "simt_decode_test"
QUANTIZED = "quantized_test.py"
READERS = QUANTIZED + " --only libraries --only hostile --only unreadable --only strangers"

fault("a third bit of q3_k counts the other way", "kernels/dtype_columns.c",
      "code[j] |= (uint8_t)((b[j % 32] >> j / 32 & 1) << 2);", "code[j] |= (uint8_t)((~b[j % 32] >> j / 32 & 1) << 2);",
      PANELS)
fault("scales of iq4_xs are taken in twos of slices", "kernels/dtype_columns.c",
      "f->kind == COLUMN_K || f->kind == COLUMN_XS ? 2 : 1; // slices", "f->kind == COLUMN_K || f->kind == COLUMN_XS ? 4 : 1;",
      PANELS)
fault("a zero is added on AVX-512", "kernels/cpu/decode_avx512.c",
      "_mm512_mul_ps(_mm512_sub_ps(x, m), d)", "_mm512_mul_ps(_mm512_add_ps(x, m), d)", SETS)
fault("denormals of wide scales are lost", "kernels/cpu/decode_avx512.c",
      "_mm256_max_epu8(e, _mm256_set1_epi8(2))", "_mm256_max_epu8(e, _mm256_set1_epi8(1))", SETS)
fault("a minimum of 0 has no sign", "kernels/cpu/decode_avx512.c",
      "const __m512i sign = _mm512_set1_epi32((int)0x80000000u);\n    uint8_t",
      "const __m512i sign = _mm512_set1_epi32(0);\n    uint8_t", SETS)
fault("b4 is less 7", "kernels/dtype_blocks.c", "less_zero(bf16_to_f32(d), 8,", "less_zero(bf16_to_f32(d), 7,", PANELS)
fault("scales of bf16 are f16 on AVX-512", "kernels/cpu/decode_avx512.c", "s->d[g] = lanes_bf16(column + 16 * g);",
      "s->d[g] = lanes_f16(column + 16 * g);", SETS)
fault("small scales of bf16 are plain", "kernels/cpu/decode_avx512.c", "? bf16_widen(_mm256_loadu_si256((const void *)(column + 32 * half)))",
      "? _mm512_set1_ps(1)", SETS)
fault("scales of bf16 are half on the device", "kernels/cuda/panel.cuh", "load_as<uint16_t>(column + 2 * r) << 16);",
      "(load_as<uint16_t>(column + 2 * r) - 0x80) << 16);", CUDA)
fault("a device's row of b4 is less 7", "kernels/cuda/rows.cu:b4_number", "half_byte(p + 2, i % n, n / 2) - 8",
      "half_byte(p + 2, i % n, n / 2) - 7", "simt_rows_test")
NVFP4 = "engine/model/containers/gguf_nvfp4.c"
GGUF_BAD = "gguf_bad_test"
fault("GGUF's NVFP4: neighbours share a byte", NVFP4, "of[i % FILE_BLOCK / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15",
      "of[i % FILE_BLOCK / 2] >> (i % 2 * 4) & 15", GGUF_BAD)
fault("GGUF's NVFP4: scales have a sign", NVFP4, "scale == NAN_SCALE ? 0 : scale & 0x7f", "scale == NAN_SCALE ? 0 : scale", GGUF_BAD)
fault("GGUF's NVFP4: a scale of 0x7f is NaN", NVFP4, "scale == NAN_SCALE ? 0 : scale & 0x7f", "scale & 0x7f", GGUF_BAD)
fault("GGUF's NVFP4: a scale of 0xff is read", NVFP4, "if (scale == 0xff)", "if (0)", GGUF_BAD)
fault("GGUF's NVFP4: rows are as large as in the file", NVFP4, "return gguf_is_nvfp4(t)\n", "return 0\n", GGUF_BAD)
fault("GGUF's NVFP4: every expert has the first one's factor", "engine/model/containers/gguf.c", "f->offset + 4 * i, 4, factor", "f->offset + 0 * i, 4, factor", GGUF_BAD)
fault("GGUF's NVFP4: a factor may be any number", "engine/model/containers/gguf.c", "isnormal(*factor) && *factor > 0\n", "1\n", GGUF_BAD)
fault("GGUF's NVFP4: any tensor of factors will do", "engine/model/containers/gguf.c", "f->dims[0] != matrices_of(t))", "0)", GGUF_BAD)
fault("gemma4: NVFP4's factors are the router's scales once more", "engine/model/families/family_gemma4.c", "n > 0 && !nvfp4;", "n > 0;", "family_gemma4_test")
fault("a factor below 0 multiplies", "kernels/dtype_columns.h:e4m3_scaled", "factor < 0 ? f / -factor", "factor < 0 ? f * -factor",
      PANELS, QUANTIZED + " --only libraries")
fault("a factor below 0 multiplies on AVX-512", "kernels/cpu/decode_avx512.c", "_mm512_mask_div_ps(d, divides, scale,",
      "_mm512_mask_mul_ps(d, divides, scale,", SETS)
fault("a factor below 0 multiplies on the device", "kernels/cuda/panel.cuh", "*d < 0 ? scale / -*d : scale * *d;",
      "scale * *d;", CUDA)
fault("a scale of nv4 is that of the first 16", "kernels/dtype_columns.c", "scales[slice * PANEL_ROWS + r], s->scale[r]",
      "scales[r], s->scale[r]", PANELS)
fault("nv4 looks up mxfp4's doubled numbers on the device", "kernels/cuda/panel.cuh", "? 0.5f * mxfp4[i]", "? mxfp4[i]", CUDA)
fault("a device's row of nv4 has one scale", "kernels/cuda/rows.cu:nv4_number", "p[4 + i % n / 16]", "p[4]", "simt_rows_test")
fault("bytes with a zero have signs", "kernels/dtype_columns.c", "((float)(uint8_t)s->code[i][l] - s->m[l])",
      "((float)s->code[i][l] - s->m[l])", PANELS)
fault("bytes with a zero have signs on AVX-512", "kernels/cpu/decode_avx512.c", "kind == COLUMN_BYTES ? _mm512_cvtepu8_epi32(b)",
      "kind == COLUMN_BYTES ? _mm512_cvtepi8_epi32(b)", SETS)
fault("bytes have no zero on the device", "kernels/cuda/panel.cuh", "const float zero = columns_has_zero(KIND) ? m : 0;",
      "const float zero = columns_has_zero(KIND) ? 0 : 0;", CUDA)
fault("a device's row of bytes has no zero", "kernels/cuda/rows.cu:i8_number", "(p[5 + i % n] - p[4])", "(p[5 + i % n] - 0)",
      "simt_rows_test")
fault("NaN of e4m3 is a number", "kernels/dtype_columns.h", "(rest == 0x3f80 ? 0x4000 : 0)", "0", SETS)
fault("mxfp4 looks up nf4 on the device", "kernels/cuda/panel.cuh",
      "kind == COLUMN_E8M0   ? mxfp4[i]", "kind == COLUMN_E8M0   ? nf4[i]", CUDA)
fault("a digit of tq1_0 is that before", "kernels/cuda/panel.cuh", "last ? 0 : s < 10 ? s / 2 : s - 10",
      "last ? 0 : s < 10 ? s / 2 : s - 11", CUDA)
fault("the odd codes of two bits are the even ones", "kernels/cuda/panel.cuh", "low.y = low.x >> 16;", "low.y = low.x;",
      CUDA)
fault("a scale of nf4_s8 is of the next part", "kernels/cuda/panel.cuh",
      "nf4_scale(column[PANEL_ROWS * (4 + part) + r]", "nf4_scale(column[PANEL_ROWS * (4 + (part ^ 1)) + r]", CUDA)

fault("an eighth sign is not that of the seven", "kernels/dtype_grid.h:grid_signs", "(odd & 1) << 7", "(~odd & 1) << 7", PANELS)
fault("a point of iq2_s is one of its first 256", "kernels/dtype_grid.h:grid_eight_iq2",
      "grid_byte(block, stride, 2 + g) | word << 8", "grid_byte(block, stride, 2 + g) | 0 * word << 8", PANELS)
fault("the largest number of iq3_xxs is in step with the others", "kernels/dtype_grid.h:grid_level",
      "8 * code + 4 + 2 * ((code + 1) >> 3)", "8 * code + 4", PANELS)
fault("a quarter of iq1_m's scale is another's", "kernels/dtype_grid.h:grid_d", ">> 4 & 0xf00", ">> 4 & 0x0f0", PANELS)
fault("a point of a grid is its neighbour", "kernels/dtype_grid_points.inc", "0x0000, 0x0002, 0x0004,", "0x0000, 0x0003, 0x0004,",
      "pack_formats.py --only grids")
fault("a row's words are those of the next row", "kernels/dtype.c:row_blocks", "(at + j) * PANEL_ROWS + 2 * r",
      "(at + j) * PANEL_ROWS + 2 * (r ^ 1)", PANELS)
fault("vectors of rows have the signs in reverse", "kernels/cpu/decode_grid.inc", "e->signs << (31 - i)", "e->signs << (24 + i)",
      SETS)
fault("the second half of the rows is the first", "kernels/cpu/decode_grid.inc", "*rows = block + 2 * r;", "*rows = block + 0 * r;",
      SETS)
fault("pairs of grids are the odd number first", "kernels/cpu/decode_grid_avx512.c", "((__m512)odd, (__m512)even)",
      "((__m512)even, (__m512)odd)", SETS)
fault("a device's eight is the one before", "kernels/cuda/panel.cuh", "k0 % GRID_BLOCK / 8 + eight", "k0 % GRID_BLOCK / 8", CUDA)
fault("a device's row has no signs", "kernels/cuda/rows.cu:grid_row_number", "grid_number(t, &e, i % 8, d)",
      "grid_number(t, &e, i % 8, d) & 0x7fffffffu", "simt_rows_test")

fault("gptq's zeros are as they are in the file", "engine/model/containers/quantized_config.c",
      'q->zero_add = strcmp(form, "gptq_v2") != 0;', 'q->zero_add = strcmp(form, "gptq_v2") == 0;', READERS)
fault("a zero of 16 stays 16", "engine/model/containers/quantized_rows.c", "mask = (1u << bits) - 1;", "mask = (2u << bits) - 1;", READERS)
fault("int8 is bytes", "engine/model/containers/quantized_rows.c", "? 0x80 : 0; // int8", "? 0x00 : 0; // int8", READERS)
fault("zeros of 8 bits are of 4", "engine/model/containers/quantized.c", "n_groups, n / in_word, &as.zeros", "n_groups, n / 8, &as.zeros",
      READERS)
fault("zeros of packed rows are those of the first of eight", "engine/model/containers/quantized_rows.c",
      "const int64_t bit = row % in_word * bits;", "const int64_t bit = 0;", READERS)
fault("packed rows have the later number first", "engine/model/containers/quantized_rows.c",
      "halves_put(codes + i / 2, info->block, 1, out + head);", "halves_put(codes + i / 2, info->block, 0, out + head);", READERS)
fault("weight_shape may be another", "engine/model/containers/quantized_compressed.c",
      "(codes->dims[0] != n || codes->dims[1] != ceil_div(k, 32 / bits))", "codes->dims[0] != n", READERS)
fault("packed scales may be of fewer rows", "engine/model/containers/quantized_compressed.c", "|| (!is_one && t->dims[0] != n)", "",
      READERS)
fault("packed codes may be out of order", "engine/model/containers/quantized_compressed.c",
      "return t ? quantized_fail(q, t->name,", "return 0 ? quantized_fail(q, t->name,", READERS)
fault("modelopt divides", "engine/model/containers/quantized_compressed.c", "    if (divides)\n", "    if (1)\n", READERS)
fault("compressed-tensors multiplies", "engine/model/containers/quantized_compressed.c", "    if (divides)\n", "    if (0)\n",
      READERS)
fault("any number is a factor", "engine/model/containers/quantized_compressed.c", "isnormal(*factor) && *factor > 0", "1", READERS)
fault("a scale of e4m3 may be NaN", "engine/model/containers/quantized_rows.c", "if ((scales[j] & 127) == 127)", "if (0)", READERS)
fault("hf_quant_config.json is not read", "engine/model/containers/hf.c", '"hf_quant_config.json", &found', '"hf_quant_config", &found',
      QUANTIZED + " --only apart")
fault("modelopt may scale what goes in", "engine/model/containers/quantized_config.c", "    if (i == N - 1)\n        return modelopt_config(q);\n",
      "    (void)modelopt_config;\n    if (i == N - 1)\n        return OK;\n", READERS)
fault("awq's rows are in order", "engine/model/containers/quantized_rows.c", "{0, 2, 4, 6, 1, 3, 5, 7};\n    for",
      "{0, 1, 2, 3, 4, 5, 6, 7};\n    for", READERS)
fault("a band is that of another matrix", "engine/model/containers/quantized_rows.c", "if (q->band.of != t || at < 0", "if (at < 0",
      QUANTIZED + " --only packs")
fault("scales of f32 are rounded to f16", "engine/model/containers/quantized_rows.c", "if ((is_bf16 ? bf16_to_f32(h) : f16_to_f32(h)) != scale)",
      "if (0)", READERS)
fault("g_idx is not looked at", "engine/model/containers/quantized.c", "        if (is != i / group)\n", "        if (0)\n",
      QUANTIZED + " --only definitions --only hostile")
fault("codes in an order have the scales of no order", "engine/model/containers/quantized_rows.c", "row + q->band.order[i] * (t->scale_k",
      "row + q->band.order[i ^ 1] * (t->scale_k", QUANTIZED + " --only definitions")
fault("a group far away is none", "engine/model/containers/quantized.c", "if (is < 0 || is >= k / group)", "if (is < 0)", READERS)
fault("zeros of another shape", "engine/model/containers/quantized.c",
      "if (t->n_dims != 2 || t->dims[0] != n || t->dims[1] != k)\n        return quantized_fail(q, t->name, \"expected [%lld, %lld]\"",
      "if (t->n_dims != 2)\n        return quantized_fail(q, t->name, \"expected [%lld, %lld]\"", READERS)
fault("any table of scales is ours", "engine/model/containers/quantized_nf4.c", "return memcmp(map, known, sizeof known) == 0;",
      "return memcmp(map, known, 4) != 1000;", QUANTIZED + " --only definitions")
fault("absmax may be short", "engine/model/containers/quantized_nf4.c", "if (n >= 0 && has != n)", "if (0)", READERS)
fault("a bias counts for nothing", "engine/model/containers/quantized.c", "q->biases_count |= bytes[j] != 0;",
      "q->biases_count |= bytes[j] == 7;", READERS)
fault("scales of nothing are a part", "engine/model/containers/quantized.c", "        if (quantized_find(q, matrix))\n            return 1;",
      "        return 1;", READERS)

# ---- experts

EXPERTS = "experts_test"
fault("an expert is multiplied by its neighbour's matrix", "kernels/ops.h",
      "const int64_t n = part->w.n / n_experts, first = e * n;",
      "const int64_t n = part->w.n / n_experts, first = (e > 0 ? e - 1 : e) * n;", EXPERTS)
fault("every expert has the first one's bias", "kernels/ops.h",
      "own.bias = part->bias ? part->bias + first : NULL;", "own.bias = part->bias;", EXPERTS)
fault("equal logits go to the later expert", "kernels/route.h",
      "(logit == than && expert < other)", "(logit == than && expert > other)", EXPERTS)
fault("weights of a token's experts are always shares of these alone", "kernels/route.h",
      "    if (a->alone)\n", "    if (1)\n", EXPERTS)
fault("what experts add takes the place of x", "kernels/cpu/rows.inc",
      "a->add ? v16_add(v16_load_n(x + i, n), sum) : sum", "sum", EXPERTS)
fault("a pair's x is that of the pair's number", "kernels/cuda/matmul.cuh",
      "return p->pairs ? p->pairs[row] / p->used : row;", "return p->pairs ? row / p->used : row;",
      "simt_experts_test")
fault("an expert's rows begin where all begin", "kernels/cuda/matmul_mma.cu",
      "*x = t->x + p->pair * t->row,", "*x = t->x,", "simt_experts_test")
fault("codes of an expert's rows begin where all begin", "kernels/cuda/matmul_int8.cuh",
      "    t->codes += (int64_t)t->p.pair * t->n_groups * OWN_GROUP;\n", "", "simt_experts_test")
fault("heads of an expert's rows begin where all begin", "kernels/cuda/matmul_int8.cuh",
      "    t->heads += t->p.pair;\n", "", "simt_experts_test")
fault("weights of experts are not normed to these alone", "engine/line/layer_ffn.c",
      ".alone = s->route_alone", ".alone = !s->route_alone", "family_golden.py --only mixtral")
fault("gate and up of gpt-oss stand one below the other", "engine/model/families/family_gpt_oss.c",
      "(struct family_cut){rows, 1, 1, 2}", "(struct family_cut){rows, 0, 1, 2}",
      "family_golden.py --only gpt_oss")
fault("the limit of the activation is left out", "engine/line/layer_ffn.c",
      ".limit = s->act_limit", ".limit = 0 * s->act_limit", "family_golden.py --only gpt_oss")
fault("a GGUF file of a family of experts may have none", "engine/model/families/family_llama.c",
      "n > 0 || (gguf && !d->experts_key)", "n > 0 || gguf", "family_experts_test",
      "bad_input_test.py --only files")
fault("columns are read of experts that stand below each other", "engine/model/families/family.c",
      "role_is_experts(&m->shape, role) && t->n_dims != 3)", "role_is_experts(&m->shape, role) && t->n_dims > 3)",
      "family_experts_test", "bad_input_test.py --only directories")
fault("a tensor of all experts may be of other ones", "engine/model/families/family.c",
      "t->n_dims != own + 1 || dims[0] != matrices)", "t->n_dims != own + 1)", "family_experts_test",
      "bad_input_test.py --only files")
fault("a token may go to more experts than there are", "engine/model/families/family_llama.c",
      "if (shape->n_experts_used > shape->n_experts)", "if (0)", "family_experts_test")
fault("experts may differ in their format", "engine/model/families/family.c",
      "if (part > 0 && t->dtype != family_part(m, s, role, layer, 0)->dtype)", "if (0)", "family_experts_test")
fault("config.json's count of experts may be missing", "engine/model/families/family_llama.c",
      "n > 0 || (gguf && !d->experts_key)", "n > 0 || !gguf || !d->experts_key", "family_experts_test")

# ---- layers of two kinds, an expert of all tokens

KINDS, TWO = "pack_kinds_test", "family_golden.py --only qwen2_moe"
fault("no layer of a pack need have experts", "policy/shape.c",
      "    if (with == 0 && s->n_experts > 0)\n        return \"layer_dense\";\n", "", KINDS)
fault("a kind of layer may be any number", "policy/shape.c",
      "if (s->layer_dense[i] > (s->n_experts > 0))", "if (0)", KINDS)
fault("a layer of a pack may hold what the other kind has", "engine/model/model.c",
      "role_need(&m->shape, role) == ROLE_ABSENT || !role_in_layer(&m->shape, role, layer - 1))",
      "role_need(&m->shape, role) == ROLE_ABSENT)", KINDS)
fault("a layer of a pack must hold what the other kind has", "engine/model/model.c",
      " &&\n            role_in_layer(&m->shape, role, layer - 1))", ")", KINDS)
fault("what weighs an expert is stored as other matrices are", "engine/model/pack_write.c",
      "if (role_is_choice(role))", "if (role == ROLE_ROUTER)", KINDS)
fault("what weighs an expert is multiplied as other matrices are", "engine/model/families/role.c",
      "return role == ROLE_ROUTER || role == ROLE_SHARE;", "return role == ROLE_ROUTER;", KINDS)
fault("a model's numbers are those of the first kind of layer", "engine/model/pack_write.c",
      "w->n_params += pack_has(p, role, layer) ?", "w->n_params += pack_has(p, role, 0) ?", KINDS)
fault("every layer costs what the first one does", "engine/line/costs.c",
      "+ mlp_numbers(s, layer));", "+ mlp_numbers(s, 0));", "costs_test")
fault("the probe measures the kind of layer that there is least of", "engine/line/costs.c",
      "(2 * with >= n)", "(2 * with < n)", "costs_test")
fault("the expert of all tokens is left out, on a CPU", "kernels/cpu/rows.inc",
      "sum = shared ? v16_fma(share, v16_load_n(shared + i, n), sum) : sum;", "", EXPERTS)
fault("the expert of all tokens counts by the first one's logistic", "kernels/cpu/rows.inc",
      "math_logistic(a->shares[row])", "math_logistic(a->shares[0])", EXPERTS)
fault("the expert of all tokens counts in full, on a device", "kernels/cuda/experts.cu",
      "a.shares ? math_logistic(a.shares[row]) : 1.0f", "1.0f", "simt_experts_test")
fault("the expert of all tokens counts in full", "engine/line/layer_ffn.c",
      ".shares = s->shared_gate ? w->shares : NULL", ".shares = NULL", TWO)
fault("GGUF's qwen2_moe norms the weights of experts", "engine/model/families/family_llama.c",
      "gguf ? !d->route_all", "gguf ? 1", TWO)
fault("rooms between matrices are those of the experts", "policy/shape.c",
      "most = s->dense_dim > most ? s->dense_dim : most;", "", "costs_test", "family_golden.py --only moe")
fault("every n-th layer, from the first on, has experts", "engine/model/families/family_llama.c",
      "(i + 1) % step != 0", "i % step != 0", "family_experts_test")
fault("a model of experts may have none", "engine/model/families/family_llama.c",
      "if (n_dense == shape->n_layers)", "if (0)", "family_experts_test")
fault("strangers are looked for in layers of one kind", "engine/model/families/family.c",
      "for (int kind = 0; kind < 32; kind++) //", "for (int kind = 0; kind < 1; kind++) //",
      "family_experts_test")
fault("a layer's strangers may be the other kind's own", "engine/model/families/family.c",
      "!(m->roles & ROLE_BIT(role)) || !here)", "!(m->roles & ROLE_BIT(role)))", "family_experts_test")
fault("what weighs an expert is a matrix, always", "engine/model/families/family.c",
      "if (role == ROLE_SHARE && t->n_dims == 1)", "if (0)", "family_experts_test")
fault("gate and up of granitemoe's expert of all tokens are the same rows", "engine/model/families/family.c",
      "m->cut[ROLE_SHARED_UP] = (struct family_cut){2 * n, n, n, n};", "m->cut[ROLE_SHARED_UP] = (struct family_cut){2 * n, 0, n, n};",
      "family_golden.py --only granitemoe")
fault("qwen2_moe's windows are those of all layers", "engine/model/families/family_qwen2_moe.c",
      "if (i % 2 != 0 || i >= until)", "if (i >= until)", "family_experts_test")
fault("qwen2_moe's windows never end", "engine/model/families/family_qwen2_moe.c",
      "if (i % 2 != 0 || i >= until)", "if (i % 2 != 0)", "family_experts_test")

fault("a scale of each block of mxfp4 may be missing", "engine/model/containers/quantized.c",
      "same = scales->dims[i] == codes->dims[i];", "same = 1;", QUANTIZED + " --only hostile")
fault("slots of a layer are those of one without a window", "engine/line/batch.c",
      "    if (kind == KV_MOST)\n        return batch_slots_after", "    if (kind >= KV_MOST)\n        return batch_slots_after",
      "sim_run_test.py --only families", "placement_test.py --only=forced")
fault("experts that nobody wants are brought, too", "engine/line/stage.c",
      "tokens > 0 && tokens <= most", "0 && tokens <= most", "placement_test.py --only=experts")
fault("an expert's last piece stays away", "engine/line/home_experts.c",
      "e < route->n_experts && e * each < end", "e < route->n_experts && e * each + PIECE_BYTES < end",
      "placement_test.py --only=experts")
fault("what came for an earlier layer counts for the next", "engine/line/home_experts.c",
      "memset(w->pieces, 0, (size_t)ceil_div(model_pieces(l), 64) * 8);", "(void)memset;",
      "placement_test.py --only=experts")
fault("a few experts are foreseen as all", "policy/moves.c",
      "return few ? plan_experts_share(m->weights, (double)tokens) : 1;", "return few * 0 + 1;",
      "placement_test.py --only=experts")
fault("a row's own pages are its neighbour's", "engine/line/batch.c",
      "own > 0 ? r * own + page : batch", "own > 0 ? 0 * r * own + page : batch",
      "simulate_test", "engine_test", "line_device_test")
fault("pools of windows stand where others would", "engine/line/home.c",
      "*at += plan_kv_pages(p, layer) *",
      "*at += plan_own_pages(p, layer) *", "line_device_test", "engine_test")
fault("positions of a layer begin where those of another size would", "engine/line/layer_spans.c",
      "plan_kv_slots_before(w->plan, w->shape, layer, ring);",
      "(plan_kv_slots(w->plan, layer) + ring) * layer * w->shape->n_kv_heads;",
      "line_device_test", "engine_test")
fault("a layer's rule is that of the first", "engine/line/layer_spans.c",
      "evict_in_kind(w->evict, &row->evict, plan_kind(w->plan, w->layer),",
      "evict_in_kind(w->evict, &row->evict, plan_kind(w->plan, 0),", "sim_run_test.py --only families",
      "placement_test.py --only=forced")
