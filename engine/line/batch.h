/* engine/line/batch.h - rows and batches: who is live, which tokens a pass takes, which pages it
 * holds.
 *
 * Owns: the rows, the page pools (one per batch, so that a page's place in a KV frame is its id),
 * the spans of the current pass. Refuses: bytes (engine/line/home.h) and arithmetic
 * (engine/line/layer.h).
 *
 * Rows refill at pass boundaries: when a batch reaches the embedding layer, batch_refill() lets the
 * requests of finished rows go, decides the tokens each live row takes, and admits waiting
 * requests. */
#ifndef ENGINE_LINE_BATCH_H
#define ENGINE_LINE_BATCH_H

#include "engine/job/job.h"
#include "policy/admit.h"
#include "policy/layout.h"
#include "policy/simulate.h"

struct row {
    struct request *request; // borrowed from the job while live; NULL: empty
    struct evict_row evict;
    int n_done;                 // tokens whose KV stands, before this pass
    int n_take;                 // tokens taken in this pass, from n_done on
    int n_slots, n_slots_after; // KV slots of pages per head before and after this pass
    int ring_slots;             // KV format mixed: see struct kv_rows; else 0
    int32_t *pages;             // [slots_cap / 32] ids in the batch's pool
    int n_pages;
    int64_t entered;     // admission number: the greatest is the youngest
    int lost;            // a page came back wrong: the row returns to the queue after the pass
    int32_t ahead_token; // token whose embedding row was asked for ahead; -1 none
    int ahead_window;    // where it comes to
};

enum span_kind { SPAN_PROMPT, SPAN_FORCED };

/* A run of known tokens of one row in one step. A prompt's begins behind what it shares with the
 * batch's first prompt of this pass: K and V of those positions are that one's, number for number,
 * and nobody asks for their hidden states. */
struct span {
    int row, kind;
    int pos; // position of its first token; of a prompt: so many are shared
    int n;
    int first; // its first token among the batch's tokens of this pass
};

/* A token whose logits are wanted. */
struct position {
    int row;
    int pos;
    int token; // index among the batch's tokens of this pass
    int sampled, scored;
};

/* A full page of a row's KV in a decoder layer. */
struct row_page {
    int row, page; // page of the row
    int32_t id;    // where the page is in the pool of the batch, or of the layer
    int64_t owner; // request index
    int n;         // full pages of the row
};

struct batch {
    int index;
    int64_t pass;       // that the fields below describe; -1: none yet
    struct row *rows;   // [plan.batch]
    int n_rows;         // plan.batch
    struct span *spans; // [2 * plan.batch]
    int n_spans;
    int first_prompt;           // span of the pass's first prompt; -1: none
    int n_shared;               // most positions that another prompt shares with it
    int n_tokens;               // of this pass
    int64_t first_token;        // place of its hidden states within the pass
    struct position *positions; // [plan.head_positions]
    int n_positions;
    struct head_request *requests; // [n_positions] what is wanted of them
    struct head_result *results;   // and what came of it
    int64_t first_position;        // place of these among those of the pass
    int32_t *free_pages;           // stack
    int n_free_pages;
};

/* What the head is asked and answers, of all batches. */
struct head_tables {
    struct head_request *requests;     // [head_cap] of a pass
    struct head_result *results;       // likewise
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
    /* Written and read here; a device's results come back while the next pass begins, so that two
     * passes take turns. Without a device's own memory `seen` is the same. */
    struct head_tables heads[2];
    struct head_tables seen; // where ops read and write
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

/* Rows, pools and states, where the layout has them. edits_max: greatest sample_edits_max() of the
 * job; ring_bytes: as above. */
void batches_place(struct batches *b, const struct memory *memory, const struct plan *plan,
                   const struct shape *shape, const struct evict *evict, int edits_max,
                   int64_t ring_bytes);

/* The pass boundary of one batch. Ends the pass before (tokens taken become tokens done), requeues
 * lost rows, admits requests, and leaves spans, positions and hidden places of `pass`. */
enum err batch_refill(struct batches *b, int index, int64_t pass);

/* After the last slice: tokens and scores go to the job, finished rows leave. */
enum err batch_sample(struct batches *b, int index);

/* What the batch does in the pass that batch_refill() laid out. */
struct load batch_load(const struct batches *batches, const struct batch *batch);
/* Tokens of a pass, as far as is known: rows of batches that have not yet entered it take one each.
 */
int64_t batches_tokens(const struct batches *batches, int64_t pass);
/* Between two passes of the line, when it is left: all rows go back to the queue with the tokens
 * that they have. */
void batches_return(struct batches *batches);

/* Page slots of a row after the next n tokens of its pass. */
int batch_slots_after(const struct evict *evict, const struct row *row, int n);
/* The same in decoder layers of a kind: slots in use once n more tokens of a row are through one.
 */
int batch_kind_slots(const struct evict *evict, const struct row *row, int kind, int n);
/* 1: a row that may outgrow the context that its model was first made for: it turns by the table
 * for longer ones, from its first token on, so that its bytes depend on nothing but the request. */
int batch_turns_long(const struct shape *shape, const struct row *row);

/* Id of page `page` of row r in a decoder layer (from 0). */
int32_t batch_page_id(const struct plan *plan, const struct batch *batch, int layer, int r,
                      int page);
/* The next full page of the batch in a decoder layer, as it is before the tokens that rows have
 * taken last, or after them. 1; 0: no more. Begins with {.row = -1}. */
int batch_page_next(const struct batches *all, const struct batch *batch, int layer, int after,
                    struct row_page *p);

#endif
