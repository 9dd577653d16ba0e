/* tests/request_test.c - every field of a row: what is taken, what becomes which error row. */
#include "engine/job/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/job_help.h"

static struct row_error error;

/* Parses from an exact-size copy, so that ASan sees one byte too many. */
static enum err parse_with(struct request *r, enum request_kind kind, const char *line, int64_t n,
                           const struct request_defaults *d)
{
    char *copy = malloc((size_t)max_i64(n, 1));
    memcpy(copy, line, (size_t)n);
    enum err err = request_parse(r, kind, copy, n, 4, 9, d, tok, tmpl, &error);
    free(copy);
    return err;
}

static struct request takes_kind(enum request_kind kind, const char *line)
{
    struct request r;
    struct request_defaults d = defaults_plain();
    if (parse_with(&r, kind, line, (int64_t)strlen(line), &d) != OK)
        fail_msg("refused %s: %s: %s", line, error.code, error.message);
    return r;
}

static struct request_defaults ignoring(const char *fields)
{
    struct request_defaults d = defaults_plain();
    assert_int_equal(ignore_parse(&d.ignore, fields), OK);
    return d;
}

static struct request takes(const char *line)
{
    return takes_kind(REQUEST_GENERATE, line);
}

static void refuses_kind(enum request_kind kind, const char *line, const char *code,
                         const char *words)
{
    struct request r;
    struct request_defaults d = defaults_plain();
    enum err err = parse_with(&r, kind, line, (int64_t)strlen(line), &d);
    if (err != ERR_ROW || strcmp(error.code, code) != 0 || !strstr(error.message, words))
        fail_msg("%s: got %d %s: %s", line, (int)err, error.code, error.message);
    assert_non_null(r.custom_id);
    assert_int_equal(r.line, 9);
    request_free(&r);
}

static void refuses(const char *line, const char *code, const char *words)
{
    refuses_kind(REQUEST_GENERATE, line, code, words);
}

static void expect_prompt(const struct request *r, const char *text)
{
    assert_int_equal(r->n_prompt, (int)strlen(text));
    for (int i = 0; i < r->n_prompt; i++)
        assert_int_equal(r->tokens[i], (unsigned char)text[i]);
}

static void forms(void **state)
{
    (void)state;
    struct request r = takes("{\"prompt\":\"abc\"}");
    assert_int_equal(r.form, FORM_PLAIN);
    assert_string_equal(r.custom_id, "row-9"); // its line
    expect_prompt(&r, "abc");
    assert_int_equal(r.n_cap, CONTEXT); // 512 is cut
    assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1);
    request_free(&r);
    r = takes(
        "{\"custom_id\":\"x\\n\\\"\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
        "{\"model\":{\"any\":[1]},\"user\":3,\"prompt\":\"ab\",\"n\":1,\"stream\":false}}");
    assert_int_equal(r.form, FORM_BATCH_COMPLETION);
    assert_string_equal(r.custom_id, "x\n\"");
    assert_int_equal(r.n_cap, 2 + 16);
    request_free(&r);
    r = takes(
        "{\"body\":{\"messages\":[{\"role\":\"u\",\"content\":\"a\"},{\"role\":\"b\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"c\"},{\"type\":\"text\",\"text\":\"d\"}]}]},"
        "\"url\":\"/v1/chat/completions\"}");
    assert_int_equal(r.form, FORM_BATCH_CHAT);
    expect_prompt(&r, "[u]a[b]c\nd");
    request_free(&r);
    r = takes("{\"messages\":[{\"role\":\"u\",\"content\":\"\"}],\"max_tokens\":7}");
    expect_prompt(&r, "[u]");
    assert_int_equal(r.n_cap, 10);
    request_free(&r);
    r = takes("{\"prompt_token_ids\":[1,260],\"max_completion_tokens\":2}");
    assert_int_equal(r.tokens[1], 260);
    assert_int_equal(r.n_cap, 4);
    request_free(&r);
    r = takes("{\"prompt\":[5,6,7]}");
    assert_int_equal(r.n_prompt, 3);
    request_free(&r);
    r = takes("{\"url\":\"/v1/chat/completions\",\"body\":{\"prompt_token_ids\":[3]}}");
    assert_int_equal(r.n_prompt, 1);
    request_free(&r);
}

static void empty_prompt_is_bos(void **state)
{
    (void)state;
    static const char *const lines[] = {"{\"prompt\":\"\"}", "{\"prompt\":[]}",
                                        "{\"prompt_token_ids\":[]}"};
    for (size_t i = 0; i < 3; i++) {
        struct request r = takes(lines[i]);
        assert_int_equal(r.n_prompt, 1);
        assert_int_equal(r.tokens[0], END_ID);
        request_free(&r);
    }
    struct request r;
    struct request_defaults d = defaults_plain();
    const char *line = "{\"prompt_token_ids\":[]}";
    assert_int_equal(request_parse(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), 0, 1, &d,
                                   NULL, NULL, &error),
                     ERR_ROW);
    assert_non_null(strstr(error.message, "no token to begin with"));
    request_free(&r);
    line = "{\"prompt\":\"text\"}";
    assert_int_equal(request_parse(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), 0, 1, &d,
                                   NULL, NULL, &error),
                     ERR_ROW);
    assert_string_equal(error.code, "no_tokenizer");
    request_free(&r);
    line = "{\"messages\":[{\"role\":\"u\",\"content\":\"\"}]}";
    assert_int_equal(request_parse(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), 0, 1, &d,
                                   NULL, tmpl, &error),
                     ERR_ROW);
    assert_string_equal(error.code, "no_tokenizer");
    request_free(&r);
}

static void sampling_fields(void **state)
{
    (void)state;
    struct request r = takes(
        "{\"prompt\":\"a\",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,"
        "\"seed\":-3,\"presence_penalty\":-2,\"frequency_penalty\":1.5,"
        "\"repetition_penalty\":1.25,\"min_tokens\":2,\"max_tokens\":5,\"stop\":[\"x\",\"yz\"],"
        "\"stop_token_ids\":[9,3],\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":3,"
        "\"echo\":true,\"logit_bias\":{\"7\":-100,\"2\":1.5,\"5\":0}}");
    const struct sampling *s = &r.sampling;
    assert_true(s->temperature == 0.5 && s->top_p == 0.25 && s->top_k == 7 && s->min_p == 0.125);
    assert_true(s->seed == (uint64_t)-3 && s->presence_penalty == -2 &&
                s->frequency_penalty == 1.5);
    assert_true(s->repetition_penalty == 1.25 && s->min_tokens == 2);
    assert_int_equal(r.n_stops, 2);
    assert_string_equal(r.stops[1].p, "yz");
    assert_int_equal(r.n_stop_ids, 2);
    assert_int_equal(s->n_bias, 3);
    assert_int_equal(s->bias[0].id, 2);
    assert_true(s->bias[2].id == 7 && s->bias[2].add == -100 && s->bias[2].repeat == 1);
    assert_true(r.ignore_eos && r.logprobs && r.top_logprobs == 3 && r.echo);
    request_free(&r);
    r = takes("{\"prompt\":\"a\",\"temperature\":0,\"top_k\":-1,\"stop\":\"q\",\"logprobs\":0,"
              "\"seed\":null,\"stop_token_ids\":null}");
    assert_true(r.sampling.temperature == 0 && r.sampling.top_k == 0 && r.n_stops == 1);
    assert_true(r.logprobs == 1 && r.top_logprobs == 0 && r.sampling.seed == 0);
    request_free(&r);
    r = takes("{\"prompt\":\"a\",\"logprobs\":4}");
    assert_true(r.logprobs == 1 && r.top_logprobs == 4);
    request_free(&r);
    r = takes("{\"prompt\":\"a\",\"logprobs\":false,\"top_logprobs\":0}");
    assert_true(r.logprobs == 0);
    request_free(&r);
}

static void defaults_and_rows(void **state)
{
    (void)state;
    char stop[] = "zz", *stops[] = {stop};
    struct request r;
    struct request_defaults d = defaults_plain();
    d.max_tokens = 3;
    d.temperature = 0;
    d.has_seed = 1;
    d.seed = 77;
    d.n_stops = 1;
    d.stops = stops;
    d.top_k = 4;
    d.ignore_eos = 1;
    const char *line = "{\"prompt\":\"a\"}";
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), OK);
    assert_true(r.n_cap == 4 && r.sampling.temperature == 0 && r.sampling.seed == 77);
    assert_true(r.n_stops == 1 && r.sampling.top_k == 4 && r.ignore_eos);
    request_free(&r);
    line = "{\"prompt\":\"a\",\"stop\":[],\"max_tokens\":9,\"seed\":1,\"ignore_eos\":false}";
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), OK);
    assert_true(r.n_cap == 10 && r.n_stops == 0 && r.sampling.seed == 1 && !r.ignore_eos);
    request_free(&r);
}

static void bad_json(void **state) // J02, J03
{
    (void)state;
    static const char *const lines[] = {"x",
                                        "[]",
                                        "\"x\"",
                                        "null",
                                        "7",
                                        "{",
                                        "{}x",
                                        "{\"prompt\"}",
                                        "{\"prompt\":\"\\ud800\"}",
                                        "{\"prompt\":\"\xff\"}",
                                        "{\"prompt\":\"a\",}",
                                        "{\"prompt\":\"a\x01\"}",
                                        "{\"prompt\":\"a\",\"prompt\":\"b\"}",
                                        "{\"prompt\":1e}",
                                        "{\"seed\":007}"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        refuses(lines[i], "invalid_json", "");
    refuses("", "invalid_json", "invalid JSON");
    assert_true(strncmp(error.message, "invalid JSON", 12) == 0); // the error row has its line
    refuses("{\"prompt\":\"a\",\"\\u0070rompt\":\"b\"}", "invalid_json", "duplicate key");
    refuses("{\"url\":\"/v1/completions\",\"body\":{\"seed\":1,\"seed\":2}}", "invalid_json",
            "duplicate");
    refuses("{\"messages\":[{\"role\":\"u\",\"content\":\"x\",\"role\":\"v\"}]}", "invalid_request",
            "duplicate");
    char *deep = malloc(100003);
    memset(deep, '[', 100000);
    memcpy(deep, "{\"a\":", 5);
    memcpy(deep + 100000, "]", 2);
    refuses(deep, "invalid_json", "deep");
    free(deep);
    struct request r;
    struct request_defaults d = defaults_plain();
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, "{\"prompt\":\"a\0\"}", 14, &d), ERR_ROW);
    request_free(&r);
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, "", 0, &d), ERR_ROW);
    assert_string_equal(error.code, "invalid_json");
    request_free(&r);
}

static void bad_prompts(void **state) // J03, J08, J09
{
    (void)state;
    const char *code = "invalid_request";
    refuses("{}", code, "exactly one of");
    refuses("{\"prompt\":\"a\",\"prompt_token_ids\":[1]}", code, "exactly one of");
    refuses("{\"prompt\":null}", code, "exactly one of");
    refuses("{\"prompt\":5}", code, "string or a list");
    refuses("{\"prompt\":{}}", code, "string or a list");
    refuses("{\"prompt\":[\"a\"]}", "unsupported_field", "a list of prompts");
    refuses("{\"prompt\":[[1]]}", "unsupported_field", "a list of prompts");
    refuses("{\"prompt_token_ids\":\"a\"}", code, "list of token ids");
    refuses("{\"prompt_token_ids\":[-1]}", code,
            "[0] must be a token id: an integer from 0 to 260");
    refuses("{\"prompt_token_ids\":[1,261]}", code, "[1] must be");
    refuses("{\"prompt_token_ids\":[1.0]}", code, "[0] must be");
    refuses("{\"prompt_token_ids\":[18446744073709551616]}", code, "[0] must be");
    refuses("{\"url\":\"/v1/completions\",\"body\":{\"messages\":[]}}", "unsupported_field",
            "messages");
    refuses("{\"messages\":[]}", code, "messages");
    refuses("{\"messages\":{}}", code, "messages");
    refuses("{\"messages\":\"x\"}", code, "messages");
    refuses("{\"messages\":[1]}", code, "messages[0]");
    refuses("{\"messages\":[{\"content\":\"x\"}]}", code, "role");
    refuses("{\"messages\":[{\"role\":\"u\"}]}", code, "content");
    refuses("{\"messages\":[{\"role\":\"u\",\"content\":[{\"text\":\"a\"}]}]}", code, "content[0]");
    refuses("{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\"}]}]}", code,
            "content[0]");
    refuses("{\"messages\":[{\"role\":\"u\",\"content\":[7]}]}", code, "content[0]");
    refuses("{\"messages\":[{\"role\":\"u\",\"content\":\"x\",\"tool_calls\":[]}]}",
            "unsupported_field", "tool_calls");
    char line[1024] = "{\"prompt\":\"";
    memset(line + strlen(line), 'a', CONTEXT);
    strncat(line, "\"}", 3);
    refuses(line, "context_length_exceeded", "64 tokens, the model's context is 64");
    line[strlen(line) - 3] = '"'; // one less
    line[strlen(line) - 2] = '}';
    line[strlen(line) - 1] = ' ';
    struct request r = takes(line);
    assert_true(r.n_prompt == CONTEXT - 1 && r.n_cap == CONTEXT);
    request_free(&r);
    snprintf(line, sizeof line, "{\"prompt\":[1");
    for (int i = 0; i < 200; i++)
        strncat(line, ",1", 3);
    strncat(line, "]}", 3);
    refuses(line, "context_length_exceeded", "201 tokens");
}

static void too_many_nodes(void **state)
{
    (void)state;
    struct script line = {0};
    script_add(&line, "{\"messages\":[0");
    for (int64_t i = 0; i < REQUEST_NODES_MAX + 10; i++)
        script_add(&line, ",{}");
    script_add(&line, "]}");
    refuses(line.text, "invalid_request", "JSON values");
    free(line.text);
}

/* ---- conversations: the template of the group is put aside ---- */

static void with_template(const char *text, void (*then)(void))
{
    struct template *aside = tmpl;
    assert_int_equal(template_parse(&tmpl, text, (int64_t)strlen(text), "own"), OK);
    then();
    template_free(tmpl);
    tmpl = aside;
}

static void expect_rendered(const char *line, const char *text)
{
    struct request r = takes(line);
    expect_prompt(&r, text);
    request_free(&r);
}

#define U                         "{\"role\":\"user\",\"content\":\"a\"}"
#define CHAT_LINE(messages, more) "{\"messages\":[" messages "]" more "}"

static void tools_and_kwargs(void)
{
    expect_rendered(CHAT_LINE(U, ",\"tools\":[{\"f\":1},{\"f\":2}]"), "2,12;");
    expect_rendered(CHAT_LINE(U, ",\"tools\":[]"), "0,;");
    expect_rendered(CHAT_LINE(U, ",\"tools\":null,\"chat_template_kwargs\":null"), "-;");
    expect_rendered(CHAT_LINE(U, ",\"chat_template_kwargs\":{\"mode\":\"x\",\"documents\":[{}]}"),
                    "-;x[{}]");
    expect_rendered(CHAT_LINE(U, ",\"chat_template_kwargs\":{\"add_generation_prompt\":false}"),
                    "-");
    expect_rendered(
        "{\"url\":\"/v1/chat/completions\",\"body\":{\"tools\":[{\"f\":3}],\"messages\":[" U "]}}",
        "1,3;");
    static const char *const bad[][2] = {
        {",\"tools\":{}", "tools must be a list of objects"},
        {",\"tools\":\"x\"", "tools must be a list of objects"},
        {",\"tools\":[{},7]", "tools[1] must be an object"},
        {",\"chat_template_kwargs\":[]", "chat_template_kwargs must be an object"},
        {",\"chat_template_kwargs\":{\"tools\":[]}", "cannot give \"tools\""},
        {",\"chat_template_kwargs\":{\"messages\":[]}", "cannot give \"messages\""},
        {",\"chat_template_kwargs\":{\"continue_final_message\":true}", "cannot give"},
        {",\"chat_template_kwargs\":{\"add_generation_prompt\":1}", "must be true or false"},
        {",\"chat_template_kwargs\":{\"a\":1,\"a\":2}", "chat_template_kwargs: duplicate"},
        {",\"tools\":[{\"a\":{\"b\":1,\"b\":2}}]", "tools: duplicate"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[512];
        snprintf(line, sizeof line, "{\"messages\":[" U "]%s}", bad[i][0]);
        refuses(line, "invalid_request", bad[i][1]);
    }
    refuses("{\"prompt\":\"a\",\"tools\":[]}", "invalid_request", "tools needs messages");
    refuses("{\"prompt\":\"a\",\"chat_template_kwargs\":{}}", "invalid_request",
            "chat_template_kwargs needs messages");
    refuses("{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"tools\":[]}}",
            "unsupported_field", "\"tools\"");
    refuses_kind(REQUEST_SCORE, "{\"context\":\"a\",\"continuation\":\"b\",\"tools\":[]}",
                 "unsupported_field", "\"tools\"");
    struct request a = takes(CHAT_LINE(U, ",\"tools\":[{\"f\":1}]")),
                   b = takes(CHAT_LINE(U, ",\"tools\":[{\"f\":2}]"));
    assert_true(a.hash != b.hash); // they are part of the row
    request_free(&a);
    request_free(&b);
}

/* What tools a row has and what the template is told besides. */
static void chat_fields(void **state)
{
    (void)state;
    with_template("{% if tools is none %}-{% else %}{{ tools|length }},{% for t in tools %}"
                  "{{ t.f }}{% endfor %}{% endif %}{% if add_generation_prompt %};{{ mode }}"
                  "{{ documents or '' }}{% endif %}",
                  tools_and_kwargs);
}

static void calls_and_thoughts(void)
{
    expect_rendered(
        CHAT_LINE("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"a\":\"{}\"}}]},"
                  "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":{\"t\":1}}",
                  ""),
        "<[{\"function\": {\"a\": \"{}\"}}]><c{'t': 1}>");
    expect_rendered(CHAT_LINE("{\"role\":\"assistant\",\"content\":null,\"thinking\":\"h\"}", ""),
                    "<hNone>");
    expect_rendered(
        CHAT_LINE("{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"h\","
                  "\"tool_calls\":null,\"refusal\":null,\"annotations\":[],\"mood\":5}",
                  ""),
        "<b5>");
    static const char *const bad[][3] = {
        {"{\"role\":\"assistant\"}", "invalid_request", "messages[0].content must be"},
        {"{\"role\":\"assistant\",\"content\":null}", "invalid_request", "content must be"},
        {"{\"role\":\"user\",\"content\":{}}", "invalid_request", "content must be"},
        {"{\"role\":\"user\",\"content\":5}", "invalid_request", "content must be"},
        {"{\"role\":\"tool\",\"content\":[1]}", "invalid_request", "content[0] must be"},
        {"{\"role\":null,\"content\":\"\"}", "invalid_request", "role must be"},
        {"{\"role\":\"a\",\"tool_calls\":{}}", "invalid_request",
         "messages[0].tool_calls must be a list of objects"},
        {"{\"role\":\"a\",\"tool_calls\":[\"f\"]}", "invalid_request",
         "messages[0].tool_calls[0] must be an object"},
        {"{\"role\":\"a\",\"content\":\"\",\"audio\":{}}", "unsupported_field",
         "\"messages[0].audio\" is not supported: the model's chat template does not use it"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[512];
        snprintf(line, sizeof line, "{\"messages\":[%s]}", bad[i][0]);
        refuses(line, bad[i][1], bad[i][2]);
    }
}

/* Members of a message reach the template; null is "not given" for all but content. */
static void chat_members(void **state)
{
    (void)state;
    with_template(
        "{% for m in messages %}<{% if m.tool_calls is defined %}{{ m.tool_calls|tojson }}"
        "{% endif %}{{ m.tool_call_id }}{{ m.thinking }}{{ m.content }}{{ m.mood }}>"
        "{% endfor %}",
        calls_and_thoughts);
    /* this template knows of neither */
    refuses(CHAT_LINE(U, ",\"tools\":[{}]"), "unsupported_field",
            "\"tools\" is not supported: the model's chat template does not use it");
    refuses(CHAT_LINE("{\"role\":\"u\",\"content\":\"\",\"tool_calls\":[{}]}", ""),
            "unsupported_field", "messages[0].tool_calls");
    assert_string_equal(error.field, "tool_calls");
    struct request r = takes(CHAT_LINE(U, ",\"tools\":[]"));
    request_free(&r);
    const char *line =
        CHAT_LINE("{\"role\":\"u\",\"content\":\"\",\"audio\":1}", ",\"tools\":[{}]");
    struct request_defaults d = ignoring("tools");
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), ERR_ROW);
    request_free(&r);
    d = ignoring("tools,audio");
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), OK);
    expect_prompt(&r, "[u]");
    assert_int_equal(r.ignored, 3);
    request_free(&r);
}

/* Deep and wide fields end in a sentence. */
static void chat_bounds(void **state)
{
    (void)state;
    static const char *const fields[] = {"tools\":[{\"a\":",
                                         "chat_template_kwargs\":{\"a\":{\"b\":"};
    static const char *const ends[] = {"}]}", "}}}"};
    for (int f = 0; f < 2; f++) {
        for (int deep = 0; deep < 2; deep++) {
            struct script line = {0};
            script_add(&line, "{\"messages\":[" U "],\"%s[0", fields[f]);
            for (int64_t i = 0; i < (deep ? 2000 : REQUEST_NODES_MAX / 2); i++)
                script_add(&line, deep ? ",[0" : ",{}");
            for (int64_t i = 0; deep && i < 2000; i++)
                script_add(&line, "]");
            script_add(&line, "]%s", ends[f]);
            refuses(line.text, deep ? "invalid_json" : "invalid_request",
                    deep ? "nesting deeper"
                         : "messages, tools and chat_template_kwargs hold more than");
            free(line.text);
        }
    }
}

static void bad_numbers(void **state) // J06, J07
{
    (void)state;
    static const char *const fields[][2] = {
        {"\"max_tokens\":0", "max_tokens must be an integer from 1 to 2147483647"},
        {"\"max_tokens\":-1", "max_tokens must be"},
        {"\"max_tokens\":2147483648", "max_tokens must be"},
        {"\"max_tokens\":18446744073709551617", "max_tokens must be"},
        {"\"max_tokens\":\"10\"", "max_tokens must be"},
        {"\"max_tokens\":1.5", "max_tokens must be"},
        {"\"max_tokens\":1e3", "max_tokens must be"},
        {"\"max_tokens\":true", "max_tokens must be"},
        {"\"max_tokens\":3,\"max_completion_tokens\":4", "differ"},
        {"\"min_tokens\":-1", "min_tokens"},
        {"\"min_tokens\":9,\"max_tokens\":8", "min_tokens is greater"},
        {"\"temperature\":-1", "temperature must be a number from 0 to 100"},
        {"\"temperature\":101", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"top_p\":0", "top_p"},
        {"\"top_p\":2", "top_p"},
        {"\"top_k\":-5", "top_k"},
        {"\"top_k\":1.0", "top_k"},
        {"\"min_p\":1.5", "min_p"},
        {"\"seed\":18446744073709551616", "seed"},
        {"\"seed\":1.5", "seed"},
        {"\"stop\":\"\"", "empty"},
        {"\"stop\":[\"a\",\"\"]", "empty"},
        {"\"stop\":[3]", "stop must be a string"},
        {"\"stop\":[[\"a\"]]", "stop must be a string"},
        {"\"stop\":{}", "stop must be a string"},
        {"\"stop_token_ids\":[261]", "stop_token_ids[0]"},
        {"\"stop_token_ids\":3", "stop_token_ids"},
        {"\"presence_penalty\":3", "presence_penalty"},
        {"\"frequency_penalty\":-2.5", "frequency_penalty"},
        {"\"repetition_penalty\":0", "repetition_penalty must be a number from 0.01 to 100"},
        {"\"logit_bias\":{\"261\":1}", "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"01\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias of 1"},
        {"\"logit_bias\":{\"1\":\"x\"}", "logit_bias of 1"},
        {"\"logit_bias\":{\"1\":1,\"1\":2}", "twice"},
        {"\"logit_bias\":[]", "object"},
        {"\"logprobs\":21", "logprobs"},
        {"\"logprobs\":-1", "logprobs"},
        {"\"logprobs\":\"yes\"", "logprobs"},
        {"\"top_logprobs\":3", "needs logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"echo\":1", "echo must be true or false"},
        {"\"ignore_eos\":\"x\"", "ignore_eos"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char line[256];
        snprintf(line, sizeof line, "{\"prompt\":\"a\",%s}", fields[i][0]);
        refuses(line, "invalid_request", fields[i][1]);
    }
    refuses("{\"prompt\":\"a\",\"temperature\":1e400}", "invalid_json", "");
    refuses("{\"prompt\":\"a\",\"temperature\":NaN}", "invalid_json", "");
    struct script stops = {0};
    script_add(&stops, "{\"prompt\":\"a\",\"stop\":[\"a\"");
    for (int i = 0; i < 10000; i++)
        script_add(&stops, ",\"b\"");
    script_add(&stops, "]}");
    refuses(stops.text, "invalid_request", "more than 64");
    free(stops.text);
}

static void unknown_fields(void **state) // J10
{
    (void)state;
    refuses("{\"prompt\":\"a\",\"n_discard\":-5}", "unsupported_field", "\"n_discard\"");
    refuses("{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\"},\"x\":1}",
            "unsupported_field", "\"x\"");
    struct request r;
    struct request_defaults d = ignoring("n_discard,a,zebra");
    const char *line = "{\"a\":{\"b\":[1,{}]},\"prompt\":\"a\",\"n_discard\":-5}";
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), OK);
    assert_int_equal(r.ignored, 3); // "a" and "n_discard"; no "zebra"
    request_free(&r);
    d = ignoring("a");
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), ERR_ROW);
    assert_string_equal(error.field, "n_discard");
    request_free(&r);
    refuses("{\"prompt\":\"a\",\"max_token\":1}", "unsupported_field",
            "\"max_token\" is not supported (did you mean max_tokens?)");
    assert_string_equal(error.field, ""); // a slip in the input is not for a flag to hide
    struct script many = {0};
    script_add(&many, "{\"prompt\":\"a\"");
    for (int i = 0; i < 1000; i++)
        script_add(&many, ",\"k%d\":1", i);
    script_add(&many, "}");
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, many.text, (int64_t)many.n, &d), ERR_ROW);
    request_free(&r);
    free(many.text);
}

static void envelope(void **state)
{
    (void)state;
    refuses("{\"body\":{}}", "invalid_request", "url is missing");
    refuses("{\"url\":\"/v1/completions\"}", "invalid_request", "body is missing");
    refuses("{\"url\":\"/v1/embeddings\",\"body\":{}}", "unsupported_endpoint", "/v1/embeddings");
    refuses("{\"url\":3,\"body\":{}}", "invalid_request", "url must be a string");
    refuses("{\"url\":\"/v1/completions\",\"body\":[]}", "invalid_request", "body");
    refuses("{\"url\":\"/v1/completions\",\"method\":\"GET\",\"body\":{}}", "invalid_request",
            "method");
    refuses("{\"custom_id\":5.5,\"prompt\":\"a\"}", "invalid_request",
            "custom_id must be a string (or an integer), is number");
    refuses("{\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":\"u\",\"content\":"
            "\"x\"}],\"echo\":true}}",
            "invalid_request", "echo");
    // an error row names its row whatever is wrong with it
    struct request r;
    struct request_defaults d = defaults_plain();
    const char *line = "{\"url\":\"/nope\",\"custom_id\":\"me\",\"body\":{}}";
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), ERR_ROW);
    assert_string_equal(r.custom_id, "me");
    assert_int_equal(r.form, FORM_BATCH_COMPLETION);
    request_free(&r);
    struct text id = {0};
    assert_int_equal(request_read_id(line, (int64_t)strlen(line), 3, &id), OK);
    assert_string_equal(id.p, "me");
    free(id.p);
    assert_int_equal(request_read_id("{", 1, 3, &id), OK);
    assert_string_equal(id.p, "row-3");
    free(id.p);
}

static void score_rows(void **state)
{
    (void)state;
    struct request r = takes_kind(REQUEST_SCORE, "{\"context\":\"ab\",\"continuation\":\"he\"}");
    assert_int_equal(r.form, FORM_SCORE);
    assert_int_equal(r.n_prompt, 2);
    assert_int_equal(r.n_tokens, 3);
    assert_int_equal(r.n_cap, 3);
    assert_int_equal(r.tokens[2], 256);
    request_free(&r);
    r = takes_kind(REQUEST_SCORE, "{\"context\":\"h\",\"continuation\":\"e\"}"); // apart: no merge
    assert_int_equal(r.n_tokens, 2);
    request_free(&r);
    r = takes_kind(REQUEST_SCORE, "{\"context\":\"\",\"continuation_ids\":[]}");
    assert_true(r.n_prompt == 1 && r.n_tokens == 1 && r.tokens[0] == END_ID);
    request_free(&r);
    refuses_kind(REQUEST_SCORE, "{\"context\":\"a\"}", "invalid_request", "continuation");
    refuses_kind(REQUEST_SCORE, "{\"continuation\":\"a\"}", "invalid_request", "context");
    refuses_kind(REQUEST_SCORE, "{\"context\":\"a\",\"context_ids\":[1],\"continuation\":\"b\"}",
                 "invalid_request", "exactly one of context");
    refuses_kind(REQUEST_SCORE, "{\"context\":[1],\"continuation\":\"b\"}", "invalid_request",
                 "context must be a string");
    refuses_kind(REQUEST_SCORE, "{\"context_ids\":[261],\"continuation\":\"b\"}", "invalid_request",
                 "context_ids[0]");
    refuses_kind(REQUEST_SCORE, "{\"context\":\"a\",\"continuation\":\"b\",\"max_tokens\":1}",
                 "unsupported_field", "max_tokens");
}

/* A NUL is a character like any other. */
static void nuls(void **state)
{
    (void)state;
    struct request r = takes("{\"custom_id\":\"a\\u0000b\",\"prompt\":\"x\\u0000\\u0000y\","
                             "\"stop\":[\"\\u0000\",\"p\\u0000q\"]}");
    assert_true(r.n_custom_id == 3 && memcmp(r.custom_id, "a\0b", 4) == 0);
    assert_int_equal(r.n_prompt, 4);
    assert_true(r.tokens[0] == 'x' && r.tokens[1] == 0 && r.tokens[2] == 0 && r.tokens[3] == 'y');
    assert_true(r.n_stops == 2 && r.stops[0].n == 1 && r.stops[1].n == 3);
    assert_memory_equal(r.stops[1].p, "p\0q", 4);
    request_free(&r);
    r = takes("{\"messages\":[{\"role\":\"u\",\"content\":\"a\\u0000b\"}]}");
    assert_int_equal(r.n_prompt, 6); // [u]a.b
    assert_true(r.tokens[3] == 'a' && r.tokens[4] == 0 && r.tokens[5] == 'b');
    request_free(&r);
    const char *line = "{\"custom_id\":\"\\u0000\"}"; // two of them are two
    struct text id = {0};
    assert_int_equal(request_read_id(line, (int64_t)strlen(line), 3, &id), OK);
    assert_true(id.n == 1 && id.p[0] == 0);
    free(id.p);
}

/* What clients of the OpenAI API send. */
static void clients(void **state)
{
    (void)state;
    struct request r = takes("{\"custom_id\":-12,\"prompt\":\"a\","
                             "\"response_format\":{\"a\":{},\"type\":\"text\"}}");
    assert_string_equal(r.custom_id, "-12");
    assert_true(r.has_custom_id);
    request_free(&r);
    r = takes("{\"prompt\":\"a\",\"response_format\":null}");
    request_free(&r);
    refuses("{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}",
            "unsupported_field", "response_format \"json_schema\" is not supported");
    refuses("{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}",
            "unsupported_field",
            "response_format \"json_object\" is not supported, only \"text\" is");
    refuses("{\"prompt\":\"a\",\"response_format\":{\"type\":5}}", "invalid_request",
            "response_format.type must be a string");
    refuses("{\"prompt\":\"a\",\"response_format\":\"text\"}", "invalid_request",
            "must be an object");
    struct request_defaults d = ignoring("response_format");
    const char *line = "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}";
    assert_int_equal(parse_with(&r, REQUEST_GENERATE, line, (int64_t)strlen(line), &d), OK);
    request_free(&r);
    refuses("{\"prompt\":[\"a\",\"b\"]}", "unsupported_field", "a row of its own");
    refuses("{\"prompt\":[[1],[2]]}", "unsupported_field", "prompt is a list of prompts");
    refuses("{\"prompt_token_ids\":[\"a\"]}", "invalid_request", "must be a token id");
}

static void from_ids(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3};
    struct request r;
    assert_int_equal(request_from_ids(&r, REQUEST_SCORE, 5, ids, 1, 3, 3), OK);
    assert_true(r.tokens[2] == 3 && r.logprobs && r.sampling.repetition_penalty == 1);
    assert_string_equal(r.custom_id, "row-6");
    request_free(&r);
    request_free(&r);
}

/* Any byte of any line changed: an answer, never a crash, and memory given back. */
static void mutations(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/"
        "completions\",\"body\":{\"messages\":"
        "[{\"role\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],\"stop\":[\"a\"],"
        "\"logit_bias\""
        ":{\"5\":1},\"logprobs\":true}}",
        "{\"prompt\":[1,2,3],\"temperature\":0.5,\"seed\":3,\"stop_token_ids\":[1]}",
        "{\"messages\":[{\"role\":\"tool\",\"content\":{},\"tool_calls\":[{\"a\":1}],\"name\":null}"
        "],"
        "\"tools\":[{\"a\":[]}],\"chat_template_kwargs\":{\"b\":{\"c\":2},\"d\":null}}"};
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        char line[512];
        int64_t n = (int64_t)strlen(seeds[i % 3]);
        memcpy(line, seeds[i % 3], (size_t)n);
        for (int edits = 1 + i % 3; edits > 0; edits--) {
            x = mix64(x);
            line[x % (uint64_t)n] = "\"{}[]:,\\u0\0\xff 9-e"[(x >> 32) % 17];
        }
        if (i % 7 == 0)
            n = (int64_t)(x >> 20) % n;
        struct request r;
        struct request_defaults d = defaults_plain();
        enum err err = parse_with(&r, i % 5 ? REQUEST_GENERATE : REQUEST_SCORE, line, n, &d);
        assert_true(err == OK || (err == ERR_ROW && error.code[0] && error.message[0]));
        assert_non_null(r.custom_id);
        request_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),           cmocka_unit_test(empty_prompt_is_bos),
        cmocka_unit_test(sampling_fields), cmocka_unit_test(defaults_and_rows),
        cmocka_unit_test(bad_json),        cmocka_unit_test(bad_prompts),
        cmocka_unit_test(too_many_nodes),  cmocka_unit_test(bad_numbers),
        cmocka_unit_test(unknown_fields),  cmocka_unit_test(envelope),
        cmocka_unit_test(score_rows),      cmocka_unit_test(nuls),
        cmocka_unit_test(clients),         cmocka_unit_test(from_ids),
        cmocka_unit_test(chat_fields),     cmocka_unit_test(chat_members),
        cmocka_unit_test(chat_bounds),     cmocka_unit_test(mutations),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
