/* tests/job_help.h - a tokenizer, defaults, and a pretended engine whose logits are a hash of the
 * tokens before. Include after cmocka.h. */
#ifndef TESTS_JOB_HELP_H
#define TESTS_JOB_HELP_H

#include "engine/job/job.h"
#include "engine/job/sample.h"
#include "tests/token_made.h"

#define VOCAB   261 // 256 bytes, four merges, <|end|>
#define CONTEXT 64
#define END_ID  260

static struct tokenizer *tok;
static struct template *tmpl;
static struct evict evict_full = {.policy = EVICT_FULL};

static inline struct request_defaults defaults_plain(void)
{
    return (struct request_defaults){
        .temperature = -1, .top_p = 1, .repetition_penalty = 1, .context = CONTEXT, .vocab = VOCAB};
}

/* Once per test program: <|end|> is BOS and EOS. */
static inline int group_setup(void **state)
{
    static const char text[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    (void)state;
    temp_dir_make_fast();
    temp_write_text("tokenizer_config.json",
                    "{\"bos_token\":\"<|end|>\",\"eos_token\":\"<|end|>\"}");
    tok = tokenizer_make(&(struct made){0});
    assert_int_equal(tokenizer_bos(tok), END_ID);
    assert_int_equal(template_parse(&tmpl, text, (int64_t)strlen(text), "test"), OK);
    return 0;
}

static inline int group_teardown(void **state)
{
    (void)state;
    tokenizer_close(tok);
    template_free(tmpl);
    temp_dir_remove();
    return 0;
}

/* ---- the pretended engine ---- */

/* A model's logits after tokens[0 .. pos]: what a letter-like model would say, and sometimes EOS.
 */
static inline void fake_logits(const struct request *r, int pos, float *logits)
{
    uint64_t h = hash_bytes(r->tokens, (pos + 1) * (int64_t)sizeof *r->tokens, 7);
    for (int id = 0; id < VOCAB; id++) {
        uint64_t x = mix64(h ^ (uint64_t)id);
        int letter = (id >= 'a' && id <= 'z') || id == ' ';
        logits[id] = (float)(x >> 40) / (float)(1 << 24) * 4 + (letter ? 6.0f : 0.0f);
    }
    logits[END_ID] += 4;
}

struct fake {
    struct job *job;
    int batch;          // rows at once
    int64_t stop_after; // passes; 0: none
    int force;          // commit after every pass
    int requeue_every;  // sends the youngest row back now and then; 0: never
    int64_t nan_row;    // its logits are NaN; -1: none
    int64_t passes;
};

struct fake_row {
    struct request *r;
    int n_done;
};

static inline enum err fake_position(struct fake *f, struct request *r, int pos, int sampled,
                                     int scored, int *finished)
{
    static float logits[VOCAB];
    static struct logit_edit edits[4096];
    static struct head_candidate candidates[HEAD_SAMPLE_MAX];
    struct head_result s;
    int n_stops;
    const int32_t *stops = tokenizer_stops(tok, &n_stops);
    *finished = 0;
    struct head_request q = sample_request(r, pos, sampled, scored, stops, n_stops, 0, edits);
    head_start(&s);
    fake_logits(r, pos, logits);
    if (f->nan_row == r->index)
        logits[0] = 0.0f / (float)(f->nan_row - r->index);
    ops_run_head_reduce(&(struct ops){.isa = isa_best()},
                        &(struct head_reduce_args){.logits = logits,
                                                   .stride = VOCAB,
                                                   .requests = &q,
                                                   .results = &s,
                                                   .edits = edits,
                                                   .candidates = candidates,
                                                   .m = 1,
                                                   .n = VOCAB});
    if (scored)
        TRY(job_scored(f->job, r, pos, &s));
    if (!sampled)
        return OK;
    int32_t id = sample_token(&q, &s, candidates, r);
    if (id < 0) {
        *finished = -1;
        return job_fail(f->job, r, "numeric_error", "the model's logits are not numbers");
    }
    return job_token(f->job, r, id, &s, finished);
}

static inline int wants_score(const struct request *r, int pos)
{
    if (r->kind == REQUEST_SCORE)
        return pos + 1 >= r->n_prompt && pos + 1 < r->n_tokens;
    return r->logprobs && pos + 1 < r->n_tokens && (r->echo || pos + 1 >= r->n_prompt);
}

static inline enum err fake_row_pass(struct fake *f, struct fake_row *row)
{
    struct request *r = row->r;
    int n = r->kind == REQUEST_SCORE ? r->n_tokens - 1 : r->n_tokens, finished = 0;
    for (int pos = row->n_done; pos < n && !finished; pos++) {
        int sampled = r->kind == REQUEST_GENERATE && pos == n - 1;
        int scored = wants_score(r, pos);
        if (sampled || scored)
            TRY(fake_position(f, r, pos, sampled, scored, &finished));
    }
    row->n_done = n;
    if (finished == 0 && r->kind == REQUEST_GENERATE)
        return OK;
    row->r = NULL;
    if (finished >= 0) // else it failed, and is gone
        return job_finish(f->job, r);
    return OK;
}

/* As engine_run() walks: until the job has no rows left. ERR_STOPPED after stop_after passes. */
static inline enum err fake_run(struct fake *f)
{
    struct fake_row rows[64] = {{0}};
    TRY(job_begin(f->job));
    while (job_live(f->job)) {
        if (f->stop_after && f->passes == f->stop_after)
            return ERR_STOPPED;
        f->passes++;
        for (int i = 0; i < f->batch; i++) {
            const struct request *next;
            if (rows[i].r)
                continue;
            TRY(job_peek(f->job, &next));
            if (!next)
                break;
            rows[i] = (struct fake_row){.r = job_take(f->job)};
            assert_ptr_equal(rows[i].r, next);
        }
        for (int i = 0; i < f->batch; i++)
            if (rows[i].r)
                TRY(fake_row_pass(f, &rows[i]));
        for (int i = 0; f->requeue_every && f->passes % f->requeue_every == 0 && i < f->batch; i++)
            if (rows[i].r) {
                job_requeue(f->job, rows[i].r);
                rows[i].r = NULL;
                break;
            }
        TRY(job_pass_end(f->job, f->force));
    }
    return OK;
}

/* ---- files ---- */

static inline char *file_text(const char *name, int64_t *n)
{
    FILE *f = fopen(temp_path(name), "rb");
    *n = 0;
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    *n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)*n + 1);
    assert_int_equal(fread(text, 1, (size_t)*n, f), (size_t)*n);
    text[*n] = 0;
    fclose(f);
    return text;
}

static inline int file_is_there(const char *name)
{
    return access(temp_path(name), F_OK) == 0;
}

/* temp_path() for good: configs keep their paths. */
static inline const char *kept_path(const char *name)
{
    static char paths[128][128];
    static int n;
    assert_true(n < 128);
    snprintf(paths[n], sizeof paths[0], "%s", temp_path(name));
    return paths[n++];
}

static inline struct job_config config_for(const char *in, const char *out)
{
    return (struct job_config){.kind = REQUEST_GENERATE,
                               .in_path = in,
                               .out_path = out,
                               .defaults = defaults_plain(),
                               .tokenizer = tok,
                               .tmpl = tmpl,
                               .model_name = "fake",
                               .version = "1",
                               .fingerprint = "compute=bf16\nshard=0/1\nlimit=0\nmodel=fake\n",
                               .evict = &evict_full,
                               .max_errors = -1};
}

/* A text under construction: room for a line each time. */
struct script {
    char *text; // owned
    size_t n, cap;
};

__attribute__((format(printf, 2, 3))) static inline void script_add(struct script *s,
                                                                    const char *fmt, ...)
{
    va_list args;
    if (s->cap - s->n < 512) {
        s->cap = 2 * s->cap + 512;
        s->text = realloc(s->text, s->cap);
        assert_non_null(s->text);
    }
    va_start(args, fmt);
    int n = vsnprintf(s->text + s->n, s->cap - s->n, fmt, args);
    va_end(args);
    assert_true(n >= 0 && (size_t)n < s->cap - s->n);
    s->n += (size_t)n;
}

/* Opens, runs to the end, completes, closes. */
static inline enum err job_run(const struct job_config *c, struct fake *f,
                               struct job_counts *counts)
{
    struct work work;
    struct fake plain = {.batch = 3, .nan_row = -1};
    f = f ? f : &plain;
    TRY(job_open(&f->job, c, &work));
    enum err err = fake_run(f);
    if (err == OK)
        err = job_complete(f->job);
    if (counts)
        job_counts(f->job, counts);
    enum err closed = job_close(f->job);
    return err == OK ? closed : err;
}

/* Rows of every kind: filters, penalties, logprobs, echo, stop strings, bad and double ones. */
static inline char *mixed_input(int n_rows)
{
    struct script s = {0};
    for (int i = 0; i < n_rows; i++)
        switch (i % 7) {
        case 0:
            script_add(&s, "{\"prompt\":\"p%d\",\"max_tokens\":%d,\"seed\":%d}\n", i, 1 + i % 9, i);
            break;
        case 1:
            script_add(
                &s,
                "{\"custom_id\":\"c%d\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"%d\","
                "\"top_k\":9,\"logprobs\":3,\"repetition_penalty\":1.2}}\n",
                i, i);
            break;
        case 2:
            script_add(&s,
                       "{\"prompt\":\"e%d\",\"echo\":true,\"logprobs\":1,\"max_tokens\":7,"
                       "\"top_p\":0.5,\"presence_penalty\":0.5}\n",
                       i);
            break;
        case 3:
            script_add(&s,
                       "{\"prompt\":\"s%d\",\"max_tokens\":12,\"stop\":[\"a\",\"e\"],"
                       "\"min_tokens\":3}\n",
                       i);
            break;
        case 4:
            script_add(&s, "{\"prompt\":%d}\n", i);
            break;
        case 5:
            script_add(&s,
                       "{\"prompt\":\"g%d\",\"temperature\":0,\"frequency_penalty\":1,"
                       "\"max_tokens\":9}\n",
                       i);
            break;
        case 6:
            script_add(&s, "{\"custom_id\":\"same\",\"prompt\":\"g%d\",\"max_tokens\":2}\n", i);
            break;
        }
    return s.text;
}

/* OUT of a job that starts afresh. */
static inline char *bytes_of(const struct job_config *c, struct fake *f, int64_t *n)
{
    unlink(temp_path("out"));
    unlink(temp_path("out.job.json"));
    if (job_run(c, f, NULL) != OK)
        fail_msg("%s", err_text());
    return file_text("out", n);
}

static inline int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The lines of a text, sorted. */
static inline char *sorted_lines(const char *text)
{
    char *lines[200], *copy = strdup(text), *rest;
    struct script s = {0};
    size_t n = 0;
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        assert_true(n < 200);
        lines[n++] = line;
    }
    qsort(lines, n, sizeof *lines, by_text);
    for (size_t i = 0; i < n; i++) {
        for (; strlen(lines[i]) > 400; lines[i] += 400)
            script_add(&s, "%.400s", lines[i]);
        script_add(&s, "%s\n", lines[i]);
    }
    free(copy);
    return s.text;
}

#endif
