/* policy/simulate.c - see simulate.h.
 *
 * A row is *steady* while it decodes one token per pass. Steady rows are summed, not visited: their
 * slots grow by one per pass each, and a row whose slots are a multiple of 32 before pass p is
 * again at a multiple before p + 32 (`cross` counts rows by p mod 32): it then takes a page, and
 * its last page is full. A heap of events holds when growth ends and when a row ends. *Loose* rows
 * have just entered, or know more tokens than they have done; every pass visits them. */
#include "policy/simulate.h"

#include "policy/admit.h"

#include "policy/rates.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define PASSES_MAX ((int64_t)1 << 40)
#define FEW        100 // tokens that an eighth's predecessor counts for

/* EVENT_START, EVENT_END and EVENT_TURN exist once per kind of KV. */
enum event_kind {
    EVENT_START,
    EVENT_END = EVENT_START + KV_KINDS_MAX,
    EVENT_TURN = EVENT_END + KV_KINDS_MAX,
    EVENT_PAGES = EVENT_TURN + KV_KINDS_MAX,
    EVENT_LEAVE,
    N_EVENT_KINDS
};

/* A change of a steady row before pass `pass` takes its tokens. */
struct event {
    int64_t pass;
    int32_t seat, kind;
};

/* State of a seat in layers of a kind. */
struct seat_kv {
    int32_t budget; // INT32_MAX: never evicts
    int32_t ring;
    int8_t growing;
    int8_t over; // 1: it overwrites a full page in this pass
};

struct seat {
    int64_t entered; // admission number, from 1; 0: empty
    int64_t base;    // steady: the pass before which n_done tokens were done
    struct work_row row;
    int32_t end;            // tokens at which the row stops
    int32_t n_done, n_take; // loose: as of this pass
    int32_t shared;         // tokens of its prompt that the batch's first prompt computes
    int32_t n_pages;        // loose, or while pages are short; at most pages_max
    int32_t pages_max;
    int8_t steady, pages_growing;
    struct seat_kv *kv; // by kind
};

struct sim_batch {
    struct seat *seats;
    struct event *events; // heap, earliest first
    int n_events;
    int live, loose;
    int pages_growing; // rows that may still need a page
    int64_t free_pages;
    // sums over steady rows
    int steady;
    struct {
        int evicting, over;
        int64_t pages_kept;        // see struct load
        int64_t slots, full_pages; // before the pass, ring slots included
        int cross[PAGE_SLOTS];
    } kv[KV_KINDS_MAX];
};

struct sim {
    const struct simulation *in;
    struct sim_batch *batches;
    struct load *loads;
    int kinds;                 // kinds of KV, without states
    int state;                 // kind of states, or 0
    int sink[KV_KINDS_MAX];    // the sink of every row
    struct work_row *returned; // stack of rows sent back to the queue
    int n_returned;
    int64_t next; // next row of the queue
    int every;
    int may_stop;                // 1: rows may stop before their cap
    double hazard[WORK_EIGHTHS]; // of an output's token, by eighths (work.stops)
    int64_t pass, entered;
    struct gate gate;
    struct played *out;
};

/* ---- rows ---- */

/* Page slots after n tokens, in a layer of a kind. */
static int slots_of(const struct seat *t, int kind, int n)
{
    return (int)min_i64(n, t->kv[kind].budget) - (int)min_i64(n, t->kv[kind].ring);
}

static int wanted(const struct sim *s, const struct work_row *row)
{
    return s->in->work->scores ? row->known - 1 : row->known;
}

static int done_before(const struct sim *s, const struct seat *t)
{
    return t->steady ? t->n_done + (int)(s->pass - t->base) : t->n_done;
}

/* 1: a row waits; writes it to *row and leaves it at the head. */
static int queue_peek(struct sim *s, struct work_row *row)
{
    const struct work *w = s->in->work;
    if (s->n_returned > 0) {
        *row = s->returned[s->n_returned - 1];
        return 1;
    }
    for (; w->rows && s->next < w->n_lengths; s->next += s->every) {
        *row = w->rows[s->next];
        int over = w->scores ? row->known == row->prompt : row->known >= row->cap;
        if (!over && row->prompt <= w->prompt_max) // else it is done, or an error row
            return 1;
    }
    if (w->rows || s->next >= w->n_rows)
        return 0;
    *row = (struct work_row){.prompt = (int32_t)w->prompt_max,
                             .known = (int32_t)(w->scores ? w->tokens_max : w->prompt_max),
                             .cap = (int32_t)w->tokens_max};
    return 1;
}

static void queue_take(struct sim *s)
{
    if (s->n_returned > 0) {
        s->n_returned--;
        return;
    }
    s->next += s->every;
    s->out->rows++;
}

/* The number of tokens at which a row stops: rows are given quantiles `u` of the time to stop,
 * spread evenly by the golden ratio, so that two calls play the same job. */
static int likely_end(const struct sim *s, const struct work_row *row, int64_t entered)
{
    const int64_t span = row->cap - row->prompt;
    int64_t at = row->known - row->prompt;
    if (!s->may_stop)
        return row->cap;
    const double golden = 0.6180339887498949, u = fmod((double)entered * golden + 0.5, 1);
    double lives = -log1p(-u); // the row stops when the hazards along its output sum to this
    while (at < span) {
        const int eighth = work_eighth(at, span);
        const int64_t end = work_eighth_end(eighth, span);
        const double each = s->hazard[eighth];
        if (lives < each * (double)(end - at))
            return (int)min_i64(row->prompt + at + 1 + (int64_t)(lives / each), row->cap);
        lives -= each * (double)(end - at);
        at = end;
    }
    return row->cap;
}

/* Tokens that a row has on the average when it stops: those of an eighth of its output count as
 * often as rows live to see them. */
static double mean_end(const struct work_row *row, const double stops[WORK_EIGHTHS])
{
    const int64_t span = row->cap - row->prompt;
    double tokens = row->known, lives = 1;
    int64_t at = row->known - row->prompt;
    while (at < span) {
        const int eighth = work_eighth(at, span);
        const int64_t end = work_eighth_end(eighth, span);
        const double p = stops[eighth], n = (double)(end - at), live = pow(1 - p, n);
        tokens += lives * (p > 1e-9 ? (1 - live) / p : n);
        lives *= live;
        at = end;
    }
    return tokens;
}

void work_learn(struct work *w, const int64_t sampled[WORK_EIGHTHS],
                const int64_t stopped[WORK_EIGHTHS])
{
    int64_t tokens = 0, ends = 0;
    for (int i = 0; i < WORK_EIGHTHS; i++) {
        tokens += sampled[i];
        ends += stopped[i];
    }
    double likely = tokens > 0 ? (double)ends / (double)tokens : 0;
    for (int i = 0; i < WORK_EIGHTHS; i++) {
        likely = ((double)stopped[i] + FEW * likely) / ((double)sampled[i] + FEW);
        w->stops[i] = likely;
    }
}

void work_expect(struct work *w, const struct evict *e)
{
    double slots = 0, output = 0;
    if (w->scores || !w->rows || w->n_lengths == 0)
        return;
    for (int64_t i = 0; i < w->n_lengths; i++) {
        const struct work_row *row = &w->rows[i];
        const double tokens = mean_end(row, w->stops);
        const int64_t most = evict_slots_max(e, KV_MOST, row->prompt, row->cap - row->prompt);
        slots += min_d(tokens, (double)most);
        output += tokens - row->known;
    }
    w->slots_mean = (int64_t)ceil(slots / (double)w->n_lengths);
    w->output_tokens = (int64_t)(output * w->stride);
}

static void seat_fill(struct sim *s, struct seat *t, const struct work_row *row, int64_t entered)
{
    const struct evict *e = s->in->evict;
    struct evict_row r;
    (void)evict_row_init(e, row->prompt, row->cap - row->prompt, &r); // cannot fail here
    *t = (struct seat){.row = *row, .kv = t->kv, .end = likely_end(s, row, entered)};
    for (int kind = KV_MOST; kind < s->kinds; kind++) {
        struct evict rule;
        struct evict_row limits;
        evict_in_kind(e, &r, kind, &rule, &limits);
        t->kv[kind] = (struct seat_kv){.budget = e->simulate ? INT32_MAX : limits.budget,
                                       .ring = s->in->ring ? evict_ring_slots(&limits) : 0};
        s->sink[kind] = limits.sink;
    }
    t->pages_max = admit_pages_max(e, &r, t->kv[KV_MOST].ring, row->cap);
}

/* ---- events ---- */

static int before(const struct event *a, const struct event *b)
{
    return a->pass != b->pass ? a->pass < b->pass : a->kind < b->kind;
}

/* No event outlives its row. */
static void event_add(struct sim_batch *b, struct event e)
{
    int i = b->n_events++;
    for (; i > 0 && before(&e, &b->events[(i - 1) / 2]); i = (i - 1) / 2)
        b->events[i] = b->events[(i - 1) / 2];
    b->events[i] = e;
}

static void event_drop(struct sim_batch *b)
{
    struct event last = b->events[--b->n_events];
    int i = 0;
    for (int child; (child = 2 * i + 1) < b->n_events; i = child) {
        if (child + 1 < b->n_events && before(&b->events[child + 1], &b->events[child]))
            child++;
        if (!before(&b->events[child], &last))
            break;
        b->events[i] = b->events[child];
    }
    b->events[i] = last;
}

static void events_drop(struct sim_batch *b, int seat)
{
    int n = b->n_events;
    b->n_events = 0;
    for (int i = 0; i < n; i++)
        if (b->events[i].seat != seat)
            event_add(b, b->events[i]);
}

/* ---- steady rows ---- */

/* Starts (on 1) or stops (on 0) the growth of a row's slots in this pass. */
static void grow(struct sim *s, struct sim_batch *b, struct seat *t, int kind, int on)
{
    int slots = slots_of(t, kind, done_before(s, t));
    int64_t multiple = s->pass + (PAGE_SLOTS - slots % PAGE_SLOTS) % PAGE_SLOTS;
    if (t->kv[kind].growing == on)
        return;
    t->kv[kind].growing = (int8_t)on;
    b->kv[kind].cross[multiple % PAGE_SLOTS] += on ? 1 : -1;
}

/* Adds an event before the pass before which n tokens are done, unless the row is over by then: its
 * last token is sampled with end - 2 tokens done. */
static void event_of(struct sim_batch *b, const struct seat *t, int kind, int64_t n)
{
    if (n < t->end)
        event_add(b, (struct event){t->base + n - t->n_done, (int32_t)(t - b->seats), kind});
}

/* Whether a steady row that evicts in turn overwrites a slot of a full page. That changes only when
 * the row reaches its last page, or starts over. */
static void take_turn(struct sim *s, struct sim_batch *b, struct seat *t, int kind)
{
    const struct evict_row row = {.budget = t->kv[kind].budget, .sink = s->sink[kind]};
    const int slots = row.budget - t->kv[kind].ring, done = done_before(s, t);
    const int full = slots / PAGE_SLOTS * PAGE_SLOTS;
    if (!evict_in_turn(s->in->evict, kind) || slots <= row.sink)
        return;
    const int slot = evict_turn(&row, slots, t->row.prompt, done), over = slot < full;
    b->kv[kind].over += over - t->kv[kind].over;
    t->kv[kind].over = (int8_t)over;
    if (!over || full < slots)
        event_of(b, t, EVENT_TURN + kind, done + (over ? full : slots) - slot);
}

/* Makes a loose row steady: all its known tokens but the sampled one are done, so from this pass on
 * it takes one token per pass. */
static void make_steady(struct sim *s, struct sim_batch *b, struct seat *t)
{
    t->steady = 1;
    t->base = s->pass;
    b->loose--;
    b->steady++;
    for (int kind = KV_MOST; kind < s->kinds; kind++) {
        const int budget = t->kv[kind].budget, ring = t->kv[kind].ring;
        b->kv[kind].slots += min_i64(t->n_done, budget);
        b->kv[kind].full_pages += slots_of(t, kind, t->n_done) / PAGE_SLOTS;
        b->kv[kind].evicting += t->n_done >= budget;
        if (t->n_done >= ring)
            grow(s, b, t, kind, t->n_done < budget);
        else
            event_of(b, t, EVENT_START + kind, ring);
        if (t->n_done < budget)
            event_of(b, t, EVENT_END + kind, budget);
        else
            take_turn(s, b, t, kind);
    }
    if (t->pages_growing)
        event_of(b, t, EVENT_PAGES, t->kv[KV_MOST].ring + (int64_t)(t->pages_max - 1) * PAGE_SLOTS);
    event_of(b, t, EVENT_LEAVE, t->end - 1);
}

static void pages_grow(struct sim_batch *b, struct seat *t, int on)
{
    b->pages_growing += on - t->pages_growing;
    t->pages_growing = (int8_t)on;
}

/* Makes a steady row loose: removes it from the sums, as of before this pass. */
static void unsteady(struct sim *s, struct sim_batch *b, struct seat *t)
{
    const int done = done_before(s, t);
    for (int kind = KV_MOST; kind < s->kinds; kind++) {
        grow(s, b, t, kind, 0);
        b->kv[kind].over -= t->kv[kind].over;
        t->kv[kind].over = 0;
        b->kv[kind].full_pages -= slots_of(t, kind, done) / PAGE_SLOTS;
        b->kv[kind].slots -= min_i64(done, t->kv[kind].budget);
        b->kv[kind].evicting -= done >= t->kv[kind].budget;
    }
    b->steady--;
    t->n_done = done;
    t->steady = 0;
    b->loose++;
}

/* Removes a loose row. */
static void leave(struct sim_batch *b, struct seat *t)
{
    pages_grow(b, t, 0);
    b->free_pages += t->n_pages;
    b->loose--;
    b->live--;
    t->entered = 0;
}

/* Pages of a steady row before this pass. */
static int pages_held(const struct sim *s, const struct seat *t)
{
    return admit_pages(slots_of(t, KV_MOST, done_before(s, t)));
}

static void happen(struct sim *s, struct sim_batch *b, const struct event *e)
{
    struct seat *t = &b->seats[e->seat];
    if (e->kind == EVENT_LEAVE) {
        t->n_pages = pages_held(s, t);
        unsteady(s, b, t);
        leave(b, t);
    } else if (e->kind == EVENT_PAGES) {
        pages_grow(b, t, 0);
    } else {
        const int kind = e->kind % KV_KINDS_MAX;
        const int what = e->kind - kind;
        if (what != EVENT_TURN)
            grow(s, b, t, kind, what == EVENT_START);
        b->kv[kind].evicting += what == EVENT_END;
        if (what != EVENT_START)
            take_turn(s, b, t, kind);
    }
}

/* ---- a batch's pass ---- */

static int is_over(const struct sim *s, const struct seat *t)
{
    if (s->in->work->scores)
        return t->n_done >= t->row.known - 1;
    return t->row.known >= t->end;
}

/* Ends the pass before: taken tokens are done, and rows without further known tokens sample one. */
static void end_pass(struct sim *s, struct sim_batch *b)
{
    for (int kind = KV_MOST; kind < s->kinds; kind++) {
        b->kv[kind].slots += b->steady - b->kv[kind].evicting;
        b->kv[kind].full_pages += b->kv[kind].cross[s->pass % PAGE_SLOTS];
    }
    for (int i = 0, loose = b->loose; loose > 0; i++) {
        struct seat *t = &b->seats[i];
        if (!t->entered || t->steady)
            continue;
        loose--;
        t->n_done += t->n_take;
        t->n_take = 0;
        if (!s->in->work->scores && t->n_done == t->row.known)
            t->row.known++;
        if (is_over(s, t))
            leave(b, t);
        else if (t->row.known - t->n_done == 1 && !s->in->work->scores)
            make_steady(s, b, t);
    }
    while (b->n_events > 0 && b->events[0].pass <= s->pass) {
        struct event e = b->events[0];
        event_drop(b);
        happen(s, b, &e);
    }
}

/* Sends a row back to the queue with all its tokens. */
static void send_back(struct sim *s, struct sim_batch *b, struct seat *t)
{
    if (t->steady) {
        events_drop(b, (int)(t - b->seats));
        unsteady(s, b, t);
        t->row.known = t->n_done + 1;
    }
    s->returned[s->n_returned++] = t->row;
    leave(b, t);
    s->out->requeued++;
}

static struct seat *youngest(const struct sim_batch *b, int n_rows)
{
    struct seat *young = NULL;
    for (int i = 0; i < n_rows; i++)
        if (b->seats[i].entered && (!young || b->seats[i].entered > young->entered))
            young = &b->seats[i];
    return young;
}

/* Allocates pages for the row's slots after the pass; youngest rows are sent back while pages are
 * short, possibly this one. */
static void take_pages(struct sim *s, struct sim_batch *b, struct seat *t)
{
    int need = admit_pages(slots_of(t, KV_MOST, done_before(s, t) + t->n_take));
    while (need - t->n_pages > b->free_pages) {
        struct seat *young = youngest(b, s->in->plan->batch);
        send_back(s, b, young);
        if (young == t)
            return;
    }
    b->free_pages -= max_i64(need - t->n_pages, 0);
    t->n_pages = (int32_t)max_i64(need, t->n_pages);
    if (t->n_pages >= t->pages_max)
        pages_grow(b, t, 0);
}

/* Visits every row: some know more tokens than they have done, or pages are short. */
static void take_each(struct sim *s, struct sim_batch *b)
{
    int n_rows = s->in->plan->batch;
    for (int i = 0; i < n_rows; i++) {
        struct seat *t = &b->seats[i];
        if (!t->entered)
            continue;
        if (t->steady)
            t->n_pages = pages_held(s, t);
        int left = t->steady ? 1 : wanted(s, &t->row) - t->n_done;
        t->n_take = admit_live(&s->gate, left);
    }
    for (int i = 0; i < n_rows; i++)
        if (b->seats[i].entered)
            take_pages(s, b, &b->seats[i]);
}

/* Rows that have a state before the pass. */
static int states_of(const struct sim_batch *b)
{
    int n = b->steady;
    for (int i = 0, loose = b->loose; loose > 0; i++) {
        const struct seat *t = &b->seats[i];
        if (!t->entered || t->steady)
            continue;
        n += t->n_done > 0;
        loose--;
    }
    return n;
}

static void take_live(struct sim *s, struct sim_batch *b)
{
    int need = b->kv[KV_MOST].cross[s->pass % PAGE_SLOTS];
    b->kv[s->state].pages_kept = (int64_t)states_of(b) * s->in->plan->kind_pages[s->state];
    for (int kind = KV_MOST; kind < s->kinds; kind++) {
        b->kv[kind].pages_kept = b->kv[kind].full_pages;
        for (int i = 0, loose = b->loose; loose > 0; i++) {
            const struct seat *t = &b->seats[i];
            if (!t->entered || t->steady)
                continue;
            b->kv[kind].pages_kept += slots_of(t, kind, t->n_done) / PAGE_SLOTS;
            loose--;
        }
    }
    if (b->loose > 0 || need > b->free_pages)
        take_each(s, b);
    else
        b->free_pages -= need;
}

/* What the batch's prompts of one pass share with the first of them. Rows of a pass are adjacent in
 * the queue. */
struct sharing {
    int first; // tokens of the first prompt; 0: none yet
    int most;
};

static int share(const struct sim *s, struct sharing *all, const struct work_row *row, int n_prompt)
{
    const struct plan *plan = s->in->plan;
    if (plan->no_sharing || evict_prompt_scores(s->in->evict->policy))
        return 0;
    if (all->first == 0) {
        *all = (struct sharing){.first = n_prompt, .most = plan->shared_tokens};
        return 0;
    }
    all->most = (int)min_i64(all->most, row->shared);
    return (int)min_i64(all->most, min_i64(all->first, n_prompt - 1));
}

/* 0; -1: no row is live, and the row at the head does not fit. */
static int admit(struct sim *s, struct sim_batch *b)
{
    int n_rows = s->in->plan->batch;
    struct sharing sharing = {0};
    for (int i = 0; i < n_rows && b->live < n_rows; i++) {
        struct seat *t = &b->seats[i];
        struct work_row row;
        if (t->entered)
            continue;
        if (!queue_peek(s, &row))
            return 0;
        int take = admit_entry(&s->gate, row.prompt, wanted(s, &row));
        if (take == 0)
            return 0;
        seat_fill(s, t, &row, s->entered + 1);
        int need = admit_pages(slots_of(t, KV_MOST, take));
        int known = admit_pages(slots_of(t, KV_MOST, wanted(s, &row)));
        if (!admit_room((int)b->free_pages, known, b->pages_growing, b->live))
            return 0;
        if (need > b->free_pages)
            return -1;
        queue_take(s);
        t->entered = ++s->entered;
        t->n_take = take;
        t->shared = share(s, &sharing, &row, (int)min_i64(take, row.prompt));
        t->n_pages = need;
        b->free_pages -= need;
        b->live++;
        b->loose++;
        pages_grow(b, t, need < t->pages_max);
        s->gate.admitted += take;
    }
    return 0;
}

/* ---- the loads of a pass ---- */

/* How many of tokens first..first + n - 1 of a row reach the head. */
static int64_t positions_of(const struct sim *s, const struct work_row *row, int first, int n)
{
    if (!s->in->work->scores)
        return first + n == row->known;
    return max_i64(min_i64(first + n, row->known - 1) - max_i64(first, row->prompt - 1), 0);
}

/* Sum of the slots that tokens first..first + n - 1 attend over, including their own. */
static int64_t attended(int64_t budget, int64_t first, int64_t n)
{
    int64_t rising = max_i64(min_i64(first + n, budget) - first, 0); // each sees one more slot
    return rising * first + rising * (rising + 1) / 2 +
           (n - rising) * (budget == INT32_MAX ? 0 : budget + 1);
}

static void load_loose(const struct sim *s, const struct seat *t, struct load *l)
{
    int prompt = t->n_done == 0 ? (int)min_i64(t->n_take, t->row.prompt) : 0;
    int shared = prompt > 0 ? t->shared : 0, done = t->n_done + t->n_take;
    l->prompts += prompt > 0;
    l->prompt_tokens += prompt - shared;
    l->forced_tokens += t->n_take - prompt;
    l->positions += positions_of(s, &t->row, t->n_done, t->n_take);
    for (int kind = KV_MOST; kind < s->kinds; kind++) {
        const struct evict *e = s->in->evict;
        const int budget = t->kv[kind].budget;
        struct kv_load *kv = &l->kv[kind];
        int full = slots_of(t, kind, t->n_done) / PAGE_SLOTS;
        kv->prompt_pairs += load_pairs(e, kind, prompt) - load_pairs(e, kind, shared);
        kv->slots += attended(budget, t->n_done + prompt, t->n_take - prompt);
        kv->evicting += t->n_take > prompt && done > budget;
        kv->pages_read += full;
        kv->pages_filled += slots_of(t, kind, done) / PAGE_SLOTS - full;
        if (evict_in_turn(e, kind) && full > 0 && done > budget) {
            const struct evict_row row = {.budget = budget, .sink = s->sink[kind]};
            kv->pages_over += evict_turn_pages(&row, budget - t->kv[kind].ring, t->row.prompt,
                                               t->n_done, t->n_take, full);
        }
    }
}

static void load_of(const struct sim *s, const struct sim_batch *b, struct load *l)
{
    l->rows = b->live;
    l->prompts = 0;
    l->prompt_tokens = 0;
    l->forced_tokens = l->positions = b->steady;
    for (int kind = KV_MOST; kind < s->kinds; kind++)
        l->kv[kind] =
            (struct kv_load){.evicting = b->kv[kind].evicting,
                             .slots = b->kv[kind].slots + b->steady,
                             .pages_read = b->kv[kind].full_pages,
                             .pages_kept = b->kv[kind].pages_kept,
                             .pages_filled = b->kv[kind].cross[(s->pass + 1) % PAGE_SLOTS],
                             .pages_over = b->kv[kind].over};
    for (int i = 0, loose = b->loose; loose > 0; i++)
        if (b->seats[i].entered && !b->seats[i].steady) {
            load_loose(s, &b->seats[i], l);
            loose--;
        }
    if (s->state > 0)
        load_states(s->in->plan->kind_pages[s->state], b->live, states_of(b),
                    b->kv[s->state].pages_kept, &l->kv[s->state]);
}

static void add_load(struct load *sum, const struct load *l, int kinds)
{
    sum->rows += l->rows;
    sum->prompts += l->prompts;
    sum->prompt_tokens += l->prompt_tokens;
    sum->forced_tokens += l->forced_tokens;
    sum->positions += l->positions;
    for (int kind = KV_MOST; kind < kinds; kind++) {
        struct kv_load *to = &sum->kv[kind];
        const struct kv_load *from = &l->kv[kind];
        to->evicting += from->evicting;
        to->prompt_pairs += from->prompt_pairs;
        to->slots += from->slots;
        to->pages_read += from->pages_read;
        to->pages_filled += from->pages_filled;
        to->pages_over += from->pages_over;
    }
}

/* ---- the job ---- */

/* Events per seat: for each kind two (growth starts and ends, or the next turn), and two more. */
static int64_t events_of(const struct plan *plan)
{
    return 2 * (int64_t)plan_kinds(plan) + 2;
}

static int64_t rows_of(const struct plan *plan)
{
    return (int64_t)plan->batch * plan->batches;
}

int64_t simulate_bytes(const struct plan *plan)
{
    int64_t each =
        (int64_t)sizeof(struct seat) + plan_kinds(plan) * (int64_t)sizeof(struct seat_kv) +
        events_of(plan) * (int64_t)sizeof(struct event) + (int64_t)sizeof(struct work_row);
    int64_t batch = (int64_t)(sizeof(struct sim_batch) + sizeof(struct load));
    return round_up(rows_of(plan) * each, 8) + plan->batches * batch;
}

static void place(struct sim *s, void *memory)
{
    const struct plan *plan = s->in->plan;
    int64_t rows = rows_of(plan);
    memset(memory, 0, (size_t)simulate_bytes(plan));
    s->batches = memory;
    s->loads = (struct load *)(s->batches + plan->batches);
    struct seat *seats = (struct seat *)(s->loads + plan->batches);
    struct event *events = (struct event *)(seats + rows);
    s->returned = (struct work_row *)(events + rows * events_of(plan));
    struct seat_kv *kv = (struct seat_kv *)(s->returned + rows);
    for (int64_t i = 0; i < rows; i++)
        seats[i].kv = kv + i * s->kinds;
    for (int b = 0; b < plan->batches; b++) {
        s->batches[b].seats = seats + (int64_t)b * plan->batch;
        s->batches[b].events = events + (int64_t)b * plan->batch * events_of(plan);
        s->batches[b].free_pages = plan->pages_batch;
    }
}

static void note_filled(struct sim *s)
{
    struct played *out = s->out;
    const struct progress now = {out->rows, s->pass, out->job_s};
    int64_t places = rows_of(s->in->plan);
    if (out->filled_from.rows == 0 && now.rows >= places)
        out->filled_from = out->filled_to = now;
    else if (out->filled_from.rows > 0 &&
             (now.rows - out->filled_from.rows) / places >
                 (out->filled_to.rows - out->filled_from.rows) / places)
        out->filled_to = now;
}

/* Seats the rows that were live, with the tokens that they have done. */
static void seat_live(struct sim *s)
{
    const struct simulation *in = s->in;
    for (int b = 0; b < in->plan->batches; b++)
        for (int i = 0; i < in->plan->batch; i++) {
            struct sim_batch *batch = &s->batches[b];
            struct seat *t = &batch->seats[i];
            struct live_row live;
            if (!in->live(in->live_ctx, b, i, &live))
                continue;
            seat_fill(s, t, &live.row, live.entered);
            t->entered = live.entered;
            s->entered = max_i64(s->entered, live.entered);
            t->n_done = live.done;
            t->n_pages = admit_pages(slots_of(t, KV_MOST, live.done));
            batch->free_pages -= t->n_pages;
            batch->live++;
            batch->loose++;
            pages_grow(batch, t, t->n_pages < t->pages_max);
            s->out->live++;
        }
}

int simulate(const struct simulation *in, void *memory, struct played *out)
{
    struct sim s = {.in = in, .out = out, .gate = {.prefill = in->plan->prefill_tokens}};
    s.every = in->every > 1 ? in->every : 1;
    s.state = plan_state_kind(in->plan);
    s.kinds = s.state > 0 ? s.state : plan_kinds(in->plan);
    s.may_stop = work_may_stop(in->work);
    for (int i = 0; i < WORK_EIGHTHS; i++)
        s.hazard[i] = -log1p(-min_d(in->work->stops[i], 0.99));
    *out = (struct played){0};
    place(&s, memory);
    if (in->live)
        seat_live(&s);
    for (s.pass = in->live ? 1 : 0;; s.pass++) {
        int64_t live = 0;
        s.gate.admitted = 0;
        for (int i = 0; i < in->plan->batches; i++) {
            struct sim_batch *b = &s.batches[i];
            end_pass(&s, b);
            take_live(&s, b);
            if (admit(&s, b) != 0)
                return -1;
            load_of(&s, b, &s.loads[i]);
            add_load(&out->sum, &s.loads[i], plan_kinds(in->plan));
            live += b->live;
        }
        if (live == 0)
            return 0;
        if (s.pass == PASSES_MAX)
            return -1;
        note_filled(&s);
        out->passes++;
        out->row_passes += live;
        if (in->price)
            out->job_s += in->price(in->ctx, s.pass, s.loads);
    }
}
