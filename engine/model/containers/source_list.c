/* engine/model/containers/source_list.c - lists among a source's metadata, and values of any type;
 * see source.h.
 *
 * Refuses: GGUF's arrays of strings, which no family needs as a list. */
#include "engine/model/containers/source.h"

#include <math.h>

#include "engine/model/containers/gguf.h"
#include "engine/model/containers/hf.h"

enum err source_str_list(const struct source *s, const char *key, const char **out,
                         int64_t capacity, int64_t *n, int *found)
{
    char full[SOURCE_KEY_BYTES];
    *n = 0;
    *found = 0;
    if (s->kind == SOURCE_GGUF)
        return OK;
    return hf_str_array(s->impl, source_key(s, key, full, sizeof full), out, capacity, n, found);
}

enum err source_int_list(const struct source *s, const char *key, int64_t min, int64_t max,
                         int64_t *out, int64_t capacity, int64_t *n, int *found)
{
    char full[SOURCE_KEY_BYTES];
    *n = 0;
    *found = 0;
    if (s->kind == SOURCE_GGUF)
        return gguf_int_list(s->impl, key, min, max, out, capacity, n, found);
    return hf_int_array(s->impl, source_key(s, key, full, sizeof full), min, max, out, capacity, n,
                        found);
}

enum err source_float_list(const struct source *s, const char *key, double *out, int64_t capacity,
                           int64_t *n, int *found)
{
    char full[SOURCE_KEY_BYTES];
    *n = 0;
    *found = 0;
    if (s->kind == SOURCE_GGUF)
        return gguf_float_list(s->impl, key, out, capacity, n, found);
    const struct hf *hf = s->impl;
    return values_float_list(&hf->config, source_key(s, key, full, sizeof full), out, capacity, n,
                             found);
}

int source_null(const struct source *s, const char *key)
{
    char full[SOURCE_KEY_BYTES];
    return s->kind == SOURCE_HF && values_null(&((const struct hf *)s->impl)->config,
                                               source_key(s, key, full, sizeof full));
}

void source_weigh(const struct source *s, const char *key, double *out, int *found)
{
    char full[SOURCE_KEY_BYTES];
    int flag = 0;
    *found = 0;
    if (s->kind == SOURCE_HF) {
        values_weigh(&((const struct hf *)s->impl)->config, source_key(s, key, full, sizeof full),
                     out, found);
        return;
    }
    if (source_float(s, key, out, found) == OK)
        return;
    int is_flag = source_bool(s, key, &flag, found) == OK;
    *out = is_flag ? flag : NAN;
    *found = 1;
}
