/* engine/line/dump.h - --kv-dump: the positions kept after a prompt, then each victim with position
 * and score, as JSON lines. --kv-trace: the same as text, with the slots that heads hold. */
#ifndef ENGINE_LINE_DUMP_H
#define ENGINE_LINE_DUMP_H

#include <stdio.h>

#include "engine/line/layer.h"
#include "kernels/base/whole.h"

struct dump_config {
    const char *dump_path, *trace_path; // NULL: not wanted
    struct evict_rule score;            // of the policy
};

struct dump {
    struct dump_config config;
    struct whole_file files[2]; // owned: one per path
    FILE *file, *trace;         // borrowed from `files`; NULL: closed
};

enum err dump_open(struct dump *d, const struct dump_config *config);
/* Gives the files their final names. Returns the first error of the two files. Accepts a closed or
 * zeroed struct. */
enum err dump_close(struct dump *d);
/* A layer_dump_fn; ctx: struct dump. */
void dump_kv(void *ctx, const struct row *row, int layer, const struct kv_row *kv, int pos, int n,
             const struct evict_event *events);

#endif
