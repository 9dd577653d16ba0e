/* tests/api_test.c - engine/api/sluice.h as its users call it: batches, text, jobs, stops, two
 * handles in two threads, and what goes wrong. */
#include "engine/api/sluice.h"

#include "engine/model/dummy.h"
#include "engine/model/pack.h"
#include "engine/text/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"
#include "tests/token_made.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS   40
#define TOKENS 12 // of the longest answer
#ifdef __SANITIZE_THREAD__
/* With the portable kernels, and a machine file, because measuring takes minutes there; and without
 * io_uring: ThreadSanitizer does not see liburing unmap a ring, and takes the next ring at the same
 * address, in another handle, for the same memory. */
#define OPTIONS    9
#define JOB_ROWS   40
#define JOB_TOKENS 60
#else
#define OPTIONS    6
#define JOB_ROWS   400
#define JOB_TOKENS 200
#endif

#define MODEL                                                                                      \
    "family = llama\ndim = 64\nlayers = 3\nheads = 4\nffn = 128\nvocab = 512\ncontext = 256\n"

struct answers {
    struct sluice *stops; // asked to stop at the first answer; NULL: none
    int n, refuses_at;    // the function returns 1 at this answer; 0: never
    int n_tokens[ROWS], errors;
    int32_t tokens[ROWS][TOKENS];
    char error[400];
};

#define END_FIRST                                                                                  \
    "{\"type\":\"TemplateProcessing\",\"pair\":[],\"single\":[{\"SpecialToken\":{\"id\":"          \
    "\"<|end|>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":" \
    "{"                                                                                            \
    "\"<|end|>\":{\"id\":\"<|end|>\",\"ids\":[260],\"tokens\":[\"<|end|>\"]}}}"
#define TEMPLATE                                                                                   \
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"         \
    "{% endif %}<{{ m.role }}>{{ m.content }};{% endfor %}"                                        \
    "{% if add_generation_prompt %}<{{ who or 'assistant' }}>{% endif %}"

/* text.pack: the weights of m.cfg with the tokenizer of token_made.h and a chat template. */
static void make_text_model(void)
{
    struct pack_provider provider;
    char path[4096];
    void *blob;
    int64_t n;
    temp_write_text("tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}");
    temp_write_text("chat_template.jinja", TEMPLATE);
    json_make(&(struct made){.post = END_FIRST});
    assert_int_equal(json_build(&blob, &n), OK);
    assert_int_equal(dummy_open(&provider, temp_path("m.cfg")), OK);
    snprintf(path, sizeof path, "%s", temp_path("text.pack"));
    assert_int_equal(
        pack_write(&(struct pack_request){
            .provider = &provider, .tokenizer = blob, .tokenizer_bytes = n, .path = path}),
        OK);
    dummy_close(&provider);
    free(blob);
}

static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    setenv("SLUICE_CACHE_DIR", temp_path("cache"), 1);
    setenv("SLUICE_PROBE_SHARE", "0.02", 1);
    temp_write_text("m.cfg", MODEL);
    temp_write_text("here.cfg", "nvme_read = 3e8\nnvme_write = 2e8\nram_read = 2e10\n"
                                "matmul_flops = 1e12\nstep_s = 1e-5\nthreads = 2\nram = 1e9\n"
                                "disk = 1e9\nattend_f32 = 9e9\nattend_bf16 = 6e9\n"
                                "attend_q8 = 5e9\nattend_q4 = 1.5e9\nattend_mixed = 1.2e9\n");
    make_text_model();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove();
    return 0;
}

static struct sluice *open_model(const char *name, const char *policy)
{
    const struct sluice_option options[] = {
        {"mem-ram", "64M"},  {"max-tokens", "12"}, {"temperature", "0"},
        {"threads", "2"},    {"ignore-eos", NULL}, {"kv-policy", policy},
        {"isa", "portable"}, {"io", "threads"},    {"machine", temp_path("here.cfg")}};
    struct sluice *s;
    int code = sluice_open(&s, temp_path(name), options, OPTIONS);
    if (code != SLUICE_OK)
        print_message("%s\n", sluice_error(s));
    assert_int_equal(code, SLUICE_OK);
    assert_string_equal(sluice_error(s), "");
    return s;
}

static struct sluice *open_with(const char *policy)
{
    return open_model("m.cfg", policy);
}

static int keep(void *ctx, const struct sluice_result *r)
{
    struct answers *a = ctx;
    a->n++;
    if (a->stops)
        sluice_stop(a->stops);
    if (r->error) {
        a->errors++;
        snprintf(a->error, sizeof a->error, "%s: %s", r->error_code, r->error);
        return 0;
    }
    assert_in_range(r->n_tokens, 0, TOKENS);
    a->n_tokens[r->index] = r->n_tokens;
    memcpy(a->tokens[r->index], r->tokens, (size_t)r->n_tokens * sizeof *r->tokens);
    return a->n == a->refuses_at;
}

/* Rows of token ids: the model has no tokenizer. */
static void make_requests(struct sluice_request *requests, char (*json)[200])
{
    for (int i = 0; i < ROWS; i++) {
        snprintf(json[i], sizeof json[i],
                 "{\"prompt_token_ids\": [%d, %d, %d, %d], \"max_tokens\": %d}", 1 + i % 7, 20 + i,
                 300 - i, 5, 1 + i % TOKENS);
        requests[i].json = json[i];
    }
}

static int ask(struct sluice *s, struct answers *a)
{
    struct sluice_request requests[ROWS];
    char json[ROWS][200];
    make_requests(requests, json);
    return sluice_batch(s, requests, ROWS, keep, a);
}

static void test_batch(void **state)
{
    (void)state;
    struct answers first = {0}, again = {0};
    struct sluice *s = open_with("full");
    assert_int_equal(ask(s, &first), SLUICE_OK);
    assert_int_equal(first.n, ROWS);
    for (int i = 0; i < ROWS; i++)
        assert_int_equal(first.n_tokens[i], 1 + i % TOKENS);
    assert_int_equal(ask(s, &again), SLUICE_OK);
    assert_memory_equal(&first, &again, sizeof first);
    assert_int_equal(sluice_batch(s, NULL, 0, keep, &again), SLUICE_OK);
    sluice_close(s);
}

/* Bad rows get an error each, and the good row gets its answer. */
static void test_bad_row(void **state)
{
    (void)state;
    struct answers a = {0};
    struct sluice *s = open_with("full");
    const struct sluice_request requests[] = {{"{\"prompt_token_ids\": [4, 5]}"},
                                              {"{\"prompt_token_ids\": [4, 100000]}"},
                                              {"{\"prompt_token_ids\""}};
    assert_int_equal(sluice_batch(s, requests, 3, keep, &a), SLUICE_ROWS);
    assert_int_equal(a.n, 3);
    assert_int_equal(a.errors, 2);
    assert_int_equal(a.n_tokens[0], TOKENS);
    assert_non_null(strstr(a.error, "invalid_json"));
    assert_string_not_equal(sluice_error(s), "");
    sluice_close(s);
}

static void test_score(void **state)
{
    (void)state;
    const int32_t ids[] = {3, 9, 27, 81, 243};
    float logprobs[3] = {1, 1, 1}, same[3];
    struct sluice *s = open_with("full");
    assert_int_equal(sluice_score(s, ids, 5, 2, logprobs), SLUICE_OK);
    for (int i = 0; i < 3; i++)
        assert_true(logprobs[i] < 0);
    assert_int_equal(sluice_score(s, ids, 5, 2, same), SLUICE_OK);
    assert_memory_equal(same, logprobs, sizeof same);
    assert_int_equal(sluice_score(s, ids, 5, 5, logprobs), SLUICE_USAGE);
    assert_int_equal(sluice_score(s, (const int32_t[]){3, 512}, 2, 1, logprobs), SLUICE_USAGE);
    assert_non_null(strstr(sluice_error(s), "ids[1]: 512"));
    sluice_close(s);
}

/* ---- text ---- */

static void encodes(struct sluice *s, const char *text, int special, const int32_t *want, int n)
{
    int32_t *ids;
    int64_t n_ids;
    assert_int_equal(sluice_encode(s, text, (int64_t)strlen(text), special, &ids, &n_ids),
                     SLUICE_OK);
    assert_int_equal(n_ids, n);
    assert_memory_equal(ids, want, (size_t)n * sizeof *ids);
    free(ids);
}

static void decodes(struct sluice *s, const int32_t *ids, int n, int skip, const char *want)
{
    char *text;
    int64_t n_text;
    assert_int_equal(sluice_decode(s, ids, n, skip, &text, &n_text), SLUICE_OK);
    assert_string_equal(text, want);
    assert_int_equal(n_text, strlen(want));
    free(text);
}

static void prompts(struct sluice *s, const char *json, const char *want)
{
    char *text;
    int64_t n;
    assert_int_equal(sluice_chat_prompt(s, json, &text, &n), SLUICE_OK);
    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
    free(text);
}

#define HELLO "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]"

static void texts(struct sluice *s)
{
    static const int32_t hello[] = {260, 259, ' ', 256}, bytes[] = {0xc3, 0xa9, 0xc3};
    encodes(s, "hello he", 0, hello + 1, 3);
    encodes(s, "hello he", 1, hello, 4);
    encodes(s, "<|end|>hello he", 0, hello, 4);
    encodes(s, "", 0, hello, 0);
    decodes(s, hello, 4, 0, "<|end|>hello he");
    decodes(s, hello, 4, 1, "hello he");
    decodes(s, hello, 0, 0, "");
    encodes(s, "\u00e9", 0, bytes, 2);
    decodes(s, bytes, 3, 0, "\u00e9\ufffd");
    prompts(s, HELLO "}", "<user>hello;<assistant>");
    prompts(s, HELLO ", \"chat_template_kwargs\": {\"add_generation_prompt\": false}}",
            "<user>hello;");
    prompts(s, HELLO ", \"chat_template_kwargs\": {\"who\": \"bot\"}}", "<user>hello;<bot>");
}

static void test_text(void **state)
{
    (void)state;
    struct sluice_model model;
    struct sluice *s = open_model("text.pack", "full");
    assert_int_equal(sluice_model(s, &model), SLUICE_OK);
    assert_int_equal(model.context, 256);
    assert_int_equal(model.bos, -1);
    assert_int_equal(model.eos, 260);
    texts(s);
    sluice_close(s);
}

/* The call that came before: `out` is what it gave. */
static void refuses(const struct sluice *s, int code, const void *out, const char *says)
{
    assert_int_equal(sluice_code(s), code);
    assert_null(out);
    if (!strstr(sluice_error(s), says))
        fail_msg("%s: lacks %s", sluice_error(s), says);
}

static void test_bad_text(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } rows[] = {{"{\"messages\"", "expected"},
                {"[]", "messages"},
                {"{\"messages\": []}", "messages"},
                {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0].content"},
                {HELLO ", \"tools\": [{\"type\": \"function\"}]}", "tools"},
                {"{\"messages\": [{\"role\": \"system\", \"content\": \"\"}]}", "no system"}};
    static const int32_t bad[][2] = {{261, 5}, {-1, 5}};
    struct sluice *s = open_model("text.pack", "full"), *bare = open_with("full");
    struct sluice_model model;
    int32_t *ids = (int32_t *)&s;
    char *text = (char *)&s;
    int64_t n;
    sluice_encode(s, "a\xff", 2, 0, &ids, &n);
    refuses(s, SLUICE_USAGE, ids, "UTF-8");
    for (int i = 0; i < 2; i++, text = (char *)&s) {
        sluice_decode(s, bad[i], 2, 0, &text, &n);
        refuses(s, SLUICE_USAGE, text, "ids[0]");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, text = (char *)&s) {
        sluice_chat_prompt(s, rows[i].json, &text, &n);
        refuses(s, SLUICE_USAGE, text, rows[i].says);
    }
    texts(s); // errors leave nothing behind
    ids = (int32_t *)&s;
    sluice_encode(bare, "a", 1, 0, &ids, &n);
    refuses(bare, SLUICE_INPUT, ids, "m.cfg: has no tokenizer");
    sluice_decode(bare, bad[0] + 1, 1, 0, &text, &n);
    refuses(bare, SLUICE_INPUT, text, "no tokenizer");
    text = (char *)&s;
    sluice_chat_prompt(bare, HELLO "}", &text, &n);
    refuses(bare, SLUICE_INPUT, text, "no tokenizer");
    assert_int_equal(sluice_model(bare, &model), SLUICE_OK);
    assert_true(model.context == 256 && model.bos == -1 && model.eos == -1);
    sluice_close(s);
    sluice_close(bare);
}

/* ---- two handles at once ---- */

struct user {
    const char *policy, *model;
    struct answers alone, beside;
};

static void *use(void *arg)
{
    struct user *u = arg;
    struct sluice *s = open_model(u->model, u->policy);
    for (int i = 0; i < 3; i++) {
        memset(&u->beside, 0, sizeof u->beside);
        assert_int_equal(ask(s, &u->beside), SLUICE_OK);
    }
    sluice_close(s);
    s = open_model("text.pack", u->policy);
    for (int i = 0; i < 100; i++)
        texts(s);
    sluice_close(s);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    static struct user users[] = {{.policy = "full", .model = "a.cfg"},
                                  {.policy = "h2o", .model = "b.cfg"}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        temp_write_text(users[i].model, MODEL); // new models: their files are read in the threads
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        struct sluice *s = open_model(users[i].model, users[i].policy);
        assert_int_equal(ask(s, &users[i].alone), SLUICE_OK);
        sluice_close(s);
    }
    for (int i = 0; i < 2; i++)
        assert_memory_equal(&users[i].alone, &users[i].beside, sizeof users[i].alone);
}

/* ---- stops ---- */

static void test_stop(void **state)
{
    (void)state;
    struct sluice *s = open_with("full");
    struct answers whole = {0}, cut = {.stops = s}, refused = {.refuses_at = 3}, after = {0};
    assert_int_equal(ask(s, &whole), SLUICE_OK);
    assert_int_equal(ask(s, &cut), SLUICE_STOPPED);
    assert_in_range(cut.n, 1, ROWS - 1);
    assert_int_equal(ask(s, &refused), SLUICE_STOPPED);
    assert_int_equal(refused.n, 3);
    sluice_stop(s); // between calls: stops nothing
    assert_int_equal(ask(s, &after), SLUICE_OK);
    assert_memory_equal(&whole, &after, sizeof whole);
    sluice_close(s);
}

static void *stop_later(void *s)
{
    nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    sluice_stop(s);
    return NULL;
}

static void write_input(const char *name, int rows, int tokens)
{
    FILE *f = fopen(temp_path(name), "w");
    assert_non_null(f);
    for (int i = 0; i < rows; i++)
        fprintf(f, "{\"prompt_token_ids\": [%d, %d], \"max_tokens\": %d, \"logprobs\": true}\n",
                1 + i % 500, 7, tokens);
    assert_int_equal(fclose(f), 0);
}

static char *contents(const char *name)
{
    FILE *f = fopen(temp_path(name), "r");
    assert_non_null(f);
    char *text = calloc(1, 4 << 20);
    size_t n = fread(text, 1, (4 << 20) - 1, f);
    assert_true(n > 0);
    fclose(f);
    return text;
}

static int run(struct sluice *s, const char *in, const char *out,
               const struct sluice_events *events)
{
    char from[4096];
    snprintf(from, sizeof from, "%s", temp_path(in));
    return sluice_run(s, from, temp_path(out), events);
}

static void count(void *ctx, const struct sluice_progress *p)
{
    int *calls = ctx;
    assert_in_range(p->rows_done, 0, p->rows);
    ++*calls;
}

/* A job that is stopped goes on with the next call, and gives the bytes of one that was not. */
static void test_run(void **state)
{
    (void)state;
    struct sluice *s = open_with("h2o");
    pthread_t thread;
    int calls = 0, code, stops = 0;
    char *json, *whole, *resumed, tokens[40], ok[40];
    snprintf(tokens, sizeof tokens, "\"output_tokens\": %d", JOB_ROWS * JOB_TOKENS);
    snprintf(ok, sizeof ok, "\"ok\": %d", JOB_ROWS);
    const struct sluice_events events = {.ctx = &calls, .progress = count};
    assert_int_equal(sluice_summary_json(s, &json), SLUICE_USAGE);
    write_input("in.jsonl", JOB_ROWS, JOB_TOKENS);
    assert_int_equal(run(s, "in.jsonl", "whole.jsonl", &events), SLUICE_OK);
    assert_int_equal(sluice_summary_json(s, &json), SLUICE_OK);
    assert_non_null(strstr(json, tokens));
    free(json);
    assert_int_equal(run(s, "in.jsonl", "whole.jsonl", NULL), SLUICE_OK); // complete already
    assert_int_equal(sluice_summary_json(s, &json), SLUICE_OK);
    assert_non_null(strstr(json, ok));
    assert_null(strstr(json, "elapsed_s"));
    free(json);
    do {
        assert_int_equal(pthread_create(&thread, NULL, stop_later, s), 0);
        code = run(s, "in.jsonl", "cut.jsonl", NULL);
        assert_int_equal(pthread_join(thread, NULL), 0);
        stops += code == SLUICE_STOPPED;
    } while (code == SLUICE_STOPPED && stops < 3);
    if (code == SLUICE_STOPPED)
        code = run(s, "in.jsonl", "cut.jsonl", NULL);
    assert_int_equal(code, SLUICE_OK);
    assert_true(stops > 0);
    whole = contents("whole.jsonl");
    resumed = contents("cut.jsonl");
    assert_string_equal(whole, resumed);
    free(whole);
    free(resumed);
    sluice_close(s);
}

/* ---- plans ---- */

static void test_plan(void **state)
{
    (void)state;
    struct sluice *s = open_with("full");
    struct sluice_plan few, many;
    char *json;
    const struct sluice_work work = {.n_rows = 100, .prompt_len = 20, .gen_len = 10};
    struct sluice_work more = work;
    more.n_rows = 25 * JOB_ROWS;
    assert_int_equal(sluice_plan(s, &work, &few), SLUICE_OK);
    assert_int_equal(sluice_plan(s, &more, &many), SLUICE_OK);
    assert_true(few.rows_at_once > 0 && few.seconds > 0 && many.seconds > few.seconds);
    assert_in_range(few.ram_bytes, 1, 64 << 20);
    assert_true(few.layers_resident <= few.layers);
    assert_int_equal(sluice_plan_json(s, &work, &json), SLUICE_OK);
    assert_non_null(strstr(json, "\"rows\": 100"));
    free(json);
    more.prompt_len = 300; // the context is 256
    assert_int_equal(sluice_plan(s, &more, &many), SLUICE_USAGE);
    struct answers a = {0};
    assert_int_equal(ask(s, &a), SLUICE_OK); // plans leave nothing behind
    assert_int_equal(a.n, ROWS);
    sluice_close(s);
}

/* ---- errors ---- */

static void refuse(const char *model, const char *name, const char *value, int code,
                   const char *says)
{
    const struct sluice_option option = {name, value};
    struct sluice *s;
    assert_int_equal(sluice_open(&s, model, &option, 1), code);
    assert_int_equal(sluice_code(s), code);
    if (!strstr(sluice_error(s), says))
        fail_msg("%s: lacks %s", sluice_error(s), says);
    sluice_close(s);
}

static void test_errors(void **state)
{
    (void)state;
    char model[4096];
    snprintf(model, sizeof model, "%s", temp_path("m.cfg"));
    refuse(model, "mem-rum", "1G", SLUICE_USAGE, "did you mean --mem-ram");
    refuse(model, "mem-ram", "1X", SLUICE_USAGE, "--mem-ram");
    refuse(model, "mem-ram", NULL, SLUICE_USAGE, "--mem-ram: needs");
    refuse(model, "output", "x", SLUICE_USAGE, "arguments of calls");
    refuse("/nowhere/model.gguf", "verbose", NULL, SLUICE_INPUT, "/nowhere/model.gguf");
    struct sluice *s = open_with("full");
    assert_int_equal(sluice_run(s, "/nowhere/in.jsonl", temp_path("o.jsonl"), NULL), SLUICE_INPUT);
    assert_int_equal(sluice_run(s, "-", temp_path("o.jsonl"), NULL), SLUICE_USAGE);
    write_input("one.jsonl", 1, 2);
    assert_int_equal(run(s, "one.jsonl", "one.jsonl", NULL), SLUICE_USAGE);
    temp_write_text("theirs.jsonl", "of another program\n");
    assert_int_equal(run(s, "one.jsonl", "theirs.jsonl", NULL), SLUICE_JOB);
    assert_int_equal(run(s, "one.jsonl", "o.jsonl", NULL), SLUICE_OK);
    sluice_close(s);
    sluice_close(NULL);
    const struct sluice_option little[] = {{"mem-ram", "1M"}};
    assert_int_equal(sluice_open(&s, model, little, 1), SLUICE_OK);
    struct answers a = {0};
    assert_int_equal(ask(s, &a), SLUICE_FIT);
    assert_non_null(strstr(sluice_error(s), "--mem-ram"));
    sluice_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),    cmocka_unit_test(test_bad_row),
        cmocka_unit_test(test_score),    cmocka_unit_test(test_text),
        cmocka_unit_test(test_bad_text), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_stop),     cmocka_unit_test(test_run),
        cmocka_unit_test(test_plan),     cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
