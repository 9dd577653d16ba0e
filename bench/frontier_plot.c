/* bench/frontier_plot.c - of bench/frontier.h: the points that nothing beats, and the drawing. */
#include "bench/frontier.h"

#include <math.h>

static int beats(const struct point *a, const struct point *b)
{
    return a->tokens_per_s >= b->tokens_per_s && a->ppl <= b->ppl &&
           (a->tokens_per_s > b->tokens_per_s || a->ppl < b->ppl);
}

void frontier_mark(struct point *points, int n)
{
    for (int i = 0; i < n; i++) {
        points[i].best = isfinite(points[i].tokens_per_s);
        for (int k = 0; k < n; k++)
            if (beats(&points[k], &points[i]))
                points[i].best = 0;
    }
}

/* The fastest of those slower than `than`, that nothing beats; -1: none. */
static int next_best(const struct point *points, int n, double than)
{
    int next = -1;
    for (int i = 0; i < n; i++)
        if (points[i].best && points[i].tokens_per_s < than &&
            (next < 0 || points[i].tokens_per_s > points[next].tokens_per_s))
            next = i;
    return next;
}

/* What nothing beats, from the fastest on, each with its name: points of one speed have one
 * perplexity. */
static void put_best(FILE *f, const struct point *points, int n)
{
    fputs("$best << END\n", f);
    for (int i = next_best(points, n, INFINITY); i >= 0;
         i = next_best(points, n, points[i].tokens_per_s)) {
        fprintf(f, "%.9g %.9g \"", points[i].ppl, points[i].tokens_per_s);
        plot_text(f, points[i].name);
        fputs("\"\n", f);
    }
    fputs("END\n", f);
}

static int has_policy(const struct point *points, int n, int policy)
{
    int has = 0;
    for (int i = 0; i < n; i++)
        has |= points[i].evict.policy == policy && isfinite(points[i].tokens_per_s);
    return has;
}

void frontier_draw(struct plot *p, const char *model, const struct point *points, int n)
{
    FILE *f = p->pipe;
    for (int policy = 0; policy < N_EVICT_POLICIES; policy++) {
        if (!has_policy(points, n, policy))
            continue;
        fprintf(f, "$policy%d << END\n", policy);
        for (int i = 0; i < n; i++)
            if (points[i].evict.policy == policy && isfinite(points[i].tokens_per_s))
                fprintf(f, "%.9g %.9g\n", points[i].ppl, points[i].tokens_per_s);
        fputs("END\n", f);
    }
    put_best(f, points, n);
    plot_canvas(f, 900, 540, "speed and loss of KV policies", model);
    fputs("set xlabel \"perplexity\"\nset ylabel \"output tokens/s\"\nset logscale x\n"
          "set yrange [0:*]\nset offsets graph 0.05, graph 0.15, graph 0.05, 0\nset grid\n"
          "set key outside right\n"
          "plot $best using 1:2 with lines lc rgb 'gray50' notitle",
          f);
    for (int policy = 0; policy < N_EVICT_POLICIES; policy++)
        if (has_policy(points, n, policy))
            fprintf(f, ", $policy%d using 1:2 with points pt 7 title '%s'", policy,
                    evict_policy_name(policy));
    fputs(", $best using 1:2:3 with labels left offset 0.7,0.3 notitle\n", f);
}
