/* engine/line/gather.h - rows of the embedding, read by token id: layer 0 is gathered, not
 * streamed.
 *
 * Owns: read windows and their tickets. When the embedding is resident nothing is read at all.
 * Sampled tokens are asked for as soon as their batch has sampled (gather_ahead); tokens of prompts
 * are read in chunks that overlap: one chunk is decoded while the next is in flight. */
#ifndef ENGINE_LINE_GATHER_H
#define ENGINE_LINE_GATHER_H

#include "engine/line/batch.h"
#include "engine/line/home.h"
#include "engine/line/tables.h"

struct gather_set {           // windows that one ticket fills
    uint8_t *windows;         // [n_cap][window_bytes]
    struct segment *segments; // [n_cap]
    struct ticket ticket;
};

struct gather {
    struct home *home;         // borrowed
    const struct ops *ops;     // borrowed
    struct tables *tables;     // borrowed: offsets of rows
    const uint8_t *base;       // where all windows are; ops read them there, on a device as well
    int rows_cap;              // that one op decodes
    const struct model *model; // borrowed
    int64_t window_bytes;
    struct gather_set *ahead;  // [batches], a window a row
    struct gather_set *chunks; // [n_chunks] that take turns
    int n_chunks, chunk_cap;
    int64_t turn;
    uint8_t *rest;       // the embedding's extent after its rows (positions, project_in)
    int64_t rest_offset; // of `rest` within the extent
};

void gather_place(struct gather *g, const struct memory *memory, const struct plan *plan,
                  const struct model *model);
/* Where, in the embedding's extent, the part begins that is held in RAM because it is not gathered
 * (learned positions, project_in), cut at a piece so that its checksums hold; the extent's end when
 * there is no such part. */
int64_t gather_rest_offset(const struct model *model);
/* Reads the rest of the extent. ops: what decodes rows; borrowed, as tables are. */
enum err gather_open(struct gather *g, struct home *home, const struct ops *ops,
                     struct tables *tables);

/* Asks for the rows of the tokens that the batch's live rows will take next. */
enum err gather_ahead(struct gather *g, struct batch *batch, int64_t due);
/* x[i] = embedding row of the batch's i-th token of this pass, f32 [n_tokens, embed_dim]. */
enum err gather_tokens(struct gather *g, struct batch *batch, int64_t step, float *x);
/* Base pointer to use with model_weight / model_vector for tensors of the embedding but its rows;
 * NULL: it has no others. */
const uint8_t *gather_base(const struct gather *g);
/* x[i] += the learned position of the batch's i-th token, f32 [n_tokens, dim]. scratch: >=
 * gather_scratch_bytes(). */
void gather_positions(struct gather *g, const struct batch *batch, float *x, void *scratch);

#endif
