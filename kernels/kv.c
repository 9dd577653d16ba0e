/* kernels/kv.c - see kv.h: sizes of a page, one slot in, one slot out.
 *
 * Owns: the addresses inside a page. Refuses: page tables, eviction, arithmetic on what is stored.
 * A newcomer would miss: kv_put writes the padding dimensions of its slot too (zeros), so the bytes
 * of a page depend only on what was put into it. */
#include "kernels/kv.h"
#include "kernels/dtype.h"

#include <string.h>

static const char *const format_names[N_KV_FORMATS] = {"f32", "bf16"};

const char *kv_format_name(enum kv_format format)
{
    return format_names[format];
}

enum kv_format kv_format_by_name(const char *name)
{
    int format = 0;
    while (format < N_KV_FORMATS && strcmp(format_names[format], name) != 0)
        format++;
    return (enum kv_format)format;
}

void kv_layout_init(struct kv_layout *l, enum kv_format format, int n_kv_heads, int head_dim)
{
    CHECK(format >= 0 && format < N_KV_FORMATS && n_kv_heads > 0 && head_dim > 0);
    int64_t number_bytes = format == KV_F32 ? 4 : 2;
    int dim_pad = (int)round_up(head_dim, 16);
    *l = (struct kv_layout){
        .format = format,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .dim_pad = dim_pad,
        .panel_bytes = number_bytes * dim_pad * KV_PAGE_SLOTS,
    };
    l->v_offset = l->panel_bytes * n_kv_heads;
    l->page_bytes = round_up(2 * l->v_offset, 4096);
}

static void put_f32(const struct kv_layout *l, float *k_panel, float *v_panel, int slot,
                    const float *k, const float *v)
{
    for (int d = 0; d < l->dim_pad; d++) {
        k_panel[d * KV_PAGE_SLOTS + slot] = d < l->head_dim ? k[d] : 0;
        v_panel[slot * l->dim_pad + d] = d < l->head_dim ? v[d] : 0;
    }
}

static void put_bf16(const struct kv_layout *l, uint16_t *k_panel, uint16_t *v_panel, int slot,
                     const float *k, const float *v)
{
    uint16_t *v_row = v_panel + (slot / 2) * l->dim_pad * 2 + slot % 2;
    for (int d = 0; d < l->dim_pad; d++) {
        uint16_t *k_at = k_panel + (d / 2 * KV_PAGE_SLOTS + slot) * 2 + d % 2;
        *k_at = d < l->head_dim ? f32_to_bf16(k[d]) : 0;
        v_row[d * 2] = d < l->head_dim ? f32_to_bf16(v[d]) : 0;
    }
}

void kv_put(const struct kv_layout *l, void *page, int slot, int head, const float *k,
            const float *v)
{
    CHECK(slot >= 0 && slot < KV_PAGE_SLOTS && head >= 0 && head < l->n_kv_heads);
    uint8_t *k_panel = (uint8_t *)page + l->panel_bytes * head;
    uint8_t *v_panel = k_panel + l->v_offset;
    if (l->format == KV_F32)
        put_f32(l, (float *)k_panel, (float *)v_panel, slot, k, v);
    else
        put_bf16(l, (uint16_t *)k_panel, (uint16_t *)v_panel, slot, k, v);
}

void kv_get(const struct kv_layout *l, const void *page, int slot, int head, float *k, float *v)
{
    CHECK(slot >= 0 && slot < KV_PAGE_SLOTS && head >= 0 && head < l->n_kv_heads);
    const uint8_t *k_panel = (const uint8_t *)page + l->panel_bytes * head;
    const uint8_t *v_panel = k_panel + l->v_offset;
    for (int d = 0; d < l->head_dim; d++) {
        if (l->format == KV_F32) {
            k[d] = ((const float *)k_panel)[d * KV_PAGE_SLOTS + slot];
            v[d] = ((const float *)v_panel)[slot * l->dim_pad + d];
        } else {
            int64_t k_at = (d / 2 * KV_PAGE_SLOTS + slot) * 2 + d % 2;
            int64_t v_at = ((slot / 2) * l->dim_pad + d) * 2 + slot % 2;
            k[d] = bf16_to_f32(((const uint16_t *)k_panel)[k_at]);
            v[d] = bf16_to_f32(((const uint16_t *)v_panel)[v_at]);
        }
    }
}
