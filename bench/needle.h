/* bench/needle.h - pass keys hidden in a text: rows to score, whose continuation is the key.
 *
 * Owns: their words, numbers and places, which follow from a seed. Refuses: running them. Note: a
 * key's log-probability says more than whether it is found, which a small model answers with no
 * almost always. */
#ifndef BENCH_NEEDLE_H
#define BENCH_NEEDLE_H

#include "engine/api/run.h"

#define NEEDLE_DEPTHS 5
#define NEEDLE_MAX    64 // of each depth

struct needles {
    struct tokenizer *tokenizer; // borrowed
    const int32_t *ids;          // borrowed: of the text
    int64_t windows, window;     // which it has, tokens of one
    uint64_t seed;
};

/* Row `index` of a job, named name: needle i, which stands in a window of the text at depth
 * i % NEEDLE_DEPTHS; what asks for it ends the prompt; --window tokens in all. lost: the question
 * alone. ERR_USAGE: a window is too short. */
enum err needle_row(const struct needles *n, int64_t i, int lost, int64_t index,
                    struct request *row);

#endif
