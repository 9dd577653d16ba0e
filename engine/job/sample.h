/* engine/job/sample.h - from a request and a position to what the head must leave (struct
 * head_state), and from there to the next token.
 *
 * Random numbers are a function of (seed, row, position, id); nothing here keeps state between
 * positions, so a resumed row samples the same tokens. */
#ifndef ENGINE_JOB_SAMPLE_H
#define ENGINE_JOB_SAMPLE_H

#include "engine/job/request.h"

/* Most edits a position can need (penalised tokens, bias, n_stops banned stops). */
int sample_edits_max(const struct request *r, int n_stops);
/* 1: the request needs HEAD_FILTER's candidates. */
int sample_filters(const struct request *r);
/* Fills `s` for position `pos` (whose next token is pos + 1). sampled: a token is chosen here;
 * scored: the log-probability of the known token pos + 1 is wanted. edits: room for
 * sample_edits_max(); stops: ids banned before min_tokens. candidates: room for HEAD_SAMPLE_MAX
 * when sample_filters(), else NULL. Zeroes s and calls head_start(). */
void sample_begin(struct head_state *s, const struct request *r, int pos, int sampled, int scored,
                  const int32_t *stops, int n_stops, struct logit_edit *edits,
                  struct head_candidate *candidates);
/* The chosen token after the last slice; -1 when the logits were not numbers (NaN), or all banned.
 * Sorts the candidates.*/
int32_t sample_token(const struct head_state *s, const struct request *r, int pos);
/* Natural log-probability of a token with this raw logit (target_logit, best_logit, sample_logit,
 * or one of top[]) at a position that wanted HEAD_SCORE. */
double sample_logprob(const struct head_state *s, float logit);

#endif
