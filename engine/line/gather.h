/* engine/line/gather.h - reads embedding rows by token id, instead of streaming layer 0.
 *
 * Owns: read windows and their tickets; unused when the embedding is resident. Rows of sampled
 * tokens are prefetched as soon as their batch has sampled (gather_ahead); rows of prompt tokens
 * are read in chunks: one chunk is decoded while the next is in flight. */
#ifndef ENGINE_LINE_GATHER_H
#define ENGINE_LINE_GATHER_H

#include "engine/line/batch.h"
#include "engine/line/home.h"
#include "engine/line/tables.h"

struct gather_set {           // windows that one ticket reads
    uint8_t *windows;         // [n_cap][window_bytes]
    struct segment *segments; // [n_cap]
    struct ticket ticket;
};

struct gather {
    struct home *home;         // borrowed
    const struct ops *ops;     // borrowed
    struct tables *tables;     // borrowed: holds the offsets of rows
    const uint8_t *base;       // base of all windows, as ops see them (on a device too)
    int rows_cap;              // most rows that one op decodes
    const struct model *model; // borrowed
    int64_t window_bytes;
    struct gather_set *ahead;  // [batches], one window per row
    struct gather_set *chunks; // [n_chunks], used in turn
    int n_chunks, chunk_cap;
    int64_t turn;
    uint8_t *rest;       // the embedding's extent after its rows (positions, project_in), in RAM
    int64_t rest_offset; // offset of `rest` within the extent
};

/* Carves the windows. */
void gather_place(struct gather *g, struct carve *c);
/* Offset in the embedding's extent of the part that is read into RAM because it is not gathered
 * (learned positions, project_in), rounded down to a piece so that checksums apply; the extent's
 * size if there is no such part. */
int64_t gather_rest_offset(const struct model *model);
/* Reads `rest`. ops decodes the rows; ops and tables are borrowed. */
enum err gather_open(struct gather *g, struct home *home, const struct ops *ops,
                     struct tables *tables);

/* Prefetches the embedding rows of the next tokens of the batch's live rows. */
enum err gather_ahead(struct gather *g, struct batch *batch, int64_t due);
/* Where rows of the batch's tokens go, f32 [n_tokens, numbers of a row]: those of ROLE_EMBED, and,
 * if the model has it, of ROLE_INPUTS_EMBED. */
struct gathered {
    float *embed, *inputs;
};
/* Decodes the rows of the batch's tokens of this pass. */
enum err gather_tokens(struct gather *g, struct batch *batch, int64_t step,
                       const struct gathered *to);
/* Base pointer for model_weight / model_vector of the embedding's tensors other than its rows;
 * NULL: there are none. */
const uint8_t *gather_base(const struct gather *g);
/* x[i] += the learned position of the batch's i-th token, f32 [n_tokens, dim]. scratch: >=
 * gather_scratch_bytes(). */
void gather_positions(struct gather *g, const struct batch *batch, float *x, void *scratch);

#endif
