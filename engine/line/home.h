/* engine/line/home.h - the homes of weights[layer], kv[layer][batch] and hidden[batch].
 *
 * Owns: all memory of the run, the frames near the compute, the scratch file, and the tickets
 * between them. Refuses: decisions (policy/plan.h) and arithmetic (engine/line/layer.h). An extent
 * whose home is near the compute needs no frame: get() returns its address. */
#ifndef ENGINE_LINE_HOME_H
#define ENGINE_LINE_HOME_H

#include "engine/line/batch.h"
#include "engine/line/carve.h"
#include "engine/line/frames.h"
#include "engine/model/model.h"
#include "engine/model/pack_codec.h"
#include "offload/tier.h"

/* Indices of the mover's places. */
#define HOME_PACK    0
#define HOME_SCRATCH 1
#define HOME_CODEC   2
#define HOME_RAM     3 // pinned RAM beside a device: offsets count from its base
#define HOME_SHARED  4 // the same, of weights that several processes share

/* The mover's place index of homes on a tier. */
static inline int mover_place_of(enum tier_kind tier)
{
    return tier == TIER_NVME ? HOME_SCRATCH : HOME_RAM;
}

/* Where a layer's weights are. A fetch starts from AWAY or IN_RAM, and home_weights_put() returns
 * the layer to that state. STAY is permanent. */
enum home_state {
    WEIGHTS_AWAY,   // on disk only
    WEIGHTS_IN_RAM, // with a device: in `ram`
    WEIGHTS_COMING, // fetch started, not yet waited for
    WEIGHTS_HERE,   // in a frame
    WEIGHTS_STAY    // in `resident`, as ops read them
};

enum weight_tiling { TILES_NONE, TILES_ONCE, TILES_EACH_PASS };

struct weight_home {
    uint8_t *resident;          // permanent home, read by ops; NULL: streamed
    uint8_t *ram;               // permanent home in RAM beside a device, else NULL
    int64_t frame;              // index of the frame that the layer holds until put; -1: none
    int place;                  // of the mover: where a fetch reads the layer
    int64_t at;                 // its first byte there
    int64_t copy;               // of a layer to copy: its first byte in the scratch files; else -1
    struct ticket ticket, load; // ticket of a frame; ticket of the one read into `ram`
    struct segment segment, load_segment;
    int shared; // 1: `ram` is in home.shared
    int loads;  // 1: `load` brings the layer into `ram`
    /* For passes that use few experts: a bitmap of the pieces that are in the frame, and the
     * ticket's segments. NULL: the layer is read whole. */
    uint64_t *pieces;
    struct segment *segments;
    enum home_state state;
    const struct model_layer *layer; // borrowed: layout of the bytes that ops read
    struct model_layer tiles;        // layout after decoding into tiles
    /* ONCE: the layer is read through a frame and decoded into `resident` once. EACH_PASS: the
     * layer is kept or fetched as stored, and decoded into home.tiles in each pass. */
    enum weight_tiling tiling;
};

struct home {
    const struct plan *plan;        // borrowed
    const struct model *model;      // borrowed
    const struct pack_codec *codec; // borrowed; NULL: weights are read uncompressed
    int64_t kv_page_bytes[2];       // of rows' pages; [1]: in layers of layer_wide[]
    struct tier tiers[N_TIERS];     // owned: what the run uses of each tier
    struct tier pinned;             // owned: the RAM that a device copies from and to
    struct tier shared;             // owned: the same, for all layers in RAM of several processes
    int shared_fd;                  // borrowed: its memory file (shared.h)
    int64_t ring_bytes; // first bytes of RAM (with a device: of `pinned`) that the disk reads into
    const struct ops *ops; // borrowed: fills device memory
    struct mover *mover;   // owned
    struct trace *trace;   // borrowed

    struct weight_home *weights; // [layers]
    uint8_t *tiles;              // of the current layer, if decoded in each pass
    uint8_t *staging;            // [io_depth][PIECE_BYTES] of encoded weights, or NULL
    uint8_t *bounce;             // for bytes between NVMe and a device, or NULL
    struct slab weight_frames;   // each as large as the largest layer that needs a frame
    struct slab weight_pieces, weight_segments; // per frame: see struct weight_home
    int64_t *free_frames;                       // [weight_frames] stack of frame indices
    int n_free_frames;

    /* KV near the compute is in a pool. Other KV moves through frames, from and to NVMe, or RAM
     * beside a device. */
    uint8_t *kv_pool;           // [extents in the pool][pages of the layer][home_kv_page_bytes()]
    int64_t *kv_places;         // [decoder][batches] byte offset within its tier's KV
    struct frames kv_frames;    // [plan.kv_frames], each of plan_pool_bytes()
    struct last_write *kv_last; // [decoder][batches]
    /* Per page on NVMe, [decoder][batches][plan_pool_pages]: CRCs, filled and compared by the
     * mover, and the generation (number of writes). CRCs are seeded with (run, row, page,
     * generation; see page_segment), so that a stale, swapped or foreign page fails like a corrupt
     * one. */
    uint32_t *kv_crc; // [...][kv_units]
    uint32_t *kv_generation;
    int kv_units;          // pieces of PIECE_BYTES per page
    int64_t kv_tail_bytes; // plan_page_most()
    uint8_t *kv_tails;     // [extents that move][batch][kv_tail_bytes] pages being filled
    uint64_t run_number;   // tells pages of this run from those of an earlier run
    int64_t kv_offset[N_TIERS], hidden_offset[N_TIERS]; // first byte of the homes on a tier

    uint8_t *hidden;             // hidden states near the compute, of pass_tokens
    struct frames hidden_frames; // hidden states that move: [plan.hidden_frames], step_tokens each
    struct last_write *hidden_last; // [batches]
    uint32_t *hidden_crc;           // [batches][hidden_units] of the last write
    uint32_t *hidden_generation;    // [batches]
    int hidden_units;               // pieces of PIECE_BYTES per frame
    int64_t hidden_frame_bytes;
};

struct home_config {
    const struct plan *plan;
    const struct model *model;
    const struct pack_codec *codec; // borrowed; NULL: no encoded layers, whatever the plan
    enum compute compute;
    enum kv_format kv_format;       // of pages
    struct device *device;          // borrowed
    int numa_node;                  // preferred NUMA node of RAM; -1: any
    int shared_fd;                  // borrowed: memory file of a plan that shares weights
    const char *offload_dir;        // folders of the scratch files, for TIER_NVME
    const _Atomic int *interrupted; // not 0: stop copying weights
    enum ring_kind io;
    int io_depth;
    struct trace *trace;
    const struct ops *ops; // borrowed: its pool's threads populate the memory
};

/* Allocates what `c` has measured (RAM, device memory, the scratch file); `c` then carves from
 * there. ERR_FIT, ERR_IO. */
enum err home_take(struct home *h, const struct home_config *config, struct carve *c);
/* home_place() carves what every pass uses. home_place_stays() comes after all other x_place(): it
 * carves the homes of weights, KV and hidden states in RAM, on the device and on disk. */
void home_place(struct home *h, struct carve *c);
void home_place_stays(struct home *h, struct carve *c);
/* Call after these: opens the pack, starts the mover. If the scratch files lie on several drives
 * (plan_costs.copies_weights), it first copies the streamed layers there, so that the drives'
 * speeds add up for weights, too. ERR_FIT, ERR_IO; ERR_CORRUPT: the pack; ERR_STOPPED: interrupted.
 */
enum err home_open(struct home *h, const struct home_config *config);
void home_close(struct home *h);

/* Weights of a line layer. fetch: starts the reads, once per pass (none for resident layers); few =
 * 1: without the experts. get: waits for the reads. put: releases the frame after the layer's last
 * batch. weights[layer].layer is the layout of the bytes that ops read, home_weights_base() their
 * address. home_weights_tiles(): where the caller decodes the layer returned by get, or NULL if
 * this step decodes nothing (first = 1: the layer's first step of the pass).
 * home_weights_decoded(): call after decoding. */
enum err home_weights_fetch(struct home *h, int layer, int few, int64_t due);
enum err home_weights_get(struct home *h, int layer, int64_t step, const uint8_t **base);
void home_weights_put(struct home *h, int layer);
uint8_t *home_weights_tiles(struct home *h, int layer, int first);
void home_weights_decoded(struct home *h, int layer);
const uint8_t *home_weights_base(const struct home *h, int layer, const uint8_t *got);
/* The read of a layer into RAM has ended; right = 1: with verified bytes. Other processes may now
 * use the layer, or read it themselves. */
void home_weights_loaded(struct home *h, int layer, int right);
/* The frame of a layer, or NULL. */
uint8_t *home_weights_frame(const struct home *h, int layer);
/* Between get and put of a layer fetched without its experts: reads the experts to which `route`
 * sends tokens and that are not yet in the frame, and waits. ERR_IO, ERR_CORRUPT. */
enum err home_experts_bring(struct home *h, int layer, const struct route *route, int64_t step);
/* Used by home_weights_fetch(). Returns 1 if the layer is fetched without its experts. */
int home_experts_leave(struct home *h, int layer, int64_t due);
/* Bytes of a layer's whole pieces that contain experts only. */
int64_t home_experts_bytes(const struct model_layer *l);
/* Used by home_open(): copies the layers that have a place for a copy; later fetches read the
 * copies. */
enum err home_weights_copy(struct home *h, const _Atomic int *interrupted);
/* Address where the caller generates a layer, which is then never fetched. NULL: the layer is
 * streamed. Call before the first step. */
uint8_t *home_weights_claim(struct home *h, int layer);

/* KV of (layer, batch) at a step; layer: decoder layer from 0. want: the step will read this page
 * (only KV that moves). fetch: starts the reads of all wanted pages. get: waits; base of the
 * batch's pages; pages that were not fetched are undefined. page, after get: OK, or why this page
 * is unreadable: recompute its row from its tokens. dirty: the step changed this page. put: writes
 * the changed pages to their homes and releases the frame. */
enum err home_kv_want(struct home *h, int64_t step, int layer, int batch, const struct row_page *p);
enum err home_kv_fetch(struct home *h, int64_t step, int layer, int batch);
enum err home_kv_get(struct home *h, int64_t step, int layer, int batch, uint8_t **base);
enum err home_kv_page(const struct home *h, int64_t step, int32_t id);
void home_kv_dirty(struct home *h, int64_t step, int layer, int batch, const struct row_page *p);
enum err home_kv_put(struct home *h, int64_t step, int layer, int batch);
/* Bytes of a page in decoder layer `layer` (from 0). */
int64_t home_kv_page_bytes(const struct home *h, int layer);
/* The pages that the rows of (layer, batch) are filling, [batch][home_kv_page_bytes()]. NULL: the
 * KV is near the compute, including these pages. */
uint8_t *home_kv_tails(struct home *h, int layer, int batch);

/* Hidden states of a batch: f32, all parts of shape_part(), or after the last decoder layer
 * [positions, dim]; `numbers`: how many. Near the compute: at `first_token` of the pass. Else in
 * the frame of the step (a new frame if nothing was fetched). */
enum err home_hidden_fetch(struct home *h, int64_t step, int batch, int64_t numbers);
enum err home_hidden_get(struct home *h, int64_t step, int batch, int64_t first_token, float **x);
/* 1: the hidden states of the batch move between home and frame, and a read can fail. */
int home_hidden_moves(const struct home *h, int batch);
/* After get, if they move: OK, or why these n numbers are unreadable; they are zeros then. */
enum err home_hidden_came(const struct home *h, int64_t step, int64_t first, int64_t n);
/* Releases the step's frame; write = 1: the step changed the states, write them to their home. */
enum err home_hidden_put(struct home *h, int64_t step, int batch, int64_t numbers, int write);

/* Waits for all tickets in flight and ignores their errors: their steps will not run. */
void home_drain(struct home *h);

#endif
