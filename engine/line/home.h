/* engine/line/home.h - where everything lives: weights[layer], kv[layer][batch], hidden[batch].
 *
 * Owns: the one memory of the run, the frames beside the compute, the scratch file, and the tickets
 * that connect them. Refuses: deciding (policy/plan.h did), computing (engine/line/layer.h). An
 * extent that lives in RAM is its own frame: get() returns its place and nothing moves. */
#ifndef ENGINE_LINE_HOME_H
#define ENGINE_LINE_HOME_H

#include "engine/line/batch.h"
#include "engine/line/frames.h"
#include "engine/model/model.h"
#include "engine/model/pack_codec.h"
#include "offload/tier.h"
#include "policy/layout.h"

/* Indices of the mover's places. */
#define HOME_PACK    0
#define HOME_SCRATCH 1
#define HOME_CODEC   2
#define HOME_RAM     3 // pinned, beside a device: offsets count from its base

/* Where in the mover what is homed on a tier goes to and comes from. */
static inline int home_place(enum tier_kind tier)
{
    return tier == TIER_NVME ? HOME_SCRATCH : HOME_RAM;
}

/* Where a layer's weights are. A layer is fetched from AWAY or IN_RAM, and home_weights_put()
 * returns it there. STAY is for good. */
enum home_state {
    WEIGHTS_AWAY,   // on disk
    WEIGHTS_IN_RAM, // beside a device: in `ram`
    WEIGHTS_COMING, // fetched, and not yet waited for
    WEIGHTS_HERE,   // in a frame
    WEIGHTS_STAY    // in `resident`, as ops read them
};

enum weight_tiling { TILES_NONE, TILES_ONCE, TILES_EACH_PASS };

struct weight_home {
    uint8_t *resident;          // where they stay and ops read them; NULL: streamed
    uint8_t *ram;               // where they stay in RAM beside a device, else NULL
    int64_t frame;              // number of the frame that the layer holds until put; -1: none
    struct ticket ticket, load; // what a frame waits for; what comes to `ram`, once
    struct segment segment, load_segment;
    /* Where a pass wants few of its experts: which pieces of the frame have come, a bit each, and
     * room for the ticket's segments. NULL: the layer comes whole. */
    uint64_t *pieces;
    struct segment *segments;
    enum home_state state;
    const struct model_layer *layer; // borrowed: its layout as ops read it
    struct model_layer tiles;        // its layout once it is decoded into tiles
    /* ONCE: comes through a frame, is decoded into `resident` and stays. EACH_PASS: stays or comes
     * as it is stored, and is decoded into home.tiles in each pass. */
    enum weight_tiling tiling;
};

struct home {
    const struct plan *plan;        // borrowed
    const struct model *model;      // borrowed
    const struct pack_codec *codec; // borrowed; NULL: weights are read as they are
    struct kv_layout kv;            // pages of rows
    struct kv_layout prompt;        // workspace pages, in the compute format
    struct tier tiers[N_TIERS];     // owned: what the run takes of each
    struct tier pinned;             // owned: of RAM, what a device copies from and to
    struct memory memory;           // RAM and device laid out: every byte of the run but text
    const struct ops *ops;          // borrowed: what fills device memory
    struct mover *mover;            // owned
    struct trace *trace;            // borrowed

    struct weight_home *weights; // [layers]
    uint8_t *tiles;              // of the layer at hand, when it is decoded in each pass
    uint8_t *staging;            // [io_depth][PIECE_BYTES] of encoded weights, or NULL
    int64_t *free_frames;        // [weight_frames] stack of numbers
    int n_free_frames;

    /* KV that stays beside the compute has a pool; other KV goes through frames, from and to RAM
     * beside a device, or NVMe. */
    uint8_t *kv_pool;           // [extents of it][the layer's pages][page_bytes]
    int64_t *kv_places;         // [decoder][batches] bytes, within those of its tier
    struct frames kv_frames;    // [plan.kv_frames], of [pages_batch] pages
    struct last_write *kv_last; // [decoder][batches]
    /* Of each page on NVMe, [decoder][batches][pages_batch]: its checksums, filled and compared by
     * the mover, and which writing of it they are of. They are chained from who wrote what (see
     * page_segment), so that a page that is stale, swapped or another's is as wrong as a damaged
     * one.
     */
    uint32_t *kv_crc; // [...][kv_units]
    uint32_t *kv_generation;
    int kv_units;        // of PIECE_BYTES in a page
    uint8_t *kv_tails;   // [extents that move][batch][page_bytes]
    uint64_t run_number; // tells this run's pages from an earlier one's
    int64_t kv_offset[N_TIERS], hidden_offset[N_TIERS]; // of those of a tier, within its place

    uint8_t *hidden;                // beside the compute: [pass_tokens][dim] f32
    struct frames hidden_frames;    // else: [plan.hidden_frames], of step_tokens tokens
    struct last_write *hidden_last; // [batches]
    uint32_t *hidden_crc;           // [batches][hidden_units] of what was written last
    uint32_t *hidden_generation;    // [batches]
    int hidden_units;               // of PIECE_BYTES in a frame
    int64_t hidden_frame_bytes;
};

struct home_config {
    const struct plan *plan;
    const struct layout *layout; // of that plan; borrowed
    const struct model *model;
    const struct pack_codec *codec; // borrowed; NULL: none, though the plan may want one
    enum compute compute;
    enum kv_format kv_format, prompt_format; // of pages
    struct device *device;                   // borrowed
    int numa_node;                           // where RAM lies best; -1: anywhere
    const char *offload_dir;                 // for TIER_NVME
    enum ring_kind io;
    int io_depth;
    struct trace *trace;
    const struct ops *ops; // borrowed: its pool brings the memory in
};

/* Takes the layout's memory, opens pack and scratch, starts the mover. ERR_FIT, ERR_IO. */
enum err home_open(struct home *h, const struct home_config *config);
void home_close(struct home *h);

/* Weights of a line layer: fetch issues the reads (once per pass; nothing for resident ones), get
 * waits for them, put gives the frame back after the layer's last batch. weights[layer].layer is
 * the layout of what ops read. few: a layer with experts comes without them.
 * home_weights_tiles() is where the caller decodes the layer that get gave, or NULL: there is
 * nothing to decode in this step (`first`: the layer's first one of the pass).
 * home_weights_decoded(): the caller has decoded it. home_weights_base() is what ops read. */
enum err home_weights_fetch(struct home *h, int layer, int few, int64_t due);
enum err home_weights_get(struct home *h, int layer, int64_t step, const uint8_t **base);
void home_weights_put(struct home *h, int layer);
uint8_t *home_weights_tiles(struct home *h, int layer, int first);
void home_weights_decoded(struct home *h, int layer);
const uint8_t *home_weights_base(const struct home *h, int layer, const uint8_t *got);
/* The frame that a layer holds, or NULL. */
uint8_t *home_weights_frame(const struct home *h, int layer);
/* Between get and put of a layer that came without its experts: those that the route has tokens for
 * and that are not there yet. Waits for them. ERR_IO, ERR_CORRUPT. */
enum err home_experts_bring(struct home *h, int layer, const struct route *route, int64_t step);
/* Of home_weights_fetch(), once the layer has its frame: 1: it comes without its experts. */
int home_experts_leave(struct home *h, int layer, int64_t due);
/* Bytes of a layer, whole pieces, that are its experts' alone. */
int64_t home_experts_bytes(const struct model_layer *l);
/* The place of a layer that the caller makes there itself, now: nothing is fetched for it. NULL: it
 * streams. Before the first step. */
uint8_t *home_weights_claim(struct home *h, int layer);

/* KV of (layer, batch) at a step; layer counts decoder layers from 0. want: the step will read this
 * page (only of KV that moves). fetch: all wanted pages are read. get: the base of the batch's
 * pages; a page that was not fetched holds nothing yet. page, after get: OK, or why this page could
 * not be read: its row must be computed again from its tokens. dirty: the step changed this page.
 * put: the changed pages go home, the frame is given back. */
enum err home_kv_want(struct home *h, int64_t step, int layer, int batch, const struct row_page *p);
enum err home_kv_fetch(struct home *h, int64_t step, int layer, int batch);
enum err home_kv_get(struct home *h, int64_t step, int layer, int batch, uint8_t **base);
enum err home_kv_page(const struct home *h, int64_t step, int32_t id);
void home_kv_dirty(struct home *h, int64_t step, int layer, int batch, const struct row_page *p);
enum err home_kv_put(struct home *h, int64_t step, int layer, int batch);
/* The pages that the rows of (layer, batch) are filling, [batch][page_bytes]; NULL: its KV stays
 * where ops read it, and so do these. */
uint8_t *home_kv_tails(struct home *h, int layer, int batch);

/* Hidden states of a batch: [n_tokens, dim] f32. Beside the compute: the place at `first_token` of
 * the pass; else the frame of the step (taken afresh when nothing was fetched). */
enum err home_hidden_fetch(struct home *h, int64_t step, int batch, int64_t n_tokens);
enum err home_hidden_get(struct home *h, int64_t step, int batch, int64_t first_token, float **x);
/* 1: the states of a batch move, and may not come back. */
int home_hidden_moves(const struct home *h, int batch);
/* After get, of such ones. OK, or why the states of this token of the batch could not be had; they
 * are zeros. */
enum err home_hidden_token(const struct home *h, int64_t step, int64_t token);
/* The step no longer needs its frame; write 1: it changed the states, they go home. */
enum err home_hidden_put(struct home *h, int64_t step, int batch, int64_t n_tokens, int write);

/* Waits for every ticket still in flight: they are for steps that will not come, so that their
 * errors matter to nobody. */
void home_drain(struct home *h);

#endif
