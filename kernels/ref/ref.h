/* kernels/ref/ref.h - what the two references share, and the doors of the exact one.
 *
 * kernels/ref/ops.c says what an op means, with sums in double. kernels/ref/exact*.c are the order
 * rules of kernels/ops.h as code: every sum in f32, link by link, as every instruction set and
 * device has to make it under COMPUTE_F32; ops.isa = ISA_EXACT asks for it. Ops without sums
 * (decode, gather, compact, cast, route, kv_store, prompt_keep) have one reference, which is exact.
 *
 * Owns: which slots a token attends, and where it is stored (kernels/ref/slots.c). Refuses: sums.
 */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/ops.h"

#define HEAD_DIM_MAX (2 * SHAPE_ROPE_MAX)
#define CHUNK        256 // columns of a panel decoded at a time: whole blocks in any format

static inline float ref_round_bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

/* One slot that a token attends: in a page, or in the ring. */
struct ref_slot {
    const struct kv_layout *layout;
    const void *page;
    int slot;     // of the page
    int64_t meta; // where slot_pos, slot_score and slot_trait have it
    int masked;   // its weight is 0, and its V is not multiplied
};

/* Slots that the token at position `now` attends beside its own: page slots, then the ring's. */
int ref_slot_count(const struct kv_row *kv, int now);
struct ref_slot ref_slot_at(const struct kv_row *kv, int head, int index);
/* 1: the token at position `now` sees the slot; of those that are masked and hidden nothing is
 * read. */
int ref_sees(const struct attend_forced_args *a, const struct forced_span *s,
             const struct kv_row *kv, const struct ref_slot *at, int now);
/* x [head_dim], q or a key, rotated by rank `rank` in place; without tables it stays. */
void ref_turn(const struct slot_rope *rope, int rank, float *x);
/* How many live slots of a head are older than the one at `index`, counted. */
int ref_rank(const struct kv_row *kv, int head, int now, int index);
/* All ranks of a row, when its next token has position `now`. */
void ref_ranks(const struct kv_row *kv, int now);
/* Layout in which a row's own token is rounded. */
const struct kv_layout *ref_own_layout(const struct kv_row *kv);
/* The score that the token at position `now` brings: weight is its own, summed over the heads of
 * its group. */
float ref_own_score(const struct attend_forced_args *a, int now, float weight);
/* After its attention: token i of a span takes its place in all heads, and kv->n_slots follows.
 * own [REF_OWN * n_kv_heads]: begins with the token's scores, the rest is room for its traits and
 * for those of the one that leaves the ring. */
#define REF_OWN 4
void ref_place(const struct attend_forced_args *a, const struct forced_span *s, struct kv_row *kv,
               int i, float *own);

/* Puts a candidate into a descending list of at most `cap`, equal logits by ascending id; NaN never
 * enters. */
void ref_list_insert(struct head_candidate *list, int *n, int cap, struct head_candidate in);

#define EXACT(name) void exact_##name(const struct ops *ops, const struct name##_args *args);
EXACT(matmul)
EXACT(norm)
EXACT(rope)
EXACT(gate_mul)
EXACT(mix)
EXACT(expert_sum)
EXACT(attend_prompt)
EXACT(attend_forced)
EXACT(head_reduce)
#undef EXACT
/* x of an activation (enum act_kind). */
double ref_act(int kind, double x);
/* Bias, act and residual of output o, whose sum is at hand; y: what stood there. */
float exact_finish(const struct matmul_part *part, float sum, int o, float y);
/* Rule a as ISA_AMX has it under COMPUTE_BF16 (and INT8, where weights are multiplied as bf16):
 * byte for byte, but for which NaN. */
void exact_matmul_amx(const struct ops *ops, const struct matmul_args *args);
void exact_matmul_int8(const struct ops *ops, const struct matmul_args *args);

#endif
