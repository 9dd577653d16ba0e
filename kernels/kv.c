/* kernels/kv.c - see kv.h: page sizes, reading and writing one slot.
 *
 * Owns: the addresses inside a page. Refuses: page tables, eviction, arithmetic on stored numbers.
 * kv_put also writes the slot's padding dimensions (zeros), so the bytes of a page depend only on
 * what was written to it. In q4 four slots of V share 16 bits: a write keeps the neighbours'
 * bits. */
#include "kernels/kv.h"
#include "kernels/dtype.h"

#include <math.h>
#include <string.h>

static const char *const format_names[N_KV_FORMATS] = {"f32", "bf16", "q8", "q4", "mixed"};

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
    CHECK(format >= 0 && format < N_KV_LAYOUTS && n_kv_heads > 0 && head_dim > 0);
    static const int bits[N_KV_LAYOUTS] = {32, 16, 8, 4};
    int dim_pad = (int)round_up(head_dim, 16), quantised = format == KV_Q8 || format == KV_Q4;
    *l = (struct kv_layout){
        .format = format,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .dim_pad = dim_pad,
        .groups = quantised ? (int)ceil_div(head_dim, KV_GROUP) : 0,
        .scales_at = (int64_t)dim_pad * PAGE_SLOTS * bits[format] / 8,
    };
    l->panel_bytes = l->scales_at + (int64_t)l->groups * PAGE_SLOTS * 4;
    l->v_offset = l->panel_bytes * n_kv_heads;
    l->page_bytes = round_up(2 * l->v_offset, 4096);
}

void kv_layout_keys_only(struct kv_layout *l)
{
    l->v_offset = 0;
    l->page_bytes = round_up(l->panel_bytes * l->n_kv_heads, 4096);
}

/* ---- q8 and q4 ---- */

struct group {
    uint16_t scale, min; // f16
    uint8_t codes[KV_GROUP];
};

static void group_encode(const float *x, int n, int max_code, struct group *g)
{
    float lo = x[0], hi = x[0];
    int fits = 1;
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        fits &= fabsf(x[i]) <= 65504.0f;
    }
    g->min = f32_to_f16(fits ? lo : NAN);
    lo = f16_to_f32(g->min);
    g->scale = f32_to_f16(fits ? (hi - lo) / (float)max_code : NAN);
    float scale = f16_to_f32(g->scale), inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = 0; i < n; i++) {
        float t = fits ? (x[i] - lo) * inverse + 0.5f : 0.0f;
        t = t > 0.0f ? t : 0.0f;
        g->codes[i] = (uint8_t)(t < (float)max_code ? t : (float)max_code);
    }
}

/* Position of a code: `shift` and `mask` in 16-bit word `index`. */
struct code_place {
    int64_t index;
    int shift, mask;
};

static struct code_place place_of(const struct kv_layout *l, int64_t fast, int64_t slow,
                                  int64_t width)
{
    int bits = l->format == KV_Q8 ? 8 : 4, per_word = 16 / bits;
    return (struct code_place){slow / per_word * width + fast, (int)(slow % per_word) * bits,
                               (1 << bits) - 1};
}

static struct code_place k_place(const struct kv_layout *l, int d, int slot)
{
    return place_of(l, slot, d, PAGE_SLOTS);
}

static struct code_place v_place(const struct kv_layout *l, int d, int slot)
{
    return place_of(l, d, slot, l->dim_pad);
}

typedef struct code_place (*place_fn)(const struct kv_layout *l, int d, int slot);

static uint16_t *scale_at(const struct kv_layout *l, const void *panel, int group, int slot)
{
    return (uint16_t *)((uint8_t *)(uintptr_t)panel + l->scales_at) + group * PAGE_SLOTS + slot;
}

static void put_codes(const struct kv_layout *l, uint16_t *panel, int slot, const float *x,
                      place_fn place)
{
    struct group g;
    for (int group = 0; group < l->groups; group++) {
        int first = group * KV_GROUP, n = (int)min_i64(KV_GROUP, l->head_dim - first);
        int n_pad = (int)min_i64(KV_GROUP, l->dim_pad - first);
        group_encode(x + first, n, l->format == KV_Q8 ? 255 : 15, &g);
        for (int i = 0; i < n_pad; i++) {
            struct code_place p = place(l, first + i, slot);
            int code = i < n ? g.codes[i] : 0;
            panel[p.index] = (uint16_t)((panel[p.index] & ~(p.mask << p.shift)) | code << p.shift);
        }
        *scale_at(l, panel, group, slot) = g.scale;
        *scale_at(l, panel, l->groups + group, slot) = g.min;
    }
}

static void get_codes(const struct kv_layout *l, const uint16_t *panel, int slot, float *x,
                      place_fn place)
{
    for (int group = 0; group < l->groups; group++) {
        float scale = f16_to_f32(*scale_at(l, panel, group, slot));
        float min = f16_to_f32(*scale_at(l, panel, l->groups + group, slot));
        for (int d = group * KV_GROUP; d < l->head_dim && d < (group + 1) * KV_GROUP; d++) {
            struct code_place p = place(l, d, slot);
            x[d] = (float)(panel[p.index] >> p.shift & p.mask) * scale + min;
        }
    }
}

void kv_round(const struct kv_layout *l, const float *x, float *to)
{
    struct group g;
    for (int d = 0; d < l->head_dim && l->groups == 0; d++)
        to[d] = l->format == KV_BF16 ? bf16_to_f32(f32_to_bf16(x[d])) : x[d];
    for (int group = 0; group < l->groups; group++) {
        int first = group * KV_GROUP, n = (int)min_i64(KV_GROUP, l->head_dim - first);
        group_encode(x + first, n, l->format == KV_Q8 ? 255 : 15, &g);
        float scale = f16_to_f32(g.scale), min = f16_to_f32(g.min);
        for (int i = 0; i < n; i++)
            to[first + i] = (float)g.codes[i] * scale + min;
    }
}

/* ---- one slot ---- */

static void put_f32(const struct kv_layout *l, float *k_panel, float *v_panel, int slot,
                    const float *k, const float *v)
{
    for (int d = 0; d < l->dim_pad; d++) {
        k_panel[d * PAGE_SLOTS + slot] = d < l->head_dim ? k[d] : 0;
        if (v_panel)
            v_panel[slot * l->dim_pad + d] = d < l->head_dim ? v[d] : 0;
    }
}

static void put_bf16(const struct kv_layout *l, uint16_t *k_panel, uint16_t *v_panel, int slot,
                     const float *k, const float *v)
{
    for (int d = 0; d < l->dim_pad; d++) {
        uint16_t *k_at = k_panel + (d / 2 * PAGE_SLOTS + slot) * 2 + d % 2;
        *k_at = d < l->head_dim ? f32_to_bf16(k[d]) : 0;
        if (v_panel)
            v_panel[(slot / 2 * l->dim_pad + d) * 2 + slot % 2] =
                d < l->head_dim ? f32_to_bf16(v[d]) : 0;
    }
}

void kv_put(const struct kv_layout *l, void *page, int slot, int head, const float *k,
            const float *v)
{
    CHECK(slot >= 0 && slot < PAGE_SLOTS && head >= 0 && head < l->n_kv_heads);
    uint8_t *k_panel = (uint8_t *)page + l->panel_bytes * head;
    uint8_t *v_panel = l->v_offset > 0 ? k_panel + l->v_offset : NULL;
    if (l->format == KV_F32)
        put_f32(l, (float *)k_panel, (float *)v_panel, slot, k, v);
    else if (l->format == KV_BF16)
        put_bf16(l, (uint16_t *)k_panel, (uint16_t *)v_panel, slot, k, v);
    else {
        put_codes(l, (uint16_t *)k_panel, slot, k, k_place);
        if (v_panel)
            put_codes(l, (uint16_t *)v_panel, slot, v, v_place);
    }
}

void kv_get(const struct kv_layout *l, const void *page, int slot, int head, float *k, float *v)
{
    CHECK(slot >= 0 && slot < PAGE_SLOTS && head >= 0 && head < l->n_kv_heads);
    const uint8_t *k_panel = (const uint8_t *)page + l->panel_bytes * head;
    const uint8_t *v_panel = k_panel + l->v_offset;
    if (v && l->v_offset == 0) {
        kv_get(l, page, slot, head, v, NULL);
        v = NULL;
    }
    if (l->groups > 0) {
        if (k)
            get_codes(l, (const uint16_t *)k_panel, slot, k, k_place);
        if (v)
            get_codes(l, (const uint16_t *)v_panel, slot, v, v_place);
        return;
    }
    for (int d = 0; d < l->head_dim && k; d++)
        k[d] =
            l->format == KV_F32
                ? ((const float *)k_panel)[d * PAGE_SLOTS + slot]
                : bf16_to_f32(((const uint16_t *)k_panel)[(d / 2 * PAGE_SLOTS + slot) * 2 + d % 2]);
    for (int d = 0; d < l->head_dim && v; d++)
        v[d] = l->format == KV_F32
                   ? ((const float *)v_panel)[slot * l->dim_pad + d]
                   : bf16_to_f32(
                         ((const uint16_t *)v_panel)[(slot / 2 * l->dim_pad + d) * 2 + slot % 2]);
}

void kv_get_codes(const struct kv_layout *l, const void *page, int slot, int head, int v,
                  float *codes, float *scales, float *minima)
{
    CHECK(l->groups > 0 && slot >= 0 && slot < PAGE_SLOTS && head >= 0 && head < l->n_kv_heads);
    const uint8_t *at = (const uint8_t *)page + l->panel_bytes * head + (v ? l->v_offset : 0);
    const uint16_t *panel = (const uint16_t *)at;
    for (int d = 0; d < l->head_dim && codes; d++) {
        struct code_place p = v && l->v_offset > 0 ? v_place(l, d, slot) : k_place(l, d, slot);
        codes[d] = (float)(panel[p.index] >> p.shift & p.mask);
    }
    for (int group = 0; group < l->groups; group++) {
        scales[group] = f16_to_f32(*scale_at(l, panel, group, slot));
        minima[group] = f16_to_f32(*scale_at(l, panel, l->groups + group, slot));
    }
}

/* Two by two numbers of 16 bits, as words of two, to words along the other index. */
static void turn_pairs(const uint32_t *k, int dim_pad, uint32_t *v)
{
    for (int d = 0; d < dim_pad; d += 2, k += PAGE_SLOTS)
        for (int slot = 0; slot < PAGE_SLOTS; slot += 2) {
            const uint32_t a = k[slot], b = k[slot + 1];
            uint32_t *to = v + slot / 2 * dim_pad + d;
            to[0] = (a & 0xffff) | b << 16;
            to[1] = a >> 16 | (b & 0xffff0000u);
        }
}

/* The same for codes of 8 or 4 bits in words of 16: 2 x 2 or 4 x 4 of them. */
static void turn_codes(const uint16_t *k, int dim_pad, int bits, uint16_t *v)
{
    const int per = 16 / bits, mask = (1 << bits) - 1;
    for (int d = 0; d < dim_pad; d += per, k += PAGE_SLOTS)
        for (int slot = 0; slot < PAGE_SLOTS; slot += per)
            for (int i = 0; i < per; i++) {
                int word = 0;
                for (int j = 0; j < per; j++)
                    word |= (k[slot + j] >> i * bits & mask) << j * bits;
                v[slot / per * dim_pad + d + i] = (uint16_t)word;
            }
}

void kv_values_of_keys(const struct kv_layout *l, const void *panel, void *to)
{
    const float *k = panel;
    float *v = to;
    for (int d = 0; d < l->dim_pad && l->format == KV_F32; d++)
        for (int slot = 0; slot < PAGE_SLOTS; slot++)
            v[slot * l->dim_pad + d] = k[d * PAGE_SLOTS + slot];
    if (l->format == KV_BF16)
        turn_pairs(panel, l->dim_pad, to);
    if (l->groups > 0)
        turn_codes(panel, l->dim_pad, l->format == KV_Q8 ? 8 : 4, to);
    memcpy((uint8_t *)to + l->scales_at, (const uint8_t *)panel + l->scales_at,
           (size_t)(l->panel_bytes - l->scales_at));
}
