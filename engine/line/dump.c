/* engine/line/dump.c - see dump.h. */
#include "engine/line/dump.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 256 // slots shown in one line of the trace

enum err dump_open(struct dump *d, const struct dump_config *config)
{
    *d = (struct dump){.config = *config};
    if (config->dump_path)
        TRY(whole_open(&d->files[0], config->dump_path));
    enum err err = config->trace_path ? whole_open(&d->files[1], config->trace_path) : OK;
    if (err != OK)
        whole_drop(&d->files[0]);
    TRY(err);
    d->file = d->files[0].f;
    d->trace = d->files[1].f;
    return OK;
}

enum err dump_close(struct dump *d)
{
    char text[1024];
    enum err err = whole_end(&d->files[0]);
    snprintf(text, sizeof text, "%s", err_text());
    enum err other = whole_end(&d->files[1]);
    d->file = d->trace = NULL;
    return err == OK ? other : fail(err, "%s", text);
}

/* ---- --kv-dump ---- */

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

static void dump_kept(FILE *f, const struct kv_row *kv, int head, int n)
{
    const int32_t *kept = kv->slot_pos ? kv->slot_pos + (int64_t)head * kv->slots_cap : NULL;
    fputs("\"kept\":[", f);
    const char *comma = "";
    for (int s = 0; s < kv->n_slots; s++)
        if (!kept || kept[s] >= 0) {
            fprintf(f, "%s%d", comma, kept ? kept[s] : s);
            comma = ",";
        }
    for (int s = n - kv_ring_used(kv, n); s < n; s++) { // the ring: the newest tokens
        fprintf(f, "%s%d", comma, s);
        comma = ",";
    }
    fputs("]}\n", f);
}

/* ---- --kv-trace ---- */

struct shown {
    int pos;
    float score; // evict_rule's value of the slot
};

static int by_position(const void *a, const void *b)
{
    return ((const struct shown *)a)->pos - ((const struct shown *)b)->pos;
}

/* 1: the slot holds a token before position `next`. Ring slots follow page slots. */
static int is_held(const struct kv_row *kv, int64_t at, int64_t slot, int next)
{
    const int64_t ring = kv->slots_cap - kv->ring_slots;
    const int in_use = slot < kv->n_slots || (slot >= ring && slot - ring < kv_ring_used(kv, next));
    return in_use && kv->slot_pos[at + slot] >= 0;
}

static float trait_of(const struct kv_row *kv, int64_t slot)
{
    return kv->slot_trait ? kv->slot_trait[slot] : 0;
}

/* Slots of a head before the token at position `next`, oldest first. Returns the total; writes the
 * first SHOWN_MAX page slots to *all. */
static int shown_slots(const struct dump *d, const struct kv_row *kv, int head, int next,
                       struct shown *all)
{
    const struct evict_rule *mode = &d->config.score;
    const int64_t at = (int64_t)head * kv->slots_cap;
    int n = 0;
    for (int64_t s = 0; s < kv->slots_cap && n < SHOWN_MAX; s++)
        if (is_held(kv, at, s, next)) {
            const float score = kv->slot_score ? kv->slot_score[at + s] : 0;
            const float trait = trait_of(kv, at + s);
            all[n++] = (struct shown){kv->slot_pos[at + s], evict_score_value(mode, score, trait)};
        }
    qsort(all, (size_t)n, sizeof *all, by_position);
    return n;
}

/* Protected positions are printed in brackets; scores only if the policy ranks by scores. */
static void trace_slots(const struct dump *d, const struct row *row, const struct kv_row *kv,
                        int head, int next)
{
    struct shown all[SHOWN_MAX];
    const int n = shown_slots(d, kv, head, next, all), scores = d->config.score.source;
    for (int i = 0; i < n; i++) {
        int pinned = evict_protected(&row->evict, all[i].pos, next);
        fprintf(d->trace, pinned ? " [%d" : " %d", all[i].pos);
        if (scores)
            fprintf(d->trace, ":%.3f", (double)all[i].score);
        fputs(pinned ? "]" : "", d->trace);
    }
    fputs(n == SHOWN_MAX ? " ...\n" : "\n", d->trace);
}

static void trace_head(const struct dump *d, const struct row *row, int layer, int head)
{
    const struct request *r = row->request;
    fprintf(d->trace, "%.*s layer %d head %d", (int)r->n_custom_id, r->custom_id, layer, head);
}

static void trace_kv(const struct dump *d, const struct row *row, int layer,
                     const struct kv_row *kv, int pos, int n, const struct evict_event *events,
                     int head)
{
    const int heads = kv->all->layout.n_kv_heads;
    if (!events) {
        trace_head(d, row, layer, head);
        fprintf(d->trace, " prompt of %d, budget %d, sink %d, recent %d: holds", n,
                row->evict.budget, row->evict.sink, row->evict.recent);
        trace_slots(d, row, kv, head, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        const struct evict_event *v = &events[(int64_t)i * heads + head];
        trace_head(d, row, layer, head);
        fprintf(d->trace, " token %d", pos + i);
        if (v->pos >= 0 && d->config.score.source)
            fprintf(d->trace, " drops %d:%.3f%s", v->pos, (double)v->score,
                    v->pos == pos + i ? ", itself" : "");
        else if (v->pos >= 0)
            fprintf(d->trace, " drops %d", v->pos);
        if (i < n - 1) { // its slots at that time are no longer known
            fputc('\n', d->trace);
            continue;
        }
        fputs(": holds", d->trace);
        trace_slots(d, row, kv, head, pos + n);
    }
}

void dump_kv(void *ctx, const struct row *row, int layer, const struct kv_row *kv, int pos, int n,
             const struct evict_event *events)
{
    const struct dump *d = ctx;
    int heads = kv->all->layout.n_kv_heads;
    for (int head = 0; head < heads; head++) {
        if (d->trace && kv->slot_pos)
            trace_kv(d, row, layer, kv, pos, n, events, head);
        if (d->file && !events) {
            dump_line(d->file, row, layer, head);
            dump_kept(d->file, kv, head, n);
        }
        for (int i = 0; d->file && events && i < n; i++) {
            const struct evict_event *v = &events[(int64_t)i * heads + head];
            if (v->pos < 0)
                continue;
            dump_line(d->file, row, layer, head);
            fprintf(d->file, "\"pos\":%d,\"victim\":%d,\"score\":%.9g}\n", pos + i, v->pos,
                    (double)v->score);
        }
    }
}
