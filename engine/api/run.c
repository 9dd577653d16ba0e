/* engine/api/run.c - see run.h: runs a plan, and closes the run. */
#include "engine/api/run.h"

#include <stdlib.h>
#include <string.h>

#include "engine/api/pipeline.h"
#include "engine/api/replan.h"
#include "engine/line/dummy_layers.h"
#include "engine/model/pack.h"

/* The drive's NUMA node if all compute threads are on it; else first touch decides: half of the
 * threads far from their memory would lose more than a near drive gains. */
static int threads_node(const struct run *r)
{
    int node = r->session->info.disk_node;
    for (int i = 0; i < r->machine.threads && i < r->session->info.n_cores; i++)
        if (r->session->info.core_nodes[i] != node)
            return -1;
    return node;
}

/* Opens the encoded layers that the plan needs; makes them first if missing. If that fails and the
 * user did not ask for zstd, reads the stored weights instead. */
static enum err open_codec(struct run *r, struct pack_progress *progress)
{
    const struct model *m = r->model;
    if (r->decision.plan.codec == PLAN_CODEC_NONE)
        return OK;
    enum err e = pack_codec_open(&r->codec, m);
    if (e == OK && pack_codec_covers(&r->codec, m, &r->decision.plan))
        return OK;
    if (e == ERR_CORRUPT)
        log_line(LOG_WARN, "codec: %s; making it again", err_text());
    log_line(LOG_INFO, "codec: encoding the layers of %s into %s.zst, once", m->path, m->path);
    pack_codec_close(&r->codec);
    struct pack_codec_request request = {.model = m,
                                         .pool = r->session->pool,
                                         .memory_bytes =
                                             r->costs.codec_bytes + r->costs.staging_bytes,
                                         .progress = pack_progress_show,
                                         .ctx = progress};
    e = pack_codec_make(&request);
    if (e == OK)
        e = pack_codec_open(&r->codec, m);
    if (e == OK && !pack_codec_covers(&r->codec, m, &r->decision.plan))
        e = fail(ERR_INPUT, "%s: lacks layers that the plan streams (start again)", r->codec.path);
    if (e == OK || e == ERR_STOPPED || e == ERR_CORRUPT || r->config->weights_codec == CODEC_ZSTD)
        return e;
    log_line(LOG_WARN, "codec: %s; weights are read as they are", err_text());
    return OK;
}

enum err run_walk(struct run *r)
{
    const struct config *c = r->config;
    int n_stops = 0;
    const int32_t *stops = r->session->opened.tokenizer
                               ? tokenizer_stops(r->session->opened.tokenizer, &n_stops)
                               : NULL;
    struct engine_config e = {.plan = r->decision.plan,
                              .set = run_setting(r),
                              .model = r->model,
                              .job = r->job,
                              .peers = pipeline_peers(r),
                              .ops = r->ops,
                              .kv_format = r->kv_format,
                              .io = r->session->io,
                              .io_depth = machine_depth(&r->machine),
                              .device = r->session->device,
                              .numa_node = threads_node(r),
                              .shared_fd = c->shared_fd,
                              .offload_dir = r->session->offload_dir,
                              .stops = stops,
                              .n_stops = n_stops,
                              .dump_path = c->kv_dump,
                              .kv_trace_path = c->kv_trace,
                              .trace_events = c->trace ? 1 << 16 : 0,
                              .time_limit_s = c->time_limit_s,
                              .interrupted = c->interrupted,
                              .tick = r->tick,
                              .tick_ctx = r->tick_ctx};
    struct pack_progress progress = pack_progress_begin(c);
    struct dummy_layers dummy = {.model = &r->session->opened.model,
                                 .part = r->pipeline ? r->model : NULL,
                                 .pool = r->session->pool,
                                 .progress = pack_progress_show,
                                 .ctx = &progress};
    TRY(dummy_layers_store(&dummy, &r->decision.plan));
    TRY(open_codec(r, &progress));
    if (!r->pipeline) // a change of plan would have to be the same on every rank
        TRY(replan_open(&r->replan, r));
    e.codec = r->codec.pieces ? &r->codec : NULL;
    if (r->replan)
        TRY(replan_watch(r->replan, &e));
    r->engine_opened = 1;
    TRY(engine_open(&r->engine, &e));
    TRY(dummy_layers_fill(&dummy, &r->engine.home));
    r->startup_s = (double)(clock_ns() - r->start_ns) * 1e-9;
    replan_begin(r->replan);
    TRY(engine_run(&r->engine));
    while (r->engine.left) {
        engine_give_back(&r->engine);
        replan_take(r->replan);
        e.plan = r->decision.plan;
        TRY(dummy_layers_store(&dummy, &r->decision.plan));
        TRY(replan_watch(r->replan, &e));
        TRY(engine_again(&r->engine, &e));
        TRY(dummy_layers_fill(&dummy, &r->engine.home));
        replan_begin(r->replan);
        TRY(engine_run(&r->engine));
    }
    if (!r->pipeline) // a part of the model says nothing of the whole
        run_keep_pace(r);
    return OK;
}

enum err run_again(struct run *r)
{
    if (r->engine_opened)
        engine_close(&r->engine);
    enum err err = job_close(r->job);
    free(r->weights);
    free(r->search);
    replan_close(r->replan);
    pack_codec_close(&r->codec);
    r->job = NULL;
    r->weights = NULL;
    r->search = NULL;
    r->search_bytes = 0; // counted by run_text_bytes(), which also limits the probe
    r->replan = NULL;
    r->engine_opened = 0;
    r->n_left_out = 0;
    r->plan_told = PLAN_LINE;
    r->ranking = NULL;
    r->tick = NULL;
    r->start_ns = clock_ns();
    return err;
}

enum err run_close(struct run *r)
{
    enum err err = run_again(r);
    if (!r->session)
        return err;
    device_close(r->session->device);
    pool_close(r->session->pool);
    opened_close(&r->session->opened);
    free(r->session);
    r->session = NULL;
    return err;
}
