/* kernels/ops.h - THE contract: one args struct per op, with shapes. Everything that computes on
 * the line goes through ops_run_*(), which picks the implementation of the chosen instruction set.
 *
 * Owns: the list of ops and of their implementations. Refuses: allocation (scratch comes with the
 * args), knowledge of tiers, steps or models.
 *
 * The bytes of a result are fixed by these rules, not by M, tiles or threads. Letters are those of
 * the design; kernels/ref/exact*.c are the rules as code:
 *   a. a matmul output is one f32 chain over k, ascending; under COMPUTE_BF16 ISA_AVX512 adds two
 *      products a link, ISA_AMX the sum of 32: a chain from 0 of the even ones and one of the odd,
 *      then even + odd (exact_matmul_amx in kernels/ref/exact.c);
 *   b. attention sums over slots ascending, in tiles of 32 from slot 0, split at multiples of 256
 *      slots always, splits joined in order, then the ring (mixed), the row's own new
 *      token last. A logit is capped before it is masked. A head's sink, a logit more that has no
 *      value, comes to the sum of exps behind all else, once, and is no part of any maximum; where
 *      it is more than 88 above the greatest logit, weights are 0. Scores are the weights that
 *      are left: with a sink a query's add up to less than 1;
 *   c. slot numbers are a function of the request alone;
 *   d. a prompt attends in tiles of 32 queries at absolute positions; a tile's weights are one
 *      chain over (query, head), and tiles are added to the scores in ascending order. What makes
 *      exps weights is multiplied by what the query is worth before; where scores are bits, the
 *      chain is of one query. A query whose weights are no
 *      numbers adds nothing to the scores, in spans as in prompts; there a score is one fused
 *      multiply-add: the old one times what is kept of it, and the weights of all heads;
 *   e. logits are reduced in vocabulary tiles of 4,096;
 *   f. under COMPUTE_F32 each link of a chain is a fused multiply-add, sums in norms and softmax
 *      run in 16 lanes joined in one fixed tree (so do a token's own logit and the sums of q that
 *      codes need) and exp is op_exp (ours), so that every instruction set gives the same bytes;
 *      under COMPUTE_BF16 the instruction set is part of the answer. Under COMPUTE_INT8 matmuls
 *      over q8 and q4 give the same bytes on every set;
 *   g. on tensor cores of bf16 (CUDA from sm_80, pages in bf16, not COMPUTE_F32, at most 256
 *      dimensions) a prompt's query meets pages of 32 keys in ascending order. Exps are made of the
 *      greatest logit so far and rounded to bf16; where it rises, the sums so far are multiplied by
 *      the exp of the old one. A tile's scores are, for each key, four chains, of queries 2 c and
 *      2 c + 1 of each 8, over heads, then queries, even and odd ones apart; they are added
 *      (even + odd), then c and c + 1, then both halves. Exps are good to 2^-22 there.
 *
 * Arrays are row-major, slow to fast. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "kernels/dtype.h"
#include "kernels/kv.h"
#include "kernels/base/pool.h"
#include "policy/evict.h"
#include "policy/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

enum compute { COMPUTE_BF16, COMPUTE_F32, COMPUTE_INT8, N_COMPUTES };
/* ISA_REF and ISA_EXACT are kernels/ref, for tests: sums in double, and the order rules as code. */
enum isa { ISA_REF, ISA_EXACT, ISA_PORTABLE, ISA_AVX2, ISA_AVX512, ISA_AMX, N_ISAS };

/* Whose matmul runs. MATMUL_CUBLASLT: the device's maker's, where struct device_api has it. */
enum matmul_by { MATMUL_OWN, MATMUL_CUBLASLT };

struct stream; // kernels/device.h

/* Where ops run. Values are copied into every call; pool and stream are borrowed. */
struct ops {
    enum isa isa;
    enum compute compute;
    enum matmul_by matmul;
    struct pool *pool;     // NULL: one thread
    struct stream *stream; // queued there; NULL: on this CPU, done when the call returns
};

/* "bf16", "f32", "int8"; N_COMPUTES when unknown. */
const char *compute_name(enum compute compute);
enum compute compute_by_name(const char *name);

/* The best instruction set of this CPU and its kernel, and names: "amx", "avx512", "avx2",
 * "portable", "exact", "ref". Whoever uses ISA_AMX has asked here before: the kernel lends tiles to
 * a process that has asked for them. From any thread. */
enum isa isa_best(void);
const char *isa_name(enum isa isa);
enum isa isa_by_name(const char *name); // N_ISAS when unknown

/* How a weight matrix W[n, k] stands in memory. */
enum weight_layout {
    WEIGHT_PANELS, // of kernels/dtype.h, as packs have them: what this CPU reads
    WEIGHT_ROWS    // [n][weight_row_numbers(k)] of f32, f16 or bf16, zeros after the k-th: what
                   // tensor cores read
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

/* Of up to three parts, which read the same x: y[m, n] = act(x[m, k] . W^T + bias), or y += that.
 * Parts may differ in all but k. The bytes of a part are those of a call of its own: what parts
 * share is the work on x, and one start of the threads. No y overlaps x or another y.
 * Inputs are rounded to the compute format (bf16, to nearest even); the chain is f32.
 * COMPUTE_INT8 with weights in q8 or q4 (others: as COMPUTE_BF16): each group of 64 of a row of x
 * becomes codes q = round(x * (127 / max|x|)) and scale = max|x| / 127; one below 2^-100 counts as
 * zeros, a NaN or an infinity makes the row's outputs NaN. The chain runs over the groups, from 0:
 * q8 adds w.scale * (sum(q * code) * scale), q4 adds the same, then w.minimum * (sum(q) * scale);
 * the sums are exact, the product with scale is rounded, the addition is a fused multiply-add. */
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
    int same_x;    // 1: the matmul before read the same x and weights of this format, and nobody
                   // has written to x or scratch since: x needs no work
};
/* Scratch for packed inputs and decoded panels, for up to m rows and any parts, each up to (n, k):
 * it does not grow with the number of parts. */
int64_t matmul_scratch_bytes(const struct ops *ops, int m, int n, int k);

/* Panels in another format: as stored to DTYPE_BF16 or DTYPE_F32, the same numbers that a matmul
 * decodes for itself beside the cache. Rows are for devices with tensor cores; where these know no
 * bf16 they are asked for in DTYPE_F16. */
struct decode_args {
    struct weight w;           // in panels
    enum dtype to;             // DTYPE_BF16 or DTYPE_F32; as rows DTYPE_F16, too
    void *panels;              // out: weight_bytes(layout, to, w.n, w.k)
    enum weight_layout layout; // of what comes out
};
static inline int64_t weight_bytes(enum weight_layout layout, enum dtype t, int64_t n, int64_t k)
{
    return layout == WEIGHT_PANELS ? dtype_panels_bytes(t, n, k)
                                   : n * dtype_row_bytes(t, weight_row_numbers(k));
}

/* x[i] = a stored row of k numbers, or x[i] += that. */
struct gather_args {
    enum dtype dtype;
    int k;
    const void *rows;       // row i of the call stands at rows + offsets[i]
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

/* to[i] = from[i]: f32 to bf16, to nearest even, or bf16 to f32. They do not overlap. */
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
    const float *weight; // [dim]
    const float *bias;   // [dim] or NULL
    int m, dim;
    int64_t x_stride, y_stride;
    int kind; // enum norm_kind
    float eps;
};

/* Rotates the leading rope_dim numbers of every head in place; pairs are (i, i + rope_dim / 2). */
struct rope_args {
    float *x;               // [m, n_heads, head_dim], row stride x_stride
    const float *cos, *sin; // [positions, rope_dim / 2]
    const int32_t *pos;     // [m] position of each row
    int m, n_heads, head_dim, rope_dim;
    int64_t x_stride;
};

/* gate = act(gate) * up, with a limit L > 0 act(min(gate, L)) * (max(-L, min(up, L)) + 1). */
struct gate_mul_args {
    float *gate;     // [m, n] in and out
    const float *up; // [m, n]
    int m, n;
    int64_t gate_stride, up_stride;
    int act;     // enum act_kind
    float limit; // 0: none
};

/* x = a x + b y, then, with a cap c > 0, c tanh(x / c): branches that are added, embeddings and
 * logits that are scaled. The product a x is rounded, the addition is a fused multiply-add. */
struct mix_args {
    float *x;       // [m, n] in and out
    const float *y; // [m, n], or NULL: nothing is added
    int m, n;
    int64_t x_stride, y_stride;
    float a, b;
    float cap; // 0: none
};

/* Which experts the tokens of a tile go to: pairs of a token and one of its choices, sorted by
 * expert and in it by token, so that an expert's rows stand together, whoever stands beside. */
struct route {
    int32_t *first;  // [n_experts + 1]: an expert's pairs are first[e] .. first[e + 1]
    int32_t *pairs;  // [m * n_used], sorted: token * n_used + choice
    int32_t *places; // [m * n_used] by token and choice: where the pair stands in pairs
    float *weights;  // the same: what the expert's answer counts
    int n_experts, n_used;
};
static inline int64_t route_bytes(int64_t m, int n_experts, int n_used)
{
    return round_up((n_experts + 1) * (int64_t)4, 64) + 3 * round_up(m * n_used * 4, 64);
}
/* A route in memory of route_bytes(). */
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

/* The n_used experts with the greatest logits, greatest first, equal ones by number; a NaN counts
 * as less than any number. Their weights: softmax over all logits, or over theirs alone; sums run
 * over experts, or choices, ascending. */
struct route_args {
    const float *logits; // [m, n_experts], row stride logits_stride
    int64_t logits_stride;
    struct route to;
    int m;
    int alone; // 1: over theirs alone
};

/* A matmul with another matrix for each expert: of pair i of the route, y[i] = x W_e^T (+ bias_e),
 * where W_e is rows [e n, (e + 1) n) of the part's, n = w.n / n_experts, a multiple of 32. x of the
 * pair is row i, or that of its token. A row's bytes are those of a matmul of its own. */
struct expert_matmul_args {
    struct matmul_args matmul; // m: tokens of the route; w and bias of a part are all experts',
                               // its y is [m * n_used, n]
    struct route route;
    int by_token; // 1: x [m, k], of tokens; 0: [m * n_used, k], of pairs
};
/* Scratch, m, n_used and k as there, n of one expert. */
int64_t expert_matmul_scratch_bytes(const struct ops *ops, int m, int n_used, int n, int k);
/* Expert e's own part of `part`, whose outputs begin at pair `pair`. */
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

/* x = sum over a token's choices, ascending, of weight * y[place], then, where all tokens go
 * through an expert besides, weight * shared[token]; or x += that: a chain of fused multiply-adds
 * from 0. */
struct expert_sum_args {
    float *x;            // [m, n]
    const float *y;      // [m * n_used, n], in the order of pairs
    const float *shared; // [m, n], row stride y_stride, or NULL
    const float *shares; // [m]: shared counts by their logistics, 1 / (1 + exp(-share)); NULL: by 1
    struct route route;
    int m, n;
    int64_t x_stride, y_stride;
    int add;
};

/* Stores K and V of consecutive tokens into the pages of a prompt's workspace: token i goes to
 * slot i % 32 of page i / 32; the pages lie one after the other. */
struct kv_store_args {
    struct kv_layout layout;
    void *pages;        // [ceil((first + n) / 32)][layout.page_bytes]
    const float *k, *v; // [n, n_kv_heads, head_dim], row strides below
    int64_t k_stride, v_stride;
    int first, n;
};

/* One prompt's queries [first, first + n) against its own keys 0..query (causal), under a window of
 * W the last W of these. The
 * tiles of a prompt come in ascending order; with scores first is a multiple of 32. With pages in
 * bf16, and unless COMPUTE_F32, q is rounded to bf16; from ISA_AVX512 on so is every exp(logit -
 * maximum), before it is summed, so that the weights of a query still add up to 1, and the maximum
 * runs over chunks of 256 keys. Weights are good to 2^-8 there, to f32 elsewhere. */
struct prompt_span {
    int n_prompt; // tokens of the whole prompt
    int first, n; // queries of this call
    int token;    // row of q and out of the first one
    int page;     // of the workspace, where the whole prompt's K and V begin
};
struct attend_prompt_args {
    struct kv_layout layout; // of the workspace pages
    const float *q;          // [.., n_heads, head_dim], row stride q_stride
    float *out;              // the same, row stride out_stride
    const void *pages;       // workspace pages (kv_store) in the compute format
    float *scores; // [pages][32][n_kv_heads] in all; a prompt's, from its page on, are [n_kv_heads,
                   // n_prompt_pad] (padded to 32) summed attention weights, zeroed before its first
                   // tile; NULL when the policy needs none
    int policy;    // enum evict_policy: what a query is worth to the scores
    const struct prompt_span *spans; // [n_spans]
    int n_spans, n_heads;
    int n_max, end_max; // greatest n and first + n of a span: grids are made before spans are read
    float scale;        // 1 / sqrt(head_dim); > 0
    float cap;          // 0: none; else logits are cap tanh(logit / cap)
    const float *sinks; // [n_heads] a logit more in the sum of a head's exps; NULL: none
    int window;         // 0: none
    int64_t q_stride, out_stride;
    void *scratch; // >= attend_prompt_scratch_bytes
};
int64_t attend_prompt_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_heads,
                                    int n_kv_heads, int head_dim);

/* The tile of 32 queries before which none counts. */
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

/* A prompt's own part of the workspace. */
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

/* Where positions are ranks (EVICT_POSITIONS_SLOT) keys stand in pages and rings as they were
 * before they were rotated. A token's query and own key are rotated by the slots that its head
 * keeps, each key by its rank: how many of them are older. Stored numbers are read as f32 (code *
 * scale + minimum, the product rounded), rotated in f32 and not rounded again; a logit is then one
 * chain over dimensions in every format. Per slot and KV head that is, beside attention, 4 head_dim
 * bytes written and read next to the core, 4 bytes of rank and, unless the head before kept the
 * same positions, 4 rope_dim bytes of the tables; and 3 rope_dim FLOPs. */
struct slot_rope {
    const float *cos, *sin; // [positions, rope_dim / 2]; NULL: keys stand rotated, as q and k come
    int rope_dim;
    float scale; // that cosines and sines are times
};

/* One victim of eviction, for --kv-dump. pos -1: nothing was evicted. */
struct evict_event {
    int32_t pos;
    float score;
};

/* The KV state of a batch's rows in one layer, as bases and ids: it means the same wherever it is
 * read, as long as the bases do. Slots 0..n_slots-1 of a row are in use, in every head alike; slot
 * s is in page s / 32. Under EVICT_FULL slot s holds position s and slot_pos, slot_score are NULL;
 * slot_trait is where the policy has no trait.
 *
 * mixed: the newest ring_slots tokens stand beside the pages in a ring, the token of position p in
 * ring slot p % ring_slots; ring slot j has its position, score, rank and trait at
 * slots_cap - ring_slots + j. The token that leaves the ring takes the victim's page slot or a new
 * one, or is the victim. */
struct kv_rows {
    struct kv_layout layout; // of the pages
    struct kv_layout ring;   // of the rings' pages; only with rings
    uint8_t *pages;          // page id >= 0: at pages + id * layout.page_bytes
    uint8_t *tails;          // page id < 0: at tails + ~id * tail_stride; NULL without any
    const int32_t *page_ids; // [rows][page_ids_stride], room for every slot of this call
    int32_t *slot_pos;       // [rows][slot_stride]: [n_kv_heads, slots_cap] true positions;
                             // negative (~pos): masked (simulate)
    float *slot_score;       // the same: scores (policy/evict_rule.h)
    int32_t *slot_rank;      // the same: how many of the head's slots are older, masked ones not
                             // counted; NULL unless positions are ranks
    float *slot_trait;       // the same: traits
    uint64_t *dirty;         // [rows][dirty_stride]: bit i is set when page i was written
    uint8_t *rings;          // mixed: [rows][ring_stride]: [KV_RING_PAGES] pages; else NULL
    int64_t tail_stride, ring_stride; // in bytes
    int64_t slot_stride;              // in numbers
    int page_ids_stride, dirty_stride;
    int slots_cap;
};
#define KV_RING_PAGES (EVICT_RING_MAX / PAGE_SLOTS)

/* One row of it, with the rows' bases and its own limits applied: what kernels work on. */
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

/* Where a page stands. */
static inline uint8_t *kv_page_of(const struct kv_rows *all, int32_t id)
{
    return id >= 0 ? all->pages + id * all->layout.page_bytes : all->tails + ~id * all->tail_stride;
}

/* Slots in the ring when the row's next token has position pos. */
static inline int kv_ring_used(const struct kv_row *kv, int pos)
{
    return evict_ring_used(kv->ring_slots, pos);
}

/* Known tokens of one row under decode's rule, one after the other: token i (position pos + i)
 * attends over the row's slots and itself, adds its weights to the scores, then one victim makes
 * room for it. K and V are rounded to the KV format before they are attended. Unless COMPUTE_F32 q
 * is rounded to bf16, and where the set multiplies pairs of bf16 the weights of V are as well
 * (scores are not). */
struct forced_span {
    int row;     // of kv
    int n_slots; // of its pages in use before; evict_slots_after() says how many after
    int n;       // tokens
    int pos;     // true position of the first
    int token;   // row of q, k, v, out and events of the first
    struct evict_row limits;
};
struct attend_forced_args {
    struct kv_rows kv;
    struct slot_rope rope; // by which q and k, which then come as they are, and keys are rotated
    struct evict evict;
    const struct forced_span *spans; // [n_spans], of a row at most one
    int n_spans, n_heads;
    int n_max;     // greatest n of a span: grids are made before spans are read
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
/* Of a call of up to n_spans rows. scores: evict_decode_scores() of the policy; the logits of a
 * whole row are kept only then. Never less for more rows, or longer ones. */
int64_t attend_forced_scratch_bytes(const struct ops *ops, int n_spans, int slots_max, int n_heads,
                                    int n_kv_heads, int head_dim, int scores);

/* After the last tile of a prompt: every head keeps its best `budget` slots (all of them when they
 * fit), written in ascending position to slots 0.. of the row's pages in the KV format; positions
 * and scores follow. evict_slots_after() from none is what is then in use. Under evict.simulate
 * everything is written and what would have gone is masked. With a ring the last tokens go there
 * instead. Where positions are ranks keys are rotated back before they are written. */
struct prompt_keep_args {
    struct kv_layout from; // workspace pages, in f32 or bf16
    const void *pages;     // of the prompt
    const float *scores;   // of the prompt, as prompt_span_scores()
    struct slot_rope rope; // by which the prompt's keys were rotated; without tables they stay so
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
/* By which it is cut: the first `sink` and the last `recent` of its positions stay in any case. */
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

/* A change to one logit before it is reduced: logit = (logit > 0 ? logit / repeat : logit * repeat)
 * + add; repeat 1 leaves it. Lists are sorted by id. */
struct logit_edit {
    int32_t id;
    float repeat;
    float add;
};

struct head_candidate {
    float logit; // edited where it is for sampling
    int32_t id;
    float raw; // before edits: what log-probabilities are made of
};

#define HEAD_TOP_MAX    20   // top_logprobs
#define HEAD_SAMPLE_MAX 1024 // candidates under top-k, top-p, min-p
enum head_want {
    HEAD_SCORE = 1,  // log-sum-exp, argmax, the target's logit
    HEAD_TOP = 2,    // and the best n_top
    HEAD_SAMPLE = 4, // argmax of logit / temperature + Gumbel noise (temperature 0: of logit)
    HEAD_FILTER = 8, // the best 1024 instead, for top-k, top-p and min-p
};

/* What is wanted of one position's logits. */
struct head_request {
    int want;           // enum head_want, or-ed
    int32_t target;     // HEAD_SCORE: token whose logit is wanted; -1 none
    float temperature;  // HEAD_SAMPLE
    int n_top;          // HEAD_TOP
    int n_edits;        // they act on sampling (HEAD_SAMPLE, HEAD_FILTER) only: scores are the
                        // model's own
    int place;          // which list of edits and candidates is its own
    uint64_t noise_key; // HEAD_SAMPLE: hash of (seed, row, position); noise of id is gumbel(key,
                        // id)
};

/* What the slices of the head leave of them. head_start(), then slices in ascending vocabulary
 * order. Ties go to the lowest id. */
struct head_result {
    float max, sum; // log-sum-exp = max + log(sum), over raw logits, joined tile by tile
    float target_logit;
    float best_logit; // raw argmax and its logit
    int32_t best_id;
    float sample_value; // best logit / T + noise (edited)
    int32_t sample_id;
    float sample_logit;                      // its raw logit
    int n_top;                               // in top[]
    int n_filter;                            // in the position's list of candidates
    struct head_candidate top[HEAD_TOP_MAX]; // descending
};
void head_start(struct head_result *r);
/* Gumbel(0, 1) noise of one vocabulary id: -log(-log(u)), u in (0, 1) from mix64(key, id). */
float head_gumbel(uint64_t key, int32_t id);

/* Reduces one slice of logits [m, n] (vocabulary rows first .. first + n) into m results. */
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

/* The lists of a request. */
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

/* THE list: X(name). Each has OP_name, struct name_args, ops_run_name() and ref_name(). */
#define OPS(X)                                                                                     \
    X(matmul)                                                                                      \
    X(decode)                                                                                      \
    X(gather)                                                                                      \
    X(compact)                                                                                     \
    X(cast)                                                                                        \
    X(norm)                                                                                        \
    X(rope)                                                                                        \
    X(gate_mul)                                                                                    \
    X(mix)                                                                                         \
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

/* Bytes from place to place, and n bytes of one value: queued or here and now, as ops are; none is
 * nothing. */
void ops_copy(const struct ops *ops, void *to, const void *from, int64_t n_bytes);
void ops_fill(const struct ops *ops, void *to, int byte, int64_t n_bytes);

/* Runs an op on this CPU, whatever ops->stream says: for devices that compute with its kernels. */
void ops_here(enum op op, const struct ops *ops, const void *args);
/* Bytes of an op's args struct, for devices that queue a copy of it. */
int64_t ops_args_bytes(enum op op);

/* exp in f32, the same bits on every path (polynomial, fused multiply-adds; < 2 ulp). */
float op_exp(float x);

#ifdef __cplusplus
}
#endif

#endif
