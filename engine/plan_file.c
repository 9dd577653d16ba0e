/* engine/plan_file.c - see plan_file.h. */
#include "engine/plan_file.h"

#include "engine/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_BYTES_MAX (1 << 20)

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

static const struct {
    const char *key;
    size_t wish, plan; // offsets of the int in struct plan_wish and struct plan
} fields[] = {
    {"batch", offsetof(struct plan_wish, batch), offsetof(struct plan, batch)},
    {"batches", offsetof(struct plan_wish, batches), offsetof(struct plan, batches)},
    {"weights_resident", offsetof(struct plan_wish, resident), offsetof(struct plan, resident)},
    {"weights_decoded", offsetof(struct plan_wish, decoded), offsetof(struct plan, decoded)},
    {"weights_codec", offsetof(struct plan_wish, codec), offsetof(struct plan, codec)},
    {"kv_home", offsetof(struct plan_wish, kv_home), offsetof(struct plan, kv_home)},
    {"hidden_home", offsetof(struct plan_wish, hidden_home), offsetof(struct plan, hidden_home)},
    {"ahead_weights", offsetof(struct plan_wish, ahead_weights),
     offsetof(struct plan, ahead_weights)},
    {"ahead_state", offsetof(struct plan_wish, ahead_state), offsetof(struct plan, ahead_state)},
    {"prefill_tokens", offsetof(struct plan_wish, prefill_tokens),
     offsetof(struct plan, prefill_tokens)},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

/* The whole file, which is small and regular: what a pipe or a disk says has no end. */
static enum err text_load(const char *path, char **text, int64_t *n)
{
    int found;
    const enum err err = file_load(path, PLAN_BYTES_MAX, text, n, &found);
    if (err == ERR_INPUT)
        return fail(ERR_USAGE, "--plan: %s", err_text());
    TRY(err);
    return found ? OK : fail(ERR_USAGE, "%s: --plan: no such file", path);
}

enum err plan_file_read(const char *path, struct plan_wish *wish)
{
    json_error_t error;
    char *text;
    int64_t n;
    TRY(text_load(path, &text, &n));
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    free(text);
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
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > 1 << 24)
            err = fail(ERR_USAGE, "%s: --plan: %s: expected a small integer", path, fields[i].key);
        else
            *(int *)(void *)((char *)wish + fields[i].wish) = (int)json_integer_value(value);
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
