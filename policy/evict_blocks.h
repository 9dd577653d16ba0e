/* policy/evict_blocks.h - prompts cut by blocks (the cache eviction of OpenVINO GenAI,
 * openvinotoolkit/ openvino.genai, cache_eviction.cpp): behind a prompt a slot's score is the mean
 * of the summed attention over its block of 32 positions, all KV heads together, so that blocks
 * stay or go as one. Differences:
 * - a budget need not be of whole blocks: of the last one the newest slots stay;
 * - tokens behind the prompt add to and have scores of their own: the least of a block goes when
 *   one token comes, where a block there goes when a block has come. Slots of a block begin alike,
 *   so that they go soon after each other, but what is looked at stays;
 * - a sink of four and a fifth of the budget that is recent, as there (128 of 672), where it begins
 *   with a sink of a block. */
#ifndef POLICY_EVICT_BLOCKS_H
#define POLICY_EVICT_BLOCKS_H

#include "policy/evict_row.h"

#define EVICT_BLOCKS_SCORE EVICT_WEIGHTS, INT32_MAX, 1, 0, -32, EVICT_NO_TRAIT

static inline float evict_blocks_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
