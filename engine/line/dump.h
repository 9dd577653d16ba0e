/* engine/line/dump.h - --kv-dump: positions kept after a prompt, then each victim with its position
 * and score, as JSON lines; --kv-trace: the same to read, and what heads hold. */
#ifndef ENGINE_LINE_DUMP_H
#define ENGINE_LINE_DUMP_H

#include <stdio.h>

#include "engine/line/layer.h"

struct dump_config {
    const char *dump_path, *trace_path; // NULL: not wanted
    int n_kv_heads, group;              // query heads of a KV head
    struct evict_score score;           // of the policy
};

struct dump {
    struct dump_config config;
    FILE *file, *trace; // owned; NULL: closed
};

/* ERR_USAGE: a file cannot be written. */
enum err dump_open(struct dump *d, const struct dump_config *config);
void dump_close(struct dump *d); // accepts a zeroed one
/* A layer_dump_fn; ctx: struct dump. */
void dump_kv(void *ctx, const struct row *row, int layer, const struct kv_row *kv, int pos, int n,
             const struct evict_event *events);

#endif
