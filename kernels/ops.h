/* kernels/ops.h - THE contract: one args struct per op, with shapes. Code that computes calls
 * ops_run_*(), which picks the implementation of the chosen instruction set.
 *
 * Owns: the list of ops and of their implementations. Refuses: allocation (scratch comes with the
 * args), knowledge of tiers, steps or models.
 *
 * Results are bit-identical for any batch size, tiling and thread count. These rules define the
 * order of every sum; kernels/ref/exact*.c has them as code:
 *   a. a matmul output is one f32 chain over ascending k. Under COMPUTE_BF16, ISA_AVX512 adds two
 *      products per link and ISA_AMX the sum of 32: one chain from 0 over the even products and one
 *      over the odd ones, then even + odd (exact_matmul_amx in kernels/ref/exact.c);
 *   b. attention sums over ascending slots in tiles of 32 from slot 0, always split at multiples of
 *      256 slots; splits are joined in order, then come the ring (mixed) and the row's own new
 *      token. A logit is capped before it is masked. A head's sink is one more logit, without a
 *      value: it is added once, last, to the sum of exps and is part of no maximum; where it
 *      exceeds the greatest logit by more than 88, all weights are 0. Scores are made of the
 *      resulting weights, which with a sink sum to less than 1 per query;
 *   c. slot numbers depend on the request alone;
 *   d. a prompt attends in tiles of 32 queries at absolute positions. A tile's weights are one
 *      chain over (query, head); tiles are added to the scores in ascending order. The factor that
 *      turns exps into weights is first multiplied by the query's worth (evict_query_worth). With
 *      EVICT_EACH the chain covers one query. A query with NaN weights adds nothing to the scores,
 *      in prompts and spans. In spans a score is updated by one fused multiply-add: the old score
 *      times `keep`, plus the weights of all heads;
 *   e. logits are reduced in vocabulary tiles of 4,096;
 *   f. under COMPUTE_F32 each link of a chain is a fused multiply-add; sums in norms and softmax, a
 *      token's own logit and the sums of q that codes need run in 16 lanes joined in one fixed
 *      tree; exp is op_exp. So every instruction set gives the same bytes. Under COMPUTE_BF16 the
 *      bytes depend on the instruction set. Sums of integer codes give the same bytes on every set:
 *      matmuls over q8 and q4 under COMPUTE_INT8, and unless COMPUTE_F32 a CPU's forced spans over
 *      q8 and q4 pages;
 *   g. on bf16 tensor cores (CUDA from sm_80, bf16 pages, not COMPUTE_F32, at most 256 dimensions)
 *      a prompt's query meets pages of 32 keys in ascending order. Exps are relative to the
 *      greatest logit so far and rounded to bf16; when it rises, earlier sums are multiplied by
 *      exp(old - new). A tile's scores are, per key, four chains (c = 0..3, over queries 2 c and 2
 *      c + 1 of each 8) over heads, then queries, even and odd queries apart; they are added (even
 *      + odd), then c and c + 1, then both halves. Exps are good to 2^-22 there;
 *   h. on ISA_AMX (bf16 pages, not COMPUTE_F32) a prompt's query meets keys in chunks of 256, in
 *      ascending order. Each link of a logit adds 32 products over dimensions, each link of an
 *      output the 32 products of a page, in the order of rule a. Exps are relative to the greatest
 *      logit so far, good to 2^-13 and rounded to bf16; when it rises, earlier sums are multiplied
 *      by exp(old - new). The exps of a chunk are summed in 16 lanes, in each the odd slot of a
 *      pair before the even one (exact_attend_prompt_amx).
 *
 * Arrays are row-major, slowest index first. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "kernels/dtype.h"
#include "kernels/kv.h"
#include "kernels/base/pool.h"
#include "policy/evict.h"
#include "policy/shape.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

enum compute { COMPUTE_BF16, COMPUTE_F32, COMPUTE_INT8, N_COMPUTES };
/* ISA_REF and ISA_EXACT are kernels/ref, for tests: sums in double, and the order rules as code.
 * ISA_AVX512 has products of bf16 and of bytes (avx512_bf16, avx512_vnni); ISA_AVX512F is AVX-512
 * without them, as on Skylake-SP to Ice Lake, and gives the bytes of ISA_AVX2. */
enum isa { ISA_REF, ISA_EXACT, ISA_PORTABLE, ISA_AVX2, ISA_AVX512F, ISA_AVX512, ISA_AMX, N_ISAS };

/* Which matmul runs: sluice's own, or the device vendor's library where struct device_api has
 * one. */
enum matmul_by { MATMUL_OWN, MATMUL_CUBLASLT };

struct stream; // kernels/device.h

/* Where ops run. Values are copied into every call; pool and stream are borrowed. */
struct ops {
    enum isa isa;
    enum compute compute;
    enum matmul_by matmul;
    struct pool *pool;     // NULL: one thread
    struct stream *stream; // queued there; NULL: runs on this CPU and is done when the call returns
};

/* "bf16", "f32", "int8"; N_COMPUTES when unknown. */
const char *compute_name(enum compute compute);
enum compute compute_by_name(const char *name);

/* The best instruction set of this CPU and kernel; and names: "amx", "avx512", "avx2", "portable",
 * "exact", "ref". Call isa_best() before using ISA_AMX: it requests the tile registers from the
 * kernel for the whole process. From any thread. */
enum isa isa_best(void);
const char *isa_name(enum isa isa);
enum isa isa_by_name(const char *name); // N_ISAS when unknown

/* How a weight matrix W[n, k] is stored. */
enum weight_layout {
    WEIGHT_PANELS, // panels of kernels/dtype.h, as in packs and as CPUs read them
    WEIGHT_ROWS    // [n][weight_row_numbers(k)] f32, f16 or bf16, zeros after the k-th: for tensor
                   // cores
};
static inline int64_t weight_row_numbers(int64_t k)
{
    return round_up(k, 64);
}

struct weight {
    enum dtype dtype;
    int n;              // outputs
    int k;              // inputs
    const void *panels; // borrowed: [ceil(n / 32)] panels, or rows; 64-byte aligned
    enum weight_layout layout;
};

/* y[m, n] = act(x[m, k] . W^T + bias), or y += that, for up to three parts that read the same x.
 * Parts may differ in all but k and give the bytes of separate calls; they share the work on x and
 * one start of the threads. No y overlaps x or another y.
 * Inputs are rounded to the compute format (bf16: to nearest even); the chain is f32.
 * COMPUTE_INT8 with weights in q8 or q4 (other formats: as COMPUTE_BF16): each group of 64 of a row
 * of x becomes codes q = round(x * (127 / max|x|)) and scale = max|x| / 127. A group with max|x|
 * below 2^-100 counts as zeros; a NaN or an infinity makes the row's outputs NaN. The chain runs
 * over the groups, from 0: q8 adds w.scale * (sum(q * code) * scale); q4 adds the same, then
 * w.minimum * (sum(q) * scale). The sums are exact, the product with scale is rounded, the addition
 * is a fused multiply-add. */
#define MATMUL_PARTS 3 // Q, K and V; gate and up
struct matmul_part {
    struct weight w;
    float *y;          // [m, n], row stride y_stride
    const float *bias; // [n] or NULL
    int64_t y_stride;  // in numbers
    int add;           // 1: y += result (residual), after bias and act
    int act;           // enum act_kind
};
struct matmul_args {
    const float *x; // [m, k], row stride x_stride
    int m;
    int64_t x_stride; // in numbers
    struct matmul_part parts[MATMUL_PARTS];
    int n_parts;   // 1 to MATMUL_PARTS
    void *scratch; // >= matmul_scratch_bytes(...), 64-byte aligned
    int same_x;    // 1: the previous matmul read the same x and weights of this format, and x and
                   // scratch are unchanged since: the packed x in scratch is used again
};
/* Scratch for packed inputs and decoded panels of up to m rows and parts of up to (n, k) each; it
 * does not depend on the number of parts. */
int64_t matmul_scratch_bytes(const struct ops *ops, int m, int n, int k);

/* Converts panels to another format: DTYPE_BF16 or DTYPE_F32, the same numbers that a matmul
 * decodes for itself in cache. Rows are for devices with tensor cores, in DTYPE_F16 where these do
 * not multiply bf16. */
struct decode_args {
    struct weight w;           // in panels
    enum dtype to;             // DTYPE_BF16 or DTYPE_F32; as rows also DTYPE_F16
    void *panels;              // out: weight_bytes(layout, to, w.n, w.k)
    enum weight_layout layout; // of the output
};
static inline int64_t weight_bytes(enum weight_layout layout, enum dtype t, int64_t n, int64_t k)
{
    return layout == WEIGHT_PANELS ? dtype_panels_bytes(t, n, k)
                                   : n * dtype_row_bytes(t, weight_row_numbers(k));
}

/* x[i] = stored row i, of k numbers, or x[i] += stored row i. */
struct gather_args {
    enum dtype dtype;
    int k;
    const void *rows;       // stored row i is at rows + offsets[i]
    const int64_t *offsets; // [n] in bytes
    float *x;               // [n, k], row stride x_stride
    int64_t x_stride;
    int n;
    int add;
    void *scratch; // with add: >= gather_scratch_bytes
};
int64_t gather_scratch_bytes(const struct ops *ops, int k);

/* x[i] = x[from[i]], in place; from[] ascends. */
struct compact_args {
    float *x;            // [.., dim]
    const int32_t *from; // [n], from[i] >= i
    int n, dim;
};

/* to[i] = from[i], f32 to bf16 (to nearest even) or bf16 to f32. The arrays do not overlap. */
struct cast_args {
    const void *from; // [n]
    void *to;
    int64_t n;
    int widens; // 1: bf16 to f32
};

/* y = norm(x) * weight (+ bias). RMS: x / sqrt(mean(x^2) + eps); layer: (x - mean) / sqrt(var +
 * eps). y may be x. */
struct norm_args {
    const float *x;      // [m, dim]
    float *y;            // [m, dim]
    const float *weight; // [dim], or NULL: all 1
    const float *bias;   // [dim] or NULL
    int m, dim;
    int64_t x_stride, y_stride;
    int kind; // enum norm_kind
    float eps;
};

/* Rotates the leading rope_dim numbers of every head in place; pairs are (i, i + rope_dim / 2).
 * Then multiplies all numbers of a row by its position's factor. */
struct rope_args {
    float *x;               // [m, n_heads, head_dim], row stride x_stride
    const float *cos, *sin; // [positions, rope_dim / 2]
    const float *factors;   // [positions] or NULL
    const int32_t *pos;     // [m] position of each row
    int m, n_heads, head_dim, rope_dim;
    int64_t x_stride;
};

/* Rotates each block of a row in place by the Hadamard matrix: in stages h = 1, 2, 4 to block / 2
 * numbers i and i + h (bit h of i is 0) become their sum and their difference; then each number is
 * multiplied by rotate_scale(block). Norms and products of two rotated vectors stay the same, and a
 * second rotation undoes the first, all up to rounding. Cost per number: 8 bytes and log2(block) +
 * 1 FLOPs. */
struct rotate_args {
    float *x;  // [m, n], row stride x_stride
    int m, n;  // n: a multiple of block
    int block; // kv_rotation()
    int64_t x_stride;
};
static inline float rotate_scale(int block)
{
    return 1.0f / sqrtf((float)block);
}

/* gate = act(gate) * up; with a limit L > 0 act(min(gate, L)) * (max(-L, min(up, L)) + 1). Without
 * up: gate = xIELU(gate), math_xielu(). */
struct gate_mul_args {
    float *gate;     // [m, n] in and out
    const float *up; // [m, n] or NULL
    int m, n;
    int64_t gate_stride, up_stride;
    int act;        // enum act_kind
    float limit;    // 0: none
    float alpha[2]; // of xIELU
};

/* x = a x + b y, then c tanh(x / c) if the cap c > 0: adds branches, scales embeddings and logits.
 * The product a x is rounded, the addition is a fused multiply-add. a 0: x is not read. */
struct mix_args {
    float *x;       // [m, n] in and out
    const float *y; // [m, n], or NULL: adds nothing
    int m, n;
    int64_t x_stride, y_stride;
    float a, b;
    float cap; // 0: none
};

/* The experts of a tile's tokens as pairs (token, choice), sorted by (expert, token): the pairs of
 * one expert are contiguous. */
struct route {
    int32_t *first;  // [n_experts + 1]: expert e has pairs first[e] .. first[e + 1]
    int32_t *pairs;  // [m * n_used], sorted: token * n_used + choice
    int32_t *places; // [m * n_used] by token and choice: index of the pair in pairs
    float *weights;  // [m * n_used] by token and choice: weight of the expert's output
    int n_experts, n_used;
};
static inline int64_t route_bytes(int64_t m, int n_experts, int n_used)
{
    return round_up((n_experts + 1) * (int64_t)4, 64) + 3 * round_up(m * n_used * 4, 64);
}
/* Lays out a route in route_bytes() of memory. */
static inline struct route route_at(void *memory, int64_t m, int n_experts, int n_used)
{
    struct route r;
    char *at = (char *)memory;
    const int64_t pairs = round_up(m * n_used * 4, 64);
    r.n_experts = n_experts;
    r.n_used = n_used;
    r.first = (int32_t *)(void *)at;
    at += round_up((n_experts + 1) * (int64_t)4, 64);
    r.pairs = (int32_t *)(void *)at;
    r.places = (int32_t *)(void *)(at + pairs);
    r.weights = (float *)(void *)(at + 2 * pairs);
    return r;
}

/* Chooses the n_used experts with the greatest logits, greatest first, ties by number; a NaN counts
 * as less than any number. Weights: softmax over all logits or over the chosen ones, times scale,
 * times the expert's own factor;
 * sums run over ascending experts, or over choices in order.
 *
 * With a logistic, a bias or groups (DeepSeek-V3, arXiv 2412.19437, eq. 12 to 16) the choice is by
 * score + bias, where the score of an expert is the softmax over all logits, or the logistic of its
 * own; experts outside the n_groups_used groups with the greatest sums of their two greatest such
 * numbers are left out. Weights: the scores alone, or over their sum.
 *
 * With `near` (SparseMixer, arXiv 2409.12136, without sampling) the weight of a choice is a softmax
 * over the logits that are no greater than its own, less the choices before it, and lower by at
 * most near times the larger of its logit and the other's size. */
struct route_args {
    float *logits; // [m, n_experts], row stride logits_stride; scores replace them if used
    int64_t logits_stride;
    const float *bias;   // [n_experts], or NULL
    const float *scales; // [n_experts] factors on weights, or NULL: all 1
    struct route to;
    int m;
    int alone;                   // 1: weights of the chosen experts sum up to `scale`
    int logistic;                // 1: scores are logistics, 0: a softmax
    int n_groups, n_groups_used; // groups of consecutive experts; 0, 0: none
    int group_best;              // 1: a group counts by its greatest number alone
    float near;                  // 0, or how near experts are weighed together
    float scale;
};
#define ROUTE_SUM_MIN 1e-20f // if the logistics of all chosen experts are 0
static inline int route_by_score(const struct route_args *a)
{
    return a->logistic || a->bias != NULL || a->n_groups > 0;
}

/* A matmul with one matrix per expert: pair i of the route gets y[i] = x W_e^T (+ bias_e), where
 * W_e is rows [e n, (e + 1) n) of the part's W, n = w.n / n_experts, a multiple of 32. x is row i,
 * or the row of the pair's token. The bytes of a row are those of a separate matmul. */
struct expert_matmul_args {
    struct matmul_args matmul; // m: tokens of the route; w and bias of a part hold all experts, its
                               // y is [m * n_used, n]
    struct route route;
    int by_token; // 1: x [m, k] by token; 0: x [m * n_used, k] by pair
};
/* m, n_used and k as in struct expert_matmul_args, n of one expert. */
int64_t expert_matmul_scratch_bytes(const struct ops *ops, int m, int n_used, int n, int k);
/* Expert e's part of `part`; its outputs begin at pair `pair`. */
static inline struct matmul_part expert_part(const struct matmul_part *part, int n_experts, int e,
                                             int64_t pair)
{
    struct matmul_part own = *part;
    const int64_t n = part->w.n / n_experts, first = e * n;
    own.w.n = (int)n;
    own.w.panels = (const uint8_t *)part->w.panels +
                   weight_bytes(part->w.layout, part->w.dtype, first, part->w.k);
    own.bias = part->bias ? part->bias + first : NULL;
    own.y += pair * part->y_stride;
    return own;
}

/* x = sum over a token's choices, ascending, of weight * y[place], then, with a shared expert, +
 * share * shared[token]; or x += that. One chain of fused multiply-adds from 0. */
struct expert_sum_args {
    float *x;            // [m, n]
    const float *y;      // [m * n_used, n], in the order of pairs
    const float *shared; // [m, n], row stride y_stride, or NULL
    const float *shares; // [m]: shared expert's logit: it counts 1 / (1 + exp(-share)); NULL: 1
    struct route route;
    int m, n;
    int64_t x_stride, y_stride;
    int add;
};

/* Stores K and V of consecutive tokens into a prompt's workspace: token i goes to slot i % 32 of
 * page i / 32; pages are contiguous. */
struct kv_store_args {
    struct kv_layout layout;
    void *pages;        // [ceil((first + n) / 32)][layout.page_bytes]
    const float *k, *v; // [n, n_kv_heads, head_dim], row strides below
    int64_t k_stride, v_stride;
    int first, n;
};

/* A prompt's queries [first, first + n) attend to keys 0..query (causal); under a window of W to
 * the last W of these. The tiles of a prompt come in ascending order; with scores, first is a
 * multiple of 32. With bf16 pages and not COMPUTE_F32, q is rounded to bf16. From ISA_AVX512 on
 * each exp(logit - maximum) is then also rounded to bf16 before it is summed, so that the weights
 * of a query still sum to 1, and the maximum runs over chunks of 256 keys; weights are good to 2^-8
 * there, to f32 elsewhere. */
struct prompt_span {
    int n_prompt; // tokens of the whole prompt
    int first, n; // queries of this call
    int token;    // row in q and out of the first query
    int page;     // page of the workspace where the prompt's K and V begin
};
struct attend_prompt_args {
    struct kv_layout layout; // of the workspace pages
    const float *q;          // [.., n_heads, head_dim], row stride q_stride
    float *out;              // the same, row stride out_stride
    const void *pages;       // workspace pages (kv_store) in the compute format
    float *scores; // [pages][32][n_kv_heads] in all; a prompt has, from its first page on,
                   // [n_kv_heads, n_prompt_pad] (padded to 32) summed attention weights, zeroed
                   // before its first tile. NULL: the policy needs none
    int policy;    // enum evict_policy: the worth of each query to the scores
    const struct prompt_span *spans; // [n_spans]
    int n_spans, n_heads;
    int n_max, end_max; // greatest n and greatest first + n of a span: CUDA sizes grids before it
                        // reads spans
    float scale;        // 1 / sqrt(head_dim); > 0
    float cap;          // 0: none; else logits become cap tanh(logit / cap)
    const float *sinks; // [n_heads] a head's sink, a logit added to the sum of its exps; NULL: none
    int window;         // 0: none
    int64_t q_stride, out_stride;
    void *scratch; // >= attend_prompt_scratch_bytes
};
int64_t attend_prompt_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_heads,
                                    int n_kv_heads, int head_dim);

/* The first tile of 32 queries that counts for the scores. */
static inline int prompt_first_tile(const struct attend_prompt_args *a, const struct prompt_span *s)
{
    const struct evict_rule score = evict_rule_of(a->policy);
    return evict_first_query(&score, s->n_prompt) / PAGE_SLOTS;
}

/* The first key that a query sees. */
static inline int prompt_low(const struct attend_prompt_args *a, int64_t query)
{
    return a->window > 0 && query >= a->window ? (int)query - a->window + 1 : 0;
}

/* A prompt's part of the workspace: pages, and scores or NULL. */
static inline const uint8_t *prompt_span_pages(const struct attend_prompt_args *a,
                                               const struct prompt_span *s)
{
    return (const uint8_t *)a->pages + s->page * a->layout.page_bytes;
}
static inline float *prompt_span_scores(const struct attend_prompt_args *a,
                                        const struct prompt_span *s)
{
    return a->scores ? a->scores + (int64_t)s->page * PAGE_SLOTS * a->layout.n_kv_heads : NULL;
}

/* Where positions are ranks (EVICT_POSITIONS_SLOT), pages and rings hold unrotated keys. Each key
 * is rotated by its rank (how many of the head's slots are older), a token's query and own key by
 * the number of slots that its head keeps. Stored numbers are read as f32 (code * scale + minimum,
 * the product rounded), rotated in f32 and not rounded again; a logit is then one chain over
 * dimensions in every format. Cost per slot and KV head beyond attention: 4 head_dim bytes written
 * and read in cache, 4 bytes of rank, 4 rope_dim bytes of tables (unless the previous head kept the
 * same positions) and 3 rope_dim FLOPs. */
struct slot_rope {
    const float *cos, *sin; // [positions, rope_dim / 2]; NULL: keys are stored rotated
    const float *factors;   // [positions] of a rotated query, as in rope_args, or NULL
    int rope_dim;
    float scale; // factor by which cosines and sines are scaled
};

/* One victim of eviction, for --kv-dump. pos -1: no eviction. */
struct evict_event {
    int32_t pos;
    float score;
};

/* The KV state of a batch's rows in one layer, as base addresses and ids, so that a device can use
 * a copy while the bases stay. Slots 0..n_slots-1 of a row are in use, in every head; slot s is in
 * page s / 32. Under EVICT_FULL slot s holds position s, and slot_pos and slot_score are NULL.
 * slot_trait is NULL if the policy has no trait.
 *
 * mixed: the newest ring_slots tokens are in a ring beside the pages, position p in ring slot p %
 * ring_slots. Position, score, rank and trait of ring slot j are at index slots_cap - ring_slots +
 * j. The token that leaves the ring takes the victim's page slot or a new one, or is the victim. */
struct kv_rows {
    struct kv_layout layout; // of the pages
    struct kv_layout ring;   // of the rings' pages; only with rings
    uint8_t *pages;          // page id >= 0 is at pages + id * layout.page_bytes
    uint8_t *tails;          // page id < 0 is at tails + ~id * tail_stride; NULL: no tails
    const int32_t *page_ids; // [rows][page_ids_stride], enough for every slot of this call
    int32_t *slot_pos;  // [rows][slot_stride]: [n_kv_heads, slots_cap] true positions; negative
                        // (~pos): masked (simulate)
    float *slot_score;  // the same: scores (policy/evict_rule.h)
    int32_t *slot_rank; // the same: number of older unmasked slots of the head; NULL unless
                        // positions are ranks
    float *slot_trait;  // the same: traits
    uint64_t *dirty;    // [rows][dirty_stride]: bit i is set when page i is written
    uint8_t *rings;     // mixed: [rows][ring_stride]: [KV_RING_PAGES] pages; else NULL
    int64_t tail_stride, ring_stride; // in bytes
    int64_t slot_stride;              // in numbers
    int page_ids_stride, dirty_stride;
    int slots_cap;
};
#define KV_RING_PAGES (EVICT_RING_MAX / PAGE_SLOTS)

/* One row of struct kv_rows, with its own limits applied: what kernels work on. */
struct kv_row {
    const struct kv_rows *all;
    const int32_t *page_ids;
    int32_t *slot_pos;
    float *slot_score;
    int32_t *slot_rank;
    float *slot_trait;
    uint64_t *dirty;
    uint8_t *ring;  // mixed; else NULL
    int ring_slots; // mixed: evict_ring_slots(); else 0
    int slots_cap;
    int n_slots; // in pages
};

static inline struct kv_row kv_row_at(const struct kv_rows *all, int row,
                                      const struct evict_row *limits, int n_slots)
{
    int64_t slots = row * all->slot_stride;
    struct kv_row kv;
    kv.all = all;
    kv.page_ids = all->page_ids + (int64_t)row * all->page_ids_stride;
    kv.slot_pos = all->slot_pos ? all->slot_pos + slots : NULL;
    kv.slot_score = all->slot_score ? all->slot_score + slots : NULL;
    kv.slot_rank = all->slot_rank ? all->slot_rank + slots : NULL;
    kv.slot_trait = all->slot_trait ? all->slot_trait + slots : NULL;
    kv.dirty = all->dirty + (int64_t)row * all->dirty_stride;
    kv.ring = all->rings ? all->rings + row * all->ring_stride : NULL;
    kv.ring_slots = all->rings ? evict_ring_slots(limits) : 0;
    kv.slots_cap = all->slots_cap;
    kv.n_slots = n_slots;
    return kv;
}

static inline uint8_t *kv_page_of(const struct kv_rows *all, int32_t id)
{
    return id >= 0 ? all->pages + id * all->layout.page_bytes : all->tails + ~id * all->tail_stride;
}

/* Slots in use in the ring when the row's next token has position pos. */
static inline int kv_ring_used(const struct kv_row *kv, int pos)
{
    return evict_ring_used(kv->ring_slots, pos);
}

/* Known tokens of one row under decode's rule, one after the other. Token i (position pos + i)
 * attends over the row's slots and itself, adds its weights to the scores, then evicts one victim
 * if the budget is full, and is stored. K and V are rounded to the KV format before they are
 * attended. In a layout of keys only (kernels/kv.h) v must be k. Unless COMPUTE_F32:
 *   - over pages of f32 and bf16, q is rounded to bf16; where the set multiplies pairs of bf16, so
 *     are the weights of V (not the scores);
 *   - over pages of q8 and q4, and their rings, CPUs multiply integers. Each group of 64 numbers of
 *     q becomes codes round(x * (32767 / max|x|)) of scale max|x| / 32767 (zeros where max|x| is
 *     below 2^-100, a scale of NaN where a number is not finite), and so do the 32 products exp *
 *     scale of V of a page, per group and query head. Sums of codes are exact, so every CPU set
 *     gives the same bytes. CUDA rounds q to bf16 and multiplies f32: there the bytes are those of
 *     COMPUTE_F32 with that q. */
#define CODE_MOST 32767.0f
struct forced_span {
    int row;     // of kv
    int n_slots; // page slots in use before; evict_slots_after() gives the number after
    int n;       // tokens
    int pos;     // true position of the first
    int token;   // row in q, k, v, out and events of the first
    struct evict_row limits;
};
struct attend_forced_args {
    struct kv_rows kv;
    struct slot_rope rope; // rotates q, k (then passed unrotated) and stored keys
    struct evict evict;
    const struct forced_span *spans; // [n_spans], at most one per row
    int n_spans, n_heads;
    int n_max;     // greatest n of a span: CUDA sizes grids before it reads spans
    int slots_max; // greatest number of page slots in use after a span
    float scale, cap;
    const float *sinks; // [n_heads]; NULL: none
    const float *q;     // [.., n_heads, head_dim], row stride q_stride
    const float *k, *v; // [.., n_kv_heads, head_dim], row strides k_stride, v_stride
    float *out;         // [.., n_heads, head_dim], row stride out_stride
    int64_t q_stride, k_stride, v_stride, out_stride;
    struct evict_event *events; // [.., n_kv_heads] victims, or NULL
    void *scratch;              // >= attend_forced_scratch_bytes
};
/* For a call of up to n_spans rows. scores: evict_decode_scores() of the policy; only then are the
 * logits of a whole row kept. Never smaller for more or longer rows. */
int64_t attend_forced_scratch_bytes(const struct ops *ops, int n_spans, int slots_max, int n_heads,
                                    int n_kv_heads, int head_dim, int scores);

/* After the last tile of a prompt, every head keeps its best `budget` slots (all, if they fit),
 * written in ascending position to slots 0.. of the row's pages in the KV format, with positions
 * and scores. evict_slots_after() from 0 slots gives the number in use. Under evict.simulate all
 * slots are written and those to evict are masked. With a ring the last tokens go to the ring
 * instead. Where positions are ranks, keys are rotated back before they are written. */
struct prompt_keep_args {
    struct kv_layout from; // workspace pages, in f32 or bf16; always with a V part
    const void *pages;     // of the prompt
    const float *scores;   // scores of the prompt, see prompt_span_scores()
    struct slot_rope rope; // rotated the prompt's keys; without tables the keys stay rotated
    struct kv_rows kv;
    struct evict evict;
    struct evict_row limits;
    int row; // of kv
    int n_prompt;
    void *scratch; // >= prompt_keep_scratch_bytes
};
/* The score that a position has in its slot. */
static inline float prompt_kept_score(const struct prompt_keep_args *a,
                                      const struct evict_rule *score, int head, int pos)
{
    const int64_t stride = round_up(a->n_prompt, PAGE_SLOTS);
    return a->scores ? evict_score_pooled(score, a->scores + head * stride, pos, a->n_prompt) : 0;
}
/* The limits by which the prompt is cut: its first `sink` and last `recent` positions always
 * stay. */
static inline struct evict_row prompt_limits(const struct prompt_keep_args *a)
{
    const int ring_slots = a->kv.rings ? evict_ring_slots(&a->limits) : 0;
    return evict_behind_prompt(a->evict.policy, &a->limits, ring_slots);
}
static inline int prompt_kept_anyway(const struct prompt_keep_args *a, int pos)
{
    const struct evict_row limits = prompt_limits(a);
    return evict_protected(&limits, pos, a->n_prompt - 1);
}
int64_t prompt_keep_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_kv_heads,
                                  int head_dim);

/* A change to one logit before sampling: logit = (logit > 0 ? logit / repeat : logit * repeat) +
 * add; repeat 1 changes nothing. Lists are sorted by id. */
struct logit_edit {
    int32_t id;
    float repeat;
    float add;
};

struct head_candidate {
    float logit; // edited, for sampling
    int32_t id;
    float raw; // before edits, for log-probabilities
};

#define HEAD_TOP_MAX    20   // top_logprobs
#define HEAD_SAMPLE_MAX 1024 // candidates under top-k, top-p, min-p
enum head_want {
    HEAD_SCORE = 1,  // log-sum-exp, argmax, the target's logit
    HEAD_TOP = 2,    // also the best n_top
    HEAD_SAMPLE = 4, // argmax of logit / temperature + Gumbel noise (temperature 0: of logit)
    HEAD_FILTER = 8, // the best 1024 instead, for top-k, top-p and min-p
};

/* What is wanted from the logits of one position. */
struct head_request {
    int want;          // enum head_want, or-ed
    int32_t target;    // HEAD_SCORE: token whose logit is wanted; -1: none
    float temperature; // HEAD_SAMPLE
    int n_top;         // HEAD_TOP
    int n_edits; // edits change sampling (HEAD_SAMPLE, HEAD_FILTER) only: scores are the model's
                 // own
    int place;   // index of its lists of edits and candidates
    uint64_t noise_key; // HEAD_SAMPLE: hash of (seed, row, position); noise is gumbel(key, id)
};

/* Reduced logits: head_start(), then one reduction per vocabulary slice, ascending. Ties go to the
 * lowest id. */
struct head_result {
    float max, sum; // log-sum-exp = max + log(sum), over raw logits, joined tile by tile
    float target_logit;
    float best_logit; // raw argmax and its logit
    int32_t best_id;
    float sample_value; // best logit / T + noise (edited)
    int32_t sample_id;
    float sample_logit;                      // raw logit of sample_id
    int n_top;                               // entries in top[]
    int n_filter;                            // entries in the position's list of candidates
    struct head_candidate top[HEAD_TOP_MAX]; // descending
};
void head_start(struct head_result *r);
/* Gumbel(0, 1) noise of one vocabulary id: -log(-log(u)), u in (0, 1) from mix64(key, id). */
float head_gumbel(uint64_t key, int32_t id);

/* Reduces one slice of logits [m, n] (vocabulary ids first .. first + n) into m results. */
struct head_reduce_args {
    const float *logits; // [m, n], row stride
    int64_t stride;
    const struct head_request *requests; // [m]
    struct head_result *results;         // [m]
    const struct logit_edit *edits;      // [places][edits_stride], each sorted by id
    struct head_candidate *candidates;   // [places][HEAD_SAMPLE_MAX] heaps, for HEAD_FILTER
    int64_t edits_stride;
    int m, n, first;
};

static inline const struct logit_edit *head_edits(const struct head_reduce_args *a,
                                                  const struct head_request *r)
{
    return a->edits + r->place * a->edits_stride;
}
static inline struct head_candidate *head_candidates(const struct head_reduce_args *a,
                                                     const struct head_request *r)
{
    return a->candidates + (int64_t)r->place * HEAD_SAMPLE_MAX;
}

/* ---- row state: layers whose memory of a row has a fixed size, in f32 ---- */

#define STATE_TAPS_MAX SHAPE_TAPS_MAX
#define STATE_DIM_MAX  SHAPE_STATE_MAX // of a head's keys and values: multiples of 16

/* The tokens of one row in a tile, in order. */
struct state_span {
    int32_t row, token, n; // of the batch; the first one in the tile; count
    int32_t fresh;         // 1: the row begins here, with a state of zeros
};
struct state_rows {
    uint8_t *base;  // row r's state at base + r * stride
    int64_t stride; // bytes
    const struct state_span *spans;
    int n_spans; // of different rows
};

/* A causal convolution of each channel by itself, in place: y[t] = act(bias + sum over j of
 * weight[j] x[t - taps + 1 + j]), one chain from the oldest input on. State: the last taps - 1
 * inputs. Cost per number: 8 bytes and 2 taps FLOPs. */
struct conv_args {
    float *x;            // [m, n] in and out, row stride x_stride
    const float *weight; // [n, taps]
    const float *bias;   // [n] or NULL
    int64_t x_stride;
    int n, taps; // n: a multiple of 16
    int act;     // enum act_kind
    struct state_rows rows;
    int64_t offset; // bytes of a state before the inputs, f32 [taps - 1, n]
};

/* Gated linear recurrences. A head's state S [k_dim, v_dim] meets one token after the other:
 *
 *     S = g S;  d = b (v - S^T k) or, without `corrects`, b v;  S = S + k d^T;  out = S^T q
 *
 * with step = softplus(dt + dt_bias), g = exp(a step), b = logistic(beta), or the step without
 * beta. unit_eps > 0: q and k are divided by sqrt(|.|^2 + unit_eps); then q is multiplied by
 * q_scale. Gated delta net: Yang et al. 2024, arXiv 2412.06464, eq. 10; Mamba-2: Dao and Gu 2024,
 * arXiv 2405.21060, with B, C and x for k, q and v, and skip x added to the output.
 * Sums over k_dim are chains in ascending order: p = sum S k and r = sum S q of the state before
 * the token, d = b (v - g p), out = g r + (k q) d, S = fma(k, d, g S). Norms and k q run in 16
 * lanes (rule f). Per token and head: 8 k_dim v_dim FLOPs; per span the state is read and written
 * once from memory, 8 k_dim v_dim bytes. */
struct recur_args {
    const float *q, *k;       // [m, k_heads, k_dim]; head h of v uses head h k_heads / v_heads, or
                              // if `tiled` h mod k_heads
    const float *v;           // [m, v_heads, v_dim]
    const float *dt, *beta;   // [m, v_heads]; beta NULL: the step
    const float *a, *dt_bias; // [v_heads]; a < 0
    const float *skip;        // [v_heads] or NULL
    float *out;               // [m, v_heads, v_dim]
    int64_t qkv_stride, dt_stride, beta_stride, out_stride; // in numbers; q, k and v have one
    int k_heads, v_heads, k_dim, v_dim;
    int tiled, corrects;
    float unit_eps, q_scale;
    struct state_rows rows; // f32 [v_heads, k_dim, v_dim] each
};

/* THE list: X(name). Each has OP_name, struct name_args, ops_run_name() and ref_name(). */
#define OPS(X)                                                                                     \
    X(matmul)                                                                                      \
    X(decode)                                                                                      \
    X(gather)                                                                                      \
    X(compact)                                                                                     \
    X(cast)                                                                                        \
    X(norm)                                                                                        \
    X(rope)                                                                                        \
    X(rotate)                                                                                      \
    X(gate_mul)                                                                                    \
    X(mix)                                                                                         \
    X(conv)                                                                                        \
    X(recur)                                                                                       \
    X(route)                                                                                       \
    X(expert_matmul)                                                                               \
    X(expert_sum)                                                                                  \
    X(kv_store)                                                                                    \
    X(attend_prompt)                                                                               \
    X(attend_forced)                                                                               \
    X(prompt_keep)                                                                                 \
    X(head_reduce)

#define OPS_DECLARE(name)                                                                          \
    void ops_run_##name(const struct ops *ops, const struct name##_args *args);                    \
    void ref_##name(const struct ops *ops, const struct name##_args *args);
OPS(OPS_DECLARE)
#undef OPS_DECLARE
void ref_matmul_int8(const struct ops *ops, const struct matmul_args *args);

#define OPS_ENUM(name) OP_##name,
enum op { OPS(OPS_ENUM) N_OPS };
#undef OPS_ENUM

/* Copies n_bytes, or fills n_bytes with one value: queued on the stream, or at once. n_bytes 0:
 * does nothing. */
void ops_copy(const struct ops *ops, void *to, const void *from, int64_t n_bytes);
void ops_fill(const struct ops *ops, void *to, int byte, int64_t n_bytes);

/* Runs an op on this CPU and ignores ops->stream: for devices that compute with the CPU's
 * kernels. */
void ops_here(enum op op, const struct ops *ops, const void *args);
/* Size of an op's args struct, for devices that queue a copy. */
int64_t ops_args_bytes(enum op op);

/* exp in f32 with the same bits on every path (polynomial, fused multiply-adds; < 2 ulp). */
float op_exp(float x);

#ifdef __cplusplus
}
#endif

#endif
