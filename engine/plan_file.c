/* engine/plan_file.c - see plan_file.h. */
#include "engine/plan_file.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

const char *plan_percent(const struct plan *p)
{
    static _Thread_local char text[64];
    int n = p->layers - 1;
    snprintf(text, sizeof text, "0 %d 0 %d 0 %d", n > 0 ? 100 * p->resident / n : 100,
             p->kv_home == TIER_RAM ? 100 : 0, p->hidden_home == TIER_RAM ? 100 : 0);
    return text;
}

const char *plan_codec_name(const struct plan *p)
{
    return p->codec == PLAN_CODEC_ZSTD ? "zstd" : "none";
}

static const char *const codec_names[] = {"none", "zstd", NULL};
static const char *const home_names[] = {
    [TIER_DEVICE] = "device", [TIER_RAM] = "ram", [TIER_NVME] = "nvme", NULL};
static const char *const share_names[] = {"on", "off", NULL};

#define BOTH(wished, planned) offsetof(struct plan_wish, wished), offsetof(struct plan, planned)

static const struct {
    const char *key;
    size_t wish, plan;        // offsets of the int in struct plan_wish and struct plan
    const char *const *names; // what its values are called; NULL: numbers
} fields[] = {
    {"batch", BOTH(batch, batch), NULL},
    {"batches", BOTH(batches, batches), NULL},
    {"weights_resident", BOTH(resident, resident), NULL},
    {"weights_decoded", BOTH(decoded, decoded), NULL},
    {"weights_codec", BOTH(codec, codec), codec_names},
    {"kv_home", BOTH(kv_home, kv_home), home_names},
    {"hidden_home", BOTH(hidden_home, hidden_home), home_names},
    {"ahead_weights", BOTH(ahead_weights, ahead_weights), NULL},
    {"ahead_state", BOTH(ahead_state, ahead_state), NULL},
    {"prefill_tokens", BOTH(prefill_tokens, prefill_tokens), NULL},
    {"share_prefixes", BOTH(no_sharing, no_sharing), share_names},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

/* The number that a value of a plan file stands for; -1: none. */
static int64_t field_value(const json_t *value, const char *const *names)
{
    const char *word = json_string_value(value);
    if (!names)
        return json_is_integer(value) && json_integer_value(value) <= 1 << 24
                   ? json_integer_value(value)
                   : -1;
    for (int i = 0; word && names[i]; i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    return -1;
}

enum err plan_file_read(const char *path, struct plan_wish *wish)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    json_t *plan = json_is_object(root) ? json_object_get(root, "plan") : NULL;
    if (!json_is_object(plan)) {
        json_decref(root);
        return fail(ERR_USAGE, "%s: --plan: %s", path, root ? "no object `plan`" : error.text);
    }
    enum err err = OK;
    for (size_t i = 0; i < N_FIELDS && err == OK; i++) {
        json_t *value = json_object_get(plan, fields[i].key);
        if (!value)
            continue;
        int64_t number = field_value(value, fields[i].names);
        if (number < 0)
            err = fail(ERR_USAGE, "%s: --plan: %s: expected %s%s", path, fields[i].key,
                       fields[i].names ? "a word like " : "a small integer",
                       fields[i].names ? fields[i].names[1] : "");
        else
            *(int *)(void *)((char *)wish + fields[i].wish) = (int)number;
    }
    json_decref(root);
    return err;
}

static json_t *bytes_json(const struct plan_bytes *b)
{
    return json_pack("{sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI}", "weights_resident",
                     (json_int_t)b->weights_resident, "weight_frames", (json_int_t)b->weight_frames,
                     "kv", (json_int_t)b->kv, "kv_frames", (json_int_t)b->kv_frames, "kv_tails",
                     (json_int_t)b->kv_tails, "kv_rings", (json_int_t)b->kv_rings, "kv_meta",
                     (json_int_t)b->kv_meta, "hidden", (json_int_t)b->hidden, "hidden_frames",
                     (json_int_t)b->hidden_frames, "workspace", (json_int_t)b->workspace, "head",
                     (json_int_t)b->head, "text", (json_int_t)b->text, "io", (json_int_t)b->io,
                     "ram", (json_int_t)b->ram, "disk", (json_int_t)b->disk);
}

static json_t *plan_json(const struct plan *p)
{
    json_t *plan = json_object();
    for (size_t i = 0; i < N_FIELDS; i++) {
        int value = *(const int *)(const void *)((const char *)p + fields[i].plan);
        json_object_set_new(plan, fields[i].key,
                            fields[i].names ? json_string(fields[i].names[value])
                                            : json_integer(value));
    }
    return plan;
}

json_t *plan_kv_json(const struct run *r)
{
    const struct evict *e = &r->evict;
    int full = e->policy == EVICT_FULL;
    return json_pack("{ss so ss sI ss sb}", "policy", evict_policy_name(e->policy), "budget",
                     full                    ? json_null()
                     : e->budget_is_fraction ? json_real(e->budget)
                                             : json_integer((json_int_t)e->budget),
                     "format", kv_format_name(r->kv_format), "slots", (json_int_t)r->work.slots_max,
                     "scope", e->scope == EVICT_SCOPE_LAYER ? "layer" : "head", "simulated",
                     e->simulate);
}

enum err plan_file_write(const struct run *r, const char *path)
{
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(r->opened.model.name));
    json_object_set_new(root, "dummy_weights", json_boolean(r->opened.model.dummy));
    json_object_set_new(root, "plan", plan_json(&r->plan));
    json_object_set_new(root, "kv", plan_kv_json(r));
    json_object_set_new(root, "bytes", bytes_json(&r->bytes));
    const struct plan_time *t = &r->time;
    json_object_set_new(root, "predicted",
                        json_pack("{sf sf sf sf sf sf ss}", "read_s", t->read_s, "write_s",
                                  t->write_s, "compute_s", t->compute_s, "pass_s", t->pass_s,
                                  "passes", t->passes, "job_s", t->job_s, "bound", t->bound));
    json_object_set_new(root, "work",
                        json_pack("{sI sI sI sI sI}", "rows", (json_int_t)r->work.n_rows,
                                  "prompt_tokens", (json_int_t)r->work.prompt_tokens,
                                  "output_tokens", (json_int_t)r->work.output_tokens, "prompt_max",
                                  (json_int_t)r->work.prompt_max, "slots_max",
                                  (json_int_t)r->work.slots_max));
    int rc = path ? json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(6))
                  : json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    if (!path)
        fputc('\n', stdout);
    json_decref(root);
    return rc == 0 ? OK : fail(ERR_IO, "%s: cannot write the plan", path ? path : "stdout");
}

void plan_layers_text(const struct run *r, char *buf, int cap)
{
    const struct plan *p = &r->plan;
    int n = p->layers - 1;
    char tiles[40] = "";
    if (p->decoded > 0)
        snprintf(tiles, sizeof tiles, " (%d as tiles)", p->decoded);
    if (p->resident >= n)
        snprintf(buf, (size_t)cap, "all %d layers in RAM%s", n, tiles);
    else
        snprintf(buf, (size_t)cap, "%d of %d layers in RAM%s, the %s streamed%s", p->resident, n,
                 tiles, p->resident ? "others are" : "weights are all",
                 p->codec == PLAN_CODEC_ZSTD ? " with zstd" : "");
}

void plan_kv_text(const struct run *r, char *buf, int cap)
{
    const struct evict *e = &r->evict;
    if (e->policy == EVICT_FULL) {
        snprintf(buf, (size_t)cap, "full %s", kv_format_name(r->kv_format));
        return;
    }
    snprintf(buf, (size_t)cap, "%s (budget %s, at most %lld slots a row%s%s) %s",
             evict_policy_name(e->policy), r->config->kv_budget, (long long)r->work.slots_max,
             e->scope == EVICT_SCOPE_LAYER ? ", one victim for all heads" : "",
             e->simulate ? ", simulated" : "", kv_format_name(r->kv_format));
}

int plan_hidden_moved(const struct run *r)
{
    return r->plan.hidden_home == TIER_RAM && r->hidden_wish == TIER_NVME;
}

/* Frozen is what was asked: hidden states on disk, which another batch count would put there. */
static const char *asked_percent(const struct plan *p)
{
    struct plan asked = *p;
    asked.hidden_home = TIER_NVME;
    return plan_percent(&asked);
}

void plan_freeze(const struct run *r, char *buf, int cap)
{
    const struct plan *p = &r->plan;
    snprintf(buf, (size_t)cap,
             "--batch %d --batches %d --percent %s --weights-resident %d --weights-decoded %d "
             "--weights-codec %s --ahead-weights %d --ahead-state %d --prefill-tokens %d "
             "--share-prefixes %s --isa %s --threads %d",
             p->batch, p->batches, plan_hidden_moved(r) ? asked_percent(p) : plan_percent(p),
             p->resident, p->decoded, plan_codec_name(p), p->ahead_weights, p->ahead_state,
             p->prefill_tokens, share_names[p->no_sharing != 0], isa_name(r->ops.isa),
             r->machine.threads);
}
