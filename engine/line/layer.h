/* engine/line/layer.h - one layer of one batch: its ops in order. Variants are fields of struct
 * shape.
 *
 * Owns: the workspace of a step. Refuses: to know where bytes live or when they came
 * (engine/line/stage.c hands it base pointers).
 *
 * A batch is worked through in tiles of at most plan.tile_tokens tokens, so that only hidden states
 * and one prompt's K and V grow with the longest prompt. */
#ifndef ENGINE_LINE_LAYER_H
#define ENGINE_LINE_LAYER_H

#include "engine/line/batch.h"
#include "engine/line/cross.h"
#include "engine/line/gather.h"
#include "engine/line/tables.h"
#include "engine/model/model.h"
#include "kernels/device.h"

/* Called after a row's prompt or forced tokens went through a layer: --kv-dump. events [n,
 * n_kv_heads] (NULL after a prompt; the kept positions stand in kv->slot_pos). */
typedef void (*layer_dump_fn)(void *ctx, const struct row *row, int layer, const struct kv_row *kv,
                              int pos, int n, const struct evict_event *events);

/* What one tile takes of a span. */
struct cut {
    const struct span *span;
    int offset, n; // tokens of the span
    int page;      // prompts: first workspace page
};

struct layer_work {
    const struct plan *plan;
    const struct model *model;
    const struct shape *shape;
    const struct evict *evict;
    struct ops ops;
    const struct memory *memory;
    struct tables *tables; // borrowed: of the step
    struct {               // in them; spans from the tile at hand on
        int32_t *pos;      // [tokens of the batch]; NULL: the layer rotates nothing
        const struct prompt_span *prompts;
        const struct forced_span *forced;
    } told;
    struct kv_layout prompt; // of the pages in which prompts attend
    struct kv_rows rows;     // of the step
    int64_t ring_bytes;      // of one row and layer; 0 unless the KV format is mixed
    int layer;               // whose KV `rows` are: a decoder layer from 0
    struct evict rule;       // its own: the run's, or its window
    const float *sinks;      // [n_heads] its own, where attention reads them; NULL: none
    /* Called with what a tile's tokens chose, before their experts are read; NULL: all are there.
     * After an error the layer's answer is nobody's. */
    enum err (*bring)(void *ctx, int layer, const struct route *route);
    void *bring_ctx;
    enum err err;       // the first that it returned
    layer_dump_fn dump; // NULL: none
    void *dump_ctx;

    float *normed, *q, *attn, *k, *v, *gate, *up; // [tile_tokens][...]
    float *router, *expert_out; // [tile_tokens][n_experts]; [tile_tokens x experts used][dim]
    float *shared_out, *shares; // [tile_tokens][dim]; [tile_tokens]
    void *route;                // route_bytes()
    float *cos, *sin;           // [ropes][rope_rows][rope_dim / 2] by position
    float *slot_cos, *slot_sin; // the same, where it attends; set only where positions are ranks
    int64_t rope_rows;          // layout_rope_rows()
    uint8_t *prompt_pages;      // [prompt_page_cap][prompt.page_bytes]
    uint8_t
        *shared_pages; // [shared_tokens / 32][prompt.page_bytes] what prompts share with the first
    float *prompt_scores; // [prompt_page_cap * 32][n_kv_heads] in pieces per prompt
    int prompt_page_cap;
    struct cut *cuts;             // [2 * batch] of the tile
    struct evict_event *events;   // [tile_tokens][n_kv_heads]; only with dump
    float *logits;                // [tile_positions][HEAD_TILE]
    float *head_in, *head_narrow; // [tile_positions][dim], [embed_dim]
    void *scratch;
};

/* Bytes of a device's kernels' scratch: for decode attention over n_rows of a batch, for attention
 * of one row, and for all ops at this plan's tile, longest row and policy. Fields of struct
 * plan_costs. */
int64_t layer_rows_bytes(const struct device_scratch *of, const struct ops *ops,
                         const struct model *model, int n_rows, int64_t slots_cap,
                         const struct evict *evict);
int64_t layer_attend_bytes(const struct device_scratch *of, const struct ops *ops,
                           const struct model *model, int64_t prompt_max, int64_t slots_cap,
                           const struct evict *evict);
int64_t layer_scratch_bytes(const struct device_scratch *of, const struct ops *ops,
                            const struct model *model, int tile_tokens, int64_t prompt_max,
                            int64_t slots_cap, const struct evict *evict);
/* The workspace, where the layout has it. */
void layer_place(struct layer_work *w, const struct memory *memory, const struct plan *plan,
                 const struct model *model, const struct evict *evict, int64_t rope_rows);
/* What attention needs of it, once plan, memory, shape and ring_bytes are set. */
void layer_place_attention(struct layer_work *w);
/* Of a copy of it, for rows that attend on the CPU beside a device: what they have apart, and the
 * tables by which they rotate keys, filled in. */
void layer_place_apart(struct layer_work *w);
/* Tables that depend on nothing but the model. done: an event to wait by. ERR_DEVICE. */
enum err layer_open(struct layer_work *w, struct event *done);

/* Line layer 0: hidden states of the batch's tokens from their embedding rows; l and weights: its
 * matrix, where the rows are narrower. */
enum err layer_embed(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     struct gather *g, struct batch *batch, int64_t step, float *hidden);
/* Where the KV of (layer, batch) is in this step. */
struct layer_kv {
    uint8_t *pages; // by id
    uint8_t *tails; // pages on NVMe: the ones that rows are filling, row r's at r * tail_stride;
                    // else NULL
    int64_t tail_stride;
};

/* Decoder layer `layer` (from 1): hidden in and out [n_tokens, dim]. Leaves in rows.dirty which
 * pages it wrote. */
void layer_decode(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden);
/* The same in two parts, decode's attention apart: what goes between them, in memory that both
 * reach, tile by tile: q, k and v of a tile's forced spans, one behind the other; attention of
 * these, then of its prompts; sinks [n_heads] f32, where the model has any. */
struct exchange {
    struct cross_bytes bytes; // of a number
    uint8_t *in, *out;
    float *sinks;
};
/* Part 0: q, k and v of the batch's tokens; prompts attend, and what they leave goes to their rows
 * in `kv`, positions and scores to where they are kept: on the CPU's side. Part 1: from attn to the
 * layer's end. */
void layer_before(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden, struct cross *cross, const struct exchange *x);
void layer_after(struct layer_work *w, const struct model_layer *l, const struct batch *batch,
                 const uint8_t *weights, struct cross *cross, const struct exchange *x,
                 float *hidden);
/* What stands between them, on the CPU: forced spans attend. Needs what layer_place_apart() and
 * layer_place_attention() set, tables, and, for what crosses as bf16, q, k, v and attn of a tile.
 * Leaves rows.dirty as layer_decode does. */
void layer_attend(struct layer_work *w, int layer, const struct batch *batch,
                  const struct layer_kv *kv, const struct exchange *x);
/* Decodes a layer from where it was read into tiles. */
void layer_tiles(const struct layer_work *w, const struct model_layer *stored,
                 const uint8_t *weights, const struct model_layer *tiles, uint8_t *to);
/* After the last decoder layer only the wanted positions go on: hidden[i] = hidden[positions[i]].
 */
void layer_compact(struct layer_work *w, const struct batch *batch, float *hidden);
/* Before a batch's first slice: what is asked goes where ops read it; after its last: what they
 * leave comes back. Nothing, without a device's own memory. */
void layer_head_start(struct layer_work *w, const struct batches *batches,
                      const struct batch *batch);
void layer_head_end(struct layer_work *w, const struct batches *batches, const struct batch *batch);
/* One slice of the head over the batch's positions; hidden is compacted. */
void layer_slice(struct layer_work *w, const struct model_layer *l, const struct batches *batches,
                 const struct batch *batch, const uint8_t *weights, const float *hidden);

#endif
