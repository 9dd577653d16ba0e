/* engine/line/dump.h - --kv-dump: positions kept after a prompt, then each victim with its position
 * and score, as JSON lines. */
#ifndef ENGINE_LINE_DUMP_H
#define ENGINE_LINE_DUMP_H

#include <stdio.h>

#include "engine/line/layer.h"

struct dump {
    FILE *file; // owned; NULL: closed
    int n_kv_heads;
};

/* ERR_USAGE: the file cannot be written. */
enum err dump_open(struct dump *d, const char *path, int n_kv_heads);
void dump_close(struct dump *d); // accepts a zeroed one
/* A layer_dump_fn; ctx: struct dump. */
void dump_kv(void *ctx, const struct row *row, int layer, const struct kv_row *kv, int pos, int n,
             const struct evict_event *events);

#endif
