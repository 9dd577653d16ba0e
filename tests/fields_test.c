/* tests/fields_test.c - fields that change nothing, fields that sluice lacks, and --ignore-fields.
 */
#include "engine/job/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/job_help.h"

#define MESSAGE "\"messages\":[{\"role\":\"u\",\"content\":\"x\"}]"

static struct row_error error;

static enum err parse(struct request *r, const char *ignore, const char *line)
{
    struct request_defaults d = defaults_plain();
    assert_int_equal(ignore_parse(&d.ignore, ignore), OK);
    return request_parse(r, REQUEST_GENERATE, line, (int64_t)strlen(line), 4, 9, &d, tok, tmpl,
                         &error);
}

/* A chat row of OpenAI's batch form with one more field. */
static const char *chat_row(const char *more)
{
    static char line[1024];
    snprintf(line, sizeof line, "{\"url\":\"/v1/chat/completions\",\"body\":{%s,%s}}", MESSAGE,
             more);
    return line;
}

static void takes(const char *ignore, const char *line, uint32_t ignored)
{
    struct request r;
    if (parse(&r, ignore, line) != OK)
        fail_msg("refused %s: %s: %s", line, error.code, error.message);
    assert_int_equal(r.ignored, ignored);
    request_free(&r);
}

static void refuses(const char *ignore, const char *line, const char *field, const char *message)
{
    struct request r;
    assert_int_equal(parse(&r, ignore, line), ERR_ROW);
    if (strcmp(error.code, "unsupported_field") != 0 || strcmp(error.field, field) != 0 ||
        strcmp(error.message, message) != 0)
        fail_msg("%s: %s: %s: %s", line, error.code, error.field, error.message);
    request_free(&r);
}

static void harmless_fields(void **state)
{
    (void)state;
    static const char *const fields[] = {"\"metadata\":{\"a\":\"b\"}",
                                         "\"store\":true",
                                         "\"user\":\"me\"",
                                         "\"model\":\"any\"",
                                         "\"service_tier\":\"flex\"",
                                         "\"parallel_tool_calls\":true",
                                         "\"stream_options\":{\"include_usage\":true}",
                                         "\"safety_identifier\":\"x\"",
                                         "\"prompt_cache_key\":\"x\"",
                                         "\"prompt_cache_retention\":\"24h\"",
                                         "\"prediction\":{\"type\":\"content\",\"content\":\"x\"}",
                                         "\"tool_choice\":\"auto\"",
                                         "\"tool_choice\":\"none\"",
                                         "\"response_format\":{\"type\":\"text\"}",
                                         "\"stream\":false",
                                         "\"n\":1",
                                         "\"best_of\":1",
                                         "\"functions\":[ ]",
                                         "\"function_call\":\"none\"",
                                         "\"function_call\":\"auto\"",
                                         "\"modalities\":[ \"text\" ]",
                                         "\"verbosity\":\"medium\"",
                                         "\"logit_bias\":{}",
                                         "\"tools\":[]",
                                         "\"suffix\":\"\""};
    static const char *const names[] = {
        "metadata",  "tool_choice", "response_format",  "stream",     "n",     "audio",
        "functions", "logit_bias",  "reasoning_effort", "modalities", "tools", "no_such_field"};
    char field[128];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        takes("", chat_row(fields[i]), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(field, sizeof field, "\"%s\":null", names[i]);
        takes("", chat_row(field), 0);
    }
    takes("", "{\"url\":\"/v1/completions\",\"metadata\":{},\"body\":{\"prompt\":\"a\"}}", 0);
    takes("metadata", chat_row("\"metadata\":{}"), 0); // nothing is lost: nothing to tell
}

/* What sluice lacks: an error row, or, when named, a row as if it had not the field. */
static void lacked_fields(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"n", "3", "n 3 is not supported, only 1 is"},
        {"n", "0", "n 0 is not supported, only 1 is"},
        {"n", "[1]", "n is not supported, only 1 is"},
        {"best_of", "4", "best_of 4 is not supported, only 1 is"},
        {"stream", "true", "stream true is not supported, only false is"},
        {"reasoning_effort", "\"high\"", "reasoning_effort \"high\" is not supported"},
        {"verbosity", "\"low\"", "verbosity \"low\" is not supported, only \"medium\" is"},
        {"modalities", "[\"text\",\"audio\"]", "modalities is not supported, only [\"text\"] is"},
        {"audio", "{\"voice\":\"x\"}", "audio is not supported"},
        {"functions", "[{}]", "functions is not supported, only [] is"},
        {"function_call", "\"au to\"",
         "function_call \"au to\" is not supported, only \"auto\" is"},
        {"suffix", "\"0123456789012345678901234567890123456789012345678\"",
         "suffix is not supported, only \"\" is"},
        {"tool_choice", "\"required\"",
         "tool_choice \"required\" is not supported, only \"auto\" is"},
        {"tool_choice", "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}",
         "tool_choice of a function is not supported, only \"auto\" is"},
        {"response_format", "{\"type\":\"json_schema\",\"json_schema\":{}}",
         "response_format \"json_schema\" is not supported, only \"text\" is"},
        {"tools", "[{}]",
         "field \"tools\" is not supported: the model's chat template does not use it"},
        {"mirostat", "{\"a\":[1]}", "field \"mirostat\" is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char field[256], names[64];
        snprintf(field, sizeof field, "\"%s\":%s", cases[i][0], cases[i][1]);
        refuses("", chat_row(field), cases[i][0], cases[i][2]);
        refuses("web_search_options", chat_row(field), cases[i][0], cases[i][2]);
        snprintf(names, sizeof names, "a_field,%s,zebra", cases[i][0]);
        takes(names, chat_row(field), 2);
    }
    refuses("", chat_row("\"max_token\":5"), "",
            "field \"max_token\" is not supported (did you mean max_tokens?)");
    takes("max_token", chat_row("\"max_token\":5"), 1);
    refuses("", "{\"url\":\"/v1/completions\",\"max_tokens\":3,\"body\":{\"prompt\":\"a\"}}", "",
            "field \"max_tokens\" is not supported here"); // no flag ignores max_tokens
    refuses("", "{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"tools\":[{}]}}", "tools",
            "field \"tools\" is not supported here");
    refuses("tools", chat_row("\"tools\":[{}],\"tool_choice\":\"none\""), "tool_choice",
            "tool_choice \"none\" is not supported beside tools, only \"auto\" is");
}

/* Parts of a message that are no text. */
static void parts(void **state)
{
    (void)state;
    static const char line[] =
        "{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"image_url\",\"image_url\":{}},{\"type\":\"text\",\"text\":\"b\"}]}]}";
    struct request r;
    refuses("", line, "image_url",
            "messages[0].content[1]: \"image_url\" is not supported, only \"text\" is");
    assert_int_equal(parse(&r, "image_url", line), OK);
    assert_int_equal(r.ignored, 1);
    assert_int_equal(r.n_prompt, 6); // "[u]a\nb"
    assert_int_equal(r.tokens[4], '\n');
    request_free(&r);
}

static void expect_list(const char *text, const char *want)
{
    struct ignore_list list;
    char got[256];
    assert_int_equal(ignore_parse(&list, text), OK);
    ignore_text(&list, got, sizeof got);
    assert_string_equal(got, want);
}

static void refuses_list(const char *text, const char *words)
{
    struct ignore_list list;
    assert_int_equal(ignore_parse(&list, text), ERR_USAGE);
    if (!strstr(err_text(), words))
        fail_msg("%s: %s", text, err_text());
}

static void lists(void **state)
{
    (void)state;
    char many[8 * IGNORE_MAX + 16] = "", name[100] = "";
    expect_list(NULL, "");
    expect_list("", "");
    expect_list("tools,n,tools,image_url", "image_url,n,tools");
    expect_list("my_own", "my_own");
    expect_list("max_token", "max_token"); // rows may hold a slip
    refuses_list("respons_format", "(did you mean response_format?)");
    refuses_list("tool", "(did you mean tools?)");
    refuses_list("n,temperature", "sluice honours \"temperature\"");
    refuses_list("a,,b", "'a,,b'");
    refuses_list(",", "','");
    memset(name, 'x', IGNORE_NAME_BYTES);
    refuses_list(name, "1 to 63 bytes");
    name[IGNORE_NAME_BYTES - 1] = 0;
    expect_list(name, name);
    for (int i = 0; i < IGNORE_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%sf_%03d", i ? "," : "", i);
    expect_list(many, many);
    snprintf(many + strlen(many), sizeof many - strlen(many), ",g");
    refuses_list(many, "at most 32 names");
    struct ignore_list a, b;
    assert_int_equal(ignore_parse(&a, "n,tools"), OK);
    assert_int_equal(ignore_parse(&b, "audio,n"), OK);
    struct ignore_list rest = ignore_without(&a, &b), all = ignore_union(&a, &b);
    assert_true(rest.n == 1 && strcmp(rest.names[0], "tools") == 0);
    assert_true(all.n == 3 && strcmp(all.names[0], "audio") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(harmless_fields),
        cmocka_unit_test(lacked_fields),
        cmocka_unit_test(parts),
        cmocka_unit_test(lists),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
