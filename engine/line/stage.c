/* engine/line/stage.c - see stage.h.
 *
 * Note: a fetch for the next pass starts before admission, so it reads the pages of the old rows.
 * Compute uses the current page table only, and a page given to a new row is written before it is
 * read. */
#include "engine/line/stage.h"

#include <string.h>

#define BAD_MAX 64 // unreadable pieces before the run stops instead of recomputing

static struct batch *batch_of(struct engine *e, struct step s)
{
    return &e->batches.batch[s.batch];
}

enum err stage_fetch_weights(struct engine *e, struct step s)
{
    const int64_t most = e->config.plan.experts_few;
    const int64_t tokens = most > 0 ? batches_tokens(&e->batches, s.pass) : 0;
    return home_weights_fetch(&e->home, s.layer, tokens > 0 && tokens <= most, s.n);
}

enum err stage_fetch_kv(struct engine *e, struct step s)
{
    const struct batch *b = batch_of(e, s);
    struct row_page p = {.row = -1};
    if (!home_kv_tails(&e->home, s.layer - 1, s.batch))
        return OK;
    while (batch_page_next(&e->batches, b, s.layer - 1, s.pass != b->pass, &p))
        TRY(home_kv_want(&e->home, s.n, s.layer - 1, s.batch, &p));
    return home_kv_fetch(&e->home, s.n, s.layer - 1, s.batch);
}

/* Numbers of a batch's hidden states; after the last decoder layer: of the wanted positions. */
static int64_t hidden_numbers(const struct engine *e, const struct batch *b, int wanted_only)
{
    const struct shape *s = e->work.shape;
    return wanted_only ? b->n_positions * (int64_t)s->dim
                       : b->n_tokens * shape_before_part(s, N_PARTS);
}

enum err stage_fetch_hidden(struct engine *e, struct step s)
{
    const struct batch *b = batch_of(e, s);
    CHECK(b->pass == s.pass); // plan_check: no look-ahead past the write of these states
    return home_hidden_fetch(&e->home, s.n, s.batch, hidden_numbers(e, b, s.kind == STEP_SLICE));
}

/* The row's data on disk is unreadable. Discards this pass for the row and recomputes the row from
 * its tokens after the pass. Reports the text recorded last. */
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

/* Marks the rows of unreadable pages as lost. */
static enum err verify_pages(struct engine *e, struct step s, struct batch *b)
{
    struct row_page p = {.row = -1};
    while (batch_page_next(&e->batches, b, s.layer - 1, 0, &p)) {
        enum err err = home_kv_page(&e->home, s.n, p.id);
        if (err != OK && b->rows[p.row].n_take > 0)
            TRY(lose_row(e, &b->rows[p.row], err));
    }
    return OK;
}

/* OK, or why some number of this token of the batch is unreadable. */
static enum err token_came(const struct engine *e, struct step s, const struct batch *b,
                           int64_t token)
{
    const struct shape *shape = e->work.shape;
    enum err err = OK;
    for (int i = 0; i < N_PARTS && err == OK; i++) {
        const int64_t each = shape_part(shape, (enum hidden_part)i);
        const int64_t part = b->n_tokens * shape_before_part(shape, (enum hidden_part)i);
        err = home_hidden_came(&e->home, s.n, part + token * each, each);
    }
    return err;
}

/* Marks the rows of unreadable hidden states as lost; if the batch's first prompt is lost, so are
 * the prompts that share its prefix. */
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
            err = token_came(e, s, b, span->first + k);
        if (i == b->first_prompt)
            shared = err;
        if (err != OK && row->request)
            TRY(lose_row(e, row, err));
    }
    return OK;
}

/* The same after the last decoder layer, for the wanted positions. */
static enum err verify_positions(struct engine *e, struct step s, struct batch *b)
{
    if (!home_hidden_moves(&e->home, s.batch))
        return OK;
    for (int i = 0; i < b->n_positions; i++) {
        struct row *row = &b->rows[b->positions[i].row];
        const int64_t dim = e->work.shape->dim;
        enum err err = home_hidden_came(&e->home, s.n, i * dim, dim);
        if (err != OK && row->request)
            TRY(lose_row(e, row, err));
    }
    return OK;
}

/* Index of a queued step's own events and buffers. */
static int slot_of(const struct engine *e, int64_t step)
{
    return (int)(step % (e->config.plan.window + 1));
}

/* Host copy of the bitmap of pages that a step wrote; NULL: the bitmap itself is in RAM. */
static uint64_t *dirty_back(const struct engine *e, int64_t step)
{
    return slab_at(&e->dirty_back, slot_of(e, step));
}

/* Inputs of a step. */
struct inputs {
    const uint8_t *weights; // as fetched, then as ops read them
    float *hidden;
    struct layer_kv kv;
    const struct exchange *exchange; // part 1: the CPU's output
};

static enum err wait_kv(struct engine *e, struct step s, struct batch *b, struct layer_kv *kv)
{
    *kv = (struct layer_kv){.tails = home_kv_tails(&e->home, s.layer - 1, s.batch),
                            .tail_stride = home_kv_page_bytes(&e->home, s.layer - 1)};
    TRY(home_kv_get(&e->home, s.n, s.layer - 1, s.batch, &kv->pages));
    return kv->tails ? verify_pages(e, s, b) : OK;
}

/* Waits for the CPU's attention and keeps its bitmap of written pages until the step retires. */
static enum err wait_attention(struct engine *e, struct step s, const struct batch *b,
                               const struct exchange **x)
{
    const uint64_t *dirty;
    TRY(attender_wait(&e->attender, x, &dirty));
    memcpy(dirty_back(e, s.n), dirty, (size_t)b->n_rows * (size_t)e->work.rows.dirty_stride * 8);
    return OK;
}

/* Waits for all inputs but embedding rows; marks rows with unreadable inputs as lost. */
static enum err wait_inputs(struct engine *e, struct step s, struct batch *b, struct inputs *in)
{
    TRY(home_weights_get(&e->home, s.layer, s.n, &in->weights));
    if (s.kind == STEP_EMBED) {
        in->weights = gather_base(&e->gather);
        return OK;
    }
    TRY(home_hidden_get(&e->home, s.n, s.batch, b->first_token, &in->hidden));
    if (s.kind == STEP_SLICE)
        return verify_positions(e, s, b);
    if (b->n_tokens == 0)
        return OK;
    TRY(verify_hidden(e, s, b));
    return s.part == 1 ? wait_attention(e, s, b, &in->exchange) : wait_kv(e, s, b, &in->kv);
}

/* Decodes tiles after a layer's fetch, once per pass or once per run. */
static void decode_weights(struct engine *e, struct step s, struct inputs *in)
{
    const int first = s.batch == order_first(&e->order, s.pass) && s.part == 0;
    uint8_t *tiles = home_weights_tiles(&e->home, s.layer, first);
    if (tiles) {
        layer_tiles(&e->work, &e->config.model->layers[s.layer], in->weights,
                    &e->home.weights[s.layer].tiles, tiles);
        home_weights_decoded(&e->home, s.layer);
    }
    in->weights = home_weights_base(&e->home, s.layer, in->weights);
}

/* Hidden states from the rank before. */
static enum err take_hidden(struct engine *e, struct batch *b, float *hidden)
{
    const float *x;
    const int64_t start_ns = clock_ns();
    TRY(pipe_take(&e->pipe, b, &x));
    e->brought_ns += clock_ns() - start_ns;
    if (b->n_tokens > 0)
        ops_copy(&e->work.ops, hidden, x, (int64_t)b->n_tokens * e->work.shape->dim * 4);
    return OK;
}

/* Copies hidden states to where they are sent from once this step is done. */
static enum err pass_hidden(struct engine *e, const struct batch *b, const float *hidden)
{
    float *x;
    TRY(pipe_pass(&e->pipe, b, &x));
    if (b->n_tokens > 0)
        ops_copy(&e->work.ops, x, hidden, (int64_t)b->n_tokens * e->work.shape->dim * 4);
    return OK;
}

static enum err compute_embed(struct engine *e, struct step s, const struct inputs *in)
{
    struct batch *b = batch_of(e, s);
    float *hidden = NULL;
    if (e->pipe.peers && s.batch == order_first(&e->order, s.pass)) {
        const int64_t start_ns = clock_ns();
        TRY(pipe_sample(&e->pipe, s.pass));
        e->brought_ns += clock_ns() - start_ns;
    }
    if (job_live(e->config.job))
        TRY(batch_refill(&e->batches, s.batch, s.pass));
    if (!job_live(e->config.job)) // the walk ends before the next step, on every rank
        return OK;
    if (b->n_tokens > 0)
        e->passes = e->trace.first_pass + s.pass / plan_groups(&e->config.plan) + 1;
    if (e->config.loads)
        e->config.loads[s.batch] = batch_load(&e->batches, b);
    TRY(home_hidden_get(&e->home, s.n, s.batch, b->first_token, &hidden));
    if (!pipe_is_first(&e->pipe))
        return take_hidden(e, b, hidden);
    return layer_embed(&e->work, e->home.weights[0].layer, in->weights, &e->gather, b, s.n, hidden);
}

/* If rows attend on the CPU: part 0 ends before attention, part 1 begins after it. */
static void compute_part(struct engine *e, struct step s, const struct batch *b,
                         const struct inputs *in)
{
    const struct model_layer *l = e->home.weights[s.layer].layer;
    if (s.part == 1) {
        layer_after(&e->work, l, s.layer, b, in->weights, &e->attender.cross, in->exchange,
                    in->hidden);
        return;
    }
    struct attend_job job = {.step = s.n, .layer = s.layer, .batch = b, .kv = in->kv};
    const struct exchange *next = attender_exchange(&e->attender);
    layer_before(&e->work, l, s.layer, b, in->weights, &in->kv, in->hidden, &e->attender.cross,
                 next);
    attender_post(&e->attender, &job);
}

/* Called after the router: reads the missing experts; ops wait for them. */
enum err stage_bring_experts(void *ctx, int layer, const struct route *route)
{
    struct engine *e = ctx;
    int64_t start_ns = clock_ns();
    enum err err = home_experts_bring(&e->home, layer, route, e->n);
    e->brought_ns += clock_ns() - start_ns;
    return err;
}

static enum err compute_decode(struct engine *e, struct step s, const struct batch *b,
                               const struct inputs *in)
{
    const struct kv_rows *rows = &e->work.rows;
    const int last = s.layer == e->order.decoder && s.whole;
    if (last && b->n_tokens == 0 && !pipe_is_last(&e->pipe))
        return pass_hidden(e, b, NULL);
    if (b->n_tokens == 0)
        return OK;
    if (e->order.parts == 2)
        compute_part(e, s, b, in);
    else
        layer_decode(&e->work, e->home.weights[s.layer].layer, s.layer, b, in->weights, &in->kv,
                     in->hidden);
    if (e->order.parts == 1 && in->kv.tails && dirty_back(e, s.n)) // the host reads them
        ops_copy(&e->work.ops, dirty_back(e, s.n), rows->dirty,
                 (int64_t)b->n_rows * rows->dirty_stride * 8);
    if (last && !pipe_is_last(&e->pipe))
        TRY(pass_hidden(e, b, in->hidden));
    else if (last)
        layer_compact(&e->work, b, in->hidden);
    return e->work.err;
}

static void compute_slice(struct engine *e, struct step s, const struct batch *b,
                          const struct inputs *in)
{
    if (s.layer == e->order.decoder + 1)
        layer_head_start(&e->work, &e->batches, b);
    layer_slice(&e->work, e->home.weights[s.layer].layer, &e->batches, b, in->weights, in->hidden);
    if (s.layer == e->order.layers - 1)
        layer_head_end(&e->work, &e->batches, b);
}

static void trace_step(struct engine *e, struct step s, enum lane lane, int64_t start_ns,
                       int64_t end_ns)
{
    static const char *const names[] = {"embed", "layer", "slice"};
    trace_add(&e->trace, lane,
              (struct trace_event){.name = names[s.kind],
                                   .start_ns = start_ns,
                                   .end_ns = end_ns,
                                   .step = s.n,
                                   .bytes = -1,
                                   .layer = s.layer,
                                   .batch = s.batch});
}

enum err stage_compute(struct engine *e, struct step s)
{
    struct batch *b = batch_of(e, s);
    struct inputs in = {0};
    const struct device_api *device = e->stream->device->api;
    int slot = slot_of(e, s.n);
    tables_turn(&e->tables, s.n);
    TRY(wait_inputs(e, s, b, &in));
    int64_t start_ns = clock_ns();
    e->brought_ns = 0;
    device->record(e->stream, e->begun[slot]);
    decode_weights(e, s, &in);
    if (s.kind == STEP_EMBED)
        TRY(compute_embed(e, s, &in));
    else if (s.kind == STEP_DECODE)
        TRY(compute_decode(e, s, b, &in));
    else
        compute_slice(e, s, b, &in);
    device->record(e->stream, e->done[slot]);
    if (!e->config.plan.attn_cpu) // else the lane shows attention
        trace_step(e, s, LANE_CPU, start_ns + e->brought_ns, clock_ns());
    return OK;
}

/* Waits until a queued step is done; only then is its device time known. */
static enum err finish(struct engine *e, struct step s)
{
    const struct device_api *device = e->stream->device->api;
    int slot = slot_of(e, s.n);
    TRY(device->event_wait(e->stream, e->done[slot]));
    if (!e->config.plan.device)
        return OK;
    /* Step times come from the device's clock; the host's clock gives the end of step 0 only. */
    if (s.n == 0)
        e->done_ns = clock_ns();
    else
        e->done_ns += device->between_ns(e->done[slot_of(e, s.n - 1)], e->done[slot]);
    int64_t busy_ns = device->between_ns(e->begun[slot], e->done[slot]);
    trace_step(e, s, LANE_GPU, e->done_ns - busy_ns, e->done_ns);
    return OK;
}

/* Writes the full pages that the step changed to their homes. */
static enum err retire_kv(struct engine *e, struct step s, struct batch *b)
{
    const struct kv_rows *rows = &e->work.rows;
    const uint64_t *bits = dirty_back(e, s.n) ? dirty_back(e, s.n) : rows->dirty;
    const int moved = home_kv_tails(&e->home, s.layer - 1, s.batch) && b->n_tokens > 0;
    int64_t fetched = e->order.parts == 1 ? s.n : order_part0(&e->order, s); // claimed the frame
    struct row_page p = {.row = -1};
    while (moved && batch_page_next(&e->batches, b, s.layer - 1, 1, &p))
        if (bits[(int64_t)p.row * rows->dirty_stride + (p.page >> 6)] >> (p.page & 63) & 1)
            home_kv_dirty(&e->home, fetched, s.layer - 1, s.batch, &p);
    return home_kv_put(&e->home, fetched, s.layer - 1, s.batch);
}

enum err stage_retire(struct engine *e, struct step s)
{
    struct batch *b = batch_of(e, s);
    TRY(finish(e, s));
    if (s.batch == order_first(&e->order, s.pass) + e->order.batches - 1 && s.whole)
        home_weights_put(&e->home, s.layer);
    if (!s.whole) // the part only read the hidden states
        return home_hidden_put(&e->home, s.n, s.batch, 0, 0);
    if (s.kind == STEP_DECODE)
        TRY(retire_kv(e, s, b));
    int last = s.layer == e->order.decoder;
    TRY(home_hidden_put(&e->home, s.n, s.batch, hidden_numbers(e, b, s.kind == STEP_SLICE || last),
                        s.kind != STEP_SLICE && s.layer < e->order.layers - 1));
    if (s.kind == STEP_EMBED && !pipe_is_first(&e->pipe))
        pipe_used(&e->pipe);
    if (s.layer < e->order.layers - 1)
        return OK;
    if (e->pipe.peers)
        return pipe_is_last(&e->pipe) ? pipe_answer(&e->pipe, b) : pipe_send(&e->pipe, b);
    TRY(batch_sample(&e->batches, s.batch));
    return gather_ahead(&e->gather, b, s.n + e->order.batches);
}
