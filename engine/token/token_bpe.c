/* engine/token/token_bpe.c - byte-pair merging of one pre-token.
 *
 * Owns: the hash from (left, right) to rank, and the merge loop. Refuses: anything about
 * characters; here a pre-token is bytes. The fact to know: a candidate in the heap goes stale when
 * a neighbour merges first. It is then not removed but recognised, because its rank is no longer
 * the rank of the pair at its position; when the heap is full the stale ones are swept out, so that
 * it never needs more than one slot per byte. */
#include "engine/token/token_impl.h"

#include <stdlib.h>
#include <string.h>

struct bpe { // a word in work; symbols are boundary-tagged spans of byte positions
    const struct tokenizer *tok;
    uint32_t *id;   // [n] valid at the first position of a symbol, BPE_INSIDE after a merge
    uint32_t *span; // [n] positions of the symbol, stored at its first and at its last position
    uint32_t n;
    uint64_t *heap; // [n] rank << 32 | position, smallest first
    uint32_t n_heap;
};

#define BPE_INSIDE  UINT32_MAX
#define BPE_NO_RANK UINT32_MAX

static uint32_t pair_hash(const struct tokenizer *tok, uint32_t left, uint32_t right)
{
    return (uint32_t)mix64(((uint64_t)left << 32 | right) ^ tok->seed);
}

static uint32_t merge_rank(const struct tokenizer *tok, uint32_t left, uint32_t right)
{
    for (uint32_t at = pair_hash(tok, left, right) & tok->merge_mask;;
         at = (at + 1) & tok->merge_mask) {
        uint32_t slot = tok->merge_slots[at];
        if (!slot)
            return BPE_NO_RANK;
        const struct token_merge *m = &tok->merges[slot - 1];
        if (m->left == left && m->right == right)
            return slot - 1;
    }
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
                break; // listed twice: the later rank counts, as in the library
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

enum err bpe_open(struct tokenizer *tok)
{
    for (int b = 0; b < 256; b++)
        tok->byte_id[b] = -1;
    for (uint32_t id = 0; id < tok->head->n_vocab; id++)
        if ((tok->piece_kind[id] & PIECE_KIND_MASK) == PIECE_BPE &&
            tok->piece_at[id + 1] - tok->piece_at[id] == 1)
            tok->byte_id[(uint8_t)tok->text[tok->piece_at[id]]] = (int32_t)id;
    TRY(merges_hash(tok));
    return tok->head->flags & TOKEN_IGNORE_MERGES ? pieces_hash(tok) : OK;
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

/* The rank of the pair that starts at this position now, if one does. */
static uint32_t rank_at(const struct bpe *w, uint32_t at)
{
    if (w->id[at] == BPE_INSIDE)
        return BPE_NO_RANK;
    uint32_t right = at + w->span[at];
    return right < w->n ? merge_rank(w->tok, w->id[at], w->id[right]) : BPE_NO_RANK;
}

/* Keeps live candidates only. After k merges at most n - 1 - k are live, so sweeps happen at
 * doubling distances: O(n log n) in all. */
static void heap_sweep(struct bpe *w)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->n_heap; i++)
        if (rank_at(w, (uint32_t)w->heap[i]) == w->heap[i] >> 32)
            w->heap[kept++] = w->heap[i];
    w->n_heap = kept;
    heap_order(w);
}

static void heap_push(struct bpe *w, uint32_t position)
{
    uint32_t rank = rank_at(w, position);
    if (rank == BPE_NO_RANK)
        return;
    if (w->n_heap == w->n)
        heap_sweep(w);
    uint64_t key = (uint64_t)rank << 32 | position;
    uint32_t at = w->n_heap++;
    for (; at > 0 && w->heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = key;
}

/* One symbol per byte. A byte that the vocabulary lacks becomes the unknown token, or nothing when
 * there is none: its neighbours then stand side by side, as in the library. */
static void word_start(struct bpe *w, const char *word, int64_t n)
{
    int fuse = w->tok->head->flags & TOKEN_FUSE_UNK, after_unk = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t id = w->tok->byte_id[(uint8_t)word[i]];
        int is_unk = id < 0;
        if (is_unk)
            id = after_unk && fuse ? -1 : w->tok->head->unk;
        after_unk = is_unk;
        if (id < 0)
            continue;
        w->id[w->n] = (uint32_t)id;
        w->span[w->n++] = 1;
    }
    if (w->n < 2)
        return;
    for (uint32_t at = 0; at + 1 < w->n; at++) {
        uint32_t rank = merge_rank(w->tok, w->id[at], w->id[at + 1]);
        if (rank != BPE_NO_RANK)
            w->heap[w->n_heap++] = (uint64_t)rank << 32 | at;
    }
    heap_order(w);
}

static void word_merge(struct bpe *w)
{
    while (w->n_heap > 0) {
        uint64_t key = w->heap[0];
        w->heap[0] = w->heap[--w->n_heap];
        if (w->n_heap)
            heap_down(w, 0);
        uint32_t at = (uint32_t)key, rank = (uint32_t)(key >> 32);
        if (rank_at(w, at) != rank)
            continue;
        uint32_t right = at + w->span[at];
        uint32_t total = w->span[at] + w->span[right];
        w->id[at] = w->tok->merges[rank].result;
        w->id[right] = BPE_INSIDE;
        w->span[at] = w->span[at + total - 1] = total;
        if (at > 0)
            heap_push(w, at - w->span[at - 1]);
        heap_push(w, at);
    }
}

enum err bpe_encode(struct tokenizer *tok, const char *word, int64_t n, struct token_sink *sink)
{
    if (tok->piece_slots) {
        int32_t id = piece_find(tok, word, n);
        if (id >= 0) {
            sink_put(sink, id);
            return OK;
        }
    }
    TRY(scratch_grow(tok, BUFFER_BPE, n * 16));
    struct bpe w = {.tok = tok, .heap = tok->buffers[BUFFER_BPE].p};
    w.id = (uint32_t *)(w.heap + n);
    w.span = w.id + n;
    word_start(&w, word, n);
    word_merge(&w);
    for (uint32_t at = 0; at < w.n; at += w.span[at])
        sink_put(sink, (int32_t)w.id[at]);
    return OK;
}
