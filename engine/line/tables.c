/* engine/line/tables.c - see tables.h. */
#include "engine/line/tables.h"

void tables_turn(struct tables *t, int64_t step)
{
    const struct layout *l = t->memory->layout;
    int64_t slot = step % l->parts[t->part].n;
    t->host = memory_at(t->memory, t->part, slot);
    t->seen = t->part == LAYOUT_TABLES ? memory_at(t->memory, LAYOUT_SEEN_TABLES, slot) : NULL;
    if (!t->seen)
        t->seen = t->host;
    t->used = t->sent = 0;
}

void *tables_take(struct tables *t, int64_t n_bytes)
{
    void *p = t->host + t->used;
    t->used += round_up(n_bytes, 64);
    CHECK(t->used <= t->memory->layout->parts[t->part].n_bytes);
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
