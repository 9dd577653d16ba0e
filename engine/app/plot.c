/* engine/app/plot.c - see plot.h.
 *
 * Note: the drawing is gnuplot's stdout, so a path never stands in a script, and
 * the script starts with the data, so that points can be written as they are planned. What was
 * seen of them says the rest: axis, labels, lanes. */
#include "engine/app/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEVEL_TICS 90 // bytes of labels that fit side by side

extern char **environ;

static enum err start(struct plot *p, int out_fd, int read_fd)
{
    char *argv[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, read_fd, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    int e = posix_spawnp(&p->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (e == ENOENT)
        return fail(ERR_USAGE, "--plot: gnuplot is not there (install the package gnuplot-nox)");
    return e ? fail(ERR_USAGE, "--plot: gnuplot does not start: %s", strerror(e)) : OK;
}

/* What would end a gnuplot string, or mean something in it, becomes a blank. */
#define UNSAFE "\"\\\n{}^_@&~"

void plot_text(FILE *f, const char *text)
{
    for (; *text; text++)
        fputc(strchr(UNSAFE, *text) ? ' ' : *text, f);
}

enum err plot_form(const char *path, int *png)
{
    size_t n = strlen(path);
    int is_png = n > 4 && strcmp(path + n - 4, ".png") == 0;
    if (!is_png && (n <= 4 || strcmp(path + n - 4, ".svg") != 0))
        return fail(ERR_USAGE, "--plot: '%.400s' ends in neither .svg nor .png", path);
    if (png)
        *png = is_png;
    return OK;
}

enum err plot_start(struct plot *p, const char *path)
{
    int ends[2];
    *p = (struct plot){0};
    TRY(plot_form(path, &p->png));
    TRY(whole_open(&p->drawing, path));
    enum err e = pipe2(ends, O_CLOEXEC) == 0 ? OK : fail(ERR_IO, "pipe: %s", strerror(errno));
    if (e == OK) {
        e = start(p, fileno(p->drawing.f), ends[0]);
        close(ends[0]);
        p->pipe = e == OK ? fdopen(ends[1], "w") : NULL;
        if (!p->pipe)
            close(ends[1]);
        if (e == OK && !p->pipe) {
            waitpid(p->pid, NULL, 0); // its input has ended
            e = fail(ERR_FIT, "memory: no room for a plot");
        }
    }
    if (e != OK)
        whole_drop(&p->drawing);
    return e;
}

enum err plot_open(struct plot *p, const char *path)
{
    TRY(plot_start(p, path));
    fputs("$sweep << END\n", p->pipe);
    return OK;
}

void plot_canvas(const struct plot *p, int width, int height)
{
    fprintf(p->pipe,
            "set terminal %s size %d,%d%s enhanced background rgb 'white' font 'sans,%d'\n"
            "set encoding utf8\n",
            p->png ? "pngcairo" : "svg", width, height, p->png ? "" : " dynamic",
            p->png ? 11 : 13);
}

void plot_title(FILE *f, const char *set, const char *title, const char *model, const char *about)
{
    fprintf(f, "%s \"%s, ", set, title);
    plot_text(f, model);
    if (about[0])
        fputs("\\n", f);
    plot_text(f, about);
    fputs("\"\n", f);
}

/* "label" x, of `set xtics`. */
static void add_tic(struct plot *p, double x, const char *label)
{
    char text[64];
    size_t n = 0;
    for (; label[n] && n < sizeof text - 1; n++)
        text[n] = strchr(UNSAFE, label[n]) ? ' ' : label[n];
    text[n] = 0;
    if (p->n_tics < PLOT_TICS - 128)
        p->n_tics += snprintf(p->tics + p->n_tics, (size_t)(PLOT_TICS - p->n_tics),
                              "%s\"%s\" %.17g", p->n_tics ? ", " : "", text, x);
}

void plot_point(struct plot *p, double x, const char *label, double tokens_per_s, const char *bound)
{
    if (!p->pipe)
        return;
    if (p->n_points++ == 0)
        p->first = x;
    p->last = x;
    add_tic(p, x, label);
    if (!bound)
        return;
    fprintf(p->pipe, "%.17g %.6g %s\n", x, tokens_per_s, bound);
    int i = 0;
    while (i < p->n_bounds && strcmp(p->bounds[i], bound) != 0)
        i++;
    if (i == p->n_bounds && i < PLOT_BOUNDS)
        p->bounds[p->n_bounds++] = bound;
}

static void put_axes(const struct plot *p, const char *model, const char *flag, int doubles)
{
    FILE *f = p->pipe;
    plot_canvas(p, 800, 480);
    plot_title(f, "set title", "predicted by sluice plan", model, "");
    fputs("set xlabel \"--", f);
    plot_text(f, flag);
    fprintf(f,
            "\"\nset ylabel \"output tokens/s\"\nset yrange [0:%s]\nset grid\n"
            "set key outside right title \"limited by\"\nset xtics %s(%s)\n",
            p->n_bounds ? "*" : "1", p->n_tics > LEVEL_TICS ? "rotate by -35 " : "", p->tics);
    if (doubles)
        fprintf(f, "set logscale x 2\nset xrange [%.17g:%.17g]\n", p->first / 1.2, p->last * 1.2);
    else
        fprintf(f, "set xrange [%g:%g]\nset boxwidth 0.6\nset style fill solid 0.7\n",
                p->first - 0.7, p->last + 0.7);
}

static void put_points(const struct plot *p, int doubles)
{
    fprintf(p->pipe, "plot %s",
            p->n_bounds == 0 ? "NaN notitle"
            : doubles        ? "$sweep using 1:2 with lines lc rgb 'gray50' notitle"
                             : "");
    for (int i = 0; i < p->n_bounds; i++)
        fprintf(p->pipe, "%s$sweep using 1:(strcol(3) eq '%s' ? $2 : NaN) with %s title '%s'",
                i || doubles ? ", " : "", p->bounds[i], doubles ? "points pt 7" : "boxes",
                p->bounds[i]);
    fputc('\n', p->pipe);
}

/* The mark as a chunk of a PNG (length, tEXt, keyword, CRC-32 of the last two), and the chunk that
 * ends every PNG. */
static const char png_mark[] = "\0\0\0\x18"
                               "tEXtSoftware\0" PLOT_MARK "\xe1\x74\x60\xa5";
static const char png_end[] = "\0\0\0\0IEND\xae\x42\x60\x82";

/* gnuplot ends well on a full disk, too: the last tag or chunk tells whether all of it was written.
 * The mark goes before that. 0: the drawing is not complete. */
static int mark_drawing(FILE *f, int png)
{
    const char *end = png ? png_end : "</svg>";
    const size_t n_end = png ? sizeof png_end - 1 : strlen(end);
    char tail[64];
    if (fseek(f, -16, SEEK_END) != 0)
        return 0;
    size_t n = fread(tail, 1, 16, f);
    const char *tag = memmem(tail, n, end, n_end);
    if (!tag || fseek(f, -(long)(n - (size_t)(tag - tail)), SEEK_END) != 0)
        return 0;
    if (!png)
        return fputs("<!-- " PLOT_MARK " -->\n</svg>\n", f) >= 0;
    return fwrite(png_mark, sizeof png_mark - 1, 1, f) == 1 && fwrite(png_end, n_end, 1, f) == 1;
}

enum err plot_end(struct plot *p, int draw)
{
    int status = 0;
    if (!p->pipe)
        return OK;
    fclose(p->pipe);
    p->pipe = NULL;
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (draw && WIFEXITED(status) && WEXITSTATUS(status) == 0 && mark_drawing(p->drawing.f, p->png))
        return whole_end(&p->drawing);
    whole_drop(&p->drawing);
    return draw ? fail(ERR_IO, "--plot: gnuplot failed, %s was not made", p->drawing.path) : OK;
}

enum err plot_close(struct plot *p, const char *model, const char *flag, int doubles)
{
    if (!p->pipe)
        return OK;
    fputs("END\n", p->pipe);
    if (model) {
        put_axes(p, model, flag, doubles);
        put_points(p, doubles);
    }
    return plot_end(p, model != NULL);
}
