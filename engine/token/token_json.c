/* engine/token/token_json.c - tokenizer.json of the `tokenizers` library, into a draft.
 *
 * Owns: the meaning of its members: vocabulary, merges, added tokens, and the normalizer,
 * pre-tokenizer, post-processor and decoder steps that a byte-level vocabulary can have. Refuses:
 * every other step or setting, by name: ERR_INPUT "unsupported ...".
 * The fact to know: the file is read several times over, because merges need the vocabulary, and
 * splits come after normalizers, whatever the order of the members. truncation and padding are
 * left to the caller, as transformers does. */
#include "engine/data/json.h"
#include "engine/token/token_impl.h"

#include <string.h>

#define JSON_DEPTH     64
#define SEQUENCES_MAX  8 // open at once
#define TEMPLATE_ITEMS 16

enum section { SECTION_NORMALIZER, SECTION_PRE_TOKENIZER, SECTION_POST_PROCESSOR, SECTION_DECODER };

struct template_id { // one id that a special token of a template stands for
    struct token_span name;
    int64_t id;
};

struct step_fields { // the members of one step, in whatever order they came
    struct token_span type, behavior, pattern, content, prepend;
    enum { PATTERN_NONE, PATTERN_STRING, PATTERN_REGEX } pattern_kind;
    int invert, individual_digits, add_prefix_space, use_regex;
    struct token_span items[TEMPLATE_ITEMS]; // special tokens of the template, in order
    int n_items, n_before, n_sequences;      // n_before: how many stand before the text
    struct template_id ids[TOKEN_EXTRA_MAX];
    int n_ids;
};

static int is_text(const char *s, int64_t n, const char *text)
{
    return n == (int64_t)strlen(text) && !memcmp(s, text, (size_t)n);
}

static int key_is(const struct json *j, const char *key)
{
    return is_text(j->str, j->n_str, key);
}

static int span_is(const struct token_draft *d, struct token_span s, const char *text)
{
    return d->text && is_text(d->text + s.at, s.n, text); // NULL: no span was read yet
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

/* with_vocab: the first pass, which reads the vocabulary and nothing else. */
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
        if (with_vocab && key_is(j, "type")) {
            TRY(json_expect(j, JSON_STR));
            if (!key_is(j, "BPE"))
                return json_fail(j, "unsupported model type %.*s (byte-level BPE only)",
                                 (int)min_i64(j->n_str, 40), j->str);
        } else if (with_vocab && key_is(j, "byte_fallback")) {
            int set;
            TRY(bool_next(j, &set));
            if (set)
                return json_fail(j, "unsupported model setting byte_fallback");
        } else if (with_vocab) {
            TRY(is_vocab ? token_load_vocab(j, d) : json_skip(j));
        } else if (is_merges) {
            TRY(merges_read(j, d));
        } else if (key_is(j, "unk_token")) {
            TRY(unk_next(j, d));
        } else if (key_is(j, "fuse_unk")) {
            TRY(flag_next(j, d, TOKEN_FUSE_UNK));
        } else if (key_is(j, "ignore_merges")) {
            TRY(flag_next(j, d, TOKEN_IGNORE_MERGES));
        } else if (key_is(j, "dropout")) {
            TRY(unset_next(j, "dropout"));
        } else if (key_is(j, "continuing_subword_prefix")) {
            TRY(unset_next(j, "continuing_subword_prefix"));
        } else if (key_is(j, "end_of_word_suffix")) {
            TRY(unset_next(j, "end_of_word_suffix"));
        } else {
            TRY(json_skip(j));
        }
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

/* ---- steps ---- */

/* {"String": s} or {"Regex": s} */
static enum err pattern_next(struct json *j, struct token_draft *d, struct step_fields *f)
{
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    TRY(json_expect(j, JSON_KEY));
    if (key_is(j, "String"))
        f->pattern_kind = PATTERN_STRING;
    else if (key_is(j, "Regex"))
        f->pattern_kind = PATTERN_REGEX;
    else
        return json_fail(j, "unsupported pattern {%.*s}", (int)min_i64(j->n_str, 40), j->str);
    TRY(span_next(j, d, &f->pattern));
    return json_expect(j, JSON_OBJECT_END);
}

/* "single" of TemplateProcessing: [{"SpecialToken": {"id": name}}, {"Sequence": {"id": "A"}}] */
static enum err template_next(struct json *j, struct token_draft *d, struct step_fields *f)
{
    TRY(json_expect(j, JSON_ARRAY_BEGIN));
    int depth = j->depth, is_sequence = 0;
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ERROR)
            return j->err;
        if (k == JSON_ARRAY_END && j->depth < depth)
            return OK;
        if (k != JSON_KEY)
            continue;
        if (key_is(j, "Sequence") || key_is(j, "SpecialToken")) {
            is_sequence = key_is(j, "Sequence");
        } else if (key_is(j, "id") && is_sequence) {
            TRY(json_expect(j, JSON_STR));
            if (!key_is(j, "A"))
                return json_fail(j, "unsupported template sequence");
            f->n_sequences++;
            f->n_before = f->n_items;
        } else if (key_is(j, "id")) {
            if (f->n_items == TEMPLATE_ITEMS)
                return json_fail(j, "template of more than %d special tokens", TEMPLATE_ITEMS);
            TRY(span_next(j, d, &f->items[f->n_items]));
            f->n_items++;
        }
    }
}

/* "special_tokens" of TemplateProcessing: {name: {"ids": [1, 2]}} */
static enum err template_ids_next(struct json *j, struct token_draft *d, struct step_fields *f)
{
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    int depth = j->depth;
    struct token_span name = {0};
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ERROR)
            return j->err;
        if (k == JSON_OBJECT_END && j->depth < depth)
            return OK;
        if (k == JSON_KEY && j->depth == depth)
            TRY(draft_text(d, j->str, j->n_str, &name));
        if (k == JSON_INT) {
            if (f->n_ids == TOKEN_EXTRA_MAX)
                return json_fail(j, "template of more than %d ids", TOKEN_EXTRA_MAX);
            f->ids[f->n_ids++] = (struct template_id){name, j->i64};
        }
    }
}

/* One member of a step that is not the list of a Sequence. */
static enum err field_next(struct json *j, struct token_draft *d, struct step_fields *f)
{
    struct {
        const char *key;
        struct token_span *text;
        int *flag;
    } known[] = {
        {"type", &f->type, NULL},
        {"behavior", &f->behavior, NULL},
        {"content", &f->content, NULL},
        {"prepend", &f->prepend, NULL},
        {"invert", NULL, &f->invert},
        {"individual_digits", NULL, &f->individual_digits},
        {"add_prefix_space", NULL, &f->add_prefix_space},
        {"use_regex", NULL, &f->use_regex},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (key_is(j, known[i].key))
            return known[i].text ? span_next(j, d, known[i].text) : bool_next(j, known[i].flag);
    if (key_is(j, "pattern"))
        return pattern_next(j, d, f);
    if (key_is(j, "single"))
        return template_next(j, d, f);
    if (key_is(j, "special_tokens"))
        return template_ids_next(j, d, f);
    return json_skip(j);
}

static enum err unsupported(const struct token_draft *d, const char *what,
                            const struct step_fields *f)
{
    return fail(ERR_INPUT, "%s: unsupported %s %.*s", d->file, what, (int)min_i64(f->type.n, 60),
                d->text ? d->text + f->type.at : ""); // NULL: no string was read yet
}

static enum err normalizer_end(struct token_draft *d, const struct step_fields *f)
{
    static const struct {
        const char *type;
        enum step_kind kind;
    } known[] = {{"NFC", STEP_NFC},        {"NFD", STEP_NFD},         {"NFKC", STEP_NFKC},
                 {"NFKD", STEP_NFKD},      {"Lowercase", STEP_LOWER}, {"Prepend", STEP_PREPEND},
                 {"Replace", STEP_REPLACE}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!span_is(d, f->type, known[i].type))
            continue;
        struct token_step step = {.kind = known[i].kind};
        if (step.kind == STEP_PREPEND)
            step.a = f->prepend;
        if (step.kind == STEP_REPLACE) {
            if (f->pattern_kind != PATTERN_STRING)
                return fail(ERR_INPUT, "%s: unsupported normalizer Replace without a String",
                            d->file);
            step.a = f->pattern;
            step.b = f->content;
        }
        return draft_step(d, step);
    }
    return unsupported(d, "normalizer", f);
}

static enum err behavior_of(const struct token_draft *d, struct token_span s, uint32_t *behavior)
{
    static const char *const names[SPLIT_BEHAVIORS] = {"Isolated", "Removed", "Contiguous",
                                                       "MergedWithPrevious", "MergedWithNext"};
    for (uint32_t b = 0; b < SPLIT_BEHAVIORS; b++) {
        if (span_is(d, s, names[b])) {
            *behavior = b;
            return OK;
        }
    }
    return fail(ERR_INPUT, "%s: unsupported behavior '%.*s'", d->file, (int)min_i64(s.n, 40),
                d->text + s.at);
}

static enum err pre_tokenizer_end(struct token_draft *d, const struct step_fields *f)
{
    struct token_step step = {.invert = (uint32_t)f->invert};
    if (span_is(d, f->type, "ByteLevel"))
        return draft_byte_level(d, f->add_prefix_space, f->use_regex);
    if (span_is(d, f->type, "Digits")) {
        step.kind = STEP_DIGITS;
        step.behavior = f->individual_digits ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return draft_step(d, step);
    }
    if (span_is(d, f->type, "Punctuation")) {
        step.kind = STEP_PUNCTUATION;
        if (f->behavior.n)
            TRY(behavior_of(d, f->behavior, &step.behavior));
        return draft_step(d, step);
    }
    if (!span_is(d, f->type, "Split") || f->pattern_kind == PATTERN_NONE)
        return unsupported(d, "pre_tokenizer", f);
    step.kind = f->pattern_kind == PATTERN_REGEX ? STEP_SPLIT_REGEX : STEP_SPLIT_STRING;
    step.a = f->pattern;
    TRY(behavior_of(d, f->behavior, &step.behavior));
    return draft_step(d, step);
}

/* Appends the ids that items [from, to) of the template stand for. */
static enum err template_ids(struct token_draft *d, const struct step_fields *f, int from, int to,
                             int32_t *list, int *n_list)
{
    for (int i = from; i < to; i++) {
        int n_found = 0;
        for (int k = 0; k < f->n_ids; k++) {
            struct token_span a = f->items[i], b = f->ids[k].name;
            if (a.n != b.n || memcmp(d->text + a.at, d->text + b.at, a.n))
                continue;
            TRY(draft_extra(d, list, n_list, f->ids[k].id, "post_processor"));
            n_found++;
        }
        if (!n_found)
            return fail(ERR_INPUT, "%s: post_processor: '%.*s' is not in its special_tokens",
                        d->file, (int)min_i64(f->items[i].n, 60), d->text + f->items[i].at);
    }
    return OK;
}

static enum err post_processor_end(struct token_draft *d, const struct step_fields *f)
{
    if (span_is(d, f->type, "ByteLevel")) // trims offsets, which nobody asks for here
        return OK;
    if (!span_is(d, f->type, "TemplateProcessing") || f->n_sequences != 1)
        return unsupported(d, "post_processor", f);
    int32_t before[TOKEN_EXTRA_MAX];
    int n_before = 0;
    TRY(template_ids(d, f, 0, f->n_before, before, &n_before));
    for (int i = 0; i < d->n_prefix; i++) // a later template goes around an earlier one
        TRY(draft_extra(d, before, &n_before, d->prefix[i], "post_processor"));
    memcpy(d->prefix, before, sizeof *before * (size_t)n_before);
    d->n_prefix = n_before;
    return template_ids(d, f, f->n_before, f->n_items, d->suffix, &d->n_suffix);
}

static enum err step_end(struct token_draft *d, enum section section, const struct step_fields *f)
{
    if (span_is(d, f->type, "Sequence")) // its members have come one by one
        return OK;
    switch (section) {
    case SECTION_NORMALIZER:
        return normalizer_end(d, f);
    case SECTION_PRE_TOKENIZER:
        return pre_tokenizer_end(d, f);
    case SECTION_POST_PROCESSOR:
        return post_processor_end(d, f);
    default:
        return span_is(d, f->type, "ByteLevel") ? OK : unsupported(d, "decoder", f);
    }
}

/* A step or null; Sequences are opened in place, so the steps come in order. */
static enum err steps_read(struct json *j, struct token_draft *d, enum section section)
{
    static const char *const lists[] = {"normalizers", "pretokenizers", "processors", "decoders"};
    struct step_fields open[SEQUENCES_MAX];
    int n_open = 0;
    for (;;) {
        enum json_kind k = json_next(j);
        if (k == JSON_ERROR)
            return j->err;
        if (k == JSON_NIL && n_open == 0)
            return OK;
        if (k == JSON_OBJECT_BEGIN) {
            if (n_open == SEQUENCES_MAX)
                return json_fail(j, "sequences nested deeper than %d", SEQUENCES_MAX);
            open[n_open++] = (struct step_fields){.add_prefix_space = 1, .use_regex = 1};
        } else if (k == JSON_OBJECT_END && n_open > 0) {
            TRY(step_end(d, section, &open[--n_open]));
            if (n_open == 0)
                return OK;
        } else if (k == JSON_KEY && key_is(j, lists[section])) {
            TRY(json_expect(j, JSON_ARRAY_BEGIN));
        } else if (k == JSON_KEY) {
            TRY(field_next(j, d, &open[n_open - 1]));
        } else if (k != JSON_ARRAY_END) {
            return json_fail(j, "%s: expected an object, is %s", lists[section], json_kind_name(k));
        }
    }
}

/* ---- the file ---- */

/* One pass over the file takes the members that this pass is for. */
static enum err member_read(struct json *j, struct token_draft *d, int pass)
{
    if (key_is(j, "model"))
        return pass == 2 ? json_skip(j) : model_read(j, d, pass == 0);
    if (pass == 1 && key_is(j, "added_tokens"))
        return added_read(j, d);
    if (pass == 1 && key_is(j, "normalizer"))
        return steps_read(j, d, SECTION_NORMALIZER);
    if (pass == 2 && key_is(j, "pre_tokenizer"))
        return steps_read(j, d, SECTION_PRE_TOKENIZER);
    if (pass == 2 && key_is(j, "post_processor"))
        return steps_read(j, d, SECTION_POST_PROCESSOR);
    if (pass == 2 && key_is(j, "decoder"))
        return steps_read(j, d, SECTION_DECODER);
    return json_skip(j);
}

static enum err pass_run(struct json *j, struct token_draft *d, int pass, struct json_keys *keys)
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
    return has_model ? OK : json_fail(j, "no model");
}

enum err token_load_json(struct token_draft *d, const char *buf, int64_t n)
{
    struct json_keys keys;
    json_keys_init(&keys);
    enum err e = OK;
    for (int pass = 0; pass < 3 && e == OK; pass++) {
        struct json j;
        json_init(&j, buf, n, d->file, JSON_DEPTH);
        json_keys_clear(&keys);
        e = pass_run(&j, d, pass, &keys);
        json_close(&j);
    }
    json_keys_close(&keys);
    return e;
}
