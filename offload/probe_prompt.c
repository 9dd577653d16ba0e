/* offload/probe_prompt.c - of probe_model.h: the cost of prompts beyond that of their tokens.
 *
 * Owns: prompts of one model that are stored, attend and leave their slots to a row. Refuses:
 * decoding rows (probe_attend.c).
 * Note: short prompts spend most of the time on starting ops, which no rate by FLOPs includes. So
 * several short ones are measured, one as long as a tile, and a long one. */
#include "offload/probe_impl.h"
#include "offload/probe_model.h"

#include <math.h>
#include <string.h>

#include "kernels/base/arena.h"
#include "policy/plan.h"

#define CELL_S 0.02
#define SHORT  16
#define LONG   1024
#define BUDGET 256 // slots kept of a prompt if rows evict

struct prompts_bed {
    const struct ops *ops;
    const struct probe_layer *l;
    int n, tokens; // prompts; tokens of each
    struct kv_layout from, to, ring;
    struct evict_row limits;
    int pages_each, kept_pages; // pages of a prompt in the workspace; pages of a row
    float *q, *out;             // [tile, heads, head_dim]
    float *k, *v;               // [tile, KV heads, head_dim]
    uint8_t *pages, *kept, *rings;
    float *scores; // [pages][32][KV heads]
    int32_t *page_ids, *slot_pos;
    float *slot_score, *slot_trait;
    uint64_t *dirty;
    struct prompt_span *spans; // [n]
    void *scratch;
};

static int tile_tokens(const struct prompts_bed *b)
{
    return (int)min_i64((int64_t)b->n * b->tokens, PLAN_TILE_TOKENS);
}

static int evicts(const struct prompts_bed *b)
{
    return b->l->evict.policy != EVICT_FULL;
}

static void prompts_carve(struct prompts_bed *b, struct arena *a)
{
    const struct probe_layer *l = b->l;
    const int64_t tile = tile_tokens(b), heads = tile * l->n_heads * l->head_dim,
                  kv = tile * l->n_kv_heads * l->head_dim;
    const int64_t slots = (int64_t)b->kept_pages * PAGE_SLOTS * l->n_kv_heads;
    const int scores = evict_prompt_scores(l->evict.policy);
    const int64_t of_prompt =
        attend_prompt_scratch_bytes(b->ops, b->tokens, l->n_heads, l->n_kv_heads, l->head_dim);
    const int64_t of_keep =
        prompt_keep_scratch_bytes(b->ops, b->tokens, l->n_kv_heads, l->head_dim);
    b->q = ARENA_ARRAY(a, float, heads);
    b->out = ARENA_ARRAY(a, float, heads);
    b->k = ARENA_ARRAY(a, float, kv);
    b->v = ARENA_ARRAY(a, float, kv);
    b->pages = arena_take(a, (int64_t)b->n * b->pages_each * b->from.page_bytes, 4096);
    b->kept = arena_take(a, b->kept_pages * b->to.page_bytes, 4096);
    b->rings = arena_take(a, KV_RING_PAGES * b->ring.page_bytes, 4096);
    b->scores = ARENA_ARRAY(a, float,
                            scores ? (int64_t)b->n * b->pages_each *PAGE_SLOTS * l->n_kv_heads : 0);
    b->page_ids = ARENA_ARRAY(a, int32_t, b->kept_pages);
    b->slot_pos = ARENA_ARRAY(a, int32_t, slots);
    b->slot_score = ARENA_ARRAY(a, float, slots);
    b->slot_trait = ARENA_ARRAY(a, float, evict_policy_trait(l->evict.policy) ? slots : 0);
    b->dirty = ARENA_ARRAY(a, uint64_t, ceil_div(b->kept_pages, 64));
    b->spans = ARENA_ARRAY(a, struct prompt_span, b->n);
    b->scratch = arena_take(a, max_i64(of_prompt, of_keep), 64);
}

static void prompts_fill(struct prompts_bed *b)
{
    const struct probe_layer *l = b->l;
    const int64_t tile = tile_tokens(b);
    for (int64_t i = 0; i < tile * l->n_heads * l->head_dim; i++)
        b->q[i] = (float)(mix64((uint64_t)i) % 1024) * 0x1p-10f - 0.5f;
    for (int64_t i = 0; i < tile * l->n_kv_heads * l->head_dim; i++)
        b->k[i] = b->v[i] = (float)(mix64((uint64_t)(i + 7919)) % 1024) * 0x1p-10f - 0.5f;
    for (int i = 0; i < b->kept_pages; i++)
        b->page_ids[i] = i;
}

static void keep(struct prompts_bed *b, int prompt)
{
    const int mixed = b->l->kv_format == KV_MIXED && evict_ring_slots(&b->limits) > 0;
    struct prompt_keep_args args = {
        .from = b->from,
        .pages = b->pages + (int64_t)prompt * b->pages_each * b->from.page_bytes,
        .scores = evict_prompt_scores(b->l->evict.policy)
                      ? b->scores + (int64_t)prompt * b->pages_each * PAGE_SLOTS * b->l->n_kv_heads
                      : NULL,
        .kv = {.layout = b->to,
               .ring = b->ring,
               .pages = b->kept,
               .page_ids = b->page_ids,
               .slot_pos = evicts(b) ? b->slot_pos : NULL,
               .slot_score = evicts(b) ? b->slot_score : NULL,
               .slot_trait = evict_policy_trait(b->l->evict.policy) ? b->slot_trait : NULL,
               .dirty = b->dirty,
               .rings = mixed ? b->rings : NULL,
               .ring_stride = KV_RING_PAGES * b->ring.page_bytes,
               .page_ids_stride = b->kept_pages,
               .dirty_stride = (int)ceil_div(b->kept_pages, 64),
               .slots_cap = b->kept_pages * PAGE_SLOTS},
        .evict = {.policy = b->l->evict.policy, .scope = b->l->evict.scope},
        .limits = b->limits,
        .n_prompt = b->tokens,
        .scratch = b->scratch};
    args.kv.slot_stride = evicts(b) ? (int64_t)b->l->n_kv_heads * args.kv.slots_cap : 0;
    ops_run_prompt_keep(b->ops, &args);
}

/* One tile: the tokens from `first` on of every prompt. */
static void tile_turn(struct prompts_bed *b, int first)
{
    const struct probe_layer *l = b->l;
    const int64_t heads = (int64_t)l->n_heads * l->head_dim,
                  kv = (int64_t)l->n_kv_heads * l->head_dim;
    const int n = (int)min_i64(b->tokens - first, PLAN_TILE_TOKENS);
    struct attend_prompt_args args = {.layout = b->from,
                                      .q = b->q,
                                      .out = b->out,
                                      .pages = b->pages,
                                      .scores =
                                          evict_prompt_scores(l->evict.policy) ? b->scores : NULL,
                                      .policy = l->evict.policy,
                                      .spans = b->spans,
                                      .n_spans = b->n,
                                      .n_heads = l->n_heads,
                                      .n_max = n,
                                      .end_max = first + n,
                                      .scale = 0.088f,
                                      .q_stride = heads,
                                      .out_stride = heads,
                                      .scratch = b->scratch};
    for (int i = 0; i < b->n; i++) {
        struct kv_store_args store = {.layout = b->from,
                                      .pages = b->pages +
                                               (int64_t)i * b->pages_each * b->from.page_bytes,
                                      .k = b->k + (int64_t)i * n * kv,
                                      .v = b->v + (int64_t)i * n * kv,
                                      .k_stride = kv,
                                      .v_stride = kv,
                                      .first = first,
                                      .n = n};
        b->spans[i] = (struct prompt_span){.n_prompt = b->tokens,
                                           .first = first,
                                           .n = n,
                                           .token = i * n,
                                           .page = i * b->pages_each};
        ops_run_kv_store(b->ops, &store);
        if (args.scores && first == 0)
            memset(prompt_span_scores(&args, &b->spans[i]), 0,
                   (size_t)(b->pages_each * PAGE_SLOTS * l->n_kv_heads) * sizeof(float));
    }
    ops_run_attend_prompt(b->ops, &args);
}

static void prompts_turn(void *ctx, int turn)
{
    struct prompts_bed *b = ctx;
    (void)turn;
    for (int first = 0; first < b->tokens; first += PLAN_TILE_TOKENS)
        tile_turn(b, first);
    for (int i = 0; i < b->n; i++)
        keep(b, i);
}

/* *s: seconds of n prompts of `tokens` tokens each; 0: too little memory. */
static enum err prompts_cell(double *s, const struct probe_layer *l, const struct probe_config *c,
                             int n, int tokens)
{
    const int kept = l->evict.policy == EVICT_FULL ? tokens : (int)min_i64(tokens, BUDGET);
    struct prompts_bed b = {.ops = c->ops,
                            .l = l,
                            .n = n,
                            .tokens = tokens,
                            .pages_each = (int)ceil_div(tokens, PAGE_SLOTS),
                            .kept_pages = (int)ceil_div(kept, PAGE_SLOTS) + 1,
                            .limits = {.budget = INT32_MAX, .recent = BUDGET / 2}};
    struct arena a;
    *s = 0;
    if (evicts(&b))
        b.limits.budget = BUDGET;
    kv_layout_init(&b.from, c->ops->compute == COMPUTE_F32 ? KV_F32 : KV_BF16, l->n_kv_heads,
                   l->head_dim);
    kv_layout_init(&b.to, kv_page_format(l->kv_format), l->n_kv_heads, l->head_dim);
    kv_layout_init(&b.ring, KV_Q8, l->n_kv_heads, l->head_dim);
    if (l->keys_only) {
        kv_layout_keys_only(&b.to);
        kv_layout_keys_only(&b.ring);
    }
    arena_init(&a);
    prompts_carve(&b, &a);
    if (c->memory_bytes > 0 && a.used > c->memory_bytes)
        return OK;
    TRY(probe_arena_open(&a, c, a.used));
    arena_populate(a.base, a.capacity, c->ops->pool);
    prompts_carve(&b, &a);
    prompts_fill(&b);
    struct rate turns = probe_loop(&(struct probe_loop){
        .turn = prompts_turn, .ctx = &b, .amount = 1, .seconds = probe_seconds(c, CELL_S)});
    *s = 1 / turns.value;
    arena_close(&a);
    return OK;
}

static double pairs_of(double tokens)
{
    return tokens * (tokens + 1) / 2;
}

/* Fits the time of a prompt of n tokens, prompt_s + n token_s + n (n + 1) / 2 pair_s, to three
 * measurements. */
enum err probe_prompts(struct model_rates *r, const struct probe_layer *l,
                       const struct probe_config *c)
{
    const int tile = PLAN_TILE_TOKENS, many = tile / SHORT;
    double few_s, tile_s, long_s;
    int tokens = LONG;
    TRY(prompts_cell(&few_s, l, c, many, SHORT));
    TRY(prompts_cell(&tile_s, l, c, 1, tile));
    do {
        TRY(prompts_cell(&long_s, l, c, 1, tokens));
        tokens = long_s > 0 ? tokens : tokens / 2;
    } while (long_s <= 0 && tokens > tile);
    if (few_s <= 0 || tile_s <= 0 || long_s <= 0)
        return OK;
    few_s /= many;
    /* Half of pair_s is the factor of n squared: the second divided difference of the times. */
    double first = (tile_s - few_s) / (tile - SHORT), then = (long_s - tile_s) / (tokens - tile);
    double pair_s = fmax(2 * (then - first) / (tokens - SHORT), 0);
    double token_s =
        (tile_s - few_s - pair_s * (pairs_of(tile) - pairs_of(SHORT))) / (tile - SHORT);
    if (token_s < 0 || pair_s == 0) { // noise: the time of the long prompt is all pairs
        token_s = 0;
        pair_s = fmax(long_s - few_s, 0) / (pairs_of(tokens) - pairs_of(SHORT));
    }
    r->pair_s = pair_s;
    r->prompt_token_s = token_s;
    r->prompt_s = fmax(few_s - SHORT * token_s - pairs_of(SHORT) * pair_s, 0);
    return OK;
}
