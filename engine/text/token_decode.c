/* engine/text/token_decode.c - ids to text, at once or one by one.
 *
 * Owns: the decoded form of pieces, UTF-8 repair, dropped leading spaces. Refuses: context: a text
 * depends on its own ids only. Note: there is one decoder, the streaming one; decoding at once
 * feeds it. */
#include "engine/text/token_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- decoded pieces ---- */

int byte_token(const char *piece, int64_t n)
{
    int byte = 0;
    if (n != 6 || memcmp(piece, "<0x", 3) || piece[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = piece[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        byte = byte * 16 + digit;
    }
    return byte;
}

static int shown_byte(const struct tokenizer *tok, int32_t id)
{
    int has_bytes = tok->head->decode & (DECODE_BYTE_RUN | DECODE_BYTE_CHAR);
    if (!has_bytes)
        return -1;
    return byte_token(tok->text + tok->piece_at[id], piece_bytes(tok, (uint32_t)id));
}

/* Writes the piece with each `space` replaced by `shown` (out NULL: no); returns its length. */
static int64_t piece_show(const struct tokenizer *tok, uint32_t id, char *out)
{
    const struct token_head *h = tok->head;
    const char *p = tok->text + tok->piece_at[id], *space = tok->text + h->space.at;
    int64_t n = piece_bytes(tok, id), n_out = 0;
    int byte = shown_byte(tok, (int32_t)id);
    char byte_text = (char)byte;
    if (byte >= 0) {
        p = &byte_text;
        n = 1;
    } else if (h->unk_text.n > 0 && (int32_t)id == h->unk) {
        p = tok->text + h->unk_text.at;
        n = h->unk_text.n;
    }
    while (n > 0) {
        const char *hit = h->space.n > 0 ? memmem(p, (size_t)n, space, h->space.n) : NULL;
        int64_t before = hit ? hit - p : n;
        if (out)
            memcpy(out + n_out, p, (size_t)before);
        n_out += before;
        if (!hit)
            break;
        if (out)
            memcpy(out + n_out, tok->text + h->shown.at, h->shown.n);
        n_out += h->shown.n;
        p += before + h->space.n;
        n -= before + h->space.n;
    }
    return n_out;
}

enum err shown_open(struct tokenizer *tok)
{
    uint32_t n_vocab = tok->head->n_vocab;
    int64_t n = 0;
    if (tok->head->flags & TOKEN_BYTES)
        return OK;
    for (uint32_t id = 0; id < n_vocab; id++)
        n += piece_show(tok, id, NULL);
    if (n > TOKEN_BLOB_BYTES_MAX)
        return fail(ERR_CORRUPT, "tokenizer: its tokens exceed %lld bytes of text",
                    (long long)TOKEN_BLOB_BYTES_MAX);
    tok->shown_at = malloc(((size_t)n_vocab + 1) * sizeof *tok->shown_at);
    tok->shown = malloc((size_t)n + 1);
    if (!tok->shown_at || !tok->shown)
        return fail(ERR_FIT, "tokenizer: no memory for the text of %u tokens", n_vocab);
    tok->n_bytes += ((int64_t)n_vocab + 1) * 4 + n + 1;
    uint32_t at = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        tok->shown_at[id] = at;
        at += (uint32_t)piece_show(tok, id, tok->shown + at);
        tok->piece_bytes_max = max_i64(tok->piece_bytes_max, at - tok->shown_at[id]);
    }
    tok->shown_at[n_vocab] = at;
    return OK;
}

void shown_close(struct tokenizer *tok)
{
    free(tok->shown_at);
    free(tok->shown);
}

/* ---- decoding ---- */

struct text_sink {
    char *out;
    int64_t cap, n;
};

static void text_put(struct text_sink *s, const void *bytes, int64_t n)
{
    if (n <= s->cap - s->n)
        memcpy(s->out + s->n, bytes, (size_t)n);
    s->n += n;
}

static int char_bytes(uint8_t first) // 0: starts no character
{
    return first < 0x80                   ? 1
           : first < 0xc2 || first > 0xf4 ? 0
           : first < 0xe0                 ? 2
           : first < 0xf0                 ? 3
                                          : 4;
}

/* Whether b may follow the unfinished character in d. */
static int continues(const struct detokenizer *d, uint8_t b)
{
    uint8_t low = 0x80, high = 0xbf, first = d->pending[0];
    if (d->n_pending == 1) {
        low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    }
    return b >= low && b <= high;
}

/* Writes final bytes, less leading spaces to drop. */
static void out_put(struct detokenizer *d, const void *bytes, int64_t n, struct text_sink *s)
{
    const char *p = bytes;
    for (; d->n_strip > 0 && n > 0; p++, n--) {
        if (*p != ' ') {
            d->n_strip = 0;
            break;
        }
        d->n_strip--;
    }
    if (n == 0)
        return;
    text_put(s, p, n);
    d->has_text = 1;
}

static void bad_put(struct detokenizer *d, int n, struct text_sink *s)
{
    for (int i = 0; i < n; i++)
        out_put(d, "\xef\xbf\xbd", 3, s);
}

/* Ends an unfinished character: one broken part, or n_pending broken bytes. */
static void pending_drop(struct detokenizer *d, struct text_sink *s)
{
    int is_one = d->n_pending > 0 && d->tok->head->flags & TOKEN_BYTES;
    bad_put(d, is_one ? 1 : d->n_pending, s);
    d->n_pending = 0;
}

static void bytes_put(struct detokenizer *d, const uint8_t *bytes, int64_t n, struct text_sink *s)
{
    for (int64_t i = 0; i < n; i++) {
        uint8_t b = bytes[i];
        if (d->n_pending > 0 && continues(d, b)) {
            d->pending[d->n_pending++] = b;
            if (d->n_pending == char_bytes(d->pending[0])) {
                out_put(d, d->pending, d->n_pending, s);
                d->n_pending = 0;
            }
            continue;
        }
        pending_drop(d, s);
        if (char_bytes(b) == 1)
            out_put(d, &b, 1, s);
        else if (char_bytes(b) == 0)
            bad_put(d, 1, s);
        else
            d->pending[d->n_pending++] = b;
    }
}

/* Ends a run of byte tokens: valid text, or one U+FFFD per byte. */
static void run_end(struct detokenizer *d, struct text_sink *s)
{
    if (utf8_valid((const char *)d->pending, d->n_pending) == d->n_pending)
        out_put(d, d->pending, d->n_pending, s);
    else
        bad_put(d, d->n_pending, s);
    d->n_pending = d->is_broken = 0;
}

/* Adds a byte to the run. A run longer than the buffer is judged so far: whole characters are
 * written, and a broken one makes all that follows broken. */
static void run_put(struct detokenizer *d, uint8_t byte, struct text_sink *s)
{
    if (d->is_broken) {
        bad_put(d, 1, s);
        return;
    }
    if (d->n_pending == DETOKENIZER_PENDING_MAX) {
        int n_valid = (int)utf8_valid((const char *)d->pending, d->n_pending);
        if (d->n_pending - n_valid > 3) {
            bad_put(d, d->n_pending + 1, s);
            d->n_pending = 0;
            d->is_broken = 1;
            return;
        }
        out_put(d, d->pending, n_valid, s);
        d->n_pending -= n_valid;
        memmove(d->pending, d->pending + n_valid, (size_t)d->n_pending);
    }
    d->pending[d->n_pending++] = byte;
}

static void end_put(struct detokenizer *d, struct text_sink *s)
{
    if (d->tok->head->decode & DECODE_BYTE_RUN)
        run_end(d, s);
    else
        pending_drop(d, s);
}

/* Metaspace: writes the first token without any `space`. */
static void bare_put(struct detokenizer *d, int32_t id, struct text_sink *s)
{
    const struct token_head *h = d->tok->head;
    const char *p = d->tok->text + d->tok->piece_at[id], *space = d->tok->text + h->space.at;
    int64_t n = piece_bytes(d->tok, (uint32_t)id);
    while (n > 0) {
        const char *hit = memmem(p, (size_t)n, space, h->space.n);
        int64_t before = hit ? hit - p : n;
        out_put(d, p, before, s);
        if (!hit)
            break;
        p += before + h->space.n;
        n -= before + h->space.n;
    }
}

/* 1: the piece starts with the `space` that sentencepiece drops at the start of a text. */
static int has_lead(const struct detokenizer *d, int32_t id)
{
    const struct token_head *h = d->tok->head;
    return h->decode & DECODE_LEAD && !d->no_lead && !d->has_text && id != h->unk &&
           piece_bytes(d->tok, (uint32_t)id) >= h->space.n &&
           !memcmp(d->tok->text + d->tok->piece_at[id], d->tok->text + h->space.at, h->space.n);
}

static void id_put(struct detokenizer *d, int32_t id, struct text_sink *s)
{
    const struct token_head *h = d->tok->head;
    int64_t n;
    const char *p = tokenizer_piece(d->tok, id, &n);
    if (!p || (d->skip_special && tokenizer_is_special(d->tok, id)))
        return;
    int is_first = !d->has_token,
        is_byte = !(h->flags & TOKEN_BYTES) && shown_byte(d->tok, id) >= 0;
    d->has_token = 1;
    if (h->flags & TOKEN_BYTES || (is_byte && h->decode & DECODE_BYTE_CHAR)) {
        bytes_put(d, (const uint8_t *)p, n, s);
        return;
    }
    if (is_byte) {
        run_put(d, (uint8_t)*p, s);
        return;
    }
    end_put(d, s);
    if (is_first && h->decode & DECODE_FIRST_BARE) {
        bare_put(d, id, s);
    } else if (has_lead(d, id)) {
        d->no_lead = !(h->decode & DECODE_LEAD_ALL);
        out_put(d, p + h->shown.n, n - h->shown.n, s);
    } else {
        out_put(d, p, n, s);
    }
}

static enum err text_end(const struct text_sink *s, int64_t *n_out)
{
    *n_out = s->n;
    if (s->n > s->cap)
        return fail(ERR_ROW, "text: %lld bytes, more than the limit of %lld", (long long)s->n,
                    (long long)s->cap);
    return OK;
}

enum err tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, int64_t n,
                          int skip_special, char *out, int64_t cap, int64_t *n_out)
{
    struct detokenizer d;
    struct text_sink s = {.out = out, .cap = cap};
    detokenizer_init(&d, tok, skip_special);
    for (int64_t i = 0; i < n; i++)
        id_put(&d, ids[i], &s);
    end_put(&d, &s);
    return text_end(&s, n_out);
}

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, int skip_special)
{
    *d = (struct detokenizer){
        .tok = tok, .skip_special = skip_special, .n_strip = (int)tok->head->n_strip};
}

enum err detokenizer_feed(struct detokenizer *d, int32_t id, char *out, int64_t cap, int64_t *n_out)
{
    struct detokenizer after = *d;
    struct text_sink s = {.out = out, .cap = cap};
    id_put(&after, id, &s);
    TRY(text_end(&s, n_out));
    *d = after;
    return OK;
}

enum err detokenizer_flush(struct detokenizer *d, char *out, int64_t cap, int64_t *n_out)
{
    struct detokenizer after = *d;
    struct text_sink s = {.out = out, .cap = cap};
    end_put(&after, &s);
    TRY(text_end(&s, n_out));
    detokenizer_init(d, d->tok, d->skip_special);
    return OK;
}

int64_t tokenizer_feed_max(const struct tokenizer *tok)
{
    return (tok->piece_bytes_max + DETOKENIZER_PENDING_MAX) * 3; // each byte may become U+FFFD
}
