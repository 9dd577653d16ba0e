/* engine/line/tables.h - what a step tells its ops: spans, positions, page ids, offsets of rows.
 *
 * Owns: which bytes of the step's slot are taken. Each step in flight has a slot of pinned memory,
 * and a twin of it in the device's memory, where ops read; without a device of its own memory they
 * are one and nothing is copied. Refuses: to know what stands in a table. */
#ifndef ENGINE_LINE_TABLES_H
#define ENGINE_LINE_TABLES_H

#include "engine/line/carve.h"
#include "kernels/ops.h"

struct tables {
    struct slab slots, twins; // twins: none where ops read the slots themselves
    uint8_t *host, *seen;     // the slot of the step, and its twin
    int64_t used, sent;       // bytes of it
};

/* Carves n slots from an arena. On a device, slots in ARENA_PINNED have twins in its memory. */
void tables_place(struct tables *t, struct carve *c, enum carve_arena arena, int n);
/* The slot of a step: the one before in it must be done. */
void tables_turn(struct tables *t, int64_t step);
/* Room for n_bytes in the step's slot, 64-byte aligned; tables_place() counted it. */
void *tables_take(struct tables *t, int64_t n_bytes);
/* Where ops read what stands at p. */
void *tables_seen(const struct tables *t, const void *p);
/* Everything taken since the last time is filled in: queues its way to where ops read. */
void tables_send(struct tables *t, const struct ops *ops);

#endif
