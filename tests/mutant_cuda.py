"""Faults of the CUDA kernels, found by the tests under the SIMT shim. See mutant_list.py."""
from mutant_fault import fault

DEVICE_CU = "kernels/cuda/device.cu"

# ---- CUDA kernels, under the SIMT shim

ROWS, HEAD = "kernels/cuda/rows.cu", "kernels/cuda/head.cu"
fault("cuda: no barrier between a norm's sums and its outputs", ROWS,
      "    __syncthreads();\n    for (int from = 0; from < a.dim;", "    for (int from = 0; from < a.dim;", "simt_rows_test")
fault("cuda: the last output of a norm is not written", ROWS,
      "            if (i >= n)\n                continue;", "            if (i + 1 >= n)\n                continue;", "simt_rows_test")
fault("cuda: a norm's rows are in two blocks", ROWS,
      "float *y = a.y + blockIdx.x * a.y_stride;", "float *y = a.y + blockIdx.x / 2 * a.y_stride;", "simt_rows_test")
fault("cuda: a norm's barrier stands in a branch", ROWS,
      """        shift_scale[1] = math_norm_scale(squares, a.dim, a.eps);
    }
    __syncthreads();""", """        shift_scale[1] = math_norm_scale(squares, a.dim, a.eps);
        __syncthreads();
    }""", "simt_rows_test")
fault("cuda: a part of a row is overwritten while it is summed", ROWS,
      "    __syncthreads(); // the previous part has been read\n", "", "simt_rows_test")
fault("cuda: a long row's sum is that of its first part", ROWS,
      "    if (s->from == from)", "    if (s->from >= 0)", "simt_rows_test")
fault("cuda: a chain leaves out what does not fill its reads", "kernels/cuda/simt.cuh",
      "    for (; i < n; i += 16)\n        sum = link(sum, v[i]);\n", "", "simt_rows_test")
fault("cuda: a warp's mask has half of its lanes", "kernels/cuda/simt.cuh",
      "#define WARP_ALL 0xffffffffu", "#define WARP_ALL 0xffffu", "simt_rows_test")
fault("cuda: a row is read as whole numbers wherever it lies", ROWS,
      "return __uint_as_float(u16_at(p) | (uint32_t)u16_at(p + 2) << 16);", "return *(const float *)p;", "simt_rows_test")
fault("cuda: threads of one row share pairs of rope", ROWS,
      "pair < a.n_heads * half; pair += ROW_THREADS", "pair <= a.n_heads * half; pair += ROW_THREADS", "simt_rows_test")
fault("cuda: blocks of 8 rotate like blocks of 32", ROWS,
      "h < WARP && h < a.block", "h < WARP", "simt_rows_test")
fault("cuda: rows are compacted by blocks that race", ROWS,
      "const int column = (int)(blockIdx.x * ROW_THREADS + threadIdx.x);",
      "const int column = (int)(blockIdx.x * (ROW_THREADS - 1) + threadIdx.x);", "simt_rows_test")
fault("cuda: a logit of the next slice", HEAD,
      "v[k][j] = i < n ? x[i]", "v[k][j] = i <= n ? x[i]", "simt_head_test")
fault("cuda: a tile's exps are summed before they are there", HEAD,
      "    __syncthreads();\n    if (warp_id() > 0)\n        return;", "    if (warp_id() > 0)\n        return;", "simt_head_test")
fault("cuda: of a warp's equal maxima any one", HEAD,
      "if (max > t.max || (max == t.max && best < t.best))", "if (max >= t.max)", "simt_head_test")
fault("cuda: tiles are joined before they are there", HEAD,
      "    __syncthreads();\n    if (threadIdx.x == 0)\n        tiles_join", "    if (threadIdx.x == 0)\n        tiles_join",
      "simt_head_test")
fault("cuda: bins are counted before they are zero", HEAD,
      "        __syncthreads();\n        if (*s->done)", "        if (*s->done)", "simt_head_test")
fault("cuda: of equal logits the last one", HEAD,
      "(0xffffffffu - (uint32_t)id)", "(uint32_t)id", "simt_head_test")
fault("cuda: zeros of two signs are not equal", HEAD,
      "__float_as_uint(logit + 0.0f)", "__float_as_uint(logit)", "simt_head_test")
fault("cuda: tiles are joined from the last to the first", HEAD,
      "const struct tile t = tiles[i];", "const struct tile t = tiles[n_tiles - 1 - i];", "simt_head_test")
RANGE = "f16_range_test.py"
fault("the range of the numbers is that of the first panel", "engine/model/pack_write.c",
      "if (most >= w->range.most)", "if (!w->range.known)", RANGE)
fault("infinities count as numbers", "engine/model/pack_write.c", "most = x > most && x < INFINITY ? x : most;",
      "most = x > most ? x : most;", RANGE)
fault("numbers beyond f16 pass", "engine/model/model.c", "if (!r->known || r->most <= MODEL_F16_MAX)", "if (1)", RANGE)
fault("numbers that f16 does not hold are refused in f32, too", "engine/model/model.c",
      "model_compute(role, compute), t->dtype).as_f16;", "COMPUTE_BF16, t->dtype).as_f16;", RANGE)
fault("a range that nobody knows passes in silence", "engine/model/model.c",
      "    if (!r->known)\n        log_line", "    if (0)\n        log_line", RANGE)
fault("a range may be of any layer", "engine/model/model.c", "m->range.layer >= m->n_layers ||", "", RANGE)
LT_CU, LT = "kernels/cuda/matmul_lt.cu", "simt_lt_test"
fault("device.h: the maker's library reads codes", "kernels/device.h", "if (lib || !narrow)", "if (!narrow)", LT)
fault("cublaslt: an algorithm that splits k", LT_CU,
      "parts <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;", "parts <= 2;", LT)
fault("cublaslt: the heuristic is asked about few rows", LT_CU, "#define LT_ASKED     256", "#define LT_ASKED     64", LT)
fault("cublaslt: Python's library is not looked for", LT_CU,
      "lt->library = library_of_python(names[0]);", "lt->library = NULL, (void)library_of_python;", LT)
fault("cublaslt: trials at one place", LT_CU, "#define LT_PLACES    2", "#define LT_PLACES    1", LT)
fault("cublaslt: the most rows are not tried", LT_CU,
      "for (int rows = LT_ROWS; rows <= lt_rows(m) && !failed;", "for (int rows = LT_ROWS; rows < lt_rows(m) && !failed;", LT)
fault("cublaslt: trials that nobody looks at", LT_CU, "if (counts[trial_of(rows, place)] > 0)", "if (0)", LT)
fault("cublaslt: ready for any number of rows", LT_CU, "return s && lt_rows(m) <= s->m;", "return s != NULL;", LT)
fault("cublaslt: rows are not filled up", LT_CU,
      "matmul_round(stream, &p, lt_rows(p.m), workspace + LT_WORKSPACE);",
      "matmul_round(stream, &p, p.m, workspace + LT_WORKSPACE);", LT)
fault("cublaslt: the workspace reaches into x", LT_CU,
      "const int rows = lt_rows(p->m);\n    uint8_t *x = workspace + LT_WORKSPACE;",
      "const int rows = lt_rows(p->m);\n    uint8_t *x = workspace + LT_WORKSPACE;\n    workspace += 64;", LT)
fault("cublaslt: scratch for the rows that there are", LT_CU,
      "LT_WORKSPACE + matmul_round_bytes(lt_rows(m), k) + y_bytes(m, n)",
      "LT_WORKSPACE + matmul_round_bytes(m, k) + y_bytes(m, n)", LT)
fault("cublaslt: trials are not waited for", DEVICE_CU,
      "    (void)DONE(g, cudaStreamSynchronize, s->cuda); // also", "    // also", LT)
fault("cublaslt: what it refuses is no loss", DEVICE_CU,
      '            lose(g, "cublasLtMatmul", failed);', "            (void)failed;", LT)
fault("cublaslt: a library of any version", LT_CU, "if (version / 10000 != CUBLAS_VER_MAJOR)", "if (0)", LT)
DECODE, MATMUL = "simt_decode_test", "simt_matmul_test"
fault("decoded rows leave before they are all there", "kernels/cuda/decode.cu",
      "    __syncwarp();\n    uint4 *out", "    uint4 *out", DECODE)
fault("a decoded row more than there is", "kernels/cuda/decode.cu", "if (row < t.n)", "if (row <= t.n)", DECODE)
fault("a decoded row is not on 16 bytes", "kernels/cuda/decode.cu",
      "STRIDE = WORDS + 4, PIECES", "STRIDE = WORDS + 2, PIECES", DECODE)
fault("decoded numbers behind k are not zeros but left out", "kernels/cuda/decode.cu",
      "s < DECODE_SLICES; s++", "s < DECODE_SLICES && chunk * DECODE_CHUNK + s * SLICE < t.k; s++", DECODE)
fault("the search for patches is one short", "kernels/cuda/panel.cuh",
      "low += (before - 1) * step + 1;", "low += before * step;", DECODE)
fault("scales of k-quants are those of a slice", "kernels/cuda/panel.cuh",
      "columns_part_scale(KIND, column + SCALES + r, slice,", "columns_part_scale(KIND, column + SCALES + r, slice / 4 * 2,", DECODE)
fault("upper rows of q4 have the lower ones' codes", "kernels/cuda/panel.cuh",
      "mask = r < 16 ? 0x0f : 0xf0;", "mask = 0x0f;", DECODE)
fault("an f32 tile is multiplied before it is there", "kernels/cuda/matmul.cu",
      "        __syncthreads();\n        const int n =", "        const int n =", MATMUL)
fault("an f32 tile is overwritten while it is read", "kernels/cuda/matmul.cu",
      "        __syncthreads();\n    }\n", "    }\n", MATMUL)
fault("zeros behind k are added", "kernels/cuda/matmul.cu",
      "min(F32_CHUNK, p.k - k0);", "F32_CHUNK;", MATMUL)
fault("codes pass for rounded numbers", "kernels/cuda/matmul.cu",
      "    else if (inputs != *there)\n", "    else if (*there == INPUTS_NONE)\n", MATMUL)
fault("a stage is not waited for", "kernels/cuda/matmul_mma.cu",
      "cp_async_wait<AHEAD - 1>();", "cp_async_wait<AHEAD>();", MATMUL)
fault("a stage is waited for by those who copied it only", "kernels/cuda/matmul_mma.cu",
      "        __syncthreads(); // chunk c has arrived; the stage of c - 1 is free\n", "", MATMUL)
fault("tensor cores go backwards through a stage", "kernels/cuda/mma_tile.cuh",
      "int step = 0; step < BK / 16; step++", "int step = BK / 16 - 1; step >= 0; step--", MATMUL)
fault("a row behind the last is copied", "kernels/cuda/matmul_mma.cu",
      "there = at < (of_x ? p->m : p->n);", "there = at <= (of_x ? p->m : p->n);", MATMUL)
fault("a stage is waited for by those who put it only", "kernels/cuda/matmul_mma.cu",
      "        __syncthreads(); // chunk c is visible to all warps\n", "", MATMUL)
fault("parts of a grid begin where all begin", "kernels/cuda/mma_tile.cuh",
      "(int)blockIdx.x >= t->parts[part + 1].block0", "(int)blockIdx.x > t->parts[part + 1].block0", MATMUL)
fault("sums are stored over stages in use", "kernels/cuda/matmul_mma.cu",
      "    __syncthreads(); // the stages are free\n", "", MATMUL)
fault("a strip is read before it is there", "kernels/cuda/mma_tile.cuh",
      "        __syncwarp();\n#pragma unroll 1", "#pragma unroll 1", MATMUL)
fault("an output behind the last", "kernels/cuda/mma_tile.cuh",
      "&& o + at % WN < p->n)", "&& o + at % WN <= p->n)", MATMUL)
fault("the rounding of x leaves out the last block", "kernels/cuda/matmul_mma.cu",
      "t.n_blocks = (int)ceil_div(t.n_words, ROUND_BLOCK);", "t.n_blocks = (int)max_i64(t.n_words / ROUND_BLOCK, 1);",
      MATMUL)
PANEL_CU = "kernels/cuda/matmul_panel.cu"
fault("panels: a turn is decoded before it is here", PANEL_CU, "cp_async_wait<AHEAD - 2>();", "cp_async_wait<AHEAD - 1>();", MATMUL)
fault("panels: a stage is multiplied before it is decoded", PANEL_CU,
      "        __syncthreads(); // turn c is decoded, c + 1 has arrived, the stages of c - 1 are free\n", "", MATMUL)
fault("panels: one stage less for pieces", PANEL_CU, ">> shift) + 1;", ">> shift);", MATMUL)
fault("panels: the first turn is decoded before it is here", PANEL_CU, "        turn_fetch<BM, BN, BK, AHEAD>(t, tile, c);\n    cp_async_wait<AHEAD - 1>();\n",
      "        turn_fetch<BM, BN, BK, AHEAD>(t, tile, c);\n", MATMUL)
fault("panels: a row behind the last is copied", PANEL_CU, "there = tile->row0 + row < t->p.m;", "there = tile->row0 + row <= t->p.m;", MATMUL)
fault("panels: a piece goes on behind its panel", PANEL_CU, "copied = there && i < bytes;", "copied = there;", MATMUL)
fault("panels: numbers behind the last of a row are not zeros", "kernels/cuda/panel.cuh", "    if (n >= SLICE)\n", "    if (n > 0)\n", DECODE)
fault("panels: sums are stored over stages in use", PANEL_CU, "    __syncthreads(); // the stages are free\n", "", MATMUL)
TILE = "kernels/cuda/mma_tile.cuh"
fault("groups: a stage is multiplied before it is here", TILE, "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();", MATMUL)
fault("groups: a stage is overwritten while it is read", TILE,
      "        __syncthreads(); // this stage has arrived, and all warps have read the previous one\n", "", MATMUL)
fault("groups: a group behind the last is multiplied", TILE, "if (g == 0 || g0 + g < n_groups)", "if (1)", MATMUL)
Q_CU = "kernels/cuda/matmul_q.cu"
fault("q: rows of q8 do not take turns where they are read", Q_CU, "const int turned = Q4 ? 0 : g % 2 * 32;", "const int turned = 0;", MATMUL)
fault("q: the upper half of a panel has the codes of the lower", Q_CU, "(Q4 ? (T::N == 1 ? of_panel / 16 : i / 2) * 4 : 0)", "0", MATMUL)
fault("q: a panel behind the last is read", Q_CU, "(panel < n_panels ? panel : panel0)", "panel", MATMUL)
fault("q: a row behind the last is read", Q_CU, "(row < p->m ? row : row0)", "row", MATMUL)
fault("q: a group behind the last is copied", Q_CU, "< n * T::GROUP_BYTES", "< (n + 1) * T::GROUP_BYTES", MATMUL)
fault("q: the second product of a launch has the first one's weights", "kernels/cuda/mma_tile.cuh", "    *p = t->parts[part];\n", "    *p = t->parts[part];\n    p->weights = t->parts[0].weights;\n", MATMUL)
fault("q: sums are stored over stages in use", Q_CU, "    __syncthreads(); // the stages are free\n", "", MATMUL)
fault("a turn of groups is overwritten while it is read", "kernels/cuda/matmul_int8.cu",
      "g += INT8_WARPS, odd ^= 1", "g += INT8_WARPS, odd ^= 0", MATMUL)
fault("a turn of groups is not waited for", "kernels/cuda/matmul_int8.cu",
      "        __syncthreads(); // this turn is complete; the previous one has been read\n", "", MATMUL)
fault("codes of q4 have five bits", "kernels/cuda/matmul_int8.cu", "& 0x0f0f0f0fu", "& 0x1f1f1f1fu", MATMUL)
fault("a group reads a number behind the last", "kernels/cuda/matmul_int8.cu",
      "second = k + 1 < t.p.k ? x[k + 1] : 0;", "second = k < t.p.k ? x[k + 1] : 0;", MATMUL)
PREFILL_MMA, PROMPT = "kernels/cuda/prefill_mma.cu", "simt_prompt_test"
fault("prefill_mma: K is multiplied before it is there", PREFILL_MMA,
      "        __syncthreads(); // K has arrived; V's buffer is free\n", "", PROMPT)
fault("prefill_mma: V is multiplied before it is there", PREFILL_MMA,
      "        __syncthreads(); // V has arrived; K's buffer is free\n", "", PROMPT)
fault("prefill_mma: sums stay where the maximum rises", PREFILL_MMA, "    if (rises)\n", "    if (rises < 0)\n", PROMPT)
fault("prefill_mma: a query sees what follows", PREFILL_MMA, "            if (!whole)\n", "            if (0)\n", PROMPT)
fault("prefill_mma: a query does not see itself", PREFILL_MMA, "return key <= query && key >=", "return key < query && key >=", PROMPT)
fault("prefill_mma: logits are not capped", PREFILL_MMA,
      "            if (to.cap > 0)\n                page_cap", "            if (0)\n                page_cap", PROMPT)
fault("prefill_mma: logits of scores are not capped", PREFILL_MMA,
      "    if (to.cap > 0)\n        keys_cap", "    if (0)\n        keys_cap", PROMPT)
fault("prefill_mma: a capped sink", PREFILL_MMA, "math_sink(f->a.sinks, head, max * to.unit);", "math_sink(f->a.sinks, head, max);", PROMPT)
fault("prefill_mma: a value that is no number reaches queries before it", PREFILL_MMA,
      "b[j / 2][j % 2] = finite_pair(raw);", "b[j / 2][j % 2] = raw;", PROMPT)
fault("prefill_mma: a value that is no number is 0", PREFILL_MMA,
      "s->out[at / 2][i / 2][at % 2 * 2 + i % 2] = none;", "s->out[at / 2][i / 2][at % 2 * 2 + i % 2] += 0;", PROMPT)
fault("prefill_mma: rows behind the dimensions are those of the next head", PREFILL_MMA,
      "there = p < n_pairs && x < n_columns;", "there = x < n_columns;", PROMPT)
fault("prefill_mma: all queries are worth as much", PREFILL_MMA, "inverse = f->inverse[i] * evict_query_worth(mode, query, s->n_prompt);",
      "inverse = f->inverse[i];", PROMPT)
fault("prefill_mma: a tile's scores are of half its queries", PREFILL_MMA,
      "keys->total[i / 2][i % 2] += sum + warp_xor(sum, 2);", "keys->total[i / 2][i % 2] += sum;", PROMPT)
fault("prefill_mma: queries of hits change places", PREFILL_MMA, "(lane_id() & ~3) + (query - query0) / 2,", "(lane_id() & ~3) + (query - query0) % 4,", PROMPT)
fault("prefill_mma: a tile of queries is overwritten while it is read", PREFILL_MMA,
      "            __syncthreads();\n            fetch_stage", "            fetch_stage", PROMPT)
CODES_CU = "kernels/cuda/matmul_int8_mma.cu"
fault("codes: chains are stored over stages in use", CODES_CU, "    __syncthreads(); // the stages are free\n", "", MATMUL)
fault("codes: a group of W behind the last is copied", CODES_CU,
      "s->w[i],\n                         GROUPS == 1 || group < left ? 16 : 0", "s->w[i],\n                         16", MATMUL)
fault("codes: heads of a group of W behind the last are copied", CODES_CU,
      "(GROUPS == 1 || me * GROUPS / T::W_HEADS < left)", "1", MATMUL)
fault("codes: heads of a group of x behind the last are copied", CODES_CU, "(GROUPS == 1 || me / BM < left)", "1", MATMUL)
fault("codes: a row behind the last is copied", CODES_CU, "(row < t->p.m ? row : row0) * (int64_t)", "row * (int64_t)", MATMUL)
fault("codes: heads of a row behind the last are copied", CODES_CU,
      "t->rows + (row < t->p.m ? row : row0);", "t->rows + row;", MATMUL)
fault("codes: a panel behind the last is copied", CODES_CU, "(panel < n_panels ? panel : panel0)", "panel", MATMUL)
fault("codes: both halves of a panel of q4 have the codes of one", CODES_CU, "(at->first / 4 + h * 4)", "(at->first / 4)", MATMUL)
fault("codes: a strip is read before it is there", CODES_CU, "        __syncwarp();\n#pragma unroll 1", "#pragma unroll 1", MATMUL)
fault("codes: a strip is overwritten while it is read", CODES_CU, "        __syncwarp();\n    }\n}", "    }\n}", MATMUL)
fault("codes: an output behind the last", CODES_CU, "&& o + at % N < p->n)", "&& o + at % N <= p->n)", MATMUL)
fault("codes: a row's output behind the last", CODES_CU, "if (row + at / N < p->m &&", "if (row + at / N <= p->m &&", MATMUL)
fault("codes: sums begin beside the bits of the float", CODES_CU, "#define CODES_BITS  0x4b400000", "#define CODES_BITS  0x4b400001", MATMUL)
fault("codes: sm_75 multiplies halves of k in turns", "kernels/cuda/simt.cuh", "a + i, b + i / 2);", "a + i, b + i % 2);", MATMUL)

# ---- commands of a decode step

STEP = "simt_step_test"
fault("a decode step takes a launch a row", "kernels/cuda/forced.h", "#define FORCED_SCRATCH_MOST (24 << 20)",
      "#define FORCED_SCRATCH_MOST (1 << 18)", STEP)
fault("tokens without scores are placed by a launch of their own", "kernels/cuda/attend.cu", "    if (f->scores) {", "    if (1) {", STEP)
fault("bits of pages are cleared by a command of their own", "engine/line/layer_spans.c",
      "    memset(dirty, 0, (size_t)dirty_bytes);\n", "    ops_fill(&w->ops, dirty, 0, dirty_bytes);\n", STEP, "simt_line_test")
fault("the model of cards forgets a table", "bench/gpu/step.c", "    tables(&mk, mk.times);\n", "", STEP)
fault("x is rounded for each slice of the head", "engine/line/layer_head.c", ".same_x = row > 0};", ".same_x = 0};", STEP)
fault("the first slice of the head reads what was rounded before", "engine/line/layer_head.c", ".same_x = row > 0};", ".same_x = 1};",
      STEP, "simt_line_test")
fault("a call that shares x rounds it again", "kernels/cuda/matmul.cu", "a->same_x && n_parts > 0 ?", "a->same_x && n_parts < 0 ?",
      "simt_matmul_test", STEP)
fault("calls that share x differ in what it became", "kernels/cuda/matmul.cu", "        return INPUTS_CODES;\n", "        return INPUTS_BF16;\n",
      "simt_matmul_test")
