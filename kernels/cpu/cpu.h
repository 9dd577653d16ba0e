/* kernels/cpu/cpu.h - the CPU implementations that kernels/ops.c chooses from.
 *
 * Owns: their names. Every op exists per instruction set, the last two once: they move numbers and
 * compare them, which no set does differently. */
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
CPU_DECLARE(silu_mul)
CPU_DECLARE(attend_prompt)
CPU_DECLARE(attend_forced)
CPU_DECLARE(head_reduce)
#undef CPU_DECLARE

void cpu_kv_store(const struct ops *ops, const struct kv_store_args *args);
void cpu_prompt_keep(const struct ops *ops, const struct prompt_keep_args *args);

/* How a matmul cuts its work; the scratch is sized by the same rules. All panels and inputs are
 * words of 32 bits along k: a pair of bf16 where the set multiplies pairs, else one f32. */
#define MATMUL_ROWS_MAX   14   // rows of the largest register tile
#define MATMUL_BLOCK      4096 // words along k of one decoded panel block: 512 KiB, half of an L2
#define MATMUL_SPLIT_ROWS 32   // rows per thread from which threads split rows instead of panels

#define MATMUL_PACK_ALONE 32768 // inputs below which waking the threads costs more than packing

static inline int matmul_by_rows(int m, int n_threads)
{
    return n_threads > 1 && m >= MATMUL_SPLIT_ROWS * n_threads;
}

struct matmul_scratch {
    int64_t packed_bytes;  // inputs, once
    int64_t decoded_bytes; // a panel block, per thread
    int64_t sums_bytes;    // sums between blocks, per thread
};

/* Grows with every argument. Row splits fall on tiles: a thread may get one tile above its share.
 */
static inline struct matmul_scratch matmul_scratch(int64_t m, int64_t n_words, int n_threads)
{
    int64_t rows = min_i64(m, ceil_div(m, n_threads) + 2 * MATMUL_ROWS_MAX);
    rows = max_i64(rows, min_i64(m, MATMUL_SPLIT_ROWS * n_threads)); // panels are split
    return (struct matmul_scratch){
        .packed_bytes = round_up(m * n_words * 4, 64),
        .decoded_bytes = min_i64(n_words, MATMUL_BLOCK) * PANEL_ROWS * 4,
        .sums_bytes = n_words > MATMUL_BLOCK ? rows * PANEL_ROWS * 4 : 0,
    };
}

/* Scratch of one thread of an attention op. */
#define ATTEND_ROWS_MAX 6 // rows (query, head) that any set works on together
#define SPLIT_SLOTS     256
#define SPLIT_PAGES     (SPLIT_SLOTS / KV_PAGE_SLOTS)

/* Logits [ATTEND_ROWS_MAX, n_prompt_pad], outputs [ATTEND_ROWS_MAX, dim_pad]. */
static inline int64_t attend_prompt_thread_bytes(int n_prompt, int head_dim)
{
    int64_t numbers = round_up(n_prompt, KV_PAGE_SLOTS) + round_up(head_dim, 16);
    return round_up(numbers * ATTEND_ROWS_MAX * (int64_t)sizeof(float), 64);
}

/* For `group` query heads: logits [group, slots_pad], a maximum and a weight per split [2, group,
 * n_splits], outputs of one split and of all [2, group, dim_pad]; of the new token its logit
 * [group], K and V [2, dim_pad] and its score per KV head [n_kv_heads]. */
static inline int64_t attend_forced_thread_bytes(int64_t slots, int group, int n_kv_heads,
                                                 int head_dim)
{
    int64_t per_head = round_up(slots, KV_PAGE_SLOTS) + 2 * ceil_div(slots, SPLIT_SLOTS) +
                       2 * round_up(head_dim, 16) + 1;
    int64_t numbers = per_head * group + 2 * round_up(head_dim, 16) + n_kv_heads;
    return round_up(numbers * (int64_t)sizeof(float), 64);
}

#endif
