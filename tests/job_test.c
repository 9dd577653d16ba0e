/* tests/job_test.c - rows in, rows out: the queue, stop rules, shapes of output rows, memory jobs,
 * and who may write where. Kills and full disks: tests/job_resume_test.c. */
#include "engine/job/job.h"

#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/job_help.h"

/* Runs rows as one job, returns OUT parsed into an array. */
static json_t *rows_of(const struct job_config *c, const char *text, struct fake *f,
                       struct job_counts *counts)
{
    temp_write_text("in", text);
    unlink(temp_path("out"));
    unlink(temp_path("out.job.json"));
    if (job_run(c, f, counts) != OK)
        fail_msg("%s", err_text());
    assert_false(file_is_there("out.partial"));
    assert_false(file_is_there("out.journal"));
    assert_false(file_is_there("out.tmp"));
    int64_t n;
    char *out = file_text("out", &n);
    json_t *rows = json_array();
    for (char *rest, *line = strtok_r(out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        json_array_append_new(rows, row);
    }
    free(out);
    return rows;
}

static json_t *run_rows(const char *text)
{
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    return rows_of(&c, text, NULL, NULL);
}

static const json_t *row_at(const json_t *rows, size_t i)
{
    const json_t *row = json_array_get(rows, i);
    assert_non_null(row);
    return row;
}

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (!s)
        fail_msg("no string %s", key);
    return s;
}

static json_int_t num(const json_t *o, const char *key)
{
    assert_true(json_is_integer(json_object_get(o, key)));
    return json_integer_value(json_object_get(o, key));
}

static const char *error_code(const json_t *row)
{
    return str(json_object_get(row, "error"), "code");
}

/* ---- rows ---- */

static void plain_rows(void **state)
{
    (void)state;
    json_t *rows = run_rows("{\"prompt\":\"abc\",\"max_tokens\":6,\"ignore_eos\":true}\n\n"
                            "{\"custom_id\":\"q\\\"\\n\",\"prompt\":\"hello\",\"max_tokens\":3}\r\n"
                            "nonsense\n");
    assert_int_equal(json_array_size(rows), 3);
    const json_t *row = row_at(rows, 0), *usage = json_object_get(row, "usage");
    assert_string_equal(str(row, "custom_id"), "row-1");
    assert_string_equal(str(row, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(row, "token_ids")), 6);
    assert_int_equal(num(usage, "prompt_tokens"), 3);
    assert_int_equal(num(usage, "completion_tokens"), 6);
    assert_int_equal(num(usage, "total_tokens"), 9);
    assert_string_equal(str(row_at(rows, 1), "custom_id"), "q\"\n");
    assert_string_equal(error_code(row_at(rows, 2)), "invalid_json");
    assert_int_equal(num(json_object_get(row_at(rows, 2), "error"), "line"), 4);
    assert_string_equal(str(row_at(rows, 2), "custom_id"), "row-4");
    json_decref(rows);
}

static void batch_rows(void **state)
{
    (void)state;
    json_t *rows =
        run_rows("{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/chat/"
                 "completions\",\"body\":{\"messages\":"
                 "[{\"role\":\"u\",\"content\":\"x\"}],\"max_tokens\":4}}\n"
                 "{\"custom_id\":\"d\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\"}}\n"
                 "{\"custom_id\":\"e\",\"url\":\"/v1/nothing\",\"body\":{}}\n");
    const json_t *row = row_at(rows, 0), *response = json_object_get(row, "response");
    const json_t *body = json_object_get(response, "body");
    assert_true(json_is_null(json_object_get(row, "error")));
    assert_int_equal(num(response, "status_code"), 200);
    assert_string_equal(str(body, "object"), "chat.completion");
    assert_string_equal(str(body, "model"), "fake");
    assert_int_equal(num(body, "created"), 0);
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    assert_string_equal(str(json_object_get(choice, "message"), "role"), "assistant");
    assert_true(json_is_null(json_object_get(choice, "logprobs")));
    body = json_object_get(json_object_get(row_at(rows, 1), "response"), "body");
    assert_string_equal(str(body, "object"), "text_completion");
    choice = json_array_get(json_object_get(body, "choices"), 0);
    assert_non_null(str(choice, "text"));
    assert_string_equal(error_code(row_at(rows, 2)), "unsupported_endpoint");
    assert_true(json_is_null(json_object_get(row_at(rows, 2), "response")));
    assert_string_not_equal(str(row_at(rows, 0), "id"), str(row_at(rows, 1), "id"));
    json_decref(rows);
}

/* The text of a row with these fields and prompt "ab". */
static json_t *one_row(const char *fields)
{
    char line[1024];
    snprintf(line, sizeof line, "{\"prompt\":\"ab\"%s}\n", fields);
    json_t *rows = run_rows(line), *row = json_incref(json_array_get(rows, 0));
    json_decref(rows);
    if (json_object_get(row, "error"))
        fail_msg("%s: %s", line, error_code(row));
    return row;
}

static void stop_rules(void **state)
{
    (void)state;
    json_t *whole = one_row(",\"max_tokens\":40,\"ignore_eos\":true,\"seed\":1");
    const char *text = str(whole, "text");
    char fields[200], stop[8] = {0};
    assert_true(strlen(text) > 20);
    memcpy(stop, text + 10, 3);
    assert_int_equal(strstr(text, stop) - text, 10);
    snprintf(fields, sizeof fields,
             ",\"max_tokens\":40,\"ignore_eos\":true,\"seed\":1,\"stop\":[\"zzzz\",\"%s\"]", stop);
    json_t *row = one_row(fields);
    assert_string_equal(str(row, "finish_reason"), "stop");
    assert_int_equal(strlen(str(row, "text")), 10); // cut before the stop string
    assert_memory_equal(str(row, "text"), text, 10);
    size_t n_ids = json_array_size(json_object_get(row, "token_ids"));
    assert_true(n_ids >= 5 && n_ids <= 13);
    json_decref(row);
    // not before min_tokens: then it is only text
    snprintf(fields, sizeof fields,
             ",\"max_tokens\":40,\"min_tokens\":20,\"ignore_eos\":true,\"seed\":1,\"stop\":\"%s\"",
             stop);
    row = one_row(fields);
    assert_memory_equal(str(row, "text"), text, 13);
    json_decref(row);
    // a stop id is in token_ids and not in the text
    json_int_t id = json_integer_value(json_array_get(json_object_get(whole, "token_ids"), 5));
    snprintf(fields, sizeof fields,
             ",\"max_tokens\":40,\"ignore_eos\":true,\"seed\":1,\"stop_token_ids\":[%d]", (int)id);
    row = one_row(fields);
    const json_t *ids = json_object_get(row, "token_ids");
    assert_string_equal(str(row, "finish_reason"), "stop");
    assert_true(json_integer_value(json_array_get(ids, json_array_size(ids) - 1)) == id);
    assert_int_equal(num(json_object_get(row, "usage"), "completion_tokens"), json_array_size(ids));
    assert_true(strlen(str(row, "text")) < strlen(text));
    assert_memory_equal(str(row, "text"), text, strlen(str(row, "text")));
    json_decref(row);
    // EOS ends unless it is ignored; min_tokens bans it
    row = one_row(",\"max_tokens\":60,\"temperature\":0,\"logit_bias\":{\"260\":100}");
    assert_int_equal(json_array_size(json_object_get(row, "token_ids")), 1);
    assert_string_equal(str(row, "text"), "");
    assert_string_equal(str(row, "finish_reason"), "stop");
    json_decref(row);
    row = one_row(
        ",\"max_tokens\":60,\"temperature\":0,\"min_tokens\":4,\"logit_bias\":{\"260\":100}");
    assert_int_equal(json_array_size(json_object_get(row, "token_ids")), 5);
    json_decref(row);
    row = one_row(
        ",\"max_tokens\":3,\"temperature\":0,\"ignore_eos\":true,\"logit_bias\":{\"260\":100}");
    assert_int_equal(json_array_size(json_object_get(row, "token_ids")), 3);
    assert_string_equal(str(row, "finish_reason"), "length");
    json_decref(row);
    json_decref(whole);
}

/* prompt + max_tokens beyond the context is cut. */
static void context_is_cut(void **state)
{
    (void)state;
    json_t *row = one_row(",\"max_tokens\":1000,\"ignore_eos\":true");
    assert_int_equal(num(json_object_get(row, "usage"), "total_tokens"), CONTEXT);
    assert_string_equal(str(row, "finish_reason"), "length");
    json_decref(row);
}

static void logprobs_shapes(void **state)
{
    (void)state;
    json_t *row = one_row(",\"max_tokens\":5,\"ignore_eos\":true,\"echo\":true,\"logprobs\":2");
    const json_t *l = json_object_get(row, "logprobs");
    const json_t *tokens = json_object_get(l, "tokens"),
                 *values = json_object_get(l, "token_logprobs");
    const json_t *top = json_object_get(l, "top_logprobs"),
                 *offsets = json_object_get(l, "text_offset");
    assert_true(json_array_size(tokens) == 7 && json_array_size(values) == 7);
    assert_true(json_array_size(top) == 7 && json_array_size(offsets) == 7);
    assert_true(json_is_null(json_array_get(values, 0)) && json_is_null(json_array_get(top, 0)));
    assert_string_equal(json_string_value(json_array_get(tokens, 1)), "b");
    assert_int_equal(json_integer_value(json_array_get(offsets, 1)), 1);
    assert_memory_equal(str(row, "text"), "ab", 2);
    for (size_t i = 1; i < 7; i++) {
        double value = json_number_value(json_array_get(values, i)), best = -INFINITY;
        const json_t *map = json_array_get(top, i), *x;
        const char *key;
        assert_true(value <= 0);
        assert_in_range(json_object_size(map), 2, 3);
        json_object_foreach((json_t *)map, key, x) best = fmax(best, json_number_value(x));
        assert_true(value <= best);
        // the token's own entry is its value
        x = json_object_get(map, json_string_value(json_array_get(tokens, i)));
        assert_true(x && json_number_value(x) == value);
    }
    json_decref(row);
    json_t *rows =
        run_rows("{\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":\"u\","
                 "\"content\":\"x\"}],\"max_tokens\":4,\"ignore_eos\":true,\"logprobs\":true,"
                 "\"top_logprobs\":2}}\n");
    const json_t *body = json_object_get(json_object_get(row_at(rows, 0), "response"), "body");
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *content = json_object_get(json_object_get(choice, "logprobs"), "content");
    assert_int_equal(json_array_size(content), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *t = json_array_get(content, i);
        assert_true(json_is_real(json_object_get(t, "logprob")));
        assert_true(json_array_size(json_object_get(t, "bytes")) >= 1);
        assert_int_equal(json_array_size(json_object_get(t, "top_logprobs")), 2);
    }
    json_decref(rows);
}

/* What run samples, score finds again with the same numbers. */
static void score_agrees_with_run(void **state)
{
    (void)state;
    json_t *row = one_row(",\"max_tokens\":9,\"temperature\":0,\"ignore_eos\":true,\"logprobs\":0");
    char line[512];
    int n = snprintf(line, sizeof line,
                     "{\"custom_id\":\"s\",\"context\":\"ab\",\"continuation_ids\":[");
    const json_t *ids = json_object_get(row, "token_ids"), *id;
    size_t i;
    json_array_foreach(ids, i, id) n += snprintf(line + n, sizeof line - (size_t)n, "%s%d",
                                                 i ? "," : "", (int)json_integer_value(id));
    snprintf(
        line + n, sizeof line - (size_t)n,
        "]}\n{\"context\":\"a\",\"continuation\":\"\"}\n{\"context\":\"\",\"continuation\":\"b\"}\n"
        "{\"context\":\"a\"}\n");
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    c.kind = REQUEST_SCORE;
    struct job_counts counts;
    json_t *rows = rows_of(&c, line, NULL, &counts);
    assert_true(counts.ok == 3 && counts.failed == 1);
    const json_t *s = row_at(rows, 0), *values = json_object_get(s, "token_logprobs");
    assert_int_equal(num(s, "num_tokens"), 9);
    assert_true(json_is_true(json_object_get(s, "is_greedy")));
    assert_true(json_equal((json_t *)values,
                           json_object_get(json_object_get(row, "logprobs"), "token_logprobs")));
    s = row_at(rows, 1);
    assert_true(json_number_value(json_object_get(s, "logprob")) == 0 && num(s, "num_tokens") == 0);
    assert_true(json_is_true(json_object_get(s, "is_greedy")));
    s = row_at(rows, 2);
    assert_true(json_number_value(json_object_get(s, "logprob")) < 0 && num(s, "num_tokens") == 1);
    assert_string_equal(error_code(row_at(rows, 3)), "invalid_request");
    json_decref(rows);
    json_decref(row);
}

static void double_ids(void **state) // J05
{
    (void)state;
    json_t *rows = run_rows("{\"custom_id\":\"a\",\"prompt\":\"x\",\"max_tokens\":2}\n"
                            "{\"custom_id\":\"b\",\"prompt\":\"x\",\"max_tokens\":2}\n"
                            "{\"custom_id\":\"\\u0061\",\"prompt\":\"x\",\"max_tokens\":2}\n"
                            "{\"prompt\":\"x\",\"max_tokens\":2}\n"
                            "{\"custom_id\":\"row-4\",\"prompt\":\"x\",\"max_tokens\":2}\n"
                            "{\"custom_id\":\"a\",\"prompt\":\"x\",\"max_tokens\":2}\n");
    static const int bad[] = {0, 0, 1, 0, 1, 1};
    for (size_t i = 0; i < 6; i++) {
        const json_t *row = row_at(rows, i);
        assert_int_equal(json_object_get(row, "error") != NULL, bad[i]);
        if (bad[i])
            assert_string_equal(error_code(row), "duplicate_custom_id");
    }
    assert_non_null(strstr(str(json_object_get(row_at(rows, 2), "error"), "message"), "1 and 3"));
    json_decref(rows);
}

/* ---- the same bytes whatever the batch, the neighbours, the queue ---- */

static void any_batch_same_bytes(void **state)
{
    (void)state;
    char *text = mixed_input(40);
    temp_write_text("in", text);
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    int64_t n, want_n;
    char *want = bytes_of(&c, &(struct fake){.batch = 1, .nan_row = -1}, &want_n);
    for (int batch = 2; batch < 40; batch += 9)
        for (int requeue = 0; requeue < 3; requeue++) {
            struct fake f = {
                .batch = batch, .nan_row = -1, .requeue_every = requeue, .force = requeue};
            char *got = bytes_of(&c, &f, &n);
            assert_int_equal(n, want_n);
            assert_memory_equal(got, want, (size_t)n);
            free(got);
        }
    if (setlocale(LC_ALL, "de_DE.UTF-8")) { // J18
        char *got = bytes_of(&c, NULL, &n);
        setlocale(LC_ALL, "C");
        assert_int_equal(n, want_n);
        assert_memory_equal(got, want, (size_t)n);
        free(got);
    }
    free(want);
    free(text);
}

static void completion_order(void **state)
{
    (void)state;
    char *text = mixed_input(40);
    temp_write_text("in", text);
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    int64_t n;
    char *want = bytes_of(&c, NULL, &n);
    c.completion_order = 1;
    char *got = bytes_of(&c, NULL, &n);
    assert_string_not_equal(got, want);
    char *a = sorted_lines(got), *b = sorted_lines(want);
    assert_string_equal(a, b);
    free(a);
    free(b);
    free(got);
    free(want);
    free(text);
}

/* Shards take every row once; limit takes the first ones. */
static void shards_and_limit(void **state)
{
    (void)state;
    char *text = mixed_input(20);
    temp_write_text("in", text);
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    int64_t n;
    struct script joined = {0};
    char *want = bytes_of(&c, NULL, &n);
    for (c.n_shards = 3, c.shard = 0; c.shard < 3; c.shard++) {
        char *part = bytes_of(&c, NULL, &n);
        for (char *rest, *line = strtok_r(part, "\n", &rest); line;
             line = strtok_r(NULL, "\n", &rest)) {
            for (; strlen(line) > 400; line += 400)
                script_add(&joined, "%.400s", line);
            script_add(&joined, "%s\n", line);
        }
        free(part);
    }
    char *a = sorted_lines(joined.text), *b = sorted_lines(want);
    assert_string_equal(a, b);
    c.n_shards = 0;
    c.limit = 5;
    char *first = bytes_of(&c, NULL, &n);
    assert_memory_equal(first, want, (size_t)n);
    int lines = 0;
    for (char *p = first; *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 5);
    free(a);
    free(b);
    free(first);
    free(joined.text);
    free(want);
    free(text);
}

/* ---- counts, work, failures ---- */

static void counts_and_work(void **state)
{
    (void)state;
    temp_write_text("in",
                    "{\"prompt\":\"abcd\",\"max_tokens\":6}\n{\"prompt\":\"a\",\"max_tokens\":9,"
                    "\"top_k\":3}\n{\"prompt\":7}\n");
    struct job_config c = config_for(kept_path("in"), NULL); // look only
    struct job *job;
    struct work work;
    assert_int_equal(job_open(&job, &c, &work), OK);
    assert_true(work.n_rows == 2 && work.prompt_tokens == 5 && work.output_tokens == 15);
    assert_true(work.prompt_max == 4 && work.tokens_max == 10 && work.slots_max == 10);
    assert_true(work.slots_mean == 10 && work.forced_max == 0 && work.filters && !work.scores &&
                work.scored_positions == 0);
    assert_int_equal(work.line_bytes_max, 39);
    struct job_counts counts;
    job_counts(job, &counts);
    assert_true(counts.rows == 3 && counts.failed == 1 && counts.done == 1);
    assert_true(job_live(job));
    assert_int_equal(job_edits_max(job), 0);
    assert_true(job_text_bytes(job, &work) < 5 << 20);
    assert_int_equal(job_close(job), OK);
    assert_int_equal(job_close(NULL), OK);
    struct evict window = {.policy = EVICT_WINDOW, .budget = 4, .sink = -1};
    struct evict broken = {.policy = EVICT_STREAMING, .budget = 4, .sink = 9};
    c.evict = &window;
    assert_int_equal(job_open(&job, &c, &work), OK);
    assert_true(work.slots_max == 4 && work.slots_mean == 4);
    job_close(job);
    c.evict = &broken;
    assert_int_equal(job_open(&job, &c, &work), OK);
    assert_int_equal(work.n_rows, 0);
    job_counts(job, &counts);
    assert_true(counts.failed == 3 && !job_live(job));
    job_close(job);
}

static void row_failures(void **state)
{
    (void)state;
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    c.prompt_cap = 3;
    struct fake f = {.batch = 2, .nan_row = 1};
    struct job_counts counts;
    json_t *rows = rows_of(&c, "{\"prompt\":\"abcd\"}\n{\"prompt\":\"abc\"}\n{\"prompt\":\"ab\"}\n",
                           &f, &counts);
    assert_string_equal(error_code(row_at(rows, 0)), "prompt_too_long_for_memory");
    assert_string_equal(error_code(row_at(rows, 1)), "numeric_error");
    assert_null(json_object_get(row_at(rows, 2), "error"));
    assert_true(counts.ok == 1 && counts.failed == 2 && counts.done == 3);
    assert_true(counts.prompt_tokens == 5 && counts.output_tokens > 0 &&
                counts.last_durable_ns > 0);
    assert_true(counts.first_finish_ns > 0 && counts.queue_empty_ns > 0);
    json_decref(rows);
    // an empty input is a job without rows
    rows = rows_of(&c, "\n", NULL, &counts);
    assert_int_equal(json_array_size(rows), 0);
    assert_int_equal(counts.rows, 0);
    json_decref(rows);
}

static void max_errors(void **state)
{
    (void)state;
    temp_write_text("in", "{}\n{}\n{\"prompt\":\"a\",\"max_tokens\":2}\n");
    unlink(temp_path("out"));
    unlink(temp_path("out.job.json"));
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    c.max_errors = 1;
    assert_int_equal(job_run(&c, NULL, NULL), ERR_ROWS);
    assert_non_null(strstr(err_text(), "--max-errors 1"));
    assert_false(file_is_there("out"));
    c.max_errors = 2;
    struct job_counts counts;
    assert_int_equal(job_run(&c, NULL, &counts), OK);
    assert_true(counts.failed == 2 && counts.ok == 1);
}

/* ---- jobs without files ---- */

struct told {
    int n, n_failed;
    char text[4][256], streamed[4][256];
    double logprob;
    int n_logprobs;
};

static enum err tell(void *ctx, const struct job_result *res)
{
    struct told *t = ctx;
    int64_t i = res->request->index;
    t->n++;
    t->n_failed += res->error != NULL;
    if (res->error)
        return OK;
    memcpy(t->text[i], res->text, (size_t)res->n_text);
    t->logprob = res->logprob;
    t->n_logprobs = res->n_token_logprobs;
    return OK;
}

static void stream(void *ctx, const struct request *r, const char *text, int64_t n)
{
    struct told *t = ctx;
    strncat(t->streamed[r->index], text, (size_t)n);
}

static void memory_jobs(void **state)
{
    (void)state;
    struct request requests[3];
    struct row_error error;
    struct request_defaults d = defaults_plain();
    const char *line =
        "{\"prompt\":\"ab\",\"max_tokens\":30,\"ignore_eos\":true,\"stop\":[\"a\",\"zq\"]}";
    for (int64_t i = 0; i < 3; i++)
        assert_int_equal(request_parse(&requests[i], REQUEST_GENERATE, line, (int64_t)strlen(line),
                                       i, i + 1, &d, tok, NULL, &error),
                         OK);
    struct told told = {0};
    struct job_callbacks calls = {.finished = tell, .text = stream, .ctx = &told};
    struct job_config c = config_for(NULL, NULL);
    struct work work;
    struct fake f = {.batch = 2, .nan_row = 2};
    assert_int_equal(job_open_memory(&f.job, &c, requests, 3, &calls, &work), OK);
    assert_int_equal(work.n_rows, 3);
    assert_int_equal(fake_run(&f), OK);
    assert_int_equal(job_complete(f.job), OK);
    assert_int_equal(job_close(f.job), OK);
    assert_true(told.n == 3 && told.n_failed == 1);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(told.streamed[i], told.text[i]); // nothing of a stop string came out
        assert_null(strchr(told.text[i], 'a'));
    }
    static const int32_t ids[] = {1, 2, 3, 4, 5};
    told = (struct told){0};
    assert_int_equal(request_from_ids(&requests[0], REQUEST_SCORE, 0, ids, 2, 5, 5), OK);
    assert_int_equal(request_from_ids(&requests[1], REQUEST_SCORE, 1, ids, 2, 5, 5), OK);
    assert_int_equal(job_open_memory(&f.job, &c, requests, 2, &calls, &work), OK);
    assert_true(work.scores && work.scored_positions == 6 && work.forced_max == 3);
    f.stop_after = 1;
    f.passes = 0;
    f.batch = 1;
    assert_int_equal(fake_run(&f), ERR_STOPPED);
    assert_int_equal(job_close(f.job), OK); // frees what was not begun
    assert_true(told.n == 1 && told.logprob < 0 && told.n_logprobs == 3);
}

/* A row that stops at its 26th of 40 tokens, in the sixth eighth, and one that comes to its length
 * of 8. */
static void stops_are_counted_by_eighths(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"prompt\":\"ab\",\"max_tokens\":40,\"min_tokens\":25,\"temperature\":0,"
        "\"logit_bias\":{\"260\":100}}",
        "{\"prompt\":\"abc\",\"max_tokens\":8,\"temperature\":0,\"ignore_eos\":true}"};
    struct request requests[2];
    struct row_error error;
    struct request_defaults d = defaults_plain();
    struct told told = {0};
    struct job_callbacks calls = {.finished = tell, .ctx = &told};
    struct job_config c = config_for(NULL, NULL);
    struct job_counts counts;
    struct work work;
    struct fake f = {.batch = 2, .nan_row = -1};
    for (int64_t i = 0; i < 2; i++)
        assert_int_equal(request_parse(&requests[i], REQUEST_GENERATE, lines[i],
                                       (int64_t)strlen(lines[i]), i, i + 1, &d, tok, NULL, &error),
                         OK);
    assert_int_equal(job_open_memory(&f.job, &c, requests, 2, &calls, &work), OK);
    assert_int_equal(fake_run(&f), OK);
    job_counts(f.job, &counts);
    assert_int_equal(job_close(f.job), OK);
    static const int64_t sampled[] = {6, 6, 6, 6, 6, 2, 1, 1};
    static const int64_t stopped[] = {0, 0, 0, 0, 0, 1, 0, 0};
    assert_memory_equal(counts.sampled, sampled, sizeof sampled);
    assert_memory_equal(counts.stopped, stopped, sizeof stopped);
}

static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2(); // nothing but zeros under a sanitizer
    return m.uordblks + m.hblkhd;
}

/* RAM per row of a large input: 32 bytes and, while it is scanned, 11 more; a MiB of lengths. */
static void many_rows(void **state)
{
    (void)state;
    enum { N = 200000 };
    FILE *file = fopen(temp_path("in"), "wb");
    for (int i = 0; i < N; i++)
        fprintf(file, "{\"custom_id\":\"%d\",\"prompt_token_ids\":[1]}\n", i == N - 1 ? 17 : i);
    fclose(file);
    struct job_config c = config_for(kept_path("in"), NULL);
    struct job *job;
    struct work work;
    size_t before = heap_bytes();
    assert_int_equal(job_open(&job, &c, &work), OK);
    assert_true(heap_bytes() - before < 33 * (size_t)N + (2 << 20));
    assert_int_equal(work.n_rows, N - 1);
    struct job_counts counts;
    job_counts(job, &counts);
    assert_int_equal(counts.failed, 1);
    job_close(job);
    unlink(temp_path("in"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_rows),       cmocka_unit_test(batch_rows),
        cmocka_unit_test(stop_rules),       cmocka_unit_test(context_is_cut),
        cmocka_unit_test(logprobs_shapes),  cmocka_unit_test(score_agrees_with_run),
        cmocka_unit_test(double_ids),       cmocka_unit_test(any_batch_same_bytes),
        cmocka_unit_test(completion_order), cmocka_unit_test(shards_and_limit),
        cmocka_unit_test(counts_and_work),  cmocka_unit_test(row_failures),
        cmocka_unit_test(max_errors),       cmocka_unit_test(memory_jobs),
        cmocka_unit_test(stops_are_counted_by_eighths),
        cmocka_unit_test(many_rows),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
