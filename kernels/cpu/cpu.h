/* kernels/cpu/cpu.h - the CPU implementations that kernels/ops.c chooses from.
 *
 * Owns: their names, and how matmuls and attention cut work and scratch. Every op exists per
 * instruction set, except ops that only move or compare numbers (gather, compact, cast, route,
 * kv_store, prompt_keep): one source serves all sets, and kv_store has a faster AVX-512 version. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/ops.h"

#define CPU_DECLARE(name)                                                                          \
    void cpu_##name##_portable(const struct ops *ops, const struct name##_args *args);             \
    void cpu_##name##_avx2(const struct ops *ops, const struct name##_args *args);                 \
    void cpu_##name##_avx512(const struct ops *ops, const struct name##_args *args);
CPU_DECLARE(matmul)
CPU_DECLARE(decode)
CPU_DECLARE(norm)
CPU_DECLARE(rope)
CPU_DECLARE(rotate)
CPU_DECLARE(gate_mul)
CPU_DECLARE(mix)
CPU_DECLARE(conv)
CPU_DECLARE(recur)
CPU_DECLARE(expert_sum)
CPU_DECLARE(attend_prompt)
CPU_DECLARE(attend_forced)
CPU_DECLARE(head_reduce)
#undef CPU_DECLARE

/* ISA_AVX512F: AVX2's bytes and, where nothing is here, AVX2's code. */
void cpu_matmul_avx512f(const struct ops *ops, const struct matmul_args *args);
void cpu_attend_prompt_avx512f(const struct ops *ops, const struct attend_prompt_args *args);
void cpu_attend_prompt_amx(const struct ops *ops, const struct attend_prompt_args *args);
void cpu_matmul_amx(const struct ops *ops, const struct matmul_args *args);
void cpu_kv_store(const struct ops *ops, const struct kv_store_args *args);
void cpu_kv_store_avx512(const struct ops *ops, const struct kv_store_args *args);
void cpu_gather(const struct ops *ops, const struct gather_args *args);
/* `matmul` runs one expert; scratch: expert_matmul_scratch_bytes(). */
typedef void (*cpu_matmul_fn)(const struct ops *ops, const struct matmul_args *args);
void cpu_expert_matmul(const struct ops *ops, const struct expert_matmul_args *args,
                       cpu_matmul_fn matmul);
void cpu_route(const struct ops *ops, const struct route_args *args);
void cpu_compact(const struct ops *ops, const struct compact_args *args);
void cpu_cast(const struct ops *ops, const struct cast_args *args);
void cpu_prompt_keep(const struct ops *ops, const struct prompt_keep_args *args);

/* How a matmul cuts its work; scratch is sized by the same rules. Panels and inputs are 32-bit
 * words along k: a pair of bf16 where the set multiplies pairs, else one f32. A thread works on
 * blocks of rows, whose packed inputs stay in L2; per block of rows on groups of panels; per group
 * on blocks along k. An L2 of 1 MiB holds the inputs, one block of panels and the next one. */
#define MATMUL_BLOCK       1024  // words along k per block of one panel: 128 KiB
#define MATMUL_PANEL_WORDS 2048  // words along k per block of several panels, together
#define MATMUL_GROUP       16    // panels whose sums are kept for the next block along k
#define MATMUL_PACK_ALONE  32768 // inputs up to which packing alone is faster than waiting
#define MATMUL_PANELS_MAX  4     // panels side by side in a tile of few rows

/* Sizes that depend on the instruction set. */
struct matmul_cut {
    int rows;            // rows of the largest register tile
    int chunk;           // words along k per step, padded with zeros
    int split_rows;      // rows per thread from which threads split rows instead of panels
    int64_t input_bytes; // packed inputs of one block of rows and words
};

/* Register tiles of 16 outputs. */
static inline struct matmul_cut matmul_cut_lanes(void)
{
    return (struct matmul_cut){14, 1, 32, 512 << 10};
}

/* AMX multiplies so fast that each weight must serve more rows. */
static inline struct matmul_cut matmul_cut_tiles(void)
{
    return (struct matmul_cut){32, 16, 256, 1 << 20};
}

/* Where threads split rows, each decodes all panels; more rows per thread keep that share small. */
#define MATMUL_SPLIT_DECODED 2 // factor on split_rows

static inline int matmul_by_rows(const struct matmul_cut *cut, int m, int n_threads, int decodes)
{
    return n_threads > 1 && m >= cut->split_rows * (decodes ? MATMUL_SPLIT_DECODED : 1) * n_threads;
}

/* Words of a block along k: equal blocks of a multiple of 256 numbers, where blocks of every format
 * end. */
static inline int64_t matmul_block_words(int64_t n_words, int n_panels)
{
    const int64_t most = min_i64(MATMUL_BLOCK, MATMUL_PANEL_WORDS / n_panels);
    return min_i64(n_words, round_up(ceil_div(n_words, ceil_div(n_words, most)), 256));
}

/* The most rows whose packed inputs fit cut->input_bytes. */
static inline int64_t matmul_block_rows(const struct matmul_cut *cut, int64_t n_words)
{
    const int64_t row_bytes = matmul_block_words(n_words, 1) * 4;
    return max_i64(cut->input_bytes / row_bytes / cut->rows, 1) * cut->rows;
}

struct matmul_scratch {
    int64_t packed_bytes;  // inputs of all threads
    int64_t decoded_bytes; // one panel block, per thread
    int64_t sums_bytes;    // sums kept between blocks, per thread
};

/* Enough for any matmul that is not larger. n_words: a multiple of cut->chunk. */
static inline struct matmul_scratch matmul_scratch(const struct matmul_cut *cut, int64_t m,
                                                   int64_t n_words, int n_threads)
{
    const int64_t all = m * n_words * 4;
    // A block of rows is packed over all of k; with several blocks along k it has fewer rows.
    const int64_t block = cut->input_bytes * ceil_div(n_words, MATMUL_BLOCK / 2);
    const int64_t rows = min_i64(m, matmul_block_rows(cut, MATMUL_BLOCK / 2));
    return (struct matmul_scratch){
        .packed_bytes = round_up(max_i64(all, min_i64(all, block) * n_threads), 64),
        .decoded_bytes = min_i64(n_words * MATMUL_PANELS_MAX, MATMUL_PANEL_WORDS) * PANEL_ROWS * 4,
        .sums_bytes = n_words > MATMUL_BLOCK / 2 ? MATMUL_GROUP * rows * PANEL_ROWS * 4 : 0,
    };
}

/* Threads split one list of the panels of all parts by cost: a panel's bytes plus, per row, its
 * numbers. The result does not depend on which thread computes a panel. */
#define MATMUL_ROW_COST 4 // cost of a row per number along k, in bytes of a panel

/* Panels [first, last) of a part; not empty. */
struct matmul_share {
    int part;
    int64_t first, last;
};

static inline int64_t matmul_panel_cost(const struct matmul_args *a, const struct weight *w)
{
    return dtype_panel_bytes(w->dtype, w->k) + (int64_t)a->m * w->k * MATMUL_ROW_COST;
}

/* Writes a thread's shares in the order of the list; returns their number. */
static inline int matmul_shares(const struct matmul_args *a, int thread, int n_threads,
                                struct matmul_share shares[MATMUL_PARTS])
{
    int64_t all = 0, from, to;
    int n = 0;
    for (int i = 0; i < a->n_parts; i++)
        all += ceil_div(a->parts[i].w.n, PANEL_ROWS) * matmul_panel_cost(a, &a->parts[i].w);
    pool_split(all, thread, n_threads, &from, &to);
    for (int i = 0; i < a->n_parts; i++) {
        const int64_t n_panels = ceil_div(a->parts[i].w.n, PANEL_ROWS);
        const int64_t cost = matmul_panel_cost(a, &a->parts[i].w);
        struct matmul_share *s = &shares[n];
        s->part = i;
        s->first = min_i64(max_i64(from, 0) / cost, n_panels);
        s->last = min_i64(max_i64(to, 0) / cost, n_panels);
        n += s->first < s->last;
        from -= n_panels * cost;
        to -= n_panels * cost;
    }
    return n;
}

/* Scratch of one thread of an attention op. */
#define ATTEND_ROWS_MAX 6 // rows (query, head) that any set computes together
#define SPLIT_SLOTS     256
#define SPLIT_PAGES     (SPLIT_SLOTS / PAGE_SLOTS)

/* Prompts on pairs of bf16: rows of a block, keys of a chunk. Strides in numbers are odd multiples
 * of a cache line, so that rows of a block map to different sets of the L1 cache. */
#define PROMPT_LANES       16 // one number per row, in a register
#define PROMPT_CHUNK       256
#define PROMPT_CHUNK_PAGES (PROMPT_CHUNK / PAGE_SLOTS)
#define PROMPT_Q_STRIDE    (SHAPE_HEAD_MAX + 32)
#define PROMPT_X_STRIDE    (PROMPT_CHUNK + 16)
#define PROMPT_P_STRIDE    (PROMPT_CHUNK + 32)

struct prompt_scratch_bf16 {
    int64_t q, x, out, p_max, p, bytes; // offsets of the arrays of struct bf16_block
};

/* Rows of a block: the sums of AVX-512 are in registers, those of AMX in tiles. */
static inline int prompt_rows_max(enum isa isa)
{
    return isa == ISA_AMX ? 16 : 14;
}

static inline struct prompt_scratch_bf16 prompt_scratch_bf16(int rows, int64_t n_prompt,
                                                             int head_dim)
{
    int64_t n_chunks = ceil_div(n_prompt, PROMPT_CHUNK);
    struct prompt_scratch_bf16 s = {0};
    s.x = s.q + rows * PROMPT_Q_STRIDE * 2;
    s.out = s.x + rows * PROMPT_X_STRIDE * 4;
    s.p_max = s.out + rows * round_up(head_dim, 16) * 4;
    s.p = s.p_max + n_chunks * PROMPT_LANES * 4;
    s.bytes = s.p + n_chunks * rows * PROMPT_P_STRIDE * 2;
    return s;
}

/* An attend_prompt call runs in rounds of so many tiles of 32 queries per span. */
#define PROMPT_ROUND_TILES 8

/* One thread's scratch: the arrays of a block of rows (f32: logits [ATTEND_ROWS_MAX, n_prompt_pad],
 * outputs and q [2, ATTEND_ROWS_MAX, dim_pad]), then per tile the sums of weights per key. */
struct prompt_scratch {
    int64_t columns; // offset of [PROMPT_ROUND_TILES + 1, n_prompt_pad]
    int64_t lead;    // offset of a struct prompt_lead
    int64_t bytes;
};

static inline struct prompt_scratch prompt_scratch(enum isa isa, int64_t n_prompt, int head_dim)
{
    int64_t n_pad = round_up(n_prompt, PAGE_SLOTS);
    int64_t f32_bytes = (n_pad + 2 * round_up(head_dim, 16)) * ATTEND_ROWS_MAX * 4;
    struct prompt_scratch s;
    s.columns = max_i64(round_up(f32_bytes, 64),
                        prompt_scratch_bf16(prompt_rows_max(isa), n_prompt, head_dim).bytes);
    s.lead = s.columns + n_pad * (PROMPT_ROUND_TILES + 1) * 4;
    s.bytes = s.lead + 64;
    return s;
}

/* Scratch of one thread of attend_forced, with rows = query heads and room for a ring: a V panel
 * [32, dim_pad]; logits [rows, slots_pad], or without scores [rows, 256], one split (in layers with
 * a window even if the policy has scores); per split maximum, sum and weight [3, rows, n_splits]
 * and outputs [n_splits, rows, dim_pad]; queries in two forms [1.5, rows, dim_pad], their sums and
 * scales [2, rows, groups]; the outputs of one row [dim_pad]; of the new token logits [rows], K and
 * V [2, n_kv_heads, dim_pad], scores and traits [2, n_kv_heads]. */
static inline int64_t attend_forced_thread_bytes(int64_t slots, int group, int n_kv_heads,
                                                 int head_dim, int scores)
{
    int64_t dim_pad = round_up(head_dim, 16), n_splits = ceil_div(slots, SPLIT_SLOTS) + 1;
    int64_t groups = ceil_div(head_dim, KV_GROUP);
    int64_t all = scores ? round_up(slots, PAGE_SLOTS) + EVICT_RING_MAX : 0;
    int64_t logits = max_i64(all, SPLIT_SLOTS);
    int64_t per_row = logits + n_splits * (3 + dim_pad) + dim_pad * 3 / 2 + 2 * groups + 1;
    int64_t numbers = per_row * group * n_kv_heads + (2 * n_kv_heads + 1) * dim_pad +
                      2 * n_kv_heads + PAGE_SLOTS * dim_pad;
    return round_up(numbers * (int64_t)sizeof(float), 64);
}

#endif
