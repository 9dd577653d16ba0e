/* engine/model/containers/source.c - see source.h. Owns the choice of the reader; all else is
 * forwarded.
 *
 * Note: a tensor of a format without an enum dtype may be listed but not read, so a family that
 * fails to check cannot misread its bytes. */
#include "engine/model/containers/source.h"

#include "engine/data/file.h"
#include "engine/model/containers/gguf.h"
#include "engine/model/containers/hf.h"
#include "engine/model/containers/quantized.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Whether the file is GGUF, by name or by its first bytes. */
static enum err gguf_look(const char *path, int *is_gguf)
{
    size_t n = strlen(path);
    *is_gguf = n >= 5 && strcmp(path + n - 5, ".gguf") == 0;
    if (*is_gguf)
        return OK;
    struct file f;
    TRY(file_open(&f, path));
    char magic[4];
    enum err e = OK;
    if (f.n_bytes >= 4) {
        e = file_read(&f, 0, 4, magic);
        *is_gguf = e == OK && memcmp(magic, "GGUF", 4) == 0;
    }
    file_close(&f);
    return e;
}

static enum err open_hf(struct source *s)
{
    struct hf *hf;
    TRY(hf_open(&hf, s->path));
    s->kind = SOURCE_HF;
    s->impl = hf;
    s->tensors = hf->weights.tensors;
    s->n_tensors = hf->weights.n_tensors;
    enum err e = quantized_open(&s->quantized, hf);
    if (e != OK)
        source_close(s);
    return e;
}

static enum err open_gguf(struct source *s)
{
    struct gguf *gguf;
    TRY(gguf_open(&gguf, s->path));
    s->kind = SOURCE_GGUF;
    s->impl = gguf;
    s->tensors = gguf_tensors(gguf, &s->n_tensors);
    return OK;
}

enum err source_open(struct source *s, const char *path)
{
    struct stat st;
    *s = (struct source){.path = path};
    if (stat(path, &st) != 0)
        return fail(ERR_INPUT, "%.512s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return open_hf(s);
    int is_gguf;
    TRY(gguf_look(path, &is_gguf));
    if (!is_gguf)
        return fail(ERR_INPUT, "%.512s: neither a Hugging Face directory nor a GGUF file", path);
    return open_gguf(s);
}

void source_close(struct source *s)
{
    quantized_close(s->quantized);
    if (s->impl && s->kind == SOURCE_HF)
        hf_close(s->impl);
    else if (s->impl)
        gguf_close(s->impl);
    *s = (struct source){0};
}

enum err source_check_ends(const struct source *s, int64_t vocab)
{
    int64_t ids[HF_EOS_MAX], n;
    return s->kind == SOURCE_HF ? hf_eos_ids(s->impl, vocab, ids, &n) : OK;
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    const struct source_tensor *t = quantized_find(s->quantized, name);
    if (t)
        return t;
    if (s->kind == SOURCE_HF)
        return safetensors_find(&((const struct hf *)s->impl)->weights, name);
    return gguf_find(s->impl, name);
}

int source_is_part(const struct source *s, const struct source_tensor *t)
{
    return s->kind == SOURCE_GGUF ? gguf_is_part(s->impl, t->name)
                                  : quantized_is_part(s->quantized, t->name);
}

const char *source_format(const struct source *s, const struct source_tensor *t)
{
    if (s->kind == SOURCE_HF && !quantized_has(t))
        return safetensors_format(&((const struct hf *)s->impl)->weights, t);
    return dtype_info(t->dtype)->name;
}

enum err source_read(const struct source *s, const struct source_tensor *t, int64_t offset,
                     int64_t n_bytes, void *buf)
{
    if (t->dtype == N_DTYPES)
        return fail(ERR_INPUT,
                    "%.512s: tensor %.200s: format %s (or more than %d dimensions) is "
                    "not supported",
                    s->path, t->name, source_format(s, t), SOURCE_DIMS_MAX);
    if (quantized_has(t))
        return quantized_read(s->quantized, t, offset, n_bytes, buf);
    if (s->kind == SOURCE_HF)
        return safetensors_read(&((const struct hf *)s->impl)->weights, t, offset, n_bytes, buf);
    return gguf_read(s->impl, t, offset, n_bytes, buf);
}

static const struct values *config_of(const struct source *s)
{
    return &((const struct hf *)s->impl)->config;
}

const char *source_key(const struct source *s, const char *key, char *buf, int64_t buf_bytes)
{
    if (!s->section)
        return key;
    snprintf(buf, (size_t)buf_bytes, "%s.%s", s->section, key);
    return buf;
}

enum err source_int(const struct source *s, const char *key, int64_t min, int64_t max, int64_t *out,
                    int *found)
{
    char full[SOURCE_KEY_BYTES];
    if (s->kind == SOURCE_HF)
        return values_int(config_of(s), source_key(s, key, full, sizeof full), min, max, out,
                          found);
    return gguf_int(s->impl, key, min, max, out, found);
}

enum err source_float(const struct source *s, const char *key, double *out, int *found)
{
    char full[SOURCE_KEY_BYTES];
    if (s->kind == SOURCE_HF)
        return values_float(config_of(s), source_key(s, key, full, sizeof full), out, found);
    return gguf_float(s->impl, key, out, found);
}

enum err source_bool(const struct source *s, const char *key, int *out, int *found)
{
    char full[SOURCE_KEY_BYTES];
    if (s->kind == SOURCE_HF)
        return values_bool(config_of(s), source_key(s, key, full, sizeof full), out, found);
    return gguf_bool(s->impl, key, out, found);
}

enum err source_str(const struct source *s, const char *key, const char **out, int64_t *n_bytes,
                    int *found)
{
    char full[SOURCE_KEY_BYTES];
    if (s->kind == SOURCE_HF)
        return values_str(config_of(s), source_key(s, key, full, sizeof full), out, n_bytes, found);
    return gguf_str(s->impl, key, out, n_bytes, found);
}
