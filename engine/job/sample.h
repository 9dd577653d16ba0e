/* engine/job/sample.h - makes the head's request for a position, and picks the next token from the
 * head's result.
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
/* The head's request for position `pos` (the next token is pos + 1). sampled: a token is chosen;
 * scored: the log-probability of the known token pos + 1 is wanted. edits: those of index `place`,
 * room for sample_edits_max(). stops: ids banned before min_tokens. If sample_filters(), `place`
 * needs candidates, too. */
struct head_request sample_request(const struct request *r, int pos, int sampled, int scored,
                                   const int32_t *stops, int n_stops, int place,
                                   struct logit_edit *edits);
/* The chosen token after the last slice, which becomes s->sample_id with its raw logit; -1 when the
 * logits were not numbers (NaN), or all banned. Sorts the candidates (NULL without filters). */
int32_t sample_token(const struct head_request *q, struct head_result *s,
                     struct head_candidate *candidates, const struct request *r);
/* Natural log-probability of a token with this raw logit (target_logit, best_logit, sample_logit,
 * or one of top[]) at a position that wanted HEAD_SCORE. */
double sample_logprob(const struct head_result *s, float logit);

#endif
