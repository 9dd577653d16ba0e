/* engine/job/request_chat.c - see request_chat.h.
 *
 * Note: a template that does not know tools renders the same text without them, and the loss would
 * go unnoticed. So fields that a template does not name are refused. */
#include "engine/job/request_chat.h"

#include "engine/job/request_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

/* The text of a part of a message; *text NULL: an image or the like, which is ignored. */
static enum err part_text(const struct chat *c, const json_t *part, size_t at, size_t i,
                          const json_t **text)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    *text = json_object_get(part, "text");
    if (type && strcmp(type, "text") != 0) {
        *text = NULL;
        return row_lacks(
            c->ignore, c->ignored, c->error, type,
            "messages[%zu].content[%zu]: \"%.100s\" is not supported, only \"text\" is", at, i,
            type);
    }
    return type && json_is_string(*text)
               ? OK
               : row_fail(c->error, "invalid_request",
                          "messages[%zu].content[%zu] must be {\"type\":\"text\",\"text\":...}", at,
                          i);
}

/* A list of text parts becomes one string, lines joined. *out: new reference or NULL. */
static enum err join_parts(const struct chat *c, const json_t *parts, size_t at, json_t **out)
{
    int64_t n_bytes = 0;
    size_t i;
    const json_t *part, *text;
    int n_joined = 0;
    json_array_foreach(parts, i, part)
    {
        TRY(part_text(c, part, at, i, &text));
        n_bytes += (int64_t)json_string_length(text) + 1;
    }
    char *joined = malloc((size_t)n_bytes + 1), *p = joined;
    if (!joined)
        return fail(ERR_FIT, "no memory for a message");
    json_array_foreach(parts, i, part)
    {
        if (part_text(c, part, at, i, &text) != OK || !text)
            continue;
        if (n_joined++ > 0)
            *p++ = '\n';
        memcpy(p, json_string_value(text), json_string_length(text));
        p += json_string_length(text);
    }
    *out = json_stringn(joined, (size_t)(p - joined));
    free(joined);
    return *out ? OK : fail(ERR_FIT, "no memory for a message");
}

/* The template never names `field`; `where` is its path in the row. */
static enum err unused(const struct chat *c, const char *field, const char *where)
{
    return row_lacks(c->ignore, c->ignored, c->error, field,
                     "field \"%.100s\" is not supported: the model's chat template does not use it",
                     where);
}

static enum err list_of_objects(const struct chat *c, const json_t *list, const char *name)
{
    size_t i;
    const json_t *item;
    if (!json_is_array(list))
        return row_fail(c->error, "invalid_request", "%s must be a list of objects", name);
    json_array_foreach(list, i, item)
    {
        if (!json_is_object(item))
            return row_fail(c->error, "invalid_request", "%s[%zu] must be an object", name, i);
    }
    return OK;
}

/* Checks one member of a message. */
static enum err check_member(const struct chat *c, const char *key, const json_t *value, size_t at)
{
    /* Templates omit past reasoning on purpose, and ids of calls that have an order. */
    static const char *const silent[] = {"role",         "content",           "name",
                                         "tool_call_id", "annotations",       "reasoning",
                                         "thinking",     "reasoning_content", NULL};
    char name[160];
    snprintf(name, sizeof name, "messages[%zu].%.100s", at, key);
    if (strcmp(key, "tool_calls") == 0)
        TRY(list_of_objects(c, value, name));
    return is_one_of(key, silent) || template_names(c->tmpl, key) ? OK : unused(c, key, name);
}

/* content may be missing beside calls or reasoning, and an object in the result of a tool. */
static enum err check_content(const struct chat *c, json_t *message, size_t at)
{
    static const char *const tool_roles[] = {"tool", "ipython", "function", "tool_results", NULL};
    json_t *content = json_object_get(message, "content"), *joined;
    const char *role = json_string_value(json_object_get(message, "role"));
    int has_more = json_object_get(message, "tool_calls") ||
                   json_object_get(message, "reasoning_content") ||
                   json_object_get(message, "reasoning") || json_object_get(message, "thinking");
    if (json_is_string(content) || (has_more && (!content || json_is_null(content))) ||
        (json_is_object(content) && is_one_of(role, tool_roles)))
        return OK;
    if (!json_is_array(content))
        return row_fail(c->error, "invalid_request",
                        "messages[%zu].content must be a string or a list of text parts", at);
    TRY(join_parts(c, content, at, &joined));
    return json_object_set_new(message, "content", joined) == 0
               ? OK
               : fail(ERR_FIT, "no memory for a message");
}

static enum err check_message(const struct chat *c, json_t *message, size_t at)
{
    const char *key;
    json_t *value;
    void *next;
    if (!json_is_object(message))
        return row_fail(c->error, "invalid_request", "messages[%zu] must be an object", at);
    json_object_foreach_safe(message, next, key, value)
    {
        if (json_is_null(value) && strcmp(key, "content") != 0)
            json_object_del(message, key);
        else
            TRY(check_member(c, key, value, at));
    }
    if (!json_is_string(json_object_get(message, "role")))
        return row_fail(c->error, "invalid_request", "messages[%zu].role must be a string", at);
    return check_content(c, message, at);
}

static enum err check_kwargs(const struct chat *c)
{
    /* row fields, and arguments of transformers that a row cannot give */
    static const char *const taken[] = {
        "messages", "tools", "chat_template", "tokenize", "continue_final_message", NULL};
    const char *key;
    const json_t *value;
    if (!json_is_object(c->kwargs))
        return row_fail(c->error, "invalid_request", "chat_template_kwargs must be an object");
    json_object_foreach(c->kwargs, key, value)
    {
        if (is_one_of(key, taken))
            return row_fail(c->error, "invalid_request", "chat_template_kwargs cannot give \"%s\"",
                            key);
        if (strcmp(key, "add_generation_prompt") == 0 && !json_is_boolean(value))
            return row_fail(c->error, "invalid_request",
                            "chat_template_kwargs.add_generation_prompt must be true or false");
    }
    return OK;
}

static enum err check(const struct chat *c)
{
    if (!c->tmpl)
        return row_fail(c->error, "template_error", "the model has no chat template for messages");
    if (template_why(c->tmpl))
        return row_fail(c->error, "template_error", "the model's chat template cannot be used: %s",
                        template_why(c->tmpl));
    if (!json_is_array(c->messages) || json_array_size(c->messages) == 0)
        return row_fail(c->error, "invalid_request", "messages must be a list with a message");
    for (size_t i = 0; i < json_array_size(c->messages); i++)
        TRY(check_message(c, json_array_get(c->messages, i), i));
    if (c->tools) {
        TRY(list_of_objects(c, c->tools, "tools"));
        int asks = json_array_size(c->tools) > 0;
        if (asks && !template_names(c->tmpl, "tools"))
            TRY(unused(c, "tools", "tools"));
    }
    return c->kwargs ? check_kwargs(c) : OK;
}

/* A copy with a NUL, or NULL when the model has no such text. */
static char *text_copy(const char *text, int64_t n)
{
    char *copy = text ? malloc((size_t)n + 1) : NULL;
    if (copy) {
        memcpy(copy, text, (size_t)n);
        copy[n] = 0;
    }
    return copy;
}

enum err chat_render(const struct chat *c, char **out, int64_t *n)
{
    *out = NULL;
    TRY(check(c));
    int64_t n_bos = 0, n_eos = 0;
    const char *bos = c->tok ? tokenizer_bos_text(c->tok, &n_bos) : NULL;
    const char *eos = c->tok ? tokenizer_eos_text(c->tok, &n_eos) : NULL;
    char *bos_text = text_copy(bos, n_bos), *eos_text = text_copy(eos, n_eos);
    char *text = malloc((size_t)REQUEST_TEXT_BYTES); // touched only as far as the text goes
    const json_t *prompt = json_object_get(c->kwargs, "add_generation_prompt");
    struct template_input input = {.messages = c->messages,
                                   .tools = c->tools,
                                   .extra = c->kwargs,
                                   .add_generation_prompt = !json_is_false(prompt),
                                   .bos_token = bos_text,
                                   .eos_token = eos_text,
                                   .now_epoch = c->epoch};
    enum err err = OK;
    if (!text || (bos && !bos_text) || (eos && !eos_text))
        err = fail(ERR_FIT, "no memory for messages");
    if (err == OK) {
        err = template_render(c->tmpl, &input, text, REQUEST_TEXT_BYTES, n);
        if (err == ERR_ROW)
            row_fail(c->error, "template_error", "%s", err_text());
    }
    free(bos_text);
    free(eos_text);
    if (err == OK)
        *out = text;
    else
        free(text);
    return err;
}
