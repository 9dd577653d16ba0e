/* bench/attention.c - `bench attention`: how sparse a model's attention is, per layer and head, the
 * share of heavy hitters, and how similar the sets are that KV policies keep.
 *
 * Owns: the choice of prompts, the passes over them, the rows. Refuses: its own forward pass: each
 * pass is a row of `score`, on a CPU whose launches are observed (attention_look.c). Note: a prompt
 * attends in full under every policy, so all figures come from one pass; each policy's kept
 * positions, chosen by the engine, need one more pass. */
#include "bench/attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "engine/cli/commands.h"

struct attention {
    struct config config;
    struct run *run;
    int policies[N_EVICT_POLICIES], n_policies;
    struct evict evicts[N_EVICT_POLICIES];
    int32_t *ids; // owned
    int64_t n_prompts;
    struct look look;
    struct bench_table table;
};

static enum err read_policies(struct attention *a)
{
    TRY(bench_policies(&a->config, a->policies, &a->n_policies));
    for (int i = 0; i < a->n_policies; i++) {
        struct config with = a->config;
        with.kv_policy = evict_policy_name(a->policies[i]);
        TRY(run_read_evict(&a->evicts[i], &with));
    }
    return OK;
}

static enum err drop_scored(void *ctx, const struct job_result *result)
{
    (void)ctx;
    return result->error ? fail(ERR_INPUT, "prompt: %s", result->error->message) : OK;
}

/* Runs one prompt through all layers. */
static enum err walk_prompt(struct attention *a, const int32_t *ids, const struct evict *evict)
{
    struct run *r = a->run;
    struct request row = {0};
    struct job_callbacks callbacks = {.finished = drop_scored};
    enum log_level level = log_level_max;
    int64_t n_prompt = a->config.prefix;
    TRY(rows_score(&row, 0, "prompt", ids, n_prompt + 1, n_prompt));
    r->evict = *evict;
    run_set_kinds(r);
    r->plan_told = PLAN_BY_COMMAND;
    log_level_max = LOG_ERROR;
    enum err err = rows_memory(r, REQUEST_SCORE, &row, 1, &callbacks);
    log_level_max = level;
    TRY(err);
    CHECK(a->look.layer == a->look.n_layers);
    return run_again(r);
}

static enum err look_at_prompts(struct attention *a)
{
    const struct evict full = {.policy = EVICT_FULL};
    struct look *l = &a->look;
    for (int64_t i = 0; i < a->n_prompts; i++) {
        const int32_t *ids = a->ids + i * a->config.window;
        look_begin(l, -1);
        TRY(walk_prompt(a, ids, &full));
        for (int k = 0; k < a->n_policies; k++) {
            look_begin(l, k);
            TRY(walk_prompt(a, ids, &a->evicts[k]));
        }
        look_compare(l);
        log_line(LOG_INFO, "attention: prompt %lld of %lld", (long long)i + 1,
                 (long long)a->n_prompts);
    }
    look_means(l);
    return OK;
}

/* ---- rows ---- */

#define PAIR_NAME 96

static void pair_name(const struct attention *a, int i, int k, char name[PAIR_NAME])
{
    snprintf(name, PAIR_NAME, "%s~%s", evict_policy_name(a->policies[i]),
             evict_policy_name(a->policies[k]));
}

static enum err print_head(struct attention *a, int layer, int head)
{
    const struct look *l = &a->look;
    json_t *row = json_pack("{si si}", "layer", layer, "head", head);
    char name[PAIR_NAME];
    for (int i = 0; i < N_LOOK_FIGURES; i++)
        json_object_set_new(row, look_names[i],
                            json_real(look_at(l, layer, head, (enum look_figure)i)));
    for (int i = 0; i < a->n_policies; i++)
        for (int k = i + 1; k < a->n_policies; k++) {
            int kv_head = head / (l->n_heads / l->n_kv_heads);
            pair_name(a, i, k, name);
            json_object_set_new(row, name, json_real(look_overlap(l, i, k, layer, kv_head)));
        }
    return bench_row(&a->table, row);
}

/* Prints means over all layers and heads. */
static void print_means(struct attention *a)
{
    const struct look *l = &a->look;
    char name[PAIR_NAME + 8];
    for (int i = 0; i < N_LOOK_FIGURES; i++) {
        double sum = 0;
        for (int at = 0; at < l->n_layers * l->n_heads; at++)
            sum += look_at(l, at / l->n_heads, at % l->n_heads, (enum look_figure)i);
        snprintf(name, sizeof name, "mean %s", look_names[i]);
        bench_table_foot(&a->table, name, json_real(sum / (l->n_layers * l->n_heads)));
    }
    for (int i = 0; i < a->n_policies; i++)
        for (int k = i + 1; k < a->n_policies; k++) {
            double sum = 0;
            char pair[PAIR_NAME];
            for (int at = 0; at < l->n_layers * l->n_kv_heads; at++)
                sum += look_overlap(l, i, k, at / l->n_kv_heads, at % l->n_kv_heads);
            pair_name(a, i, k, pair);
            snprintf(name, sizeof name, "mean %s", pair);
            bench_table_foot(&a->table, name, json_real(sum / (l->n_layers * l->n_kv_heads)));
        }
}

static enum err print_heads(struct attention *a)
{
    enum err err = OK;
    bench_table_open(&a->table, &a->config);
    bench_table_note(&a->table, "model", json_string(a->run->model->name));
    bench_table_note(&a->table, "prompts", json_integer(a->n_prompts));
    bench_table_note(&a->table, "prompt_tokens", json_integer(a->config.prefix));
    bench_table_note(&a->table, "kv_budget", json_string(a->config.kv_budget));
    for (int at = 0; at < a->look.n_layers * a->look.n_heads && err == OK; at++)
        err = print_head(a, at / a->look.n_heads, at % a->look.n_heads);
    if (err == OK)
        print_means(a);
    enum err closed = bench_table_close(&a->table);
    return err != OK ? err : closed;
}

/* ---- the command ---- */

static enum err attention(struct attention *a)
{
    int64_t n_ids;
    TRY(read_policies(a));
    TRY(run_begin(&a->run, &a->config));
    struct run *r = a->run;
    TRY(run_prepare(r, &a->config));
    if (!r->session->device->api->unified)
        return fail(ERR_DEVICE, "bench attention: works on the CPU only (add --device cpu)");
    TRY(command_text_ids(r, &a->ids, &n_ids));
    a->n_prompts = command_windows(&a->config, n_ids);
    TRY(look_open(&a->look, r->session->device, &r->model->shape, (int)a->config.prefix,
                  pool_threads(r->session->pool), a->n_policies));
    r->session->device = &a->look.device;
    TRY(look_at_prompts(a));
    return print_heads(a);
}

enum err bench_attention(const struct config *c)
{
    if (!c->text)
        return fail(ERR_USAGE, "bench attention: needs --text FILE");
    TRY(command_window_check(c));
    struct attention *a = calloc(1, sizeof *a);
    if (!a)
        return fail(ERR_FIT, "no memory for the figures of attention");
    a->config = *c;
    a->config.compares_policies = 1;
    a->config.limit = max_i64(c->limit, 1); // one pass per policy: a whole text would take long
    enum err err = attention(a);
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    if (a->run) {
        enum err closed = run_end(a->run, OK);
        err = err != OK ? err : closed;
    }
    look_close(&a->look);
    free(a->ids);
    free(a);
    return err != OK ? fail(err, "%s", why) : OK;
}
