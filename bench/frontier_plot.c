/* bench/frontier_plot.c - of bench/frontier.h: the points that nothing beats, and the drawing. */
#include "bench/frontier.h"

#include <math.h>

#define SAME_SPEED  0.99 // what is measured no closer is no reason to lose more
#define LABEL_LINES 32   // names above each other
#define LABEL_SHARE 0.5  // of the axis' length, on top of it: room for them

static int beats(const struct point *a, const struct point *b)
{
    return a->tokens_per_s >= b->tokens_per_s * SAME_SPEED && a->ppl <= b->ppl &&
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

/* What the axes show: from the least perplexity of all to a little beyond the greatest of what
 * nothing beats; what loses more is left out. */
struct view {
    double least, most, top;
    int n_best;
};

static struct view view_of(const struct point *points, int n)
{
    struct view v = {.least = INFINITY};
    for (int i = 0; i < n; i++) {
        if (!isfinite(points[i].tokens_per_s))
            continue;
        v.least = fmin(v.least, points[i].ppl);
        v.top = fmax(v.top, points[i].tokens_per_s * 1.08);
        if (!points[i].best)
            continue;
        v.most = fmax(v.most, points[i].ppl);
        v.n_best++;
    }
    v.most = fmax(v.most * 1.1, v.least * 1.5);
    return v;
}

/* What nothing beats, from the fastest on, each with its name and where that is written: in a
 * column behind the points, beside its point or, where names would meet, below the one before.
 * Points of one speed have one perplexity. */
static void put_best(FILE *f, const struct point *points, int n, const struct view *v)
{
    const double step = v->top / fmax(LABEL_LINES, v->n_best + 1);
    double line = v->top;
    fputs("$best << END\n", f);
    for (int i = next_best(points, n, INFINITY); i >= 0;
         i = next_best(points, n, points[i].tokens_per_s)) {
        line = fmin(line - step, points[i].tokens_per_s);
        fprintf(f, "%.9g %.9g %.9g %.9g \"", points[i].ppl, points[i].tokens_per_s, v->most, line);
        plot_text(f, points[i].name);
        fputs("\"\n", f);
    }
    fputs("END\n", f);
}

static int has_policy(const struct point *points, int n, int policy, int best)
{
    int has = 0;
    for (int i = 0; i < n; i++)
        has |= points[i].evict.policy == policy && isfinite(points[i].tokens_per_s) &&
               (points[i].best || !best);
    return has;
}

/* Points of a policy. The legend names a policy only if none of its points has a label. */
static void put_policies(FILE *f, const struct point *points, int n)
{
    for (int policy = 0; policy < N_EVICT_POLICIES; policy++) {
        if (!has_policy(points, n, policy, 0))
            continue;
        fprintf(f, ", $policy%d using 1:2 with points pt %d ", policy, 5 + policy / 8 * 2);
        if (has_policy(points, n, policy, 1))
            fputs("notitle", f);
        else
            fprintf(f, "title '%s'", evict_policy_name(policy));
    }
}

void frontier_draw(struct plot *p, const char *model, const char *about, const struct point *points,
                   int n)
{
    FILE *f = p->pipe;
    const struct view v = view_of(points, n);
    for (int policy = 0; policy < N_EVICT_POLICIES; policy++) {
        if (!has_policy(points, n, policy, 0))
            continue;
        fprintf(f, "$policy%d << END\n", policy);
        for (int i = 0; i < n; i++)
            if (points[i].evict.policy == policy && isfinite(points[i].tokens_per_s))
                fprintf(f, "%.9g %.9g\n", points[i].ppl, // -1: below the axis, behind the names
                        points[i].ppl <= v.most ? points[i].tokens_per_s : -1);
        fputs("END\n", f);
    }
    put_best(f, points, n, &v);
    plot_canvas(p, 1000, 600);
    plot_title(f, "set title", "speed and loss of KV policies", model, about);
    fprintf(f,
            "set xlabel \"perplexity (points much worse than the named ones are not drawn)\"\n"
            "set ylabel \"output tokens/s\"\nset xrange [%.9g:%.9g]\nset yrange [0:%.9g]\n"
            "set grid\nset key outside right\n"
            "plot $best using 1:2 with lines lc rgb 'gray50' notitle, "
            "$best using 1:2:($3-$1):($4-$2) with vectors nohead lc rgb 'gray80' notitle",
            v.least - 0.03 * (v.most - v.least), v.most + LABEL_SHARE * (v.most - v.least), v.top);
    put_policies(f, points, n);
    fputs(", $best using 3:4:5 with labels left offset 0.3,0 notitle\n", f);
}
