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

#define AT(field) offsetof(struct plan_wish, field), offsetof(struct plan, field)

/* What of a plan can be asked for. `least` is the smallest value that is one; below it a wish is
 * free. */
static const struct field {
    const char *key, *flag;
    size_t wish, plan; // offsets of the int in struct plan_wish and struct plan
    int least, most;
} fields[] = {
    {"batch", "batch", AT(batch), 1, PLAN_BATCH_MAX},
    {"batches", "batches", AT(batches), 1, PLAN_ROWS_MAX},
    {"weights_resident", "weights-resident", AT(resident), 0, PLAN_LAYERS_MAX},
    {"weights_decoded", "weights-decoded", AT(decoded), 0, PLAN_LAYERS_MAX},
    {"weights_codec", "weights-codec", AT(codec), PLAN_CODEC_NONE, PLAN_CODEC_ZSTD},
    {"kv_home", "percent", AT(kv_home), TIER_RAM, TIER_NVME},
    {"hidden_home", "percent", AT(hidden_home), TIER_RAM, TIER_NVME},
    {"ahead_weights", "ahead-weights", AT(ahead_weights), 0, 1 << 20},
    {"ahead_state", "ahead-state", AT(ahead_state), 0, 1 << 20},
    {"prefill_tokens", "prefill-tokens", AT(prefill_tokens), 1, 1 << 24},
};
#undef AT
#define N_FIELDS (sizeof fields / sizeof fields[0])

static int *wish_at(struct plan_wish *wish, const struct field *f)
{
    return (int *)(void *)((char *)wish + f->wish);
}

/* A value as its flag spells it; homes as the plan's line does. */
static const char *value_text(const struct field *f, int value, char *buf, size_t cap)
{
    if (strcmp(f->key, "weights_codec") == 0)
        return value == PLAN_CODEC_ZSTD ? "zstd" : "none";
    if (strcmp(f->flag, "percent") == 0)
        return value == TIER_NVME ? "NVMe" : "RAM";
    snprintf(buf, cap, "%d", value);
    return buf;
}

/* One value of the file: a flag beats it, and says so. */
static enum err field_read(const struct field *f, const json_t *value, const char *path,
                           struct plan_wish *wish)
{
    char ours[32], theirs[32];
    if (!json_is_integer(value) || json_integer_value(value) < f->least ||
        json_integer_value(value) > f->most)
        return fail(ERR_USAGE, "%s: --plan: %s: expected an integer from %d to %d", path, f->key,
                    f->least, f->most);
    int *at = wish_at(wish, f), read = (int)json_integer_value(value);
    int by_percent = f->wish == offsetof(struct plan_wish, resident) && wish->resident_percent >= 0;
    if (*at < f->least && !by_percent) {
        *at = read;
        return OK;
    }
    if (by_percent && *at < 0)
        snprintf(ours, sizeof ours, "%d%%", wish->resident_percent);
    const char *said = by_percent && *at < 0 ? ours : value_text(f, *at, ours, sizeof ours);
    if (by_percent || *at != read)
        log_line(LOG_INFO, "plan: --%s %s instead of %s %s of %s", f->flag, said, f->key,
                 value_text(f, read, theirs, sizeof theirs), path);
    return OK;
}

static enum err fields_read(json_t *plan, const char *path, struct plan_wish *wish)
{
    const char *key;
    json_t *value;
    json_object_foreach(plan, key, value)
    {
        size_t i = 0;
        while (i < N_FIELDS && strcmp(fields[i].key, key) != 0)
            i++;
        if (i == N_FIELDS)
            return fail(ERR_USAGE, "%s: --plan: unknown key `%.60s`", path, key);
        TRY(field_read(&fields[i], value, path, wish));
    }
    return OK;
}

enum err plan_file_read(const char *path, struct plan_wish *wish)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    json_t *plan = json_is_object(root) ? json_object_get(root, "plan") : NULL;
    enum err err = json_is_object(plan) ? fields_read(plan, path, wish)
                                        : fail(ERR_USAGE, "%s: --plan: %s", path,
                                               root ? "no object `plan`" : error.text);
    json_decref(root);
    return err;
}

void plan_tell_changes(const struct run *r, const struct plan_wish *wish)
{
    char is[32], asked[32];
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        int was = *(const int *)(const void *)((const char *)wish + f->wish);
        int now = *(const int *)(const void *)((const char *)&r->plan + f->plan);
        if (was >= f->least && was != now)
            log_line(LOG_WARN, "plan: %s is %s, not %s as asked for", f->key,
                     value_text(f, now, is, sizeof is), value_text(f, was, asked, sizeof asked));
    }
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

enum err plan_file_write(const struct run *r, const char *path)
{
    json_t *root = json_object(), *plan = json_object();
    for (size_t i = 0; i < N_FIELDS; i++)
        json_object_set_new(
            plan, fields[i].key,
            json_integer(*(const int *)(const void *)((const char *)&r->plan + fields[i].plan)));
    json_object_set_new(root, "model", json_string(r->opened.model.name));
    json_object_set_new(root, "dummy_weights", json_boolean(r->opened.model.dummy));
    json_object_set_new(root, "plan", plan);
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

void plan_freeze(const struct run *r, char *buf, int cap)
{
    const struct plan *p = &r->plan;
    snprintf(buf, (size_t)cap,
             "--batch %d --batches %d --percent %s --weights-resident %d --weights-decoded %d "
             "--weights-codec %s --ahead-weights %d --ahead-state %d --prefill-tokens %d --isa %s "
             "--threads %d",
             p->batch, p->batches, plan_percent(p), p->resident, p->decoded, plan_codec_name(p),
             p->ahead_weights, p->ahead_state, p->prefill_tokens, isa_name(r->ops.isa),
             r->machine.threads);
}
