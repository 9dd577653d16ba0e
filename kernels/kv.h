/* kernels/kv.h - the layout of a KV page: 32 slots of all KV heads of one row and one layer.
 *
 * Owns: sizes and addresses inside a page. Refuses: page tables, eviction.
 * Page = [K part][V part], each [n_kv_heads][panel], padded to 4 KiB. dim_pad is head_dim rounded
 * up to 16; the padding is zero (code 0).
 *   bf16  K panel [dim_pad / 2][32][2], pairs of dimensions, slots contiguous;
 *         V panel [16][dim_pad][2], pairs of slots, dimensions contiguous
 *   f32   K panel [dim_pad][32]; V panel [32][dim_pad]
 *   q8    as bf16, with one byte per code
 *   q4    K panel [dim_pad / 4][32] of four codes in 16 bits, the first lowest;
 *         V panel [8][dim_pad] of four slots in 16 bits
 * So q.k runs over slots and p.V over dimensions without a horizontal sum. In a page of keys only
 * values are the keys as stored (MLA): there is no V part, and readers turn a K panel into a V
 * panel. The codes of a q8 or q4 panel are followed by [groups][32] f16 scales and [groups][32] f16
 * minima: each slot has its own scale per group of 64 dimensions (the last may be shorter), so that
 * a slot can be overwritten alone.
 *
 * A number of q8 or q4 is code * scale + minimum. With lo and hi the least and greatest number of
 * the group: minimum = f16(lo), scale = f16((hi - minimum) / codes), codes = 255 or 15; code = (x -
 * minimum) * (1 / scale) in f32, rounded half up and clamped to 0..codes; scale 0 gives code 0.
 * Rounding both to f16 loses far less than half a code. A group with a NaN or a number beyond f16
 * becomes all NaN: nothing is clipped silently.
 *
 * q8 and q4 pages hold rotated keys and values (kv_rotation): a few large numbers would otherwise
 * widen the codes' steps for the rest of their group. Queries are rotated like keys, so q.k stays
 * the same up to rounding; attention's output is rotated back. Where positions are ranks, attention
 * applies RoPE to stored keys, so only values are rotated. Attention itself does not know of
 * rotations: engine/line/layer_decode.c rotates before and after.
 *
 * mixed is not a layout: older tokens are in q4 pages, the newest in a ring of q8 slots (struct
 * kv_rows in kernels/ops.h). */
#ifndef KERNELS_KV_H
#define KERNELS_KV_H

#include "kernels/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KV_GROUP 64 // dimensions that share a scale in q8 and q4

/* KV_MIXED is a choice of the user, not a layout: pages are KV_Q4, the ring KV_Q8. */
enum kv_format {
    KV_F32,
    KV_BF16,
    KV_Q8,
    KV_Q4,
    N_KV_LAYOUTS,
    KV_MIXED = N_KV_LAYOUTS,
    N_KV_FORMATS
};

struct kv_layout {
    enum kv_format format;
    int n_kv_heads;
    int head_dim;
    int dim_pad;         // head_dim rounded up to 16
    int groups;          // groups of dimensions that share a scale; 0 in f32 and bf16
    int64_t scales_at;   // bytes from a panel's start to its scales (q8, q4)
    int64_t panel_bytes; // one head's K (or V) panel
    int64_t v_offset;    // bytes from the page's start to its V part; 0: none, values are the keys
    int64_t page_bytes;  // multiple of 4096
};

/* A head is rotated in blocks of so many numbers (struct rotate_args): the largest power of two
 * that divides head_dim, at most KV_ROTATION_MOST. 0: no rotation, because the blocks would be too
 * small or the pages hold f32 or bf16. */
#define KV_ROTATION_LEAST 8
#define KV_ROTATION_MOST  256
static inline int kv_rotation(const struct kv_layout *l)
{
    const int block = l->head_dim & -l->head_dim;
    if (l->groups == 0 || block < KV_ROTATION_LEAST)
        return 0;
    return block < KV_ROTATION_MOST ? block : KV_ROTATION_MOST;
}

void kv_layout_init(struct kv_layout *l, enum kv_format format, int n_kv_heads, int head_dim);
/* Drops the V part. */
void kv_layout_keys_only(struct kv_layout *l);
/* Format of a row's pages. */
static inline enum kv_format kv_page_format(enum kv_format format)
{
    return format == KV_MIXED ? KV_Q4 : format;
}
const char *kv_format_name(enum kv_format format);
enum kv_format kv_format_by_name(const char *name); // N_KV_FORMATS when unknown

/* Rounds x [head_dim] (K or V of one head) as a page would: `to` is what kv_get returns after
 * kv_put. */
void kv_round(const struct kv_layout *l, const float *x, float *to);
/* Writes or reads one slot of one head: k, v f32[head_dim]. bf16 rounds to nearest even. kv_get
 * skips a NULL k or v. Without a V part kv_put ignores v. */
void kv_put(const struct kv_layout *l, void *page, int slot, int head, const float *k,
            const float *v);
void kv_get(const struct kv_layout *l, const void *page, int slot, int head, float *k, float *v);
/* q8, q4: the codes [head_dim] (or NULL), scales [groups] and minima [groups] of one slot of one
 * head, of K (v 0) or V (v 1). */
void kv_get_codes(const struct kv_layout *l, const void *page, int slot, int head, int v,
                  float *codes, float *scales, float *minima);
/* to [panel_bytes]: the V panel of a page of keys only, from a K panel. */
void kv_values_of_keys(const struct kv_layout *l, const void *panel, void *to);

#ifdef __cplusplus
}
#endif

#endif
