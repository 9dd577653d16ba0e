/* policy/plan.h - what policy decides, and the check that it fits.
 *
 * Pure: numbers in, numbers out. `work` describes the job, `machine` the machine, `plan` the
 * decision. plan_check() counts every byte of the run from the plan alone, so that the line never
 * needs to check a size. */
#ifndef POLICY_PLAN_H
#define POLICY_PLAN_H

#include "policy/evict.h"
#include "policy/machine.h"
#include "policy/walk.h"
#include "policy/shape.h"
#include "kernels/base/limits.h"
#include "kernels/base/num.h"

enum plan_codec { PLAN_CODEC_NONE, PLAN_CODEC_ZSTD };

#define PLAN_LAYERS_MAX (SHAPE_LAYERS_MAX + SHAPE_VOCAB_MAX / HEAD_TILE + 1)
/* Most tokens that a layer, and most positions that the head, computes at once in RAM. On a device
 * a tile of tokens has one of PLAN_TILES sizes, each twice the previous one, and a tile of
 * positions is larger, because every tile reads the weights again. */
#define PLAN_TILE_TOKENS      256
#define PLAN_TILES            4
#define PLAN_TILE_POSITIONS   64
#define PLAN_DEVICE_POSITIONS 256

#define PLAN_BATCH_MAX     4096 // rows of one batch
#define PLAN_ROWS_MAX      (1 << 16)
#define PLAN_SHARED_TOKENS 1024 // longest prefix that the prompts of one step compute once
#define PLAN_WINDOW_MAX    8    // steps queued on a device
#define PLAN_GROUPS_MAX    128
#define PLAN_ALL           INT32_MAX

/* Memory in which the processes of several devices have layers in RAM once for all. A process
 * counts its part of all bytes, whether its plan uses them or not: so the sum is right, whatever
 * the others plan. */
struct plan_shared {
    int workers; // that divide the bytes; 0: there is no such memory
    int resident,
        weights_ram; // of the plan whose layers in RAM are there; resident -1: not decided
    int64_t n_bytes; // once decided: PLAN_SHARED_HEAD, then these layers
};
#define PLAN_SHARED_HEAD BLOCK_BYTES

/* Sizes of the model, as the pack lays it out (engine/model/model.c fills it). */
struct weights_info {
    int n_layers; // line layers
    int n_decoder;
    int64_t layer_bytes[PLAN_LAYERS_MAX]; // extent of each line layer
    int64_t tile_bytes[PLAN_LAYERS_MAX];  // size when decoded to tiles; 0: stored as tiles already
    int must_decode;                      // 1: a device's matmuls read only tiles
    int made_here;                 // 1: layers of plan_layer_made() are generated (dummy weights)
    int n_experts, n_experts_used; // per layer; 0, 0 without experts
    int64_t expert_bytes[PLAN_LAYERS_MAX]; // of layer_bytes: whole pieces that hold only experts
    double expert_overlap;                 // mean number of experts that share one of these pieces
    int64_t n_params;
    int64_t flops_per_token;  // 2 x parameters that multiply a token in a pass
    int64_t embed_row_bytes;  // 0: a stage of a pipeline that does not embed
    int64_t embed_rest_bytes; // bytes of the embedding's extent besides rows, always in RAM
    struct plan_shared shared;
};

#define WORK_EIGHTHS 8 // a row's output is counted by eighths of its cap

/* The eighth that token `at` of a row's `span` output tokens is in, and the first token behind an
 * eighth; tokens count from 0. */
static inline int work_eighth(int64_t at, int64_t span)
{
    return (int)(at * WORK_EIGHTHS / span);
}
static inline int64_t work_eighth_end(int eighth, int64_t span)
{
    return ceil_div((eighth + 1) * span, WORK_EIGHTHS);
}

/* Lengths of a row that is still to do, in tokens. */
struct work_row {
    int32_t prompt, known; // its prompt; prompt plus tokens of an earlier run, or to be scored
    int32_t cap;           // greatest length
    int32_t shared;        // first tokens of the prompt that equal the previous row's
};

/* The job, from the real lengths of its rows. */
struct work {
    int64_t n_rows;
    /* Borrowed, in queue order: every `stride`-th row. NULL: all rows have prompt_max and
     * tokens_max. */
    const struct work_row *rows;
    int64_t n_lengths;
    int stride;
    int64_t prompt_tokens,
        output_tokens;                // sums; output up to max_tokens (score: continuations)
    int64_t prompt_max;               // longest prompt, tokens
    int64_t tokens_max;               // longest row, prompt and output
    int64_t slots_max;                // most KV slots of one row in a layer
    int64_t slots_mean;               // mean over rows of the most slots of a row in a layer
    const struct kv_kinds *kinds;     // borrowed: as in struct evict
    int64_t slots_kind[KV_KINDS_MAX]; // slots_max by kind; the first is slots_max itself
    int64_t forced_max;               // longest forced span (score, resume); 0 for fresh generation
    int64_t line_bytes_max;           // longest input line
    int scores;                       // 1: rows are scored; nothing is generated
    /* Known positions whose log-probability is wanted (score, logprobs): the most over all rows at
     * once, and the longest prompt with any inside it (echo). */
    int64_t scored_positions, scored_prompt_max;
    int filters;   // 1: some row samples with top-k, top-p or min-p
    int edits_max; // most logits of one row that penalties and biases change
    /* The chance that a row stops after a token, by how much of its allowed output it has; 0: rows
     * reach their cap. */
    double stops[WORK_EIGHTHS];
};

/* 1: rows may stop before their cap. */
static inline int work_may_stop(const struct work *w)
{
    int may = 0;
    for (int i = 0; i < WORK_EIGHTHS; i++)
        may |= w->stops[i] > 0;
    return may && !w->scores;
}

/* Limits in bytes; -1: none. */
struct budget {
    int64_t device, ram, disk;
};

/* Bytes per number sent to the CPU that attends beside a device, and back. */
struct cross_bytes {
    int in, out;
};

struct plan;
struct plan_bytes;
struct setting;

/* Sizes and rates of the engine (engine_costs), which policy cannot derive. */
struct plan_costs {
    /* Adds every byte that the engine takes for a plan to an account of *bytes. */
    void (*measure)(const struct setting *set, const struct plan *plan, struct plan_bytes *bytes);
    /* Bytes of a device's memory that a layer needs for a tile of so many tokens. */
    int64_t (*tile_bytes)(const struct setting *set, int tile_tokens);
    int64_t kv_page_bytes;                 // one page, one layer of kind KV_MOST, in the KV format
    int64_t kind_page_bytes[KV_KINDS_MAX]; // of a kind with other heads; 0: kv_page_bytes
    int64_t kv_ring_bytes; // ring of one row and layer (KV format mixed), the largest; else 0
    /* Pages per layer that a token overwrites under score-based eviction; 0: rows evict in turn. */
    double kv_pages_written[KV_KINDS_MAX];
    int64_t prompt_page_bytes; // one page in the compute format (prompt workspace), the largest
    int64_t text_bytes;        // tokenizer, rows being parsed, journal buffers
    int64_t io_bytes;          // mover's rings and tables
    int64_t row_token_bytes;   // per token of a live row (ids, output text)
    int64_t attend_bytes;      // kernels' scratch on a CPU that attends beside a device
    struct cross_bytes cross;  // for that CPU
    /* By tile size (PLAN_TILE_TOKENS << i): kernels' scratch, enough for the longest row; and a
     * route of the tile's tokens, 0 without experts. */
    int64_t scratch_bytes[PLAN_TILES], route_bytes[PLAN_TILES];
    int64_t attend_row_bytes;  // scratch of decode attention, per row of a batch
    int64_t attend_rows_bytes; // the most for any number of rows: may be less than rows times that
    struct model_rates rates;  // of the matmuls in RAM
    double attend_rate;        // KV bytes (in the KV format) per second that the CPU attends over
    int64_t staging_bytes;     // for encoded weights in transfer
    int64_t bounce_bytes;      // for bytes between NVMe and a device in transfer
    int64_t codec_bytes;       // the decoder and its tables
    double codec_share;        // stored / decoded bytes of streamed weights; 0: not measured
    double codec_rate;         // bytes decoded per second during a run
    double codec_make_s;       // seconds to build PACK.zst; 0 if it exists
    int copies_weights;        // 1: streamed layers are copied into the scratch files of several
                               // drives before the first pass
    const struct pace *pace;   // borrowed: earlier runs (policy/pace.h); NULL: none
};

struct plan {
    int batch, batches;  // rows per batch, batches
    int groups;          // of batches, for a pipeline (policy/walk.h); 0: no pipeline
    int layers, decoder; // line layers, decoder layers
    int resident;        // streamed layers kept near the ops: see plan_layer_resident
    int decoded;         // the first `decoded` of these are held as tiles
    int embed_resident;  // 1: the embedding is resident, too
    int codec;           // enum plan_codec: encoding of streamed weights on NVMe
    int device;          // 1: ops run on a device with its own memory; 0: in RAM
    int attn_cpu;        // device: rows attend on the CPU, decoder layers have two parts
    int weights_ram;     // device: layers that stream from RAM instead of NVMe
    const struct plan_shared *shared; // borrowed: of the weights_info; NULL: layers in RAM are the
                                      // process's own
    int kv_near, kv_ram; // KV extents, one per (layer, batch), with home plan_kv_near(), and with
                         // home RAM where that differs; the others have home NVMe. PLAN_ALL: all
    int hidden_near, hidden_ram; // the same for batches' hidden states
    int window;                  // steps queued on a device before the walk waits for the first
    int ahead_weights;           // steps of framed layers
    int ahead_state;             // steps, for KV
    int ahead_hidden;            // steps, for hidden states
    int weight_frames, kv_frames, hidden_frames;
    int64_t pages_batch;          // KV pages of one batch's pool
    int slots_cap;                // slots of the longest row, in whole pages
    const struct kv_kinds *kinds; // borrowed: kinds of KV of the model's layers
    /* Pages that each row owns in a layer of a kind without allocating them; 0: the row uses the
     * pages allocated for KV_MOST. */
    int kind_pages[KV_KINDS_MAX];
    int prefill_tokens;     // limit on prompt and forced tokens per pass
    int64_t prompt_max;     // longest prompt that fits the workspace
    int64_t pass_tokens;    // most tokens of a whole pass
    int64_t step_tokens;    // most tokens of one batch in a pass
    int64_t head_positions; // most positions of one batch that reach the head
    int tile_tokens;        // tokens that a layer computes at once, in whole pages
    int tile_positions;     // positions that the head computes at once
    int experts_few; // most tokens of a pass in which streamed layers are read without experts, and
                     // experts on demand; 0: never
    int64_t weight_frame_bytes; // largest layer that uses a frame: streamed, or decoded
    int gather_windows;         // embedding rows of prompts per set, read at once
    int gather_sets;
    int no_sharing;    // 1: every prompt is computed whole
    int shared_tokens; // longest prefix that the prompts of one step compute once
};

/* Accounts of bytes; the rows of `plan`'s table. */
#define PLAN_ACCOUNTS(X)                                                                           \
    X(weights_resident)                                                                            \
    X(weight_frames)                                                                               \
    X(weight_copies)                                                                               \
    X(kv)                                                                                          \
    X(kv_frames)                                                                                   \
    X(kv_tails)                                                                                    \
    X(kv_rings)                                                                                    \
    X(kv_meta)                                                                                     \
    X(hidden)                                                                                      \
    X(hidden_frames)                                                                               \
    X(workspace)                                                                                   \
    X(head)                                                                                        \
    X(text)                                                                                        \
    X(io)
#define PLAN_ACCOUNT_ID(name) PLAN_BYTES_##name,
enum plan_account { PLAN_ACCOUNTS(PLAN_ACCOUNT_ID) N_PLAN_ACCOUNTS };
#undef PLAN_ACCOUNT_ID

struct plan_bytes {
    int64_t by[N_PLAN_ACCOUNTS][N_TIERS];
    int64_t device, ram, disk; // sums over accounts
    int64_t arena;             // RAM that the engine takes: all but text and reserves
};

/* The job and machine that a plan is for. Borrowed. */
struct setting {
    const struct weights_info *weights;
    const struct work *work;
    const struct shape *shape;
    const struct evict *evict;
    const struct plan_costs *costs;
    const struct machine *machine;
};

/* 1 when line layer `layer` (>= 1) is resident. Resident layers are spread evenly over the line, so
 * that reads of streamed layers are spread over the pass. */
int plan_layer_resident(const struct plan *plan, int layer);

/* 1 when a resident layer is decoded once, in its first pass, and held as tiles. Same output. */
int plan_layer_decoded(const struct plan *plan, int layer);
/* 1 when a layer needs a frame: it is not resident, or decoded from a frame in its first pass. */
int plan_layer_framed(const struct plan *plan, int layer);
/* Generated weights (struct weights_info): 1 for a layer that is generated where it stays, 0 for a
 * layer that is read from the file. */
int plan_layer_made(const struct plan *plan, int layer);

/* 1: if layer `layer` has its home in RAM, this is memory that several processes share. */
int plan_layer_shared(const struct plan *plan, int layer);
/* Bytes of that memory; before it is decided, for this plan. */
int64_t plan_shared_bytes(const struct plan *plan, const struct weights_info *w);

/* The tier where ops read and write: device memory, or RAM without a device. */
enum tier_kind plan_near(const struct plan *plan);
/* The tier of attention's pages, positions and scores. */
enum tier_kind plan_kv_near(const struct plan *plan);
/* A home: a tier, and the index among the things of the same kind there, from 0. */
struct plan_home {
    enum tier_kind tier;
    int64_t rank;
};
/* The homes of a line layer (the embedding: TIER_NVME if its rows are gathered), of the KV of
 * decoder layer `layer` (from 0) of a batch, and of a batch's hidden states. Things of a kind on
 * one tier are spread evenly over the line, so that transfers are spread over the pass. */
enum tier_kind plan_layer_home(const struct plan *plan, int layer);
struct plan_home plan_kv_home(const struct plan *plan, int layer, int batch);
struct plan_home plan_hidden_home(const struct plan *plan, int batch);
/* The number of kinds of KV; the kind of decoder layer `layer` (from 0); the pages that a row owns
 * there. */
static inline int plan_kinds(const struct plan *plan)
{
    return plan->kinds ? plan->kinds->n : 1;
}
static inline int plan_kind(const struct plan *plan, int layer)
{
    return plan->kinds ? plan->kinds->layer[layer] : KV_MOST;
}
static inline int plan_own_pages(const struct plan *plan, int layer)
{
    return plan->kind_pages[plan_kind(plan, layer)];
}
/* Pages of a batch's pool in layer `layer`. */
static inline int64_t plan_kv_pages(const struct plan *plan, int layer)
{
    int own = plan_own_pages(plan, layer);
    return own > 0 ? (int64_t)plan->batch * own : plan->pages_batch;
}
/* 1: rows keep a state in layer `layer` instead of KV. */
static inline int plan_has_state(const struct plan *plan, int layer)
{
    return plan->kinds && plan->kinds->of[plan_kind(plan, layer)].state > 0;
}
/* The kind of layers with a state; 0: none. */
static inline int plan_state_kind(const struct plan *plan)
{
    const int slots = plan->kinds ? kv_kinds_of_slots(plan->kinds) : 1;
    return slots < plan_kinds(plan) ? slots : 0;
}
/* The most pages of a batch's pool, and of a row, in any layer. */
int64_t plan_pool_pages(const struct plan *plan);
int plan_row_pages(const struct plan *plan);
/* Slots of a row in layer `layer`, in whole pages. */
static inline int plan_kv_slots(const struct plan *plan, int layer)
{
    int own = plan_own_pages(plan, layer);
    return own > 0 ? own * PAGE_SLOTS : plan->slots_cap;
}
/* Slots of all KV heads in a row's positions and scores before layer `layer`, with `ring` more per
 * head and layer. */
static inline int64_t plan_kv_slots_before(const struct plan *plan, const struct shape *shape,
                                           int layer, int ring)
{
    int64_t slots = 0;
    for (int i = 0; i < layer; i++)
        slots += (int64_t)shape_kv_heads(shape, i) *
                 (ring + (plan_has_state(plan, i) ? 0 : plan_kv_slots(plan, i)));
    return slots;
}
/* Bytes of a page of a kind; of the largest; of the largest pool of a batch in any layer. */
static inline int64_t plan_page_bytes(const struct plan_costs *costs, int kind)
{
    return costs->kind_page_bytes[kind] > 0 ? costs->kind_page_bytes[kind] : costs->kv_page_bytes;
}
int64_t plan_page_most(const struct plan *plan, const struct plan_costs *costs);
int64_t plan_pool_bytes(const struct plan *plan, const struct plan_costs *costs);
/* Bytes of all KV extents, by home. */
void plan_kv_bytes_on(const struct plan *plan, const struct plan_costs *costs,
                      int64_t bytes[N_TIERS]);
/* Number of KV extents, and of hidden states, with home `tier`. */
int64_t plan_kv_count(const struct plan *plan, enum tier_kind tier);
int64_t plan_hidden_count(const struct plan *plan, enum tier_kind tier);

/* The mean share of a layer's expert bytes that a pass of `tokens` tokens reads, if choices are
 * even and pieces are read whole. */
double plan_experts_share(const struct weights_info *w, double tokens);

struct order plan_order(const struct plan *plan);
/* Number of groups of batches, at least 1; batches of one group, which a pass takes. */
static inline int plan_groups(const struct plan *plan)
{
    return plan->groups > 1 ? plan->groups : 1;
}
static inline int plan_pass_batches(const struct plan *plan)
{
    return plan->batches / plan_groups(plan);
}

/* Bytes of one token's hidden states: f32, all parts of shape_part(), or [embed_dim] if that is
 * larger, since embedding rows are there until they are projected. */
int64_t plan_token_bytes(const struct shape *shape);

/* Fills the derived fields (frames, look-ahead, token bounds, page pools) from the chosen ones:
 * batch, batches, resident, homes, ahead_*, prefill_tokens, tile_tokens. Lowers counts beyond what
 * exists, look-ahead that would break the order of reads and writes, and a tile that no step would
 * fill by half. */
void plan_derive(struct plan *plan, const struct weights_info *w, const struct work *work);

/* Counts every byte. Returns 0 when the plan fits the budgets; else -1 with `why` (NUL-terminated;
 * names the flag and the size that would fit). */
int plan_check(const struct setting *set, const struct plan *plan, const struct budget *budget,
               struct plan_bytes *bytes, char *why, int why_cap);

/* Tokens of a tile on a device: the most that take a small part of its memory (< 0: no limit).
 * Large tiles fill a device better, and read weights that stay there less often. */
int plan_tile_tokens(const struct setting *set, int64_t device_bytes);

/* 1: rows store the position of each slot, in some layer at least. */
int plan_has_slots(const struct setting *set);

/* Bytes of a layer that stays in memory: as it is stored, or as tiles. */
int64_t plan_resident_bytes(const struct plan *plan, const struct weights_info *w, int layer);
/* Weights and KV that stay in RAM are brought in before step 0 if they are no more than this; else
 * their first touch is part of the job. */
#define PLAN_BROUGHT_IN ((int64_t)1 << 30) // a fraction of a second

/* The values of --percent, in FlexGen's order: weights, KV and hidden states, each near the ops and
 * in RAM. */
enum plan_percent {
    WEIGHTS_NEAR,
    WEIGHTS_RAM,
    KV_NEAR,
    KV_RAM,
    HIDDEN_NEAR,
    HIDDEN_RAM,
    N_PLAN_PERCENTS
};

/* Fields of struct plan that the user fixed; -1: automatic. */
struct plan_wish {
    int batch, batches, resident, weights_ram, decoded, kv_near, kv_ram, hidden_near, hidden_ram;
    int ahead_weights, ahead_state, prefill_tokens;
    int codec;
    int no_sharing;
    int groups;                      // as in struct plan, never automatic
    double percent[N_PLAN_PERCENTS]; // used where the count is -1
    int device, attn_cpu;            // as in struct plan, never automatic
    int brief; // 1: the plan is only compared and never runs, so the search ends early
};

/* All automatic, without a device. */
struct plan_wish plan_wish_any(void);

#endif
