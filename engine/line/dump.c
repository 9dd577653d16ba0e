/* engine/line/dump.c - see dump.h. */
#include "engine/line/dump.h"

#include <errno.h>
#include <string.h>

enum err dump_open(struct dump *d, const char *path, int n_kv_heads)
{
    *d = (struct dump){.file = fopen(path, "w"), .n_kv_heads = n_kv_heads};
    if (!d->file)
        return fail(ERR_USAGE, "%s: --kv-dump: %s", path, strerror(errno));
    return OK;
}

void dump_close(struct dump *d)
{
    if (d->file)
        fclose(d->file);
    d->file = NULL;
}

static void dump_line(FILE *f, const struct row *row, int layer, int head)
{
    const struct request *r = row->request;
    fputs("{\"row\":\"", f);
    for (int64_t i = 0; i < r->n_custom_id; i++) {
        unsigned char c = (unsigned char)r->custom_id[i];
        if (c < 0x20 || c == '"' || c == '\\')
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fprintf(f, "\",\"layer\":%d,\"head\":%d,", layer, head);
}

void dump_kv(void *ctx, const struct row *row, int layer, const struct kv_row *kv, int pos, int n,
             const struct evict_event *events)
{
    const struct dump *d = ctx;
    int heads = d->n_kv_heads;
    for (int head = 0; head < heads; head++) {
        if (!events) {
            const int32_t *kept =
                kv->slot_pos ? kv->slot_pos + (int64_t)head * kv->slots_cap : NULL;
            dump_line(d->file, row, layer, head);
            fputs("\"kept\":[", d->file);
            const char *comma = "";
            for (int s = 0; s < kv->n_slots; s++)
                if (!kept || kept[s] >= 0) {
                    fprintf(d->file, "%s%d", comma, kept ? kept[s] : s);
                    comma = ",";
                }
            for (int s = n - kv_ring_used(kv, n); s < n; s++) { // the ring: its last tokens
                fprintf(d->file, "%s%d", comma, s);
                comma = ",";
            }
            fputs("]}\n", d->file);
            continue;
        }
        for (int i = 0; i < n; i++) {
            const struct evict_event *v = &events[(int64_t)i * heads + head];
            if (v->pos < 0)
                continue;
            dump_line(d->file, row, layer, head);
            fprintf(d->file, "\"pos\":%d,\"victim\":%d,\"score\":%.9g}\n", pos + i, v->pos,
                    (double)v->score);
        }
    }
}
