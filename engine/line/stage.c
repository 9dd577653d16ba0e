/* engine/line/stage.c - see stage.h.
 *
 * The fact a newcomer would miss: a fetch for the next pass is issued before it is known who leaves
 * and who enters. It brings the pages of yesterday's rows; compute trusts only the page table of
 * its own moment, and a page handed to a new row since is written before it is read. */
#include "engine/line/stage.h"

#include <string.h>

#define BAD_MAX 64 // pieces that could not be had before the run stops instead of recomputing

enum layer_kind { LAYER_EMBED, LAYER_DECODE, LAYER_SLICE };

static enum layer_kind layer_kind(const struct engine *e, int layer)
{
    if (layer == 0)
        return LAYER_EMBED;
    return layer <= e->order.decoder ? LAYER_DECODE : LAYER_SLICE;
}

static struct batch *batch_of(struct engine *e, struct step s)
{
    return &e->batches.batch[s.batch];
}

enum err stage_fetch_weights(struct engine *e, struct step s)
{
    if (s.pass < 0 || s.batch != 0 || s.part != 0)
        return OK;
    return home_weights_fetch(&e->home, s.layer, s.n);
}

enum err stage_fetch_kv(struct engine *e, struct step s)
{
    if (s.pass < 0 || layer_kind(e, s.layer) != LAYER_DECODE || s.part != 0)
        return OK;
    batch_pages(batch_of(e, s), s.pass, &e->pages);
    return home_kv_fetch(&e->home, s.n, s.layer - 1, s.batch, &e->pages);
}

/* Tokens whose hidden states a step reads: after the last decoder layer only wanted positions go
 * on. */
static int hidden_tokens(const struct engine *e, const struct batch *b, int layer)
{
    return layer_kind(e, layer) == LAYER_SLICE ? b->n_positions : b->n_tokens;
}

enum err stage_fetch_hidden(struct engine *e, struct step s)
{
    if (s.pass < 0 || s.layer == 0)
        return OK;
    const struct batch *b = batch_of(e, s);
    CHECK(b->pass == s.pass); // plan_check: no look-ahead across the write of these states
    return home_hidden_fetch(&e->home, s.n, s.batch, hidden_tokens(e, b, s.layer));
}

/* What stood on disk of the row cannot be had: it is computed again from its tokens after this
 * pass, and nothing of this pass is its answer. The sentence is the one recorded last. */
static enum err lose_row(struct engine *e, struct row *row, enum err cause)
{
    if (row->lost)
        return OK;
    struct mover_repairs repairs;
    mover_repairs(e->home.mover, &repairs);
    if (repairs.bad > BAD_MAX)
        return cause;
    row->lost = 1;
    e->rows_lost++;
    log_line(LOG_WARN, "%s; row %lld will be computed again", err_text(),
             (long long)row->request->index);
    return OK;
}

/* Pages that did not come back as they were written lose their rows. */
static enum err verify_pages(struct engine *e, struct step s, struct batch *b)
{
    batch_pages(b, s.pass, &e->pages);
    enum err err = home_kv_lost(&e->home, s.n, &e->pages);
    for (int i = 0; i < e->pages.n; i++)
        for (int r = 0; r < b->n_rows; r++) {
            struct row *row = &b->rows[r];
            if (row->request && row->request->index == e->pages.owners[i] && row->n_take > 0)
                TRY(lose_row(e, row, err));
        }
    return OK;
}

/* Hidden states that did not come back as they were written lose their rows; the batch's first
 * prompt takes those along that share its K and V. */
static enum err verify_hidden(struct engine *e, struct step s, struct batch *b)
{
    enum err shared = OK;
    if (!home_hidden_moves(&e->home, s.batch))
        return OK;
    for (int i = 0; i < b->n_spans; i++) {
        const struct span *span = &b->spans[i];
        struct row *row = &b->rows[span->row];
        enum err err = span->kind == SPAN_PROMPT && span->pos > 0 ? shared : OK;
        for (int k = 0; k < span->n && err == OK; k++)
            err = home_hidden_token(&e->home, s.n, span->first + k);
        if (i == b->first_prompt)
            shared = err;
        if (err != OK && row->request)
            TRY(lose_row(e, row, err));
    }
    return OK;
}

/* The same behind the last decoder layer, where only wanted positions go on. */
static enum err verify_positions(struct engine *e, struct step s, struct batch *b)
{
    if (!home_hidden_moves(&e->home, s.batch))
        return OK;
    for (int i = 0; i < b->n_positions; i++) {
        struct row *row = &b->rows[b->positions[i].row];
        enum err err = home_hidden_token(&e->home, s.n, i);
        if (err != OK && row->request)
            TRY(lose_row(e, row, err));
    }
    return OK;
}

/* What a step in flight has to itself. */
static int slot_of(const struct engine *e, int64_t step)
{
    return (int)(step % (e->config.plan.window + 1));
}

/* Where the bits of the pages that a step wrote come back to; NULL: they are in RAM. */
static uint64_t *dirty_back(const struct engine *e, int64_t step)
{
    return memory_at(&e->home.memory, LAYOUT_DIRTY_BACK, slot_of(e, step));
}

/* Where the rows' pages are, those that came back wrong set aside. */
static enum err get_kv(struct engine *e, struct step s, struct batch *b, struct layer_kv *kv)
{
    *kv = (struct layer_kv){.tails = home_kv_tails(&e->home, s.layer - 1, s.batch),
                            .tail_stride = e->home.kv.page_bytes};
    TRY(home_kv_get(&e->home, s.n, s.layer - 1, s.batch, &kv->pages));
    return kv->tails ? verify_pages(e, s, b) : OK;
}

/* Layers in two parts: the device's, up to where rows attend, ... */
static enum err compute_before(struct engine *e, struct step s, struct batch *b, float *hidden,
                               const uint8_t *weights)
{
    struct attend_job job = {.step = s.n, .layer = s.layer, .batch = b};
    TRY(verify_hidden(e, s, b));
    TRY(get_kv(e, s, b, &job.kv));
    layer_before(&e->work, e->home.weights[s.layer].layer, b, weights, hidden,
                 attender_exchange(&e->attender));
    attender_post(&e->attender, &job);
    return OK;
}

/* ... and from there on, once the CPU is through. */
static enum err compute_after(struct engine *e, struct step s, struct batch *b, float *hidden,
                              const uint8_t *weights)
{
    const struct exchange *x;
    const uint64_t *dirty;
    TRY(verify_hidden(e, s, b));
    TRY(attender_wait(&e->attender, &x, &dirty));
    memcpy(dirty_back(e, s.n), dirty, (size_t)b->n_rows * (size_t)e->work.rows.dirty_stride * 8);
    layer_after(&e->work, e->home.weights[s.layer].layer, b, weights, x, hidden);
    if (s.layer == e->order.decoder)
        layer_compact(&e->work, b, hidden);
    return OK;
}

static enum err compute_decode(struct engine *e, struct step s, struct batch *b, float *hidden,
                               const uint8_t *weights)
{
    struct layer_kv kv;
    TRY(verify_hidden(e, s, b));
    TRY(get_kv(e, s, b, &kv));
    layer_decode(&e->work, e->home.weights[s.layer].layer, s.layer, b, weights, &kv, hidden);
    if (kv.tails && dirty_back(e, s.n)) // the host reads which pages were written
        ops_copy(&e->work.ops, dirty_back(e, s.n), e->work.rows.dirty,
                 (int64_t)b->n_rows * e->work.rows.dirty_stride * 8);
    if (s.layer == e->order.decoder)
        layer_compact(&e->work, b, hidden);
    return OK;
}

static enum err compute_embed(struct engine *e, struct step s, const uint8_t *weights)
{
    struct batch *b = batch_of(e, s);
    float *hidden = NULL;
    TRY(batch_refill(&e->batches, s.batch, s.pass));
    if (b->n_tokens > 0)
        e->passes = s.pass + 1;
    TRY(home_hidden_get(&e->home, s.n, s.batch, b->first_token, &hidden));
    return layer_embed(&e->work, e->home.weights[0].layer, weights, &e->gather, b, s.n, hidden);
}

static enum err compute_slice(struct engine *e, struct step s, struct batch *b, const float *hidden,
                              const uint8_t *weights)
{
    TRY(verify_positions(e, s, b));
    if (s.layer == e->order.decoder + 1)
        layer_head_start(&e->work, &e->batches, b);
    layer_slice(&e->work, e->home.weights[s.layer].layer, &e->batches, b, weights, hidden);
    if (s.layer == e->order.layers - 1)
        layer_head_end(&e->work, &e->batches, b);
    return OK;
}

/* The layer's weights, as ops read them: tiles are decoded behind what brings a layer, once a pass
 * or once for all. */
static enum err get_weights(struct engine *e, struct step s, const uint8_t **weights)
{
    TRY(home_weights_get(&e->home, s.layer, s.n, weights));
    if (s.layer == 0)
        *weights = gather_base(&e->gather);
    uint8_t *tiles = home_weights_tiles(&e->home, s.layer, s.batch == 0 && s.part == 0);
    if (tiles)
        layer_tiles(&e->work, &e->config.model->layers[s.layer], *weights,
                    &e->home.weights[s.layer].tiles, tiles);
    *weights = home_weights_base(&e->home, s.layer, *weights);
    return OK;
}

static void trace_step(struct engine *e, struct step s, enum lane lane, int64_t start_ns,
                       int64_t end_ns)
{
    static const char *const names[] = {"embed", "layer", "slice"};
    trace_add(&e->trace, lane,
              (struct trace_event){.name = names[layer_kind(e, s.layer)],
                                   .start_ns = start_ns,
                                   .end_ns = end_ns,
                                   .step = s.n,
                                   .bytes = -1,
                                   .layer = s.layer,
                                   .batch = s.batch});
}

enum err stage_compute(struct engine *e, struct step s)
{
    if (s.pass < 0)
        return OK;
    enum layer_kind kind = layer_kind(e, s.layer);
    struct batch *b = batch_of(e, s);
    const uint8_t *weights = NULL;
    float *hidden = NULL;
    tables_turn(&e->tables, s.n);
    TRY(get_weights(e, s, &weights));
    if (kind != LAYER_EMBED)
        TRY(home_hidden_get(&e->home, s.n, s.batch, b->first_token, &hidden));
    int64_t start_ns = clock_ns();
    if (kind == LAYER_EMBED)
        TRY(compute_embed(e, s, weights));
    else if (kind == LAYER_DECODE && b->n_tokens > 0)
        TRY((e->order.parts == 1 ? compute_decode
             : s.part == 0       ? compute_before
                                 : compute_after)(e, s, b, hidden, weights));
    else if (kind == LAYER_SLICE)
        TRY(compute_slice(e, s, b, hidden, weights));
    int slot = slot_of(e, s.n);
    e->queued_ns[slot] = start_ns;
    e->stream->device->api->record(e->stream, e->done[slot]);
    if (!e->config.plan.attn_cpu) // else that lane is attention's
        trace_step(e, s, LANE_CPU, start_ns, clock_ns());
    return OK;
}

/* Waits until a queued step is done; what it took of the device is known only then. */
static enum err finish(struct engine *e, struct step s)
{
    int slot = slot_of(e, s.n);
    TRY(e->stream->device->api->event_wait(e->stream, e->done[slot]));
    if (!e->config.plan.device)
        return OK;
    int64_t start_ns = max_i64(e->queued_ns[slot], e->done_ns);
    e->done_ns = clock_ns();
    trace_step(e, s, LANE_GPU, start_ns, e->done_ns);
    return OK;
}

/* Full pages that the step has written go home. */
static enum err retire_kv(struct engine *e, struct step s, struct batch *b)
{
    const struct kv_rows *rows = &e->work.rows;
    const uint64_t *bits = dirty_back(e, s.n);
    int64_t fetched = e->order.parts == 1 ? s.n : order_part0(&e->order, s); // took the frame
    if (home_kv_tails(&e->home, s.layer - 1, s.batch) && b->n_tokens > 0) {
        batch_dirty(b, bits ? bits : rows->dirty, rows->dirty_stride, &e->pages);
        home_kv_dirty(&e->home, fetched, s.layer - 1, s.batch, &e->pages);
    }
    return home_kv_put(&e->home, fetched, s.layer - 1, s.batch);
}

enum err stage_retire(struct engine *e, struct step s)
{
    if (s.pass < 0)
        return OK;
    enum layer_kind kind = layer_kind(e, s.layer);
    struct batch *b = batch_of(e, s);
    TRY(finish(e, s));
    int whole = kind != LAYER_DECODE || s.part == e->order.parts - 1; // its last part
    if (s.batch == e->order.batches - 1 && whole)
        home_weights_put(&e->home, s.layer);
    if (!whole) // it only read them
        return home_hidden_put(&e->home, s.n, s.batch, 0, 0);
    if (kind == LAYER_DECODE)
        TRY(retire_kv(e, s, b));
    int last = s.layer == e->order.decoder;
    int n = kind == LAYER_SLICE || last ? b->n_positions : b->n_tokens;
    TRY(home_hidden_put(&e->home, s.n, s.batch, n, kind != LAYER_SLICE));
    if (s.layer < e->order.layers - 1)
        return OK;
    TRY(batch_sample(&e->batches, s.batch));
    return gather_ahead(&e->gather, b, s.n + e->order.batches);
}
