/* engine/line/stage.c - see stage.h.
 *
 * The fact a newcomer would miss: a fetch for the next pass is issued before it is known who leaves
 * and who enters. It brings the pages of yesterday's rows; compute trusts only the page table of
 * its own moment, and a page handed to a new row since is written before it is read. */
#include "engine/line/stage.h"

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
    if (e->config.plan.hidden_home != TIER_NVME)
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
    if (e->config.plan.hidden_home != TIER_NVME)
        return OK;
    for (int i = 0; i < b->n_positions; i++) {
        struct row *row = &b->rows[b->positions[i].row];
        enum err err = home_hidden_token(&e->home, s.n, i);
        if (err != OK && row->request)
            TRY(lose_row(e, row, err));
    }
    return OK;
}

static enum err compute_decode(struct engine *e, struct step s, struct batch *b, float *hidden,
                               const uint8_t *weights)
{
    int on_nvme = e->config.plan.kv_home == TIER_NVME;
    struct layer_kv kv = {0};
    TRY(verify_hidden(e, s, b));
    TRY(home_kv_get(&e->home, s.n, s.layer - 1, s.batch, &kv.pages));
    if (on_nvme)
        TRY(verify_pages(e, s, b));
    if (on_nvme) {
        kv.tails = home_kv_tail(&e->home, s.layer - 1, s.batch, 0);
        kv.tail_stride = (int64_t)e->order.decoder * e->home.kv.page_bytes;
    }
    layer_decode(&e->work, e->home.weights[s.layer].layer, s.layer, b, weights, &kv, hidden);
    if (on_nvme) { // full pages that this step has written go home
        batch_dirty(b, &e->work.rows, &e->pages);
        home_kv_dirty(&e->home, s.n, s.layer - 1, s.batch, &e->pages);
    }
    if (s.layer == e->order.decoder)
        layer_compact(&e->work, b, hidden);
    return OK;
}

static enum err compute_embed(struct engine *e, struct step s)
{
    struct batch *b = batch_of(e, s);
    float *hidden = NULL;
    TRY(batch_refill(&e->batches, s.batch, s.pass));
    TRY(home_hidden_get(&e->home, s.n, b->first_token, &hidden));
    return layer_embed(&e->work, &e->gather, b, s.n, hidden);
}

static enum err compute_slice(struct engine *e, struct step s, struct batch *b, const float *hidden,
                              const uint8_t *weights)
{
    TRY(verify_positions(e, s, b));
    layer_slice(&e->work, e->home.weights[s.layer].layer, &e->batches, b, weights, hidden);
    if (s.layer < e->order.layers - 1)
        return OK;
    const struct device_api *device = e->stream->device->api;
    device->record(e->stream, e->sampled);
    TRY(device->event_wait(e->stream, e->sampled)); // the host reads what the slices left
    TRY(batch_sample(&e->batches, s.batch));
    return gather_ahead(&e->gather, b, s.n + e->order.batches);
}

/* The layer's weights; those that are held as tiles are decoded when they first come. */
static enum err get_weights(struct engine *e, struct step s, const uint8_t **weights)
{
    TRY(home_weights_get(&e->home, s.layer, s.n, weights));
    uint8_t *tiles = home_weights_tiles(&e->home, s.layer);
    if (!tiles)
        return OK;
    layer_tiles(&e->work, &e->config.model->layers[s.layer], *weights,
                &e->home.weights[s.layer].tiles, tiles);
    home_weights_keep(&e->home, s.layer);
    *weights = tiles;
    return OK;
}

enum err stage_compute(struct engine *e, struct step s)
{
    if (s.pass < 0)
        return OK;
    static const char *const names[] = {"embed", "layer", "slice"};
    enum layer_kind kind = layer_kind(e, s.layer);
    struct batch *b = batch_of(e, s);
    const uint8_t *weights = NULL;
    float *hidden = NULL;
    TRY(get_weights(e, s, &weights));
    if (kind != LAYER_EMBED)
        TRY(home_hidden_get(&e->home, s.n, b->first_token, &hidden));
    int64_t start_ns = clock_ns();
    if (kind == LAYER_EMBED)
        TRY(compute_embed(e, s));
    else if (kind == LAYER_DECODE && b->n_tokens > 0)
        TRY(compute_decode(e, s, b, hidden, weights));
    else if (kind == LAYER_SLICE)
        TRY(compute_slice(e, s, b, hidden, weights));
    trace_add(&e->trace, LANE_CPU,
              (struct trace_event){.name = names[kind],
                                   .start_ns = start_ns,
                                   .end_ns = clock_ns(),
                                   .step = s.n,
                                   .bytes = -1,
                                   .layer = s.layer,
                                   .batch = s.batch});
    if (s.batch == e->order.batches - 1)
        home_weights_put(&e->home, s.layer);
    return OK;
}

enum err stage_retire(struct engine *e, struct step s)
{
    if (s.pass < 0)
        return OK;
    enum layer_kind kind = layer_kind(e, s.layer);
    struct batch *b = batch_of(e, s);
    if (kind == LAYER_DECODE)
        TRY(home_kv_put(&e->home, s.n, s.layer - 1, s.batch));
    int last = s.layer == e->order.decoder;
    int n = kind == LAYER_SLICE || last ? b->n_positions : b->n_tokens;
    return home_hidden_put(&e->home, s.n, s.batch, n, kind != LAYER_SLICE);
}
