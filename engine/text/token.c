/* engine/text/token.c - the open tokenizer: validates a blob, and encodes.
 *
 * Owns: the checks of tokenizer_open, added tokens in text, scratch memory. Refuses: trusting any
 * number of the blob. Note: added tokens are found in two passes: in the text as given, and, those
 * marked normalized, in the normalized text between the first ones. */
#include "engine/text/token_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

/* Sets pointers into the blob; returns 0 if its size disagrees with the counts. */
static int blob_layout(struct tokenizer *tok, uint64_t n_bytes)
{
    const struct token_head *h = tok->head;
    uint64_t at = sizeof *h;
    tok->scores = (const double *)(tok->blob + at);
    at += (uint64_t)h->n_scores * sizeof *tok->scores;
    tok->piece_at = (const uint32_t *)(tok->blob + at);
    at += ((uint64_t)h->n_vocab + 1) * sizeof *tok->piece_at;
    tok->merges = (const struct token_merge *)(tok->blob + at);
    at += (uint64_t)h->n_merges * sizeof *tok->merges;
    tok->added = (const struct token_added *)(tok->blob + at);
    at += (uint64_t)h->n_added * sizeof *tok->added;
    tok->steps = (const struct token_step *)(tok->blob + at);
    at += (uint64_t)h->n_steps * sizeof *tok->steps;
    tok->prefix = (const int32_t *)(tok->blob + at);
    tok->suffix = tok->prefix + h->n_prefix;
    tok->stops = tok->suffix + h->n_suffix;
    at += ((uint64_t)h->n_prefix + h->n_suffix + h->n_stops) * sizeof(int32_t);
    tok->piece_kind = tok->blob + at;
    at += h->n_vocab;
    tok->text = (const char *)(tok->blob + at);
    return at + h->n_text == n_bytes;
}

static enum err head_check(struct tokenizer *tok, int64_t n_bytes, const char *file)
{
    const struct token_head *h = tok->head;
    if (h->magic != TOKEN_MAGIC || h->version != TOKEN_VERSION)
        return fail(ERR_CORRUPT,
                    "%s: tokenizer: magic %08x, version %u, this program reads %08x, %u (pack the "
                    "model again)",
                    file, h->magic, h->version, TOKEN_MAGIC, TOKEN_VERSION);
    if (h->n_vocab == 0 || h->n_vocab > TOKEN_VOCAB_MAX || h->n_merges > TOKEN_MERGES_MAX ||
        h->n_added > h->n_vocab || h->n_added_raw > h->n_added || h->n_steps > TOKEN_STEPS_MAX ||
        h->n_prefix > TOKEN_EXTRA_MAX || h->n_suffix > TOKEN_EXTRA_MAX ||
        h->n_stops > TOKEN_EXTRA_MAX || h->n_text > TOKEN_BLOB_BYTES_MAX ||
        (h->n_scores != 0 && h->n_scores != h->n_vocab))
        return fail(ERR_CORRUPT, "%s: tokenizer: a count is out of range", file);
    if (h->n_bytes != (uint64_t)n_bytes || !blob_layout(tok, (uint64_t)n_bytes))
        return fail(ERR_CORRUPT,
                    "%s: tokenizer: %lld bytes do not match its counts (pack the model again)",
                    file, (long long)n_bytes);
    return OK;
}

uint32_t piece_bytes(const struct tokenizer *tok, uint32_t id)
{
    return tok->piece_at[id + 1] - tok->piece_at[id];
}

/* Pieces that are looked up at each position of a text must be short, and pieces that are not bytes
 * must be UTF-8. */
static int piece_ok(const struct tokenizer *tok, uint32_t id)
{
    const struct token_head *h = tok->head;
    int is_looked_up = (tok->piece_kind[id] & PIECE_KIND_MASK) == PIECE_BPE &&
                       (h->model == MODEL_UNIGRAM || h->flags & TOKEN_BY_SCORE);
    uint32_t n = piece_bytes(tok, id);
    return (!is_looked_up || n <= TOKEN_LOOKUP_BYTES_MAX) &&
           (h->n_scores == 0 || isfinite(tok->scores[id])) &&
           (h->flags & TOKEN_BYTES || utf8_valid(tok->text + tok->piece_at[id], n) == n);
}

static enum err pieces_check(struct tokenizer *tok, const char *file)
{
    const struct token_head *h = tok->head;
    for (uint32_t id = 0; id < h->n_vocab; id++) {
        uint32_t from = tok->piece_at[id], to = tok->piece_at[id + 1];
        int kind = tok->piece_kind[id] & PIECE_KIND_MASK;
        if (from > to || to > h->n_text || to - from > TOKEN_PIECE_BYTES_MAX)
            return fail(ERR_CORRUPT, "%s: tokenizer: token %u: bytes %u to %u of %u", file, id,
                        from, to, h->n_text);
        if (tok->piece_kind[id] > (PIECE_KIND_MASK | PIECE_SPECIAL) ||
            (kind == PIECE_GAP) != (from == to))
            return fail(ERR_CORRUPT, "%s: tokenizer: token %u: kind %u with %u bytes", file, id,
                        tok->piece_kind[id], to - from);
        if (!piece_ok(tok, id))
            return fail(ERR_CORRUPT, "%s: tokenizer: token %u is invalid", file, id);
        tok->piece_bytes_max = max_i64(tok->piece_bytes_max, to - from);
    }
    for (uint32_t rank = 0; rank < h->n_merges; rank++) {
        const struct token_merge *m = &tok->merges[rank];
        if (m->left >= h->n_vocab || m->right >= h->n_vocab || m->result >= h->n_vocab ||
            piece_bytes(tok, m->left) + piece_bytes(tok, m->right) != piece_bytes(tok, m->result))
            return fail(ERR_CORRUPT, "%s: tokenizer: merge %u: %u + %u is not %u", file, rank,
                        m->left, m->right, m->result);
    }
    return OK;
}

static int span_ok(const struct tokenizer *tok, struct token_span s)
{
    return s.at <= tok->head->n_text && s.n <= tok->head->n_text - s.at &&
           utf8_valid(tok->text + s.at, s.n) == s.n;
}

static int span_order(const struct tokenizer *tok, struct token_span a, struct token_span b)
{
    int order = memcmp(tok->text + a.at, tok->text + b.at, a.n < b.n ? a.n : b.n);
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

static enum err added_check(struct tokenizer *tok, const char *file)
{
    const struct token_head *h = tok->head;
    for (uint32_t i = 0; i < h->n_added; i++) {
        const struct token_added *a = &tok->added[i];
        int normalized = i >= h->n_added_raw;
        if (a->id >= h->n_vocab || a->flags >= 2 * ADDED_NORMALIZED ||
            !(a->flags & ADDED_NORMALIZED) != !normalized || !span_ok(tok, a->match) ||
            a->match.n == 0 || a->match.n > TOKEN_ADDED_BYTES_MAX)
            return fail(ERR_CORRUPT, "%s: tokenizer: added token %u is invalid", file, i);
        if (i > 0 && i != h->n_added_raw && span_order(tok, a[-1].match, a->match) >= 0)
            return fail(ERR_CORRUPT, "%s: tokenizer: added token %u is out of order", file, i);
        uint8_t *first = normalized ? tok->first_normalized : tok->first_raw;
        first[(uint8_t)tok->text[a->match.at]] = 1;
    }
    return OK;
}

/* Number of behaviours of a step of this kind; 0: unknown kind. */
static uint32_t behaviors_of(uint32_t kind)
{
    switch (kind) {
    case STEP_STRIP:
        return (STRIP_LEFT | STRIP_RIGHT) + 1;
    case STEP_SENTENCEPIECE:
        return SPM_FLAGS + 1;
    case STEP_METASPACE:
        return PREPEND_SCHEMES;
    default:
        return kind < STEP_KINDS ? SPLIT_BEHAVIORS : 0;
    }
}

static int step_ok(const struct tokenizer *tok, const struct token_step *s)
{
    int needs_a = s->kind == STEP_REPLACE || s->kind == STEP_REPLACE_REGEX ||
                  s->kind == STEP_SPLIT_STRING || s->kind == STEP_SPLIT_REGEX ||
                  s->kind == STEP_METASPACE;
    return s->behavior < behaviors_of(s->kind) && s->invert <= 1 && span_ok(tok, s->a) &&
           span_ok(tok, s->b) && !(needs_a && s->a.n == 0);
}

static enum err steps_open(struct tokenizer *tok, const char *file)
{
    int n_changing = 0; // splitting steps that change their piece share one buffer
    for (uint32_t i = 0; i < tok->head->n_steps; i++) {
        const struct token_step *s = &tok->steps[i];
        n_changing += s->kind == STEP_PREFIX_SPACE || s->kind == STEP_METASPACE;
        if (!step_ok(tok, s) || n_changing > 1 ||
            (i > 0 && s->kind < STEP_SPLIT_REGEX && s[-1].kind >= STEP_SPLIT_REGEX))
            return fail(ERR_CORRUPT, "%s: tokenizer: step %u is invalid", file, i);
        tok->n_normalizers += s->kind < STEP_SPLIT_REGEX;
        if (s->kind != STEP_SPLIT_REGEX && s->kind != STEP_REPLACE_REGEX)
            continue;
        TRY(regex_open(&tok->regex[i], tok->text + s->a.at, s->a.n, file, ERR_CORRUPT));
        tok->n_bytes += regex_bytes(tok->regex[i]);
    }
    return OK;
}

static int id_ok(const struct tokenizer *tok, int32_t id)
{
    return id >= 0 && (uint32_t)id < tok->head->n_vocab;
}

static enum err rest_check(const struct tokenizer *tok, const char *file)
{
    const struct token_head *h = tok->head;
    int sound = (h->bos == -1 || id_ok(tok, h->bos)) && (h->eos == -1 || id_ok(tok, h->eos)) &&
                (h->unk == -1 || id_ok(tok, h->unk)) && span_ok(tok, h->bos_text) &&
                span_ok(tok, h->eos_text) && span_ok(tok, h->chat_template) && h->has_template <= 1;
    uint32_t n_ids = h->n_prefix + h->n_suffix + h->n_stops; // three contiguous lists
    for (uint32_t i = 0; i < n_ids; i++)
        sound &= id_ok(tok, tok->prefix[i]);
    return sound ? OK : fail(ERR_CORRUPT, "%s: tokenizer: a special token is invalid", file);
}

static enum err rules_check(const struct tokenizer *tok, const char *file)
{
    const struct token_head *h = tok->head;
    int needs_scores = h->model == MODEL_UNIGRAM || h->flags & TOKEN_BY_SCORE;
    int needs_space = (h->decode & (DECODE_FIRST_BARE | DECODE_LEAD)) != 0;
    if (h->model >= MODELS || h->flags > TOKEN_FLAGS || h->decode > DECODE_FLAGS ||
        h->n_strip > DECODE_STRIP_MAX || (needs_scores && h->n_scores == 0) ||
        (h->model == MODEL_UNIGRAM && h->flags & TOKEN_BYTES) || !span_ok(tok, h->space) ||
        !span_ok(tok, h->shown) || !span_ok(tok, h->unk_text) || (needs_space && h->space.n == 0))
        return fail(ERR_CORRUPT, "%s: tokenizer: its rules are invalid", file);
    return charsmap_check(tok, file);
}

static enum err open_checked(struct tokenizer *tok, int64_t n_bytes, const char *file)
{
    TRY(head_check(tok, n_bytes, file));
    TRY(rules_check(tok, file));
    TRY(pieces_check(tok, file));
    TRY(added_check(tok, file));
    TRY(rest_check(tok, file));
    TRY(steps_open(tok, file));
    TRY(shown_open(tok));
    TRY(bpe_open(tok));
    return tok->head->model == MODEL_UNIGRAM ? unigram_open(tok) : OK;
}

enum err tokenizer_open(struct tokenizer **out, const void *blob, int64_t n_bytes, const char *file)
{
    *out = NULL;
    if (n_bytes < (int64_t)sizeof(struct token_head) || n_bytes > TOKEN_BLOB_BYTES_MAX)
        return fail(ERR_CORRUPT, "%s: tokenizer: %lld bytes (%zu to %lld)", file,
                    (long long)n_bytes, sizeof(struct token_head), (long long)TOKEN_BLOB_BYTES_MAX);
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (tok)
        tok->blob = malloc((size_t)n_bytes);
    if (!tok || !tok->blob) {
        free(tok);
        return fail(ERR_FIT, "%s: no memory for a tokenizer of %lld bytes", file,
                    (long long)n_bytes);
    }
    memcpy(tok->blob, blob, (size_t)n_bytes);
    tok->head = (const struct token_head *)tok->blob;
    tok->n_bytes = n_bytes + (int64_t)sizeof *tok;
    tok->scratch_max = TOKEN_SCRATCH_BYTES;
    tok->seed = mix64((uint64_t)clock_ns() ^ (uint64_t)(uintptr_t)tok);
    enum err e = open_checked(tok, n_bytes, file);
    if (e != OK) {
        tokenizer_close(tok);
        return e;
    }
    *out = tok;
    return OK;
}

static void scratch_free(struct tokenizer *tok)
{
    for (int k = 0; k < BUFFERS; k++)
        free(tok->buffers[k].p);
    memset(tok->buffers, 0, sizeof tok->buffers);
    tok->scratch_used = 0;
}

void tokenizer_close(struct tokenizer *tok)
{
    if (!tok)
        return;
    scratch_free(tok);
    for (int i = 0; i < TOKEN_STEPS_MAX; i++)
        regex_close(tok->regex[i]);
    bpe_close(tok);
    unigram_close(tok);
    shown_close(tok);
    free(tok->blob);
    free(tok);
}

int64_t tokenizer_bytes(const struct tokenizer *tok)
{
    return tok->n_bytes + tok->scratch_used;
}

void tokenizer_limit(struct tokenizer *tok, int64_t scratch_bytes_max)
{
    tok->scratch_max = scratch_bytes_max;
    scratch_free(tok);
}

enum err scratch_grow(struct tokenizer *tok, enum buffer_kind kind, int64_t n)
{
    struct token_buffer *b = &tok->buffers[kind];
    int64_t share = tok->scratch_max / (kind == BUFFER_BPE ? 2 : 8);
    if (n <= b->cap)
        return OK;
    if (n > share)
        return fail(ERR_ROW, "text: needs more than %lld bytes of tokenizer scratch (limit %lld)",
                    (long long)share, (long long)tok->scratch_max);
    int64_t cap = min_i64(share, max_i64(n, max_i64(2 * b->cap, 4096)));
    void *p = realloc(b->p, (size_t)cap);
    if (!p)
        return fail(ERR_FIT, "tokenizer: no memory for %lld bytes of scratch", (long long)cap);
    b->p = p;
    tok->scratch_used += cap - b->cap;
    b->cap = cap;
    return OK;
}

/* ---- encoding ---- */

struct added_set { // one of the two groups, sorted by bytes
    const struct token_added *at;
    uint32_t n;
    const uint8_t *first;
};

typedef enum err gap_fn(struct tokenizer *tok, const char *text, int64_t n,
                        struct token_sink *sink);

/* First in [lo, hi) whose next byte is >= c; all share `depth` bytes and are longer. */
static uint32_t added_bound(const struct tokenizer *tok, const struct added_set *set, uint32_t lo,
                            uint32_t hi, int64_t depth, int c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)tok->text[set->at[mid].match.at + depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest added token at the start of the text; NULL: none. */
static const struct token_added *
added_longest(const struct tokenizer *tok, const struct added_set *set, const char *text, int64_t n)
{
    const struct token_added *best = NULL;
    uint32_t lo = 0, hi = set->n;
    for (int64_t depth = 0;; depth++) {
        if (lo < hi && set->at[lo].match.n == depth)
            best = &set->at[lo++];
        if (lo >= hi || depth >= n)
            return best;
        int c = (uint8_t)text[depth];
        lo = added_bound(tok, set, lo, hi, depth, c);
        hi = added_bound(tok, set, lo, hi, depth, c + 1);
    }
}

int64_t user_piece_bytes(const struct tokenizer *tok, const char *text, int64_t n)
{
    const struct token_head *h = tok->head;
    struct added_set set = {tok->added + h->n_added_raw, h->n_added - h->n_added_raw,
                            tok->first_normalized};
    if (!set.first[(uint8_t)text[0]])
        return 0;
    const struct token_added *a = added_longest(tok, &set, text, n);
    return a ? a->match.n : 0;
}

static int stands_alone(const char *text, int64_t n, int64_t at, int64_t end)
{
    int n_char;
    return (at == 0 || !char_is_word(utf8_before(text, at, &n_char))) &&
           (end == n || !char_is_word(utf8_at(text + end, n - end, &n_char)));
}

static int64_t space_before(const char *text, int64_t at, int64_t from)
{
    int n_char;
    while (at > from && char_is_space(utf8_before(text, at, &n_char)))
        at -= n_char;
    return at;
}

static int64_t space_after(const char *text, int64_t n, int64_t at)
{
    int n_char;
    while (at < n && char_is_space(utf8_at(text + at, n - at, &n_char)))
        at += n_char;
    return at;
}

/* Emits the ids of added tokens, leftmost first, the longest of several at one position; passes the
 * text between them to `gap`. is_first: `text` starts the whole text. */
static enum err added_split(struct tokenizer *tok, const struct added_set *set, const char *text,
                            int64_t n, int is_first, gap_fn *gap, struct token_sink *sink)
{
    int64_t from = 0, spaces_end = 0; // from: start of the current gap
    for (int64_t i = 0; set->n > 0 && i < n;) {
        const struct token_added *a =
            set->first[(uint8_t)text[i]] ? added_longest(tok, set, text + i, n - i) : NULL;
        if (!a) {
            i++;
            continue;
        }
        int64_t at = i, end = i + a->match.n;
        i = end;
        if ((a->flags & ADDED_WORD) && !stands_alone(text, n, at, end))
            continue;
        if (a->flags & ADDED_LSTRIP)
            at = space_before(text, at, from);
        if (a->flags & ADDED_RSTRIP) // skips a run of spaces once, however many tokens are in it
            end = spaces_end = end < spaces_end ? spaces_end : space_after(text, n, end);
        sink->is_first = is_first && from == 0;
        if (from < at)
            TRY(gap(tok, text + from, at - from, sink));
        sink_put(sink, (int32_t)a->id);
        from = end;
    }
    sink->is_first = is_first && from == 0;
    return from < n ? gap(tok, text + from, n - from, sink) : OK;
}

static enum err gap_raw(struct tokenizer *tok, const char *text, int64_t n, struct token_sink *sink)
{
    const struct token_head *h = tok->head;
    struct added_set set = {tok->added + h->n_added_raw, h->n_added - h->n_added_raw,
                            tok->first_normalized};
    int is_first = sink->is_first;
    TRY(norm_run(tok, text, n, is_first, &text, &n));
    return added_split(tok, &set, text, n, is_first, split_encode, sink);
}

enum err tokenizer_encode(struct tokenizer *tok, const char *text, int64_t n_bytes, int add_special,
                          int32_t *ids, int64_t cap, int64_t *n_ids)
{
    struct token_sink sink = {.ids = ids, .cap = cap};
    *n_ids = 0;
    if (n_bytes > TOKEN_TEXT_BYTES_MAX)
        return fail(ERR_ROW, "text: %lld bytes (at most %lld)", (long long)n_bytes,
                    (long long)TOKEN_TEXT_BYTES_MAX);
    int64_t n_valid = utf8_valid(text, n_bytes);
    if (n_valid != n_bytes)
        return fail(ERR_ROW, "text: not UTF-8 at byte %lld", (long long)n_valid);
    for (uint32_t i = 0; add_special && i < tok->head->n_prefix; i++)
        sink_put(&sink, tok->prefix[i]);
    struct added_set set = {tok->added, tok->head->n_added_raw, tok->first_raw};
    TRY(added_split(tok, &set, text, n_bytes, 1, gap_raw, &sink));
    for (uint32_t i = 0; add_special && i < tok->head->n_suffix; i++)
        sink_put(&sink, tok->suffix[i]);
    *n_ids = sink.n;
    if (sink.n > cap)
        return fail(ERR_ROW, "text: %lld tokens, more than the limit of %lld", (long long)sink.n,
                    (long long)cap);
    return OK;
}

enum err tokenizer_encode_all(struct tokenizer *tok, const char *text, int64_t n_bytes,
                              int add_special, int32_t **ids, int64_t *n_ids)
{
    int64_t cap = min_i64(max_i64(n_bytes, 0), TOKEN_TEXT_BYTES_MAX) + 16;
    for (*ids = NULL;; cap = *n_ids) {
        int32_t *p = realloc(*ids, (size_t)cap * sizeof *p);
        enum err e = p ? tokenizer_encode(tok, text, n_bytes, add_special, p, cap, n_ids)
                       : fail(ERR_FIT, "no memory for token ids");
        *ids = p ? p : *ids;
        if (e == OK)
            return OK;
        if (e != ERR_ROW || *n_ids <= cap) {
            free(*ids);
            *ids = NULL;
            return e;
        }
    }
}

/* ---- properties of the vocabulary ---- */

int tokenizer_vocab(const struct tokenizer *tok)
{
    return (int)tok->head->n_vocab;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->head->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->head->eos;
}

int tokenizer_adds_bos(const struct tokenizer *tok)
{
    return tok->head->n_prefix > 0 && tok->head->bos >= 0 && tok->prefix[0] == tok->head->bos;
}

const int32_t *tokenizer_stops(const struct tokenizer *tok, int *n)
{
    *n = (int)tok->head->n_stops;
    return tok->stops;
}

static const char *span_text(const struct tokenizer *tok, struct token_span s, int exists,
                             int64_t *n)
{
    *n = exists ? s.n : 0;
    return exists ? tok->text + s.at : NULL;
}

const char *tokenizer_template(const struct tokenizer *tok, int64_t *n)
{
    return span_text(tok, tok->head->chat_template, (int)tok->head->has_template, n);
}

const char *tokenizer_bos_text(const struct tokenizer *tok, int64_t *n)
{
    return span_text(tok, tok->head->bos_text, tok->head->bos_text.n > 0, n);
}

const char *tokenizer_eos_text(const struct tokenizer *tok, int64_t *n)
{
    return span_text(tok, tok->head->eos_text, tok->head->eos_text.n > 0, n);
}

const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, int64_t *n)
{
    *n = 0;
    if (!id_ok(tok, id) || (tok->piece_kind[id] & PIECE_KIND_MASK) == PIECE_GAP)
        return NULL;
    if (tok->shown_at) {
        *n = tok->shown_at[id + 1] - tok->shown_at[id];
        return tok->shown + tok->shown_at[id];
    }
    *n = piece_bytes(tok, (uint32_t)id);
    return tok->text + tok->piece_at[id];
}

int tokenizer_is_special(const struct tokenizer *tok, int32_t id)
{
    return id_ok(tok, id) && (tok->piece_kind[id] & PIECE_SPECIAL) != 0;
}
