/* policy/layout.h - the memory of a run, part by part: one table. plan_check adds it up, the engine
 * carves by it, so that what was proved is what is taken.
 *
 * Owns: order, sizes and alignment of all parts. Refuses: to know what stands in them; sizes of the
 * engine's structs come in struct plan_sizes.
 * Note: a part that a plan does not want has no pieces, and memory_at() gives
 * NULL. What every pass uses stands first and is registered with the ring; what stays (weights, KV
 * in RAM) stands last. */
#ifndef POLICY_LAYOUT_H
#define POLICY_LAYOUT_H

#include "policy/plan.h"

#include <stddef.h>

/* Where a part lies when ops run on a device with memory of its own: host tables, RAM that the
 * device copies from and to, memory of the device. Without such a device all is one arena. */
enum layout_arena { ARENA_HOST, ARENA_PINNED, ARENA_DEVICE, N_ARENAS };
/* Of a part that lies where rows attend: PINNED or DEVICE. */
#define ARENA_ATTEND N_ARENAS

/* name, the account of struct plan_bytes that it counts in, arena. [i]: pieces, one each. */
#define LAYOUT_PARTS(X)                                                                            \
    /* engine/line/home: weights */                                                                \
    X(WEIGHT_HOMES, weight_frames, HOST)    /* [layers] struct weight_home */                      \
    X(FREE_FRAMES, weight_frames, HOST)     /* [weight_frames] pointers */                         \
    X(WEIGHT_FRAMES, weight_frames, DEVICE) /* [i: weight_frames] bytes of a layer */              \
    X(WEIGHT_PIECES, weight_frames, HOST)   /* [i: weight_frames] bit per piece */                 \
    X(WEIGHT_SEGMENTS, weight_frames, HOST) /* [i: weight_frames][pieces] struct segment */        \
    X(TILES, weight_frames, DEVICE)         /* a layer's, decoded anew in each pass */             \
    X(STAGING, io, PINNED)                  /* encoded weights, with a codec */                    \
    X(BOUNCE, io, PINNED)                   /* [io pieces] between NVMe and a device */            \
    X(KV_PLACES, kv_meta, HOST) /* [decoder][batches] bytes, within those of its tier */           \
    /* KV that moves */                                                                            \
    X(KV_FRAMES, kv_meta, HOST)          /* [kv_frames] struct frame */                            \
    X(KV_LAST, kv_meta, HOST)            /* [decoder][batches] struct last_write */                \
    X(KV_CRCS, kv_meta, HOST)            /* [decoder][batches][pages_batch][units] */              \
    X(KV_GENERATIONS, kv_meta, HOST)     /* [decoder][batches][pages_batch] */                     \
    X(KV_TAILS, kv_tails, ATTEND)        /* [extents that move][batch] pages */                    \
    X(KV_FRAME_PAGES, kv_frames, ATTEND) /* [i: kv_frames][pages_batch] pages */                   \
    X(KV_SEGMENTS, kv_meta, HOST)        /* [i: kv_frames][pages_batch] struct segment */          \
    X(KV_FETCHED, kv_meta, HOST)         /* [i: kv_frames][pages_batch] */                         \
    /* hidden states: beside the ops, and those that move */                                       \
    X(HIDDEN, hidden, DEVICE)                     /* [pass_tokens] tokens */                       \
    X(HIDDEN_FRAMES, hidden_frames, HOST)         /* [hidden_frames] struct frame */               \
    X(HIDDEN_LAST, hidden_frames, HOST)           /* [batches] struct last_write */                \
    X(HIDDEN_CRCS, hidden_frames, HOST)           /* [batches][units] */                           \
    X(HIDDEN_GENERATIONS, hidden_frames, HOST)    /* [batches] */                                  \
    X(HIDDEN_FRAME_TOKENS, hidden_frames, DEVICE) /* [i: hidden_frames][step_tokens] tokens */     \
    X(HIDDEN_SEGMENTS, hidden_frames, HOST)       /* [i: hidden_frames][units] struct segment */   \
    /* engine/line/batch */                                                                        \
    X(BATCHES, workspace, HOST)      /* [batches] struct batch */                                  \
    X(ROWS, workspace, HOST)         /* [i: batches][batch] struct row */                          \
    X(SPANS, workspace, HOST)        /* [i: batches][2 * batch] struct span */                     \
    X(POSITIONS, head, HOST)         /* [i: batches][head_positions] struct position */            \
    X(FREE_PAGES, kv_meta, HOST)     /* [i: batches][pages_batch] */                               \
    X(HEAD_REQUESTS, head, PINNED)   /* [i: passes in flight] of a pass */                         \
    X(HEAD_RESULTS, head, PINNED)    /* the same */                                                \
    X(EDITS, head, PINNED)           /* [rows][edits_max] struct logit_edit */                     \
    X(CANDIDATES, head, PINNED)      /* [rows][HEAD_SAMPLE_MAX] struct head_candidate */           \
    X(SEEN_REQUESTS, head, DEVICE)   /* of a pass, as a device sees them */                        \
    X(SEEN_RESULTS, head, DEVICE)    /* the same */                                                \
    X(SEEN_EDITS, head, DEVICE)      /* as EDITS */                                                \
    X(SEEN_CANDIDATES, head, DEVICE) /* as CANDIDATES */                                           \
    X(ROW_PAGES, kv_meta, HOST)      /* [i: rows][slots_cap / 32] page ids */                      \
    X(SLOT_POS, kv_meta, ATTEND)     /* [i: rows][decoder][n_kv_heads][the layer's slots] */       \
    X(SLOT_SCORES, kv_meta, ATTEND)  /* the same */                                                \
    X(SLOT_RANKS, kv_meta, ATTEND)   /* the same, where positions are ranks */                     \
    X(SLOT_TRAITS, kv_meta, ATTEND)  /* the same, where the policy has one */                      \
    X(RINGS, kv_rings, ATTEND)       /* [i: rows][decoder] rings */                                \
    /* engine/line/gather */                                                                       \
    X(GATHER_SETS, workspace, HOST)     /* [batches] struct gather_set */                          \
    X(AHEAD_WINDOWS, workspace, PINNED) /* [i: batches][batch] windows */                          \
    X(AHEAD_SEGMENTS, workspace, HOST)  /* [i: batches][batch] struct segment */                   \
    X(CHUNK_WINDOWS, workspace, PINNED) /* [i: gather_sets][gather_windows] windows */             \
    X(CHUNK_SEGMENTS, workspace, HOST)  /* [i: gather_sets][gather_windows] struct segment */      \
    X(EMBED_REST, workspace, DEVICE)    /* of the embedding's extent, what is not rows */          \
    /* engine/line/layer */                                                                        \
    X(NORMED, workspace, DEVICE)        /* [tile_tokens][dim or embed_dim] f32 */                  \
    X(Q, workspace, DEVICE)             /* [tile_tokens][n_heads][head_dim] f32 */                 \
    X(ATTN, workspace, DEVICE)          /* the same */                                             \
    X(K, workspace, DEVICE)             /* [tile_tokens][n_kv_heads][head_dim] f32 */              \
    X(V, workspace, DEVICE)             /* the same */                                             \
    X(GATE, workspace, DEVICE)          /* [tile_tokens x MLPs used][ffn_dim] f32 */               \
    X(UP, workspace, DEVICE)            /* the same, with a gated activation */                    \
    X(ROUTER, workspace, DEVICE)        /* [tile_tokens][n_experts] f32 */                         \
    X(ROUTE, workspace, DEVICE)         /* route_bytes() */                                        \
    X(EXPERT_OUT, workspace, DEVICE)    /* [tile_tokens x experts used][dim] f32 */                \
    X(SHARED_OUT, workspace, DEVICE)    /* [tile_tokens][dim] f32 */                               \
    X(SHARES, workspace, DEVICE)        /* [tile_tokens] f32 */                                    \
    X(ROPE_COS, workspace, DEVICE)      /* [ropes][layout_rope_rows()][rope_dim / 2] f32 */        \
    X(ROPE_SIN, workspace, DEVICE)      /* the same */                                             \
    X(SLOT_COS, workspace, ATTEND)      /* as ROPE_COS, on the CPU beside a device, by rank */     \
    X(SLOT_SIN, workspace, ATTEND)      /* the same */                                             \
    X(PROMPT_PAGES, workspace, DEVICE)  /* [layout_prompt_pages()] pages in the compute format */  \
    X(SHARED_PAGES, workspace, DEVICE)  /* [shared_tokens / 32] the same */                        \
    X(PROMPT_SCORES, workspace, DEVICE) /* [layout_prompt_pages()][32][n_kv_heads] f32 */          \
    X(CUTS, workspace, HOST)            /* [2 * batch] struct cut */                               \
    X(TABLES, workspace,                                                                           \
      PINNED) /* [i: steps in flight] what ops are told: engine/line/tables.h */                   \
    X(SEEN_TABLES, workspace, DEVICE) /* the same, as a device sees them */                        \
    X(EVENTS, workspace, ATTEND)      /* [tile_tokens][n_kv_heads] struct evict_event */           \
    X(DIRTY_BACK, workspace,                                                                       \
      PINNED) /* [i: steps in flight] bits of the pages that a step wrote */                       \
    /* engine/line/attend: beside a device, when rows attend on the CPU */                         \
    X(ATTEND_IN, workspace, PINNED)    /* [i: 2][step_tokens] q, k and v of each tile's spans */   \
    X(ATTEND_OUT, workspace, PINNED)   /* [i: 2][step_tokens][n_heads][head_dim] */                \
    X(ATTEND_SINKS, workspace, PINNED) /* [i: 2][n_heads] f32 */                                   \
    X(ATTEND_TILE, workspace, HOST)    /* [i: 4][tile_tokens][n_heads][head_dim] f32: q, k, v and  \
                                          what attention gives, if any of them crosses as bf16 */  \
    X(CROSS_OUT, workspace, DEVICE)    /* [i: 2] of ATTEND_IN, or OUT, what one tile has */        \
    X(CROSS_IN, workspace, DEVICE)     /* [i: 2] of ATTEND_OUT the same */                         \
    X(KEPT_PAGES, workspace, DEVICE)   /* [i: 2] what one prompt leaves: pages, */                 \
    X(KEPT_SLOTS, workspace, DEVICE)   /* [i: 2 * 4] positions, scores, ranks, traits, */          \
    X(KEPT_RING, workspace, DEVICE)    /* [i: 2] a ring */                                         \
    X(ATTEND_TABLES, workspace, HOST)  /* [i: 2] as TABLES */                                      \
    X(ATTEND_CUTS, workspace, HOST)    /* as CUTS */                                               \
    X(ATTEND_SCRATCH, workspace, HOST) /* as SCRATCH */                                            \
    X(LOGITS, head, DEVICE)            /* [tile_positions][HEAD_TILE] f32 */                       \
    X(HEAD_IN, head, DEVICE)           /* [tile_positions][dim] f32 */                             \
    X(HEAD_NARROW, head, DEVICE)       /* [tile_positions][embed_dim] f32, where it is another */  \
    X(SCRATCH, workspace, DEVICE)      /* of kernels */                                            \
    /* what stays */                                                                               \
    X(WEIGHTS, weights_resident, DEVICE) /* weights[layer] */                                      \
    X(KV, kv, ATTEND)                    /* [extents of it][the layer's] pages */                  \
    /* what stays in RAM beside a device's own memory */                                           \
    X(WEIGHTS_HOME, weights_resident, PINNED) /* weights[layer] of those that stream from it */    \
    X(KV_HOME, kv, PINNED)                    /* as KV */                                          \
    X(HIDDEN_HOME, hidden, PINNED)            /* [batches of it] frames */

#define LAYOUT_ID(id, account, arena) LAYOUT_##id,
enum layout_id { LAYOUT_PARTS(LAYOUT_ID) N_LAYOUT_IDS };
#undef LAYOUT_ID

struct layout_part {
    enum layout_arena arena;
    int64_t offset;  // of piece 0
    int64_t stride;  // from one piece to the next
    int64_t n;       // pieces; 0: the plan does not want the part
    int64_t n_bytes; // of a piece: what its owner may touch
};

/* Under AddressSanitizer pieces stand apart, and home.c forbids what is between them: an owner that
 * takes a piece for larger than the table says is found. */
#ifdef __SANITIZE_ADDRESS__
#define LAYOUT_GAP 64
#else
#define LAYOUT_GAP 0
#endif

struct layout {
    struct layout_part parts[N_LAYOUT_IDS];
    enum layout_arena weight_arena[PLAN_LAYERS_MAX];
    int64_t weights[PLAN_LAYERS_MAX]; // offset of each layer that is not homed on NVMe
    int64_t weight_bytes[PLAN_LAYERS_MAX];
    /* By arena; without a device's own memory ARENA_HOST is all there is. */
    int64_t busy_bytes[N_ARENAS]; // of the parts that every pass uses, which stand first
    int64_t n_bytes[N_ARENAS];
};

/* Lays a plan out (pure), and adds each part to its account of *bytes. */
void layout_make(struct layout *l, const struct plan *plan, const struct weights_info *w,
                 const struct work *work, const struct shape *shape, const struct evict *evict,
                 const struct plan_costs *costs, struct plan_bytes *bytes);

/* What stays in RAM, beyond the parts that every pass uses: weights that are read as they are, and
 * what ops write there, tiles and KV. Where it is no more than LAYOUT_BROUGHT_IN all of the arena
 * is brought in before step 0; else its first touch is part of the job. */
#define LAYOUT_BROUGHT_IN ((int64_t)1 << 30) // a fraction of a second
struct layout_stays {
    int64_t read, written;
};
struct layout_stays layout_stays(const struct plan *plan, const struct weights_info *w,
                                 const struct plan_costs *costs);

/* Bytes that a tile of so many tokens passes through in a layer, scratch included. */
int64_t layout_tile_bytes(const struct shape *shape, const struct plan_costs *costs,
                          int tile_tokens);
/* Tokens of a tile on a device: as many as take a small part of its memory (< 0: no limit). Kernels
 * fill a device better, and weights that stay there are read less often. */
int layout_tile_tokens(const struct shape *shape, const struct plan_costs *costs,
                       int64_t device_bytes);

/* Positions that anything is rotated by: those of the longest row; where positions are ranks, those
 * of the longest prompt, or as many as slots, and one for the new token. */
int64_t layout_rope_rows(const struct work *work, const struct evict *evict);
/* Pages of the workspace in which prompts of a tile keep K and V. */
int64_t layout_prompt_pages(const struct plan *plan);
/* Bytes of a frame of hidden states: one batch's of a step, whole disk blocks. */
int64_t layout_hidden_frame_bytes(const struct plan *plan, const struct shape *shape);

/* A layout and where it lies. */
struct memory {
    const struct layout *layout; // borrowed
    void *base[N_ARENAS];        // [layout->n_bytes], aligned to a huge page
};

/* Piece i of a part; NULL when the plan does not want the part. */
static inline void *memory_at(const struct memory *m, enum layout_id id, int64_t i)
{
    const struct layout_part *p = &m->layout->parts[id];
    return i < p->n ? (char *)m->base[p->arena] + p->offset + i * p->stride : NULL;
}

#endif
