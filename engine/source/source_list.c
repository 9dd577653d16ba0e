/* engine/source/source_list.c - lists among a source's metadata; see source.h.
 *
 * Owns: nothing. Refuses: GGUF arrays, which no family needs as a list of strings. */
#include "engine/source/source.h"

#include "engine/source/hf.h"

enum err source_str_list(const struct source *s, const char *key, const char **out,
                         int64_t capacity, int64_t *n, int *found)
{
    *n = 0;
    *found = 0;
    if (s->kind == SOURCE_GGUF)
        return OK;
    return hf_str_array(s->impl, key, out, capacity, n, found);
}
