/* engine/chat/template.c - see template.h.
 *
 * Owns: opening a template, setting a render up and its limits. Refuses: syntax (template_lex.c,
 * template_expr.c, template_parse.c) and running (template_eval.c, template_run.c).
 * The one fact: as in transformers, `tools` and `documents` are always defined, as none when not
 * given. */
#include "engine/chat/template.h"

#include <stdlib.h>
#include <string.h>

#include "engine/chat/template_eval.h"

/* Copies the source with every line end as \n and without the last one; returns its bytes. */
static int32_t copy_source(char *to, const char *text, int64_t n_bytes)
{
    int32_t n = 0;
    for (int64_t i = 0; i < n_bytes; i++) {
        if (text[i] == '\r' && i + 1 < n_bytes && text[i + 1] == '\n')
            continue;
        to[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    return n && to[n - 1] == '\n' ? n - 1 : n;
}

static enum err parse_into(struct template *t, const char *text, int64_t n_bytes)
{
    struct tok *toks = NULL;
    int32_t n_toks;
    /* twice: decoded string literals stand behind the source */
    t->text = malloc((size_t)n_bytes * 2 + 1);
    if (!t->text)
        return fail(ERR_FIT, "%s: chat template: no memory for %lld bytes", t->file,
                    (long long)n_bytes);
    enum err e = tn_lex(t, copy_source(t->text, text, n_bytes), &toks, &n_toks);
    if (e == OK)
        e = tn_parse(t, toks, n_toks);
    free(toks);
    return e;
}

enum err template_parse(struct template **out, const char *text, int64_t n_bytes, const char *file)
{
    *out = NULL;
    if (n_bytes < 0 || n_bytes > TEMPLATE_TEXT_BYTES_MAX)
        return fail(ERR_INPUT, "%s: chat template: %lld bytes is too long (limit %d)", file,
                    (long long)n_bytes, TEMPLATE_TEXT_BYTES_MAX);
    if (!tt_valid(text, n_bytes))
        return fail(ERR_INPUT, "%s: chat template: not UTF-8", file);
    struct template *t = calloc(1, sizeof *t);
    if (!t)
        return fail(ERR_FIT, "%s: chat template: no memory to parse it", file);
    t->file = strdup(file);
    enum err e = t->file ? parse_into(t, text, n_bytes)
                         : fail(ERR_FIT, "%s: chat template: no memory to parse it", file);
    if (e != OK) {
        template_free(t);
        return e;
    }
    *out = t;
    return OK;
}

struct template *template_broken(const char *why)
{
    struct template *t = calloc(1, sizeof *t);
    if (t)
        t->broken = strdup(why);
    if (t && t->broken)
        return t;
    template_free(t);
    return NULL;
}

const char *template_why(const struct template *t)
{
    return t->broken;
}

int template_names(const struct template *t, const char *name)
{
    for (int32_t i = 0; i < t->n_names; i++) {
        if (tv_is_str(tv_str(t->text + t->names[i].at, t->names[i].n), name))
            return 1;
    }
    for (int32_t i = 0; i < t->n_nodes; i++) {
        const struct tn *n = &t->nodes[i];
        if ((n->type == TN_ATTR || n->type == TN_STR) &&
            tv_is_str(tv_str(t->text + n->u.text.at, n->u.text.n), name))
            return 1;
    }
    return 0;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    free(t->file);
    free(t->text);
    free(t->nodes);
    free(t->names);
    free(t->broken);
    free(t);
}

static struct tv global_function(struct tv name)
{
    static const char *const names[] = {[TE_RAISE] = "raise_exception",
                                        [TE_STRFTIME] = "strftime_now",
                                        [TE_NAMESPACE] = "namespace",
                                        [TE_RANGE] = "range"};
    for (int i = 0; i < TE_N; i++) {
        if (tv_is_str(name, names[i]))
            return (struct tv){.kind = TV_GLOBAL, .u.i = i};
    }
    return tv_undefined(name.u.s, name.n);
}

/* What `name` means outside all scopes. */
static enum err global_value(struct te *e, const struct template_input *in, struct tv name,
                             struct tv *out)
{
    if (tv_is_str(name, "messages") && in->messages)
        return tv_from_json(&e->m, in->messages, out);
    if (tv_is_str(name, "tools") && in->tools)
        return tv_from_json(&e->m, in->tools, out);
    if (tv_is_str(name, "add_generation_prompt")) {
        *out = tv_bool(in->add_generation_prompt);
        return OK;
    }
    char key[128];
    if (in->extra && name.n < (int64_t)sizeof key) {
        memcpy(key, name.u.s, (size_t)name.n);
        key[name.n] = 0;
        const json_t *value = json_object_get(in->extra, key);
        if (value)
            return tv_from_json(&e->m, value, out);
    }
    const char *special = tv_is_str(name, "bos_token")   ? in->bos_token
                          : tv_is_str(name, "eos_token") ? in->eos_token
                                                         : NULL;
    if (special) {
        *out = tv_str(special, (int64_t)strlen(special));
        return tt_valid(special, out->n) ? OK : tv_fail(&e->m, "%.9s is not UTF-8", name.u.s);
    }
    int always = tv_is_str(name, "tools") || tv_is_str(name, "documents");
    *out = always ? tv_none() : global_function(name);
    return OK;
}

static enum err set_globals(struct te *e, const struct template_input *in)
{
    const struct template *t = e->t;
    void *globals;
    TRY(tv_take(&e->m, t->n_names, sizeof(struct tv), &globals));
    e->globals = globals;
    e->name_loop = -1;
    for (int32_t i = 0; i < t->n_names; i++) {
        struct tv name = tv_str(t->text + t->names[i].at, t->names[i].n);
        TRY(global_value(e, in, name, &e->globals[i]));
        if (tv_is_str(name, "loop"))
            e->name_loop = i;
    }
    return OK;
}

enum err template_render(const struct template *t, const struct template_input *input, char *out,
                         int64_t cap, int64_t *n_out)
{
    struct te e = {.m = {.steps_left = TEMPLATE_STEPS_MAX,
                         .line = 1,
                         .file = t->file,
                         .low_stored = INT64_MAX},
                   .t = t,
                   .now_epoch = input->now_epoch,
                   .out = out,
                   .cap = cap};
    enum te_flow flow = TE_NEXT;
    *n_out = 0;
    TRY(arena_open(&e.m.arena, TEMPLATE_RENDER_BYTES_MAX));
    enum err err = set_globals(&e, input);
    if (err == OK)
        err = te_scope_push(&e, NULL);
    if (err == OK)
        err = te_body(&e, t->body, &flow);
    arena_close(&e.m.arena);
    *n_out = err == OK ? e.n : 0;
    return err;
}
