/* engine/job/result.c - see result.h. Owns the shape of OUT's lines; refuses everything that could
 * make two equal results differ: the locale, the clock, hash order.
 *
 * Note: token_ids and usage include the token that stopped the row; the text does not. */
#include "engine/job/result.h"

#include "engine/job/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ,"key": */
static void out_key(struct out *o, const char *key)
{
    if (o->n > 0 && o->p[o->n - 1] != '{')
        out_text(o, ",");
    out_text(o, "\"");
    out_text(o, key);
    out_text(o, "\":");
}

static void out_word(struct out *o, const char *key, const char *value)
{
    out_key(o, key);
    out_string(o, value, (int64_t)strlen(value));
}

static void out_custom_id(struct out *o, const struct request *r)
{
    out_key(o, "custom_id");
    out_string(o, r->custom_id, r->n_custom_id);
}

static void out_count(struct out *o, const char *key, int64_t x)
{
    out_key(o, key);
    out_int(o, x);
}

/* ---- log-probabilities ---- */

static enum err logprobs_room(struct logprobs *l, int n)
{
    if (n <= l->cap)
        return OK;
    int cap = (int)max_i64(32, min_i64(2 * (int64_t)n, INT32_MAX));
    float *value = realloc(l->value, (size_t)cap * sizeof *value);
    l->value = value ? value : l->value;
    uint8_t *greedy = realloc(l->greedy, (size_t)cap);
    l->greedy = greedy ? greedy : l->greedy;
    uint8_t *n_top = realloc(l->n_top, (size_t)cap);
    l->n_top = n_top ? n_top : l->n_top;
    size_t top_bytes = (size_t)max_i64(1, (int64_t)cap * l->top_cap) * sizeof *l->top;
    struct token_logprob *top = realloc(l->top, top_bytes);
    l->top = top ? top : l->top;
    if (!value || !greedy || !n_top || !top)
        return fail(ERR_FIT, "no memory for the log-probabilities of %d tokens", cap);
    l->cap = cap;
    return OK;
}

enum err logprobs_put(struct logprobs *l, int pos, int32_t id, float logit,
                      const struct head_result *s)
{
    int at = pos - l->first;
    CHECK(at >= 0);
    TRY(logprobs_room(l, at + 1));
    for (; l->n <= at; l->n++) {
        l->value[l->n] = NAN;
        l->greedy[l->n] = l->n_top[l->n] = 0;
    }
    l->value[at] = (float)sample_logprob(s, logit);
    l->greedy[at] = s->best_id == id;
    l->n_top[at] = (uint8_t)min_i64(s->n_top, l->top_cap);
    for (int i = 0; i < l->n_top[at]; i++)
        l->top[(int64_t)at * l->top_cap + i] = (struct token_logprob){
            .logprob = (float)sample_logprob(s, s->top[i].logit), .id = s->top[i].id};
    return OK;
}

void logprobs_free(struct logprobs *l)
{
    free(l->value);
    free(l->greedy);
    free(l->n_top);
    free(l->top);
    memset(l, 0, sizeof *l);
}

/* The log-probability of the token at pos, NAN when there is none (the first token of a prompt). */
static double logprob_at(const struct logprobs *l, int pos)
{
    int at = pos - l->first;
    return at >= 0 && at < l->n ? (double)l->value[at] : (double)NAN;
}

/* Alternatives at pos: the best top_cap and, when it is not among them, the token itself. */
static int alternatives_at(const struct logprobs *l, int pos, int32_t id,
                           struct token_logprob *list)
{
    int at = pos - l->first, n = 0, seen = 0;
    if (at < 0 || at >= l->n)
        return 0;
    for (; n < l->n_top[at]; n++) {
        list[n] = l->top[(int64_t)at * l->top_cap + n];
        seen |= list[n].id == id;
    }
    if (!seen)
        list[n++] = (struct token_logprob){l->value[at], id};
    return n;
}

/* The name of a token into `name` (cleared first). */
static void token_name(struct out *name, const struct tokenizer *tok, int32_t id)
{
    int64_t n = 0;
    char text[16];
    name->n = 0;
    const char *piece = tok ? tokenizer_piece(tok, id, &n) : NULL;
    if (!piece) {
        out_text(name, "token_id:");
        out_int(name, id);
        return;
    }
    if (out_is_utf8(piece, n)) {
        out_bytes(name, piece, n);
        return;
    }
    out_text(name, "bytes:");
    for (int64_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "\\x%02x", (unsigned char)piece[i]);
        out_text(name, text);
    }
}

/* {"name":logprob,...}; of two ids with one name the better stays. */
static void out_alternatives(struct out *o, const struct result *res, int pos, int32_t id,
                             struct out *name)
{
    struct token_logprob list[HEAD_TOP_MAX + 1];
    int64_t starts[HEAD_TOP_MAX + 1], ends[HEAD_TOP_MAX + 1]; // of the keys written, in o
    int n = alternatives_at(res->logprobs, pos, id, list), n_keys = 0;
    if (n == 0) {
        out_text(o, "null");
        return;
    }
    out_text(o, "{");
    for (int i = 0; i < n && !o->failed; i++) {
        int64_t before = o->n;
        if (n_keys > 0)
            out_text(o, ",");
        token_name(name, res->tokenizer, list[i].id);
        int64_t start = o->n;
        out_string(o, name->p, name->n);
        int twin = 0;
        for (int k = 0; k < n_keys && !o->failed; k++)
            twin |= ends[k] - starts[k] == o->n - start &&
                    memcmp(o->p + starts[k], o->p + start, (size_t)(o->n - start)) == 0;
        if (twin) {
            o->n = before;
            continue;
        }
        starts[n_keys] = start;
        ends[n_keys++] = o->n;
        out_text(o, ":");
        out_number(o, (double)list[i].logprob);
    }
    out_text(o, "}");
}

/* Characters (not bytes) in n bytes of UTF-8. */
static int64_t count_chars(const char *p, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += (p[i] & 0xc0) != 0x80;
    return count;
}

/* Where each token's text begins, in characters of the output text. */
static void out_offsets(struct out *o, const struct result *res, int first)
{
    const struct request *r = res->r;
    struct detokenizer d;
    struct out piece = {0};
    int64_t chars = 0;
    if (res->tokenizer && out_room(&piece, tokenizer_feed_max(res->tokenizer)))
        detokenizer_init(&d, res->tokenizer, 1);
    for (int pos = first; pos < r->n_tokens; pos++) {
        int64_t n = 0;
        out_text(o, pos > first ? "," : "");
        out_int(o, chars);
        if (!res->tokenizer || piece.failed)
            continue;
        if (detokenizer_feed(&d, r->tokens[pos], piece.p, piece.cap, &n) == OK)
            chars += count_chars(piece.p, n);
    }
    o->failed |= piece.failed;
    out_free(&piece);
}

/* The shape of /v1/completions. */
static void out_logprobs_lists(struct out *o, const struct result *res)
{
    const struct request *r = res->r;
    int first = r->echo ? 0 : r->n_prompt;
    struct out name = {0};
    out_text(o, "{\"tokens\":[");
    for (int pos = first; pos < r->n_tokens; pos++) {
        token_name(&name, res->tokenizer, r->tokens[pos]);
        out_text(o, pos > first ? "," : "");
        out_string(o, name.p, name.n);
    }
    out_text(o, "],\"token_logprobs\":[");
    for (int pos = first; pos < r->n_tokens; pos++) {
        out_text(o, pos > first ? "," : "");
        out_number(o, logprob_at(res->logprobs, pos));
    }
    out_text(o, "],\"top_logprobs\":[");
    for (int pos = first; pos < r->n_tokens; pos++) {
        out_text(o, pos > first ? "," : "");
        out_alternatives(o, res, pos, r->tokens[pos], &name);
    }
    out_text(o, "],\"text_offset\":[");
    out_offsets(o, res, first);
    out_text(o, "]}");
    o->failed |= name.failed;
    out_free(&name);
}

/* "token":..,"logprob":..,"bytes":[..] */
static void out_chat_token(struct out *o, const struct result *res, int32_t id, double logprob,
                           struct out *name)
{
    int64_t n = 0;
    const char *piece = res->tokenizer ? tokenizer_piece(res->tokenizer, id, &n) : NULL;
    token_name(name, res->tokenizer, id);
    out_text(o, "\"token\":");
    out_string(o, name->p, name->n);
    out_key(o, "logprob");
    out_number(o, logprob);
    out_key(o, "bytes");
    out_text(o, piece ? "[" : "null");
    for (int64_t i = 0; piece && i < n; i++) {
        out_text(o, i > 0 ? "," : "");
        out_int(o, (unsigned char)piece[i]);
    }
    out_text(o, piece ? "]" : "");
}

/* The shape of /v1/chat/completions. */
static void out_logprobs_content(struct out *o, const struct result *res)
{
    const struct request *r = res->r;
    const struct logprobs *l = res->logprobs;
    struct out name = {0};
    out_text(o, "{\"content\":[");
    for (int pos = r->n_prompt; pos < r->n_tokens; pos++) {
        int at = pos - l->first;
        out_text(o, pos > r->n_prompt ? ",{" : "{");
        out_chat_token(o, res, r->tokens[pos], logprob_at(l, pos), &name);
        out_key(o, "top_logprobs");
        out_text(o, "[");
        for (int i = 0; at >= 0 && at < l->n && i < l->n_top[at]; i++) {
            const struct token_logprob *c = &l->top[(int64_t)at * l->top_cap + i];
            out_text(o, i > 0 ? ",{" : "{");
            out_chat_token(o, res, c->id, (double)c->logprob, &name);
            out_text(o, "}");
        }
        out_text(o, "]}");
    }
    out_text(o, "]}");
    o->failed |= name.failed;
    out_free(&name);
}

/* ---- the rows ---- */

static void out_usage(struct out *o, const struct request *r)
{
    out_key(o, "usage");
    out_text(o, "{");
    out_count(o, "prompt_tokens", r->n_prompt);
    out_count(o, "completion_tokens", r->n_tokens - r->n_prompt);
    out_count(o, "total_tokens", r->n_tokens);
    out_text(o, "}");
}

static void out_id(struct out *o, const char *key, const char *prefix, uint64_t hash)
{
    char text[48];
    snprintf(text, sizeof text, "%s%016llx", prefix, (unsigned long long)hash);
    out_word(o, key, text);
}

static void out_choice(struct out *o, const struct result *res)
{
    int chat = res->r->form == FORM_BATCH_CHAT;
    out_key(o, "choices");
    out_text(o, "[{");
    out_count(o, "index", 0);
    if (chat) {
        out_key(o, "message");
        out_text(o, "{\"role\":\"assistant\",\"content\":");
        out_string(o, res->text, res->n_text);
        out_text(o, "}");
    } else {
        out_key(o, "text");
        out_string(o, res->text, res->n_text);
    }
    out_key(o, "logprobs");
    if (!res->logprobs)
        out_text(o, "null");
    else if (chat)
        out_logprobs_content(o, res);
    else
        out_logprobs_lists(o, res);
    out_word(o, "finish_reason", res->finish_reason);
    out_text(o, "}]");
}

/* Pseudo-random weights give numbers, not answers: every row says so. */
static void out_dummy(struct out *o, const struct result *res)
{
    if (!res->dummy_weights)
        return;
    out_key(o, "dummy_weights");
    out_text(o, "true");
}

static void out_batch_row(struct out *o, const struct result *res)
{
    const struct request *r = res->r;
    int chat = r->form == FORM_BATCH_CHAT;
    out_text(o, "{");
    out_id(o, "id", "batch_req_", r->hash);
    out_custom_id(o, r);
    out_key(o, "response");
    out_text(o, "{");
    out_count(o, "status_code", 200);
    out_id(o, "request_id", "req_", r->hash);
    out_key(o, "body");
    out_text(o, "{");
    out_id(o, "id", chat ? "chatcmpl-" : "cmpl-", r->hash);
    out_word(o, "object", chat ? "chat.completion" : "text_completion");
    out_count(o, "created", res->created);
    out_word(o, "model", res->model ? res->model : "");
    out_choice(o, res);
    out_usage(o, r);
    out_dummy(o, res);
    out_text(o, "}}");
    out_key(o, "error");
    out_text(o, "null}\n");
}

static void out_plain_row(struct out *o, const struct result *res)
{
    const struct request *r = res->r;
    out_text(o, "{");
    out_custom_id(o, r);
    out_key(o, "text");
    out_string(o, res->text, res->n_text);
    out_key(o, "token_ids");
    out_text(o, "[");
    for (int i = r->n_prompt; i < r->n_tokens; i++) {
        out_text(o, i > r->n_prompt ? "," : "");
        out_int(o, r->tokens[i]);
    }
    out_text(o, "]");
    out_word(o, "finish_reason", res->finish_reason);
    out_usage(o, r);
    if (res->logprobs) {
        out_key(o, "logprobs");
        out_logprobs_lists(o, res);
    }
    out_dummy(o, res);
    out_text(o, "}\n");
}

double result_logprob(const struct result *res, int *is_greedy)
{
    const struct request *r = res->r;
    double sum = 0;
    *is_greedy = 1;
    for (int pos = r->n_prompt; pos < r->n_tokens; pos++) {
        sum += logprob_at(res->logprobs, pos);
        int at = pos - res->logprobs->first;
        *is_greedy &= at < res->logprobs->n && res->logprobs->greedy[at];
    }
    return sum;
}

static void out_score_row(struct out *o, const struct result *res)
{
    const struct request *r = res->r;
    int is_greedy;
    double sum = result_logprob(res, &is_greedy);
    out_text(o, "{");
    out_custom_id(o, r);
    out_key(o, "logprob");
    out_number(o, sum);
    out_count(o, "num_tokens", r->n_tokens - r->n_prompt);
    out_key(o, "is_greedy");
    out_text(o, is_greedy ? "true" : "false");
    out_key(o, "token_logprobs");
    out_text(o, "[");
    for (int pos = r->n_prompt; pos < r->n_tokens; pos++) {
        out_text(o, pos > r->n_prompt ? "," : "");
        out_number(o, logprob_at(res->logprobs, pos));
    }
    out_text(o, "]");
    out_dummy(o, res);
    out_text(o, "}\n");
}

void result_line(struct out *o, const struct result *res)
{
    switch ((enum request_form)res->r->form) {
    case FORM_BATCH_CHAT:
    case FORM_BATCH_COMPLETION:
        out_batch_row(o, res);
        return;
    case FORM_PLAIN:
        out_plain_row(o, res);
        return;
    case FORM_SCORE:
        out_score_row(o, res);
    }
}

void result_error_line(struct out *o, const struct request *r, const struct row_error *error)
{
    int batch = r->form == FORM_BATCH_CHAT || r->form == FORM_BATCH_COMPLETION;
    out_text(o, "{");
    if (batch)
        out_id(o, "id", "batch_req_", r->hash);
    out_custom_id(o, r);
    if (batch) {
        out_key(o, "response");
        out_text(o, "null");
    }
    out_key(o, "error");
    out_text(o, "{");
    out_word(o, "code", error->code);
    out_word(o, "message", error->message);
    if (error->field[0])
        out_word(o, "param", error->field);
    out_count(o, "line", r->line);
    out_text(o, "}}\n");
}
