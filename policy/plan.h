/* policy/plan.h - what policy decided, and the proof that it fits.
 *
 * Pure: numbers in, numbers out. `work` and `machine` describe the job and the box, `plan` is the
 * decision; plan_check() recounts every byte of the run from the plan alone, so that nothing on the
 * line ever has to ask. */
#ifndef POLICY_PLAN_H
#define POLICY_PLAN_H

#include "policy/evict.h"
#include "policy/machine.h"
#include "policy/walk.h"
#include "policy/shape.h"
#include "kernels/base/limits.h"

enum plan_codec { PLAN_CODEC_NONE, PLAN_CODEC_ZSTD };

#define PLAN_LAYERS_MAX (SHAPE_LAYERS_MAX + SHAPE_VOCAB_MAX / HEAD_TILE + 1)
/* What is worked on at once in RAM: tokens by a layer, positions by the head. On a device a tile of
 * tokens has one of PLAN_TILES sizes, each twice the one before, and one of positions is larger:
 * weights are read again for every tile. */
#define PLAN_TILE_TOKENS      256
#define PLAN_TILES            4
#define PLAN_TILE_POSITIONS   64
#define PLAN_DEVICE_POSITIONS 256

#define PLAN_BATCH_MAX     4096 // rows of one batch
#define PLAN_ROWS_MAX      (1 << 16)
#define PLAN_SHARED_TOKENS 1024 // longest prefix that prompts of one step compute once
#define PLAN_WINDOW_MAX    8    // steps queued on a device
#define PLAN_ALL           INT32_MAX

/* Bytes of the model, as the pack lays it out (engine/model/model.c fills it). */
struct weights_info {
    int n_layers; // line layers
    int n_decoder;
    int64_t layer_bytes[PLAN_LAYERS_MAX]; // extent of each line layer
    int64_t tile_bytes[PLAN_LAYERS_MAX];  // held as the tiles that matmuls read in place; 0: it is
    int must_decode;                      // 1: a device's matmuls read nothing but tiles
    int made_here; // 1: layers are made there that plan_layer_made() names (dummy weights)
    int n_experts, n_experts_used;         // of a layer; 0, 0
    int64_t expert_bytes[PLAN_LAYERS_MAX]; // of layer_bytes, whole pieces that are experts' alone
    double expert_overlap;                 // experts that a piece of theirs belongs to, in the mean
    int64_t n_params;
    int64_t flops_per_token; // 2 x parameters that a token is multiplied by in a pass
    int64_t embed_row_bytes;
    int64_t embed_rest_bytes; // of the embedding's extent, what is not rows: always in RAM
};

#define WORK_EIGHTHS 8 // what is counted of a row's output is counted by eighths of its cap

/* Lengths of a row that is still to do, tokens. */
struct work_row {
    int32_t prompt, known; // of its prompt; prompt and what an earlier run left, or is to be scored
    int32_t cap;           // most that it can come to have
    int32_t shared;        // first ones of the prompt that the row before has, too
};

/* What the job asks for, from its real lengths. */
struct work {
    int64_t n_rows;
    /* Borrowed, in the order of the queue: every `stride`-th row. NULL: all are alike, of
     * prompt_max and tokens_max. */
    const struct work_row *rows;
    int64_t n_lengths;
    int stride;
    int64_t prompt_tokens,
        output_tokens;                // sums; output as max_tokens allows (score: continuations)
    int64_t prompt_max;               // longest prompt, tokens
    int64_t tokens_max;               // most tokens of one row, prompt and output
    int64_t slots_max;                // most KV slots that one row can hold in a layer
    int64_t slots_mean;               // mean over rows of the most slots a row holds there
    const struct kv_kinds *kinds;     // borrowed: struct evict's
    int64_t slots_kind[KV_KINDS_MAX]; // as slots_max, by kind; the first is slots_max itself
    int64_t forced_max;               // longest forced span (score, resume); 0 for fresh generation
    int64_t line_bytes_max;           // longest input line
    int scores;                       // 1: rows are scored; nothing is generated
    /* Known positions whose log-probability is wanted (score, logprobs): most of all rows at once,
     * and the longest prompt that has some inside it (echo). */
    int64_t scored_positions, scored_prompt_max;
    int filters;   // 1: some row samples with top-k, top-p or min-p
    int edits_max; // most logits of one row that penalties and biases change
    /* The chance that a row stops after a token, by how much of its allowed output it has; 0: rows
     * reach their cap. */
    double stops[WORK_EIGHTHS];
};

/* Hard caps, bytes; -1: none. */
struct budget {
    int64_t device, ram, disk;
};

/* Bytes of the engine's own structs (engine_costs fills them in): policy counts arrays of them
 * without knowing them. */
struct plan_sizes {
    int64_t weight_home, frame, last_write, segment, gather_set; // home, frames, gather
    int64_t batch, row, span, position;                          // batch
    int64_t prompt_span, forced_span, cut, evict_event;          // layer
    int64_t head_request, head_result;                           // per scored or sampled position
};

/* What the engine's own tables cost (engine_costs): everything the plan does not know by itself. */
/* Bytes of a number on its way to the CPU that attends beside a device, and back. */
struct cross_bytes {
    int in, out;
};

struct plan_costs {
    int64_t kv_page_bytes; // one page, one layer, in the KV format
    int64_t kv_ring_bytes; // one row, one layer: its ring (KV format mixed), else 0
    /* Pages of a layer that a token writes over which evicts by scores; 0: rows evict in turn. */
    double kv_pages_written[KV_KINDS_MAX];
    int64_t prompt_page_bytes; // one page in the compute format (prompt workspace)
    int64_t text_bytes;        // tokenizer, rows being parsed, journal buffers
    int64_t io_bytes;          // mover's rings and tables
    int64_t row_token_bytes;   // per token of a live row (ids, output text)
    int64_t attend_bytes;      // kernels' scratch of the CPU, where it attends beside a device
    struct cross_bytes cross;  // there
    /* By size of a tile (PLAN_TILE_TOKENS << i): kernels' scratch, which covers the longest row,
     * too; where the tile's tokens go, 0 without experts. */
    int64_t scratch_bytes[PLAN_TILES], route_bytes[PLAN_TILES];
    int64_t attend_row_bytes;  // scratch of decode attention over one row of a batch
    int64_t attend_rows_bytes; // the same over any number of rows: may be less than rows times that
    struct plan_sizes sizes;
    int64_t filter_bytes;     // more per row that samples under a filter
    int64_t edit_bytes;       // of one changed logit
    struct model_rates rates; // of the matmuls, in RAM
    double attend_rate;       // KV bytes of its format attended over on the CPU, per second
    int64_t staging_bytes;    // of encoded weights on their way
    int64_t bounce_bytes;     // of bytes between NVMe and a device, on their way
    int64_t codec_bytes;      // the decoder and its tables
    double codec_share;       // stored bytes of a streamed byte, encoded; 0: not measured
    double codec_rate;        // bytes decoded per second while a run goes on, one thread
    double codec_make_s;      // until the encoded file is there; 0: it is
    const struct pace *pace;  // borrowed: what earlier runs took (policy/pace.h); NULL: no runs
};

struct plan {
    int batch, batches;  // rows per batch, batches
    int layers, decoder; // line layers, decoder layers
    int resident;        // streamed layers kept in RAM: see plan_layer_resident
    int decoded;         // the first so many of these are held as tiles
    int embed_resident;  // 1: the embedding is in RAM too
    int codec;           // enum plan_codec: how streamed weights are stored on NVMe
    int device;          // 1: ops run on a device with memory of its own; 0: in RAM
    int attn_cpu;        // device: rows attend on the CPU, decoder layers have two parts
    int weights_ram;     // device: layers that stream from RAM, not from NVMe
    int kv_near, kv_ram; // KV extents, one a (layer, batch), of plan_kv_near() and, where that is
                         // not RAM, of RAM; the others live on NVMe. PLAN_ALL: as many as there are
    int hidden_near, hidden_ram; // the same of batches' hidden states
    int window;        // steps that are queued on it before the first of them is waited for
    int ahead_weights; // steps
    int ahead_state;   // steps, KV
    int ahead_hidden;  // steps, hidden states
    int weight_frames, kv_frames, hidden_frames;
    int64_t pages_batch;          // KV pages of one batch's pool
    int slots_cap;                // slots of the longest row, rounded up to pages
    const struct kv_kinds *kinds; // borrowed: of KV that the model's layers hold
    /* Pages that each row owns in a layer of a kind, which need not be taken; 0: there it uses
     * those it took for layers of KV_MOST. */
    int kind_pages[KV_KINDS_MAX];
    int prefill_tokens;         // prompt and forced tokens that a pass admits
    int64_t prompt_max;         // longest prompt the workspace holds
    int64_t pass_tokens;        // most tokens of a whole pass
    int64_t step_tokens;        // most tokens of one batch in a pass
    int64_t head_positions;     // most positions of one batch that reach the head
    int tile_tokens;            // tokens that a layer works on at once, whole pages
    int tile_positions;         // positions that the head works on at once
    int experts_few;            // tokens of a pass, at most, for which streamed layers come without
                                // their experts, and these when they are wanted; 0: never
    int64_t weight_frame_bytes; // largest layer that goes through a frame: streamed, or decoded
    int gather_windows;         // embedding rows of prompts in a set, which is read at once
    int gather_sets;
    int no_sharing;    // 1: every prompt is computed whole
    int shared_tokens; // longest prefix that prompts of one step compute once
};

/* What bytes are for; the rows of `plan`'s table are made of these. */
#define PLAN_ACCOUNTS(X)                                                                           \
    X(weights_resident)                                                                            \
    X(weight_frames)                                                                               \
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
    int64_t device, ram, disk; // sums of these
    int64_t arena;             // of RAM, the layout: all but text and reserves
};

/* 1 when line layer `layer` (>= 1) stays in RAM: the resident ones are spread evenly over the line,
 * so that reads of the streamed ones are spread over the pass. */
int plan_layer_resident(const struct plan *plan, int layer);

/* 1 when a resident layer is decoded once, on its first pass, and held as tiles: same answers. */
int plan_layer_decoded(const struct plan *plan, int layer);
/* Of weights that are made here (struct weights_info): 1 for a layer that is made where it stays, 0
 * for one that is read from the file. */
int plan_layer_made(const struct plan *plan, int layer);

/* Where ops read and write in place: the device's memory, or RAM where that is the same. */
enum tier_kind plan_near(const struct plan *plan);
/* The same of attention: its pages, positions and scores. */
enum tier_kind plan_kv_near(const struct plan *plan);
/* Where something lives: the how-manieth of its tier, from 0. */
struct plan_home {
    enum tier_kind tier;
    int64_t rank;
};
/* The home of a line layer (of the embedding TIER_NVME where its rows are gathered), of the KV of
 * decoder layer `layer` (from 0) of a batch, and of a batch's hidden states. Of each kind those of
 * a tier are spread evenly over the line, so that what moves is spread over the pass. */
enum tier_kind plan_layer_home(const struct plan *plan, int layer);
struct plan_home plan_kv_home(const struct plan *plan, int layer, int batch);
struct plan_home plan_hidden_home(const struct plan *plan, int batch);
/* How many kinds of KV there are; what that of decoder layer `layer` (from 0) is; the pages that a
 * row owns there. */
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
/* Pages of a batch's pool in that layer. */
static inline int64_t plan_kv_pages(const struct plan *plan, int layer)
{
    int own = plan_own_pages(plan, layer);
    return own > 0 ? (int64_t)plan->batch * own : plan->pages_batch;
}
/* Slots of a row there, whole pages. */
static inline int plan_kv_slots(const struct plan *plan, int layer)
{
    int own = plan_own_pages(plan, layer);
    return own > 0 ? own * PAGE_SLOTS : plan->slots_cap;
}
/* Of a row's positions and scores, per KV head: slots of the layers before `layer`, `ring` more
 * each. */
static inline int64_t plan_kv_slots_before(const struct plan *plan, int layer, int ring)
{
    int64_t slots = (int64_t)layer * ring;
    for (int i = 0; i < layer; i++)
        slots += plan_kv_slots(plan, i);
    return slots;
}
/* Pages of all extents of each tier. */
void plan_kv_pages_on(const struct plan *plan, int64_t pages[N_TIERS]);
/* How many of them live on a tier. */
int64_t plan_kv_count(const struct plan *plan, enum tier_kind tier);
int64_t plan_hidden_count(const struct plan *plan, enum tier_kind tier);

/* Of the experts' bytes of a layer the share that a pass of so many tokens wants, in the mean: as
 * if choices were even, and a piece came whole. */
double plan_experts_share(const struct weights_info *w, double tokens);

struct order plan_order(const struct plan *plan);

/* Bytes of one token's hidden states: f32 [dim], or [embed_dim] where that is more, since the rows
 * of the embedding stand there until they are projected. */
int64_t plan_token_bytes(const struct shape *shape);

/* Fills the derived fields (frames, look-ahead limits, token bounds, page pools) from the chosen
 * ones: batch, batches, resident, homes, ahead_*, prefill_tokens, tile_tokens. Counts beyond what
 * there is are lowered, and so are look-ahead beyond what the order of bytes allows, and a tile of
 * which no step of the plan would fill half. */
void plan_derive(struct plan *plan, const struct weights_info *w, const struct work *work);

/* Lays out and counts every byte. Returns 0 when the plan fits the budgets, else -1 with `why`
 * (NUL-terminated, names the flag and the size that would fit). */
struct layout; // policy/layout.h
int plan_check(const struct plan *plan, const struct weights_info *w, const struct work *work,
               const struct shape *shape, const struct evict *evict, const struct plan_costs *costs,
               const struct budget *budget, struct layout *layout, struct plan_bytes *bytes,
               char *why, int why_cap);

/* What --percent gives, in FlexGen's order: weights, KV and hidden states, beside the ops and in
 * RAM. */
enum plan_percent {
    WEIGHTS_NEAR,
    WEIGHTS_RAM,
    KV_NEAR,
    KV_RAM,
    HIDDEN_NEAR,
    HIDDEN_RAM,
    N_PLAN_PERCENTS
};

/* Fields the user fixed (-1: automatic), of struct plan. */
struct plan_wish {
    int batch, batches, resident, weights_ram, decoded, kv_near, kv_ram, hidden_near, hidden_ram;
    int ahead_weights, ahead_state, prefill_tokens;
    int codec;
    int no_sharing;
    double percent[N_PLAN_PERCENTS]; // where the count is not said
    int device, attn_cpu;            // as in struct plan; never automatic
};

/* All automatic, without a device. */
struct plan_wish plan_wish_any(void);

#endif
