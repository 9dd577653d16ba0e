/* engine/api/run_setup.c - of run.h: from flags to an opened model; no job yet.
 *
 * Note: `fingerprint` contains exactly what can change a byte of OUT besides the input. Placement,
 * threads and budgets change no byte and are left out. */
#include "engine/api/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/advice.h"
#include "engine/api/budget_layers.h"
#include "engine/api/compute.h"
#include "engine/api/frontier_file.h"
#include "engine/api/pipeline.h"
#include "engine/api/version.h"

/* "0.2" is a fraction, "512" a count. */
static enum err parse_share(const char *flag, const char *text, double *value, int *is_fraction)
{
    TRY(parse_number(flag, text, value));
    *is_fraction = strchr(text, '.') != NULL;
    if (*value < 0 || (*is_fraction && *value > 1))
        return fail(ERR_USAGE, "--%s: %s is out of range (0.0..1.0, or a count)", flag, text);
    return OK;
}

/* --kv-recent as text, or "by policy" if it is the policy's default. */
static struct frontier_share recent_text(const struct evict *e)
{
    const int own = e->recent_is_fraction && e->recent == evict_rule_of(e->policy).recent;
    return e->recent_set && !own ? frontier_share(e->recent, e->recent_is_fraction)
                                 : (struct frontier_share){"by policy"};
}

enum err run_read_evict(struct evict *e, const struct config *c)
{
    memset(e, 0, sizeof *e);
    e->policy = evict_policy_by_name(c->kv_policy);
    if (e->policy == N_EVICT_POLICIES)
        return fail_choice("kv-policy", c->kv_policy, EVICT_NAMES);
    e->scope = evict_rule_of(e->policy).scope;
    if (c->kv_scope != CONFIG_AUTO)
        e->scope = c->kv_scope;
    e->simulate = c->kv_simulate && e->policy != EVICT_FULL;
    e->positions = c->kv_positions;
    if (e->positions == EVICT_POSITIONS_SLOT && e->policy == EVICT_FULL)
        return fail(ERR_USAGE, "--kv-positions slot: --kv-policy full keeps every token, so no "
                               "position comes again (--kv-policy streaming)");
    if (c->kv_trace && e->policy == EVICT_FULL)
        return fail(ERR_USAGE, "--kv-trace: nothing is dropped (name a --kv-policy)");
    TRY(parse_share("kv-budget", c->kv_budget, &e->budget, &e->budget_is_fraction));
    if (!e->budget_is_fraction && e->budget < 1)
        return fail(ERR_USAGE, "--kv-budget: %s is out of range (at least 1 slot)", c->kv_budget);
    e->budget_of_prompt = c->kv_budget_of;
    e->sink = (int)min_i64(c->kv_sink, INT32_MAX);
    e->recent_set = c->kv_recent != NULL;
    if (c->kv_recent)
        TRY(parse_share("kv-recent", c->kv_recent, &e->recent, &e->recent_is_fraction));
    struct evict_row row;
    if (!e->budget_is_fraction && evict_row_init(e, INT32_MAX, 0, &row) != 0)
        return fail(ERR_USAGE, "--kv-budget: %d slots are fewer than sink %d + recent %d",
                    row.budget, row.sink, row.recent);
    return OK;
}

/* Page slots of a row's state; 0: the model has none. */
static int state_slots(const struct run *r)
{
    const struct shape *s = &r->model->shape;
    struct kv_layout l;
    model_kv_layout(s, 0, kv_page_format(r->kv_format), &l);
    return (int)ceil_div(shape_state_bytes(s), l.page_bytes) * PAGE_SLOTS;
}

void run_set_kinds(struct run *r)
{
    for (int i = 0; i < 2 && shape_states(&r->model->shape) > 0; i++)
        r->kinds[i].of[r->kinds[i].n - 1].state = state_slots(r);
    r->evict.kinds = &r->kinds[r->evict.policy != EVICT_FULL];
}

static enum err read_kinds(struct run *r, const struct config *c)
{
    const struct shape *s = &r->model->shape;
    double share[SHAPE_LAYERS_MAX];
    TRY(budget_layers_read(c->kv_budget_layers, s->n_layers, share));
    const int slots = state_slots(r);
    if (kv_kinds_make(&r->kinds[0], s->layer_window, s->layer_wide, NULL, s->layer_state, slots,
                      s->n_layers) != 0)
        return fail(ERR_INPUT, "%s: layers with windows of more than %d lengths", r->model->name,
                    KV_KINDS_SLOTS - 1);
    (void)kv_kinds_make(&r->kinds[1], s->layer_window, s->layer_wide, share, s->layer_state, slots,
                        s->n_layers);
    run_set_kinds(r);
    return OK;
}

enum err run_check_positions(const struct run *r, const struct evict *e)
{
    const struct shape *s = &r->model->shape;
    if (e->positions != EVICT_POSITIONS_SLOT)
        return OK;
    if (s->position != POSITION_ROPE)
        return fail(ERR_USAGE,
                    "--kv-positions slot: %s has learned positions, which a key cannot "
                    "change (--kv-positions true)",
                    s->family);
    if (s->qk_norm == QK_NORM_TURNED)
        return fail(
            ERR_USAGE,
            "--kv-positions slot: %s norms keys after it turns them, so a stored key cannot "
            "turn again (--kv-positions true)",
            s->family);
    if (s->rope_long > 0)
        return fail(ERR_USAGE,
                    "--kv-positions slot: %s turns rows of more than %d tokens by "
                    "another table (--kv-positions true)",
                    s->family, s->rope_long);
    return OK;
}

enum err run_read_kv_format(enum kv_format *format, const struct config *c)
{
    *format = kv_format_by_name(c->kv_format);
    if (*format == N_KV_FORMATS)
        return fail_choice("kv-format", c->kv_format, "f32|bf16|q8|q4|mixed");
    return OK;
}

/* Reads --matmul. A measured default could differ between days, and change the answer. */
static enum err read_matmul(struct run *r, const struct config *c, struct ops *ops)
{
    const struct device_api *api = r->session->device->api;
    snprintf(r->session->matmul, sizeof r->session->matmul, "own");
    if (c->matmul == MATMUL_OWN)
        return OK;
    if (!api->library)
        return fail(ERR_USAGE,
                    "--matmul cublaslt: device %s has no matmuls but its own (--device cuda)",
                    api->name);
    if (ops->compute != COMPUTE_BF16)
        return fail(ERR_USAGE, "--matmul cublaslt: does not go with --compute %s (only with bf16)",
                    c->compute);
    ops->matmul = MATMUL_CUBLASLT;
    return api->library->open(r->session->device, r->session->matmul, sizeof r->session->matmul);
}

/* Reads the flags that need only the device to be open. */
static enum err read_compute(struct run *r, const struct config *c, struct compute_setup *compute)
{
    TRY(compute_read(compute, c));
    TRY(device_open(c->device, &r->session->device));
    int elsewhere = c->looks && c->machine; // another machine may have a device
    if (r->session->device->api->unified && !elsewhere && c->attn == ATTN_DEVICE)
        return fail(ERR_DEVICE, "--attn device: there is no device but the CPU (--attn cpu)");
    TRY(read_matmul(r, c, &compute->ops));
    return run_read_kv_format(&r->kv_format, c);
}

/* Names what computes: the CPU's instruction set, or the device. Nothing where all CPUs give the
 * same bytes (kernels/README.md). */
static enum err what_computes(const struct run *r, char *buf, size_t cap)
{
    struct device_info info;
    const int same = r->ops.compute == COMPUTE_F32 && r->kv_format == KV_F32;
    if (r->session->device->api->unified) {
        snprintf(buf, cap, same ? "" : "isa=%s", isa_name(r->ops.isa));
        return OK;
    }
    TRY(r->session->device->api->info(r->session->device, &info));
    if (r->config->attn == ATTN_CPU)
        snprintf(buf, cap, "device=%s\nmatmul=%s\nattn=cpu\nisa=%s", info.model, r->session->matmul,
                 isa_name(r->ops.isa));
    else
        snprintf(buf, cap, "device=%s\nmatmul=%s\nattn=device", info.model, r->session->matmul);
    return OK;
}

static enum err write_fingerprint(const struct run *r, const struct config *c)
{
    struct session *s = r->session;
    char computes[256];
    TRY(what_computes(r, computes, sizeof computes));
    const struct model *m = r->model;
    const struct evict *e = &r->evict;
    size_t cap = sizeof s->fingerprint;
    struct kv_layout l;
    model_kv_layout(&m->shape, 0, kv_page_format(r->kv_format), &l);
    int n = snprintf(
        s->fingerprint, cap, "model=%016llx\n%s\ncompute=%s\nkv_policy=%s\nkv_format=%s%s\n",
        (unsigned long long)m->fingerprint, computes, compute_name(r->ops.compute), c->kv_policy,
        kv_format_name(r->kv_format), kv_rotation(&l) > 0 ? " rotated" : "");
    if (e->policy != EVICT_FULL)
        snprintf(s->fingerprint + n, cap - (size_t)n,
                 "kv_budget=%s\nkv_recent=%s\nkv_sink=%d\nkv_scope=%s\nkv_simulate=%d\n%s",
                 frontier_share(e->budget, e->budget_is_fraction).text, recent_text(e).text,
                 e->sink == evict_rule_of(e->policy).sink ? -1 : e->sink,
                 e->scope == EVICT_SCOPE_LAYER ? "layer" : "head", e->simulate,
                 e->positions == EVICT_POSITIONS_SLOT ? "kv_positions=slot\n" : "");
    n = (int)strlen(s->fingerprint);
    if (e->policy != EVICT_FULL && e->budget_of_prompt)
        n += snprintf(s->fingerprint + n, cap - (size_t)n, "kv_budget_of=prompt\n");
    if (e->policy != EVICT_FULL && kv_kinds_uneven(&r->kinds[1]))
        snprintf(s->fingerprint + n, cap - (size_t)n, "kv_budget_layers=%016llx\n",
                 (unsigned long long)hash_bytes(&r->kinds[1], sizeof r->kinds[1], 0));
    return OK;
}

enum dtype run_weights(const struct run *r)
{
    return r->model->layers[1].tensors[ROLE_UP].dtype;
}

enum err run_prepare(struct run *r, const struct config *c)
{
    memset(r, 0, sizeof *r);
    r->config = c;
    if (c->pipeline)
        TRY(pipeline_open(r));
    c = r->config;
    r->room = (struct budget){-1, -1, -1};
    r->start_ns = clock_ns();
    struct session *s = r->session = calloc(1, sizeof *s);
    if (!s)
        return fail(ERR_FIT, "no memory to open a model");
    r->model = &s->opened.model;
    struct compute_setup compute;
    TRY(read_compute(r, c, &compute));
    TRY(run_read_evict(&r->evict, c));
    TRY(pipeline_turn_begin(r));
    TRY(opened_open(&s->opened, c));
    TRY(pipeline_turn_end(r));
    TRY(read_kinds(r, c));
    TRY(run_check_positions(r, &r->evict));
    TRY(model_range_check(r->model, s->device, compute.ops.compute));
    snprintf(s->offload_dir, sizeof s->offload_dir, "%s",
             c->offload_dir ? c->offload_dir : s->opened.pack_path);
    char *slash = strrchr(s->offload_dir, '/');
    if (!c->offload_dir)
        snprintf(slash ? slash : s->offload_dir, 2,
                 slash == s->offload_dir ? "/"
                 : slash                 ? ""
                                         : ".");
    TRY(compute_start(&compute, c, s->offload_dir));
    s->info = compute.info;
    r->ops = compute.ops;
    s->pool = compute.ops.pool;
    s->io = compute.io;
    r->machine.threads = compute.n_threads;
    TRY(write_fingerprint(r, c));
    TRY(advise_flags(r));
    if (r->model->dummy && !c->quiet)
        log_line(LOG_WARN, "model: dummy weights (pseudo-random): speed is real, text is not");
    enum dtype weights = run_weights(r);
    if (r->ops.compute == COMPUTE_INT8 && weights != DTYPE_Q8 && weights != DTYPE_Q4)
        log_line(LOG_WARN, "compute: weights in %s are multiplied as bf16 (--weights q8 for int8)",
                 dtype_info(weights)->name);
    return r->pipeline ? pipeline_cut(r) : OK;
}
