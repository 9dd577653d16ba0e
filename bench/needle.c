/* bench/needle.c - see needle.h. */
#include "bench/needle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/commands.h"

#define ASKED "\nThe secret number is"

/* A key of five digits. */
static int needle_key(uint64_t seed, int64_t i)
{
    return 10000 + (int)(mix64(mix64(seed) + (uint64_t)i) % 90000);
}

/* The sentence in the text, the question, the answer. */
struct parts {
    int32_t *told, *asked, *key; // owned
    int64_t n_told, n_asked, n_key;
};

static enum err encode(const struct needles *n, const char *text, int32_t **ids, int64_t *n_ids)
{
    return tokenizer_encode_all(n->tokenizer, text, (int64_t)strlen(text), 0, ids, n_ids);
}

static enum err parts_make(const struct needles *n, int64_t i, struct parts *p)
{
    char told[128], key[16];
    int number = needle_key(n->seed, i);
    snprintf(told, sizeof told, ASKED " %d. Remember it: %d.\n", number, number);
    snprintf(key, sizeof key, " %d", number);
    TRY(encode(n, told, &p->told, &p->n_told));
    TRY(encode(n, ASKED, &p->asked, &p->n_asked));
    return encode(n, key, &p->key, &p->n_key);
}

static int64_t put(int32_t *to, int64_t at, const int32_t *ids, int64_t n)
{
    memcpy(to + at, ids, (size_t)n * sizeof *ids);
    return at + n;
}

/* The text around the needle is the first tokens of a window. */
static enum err row_make(const struct needles *n, int64_t i, int lost, const struct parts *p,
                         int64_t index, struct request *row)
{
    const int64_t filler = n->window - p->n_told - p->n_asked - p->n_key;
    const int64_t depth = i % NEEDLE_DEPTHS,
                  before = filler * (2 * depth + 1) / (2 * NEEDLE_DEPTHS);
    const int32_t *text = n->ids + i % n->windows * n->window;
    char name[48];
    if (filler < NEEDLE_DEPTHS)
        return fail(ERR_USAGE,
                    "--window: %lld tokens do not hold a pass key of %lld (a larger --window, or "
                    "--needles 0)",
                    (long long)n->window, (long long)(n->window - filler));
    int32_t *ids = malloc((size_t)n->window * sizeof *ids);
    if (!ids)
        return fail(ERR_FIT, "no memory for the pass keys");
    int64_t at = 0;
    if (!lost) {
        at = put(ids, at, text, before);
        at = put(ids, at, p->told, p->n_told);
        at = put(ids, at, text + before, filler - before);
    }
    int64_t n_prompt = put(ids, at, p->asked, p->n_asked);
    at = put(ids, n_prompt, p->key, p->n_key);
    snprintf(name, sizeof name, "%s-%lld", lost ? "lost" : "needle", (long long)i);
    enum err err = rows_score(row, index, name, ids, at, n_prompt);
    free(ids);
    return err;
}

enum err needle_row(const struct needles *n, int64_t i, int lost, int64_t index,
                    struct request *row)
{
    struct parts p = {0};
    enum err err = parts_make(n, i, &p);
    if (err == OK)
        err = row_make(n, i, lost, &p, index, row);
    free(p.told);
    free(p.asked);
    free(p.key);
    return err;
}
