/* kernels/cpu/cpu.h - the CPU implementations that kernels/ops.c chooses from.
 *
 * Owns: their names. Every op exists per instruction set but those that only move numbers and
 * compare them (gather, compact, cast, route, kv_store, prompt_keep): no set does that differently,
 * one does kv_store faster. */
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
CPU_DECLARE(gate_mul)
CPU_DECLARE(mix)
CPU_DECLARE(expert_sum)
CPU_DECLARE(attend_prompt)
CPU_DECLARE(attend_forced)
CPU_DECLARE(head_reduce)
#undef CPU_DECLARE

void cpu_matmul_amx(const struct ops *ops, const struct matmul_args *args);
void cpu_kv_store(const struct ops *ops, const struct kv_store_args *args);
void cpu_kv_store_avx512(const struct ops *ops, const struct kv_store_args *args);
void cpu_gather(const struct ops *ops, const struct gather_args *args);
/* Of whatever matmul `ops` chooses; expert_matmul_scratch_bytes() says what it needs. */
typedef void (*cpu_matmul_fn)(const struct ops *ops, const struct matmul_args *args);
void cpu_expert_matmul(const struct ops *ops, const struct expert_matmul_args *args,
                       cpu_matmul_fn matmul);
void cpu_route(const struct ops *ops, const struct route_args *args);
void cpu_compact(const struct ops *ops, const struct compact_args *args);
void cpu_cast(const struct ops *ops, const struct cast_args *args);
void cpu_prompt_keep(const struct ops *ops, const struct prompt_keep_args *args);

/* How a matmul cuts its work; the scratch is sized by the same rules. All panels and inputs are
 * words of 32 bits along k: a pair of bf16 where the set multiplies pairs, else one f32. A thread
 * takes blocks of rows, whose packed inputs stay in L2; in them groups of panels; in these blocks
 * along k. An L2 of 1 MiB holds the inputs, one block of panels and the next one. */
#define MATMUL_BLOCK       1024  // words along k of a block of one panel: 128 KiB
#define MATMUL_PANEL_WORDS 2048  // words along k of a block of several panels, together
#define MATMUL_GROUP       16    // panels whose sums wait for the next block along k
#define MATMUL_PACK_ALONE  32768 // inputs that each thread packs for itself: waiting costs more
#define MATMUL_PANELS_MAX  4     // that a tile of few rows takes side by side

/* What depends on how a set multiplies. */
struct matmul_cut {
    int rows;            // of the largest register tile
    int chunk;           // words along k that are multiplied at once; of padded zeros, if need be
    int split_rows;      // rows per thread from which threads split rows, not panels
    int64_t input_bytes; // packed inputs of a block of rows and words
};

/* Registers of 16 outputs. */
static inline struct matmul_cut matmul_cut_lanes(void)
{
    return (struct matmul_cut){14, 1, 32, 512 << 10};
}

/* AMX: so fast that weights have to serve more rows. */
static inline struct matmul_cut matmul_cut_tiles(void)
{
    return (struct matmul_cut){32, 16, 256, 1 << 20};
}

/* Where rows are split, each thread decodes all panels: that has to be little beside its rows. */
#define MATMUL_SPLIT_DECODED 2 // times as many rows

static inline int matmul_by_rows(const struct matmul_cut *cut, int m, int n_threads, int decodes)
{
    return n_threads > 1 && m >= cut->split_rows * (decodes ? MATMUL_SPLIT_DECODED : 1) * n_threads;
}

/* Words of a block along k: equal blocks, on 256 numbers, where every format has a block's end. */
static inline int64_t matmul_block_words(int64_t n_words, int n_panels)
{
    const int64_t most = min_i64(MATMUL_BLOCK, MATMUL_PANEL_WORDS / n_panels);
    return min_i64(n_words, round_up(ceil_div(n_words, ceil_div(n_words, most)), 256));
}

/* Rows of a block, up to which their inputs fit. */
static inline int64_t matmul_block_rows(const struct matmul_cut *cut, int64_t n_words)
{
    const int64_t row_bytes = matmul_block_words(n_words, 1) * 4;
    return max_i64(cut->input_bytes / row_bytes / cut->rows, 1) * cut->rows;
}

struct matmul_scratch {
    int64_t packed_bytes;  // inputs, of all threads
    int64_t decoded_bytes; // a panel block, per thread
    int64_t sums_bytes;    // sums between blocks, per thread
};

/* Enough for any matmul that is not larger; n_words: whole chunks. */
static inline struct matmul_scratch matmul_scratch(const struct matmul_cut *cut, int64_t m,
                                                   int64_t n_words, int n_threads)
{
    const int64_t all = m * n_words * 4;
    // A block of rows is packed over all of k, and holds fewer rows where k has several blocks.
    const int64_t block = cut->input_bytes * ceil_div(n_words, MATMUL_BLOCK / 2);
    const int64_t rows = min_i64(m, matmul_block_rows(cut, MATMUL_BLOCK / 2));
    return (struct matmul_scratch){
        .packed_bytes = round_up(max_i64(all, min_i64(all, block) * n_threads), 64),
        .decoded_bytes = min_i64(n_words * MATMUL_PANELS_MAX, MATMUL_PANEL_WORDS) * PANEL_ROWS * 4,
        .sums_bytes = n_words > MATMUL_BLOCK / 2 ? MATMUL_GROUP * rows * PANEL_ROWS * 4 : 0,
    };
}

/* The panels of all parts are one list that the threads split by what a panel costs: its bytes, and
 * for each row its numbers once more. Who does a panel never shows in the result. */
#define MATMUL_ROW_COST 4 // bytes of a panel per number along k: about what a row takes

/* Panels [first, last) of a part, never none. */
struct matmul_share {
    int part;
    int64_t first, last;
};

static inline int64_t matmul_panel_cost(const struct matmul_args *a, const struct weight *w)
{
    return dtype_panel_bytes(w->dtype, w->k) + (int64_t)a->m * w->k * MATMUL_ROW_COST;
}

/* A thread's shares, in the order of the list; returns how many there are. */
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
#define ATTEND_ROWS_MAX 6 // rows (query, head) that any set works on together
#define SPLIT_SLOTS     256
#define SPLIT_PAGES     (SPLIT_SLOTS / PAGE_SLOTS)

/* Prompts on pairs of bf16: rows of a register tile, keys of a chunk; strides in numbers, odd
 * multiples of a cache line so that a block's rows do not meet in a set of the L1 cache. */
#define PROMPT_ROWS        14
#define PROMPT_LANES       16 // numbers of which there is one a row, in a register
#define PROMPT_CHUNK       256
#define PROMPT_CHUNK_PAGES (PROMPT_CHUNK / PAGE_SLOTS)
#define PROMPT_Q_STRIDE    (2 * SHAPE_ROPE_MAX + 32)
#define PROMPT_X_STRIDE    (PROMPT_CHUNK + 16)
#define PROMPT_P_STRIDE    (PROMPT_CHUNK + 32)

struct prompt_scratch_bf16 {
    int64_t q, x, out, p_max, p, bytes; // offsets, see struct bf16_block
};

static inline struct prompt_scratch_bf16 prompt_scratch_bf16(int64_t n_prompt, int head_dim)
{
    int64_t n_chunks = ceil_div(n_prompt, PROMPT_CHUNK);
    struct prompt_scratch_bf16 s = {0};
    s.x = s.q + PROMPT_ROWS * PROMPT_Q_STRIDE * 2;
    s.out = s.x + PROMPT_ROWS * PROMPT_X_STRIDE * 4;
    s.p_max = s.out + PROMPT_ROWS * round_up(head_dim, 16) * 4;
    s.p = s.p_max + n_chunks * PROMPT_LANES * 4;
    s.bytes = s.p + n_chunks * PROMPT_ROWS * PROMPT_P_STRIDE * 2;
    return s;
}

/* A call works through its prompts in rounds of so many tiles of 32 queries each. */
#define PROMPT_ROUND_TILES 8

/* One thread's scratch: what a block of rows needs (in f32: logits [ATTEND_ROWS_MAX, n_prompt_pad],
 * outputs and q [2, ATTEND_ROWS_MAX, dim_pad]), then the sums of weights per key of tiles. */
struct prompt_scratch {
    int64_t columns; // offset of [PROMPT_ROUND_TILES + 1, n_prompt_pad]
    int64_t lead;    // offset of a struct prompt_lead
    int64_t bytes;
};

static inline struct prompt_scratch prompt_scratch(int64_t n_prompt, int head_dim)
{
    int64_t n_pad = round_up(n_prompt, PAGE_SLOTS);
    int64_t f32_bytes = (n_pad + 2 * round_up(head_dim, 16)) * ATTEND_ROWS_MAX * 4;
    struct prompt_scratch s;
    s.columns = max_i64(round_up(f32_bytes, 64), prompt_scratch_bf16(n_prompt, head_dim).bytes);
    s.lead = s.columns + n_pad * (PROMPT_ROUND_TILES + 1) * 4;
    s.bytes = s.lead + 64;
    return s;
}

/* For the query heads of `heads` KV heads, with room for a ring: a V panel [32, dim_pad], logits
 * [rows, slots_pad] (of one split, [rows, 256], where no scores are made of them: in layers with a
 * window even if the policy has scores), per split a maximum, a sum and a weight [3, rows,
 * n_splits] and outputs [n_splits, rows, dim_pad], queries in two forms [1.5, rows, dim_pad] and
 * their sums [rows, groups], the outputs of one row [dim_pad]; of the new token its logits [rows],
 * K and V [2, heads, dim_pad], scores and traits [2, n_kv_heads]. */
static inline int64_t attend_forced_thread_bytes(int64_t slots, int group, int n_kv_heads,
                                                 int head_dim, int scores)
{
    int64_t dim_pad = round_up(head_dim, 16), n_splits = ceil_div(slots, SPLIT_SLOTS) + 1;
    int64_t groups = ceil_div(head_dim, KV_GROUP);
    int64_t all = scores ? round_up(slots, PAGE_SLOTS) + EVICT_RING_MAX : 0;
    int64_t logits = max_i64(all, SPLIT_SLOTS);
    int64_t per_row = logits + n_splits * (3 + dim_pad) + dim_pad * 3 / 2 + groups + 1;
    int64_t numbers = per_row * group * n_kv_heads + (2 * n_kv_heads + 1) * dim_pad +
                      2 * n_kv_heads + PAGE_SLOTS * dim_pad;
    return round_up(numbers * (int64_t)sizeof(float), 64);
}

#endif
