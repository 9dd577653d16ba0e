/* engine/line/engine.c - see engine.h: open, the main loop, close. */
#include "engine/line/engine.h"

#include <stdio.h>
#include <string.h>

#include "engine/line/stage.h"

/* Carves all that a plan takes: first what every pass uses, then what stays for the job. */
static void place(struct engine *e, struct carve *c)
{
    const struct plan *p = c->plan;
    const int in_flight = p->device ? p->window + 1 : 1;
    home_place(&e->home, c);
    batches_place(&e->batches, c);
    pipe_place(&e->pipe, c);
    layer_place_rows(&e->work, c);
    gather_place(&e->gather, c);
    layer_place(&e->work, c);
    if (p->attn_cpu)
        attender_place(&e->attender, c, &e->work);
    tables_place(&e->tables, c, ARENA_PINNED, in_flight);
    if (p->device)
        e->dirty_back = CARVE_SLAB(c, workspace, ARENA_PINNED, in_flight,
                                   (int64_t)p->batch * e->work.rows.dirty_stride * 8);
    layer_place_head(&e->work, c);
    memcpy(c->busy, c->end, sizeof c->busy);
    home_place_stays(&e->home, c);
}

void engine_measure(const struct setting *set, const struct plan *plan, struct plan_bytes *bytes)
{
    struct engine e = {0};
    struct carve c = {.plan = plan, .set = set, .bytes = bytes};
    place(&e, &c);
}

/* Measures the plan, takes that much, and carves it. */
static enum err take(struct engine *e, const struct home_config *config)
{
    struct plan_bytes bytes = {0};
    struct carve c = {.plan = &e->config.plan, .set = &e->config.set, .bytes = &bytes};
    place(e, &c);
    const struct carve all = c;
    TRY(home_take(&e->home, config, &c));
    place(e, &c);
    CHECK(memcmp(c.end, all.end, sizeof c.end) == 0);
    return OK;
}

/* Prepares one matrix, in the device memory that later holds weights. */
static enum err prepare_matrix(struct engine *e, const struct model_tensor *t, int n, int m)
{
    const struct device_library *library = e->config.device->api->library;
    const struct weight w = {.dtype = t->dtype, .n = n, .k = t->k, .layout = t->layout};
    if (n == 0)
        return OK;
    const struct tier *memory = &e->home.tiers[TIER_DEVICE];
    return library->prepare(e->stream, &w, m, memory->base, memory->n_bytes);
}

/* Prepares the library's matmuls for every matrix of the model, at every size that layers use. The
 * device's memory is still unused here. */
static enum err prepare_matmuls(struct engine *e)
{
    const struct engine_config *c = &e->config;
    for (int layer = 0; layer < c->model->n_layers; layer++) {
        struct model_layer tiles;
        model_layer_tiles(&c->model->layers[layer], c->device, c->ops.compute, &tiles);
        for (int role = 0; role < N_ROLES; role++) {
            const struct model_tensor *t = &tiles.tensors[role];
            if (t->n == 0 || role_kind(role) != ROLE_IS_PANELS || role_is_choice(role) ||
                role_is_heads(role) ||
                role_is_experts(&c->model->shape, role)) // own kernels compute these
                continue;
            if (role != ROLE_HEAD) {
                TRY(prepare_matrix(e, t, t->n, c->plan.tile_tokens));
                continue;
            }
            TRY(prepare_matrix(e, t, t->n < HEAD_TILE ? 0 : HEAD_TILE, c->plan.tile_positions));
            TRY(prepare_matrix(e, t, t->n % HEAD_TILE, c->plan.tile_positions));
        }
    }
    return OK;
}

/* Opens memory, files and the mover of a plan. */
static enum err open_line(struct engine *e)
{
    const struct engine_config *c = &e->config;
    e->order = plan_order(&c->plan);
    e->trace.pass_steps = order_pass_steps(&e->order) * plan_groups(&c->plan);
    e->trace.first_pass = e->passes;
    const struct device_api *device = c->device->api;
    CHECK(c->plan.device == !device->unified);
    if ((c->dump_path || c->kv_trace_path) && c->plan.device)
        return fail(ERR_USAGE, "--kv-%s: works on the CPU only (add --device cpu)",
                    c->dump_path ? "dump" : "trace");
    TRY(device->stream_open(c->device, &e->stream));
    for (int i = 0; i <= c->plan.window; i++) {
        TRY(device->event_open(c->device, &e->begun[i]));
        TRY(device->event_open(c->device, &e->done[i]));
    }
    e->work.ops = c->ops;
    e->work.ops.stream = e->stream;
    const struct shape *s = &c->model->shape;
    for (int wide = 0; wide <= (s->wide_head_dim > 0); wide++) {
        struct layer_layouts *of = &e->work.layouts[wide];
        model_kv_layout(s, wide, kv_page_format(c->kv_format), &of->pages);
        engine_ring_layout(s, wide, c->kv_format, &of->ring);
        engine_prompt_layout(s, wide, c->ops.compute, &of->prompt);
    }
    struct home_config home = {.plan = &c->plan,
                               .model = c->model,
                               .codec = c->codec,
                               .compute = c->ops.compute,
                               .kv_format = kv_page_format(c->kv_format),
                               .device = c->device,
                               .numa_node = c->numa_node,
                               .shared_fd = c->shared_fd,
                               .offload_dir = c->offload_dir,
                               .interrupted = c->interrupted,
                               .io = c->io,
                               .io_depth = c->io_depth,
                               .trace = &e->trace,
                               .ops = &e->work.ops};
    TRY(take(e, &home));
    TRY(home_open(&e->home, &home));
    if (c->ops.matmul != MATMUL_OWN)
        TRY(prepare_matmuls(e));
    for (int tier = 0; tier < N_TIERS; tier++)
        e->peak_bytes[tier] = max_i64(e->peak_bytes[tier], e->home.tiers[tier].n_bytes);
    e->work.model = c->model;
    e->work.tables = &e->tables;
    e->work.bring = c->plan.experts_few > 0 ? stage_bring_experts : NULL;
    e->work.bring_ctx = e;
    e->batches.job = c->job;
    e->batches.stops = c->stops;
    e->batches.n_stops = c->n_stops;
    pipe_open(&e->pipe, c->peers, c->interrupted, &e->batches, s->dim);
    TRY(layer_open(&e->work, e->done[0]));
    TRY(gather_open(&e->gather, &e->home, &e->work.ops, &e->tables));
    if (c->plan.attn_cpu)
        TRY(attender_open(&e->attender, e->stream, &e->trace));
    if (c->dump_path || c->kv_trace_path) {
        const struct dump_config dump = {.dump_path = c->dump_path,
                                         .trace_path = c->kv_trace_path,
                                         .score = evict_rule_of(c->set.evict->policy)};
        if (!e->dump.file && !e->dump.trace) // after a change of plan both files continue
            TRY(dump_open(&e->dump, &dump));
        e->work.dump = dump_kv;
        e->work.dump_ctx = &e->dump;
    }
    return OK;
}

enum err engine_open(struct engine *e, const struct engine_config *config)
{
    memset(e, 0, sizeof *e);
    e->config = *config;
    TRY(job_begin(e->config.job)); // reads while memory and files are opened
    TRY(trace_open(&e->trace, e->config.trace_events));
    return open_line(e);
}

/* Reasons to stop before the job is done. */
static enum err check_stop(const struct engine *e)
{
    if (e->config.interrupted && *e->config.interrupted)
        return fail(ERR_STOPPED, "interrupted; the same command resumes");
    double elapsed_s = (double)(clock_ns() - e->start_ns) * 1e-9;
    if (e->config.time_limit_s <= 0 || elapsed_s < e->config.time_limit_s)
        return OK;
    if (e->passes > 1 || e->n >= order_pass_steps(&e->order))
        return fail(ERR_STOPPED, "--time-limit reached; the same command resumes");
    return fail(ERR_STOPPED,
                "--time-limit reached before the first pass ended; the same command resumes, but "
                "runs this short make little or no progress (a --time-limit of several passes)");
}

/* Between steps: the progress line, failed transfers, reasons to stop. */
static enum err between_steps(struct engine *e)
{
    if (e->config.tick)
        e->config.tick(e->config.tick_ctx);
    TRY(mover_failed(e->home.mover));
    return check_stop(e);
}

/* Retires all queued steps, so that nothing of the finished pass is in flight, and requeues the
 * rows. */
static enum err leave(struct engine *e)
{
    struct step s;
    while (walk_left(&e->walk, &s))
        TRY(stage_retire(e, s));
    TRY(job_pass_end(e->config.job, 0));
    batches_return(&e->batches);
    e->left = job_live(e->config.job);
    return OK;
}

/* The job is done. In a pipeline the steps that are still queued have messages to send. */
static enum err finish_line(struct engine *e)
{
    struct step s;
    while (e->pipe.peers && walk_left(&e->walk, &s))
        TRY(stage_retire(e, s));
    return pipe_end(&e->pipe);
}

static enum err walk(struct engine *e)
{
    walk_begin(&e->walk, &e->config.plan, 0);
    for (;;) {
        struct step s;
        enum walk_event event = walk_next(&e->walk, &s);
        switch (event) {
        case WALK_RETIRE:
            TRY(stage_retire(e, s)); // KV and hidden states go to their homes, tokens to the job
            break;
        case WALK_PASS_END:
        case WALK_GO_ON:
            e->n = e->walk.n;
            if (!job_live(e->config.job))
                return finish_line(e);
            if (event == WALK_PASS_END)
                TRY(job_pass_end(e->config.job, 0)); // the tokens of the pass become durable
            TRY(between_steps(e));
            if (event == WALK_PASS_END && e->config.leave &&
                e->config.leave(e->config.leave_ctx, e))
                return leave(e);
            break;
        case WALK_FETCH_WEIGHTS:
            TRY(stage_fetch_weights(e, s)); // extent -> frame
            break;
        case WALK_FETCH_KV:
            TRY(stage_fetch_kv(e, s));
            break;
        case WALK_FETCH_HIDDEN:
            TRY(stage_fetch_hidden(e, s));
            break;
        case WALK_COMPUTE:
            TRY(stage_compute(e, s)); // one layer of one batch
            break;
        }
    }
}

enum err engine_run(struct engine *e)
{
    e->start_ns = e->start_ns ? e->start_ns : clock_ns();
    e->left = 0;
    enum err err = walk(e);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    if (err == ERR_STOPPED) { // keeps what this pass has sampled so far, from verified bytes
        enum err kept = job_pass_end(e->config.job, 1);
        err = kept == OK ? err : kept;
        if (kept != OK)
            snprintf(text, sizeof text, "%s", err_text());
    }
    home_drain(&e->home); // pending tickets belong to steps that will not run; ignore their errors
    e->end_ns = clock_ns();
    struct mover_repairs repairs;
    mover_repairs(e->home.mover, &repairs);
    e->repairs.repaired += repairs.repaired;
    e->repairs.bad += repairs.bad;
    return err == OK ? OK : fail(err, "%s", text);
}

static void close_line(struct engine *e)
{
    attender_stop(&e->attender);
    if (e->config.device) { // else it was never opened
        e->config.device->api->stream_close(e->stream);
        for (int i = 0; i <= PLAN_WINDOW_MAX; i++) {
            e->config.device->api->event_close(e->begun[i]);
            e->config.device->api->event_close(e->done[i]);
        }
    }
    attender_close(&e->attender);
    home_close(&e->home);
}

void engine_give_back(struct engine *e)
{
    close_line(e);
    const struct batches *b = &e->batches;
    struct engine next = {.trace = e->trace,
                          .dump = e->dump,
                          .passes = e->passes,
                          .start_ns = e->start_ns,
                          .repairs = e->repairs,
                          .rows_lost = e->rows_lost,
                          .batches = {.requeued = b->requeued,
                                      .evicted_slots = b->evicted_slots,
                                      .shared_tokens = b->shared_tokens}};
    memcpy(next.peak_bytes, e->peak_bytes, sizeof next.peak_bytes);
    *e = next;
}

enum err engine_again(struct engine *e, const struct engine_config *config)
{
    e->config = *config;
    return open_line(e);
}

void engine_close(struct engine *e)
{
    close_line(e);
    trace_close(&e->trace);
    if (dump_close(&e->dump) != OK)
        log_line(LOG_WARN, "%s", err_text());
    memset(e, 0, sizeof *e);
}
