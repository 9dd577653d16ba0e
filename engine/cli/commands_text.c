/* engine/cli/commands_text.c - `inspect`, `pack` and `tokenize`: a model, its pack, its text. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/api/text.h"
#include "engine/cli/commands.h"
#include "engine/model/dummy.h"
#include "engine/model/families/family.h"

#define VARIANTS_MAX  31
#define VARIANT_BYTES 100

/* Says how the experts of a token are chosen and weighed. */
static void put_router(char out[VARIANT_BYTES], const struct shape *s)
{
    static const char *const by[2][2] = {{"softmax over all", "softmax over these"},
                                         {"logistics", "logistics over their sum"}};
    int n =
        snprintf(out, VARIANT_BYTES, "%d of %d experts a token", s->n_experts_used, s->n_experts);
    if (s->n_groups > 0)
        n += snprintf(out + n, VARIANT_BYTES - (size_t)n, " in %d of %d groups", s->n_groups_used,
                      s->n_groups);
    if (s->route_near > 0)
        n += snprintf(out + n, VARIANT_BYTES - (size_t)n,
                      ", weights by softmax over those within %g of each", (double)s->route_near);
    else
        n += snprintf(out + n, VARIANT_BYTES - (size_t)n, ", weights by %s%s",
                      by[s->route_logistic][s->route_alone],
                      s->route_bias ? ", chosen with a bias" : "");
    if (s->route_scale != 1)
        n += snprintf(out + n, VARIANT_BYTES - (size_t)n, ", x %g", (double)s->route_scale);
    if (s->route_scales)
        snprintf(out + n, VARIANT_BYTES - (size_t)n, ", x a factor of its own");
}

static void put_state(char *out, const struct shape *s)
{
    const int n = shape_states(s);
    const char *at = s->beside_scale > 0 ? "beside the next layer's" : "instead of";
    if (s->state == STATE_CONV)
        snprintf(out, VARIANT_BYTES,
                 "a convolution of %d tokens instead of attention in %d of %d layers",
                 s->state_taps, n, s->n_layers);
    else
        snprintf(out, VARIANT_BYTES, "%s (%d, %d heads, %d x %d) %s attention in %d of %d layers",
                 s->state == STATE_MAMBA ? "Mamba-2" : "gated delta net", s->state_k_heads,
                 s->state_v_heads, s->state_k_dim, s->state_v_dim, at, n, s->n_layers);
}

static void put_windows(char *out, const struct shape *s, int windows)
{
    snprintf(out, VARIANT_BYTES, "a window of %d tokens in %d of %d layers", shape_window(s),
             windows, s->n_layers);
}

static void put_positions(char *out, const struct shape *s, int turned)
{
    if (s->position == POSITION_LEARNED)
        snprintf(out, VARIANT_BYTES, "learned positions");
    else
        snprintf(out, VARIANT_BYTES, "RoPE of %d of %d numbers of a head in %d of %d layers",
                 s->rope_dim, s->head_dim, turned, s->n_layers);
}

static void put_latent(char *out, const struct shape *s)
{
    snprintf(out, VARIANT_BYTES,
             "latent attention: %d numbers of a key are its value; heads of %d and %d, of %d",
             s->head_dim - s->rope_dim, shape_query_dim(s, 0), s->latent_value,
             s->latent_query > 0 ? s->latent_query : s->dim);
}

/* Appends what differs in layers with experts; returns the new count. */
static int put_experts(char out[VARIANTS_MAX][VARIANT_BYTES], int n, const struct shape *s)
{
    int dense = 0;
    if (s->n_experts > 0)
        put_router(out[n++], s);
    if (s->shared_dim > 0)
        snprintf(out[n++], VARIANT_BYTES, "an expert of %d for every token, %s", s->shared_dim,
                 s->shared_gate ? "weighed by a logistic" : "unweighed");
    for (int i = 0; i < s->n_layers; i++)
        dense += s->layer_dense[i];
    if (dense > 0)
        snprintf(out[n++], VARIANT_BYTES, "one MLP of %d instead of experts in %d of %d layers",
                 s->dense_dim, dense, s->n_layers);
    if (s->expert_dim > 0)
        snprintf(out[n++], VARIANT_BYTES, "experts of %d numbers, made of the token's %d and back",
                 s->expert_dim, s->dim);
    if (s->expert_norms)
        snprintf(out[n++], VARIANT_BYTES,
                 "norms of router, experts and the expert for every token");
    return n;
}

/* Appends what differs in layers with heads of two sizes; returns the new count. */
static int put_wide(char out[VARIANTS_MAX][VARIANT_BYTES], int n, const struct shape *s)
{
    int wide = 0;
    for (int i = 0; i < s->n_layers; i++)
        wide += s->layer_wide[i];
    if (wide > 0)
        snprintf(out[n++], VARIANT_BYTES, "%d KV heads of %d in %d of %d layers%s",
                 s->wide_kv_heads, s->wide_head_dim, wide, s->n_layers,
                 s->tied_kv ? ", their values the keys before norm and RoPE" : "");
    if (s->value_norm)
        snprintf(out[n++], VARIANT_BYTES, "a norm of values without weights");
    if (s->kv_own_layers > 0)
        snprintf(out[n++], VARIANT_BYTES,
                 "keys and values of earlier layers, and an MLP of %d, in %d of %d layers",
                 s->late_ffn_dim, s->n_layers - s->kv_own_layers, s->n_layers);
    if (s->layer_input > 0)
        snprintf(out[n++], VARIANT_BYTES, "an input of %d numbers of each layer", s->layer_input);
    return n;
}

/* Names the parts of a layer that differ between models. */
static int variants(const struct shape *s, char out[VARIANTS_MAX][VARIANT_BYTES])
{
    static const char *const norms[] = {"RMSNorm", "LayerNorm"};
    static const char *const places[] = {"before attention and MLP", "after the residual sums",
                                         "of what attention and MLP add",
                                         "before attention and MLP and of what they add"};
    static const char *const acts[] = {"none",         "relu", "relu squared",       "gelu",
                                       "gelu by tanh", "silu", "gelu by a logistic", "xielu"};
    static const char *const qk[] = {"", "one weight for all heads", "each head its own weight",
                                     "of the whole vectors",
                                     "one weight for all heads, after RoPE"};
    static const char *const branches[] = {"", "attention and MLP of the same input",
                                           "attention and MLP of the same norm"};
    const struct {
        const char *what;
        float factor;
    } factors[] = {{"embeddings", s->embed_scale},
                   {"outputs of attention", s->branch_scale},
                   {"outputs of MLPs", s->mlp_scale},
                   {"outputs of states", s->beside_scale > 0 ? s->beside_scale : 1},
                   {"time steps", s->state_dt_scale > 0 ? s->state_dt_scale : 1},
                   {"logits", s->logit_scale}};
    int n = 0, turned = 0, windows = 0, bare = 0;
    snprintf(out[n++], VARIANT_BYTES, "%s%s %s", norms[s->norm],
             s->bare_norm ? " without biases" : "", places[s->norm_place]);
    snprintf(out[n++], VARIANT_BYTES, "MLP %s%s", acts[s->act], s->gated ? ", gated" : "");
    if (s->state != STATE_NONE)
        put_state(out[n++], s);
    if (s->query_gate)
        snprintf(out[n++], VARIANT_BYTES, "attention's output times a logistic gate");
    n = put_experts(out, n, s);
    for (int i = 0; i < s->n_layers; i++)
        bare += s->layer_bare[i];
    if (bare > 0)
        snprintf(out[n++], VARIANT_BYTES, "no MLP in %d of %d layers", bare, s->n_layers);
    if (s->act_limit > 0)
        snprintf(out[n++], VARIANT_BYTES, "gate and up cut at %g, up + 1", (double)s->act_limit);
    if (s->qk_norm != QK_NORM_NONE)
        snprintf(out[n++], VARIANT_BYTES, "norms of q and k, %s", qk[s->qk_norm]);
    if (s->branches != BRANCHES_SERIAL)
        snprintf(out[n++], VARIANT_BYTES, "%s", branches[s->branches]);
    for (int i = 0; i < s->n_layers; i++)
        turned += s->layer_rope[i] != SHAPE_NO_ROPE, windows += s->layer_window[i] > 0;
    put_positions(out[n++], s, turned);
    if (s->latent_key > 0)
        put_latent(out[n++], s);
    n = put_wide(out, n, s);
    if (s->rope_long > 0)
        snprintf(out[n++], VARIANT_BYTES, "RoPE of rows of more than %d tokens by another table",
                 s->rope_long);
    if (s->query_beta > 0)
        snprintf(out[n++], VARIANT_BYTES, "queries x 1 + %g ln(1 + position / %d)",
                 (double)s->query_beta, s->query_period);
    if (s->attn_scale > 0)
        snprintf(out[n++], VARIANT_BYTES, "attention scores x %g", (double)s->attn_scale);
    if (windows > 0)
        put_windows(out[n++], s, windows);
    if (s->attn_softcap > 0)
        snprintf(out[n++], VARIANT_BYTES, "attention scores capped at %g", (double)s->attn_softcap);
    if (s->sinks)
        snprintf(out[n++], VARIANT_BYTES, "a sink in the softmax of every head");
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (factors[i].factor != 1)
            snprintf(out[n++], VARIANT_BYTES, "%s x %g", factors[i].what,
                     (double)factors[i].factor);
    if (s->logit_softcap > 0)
        snprintf(out[n++], VARIANT_BYTES, "logits capped at %g", (double)s->logit_softcap);
    return n;
}

static void print_shape(const struct model *m)
{
    const struct shape *s = &m->shape;
    printf("model       %s%s\n", m->name, m->dummy ? " (dummy weights)" : "");
    printf("family      %s, %lld parameters\n", s->family, (long long)m->n_params);
    printf("layers      %d decoder, %d head slices\n", s->n_layers, m->n_slices);
    printf("hidden      %d, heads %d query / %d KV of %d, MLP %d, vocabulary %d%s\n", s->dim,
           s->n_heads, s->n_kv_heads, s->head_dim, s->ffn_dim, s->vocab, m->tied ? " (tied)" : "");
    printf("context     %d tokens\n", s->context);
    char text[VARIANTS_MAX][VARIANT_BYTES];
    for (int i = 0, n = variants(s, text); i < n; i++)
        printf("%-11s %s\n", i == 0 ? "variants" : "", text[i]);
    printf("tokenizer   %s\n", m->tokenizer ? "inside" : "none (token ids only)");
    printf("pack        %s, %.1f MiB\n", m->path, (double)m->file_bytes / 1048576.0);
    int64_t largest = 0, kv = 0;
    for (int i = 1; i < m->n_layers; i++)
        largest = max_i64(largest, m->layers[i].n_bytes);
    for (int i = 0; i < s->n_layers; i++)
        kv += s->layer_state[i] ? 0 : shape_kv_numbers(s, i) * 2;
    const int states = shape_states(s);
    printf("layer       %.2f MiB the largest streamed; KV %lld bytes a token in bf16\n",
           (double)largest / 1048576.0, (long long)kv);
    if (states > 0)
        printf("state       %.2f MiB a row in f32, in %d layers\n",
               (double)(states * shape_state_bytes(s)) / 1048576.0, states);
}

/* Tensors of the model file that the pack lacks; empty for a pack or a config. */
static struct family_unused unused_of(const char *model)
{
    struct family_unused u = {0};
    struct family_model m;
    struct source s;
    if (model_is_pack(model) || dummy_is_config(model) || source_open(&s, model) != OK)
        return u;
    if (family_read(&m, &s) == OK)
        family_unused(&m, &s, &u);
    source_close(&s);
    return u;
}

/* The ids added around a text and those that end one; null without a tokenizer. */
static json_t *tokenizer_json(const struct tokenizer *tok)
{
    int64_t n_bos = 0, n_eos = 0;
    int n_stops = 0;
    if (!tok)
        return json_null();
    const char *bos = tokenizer_bos_text(tok, &n_bos), *eos = tokenizer_eos_text(tok, &n_eos);
    const int32_t *stops = tokenizer_stops(tok, &n_stops);
    json_t *list = json_array();
    for (int i = 0; i < n_stops; i++)
        json_array_append_new(list, json_integer(stops[i]));
    return json_pack("{si so si so sb so}", "bos", tokenizer_bos(tok), "bos_text",
                     bos ? json_stringn(bos, (size_t)n_bos) : json_null(), "eos",
                     tokenizer_eos(tok), "eos_text",
                     eos ? json_stringn(eos, (size_t)n_eos) : json_null(), "adds_bos",
                     tokenizer_adds_bos(tok), "stops", list);
}

static json_t *model_json(const struct model *m)
{
    const struct shape *s = &m->shape;
    json_t *root = json_pack(
        "{ss ss sb sI si si si si si si si si sb}", "model", m->name, "family", s->family,
        "dummy_weights", m->dummy, "parameters", (json_int_t)m->n_params, "n_layers", s->n_layers,
        "dim", s->dim, "n_heads", s->n_heads, "n_kv_heads", s->n_kv_heads, "head_dim", s->head_dim,
        "ffn_dim", s->ffn_dim, "vocab", s->vocab, "context", s->context, "tied", m->tied);
    char text[VARIANTS_MAX][VARIANT_BYTES];
    json_t *list = json_array();
    for (int i = 0, n = variants(s, text); i < n; i++)
        json_array_append_new(list, json_string(text[i]));
    json_object_set_new(root, "variants", list);
    json_t *tensors = json_array();
    for (int layer = 0; layer < m->n_layers; layer++)
        for (int role = 0; role < N_ROLES; role++) {
            const struct model_tensor *t = &m->layers[layer].tensors[role];
            if (t->n > 0)
                json_array_append_new(
                    tensors, json_pack("{si ss ss si si sI}", "layer", layer, "tensor",
                                       role_name((enum tensor_role)role), "format",
                                       dtype_info(t->dtype)->name, "n", t->n, "k", t->k, "offset",
                                       (json_int_t)(m->layers[layer].offset + t->offset)));
        }
    json_object_set_new(root, "tensors", tensors);
    return root;
}

enum err command_inspect(const struct config *c)
{
    struct config with_model = *c;
    if (c->n_args > 0)
        with_model.model = c->args[0];
    struct opened o;
    enum err err = opened_open(&o, &with_model);
    const struct family_unused unused =
        err == OK ? unused_of(with_model.model) : (struct family_unused){0};
    if (err == OK && c->json) {
        json_t *root = model_json(&o.model);
        json_object_set_new(root, "tokenizer", tokenizer_json(o.tokenizer));
        if (unused.n_tensors > 0)
            json_object_set_new(root, "unused",
                                json_pack("{sI sI ss}", "tensors", (json_int_t)unused.n_tensors,
                                          "bytes", (json_int_t)unused.n_bytes, "parts",
                                          unused.parts));
        json_dumpf(root, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(root);
    } else if (err == OK) {
        print_shape(&o.model);
        if (unused.n_tensors > 0)
            printf("not used    %lld tensors, %.1f MiB: %s\n", (long long)unused.n_tensors,
                   (double)unused.n_bytes / 1048576.0, unused.parts);
        printf("tensors\n");
        for (int layer = 0; layer < o.model.n_layers; layer++)
            for (int role = 0; role < N_ROLES; role++) {
                const struct model_tensor *t = &o.model.layers[layer].tensors[role];
                if (t->n > 0)
                    printf("  %4d %-12s %-5s [%d, %d]\n", layer, role_name((enum tensor_role)role),
                           dtype_info(t->dtype)->name, t->n, t->k);
            }
    }
    opened_close(&o);
    return err;
}

/* Encodes {"text"} or {"messages"}. The caller owns the answer. */
static enum err encode_row(struct opened *o, const json_t *row, json_t **answer)
{
    const json_t *messages = json_object_get(row, "messages"), *text = json_object_get(row, "text");
    const json_t *special = json_object_get(row, "add_special_tokens");
    const int add_special = json_is_true(special);
    char *rendered = NULL;
    int64_t n = 0, n_ids = 0;
    if (special && !json_is_boolean(special))
        return fail(ERR_ROW, "add_special_tokens must be true or false");
    if (messages)
        TRY(text_chat(o, row, &rendered, &n));
    else if (!json_is_string(text))
        return fail(ERR_ROW, "needs \"text\" or \"messages\"");
    const char *s = rendered ? rendered : json_string_value(text);
    if (!rendered)
        n = (int64_t)json_string_length(text);
    int32_t *ids = NULL;
    enum err err = tokenizer_encode_all(o->tokenizer, s, n, add_special, &ids, &n_ids);
    if (err == OK) {
        *answer = json_object();
        if (rendered)
            json_object_set_new(*answer, "text", json_stringn(rendered, (size_t)n));
        json_t *list = json_array();
        for (int64_t i = 0; i < n_ids; i++)
            json_array_append_new(list, json_integer(ids[i]));
        json_object_set_new(*answer, "ids", list);
    }
    free(ids);
    free(rendered);
    return err;
}

static enum err decode_row(struct opened *o, const json_t *row, json_t **answer)
{
    const json_t *list = json_object_get(row, "ids");
    if (!json_is_array(list))
        return fail(ERR_ROW, "needs \"ids\"");
    int64_t n = (int64_t)json_array_size(list), n_text = 0;
    int32_t *ids = malloc((size_t)(n + 1) * sizeof *ids);
    enum err err = ids ? OK : fail(ERR_FIT, "no memory for token ids");
    for (int64_t i = 0; err == OK && i < n; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        ids[i] = id > INT32_MAX ? -1 : (int32_t)max_i64(id, -1);
    }
    char *text = NULL;
    if (err == OK)
        err = text_decode(o, ids, n, 0, &text, &n_text);
    if (err == OK)
        *answer = json_pack("{s:o}", "text", json_stringn(text, (size_t)n_text));
    free(ids);
    free(text);
    return err;
}

enum err command_tokenize(const struct config *c)
{
    struct opened o;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t failed = 0, number = 0;
    enum err err = opened_open(&o, c);
    if (err == OK && !o.tokenizer)
        err = fail(ERR_INPUT, "%s: has no tokenizer", c->model);
    while (err == OK && (n = getline(&line, &cap, stdin)) >= 0) {
        number++;
        if (n == 0 || line[strspn(line, " \t\r\n")] == 0)
            continue;
        json_error_t error;
        json_t *row = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error),
               *answer = NULL;
        enum err row_err =
            row ? c->decode ? decode_row(&o, row, &answer) : encode_row(&o, row, &answer)
                : fail(ERR_ROW, "%s", error.text);
        if (row_err == ERR_ROW) {
            answer = json_pack("{s{sssssI}}", "error", "code", "invalid_request", "message",
                               err_text(), "line", (json_int_t)number);
            failed++;
        } else {
            err = row_err;
        }
        if (answer) {
            json_dumpf(answer, stdout, JSON_COMPACT);
            putchar('\n');
            fflush(stdout); // a caller may wait for each answer before the next row
        }
        json_decref(row);
        json_decref(answer);
    }
    free(line);
    opened_close(&o);
    return err == OK && failed > 0 ? ERR_ROWS : err;
}

enum err command_pack(const struct config *c)
{
    const char *model = c->n_args > 0 ? c->args[0] : c->model;
    if (!model || !c->out)
        return fail(ERR_USAGE, "pack: needs MODEL and -o FILE");
    enum pack_weights weights = pack_weights_by_name(c->weights);
    if (weights == N_PACK_WEIGHTS)
        return fail_choice("weights", c->weights, "auto|f32|f16|bf16|bf12|q8|q4");
    if (model_is_pack(model))
        return fail(ERR_USAGE, "%s: already a pack", model);
    struct pack_request request = {.path = c->out, .weights = weights};
    TRY(opened_pack(model, &request, c));
    struct stat st;
    if (!c->quiet && stat(c->out, &st) == 0)
        log_line(LOG_INFO, "pack: %s, %.1f MiB", c->out, (double)st.st_size / 1048576.0);
    return OK;
}
