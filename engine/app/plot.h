/* engine/app/plot.h - plots, drawn by gnuplot: of predicted throughput, and what bench/ draws.
 *
 * Owns: the gnuplot process and the file that it draws. Refuses: temporary files: the data goes
 * through a pipe. Use: plot_open -> plot_point ... -> plot_close; for another kind of drawing
 * plot_start -> a script into plot.pipe -> plot_end. */
#ifndef ENGINE_APP_PLOT_H
#define ENGINE_APP_PLOT_H

#include <stdio.h>
#include <sys/types.h>

#include "kernels/base/whole.h"

#define PLOT_BOUNDS 8
#define PLOT_MARK   "drawn by sluice" // stands near the end of every drawing
#define PLOT_TICS   8192 // bytes

struct plot {
    FILE *pipe; // owned: what gnuplot reads; NULL: none
    pid_t pid;
    struct whole_file drawing;       // owned: what gnuplot writes
    int png;                         // 1: PNG, 0: SVG
    const char *bounds[PLOT_BOUNDS]; // borrowed: lanes that bound some point
    int n_bounds, n_points;
    double first, last;   // of the points
    char tics[PLOT_TICS]; // the points' labels, as gnuplot takes them
    int n_tics;
};

/* What the path's ending asks for: *png 1 or 0 (NULL: not wanted). ERR_USAGE: neither. */
enum err plot_form(const char *path, int *png);
/* Starts gnuplot, whose drawing becomes `path`. ERR_USAGE: it is not installed (the message names
 * the package), or the file cannot be made. */
enum err plot_start(struct plot *p, const char *path);
/* Within a string of the script: what would end it, or mean something in it, becomes a blank. */
void plot_text(FILE *f, const char *text);
/* The terminal and its size in pixels. */
void plot_canvas(const struct plot *p, int width, int height);
/* `set` and two lines of title: what is drawn of which model, and what it depends on ("":
 * nothing). */
void plot_title(FILE *f, const char *set, const char *title, const char *model, const char *about);
/* Ends the script; draw 0: gives up. Without a drawing the file that stood at the path stays.
 * Accepts a zeroed plot. ERR_IO: gnuplot failed. */
enum err plot_end(struct plot *p, int draw);

/* The same for points of a sweep. */
enum err plot_open(struct plot *p, const char *path);
/* One planned value, x ascending; `bound`: the lane that bounds it, NULL: nothing fits, and only
 * the label is drawn. Without a plot it does nothing. */
void plot_point(struct plot *p, double x, const char *label, double tokens_per_s,
                const char *bound);
/* Draws; `doubles`: along an axis on which each point is twice the one before, else bars side by
 * side. model NULL: gives up. Accepts a zeroed plot. ERR_IO: gnuplot failed. */
enum err plot_close(struct plot *p, const char *model, const char *flag, int doubles);

#endif
