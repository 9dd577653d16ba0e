/* policy/evict_keydiff.h - the key that is most like the others goes first, so that what stays is
 * apart (KeyDiff, Park et al. 2025, arXiv 2504.15364): rank = -cos(key, anchor), with the anchor
 * the sum of unit keys. Keys are taken as they were computed, before the KV format rounds them.
 * Needs no attention weight, so a prompt's prefix may be shared. Differences:
 * - the paper's anchor is of the keys that are cached, and all cosines are made anew with it; here
 *   it is of all tokens up to the slot's own arrival (of a prompt's, the whole prompt), evicted
 * ones too, and a cosine is made once: a slot costs four bytes and nothing in a step. In a prompt,
 * where all are there, the two are one;
 * - a sink of four is protected and half of the budget is recent by default, where the paper has
 *   neither (it cuts prompts that come in blocks). */
#ifndef POLICY_EVICT_KEYDIFF_H
#define POLICY_EVICT_KEYDIFF_H

#include "policy/evict_row.h"

#define EVICT_KEYDIFF_SCORE EVICT_KEYS_ALIKE, 0, 0, 1, 0, EVICT_NO_TRAIT

static inline float evict_keydiff_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
