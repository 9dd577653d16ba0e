/* engine/line/batch.c - see batch.h.
 *
 * Note: decisions made here (admission, cuts of forced spans, requeuing) change speed and never a
 * byte of the answer. The rules that fix the bytes are in kernels/ops.h and policy/evict.h. */
#include "engine/line/batch.h"

#include "engine/job/sample.h"

#include <string.h>

static void place_batches(struct batches *b, struct carve *c)
{
    const struct plan *p = c->plan;
    const int64_t n = p->batches, row_pages = p->slots_cap / PAGE_SLOTS;
    CARVE(c, workspace, ARENA_HOST, b->batch, n);
    const struct slab rows = CARVE_SLAB(c, workspace, ARENA_HOST, n,
                                        p->batch * (int64_t)sizeof(struct row)),
                      spans = CARVE_SLAB(c, workspace, ARENA_HOST, n,
                                         2 * p->batch * (int64_t)sizeof(struct span)),
                      positions = CARVE_SLAB(c, head, ARENA_HOST, n,
                                             p->head_positions * (int64_t)sizeof(struct position)),
                      free_pages = CARVE_SLAB(c, kv_meta, ARENA_HOST, n, p->pages_batch * 4),
                      pages = CARVE_SLAB(c, kv_meta, ARENA_HOST, n * p->batch, row_pages * 4);
    for (int i = 0; b->batch && i < n; i++) {
        struct batch *t = &b->batch[i];
        *t = (struct batch){.index = i,
                            .pass = -1,
                            .n_rows = p->batch,
                            .rows = slab_at(&rows, i),
                            .spans = slab_at(&spans, i),
                            .positions = slab_at(&positions, i),
                            .free_pages = slab_at(&free_pages, i),
                            .n_free_pages = (int)p->pages_batch};
        for (int64_t k = 0; k < p->pages_batch; k++) // a stack: the lowest id is handed out first
            t->free_pages[k] = (int32_t)(p->pages_batch - 1 - k);
        for (int r = 0; r < p->batch; r++)
            t->rows[r] = (struct row){.pages = slab_at(&pages, (int64_t)i * p->batch + r),
                                      .ahead_token = -1};
    }
}

static struct head_tables place_head(const struct batches *b, struct carve *c,
                                     enum carve_arena arena)
{
    struct head_tables t;
    const int64_t rows = (int64_t)c->plan->batch * c->plan->batches;
    CARVE(c, head, arena, t.requests, b->head_cap);
    CARVE(c, head, arena, t.results, b->head_cap);
    CARVE(c, head, arena, t.edits, rows * b->edits_max);
    CARVE(c, head, arena, t.candidates, c->set->work->filters ? rows * HEAD_SAMPLE_MAX : 0);
    return t;
}

void batches_place(struct batches *b, struct carve *c)
{
    const struct plan *p = c->plan;
    b->plan = p;
    b->shape = c->set->shape;
    b->evict = c->set->evict;
    b->ring_bytes = c->set->costs->kv_ring_bytes;
    b->edits_max = c->set->work->edits_max;
    b->gate = (struct gate){.prefill = p->prefill_tokens};
    b->head_cap = (int64_t)p->batch * (plan_pass_batches(p) - 1) + p->head_positions;
    place_batches(b, c);
    b->heads[0] = b->heads[1] = b->seen = place_head(b, c, ARENA_PINNED);
    if (!p->device && p->groups <= 1)
        return;
    for (int i = 1; i < (int)max_i64(p->groups, 2); i++) {
        b->heads[i] = b->heads[0];
        CARVE(c, head, ARENA_PINNED, b->heads[i].requests, b->head_cap);
        CARVE(c, head, ARENA_PINNED, b->heads[i].results, b->head_cap);
    }
    b->seen = place_head(b, c, ARENA_DEVICE);
}

/* Tokens of the request that go through the layers: a scored request never needs its last one. */
static int tokens_wanted(const struct request *r)
{
    return r->kind == REQUEST_SCORE ? r->n_tokens - 1 : r->n_tokens;
}

static int ring_used(const struct row *row, int tokens)
{
    return evict_ring_used(row->ring_slots, tokens);
}

/* Page slots of a row after the next n tokens of its pass. */
static int batch_slots_after(const struct evict *evict, const struct row *row, int n)
{
    return evict_slots_after(evict, &row->evict, row->ring_slots, row->n_slots, row->n_done, n);
}

int batch_kind_slots(const struct evict *evict, const struct row *row, int kind, int n)
{
    struct evict rule;
    struct evict_row limits;
    if (kind == KV_MOST)
        return batch_slots_after(evict, row, n);
    if (evict_kind(evict, kind).state > 0)
        return row->n_done + n > 0 ? evict_kind(evict, kind).state : 0;
    evict_in_kind(evict, &row->evict, kind, &rule, &limits);
    int ring = row->ring_slots > 0 ? evict_ring_slots(&limits) : 0;
    return evict_slots_after(&rule, &limits, ring, 0, 0, row->n_done + n);
}

int batch_turns_long(const struct shape *shape, const struct row *row)
{
    return shape->rope_long > 0 && row->request->n_cap > shape->rope_long;
}

/* Slots evicted by the tokens of this pass. */
static int evicted(const struct row *row)
{
    int before = row->n_slots + ring_used(row, row->n_done);
    int after = row->n_slots_after + ring_used(row, row->n_done + row->n_take);
    return before + row->n_take - after;
}

static void row_leave(struct batch *t, struct row *row)
{
    while (row->n_pages > 0)
        t->free_pages[t->n_free_pages++] = row->pages[--row->n_pages];
    row->request = NULL;
    row->n_done = row->n_take = row->n_slots = row->n_slots_after = row->lost = 0;
    row->ahead_token = -1;
}

static void row_requeue(struct batches *b, struct batch *t, struct row *row)
{
    job_requeue(b->job, row->request);
    row_leave(t, row);
    b->requeued++;
}

static struct row *youngest_row(struct batch *t)
{
    struct row *young = NULL;
    for (int r = 0; r < t->n_rows; r++)
        if (t->rows[r].request && (!young || t->rows[r].entered > young->entered))
            young = &t->rows[r];
    return young;
}

/* Allocates pages for the slots after this pass. While too few pages are free, the youngest row of
 * the batch is requeued, possibly this row itself. Returns 1 when the row has its pages. */
static int row_take_pages(struct batches *b, struct batch *t, struct row *row)
{
    int need = admit_pages(row->n_slots_after);
    while (need - row->n_pages > t->n_free_pages) {
        struct row *young = youngest_row(t);
        int self = young == row;
        row_requeue(b, t, young);
        if (self)
            return 0;
    }
    while (row->n_pages < need)
        row->pages[row->n_pages++] = t->free_pages[--t->n_free_pages];
    return 1;
}

/* Ends the batch's previous pass: n_take moves into n_done. */
static void end_pass(struct batches *b, struct batch *t)
{
    for (int r = 0; r < t->n_rows; r++) {
        struct row *row = &t->rows[r];
        if (!row->request)
            continue;
        if (row->lost) {
            row_requeue(b, t, row);
            continue;
        }
        b->evicted_slots += evicted(row);
        row->n_done += row->n_take;
        row->n_slots = row->n_slots_after;
        row->n_take = 0;
    }
}

static enum err admit_rows(struct batches *b, struct batch *t)
{
    for (int r = 0; r < t->n_rows; r++) {
        struct row *row = &t->rows[r];
        if (row->request)
            continue;
        const struct request *next = NULL;
        TRY(job_peek(b->job, &next));
        if (!next)
            return OK;
        int wanted = tokens_wanted(next);
        int take = admit_entry(&b->gate, next->n_prompt, wanted);
        if (take == 0)
            return OK;
        struct row probe = {.n_slots = 0};
        CHECK(evict_row_init(b->evict, next->n_prompt, next->n_cap - next->n_prompt,
                             &probe.evict) == 0);
        probe.ring_slots = b->ring_bytes ? evict_ring_slots(&probe.evict) : 0;
        int known = admit_pages(batch_slots_after(b->evict, &probe, wanted));
        int growing = 0, live = 0;
        for (int i = 0; i < t->n_rows; i++) {
            const struct row *o = &t->rows[i];
            live += o->request != NULL;
            growing += o->request && o->n_pages < admit_pages_max(b->evict, &o->evict,
                                                                  o->ring_slots, o->request->n_cap);
        }
        if (!admit_room(t->n_free_pages, known, growing, live))
            return OK;
        row->request = job_take(b->job);
        row->evict = probe.evict;
        row->ring_slots = probe.ring_slots;
        row->n_done = row->n_slots = row->lost = 0;
        row->entered = ++b->entered;
        row->n_take = take;
        row->n_slots_after = batch_slots_after(b->evict, row, take);
        b->gate.admitted += take;
        CHECK(row_take_pages(b, t, row));
    }
    return OK;
}

static void add_span(struct batch *t, int row, int kind, int pos, int n)
{
    if (n <= 0)
        return;
    t->spans[t->n_spans++] =
        (struct span){.row = row, .kind = kind, .pos = pos, .n = n, .first = t->n_tokens};
    t->n_tokens += n;
}

/* Is the log-probability of token pos + 1 wanted? */
static int wants_score(const struct request *r, int pos)
{
    if (r->kind == REQUEST_SCORE)
        return pos + 1 >= r->n_prompt && pos + 1 < r->n_tokens;
    return r->logprobs && pos + 1 < r->n_tokens && (r->echo || pos + 1 >= r->n_prompt);
}

static void add_positions(struct batches *b, struct batch *t, const struct span *s)
{
    struct row *row = &t->rows[s->row];
    const struct request *r = row->request;
    for (int i = 0; i < s->n; i++) {
        int pos = s->pos + i;
        int sampled = r->kind == REQUEST_GENERATE && pos == r->n_tokens - 1;
        int scored = wants_score(r, pos);
        if (!sampled && !scored)
            continue;
        CHECK(b->pass_positions < b->head_cap && t->n_positions < b->plan->head_positions);
        int place = t->index * b->plan->batch + s->row;
        t->requests[t->n_positions] =
            sample_request(r, pos, sampled, scored, b->stops, b->n_stops, place,
                           b->heads[0].edits + (int64_t)place * b->edits_max);
        head_start(&t->results[t->n_positions]);
        b->pass_positions++;
        t->positions[t->n_positions++] = (struct position){
            .row = s->row, .pos = pos, .token = s->first + i, .sampled = sampled, .scored = scored};
    }
}

/* Number of leading positions of a prompt that have the same tokens as the first prompt of this
 * pass, so that they need no computation. 0 under policies that score a prompt by attention: these
 * need all of a row's own queries. */
static int shared_with_first(const struct batches *b, const struct batch *t, const struct row *row,
                             int n)
{
    const struct request *r = row->request;
    int shared = 0;
    if (t->first_prompt < 0 || evict_prompt_scores(b->evict->policy))
        return 0;
    const struct span *first = &t->spans[t->first_prompt];
    if (batch_turns_long(b->shape, &t->rows[first->row]) != batch_turns_long(b->shape, row))
        return 0;
    int most = (int)min_i64(min_i64(first->n, n - 1), b->plan->shared_tokens);
    const int32_t *tokens = t->rows[first->row].request->tokens;
    while (shared < most && tokens[shared] == r->tokens[shared] && !wants_score(r, shared))
        shared++;
    return shared;
}

static void lay_spans(struct batches *b, struct batch *t)
{
    t->n_spans = t->n_tokens = t->n_positions = t->n_shared = 0;
    t->first_prompt = -1;
    for (int r = 0; r < t->n_rows; r++) {
        struct row *row = &t->rows[r];
        if (!row->request || row->n_take == 0)
            continue;
        int n_prompt = row->n_done == 0 ? (int)min_i64(row->n_take, row->request->n_prompt) : 0;
        int shared = n_prompt > 0 ? shared_with_first(b, t, row, n_prompt) : 0;
        t->n_shared = (int)max_i64(t->n_shared, shared);
        b->shared_tokens += shared;
        if (n_prompt > 0 && t->first_prompt < 0)
            t->first_prompt = t->n_spans;
        add_span(t, r, SPAN_PROMPT, shared, n_prompt - shared);
        add_span(t, r, SPAN_FORCED, row->n_done + n_prompt, row->n_take - n_prompt);
    }
    const struct head_tables *head =
        &b->heads[b->plan->groups > 1 ? t->index / plan_pass_batches(b->plan) : t->pass & 1];
    t->first_position = b->pass_positions;
    t->requests = head->requests + t->first_position;
    t->results = head->results + t->first_position;
    for (int i = 0; i < t->n_spans; i++)
        add_positions(b, t, &t->spans[i]);
    t->first_token = b->pass_tokens;
    b->pass_tokens += t->n_tokens;
    CHECK(b->pass_tokens <= b->plan->pass_tokens && t->n_tokens <= b->plan->step_tokens);
}

enum err batch_refill(struct batches *b, int index, int64_t pass)
{
    struct batch *t = &b->batch[index];
    if (index % plan_pass_batches(b->plan) == 0)
        b->pass_tokens = b->pass_positions = b->gate.admitted = 0;
    end_pass(b, t);
    t->pass = pass;
    for (int r = 0; r < t->n_rows; r++) {
        struct row *row = &t->rows[r];
        if (!row->request)
            continue;
        row->n_take = admit_live(&b->gate, tokens_wanted(row->request) - row->n_done);
        row->n_slots_after = batch_slots_after(b->evict, row, row->n_take);
    }
    for (int r = 0; r < t->n_rows; r++)
        if (t->rows[r].request)
            row_take_pages(b, t, &t->rows[r]);
    TRY(admit_rows(b, t));
    lay_spans(b, t);
    return OK;
}

/* Hands one position's results to its row; the row may finish. */
static enum err take_position(struct batches *b, struct batch *t, int i)
{
    const struct position *p = &t->positions[i];
    const struct head_request *q = &t->requests[i];
    struct head_result *s = &t->results[i];
    struct head_candidate *all = b->heads[0].candidates;
    struct head_candidate *candidates = all ? all + (int64_t)q->place * HEAD_SAMPLE_MAX : NULL;
    struct row *row = &t->rows[p->row];
    if (!row->request || row->lost)
        return OK;
    if (p->scored)
        TRY(job_scored(b->job, row->request, p->pos, s));
    if (!p->sampled)
        return OK;
    int finished = 0;
    int32_t id = sample_token(q, s, candidates, row->request);
    if (id < 0) {
        TRY(job_fail(b->job, row->request, "numeric_error", "the model's logits are not numbers"));
        row_leave(t, row);
        return OK;
    }
    TRY(job_token(b->job, row->request, id, s, &finished));
    if (!finished)
        return OK;
    b->evicted_slots += evicted(row);
    TRY(job_finish(b->job, row->request));
    row_leave(t, row);
    return OK;
}

enum err batch_sample(struct batches *b, int index)
{
    struct batch *t = &b->batch[index];
    for (int i = 0; i < t->n_positions; i++)
        TRY(take_position(b, t, i));
    for (int r = 0; r < t->n_rows; r++) {
        struct row *row = &t->rows[r];
        if (!row->request || row->lost || row->request->kind != REQUEST_SCORE)
            continue;
        if (row->n_done + row->n_take < tokens_wanted(row->request))
            continue;
        b->evicted_slots += evicted(row);
        TRY(job_finish(b->job, row->request));
        row_leave(t, row);
    }
    return OK;
}

/* Adds a span to a batch's load, for one layer of a kind. */
static void load_span(const struct evict *evict, const struct row *row, const struct span *s,
                      int kind, struct kv_load *l)
{
    if (s->kind == SPAN_PROMPT) {
        l->prompt_pairs += load_pairs(evict, kind, s->pos + s->n) - load_pairs(evict, kind, s->pos);
        return;
    }
    struct evict rule;
    struct evict_row limits;
    evict_in_kind(evict, &row->evict, kind, &rule, &limits);
    int64_t budget = evict->simulate ? INT32_MAX : limits.budget;
    l->evicting += s->pos + s->n > budget;
    if (s->pos + s->n > budget && evict_in_turn(evict, kind)) {
        int before = batch_kind_slots(evict, row, kind, 0) / PAGE_SLOTS;
        int slots = (int)budget - (row->ring_slots > 0 ? evict_ring_slots(&limits) : 0);
        l->pages_over +=
            evict_turn_pages(&limits, slots, row->request->n_prompt, s->pos, s->n, before);
    }
    for (int k = 0; k < s->n; k++)
        l->slots += min_i64(s->pos + k, budget) + 1;
}

struct load batch_load(const struct batches *all, const struct batch *t)
{
    struct load l = {.positions = t->n_positions};
    const int state = plan_state_kind(all->plan);
    const int kinds = state > 0 ? state : evict_kinds(all->evict);
    int old = 0;
    for (int r = 0; r < t->n_rows; r++) {
        const struct row *row = &t->rows[r];
        if (!row->request)
            continue;
        l.rows++;
        old += row->n_done > 0;
        for (int kind = KV_MOST; kind < kinds; kind++) {
            struct kv_load *kv = &l.kv[kind];
            int before = batch_kind_slots(all->evict, row, kind, 0) / PAGE_SLOTS;
            kv->pages_read += before;
            kv->pages_filled +=
                batch_kind_slots(all->evict, row, kind, row->n_take) / PAGE_SLOTS - before;
            kv->pages_kept = kv->pages_read;
        }
    }
    for (int i = 0; i < t->n_spans; i++) {
        const struct span *s = &t->spans[i];
        const int prompt = s->kind == SPAN_PROMPT;
        l.prompts += prompt;
        l.prompt_tokens += prompt ? s->n : 0;
        l.forced_tokens += prompt ? 0 : s->n;
        for (int kind = KV_MOST; kind < kinds; kind++)
            load_span(all->evict, &t->rows[s->row], s, kind, &l.kv[kind]);
    }
    if (state > 0)
        load_states(all->plan->kind_pages[state], l.rows, old,
                    (int64_t)old * all->plan->kind_pages[state], &l.kv[state]);
    return l;
}

int64_t batches_tokens(const struct batches *all, int64_t pass)
{
    const struct order order = plan_order(all->plan);
    const int first = order_first(&order, pass);
    int64_t n = 0;
    for (int i = first; i < first + order.batches; i++) {
        const struct batch *t = &all->batch[i];
        for (int r = 0; r < t->n_rows && t->pass != pass; r++)
            n += t->rows[r].request != NULL;
        n += t->pass == pass ? t->n_tokens : 0;
    }
    return n;
}

void batches_return(struct batches *b)
{
    job_requeue_all(b->job);
    for (int i = 0; i < b->plan->batches; i++) {
        struct batch *t = &b->batch[i];
        for (int r = 0; r < t->n_rows; r++) {
            struct row *row = &t->rows[r];
            if (!row->request)
                continue;
            /* The row's evictions are counted again when the row is recomputed. */
            b->evicted_slots -= row->n_done - row->n_slots - ring_used(row, row->n_done);
            row_leave(t, row);
        }
    }
}

int32_t batch_page_id(const struct plan *plan, const struct batch *batch, int layer, int r,
                      int page)
{
    const int own = plan_own_pages(plan, layer);
    return own > 0 ? r * own + page : batch->rows[r].pages[page];
}

int batch_page_next(const struct batches *all, const struct batch *batch, int layer, int after,
                    struct row_page *p)
{
    for (p->page++; p->row < 0 || p->page >= p->n; p->page = 0) {
        if (++p->row == batch->n_rows)
            return 0;
        const struct row *row = &batch->rows[p->row];
        p->n = 0;
        if (!row->request)
            continue;
        int taken = after ? row->n_take : 0;
        int slots = batch_kind_slots(all->evict, row, plan_kind(all->plan, layer), taken);
        p->n = slots / PAGE_SLOTS;
        p->owner = row->request->index;
    }
    p->id = batch_page_id(all->plan, batch, layer, p->row, p->page);
    return 1;
}
