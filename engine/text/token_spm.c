/* engine/text/token_spm.c - SentencePiece's vocabulary, into a draft.
 *
 * Owns: the meaning of piece types, and the settings that follow from a model: its single
 * normalizing step, the encoding of unknown characters, decoding. Refuses: file formats
 * (token_protobuf.c, token_gguf.c). Note: only normal pieces result from text by merging.
 * User-defined pieces are cut out of the normalized text first; the other types have special
 * meanings. */
#include "engine/text/token_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum err spm_piece(struct token_draft *d, const struct spm *m, int64_t id, const char *text,
                   int64_t n, double score, int64_t type)
{
    static const uint8_t kinds[] = {[SPM_NORMAL] = PIECE_BPE,
                                    [SPM_UNKNOWN] = PIECE_RAW,
                                    [SPM_CONTROL] = PIECE_RAW | PIECE_SPECIAL,
                                    [SPM_USER_DEFINED] = PIECE_RAW | PIECE_USER,
                                    [SPM_UNUSED] = PIECE_RAW,
                                    [SPM_BYTE] = PIECE_RAW};
    if (type < SPM_NORMAL || type > SPM_BYTE)
        return fail(ERR_INPUT, "%s: token %lld: unsupported type %lld", d->file, (long long)id,
                    (long long)type);
    if (!isfinite(score))
        return fail(ERR_INPUT, "%s: token %lld: its score is not a number", d->file, (long long)id);
    if (type == SPM_BYTE && (!m->byte_fallback || byte_token(text, n) < 0))
        return fail(ERR_INPUT, "%s: token %lld '%.*s': %s", d->file, (long long)id,
                    (int)min_i64(n, 60), text,
                    m->byte_fallback ? "not a byte <0xNN>" : "a byte, without byte_fallback");
    return draft_piece_put(d, id, text, n, kinds[type], score);
}

/* User-defined pieces are searched in normalized text. */
static enum err user_pieces(struct token_draft *d)
{
    for (int64_t id = 0; id < d->n_vocab; id++) {
        struct draft_piece *p = &d->pieces[id];
        char text[TOKEN_ADDED_BYTES_MAX]; // a copy: the pool moves when it grows
        if (!(p->kind & PIECE_USER))
            continue;
        p->kind &= (uint8_t)~PIECE_USER;
        memcpy(text, d->bytes + p->bytes.at, (size_t)min_i64(p->bytes.n, (int64_t)sizeof text));
        TRY(draft_added(d, id, text, p->bytes.n, ADDED_NORMALIZED, 0));
    }
    return OK;
}

static enum err bytes_all(struct token_draft *d)
{
    for (int b = 0; b < 256; b++) {
        char text[16];
        int32_t id;
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        TRY(draft_find(d, text, 6, &id));
        if (id < 0)
            return fail(ERR_INPUT, "%s: byte_fallback without a token %s", d->file, text);
    }
    return OK;
}

enum err spm_finish(struct token_draft *d, const struct spm *m, int32_t unk)
{
    d->model = m->model;
    d->has_scores = 1;
    d->unk = unk;
    d->flags = TOKEN_FUSE_UNK | TOKEN_BY_SCORE | (m->byte_fallback ? TOKEN_BYTE_FALLBACK : 0);
    d->decode = (m->byte_fallback ? DECODE_BYTE_CHAR : 0) |
                (m->prefix || m->trim ? DECODE_LEAD : 0) | (m->trim ? DECODE_LEAD_ALL : 0);
    TRY(draft_text(d, SPM_SPACE, 3, &d->space));
    TRY(draft_text(d, " ", 1, &d->shown));
    if (m->byte_fallback)
        TRY(bytes_all(d));
    TRY(user_pieces(d));
    uint32_t flags = (m->prefix ? SPM_PREFIX : 0) | (m->trim ? SPM_TRIM : 0) |
                     (m->escape ? SPM_ESCAPE : 0) | (m->has_spaces_last ? SPM_SUFFIX : 0);
    TRY(draft_step(d, (struct token_step){.kind = STEP_SENTENCEPIECE, .behavior = flags}));
    return m->model == MODEL_BPE ? draft_merges_all(d) : OK;
}
