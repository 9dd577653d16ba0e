/* kernels/kv.h - the layout of a KV page: 32 slots of all KV heads of one row and one layer.
 *
 * Page = [K part][V part], each [n_kv_heads][panel], the whole padded to 4 KiB. dim_pad is head_dim
 * rounded up to 16; the padding is zero (code 0).
 *   bf16  K panel [dim_pad / 2][32][2], pairs of dimensions, slots side by side;
 *         V panel [16][dim_pad][2], pairs of slots, dimensions side by side
 *
 *   f32   K panel [dim_pad][32]; V panel [32][dim_pad]
 *
 *   q8    as bf16, a byte for every code
 *
 *   q4    K panel [dim_pad / 4][32] of four codes in 16 bits, the first lowest;
 *         V panel [8][dim_pad] of four slots in 16 bits
 *
 * so that q.k runs over slots and p.V over dimensions without a horizontal sum. Behind the codes of
 * a q8 or q4 panel stand [groups][32] f16 scales, then [groups][32] f16 minima: a slot has its own
 * for every group of 64 dimensions (the last may be shorter), so that it can be overwritten alone.
 *
 * A number of q8 or q4 is code * scale + minimum. Of the group's least number lo and greatest hi:
 * minimum = f16(lo), scale = f16((hi - minimum) / codes), codes = 255 or 15; code = (x - minimum) *
 * (1 / scale) in f32, rounded half up and held within 0..codes; a scale of 0 gives code 0. f16
 * because both lose far less than half a code; a group with a number beyond f16, or that is none,
 * is all NaN: nothing is clipped in silence.
 *
 * mixed is no layout: its older tokens stand in q4 pages, the newest ones in a ring of q8 slots
 * beside them (struct kv_rows in kernels/ops.h). */
#ifndef KERNELS_KV_H
#define KERNELS_KV_H

#include "kernels/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KV_GROUP      64 // dimensions that share a scale in q8 and q4

/* KV_MIXED names a choice of the user, not a layout: pages are KV_Q4, the ring KV_Q8. */
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
    int groups;          // of dimensions that share a scale; 0 in f32 and bf16
    int64_t scales_at;   // bytes from a panel's start to its scales (q8, q4)
    int64_t panel_bytes; // one head's K (or V) panel
    int64_t v_offset;    // bytes from the page's start to its V part
    int64_t page_bytes;  // multiple of 4096
};

void kv_layout_init(struct kv_layout *l, enum kv_format format, int n_kv_heads, int head_dim);
/* Format of a row's pages. */
static inline enum kv_format kv_page_format(enum kv_format format)
{
    return format == KV_MIXED ? KV_Q4 : format;
}
const char *kv_format_name(enum kv_format format);
enum kv_format kv_format_by_name(const char *name); // N_KV_FORMATS when unknown

/* to [head_dim]: the numbers that come back after x [head_dim] was put (K or V of one head). */
void kv_round(const struct kv_layout *l, const float *x, float *to);
/* Writes / reads one slot of one head: k, v f32[head_dim]; rounded to nearest even in bf16. kv_get
 * leaves out what is NULL. */
void kv_put(const struct kv_layout *l, void *page, int slot, int head, const float *k,
            const float *v);
void kv_get(const struct kv_layout *l, const void *page, int slot, int head, float *k, float *v);
/* q8, q4: what the numbers of one slot of one head are made of, K (v 0) or V (v 1): codes
 * [head_dim] (or NULL), and for each group its scale and minimum [groups]. */
void kv_get_codes(const struct kv_layout *l, const void *page, int slot, int head, int v,
                  float *codes, float *scales, float *minima);

#ifdef __cplusplus
}
#endif

#endif
