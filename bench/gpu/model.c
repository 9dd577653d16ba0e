/* bench/gpu/model.c - seconds of ops, for model.h.
 *
 * Note: grids here follow kernels/cuda; if a kernel changes its grid, change this file too. Tiles
 * come from kernels/cuda/tiles.h, instruction counts from gpu_fact_of(). */
#include "bench/gpu/model.h"

#include "kernels/cuda/forced.h"
#include "kernels/cuda/tiles.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double up_div(double a, double b)
{
    return ceil(a / b);
}

/* Warp instructions that one SM issues per second. */
static double sm_issue(const struct gpu_card *c)
{
    return GPU_SCHEDULERS * c->clock_hz;
}

/* Adds a kernel of `body` seconds, at least one load's latency, after another kernel. */
static void add_kernel(const struct gpu_card *c, struct gpu_cost *to, double body, double bytes,
                       double flops)
{
    to->s += c->launch_s + most(body, c->latency_s);
    to->n_launches++;
    to->bytes += bytes;
    to->flops += flops;
}

/* Adds a kernel that reads or writes each byte once. */
static void add_pass(const struct gpu_card *c, struct gpu_cost *to, double bytes)
{
    add_kernel(c, to, bytes / (c->memory_rate * GPU_HBM_ANYHOW), bytes, 0);
}

/* Memory rate in bytes per second, with `in_flight` bytes in flight on each of `sms` SMs. */
static double memory_rate(const struct gpu_card *c, double sms, double in_flight)
{
    return least(c->memory_rate * GPU_HBM_SHARE, sms * in_flight / c->latency_s);
}

/* ---- matmul ---- */

/* Tiles of a matmul on tensor cores: most rows, BM, BN, and outputs of a warp. */
struct tile {
    int rows, bm, bn, outputs;
    const char *kernel;
};
#define MMA_TILE(MOST, BM, BN, BK, WM, WN, ...)                                                    \
    {MOST, BM, BN, (WM) * (WN), "matmul_mma_tile<" #BM "," #BN ","},
static const struct tile tiles[] = {MMA_TILES(MMA_TILE)};
/* The instructions of these kernels' loops include decoding W. */
#define Q_TILE(MOST, BM, BN, WM, WN, ...)                                                          \
    {MOST, BM, BN, (WM) * (WN), "matmul_q_tile<" #BM "," #BN ","},
static const struct tile q_tiles[] = {Q_TILES(Q_TILE)};
/* For more than CODES_ROWS rows. */
#define CODES_ROWS 4
#define INT8_TILE(MOST, BM, BN, HALVES, WM, ...)                                                   \
    {MOST, BM, BN, 16 * (HALVES) * (WM), "matmul_int8_mma_tile<" #BM "," #BN ","},
static const struct tile code_tiles[] = {INT8_TILES(INT8_TILE)};

/* The multiplier: its tiles, FLOPs per mma, FLOPs per second of the card, bytes per number of x. */
struct cores {
    const struct tile *tiles;
    double mma_flops, flops_per_s, x_bytes;
};

static int is_q(const struct weight *w)
{
    return w->layout == WEIGHT_PANELS && (w->dtype == DTYPE_Q8 || w->dtype == DTYPE_Q4);
}

static int is_codes(const struct ops *ops, const struct weight *w)
{
    return ops->compute == COMPUTE_INT8 && is_q(w);
}

/* m16n8k8 on sm_75, m16n8k16 on later cards; int8: m8n8k16, then m16n8k32, at twice the rate. */
static struct cores cores_of(const struct gpu_card *c, const struct ops *ops,
                             const struct weight *w)
{
    if (is_codes(ops, w))
        return (struct cores){code_tiles, c->arch < 80 ? 2048 : 8192, 2 * c->tensor_flops,
                              1 + 8.0 / 64};
    return (struct cores){is_q(w) ? q_tiles : tiles, c->arch < 80 ? 2048 : 4096, c->tensor_flops,
                          2};
}

/* Instructions per lane and number of W in matmul_panel.cu: counted as 563 for a loop that decodes
 * 16 numbers per lane, when q4 was among its formats, including mma. The count has all branches of
 * the loop; fewer are executed. A tile of up to 128 rows decodes all of W. */
#define PANEL_INSTRUCTIONS 35

static double panel_issue_s(const struct gpu_card *c, double m, double numbers)
{
    return up_div(m, 128) * numbers * PANEL_INSTRUCTIONS / GPU_WARP / (c->n_sm * sm_issue(c));
}

/* Adds one product of m rows on tensor cores. n_same: number of equal products in one grid
 * (experts). decode_s: seconds to issue the instructions that decode W. */
static void add_mma(const struct gpu_card *c, struct gpu_cost *to, struct cores cores, double m,
                    double n, double k, double weight_bytes, double n_same, double decode_s)
{
    const struct tile *t = cores.tiles;
    while (m > t->rows)
        t++;
    const struct gpu_fact f = gpu_fact_of(c, t->kernel, "mma");
    const double blocks = n_same * up_div(m, t->bm) * up_div(n, t->bn);
    const double warps = t->bm * t->bn / t->outputs, sms = least(blocks, c->n_sm);
    const double on_sm = up_div(blocks, c->n_sm), resident = least(on_sm, f.blocks_per_sm);
    const double block_flops = 2.0 * t->bm * t->bn * k;
    /* A scheduler has resident * warps / 4 warps and issues one instruction per cycle. */
    const double warp_s = block_flops / warps / cores.mma_flops * f.per_mma / c->clock_hz;
    const double rounds = on_sm / resident;
    const double mma_s = rounds * warp_s * most(resident * warps / GPU_SCHEDULERS, GPU_WARP_CPI);
    const double issue_s = most(mma_s, decode_s);
    const double tensor_s = on_sm * block_flops / (cores.flops_per_s * c->tensor_share / c->n_sm);
    const double in_flight = f.bytes_in_flight * resident / f.blocks_per_sm;
    const double rows_bytes = n_same * m * (k * cores.x_bytes + n * 4);
    const double bytes = n_same * weight_bytes + rows_bytes;
    const double memory_s = n_same * weight_bytes / memory_rate(c, sms, in_flight) +
                            rows_bytes / (c->memory_rate * GPU_HBM_SHARE);
    add_kernel(c, to, most(memory_s, most(issue_s, tensor_s)), bytes, n_same * 2 * m * n * k);
}

/* Adds products in f32, or of a few int8 rows by dp4a: limited by a fixed rate, or by memory. */
static void add_plain(const struct gpu_card *c, struct gpu_cost *to, double m, double n, double k,
                      double weight_bytes, double flops_per_s)
{
    const double memory_s = weight_bytes / (c->memory_rate * GPU_HBM_ANYHOW);
    add_kernel(c, to, most(memory_s, 2 * m * n * k / flops_per_s), weight_bytes, 2 * m * n * k);
}

static double stored_bytes(const struct weight *w)
{
    return (double)weight_bytes(w->layout, w->dtype, w->n, w->k);
}

/* Adds n_same products of m rows by n outputs of weights like w, with `bytes` of weights each. */
static void add_product(const struct gpu_card *c, struct gpu_cost *to, const struct ops *ops,
                        const struct weight *w, double m, double n, double bytes, double n_same)
{
    const int decodes = w->layout == WEIGHT_PANELS && !is_q(w);
    if (ops->compute == COMPUTE_F32)
        add_plain(c, to, m * n_same, n, w->k, bytes * n_same, c->f32_flops * GPU_SCALAR_SHARE);
    else if (is_codes(ops, w) && m <= CODES_ROWS)
        add_plain(c, to, m * n_same, n, w->k, bytes * n_same, c->tensor_flops * GPU_INT8_SHARE);
    else
        add_mma(c, to, cores_of(c, ops, w), m, n, w->k, bytes, n_same,
                decodes ? panel_issue_s(c, m, n_same * n * w->k) : 0);
}

/* Adds the parts of a matmul, each with 1 / n_experts of its outputs. Adjacent rows, or panels of
 * q8 or q4, of one format share a launch. */
static void add_parts(const struct gpu_card *c, struct gpu_cost *to, const struct ops *ops,
                      const struct matmul_args *a, double m, int n_experts, double n_same)
{
    for (int i = 0; i < a->n_parts;) {
        const struct weight *w = &a->parts[i].w;
        const int shares = ops->compute != COMPUTE_F32 && !is_codes(ops, w) &&
                           (w->layout == WEIGHT_ROWS || is_q(w));
        double n = 0, bytes = 0;
        do {
            n += a->parts[i].w.n;
            bytes += stored_bytes(&a->parts[i].w);
        } while (++i < a->n_parts && shares && a->parts[i].w.layout == w->layout &&
                 a->parts[i].w.dtype == w->dtype);
        add_product(c, to, ops, w, m, n / n_experts, bytes / n_experts, n_same);
    }
}

static struct gpu_cost matmul_cost(const struct gpu_card *c, const struct ops *ops,
                                   const struct matmul_args *a)
{
    struct gpu_cost cost = {0};
    if (a->m <= 0)
        return cost;
    if (ops->compute != COMPUTE_F32 && !a->same_x)
        add_pass(c, &cost, (double)a->m * a->parts[0].w.k * 6); // converts x to bf16 or int8
    add_parts(c, &cost, ops, a, a->m, 1, 1);
    return cost;
}

/* Expected number of experts with tokens: each of m tokens uses `used`, equally likely. */
static double experts_met(int m, int used, int n_experts)
{
    return n_experts * (1 - pow(1 - (double)used / n_experts, m));
}

static struct gpu_cost experts_cost(const struct gpu_card *c, const struct ops *ops,
                                    const struct expert_matmul_args *a)
{
    const struct route *r = &a->route;
    struct gpu_cost cost = {0};
    if (a->matmul.m <= 0)
        return cost;
    const double pairs = (double)a->matmul.m * r->n_used;
    const double met = experts_met(a->matmul.m, r->n_used, r->n_experts);
    add_pass(c, &cost, pairs * a->matmul.parts[0].w.k * 6);
    add_parts(c, &cost, ops, &a->matmul, pairs / met, r->n_experts, met);
    return cost;
}

#define DECODE_INSTRUCTIONS 14 // per number of q4, as counted; other formats are similar

/* Panels to rows, or to panels of another format: each number is decoded once and written. */
static struct gpu_cost decode_cost(const struct gpu_card *c, const struct decode_args *a)
{
    struct gpu_cost cost = {0};
    const double in = stored_bytes(&a->w);
    const double out = (double)weight_bytes(a->layout, a->to, a->w.n, a->w.k);
    const double numbers = (double)a->w.n * a->w.k;
    const double issue_s =
        numbers * DECODE_INSTRUCTIONS / GPU_WARP / (c->n_sm * sm_issue(c) * GPU_SCALAR_SHARE);
    add_kernel(c, &cost, most((in + out) / (c->memory_rate * GPU_DECODE_SHARE), issue_s), in + out,
               0);
    return cost;
}

/* ---- attention ---- */

/* Kernels per token: split, and join, which also stores the token. If the policy has scores,
 * scoring and choosing the place are two more launches, and the trait is another. */
static int token_launches(int policy)
{
    const struct evict_rule score = evict_rule_of(policy);
    if (!evict_policy_scores(policy))
        return 2;
    return 4 + (score.trait != 0);
}

static struct gpu_cost forced_cost(const struct gpu_card *c, const struct attend_forced_args *a)
{
    struct gpu_cost cost = {0};
    const struct kv_layout *l = &a->kv.layout;
    const int group = a->n_heads / l->n_kv_heads;
    const int r = group == 1 ? 1 : group == 2 ? 2 : group <= 4 ? 4 : 8;
    const int splits = forced_splits(a->slots_max, a->kv.rings != NULL);
    const int64_t units = (int64_t)l->n_kv_heads * splits; // per row
    const int at_once = (int)(forced_units(a->n_spans, units, group, l->head_dim,
                                           evict_decode_scores(a->evict.policy)) /
                              units);
    const double slot_bytes = (double)l->page_bytes / PAGE_SLOTS;
    char kernel[GPU_KERNEL_NAME];
    snprintf(kernel, sizeof kernel, "forced_split<%d>", r);
    const int is_q4 = kv_page_format(l->format) == KV_Q4;
    const struct gpu_fact f = gpu_fact_of(c, kernel, is_q4 ? "q4" : "bf16");
    for (int first = 0; first < a->n_spans; first += at_once) {
        const int n = (int)min_i64(at_once, a->n_spans - first);
        double slots = 0;
        for (int i = 0; i < n; i++)
            slots += a->spans[first + i].n_slots + a->spans[first + i].n / 2.0;
        const double blocks = (double)n * (double)units * (int)ceil_div(group, r);
        const double resident = least(up_div(blocks, c->n_sm), f.blocks_per_sm);
        const double rate =
            memory_rate(c, least(blocks, c->n_sm), f.bytes_in_flight * resident / f.blocks_per_sm);
        const double joined = (double)n * a->n_heads * l->head_dim * 4 * splits; // in L2
        for (int token = 0; token < a->n_max; token++) {
            add_kernel(c, &cost, slots * slot_bytes / rate, slots * slot_bytes,
                       4 * slots * a->n_heads * l->head_dim);
            for (int i = 1; i < token_launches(a->evict.policy); i++)
                add_kernel(c, &cost, 2 * c->latency_s, joined, 0);
        }
    }
    return cost;
}

/* Instructions per lane for each number of a (query, key) pair, as counted. prompt_rows: q . k
 * twice (65 instructions, 32 of them multiply), weight x v once (55, 16). prompt_scores: q . k once
 * more. On tensor cores q . k and weight x v are computed once, with counts per mma. */
#define ATTEND_QUERIES      128 // per block on tensor cores
#define ROWS_INSTRUCTIONS   (2 * 65.0 / 32 + 55.0 / 16)
#define SCORES_INSTRUCTIONS (65.0 / 32)

/* Adds a kernel over `numbers` = pairs x heads x dimensions, with `products` products each. */
static void add_pairs(const struct gpu_card *c, struct gpu_cost *to, const char *kernel,
                      double numbers, double instructions, double products)
{
    const struct gpu_fact f = gpu_fact_of(c, kernel, "");
    double s = numbers * instructions / GPU_WARP / (c->n_sm * sm_issue(c) * GPU_SCALAR_SHARE);
    if (f.per_mma > 0) {
        const double flops = 2 * products * numbers, mma_flops = c->arch < 80 ? 2048 : 4096;
        s = most(flops / (c->tensor_flops * c->tensor_share * GPU_ATTEND_SHARE),
                 flops / mma_flops * f.per_mma / (c->n_sm * sm_issue(c)));
    }
    add_kernel(c, to, s, 0, 4 * numbers);
}

static struct gpu_cost prompt_cost(const struct gpu_card *c, const struct attend_prompt_args *a)
{
    struct gpu_cost cost = {0};
    double pairs = 0, masked = 0; // products beyond what the queries of a block see
    for (int i = 0; i < a->n_spans; i++) {
        const struct prompt_span *s = &a->spans[i];
        const double end = s->first + s->n, low = a->window > 0 ? most(0, end - a->window) : 0;
        pairs += s->n * most(1, (s->first + end) / 2 - low);
        masked += s->n * ATTEND_QUERIES / 2.0;
    }
    const int dim = a->layout.head_dim;
    const int dims = dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : 256;
    const double numbers = pairs * a->n_heads * dim;
    if (c->arch < 80 || a->layout.format != KV_BF16 || dim > 256) {
        add_pairs(c, &cost, "prompt_rows<", numbers, ROWS_INSTRUCTIONS, 3);
        if (a->scores)
            add_pairs(c, &cost, "prompt_scores<", numbers, SCORES_INSTRUCTIONS, 1);
        return cost;
    }
    char name[32];
    snprintf(name, sizeof name, "prompt_rows_mma<%d", dims);
    add_pairs(c, &cost, name, numbers + masked * a->n_heads * dim, ROWS_INSTRUCTIONS, 2);
    cost.flops = 4 * numbers;
    snprintf(name, sizeof name, "prompt_scores_mma<%d", dims);
    if (a->scores)
        add_pairs(c, &cost, name, numbers, SCORES_INSTRUCTIONS, 1);
    return cost;
}

/* Kept slots are chosen in a few launches and written once. */
static struct gpu_cost keep_cost(const struct gpu_card *c, const struct prompt_keep_args *a)
{
    struct gpu_cost cost = {0};
    const double slot_bytes = (double)a->from.page_bytes / PAGE_SLOTS;
    const double kept = evict_slots_after(&a->evict, &a->limits, 0, 0, 0, a->n_prompt);
    if (a->evict.policy != EVICT_FULL)
        for (int i = 0; i < 2; i++) // ranks, then the choice, one block per head
            add_kernel(c, &cost, up_div(a->n_prompt, 256) * c->near_s, 0, 0);
    add_pass(c, &cost, least(kept, a->n_prompt) * slot_bytes * 2);
    return cost;
}

/* ---- rows ---- */

/* A row is summed by `threads` of the fact, 16 loads of 4 bytes per turn each, `passes` times, and
 * read once more by all. */
static struct gpu_cost norm_cost(const struct gpu_card *c, const struct norm_args *a)
{
    struct gpu_cost cost = {0};
    const struct gpu_fact f = gpu_fact_of(c, "norm_row", "");
    const double turns = up_div(a->dim, f.threads * 16.0), passes = a->kind == NORM_LAYER ? 2 : 1;
    const double waves = up_div(a->m, c->n_sm * 8.0);
    const double bytes = (double)a->m * a->dim * 8;
    const double chain_s = waves * (turns * passes + 2) * c->near_s;
    add_kernel(c, &cost, most(chain_s, bytes / (c->memory_rate * GPU_HBM_ANYHOW)), bytes, 0);
    return cost;
}

/* A slice of logits of a position is read twice by one block: 4 loads per turn. */
static struct gpu_cost head_cost(const struct gpu_card *c, const struct head_reduce_args *a)
{
    struct gpu_cost cost = {0};
    const struct gpu_fact f = gpu_fact_of(c, "head_row", "");
    const double turns = 2 * up_div(a->n, f.threads * 4.0), bytes = (double)a->m * a->n * 4;
    add_kernel(c, &cost, up_div(a->m, c->n_sm) * turns * c->near_s, bytes, 0);
    return cost;
}

/* Bytes of ops that read and write each number once. */
static double row_bytes_of(enum op op, const void *args)
{
    switch ((int)op) {
    case OP_gather: {
        const struct gather_args *a = args;
        return (double)a->n * a->k * 8;
    }
    case OP_compact: {
        const struct compact_args *a = args;
        return (double)a->n * a->dim * 8;
    }
    case OP_cast: {
        const struct cast_args *a = args;
        return (double)a->n * 6;
    }
    case OP_rope: {
        const struct rope_args *a = args;
        return (double)a->m * a->n_heads * a->rope_dim * 8;
    }
    case OP_gate_mul: {
        const struct gate_mul_args *a = args;
        return (double)a->m * a->n * 12;
    }
    case OP_mix: {
        const struct mix_args *a = args;
        return (double)a->m * a->n * 12;
    }
    case OP_route: {
        const struct route_args *a = args;
        return (double)a->m * a->to.n_experts * 4;
    }
    case OP_expert_sum: {
        const struct expert_sum_args *a = args;
        return (double)a->m * a->n * (a->route.n_used + 2) * 4;
    }
    case OP_kv_store: {
        const struct kv_store_args *a = args;
        return (double)a->n * a->layout.n_kv_heads * a->layout.head_dim * 2 * 6;
    }
    }
    return 0;
}

struct gpu_cost gpu_op(const struct gpu_card *card, enum op op, const struct ops *ops,
                       const void *args)
{
    struct gpu_cost cost = {0};
    switch (op) {
    case OP_matmul:
        return matmul_cost(card, ops, args);
    case OP_expert_matmul:
        return experts_cost(card, ops, args);
    case OP_decode:
        return decode_cost(card, args);
    case OP_attend_forced:
        return forced_cost(card, args);
    case OP_attend_prompt:
        return prompt_cost(card, args);
    case OP_prompt_keep:
        return keep_cost(card, args);
    case OP_norm:
        return norm_cost(card, args);
    case OP_head_reduce:
        return head_cost(card, args);
    default:
        add_pass(card, &cost, row_bytes_of(op, args));
        if (op == OP_route) // choose, then count in one block
            add_kernel(card, &cost, 2 * card->latency_s, 0, 0);
        return cost;
    }
}

double gpu_copy_s(const struct gpu_card *card, enum gpu_copy kind, int64_t n_bytes)
{
    if (kind == GPU_INSIDE)
        return card->launch_s + 2.0 * (double)n_bytes / (card->memory_rate * GPU_HBM_SHARE);
    return GPU_COPY_START_S + (double)n_bytes / (kind == GPU_H2D ? card->h2d : card->d2h);
}

struct weight_form gpu_weight_form(const struct gpu_card *card, enum compute compute,
                                   enum dtype stored)
{
    return device_cuda_reads(card->arch, 0, compute, stored);
}
