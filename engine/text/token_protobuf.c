/* engine/text/token_protobuf.c - tokenizer.model, SentencePiece's protobuf, into a draft.
 *
 * Owns: the wire format, as far as this file needs it, and the meaning of fields. Refuses: fields
 * of a wrong type, groups, and denormalizers (decoding other than replacing U+2581). Note: there is
 * one level of nested messages, so lengths are checked against the enclosing message without
 * recursion. Unknown fields are skipped, as protobuf requires. */
#include "engine/text/token_impl.h"

#include <math.h>
#include <string.h>

struct proto { // a message being read
    const uint8_t *start, *at, *end;
    const char *file, *where;
    int64_t base; // offset of `start` in the file
};

enum proto_wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct proto_field {
    uint32_t number;
    enum proto_wire wire;
    uint64_t value;       // WIRE_VARINT, WIRE_32, WIRE_64
    const uint8_t *bytes; // WIRE_BYTES
    int64_t n;
};

static enum err proto_fail(const struct proto *p, const char *what)
{
    return fail(ERR_INPUT, "%s: %s: byte %lld: %s", p->file, p->where,
                (long long)(p->base + (p->at - p->start)), what);
}

static enum err varint_next(struct proto *p, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p->at == p->end)
            return proto_fail(p, "ends inside a number");
        uint8_t b = *p->at++;
        if (shift == 63 && b > 1)
            break;
        *value |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return OK;
    }
    return proto_fail(p, "a number of more than 64 bits");
}

static enum err fixed_next(struct proto *p, int n, uint64_t *value)
{
    if (p->end - p->at < n)
        return proto_fail(p, "ends inside a number");
    *value = 0;
    for (int i = 0; i < n; i++)
        *value |= (uint64_t)p->at[i] << 8 * i;
    p->at += n;
    return OK;
}

/* The next field; *found 0: end of the message. */
static enum err proto_next(struct proto *p, struct proto_field *f, int *found)
{
    uint64_t key;
    *f = (struct proto_field){0};
    *found = p->at < p->end;
    if (!*found)
        return OK;
    TRY(varint_next(p, &key));
    if (key >> 3 == 0 || key >> 3 > (1u << 29) - 1)
        return proto_fail(p, "a field number is out of range");
    f->number = (uint32_t)(key >> 3);
    f->wire = (enum proto_wire)(key & 7);
    switch (key & 7) {
    case WIRE_VARINT:
        return varint_next(p, &f->value);
    case WIRE_64:
        return fixed_next(p, 8, &f->value);
    case WIRE_32:
        return fixed_next(p, 4, &f->value);
    case WIRE_BYTES:
        TRY(varint_next(p, &f->value));
        if (f->value > (uint64_t)(p->end - p->at))
            return proto_fail(p, "a field is longer than its message");
        f->bytes = p->at;
        f->n = (int64_t)f->value;
        p->at += f->n;
        return OK;
    default:
        return proto_fail(p, "a field has an unknown type");
    }
}

static enum err wire_is(const struct proto *p, const struct proto_field *f, enum proto_wire wire)
{
    return f->wire == wire ? OK : proto_fail(p, "a field has another type than the format says");
}

static struct proto inner(const struct proto *p, const struct proto_field *f, const char *where)
{
    return (struct proto){f->bytes, f->bytes, f->bytes + f->n,
                          p->file,  where,    p->base + (f->bytes - p->start)};
}

/* ---- SentencePiece's model ---- */

struct spm_text { // borrowed: the file
    const char *p;
    int64_t n;
};

struct spm_file {
    struct token_draft *d;
    struct spm spm;
    int64_t model_type, n_pieces, n_unknown, unk;
    struct spm_text unk_surface, bos_piece, eos_piece, charsmap;
};

static enum err text_take(const struct proto *p, const struct proto_field *f, struct spm_text *out)
{
    TRY(wire_is(p, f, WIRE_BYTES));
    *out = (struct spm_text){(const char *)f->bytes, f->n};
    return OK;
}

static enum err bool_take(const struct proto *p, const struct proto_field *f, int *out)
{
    TRY(wire_is(p, f, WIRE_VARINT));
    *out = f->value != 0;
    return OK;
}

/* An enum value; all values beyond those of the format become 99. */
static enum err enum_take(const struct proto *p, const struct proto_field *f, int64_t *out)
{
    TRY(wire_is(p, f, WIRE_VARINT));
    *out = f->value > 99 ? 99 : (int64_t)f->value;
    return OK;
}

static enum err trainer_read(struct spm_file *s, struct proto p)
{
    struct proto_field f;
    int found;
    for (;;) {
        TRY(proto_next(&p, &f, &found));
        if (!found)
            return OK;
        if (f.number == 3) {
            TRY(enum_take(&p, &f, &s->model_type));
        } else if (f.number == 24) {
            TRY(bool_take(&p, &f, &s->spm.has_spaces_last));
        } else if (f.number == 35) {
            TRY(bool_take(&p, &f, &s->spm.byte_fallback));
        } else if (f.number == 44) {
            TRY(text_take(&p, &f, &s->unk_surface));
        } else if (f.number == 46) {
            TRY(text_take(&p, &f, &s->bos_piece));
        } else if (f.number == 47) {
            TRY(text_take(&p, &f, &s->eos_piece));
        }
    }
}

static enum err normalizer_read(struct spm_file *s, struct proto p, int is_denormalizer)
{
    struct proto_field f;
    int found;
    for (;;) {
        TRY(proto_next(&p, &f, &found));
        if (!found)
            return OK;
        if (is_denormalizer) {
            if (f.number == 2 && f.n > 0)
                return proto_fail(&p, "unsupported denormalizer");
        } else if (f.number == 2) {
            TRY(text_take(&p, &f, &s->charsmap));
        } else if (f.number == 3) {
            TRY(bool_take(&p, &f, &s->spm.prefix));
        } else if (f.number == 4) {
            TRY(bool_take(&p, &f, &s->spm.trim));
        } else if (f.number == 5) {
            TRY(bool_take(&p, &f, &s->spm.escape));
        }
    }
}

static enum err piece_read(struct spm_file *s, struct proto p)
{
    struct proto_field f;
    struct spm_text text = {0};
    float score = 0;
    int64_t type = SPM_NORMAL;
    int found;
    for (;;) {
        TRY(proto_next(&p, &f, &found));
        if (!found)
            break;
        if (f.number == 1) {
            TRY(text_take(&p, &f, &text));
        } else if (f.number == 2) {
            uint32_t bits = (uint32_t)f.value;
            TRY(wire_is(&p, &f, WIRE_32));
            memcpy(&score, &bits, 4);
        } else if (f.number == 3) {
            TRY(enum_take(&p, &f, &type));
        }
    }
    if (text.n == 0)
        return proto_fail(&p, "a piece without text");
    if (type == SPM_UNKNOWN && s->n_unknown++ > 0)
        return proto_fail(&p, "a second unknown piece");
    if (type == SPM_UNUSED && s->spm.model == MODEL_BPE) // merges may pass through it
        return proto_fail(&p, "unsupported unused piece of BPE");
    if (type == SPM_UNKNOWN)
        s->unk = s->n_pieces;
    return spm_piece(s->d, &s->spm, s->n_pieces++, text.p, text.n, score, type);
}

/* Pass 0 reads the settings, pass 1 the pieces, which need the settings. */
static enum err model_pass(struct spm_file *s, const char *buf, int64_t n, int pass)
{
    const uint8_t *at = (const uint8_t *)buf;
    struct proto p = {at, at, at + n, s->d->file, "model", 0};
    struct proto_field f;
    int found;
    for (;;) {
        TRY(proto_next(&p, &f, &found));
        if (!found)
            return OK;
        if (f.number == 1 || f.number == 2 || f.number == 3 || f.number == 5)
            TRY(wire_is(&p, &f, WIRE_BYTES));
        if (pass == 1 && f.number == 1)
            TRY(piece_read(s, inner(&p, &f, "piece")));
        else if (pass == 0 && f.number == 2)
            TRY(trainer_read(s, inner(&p, &f, "trainer_spec")));
        else if (pass == 0 && (f.number == 3 || f.number == 5))
            TRY(normalizer_read(s, inner(&p, &f, "normalizer_spec"), f.number == 5));
    }
}

/* The id of BOS or EOS, by the trainer's name for it; -1 if that is no control piece. */
static enum err control_find(struct token_draft *d, struct spm_text name, int32_t *id)
{
    TRY(draft_find(d, name.p, name.n, id));
    if (*id >= 0 && !(d->pieces[*id].kind & PIECE_SPECIAL))
        *id = -1;
    return OK;
}

enum err token_load_spm(struct token_draft *d, const char *buf, int64_t n)
{
    struct spm_file s = {.d = d,
                         .spm = {.prefix = 1, .trim = 1, .escape = 1},
                         .model_type = 1,
                         .unk = -1,
                         .unk_surface = {" \xe2\x81\x87 ", 5},
                         .bos_piece = {"<s>", 3},
                         .eos_piece = {"</s>", 4}};
    TRY(model_pass(&s, buf, n, 0));
    if (s.model_type != 1 && s.model_type != 2)
        return fail(ERR_INPUT, "%s: unsupported model_type %lld (supported: 1 Unigram, 2 BPE)",
                    d->file, (long long)s.model_type);
    s.spm.model = s.model_type == 1 ? MODEL_UNIGRAM : MODEL_BPE;
    TRY(model_pass(&s, buf, n, 1));
    if (s.unk < 0)
        return fail(ERR_INPUT, "%s: no unknown piece", d->file);
    TRY(draft_place(d));
    TRY(draft_bytes(d, s.charsmap.p, s.charsmap.n, &d->charsmap));
    TRY(draft_text(d, s.unk_surface.p, s.unk_surface.n, &d->unk_text));
    TRY(control_find(d, s.bos_piece, &d->bos));
    TRY(control_find(d, s.eos_piece, &d->eos));
    return spm_finish(d, &s.spm, (int32_t)s.unk);
}
