/* engine/text/token_bpe.c - merges the pairs of one pre-token.
 *
 * Owns: the hash from (left, right) to merge, the first symbols of a word (bytes or characters, and
 * the treatment of unknown ones), and the merge loop. Refuses: finding words. Note: a candidate in
 * the heap becomes stale when a neighbour merges first. It is not removed but recognised, because
 * its rank differs from the rank of the pair now at its position; a full heap is rebuilt from the
 * existing pairs, so that it never needs more than one entry per symbol. */
#include "engine/text/token_impl.h"

#include <stdlib.h>
#include <string.h>

struct bpe { // a word being merged; symbols are boundary-tagged spans of byte positions
    const struct tokenizer *tok;
    uint32_t *id;   // [n] valid at the first position of a symbol, BPE_INSIDE after a merge
    uint32_t *span; // [n] positions of the symbol, stored at its first and at its last position
    uint32_t n;
    uint64_t *heap; // [n] rank << 32 | position, smallest first
    uint32_t n_heap;
};

#define BPE_INSIDE  UINT32_MAX
#define BPE_NO_RANK UINT32_MAX
#define BPE_NONE    UINT32_MAX // no such merge

static uint32_t pair_hash(const struct tokenizer *tok, uint32_t left, uint32_t right)
{
    return (uint32_t)mix64(((uint64_t)left << 32 | right) ^ tok->seed);
}

static uint32_t merge_find(const struct tokenizer *tok, uint32_t left, uint32_t right)
{
    for (uint32_t at = pair_hash(tok, left, right) & tok->merge_mask;;
         at = (at + 1) & tok->merge_mask) {
        uint32_t slot = tok->merge_slots[at];
        if (!slot)
            return BPE_NONE;
        const struct token_merge *m = &tok->merges[slot - 1];
        if (m->left == left && m->right == right)
            return slot - 1;
    }
}

/* The lowest rank merges first: the index in the list, or the score, highest first. */
static uint32_t merge_rank(const struct tokenizer *tok, uint32_t merge)
{
    if (merge == BPE_NONE || !(tok->head->flags & TOKEN_BY_SCORE))
        return merge;
    float score = (float)tok->scores[tok->merges[merge].result] + 0.0f; // no minus zero
    uint32_t bits;
    memcpy(&bits, &score, 4);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static int32_t piece_find(const struct tokenizer *tok, const char *bytes, int64_t n)
{
    uint32_t at = (uint32_t)hash_bytes(bytes, n, tok->seed) & tok->piece_mask;
    for (;; at = (at + 1) & tok->piece_mask) {
        uint32_t slot = tok->piece_slots[at];
        if (!slot)
            return -1;
        uint32_t start = tok->piece_at[slot - 1];
        if (tok->piece_at[slot] - start == n && !memcmp(tok->text + start, bytes, (size_t)n))
            return (int32_t)(slot - 1);
    }
}

/* The power of two that keeps n entries at a load of at most 3/4. */
static uint32_t slots_for(uint32_t n)
{
    uint64_t slots = 16;
    while (slots * 3 < (uint64_t)n * 4)
        slots *= 2;
    return (uint32_t)slots;
}

static enum err merges_hash(struct tokenizer *tok)
{
    uint32_t n_slots = slots_for(tok->head->n_merges);
    tok->merge_slots = calloc(n_slots, sizeof *tok->merge_slots);
    if (!tok->merge_slots)
        return fail(ERR_FIT, "tokenizer: no memory for %u merges", tok->head->n_merges);
    tok->n_bytes += (int64_t)n_slots * 4;
    tok->merge_mask = n_slots - 1;
    for (uint32_t rank = 0; rank < tok->head->n_merges; rank++) {
        const struct token_merge *m = &tok->merges[rank];
        uint32_t at = pair_hash(tok, m->left, m->right) & tok->merge_mask;
        for (; tok->merge_slots[at]; at = (at + 1) & tok->merge_mask) {
            const struct token_merge *other = &tok->merges[tok->merge_slots[at] - 1];
            if (other->left == m->left && other->right == m->right)
                break; // listed twice: the later one counts, as in the library
        }
        tok->merge_slots[at] = rank + 1;
    }
    return OK;
}

static enum err pieces_hash(struct tokenizer *tok)
{
    uint32_t n_vocab = tok->head->n_vocab;
    uint32_t n_slots = slots_for(n_vocab);
    tok->piece_slots = calloc(n_slots, sizeof *tok->piece_slots);
    if (!tok->piece_slots)
        return fail(ERR_FIT, "tokenizer: no memory for %u tokens", n_vocab);
    tok->n_bytes += (int64_t)n_slots * 4;
    tok->piece_mask = n_slots - 1;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if ((tok->piece_kind[id] & PIECE_KIND_MASK) != PIECE_BPE)
            continue;
        const char *bytes = tok->text + tok->piece_at[id];
        int64_t n = tok->piece_at[id + 1] - tok->piece_at[id];
        uint32_t at = (uint32_t)hash_bytes(bytes, n, tok->seed) & tok->piece_mask;
        while (tok->piece_slots[at])
            at = (at + 1) & tok->piece_mask;
        tok->piece_slots[at] = id + 1;
    }
    return OK;
}

/* 1: U+2581 is a piece of its own and no piece contains it after another character, so long words
 * may be cut before each such U+2581. */
static int cuts_find(const struct tokenizer *tok)
{
    const char *const space = SPM_SPACE;
    if (piece_find(tok, space, 3) < 0)
        return 0;
    for (uint32_t id = 0; id < tok->head->n_vocab; id++) {
        const char *p = tok->text + tok->piece_at[id];
        int64_t n = piece_bytes(tok, id), at = 0;
        if ((tok->piece_kind[id] & PIECE_KIND_MASK) != PIECE_BPE)
            continue;
        while (n - at >= 3 && !memcmp(p + at, space, 3))
            at += 3;
        if (n > at && memmem(p + at, (size_t)(n - at), space, 3))
            return 0;
    }
    return 1;
}

/* Finds the token of each byte, and of each ASCII character if symbols are characters. */
static void symbols_find(struct tokenizer *tok)
{
    int is_bytes = (tok->head->flags & TOKEN_BYTES) != 0;
    memset(tok->byte_id, 0xff, sizeof tok->byte_id);
    memset(tok->ascii_id, 0xff, sizeof tok->ascii_id);
    for (uint32_t id = 0; id < tok->head->n_vocab; id++) {
        const char *p = tok->text + tok->piece_at[id];
        int64_t n = piece_bytes(tok, id);
        int kind = tok->piece_kind[id] & PIECE_KIND_MASK;
        int byte = is_bytes || kind == PIECE_ADDED ? -1 : byte_token(p, n);
        if (byte >= 0)
            tok->byte_id[byte] = (int32_t)id;
        if (n != 1 || kind != PIECE_BPE)
            continue;
        if (is_bytes)
            tok->byte_id[(uint8_t)*p] = (int32_t)id;
        else if ((uint8_t)*p < 128)
            tok->ascii_id[(uint8_t)*p] = (int32_t)id;
    }
}

enum err bpe_open(struct tokenizer *tok)
{
    int is_bytes = (tok->head->flags & TOKEN_BYTES) != 0;
    symbols_find(tok);
    if (tok->head->model == MODEL_UNIGRAM)
        return OK;
    TRY(merges_hash(tok));
    if (!is_bytes || tok->head->flags & TOKEN_IGNORE_MERGES)
        TRY(pieces_hash(tok));
    tok->cuts_at_space = !is_bytes && cuts_find(tok);
    return OK;
}

int bytes_known(const struct tokenizer *tok, const char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (tok->byte_id[(uint8_t)p[i]] < 0)
            return 0;
    return 1;
}

void bpe_close(struct tokenizer *tok)
{
    free(tok->merge_slots);
    free(tok->piece_slots);
}

static void heap_down(struct bpe *w, uint32_t at)
{
    uint64_t key = w->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child])
            child++;
        if (key <= w->heap[child])
            break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = key;
}

static void heap_order(struct bpe *w)
{
    for (uint32_t at = w->n_heap / 2; at > 0; at--)
        heap_down(w, at - 1);
}

/* The merge of the pair at this position, if any. */
static uint32_t merge_at(const struct bpe *w, uint32_t at)
{
    if (w->id[at] == BPE_INSIDE)
        return BPE_NONE;
    uint32_t right = at + w->span[at];
    return right < w->n ? merge_find(w->tok, w->id[at], w->id[right]) : BPE_NONE;
}

/* Adds one candidate per existing pair. After k merges there are at most n - 1 - k pairs, so
 * rebuilds happen at doubling distances: O(n log n) in all. */
static void heap_fill(struct bpe *w)
{
    w->n_heap = 0;
    for (uint32_t at = 0; at < w->n; at += w->span[at]) {
        uint32_t rank = merge_rank(w->tok, merge_at(w, at));
        if (rank != BPE_NO_RANK)
            w->heap[w->n_heap++] = (uint64_t)rank << 32 | at;
    }
    heap_order(w);
}

static void heap_push(struct bpe *w, uint32_t position)
{
    uint32_t rank = merge_rank(w->tok, merge_at(w, position));
    if (rank == BPE_NO_RANK)
        return;
    if (w->n_heap == w->n) { // the new pair is included
        heap_fill(w);
        return;
    }
    uint64_t key = (uint64_t)rank << 32 | position;
    uint32_t at = w->n_heap++;
    for (; at > 0 && w->heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = key;
}

static void symbol_put(struct bpe *w, int32_t id)
{
    w->id[w->n] = (uint32_t)id;
    w->span[w->n++] = 1;
}

/* One symbol per byte. A byte missing in the vocabulary becomes the unknown token, or nothing if
 * there is none; its neighbours are then adjacent, as in the library. */
static void bytes_start(struct bpe *w, const char *word, int64_t n)
{
    int fuse = w->tok->head->flags & TOKEN_FUSE_UNK, after_unk = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t id = w->tok->byte_id[(uint8_t)word[i]];
        int is_unk = id < 0;
        if (is_unk)
            id = after_unk && fuse ? -1 : w->tok->head->unk;
        after_unk = is_unk;
        if (id >= 0)
            symbol_put(w, id);
    }
}

/* One symbol per character; a character without a token becomes its bytes' tokens, else the unknown
 * token, which is held back until the next known character, as in the library. */
static void chars_start(struct bpe *w, const char *word, int64_t n)
{
    const struct tokenizer *tok = w->tok;
    int fuse = tok->head->flags & TOKEN_FUSE_UNK,
        falls_back = tok->head->flags & TOKEN_BYTE_FALLBACK;
    int is_held = 0, n_char = 1;
    for (int64_t i = 0; i < n; i += n_char) {
        uint8_t c = (uint8_t)word[i];
        n_char = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        int32_t id = c < 0x80 ? tok->ascii_id[c] : piece_find(tok, word + i, n_char);
        if (id >= 0) {
            if (is_held)
                symbol_put(w, tok->head->unk);
            is_held = 0;
            symbol_put(w, id);
        } else if (falls_back && bytes_known(tok, word + i, n_char)) {
            for (int k = 0; k < n_char; k++)
                symbol_put(w, tok->byte_id[(uint8_t)word[i + k]]);
        } else if (tok->head->unk >= 0) {
            if (is_held && !fuse)
                symbol_put(w, tok->head->unk);
            is_held = 1;
        }
    }
    if (is_held)
        symbol_put(w, tok->head->unk);
}

static void word_merge(struct bpe *w)
{
    while (w->n_heap > 0) {
        uint64_t key = w->heap[0];
        w->heap[0] = w->heap[--w->n_heap];
        if (w->n_heap)
            heap_down(w, 0);
        uint32_t at = (uint32_t)key, merge = merge_at(w, at);
        if (merge_rank(w->tok, merge) != key >> 32)
            continue;
        uint32_t right = at + w->span[at];
        uint32_t total = w->span[at] + w->span[right];
        w->id[at] = w->tok->merges[merge].result;
        w->id[right] = BPE_INSIDE;
        w->span[at] = w->span[at + total - 1] = total;
        if (at > 0)
            heap_push(w, at - w->span[at - 1]);
        heap_push(w, at);
    }
}

static enum err word_encode(struct tokenizer *tok, const char *word, int64_t n,
                            struct token_sink *sink)
{
    TRY(scratch_grow(tok, BUFFER_BPE, n * 16));
    struct bpe w = {.tok = tok, .heap = tok->buffers[BUFFER_BPE].p};
    w.id = (uint32_t *)(w.heap + n);
    w.span = w.id + n;
    if (tok->head->flags & TOKEN_BYTES)
        bytes_start(&w, word, n);
    else
        chars_start(&w, word, n);
    heap_fill(&w);
    word_merge(&w);
    for (uint32_t at = 0; at < w.n; at += w.span[at])
        sink_put(sink, (int32_t)w.id[at]);
    return OK;
}

/* Where the word may be cut: before the first U+2581 that follows another character; n: nowhere. */
static int64_t word_cut(const char *word, int64_t n)
{
    int64_t at = 0;
    while (n - at >= 3 && !memcmp(word + at, SPM_SPACE, 3))
        at += 3;
    const char *next = at < n ? memmem(word + at, (size_t)(n - at), SPM_SPACE, 3) : NULL;
    return next ? next - word : n;
}

enum err bpe_encode(struct tokenizer *tok, const char *word, int64_t n, struct token_sink *sink)
{
    if (tok->head->flags & TOKEN_IGNORE_MERGES && n <= tok->piece_bytes_max) {
        int32_t id = piece_find(tok, word, n);
        if (id >= 0) {
            sink_put(sink, id);
            return OK;
        }
    }
    for (int64_t cut; n > 0; word += cut, n -= cut) {
        cut = tok->cuts_at_space ? word_cut(word, n) : n;
        TRY(word_encode(tok, word, cut, sink));
    }
    return OK;
}
