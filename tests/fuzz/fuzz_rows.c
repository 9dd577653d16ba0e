/* tests/fuzz/fuzz_rows.c - chat templates, and rows of a job's input from the file to the request.
 */
#include "engine/data/jsonl.h"
#include "engine/job/request.h"
#include "engine/text/token_impl.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* ---- templates ---- */

#define OUT_BYTES (1 << 16)

static json_t *messages, *tools, *extra;

static void template_init(void)
{
    messages = json_loads(
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":"
        "\"H\\u00e9 {{ 7 }}\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":"
        "\"a\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,true,null]}}}]}]",
        0, NULL);
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    extra = json_loads("{\"s\":\"  a\\nB c\",\"n\":7,\"f\":2.5,\"xs\":[3,1,2],\"d\":{\"b\":1,"
                       "\"a\":{\"c\":[1]}},\"words\":[\"b\",\"A\"],\"yes\":true,\"nil\":null}",
                       0, NULL);
    CHECK(messages && tools && extra);
}

static void template_one(const uint8_t *data, size_t n)
{
    static char out[OUT_BYTES];
    struct template *t;
    if (template_parse(&t, (const char *)data, (int64_t)n, "t") != OK) {
        CHECK(!t);
        return;
    }
    const struct template_input in = {.messages = messages,
                                      .tools = n % 2 ? tools : NULL,
                                      .extra = extra,
                                      .add_generation_prompt = (int)(n / 2 % 2),
                                      .bos_token = "<s>",
                                      .now_epoch = 1753876543};
    int64_t n_out;
    if (template_render(t, &in, out, OUT_BYTES, &n_out) == OK)
        CHECK(n_out >= 0 && n_out <= OUT_BYTES && utf8_valid(out, n_out) == n_out);
    template_free(t);
}

const struct fuzz_target fuzz_template = {
    .name = "template", .init = template_init, .one = template_one};

/* ---- rows: the first byte says of which command ---- */

#define VOCAB 257

static struct tokenizer *tok;
static struct template *tmpl;

static void rows_init(void)
{
    static const char text[] =
        "{{ tools|tojson if tools }}{{ mode }}{{ documents or '' }}{% for m in messages %}"
        "[{{ m.role }}]{{ m.content }}{{ m.mood }}{{ m.tool_calls|tojson if m.tool_calls }}"
        "{% endfor %}{{ ']' if add_generation_prompt }}";
    struct token_draft d;
    void *blob;
    int64_t n_blob;
    draft_init(&d, "rows");
    for (int b = 33; b < 127; b++) {
        const char c = (char)b;
        CHECK(draft_token(&d, b, &c, 1) == OK);
    }
    CHECK(draft_token(&d, 32, "\xc4\xa0", 2) == OK && draft_place(&d) == OK);
    CHECK(draft_added(&d, VOCAB - 1, "<|end|>", 7, 0, 1) == OK);
    d.bos = d.eos = VOCAB - 1;
    CHECK(draft_byte_level(&d, 0, 1) == OK && draft_finish(&d, &blob, &n_blob) == OK);
    draft_close(&d);
    CHECK(tokenizer_open(&tok, blob, n_blob, "rows") == OK);
    free(blob);
    CHECK(template_parse(&tmpl, text, sizeof text - 1, "rows") == OK);
}

static void request_check(const struct request *r)
{
    CHECK(r->n_prompt >= 0 && r->n_tokens >= r->n_prompt && r->n_cap >= r->n_tokens);
    for (int i = 0; i < r->n_tokens; i++)
        CHECK(r->tokens[i] >= 0 && r->tokens[i] < VOCAB);
    const struct sampling *s = &r->sampling;
    if (r->kind == REQUEST_SCORE)
        return; // nothing is sampled
    CHECK(s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    CHECK(s->n_bias <= REQUEST_BIAS_MAX && r->n_stops <= REQUEST_STOPS_MAX);
}

static void row_one(enum request_kind kind, const char *text, int64_t n)
{
    static struct request_defaults defaults = {.temperature = -1,
                                               .top_p = 1,
                                               .repetition_penalty = 1,
                                               .context = 64,
                                               .vocab = VOCAB,
                                               .ignore.names = {"image_url", "n", "tools"}};
    defaults.ignore.n = n % 2 ? 3 : 0;
    struct request r;
    struct row_error error = {.code = ""};
    struct text id;
    const enum err e =
        request_parse(&r, kind, text, n, 4, 9, &defaults, tok, n % 3 ? tmpl : NULL, &error);
    CHECK(e == OK || e == ERR_ROW);
    CHECK(r.custom_id && (e == OK || *error.code));
    if (e == OK)
        request_check(&r);
    CHECK(request_read_id(text, n, 9, &id) == OK && id.n == r.n_custom_id &&
          memcmp(id.p, r.custom_id, (size_t)id.n) == 0);
    free(id.p);
    request_free(&r);
}

static void rows_one(const uint8_t *data, size_t n)
{
    struct jsonl in, again;
    struct jsonl_line line;
    int found;
    if (n == 0)
        return;
    const enum request_kind kind = data[0] & 1 ? REQUEST_SCORE : REQUEST_GENERATE;
    fuzz_file("in", data + 1, n - 1);
    if (jsonl_open(&in, FUZZ_DIR "/in") != OK)
        return;
    CHECK(jsonl_open(&again, FUZZ_DIR "/in") == OK);
    while (jsonl_next(&in, &line, &found) == OK && found) {
        const char *text;
        int64_t n_text;
        CHECK(jsonl_read(&again, line.offset, &text, &n_text) == OK && n_text == line.n_bytes);
        char *exact = malloc((size_t)n_text + !n_text); // so that one byte too many is seen
        CHECK(exact);
        memcpy(exact, text, (size_t)n_text);
        row_one(kind, exact, n_text);
        free(exact);
    }
    jsonl_close(&again);
    jsonl_close(&in);
}

const struct fuzz_target fuzz_rows = {.name = "rows", .init = rows_init, .one = rows_one};
