/* engine/job/job_live.c - see job_impl.h. Owns the text of one live row and the rules that end it.
 *
 * Note: everything here is a function of the tokens alone, so a requeued or resumed row only has to
 * be fed its tokens again. */
#include "engine/job/job_impl.h"

#include <stdlib.h>
#include <string.h>

void live_free(struct live *l)
{
    if (!l)
        return;
    request_free(&l->request);
    out_free(&l->text);
    logprobs_free(&l->logprobs);
    free(l);
}

/* ---- text ---- */

static enum err text_feed(const struct job *job, struct live *l, int32_t id)
{
    if (!job->config.tokenizer)
        return OK;
    char small[256];
    int64_t n = 0, cap = tokenizer_feed_max(job->config.tokenizer);
    char *piece = cap <= (int64_t)sizeof small ? small : malloc((size_t)cap);
    if (!piece)
        return fail(ERR_FIT, "no memory for a token of %lld bytes", (long long)cap);
    enum err err = detokenizer_feed(&l->detok, id, piece, cap, &n);
    if (err == OK)
        out_bytes(&l->text, piece, n);
    if (piece != small)
        free(piece);
    return l->text.failed ? fail(ERR_FIT, "no memory for the text of a row") : err;
}

static enum err text_begin(const struct job *job, struct live *l)
{
    const struct request *r = &l->request;
    l->text.n = l->text_first = 0;
    if (job->config.tokenizer)
        detokenizer_init(&l->detok, job->config.tokenizer, 1);
    for (int i = 0; r->echo && i < r->n_prompt; i++)
        TRY(text_feed(job, l, r->tokens[i]));
    l->text_first = l->text.n;
    return OK;
}

/* Offset of the first stop string that ends after `from`; -1: none. */
static int64_t find_stop(const struct live *l, int64_t from)
{
    const struct request *r = &l->request;
    int64_t first = -1;
    for (int i = 0; i < r->n_stops; i++) {
        int64_t n = r->stops[i].n;
        int64_t start = max_i64(l->text_first, from - n + 1);
        const char *at = l->text.n > start ? memmem(l->text.p + start, (size_t)(l->text.n - start),
                                                    r->stops[i].p, (size_t)n)
                                           : NULL;
        if (at && (first < 0 || at - l->text.p < first))
            first = at - l->text.p;
    }
    return first;
}

static int is_stop_id(const struct job *job, const struct request *r, int32_t id)
{
    int n = 0;
    const int32_t *stops =
        job->config.tokenizer ? tokenizer_stops(job->config.tokenizer, &n) : NULL;
    for (int i = 0; i < n && !r->ignore_eos; i++)
        if (stops[i] == id)
            return 1;
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return 1;
    return 0;
}

/* n_tokens: tokens up to and including `id`; on replay the row has more. */
static enum err feed_token(const struct job *job, struct live *l, int32_t id, int n_tokens)
{
    const struct request *r = &l->request;
    if (is_stop_id(job, r, id)) {
        l->finish_reason = "stop";
        return OK;
    }
    int64_t from = l->text.n;
    TRY(text_feed(job, l, id));
    int64_t cut = n_tokens - r->n_prompt >= r->sampling.min_tokens ? find_stop(l, from) : -1;
    if (cut >= 0) {
        l->text.n = cut;
        l->finish_reason = "stop";
        l->detok.n_pending = 0; // belongs to the cut text
    } else if (n_tokens == r->n_cap) {
        l->finish_reason = "length";
    }
    return OK;
}

enum err live_feed(const struct job *job, struct live *l, int32_t id)
{
    return feed_token(job, l, id, l->request.n_tokens);
}

enum err live_end(const struct job *job, struct live *l)
{
    char tail[DETOKENIZER_PENDING_MAX * 3];
    int64_t n = 0;
    if (!job->config.tokenizer || l->request.kind == REQUEST_SCORE)
        return OK;
    TRY(detokenizer_flush(&l->detok, tail, sizeof tail, &n));
    out_bytes(&l->text, tail, n);
    return l->text.failed ? fail(ERR_FIT, "no memory for the text of a row") : OK;
}

/* ---- known tokens ---- */

/* Feeds the tokens that the row already has. */
static enum err replay(const struct job *job, struct live *l)
{
    struct request *r = &l->request;
    TRY(text_begin(job, l));
    if (r->kind == REQUEST_SCORE) {
        if (r->n_tokens == r->n_prompt)
            l->finish_reason = ""; // nothing to score
        return OK;
    }
    for (int i = r->n_prompt; i < r->n_tokens && !l->finish_reason; i++) {
        TRY(feed_token(job, l, r->tokens[i], i + 1));
        if (l->finish_reason)
            r->n_tokens = i + 1;
    }
    if (!l->finish_reason || !r->logprobs)
        return OK;
    /* The row is finished, but its log-probabilities are unknown. Without its last token the row
     * runs once more, scores the others and samples this one again. */
    l->finish_reason = NULL;
    r->n_tokens--;
    TRY(text_begin(job, l));
    for (int i = r->n_prompt; i < r->n_tokens; i++)
        TRY(text_feed(job, l, r->tokens[i]));
    return OK;
}

struct live *live_new(const struct job *job, struct request *r, int64_t row)
{
    struct live *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->request = *r;
    memset(r, 0, sizeof *r);
    l->row = row;
    l->n_journaled = l->n_confirmed = l->request.n_tokens;
    if (job->config.claims) // the tokens may be in another worker's journal only
        l->n_journaled = l->request.n_prompt;
    l->logprobs.first = l->request.echo ? 1 : l->request.n_prompt;
    l->logprobs.top_cap = l->request.top_logprobs;
    if (replay(job, l) != OK) {
        live_free(l);
        return NULL;
    }
    return l;
}

/* ---- streaming ---- */

/* Bytes at the end of the text that may be the beginning of a stop string. */
static int64_t held_back(const struct live *l)
{
    const struct request *r = &l->request;
    int64_t most = 0, n_text = l->text.n - l->text_first;
    for (int i = 0; i < r->n_stops; i++)
        for (int64_t n = min_i64(r->stops[i].n - 1, n_text); n > most; n--)
            if (memcmp(l->text.p + l->text.n - n, r->stops[i].p, (size_t)n) == 0)
                most = n;
    return most;
}

void live_stream(const struct job *job, struct live *l, int last)
{
    int64_t end = l->text.n - (last ? 0 : held_back(l));
    if (!job->callbacks.text || end <= l->n_streamed)
        return;
    job->callbacks.text(job->callbacks.ctx, &l->request, l->text.p + l->n_streamed,
                        end - l->n_streamed);
    l->n_streamed = end;
}
