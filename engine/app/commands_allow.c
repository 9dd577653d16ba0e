/* engine/app/commands_allow.c - `plan --allow`: what lossy options would gain (see commands.h).
 *
 * Owns: the list of options, the model as it would be in another weight format, a line each.
 * Refuses: to run any of them. A newcomer would miss: only sizes change: a plan reads no weights.
 */
#include "engine/app/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pack/pack.h"

#define OPTIONS_MAX 16

/* One thing that is allowed. */
struct lossy {
    char name[48];
    enum dtype weights; // N_DTYPES: this is a KV policy
    struct evict evict;
};

struct variant {
    const struct lossy *weights, *kv; // NULL: as without
};

static enum err read_option(const struct config *c, char *word, struct lossy *o)
{
    struct config with = *c;
    char *equals = strchr(word, '=');
    snprintf(o->name, sizeof o->name, "%s", word);
    o->weights = strcmp(word, "q8") == 0 ? DTYPE_Q8 : strcmp(word, "q4") == 0 ? DTYPE_Q4 : N_DTYPES;
    if (o->weights != N_DTYPES)
        return OK;
    if (!equals)
        return fail(ERR_USAGE, "--allow: '%s' is none of q8, q4, POLICY=BUDGET (h2o=0.2)", word);
    *equals = 0;
    with.kv_policy = word;
    with.kv_budget = equals + 1;
    return run_read_evict(&o->evict, &with);
}

static enum err read_options(const struct config *c, struct lossy *options, int *n)
{
    char copy[256];
    *n = 0;
    if (snprintf(copy, sizeof copy, "%s", c->allow) >= (int)sizeof copy)
        return fail(ERR_USAGE, "--allow: too long");
    for (char *save = NULL, *word = strtok_r(copy, ", ", &save); word;
         word = strtok_r(NULL, ", ", &save)) {
        if (*n == OPTIONS_MAX)
            return fail(ERR_USAGE, "--allow: more than %d options", OPTIONS_MAX);
        TRY(read_option(c, word, &options[(*n)++]));
    }
    return *n > 0 ? OK : fail(ERR_USAGE, "--allow: needs options (q8,q4,h2o=0.2)");
}

/* The layers of `m` with every matrix in another format, as `pack` would lay them out. The slices
 * of the head keep their rows. */
static void convert_layers(const struct model *m, enum dtype t, struct model_layer *layers)
{
    for (int i = 0; i < m->n_layers; i++) {
        struct model_layer *l = &layers[i];
        int64_t at = 0;
        *l = m->layers[i];
        for (int role = 0; role < N_ROLES; role++) {
            struct model_tensor *tensor = &l->tensors[role];
            if (tensor->n == 0)
                continue;
            if (role_kind(role) != ROLE_IS_VECTOR && role != ROLE_POS)
                tensor->dtype = t;
            tensor->offset = at;
            int64_t n_bytes = role_bytes(role, tensor->dtype, tensor->n, tensor->k);
            CHECK(n_bytes >= 0); // q8 and q4 hold rows of any length
            at = round_up(at + n_bytes, 64);
        }
        l->n_bytes = round_up(max_i64(at, 1), PACK_ALIGN);
        l->offset = i > 0 ? layers[i - 1].offset + layers[i - 1].n_bytes : PACK_ALIGN;
    }
}

/* Plans one variant; prints its line. *lossless: tokens/s of the first. */
static enum err plan_variant(struct run *r, struct variant v, struct model_layer *layers,
                             double *lossless)
{
    struct model *m = &r->opened.model;
    struct model_layer *own = m->layers;
    struct evict evict = r->evict;
    char name[104];
    snprintf(name, sizeof name, "%s%s%s", v.weights ? v.weights->name : "",
             v.weights && v.kv ? " + " : "", v.kv ? v.kv->name : "");
    if (v.kv)
        r->evict = v.kv->evict;
    enum err err = command_plan_work(r);
    if (err == OK && v.weights) {
        convert_layers(m, v.weights->weights, layers);
        m->layers = layers;
        r->weights_assumed = 1;
    }
    if (err == OK)
        err = run_plan(r);
    m->layers = own;
    r->weights_assumed = 0;
    r->evict = evict;
    const char *title = *name                           ? name
                        : r->evict.policy == EVICT_FULL ? "default (lossless)"
                                                        : "as asked";
    if (err == ERR_FIT && *name == 0)
        return err;
    if (err == ERR_FIT) {
        printf("%-20s %10s %8s %10s  does not fit\n", title, "-", "-", "-");
        return OK;
    }
    TRY(err);
    double rate = r->time.job_s > 0 ? (double)r->work.output_tokens / r->time.job_s : 0;
    if (*name == 0)
        *lossless = rate;
    printf("%-20s %10.4g %7.2fx %10.1f  %s%s\n", title, rate, *lossless > 0 ? rate / *lossless : 0,
           (double)r->bytes.ram / 1048576.0, r->time.bound, *name ? ", lossy" : "");
    return OK;
}

static enum err compare(struct run *r, const struct lossy *options, int n,
                        struct model_layer *layers)
{
    double lossless = 0;
    printf("%-20s %10s %8s %10s  bound   (predicted)\n", "allowed", "tokens/s", "", "RAM MiB");
    TRY(plan_variant(r, (struct variant){NULL, NULL}, layers, &lossless));
    for (int i = 0; i < n; i++) {
        struct variant v = {options[i].weights != N_DTYPES ? &options[i] : NULL,
                            options[i].weights == N_DTYPES ? &options[i] : NULL};
        TRY(plan_variant(r, v, layers, &lossless));
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (options[i].weights != N_DTYPES && options[k].weights == N_DTYPES)
                TRY(plan_variant(r, (struct variant){&options[i], &options[k]}, layers, &lossless));
    printf("Lossy options change the answers: they are never chosen, only told. To use them: "
           "--weights q8|q4, --kv-policy and --kv-budget.\n");
    return OK;
}

enum err command_allow(struct run *r)
{
    struct lossy options[OPTIONS_MAX];
    int n;
    TRY(read_options(r->config, options, &n));
    struct model_layer *layers = calloc((size_t)r->opened.model.n_layers, sizeof *layers);
    if (!layers)
        return fail(ERR_FIT, "memory: plan tables");
    enum log_level level = log_level_max;
    log_level_max = LOG_ERROR;
    r->keep_rows = 1;
    enum err err = compare(r, options, n, layers);
    log_level_max = level;
    free(layers);
    return err;
}
