/* kernels/ref/ref.h - what the two references share, and the functions of the exact reference.
 *
 * kernels/ref/ops.c defines what an op computes, with sums in double. kernels/ref/exact*.c has the
 * order rules of kernels/ops.h as code: every sum in f32, link by link, with the bytes that every
 * instruction set and device gives under COMPUTE_F32; ops.isa = ISA_EXACT selects it. Ops without
 * sums (decode, gather, compact, cast, route, kv_store, prompt_keep) have one reference, which is
 * exact.
 *
 * Owns: which slots a token attends, and where the token is stored (kernels/ref/slots.c). Refuses:
 * sums. */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/ops.h"

#define HEAD_DIM_MAX SHAPE_HEAD_MAX
#define CHUNK        256 // columns of a panel decoded at a time: whole blocks of any format

static inline float ref_round_bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

/* The largest magnitude of a group of numbers that become codes; NaN if a number is not finite, 0
 * below 2^-100. */
float ref_largest(const float *x, int k);
/* The code of x in a group with the largest magnitude `max`, which has the code `most`. The scale
 * is max / most. */
int ref_code(float x, float max, float most);
/* Rounds q [head_dim] of attend_forced as its contract says. codes [head_dim] (or NULL) and scales
 * [groups] are written where q becomes codes. Returns 1 there, else 0. */
int ref_round_query(const struct ops *ops, const struct kv_layout *l, float *q, int *codes,
                    float *scales);

/* One slot that a token attends: in a page, or in the ring. */
struct ref_slot {
    const struct kv_layout *layout;
    const void *page;
    int slot;     // of the page
    int64_t meta; // index in slot_pos, slot_score and slot_trait
    int masked;   // weight 0; V is not multiplied
};

/* Slots that the token at position `now` attends besides itself: page slots, then ring slots. */
int ref_slot_count(const struct kv_row *kv, int now);
struct ref_slot ref_slot_at(const struct kv_row *kv, int head, int index);
/* 1: the token at position `now` sees the slot. Masked and hidden slots are not read. */
int ref_sees(const struct attend_forced_args *a, const struct forced_span *s,
             const struct kv_row *kv, const struct ref_slot *at, int now);
/* Rotates x [head_dim], q or a key, by `rank` in place; does nothing without tables. */
void ref_turn(const struct slot_rope *rope, int rank, float *x);
void ref_turn_query(const struct slot_rope *rope, int rank, int head_dim, float *x);
/* Counts the live slots of a head that are older than slot `index`. */
int ref_rank(const struct kv_row *kv, int head, int now, int index);
/* The layout in which a row's own token is rounded. */
const struct kv_layout *ref_own_layout(const struct kv_row *kv);
/* The initial score of the token at position `now`; weight: its own, summed over the heads of its
 * group. */
float ref_own_score(const struct attend_forced_args *a, int now, float weight);
/* Stores token i of a span in all heads after its attention, and updates kv->n_slots. own [REF_OWN
 * * n_kv_heads]: the token's scores, then scratch for its traits and for score and trait of the
 * token that leaves the ring. */
#define REF_OWN 4
void ref_place(const struct attend_forced_args *a, const struct forced_span *s, struct kv_row *kv,
               int i, float *own);

/* Inserts a candidate into a descending list of at most `cap`, ties by ascending id; ignores
 * NaN. */
void ref_list_insert(struct head_candidate *list, int *n, int cap, struct head_candidate in);

#define EXACT(name) void exact_##name(const struct ops *ops, const struct name##_args *args);
EXACT(matmul)
EXACT(norm)
EXACT(rope)
EXACT(rotate)
EXACT(gate_mul)
EXACT(mix)
EXACT(conv)
EXACT(recur)
EXACT(expert_sum)
EXACT(attend_prompt)
EXACT(attend_forced)
EXACT(head_reduce)
#undef EXACT
/* Activation `kind` (enum act_kind) of x. */
double ref_act(int kind, double x);
/* Applies bias, act and residual to the sum of output o; y: the old value. */
float exact_finish(const struct matmul_part *part, float sum, int o, float y);
/* Rule a for ISA_AMX under COMPUTE_BF16 (and INT8, for weights multiplied as bf16): byte for byte,
 * except for the bits of a NaN. */
void exact_matmul_amx(const struct ops *ops, const struct matmul_args *args);
/* Rule h, likewise. */
void exact_attend_prompt_amx(const struct ops *ops, const struct attend_prompt_args *args);
void exact_matmul_int8(const struct ops *ops, const struct matmul_args *args);

#endif
