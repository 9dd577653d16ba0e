/* engine/text/token_gguf.c - the tokenizer in the metadata of a GGUF file, into a draft.
 *
 * Owns: the tokenizer.ggml.* keys. Refuses: vocabularies other than gpt2 (byte-level BPE), llama
 * (SentencePiece BPE), gemma4 (BPE over characters) and t5 (Unigram). Note: for byte-level
 * vocabularies the file has only the name of the splitting rules (token_rules.c); for SentencePiece
 * it has scores and no merges. */
#include "engine/model/containers/gguf.h"
#include "engine/text/token_impl.h"

#include <string.h>

static enum err vocab_load(struct token_draft *d, const struct gguf *g)
{
    struct gguf_strings tokens;
    struct gguf_numbers types = {0};
    int found, has_types;
    const char *text;
    int64_t n;
    TRY(gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &found));
    if (!found || tokens.n == 0 || tokens.n > TOKEN_VOCAB_MAX)
        return fail(ERR_INPUT, "%s: tokenizer.ggml.tokens: %lld tokens (1 to %d)", d->file,
                    (long long)(found ? tokens.n : 0), TOKEN_VOCAB_MAX);
    TRY(gguf_i32_array(g, "tokenizer.ggml.token_type", &types, &has_types));
    if (has_types && types.n != tokens.n)
        return fail(ERR_INPUT, "%s: tokenizer.ggml.token_type: %lld entries, expected %lld",
                    d->file, (long long)types.n, (long long)tokens.n);
    struct gguf_strings again = tokens;
    for (int64_t id = 0; (text = gguf_strings_next(&tokens, &n)); id++)
        TRY(draft_token(d, id, text, n));
    TRY(draft_place(d));
    for (int64_t id = 0; has_types && (text = gguf_strings_next(&again, &n)); id++) {
        int32_t type = gguf_i32_at(&types, id);
        if (n > 0 && (type == SPM_CONTROL || type == SPM_USER_DEFINED))
            TRY(draft_added(d, id, text, n, 0, type == SPM_CONTROL));
    }
    return OK;
}

static enum err merges_load(struct token_draft *d, const struct gguf *g)
{
    struct gguf_strings merges;
    const char *line;
    int64_t n;
    int found;
    TRY(gguf_str_array(g, "tokenizer.ggml.merges", &merges, &found));
    if (!found)
        return fail(ERR_INPUT, "%s: no tokenizer.ggml.merges", d->file);
    while ((line = gguf_strings_next(&merges, &n)))
        TRY(draft_merge_line(d, line, n));
    return OK;
}

/* *id is unchanged if the file does not say. */
static enum err special_id(const struct token_draft *d, const struct gguf *g, const char *key,
                           int32_t *id)
{
    int64_t value;
    int found;
    TRY(gguf_int(g, key, 0, INT32_MAX, &value, &found));
    if (!found)
        return OK;
    if (value >= d->n_vocab)
        return fail(ERR_INPUT, "%s: %s: token id %lld is outside the vocabulary of %lld", d->file,
                    key, (long long)value, (long long)d->n_vocab);
    *id = (int32_t)value;
    return OK;
}

static enum err specials_load(struct token_draft *d, const struct gguf *g, int adds_bos)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    int adds_eos = 0, found;
    TRY(special_id(d, g, "tokenizer.ggml.bos_token_id", &d->bos));
    TRY(special_id(d, g, "tokenizer.ggml.eos_token_id", &d->eos));
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        int32_t id = -1;
        TRY(special_id(d, g, stops[i], &id));
        if (id >= 0)
            TRY(draft_extra(d, d->stops, &d->n_stops, id, stops[i]));
    }
    TRY(gguf_bool(g, "tokenizer.ggml.add_bos_token", &adds_bos, &found));
    TRY(gguf_bool(g, "tokenizer.ggml.add_eos_token", &adds_eos, &found));
    if (adds_bos)
        TRY(draft_extra(d, d->prefix, &d->n_prefix, d->bos, "tokenizer.ggml.add_bos_token"));
    if (adds_eos)
        TRY(draft_extra(d, d->suffix, &d->n_suffix, d->eos, "tokenizer.ggml.add_eos_token"));
    const char *text;
    int64_t n;
    TRY(gguf_str(g, "tokenizer.chat_template", &text, &n, &d->has_template));
    return d->has_template ? draft_text(d, text, n, &d->chat_template) : OK;
}

/* ---- SentencePiece ---- */

/* Reads the pieces with scores and types; *unk: the first of type unknown, -1: none. */
static enum err pieces_load(struct token_draft *d, const struct gguf *g, const struct spm *m,
                            int32_t *unk)
{
    struct gguf_strings tokens;
    struct gguf_numbers types, scores;
    int found, has_types, has_scores;
    const char *text;
    int64_t n;
    TRY(gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &found));
    TRY(gguf_i32_array(g, "tokenizer.ggml.token_type", &types, &has_types));
    TRY(gguf_f32_array(g, "tokenizer.ggml.scores", &scores, &has_scores));
    if (!found || !has_types || !has_scores || types.n != tokens.n || scores.n != tokens.n)
        return fail(ERR_INPUT,
                    "%s: tokenizer.ggml: tokens, scores and token_type have different lengths",
                    d->file);
    *unk = -1;
    for (int64_t id = 0; (text = gguf_strings_next(&tokens, &n)); id++) {
        int32_t type = gguf_i32_at(&types, id);
        if (type == SPM_UNKNOWN && *unk < 0)
            *unk = (int32_t)id;
        TRY(spm_piece(d, m, id, text, n, (double)gguf_f32_at(&scores, id), type));
    }
    return draft_place(d);
}

/* Control tokens and the unknown token are parsed in text. */
static enum err controls_add(struct token_draft *d)
{
    for (int64_t id = 0; id < d->n_vocab; id++) {
        struct token_span s = d->pieces[id].bytes;
        char text[TOKEN_ADDED_BYTES_MAX]; // a copy: the pool moves when it grows
        if (!(d->pieces[id].kind & PIECE_SPECIAL) && id != d->unk)
            continue;
        memcpy(text, d->bytes + s.at, (size_t)min_i64(s.n, (int64_t)sizeof text));
        TRY(draft_added(d, id, text, s.n, 0, id != d->unk));
    }
    return OK;
}

/* The table of replacements, an array of bytes. */
static enum err charsmap_load(struct token_draft *d, const struct gguf *g)
{
    const void *bytes;
    int64_t n;
    int found;
    TRY(gguf_byte_array(g, "tokenizer.ggml.precompiled_charsmap", &bytes, &n, &found));
    return found ? draft_bytes(d, bytes, n, &d->charsmap) : OK;
}

static int has_bytes(const struct gguf *g)
{
    struct gguf_numbers types;
    int found = 0, has = 0;
    if (gguf_i32_array(g, "tokenizer.ggml.token_type", &types, &found) != OK)
        return 0;
    for (int64_t i = 0; found && i < types.n; i++)
        has |= gguf_i32_at(&types, i) == SPM_BYTE;
    return has;
}

static enum err spm_load(struct token_draft *d, const struct gguf *g, enum token_model model)
{
    struct spm m = {.model = model, .prefix = model == MODEL_BPE, .escape = 1};
    int32_t unk;
    int found;
    m.byte_fallback = has_bytes(g);
    TRY(gguf_bool(g, "tokenizer.ggml.add_space_prefix", &m.prefix, &found));
    TRY(gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &m.trim, &found));
    TRY(pieces_load(d, g, &m, &unk));
    TRY(special_id(d, g, "tokenizer.ggml.unknown_token_id", &unk));
    TRY(charsmap_load(d, g));
    TRY(draft_text(d, " \xe2\x81\x87 ", 5, &d->unk_text)); // sentencepiece's default
    TRY(spm_finish(d, &m, unk));
    TRY(controls_add(d));
    if (model == MODEL_BPE && d->n_vocab > 2) { // defaults if the file does not say
        d->bos = 1;
        d->eos = 2;
    }
    return specials_load(d, g, model == MODEL_BPE);
}

/* ---- Gemma 4 ---- */

/* Newlines split a text, and a run of them is one token: tokenizer.json has these as added tokens,
 * which a GGUF file's types do not say. */
static enum err newlines_add(struct token_draft *d)
{
    char text[32];
    memset(text, '\n', sizeof text);
    for (int64_t n = 1; n <= (int64_t)sizeof text; n++) {
        int32_t id;
        TRY(draft_find(d, text, n, &id));
        if (id >= 0)
            TRY(draft_added(d, id, text, n, 0, 0));
    }
    return OK;
}

/* Merges of characters without splitting at words; <0xNN> stand for characters without a token. */
static enum err gemma4_load(struct token_draft *d, const struct gguf *g)
{
    struct token_step spaces = {.kind = STEP_REPLACE};
    d->flags = TOKEN_FUSE_UNK | (has_bytes(g) ? TOKEN_BYTE_FALLBACK : 0);
    d->decode = DECODE_BYTE_RUN;
    TRY(vocab_load(d, g));
    TRY(newlines_add(d));
    TRY(merges_load(d, g));
    TRY(special_id(d, g, "tokenizer.ggml.unknown_token_id", &d->unk));
    TRY(draft_text(d, SPM_SPACE, 3, &d->space));
    TRY(draft_text(d, " ", 1, &d->shown));
    spaces.a = d->shown;
    spaces.b = d->space;
    TRY(draft_step(d, spaces));
    return specials_load(d, g, 1);
}

static int is_model(const char *model, int64_t n, const char *name)
{
    return n == (int64_t)strlen(name) && !memcmp(model, name, (size_t)n);
}

enum err token_load_gguf(struct token_draft *d, const struct gguf *g)
{
    const char *name = "default";
    int64_t n = (int64_t)strlen(name);
    int found;
    const struct split_rule *rule = NULL;
    const char *model;
    int64_t n_model;
    TRY(gguf_str(g, "tokenizer.ggml.model", &model, &n_model, &found));
    if (!found)
        return fail(ERR_INPUT, "%s: no tokenizer.ggml.model", d->file);
    if (is_model(model, n_model, "llama") || is_model(model, n_model, "t5"))
        return spm_load(d, g, n_model == 2 ? MODEL_UNIGRAM : MODEL_BPE);
    if (is_model(model, n_model, "gemma4"))
        return gemma4_load(d, g);
    if (!is_model(model, n_model, "gpt2"))
        return fail(ERR_INPUT,
                    "%s: tokenizer.ggml.model: unsupported '%.*s' (supported: gpt2, llama, gemma4, "
                    "t5)",
                    d->file, (int)min_i64(n_model, 60), model);
    d->flags = TOKEN_BYTES;
    TRY(gguf_str(g, "tokenizer.ggml.pre", &name, &n, &found));
    TRY(split_rule_find(d, name, n, &rule));
    TRY(vocab_load(d, g));
    TRY(merges_load(d, g));
    d->flags |= rule->ignore_merges ? TOKEN_IGNORE_MERGES : 0;
    TRY(split_rule_apply(d, rule));
    return specials_load(d, g, rule->adds_bos);
}
