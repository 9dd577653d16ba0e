/* engine/text/token_tekken.c - tekken.json: a vocabulary like tiktoken's, as Mistral writes it.
 *
 * Owns: the file's config, vocabulary and special tokens, and the special tokens missing in files
 * before version 8. Refuses: images and sound. Note: the file lists more tokens than are used, by
 * rank; special tokens have the first ids, as many as the config reserves, and ranks follow. */
#include "engine/text/token_impl.h"

#include "engine/data/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEKKEN_DEPTH     16
#define TEKKEN_BYTES_MAX (2 * TOKEN_PIECE_BYTES_MAX) // of a token in base64

/* The file is read once per pass, because earlier parts need later ones. */
enum tekken_pass { PASS_CONFIG, PASS_VOCAB, PASS_SPECIAL };

struct tekken {
    struct token_draft *d;
    struct token_span pattern;
    int64_t n_ids, n_special, version; // all ids; ids reserved for special tokens
    int64_t n_read;                    // pieces so far, then special tokens
    int has_special;
};

/* Used if the file has no list of special tokens. */
static const char *const specials[] = {"<unk>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "[AVAILABLE_TOOLS]",
                                       "[/AVAILABLE_TOOLS]",
                                       "[TOOL_RESULTS]",
                                       "[/TOOL_RESULTS]",
                                       "[TOOL_CALLS]",
                                       "[IMG]",
                                       "<pad>",
                                       "[IMG_BREAK]",
                                       "[IMG_END]",
                                       "[PREFIX]",
                                       "[MIDDLE]",
                                       "[SUFFIX]",
                                       "[SYSTEM_PROMPT]",
                                       "[/SYSTEM_PROMPT]",
                                       "[TOOL_CONTENT]"};
#define N_SPECIALS ((int64_t)(sizeof specials / sizeof *specials))

static enum err config_next(struct tekken *t, struct json *j)
{
    enum json_kind k;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while ((k = json_next(j)) == JSON_KEY) {
        int64_t *number = json_is(j, "default_vocab_size")           ? &t->n_ids
                          : json_is(j, "default_num_special_tokens") ? &t->n_special
                                                                     : NULL;
        if (number) {
            TRY(json_expect(j, JSON_INT));
            *number = j->i64;
        } else if (json_is(j, "pattern")) {
            TRY(json_expect(j, JSON_STR));
            TRY(draft_text(t->d, j->str, j->n_str, &t->pattern));
        } else if (json_is(j, "version")) { // "v7"
            TRY(json_expect(j, JSON_STR));
            t->version = j->str[0] == 'v' ? strtoll(j->str + 1, NULL, 10) : 0;
        } else {
            TRY(json_skip(j));
        }
    }
    return k == JSON_ERROR ? j->err : OK;
}

/* Reads one {"rank", key} of a list, after its brace: its text and length, which may exceed cap. */
static enum err entry_next(struct json *j, const char *key, int64_t *rank, char *text, int64_t cap,
                           int64_t *n)
{
    enum json_kind k;
    *rank = *n = -1;
    while ((k = json_next(j)) == JSON_KEY) {
        if (json_is(j, "rank")) {
            TRY(json_expect(j, JSON_INT));
            *rank = j->i64;
        } else if (json_is(j, key)) {
            TRY(json_expect(j, JSON_STR));
            *n = j->n_str;
            memcpy(text, j->str, (size_t)min_i64(*n, cap));
        } else {
            TRY(json_skip(j));
        }
    }
    if (k == JSON_ERROR)
        return j->err;
    return *rank >= 0 && *n > 0 ? OK : json_fail(j, "expected {rank, %s}", key);
}

static enum err piece_next(struct tekken *t, struct json *j)
{
    char text[TEKKEN_BYTES_MAX];
    int64_t rank, n;
    TRY(entry_next(j, "token_bytes", &rank, text, sizeof text, &n));
    if (rank >= t->n_ids - t->n_special)
        return OK; // unused
    n = n <= (int64_t)sizeof text ? base64_decode(text, n) : -1;
    if (n <= 0)
        return json_fail(j, "vocab: token %lld is not base64", (long long)rank);
    t->n_read++;
    return draft_piece_put(t->d, t->n_special + rank, text, n, PIECE_BPE, -(double)rank);
}

static enum err special_put(struct tekken *t, int64_t rank, const char *text, int64_t n)
{
    t->n_read++;
    TRY(draft_added(t->d, rank, text, n, 0, 1));
    if (n == 3 && memcmp(text, "<s>", 3) == 0)
        t->d->bos = (int32_t)rank;
    if (n == 4 && memcmp(text, "</s>", 4) == 0)
        t->d->eos = (int32_t)rank;
    return OK;
}

static enum err special_next(struct tekken *t, struct json *j)
{
    char text[TOKEN_ADDED_BYTES_MAX];
    int64_t rank, n;
    TRY(entry_next(j, "token_str", &rank, text, sizeof text, &n));
    if (rank != t->n_read || rank >= t->n_special || n > (int64_t)sizeof text)
        return json_fail(j, "special_tokens: rank %lld, expected %lld of %lld", (long long)rank,
                         (long long)t->n_read, (long long)t->n_special);
    return special_put(t, rank, text, n);
}

static enum err list_next(struct tekken *t, struct json *j,
                          enum err (*next)(struct tekken *t, struct json *j))
{
    enum json_kind k = json_next(j);
    if (k == JSON_NIL)
        return OK;
    if (k != JSON_ARRAY_BEGIN)
        return k == JSON_ERROR ? j->err : json_fail(j, "expected a list");
    t->has_special |= next == special_next;
    while ((k = json_next(j)) == JSON_OBJECT_BEGIN)
        TRY(next(t, j));
    if (k == JSON_ARRAY_END)
        return OK;
    return k == JSON_ERROR ? j->err : json_fail(j, "expected objects");
}

static enum err pass_walk(struct tekken *t, struct json *j, enum tekken_pass pass)
{
    enum json_kind k;
    t->n_read = 0;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while ((k = json_next(j)) == JSON_KEY) {
        if (pass == PASS_CONFIG && json_is(j, "config"))
            TRY(config_next(t, j));
        else if (pass == PASS_VOCAB && json_is(j, "vocab"))
            TRY(list_next(t, j, piece_next));
        else if (pass == PASS_SPECIAL && json_is(j, "special_tokens"))
            TRY(list_next(t, j, special_next));
        else
            TRY(json_skip(j));
    }
    return k == JSON_ERROR ? j->err : json_expect(j, JSON_END);
}

static enum err pass(struct tekken *t, const char *buf, int64_t n, enum tekken_pass which)
{
    struct json j;
    json_init(&j, buf, n, t->d->file, TEKKEN_DEPTH);
    enum err e = pass_walk(t, &j, which);
    json_close(&j);
    return e;
}

static enum err config_check(const struct tekken *t)
{
    const int sound = t->pattern.n > 0 && t->n_special >= 0 && t->n_special <= TOKEN_GAPS_MAX;
    if (!sound || t->n_ids <= t->n_special || t->n_ids > TOKEN_VOCAB_MAX)
        return fail(ERR_INPUT,
                    "%s: config: pattern, default_vocab_size, default_num_special_tokens: missing "
                    "or out of range",
                    t->d->file);
    return OK;
}

/* Reserved ids without a token get a numbered one. */
static enum err specials_fill(struct tekken *t)
{
    char text[40];
    if (!t->has_special && t->version > 7)
        return fail(ERR_INPUT, "%s: special_tokens: missing (version %lld)", t->d->file,
                    (long long)t->version);
    for (int64_t i = t->n_read; i < t->n_special; i++) {
        const int named = !t->has_special && i < N_SPECIALS;
        const int n = named ? snprintf(text, sizeof text, "%s", specials[i])
                            : snprintf(text, sizeof text, "<SPECIAL_%lld>", (long long)i);
        TRY(special_put(t, i, text, n));
    }
    return OK;
}

enum err token_load_tekken(struct token_draft *d, const char *buf, int64_t n)
{
    struct tekken t = {.d = d};
    d->flags |= TOKEN_BYTES | TOKEN_BY_SCORE | TOKEN_IGNORE_MERGES;
    d->has_scores = 1;
    TRY(pass(&t, buf, n, PASS_CONFIG));
    TRY(config_check(&t));
    TRY(pass(&t, buf, n, PASS_VOCAB));
    if (t.n_read != t.n_ids - t.n_special)
        return fail(ERR_INPUT, "%s: vocab: %lld tokens, config says %lld", d->file,
                    (long long)t.n_read, (long long)(t.n_ids - t.n_special));
    TRY(draft_place(d));
    TRY(draft_merges_all(d));
    TRY(pass(&t, buf, n, PASS_SPECIAL));
    TRY(specials_fill(&t));
    if (d->bos >= 0)
        TRY(draft_extra(d, d->prefix, &d->n_prefix, d->bos, "<s>"));
    TRY(draft_step(d, (struct token_step){
                          .kind = STEP_SPLIT_REGEX, .behavior = SPLIT_ISOLATED, .a = t.pattern}));
    return draft_byte_level(d, 0, 0);
}
