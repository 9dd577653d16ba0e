/* engine/line/batch.h - rows and batches: which rows are live, which tokens a pass takes, which
 * pages a row holds.
 *
 * Owns: the rows, the page pools (one per batch; a page's id is its index in a KV frame), the spans
 * of the current pass. Refuses: bytes (engine/line/home.h) and arithmetic (engine/line/layer.h).
 *
 * Rows are refilled at pass boundaries: when a batch reaches the embedding layer, batch_refill()
 * releases the requests of finished rows, chooses the tokens that each live row takes, and admits
 * waiting requests. */
#ifndef ENGINE_LINE_BATCH_H
#define ENGINE_LINE_BATCH_H

#include "engine/job/job.h"
#include "engine/line/carve.h"
#include "policy/admit.h"
#include "policy/simulate.h"

struct row {
    struct request *request; // borrowed from the job while live; NULL: empty
    struct evict_row evict;
    int n_done;                 // tokens with stored KV before this pass
    int n_take;                 // tokens of this pass, from n_done on
    int n_slots, n_slots_after; // KV slots in pages, per head, before and after this pass
    int ring_slots;             // KV format mixed: see struct kv_rows; else 0
    int32_t *pages;             // [slots_cap / 32] ids in the batch's pool
    int n_pages;
    int64_t entered;     // admission number: the youngest row has the greatest
    int lost;            // a page was unreadable: requeue the row after the pass
    int32_t ahead_token; // token whose embedding row is being prefetched; -1: none
    int ahead_window;    // index of its read window
};

enum span_kind { SPAN_PROMPT, SPAN_FORCED };

/* A run of known tokens of one row in one step. With prefix sharing a prompt span starts after the
 * prefix that it shares with the first prompt of this batch. K and V of the prefix are copied from
 * that prompt; the prefix's hidden states are never computed. */
struct span {
    int row, kind;
    int pos; // position of the first token; of a prompt: length of the shared prefix
    int n;
    int first; // index of the first token among the batch's tokens of this pass
};

/* A token whose logits are computed. */
struct position {
    int row;
    int pos;
    int token; // index among the batch's tokens of this pass
    int sampled, scored;
};

/* A full page of a row's KV in a decoder layer. */
struct row_page {
    int row, page; // page of the row
    int32_t id;    // page id in the pool of the batch, or of the layer
    int64_t owner; // request index
    int n;         // number of full pages of the row
};

struct batch {
    int index;
    int64_t pass;       // the pass that the fields below describe; -1: none yet
    struct row *rows;   // [plan.batch]
    int n_rows;         // plan.batch
    struct span *spans; // [2 * plan.batch]
    int n_spans;
    int first_prompt;           // span of the first prompt of the pass; -1: none
    int n_shared;               // longest prefix that another prompt shares with it
    int n_tokens;               // of this pass
    int64_t first_token;        // index of the first token within the pass
    struct position *positions; // [plan.head_positions]
    int n_positions;
    struct head_request *requests; // [n_positions] head input
    struct head_result *results;   // head output
    int64_t first_position;        // index of the first position within the pass
    int32_t *free_pages;           // stack
    int n_free_pages;
};

/* Inputs and results of the head, for all batches. */
struct head_tables {
    struct head_request *requests;     // [head_cap] of a pass
    struct head_result *results;       // [head_cap] of a pass
    struct logit_edit *edits;          // [batches * batch][edits_max] of sampled positions
    struct head_candidate *candidates; // [batches * batch][HEAD_SAMPLE_MAX] or NULL
};

struct batches {
    const struct plan *plan; // borrowed
    const struct shape *shape;
    const struct evict *evict;
    int64_t ring_bytes;  // of one row and layer; 0 unless the KV format is mixed
    struct job *job;     // borrowed
    struct batch *batch; // [plan.batches]
    /* The host writes and reads these. A device's results arrive while the next pass begins, so two
     * passes alternate; each group of a pipeline has its own. Ops use `seen`: device memory, or the
     * same without a device and without groups. */
    struct head_tables heads[PLAN_GROUPS_MAX];
    struct head_tables seen;
    int64_t head_cap;
    int edits_max;
    const int32_t *stops; // borrowed: stop ids banned before min_tokens
    int n_stops;
    int64_t entered; // admissions so far
    // of the pass that is being embedded
    int64_t pass_tokens, pass_positions;
    struct gate gate;
    int64_t evicted_slots, requeued, shared_tokens;
};

/* Carves rows, page pools and the head's tables. */
void batches_place(struct batches *b, struct carve *c);

/* The pass boundary of one batch: ends the previous pass (n_take is added to n_done), requeues lost
 * rows, admits requests, and sets the spans, positions and indices of `pass`. */
enum err batch_refill(struct batches *b, int index, int64_t pass);

/* After the last slice: hands tokens and scores to the job and releases finished rows. */
enum err batch_sample(struct batches *b, int index);

/* The work of the batch in the pass that batch_refill() set up. */
struct load batch_load(const struct batches *batches, const struct batch *batch);
/* Tokens of a pass as far as they are known; a row of a batch that has not entered the pass counts
 * as one token. */
int64_t batches_tokens(const struct batches *batches, int64_t pass);
/* Before the engine changes plans, between two passes: requeues all rows with their tokens. */
void batches_return(struct batches *batches);

/* Page slots of a row after n more tokens, in decoder layers of a kind. */
int batch_kind_slots(const struct evict *evict, const struct row *row, int kind, int n);
/* 1 for a row that may grow beyond the model's original context: all its tokens, from the first on,
 * use the rope table for long contexts, so that its bytes depend on the request alone. */
int batch_turns_long(const struct shape *shape, const struct row *row);

/* Id of page `page` of row r in a decoder layer (from 0). */
int32_t batch_page_id(const struct plan *plan, const struct batch *batch, int layer, int r,
                      int page);
/* Iterates over the full pages of the batch in a decoder layer, as of before (after = 0) or after
 * (after = 1) the tokens of this pass. Start with {.row = -1}. Returns 0 after the last page. */
int batch_page_next(const struct batches *all, const struct batch *batch, int layer, int after,
                    struct row_page *p);

#endif
