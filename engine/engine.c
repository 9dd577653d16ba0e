/* engine/engine.c - see engine.h: opening, THE loop, closing. */
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/stage.h"

static void carve(void *ctx, struct arena *arena)
{
    struct engine *e = ctx;
    const struct engine_config *c = &e->config;
    batches_carve(&e->batches, arena, &c->plan, &c->model->shape, &c->evict, c->edits_max,
                  c->filters, e->work.ring_bytes);
    e->work.meta_cap = e->batches.meta_cap;
    gather_carve(&e->gather, arena, &c->plan, c->model);
    layer_carve(&e->work, arena, &c->plan, c->model, &c->evict, c->tokens_max);
    e->page_list = ARENA_ARRAY(arena, int32_t, c->plan.pages_batch);
    e->page_rows = ARENA_ARRAY(arena, int64_t, c->plan.pages_batch);
}

static void dump_line(FILE *f, const struct row *row, int layer, int head)
{
    const struct request *r = row->request;
    fputs("{\"row\":\"", f);
    for (int64_t i = 0; i < r->n_custom_id; i++) {
        unsigned char c = (unsigned char)r->custom_id[i];
        if (c < 0x20 || c == '"' || c == '\\')
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fprintf(f, "\",\"layer\":%d,\"head\":%d,", layer, head);
}

/* --kv-dump: positions kept after a prompt, then each victim with its position and score. */
static void dump_kv(void *ctx, const struct row *row, int layer, const struct kv_row *kv, int pos,
                    int n, const struct evict_event *events)
{
    struct engine *e = ctx;
    int heads = e->config.model->shape.n_kv_heads;
    for (int head = 0; head < heads; head++) {
        if (!events) {
            const int32_t *kept =
                kv->slot_pos ? kv->slot_pos + (int64_t)head * kv->slots_cap : NULL;
            dump_line(e->dump, row, layer, head);
            fputs("\"kept\":[", e->dump);
            const char *comma = "";
            for (int s = 0; s < kv->n_slots; s++)
                if (!kept || kept[s] >= 0) {
                    fprintf(e->dump, "%s%d", comma, kept ? kept[s] : s);
                    comma = ",";
                }
            for (int s = n - kv_ring_used(kv, n); s < n; s++) { // the ring: its last tokens
                fprintf(e->dump, "%s%d", comma, s);
                comma = ",";
            }
            fputs("]}\n", e->dump);
            continue;
        }
        for (int i = 0; i < n; i++) {
            const struct evict_event *v = &events[(int64_t)i * heads + head];
            if (v->pos < 0)
                continue;
            dump_line(e->dump, row, layer, head);
            fprintf(e->dump, "\"pos\":%d,\"victim\":%d,\"score\":%.9g}\n", pos + i, v->pos,
                    (double)v->score);
        }
    }
}

/* Bytes of a layer held as tiles; 0 when it is stored so. */
static int64_t tile_bytes(const struct model_layer *l, enum compute compute)
{
    struct model_layer tiles;
    model_layer_tiles(l, compute, &tiles);
    for (int role = 0; role < N_ROLES; role++)
        if (tiles.tensors[role].n > 0 && tiles.tensors[role].dtype != l->tensors[role].dtype)
            return tiles.n_bytes;
    return 0;
}

void engine_weights_info(const struct model *model, enum compute compute, struct weights_info *w)
{
    const struct shape *s = &model->shape;
    memset(w, 0, sizeof *w);
    w->n_layers = model->n_layers;
    w->n_decoder = s->n_layers;
    w->n_params = model->n_params;
    for (int layer = 0; layer < model->n_layers; layer++)
        w->layer_bytes[layer] = model->layers[layer].n_bytes;
    for (int layer = 1; layer < model->n_layers; layer++)
        w->tile_bytes[layer] = tile_bytes(&model->layers[layer], compute);
    int64_t heads = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    int64_t mlp = (s->act == ACT_SILU_GATED ? 3 : 2) * (int64_t)s->ffn_dim * s->dim;
    w->flops_per_token = 2 * s->n_layers * (s->dim * (2 * heads + 2 * kv) + mlp) +
                         2 * (int64_t)s->vocab * s->embed_dim;
    const struct model_tensor *t = &model->layers[0].tensors[ROLE_EMBED];
    w->embed_row_bytes = dtype_row_bytes(t->dtype, t->k);
    w->embed_rest_bytes = model->layers[0].n_bytes - gather_rest_offset(model);
}

static enum kv_format prompt_format(enum compute compute)
{
    return compute == COMPUTE_F32 ? KV_F32 : KV_BF16;
}

/* Bytes of one row's ring in one layer; its layout. 0 unless the format has rings. */
static int64_t ring_layout(const struct shape *s, enum kv_format format, struct kv_layout *ring)
{
    kv_layout_init(ring, KV_Q8, s->n_kv_heads, s->head_dim);
    return format == KV_MIXED ? KV_RING_PAGES * ring->page_bytes : 0;
}

void engine_costs(const struct model *model, const struct ops *ops, enum kv_format kv_format,
                  const struct work *work, const struct evict *evict, struct plan_costs *costs)
{
    struct kv_layout kv, prompt, ring;
    const struct shape *s = &model->shape;
    kv_layout_init(&kv, kv_page_format(kv_format), s->n_kv_heads, s->head_dim);
    costs->kv_ring_bytes = ring_layout(s, kv_format, &ring);
    kv_layout_init(&prompt, prompt_format(ops->compute), s->n_kv_heads, s->head_dim);
    costs->kv_page_bytes = kv.page_bytes;
    costs->prompt_page_bytes = prompt.page_bytes;
    costs->scratch_bytes =
        layer_scratch_bytes(ops, model, PLAN_TILE_TOKENS, work->prompt_max,
                            round_up(max_i64(work->slots_max, 1), KV_PAGE_SLOTS), evict);
    costs->sizes = (struct plan_sizes){.weight_home = sizeof(struct weight_home),
                                       .kv_frame = sizeof(struct kv_frame),
                                       .hidden_frame = sizeof(struct hidden_frame),
                                       .last_write = sizeof(struct last_write),
                                       .segment = sizeof(struct segment),
                                       .gather_set = sizeof(struct gather_set),
                                       .batch = sizeof(struct batch),
                                       .row = sizeof(struct row),
                                       .span = sizeof(struct span),
                                       .position = sizeof(struct position),
                                       .prompt_span = sizeof(struct prompt_span),
                                       .forced_span = sizeof(struct forced_span),
                                       .cut = sizeof(struct cut),
                                       .evict_event = sizeof(struct evict_event),
                                       .kv_row = sizeof(struct kv_row)};
    costs->head_state_bytes = sizeof(struct head_state);
    costs->filter_bytes = HEAD_SAMPLE_MAX * (int64_t)sizeof(struct head_candidate);
    costs->edit_bytes = (int64_t)sizeof(struct logit_edit);
}

enum err engine_open(struct engine *e, const struct engine_config *config)
{
    memset(e, 0, sizeof *e);
    e->config = *config;
    const struct engine_config *c = &e->config;
    e->order = plan_order(&c->plan);
    TRY(trace_open(&e->trace, c->trace_events));
    e->trace.pass_steps = order_pass_steps(&e->order);
    const struct device_api *device = c->device->api;
    CHECK(device->unified); // layer_embed and layer_compact write hidden states from the host
    TRY(device->stream_open(c->device, &e->stream));
    TRY(device->event_open(c->device, &e->sampled));
    e->work.ops = c->ops;
    e->work.ops.stream = e->stream;
    const struct shape *s = &c->model->shape;
    kv_layout_init(&e->work.kv, kv_page_format(c->kv_format), s->n_kv_heads, s->head_dim);
    e->work.ring_bytes = ring_layout(s, c->kv_format, &e->work.ring);
    kv_layout_init(&e->work.prompt, prompt_format(c->ops.compute), s->n_kv_heads, s->head_dim);
    struct home_config home = {.plan = &c->plan,
                               .model = c->model,
                               .codec = c->codec,
                               .compute = c->ops.compute,
                               .kv_format = kv_page_format(c->kv_format),
                               .prompt_format = prompt_format(c->ops.compute),
                               .device = c->device,
                               .numa_node = c->numa_node,
                               .offload_dir = c->offload_dir,
                               .io = c->io,
                               .io_depth = c->io_depth,
                               .fault = c->fault,
                               .trace = &e->trace,
                               .pool = c->ops.pool,
                               .carve = carve,
                               .ctx = e};
    TRY(home_open(&e->home, &home));
    e->batches.job = c->job;
    e->batches.stops = c->stops;
    e->batches.n_stops = c->n_stops;
    layer_open(&e->work);
    TRY(gather_open(&e->gather, &e->home));
    if (c->dump_path) {
        e->dump = fopen(c->dump_path, "w");
        if (!e->dump)
            return fail(ERR_USAGE, "%s: --kv-dump: %s", c->dump_path, strerror(errno));
        e->work.dump = dump_kv;
        e->work.dump_ctx = e;
    }
    return OK;
}

/* Reasons to stop before the job is done. */
static enum err check_stop(const struct engine *e)
{
    if (e->config.interrupted && *e->config.interrupted)
        return fail(ERR_STOPPED, "interrupted; the same command resumes");
    double elapsed_s = (double)(clock_ns() - e->start_ns) * 1e-9;
    if (e->config.time_limit_s <= 0 || elapsed_s < e->config.time_limit_s)
        return OK;
    if (e->passes > 1)
        return fail(ERR_STOPPED, "--time-limit reached; the same command resumes");
    return fail(
        ERR_STOPPED,
        "--time-limit reached before the first pass was over; the same command resumes, but runs "
        "that short gain little or nothing: give it the time of several passes");
}

/* What happens between passes, and every step: durable tokens, reasons to stop, the progress line.
 */
static enum err between_steps(struct engine *e, struct step s)
{
    if (s.pass >= 0 && s.layer == 0 && s.batch == 0) {
        e->passes = s.pass + 1;
        TRY(job_pass_end(e->config.job, 0));
    }
    if (e->config.tick)
        e->config.tick(e->config.tick_ctx);
    TRY(mover_failed(e->home.mover));
    return check_stop(e);
}

static enum err walk(struct engine *e)
{
    const struct plan *plan = &e->config.plan;
    int64_t n = -max_i64(plan->ahead_weights, max_i64(plan->ahead_state, plan->ahead_hidden));
    while (job_live(e->config.job)) {
        e->n = n;
        TRY(between_steps(e, order_at(&e->order, n)));
        TRY(stage_fetch_weights(e,
                                order_at(&e->order, n + plan->ahead_weights))); // extent -> frame
        TRY(stage_fetch_kv(e, order_at(&e->order, n + plan->ahead_state)));
        TRY(stage_fetch_hidden(e, order_at(&e->order, n + plan->ahead_hidden)));
        TRY(stage_compute(e, order_at(&e->order, n)));    // one layer of one batch
        TRY(stage_retire(e, order_at(&e->order, n - 1))); // KV and hidden home, frames unpinned
        n++;
    }
    return OK;
}

enum err engine_run(struct engine *e)
{
    e->start_ns = clock_ns();
    enum err err = walk(e);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    if (err == ERR_STOPPED) { // what this pass has sampled so far was made of verified bytes, too
        enum err kept = job_pass_end(e->config.job, 1);
        err = kept == OK ? err : kept;
        if (kept != OK)
            snprintf(text, sizeof text, "%s", err_text());
    }
    home_drain(&e->home); // tickets of steps that will not come, whose failures are no one's
    e->end_ns = clock_ns();
    mover_repairs(e->home.mover, &e->repairs);
    return err == OK ? OK : fail(err, "%s", text);
}

void engine_close(struct engine *e)
{
    if (e->dump)
        fclose(e->dump);
    if (e->config.device) { // else it was never opened
        e->config.device->api->event_close(e->sampled);
        e->config.device->api->stream_close(e->stream);
    }
    home_close(&e->home);
    trace_close(&e->trace);
    memset(e, 0, sizeof *e);
}
