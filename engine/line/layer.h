/* engine/line/layer.h - one layer of one batch: its ops in order. Model families differ by fields
 * of struct shape.
 *
 * Owns: the workspace of a step. Refuses: where bytes live and when they arrive
 * (engine/line/stage.c passes base pointers).
 *
 * A batch is processed in tiles of at most plan.tile_tokens tokens, so that only hidden states and
 * the K and V of one prompt grow with the longest prompt. */
#ifndef ENGINE_LINE_LAYER_H
#define ENGINE_LINE_LAYER_H

#include "engine/line/batch.h"
#include "engine/line/cross.h"
#include "engine/line/gather.h"
#include "engine/line/tables.h"
#include "engine/model/model.h"
#include "kernels/device.h"

/* For --kv-dump: called after a row's prompt or forced tokens went through a layer. events [n,
 * n_kv_heads]; NULL after a prompt, whose kept positions are in kv->slot_pos. */
typedef void (*layer_dump_fn)(void *ctx, const struct row *row, int layer, const struct kv_row *kv,
                              int pos, int n, const struct evict_event *events);

/* Layouts of a layer: its rows' pages, their rings, and the prompt pages in the workspace. */
struct layer_layouts {
    struct kv_layout pages, ring, prompt;
};

/* The part of a span that one tile processes. */
struct cut {
    const struct span *span;
    int offset, n; // first token within the span, count
    int page;      // of a prompt: first workspace page
};

struct layer_work {
    const struct plan *plan;
    const struct model *model;
    const struct shape *shape;
    const struct evict *evict;
    struct ops ops;
    struct tables *tables; // borrowed: tables of the step
    struct {               // pointers into `tables`; spans: from the current tile on
        int32_t *pos;      // [tokens of the batch]; NULL: the layer has no RoPE
        const struct prompt_span *prompts;
        const struct forced_span *forced;
    } told;
    struct layer_layouts layouts[2]; // [1]: of layers of layer_wide[]
    struct kv_layout prompt;         // of the current layer
    struct kv_rows rows;             // of the step
    /* Per row of the run, all its decoder layers: positions, scores, ranks, traits; rings. */
    struct slab slot_pos, slot_score, slot_rank, slot_trait, rings;
    int64_t ring_bytes; // of one row and layer, the most; 0 unless the KV format is mixed
    int layer;          // decoder layer (from 0) whose KV `rows` describes
    struct evict rule;  // of this layer: the run's policy, or its window
    const float *sinks; // [n_heads] of this layer, as ops read them; NULL: none
    /* Called with the experts chosen for a tile, before their weights are read; NULL: all experts
     * are present. After an error the layer's output is invalid. */
    enum err (*bring)(void *ctx, int layer, const struct route *route);
    void *bring_ctx;
    enum err err;       // first error of `bring`
    layer_dump_fn dump; // NULL: none
    void *dump_ctx;

    float *hidden;                                // of layer_decode(): all parts of shape_part()
    int64_t tokens;                               // of its batch
    float *normed, *q, *attn, *k, *v, *gate, *up; // [tile_tokens][...]; in latent attention the
                                                  // values are k, and v is what queries are made of
    float *q_gate; // [tile_tokens][n_heads * head_dim], of models with query_gate
    /* Of layers with a state, in the place of q, attn, k and v: [tile_tokens] inputs and outputs of
     * the recurrence, gates. */
    float *state_qkv, *state_out, *state_z, *state_beta, *state_dt;
    float *router, *expert_out; // [tile_tokens][n_experts]; [tile_tokens x experts used][dim]
    float *shared_out, *shares; // [tile_tokens][dim]; [tile_tokens]
    void *route;                // of route_bytes()
    float *cos, *sin;           // by table: [rope_rows][shape_rope_width() / 2] by position
    float *factors;             // [ropes][rope_rows] of queries; NULL: all 1
    float *slot_cos, *slot_sin; // copies where decode attends; only if positions are ranks
    float *slot_factors;
    int64_t rope_rows;     // positions in each of these tables
    uint8_t *prompt_pages; // [prompt_page_cap][prompt.page_bytes]
    uint8_t *shared_pages; // [shared_tokens / 32][prompt.page_bytes] pages of the shared prefix
    float *prompt_scores;  // [prompt_page_cap * 32][n_kv_heads], one block per prompt
    int prompt_page_cap;
    struct cut *cuts;             // [2 * batch] of the tile
    struct evict_event *events;   // [tile_tokens][n_kv_heads]; only with dump
    float *logits;                // [tile_positions][HEAD_TILE]
    float *head_in, *head_narrow; // [tile_positions][dim], [embed_dim]
    void *scratch;
};

/* Bytes of kernel scratch: for decode attention over n_rows rows, and for all ops with this tile
 * size, longest prompt and policy. Fields of struct plan_costs. */
int64_t layer_rows_bytes(const struct device_scratch *of, const struct ops *ops,
                         const struct model *model, int n_rows, int64_t slots_cap,
                         const struct evict *evict);
int64_t layer_scratch_bytes(const struct device_scratch *of, const struct ops *ops,
                            const struct model *model, int tile_tokens, int64_t prompt_max,
                            int64_t slots_cap, const struct evict *evict);
/* layer_place_rows() carves what each row keeps of its slots in all layers, layer_place() the
 * workspace of a tile, layer_place_head() the workspace of the head and the scratch of kernels. */
void layer_place_rows(struct layer_work *w, struct carve *c);
void layer_place(struct layer_work *w, struct carve *c);
void layer_place_head(struct layer_work *w, struct carve *c);
/* For a copy of the workspace whose rows attend on the CPU beside a device: carves the fields that
 * differ. */
void layer_place_apart(struct layer_work *w, struct carve *c);
/* plan_costs.tile_bytes. */
int64_t layer_tile_bytes(const struct setting *set, int tile_tokens);
/* Fills tables that depend on the model only. done: an event to wait with. ERR_DEVICE. */
enum err layer_open(struct layer_work *w, struct event *done);
/* The tables by which rows that attend apart rotate keys. */
void layer_open_apart(struct layer_work *w);

/* Line layer 0: hidden states of the batch's tokens, and the inputs of layers, from their embedding
 * rows. l and weights: its matrices, for models that have some. */
enum err layer_embed(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     struct gather *g, struct batch *batch, int64_t step, float *hidden);
/* The KV of (layer, batch) in this step. */
struct layer_kv {
    uint8_t *pages; // pages by id
    uint8_t *tails; // pages being filled, if the KV moves: row r's at r * tail_stride; else NULL
    int64_t tail_stride;
};

/* Decoder layer `layer` (from 1): hidden in and out, all parts of shape_part(). Sets rows.dirty:
 * the pages that it wrote. */
void layer_decode(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden);
/* layer_decode() in two parts, before and after decode's attention, with buffers between them that
 * both CPU and device reach. `in`, per tile: q, then k, then v of its forced spans. `out`, per
 * tile: attention of its forced spans, then of its prompts. sinks [n_heads] f32, if the model has
 * them. */
struct exchange {
    struct cross_bytes bytes; // per number
    uint8_t *in, *out;
    float *sinks;
};
/* Part 0: q, k and v of the batch's tokens; prompts attend, and their kept pages, positions and
 * scores are copied to their rows in `kv` on the CPU's side. Part 1: from the attention's output to
 * the end of the layer. */
void layer_before(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden, struct cross *cross, const struct exchange *x);
void layer_after(struct layer_work *w, const struct model_layer *l, int layer,
                 const struct batch *batch, const uint8_t *weights, struct cross *cross,
                 const struct exchange *x, float *hidden);
/* Between the parts, on the CPU: forced spans attend. Requires layer_place_apart(), tables, and, if
 * bf16 crosses, buffers for q, k, v and attn of a tile. Sets rows.dirty as layer_decode() does. */
void layer_attend(struct layer_work *w, int layer, const struct batch *batch,
                  const struct layer_kv *kv, const struct exchange *x);
/* Decodes a layer, as stored at `weights`, into tiles at `to`. */
void layer_tiles(const struct layer_work *w, const struct model_layer *stored,
                 const uint8_t *weights, const struct model_layer *tiles, uint8_t *to);
/* After the last decoder layer, keeps the wanted positions only: hidden[i] =
 * hidden[positions[i]]. */
void layer_compact(struct layer_work *w, const struct batch *batch, float *hidden);
/* Before a batch's first slice: copies head requests to where ops read them; after its last slice:
 * copies the results back. Both do nothing without device memory. */
void layer_head_start(struct layer_work *w, const struct batches *batches,
                      const struct batch *batch);
void layer_head_end(struct layer_work *w, const struct batches *batches, const struct batch *batch);
/* One slice of the head over the batch's positions; hidden is compacted. */
void layer_slice(struct layer_work *w, const struct model_layer *l, const struct batches *batches,
                 const struct batch *batch, const uint8_t *weights, const float *hidden);

#endif
