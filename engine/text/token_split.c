/* engine/text/token_split.c - pre-tokenizers: cut text into words, which are encoded one by one.
 *
 * Owns: the splitting steps of the blob and how they treat matches. Refuses: lists of pieces; each
 * step passes on one piece at a time, so memory does not grow with the text. Note: a step sees its
 * piece as a whole text: \s+(?!\S) matches at the end of every piece. */
#include "engine/text/token_impl.h"

#include <string.h>

struct split_event { // a match, or the text between two matches
    int64_t at, end;
    int is_match;
};

static void level_start(struct split_level *l, const char *text, int64_t n)
{
    *l = (struct split_level){.text = text, .n = n, .match = -1, .last_match_end = -1};
}

static enum err search_regex(struct regex *r, struct split_level *l)
{
    while (l->search <= l->n) {
        int64_t at, end;
        TRY(regex_find(r, l->text, l->n, l->search, &at, &end));
        if (at < 0)
            break;
        if (at == end && end == l->last_match_end) { // no empty match right after a match
            int n_char = 1;
            if (l->search < l->n)
                utf8_at(l->text + l->search, l->n - l->search, &n_char);
            l->search += n_char;
            continue;
        }
        l->match = at;
        l->match_end = l->search = l->last_match_end = end;
        return OK;
    }
    l->done = 1;
    return OK;
}

static void search_string(const char *s, int64_t n, struct split_level *l)
{
    const char *hit = memmem(l->text + l->search, (size_t)(l->n - l->search), s, (size_t)n);
    if (!hit) {
        l->done = 1;
        return;
    }
    l->match = hit - l->text;
    l->match_end = l->search = l->match + n;
}

static void search_char(int (*wanted)(int32_t), struct split_level *l)
{
    int n_char;
    for (int64_t i = l->search; i < l->n; i += n_char) {
        if (wanted(utf8_at(l->text + i, l->n - i, &n_char))) {
            l->match = i;
            l->match_end = l->search = i + n_char;
            return;
        }
    }
    l->done = 1;
}

static enum err level_search(struct tokenizer *tok, int step, struct split_level *l)
{
    const struct token_step *s = &tok->steps[step];
    switch ((enum step_kind)s->kind) {
    case STEP_SPLIT_REGEX:
        return search_regex(tok->regex[step], l);
    case STEP_SPLIT_STRING:
        search_string(tok->text + s->a.at, s->a.n, l);
        return OK;
    case STEP_DIGITS:
        search_char(char_is_numeric, l);
        return OK;
    case STEP_PUNCTUATION:
        search_char(char_is_punctuation, l);
        return OK;
    case STEP_WHITESPACE:
        search_char(char_is_space, l);
        return OK;
    default:
        return fail(ERR_INTERNAL, "tokenizer: step %u does not split", s->kind);
    }
}

/* *found = 0: the piece is finished. */
static enum err level_event(struct tokenizer *tok, int step, struct split_event *e, int *found)
{
    struct split_level *l = &tok->levels[step];
    if (l->has_next) {
        *e = (struct split_event){l->next_at, l->next_end, l->next_is_match};
        l->has_next = 0;
        *found = 1;
        return OK;
    }
    if (!l->done && l->match < 0)
        TRY(level_search(tok, step, l));
    int invert = (int)tok->steps[step].invert;
    *found = 1;
    if (l->match == l->prev) {
        *e = (struct split_event){l->match, l->match_end, !invert};
        l->match = -1;
    } else if (l->match >= 0) {
        *e = (struct split_event){l->prev, l->match, invert};
    } else if (l->prev < l->n) {
        *e = (struct split_event){l->prev, l->n, invert};
    } else {
        *found = 0;
        return OK;
    }
    l->prev = e->end;
    return OK;
}

static int joins(enum step_behavior b, int is_match, int next_is_match)
{
    switch (b) {
    case SPLIT_CONTIGUOUS:
        return is_match == next_is_match;
    case SPLIT_WITH_PREVIOUS:
        return !is_match && next_is_match;
    case SPLIT_WITH_NEXT:
        return is_match && !next_is_match;
    default:
        return 0;
    }
}

/* The next non-empty piece. */
static enum err level_next(struct tokenizer *tok, int step, struct split_event *piece, int *found)
{
    enum step_behavior b = (enum step_behavior)tok->steps[step].behavior;
    struct split_level *l = &tok->levels[step];
    for (;;) {
        TRY(level_event(tok, step, piece, found));
        if (!*found)
            return OK;
        if (b == SPLIT_REMOVED && piece->is_match)
            continue;
        int is_match = piece->is_match;
        while (b >= SPLIT_CONTIGUOUS) {
            struct split_event next;
            int more;
            TRY(level_event(tok, step, &next, &more));
            if (!more)
                break;
            if (!joins(b, is_match, next.is_match)) {
                l->has_next = 1;
                l->next_at = next.at;
                l->next_end = next.end;
                l->next_is_match = next.is_match;
                break;
            }
            piece->end = next.end;
            is_match = next.is_match;
        }
        if (piece->end > piece->at)
            return OK;
    }
}

static int step_changes(const struct tokenizer *tok, int step)
{
    uint32_t kind = tok->steps[step].kind;
    return kind == STEP_PREFIX_SPACE || kind == STEP_METASPACE;
}

/* Adds a space before a piece without one. */
static enum err prefix_put(struct tokenizer *tok, const char **text, int64_t *n)
{
    if ((*text)[0] == ' ')
        return OK;
    TRY(scratch_grow(tok, BUFFER_PREFIXED, *n + 1));
    char *copy = tok->buffers[BUFFER_PREFIXED].p;
    copy[0] = ' ';
    memcpy(copy + 1, *text, (size_t)*n);
    *text = copy;
    ++*n;
    return OK;
}

/* Replaces spaces by the step's own, and adds one in front as its scheme says. */
static enum err metaspace_put(struct tokenizer *tok, const struct token_step *s, int is_first,
                              const char **text, int64_t *n)
{
    const char *own = tok->text + s->a.at, *p = *text, *end = *text + *n;
    int64_t n_own = s->a.n, n_spaces = 0, n_out = 0;
    int has_own = *p == ' ' || (*n >= n_own && !memcmp(p, own, (size_t)n_own));
    int adds =
        !has_own && (s->behavior == PREPEND_ALWAYS || (s->behavior == PREPEND_FIRST && is_first));
    for (const char *at = p; (at = memchr(at, ' ', (size_t)(end - at))); at++)
        n_spaces++;
    TRY(scratch_grow(tok, BUFFER_PREFIXED, *n + (n_spaces + adds) * n_own));
    char *out = tok->buffers[BUFFER_PREFIXED].p;
    if (adds)
        memcpy(out, own, (size_t)n_own);
    n_out += adds ? n_own : 0;
    while (p < end) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        int64_t before = (space ? space : end) - p;
        memcpy(out + n_out, p, (size_t)before);
        n_out += before;
        p += before;
        if (!space)
            break;
        memcpy(out + n_out, own, (size_t)n_own);
        n_out += n_own;
        p++;
    }
    *text = out;
    *n = n_out;
    return OK;
}

static enum err word_encode(struct tokenizer *tok, const char *word, int64_t n,
                            struct token_sink *sink)
{
    return tok->head->model == MODEL_UNIGRAM ? unigram_encode(tok, word, n, sink)
                                             : bpe_encode(tok, word, n, sink);
}

/* Passes a piece to step `step`, or encodes it after the last step. is_first: the piece starts the
 * text; only used by a first step (token_steps.c). *level: set to the step that now has a piece to
 * cut, unchanged if none. */
static enum err piece_enter(struct tokenizer *tok, int step, const char *text, int64_t n,
                            int is_first, int *level, struct token_sink *sink)
{
    int n_steps = (int)tok->head->n_steps;
    if (step < n_steps && step_changes(tok, step)) {
        const struct token_step *s = &tok->steps[step++];
        TRY(s->kind == STEP_PREFIX_SPACE ? prefix_put(tok, &text, &n)
                                         : metaspace_put(tok, s, is_first, &text, &n));
    }
    if (step == n_steps)
        return word_encode(tok, text, n, sink);
    level_start(&tok->levels[step], text, n);
    *level = step;
    return OK;
}

enum err split_encode(struct tokenizer *tok, const char *text, int64_t n, struct token_sink *sink)
{
    if (n == 0)
        return OK;
    int level = -1;
    TRY(piece_enter(tok, tok->n_normalizers, text, n, sink->is_first, &level, sink));
    while (level >= tok->n_normalizers) {
        struct split_event piece;
        int found;
        if (step_changes(tok, level)) { // the step holds no piece
            level--;
            continue;
        }
        struct split_level *l = &tok->levels[level];
        TRY(level_next(tok, level, &piece, &found));
        if (found)
            TRY(piece_enter(tok, level + 1, l->text + piece.at, piece.end - piece.at, 0, &level,
                            sink));
        else
            level--;
    }
    return OK;
}
