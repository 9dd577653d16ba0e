/* engine/text/token_unigram.c - cuts a pre-token into its most probable pieces.
 *
 * Owns: the pieces sorted by bytes, and the search for the best path (Viterbi). Refuses: finding
 * words. A character without a piece costs the lowest score less 10. Note: ties, and thus ids,
 * depend on the rounding of sums. `tokenizers` adds doubles, sentencepiece (0.2.3) floats; each is
 * reproduced. */
#include "engine/text/token_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN_PENALTY 10

struct path { // the best cut of the text up to here
    double score;
    uint32_t start; // start of the last piece; PATH_NONE: no path ends here
    int32_t id;
};

#define PATH_NONE UINT32_MAX

static int piece_order(const void *a, const void *b, void *arg)
{
    const struct tokenizer *tok = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint32_t n_x = piece_bytes(tok, x), n_y = piece_bytes(tok, y);
    int order =
        memcmp(tok->text + tok->piece_at[x], tok->text + tok->piece_at[y], n_x < n_y ? n_x : n_y);
    return order ? order : (n_x > n_y) - (n_x < n_y);
}

enum err unigram_open(struct tokenizer *tok)
{
    uint32_t n = 0, n_vocab = tok->head->n_vocab;
    tok->path_order = malloc((size_t)n_vocab * sizeof *tok->path_order);
    if (!tok->path_order)
        return fail(ERR_FIT, "tokenizer: no memory for %u tokens", n_vocab);
    tok->n_bytes += (int64_t)n_vocab * 4;
    double lowest = INFINITY;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if ((tok->piece_kind[id] & PIECE_KIND_MASK) != PIECE_BPE)
            continue;
        lowest = fmin(lowest, tok->scores[id]);
        tok->path_order[n++] = id;
    }
    qsort_r(tok->path_order, n, sizeof *tok->path_order, piece_order, tok);
    for (uint32_t i = 0, first = 0; first <= 256; first++) {
        while (i < n && (uint8_t)tok->text[tok->piece_at[tok->path_order[i]]] < first)
            i++;
        tok->path_first[first] = i;
    }
    tok->unk_score = lowest - UNKNOWN_PENALTY;
    if (tok->head->flags & TOKEN_BY_SCORE)
        tok->unk_score = (float)tok->unk_score;
    return OK;
}

void unigram_close(struct tokenizer *tok)
{
    free(tok->path_order);
}

/* First in [lo, hi) whose next byte is >= c; all share `depth` bytes and are longer. */
static uint32_t order_bound(const struct tokenizer *tok, uint32_t lo, uint32_t hi, uint32_t depth,
                            int c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)tok->text[tok->piece_at[tok->path_order[mid]] + depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Keeps the path over `candidate` if it is better than the one that ends there. */
static void path_offer(const struct tokenizer *tok, struct path *to, double candidate,
                       uint32_t start, int32_t id)
{
    if (tok->head->flags & TOKEN_BY_SCORE) // a sum of two floats in double rounds to the float sum
        candidate = (float)candidate;
    if (to->start == PATH_NONE || candidate > to->score)
        *to = (struct path){candidate, start, id};
}

/* Offers every piece that starts at `at`, and the unknown token if none is its first character. */
static void pieces_offer(const struct tokenizer *tok, const char *word, uint32_t at, uint32_t n,
                         uint32_t n_char, struct path *paths)
{
    uint8_t c = (uint8_t)word[at];
    uint32_t lo = tok->path_first[c], hi = tok->path_first[c + 1];
    double here = paths[at].score;
    int has_single = 0;
    for (uint32_t depth = 1; lo < hi; depth++) {
        for (; lo < hi; lo++) { // shortest first; a bad blob may list a piece twice
            uint32_t id = tok->path_order[lo];
            if (piece_bytes(tok, id) != depth)
                break;
            path_offer(tok, &paths[at + depth], tok->scores[id] + here, at, (int32_t)id);
            has_single |= depth == n_char;
        }
        if (at + depth == n)
            break;
        c = (uint8_t)word[at + depth];
        lo = order_bound(tok, lo, hi, depth, c);
        hi = order_bound(tok, lo, hi, depth, c + 1);
    }
    if (has_single)
        return;
    path_offer(tok, &paths[at + n_char], tok->unk_score + here, at, tok->head->unk);
}

/* Emits a run of unknown characters: its bytes, or one unknown token. */
static void unknown_put(const struct tokenizer *tok, const char *p, uint32_t n,
                        struct token_sink *sink)
{
    int falls_back = tok->head->flags & TOKEN_BYTE_FALLBACK && bytes_known(tok, p, n);
    if (!falls_back)
        sink_put(sink, tok->head->unk);
    for (uint32_t i = 0; falls_back && i < n; i++)
        sink_put(sink, tok->byte_id[(uint8_t)p[i]]);
}

enum err unigram_encode(struct tokenizer *tok, const char *word, int64_t n_word,
                        struct token_sink *sink)
{
    uint32_t n = (uint32_t)n_word; // TOKEN_TEXT_BYTES_MAX, expanded by normalizers
    TRY(scratch_grow(tok, BUFFER_BPE, (n_word + 1) * (int64_t)sizeof(struct path)));
    struct path *paths = tok->buffers[BUFFER_BPE].p;
    for (uint32_t i = 0; i <= n; i++)
        paths[i] = (struct path){.start = PATH_NONE};
    for (uint32_t at = 0, n_char; at < n; at += n_char) {
        uint8_t c = (uint8_t)word[at];
        n_char = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        pieces_offer(tok, word, at, n, n_char, paths);
    }
    for (uint32_t end = n; end > 0; end = paths[end].start) { // now score holds the next end
        if (paths[end].id < 0)
            return fail(ERR_ROW,
                        "text: a character has no token, and the model has no unknown token");
        paths[paths[end].start].score = end;
    }
    for (uint32_t at = 0, end; at < n; at = end) {
        end = (uint32_t)paths[at].score;
        int32_t id = paths[end].id;
        if (id != tok->head->unk) {
            sink_put(sink, id);
            continue;
        }
        while (end < n && paths[(uint32_t)paths[end].score].id == id)
            end = (uint32_t)paths[end].score;
        unknown_put(tok, word + at, end - at, sink);
    }
    return OK;
}
