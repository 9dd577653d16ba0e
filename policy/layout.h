/* policy/layout.h - the memory of a run, part by part: one table. plan_check adds it up, the engine
 * carves by it, so that what was proved is what is taken.
 *
 * Owns: order, sizes and alignment of all parts. Refuses: to know what stands in them; sizes of the
 * engine's structs come in struct plan_sizes.
 * A newcomer would miss: a part that a plan does not want has no pieces, and memory_at() gives
 * NULL. What every pass uses stands first and is registered with the ring; what stays (weights, KV
 * in RAM) stands last. */
#ifndef POLICY_LAYOUT_H
#define POLICY_LAYOUT_H

#include "policy/plan.h"

#include <stddef.h>

/* name, the field of struct plan_bytes that it counts in. [i]: pieces, one each. */
#define LAYOUT_PARTS(X)                                                                            \
    /* engine/line/home: weights */                                                                \
    X(WEIGHT_HOMES, weight_frames)  /* [layers] struct weight_home */                              \
    X(FREE_FRAMES, weight_frames)   /* [weight_frames] pointers */                                 \
    X(WEIGHT_FRAMES, weight_frames) /* [i: weight_frames] bytes of a layer */                      \
    X(STAGING, io)                  /* encoded weights, with a codec */                            \
    /* KV on NVMe */                                                                               \
    X(KV_FRAMES, kv_meta)        /* [kv_frames] struct frame */                                    \
    X(KV_LAST, kv_meta)          /* [decoder][batches] struct last_write */                        \
    X(KV_CRCS, kv_meta)          /* [decoder][batches][pages_batch][units] */                      \
    X(KV_GENERATIONS, kv_meta)   /* [decoder][batches][pages_batch] */                             \
    X(KV_SEEDS, kv_meta)         /* [pages_batch] */                                               \
    X(KV_TAILS, kv_tails)        /* [batches][batch][decoder] pages */                             \
    X(KV_FRAME_PAGES, kv_frames) /* [i: kv_frames][pages_batch] pages */                           \
    X(KV_SEGMENTS, kv_meta)      /* [i: kv_frames][pages_batch] struct segment */                  \
    X(KV_FETCHED, kv_meta)       /* [i: kv_frames] bit per page */                                 \
    /* hidden states: in RAM, or on NVMe */                                                        \
    X(HIDDEN, hidden)                     /* [pass_tokens] tokens */                               \
    X(HIDDEN_FRAMES, hidden_frames)       /* [hidden_frames] struct frame */                       \
    X(HIDDEN_LAST, hidden_frames)         /* [batches] struct last_write */                        \
    X(HIDDEN_CRCS, hidden_frames)         /* [batches][units] */                                   \
    X(HIDDEN_GENERATIONS, hidden_frames)  /* [batches] */                                          \
    X(HIDDEN_FRAME_TOKENS, hidden_frames) /* [i: hidden_frames][step_tokens] tokens */             \
    X(HIDDEN_SEGMENTS, hidden_frames)     /* [i: hidden_frames][units] struct segment */           \
    /* engine/line/batch */                                                                        \
    X(BATCHES, workspace)   /* [batches] struct batch */                                           \
    X(ROWS, workspace)      /* [i: batches][batch] struct row */                                   \
    X(SPANS, workspace)     /* [i: batches][2 * batch] struct span */                              \
    X(POSITIONS, head)      /* [i: batches][head_positions] struct position */                     \
    X(FREE_PAGES, kv_meta)  /* [i: batches][pages_batch] */                                        \
    X(HEAD_REQUESTS, head)  /* of a pass */                                                        \
    X(HEAD_RESULTS, head)   /* the same */                                                         \
    X(EDITS, head)          /* [rows][edits_max] struct logit_edit */                              \
    X(CANDIDATES, head)     /* [rows][HEAD_SAMPLE_MAX] struct head_candidate */                    \
    X(ROW_PAGES, kv_meta)   /* [i: rows][slots_cap / 32] page ids */                               \
    X(SLOT_POS, kv_meta)    /* [i: rows][decoder][n_kv_heads][meta_cap] */                         \
    X(SLOT_SCORES, kv_meta) /* the same */                                                         \
    X(RINGS, kv_rings)      /* [i: rows][decoder] rings */                                         \
    /* engine/line/gather */                                                                       \
    X(GATHER_OFFSETS, workspace) /* [tile_tokens] of stored rows */                                \
    X(GATHER_SETS, workspace)    /* [batches] struct gather_set */                                 \
    X(AHEAD_WINDOWS, workspace)  /* [i: batches][batch] windows */                                 \
    X(AHEAD_SEGMENTS, workspace) /* [i: batches][batch] struct segment */                          \
    X(CHUNK_WINDOWS, workspace)  /* [i: 2][gather_windows / 2] windows */                          \
    X(CHUNK_SEGMENTS, workspace) /* [i: 2][gather_windows / 2] struct segment */                   \
    X(EMBED_REST, workspace)     /* of the embedding's extent, what is not rows */                 \
    /* engine/line/layer */                                                                        \
    X(NORMED, workspace)        /* [tile_tokens][dim or embed_dim] f32 */                          \
    X(Q, workspace)             /* [tile_tokens][n_heads][head_dim] f32 */                         \
    X(ATTN, workspace)          /* the same */                                                     \
    X(K, workspace)             /* [tile_tokens][n_kv_heads][head_dim] f32 */                      \
    X(V, workspace)             /* the same */                                                     \
    X(GATE, workspace)          /* [tile_tokens][ffn_dim] f32 */                                   \
    X(UP, workspace)            /* the same, with a gated activation */                            \
    X(ROPE_COS, workspace)      /* [tokens_max][rope_dim / 2] f32 by position */                   \
    X(ROPE_SIN, workspace)      /* the same */                                                     \
    X(TILE_POS, workspace)      /* [tile_tokens] positions */                                      \
    X(PROMPT_PAGES, workspace)  /* [layout_prompt_pages()] pages in the compute format */          \
    X(SHARED_PAGES, workspace)  /* [shared_tokens / 32] the same */                                \
    X(PROMPT_SCORES, workspace) /* [layout_prompt_pages()][32][n_kv_heads] f32 */                  \
    X(PROMPT_SPANS, workspace)  /* [batch] struct prompt_span */                                   \
    X(FORCED_SPANS, workspace)  /* [batch] struct forced_span */                                   \
    X(CUTS, workspace)          /* [2 * batch] struct cut */                                       \
    X(EVENTS, workspace)        /* [tile_tokens][n_kv_heads] struct evict_event */                 \
    X(COMPACT_FROM, head)       /* [head_positions] tokens */                                      \
    X(PAGE_IDS, workspace)      /* [batch][slots_cap / 32] of the step */                          \
    X(DIRTY, workspace)         /* [batch] bit per page */                                         \
    X(LOGITS, head)             /* [LAYOUT_POSITION_TILE][HEAD_TILE] f32 */                        \
    X(HEAD_IN, head)            /* [LAYOUT_POSITION_TILE][dim] f32 */                              \
    X(HEAD_NARROW, head)        /* [LAYOUT_POSITION_TILE][embed_dim] f32, where it is another */   \
    X(SCRATCH, workspace)       /* of kernels */                                                   \
    X(STEP_PAGES, kv_meta)      /* [pages_batch] page ids that a step reads */                     \
    X(STEP_OWNERS, kv_meta)     /* [pages_batch] whose they are */                                 \
    /* what stays */                                                                               \
    X(WEIGHTS, weights_resident) /* weights[layer] */                                              \
    X(KV, kv)                    /* [decoder][batches][pages_batch] pages */

#define LAYOUT_ID(id, account) LAYOUT_##id,
enum layout_id { LAYOUT_PARTS(LAYOUT_ID) N_LAYOUT_IDS };
#undef LAYOUT_ID

#define LAYOUT_POSITION_TILE 64 // positions of the head worked on at once

struct layout_part {
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
    int64_t weights[PLAN_LAYERS_MAX];      // offset of each resident layer
    int64_t weight_bytes[PLAN_LAYERS_MAX]; // of it; 0: it streams
    int64_t busy_bytes;                    // of the parts that every pass uses, which stand first
    int64_t n_bytes;
};

/* Lays a plan out (pure), and adds each part to its field of *bytes. */
void layout_make(struct layout *l, const struct plan *plan, const struct weights_info *w,
                 const struct work *work, const struct shape *shape, const struct evict *evict,
                 const struct plan_costs *costs, struct plan_bytes *bytes);

/* Pages of the workspace in which prompts of a tile keep K and V. */
int64_t layout_prompt_pages(const struct plan *plan);
/* Bytes of a frame of hidden states: one batch's of a step, whole disk blocks. */
int64_t layout_hidden_frame_bytes(const struct plan *plan, const struct shape *shape);

/* A layout and where it lies. */
struct memory {
    const struct layout *layout; // borrowed
    void *base;                  // [layout->n_bytes], aligned to a huge page
};

/* Piece i of a part; NULL when the plan does not want the part. */
static inline void *memory_at(const struct memory *m, enum layout_id id, int64_t i)
{
    const struct layout_part *p = &m->layout->parts[id];
    return i < p->n ? (char *)m->base + p->offset + i * p->stride : NULL;
}

#endif
