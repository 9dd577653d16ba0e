/* bench/frontier.h - the points of `bench frontier`: which of them nothing beats, and their
 * drawing.
 *
 * Owns: the comparison of speed and loss. Refuses: measuring either (bench/frontier.c). */
#ifndef BENCH_FRONTIER_H
#define BENCH_FRONTIER_H

#include "engine/app/frontier_file.h"
#include "engine/app/plot.h"
#include "kernels/kv.h"

/* A policy, budget and format. */
struct point {
    struct evict evict;
    enum kv_format format;
    const char *budget;         // borrowed: as it was asked for; NULL: all slots
    char kv[FRONTIER_KV];       // frontier_kv()
    char name[FRONTIER_KV + 8]; // that and the format
    double ppl, tokens_per_s;   // NAN: none
    int best; // frontier_mark(): no other is as fast, within 1 %, and as good, and better in one
};

void frontier_mark(struct point *points, int n);
/* The script of the drawing, into p->pipe: tokens a second over perplexity, a colour a policy, the
 * best ones named. */
void frontier_draw(struct plot *p, const char *model, const char *about, const struct point *points,
                   int n);

#endif
