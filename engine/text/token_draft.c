/* engine/text/token_draft.c - the tokenizer being read from a model's files, and its blob.
 *
 * Owns: spelling (byte alphabet to bytes), checks that all sources share, the layout of the blob.
 * Refuses: file formats (token_json.c, token_dir.c etc.). Note: a vocabulary may lack bytes
 * (SmolLM2's lacks 21). That is no error: such a byte becomes the unknown token, or nothing, as in
 * the library. */
#include "engine/text/token_impl.h"

#include <stdlib.h>
#include <string.h>

void draft_init(struct token_draft *d, const char *file)
{
    *d = (struct token_draft){.file = file, .bos = -1, .eos = -1, .unk = -1};
    d->seed = mix64((uint64_t)clock_ns() ^ (uint64_t)(uintptr_t)d);
}

void draft_close(struct token_draft *d)
{
    free(d->bytes);
    free(d->text);
    free(d->entries);
    free(d->pieces);
    free(d->slots);
    free(d->merges);
    free(d->added);
    *d = (struct token_draft){0};
}

/* Doubles an array of `size`-byte elements until it holds `need`. */
static enum err draft_grow(const struct token_draft *d, void **array, int64_t *cap, int64_t need,
                           int64_t size)
{
    if (need <= *cap)
        return OK;
    int64_t n = max_i64(need, max_i64(2 * *cap, 256));
    void *p = realloc(*array, (size_t)(n * size));
    if (!p)
        return fail(ERR_FIT, "%s: no memory for its tokenizer", d->file);
    *array = p;
    *cap = n;
    return OK;
}

/* Reserves n more bytes after the n_pool bytes of a pool. */
static enum err pool_reserve(const struct token_draft *d, char **pool, int64_t n_pool, int64_t *cap,
                             int64_t n)
{
    if (n > TOKEN_BLOB_BYTES_MAX - n_pool)
        return fail(ERR_INPUT, "%s: more than %lld bytes of token text", d->file,
                    (long long)TOKEN_BLOB_BYTES_MAX);
    return draft_grow(d, (void **)pool, cap, n_pool + n + 1, 1); // never NULL, even for n = 0
}

static enum err bytes_reserve(struct token_draft *d, int64_t n)
{
    return pool_reserve(d, &d->bytes, d->n_bytes, &d->bytes_cap, n);
}

enum err draft_text(struct token_draft *d, const char *text, int64_t n, struct token_span *span)
{
    if (utf8_valid(text, n) != n)
        return fail(ERR_INPUT, "%s: a string of the tokenizer is not UTF-8", d->file);
    return draft_bytes(d, text, n, span);
}

enum err draft_bytes(struct token_draft *d, const void *bytes, int64_t n, struct token_span *span)
{
    TRY(pool_reserve(d, &d->text, d->n_text, &d->text_cap, n));
    if (n > 0)
        memcpy(d->text + d->n_text, bytes, (size_t)n);
    *span = (struct token_span){(uint32_t)d->n_text, (uint32_t)n};
    d->n_text += n;
    return OK;
}

/* ---- spelling ---- */

/* The alphabet of byte-level vocabularies: printable Latin-1 is itself, the other 68 bytes, in
 * order, are U+0100 and up. -1: no byte. */
static int alphabet_byte(int32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return c;
    int32_t k = c - 256;
    if (k < 0 || k > 67)
        return -1;
    return k < 33 ? k : k < 67 ? k - 33 + 127 : 173;
}

/* Writes the bytes of `text` after the kept ones (n bytes must be reserved) and sets the kind; the
 * caller keeps them by adding bytes.n to n_bytes. */
static struct draft_piece spell(struct token_draft *d, const char *text, int64_t n)
{
    char *out = d->bytes + d->n_bytes;
    int64_t n_out = 0;
    int is_bytes = (d->flags & TOKEN_BYTES) != 0;
    for (int64_t i = 0; is_bytes && i < n;) {
        int n_char;
        int byte = alphabet_byte(utf8_at(text + i, n - i, &n_char));
        if (byte < 0) {
            memcpy(out, text, (size_t)n);
            return (struct draft_piece){{(uint32_t)d->n_bytes, (uint32_t)n}, PIECE_RAW, 0};
        }
        out[n_out++] = (char)byte;
        i += n_char;
    }
    if (is_bytes)
        return (struct draft_piece){{(uint32_t)d->n_bytes, (uint32_t)n_out}, PIECE_BPE, 0};
    if (n > 0)
        memcpy(out, text, (size_t)n);
    return (struct draft_piece){{(uint32_t)d->n_bytes, (uint32_t)n}, PIECE_BPE, 0};
}

/* ---- the hash of pieces ---- */

static uint32_t *slot_of(const struct token_draft *d, struct draft_piece p)
{
    const char *bytes = d->bytes + p.bytes.at;
    uint8_t kind = p.kind & PIECE_KIND_MASK;
    uint64_t hash = hash_bytes(bytes, p.bytes.n, d->seed + kind);
    for (int64_t at = (int64_t)(hash & (uint64_t)(d->n_slots - 1));;
         at = (at + 1) & (d->n_slots - 1)) {
        if (!d->slots[at])
            return &d->slots[at];
        const struct draft_piece *other = &d->pieces[d->slots[at] - 1];
        if ((other->kind & PIECE_KIND_MASK) == kind && other->bytes.n == p.bytes.n &&
            !memcmp(d->bytes + other->bytes.at, bytes, p.bytes.n))
            return &d->slots[at];
    }
}

static enum err slots_grow(struct token_draft *d)
{
    if (d->n_slots * 3 > (d->n_placed + 1) * 4)
        return OK;
    int64_t n = d->n_slots ? 2 * d->n_slots : 1024;
    uint32_t *old = d->slots;
    int64_t n_old = d->n_slots;
    d->slots = calloc((size_t)n, sizeof *d->slots);
    if (!d->slots) {
        d->slots = old;
        return fail(ERR_FIT, "%s: no memory for its tokenizer", d->file);
    }
    d->n_slots = n;
    for (int64_t i = 0; i < n_old; i++) {
        if (!old[i])
            continue;
        *slot_of(d, d->pieces[old[i] - 1]) = old[i];
    }
    free(old);
    return OK;
}

static enum err piece_set(struct token_draft *d, int64_t id, struct draft_piece p)
{
    if (id >= d->n_vocab) {
        TRY(draft_grow(d, (void **)&d->pieces, &d->pieces_cap, id + 1, sizeof *d->pieces));
        memset(d->pieces + d->n_vocab, 0, (size_t)(id + 1 - d->n_vocab) * sizeof *d->pieces);
        d->n_vocab = id + 1;
    }
    if (d->pieces[id].kind != PIECE_GAP)
        return fail(ERR_INPUT, "%s: token id %lld is used twice", d->file, (long long)id);
    TRY(slots_grow(d));
    uint32_t *slot = slot_of(d, p);
    if (*slot)
        return fail(ERR_INPUT, "%s: tokens %u and %lld have the same text", d->file, *slot - 1,
                    (long long)id);
    d->pieces[id] = p;
    *slot = (uint32_t)id + 1;
    d->n_placed++;
    return OK;
}

/* ---- vocabulary, merges, added tokens ---- */

static enum err entry_check(const struct token_draft *d, int64_t id, int64_t n)
{
    if (id < 0 || id >= TOKEN_VOCAB_MAX)
        return fail(ERR_INPUT, "%s: token id %lld is out of range [0, %d)", d->file, (long long)id,
                    TOKEN_VOCAB_MAX);
    if (n > TOKEN_PIECE_BYTES_MAX)
        return fail(ERR_INPUT, "%s: token %lld: %lld bytes (at most %d, UTF-8)", d->file,
                    (long long)id, (long long)n, TOKEN_PIECE_BYTES_MAX);
    if (d->n_entries >= TOKEN_VOCAB_MAX)
        return fail(ERR_INPUT, "%s: more than %d tokens", d->file, TOKEN_VOCAB_MAX);
    return OK;
}

static enum err entry_add(struct token_draft *d, int64_t id, struct draft_piece p)
{
    TRY(draft_grow(d, (void **)&d->entries, &d->entries_cap, d->n_entries + 1, sizeof *d->entries));
    d->n_bytes += p.bytes.n;
    d->entries[d->n_entries++] = (struct draft_entry){id, p};
    return OK;
}

static enum err not_utf8(const struct token_draft *d, int64_t id)
{
    return fail(ERR_INPUT, "%s: token %lld is not UTF-8", d->file, (long long)id);
}

enum err draft_token(struct token_draft *d, int64_t id, const char *text, int64_t n)
{
    TRY(entry_check(d, id, n));
    if (utf8_valid(text, n) != n)
        return not_utf8(d, id);
    if (n == 0) // an id without a token
        return OK;
    TRY(bytes_reserve(d, n));
    return entry_add(d, id, spell(d, text, n));
}

enum err draft_piece_put(struct token_draft *d, int64_t id, const char *bytes, int64_t n,
                         enum piece_kind kind, double score)
{
    TRY(entry_check(d, id, n));
    if (!(d->flags & TOKEN_BYTES) && utf8_valid(bytes, n) != n)
        return not_utf8(d, id);
    if (n == 0)
        return OK;
    if ((kind & PIECE_KIND_MASK) == PIECE_BPE && n > TOKEN_LOOKUP_BYTES_MAX)
        return fail(ERR_INPUT, "%s: unsupported token %lld: %lld bytes (at most %d)", d->file,
                    (long long)id, (long long)n, TOKEN_LOOKUP_BYTES_MAX);
    TRY(bytes_reserve(d, n));
    memcpy(d->bytes + d->n_bytes, bytes, (size_t)n);
    struct token_span span = {(uint32_t)d->n_bytes, (uint32_t)n};
    return entry_add(d, id, (struct draft_piece){span, (uint8_t)kind, score});
}

enum err draft_place(struct token_draft *d)
{
    int64_t max = -1;
    for (int64_t i = 0; i < d->n_entries; i++)
        max = max_i64(max, d->entries[i].id);
    if (max < 0)
        return fail(ERR_INPUT, "%s: the vocabulary is empty", d->file);
    if (max >= d->n_entries + TOKEN_GAPS_MAX)
        return fail(ERR_INPUT, "%s: token id %lld is out of range: %lld tokens", d->file,
                    (long long)max, (long long)d->n_entries);
    for (int64_t i = 0; i < d->n_entries; i++)
        TRY(piece_set(d, d->entries[i].id, d->entries[i].piece));
    free(d->entries);
    d->entries = NULL;
    d->n_entries = d->entries_cap = 0;
    return OK;
}

/* Also tries PIECE_ADDED if the model's own vocabulary has no such piece. */
static enum err piece_find(struct token_draft *d, const char *text, int64_t n, int with_added,
                           int32_t *id)
{
    *id = -1;
    if (n > TOKEN_PIECE_BYTES_MAX || utf8_valid(text, n) != n || d->n_slots == 0)
        return OK;
    TRY(bytes_reserve(d, n));
    struct draft_piece p = spell(d, text, n);
    *id = (int32_t)*slot_of(d, p) - 1;
    if (*id < 0 && !(d->flags & TOKEN_BYTES)) { // SentencePiece's other kinds
        p.kind = PIECE_RAW;
        *id = (int32_t)*slot_of(d, p) - 1;
        p.kind = PIECE_BPE;
    }
    if (*id < 0 && with_added && p.kind == PIECE_BPE) {
        p.kind = PIECE_ADDED;
        *id = (int32_t)*slot_of(d, p) - 1;
    }
    return OK;
}

enum err draft_find(struct token_draft *d, const char *text, int64_t n, int32_t *id)
{
    return piece_find(d, text, n, 1, id);
}

enum err draft_merge(struct token_draft *d, const char *left, int64_t n_left, const char *right,
                     int64_t n_right)
{
    char both[2 * TOKEN_PIECE_BYTES_MAX];
    long long rank = d->n_merges_read++;
    int32_t l = -1, r = -1, result = -1;
    if (rank >= TOKEN_MERGES_MAX)
        return fail(ERR_INPUT, "%s: more than %d merges", d->file, TOKEN_MERGES_MAX);
    TRY(piece_find(d, left, n_left, 0, &l));
    TRY(piece_find(d, right, n_right, 0, &r));
    if (l < 0 || r < 0)
        return fail(ERR_INPUT, "%s: merge %lld: '%.*s' is not in the vocabulary", d->file, rank,
                    (int)min_i64(l < 0 ? n_left : n_right, 100), l < 0 ? left : right);
    memcpy(both, left, (size_t)n_left);
    memcpy(both + n_left, right, (size_t)n_right);
    TRY(piece_find(d, both, n_left + n_right, 0, &result));
    if (result < 0)
        return fail(ERR_INPUT, "%s: merge %lld: '%.*s' is not in the vocabulary", d->file, rank,
                    (int)min_i64(n_left + n_right, 100), both);
    if (d->pieces[result].kind == PIECE_RAW) // unreachable by text, which is bytes in the alphabet
        return OK;
    TRY(draft_grow(d, (void **)&d->merges, &d->merges_cap, d->n_merges + 1, sizeof *d->merges));
    d->merges[d->n_merges++] = (struct token_merge){(uint32_t)l, (uint32_t)r, (uint32_t)result};
    return OK;
}

/* All splits of this piece into two pieces. */
static enum err merges_of(struct token_draft *d, int64_t result)
{
    struct draft_piece whole = d->pieces[result];
    int is_bytes = (d->flags & TOKEN_BYTES) != 0;
    for (uint32_t n_left = 1; n_left < whole.bytes.n; n_left++) {
        struct draft_piece left = whole, right = whole;
        if (!is_bytes && ((uint8_t)d->bytes[whole.bytes.at + n_left] & 0xc0) == 0x80)
            continue; // inside a character
        left.bytes.n = n_left;
        right.bytes = (struct token_span){whole.bytes.at + n_left, whole.bytes.n - n_left};
        uint32_t l = *slot_of(d, left), r = l ? *slot_of(d, right) : 0;
        if (!r)
            continue;
        if (d->n_merges == TOKEN_MERGES_MAX)
            return fail(ERR_INPUT, "%s: more than %d merges", d->file, TOKEN_MERGES_MAX);
        TRY(draft_grow(d, (void **)&d->merges, &d->merges_cap, d->n_merges + 1, sizeof *d->merges));
        d->merges[d->n_merges++] = (struct token_merge){l - 1, r - 1, (uint32_t)result};
    }
    return OK;
}

enum err draft_merges_all(struct token_draft *d)
{
    for (int64_t id = 0; id < d->n_vocab; id++)
        if ((d->pieces[id].kind & PIECE_KIND_MASK) == PIECE_BPE)
            TRY(merges_of(d, id));
    return OK;
}

enum err draft_merge_line(struct token_draft *d, const char *line, int64_t n)
{
    const char *space = memchr(line, ' ', (size_t)n);
    int64_t n_left = space ? space - line : n, n_right = space ? n - n_left - 1 : 0;
    if (n_left == 0 || n_right == 0 || memchr(space + 1, ' ', (size_t)n_right))
        return fail(ERR_INPUT, "%s: merge %lld: '%.*s' is not two tokens with a space between",
                    d->file, (long long)d->n_merges_read, (int)min_i64(n, 100), line);
    return draft_merge(d, line, n_left, space + 1, n_right);
}

enum err draft_added(struct token_draft *d, int64_t id, const char *text, int64_t n, uint32_t flags,
                     int special)
{
    long long k = d->n_added;
    int shown = (int)min_i64(n, 100);
    if (n <= 0 || n > TOKEN_ADDED_BYTES_MAX)
        return fail(ERR_INPUT, "%s: added token %lld: %lld bytes (1 to %d)", d->file, k,
                    (long long)n, TOKEN_ADDED_BYTES_MAX);
    if (id < -1 || id >= d->n_placed + TOKEN_GAPS_MAX || id >= TOKEN_VOCAB_MAX)
        return fail(ERR_INPUT, "%s: added token %lld '%.*s': id %lld is out of range", d->file, k,
                    shown, text, (long long)id);
    int32_t known;
    TRY(draft_find(d, text, n, &known));
    if (known >= 0 && id >= 0 && known != id)
        return fail(ERR_INPUT,
                    "%s: added token %lld '%.*s': id %lld differs from the vocabulary's %d",
                    d->file, k, shown, text, (long long)id, known);
    if (known < 0 && id < 0)
        return fail(ERR_INPUT, "%s: added token %lld '%.*s' is not in the vocabulary", d->file, k,
                    shown, text);
    struct token_span match;
    TRY(draft_text(d, text, n, &match));
    if (known < 0) {
        TRY(bytes_reserve(d, n));
        struct draft_piece p = spell(d, text, n);
        d->n_bytes += p.bytes.n;
        if (p.kind == PIECE_BPE)
            p.kind = PIECE_ADDED;
        TRY(piece_set(d, id, p));
    }
    int64_t at = known < 0 ? id : known;
    if (special)
        d->pieces[at].kind |= PIECE_SPECIAL;
    TRY(draft_grow(d, (void **)&d->added, &d->added_cap, d->n_added + 1, sizeof *d->added));
    d->added[d->n_added++] = (struct token_added){(uint32_t)at, flags, match};
    return OK;
}

/* ---- steps and special ids ---- */

enum err draft_step(struct token_draft *d, struct token_step step)
{
    if (d->n_steps == TOKEN_STEPS_MAX)
        return fail(ERR_INPUT, "%s: unsupported: more than %d normalizers and pre-tokenizers",
                    d->file, TOKEN_STEPS_MAX);
    if (d->n_byte_level)
        return fail(ERR_INPUT, "%s: unsupported: a pre-tokenizer after ByteLevel", d->file);
    if ((step.kind == STEP_REPLACE || step.kind == STEP_SPLIT_STRING) && step.a.n == 0)
        return fail(ERR_INPUT, "%s: unsupported: an empty pattern", d->file);
    if (step.kind == STEP_SPLIT_REGEX) {
        struct regex *r;
        TRY(regex_open(&r, d->text + step.a.at, step.a.n, d->file, ERR_INPUT));
        regex_close(r);
    }
    d->steps[d->n_steps++] = step;
    return OK;
}

enum err draft_byte_level(struct token_draft *d, int add_prefix_space, int use_regex)
{
    static const char pattern[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    if (add_prefix_space)
        TRY(draft_step(d, (struct token_step){.kind = STEP_PREFIX_SPACE}));
    if (use_regex) {
        struct token_step step = {.kind = STEP_SPLIT_REGEX};
        TRY(draft_text(d, pattern, (int64_t)strlen(pattern), &step.a));
        TRY(draft_step(d, step));
    }
    d->n_byte_level++;
    return OK;
}

enum err draft_extra(struct token_draft *d, int32_t *list, int *n_list, int64_t id,
                     const char *what)
{
    if (id < 0 || id >= d->n_vocab)
        return fail(ERR_INPUT, "%s: %s: token id %lld is outside the vocabulary of %lld", d->file,
                    what, (long long)id, (long long)d->n_vocab);
    if (*n_list == TOKEN_EXTRA_MAX)
        return fail(ERR_INPUT, "%s: %s: more than %d tokens", d->file, what, TOKEN_EXTRA_MAX);
    list[(*n_list)++] = (int32_t)id;
    return OK;
}

/* ---- the blob ---- */

static int added_order(const void *a, const void *b, void *arg)
{
    const struct token_added *x = a, *y = b;
    const char *text = arg;
    int x_late = (x->flags & ADDED_NORMALIZED) != 0, y_late = (y->flags & ADDED_NORMALIZED) != 0;
    if (x_late != y_late)
        return x_late - y_late;
    uint32_t n = x->match.n < y->match.n ? x->match.n : y->match.n;
    int order = memcmp(text + x->match.at, text + y->match.at, n);
    if (order)
        return order;
    if (x->match.n != y->match.n)
        return x->match.n < y->match.n ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->flags > y->flags ? -1 : x->flags < y->flags; // the one with more flags first
}

/* Sorts; a token listed twice counts once. */
static enum err added_sort(struct token_draft *d)
{
    if (d->n_added == 0)
        return OK;
    qsort_r(d->added, (size_t)d->n_added, sizeof *d->added, added_order, d->text);
    int64_t kept = 1;
    for (int64_t i = 1; i < d->n_added; i++) {
        const struct token_added *last = &d->added[kept - 1], *a = &d->added[i];
        int same = last->match.n == a->match.n && !((last->flags ^ a->flags) & ADDED_NORMALIZED) &&
                   !memcmp(d->text + last->match.at, d->text + a->match.at, a->match.n);
        if (same && last->id != a->id)
            return fail(ERR_INPUT, "%s: added tokens %u and %u have the same text", d->file,
                        last->id, a->id);
        if (!same)
            d->added[kept++] = *a;
    }
    d->n_added = kept;
    return OK;
}

static int stop_order(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void stops_sort(struct token_draft *d)
{
    qsort(d->stops, (size_t)d->n_stops, sizeof *d->stops, stop_order);
    int kept = 0;
    for (int i = 0; i < d->n_stops; i++)
        if (kept == 0 || d->stops[kept - 1] != d->stops[i])
            d->stops[kept++] = d->stops[i];
    d->n_stops = kept;
}

struct writer {
    uint8_t *out;
    int64_t n;
};

static void write_bytes(struct writer *w, const void *p, int64_t n)
{
    if (n > 0)
        memcpy(w->out + w->n, p, (size_t)n);
    w->n += n;
}

static struct token_head blob_head(const struct token_draft *d, int64_t n_added, int64_t n_pieces)
{
    struct token_head h = {
        .magic = TOKEN_MAGIC,
        .version = TOKEN_VERSION,
        .n_vocab = (uint32_t)d->n_vocab,
        .n_merges = (uint32_t)d->n_merges,
        .n_added = (uint32_t)n_added,
        .n_steps = (uint32_t)d->n_steps,
        .n_prefix = (uint32_t)d->n_prefix,
        .n_suffix = (uint32_t)d->n_suffix,
        .n_stops = (uint32_t)d->n_stops,
        .flags = d->flags,
        .model = d->model,
        .decode = d->decode,
        .n_strip = d->n_strip,
        .n_scores = d->has_scores ? (uint32_t)d->n_vocab : 0,
        .bos = d->bos,
        .eos = d->eos,
        .unk = d->unk,
        .has_template = (uint32_t)d->has_template,
        .bos_text = d->bos_text,
        .eos_text = d->eos_text,
        .chat_template = d->chat_template,
        .space = d->space,
        .shown = d->shown,
        .unk_text = d->unk_text,
        .charsmap = d->charsmap,
    };
    for (int64_t i = 0; i < n_added; i++)
        h.n_added_raw += !(d->added[i].flags & ADDED_NORMALIZED);
    h.n_text = (uint32_t)(n_pieces + d->n_text); // the draft's pool follows the pieces
    h.n_bytes = sizeof h + 8ull * h.n_scores + 4 * ((uint64_t)h.n_vocab + 1) + 12ull * h.n_merges +
                sizeof(struct token_added) * h.n_added + sizeof(struct token_step) * h.n_steps +
                4ull * (h.n_prefix + h.n_suffix + h.n_stops) + h.n_vocab + h.n_text;
    return h;
}

/* Converts a span of the draft's pool to one of the blob's, whose pool starts with the pieces. */
static struct token_span moved(struct token_span s, int64_t by)
{
    return (struct token_span){s.n ? s.at + (uint32_t)by : 0, s.n};
}

static void blob_write(const struct token_draft *d, struct token_head h, int64_t n_pieces,
                       struct writer *w)
{
    h.bos_text = moved(h.bos_text, n_pieces);
    h.eos_text = moved(h.eos_text, n_pieces);
    h.chat_template = moved(h.chat_template, n_pieces);
    h.space = moved(h.space, n_pieces);
    h.shown = moved(h.shown, n_pieces);
    h.unk_text = moved(h.unk_text, n_pieces);
    h.charsmap = moved(h.charsmap, n_pieces);
    write_bytes(w, &h, sizeof h);
    for (uint32_t id = 0; id < h.n_scores; id++)
        write_bytes(w, &d->pieces[id].score, sizeof(double));
    uint32_t at = 0;
    for (int64_t id = 0; id <= d->n_vocab; id++) {
        write_bytes(w, &at, sizeof at);
        at += id < d->n_vocab ? d->pieces[id].bytes.n : 0;
    }
    write_bytes(w, d->merges, (int64_t)sizeof *d->merges * h.n_merges);
    for (uint32_t i = 0; i < h.n_added; i++) {
        struct token_added a = d->added[i];
        a.match = moved(a.match, n_pieces);
        write_bytes(w, &a, sizeof a);
    }
    for (int i = 0; i < d->n_steps; i++) {
        struct token_step s = d->steps[i];
        s.a = moved(s.a, n_pieces);
        s.b = moved(s.b, n_pieces);
        write_bytes(w, &s, sizeof s);
    }
    write_bytes(w, d->prefix, 4 * d->n_prefix);
    write_bytes(w, d->suffix, 4 * d->n_suffix);
    write_bytes(w, d->stops, 4 * d->n_stops);
    for (int64_t id = 0; id < d->n_vocab; id++)
        write_bytes(w, &d->pieces[id].kind, 1);
    for (int64_t id = 0; id < d->n_vocab; id++)
        write_bytes(w, d->bytes + d->pieces[id].bytes.at, d->pieces[id].bytes.n);
    write_bytes(w, d->text, d->n_text);
}

/* Makes and opens a blob with the first n_added added tokens. */
static enum err blob_make(const struct token_draft *d, int64_t n_added, void **blob,
                          int64_t *n_bytes, struct tokenizer **tok)
{
    int64_t n_pieces = 0;
    for (int64_t id = 0; id < d->n_vocab; id++)
        n_pieces += d->pieces[id].bytes.n;
    struct token_head h = blob_head(d, n_added, n_pieces);
    if (h.n_bytes > (uint64_t)TOKEN_BLOB_BYTES_MAX)
        return fail(ERR_INPUT, "%s: a tokenizer of %lld bytes (at most %lld)", d->file,
                    (long long)h.n_bytes, (long long)TOKEN_BLOB_BYTES_MAX);
    struct writer w = {.out = malloc((size_t)h.n_bytes)};
    if (!w.out)
        return fail(ERR_FIT, "%s: no memory for its tokenizer", d->file);
    blob_write(d, h, n_pieces, &w);
    CHECK(w.n == (int64_t)h.n_bytes);
    enum err e = tokenizer_open(tok, w.out, w.n, d->file);
    if (e != OK) {
        free(w.out);
        return e == ERR_CORRUPT ? fail(ERR_INPUT, "%s", err_text()) : e;
    }
    *blob = w.out;
    *n_bytes = w.n;
    return OK;
}

/* Tokens marked normalized are searched in normalized text, so their own text is normalized. They
 * also decode to it, as in the library, unless the model's own vocabulary has them. */
static enum err added_change(struct token_draft *d, struct token_added *a, const char *text,
                             int64_t n)
{
    TRY(draft_text(d, text, n, &a->match));
    struct draft_piece *piece = &d->pieces[a->id];
    if ((piece->kind & PIECE_KIND_MASK) == PIECE_BPE)
        return OK;
    TRY(bytes_reserve(d, n));
    struct draft_piece p = spell(d, text, n);
    d->n_bytes += p.bytes.n;
    p.kind = p.kind == PIECE_BPE ? PIECE_ADDED : PIECE_RAW;
    p.kind |= piece->kind & PIECE_SPECIAL;
    *piece = p;
    return OK;
}

static enum err added_normalize(struct token_draft *d)
{
    int64_t n_normalized = 0;
    for (int64_t i = 0; i < d->n_added; i++)
        n_normalized += (d->added[i].flags & ADDED_NORMALIZED) != 0;
    if (n_normalized == 0 || d->n_steps == 0 || d->steps[0].kind >= STEP_SPLIT_REGEX ||
        d->steps[0].kind == STEP_SENTENCEPIECE) // its pieces are stored normalized
        return OK;
    void *blob = NULL;
    int64_t n_bytes;
    struct tokenizer *tok;
    TRY(blob_make(d, 0, &blob, &n_bytes, &tok));
    enum err e = OK;
    for (int64_t i = 0; i < d->n_added && e == OK; i++) {
        struct token_added *a = &d->added[i];
        const char *out;
        int64_t n_out;
        if (!(a->flags & ADDED_NORMALIZED))
            continue;
        e = norm_run(tok, d->text + a->match.at, a->match.n, 1, &out, &n_out);
        if (e == OK && (n_out == 0 || n_out > TOKEN_ADDED_BYTES_MAX))
            e = fail(ERR_INPUT, "%s: added token %u: %lld bytes when normalized (1 to %d)", d->file,
                     a->id, (long long)n_out, TOKEN_ADDED_BYTES_MAX);
        if (e == OK && (n_out != a->match.n || memcmp(out, d->text + a->match.at, (size_t)n_out)))
            e = added_change(d, a, out, n_out);
    }
    tokenizer_close(tok);
    free(blob);
    return e;
}

/* Templates need BOS and EOS as text: the piece's text, if only the id is known. */
static enum err special_text(struct token_draft *d, int32_t id, struct token_span *text)
{
    if (id < 0 || text->n > 0)
        return OK;
    struct token_span piece = d->pieces[id].bytes;
    return draft_text(d, d->bytes + piece.at, piece.n, text);
}

/* Checks that the vocabulary can encode any text. */
static enum err symbols_check(const struct token_draft *d)
{
    int is_bytes = (d->flags & TOKEN_BYTES) != 0;
    if (is_bytes && d->n_byte_level != 1)
        return fail(ERR_INPUT, "%s: unsupported: %d ByteLevel pre-tokenizers", d->file,
                    d->n_byte_level);
    int64_t n_single = 0;
    for (int64_t id = 0; id < d->n_vocab; id++) {
        struct token_span s = d->pieces[id].bytes;
        int n_char = 1;
        if ((d->pieces[id].kind & PIECE_KIND_MASK) != PIECE_BPE)
            continue;
        if (!is_bytes)
            utf8_at(d->bytes + s.at, s.n, &n_char);
        n_single += s.n == (uint32_t)n_char;
    }
    return n_single > 0 ? OK
                        : fail(ERR_INPUT, "%s: no token is a single %s", d->file,
                               is_bytes ? "byte" : "character");
}

enum err draft_finish(struct token_draft *d, void **blob, int64_t *n_bytes)
{
    *blob = NULL;
    *n_bytes = 0;
    TRY(symbols_check(d));
    TRY(special_text(d, d->bos, &d->bos_text));
    TRY(special_text(d, d->eos, &d->eos_text));
    TRY(added_normalize(d));
    TRY(added_sort(d));
    stops_sort(d);
    struct tokenizer *tok = NULL;
    TRY(blob_make(d, d->n_added, blob, n_bytes, &tok));
    tokenizer_close(tok);
    return OK;
}
