/* policy/evict_lagkv.h - what a prompt's keys and values say beside those that come next (LagKV,
 * Liang et al. 2025, arXiv 2504.04704). Behind the sink a prompt is cut in chunks of `lag` tokens.
 * Each channel of a chunk is put between the least and the greatest of the next chunk's, 0 to 1; a
 * token's score is the standard deviation of its key over channels, as a softmax over its chunk,
 * and the same of its value, averaged. Its rank by that among its chunk, 1 / lag to 1, is what
 * counts, so that all chunks keep about the same share; the last whole chunk and what is behind it,
 * which nothing follows, count as 1. Needs no attention weight, so a prompt's prefix may be shared.
 * Differences:
 * - lag follows the budget: the greatest power of two up to a quarter of it, 8 to 128 (the paper's
 *   128 is for caches of thousands);
 * - the cut goes by rank over all chunks at once, of equal ranks the oldest first, where the paper
 *   keeps a fixed number of each and the last chunk whole: a cut to less than a chunk cuts that
 * too;
 * - decode keeps the budget as snapkv's does: scores stay, and of the newest tokens, which have
 * none, `recent` take the room of the prompt's lowest, where the paper goes on by chunks;
 * - a channel in which the next chunk is all one number counts as 0, where it divides by nothing.
 */
#ifndef POLICY_EVICT_LAGKV_H
#define POLICY_EVICT_LAGKV_H

#include "policy/evict_row.h"

#define EVICT_LAGKV_SCORE EVICT_LAGS, 0, 1, 1, 0, EVICT_NO_TRAIT
#define EVICT_LAG_MOST    128

static inline int evict_lag(const struct evict_row *row)
{
    int lag = 8;
    while (lag < EVICT_LAG_MOST && lag * 2 <= row->budget / 4)
        lag *= 2;
    return lag;
}

/* Of a prompt's chunks those that a whole one follows. */
static inline int evict_lag_chunks(const struct evict_row *row, int n_prompt)
{
    const int whole = n_prompt > row->sink ? (n_prompt - row->sink) / evict_lag(row) : 0;
    return whole > 1 ? whole - 1 : 0;
}

/* What the token counts behind which `before` others of its chunk come. */
static inline float evict_lag_rank(int before, int lag)
{
    return (float)(before + 1) / (float)lag;
}

static inline float evict_lagkv_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
