/* engine/text/token_dir.c - the tokenizer of a Hugging Face directory, and token_build.
 *
 * Owns: which files are read, in order of precedence. Vocabulary: tokenizer.json, vocab.json +
 * merges.txt, tekken.json, tokenizer.model or spiece.model (SentencePiece or tiktoken), *.tiktoken.
 * Special tokens: tokenizer_config.json, special_tokens_map.json, config.json. Template:
 * chat_template.jinja, tokenizer_config.json. Stop ids: generation_config.json, config.json, and
 * always the tokenizer's own EOS. Refuses: the contents of the files.
 *
 * Note: with vocab.json the tokenizer is GPT-2's, and adds BOS only if tokenizer_config.json has
 * add_bos_token (OPT's does). SentencePiece BPE means Llama's, which adds BOS unless that file says
 * otherwise; T5's adds EOS at the end. */
#include "engine/data/file.h"
#include "engine/data/json.h"
#include "engine/data/values.h"
#include "engine/model/containers/gguf.h"
#include "engine/text/token_impl.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR_BYTES_MAX        ((int64_t)256 << 20) // tokenizer.json, vocab.json, merges.txt
#define DIR_CONFIG_BYTES_MAX ((int64_t)16 << 20)
#define DIR_JSON_DEPTH       64

struct token_dir {
    const char *dir;
    struct token_draft *d;
    struct values config, special_map, model, generation; // empty if the file is missing
    char *config_text;                                    // owned; tokenizer_config.json
    int64_t n_config;
    char path[PATH_MAX]; // the current file, for the draft's messages
};

static enum err dir_file(struct token_dir *t, const char *name, int64_t max_bytes, char **buf,
                         int64_t *n, int *found)
{
    int length = snprintf(t->path, sizeof t->path, "%s/%s", t->dir, name);
    if (length < 0 || length >= (int)sizeof t->path)
        return fail(ERR_INPUT, "%.100s...: path too long", t->dir);
    *buf = NULL;
    *n = 0;
    return file_load(t->path, max_bytes, buf, n, found);
}

static enum err dir_values(struct token_dir *t, const char *name, struct values *v, char **keep,
                           int64_t *n_keep)
{
    char *buf;
    int64_t n;
    int found;
    TRY(dir_file(t, name, DIR_CONFIG_BYTES_MAX, &buf, &n, &found));
    if (!found)
        return OK;
    enum err e = values_read(v, buf, n, t->path);
    if (e == OK && keep) {
        *keep = buf;
        *n_keep = n;
        return OK;
    }
    free(buf);
    return e;
}

/* values_str of an optional file. */
static enum err maybe_str(const struct values *v, const char *key, const char **text, int64_t *n,
                          int *found)
{
    *found = 0;
    return v->n_nodes ? values_str(v, key, text, n, found) : OK;
}

static enum err maybe_bool(const struct values *v, const char *key, int *out)
{
    int found;
    return v->n_nodes ? values_bool(v, key, out, &found) : OK;
}

/* A special token: a string, or an object with "content". */
static enum err special_text(const struct values *v, const char *name, const char **text,
                             int64_t *n, int *found)
{
    char key[80];
    snprintf(key, sizeof key, "%s.content", name);
    TRY(maybe_str(v, key, text, n, found));
    return *found ? OK : maybe_str(v, name, text, n, found);
}

/* Text and id of bos_token or eos_token. */
static enum err special_end(struct token_dir *t, const char *name, struct token_span *span,
                            int32_t *id)
{
    const char *text = NULL;
    int64_t n = 0;
    int found;
    TRY(special_text(&t->config, name, &text, &n, &found));
    if (!found)
        TRY(special_text(&t->special_map, name, &text, &n, &found));
    if (!found || n == 0)
        return OK;
    TRY(draft_text(t->d, text, n, span));
    return draft_find(t->d, text, n, id);
}

/* The ids of a config key, a number or a list. */
static enum err config_ids(const struct values *v, const char *key, int64_t *ids, int64_t *n)
{
    int found = 0;
    *n = 0;
    return v->n_nodes ? values_int_list(v, key, 0, INT32_MAX, ids, TOKEN_EXTRA_MAX, n, &found) : OK;
}

/* BOS and EOS from config.json, if the tokenizer's own files have none. */
static enum err special_ids(struct token_dir *t)
{
    int64_t ids[TOKEN_EXTRA_MAX], n;
    struct token_draft *d = t->d;
    if (d->bos < 0 && d->bos_text.n == 0) {
        TRY(config_ids(&t->model, "bos_token_id", ids, &n));
        d->bos = n > 0 && ids[0] < d->n_vocab ? (int32_t)ids[0] : -1;
    }
    if (d->eos < 0 && d->eos_text.n == 0) {
        TRY(config_ids(&t->model, "eos_token_id", ids, &n));
        d->eos = n > 0 && ids[0] < d->n_vocab ? (int32_t)ids[0] : -1;
    }
    return OK;
}

static enum err stops_find(struct token_dir *t)
{
    int64_t ids[TOKEN_EXTRA_MAX], n;
    struct token_draft *d = t->d;
    TRY(config_ids(&t->generation, "eos_token_id", ids, &n));
    if (n == 0)
        TRY(config_ids(&t->model, "eos_token_id", ids, &n));
    if (n == 0)
        TRY(config_ids(&t->model, "text_config.eos_token_id", ids, &n));
    for (int64_t i = 0; i < n; i++)
        TRY(draft_extra(d, d->stops, &d->n_stops, ids[i], "eos_token_id"));
    if (d->eos >= 0 && d->n_stops < TOKEN_EXTRA_MAX)
        d->stops[d->n_stops++] = d->eos;
    return OK;
}

/* ---- tokenizer_config.json: members that `values` cannot hold ---- */

static int key_is(const struct json *j, const char *key)
{
    return j->n_str == (int64_t)strlen(key) && !memcmp(j->str, key, (size_t)j->n_str);
}

static enum err template_set(struct token_dir *t, const char *text, int64_t n)
{
    TRY(draft_text(t->d, text, n, &t->d->chat_template));
    t->d->has_template = 1;
    return OK;
}

/* [{"name": "default", "template": "..."}, ...]: the one named default, or the first. */
static enum err template_list(struct token_dir *t, struct json *j)
{
    int is_default = 0, has_default = 0;
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ERROR)
            return j->err;
        if (k == JSON_ARRAY_END)
            return OK;
        struct token_span text = {0};
        int has_text = 0;
        is_default = 0;
        if (k != JSON_OBJECT_BEGIN)
            return json_fail(j, "chat_template: expected {name, template} objects");
        while ((k = json_next(j)) == JSON_KEY) {
            int is_name = key_is(j, "name");
            if (!is_name && !key_is(j, "template")) {
                TRY(json_skip(j));
                continue;
            }
            TRY(json_expect(j, JSON_STR));
            if (is_name) {
                is_default = key_is(j, "default");
            } else {
                has_text = 1;
                TRY(draft_text(t->d, j->str, j->n_str, &text));
            }
        }
        if (has_text && (!t->d->has_template || (is_default && !has_default))) {
            t->d->chat_template = text;
            t->d->has_template = 1;
            has_default = is_default;
        }
    }
}

static enum err template_next(struct token_dir *t, struct json *j)
{
    enum json_kind k = json_next(j);
    if (k == JSON_ERROR)
        return j->err;
    if (k == JSON_NIL)
        return OK;
    if (k == JSON_STR)
        return template_set(t, j->str, j->n_str);
    return k == JSON_ARRAY_BEGIN ? template_list(t, j)
                                 : json_fail(j, "chat_template: expected string or list");
}

/* {"50265": {"content": "...", "special": true, ...}}: for vocab.json only; tokenizer.json has its
 * own list. */
static enum err added_next(struct token_dir *t, struct json *j)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } known[] = {{"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"single_word", ADDED_WORD},
                 {"normalized", ADDED_NORMALIZED},
                 {"special", 2 * ADDED_NORMALIZED}};
    enum json_kind k;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while ((k = json_next(j)) == JSON_KEY) {
        char *end, text[TOKEN_ADDED_BYTES_MAX];
        int64_t id = strtoll(j->str, &end, 10), n = 0;
        uint32_t flags = 0;
        if (j->n_str == 0 || *end || id < 0)
            return json_fail(j, "added_tokens_decoder: '%.*s' is not an id",
                             (int)min_i64(j->n_str, 40), j->str);
        TRY(json_expect(j, JSON_OBJECT_BEGIN));
        while ((k = json_next(j)) == JSON_KEY) {
            uint32_t flag = 0;
            for (size_t i = 0; i < sizeof known / sizeof *known; i++)
                flag |= key_is(j, known[i].key) ? known[i].flag : 0;
            if (flag) {
                TRY(json_expect(j, JSON_BOOL));
                flags |= j->i64 ? flag : 0;
            } else if (key_is(j, "content")) {
                TRY(json_expect(j, JSON_STR));
                n = j->n_str;
                memcpy(text, j->str, (size_t)min_i64(n, (int64_t)sizeof text));
            } else {
                TRY(json_skip(j));
            }
        }
        if (k == JSON_ERROR)
            return j->err;
        TRY(draft_added(t->d, id, text, n, flags & (2 * ADDED_NORMALIZED - 1),
                        (flags & 2 * ADDED_NORMALIZED) != 0));
    }
    return k == JSON_ERROR ? j->err : OK;
}

static enum err config_walk(struct token_dir *t, struct json *j, int with_added)
{
    enum json_kind k;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while ((k = json_next(j)) == JSON_KEY) {
        if (key_is(j, "chat_template") && !t->d->has_template)
            TRY(template_next(t, j));
        else if (key_is(j, "added_tokens_decoder") && with_added)
            TRY(added_next(t, j));
        else
            TRY(json_skip(j));
    }
    return k == JSON_ERROR ? j->err : OK;
}

static enum err config_read(struct token_dir *t, int with_added)
{
    char *buf;
    int64_t n;
    int found;
    TRY(dir_file(t, "chat_template.jinja", DIR_CONFIG_BYTES_MAX, &buf, &n, &found));
    enum err e = found ? template_set(t, buf, n) : OK;
    free(buf);
    if (e != OK || !t->config_text)
        return e;
    struct json j;
    snprintf(t->path, sizeof t->path, "%.*s/tokenizer_config.json", PATH_MAX - 40, t->dir);
    json_init(&j, t->config_text, t->n_config, t->path, DIR_JSON_DEPTH);
    e = config_walk(t, &j, with_added);
    json_close(&j);
    return e;
}

/* ---- vocab.json + merges.txt ---- */

static enum err merges_walk(struct token_draft *d, const char *buf, int64_t n)
{
    for (int64_t at = 0, end; at < n; at = end + 1) {
        const char *line = buf + at, *stop = memchr(line, '\n', (size_t)(n - at));
        end = stop ? stop - buf : n;
        int64_t length = end - at - (end > at && buf[end - 1] == '\r');
        if (length == 0 || (length >= 8 && !memcmp(line, "#version", 8)))
            continue;
        TRY(draft_merge_line(d, line, length));
    }
    return OK;
}

/* Adds the named special tokens to the added tokens, if the vocabulary has them. fallback: default
 * texts of BOS, EOS and the unknown token; NULL: none. */
static enum err named_specials(struct token_dir *t, const char *const fallback[3])
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = NULL;
        int64_t n = 0;
        int found;
        int32_t id = -1;
        const struct values *v = &t->config;
        TRY(special_text(v, names[i], &text, &n, &found));
        if (!found) {
            v = &t->special_map;
            TRY(special_text(v, names[i], &text, &n, &found));
        }
        if (!found && i < 3 && fallback[i]) { // the class's default
            text = fallback[i];
            n = (int64_t)strlen(text);
            TRY(draft_find(t->d, text, n, &id));
            found = id >= 0;
            if (found && i == 0)
                TRY(draft_text(t->d, text, n, &t->d->bos_text));
            if (found && i == 1)
                TRY(draft_text(t->d, text, n, &t->d->eos_text));
        }
        if (!found)
            continue;
        TRY(draft_find(t->d, text, n, &id));
        if (id < 0) {
            log_line(LOG_WARN, "%s: %s '%.*s' is not in the vocabulary, ignored", t->dir, names[i],
                     (int)min_i64(n, 60), text);
            continue;
        }
        char key[80];
        int lstrip = 0, rstrip = 0;
        snprintf(key, sizeof key, "%s.lstrip", names[i]);
        TRY(maybe_bool(v, key, &lstrip));
        snprintf(key, sizeof key, "%s.rstrip", names[i]);
        TRY(maybe_bool(v, key, &rstrip));
        TRY(draft_added(t->d, id, text, n,
                        (lstrip ? ADDED_LSTRIP : 0) | (rstrip ? ADDED_RSTRIP : 0), 1));
        t->d->bos = i == 0 ? id : t->d->bos;
        t->d->eos = i == 1 ? id : t->d->eos;
    }
    return OK;
}

static enum err gpt2_load(struct token_dir *t)
{
    char *buf;
    int64_t n;
    int found, add_prefix_space = 0, add_bos = 0;
    TRY(dir_file(t, "vocab.json", DIR_BYTES_MAX, &buf, &n, &found));
    t->d->flags |= TOKEN_BYTES;
    struct json j;
    json_init(&j, buf, n, t->path, 2);
    enum err e = token_load_vocab(&j, t->d);
    if (e == OK)
        e = json_expect(&j, JSON_END);
    if (e == OK)
        e = draft_place(t->d);
    json_close(&j);
    free(buf);
    TRY(e);
    TRY(dir_file(t, "merges.txt", DIR_BYTES_MAX, &buf, &n, &found));
    if (!found)
        return fail(ERR_INPUT, "%s: no such file (vocab.json needs it)", t->path);
    e = merges_walk(t->d, buf, n);
    free(buf);
    TRY(e);
    TRY(maybe_bool(&t->config, "add_prefix_space", &add_prefix_space));
    TRY(draft_byte_level(t->d, add_prefix_space, 1));
    TRY(config_read(t, 1));
    TRY(named_specials(t,
                       (const char *const[]){"<|endoftext|>", "<|endoftext|>", "<|endoftext|>"}));
    TRY(maybe_bool(&t->config, "add_bos_token", &add_bos));
    return add_bos ? draft_extra(t->d, t->d->prefix, &t->d->n_prefix, t->d->bos, "add_bos_token")
                   : OK;
}

/* ---- tokenizer.model ---- */

/* {"<token>": id}: tokens added to a vocabulary that cannot hold them itself. */
static enum err added_json(struct token_dir *t)
{
    char *buf;
    int64_t n;
    int found;
    TRY(dir_file(t, "added_tokens.json", DIR_CONFIG_BYTES_MAX, &buf, &n, &found));
    if (!found)
        return OK;
    struct json j;
    json_init(&j, buf, n, t->path, 2);
    enum err e = json_expect(&j, JSON_OBJECT_BEGIN);
    while (e == OK && json_next(&j) == JSON_KEY) {
        char text[TOKEN_ADDED_BYTES_MAX];
        int64_t n_text = j.n_str;
        memcpy(text, j.str, (size_t)min_i64(n_text, (int64_t)sizeof text));
        e = json_expect(&j, JSON_INT);
        if (e == OK)
            e = draft_added(t->d, j.i64 < 0 ? -2 : j.i64, text, n_text, 0, 0);
    }
    if (e == OK)
        e = j.err;
    json_close(&j);
    free(buf);
    return e;
}

/* The text of a piece, NUL-terminated. */
static const char *piece_text(const struct token_draft *d, int32_t id, char *out, size_t cap)
{
    if (id < 0)
        return NULL;
    struct token_span s = d->pieces[id].bytes;
    snprintf(out, cap, "%.*s", (int)s.n, d->bytes + s.at);
    return out;
}

/* Special tokens beside a tokenizer.model, as transformers reads them from the configs. Without
 * configs there are none: SentencePiece treats them as text. */
static enum err model_specials(struct token_dir *t)
{
    struct token_draft *d = t->d;
    char bos[256], eos[256], unk[256];
    TRY(config_read(t, 1));
    snprintf(t->path, sizeof t->path, "%.*s/added_tokens.json", PATH_MAX - 40, t->dir);
    TRY(added_json(t));
    if (t->config.n_nodes == 0 && t->special_map.n_nodes == 0)
        return OK;
    snprintf(t->path, sizeof t->path, "%.*s/tokenizer_config.json", PATH_MAX - 40, t->dir);
    return named_specials(t, (const char *const[]){piece_text(d, d->bos, bos, sizeof bos),
                                                   piece_text(d, d->eos, eos, sizeof eos),
                                                   piece_text(d, d->unk, unk, sizeof unk)});
}

/* Adds BOS and EOS around a text as the config says, else as the tokenizer class does. */
static enum err ends_add(struct token_dir *t, int adds_bos)
{
    struct token_draft *d = t->d;
    const char *class = "";
    int64_t n = 0;
    int found, adds_eos = 0;
    TRY(maybe_str(&t->config, "tokenizer_class", &class, &n, &found));
    if (found && n >= 2 && !memcmp(class, "T5", 2)) {
        adds_bos = 0;
        adds_eos = 1;
    }
    TRY(maybe_bool(&t->config, "add_bos_token", &adds_bos));
    TRY(maybe_bool(&t->config, "add_eos_token", &adds_eos));
    if (adds_bos && d->bos >= 0)
        TRY(draft_extra(d, d->prefix, &d->n_prefix, d->bos, "add_bos_token"));
    if (adds_eos && d->eos >= 0)
        TRY(draft_extra(d, d->suffix, &d->n_suffix, d->eos, "add_eos_token"));
    return OK;
}

/* Newer configs put the prefix only at the start of a text ("legacy": false), or nowhere. */
static enum err prefix_rule(struct token_dir *t)
{
    int is_legacy = 1, has_prefix = 1;
    TRY(maybe_bool(&t->config, "legacy", &is_legacy));
    TRY(maybe_bool(&t->config, "add_prefix_space", &has_prefix));
    for (int i = 0; i < t->d->n_steps; i++) {
        struct token_step *s = &t->d->steps[i];
        if (s->kind == STEP_SENTENCEPIECE && !is_legacy)
            s->behavior |= SPM_PREFIX_FIRST;
        if (s->kind != STEP_SENTENCEPIECE || has_prefix)
            continue;
        s->behavior &= ~(uint32_t)SPM_PREFIX;
        if (!(s->behavior & SPM_TRIM))
            t->d->decode &= ~(uint32_t)DECODE_LEAD;
    }
    return OK;
}

/* rule: how the text is split if the file is tiktoken's. */
static enum err spm_load(struct token_dir *t, const char *buf, int64_t n, const char *rule)
{
    int is_tiktoken = token_is_tiktoken(buf, n);
    TRY(is_tiktoken ? token_load_tiktoken(t->d, buf, n, rule) : token_load_spm(t->d, buf, n));
    TRY(prefix_rule(t));
    TRY(model_specials(t));
    return ends_add(t, t->d->model == MODEL_BPE && !is_tiktoken);
}

/* Loads the first existing single-file vocabulary. */
static enum err model_file_load(struct token_dir *t, int *found)
{
    static const char *const files[][2] = {{"tokenizer.model", "llama3"},
                                           {"spiece.model", "llama3"},
                                           {"tiktoken.model", "kimi-k2"},
                                           {"qwen.tiktoken", "qwen2"}};
    *found = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && !*found; i++) {
        char *buf;
        int64_t n;
        TRY(dir_file(t, files[i][0], DIR_BYTES_MAX, &buf, &n, found));
        enum err e = *found ? spm_load(t, buf, n, files[i][1]) : OK;
        free(buf);
        TRY(e);
    }
    return OK;
}

/* ---- the directory ---- */

static enum err model_load(struct token_dir *t)
{
    char *buf;
    int64_t n;
    int found;
    TRY(dir_file(t, "tokenizer.json", DIR_BYTES_MAX, &buf, &n, &found));
    if (found) {
        enum err e = token_load_json(t->d, buf, n);
        free(buf);
        TRY(e);
        return config_read(t, 0);
    }
    TRY(dir_file(t, "vocab.json", DIR_BYTES_MAX, &buf, &n, &found));
    free(buf);
    if (found)
        return gpt2_load(t);
    TRY(dir_file(t, "tekken.json", DIR_BYTES_MAX, &buf, &n, &found));
    if (found) {
        enum err e = token_load_tekken(t->d, buf, n);
        free(buf);
        TRY(e);
        return config_read(t, 0);
    }
    TRY(model_file_load(t, &found));
    if (found)
        return OK;
    return fail(ERR_INPUT,
                "%s: no tokenizer.json, no vocab.json with merges.txt, no tokenizer.model, no "
                "tekken.json",
                t->dir);
}

static enum err dir_load(struct token_dir *t)
{
    TRY(dir_values(t, "tokenizer_config.json", &t->config, &t->config_text, &t->n_config));
    TRY(dir_values(t, "special_tokens_map.json", &t->special_map, NULL, NULL));
    TRY(dir_values(t, "config.json", &t->model, NULL, NULL));
    TRY(dir_values(t, "generation_config.json", &t->generation, NULL, NULL));
    TRY(model_load(t));
    if (t->d->bos < 0)
        TRY(special_end(t, "bos_token", &t->d->bos_text, &t->d->bos));
    if (t->d->eos < 0)
        TRY(special_end(t, "eos_token", &t->d->eos_text, &t->d->eos));
    TRY(special_ids(t));
    return stops_find(t);
}

static enum err dir_build(struct token_dir *t, const char *dir, void **blob, int64_t *n_bytes)
{
    struct token_draft d;
    t->dir = dir;
    t->d = &d;
    draft_init(&d, t->path); // messages name the current file
    enum err e = dir_load(t);
    if (e == OK) {
        snprintf(t->path, sizeof t->path, "%.*s", PATH_MAX - 1, dir);
        e = draft_finish(&d, blob, n_bytes);
    }
    draft_close(&d);
    values_close(&t->config);
    values_close(&t->special_map);
    values_close(&t->model);
    values_close(&t->generation);
    free(t->config_text);
    return e;
}

enum err token_build_dir(const char *dir, void **blob, int64_t *n_bytes)
{
    *blob = NULL;
    *n_bytes = 0;
    struct token_dir *t = calloc(1, sizeof *t);
    if (!t)
        return fail(ERR_FIT, "%s: no memory for its tokenizer", dir);
    enum err e = dir_build(t, dir, blob, n_bytes);
    free(t);
    return e;
}

enum err token_build(const struct source *s, void **blob, int64_t *n_bytes)
{
    if (s->kind == SOURCE_HF)
        return token_build_dir(s->path, blob, n_bytes);
    *blob = NULL;
    *n_bytes = 0;
    struct token_draft d;
    draft_init(&d, s->path);
    enum err e = token_load_gguf(&d, s->impl);
    if (e == OK)
        e = draft_finish(&d, blob, n_bytes);
    draft_close(&d);
    return e;
}
