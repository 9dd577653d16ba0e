/* engine/line/tables.c - see tables.h. */
#include "engine/line/tables.h"

/* The most bytes of one step. A tile ends where it is full, before a span that does not fit, or at
 * the end of the batch. */
static int64_t slot_bytes(const struct plan *p)
{
    int64_t spans = 2 * (int64_t)p->batch, tiles = spans + p->step_tokens / p->tile_tokens + 1;
    int64_t span = max_i64(sizeof(struct prompt_span), sizeof(struct forced_span));
    int64_t pages = plan_row_pages(p), dirty = ceil_div(pages, 64) * 8;
    int64_t decode = p->batch * (pages * 4 + dirty) + p->step_tokens * 4 + (spans + tiles) * span;
    int64_t compact = p->head_positions * 4;
    int64_t embed = 2 * p->step_tokens * 8; // rows, and learned positions
    return max_i64(decode + compact, embed) + (3 * tiles + 5) * CARVE_ALIGN;
}

void tables_place(struct tables *t, struct carve *c, enum carve_arena arena, int n)
{
    const int64_t n_bytes = slot_bytes(c->plan);
    *t = (struct tables){.slots = CARVE_SLAB(c, workspace, arena, n, n_bytes)};
    if (arena == ARENA_PINNED && c->plan->device)
        t->twins = CARVE_SLAB(c, workspace, ARENA_DEVICE, n, n_bytes);
}

void tables_turn(struct tables *t, int64_t step)
{
    t->host = slab_at(&t->slots, step % t->slots.n);
    t->seen = t->twins.n > 0 ? slab_at(&t->twins, step % t->slots.n) : t->host;
    t->used = t->sent = 0;
}

void *tables_take(struct tables *t, int64_t n_bytes)
{
    void *p = t->host + t->used;
    t->used += round_up(n_bytes, CARVE_ALIGN);
    CHECK(t->used <= t->slots.n_bytes);
    return p;
}

void *tables_seen(const struct tables *t, const void *p)
{
    return t->seen + ((const uint8_t *)p - t->host);
}

void tables_send(struct tables *t, const struct ops *ops)
{
    if (t->seen != t->host && t->used > t->sent)
        ops_copy(ops, t->seen + t->sent, t->host + t->sent, t->used - t->sent);
    t->sent = t->used;
}
