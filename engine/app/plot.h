/* engine/app/plot.h - a plot of predicted throughput, drawn by gnuplot.
 *
 * Owns: the gnuplot process and the file that it draws. Refuses: temporary files: the data goes
 * through a pipe. Use: plot_open -> plot_point ... -> plot_close. */
#ifndef ENGINE_APP_PLOT_H
#define ENGINE_APP_PLOT_H

#include <stdio.h>
#include <sys/types.h>

#include "kernels/base.h"

struct plot {
    FILE *pipe; // owned: what gnuplot reads; NULL: none
    pid_t pid;
    const char *path; // borrowed
};

/* Starts gnuplot, whose drawing becomes `path` (SVG). ERR_USAGE: it is not installed (the message
 * names the package), or the file cannot be made. */
enum err plot_open(struct plot *p, const char *path, const char *model, const char *flag);
/* One planned value; `bound`: the lane that bounds it. */
void plot_point(struct plot *p, int64_t value, double tokens_per_s, const char *bound);
/* Draws. draw 0: gives up, no file is left. Accepts a zeroed plot. ERR_IO: gnuplot failed. */
enum err plot_close(struct plot *p, int draw);

#endif
