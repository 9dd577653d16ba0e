/* bench/attention_plot.c - of bench/attention.h: four drawings on one sheet. */
#include "bench/attention.h"

#define CURVES 4 // layers whose accumulated weight is drawn

static double layer_mean(const struct look *l, int layer, enum look_figure figure)
{
    double sum = 0;
    for (int head = 0; head < l->n_heads; head++)
        sum += look_at(l, layer, head, figure);
    return sum / l->n_heads;
}

static void put_data(FILE *f, const struct look *l)
{
    fputs("$heads << END\n", f);
    for (int at = 0; at < l->n_layers * l->n_heads; at++)
        fprintf(f, "%d %.6g %.6g\n", at / l->n_heads,
                look_at(l, at / l->n_heads, at % l->n_heads, LOOK_SPARSITY),
                look_at(l, at / l->n_heads, at % l->n_heads, LOOK_SLOTS));
    fputs("END\n$layers << END\n", f);
    for (int layer = 0; layer < l->n_layers; layer++) {
        fprintf(f, "%d", layer);
        for (int i = 0; i < N_LOOK_FIGURES; i++)
            fprintf(f, " %.6g", layer_mean(l, layer, (enum look_figure)i));
        fputc('\n', f);
    }
    fputs("END\n$curves << END\n", f);
    for (int rank = 0; rank < l->n_prompt; rank++) {
        fprintf(f, "%d", rank + 1);
        for (int i = 0; i < CURVES; i++) {
            int layer = (l->n_layers - 1) * i / (CURVES - 1);
            fprintf(f, " %.6g", l->curves[(int64_t)layer * l->n_prompt + rank]);
        }
        fputc('\n', f);
    }
    fputs("END\n$overlap << END\n", f);
    for (int layer = 0; layer < l->n_layers; layer++) {
        fprintf(f, "%d", layer);
        for (int a = 0; a < l->n_sets; a++)
            for (int b = a + 1; b < l->n_sets; b++) {
                double sum = 0;
                for (int head = 0; head < l->n_kv_heads; head++)
                    sum += look_overlap(l, a, b, layer, head);
                fprintf(f, " %.6g", sum / l->n_kv_heads);
            }
        fputc('\n', f);
    }
    fputs("END\n", f);
}

static void put_overlaps(FILE *f, const struct look *l, const int *policies)
{
    int column = 2;
    fputs("set title \"kept sets: share that two policies have in common\"\nplot ", f);
    if (l->n_sets < 2)
        fputs("NaN notitle", f);
    for (int a = 0; a < l->n_sets; a++)
        for (int b = a + 1; b < l->n_sets; b++, column++)
            fprintf(f, "%s$overlap using 1:%d with lines title '%s, %s'", column > 2 ? ", " : "",
                    column, evict_policy_name(policies[a]), evict_policy_name(policies[b]));
    fputs("\n", f);
}

void look_draw(struct plot *p, const char *model, const char *about, const struct look *l,
               const int *policies)
{
    FILE *f = p->pipe;
    put_data(f, l);
    plot_canvas(p, 1200, 840);
    plot_title(f, "set multiplot layout 2,2 title", "attention of prompts", model, about);
    fputs("set grid\nset xlabel \"layer\"\nset key outside "
          "right\nset xrange [-0.5:*]\nset yrange [0:1]\n"
          "set title \"sparsity of heads, and slots that hold 95 % of a query\"\n"
          "plot $heads using 1:2 with points pt 7 ps 0.4 lc 1 notitle, "
          "$layers using 1:2 with lines lc 1 title 'sparsity', "
          "$heads using 1:3 with points pt 7 ps 0.4 lc 2 notitle, "
          "$layers using 1:3 with lines lc 2 title 'slots'\n"
          "set title \"share of accumulated weight\"\n"
          "plot $layers using 1:4 with lines title 'top 5 %', "
          "$layers using 1:5 with lines title 'top 10 %', "
          "$layers using 1:6 with lines title 'top 20 %'\n"
          "set title \"accumulated weight by rank\"\n"
          "set xlabel \"rank of a position, the heaviest first\"\n"
          "set logscale xy\nset format xy \"10^{%L}\"\n"
          "set xrange [1:*]\nset yrange [*:*]\nplot ",
          f);
    for (int i = 0; i < CURVES; i++)
        fprintf(f, "%s$curves using 1:%d with lines title 'layer %d'", i ? ", " : "", i + 2,
                (l->n_layers - 1) * i / (CURVES - 1));
    fputs("\nunset logscale\nset format xy \"%g\"\nset xlabel \"layer\"\nset xrange [-0.5:*]\n"
          "set yrange [0:1]\n",
          f);
    put_overlaps(f, l, policies);
    fputs("unset multiplot\n", f);
}
