/* engine/text/token_steps.c - the steps of tokenizer.json, into a draft.
 *
 * Owns: the meaning of normalizers, pre-tokenizers, post-processors and decoders. Refuses, by name,
 * other steps and settings, and orders of decoders that cannot work one token at a time: ERR_INPUT
 * "unsupported ...". Note: a Sequence is read in place; its members are handled one by one, in
 * order. */
#include "engine/data/json.h"
#include "engine/text/token_impl.h"

#include <string.h>

#define SEQUENCES_MAX  8 // open at once
#define TEMPLATE_ITEMS 16

struct template_id { // one id of a special token of a template
    struct token_span name;
    int64_t id;
};

struct step_fields { // the members of one step, in any order
    struct token_span type, behavior, pattern, content, prepend, replacement, scheme, charsmap;
    enum { PATTERN_NONE, PATTERN_STRING, PATTERN_REGEX } pattern_kind;
    int invert, individual_digits, add_prefix_space, use_regex, is_split, strip_left, strip_right;
    int64_t start, stop;
    struct token_span items[TEMPLATE_ITEMS]; // special tokens of the template, in order
    int n_items, n_before, n_sequences;      // n_before: items before the text
    struct template_id ids[TOKEN_EXTRA_MAX];
    int n_ids;
};

static int span_is(const struct token_draft *d, struct token_span s, const char *text)
{
    return d->text && s.n == strlen(text) && // NULL: no span read yet
           !memcmp(d->text + s.at, text, s.n);
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

/* {"String": s} or {"Regex": s} */
static enum err pattern_next(struct json *j, struct token_draft *d, struct step_fields *f)
{
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    TRY(json_expect(j, JSON_KEY));
    if (json_is(j, "String"))
        f->pattern_kind = PATTERN_STRING;
    else if (json_is(j, "Regex"))
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
        if (json_is(j, "Sequence") || json_is(j, "SpecialToken")) {
            is_sequence = json_is(j, "Sequence");
        } else if (json_is(j, "id") && is_sequence) {
            TRY(json_expect(j, JSON_STR));
            if (!json_is(j, "A"))
                return json_fail(j, "unsupported template sequence");
            f->n_sequences++;
            f->n_before = f->n_items;
        } else if (json_is(j, "id")) {
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

/* Base64 of the table, or null. */
static enum err charsmap_next(struct json *j, struct token_draft *d, struct step_fields *f)
{
    enum json_kind k = json_next(j);
    if (k == JSON_NIL)
        return OK;
    if (k != JSON_STR)
        return k == JSON_ERROR ? j->err : json_fail(j, "precompiled_charsmap: expected string");
    TRY(draft_text(d, j->str, j->n_str, &f->charsmap));
    int64_t n = base64_decode(d->text + f->charsmap.at, f->charsmap.n);
    if (n < 0)
        return json_fail(j, "precompiled_charsmap is not base64");
    f->charsmap.n = (uint32_t)n;
    return OK;
}

/* Reads one member of a step, except the list of a Sequence. */
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
        {"replacement", &f->replacement, NULL},
        {"prepend_scheme", &f->scheme, NULL},
        {"split", NULL, &f->is_split},
        {"strip_left", NULL, &f->strip_left},
        {"strip_right", NULL, &f->strip_right},
        {"invert", NULL, &f->invert},
        {"individual_digits", NULL, &f->individual_digits},
        {"add_prefix_space", NULL, &f->add_prefix_space},
        {"use_regex", NULL, &f->use_regex},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_is(j, known[i].key))
            return known[i].text ? span_next(j, d, known[i].text) : bool_next(j, known[i].flag);
    if (json_is(j, "pattern"))
        return pattern_next(j, d, f);
    if (json_is(j, "precompiled_charsmap"))
        return charsmap_next(j, d, f);
    int is_start = json_is(j, "start");
    if (is_start || json_is(j, "stop")) {
        TRY(json_expect(j, JSON_INT));
        *(is_start ? &f->start : &f->stop) = j->i64;
        return OK;
    }
    if (json_is(j, "single"))
        return template_next(j, d, f);
    if (json_is(j, "special_tokens"))
        return template_ids_next(j, d, f);
    return json_skip(j);
}

static enum err unsupported(const struct token_draft *d, const char *what,
                            const struct step_fields *f)
{
    return fail(ERR_INPUT, "%s: unsupported %s %.*s", d->file, what, (int)min_i64(f->type.n, 60),
                d->text ? d->text + f->type.at : ""); // NULL: no string read yet
}

static enum err normalizer_end(struct token_draft *d, const struct step_fields *f)
{
    static const struct {
        const char *type;
        enum step_kind kind;
    } known[] = {{"NFC", STEP_NFC},        {"NFD", STEP_NFD},         {"NFKC", STEP_NFKC},
                 {"NFKD", STEP_NFKD},      {"Lowercase", STEP_LOWER}, {"Prepend", STEP_PREPEND},
                 {"Replace", STEP_REPLACE}};
    if (span_is(d, f->type, "Strip"))
        return draft_step(d, (struct token_step){.kind = STEP_STRIP,
                                                 .behavior = (f->strip_left ? STRIP_LEFT : 0) |
                                                             (f->strip_right ? STRIP_RIGHT : 0)});
    if (span_is(d, f->type, "Precompiled")) {
        if (d->charsmap.n > 0)
            return fail(ERR_INPUT, "%s: unsupported: a second Precompiled normalizer", d->file);
        d->charsmap = f->charsmap;
        return draft_step(d, (struct token_step){.kind = STEP_CHARSMAP});
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!span_is(d, f->type, known[i].type))
            continue;
        struct token_step step = {.kind = known[i].kind};
        if (step.kind == STEP_PREPEND)
            step.a = f->prepend;
        if (step.kind == STEP_REPLACE) {
            if (f->pattern_kind == PATTERN_NONE)
                return unsupported(d, "normalizer", f);
            if (f->pattern_kind == PATTERN_REGEX)
                step.kind = STEP_REPLACE_REGEX;
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

/* Old files have add_prefix_space, newer ones prepend_scheme. */
static enum err scheme_of(const struct token_draft *d, const struct step_fields *f,
                          uint32_t *scheme)
{
    static const char *const names[PREPEND_SCHEMES] = {"never", "first", "always"};
    *scheme = f->add_prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (f->scheme.n == 0)
        return OK;
    for (*scheme = 0; *scheme < PREPEND_SCHEMES; ++*scheme)
        if (span_is(d, f->scheme, names[*scheme]))
            return OK;
    return fail(ERR_INPUT, "%s: unsupported prepend_scheme '%.*s'", d->file,
                (int)min_i64(f->scheme.n, 40), d->text + f->scheme.at);
}

static enum err metaspace_end(struct token_draft *d, const struct step_fields *f)
{
    struct token_step step = {.kind = STEP_METASPACE, .a = f->replacement};
    for (int i = 0; i < d->n_steps; i++)
        if (d->steps[i].kind == STEP_METASPACE)
            return fail(ERR_INPUT, "%s: unsupported: a second Metaspace", d->file);
    TRY(scheme_of(d, f, &step.behavior));
    if (f->replacement.n == 0)
        return unsupported(d, "pre_tokenizer", f);
    int is_behind = d->n_steps > 0 && d->steps[d->n_steps - 1].kind >= STEP_SPLIT_REGEX;
    if (step.behavior == PREPEND_FIRST && is_behind) // all pieces of the first character are first
        return fail(ERR_INPUT, "%s: unsupported prepend_scheme 'first' after another step",
                    d->file);
    TRY(draft_step(d, step));
    if (!f->is_split)
        return OK;
    return draft_step(d, (struct token_step){.kind = STEP_SPLIT_STRING,
                                             .behavior = SPLIT_WITH_NEXT,
                                             .a = f->replacement});
}

static enum err pre_tokenizer_end(struct token_draft *d, const struct step_fields *f)
{
    struct token_step step = {.invert = (uint32_t)f->invert};
    if (span_is(d, f->type, "ByteLevel"))
        return draft_byte_level(d, f->add_prefix_space, f->use_regex);
    if (span_is(d, f->type, "Metaspace"))
        return metaspace_end(d, f);
    if (span_is(d, f->type, "WhitespaceSplit"))
        return draft_step(d,
                          (struct token_step){.kind = STEP_WHITESPACE, .behavior = SPLIT_REMOVED});
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

/* Appends the ids of the template's items [from, to). */
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
    if (span_is(d, f->type, "ByteLevel")) // only trims offsets, which are unused here
        return OK;
    if (!span_is(d, f->type, "TemplateProcessing") || f->n_sequences != 1)
        return unsupported(d, "post_processor", f);
    int32_t before[TOKEN_EXTRA_MAX];
    int n_before = 0;
    TRY(template_ids(d, f, 0, f->n_before, before, &n_before));
    for (int i = 0; i < d->n_prefix; i++) // a later template encloses an earlier one
        TRY(draft_extra(d, before, &n_before, d->prefix[i], "post_processor"));
    memcpy(d->prefix, before, sizeof *before * (size_t)n_before);
    d->n_prefix = n_before;
    return template_ids(d, f, f->n_before, f->n_items, d->suffix, &d->n_suffix);
}

/* Decoders of text must be in this order, each at most once; the combination decides what they
 * do. */
enum decoder_place { AT_SPACE = 1, AT_BYTES, AT_FUSE, AT_STRIP };

static enum err decoder_place(struct token_draft *d, const struct step_fields *f, int place)
{
    int is_late = d->n_decoders >= place || (place == AT_STRIP && d->n_decoders != AT_FUSE);
    if (is_late)
        return fail(ERR_INPUT, "%s: unsupported decoder %.*s in this place", d->file,
                    (int)min_i64(f->type.n, 60), d->text + f->type.at);
    d->n_decoders = place;
    return OK;
}

static enum err decoder_end(struct token_draft *d, const struct step_fields *f)
{
    if (d->flags & TOKEN_BYTES)
        return span_is(d, f->type, "ByteLevel") ? OK : unsupported(d, "decoder", f);
    if (span_is(d, f->type, "Replace") && f->pattern_kind == PATTERN_STRING && f->pattern.n > 0) {
        TRY(decoder_place(d, f, AT_SPACE));
        d->space = f->pattern;
        d->shown = f->content;
        return OK;
    }
    if (span_is(d, f->type, "Metaspace") && f->replacement.n > 0) {
        uint32_t scheme;
        TRY(decoder_place(d, f, AT_SPACE));
        TRY(scheme_of(d, f, &scheme));
        d->space = f->replacement;
        d->decode |= scheme == PREPEND_NEVER ? 0 : DECODE_FIRST_BARE;
        return draft_text(d, " ", 1, &d->shown);
    }
    if (span_is(d, f->type, "ByteFallback")) {
        d->decode |= DECODE_BYTE_RUN;
        return decoder_place(d, f, AT_BYTES);
    }
    if (span_is(d, f->type, "Fuse"))
        return decoder_place(d, f, AT_FUSE);
    if (span_is(d, f->type, "Strip") && span_is(d, f->content, " ") && f->stop == 0 &&
        f->start >= 0 && f->start <= DECODE_STRIP_MAX) {
        d->n_strip = (uint32_t)f->start;
        return decoder_place(d, f, AT_STRIP);
    }
    return unsupported(d, "decoder", f);
}

static enum err step_end(struct token_draft *d, enum section section, const struct step_fields *f)
{
    if (span_is(d, f->type, "Sequence")) // its members have been read
        return OK;
    switch (section) {
    case SECTION_NORMALIZER:
        return normalizer_end(d, f);
    case SECTION_PRE_TOKENIZER:
        return pre_tokenizer_end(d, f);
    case SECTION_POST_PROCESSOR:
        return post_processor_end(d, f);
    default:
        return decoder_end(d, f);
    }
}

/* Reads a step or null; Sequences are read in place, so steps arrive in order. */
enum err token_load_steps(struct json *j, struct token_draft *d, enum section section)
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
            open[n_open++] = (struct step_fields){.add_prefix_space = 1,
                                                  .use_regex = 1,
                                                  .is_split = 1,
                                                  .strip_left = 1,
                                                  .strip_right = 1};
        } else if (k == JSON_OBJECT_END && n_open > 0) {
            TRY(step_end(d, section, &open[--n_open]));
            if (n_open == 0)
                return OK;
        } else if (k == JSON_KEY && json_is(j, lists[section])) {
            TRY(json_expect(j, JSON_ARRAY_BEGIN));
        } else if (k == JSON_KEY) {
            TRY(field_next(j, d, &open[n_open - 1]));
        } else if (k != JSON_ARRAY_END) {
            return json_fail(j, "%s: expected an object, is %s", lists[section], json_kind_name(k));
        }
    }
}
