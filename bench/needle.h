/* bench/needle.h - pass keys hidden in a text: rows to score, whose continuation is the key.
 *
 * Owns: words, numbers and places of keys, which follow from a seed. Refuses: running the rows.
 * Note: a key's log-probability is more informative than whether the key is found, which is rare
 * for small models. */
#ifndef BENCH_NEEDLE_H
#define BENCH_NEEDLE_H

#include "engine/api/run.h"

#define NEEDLE_DEPTHS 5
#define NEEDLE_MAX    64 // per depth

struct needles {
    struct tokenizer *tokenizer; // borrowed
    const int32_t *ids;          // borrowed: of the text
    int64_t windows, window;     // number of windows, tokens per window
    uint64_t seed;
};

/* Makes row `index` of a job: needle i, at depth i % NEEDLE_DEPTHS of a window of the text; the
 * prompt ends with the question; --window tokens in all. lost: only the question. ERR_USAGE: window
 * too short. */
enum err needle_row(const struct needles *n, int64_t i, int lost, int64_t index,
                    struct request *row);

#endif
