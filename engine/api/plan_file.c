/* engine/api/plan_file.c - see plan_file.h. */
#include "engine/api/plan_file.h"

#include "engine/api/explain.h"
#include "engine/api/words.h"
#include "engine/data/file.h"
#include "kernels/base/whole.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_BYTES_MAX (1 << 20)

/* `count` of n in percent, with enough digits to restore the count, rounded down, so that shares
 * never add up to more than 100. */
static int percent_text(int count, int64_t n, char *buf, size_t cap)
{
    double all = n > 0 ? (double)n : 1, scale = 1;
    for (int digits = 0;; digits++, scale *= 10) {
        double percent = floor(100.0 * count / all * scale) / scale;
        int whole = (int64_t)percent * n == (int64_t)count * 100;
        if (digits == 9 || whole || (digits > 1 && (int64_t)(all * percent / 100 + 0.49) == count))
            return snprintf(buf, cap, "%.*f", digits, percent);
    }
}

const char *plan_percent(const struct plan *p)
{
    static _Thread_local char text[128];
    const int64_t of[] = {p->layers - 1, (int64_t)p->decoder * p->batches, p->batches};
    const int near[] = {p->resident, p->kv_near, p->hidden_near};
    const int ram[] = {p->weights_ram, p->kv_ram, p->hidden_ram};
    const int in_ram[] = {!p->device, plan_kv_near(p) == TIER_RAM, !p->device};
    size_t n = 0;
    for (int i = 0; i < 3; i++) { // without a device, and under --attn cpu, near is RAM
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", i ? " " : "");
        n += (size_t)percent_text(in_ram[i] ? 0 : near[i], of[i], text + n, sizeof text - n);
        n += (size_t)snprintf(text + n, sizeof text - n, " ");
        n += (size_t)percent_text(in_ram[i] ? near[i] : ram[i], of[i], text + n, sizeof text - n);
    }
    return text;
}

const char *plan_codec_name(const struct plan *p)
{
    return p->codec == PLAN_CODEC_ZSTD ? "zstd" : "none";
}

static const char *const codec_names[] = {"none", "zstd", NULL};
static const char *const share_names[] = {"on", "off", NULL};

#define AT(field) offsetof(struct plan_wish, field), offsetof(struct plan, field)

/* The fields that a plan file can request. A wish below `least` leaves the field open. */
static const struct field {
    const char *key, *flag;
    size_t wish, plan; // offsets of the int in struct plan_wish and struct plan
    int least, most;
    const char *const *names; // names of the values; NULL: numbers
    int percent;              // enum plan_percent of the same field, plus 1; 0: none
} fields[] = {
    {"batch", "batch", AT(batch), 1, PLAN_BATCH_MAX, NULL, 0},
    {"batches", "batches", AT(batches), 1, PLAN_ROWS_MAX, NULL, 0},
    {"weights_resident", "weights-resident", AT(resident), 0, PLAN_LAYERS_MAX, NULL,
     1 + WEIGHTS_NEAR},
    {"weights_ram", "percent", AT(weights_ram), 0, PLAN_LAYERS_MAX, NULL, 1 + WEIGHTS_RAM},
    {"weights_decoded", "weights-decoded", AT(decoded), 0, PLAN_LAYERS_MAX, NULL, 0},
    {"weights_codec", "weights-codec", AT(codec), PLAN_CODEC_NONE, PLAN_CODEC_ZSTD, codec_names, 0},
    {"kv_near", "percent", AT(kv_near), 0, PLAN_ALL, NULL, 1 + KV_NEAR},
    {"kv_ram", "percent", AT(kv_ram), 0, PLAN_ALL, NULL, 1 + KV_RAM},
    {"hidden_near", "percent", AT(hidden_near), 0, PLAN_ALL, NULL, 1 + HIDDEN_NEAR},
    {"hidden_ram", "percent", AT(hidden_ram), 0, PLAN_ALL, NULL, 1 + HIDDEN_RAM},
    {"ahead_weights", "ahead-weights", AT(ahead_weights), 0, 1 << 20, NULL, 0},
    {"ahead_state", "ahead-state", AT(ahead_state), 0, 1 << 20, NULL, 0},
    {"prefill_tokens", "prefill-tokens", AT(prefill_tokens), 1, 1 << 24, NULL, 0},
    {"share_prefixes", "share-prefixes", AT(no_sharing), 0, 1, share_names, 0},
};
#undef AT
#define N_FIELDS (sizeof fields / sizeof fields[0])

static int *wish_at(struct plan_wish *wish, const struct field *f)
{
    return (int *)(void *)((char *)wish + f->wish);
}

static int wished(const struct plan_wish *wish, const struct field *f)
{
    return *(const int *)(const void *)((const char *)wish + f->wish);
}

/* A value as text, as in its flag or in the plan line. */
static const char *value_text(const struct field *f, int value, char *buf, size_t cap)
{
    if (f->names)
        return f->names[value];
    snprintf(buf, cap, "%d", value);
    return buf;
}

/* The number of a value in the file; -1: invalid. */
static int value_read(const struct field *f, const json_t *value)
{
    const char *word = json_string_value(value);
    for (int i = f->least; f->names && word && i <= f->most; i++)
        if (strcmp(word, f->names[i]) == 0)
            return i;
    if (f->names || !json_is_integer(value) || json_integer_value(value) < f->least ||
        json_integer_value(value) > f->most)
        return -1;
    return (int)json_integer_value(value);
}

/* Reads one value of the file. A flag, even `auto`, overrides the value, with a message. */
static enum err field_read(const struct config *c, const struct field *f, const json_t *value,
                           struct plan_wish *wish)
{
    char ours[32], theirs[32];
    const char *path = c->plan;
    int *at = wish_at(wish, f), read = value_read(f, value);
    if (read < 0 && f->names)
        return fail(ERR_USAGE, "%s: --plan: %s: expected \"%s\" or \"%s\"", path, f->key,
                    f->names[f->least], f->names[f->most]);
    if (read < 0)
        return fail(ERR_USAGE, "%s: --plan: %s: expected an integer from %d to %d", path, f->key,
                    f->least, f->most);
    double percent = f->percent ? wish->percent[f->percent - 1] : -1;
    int by_percent = percent >= 0, is_open = *at < f->least;
    if (is_open && !by_percent && !config_given(c, f->flag)) {
        *at = read;
        return OK;
    }
    snprintf(ours, sizeof ours, "auto");
    if (is_open && by_percent)
        snprintf(ours, sizeof ours, "%.4g%%", percent);
    const char *said = is_open ? ours : value_text(f, *at, ours, sizeof ours);
    if (by_percent || *at != read)
        log_line(LOG_INFO, "plan: --%s %s instead of %s %s of %s", f->flag, said, f->key,
                 value_text(f, read, theirs, sizeof theirs), path);
    return OK;
}

/* The counts of KV and hidden states depend on the number of batches: with another number than the
 * file's they are converted to shares. */
static void keep_shares(const struct run *r, const json_t *plan, struct plan_wish *wish)
{
    int64_t batches = json_integer_value(json_object_get(plan, "batches"));
    int kept = 0;
    for (size_t i = 0; i < N_FIELDS && batches > 0 && wish->batches != batches; i++) {
        const struct field *f = &fields[i];
        const int of_kv = f->percent == 1 + KV_NEAR || f->percent == 1 + KV_RAM;
        const int of_hidden = f->percent == 1 + HIDDEN_NEAR || f->percent == 1 + HIDDEN_RAM;
        int *at = wish_at(wish, f);
        if ((!of_kv && !of_hidden) || *at < 0) // no count from the file
            continue;
        double all = (double)batches * (of_kv ? r->model->shape.n_layers : 1);
        wish->percent[f->percent - 1] = fmin(100.0 * *at / all, 100);
        *at = -1;
        kept = 1;
    }
    if (kept)
        log_line(LOG_INFO,
                 "plan: KV and hidden states keep the shares that %s has for its %lld batches",
                 r->config->plan, (long long)batches);
}

/* Warns if the file's KV settings differ: a plan file places KV, flags choose its kind. */
static void compare_kv(const struct run *r, const json_t *theirs)
{
    static const char *const keys[] = {"policy",    "budget",        "format",   "scope",
                                       "budget_of", "budget_layers", "positions"};
    const size_t digits = JSON_ENCODE_ANY | JSON_REAL_PRECISION(6);
    json_t *ours = plan_kv_json(r);
    for (size_t i = 0, same = 1; same && i < sizeof keys / sizeof *keys; i++) {
        const json_t *other = json_object_get(theirs, keys[i]);
        char *is = json_dumps(json_object_get(ours, keys[i]), digits);
        char *was = other ? json_dumps(other, digits) : NULL;
        same = !is || !was || strcmp(is, was) == 0;
        if (!same)
            log_line(LOG_WARN,
                     "plan: KV %s is %.60s, not %.60s as in %s: a plan file places KV, flags "
                     "choose its kind",
                     keys[i], is, was, r->config->plan);
        free(is);
        free(was);
    }
    json_decref(ours);
}

static enum err fields_read(const struct run *r, json_t *plan, struct plan_wish *wish)
{
    const char *path = r->config->plan;
    const char *key;
    json_t *value;
    json_object_foreach(plan, key, value)
    {
        size_t i = 0;
        while (i < N_FIELDS && strcmp(fields[i].key, key) != 0)
            i++;
        if (strcmp(key, "device") == 0 || strcmp(key, "attn_cpu") == 0) {
            int ours = strcmp(key, "device") == 0 ? wish->device : wish->attn_cpu;
            if (!json_is_integer(value) || json_integer_value(value) != ours)
                return fail(ERR_USAGE,
                            "%s: --plan: %s differs from this run's %d (--device, --attn)", path,
                            key, ours);
            continue;
        }
        if (i == N_FIELDS)
            return fail(ERR_USAGE, "%s: --plan: unknown key `%.60s`", path, key);
        TRY(field_read(r->config, &fields[i], value, wish));
    }
    keep_shares(r, plan, wish);
    return OK;
}

/* Reads the whole file, which must be small and regular: a pipe may never end. */
static enum err text_load(const char *path, char **text, int64_t *n)
{
    int found;
    const enum err err = file_load(path, PLAN_BYTES_MAX, text, n, &found);
    if (err == ERR_INPUT)
        return fail(ERR_USAGE, "--plan: %s", err_text());
    TRY(err);
    return found ? OK : fail(ERR_USAGE, "%s: --plan: no such file", path);
}

enum err plan_file_read(const struct run *r, struct plan_wish *wish)
{
    const char *path = r->config->plan;
    json_error_t error;
    char *text;
    int64_t n;
    TRY(text_load(path, &text, &n));
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    json_t *plan = json_is_object(root) ? json_object_get(root, "plan") : NULL;
    enum err err = json_is_object(plan)
                       ? fields_read(r, plan, wish)
                       : fail(ERR_USAGE, "%s: --plan: %s", path,
                              root ? "not a plan file: it has no object `plan`" : error.text);
    if (err == OK)
        compare_kv(r, json_object_get(root, "kv"));
    json_decref(root);
    return err;
}

/* The requested count; below f->least: not requested. */
static int asked_count(const struct field *f, const struct plan_wish *wish, const struct plan *p)
{
    int count = wished(wish, f);
    double percent = f->percent ? wish->percent[f->percent - 1] : -1;
    if (count >= f->least || percent < 0)
        return count;
    const int64_t of[] = {p->layers - 1, (int64_t)p->decoder * p->batches, p->batches};
    return (int)((double)of[(f->percent - 1) / 2] * percent / 100 + 0.5);
}

void plan_tell_changes(const struct run *r, const struct plan_wish *wish)
{
    char is[32], asked[32];
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        int was = asked_count(f, wish, &r->decision.plan);
        int now = *(const int *)(const void *)((const char *)&r->decision.plan + f->plan);
        if (was >= f->least && was != now)
            log_line(LOG_WARN, "plan: %s is %s, not %s as asked for", f->key,
                     value_text(f, now, is, sizeof is), value_text(f, was, asked, sizeof asked));
    }
}

/* The memory of each account, and the sums by tier. */
static json_t *bytes_json(const struct plan_bytes *b)
{
#define ACCOUNT_NAME(name) #name,
    static const char *const names[N_PLAN_ACCOUNTS] = {PLAN_ACCOUNTS(ACCOUNT_NAME)};
#undef ACCOUNT_NAME
    json_t *bytes = json_object();
    for (int i = 0; i < N_PLAN_ACCOUNTS; i++)
        json_object_set_new(bytes, names[i],
                            json_integer(b->by[i][TIER_DEVICE] + b->by[i][TIER_RAM]));
    json_object_set_new(bytes, "device", json_integer(b->device));
    json_object_set_new(bytes, "ram", json_integer(b->ram));
    json_object_set_new(bytes, "disk", json_integer(b->disk));
    return bytes;
}

json_t *plan_fields_json(const struct plan *p)
{
    json_t *plan = json_pack("{sisi}", "device", p->device, "attn_cpu", p->attn_cpu);
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
    return json_pack("{ss so ss sI ss ss sb ss ss}", "policy", evict_policy_name(e->policy),
                     "budget",
                     full                    ? json_null()
                     : e->budget_is_fraction ? json_real(e->budget)
                                             : json_integer((json_int_t)e->budget),
                     "format", kv_format_name(r->kv_format), "slots", (json_int_t)r->work.slots_max,
                     "scope", e->scope == EVICT_SCOPE_LAYER ? "layer" : "head", "positions",
                     e->positions == EVICT_POSITIONS_SLOT ? "slot" : "true", "simulated",
                     e->simulate, "budget_of", e->budget_of_prompt ? "prompt" : "total",
                     "budget_layers", r->config->kv_budget_layers);
}

enum err json_save(const json_t *root, const char *path, int digits)
{
    struct whole_file file;
    TRY(whole_open(&file, path));
    const size_t flags = JSON_INDENT(1) | JSON_REAL_PRECISION((size_t)digits);
    if (json_dumpf(root, file.f, flags) == 0 || ferror(file.f)) // whole_end() has the file's errors
        return whole_end(&file);
    whole_drop(&file);
    return fail(ERR_FIT, "%.512s: no memory for its text", path);
}

json_t *plan_time_json(const struct plan_time *t)
{
    return json_pack("{sf sf sf sf sf sf sf sf}", "read_s", t->read_s, "write_s", t->write_s,
                     "compute_s", t->compute_s, "h2d_s", t->h2d_s, "d2h_s", t->d2h_s, "gpu_s",
                     t->gpu_s, "pass_s", t->pass_s, "passes", t->passes);
}

json_t *plan_json(const struct run *r, const struct explain *e)
{
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(r->model->name));
    json_object_set_new(root, "dummy_weights", json_boolean(r->model->dummy));
    json_object_set_new(root, "plan", plan_fields_json(&r->decision.plan));
    json_object_set_new(root, "kv", plan_kv_json(r));
    json_object_set_new(root, "bytes", bytes_json(&r->decision.bytes));
    json_t *predicted = plan_time_json(&r->decision.time);
    json_object_set_new(predicted, "job_s", json_real(r->decision.time.job_s));
    json_object_set_new(predicted, "bound", json_string(r->decision.time.bound));
    json_object_set_new(root, "predicted", predicted);
    json_object_set_new(root, "work",
                        json_pack("{sI sI sI sI sI}", "rows", (json_int_t)r->work.n_rows,
                                  "prompt_tokens", (json_int_t)r->work.prompt_tokens,
                                  "output_tokens", (json_int_t)r->work.output_tokens, "prompt_max",
                                  (json_int_t)r->work.prompt_max, "slots_max",
                                  (json_int_t)r->work.slots_max));
    explain_json(e, r, root);
    return root;
}

enum err plan_file_write(const struct run *r, const struct explain *e, const char *path)
{
    json_t *root = plan_json(r, e);
    enum err err = OK;
    if (path)
        err = json_save(root, path, 6);
    else if (json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0)
        err = fail(ERR_IO, "stdout: cannot write the plan");
    else
        fputc('\n', stdout);
    json_decref(root);
    return err;
}

void plan_layers_text(const struct run *r, char *buf, int cap)
{
    const struct plan *p = &r->decision.plan;
    const int n = p->layers - 1, nvme = n - p->resident - p->weights_ram;
    const char *near = p->device ? "device memory" : "RAM";
    const char *zstd = p->codec == PLAN_CODEC_ZSTD ? " with zstd" : "";
    char decoded[40] = "", ram[80] = "", disk[48] = "";
    if (p->decoded > 0)
        snprintf(decoded, sizeof decoded, " (%d held decoded)", p->decoded);
    if (p->weights_ram > 0)
        snprintf(ram, sizeof ram, ", %d streamed from RAM%s", p->weights_ram,
                 p->shared ? " that the devices share" : "");
    if (nvme > 0)
        snprintf(disk, sizeof disk, ", %d streamed from NVMe%s", nvme, zstd);
    if (p->resident >= n)
        snprintf(buf, (size_t)cap, "all %d parts in %s%s", n, near, decoded);
    else
        snprintf(buf, (size_t)cap, "%d of %d parts in %s%s%s%s", p->resident, n, near, decoded, ram,
                 disk);
}

/* "in RAM", "25 % in device memory, 75 % on NVMe": where n things live. */
static const char *tiers_text(const int64_t on[N_TIERS], int64_t n, char *buf, size_t cap)
{
    static const char *const names[N_TIERS] = {"in device memory", "in RAM", "on NVMe"};
    size_t at = 0;
    for (int tier = 0; tier < N_TIERS; tier++)
        if (on[tier] == n)
            snprintf(buf, cap, "%s", names[tier]);
        else if (on[tier] > 0 && at < cap)
            at += (size_t)snprintf(buf + at, cap - at, "%s%.3g %% %s", at ? ", " : "",
                                   100.0 * (double)on[tier] / (double)n, names[tier]);
    return buf;
}

const char *plan_kv_tiers(const struct plan *p)
{
    static _Thread_local char text[96];
    int64_t on[N_TIERS];
    for (int tier = 0; tier < N_TIERS; tier++)
        on[tier] = plan_kv_count(p, (enum tier_kind)tier);
    return tiers_text(on, (int64_t)p->decoder * p->batches, text, sizeof text);
}

const char *plan_hidden_tiers(const struct plan *p)
{
    static _Thread_local char text[96];
    int64_t on[N_TIERS];
    for (int tier = 0; tier < N_TIERS; tier++)
        on[tier] = plan_hidden_count(p, (enum tier_kind)tier);
    return tiers_text(on, p->batches, text, sizeof text);
}

/* From where each pass reads the layers' weights. */
static void weights_words(const struct plan *p, char *buf, size_t cap)
{
    int on[N_TIERS] = {0};
    const char *near = p->device ? "device memory" : "RAM";
    for (int layer = 1; layer <= p->decoder; layer++)
        on[plan_layer_home(p, layer)]++;
    const int ram = p->device ? on[TIER_RAM] : 0, nvme = on[TIER_NVME];
    if (p->resident >= p->layers - 1)
        snprintf(buf, cap, "weights in %s", near);
    else if (p->resident == 0 && p->weights_ram == 0)
        snprintf(buf, cap, "all weights streamed from NVMe");
    else if (ram + nvme == 0)
        snprintf(buf, cap, "weights in %s but for a part of the output matrix", near);
    else if (ram > 0 && nvme > 0)
        snprintf(buf, cap, "%d of %d layers streamed from RAM, %d from NVMe", ram, p->decoder,
                 nvme);
    else
        snprintf(buf, cap, "%d of %d layers streamed from %s", ram + nvme, p->decoder,
                 ram > 0 ? "RAM" : "NVMe");
}

void plan_words(const struct run *r, char *buf, int cap)
{
    const struct plan *p = &r->decision.plan;
    char weights[96], policy[48] = "", about[WORDS_BYTES];
    weights_words(p, weights, sizeof weights);
    if (r->evict.policy != EVICT_FULL)
        snprintf(policy, sizeof policy, " (%s)", evict_policy_name(r->evict.policy));
    const int64_t n = min_i64((int64_t)p->batch * p->batches, r->work.n_rows);
    snprintf(buf, (size_t)cap, "%lld row%s at once, %s, KV%s %s, about %s, limited by %s",
             (long long)n, n == 1 ? "" : "s", weights, policy, plan_kv_tiers(p),
             words_about(r->decision.time.job_s, about), words_resource(r->decision.time.bound));
}

void plan_kv_text(const struct run *r, char *buf, int cap)
{
    const struct evict *e = &r->evict;
    if (e->policy == EVICT_FULL) {
        snprintf(buf, (size_t)cap, "full %s", kv_format_name(r->kv_format));
        return;
    }
    int uneven = kv_kinds_uneven(&r->kinds[1]);
    snprintf(buf, (size_t)cap, "%s (budget %s%s%s%s, at most %lld slots a row%s%s%s) %s",
             evict_policy_name(e->policy), r->config->kv_budget,
             e->budget_of_prompt && e->budget_is_fraction ? " of the prompt" : "",
             uneven ? ", layers " : "", uneven ? r->config->kv_budget_layers : "",
             (long long)r->work.slots_max,
             e->scope == EVICT_SCOPE_LAYER ? ", one victim for all heads" : "",
             e->positions == EVICT_POSITIONS_SLOT ? ", positions by slot" : "",
             e->simulate ? ", simulated" : "", kv_format_name(r->kv_format));
}

static int hidden_stayed(const struct run *r, const struct plan *p)
{
    return p->hidden_near == p->batches && r->hidden_moves;
}

int plan_hidden_stayed(const struct run *r)
{
    return hidden_stayed(r, &r->decision.plan);
}

/* The requested percentages: with more batches, hidden states that stayed would move to disk. */
static const char *asked_percent(const struct plan *p)
{
    struct plan asked = *p;
    asked.hidden_near = asked.hidden_ram = 0;
    return plan_percent(&asked);
}

/* The device of --device, or the one that "auto" found. */
static const char *device_spec(const struct run *r)
{
    const char *spec = r->config->device;
    return strcmp(spec, "auto") == 0 ? r->session->device->api->name : spec;
}

void plan_freeze_as(const struct run *r, const struct plan *p, char *buf, int cap)
{
    const char *attn = !p->device ? "" : p->attn_cpu ? "--attn cpu " : "--attn device ";
    const char *matmul = r->ops.matmul == MATMUL_CUBLASLT ? "--matmul cublaslt " : "";
    snprintf(buf, (size_t)cap,
             "%s%s--batch %d --batches %d --percent %s --weights-resident %d --weights-decoded %d "
             "--weights-codec %s --ahead-weights %d --ahead-state %d --prefill-tokens %d "
             "--share-prefixes %s --isa %s --threads %d%s%s",
             attn, matmul, p->batch, p->batches,
             hidden_stayed(r, p) ? asked_percent(p) : plan_percent(p), p->resident, p->decoded,
             plan_codec_name(p), p->ahead_weights, p->ahead_state, p->prefill_tokens,
             share_names[p->no_sharing != 0], isa_name(r->ops.isa), r->machine.threads,
             r->session->device->api->unified ? "" : " --device ",
             r->session->device->api->unified ? "" : device_spec(r));
}

void plan_freeze(const struct run *r, char *buf, int cap)
{
    plan_freeze_as(r, &r->decision.plan, buf, cap);
}
