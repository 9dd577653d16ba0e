/* tests/tools/template_tool.c - renders chat templates for template_live.py.
 *
 * Owns: JSON lines in, JSON lines out. Refuses: judging; the script compares. Input: {"template",
 * "messages", "tools", "extra", "add_generation_prompt", "bos_token", "eos_token", "now_epoch"};
 * output: {"text"} or
 * {"error", "parse"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/template.h"

#define OUT_BYTES (8 << 20)

static const json_t *not_null(const json_t *v)
{
    return json_is_null(v) ? NULL : v;
}

static json_t *render(const json_t *job, char *out)
{
    const json_t *text = json_object_get(job, "template");
    struct template_input in = {.messages = not_null(json_object_get(job, "messages")),
                                .tools = not_null(json_object_get(job, "tools")),
                                .extra = not_null(json_object_get(job, "extra")),
                                .add_generation_prompt =
                                    json_is_true(json_object_get(job, "add_generation_prompt")),
                                .bos_token = json_string_value(json_object_get(job, "bos_token")),
                                .eos_token = json_string_value(json_object_get(job, "eos_token")),
                                .now_epoch = json_integer_value(json_object_get(job, "now_epoch"))};
    struct template *t;
    int64_t n = 0;
    if (template_parse(&t, json_string_value(text), (int64_t)json_string_length(text), "live") !=
        OK)
        return json_pack("{s:s, s:b}", "error", err_text(), "parse", 1);
    enum err e = template_render(t, &in, out, OUT_BYTES, &n);
    template_free(t);
    return e == OK ? json_pack("{s:s%}", "text", out, (size_t)n)
                   : json_pack("{s:s, s:b}", "error", err_text(), "parse", 0);
}

int main(void)
{
    char *out = malloc(OUT_BYTES), *line = NULL;
    size_t cap = 0;
    ssize_t n;
    CHECK(out);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_t *job = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        CHECK(job && json_is_string(json_object_get(job, "template")));
        json_t *answer = render(job, out);
        CHECK(answer);
        char *text = json_dumps(answer, JSON_COMPACT | JSON_ENSURE_ASCII);
        CHECK(text);
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(answer);
        json_decref(job);
    }
    free(line);
    free(out);
    return 0;
}
