/* engine/text/token_json.c - tokenizer.json of the `tokenizers` library, into a draft.
 *
 * Owns: the meaning of vocabulary, merges, scores, added tokens. Refuses: models other than BPE and
 * Unigram, and unknown settings, by name: ERR_INPUT "unsupported ..."; lists of steps
 * (token_steps.c). Note: the file is read several times, because a pre-tokenizer decides whether
 * pieces are bytes or text, merges need the vocabulary, and splits follow normalizers, whatever the
 * order of the members. truncation and padding are left to the caller, as in transformers. */
#include "engine/data/json.h"
#include "engine/text/token_impl.h"

#include <string.h>

#define JSON_DEPTH 64
static int is_text(const char *s, int64_t n, const char *text)
{
    return n == (int64_t)strlen(text) && !memcmp(s, text, (size_t)n);
}

static int key_is(const struct json *j, const char *key)
{
    return is_text(j->str, j->n_str, key);
}

static enum err span_next(struct json *j, struct token_draft *d, struct token_span *span)
{
    TRY(json_expect(j, JSON_STR));
    return draft_text(d, j->str, j->n_str, span);
}

static enum err bool_next(struct json *j, int *out)
{
    TRY(json_expect(j, JSON_BOOL));
    *out = (int)j->i64;
    return OK;
}

/* ---- model ---- */

enum err token_load_vocab(struct json *j, struct token_draft *d)
{
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_OBJECT_END)
            return OK;
        if (k == JSON_ERROR)
            return j->err;
        char text[TOKEN_PIECE_BYTES_MAX];
        int64_t n = j->n_str;
        if (n > (int64_t)sizeof text)
            return json_fail(j, "a token of %lld bytes (at most %zu)", (long long)n, sizeof text);
        memcpy(text, j->str, (size_t)n);
        TRY(json_expect(j, JSON_INT));
        TRY(draft_token(d, j->i64, text, n));
    }
}

/* Unigram: [["token", score], ...]; an id is an index. */
static enum err scores_read(struct json *j, struct token_draft *d)
{
    TRY(json_expect(j, JSON_ARRAY_BEGIN));
    for (int64_t id = 0;; id++) {
        enum json_kind k = json_next(j);
        if (k == JSON_ARRAY_END)
            return OK;
        if (k != JSON_ARRAY_BEGIN)
            return k == JSON_ERROR ? j->err : json_fail(j, "expected [\"token\", score]");
        char text[TOKEN_PIECE_BYTES_MAX];
        TRY(json_expect(j, JSON_STR));
        int64_t n = j->n_str;
        if (n > (int64_t)sizeof text)
            return json_fail(j, "a token of %lld bytes (at most %zu)", (long long)n, sizeof text);
        memcpy(text, j->str, (size_t)n);
        k = json_next(j);
        if (k != JSON_INT && k != JSON_FLOAT)
            return k == JSON_ERROR ? j->err
                                   : json_fail(j, "token %lld: expected a score", (long long)id);
        TRY(draft_piece_put(d, id, text, n, PIECE_BPE, j->f64));
        TRY(json_expect(j, JSON_ARRAY_END));
    }
}

static enum err merges_read(struct json *j, struct token_draft *d)
{
    TRY(json_expect(j, JSON_ARRAY_BEGIN));
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ARRAY_END)
            return OK;
        if (k == JSON_STR) {
            TRY(draft_merge_line(d, j->str, j->n_str));
            continue;
        }
        if (k != JSON_ARRAY_BEGIN)
            return k == JSON_ERROR ? j->err
                                   : json_fail(j, "merge %lld: expected \"a b\" or [\"a\", \"b\"]",
                                               (long long)d->n_merges_read);
        char left[TOKEN_PIECE_BYTES_MAX];
        TRY(json_expect(j, JSON_STR));
        int64_t n_left = j->n_str;
        if (n_left > (int64_t)sizeof left)
            return json_fail(j, "a token of %lld bytes (at most %zu)", (long long)n_left,
                             sizeof left);
        memcpy(left, j->str, (size_t)n_left);
        TRY(json_expect(j, JSON_STR));
        TRY(draft_merge(d, left, n_left, j->str, j->n_str));
        TRY(json_expect(j, JSON_ARRAY_END));
    }
}

/* null, "" and 0 count as not set. */
static enum err unset_next(struct json *j, const char *what)
{
    enum json_kind k = json_next(j);
    if (k == JSON_ERROR)
        return j->err;
    if (k == JSON_NIL || (k == JSON_STR && j->n_str == 0) ||
        ((k == JSON_INT || k == JSON_FLOAT) && j->f64 == 0))
        return OK;
    return json_fail(j, "unsupported model setting %s", what);
}

static enum err flag_next(struct json *j, struct token_draft *d, enum token_flag flag)
{
    int set;
    TRY(bool_next(j, &set));
    d->flags |= set ? flag : 0;
    return OK;
}

/* With ByteLevel every byte already has a token. */
static enum err unset_flag_next(struct json *j)
{
    int set;
    TRY(bool_next(j, &set));
    return set ? json_fail(j, "unsupported model setting byte_fallback, with ByteLevel") : OK;
}

static enum err unk_next(struct json *j, struct token_draft *d)
{
    enum json_kind k = json_next(j);
    if (k == JSON_NIL)
        return OK;
    if (k == JSON_ERROR)
        return j->err;
    if (k != JSON_STR)
        return json_fail(j, "unk_token: expected string, is %s", json_kind_name(k));
    TRY(draft_find(d, j->str, j->n_str, &d->unk));
    if (d->unk < 0)
        return json_fail(j, "unk_token '%.*s' is not in the vocabulary",
                         (int)min_i64(j->n_str, 100), j->str);
    return OK;
}

/* Unigram gives the unknown token by id. */
static enum err unk_id_next(struct json *j, struct token_draft *d)
{
    enum json_kind k = json_next(j);
    if (k == JSON_NIL)
        return OK;
    if (k != JSON_INT)
        return k == JSON_ERROR ? j->err : json_fail(j, "unk_id: expected integer");
    if (j->i64 < 0 || j->i64 >= d->n_vocab)
        return json_fail(j, "unk_id %lld is outside the vocabulary of %lld", (long long)j->i64,
                         (long long)d->n_vocab);
    d->unk = (int32_t)j->i64;
    return OK;
}

/* Reads a member of the model on the second pass, when the vocabulary is known. */
static enum err setting_next(struct json *j, struct token_draft *d)
{
    static const char *const unset[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix"};
    int is_bpe = d->model == MODEL_BPE;
    if (is_bpe && key_is(j, "merges"))
        return merges_read(j, d);
    if (is_bpe && key_is(j, "unk_token"))
        return unk_next(j, d);
    if (!is_bpe && key_is(j, "unk_id"))
        return unk_id_next(j, d);
    if (key_is(j, "byte_fallback"))
        return d->flags & TOKEN_BYTES ? unset_flag_next(j) : flag_next(j, d, TOKEN_BYTE_FALLBACK);
    if (is_bpe && key_is(j, "fuse_unk"))
        return flag_next(j, d, TOKEN_FUSE_UNK);
    if (is_bpe && key_is(j, "ignore_merges"))
        return flag_next(j, d, TOKEN_IGNORE_MERGES);
    for (size_t i = 0; is_bpe && i < sizeof unset / sizeof *unset; i++)
        if (key_is(j, unset[i]))
            return unset_next(j, unset[i]);
    return json_skip(j);
}

/* with_vocab: the first pass, which reads only the vocabulary. */
static enum err model_read(struct json *j, struct token_draft *d, int with_vocab)
{
    int has_vocab = 0, has_merges = 0;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_OBJECT_END)
            break;
        if (k == JSON_ERROR)
            return j->err;
        int is_vocab = key_is(j, "vocab"), is_merges = key_is(j, "merges");
        has_vocab += is_vocab;
        has_merges += is_merges;
        if (!with_vocab)
            TRY(setting_next(j, d));
        else if (is_vocab)
            TRY(d->model == MODEL_BPE ? token_load_vocab(j, d) : scores_read(j, d));
        else
            TRY(json_skip(j));
    }
    if (d->model == MODEL_UNIGRAM) {
        d->flags |= TOKEN_FUSE_UNK;
        d->has_scores = has_merges = 1;
    }
    if (has_vocab != 1 || has_merges != 1)
        return json_fail(j, "model: expected one vocab and one merges");
    return with_vocab ? draft_place(d) : OK;
}

/* ---- added tokens ---- */

static enum err added_member(struct json *j, struct token_draft *d, int64_t *id,
                             struct token_span *content, uint32_t *flags, int *special)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } known[] = {{"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"single_word", ADDED_WORD},
                 {"normalized", ADDED_NORMALIZED}};
    if (key_is(j, "content"))
        return span_next(j, d, content);
    if (key_is(j, "special"))
        return bool_next(j, special);
    if (key_is(j, "id")) {
        TRY(json_expect(j, JSON_INT));
        *id = j->i64 < 0 ? -2 : j->i64;
        return OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int set;
        if (!key_is(j, known[i].key))
            continue;
        TRY(bool_next(j, &set));
        *flags |= set ? known[i].flag : 0;
        return OK;
    }
    return json_skip(j);
}

static enum err added_read(struct json *j, struct token_draft *d)
{
    TRY(json_expect(j, JSON_ARRAY_BEGIN));
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ARRAY_END)
            return OK;
        if (k != JSON_OBJECT_BEGIN)
            return k == JSON_ERROR ? j->err : json_fail(j, "added_tokens: expected objects");
        int64_t id = -2;
        struct token_span content = {0};
        uint32_t flags = 0;
        int special = 0;
        while ((k = json_next(j)) == JSON_KEY)
            TRY(added_member(j, d, &id, &content, &flags, &special));
        if (k == JSON_ERROR)
            return j->err;
        char text[TOKEN_ADDED_BYTES_MAX]; // a copy: the pool moves when it grows
        int64_t n = min_i64(content.n, (int64_t)sizeof text);
        if (n > 0)
            memcpy(text, d->text + content.at, (size_t)n);
        TRY(draft_added(d, id, text, n < content.n ? (int64_t)content.n : n, flags, special));
    }
}

/* ---- the file ---- */

/* Whether the next value contains a step of this name. */
static enum err names_step(struct json *j, const char *name, int *found)
{
    int depth = j->depth, is_type = 0;
    do {
        enum json_kind k = json_next(j);
        if (k == JSON_ERROR)
            return j->err;
        *found |= is_type && k == JSON_STR && key_is(j, name);
        is_type = k == JSON_KEY && key_is(j, "type");
    } while (j->depth > depth);
    return OK;
}

static enum err model_type(struct json *j, struct token_draft *d)
{
    enum json_kind k;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while ((k = json_next(j)) == JSON_KEY) {
        if (!key_is(j, "type")) {
            TRY(json_skip(j));
            continue;
        }
        TRY(json_expect(j, JSON_STR));
        if (!key_is(j, "BPE") && !key_is(j, "Unigram"))
            return json_fail(j, "unsupported model type %.*s (supported: BPE, Unigram)",
                             (int)min_i64(j->n_str, 40), j->str);
        d->model = key_is(j, "BPE") ? MODEL_BPE : MODEL_UNIGRAM;
    }
    return k == JSON_ERROR ? j->err : OK;
}

/* Reads what decides how to read the rest: the type of the model, and whether pieces are bytes. */
static enum err kind_read(struct json *j, struct token_draft *d)
{
    int is_bytes = 0;
    if (key_is(j, "model"))
        return model_type(j, d);
    if (!key_is(j, "pre_tokenizer"))
        return json_skip(j);
    TRY(names_step(j, "ByteLevel", &is_bytes));
    d->flags |= is_bytes ? TOKEN_BYTES : 0;
    return OK;
}

enum pass { PASS_KIND, PASS_VOCAB, PASS_SETTINGS, PASS_STEPS, PASSES };

/* Reads those members that belong to this pass over the file. */
static enum err member_read(struct json *j, struct token_draft *d, enum pass pass)
{
    if (pass == PASS_KIND)
        return kind_read(j, d);
    if (key_is(j, "model"))
        return pass == PASS_STEPS ? json_skip(j) : model_read(j, d, pass == PASS_VOCAB);
    if (pass == PASS_SETTINGS && key_is(j, "added_tokens"))
        return added_read(j, d);
    if (pass == PASS_SETTINGS && key_is(j, "normalizer"))
        return token_load_steps(j, d, SECTION_NORMALIZER);
    if (pass == PASS_STEPS && key_is(j, "pre_tokenizer"))
        return token_load_steps(j, d, SECTION_PRE_TOKENIZER);
    if (pass == PASS_STEPS && key_is(j, "post_processor"))
        return token_load_steps(j, d, SECTION_POST_PROCESSOR);
    if (pass == PASS_STEPS && key_is(j, "decoder"))
        return token_load_steps(j, d, SECTION_DECODER);
    return json_skip(j);
}

static enum err pass_run(struct json *j, struct token_draft *d, enum pass pass,
                         struct json_keys *keys)
{
    int has_model = 0;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ERROR)
            return j->err;
        if (k == JSON_OBJECT_END)
            break;
        TRY(json_keys_add(keys, j));
        has_model |= key_is(j, "model");
        TRY(member_read(j, d, pass));
    }
    TRY(json_expect(j, JSON_END));
    return has_model ? OK : json_fail(j, "missing key 'model'");
}

/* Without a decoder `tokenizers` puts spaces between tokens: unsupported. */
static enum err decoder_check(const struct token_draft *d)
{
    if (d->flags & TOKEN_BYTES && d->model == MODEL_UNIGRAM)
        return fail(ERR_INPUT, "%s: unsupported: Unigram with ByteLevel", d->file);
    if (d->flags & TOKEN_BYTES || d->n_decoders > 0)
        return OK;
    return fail(ERR_INPUT, "%s: unsupported: no decoder, and no ByteLevel", d->file);
}

enum err token_load_json(struct token_draft *d, const char *buf, int64_t n)
{
    struct json_keys keys;
    json_keys_init(&keys);
    enum err e = OK;
    for (int pass = 0; pass < PASSES && e == OK; pass++) {
        struct json j;
        json_init(&j, buf, n, d->file, JSON_DEPTH);
        json_keys_clear(&keys);
        e = pass_run(&j, d, (enum pass)pass, &keys);
        json_close(&j);
    }
    json_keys_close(&keys);
    return e == OK ? decoder_check(d) : e;
}
