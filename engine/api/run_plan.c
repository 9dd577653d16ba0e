/* engine/api/run_plan.c - of run.h: makes a plan from the job's work, the machine's rates
 * (run_rates.c) and the flags; verifies and prints the plan. */
#include "engine/api/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/advice.h"
#include "engine/api/compute.h"
#include "engine/api/pipeline.h"
#include "engine/api/plan_file.h"
#include "engine/line/shared.h"
#include "engine/model/pack.h"
#include "offload/probe_cache.h"
#include "offload/probe_model.h"

#define IO_RESERVE_BYTES (1 << 20)

/* --percent wD wR kD kR hD hR: without a device, near is RAM and holds the sum of both shares. */
static enum err wish_percent(const char *text, struct plan_wish *wish)
{
    double share[N_PLAN_PERCENTS];
    char copy[128];
    snprintf(copy, sizeof copy, "%s", text);
    int n = 0;
    for (char *save = NULL, *w = strtok_r(copy, " ,", &save); w; w = strtok_r(NULL, " ,", &save)) {
        if (n == N_PLAN_PERCENTS)
            return fail(ERR_USAGE, "--percent: more than six numbers");
        TRY(parse_number("percent", w, &share[n]));
        if (!(share[n] >= 0 && share[n] <= 100))
            return fail(ERR_USAGE, "--percent: %s is out of range (0..100)", w);
        n++;
    }
    if (n != N_PLAN_PERCENTS)
        return fail(ERR_USAGE, "--percent: needs six numbers (wD wR kD kR hD hR)");
    for (int i = 0; i < N_PLAN_PERCENTS; i += 2) {
        if (share[i] + share[i + 1] > 100)
            return fail(ERR_USAGE, "--percent: device and RAM shares add up to more than 100");
        int in_ram = !wish->device || (i == KV_NEAR && wish->attn_cpu); // near is RAM
        wish->percent[i] = in_ram ? share[i] + share[i + 1] : share[i];
        wish->percent[i + 1] = in_ram ? 0 : share[i + 1];
    }
    if (wish->attn_cpu && share[KV_NEAR] > 0)
        return fail(ERR_USAGE, "--percent: --attn cpu reads KV in RAM: its device share must be 0");
    return OK;
}

static enum err read_wish(const struct config *c, const struct run *r, struct plan_wish *wish)
{
    *wish = plan_wish_any();
    wish->device = r->plans_device;
    wish->attn_cpu = r->plans_device && c->attn == ATTN_CPU;
    if (wish->attn_cpu && !shape_attends_apart(&r->model->shape))
        return fail(ERR_USAGE, "--attn cpu: %s models %s beside the other ops (--attn device)",
                    r->model->shape.family,
                    r->model->shape.state != STATE_NONE
                        ? "keep a state of each row, which stays"
                        : "share keys and values between layers, which stay");
    wish->batch = (int)min_i64(c->batch, INT32_MAX);
    wish->batches = (int)min_i64(c->batches, INT32_MAX);
    wish->decoded = (int)min_i64(c->decoded, PLAN_LAYERS_MAX);
    wish->codec = c->weights_codec == CODEC_AUTO   ? -1
                  : c->weights_codec == CODEC_ZSTD ? PLAN_CODEC_ZSTD
                                                   : PLAN_CODEC_NONE;
    wish->no_sharing = config_given(c, "share-prefixes") ? c->share_prefixes == CONFIG_OFF : -1;
    wish->ahead_weights = (int)min_i64(c->ahead_weights, 1 << 20);
    wish->ahead_state = (int)min_i64(c->ahead_state, 1 << 20);
    wish->prefill_tokens = (int)min_i64(c->prefill_tokens, 1 << 24);
    if (c->batch < 0 || c->batches < 0 || c->prefill_tokens < 0)
        return fail(ERR_USAGE, "--batch, --batches, --prefill-tokens: must be positive (0: auto)");
    if (c->batch > PLAN_BATCH_MAX || c->batches > PLAN_ROWS_MAX)
        return fail(ERR_USAGE, "--batch, --batches: at most %d rows a batch, %d batches",
                    PLAN_BATCH_MAX, PLAN_ROWS_MAX);
    if (c->percent)
        TRY(wish_percent(c->percent, wish));
    size_t n = strlen(c->resident);
    int64_t value = 0;
    if (strcmp(c->resident, "auto") == 0)
        return OK;
    if (n > 0 && c->resident[n - 1] == '%') {
        char digits[16];
        snprintf(digits, sizeof digits, "%.*s", (int)min_i64((int64_t)n - 1, 15), c->resident);
        TRY(parse_count("weights-resident", digits, &value));
        if (value < 0 || value > 100)
            return fail(ERR_USAGE, "--weights-resident: %s is out of range", c->resident);
        wish->percent[WEIGHTS_NEAR] = (double)value;
        return OK;
    }
    TRY(parse_count("weights-resident", c->resident, &value));
    wish->resident = (int)min_i64(max_i64(value, 0), PLAN_LAYERS_MAX);
    return OK;
}

/* Prints the plan and the flags that repeat it, for -v. */
static void print_details(const struct run *r)
{
    const struct plan *p = &r->decision.plan;
    const struct plan_bytes *b = &r->decision.bytes;
    const double mib = 1048576.0;
    char layers[160], kv[160], device[48] = "", flags[512];
    if (p->device)
        snprintf(device, sizeof device, "device %.1f MiB, ", (double)b->device / mib);
    plan_layers_text(r, layers, sizeof layers);
    plan_kv_text(r, kv, sizeof kv);
    plan_freeze(r, flags, sizeof flags);
    log_line(LOG_DEBUG,
             "plan: %d batch%s of %d rows; weights: %s; KV: %s %s; hidden states %s; %d prompt "
             "tokens a pass; %sRAM %.1f MiB, disk %.1f MiB",
             p->batches, p->batches == 1 ? "" : "es", p->batch, layers, kv, plan_kv_tiers(p),
             plan_hidden_tiers(p), p->prefill_tokens, device, (double)b->ram / mib,
             (double)b->disk / mib);
    log_line(LOG_DEBUG, "plan: predicted %.1f s, start-up not included: %.0f passes of %.3f s",
             r->decision.time.job_s, r->decision.time.passes, r->decision.time.pass_s);
    log_line(LOG_DEBUG, "to repeat this plan: %s", flags);
    if (r->pace.n > 0)
        log_line(LOG_DEBUG,
                 "plan: earlier runs of this %s took %.2f x the predicted time (%d runs); "
                 "predictions are scaled by that",
                 r->decision.time.pace.n > 0 ? "kind" : "model, of other kinds,",
                 r->decision.time.pace.value,
                 r->decision.time.pace.n > 0 ? r->decision.time.pace.n : pace_runs_known(&r->pace));
}

static void print_plan(const struct run *r)
{
    char words[320];
    plan_words(r, words, sizeof words);
    if (r->plan_told != PLAN_DETAILS)
        log_line(LOG_INFO, "plan: %s", words);
    if (plan_hidden_stayed(r))
        log_line(LOG_INFO,
                 "plan: hidden states stay in RAM: with fewer than %d batches they would be read "
                 "before they are written (--batches)",
                 r->decision.plan.window + 1);
    print_details(r);
}

/* Measures the compression of the weights that r->decision.plan streams. If it cannot be measured
 * the weights stay as stored; reading them will report the error. */
static void measure_codec(struct run *r)
{
    struct pack_codec_sample *s = &r->codec_sample;
    const struct model *m = r->model;
    char key[128];
    double kept[3];
    snprintf(key, sizeof key, "%016llx %s %lld", (unsigned long long)m->fingerprint,
             dtype_info(run_weights(r))->name, (long long)m->file_bytes);
    if (!run_figures_read(r, "codec", key, kept, 3)) {
        int64_t start_ns = clock_ns();
        if (pack_codec_measure(m, s) != OK) {
            log_line(LOG_WARN, "plan: weights stay as they are: %s", err_text());
            *s = (struct pack_codec_sample){.share = 1, .rate = 1e12};
            return;
        }
        log_line(LOG_DEBUG, "plan: zstd leaves %.1f %% of the weights, decodes %.2f GB/s (%.0f ms)",
                 100 * s->share, s->rate * 1e-9, (double)(clock_ns() - start_ns) * 1e-6);
        kept[0] = s->share, kept[1] = s->rate, kept[2] = s->make_s;
        run_figures_write(r, "codec", key, kept, 3);
    }
    *s = (struct pack_codec_sample){.share = kept[0], .rate = kept[1], .make_s = kept[2]};
}

/* Sets r->costs for encoding what r->decision.plan streams. */
static void price_codec(struct run *r)
{
    const struct model *m = r->model;
    int64_t streamed = 0;
    if (r->codec_sample.share == 0)
        measure_codec(r);
    const struct pack_codec_sample s = r->codec_sample;
    for (int i = 1; i < m->n_layers; i++)
        streamed += m->layers[i].n_bytes;
    r->costs.codec_share = s.share;
    r->costs.codec_rate = s.rate * (double)max_i64(mover_checkers(r->machine.threads), 1);
    r->costs.codec_make_s = 0;
    double read = r->machine.nvme_read.value, write = r->machine.nvme_write.value;
    double make_s = pack_codec_make_s(m, &r->decision.plan, &s);
    if (make_s > 0 && read > 0 && write > 0)
        r->costs.codec_make_s = make_s / r->machine.threads + (double)streamed / read +
                                (double)streamed * s.share / write;
}

/* What one of n workers may expect to do. A plan for all rows would let the first worker begin rows
 * that the others could have begun. */
static struct work work_part(const struct work *w, int64_t n)
{
    struct work part = *w;
    part.n_rows = ceil_div(w->n_rows, n);
    part.prompt_tokens = ceil_div(w->prompt_tokens, n);
    part.output_tokens = ceil_div(w->output_tokens, n);
    if (w->rows)
        part.n_lengths = min_i64(ceil_div(part.n_rows, w->stride), w->n_lengths);
    return part;
}

/* Layers that are made on demand are not on the disk while another process makes them. */
struct plan_shared run_shared(const struct run *r)
{
    struct plan_shared shared = {0};
    if (r->config->shared_fd > 0 && !r->model->on_demand)
        shared_read(r->config->shared_fd, r->config->workers, &shared);
    return shared;
}

struct setting run_setting(const struct run *r)
{
    return (struct setting){.weights = r->weights,
                            .work = r->config->workers > 1 ? &r->part : &r->work,
                            .shape = &r->model->shape,
                            .evict = &r->evict,
                            .costs = &r->costs,
                            .machine = &r->machine};
}

static int find_plan(const struct run *r, const struct plan_wish *wish, struct plan *plan,
                     struct plan_ranking *ranking, char *why, int why_cap)
{
    const struct setting set = run_setting(r);
    return plan_search(&set, wish, &r->budget, r->search, plan, ranking, why, why_cap);
}

static void price_plan(const struct run *r, const struct plan *plan, struct plan_time *t)
{
    const struct setting set = run_setting(r);
    CHECK(plan_cost(&set, plan, r->search, t) == 0); // plan_check has verified that every row fits
}

/* Allocates memory for any search of this run, then for pricing each pass of the walk. */
static enum err take_search(struct run *r, const struct plan_wish *wish)
{
    struct plan_wish any = plan_wish_any();
    any.attn_cpu = wish->attn_cpu;
    int n = r->weights->n_layers;
    struct plan watched = {.batch = 1,
                           .batches = (int)max_i64(wish->batches, SEARCH_BATCHES_MOST),
                           .layers = n,
                           .decoder = n};
    r->watch_at =
        max_i64(plan_search_bytes(wish, &r->work, n), plan_search_bytes(&any, &r->work, n));
    r->search_bytes =
        r->watch_at + pricing_bytes(&watched, 0) + watched.batches * (int64_t)sizeof(struct load);
    free(r->search);
    r->search = malloc((size_t)r->search_bytes);
    return r->search ? OK : fail(ERR_FIT, "no memory to look for a plan");
}

/* For a device that is not on this machine, scratch is counted for one thread: its kernels do not
 * split scratch among CPU threads. */
static void count_costs(struct run *r)
{
    const struct model *m = r->model;
    struct ops alone = r->ops;
    struct plan_costs one_thread = {0};
    alone.pool = NULL;
    engine_costs(m, r->session->device, &alone, r->kv_format, &r->work, &r->evict, &one_thread);
    engine_costs(m, r->session->device, &r->ops, r->kv_format, &r->work, &r->evict, &r->costs);
    if (r->plans_device && r->session->device->api->unified) {
        memcpy(r->costs.scratch_bytes, one_thread.scratch_bytes, sizeof one_thread.scratch_bytes);
        r->costs.attend_row_bytes = one_thread.attend_row_bytes;
        r->costs.attend_rows_bytes = one_thread.attend_rows_bytes;
    }
    r->costs.text_bytes = run_text_bytes(r);
}

/* Counts costs that depend on the rows and finds the best plan. Returns 0, or -1 with `why`. */
static int search_plan(struct run *r, const struct plan_wish *wish, char *why, int why_cap)
{
    count_costs(r);
    r->part = work_part(&r->work, max_i64(r->config->workers, 1));
    int rc = find_plan(r, wish, &r->decision.plan, r->ranking, why, why_cap);
    if (rc != 0 || r->decision.plan.embed_resident || wish->codec == PLAN_CODEC_NONE ||
        r->costs.codec_share > 0)
        return rc;
    price_codec(r); // the plan streams weights
    const struct setting set = run_setting(r);
    if (wish->codec < 0 && !plan_search_encodes(&set, wish))
        return 0; // with encoding the search would find the same plan
    return find_plan(r, wish, &r->decision.plan, r->ranking, why, why_cap);
}

/* `all` does not fit: finds the longest prompts that do, by bisection. -1: no row fits. */
static int search_cap(struct run *r, const struct plan_wish *wish, const struct work *all)
{
    char why[320];
    int64_t fits = 0, too_long = all->prompt_max;
    while (too_long - fits > 1) {
        int64_t cap = fits + (too_long - fits) / 2;
        job_work_within(r->job, cap, &r->work);
        if (r->work.n_rows == 0 || search_plan(r, wish, why, sizeof why) == 0)
            fits = cap;
        else
            too_long = cap;
    }
    job_work_within(r->job, fits, &r->work);
    return r->work.n_rows > 0 ? search_plan(r, wish, why, sizeof why) : -1;
}

struct plan_wish run_any_placement(const struct plan_wish *wish)
{
    struct plan_wish any = plan_wish_any();
    any.codec = PLAN_CODEC_NONE;
    any.device = wish->device;
    any.attn_cpu = wish->attn_cpu; // attention's place changes answers
    return any;
}

/* Finds the plan, and the longest prompt that fits (see job.h). A prompt is too long if no plan
 * within the budgets holds it under any placement; a requested placement that does not fit is an
 * error. */
static enum err choose_plan(struct run *r, const struct plan_wish *wish)
{
    char why[320], other[320];
    const struct plan_wish any = run_any_placement(wish);
    int open = r->job && !r->keep_rows && job_cap_open(r->job);
    if (search_plan(r, wish, why, sizeof why) == 0) {
        if (open)
            job_cap_fix(r->job, 0, &r->work);
        return OK;
    }
    const struct work all = r->work;
    if (search_plan(r, &any, other, sizeof other) == 0)
        return fail(ERR_FIT,
                    "%s: plan: without its placement flags it fits (--batch %d --batches %d); with "
                    "them %s",
                    r->config->model, r->decision.plan.batch, r->decision.plan.batches, why);
    if (!open || search_cap(r, &any, &all) != 0 || search_plan(r, wish, other, sizeof other) != 0) {
        r->work = all;
        return fail(ERR_FIT, "%s: plan: %s", r->config->model, why);
    }
    log_line(LOG_WARN,
             "plan: the longest prompts do not fit: %s; %lld rows with prompts above %lld tokens "
             "become error rows",
             why, (long long)(all.n_rows - r->work.n_rows), (long long)r->work.prompt_max);
    r->n_left_out = all.n_rows - r->work.n_rows;
    job_cap_fix(r->job, r->work.prompt_max, &r->work);
    return OK;
}

/* The first process decides which layers all share in RAM: those that its plan has there. Then it
 * plans as the others do, with these layers decided. */
static enum err share_weights(struct run *r, const struct plan_wish *wish)
{
    struct plan *p = &r->decision.plan;
    struct plan_shared *s = &r->weights->shared;
    const int fd = r->config->shared_fd;
    if (fd <= 0 || shared_decided(fd))
        return OK;
    if (p->shared && p->weights_ram > 0)
        *s = (struct plan_shared){s->workers, p->resident, p->weights_ram,
                                  plan_shared_bytes(p, r->weights)};
    if (s->n_bytes > 0 && choose_plan(r, wish) == OK)
        return shared_decide(fd, s);
    const int own = s->n_bytes > 0; // or the plan has no layer in RAM
    *s = (struct plan_shared){0};
    p->shared = NULL;
    TRY(own ? choose_plan(r, wish) : OK);
    return shared_decide(fd, s);
}

/* Prints a hint if only the time to make the encoded file prevents its use: later jobs may use
 * it. */
static void hint_codec(const struct run *r, const struct plan_wish *wish)
{
    struct plan with;
    struct plan_time t;
    struct plan_wish encoded = *wish;
    char why[320];
    const struct setting set = run_setting(r);
    if (r->decision.plan.codec != PLAN_CODEC_NONE || r->costs.codec_make_s <= 0 ||
        log_level_max < LOG_INFO || !plan_search_encodes(&set, wish))
        return;
    encoded.codec = PLAN_CODEC_ZSTD;
    encoded.brief = 1;
    if (find_plan(r, &encoded, &with, NULL, why, sizeof why) != 0 || with.codec == PLAN_CODEC_NONE)
        return;
    price_plan(r, &with, &t);
    if (t.job_s < r->decision.time.job_s * PLAN_CODEC_GAIN)
        log_line(LOG_INFO,
                 "plan: with zstd %.1f s, but making its file takes about %.1f s, once "
                 "(--weights-codec zstd makes it)",
                 t.job_s, r->costs.codec_make_s);
}

static struct weight_form planned_reads(struct device *d, enum compute compute, enum dtype stored)
{
    (void)d;
    return device_cuda_reads(80, 0, compute, stored);
}

/* Replaces a card that is not on this machine; the plan only asks what its matmuls read. */
static struct device *planned_device(void)
{
    static const struct device_api api = {.name = "cuda", .reads = planned_reads};
    static struct device device = {&api};
    return &device;
}

enum err run_plan(struct run *r)
{
    TRY(run_rates(r));
    TRY(run_choose(r));
    r->int8_speed = advise_int8(r);
    return OK;
}

enum err run_choose(struct run *r)
{
    const struct config *c = r->config;
    char why[320];
    if (!r->weights)
        r->weights = malloc(sizeof *r->weights);
    if (!r->weights)
        return fail(ERR_FIT, "memory: plan tables");
    engine_weights_info(r->model,
                        r->plans_device && r->session->device->api->unified ? planned_device()
                                                                            : r->session->device,
                        r->ops.compute, r->weights);
    r->weights->shared = run_shared(r);
    r->costs.io_bytes = IO_RESERVE_BYTES + r->model->file_bytes / 32768;
    r->costs.row_token_bytes = 16;
    r->costs.attend_rate = run_attend_rate(r);
    r->pace.setup =
        pace_setup((int)run_weights(r), (int)r->kv_format, (int)r->ops.compute, r->budget.ram);
    struct plan_wish wish;
    TRY(read_wish(c, r, &wish));
    TRY(pipeline_wish(r, &wish));
    if (c->plan)
        TRY(plan_file_read(r, &wish));
    wish.brief = r->compared;
    const struct plan_wish asked = wish;
    r->hidden_moves = wish.hidden_near == 0 || wish.percent[HIDDEN_NEAR] == 0;
    if (r->model->on_demand && !wish.device)
        wish.decoded = 0; // made in memory, never on the disk that frames are read from
    if ((int64_t)max_i64(wish.batch, 1) * wish.batches > PLAN_ROWS_MAX)
        return fail(ERR_USAGE, "%s: batch x batches: %d x %d rows are more than %d",
                    c->plan ? c->plan : "--batch", wish.batch, wish.batches, PLAN_ROWS_MAX);
    if (r->model != &r->session->opened.model)
        wish.codec = PLAN_CODEC_NONE; // a variant's weights do not exist, so encoding cannot be
                                      // measured; nor are parts of a model encoded
    r->costs.copies_weights = scratch_count(r->session->offload_dir) > 1;
    if (r->costs.copies_weights && c->weights_codec == CODEC_ZSTD)
        return fail(ERR_USAGE, "--weights-codec zstd: works with one --offload-dir only (streamed "
                               "weights are copied to several as they are)");
    if (r->costs.copies_weights)
        wish.codec = PLAN_CODEC_NONE;
    r->costs.staging_bytes = (int64_t)IO_DEPTH * PIECE_BYTES;
    r->costs.bounce_bytes = (int64_t)IO_DEPTH * PIECE_BYTES;
    /* The decoders, and two copies of the file's table: as read and as kept. */
    r->costs.codec_bytes = (1 + mover_checkers(r->machine.threads)) * codec_bytes(0) +
                           r->model->n_pieces * (int64_t)(2 * sizeof(struct codec_piece));
    r->decision.wish = wish;
    TRY(take_search(r, &wish));
    TRY(choose_plan(r, &wish));
    TRY(share_weights(r, &wish));
    const struct setting set = run_setting(r);
    CHECK(plan_check(&set, &r->decision.plan, &r->budget, &r->decision.bytes, why, sizeof why) ==
          0);
    price_plan(r, &r->decision.plan, &r->decision.time);
    plan_tell_changes(r, &asked);
    if (r->plan_told != PLAN_BY_COMMAND)
        print_plan(r);
    hint_codec(r, &wish);
    return OK;
}
