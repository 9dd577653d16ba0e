/* engine/job/sample.c - see sample.h. Owns the order: penalties, bias, banned stops, then
 * temperature, top-k, top-p, min-p, then the noise.
 *
 * Note: nothing here draws a random number. The noise of a token id is a hash, so sampling under
 * filters is an argmax, too. */
#include "engine/job/sample.h"

#include <math.h>
#include <string.h>

int sample_filters(const struct request *r)
{
    const struct sampling *s = &r->sampling;
    return s->temperature > 0 && (s->top_k > 0 || s->top_p < 1 || s->min_p > 0);
}

static int counts_generated(const struct sampling *s)
{
    return s->presence_penalty != 0 || s->frequency_penalty != 0;
}

int sample_edits_max(const struct request *r, int n_stops)
{
    const struct sampling *s = &r->sampling;
    int64_t n = s->n_bias;
    if (r->kind == REQUEST_SCORE)
        return 0;
    if (s->repetition_penalty != 1)
        n += r->n_cap;
    else if (counts_generated(s))
        n += r->n_cap - r->n_prompt;
    if (s->min_tokens > 0)
        n += r->n_stop_ids + n_stops;
    return (int)min_i64(n, INT32_MAX);
}

/* ---- the list of edits ---- */

static void sift_down(struct logit_edit *e, int64_t at, int64_t n)
{
    struct logit_edit moved = e[at];
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && e[child + 1].id > e[child].id)
            child++;
        if (e[child].id <= moved.id)
            break;
        e[at] = e[child];
        at = child;
    }
    e[at] = moved;
}

/* Heapsort by id: in place (libc's qsort may allocate), n log n in the worst case. It is not
 * stable, which does not matter: entries with one id differ in `add` only, and these are summed. */
static void edits_sort(struct logit_edit *e, int64_t n)
{
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sift_down(e, i, n);
    for (int64_t last = n - 1; last > 0; last--) {
        struct logit_edit top = e[0];
        e[0] = e[last];
        e[last] = top;
        sift_down(e, 0, last);
    }
}

/* One entry per penalised id: `add` counts its generated tokens, then becomes the penalty. */
static int edits_penalties(const struct request *r, int pos, struct logit_edit *e)
{
    const struct sampling *s = &r->sampling;
    int first = s->repetition_penalty != 1 ? 0 : counts_generated(s) ? r->n_prompt : pos + 1;
    int64_t n = 0;
    for (int i = first; i <= pos; i++)
        e[n++] = (struct logit_edit){.id = r->tokens[i],
                                     .repeat = (float)s->repetition_penalty,
                                     .add = i >= r->n_prompt ? 1 : 0};
    edits_sort(e, n);
    int kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (kept > 0 && e[kept - 1].id == e[i].id)
            e[kept - 1].add += e[i].add;
        else
            e[kept++] = e[i];
    }
    for (int i = 0; i < kept; i++) {
        double count = (double)e[i].add;
        double penalty = s->frequency_penalty * count + (count > 0 ? s->presence_penalty : 0);
        e[i].add = (float)(0 - penalty); // not -penalty, which could be -0
    }
    return kept;
}

/* Adds to the entry of an id, making one when there is none. Returns the new count. */
static int edits_add(struct logit_edit *e, int n, int32_t id, float add)
{
    int low = 0, high = n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (e[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < n && e[low].id == id) {
        e[low].add += add;
        return n;
    }
    memmove(e + low + 1, e + low, (size_t)(n - low) * sizeof *e);
    e[low] = (struct logit_edit){.id = id, .repeat = 1, .add = add};
    return n + 1;
}

static int edits_fill(const struct request *r, int pos, const int32_t *stops, int n_stops,
                      struct logit_edit *e)
{
    const struct sampling *s = &r->sampling;
    int n = edits_penalties(r, pos, e);
    for (int i = 0; i < s->n_bias; i++)
        n = edits_add(e, n, s->bias[i].id, s->bias[i].add);
    if (pos + 1 - r->n_prompt >= s->min_tokens)
        return n;
    for (int i = 0; i < r->n_stop_ids; i++)
        n = edits_add(e, n, r->stop_ids[i], -INFINITY);
    for (int i = 0; i < n_stops && !r->ignore_eos; i++)
        n = edits_add(e, n, stops[i], -INFINITY);
    return n;
}

/* ---- before the head, and after it ---- */

struct head_request sample_request(const struct request *r, int pos, int sampled, int scored,
                                   const int32_t *stops, int n_stops, int place,
                                   struct logit_edit *edits)
{
    struct head_request q = {.target = scored ? r->tokens[pos + 1] : -1, .place = place};
    if (scored || (sampled && r->logprobs)) {
        q.want |= HEAD_SCORE | (r->top_logprobs > 0 ? HEAD_TOP : 0);
        q.n_top = r->top_logprobs;
    }
    if (sampled) {
        const struct sampling *p = &r->sampling;
        uint64_t key = mix64(p->seed);
        key = mix64(key ^ (uint64_t)r->index);
        q.noise_key = mix64(key ^ (uint64_t)pos);
        q.temperature = (float)p->temperature;
        q.n_edits = edits_fill(r, pos, stops, n_stops, edits);
        q.want |= sample_filters(r) ? HEAD_FILTER : HEAD_SAMPLE;
    }
    return q;
}

/* Order of candidates: descending logit, then ascending id. */
static int before(struct head_candidate a, struct head_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void candidates_sift(struct head_candidate *c, int at, int n)
{
    struct head_candidate moved = c[at];
    for (int child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && before(c[child], c[child + 1]))
            child++; // the later one of the two
        if (!before(moved, c[child]))
            break;
        c[at] = c[child];
        at = child;
    }
    c[at] = moved;
}

static int candidates_sort(struct head_candidate *c, int n_all)
{
    int n = 0;
    for (int i = 0; i < n_all; i++)
        if (c[i].logit > -INFINITY)
            c[n++] = c[i];
    for (int i = n / 2 - 1; i >= 0; i--)
        candidates_sift(c, i, n);
    for (int last = n - 1; last > 0; last--) {
        struct head_candidate worst = c[0];
        c[0] = c[last];
        c[last] = worst;
        candidates_sift(c, 0, last);
    }
    return n;
}

/* Number of sorted candidates that pass the filters, at least one. Weights are relative to the
 * best. op_exp instead of libm: the cut must be the same on every machine. */
static int candidates_kept(const struct head_candidate *c, int n, const struct sampling *p)
{
    float t = (float)p->temperature;
    double total = 0, seen = 0;
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    for (int i = 0; i < n; i++)
        total += (double)op_exp((c[i].logit - c[0].logit) / t);
    for (int i = 0; i < n; i++) {
        double weight = (double)op_exp((c[i].logit - c[0].logit) / t);
        int outside = seen >= p->top_p * total || weight < p->min_p;
        if (i > 0 && outside)
            return i;
        seen += weight;
    }
    return n;
}

int32_t sample_token(const struct head_request *q, struct head_result *s,
                     struct head_candidate *candidates, const struct request *r)
{
    if (isnan(s->best_logit))
        return -1;
    if (!(q->want & HEAD_FILTER))
        return s->sample_value > -INFINITY ? s->sample_id : -1;
    int n = candidates_sort(candidates, s->n_filter);
    if (n == 0)
        return -1;
    n = candidates_kept(candidates, n, &r->sampling);
    float t = (float)r->sampling.temperature;
    for (int i = 0; i < n; i++) {
        const struct head_candidate *c = &candidates[i];
        float value = c->logit / t + head_gumbel(q->noise_key, c->id);
        if (i == 0 || value > s->sample_value ||
            (value == s->sample_value && c->id < s->sample_id)) {
            s->sample_value = value;
            s->sample_id = c->id;
            s->sample_logit = c->raw;
        }
    }
    return s->sample_id;
}

double sample_logprob(const struct head_result *s, float logit)
{
    return (double)logit - ((double)s->max + log((double)s->sum));
}
