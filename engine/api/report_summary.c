/* engine/api/report_summary.c - see report.h: the figures of a finished run, and --summary.
 *
 * Owns: the arithmetic of every reported number and the keys of the summary. Refuses: numbers that
 * are not finite; they become 0. Note: the roofline counts what the plan had to move and compute,
 * from the shape of the model and the real tokens, not the measured traffic. */
#include "engine/api/report.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "engine/api/plan_file.h"
#include "engine/api/replan.h"
#include "engine/api/version.h"

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

static double per_s(double amount, double s)
{
    return s > 0 ? amount / s : 0;
}

/* ---- figures ---- */

/* Bytes of weights that every pass reads. */
static int64_t streamed_bytes(const struct run *r)
{
    int64_t bytes = 0;
    for (int layer = 1; layer < r->decision.plan.layers; layer++)
        if (!plan_layer_resident(&r->decision.plan, layer))
            bytes += r->weights->layer_bytes[layer];
    return bytes;
}

/* The part of streamed_bytes() on NVMe, as stored (maybe encoded). */
static int64_t stored_bytes(const struct run *r)
{
    int64_t bytes = 0;
    for (int layer = 1; layer < r->decision.plan.layers; layer++) {
        if (plan_layer_home(&r->decision.plan, layer) != TIER_NVME)
            continue;
        if (!r->codec.pieces) {
            bytes += r->weights->layer_bytes[layer];
            continue;
        }
        const struct model_layer *l = &r->model->layers[layer];
        const struct codec_piece *p = pack_codec_layer(&r->codec, l);
        bytes += p ? 0 : l->n_bytes;
        for (int64_t i = 0; p && i < model_pieces(l); i++)
            bytes += p[i].stored_bytes;
    }
    return bytes;
}

/* Most slots of a row in a layer, averaged over rows; the same averaged over layers. */
static double layer_slots(const struct run *r, int layer)
{
    const int kind = evict_layer_kind(&r->evict, layer);
    const double most = (double)r->work.slots_mean;
    return kind == KV_MOST ? most : fmin(most, (double)r->work.slots_kind[kind]);
}

static double mean_slots(const struct run *r)
{
    const int n = r->model->shape.n_layers;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += layer_slots(r, i);
    return sum / fmax(n, 1);
}

/* KV bytes that one pass reads, for `extents` of all (layer, batch) extents. */
static double required_kv(const struct run *r, int64_t extents)
{
    double share = (double)extents / ((double)r->decision.plan.decoder * r->decision.plan.batches);
    double rows =
        fmin((double)r->decision.plan.batch * r->decision.plan.batches, (double)r->work.n_rows);
    double n_bytes = 0;
    for (int i = 0; i < r->model->shape.n_layers; i++)
        n_bytes += layer_slots(r, i) * 0.75 *
                   (double)plan_page_bytes(&r->costs, evict_layer_kind(&r->evict, i)) / PAGE_SLOTS;
    return share * rows * n_bytes;
}

/* Least seconds per pass to read from NVMe, and to copy to a device. */
static double required_moves_s(const struct run *r, double read_rate)
{
    const struct plan *p = &r->decision.plan;
    int64_t on_nvme = plan_kv_count(p, TIER_NVME);
    double nvme = (double)stored_bytes(r) + required_kv(r, on_nvme);
    double link = (double)streamed_bytes(r) + required_kv(r, on_nvme + plan_kv_count(p, TIER_RAM));
    return fmax(per_s(nvme, read_rate), p->device ? per_s(link, r->machine.h2d.value) : 0);
}

/* 2 x parameters x tokens (shared prefixes once, head for output tokens only) + attention. */
static double required_flops(const struct run *r, const struct job_counts *n)
{
    const struct shape *s = &r->model->shape;
    double head = 2.0 * s->vocab * s->embed_dim;
    double body = (double)r->weights->flops_per_token - head;
    double in = (double)(n->prompt_tokens - r->engine.batches.shared_tokens),
           out = (double)n->output_tokens;
    double rows = fmax((double)r->work.n_rows, 1);
    double prompt = (double)r->work.prompt_tokens / rows,
           gen = (double)r->work.output_tokens / rows;
    double slots = fmin(prompt + gen / 2, mean_slots(r));
    double heads = 0;
    for (int i = 0; i < s->n_layers; i++)
        heads += (double)s->n_heads * shape_head_dim(s, i);
    double attention = 4.0 * heads * (in * prompt / 2 + out * slots);
    return (in + out) * body + out * head + attention;
}

static const char *busiest(const struct trace *t)
{
    int best = LANE_CPU;
    for (int lane = 0; lane < N_LANES; lane++)
        if (lane != LANE_STALL && t->totals[lane].busy_ns > t->totals[best].busy_ns)
            best = lane;
    return lane_name((enum lane)best);
}

/* Tokens come in bursts, one per pass, so a span shorter than a pass has no rate. */
static double steady(const struct job_counts *n, int64_t end_ns, double pass_s)
{
    int emptied = n->queue_empty_ns > 0 && n->queue_empty_ns < end_ns;
    int64_t until_ns = emptied ? n->queue_empty_ns : end_ns;
    int64_t tokens = emptied ? n->output_tokens_at_empty : n->output_tokens;
    if (n->first_finish_ns == 0 || until_ns <= n->first_finish_ns ||
        seconds(until_ns - n->first_finish_ns) < pass_s)
        return 0;
    return per_s((double)(tokens - n->output_tokens_at_first),
                 seconds(until_ns - n->first_finish_ns));
}

void report_measure(struct report_figures *f, const struct run *r, const struct job_counts *counts,
                    double read_rate_measured)
{
    const struct engine *e = &r->engine;
    const struct plan_shared *shared = r->decision.plan.shared;
    *f = (struct report_figures){.counts = *counts};
    int64_t end_ns = max_i64(e->end_ns, e->start_ns);
    f->walk_s = seconds(end_ns - e->start_ns);
    f->elapsed_s = seconds(max_i64(end_ns, counts->last_durable_ns) - e->start_ns);
    f->startup_s = r->startup_s;
    f->passes = (double)e->passes;
    f->output_per_s = per_s((double)counts->output_tokens, f->elapsed_s);
    f->total_per_s = per_s((double)(counts->prompt_tokens + counts->output_tokens), f->elapsed_s);
    f->steady_per_s = steady(counts, end_ns, per_s(f->walk_s, f->passes));
    f->bound = busiest(&e->trace);
    f->rates_measured = read_rate_measured > 0;
    f->read_rate = f->rates_measured ? read_rate_measured : r->machine.nvme_read.value;
    double moves_s = required_moves_s(r, f->read_rate) * f->passes;
    double compute_s =
        per_s(required_flops(r, counts), r->decision.plan.device ? r->machine.device_flops.value
                                                                 : r->machine.matmul_flops.value);
    f->roofline = per_s(fmax(moves_s, compute_s), f->walk_s);
    if (replan_count(r->replan) > 0)
        f->roofline = 0; // the plan changed
    f->peak_ram_bytes = machine_peak_rss_bytes();
    if (shared) // of which this process counts its part
        f->peak_ram_bytes -= shared->n_bytes - ceil_div(shared->n_bytes, shared->workers);
    f->peak_disk_bytes = e->peak_bytes[TIER_NVME];
    f->peak_device_bytes = e->peak_bytes[TIER_DEVICE];
}

/* ---- summary ---- */

static json_t *number(double x)
{
    return json_real(isfinite(x) ? x : 0);
}

static void put(json_t *object, const char *key, json_t *value)
{
    CHECK(json_object_set_new(object, key, value) == 0); // fails only if memory is short
}

static json_t *kv_json(const struct run *r)
{
    json_t *kv = plan_kv_json(r);
    put(kv, "evicted_tokens", json_integer(r->engine.batches.evicted_slots));
    return kv;
}

/* Results of the checksums: pieces that were right when read again, damaged pieces, rows that were
 * recomputed because of them. */
static json_t *repairs_json(const struct engine *e)
{
    json_t *repairs = json_object();
    put(repairs, "pieces", json_integer(e->repairs.repaired));
    put(repairs, "bad", json_integer(e->repairs.bad));
    put(repairs, "rows", json_integer(e->rows_lost));
    return repairs;
}

/* "ram", "device+nvme": the tiers with a count above 0. */
static json_t *tier_names(const int64_t on[N_TIERS])
{
    static const char *const names[N_TIERS] = {"device", "ram", "nvme"};
    char text[32] = "";
    for (int tier = 0; tier < N_TIERS; tier++)
        if (on[tier] > 0)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? "+" : "",
                     names[tier]);
    return json_string(text);
}

static json_t *tiers_json(const struct plan *p)
{
    json_t *tiers = json_object();
    int64_t weights[N_TIERS] = {0}, kv[N_TIERS], hidden[N_TIERS];
    for (int layer = 1; layer < p->layers; layer++)
        weights[plan_layer_home(p, layer)]++;
    for (int tier = 0; tier < N_TIERS; tier++) {
        kv[tier] = plan_kv_count(p, (enum tier_kind)tier);
        hidden[tier] = plan_hidden_count(p, (enum tier_kind)tier);
    }
    put(tiers, "weights", tier_names(weights));
    put(tiers, "kv", tier_names(kv));
    put(tiers, "hidden", tier_names(hidden));
    return tiers;
}

/* The number of plan changes, and their messages. */
static json_t *replans_json(const struct run *r)
{
    json_t *replans = json_object(), *lines = json_array();
    const char *text;
    for (int i = 0; (text = replan_text(r->replan, i)); i++)
        CHECK(json_array_append_new(lines, json_string(text)) == 0);
    put(replans, "count", json_integer(replan_count(r->replan)));
    put(replans, "lines", lines);
    return replans;
}

/* The factor on the prediction, and the number of runs of the plan's class behind it. */
static json_t *corrected_json(const struct run *r)
{
    json_t *corrected = json_object();
    const struct rate *pace = &r->decision.time.pace;
    put(corrected, "times", number(pace->value));
    put(corrected, "spread", number(pace->spread));
    put(corrected, "runs", json_integer(pace->n));
    return corrected;
}

static json_t *planned_json(const struct run *r)
{
    const struct plan *p = &r->decision.plan;
    const struct plan_time *t = &r->decision.time;
    json_t *plan = json_object(), *predicted = plan_time_json(t);
    put(plan, "batch", json_integer(p->batch));
    put(plan, "batches", json_integer(p->batches));
    put(plan, "tiers", tiers_json(p));
    put(plan, "attn", json_string(p->device && !p->attn_cpu ? "device" : "cpu"));
    put(plan, "kv", kv_json(r));
    put(plan, "layers", json_integer(p->layers));
    put(plan, "weights_resident", json_integer(p->resident));
    put(plan, "shared_bytes", json_integer(p->shared ? p->shared->n_bytes : 0));
    put(plan, "weights_decoded", json_integer(p->decoded));
    put(plan, "streamed_bytes", json_integer(streamed_bytes(r)));
    put(plan, "weights_codec", json_string(plan_codec_name(p)));
    put(plan, "stored_bytes", json_integer(stored_bytes(r)));
    put(plan, "percent", json_string(plan_percent(p)));
    put(plan, "ahead_weights", json_integer(p->ahead_weights));
    put(plan, "ahead_state", json_integer(p->ahead_state));
    put(plan, "ahead_hidden", json_integer(p->ahead_hidden));
    put(plan, "io", json_string(r->engine.home.mover ? mover_io_name(r->engine.home.mover) : ""));
    put(plan, "threads", json_integer(pool_threads(r->session->pool)));
    put(plan, "prefill_tokens", json_integer(p->prefill_tokens));
    put(plan, "ram_bytes", json_integer(r->decision.bytes.ram));
    put(plan, "disk_bytes", json_integer(r->decision.bytes.disk));
    put(plan, "device_bytes", json_integer(r->decision.bytes.device));
    put(predicted, "bound", json_string(t->bound ? t->bound : ""));
    put(plan, "predicted", predicted);
    put(plan, "corrected", corrected_json(r));
    return plan;
}

static json_t *lane_json(const struct run *r, const struct report_figures *f, enum lane lane)
{
    const struct lane_total *total = &r->engine.trace.totals[lane];
    double busy_s = seconds(total->busy_ns);
    double probed = report_lane_probed(r, lane);
    json_t *j = json_object();
    put(j, "name", json_string(lane_name(lane)));
    put(j, "busy_s", number(busy_s));
    put(j, "bytes", json_integer(total->bytes));
    put(j, "bytes_per_s", number(per_s((double)total->bytes, busy_s)));
    put(j, "probed_bytes_per_s", number(probed));
    put(j, "busy_share", number(per_s(busy_s, f->walk_s)));
    put(j, "predicted_s", number(report_lane_predicted(r, lane) * r->decision.time.passes));
    put(j, "predicted_bytes", json_integer((json_int_t)report_lane_predicted_bytes(r, lane)));
    return j;
}

static json_t *lanes_json(const struct run *r, const struct report_figures *f)
{
    json_t *lanes = json_array();
    for (int lane = 0; lane < N_LANES; lane++)
        if (lane != LANE_STALL && report_lane_shown(r, (enum lane)lane))
            CHECK(json_array_append_new(lanes, lane_json(r, f, (enum lane)lane)) == 0);
    return lanes;
}

static json_t *machine_json(const struct run *r)
{
    const struct machine *m = &r->machine;
    json_t *j = json_object();
    put(j, "cpu", json_string(r->session->info.cpu_name));
    put(j, "threads", json_integer(m->threads));
    put(j, "isa", json_string(isa_name(r->ops.isa)));
    put(j, "compute", json_string(compute_name(r->ops.compute)));
    put(j, "matmul", json_string(r->session->matmul));
    put(j, "nvme_read", number(m->nvme_read.value));
    put(j, "nvme_write", number(m->nvme_write.value));
    put(j, "ram_read", number(m->ram_read.value));
    put(j, "matmul_flops", number(m->matmul_flops.value));
    put(j, "step_s", number(m->step_s.value));
    if (r->decision.plan.device) {
        put(j, "h2d", number(m->h2d.value));
        put(j, "d2h", number(m->d2h.value));
        put(j, "device_read", number(m->device_read.value));
        put(j, "device_flops", number(m->device_flops.value));
        put(j, "device_attend_read", number(machine_device_attend_read(m)));
        put(j, "device_attend_flops", number(machine_device_attend_flops(m)));
    }
    put(j, "ram_bytes", json_integer(r->session->info.ram_bytes));
    return j;
}

static void put_counts(json_t *root, const struct report_figures *f, const struct run *r)
{
    json_t *rows = json_object(), *ignored = json_object();
    put(rows, "total", json_integer(f->counts.rows));
    put(rows, "ok", json_integer(f->counts.ok));
    put(rows, "failed", json_integer(f->counts.failed));
    if (r->job) {
        const struct ignore_list *ignore = job_ignore(r->job);
        for (int i = 0; i < ignore->n; i++)
            put(ignored, ignore->names[i], json_integer(f->counts.ignored[i]));
        errors_put(job_errors(r->job), rows);
    }
    put(rows, "ignored_fields", ignored);
    put(rows, "requeued", json_integer(r->engine.batches.requeued));
    put(root, "rows", rows);
    put(root, "prompt_tokens", json_integer(f->counts.prompt_tokens));
    put(root, "shared_prompt_tokens", json_integer(r->engine.batches.shared_tokens));
    put(root, "output_tokens", json_integer(f->counts.output_tokens));
}

static void put_rates(json_t *root, const struct report_figures *f, const struct run *r)
{
    put(root, "startup_s", number(f->startup_s));
    put(root, "elapsed_s", number(f->elapsed_s));
    put(root, "passes", json_integer((json_int_t)f->passes));
    put(root, "output_tokens_per_s", number(f->output_per_s));
    put(root, "total_tokens_per_s", number(f->total_per_s));
    put(root, "steady_output_tokens_per_s",
        f->steady_per_s > 0 ? number(f->steady_per_s) : json_null());
    put(root, "predicted_elapsed_s", number(r->decision.time.job_s));
    const int whole = f->err == OK || f->err == ERR_ROWS;
    put(root, "error_percent",
        whole ? number(report_error_percent(r->decision.time.job_s, f->elapsed_s)) : json_null());
    put(root, "lanes", lanes_json(r, f));
    put(root, "stall_s", number(seconds(r->engine.trace.totals[LANE_STALL].busy_ns)));
    put(root, "text_wait_s", number(seconds(f->counts.text_wait_ns)));
    put(root, "commit_wait_s", number(seconds(f->counts.commit_wait_ns)));
    put(root, "bound", json_string(f->bound));
    put(root, "roofline_fraction", number(f->roofline));
    put(root, "roofline_rates", json_string(f->rates_measured ? "measured" : "probed"));
    put(root, "roofline_read_bytes_per_s", number(f->read_rate));
}

json_t *report_summary_done(const struct job_counts *counts, enum err err, const struct run *r)
{
    const struct report_figures f = {.counts = *counts};
    json_t *root = json_object();
    put(root, "model", json_string(r->model->name ? r->model->name : ""));
    put(root, "dummy_weights", json_boolean(r->model->dummy));
    put_counts(root, &f, r);
    put(root, "version", json_string(SLUICE_VERSION));
    put(root, "exit_code", json_integer(err));
    return root;
}

json_t *report_summary_json(const struct report_figures *f, const struct run *r)
{
    json_t *root = json_object(), *peak = json_object();
    put(root, "model", json_string(r->model->name ? r->model->name : ""));
    put(root, "dummy_weights", json_boolean(r->model->dummy));
    put(root, "device", json_string(r->session->device->api->name));
    put(root, "plan", planned_json(r));
    put_counts(root, f, r);
    put_rates(root, f, r);
    put(peak, "device", json_integer(f->peak_device_bytes));
    put(peak, "ram", json_integer(f->peak_ram_bytes));
    put(peak, "disk", json_integer(f->peak_disk_bytes));
    put(root, "peak_bytes", peak);
    put(root, "kv", kv_json(r));
    put(root, "repairs", repairs_json(&r->engine));
    put(root, "replans", replans_json(r));
    put(root, "version", json_string(SLUICE_VERSION));
    put(root, "machine", machine_json(r));
    put(root, "interrupted", json_boolean(f->err == ERR_STOPPED));
    put(root, "exit_code", json_integer(f->err));
    put(root, "error", f->error[0] ? json_string(f->error) : json_null());
    return root;
}
