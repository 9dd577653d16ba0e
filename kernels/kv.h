/* kernels/kv.h - the layout of a KV page: 32 slots of all KV heads of one row and one layer.
 *
 * Page = [K part][V part], each [n_kv_heads][panel], the whole padded to 4 KiB. dim_pad is head_dim
 * rounded up to 16; the padding is zero.
 *   bf16   K panel [dim_pad / 2][32][2]  pairs of dimensions, slots side by side (as a weight
 * panel) V panel [16][dim_pad][2]      pairs of slots, dimensions side by side f32    K panel
 * [dim_pad][32]         V panel [32][dim_pad] so that q.k runs over slots and p.V over dimensions
 * without a horizontal sum. */
#ifndef KERNELS_KV_H
#define KERNELS_KV_H

#include "kernels/base.h"

#define KV_PAGE_SLOTS 32

enum kv_format { KV_F32, KV_BF16, N_KV_FORMATS };

struct kv_layout {
    enum kv_format format;
    int n_kv_heads;
    int head_dim;
    int dim_pad;         // head_dim rounded up to 16
    int64_t panel_bytes; // one head's K (or V) panel
    int64_t v_offset;    // bytes from the page's start to its V part
    int64_t page_bytes;  // multiple of 4096
};

void kv_layout_init(struct kv_layout *l, enum kv_format format, int n_kv_heads, int head_dim);
const char *kv_format_name(enum kv_format format);
enum kv_format kv_format_by_name(const char *name); // N_KV_FORMATS when unknown

/* Writes / reads one slot of one head: k, v f32[head_dim]; rounded to nearest even in bf16. */
void kv_put(const struct kv_layout *l, void *page, int slot, int head, const float *k,
            const float *v);
void kv_get(const struct kv_layout *l, const void *page, int slot, int head, float *k, float *v);

#endif
